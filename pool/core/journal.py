"""The journal of a pool: what does not happen to ordinary jobs, entry by entry; pure.

Each lane has a stream of the latest 10,000, `lib/journal.lua` says of what size.  A script that
makes such an edge writes its entry in the same step (the words of EDGES); what only a node can see
it writes itself, under the name of its event.  So the first are there or did not happen, and the
latter may be lost with their node, or be there twice.

A position says how far somebody has read: of each lane the id of the latest entry, dots between.
Behind one that is no entry's own, but a time, stands a ~: only of the others can be said that they
are not there any more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, TypeAlias

import attrs

from pool.core.ids import number_or, order

# What scripts write, and what it means.  "started" and the like are there on request.
EDGES: Final[Mapping[str, str]] = {
    "accepted": "on request: a job was recorded",
    "started": "on request: its worker has acknowledged it",
    "done": "on request: it returned",
    "retried": "an attempt failed, and another one follows",
    "released": "its worker gave it up in order: a hand-off, a drain, or it had no slot",
    "taken_over": "it was taken from a worker that died or hangs, or had not begun it in time",
    "stop": "somebody asked it to stop",
    "timed_out": "it ran for too long, and others ended its attempt",
    "cancelled": "it has ended: stopped, superseded, expired, or cancelled by itself",
    "parked": "it was given up",
    "malformed": "a record, or a message between lanes, cannot be read, and was parked as it is",
    "overlap": "a schedule's time came while the job of its key still ran, and made none",
    "fenced": "a worker's or a node's lease has ended; all that it writes is refused from now on",
    "reaper.succeeded": "who took over from it has died, and another one goes on",
    "silence": "nobody was answered for long: no lease ends by that time",
    "server": "another server answers, which may lack renewals: nobody is fenced for a TTL",
    "clock": "pool time was set right, or the server's clock is behind",
    "ttl": "the lane goes by another TTL",
    "paused": "the pool, a handler or a key was paused",
    "resumed": "it was resumed",
    "channel": "where a lane stands with what another one has for it was not as that one had it",
}
# What a reader says of itself.
MISSED: Final = "missed"
UNREAD: Final = "unread"
FOREIGN: Final = "foreign"
TOLD: Final[Mapping[str, str]] = {
    MISSED: "entries behind the position are gone: the cap took them, or the journal began anew",
    UNREAD: "a lane does not answer, or another value stands in its journal's place",
    FOREIGN: "an entry that somebody else has written",
}

DETAIL_BYTES_MAX: Final = 200  # of an entry; what is longer lib/journal.lua cuts
PAGE: Final = 1000  # entries of a lane in one read
ZERO: Final = "0-0"
_ID: Final = re.compile(r"(\d{1,20})-(\d{1,20})(~?)")
_SHOWN: Final = 200  # characters of what somebody else wrote

Raw: TypeAlias = tuple[str, Sequence[bytes]]  # id; names and values in turn


@attrs.frozen
class ReadTo:
    """How far a lane's journal was read: up to this id, which an entry has had, or not."""

    id: str = ZERO
    is_exact: bool = False

    def __str__(self) -> str:
        return self.id if self.is_exact else f"{self.id}~"


def parse_position(text: str, lanes: int) -> tuple[ReadTo, ...] | None:
    """Return where each lane stands, or None for what is no position in a pool of so many lanes."""
    found = [_ID.fullmatch(each) for each in text.split(".")]
    if len(found) != lanes or not all(found):
        return None
    return tuple(ReadTo(f"{each[1]}-{each[2]}", not each[3]) for each in found if each is not None)


def position(ats: Sequence[ReadTo]) -> str:
    """Return it as text."""
    return ".".join(map(str, ats))


@attrs.frozen(kw_only=True)
class JournalEntry:
    """One edge that was noted.

    `position` is what leads on behind it (`since=`), `at` the time of the server's own clock; of
    what a reader says of itself (`missed`, `unread`) that of its own machine.
    `edge` is a word of the table in `docs/reference/events.md`, or the name of an event.
    What an edge is not about is empty, or 0.
    """

    position: str
    at: datetime
    lane: int
    edge: str
    key: str = ""
    job_id: str = ""
    handler: str = ""
    owner: str = ""
    epoch: int = 0
    attempt: int = 0
    detail: str = ""


def parse(raw: Raw, lane: int, at: str = "") -> JournalEntry:
    """Return what a stream's entry says; who else wrote there must not end its reader."""
    entry_id, flat = raw
    fields = dict(
        zip((name.decode(errors="replace") for name in flat[::2]), flat[1::2], strict=True)
    )

    def text(name: str) -> str:
        return fields.get(name, b"").decode(errors="replace").rstrip("\ufffd")

    edge, detail = text("edge"), text("detail")
    if not edge:
        edge, detail = FOREIGN, repr(fields)[:_SHOWN]
    return JournalEntry(
        position=at,
        at=time_of(entry_id),
        lane=lane,
        edge=edge,
        key=text("key"),
        job_id=text("id"),
        handler=text("handler"),
        owner=text("owner"),
        epoch=number_or(0, fields.get("epoch")),
        attempt=number_or(0, fields.get("attempt")),
        detail=detail,
    )


_MS_MAX: Final = 253_402_300_799_000  # the end of the year 9999


def time_of(entry_id: str) -> datetime:
    """Return when an entry was written, by its server's clock."""
    return datetime.fromtimestamp(min(order(entry_id)[0], _MS_MAX) / 1000, UTC)


@attrs.frozen
class JournalPage:
    """What one read of a lane's journal has brought."""

    entries: Sequence[Raw]
    is_full: bool  # there may be more
    has_missed: bool  # the entry that it was read up to is gone


def page_of(at: ReadTo, found: Sequence[Raw]) -> JournalPage:
    """Take what was read from a place on, that itself included."""
    is_there = bool(found) and found[0][0] == at.id
    rest = found[1:] if is_there else found
    return JournalPage(rest, len(found) >= PAGE, at.is_exact and not is_there)


def merged(pages: Mapping[int, JournalPage]) -> Iterator[tuple[int, Raw]]:
    """Yield lane and entry, in their order, as far as no lane can have one before them.

    What stands behind that is read again.
    """
    ends = [order(page.entries[-1][0]) for page in pages.values() if page.is_full and page.entries]
    horizon = min(ends, default=None)
    found = [(order(raw[0]), lane, raw) for lane, page in pages.items() for raw in page.entries]
    for rank, lane, raw in sorted(found, key=lambda each: each[:2]):
        if horizon is not None and rank > horizon:
            return
        yield lane, raw
