"""Two ways to a zone's transitions: `zoneinfo` searched over time, and its TZif file."""

from __future__ import annotations

import struct
import zoneinfo
from collections.abc import Iterator
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from pool.demo import tzif, zones
from pool.demo.tzif import Rule, State, transitions


@pytest.fixture(autouse=True)
def _package_only() -> Iterator[None]:
    before = zoneinfo.TZPATH
    zones.read_package_only()
    yield
    zoneinfo.reset_tzpath(before)
    ZoneInfo.clear_cache()


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


def tzif_bytes(changes: list[tuple[int, int]], types: list[State], rule: str) -> bytes:
    """Return a version-2 file whose version-1 block holds something else, as RFC 8536 allows."""
    names = b"".join(state.name.encode() + b"\0" for state in types)
    starts = [names.index(state.name.encode() + b"\0") for state in types]
    records = b"".join(
        struct.pack(">lBB", state.offset_s, state.is_dst, start)
        for state, start in zip(types, starts, strict=True)
    )
    first = struct.pack(">4sc15x6L", b"TZif", b"2", 0, 0, 0, 1, 1, 4)
    first += struct.pack(">lB", 0, 0) + struct.pack(">lBB", 1234, 0, 0) + b"BAD\0"
    second = struct.pack(">4sc15x6L", b"TZif", b"2", 0, 0, 0, len(changes), len(types), len(names))
    second += b"".join(struct.pack(">q", t) for t, _ in changes)
    second += bytes(kind for _, kind in changes) + records + names
    return first + second + b"\n" + rule.encode() + b"\n"


LMT, CET, CEST = State(3208, False, "LMT"), State(3600, False, "CET"), State(7200, True, "CEST")


def test_the_keys_are_those_of_the_package() -> None:
    names = zones.names()
    assert len(names) == len(set(names))
    assert {"Europe/Berlin", "America/New_York", "UTC"} <= set(names)
    assert zoneinfo.TZPATH == ()


def test_the_search_finds_what_the_file_says_in_every_zone() -> None:
    """All zones, a fifth of the years each: together they cover them all many times over."""
    span_s = (zones.UNTIL_S - zones.SINCE_S) // 5
    wrong = []
    for i, name in enumerate(zones.names()):
        since_s = zones.SINCE_S + i % 5 * span_s
        until_s = since_s + span_s
        zone = ZoneInfo(name)
        found = zones.state_at(zone, since_s), list(zones.transitions(zone, since_s, until_s))
        if found != transitions(zones.file_of(name), since_s, until_s):
            wrong.append(name)
    assert wrong == []


def test_the_footer_rule_is_right_where_the_table_ends() -> None:
    """After 2037 every zone follows its rule, and `zoneinfo` reads that by itself."""
    since_s, until_s = at("2040-01-01"), at("2044-01-01")
    wrong = []
    for name in zones.names():
        zone = ZoneInfo(name)
        first, found = transitions(zones.file_of(name), since_s, until_s)
        looks = [(since_s, first), *found]
        expected = [(t, zones.state_at(zone, t)) for t, _ in looks]
        before = [zones.state_at(zone, t - 1).offset_s for t, _ in found]
        if looks != expected or before != [state.offset_s for _, state in looks[:-1]]:
            wrong.append(name)
    assert wrong == []


def test_no_zone_goes_there_and_back_between_two_looks() -> None:
    """The search looks every few days; two changes must never lie that close and cancel out."""
    for name in zones.names():
        first, found = transitions(zones.file_of(name), zones.SINCE_S, zones.UNTIL_S)
        states = [(zones.SINCE_S, first), *found]
        for (_, before), (left_s, _), (back_s, after) in zip(
            states, states[1:], states[2:], strict=False
        ):
            assert after.offset_s != before.offset_s or back_s - left_s > zones._STEP_S, name


def test_a_year_of_berlin() -> None:
    first, found = transitions(zones.file_of("Europe/Berlin"), at("2026-01-01"), at("2027-01-01"))
    assert first == CET
    assert found == [(at("2026-03-29T01:00:00"), CEST), (at("2026-10-25T01:00:00"), CET)]


def test_only_the_second_block_counts_and_the_footer_goes_on_behind_it() -> None:
    data = tzif_bytes([(-1000, 1)], [LMT, CET], "CET-1CEST,M3.5.0,M10.5.0/3")
    first, found = transitions(data, at("1970-01-01"), at("1971-01-01"))
    assert first == CET
    assert found == [(at("1970-03-29T01:00:00"), CEST), (at("1970-10-25T01:00:00"), CET)]


def test_before_the_first_change_the_first_type_holds() -> None:
    data = tzif_bytes([(5000, 1)], [LMT, CET], "CET-1")
    assert transitions(data, 0, 10_000) == (LMT, [(5000, CET)])


def test_a_change_of_the_name_alone_is_none() -> None:
    other = State(3600, True, "XYZ")
    data = tzif_bytes([(100, 1), (200, 1), (250, 2), (300, 0)], [LMT, CET, other], "LMT-0:53:28")
    assert transitions(data, 0, 1000) == (LMT, [(100, CET), (300, LMT)])


def test_the_bounds_are_open() -> None:
    data = tzif_bytes([(100, 1), (200, 0)], [LMT, CET], "LMT-0:53:28")
    assert transitions(data, 100, 200) == (CET, [])
    assert transitions(data, 99, 201) == (LMT, [(100, CET), (200, LMT)])


@pytest.mark.parametrize(
    ("text", "year", "expected"),
    [
        ("<-03>3<-02>,M3.5.0/-2,M10.5.0/-1", 2026, ["2026-03-29T01:00:00", "2026-10-25T01:00:00"]),
        ("EST5EDT,M3.2.0,M11.1.0", 2026, ["2026-03-08T07:00:00", "2026-11-01T06:00:00"]),
        ("IST-1GMT0,M10.5.0,M3.5.0/1", 2026, ["2026-03-29T01:00:00", "2026-10-25T01:00:00"]),
        ("XXX0YYY,J60,J300", 2024, ["2024-03-01T02:00:00", "2024-10-27T01:00:00"]),
        ("XXX0YYY,59/0,300/0", 2024, ["2024-02-29T00:00:00", "2024-10-26T23:00:00"]),
        ("IST-2IDT,M3.4.4/26,M10.5.0", 2026, ["2026-03-27T00:00:00", "2026-10-24T23:00:00"]),
        ("XXX-1:30:15YYY-3,M1.1.1/0,M12.5.5", 2026, ["2026-01-04T22:29:45", "2026-12-24T23:00:00"]),
    ],
)
def test_rules(text: str, year: int, expected: list[str]) -> None:
    rule = Rule.parse(text)
    assert rule is not None
    assert [t for t, _ in rule.changes(range(year, year + 1))] == [at(each) for each in expected]


def test_a_rule_without_daylight_saving() -> None:
    rule = Rule.parse("<+0545>-5:45")
    assert rule is not None
    assert rule.standard == State(20_700, False, "+0545")
    assert list(rule.changes(range(2026, 2028))) == []
    assert Rule.parse("") is None


@pytest.mark.parametrize("text", ["CET", "CET-1CEST", "CET-1CEST,M3.5.0", "CET-1CEST,x,y", "1"])
def test_what_is_no_rule(text: str) -> None:
    with pytest.raises(ValueError, match="not a"):
        Rule.parse(text)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"TZif",
        struct.pack(">4sc15x6L", b"TZif", b"\0", 0, 0, 0, 0, 1, 1),
        b"x" * 200,
        tzif_bytes([], [LMT], "CET-1")[:-1],
        tzif_bytes([], [LMT], "nonsense"),
    ],
)
def test_what_is_no_zone(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"TZif|header|footer|rule"):
        tzif.transitions(data, 0, 1)
