"""Crash marks in Redis: who is the culprit of a death, and whose marks do not count."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pool.core.crash_marks import NO_MARKS, Aboard, Marks
from pool.core.record import Record
from pool.redis.commands.calls import IS_DRAINING, Target
from pool.redis.commands.recovery import Claim, overdue, reaped

if TYPE_CHECKING:
    from tests.redis.conftest import Bench

W1, W2 = Target("w1", 1), Target("w2", 1)
TTL_MS = 10_000
PROCESS = "processone"
WORKER = Target(f"w{PROCESS}1", 1)
SUSPECT = Marks(2, 10, 20, 5, last=Aboard(PROCESS, 9, 3), place="processtwo", dealt=3)
MARKS = SUSPECT.pack()


def suspected(bench: Bench, key: str, marks: str = MARKS) -> Record:
    """Give W1 a job that it has to acknowledge first, and has marks."""
    bench.put(key, "R")
    edge = bench.edge("g", key, y=f"ma={marks}")
    bench.advance("own", W1.name, edge, targets=[W1])
    return bench.record(key)


def begun(bench: Bench, key: str, marks: str = MARKS) -> Record:
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
    assert (record.owner, record.marks) == (W2.name, SUSPECT)
    assert ("a" in record.flags) is not has_lived


def test_only_suspects_are_on_trial(bench: Bench) -> None:
    """Who has no marks, or was not begun alone, is not the one that was begun last."""
    bench.put("k", "R")
    bench.put("moved", "R")
    bench.advance("own", W1.name, bench.edge("g", "moved", y=f"m={MARKS}"), targets=[W1])
    bench.advance("own", W1.name, bench.edge("a", "moved"))
    assert not bench.do("EXISTS", bench.names.trials)


def test_a_successor_knows_what_its_predecessor_knew(bench: Bench) -> None:
    """G-05: a reaper may die between two batches, when the culprit has been moved already."""
    last = begun(bench, "k")
    before = died(bench, bench.now_ms() - TTL_MS - 1)
    edge = bench.edge("g", "k", y=f"ma={MARKS}")
    bench.advance("reap", W1.name, edge, targets=[W2], claim=before.claim)
    bench.end_lease(W1.name)
    [after] = bench.fence(holder="n2.1")
    assert after.claim != before.claim
    assert after.death == before.death
    assert after.death.culprit == last.epoch
    assert bench.refused(bench.lane.reap(before, reap_s=1.0)).startswith("POOLGONE")


def test_how_unlikely_a_death_in_the_trial_is_stands_in_the_claim(bench: Bench) -> None:
    """Its worker says so with the acknowledgement, as only it knows how old its process is."""
    suspected(bench, "k")
    bench.advance("own", W1.name, bench.edge("a", "k", y=66))
    death = died(bench, bench.now_ms() - TTL_MS - 1).death
    assert (death.culprit, death.bits) == (bench.record("k").epoch, 66)


def test_the_last_death_of_who_came_back_is_told_to_nobody(bench: Bench) -> None:
    """Neither to a reaper, nor to a sweeper, nor to who asks; what is settled stays."""
    bench.do("ZADD", bench.names.deaths, 9, f"{PROCESS}.9")
    begun(bench, "k")
    bench.put("waits", "R")
    bench.advance("own", W1.name, bench.edge("w", "waits", x=0, y=f"1 hma={MARKS}"))
    looked = bench.look("k")
    assert isinstance(looked, Record)
    assert looked.marks == SUSPECT
    bench.run(bench.lane.thaw([WORKER.name]))
    left = Marks(1, 10, 20, 5, place="processtwo", dealt=3)
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
    assert bench.record("k").marks == SUSPECT


def test_a_new_job_of_the_key_is_suspected_of_nothing(bench: Bench) -> None:
    """The evidence is against the job, whose handler and arguments may be others than the next."""
    begun(bench, "k")
    item = bench.admission("k", id="next", policy="q5", ranked=[1], unassigned=True)
    [answer] = bench.dispatch(item, targets=[W1])
    assert answer.startswith("QUEUED")
    queued = bench.look("k", "next")
    assert isinstance(queued, Record)
    assert queued.marks == NO_MARKS
    assert bench.record("k").marks == SUSPECT


def ended(bench: Bench, *targets: Target) -> dict[str, int]:
    """Let leases have ended, and return which processes count as dead then."""
    for target in targets:
        bench.do("ZADD", bench.names.keepalive, bench.now_ms() - 1, target.name)
    bench.fence(claims_max=200)
    found = bench.do("ZRANGE", bench.names.deaths, 0, -1, "WITHSCORES")
    pairs = zip(found[::2], found[1::2], strict=True)
    told = {name.decode().rpartition("."): int(float(ms)) for name, ms in pairs}
    assert all(at == str(ms) for (_, _, at), ms in told.items())
    return {process: ms for (process, _, _), ms in told.items()}


def test_a_process_dies_once_with_all_its_workers(bench: Bench) -> None:
    """K1: 100 workers of it are one death; and their node has none of its own."""
    workers = [Target(f"w{PROCESS}{n}", 1) for n in range(4)]
    bench.join(dict.fromkeys(workers, 2), node=Target(f"n{PROCESS}0", 1))
    first = ended(bench, workers[0])
    assert list(first) == [PROCESS]
    assert ended(bench, *workers[1:], Target(f"n{PROCESS}0", 1)) == first


def test_clients_are_no_deaths(bench: Bench) -> None:
    """A hundred scripts that were killed say nothing about jobs."""
    clients = [Target(f"nclient{n:04}0", 1) for n in range(100)]
    for client in clients:
        bench.do("ZADD", bench.names.keepalive, 1, client.name)
    assert ended(bench, *clients) == {}


def test_a_worker_that_said_that_it_drains_is_no_death(bench: Bench) -> None:
    """It was killed at the end of its grace, as each deployment does that gives too little."""
    other = Target("wprocesstwo1", 1)
    bench.join({WORKER: 2, other: 2})
    takes = {WORKER.name: IS_DRAINING, other.name: 0}  # the other one is only full
    bench.run(bench.renew_call(takes, seq=5))
    bench.put("k", "R")
    edge = bench.edge("n", "k", x="1//")
    call = bench.lane.advance("own", WORKER.name, [edge], pending_s=1.0, says="7|6")
    bench.run(call)  # what it says with something else opens it no more
    assert list(ended(bench, WORKER, other)) == ["processtwo"]


def test_a_successor_counts_no_death_again(bench: Bench) -> None:
    """Its predecessor has; one that came back meanwhile stays out."""
    bench.join({WORKER: 2})
    assert list(ended(bench, WORKER)) == [PROCESS]
    bench.run(bench.lane.thaw([WORKER.name]))
    assert ended(bench, WORKER) == {}


def test_who_could_not_leave_is_no_death_when_its_lease_ends(bench: Bench) -> None:
    bench.join({WORKER: 2})
    bench.run(bench.lane.thaw([WORKER.name]))
    assert ended(bench, WORKER) == {}


def test_a_late_renewal_opens_nobody_who_could_not_leave(bench: Bench) -> None:
    """A call of before may arrive long after: the worker takes nothing, and its end is no death."""
    bench.join({WORKER: 2})
    late = bench.renew_call({WORKER.name: 2})
    bench.run(bench.lane.thaw([WORKER.name]))
    bench.run(bench.lane.thaw([WORKER.name]))
    bench.run(late)
    assert bench.opening(WORKER.id) == f"{WORKER.number}|0|0|0"
    assert ended(bench, WORKER) == {}


def test_a_late_renewal_opens_nobody_who_drains(bench: Bench) -> None:
    bench.join({WORKER: 2})
    bench.take(WORKER, IS_DRAINING)
    bench.take(WORKER, 2)
    assert bench.opening(WORKER.id).startswith(f"{WORKER.number}|0|")
    assert ended(bench, WORKER) == {}


def test_deaths_are_bounded_in_number_and_in_time(bench: Bench) -> None:
    now_ms = bench.now_ms()
    old = {f"o{n:09}": now_ms - 600_000 - n for n in range(5)}
    new = {f"p{n:09}": now_ms - 1000 * n for n in range(300)}
    for name, at_ms in {**old, **new}.items():
        bench.do("ZADD", bench.names.deaths, at_ms, f"{name}.{at_ms}")
    bench.join({WORKER: 2})
    found = ended(bench, WORKER)
    assert len(found) == 256
    assert PROCESS in found
    assert not found.keys() & old.keys()
    assert "p000000000" in found


def test_what_is_held_waits_and_is_free_again_when_it_is_granted(bench: Bench) -> None:
    """G-05: it stands in `due` like all that waits; the marks that it keeps are what is given."""
    bench.put("k", "R")
    bench.advance("own", W1.name, bench.edge("w", "k", x=0, y=f"3 hma={MARKS}"))
    held = bench.record("k")
    assert (held.state, held.attempt, set(held.flags)) == ("waiting", 3, set("adhr"))
    assert held.marks == SUSPECT
    assert bench.audit() == []
    bench.advance("free", "", bench.edge("g", "k", y=f"={Marks(1).pack()}"), targets=[W1])
    again = bench.record("k")
    assert (again.state, set(again.flags), again.marks) == ("pending", set("ar"), Marks(1))
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
