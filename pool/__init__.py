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

A module imports its own floor or a lower one.  What is named here is public; the rest may change.
`import pool` alone loads none of them: a name is fetched from its home when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from pool.version import __version__

if TYPE_CHECKING:  # what type checkers and editors read; at run time it is `_HOMES`
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
    from pool.jobs.client.dispatch import Call
    from pool.jobs.client.ref import JobRef, Status
    from pool.jobs.handlers import Handler, Handlers, Runner
    from pool.jobs.job import Cancel, Job, Park, Retry
    from pool.jobs.node import Node
    from pool.jobs.roster import WorkerInfo
    from pool.maps.deltas import Position, Resync
    from pool.maps.map import Counted, ReplicatedMap, Resized, Written
    from pool.maps.watch import Change, Watch
    from pool.runtime.memory import freeze_memory
    from pool.runtime.observers import log_observer
    from pool.settings import Settings
    from pool.streams.commands import Parked
    from pool.streams.event import StreamEvent
    from pool.streams.reader import Reader
    from pool.streams.sink import Sink
    from pool.streams.snapshot import Snapshot
    from pool.streams.stream import Stream

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
        "Call": "pool.jobs.client.dispatch",
        "Cancel": "pool.jobs.job",
        "Change": "pool.maps.watch",
        "Counted": "pool.maps.map",
        "Event": "pool.events",
        "Handler": "pool.jobs.handlers",
        "Handlers": "pool.jobs.handlers",
        "Job": "pool.jobs.job",
        "JobRef": "pool.jobs.client.ref",
        "Node": "pool.jobs.node",
        "Park": "pool.jobs.job",
        "Parked": "pool.streams.commands",
        "Position": "pool.maps.deltas",
        "Reader": "pool.streams.reader",
        "ReplicatedMap": "pool.maps.map",
        "Resized": "pool.maps.map",
        "Resync": "pool.maps.deltas",
        "Retry": "pool.jobs.job",
        "Runner": "pool.jobs.handlers",
        "Settings": "pool.settings",
        "Sink": "pool.streams.sink",
        "Snapshot": "pool.streams.snapshot",
        "Status": "pool.jobs.client.ref",
        "Stream": "pool.streams.stream",
        "StreamEvent": "pool.streams.event",
        "Watch": "pool.maps.watch",
        "WorkerInfo": "pool.jobs.roster",
        "Written": "pool.maps.map",
        "freeze_memory": "pool.runtime.memory",
        "log_observer": "pool.runtime.observers",
    }

    def __getattr__(name: str) -> object:
        if name not in __all__:
            msg = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(msg)
        found = globals()[name] = getattr(import_module(_HOMES.get(name, "pool.errors")), name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
