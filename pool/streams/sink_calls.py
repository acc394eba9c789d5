"""The calls of one consumer of a sink: acknowledging, giving back, taking, telling.

What a consumer of a sink knows of one of its streams, and of one event that it was given.

What a sink tells of what became of its events.

Acknowledgements of events: what waits together travels together.

    ack(event) --nothing of its stream is under way--> sent at once, alone
         |                                                |
         +--else: waits --------(its reply came)----------+--> all that wait, in one call

So one task that acknowledges waits for nobody, and a hundred that do so at once share a call; there
is no timer.  A call's error is the error of each that was in it: it may be done, or not.

A server that lost data may give the id of a lost event to another one.  It can only lose data while
connections to it break.  So an event that was read before the present connection was made is named
by its mark, too, which costs a look at the event.  All others are named by their ids, in a call
that goes out on this connection or not at all; if it does not, it is made again, with marks.

    is acknowledged ...           the connection breaks ...
    with the id, on its link      before it is sent: again, with the mark.  Later: the outcome is
                                  unknown, and the caller's next try has another link
    with the mark                 it may be repeated on any connection: a second one does nothing

What a consumer of a sink asks in the background, and how it gives back what it holds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import attrs

from pool.errors import Gone, NotRunning, PoolError, StoreUnavailable, again
from pool.events import SinkMended, SinkParked, SinkParksMany, SinkTroubled
from pool.redis.io.system import Loop, Reply, Waiter
from pool.redis.pipeline import Pipeline
from pool.redis.scripts import Command, ScriptCall
from pool.runtime.stream_tailer import Reading
from pool.streams.commands import BATCH_MAX, GivenBack, StoredSink
from pool.streams.event import EventName, StreamEvent, name_of
from pool.streams.foreign import look_for_foreign


@attrs.define(eq=False, kw_only=True)
class Source(Reading):
    """One of the sink's streams; its position is the last entry that a read gave to us."""

    of: StoredSink
    start: str  # where the group begins if it has to be made
    joined_as: str = ""  # the name that has a lease; "" while it is to be got
    renewed_s: float = 0.0  # when we asked for it
    trouble: tuple[str, ...] = ()  # why its calls are refused, and what is foreign: that was told
    claimed: set[EventName] = attrs.field(factory=set)  # taken, and behind the position
    is_mending: bool = False
    is_taking: bool = False
    has_released: bool = False
    has_doubtful: bool = False
    told: int = 0  # missed events that we told of, or others did
    parks_told: int = 0  # parked ones
    born: bytes = b""  # in which life of the stream
    hands: dict[str, Item] = attrs.field(factory=dict)  # handed out, the oldest first
    fresh: dict[str, Item] = attrs.field(factory=dict)  # of those: not noted yet
    is_doubted: bool = False  # something may wait under our name that we do not know
    looked_s: float = 0.0  # when we asked last what waits under our name
    unknown: frozenset[str] = frozenset()  # what the last look has found
    read_number: int = 0  # of the read that might bring it then

    def forget(self) -> None:
        """What we hold is not ours any more."""
        for each in (self.claimed, self.hands, self.fresh):
            each.clear()
        self.is_mending = self.is_taking = self.has_released = self.has_doubtful = False
        self.is_doubted, self.unknown = False, frozenset()
        self.joined_as = ""

    @property
    def name(self) -> str:
        """The stream's."""
        return self.of.stream.name


@attrs.define(eq=False)
class Item:
    source: Source
    consumer: str
    got_s: float
    event: StreamEvent
    is_doubtful: bool = False
    handed_s: float = 0.0


def size_of(item: Item) -> int:
    """Return what an item weighs, in bytes."""
    return len(item.event.payload)


PARKED_FEW: Final = 5  # within ...
PARKED_S: Final = 60.0


@attrs.define(eq=False)
class SinkTold:
    """Tells, and counts what was parked: many within a minute are told as that."""

    sink: str
    clock: Callable[[], float]
    emit: Callable[[Any], object]
    _parked: deque[tuple[float, int]] = attrs.field(init=False, factory=deque)
    _told_many_s: float = attrs.field(init=False, default=float("-inf"))

    def freed(self, source: Source, freed: int, forgotten: int = 0) -> None:
        self.emit(SinkMended(sink=self.sink, stream=source.name, freed=freed, forgotten=forgotten))

    def parked(self, source: Source, events: int) -> None:
        if not events:
            return
        self.emit(SinkParked(sink=self.sink, stream=source.name, events=events))
        now_s = self.clock()
        self._parked.append((now_s, events))
        while self._parked[0][0] < now_s - PARKED_S:
            self._parked.popleft()
        many = sum(count for _, count in self._parked)
        if many > PARKED_FEW and self._told_many_s < now_s - PARKED_S:
            self._told_many_s = now_s
            self.emit(SinkParksMany(sink=self.sink, events=many))

    def troubled(self, source: Source | None, error: PoolError, found: dict[str, str]) -> None:
        """A call was refused; `found` are the foreign keys that it met."""
        stream, key = source.name if source is not None else "", next(iter(found), "")
        self.emit(SinkTroubled(sink=self.sink, stream=stream, key=key, problem=str(error)))


ACKS_MAX: Final = 256  # in one call


OnDone: TypeAlias = Callable[[Sequence[EventName], bool], object]


def link_of(pipeline: Pipeline, events: Iterable[StreamEvent]) -> object | None:
    """Return the present connection if all events were read since it was made, else None."""
    link = None if pipeline.is_of_cluster else pipeline.link
    return link if all(event.link is link for event in events) else None


@attrs.define(eq=False)
class Acks:
    """The acknowledgements of one sink in one stream."""

    pipeline: Pipeline
    of: StoredSink
    consumer: Callable[[], str]
    op_timeout_s: float
    on_done: OnDone  # True: some were not pending, and may have been lost
    _waiting: dict[EventName, tuple[StreamEvent, list[Waiter]]] = attrs.field(
        init=False, factory=dict
    )
    _is_under_way: bool = attrs.field(init=False, default=False)

    async def ack(self, loop: Loop, event: StreamEvent) -> bool:
        """Acknowledge an event; return whether it was not yet.  Cancelling does not take it back.

        Raises:
            StoreUnavailable, NotRunning, and what else its call may be answered.
        """
        waiter = loop.waiter()
        self._waiting.setdefault(name_of(event), (event, []))[1].append(waiter)
        if not self._is_under_way:
            self._send()
        reply = await waiter.wait()
        if isinstance(reply, PoolError):
            raise again(reply)
        return bool(reply)

    async def ack_many(self, loop: Loop, events: Sequence[StreamEvent]) -> int:
        """Acknowledge events; return how many were not yet.  Errors as for `ack()`.

        It is one call for all that were read on the present connection, and for each `ACKS_MAX`
        of the others.
        """
        done, left = 0, {name_of(event): event for event in events}
        while left:
            is_all = link_of(self.pipeline, left.values()) is not None
            names = list(left) if is_all else list(left)[:ACKS_MAX]
            waiter = loop.waiter()
            self._ask({name: left.pop(name) for name in names}, waiter.take, is_counted=True)
            reply = await waiter.wait()
            if isinstance(reply, PoolError):
                raise again(reply)
            done += reply if isinstance(reply, int) else sum(map(bool, reply))
        return done

    def send(self, events: Sequence[StreamEvent], on_reply: Callable[[Reply], object]) -> None:
        """Acknowledge events without waiting."""
        self._ask({name_of(event): event for event in events}, on_reply, is_counted=True)

    def _send(self) -> None:
        names = list(self._waiting)[:ACKS_MAX]
        taken = {name: self._waiting.pop(name) for name in names}
        waiters = [several for _, several in taken.values()]
        self._is_under_way = True
        self._ask(
            {name: event for name, (event, _) in taken.items()}, partial(self._on_reply, waiters)
        )

    def _ask(
        self,
        events: Mapping[EventName, StreamEvent],
        on_reply: Callable[[Reply], object],
        *,
        is_counted: bool = False,
        until_s: float | None = None,
    ) -> None:
        now_s = self.pipeline.io.clock()
        until_s = now_s + self.op_timeout_s if until_s is None else until_s
        link = link_of(self.pipeline, events.values())
        if link is not None and (is_counted or len(events) == 1):
            call: Command = self.of.ack([event_id for event_id, _ in events])
        else:
            names = [(event_id, mark if link is None else b"") for event_id, mark in events]
            call = self.of.ack_each(self.consumer(), names)
        ask_again = partial(self._ask, events, on_reply, is_counted=is_counted, until_s=until_s)
        answer = partial(self._answered, list(events), ask_again, on_reply, link)
        try:
            self.pipeline.send(call, answer, timeout_s=max(0.0, until_s - now_s), link=link)
        except PoolError as error:
            on_reply(error)

    def _answered(
        self,
        names: Sequence[EventName],
        ask_again: Callable[[], object],
        on_reply: Callable[[Reply], object],
        link: object | None,
        reply: Reply,
    ) -> None:
        is_unsent = isinstance(reply, StoreUnavailable) and not reply.maybe_done
        if is_unsent and link is not None and link is not self.pipeline.link:
            ask_again()
            return
        if not isinstance(reply, PoolError):
            count = reply if isinstance(reply, int) else sum(reply)
            self.on_done(names, link is None and count < len(names))
        on_reply(reply)

    def _on_reply(self, waiters: Sequence[list[Waiter]], reply: Reply) -> None:
        self._is_under_way = False
        if self._waiting:
            self._send()
        told = [reply] if isinstance(reply, int) else reply
        for at, several in enumerate(waiters):
            for nth, waiter in enumerate(several):
                # Of who asks for the same event, the first one has acknowledged it.
                waiter.take(reply if isinstance(reply, PoolError) else told[at] and nth == 0)


@attrs.define(eq=False, kw_only=True)
class SinkCalls:
    """The calls of one consumer; nobody waits for them."""

    pipeline: Pipeline
    told: SinkTold
    is_no_ack: bool
    consumer: Callable[[], str]  # its name now
    on_gone: Callable[[], object]  # its lease was ended
    on_stop: Callable[[Source], object]  # one stream's calls are refused: the others go on
    on_freed: Callable[[], object]  # something may wait for whoever has room
    trial: Item | Source | None = None  # a doubtful event that it has, or asks for

    def send(
        self,
        call: Command,
        on_reply: Callable[[Reply], object],
        source: Source | None = None,
        on_error: Callable[[], object] = lambda: None,
    ) -> None:
        """Send a call in the background; what fails is told, and the next tick tries again."""

        def answer(reply: Reply) -> None:
            if not isinstance(reply, PoolError):
                on_reply(reply)
                return
            if source is not None:
                source.is_mending = source.is_taking = False
                source.is_doubted = True  # it may be done all the same
                if self.trial is source:
                    self.trial = None
            on_error()
            self.refused(reply, source)

        try:
            self.pipeline.send(call, answer)
        except PoolError as error:
            answer(error)

    def refused(self, error: PoolError, source: Source | None = None) -> None:
        if isinstance(error, Gone):
            if error.identity == self.consumer():
                self.on_gone()
        elif not isinstance(error, StoreUnavailable | NotRunning):
            if source is None:
                self.told.troubled(None, error, {})
            else:
                told = partial(self._tell_once, source, error)
                look_for_foreign(self.pipeline, source.of.kinds, told)
                self.on_stop(source)

    def _tell_once(self, source: Source, error: PoolError, found: dict[str, str]) -> None:
        """Joining works where only what is parked is in the way: it is no end of a trouble."""
        trouble = (type(error).__name__, *sorted(found))
        if trouble != source.trouble:
            source.trouble = trouble
            self.told.troubled(source, error, found)

    def release(self, items: Sequence[Item], *, is_late: bool = False) -> None:
        for source, call in self.returns(items):
            self.send(call, partial(self._on_released, source, is_late), source)

    def _on_released(self, source: Source, is_late: bool, reply: Reply) -> None:
        did: GivenBack = reply
        source.trouble = ()
        if did.released and is_late:
            self.told.freed(source, did.released)
        source.has_released = source.has_released or did.released > 0
        self.on_freed()

    def returns(self, items: Iterable[Item]) -> list[tuple[Source, ScriptCall]]:
        """Return the calls that give back what is ours of these."""
        by_source: dict[tuple[Source, bool], list[EventName]] = {}
        for item in items:
            if self.trial is item:
                self.trial = None
            if item.consumer == self.consumer():
                by_source.setdefault((item.source, item.is_doubtful), []).append(
                    name_of(item.event)
                )
        return [
            (source, call)
            for (source, is_doubtful), names in by_source.items()
            for call in self.releases(source, names, is_doubtful=is_doubtful)
        ]

    def releases(
        self, source: Source, names: Sequence[EventName], *, is_doubtful: bool
    ) -> list[ScriptCall]:
        if self.is_no_ack:
            return []
        chunks = [names[at : at + BATCH_MAX] for at in range(0, len(names), BATCH_MAX)]
        return [
            source.of.release(self.consumer(), chunk, is_doubtful=is_doubtful) for chunk in chunks
        ]

    async def finish(self, calls: Iterable[tuple[Source, ScriptCall]]) -> None:
        """Do these as far as they can be done: whoever cleans next does the rest otherwise."""
        for source, call in calls:
            try:
                await self.pipeline.call(call, repeatable=True)
            except PoolError as error:
                self.refused(error, source)
                if isinstance(error, StoreUnavailable):
                    return
