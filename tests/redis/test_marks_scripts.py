"""Crash marks in Redis: who is the culprit of a death, and whose marks do not count."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pool.core.marks import Marks
from pool.core.record import Record
from pool.redis.commands.calls import Target
from pool.redis.commands.recovery import Claim, overdue, reaped

if TYPE_CHECKING:
    from tests.redis.conftest import Bench

W1, W2 = Target("w1", 1), Target("w2", 1)
TTL_MS = 10_000


def suspected(bench: Bench, key: str, marks: str = "w8.1-") -> Record:
    """Give W1 a job that it has to acknowledge first, and has marks."""
    bench.put(key, "R")
    edge = bench.edge("g", key, y=f"ma={marks}")
    bench.advance("own", W1.name, edge, targets=[W1])
    return bench.record(key)


def begun(bench: Bench, key: str, marks: str = "w8.1-") -> Record:
    """Have W1 begin such a job."""
    suspected(bench, key, marks)
    assert bench.advance("own", W1.name, bench.edge("a", key)) == ["OK -"]
    return bench.record(key)


def died(bench: Bench, alive_ms: int) -> Claim:
    """Let the lease of W1 have ended that it got at a time."""
    bench.do("ZADD", bench.names.keepalive, alive_ms + TTL_MS, W1.name)
    now_ms = bench.now_ms()
    bench.do("HSET", bench.names.lane, "seen", now_ms, "lease", now_ms)
    [claim] = bench.fence()
    assert claim.identity == W1.name
    return claim


def test_a_claim_tells_until_when_its_worker_lived_and_who_was_begun_last(bench: Bench) -> None:
    """A renewal after the start does not clear it: one may arrive when its sender is dead."""
    begun(bench, "k1")
    last = begun(bench, "k2")
    bench.put("unsuspected", "R")
    alive_ms = bench.now_ms() - TTL_MS - 1
    death = died(bench, alive_ms).death
    assert (death.identity, death.alive_ms, death.culprit) == (W1.name, alive_ms, last.epoch)


def test_who_was_said_to_live_is_no_culprit(bench: Bench) -> None:
    """Its worker says so a while after it has begun it; of another epoch that is no news."""
    begun(bench, "k1")
    last = begun(bench, "k2")
    assert bench.advance("own", W1.name, bench.edge("o", "k1")) == ["OK"]
    assert bench.do("HGET", bench.names.trials, W1.name) == f"{last.epoch}|k2".encode()
    assert bench.advance("own", W1.name, bench.edge("o", "k2")) == ["OK"]
    assert died(bench, bench.now_ms() - TTL_MS - 1).death.culprit == 0


@pytest.mark.parametrize("edge", ["d", "g"])
def test_what_has_ended_or_moved_on_is_no_culprit(bench: Bench, edge: str) -> None:
    """Its worker lived at least until then."""
    begun(bench, "k")
    bench.advance("own", W1.name, bench.edge(edge, "k"), targets=[W2])
    assert died(bench, bench.now_ms() - TTL_MS - 1).death.culprit == 0


@pytest.mark.parametrize("has_lived", [True, False])
def test_who_is_given_up_while_on_trial_is_tried_by_the_next(
    bench: Bench, *, has_lived: bool
) -> None:
    """Its worker left in order; a job that kills at once would end a process unseen by this."""
    begun(bench, "k")
    if has_lived:
        bench.advance("own", W1.name, bench.edge("o", "k"))
    bench.advance("own", W1.name, bench.edge("g", "k"), targets=[W2])
    record = bench.record("k")
    assert (record.owner, record.marks) == (W2.name, Marks(("w8.1-",)))
    assert ("a" in record.flags) is not has_lived


def test_only_suspects_are_on_trial(bench: Bench) -> None:
    """Who has no marks, or was not begun alone, is not the one that was begun last."""
    bench.put("k", "R")
    bench.put("moved", "R")
    bench.advance("own", W1.name, bench.edge("g", "moved", y="m=w8.1-"), targets=[W1])
    bench.advance("own", W1.name, bench.edge("a", "moved"))
    assert not bench.do("EXISTS", bench.names.trials)


def test_a_successor_knows_what_its_predecessor_knew(bench: Bench) -> None:
    """G-05: a reaper may die between two batches, when the culprit has been moved already."""
    last = begun(bench, "k")
    before = died(bench, bench.now_ms() - TTL_MS - 1)
    edge = bench.edge("g", "k", y="ma=w8.1-,w1.1")
    bench.advance("reap", W1.name, edge, targets=[W2], claim=before.claim)
    assert bench.do("HGET", bench.names.trials, W1.name) == b"!"
    bench.end_lease(W1.name)
    [after] = bench.fence(holder="n2.1")
    assert after.claim != before.claim
    assert after.death == before.death
    assert after.death.culprit == last.epoch
    assert bench.refused(bench.lane.reap(before, reap_s=1.0)).startswith("POOLGONE")


def test_the_marks_of_who_came_back_are_told_to_nobody(bench: Bench) -> None:
    """Neither to a reaper, nor to a sweeper, nor to who asks; others' marks stay."""
    marks = "2,w7.1,w8.1-,w8.11"
    begun(bench, "k", marks)
    bench.put("waits", "R")
    bench.advance("own", W1.name, bench.edge("w", "waits", x=0, y=f"1 hma={marks}"))
    bench.run(bench.lane.thaw(["w7.1", "w8.1"], known_s=60.0))
    left = Marks(("w8.11",), 2)
    looked = bench.look("k")
    assert isinstance(looked, Record)
    assert looked.marks == left
    claim = died(bench, bench.now_ms() - TTL_MS - 1)
    [held] = reaped(bench.run(bench.lane.reap(claim, reap_s=1.0))).held
    assert held.record is not None
    assert held.record.marks == left
    sweep = bench.lane.sweep("n1.1", lock_s=1.0, keys_max=10)
    [late] = [each for each in overdue(bench.run(sweep)).found if each.key == "waits"]
    assert late.record is not None
    assert late.record.marks == left
    assert bench.record("k").marks.pack() == marks


def test_that_somebody_came_back_is_not_known_for_ever(bench: Bench) -> None:
    """The list is bounded by time: what is old goes when more comes."""
    begun(bench, "k", "w8.1-")
    bench.run(bench.lane.thaw([f"w8.{n}" for n in range(40)], known_s=60.0))
    for n in range(40):
        bench.do("ZADD", bench.names.thawed, bench.now_ms() - 1, f"w8.{n}")
    looked = bench.look("k")
    assert isinstance(looked, Record)
    assert looked.marks == Marks(("w8.1-",))
    for n in range(3):
        bench.run(bench.lane.thaw([f"w9.{n}"], known_s=60.0))
    assert bench.do("ZCARD", bench.names.thawed) == 3


def test_what_is_held_waits_and_is_free_again_when_it_is_granted(bench: Bench) -> None:
    """G-05: it stands in `due` like all that waits; the marks that it keeps are what is given."""
    bench.put("k", "R")
    bench.advance("own", W1.name, bench.edge("w", "k", x=0, y="3 hma=w7.1,w8.1"))
    held = bench.record("k")
    assert (held.state, held.attempt, set(held.flags)) == ("waiting", 3, set("adhr"))
    assert held.marks == Marks(("w7.1", "w8.1"))
    assert bench.audit() == []
    bench.advance("free", "", bench.edge("g", "k", y="=w7.1"), targets=[W1])
    again = bench.record("k")
    assert (again.state, set(again.flags), again.marks) == ("pending", set("ar"), Marks(("w7.1",)))
    assert bench.audit() == []


def test_what_is_forgotten_of_an_identity_is_all_of_it(bench: Bench) -> None:
    """Who left has no trial that would stand for ever."""
    begun(bench, "k")
    bench.advance("own", W1.name, bench.edge("d", "k"))
    bench.run(bench.lane.leave([W1]))
    assert bench.do("HEXISTS", bench.names.trials, W1.name)
    bench.end_lease(W1.name)
    assert bench.fence() == []
    assert not bench.do("EXISTS", bench.names.trials)
