"""Who hears of events: each observer is called with each event; ours writes them to the log.

One emit, many readers (logs, metrics, spans, tests).
"""

from __future__ import annotations

import atexit
import re
from collections.abc import Hashable, Iterable, Sequence
from functools import partial
from typing import Any, Final
from zlib import crc32

import attrs

from pool import checks
from pool.events import Event, JobEvents, NodeLeft, Observer
from pool.redis.io.hush import Counts, Hush
from pool.redis.io.scribe import Scribe
from pool.redis.log import Log

_log = Log("pool")
_scribe = Scribe(lambda lines: _log.warning("log.dropped", lines=lines))
_hush = Hush(_scribe.write)
atexit.register(_hush.end)  # what was counted within the last minute is not lost


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


def emit_to(observers: Sequence[Observer], event: Event, pool: str = "") -> None:
    """Call every observer with an event, which is of this pool unless it names one.

    An observer that raises is logged; it is user code and ends nobody else.
    """
    if not event.pool:
        unnamed: Any = event  # mypy takes no protocol for an attrs class
        event = attrs.evolve(unnamed, pool=pool)
    for observer in observers:
        try:
            observer(event)
        except KeyboardInterrupt:  # Ctrl-C while it ran: for the node
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is raised again next time
            log_failed(event.event, error)
    if event.event == NodeLeft.event:
        _hush.rest()


def log_failed(of: str, error: BaseException) -> None:
    """Write that an observer has failed, of what it was told; the same once a minute."""
    _hush.tell("observer.failed", (of, type(error).__qualname__), partial(_failed, of, error))


def _failed(of: str, error: BaseException, counted: Counts) -> None:
    _log.error("observer.failed", of=of, exc_info=error, **counted)


# Which fields of an event make it the same trouble again.  What is written a minute late, with a
# count, all other observers see each time.
_NUMBERS: Final = re.compile(r"\d+")
# Names that users or this code give: kept as they are.  Numbers in all other texts are left out.
_NAMES: Final = frozenset(
    (
        *("action", "by", "during", "handler", "index", "map", "name", "plan", "pool"),
        *("reader", "schedule", "sink", "stream", "what"),
    )
)
# Texts that are others each time, or say nothing of what the trouble is.
_INSTANCES: Final = frozenset(
    (
        *("batch", "behind", "detail", "generation", "hint", "job_id", "key", "last_id"),
        *("position", "stack", "token", "traceback"),
    )
)


def _subject(event: Event) -> tuple[Hashable, ...]:
    """Return what of an event makes it the same again: its texts, without numbers.

    Events that differ in numbers alone are the same.  An error that is not about a handler is also
    told by its lane and key.
    """
    fields = attrs.asdict(event)
    found: list[Hashable] = []
    for name, value in fields.items():
        if isinstance(value, str) and name not in _INSTANCES:
            found.append(value if name in _NAMES else _NUMBERS.sub("#", value))
    if event.level == "error" and "handler" not in fields:
        found += [fields.get("lane"), fields.get("key")]
    return tuple(found)


def log_observer(event: Event) -> None:
    """Write one line per event, and of what is repeated one a minute; see `Hush`.

    It waits for nobody: see `Scribe`.
    """
    _hush.tell(event.event, _subject(event), partial(_line, event))
    if isinstance(event, NodeLeft):
        _hush.rest()


def log_seldom(log: Log, event: str, **facts: Hashable) -> None:
    """Write a warning that belongs to no node; the same once a minute, with how often it was."""
    _hush.tell(event, tuple(facts.values()), partial(_warn, log, event, facts))


def _warn(log: Log, event: str, facts: dict[str, Hashable], counted: Counts) -> None:
    log.warning(event, **facts, **counted)


def log_job(level: str, **facts: Any) -> None:
    """Write the line of one job, where that is asked for."""
    _scribe.write(partial(getattr(_log, level), "job.ended", **facts))


def _line(event: Event, counted: Counts) -> None:
    # Plain (never `ainfo`): structlog's async twins need asyncio.
    getattr(_log, event.level)(event.event, **attrs.asdict(event), **counted)
