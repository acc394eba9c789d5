"""What users ask for over a slow line is slow, and sent once; too much is refused at once (E2)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from pool import Call, Handlers, Job, JobRef, Node
from pool.errors import PoolError, StoreUnavailable
from pool.jobs.client import dispatcher, waiters
from pool.redis import pipeline as pipelines
from pool.testing.proxy import FaultProxy, fault_proxy
from tests.impatient import hurry
from tests.nodes import Fleet
from tests.stopwatch import Stopwatch

MB = 1_000_000.0
PAYLOAD = b"x" * (64 * 1024 - 64)
PATIENCE_S = 60.0
OP_S = 1.0  # of what the fleet's settings say; all of it takes several of those

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def slow(fleet: Fleet, bytes_per_s: float) -> AsyncIterator[tuple[Node, FaultProxy]]:
    """A client behind a slow line; those who work are not."""
    with anyio.fail_after(PATIENCE_S):
        async with fault_proxy(fleet.url) as proxy:
            node = await fleet.node(url=proxy.url, lease_ttl_s=None)
            await node.stream("warm").add("e", b"x")
            proxy.request_bytes = proxy.reply_bytes = 0
            proxy.line_bytes_per_s = bytes_per_s
            yield node, proxy
            proxy.line_bytes_per_s = 0.0
            await fleet.leave(node)


async def all_of(call: Callable[[int], Awaitable[Any]], count: int) -> list[Any]:
    answers: list[Any] = [None] * count

    async def one(n: int) -> None:
        try:
            answers[n] = await call(n)
        except PoolError as error:
            answers[n] = error

    async with anyio.create_task_group() as callers:
        for n in range(count):
            callers.start_soon(one, n)
    return answers


def failed(answers: list[Any]) -> list[Any]:
    return [each for each in answers if isinstance(each, PoolError)]


@pytest.mark.parametrize("kind", ["stream", "dispatch", "many", "notify", "map"])
@pytest.mark.parametrize("megabytes_per_s", [1, 10])
async def test_what_takes_several_deadlines_is_done_and_was_sent_once(
    fleet: Fleet, kind: str, megabytes_per_s: int
) -> None:
    """64 dispatches of 64 KiB over 1 MB/s: 60 failed, after all had been sent three times."""
    count = 40 * megabytes_per_s
    async with slow(fleet, 0.0) as (node, proxy):
        waits = node.options(allow_unknown=True, delay_s=1000)
        stream = node.stream("s")
        async with node.map("m", values=bytes) as shared:
            calls: dict[str, Callable[[int], Awaitable[Any]]] = {
                "stream": lambda _: stream.add("e", PAYLOAD),
                "dispatch": lambda n: waits.dispatch("later", f"k{n}", PAYLOAD),
                "notify": lambda n: node.notify(f"k{n}", PAYLOAD[:48_000].decode()),
                "map": lambda n: shared.set(f"k{n}", PAYLOAD),
            }
            if kind == "notify":
                refs = await waits.dispatch_many("later", [f"k{n}" for n in range(count)])
                assert not failed(refs)
            proxy.request_bytes = 0
            proxy.line_bytes_per_s = megabytes_per_s * MB
            began_s = anyio.current_time()
            if kind == "many":
                made = [Call(f"k{n}", PAYLOAD) for n in range(count)]
                answers: list[Any] = await waits.dispatch_many("later", made)
            else:
                answers = await all_of(calls[kind], count)
            spent_s = anyio.current_time() - began_s
            assert failed(answers) == []
            size = 48_002 if kind == "notify" else len(PAYLOAD)
            assert proxy.request_bytes < 1.05 * count * size + 100_000
            assert spent_s > OP_S
            proxy.line_bytes_per_s = 0.0


async def test_results_come_back_over_a_slow_line(fleet: Fleet) -> None:
    """Both ways: the worker's settlements, and what who waits is told."""
    mine = Handlers()

    @mine.job("back")
    async def back(job: Job, value: bytes) -> bytes:
        return value

    await fleet.node(mine)
    async with slow(fleet, MB) as (node, proxy):
        refs = await all_of(lambda n: node.dispatch("back", f"k{n}", PAYLOAD), 24)
        assert failed(refs) == []
        results = await all_of(lambda n: refs[n].result(timeout_s=30), 24)
        assert results == [PAYLOAD] * 24
        assert proxy.request_bytes < 1.1 * 24 * len(PAYLOAD)


async def test_a_worker_behind_a_slow_line_settles_once(fleet: Fleet) -> None:
    mine = Handlers()

    @mine.job("give")
    async def give(job: Job, size: int) -> bytes:
        return b"r" * size

    client = await fleet.node()
    with anyio.fail_after(PATIENCE_S):
        async with fault_proxy(fleet.url) as proxy:
            worker = await fleet.node(mine, url=proxy.url)
            proxy.request_bytes = 0
            proxy.line_bytes_per_s = MB
            refs = await client.dispatch_many("give", [Call(f"k{n}", 64_000) for n in range(40)])
            for ref in refs:
                assert isinstance(ref, JobRef)
                assert len(await ref.result(timeout_s=30)) == 64_000
            assert proxy.request_bytes < 1.1 * 40 * 64_000 + 100_000
            proxy.line_bytes_per_s = 0.0
            await fleet.leave(worker)


@pytest.mark.parametrize("kind", ["stream", "dispatch", "map"])
async def test_a_wide_burst_is_done_or_refused_at_once(
    fleet: Fleet, kind: str, watch: Stopwatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,000 events of 256 KiB at once: all failed as maybe done, and 65 were stored."""
    monkeypatch.setattr(pipelines, "WAITING_BYTES_MAX", 16 * len(PAYLOAD))
    monkeypatch.setattr(dispatcher, "WAITING_BYTES_MAX", 16 * len(PAYLOAD))
    async with slow(fleet, 0.0) as (node, proxy):
        waits = node.options(allow_unknown=True, delay_s=1000)
        stream = node.stream("s")
        async with node.map("m", values=bytes) as shared:
            calls: dict[str, Callable[[int], Awaitable[Any]]] = {
                "stream": lambda _: stream.add("e", PAYLOAD),
                "dispatch": lambda n: waits.dispatch("later", f"k{n}", PAYLOAD),
                "map": lambda n: shared.set(f"k{n}", PAYLOAD),
            }
            proxy.line_bytes_per_s = MB
            told: list[float] = []
            watch.restart()

            async def call(n: int) -> Any:
                try:
                    return await calls[kind](n)
                except StoreUnavailable:
                    told.append(watch.took_s())
                    raise

            answers = await all_of(call, 250)
            proxy.line_bytes_per_s = 0.0
            refused = failed(answers)
            assert 14 <= 250 - len(refused) <= 20
            assert all(isinstance(each, StoreUnavailable) for each in refused)
            assert not any(each.maybe_done for each in refused)
            assert all("wait already" in each.problem for each in refused)
            assert max(told) < OP_S / 2


async def test_a_map_that_takes_several_deadlines_opens_over_a_slow_line(fleet: Fleet) -> None:
    """G2: its snapshot was begun again for ever."""
    here = await fleet.node()
    async with here.map("m", values=bytes) as full, slow(fleet, 0.0) as (node, proxy):
        for n in range(40):
            await full.set(f"k{n}", PAYLOAD)
        proxy.reply_bytes, proxy.line_bytes_per_s = 0, MB
        began_s = anyio.current_time()
        async with node.map("m", values=bytes) as copy:
            assert len(copy) == 40
            assert anyio.current_time() - began_s > 2 * OP_S
            assert proxy.reply_bytes < 1.1 * 40 * len(PAYLOAD) + 100_000
            proxy.line_bytes_per_s = 0.0


async def test_a_reader_behind_a_slow_line_gets_each_event_once(fleet: Fleet) -> None:
    """G2: it got none, after everything had been sent again and again."""
    here = await fleet.node()
    for _ in range(64):
        await here.stream("s").add("e", PAYLOAD)
    async with slow(fleet, 0.0) as (node, proxy):
        proxy.reply_bytes, proxy.line_bytes_per_s = 0, MB
        count = 0
        async with node.stream("s").reader() as events:
            async for _ in events:
                count += 1
                if count == 64:
                    break
        assert proxy.reply_bytes < 1.1 * 64 * len(PAYLOAD) + 100_000
        proxy.line_bytes_per_s = 0.0


SHORT_S = 1.25  # of a call, once all is open
SHORT: dict[str, Any] = {"retry_window_s": 4.0}  # so that none may last longer than 2 s


@asynccontextmanager
async def sized(
    fleet: Fleet, count: int
) -> AsyncIterator[tuple[Node, FaultProxy, list[JobRef[Any]]]]:
    """A worker behind a slow line, and jobs for it that weigh more than a call may carry."""
    mine = Handlers()

    @mine.job("size")
    async def size(job: Job, value: bytes) -> int:
        return len(value)

    client = await fleet.node()
    with anyio.fail_after(PATIENCE_S):
        async with fault_proxy(fleet.url) as proxy:
            worker = await fleet.node(mine, url=proxy.url, **SHORT)
            hurry(worker, SHORT_S)
            proxy.reply_bytes, proxy.line_bytes_per_s = 0, MB
            refs = await client.dispatch_many(
                "size", [Call(f"k{n}", PAYLOAD) for n in range(count)]
            )
            yield worker, proxy, [ref for ref in refs if isinstance(ref, JobRef)]
            proxy.line_bytes_per_s = 0.0
            await fleet.leave(worker)


async def test_a_worker_behind_a_slow_line_fetches_each_payload_once(fleet: Fleet) -> None:
    """It asked for all at once, which took longer than a call may; so none came, for ever."""
    async with sized(fleet, 64) as (_, proxy, refs):
        results = await all_of(lambda n: refs[n].result(timeout_s=40), 64)
        assert results == [len(PAYLOAD)] * 64
        assert proxy.reply_bytes < 1.1 * 64 * len(PAYLOAD) + 150_000


async def test_what_a_slow_worker_cannot_fetch_others_do(fleet: Fleet) -> None:
    """Half of it waited there for ever, while a worker that could run it was idle."""
    mine, ran = Handlers(), list[str]()

    @mine.job("size")
    async def fast(job: Job, value: bytes) -> int:
        ran.append(job.key)
        return len(value)

    async with sized(fleet, 128) as (_, proxy, refs):
        await fleet.node(mine)
        results = await all_of(lambda n: refs[n].result(timeout_s=40), 128)
        assert results == [len(PAYLOAD)] * 128
        assert ran  # how many depends on this machine
        assert proxy.reply_bytes < 1.1 * (128 - len(ran)) * len(PAYLOAD) + 600_000


async def test_large_results_come_once_over_a_slow_line(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All were told in one answer, which took longer than a call may, and were asked for again."""
    monkeypatch.setattr(waiters, "ASK_AGAIN_S", 0.3)
    mine = Handlers()

    @mine.job("give")
    async def give(job: Job, size: int) -> bytes:
        return b"r" * size

    @mine.job("echo")
    async def echo(job: Job, value: int) -> int:
        return value

    await fleet.node(mine)
    with anyio.fail_after(PATIENCE_S):
        async with fault_proxy(fleet.url) as proxy:
            node = await fleet.node(url=proxy.url, **SHORT)
            refs = await all_of(lambda n: node.dispatch(give, f"k{n}", 64_000), 64)
            assert failed(refs) == []
            hurry(node, SHORT_S)
            proxy.reply_bytes, proxy.line_bytes_per_s = 0, MB
            between: list[int] = []

            async def small() -> None:
                before = proxy.reply_bytes
                assert await (await node.dispatch(echo, "small", 7)).result(timeout_s=30) == 7
                between.append(proxy.reply_bytes - before)

            async def result(n: int) -> Any:
                if n == 0:
                    await small()
                return await refs[n].result(timeout_s=40)

            results = await all_of(result, 64)
            assert results == [b"r" * 64_000] * 64
            assert proxy.reply_bytes < 1.1 * 64 * 64_000 + 100_000
            assert between[0] < 1_500_000, "what is small waits for one answer, not for all"
            proxy.line_bytes_per_s = 0.0
            await fleet.leave(node)
