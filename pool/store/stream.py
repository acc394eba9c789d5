"""Streams and sinks in Redis: the scripts, what they are given, and what their answers mean.

A stream is a Redis stream and a small hash beside it; a sink is a consumer group on each of its
streams, with leases of its own.  Nothing here decides when.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from pool.errors import ConfigError
from pool.model.names import Control, check_stream
from pool.model.stream import FIRST, StreamEvent, event_of
from pool.store.commands import count, entry_id, fields, texts, typed
from pool.store.scripts import Script, ScriptCall, Word
from pool.store.wire import Reply

BATCH_MAX = 64  # events that one script moves


# --- what the scripts answer ------------------------------------------------------------------


@attrs.frozen
class Facts:
    """Where a stream is; `exists` is None for a key that is no stream."""

    exists: bool | None
    last_id: str
    added: int
    trimmed: str  # "" if no length cap ever took an event
    number: int  # of the event at the position asked for; 0: it is not there


def probed(reply: Reply) -> list[Facts]:
    """Return where the streams are, in the order asked."""
    parts = zip(reply[::4], reply[1::4], reply[2::4], reply[3::4], strict=True)
    return [
        Facts(
            exists=bool(last),
            last_id=entry_id(last) if last else FIRST,
            added=int(added),
            trimmed=entry_id(trimmed) if trimmed else "",
            number=int(number or 0),
        )
        if last != b"!"
        else Facts(None, FIRST, 0, "", 0)
        for last, added, trimmed, number in parts
    ]


@attrs.frozen
class Mended:
    """What one cleaning did; `freed` below 0: nothing, see `sink_mend.lua`."""

    freed: int
    parked: int
    forgotten: int
    missed: int
    is_more: bool


def mended(reply: Reply) -> Mended:
    freed, parked, forgotten, missed, more = (typed(each, int) for each in reply)
    return Mended(freed, parked, forgotten, missed, more == 1)


def added(reply: Reply) -> str | None:
    """Return the event's id; None: there was no stream to add it to."""
    return None if reply is None else entry_id(reply)


def joined(reply: Reply) -> list[bool]:
    """Return per stream whether its group was made."""
    return [count(each) > 0 for each in reply]


@attrs.frozen
class Lease:
    """What a renewal was answered."""

    is_holder: bool  # we are the one that cleans
    ttl_ms: int
    keys: list[
        bytes
    ]  # of all streams that consumers of the sink ever read, for the one that cleans
    waiting: list[int]  # per stream, how many released events wait; -1: it has no group


def renewed(reply: Reply) -> Lease:
    """Return what a renewal was answered."""
    is_holder, ttl_ms, keys, *waiting = reply
    if count(ttl_ms) < 1:
        raise ValueError(ttl_ms)
    return Lease(count(is_holder) > 0, ttl_ms, texts(keys), [typed(each, int) for each in waiting])


def taken(reply: Reply) -> list[tuple[str, dict[str, bytes], int]]:
    """Return id, fields and deliveries of each event that was taken."""
    return [
        (entry_id(entry), fields(flat), count(deliveries))
        for deliveries, (entry, flat) in zip(reply[::2], reply[1::2], strict=True)
    ]


# --- the scripts ------------------------------------------------------------------------------

ADD = Script.load(
    "stream_add",
    keys=("events", "meta"),
    args=("event", "payload", "length_max", "ttl_ms", "flags", "topic"),
    reads=added,
)
PROBE = Script.load("stream_probe", keys=("*streams",), args=("*positions",), reads=probed)
JOIN = Script.load(
    "sink_join",
    keys=("state", "leases", "config", "*streams"),
    args=("group", "consumer", "before", "named_ms", "*starts"),
    reads=joined,
)
RENEW = Script.load(
    "sink_renew",
    keys=("state", "leases", "config", "*streams"),
    args=("group", "consumer"),
    reads=renewed,
)
MEND = Script.load(
    "sink_mend",
    keys=("state", "leases", "events", "meta", "parked", "config"),
    args=("group", "consumer", "grace_ms", "deliveries_max", "batch", "stream"),
    reads=mended,
)
TAKE = Script.load(
    "sink_take",
    keys=("leases", "events", "meta"),
    args=("group", "consumer", "count"),
    reads=taken,
)
RELEASE = Script.load(
    "sink_release", keys=("events", "meta"), args=("group", "consumer", "*ids"), reads=count
)
LEAVE = Script.load(
    "sink_leave", keys=("state", "leases", "*streams"), args=("group", "consumer"), reads=count
)


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
        is_sliding: bool,
        only_if_exists: bool,
    ) -> ScriptCall:
        """Append an event; the reply is its id, or None."""
        flags = ("s" if is_sliding else "") + ("x" if only_if_exists else "")
        flags += "" if topic is None else "t"
        args = (event, payload, length_max, ttl_ms, flags, topic or b"")
        return ADD((self.events, self.meta), args)


def probe_call(asked: Sequence[tuple[StoredStream, str]]) -> ScriptCall:
    """Return the call that asks where these streams are, and whether an event is at a position."""
    keys = [key for stream, _ in asked for key in (stream.events, stream.meta)]
    return PROBE(keys, [position for _, position in asked], parts=4 * len(asked))


@attrs.frozen
class Parked:
    """An event that a sink has given up, as it was; `entry` is its own id among the parked."""

    entry: str
    event: StreamEvent
    reason: str


@attrs.frozen(kw_only=True)
class StoredSink:
    """One sink in Redis: a group on each of its streams, leases, and what was given up."""

    control: Control
    name: str
    named_ms: int = 0  # TTL that our settings name, for a pool that has none
    grace_ms: int
    deliveries_max: int

    def __attrs_post_init__(self) -> None:
        check_stream(self.name, "sink")

    @property
    def parked(self) -> str:
        return self.control.sink_parked(self.name)

    @property
    def _own(self) -> list[str]:
        return [self.control.sink(self.name), self.control.sink_leases(self.name)]

    def _keys(self, streams: Sequence[StoredStream]) -> list[str]:
        return [*self._own, self.control.config, *(stream.events for stream in streams)]

    def join(
        self, consumer: str, before: str, starts: Sequence[tuple[StoredStream, str]]
    ) -> ScriptCall:
        """Give a consumer its lease; the reply says per stream whether its group was made."""
        own: tuple[Word, ...] = (self.name, consumer, before, self.named_ms)
        args = (*own, *(start for _, start in starts))
        return JOIN(self._keys([stream for stream, _ in starts]), args, parts=len(starts))

    def renew(self, consumer: str, streams: Sequence[StoredStream]) -> ScriptCall:
        return RENEW(self._keys(streams), (self.name, consumer), parts=3 + len(streams))

    def others(self, keys: Sequence[bytes], but: Sequence[StoredStream]) -> list[StoredStream]:
        """Return the streams of these keys, without some; a key that is no stream is left out."""
        prefix, known = self.control.stream(""), {stream.events for stream in but}
        names = [key.decode(errors="replace") for key in keys]
        found = []
        for name in (each.removeprefix(prefix) for each in names if each not in known):
            try:
                found.append(StoredStream(self.control, name))
            except ConfigError:
                continue
        return found

    def mend(self, consumer: str, stream: StoredStream) -> ScriptCall:
        keys = (*self._own, stream.events, stream.meta, self.parked, self.control.config)
        limits = (self.grace_ms, self.deliveries_max, BATCH_MAX)
        args: tuple[Word, ...] = (self.name, consumer, *limits, stream.name)
        return MEND(keys, args)

    def take(self, consumer: str, stream: StoredStream, count: int) -> ScriptCall:
        keys = (self.control.sink_leases(self.name), stream.events, stream.meta)
        return TAKE(keys, (self.name, consumer, min(count, BATCH_MAX)))

    def release(self, consumer: str, stream: StoredStream, ids: Sequence[str]) -> ScriptCall:
        assert len(ids) <= BATCH_MAX
        return RELEASE((stream.events, stream.meta), (self.name, consumer, *ids))

    def leave(self, consumer: str, streams: Sequence[StoredStream]) -> ScriptCall:
        return LEAVE([*self._own, *(stream.events for stream in streams)], (self.name, consumer))

    def ack(self, stream: StoredStream, ids: Sequence[str]) -> tuple[Word, ...]:
        return ("XACK", stream.events, self.name, *ids)


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
