"""A plan: 200 feeds are kept running as a list says, whoever dies and whatever the list becomes.

It prints:

    200 feeds run, on 2 nodes
    the list lost 150 of them: held, and 200 run
    10 were taken out, 10 came, 5 have another address: 10 stopped, 10 started, 5 replaced
    a node has left: 200 feeds run, on 1 node
    told to: 0 feeds run
"""

from __future__ import annotations

import anyio

from pool import Call, Handlers, Job, Node
from pool.plans import StopAll

handlers = Handlers()
wanted: dict[str, str] | None = {}  # what a database says
running: dict[str, str] = {}  # feed -> node


@handlers.service("feed")
async def feed(job: Job, version: str) -> None:
    """Read one feed for ever."""
    running[job.key] = job.node_id
    try:
        await anyio.sleep_forever()
    finally:
        del running[job.key]


@handlers.plan("feeds", feed, every_s=3600)  # here turns are taken when they are asked for
async def feeds(_: Job) -> StopAll | list[Call]:
    """Say which feeds should run."""
    if wanted is None:
        return StopAll()
    return [Call(name, version) for name, version in wanted.items()]


async def settled(count: int) -> str:
    """Wait until so many feeds run."""
    while len(running) != count:  # noqa: ASYNC110 - it is not known which one comes last
        await anyio.sleep(0.01)
    nodes = len(set(running.values()))
    return f"{count} feeds run, on {nodes} node{'s' if nodes > 1 else ''}"


async def main() -> None:
    global wanted
    async with Node("feeds", "embedded://", handlers=handlers, capacity=300) as one:
        async with Node("feeds", one.url, handlers=handlers, capacity=300):
            while "feeds" not in await one.plans():
                await anyio.sleep(0.01)
            wanted = {f"feed-{n:03}": "v1" for n in range(200)}
            await one.plan("feeds").apply(timeout_s=30)
            print(await settled(200))
            whole, wanted = wanted, dict.fromkeys(list(wanted)[:50], "v1")
            held = (await one.plan("feeds").apply(timeout_s=30)).last
            print(f"the list lost {held.held} of them: held, and {len(running)} run")
            wanted = {**whole, **{f"new-{n}": "v1" for n in range(10)}}
            for n in range(10):
                del wanted[f"feed-{n:03}"]
            wanted |= {f"feed-{n:03}": "v2" for n in range(10, 15)}
            last = (await one.plan("feeds").apply(timeout_s=30)).last
            told = f"{last.stopped} stopped, {last.started} started, {last.replaced} replaced"
            print(f"10 were taken out, 10 came, 5 have another address: {told}")
        await one.plan("feeds").apply(timeout_s=30)
        print(f"a node has left: {await settled(200)}")
        wanted = None
        await one.plan("feeds").apply(timeout_s=30)
        print(f"told to: {len(running)} feeds run")


if __name__ == "__main__":
    anyio.run(main)
