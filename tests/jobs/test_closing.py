"""What closes behind a handler is its job's own work: nothing cuts it but what cuts the handler."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import attrs
import pytest

from pool import Depends, Handlers, Job, Node
from pool.core.lease import Timing
from pool.errors import JobCancelled, JobExists, JobParked
from pool.events import ActorCrashed, Event
from pool.jobs.shields import Shields
from pool.jobs.wiring import Wiring

if TYPE_CHECKING:
    from tests.nodes import Diary, Fleet

pytestmark = pytest.mark.anyio


def storing(
    diary: Diary,
    *,
    is_endless: bool = False,
    work: Callable[[], Any] = anyio.lowlevel.checkpoint,
    **options: Any,
) -> Handlers:
    """Return handlers that commit at their end, for twice the stop budget."""
    handlers = Handlers(attempts_max=1, **options)

    async def commits(job: Job) -> AsyncIterator[None]:
        try:
            yield
        finally:
            diary.note("commits")
            try:
                await anyio.sleep(3600 if is_endless else job._host.timing().stop_budget_s * 2)
                diary.note("committed")
            except anyio.get_cancelled_exc_class():
                diary.note("cut")
                raise

    @handlers.job("stores")
    async def stores(job: Job, *, tx: None = Depends(commits)) -> str:
        await work()
        return "stored"

    @handlers.job("fails")
    async def fails(job: Job, *, tx: None = Depends(commits)) -> str:
        raise LookupError("no such item")

    return handlers


async def test_a_commit_is_waited_for(fleet: Fleet, diary: Diary) -> None:
    """Longer than the stop budget: nobody has asked the handler to end."""
    node = await fleet.node(storing(diary), lease_ttl_s=2.0)
    assert await (await node.dispatch("stores", "k")).result(timeout_s=30) == "stored"
    assert diary.entries == ["commits", "committed"]
    with pytest.raises(JobParked, match="no such item"):
        await (await node.dispatch("fails", "k")).result(timeout_s=30)
    assert diary.entries[2:] == ["commits", "committed"]


@pytest.mark.parametrize("why", ["stop", "timeout", "leave"])
async def test_a_commit_that_is_cut_is_no_success(fleet: Fleet, diary: Diary, why: str) -> None:
    limit_s = 0.3 if why == "timeout" else None
    handlers = storing(diary, is_endless=True, timeout_s=limit_s)
    node = await fleet.node(handlers, lease_ttl_s=2.0)
    ref = await node.dispatch("stores", "k")
    await diary.has("commits")
    if why == "stop":
        await ref.stop()
        with pytest.raises(JobCancelled):
            await ref.result(timeout_s=30)
    elif why == "timeout":
        with pytest.raises(JobParked, match="timed out"):
            await ref.result(timeout_s=30)
    else:
        client = await fleet.node(lease_ttl_s=2.0)
        await fleet.leave(node)
        with pytest.raises(JobExists):  # it is there still
            await client.dispatch("stores", "k")
        await client.stop("k")
    assert diary.entries == ["commits", "cut"]


async def test_a_stop_finds_it_shielded(fleet: Fleet, diary: Diary) -> None:
    """For the stop budget: what ends within that has ended, and counts."""
    handlers = Handlers()

    async def commits(job: Job) -> AsyncIterator[None]:
        yield
        diary.note("commits")
        while not job._stop_cause:  # noqa: ASYNC110 - nobody tells
            await anyio.sleep(0.01)
        await anyio.sleep(0.01)
        diary.note("committed")

    @handlers.job("stores")
    async def stores(job: Job, *, tx: None = Depends(commits)) -> str:
        return "stored"

    node = await fleet.node(handlers, lease_ttl_s=60.0)
    ref = await node.dispatch(stores, "k")
    await diary.has("commits")
    await ref.stop()
    assert await ref.result(timeout_s=30) == "stored"
    assert diary.entries == ["commits", "committed"]


async def test_it_is_cut_also_when_its_node_has_closed_all_else(
    fleet: Fleet, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing could end the handler: it waits for a thread, until its node is all but gone."""
    gate, closes = threading.Event(), Wiring.close_connections

    async def work() -> None:
        diary.note("works")
        await anyio.to_thread.run_sync(gate.wait, 60)

    async def late(wiring: Wiring) -> None:
        gate.set()
        await diary.has("commits")
        await closes(wiring)

    monkeypatch.setattr(Wiring, "close_connections", late)
    handlers = storing(diary, is_endless=True, work=work)
    node = await fleet.node(handlers, lease_ttl_s=2.0, grace_s=0.1)
    await node.dispatch("stores", "k")
    await diary.has("works")
    await fleet.leave(node)
    assert diary.entries == ["works", "commits", "cut"]


async def cut_after_s(shields: Shields) -> float:
    """Return how long something was shielded that was to end all the time."""
    began_s = monotonic()
    with anyio.CancelScope() as handler, anyio.CancelScope() as scope:
        handler.cancel()
        shields.raise_over(scope)
        with anyio.move_on_after(30):
            await anyio.sleep_forever()
        pytest.fail("nothing has cut it")
    return monotonic() - began_s


async def test_one_timer_takes_off_all_shields() -> None:
    """Each at its own time: also where that which it was set for has been closed before."""
    timing = Timing(1.0)
    budget_s = timing.stop_budget_s
    shields = Shields(lambda: timing, monotonic)
    took: list[float] = []

    async def later(in_s: float) -> None:
        await anyio.sleep(in_s)
        took.append(await cut_after_s(shields))

    closed = anyio.CancelScope()
    shields.raise_over(closed)
    shields.lower(closed)
    async with anyio.create_task_group() as tasks:
        for part in (0.3, 0.6, 0.9):
            tasks.start_soon(later, budget_s * part)
    took.append(await cut_after_s(shields))
    assert len(took) == 4
    assert min(took) >= budget_s * 0.99


async def test_a_shield_that_ends_before_the_others() -> None:
    """The lease TTL has become shorter, and the stop budget with it."""
    timing = Timing(3600.0)
    shields = Shields(lambda: timing, monotonic)
    first = anyio.CancelScope()
    shields.raise_over(first)
    timing = Timing(1.0)
    assert await cut_after_s(shields) >= timing.stop_budget_s * 0.99
    assert first.shield


async def test_the_end_of_a_lifespan_that_is_cut_is_told(fleet: Fleet) -> None:
    @asynccontextmanager
    async def lifespan(node: Node) -> AsyncIterator[None]:
        yield
        await anyio.sleep(3600)

    handlers = Handlers(lifespan=lifespan)

    @handlers.job("any")
    async def never(job: Job) -> None: ...

    await fleet.leave(await fleet.node(handlers, grace_s=0.1))
    told = fleet.all_seen(ActorCrashed)[-1]
    assert (told.actor, told.error) == (
        "lifespan",
        "its end took longer than grace_s, 0.1 s, and was cut short",
    )


async def test_a_lifespan_that_still_begins_when_its_node_leaves_is_no_crash(fleet: Fleet) -> None:
    """It is cancelled, and may end as late as it likes: it had no end that could be cut."""
    begun, over, seen = anyio.Event(), anyio.Event(), list[Event]()

    @asynccontextmanager
    async def lifespan(node: Node) -> AsyncIterator[None]:
        begun.set()
        with anyio.CancelScope(shield=True):  # as one that waits for a thread
            await over.wait()
        yield

    handlers = Handlers(lifespan=lifespan)

    @handlers.job("any")
    async def never(job: Job) -> None: ...

    async def leave() -> None:
        await begun.wait()
        opening.cancel()
        await anyio.sleep(10 * settings.grace_s)
        over.set()

    settings = attrs.evolve(fleet.settings, grace_s=0.1)
    node = Node(
        fleet.pool, fleet.url, handlers=handlers, settings=settings, observers=[seen.append]
    )
    opening = anyio.CancelScope()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(leave)
        with opening:
            await node.__aenter__()
    assert opening.cancelled_caught
    assert not [event for event in seen if isinstance(event, ActorCrashed)]


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, LookupError])
async def test_what_a_lifespan_raises_at_its_start_comes_out_of_the_block(
    fleet: Fleet, kind: type[BaseException]
) -> None:
    @asynccontextmanager
    async def lifespan(node: Node) -> AsyncIterator[None]:
        if node.state != "closed":
            raise kind(5)
        yield

    handlers = Handlers(lifespan=lifespan)

    @handlers.job("any")
    async def never(job: Job) -> None: ...

    node = Node(fleet.pool, fleet.url, handlers=handlers, settings=fleet.settings)
    with pytest.raises(kind) as raised:
        await node.__aenter__()
    assert type(raised.value) is kind
    assert node.state == "closed"
