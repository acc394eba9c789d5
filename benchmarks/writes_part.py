"""What writing to maps and streams costs, with whatever `pool` this process finds.

Run by path from `writes.py`, for trees of any layout: it uses public names only, those that all of
them have.  Prints JSON, per operation: commands; microseconds of the server's processor, whole, the
part outside its kernel, and the part within commands; microseconds of the clock.  What is left of
the whole is sockets and waiting for them, one read and one write per message, which only fewer
messages make less.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from typing import Any

import anyio
import redis

from pool import ReplicatedMap, Stream
from pool.testing import EmbeddedServer, find_server

TIMES, SINKS, CAP, ITEMS = 1_000, 10, 1_000, 50
VALUE = "v" * 100


class Server:
    """Counts what the server does."""

    def __init__(self, url: str) -> None:
        self._client: Any = redis.Redis.from_url(url, protocol=2)
        self.figures: dict[str, float] = {}

    def _now(self) -> tuple[float, ...]:
        stats = self._client.info("commandstats")
        del stats["cmdstat_info"]
        # What a script calls is told under its own name and in the script's time.
        outer = ("cmdstat_evalsha", "cmdstat_fcall", "cmdstat_xread", "cmdstat_xreadgroup")
        within = sum(stats[name]["usec"] for name in outer if name in stats) / 1e6
        calls = sum(told["calls"] for told in stats.values())
        cpu = self._client.info("cpu")
        user = cpu["used_cpu_user"]
        return calls, cpu["used_cpu_sys"] + user, user, within, time.perf_counter()

    async def measured(self, name: str, times: int, does: Callable[[], Awaitable[Any]]) -> None:
        """Note what this costs, per time."""
        before = self._now()
        await does()
        took = [now - then for now, then in zip(self._now(), before, strict=True)]
        self.figures |= {
            f"{name}_commands": took[0] / times,
            f"{name}_server_us": took[1] / times * 1e6,
            f"{name}_user_us": took[2] / times * 1e6,
            f"{name}_within_us": took[3] / times * 1e6,
            f"{name}_us": took[4] / times * 1e6,
        }


async def each(calls: Iterable[Callable[[], Awaitable[Any]]]) -> None:
    """Make one call after the other."""
    for call in calls:
        await call()


async def maps(server: Server, url: str) -> None:
    """Measure a writer with a copy of its own, and a second one."""
    async with AsyncExitStack() as stack:

        async def opened(name: str) -> ReplicatedMap[str]:
            return await stack.enter_async_context(ReplicatedMap.open(url, name, pool="maps"))

        mine, other = await opened("m"), await opened("m")
        assert other.revision == mine.revision
        for number in range(ITEMS):
            await mine.set(f"k{number}", VALUE)
        keys = [f"k{number % ITEMS}" for number in range(TIMES)]

        async def sets() -> None:
            for key in keys:
                await mine.set(key, VALUE)

        async def appends() -> None:
            for key in keys:
                await mine.append(f"l{key}", VALUE)

        await sets()
        await server.measured("set", TIMES, sets)
        await server.measured("append", TIMES, appends)


async def streams(server: Server, url: str) -> None:
    """Measure adding, also at the cap with idle sinks, and taking and acknowledging one by one."""
    async with (
        Stream.open(url, "s", pool="streams") as plain,
        Stream.open(url, "capped", pool="streams", length_max=CAP) as capped,
    ):

        async def adds() -> None:
            for _ in range(TIMES):
                await plain.add("made", VALUE)

        async def adds_at_the_cap() -> None:
            for _ in range(TIMES):
                await capped.add("made", VALUE)

        await plain.add("made", VALUE)
        await server.measured("add", TIMES, adds)
        async with plain.sink("taking", buffer_max=200) as sink:

            async def takes() -> None:
                for _ in range(TIMES):
                    await sink.ack(await anext(sink))

            await server.measured("take_and_ack", TIMES, takes)
        async with AsyncExitStack() as stack:
            for number in range(SINKS):
                await stack.enter_async_context(capped.sink(f"idle-{number}", "newest"))
            await adds_at_the_cap()
            await server.measured(f"add_at_the_cap_{SINKS}_sinks", TIMES, adds_at_the_cap)


async def main() -> None:
    """Measure each once, on a server of its own."""
    with EmbeddedServer.start(find_server("path")) as started:
        server = Server(started.url)
        await maps(server, started.url)
        await streams(server, started.url)
    json.dump(server.figures, sys.stdout)


if __name__ == "__main__":
    anyio.run(main)
