"""What a consumer of a sink knows of one of its streams, and of one event that it was given."""

from __future__ import annotations

import attrs

from pool.runtime.stream_tailer import Reading
from pool.streams.commands import StoredSink
from pool.streams.event import EventName, StreamEvent


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
