"""When a schedule's time comes, in any zone, and what is fired of it after an outage."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice
from zoneinfo import ZoneInfo

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.core.followers import Follows, follower_id, parse, renamed
from pool.core.schedules import (
    FIRED_MAX,
    ON_TIME_S,
    Firing,
    ScheduledJob,
    ScheduleHead,
    StoredSchedule,
    due_ms,
    fire,
    first_head,
    job_id,
    parse_head,
    time_of,
)
from pool.core.schedules import parse as parse_schedule
from pool.core.times import (
    At,
    Cron,
    Every,
    Misfire,
    When,
    has_zones,
    moment,
    next_ms,
    packed,
    times,
    unpacked,
)
from pool.errors import ConfigError, InvalidOption

NORTH, SOUTH = "Europe/Paris", "Australia/Sydney"
YEAR = datetime(2026, 1, 1, tzinfo=UTC)
JOB = ScheduledJob(lane=3, key="tenant", handler="report", call=b"[1]", policy="q5", more="r5")


def ms(when: datetime) -> int:
    return round(when.timestamp() * 1000)


def year_of(cron: Cron) -> list[datetime]:
    """Return all its times of a year, on the clock of its zone."""
    zone, found = ZoneInfo(cron.tz), list[datetime]()
    begin, end = (datetime(year, 1, 1, tzinfo=zone) for year in (2026, 2027))
    for at_ms in times(cron, ms(begin) - 1):
        if at_ms >= ms(end):
            return found
        found.append(datetime.fromtimestamp(at_ms / 1000, zone))
    raise AssertionError("it ends")


@pytest.mark.parametrize("zone", [NORTH, SOUTH])
@pytest.mark.parametrize("seconds", ["", "0 "])
def test_a_time_of_day_comes_once_on_each_day_of_a_year(zone: str, seconds: str) -> None:
    """Where it is left out it comes at the end of that; where it comes twice, the first time."""
    found = year_of(Cron(f"{seconds}30 2 * * *", tz=zone))
    days = [each.date() for each in found]
    assert days == [(YEAR + timedelta(days=n)).date() for n in range(365)]
    odd = [each for each in found if (each.hour, each.minute) != (2, 30)]
    assert [(each.hour, each.minute) for each in odd] == [(3, 0)]
    assert not any(each.fold for each in found)


@pytest.mark.slow
@pytest.mark.parametrize("zone", [NORTH, SOUTH, "Australia/Lord_Howe", "America/Havana"])
def test_each_half_hour_comes_as_real_time_passes(zone: str) -> None:
    found = [ms(each) for each in year_of(Cron("*/30 * * * *", tz=zone))]
    steps = {later - at for at, later in itertools.pairwise(found)}
    assert steps == {30 * 60_000}
    assert len(found) == 365 * 48


def test_what_falls_together_at_the_end_of_a_gap_comes_once() -> None:
    found = year_of(Cron("0,30 2 29 3 *", tz=NORTH))
    assert [each.isoformat() for each in found] == ["2026-03-29T03:00:00+02:00"]


def test_a_day_that_a_zone_left_out_comes_at_its_end() -> None:
    """Samoa had no 30 December 2011."""
    found = next_ms(Cron("0 12 30 12 *", tz="Pacific/Apia"), ms(datetime(2011, 12, 29, tzinfo=UTC)))
    assert found == ms(datetime(2011, 12, 31, tzinfo=ZoneInfo("Pacific/Apia")))


@given(
    st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)),  # noqa: DTZ001 - UTC, below
    st.sampled_from(["30 2 * * *", "*/7 * * * *", "0 0 L * *", "0 9-17 * * MON-FRI", "1 2 3 4 *"]),
    st.sampled_from([NORTH, SOUTH, "UTC", "America/St_Johns", "Asia/Tehran"]),
)
def test_the_next_time_is_always_later_and_nothing_lies_between(
    start: datetime, expression: str, zone: str
) -> None:
    cron, after = Cron(expression, tz=zone), ms(start.replace(tzinfo=UTC))
    found = next_ms(cron, after)
    assert found is not None
    assert found > after
    assert next_ms(cron, found - 1) == found
    assert next_ms(cron, (after + found) // 2) == found


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("", "it has 0"),
        ("* * * *", "it has 4"),
        ("61 * * * *", "character 1: '61' is no minute"),
        ("0  25 * * *", "character 4: '25' is no hour"),
        ("0 0 * * FOO", "character 9: 'FOO' is no day of week"),
        ("60 0 0 * * *", "character 1: '60' is no second"),
        ("*/0 * * * *", "character 1: '*/0'"),
        ("0 0 30 2 *", "some day"),
        ("٣ * * * *", "ASCII"),
        ("0" * 257, "256 characters"),
        (f"{'9' * 200} * * * *", "is no minute"),
        (7, "a text"),
    ],
)
def test_a_malformed_expression_says_where(expression: str, says: str) -> None:
    with pytest.raises(InvalidOption, match=says.replace("*", r"\*")):
        Cron(expression)


@given(st.text("0123456789*/-,L#WMONAFRI? ", max_size=40))
def test_any_text_is_an_expression_or_is_refused(text: str) -> None:
    try:
        cron = Cron(text)
    except InvalidOption:
        return
    assert (next_ms(cron, 0) or 0) > 0


@pytest.mark.parametrize("zone", ["", "Europe", "Europe/Pari", "/etc/passwd", "../x", "\0"])
def test_an_unknown_zone_is_refused(zone: str) -> None:
    with pytest.raises(InvalidOption, match="IANA"):
        Cron("0 3 * * *", tz=zone)
    with pytest.raises(InvalidOption, match="Europe/Paris"):
        Cron("0 3 * * *", tz="Europe/Pari")
    for name in ("localtime", "posixrules", "Factory", "right/UTC"):
        with pytest.raises(InvalidOption, match="no zone"):
            Cron("0 3 * * *", tz=name)


def test_without_time_zones_the_error_names_the_extra_and_utc_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored_one = packed(Cron("7 3 * * *", tz=NORTH))
    monkeypatch.setattr("pool.core.times._zone_named", lambda _: None)
    monkeypatch.setattr("pool.core.times.available_timezones", set)
    assert not has_zones()
    with pytest.raises(ConfigError, match=r"keyed-pool\[schedules\]"):
        Cron("7 3 * * *", tz=NORTH)
    with pytest.raises(ConfigError):
        next_ms(unpacked(stored_one), 0)
    assert next_ms(Every(60), 0) == 60_000
    assert next_ms(Cron("7 3 * * *"), 0) == ms(datetime(1970, 1, 1, 3, 7, tzinfo=UTC))


def test_bad_values_are_refused() -> None:
    for bad in (0.9, float("nan"), "60"):
        with pytest.raises(InvalidOption):
            Every(bad)  # type: ignore[arg-type]
    for naive in (datetime(2026, 1, 1), "2026"):  # noqa: DTZ001 - that is what is wrong
        with pytest.raises(InvalidOption, match="zone"):
            At(naive)  # type: ignore[arg-type]
        with pytest.raises(InvalidOption, match="zone"):
            Every(5, start=naive)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="skip, once, all"):
        Every(5, misfire="never")  # type: ignore[arg-type]
    for option in ({"window_s": -1}, {"jitter_s": 86_401}):
        with pytest.raises(InvalidOption):
            Every(5, **option)  # type: ignore[arg-type]


class _Broken(tzinfo):
    def utcoffset(self, _: datetime | None) -> timedelta:
        raise RuntimeError("no offset")

    def dst(self, _: datetime | None) -> timedelta:
        raise RuntimeError("no dst")

    def tzname(self, _: datetime | None) -> str:
        raise RuntimeError("no name")


def test_a_bad_moment_is_shown_and_a_zone_that_raises_is_an_error_of_ours() -> None:
    with pytest.raises(InvalidOption) as refused:
        At(datetime(2026, 1, 1))  # noqa: DTZ001 - that is what is wrong
    assert "2026-01-01T00:00:00" in str(refused.value)
    with pytest.raises(InvalidOption, match="RuntimeError") as refused:
        At(datetime(2026, 1, 1, tzinfo=_Broken()))
    assert isinstance(refused.value.__cause__, RuntimeError)


def test_day_of_month_and_day_of_week_are_as_in_debian() -> None:
    """Either will do; but both must, if one of them begins with a star."""

    def days(expression: str) -> list[int]:
        found = islice(times(Cron(expression), ms(YEAR) - 1), 6)
        return [moment(at_ms).day for at_ms in found]

    assert days("0 0 13 * FRI") == [2, 9, 13, 16, 23, 30]
    assert days("0 0 */2 * MON") == [5, 19, 9, 23, 9, 23]


def test_an_interval_is_the_same_for_everybody_and_has_a_beginning() -> None:
    start = YEAR + timedelta(milliseconds=250)
    every = Every(90, start=start)
    assert next_ms(every, 0) == ms(start)
    assert next_ms(every, ms(start)) == ms(start) + 90_000
    assert next_ms(every, ms(start) + 89_999) == ms(start) + 90_000


# --- what is fired --------------------------------------------------------------------------


def stored(when: When, since: datetime, name: str = "s") -> StoredSchedule:
    head = first_head(name, when, ms(since) - 1, "t0")
    assert head is not None
    return StoredSchedule(name=name, head=head, when=when, job=JOB)


def fired(when: When, until_s: float, name: str = "s") -> Firing:
    """Return what is fired of one whose first time is `until_s` ago."""
    found = fire(stored(when, YEAR, name), ms(YEAR) + round(1000 * until_s), "t1")
    assert found.head is None or found.head.next_ms > ms(YEAR) + round(1000 * until_s) - 1000 * 60
    return found


def offsets(found: Firing) -> list[int]:
    return [(each - ms(YEAR)) // 1000 for each in found.times]


@pytest.mark.parametrize("misfire", ["skip", "once", "all"])
def test_who_comes_in_time_fires_each(misfire: Misfire) -> None:
    found = fired(Every(2, misfire=misfire), 9.0)
    assert offsets(found) == [0, 2, 4, 6, 8]
    assert not found.missed


def test_what_was_missed_is_fired_as_the_policy_says() -> None:
    """Ten seconds are in time; 100 s late are 31 times, of which 27 were missed."""
    skip, once, each = (fired(Every(3, misfire=m), 90.0) for m in ("skip", "once", "all"))
    assert (offsets(skip), skip.missed) == ([81, 84, 87, 90], 27)
    assert (offsets(once), once.missed) == ([78, 81, 84, 87, 90], 26)
    assert (offsets(each), each.missed) == (list(range(0, 91, 3)), 0)
    assert each.head is not None
    assert (each.head.fired, each.head.missed) == (31, 0)


def test_what_is_behind_the_window_is_never_fired() -> None:
    once = fired(Every(1000, start=YEAR, misfire="once", window_s=100), 2500.0)
    assert (offsets(once), once.missed) == ([], 3)
    each = fired(Every(1000, start=YEAR, misfire="all", window_s=1600), 2500.0)
    assert (offsets(each), each.missed) == ([1000, 2000], 1)
    late = fired(At(YEAR, window_s=100), 200.0)
    assert (offsets(late), late.missed, late.head) == ([], 1, None)
    soon = fired(At(YEAR, window_s=100), 90.0)
    assert (offsets(soon), soon.missed, soon.head) == ([0], 0, None)


def test_a_long_outage_of_a_quick_schedule_is_fired_in_slices() -> None:
    schedule, now_ms, at = stored(Every(1, misfire="all"), YEAR), ms(YEAR) + 259_000, list[int]()
    while True:
        found = fire(schedule, now_ms, "t")
        if not found.times:
            break
        assert len(found.times) <= FIRED_MAX
        assert found.head is not None
        at += found.times
        schedule = StoredSchedule(name="s", head=found.head, when=schedule.when, job=JOB)
    assert at == [ms(YEAR) + 1000 * n for n in range(260)]


@pytest.mark.parametrize("policy", ["", "a", "b"])
def test_of_late_times_only_the_newest_is_fired(policy: str) -> None:
    """Where the others would be left out behind the first one; none is gone without a word."""
    schedule = stored(Every(3), YEAR)
    schedule = attrs.evolve(schedule, job=attrs.evolve(JOB, policy=policy))
    found = fire(schedule, ms(YEAR) + 90_000, "t1")
    assert (offsets(found), found.missed, found.overlapped) == ([90], 26, 4)
    assert found.head is not None
    assert (found.head.fired, found.head.missed, found.head.overlapped) == (1, 26, 4)
    alone = fire(schedule, ms(YEAR), "t1")
    assert (offsets(alone), alone.overlapped) == ([0], 0)


def test_months_of_missed_seconds_are_one_firing_of_the_latest() -> None:
    late_s = 90 * 86_400.0
    found = fired(Cron("* * * * * *", window_s=3600), late_s)
    assert offsets(found)[0] == late_s - ON_TIME_S - 1
    assert len(found.times) == ON_TIME_S + 2


@given(st.integers(0, 10**9), st.sampled_from(["skip", "once", "all"]), st.floats(1, 600))
def test_no_time_is_fired_twice_nor_left_without_a_word(
    late_ms: int, misfire: Misfire, every_s: float
) -> None:
    when, now_ms = Every(every_s, misfire=misfire, window_s=3600), ms(YEAR) + late_ms
    schedule, at, missed = stored(when, YEAR), list[int](), 0
    for _ in range(FIRED_MAX):
        found = fire(schedule, now_ms, "t")
        assert found.head is not None
        assert found.head.next_ms > schedule.head.last_ms
        at += found.times
        missed += found.missed
        schedule = StoredSchedule(name="s", head=found.head, when=when, job=JOB)
        if not found.times:
            break
    assert at == sorted(set(at))
    assert all(each <= now_ms for each in at)
    due = now_ms // round(every_s * 1000) - (ms(YEAR) - 1) // round(every_s * 1000)
    assert len(at) + missed == due or missed >= 999
    assert not at or schedule.head.next_ms > now_ms


def test_jitter_is_the_same_whoever_asks_and_nothing_is_fired_before_it() -> None:
    when = Every(3600, jitter_s=600)
    waits = {due_ms(f"s{n}", when, ms(YEAR)) - ms(YEAR) for n in range(200)}
    assert waits == {due_ms(f"s{n}", when, ms(YEAR)) - ms(YEAR) for n in range(200)}
    assert 0 <= min(waits) < 60_000
    assert 540_000 < max(waits) <= 600_000
    wait_ms = due_ms("s", when, ms(YEAR)) - ms(YEAR)
    assert offsets(fired(when, wait_ms / 1000 - 0.001)) == []
    assert offsets(fired(when, wait_ms / 1000)) == [0]


# --- what stands in the lane ----------------------------------------------------------------


@pytest.mark.parametrize(
    "when",
    [
        Cron("0 3 * * *", tz=NORTH, misfire="all", window_s=5, jitter_s=3),
        Every(7.5, start=YEAR),
        Every(7),
        At(YEAR, window_s=9),
    ],
)
def test_a_schedule_reads_as_it_was_written(when: When) -> None:
    assert unpacked(packed(when)) == when
    head = ScheduleHead(
        is_paused=True, due_ms=5, next_ms=4, last_ms=3, fired=2, missed=1, overlapped=6, token="t"
    )
    made = StoredSchedule(name="s", head=head, when=when, job=JOB)
    text = head.pack().encode() + b"\n" + made.body
    assert parse_schedule("s", text) == made
    assert parse_head(head.pack().encode()) == head


@given(st.binary(max_size=200))
def test_what_is_no_schedule_is_told_from_one(text: bytes) -> None:
    assert parse_schedule("s", text) is None
    assert parse_schedule("s", b"a 1 1 0 0 0 0 t\n" + text) is None


def test_ids_tell_the_nominal_time() -> None:
    assert job_id("nightly", ms(YEAR)) == "nightly@2026-01-01T00:00:00Z"
    assert job_id("s", ms(YEAR) + 250) == "s@2026-01-01T00:00:00.250Z"
    assert time_of("nightly@2026-01-01T00:00:00Z") == YEAR
    for other in ("nightly", "x@2026-13-01T00:00:00Z", "@2026-01-01T00:00:00Z"):
        assert time_of(other) is None


def test_each_firing_has_followers_of_its_own() -> None:
    last = Follows(when="then", key="c", id="f2", handler="h", lane=1, call=b"[3]").pack()
    first = Follows(when="otherwise", key="b", id="f1", handler="h", lane=0, call=b"[2]")
    packed_ones = Follows(
        **{each: getattr(first, each) for each in ("when", "key", "id", "handler", "lane", "call")},
        followers=last,
    ).pack()
    texts = [renamed(packed_ones, "k", each) for each in ("s@1", "s@2", "s@1")]
    assert texts[0] == texts[2] != texts[1]
    [one], [two] = list(parse(texts[0])), list(parse(texts[1]))
    assert one.key == two.key == "b"
    assert one.id != two.id
    [its], [other] = list(parse(one.followers)), list(parse(two.followers))
    assert its.key == "c"
    assert its.when == "then"
    assert len({its.id, other.id, "f2"}) == 3
    assert renamed(b"", "k", "s@1") == b""
    assert follower_id("k", "s@1", "x") != one.id
