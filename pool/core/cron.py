"""Cron expressions: parsed into sets of numbers, and searched by calendar arithmetic.  Pure.

    parse(text) -> Expression      six sets, each one integer with a bit for each number
    next_local                     the next second of a clock that is never changed
    next_time                      the next second of real time, by the clock of a zone

`next_time` walks over days of UTC.  Within a day the offset of a zone is constant, or changes once
(`tests/core/test_cron.py` checks that for each zone), so a day has one part or two.  Each part
shows an interval of local times, in which `next_local` searches:

    as real time passes (minute or hour begins with *)    all local times that the part shows
    named times (all others)                              those not shown before: a local time that
                                                          was skipped comes at the end of the gap,
                                                          one that comes twice counts once

Days without a local time that fits are skipped at once.  A search never depends on how long
anything takes: it ends after `HORIZON_DAYS`, and each loop has a fixed bound.
"""

from __future__ import annotations

from calendar import isleap, monthrange
from datetime import date, datetime, tzinfo
from functools import lru_cache, reduce
from operator import or_
from typing import Final

import attrs

DAY_S: Final = 86_400
HORIZON_DAYS: Final = 50 * 366  # an expression without a time in 50 years has none
_YEARS_MAX: Final = 41  # each kind of year (leap or not, its first weekday) comes within 40
_EPOCH: Final = date(1970, 1, 1).toordinal()
_DAY_MAX: Final = date(9999, 12, 1).toordinal() - _EPOCH
_FIELDS: Final = ("second", "minute", "hour", "day of month", "month", "day of week")
_RANGES: Final = ((0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_DAY, _MONTH, _WEEKDAY = 3, 4, 5
_MONTHS: Final = "JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC"
_WEEKDAYS: Final = "SUN MON TUE WED THU FRI SAT"
_NAMES: Final = {
    _MONTH: {name: number for number, name in enumerate(_MONTHS.split(), 1)},
    _WEEKDAY: {name: number for number, name in enumerate(_WEEKDAYS.split())},
}
# Bits above those of the numbers: the last day of the month, its last day from Monday to Friday.
_LAST, _LAST_WEEKDAY = 32, 33
_NTH_LAST: Final = 6  # weekday bits: 7 * n + weekday; n is 0 (each), 1 to 5 (the n-th), 6 (last)


@attrs.frozen(eq=False)  # `parse` returns the same object for the same text
class Expression:
    """A parsed cron expression: for each field the numbers that fit, as bits of an integer."""

    seconds: int
    minutes: int
    hours: int
    days: int
    months: int
    weekdays: int
    needs_both: bool  # a day must fit day of month and day of week; else either will do
    is_fixed: bool  # neither minute nor hour begins with *

    def next_local(self, local_s: int) -> int | None:
        """Return the first second that fits, not before that one, of a clock without changes."""
        day, second = divmod(local_s, DAY_S)
        fitting = self._next_day(day)
        if fitting == day:
            at = self._next_second(second)
            if at >= 0:
                return day * DAY_S + at
            fitting = self._next_day(day + 1)
        return None if fitting is None else fitting * DAY_S + self._next_second(0)

    def _next_second(self, second: int) -> int:
        """Return the first second of a day that fits, not before that one; -1: there is none."""
        hour, rest = divmod(second, 3600)
        minute, second = divmod(rest, 60)
        if self.hours >> hour & 1:
            if self.minutes >> minute & 1:
                second = _next_bit(self.seconds, second)
                if second >= 0:
                    return hour * 3600 + minute * 60 + second
            minute = _next_bit(self.minutes, minute + 1)
            if minute >= 0:
                return hour * 3600 + minute * 60 + _next_bit(self.seconds, 0)
        hour = _next_bit(self.hours, hour + 1)
        if hour < 0:
            return -1
        return hour * 3600 + _next_bit(self.minutes, 0) * 60 + _next_bit(self.seconds, 0)

    def _next_day(self, day: int) -> int | None:
        """Return the first day that fits, not before that one, counted from 1970."""
        if day > _DAY_MAX:
            return None
        first_year = date.fromordinal(day + _EPOCH).year
        for year in range(first_year, min(first_year + _YEARS_MAX, 9999)):
            begin = date(year, 1, 1).toordinal() - _EPOCH
            days = _days_of_year(self, isleap(year), (begin + 4) % 7)
            at = _next_bit(days, max(0, day - begin))
            if at >= 0:
                return begin + at
        return None

    def fits_day(self, day: int, last: int, weekday: int) -> bool:
        """Say whether a day of a month with `last` days fits; Sunday is weekday 0."""
        last_workday = last - {0: 2, 6: 1}.get((weekday + last - day) % 7, 0)
        is_day = self.days >> day & 1
        is_day |= day == last and self.days >> _LAST & 1
        is_day |= day == last_workday and self.days >> _LAST_WEEKDAY & 1
        nth = (day + 6) // 7
        is_weekday = (self.weekdays >> weekday | self.weekdays >> (7 * nth + weekday)) & 1
        is_weekday |= day + 7 > last and self.weekdays >> (7 * _NTH_LAST + weekday) & 1
        return bool(is_day and is_weekday if self.needs_both else is_day or is_weekday)


@lru_cache(maxsize=4096)
def _days_of_year(expression: Expression, is_leap: bool, first_weekday: int) -> int:
    """Return which days of a year fit, as bits from 1 January on: there are 14 kinds of years."""
    fitting, at = 0, 0
    for month in range(1, 13):
        last = monthrange(2024 if is_leap else 2023, month)[1]
        for day in range(1, last + 1) if expression.months >> month & 1 else ():
            here = at + day - 1
            if expression.fits_day(day, last, (first_weekday + here) % 7):
                fitting |= 1 << here
        at += last
    return fitting


def _next_bit(bits: int, at: int) -> int:
    """Return the lowest bit that is set, not below that one; -1: none is."""
    rest = bits >> at
    return at + (rest & -rest).bit_length() - 1 if rest else -1


# --- zones ----------------------------------------------------------------------------------


def next_time(expression: Expression, zone: tzinfo, after_s: int) -> int | None:
    """Return the first second of real time after that one; None: there is none in 50 years."""
    day = after_s // DAY_S
    last_day = min(day + HORIZON_DAYS, _DAY_MAX - 2)
    if expression.is_fixed:
        day -= 2  # what was shown before: no zone's offset differs from another by more
    shown = day * DAY_S + _offset(zone, day * DAY_S)
    for _ in range(HORIZON_DAYS):
        if day > last_day:
            break
        for begin, end, offset in _parts(zone, day):
            if not expression.is_fixed:
                shown = begin + offset
            if end > after_s + 1:
                first = max(shown, after_s + 1 + offset) if after_s >= begin else shown
                local = expression.next_local(first)
                if local is None:
                    return None
                if local < end + offset:
                    return max(local - offset, begin)
            shown = max(shown, end + offset)
        day += 1
        # No clock is a day or more beside UTC: what fits next is not before the day before it.
        local = expression.next_local(shown if expression.is_fixed else (day - 1) * DAY_S)
        if local is None:
            break
        day = max(day, local // DAY_S - 1)
    return None


@lru_cache(maxsize=8192)
def _parts(zone: tzinfo, day: int) -> tuple[tuple[int, int, int], ...]:
    """Return the parts of a day of UTC: begin, end, and the offset of the zone in seconds."""
    begin, end = day * DAY_S, (day + 1) * DAY_S
    first, last = _offset(zone, begin), _offset(zone, end - 1)
    if first == last:
        return ((begin, end, first),)
    before, after = begin, end - 1
    while after - before > 1:
        middle = (before + after) // 2
        if _offset(zone, middle) == first:
            before = middle
        else:
            after = middle
    return (begin, after, first), (after, end, last)


def _offset(zone: tzinfo, at_s: int) -> int:
    offset = datetime.fromtimestamp(at_s, zone).utcoffset()
    assert offset is not None
    return offset.days * DAY_S + offset.seconds


# --- parsing --------------------------------------------------------------------------------


class NotCron(Exception):
    """A text is no cron expression; what it must be instead."""


@lru_cache(maxsize=256)
def parse(text: str) -> Expression:
    """Return what an expression means.

    Raises:
        NotCron: It is none, or no day of the calendar fits.
    """
    if not text.isascii():
        raise NotCron("ASCII")
    words = text.upper().split()
    if len(words) not in (5, 6):
        raise NotCron(f"5 fields, or 6 with seconds: it has {len(words)}")
    skipped, at, sets = 6 - len(words), 0, [1] * (6 - len(words))
    for number, word in enumerate(words, skipped):
        at = text.upper().index(word, at)
        try:
            sets.append(reduce(or_, (_term(number, term) for term in word.split(","))))
        except ValueError:
            field = text[at : at + len(word)]
            problem = f"readable at character {at + 1}: {field!r} is no {_FIELDS[number]}"
            raise NotCron(problem) from None
        at += len(word)
    minute, hour, day, _, weekday = words[-5:]
    seconds, minutes, hours, days, months, weekdays = sets
    expression = Expression(
        seconds,
        minutes,
        hours,
        days,
        months,
        weekdays,
        needs_both=day.startswith("*") or weekday.startswith("*"),
        is_fixed=not (minute.startswith("*") or hour.startswith("*")),
    )
    kinds = ((leap, first) for leap in (False, True) for first in range(7))
    if not any(_days_of_year(expression, *kind) for kind in kinds):
        raise NotCron("an expression that some day fits")
    return expression


def _term(field: int, term: str) -> int:
    """Return the numbers that a term of a field names, as bits; `ValueError`: it is none."""
    base, slash, step = term.partition("/")
    bits = _base(field, base, is_open=bool(slash))
    if slash:
        every, low = _digits(step), bits & -bits
        bits = sum(low << n for n in range(0, 60, every) if low << n & bits)
    if field == _WEEKDAY:  # 7 is Sunday, too
        return bits >> 8 or bits & ~(1 << 7) | bits >> 7
    return bits


def _base(field: int, base: str, *, is_open: bool) -> int:
    """Return what stands before a step; `is_open`: a single number goes on to the last one."""
    low, high = _RANGES[field]
    if base == "*":
        return _span(low, high)
    if field == _DAY and base in ("L", "LW"):
        return 1 << (_LAST if base == "L" else _LAST_WEEKDAY)
    if field == _WEEKDAY and "#" in base:
        name, _, nth = base.partition("#")
        if not 1 <= (week := _digits(nth)) <= 5:
            raise ValueError
        return 1 << (8 + 7 * week + _number(field, name) % 7)
    if field == _WEEKDAY and base.endswith("L"):
        return 1 << (8 + 7 * _NTH_LAST + _digits(base[:-1], high) % 7)
    first, dash, last = base.partition("-")
    begin = _number(field, first)
    end = _number(field, last) if dash else begin
    if end < begin:
        raise ValueError
    return _span(begin, high if is_open and not dash else end)


def _span(begin: int, end: int) -> int:
    return (1 << end + 1) - (1 << begin)


def _number(field: int, text: str) -> int:
    low, high = _RANGES[field]
    number = _NAMES.get(field, {}).get(text)
    if number is None:
        number = _digits(text, high)
    if number < low:
        raise ValueError
    return number


def _digits(text: str, high: int | None = None) -> int:
    if not text.isdigit() or (high is not None and int(text) > high):
        raise ValueError
    return int(text)
