"""The walk over all records of a lane: how fast it goes, and what is to be done about one record.

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

from pool.core.record import Record

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
