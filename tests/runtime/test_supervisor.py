"""Three ends of a part: asked for; crashed; returned unasked, which is a crash too."""

from __future__ import annotations

import asyncio  # noqa: TID251 - what only its tasks can do
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import attrs
import pytest

from pool import Handlers, Job, Node
from pool.core.crash_marks import NO_MARKS
from pool.errors import NotRunning, PartEnded
from pool.events import ActorCrashed, Event
from pool.runtime.actor import Actor

if TYPE_CHECKING:
    from tests.nodes import Diary, Fleet

pytestmark = pytest.mark.anyio


@attrs.define(eq=False, kw_only=True)
class Callee(Actor[Any]):
    """Calls what it is told."""

    def handle(self, message: Any) -> None:
        message()


class Foreign(BaseException):
    pass


def handlers_of(diary: Diary) -> Handlers:
    handlers = Handlers()

    @handlers.job("echo")
    async def echo(job: Job, value: int) -> int:
        return value

    @handlers.service("serve")
    async def serve(job: Job) -> None:
        diary.note("serving")
        await anyio.sleep_forever()

    return handlers


async def test_an_actor_that_returns_without_being_asked_has_crashed() -> None:
    """A group that is cancelled from within ends without a word."""
    actor = Callee(name="a")

    def end_the_group() -> None:
        assert actor._children is not None
        actor._children.cancel_scope.cancel()

    actor.tell(end_the_group)
    with pytest.raises(PartEnded) as ended, anyio.fail_after(30):
        await actor.run()
    assert (ended.value.part, actor.state) == ("a", "crashed")


@pytest.mark.parametrize("error", [SystemExit(3), Foreign("x"), KeyError("k")])
async def test_whatever_a_part_raises_restarts_it_and_the_node_goes_on(
    fleet: Fleet, diary: Diary, error: BaseException
) -> None:
    node = await fleet.node(handlers_of(diary))
    await node.dispatch("serve", "s")
    await diary.has("serving")

    async def work() -> None:
        raise error

    membership = fleet.wiring(node).membership
    membership.spawn(work)
    await fleet.seen(ActorCrashed, actor="membership")
    assert await (await node.dispatch("echo", "e", 1)).result(timeout_s=30) == 1
    await fleet.until(lambda: membership.state == "running")
    assert diary.entries == ["serving"]


async def test_while_a_part_is_down_the_node_does_not_say_open(
    a_fleet: Fleet, diary: Diary
) -> None:
    states: list[tuple[str, tuple[str, ...]]] = []
    nodes: list[Node] = []

    def observe(event: Event) -> None:
        a_fleet.events.note(event)
        if isinstance(event, ActorCrashed):
            states.append((nodes[0].state, a_fleet.wiring(nodes[0]).down))

    async with a_fleet.running():
        nodes.append(await a_fleet.node(handlers_of(diary), observers=(observe,)))
        [node] = nodes
        membership = a_fleet.wiring(node).membership
        for times in (1, 2):
            membership.spawn(crashing)
            await a_fleet.seen(ActorCrashed, times)
            await a_fleet.until(lambda: node.state == "open")
        assert states == [("troubled", ("membership",))] * 2
        assert await (await node.dispatch("echo", "e", 1)).result(timeout_s=30) == 1


async def crashing() -> None:
    raise Foreign("x")


async def test_a_part_that_ends_too_often_ends_the_node_with_the_cause(
    fleet: Fleet, diary: Diary
) -> None:
    """Bare SystemExit would end the program that the node lives in."""
    node = await fleet.node(handlers_of(diary), restarts_max=1)
    membership = fleet.wiring(node).membership
    membership.spawn(crashing)
    await fleet.seen(ActorCrashed)
    await fleet.until(lambda: not membership.is_crashed)
    membership.spawn(crashing)
    error = await fleet.ended(node)
    assert isinstance(error, PartEnded)
    assert (error.part, error.problem) == ("membership", "Foreign: x")
    assert isinstance(error.__cause__, Foreign)
    with pytest.raises(NotRunning):
        await node.dispatch("echo", "e", 1)
    fleet.is_audited = False  # its worker's lease has not ended yet


async def test_who_stops_a_part_waits_for_its_end_and_may_do_so_twice(fleet: Fleet) -> None:
    supervisor = fleet.wiring(await fleet.node())._supervisor
    actor = Callee(name="a")
    await supervisor.start(actor)
    for _ in range(2):
        assert await supervisor.stop(actor, 5)
        assert actor.state == "ended"


async def test_a_failure_told_from_a_callback_of_the_loop_ends_the_node(
    fleet: Fleet, diary: Diary
) -> None:
    """Bodies beside the loop end in callbacks, where no task can be started."""
    node = await fleet.node(handlers_of(diary))
    wiring = fleet.wiring(node)
    wiring.context.loop.later(0.0, lambda: wiring._supervisor.fail(KeyError("k")))
    assert isinstance(await fleet.ended(node), KeyError)
    assert node.state == "closed"
    fleet.is_audited = False


async def test_an_interrupt_within_a_part_ends_the_node_in_order(
    fleet: Fleet, diary: Diary
) -> None:
    """On trio Ctrl-C comes wherever the program happens to be."""
    left: list[str] = []

    async def interrupted() -> None:
        raise KeyboardInterrupt

    async def body() -> None:
        node = Node(
            fleet.pool,
            fleet.url,
            handlers=handlers_of(diary),
            settings=fleet.settings,
            observers=(),
        )
        async with node:
            await node.dispatch("serve", "s")
            await diary.has("serving")
            fleet.wiring(node).membership.spawn(interrupted)
            try:
                await anyio.sleep_forever()
            finally:
                left.append(node.state)

    with pytest.raises(KeyboardInterrupt), anyio.fail_after(30):
        await body()
    assert left
    record = fleet.record("s")
    assert record is not None
    assert (record.owner, record.marks, record.attempt) == ("", NO_MARKS, 1)


async def test_a_stranger_may_cancel_any_task_of_ours_and_all_goes_on(
    anyio_backend: str, fleet: Fleet, diary: Diary
) -> None:
    """An actor's own task goes on as if nothing had come; a child's end is a crash of its actor."""
    if anyio_backend != "asyncio":
        pytest.skip("tasks that anybody may cancel are asyncio's")
    before = asyncio.all_tasks()
    node = await fleet.node(handlers_of(diary))
    wiring = fleet.wiring(node)
    await node.dispatch("serve", "s")
    await diary.has("serving")
    ours = [task for task in asyncio.all_tasks() - before if "_keep" in repr(task)]
    assert len(ours) >= 6
    for task in ours:
        task.cancel()
    for _ in range(3):
        await anyio.lowlevel.checkpoint()
    assert not fleet.all_seen(ActorCrashed)
    assert not any(task.done() for task in ours)
    [watch] = [
        task for task in asyncio.all_tasks() - before if task.get_name() == "keepalive/_watch"
    ]
    watch.cancel()
    crashed = await fleet.seen(ActorCrashed, actor="keepalive")
    assert "stranger" in crashed.error
    await fleet.until(lambda: wiring._keepalive.state == "running")
    await fleet.until(lambda: node.state == "open")
    assert diary.entries == ["serving"]
    assert await (await node.dispatch("echo", "e", 1)).result(timeout_s=30) == 1


async def test_who_starts_a_part_that_never_gets_ready_is_told_so(fleet: Fleet) -> None:
    """It waited for ever: only a part that takes messages said that it has begun."""

    @attrs.define(eq=False, kw_only=True)
    class Unready(Callee):
        def begin(self) -> None:
            raise ValueError("never")

    supervisor = fleet.wiring(await fleet.node(restarts_max=1))._supervisor
    failed = list[Exception]()
    with anyio.fail_after(30):
        await supervisor.start(Unready(name="unready"), failed.append)
    assert [type(error) for error in failed] == [ValueError]
