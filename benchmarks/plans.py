"""What a plan of many keys costs: `python -m benchmarks.plans --keys 50000`.

A private server, and one node with room for all.  The plan starts all keys, then changes a
twentieth of their arguments, then has nothing to do, then stops everything.  Reported are the time
of each turn, the longest command of the server in it, by its own slow log, for how long the event
loop was held in one turn of it, as processor time of its thread, the collector of cycles apart, how
long that ran at most, and how much larger the process became.
"""

from __future__ import annotations

import argparse
import gc
import resource
import sys
import time
from typing import Any, Final

import anyio
import anyio.lowlevel
import attrs
import redis

from pool import Call, Handlers, Job, Node, Settings
from pool.errors import NoSuchPlan
from pool.plans import PlanTurn, StopAll
from pool.redis.embedded.server import EmbeddedServer, find_server

POOL: Final = "plans"
WORKERS: Final = 8
CHANGED: Final = 20  # one of so many


@attrs.define
class World:
    """What the producer says, and how long turns of the loop took."""

    answer: Any = ()
    longest_s: float = 0.0
    collected_s: float = 0.0  # in all,
    collector_s: float = 0.0  # and its longest run
    _since_s: float = 0.0

    async def watch(self) -> None:
        while True:
            began_s = time.thread_time() - self.collected_s
            await anyio.lowlevel.checkpoint()
            held_s = time.thread_time() - self.collected_s - began_s
            self.longest_s = max(self.longest_s, held_s)

    def on_collector(self, phase: str, _: object) -> None:
        if phase == "start":
            self._since_s = time.thread_time()
        else:
            took_s = time.thread_time() - self._since_s
            self.collected_s += took_s
            self.collector_s = max(self.collector_s, took_s)


def house(world: World) -> Handlers:
    """Return handlers whose services cost nothing but their place."""
    handlers = Handlers()

    @handlers.service("wait")
    async def wait(_: Job, data: str) -> None:
        assert data
        await anyio.sleep_forever()

    @handlers.plan("many", wait, every_s=86_400, timeout_s=600)
    async def many(_: Job) -> Any:
        return world.answer

    return handlers


async def turn(node: Node, client: redis.Redis, world: World, name: str) -> PlanTurn:
    """Take turns until nothing is left to be done; print what they cost."""
    client.slowlog_reset()
    world.longest_s = world.collector_s = 0.0
    began_s, turns, started, replaced, stopped = time.monotonic(), 0, 0, 0, 0
    while True:
        try:
            last = (await node.plan("many").apply(600)).last
        except NoSuchPlan:
            await anyio.sleep(0.01)
            continue
        turns, started = turns + 1, started + last.started
        replaced, stopped = replaced + last.replaced, stopped + last.stopped
        if not (last.stopping or last.refused or last.problem):
            break
    took_s = time.monotonic() - began_s
    entries: Any = client.slowlog_get(128)
    slow = sorted(((e["duration"] / 1000, e["command"][:60]) for e in entries), reverse=True)
    longest = slow[0][0] if slow else 0.0
    size_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sys.stdout.write(
        f"{name:8} {took_s:7.2f} s  {turns} turns  {started} started {replaced} replaced "
        f"{stopped} stopped {last.kept} kept  server's longest {longest:.1f} ms  "
        f"loop's longest {1000 * world.longest_s:.0f} ms  "
        f"collector's {1000 * world.collector_s:.0f} ms  process {size_mb:.0f} MB at most\n"
    )
    return last


async def run(url: str, client: redis.Redis, keys: int) -> None:
    """Play it all."""
    world = World()
    settings = Settings(queued_jobs_max=10 * keys)
    handlers = house(world)
    async with Node(
        POOL, url, handlers=handlers, capacity=10_000, settings=settings, observers=()
    ) as node:
        for _ in range(WORKERS - 1):
            await node.add_worker(handlers, capacity=10_000)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(world.watch)
            gc.callbacks.append(world.on_collector)
            await turn(node, client, world, "empty")
            await anyio.sleep(3 * settings.settle_delay_s)  # the plan moves to the worker it is for
            old = [Call(f"tenant-{n:06}", "x" * 100) for n in range(keys)]
            world.answer = old
            await turn(node, client, world, "start")
            new = [Call(f"tenant-{n:06}", "y" * 100) for n in range(0, keys, CHANGED)]
            world.answer = new + [call for n, call in enumerate(old) if n % CHANGED]
            await turn(node, client, world, "change")
            await turn(node, client, world, "nothing")
            world.answer = StopAll()
            await turn(node, client, world, "stop")
            gc.callbacks.remove(world.on_collector)
            tasks.cancel_scope.cancel()


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plans", description=__doc__)
    parser.add_argument("--keys", type=int, default=50_000)
    given = parser.parse_args()
    with (
        EmbeddedServer.start(find_server("wheel")) as server,
        redis.Redis.from_url(server.url) as client,
    ):
        client.config_set("slowlog-log-slower-than", 1000)
        anyio.run(run, server.url, client, given.keys)


if __name__ == "__main__":
    main()
