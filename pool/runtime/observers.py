"""Who hears of events: each observer is called with each event; ours writes them to the log.

One emit, many readers (logs, metrics, spans, tests).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final
from zlib import crc32

import attrs
import structlog

from pool import checks
from pool.events import (
    AttemptFailed,
    CommitRefused,
    CountersMended,
    Event,
    HandlerLeaked,
    HandlerOverran,
    HookFailed,
    IndexRestored,
    JobEvents,
    LaneMissing,
    LeaseLost,
    LeaseResumed,
    LoopHung,
    NodeLeft,
    Observer,
    ReconciliationMended,
    RecordQuarantined,
    RunDisturbed,
    ServiceMoved,
    WorkerFenced,
    WorkerReaped,
)
from pool.redis.io.hush import Hush
from pool.redis.io.scribe import Scribe

_log = structlog.get_logger("pool")
_scribe = Scribe(lambda lines: _log.warning("log.dropped", lines=lines))
_hush = Hush(_scribe.write)


def check_observers(observers: Iterable[Observer]) -> tuple[Observer, ...]:
    """Return them; refuse what cannot be called plainly: a coroutine would never run."""
    refuse = checks.setting
    found = checks.several("observers", observers, "plain functions", refuse=refuse)
    return tuple(_checked(each) for each in found)


def _checked(observer: object) -> Observer:
    refuse = checks.setting
    if type(observer) is JobEvents:
        checks.number("observers", observer.rate, 0.0, 1.0, refuse=refuse)
        checks.plain_function("observers", observer.observer, refuse=refuse)
        return observer
    checked: Observer = checks.plain_function("observers", observer, refuse=refuse)
    return checked


@attrs.frozen
class JobListeners:
    """Who is told of ordinary jobs."""

    each: Sequence[JobEvents]
    _most: float = attrs.field(init=False)
    _least: float = attrs.field(init=False)

    @_most.default
    def _(self) -> float:
        return max(listener.rate for listener in self.each)

    @_least.default
    def _(self) -> float:
        return min(listener.rate for listener in self.each)

    @classmethod
    def among(cls, observers: Iterable[Observer]) -> JobListeners | None:
        """Return those of a node's observers; None: nobody is."""
        found = [each for each in observers if type(each) is JobEvents and each.rate > 0]
        return cls(found) if found else None

    def share(self, key: str, job_id: str) -> float | None:
        """Return where from 0 to 1 a job stands; None: nobody wants to hear of it."""
        if self._least >= 1:
            return 0.0  # all hear of all
        share = crc32(f"{job_id} {key}".encode()) / 2**32
        return share if share < self._most else None

    def tell(self, share: float, event: Event) -> None:
        """Tell those whose rate a job is within."""
        heard = self.each if share < self._least else [e for e in self.each if share < e.rate]
        emit_to(heard, event)


def emit_to(observers: Sequence[Observer], event: Event) -> None:
    """Call every observer.  One that raises is logged; it is user code and ends nobody else."""
    for observer in observers:
        try:
            observer(event)
        except KeyboardInterrupt:  # Ctrl-C while it ran: for the node
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is raised again next time
            log_failed(event.event, error)
    if event.event == NodeLeft.event:
        _hush.end()


def log_failed(of: str, error: BaseException) -> None:
    """Write that an observer has failed, of what it was told; the same once a minute."""
    _hush.tell("observer.failed", (of, type(error).__qualname__), partial(_failed, of, error))


def _failed(of: str, error: BaseException, times: int) -> None:
    counted = {"times": times} if times > 1 else {}
    _log.error("observer.failed", of=of, exc_info=error, **counted)


# What may come in floods, and which of its facts make it the same trouble again.  What is told here
# a minute late, with a count, all other observers see each time.
_SAME: Final[dict[type, tuple[str, ...]]] = {
    LeaseLost: ("node",),  # in each lane
    LeaseResumed: ("node",),
    WorkerFenced: ("worker",),
    HandlerLeaked: ("handler",),
    HandlerOverran: ("handler",),
    HookFailed: ("handler", "what", "problem"),
    LoopHung: ("node",),
    CommitRefused: ("answer",),
    AttemptFailed: ("handler", "error", "follows"),
    RunDisturbed: ("handler",),
    WorkerReaped: ("identity",),  # in each lane
    RecordQuarantined: (),
    IndexRestored: ("lane", "index"),
    CountersMended: ("lane",),
    ServiceMoved: (),
    LaneMissing: ("node", "problem"),
    ReconciliationMended: ("worker",),
}


def log_observer(event: Event) -> None:
    """Write one line per event, and of what is repeated one a minute; see `Hush`.

    It waits for nobody: see `Scribe`.
    """
    same = _SAME.get(type(event))
    if same is None:
        if isinstance(event, NodeLeft):
            _hush.end()
        _scribe.write(partial(_line, event, 1))
    else:
        _hush.tell(event.event, tuple(getattr(event, n) for n in same), partial(_line, event))


def log_job(level: str, **facts: Any) -> None:
    """Write the line of one job, where that is asked for."""
    _scribe.write(partial(getattr(_log, level), "job.ended", **facts))


def _line(event: Event, times: int) -> None:
    facts = attrs.asdict(event)
    if times > 1:
        facts["times"] = times
    # Plain (never `ainfo`): structlog's async twins need asyncio.
    getattr(_log, event.level)(event.event, **facts)
