"""Cron times compared with a search by minutes, around each change of each zone's clock.

    python -m tests.verify.cron [--jobs 2]      the whole table, as `make test-cron`
    tests/core/test_cron.py                     a sample of it

The search asks for each minute of real time what the zone's clock shows, and whether that fits: by
cronsim's reading of the fields, on a clock without a zone.  It shares no code with `core/times.py`.
"""

from __future__ import annotations

import argparse
import random
import sys
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import compress, product
from typing import Final
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim

from pool.core.times import Cron, next_ms

FIRST_YEAR, LAST_YEAR = 2020, 2037
AROUND_D: Final = 3  # days before and after each change
YEARS: Final = (
    5  # whole ones, of each of these zones: their clocks change by odd amounts, or at midnight
)
ODD_ZONES: Final = (
    "Pacific/Chatham",
    "Australia/Lord_Howe",
    "Africa/Cairo",
    "America/Santiago",
    "America/Havana",
    "Asia/Beirut",
    "Atlantic/Azores",
)
_POINTS: Final = 5  # moments of each window, drawn at random, from which the next time is asked
_BEHIND_S: Final = (-1, 0, 1500, 3300)  # so long after a change, as well
_DAY: Final = 1440
_YEAR_DENSEST: Final = 15  # minutes between two times, on average, of what is tried for whole years
_STEP_S: Final = 6 * 3600
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - of no zone
_NO_ZONES: Final = {"localtime", "posixrules", "Factory"}

_MINUTES: Final = ("0", "30", "50", "*/10", "*/30", "*/7", "5-50/15", "0,15,45", "7/20")
_HOURS: Final = ("*", "*/3", "*/12", "0", "2", "3", "23", "0-4", "1,2,3", "22-23")
_DATES: Final = (
    "L * *",
    "LW * *",
    "1 * *",
    "*/2 * MON",
    "13 * FRI",
    "1-7 * SUN",
    "* 3,4 SUN",
    "* MAR-NOV/2 *",
    "* */3 6,7",
    "* * MON#1",
    "* * 7L",
    "* * SUN#2",
    "* * MON-FRI",
    "* OCT,APR *",
    "25-31 * *",
    "*/5 * *",
    "L * SAT",
)
_TIMES: Final = ("0 0", "*/30 0", "30 2", "*/20 2", "15 */6", "0,30 1-3", "45 23")
_OTHERS: Final = ("* * * * *", "* 2 * * *", "*/1 0-3 * * SUN", "*/15 3 * * *", "*/10 3,4 * * *")
_SECONDS: Final = ("30 */10 3 * * *", "0,20 30 2 * * *", "*/30 59 23 * * *", "15 0 0 L * *")


def expressions() -> list[str]:
    """Return what is tried: each field with stars, steps, ranges and lists."""
    of_times = [f"{minute} {hour} * * *" for minute, hour in product(_MINUTES, _HOURS)]
    of_dates = [f"{at} {day}" for at, day in product(_TIMES, _DATES)]
    return [*of_times, *of_dates, *_OTHERS, *_SECONDS]


# --- the search by minutes --------------------------------------------------------------------


class Window:
    """What a zone's clock shows in each minute from one minute of real time to another."""

    def __init__(self, zone: str, begin: int, end: int) -> None:
        self.zone, self.begin, self.end = zone, begin, end
        info = ZoneInfo(zone)
        self.minutes = range(begin - 2 * _DAY, end + 2 * _DAY)
        shown = [datetime.fromtimestamp(60 * at, info).utcoffset() for at in self.minutes]
        # Local times are minutes since 1970, too.  No zone is beside a minute since 1972.
        self.local = [
            at + (offset.days * _DAY + offset.seconds // 60)
            for at, offset in zip(self.minutes, shown, strict=True)
            if offset is not None
        ]
        self.first_day = min(self.local) // _DAY
        self.days = [
            (_EPOCH + timedelta(days=day)).date()
            for day in range(self.first_day, max(self.local) // _DAY + 1)
        ]
        self.first: dict[int, int] = {}
        for at, local in zip(self.minutes, self.local, strict=True):
            self.first.setdefault(local, at)
        self.shown = range(min(self.local), max(self.local))
        self.slots = [local - _DAY * self.first_day for local in self.local]

    def times(self, expression: str) -> list[int]:
        """Return each second of real time at which an expression is due, by looking at all."""
        seconds, of_day, fields = _fitting(expression)
        fits = (fields.match_day(day) and day.month in fields.months for day in self.days)
        table = b"".join(of_day if is_fit else bytes(_DAY) for is_fit in fits)
        if fields.parts[1].startswith("*") or fields.parts[2].startswith("*"):
            found = compress(self.minutes, map(table.__getitem__, self.slots))
            at_s = {60 * at + second for at in found for second in seconds}
        else:
            at_s = set()
            for slot in compress(range(len(table)), table):
                at_s.update(self._named(slot + _DAY * self.first_day, seconds))
        return sorted(at for at in at_s if 60 * self.begin <= at < 60 * self.end)

    def _named(self, local: int, seconds: Sequence[int]) -> Iterator[int]:
        """Yield when a time of the clock is due: where it comes first, or at the end of its gap."""
        if local in self.first:
            yield from (60 * self.first[local] + second for second in seconds)
        elif self.shown.start < local < self.shown.stop:
            while local not in self.first:
                local += 1
            yield 60 * self.first[local]


@cache
def _fitting(expression: str) -> tuple[list[int], bytes, CronSim]:
    fields = CronSim(expression, _EPOCH)
    of_day = bytes(m // 60 in fields.hours and m % 60 in fields.minutes for m in range(_DAY))
    return sorted(fields.seconds), of_day, fields


# --- windows ----------------------------------------------------------------------------------


def _minute(when: datetime) -> int:
    return int(when.timestamp()) // 60


def _offset_s(zone: ZoneInfo, at_s: int) -> float:
    offset = datetime.fromtimestamp(at_s, zone).utcoffset()
    assert offset is not None
    return offset.total_seconds()


def changes(zone: str, first_year: int = FIRST_YEAR, last_year: int = LAST_YEAR) -> list[int]:
    """Return the minutes at which a zone's clock is changed."""
    info, found = ZoneInfo(zone), list[int]()
    begin, end = (60 * _minute(datetime(y, 1, 1, tzinfo=UTC)) for y in (first_year, last_year + 1))
    for day in range(begin, end, 86_400):
        if _offset_s(info, day) != _offset_s(info, day + 86_400):
            found += [
                at // 60
                for at in range(day, day + 86_400, 60)
                if _offset_s(info, at) != _offset_s(info, at + 60)
            ]
    return found


def shortest_h(zone: str) -> int:
    """Return the least number of hours, in steps of 6, between two changes of a zone since 1970."""
    info, last, shortest = ZoneInfo(zone), -(10**12), 10**12
    offset = _offset_s(info, 0)
    for at in range(0, 86_400 * 365 * 68, _STEP_S):
        following = _offset_s(info, at + _STEP_S)
        if following != offset:
            shortest, offset, last = min(shortest, at - last), following, at
    return shortest // 3600


def zones() -> list[str]:
    """Return one of all zones whose clocks show the same in these years."""
    found: dict[object, str] = {}
    for name in sorted(available_timezones() - _NO_ZONES):
        begin = 60 * _minute(datetime(FIRST_YEAR, 1, 1, tzinfo=UTC))
        at = changes(name)
        shown = tuple(_offset_s(ZoneInfo(name), 60 * minute + 60) for minute in at)
        found.setdefault((_offset_s(ZoneInfo(name), begin), tuple(at), shown), name)
    return sorted({*found.values(), *ODD_ZONES})


def around(zone: str, change: int) -> Window:
    """Return the window from three days before to three days after a change."""
    return Window(zone, change - AROUND_D * _DAY, change + AROUND_D * _DAY)


# --- comparing --------------------------------------------------------------------------------


def compare(window: Window, expression: str) -> str:
    """Say where the two differ; empty: nowhere."""
    cron, wanted = Cron(expression, tz=window.zone), window.times(expression)
    at_s, found = 60 * window.begin - 1, list[int]()
    while (next_at := next_ms(cron, 1000 * at_s)) is not None and next_at < 60_000 * window.end:
        if next_at <= 1000 * at_s or len(found) > len(wanted):
            return f"{expression} in {window.zone}: {_told(at_s)} leads to {_told(next_at / 1000)}"
        at_s = next_at // 1000
        found.append(at_s)
    if found != wanted:
        odd = sorted({*found} ^ {*wanted})[:3]
        says = ("missing" if at in wanted else "too much" for at in odd)
        told = ", ".join(f"{_told(at)} {it}" for at, it in zip(odd, says, strict=True))
        return f"{expression} in {window.zone}: {told}"
    dice = random.Random(f"{window.zone}/{window.begin}/{expression}")
    middle = 30 * (window.begin + window.end)  # of a window around a change: that
    points = [middle + offset for offset in _BEHIND_S]
    points += (dice.randrange(60 * window.begin, 60 * window.end) for _ in range(_POINTS))
    for after_s in points:
        at = bisect_right(wanted, after_s)
        if at < len(wanted) and next_ms(cron, 1000 * after_s) != 1000 * wanted[at]:
            return f"{expression} in {window.zone}: not {_told(wanted[at])} after {_told(after_s)}"
    return ""


def _told(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat()


def _judge_zone(zone: str) -> tuple[int, list[str]]:
    """Compare all expressions around each change of a zone."""
    wrong, count = list[str](), 0
    if shortest_h(zone) < 24:
        wrong.append(f"{zone} changes its clock twice within a day")
    for change in changes(zone) or [_minute(datetime(FIRST_YEAR, 3, 1, tzinfo=UTC))]:
        window = around(zone, change)
        for expression in expressions():
            count += 1
            wrong += filter(None, [compare(window, expression)])
    return count, wrong


def _judge_year(place: tuple[str, int]) -> tuple[int, list[str]]:
    """Compare them in a whole year, but for those that are due all the time."""
    zone, year = place
    begin, end = (_minute(datetime(y, 1, 1, tzinfo=UTC)) for y in (year, year + 1))
    window, wrong, count = Window(zone, begin, end), list[str](), 0
    for expression in expressions():
        if sum(_fitting(expression)[1]) * _YEAR_DENSEST <= _DAY:
            count += 1
            wrong += filter(None, [compare(window, expression)])
    return count, wrong


def main() -> int:
    """Judge the whole table; return how many zones or years are wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    places = [(zone, year) for zone in ODD_ZONES for year in range(2023, 2023 + YEARS)]
    total, failed = 0, 0
    with ProcessPoolExecutor(args.jobs) as pool:
        for count, wrong in (*pool.map(_judge_zone, zones()), *pool.map(_judge_year, places)):
            total += count
            failed += bool(wrong)
            for line in wrong[:5]:
                sys.stdout.write(f"{line}\n")
    sys.stdout.write(f"{total} comparisons, {failed} zones or years differ\n")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
