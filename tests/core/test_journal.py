"""Positions, and in which order the journals of lanes are read."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from pool.core.journal import (
    FOREIGN,
    PAGE,
    JournalPage,
    Raw,
    ReadTo,
    merged,
    page_of,
    parse,
    parse_position,
    position,
)


def raw(entry_id: str, *flat: bytes) -> Raw:
    return entry_id, flat


@pytest.mark.parametrize(
    "ats",
    [
        (ReadTo("17-3", True),),
        (ReadTo(),),
        (ReadTo("17-3", True), ReadTo("99-0"), ReadTo("18446744073709551615-0", True)),
    ],
)
def test_a_position_is_read_as_it_was_told(ats: tuple[ReadTo, ...]) -> None:
    assert parse_position(position(ats), len(ats)) == ats


@pytest.mark.parametrize(
    "text", ["", "17", "17-", "-3", "17-3.", "17-3~~", "17-3 ", "1-1.2-2", "x-1", "-1-1"]
)
def test_what_is_no_position_of_this_pool_is_none(text: str) -> None:
    assert parse_position(text, 1) is None
    assert parse_position(f"{text}.1-1.1-1", 1) is None


def test_an_entry_that_is_gone_is_missed_and_a_time_is_not() -> None:
    found = [raw("5-0"), raw("6-0")]
    assert page_of(ReadTo("5-0", True), found) == JournalPage(found[1:], False, False)
    assert page_of(ReadTo("4-0", True), found) == JournalPage(found, False, True)
    assert page_of(ReadTo("4-0"), found) == JournalPage(found, False, False)
    assert page_of(ReadTo("4-0", True), []).has_missed


def test_nothing_is_told_before_what_a_full_page_may_still_lead_to() -> None:
    """Lane 0 has more behind 1000-0; what lane 1 has behind that waits, or it came too early."""
    full = [raw(f"{n}-0") for n in range(1, PAGE + 1)]
    others = [raw("500-1"), raw("1000-0"), raw("1000-1"), raw("2000-0")]
    told = list(merged({0: JournalPage(full, True, False), 1: JournalPage(others, False, False)}))
    assert len(told) == PAGE + 2
    assert told[-1] == (1, raw("1000-0"))
    assert [lane for lane, (entry_id, _) in told if entry_id.startswith("500-")] == [0, 1]
    assert (
        len(
            list(merged({0: JournalPage(full, False, False), 1: JournalPage(others, False, False)}))
        )
        == 1004
    )


def test_an_entry_is_read_whoever_has_written_it() -> None:
    fields = [b"edge", b"retried", b"key", b"k", b"id", b"j", b"epoch", b"7", b"attempt", b"x"]
    entry = parse(raw("1000-0", *fields, b"detail", b"caf\xc3"), 3, "1000-0")
    assert (entry.edge, entry.key, entry.job_id, entry.epoch, entry.attempt) == (
        *("retried", "k", "j"),
        *(7, 0),
    )
    assert (entry.lane, entry.detail) == (3, "caf")  # cut in the middle of a character
    assert entry.at == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    foreign = parse(raw("18446744073709551615-0", b"\xff", b"\x00" * 9999), 0)
    assert foreign.edge == FOREIGN
    assert len(foreign.detail) <= 200
    assert foreign.at.year == 9999
