"""The blocking reads: one per lane, over the node's signals and all streams of its workers.

    thread: XREAD from its own positions --Entries--> listener --> worker mailboxes, node's waiters

A position moves on only when the loop has taken what was read: an entry is delivered at least once,
and (key, epoch) makes repeats drop out.  Starts stay in their stream until the script that ends the
pending state removes them; signals are trimmed here, once they are routed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

import attrs

from pool.actors.actor import Actor
from pool.actors.context import Context, LaneState
from pool.actors.observe import StoreTroubled
from pool.errors import PoolError, StoreUnavailable
from pool.model.backoff import reconnect_delay
from pool.store.seam import Beside, Entries, Port

READ_MAX: Final = 1000  # entries of one stream in one read
FIRST: Final = "0-0"

Fields = dict[str, bytes]


@attrs.frozen
class _Read:
    """Entries arrived in one lane."""

    lane: int
    entries: Entries


@attrs.define(eq=False)
class _Reader:
    """One lane's positions; the loop replaces the dict, the thread only reads it."""

    positions: dict[str, str] = attrs.field(factory=dict)
    beside: Beside | None = None
    is_taken: bool = True  # the loop has taken what was read last


@attrs.define(eq=False, kw_only=True)
class Listener(Actor[_Read]):
    """Routes what the streams bring; knows neither jobs nor messages."""

    context: Context
    on_entries: Callable[[int, str, list[tuple[str, Fields]]], bool]  # True: they are signals
    _readers: list[_Reader] = attrs.field(init=False, factory=list)

    # --- for the node -------------------------------------------------------------------------

    def follow(self, state: LaneState, streams: Iterable[str]) -> None:
        """Read these streams of a lane from now on, new ones from their beginning.

        A blocked read takes new ones up when joining writes to one that it knows.
        """
        while len(self._readers) <= state.number:
            self._readers.append(_Reader())
        reader = self._readers[state.number]
        reader.positions = {name: reader.positions.get(name, FIRST) for name in streams}
        if reader.beside is None:
            reader.beside = self.context.seam.start(
                f"pool-listener-{state.number}",
                self.context.url,
                partial(self._body, state.number),
                socket_timeout_s=self.context.settings.socket_timeout_s,
                on_end=partial(self._on_end, state),
            )
        else:
            reader.beside.wake()

    async def aclose(self, budget_s: float) -> None:
        """End the threads; twice is fine."""
        for reader in self._readers:
            if reader.beside is not None:
                await reader.beside.aclose(budget_s)

    # --- on the loop --------------------------------------------------------------------------

    def begin(self) -> None:
        for reader in self._readers:
            reader.is_taken = True
            if reader.beside is not None:
                reader.beside.wake()

    def handle(self, message: _Read) -> None:
        reader = self._readers[message.lane]
        moved = dict(reader.positions)
        for stream, entries in message.entries:
            if stream not in moved:
                continue  # of an identity that we no longer are
            is_signal = self.on_entries(message.lane, stream, entries)
            moved[stream] = entries[-1][0]
            if is_signal:
                self._trim(stream, entries[-1][0])
        reader.positions = moved
        reader.is_taken = True
        if reader.beside is not None:
            reader.beside.wake()

    def _trim(self, stream: str, last: str) -> None:
        ms, _, number = last.partition("-")
        behind = f"{ms}-{int(number) + 1}"
        try:
            self.context.link.send(("XTRIM", stream, "MINID", behind), lambda _: None)
        except PoolError:
            return  # the next one trims further

    def _on_end(self, state: LaneState, error: BaseException | None) -> None:
        if error is None or self.state != "running":
            return
        problem = f"the listener's thread ended: {type(error).__name__}: {error}"
        self.context.emit(StoreTroubled(during="listen", problem=problem))
        reader = self._readers[state.number]
        reader.beside, reader.is_taken = None, True
        self.follow(state, list(reader.positions))

    # --- in the thread ------------------------------------------------------------------------

    async def _body(self, lane: int, port: Port) -> None:
        reader, settings = self._readers[lane], self.context.settings
        failures = 0
        while not port.closing:
            if not reader.is_taken or not reader.positions:
                await port.wait()
                continue
            try:
                entries = await port.read(
                    reader.positions, block_s=settings.block_s, count=READ_MAX
                )
            except StoreUnavailable:
                failures += 1
                await port.sleep(reconnect_delay(failures, self.context.seam.dice))
                continue
            except PoolError as error:
                failures += 1
                port.post(self.context.emit, StoreTroubled(during="listen", problem=str(error)))
                await port.sleep(reconnect_delay(failures + 3, self.context.seam.dice))
                continue
            failures = 0
            if entries:
                reader.is_taken = False
                if not port.post(self.tell, _Read(lane, entries)):
                    return
