"""The benchmark of fleets in its smallest form: real processes, and what must hold at any size.

Nothing here is judged by how fast it was, but for takeovers, which have a promise (G-06).
"""

from __future__ import annotations

from typing import Final

import pytest

from benchmarks.fleet import SCENARIOS, Bench
from benchmarks.fleet_processes import gaps_s
from benchmarks.fleet_rows import Sizes
from benchmarks.probe import Probe

TINY: Final = Sizes(
    ttls_s=(1.0,),
    signals=("sigkill",),
    settle_s=0.2,
    quiet_s=1.0,
    kills=1,
    services=20,
    exits=1,
    deployments=(2,),
    services_per_node=10,
    pauses_s=(0.6,),
    notes=10,
    joiners=3,
    joiners_before=2,
    cold_keys=20,
    cold_per_s=100.0,
    hot_per_s=200.0,
    hot_s=0.5,
    repeats=1,
    queued=500,
    live=60,
    live_nodes=2,
    clients=2,
    results=10,
    rest_s=0.2,
    rests=1,
    per_process=2,
)
MUST_HOLD: Final[dict[str, dict[str, tuple[float, float]]]] = {
    "takeover": {
        "takeover_ttl_1_sigkill_max_s": (0.5, 10.0),  # 2 s is promised, of cores that are free
    },
    "handoff": {},
    "deployment": {
        "moves_2_start_first_0.6_s_apart_max": (1, 1),
        "moves_2_stop_first_0.6_s_apart_max": (1, 2),
    },
    "notifications": {},
    "joining": {"join_moved": (1, 50), "join_moves_max": (1, 1)},
    "hot_key": {},
    "backlog": {},
    "live_services": {},
    "clients": {"clients_connections": (4, 4)},
}


SHORT: Final = {"handoff", "notifications"}  # the others start many processes, or wait for leases


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in SHORT else pytest.mark.long) for n in SCENARIOS]
)
def test_each_scenario_measures_all_that_it_shows(name: str, redis_url: str) -> None:
    """And what must hold at any size holds at the smallest."""
    probe = Probe(redis_url)
    try:
        figures = Bench(probe, "asyncio", TINY).run([name]).figures()
    finally:
        probe.close()
    assert [row for row, _, _ in SCENARIOS[name].rows(TINY) if row not in figures] == []
    for figure, (low, high) in MUST_HOLD[name].items():
        assert low <= figures[figure].min <= figures[figure].max <= high, figure


def test_every_base_is_a_figure_of_the_same_scenario() -> None:
    for scenario in SCENARIOS.values():
        rows = list(scenario.rows(TINY))
        assert {base for _, _, base in rows if base} <= {name for name, _, _ in rows}


def test_two_owners_at_once_are_an_error() -> None:
    assert gaps_s({"k": [20, 50]}, {"k": [10, 40]}) == [1e-8, 1e-8]
    with pytest.raises(RuntimeError, match="two owners"):
        gaps_s({"k": [20, 30]}, {"k": [10, 40]})
    with pytest.raises(ValueError, match="shorter"):
        gaps_s({"k": [20]}, {"k": [10, 40]})
