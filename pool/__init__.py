"""A dedicated worker pool: jobs by key, each key on exactly one worker of the fleet.

    pool/errors.py, checks.py, settings.py   what can go wrong, what may be given, what can be set
    pool/version.py  the version, written once
    pool/model/      pure: names, records, placement, leases, codecs; no clock, no I/O
    pool/store/      all that knows Redis: addresses, the link, scripts, the embedded server
    pool/actors/     time and tasks: the node and the actors in it
    pool/ops/        for people: the command line, the demo
    pool/testing/    for your tests: a fault proxy, an auditor

A module imports its own floor or a lower one.  What is named here is public; the rest may change.
`import pool` alone loads none of them: a name is fetched from its home when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from pool.version import __version__

if TYPE_CHECKING:  # what type checkers and editors read; at run time it is `_HOMES`
    from pool.actors.dispatching import Call
    from pool.actors.handlers import Handler, Handlers, Runner
    from pool.actors.job import Cancel, Job, Park, Retry
    from pool.actors.memory import freeze_memory
    from pool.actors.node import Node
    from pool.actors.observe import log_observer
    from pool.actors.reader import Reader
    from pool.actors.ref import JobRef, Status
    from pool.actors.rmap import Counted, ReplicatedMap, Resized, Written
    from pool.actors.roster import WorkerInfo
    from pool.actors.sink import Sink
    from pool.actors.snapshot import Snapshot
    from pool.actors.stream import Stream
    from pool.actors.watch import Change, Watch
    from pool.errors import (
        AuthError,
        ConfigError,
        DeadlockRisk,
        DuplicateHandler,
        Gone,
        HandlerError,
        InboxFull,
        InvalidKey,
        InvalidOption,
        JobCancelled,
        JobExists,
        JobLost,
        JobParked,
        LostError,
        MapFull,
        NodeError,
        NoHandlers,
        NoServer,
        NoSuchJob,
        NotRunning,
        NotStarted,
        NotStopped,
        OutcomeExpired,
        PartEnded,
        PayloadEncodingError,
        PayloadTooLarge,
        PoolError,
        PoolFull,
        RefusedError,
        StartFailed,
        StorageFull,
        StoreError,
        StoreFault,
        StoreLost,
        StoreUnavailable,
        UnknownHandler,
        UnsupportedServer,
        UsageError,
        WrongLoop,
        WrongValue,
    )
    from pool.events import Event
    from pool.model.rmap import Position, Resync
    from pool.model.stream import StreamEvent
    from pool.settings import Settings
    from pool.store.stream import Parked

__all__ = [
    "AuthError",
    "Call",
    "Cancel",
    "Change",
    "ConfigError",
    "Counted",
    "DeadlockRisk",
    "DuplicateHandler",
    "Event",
    "Gone",
    "Handler",
    "HandlerError",
    "Handlers",
    "InboxFull",
    "InvalidKey",
    "InvalidOption",
    "Job",
    "JobCancelled",
    "JobExists",
    "JobLost",
    "JobParked",
    "JobRef",
    "LostError",
    "MapFull",
    "NoHandlers",
    "NoServer",
    "NoSuchJob",
    "Node",
    "NodeError",
    "NotRunning",
    "NotStarted",
    "NotStopped",
    "OutcomeExpired",
    "Park",
    "Parked",
    "PartEnded",
    "PayloadEncodingError",
    "PayloadTooLarge",
    "PoolError",
    "PoolFull",
    "Position",
    "Reader",
    "RefusedError",
    "ReplicatedMap",
    "Resized",
    "Resync",
    "Retry",
    "Runner",
    "Settings",
    "Sink",
    "Snapshot",
    "StartFailed",
    "Status",
    "StorageFull",
    "StoreError",
    "StoreFault",
    "StoreLost",
    "StoreUnavailable",
    "Stream",
    "StreamEvent",
    "UnknownHandler",
    "UnsupportedServer",
    "UsageError",
    "Watch",
    "WorkerInfo",
    "Written",
    "WrongLoop",
    "WrongValue",
    "__version__",
    "freeze_memory",
    "log_observer",
]

if not TYPE_CHECKING:  # a type checker would take any name, if it saw this
    # Where a name lives; what is not here is an error, and lives in pool/errors.py.
    _HOMES = {
        "Call": "pool.actors.dispatching",
        "Cancel": "pool.actors.job",
        "Change": "pool.actors.watch",
        "Counted": "pool.actors.rmap",
        "Event": "pool.events",
        "Handler": "pool.actors.handlers",
        "Handlers": "pool.actors.handlers",
        "Job": "pool.actors.job",
        "JobRef": "pool.actors.ref",
        "Node": "pool.actors.node",
        "Park": "pool.actors.job",
        "Parked": "pool.store.stream",
        "Position": "pool.model.rmap",
        "Reader": "pool.actors.reader",
        "ReplicatedMap": "pool.actors.rmap",
        "Resized": "pool.actors.rmap",
        "Resync": "pool.model.rmap",
        "Retry": "pool.actors.job",
        "Runner": "pool.actors.handlers",
        "Settings": "pool.settings",
        "Sink": "pool.actors.sink",
        "Snapshot": "pool.actors.snapshot",
        "Status": "pool.actors.ref",
        "Stream": "pool.actors.stream",
        "StreamEvent": "pool.model.stream",
        "Watch": "pool.actors.watch",
        "WorkerInfo": "pool.actors.roster",
        "Written": "pool.actors.rmap",
        "freeze_memory": "pool.actors.memory",
        "log_observer": "pool.actors.observe",
    }

    def __getattr__(name: str) -> object:
        if name not in __all__:
            msg = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(msg)
        found = globals()[name] = getattr(import_module(_HOMES.get(name, "pool.errors")), name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
