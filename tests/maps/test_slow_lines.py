"""A map opens over a line so slow that no call could carry it, whatever goes on meanwhile (G2).

What is judged is what passed the line, and in which order: how long it took is the machine's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import attrs
import pytest

from pool import Node, ReplicatedMap
from pool.maps import Resized, Written
from pool.maps.commands import PAGE_BYTES_MAX
from pool.testing.proxy import FaultProxy, fault_proxy
from tests.impatient import hurry

if TYPE_CHECKING:
    from tests.nodes import Fleet

pytestmark = [pytest.mark.anyio, pytest.mark.one_server]  # a proxy stands before it

MB = 1_000_000.0
KIB = 1024
VALUE = b"x" * 8 * KIB
STRINGS, ITEMS = 256, 128
MAP_BYTES = (STRINGS + ITEMS) * len(VALUE)  # 3 MiB: six deadlines of one call, three of its longest
OP_S = 0.5  # of a call, once the node is open
SHORT: dict[str, Any] = {"retry_window_s": 2.0, "lease_ttl_s": None}
PATIENCE_S = 40.0
MORE = 64 * KIB  # that passes between two looks


@attrs.define(eq=False)
class Bench:
    """A full map, a node that is near it, and one behind a slow line."""

    full: ReplicatedMap[bytes]
    node: Node
    proxy: FaultProxy
    is_open: bool = False
    first: tuple[int, object] = (0, None)  # the copy, as it was when it was open, and of when
    calls: list[int] = attrs.field(factory=list)  # what passed the line during each

    @property
    def is_opening(self) -> bool:
        """Whether the copy is under way, and not all but here."""
        return not self.is_open and self.proxy.reply_bytes < MAP_BYTES - 2 * PAGE_BYTES_MAX

    async def passed(self, size: int) -> None:
        """Wait until so many bytes more have come, or the map is open."""
        until = self.proxy.reply_bytes + size
        while self.proxy.reply_bytes < until and not self.is_open:  # noqa: ASYNC110 - it tells nobody
            await anyio.sleep(0.002)

    @asynccontextmanager
    async def opening(self) -> AsyncIterator[ReplicatedMap[bytes]]:
        """Open the map on the far node in a task, and hold it until the block ends."""
        copy, leave = self.node.map("m", values=bytes), anyio.Event()

        async def hold() -> None:
            async with copy:
                self.is_open, self.first = True, (copy.revision, copy.snapshot())
                await leave.wait()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hold)
            yield copy
            leave.set()

    async def opened(self) -> None:
        while not self.is_open:
            await self.passed(MORE)


@asynccontextmanager
async def slow(fleet: Fleet, bytes_per_s: float) -> AsyncIterator[Bench]:
    near = await fleet.node()
    with anyio.fail_after(PATIENCE_S):
        async with near.map("m", values=bytes) as full, fault_proxy(fleet.url) as proxy:
            await full.update({f"key {n}": VALUE for n in range(STRINGS)})
            for n in range(ITEMS):
                await full.append(f"list {n % 2}", b"%d" % n + VALUE)
            await full.wait_for((await full.set("last", b"")).at)
            node = await fleet.node(url=proxy.url, **SHORT)
            await node.stream("warm").add("e", b"x")
            hurry(node, OP_S)
            proxy.reply_bytes, proxy.line_bytes_per_s = 0, bytes_per_s
            yield Bench(full, node, proxy)
            await proxy.heal()
            await fleet.leave(node)


async def test_other_calls_of_the_node_go_on_while_a_map_opens(fleet: Fleet) -> None:
    """The snapshot was one call: nothing else was answered before it, and it took too long."""
    async with slow(fleet, MB) as bench, bench.opening() as copy:
        await bench.passed(PAGE_BYTES_MAX + MORE)  # behind the first page, which comes as any call
        waits = bench.node.options(allow_unknown=True, delay_s=1000)
        stream = bench.node.stream("s")
        calls: list[Callable[[int], Awaitable[Any]]] = [
            lambda n: waits.dispatch("later", f"k{n}"),
            lambda n: stream.add("e", b"%d" % n),
            lambda n: bench.node.status(f"k{n - 2}"),
        ]
        while bench.is_opening:
            for call in calls:
                before = bench.proxy.reply_bytes
                await call(len(bench.calls))
                bench.calls.append(bench.proxy.reply_bytes - before)
        await bench.opened()
        assert copy.snapshot() == bench.full.snapshot()
        assert len(bench.calls) >= 20
        assert sorted(bench.calls)[len(bench.calls) // 2] < PAGE_BYTES_MAX // 2, "no page before it"
        assert bench.proxy.reply_bytes < 1.05 * MAP_BYTES + 1_000 * len(bench.calls) + 50_000


async def test_a_line_cut_in_the_middle_costs_one_page(fleet: Fleet) -> None:
    """What is here stays here: it was begun again from nothing."""
    async with slow(fleet, MB) as bench, bench.opening() as copy:
        await bench.passed(MAP_BYTES // 2)
        await bench.proxy.cut()
        await bench.opened()
        assert copy.snapshot() == bench.full.snapshot()
        assert bench.proxy.reply_bytes < 1.05 * MAP_BYTES + 2 * PAGE_BYTES_MAX + 50_000


async def test_a_line_that_breaks_again_and_again_carries_a_map(fleet: Fleet) -> None:
    """No connection carries a page as large as the first: they halve, and the copy gets on."""
    async with slow(fleet, 4 * MB) as bench:
        bench.proxy.cut_each_after_bytes = PAGE_BYTES_MAX - MORE
        async with bench.opening() as copy:
            await bench.opened()
            assert copy.snapshot() == bench.full.snapshot()
            assert bench.proxy.connections > MAP_BYTES // PAGE_BYTES_MAX
            assert bench.proxy.reply_bytes < 3 * MAP_BYTES, "asked for again at its size"
            bench.proxy.cut_each_after_bytes = 0


async def test_what_is_written_while_a_map_opens_is_in_it(fleet: Fleet) -> None:
    """Pages are of several moments, and the copy of one: as the map was at that revision."""
    async with slow(fleet, MB) as bench:
        full, states = bench.full, dict[int, object]()

        async def written(answer: Awaitable[Written[bytes] | Resized]) -> None:
            await full.wait_for((await answer).at)
            states[full.revision] = full.snapshot()

        async with bench.opening() as copy:
            n = 0
            while bench.is_opening:
                await bench.passed(MORE)
                await written(full.set(f"key {n}", b"new"))
                await written(full.delete(f"key {STRINGS - 1 - n}"))
                await written(full.append("list 0", b"more %d" % n))
                await written(full.append("list new", b"%d" % n))
                await written(full.remove("list 1", b"%d" % (2 * n + 1) + VALUE))
                n += 1
                if n == 8:
                    await written(full.delete("list 1"))
                    await written(full.set("list new", b"a string now"))
                    await written(full.delete("list new"))
            await bench.opened()
            assert n > 8
            revision, first = bench.first
            assert first == states[revision]
            await written(full.set("last", b"1"))
            await copy.wait_for(full.at)
            assert copy.snapshot() == full.snapshot()
            assert bench.proxy.reply_bytes < 1.3 * MAP_BYTES
