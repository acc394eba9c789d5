"""When a schedule's time comes: cron expressions, intervals and single times.

Cron expressions: parsed into sets of numbers, and searched by calendar arithmetic.  Pure.

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

When a schedule's time comes: by a cron expression in a zone, at an interval, or once.  Pure.

Times are whole milliseconds of UTC since 1970.  Clocks that are put forward or back matter to cron
expressions alone, and as in Debian's cron:

    minute and hour are named       a time in the gap when the clock is put forward comes at its
    (neither begins with *)         end; a time that comes twice comes once, the first time
    all others                      as real time passes: "*/30 * * * *" comes each half hour

A search for the next time is bounded in steps (see below), and what it finds is later.
"""

from __future__ import annotations

import difflib
from calendar import isleap, monthrange
from collections.abc import Iterator
from datetime import UTC, date, datetime, tzinfo
from functools import lru_cache, reduce
from operator import or_
from typing import Any, Final, Literal, TypeAlias, get_args
from zoneinfo import ZoneInfo, available_timezones

import attrs

from pool import checks
from pool.errors import ConfigError, InvalidOption, shown

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


Misfire: TypeAlias = Literal["skip", "once", "all"]

CRON_CHARS_MAX: Final = 256
EVERY_S_MIN: Final = 1.0
WINDOW_S: Final = 3600.0
JITTER_S_MAX: Final = 86_400.0
_YEAR_MAX: Final = 9000
_RULES_MS: Final = 1_767_225_600_000  # 2026: by the rules from then on an expression must be due


@attrs.frozen
class Cron:
    """By a cron expression: minute, hour, day of month, month, day of week; or a second before.

    Attributes:
        expression: Such as "0 3 * * *", "*/15 9-17 * * MON-FRI", "0 0 L * *", "30 0 3 * * *".
        tz: The zone whose clock it is, such as "Europe/Paris".
        misfire: What becomes of times that came when nobody could fire: `skip` fires none of them,
            `once` the latest of them, `all` each, in order.
        window_s: What is missed for longer is never fired, 0 to 365 days.
        jitter_s: Each firing comes up to so much later, by its schedule's name and its time, at
            most a day.

    Raises:
        InvalidOption: The expression is none, and where it is wrong; it is never due; there is no
            such zone; or a value is out of bounds.
        ConfigError: This machine has no time zones: `pip install 'keyed-pool[schedules]'`.
    """

    expression: str
    tz: str = attrs.field(default="UTC", kw_only=True)
    misfire: Misfire = attrs.field(default="once", kw_only=True)
    window_s: float = attrs.field(default=WINDOW_S, kw_only=True)
    jitter_s: float = attrs.field(default=0.0, kw_only=True)

    def __attrs_post_init__(self) -> None:
        _check_firing(self)
        checks.text("cron", self.expression)
        if self._next_ms(_RULES_MS) is None:
            problem = f"never due in {self.tz}: its times are all in hours that the clock skips"
            raise InvalidOption(option="cron", value=shown(self.expression), problem=problem)

    def _next_ms(self, after_ms: int) -> int | None:
        """Return the first time after that one; None: there is none in 50 years."""
        zone = _zone(self.tz)  # first: where it is not, nothing else is judged
        found_s = next_time(_expression(self.expression), zone, after_ms // 1000)
        return None if found_s is None else 1000 * found_s


@attrs.frozen
class Every:
    """At an interval, counted from a moment that all share, so that it is the same for everybody.

    Attributes:
        seconds: The interval, 1 s to 365 days, in whole milliseconds: it is rounded to those.
        start: From when on it counts, with a zone; before that nothing is due.  None: since 1970.
            Give a fixed moment: if each start of a program gives another one, as `now()` does, the
            interval begins anew each time, and may never end.
        misfire: As for `Cron`; likewise the others.
        window_s: Likewise.
        jitter_s: Likewise.

    Raises:
        InvalidOption: A value is out of bounds.
    """

    seconds: float
    start: datetime | None = attrs.field(default=None, kw_only=True)
    misfire: Misfire = attrs.field(default="once", kw_only=True)
    window_s: float = attrs.field(default=WINDOW_S, kw_only=True)
    jitter_s: float = attrs.field(default=0.0, kw_only=True)

    def __attrs_post_init__(self) -> None:
        seconds = checks.seconds("seconds", self.seconds, EVERY_S_MIN)
        object.__setattr__(self, "seconds", round(seconds, 3))  # a plain one, whatever was given
        if self.start is not None:
            check_moment("start", self.start)
        _check_firing(self)

    def _next_ms(self, after_ms: int) -> int | None:
        """Return the first time after that one."""
        start_ms = 0 if self.start is None else _ms(self.start)
        if after_ms < start_ms:
            return start_ms
        every_ms = round(self.seconds * 1000)
        return start_ms + ((after_ms - start_ms) // every_ms + 1) * every_ms


@attrs.frozen
class At:
    """Once.  When it has fired, or was missed, its schedule is gone.

    Attributes:
        when: The moment, with a zone.
        window_s: If nobody could fire it for so long it never is, 0 to 365 days.

    Raises:
        InvalidOption: The moment has no zone, or a value is out of bounds.
    """

    when: datetime
    window_s: float = attrs.field(default=WINDOW_S, kw_only=True)
    misfire: Misfire = attrs.field(default="once", init=False)
    jitter_s: float = attrs.field(default=0.0, init=False)

    def __attrs_post_init__(self) -> None:
        check_moment("when", self.when)
        _check_firing(self)

    def _next_ms(self, after_ms: int) -> int | None:
        """Return its moment, if that is after that one."""
        at_ms = _ms(self.when)
        return at_ms if at_ms > after_ms else None


When: TypeAlias = Cron | Every | At


def next_ms(when: When, after_ms: int) -> int | None:
    """Return the first time after that one; None: there is none."""
    found_ms = when._next_ms(after_ms)
    assert found_ms is None or found_ms > after_ms  # else whoever counts times never ends
    return found_ms


def times(when: When, after_ms: int) -> Iterator[int]:
    """Yield all times after that one."""
    while (at_ms := next_ms(when, after_ms)) is not None:
        yield at_ms
        after_ms = at_ms


def check_when(given: object) -> When:
    """Take one of the three.

    Raises:
        InvalidOption: It is none of them.
    """
    if type(given) in (Cron, Every, At):  # not what is like them
        return given  # type: ignore[return-value]
    raise checks.option("when", given, "a Cron, an Every or an At")


def packed(when: When) -> dict[str, Any]:
    """Return what stands in a schedule of when it is due."""
    told: dict[str, Any] = {"window_s": when.window_s}
    match when:
        case Cron():
            told |= {"cron": when.expression, "tz": when.tz}
        case Every():
            told |= {"every_s": when.seconds}
            if when.start is not None:
                told["start_ms"] = _ms(when.start)
        case At():
            return {**told, "at_ms": _ms(when.when)}
    return {**told, "misfire": when.misfire, "jitter_s": when.jitter_s}


def unpacked(told: dict[str, Any]) -> When:
    """Return what was packed; raises as the three do, and `KeyError`.

    A `Cron` in a zone that this machine does not have is returned as it was stored; its next time
    raises `ConfigError`.
    """
    if "at_ms" in told:
        return At(moment(told["at_ms"]), window_s=told["window_s"])
    firing = {name: told[name] for name in ("misfire", "window_s", "jitter_s")}
    if "every_s" in told:
        start = moment(told["start_ms"]) if "start_ms" in told else None
        return Every(told["every_s"], start=start, **firing)
    try:
        return Cron(told["cron"], tz=told["tz"], **firing)
    except ConfigError:
        cron = object.__new__(Cron)
        texts = {
            "expression": checks.text("cron", told["cron"]),
            "tz": checks.text("tz", told["tz"]),
        }
        for name, value in (texts | firing).items():
            object.__setattr__(cron, name, value)
        _check_firing(cron)
        return cron


def is_moved(before: When, after: When) -> bool:
    """Say whether two intervals differ in nothing but their start."""
    if not isinstance(before, Every) or not isinstance(after, Every):
        return False
    starts = packed(before).get("start_ms"), packed(after).get("start_ms")
    return starts[0] != starts[1] and attrs.evolve(before, start=after.start) == after


def moment(at_ms: int) -> datetime:
    """Return a time as people read it, in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def check_moment(name: str, given: object) -> None:
    """Refuse what is no moment: a `datetime` without a zone is another one everywhere.

    Raises:
        InvalidOption: It is none.
    """
    value: Any = given
    try:
        is_moment = issubclass(type(given), datetime) and value.utcoffset() is not None
    except Exception as error:  # of a zone that the user wrote
        problem = f"its zone raises {shown(error)}"
        raise InvalidOption(option=name, value=shown(given), problem=problem) from error
    if not is_moment:
        told = value.isoformat() if type(given) is datetime else given
        raise checks.option(name, told, "a datetime with a zone, as with tzinfo=UTC")
    if not 1970 < value.year < _YEAR_MAX:
        raise checks.option(name, given, f"a year from 1971 to {_YEAR_MAX - 1}")


def _ms(when: datetime) -> int:
    return round(when.timestamp() * 1000)


def _check_firing(when: When) -> None:
    checks.word("misfire", when.misfire, *get_args(Misfire))
    object.__setattr__(when, "window_s", checks.seconds("window_s", when.window_s))
    jitter_s = checks.seconds("jitter_s", when.jitter_s, high=JITTER_S_MAX)
    object.__setattr__(when, "jitter_s", jitter_s)


# --- zones ----------------------------------------------------------------------------------


# Files beside those of zones, which are other zones on other machines, or count leap seconds.
_NO_PLACES: Final = frozenset({"localtime", "posixrules", "Factory"})


@lru_cache(maxsize=1024)
def _zone_named(name: str) -> ZoneInfo | None:
    if name in _NO_PLACES or name.startswith(("right/", "posix/")):
        return None
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # no such file, no such name, a directory
        return None


def has_zones() -> bool:
    """Say whether this machine has time zones; UTC is always there."""
    return _zone_named("Europe/London") is not None


def _zone(name: object) -> tzinfo:
    text = checks.text("tz", name)
    zone = UTC if text == "UTC" else _zone_named(text)
    if zone is not None:
        return zone
    known = available_timezones()
    if not known:
        needs = "this machine has no zones: pip install 'keyed-pool[schedules]'"
        raise ConfigError(setting="tz", problem=needs)
    close = difflib.get_close_matches(text, known - _NO_PLACES)
    hint = f"; is it {' or '.join(close)}?" if close else ""
    raise InvalidOption(option="tz", value=shown(text), problem=f"no zone of IANA's{hint}")


# --- expressions ----------------------------------------------------------------------------


def _expression(text: str) -> Expression:
    try:
        if len(text) > CRON_CHARS_MAX:
            raise NotCron(f"within {CRON_CHARS_MAX} characters")
        return parse(text)
    except NotCron as error:
        problem = f"not {error}"
        raise InvalidOption(option="cron", value=shown(text), problem=problem) from None
