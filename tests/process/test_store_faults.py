"""Redis is flushed, cut off, killed, frozen or emptied under a fleet at work."""

from __future__ import annotations

import os
import shutil
import signal
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from pool.core.record import Record
from tests.process.conftest import PATIENCE_S

if TYPE_CHECKING:
    import redis

    from pool.names import Names
    from tests.process.conftest import Figures, Fleet, MakeFleet, Member

pytestmark = pytest.mark.one_server

UNMOVED_TTL_S = 3.0  # of which a busy machine takes no three quarters
LONG_TTL_S = 5.0  # of which it takes no half: nobody stops its handlers


def at_work(fleet: Fleet, *, jobs: int, every_s: float = 0.005) -> tuple[Member, list[str], str]:
    """Start a client and two workers with 10 clocks, and begin to dispatch short jobs."""
    client = fleet.start("client", is_client=True)[0]
    fleet.start("a", "b")
    clocks = [f"clock-{i}" for i in range(10)]
    fleet.dispatch(client, "clock", clocks)
    fleet.are_running(clocks)
    calls = [[f"job-{i}", 0.01] for i in range(jobs)]
    return client, clocks, client.tell("one_by_one", handler="nap", calls=calls, every_s=every_s)


def have_ended(fleet: Fleet, jobs: int) -> None:
    fleet.until(lambda: len(fleet.said("end", how="returned")) >= jobs, what=f"{jobs} jobs ended")


def nothing_is_lost(fleet: Fleet, client: Member, asked: str, *, within_s: float = 60.0) -> None:
    """Check that all jobs of `at_work` were accepted, and ended with a result."""
    jobs = fleet.answer(asked, within_s=within_s)
    assert isinstance(jobs, list), jobs
    results = fleet.results(client, {str(i): job for i, job in enumerate(jobs)}, within_s=within_s)
    assert all(isinstance(result, dict) for result in results.values()), results


def nothing_moved(fleet: Fleet, clocks: list[str], *, starts: int = 1) -> None:
    """Check that every clock runs under its first epoch, and got no crash mark."""
    fleet.are_running(clocks)
    epochs = {key: {run.epoch for run in fleet.runs([key])} for key in clocks}
    assert [key for key in clocks if len(epochs[key]) != 1] == []
    assert len({(run.key, run.node) for run in fleet.runs(clocks)}) == len(clocks)
    assert len(fleet.runs(clocks)) <= starts * len(clocks)
    records = [fleet.record(key) for key in clocks]
    assert [record for record in records if record is None or record.marks.deaths] == []
    assert fleet.counter("crashed") == 0
    assert not fleet.events("worker.reaped")
    assert not fleet.events("worker.fenced")


def test_flushed_scripts_and_killed_connections_are_not_noticed(make_fleet: MakeFleet) -> None:
    """SCRIPT FLUSH, CLIENT KILL of all: no job is lost or run twice, no service stops (G-01)."""
    fleet = make_fleet(ttl_s=UNMOVED_TTL_S)
    client, clocks, asked = at_work(fleet, jobs=300)
    with fleet.client() as by_hand:
        for done in (50, 100, 150, 200):
            have_ended(fleet, done)
            by_hand.script_flush()
            killed: Any = by_hand.client_kill_filter(_type="normal", skipme=True)
            assert killed >= 9  # pipeline, keep-alive and listener of three nodes
    nothing_is_lost(fleet, client, asked)
    nothing_moved(fleet, clocks)
    assert len(fleet.runs([f"job-{i}" for i in range(300)])) == 300
    fleet.is_sound()


def test_a_killed_server_that_comes_back_with_its_data_has_lost_nothing(
    fleet: Fleet, figures: Figures
) -> None:
    """kill -9 and a restart from the append-only file: every job ends, nothing moves (G-01)."""
    fleet.ttl_s = UNMOVED_TTL_S
    client, clocks, asked = at_work(fleet, jobs=200)
    have_ended(fleet, 50)
    fleet.server.kill()
    fleet.server.restart()
    nothing_is_lost(fleet, client, asked)
    nothing_moved(fleet, clocks, starts=2)
    fleet.is_sound()


def test_after_a_server_frozen_for_two_leases_everything_goes_on_where_it_was(
    fleet: Fleet, figures: Figures
) -> None:
    """Redis stops for 2 TTL: 0 moves, 0 crash marks, the same owners and epochs, nothing lost."""
    fleet.ttl_s = UNMOVED_TTL_S
    gate = fleet.directory / "gate"
    client = fleet.start("client", is_client=True)[0]
    fleet.start("a", "b")
    clocks = [f"clock-{i}" for i in range(10)]
    fleet.dispatch(client, "clock", clocks)
    jobs = fleet.dispatch(client, "held", [f"job-{i}" for i in range(40)], str(gate))
    before = fleet.are_running([*clocks, *jobs])

    stopped_s = time.monotonic()
    os.kill(fleet.server.pid, signal.SIGSTOP)
    try:
        # Nobody may go on believing in a lease that may have ended (G-03).
        fleet.until(lambda: not fleet.alive(), within_s=fleet.ttl_s, what="all handlers stopped")
        fleet.passes(stopped_s, 2 * fleet.ttl_s)
    finally:
        os.kill(fleet.server.pid, signal.SIGCONT)
    continued_s = time.monotonic()
    after = fleet.are_running(before, within_s=fleet.ttl_s)
    figures("resumed", [run.began_s - continued_s for run in after.values()])
    assert {k: (r.node, r.epoch, r.attempt) for k, r in after.items()} == {
        k: (r.node, r.epoch, r.attempt) for k, r in before.items()
    }
    gate.touch()
    results = fleet.results(client, jobs)
    assert {k: result["epoch"] for k, result in results.items()} == {
        k: before[k].epoch for k in jobs
    }
    nothing_moved(fleet, clocks, starts=2)
    fleet.is_sound()


@pytest.mark.parametrize("loss", ["flushed", "restarted"])
def test_a_server_that_lost_everything_is_joined_anew_and_waiters_are_told(
    fleet: Fleet, figures: Figures, loss: str
) -> None:
    """FLUSHALL, or a restart without data: data.lost, StoreLost, new work within 2 TTL."""
    fleet.ttl_s = LONG_TTL_S
    gate = fleet.directory / "gate"
    client = fleet.start("client", is_client=True)[0]
    fleet.start("a", "b")
    jobs = fleet.dispatch(client, "held", [f"job-{i}" for i in range(10)], str(gate))
    clocks = fleet.dispatch(client, "clock", [f"clock-{i}" for i in range(10)])
    fleet.are_running([*jobs, *clocks])
    waiting = client.tell("results", jobs=[*jobs.values()], timeout_s=PATIENCE_S)

    if loss == "flushed":
        with fleet.client() as by_hand:
            by_hand.flushall()
    else:
        fleet.server.kill()
        for data in fleet.server.directory.glob("appendonly*"):
            shutil.rmtree(data)
        fleet.server.restart()
    lost_s = time.monotonic()
    answers = fleet.answer(waiting, within_s=2 * fleet.ttl_s)
    assert set(answers.values()) == {"!POOLDATALOST"}

    def serves() -> list[float]:
        keys = [f"new-{len(fleet.lines)}-{i}" for i in range(10)]
        called = fleet.ask(
            client, "dispatch", handler="nap", calls=[[key, 0.0] for key in keys], delay_s=0.0
        )
        accepted = [job for job in called if not job.startswith("!")]
        if not accepted:
            return []
        fleet.ask(client, "results", jobs=accepted, timeout_s=1.0)
        runs = fleet.runs(keys)
        return [run.began_s for run in runs] if {run.node for run in runs} == {"a", "b"} else []

    serves_s = fleet.until(serves, within_s=2 * fleet.ttl_s, what="both serve new work")
    figures("serves again", [min(serves_s) - lost_s])
    assert fleet.took_s(lost_s, min(serves_s)) <= 2 * fleet.ttl_s
    for name in ("client", "a", "b"):
        told = fleet.until(partial(fleet.events, "data.lost", node=name), what=name)
        assert len(told) == 1, name
    fleet.until(lambda: not fleet.alive([*jobs, *clocks]), what="what was lost is cancelled")
    # The keys are free again.
    anew = fleet.dispatch(client, "held", jobs, str(gate))
    gate.touch()
    results = fleet.results(client, anew)
    assert all(isinstance(result, dict) for result in results.values()), results
    fleet.is_sound()


@pytest.mark.parametrize("state", ["running", "pending"])
def test_a_settlement_that_the_server_lost_is_sent_again(fleet: Fleet, state: str) -> None:
    """Its last write gone: the job is settled from memory, not run a second time (G-04)."""
    fleet.ttl_s = LONG_TTL_S
    gate = fleet.directory / "gate"
    client = fleet.start("client", is_client=True)[0]
    fleet.start("a")
    lane = fleet.lane
    if state == "running":
        jobs = fleet.dispatch(client, "held", ["key"], str(gate))
        fleet.are_running(jobs)
        fleet.until(lambda: (r := fleet.record("key")) is not None and r.state == "running")
        with fleet.client() as by_hand:
            before = _snapshot(by_hand)
        gate.touch()
    else:
        # Dispatched while nobody is told, so that it can be seen before it is settled.
        owner = fleet.members["a"]
        owner.signal(signal.SIGSTOP)
        jobs = fleet.dispatch(client, "nap", ["key"], 0.0)
        with fleet.client() as by_hand:
            before = _snapshot(by_hand)
        owner.signal(signal.SIGCONT)
    first = fleet.results(client, jobs)
    fleet.until(lambda: fleet.said("end", key="key", how="returned"))

    with fleet.client() as by_hand:
        text = _put_back(by_hand, before, lane.names)
    assert text is not None
    record = Record.parse(text)
    assert record is not None
    assert record.state == state
    fleet.until(lambda: fleet.record("key") is None, within_s=3 * fleet.ttl_s, what="settled again")
    assert fleet.results(client, jobs) == first
    assert len(fleet.runs(["key"])) == 1
    mended = fleet.until(lambda: fleet.events("reconciliation.mended", node="a"))
    assert [event["facts"]["resent"] for event in mended] == [1]
    fleet.is_sound()


def _snapshot(client: redis.Redis) -> dict[bytes, bytes]:
    keys: Any = client.keys("pool:*")
    return {key: value for key in keys if (value := client.dump(key)) is not None}


def _put_back(client: redis.Redis, before: dict[bytes, bytes], names: Names) -> Any:
    """Have the server as it was; time goes on, so leases and the lane's clock do too.

    Returns the key's record as it stands then: a moment later it may be settled again.
    """
    with client.pipeline(transaction=True) as pipe:
        keys: Any = client.keys("pool:*")
        for key in set(keys) - set(before):
            if b":result:" in key:
                pipe.delete(key)
        for key, value in before.items():
            if key.decode() not in (names.lane, names.keepalive) and b"signal:" not in key:
                pipe.restore(key, 0, value, replace=True)
        pipe.hget(names.jobs, "key")
        return pipe.execute()[-1]
