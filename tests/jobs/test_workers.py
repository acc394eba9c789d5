"""Workers: added and removed at run time, filled to their capacity, given keys by placement."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import anyio
import pytest

from pool import Handlers, Job, Node, PoolError
from pool.core.crash_marks import Marks
from pool.errors import JobExists, NotRunning, PartEnded
from pool.events import ServiceMoved
from pool.jobs.run import Run
from pool.jobs.trials import TIMER_S, TRIAL_GROWTH, TRIAL_S, Trials
from pool.jobs.worker.executor import Executor, _Slot
from pool.jobs.worker.messages import Ticked
from pool.jobs.worker.outbox import Outbox
from pool.jobs.worker.rebalance import Rebalancer
from pool.jobs.worker.worker import Worker, _TrialOver
from pool.names import Names, lane_of
from pool.redis.commands.calls import Target
from pool.redis.commands.edges import AcknowledgeEdge, Changed, EdgeStatus, OverEdge
from tests.stopwatch import stopwatch

if TYPE_CHECKING:
    from tests.nodes import Diary, Fleet

pytestmark = pytest.mark.anyio

SOON_S = 30.0  # what takes a moment, on a busy machine


def holding(diary: Diary, release: anyio.Event) -> Handlers:
    """Return a finite job that runs until `release`, and a service."""
    handlers = Handlers()

    @handlers.job("hold")
    async def hold(job: Job) -> str:
        diary.note(job.key, job.worker)
        await release.wait()
        return job.worker

    @handlers.service("serve")
    async def serve(job: Job) -> None:
        diary.note(job.key, job.worker)
        await anyio.sleep_forever()

    return handlers


def where(handlers: Handlers) -> Any:
    """Register a job that tells which worker ran it."""

    @handlers.job("where")
    async def where_run(job: Job) -> str:
        return job.worker.partition(".")[0]

    return where_run


async def places(node: Node, keys: list[str]) -> dict[str, str]:
    """Return the worker that runs each key."""
    refs = await node.dispatch_many("where", keys)
    return {
        ref.key: await ref.result(timeout_s=30) for ref in refs if not isinstance(ref, PoolError)
    }


KEYS = [f"key-{n}" for n in range(60)]


# --- adding and removing ------------------------------------------------------------------------


async def test_a_worker_added_in_a_scope_that_is_cancelled_lives_on_with_its_node(
    fleet: Fleet,
) -> None:
    handlers = Handlers()
    where_run = where(handlers)
    node = await fleet.node()
    with anyio.CancelScope() as scope:
        worker = await node.add_worker(handlers)
        scope.cancel()
        await anyio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    ref = await node.dispatch(where_run, "k")
    assert await ref.result(timeout_s=30) == worker.id
    assert [info.id for info in node.workers] == [worker.id]


async def test_a_client_becomes_a_worker_and_a_client_again(fleet: Fleet) -> None:
    handlers = Handlers()
    where_run = where(handlers)
    node = await fleet.node()
    for _ in range(2):
        worker = await node.add_worker(handlers, capacity=3, label="left", version="1.2")
        [info] = node.workers
        assert (info.id, info.node, info.handlers) == (worker.id, node.id, ("where",))
        assert (info.capacity, info.label, info.version) == (3, "left", "1.2")
        assert await (await node.dispatch(where_run, "k")).result(timeout_s=30) == worker.id
        await worker.remove()
        assert node.workers == ()
        await worker.remove()  # twice is fine
    ref = await node.dispatch(where_run, "k")
    assert (await ref.status()).state == "unassigned"
    await ref.stop(timeout_s=30)


async def test_removing_a_worker_hands_its_services_over_and_lets_its_jobs_end(
    fleet: Fleet, diary: Diary
) -> None:
    """G-06: after a planned exit at once, and without burning an attempt."""
    release = fleet.gate()
    node = await fleet.node(holding(diary, release))
    first = node.workers[0].id
    service = await node.dispatch("serve", "service")
    job = await node.dispatch("hold", "job")
    await diary.counts(2)
    second = await node.add_worker(holding(diary, release))
    own = next(worker for worker in fleet.workers(node) if worker.id == first)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(node._remove_worker, own.id, None)
        await diary.has("service", f"{second.id}.1")
        release.set()
    assert (await job.result(timeout_s=30)).startswith(first)
    status = await service.status()
    assert (status.attempt, status.crashes) == (1, 0)
    assert [info.id for info in node.workers] == [second.id]


async def test_two_workers_of_one_node_never_run_a_key_at_once(fleet: Fleet, diary: Diary) -> None:
    """G-02: the former handler of a key is still ending; the key waits for it, in this process."""
    handlers = Handlers()
    release = fleet.gate()
    running: Counter[str] = Counter()

    @handlers.service("slow")
    async def slow(job: Job) -> None:
        running[job.key] += 1
        diary.note("started", job.worker, running[job.key])
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await release.wait()
            running[job.key] -= 1

    node = await fleet.node(handlers)
    ref = await node.dispatch(slow, "k")
    await diary.counts(1)
    second = await node.add_worker(handlers)
    first = next(worker for worker in fleet.workers(node) if worker.id != second.id)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(node._remove_worker, first.id, None)
        await fleet.until(lambda: first.is_draining)
        release.set()
    await diary.counts(2)
    assert [number for _, _, number in diary.entries] == [1, 1]
    await ref.stop(timeout_s=30)


async def test_a_key_outlives_its_removed_worker_together_with_a_handler_that_does_not_end(
    fleet: Fleet, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G-02, G-05: the reapers give the key to a neighbour, which waits until the handler ends."""
    monkeypatch.setattr("pool.jobs.wiring.CLOSE_BUDGET_S", 0.5)
    handlers = Handlers()
    release = fleet.gate()
    running: Counter[str] = Counter()

    @handlers.service("slow")
    async def slow(job: Job) -> None:
        running[job.key] += 1
        diary.note("started", job.worker, running[job.key])
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await release.wait()
            running[job.key] -= 1

    node = await fleet.node(handlers, op_timeout_s=1.0)
    ref = await node.dispatch(slow, "k")
    await diary.counts(1)
    await node.add_worker(handlers)
    first, second = fleet.workers(node)
    await node._remove_worker(first.id, 0.0)
    await fleet.until(lambda: "k" in second.runs)
    assert running["k"] == 1
    release.set()
    await diary.counts(2)
    assert [number for _, _, number in diary.entries] == [1, 1]
    await ref.stop(timeout_s=30)


async def test_a_key_whose_start_was_being_prepared_outlives_its_removed_worker(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G-05: nobody would tell the neighbours in this process that the key is free again."""
    monkeypatch.setattr("pool.jobs.wiring.CLOSE_BUDGET_S", 0.5)
    handlers = Handlers()

    @handlers.job("size")
    async def size(job: Job, payload: bytes) -> list[Any]:
        return [job.worker, len(payload)]

    async def fetch_for_ever(self: Executor, run: Run) -> None:
        await anyio.sleep_forever()

    node = await fleet.node(handlers, op_timeout_s=1.0)
    [first] = fleet.workers(node)
    with monkeypatch.context() as patch:
        patch.setattr(Executor, "_fetch", fetch_for_ever)
        ref = await node.dispatch(size, "k", b"x" * 2000)
        await fleet.until(lambda: "k" in first.runs and first.runs["k"].phase == "preparing")
    second = await node.add_worker(handlers)
    await node._remove_worker(first.id, 0.0)
    assert await ref.result(timeout_s=30) == [f"{second.id}.1", 2000]


async def test_a_stop_that_overtakes_the_answer_to_an_acknowledgement_ends_the_job(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G-05: what was asked to end before it began is not asked a second time."""
    handlers = Handlers()

    @handlers.job("never")
    async def never(job: Job, payload: bytes) -> None:
        raise AssertionError

    async def fetch_for_ever(self: Executor, run: Run) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr(Executor, "_fetch", fetch_for_ever)
    node = await fleet.node(handlers)
    [worker] = fleet.workers(node)
    ref = await node.dispatch(never, "k", b"x" * 2000)
    await fleet.until(lambda: "k" in worker.runs and worker.runs["k"].phase == "preparing")
    run = worker.runs["k"]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ref.stop, "as asked", 10.0)
        await fleet.until(lambda: run.why == "stop")
        worker._on_acknowledged(run, Changed(EdgeStatus.STOPPED, "as asked"))
    assert not worker.runs
    assert (await ref.status()).state == "cancelled"


# --- capacity -----------------------------------------------------------------------------------


async def test_a_worker_runs_as_many_jobs_at_once_as_its_capacity_and_no_more(
    fleet: Fleet, diary: Diary
) -> None:
    handlers = Handlers()
    running: list[str] = []
    most = 0

    @handlers.job("count")
    async def count(job: Job) -> None:
        nonlocal most
        running.append(job.key)
        most = max(most, len(running))
        diary.note(job.key)
        await anyio.lowlevel.checkpoint()
        running.remove(job.key)

    node = await fleet.node(handlers, capacity=3)
    refs = await node.dispatch_many(count, [f"k{n}" for n in range(50)])
    for ref in refs:
        assert not isinstance(ref, PoolError)
        await ref.result(timeout_s=30)
    assert (most, len(diary.entries)) == (3, 50)


async def test_plain_functions_are_bounded_by_the_capacity_too(fleet: Fleet) -> None:
    handlers = Handlers()
    running: list[int] = []
    most: list[int] = []

    @handlers.job("count")
    def count(job: Job) -> None:
        running.append(1)
        most.append(len(running))
        anyio.from_thread.run(anyio.lowlevel.checkpoint)
        running.pop()

    node = await fleet.node(handlers, capacity=2)
    refs = await node.dispatch_many(count, [f"k{n}" for n in range(20)])
    for ref in refs:
        assert not isinstance(ref, PoolError)
        await ref.result(timeout_s=30)
    assert max(most) == 2


async def test_a_worker_that_joins_pulls_what_waits_for_a_slot(fleet: Fleet, diary: Diary) -> None:
    """Scaling out helps: nothing waits for the worker it was granted to while another is free."""
    release = fleet.gate()
    first = await fleet.node(holding(diary, release), capacity=1, lease_ttl_s=1.0)
    refs = await first.dispatch_many("hold", [f"k{n}" for n in range(4)])
    await diary.counts(1)
    await fleet.node(holding(diary, release), capacity=3, lease_ttl_s=1.0)
    await diary.counts(4)
    assert len({worker for _, worker in diary.entries}) == 2
    release.set()
    for ref in refs:
        assert not isinstance(ref, PoolError)
        await ref.result(timeout_s=30)


async def test_a_worker_that_joins_does_not_wait_for_the_next_renewal(fleet: Fleet) -> None:
    """It asks at once what waits for it; here the next renewal is two minutes away."""
    handlers = Handlers()
    where(handlers)
    node = await fleet.node(lease_ttl_s=600.0)
    ref = await node.options(allow_unknown=True).dispatch("where", "k")
    worker = await node.add_worker(handlers)
    assert await ref.result(timeout_s=30) == worker.id


async def test_a_backlog_larger_than_all_slots_drains(fleet: Fleet) -> None:
    handlers, both, workers = Handlers(), anyio.Event(), set()

    @handlers.job("where")
    async def where_run(job: Job) -> None:
        workers.add(job.worker)
        if len(workers) == 2:
            both.set()
        await both.wait()  # else the first might be done before the second is there

    client = await fleet.node()
    refs = await client.dispatch_many(where_run, [f"k{n}" for n in range(1500)])
    await fleet.node(handlers, capacity=2)
    await fleet.node(handlers, capacity=2)
    for ref in refs:
        assert not isinstance(ref, PoolError)
        await ref.result(timeout_s=30)


# --- placement ----------------------------------------------------------------------------------


async def test_a_key_goes_to_the_same_worker_whoever_dispatches_it(fleet: Fleet) -> None:
    handlers = Handlers()
    where(handlers)
    nodes = [await fleet.node(handlers) for _ in range(3)]
    client = await fleet.node()
    for node in nodes:
        await fleet.knows(node, 3)
    found = [await places(node, KEYS) for node in (*nodes, client)]
    assert found[0] == found[1] == found[2] == found[3]
    assert len(set(found[0].values())) == 3


async def test_a_worker_that_leaves_gives_away_its_own_keys_and_no_others(fleet: Fleet) -> None:
    handlers = Handlers()
    where(handlers)
    nodes = [await fleet.node(handlers) for _ in range(3)]
    await fleet.knows(nodes[0], 3)
    before = await places(nodes[0], KEYS)
    [gone] = [info.id for info in nodes[0].workers if info.node == nodes[2].id]
    await fleet.leave(nodes[2])
    await fleet.knows(nodes[0], 2)
    after = await places(nodes[0], KEYS)
    moved = {key for key in KEYS if before[key] != after[key]}
    assert moved == {key for key in KEYS if before[key] == gone}


async def test_a_label_brings_its_keys_back_after_a_restart(fleet: Fleet) -> None:
    handlers = Handlers()
    where(handlers)
    labels = ["a", "b", "c"]
    nodes = [await fleet.node(handlers, label=label) for label in labels]
    await fleet.knows(nodes[0], 3)

    async def by_label() -> dict[str, str]:
        names = {info.id: info.label for info in nodes[0].workers}
        return {key: names[worker] for key, worker in (await places(nodes[0], KEYS)).items()}

    before = await by_label()
    await fleet.leave(nodes[2])
    nodes[2] = await fleet.node(handlers, label="c")
    await fleet.knows(nodes[0], 3)
    assert await by_label() == before


async def test_weights_share_the_keys_out(fleet: Fleet) -> None:
    handlers = Handlers()
    where(handlers)
    heavy = await fleet.node(handlers, weight=9.0, label="heavy", capacity=300)
    await fleet.node(handlers, weight=1.0, label="light", capacity=300)
    await fleet.knows(heavy, 2)
    [id_of_heavy] = [info.id for info in heavy.workers if info.label == "heavy"]
    found = Counter((await places(heavy, [f"key-{n}" for n in range(300)])).values())
    assert 0.8 < found[id_of_heavy] / 300 < 0.98


async def test_a_job_goes_only_to_workers_that_know_its_handler(fleet: Fleet) -> None:
    some, others = Handlers(), Handlers()
    where(some)

    @others.job("other")
    async def other(job: Job) -> None:
        return

    await fleet.node(some)
    node = await fleet.node(others)
    [knows] = [info.id for info in node.workers if "where" in info.handlers]
    assert set((await places(node, KEYS)).values()) == {knows}


async def test_a_full_worker_is_passed_over_for_one_with_room(fleet: Fleet, diary: Diary) -> None:
    release = fleet.gate()
    nodes = [await fleet.node(holding(diary, release), capacity=1) for _ in range(2)]
    await fleet.knows(nodes[0], 2)
    keys = [f"k{n}" for n in range(600)]
    answers = await nodes[0].dispatch_many("hold", keys)
    assert not [a for a in answers if isinstance(a, PoolError)]
    await diary.counts(2)
    assert len({worker for _, worker in diary.entries}) == 2
    release.set()
    for ref in answers:
        assert not isinstance(ref, PoolError)
        await ref.result(timeout_s=30)


# --- leaving ------------------------------------------------------------------------------------


async def test_leaving_lets_finite_jobs_end_within_the_grace(fleet: Fleet, diary: Diary) -> None:
    release = fleet.gate()
    node = await fleet.node(holding(diary, release))
    client = await fleet.node()
    ref = await client.dispatch("hold", "k")
    await diary.counts(1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(fleet.leave, node)
        await fleet.until(lambda: node.workers and node.workers[0].is_draining)
        release.set()
    assert (await ref.result(timeout_s=30)) == diary.entries[0][1]


async def test_after_the_grace_jobs_go_elsewhere_without_burning_an_attempt(
    fleet: Fleet, diary: Diary
) -> None:
    release = fleet.gate()
    node = await fleet.node(holding(diary, release), grace_s=0.1)
    client = await fleet.node()
    ref = await client.dispatch("hold", "k")
    await diary.counts(1)
    await fleet.leave(node)
    assert (await ref.status()).state == "unassigned"
    await fleet.node(holding(diary, release))
    await diary.counts(2)
    status = await ref.status()
    assert (status.attempt, status.crashes) == (1, 0)
    release.set()
    await ref.result(timeout_s=30)


async def test_a_drained_node_stays_a_client(fleet: Fleet, diary: Diary) -> None:
    release = fleet.gate()
    node = await fleet.node(holding(diary, release))
    await node.dispatch("serve", "k")
    await diary.counts(1)
    other = await fleet.node(holding(diary, release), settle_delay_s=60.0)
    await node.drain()
    await diary.counts(2)
    assert node.state == "drained"
    with anyio.fail_after(SOON_S):
        await node.wait_drained()
    await fleet.until(lambda: [info.node for info in node.workers] == [other.id])
    with pytest.raises(JobExists):
        await node.dispatch("serve", "k")
    await node.notify("k", 1)
    await node.stop("k", timeout_s=30)
    await node.drain()  # twice is fine
    with pytest.raises(NotRunning, match="drained"):
        await node.add_worker(holding(diary, release))
    assert [info.node for info in node.workers] == [other.id]


async def test_a_worker_that_comes_as_its_node_drains_is_refused(
    fleet: Fleet, diary: Diary
) -> None:
    """It has been asked for before, and what its handlers need has only just come."""
    coming, came = anyio.Event(), anyio.Event()

    @asynccontextmanager
    async def slow(_: Node) -> AsyncIterator[None]:
        coming.set()
        await came.wait()
        yield

    node, needy = await fleet.node(), Handlers(lifespan=slow)

    @needy.job("needs")
    async def needs(_: Job) -> None: ...

    async def add() -> None:
        with pytest.raises(NotRunning, match="draining"):
            await node.add_worker(needy)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(add)
        await coming.wait()
        await node.drain()
        came.set()
    assert not node.workers


async def test_shutdown_drains_every_node_and_keeps_what_is_open_for_the_next_start(
    fleet: Fleet, diary: Diary
) -> None:
    release = fleet.gate()
    nodes = [await fleet.node(holding(diary, release), grace_s=0.1) for _ in range(3)]
    keys = [f"k{n}" for n in range(6)]
    for key in keys:
        await nodes[0].dispatch("serve", key)
    await diary.counts(6)
    with anyio.fail_after(SOON_S):
        await nodes[0].shutdown_pool()
        for node in nodes:
            await node.wait_drained()
    assert {node.state for node in nodes} == {"drained"}
    records = [fleet.record(key) for key in keys]
    assert [record and record.state for record in records] == ["unassigned"] * 6
    for node in nodes:
        await fleet.leave(node)
    diary.entries.clear()
    again = await fleet.node(holding(diary, release))  # an earlier shutdown does not concern it
    await diary.counts(6)
    assert again.state == "open"
    assert sorted(key for key, _ in diary.entries) == keys


async def test_a_node_that_leaves_is_left_out_at_once_and_owns_nothing(
    fleet: Fleet, diary: Diary
) -> None:
    """G-06: nothing needs reaping after a planned exit."""
    release = fleet.gate()
    release.set()
    node = await fleet.node(holding(diary, release))
    client = await fleet.node()
    refs = [await client.dispatch("serve", f"k{n}") for n in range(5)]
    await diary.counts(5)
    [worker] = [info.id for info in node.workers]
    await fleet.leave(node)
    for ref in refs:
        assert (await ref.status()).state == "unassigned"
    names = [key for key in fleet.key_names() if worker in key or node.id in key]
    assert names == []
    assert not fleet.client.hexists(fleet.names.open, worker)
    assert fleet.client.hget(fleet.names.cleanup, f"{worker}.1") == b"done"  # for late callers


async def test_two_nodes_joining_and_leaving_by_turns_lose_nothing(
    fleet: Fleet, diary: Diary
) -> None:
    """G-01, G-05: a rolling deployment; every service runs in the end, once."""
    release = fleet.gate()
    nodes = [await fleet.node(holding(diary, release))]
    client = await fleet.node()
    keys = [f"k{n}" for n in range(20)]
    for key in keys:
        await client.dispatch("serve", key)
    for _ in range(4):
        nodes.append(await fleet.node(holding(diary, release)))
        await fleet.leave(nodes.pop(0))

    async def all_run() -> bool:
        states = [await client.status(key) for key in keys]
        return all(status.state == "running" for status in states)

    await fleet.until(all_run)
    moves = Counter(event.key for event in fleet.all_seen(ServiceMoved))
    assert not moves or max(moves.values()) <= 4
    statuses = [await client.status(key) for key in keys]
    assert {(status.attempt, status.crashes) for status in statuses} == {(1, 0)}


# --- poison -------------------------------------------------------------------------------------


def suspect(fleet: Fleet, keys: list[str], *, grown: int = 0, lanes: int = 1) -> None:
    """Mark jobs that nobody owns as if they had just begun when their worker died."""
    marks = Marks(deaths=1 + grown, grown=grown, is_tried=True).pack()
    for key in keys:
        jobs = Names(fleet.pool, lane_of(key, lanes)).jobs
        text: Any = fleet.client.hget(jobs, key)
        fields = text.decode().split("|")
        fields[7], fields[9] = fields[7] + "a", marks
        fleet.client.hset(jobs, key, "|".join(fields))


@pytest.fixture
def begun(diary: Diary) -> Handlers:
    """Return a service that notes when it begins, and never ends."""
    handlers = Handlers()

    @handlers.service("serve")
    async def serve(job: Job) -> None:
        diary.note(job.key, time.monotonic())
        await anyio.sleep_forever()

    return handlers


async def test_suspects_begin_one_at_a_time_and_hold_nobody_up(
    fleet: Fleet, diary: Diary, begun: Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next death has one culprit; others pass them, and services that never end let go."""
    begins, began = Trials.begins, list[tuple[str, float, float, Any]]()

    def noted(self: Trials, run: Run, now_s: float) -> float:
        for_s = begins(self, run, now_s)
        [told] = fleet.client.hvals(fleet.names.trials) or [b""]
        began.append((run.key, now_s, for_s, told))
        return for_s

    monkeypatch.setattr(Trials, "begins", noted)
    client = await fleet.node()
    keys = [f"k{n}" for n in range(6)]
    for key in (*keys, "healthy"):
        await client.options(allow_unknown=True).dispatch("serve", key)
    suspect(fleet, keys[:1], grown=2)
    suspect(fleet, keys[1:])
    await fleet.node(begun)
    await diary.counts(7)
    assert {key for key, *_ in began} == {*keys}
    assert began[-1][0] == keys[0], "the one with most marks does not come last"
    for (_, at_s, for_s, _), (_, next_s, _, _) in pairwise(began):
        assert next_s - at_s >= for_s - TIMER_S
    order = [key for key, _ in diary.entries]
    assert order.index("healthy") < order.index(began[2][0])
    record = fleet.record(keys[0])
    assert record is not None
    assert re.fullmatch(rf"{record.epoch}\.\d\d\|{keys[0]}", began[-1][3].decode())
    await fleet.until(lambda: not fleet.client.exists(fleet.names.trials))


async def test_a_trial_begins_when_the_handler_is_called(
    fleet: Fleet, diary: Diary, begun: Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I36: it was launched, its process stood still until the trial was over, and the next suspect
    looked guilty.
    """
    begins, on_trial, times = Trials.begins, Worker._on_trial, list[tuple[str, bool]]()

    def noted(self: Trials, run: Run, now_s: float) -> float:
        times.append(("begins", run.is_called))
        return begins(self, run, now_s)

    def on_trial_noted(self: Worker, run: Run, for_s: float) -> None:
        if run.phase == "running":
            times.append(("counts until it has lived", run.is_called))
        on_trial(self, run, for_s)

    monkeypatch.setattr(Trials, "begins", noted)
    monkeypatch.setattr(Worker, "_on_trial", on_trial_noted)
    client = await fleet.node()
    await client.options(allow_unknown=True).dispatch("serve", "k")
    suspect(fleet, ["k"])
    await fleet.node(begun)
    await diary.counts(1)
    assert times == [("begins", True), ("counts until it has lived", True)]


async def test_of_all_lanes_one_at_most_has_somebody_on_trial(
    fleet: Fleet, diary: Diary, begun: Handlers
) -> None:
    """Lanes know nothing of each other: each would take its own last suspect for the culprit."""
    client = await fleet.node(lanes=3)
    keys = [f"k{n}" for n in range(12)]
    assert len({lane_of(key, 3) for key in keys}) == 3
    for key in keys:
        await client.options(allow_unknown=True).dispatch("serve", key)
    suspect(fleet, keys, lanes=3)
    await fleet.node(begun, lanes=3)
    await diary.counts(12)

    def trials() -> list[bytes]:
        found: Any = [fleet.client.hvals(Names(fleet.pool, k).trials) for k in range(3)]
        return [text for lane in found for text in lane]

    await fleet.until(lambda: not trials())


async def test_all_suspects_have_begun_in_time_however_many_they_are(
    fleet: Fleet, diary: Diary, begun: Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G-06: what each is given to show itself becomes less."""
    monkeypatch.setattr("pool.jobs.trials.TRIALS_S", 1.0)
    client = await fleet.node()
    keys = [f"k{n}" for n in range(80)]
    for key in keys:
        await client.options(allow_unknown=True).dispatch("serve", key)
    suspect(fleet, keys)
    with stopwatch() as watch:
        await fleet.node(begun)
        await diary.counts(80)
    times = sorted(at_s for _, at_s in diary.entries)
    assert times[-1] - times[0] > 0.5
    assert watch.took_s(times[0], times[-1]) < 80 * TRIAL_S * 0.75


async def test_suspects_that_wait_for_a_slot_go_where_one_is_free(
    fleet: Fleet, diary: Diary, begun: Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that stays took the only slot: the others do not wait there for half of a TTL."""
    ttl_s = 20 * SOON_S  # four times as long until it is renewed
    monkeypatch.setattr(
        Executor, "ahead", lambda self: 2 if self.capacity == 1 else 0
    )  # as lanes do
    client = await fleet.node(lease_ttl_s=ttl_s)
    keys = [f"k{n}" for n in range(3)]
    for key in keys:
        await client.options(allow_unknown=True).dispatch("serve", key)
    suspect(fleet, keys)
    full = await fleet.node(begun, capacity=1, lease_ttl_s=ttl_s)
    await diary.counts(1)
    (worker,) = fleet.workers(full)
    await fleet.until(lambda: len(worker.runs) == 3)
    with anyio.fail_after(SOON_S):
        await fleet.node(begun, lease_ttl_s=ttl_s)
        await diary.counts(3)


async def test_a_slot_that_was_to_be_prepared_for_a_job_that_is_lost_is_free_at_once(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its payload may come over a slow line: nobody waits for that beside a free slot."""
    handlers, asked, come = Handlers(), anyio.Event(), anyio.Event()

    @handlers.job("size")
    async def size(job: Job, value: bytes) -> int:
        return len(value)

    node = await fleet.node(handlers, capacity=1)
    [worker] = fleet.workers(node)

    async def fetch(_: Executor, run: Run) -> None:
        asked.set()
        await come.wait()

    monkeypatch.setattr(Executor, "_fetch", fetch)
    await node.dispatch("size", "large", b"p" * 200_000)
    with anyio.fail_after(SOON_S):
        await asked.wait()
    monkeypatch.undo()
    assert worker._executor.left() == 0
    worker._cancel(worker.runs["large"], "lost")
    assert (worker.runs, worker._executor.left()) == ({}, 1)
    come.set()


async def test_a_worker_that_has_something_left_to_say_is_not_idle(fleet: Fleet) -> None:
    """It may be about a key that it does not run: whoever leaves says it before."""
    where(handlers := Handlers())
    [worker] = fleet.workers(await fleet.node(handlers))
    box, told = worker._lanes[0].box, [worker.is_idle]
    box.add(OverEdge("k", 1, "nobody"), None)
    told.append(worker.is_idle)
    box.flush()
    told.append(worker.is_idle)
    assert told == [True, False, False]
    await fleet.until(lambda: worker.is_idle)


async def test_a_worker_that_a_script_calls_gone_joins_again_without_being_told_by_a_renewal(
    fleet: Fleet,
) -> None:
    mine, may_end = Handlers(), fleet.gate()

    @mine.job("waits")
    async def waits(job: Job) -> None:
        await may_end.wait()

    node = await fleet.node(mine, lease_ttl_s=600.0)  # so long that no renewal comes in between
    [worker] = fleet.workers(node)
    name, told = worker.target(0).name, list[tuple[int, str]]()
    join_again = worker.on_gone

    def on_gone(lane: int, identity: str) -> None:
        told.append((lane, identity))
        join_again(lane, identity)

    worker.on_gone = on_gone
    ref = await node.dispatch(waits, "k")
    await ref.started(timeout_s=30)
    fleet.client.zrem(fleet.names.keepalive, name)
    may_end.set()
    await fleet.until(lambda: told)
    assert set(told) == {(0, name)}
    await fleet.until(lambda: worker.target(0).name != name)


async def test_a_worker_whose_lane_counts_otherwise_twice_in_a_row_compares(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once may be a start or an end that was under way when the lane counted."""
    node = await fleet.node(Handlers(), lease_ttl_s=60.0)
    node_worker = await node.add_worker(Handlers())
    worker = next(w for w in fleet.workers(node) if w.id == node_worker.id)
    compared, asked_s = list[int](), worker.context.io.clock() + 60
    monkeypatch.setattr(Worker, "_reconcile", lambda _, lane: compared.append(lane))
    for counted, times in ((1, 0), (0, 0), (1, 0), (1, 1)):
        worker._on_tick(Ticked(0, asked_s, counted, was_away=False))
        assert len(compared) == times


async def test_what_is_handed_over_because_its_worker_drains_is_not_moved_as_well(
    fleet: Fleet, diary: Diary, begun: Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker was asking whether there is room when it was told to drain."""
    has_room, asked, may_go_on = Rebalancer._has_room, list[str](), anyio.Event()

    async def waits(self: Rebalancer, lane: int, target: Target) -> bool:
        answer = await has_room(self, lane, target)
        asked.append(target.id)
        await may_go_on.wait()
        return answer

    monkeypatch.setattr(Rebalancer, "_has_room", waits)
    node = await fleet.node(begun)
    keys = [f"k{n}" for n in range(8)]
    for key in keys:
        await (await node.dispatch("serve", key)).started(timeout_s=30)
    [worker] = fleet.workers(node)
    await fleet.node(begun)
    await fleet.until(lambda: asked)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(node.drain)
        await fleet.until(
            lambda: worker.is_draining and all(run.why for run in worker.runs.values())
        )
        may_go_on.set()
    await diary.counts(16)  # each has begun there, too
    assert not fleet.all_seen(ServiceMoved)


@pytest.mark.parametrize("why", ["stop", "timeout", "release"])
async def test_who_is_ended_for_its_leases_sake_may_be_ended_for_good_as_well(
    fleet: Fleet, why: Literal["stop", "timeout", "release"]
) -> None:
    """The first reason stands otherwise: that of a lease says only that it goes on later."""
    mine, may_end = Handlers(), fleet.gate()

    @mine.job("stubborn")
    async def stubborn(job: Job) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.move_on_after(SOON_S, shield=True):
                await may_end.wait()

    node = await fleet.node(mine)
    ref = await node.dispatch(stubborn, "k")
    await ref.started(timeout_s=30)
    [worker] = fleet.workers(node)
    run = worker.runs["k"]
    worker._cancel(run, "lease")
    worker._cancel(run, why, "enough")
    assert (run.why, run.cause) == (why, "enough")
    for other in ("lease", "stop", "release"):
        worker._cancel(run, other, "once more")
        assert (run.why, run.cause) == (why, "enough")
    may_end.set()
    await fleet.until(lambda: worker.runs.get("k") is not run)


async def test_suspects_that_wait_no_longer_take_no_share_of_the_others_time(
    fleet: Fleet, diary: Diary, begun: Handlers
) -> None:
    client = await fleet.node()
    keys = [f"k{n}" for n in range(4)]
    for key in keys:
        await client.options(allow_unknown=True).dispatch("serve", key)
    suspect(fleet, keys, grown=1)  # so long on trial that others still wait
    node = await fleet.node(begun)
    await diary.counts(1)
    [worker] = fleet.workers(node)
    [death] = worker.context.trials._waves.values()
    assert death.waiting == 3 * TRIAL_GROWTH  # each has outlived a trial
    worker._executor._forget_suspects()
    assert death.waiting == 0


async def test_what_ended_without_a_lease_is_told_before_a_worker_compares(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await fleet.node(Handlers(), lease_ttl_s=60.0)
    await node.add_worker(Handlers())
    worker, done = fleet.workers(node)[0], list[str]()
    monkeypatch.setattr(Outbox, "flush", lambda _: done.append("flush"))
    monkeypatch.setattr(Worker, "_reconcile", lambda *_: done.append("compare"))
    worker._resume(0)
    assert done[:2] == ["flush", "compare"]


async def test_a_worker_pulls_at_last_whatever_its_lane_counts(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await fleet.node(Handlers(), lease_ttl_s=60.0)
    await node.add_worker(Handlers())
    worker, pulled = fleet.workers(node)[0], list[int]()
    now_s = worker.context.io.clock()
    monkeypatch.setattr(Worker, "_pull", lambda _, lane: pulled.append(lane))
    for ago_s, lanes in ((590.0, []), (601.0, [0])):
        worker._lanes[0].pulled_s = now_s - ago_s
        worker._on_tick(Ticked(0, now_s, 0, was_away=False))
        assert pulled == lanes


async def test_an_acknowledgement_that_was_refused_is_not_sent_again_for_what_has_ended(
    fleet: Fleet, begun: Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await fleet.node(begun, lease_ttl_s=60.0)
    await (await node.dispatch("serve", "k")).started(timeout_s=30)
    [worker] = fleet.workers(node)
    run, box = worker.runs["k"], worker._lanes[0].box
    edge = AcknowledgeEdge(run.key, run.start.epoch, run.start.id)
    for phase in ("preparing", "running"):
        monkeypatch.setattr(run, "phase", phase)
        box._take_back([(edge, run)])
        assert [*box._acks] == [run]
        box._acks.clear()
    monkeypatch.setattr(run, "phase", "settling")
    box._take_back([(edge, run)])
    assert not box._acks
    monkeypatch.undo()


async def test_a_slot_that_ends_unasked_is_a_crash_of_its_worker(fleet: Fleet) -> None:
    """What a stranger has cancelled would be a slot less, and nobody told."""
    node = await fleet.node(Handlers())
    await node.add_worker(Handlers())
    slots, slot = fleet.workers(node)[0]._executor, _Slot(None)
    with pytest.raises(PartEnded, match="stranger"):
        await slots._keep(slot)
    slot.over.set()
    await slots._keep(slot)


async def test_when_a_key_is_free_who_waits_for_it_is_called_once(
    fleet: Fleet, diary: Diary, begun: Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And when a trial is over what waits for a slot is looked at."""
    node = await fleet.node(begun, lease_ttl_s=60.0)
    await (await node.dispatch("serve", "k")).started(timeout_s=30)
    [worker], called = fleet.workers(node), list[str]()
    run = worker.runs["k"]
    run.then = (lambda: called.append("then"), lambda: called.append("then"))
    worker._executor.free(run)
    worker._executor.free(run)
    assert called == ["then"] * 2
    monkeypatch.setattr(Worker, "_give_back", lambda _: called.append("given back"))
    worker.handle(_TrialOver(run, False))
    assert called[2:] == ["given back"]
