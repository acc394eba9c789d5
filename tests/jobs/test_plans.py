"""Plans: the jobs of a pool are made to be what a producer says, and nobody else's are touched."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any

import anyio
import anyio.from_thread
import attrs
import pytest

from pool import Call, Handlers, Job, Node
from pool.errors import ConfigError, InvalidOption, NoSuchPlan, PlanRefused
from pool.events import PlanConflicted, PlanFailed, PlanHeld, PlanTurned
from pool.plans import Planned, PlanStatus, StopAll

if TYPE_CHECKING:
    from tests.nodes import Fleet

pytestmark = pytest.mark.anyio

LONG_S = 3600.0  # turns are taken when a test asks for one
ASK_S = 30.0


@attrs.define
class World:
    """What the producer answers, and what runs."""

    answer: Any = ()
    running: dict[str, Any] = attrs.field(factory=dict)
    begun: list[tuple[str, Any]] = attrs.field(factory=list)
    asked: int = 0


def house(world: World, *, version: int = 1, **options: Any) -> Handlers:
    """Return handlers with a plan, whose producer answers what the test says."""
    handlers = Handlers()

    @handlers.service("follow")
    async def follow(job: Job, url: str = "") -> None:
        world.running[job.key] = url
        world.begun.append((job.key, url))
        try:
            await anyio.sleep_forever()
        finally:
            del world.running[job.key]

    @handlers.plan("feeds", follow, every_s=LONG_S, version=version, **options)
    async def feeds(job: Job) -> Any:
        world.asked += 1
        return world.answer(job) if callable(world.answer) else world.answer

    return handlers


async def kept(node: Node) -> PlanStatus:
    """Wait until the plan is kept, and has taken a turn."""
    with anyio.fail_after(ASK_S):
        while True:
            try:
                return await node.plan("feeds").apply(ASK_S)
            except NoSuchPlan:
                await anyio.sleep(0.01)


async def turn(node: Node, world: World, *answer: Any) -> PlanStatus:
    world.answer = answer
    return await node.plan("feeds").apply(ASK_S)


async def until(is_so: Callable[[], object]) -> None:
    with anyio.fail_after(ASK_S):
        while not is_so():
            await anyio.sleep(0.01)


async def test_jobs_are_started_stopped_and_replaced_as_the_producer_says(fleet: Fleet) -> None:
    world = World()
    node = await fleet.node(house(world))
    await kept(node)
    last = (await turn(node, world, "a", Call("b", "x"), Planned("follow", "c"))).last
    assert (last.started, last.kept, last.wanted, last.problem) == (3, 0, 3, "")
    await until(lambda: world.running == {"a": "", "b": "x", "c": ""})
    last = (await turn(node, world, "a", Call("b", "y"))).last
    assert (last.started, last.kept, last.replaced, last.stopped) == (0, 1, 1, 1)
    await until(lambda: world.running == {"a": "", "b": "y"})
    assert world.begun.count(("a", "")) == 1  # what stays as it was goes on
    turned = [e for e in fleet.events.entries if isinstance(e, PlanTurned)]
    assert [(e.started, e.replaced, e.stopped) for e in turned] == [(3, 0, 0), (0, 1, 1)]


async def test_a_key_that_comes_back_begins_at_once(fleet: Fleet) -> None:
    world = World()
    node = await fleet.node(house(world, stop_max=1.0))
    await kept(node)
    for _ in range(3):  # each run of it has an id of its own, though all are remembered
        assert (await turn(node, world, "a", "b")).last.ended == 0
        await until(lambda: world.running == {"a": "", "b": ""})
        assert (await turn(node, world, "a")).last.stopped == 1
        assert world.running == {"a": ""}
    assert world.begun.count(("b", "")) == 3


async def test_jobs_of_others_are_never_touched(fleet: Fleet) -> None:
    world = World()
    node = await fleet.node(house(world))
    await kept(node)
    others = [await node.dispatch("follow", key, "mine") for key in ("other", "taken")]
    await until(lambda: len(world.running) == 2)
    last = (await turn(node, world, "a", "taken")).last
    assert (last.started, last.taken, last.taken_keys) == (1, 1, ("taken",))
    assert PlanConflicted(plan="feeds", key="taken") in fleet.events.entries
    world.answer = StopAll()
    assert (await node.plan("feeds").apply(ASK_S)).last.stopped == 1
    assert world.running == {"other": "mine", "taken": "mine"}
    assert [(await ref.status()).state for ref in others] == ["running", "running"]


async def test_an_answer_that_would_stop_too_much_is_held_until_confirmed(fleet: Fleet) -> None:
    world = World()
    node = await fleet.node(house(world))
    await kept(node)
    plan = node.plan("feeds")
    await turn(node, world, *"abcd")
    await until(lambda: len(world.running) == 4)
    assert (await turn(node, world, *"ab")).last.held == 0  # half of them it may
    await until(lambda: len(world.running) == 2)
    await turn(node, world, *"abcd")
    held = (await turn(node, world, "a", "new")).last
    assert (held.held, held.started, held.stopped, set(held.held_keys)) == (3, 0, 0, set("bcd"))
    assert len(world.running) == 4
    # What was confirmed are those stops, and not others.
    world.answer = ("b",)
    other = (await plan.confirm(held.token, ASK_S)).last
    assert (other.held, other.stopped) == (3, 0)
    assert other.token != held.token
    world.answer = ("a", "new")
    done = (await plan.confirm(held.token, ASK_S)).last
    assert (done.held, done.stopped, done.started) == (0, 3, 1)
    await until(lambda: set(world.running) == {"a", "new"})
    told = [e.token for e in fleet.events.entries if isinstance(e, PlanHeld)]
    assert told == [held.token, other.token]


async def test_an_empty_answer_stops_nothing_unless_it_is_told_to(fleet: Fleet) -> None:
    world = World()
    node = await fleet.node(house(world, stop_max=1.0))
    await kept(node)
    await turn(node, world, "a")
    await until(lambda: world.running)
    assert (await turn(node, world)).last.held == 1
    assert world.running
    assert (await node.plan("feeds").confirm(timeout_s=ASK_S)).last.stopped == 1
    assert not world.running
    assert (await turn(node, world)).last.held == 0  # there is nothing to be stopped


def twice(_: Job) -> list[str]:
    return ["a", "b", "a"]


def nobodys(_: Job) -> list[Any]:
    return [Planned("nobody_has_it", "k")]


def too_large(_: Job) -> list[Any]:
    return [Call("k", "x" * 10_000_000)]


def no_key(_: Job) -> list[Any]:
    return ["a", 7]


def bad_key(_: Job) -> list[Any]:
    return ["a\n"]


def text(_: Job) -> str:
    return "abc"


def raises(_: Job) -> list[Any]:
    raise RuntimeError("the list is on fire")


def both(_: Job) -> list[Any]:
    return ["a", StopAll()]


def own(job: Job) -> list[Any]:
    return [job.key]


def wrong(_: Job) -> list[Any]:
    return [Call("k", nothing=1)]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (twice, "it is there twice"),
        (nobodys, "no node has registered 'nobody_has_it'"),
        (too_large, "POOLTOOLARGE"),
        (no_key, "7 is neither a key nor"),
        (bad_key, "POOLKEY"),
        (text, "POOLOPTION"),
        (raises, "RuntimeError: the list is on fire"),
        (both, "StopAll() stands alone"),
        (own, "it is the plan's own"),
        (wrong, "POOLARGUMENTS"),
    ],
)
async def test_what_cannot_be_changes_nothing(fleet: Fleet, answer: Any, said: str) -> None:
    world = World()
    node = await fleet.node(house(world))
    await kept(node)
    await turn(node, world, "before")
    await until(lambda: world.running)
    world.answer = answer
    last = (await node.plan("feeds").apply(ASK_S)).last
    assert said in last.problem
    assert (last.started, last.stopped, last.held) == (0, 0, 0)
    assert [e.problem for e in fleet.events.entries if isinstance(e, PlanFailed)] == [last.problem]
    with pytest.raises(PlanRefused, match="POOLPLAN"):
        await node.plan("feeds").diff(ASK_S)
    assert set(world.running) == {"before"}
