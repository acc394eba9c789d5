"""A sink: consumers that share the events of streams, each event for one, until acknowledged.

                given (XREADGROUP >)                handed out       acknowledged: gone
    event in stream -------> held by one consumer ------------> in hand --------------> (XACK)
                         ^      |                                | |
         taken, as there |      | unseen: it leaves,             | | not within the grace
         is room         |      v or it waits too long           | v
                         +-- released <--------------------------|-+--> parked, after too many
                         |                                       |      hand-outs
                         +-- doubtful, one at a time <-----------+
                                                its holder's lease has ended

A sink is a consumer group on each of its streams, and beside each group the leases of its
consumers, since a group does not know which of them live.  A consumer, on each stream:

    joining --join--> joined --renew every TTL/5--> joined    GONE, or no answer for TTL-margin:
       ^                                              |       drop what is buffered, and join
       +----------------------------------------------+       under the next name, on all
    closed: give back what was not handed out, end the lease

A delivery is a hand-out, and the grace runs from it: the consumer measures that by its own clock,
and gives back what it handed out so long ago; nobody scans for it.  What waits in its buffer for
half a grace it gives back unseen, and holds less ahead from then on.  That an event was handed out
is noted in the store 5 ms later: most are acknowledged before.  So of one whose consumer ended
nobody knows whether it was in hand, or what the consumer died of: it is doubtful.  A consumer takes
one of those at a time, notes it before it hands it out, and takes the next once it is acknowledged
or has not ended its consumer within 50 ms: four times as long for each time that it was in hand
before, and a quarter of the grace at most.  An event that kills is counted each time, and parked in
the end; those that were buffered behind it keep their count.  What else was in hand is counted with
it, once more for each time that it is in hand beside one that kills.

Who writes what: only the server's scripts move an event from one holder to another, one event at a
time, so an event always has exactly one place.  `sink_join` and `sink_renew` write a consumer's own
lease; `sink_mend` ends leases, frees, parks and forgets, by the one consumer that holds the
cleaner's lock; `sink_take` gives what was freed to whoever has room (not to the cleaner: it may be
slow, or die with them); `sink_hand`, `sink_release` and `sink_leave` are a consumer's own.

If a consumer dies after ...
    join, renew        its lease ends; the cleaner finds its name in the group, and nothing to free
    a read, a take     what was given to it is pending under its name: freed when the lease ends
    hand               likewise; it counts as handed out, though nobody may have seen it
    ack                that event is done; the others as before
    mend               each mend is one step: what was freed waits, what was not is pending;
                       the lock ends after one TTL, and the next renewal of another consumer has it
    release            what was given back waits for others, the rest is pending
    leave              nothing is left to do

How long a lease lasts is the pool's to say: it is granted, and told, with each renewal.  It ends in
the sink's own time, which stands still while nobody renews (`lib/sink.lua`).

A group that somebody destroys is made again at its cursor: the id up to which all is acknowledged,
noted with each cleaning in the sink's state.  If the cleaner dies, it is older than the truth: some
events are given again, none is passed over.

A late message: a renewal after the lease was ended is answered GONE; a read that was on its way
makes the consumer again, without a lease, and so it is freed and forgotten like any stale one; what
a batch or a take brings for an earlier name of ours is dropped here, as it is being freed there.  A
lost reply leaves events pending that we know nothing of: of a read see `stream_tailer.py`; else we
ask what waits under our name, and give back what was unknown twice.  We also ask every five
renewals: a read or a take of a broken connection may reach the server long after that.  A repeated
one changes nothing: joining renews, acknowledging twice is once, a count is said and not added,
giving back what is not ours any more is not done.  So an event is given at least once, and given
again only if its holder died, lost its lease, or did not acknowledge it in time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from typing import Final, Self

import anyio
import anyio.lowlevel

from pool import checks
from pool.core.ids import member_name, order
from pool.core.lease import Timing
from pool.errors import InvalidOption, NotRunning, PoolError, StoreUnavailable
from pool.events import (
    SinkBeganAnew,
    SinkLapsed,
    SinkMissed,
    SinkRemade,
    StreamsReachable,
    StreamsUnreachable,
)
from pool.names import check_stream
from pool.redis.io.system import Group, Reply
from pool.redis.reads import Portion
from pool.runtime.session import CLOSE_BUDGET_S, Session
from pool.runtime.stream_tailer import Brought, StreamTailer
from pool.runtime.supervisor import Apart
from pool.streams.buffer import BufferedReader, EventBuffer, EventSource, check_may_read, stored_of
from pool.streams.commands import (
    BATCH_MAX,
    ConsumerLease,
    Given,
    Joined,
    Mended,
    Parked,
    StoredSink,
    StoredStream,
    Taken,
    parked_of,
)
from pool.streams.event import FIRST, Filter, StartAt, StreamEvent, check_id, event_of, position_of
from pool.streams.sink_calls import Acks, Item, SinkCalls, SinkTold, Source, size_of
from pool.streams.sink_hands import Hands

SINK_BUFFER_MAX: Final = 100
LOOK_RENEWALS: Final = 5  # from one look at what waits under a consumer's name to the next
GRACE_S: Final = 30.0
GRACE_MIN_S: Final = 0.1
GRACE_MAX_S: Final = 7 * 86_400.0
DELIVERIES_MAX: Final = 10
DELIVERIES_HIGH: Final = 10_000
PARKED_FETCHED_MAX: Final = 10_000


class Sink(BufferedReader):
    """A named consumer group: `async with stream.sink("billing") as sink`.

    Iterating gives this consumer its share of the events; each must be acknowledged with `ack()`.
    An event is given at least once: again, to whoever has room, when its consumer has died or left,
    or has not acknowledged it within `grace_s` of handing it out; after `deliveries_max` hand-outs
    it is parked.  With `no_ack` it is given at most once, and is gone when it was read.
    """

    def __init__(
        self,
        session: Session,
        name: str,
        first: tuple[StoredStream, StartAt],
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
        self._grace_s = checks.seconds("grace_s", grace_s, GRACE_MIN_S, GRACE_MAX_S)
        self._deliveries_max = checks.count("deliveries_max", deliveries_max, 1, DELIVERIES_HIGH)
        self.name = name
        self._session = session
        self._filter = Filter.of(topics, pattern, where)
        self._is_no_ack = checks.flag("no_ack", no_ack)
        self._first = first
        position_of(first[1])
        self._sources: dict[str, Source] = {}
        self._left: dict[str, Source] = {}  # read no more; what was handed out may be in hand
        self._id = session.ids.next("c")
        self._number = 1
        self._before = ""  # our name before this one, until joined
        self._state = "new"
        self._acks: dict[str, Acks] = {}  # by the stream's name
        self._timing = session.timing  # by the TTL that was granted last
        self._cancel_tick: Callable[[], object] = lambda: None
        tailer: StreamTailer[Source] = StreamTailer(
            name="pool-sink",
            io=session.io,
            url=session.url,
            timing=lambda: self._timing,
            count=1,
            on_batch=self._on_batch,
            on_trouble=self._on_trouble,
            on_back=self._on_back,
            on_end=self._on_end,
            care=Apart(session.supervisor, self._on_failed),
            link=lambda: session.pipeline.link,
        )
        self._tailer = tailer
        self._buffer: EventBuffer[Item, Source] = EventBuffer(
            buffer_max=buffer_max, tailer=tailer, size_of=size_of
        )
        self._is_unreachable = False  # which was told
        self._held: Brought[Source] | None = None  # brought while a take was under way
        self._told = SinkTold(name, session.io.clock, session.emit)
        self._calls = SinkCalls(
            pipeline=session.pipeline,
            told=self._told,
            is_no_ack=self._is_no_ack,
            consumer=lambda: self.consumer,
            on_gone=self._on_gone,
            on_stop=self._stop,
            on_freed=self._look_for_freed,
        )
        self._hands = Hands(
            calls=self._calls,
            buffer=self._buffer,
            buffer_max=self._buffer.buffer_max,
            grace_s=self._grace_s,
            clock=session.io.clock,
            renew_s=lambda: self._timing.renew_s,
            is_open=lambda: self._state == "open",
            is_ours=self._is_ours,
            all=self._all,
            coming=lambda source: {entry_id for entry_id, _ in tailer.under_way(source)},
            read_number=lambda: tailer.read_number,
            streams=lambda: len(self._sources),
        )

    # --- for the program ----------------------------------------------------------------------

    @property
    def consumer(self) -> str:
        """This consumer's name in the groups; another one after its lease was lost."""
        return member_name(self._id, self._number)

    async def add_stream(self, stream: EventSource, start: StartAt = "oldest") -> None:
        """Read this stream too; `start` counts where the sink has no group yet.

        Raises:
            InvalidOption: It is read already, `start` is none, or there are 64 streams, or
                it is of another server or pool.
            StorageFull, StoreUnavailable: As for adding an event.
        """
        self._check_open()
        source = self._source(stored_of(stream, self._session), start)
        consumer = self.consumer
        asked_s, call = self._session.io.clock(), source.of.join(consumer, "", source.start)
        had = self._left.pop(source.stream, None)  # else a tick may leave it behind our join
        try:
            await self._session.pipeline.call(call, repeatable=True)
        except BaseException:
            if had is not None and consumer == self.consumer:
                self._left[source.stream] = had
            raise
        self._sources[source.stream] = source
        self._buffer.fit(len(self._sources))
        if consumer == self.consumer:  # else the next tick joins
            self._joined(source, asked_s)
            self._follow()

    async def remove_stream(self, stream: EventSource) -> None:
        """Read this stream no more; what is buffered of it goes to others at once.  Twice is fine.

        What was handed out and not acknowledged can still be, within its grace.
        """
        self._session.check_loop()
        source = self._sources.pop(stored_of(stream, self._session).events, None)
        if source is None:
            return
        self._left[source.stream] = source
        self._follow()
        await self._calls.finish(
            self._calls.returns(self._buffer.drop(lambda item: item.source is not source))
        )
        self._buffer.fit(len(self._sources))

    async def ack(self, event: StreamEvent) -> bool:
        """Say that an event is done; False if it does not wait for that any more.

        That is so if it was acknowledged already, by others or by an earlier try of which the
        answer was lost; if it was parked; if the stream or its group was lost, or somebody deleted
        the consumer that had it. One that was given to another consumer meanwhile, after the grace
        say, is acknowledged by this all the same, and that is True.

        Only what was acknowledged is never given again.  Calls that wait at the same time share a
        round trip.

        Raises:
            StoreUnavailable: It may or may not be acknowledged; ack it again.
            InvalidOption: The sink has no acknowledgements.
            NotRunning: The sink is not open.
        """
        self._check_acks()
        event = _checked(event)
        return await self._acks_of(event.stream).ack(self._loop, event)

    async def ack_many(self, events: Sequence[StreamEvent]) -> int:
        """Say that these events are done, in one round trip; return how many were not already.

        Errors as for `ack()`; of several streams some may be acknowledged when one fails.
        """
        self._check_acks()
        by_stream: dict[str, list[StreamEvent]] = {}
        for given in checks.several("events", events, "events"):
            event = _checked(given)
            by_stream.setdefault(event.stream, []).append(event)
        done = 0
        for name, found in by_stream.items():
            done += await self._acks_of(name).ack_many(self._loop, found)
        return done

    def _acks_of(self, name: str) -> Acks:
        acks = self._acks.get(name)
        if acks is None:
            stored = self._stored(StoredStream(self._session.control, name))
            done = partial(self._hands.on_acknowledged, stored.stream.events)
            op_timeout_s = self._session.settings.op_timeout_s
            acks = Acks(self._session.pipeline, stored, lambda: self.consumer, op_timeout_s, done)
            self._acks[name] = acks
        return acks

    async def fetch_parked(self, count: int = 100) -> list[Parked]:
        """Fetch what the sink gave up of the streams that it reads, the oldest first.

        To try one again, add its event to a stream; that reaches all sinks of that stream.

        Raises:
            StoreUnavailable, NotRunning: As for `ack()`.
        """
        self._check_open()
        count = checks.count("count", count, 1, PARKED_FETCHED_MAX)
        found: list[Parked] = []
        for source in list(self._sources.values()):
            found += await self._fetch_parked(source, count)
        return sorted(found, key=lambda parked: order(parked.entry))[:count]

    async def _fetch_parked(self, source: Source, count: int) -> list[Parked]:
        """Fetch them piece by piece: they may be large, and others' calls go between."""
        pipeline, portion = self._session.pipeline, Portion()
        found: list[Parked] = []
        first = "-"
        while True:
            wanted = portion.of(count - len(found))
            command = ("XRANGE", source.of.parked, first, "+", "COUNT", wanted)
            reply = await pipeline.execute(*command)
            portion.came(len(reply), sum(len(text) for _, flat in reply for text in flat))
            each = (parked_of(entry_id, flat) for entry_id, flat in reply)
            found += [parked for parked in each if parked is not None]  # else it is foreign
            if len(found) >= count or len(reply) < wanted:
                return found
            first = f"({reply[-1][0]}"

    async def drop_parked(self, *parked: Parked) -> int:
        """Forget parked events; return how many were still there.  Errors as for `ack()`.

        A server that lost data may park another event under the same entry: that one stays.
        """
        self._check_open()
        by_stream: dict[str, list[Parked]] = {}
        for given in parked:
            each = checks.instance("parked", given, Parked)
            check_id("parked", each.entry)
            by_stream.setdefault(_checked(each.event).stream, []).append(each)
        dropped = 0
        for name, several in by_stream.items():
            stored = self._stored(StoredStream(self._session.control, name))
            dropped += await self._session.pipeline.call(stored.drop(several))
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
            if not len(self._buffer):
                self._hands.hold(
                    2 * self._buffer.buffer_max
                )  # it is done with what it held, and waits
            item = await self._buffer.next()
            self._look_for_freed()
            if not self._is_ours(item) or not await self._hands.hand_out(item):
                continue
            if self._filter.takes(item.event):
                return item.event
            self._acknowledge(item.source, [item])

    async def __aenter__(self) -> Self:
        self._session.check_loop()
        if self._state != "new":
            raise NotRunning(state=self._state)
        self._state = "opening"
        source = self._source(*self._first)
        self._sources[source.stream] = source
        self._buffer.fit(1)
        asked_s = self._session.io.clock()
        self._loop = self._session.io.loop(self._session.supervisor)
        self._hands.begin(self._loop)
        try:
            call = source.of.join(self.consumer, "", source.start)
            await self._session.pipeline.call(call, repeatable=True)
        except BaseException:
            self._state = "closed"
            raise
        self._state = "open"
        self._joined(source, asked_s)
        self._follow()
        self._tailer.start()
        self._arm()
        return self

    async def aclose(self) -> None:
        """Read no more; what was not handed out goes to others at once.  Twice is fine.

        What was handed out and not acknowledged goes to others with the next cleaning.
        """
        self._session.check_loop()
        was_open, self._state = self._state == "open", "closed"
        if not was_open:
            return
        self._cancel_tick()
        with anyio.CancelScope(shield=True):
            await self._tailer.aclose(CLOSE_BUDGET_S)
            unseen = self._buffer.drop()
            self._buffer.end()
            await self._calls.finish(self._hands.goodbyes(unseen))
            self._loop.close()
            await anyio.lowlevel.checkpoint()  # timers that were taken back end here

    def _stored(self, stream: StoredStream) -> StoredSink:
        named_ms = round(1000 * (self._session.settings.lease_ttl_s or 0))
        return StoredSink(
            stream=stream,
            name=self.name,
            named_ms=named_ms,
            deliveries_max=self._deliveries_max,
        )

    def _source(self, stored: StoredStream, start: StartAt) -> Source:
        position = position_of(start)
        check_may_read(stored, self._sources)
        # One that was read before goes on where it was: what is in hand is not given again.
        return self._left.get(stored.events) or Source(
            stream=stored.events, position=FIRST, of=self._stored(stored), start=position
        )

    def _all(self) -> list[Source]:
        return [*self._sources.values(), *self._left.values()]

    def _check_acks(self) -> None:
        self._check_open()
        if self._is_no_ack:
            raise InvalidOption(
                option="no_ack", value="True", problem="events of this sink need no acknowledgement"
            )

    # --- the lease ----------------------------------------------------------------------------

    def _is_good(self, source: Source, now_s: float) -> bool:
        """Say whether what we hold of it is surely ours.  Asks the clock: a tick may come late."""
        good_s = self._timing.ttl_s - self._timing.margin_s
        return source.joined_as == self.consumer and now_s - source.renewed_s < good_s

    def _is_ours(self, item: Item) -> bool:
        if item.consumer == self.consumer and not self._is_good(
            item.source, self._session.io.clock()
        ):
            self._lapse()
        return item.consumer == self.consumer

    def _arm(self) -> None:
        self._cancel_tick = self._loop.later(self._timing.renew_s, self._tick)

    def _tick(self) -> None:
        if self._state != "open":
            return
        self._arm()
        now_s, renew_s = self._session.io.clock(), self._timing.renew_s
        if any(each.joined_as and not self._is_good(each, now_s) for each in self._all()):
            self._lapse()
        self._hands.pace()
        for source in self._all():
            if source.stream in self._left and not source.hands:
                del self._left[source.stream]
                self._calls.send(source.of.leave(self.consumer), lambda _: None)
            elif source.joined_as:
                self._renew(source)
                if source.is_doubted or now_s - source.looked_s >= LOOK_RENEWALS * renew_s:
                    self._hands.look_for_unknown(source)
            else:
                self._join(source)
        self._hands.note_later()
        self._hands.watch()

    def _lapse(self) -> None:
        """Our lease may have ended: hold nothing, and join under the next name."""
        self._before = self.consumer
        self._number += 1
        self._left.clear()
        for source in self._sources.values():
            source.forget()
        self._calls.trial = None
        self._follow()
        self._buffer.forget_batch()
        dropped = self._buffer.drop()
        lapsed = SinkLapsed(sink=self.name, consumer=self._before, dropped=len(dropped))
        self._session.emit(lapsed)

    def _on_gone(self) -> None:
        self._lapse()
        for source in self._sources.values():
            self._join(source)

    def _follow(self) -> None:
        self._tailer.group = Group(self.name, self.consumer, self._is_no_ack)
        for source in self._sources.values():
            source.is_doubted = True  # a read that is ended here may have given something to us
        self._tailer.follow([source for source in self._sources.values() if source.joined_as])

    def _join(self, source: Source) -> None:
        answer = partial(self._on_joined, source, self.consumer, self._session.io.clock())
        self._calls.send(source.of.join(self.consumer, self._before, source.start), answer, source)

    def _on_joined(self, source: Source, consumer: str, asked_s: float, found: Reply) -> None:
        if found is Joined.MADE:
            self._session.emit(SinkRemade(sink=self.name, stream=source.name))
        elif found is Joined.ENDED:
            self._session.emit(SinkBeganAnew(sink=self.name, stream=source.name))
        if consumer == self.consumer and self._sources.get(source.stream) is source:
            self._joined(source, asked_s)
            self._follow()

    def _joined(self, source: Source, asked_s: float) -> None:
        source.start = FIRST  # whatever makes the group again must not pass anything over
        source.joined_as, source.renewed_s = self.consumer, asked_s
        self._renew(source)

    def _renew(self, source: Source) -> None:
        answer = partial(self._on_renewed, source, self.consumer, self._session.io.clock())
        self._calls.send(source.of.renew(self.consumer), answer, source)

    def _on_renewed(self, source: Source, consumer: str, asked_s: float, reply: Reply) -> None:
        if consumer != self.consumer or source.joined_as != consumer:
            return
        told: ConsumerLease = reply
        source.renewed_s = max(source.renewed_s, asked_s)
        if told.ttl_ms != self._timing.ttl_ms:
            self._timing = Timing(told.ttl_ms / 1000)
            self._cancel_tick()
            self._arm()
        if told.released < 0:
            self._stop(source)
            self._join(source)
            return
        source.has_released, source.has_doubtful = told.released > 0, told.doubtful > 0
        if told.is_holder:
            self._mend(source)
        self._look_for_freed()

    def _stop(self, source: Source) -> None:
        """Its group is not there, or its key is foreign: the others go on without it."""
        source.joined_as = ""
        self._follow()

    # --- cleaning, and taking what was freed --------------------------------------------------

    def _mend(self, source: Source) -> None:
        if not source.is_mending:
            source.is_mending = True
            answer = partial(self._on_mended, source, self.consumer)
            call = source.of.mend(self.consumer, source.told, source.parks_told, source.born)
            self._calls.send(call, answer, source)

    def _on_mended(self, source: Source, consumer: str, reply: Reply) -> None:
        source.is_mending = False
        did: Mended = reply
        if did.freed < 0:
            return
        if did.freed or did.forgotten:
            self._told.freed(source, did.freed, did.forgotten)
        source.trouble = ()
        is_same = did.born == source.born
        missed = did.missed - max(did.told, source.told if is_same else 0)
        parks = did.parks - max(did.parks_told, source.parks_told if is_same else 0)
        if missed > 0:
            self._session.emit(SinkMissed(sink=self.name, stream=source.name, events=missed))
        if parks > 0:
            self._told.parked(source, parks)
        source.told, source.parks_told, source.born = did.missed, did.parks, did.born
        if consumer != self.consumer:
            return
        if did.is_more or missed > 0 or parks > 0:  # the next one confirms what was told
            self._mend(source)
        source.has_doubtful = source.has_doubtful or did.freed > 0
        self._look_for_freed()

    def _look_for_freed(self) -> None:
        for source in self._sources.values():
            room, may_try = self._buffer.room, source.has_doubtful and self._calls.trial is None
            is_asked = (source.has_released or may_try) and room and source.joined_as
            if not is_asked or source.is_taking:
                continue
            source.is_taking = True
            if may_try:
                self._calls.trial = source
            count = self._tailer.portion.of(min(room, BATCH_MAX))  # by the node's own pipeline
            call = source.of.take(self.consumer, count, may_try=may_try)
            link = self._session.pipeline.link
            answer = partial(self._on_taken, source, self.consumer, count, may_try, link)
            self._calls.send(call, answer, source, self._take_held)

    def _on_taken(
        self,
        source: Source,
        consumer: str,
        count: int,
        may_try: bool,
        link: object | None,
        reply: Reply,
    ) -> None:
        if consumer != self.consumer:
            self._take_held()
            return  # they are pending under a name that is being cleaned
        source.is_taking = False
        got: Taken = reply
        size = sum(len(text) for each in got.events for text in each.fields.values())
        self._tailer.portion.came(len(got.events), size)
        source.has_released = 0 < got.released == count - got.doubtful
        if may_try:
            source.has_doubtful = got.doubtful > 0
        behind = order(source.position)
        source.claimed.update(
            (each.id, each.fields.get("m", b"")) for each in got.events if order(each.id) > behind
        )
        items = self._items(source, got.events, link)
        if may_try:
            self._calls.trial = next((item for item in items if item.is_doubtful), None)
        self._buffer.push(items, is_first=True)  # the oldest; nor shall they wait behind our own
        self._take_held()
        self._look_for_freed()

    # --- what the tailer brings -----------------------------------------------------------------

    def _on_batch(self, batch: Brought[Source]) -> None:
        if batch.group is None or batch.group.consumer != self.consumer:
            self._tailer.taken(batch)  # of an earlier name: it is being freed for others
            return
        if any(source.is_taking for source, _ in batch.told):
            # What is taken is pending under our name at once, so a read of that may come first: it
            # knows neither how often an event was handed out nor that it is doubtful.
            self._held = batch
            return
        items: list[Item] = []
        for source, entries in batch.told:
            new = [
                Given(id_, got, 0, False)
                for id_, got in entries
                if (id_, got.get("m", b"")) not in source.claimed
            ]
            behind = order(entries[-1][0])
            source.claimed = {name for name in source.claimed if order(name[0]) > behind}
            found = self._items(source, new, batch.link)
            if self._sources.get(source.stream) is source:
                items.extend(found)
            else:
                self._calls.release(found)
        self._buffer.push(items, batch)

    def _take_held(self) -> None:
        """Take what the tailer has brought while a take was under way, if that is still wanted."""
        held, self._held = self._held, None
        if held is not None and self._tailer.waits_for(held):
            self._on_batch(held)

    def _items(self, source: Source, got: Iterable[Given], link: object | None) -> list[Item]:
        items: list[Item] = []
        unwanted: list[Item] = []
        now_s = self._session.io.clock()
        for each in got:
            event = event_of(
                source.name, each.id, each.fields, deliveries=each.times + 1, link=link
            )
            item = Item(source, self.consumer, now_s, event, each.is_doubtful)
            (items if self._filter.takes_topic(event.topic) else unwanted).append(item)
        self._acknowledge(source, unwanted)
        return items

    def _acknowledge(self, source: Source, items: Sequence[Item]) -> None:
        """Have done with what nobody here wants.  If that fails it comes again, to the same end."""
        if not items or self._is_no_ack:
            return
        for item in items:
            item.handed_s = item.handed_s or self._session.io.clock()
            source.hands[item.event.id] = item
            source.fresh.pop(item.event.id, None)
        self._acks_of(source.name).send([item.event for item in items], self._on_unwanted)

    def _on_unwanted(self, reply: Reply) -> None:
        if isinstance(reply, PoolError):
            self._calls.refused(reply)

    def _on_trouble(self, error: PoolError, _: int) -> None:
        if not isinstance(error, StoreUnavailable):
            for source in self._sources.values():
                if source.joined_as:
                    self._renew(source)  # which tells of which of them it is
        is_group = str(getattr(error, "problem", "")).startswith("NOGROUP")
        if not is_group and not self._is_unreachable:
            self._is_unreachable = True
            pool = self._session.control.pool
            told = StreamsUnreachable(pool=pool, reader=self.name, problem=str(error))
            self._session.emit(told)

    def _on_back(self, failures: int) -> None:
        for source in self._all():
            source.is_doubted = True  # a server that went back may have undone what we acknowledged
        if self._is_unreachable:
            self._is_unreachable = False
            pool = self._session.control.pool
            self._session.emit(StreamsReachable(pool=pool, reader=self.name, failures=failures))

    def _on_end(self, error: BaseException | None) -> None:
        """Reading has ended for good: unless we closed it, with the stream's connection or node."""
        if self._state == "open":
            self._cancel_tick()
            if error is None:
                self._buffer.drop()
            self._buffer.end(NotRunning(state="closed"))


def _checked(given: object) -> StreamEvent:
    event = checks.instance("event", given, StreamEvent)
    check_id("event", event.id)
    check_stream(event.stream)
    return event
