"""What runs beside the event loop can be woken, interrupted, ended, and dies in a forked child."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
import redis

from pool.errors import Gone, NotRunning, PoolError, StoreUnavailable
from pool.redis.io.system import Body, BodyIO, Entries, RunningBody, SystemIO
from pool.redis.url import Url
from pool.testing.proxy import fault_proxy

PATIENCE_S = 30.0


@asynccontextmanager
async def running(url: str, body: Body) -> AsyncIterator[RunningBody]:
    beside = SystemIO().start("pool-test", Url.parse(url), body)
    try:
        yield beside
    finally:
        assert await beside.aclose(PATIENCE_S)


@pytest.mark.anyio
async def test_a_body_runs_beside_the_loop_and_comes_back_to_it(redis_url: str) -> None:
    arrived = anyio.Event()
    heard: list[object] = []

    def hear(*what: object) -> None:
        heard.extend(what)
        arrived.set()

    async def body(body_io: BodyIO) -> None:
        replies = await body_io.run([("PING",), ("ECHO", "x")], timeout_s=PATIENCE_S)
        assert body_io.post(hear, *replies)

    with anyio.fail_after(PATIENCE_S):
        async with running(redis_url, body):
            await arrived.wait()
    assert heard == [b"PONG", b"x"]


@pytest.mark.anyio
async def test_a_wake_up_before_the_wait_counts(redis_url: str) -> None:
    woken = anyio.Event()
    ready = anyio.Event()

    async def body(body_io: BodyIO) -> None:
        body_io.post(ready.set)
        await body_io.wait()
        await body_io.sleep(PATIENCE_S)
        body_io.post(woken.set)
        await body_io.wait()  # ended by close

    with anyio.fail_after(PATIENCE_S / 2):
        async with running(redis_url, body) as beside:
            beside.wake()
            await ready.wait()
            while not woken.is_set():
                beside.wake()
                await anyio.lowlevel.checkpoint()


@pytest.mark.anyio
async def test_a_blocked_read_is_ended_by_interrupt(redis_url: str, pool_name: str) -> None:
    stream = f"pool:{{{pool_name}}}:s"
    seen: list[Entries] = []
    step = [anyio.Event() for _ in range(3)]

    async def body(body_io: BodyIO) -> None:
        for done in step:
            entries = await body_io.read(
                {stream: "0-0"}, block_s=PATIENCE_S / 2, timeout_s=PATIENCE_S, count=10
            )
            body_io.post(seen.append, entries)
            body_io.post(done.set)

    with anyio.fail_after(PATIENCE_S / 3), redis.Redis.from_url(redis_url) as client:
        async with running(redis_url, body) as beside:
            while not client.info("clients")["blocked_clients"]:
                await anyio.lowlevel.checkpoint()
            beside.interrupt()
            await step[0].wait()
            beside.interrupt()  # before it reads, or while it does: both end that read
            await step[1].wait()
            client.xadd(stream, {"n": 1}, id="7-0")
            await step[2].wait()
    assert seen == [[], [], [(stream, [("7-0", {"n": b"1"})])]]


@pytest.mark.anyio
async def test_a_quiet_read_ends_with_nothing(redis_url: str, pool_name: str) -> None:
    seen: list[Entries] = []
    done = anyio.Event()

    async def body(body_io: BodyIO) -> None:
        body_io.post(
            seen.append,
            await body_io.read(
                {f"pool:{{{pool_name}}}:s": "0"}, block_s=0.01, timeout_s=5.0, count=1
            ),
        )
        body_io.post(done.set)

    with anyio.fail_after(PATIENCE_S):
        async with running(redis_url, body):
            await done.wait()
    assert seen == [[]]


@pytest.mark.anyio
async def test_a_read_that_loses_its_server_says_so(redis_url: str, pool_name: str) -> None:
    failed: list[PoolError] = []
    done = anyio.Event()

    async def body(body_io: BodyIO) -> None:
        try:
            await body_io.read(
                {f"pool:{{{pool_name}}}:s": "0"}, block_s=0.5, timeout_s=1.0, count=1
            )
        except StoreUnavailable as error:
            body_io.post(failed.append, error)
        body_io.post(done.set)

    with anyio.fail_after(PATIENCE_S):
        async with fault_proxy(redis_url) as proxy:
            proxy.cut_after_bytes = 500  # inside the answer to INFO, or in what comes next
            async with running(proxy.url, body):
                await done.wait()
    assert len(failed) == 1


@pytest.mark.anyio
async def test_a_body_that_fails_tells_the_loop(redis_url: str) -> None:
    ended = anyio.Event()
    told: list[BaseException | None] = []

    async def body(body_io: BodyIO) -> None:
        raise Gone(identity="w1")

    def on_end(error: BaseException | None) -> None:
        told.append(error)
        ended.set()

    with anyio.fail_after(PATIENCE_S):
        beside = SystemIO().start("pool-test", Url.parse(redis_url), body, on_end=on_end)
        await ended.wait()
        assert await beside.aclose(PATIENCE_S)
    assert [type(error) for error in told] == [Gone]
    assert beside.state == "ended"


@pytest.mark.anyio
async def test_close_ends_a_body_in_any_wait_and_twice_is_fine(redis_url: str) -> None:
    async def waits(body_io: BodyIO) -> None:
        await body_io.wait()

    async def sleeps(body_io: BodyIO) -> None:
        await body_io.sleep(60.0)

    async def reads(body_io: BodyIO) -> None:
        await body_io.read({"pool:{t}:none": "0"}, block_s=4.0, timeout_s=5.0, count=1)

    with anyio.fail_after(PATIENCE_S / 3):
        for body in (waits, sleeps, reads):
            beside = SystemIO().start("pool-test", Url.parse(redis_url), body)
            assert await beside.aclose(PATIENCE_S)
            assert await beside.aclose(PATIENCE_S)


def test_post_to_a_closed_loop_is_refused(redis_url: str, anyio_backend: str) -> None:
    kept: list[BodyIO] = []

    async def body(body_io: BodyIO) -> None:
        kept.append(body_io)

    async def main() -> None:
        async with running(redis_url, body):
            while not kept:
                await anyio.lowlevel.checkpoint()

    anyio.run(main, backend=anyio_backend)
    assert not kept[0].post(print, "never")


def test_the_clock_counts_a_suspended_machine() -> None:
    clock = SystemIO().clock
    assert clock() <= clock()
    if sys.platform == "linux":
        up_s = float(Path("/proc/uptime").read_text().split()[0])
        assert abs(clock() - up_s) < PATIENCE_S


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.anyio
async def test_in_a_forked_child_everything_is_dead(redis_url: str) -> None:
    """The child says nothing on the wire, starts nothing, and makes other ids."""
    connected = anyio.Event()

    async def body(body_io: BodyIO) -> None:
        await body_io.connect(timeout_s=PATIENCE_S)
        body_io.post(connected.set)
        await body_io.wait()

    with redis.Redis.from_url(redis_url) as client:
        io = SystemIO()
        number = io.ids.next()
        beside = io.start("pool-test", Url.parse(redis_url), body)
        await connected.wait()
        before = _named(client)
        said = _in_child(lambda: _what_a_child_sees(io, beside, number, redis_url))
        assert said == "forked True forked"
        assert len(before) == 1
        assert _named(client) == before  # still open, and nothing was sent
        assert await beside.aclose(PATIENCE_S)


@pytest.mark.anyio
@pytest.mark.parametrize("delay_s", [-1.0, 0.0, 0.001])
async def test_what_is_overdue_runs_at_once(delay_s: float) -> None:
    """Under load a deadline may have passed before its timer is set."""
    loop, rang = SystemIO().loop(), anyio.Event()
    loop.later(delay_s, rang.set)
    with anyio.fail_after(PATIENCE_S):
        await rang.wait()
    loop.close()
    await anyio.lowlevel.checkpoint()


def _what_a_child_sees(io: SystemIO, beside: RunningBody, number: str, url: str) -> str:
    async def body(body_io: BodyIO) -> None:
        raise AssertionError("started")

    beside.wake()
    beside.interrupt()
    has_other_ids = io.ids.next()[:10] != number[:10]
    try:
        io.start("pool-test", Url.parse(url), body)
    except NotRunning as error:
        return f"{beside.state} {has_other_ids} {error.state}"
    return "it started"


def _in_child(ask: Callable[[], str]) -> str:
    """Return what `ask` says in a forked child."""
    here, there = socket.socketpair()
    with here, there:
        child = os.fork()
        if child == 0:
            there.sendall(ask().encode())
            os._exit(0)
        os.waitpid(child, 0)
        return here.recv(100).decode()


def _named(client: redis.Redis) -> list[tuple[str, str]]:
    """Return id and number of commands of the connections called pool-test."""
    found = client.client_list()
    return [(c["id"], c.get("tot-cmds", "")) for c in found if c["name"] == "pool-test"]
