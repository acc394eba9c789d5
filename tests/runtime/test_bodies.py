"""A body that ends unasked is told, begins anew, and ends its owner if that happens too often."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Literal

import anyio
import anyio.lowlevel
import pytest

from pool import Handlers, Job, Node, Settings, Stream
from pool.errors import PartEnded, StoreUnavailable
from pool.events import ActorCrashed
from pool.maps.standalone import Standalone
from pool.redis.io.system import Body, RunningBody, SystemIO
from pool.redis.pipeline import Pipeline
from pool.redis.url import Url

PATIENCE_S = 30.0
PARTS = ("pool-pipeline", "pool-listener-0", "pool-maps", "pool-keepalive")
How = Literal["raises", "returns"]


class _Return(Exception):
    """Has the body return."""


class Crashing(SystemIO):
    """A IO whose bodies end at their next word to the server, as often as they are told."""

    def __init__(self) -> None:
        super().__init__()
        self.left: dict[str, float] = {}
        self.how: How = "raises"

    def crash(self, name: str, times: float, how: How = "raises") -> None:
        self.left[name], self.how = times, how

    def start(self, name: str, url: Url, body: Body, **options: Any) -> RunningBody:
        async def crashing(port: Any) -> None:
            def breaking(method: Callable[..., Any]) -> Callable[..., Any]:
                async def broken(*args: Any, **more: Any) -> Any:
                    if self.left.get(name, 0) > 0:
                        self.left[name] -= 1
                        raise _Return if self.how == "returns" else ZeroDivisionError
                    return await method(*args, **more)

                return broken

            # Anew in each life, and so from the methods of the class.
            port.run = breaking(partial(type(port).run, port))
            port.read = breaking(partial(type(port).read, port))
            try:
                await body(port)
            except _Return:
                return

        return super().start(name, url, crashing, **options)


class Told:
    """What the observers heard."""

    def __init__(self) -> None:
        self.crashes: list[ActorCrashed] = []
        self._changed = anyio.Event()

    def __call__(self, event: object) -> None:
        if isinstance(event, ActorCrashed):
            self.crashes.append(event)
            self._changed.set()

    async def until(self, is_so: Callable[[], bool]) -> None:
        with anyio.fail_after(PATIENCE_S):
            while not is_so():
                self._changed = anyio.Event()
                await self._changed.wait()


handlers = Handlers()


@handlers.job("double")
async def double(job: Job, n: int) -> int:
    return 2 * n


@pytest.mark.anyio
@pytest.mark.parametrize("how", ["raises", "returns"])
@pytest.mark.parametrize("part", PARTS)
async def test_a_part_that_crashes_is_told_and_goes_on(
    redis_url: str, pool_name: str, part: str, how: How
) -> None:
    """13.1: whether it raised or returned unasked."""
    io, told = Crashing(), Told()
    settings = Settings(lease_ttl_s=1.0)
    node = Node(
        pool_name, redis_url, handlers=handlers, settings=settings, _io=io, observers=[told]
    )
    async with node:
        io.crash(part, 2, how)
        with anyio.fail_after(PATIENCE_S):
            while len(told.crashes) < 2:
                try:  # so that every part has something to say
                    await (await node.dispatch(double, "k", 1)).result()
                except StoreUnavailable:
                    assert part == "pool-pipeline"
            assert await (await node.dispatch(double, "after", 21)).result() == 42
            while node.state != "open":  # noqa: ASYNC110 - nothing tells it
                await anyio.sleep(0.01)
    assert {crash.actor for crash in told.crashes} == {part}
    kind = "ZeroDivisionError" if how == "raises" else "PartEnded"
    assert all(crash.error.startswith(kind) for crash in told.crashes)


@pytest.mark.anyio
@pytest.mark.parametrize("how", ["raises", "returns"])
@pytest.mark.parametrize("part", PARTS)
async def test_a_part_that_crashes_too_often_ends_the_node_with_the_cause(
    redis_url: str, pool_name: str, part: str, how: How
) -> None:
    io, told = Crashing(), Told()
    settings = Settings(lease_ttl_s=1.0, restarts_max=2)
    node = Node(
        pool_name, redis_url, handlers=handlers, settings=settings, _io=io, observers=[told]
    )
    with anyio.fail_after(PATIENCE_S):
        with pytest.raises(  # noqa: PT012 - it comes out of the block, or of a call in it
            ZeroDivisionError if how == "raises" else PartEnded
        ):
            async with node:
                io.crash(part, math.inf, how)
                while True:  # so that every part has something to say
                    await (await node.dispatch(double, "k", 1)).result()
    assert node.state == "closed"
    assert [crash.actor for crash in told.crashes] == [part] * 3


@pytest.mark.anyio
async def test_a_map_and_a_stream_without_a_node_end_with_the_cause_too(
    redis_url: str, pool_name: str
) -> None:
    settings = Settings(lease_ttl_s=1.0, restarts_max=1)
    with anyio.fail_after(PATIENCE_S):
        io, told = Crashing(), Told()
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with (
                Standalone(
                    pool_name, redis_url, settings=settings, observers=[told], _io=io
                ) as alone,
                alone.maps.hold("m"),
            ):
                io.crash("pool-maps", math.inf)
                await anyio.sleep_forever()
        io, told = Crashing(), Told()
        stream = Stream.open(
            redis_url, "s", pool=pool_name, settings=settings, _io=io, observers=[told]
        )
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with stream as events:
                io.crash("pool-pipeline", math.inf)
                while True:
                    with suppress(StoreUnavailable):  # what was in flight
                        await events.fetch_length()


@pytest.mark.anyio
async def test_a_reader_that_crashes_too_often_gives_its_program_the_cause_and_ends_nobody_else(
    redis_url: str, pool_name: str
) -> None:
    settings = Settings(lease_ttl_s=1.0, restarts_max=1)
    io, told = Crashing(), Told()
    with anyio.fail_after(PATIENCE_S):
        async with Node(pool_name, redis_url, settings=settings, _io=io, observers=[told]) as node:
            stream = node.stream("s")
            async with stream.reader() as reader:
                await stream.add("e", b"")
                assert (await anext(reader)).event == "e"
                io.crash("pool-reader", math.inf)
                with pytest.raises(ZeroDivisionError):
                    await anext(reader)
            assert node.state == "open"
            assert await stream.fetch_length() == 1


@pytest.mark.anyio
async def test_what_a_crashed_link_held_is_answered_and_what_waits_goes_out(
    redis_url: str, pool_name: str
) -> None:
    io, told = Crashing(), Told()
    async with Node(pool_name, redis_url, _io=io, observers=[told]) as node:
        pipeline = node._open_wiring.context.pipeline
        answers: list[Any] = []
        io.crash("pool-pipeline", 1)
        pipeline.send(("PING",), answers.append)  # goes out at once, and the body crashes with it
        await told.until(lambda: bool(told.crashes))
        assert await pipeline.execute("PING") == b"PONG"
        [lost] = answers
        assert isinstance(lost, StoreUnavailable)
        assert lost.maybe_done


@pytest.mark.anyio
async def test_who_raises_at_his_reply_keeps_nobody_else_from_theirs(
    redis_url: str, pool_name: str
) -> None:
    """A6: it is told as a crash; and so is what a timer raises, on both event loops."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    told = Told()
    async with Node(pool_name, redis_url, observers=[told]) as node:
        context = node._open_wiring.context
        answers: list[Any] = []
        for on_reply in (answers.append, fail, answers.append):
            context.pipeline.send(("PING",), on_reply)
        await told.until(lambda: bool(told.crashes))
        assert await context.pipeline.execute("PING") == b"PONG"
        assert answers == [b"PONG", b"PONG"]
        assert [crash.actor for crash in told.crashes] == ["pool-pipeline/reply"]
        context.loop.later(0.0, fail)
        await told.until(lambda: len(told.crashes) == 2)
        assert told.crashes[1].actor == "timer"
        assert node.state == "open"


@pytest.mark.anyio
async def test_what_stands_before_a_refused_call_goes_out(redis_url: str, pool_name: str) -> None:
    """A6: of several plain calls, the queue had room for some."""
    with anyio.fail_after(PATIENCE_S):
        pipeline = await Pipeline.open(
            SystemIO(), Url.parse(redis_url), op_timeout_s=2.0, queued_max=2
        )
        key = f"pool:{{{pool_name}}}:n"
        with pytest.raises(StoreUnavailable, match="wait already"):
            await pipeline.execute_all([("INCR", key)] * 3)
        while pipeline._queue:
            await anyio.lowlevel.checkpoint()
        assert await pipeline.execute("GET", key) == b"2"
        await pipeline.execute("DEL", key)
        await pipeline.aclose(1.0)


@pytest.mark.anyio
async def test_a_strangers_cancellation_of_a_body_is_a_crash_like_any_other(
    redis_url: str, pool_name: str, anyio_backend_name: str
) -> None:
    if anyio_backend_name == "trio":
        pytest.skip("tasks that anybody may cancel are asyncio's")
    told = Told()
    async with Node(pool_name, redis_url, observers=[told]) as node:
        pipeline = node._open_wiring.context.pipeline
        pipeline._running_body._task.cancel()  # type: ignore[attr-defined]
        await told.until(lambda: bool(told.crashes))
        assert await pipeline.execute("PING") == b"PONG"
    assert [crash.actor for crash in told.crashes] == ["pool-pipeline"]


async def test_a_stranger_who_never_rests_kills_no_body(
    redis_url: str, pool_name: str, anyio_backend_name: str
) -> None:
    """Also not in the pause before its next life, where the body itself does not wait."""
    if anyio_backend_name == "trio":
        pytest.skip("tasks that anybody may cancel are asyncio's")
    told = Told()
    async with Node(pool_name, redis_url, handlers=handlers, observers=[told]) as node:
        context = node._open_wiring.context
        listener = node._open_wiring._listener.tailers.each[0]._running_body
        for beside in (context.pipeline._running_body, listener):
            for _ in range(4):
                beside._task.cancel()  # type: ignore[union-attr]
                await anyio.sleep(0.01)
        await told.until(lambda: len(told.crashes) >= 4)
        with anyio.fail_after(PATIENCE_S):
            while node.state != "open":  # noqa: ASYNC110 - nothing tells it
                await anyio.sleep(0.01)
            assert await (await node.dispatch(double, "k", 21)).result() == 42


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.anyio
async def test_a_body_ends_with_whoever_cares_for_it(
    redis_url: str, pool_name: str, part: str
) -> None:
    """However that ended, and though nobody closed the body."""
    io, bodies = Crashing(), dict[str, RunningBody]()
    start = io.start

    def noted(name: str, *args: Any, **options: Any) -> RunningBody:
        bodies[name] = start(name, *args, **options)
        return bodies[name]

    io.start = noted  # type: ignore[method-assign]
    async with Node(pool_name, redis_url, _io=io, observers=[]) as node:
        node._open_wiring._supervisor.end()
        with anyio.fail_after(PATIENCE_S):
            while bodies[part].state != "ended":  # noqa: ASYNC110 - nothing tells it
                await anyio.sleep(0.001)
