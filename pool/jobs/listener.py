"""The blocking reads of a node, one `StreamTailer` per lane.

What reads streams of lanes for an actor: one `StreamTailer` per lane, made as it is asked for.

    tailer: XREAD from its own positions --LaneBatch--> the actor's mailbox --route()--> the actor

A position moves on only when the loop has taken what was read: an entry is delivered at least once.
Signals are trimmed here, once the actor has taken them; starts stay in their stream until the
script that ends the pending state removes them.

After each failed read all of them are read from their first entry.  A server that lost data gives
ids below the positions that we had; those entries would otherwise not be seen before the clock has
passed our positions.  What is read twice is dropped by (key, epoch), or is a signal, of which a
repeat does nothing.

The blocking reads of a node: its signals, and all streams of its workers.

    tailers of lanes --LaneBatch--> listener --> worker mailboxes, node's waiters

What is read is delivered at least once, and (key, epoch) makes repeats drop out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

import attrs

from pool.errors import PoolError, StoreUnavailable
from pool.jobs.context import Context, LaneState
from pool.runtime.actor import Actor
from pool.runtime.stream_tailer import FIRST, Brought, Fields, Reading, StreamTailer

READ_MAX: Final = 1000  # entries of one stream in one read


@attrs.frozen
class LaneBatch:
    """Entries arrived in one lane."""

    lane: int
    batch: Brought[Reading]


@attrs.define(eq=False, kw_only=True)
class LaneTailers:
    """The tailers of one actor."""

    name: str
    context: Context
    deliver: Callable[[LaneBatch], object]  # into its mailbox
    each: list[StreamTailer[Reading]] = attrs.field(init=False, factory=list)  # by lane

    def readings(self, state: LaneState) -> Mapping[str, Reading]:
        """What is read of a lane, by stream."""
        return self._of(state).readings

    def follow(self, state: LaneState, streams: Iterable[str], *, at_once: bool) -> None:
        """Read these streams of a lane from now on, new ones from their beginning."""
        tailer = self._of(state)
        known = tailer.readings
        readings = [known.get(name) or Reading(name, FIRST) for name in streams]
        tailer.follow(readings, at_once=at_once)
        if not tailer.is_started:
            tailer.start()

    def route(
        self, message: LaneBatch, take: Callable[[int, str, list[tuple[str, Fields]]], bool]
    ) -> None:
        """Give `take` what was read, stream by stream; True: these are signals, and it has them."""
        tailer = self.each[message.lane]
        for reading, entries in message.batch.told:
            if not tailer.follows(reading):
                continue  # of an identity that we no longer are
            if take(message.lane, reading.stream, entries):
                self._trim(reading.stream, entries[-1][0])
        # A turn of the loop later: what has just been started shall not wait until we read again.
        self.context.loop.later(0.0, partial(tailer.taken, message.batch))

    def read_on(self) -> None:
        """Read again what nobody has taken: the actor has crashed."""
        for tailer in self.each:
            tailer.read_on()

    async def aclose(self, budget_s: float) -> None:
        """Stop reading; twice is fine."""
        for tailer in self.each:
            await tailer.aclose(budget_s)

    def _of(self, state: LaneState) -> StreamTailer[Reading]:
        while len(self.each) <= state.number:
            self.each.append(self._new(self.context.lanes[len(self.each)]))
        return self.each[state.number]

    def _new(self, state: LaneState) -> StreamTailer[Reading]:
        context, lane = self.context, state.number
        return StreamTailer(
            name=f"pool-{self.name}-{lane}",
            io=context.io,
            url=context.url.at(state.lane.names.prefix),
            timing=context.timing_now,
            count=READ_MAX,
            on_batch=lambda batch: self.deliver(LaneBatch(lane, batch)),
            on_trouble=partial(self._on_trouble, lane),
            care=context.supervisor,
            is_read_anew=True,
        )

    def _on_trouble(self, lane: int, error: PoolError, _: int) -> None:
        self.context.lanes[lane].break_off()
        # An absent server is the keep-alive's to tell.
        if not isinstance(error, StoreUnavailable):
            self.context.trouble("listen", lane, error)

    def _trim(self, stream: str, last: str) -> None:
        ms, _, number = last.partition("-")
        behind = f"{ms}-{int(number) + 1}"
        try:
            self.context.pipeline.send(("XTRIM", stream, "MINID", behind), lambda _: None)
        except PoolError:
            return  # the next one trims further


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
