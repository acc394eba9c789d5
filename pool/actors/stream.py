"""A stream of events: what programs write to, and where readers and sinks come from."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

import attrs

from pool import checks
from pool.actors.access import Access, accessing
from pool.actors.control import learn_ttl
from pool.actors.feed import HasEvents
from pool.actors.observe import Observer, log_observer
from pool.actors.reader import READER_BUFFER_MAX, Reader
from pool.actors.sink import DELIVERIES_MAX, GRACE_S, SINK_BUFFER_MAX, Sink
from pool.errors import InvalidOption
from pool.model.codec import check_size
from pool.model.names import check_stream
from pool.model.stream import (
    EVENT_BYTES_MAX,
    LENGTH_MAX,
    TOPIC_BYTES_MAX,
    Start,
    StreamEvent,
    check_id,
    encoded_name,
)
from pool.settings import Settings
from pool.store.seam import Seam
from pool.store.stream import StoredStream
from pool.store.url import Url

TTL_MIN_S: Final = 0.001
TTL_MAX_S: Final = 10 * 365 * 86_400.0


@attrs.frozen(kw_only=True, eq=False)
class Stream(HasEvents):
    """An ordered stream of events, kept in Redis: `node.stream("orders")` or `Stream.open()`.

    Events are kept until they are removed, the stream is destroyed, or a limit that was asked for
    takes them: `length_max` keeps the newest so many and **loses the older ones, read or not**
    (readers and sinks that had not come to them are told); `ttl_s` ends the whole stream so long
    after it was made, or, if it `is_sliding`, after its last event.  Both are kept by whoever adds:
    let all that write to a stream use the same.
    """

    length_max: int | None = None
    ttl_s: float | None = None
    is_sliding: bool = False
    _access: Access

    def __attrs_post_init__(self) -> None:
        length_max, ttl_s = _limits(self.length_max, self.ttl_s, self.is_sliding)
        object.__setattr__(self, "length_max", length_max)  # plain ones, whatever was given
        object.__setattr__(self, "ttl_s", ttl_s)

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
        settings: Settings | None = None,
        observers: Sequence[Observer] = (log_observer,),
        seam: Seam | None = None,
    ) -> AbstractAsyncContextManager[Stream]:
        """Open a stream without a node, on a connection of its own: `async with Stream.open(...)`.

        Args:
            url: Where its Redis is, such as `redis://localhost:6379` or `embedded://`.
            name: The stream's name, up to 128 bytes of text.
            pool: The pool that it belongs to, `[a-z0-9_-]{1,64}`; a node's is its own.
            length_max: Keep the newest so many events and lose the others; None keeps all.
            ttl_s: How long the stream lives, in seconds; None: for ever.
            is_sliding: Every event prolongs its life.
            settings: Lease TTL and time-outs, as for a node.
            observers: Called with everything notable, plainly; the default writes log lines.
            seam: The world outside; for simulations.

        Raises:
            ConfigError, InvalidOption: At once: an argument cannot be used.
            StoreUnavailable, AuthError, UnsupportedServer, NoServer: There is no usable server.
        """
        check_stream(name)
        _limits(length_max, ttl_s, is_sliding)
        opening = accessing(Url.parse(url), pool, settings, observers, seam)

        @asynccontextmanager
        async def opened() -> AsyncIterator[Stream]:
            async with opening as access:
                await learn_ttl(access)
                yield make_stream(
                    access, name, length_max=length_max, ttl_s=ttl_s, is_sliding=is_sliding
                )

        return opened()

    # --- what it is ---------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self.stored.name

    def sibling(
        self,
        name: str,
        *,
        length_max: int | None = None,
        ttl_s: float | None = None,
        is_sliding: bool = False,
    ) -> Stream:
        """Return another stream of the same pool, on the same connection.

        Raises:
            ConfigError, InvalidOption: An argument cannot be used.
        """
        return make_stream(
            self._access, name, length_max=length_max, ttl_s=ttl_s, is_sliding=is_sliding
        )

    # --- events -------------------------------------------------------------------------------

    async def add(
        self,
        event: str,
        payload: bytes | str,
        *,
        topic: str | None = None,
        only_if_exists: bool = False,
    ) -> str | None:
        """Append an event; return its id once the store has it.  One round trip.

        After `StoreUnavailable` with `maybe_done=True` nobody knows whether it was added: who adds
        it again may have added it twice, so readers see an event at least once.

        Args:
            event: What happened: text, 1 to 256 bytes of UTF-8.
            payload: Any bytes, or text, which is sent as UTF-8; `Settings.payload_bytes_max`.
            topic: What readers may choose by: text, 1 to 512 bytes of UTF-8.
            only_if_exists: Add nothing, and return None, if there is no such stream; one that has a
                sink exists.

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
        check_size("payload", body, self._access.settings.payload_bytes_max)
        call = self.stored.add(
            name,
            body,
            subject,
            length_max=self.length_max or 0,
            ttl_ms=0 if self.ttl_s is None else max(1, round(self.ttl_s * 1000)),
            is_sliding=self.is_sliding,
            only_if_exists=only_if_exists,
        )
        added: str | None = await self._access.link.call(call)
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
        removed: int = await self._access.link.execute("XDEL", self.stored.events, *event_ids)
        return removed

    async def destroy(self) -> bool:
        """Delete the stream, its events and the groups of its sinks; say if there was one.

        Readers and sinks that are open are told when it begins again.

        Raises:
            StoreUnavailable, NotRunning: As for `add()`.
        """
        keys = (self.stored.events, self.stored.meta)
        found = await self._access.link.execute("UNLINK", *keys)
        return bool(found)

    async def fetch_length(self) -> int:
        """Fetch how many events it holds.

        Raises:
            StoreUnavailable, StoreFault, NotRunning: As for `add()`.
        """
        length: int = await self._access.link.execute("XLEN", self.stored.events)
        return length

    # --- reading ------------------------------------------------------------------------------

    def reader(
        self,
        start: Start = "oldest",
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
        reader = Reader(
            self._access, topics=topics, pattern=pattern, where=where, buffer_max=buffer_max
        )
        reader.begin_with(self.stored, start)
        return reader

    def sink(
        self,
        name: str,
        start: Start = "oldest",
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
        sink = Sink(
            self._access,
            name,
            no_ack=no_ack,
            grace_s=grace_s,
            deliveries_max=deliveries_max,
            buffer_max=buffer_max,
            topics=topics,
            pattern=pattern,
            where=where,
        )
        sink.begin_with(self.stored, start)
        return sink


def _limits(
    length_max: object, ttl_s: object, is_sliding: object
) -> tuple[int | None, float | None]:
    length = None if length_max is None else checks.count("length_max", length_max, 1, LENGTH_MAX)
    life_s = checks.seconds("ttl_s", ttl_s, TTL_MIN_S, TTL_MAX_S, or_none=True)
    if checks.flag("is_sliding", is_sliding) and life_s is None:
        raise InvalidOption(option="is_sliding", value="True", problem="it needs a ttl_s")
    return length, life_s


def make_stream(
    access: Access, name: str, *, length_max: int | None, ttl_s: float | None, is_sliding: bool
) -> Stream:
    """Return a stream of this pool.

    Raises:
        ConfigError, InvalidOption: An argument cannot be used.
    """
    return Stream(
        stored=StoredStream(access.control, name),
        length_max=length_max,
        ttl_s=ttl_s,
        is_sliding=is_sliding,
        access=access,
    )
