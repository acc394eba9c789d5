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
wanted: dict[str, str] = {}  # what a database says
running: dict[str, str] = {}  # feed -> node


@handlers.service("feed")
async def feed(job: Job, address: str) -> None:
    """Read one feed for ever."""
    assert address, "it is in the list"
    running[job.key] = job.node_id
    try:
        await anyio.sleep_forever()
    finally:
        del running[job.key]


@handlers.plan("feeds", feed, every_s=3600)  # here turns are taken when they are asked for
async def feeds(_: Job) -> StopAll | list[Call]:
    """Say which feeds should run."""
    if "stop" in wanted:
        return StopAll()
    return [Call(name, address) for name, address in wanted.items()]


async def settled(count: int) -> str:
    """Wait until so many feeds run."""
    while len(running) != count:  # noqa: ASYNC110 - nobody knows which one comes last
        await anyio.sleep(0.01)
    nodes = len(set(running.values()))
    return f"{count} feeds run, on {nodes} node{'s' if nodes > 1 else ''}"


async def main() -> None:
    async with Node("feeds", "embedded://", handlers=handlers, capacity=300) as one:
        plan = one.plan("feeds")
        async with Node("feeds", one.url, handlers=handlers, capacity=300):
            wanted.update((f"feed-{n:03}", "old") for n in range(200))
            while "feeds" not in await one.plans():  # noqa: ASYNC110 - of the other node's doing
                await anyio.sleep(0.01)
            await plan.apply(timeout_s=30)
            print(await settled(200))
            lost = {name: wanted.pop(name) for name in list(wanted)[50:]}
            held = (await plan.apply(timeout_s=30)).last.held
            print(f"the list lost {held} of them: held, and {len(running)} run")
            wanted.update(lost)
            for n in range(10):
                del wanted[f"feed-{n:03}"]
                wanted[f"new-{n}"] = "old"
            wanted.update((f"feed-{n:03}", "new") for n in range(10, 15))
            last = (await plan.apply(timeout_s=30)).last
            told = f"{last.stopped} stopped, {last.started} started, {last.replaced} replaced"
            print(f"10 were taken out, 10 came, 5 have another address: {told}")
        print(f"a node has left: {await settled(200)}")
        wanted["stop"] = ""
        await plan.apply(timeout_s=30)
        print(f"told to: {len(running)} feeds run")


if __name__ == "__main__":
    anyio.run(main)
