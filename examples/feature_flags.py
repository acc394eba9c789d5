"""Feature flags in three processes: one sets them, two read copies of their own and react.

It prints:

    this copy says old
    web: checkout is old
    web: checkout is new for ada and bob
    web: checkout is old
    web: checkout is new for ada and bob
    switched: True; once more: False, it was new
"""

from __future__ import annotations

import sys
import tempfile

import anyio

from pool import ReplicatedMap
from pool.maps import Resync


async def web(url: str) -> None:
    """A web process.  Reads are local: it could do them for every request."""
    async with ReplicatedMap.open(url, "flags") as flags:
        changes = flags.watch()  # first watch, then read: nothing can happen in between
        print(f"web: checkout is {flags['checkout']}")
        await flags.increment("webs")
        async for news in changes:
            if isinstance(news, Resync):  # after an outage, say: what was missed is not told
                print(f"web: some changes were missed: {news.reason}")
            if flags["checkout"] == "new":  # either way the copy says how things are now
                print(f"web: checkout is new for {' and '.join(flags.get_list('testers'))}")
                break


async def admin(url: str) -> None:
    async def run_web() -> None:
        print((await anyio.run_process([sys.executable, __file__, url])).stdout.decode(), end="")

    async with ReplicatedMap.open(url, "flags") as flags:
        changes = flags.watch()
        await flags.set_and_wait("checkout", "old")  # `set()` would not wait for this copy
        print(f"this copy says {flags['checkout']}")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run_web)
            tasks.start_soon(run_web)
            while flags.get_int("webs") < 2:
                await anext(changes)
            await flags.append("testers", "ada", "bob")
            first, again = [await flags.compare_and_set("checkout", "old", "new") for _ in "12"]
        print(f"switched: {first.is_met}; once more: {again.is_met}, it was {again.previous}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        urls = [*sys.argv[1:], f"embedded://{directory}"]
        anyio.run(web if len(urls) > 1 else admin, urls[0])
