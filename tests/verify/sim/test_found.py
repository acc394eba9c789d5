"""What the simulation found in code that no fault of a seed reaches by itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from pool import Node
from pool.core.crash_marks import NO_MARKS
from pool.core.record import Start
from pool.jobs.fleet.keepalive import KeepAlive
from pool.jobs.run import Run
from pool.jobs.worker.outbox import Memory
from pool.jobs.worker.reconcile import HeldKey, compare
from pool.jobs.worker.worker import Worker
from pool.redis.commands.edges import DoneEdge, Edge, WaitEdge
from pool.redis.commands.upkeep import Owned
from pool.runtime.stream_tailer import StreamTailer
from tests.verify.sim.campaign import told
from tests.verify.sim.config import Config
from tests.verify.sim.faults import Window
from tests.verify.sim.fleet import Boot
from tests.verify.sim.polled import POLLED
from tests.verify.sim.run import Simulation, play
from tests.verify.sim.scenes import ACTOR, OTHER, PLANS, TIMED
from tests.verify.sim.steps import BATCHES, LINES, SCENES, Stage, play_all, tell
from tests.verify.sim.steps import play as play_scene

LOOPS = ("asyncio", "trio")


@attrs.frozen
class _Failing:
    """A port that fails a body of ours at its fourth read."""

    port: Any
    reads: list[int] = attrs.field(factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.port, name)

    async def read(self, *args: Any, **kwargs: Any) -> Any:
        self.reads.append(1)
        if len(self.reads) > 3:
            raise RuntimeError("planted")
        return await self.port.read(*args, **kwargs)


def _quiet(loops: Any) -> Config:
    config = Config.of(0, loops)
    return attrs.evolve(config, nodes=2, lanes=1, jobs=20, services=0, faults=(), ttl_s=2.0)


@pytest.mark.parametrize("loops", LOOPS)
def test_a_renewal_thread_that_failed_is_started_again(
    monkeypatch: pytest.MonkeyPatch, loops: str
) -> None:
    """On asyncio its end is a callback, in which nothing can be spawned."""
    body = KeepAlive._body
    failed: list[str] = []

    async def fail_once(self: KeepAlive, url: Any, port: Any) -> None:
        if not failed:
            failed.append(self.name)
            raise RuntimeError("planted")
        await body(self, url, port)

    monkeypatch.setattr(KeepAlive, "_body", fail_once)
    outcome = play(_quiet(loops))
    assert failed
    assert not outcome.failures
    assert set(outcome.report.broken) == {"I25"}, told(outcome)  # it is told, and nothing else


def test_a_renewal_that_opens_a_cordoned_worker_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge of grants excuses those of a lane that has lost what it was told, and no others."""
    takes = Worker.takes

    def ignore_the_cordon(self: Worker, number: int) -> int:
        is_cordoned, self.is_cordoned = self.is_cordoned, False
        try:
            return takes(self, number)
        finally:
            self.is_cordoned = is_cordoned

    monkeypatch.setattr(Worker, "takes", ignore_the_cordon)
    config = attrs.evolve(
        Config.of(1, "asyncio"), faults=(), shapes=("operators",), nodes=2, lanes=1
    )
    outcome = play(attrs.evolve(config, jobs=200, services=0, ttl_s=2.0, chaos_s=20.0))
    assert set(outcome.broken) == {"I67"}, told(outcome)


@pytest.mark.parametrize("loops", LOOPS)
def test_a_node_ends_with_the_cause_when_its_reader_failed(
    monkeypatch: pytest.MonkeyPatch, loops: str
) -> None:
    """It never reports itself healthy while its maps stand still."""

    body = StreamTailer._body

    async def fail(self: StreamTailer[Any], port: Any) -> None:
        await body(self, _Failing(port) if self.name == "pool-maps" else port)

    monkeypatch.setattr(StreamTailer, "_body", fail)
    simulation = Simulation(_quiet(loops))
    simulation.fleet.start("n0")
    process = simulation.fleet.process("n0")
    assert process is not None
    simulation.world.run(20.0)
    failures = [str(leaf) for failure in process.failures for leaf in leaves(failure)]
    is_over = process.host.is_over
    del process  # it is thrown away with its world
    simulation.close()
    assert is_over
    assert failures == ["planted", "planted"]  # the thread's own end, and the node's


def leaves(failure: BaseException | str) -> Iterator[BaseException | str]:
    """Yield what a group holds: the world itself runs a node in one."""
    if isinstance(failure, BaseExceptionGroup):
        for each in failure.exceptions:
            yield from leaves(each)
    else:
        yield failure


def _start(epoch: int) -> Start:
    return Start(
        key="k",
        epoch=epoch,
        id="j1",
        handler="h",
        kind="job",
        attempt=1,
        flags="",
        marks=NO_MARKS,
        accepted=5,
        payload=b"",
    )


@pytest.mark.parametrize(
    ("epoch", "is_acknowledged", "is_lost"), [(5, True, True), (5, False, False), (7, True, False)]
)
def test_an_acknowledgement_that_the_server_lost_is_sent_again(
    epoch: int, *, is_acknowledged: bool, is_lost: bool
) -> None:
    """G-02: a start that stands there as pending may be taken from a loop that hangs (13.6)."""
    run = Run(_start(epoch), 0, 0.0, phase="running", is_acknowledged=is_acknowledged)
    theirs = Owned(running={}, starts=[_start(5)], unreadable={}, lost={})
    mending = compare(theirs, {"k": run}, Memory(), ())
    assert mending.again == ([run] if is_lost else [])
    assert not mending.is_needed


@pytest.mark.parametrize("is_known", [True, False])
def test_what_runs_and_is_not_there_ends_if_it_was_here_when_asked(*, is_known: bool) -> None:
    """However new its epoch is: a server that went back has only older stamps (G-05)."""
    run = Run(_start(9), 0, 0.0, phase="running", is_acknowledged=True)
    theirs = Owned(running={}, starts=[], unreadable={}, lost={})
    mending = compare(theirs, {"k": run}, Memory(), {run} if is_known else ())
    assert mending.cancel == ([run] if is_known else [])


def test_an_older_grant_below_the_last_settlement_is_given_up() -> None:
    """A server that came back without its last writes holds what we no longer remember (G-05)."""
    memory = Memory()
    memory.keep(DoneEdge("k", 7, "j2"), 0.0, 10.0)
    theirs = Owned(running={}, starts=[_start(5)], unreadable={}, lost={})
    mending = compare(theirs, {}, memory, ())
    assert mending.release == [HeldKey("k", 5, "j1", "h")]
    assert not mending.adopt
    assert not mending.resend


@pytest.mark.parametrize("epoch", [5, 9])
@pytest.mark.parametrize("is_accepted", [True, False])
@pytest.mark.parametrize("edge", [DoneEdge, WaitEdge])
def test_an_end_stands_for_each_run_that_a_server_without_it_may_have(
    epoch: int, edge: type[Edge], *, is_accepted: bool
) -> None:
    """Also if its key had a later job, and if the job was granted anew before we heard of it."""
    memory = Memory()
    memory.keep(edge("k", 7, "j1"), 0.0, 10.0, is_accepted=is_accepted)
    memory.keep(DoneEdge("k", 8, "j2"), 0.0, 10.0)
    theirs = Owned(running={}, starts=[_start(epoch)], unreadable={}, lost={})
    mending = compare(theirs, {}, memory, ())
    stands = is_accepted and epoch < 7
    assert [(e.letter, e.epoch, e.id) for e in mending.resend] == [
        (edge.letter, epoch, "j1")
    ] * stands
    assert bool(mending.adopt) == (not stands and epoch > 8)
    assert bool(mending.release) == (not stands and epoch < 8)


@pytest.mark.parametrize("loops", LOOPS)
@pytest.mark.parametrize("cut_s", [1.5, 1.6, 1.7, 1.8])
def test_a_message_for_a_suspended_service_is_handled(loops: str, cut_s: float) -> None:
    """Its signal finds no inbox; the service, started again, must look for itself (G-07)."""

    def scene(stage: Stage) -> None:
        window = Window(ACTOR, 1.0, 0.0)
        weather = stage.simulation.weather
        stage.at(0.0, lambda: stage.dispatch(OTHER, ACTOR, "feed", trips=[], s=0.0, end=0.0))
        stage.at(1.0, weather.open, "partition", window)
        stage.at(1.2, stage.do, OTHER, tell(stage, 0))
        stage.at(1.0 + cut_s, weather.close, "partition", window)

    outcome, _ = play_scene(scene, loops, 0, is_applied=True)
    assert outcome.report.broken.get("I2", 0) == 0, told(outcome)
    assert [e.extra["seq"] for e in outcome.events if e.f == "note"] == [0]


@pytest.mark.parametrize("loops", LOOPS)
def test_while_a_loop_hangs_only_what_has_not_begun_starts_elsewhere(loops: str) -> None:
    """G-02, G-05: two jobs come in one batch, and the handler of the first blocks the event loop.

    The loop stops before it can send an acknowledgement.  The second job has a slot by then, but
    its handler is not called yet.
    """
    blocks = {"s": 0.0, "fails": 1, "how": "block", "pad": "", "blocks": 3.0}
    quick = {"s": 0.0, "fails": 0, "how": "raise", "pad": ""}

    def scene(stage: Stage) -> None:
        def begin() -> None:
            calls = [(stage.key_of(ACTOR), plan) for plan in (blocks, quick)]

            async def ask(boot: Boot, node: Node) -> None:
                await stage.simulation.load._dispatch(boot, node, "work", calls, {})

            stage.do(OTHER, ask)

        stage.at(0.0, begin)

    outcome, _ = play_scene(scene, loops, 0, is_applied=True)
    assert outcome.ok, told(outcome)
    starts = [(e.idem, e.p.partition("/")[0]) for e in outcome.events if e.f == "start"]
    assert starts == [("t1.0", ACTOR), ("t1.1", OTHER)]


@pytest.mark.parametrize("loops", LOOPS)
def test_a_lane_left_by_a_late_join_keeps_nobody_out(loops: str) -> None:
    """`config` decides, also when nobody of before is there to set the lane right (G-05)."""
    simulation = Simulation(_quiet(loops))
    lane = b"pool:{sim:0}:lane"
    simulation.server.keyspace.run(b"HSET", lane, b"incarnation", b"of-before")
    simulation.fleet.start("n0")
    simulation.world.run(5.0)
    is_open = bool(simulation.fleet.open_boots())
    simulation.close()
    assert is_open


@pytest.mark.parametrize(
    # Every second one: `make steps` plays them all, in each loop and with several lanes.
    "name",
    [
        pytest.param(name, marks=pytest.mark.long) if n % 2 else name
        for n, name in enumerate(SCENES)
    ],
)
def test_a_crash_after_a_step_loses_nothing(name: str) -> None:
    """G-01, G-04, G-05: the actor dies before or after a command; half of the fleet is trio.

    Each fifth of them here, of what has many less; `make steps` takes all.
    """
    is_long = name in TIMED or name in PLANS
    stride = 41 if name in POLLED else 23 if is_long else 11 if name in BATCHES else 5
    wrong = play_all(name, "mixed", stride=stride)
    assert not wrong, "\n".join(wrong)


def test_a_gateway_that_dies_loses_nothing_where_there_are_more_lanes() -> None:
    """Likewise of what it does for a worker that polls, in four lanes: some of very many."""
    wrong = play_all("be polled, and told of failures", "mixed", stride=131, lanes=4)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", LINES)
def test_a_crash_beside_a_line_loses_nothing_where_there_are_more_lanes(name: str) -> None:
    wrong = play_all(name, "mixed", stride=7, lanes=4)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("name", "stride"),
    [
        *(("save", 5), ("fire", 23), ("be members", 23)),
        *(pytest.param(name, 5, marks=pytest.mark.long) for name in ("steps", "save soon")),
    ],
)
def test_so_it_is_with_four_lanes(name: str, stride: int) -> None:
    """What a job stores while it goes on is of its own lane; what it tells goes to others'."""
    wrong = play_all(name, "mixed", stride=stride, lanes=4)
    assert not wrong, "\n".join(wrong)
