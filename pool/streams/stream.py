"""A stream of events: adding to it, reading it, and snapshots of it.

A snapshot: all events of a stream up to the one that was its newest when it was asked for.

    XRANGE (after .. position, so many --> page --> async for --> after = its last one --> ...

Nothing is kept in the store for it, and here one page at most.  A page is a `Portion`; one that did
not come is asked for again, half as large, by whoever iterates again.  What a length cap takes
meanwhile is told as to a reader.  Wherever something is missing it is asked why, and the end is
StoreLost if the stream is not the one that the snapshot is of: deleted, begun anew, or gone back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from itertools import pairwise
from typing import Final, Self

import attrs

from pool import checks
from pool.core.codec import check_size
from pool.core.ids import order
from pool.errors import InvalidOption, PoolError, StoreLost, shown
from pool.events import Observer, StreamMissed
from pool.names import check_stream
from pool.redis.commands.plain import fields
from pool.redis.io.system import IO
from pool.redis.reads import PORTION_MAX, Portion
from pool.redis.url import Url
from pool.runtime.observers import log_observer
from pool.runtime.pool_config import learn_ttl
from pool.runtime.session import Session, open_session
from pool.settings import Settings
from pool.streams.buffer import EventSource
from pool.streams.commands import Facts, StoredStream, probe_call
from pool.streams.event import (
    EVENT_BYTES_MAX,
    FIRST,
    LENGTH_MAX,
    NEWEST,
    TOPIC_BYTES_MAX,
    After,
    StartAt,
    StreamEvent,
    check_id,
    encoded_name,
    epoch_ms,
    event_of,
    number_of,
    position_of,
)
from pool.streams.reader import READER_BUFFER_MAX, Reader
from pool.streams.sink import DELIVERIES_MAX, GRACE_S, SINK_BUFFER_MAX, Sink

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


TTL_MIN_S: Final = 0.001
TTL_MAX_S: Final = 10 * 365 * 86_400.0
ONCE_BYTES_MAX: Final = 256
ONCE_FOR_S: Final = 3_600.0
ONCE_MIN_S: Final = 1.0
ONCE_MAX_S: Final = 7 * 86_400.0


@attrs.frozen(kw_only=True, eq=False)
class Stream(EventSource):
    """An ordered stream of events, kept in Redis: `node.stream("orders")` or `Stream.open()`.

    Events are kept until they are removed, the stream is destroyed, or a limit that was asked for
    takes them: `length_max` keeps the newest so many and **loses the older ones, read or not**
    (readers and sinks that had not come to them are told); `ttl_s` ends the whole stream so long
    after it was made, or, if it `is_sliding`, after its last event; `ends_at` ends it at that time.
    All are kept by whoever adds: let all that write to a stream use the same.
    """

    length_max: int | None = None
    ttl_s: float | None = None
    is_sliding: bool = False
    ends_at: datetime | int | None = None
    _ends: _Ends = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        length_max, ttl_s, ends = _limits(
            self.length_max, self.ttl_s, self.is_sliding, self.ends_at
        )
        object.__setattr__(self, "length_max", length_max)  # plain ones, whatever was given
        object.__setattr__(self, "ttl_s", ttl_s)
        object.__setattr__(self, "_ends", ends)

    @classmethod
    def open(
        cls,
        url: str,
        name: str,
        *,
        pool: str = "default",
        length_max: int | None = None,
        ttl_s: float | None = None,
        is_sliding: bool = False,
        ends_at: datetime | int | None = None,
        settings: Settings | None = None,
        observers: Sequence[Observer] = (log_observer,),
        _io: IO | None = None,  # of a simulation
    ) -> AbstractAsyncContextManager[Stream]:
        """Open a stream without a node, on a connection of its own: `async with Stream.open(...)`.

        Args:
            url: Where its Redis is, such as `redis://localhost:6379` or `embedded://`.
            name: The stream's name, up to 128 bytes of text.
            pool: The pool that it belongs to, `[a-z0-9_-]{1,64}`; a node's is its own.
            length_max: Keep the newest so many events and lose the others; None keeps all.
            ttl_s: How long the stream lives, in seconds; None: for ever.
            is_sliding: Every event prolongs its life.
            ends_at: When it ends, by the server's clock: a datetime with a zone or epoch
                milliseconds; instead of a `ttl_s`.
            settings: Lease TTL and time-outs, as for a node.
            observers: Called with everything notable, plainly; the default writes log lines.

        Raises:
            ConfigError, InvalidOption: At once: an argument cannot be used.
            StoreUnavailable, AuthError, UnsupportedServer, NoServer: There is no usable server.
        """
        check_stream(name)
        _limits(length_max, ttl_s, is_sliding, ends_at)
        opening = open_session(Url.parse(url), pool, settings, observers, _io)

        @asynccontextmanager
        async def opened() -> AsyncIterator[Stream]:
            async with opening as session:
                await learn_ttl(session)
                yield make_stream(
                    session,
                    name,
                    length_max=length_max,
                    ttl_s=ttl_s,
                    is_sliding=is_sliding,
                    ends_at=ends_at,
                )

        return opened()

    # --- what it is ---------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The stream's name in its pool."""
        return self._stored.name

    def sibling(
        self,
        name: str,
        *,
        length_max: int | None = None,
        ttl_s: float | None = None,
        is_sliding: bool = False,
        ends_at: datetime | int | None = None,
    ) -> Stream:
        """Return another stream of the same pool, on the same connection.

        Raises:
            ConfigError, InvalidOption: An argument cannot be used.
        """
        return make_stream(
            self._session,
            name,
            length_max=length_max,
            ttl_s=ttl_s,
            is_sliding=is_sliding,
            ends_at=ends_at,
        )

    # --- events -------------------------------------------------------------------------------

    async def add(
        self,
        event: str,
        payload: bytes | str,
        *,
        topic: str | None = None,
        only_if_exists: bool = False,
        once_id: str | None = None,
        once_for_s: float = ONCE_FOR_S,
    ) -> str | None:
        """Append an event; return its id once the store has it.  One round trip.

        After `StoreUnavailable` with `maybe_done=True` nobody knows whether it was added: who adds
        it again may have added it twice, so readers see an event at least once.  With a `once_id`
        it is added once, however often it is tried, by whomever: each is answered the same id.

        Args:
            event: What happened: text, 1 to 256 bytes of UTF-8.
            payload: Any bytes, or text, which is sent as UTF-8; `Settings.payload_bytes_max`.
            topic: What readers may choose by: text, 1 to 512 bytes of UTF-8.
            only_if_exists: Add nothing, and return None, if there is no such stream; one that has a
                sink exists.
            once_id: What makes this event one and the same: text, 1 to 256 bytes of UTF-8.
            once_for_s: For how long that is remembered at least, 1 s to 7 days; an event or two
                more in the stream's memory for each.  It ends with the stream.

        Returns:
            The event's id; None: nothing was added, as there is no such stream, or `ends_at` has
            passed.

        Raises:
            InvalidOption, PayloadTooLarge: An argument cannot be used; nothing was sent.
            StorageFull: The server is full; nothing was added.
            StoreUnavailable: No answer in time.
            StoreFault: Foreign data is in its place.
            NotRunning: The connection was closed.
        """
        name = encoded_name("event", event, EVENT_BYTES_MAX)
        subject = None if topic is None else encoded_name("topic", topic, TOPIC_BYTES_MAX)
        body = checks.utf8("payload", payload, or_bytes=True)
        checks.flag("only_if_exists", only_if_exists)
        check_size("payload", body, self._session.settings.payload_bytes_max)
        once = None if once_id is None else encoded_name("once_id", once_id, ONCE_BYTES_MAX)
        window_s = checks.seconds("once_for_s", once_for_s, ONCE_MIN_S, ONCE_MAX_S)
        call = self._stored.add(
            name,
            body,
            subject,
            length_max=self.length_max or 0,
            ttl_ms=self._ends.ms,
            how=self._ends.how + ("x" if only_if_exists else ""),
            mark=f"{self._session.io.dice.getrandbits(32):08x}",
            once_id=once,
            window_ms=round(1000 * window_s),
        )
        added: str | None = await self._session.pipeline.call(call, repeatable=once is not None)
        return added

    async def remove(self, *event_ids: str) -> int:
        """Remove events by id; return how many there were.  A sink is not given them any more.

        Raises:
            InvalidOption: One is no id.
            StoreUnavailable, NotRunning: As for `add()`.
        """
        for event_id in event_ids:
            check_id("id", event_id)
        if not event_ids:
            return 0
        removed: int = await self._session.pipeline.execute("XDEL", self._stored.events, *event_ids)
        return removed

    async def destroy(self) -> bool:
        """Delete the stream, its events and the groups of its sinks; say if there was one.

        Readers and sinks that are open are told when it begins again.

        Raises:
            StoreUnavailable, NotRunning: As for `add()`.
        """
        found: int = await self._session.pipeline.call(self._stored.end(), repeatable=False)
        return found > 0

    async def fetch_length(self) -> int:
        """Fetch how many events it holds.

        Raises:
            StoreUnavailable, StoreFault, NotRunning: As for `add()`.
        """
        length: int = await self._session.pipeline.execute("XLEN", self._stored.events)
        return length

    # --- reading ------------------------------------------------------------------------------

    async def snapshot(self, start: StartAt = "oldest") -> Snapshot:
        """Return all events from `start` to the newest one as of now: `async for` fetches them.

        They come in pages, of which one at most is held.  `snapshot.position` is where a reader
        goes on: `stream.reader(snapshot.position)`.

        Raises:
            InvalidOption: `start` is none; see `reader()`.
            StoreUnavailable, StoreFault, NotRunning: As for `add()`.
        """
        return await snapshot_of(self._session, self._stored, position_of(start))

    def reader(
        self,
        start: StartAt = "oldest",
        *,
        topics: Iterable[str] | None = None,
        pattern: str | None = None,
        where: Callable[[StreamEvent], object] | None = None,
        buffer_max: int = READER_BUFFER_MAX,
    ) -> Reader:
        """Return a reader with a cursor of its own, to be entered: `async with stream.reader()`.

        Args:
            start: `oldest`; `newest`: what comes after it was entered; an event's id: what comes
                behind it; a datetime with a zone or epoch milliseconds: what came from then on.
            topics: Only events of these topics.
            pattern: Only events whose topic it matches: `*` any text, `?` any character, `[abc]`.
            where: Only events for which this returns true.  All three must agree.
            buffer_max: How many events may be held here, 1 to 100,000.

        Raises:
            InvalidOption: An argument cannot be used.
        """
        return Reader(
            self._session,
            (self._stored, start),
            topics=topics,
            pattern=pattern,
            where=where,
            buffer_max=buffer_max,
        )

    def sink(
        self,
        name: str,
        start: StartAt = "oldest",
        *,
        no_ack: bool = False,
        grace_s: float = GRACE_S,
        deliveries_max: int = DELIVERIES_MAX,
        topics: Iterable[str] | None = None,
        pattern: str | None = None,
        where: Callable[[StreamEvent], object] | None = None,
        buffer_max: int = SINK_BUFFER_MAX,
    ) -> Sink:
        """Return a consumer of the named group, to be entered: `async with stream.sink("billing")`.

        All consumers of a name share its events, in this process or others; let them use the same
        options.  What the filters refuse is acknowledged at once, for all of them.

        Args:
            name: The sink's name, up to 128 bytes of text.
            start: Where its first consumer begins, as for `reader()`; later ones go on.
            no_ack: An event is gone when it was read: given at most once.
            grace_s: Unacknowledged for so long, counted from when it was handed out, an event is
                given again: 0.1 s to 7 days.
            deliveries_max: Handed out so often without an acknowledgement it is parked.
            topics: As for `reader()`.
            pattern: As for `reader()`.
            where: As for `reader()`.
            buffer_max: How many events it may hold beside those handed out, 1 to 100,000.

        Raises:
            ConfigError, InvalidOption: An argument cannot be used.
        """
        return Sink(
            self._session,
            name,
            (self._stored, start),
            no_ack=no_ack,
            grace_s=grace_s,
            deliveries_max=deliveries_max,
            buffer_max=buffer_max,
            topics=topics,
            pattern=pattern,
            where=where,
        )


@attrs.frozen
class _Ends:
    """When a stream ends, as its script is told."""

    ms: int = 0
    how: str = ""


def _limits(
    length_max: object, ttl_s: object, is_sliding: object, ends_at: object
) -> tuple[int | None, float | None, _Ends]:
    length = None if length_max is None else checks.count("length_max", length_max, 1, LENGTH_MAX)
    life_s = checks.seconds("ttl_s", ttl_s, TTL_MIN_S, TTL_MAX_S, or_none=True)
    if checks.flag("is_sliding", is_sliding) and life_s is None:
        raise InvalidOption(
            option="is_sliding",
            value="True",
            problem="give a ttl_s with it: the stream lives so long after its last event",
        )
    if ends_at is not None:
        if life_s is not None:
            raise InvalidOption(
                option="ends_at", value=shown(ends_at), problem="give it or a ttl_s, not both"
            )
        return length, life_s, _Ends(epoch_ms("ends_at", ends_at), "a")
    if life_s is None:
        return length, life_s, _Ends()
    return length, life_s, _Ends(max(1, round(life_s * 1000)), "s" if is_sliding else "")


def make_stream(
    session: Session,
    name: str,
    *,
    length_max: int | None,
    ttl_s: float | None,
    is_sliding: bool,
    ends_at: datetime | int | None = None,
) -> Stream:
    """Return a stream of this pool.

    Raises:
        ConfigError, InvalidOption: An argument cannot be used.
    """
    return Stream(
        stored=StoredStream(session.control, name),
        length_max=length_max,
        ttl_s=ttl_s,
        is_sliding=is_sliding,
        ends_at=ends_at,
        session=session,
    )
