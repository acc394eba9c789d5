"""Tells of outages, once per lane: when one begins, at growing pauses while it lasts, at its end.

    well --a call finds no server, or a renewal fails--> out    told: store.troubled
    out  --another one--> out                                   told after 5 s, 10 s more, 20 s ...
    out  --a renewal, or a join, is answered--> well            told: store.recovered

All parts of a node try again by themselves, each for its lane: told one by one, an outage would be
hundreds of lines.  One that comes and goes is told at the same growing pauses, until the lane was
well for as long as the last of them: one that is over within such a pause is not told at all.
What is not tried again (to announce that a worker leaves) is told like that, but begins no outage.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import attrs

from pool.actors.observe import Event, StoreRecovered, StoreTroubled
from pool.errors import PoolError, StoreUnavailable

AGAIN_S: Final = 5.0  # until an outage is told for the second time; then twice that, and so on
AGAIN_MAX_S: Final = 320.0


@attrs.define(eq=False)
class _Outage:
    """What is known of one lane."""

    began_s: float | None = None  # None: it is well
    failures: int = 0
    is_told: bool = False
    pause_s: float = AGAIN_S
    next_s: float = -math.inf  # before that nothing is told


@attrs.define(eq=False)
class Outages:
    """Those that one node sees."""

    emit: Callable[[Event], object]
    clock: Callable[[], float]
    _lanes: dict[int | None, _Outage] = attrs.field(init=False, factory=dict)

    def trouble(self, during: str, lane: int | None, error: PoolError) -> None:
        """A call of ours failed, in a lane or, None, about the whole pool; it is tried again."""
        if during != "renew" and not isinstance(error, StoreUnavailable):
            self.emit(StoreTroubled(during=during, lane=lane, problem=str(error)))
            return
        mine, now_s = self._lanes.setdefault(lane, _Outage()), self.clock()
        if mine.began_s is None:
            mine.began_s, mine.failures, mine.is_told = now_s, 0, False
        mine.failures += 1
        if now_s < mine.next_s:
            return
        if now_s > mine.next_s + mine.pause_s:
            mine.pause_s = AGAIN_S
        mine.is_told, mine.next_s = True, now_s + mine.pause_s
        mine.pause_s = min(2 * mine.pause_s, AGAIN_MAX_S)
        self.emit(
            StoreTroubled(during=during, lane=lane, problem=str(error), failures=mine.failures)
        )

    def fault(self, during: str, lane: int | None, error: PoolError) -> None:
        """A call of ours failed, which is not tried again: nothing would end its outage."""
        was_well = lane not in self._lanes or self._lanes[lane].began_s is None
        self.trouble(during, lane, error)
        if was_well:
            self.forget(lane)

    def forget(self, lane: int | None) -> None:
        """Nobody tries any more: whether it answers is not known."""
        if lane in self._lanes:
            self._lanes[lane].began_s = None

    def over(self, lane: int | None) -> None:
        """The lane has answered."""
        mine = self._lanes.get(lane)
        if mine is None or mine.began_s is None:
            return
        if mine.is_told:
            down_s = round(self.clock() - mine.began_s, 3)
            self.emit(StoreRecovered(lane=lane, down_s=down_s, failures=mine.failures))
        mine.began_s = None
