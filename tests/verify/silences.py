"""Takeover while the server falls silent again and again, cell by cell, in simulated time.

`python -m tests.verify.silences` prints a table: a server that stands still (SIGSTOP) for a part of
a TTL and answers for another, again and again; one of several nodes dies in a time of answers, and
what it ran is waited for.  Per cell

    takeover   TTLs from the death to the start elsewhere of the last of its services; `never`: not
               within the horizon
    excess     seconds of that beyond TTL + 1 s + the silences since the death: at most 0 (G-06)
    evicted    fenced identities of nodes that live
    anew       handlers of nodes that live which began once more

The file stands alone: copied into an older checkout it measures that one.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, Final

import attrs
from structlog.testing import capture_logs

from pool import Node
from tests.verify.sim.config import Config
from tests.verify.sim.fleet import Boot
from tests.verify.sim.run import Simulation
from tests.verify.sim.world import uncollected

SILENT: Final = (0.1, 0.3, 0.42, 0.5, 0.7, 1.0)  # TTLs
ANSWERING: Final = (0.15, 0.3, 0.5, 1.0, 2.0)
LIVING: Final = (1, 4, 100)  # nodes
TTLS_S: Final = (1.0, 3.0, 10.0)
HORIZON_TTLS: Final = 14.0
_PLAN: Final = {"s": 0.0, "trips": [], "end": 0.0}
_PATIENCE_S: Final = 120.0  # for all nodes to be open, and all services to run


@attrs.frozen(kw_only=True)
class Cell:
    """What falls silent for how long, and who is there."""

    silent: float
    answering: float
    is_random: bool
    living: int
    ttl_s: float
    seed: int = 1

    def pattern(self) -> Iterator[tuple[float, float]]:
        """Yield how long it answers, and is silent then, in seconds."""
        dice = random.Random(f"silences/{self}")
        while True:
            factors = [dice.uniform(0.5, 1.5) if self.is_random else 1.0 for _ in range(2)]
            yield self.answering * self.ttl_s * factors[0], self.silent * self.ttl_s * factors[1]


@attrs.frozen(kw_only=True)
class Measured:
    """What came of a cell."""

    takeover_s: float | None
    silent_s: float  # since the death
    evicted: int
    anew: int
    ttl_s: float

    @property
    def excess_s(self) -> float:
        """By how much the bound was missed; negative: it was not."""
        took = self.takeover_s if self.takeover_s is not None else float("inf")
        return took - self.ttl_s - 1.0 - self.silent_s


def measure(cell: Cell) -> Measured:
    """Play one cell."""
    nodes = cell.living + 1
    config = Config(
        seed=cell.seed,
        loops="asyncio",
        nodes=nodes,
        lanes=1,
        capacity=100,
        ttl_s=cell.ttl_s,
        op_timeout_s=0.4 * cell.ttl_s,
        chaos_s=1e9,
        jobs=0,
        services=0,
        keys=5,
        faults=(),
        pace_s=1e9,
    )
    simulation = Simulation(config)
    with uncollected(), capture_logs():
        try:
            return _play(simulation, cell, nodes)
        finally:
            simulation.close()


def _play(simulation: Simulation, cell: Cell, nodes: int) -> Measured:
    world, fleet, events = simulation.world, simulation.fleet, simulation.watch.events
    for name in fleet.names:
        world.after(world.dice("begin").random() * 0.1, fleet.start, name)
    until_s = _PATIENCE_S
    while len(fleet.open_boots()) < nodes and world.now_s < until_s:
        world.run(world.now_s + 0.1)
    keys = [f"s{number}" for number in range(3 * nodes)]

    async def ask(boot: Boot) -> None:
        assert boot.node is not None
        node: Node = boot.node
        for key in keys:
            await node.dispatch("feed", key, key, _PLAN)

    fleet.open_boots()[0].do(ask)
    while _runs(events, keys) < len(keys) and world.now_s < until_s:
        world.run(world.now_s + 0.1)
    assert _runs(events, keys) == len(keys), "not all services run"
    world.run(world.now_s + 1.5 * cell.ttl_s)
    at_s: dict[str, str] = {}
    for event in events:
        if event.f == "start":
            at_s[event.key] = event.node
    counts = [list(at_s.values()).count(name) for name in fleet.names]
    victim = fleet.names[counts.index(max(counts))]
    mine = {key for key, name in at_s.items() if name == victim}
    since, first = world.now_s, len(events)
    silences: list[tuple[float, float]] = []
    is_dead = False
    died_s, ids = since, set[str]()
    for answers_s, silent_s in cell.pattern():
        if not is_dead:  # in the first time of answers, a third into it
            world.run(world.now_s + answers_s / 3)
            died_s, is_dead = world.now_s, True
            ids = _identities(simulation, victim)
            fleet.crash(victim, 1e9)
            world.run(world.now_s + 2 * answers_s / 3)
        else:
            world.run(world.now_s + answers_s)
        begun = _begun(events, first, mine, died_s)
        if len(begun) == len(mine) or world.now_s > died_s + HORIZON_TTLS * cell.ttl_s:
            break
        simulation.server.stall(silent_s)
        silences.append((world.now_s, world.now_s + silent_s))
        world.run(world.now_s + silent_s)
    begun = _begun(events, first, mine, died_s)
    took_s = max(begun.values()) - died_s if len(begun) == len(mine) else None
    until_s = died_s + took_s if took_s is not None else world.now_s
    silent = sum(min(end, until_s) - began for began, end in silences if began < until_s)
    fenced = {e.nonce.partition("@")[0] for e in events[first:] if e.f == "lock"} - ids
    again = [e for e in events[first:] if e.f == "start" and e.key not in mine]
    return Measured(
        takeover_s=took_s,
        silent_s=silent,
        evicted=len(fenced),
        anew=len(again),
        ttl_s=cell.ttl_s,
    )


def _runs(events: Sequence[Any], keys: Sequence[str]) -> int:
    return len({event.key for event in events if event.f == "start"} & {*keys})


def _begun(events: Sequence[Any], first: int, mine: set[str], died_s: float) -> dict[str, float]:
    begun: dict[str, float] = {}
    for event in events[first:]:
        if event.f == "start" and event.key in mine and event.t > died_s:
            begun.setdefault(event.key, event.t)
    return begun


def _identities(simulation: Simulation, name: str) -> set[str]:
    boot = simulation.fleet.boots[name]
    assert boot is not None
    assert boot.node is not None
    names: set[str] = set()
    for lane in boot.node._open_wiring.membership.identities():
        names |= {*lane}
    return names


def cells(arguments: argparse.Namespace) -> list[Cell]:
    """Return what was asked for."""
    return [
        Cell(
            silent=silent,
            answering=answering,
            is_random=is_random,
            living=living,
            ttl_s=ttl_s,
            seed=seed,
        )
        for living, ttl_s, is_random, silent, answering, seed in product(
            arguments.living,
            arguments.ttl,
            (False, True),
            arguments.silent,
            arguments.answering,
            range(1, arguments.seeds + 1),
        )
    ]


def main() -> int:
    """Print the table; 1 if the bound was missed in some cell."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--silent", type=float, nargs="+", default=SILENT)
    parser.add_argument("--answering", type=float, nargs="+", default=ANSWERING)
    parser.add_argument("--living", type=int, nargs="+", default=LIVING)
    parser.add_argument("--ttl", type=float, nargs="+", default=TTLS_S)
    parser.add_argument("--seeds", type=int, default=1)
    arguments = parser.parse_args()
    sys.unraisablehook = lambda _: None  # closed worlds are collected, and find no loop to end in
    print("living  TTL  silent/answers  pattern    takeover  excess s  evicted  anew")
    missed = 0
    for cell in cells(arguments):
        found = measure(cell)
        missed += found.excess_s > 0
        took = "never" if found.takeover_s is None else f"{found.takeover_s / cell.ttl_s:.1f} TTL"
        print(
            f"{cell.living:6d} {cell.ttl_s:4g}  {cell.silent:6g}/{cell.answering:<7g}  "
            f"{'random  ' if cell.is_random else 'periodic'} {took:>10}  {found.excess_s:8.2f}  "
            f"{found.evicted:7d}  {found.anew:4d}",
            flush=True,
        )
    print(f"{missed} cells miss the bound")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
