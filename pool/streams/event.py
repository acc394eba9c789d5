"""Events of a stream as pure data: what one is, where reading starts, and which ones are wanted."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, TypeAlias

import attrs

from pool import checks
from pool.core.ids import number_or, order
from pool.errors import PayloadTooLarge

EVENT_BYTES_MAX: Final = 256
TOPIC_BYTES_MAX: Final = 512
LENGTH_MAX: Final = 100_000_000
NEWEST: Final = "newest"  # no id: the server replaces it, once
FIRST: Final = "0-0"  # the id behind which every event lies
_WORDS: Final = {"oldest": FIRST, NEWEST: NEWEST}
_SEQ_MAX: Final = 2**64 - 1
_MS_MAX: Final = 2**53  # what Lua can count
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ID: Final = re.compile(r"(\d{1,20})-(\d{1,20})", re.ASCII)

StartAt: TypeAlias = str | int | datetime
After: TypeAlias = Literal["", "missed", "restarted"]


@attrs.frozen(kw_only=True)
class StreamEvent:
    """One event of a stream."""

    stream: str  # the stream's name
    id: str  # `milliseconds-number`; later events of a stream have greater ids
    event: str
    payload: bytes
    topic: str | None = None
    deliveries: int = 1  # to a sink: how often it was given to a consumer, this time included
    # What comes before it in this stream, to a reader: nothing unusual; events that a length cap
    # took before they were read; or the stream began anew, and is read from its beginning.
    after: After = ""
    # What tells it from another event with its id, which a server that lost data may give anew.
    mark: bytes = attrs.field(default=b"", repr=False, eq=False)
    # The connection that was there when it was read; None: no longer known, as in another process.
    link: object | None = attrs.field(default=None, repr=False, eq=False)

    @property
    def time_ms(self) -> int:
        """When it was added, in epoch milliseconds by the server's clock."""
        return int(self.id.partition("-")[0])


EventName: TypeAlias = tuple[str, bytes]  # id and mark


def name_of(event: StreamEvent) -> EventName:
    """Return what tells an event of a stream from all others."""
    return event.id, event.mark


# --- ids ------------------------------------------------------------------------------------


def is_id(text: object) -> bool:
    """Say whether it is an event's id."""
    found = _ID.fullmatch(text) if type(text) is str else None
    return found is not None and max(map(int, found.groups())) <= _SEQ_MAX


def check_id(option: str, text: object) -> None:
    """Refuse what is no event's id.

    Raises:
        InvalidOption: It is none.
    """
    if not is_id(text):
        raise checks.option(option, text, "an event's id")


def position_of(start: Any) -> str:
    """Return the id behind which to read for what a user calls a start, or `newest`.

    Raises:
        InvalidOption: It is none.
    """
    kind = type(start)
    if kind is str and start in _WORDS:
        return _WORDS[start]
    if is_id(start):
        ms, number = order(start)
        return f"{ms}-{number}"
    if issubclass(kind, int) and kind is not bool:
        return _just_before(checks.count("start", start, 0, _MS_MAX))
    if issubclass(kind, datetime):
        with suppress(Exception):  # of a kind of datetime, or of a zone, whose code is the caller's
            if start.tzinfo is not None and start >= _EPOCH:
                return _just_before(int((start - _EPOCH) // timedelta(milliseconds=1)))
    since = "a datetime with a zone, of 1970 or later"
    must = f"'oldest', 'newest', an event's id, {since}, or epoch milliseconds"
    raise checks.option("start", start, must)


def epoch_ms(option: str, when: Any) -> int:
    """Return a datetime with a zone, or epoch milliseconds, as the latter.

    Raises:
        InvalidOption: It is neither.
    """
    kind = type(when)
    if issubclass(kind, int) and kind is not bool:
        return checks.count(option, when, 1, _MS_MAX)
    if issubclass(kind, datetime):
        with suppress(Exception):  # of a kind of datetime, or of a zone, whose code is the caller's
            if when.tzinfo is not None and when > _EPOCH:
                return int((when - _EPOCH) // timedelta(milliseconds=1))
    must = "a datetime with a zone, later than the first moment of 1970, or epoch milliseconds"
    raise checks.option(option, when, must)


def _just_before(ms: int) -> str:
    return f"{ms - 1}-{_SEQ_MAX}" if ms else FIRST


# --- what is written ------------------------------------------------------------------------


def encoded_name(option: str, text: object, bytes_max: int) -> bytes:
    """Return an event's name or a topic in UTF-8; any text will do that is not empty.

    Raises:
        InvalidOption: It is no text, empty, or cannot be encoded.
        PayloadTooLarge: It is longer than `bytes_max`.
    """
    encoded = checks.utf8(option, text)
    if not encoded:
        raise checks.option(option, text, "a text that is not empty")
    if len(encoded) > bytes_max:
        raise PayloadTooLarge(what=option, size_bytes=len(encoded), size_bytes_max=bytes_max)
    return encoded


# --- what is wanted -------------------------------------------------------------------------


def _pattern(text: str | None) -> re.Pattern[str] | None:
    return None if text is None else re.compile(fnmatch.translate(text))


@attrs.frozen(kw_only=True)
class Filter:
    """Which events are wanted: those that pass all of the three.  Evaluated here, not in Redis."""

    topics: frozenset[str] | None = None
    pattern: re.Pattern[str] | None = None
    where: Callable[[StreamEvent], object] | None = None

    @classmethod
    def of(
        cls,
        topics: Iterable[str] | None,
        pattern: str | None,
        where: Callable[[StreamEvent], object] | None,
    ) -> Filter:
        """Check what a user gives.

        Raises:
            InvalidOption: One of them is of the wrong kind.
        """
        wanted: frozenset[str] | None = None
        if topics is not None:
            found = checks.several("topics", topics, "texts")
            wanted = frozenset(checks.text("topics", each) for each in found)
        if pattern is not None:
            checks.text("pattern", pattern)
        if where is not None:
            checks.plain_function("where", where)
        return cls(topics=wanted, pattern=_pattern(pattern), where=where)

    def takes_topic(self, topic: str | None) -> bool:
        """Say whether the topic is wanted; an event without one passes only if none is asked."""
        if self.topics is not None and topic not in self.topics:
            return False
        return self.pattern is None or (topic is not None and bool(self.pattern.match(topic)))

    def takes(self, event: StreamEvent) -> bool:
        """Say whether the user's own function wants it; raises what that raises."""
        return self.where is None or bool(self.where(event))


def event_of(stream: str, entry_id: str, fields: dict[str, bytes], **more: Any) -> StreamEvent:
    """Return what an entry says.  A foreign entry has an empty name and no payload.

    Bytes that are no UTF-8 can only come from foreign writers; they are shown as such.
    """
    topic = fields.get("t")
    return StreamEvent(
        stream=stream,
        id=entry_id,
        event=fields.get("e", b"").decode(errors="backslashreplace"),
        payload=fields.get("p", b""),
        mark=fields.get("m", b""),
        topic=None if topic is None else topic.decode(errors="backslashreplace"),
        **more,
    )


def number_of(fields: dict[str, bytes]) -> int | None:
    """Return the event's number in its stream, from 1, or None if it has none."""
    return number_or(0, fields.get("n")) or None
