"""A dedicated worker pool: jobs by key, each key on exactly one worker of the fleet.

    pool/errors.py, checks.py, settings.py   what can go wrong, what may be given, what can be set
    pool/version.py  the version, written once
    pool/names.py    every Redis key      pool/events.py    every event that observers are told
    pool/core/       pure: records, placement, leases, retries, codecs; no clock, no I/O
    pool/redis/      all that knows Redis: addresses, pipeline, scripts and their commands
    pool/runtime/    time and tasks: actors, their supervisor, the session with a pool
    pool/maps/       replicated maps            pool/streams/    streams, readers, sinks
    pool/jobs/       the node: client/ dispatches, worker/ runs, fleet/ looks after all of them,
                     remote/ serves workers that poll
    pool/letters.py  dead letters, by name  pool/listing.py  many jobs at once, by name
    pool/schedules.py   schedules, by name
    pool/plans.py       plans, by name
    pool/batches.py  many jobs as one     pool/pauses.py  what operators ask for, by name
    pool/middleware.py  what stands around handlers sees, by name
    pool/codecs.py   what a codec of one's own has
    pool/metrics.py  figures and health of a node, by name   pool/web.py   the pool over HTTP
    pool/sync.py     the client for callers that block; it is in jobs/sync/
    pool/ops/        for people: the command line, and what it looks at
    pool/testing/    for your tests: a fault proxy, an auditor
    pool/demo/       `pool demo`

A module imports its own floor or a lower one.  Public is what is named here and in the `__all__` of
`pool.batches`, `pool.codecs`, `pool.errors`, `pool.events`, `pool.letters`, `pool.listing`,
`pool.maps`, `pool.metrics`, `pool.middleware`, `pool.pauses`, `pool.plans`, `pool.schedules`,
`pool.streams`, `pool.sync`, `pool.testing` and `pool.web`; the rest may change.  `import pool`
alone loads none of them: a name is fetched from its home when it is first used.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from pool.version import __version__

if TYPE_CHECKING:  # what type checkers and editors read; at run time it is `_HOMES`
    from pool.core.record import Progress
    from pool.errors import PoolError
    from pool.jobs.client.dispatch import Call, Dispatching
    from pool.jobs.client.ref import JobRef, Status
    from pool.jobs.depends import Depends
    from pool.jobs.followers import Follower
    from pool.jobs.forms import Result, Runner
    from pool.jobs.handlers import Handler, Handlers
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
    "Depends",
    "Dispatching",
    "Follower",
    "Handler",
    "Handlers",
    "Job",
    "JobRef",
    "LocalWorker",
    "Node",
    "Park",
    "PoolError",
    "Progress",
    "ReplicatedMap",
    "Result",
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
        "Depends": "pool.jobs.depends",
        "Dispatching": "pool.jobs.client.dispatch",
        "Follower": "pool.jobs.followers",
        "Handler": "pool.jobs.handlers",
        "Handlers": "pool.jobs.handlers",
        "Job": "pool.jobs.job",
        "JobRef": "pool.jobs.client.ref",
        "LocalWorker": "pool.jobs.node",
        "Node": "pool.jobs.node",
        "Park": "pool.jobs.job",
        "PoolError": "pool.errors",
        "Progress": "pool.core.record",
        "ReplicatedMap": "pool.maps.map",
        "Result": "pool.jobs.forms",
        "Retry": "pool.jobs.job",
        "Runner": "pool.jobs.forms",
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
            raise _missing(name)
        found = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return found

    def _missing(name: str) -> AttributeError | ImportError:
        """Return what to raise: it says where the name is, or which one may be meant.

        `from pool import X` asks for X before it looks for a module of that name, and drops what
        an AttributeError says.  So there, unless there is such a module, an ImportError says it;
        whoever else asks gets the AttributeError that `hasattr` needs.
        """
        from difflib import get_close_matches
        from importlib.util import find_spec

        error = AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name.startswith("_") or find_spec(f"{__name__}.{name}"):
            return error
        homes = dict.fromkeys(__all__, __name__)
        others = (
            *("batches", "codecs", "errors", "events", "maps", "middleware", "pauses", "plans"),
            *("schedules", "streams", "sync", "testing"),
        )
        for module in others:
            home = f"{__name__}.{module}"
            homes |= {each: home for each in import_module(home).__all__ if each not in homes}
        near = get_close_matches(name, homes, n=1, cutoff=0.75)
        if not near:
            return error
        said = f"from {homes[near[0]]} import {near[0]}"
        said = f"it is in {homes[name]}: {said}" if name in homes else f"did you mean: {said}"
        if sys._getframe(2).f_globals.get("__name__") == "importlib._bootstrap":
            return ImportError(f"{__name__} has no {name}; {said}", name=__name__, path=__file__)
        return AttributeError(f"{error}; {said}", name=name)  # named, so that Python adds no guess

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
