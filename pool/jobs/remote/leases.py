"""Renewals of polling workers: asked for one by one, sent as one script a lane.

    say() --> waits --(no other is under way in the lane)--> renew.lua --> answers all that waited

Each renewal says how many keys its worker takes, and two gateways may say it of one worker in turn.
So the number that orders them (`seq` of `renew.lua`) is pool time, in tenths of a millisecond, as
far as it is surely over: what an answer told, and our own clock since it came.  It rises here with
every call.  Another gateway's call for the same worker comes later, by at least what the client
needed to turn there, than the one before it: its number is higher unless its clock is further
behind than that, and then nothing is opened, or closed, before the next renewal says it again.  A
late copy has a number of before: it neither opens nor closes.

A lease is never made shorter (the term is 0): a client may believe in what an earlier answer
granted, as a later one may be lost.

Dying after any step: a renewal that was carried out and not answered has prolonged leases that end
by themselves, and may have opened a worker that nobody waits for: see `workers.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

import anyio
import attrs

from pool.errors import NotRunning, PoolError, StoreLost, again
from pool.jobs.context import Context
from pool.redis.commands.member import Renewal

NAMES_MAX: Final = 500  # in one call: some 2 ms of the server's time
_TENTHS: Final = 10  # of a ms: more calls than these a second no lane is sent


@attrs.frozen
class LaneLease:
    """The answer for one worker in one lane."""

    keys: int  # that it runs there; -1: it is fenced, or was never there
    unassigned: int  # keys of the lane
    now_ms: int  # pool time
    asked_s: float  # by our own clock: its lease lasts for the TTL from here, at least
    heard_s: float  # likewise: pool time is no less than `now_ms` and what is over since then
    ttl_s: float

    @property
    def is_gone(self) -> bool:
        """Whether it has no lease there."""
        return self.keys < 0


@attrs.define(eq=False)
class _Round:
    """What is said together."""

    takes: dict[str, int] = attrs.field(factory=dict)
    said: Mapping[str, LaneLease] = attrs.field(factory=dict)
    error: PoolError | None = None
    over: anyio.Event = attrs.field(factory=anyio.Event)


@attrs.define(eq=False)
class _Clock:
    """What pool time is at least."""

    ms: float = 0.0
    at_s: float = 0.0
    last: int = 0  # number of the call before
    heard_ms: int = 0  # the latest that was told, as it was

    def hear(self, ms: int, now_s: float) -> None:
        self.ms = max(self.ms + 1000 * (now_s - self.at_s), float(ms))
        self.at_s = now_s
        self.heard_ms = max(self.heard_ms, ms)

    def next(self, now_s: float) -> int:
        over_ms = self.ms + 1000 * (now_s - self.at_s) if self.ms else 0.0
        self.last = max(self.last + 1, int(_TENTHS * over_ms))
        return self.last


@attrs.define(eq=False)
class Leases:
    """Renews for one gateway."""

    context: Context
    spawn: Callable[[Callable[[int], Coroutine[Any, Any, None]], int], object]
    is_over: Callable[[], bool]  # nothing can be spawned just now
    _waiting: dict[int, _Round] = attrs.field(factory=dict)  # by lane
    _rounds: dict[_Round, None] = attrs.field(factory=dict)  # those that somebody waits for
    _under_way: set[int] = attrs.field(factory=set)
    _clocks: dict[int, _Clock] = attrs.field(factory=dict)

    def begin(self) -> None:
        """Start, or start again after a crash."""
        self._under_way.clear()

    def give_up(self) -> None:
        """Answer all who wait: nobody will any more."""
        for each in self._rounds:
            each.error = each.error or NotRunning(state="closing")
            each.over.set()
        self._rounds.clear()
        self._waiting.clear()

    def number(self, lane: int) -> int:
        """Return a number that is higher than those of all calls before, at any gateway."""
        return self._clocks.setdefault(lane, _Clock()).next(self.context.io.clock())

    def hear(self, lane: int, now_ms: int) -> None:
        """Take an answer's time."""
        self._clocks.setdefault(lane, _Clock()).hear(now_ms, self.context.io.clock())

    async def ask(self, lane: int) -> int:
        """Return what pool time is: no less than anybody was told before we asked.

        Raises:
            StoreUnavailable, StoreLost, StoreFault, NotRunning: Why not.
        """
        await self.renew(lane, {})
        return self._clocks[lane].heard_ms

    async def say(self, lane: int, name: str, takes: int) -> LaneLease:
        """Renew a worker's lease in a lane, and say how many keys it takes there.

        Raises:
            StoreUnavailable, StoreLost, StoreFault, NotRunning: Why not.
        """
        if self.is_over():
            raise NotRunning(state="closing")
        waiting = self._waiting.get(lane)
        if waiting is None:
            waiting = self._waiting[lane] = _Round()
            self._rounds[waiting] = None
        waiting.takes[name] = takes
        if lane not in self._under_way:
            self._under_way.add(lane)
            self.spawn(self._send, lane)
        await waiting.over.wait()
        if waiting.error is not None:
            raise again(waiting.error)
        return waiting.said[name]

    async def _send(self, lane: int) -> None:
        try:
            while (waiting := self._waiting.pop(lane, None)) is not None:
                try:
                    waiting.said = await self.renew(lane, waiting.takes)
                except PoolError as error:
                    waiting.error = error
                self._rounds.pop(waiting, None)
                waiting.over.set()
        finally:
            self._under_way.discard(lane)

    async def renew(self, lane: int, takes: Mapping[str, int]) -> dict[str, LaneLease]:
        """Renew many at once.

        Raises:
            StoreUnavailable, StoreLost, StoreFault, NotRunning: Why not; of some it may be done.
        """
        names, said = list(takes), dict[str, LaneLease]()
        for at in range(0, max(1, len(names)), NAMES_MAX):
            some = {name: takes[name] for name in names[at : at + NAMES_MAX]}
            state, asked_s = self.context.lanes[lane], self.context.io.clock()
            call = state.lane.renew(
                some,
                seq=self.number(lane),
                term=0,
                told=state.time.told(asked_s),
                who=self.context.node_id,
            )
            try:
                told: Renewal = await self.context.pipeline.call(call, repeatable=True)
            except StoreLost:
                self.context.on_data_lost(lane)
                raise
            self.hear(lane, told.now_ms)
            heard_s = self.context.io.clock()
            ttl_s = told.ttl.ms / 1000
            for name, keys in zip(some, told.counts, strict=True):
                said[name] = LaneLease(keys, told.unassigned, told.now_ms, asked_s, heard_s, ttl_s)
            self.context.tell_unassigned(lane, told.unassigned)
        return said
