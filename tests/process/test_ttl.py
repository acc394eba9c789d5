"""The TTL of a pool is changed while its fleet runs: nobody is stopped, and the new one counts."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from pool.ops import cli
from tests.process.conftest import POOL

if TYPE_CHECKING:
    from tests.process.conftest import Fleet, MakeFleet, Member

TAKEN_S = 3.0  # beyond the TTL: 1 s by G-06, and the rest for a machine that does more than this
KEYS = [f"clock-{n}" for n in range(36)]  # of three nodes none is left without any


def change(fleet: Fleet, ttl_s: float, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Run `pool ttl`; return what it says."""
    code = cli.main(["ttl", f"{ttl_s:g}", "--pool", POOL, "--url", fleet.place.url, "--json"])
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (code == 0) == said["ok"], said
    fleet.ttl_s = ttl_s
    return said


def heard(fleet: Fleet, members: list[Member], ttl_s: float) -> None:
    """Wait until they go by it."""

    def all_of_them() -> bool:
        told = [fleet.events("ttl.changed", node=member.name) for member in members]
        return all(each and each[-1]["facts"]["ttl_s"] == ttl_s for each in told)

    fleet.until(all_of_them, what=f"all go by {ttl_s:g} s")


def says(fleet: Fleet, member: Member, ttl_s: float) -> None:
    """Wait until its lease is no longer than that: it has said what it goes by."""
    [worker] = fleet.said("ready", node=member.name)[0]["worker"]

    def is_short() -> bool:
        with fleet.client() as client:
            found: list[Any] = [client.zscore(n.keepalive, f"{worker}.1") for n in fleet.all_names]
            now: Any = client.time()
        latest_ms = 1000 * (now[0] + now[1] / 1e6 + ttl_s)
        return all(each is not None and each <= latest_ms for each in found)

    fleet.until(is_short, what=f"{member.name} says that it goes by {ttl_s:g} s")


def untouched(fleet: Fleet) -> None:
    """Check that nothing moved, and all runs.

    By epochs: a process that was slow for a moment stops its handlers and goes on, under the same.
    """
    fleet.are_running(KEYS)
    runs = {(run.key, run.node, run.epoch) for run in fleet.runs()}
    assert sorted(key for key, *_ in runs) == sorted(KEYS)
    assert not fleet.events("worker.fenced")
    assert not fleet.events("worker.reaped")


def killed(fleet: Fleet, victim: Member, ttl_s: float) -> None:
    """Kill one; what it ran is elsewhere within the TTL that counts."""
    its = [run.key for run in fleet.alive(KEYS).values() if run.node == victim.name]
    assert its
    at_s = fleet.kill(victim)
    fleet.took_over(its, at_s, victim, within_s=ttl_s + TAKEN_S)


@pytest.mark.parametrize("lanes", [1, 4])
def test_a_shorter_ttl_counts_as_soon_as_all_have_heard(
    make_fleet: MakeFleet, capsys: pytest.CaptureFixture[str], lanes: int
) -> None:
    """10 s -> 2 s: no job loses its owner; who dies then is taken over within 2 s + 1 (G-06)."""
    fleet = make_fleet(ttl_s=10.0, lanes=lanes)
    members = fleet.start("a", "b", "c")
    fleet.dispatch(members[0], "clock", KEYS)
    fleet.are_running(KEYS)
    assert change(fleet, 2.0, capsys)["before_s"] == dict.fromkeys(map(str, range(lanes)), 10.0)
    heard(fleet, members, 2.0)
    # Those who have heard say so at once; what counts from then on is what they say.
    fleet.passes(fleet.now_s(), 2.5)
    untouched(fleet)
    killed(fleet, members[1], 2.0)
    fleet.is_sound()


def test_a_longer_ttl_counts_at_once(
    make_fleet: MakeFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    """2 s -> 10 s -> 2 s: an outage that the longer one allows stops nobody; then 2 s again."""
    fleet = make_fleet(ttl_s=2.0)
    members = fleet.start("a", "b", "c")
    fleet.dispatch(members[0], "clock", KEYS)
    fleet.are_running(KEYS)
    change(fleet, 10.0, capsys)
    heard(fleet, members, 10.0)
    since_s = fleet.now_s()
    os.kill(fleet.server.pid, signal.SIGSTOP)
    fleet.passes(since_s, 3.0)
    os.kill(fleet.server.pid, signal.SIGCONT)
    untouched(fleet)
    assert not [event for event in fleet.events("lease.lost") if event["at_s"] > since_s]
    change(fleet, 2.0, capsys)
    heard(fleet, members, 2.0)
    fleet.passes(fleet.now_s(), 2.5)
    untouched(fleet)
    killed(fleet, members[2], 2.0)
    fleet.is_sound()


def test_visitors_keep_nobody_from_being_taken_over(make_fleet: MakeFleet) -> None:
    """D1: a client with a TTL of its own held up fencing; none has one of its own any more."""
    fleet = make_fleet(ttl_s=2.0)
    members = fleet.start("a", "b")
    fleet.dispatch(members[0], "clock", KEYS)
    fleet.are_running(KEYS)
    refused = fleet.start("x", is_client=True, is_mortal=True, lease_ttl_s=1.0)[0]
    assert fleet.died(refused) > 0
    assert "goes by 2 s, not 1 s" in refused.log.read_text()
    at_s = fleet.now_s()
    its = [run.key for run in fleet.alive(KEYS).values() if run.node == "a"]
    fleet.kill(members[0])
    for name in ("v", "w"):
        fleet.leave(fleet.start(name, is_client=True, lease_ttl_s=None)[0])
    fleet.took_over(its, at_s, members[0], within_s=2.0 + TAKEN_S)
    fleet.is_sound()


def test_an_hour_that_was_once_costs_no_hour_later(
    make_fleet: MakeFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    """D1: the TTL was an hour for a moment; a pause of the server costs no more than itself."""
    fleet = make_fleet(ttl_s=1.0)
    members = fleet.start("a", "b", "c")
    fleet.dispatch(members[0], "clock", KEYS)
    fleet.are_running(KEYS)
    change(fleet, 3600.0, capsys)
    heard(fleet, members, 3600.0)
    change(fleet, 1.0, capsys)
    heard(fleet, members, 1.0)
    fleet.passes(fleet.now_s(), 1.5)
    os.kill(fleet.server.pid, signal.SIGSTOP)
    fleet.passes(fleet.now_s(), 0.6)
    os.kill(fleet.server.pid, signal.SIGCONT)
    fleet.are_running(KEYS)  # again: nodes may have stopped their handlers meanwhile, and gone on
    killed(fleet, members[0], 1.0)
    fleet.is_sound()


def test_a_node_that_is_frozen_during_the_change_is_not_robbed(
    make_fleet: MakeFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    """G-02: it believes in 8 s and could not hear of 2 s; it has them, and then goes by 2 s."""
    fleet = make_fleet(ttl_s=8.0)
    members = fleet.start("a", "b", "c")
    fleet.dispatch(members[0], "clock", KEYS)
    fleet.are_running(KEYS)
    members[2].signal(signal.SIGSTOP)
    change(fleet, 2.0, capsys)
    heard(fleet, members[:2], 2.0)
    fleet.passes(fleet.now_s(), 2.5)  # longer than the new one, and than its renewal is late
    members[2].signal(signal.SIGCONT)
    heard(fleet, members[2:], 2.0)
    says(fleet, members[2], 2.0)
    untouched(fleet)
    killed(fleet, members[2], 2.0)
    fleet.is_sound()
