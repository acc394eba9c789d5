"""What a consumer of a sink has handed out: notes of it, its grace, and suspects one at a time.

    hand_out --> in hand --acknowledged--> forgotten
                    |  5 ms later: noted, many at once; a doubtful one before it is handed out
                    +--not within the grace: given back

It also measures how fast its program takes events: no more is held ahead than is handed out within
a quarter of the grace.  See `sink.py` for what happens where one ends at any of these steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final

import anyio
import attrs

from pool.core.retry import RESEND_S
from pool.errors import PoolError, StoreUnavailable
from pool.redis.io.system import Loop, Reply
from pool.redis.scripts import ScriptCall
from pool.streams.buffer import EventBuffer
from pool.streams.commands import BATCH_MAX, HELD_MAX
from pool.streams.event import EventName, name_of
from pool.streams.sink_calls import Item, SinkCalls, Source, link_of

NOTED_S: Final = 0.005  # from a hand-out to the note of it
LIVED_S: Final = 0.05  # with a doubtful event that nobody has seen: it did not end its consumer


@attrs.define(eq=False, kw_only=True)
class Hands:
    """The events that one consumer's program has."""

    _calls: SinkCalls
    _buffer: EventBuffer[Item, Source]
    _buffer_max: int
    _grace_s: float
    _clock: Callable[[], float]
    _renew_s: Callable[[], float]
    _is_open: Callable[[], bool]
    _is_ours: Callable[[Item], bool]
    _all: Callable[[], list[Source]]  # also those that are not read any more
    _coming: Callable[[Source], set[str]]  # what was read, and may not have come to the buffer yet
    _read_number: Callable[[], int]  # of the read whose answer may be on its way; 0: none
    _streams: Callable[[], int]  # how many are read
    loop: Loop = attrs.field(init=False)
    _is_noting: bool = attrs.field(init=False, default=False)  # a timer of that is under way
    _is_watching: bool = attrs.field(init=False, default=False)
    _handed: int = attrs.field(init=False, default=0)  # so many since then
    _paced_s: float = attrs.field(init=False, default=0.0)

    def begin(self, loop: Loop) -> None:
        """Its sink has entered a loop."""
        self.loop, self._paced_s = loop, self._clock()

    async def hand_out(self, item: Item) -> bool:
        """Note that the program has it from now on; say whether it may have it."""
        self._handed += 1
        if self._calls.is_no_ack:
            return True
        if item.is_doubtful and not await self._noted(item):
            return False
        source, item.handed_s = item.source, self._clock()
        source.hands[item.event.id] = item
        if item.is_doubtful:
            self.loop.later(self._trial_s(item), partial(self._end_trial, item))
        else:
            source.fresh[item.event.id] = item
            self.note_later()
        self.watch()
        return True

    def _trial_s(self, item: Item) -> float:
        """How long a suspect has to do harm before another one is given: the longer, the more often
        it was in hand, as what ends its program may take its time; innocents are parked by it."""
        times = min(item.event.deliveries - 1, 16)
        return max(LIVED_S, min(LIVED_S * 4.0**times, self._grace_s / 4))

    async def _noted(self, item: Item) -> bool:
        """Have the store know, before it can end us, that this one was handed out."""
        times = [(name_of(item.event), item.event.deliveries)]
        call = item.source.of.hand(self._calls.consumer(), times)
        try:
            while self._is_ours(item) and self._is_open():
                try:
                    [is_ours] = await self._calls.pipeline.call(call, repeatable=True)
                except StoreUnavailable:
                    await anyio.sleep(RESEND_S)
                except PoolError as error:
                    self._calls.refused(error, item.source)
                    break
                else:
                    # Our lease may have ended while we waited for this answer.
                    return bool(is_ours) and self._is_ours(item)
        except BaseException:
            self._buffer.push([item], is_first=True)  # whoever waited for it was cancelled
            raise
        self._end_trial(item)
        return False

    def _end_trial(self, item: Item) -> None:
        if self._calls.trial is item:
            self._calls.trial = None
            self._calls.on_freed()

    def note_later(self) -> None:
        if not self._is_noting and any(source.fresh for source in self._all()):
            self._is_noting = True
            self.loop.later(NOTED_S, self._note)

    def _note(self) -> None:
        self._is_noting = False
        for source in self._all():
            for items, call in self._notes(source):
                again = partial(self._note_again, source, items)
                self._calls.send(call, lambda _: None, source, again)

    def _notes(self, source: Source) -> Iterator[tuple[list[Item], ScriptCall]]:
        """Yield the calls that note what was not noted yet."""
        fresh, source.fresh = [*source.fresh.values()], {}
        for at in range(0, len(fresh), BATCH_MAX):
            items = fresh[at : at + BATCH_MAX]
            times = [(name_of(item.event), item.event.deliveries) for item in items]
            yield items, source.of.hand(self._calls.consumer(), times)

    def _note_again(self, source: Source, items: Sequence[Item]) -> None:
        """It was not noted, maybe: with the next tick."""
        source.fresh |= {i.event.id: i for i in items if source.hands.get(i.event.id) is i}

    def watch(self) -> None:
        if self._is_watching:
            return
        oldest = (next(iter(each.hands.values())).handed_s for each in self._all() if each.hands)
        oldest_s = min(oldest, default=None)
        if oldest_s is not None:
            self._is_watching = True
            in_s = oldest_s + self._grace_s - self._clock()
            self.loop.later(max(0.0, in_s), self._end_grace)

    def _end_grace(self) -> None:
        """Give back what the program has had for too long."""
        self._is_watching = False
        now_s = self._clock()
        for source in self._all():
            late = []
            for item in source.hands.values():
                if item.handed_s + self._grace_s > now_s:  # in one way with `watch`
                    break
                late.append(item)
            self._out_of_hands(source, [item.event.id for item in late])
            if late and link_of(self._calls.pipeline, [item.event for item in late]) is None:
                source.is_doubted = True  # of a lost event another one may have the id
            self._calls.release(
                [attrs.evolve(item, is_doubtful=False) for item in late], is_late=True
            )
        self.watch()

    def _out_of_hands(self, source: Source, ids: Iterable[str]) -> None:
        for event_id in ids:
            item = source.hands.pop(event_id, None)
            source.fresh.pop(event_id, None)
            if item is not None:
                self._end_trial(item)

    def on_acknowledged(self, stream: str, names: Sequence[EventName], may_be_lost: bool) -> None:
        """Events were acknowledged, or wait for that no more.

        If one may have been lost, another event may have its id, and may have been passed over as
        known: so it is looked for.
        """
        source = next((each for each in self._all() if each.stream == stream), None)
        if source is not None:
            held = source.hands
            self._out_of_hands(
                source, [id_ for id_, mark in names if id_ in held and held[id_].event.mark == mark]
            )
            source.is_doubted = source.is_doubted or may_be_lost

    def hold(self, most: int) -> None:
        """Hold so many events ahead of the program."""
        most = max(1, min(most, self._buffer_max))
        if most != self._buffer.buffer_max:
            self._buffer.buffer_max = most
            self._buffer.fit(self._streams())

    def pace(self) -> None:
        """Hold ahead what is handed out within a quarter of the grace, by what was handed out.

        What has waited here for half a grace is given back.
        """
        now_s = self._clock()
        per_s = self._handed / max(now_s - self._paced_s, self._renew_s())
        self._handed, self._paced_s = 0, now_s
        most, since_s = int(per_s * self._grace_s / 4), now_s - self._grace_s / 2
        if not self._calls.is_no_ack and any(item.got_s <= since_s for item in self._buffer):
            self.hold(most)
            self._calls.release(self._buffer.drop(lambda item: item.got_s > since_s))
        elif most > self._buffer.buffer_max:
            self.hold(2 * self._buffer.buffer_max)

    def look_for_unknown(
        self, source: Source, after: str = "", listed: frozenset[str] = frozenset()
    ) -> None:
        """List what waits under our name; what we do not know, and did not the last time, goes."""
        source.looked_s = self._clock()
        answer = partial(self._on_held, source, self._calls.consumer(), listed)
        self._calls.send(source.of.held(self._calls.consumer(), after), answer, source)

    def _on_held(self, source: Source, consumer: str, listed: frozenset[str], reply: Reply) -> None:
        if consumer != self._calls.consumer():
            return
        ids: list[str] = reply
        listed |= frozenset(ids) - source.hands.keys()
        if len(ids) == HELD_MAX:
            self.look_for_unknown(source, ids[-1], listed)
            return
        # Asked before `_coming`: a read is over only when that has what it brought.
        read_number = self._read_number()
        known = {item.event.id for item in self._buffer if item.source is source}
        known |= self._coming(source)
        trial = self._calls.trial
        if isinstance(trial, Item) and trial.source is source:
            known.add(trial.event.id)  # it is being noted: neither buffered nor in hand
        unknown = listed - known - source.hands.keys()
        # Over a slow line, one read may still bring what was unknown at the last look.
        is_over = not read_number or read_number != source.read_number
        gone = unknown & source.unknown if is_over else frozenset()
        source.unknown, source.read_number = unknown, read_number
        source.is_doubted = bool(unknown)
        names = [(each, b"") for each in gone]  # the server has just said that they are ours
        for call in self._calls.releases(source, names, is_doubtful=True):
            self._calls.send(call, lambda _: None, source)

    def goodbyes(self, unseen: Sequence[Item]) -> Iterator[tuple[Source, ScriptCall]]:
        """Yield what a consumer says that leaves."""
        yield from self._calls.returns(unseen)
        for source in self._all():
            for _, call in self._notes(source):
                yield source, call
            yield source, source.of.leave(self._calls.consumer())
