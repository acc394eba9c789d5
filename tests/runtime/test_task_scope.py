"""The task scope: however it ends, all that lives in it ends; and a stranger ends nothing."""

from __future__ import annotations

import asyncio  # noqa: TID251 - what only its tasks can do
import gc
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest

from pool import Handlers, Job, Node, Settings
from pool.errors import NotRunning
from pool.events import (
    ActorCrashed,
    MapResynced,
    MapsUnreachable,
    NodeLeft,
    RunDisturbed,
    StreamsUnreachable,
    TasksCancelled,
    WorkerReaped,
)
from pool.maps.deltas import Set
from pool.maps.standalone import Standalone
from pool.redis.io.system import SystemIO
from pool.runtime.supervisor import Supervisor
from pool.runtime.task_scope import TaskScope

if TYPE_CHECKING:
    from tests.nodes import Diary, Fleet

pytestmark = pytest.mark.anyio

PATIENCE_S = 30.0


@pytest.fixture
def strangers(anyio_backend_name: str) -> None:
    if anyio_backend_name == "trio":
        pytest.skip("tasks that anybody may cancel are asyncio's")


def handlers_of(diary: Diary) -> Handlers:
    handlers = Handlers()

    @handlers.job("held", attempts_max=1)
    async def held(job: Job) -> None:
        diary.note("begun", job.attempt)
        await anyio.sleep_forever()

    @handlers.job("echo")
    async def echo(job: Job, value: int) -> int:
        return value

    return handlers


def ours() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("pool-")]


class Leaver:
    """A node in a task of its own, which a test cancels as it likes."""

    def __init__(self, fleet: Fleet, diary: Diary, **settings: Any) -> None:
        self.node = Node(
            fleet.pool,
            fleet.url,
            handlers=handlers_of(diary),
            settings=Settings(lease_ttl_s=1.0, grace_s=1.0, **settings),
            observers=(fleet.events.note,),
        )
        self.diary = diary

    async def live(self) -> None:
        async with self.node:
            await self.node.dispatch("held", "k")
            await anyio.sleep_forever()

    async def begun(self) -> asyncio.Task[None]:
        task = asyncio.create_task(self.live())
        await self.diary.has("begun", 1)
        return task


async def ended(task: asyncio.Task[None]) -> BaseException | None:
    with anyio.fail_after(PATIENCE_S):
        await asyncio.wait([task])
    return None if task.cancelled() else task.exception()


def task_of(name: str) -> asyncio.Task[Any]:
    [task] = [task for task in asyncio.all_tasks() if name in task.get_name()]
    return task


@pytest.mark.usefixtures("strangers")
async def test_who_is_cancelled_twice_while_leaving_has_left(fleet: Fleet, diary: Diary) -> None:
    """As by `asyncio.wait_for` around a block, or a server without patience."""
    before = ours()
    leaver = Leaver(fleet, diary)
    task = await leaver.begun()
    task.cancel()
    await fleet.until(lambda: leaver.node.state == "draining")
    task.cancel()
    await ended(task)
    assert task.cancelled()
    assert leaver.node.state == "closed"
    assert ours() == before
    assert fleet.all_seen(NodeLeft)
    fleet.is_audited = False  # its leases have not ended yet


async def test_an_error_while_leaving_ends_the_node_and_tells_what_it_leaves(
    fleet: Fleet, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = ours()
    leaver = Leaver(fleet, diary)
    node = leaver.node

    async def fail(_: float) -> int:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), anyio.fail_after(PATIENCE_S):  # noqa: PT012
        async with node:
            await node.dispatch("held", "k")
            await diary.has("begun", 1)
            monkeypatch.setattr(fleet_wiring(node), "leave", fail)
    assert node.state == "closed"
    assert ours() == before
    [left] = fleet.all_seen(NodeLeft)
    assert left.abandoned == 1
    fleet.is_audited = False  # its leases have not ended yet


def fleet_wiring(node: Node) -> Any:
    return node._wiring


async def test_a_node_that_a_part_has_ended_tells_what_it_leaves(
    fleet: Fleet, diary: Diary
) -> None:
    leaver = Leaver(fleet, diary, restarts_max=0)
    node = leaver.node

    async def crash() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), anyio.fail_after(PATIENCE_S):  # noqa: PT012
        async with node:
            await node.dispatch("held", "k")
            await diary.has("begun", 1)
            fleet_wiring(node).membership.spawn(crash)
            await anyio.sleep_forever()
    [left] = fleet.all_seen(NodeLeft)
    assert left.abandoned == 1
    fleet.is_audited = False


@pytest.mark.usefixtures("strangers")
async def test_a_strangers_cancellation_of_the_house_ends_nothing(
    fleet: Fleet, diary: Diary
) -> None:
    leaver = Leaver(fleet, diary)
    task = await leaver.begun()
    for name in ("TaskScope._live", "_wait_for_failure"):
        for _ in range(2):
            task_of(name).cancel()
            await anyio.sleep(0.01)
    node = leaver.node
    assert await (await node.dispatch("echo", "e", 1)).result(timeout_s=30) == 1
    assert node.state == "open"
    assert not fleet.all_seen(ActorCrashed)
    task.cancel()
    await ended(task)
    assert fleet.all_seen(NodeLeft)[0].abandoned == 0


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # of who had not begun
@pytest.mark.usefixtures("strangers")
async def test_who_cancels_all_tasks_burns_no_attempt(fleet: Fleet, diary: Diary) -> None:
    """A usual recipe to end a program: the node leaves in order, and gives its jobs back."""
    before = asyncio.all_tasks()
    leaver = Leaver(fleet, diary)
    task = await leaver.begun()
    for each in asyncio.all_tasks() - before:
        each.cancel()
    await ended(task)
    assert fleet.all_seen(RunDisturbed)
    # One line says it, and no part of ours is to be reported, nor a server that is there.
    assert len(fleet.all_seen(TasksCancelled)) == 1
    assert not fleet.all_seen(ActorCrashed)
    troubles = (MapsUnreachable, MapResynced, StreamsUnreachable)
    assert not [event for kind in troubles for event in fleet.all_seen(kind)]
    record = fleet.record("k")
    assert record is not None
    assert (record.owner, record.attempt) == ("", 1)
    assert fleet.all_seen(NodeLeft)[0].abandoned == 0


@pytest.mark.usefixtures("strangers")
async def test_a_house_that_nobody_will_leave_ends_with_its_loop(
    fleet: Fleet, diary: Diary
) -> None:
    """The task that opened it has ended: a program that forgot, at the end of its loop."""
    before = ours()
    leaver = Leaver(fleet, diary)
    node = leaver.node
    opener = asyncio.create_task(node.__aenter__())
    await asyncio.wait([opener])
    await node.dispatch("held", "k")
    await diary.has("begun", 1)
    assert fleet_wiring(node).down == ()  # a shell runs each line in a task of its own
    task_of("TaskScope._live").cancel()
    crash = await fleet.seen(ActorCrashed, actor="task scope")
    assert "did not leave" in crash.error
    assert node.state == "troubled"
    await fleet.until(lambda: ours() == before)
    with pytest.raises(NotRunning):
        await node.dispatch("echo", "e", 1)
    fleet.is_audited = False


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.usefixtures("strangers")
async def test_a_house_that_ends_unasked_ends_the_block_with_the_cause(
    fleet: Fleet, diary: Diary
) -> None:
    """A task that is cancelled before it begins ends its group, and that without a word."""
    leaver = Leaver(fleet, diary)
    task = await leaver.begun()
    supervisor, over = fleet_wiring(leaver.node)._supervisor, list[int]()
    supervisor.errand("never", anyio.sleep_forever, lambda: over.append(1))
    task_of("never").cancel()
    error = await ended(task)
    gc.collect()  # what never began is an unraisable warning, of this test
    assert "part='task scope'" in str(error)
    assert over == [1]
    fleet.is_audited = False


@asynccontextmanager
async def housed(heard: list[Any]) -> AsyncIterator[Supervisor]:
    task_scope = await TaskScope.open(SystemIO(), Settings(), heard.append)
    try:
        with anyio.fail_after(PATIENCE_S):
            yield task_scope.supervisor
    finally:
        await task_scope.leave(None, None, None)


async def test_an_errand_is_done_anew_after_a_crash_and_ends_nobody() -> None:
    heard: list[Any] = []
    tries, done = 0, anyio.Event()

    async def work() -> None:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise ZeroDivisionError
        done.set()

    async with housed(heard) as supervisor:
        supervisor.errand("work", work)
        await done.wait()
        assert supervisor.down == ()
    assert [event.actor for event in heard] == ["work"] * 2


@pytest.mark.usefixtures("strangers")
async def test_an_errand_that_a_stranger_cancels_is_done_anew() -> None:
    heard: list[Any] = []
    begun: list[asyncio.Task[Any]] = []

    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        begun.append(task)
        await anyio.sleep_forever()

    async with housed(heard) as supervisor:
        supervisor.errand("work", work)
        for times in (1, 2, 3):
            while len(begun) < times:  # noqa: ASYNC110 - nothing tells it
                await anyio.sleep(0.001)
            begun[-1].cancel()
    assert len(heard) >= 2
    assert all("stranger" in event.error for event in heard)


async def test_of_two_parts_of_one_name_none_hides_the_other() -> None:
    async with housed([]) as supervisor:
        one, other = supervisor.restarts(), supervisor.restarts()
        for restarts in (one, other):
            supervisor.fell("pool-reader", ZeroDivisionError(), restarts)
        supervisor.rose("pool-reader", one)
        assert [*supervisor.down] == ["pool-reader"]
        assert supervisor.count_down() == 1
        supervisor.rose("pool-reader", other)
        assert supervisor.count_down() == 0


async def test_nothing_begins_in_a_house_that_has_ended(fleet: Fleet, diary: Diary) -> None:
    """Foreign tasks are told so, while the body still waits behind a shield."""
    leaver = Leaver(fleet, diary, restarts_max=0)
    node, refused = leaver.node, list[type[Exception]]()

    async def crash() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), anyio.fail_after(PATIENCE_S):  # noqa: PT012
        async with node:
            fleet_wiring(node).membership.spawn(crash)
            with anyio.CancelScope(shield=True):
                await fleet.seen(ActorCrashed)
                await fleet.until(lambda: node._task_scope.has_crashed)
                for call in (node.add_worker(handlers_of(diary)), node.map("m").__aenter__()):
                    try:
                        await call
                    except Exception as error:  # noqa: BLE001 - the block would raise its own
                        refused.append(type(error))
    assert refused == [NotRunning] * 2
    fleet.is_audited = False


async def test_an_entry_that_names_more_lanes_than_there_are_ends_nobody(
    fleet: Fleet, diary: Diary
) -> None:
    node = await fleet.node(handlers_of(diary), lease_ttl_s=1.0)
    worker = "wzzzzzzzzzzz"
    entry = {
        "id": worker,
        "node": "nzzzzzzzzzzz",
        "handlers": ["x"],
        "capacity": 1,
        "weight": 1.0,
        "label": "",
        "version": "",
        "is_draining": False,
        "numbers": [1, 1, 1],
    }
    text = json.dumps(entry, separators=(",", ":")).encode()
    replica = fleet.wiring(node).replica
    await replica.write([Set(worker.encode(), text)], repeatable=True)
    await fleet.seen(WorkerReaped, identity=f"{worker}.1")
    await fleet.until(lambda: worker.encode() not in replica.items)
    assert node.state == "open"
    assert not fleet.all_seen(ActorCrashed)


@pytest.mark.usefixtures("strangers")
async def test_a_map_without_a_node_finds_its_pool_anew_whoever_is_cancelled(
    redis_url: str, pool_name: str
) -> None:
    told: list[Any] = []
    async with Standalone(pool_name, redis_url, settings=None, observers=(told.append,)) as alone:
        alone._on_lost()
        await anyio.lowlevel.checkpoint()
        task_of("refound").cancel()
        with anyio.fail_after(PATIENCE_S):
            while alone._is_opening:  # noqa: ASYNC110 - nothing tells it
                await anyio.sleep(0.01)
    assert [event.actor for event in told if isinstance(event, ActorCrashed)] == ["refound"]
