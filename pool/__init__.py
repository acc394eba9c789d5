"""A dedicated worker pool: jobs by key, each key on exactly one worker of the fleet.

    pool/errors.py, checks.py, settings.py   what can go wrong, what may be given, what can be set
    pool/model/      pure: names, records, placement, leases, codecs; no clock, no I/O
    pool/store/      all that knows Redis: addresses, the link, scripts, the embedded server
    pool/actors/     time and tasks: the node and the actors in it
    pool/ops/        for people: the command line, the demo
    pool/testing/    for your tests: a fault proxy, an auditor

A module imports its own floor or a lower one.  What is named here is public; the rest may change.
"""

from __future__ import annotations

from pool.actors.dispatching import Call
from pool.actors.handlers import Handler, Handlers, Runner
from pool.actors.job import Cancel, Job, Park, Retry
from pool.actors.memory import freeze_memory
from pool.actors.node import Node
from pool.actors.observe import Event, log_observer
from pool.actors.reader import Reader
from pool.actors.ref import JobRef, Status
from pool.actors.rmap import Counted, ReplicatedMap, Resized, Written
from pool.actors.roster import WorkerInfo
from pool.actors.sink import Sink
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
from pool.model.rmap import Position, Resync
from pool.model.stream import StreamEvent
from pool.settings import Settings
from pool.store.stream import Parked

__version__ = "0.1.0"

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
    "freeze_memory",
    "log_observer",
]
