"""What a sink tells observers of."""

from __future__ import annotations

from typing import ClassVar

import attrs


@attrs.frozen(kw_only=True)
class SinkMended:
    """Events of stale consumers, or unacknowledged for too long, were freed for others.

    Those that a consumer may have died of are given one at a time.
    """

    event: ClassVar[str] = "sink.mended"
    level: ClassVar[str] = "warning"

    sink: str
    stream: str
    freed: int
    forgotten: int  # consumers


@attrs.frozen(kw_only=True)
class SinkParked:
    """Events were given up after too many deliveries; they wait among the parked."""

    event: ClassVar[str] = "sink.parked"
    level: ClassVar[str] = "error"

    sink: str
    stream: str
    events: int


@attrs.frozen(kw_only=True)
class SinkParksMany:
    """More than a few events were given up within a minute: look at their handler, not at them."""

    event: ClassVar[str] = "sink.parks_many"
    level: ClassVar[str] = "error"

    sink: str
    events: int  # within the last minute, as this consumer told
    since_s: float = 60.0


@attrs.frozen(kw_only=True)
class SinkMissed:
    """A length cap took events that were not acknowledged yet."""

    event: ClassVar[str] = "sink.missed"
    level: ClassVar[str] = "error"

    sink: str
    stream: str
    events: int


@attrs.frozen(kw_only=True)
class SinkRemade:
    """The group was gone (key deleted, FLUSHALL, data lost) and was made again, from the oldest."""

    event: ClassVar[str] = "sink.remade"
    level: ClassVar[str] = "error"

    sink: str
    stream: str


@attrs.frozen(kw_only=True)
class SinkBeganAnew:
    """The stream had ended as was asked for (destroyed, or its time was up): so had its group."""

    event: ClassVar[str] = "sink.began_anew"
    level: ClassVar[str] = "info"

    sink: str
    stream: str


@attrs.frozen(kw_only=True)
class SinkLapsed:
    """A consumer's lease could not be confirmed, or was ended; it joins under another name."""

    event: ClassVar[str] = "sink.lapsed"
    level: ClassVar[str] = "warning"

    sink: str
    consumer: str
    dropped: int  # buffered events; they are given again, to somebody


@attrs.frozen(kw_only=True)
class SinkTroubled:
    """A background call of a sink was refused; it is repeated.

    Where a foreign value is in the way, `key` names it; the sink's other streams go on.
    """

    event: ClassVar[str] = "sink.troubled"
    level: ClassVar[str] = "warning"

    sink: str
    stream: str  # "" if it is not about one
    key: str  # "" if it is not about one
    problem: str
