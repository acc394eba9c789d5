"""The classes of orphans that a naive design leaves, each with the mechanism that prevents it.

Every story is told twice: by the package as it is, and by a copy of it from which that mechanism
was taken by a substitution in its text.  There the same story must fail, at the point where the
orphan should have been found: so the test proves the mechanism, not the luck of the day.  The
broken copies wait out their bounds, and are for `make test-long`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest

from pool.names import Names, lane_of
from tests.process.conftest import BACK_S, PACKAGE

if TYPE_CHECKING:
    from tests.process.conftest import Figures, Fleet, MakeFleet

FOUND = "the orphan is found"
NEVER_S = 600.0


def accepted_but_never_announced(fleet: Fleet) -> None:
    """Nobody was there to be told, and the dispatcher is gone when a worker comes."""
    client = fleet.start("client", is_client=True)[0]
    fleet.leave(fleet.start("before")[0])  # so that the handler is a known one
    keys = fleet.dispatch(client, "nap", ["key"], 0.0)
    fleet.kill(client)
    fleet.start("after")
    fleet.until(lambda: fleet.said("end", key="key"), within_s=fleet.ttl_s + 1.0, what=FOUND)
    assert len(fleet.runs(keys)) == 1


def announced_but_never_heard(fleet: Fleet) -> None:
    """The worker did not hear of what it was granted: the deadline of its start passes."""
    client = fleet.start("client", is_client=True)[0]
    fleet.start("a", trap="deaf")
    keys = fleet.dispatch(client, "nap", ["key"], 0.0)
    fleet.until(lambda: fleet.said("end", key="key"), within_s=2 * fleet.ttl_s + 1.0, what=FOUND)
    assert len(fleet.runs(keys)) == 1
    assert fleet.said("trap")


def retry_promised_by_the_dead(fleet: Fleet) -> None:
    """The attempt failed, another one was promised, and who promised it is dead."""
    victim, _ = fleet.start("a", "b")
    jobs = fleet.dispatch(victim, "flaky", [f"job-{i}" for i in range(24)], NEVER_S)
    fleet.until(lambda: len(fleet.said("end", how="failed")) == len(jobs))
    assert {run.node for run in fleet.runs(jobs)} == {"a", "b"}
    fleet.until(lambda: all((r := fleet.record(k)) and r.state == "waiting" for k in jobs))
    fleet.kill(victim)
    # It must be reaped, or some would be granted to it.  Its own lease has nothing to do with what
    # comes then: nobody owns a key that waits.
    fleet.until(lambda: fleet.events("worker.reaped", node="b"))
    with fleet.client() as by_hand:
        for key in jobs:  # now it is time
            due = Names(fleet.pool, lane_of(key, fleet.lanes)).due
            assert by_hand.zadd(due, {f"k:{key}": 1}, xx=True, ch=True) == 1
    fleet.until(
        lambda: len(fleet.said("start", attempt=2, node="b")) == len(jobs),
        within_s=fleet.ttl_s + 1.0,
        what=FOUND,
    )


def running_when_its_worker_died(fleet: Fleet) -> None:
    """The worker acknowledged it, and was killed."""
    gate = fleet.directory / "gate"
    victim = fleet.start("a")[0]
    jobs = fleet.dispatch(victim, "held", ["key"], str(gate))
    fleet.are_running(jobs)
    fleet.until(lambda: (r := fleet.record("key")) is not None and r.state == "running")
    fleet.start("b")
    fleet.kill(victim)
    fleet.until(
        lambda: fleet.said("start", key="key", node="b"), within_s=fleet.ttl_s + 1.0, what=FOUND
    )
    gate.touch()
    fleet.until(lambda: fleet.record("key") is None, what="settled")


def finished_but_not_settled(fleet: Fleet) -> None:
    """Its handler returned, and its worker died before the settlement was on the wire."""
    gate = fleet.directory / "gate"
    client = fleet.start("client", is_client=True)[0]
    victim = fleet.start("a", trap="settle")[0]
    jobs = fleet.dispatch(client, "held", ["key"], str(gate))
    fleet.are_running(jobs)
    fleet.start("b")
    gate.touch()
    fleet.died(victim)
    assert fleet.runs(jobs)[0].how == "returned"
    fleet.until(
        lambda: fleet.said("start", key="key", node="b"), within_s=fleet.ttl_s + 1.0, what=FOUND
    )
    result = fleet.results(client, jobs)["key"]
    assert result["node"] == "b"


def owner_without_a_lease(fleet: Fleet) -> None:
    """Its entry in the keep-alive map is not there: no lease of its will ever end."""
    victim = fleet.start("a")[0]
    jobs = fleet.dispatch(victim, "clock", ["key"])
    fleet.are_running(jobs)
    worker = fleet.said("ready", node="a")[0]["worker"][0]
    fleet.start("b")
    fleet.until(lambda: (r := fleet.record("key")) is not None and r.state == "running")
    fleet.kill(victim)
    with fleet.client() as by_hand:
        for names in fleet.all_names:
            assert by_hand.zrem(names.keepalive, f"{worker}.1") == 1
    fleet.until(
        lambda: fleet.said("start", key="key", node="b"), within_s=4 * fleet.ttl_s, what=FOUND
    )


def owner_of_whom_no_index_knows(fleet: Fleet) -> None:
    """Its lease and the set of its keys are gone: only the records still name it."""
    victim = fleet.start("a")[0]
    jobs = fleet.dispatch(victim, "clock", [f"clock-{i}" for i in range(8)])
    fleet.are_running(jobs)
    worker = fleet.said("ready", node="a")[0]["worker"][0]
    fleet.start("b")
    fleet.until(lambda: all((r := fleet.record(k)) and r.state == "running" for k in jobs))
    fleet.kill(victim)
    with fleet.client() as by_hand:
        for names in fleet.all_names:
            by_hand.zrem(names.keepalive, f"{worker}.1")
            by_hand.delete(names.owned(f"{worker}.1"))
    fleet.until(
        lambda: {run.key for run in fleet.runs(jobs) if run.node == "b"} == set(jobs),
        within_s=2 * 2 * fleet.ttl_s + fleet.ttl_s + 1.0,
        what=FOUND,
    )


def recovery_died_half_way(fleet: Fleet) -> None:
    """The reaper had moved the first batch of a dead worker's keys when it died itself."""
    gate = fleet.directory / "gate"
    victim = fleet.start("a")[0]
    jobs = fleet.dispatch(victim, "held", [f"job-{i}" for i in range(100)], str(gate))
    fleet.are_running(jobs)
    reaper = fleet.start("b", trap="reap")[0]
    fleet.until(lambda: fleet.counter("unassigned") == 0)
    fleet.kill(victim)
    fleet.died(reaper)
    assert fleet.said("trap", how="reap")
    moved = {run.key for run in fleet.runs() if run.node == reaper.name}
    assert len(moved) < len(jobs)
    fleet.start("c")
    # No node was left: leases last for less than a TTL after this one came.  All had just begun.
    fleet.until(
        lambda: len([run for run in fleet.runs(jobs) if run.node == "c"]) == len(jobs),
        within_s=2 * fleet.ttl_s + BACK_S,
        what=FOUND,
    )
    gate.touch()
    fleet.until(lambda: len(fleet.said("end", how="returned", node="c")) == len(jobs))


@attrs.frozen
class Orphan:
    """A story, and the text without which it does not end well."""

    story: Callable[[Fleet], None]
    file: str
    text: str
    without: str

    def break_copy(self, package: Path, directory: Path) -> Path:
        """Return a copy of the package without the mechanism."""
        copy = directory / "broken" / package.name
        shutil.copytree(package, copy)  # with what is compiled already
        source = (copy / self.file).read_text("utf-8")
        assert source.count(self.text) == 1, f"{self.file} has changed: mend this test"
        (copy / self.file).write_text(source.replace(self.text, self.without), "utf-8")
        return copy


ORPHANS = [
    Orphan(
        accepted_but_never_announced,
        "redis/lua/renew.lua",
        "whole(lane_had[3])",  # workers are told how many keys nobody has
        "0",
    ),
    Orphan(
        announced_but_never_heard,
        "redis/lua/sweep.lua",
        "add('pending', key)",  # a start must be acknowledged in time
        "local _ = key",
    ),
    Orphan(
        retry_promised_by_the_dead,
        "redis/lua/sweep.lua",
        "add('due', string.sub(member, 3))",  # promises stand in Redis, anybody keeps them
        "local _ = member",
    ),
    Orphan(
        running_when_its_worker_died,
        "jobs/fleet/reaper.py",
        "self.spawn(self._reap, state, claim)",  # what a fenced worker owned is moved
        "pass",
    ),
    Orphan(
        finished_but_not_settled,
        "redis/lua/reap.lua",
        "redis.call('SRANDMEMBER', owned, room)",  # a key is its owner's until it is settled
        "{}",
    ),
    Orphan(
        owner_without_a_lease,
        "redis/lua/fence.lua",
        "for i = 7, #ARGV do",  # who owns or is announced must have a lease
        "for i = #ARGV + 1, #ARGV do",
    ),
    Orphan(
        owner_of_whom_no_index_knows,
        "jobs/fleet/sweeper.py",
        "self.spawn(walker.run, state.number)",  # all records are walked over
        "pass",
    ),
    Orphan(
        recovery_died_half_way,
        "redis/lua/fence.lua",
        "    else\n      claim(name, ended[i + 1], had)",  # a claim is a lease too
        "    elseif not had then\n      claim(name, ended[i + 1], had)",
    ),
]


@pytest.mark.parametrize("orphan", ORPHANS, ids=lambda orphan: orphan.story.__name__)
def test_no_job_is_orphaned(orphan: Orphan, make_fleet: MakeFleet, tmp_path: Path) -> None:
    """G-01, G-05: found in time, and by what can still be taken away, see below."""
    fleet = make_fleet()
    orphan.story(fleet)
    fleet.is_sound()
    orphan.break_copy(fleet.package, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("orphan", ORPHANS, ids=lambda orphan: orphan.story.__name__)
def test_without_its_mechanism_a_job_is_orphaned(
    orphan: Orphan, make_fleet: MakeFleet, tmp_path: Path
) -> None:
    """Whatever else there is does not find it in time."""
    broken = make_fleet(package=orphan.break_copy(PACKAGE, tmp_path))
    with pytest.raises(AssertionError, match=FOUND):
        orphan.story(broken)


def test_what_a_lane_holds_everybody_for_counts_for_nobody(fleet: Fleet) -> None:
    """It may be any process or the server that stood still: each lane says so."""
    fleet.start("a")
    since_s = fleet.now_s()
    with fleet.client() as by_hand:
        by_hand.xadd(fleet.all_names[0].journal, {"edge": "fenced", "detail": ""})
        for _ in range(2):
            for names in fleet.all_names:
                by_hand.xadd(names.journal, {"edge": "server", "detail": ""})
        assert 0.0 < fleet.took_s(since_s, since_s + 3 * fleet.ttl_s) < 2.1 * fleet.ttl_s
        seen = int(by_hand.hget(fleet.all_names[0].lane, "seen") or 0)
        lease = int(by_hand.hget(fleet.all_names[0].lane, "lease") or 0)
        silence = f"{lease}|{seen - lease - round(500 * fleet.ttl_s)}|{seen + 60_000}"
        by_hand.hset(fleet.all_names[0].lane, "silences", silence)
    assert 0.0 < fleet.took_s(since_s, since_s + 3 * fleet.ttl_s) < 1.6 * fleet.ttl_s


def test_orphans_of_which_no_index_knows_are_found_in_each_lane(make_fleet: MakeFleet) -> None:
    """G-05."""
    fleet = make_fleet(lanes=3)
    owner_of_whom_no_index_knows(fleet)
    fleet.is_sound()


def test_an_owner_without_a_lease_in_any_lane_is_found_in_each(make_fleet: MakeFleet) -> None:
    """G-05: reaped in one lane, it must not be forgotten before the others know of its end."""
    fleet = make_fleet(lanes=3)
    victim = fleet.start("a")[0]
    jobs = fleet.dispatch(victim, "clock", [f"clock-{i}" for i in range(12)])
    fleet.are_running(jobs)
    worker = fleet.said("ready", node="a")[0]["worker"][0]
    fleet.until(lambda: all((r := fleet.record(k)) and r.state == "running" for k in jobs))
    fleet.start("b")
    fleet.kill(victim)
    with fleet.client() as by_hand:
        for names in fleet.all_names:
            by_hand.zrem(names.keepalive, f"{worker}.1")
    fleet.until(
        lambda: {run.key for run in fleet.runs(jobs) if run.node == "b"} == set(jobs),
        within_s=6 * fleet.ttl_s,
        what=FOUND,
    )
    fleet.is_sound()


def test_a_live_worker_whose_lease_vanished_joins_again_and_its_keys_go_on(
    fleet: Fleet, figures: Figures
) -> None:
    """G-05: its former identity is reaped, though no lease of that will ever end."""
    client = fleet.start("client", is_client=True)[0]
    fleet.start("a")
    keys = fleet.dispatch(client, "clock", [f"clock-{i}" for i in range(5)])
    before = fleet.are_running(keys)
    fleet.until(lambda: all((r := fleet.record(k)) and r.state == "running" for k in keys))
    worker = fleet.said("ready", node="a")[0]["worker"][0]
    with fleet.client() as by_hand:
        for names in fleet.all_names:
            assert by_hand.zrem(names.keepalive, f"{worker}.1") == 1
    since_s = fleet.now_s()
    fleet.until(lambda: fleet.events("worker.fenced", node="a"))

    def again() -> bool:
        alive = fleet.alive(keys)
        return alive.keys() == keys.keys() and all(
            run.epoch > before[key].epoch for key, run in alive.items()
        )

    fleet.until(again, what="all keys run again")
    figures("again after a lease vanished", [fleet.took_s(since_s)])
    fleet.is_sound()
