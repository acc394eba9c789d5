"""A zone's transitions from the bytes of its TZif file (RFC 8536), to check the handlers by.

    header v1, block v1 | header v2, block v2 | newline, footer rule, newline
    32-bit times: skipped | 64-bit times        | POSIX TZ string: what holds after the last one

Shares nothing with `zones.py`, which asks `zoneinfo`: two ways to one answer.
"""

from __future__ import annotations

import calendar
import math
import re
import struct
from collections.abc import Iterator
from datetime import date, timedelta
from typing import Final, NamedTuple, TypeAlias

import attrs

_MAGIC: Final = b"TZif"
_HEADER: Final = struct.Struct(">4sc15x6L")
_LOCAL_TYPE: Final = struct.Struct(">lBB")
_DAY_S: Final = 86_400


class State(NamedTuple):
    """What clocks show: seconds east of UTC, whether that is daylight saving, and its name."""

    offset_s: int
    is_dst: bool
    name: str


Change: TypeAlias = tuple[int, State]  # from this UTC second on


def transitions(data: bytes, since_s: int, until_s: int) -> tuple[State, list[Change]]:
    """Return the state at `since_s`, and every change of offset after that and before `until_s`.

    Not every entry of the table is one: some change only the name, or nothing that clocks show.

    Raises:
        ValueError: The bytes are not a TZif file of version 2 or later, or its rule is none.
    """
    zone = _parse(data)
    known = list(zone.changes)
    if zone.rule is not None:
        years = range(_year(since_s) - 1, _year(until_s) + 1)
        last_s = known[-1][0] if known else -math.inf
        known += [change for change in zone.rule.changes(years) if change[0] > last_s]
    start = state = zone.first
    found: list[Change] = []
    for at_s, after in known:
        if at_s <= since_s:
            start = state = after
        elif at_s < until_s and after.offset_s != state.offset_s:
            found.append((at_s, after))
            state = after
    return start, found


# --- the file -------------------------------------------------------------------------------


@attrs.frozen
class _Zone:
    first: State  # before the first change
    changes: list[Change]
    rule: Rule | None


def _parse(data: bytes) -> _Zone:
    counts = _counts(data, 0)
    # The block of version 1 has 32-bit times, and is there for readers of that age.
    block = _HEADER.size + _size(counts, 4)
    counts = _counts(data, block)
    _, _, leapcnt, timecnt, typecnt, charcnt = counts
    if leapcnt or not typecnt:
        raise ValueError("leap seconds, or no local time types")
    at = block + _HEADER.size
    times = struct.unpack_from(f">{timecnt}q", data, at)
    at += 8 * timecnt
    kinds = data[at : at + timecnt]
    at += timecnt
    types = [_LOCAL_TYPE.unpack_from(data, at + 6 * i) for i in range(typecnt)]
    at += 6 * typecnt
    names = data[at : at + charcnt]
    states = [
        State(offset_s, bool(is_dst), names[i : names.index(b"\0", i)].decode("ascii"))
        for offset_s, is_dst, i in types
    ]
    footer = data[block + _HEADER.size + _size(counts, 8) :]
    if footer[:1] != b"\n" or footer[-1:] != b"\n" or len(footer) < 2:
        raise ValueError("no footer between two newlines")
    rule = Rule.parse(footer[1:-1].decode("ascii"))
    return _Zone(states[0], [(t, states[k]) for t, k in zip(times, kinds, strict=True)], rule)


def _counts(data: bytes, at: int) -> tuple[int, ...]:
    if len(data) < at + _HEADER.size:
        raise ValueError("ends before its header does")
    magic, version, *counts = _HEADER.unpack_from(data, at)
    if magic != _MAGIC or version < b"2":
        raise ValueError("not a TZif file of version 2 or later")
    return tuple(counts)


def _size(counts: tuple[int, ...], time_bytes: int) -> int:
    isutcnt, isstdcnt, leapcnt, timecnt, typecnt, charcnt = counts
    return (
        timecnt * (time_bytes + 1)
        + typecnt * _LOCAL_TYPE.size
        + charcnt
        + leapcnt * (time_bytes + 4)
        + isstdcnt
        + isutcnt
    )


# --- the footer -----------------------------------------------------------------------------

_TZ = re.compile(
    r"(?P<std>[A-Za-z]{3,}|<[A-Za-z0-9+-]{3,}>)(?P<std_s>[+-]?[\d:]+)"
    r"(?:(?P<dst>[A-Za-z]{3,}|<[A-Za-z0-9+-]{3,}>)(?P<dst_s>[+-]?[\d:]+)?"
    r",(?P<start>[^,]+),(?P<end>[^,]+))?"
)
_DAY = re.compile(
    r"(?:M(?P<month>\d+)\.(?P<week>\d)\.(?P<weekday>\d)|J(?P<julian>\d+)|(?P<zero>\d+))"
    r"(?:/(?P<time>[+-]?[\d:]+))?"
)


@attrs.frozen
class _Day:
    """When in each year a change falls, in seconds of local time."""

    month: int = 0  # with week 1 to 5 (5: the last) and weekday, Sunday is 0
    week: int = 0
    weekday: int = 0
    julian: int = 0  # 1 to 365: February 29 is never counted
    zero: int = 0  # 0 to 365: February 29 is counted
    time_s: int = 2 * 3600

    @classmethod
    def parse(cls, text: str) -> _Day:
        match = _DAY.fullmatch(text)
        if match is None:
            raise ValueError(f"not a day of a rule: {text!r}")
        found = {name: int(v) for name, v in match.groupdict().items() if v and name != "time"}
        time = match["time"]
        return cls(**found, **({"time_s": _seconds(time)} if time else {}))

    def at_s(self, year: int) -> int:
        """Return the local second, as if local time were UTC."""
        if self.month:
            weekday_first = (date(year, self.month, 1).weekday() + 1) % 7
            day = 1 + (self.weekday - weekday_first) % 7 + 7 * (self.week - 1)
            while day > calendar.monthrange(year, self.month)[1]:
                day -= 7
            found = date(year, self.month, day)
        elif self.julian:
            leap = calendar.isleap(year) and self.julian >= 60
            found = date(year, 1, 1) + timedelta(days=self.julian - 1 + leap)
        else:
            found = date(year, 1, 1) + timedelta(days=self.zero)
        return (found - date(1970, 1, 1)).days * _DAY_S + self.time_s


@attrs.frozen
class Rule:
    """A POSIX TZ string: what holds after the last change that the file lists."""

    standard: State
    daylight: State | None
    start: _Day
    end: _Day

    @classmethod
    def parse(cls, text: str) -> Rule | None:
        """Return the rule; None for an empty one."""
        if not text:
            return None
        match = _TZ.fullmatch(text)
        if match is None:
            raise ValueError(f"not a rule: {text!r}")
        # POSIX counts west of Greenwich, everybody else east.
        standard = State(-_seconds(match["std_s"]), False, match["std"].strip("<>"))
        if match["dst"] is None:
            return cls(standard, None, _Day(), _Day())
        ahead = match["dst_s"]
        offset_s = -_seconds(ahead) if ahead else standard.offset_s + 3600
        daylight = State(offset_s, True, match["dst"].strip("<>"))
        return cls(standard, daylight, _Day.parse(match["start"]), _Day.parse(match["end"]))

    def changes(self, years: range) -> Iterator[Change]:
        """Yield the changes of these years, in order of time."""
        if self.daylight is None:
            return  # what the file's last change leads to holds for ever
        both: list[Change] = []
        for year in years:
            both.append((self.start.at_s(year) - self.standard.offset_s, self.daylight))
            both.append((self.end.at_s(year) - self.daylight.offset_s, self.standard))
        yield from sorted(both)


def _seconds(text: str) -> int:
    sign = -1 if text.startswith("-") else 1
    parts = [int(part) for part in text.lstrip("+-").split(":")]
    hours, minutes, seconds = (*parts, 0, 0)[:3]
    return sign * (hours * 3600 + minutes * 60 + seconds)


def _year(at_s: int) -> int:
    return (date(1970, 1, 1) + timedelta(days=at_s // _DAY_S)).year
