"""A dedicated worker pool: jobs by key, each key on exactly one worker of the fleet.

    pool/errors.py, checks.py, settings.py   what can go wrong, what may be given, what can be set
    pool/version.py  the version, written once
    pool/names.py    every Redis key      pool/events.py    every event that observers are told
    pool/core/       pure: records, placement, leases, pauses, codecs; no clock, no I/O
    pool/redis/      all that knows Redis: addresses, pipeline, scripts and their commands
    pool/runtime/    time and tasks: actors, their supervisor, the session with a pool
    pool/maps/       replicated maps            pool/streams/    streams, readers, sinks
    pool/jobs/       the node: client/ dispatches, worker/ runs, fleet/ looks after all of them
    pool/ops/        for people: the command line, and what it looks at
    pool/testing/    for your tests: a fault proxy, an auditor
    pool/demo/       `pool demo`

A module imports its own floor or a lower one.  Public is what is named here and in the `__all__`
of `pool.errors`, `pool.events`, `pool.maps`, `pool.streams` and `pool.testing`; the rest may
change.  `import pool` alone loads none of them: a name is fetched from its home when it is first
used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from pool.version import __version__

if TYPE_CHECKING:  # what type checkers and editors read; at run time it is `_HOMES`
    from pool.errors import PoolError
    from pool.jobs.client.dispatch import Call, Dispatching
    from pool.jobs.client.ref import JobRef, Status
    from pool.jobs.handlers import Handler, Handlers, Runner
    from pool.jobs.job import Cancel, Job, Park, Retry
    from pool.jobs.keeper import Step
    from pool.jobs.node import LocalWorker, Node
    from pool.jobs.roster import WorkerInfo
    from pool.maps.map import ReplicatedMap
    from pool.runtime.memory import freeze_memory
    from pool.runtime.observers import log_observer
    from pool.settings import Settings
    from pool.streams.stream import Stream

__all__ = [
    "Call",
    "Cancel",
    "Dispatching",
    "Handler",
    "Handlers",
    "Job",
    "JobRef",
    "LocalWorker",
    "Node",
    "Park",
    "PoolError",
    "ReplicatedMap",
    "Retry",
    "Runner",
    "Settings",
    "Status",
    "Step",
    "Stream",
    "WorkerInfo",
    "__version__",
    "freeze_memory",
    "log_observer",
]

if not TYPE_CHECKING:  # a type checker would take any name, if it saw this
    _HOMES = {
        "Call": "pool.jobs.client.dispatch",
        "Cancel": "pool.jobs.job",
        "Dispatching": "pool.jobs.client.dispatch",
        "Handler": "pool.jobs.handlers",
        "Handlers": "pool.jobs.handlers",
        "Job": "pool.jobs.job",
        "JobRef": "pool.jobs.client.ref",
        "LocalWorker": "pool.jobs.node",
        "Node": "pool.jobs.node",
        "Park": "pool.jobs.job",
        "PoolError": "pool.errors",
        "ReplicatedMap": "pool.maps.map",
        "Retry": "pool.jobs.job",
        "Runner": "pool.jobs.handlers",
        "Settings": "pool.settings",
        "Status": "pool.jobs.client.ref",
        "Step": "pool.jobs.keeper",
        "Stream": "pool.streams.stream",
        "WorkerInfo": "pool.jobs.roster",
        "freeze_memory": "pool.runtime.memory",
        "log_observer": "pool.runtime.observers",
    }

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            msg = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(msg)
        found = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
