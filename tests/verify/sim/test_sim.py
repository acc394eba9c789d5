"""The simulation itself: it repeats, it differs, it finds nothing; what was found stays found."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import CoroutineType
from typing import get_args

import anyio
import attrs
import pytest
from structlog.testing import capture_logs

from pool import Node
from pool.jobs.fleet.walker import Walker
from pool.names import Control, lane_of
from tests.verify.sim.campaign import regressions, told
from tests.verify.sim.config import FAULTS, OF_DATA, PROGRAMS, Config, Loops
from tests.verify.sim.faults import FOUND_TTLS, POOL
from tests.verify.sim.run import Outcome, Simulation, play
from tests.verify.sim.world import LoopKind, Process, World, sweep

ROOT = Path(__file__).parents[3]
SEEDS = 6  # on each event loop
OF_A_SERVICE = 200  # of what was found: a service that only the walk finds
NEWEST = 4  # of what was found, in `make test`; `make test-long` plays the others
_DIGESTS = """
import sys
from tests.verify.sim.config import Config
from tests.verify.sim.run import play
for text in sys.argv[1:]:
    print(play(Config.parse(text)).digest)
"""


def _digests(*configs: Config, hash_seed: str = "random") -> list[str]:
    """Play configurations, one after another, in a process that has played none before."""
    done = subprocess.run(
        [sys.executable, "-c", _DIGESTS, *(config.text() for config in configs)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def _clean(outcome: Outcome) -> Outcome:
    assert outcome.ok, told(outcome)
    return outcome


@pytest.mark.parametrize("loops", ["asyncio", "trio"])
def test_no_seed_violates_anything(loops: LoopKind) -> None:
    """G-01 to G-07, under whatever each seed does; and each does something else."""
    outcomes = [_clean(play(Config.of(seed, loops))) for seed in range(SEEDS)]
    assert len({outcome.digest for outcome in outcomes}) == SEEDS


@pytest.mark.parametrize("seed", [11, 12, 21, 24])
def test_what_is_due_begins_in_time_where_nothing_goes_wrong(seed: int) -> None:
    """I41: several nodes say delays and retries at once, and another one sweeps."""
    outcome = _clean(play(attrs.evolve(Config.of(seed), faults=(), shapes=())))
    assert outcome.report.judged["I41"]


@pytest.mark.parametrize(
    "loops",
    ["mixed", *(pytest.param(each, marks=pytest.mark.long) for each in ("asyncio", "trio"))],
)
def test_a_seed_makes_one_history(loops: Loops) -> None:
    """Without that no failure could be looked at twice: whatever was played before it."""
    faults = ("crash", "late", "pause", "restart")
    config = attrs.evolve(Config.of(17, loops), faults=faults, chaos_s=5.0)
    other = attrs.evolve(Config.of(7, loops), chaos_s=5.0)
    first, _, last = _digests(config, other, config)
    assert first == last


@pytest.mark.parametrize("loops", ["asyncio", "trio"])
def test_what_is_cancelled_together_ends_in_one_order(loops: LoopKind) -> None:
    """However many tasks and scopes there have been in the worlds before."""
    assert len({tuple(_cancelled_together(loops)) for _ in range(8)}) == 1


def _cancelled_together(loops: LoopKind) -> list[str]:
    """Have tasks and scopes inside of one be cancelled; return the order in which they end."""
    ended: list[str] = []

    async def wait(name: str) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(name)

    async def wait_inside(name: str) -> None:
        with anyio.CancelScope():
            await wait(name)

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(wait, f"task {number}")
                tasks.start_soon(wait_inside, f"scope {number}")
            await anyio.sleep(1.0)
            tasks.cancel_scope.cancel()

    world = World(1)
    Process(world, "n0/1", loops).start(main)
    world.run(2.0)
    assert len(ended) == 6
    world.close()
    sweep()
    return ended


@pytest.mark.parametrize("loops", get_args(Loops))
def test_nothing_of_a_world_outlives_it(loops: Loops) -> None:
    """Hunts play thousands of seeds in one process.

    Weak references do not tell: the collector cuts them also to what is then held once more.
    """
    faults, shapes = ("crash", "hang", "leave"), ("observers",)  # whose errors are logged
    config = attrs.evolve(Config.of(1, loops), faults=faults, shapes=shapes, chaos_s=5.0)
    before = {id(part): part for part in _parts()}
    outcomes = [play(config), play(config)]
    left = Counter(type(part).__name__ for part in _parts() if id(part) not in before)
    assert not left
    assert all(outcome.events for outcome in outcomes)  # held until here: they hold none of it


def test_what_is_thrown_away_says_nothing() -> None:
    """A line of a log would stand in front of what a hunt tells."""
    for loops in get_args(Loops):
        simulation = Simulation(attrs.evolve(Config.of(1, loops), faults=(), shapes=("observers",)))
        with capture_logs():
            simulation.begin()
            _leave_halfway(simulation)
        with capture_logs() as said:
            simulation.close()
        assert not said


def _leave_halfway(simulation: Simulation) -> None:
    """Have each node be on its way out, with observers that raise from now on."""
    simulation.world.run(5.0)
    boots = simulation.fleet.open_boots()
    nodes = [boot.node for boot in boots if boot.node is not None]
    for boot in boots:
        boot.leave()
        boot._dice.random = lambda: 0.0  # type: ignore[method-assign]
    simulation.world.run(6.0, lambda: all(node.state == "draining" for node in nodes))
    assert nodes
    assert all(node.state == "draining" for node in nodes)


def _parts() -> list[object]:
    """Return what there is of worlds, nodes and their tasks, asking no object of another test."""
    kinds = (World, Process, Node, CoroutineType)
    return [o for o in gc.get_objects() if issubclass(type(o), kinds)]


@pytest.mark.parametrize("loops", ["asyncio", "trio"])
def test_the_order_of_sets_decides_nothing(loops: Loops) -> None:
    """Hash seeds and addresses differ between processes; histories must not."""
    config = Config.of(7, loops)
    assert _digests(config, hash_seed="1") == _digests(config, hash_seed="2")


@pytest.mark.parametrize(
    "config",
    [
        *(pytest.param(each, marks=pytest.mark.long) for each in regressions()[:-NEWEST]),
        *regressions()[-NEWEST:],
    ],
    ids=lambda config: f"seed{config.seed}",
)
def test_what_was_found_stays_found(config: Config) -> None:
    """Every configuration that once found something (tests/verify/regressions.txt)."""
    _clean(play(config))


def test_what_nothing_finds_is_judged_when_the_time_for_that_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A service whose entry was deleted, and whose worker is dead: only the walk comes to it."""
    config = next(each for each in regressions() if each.seed == OF_A_SERVICE)
    assert "lost-index" in config.faults
    monkeypatch.setattr(Walker, "run", _rest)
    outcome = play(config)
    assert outcome.broken == ("I23", "I38"), told(outcome)
    by_s = config.chaos_s + FOUND_TTLS * config.ttl_s
    assert by_s <= outcome.virtual_s < by_s + 2.0  # not before, nor much later


@pytest.mark.parametrize(
    ("state", "result", "coin_s", "after_s", "waits"),
    [
        ("pending", -9, 0.0, 18.0, True),
        ("pending", -9, 0.0, 19.0, False),  # a TTL and 1 s, a reaper, all suspects, ten trials
        ("waiting", -9, 30.0, 34.0, True),  # until all suspects behind the coin have had their turn
        ("waiting", -9, 30.0, 36.0, False),
        ("running", -9, 0.0, 1.0, False),
        ("pending", 0, 0.0, 1.0, False),  # who left has killed nobody
    ],
)
def test_a_suspect_is_waited_for_as_long_as_it_may_wait(
    state: str, result: int, coin_s: float, after_s: float, *, waits: bool
) -> None:
    """Seeds 722059, 722079: else a service seems to be missing that is about to begin."""
    simulation = Simulation(attrs.evolve(Config.of(1), faults=(), shapes=(), ttl_s=2.0))
    if coin_s:  # of a death before the last one
        simulation.driver("requeue", key="s", job="j", extra={"coin_s": coin_s})
    simulation.driver("exit", p="n0/1", result=result)
    simulation.world.run(after_s)
    assert simulation._is_suspected({"jobs": {"s": ["j", state, "service"]}}) == waits
    simulation.close()


@pytest.mark.parametrize("loops", get_args(Loops))
def test_a_fleet_may_be_one_process(loops: Loops) -> None:
    """Every fault leaves nobody else: what was accepted is done when it is back."""
    seed = next(seed for seed in range(1000) if "alone" in Config.of(seed).shapes)
    for kind in ("crash-two", "host-dies", "line-silences"):
        config = attrs.evolve(Config.of(seed, loops), faults=(kind,), pace_s=4.0, ttl_s=2.0)
        assert config.nodes == 1
        assert kind in _clean(play(config)).fired


@pytest.mark.parametrize(
    ("index", "lane", "member", "problem", "waits"),
    [
        ("owned", 0, "", "", True),
        ("due", 0, "k:s", "", True),
        ("pending", 0, "s", "", True),
        ("keepalive", 0, "w.1", "", True),
        ("owned", 0, "other", "", False),
        ("owned", 1, "", "", False),
        ("open", 0, "", "", False),  # renewals make it again
        ("owned", 0, "", "lane 0: 's': no lease", True),
        ("owned", 0, "", "lane 1: 't': no lease", False),
    ],
)
def test_the_walk_is_waited_for_where_it_may_find_what_is_wrong(
    index: str, lane: int, member: str, problem: str, waits: bool
) -> None:
    """Else whatever it repairs would be seen by no seed that loses an index."""
    config = attrs.evolve(Config.of(1), faults=(), shapes=(), lanes=2)
    service = next(f"s{n}" for n in range(99) if lane_of(f"s{n}", 2) == 0)
    simulation = Simulation(config)
    facts = {"index": index, "index_lane": str(lane), "member": member.replace("s", service)}
    simulation.driver("fault", "invoke", extra={"kind": "lost-index", **facts})
    problems = [problem] if problem else []
    last = {"jobs": {service: ["j", "waiting", "service"]}, "problems": problems}
    assert simulation._may_be_mended(last) == waits
    last["jobs"] = {service: ["j", "running", "service"]}
    assert simulation._may_be_mended(last) == (waits and bool(problem))
    simulation.close()


async def _rest(_walker: Walker, _lane: int) -> None:
    await anyio.sleep_forever()


def test_an_id_names_the_event_that_its_stream_has_now() -> None:
    """Older data bring back an event whose id a newer event had in the meantime."""
    simulation = Simulation(Config.of(0))
    keyspace, key = simulation.server.keyspace, Control(POOL).stream("e0").encode()
    keyspace.run(b"XGROUP", b"CREATE", key, b"s", b"0", b"MKSTREAM")
    empty = keyspace.copy_of_all()

    def give(token: bytes) -> None:
        keyspace.run(b"XADD", key, b"1-0", b"p", token + b"|")
        keyspace.run(b"XREADGROUP", b"GROUP", b"s", b"a", b"STREAMS", key, b">")

    give(b"first")
    full = keyspace.copy_of_all()
    keyspace.restore(empty)
    give(b"second")
    keyspace.restore(full)
    keyspace.run(b"XTRIM", key, b"MAXLEN", b"0")
    keyspace.run(b"XACK", key, b"s", b"1-0")
    events = [(event.f, event.idem) for event in simulation.watch.events]
    simulation.close()
    firsts = [(f, "first") for f in ("added", "gave")]
    seconds = [(f, "second") for f in ("added", "gave")]
    assert events == [*firsts, *seconds, ("dropped", "first"), ("acked", "first")]


def test_a_key_comes_back_to_its_process_before_its_former_handler_has_ended() -> None:
    """Too rare beside all other faults: about one seed in 2,000 would see it."""
    faults = ("change-worker", "stubborn")
    for seed in range(100):
        config = Config.of(40_000 + seed, "mixed")
        alone = attrs.evolve(config, faults=faults, shapes=(), workers=2, lanes=1, pace_s=2.0)
        if "key back before its former handler ended" in _clean(play(alone)).seen:
            return
    pytest.fail("no seed saw it")


@pytest.mark.parametrize(
    # Every third one stands for the others here: the mixed seeds draw them all.
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.long) if n % 3 else kind
        for n, kind in enumerate(FAULTS)
    ],
)
def test_each_fault_alone_is_survived(kind: str) -> None:
    config = attrs.evolve(Config.of(3, "mixed"), faults=(kind,), pace_s=4.0, ttl_s=2.0)
    if kind in OF_DATA:
        config = attrs.evolve(config, shapes=(*config.shapes, *PROGRAMS))
    outcome = _clean(play(config))
    assert any(event.f == "fault" for event in outcome.events)
