"""Every call that was ever made returns, whatever becomes of its node meanwhile."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pool import Handlers, Job, Node, PoolError
from pool.errors import AuthError, NotRunning, StoreUnavailable
from pool.events import ActorCrashed
from pool.jobs.client import dispatcher
from pool.jobs.client.dispatcher import FLIGHTS_MAX, Accepted
from pool.redis.commands.admission import DISPATCH
from pool.redis.embedded.server import EmbeddedServer
from pool.redis.pipeline import Pipeline
from pool.redis.scripts import ScriptCall
from pool.testing import fault_proxy
from tests.nodes import SETTINGS

if TYPE_CHECKING:
    from tests.nodes import Fleet

pytestmark = pytest.mark.anyio

OP_S = SETTINGS.op_timeout_s


def handlers_of() -> Handlers:
    handlers = Handlers()

    @handlers.job("quick")
    async def quick(job: Job) -> str:
        return job.key

    @handlers.job("long")
    async def long(job: Job) -> None:
        await anyio.sleep_forever()

    @handlers.service("serve")
    async def serve(job: Job) -> None:
        async for _ in job.notifications():
            pass

    return handlers


Calls = dict[str, Callable[[Node], Awaitable[Any]]]


def calls_of(handlers: Handlers) -> Calls:
    """Every public call of a node, as somebody makes it for the first time."""

    async def result(node: Node) -> None:
        await (
            await node.dispatch(
                "long",
                "r",
            )
        ).result()

    async def started(node: Node) -> None:
        await (await node.options(delay_s=60).dispatch("quick", "d")).started()

    async def stop(node: Node) -> None:
        ref = await node.dispatch("long", "s")
        await ref.stop(timeout_s=OP_S)

    async def held_map(node: Node) -> None:
        async with node.map("m") as copy:
            await copy.set_and_wait("k", "v")

    async def add(node: Node) -> None:
        worker = await node.add_worker(handlers)
        await worker.remove(grace_s=0.0)

    return {
        "dispatch": lambda node: node.dispatch("quick", f"q{random.random()}"),
        "many": lambda node: node.dispatch_many("quick", [f"m{i}" for i in range(3000)]),
        "result": result,
        "started": started,
        "stop": stop,
        "notify": lambda node: node.notify("serve", 1),
        "status": lambda node: node.status("serve"),
        "map": held_map,
        "add": add,
        "drain": lambda node: node.drain(grace_s=0.0),
        "closed": lambda node: node.wait_drained(),
    }


async def made(
    name: str, call: Callable[[Node], Awaitable[Any]], node: Node, told: dict[str, Any]
) -> None:
    try:
        told[name] = await call(node)
    except (PoolError, TimeoutError) as error:
        told[name] = error


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("end", ["leave", "crash"])
async def test_whatever_is_under_way_when_a_node_ends_is_answered(
    fleet: Fleet, end: str, seed: int
) -> None:
    """At a moment of the dice's choice; with an answer, or with a typed error."""
    dice, handlers = random.Random(seed), handlers_of()
    fleet.is_audited = end == "leave"
    other = await fleet.node(handlers)
    await other.dispatch("serve", "serve")
    node = await fleet.node(handlers, grace_s=0.0, restarts_max=0)
    calls, told = calls_of(handlers), dict[str, Any]()
    names = [name for name in calls if name != "drain" or dice.random() < 0.3]
    async with anyio.create_task_group() as tasks:
        for name in names:
            tasks.start_soon(made, name, calls[name], node, told)
        for _ in range(dice.choice((0, 1, 2, 5, 10, 50))):
            await anyio.lowlevel.checkpoint()
        await anyio.sleep(dice.choice((0.0, 0.001, 0.01, 0.05)))
        if end == "leave":
            await fleet.leave(node)
        else:
            fleet.wiring(node).membership.spawn(crashing)
            await fleet.ended(node)
        with anyio.move_on_after(OP_S + 20.0) as late:
            await fleet.until(lambda: len(told) == len(names))
        missing = set(names) - set(told)
        tasks.cancel_scope.cancel()
    assert not late.cancelled_caught, f"never answered: {missing}"
    assert not fleet.all_seen(ActorCrashed, actor="dispatcher")


async def crashing() -> None:
    raise KeyError("k")


@pytest.mark.parametrize("late_s", [0.1, 0.4, 0.7])
async def test_what_is_asked_while_the_node_leaves_a_silent_server_is_answered(
    own_server: EmbeddedServer, late_s: float
) -> None:
    """A4: in flight, or held by a retry's timer, it was answered to an actor that had ended."""
    told: dict[str, Any] = {}
    async with fault_proxy(own_server.url) as proxy, anyio.create_task_group() as tasks:
        node = Node("p", proxy.url, settings=SETTINGS, observers=())
        async with node:
            ref = await node.options(allow_unknown=True).dispatch("quick", "first")
            proxy.go_silent()

            async def late() -> None:
                await anyio.sleep(late_s * OP_S)
                for i in range(20):
                    name = f"d{i}"
                    tasks.start_soon(made, name, lambda n: n.dispatch("quick", "k"), node, told)
                tasks.start_soon(made, "result", lambda _: ref.result(), node, told)

            tasks.start_soon(late)
        with anyio.move_on_after(20.0):
            while len(told) < 21:  # noqa: ASYNC110 - each call tells when it returns
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    assert len(told) == 21
    assert all(isinstance(each, (StoreUnavailable, NotRunning)) for each in told.values())


async def test_a_dispatcher_that_crashes_in_flight_sends_again_what_it_had(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first of a batch was answered, and between two of it."""
    node = await fleet.node(handlers_of())
    count = iter(range(1_000))

    def failing(*args: Any) -> Accepted:
        if next(count) in (0, 51):
            raise KeyError("k")
        return Accepted(*args)

    monkeypatch.setattr(dispatcher, "Accepted", failing)  # every admission's answer
    with anyio.fail_after(30):
        refs = await node.dispatch_many("quick", [f"k{i}" for i in range(100)])
    assert not any(isinstance(ref, PoolError) for ref in refs)
    assert len(fleet.all_seen(ActorCrashed, actor="dispatcher")) == 2


async def test_a_dispatcher_that_crashes_too_often_answers_whoever_waits(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.is_audited = False
    node = await fleet.node(handlers_of(), restarts_max=1)
    ref = await node.dispatch("long", "l")
    told: dict[str, Any] = {}

    def failing(*_: Any) -> Any:
        raise KeyError("k")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made, "result", lambda _: ref.result(), node, told)
        await ref.started(timeout_s=30)
        monkeypatch.setattr(dispatcher, "Accepted", failing)
        tasks.start_soon(made, "dispatch", lambda n: n.dispatch("quick", "q"), node, told)
        assert isinstance(await fleet.ended(node), KeyError)
        with anyio.fail_after(OP_S + 20.0):
            await fleet.until(lambda: len(told) == 2)
    assert isinstance(told["result"], NotRunning)
    assert isinstance(told["dispatch"], StoreUnavailable)
    assert told["dispatch"].maybe_done


@pytest.mark.parametrize("last", [AuthError(problem="no"), NotRunning(state="closed")])
async def test_what_an_earlier_try_may_have_done_no_later_error_denies(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, last: PoolError
) -> None:
    """C1: who believed the last one ran the job twice."""
    real, tries = Pipeline.send, list[float]()

    def send(self: Pipeline, command: Any, on_reply: Any, **limits: float) -> None:
        if not isinstance(command, ScriptCall) or command.script is not DISPATCH:
            return real(self, command, on_reply, **limits)
        tries.append(limits["timeout_s"])
        on_reply(StoreUnavailable(problem="lost", maybe_done=True) if not tries[1:] else last)
        return None

    node = await fleet.node(handlers_of())
    monkeypatch.setattr(Pipeline, "send", send)
    with pytest.raises(StoreUnavailable) as told:
        await node.dispatch("quick", "k")
    assert told.value.maybe_done
    first_s, second_s = tries
    assert second_s < first_s <= OP_S  # all tries together have the time of one call


async def _quick(key: str, node: Node) -> object:
    return await node.dispatch("quick", key)


async def test_who_waits_for_the_calls_before_it_is_answered_in_time(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while these are not: nothing of it was sent, and nothing is when its time is up."""
    real, answers = Pipeline.send, list[Callable[[PoolError], object]]()

    def send(self: Pipeline, command: Any, on_reply: Any, **limits: float) -> None:
        if not isinstance(command, ScriptCall) or command.script is not DISPATCH:
            return real(self, command, on_reply, **limits)
        return answers.append(on_reply)

    node = await fleet.node(handlers_of(), op_timeout_s=1.0)
    told = dict[str, Any]()
    monkeypatch.setattr(Pipeline, "send", send)
    async with anyio.create_task_group() as tasks:
        for i in range(FLIGHTS_MAX + 1):
            name, count = f"k{i}", min(i + 1, FLIGHTS_MAX)
            tasks.start_soon(made, name, partial(_quick, name), node, told)
            await fleet.until(partial(lambda count: len(answers) == count, count))
        last = f"k{FLIGHTS_MAX}"
        await fleet.until(lambda: last in told)
        assert [*told] == [last]
        assert (told[last].problem.startswith("not sent"), told[last].maybe_done) == (True, False)
        for answer in answers:
            answer(StoreUnavailable(problem="lost", maybe_done=True))
    assert len(answers) == FLIGHTS_MAX
    assert all(each.maybe_done for name, each in told.items() if name != last)


async def test_many_lanes_at_the_shortest_ttl_overflow_no_mailbox(a_fleet: Fleet) -> None:
    """A5: 256 lanes told 256 lease ends at once; a mailbox for 256 ended the node."""
    async with a_fleet.running():
        node = await a_fleet.node(handlers_of(), lanes=256, lease_ttl_s=1.0, op_timeout_s=10.0)
        wiring = a_fleet.wiring(node)
        for lane in range(256):
            wiring._reaper.lease_ends(lane, 1.0)
            wiring._reaper.suspect(lane, (f"nobody-{lane}.1",))
            wiring._sweeper.due(lane, 1.0)
        await anyio.sleep(1.2)  # some rounds of renewals
        assert node.state == "open"
        assert not a_fleet.all_seen(ActorCrashed)


async def test_a_sweep_of_thousands_of_overdue_starts_overflows_no_mailbox(fleet: Fleet) -> None:
    """A5: each start of a dead owner told the reaper once more, whose mailbox held 256."""
    names, count = fleet.names, 4_000
    fleet.is_audited = False  # records made by hand
    node = await fleet.node(sweep_batch=250, op_timeout_s=4.0)
    with fleet.client.pipeline(transaction=False) as pipe:
        for n in range(count):
            owner = f"wdead{n % 500}.1"
            record = f"P|j|late-{n}|quick|{owner}|1{n}|1|dp||||||||"
            pipe.hset(names.jobs, f"late-{n}", record)
            pipe.hset(names.payloads, f"late-{n}", "[]")
            pipe.zadd(names.pending, {f"late-{n}": 1})
        pipe.execute()
    await fleet.until(lambda: fleet.client.zcount(names.pending, 0, 1) == 0)
    assert node.state == "open"
    assert not fleet.all_seen(ActorCrashed)
