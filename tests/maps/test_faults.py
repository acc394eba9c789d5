"""A replica equals Redis within 2 s of healing, whatever happened to the network or the server.

Each fault is real: a proxy between the map and its server, a server killed and restarted, its data
removed, or replaced by an older copy of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import anyio.to_thread
import attrs
import pytest
import redis

from pool import PoolError, ReplicatedMap, Settings
from pool.errors import StoreLost
from pool.maps import Change, Resync
from pool.maps.commands import StoredMap
from pool.names import Control
from pool.redis.embedded.server import EmbeddedServer
from pool.testing import FaultProxy, fault_proxy
from tests.impatient import limit_all
from tests.nodes import PATIENCE_S
from tests.servers import connect
from tests.stopwatch import stopwatch

pytestmark = [pytest.mark.anyio, pytest.mark.one_server]  # a proxy stands before it

SETTINGS = Settings(lease_ttl_s=1.0, op_timeout_s=10.0, retry_window_s=5.0)
OP_S = 0.6  # behind the proxy, once all is open
HEALED_S = 2.0  # the promise: from the end of the fault to an equal copy
LOOK_AGAIN_S = 0.02


async def until(is_so: Callable[[], Any]) -> None:
    """Look again until it is so: nobody tells what only the server and the copy know."""
    with anyio.fail_after(PATIENCE_S), stopwatch() as watch:
        while True:
            answer = is_so()
            if await answer if isinstance(answer, Awaitable) else answer:
                return
            if watch.took_s() > HEALED_S:
                raise TimeoutError(f"not within {HEALED_S} s")
            await anyio.sleep(LOOK_AGAIN_S)


@attrs.define(eq=False)
class Bench:
    """One map behind a proxy, and a plain client at the server itself."""

    proxy: FaultProxy
    client: Any
    stored: StoredMap
    far: ReplicatedMap[str]  # behind the proxy
    near: ReplicatedMap[str]  # at the server
    heard: list[Change[str] | Resync] = attrs.field(factory=list)

    def truth(self) -> dict[str, Any]:
        """Read the map from Redis without any of our code: strings, and lists by their bytes."""
        held = self.client.hgetall(self.stored.data)
        found: dict[str, Any] = {field[1:]: held[field] for field in held if field[0] == "="}
        for member in self.client.zrangebylex(self.stored.lists, "[l", "(m"):
            size, _, rest = member[1:].partition(":")
            key, value = rest[: int(size)], rest[int(size) + 19 :]
            found[key] = (*found.get(key, ()), value)
        return found

    async def is_equal(self) -> None:
        """Wait until the far copy is what Redis holds, and who watches it has heard of that.

        Fails 2 s after it could have been.
        """
        await until(lambda: self.far.snapshot() == self.truth())
        await until(lambda: not self.heard or self.heard[-1].revision == self.far.revision)
        # After a fork the revision heard of last may be the other history's.
        await anyio.wait_all_tasks_blocked()

    async def add_up(self) -> None:
        """G-10: revisions never fall without a word, and changes add up to the map."""
        items: dict[str, Any] | None = {}
        revision = 0
        for news in self.heard:
            assert news.revision >= revision or (isinstance(news, Resync) and news.is_fork)
            revision = news.revision
            if isinstance(news, Resync):
                items = None  # from here on only the map itself says what is in it
            elif items is not None:
                assert items.pop(news.key, None) == news.old
                if news.new is not None:
                    items[news.key] = news.new
        assert items is None or items == self.far.snapshot()

    def resyncs(self) -> list[Resync]:
        return [news for news in self.heard if isinstance(news, Resync)]


@asynccontextmanager
async def opened(url: str, pool: str) -> AsyncIterator[Bench]:
    its = attrs.evolve(SETTINGS)
    async with (
        fault_proxy(url) as proxy,
        ReplicatedMap.open(proxy.url, "flags", pool=pool, settings=its, observers=()) as far,
        ReplicatedMap.open(url, "flags", pool=pool, settings=SETTINGS, observers=()) as near,
        anyio.create_task_group() as tasks,
    ):
        with connect(url, decode_responses=True) as client:
            bench = Bench(proxy, client, StoredMap(Control(pool), "flags"), far, near)
            watch = far.watch()

            async def hear() -> None:
                async for news in watch:
                    bench.heard.append(news)

            tasks.start_soon(hear)
            assert far._replica is not None
            limit_all(its, far._replica.pipeline, OP_S)
            yield bench
            watch.close()


@pytest.fixture
async def bench(anyio_backend: str, redis_url: str, pool_name: str) -> AsyncIterator[Bench]:
    async with opened(redis_url, pool_name) as bench:
        yield bench


async def write_some(flags: ReplicatedMap[str], mark: str) -> None:
    await flags.set("a", mark)
    await flags.append("l", mark, "x")
    await flags.remove("l", "x")
    await flags.increment("n")
    await flags.set(f"only {mark}", "1")
    await flags.delete("only before")


async def delayed(proxy: FaultProxy) -> None:
    proxy.delay_s = 0.05


async def throttled(proxy: FaultProxy) -> None:
    proxy.bytes_per_s = 20_000


async def sliced(proxy: FaultProxy) -> None:
    proxy.slice_bytes = 1


async def deaf(proxy: FaultProxy) -> None:
    proxy.drop_requests = True


async def mute(proxy: FaultProxy) -> None:
    proxy.drop_replies = True


async def half_open(proxy: FaultProxy) -> None:
    proxy.go_silent()


async def cut_mid_reply(proxy: FaultProxy) -> None:
    proxy.cut_after_bytes = 7


async def reset(proxy: FaultProxy) -> None:
    await proxy.cut()


async def refused(proxy: FaultProxy) -> None:
    await proxy.refuse()


FAULTS = [delayed, throttled, sliced, deaf, mute, half_open, cut_mid_reply, reset, refused]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
async def test_a_copy_is_equal_after_a_fault_of_the_network(
    bench: Bench, fault: Callable[[FaultProxy], Awaitable[None]]
) -> None:
    await write_some(bench.near, "before")
    await bench.is_equal()
    await fault(bench.proxy)
    await write_some(bench.near, "during")
    with anyio.move_on_after(OP_S):
        with suppress(PoolError):  # whatever the answer, the copy tells the truth later
            await bench.far.set("far", "1")
    await bench.proxy.heal()
    await bench.proxy.listen()
    await write_some(bench.near, "after")
    await bench.is_equal()
    await bench.add_up()


async def test_a_copy_is_equal_after_a_link_that_flapped(bench: Bench) -> None:
    for n in range(10):
        await bench.proxy.cut()
        await write_some(bench.near, str(n))
    await bench.is_equal()
    await bench.add_up()


async def test_a_copy_is_equal_after_more_was_missed_than_the_log_holds(bench: Bench) -> None:
    await write_some(bench.near, "before")
    await bench.is_equal()
    await bench.proxy.refuse()
    for n in range(3):
        await write_some(bench.near, str(n))
    bench.client.xtrim(bench.stored.log, maxlen=1, approximate=False)
    await bench.proxy.listen()
    await bench.is_equal()
    [resync] = bench.resyncs()
    assert not resync.is_fork


async def test_a_copy_is_equal_after_the_map_was_destroyed_and_made_again(bench: Bench) -> None:
    """While it watched: by deltas alone, without a gap."""
    await write_some(bench.near, "before")
    destroyed = await bench.near.destroy()
    made = await bench.near.set("a", "again")
    assert made.revision > destroyed.revision
    await bench.is_equal()
    assert bench.resyncs() == []
    await bench.add_up()


async def test_a_copy_is_equal_after_the_map_was_destroyed_while_it_was_away(bench: Bench) -> None:
    await write_some(bench.near, "before")
    await bench.is_equal()
    await bench.proxy.refuse()
    await bench.near.destroy()
    await bench.near.set("a", "again")
    await bench.proxy.listen()
    await bench.is_equal()
    assert bench.far.snapshot() == {"a": "again"}


async def served(flags: ReplicatedMap[str], mark: str) -> None:
    """Write as soon as that is possible again."""

    async def is_written() -> bool:
        with suppress(PoolError):
            await flags.set("a", mark)
            return True
        return False

    await until(is_written)


async def test_flushall_is_told_and_the_map_serves_on(own_server: EmbeddedServer) -> None:
    async with opened(own_server.url, "p") as bench:
        await write_some(bench.near, "before")
        await bench.is_equal()
        bench.client.flushall()
        await until(bench.resyncs)
        assert bench.resyncs()[0].is_fork
        await served(bench.near, "after")
        await bench.is_equal()
        assert bench.far.snapshot() == {"a": "after"}


async def test_a_restart_without_data_is_told_and_the_map_serves_on(
    own_server: EmbeddedServer,
) -> None:
    """The revision goes back, and those who waited for a later one are told."""
    async with opened(own_server.url, "p") as bench:
        await write_some(bench.near, "before")
        await bench.is_equal()
        told: list[PoolError] = []

        async def wait() -> None:
            try:
                await bench.far.wait_for(attrs.evolve(bench.far.at, revision=2**52))
            except StoreLost as lost:
                told.append(lost)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await bench.near.set("a", "waiting")
            await bench.is_equal()  # and it waits
            own_server.kill()
            for file in own_server.directory.rglob("*"):
                if file.is_file() and ("aof" in file.name or file.suffix == ".rdb"):
                    file.unlink()
            await anyio.to_thread.run_sync(own_server.restart)
            await served(bench.near, "after")
            await bench.is_equal()
        assert len(told) == 1
        # Who looks before anybody has written again finds nothing, and what is written then.
        forks = [each for each in bench.resyncs() if each.is_fork]
        assert len(forks) == 1
        assert forks[0].revision_before > 0


async def test_an_older_copy_of_the_server_is_followed(own_server: EmbeddedServer) -> None:
    """As after a failover: the same revision then carries another history."""
    async with opened(own_server.url, "p") as bench:
        await write_some(bench.near, "kept")
        keys = [bench.stored.data, bench.stored.lists, bench.stored.log]
        raw = redis.Redis.from_url(own_server.url)
        older: dict[str, Any] = {key: raw.dump(key) for key in keys}
        await write_some(bench.near, "lost")
        await bench.is_equal()
        lost = bench.far.revision
        for key, dump in older.items():
            raw.restore(key, 0, dump, replace=True)
        raw.close()
        await write_some(bench.near, "other")
        await bench.is_equal()
        assert bench.far.snapshot()["a"] == "other"
        assert bench.far.revision <= lost + 1
        assert bench.resyncs()[-1].is_fork
