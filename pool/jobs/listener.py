"""The blocking reads: one `StreamTailer` per lane, over the node's signals and all streams of its
workers.

    tailer: XREAD from its own positions --Brought--> listener --> worker mailboxes, node's waiters

A position moves on only when the loop has taken what was read: an entry is delivered at least once,
and (key, epoch) makes repeats drop out.  Starts stay in their stream until the script that ends the
pending state removes them; signals are trimmed here, once they are routed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

import attrs

from pool.errors import PoolError, StoreUnavailable
from pool.jobs.context import Context, LaneState
from pool.runtime.actor import Actor
from pool.runtime.stream_tailer import FIRST, Brought, Fields, Reading, StreamTailer

READ_MAX: Final = 1000  # entries of one stream in one read


@attrs.frozen
class _Read:
    """Entries arrived in one lane."""

    lane: int
    batch: Brought[Reading]


@attrs.define(eq=False, kw_only=True)
class Listener(Actor[_Read]):
    """Routes what the streams bring; knows neither jobs nor messages."""

    context: Context
    on_entries: Callable[[int, str, list[tuple[str, Fields]]], bool]  # True: they are signals
    _tailers: list[StreamTailer[Reading]] = attrs.field(
        init=False, factory=list
    )  # by number of the lane

    # --- for the node -------------------------------------------------------------------------

    def follow(self, state: LaneState, streams: Iterable[str]) -> None:
        """Read these streams of a lane from now on, new ones from their beginning.

        A blocked read takes new ones up when joining writes to the node's own signals.  When it is
        the node itself that joins anew, these are new too, and the read is ended.
        """
        while len(self._tailers) <= state.number:
            self._tailers.append(self._new_tailer(self.context.lanes[len(self._tailers)]))
        tailer = self._tailers[state.number]
        known, own = tailer.readings, state.lane.names.signal(state.node.name)
        readings = [known.get(name) or Reading(name, FIRST) for name in streams]
        tailer.follow(readings, at_once=own not in known)
        if not tailer.is_started:
            tailer.start()

    def has_read(self, lane: int, stream: str, epoch: int) -> bool:
        """Say whether a start is behind what was read of a stream: it does not come any more."""
        reading = self._tailers[lane].readings.get(stream)
        return reading is None or int(reading.position.partition("-")[0]) >= epoch

    async def aclose(self, budget_s: float) -> None:
        """Stop reading; twice is fine."""
        for tailer in self._tailers:
            await tailer.aclose(budget_s)

    # --- on the loop --------------------------------------------------------------------------

    def begin(self) -> None:
        for tailer in self._tailers:
            tailer.read_on()

    def handle(self, message: _Read) -> None:
        tailer = self._tailers[message.lane]
        for reading, entries in message.batch.told:
            if not tailer.follows(reading):
                continue  # of an identity that we no longer are
            if self.on_entries(message.lane, reading.stream, entries):
                self._trim(reading.stream, entries[-1][0])
        # A turn of the loop later: what has just been started shall not wait until we read again.
        self.context.loop.later(0.0, partial(tailer.taken, message.batch))

    def _trim(self, stream: str, last: str) -> None:
        ms, _, number = last.partition("-")
        behind = f"{ms}-{int(number) + 1}"
        try:
            self.context.pipeline.send(("XTRIM", stream, "MINID", behind), lambda _: None)
        except PoolError:
            return  # the next one trims further

    def _new_tailer(self, state: LaneState) -> StreamTailer[Reading]:
        context, lane = self.context, state.number
        return StreamTailer(
            name=f"pool-listener-{lane}",
            io=context.io,
            url=context.url.at(state.lane.names.prefix),
            timing=context.timing_now,
            count=READ_MAX,
            on_batch=lambda batch: self.deliver(_Read(lane, batch)),
            on_trouble=partial(self._on_trouble, lane),
            care=context.supervisor,
        )

    def _on_trouble(self, lane: int, error: PoolError, _: int) -> None:
        # An absent server is the keep-alive's to tell.
        if not isinstance(error, StoreUnavailable):
            self.context.trouble("listen", lane, error)
