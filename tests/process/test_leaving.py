"""Planned exits and arrivals: nothing is reaped, services are handed over with what they know."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.process.conftest import Figures, Fleet, MakeFleet, Run

AT_ONCE_S = 2.0  # far below the lease, which is 5 s where it matters
UNREAPED_TTL_S = 5.0  # what a busy machine stops for a second is not reaped


def moves(fleet: Fleet, keys: Iterable[str]) -> dict[str, list[tuple[Run, Run]]]:
    """Return for each key the runs of one node that were followed by a run of another."""
    return {
        key: [
            (before, after)
            for before, after in itertools.pairwise(fleet.runs([key]))
            if before.node != after.node
        ]
        for key in keys
    }


def nothing_was_reaped(fleet: Fleet) -> None:
    assert not fleet.events("worker.reaped")
    assert not fleet.events("worker.fenced")
    assert fleet.counter("fenced") == 0
    assert fleet.counter("crashed") == 0


def test_a_node_that_is_told_to_end_hands_its_services_over_at_once(
    make_fleet: MakeFleet, figures: Figures
) -> None:
    """SIGTERM: services go on elsewhere at once, with their state; finite jobs end (G-01, G-06)."""
    fleet = make_fleet(ttl_s=UNREAPED_TTL_S)
    gate = fleet.directory / "gate"
    client = fleet.start("client", is_client=True)[0]
    leaver, _ = fleet.start("a", "b")
    # Ids of workers are random, so which keys each should have is known only now.
    keys = [f"clock-{i}" for i in range(60)]
    first = fleet.ask(client, "first_ranked", handler="clock", keys=keys)
    theirs = fleet.said("ready", node=leaver.name)[0]["worker"][0]
    handed = [key for key in keys if first[key] == theirs][:6]
    clocks = [*handed, *[key for key in keys if first[key] != theirs][:6]]
    assert len(clocks) == 12
    fleet.dispatch(client, "clock", clocks)
    # A worker whose loop answers late, as on a busy machine, is passed over: services come later.

    def are_placed() -> bool:
        there = {key for key, run in fleet.alive(clocks).items() if run.node == leaver.name}
        return there == {*handed} and len(fleet.alive(clocks)) == len(clocks)

    fleet.until(are_placed, what="each service is where it should be")
    held, unfinished = dict[str, str](), list[str]()
    while not unfinished:  # a finite job stays where it was first
        more = [f"held-{len(held) + i}" for i in range(12)]
        held |= fleet.dispatch(client, "held", more, str(gate))
        before = fleet.are_running(held)
        unfinished = [key for key in held if before[key].node == leaver.name]
    naps = fleet.dispatch(client, "nap", [f"nap-{i}" for i in range(12)], 1.0)
    fleet.are_running(naps)

    at_s = leaver.signal(signal.SIGTERM)
    took = fleet.took_over(handed, at_s, leaver, within_s=AT_ONCE_S)
    figures("hand-over", took)
    # The grace is over: what has not ended is released, and its attempt is not burned.
    fleet.has_left(leaver)
    after = fleet.are_running([*clocks, *held], within_s=AT_ONCE_S)
    assert all(after[key].attempt == 1 for key in unfinished)
    gate.touch()
    results = fleet.results(client, {**naps, **held})
    assert all(isinstance(result, dict) for result in results.values()), results
    assert all(len(fleet.runs([key])) == 1 for key in naps)
    for pairs in moves(fleet, clocks).values():
        states = [(before.ended_with, after.began_with) for before, after in pairs]
        assert all(ended == began > 0 for ended, began in states), states
    nothing_was_reaped(fleet)
    fleet.is_sound()


def test_a_drained_node_stays_as_a_client(make_fleet: MakeFleet) -> None:
    """drain(): it gives everything up, takes nothing more, and still dispatches and waits."""
    fleet = make_fleet(ttl_s=UNREAPED_TTL_S)
    drained, _ = fleet.start("a", "b")
    clocks = [f"clock-{i}" for i in range(12)]
    fleet.dispatch(drained, "clock", clocks)
    fleet.are_running(clocks)
    fleet.ask(drained, "drain")
    now = fleet.are_running(clocks, within_s=fleet.ttl_s)
    assert {run.node for run in now.values()} == {"b"}
    results = fleet.results(drained, fleet.dispatch(drained, "nap", map(str, range(20)), 0.0))
    assert {result["node"] for result in results.values()} == {"b"}
    nothing_was_reaped(fleet)
    fleet.is_sound()


def test_a_rolling_restart_loses_nothing_and_moves_a_service_at_most_twice(
    make_fleet: MakeFleet, figures: Figures
) -> None:
    """Three nodes are replaced, one after the other, while jobs run and arrive (G-01)."""
    fleet = make_fleet(ttl_s=UNREAPED_TTL_S)
    client = fleet.start("client", is_client=True)[0]
    nodes = {label: fleet.start(f"{label}-1", label=label)[0] for label in ("x", "y", "z")}
    clocks = [f"clock-{i}" for i in range(12)]
    fleet.dispatch(client, "clock", clocks)
    fleet.are_running(clocks)
    _are_settled(fleet, clocks)
    born = len(fleet.runs(clocks))
    calls = [[f"job-{i}", 0.05] for i in range(250)]
    asked = client.tell("one_by_one", handler="nap", calls=calls, every_s=0.01)
    for label, node in nodes.items():
        fleet.leave(node)
        fleet.start(f"{label}-2", label=label)
        _are_settled(fleet, clocks)

    jobs = fleet.answer(asked)
    results = fleet.results(client, {str(i): job for i, job in enumerate(jobs)})
    assert all(isinstance(result, dict) for result in results.values()), results
    made = {key: len(pairs) for key, pairs in moves(fleet, clocks).items()}
    figures("moves of a service", [*made.values()])
    assert max(made.values()) <= 2, made
    assert len(fleet.runs(clocks)) == born + sum(made.values())
    nothing_was_reaped(fleet)
    fleet.is_sound()


def _are_settled(fleet: Fleet, clocks: list[str]) -> None:
    """Wait until no clock has moved for twice as long as a move may wait to begin."""
    quiet_s = 0.7

    def settled() -> bool:
        runs = fleet.runs(clocks)
        newest_s = max([run.began_s for run in runs] + [m["at_s"] for m in fleet.said("ready")])
        return fleet.alive(clocks).keys() == set(clocks) and fleet.now_s() - newest_s > quiet_s

    fleet.until(settled, what="all clocks stay where they are")


def test_services_follow_the_fleet_when_it_grows_and_shrinks(
    make_fleet: MakeFleet, figures: Figures
) -> None:
    """On joining they move to the first-ranked worker after settle_delay, with job.state."""
    fleet = make_fleet(ttl_s=UNREAPED_TTL_S)
    client = fleet.start("client", is_client=True)[0]
    fleet.start("a")
    clocks = [f"clock-{i}" for i in range(16)]
    fleet.dispatch(client, "clock", clocks)
    fleet.are_running(clocks)
    joined = fleet.start("b")[0]
    joined_s = fleet.said("ready", node="b")[0]["at_s"]
    first = fleet.ask(client, "first_ranked", handler="clock", keys=clocks)
    theirs = [key for key in clocks if first[key] == fleet.said("ready", node="b")[0]["worker"][0]]
    assert 0 < len(theirs) < len(clocks)

    def nodes() -> dict[str, str]:
        return {key: run.node for key, run in fleet.alive(clocks).items()}

    wanted = {key: "b" if key in theirs else "a" for key in clocks}
    fleet.until(lambda: nodes() == wanted, within_s=0.3 + fleet.ttl_s, what="they have moved")
    grown = [pair for pairs in moves(fleet, clocks).values() for pair in pairs]
    figures("moved after joining", [after.began_s - joined_s for _, after in grown])
    assert all(after.began_s - joined_s > 0.3 - 0.1 for _, after in grown)  # the settle delay

    left_s = joined.signal(signal.SIGTERM)
    took = fleet.took_over(theirs, left_s, joined, within_s=AT_ONCE_S)
    figures("hand-over", took)
    fleet.has_left(joined)
    assert set(nodes().values()) == {"a"}
    for key, pairs in moves(fleet, clocks).items():
        assert len(pairs) == (2 if key in theirs else 0), key
        states = [(before.ended_with, after.began_with) for before, after in pairs]
        assert all(ended == began > 0 for ended, began in states), states
    nothing_was_reaped(fleet)
    fleet.is_sound()
