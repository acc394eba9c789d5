"""Events, where reading starts, and what is wanted; without a server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.core.ids import order
from pool.errors import InvalidOption
from pool.streams.event import FIRST, NEWEST, Filter, StreamEvent, event_of, number_of, position_of

IDS = st.tuples(st.integers(0, 2**63), st.integers(0, 2**64 - 1))


@given(st.lists(IDS, min_size=2))
def test_ids_are_ordered_as_the_server_orders_them(pairs: list[tuple[int, int]]) -> None:
    ids = [f"{ms}-{number}" for ms, number in pairs]
    assert [order(each) for each in sorted(ids, key=order)] == sorted(pairs)


@given(IDS)
def test_an_id_is_a_position_as_it_is(pair: tuple[int, int]) -> None:
    assert position_of(f"{pair[0]}-{pair[1]}") == f"{pair[0]}-{pair[1]}"


@given(st.integers(0, 2**53))
def test_a_time_begins_with_the_first_event_of_its_millisecond(ms: int) -> None:
    behind = order(position_of(ms))
    assert behind < (ms, 0) or ms == 0
    assert ms == 0 or behind > (ms - 1, 2**64 - 2)


def test_names_and_dates_are_positions() -> None:
    assert position_of("oldest") == FIRST == position_of(0)
    assert position_of("newest") == NEWEST
    assert position_of("007-01") == "7-1"
    when = datetime(2024, 1, 1, tzinfo=UTC)
    assert position_of(when) == position_of(int(when.timestamp()) * 1000)
    assert position_of(when + timedelta(microseconds=999)) == position_of(when)


@pytest.mark.parametrize(
    "start",
    [
        *("", "new", "1", "1-", "-1", "1-2-3", "x-1", " 1-1", "1-1\n", "1-99999999999999999999"),
        *(-1, 2**60, True, 1.0, None, b"1-1"),
        datetime(2024, 1, 1),  # noqa: DTZ001 - that is the point
        datetime(1960, 1, 1, tzinfo=UTC),
        datetime.min.replace(tzinfo=UTC),
    ],
)
def test_what_is_no_start_is_refused(start: Any) -> None:
    with pytest.raises(InvalidOption) as raised:
        position_of(start)
    if isinstance(start, datetime):
        assert "a datetime with a zone, of 1970 or later" in raised.value.problem


@given(st.dictionaries(st.sampled_from("netpx"), st.binary()))
def test_any_foreign_entry_is_an_event(fields: dict[str, bytes]) -> None:
    event = event_of("s", "5-1", fields)
    assert (event.payload, event.time_ms) == (fields.get("p", b""), 5)
    assert (event.topic is None) == ("t" not in fields)
    number = number_of(fields)
    assert number is None or number > 0


@pytest.mark.parametrize(
    ("topic", "topics", "pattern", "expected"),
    [
        ("a", None, None, True),
        (None, None, None, True),
        (None, {"a"}, None, False),
        (None, None, "*", False),
        ("a\nb", None, "a*b", True),
        ("A", None, "a", False),
        ("a", {"a"}, "b", False),
        ("[", None, "[[]", True),
        ("", {""}, None, True),
    ],
)
def test_topics_and_patterns(
    topic: str | None, topics: set[str] | None, pattern: str | None, *, expected: bool
) -> None:
    assert Filter.of(topics, pattern, None).takes_topic(topic) == expected


def test_a_function_is_asked_last_and_may_raise() -> None:
    event = StreamEvent(stream="s", id="1-1", event="e", payload=b"")
    assert Filter.of(None, None, None).takes(event)
    assert not Filter.of(None, None, lambda _: 0).takes(event)
    with pytest.raises(ZeroDivisionError):
        Filter.of(None, None, lambda _: 1 // 0).takes(event)
