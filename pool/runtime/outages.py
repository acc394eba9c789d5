"""Tells of what goes wrong again and again: at once, once a minute with a count, when it is over.

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

import math
from collections.abc import Callable
from typing import Final, TypeAlias

import attrs

from pool.errors import PoolError, StoreUnavailable, was_cut
from pool.events import Event, StoreRecovered, StoreTroubled

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
