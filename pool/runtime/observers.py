"""Observers of events, and the limit on how often an outage is told.

Who hears of events: each observer is called with each event; ours writes them to the log.

One emit, many readers (logs, metrics, spans, tests).

Tells of what goes wrong again and again: at once, once a minute with a count, when it is over.

All parts of a node try again by themselves, each for its lane: told one by one, an outage would be
hundreds of lines.  There are two kinds of trouble:

outage   a call finds no server, or a renewal fails.  One for each server: the lanes that it has
         fail together, and only in a cluster each has its own

         well --the first lane fails--> out       told: store.troubled
         out  --any fails again--> out            told once a minute, with the count
         out  --each was answered a renewal, or a join--> well     told: store.recovered

fault    a call is answered what nobody expects, or is not though others are.  One for each lane,
         purpose and kind of error

         well --it fails--> wrong                 told
         wrong --again--> wrong                   told once a minute, with the count
         wrong --not for a minute, and the lane answers--> well    told: store.recovered

An outage that comes and goes is told once a minute, too: one that is over within the minute after
the last line is not told at all.  What is not tried again (to announce that a worker leaves) is
told like that, but begins no outage.
"""

from __future__ import annotations

import atexit
import math
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias
from zlib import crc32

import attrs

from pool import checks
from pool.errors import PoolError, StoreUnavailable, was_cut
from pool.events import Event, JobEvents, NodeLeft, Observer, StoreRecovered, StoreTroubled
from pool.redis.io.scribe import Counts, Hush, Scribe
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


AGAIN_S: Final = 60.0  # until a trouble is told again

LaneOrPool: TypeAlias = int | None  # None: about the whole pool


@attrs.define(eq=False)
class _Trouble:
    """What is known of one."""

    began_s: float | None = None  # None: it is well
    last_s: float = -math.inf
    failures: int = 0
    is_told: bool = False
    next_s: float = -math.inf  # before that nothing is told
    lanes: set[LaneOrPool] = attrs.field(factory=set)  # of an outage: those not heard of yet

    def notes(self, now_s: float) -> bool:
        """Note a failure; return whether it is to be told."""
        if self.began_s is None:
            self.began_s, self.failures, self.is_told = now_s, 0, False
        self.failures, self.last_s = self.failures + 1, now_s
        if now_s < self.next_s:
            return False
        self.is_told, self.next_s = True, now_s + AGAIN_S
        return True


@attrs.define(eq=False)
class Outages:
    """Those that one node sees."""

    emit: Callable[[Event], object]
    clock: Callable[[], float]
    is_apart: bool = False  # each lane has a server of its own
    _outages: dict[LaneOrPool, _Trouble] = attrs.field(init=False, factory=dict)
    _faults: dict[tuple[LaneOrPool, str, str], _Trouble] = attrs.field(init=False, factory=dict)

    def trouble(self, during: str, lane: LaneOrPool, error: PoolError) -> None:
        """A call of ours failed, in a lane or, None, about the whole pool; it is tried again."""
        is_away = isinstance(error, StoreUnavailable) and not was_cut(error)
        if during == "renew" or is_away:
            mine = self._outages.setdefault(self._place(lane), _Trouble())
            mine.lanes.add(lane)
        else:
            mine = self._faults.setdefault((lane, during, type(error).__name__), _Trouble())
        now_s = self.clock()
        if mine.notes(now_s):
            self.emit(
                StoreTroubled(during=during, lane=lane, problem=str(error), failures=mine.failures)
            )

    def fault(self, during: str, lane: LaneOrPool, error: PoolError) -> None:
        """A call of ours failed, which is not tried again: nothing would end its outage."""
        before = self._outages.get(self._place(lane))
        was_out = before is not None and lane in before.lanes
        self.trouble(during, lane, error)
        if not was_out:
            self.forget(lane)

    def forget(self, lane: LaneOrPool) -> None:
        """Nobody tries any more: whether it answers is not known."""
        mine = self._outages.get(self._place(lane))
        if mine is not None:
            mine.lanes.discard(lane)
            if not mine.lanes:
                mine.began_s = None

    def over(self, lane: LaneOrPool) -> None:
        """The lane has answered."""
        mine = self._outages.get(self._place(lane))
        if mine is not None and mine.lanes:
            # Whoever serves a lane serves the whole pool's keys, too, but in a cluster.
            mine.lanes -= {lane} if self.is_apart else {lane, None}
            if not mine.lanes:
                self._end(mine, lane, "")
        if self._faults:
            past_s = self.clock() - AGAIN_S
            over = [of for of, each in self._faults.items() if each.last_s < past_s]
            for of in over:
                if of[0] in (lane, None):
                    self._end(self._faults.pop(of), of[0], of[1])

    def _place(self, lane: LaneOrPool) -> LaneOrPool:
        return lane if self.is_apart else None

    def _end(self, mine: _Trouble, lane: LaneOrPool, during: str) -> None:
        assert mine.began_s is not None
        if mine.is_told:
            until_s = mine.last_s if during else self.clock()
            self.emit(
                StoreRecovered(
                    lane=lane,
                    during=during,
                    down_s=round(until_s - mine.began_s, 3),
                    failures=mine.failures,
                )
            )
        mine.began_s = None
