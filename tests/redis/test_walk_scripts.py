"""`walk`, `recount`, `restore`: what no index leads to is found, and put back where it says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pool.redis.commands.calls import Target
from pool.redis.commands.upkeep import Recounted, Walked, recounted, walked

if TYPE_CHECKING:
    from tests.redis.conftest import Bench

W2 = Target("w2", 1)


def walk(bench: Bench, cursor: str = "", *, holder: str = "n1.1", **changes: Any) -> Walked:
    given: dict[str, Any] = {"keys_max": 100, "names_max": 100, "hold_s": 9.0}
    given |= {"at": (cursor, "0", "0")}
    return walked(bench.run(bench.lane.walk(holder, **given | changes)))


def restore(bench: Bench, key: str, owner: str = "", *, limit_s: float = 0.0) -> str:
    text = bench.text(key)
    assert text is not None
    call = bench.lane.restore(owner, [(key, text, limit_s)], pending_s=10.0)
    [answer] = bench.run(call)
    return str(answer.decode())


# --- walk ---------------------------------------------------------------------------------------


def test_one_node_walks_at_a_time(bench: Bench) -> None:
    """Its hold lasts as long as it asked for; then the next goes on where it stood."""
    bench.put("k", "R")
    first = walk(bench)
    assert (first.held_s, first.is_from_start, first.records) == (0.0, True, 1)
    assert first.flat == [b"k", bench.text("k")]
    second = walk(bench, holder="n2.1")
    assert 8.0 < second.held_s <= 9.0
    assert second.flat == ()
    bench.do("HSET", bench.names.lane, "walk", f"n1.1|{bench.now_ms() - 1}|77")
    third = walk(bench, holder="n2.1")
    assert (third.held_s, third.is_continued, third.is_from_start) == (0.0, False, False)


def test_a_clock_that_went_back_does_not_stop_the_walk(bench: Bench) -> None:
    """G-05: a hold that would end in an hour is of before the step: it is nobody's."""
    bench.do("HSET", bench.names.lane, "walk", f"n2.1|{bench.now_ms() + 3_600_000}|0")
    assert walk(bench).held_s == 0.0


@pytest.mark.parametrize("junk", ["", "|", "n1.1|x|0", f"n1.1|1|{'9' * 30}", "n1.1|1|-1"])
def test_a_hold_that_cannot_be_read_is_nobodys(bench: Bench, junk: str) -> None:
    bench.do("HSET", bench.names.lane, "walk", junk)
    assert walk(bench).is_from_start


def test_a_pass_meets_every_record_and_knows_when_somebody_else_walked(bench: Bench) -> None:
    for i in range(700):  # no longer a small hash, which comes in one slice
        bench.do("HSET", bench.names.jobs, f"k{i}", "x" * 100)
    met: set[bytes] = set()
    told = walk(bench, keys_max=100)
    while True:
        met.update(told.flat[::2])
        if told.cursor == "0":
            break
        told = walk(bench, told.cursor, keys_max=100)
        assert told.is_continued
    assert len(met) == 700
    told = walk(bench, "0", keys_max=100)
    assert (told.is_continued, told.is_from_start) == (True, True)
    assert not walk(bench, "12345", keys_max=100).is_continued
    bench.do("DEL", bench.names.jobs)


def test_whoever_should_have_a_deadline_and_has_none_is_told(bench: Bench) -> None:
    """In `open`, or being reaped; what is done is remembered as long as ever."""
    n = bench.names
    assert walk(bench).suspects == ()
    bench.do("HSET", n.cleanup, "w8.1", "n9.1|5", "w9.1", "done", "sweeper", "n1.1|5")
    bench.do("ZREM", n.keepalive, "w2.1")
    suspects = walk(bench, "0").suspects
    assert sorted(suspects) == ["w2.1", "w8.1", "w9.1"]
    assert walk(bench, "0", at=("0", "", "")).suspects == ()
    claimed = bench.fence(suspects=suspects)
    assert sorted(claim.identity for claim in claimed) == ["w2.1", "w8.1"]
    assert bench.do("ZSCORE", n.keepalive, "w9.1") > bench.now_ms() + 50_000
    assert walk(bench, "0").suspects == ()


# --- recount ------------------------------------------------------------------------------------


def recount(bench: Bench, changes: str, *, counted: int) -> tuple[Any, Any]:
    call = bench.lane.recount(["h", "other"], changes=changes, found=3, counted=counted)
    counts = recounted(bench.run(call))
    return counts.before, counts.after


def test_counters_are_set_right(bench: Bench) -> None:
    """G-05: `unassigned` from its indexes, `waiting` as counted."""
    bench.put("u", "U")
    bench.put("w", "W")
    bench.do("HSET", bench.names.lane, "unassigned", 7, "waiting", 9)
    changes = walk(bench).changes
    assert recount(bench, changes, counted=1) == ((7, 9), (1, 1))
    assert bench.counter("astray") == 3
    assert bench.audit() == []


def test_without_a_count_only_the_pass_is_noted(bench: Bench) -> None:
    bench.do("HSET", bench.names.lane, "unassigned", 7, "waiting", 9)
    call = bench.lane.recount([], changes="", found=2, counted=5)
    assert recounted(bench.run(call)) == Recounted((7, 9), (7, 9))
    assert bench.counter("astray") == 2


def test_what_changed_meanwhile_is_not_counted(bench: Bench) -> None:
    """A key that began to wait, or ceased to; a handler whose index nobody can know."""
    bench.put("w1", "W")
    bench.put("w2", "W")
    for change in (
        lambda: bench.put("w3", "W"),
        lambda: bench.advance("free", "", bench.edge("g", "w1"), targets=[W2]),
    ):
        changes, had = walk(bench, "0").changes, bench.counter("waiting")
        change()
        now = bench.counter("waiting")
        assert recount(bench, changes, counted=had)[1] == (0, now)
    changes = walk(bench, "0").changes
    bench.dispatch(
        bench.admission("u", handler="new", allow_unknown=True, unassigned=True, ranked=())
    )
    assert recount(bench, changes, counted=-1)[1][0] == 1
    assert bench.audit() == []


# --- restore ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "index"), [("P", "pending"), ("R", "owned"), ("W", "due")], ids="PRW"
)
def test_a_record_is_put_back_where_it_says(bench: Bench, state: str, index: str) -> None:
    """G-05: once; the time for which it waits is the record's."""
    n, record = bench.names, bench.put("k", state)
    due_ms = bench.do("ZSCORE", n.due, "k:k")
    for name in (n.pending, n.due, n.owned("w1.1")):
        bench.do("DEL", name)
    assert restore(bench, "k", record.owner) == index
    assert restore(bench, "k", record.owner) == "SOUND"
    assert bench.record("k") == record
    assert bench.do("ZSCORE", n.due, "k:k") == due_ms
    assert bench.audit() == []


def test_only_what_was_seen_is_put_back(bench: Bench) -> None:
    """G-02: another record, another owner; and nowhere that nobody looks at any more."""
    n = bench.names
    bench.put("k", "R")
    text = bench.text("k")
    assert text is not None
    bench.do("DEL", n.owned("w1.1"))
    before = bench.dump()
    for owner, seen in (("w1.1", text + b"x"), ("w2.1", text), ("", text), ("w1.1", b"garbage")):
        call = bench.lane.restore(owner, [("k", seen, 0.0)], pending_s=10.0)
        assert bench.run(call) == [b"MOVED_ON"]
    assert bench.dump() == before
    bench.do("HSET", n.cleanup, "w1.1", "done")
    assert restore(bench, "k", "w1.1") == "GONE"
    assert not bench.do("EXISTS", n.owned("w1.1"))


@pytest.mark.parametrize(("limit_s", "has_one"), [(30.0, True), (0.0, False)])
def test_a_run_time_limit_is_counted_anew_and_never_strikes_early(
    bench: Bench, limit_s: float, has_one: bool
) -> None:
    bench.put("k", "R")
    bench.advance("own", "w1.1", bench.edge("l", "k", x=5_000))
    bench.do("DEL", bench.names.due)
    assert restore(bench, "k", "w1.1", limit_s=limit_s) == "due"
    due_ms = bench.do("ZSCORE", bench.names.due, "k:k")
    assert (due_ms is not None) is has_one
    if has_one:
        assert due_ms > bench.now_ms() + 29_000
    assert bench.audit() == []


def test_an_intent_is_looked_after_at_once(bench: Bench) -> None:
    bench.put("k", "R")
    bench.run(bench.lane.intend("k", "", "w1.1", "sbecause", again_s=60.0))
    bench.do("DEL", bench.names.due)
    assert restore(bench, "k", "w1.1", limit_s=30.0) == "due"
    assert bench.do("ZSCORE", bench.names.due, "k:k") <= bench.now_ms()
    assert bench.audit() == []
