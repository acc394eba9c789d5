"""User code of every kind that ends as no code should: it fails, and nothing else does."""

from __future__ import annotations

import asyncio  # noqa: TID251 - whose tasks anybody may cancel
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import attrs
import pytest

from pool import Depends, Handlers, Job, Node
from pool.errors import JobParked, NoSuchPlan, PlanRefused
from pool.events import ActorCrashed, HookFailed, PlanFailed
from pool.middleware import Happened

if TYPE_CHECKING:
    from tests.nodes import Fleet

pytestmark = pytest.mark.anyio

LONG_S = 3600.0
ASK_S = 60.0
PATIENT: dict[str, Any] = {"lease_ttl_s": 30.0, "op_timeout_s": 10.0}


class Own(BaseException):
    """As libraries have them that must not be caught."""


ENDS: list[type[BaseException]] = [
    *(SystemExit, Own, GeneratorExit, asyncio.CancelledError, RecursionError, ValueError)
]


@attrs.define
class Trap:
    """What user code raises while it is set."""

    kind: type[BaseException] | None = None

    def spring(self) -> None:
        if self.kind is not None:
            raise self.kind("it is over")


class Raising(list[Any]):
    """Whoever looks at it sets the trap off."""

    def __init__(self, trap: Trap) -> None:
        super().__init__([1])
        self.trap = trap

    def __iter__(self) -> Iterator[Any]:
        self.trap.spring()
        return super().__iter__()


@attrs.frozen
class Coded:
    """A codec that the trap is set in."""

    trap: Trap
    name: str = "coded"

    def encode(self, value: Any) -> bytes:
        return repr(value).encode()

    def decode(self, _: bytes) -> Any:
        self.trap.spring()
        return {"args": [], "kwargs": {}}


def job_kinds(handlers: Handlers, trap: Trap) -> list[str]:
    """Register a job for each place in which a run calls user code; return their names."""

    def upcast(version: int, args: Any, kwargs: Any) -> Any:
        trap.spring()
        return args, kwargs

    def needed(job: Job) -> Iterator[int]:
        trap.spring()
        yield 1

    async def closed(job: Job) -> AsyncIterator[int]:
        yield 1
        trap.spring()

    @handlers.job("coroutine")
    async def coroutine(job: Job) -> None:
        await anyio.lowlevel.checkpoint()
        trap.spring()

    @handlers.job("plain")
    def plain(job: Job) -> None:
        trap.spring()

    @handlers.job("blocking")
    async def blocking(job: Job) -> None:
        await job.run_blocking(trap.spring)

    @handlers.job("result")
    async def result(job: Job) -> Any:
        return Raising(trap)

    @handlers.job("state")
    async def state(job: Job) -> None:
        await job.save(Raising(trap))

    @handlers.job("upcast", version=2, upcast=upcast)
    async def upcasts(job: Job) -> None:
        return None

    @handlers.job("coded", codec=Coded(trap))
    async def coded(job: Job, number: int = 0) -> None:
        return None

    @handlers.job("depends")
    async def depends(job: Job, given: int = Depends(needed)) -> None:
        return None

    @handlers.job("closes")
    async def closes(job: Job, given: int = Depends(closed)) -> None:
        return None

    inner = Handlers(attempts_max=1)

    @inner.around_run
    async def guard(job: Job, call_next: Any) -> Any:
        trap.spring()
        return await call_next()

    @inner.job("guarded")
    async def guarded(job: Job) -> None:
        return None

    handlers.include(inner)
    return list(handlers)


PRODUCERS: list[Callable[[Trap], Any]] = []


@PRODUCERS.append
def coroutine(trap: Trap) -> Any:
    async def produce(job: Job) -> list[str]:
        await anyio.lowlevel.checkpoint()
        trap.spring()
        return ["feed"]

    return produce


@PRODUCERS.append
def plain(trap: Trap) -> Any:
    def produce(job: Job) -> list[str]:
        trap.spring()
        return ["feed"]

    return produce


@PRODUCERS.append
def generator(trap: Trap) -> Any:
    def produce(job: Job) -> Iterator[str]:
        yield "feed"
        trap.spring()

    return produce


@PRODUCERS.append
def async_generator(trap: Trap) -> Any:
    async def produce(job: Job) -> AsyncIterator[str]:
        yield "feed"
        trap.spring()

    return produce


@PRODUCERS.append
def iterated(trap: Trap) -> Any:
    return lambda _: Raising(trap) if trap.kind is not None else ["feed"]


async def applied(node: Node, name: str) -> Any:
    with anyio.fail_after(ASK_S):
        while True:
            try:
                return (await node.plan(name).apply(ASK_S)).last
            except NoSuchPlan:
                await anyio.sleep(0.01)


@pytest.mark.parametrize("kind", ENDS, ids=lambda kind: kind.__name__)
async def test_however_user_code_ends_only_it_has_failed(
    fleet: Fleet, kind: type[BaseException]
) -> None:
    trap, handlers, running = Trap(), Handlers(attempts_max=1), set[str]()
    names = job_kinds(handlers, trap)

    @handlers.job("well")
    async def well(job: Job) -> str:
        return "well"

    @handlers.on("started")
    async def hears(happened: Happened) -> None:
        if happened.handler == "well":
            trap.spring()

    @handlers.on("started")
    def hears_plainly(happened: Happened) -> None:
        if happened.handler == "well":
            trap.spring()

    @handlers.service("follow")
    async def follow(job: Job) -> None:
        running.add(job.key)
        try:
            await anyio.sleep_forever()
        finally:
            running.discard(job.key)

    plans = [make.__name__ for make in PRODUCERS]
    for make in PRODUCERS:
        handlers.plan(make.__name__, follow, every_s=LONG_S)(make(trap))

    node = await fleet.node(handlers, **PATIENT)
    for name in plans:
        await applied(node, name)
    await fleet.until(lambda: running)
    caller = await fleet.node(observers=(), **PATIENT)
    old = Handlers().job("upcast")(well.fn)  # of version 1
    trap.kind = kind
    for name in names:
        sent: Any = {"upcast": old, "coded": handlers["coded"]}.get(name, name)
        ref = await caller.dispatch(sent, f"k-{name}", *[1] * (name == "coded"))
        with pytest.raises(JobParked) as parked:
            await ref.result(timeout_s=ASK_S)
        assert kind.__name__ in parked.value.last_error, name
    for name in plans:
        last = await applied(caller, name)
        assert kind.__name__ in last.problem, name
        assert (last.started, last.stopped) == (0, 0)
        with pytest.raises(PlanRefused, match=kind.__name__):
            await caller.plan(name).diff(ASK_S)
    told = [each.plan for each in fleet.all_seen(PlanFailed)]
    assert sorted(told) == sorted(plans)
    assert await (await caller.dispatch("well", "probe")).result(timeout_s=ASK_S) == "well"
    await fleet.seen(HookFailed, times=2)
    trap.kind = None
    for name in plans:
        assert not (await applied(caller, name)).problem
    assert await (await caller.dispatch("well", "again")).result(timeout_s=ASK_S) == "well"
    assert running == {"feed"}
    assert not fleet.all_seen(ActorCrashed)
    assert len(fleet.all_seen(HookFailed)) == 2  # each was called once


@pytest.mark.parametrize("how", ["own task", "itself", "on its way out"])
async def test_a_cancellation_of_a_producers_own_is_a_failed_turn(
    fleet: Fleet, anyio_backend_name: str, how: str
) -> None:
    """On asyncio whoever knows a task can cancel it; on trio a scope of its own is left over."""
    trap, running, handlers = Trap(), set[str](), Handlers()

    @handlers.service("follow")
    async def follow(job: Job) -> None:
        running.add(job.key)
        await anyio.sleep_forever()

    @handlers.plan("feeds", follow, every_s=LONG_S)
    async def feeds(job: Job) -> list[str]:
        if trap.kind is None:
            return ["feed"]
        if anyio_backend_name == "trio":
            caught: list[BaseException] = []
            with anyio.CancelScope() as scope:
                scope.cancel()
                try:
                    await anyio.sleep_forever()
                except BaseException as error:
                    caught.append(error)
                    raise
            raise caught[0]
        if how == "own task":
            task = asyncio.create_task(asyncio.sleep(LONG_S))
            task.cancel()
            await task
        current = asyncio.current_task()
        assert current is not None
        current.cancel()
        if how == "itself":
            await anyio.sleep_forever()
        return []  # before that has come

    node = await fleet.node(handlers, **PATIENT)
    first = await applied(node, "feeds")
    await fleet.until(lambda: running == {"feed"})
    trap.kind = ValueError
    last = await applied(node, "feeds")
    if how == "on its way out" and anyio_backend_name == "asyncio":
        assert (last.problem, last.held) == ("", 1)  # what it returned counts
        assert (await node.plan("feeds").diff(ASK_S)).is_held
    else:
        assert "cancelled by itself or by its own tasks" in last.problem
        with pytest.raises(PlanRefused, match="cancelled by itself"):
            await node.plan("feeds").diff(ASK_S)
    trap.kind = None
    last = await applied(node, "feeds")
    assert (last.problem, last.kept, last.epoch) == ("", 1, first.epoch)  # it is the same job


async def test_ctrl_c_out_of_a_producer_is_for_one_node_and_no_other(fleet: Fleet) -> None:
    """As out of a handler; but a producer that raises it each time does not end the whole fleet."""
    trap, running, handlers = Trap(), set[str](), Handlers()

    @handlers.service("follow")
    async def follow(job: Job) -> None:
        running.add(job.key)
        await anyio.sleep_forever()

    @handlers.plan("feeds", follow, every_s=LONG_S)
    async def feeds(job: Job) -> list[str]:
        trap.spring()
        return ["feed"]

    ended, settings = list[BaseException](), attrs.evolve(fleet.settings, **PATIENT)
    caller = await fleet.node(observers=(), **PATIENT)

    async def member() -> None:
        try:
            async with Node(
                fleet.pool, fleet.url, handlers=handlers, settings=settings, observers=()
            ):
                await anyio.sleep_forever()
        except KeyboardInterrupt as error:
            ended.append(error)

    async with anyio.create_task_group() as members:
        for _ in range(3):
            members.start_soon(member)
        await applied(caller, "feeds")
        trap.kind = KeyboardInterrupt
        for _ in range(4):
            assert "KeyboardInterrupt" in (await applied(caller, "feeds")).problem
        await fleet.until(lambda: ended)
        await fleet.knows(caller, 2)
        assert "KeyboardInterrupt" in (await applied(caller, "feeds")).problem
        trap.kind = None
        last = await applied(caller, "feeds")
        assert (last.problem, last.wanted, last.stopped) == ("", 1, 0)
        assert len(ended) == 1
        members.cancel_scope.cancel()


async def test_ctrl_c_out_of_a_producer_is_told_whatever_becomes_of_its_turn(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was saved, and its owner cut off just then: the next one knew of it, and told nobody."""
    handlers, store, cut = Handlers(), Job._store, list[str]()

    @handlers.service("follow")
    async def follow(job: Job) -> None: ...

    @handlers.plan("feeds", follow, every_s=LONG_S)
    async def feeds(job: Job) -> list[str]:
        raise KeyboardInterrupt

    async def stored(job: Job, encoded: bytes) -> None:
        await store(job, encoded)
        if not cut:
            cut.append(job.key)
            raise LookupError

    monkeypatch.setattr(Job, "_store", stored)
    settings = attrs.evolve(fleet.settings, **PATIENT)
    with pytest.raises(KeyboardInterrupt), anyio.fail_after(ASK_S):
        async with Node(fleet.pool, fleet.url, handlers=handlers, settings=settings, observers=()):
            await anyio.sleep_forever()
    assert cut == ["plan:feeds"]


@pytest.mark.parametrize("kind", ENDS, ids=lambda kind: kind.__name__)
async def test_a_lifespan_that_ends_so_is_told(fleet: Fleet, kind: type[BaseException]) -> None:
    """At its node's end; the node leaves as ever."""

    @asynccontextmanager
    async def lifespan(node: Node) -> AsyncIterator[None]:
        yield
        raise kind("it is over")

    handlers = Handlers(lifespan=lifespan)

    @handlers.job("well")
    async def well(job: Job) -> None:
        return None

    node = await fleet.node(handlers, **PATIENT)
    await fleet.leave(node)
    assert [each.restarts for each in fleet.all_seen(ActorCrashed, actor="lifespan")] == [0]
