"""Handlers that leave a cancel scope or a task group open: that job's attempt, and nobody else's.

On asyncio such a scope stays with its task, and whatever runs there later runs inside it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest

from pool import Handlers, Job
from pool.errors import JobParked
from pool.events import ActorCrashed, AttemptFailed, RunDisturbed

if TYPE_CHECKING:
    from tests.nodes import Diary, Fleet

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning"),  # which is what we test
]

held: list[object] = []  # what is garbage is closed by the loop, at a moment of its own


async def raises(job: Job) -> None:
    scope = anyio.CancelScope()
    scope.__enter__()
    scope.cancel()
    raise ValueError("after a scope that is cancelled")


async def returns(job: Job) -> None:
    scope = anyio.CancelScope()
    scope.__enter__()
    scope.cancel()


async def is_timed_out(job: Job) -> None:
    anyio.CancelScope(deadline=anyio.current_time() + 0.01).__enter__()
    await anyio.sleep(5)


async def is_timed_out_later(job: Job) -> None:
    anyio.CancelScope(deadline=anyio.current_time() + 0.01).__enter__()


async def shields(job: Job) -> None:
    anyio.CancelScope(shield=True).__enter__()


async def opens_a_group(job: Job) -> None:
    group = anyio.create_task_group()
    await group.__aenter__()
    held.append(group)


async def opens_a_group_whose_task_fails(job: Job) -> None:
    async def fail() -> None:
        await anyio.sleep(0.01)
        raise OSError("in the background")

    group = anyio.create_task_group()
    await group.__aenter__()
    held.append(group)
    group.start_soon(fail)
    await anyio.sleep(0.02 if job.attempt == 1 else 0)


async def lines(limit_s: float) -> AsyncIterator[str]:
    with suppress(RuntimeError):  # for the loop closes it in another task
        with anyio.fail_after(limit_s):
            while True:
                yield "line"
                await anyio.sleep(0.001)


async def breaks_off_a_generator(job: Job) -> None:
    async for _ in lines(0.01):
        break
    await anyio.sleep(0.03)


async def breaks_off_a_generator_that_lives_on(job: Job) -> None:
    source = lines(0.01)
    held.append(source)
    async for _ in source:
        break


async def leaves_in_another_task(job: Job) -> None:
    scope = anyio.CancelScope()
    scope.__enter__()

    async def leave() -> None:
        scope.__exit__(None, None, None)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(leave)


WAYS = [
    raises,
    returns,
    is_timed_out,
    is_timed_out_later,
    shields,
    opens_a_group,
    opens_a_group_whose_task_fails,
    breaks_off_a_generator,
    breaks_off_a_generator_that_lives_on,
    leaves_in_another_task,
]


@pytest.mark.parametrize("way", WAYS)
async def test_a_scope_left_open_is_a_failed_attempt_of_its_job_alone(
    fleet: Fleet, diary: Diary, way: Callable[[Job], Awaitable[None]]
) -> None:
    handlers = Handlers()
    handlers.job("open", attempts_max=3, backoff_s=0.001, backoff_max_s=0.002)(way)

    @handlers.job("well", attempts_max=1)
    async def well(job: Job) -> int:
        await anyio.sleep(0.005)
        return job.attempt

    @handlers.service("neighbour")
    async def neighbour(job: Job) -> None:
        diary.note("neighbour began")
        await anyio.sleep_forever()

    node = await fleet.node(handlers, capacity=3, grace_s=300.0)
    await node.dispatch("neighbour", "neighbour")
    await diary.has("neighbour began")
    ref = await node.dispatch("open", "k")
    for i in range(5):  # beside it, and in the slots that it had
        assert await (await node.dispatch("well", f"w{i}")).result(timeout_s=30) == 1
    with pytest.raises(JobParked) as parked:
        await ref.result(timeout_s=30)
    assert parked.value.attempts == 3
    for i in range(5):
        assert await (await node.dispatch("well", f"v{i}")).result(timeout_s=30) == 1
    assert diary.entries.count("neighbour began") == 1
    assert not fleet.all_seen(ActorCrashed)
    assert not fleet.all_seen(RunDisturbed)
    assert {event.handler for event in fleet.all_seen(AttemptFailed)} == {"open"}
    with anyio.fail_after(40):  # and it leaves at once: nothing that was left open is waited for
        await fleet.leave(node)
    held.clear()


async def test_a_stop_ends_a_handler_that_has_left_a_scope_open(fleet: Fleet, diary: Diary) -> None:
    handlers = Handlers()

    @handlers.job("open")
    async def opens(job: Job) -> None:
        anyio.CancelScope().__enter__()
        diary.note("open")
        await anyio.sleep_forever()

    node = await fleet.node(handlers, capacity=1)
    ref = await node.dispatch(opens, "k")
    await diary.has("open")
    await ref.stop(timeout_s=30)
    assert (await ref.status()).state == "cancelled"
    assert not fleet.all_seen(ActorCrashed)


async def test_a_generator_that_is_closed_in_order_leaves_nothing(fleet: Fleet) -> None:
    handlers = Handlers()

    @handlers.job("closes", attempts_max=1)
    async def closes(job: Job) -> str:
        source = lines(5)
        async with aclosing(source):  # type: ignore[type-var]
            async for line in source:
                return line
        return ""

    node = await fleet.node(handlers)
    assert await (await node.dispatch(closes, "k")).result(timeout_s=30) == "line"
