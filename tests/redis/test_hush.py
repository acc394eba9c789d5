"""What repeats is told at once, once a minute with a count, and that is all."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from pool.redis.io.scribe import KIND_MAX, Counts, Hush

PATIENCE_S = 30.0


class Lines:
    """Where lines go: who, and how often."""

    def __init__(self) -> None:
        self.told: list[tuple[object, int]] = []
        self.spans: list[tuple[str, str]] = []  # when the first and the last of a count came
        self.news = threading.Semaphore(0)

    def write(self, line: Callable[[], object]) -> None:
        line()
        self.news.release()

    def line(self, what: object, counted: Counts) -> None:
        is_other = "others" in counted
        count = counted.get("others" if is_other else "times", 1)
        assert isinstance(count, int)
        self.told.append(("others" if is_other else what, count))
        if counted:
            self.spans.append((str(counted["first_at"]), str(counted["last_at"])))


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.fixture
def hush(lines: Lines) -> Iterator[Hush]:
    hush = Hush(lines.write)
    yield hush
    hush.end()
    for thread in ours():
        thread.join(PATIENCE_S)
    assert ours() == []


def ours() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "pool-log-minute"]


def told(hush: Hush, lines: Lines, *same: object) -> None:
    hush.tell("kind", same, partial(lines.line, same))


def test_a_flood_is_one_line_at_once_and_one_a_minute(hush: Hush, lines: Lines) -> None:
    for _ in range(1_000):
        told(hush, lines, "a")
    told(hush, lines, "b")
    assert lines.told == [(("a",), 1), (("b",), 1)]
    hush.flush()  # a minute has passed
    assert lines.told[2:] == [(("a",), 999)]
    told(hush, lines, "b")  # was over
    told(hush, lines, "a")
    assert lines.told[3:] == [(("b",), 1)]
    hush.flush()
    assert lines.told[4:] == [(("a",), 1)]
    hush.flush()
    hush.flush()
    assert len(lines.told) == 5
    assert not hush._known


def test_the_last_count_is_told_though_nothing_more_happens(hush: Hush, lines: Lines) -> None:
    hush.minute_s = 0.05
    told(hush, lines, "a")
    told(hush, lines, "a")
    told(hush, lines, "a")
    for _ in range(2):
        assert lines.news.acquire(timeout=PATIENCE_S)
    assert lines.told == [(("a",), 1), (("a",), 2)]
    for thread in ours():
        thread.join(PATIENCE_S)
    while hush._known:  # a minute more, in which nothing was counted
        for thread in ours():
            thread.join(PATIENCE_S)


def test_a_count_says_when_its_first_and_its_last_came(
    hush: Hush, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line itself has the time of its writing, which may be a minute later."""
    for now_s in (0, 1, 2, 60):
        monkeypatch.setattr(time, "time", lambda now_s=now_s: float(now_s))
        told(hush, lines, "a")
    hush.flush()
    told(hush, lines, "a")
    hush.end()
    assert lines.spans == [
        ("1970-01-01T00:00:01Z", "1970-01-01T00:01:00Z"),
        ("1970-01-01T00:01:00Z", "1970-01-01T00:01:00Z"),
    ]


def test_at_the_end_what_was_counted_is_told(hush: Hush, lines: Lines) -> None:
    told(hush, lines, "a")
    told(hush, lines, "a")
    hush.end()
    assert lines.told == [(("a",), 1), (("a",), 1)]
    told(hush, lines, "a")
    assert len(lines.told) == 3


def test_of_too_many_different_ones_only_the_kind_counts(hush: Hush, lines: Lines) -> None:
    for i in range(3 * KIND_MAX):
        told(hush, lines, i)
    assert lines.told == [((i,), 1) for i in range(KIND_MAX)]
    told(hush, lines, KIND_MAX - 1)  # the first of those that share a line
    told(hush, lines, 0)  # known by itself
    told(hush, lines, 0)
    hush.flush()
    assert lines.told[KIND_MAX:] == [("others", 2 * KIND_MAX + 1), ((0,), 2)]


def test_a_forked_child_tells_for_itself(hush: Hush, lines: Lines) -> None:
    told(hush, lines, "a")
    told(hush, lines, "a")
    child = os.fork()
    if child == 0:
        told(hush, lines, "a")
        os._exit(0 if lines.told == [(("a",), 1)] * 2 else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_where_no_thread_can_be_had_each_is_told(
    hush: Hush, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: threading.Thread) -> None:
        raise RuntimeError

    monkeypatch.setattr(threading.Thread, "start", fail)
    for _ in range(3):
        told(hush, lines, "a")
    assert lines.told == [(("a",), 1)] * 3
