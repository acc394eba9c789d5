"""Errors that may come at any step of ours, out of a caller's stack: no room, or no memory."""

from __future__ import annotations

import asyncio  # noqa: TID251 - what wakes its tasks is to fail
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import AsyncExitStack, contextmanager
from itertools import count
from types import coroutine
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest
import sniffio

from pool import Follower, Handlers, Job, Node
from pool.core.headroom import HEADROOM, check_headroom
from pool.errors import NoSuchJob
from pool.jobs.client.dispatcher import Dispatcher
from pool.jobs.client.waiters import Waiters, WaitsFor
from tests.nodes import PATIENCE_S

if TYPE_CHECKING:
    from tests.nodes import Fleet

pytestmark = pytest.mark.anyio

Call = Callable[[], Awaitable[object]]


def program() -> Handlers:
    handlers = Handlers()

    @handlers.job("x")
    async def x(job: Job) -> str:
        return "done"

    return handlers


async def calls_of(node: Node) -> dict[str, Call]:
    """Return calls of each kind: by the dispatcher, the waiters, or the pipeline alone."""
    ref = await node.dispatch("x", "first")
    await ref.result(timeout_s=PATIENCE_S)
    numbers = count()

    async def notify() -> None:
        with pytest.raises(NoSuchJob):
            await node.notify("nobody", 1)

    return {
        "count": node.count,
        "jobs": node.jobs,
        "status": ref.status,
        "result": lambda: ref.result(timeout_s=PATIENCE_S),
        "started": lambda: ref.started(timeout_s=PATIENCE_S),
        "stages": ref.stages,
        "stop": lambda: ref.stop(timeout_s=PATIENCE_S),
        "dispatch": lambda: node.dispatch("x", f"again-{next(numbers)}"),
        "stop_all": lambda: node.stop_all(prefix="nobody", timeout_s=PATIENCE_S),
        "notify": notify,
    }


async def saved(job: Job) -> dict[str, Call]:
    """Return those that a handler has beside them."""

    async def then() -> None:
        job.then(Follower("x", "behind"))

    async def save_soon() -> None:
        job.save_soon(1)

    return {
        "save": lambda: job.save(1),
        "save_soon": save_soon,
        "progress": lambda: job.progress(1),
        "once": lambda: job.once("step", int),
        "run_blocking": lambda: job.run_blocking(int),
        "then": then,
    }


async def down(levels: int, call: Call) -> object:
    return await (down(levels - 1, call) if levels else call())


def room() -> int:
    """Return how many frames are left, as nobody else counts them on any version of Python."""
    left = 0

    def dive() -> None:
        nonlocal left
        left += 1
        dive()

    with pytest.raises(RecursionError):
        dive()
    return left


async def room_below() -> int:
    return room()


async def all_depths(calls: dict[str, Call]) -> set[str]:
    """Make each call from everywhere near the limit; return those that went well somewhere."""
    went: set[str] = set()
    left = await room_below()
    for name, call in calls.items():
        for spare in (*range(4, HEADROOM, 23), *range(HEADROOM, HEADROOM + 21, 5)):
            try:
                await down(left - spare, call)
            except RecursionError:
                assert spare < HEADROOM + 12, f"{name} was refused with {spare} frames left"
            else:
                assert spare >= HEADROOM - 12, f"{name} was let in with {spare} frames left"
                went.add(name)
    return went


async def idle(node: Node) -> None:
    with anyio.fail_after(PATIENCE_S):
        while await node.count():
            await anyio.lowlevel.checkpoint()


async def works(fleet: Fleet, node: Node) -> None:
    """A node does all that it should, says so, and leaves at once."""
    with anyio.fail_after(PATIENCE_S):
        ref = await node.dispatch("x", "after")
        assert await ref.result() == "done"
        await idle(node)
    assert node.state == "open"
    assert not [event for event in fleet.events.entries if event.event == "actor.crashed"]
    await fleet.leave(node)


async def test_from_a_stack_with_no_room_nothing_is_begun(fleet: Fleet) -> None:
    node = await fleet.node(program())
    calls = await calls_of(node)
    assert await all_depths(calls) == calls.keys()
    await works(fleet, node)


async def test_so_it_is_in_a_handler(fleet: Fleet) -> None:
    handlers = program()

    @handlers.job("deep", attempts_max=1)
    async def deep(job: Job) -> list[str]:
        calls = await saved(job)
        return sorted(calls.keys() - await all_depths(calls))

    node = await fleet.node(handlers)
    ref = await node.dispatch(deep, "deep")
    assert await ref.result(timeout_s=4 * PATIENCE_S) == []  # some hundred round trips
    await idle(node)
    await works(fleet, node)


async def test_a_recursion_without_end_fails_itself_alone(fleet: Fleet) -> None:
    async def walk(node: Node) -> None:
        await node.count()
        await walk(node)

    node = await fleet.node(program())
    with pytest.raises(RecursionError):
        await walk(node)
    await works(fleet, node)


def test_the_stack_of_a_caller_is_measured_and_he_is_told() -> None:
    def dive(levels: int) -> None:
        if levels:
            dive(levels - 1)
        else:
            check_headroom()

    check_headroom()
    dive(room() - HEADROOM - 20)
    with pytest.raises(RecursionError, match=f"fewer than {HEADROOM} frames"):
        dive(room() - HEADROOM + 20)


# --- no memory, or an interrupt between two steps ------------------------------------------------


class Broken:
    """What wakes tasks fails, in the turn of a caller alone."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = -1  # wake-ups until then
        self.has_failed = False
        if sniffio.current_async_library() == "trio":
            import trio  # noqa: TID251 - likewise

            monkeypatch.setattr(trio.lowlevel, "reschedule", self._of(trio.lowlevel.reschedule))
        else:
            loop = asyncio.get_running_loop()
            monkeypatch.setattr(loop, "call_soon", self._of(loop.call_soon))

    def _of(self, wake: Callable[..., object]) -> Callable[..., object]:
        def broken(*args: Any, **kwargs: Any) -> object:
            if self.left == 0:
                self.left, self.has_failed = -1, True
                raise MemoryError
            self.left -= self.left > 0
            return wake(*args, **kwargs)

        return broken

    @contextmanager
    def after(self, wakes: int) -> Iterator[None]:
        self.left = wakes
        try:
            yield
        finally:
            self.left = -1

    @coroutine
    def first_turn(
        self, coro: Coroutine[Any, Any, object], wakes: int
    ) -> Generator[Any, Any, object]:
        """Await it; until it waits first, wake-ups fail after so many."""
        try:
            with self.after(wakes):
                waits_for = coro.send(None)
        except StopIteration as end:
            return end.value
        while True:
            try:
                step, value = coro.send, (yield waits_for)
            except BaseException as error:  # noqa: BLE001 - thrown into it
                step, value = coro.throw, error
            try:
                waits_for = step(value)
            except StopIteration as end:
                return end.value


async def awaited(call: Call) -> object:
    return await call()


async def test_a_caller_who_cannot_wake_us_leaves_nothing_asleep(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await fleet.node(program())
    calls, failed = await calls_of(node), set[str]()
    broken = Broken(monkeypatch)
    # A call whose answer comes at once wakes nobody: then it is made once more.
    looks = [(name, calls[name]) for name in ("count", "status", "jobs")]
    for name, call in [*calls.items(), *looks * 5]:
        for wakes in range(4) if name not in failed else ():
            broken.has_failed = False
            with anyio.fail_after(PATIENCE_S):
                try:
                    await broken.first_turn(awaited(call), wakes)
                except MemoryError:
                    failed.add(name)
                await node.count()  # the next one wakes who sleeps
                if not broken.has_failed:
                    break
    assert failed >= {"count", "status", "jobs"}
    await fleet.until(lambda: node.state == "open")
    await idle(node)
    with anyio.fail_after(PATIENCE_S):
        ref = await node.dispatch("x", "after")
        assert await ref.result() == "done"
    await fleet.leave(node)


@pytest.mark.parametrize(("part", "step"), [(Dispatcher, "_on_admitted"), (Waiters, "_on_looked")])
async def test_who_could_not_be_woken_is_answered_anew(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, part: type, step: str
) -> None:
    node = await fleet.node(program())
    first = await node.dispatch("x", "first")
    assert await first.result(timeout_s=PATIENCE_S) == "done"
    broken, take = Broken(monkeypatch), getattr(part, step)

    def interrupted(self: object, reply: object) -> None:
        if broken.has_failed:
            take(self, reply)
            return
        with broken.after(0):
            take(self, reply)

    monkeypatch.setattr(part, step, interrupted)
    with anyio.fail_after(PATIENCE_S):
        second = await node.dispatch("x", "second")
        assert await first.result() == "done"
        assert await second.result() == "done"
    assert broken.has_failed
    await fleet.leave(node)


async def test_an_unwoken_part_is_down_and_begins_again(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without anybody calling again: the next renewal looks."""
    node = await fleet.node(program())
    wiring = node._wiring
    assert wiring is not None
    broken = Broken(monkeypatch)
    actor = wiring.waiters
    with anyio.fail_after(PATIENCE_S):
        await fleet.until(lambda: actor._is_resting)
        with pytest.raises(MemoryError), broken.after(0):
            actor.put(WaitsFor("a", "b", "c"))
        assert wiring.down == ("waiters",)
        assert node.state == "troubled"
        await fleet.events.until(
            lambda events: any(e.event == "actor.crashed" and "woken" in e.error for e in events)
        )
        await fleet.until(lambda: node.state == "open")
    await fleet.leave(node)


@pytest.mark.parametrize("is_apart", [False, True])
async def test_an_unwoken_pipeline_says_so_and_goes_on(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, *, is_apart: bool
) -> None:
    node = await fleet.node(program())
    broken, answers = Broken(monkeypatch), list[object]()
    pipeline = node._pipeline
    assert pipeline is not None
    async with AsyncExitStack() as stack:
        if is_apart:
            pipeline = await stack.enter_async_context(pipeline.apart())
        stack.enter_context(anyio.fail_after(PATIENCE_S))
        await fleet.until(lambda: pipeline._is_idle)
        with pytest.raises(MemoryError), broken.after(0):
            pipeline.send(("PING",), answers.append)
        assert node.state == "troubled"
        await fleet.until(lambda: answers)
        assert answers == [b"PONG"]
        await fleet.until(lambda: node.state == "open")
    assert any(
        e.event == "actor.crashed" and "nobody woke" in e.error for e in fleet.events.entries
    )
    await fleet.leave(node)
