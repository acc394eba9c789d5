"""A socket is watched from one wait to the next, and costs nothing while nobody waits."""

from __future__ import annotations

import asyncio  # noqa: TID251 - what its loop is asked is counted
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import redis
import sniffio
import trio  # noqa: TID251

from pool.errors import StoreUnavailable
from pool.redis.io.loops import current_loop
from pool.redis.io.system import SystemIO
from pool.redis.pipeline import Pipeline
from pool.redis.url import Url
from tests.redis.test_bad_replies import echoing
from tests.redis.test_task import PATIENCE_S, Caring

LOOK_S = 0.05  # a loop that spins makes thousands of turns in that
TURNS_MAX = 12


class Turns(trio.abc.Instrument):
    """How often the event loop asked its selector."""

    def __init__(self) -> None:
        self.count = 0

    def before_io_wait(self, timeout: float) -> None:
        del timeout
        self.count += 1


@contextmanager
def turns() -> Iterator[Turns]:
    counted = Turns()
    if sniffio.current_async_library() == "trio":
        trio.lowlevel.add_instrument(counted)
        yield counted
        trio.lowlevel.remove_instrument(counted)
        return
    selector: Any = asyncio.get_running_loop()._selector  # type: ignore[attr-defined]
    select = selector.select

    def noted(timeout: float | None = None) -> Any:
        counted.count += 1
        return select(timeout)

    selector.select = noted
    yield counted
    del selector.select


async def is_quiet() -> bool:
    """Whether the loop rests while nothing is to be done."""
    with turns() as counted:
        await anyio.sleep(LOOK_S)
    return counted.count <= TURNS_MAX


@contextmanager
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    here, there = socket.socketpair()
    with here, there:
        here.setblocking(False)
        yield here, there


def read(found: socket.socket) -> int | None:
    try:
        return len(found.recv(100))
    except BlockingIOError:
        return None


@pytest.mark.anyio
@pytest.mark.parametrize("is_end", [False, True])
async def test_what_arrives_for_nobody_is_told_once_and_kept(is_end: bool) -> None:
    """Bytes, or the end: both are there for ever as far as a selector knows."""
    with pair() as (here, there), anyio.fail_after(PATIENCE_S):
        readable = current_loop().readable(here)
        there.sendall(b"one")
        assert await readable.read(read) == 3
        for _ in range(2):
            if is_end:
                there.shutdown(socket.SHUT_WR)
            else:
                there.sendall(b"more")
            assert await is_quiet()
            assert await readable.read(read) == (0 if is_end else 4)
        readable.close()


@pytest.mark.anyio
async def test_what_is_not_enough_ends_no_wait_and_an_error_does() -> None:
    tries: list[int | None] = []

    def try_it(found: socket.socket) -> int | None:
        tries.append(read(found))
        if tries[-1] == 3:
            raise ZeroDivisionError
        return tries[-1] if tries[-1] == 2 else None

    with pair() as (here, there), anyio.fail_after(PATIENCE_S):
        readable = current_loop().readable(here)

        async def send() -> None:
            for text in (b"1", b"22"):
                there.sendall(text)
                while tries[-1:] != [len(text)]:
                    await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            assert await readable.read(try_it) == 2
        there.sendall(b"333")
        with pytest.raises(ZeroDivisionError):
            await readable.read(try_it)
        there.sendall(b"22")
        assert await readable.read(try_it) == 2
        readable.close()


@pytest.mark.anyio
async def test_the_number_of_a_closed_socket_is_anothers_at_once() -> None:
    """Nothing of the old one is left with the loop, and closing that again is harmless."""
    loop = current_loop()
    with pair() as (here, there), pair() as (spare, other), anyio.fail_after(PATIENCE_S):
        number = here.fileno()
        first = loop.readable(here)
        there.sendall(b"one")
        assert await first.read(read) == 3
        copy = os.dup(number)  # as a forked child has: what it holds open stays watched by itself
        first.close()
        here.close()
        os.dup2(spare.fileno(), number)
        with socket.socket(fileno=number) as heir:
            second = loop.readable(heir)
            there.sendall(b"for nobody")
            other.sendall(b"four")
            assert await second.read(read) == 4
            first.close()
            other.sendall(b"fifth")
            assert await second.read(read) == 5
            assert await is_quiet()
            second.close()
        os.close(copy)


@pytest.mark.anyio
async def test_a_wait_that_a_stranger_cancelled_takes_nothing(anyio_backend_name: str) -> None:
    """What comes then is there for the next one, and meanwhile the loop rests."""
    tried = 0

    def counted(found: socket.socket) -> int | None:
        nonlocal tried
        tried += 1
        return read(found)

    with pair() as (here, there), anyio.fail_after(PATIENCE_S):
        readable = current_loop().readable(here)

        async def wait() -> None:
            await readable.read(counted)

        if anyio_backend_name == "asyncio":
            task = asyncio.create_task(wait())
            await anyio.wait_all_tasks_blocked()
            task.cancel()
            there.sendall(b"one")  # and in the same turn
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait)
                await anyio.wait_all_tasks_blocked()
                tasks.cancel_scope.cancel()
            there.sendall(b"one")
        assert await is_quiet()
        assert tried == 0
        assert await readable.read(counted) == 3
        readable.close()


# --- the connection of a pipeline
# ---------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize("is_end", [False, True])
async def test_an_idle_connection_on_which_something_comes_costs_nothing(is_end: bool) -> None:
    with echoing() as (url, echoes), anyio.fail_after(PATIENCE_S):
        pipeline = await Pipeline.open(SystemIO(), Url.parse(url), op_timeout_s=PATIENCE_S)
        assert await pipeline.execute("PING") == b"PONG"
        assert echoes.client is not None
        if is_end:
            echoes.client.shutdown(socket.SHUT_RDWR)
        else:
            echoes.client.sendall(b"+stray\r\n")
        assert await is_quiet()
        assert await pipeline.execute("PING") == b"PONG"
        assert pipeline.connections == 2
        assert await is_quiet()
        await pipeline.aclose(1.0)


@pytest.mark.anyio
@pytest.mark.parametrize("is_idle", [False, True])
async def test_a_connection_gets_the_number_of_the_one_before(
    redis_url: str, is_idle: bool
) -> None:
    pipeline = await Pipeline.open(SystemIO(), Url.parse(redis_url), op_timeout_s=PATIENCE_S)
    connection: Any = pipeline._running_body.body_io.connection  # type: ignore[attr-defined]
    numbers: list[int] = []
    with redis.Redis.from_url(redis_url) as client, anyio.fail_after(PATIENCE_S):
        for turn in range(5):
            me = await pipeline.execute("CLIENT", "ID")
            numbers.append(connection._socket.fileno())
            assert pipeline.connections == turn + 1
            answers: list[object] = []
            if not is_idle:
                pipeline.send(("BLPOP", "nothing", "0"), answers.append)
                while pipeline._queue:
                    await anyio.lowlevel.checkpoint()
            client.client_kill_filter(_id=str(me))
            while not (is_idle or answers):
                await anyio.lowlevel.checkpoint()
            assert await is_quiet()
    assert len(set(numbers)) < len(numbers)
    await pipeline.aclose(1.0)


@pytest.mark.anyio
async def test_a_stranger_who_cancels_a_wait_for_replies_ends_the_connection_alone(
    redis_url: str, anyio_backend_name: str
) -> None:
    if anyio_backend_name == "trio":
        pytest.skip("tasks that anybody may cancel are asyncio's")
    care = Caring()
    pipeline = await Pipeline.open(SystemIO(), Url.parse(redis_url), op_timeout_s=1.0, care=care)
    beside: Any = pipeline._running_body
    try:
        for turn in range(1, 4):
            answers: list[object] = []
            pipeline.send(("BLPOP", "nothing", "0"), answers.append)
            while pipeline._queue:
                await anyio.lowlevel.checkpoint()
            beside._task.cancel()
            while not answers:
                await anyio.lowlevel.checkpoint()
            assert isinstance(answers[0], StoreUnavailable)
            assert answers[0].maybe_done
            assert await pipeline.execute("PING") == b"PONG"  # by the number of the one before
            assert len(care.crashes) == turn
        assert await is_quiet()
        assert pipeline.connections == 4
    finally:
        await pipeline.aclose(1.0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.anyio
async def test_a_forked_child_takes_no_reader_away_from_its_parent(redis_url: str) -> None:
    """They share what the selector watches, and the child closes its copy of the connection."""
    pipeline = await Pipeline.open(SystemIO(), Url.parse(redis_url), op_timeout_s=1.0)
    assert await pipeline.execute("PING") == b"PONG"
    child = os.fork()
    if child == 0:
        try:
            connection: Any = pipeline._running_body.body_io.connection  # type: ignore[attr-defined]
            connection.end()  # as when the copy of the body is thrown away
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0  # noqa: ASYNC222 - it ends at once
    with anyio.fail_after(PATIENCE_S):
        assert await pipeline.execute("PING") == b"PONG"
    assert pipeline.connections == 1
    await pipeline.aclose(1.0)
