"""The verdict on ledgers written by hand: a good one, and one for each way to break a promise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from pool.demo.ledger import CLOCK, ZONE, Entry, What
from pool.demo.verdict import History, Stored, Verdict, judge

TTL_S = 2.0
ZONES = [f"Zone/{i}" for i in range(30)]
CLOCKS = [f"clock:{i}" for i in range(6)]
RIGHT = {"first": [0, False, "UTC"], "changes": []}


class Book:
    """A ledger being written, and what is stored in the end."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.stored: dict[str, Stored] = {}
        self._runs = 0

    def add(self, at_s: float, what: What, **facts: Any) -> None:
        self.entries.append(Entry(at_s=at_s, what=what, **facts))

    def node(self, at_s: float, name: str, how: str, code: int = 0) -> None:
        self.add(at_s, "node", node=name, how=how, count=code)

    def accepted(self, at_s: float, key: str) -> None:
        self.add(at_s, "accepted", key=key, job=f"j-{key}", handler=kind(key))

    def run(
        self,
        key: str,
        node: str,
        epoch: int,
        begin_s: float,
        end_s: float | None = None,
        *,
        given: int = 0,
        ticks: int = 0,
        how: str = "returned",
        ticked_s: float | None = None,
        heard: dict[int, float] | None = None,
    ) -> None:
        """Write one run of a handler."""
        self._runs += 1
        about: dict[str, Any] = {
            "node": node,
            "key": key,
            "job": f"j-{key}",
            "handler": kind(key),
            "epoch": epoch,
            "run": self._runs,
        }
        self.add(begin_s, "start", count=given, **about)
        for number, at_s in (heard or {}).items():
            self.add(at_s, "heard", **{**about, "count": number})
        if ticked_s is not None:
            self.add(ticked_s, "tick", count=ticks, **about)
        if end_s is not None:
            self.add(end_s, "end", count=ticks, how=how, **about)

    def outcome(self, at_s: float, key: str, epoch: int) -> None:
        """Write that an outcome was seen, and store it."""
        self.add(at_s, "outcome", key=key, job=f"j-{key}", epoch=epoch, how="done")
        self.stored[f"j-{key}"] = Stored(word="done", epoch=epoch, value={"epoch": epoch, **RIGHT})

    def verdict(self) -> Verdict:
        history = History.of(sorted(self.entries, key=lambda entry: entry.at_s))
        return judge(
            history,
            self.stored,
            dict.fromkeys(ZONES, RIGHT),
            server="valkey 9",
            seconds=20.0,
            ttl_s=TTL_S,
        )


def kind(key: str) -> str:
    return CLOCK if key.startswith("clock:") else ZONE


def good() -> Book:
    """Return a play in which every promise was kept.

    North is killed at 5 with all it runs, east is frozen from 8 to 12, south drains at 14; west
    joins at 14.  Zone/0 is a zone of east that south runs again; clock:0 wanders through them all.
    """
    book = Book()
    for name in ("north", "east", "south"):
        book.node(0.0, name, "joined")
    for key in (*ZONES, *CLOCKS):
        book.accepted(1.0, key)
    for key in (*ZONES[5:], *CLOCKS):
        book.run(key, "north", 1, 1.5, ticked_s=2.0, ticks=1)
    book.node(5.0, "north", "killed")
    for key in ZONES[5:]:
        book.run(key, "south", 2, 7.0, 13.0)
        book.outcome(13.1, key, 2)
    for key in CLOCKS:
        book.run(key, "south", 2, 7.5, 14.1, given=0, ticks=9, how="cancelled")
        book.run(key, "west", 3, 14.2, given=9, ticks=30, ticked_s=21.0, heard={1: 15.0, 2: 21.0})
        book.add(2.0, "notified", key=key, count=1)
        book.add(20.5, "notified", key=key, count=2)
    for key in ZONES[:5]:
        book.run(key, "east", 1, 1.6, 12.1, how="cancelled")
        book.run(key, "south", 2, 10.2, 13.5)
        book.outcome(13.6, key, 2)
    book.node(8.0, "east", "stopped")
    book.node(12.0, "east", "continued")
    book.node(14.0, "south", "draining")
    book.node(14.0, "west", "joined")
    book.node(16.0, "south", "left")
    book.add(20.0, "curtain")
    for key in CLOCKS:
        book.stored[f"j-{key}"] = Stored(word="cancelled", epoch=3)
    return book


def test_a_good_ledger_is_ok() -> None:
    verdict = good().verdict()
    assert verdict.broken == ()
    assert verdict.figures() == {
        "ok": True,
        "server": "valkey 9",
        "seconds": 20.0,
        "ttl_s": TTL_S,
        "jobs": 30,
        "services": 6,
        "lost": 0,
        "settled_twice": 0,
        "stale_commits": 0,
        "overlaps": 0,
        "frozen_overlaps": 5,
        "wrong_results": 0,
        "takeover_s": 2.5,
        "handoff_s": 0.1,
        "moves": 12,
    }


def lose_a_result(book: Book) -> None:
    del book.stored["j-Zone/3"]


def park_a_job(book: Book) -> None:
    book.stored["j-Zone/3"] = Stored(word="parked", epoch=2)
    book.entries = [e for e in book.entries if (e.what, e.key) != ("outcome", "Zone/3")]


def stop_a_clock(book: Book) -> None:
    book.entries = [
        entry
        for entry in book.entries
        if not (entry.what == "tick" and entry.key == "clock:2" and entry.at_s > 20.0)
    ]


def swallow_a_notification(book: Book) -> None:
    book.add(16.0, "notified", key="clock:2", count=7)


def settle_again(book: Book) -> None:
    book.stored["j-Zone/9"] = Stored(word="done", epoch=3, value={"epoch": 3, **RIGHT})


def begin_again(book: Book) -> None:
    book.run("Zone/9", "west", 4, 15.0, 16.0)
    book.outcome(16.0, "Zone/9", 4)


def commit_the_older(book: Book) -> None:
    book.stored["j-Zone/0"] = Stored(word="done", epoch=1, value={"epoch": 1, **RIGHT})
    book.entries = [e for e in book.entries if (e.what, e.key) != ("outcome", "Zone/0")]


def commit_the_older_as_the_newer(book: Book) -> None:
    """What a pool without a fence does: the record's epoch stands beside the other's result."""
    book.stored["j-Zone/0"] = Stored(word="done", epoch=2, value={"epoch": 1, **RIGHT})


def overlap(book: Book) -> None:
    book.run("Zone/9", "east", 3, 12.5, 12.9)


def overlap_long_after_the_freeze(book: Book) -> None:
    """East holds the older epoch, but it began after it was continued: no excuse."""
    book.run("clock:1", "east", 1, 12.5, 13.0, ticks=9)


def compute_wrongly(book: Book) -> None:
    wrong = {"epoch": 2, **RIGHT, "changes": [[1, [3600, True, "XST"]]]}
    book.stored["j-Zone/9"] = Stored(word="done", epoch=2, value=wrong)


def return_nothing(book: Book) -> None:
    book.stored["j-Zone/9"] = Stored(word="done", epoch=2, value=None)


@pytest.mark.parametrize(
    ("break_it", "figures"),
    [
        (lose_a_result, {"lost": 1}),
        (park_a_job, {"lost": 1}),
        (stop_a_clock, {"lost": 1}),
        (swallow_a_notification, {"lost": 1}),
        (settle_again, {"settled_twice": 1}),
        (begin_again, {"settled_twice": 1}),
        (commit_the_older, {"stale_commits": 1}),
        (commit_the_older_as_the_newer, {"stale_commits": 1}),
        (overlap, {"overlaps": 1, "stale_commits": 1}),
        (overlap_long_after_the_freeze, {"overlaps": 1}),
        (compute_wrongly, {"wrong_results": 1}),
        (return_nothing, {"wrong_results": 1}),
    ],
)
def test_each_broken_promise_has_its_figure(
    break_it: Callable[[Book], None], figures: dict[str, int]
) -> None:
    book = good()
    break_it(book)
    verdict = book.verdict()
    counted = ("lost", "settled_twice", "stale_commits", "overlaps", "wrong_results")
    told = {name: count for name in counted if (count := getattr(verdict, name))}
    assert not verdict.ok
    assert told == figures


def test_a_slow_takeover_is_a_broken_promise() -> None:
    book = good()
    at_s = {"Zone/9": 8.2}
    book.entries = [
        attrs.evolve(entry, at_s=at_s.get(entry.key, entry.at_s))
        if entry.what == "start" and entry.epoch == 2
        else entry
        for entry in book.entries
    ]
    verdict = book.verdict()
    assert verdict.takeover_s == 3.2
    assert verdict.broken == ("a takeover was 0.20 s later than G-06 says",)


@pytest.mark.parametrize(("at_s", "broken"), [(7.9, 0.0), (5.0, 0.2), (8.3, 0.2)])
def test_a_machine_that_was_late_itself_is_no_slow_takeover(at_s: float, broken: float) -> None:
    """What it was late before the kill, or after the start, has delayed nobody."""
    book = good()
    book.entries = [
        attrs.evolve(entry, at_s=8.2)
        if (entry.what, entry.key, entry.epoch) == ("start", "Zone/9", 2)
        else entry
        for entry in book.entries
    ]
    book.add(at_s, "late", count=210_000)
    said = (f"a takeover was {broken:.2f} s later than G-06 says",) if broken else ()
    assert book.verdict().broken == said


def test_what_had_just_begun_may_take_five_seconds_more() -> None:
    """G-06: it may have killed the node, and begins one at a time."""
    book = good()
    book.entries = [
        attrs.evolve(entry, at_s=4.5) if (entry.key, entry.epoch) == ("Zone/9", 1) else entry
        for entry in book.entries
    ]
    again = [e for e in book.entries if (e.what, e.key, e.epoch) == ("start", "Zone/9", 2)]
    book.entries = [
        attrs.evolve(entry, at_s=12.9) if entry in again else entry for entry in book.entries
    ]
    assert (book.verdict().takeover_s, book.verdict().broken) == (7.9, ())


def test_no_takeover_at_all_has_no_figure() -> None:
    book = good()
    gone = {(e.node, e.run) for e in book.entries if e.key == "Zone/9" and e.node == "south"}
    book.entries = [e for e in book.entries if not (e.run and (e.node, e.run) in gone)]
    verdict = book.verdict()
    assert verdict.takeover_s is None
    assert "what the killed node ran was not all started elsewhere" in verdict.broken


def test_a_handoff_that_loses_the_count_is_a_broken_promise() -> None:
    book = good()
    book.entries = [
        attrs.evolve(e, count=8) if (e.what, e.node, e.key) == ("start", "west", "clock:4") else e
        for e in book.entries
    ]
    assert book.verdict().broken == ("1 hand-offs that lost the count of ticks: clock:4",)


def test_what_ran_on_a_frozen_node_was_taken_over_also_if_the_next_one_begins_late() -> None:
    """The next owner was slow to begin, and the frozen one, which goes on, ended it just before."""
    book = good()
    book.accepted(1.0, "clock:6")
    book.run("clock:6", "east", 1, 1.6, 12.1, ticks=3, how="cancelled")
    book.run("clock:6", "south", 2, 12.2, 14.1, given=0, ticks=4, how="cancelled")
    book.run("clock:6", "west", 3, 14.2, given=4, ticks=30, ticked_s=21.0)
    book.stored["j-clock:6"] = Stored(word="cancelled", epoch=3)
    assert book.verdict().broken == ()


def test_notifications_out_of_order_are_a_broken_promise() -> None:
    book = good()
    swapped = {1: 2, 2: 1}
    book.entries = [
        attrs.evolve(e, count=swapped[e.count]) if (e.what, e.key) == ("heard", "clock:4") else e
        for e in book.entries
    ]
    assert book.verdict().broken == ("1 clocks that heard notifications out of order: clock:4",)


def test_hearing_twice_is_allowed() -> None:
    book = good()
    book.run("clock:4", "north", 0, 1.4, 1.45, heard={1: 1.42}, how="cancelled")
    assert book.verdict().ok


def test_a_process_that_crashes_is_a_broken_promise() -> None:
    book = good()
    book.node(22.0, "west", "left", code=-6)
    assert book.verdict().broken == ("west ended with exit code -6",)


def test_what_the_conductor_could_not_do_is_told() -> None:
    book = good()
    book.add(22.0, "mishap", how="stop clock:1: not within 8 s")
    assert book.verdict().broken == ("stop clock:1: not within 8 s",)


def test_a_kill_that_hits_too_little_fails_the_demo() -> None:
    book = good()
    book.entries = [
        e for e in book.entries if not (e.node == "north" and e.key in CLOCKS[:2] + ZONES[5:11])
    ]
    assert book.verdict().broken == (
        "the demo itself failed: the killed node ran 19 zones and 4 clocks, fewer than 20 and 5",
    )


def test_without_a_hand_over_the_demo_fails() -> None:
    book = good()
    book.entries = [
        attrs.evolve(e, how="failed") if e.how == "cancelled" else e for e in book.entries
    ]
    assert "the demo itself failed: no clock was handed over" in book.verdict().broken


def test_without_a_kill_the_demo_fails() -> None:
    book = good()
    book.entries = [e for e in book.entries if e.how != "killed"]
    assert "the demo itself failed: no node was killed" in book.verdict().broken
