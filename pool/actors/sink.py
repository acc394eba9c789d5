"""A sink: consumers that share the events of streams, each event for one, until acknowledged.

                    given (XREADGROUP >)                     acknowledged: gone
    event in stream ----------------------> held by one ----------------------------> (XACK)
                              ^              |  |   |
                 taken by who |   given back |  |   | its holder is stale, or nobody acknowledges
                 has room     |   unseen     v  v   v it within the grace: freed by the cleaner
                              +--------- released ---+--- after too many deliveries: parked

A sink is a consumer group on each of its streams, plus leases on server time, since a group does
not know which of its consumers live.  A consumer:

    joining --join--> joined --renew every TTL/5--> joined        GONE, or no answer for TTL-margin:
       ^                                              |           drop what is buffered, and join
       +----------------------------------------------+           under the next number
    closed: give back what was not handed out, end the lease

Who writes what: only the server's scripts move an event from one holder to another, one event at a
time, so an event always has exactly one place.  `sink_join` and `sink_renew` write a consumer's own
lease; `sink_mend` ends leases, frees, parks and forgets, by the one consumer that holds the
cleaner's lock; `sink_take` gives released events to whoever has room (not to the cleaner: it may
be slow, or die with them); `sink_release` and `sink_leave` are a consumer's goodbye.

If a consumer dies after ...
    join, renew        its lease ends; the cleaner finds its name in the groups, and nothing to free
    a read, a take     what was given to it is pending under its name: freed when the lease ends
    ack                that event is done; the others as before
    mend               each mend is one step: what was freed is released, what was not is pending;
                       the lock ends after one TTL, and the next renewal of another consumer has it
    release            what was given back is released, the rest is pending
    leave              nothing is left to do

How long a lease lasts is the pool's to say: it is granted, and told, with each renewal.  Should the
answer that tells of a shorter one be lost, others may have our events before we know, as when an
event is not acknowledged in time.

A group that somebody destroys is made again at its cursor: the id up to which all is acknowledged,
noted with each cleaning in the sink's state.  If the cleaner dies, it is older than the truth: some
events are given again, none is passed over.

A late message: a renewal after the lease was ended is answered GONE; a read that was on its way
makes the consumer again, without a lease, and so it is freed and forgotten like any stale one; what
a batch or a take brings for an earlier name of ours is dropped here, as it is being freed there.  A
lost reply leaves events pending that we know nothing of: see `tail.py`.  A repeated one changes
nothing: joining renews, acknowledging twice is once, giving back what is not ours any more is not
done.  So an event is given at least once, and given again only if its holder died, lost its lease,
or did not acknowledge it in time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

import anyio
import anyio.lowlevel
import attrs

from pool import checks
from pool.actors.access import CLOSE_BUDGET_S, Access, StreamsReachable, StreamsUnreachable
from pool.actors.feed import STREAMS_MAX, Feed, stored_of
from pool.actors.sink_events import (
    SinkLapsed,
    SinkMended,
    SinkMissed,
    SinkParked,
    SinkRemade,
    SinkTroubled,
)
from pool.actors.supervisor import Apart
from pool.actors.tail import Batch, Fields, Reading, Tail
from pool.errors import Gone, InvalidOption, NotRunning, PoolError, StoreUnavailable
from pool.model.ids import incarnation
from pool.model.names import check_stream
from pool.model.stream import (
    FIRST,
    Filter,
    Start,
    StreamEvent,
    check_id,
    event_of,
    order,
    position_of,
)
from pool.model.timing import Timing
from pool.store.scripts import Command
from pool.store.seam import Group, Reply
from pool.store.stream import (
    BATCH_MAX,
    Lease,
    Mended,
    Parked,
    StoredSink,
    StoredStream,
    parked_of,
)

SINK_BUFFER_MAX: Final = 100
GRACE_S: Final = 30.0
GRACE_MIN_S: Final = 0.1
GRACE_MAX_S: Final = 7 * 86_400.0
DELIVERIES_MAX: Final = 10
DELIVERIES_HIGH: Final = 10_000
PARKED_FETCHED_MAX: Final = 10_000


@attrs.define(eq=False, kw_only=True)
class _Source(Reading):
    """One of the sink's streams; its position is the last entry that a read gave to us."""

    of: StoredStream
    start: str  # where the group begins if it has to be made
    claimed: set[str] = attrs.field(factory=set)  # taken, and behind the position
    # What the tail brought while a take was under way: what was taken is pending under our name,
    # so a read of our own pending entries may bring it before the answer to the take does.
    brought: set[str] = attrs.field(factory=set)
    is_mending: bool = False
    is_taking: bool = False
    has_released: bool = False


@attrs.frozen(eq=False)
class _Item:
    source: _Source
    consumer: str
    got_s: float
    event: StreamEvent


class Sink:
    """A named consumer group: `async with stream.sink("billing") as sink`.

    Iterating gives this consumer its share of the events; each must be acknowledged with `ack()`.
    An event is given at least once: again, to whoever has room, when its consumer has died or left,
    or has not acknowledged it within `grace_s`; after `deliveries_max` deliveries it is parked.
    With `no_ack` it is given at most once, and is gone when it was read.
    """

    def __init__(
        self,
        access: Access,
        name: str,
        *,
        no_ack: bool,
        grace_s: float,
        deliveries_max: int,
        buffer_max: int,
        topics: Iterable[str] | None,
        pattern: str | None,
        where: Callable[[StreamEvent], object] | None,
    ) -> None:
        check_stream(name, "sink")
        grace_s = checks.seconds("grace_s", grace_s, GRACE_MIN_S, GRACE_MAX_S)
        deliveries_max = checks.count("deliveries_max", deliveries_max, 1, DELIVERIES_HIGH)
        self.name = name
        self._access = access
        self._filter = Filter.of(topics, pattern, where)
        self._is_no_ack = checks.flag("no_ack", no_ack)
        self._grace_s = grace_s
        self._stored = StoredSink(
            control=access.control,
            name=name,
            named_ms=round(1000 * (access.settings.lease_ttl_s or 0)),
            grace_ms=round(grace_s * 1000),
            deliveries_max=deliveries_max,
        )
        self._first: list[tuple[StoredStream, Start]] = []
        self._left: dict[str, StoredStream] = {}  # streams read no more
        self._sources: dict[str, _Source] = {}
        self._id = access.ids.next("c")
        self._number = 1
        self._before = ""  # our name before this one, until joined
        self._state = "new"
        self._is_joined = False
        self._asked_s = 0.0  # when we asked for what was granted last
        self._timing = access.timing  # by the TTL of that
        self._cancel_tick: Callable[[], object] = lambda: None
        tail: Tail[_Source] = Tail(
            name="pool-sink",
            seam=access.seam,
            url=access.url,
            timing=lambda: self._timing,
            count=1,
            on_batch=self._on_batch,
            on_trouble=self._on_trouble,
            on_back=self._on_back,
            care=Apart(access.supervisor, self._on_failed),
        )
        self._tail = tail
        self._feed: Feed[_Item, _Source] = Feed(buffer_max=buffer_max, tail=tail)

    # --- for the program ----------------------------------------------------------------------

    @property
    def consumer(self) -> str:
        """This consumer's name in the groups; another one after its lease was lost."""
        return incarnation(self._id, self._number)

    async def add_stream(self, stream: Any, start: Start = "oldest") -> None:
        """Read this stream too; `start` counts where the sink has no group yet.

        Raises:
            InvalidOption: It is read already, `start` is none, or there are 64 streams.
            StorageFull, StoreUnavailable: As for adding an event.
        """
        self._check_open()
        source = self._source(stored_of(stream), start)
        consumer = self.consumer
        call = self._stored.join(consumer, "", [(source.of, source.start)])
        await self._access.link.call(call, repeatable=True)
        source.start = FIRST
        self._sources[source.stream] = source
        self._feed.fit(len(self._sources))
        if self._is_joined:
            self._tail.follow(list(self._sources.values()))
            self._renew()

    async def remove_stream(self, stream: Any) -> None:
        """Read this stream no more; what is buffered of it goes to others at once.  Twice is fine.

        What was handed out and not acknowledged can still be, within its grace.
        """
        self._access.check_loop()
        source = self._sources.pop(stored_of(stream).events, None)
        if source is None:
            return
        self._left[source.stream] = source.of
        self._tail.follow(list(self._sources.values()) if self._is_joined else [])
        await self._give_back(self._feed.drop(lambda item: item.source is not source))
        self._feed.fit(len(self._sources))

    async def ack(self, event: StreamEvent) -> bool:
        """Say that an event is done; False if it was already, by others or by an earlier try.

        Only what was acknowledged is never given again.

        Raises:
            StoreUnavailable: It may or may not be acknowledged; ack it again.
            InvalidOption: The sink has no acknowledgements.
            NotRunning: The sink is not open.
        """
        return await self.ack_many([event]) == 1

    async def ack_many(self, events: Sequence[StreamEvent]) -> int:
        """Say that these events are done, in one round trip; return how many were not already.

        Errors as for `ack()`; of several streams some may be acknowledged when one fails.
        """
        self._check_open()
        if self._is_no_ack:
            raise InvalidOption(
                option="no_ack", value="True", problem="events of this sink need no acknowledgement"
            )
        by_stream: dict[str, list[str]] = {}
        for given in checks.several("events", events, "events"):
            event = _checked(given)
            by_stream.setdefault(event.stream, []).append(event.id)
        done = 0
        for name, ids in by_stream.items():
            stored = StoredStream(self._access.control, name)
            done += await self._access.link.execute(*self._stored.ack(stored, ids))
        return done

    async def fetch_parked(self, count: int = 100) -> list[Parked]:
        """Fetch what the sink gave up, the oldest first, from whichever stream and consumer.

        To try one again, add its event to a stream; that reaches all sinks of that stream.

        Raises:
            StoreUnavailable, NotRunning: As for `ack()`.
        """
        self._check_open()
        count = checks.count("count", count, 1, PARKED_FETCHED_MAX)
        command = ("XRANGE", self._stored.parked, "-", "+", "COUNT", count)
        reply = await self._access.link.execute(*command)
        found = (parked_of(entry_id, flat) for entry_id, flat in reply)
        return [each for each in found if each is not None]  # else it is foreign

    async def drop_parked(self, *parked: Parked) -> int:
        """Forget parked events; return how many were still there.  Errors as for `ack()`."""
        self._check_open()
        if not parked:
            return 0
        entries = [checks.instance("parked", each, Parked).entry for each in parked]
        for entry in entries:
            check_id("parked", entry)
        dropped: int = await self._access.link.execute("XDEL", self._stored.parked, *entries)
        return dropped

    def __aiter__(self) -> AsyncIterator[StreamEvent]:
        return self

    async def __anext__(self) -> StreamEvent:
        """Return this consumer's next event.

        What the user's own `where` raises comes out here; that event stays unacknowledged, so it
        is given again after the grace, and parked in the end.
        """
        self._check_open(may_be_closed=True)
        while True:
            item = await self._feed.next()
            self._look_for_released()
            if not self._is_ours(item):
                continue
            if self._filter.takes(item.event):
                return item.event
            self._acknowledge(item.source, [item.event.id])

    async def __aenter__(self) -> Self:
        self._access.check_loop()
        if self._state != "new":
            raise NotRunning(state=self._state)
        self._state = "opening"
        for stored, start in self._first:
            source = self._source(stored, start)
            self._sources[source.stream] = source
        self._feed.fit(len(self._sources))
        asked_s = self._access.seam.clock()
        call = self._join_call()
        self._loop = self._access.seam.loop(self._access.supervisor)
        try:
            await self._access.link.call(call, repeatable=True)
        except BaseException:
            self._state = "closed"
            raise
        self._state = "open"
        self._tail.start()
        self._joined(self.consumer, asked_s)
        self._arm()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Read no more; what was not handed out goes to others at once.  Twice is fine.

        What was handed out and not acknowledged goes to others with the next cleaning.
        """
        self._access.check_loop()
        was_open, self._state = self._state == "open", "closed"
        if not was_open:
            return
        self._cancel_tick()
        with anyio.CancelScope(shield=True):
            await self._tail.aclose(CLOSE_BUDGET_S)
            unseen = self._feed.drop()
            self._feed.end()
            await self._give_back(unseen)
            streams = [*(source.of for source in self._sources.values()), *self._left.values()]
            await self._try(self._stored.leave(self.consumer, streams))
            self._loop.close()
            await anyio.lowlevel.checkpoint()  # timers that were taken back end here

    def begin_with(self, stored: StoredStream, start: Start) -> None:
        """Say what to read when it is entered."""
        position_of(start)
        self._first.append((stored, start))

    def _source(self, stored: StoredStream, start: Start) -> _Source:
        position = position_of(start)
        if stored.events in self._sources or len(self._sources) >= STREAMS_MAX:
            is_read = stored.events in self._sources
            problem = "it is read already" if is_read else "too many streams"
            raise InvalidOption(option="stream", value=stored.name, problem=problem)
        self._left.pop(stored.events, None)
        return _Source(stream=stored.events, position=FIRST, of=stored, start=position)

    def _check_open(self, *, may_be_closed: bool = False) -> None:
        self._access.check_loop()
        if self._state != "open" and not (may_be_closed and self._state == "closed"):
            raise NotRunning(state=self._state)

    # --- the lease ----------------------------------------------------------------------------

    def _is_good(self, now_s: float) -> bool:
        """Say whether what we hold is surely ours.  Asks the clock: a tick may come late."""
        good_s = self._timing.ttl_s - self._timing.margin_s
        return self._is_joined and now_s - self._asked_s < good_s

    def _is_ours(self, item: _Item) -> bool:
        now_s = self._access.seam.clock()
        if self._is_joined and not self._is_good(now_s):
            self._lapse()
        held_s = now_s - item.got_s
        # Held for so long, others may have it by now.
        return item.consumer == self.consumer and (
            self._is_no_ack or held_s < self._grace_s - min(self._grace_s / 4, 1.0)
        )

    def _arm(self) -> None:
        self._cancel_tick = self._loop.later(self._timing.renew_s, self._tick)

    def _tick(self) -> None:
        if self._state != "open":
            return
        self._arm()
        if self._is_joined and not self._is_good(self._access.seam.clock()):
            self._lapse()
        if self._is_joined:
            self._renew()
        else:
            self._join()

    def _lapse(self) -> None:
        """Our lease may have ended: hold nothing, and join under the next name."""
        lapsed, self._is_joined = self.consumer, False
        self._number += 1
        self._before = lapsed
        self._tail.follow([])
        self._feed.forget_batch()
        dropped = self._feed.drop()
        for source in self._sources.values():
            source.claimed.clear()
            source.brought.clear()
            source.is_mending = source.is_taking = source.has_released = False
        self._access.emit(SinkLapsed(sink=self.name, consumer=lapsed, dropped=len(dropped)))

    def _join_call(self) -> Any:
        starts = [(source.of, source.start) for source in self._sources.values()]
        return self._stored.join(self.consumer, self._before, starts)

    def _join(self) -> None:
        asked_s, consumer = self._access.seam.clock(), self.consumer
        sources = list(self._sources.values())
        self._send(self._join_call(), partial(self._on_joined, consumer, asked_s, sources))

    def _on_joined(
        self, consumer: str, asked_s: float, sources: Sequence[_Source], made: Reply
    ) -> None:
        for source, was_made in zip(sources, made, strict=True):
            if was_made:
                self._access.emit(SinkRemade(sink=self.name, stream=source.of.name))
        if consumer == self.consumer:
            self._joined(consumer, asked_s)

    def _joined(self, consumer: str, asked_s: float) -> None:
        for source in self._sources.values():
            source.start = FIRST  # whatever makes the group again must not pass anything over
        self._before = ""
        self._asked_s = max(self._asked_s, asked_s)
        self._tail.group = Group(self.name, consumer, self._is_no_ack)
        if not self._is_joined:
            self._is_joined = True
            self._tail.follow(list(self._sources.values()))
        self._renew()

    def _renew(self) -> None:
        sources = list(self._sources.values())
        call = self._stored.renew(self.consumer, [source.of for source in sources])
        asked_s = self._access.seam.clock()
        self._send(call, partial(self._on_renewed, self.consumer, asked_s, sources))

    def _on_renewed(
        self, consumer: str, asked_s: float, sources: Sequence[_Source], reply: Reply
    ) -> None:
        if consumer != self.consumer or not self._is_joined:
            return
        self._asked_s = max(self._asked_s, asked_s)
        told: Lease = reply
        if told.ttl_ms != self._timing.ttl_ms:
            self._timing = Timing(told.ttl_ms / 1000)
            self._cancel_tick()
            self._arm()
        if -1 in told.waiting:
            self._join()
            return
        for source, released in zip(sources, told.waiting, strict=True):
            source.has_released = released > 0
            if told.is_holder:
                self._mend(source)
        for other in self._stored.others(told.keys, [source.of for source in sources]):
            # Nobody who cleans may read it, and nobody else would clean there.
            self._send(self._stored.mend(consumer, other), partial(self._tell_mended, other.name))
        self._look_for_released()

    # --- cleaning, and taking what was freed --------------------------------------------------

    def _mend(self, source: _Source) -> None:
        if not source.is_mending:
            source.is_mending = True
            call = self._stored.mend(self.consumer, source.of)
            self._send(call, partial(self._on_mended, source, self.consumer), source)

    def _on_mended(self, source: _Source, consumer: str, reply: Reply) -> None:
        source.is_mending = False
        did = self._tell_mended(source.of.name, reply)
        if did.freed < 0 or consumer != self.consumer:
            return
        if did.is_more:
            self._mend(source)
        source.has_released = source.has_released or did.freed > 0
        self._look_for_released()

    def _tell_mended(self, stream: str, reply: Reply) -> Mended:
        did: Mended = reply
        if did.freed < 0:
            return did
        if did.freed or did.forgotten:
            self._access.emit(
                SinkMended(sink=self.name, stream=stream, freed=did.freed, forgotten=did.forgotten)
            )
        if did.parked:
            self._access.emit(SinkParked(sink=self.name, stream=stream, events=did.parked))
        if did.missed:
            self._access.emit(SinkMissed(sink=self.name, stream=stream, events=did.missed))
        return did

    def _look_for_released(self) -> None:
        for source in self._sources.values():
            room = self._feed.room
            if source.has_released and not source.is_taking and room and self._is_joined:
                source.is_taking = True
                source.brought.clear()
                count = min(room, BATCH_MAX)
                call = self._stored.take(self.consumer, source.of, count)
                answer = partial(self._on_taken, source, self.consumer, count)
                self._send(call, answer, source)

    def _on_taken(self, source: _Source, consumer: str, count: int, reply: Reply) -> None:
        if consumer != self.consumer:
            return  # they are pending under a name that is being cleaned
        source.is_taking = False
        got: list[tuple[str, Fields, int]] = reply
        source.has_released = len(got) == count
        behind = order(source.position)
        source.claimed.update(entry_id for entry_id, _, _ in got if order(entry_id) > behind)
        self._feed.push(
            self._items(source, [each for each in got if each[0] not in source.brought])
        )

    # --- what the tail brings -----------------------------------------------------------------

    def _on_batch(self, batch: Batch[_Source]) -> None:
        if batch.group is None or batch.group.consumer != self.consumer:
            self._tail.taken(batch)  # of an earlier name: it is being freed for others
            return
        items: list[_Item] = []
        for source, entries in batch.told:
            new = [(id_, fields, 1) for id_, fields in entries if id_ not in source.claimed]
            behind = order(entries[-1][0])
            source.claimed = {id_ for id_ in source.claimed if order(id_) > behind}
            if source.is_taking:
                source.brought.update(entry_id for entry_id, _, _ in new)
            if self._tail.follows(source):
                items.extend(self._items(source, new))
            else:
                self._release(source, [id_ for id_, _, _ in new])
        self._feed.push(items, batch)

    def _items(self, source: _Source, got: Iterable[tuple[str, Fields, int]]) -> list[_Item]:
        items: list[_Item] = []
        unwanted: list[str] = []
        now_s = self._access.seam.clock()
        for entry_id, fields, deliveries in got:
            event = event_of(source.of.name, entry_id, fields, deliveries=deliveries)
            if self._filter.takes_topic(event.topic):
                items.append(_Item(source, self.consumer, now_s, event))
            else:
                unwanted.append(entry_id)
        self._acknowledge(source, unwanted)
        return items

    def _acknowledge(self, source: _Source, ids: Sequence[str]) -> None:
        """Have done with what nobody here wants.  If that fails it comes again, to the same end."""
        if ids and not self._is_no_ack:
            self._send(self._stored.ack(source.of, ids), lambda _: None)

    def _on_trouble(self, error: PoolError, failures: int) -> None:
        if str(getattr(error, "problem", "")).startswith("NOGROUP"):
            if self._is_joined:
                self._join()
        elif not failures:
            self._access.emit(
                StreamsUnreachable(
                    pool=self._access.control.pool, reader=self.name, problem=str(error)
                )
            )

    def _on_back(self, failures: int) -> None:
        pool = self._access.control.pool
        self._access.emit(StreamsReachable(pool=pool, reader=self.name, failures=failures))

    def _on_failed(self, error: Exception) -> None:
        self._feed.end(error)

    # --- calls --------------------------------------------------------------------------------

    def _send(
        self, call: Command, on_reply: Callable[[Reply], object], source: _Source | None = None
    ) -> None:
        """Send a call in the background; what fails is told, and the next tick tries again."""

        def answer(reply: Reply) -> None:
            if not isinstance(reply, PoolError):
                on_reply(reply)
                return
            if source is not None:
                source.is_mending = source.is_taking = False
            self._refused(reply)

        try:
            self._access.link.send(call, answer)
        except PoolError as error:
            answer(error)

    def _refused(self, error: PoolError) -> None:
        if isinstance(error, Gone):
            if self._is_joined and error.identity == self.consumer:
                self._lapse()
                self._join()
        elif not isinstance(error, StoreUnavailable | NotRunning):
            self._access.emit(SinkTroubled(sink=self.name, problem=str(error)))

    async def _give_back(self, items: Sequence[_Item]) -> None:
        by_source: dict[_Source, list[str]] = {}
        for item in items:
            if item.consumer == self.consumer:
                by_source.setdefault(item.source, []).append(item.event.id)
        calls = [c for source, ids in by_source.items() for c in self._releases(source, ids)]
        for call in calls:
            if not await self._try(call):
                return

    def _release(self, source: _Source, ids: Sequence[str]) -> None:
        for call in self._releases(source, ids):
            self._send(call, lambda _: None)

    def _releases(self, source: _Source, ids: Sequence[str]) -> list[Any]:
        if self._is_no_ack:
            return []
        chunks = [ids[at : at + BATCH_MAX] for at in range(0, len(ids), BATCH_MAX)]
        return [self._stored.release(self.consumer, source.of, chunk) for chunk in chunks]

    async def _try(self, call: Any) -> bool:
        """Do this if it can be done: whoever cleans next does it otherwise."""
        try:
            await self._access.link.call(call, repeatable=True)
        except PoolError as error:
            self._refused(error)
            return False
        return True


def _checked(given: object) -> StreamEvent:
    event = checks.instance("event", given, StreamEvent)
    check_id("event", event.id)
    check_stream(event.stream)
    return event
