"""What a slow line leaves of maps, readers and sinks: `python -m benchmarks.slow_links`.

    node, in a process of its own --> a proxy here, so many bytes a second each way --> server

Of each rate: a map is opened that is as large as the line carries in a minute at 1 MB/s, then a
reader and a sink each take as many events, of two sizes, as the line carries in some seconds.  The
same node dispatches jobs meanwhile, one after the other, which no worker takes.  Beside each figure
stands what the bare line allows: the bytes of the values, or payloads, by its rate.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

import anyio
import anyio.to_thread
import attrs

from benchmarks.probe import Probe
from benchmarks.report import document, latency
from benchmarks.throughput import Member
from pool import ReplicatedMap
from pool.names import Control
from pool.redis.embedded.server import EmbeddedServer, find_server
from pool.testing.proxy import FaultProxy, fault_proxy

MB: Final = 1_000_000
MIB: Final = 1024 * 1024
VALUE_BYTES: Final = 65_536
MAP_MIB: Final = 63
RATES: Final = (1.0, 6.0, 12.0)
EVENT_BYTES: Final = (1_024, 65_536)
EVENTS_S: Final = 4.0  # that the events of one measurement take on the bare line
ANSWER_S: Final = 600.0
TOGETHER: Final = 500  # events added, or values set, at once while nothing is measured


@attrs.define
class Row:
    """One line of the table: a cell for each rate."""

    name: str
    cells: list[str] = attrs.field(factory=list)


class Bench:
    """One server, one proxy, one node behind it."""

    def __init__(self, probe: Probe, proxy: FaultProxy, loop: str, pool: str, mib: int) -> None:
        self.probe, self.proxy, self.loop, self.pool, self.mib = probe, proxy, loop, pool, mib
        self.rows: dict[str, Row] = {}

    async def fill(self, fastest: float) -> None:
        """Put what is fetched later into the server, past the proxy."""
        values = range(self.mib * MIB // VALUE_BYTES)
        async with ReplicatedMap.open(
            self.probe.url, "big", values=bytes, pool=self.pool, observers=()
        ) as big:
            for n in values:
                await big.set(f"key-{n:06}", b"%06d" % n + b"x" * (VALUE_BYTES - 6))
        for size in EVENT_BYTES:
            await anyio.to_thread.run_sync(self._add, size, count_of(size, fastest))

    def _add(self, size: int, count: int) -> None:
        control, name = Control(self.pool), stream_of(size)
        for first in range(1, count + 1, TOGETHER):
            pipeline = self.probe.client.pipeline(transaction=False)
            for n in range(first, min(first + TOGETHER, count + 1)):
                words = ("n", n, "e", "benched", "p", b"x" * size)
                pipeline.execute_command("XADD", control.stream(name), "*", *words)
            pipeline.execute()
        self.probe.client.hset(control.stream_meta(name), "n", count)

    async def at(self, rate: float) -> None:
        """Measure everything at so many MB/s."""
        bare_s = self.mib * MIB / (rate * MB)
        told = await self._ask(rate, "open_map", name="big")
        self._note(f"open a map of {self.mib} MiB, s", told["seconds"], bare_s, told)
        for kind in ("reader", "sink"):
            for size in EVENT_BYTES:
                count = count_of(size, rate)
                told = await self._ask(
                    rate, "take", kind=kind, name=stream_of(size), count=count, sink=f"at-{rate:g}"
                )
                name = f"{kind}, events of {size // 1024} KiB, /s"
                self._note(name, count / told["seconds"], rate * MB / size, told)

    async def _ask(self, rate: float, do: str, **arguments: Any) -> dict[str, Any]:
        """Have a new node do it over a line of this rate; everybody is at rest before and after."""
        self.proxy.line_bytes_per_s = 0.0
        words = ("benchmarks.slow_link_member", "node", self.loop, self.pool, self.proxy.url)
        with Member(*words, answer_s=ANSWER_S) as member:
            await away(partial(member.ask, "rest"))
            self.proxy.line_bytes_per_s = rate * MB
            try:
                return await away(partial(member.ask, do, **arguments))
            finally:
                self.proxy.line_bytes_per_s = 0.0
                await self.proxy.cut()  # what is on its way is of no use any more

    def _note(self, name: str, found: float, bare: float, told: dict[str, Any]) -> None:
        self._cell(name, f"{number(found)} ({number(bare)})")
        spent = latency([1e6 * each for each in told["dispatches_s"]])
        cell = f"{spent.p50 / 1e3:.1f} / {spent.p99 / 1e3:.0f}"
        self._cell(f"{name.rpartition(',')[0]}: a dispatch meanwhile, p50 / p99 ms", cell)

    def _cell(self, name: str, cell: str) -> None:
        self.rows.setdefault(name, Row(name)).cells.append(cell)


def count_of(size: int, rate: float) -> int:
    """Return how many events are taken at so many MB/s."""
    return int(EVENTS_S * rate * MB / size)


def stream_of(size: int) -> str:
    return f"events-of-{size}"


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


async def away(call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Wait for a member's answer in a thread: the loop has the line to carry."""
    return await anyio.to_thread.run_sync(call)


def table(rates: Sequence[float], rows: Sequence[Row]) -> str:
    """Return what was measured, as a table of Markdown."""
    lines = [
        "| in brackets: what the bare line allows | "
        + " | ".join(f"{rate:g} MB/s" for rate in rates)
        + " |",
        "|---" * (len(rates) + 1) + "|",
    ]
    lines += [f"| {row.name} | {' | '.join(row.cells)} |" for row in rows]
    return "\n".join(lines)


async def measure(url: str, loop: str, rates: Sequence[float], mib: int) -> list[Row]:
    """Take all measurements; return the table's rows."""
    probe = Probe(url)
    try:
        with probe.pool() as pool:
            async with fault_proxy(url) as proxy:
                bench = Bench(probe, proxy, loop, pool, mib)
                await bench.fill(max(rates))
                for rate in rates:
                    await bench.at(rate)
                return list(bench.rows.values())
    finally:
        probe.close()


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.slow_links",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--loop", choices=("asyncio", "trio"), default="asyncio")
    parser.add_argument("--rates", type=float, nargs="+", default=RATES, help="MB/s")
    parser.add_argument("--mib", type=int, default=MAP_MIB, help="of the map")
    given = parser.parse_args()
    began_s, load = time.monotonic(), os.getloadavg()
    with EmbeddedServer.start(find_server("path")) as server:
        probe = Probe(server.url)
        run: Callable[..., Awaitable[list[Row]]] = measure
        rows = anyio.run(run, server.url, given.loop, given.rates, given.mib)
        told = document(
            [],
            server=probe.server(),
            transport="a throttled proxy",
            load_before=[round(each, 2) for each in load],
            seconds=time.monotonic() - began_s,
            sizes=f"{given.loop}, a map of {given.mib} MiB",
            repeats=1,
        )
        probe.close()
    sys.stdout.write(f"{told.as_text()}\n\n{table(given.rates, rows)}\n")
    sys.stdout.write(f"\nload after {[round(each, 2) for each in os.getloadavg()]}\n")


if __name__ == "__main__":
    main()
