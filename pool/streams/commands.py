"""Streams and sinks in Redis: the scripts, what they are given, and what their answers mean.

A stream is a Redis stream and a small hash beside it; a sink is a consumer group on each of its
streams, each with leases of its own.  Nothing here decides when.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final

import attrs

from pool.names import Control, check_stream
from pool.redis.commands.plain import count, entry_id, fields, typed
from pool.redis.connection import Reply
from pool.redis.scripts import Script, ScriptCall, Word
from pool.streams.event import FIRST, EventName, StreamEvent, event_of, name_of, number_of

BATCH_MAX = 64  # events that one script moves
HELD_MAX = 1_000  # ids in one page
_OF_A_PROBE = 8  # words for each stream


# --- what the scripts answer ------------------------------------------------------------------


@attrs.frozen
class Facts:
    """Where a stream is; `exists` is None where nobody can say, as for what is no stream."""

    exists: bool | None
    last_id: str
    added: int
    trimmed: str  # "" if no length cap ever took an event
    has_ended: bool  # what was there before, as somebody had asked for
    born: bytes  # which life it is; empty: nobody knows
    found: str  # the last event up to the position asked for; "0-0": there is none
    number: int | None  # its number; None: it has none
    mark: bytes

    def number_at(self, position: str) -> int | None:
        """Return the number of the event at the position asked for; None: it is not there."""
        return self.number if self.found == position else None


UNKNOWN: Final = Facts(None, FIRST, 0, "", False, b"", FIRST, None, b"")


def probed(reply: Reply) -> list[Facts]:
    """Return where the streams are, in the order asked."""
    parts = zip(*(reply[at::_OF_A_PROBE] for at in range(_OF_A_PROBE)), strict=True)
    return [
        Facts(
            exists=bool(last),
            last_id=entry_id(last) if last else FIRST,
            added=int(added),
            trimmed=entry_id(trimmed) if trimmed else "",
            has_ended=bool(ended),
            born=born,
            found=entry_id(found) if found else FIRST,
            number=number_of({"n": number}),
            mark=mark,
        )
        if last != b"!"
        else UNKNOWN
        for last, added, trimmed, ended, born, found, number, mark in parts
    ]


@attrs.frozen
class Mended:
    """What one cleaning did; `freed` below 0: nothing, see `sink_mend.lua`."""

    freed: int
    parked: int
    forgotten: int
    missed: int  # pending events that length caps ever took
    told: int  # how many of those somebody has told
    parks: int  # events ever parked
    parks_told: int
    is_more: bool
    born: bytes  # which life of the stream it is


def mended(reply: Reply) -> Mended:
    *numbers, born = reply
    freed, parked, forgotten, missed, told, *rest = (typed(each, int) for each in numbers)
    parks, parks_told, more = rest
    of_life = typed(born, bytes)
    return Mended(
        freed, parked, forgotten, missed, told, parks, parks_told, is_more=more == 1, born=of_life
    )


def added(reply: Reply) -> str | None:
    """Return the event's id; None: there was no stream to add it to."""
    return None if reply is None else entry_id(reply)


class Joined(enum.Enum):
    """What joining found."""

    THERE = 0
    MADE = 1  # the group, or its stream, was not there
    ENDED = 2  # likewise, as the stream had come to its end as was asked for


def joined(reply: Reply) -> Joined:
    """Return what joining found."""
    return Joined(count(reply))


@attrs.frozen
class ConsumerLease:
    """What a renewal was answered."""

    is_holder: bool  # we are the one that cleans
    ttl_ms: int
    released: int  # events that wait for anybody; -1: there is no group
    doubtful: int  # likewise, of those who may have ended their last holder


def renewed(reply: Reply) -> ConsumerLease:
    """Return what a renewal was answered."""
    is_holder, ttl_ms, released, doubtful = reply
    if count(ttl_ms) < 1:
        raise ValueError(ttl_ms)
    return ConsumerLease(count(is_holder) > 0, ttl_ms, typed(released, int), count(doubtful))


@attrs.frozen
class Given:
    """An event that was taken; `times` it was handed out before."""

    id: str
    fields: dict[str, bytes]
    times: int
    is_doubtful: bool


@attrs.frozen
class Taken:
    """What was taken; of what was given some may not be there any more."""

    doubtful: int  # given
    released: int
    events: list[Given]


def taken(reply: Reply) -> Taken:
    """Return what was taken."""
    doubtful, released, *rest = reply
    events = []
    for code, (entry, flat) in zip(rest[::2], rest[1::2], strict=True):
        times = typed(code, int)
        is_doubtful = times < 0
        times = -1 - times if is_doubtful else times
        events.append(Given(entry_id(entry), fields(flat), times, is_doubtful))
    return Taken(count(doubtful), count(released), events)


def handed(reply: Reply) -> list[bool]:
    """Return of each event whether it is ours, or was to be acknowledged."""
    return [count(each) > 0 for each in reply]


@attrs.frozen
class GivenBack:
    """How many of the events that were given back wait for others now, and how many are parked."""

    released: int
    parked: int


def returned(reply: Reply) -> GivenBack:
    released, parked = reply
    return GivenBack(count(released), count(parked))


# --- the scripts ------------------------------------------------------------------------------

ADD = Script.load(
    "stream_add",
    keys="events meta",
    args="event payload mark topic limits",
    reads=added,
)
ADD_ONCE = Script.load(
    "stream_add_once",
    keys="events meta once ends_of",
    args="event payload mark topic limits once_id window_ms",
    reads=added,
)
END = Script.load("stream_end", keys="events meta once ends_of", args="", reads=count)
PROBE = Script.load("stream_probe", keys="*streams", args="*positions", reads=probed)
JOIN = Script.load(
    "sink_join",
    keys="state leases config events meta",
    args="group consumer before named_ms start",
    reads=joined,
)
RENEW = Script.load(
    "sink_renew",
    keys="state leases config events",
    args="group consumer",
    reads=renewed,
)
MEND = Script.load(
    "sink_mend",
    keys="state leases events meta parked config",
    args="group consumer deliveries_max batch stream told parks_told of_life",
    reads=mended,
)
TAKE = Script.load(
    "sink_take", keys="leases events meta", args="group consumer count doubtful", reads=taken
)
HAND = Script.load("sink_hand", keys="events meta", args="group consumer *items", reads=handed)
ACK = Script.load("sink_ack", keys="events", args="group consumer *items", reads=handed)
HELD = Script.load(
    "sink_held",
    keys="events",
    args="group consumer after count",
    reads=lambda reply: [entry_id(each) for each in reply],
)
RELEASE = Script.load(
    "sink_release",
    keys="events meta parked",
    args="group consumer deliveries_max stream doubtful *items",
    reads=returned,
)
DROP = Script.load("sink_drop", keys="parked", args="*items", reads=count)
LEAVE = Script.load("sink_leave", keys="state leases events", args="group consumer", reads=count)


def _word_of(name: EventName) -> Word:
    """Return an event's name as `lib/same` reads it."""
    event_id, mark = name
    return b"%s %s" % (event_id.encode(), mark) if mark else event_id


def _checked(name: str) -> str:
    check_stream(name)
    return name


@attrs.frozen
class StoredStream:
    """One stream in Redis."""

    control: Control
    name: str = attrs.field(converter=_checked)  # before keys are made of it
    events: str = attrs.field(init=False, repr=False)
    meta: str = attrs.field(init=False, repr=False)

    @events.default
    def _events(self) -> str:
        return self.control.stream(self.name)

    @meta.default
    def _meta(self) -> str:
        return self.control.stream_meta(self.name)

    def add(
        self,
        event: bytes,
        payload: bytes,
        topic: bytes | None,
        *,
        length_max: int,
        ttl_ms: int,
        how: str,
        mark: str,
        once_id: bytes | None = None,
        window_ms: int = 0,
    ) -> ScriptCall:
        """Append an event; the reply is its id, or None.

        `how` are letters: s for a life that every event prolongs, a for an end at an epoch time,
        x for only if it exists.  `mark` is drawn by whoever calls.
        """
        limits = f"{length_max} {ttl_ms} {how}" if length_max or ttl_ms or how else ""
        args = (event, payload, mark, b"" if topic is None else b"=" + topic, limits)
        if once_id is None:
            return ADD((self.events, self.meta), args)
        return ADD_ONCE(self.all_keys, (*args, once_id, window_ms))

    @property
    def all_keys(self) -> tuple[str, ...]:
        """All that is the stream's own, without its sinks."""
        once, ends_of = self.control.stream_once(self.name)
        return self.events, self.meta, once, ends_of

    def end(self) -> ScriptCall:
        """Delete the stream; the reply says whether there was one."""
        return END(self.all_keys, ())


def probe_call(asked: Sequence[tuple[StoredStream, str]]) -> ScriptCall:
    """Return the call that asks where these streams are, and whether an event is at a position."""
    keys = [key for stream, _ in asked for key in (stream.events, stream.meta)]
    return PROBE(keys, [position for _, position in asked], parts=_OF_A_PROBE * len(asked))


@attrs.frozen
class Parked:
    """An event that a sink has given up, as it was; `entry` is its own id among the parked."""

    entry: str
    event: StreamEvent
    reason: str


@attrs.frozen(kw_only=True)
class StoredSink:
    """One sink on one stream in Redis: a group, leases, and what was given up.

    A sink of several streams has one of these for each: nobody touches what he does not read.
    """

    stream: StoredStream
    name: str
    named_ms: int = 0  # TTL that our settings name, for a pool that has none
    deliveries_max: int

    def __attrs_post_init__(self) -> None:
        check_stream(self.name, "sink")

    @property
    def parked(self) -> str:
        return self.stream.control.sink_parked(self.stream.name, self.name)

    @property
    def state(self) -> str:
        return self.stream.control.sink(self.stream.name, self.name)

    @property
    def leases(self) -> str:
        return self.stream.control.sink_leases(self.stream.name, self.name)

    @property
    def _keys(self) -> tuple[str, ...]:
        return self.state, self.leases, self.stream.control.config, self.stream.events

    @property
    def kinds(self) -> dict[str, bytes]:
        """Of which type its keys are."""
        state, leases, config, events = self._keys
        hashes = dict.fromkeys((state, config, self.stream.meta), b"hash")
        return {**hashes, **dict.fromkeys((events, self.parked), b"stream"), leases: b"zset"}

    def join(self, consumer: str, before: str, start: str) -> ScriptCall:
        """Give a consumer its lease; the reply says whether the group was made."""
        keys = (*self._keys, self.stream.meta)
        return JOIN(keys, (self.name, consumer, before, self.named_ms, start))

    def renew(self, consumer: str) -> ScriptCall:
        return RENEW(self._keys, (self.name, consumer))

    def mend(self, consumer: str, told: int, parks_told: int, of_life: bytes) -> ScriptCall:
        stream = self.stream
        keys = (self.state, self.leases, stream.events, stream.meta, self.parked)
        args: tuple[Word, ...] = (consumer, self.deliveries_max, BATCH_MAX, stream.name)
        return MEND((*keys, stream.control.config), (self.name, *args, told, parks_told, of_life))

    def take(self, consumer: str, count: int, *, may_try: bool) -> ScriptCall:
        keys = (self.leases, self.stream.events, self.stream.meta)
        return TAKE(keys, (self.name, consumer, min(count, BATCH_MAX), int(may_try)))

    def hand(self, consumer: str, times: Sequence[tuple[EventName, int]]) -> ScriptCall:
        """Note how often events were handed out, this time included."""
        items = (word for name, nth in times for word in (_word_of(name), nth))
        return HAND(
            (self.stream.events, self.stream.meta), (self.name, consumer, *items), parts=len(times)
        )

    def release(
        self, consumer: str, names: Sequence[EventName], *, is_doubtful: bool = False
    ) -> ScriptCall:
        assert len(names) <= BATCH_MAX
        keys = (self.stream.events, self.stream.meta, self.parked)
        own = (self.name, consumer, self.deliveries_max, self.stream.name, int(is_doubtful))
        return RELEASE(keys, (*own, *map(_word_of, names)))

    def held(self, consumer: str, after: str) -> ScriptCall:
        """Return the call that lists, page by page, what waits under a consumer's name."""
        return HELD((self.stream.events,), (self.name, consumer, after, HELD_MAX))

    def leave(self, consumer: str) -> ScriptCall:
        return LEAVE((self.state, self.leases, self.stream.events), (self.name, consumer))

    def drop(self, several: Sequence[Parked]) -> ScriptCall:
        """Forget parked events; the reply says how many were still there."""
        words = (word for each in several for word in (each.entry, _word_of(name_of(each.event))))
        return DROP((self.parked,), (*words,))

    def ack_each(self, consumer: str, names: Sequence[EventName]) -> ScriptCall:
        """Acknowledge events; the reply says of each whether it was not yet.

        An event without a mark is acknowledged by its id alone.
        """
        args = (self.name, consumer, *map(_word_of, names))
        return ACK((self.stream.events,), args, parts=len(names))

    def ack(self, ids: Sequence[str]) -> tuple[Word, ...]:
        """Acknowledge events by their ids alone; the reply says how many were not yet."""
        return ("XACK", self.stream.events, self.name, *ids)


def parked_of(entry: str, flat: Sequence[bytes]) -> Parked | None:
    """Return what an entry says; None for what no script of ours has written."""
    # What the event had comes behind what the sink added, so a foreign event's fields win nothing.
    held = {**fields(flat[8:]), **fields(flat[:8])}
    try:
        stream, found = held["s"].decode(errors="backslashreplace"), entry_id(held["i"])
        event = event_of(stream, found, held, deliveries=int(held["d"]))
        return Parked(entry, event, held["r"].decode())
    except (KeyError, ValueError):
        return None
