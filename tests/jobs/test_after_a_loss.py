"""The server forgets everything while something is under way: who waits is told what is gone.

Nobody waits for what it has forgotten, and the next one of each call is served.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeAlias

import anyio
import attrs
import pytest

from pool import Handlers, Job, JobRef, Node
from pool.errors import (
    JobLost,
    NoSuchJob,
    NoSuchLetter,
    NotOwner,
    OutcomeExpired,
    PoolError,
    StoreLost,
    StoreUnavailable,
    UnknownHandler,
)
from pool.jobs.client.listing import Listing
from tests.nodes import Fleet

# A loss takes signals along.
pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("asks_again")]

PATIENCE_S = 50.0
GONE = (StoreLost, JobLost)  # what a job that was waited for is, then
Call: TypeAlias = Callable[[], Awaitable[Any]]


@attrs.define(eq=False)
class World:
    """A worker, a client, and a server that can lose everything."""

    fleet: Fleet
    node: Node
    client: Node
    way: str
    said: list[str] = attrs.field(factory=list)  # by handlers: what they were told
    gate: anyio.Event = attrs.field(factory=anyio.Event)

    async def lose(self) -> None:
        """Have the server forget all of this pool; as a restart without data does, also scripts and
        connections.
        """
        redis = self.fleet.client
        keys = list(redis.scan_iter(match=f"pool:{{{self.fleet.pool}*", count=1000))
        redis.delete(*keys)
        if self.way == "restart":
            redis.script_flush()
            redis.client_kill_filter(_type="normal", skipme=True)

    @asynccontextmanager
    async def telling(self, call: Call, *errors: type[Exception]) -> AsyncIterator[None]:
        """Have a call under way; it must end with one of these errors."""
        begun, told = anyio.Event(), list[Exception | Any]()

        async def run() -> None:
            begun.set()
            try:
                told.append(await call())
            except Exception as error:  # noqa: BLE001 - it is looked at below
                told.append(error)

        with anyio.fail_after(PATIENCE_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run)
                await begun.wait()
                await anyio.wait_all_tasks_blocked()
                yield
        assert isinstance(told[0], errors), told

    async def goes_on(self, key: str) -> None:
        """Check that a job of this key is served; what came too early is refused, and says so."""

        async def served() -> bool:
            try:
                ref = await self.client.options(if_exists="queue").dispatch("echo", key)
                return bool(await ref.result(timeout_s=PATIENCE_S) == key)
            except (StoreLost, StoreUnavailable, JobLost, UnknownHandler):
                return False  # the last one: no worker has joined again

        with anyio.fail_after(PATIENCE_S):
            await self.fleet.until(served)

    async def started(self, name: str = "gated", key: str = "k", **options: Any) -> JobRef[Any]:
        ref = await self.client.options(**options).dispatch(name, key)
        await ref.started(timeout_s=30)
        return ref


def handlers_of(world: Callable[[], World]) -> Handlers:
    handlers = Handlers()

    @handlers.job("echo")
    async def echo(job: Job) -> str:
        return job.key

    @handlers.job("gated")
    async def gated(job: Job) -> None:
        await world().gate.wait()

    @handlers.job("stubborn")
    async def stubborn(job: Job) -> None:
        with anyio.CancelScope(shield=True):
            await world().gate.wait()

    @handlers.job("parking", attempts_max=1)
    async def parking(job: Job) -> None:
        raise ValueError("no")

    async def goes_on(job: Job, call: Call) -> None:
        """Call it again and again, also when we are told to end."""
        with anyio.CancelScope(shield=True):
            try:
                while True:
                    await call()
                    await anyio.sleep(0.01)
            except PoolError as error:
                world().said.append(type(error).__name__)

    @handlers.job("saving")
    async def saving(job: Job) -> None:
        await goes_on(job, lambda: job.save({"at": job.key}))

    @handlers.job("progressing")
    async def progressing(job: Job) -> None:
        try:
            while True:
                await job.progress(1, 2)  # which only those are told of who look
                await anyio.sleep(0.01)
        finally:
            world().said.append(NotOwner.__name__)

    @handlers.job("stepping")
    async def stepping(job: Job) -> None:
        async def step() -> int:
            world().said.append("called")
            await world().gate.wait()
            return 1

        with anyio.CancelScope(shield=True):
            try:
                await job.once("step", step)
            except PoolError as error:
                world().said.append(type(error).__name__)

    return handlers


# --- jobs that are waited for -------------------------------------------------------------------


async def a_result(world: World) -> None:
    ref = await world.started()
    async with world.telling(ref.result, *GONE), world.telling(ref.result, *GONE):
        await world.lose()


async def a_start(world: World) -> None:
    ref = await world.client.options(delay_s=60).dispatch("gated", "k")
    async with world.telling(ref.started, *GONE):
        await world.lose()


async def an_attached_dispatch(world: World) -> None:
    first = await world.started()
    ref = await world.node.options(if_exists="attach").dispatch("gated", "k")
    assert ref.job_id == first.job_id
    async with world.telling(ref.result, *GONE):
        await world.lose()


async def a_line_behind_a_key(world: World) -> None:
    await world.started()
    queue = world.client.options(if_exists="queue", expires_s=60)
    refs = [await queue.dispatch("gated", "k") for _ in range(2)]
    async with world.telling(refs[0].result, *GONE), world.telling(refs[1].started, *GONE):
        await world.lose()


async def a_job_that_must_begin_in_time(world: World) -> None:
    options = world.client.options(expires_s=10.0, allow_unknown=True)
    ref = await options.dispatch("nobody", "k")
    async with world.telling(ref.result, *GONE):
        await world.lose()


async def a_dispatch_with_an_id(world: World) -> None:
    """The same id is another job then."""
    ref = await world.started(job_id="one")
    async with world.telling(ref.result, *GONE):
        await world.lose()
    await world.goes_on("other")
    again = await world.client.options(job_id="one").dispatch("echo", "k")
    assert await again.result(timeout_s=PATIENCE_S) == "k"


async def a_stop(world: World) -> None:
    ref = await world.started("stubborn")
    async with world.telling(ref.stop, StoreLost):
        await world.fleet.until(lambda: "intent" in _signals(world))
        await world.lose()
    world.gate.set()
    await world.fleet.until(lambda: not world.fleet.workers(world.node)[0].runs)


async def many_stops(world: World) -> None:
    ref = await world.started("stubborn")

    async def stop() -> None:
        stopped = await world.client.stop_all(prefix="k", timeout_s=PATIENCE_S)
        assert stopped.found == 1
        raise stopped.problems[0]

    async with world.telling(stop, *GONE, StoreUnavailable):
        await world.fleet.until(lambda: "intent" in _signals(world))
        await world.lose()
    world.gate.set()
    with pytest.raises((JobLost, NoSuchJob, StoreLost, StoreUnavailable)):
        await ref.status()


async def stops_of_what_is_gone(world: World) -> None:
    """Its handler still runs: nobody says that it was stopped, or that there is nothing."""
    ref = await world.started("stubborn")
    for call in (world.client.stop_all, world.client.jobs, world.client.count, ref.stop):
        await world.lose()
        with pytest.raises(StoreLost):
            await call()
        await _of_what_is_left(world.client.count)
        assert world.fleet.client.hget(world.fleet.names.lane, "incarnation")
    await world.goes_on("other")
    with pytest.raises(JobLost):
        await ref.stop(timeout_s=PATIENCE_S)


def _signals(world: World) -> str:
    names = world.fleet.names
    owners = [worker.target(0).name for worker in world.fleet.workers(world.node)]
    return str([world.fleet.client.xrange(names.signal(owner)) for owner in owners])


# --- what handlers store ------------------------------------------------------------------------


async def a_save(world: World) -> None:
    await _stores(world, "saving")


async def a_progress(world: World) -> None:
    await _stores(world, "progressing")


async def _stores(world: World, name: str) -> None:
    ref = await world.started(name)
    async with world.telling(ref.result, *GONE):
        await world.lose()
    await world.fleet.until(lambda: world.said)
    assert world.said == [NotOwner.__name__]


async def a_step(world: World) -> None:
    """What it did is done; that it is stored nobody says."""
    await world.started("stepping")
    await world.fleet.until(lambda: world.said)
    await world.lose()
    await world.fleet.until(lambda: world.fleet.workers(world.node)[0].runs["k"].is_lost)
    world.gate.set()
    await world.fleet.until(lambda: len(world.said) == 2)
    assert world.said == ["called", NotOwner.__name__]


# --- what is looked at --------------------------------------------------------------------------


async def _parked(world: World, letters: int) -> list[JobRef[Any]]:
    options = world.client.options()
    refs = [await options.dispatch("parking", f"p{n}") for n in range(letters)]
    parked = world.client.parked
    await world.fleet.until(lambda: _has(parked.count, letters))
    return refs


async def _has(count: Call, number: int) -> bool:
    return bool(await count() == number)


async def letters_page_by_page(world: World) -> None:
    await _parked(world, 4)
    page = await world.client.parked.list(count=2)
    assert page.cursor
    await world.lose()
    rest = await _of_what_is_left(lambda: world.client.parked.list(count=2, cursor=page.cursor))
    assert (rest.jobs, rest.cursor) == ((), "")


async def a_letter_that_is_replayed(world: World) -> None:
    first, second, *_ = await _parked(world, 4)
    parked = world.client.parked
    again = await parked.replay("p0", first.job_id)
    await world.lose()
    for call in (
        lambda: parked.replay("p1", second.job_id),
        lambda: parked.show("p1", second.job_id),
        lambda: parked.edit("p1", second.job_id),
        lambda: parked.discard("p1", second.job_id),
    ):
        with pytest.raises(NoSuchLetter):
            await _of_what_is_left(call)
    assert (await _of_what_is_left(parked.replay_all)).count == 0
    assert await _of_what_is_left(parked.discard_all) == 0
    with pytest.raises((*GONE, OutcomeExpired)):
        await again.result(timeout_s=PATIENCE_S)


async def jobs_page_by_page(world: World) -> None:
    for n in range(300):
        await world.client.options(delay_s=60).dispatch("gated", f"j{n}")
    page = await world.client.jobs(page=10)
    assert page.cursor
    await world.lose()
    while page.cursor:
        page = await _of_what_is_left(partial(world.client.jobs, cursor=page.cursor))
        assert page.jobs == ()
    assert await _of_what_is_left(world.client.count) == 0


async def _of_what_is_left(call: Call) -> Any:
    """Ask until the pool is there again; until then it is said that it is not."""
    with anyio.fail_after(PATIENCE_S):
        while True:
            try:
                return await call()
            except (StoreLost, StoreUnavailable):
                await anyio.sleep(0.05)
    raise AssertionError


SCENES = (
    *(a_result, a_start, an_attached_dispatch, a_line_behind_a_key, a_job_that_must_begin_in_time),
    *(a_dispatch_with_an_id, a_stop, many_stops, stops_of_what_is_gone, a_save, a_progress, a_step),
    *(letters_page_by_page, a_letter_that_is_replayed, jobs_page_by_page),
)


@pytest.mark.parametrize("way", ["flush", "restart"])
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
async def test_who_waits_for_what_the_server_forgot_is_told(
    fleet: Fleet, scene: Callable[[World], Awaitable[None]], way: str
) -> None:
    worlds: list[World] = []
    fleet.settings = attrs.evolve(fleet.settings, lease_ttl_s=1.0, result_ttl_s=60.0)
    node = await fleet.node(handlers_of(lambda: worlds[0]), capacity=10)
    client = await fleet.node()
    await fleet.knows(client, 1)
    worlds.append(World(fleet, node, client, way))
    await scene(worlds[0])
    worlds[0].gate.set()
    await worlds[0].goes_on("k")


async def test_a_pool_that_is_gone_is_not_an_empty_one(
    fleet: Fleet,
) -> None:
    """After a loss of data a node has no generation until it has joined again."""
    node = await fleet.node()
    client = node._open_client()
    state = client.context.lanes[0]
    listing = Listing(client)
    await listing._check_there(state, "")
    await World(fleet, node, node, "flush").lose()
    with pytest.raises(StoreLost):
        await listing._check_there(state, "")
    await _of_what_is_left(node.count)
