"""A server at its limit: who drains it can join, work and leave; only what is new is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pool import Call, Handlers, Job, JobRef
from pool.errors import JobExists, StorageFull
from pool.events import NodeLeft, WorkerReaped
from tests.nodes import Fleet
from tests.servers import connect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pool.redis.embedded.server import EmbeddedServer
    from tests.nodes import Diary

pytestmark = [pytest.mark.anyio, pytest.mark.one_server]  # it brings its own
JOBS, PAYLOAD = 40, "x" * 100_000


@pytest.fixture
async def full(anyio_backend: str, own_server: EmbeddedServer) -> AsyncIterator[Fleet]:
    """Yield a fleet on a server of its own, to be filled."""
    with connect(own_server.url) as client:
        async with Fleet(own_server.url, "full", client).running() as fleet:
            yield fleet
            client.config_set("maxmemory", 0)


def fill(fleet: Fleet) -> None:
    """Have the server refuse everything that needs memory, until about a megabyte is freed."""
    fleet.client.config_set("maxmemory", fleet.client.info("memory")["used_memory"] - 1_000_000)


def made(diary: Diary) -> Handlers:
    mine = Handlers()

    @mine.job("size")
    async def size(job: Job, text: str) -> int:
        return len(text)

    @mine.service("follow")
    async def follow(job: Job) -> None:
        diary.note("follows", job.key, job.node_id, job.state)
        try:
            async for _ in job.notifications():
                pass
        finally:
            job.state = "kept"

    @mine.job("slow")
    async def slow(job: Job) -> str:
        diary.note("slow", job.node_id)
        await anyio.sleep(0.2)
        return job.node_id

    return mine


async def test_a_worker_joins_a_full_server_and_drains_it(full: Fleet, diary: Diary) -> None:
    """G-09: the last worker is gone; refused at once is only what is new, and not for ever."""
    client = await full.node()
    await full.leave(await full.node(made(diary)))  # so that the handlers are known
    ended = await client.options(allow_unknown=True).dispatch("never", "waits")
    refs: list[JobRef[Any]] = [await client.dispatch("size", f"k{n}", PAYLOAD) for n in range(JOBS)]
    fill(full)
    with pytest.raises(StorageFull):
        await client.dispatch("size", "new", "")
    calls = [Call("new-1", ""), Call("k1", ""), Call("new-2", "")]
    kinds = [type(each) for each in await client.dispatch_many("size", calls)]
    assert kinds == [StorageFull, JobExists, StorageFull]
    assert (await client.status("k1")).state == "unassigned"

    worker = await full.node(made(diary))
    for ref in refs:
        assert await ref.result(timeout_s=30) == len(PAYLOAD)
    late = await client.dispatch("size", "new", "abc")
    assert await late.result(timeout_s=30) == 3
    assert worker.state == "open"
    await client.stop(ended.key, timeout_s=30)


async def test_a_planned_exit_from_a_full_server_hands_over(full: Fleet, diary: Diary) -> None:
    """G-06: nothing is killed within the grace, nothing is left to a reaper, states go along."""
    first = await full.node(made(diary), label="first")
    await first.dispatch("follow", "service")
    slow = await first.dispatch("slow", "job")
    await diary.has("slow", first.id)
    second = await full.node(made(diary))
    full.client.config_set("maxmemory", 1)
    await full.leave(first)
    await diary.until(lambda seen: any(e[0] == "follows" and e[2] == second.id for e in seen))
    assert diary.entries[-1] == ("follows", "service", second.id, "kept")
    ref = JobRef[str](slow.key, slow.job_id, "slow", second._client)
    assert await ref.result(timeout_s=30) == first.id  # of a job that has ended: asked while full
    assert (await full.seen(NodeLeft, node=first.id)).abandoned == 0
    assert full.all_seen(WorkerReaped) == []
    await full.knows(second, workers=1)


async def test_a_pool_can_be_founded_on_a_full_server(full: Fleet, diary: Diary) -> None:
    """One that lost its data there goes on at once, rather than when somebody has made room."""
    full.client.config_set("maxmemory", 1)
    node = await full.node(made(diary))
    with pytest.raises(StorageFull):
        await node.dispatch("size", "k", "")
    full.client.config_set("maxmemory", 0)
    assert await (await node.dispatch("size", "k", "abc")).result(timeout_s=30) == 3


async def test_who_waits_for_a_job_is_told_of_its_end_on_a_full_server(
    full: Fleet, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal needs memory, too: it must not be left to the next time that the waiter asks."""
    monkeypatch.setattr("pool.jobs.client.waiters.ASK_AGAIN_S", 600.0)
    worker = await full.node(made(diary))
    client = await full.node()
    ref = await client.dispatch("slow", "job")
    await diary.has("slow", worker.id)
    full.client.config_set("maxmemory", 1)
    assert await ref.result(timeout_s=30) == worker.id
