"""Schedules and ticks, script by script: what stands in a lane, and what a copy of a call does."""

from __future__ import annotations

from typing import Any

import pytest

from pool.core.schedules import ScheduleHead
from pool.redis.commands.schedules import ScheduleChange, SchedulePage, TickTold, page_of, ticked
from tests.redis.conftest import Bench

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def call(bench: Bench, *changes: ScheduleChange, **options: Any) -> SchedulePage:
    return page_of(bench.run(bench.lane.schedule(changes, hold_s=2.0, **options)))


def put(name: str, due_ms: int, by: str = "t", seen: bytes = b"", **more: Any) -> ScheduleChange:
    head = ScheduleHead(due_ms=due_ms, next_ms=due_ms, token=by).pack()
    body = b"" if seen else b"what it is"
    return ScheduleChange(name=name, seen=seen, head=head, body=body, due_ms=due_ms, **more)


def line_of(bench: Bench, name: str) -> bytes:
    text: bytes = bench.do("HGET", bench.names.schedules, name)
    return text.partition(b"\n")[0]


def look_ms(bench: Bench) -> float | None:
    score = bench.do("ZSCORE", bench.names.due, "s:")
    return None if score is None else float(score)


@pytest.mark.parametrize("hours", [0, 1, -5])
def test_schedules_go_by_the_servers_own_clock(bench: Bench, hours: int) -> None:
    """Pool time is that and the offset, in which a clock that was set is taken back."""
    bench.do("HSET", bench.names.lane, "offset", hours * HOUR_MS)
    bench.do("HDEL", bench.names.lane, "seen")
    seconds, _ = bench.client.time()
    wall_ms = call(bench).wall_ms
    assert abs(wall_ms - 1000 * seconds) < 60_000
    page = call(bench, put("s", wall_ms + 60_000))
    assert page.done == [True]
    assert page.next_s is not None
    assert 0 < page.next_s <= 60
    assert look_ms(bench) == pytest.approx(wall_ms + 60_000 + hours * HOUR_MS, abs=60_000)
    assert call(bench, is_firing=True).due == []
    call(bench, put("t", wall_ms - 1))
    assert [name for name, _ in call(bench, is_firing=True).due] == [b"t"]


def test_only_what_was_seen_is_changed_and_a_repeat_is_one(bench: Bench) -> None:
    now_ms = call(bench).wall_ms
    assert call(bench, put("s", now_ms, "one")).done == [True]
    first = line_of(bench, "s")
    assert call(bench, put("s", now_ms, "one")).done == [True]  # a repeat
    assert call(bench, put("s", now_ms, "two")).done == [False]
    message = (0, b"j 0 j- 1 1 1 0 2\nkihxx")
    firing = put("s", now_ms + 5000, "three", first, messages=(message, message))
    for _ in range(2):
        assert call(bench, firing).done == [True]
    assert call(bench, put("s", now_ms, "late", first, messages=(message,))).done == [False]
    assert bench.do("HGET", bench.names.payloads, "\r0").split()[:2] == [b"0", b"2"]
    assert bench.do("HGET", bench.names.lane, "outgoing") == b"2"
    text: bytes = bench.do("HGET", bench.names.schedules, "s")
    assert text.endswith(b"\nwhat it is")
    gone = ScheduleChange(name="s", seen=line_of(bench, "s"), head="")
    assert call(bench, gone).done == [True]
    assert not bench.do("EXISTS", bench.names.schedules, bench.names.scheduled)
    assert look_ms(bench) is None


def test_pages_are_told_in_order_and_put_the_next_look_off(bench: Bench) -> None:
    now_ms = call(bench).wall_ms
    call(bench, *(put(f"s{n}", now_ms - 1000 + n) for n in range(100)))
    page = call(bench, is_firing=True)
    assert [name for name, _ in page.due] == [b"s%d" % n for n in range(len(page.due))]
    assert 1 < len(page.due) < 100
    assert page.next_s == 2.0
    assert call(bench, is_firing=True, skip=98).due[0][0] == b"s98"
    bench.do("HDEL", bench.names.schedules, "s0")
    call(bench, is_firing=True)
    assert bench.do("ZSCORE", bench.names.scheduled, "s0") is None


def test_who_leaves_some_out_comes_for_the_others_only(bench: Bench) -> None:
    now_ms = call(bench).wall_ms
    call(bench, put("unread", now_ms - 1000))
    assert call(bench, is_firing=True, skip=1).next_s is None
    assert look_ms(bench) is not None  # but somebody is to come
    call(bench, put("s", now_ms + HOUR_MS))
    page = call(bench, is_firing=True, skip=1)
    assert page.due == []
    assert page.next_s is not None
    assert page.next_s > 1000


def test_nobody_waits_for_longer_than_a_day(bench: Bench) -> None:
    """A later deadline than any delay the sweeper takes for junk."""
    page = call(bench, put("s", call(bench).wall_ms + 1000 * DAY_MS))
    assert page.next_s == DAY_MS / 1000


def tick(bench: Bench, token: str, done_ms: int = 0) -> TickTold:
    call = bench.lane.tick("t", token, every_s=1000.0, done_ms=done_ms)
    return ticked(bench.run(call))


def test_a_tick_is_one_callers(bench: Bench) -> None:
    assert tick(bench, "a").at_ms == 0
    bench.do("HSET", bench.names.tickers, "t", "0 - 1 0")
    mine = tick(bench, "b")
    assert mine.at_ms % 1_000_000 == 0
    assert mine.missed == mine.at_ms // 1_000_000 - 1
    assert tick(bench, "b").at_ms == mine.at_ms
    assert tick(bench, "c").at_ms == 0
    bench.do("HSET", bench.names.tickers, "t", f"{mine.at_ms - 1_000_000} b 0 0")
    assert not tick(bench, "d").was_done
    bench.do("HSET", bench.names.tickers, "t", f"{mine.at_ms - 1_000_000} b 0 0")
    assert tick(bench, "e", done_ms=mine.at_ms - 1_000_000).was_done
