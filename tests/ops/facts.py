"""Facts as they are read from a pool, for tests of what is made of them."""

from __future__ import annotations

from typing import Any

from pool.core.crash_marks import Aboard, Marks, Round
from pool.core.record import Record
from pool.jobs.roster import WorkerEntry
from pool.ops.keyfacts import KeyOwner

NOW_MS = 1_700_000_000_000
TTL_MS = 10_000
# What is found of a machine that is too busy to run a test in peace, and of nothing planted.
BUSY = frozenset({"loop-lag", "loop-busy", "renewals-fail", "leases-lost"})
MARKED = Marks(2, last=Aboard("process1ss", 1, 3))
TOSSED = Marks(2, rounds=40, round=Round(1, 9, is_held=True))


def worker(name: str = "wA", **changes: Any) -> WorkerEntry:
    facts: dict[str, Any] = {
        "id": name,
        "node": "n1",
        "handlers": ("h",),
        "capacity": 4,
        "weight": 1.0,
        "label": "",
        "version": "v7",
        "is_draining": False,
        "host": "alpha",
        "pid": 41,
        "numbers": (1,),
    }
    return WorkerEntry(**{**facts, **changes})


def owner(name: str = "wA.1", **changes: Any) -> KeyOwner:
    facts: dict[str, Any] = {
        "name": name,
        "info": worker(name.partition(".")[0]),
        "lease_s": 8.0,
        "is_open": True,
        "takes": 4,
        "running": 1,
        "pending": 1,
    }
    return KeyOwner(**{**facts, **changes})


def record(state: Any, **changes: Any) -> Record:
    at = NOW_MS - 5_000
    facts: dict[str, Any] = {
        "state": state,
        "kind": "job",
        "id": "j1",
        "handler": "h",
        "owner": "wA.1" if state in ("pending", "running") else "",
        "epoch": at * 1000,
        "attempt": 1,
        "flags": "",
        "intent": "",
        "marks": Marks(),
        "requeues": 0,
        "accepted": at * 1000,
        "since_ms": at if state == "running" else 0,
        "waiters": (),
        "error": "",
        "more": "",
    }
    return Record(**{**facts, **changes})
