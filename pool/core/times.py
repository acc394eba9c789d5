"""When a schedule's time comes: by a cron expression in a zone, at an interval, or once.  Pure.

Times are whole milliseconds of UTC since 1970.  Clocks that are put forward or back matter to cron
expressions alone, and as in Debian's cron:

    minute and hour are named       a time in the gap when the clock is put forward comes at its
    (neither begins with *)         end; a time that comes twice comes once, the first time
    all others                      as real time passes: "*/30 * * * *" comes each half hour

A search for the next time is bounded in steps (see `cron.py`), and what it finds is later.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from typing import Any, Final, Literal, TypeAlias, get_args
from zoneinfo import ZoneInfo, available_timezones

import attrs

from pool import checks
from pool.core.cron import Expression, NotCron, next_time, parse
from pool.errors import ConfigError, InvalidOption, shown

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
