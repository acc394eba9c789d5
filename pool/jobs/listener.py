"""The blocking reads of a node: its signals, and all streams of its workers.

    tailers of lanes --LaneBatch--> listener --> worker mailboxes, node's waiters

What is read is delivered at least once, and (key, epoch) makes repeats drop out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs

from pool.jobs.context import Context, LaneState
from pool.jobs.lane_tailers import LaneBatch, LaneTailers
from pool.runtime.actor import Actor
from pool.runtime.stream_tailer import Fields


@attrs.define(eq=False, kw_only=True)
class Listener(Actor[LaneBatch]):
    """Routes what the streams bring; knows neither jobs nor messages."""

    context: Context
    on_entries: Callable[[int, str, list[tuple[str, Fields]]], bool]  # True: they are signals
    tailers: LaneTailers = attrs.field(init=False)

    @tailers.default
    def _(self) -> LaneTailers:
        return LaneTailers(name="listener", context=self.context, deliver=self.deliver)

    # --- for the node -------------------------------------------------------------------------

    def follow(self, state: LaneState, streams: Iterable[str]) -> None:
        """Read these streams of a lane from now on, new ones from their beginning.

        A blocked read takes new ones up when joining writes to the node's own signals.  When it is
        the node itself that joins anew, these are new too, and the read is ended.
        """
        own = state.lane.names.signal(state.node.name)
        at_once = own not in self.tailers.readings(state)
        self.tailers.follow(state, streams, at_once=at_once)

    def has_read(self, lane: int, stream: str, epoch: int) -> bool:
        """Say whether a start is behind what was read of a stream: it does not come any more."""
        reading = self.tailers.each[lane].readings.get(stream)
        return reading is None or int(reading.position.partition("-")[0]) >= epoch

    async def aclose(self, budget_s: float) -> None:
        """Stop reading; twice is fine."""
        await self.tailers.aclose(budget_s)

    # --- on the loop --------------------------------------------------------------------------

    def begin(self) -> None:
        self.tailers.read_on()

    def handle(self, message: LaneBatch) -> None:
        self.tailers.route(message, self.on_entries)
