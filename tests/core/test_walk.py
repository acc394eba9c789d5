"""The walk's pace and judgement, on tables."""

from __future__ import annotations

import pytest

from pool.core.record import Record
from pool.core.walk import SLICE, Standing, indexes, pause_s, rest_s, standing, steps


def record(state: str, flags: str = "") -> Record:
    owner = "w1.1" if state in "PR" else ""
    found = Record.parse(f"{state}|j|id|h|{owner}|7|1|{flags}||||||||".encode())
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("records", "lanes", "ttl_s", "pass_s"),
    [
        (0, 1, 10.0, 20.0),
        (1_000, 1, 10.0, 20.0),
        (10_000, 4, 1.0, 12.0),
        (1_000_000, 1, 10.0, 300.0),
        (125_000, 8, 10.0, 300.0),  # a million in eight lanes
        (0, 1, 3600.0, 300.0),
    ],
)
def test_a_million_records_take_five_minutes_and_a_few_two_leases(
    records: int, lanes: int, ttl_s: float, pass_s: float
) -> None:
    slices = max(1, -(-records // SLICE))
    assert slices * pause_s(records, lanes, ttl_s) == pytest.approx(pass_s)
    assert rest_s(ttl_s) <= pass_s


@pytest.mark.parametrize(
    ("owner", "has_lease", "claim", "stands"),
    [
        ("", False, None, "none"),
        ("w1.1", True, None, "live"),
        ("w1.1", True, b"n1.1|7", "claimed"),
        ("w1.1", False, b"n1.1|7", "adrift"),
        ("w1.1", False, None, "adrift"),
        ("w1.1", True, b"done", "done"),
        ("w1.1", False, b"done", "done"),
    ],
)
def test_an_owner_stands_as_its_lease_and_its_claim_say(
    owner: str, has_lease: bool, claim: bytes | None, stands: Standing
) -> None:
    assert standing(owner, has_lease, claim) == stands


def test_a_record_stands_in_the_index_of_its_state_and_where_flag_d_says() -> None:
    assert [indexes(record(state)) for state in "PRWU"] == [
        ("pending",),
        ("owned",),
        ("due",),
        ("unassigned",),
    ]
    assert [indexes(record(state, "d")) for state in "PRW"] == [
        ("pending", "due"),
        ("owned", "due"),
        ("due",),
    ]


@pytest.mark.parametrize(
    ("state", "owner", "is_missing", "expected"),
    [
        ("P", "live", False, ()),
        ("P", "live", True, ("restore",)),
        ("R", "claimed", True, ("restore",)),  # where its reaper finds it
        ("R", "claimed", False, ()),
        ("R", "adrift", False, ("suspect",)),
        ("R", "adrift", True, ("restore", "suspect")),  # in this order
        ("P", "done", False, ("recover",)),
        ("R", "done", True, ("recover",)),
        ("W", "none", True, ("restore",)),
        ("U", "none", True, ("recover",)),
        ("U", "none", False, ()),
    ],
)
def test_what_is_done_follows_from_what_is_missing_and_who_would_come(
    state: str, owner: Standing, is_missing: bool, expected: tuple[str, ...]
) -> None:
    assert steps(record(state), owner, is_missing=is_missing) == expected
