"""House rules: what a node must never do to the program it lives in."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.from_thread
import attrs
import pytest
import structlog
from structlog.testing import capture_logs

from pool import Handlers, Job, Node, PoolError, ReplicatedMap
from pool.errors import ConfigError, NotRunning
from pool.events import ActorCrashed, LeaseLost, LoopHung, NodeJoined, NodeLeft, StoreTroubled
from pool.jobs.fleet.reaper import Reaper
from pool.runtime.observers import log_observer

if TYPE_CHECKING:
    from tests.nodes import Diary, Fleet

pytestmark = pytest.mark.anyio

handlers = Handlers()
tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


@handlers.job("echo")
async def echo(job: Job, value: Any = None) -> Any:
    return value


@contextlib.contextmanager
def bound(**words: str) -> Iterator[None]:
    with structlog.contextvars.bound_contextvars(**words):
        yield


def ours() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("pool-")]


# --- context ------------------------------------------------------------------------------------


async def test_handlers_log_in_the_context_of_whoever_opened_the_node(
    a_fleet: Fleet, diary: Diary
) -> None:
    """Whoever dispatches, adds a worker or closes has no say in it."""
    mine = Handlers()

    @mine.job("context")
    async def context(job: Job) -> None:
        diary.note("async", structlog.contextvars.get_contextvars().get("request"))

    @mine.job("thread")
    def thread(job: Job) -> None:
        found = structlog.contextvars.get_contextvars().get("request")
        anyio.from_thread.run_sync(diary.note, "sync", found)

    async with a_fleet.running():
        with bound(request="opener"):
            node = await a_fleet.node(mine)
        with bound(request="dispatcher"):
            await (await node.dispatch(context, "a")).result(timeout_s=30)
            await (await node.dispatch(thread, "b")).result(timeout_s=30)
        [worker] = a_fleet.workers(node)
        await node._remove_worker(worker.id, None)
        with bound(request="adder"):
            await node.add_worker(mine)
        await (await node.dispatch(context, "c")).result(timeout_s=30)
    assert diary.entries == [("async", "opener"), ("sync", "opener"), ("async", "opener")]


async def test_a_handler_cannot_change_the_context_of_the_next_one(
    fleet: Fleet, diary: Diary
) -> None:
    """Handlers share slots, and nothing else."""
    mine = Handlers()

    @mine.job("bind")
    async def bind(job: Job) -> None:
        diary.note(tenant.get())
        tenant.set(job.key)

    node = await fleet.node(mine, capacity=1)
    for key in ("a", "b", "c"):
        await (await node.dispatch(bind, key)).result(timeout_s=30)
    assert diary.entries == ["nobody", "nobody", "nobody"]


async def test_the_openers_own_context_is_left_as_it_was(fleet: Fleet) -> None:
    with bound(request="mine"):
        node = await fleet.node(handlers)
        await (await node.dispatch(echo, "k")).result(timeout_s=30)
        assert structlog.contextvars.get_contextvars() == {"request": "mine"}


# --- leftovers ----------------------------------------------------------------------------------


async def test_a_closed_node_leaves_no_thread_and_no_task(fleet: Fleet, diary: Diary) -> None:
    before = ours()
    tasks_before = len(anyio.get_running_tasks())
    mine = Handlers()

    @mine.service("serve")
    async def serve(job: Job) -> None:
        diary.note(job.key)
        await anyio.sleep_forever()

    async with Node(fleet.pool, fleet.url, handlers=mine, observers=()) as node:
        await node.dispatch(serve, "k")
        await diary.counts(1)
        assert len(ours()) > len(before)
        assert len(anyio.get_running_tasks()) > tasks_before
    assert ours() == before
    assert len(anyio.get_running_tasks()) == tasks_before
    gc.collect()  # an unclosed socket would warn, and warnings are errors here


async def test_a_node_that_never_opened_leaves_nothing(fleet: Fleet) -> None:
    before, tasks_before = ours(), len(anyio.get_running_tasks())
    for url in ("unix:///nowhere", "redis://127.0.0.1:1"):
        with pytest.raises(PoolError):
            async with Node(fleet.pool, url, settings=fleet.settings, observers=()):
                pass
    assert ours() == before
    assert len(anyio.get_running_tasks()) == tasks_before
    Node(fleet.pool, fleet.url)  # described and never entered: nothing to close


async def test_a_pool_at_rest_keeps_only_what_it_must_remember(
    a_fleet: Fleet, diary: Diary
) -> None:
    """I23: no lease, no entry, no set, no payload is left of nodes that have left."""
    mine = Handlers()

    @mine.service("serve")
    async def serve(job: Job) -> None:
        diary.note(job.key)
        async for _ in job.notifications():
            pass

    mine.job("echo")(echo.fn)
    async with a_fleet.running():
        nodes = [await a_fleet.node(mine) for _ in range(2)]
        refs = await nodes[0].dispatch_many("echo", [f"k{n}" for n in range(50)])
        for ref in refs:
            assert not isinstance(ref, PoolError)
            await ref.result(timeout_s=30)
        service = await nodes[0].dispatch(serve, "s")
        await diary.counts(1)
        await nodes[1].notify("s", "x" * 5000)
        await service.stop(timeout_s=30)
    kinds = {key.partition(":")[0] for key in a_fleet.key_names()}
    remembered = {"config", "lane", "handlers", "result", "kept", "cleanup", "keepalive", "journal"}
    of_the_map = {"map-data", "map-log", "map-meta", "maps"}  # the last, once it was probed
    assert kinds <= remembered | of_the_map
    assert a_fleet.client.hvals(a_fleet.names.cleanup) == [b"done"] * a_fleet.client.hlen(
        a_fleet.names.cleanup
    )


# --- one life -----------------------------------------------------------------------------------


async def test_a_node_lives_once(fleet: Fleet) -> None:
    node = Node(fleet.pool, fleet.url, settings=fleet.settings, observers=())
    async with node:
        with pytest.raises(NotRunning):
            await node.__aenter__()
        first_id = node.id
    with pytest.raises(NotRunning) as refused:
        await node.__aenter__()
    assert refused.value.state == "closed"
    async with Node(fleet.pool, fleet.url, settings=fleet.settings, observers=()) as again:
        assert again.id != first_id


async def test_nodes_may_be_nested_in_one_task(fleet: Fleet, url_of: Callable[[str], str]) -> None:
    """Also of different pools: each has its own world."""
    settings, second = fleet.settings, f"{fleet.pool}-2"
    async with (
        Node(fleet.pool, fleet.url, handlers=handlers, settings=settings, observers=()) as outer,
        Node(fleet.pool, fleet.url, settings=settings, observers=()) as inner,
        Node(second, url_of(second), handlers=handlers, settings=settings, observers=()) as o,
    ):
        assert await (await inner.dispatch(echo, "k", 1)).result(timeout_s=30) == 1
        assert await (await o.dispatch(echo, "k", 2)).result(timeout_s=30) == 2
        assert len(outer.workers) == len(o.workers) == 1
        assert outer.id != o.id


async def test_what_the_body_raises_comes_out_as_it_is(fleet: Fleet) -> None:
    """No exception group around it, and the node has left in order."""
    with pytest.raises(KeyError, match="mine"):
        async with Node(
            fleet.pool, fleet.url, handlers=handlers, observers=(fleet.events.note,)
        ) as node:
            raise KeyError("mine")
    assert node.state == "closed"
    assert fleet.all_seen(NodeLeft)[-1].abandoned == 0


async def test_a_node_whose_scope_is_cancelled_leaves_in_order(fleet: Fleet, diary: Diary) -> None:
    """Services are handed over, not left to the reapers."""
    mine = Handlers()

    @mine.service("serve")
    async def serve(job: Job) -> None:
        diary.note(job.node_id)
        await anyio.sleep_forever()

    client = await fleet.node()
    with anyio.CancelScope() as scope:
        async with Node(
            fleet.pool, fleet.url, handlers=mine, settings=fleet.settings, observers=()
        ) as node:
            ref = await client.dispatch("serve", "k")
            await diary.counts(1)
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert node.state == "closed"
    assert (await ref.status()).state == "unassigned"


async def test_a_node_says_when_it_joined_and_left(a_fleet: Fleet) -> None:
    async with a_fleet.running():
        node = await a_fleet.node(handlers)
        joined = await a_fleet.seen(NodeJoined)
        assert (joined.pool, joined.node) == (a_fleet.pool, node.id)
        assert joined.server.split()[0] in ("valkey", "redis")
    assert [event.node for event in a_fleet.all_seen(NodeLeft)] == [node.id]


async def test_an_observer_that_raises_is_logged_and_ends_nothing(fleet: Fleet) -> None:
    """Observers are user code, called by every actor."""

    def bad(event: object) -> None:
        raise KeyError("observer")

    with capture_logs() as logs:
        node = await fleet.node(handlers, observers=(bad, fleet.events.note))
        assert await (await node.dispatch(echo, "k", 1)).result(timeout_s=30) == 1
    assert {"of": "node.joined", "event": "observer.failed"}.items() <= logs[0].items()
    assert fleet.all_seen(NodeJoined) != []


# --- crashes of our own -------------------------------------------------------------------------


@attrs.frozen
class Foreign:
    """A message that no actor knows."""


class Bug(Exception):
    pass


Break = Callable[[Any, int], None]


@pytest.fixture
def break_it(monkeypatch: pytest.MonkeyPatch) -> Break:
    """Return what makes an actor's next messages raise, as a bug of ours would."""

    def break_it(actor: Any, times: int) -> None:
        handle, left = type(actor).handle, [times]

        def broken(self: Any, message: Any) -> None:
            if self is actor and left[0]:
                left[0] -= 1
                raise Bug("of ours")
            handle(self, message)

        monkeypatch.setattr(type(actor), "handle", broken)

    return break_it


@pytest.mark.parametrize(
    "name", ["_reaper", "_sweeper", "_keepalive", "_listener", "dispatcher", "waiters"]
)
async def test_an_actor_that_crashes_is_restarted_and_the_node_goes_on(
    fleet: Fleet, name: str, break_it: Break
) -> None:
    """I25: said loudly, and nothing that was asked for is lost."""
    node = await fleet.node(handlers, lease_ttl_s=1.0)
    actor = getattr(fleet.wiring(node), name)
    break_it(actor, 1)
    actor.tell(Foreign())
    crashed = await fleet.seen(ActorCrashed)
    assert (crashed.actor, crashed.error, crashed.restarts) == (actor.name, "Bug: of ours", 1)
    ref = await node.options(delay_s=0.1).dispatch(echo, "k", 1)
    assert await ref.result(timeout_s=30) == 1
    assert node.state == "open"


async def test_a_worker_that_crashes_starts_what_it_ran_again_under_the_same_epoch(
    fleet: Fleet, diary: Diary, break_it: Break
) -> None:
    mine = Handlers()

    @mine.service("serve")
    async def serve(job: Job) -> None:
        diary.note(job.epoch, job.attempt)
        await anyio.sleep_forever()

    mine.job("echo")(echo.fn)
    node = await fleet.node(mine)
    await node.dispatch(serve, "k")
    await diary.counts(1)
    [worker] = fleet.workers(node)
    break_it(worker, 1)
    worker.tell(Foreign())  # type: ignore[arg-type]
    await diary.counts(2)
    assert diary.entries[0] == diary.entries[1]
    assert await (await node.dispatch("echo", "e", 1)).result(timeout_s=30) == 1


async def test_an_actor_that_crashes_while_its_node_opens_is_the_plain_cause(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(self: Reaper) -> None:
        raise Bug

    monkeypatch.setattr(Reaper, "begin", begin)
    settings = attrs.evolve(fleet.settings, restarts_max=0)
    node = Node(fleet.pool, fleet.url, handlers=handlers, settings=settings, observers=())
    with pytest.raises(Bug):
        await node.__aenter__()
    assert node.state == "closed"


async def test_an_actor_that_crashes_too_often_ends_the_node_with_the_cause(
    fleet: Fleet, diary: Diary, break_it: Break, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It never reports itself healthy with a dead loop; its handlers have ended by then."""
    monkeypatch.setattr("pool.core.lease.RENEW_MAX_S", 0.2)
    mine = Handlers()

    @mine.service("serve")
    async def serve(job: Job) -> None:
        diary.note("started")
        try:
            await anyio.sleep_forever()
        finally:
            diary.note("ended")

    node = await fleet.node(mine, restarts_max=1, lease_ttl_s=10.0)
    leases: Any = fleet.client.zrange(fleet.names.keepalive, 0, -1)
    other = await fleet.node(lease_ttl_s=10.0)
    ref = await other.dispatch("serve", "k")
    await diary.has("started")
    reaper = fleet.wiring(node)._reaper
    break_it(reaper, 100)
    reaper.tell(Foreign())  # type: ignore[arg-type]
    await fleet.seen(ActorCrashed)
    await fleet.until(lambda: reaper.state == "running")
    reaper.tell(Foreign())  # type: ignore[arg-type]
    error = await fleet.ended(node)
    assert isinstance(error, Bug)
    assert node.state == "closed"
    assert diary.entries == ["started", "ended"]
    with pytest.raises(NotRunning):
        await node.dispatch("serve", "x")
    # Its lease ends, and the others take over what it had.
    fleet.client.zadd(fleet.names.keepalive, dict.fromkeys(leases, 1), xx=True)
    again = await fleet.node(mine, lease_ttl_s=10.0)
    await diary.has("started", times=2)
    assert (await ref.status()).owner.startswith(
        next(info.id for info in again.workers if info.node == again.id)
    )


async def test_an_observer_may_raise_whatever_there_is(fleet: Fleet) -> None:
    def exits(event: Any) -> None:
        raise SystemExit(3)

    with capture_logs() as logs:
        node = await fleet.node(handlers, observers=(exits, fleet.events.note))
        assert await (await node.dispatch("echo", "e", 1)).result(timeout_s=30) == 1
    assert {"of": "node.joined", "event": "observer.failed"}.items() <= logs[0].items()


async def test_a_full_pipe_behind_the_log_holds_up_no_node(fleet: Fleet) -> None:
    """A7: nobody reads what the default observer writes; jobs are served, and nothing hangs."""
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writes, bytes(4096))
    os.set_blocking(writes, True)
    before = structlog.get_config()
    with os.fdopen(writes, "w") as stream:
        structlog.configure(
            processors=[structlog.processors.JSONRenderer()],
            logger_factory=structlog.WriteLoggerFactory(stream),
            cache_logger_on_first_use=False,
        )
        try:
            node = await fleet.node(handlers, observers=(log_observer, fleet.events.note))
            for i in range(20):
                assert await (await node.dispatch("echo", f"e{i}", 1)).result(timeout_s=30) == 1
                fleet.wiring(node).context.emit(
                    StoreTroubled(during="test", lane=0, problem="x" * 5000)
                )
            await fleet.leave(node)
            assert not fleet.all_seen(LoopHung)
            assert not fleet.all_seen(LeaseLost)
        finally:
            while threads := [t for t in threading.enumerate() if t.name == "pool-log"]:
                await anyio.to_thread.run_sync(os.read, reads, 65536)
                threads[0].join(0.01)
            structlog.configure(**before)
            os.close(reads)


class Called:
    async def __call__(self, event: object) -> None: ...


async def coroutine(event: object) -> None: ...


@pytest.mark.parametrize("observer", [coroutine, partial(coroutine), Called(), None])
async def test_an_observer_that_would_never_run_is_refused_at_once(
    fleet: Fleet, observer: Any
) -> None:
    with pytest.raises(ConfigError, match="observers"):
        Node(fleet.pool, fleet.url, observers=[observer])
    with pytest.raises(ConfigError, match="observers"):
        async with ReplicatedMap.open(fleet.url, "m", pool=fleet.pool, observers=[observer]):
            raise AssertionError
