"""Processes are killed and frozen: their jobs go on elsewhere, what they still say is refused."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest

from tests.process.conftest import BACK_S

if TYPE_CHECKING:
    from pool.redis.commands.recovery import Claim
    from tests.process.conftest import Figures, Fleet, MakeFleet, Member


def held_by(
    fleet: Fleet, member: Member, keys: Sequence[str], *, until_s: float = float("inf")
) -> list[str]:
    """Return the keys that a member runs, or ran when it died."""
    return [
        run.key
        for run in fleet.runs(keys)
        if run.node == member.name and run.began_s < until_s and not run.how
    ]


def test_running_and_queued_jobs_of_a_killed_node_restart_elsewhere_in_time(
    fleet: Fleet, figures: Figures
) -> None:
    """SIGKILL: all is started elsewhere in time, services too, just begun or not (G-01, G-06)."""
    fleet.ttl_s = 3.0  # of which a busy machine takes no three quarters: others are not fenced
    gate = fleet.directory / "gate"
    client = fleet.start("client", is_client=True)[0]
    victim, *others = fleet.start("a", "b", "c", capacity=30)
    clocks = fleet.dispatch(client, "clock", [f"clock-{i}" for i in range(12)])
    fleet.are_running(clocks)
    jobs = fleet.dispatch(client, "held", [f"job-{i}" for i in range(42)], str(gate))
    fleet.until(lambda: len(fleet.alive(jobs)) == len(jobs), what="all have slots")
    # It has slots left, and reads nothing any more: some are granted to it and wait in its stream.
    victim.signal(signal.SIGSTOP)
    jobs |= fleet.dispatch(client, "held", [f"more-{i}" for i in range(60)], str(gate))
    at_s = fleet.kill(victim)
    running = held_by(fleet, victim, [*jobs, *clocks], until_s=at_s)
    assert 6 <= len(running) < 30
    assert set(running) & set(clocks)
    its_worker = fleet.said("ready", node=victim.name)[0]["worker"][0]
    owned = [key for key, owner in fleet.owners().items() if owner == f"{its_worker}.1"]
    queued = sorted(set(owned) - set(running))
    assert queued
    gate.touch()  # so that the slots elsewhere become free
    took = fleet.took_over([*running, *queued], at_s, victim, within_s=fleet.ttl_s + BACK_S)
    figures("takeover", took)

    results = fleet.results(client, jobs, within_s=fleet.ttl_s + BACK_S)
    assert all(isinstance(result, dict) for result in results.values()), results
    untouched = set(jobs) - {run.key for run in fleet.runs() if run.node == victim.name}
    for key in untouched:
        assert [run.how for run in fleet.runs([key])] == ["returned"], key
    stays = {run.key: run for run in fleet.runs(clocks) if run.node != victim.name}
    assert stays.keys() == fleet.are_running(clocks).keys()
    for member in others:
        assert not fleet.events("worker.fenced", node=member.name)
    fleet.is_sound()


def test_two_nodes_that_die_at_once_are_taken_over_as_one(fleet: Fleet, figures: Figures) -> None:
    """The keys of the first are not dealt to the second, and come back as suspects (G-06)."""
    fleet.ttl_s = 3.0
    client = fleet.start("client", is_client=True)[0]
    first, second, _, _ = fleet.start("a", "b", "c", "d", capacity=300)
    clocks = [f"clock-{i}" for i in range(200)]
    fleet.dispatch(client, "clock", clocks)
    fleet.are_running(clocks)
    fleet.until(lambda: fleet.now_s() - max(r.began_s for r in fleet.runs(clocks)) > 1.5, what="")
    lost = [*held_by(fleet, first, clocks), *held_by(fleet, second, clocks)]
    assert len(lost) > 50
    first.signal(signal.SIGSTOP)  # so that the second one renews no later
    at_s = fleet.kill(second)
    fleet.kill(first)
    took = fleet.took_over(lost, at_s, first, within_s=fleet.ttl_s + BACK_S)
    took += fleet.took_over(lost, at_s, second, within_s=fleet.ttl_s + BACK_S)
    figures("takeover", took)
    fleet.is_sound()
    assert fleet.counter("crashed") == len(lost)


def test_a_clock_that_was_killed_starts_again_on_each_survivor_and_no_live_job_twice(
    fleet: Fleet, figures: Figures
) -> None:
    """Two nodes die, one after the other: the last one has everything, once (G-02, G-06)."""
    fleet.ttl_s = 3.0  # as above: who is slow for a moment is not taken over
    first, second, last = fleet.start("a", "b", "c")
    keys = [f"clock-{i}" for i in range(15)]
    fleet.dispatch(last, "clock", keys)
    fleet.are_running(keys)
    took = []
    for victim in (first, second):
        lost = held_by(fleet, victim, keys)
        assert lost
        at_s = fleet.kill(victim)
        took += fleet.took_over(lost, at_s, victim, within_s=fleet.ttl_s + BACK_S)
    figures("takeover", took)

    assert {run.node for run in fleet.are_running(keys).values()} == {last.name}
    # By epochs: a node that was slow goes on with what it had, under the same ones.
    its = {(run.key, run.epoch) for run in fleet.runs() if run.node == last.name}
    assert len(its) == len(keys)
    fleet.is_sound()


def test_when_no_node_was_left_the_first_one_back_recovers_everything(
    fleet: Fleet, figures: Figures
) -> None:
    """G-06: within a lease of its coming, as of what passed before only a part counts."""
    gate = fleet.directory / "gate"
    first, second = fleet.start("a", "b")
    clocks = fleet.dispatch(first, "clock", [f"clock-{i}" for i in range(10)])
    jobs = fleet.dispatch(first, "held", [f"job-{i}" for i in range(10)], str(gate))
    fleet.are_running([*clocks, *jobs])
    fleet.kill(first)
    killed_s = fleet.kill(second)
    fleet.passes(killed_s, 1.5 * fleet.ttl_s)
    last = fleet.start("c")[0]
    back_s = fleet.said("ready", node=last.name)[0]["at_s"]
    after = fleet.are_running([*clocks, *jobs], within_s=fleet.ttl_s + BACK_S)
    figures("takeover", [run.began_s - back_s for run in after.values()])
    fleet.is_sound()


def test_a_node_frozen_for_three_leases_is_refused_and_works_again(
    make_fleet: MakeFleet, figures: Figures
) -> None:
    """SIGSTOP for 3 TTL, SIGCONT: what it settles is refused, its handlers are cancelled (G-02)."""
    fleet = make_fleet(ttl_s=1.5)
    gate = fleet.directory / "gate"
    client = fleet.start("client", is_client=True)[0]
    victim, _ = fleet.start("a", "b")
    long = fleet.dispatch(client, "held", [f"long-{i}" for i in range(30)], str(gate))
    clocks = fleet.dispatch(client, "clock", [f"clock-{i}" for i in range(10)])
    fleet.are_running([*long, *clocks])
    # These are let go in the freeze: when it goes on they return at once, and are settled before
    # the node has had time to notice.
    let_go = fleet.directory / "let_go"
    naps = fleet.dispatch(client, "held", [f"nap-{i}" for i in range(30)], str(let_go))
    fleet.are_running(naps)
    frozen_s = victim.signal(signal.SIGSTOP)
    its_naps = held_by(fleet, victim, [*naps])
    its_others = held_by(fleet, victim, [*long, *clocks])
    assert its_naps
    assert its_others
    # They had just begun, so they begin one at a time.
    took = fleet.took_over(
        [*its_naps, *its_others], frozen_s, victim, within_s=fleet.ttl_s + BACK_S
    )
    figures("takeover", took)
    let_go.touch()
    results = fleet.results(client, naps)
    fleet.passes(frozen_s, 3 * fleet.ttl_s)
    continued_s = victim.signal(signal.SIGCONT)

    def ends(keys: Sequence[str]) -> dict[str, str]:
        runs = fleet.runs(keys)
        return {run.key: run.how for run in runs if run.node == victim.name and run.how}

    fleet.until(lambda: fleet.events("worker.fenced", node=victim.name), what="it knows")
    fleet.until(lambda: len(ends(its_others)) == len(its_others), what="its handlers ended")
    assert set(ends(its_others).values()) == {"cancelled"}
    late = [key for key, how in ends(its_naps).items() if how == "returned"]
    assert late, "none was settled too late"
    assert fleet.results(client, naps) == results
    assert all(results[key]["node"] != victim.name for key in late)

    def works() -> list[float]:
        keys = [f"new-{len(fleet.lines)}-{i}" for i in range(10)]
        fleet.results(client, fleet.dispatch(client, "nap", keys, 0.0))
        return [run.began_s for run in fleet.runs(keys) if run.node == victim.name]

    works_s = fleet.until(works, within_s=fleet.ttl_s + 1.0, what="it takes new jobs")
    figures("works again", [works_s[0] - continued_s])
    gate.touch()
    assert all(
        result["node"] != victim.name
        for key, result in fleet.results(client, long).items()
        if key in its_others
    )
    fleet.is_sound(frozen=[victim])


@pytest.mark.one_server
def test_a_reaper_that_dies_with_the_claim_is_succeeded(fleet: Fleet, figures: Figures) -> None:
    """The claim of a dead holder ends, another node takes it with a higher fence (G-05, G-06)."""
    victim, survivor = fleet.start("a", "b")
    keys = [f"clock-{i}" for i in range(20)]
    fleet.dispatch(survivor, "clock", keys)
    fleet.are_running(keys)
    lost = held_by(fleet, victim, keys)
    at_s = fleet.kill(victim)
    claim = _claim_as_a_dead_reaper(fleet, fleet.said("ready", node=victim.name)[0]["worker"][0])

    took = fleet.took_over(lost, at_s, victim, within_s=fleet.ttl_s + BACK_S)
    figures("takeover", took)
    reaped = fleet.until(
        lambda: fleet.events("worker.reaped", node=survivor.name), what="it is reaped"
    )
    assert claim.identity in [event["facts"]["identity"] for event in reaped]
    with fleet.client() as client:
        journal: Any = client.xrange(fleet.lane.names.journal)
    edges = [(entry[b"edge"], entry.get(b"owner")) for _, entry in journal]
    assert (b"reaper.succeeded", claim.identity.encode()) in edges
    fleet.is_sound()


def _claim_as_a_dead_reaper(fleet: Fleet, worker: str) -> Claim:
    """Fence a dead worker for a reaper that does not exist, before anybody else can."""
    from pool.redis.commands.recovery import fenced

    lane, identity = fleet.lane, f"{worker}.1"
    call = lane.fence("ndead.1", reap_s=0.5, claims_max=1)
    with fleet.client() as client, client.pipeline(transaction=True) as pipe:
        pipe.zadd(lane.names.keepalive, {identity: 1}, xx=True)  # its lease has just ended
        pipe.eval(call.script.source, len(call.keys), *call.keys, *call.args)
        _, reply = pipe.execute()
    [claim] = fenced(reply).claims
    assert claim.identity == identity
    return claim


@pytest.mark.parametrize("handler", ["stubborn", "blocking"])
def test_a_run_time_limit_holds_though_the_owner_does_not_enforce_it(
    fleet: Fleet, handler: str
) -> None:
    """The sweeper writes it into the record; whoever ends the attempt ends it as timed out."""
    gate = fleet.directory / "gate"
    client = fleet.start("client", is_client=True)[0]
    owner = fleet.start("a", on_overrun="report")[0]
    jobs = fleet.dispatch(client, handler, ["key"], str(gate))
    fleet.are_running(jobs)
    fleet.until(
        lambda: (record := fleet.record("key")) is not None and record.intent == "t",
        what="the sweeper says that it timed out",
    )
    if handler == "stubborn":
        # It swallows its cancellation, and dies with it: the reaper knows what to do.
        fleet.start("b")
        fleet.kill(owner)
        assert fleet.results(client, jobs) == {"key": "!POOLPARKED"}
        [run] = fleet.runs(jobs)
        assert run.how == ""
    else:
        # It blocks its loop and returns in the end, but that counts no more.
        fleet.until(lambda: fleet.events("loop.hung", node=owner.name), what="its loop is hung")
        gate.touch()
        result = fleet.results(client, jobs)["key"]
        assert result["attempt"] == 2
        assert [run.how for run in fleet.runs(jobs)] == ["returned", "returned"]
    fleet.is_sound()
