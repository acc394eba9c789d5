"""No event floods a log: few lines at once, and the rest as a count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
from structlog.testing import capture_logs

import pool.events
from pool.events import AttemptFailed, LaneDataLost, MapsReachable, MapsUnreachable
from pool.redis.io.scribe import KIND_MAX
from pool.runtime.observers import log_observer
from tests.verify.floods import LINES_MAX, NAMES_LINES_MAX, REPEATS, events, flood, limited


def test_the_table_has_all_events_of_the_module() -> None:
    there = {
        each
        for each in vars(pool.events).values()
        if attrs.has(each) and isinstance(getattr(each, "event", None), str)
    }
    assert there == {*events().values()}


@pytest.mark.parametrize("kind", events().values(), ids=events())
def test_a_flood_of_an_event_is_a_few_lines_and_none_is_lost_in_the_count(kind: type[Any]) -> None:
    at_once, told = flood(kind)
    assert 1 <= at_once <= LINES_MAX
    assert told == REPEATS


@pytest.mark.parametrize("kind", events().values(), ids=events())
def test_a_flood_of_names_is_bounded(kind: type[Any]) -> None:
    at_once, told = flood(kind, is_renamed=True)
    assert 1 <= at_once <= NAMES_LINES_MAX
    assert told == REPEATS


def lines_of(*told: Any) -> list[Any]:
    written: list[Callable[[], object]] = []
    with capture_logs() as logs:
        with limited(written.append):
            for event in told:
                log_observer(event)
        for line in written:
            line()
    return logs


def failed(handler: str, key: int) -> AttemptFailed:
    return AttemptFailed(
        key=f"k{key}", handler=handler, attempt=1, error="E", follows="parked", traceback=f"{key}"
    )


def test_the_first_failure_of_each_handler_is_a_line_in_a_flood_of_another() -> None:
    logs = lines_of(*(failed("resize-2", n) for n in range(500)), failed("resize-3", 0))
    assert [(each["handler"], each.get("times", 1)) for each in logs] == [
        ("resize-2", 1),
        ("resize-3", 1),
        ("resize-2", 499),
    ]


def test_of_many_handlers_no_line_counts_what_was_not_its_own() -> None:
    """20 lines at once.  The count of those that share a line is not `times` of its handler."""
    logs = lines_of(*(failed(f"h{n % 30}", n) for n in range(300)))
    at_once, counts = logs[:KIND_MAX], logs[KIND_MAX:]
    assert [each["handler"] for each in at_once] == [f"h{n}" for n in range(KIND_MAX)]
    assert not [each for each in at_once if "times" in each or "others" in each]
    assert [each["times"] for each in counts if "times" in each] == [9] * (KIND_MAX - 1)
    [others] = [each for each in counts if "times" not in each]
    assert (others["handler"], others["others"]) == ("h29", 109)
    assert sum(each.get("times", each.get("others", 1)) for each in logs) == 300


def test_an_error_names_each_lane() -> None:
    logs = lines_of(*(LaneDataLost(pool="p", lane=n % 3, generation=f"{n}") for n in range(30)))
    assert [each["lane"] for each in logs[:3]] == [0, 1, 2]
    assert len(logs) == 6


def test_what_was_told_last_is_written_last() -> None:
    """An outage that is there again must not read as one that is over."""
    down, up = MapsUnreachable(pool="p", problem="x"), MapsReachable(pool="p", failures=1)
    logs = lines_of(down, up, down, up, down)
    assert [each["event"].partition(".")[2] for each in logs] == [
        *("unreachable", "reachable"),
        *("reachable", "unreachable"),
    ]
