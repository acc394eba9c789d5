"""Cron times are those that a search by minutes finds, in any zone, within a bound of steps."""

from __future__ import annotations

import random
import re
import sys
from calendar import isleap
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any, Final
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given, settings, target
from hypothesis import strategies as st

from pool.core import times as of_cron
from pool.core.times import Cron, moment, next_ms, times
from pool.errors import InvalidOption
from tests.verify import cron as table

# Lines of Python that one expression may take to be read and searched.  The most that was found is
# a third of it: one that is never due in its zone.
STEPS_MAX: Final = 100_000
SAMPLE: Final = (
    *("Pacific/Chatham", "Australia/Lord_Howe", "Africa/Cairo", "America/Havana"),
    "Europe/Chisinau",  # it is put back at midnight of UTC
)
FIELDS: Final = "0123456789*/-,L#W"


class TooManySteps(BaseException):
    """A call ran more lines than it may; it is ended, whatever it catches."""


def steps_of(call: Callable[[], object], limit: int = STEPS_MAX) -> int:
    """Return how many lines of Python a call runs."""
    steps = 0

    def count(_: FrameType, event: str, __: Any) -> Any:
        nonlocal steps
        if event == "line":
            steps += 1
            if steps > limit:
                raise TooManySteps(f"more than {limit} steps")
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        call()
    finally:
        sys.settrace(before)
    return steps


# --- the table ------------------------------------------------------------------------------


@pytest.mark.parametrize("zone", SAMPLE)
def test_cron_times_are_those_that_a_search_by_minutes_finds(zone: str) -> None:
    """A sample of `make test-cron`: the changes of one year, each other expression."""
    wrong = list[str]()
    for number, change in enumerate(table.changes(zone, 2027, 2027)):
        window = table.around(zone, change)
        wrong += [
            said
            for expression in table.expressions()[number % 2 :: 2]
            if (said := table.compare(window, expression))
        ]
    assert not wrong


def test_the_table_has_each_field_and_enough_expressions() -> None:
    expressions = table.expressions()
    assert len(set(expressions)) >= 200
    for mark in "*/-,L#":
        assert any(mark in each for each in expressions)
    assert any(len(each.split()) == 6 for each in expressions)


# Of each zone of T1 what was wrong with it: times left out, or going back, or at another hour.
FOUND: Final = [
    ("Pacific/Chatham", "50 */3 * * *", "2027-04-04T00:45+12:45", "2027-04-04T03:50+12:45"),
    ("Pacific/Chatham", "*/10 3 * * *", "2027-04-04T03:40+12:45", "2027-04-04T03:50+12:45"),
    ("Pacific/Chatham", "*/7 3 * * *", "2027-04-04T03:56+12:45", "2027-04-05T03:00+12:45"),
    ("Australia/Lord_Howe", "0 */12 * * *", "2026-04-05T00:00+11:00", "2026-04-05T12:00+10:30"),
    ("Africa/Cairo", "*/30 0 * * *", "2026-04-23T23:30+02:00", "2026-04-25T00:00+03:00"),
    ("America/Havana", "*/30 0 * * SUN", "2026-03-07T23:00-05:00", "2026-03-15T00:00-04:00"),
]


@pytest.mark.parametrize(("zone", "expression", "after", "expected"), FOUND)
def test_a_time_is_the_one_that_the_clock_shows(
    zone: str, expression: str, after: str, expected: str
) -> None:
    after_ms = round(1000 * datetime.fromisoformat(after).timestamp())
    found = list[int]()
    steps_of(lambda: found.append(next_ms(Cron(expression, tz=zone), after_ms) or 0))
    assert moment(found[0]) == datetime.fromisoformat(expected)


def test_the_page_of_schedules_tells_of_each_night_what_is_so() -> None:
    """Its table of examples is read, and each row is asked."""
    page = (Path(__file__).parents[2] / "docs/how-to/schedules.md").read_text()
    row = re.compile(r"\| `([^`]+)` \| ([^|]+) \| (\d{4}-\d\d-\d\d) \| ([^|]+) \|")
    rows, zone = row.findall(page), ""
    for expression, where, day, due in rows:
        zone = zone if where == "the same" else where.partition(":")[0]
        begin = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone))
        after_ms = round(1000 * begin.timestamp()) - 1
        shown = (
            datetime.fromtimestamp(at / 1000, ZoneInfo(zone))
            for at in islice(times(Cron(expression, tz=zone), after_ms), 9)
        )
        found = ", ".join(f"{at:%H:%M}" for at in shown if at.date() == begin.date())
        assert (found or "never") == due, expression
    assert len(rows) >= 9


# --- what the arithmetic relies on ----------------------------------------------------------


@pytest.mark.parametrize("zone", [*SAMPLE, "Africa/Casablanca", "Pacific/Apia"])
def test_no_zone_changes_its_clock_twice_within_a_day(zone: str) -> None:
    """So a day of UTC has at most two parts, whose border is found by halves; all: `test-cron`."""
    assert table.shortest_h(zone) >= 24


def test_each_kind_of_year_comes_within_the_years_that_are_searched() -> None:
    days = [date(year, 1, 1) for year in range(1970, 2770)]
    kinds = [(isleap(day.year), day.weekday()) for day in days]
    for begin in range(400):
        assert len(set(kinds[begin : begin + of_cron._YEARS_MAX])) == 14


_numbers = st.integers(0, 60).map(str)
_terms = st.one_of(
    st.just("*"),
    _numbers,
    st.tuples(_numbers, _numbers).map("-".join),
    st.tuples(st.just("*"), _numbers).map("/".join),
    st.tuples(st.tuples(_numbers, _numbers).map("-".join), _numbers).map("/".join),
    st.sampled_from(["L", "LW", "5L", "MON", "SUN", "MON#2", "7#5", "FRI-SAT", "JAN", "MAR-OCT/2"]),
)
_fields = st.lists(_terms, min_size=1, max_size=4).map(",".join)
_plain = st.lists(_fields, min_size=5, max_size=6).map(" ".join)


def _narrowed(text: str) -> str:
    """Return it as cronsim must be told it: from N to N by steps is N alone, as in every cron."""
    return re.sub(r"(?<![^ ,])(\w+)-\1/[1-9][0-9]*(?![^ ,])", r"\1", text)


@pytest.mark.parametrize(
    ("field", "low", "high"),
    [(0, 0, 59), (1, 0, 59), (2, 0, 23), (3, 1, 31), (4, 1, 12), (5, 0, 6)],
)
def test_a_range_by_steps_has_no_number_outside(field: int, low: int, high: int) -> None:
    for first in range(low, high + 1):
        for last in range(first, high + 1):
            for step in (1, 2, 3, 7, 11, 59):
                found = of_cron._term(field, f"{first}-{last}/{step}")
                assert found == sum(1 << n for n in range(first, last + 1, step))


@settings(max_examples=300)
@given(_plain, st.integers(0, 10**9))
def test_an_expression_is_read_as_cronsim_reads_it(text: str, after_min: int) -> None:
    """On a clock that is never changed: whether it can be read, and its next times."""
    start = datetime(1970, 1, 1) + timedelta(minutes=after_min % (60 * 24 * 365 * 60))  # noqa: DTZ001
    try:
        wanted = list(islice(CronSim(_narrowed(text), start), 3))
    except Exception:  # noqa: BLE001 - of the parser, whatever it stumbles over
        wanted = []
    try:
        cron = Cron(text)
    except InvalidOption:
        assert not wanted, text
        return
    after_ms = round(1000 * start.replace(tzinfo=UTC).timestamp())
    found = [moment(at).replace(tzinfo=None) for at in islice(times(cron, after_ms), 3)]
    assert found[: len(wanted)] == wanted


# --- bounds ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "zone", "says"),
    [
        ("0 0 30 2 *", "UTC", "some day fits"),
        ("0 0 31 2,4,6,9,11 *", "UTC", "some day fits"),
        ("0 0 30 2-2/2 *", "UTC", "some day fits"),
        ("*/30 2 * 3 7L", "Europe/Paris", "never due in Europe/Paris"),
        ("* 2 8-14 3 */7", "America/New_York", "never due in America/New_York"),
    ],
)
def test_an_expression_that_is_never_due_is_refused(expression: str, zone: str, says: str) -> None:
    def refused() -> None:
        with pytest.raises(InvalidOption, match=says):
            Cron(expression, tz=zone)

    assert steps_of(refused) < STEPS_MAX


_wild = st.text(FIELDS, min_size=1, max_size=40)
_any = st.one_of(_plain, st.lists(_wild, min_size=5, max_size=6).map(" ".join))
_worst = [(0, "")]  # steps, and the input that took them


@settings(max_examples=150, deadline=None)
@given(_any, st.sampled_from(table.ODD_ZONES), st.integers(0, 250 * 10**9))
def test_what_a_caller_sends_is_read_and_searched_within_a_bound_of_steps(
    text: str, zone: str, after_s: int
) -> None:
    """Nothing that a caller sends keeps an event loop busy; the worst input is reported."""

    def ask() -> None:
        of_cron.parse.cache_clear()
        of_cron._days_of_year.cache_clear()
        try:
            cron = Cron(text, tz=zone)
        except InvalidOption:
            return
        after_ms = 1000 * after_s
        for at_ms in islice(times(cron, after_ms), 3):
            assert at_ms > after_ms
            after_ms = at_ms

    steps = steps_of(ask)
    target(float(steps))
    if steps > _worst[0][0]:
        _worst[0] = steps, f"{text!r} in {zone} at {after_s}"
        sys.stdout.write(f"most steps: {_worst[0]}\n")


@pytest.mark.parametrize("expression", ["0 0 29 2 */7", "0 0 L 2 SAT", "59 59 23 31 12 FRI"])
def test_a_thousand_times_are_a_bounded_number_of_steps(expression: str) -> None:
    """As `GET /v1/schedules/NAME?next=1000` asks for."""
    cron, dice = Cron(expression, tz="Pacific/Chatham"), random.Random(7)
    after_ms = dice.randrange(10**12)
    steps = steps_of(lambda: list(islice(times(cron, after_ms), 1000)), 20 * STEPS_MAX)
    assert steps < 1000 * 1000
