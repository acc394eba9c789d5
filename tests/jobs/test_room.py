"""A job begins where a slot is free, in the order of acceptance, and `started()` says so."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pool import Call, Handlers, Job, JobRef, PoolError
from pool.errors import JobParked, NotStarted, StartFailed
from pool.jobs.worker.executor import AHEAD_MAX, AHEAD_S, Pace
from pool.jobs.worker.worker import Worker
from pool.names import lane_of
from pool.redis.commands.edges import Changed
from pool.redis.commands.lane import Lane

if TYPE_CHECKING:
    from pool.jobs.run import Run
    from tests.nodes import Diary, Fleet

pytestmark = pytest.mark.anyio

LONG_TTL_S = 600.0  # a fifth of it, a renewal, is longer than anybody waits here
SOON_S = 30.0
HANGS_S = 0.2  # a lane whose pull has been under way for so long


def holding(diary: Diary, release: anyio.Event) -> Handlers:
    handlers = Handlers()

    @handlers.job("hold")
    async def hold(job: Job, way: str = "") -> None:
        diary.note(job.key, job.worker)
        if way == "nap":
            await anyio.sleep(0.001)
        elif way != "quick":
            await release.wait()

    @handlers.job("fail", backoff_s=3600, backoff_max_s=3600)
    async def fail(job: Job) -> None:
        raise ValueError("no door opened")

    @handlers.job("fail-once", attempts_max=1)
    async def fail_once(job: Job) -> None:
        raise ValueError("no door opened")

    return handlers


# --- room ---------------------------------------------------------------------------------------


async def test_nothing_waits_behind_a_long_one_while_another_worker_idles(
    fleet: Fleet, diary: Diary
) -> None:
    """D7: it was granted to the one whose slot was taken, and waited there for half a TTL."""
    release = anyio.Event()
    nodes = [
        await fleet.node(holding(diary, release), capacity=1, lease_ttl_s=LONG_TTL_S)
        for _ in range(4)
    ]
    await fleet.knows(nodes[0], 4)
    with anyio.fail_after(SOON_S):
        for n in range(4):
            await nodes[0].dispatch("hold", f"k{n}")
            await diary.counts(n + 1)
    assert len({worker for _, worker in diary.entries}) == 4
    release.set()


async def test_one_worker_does_not_take_the_backlog_of_others(fleet: Fleet, diary: Diary) -> None:
    """D7: the first to come pulled 256 for its one slot; the next ones found nothing to do."""
    release = anyio.Event()
    client = await fleet.node(lease_ttl_s=LONG_TTL_S)
    keys = [f"k{n}" for n in range(6)]
    await client.options(allow_unknown=True).dispatch_many("hold", keys)
    with anyio.fail_after(SOON_S):
        for n in range(3):
            await fleet.node(holding(diary, release), capacity=1, lease_ttl_s=LONG_TTL_S)
            await diary.counts(n + 1)
    assert [key for key, _ in diary.entries] == keys[:3]
    release.set()
    await diary.counts(6)


async def test_what_is_held_ahead_goes_back_when_no_slot_comes(fleet: Fleet, diary: Diary) -> None:
    """D7: quick ones before it have the worker hold more ahead; then one of them is long."""
    release = anyio.Event()
    client = await fleet.node(lease_ttl_s=LONG_TTL_S)
    many = client.options(allow_unknown=True)
    refs = await many.dispatch_many("hold", [f"long{n}" for n in range(2)])
    for n in range(200):
        assert not isinstance(await many.dispatch("hold", f"quick{n}", "quick"), PoolError)
    assert len(refs) == 2
    for _ in range(3):
        await fleet.node(holding(diary, release), capacity=1, lease_ttl_s=LONG_TTL_S)
    await diary.counts(202)  # the two long ones keep a worker each; the third does all the others
    release.set()


async def test_what_ends_in_one_turn_of_the_loop_goes_out_as_one_batch(
    fleet: Fleet, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first end went alone, and all others waited for its answer."""
    batches: list[int] = []
    advance = Lane.advance

    def counted(lane: Lane, guard: Any, source: str, edges: Any, **options: Any) -> Any:
        batches.append(len(edges))
        return advance(lane, guard, source, edges, **options)

    monkeypatch.setattr(Lane, "advance", counted)
    node = await fleet.node(holding(diary, anyio.Event()), capacity=8, lease_ttl_s=LONG_TTL_S)
    refs = await node.dispatch_many("hold", [Call(f"k{n}", "quick") for n in range(8)])
    for ref in refs:
        assert not isinstance(ref, PoolError)
        await ref.result()
    assert batches == [8]


async def test_lanes_share_the_slots_of_a_worker(fleet: Fleet, diary: Diary) -> None:
    """Each was shown its share of all, and as many beyond: now what is free."""
    release = anyio.Event()
    nodes = [
        await fleet.node(holding(diary, release), capacity=2, lanes=4, lease_ttl_s=LONG_TTL_S)
        for _ in range(3)
    ]
    await fleet.knows(nodes[0], 3)
    with anyio.fail_after(SOON_S):
        for n in range(6):
            await nodes[0].dispatch("hold", f"k{n}")
            await diary.counts(n + 1)
        waits = await nodes[0].dispatch("hold", "waits")
        release.set()
        await waits.started()


async def test_a_lane_that_hangs_keeps_no_slot_from_the_others(
    fleet: Fleet, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a pull may bring was kept free for it until its call was given up."""
    release = anyio.Event()
    client = await fleet.node(lanes=2, lease_ttl_s=LONG_TTL_S)
    node = await fleet.node(holding(diary, release), capacity=1, lanes=2, lease_ttl_s=LONG_TTL_S)
    [worker] = fleet.workers(node)
    await fleet.knows(client, 1)
    key = next(f"k{n}" for n in range(99) if lane_of(f"k{n}", 2) == 1)
    hung = worker._lanes[0]
    hung.is_pulling, hung.coming = True, 1
    clock = worker.context.io.clock
    began_s = clock()
    # It never looks as if it were later than that: who thinks that it comes waits for ever.
    late = property(lambda _: max(began_s, clock() - HANGS_S), lambda *_: None)
    monkeypatch.setattr(type(hung), "pulled_s", late)
    with anyio.fail_after(SOON_S):
        await (await client.dispatch("hold", key, "quick")).result()  # with its end, it is told
        await client.dispatch("hold", key)
        await diary.counts(2)
    release.set()


def test_what_is_held_ahead_follows_what_was_measured() -> None:
    pace = Pace(60)
    assert pace.ahead(10.0) == 0
    pace.took_s.extend([0.9 * AHEAD_S] * 50)
    assert [pace.ahead(10.0 + s) for s in (0.0, 0.09, 0.11, 0.2)] == [0, 0, 9, 9]
    pace.took_s.extend([1.2 * AHEAD_S] * 50)  # they came in a burst, and so may the next
    assert pace.ahead(10.3) == 0
    pace.took_s.extend([0.0] * 60)  # as many as are begun at once: there is no need to wait
    assert pace.ahead(10.34) == 30
    pace.took_s.extend([0.0] * 90)
    assert pace.ahead(10.34) == 180  # who looks at once sees no more than twice as many
    pace.took_s.extend([0.0] * 1000)
    assert pace.ahead(10.35) == AHEAD_MAX
    assert pace.ahead(10.5) == 0


async def test_who_is_alone_gives_nothing_back(
    fleet: Fleet, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would pull it again; as soon as there is another, that one gets it."""
    release = anyio.Event()
    client = await fleet.node(lease_ttl_s=LONG_TTL_S)
    node = await fleet.node(holding(diary, release), capacity=1, lease_ttl_s=LONG_TTL_S)
    [worker] = fleet.workers(node)
    worker._executor.pace.last = 3
    worker._executor.pace.since_s = math.inf  # what was measured stands
    looked, give_back = 0, Worker._give_back

    def counted(worker: Worker) -> None:
        nonlocal looked
        looked += worker._executor.is_holding
        give_back(worker)

    monkeypatch.setattr(Worker, "_give_back", counted)
    await fleet.knows(client, 1)
    await client.dispatch_many("hold", [f"k{n}" for n in range(6)])
    worker._pull(0)  # as it does when it hears of them
    with anyio.fail_after(SOON_S):
        await fleet.until(lambda: len(worker.runs) == 4)
        looked = 0
        await fleet.until(lambda: looked > 4)
        assert len(worker.runs) == 4
        await fleet.node(holding(diary, release), capacity=5, lease_ttl_s=LONG_TTL_S)
        await diary.counts(6)
    release.set()


# --- starts -------------------------------------------------------------------------------------


@pytest.fixture
def acknowledged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys whose starts were acknowledged."""
    keys: list[str] = []
    on_acknowledged = Worker._on_acknowledged

    def noted(worker: Worker, run: Run, changed: Changed) -> None:
        keys.append(run.key)
        on_acknowledged(worker, run, changed)

    monkeypatch.setattr(Worker, "_on_acknowledged", noted)
    return keys


async def test_what_lasts_is_acknowledged_and_what_ends_at_once_is_not(
    fleet: Fleet, diary: Diary, acknowledged: list[str]
) -> None:
    """A batch of ends took along the acknowledgements of all that had been given a slot."""
    release = anyio.Event()
    client = await fleet.node(lease_ttl_s=LONG_TTL_S)
    many = client.options(allow_unknown=True)
    await many.dispatch("hold", "long")
    for n in range(400):
        assert not isinstance(await many.dispatch("hold", f"quick{n}", "quick"), PoolError)
    await fleet.node(holding(diary, release), capacity=50, lease_ttl_s=LONG_TTL_S)
    await diary.counts(401)
    with anyio.fail_after(SOON_S):
        await fleet.until(lambda: acknowledged)  # under load, too
    release.set()
    assert acknowledged == ["long"]


async def test_who_ends_soon_is_not_acknowledged(
    fleet: Fleet, diary: Diary, acknowledged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of ends go out, and leave what has not lasted."""
    monkeypatch.setattr("pool.jobs.worker.outbox.ACK_DELAY_S", LONG_TTL_S)
    release = anyio.Event()
    node = await fleet.node(holding(diary, release), capacity=50, lease_ttl_s=LONG_TTL_S)
    await (await node.dispatch("hold", "first")).started()
    refs = await node.dispatch_many("hold", [Call(f"k{n}", "nap") for n in range(200)])
    for ref in refs:
        assert not isinstance(ref, PoolError)
        await ref.result()
    release.set()
    assert acknowledged == ["first"]


async def test_the_first_start_of_an_idle_worker_is_told_without_a_pause(
    fleet: Fleet, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D8: its acknowledgement waited for others to go with it."""
    monkeypatch.setattr("pool.jobs.worker.outbox.ACK_DELAY_S", LONG_TTL_S)
    release = anyio.Event()
    await fleet.node(holding(diary, release), lease_ttl_s=LONG_TTL_S)
    client = await fleet.node(lease_ttl_s=LONG_TTL_S)
    ref = await client.dispatch("hold", "k")
    await ref.started(timeout_s=SOON_S)
    release.set()
    await ref.result()


async def test_a_start_that_failed_is_told(fleet: Fleet, diary: Diary) -> None:
    """D8: it was tried again, and nobody heard of it."""
    release = anyio.Event()
    worker = await fleet.node(holding(diary, release))
    client = await fleet.node()
    for node in (worker, client):
        ref = await node.dispatch("fail", node.id)
        with pytest.raises(StartFailed, match="no door opened"):
            await ref.started(timeout_s=SOON_S)
        with pytest.raises(StartFailed, match="no door opened"):
            await ref.started(timeout_s=SOON_S)  # whoever comes later, too
    ref = await client.options(delay_s=0.3).dispatch("fail", "later")
    with anyio.fail_after(SOON_S), pytest.raises(StartFailed, match="no door opened"):
        await ref.started()  # who waited before is told, and need not ask again


async def test_what_was_given_up_has_not_started(fleet: Fleet, diary: Diary) -> None:
    release = anyio.Event()
    node = await fleet.node(holding(diary, release))
    ref = await node.dispatch("fail-once", "k")
    with pytest.raises(JobParked):
        await ref.started(timeout_s=SOON_S)


async def test_what_a_start_waits_for_is_told(fleet: Fleet, diary: Diary) -> None:
    release = anyio.Event()
    client = await fleet.node()

    async def why(ref: JobRef[Any]) -> str:
        with pytest.raises(NotStarted) as refused:
            await ref.started(timeout_s=0.2)
        assert (await ref.status()).why == refused.value.why
        return refused.value.why

    ref = await client.options(allow_unknown=True).dispatch("hold", "early")
    assert await why(ref) == "no worker takes 'hold'"
    await fleet.node(holding(diary, release), capacity=1)
    await ref.started(timeout_s=SOON_S)
    assert not (await ref.status()).why
    assert await why(await client.dispatch("hold", "late")) == "all slots for 'hold' are taken"
    later = await client.options(delay_s=60).dispatch("hold", "delayed")
    assert await why(later) == "its delay is not over"
    release.set()
