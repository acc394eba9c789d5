"""Walks over what grows without a bound, a page at a time.

How much one call touches of what grows without a bound; the next call takes the next page.

Nobody holds a place in Redis while it turns pages: where it stands it knows itself, so a pager that
dies leaves nothing behind, and who comes next begins anew.  What a page says is true of that page
alone, at the moment of its call.

No script shall hold the server for over 5 ms, on a machine that spends 10 us on each of these.

The walk over all records of a lane: how fast it goes, and what is to be done about one record.

what its indexes and its owner's lease say          what is done
unassigned, not in its index                        granted, or left unassigned anew
its owner was reaped, nobody looks there any more   what follows a crash, see `settlement.recover`
not in the index of its state                       put back where it says
queued, or a line of such (see lua/lib/queue.lua)   looked after by a script of its own
its owner has no lease that could end               its owner is suspected: fenced, then reaped
"""

from __future__ import annotations

import math
from typing import Final, Literal, TypeAlias

import attrs

from pool.core.record import Record


@attrs.frozen(kw_only=True)
class Pages:
    """All sizes; the simulator makes them small, so that every page has a next one."""

    claims: int = 32  # identities of a lane that one node fences at once, and that it reaps at once
    moved: int = 64  # keys moved, restored or parked by one call
    listed: int = 256  # keys that a worker owns, and starts of its, by name
    compared: int = 128  # keys of which a worker asks what their records say
    messages: int = 256  # of an inbox; beside ...
    message_bytes: int = 256 * 1024  # ... so many bytes of them; one alone may be larger
    outcome_bytes: int = 256 * 1024  # ... of outcomes that one look tells; one alone may be larger
    letters: int = 256  # dead letters that one call looks at; beside ...
    letter_bytes: int = 1024 * 1024  # ... so many bytes of them; one alone may be larger
    carried: int = 64  # messages that one lane takes of another's at once; beside ...
    carried_bytes: int = 1024 * 1024  # ... so many bytes of them; one alone may be larger
    fired: int = 64  # schedules that are fired at once; beside ...
    fired_bytes: int = 1024 * 1024  # ... so many bytes of them; one alone may be larger
    mustered: int = 256  # members of a batch that one call tells of
    looked_at: int = 500  # messages, or entries, among which one is looked for


PAGES = Pages()


SLICE: Final = 1_000  # records fetched at once, about: 0.7 ms of the server's time
JUDGED: Final = 200  # of them looked up and judged without a pause: 2 ms of the event loop's
_PASS_S: Final = 300.0  # for a million records, in all lanes together
_RECORDS: Final = 1_000_000
_REST_S_MAX: Final = 300.0  # between passes over a small pool, however long the TTL is

# none: the record names no owner.  claimed: fenced, and its reaper comes to every key of its.
# adrift: neither lease nor claim has a deadline.
Standing: TypeAlias = Literal["none", "live", "claimed", "adrift", "done"]
WalkStep: TypeAlias = Literal["recover", "restore", "suspect"]


def rest_s(ttl_s: float) -> float:
    """Return how long a pass over a pool of no size takes."""
    return min(2 * ttl_s, _REST_S_MAX)


def pause_s(records: int, lanes: int, ttl_s: float) -> float:
    """Return how long it is from one slice to the next, in a lane with so many records."""
    pass_s = max(rest_s(ttl_s), _PASS_S * records * lanes / _RECORDS)
    return pass_s / max(1, math.ceil(records / SLICE))


def standing(owner: str, has_lease: bool, claim: bytes | None) -> Standing:
    """Return how an owner stands, as `keepalive` and `cleanup` say."""
    if owner == "":
        return "none"
    if claim == b"done":
        return "done"
    if not has_lease:
        return "adrift"
    return "live" if claim is None else "claimed"


_INDEXES: Final = {
    "pending": (("pending",), ("pending", "due")),
    "running": (("owned",), ("owned", "due")),
    "unassigned": (("unassigned",), ("unassigned", "due")),
    "waiting": (("due",), ("due",)),
    "queued": ((), ()),
}


def indexes(record: Record) -> tuple[str, ...]:
    """Return the indexes in which a record stands."""
    return _INDEXES[record.state]["d" in record.flags]


def steps(record: Record, owner: Standing, *, is_missing: bool) -> tuple[WalkStep, ...]:
    """Return what is to be done about a record, in order; nothing if it is where it belongs."""
    if owner == "done" or (record.state == "unassigned" and is_missing):
        return ("recover",)
    found: list[WalkStep] = ["restore"] if is_missing else []
    return (*found, "suspect") if owner == "adrift" else tuple(found)
