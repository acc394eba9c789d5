"""Carries what one lane has for another over: see `lua/lib/channel.lua`.

    o:B is due in A --sweep--> outgoing (A) --the next messages--> incoming (B)
                                 |   ^                               |       |
                    none: gone --+   +-- forget those, what next? ---+ done  |
                                     +-- from where B stands, then ----------+ it stands elsewhere:
                                               some data were lost, or another one carries, too: A
                                               knows which, and only the first is told

Whoever sweeps A carries, on a task of its own: a B that hangs keeps nothing of A waiting.  Each
look puts o:B off by `HOLD_S`; who dies, or fails, is followed then.  Two that carry at once are
harmless, and so is a call that comes late: B goes by names, and A forgets by them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs

from pool.core.schedules import schedule_of
from pool.errors import PoolError, StoreLost
from pool.events import ChannelApart, ScheduleOverlapped
from pool.jobs.context import Context, LaneState
from pool.redis.commands.batches import Stirred
from pool.redis.commands.channel import OutgoingPage, StandsElsewhere
from pool.redis.scripts import ScriptCall

HOLD_S: Final = 2.0  # then another one comes for what was told and is still there


@attrs.define(eq=False, kw_only=True)
class Carrier:
    """Belongs to the sweeper."""

    context: Context
    spawn: Callable[..., object]
    on_stirred: Callable[[int, Stirred], object]  # something has ended of batches in that lane
    # From which lane to which one is carried -> whether somebody has asked for that since.
    _under_way: dict[tuple[int, int], bool] = attrs.field(init=False, factory=dict)

    def carry(self, lane: int, to: int) -> None:
        """Carry over what one lane has for another, unless that is being done."""
        if (lane, to) in self._under_way:
            self._under_way[lane, to] = True
        elif to < len(self.context.lanes):
            self._under_way[lane, to] = False
            self.spawn(self._carry, lane, to)

    async def _carry(self, lane: int, to: int) -> None:
        try:
            is_asked = True
            while is_asked:
                self._under_way[lane, to] = False
                await self._drain(self.context.lanes[lane], self.context.lanes[to])
                is_asked = self._under_way[lane, to]
        finally:
            del self._under_way[lane, to]

    async def _drain(self, origin: LaneState, to: LaneState) -> None:
        """Carry page after page; what fails is left to whoever comes when o:B is due."""
        clock, was_apart = self.context.io.clock, False
        call = origin.lane.outgoing(to.number, hold_s=HOLD_S)
        while to.lane.generation:  # else it is still being joined
            told: OutgoingPage | None = await self._ask(origin, call)
            if told is not None and told.is_anew:
                self.context.emit(ChannelApart(lane=origin.number, to=to.number))
            if told is None or not told.count:
                return
            messages, expects = told.messages, to.time.expects(clock())
            call = to.lane.incoming(origin.number, told.root, messages, expects=expects)
            done: StandsElsewhere | Stirred | None = await self._ask(to, call)
            if done is None:
                return
            stands = done.name if isinstance(done, StandsElsewhere) else ""
            if isinstance(done, Stirred):
                self.on_stirred(to.number, done)
                self._tell(origin.number, done.left_out)
                for delay_ms in {each.delay_ms for each in messages if not each.batch}:
                    self.context.on_due(to.number, delay_ms / 1000)
            elif was_apart:
                return  # somebody else is at it
            was_apart = bool(stands)
            call = origin.lane.outgoing(
                to.number,
                hold_s=HOLD_S,
                taken=() if stands else messages,
                root=told.root,
                anew=stands,
            )

    def _tell(self, lane: int, left_out: Sequence[str]) -> None:
        """Tell of firings that made no job; the lane itself counts them."""
        for name, count in Counter(map(schedule_of, left_out)).items():
            self.context.emit(ScheduleOverlapped(schedule=name, lane=lane, overlapped=count))

    async def _ask(self, state: LaneState, call: ScriptCall) -> Any:
        """Return the answer of a lane; None: there was none."""
        try:
            return await self.context.pipeline.call(call, repeatable=True)
        except PoolError as error:
            if isinstance(error, StoreLost):
                self.context.on_data_lost(state.number)
            self.context.trouble("carry over", state.number, error)
            return None
