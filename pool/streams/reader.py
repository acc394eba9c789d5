"""A reader: one program's own cursor over streams.

    tailer --entries--> on_batch: filter, look for holes --> buffer --> async for event in reader
    probe (now and then, and after every reconnect) --> did the stream go back?

Where things stand is in the program's memory only: the server knows nothing of a reader, and a
program that wants to go on after a restart stores `position()`.

What can be lost without a reader noticing by itself, and how it notices:

    trimmed by a cap   events are numbered; a hole that a cap made is told, and the next event says
                       so; what was removed by hand is no loss
    ... of a new life  whose numbers go on behind ours: each life has a name of its own (`born`),
                       asked for at each hole and now and then
    foreign value      under one stream's key: that one is set aside, and told, until its place is
                       free; the others are read on
    stream went back   destroyed, FLUSHALL, restart without data, failover to an older copy: the id
                       that the server generated last, or the count of events, is below what we have
                       seen, or the numbers begin again.  What we have not read of the new stream is
                       read from its beginning, or we would wait until its ids have passed our
                       position, which may be for ever; the next event says so.  One that went back
                       and has come as far again has another event where ours was, or as many
                       before: events are marked, and a probe comes before what is read next.

In which life a cursor is, it learns before it takes anything of it, and once:

    born   None  there was no stream when it was asked; nothing of any life was taken
           b""   nobody can say, and it is read: made by none of our scripts, or it may not be asked
           X     what was asked for before the first event was read, or when it began anew

While it is None, what a read brings is left there: a probe comes first, and then it is read again.
An answer that comes later than what was read may be of a later life.  So it never takes the place
of X: as long as the answer is X, all that was read in between is of X, and with any other one the
cursor begins anew, at the worst with events of the new life that it has given already.  `born` is
written on the loop alone, by `_on_probed` where it was None, and by whoever makes a cursor.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from typing import Final, Self

import anyio
import anyio.lowlevel
import attrs

from pool.core.ids import order
from pool.errors import AuthError, InvalidOption, NotRunning, PoolError, StoreFault, again
from pool.events import (
    StreamEnded,
    StreamMissed,
    StreamRestarted,
    StreamsReachable,
    StreamsUnreachable,
    StreamTroubled,
)
from pool.redis.io.system import BodyIO, Reply
from pool.runtime.session import CLOSE_BUDGET_S, Session
from pool.runtime.stream_tailer import Brought, Fields, Reading, StreamEntry, StreamTailer
from pool.runtime.supervisor import Apart
from pool.streams.buffer import BufferedReader, EventBuffer, EventSource, check_may_read, stored_of
from pool.streams.commands import UNKNOWN, Facts, StoredStream, probe_call
from pool.streams.event import (
    FIRST,
    NEWEST,
    After,
    Filter,
    StartAt,
    StreamEvent,
    event_of,
    number_of,
    position_of,
)
from pool.streams.foreign import HASH, STREAM, look_for_foreign

READER_BUFFER_MAX: Final = 1_000


@attrs.define(eq=False, kw_only=True)
class _Cursor(Reading):
    """Where the reader is in one stream."""

    of: StoredStream
    given: str  # behind the last event that the program was given
    number: int | None = None  # of the last event read; 0: none was before; None: not known
    mark: bytes = b""  # likewise
    number_at: str = FIRST  # its id
    read_to: str = FIRST  # the last event read
    last_id: str = FIRST  # as of the last probe
    added: int = 0
    after: After = ""  # what the next event has to say
    born: bytes | None = None  # in which life of the stream it is; see above
    looked: Facts | None = None  # where the stream is, if a hole made us ask

    def is_of_another(self, facts: Facts) -> bool:
        """Say whether the stream was made anew since we read of it."""
        return self.born is not None and facts.born not in (b"", self.born)

    def is_ahead_of(self, facts: Facts) -> bool:
        """Say whether we have seen more of the stream than there ever was in it."""
        seen = max(order(self.last_id), order(self.read_to))
        return order(facts.last_id) < seen or facts.added < self.added

    def is_apart_from(self, facts: Facts) -> bool:
        """Say whether the stream has another event where we have read ours, or as many before.

        Ours may have been removed by hand: then there are fewer before it.
        """
        if not self.number or facts.number is None or self.number_at != self.position:
            return False
        if facts.found == self.position:
            return (facts.number, facts.mark) != (self.number, self.mark)
        return facts.number >= self.number


def _has_hole(cursor: _Cursor, entries: Sequence[StreamEntry]) -> bool:
    before = cursor.number
    for _, fields in entries:
        number = number_of(fields)
        if before is not None and number not in (None, before + 1):
            return True
        before = number
    return False


@attrs.frozen(eq=False)
class _Item:
    cursor: _Cursor
    entry_id: str
    event: StreamEvent | None  # None: not wanted, but the position moves


def _size_of(item: _Item) -> int:
    return 0 if item.event is None else len(item.event.payload)


class Reader(BufferedReader):
    """An independent cursor over one or more streams: `async with stream.reader() as reader`.

    Iterating gives each `StreamEvent` once, in the order of each stream, and waits for new ones.
    Lost connections are survived without a gap and without a repeat.  At most `buffer_max` events
    are held (one per stream, if it follows more streams than that), and of large ones 4 MiB of
    payloads and what one read brings: a slow program costs no memory.
    """

    def __init__(
        self,
        session: Session,
        first: tuple[StoredStream, StartAt],
        *,
        topics: Iterable[str] | None,
        pattern: str | None,
        where: Callable[[StreamEvent], object] | None,
        buffer_max: int,
    ) -> None:
        self._session = session
        self._filter = Filter.of(topics, pattern, where)
        self._first = first
        position_of(first[1])
        self._state = "new"
        self._aside: dict[str, _Cursor] = {}  # a foreign value stands there
        self._asking = frozenset[_Cursor]()  # that have something to take, of which life they ask
        self._is_looking = False
        self._is_unreachable = False  # which was told
        tailer: StreamTailer[_Cursor] = StreamTailer(
            name="pool-reader",
            io=session.io,
            url=session.url,
            timing=session.timing_now,
            count=1,
            on_batch=self._on_batch,
            probe=self._probe,
            on_probed=self._on_probed,
            on_trouble=self._on_trouble,
            on_back=self._on_back,
            on_end=self._on_end,
            care=Apart(session.supervisor, self._on_failed),
        )
        self._tailer = tailer
        self._buffer: EventBuffer[_Item, _Cursor] = EventBuffer(
            buffer_max=buffer_max, tailer=tailer, size_of=_size_of
        )

    # --- for the program ----------------------------------------------------------------------

    async def add_stream(self, stream: EventSource, start: StartAt = "oldest") -> None:
        """Read this stream too, from `start` on (see `Stream.reader`); adding it twice is refused.

        Raises:
            InvalidOption: It is read already, `start` is none, or there are 64 streams, or
                it is of another server or pool.
            StoreUnavailable: The server could not say where the stream is.
        """
        self._check_open()
        await self._add(stored_of(stream, self._session), start)
        self._buffer.fit(len(self._tailer.readings))

    def remove_stream(self, stream: EventSource) -> None:
        """Read this stream no more; what is buffered of it is dropped.  Twice is fine."""
        self._session.check_loop()
        key = stored_of(stream, self._session).events
        self._aside.pop(key, None)
        self._tailer.follow([c for c in self._tailer.readings.values() if c.stream != key])
        self._buffer.drop(lambda item: item.cursor.stream != key)
        self._buffer.fit(len(self._tailer.readings))

    def position(self, stream: EventSource) -> str:
        """Return the id behind which the program is in a stream: a `start` for later.

        It is that of the last event that iterating returned, or of a later one that was not wanted.

        Raises:
            InvalidOption: The stream is not read.
        """
        stored = stored_of(stream, self._session)
        cursor = self._tailer.readings.get(stored.events) or self._aside.get(stored.events)
        if cursor is None:
            raise InvalidOption(option="stream", value=stored.name, problem="it is not read")
        return cursor.given

    def __aiter__(self) -> AsyncIterator[StreamEvent]:
        return self

    async def __anext__(self) -> StreamEvent:
        """Return the next event that is wanted.

        What the user's own `where` raises comes out here; that event is passed over, and iterating
        again goes on behind it.
        """
        self._check_open(may_be_closed=True)
        while True:
            item = await self._buffer.next()
            item.cursor.given = item.entry_id
            if item.event is not None and self._filter.takes(item.event):
                return item.event

    async def __aenter__(self) -> Self:
        self._session.check_loop()
        if self._state != "new":
            raise NotRunning(state=self._state)
        self._state = "open"
        self._loop = self._session.io.loop(self._session.supervisor)
        await self._add(*self._first)
        self._buffer.fit(1)
        self._tailer.start()
        return self

    async def aclose(self) -> None:
        """Stop reading; whoever iterates is told that it has ended.  Twice is fine."""
        self._session.check_loop()
        was_open, self._state = self._state == "open", "closed"
        if not was_open:
            return
        self._buffer.drop()
        self._buffer.end()
        self._aside.clear()
        self._loop.close()
        with anyio.CancelScope(shield=True):
            await self._tailer.aclose(CLOSE_BUDGET_S)
            await anyio.lowlevel.checkpoint()  # timers that were taken back end here

    # --- where to begin -----------------------------------------------------------------------

    async def _add(self, stored: StoredStream, start: StartAt) -> None:
        position = position_of(start)
        readings = self._tailer.readings
        check_may_read(stored, {*readings, *self._aside})
        call = probe_call([(stored, position)])
        try:
            [facts] = await self._session.pipeline.call(call, repeatable=True)
        except AuthError as error:
            if position == NEWEST or "xinfo" not in error.problem.lower():
                raise
            at = position if isinstance(start, str) else FIRST
            cursor = _Cursor(stored.events, position, of=stored, given=position, read_to=at)
            self._tailer.follow([*self._tailer.readings.values(), cursor])
            return
        is_cursor = isinstance(start, str)  # an id, which the program has seen
        if position == NEWEST:
            position = facts.last_id
        cursor = _Cursor(
            stream=stored.events,
            position=position,
            of=stored,
            given=position,
            number=facts.number_at(position) if facts.exists else 0,
            mark=facts.mark,
            number_at=position,
            born=facts.born if facts.exists else None,
            read_to=position if is_cursor else FIRST,
            last_id=facts.last_id,
            added=facts.added,
        )
        if is_cursor and position != FIRST:
            if cursor.is_ahead_of(facts):
                cursor = self._restarted(cursor, facts)
            elif facts.trimmed and order(facts.trimmed) > order(position):
                self._missed(cursor, 0)
        # What others read stays as it is: those who wait see the new one when they look again.
        self._tailer.follow([*self._tailer.readings.values(), cursor])

    # --- what the tailer brings -----------------------------------------------------------------

    def _on_batch(self, batch: Brought[_Cursor]) -> None:
        self._asking = frozenset(cursor for cursor, _ in batch.told if cursor.born is None)
        if self._asking:
            self._tailer.probe_first(batch)
            return
        holed = [cursor for cursor, entries in batch.told if _has_hole(cursor, entries)]
        if not holed:
            self._push(batch)
            return
        # Events were removed by hand, or trimmed?  That no other batch
        # comes before the answer, is the tailer's promise; without one, they count as trimmed.
        call = probe_call([(cursor.of, cursor.position) for cursor in holed])
        try:
            self._session.pipeline.send(call, partial(self._on_looked, batch, holed))
        except PoolError:
            self._push(batch)

    def _on_looked(self, batch: Brought[_Cursor], holed: Sequence[_Cursor], reply: Reply) -> None:
        if not isinstance(reply, PoolError):
            cursors = dict(self._tailer.readings)
            for cursor, facts in zip(holed, reply, strict=True):
                cursor.looked = facts
                if self._tailer.follows(cursor) and cursor.is_of_another(facts):
                    # What comes before this was taken by a cap, or has ids that lie behind us; or
                    # the life of which it was read has ended since.
                    cursors[cursor.stream] = self._restarted(cursor, facts)
            if any(not self._tailer.follows(cursor) for cursor in cursors.values()):
                self._tailer.follow(list(cursors.values()), at_once=False)
        self._push(batch)

    def _push(self, batch: Brought[_Cursor]) -> None:
        items: list[_Item] = []
        for cursor, entries in batch.told:
            if self._tailer.follows(cursor):
                items.extend(self._items(cursor, entries))
            cursor.looked = None
        self._buffer.push(items, batch)

    def _items(self, cursor: _Cursor, entries: list[StreamEntry]) -> list[_Item]:
        items: list[_Item] = []
        for entry_id, fields in entries:
            self._count(cursor, entry_id, fields)
            cursor.read_to = entry_id
            event = event_of(cursor.of.name, entry_id, fields, after=cursor.after)
            if self._filter.takes_topic(event.topic):
                cursor.after = ""
                items.append(_Item(cursor, entry_id, event))
        if not items or items[-1].entry_id != cursor.read_to:
            items.append(_Item(cursor, cursor.read_to, None))
        return items

    def _count(self, cursor: _Cursor, entry_id: str, fields: Fields) -> None:
        number, before, facts = number_of(fields), cursor.number, cursor.looked
        cursor.number, cursor.mark, cursor.number_at = number, fields.get("m", b""), entry_id
        if number is None or before is None or number == before + 1:
            return
        if number == 1:
            # Another stream by now, which is read from its beginning; of its life nobody has said.
            has_ended = facts is not None and facts.has_ended
            self._tell_restart(cursor, entry_id, has_ended=has_ended)
            cursor.after, cursor.last_id, cursor.added = "restarted", FIRST, 0
        elif number > before + 1:
            # Unless somebody says so it was not removed by hand.
            if facts is None or order(facts.trimmed or FIRST) > order(cursor.read_to):
                self._missed(cursor, number - before - 1)
        elif number <= before:
            cursor.added = sys.maxsize  # its first events lie behind us: the next probe turns back

    def _missed(self, cursor: _Cursor, events: int) -> None:
        cursor.after = cursor.after or "missed"
        pool, stream = self._session.control.pool, cursor.of.name
        self._session.emit(
            StreamMissed(pool=pool, stream=stream, behind=cursor.read_to, events=events)
        )

    def _on_probed(self, answers: Sequence[tuple[_Cursor, Facts]]) -> None:
        restarted, asking, self._asking = False, self._asking, frozenset()
        cursors = dict(self._tailer.readings)
        for cursor, facts in answers:
            # Who has nothing to take waits for who can say it: a foreign value beside the stream.
            is_told = facts.exists or (facts.exists is None and cursor in asking)
            if cursor.born is None and is_told:
                cursor.born = facts.born
            if facts.exists is None:
                self._look_for_foreign()
            if facts.exists is None or not self._tailer.follows(cursor):
                continue
            # Another life whose ids and numbers go on behind ours shows by nothing else.
            is_another = cursor.is_of_another(facts) or cursor.is_apart_from(facts)
            if cursor.is_ahead_of(facts) or is_another:
                cursors[cursor.stream] = self._restarted(cursor, facts)
                restarted = True
            cursor.last_id, cursor.added = facts.last_id, facts.added
        if restarted:
            self._tailer.follow(list(cursors.values()), at_once=False)
        self._tailer.taken()

    def _tell_restart(self, cursor: _Cursor, last_id: str, *, has_ended: bool) -> None:
        pool, stream = self._session.control.pool, cursor.of.name
        if has_ended:
            self._session.emit(StreamEnded(pool=pool, stream=stream, position=cursor.read_to))
            return
        self._session.emit(
            StreamRestarted(pool=pool, stream=stream, position=cursor.read_to, last_id=last_id)
        )

    def _restarted(self, cursor: _Cursor, facts: Facts) -> _Cursor:
        self._tell_restart(cursor, facts.last_id, has_ended=facts.has_ended)
        return _Cursor(
            stream=cursor.stream,
            position=FIRST,
            of=cursor.of,
            given=FIRST,
            number=0,
            born=facts.born if facts.exists else None,
            last_id=facts.last_id,
            added=facts.added,
            after="restarted",
        )

    def _on_trouble(self, error: PoolError, _: int) -> None:
        if not self._is_unreachable:
            self._is_unreachable = True
            pool = self._session.control.pool
            self._session.emit(StreamsUnreachable(pool=pool, reader="", problem=str(error)))
        if isinstance(error, StoreFault):
            self._look_for_foreign()

    def _on_back(self, failures: int) -> None:
        if self._is_unreachable:
            self._is_unreachable = False
            pool = self._session.control.pool
            self._session.emit(StreamsReachable(pool=pool, reader="", failures=failures))

    # --- foreign values -----------------------------------------------------------------------

    def _look_for_foreign(self) -> None:
        """One foreign value fails the reading of all: set aside what it belongs to."""
        self._is_looking = False
        if self._state != "open":
            return
        cursors = [*self._tailer.readings.values(), *self._aside.values()]
        events = dict.fromkeys((cursor.of.events for cursor in cursors), STREAM)
        metas = dict.fromkeys((cursor.of.meta for cursor in cursors), HASH)
        look_for_foreign(self._session.pipeline, events | metas, self._on_foreign)
        self._look_again()

    def _look_again(self) -> None:
        if self._aside and not self._is_looking:
            self._is_looking = True
            self._loop.later(self._session.timing.renew_s, self._look_for_foreign)

    def _on_foreign(self, found: dict[str, str]) -> None:
        cursors = dict(self._tailer.readings)
        for stream, cursor in list(cursors.items()):
            keys = [key for key in (cursor.of.events, cursor.of.meta) if key in found]
            if keys:
                self._aside[stream] = cursors.pop(stream)
                self._session.emit(
                    StreamTroubled(
                        pool=self._session.pool,
                        stream=cursor.of.name,
                        key=keys[0],
                        found=found[keys[0]],
                    )
                )
        for stream, cursor in list(self._aside.items()):
            if not {cursor.of.events, cursor.of.meta} & {*found}:
                del self._aside[stream]
                # Another object: what was on its way for the old one is read again.
                position = max(cursor.position, cursor.read_to, key=order)
                cursors[stream] = attrs.evolve(cursor, position=position)
        if cursors.keys() != self._tailer.readings.keys():
            self._tailer.follow(list(cursors.values()), at_once=False)
        self._look_again()

    def _on_end(self, error: BaseException | None) -> None:
        """Reading has ended for good: unless we closed it, with the stream's connection or node."""
        if self._state == "open":
            if error is None:
                self._buffer.drop()
            self._buffer.end(NotRunning(state="closed"))

    # --- beside the loop ----------------------------------------------------------------------

    async def _probe(
        self, body_io: BodyIO, cursors: Sequence[_Cursor], _: bool
    ) -> list[tuple[_Cursor, Facts]]:
        call = probe_call([(cursor.of, cursor.position) for cursor in cursors])
        [reply] = await body_io.run([call], timeout_s=self._session.settings.op_timeout_s)
        if isinstance(reply, AuthError):
            return [(cursor, UNKNOWN) for cursor in cursors]  # who may not ask may still read
        if isinstance(reply, PoolError):
            raise again(reply)
        return list(zip(cursors, reply, strict=True))
