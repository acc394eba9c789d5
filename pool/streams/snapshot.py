"""A snapshot: all events of a stream up to the one that was its newest when it was asked for.

    XRANGE (after .. position, so many --> page --> async for --> after = its last one --> ...

Nothing is kept in the store for it, and here one page at most.  A page is a `Portion`; one that did
not come is asked for again, half as large, by whoever iterates again.  What a length cap takes
meanwhile is told as to a reader.  Wherever something is missing it is asked why, and the end is
StoreLost if the stream is not the one that the snapshot is of: deleted, begun anew, or gone back.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import Final, Self

import attrs

from pool.core.ids import order
from pool.errors import PoolError, StoreLost
from pool.events import StreamMissed
from pool.redis.commands.plain import fields
from pool.redis.reads import PORTION_MAX, Portion
from pool.runtime.session import Session
from pool.streams.commands import Facts, StoredStream, probe_call
from pool.streams.event import FIRST, NEWEST, After, StreamEvent, event_of, number_of

_EVENT_BYTES: Final = 64  # of an event beside its text, about


@attrs.define(eq=False)
class Snapshot:
    """The events of a stream at `position`, in their order: `async for event in snapshot`.

    A reader that begins at `position` goes on behind them.  Iterating goes on where it stopped.
    """

    _session: Session
    _of: StoredStream
    position: str
    _newest: Facts  # where the stream was, with the number of the event at `position`
    _after: str
    _number: int | None = None  # of the event at `_after`; None: not known
    _portion: Portion = attrs.field(factory=Portion)
    _page: deque[StreamEvent] = attrs.field(factory=deque)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamEvent:
        """Return the next event.

        Raises:
            StoreUnavailable: No answer in time; iterating again asks again.
            StoreLost: The stream was deleted meanwhile, or its server lost data.
            NotRunning: The connection was closed.
        """
        if not self._page:
            if order(self._after) >= order(self.position):
                raise StopAsyncIteration
            await self._fetch()
        if not self._page:
            raise StopAsyncIteration
        return self._page.popleft()

    async def _fetch(self) -> None:
        count = self._portion.of(PORTION_MAX)
        asked = ("XRANGE", self._of.events, f"({self._after}", self.position, "COUNT", count)
        pipeline = self._session.pipeline
        try:
            async with pipeline.reads.turn() as turn:
                found = await pipeline.execute(*asked, repeatable=True)
                turn.size = sum(_EVENT_BYTES + sum(map(len, flat)) for _, flat in found)
        except PoolError:
            self._portion.failed(count)
            raise
        self._portion.came(len(found), turn.size)
        entries = [(entry_id, fields(flat)) for entry_id, flat in found]
        numbers = [self._number, *(number_of(held) for _, held in entries)]
        # Removed by hand, taken by a cap, or another stream by now?
        is_whole = len(entries) == count or (entries and entries[-1][0] == self.position)
        steps = pairwise(number for number in numbers if number is not None)
        after: After = ""
        if not is_whole or any(number != before + 1 for before, number in steps):
            # What is there lies behind all that a cap took: that is missing before it, or at all.
            after = await self._look(numbers[1] if entries else (self._newest.number or 0) + 1)
        for entry_id, held in entries:
            self._page.append(event_of(self._of.name, entry_id, held, after=after))
            after = ""
        self._after = entries[-1][0] if entries else self.position
        self._number = numbers[-1]

    async def _look(self, number: int | None) -> After:
        """Say what is missing between what was read and the event of this number, and tell it."""
        call = probe_call([(self._of, self._after)])
        [facts] = await self._session.pipeline.call(call, repeatable=True)
        if await self._is_lost(facts):
            raise StoreLost(pool=self._session.pool)
        # What a cap took lies before what is there, so nothing of it lies between two of a page.
        if not facts.trimmed or order(facts.trimmed) <= order(self._after):
            return ""
        missed = 0
        if number is not None and self._number is not None:
            missed = max(0, number - self._number - 1)
        pool, name = self._session.control.pool, self._of.name
        self._session.emit(StreamMissed(pool=pool, stream=name, behind=self._after, events=missed))
        return "missed"

    async def _is_lost(self, facts: Facts) -> bool:
        """Say whether it is another stream by now, or one that went back and maybe grew again."""
        was = self._newest
        if order(facts.last_id) < order(self.position) or facts.added < was.added:
            return True
        if facts.born not in (b"", was.born):
            return True
        # Its numbers have come to that of the snapshot's newest event in their order, or anew.
        asked = ("XRANGE", self._of.events, f"({self.position}", "+", "COUNT", 1)
        for _, flat in await self._session.pipeline.execute(*asked, repeatable=True):
            number = number_of(fields(flat))
            return number is not None and number <= (was.number or 0)
        return False


async def snapshot_of(session: Session, stored: StoredStream, start: str) -> Snapshot:
    """Return the snapshot as of now, of what comes behind an id."""
    asked = probe_call([(stored, start), (stored, NEWEST)])
    first, newest = await session.pipeline.call(asked, repeatable=True)
    position = newest.last_id
    after = position if start == NEWEST or order(start) > order(position) else start
    number = first.number_at(start) if start != FIRST else None
    return Snapshot(session, stored, position, newest, after, number)
