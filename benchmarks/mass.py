"""What masses cost: `python -m benchmarks.mass`, a minute; `--scale 0.1` for a tenth of each.

A private server with one lane, and a node or two.  Of each case: how long it took, how many script
calls it was, of the costliest of them the server's time, for how long the loop stood still at most,
the collector of cycles apart, how long that ran, and how old the last renewal ever was.  What a
call may touch is bounded, so these do not grow with `--scale`; seconds do, and the collector's time
with what lives: 10,000 services in this one process are a million objects, 0.3 s for a full run.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import attrs
import redis

from pool import Call, Handlers, Job, Node, Settings
from pool.names import Names
from pool.redis.commands.lane import SCRIPTS
from pool.redis.commands.talk import LookedAt, Noted
from pool.redis.embedded.server import EmbeddedServer, find_server

POOL: Final = "mass"
TTL_S: Final = 10.0
IDENTITIES: Final = 3_000
KEYS: Final = 10_000
MESSAGES: Final = 100_000
DUE: Final = 100_000
_TOGETHER: Final = 1_000
_LOG_MAX: Final = 1_000_000


@attrs.define
class Cost:
    """What one case cost."""

    case: str
    took_s: float = 0.0
    calls: int = 0  # of scripts
    worst: str = ""  # the script with the longest call
    worst_us: int = 0
    p99_us: int = 0  # of all scripts
    late_ms: float = 0.0  # the longest that the loop stood still, the collector apart
    collector_ms: float = 0.0  # its longest run
    renewed_s: float = 0.0  # the greatest age of the last renewal, of leases of `TTL_S`

    def row(self) -> str:
        """Return it as a line of the table."""
        return (
            f"{self.case:<44}{self.took_s:>9.2f}{self.calls:>8,}{self.worst:>12}"
            f"{self.worst_us:>10,}{self.p99_us:>9,}{self.late_ms:>9.0f}{self.collector_ms:>8.0f}"
            f"{self.renewed_s:>10.2f}"
        )


HEAD: Final = (
    f"{'case':<44}{'s':>9}{'calls':>8}{'longest':>12}{'us':>10}{'p99 us':>9}{'loop ms':>9}"
    f"{'gc ms':>8}{'renewed s':>10}"
)


class Bench:
    """One server, watched by its slow log, which here holds everything."""

    client: Any  # of redis-py, whose replies are typed for both of its modes

    def __init__(self, server: EmbeddedServer, client: redis.Redis, scale: float) -> None:
        self.url, self.client, self.scale = server.url, client, scale
        self.names = Names(POOL, 0)
        self.costs: list[Cost] = []
        self._scripts: dict[bytes, str] = {}
        for found in SCRIPTS:
            self._scripts[found.sha.encode()] = found.name
            self._scripts[found.numbered_sha.encode()] = found.name

    def many(self, number: int) -> int:
        """Return a number of the page as scaled."""
        return max(10, round(number * self.scale))

    @asynccontextmanager
    async def measure(self, case: str) -> AsyncIterator[Cost]:
        """Count what is done within."""
        client, cost = self.client, Cost(case)
        client.config_set("slowlog-max-len", _LOG_MAX)
        client.config_set("slowlog-log-slower-than", 0)
        client.slowlog_reset()

        collected_s = collecting_s = 0.0

        def on_collector(phase: str, _: object) -> None:
            nonlocal collected_s, collecting_s
            if phase == "start":
                collecting_s = time.perf_counter()
            else:
                took_s = time.perf_counter() - collecting_s
                collected_s += took_s
                cost.collector_ms = max(cost.collector_ms, 1000 * took_s)

        async def watch() -> None:
            while True:
                began_s = time.perf_counter() - collected_s
                await anyio.sleep(0.001)
                late_ms = 1000 * (time.perf_counter() - collected_s - began_s) - 1
                cost.late_ms = max(cost.late_ms, late_ms)

        async def look() -> None:
            while True:
                seen, (seconds, micros) = client.hget(self.names.lane, "seen"), client.time()
                if seen is not None:
                    age_s = seconds + micros / 1e6 - int(seen) / 1000
                    cost.renewed_s = max(cost.renewed_s, age_s)
                await anyio.sleep(0.1)

        began_s = time.perf_counter()
        gc.callbacks.append(on_collector)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            tasks.start_soon(look)
            yield cost
            tasks.cancel_scope.cancel()
        gc.callbacks.remove(on_collector)
        cost.took_s = time.perf_counter() - began_s
        client.config_set("slowlog-log-slower-than", -1)
        found: Any = client.slowlog_get(_LOG_MAX)
        all_us: list[int] = []
        for entry in found:
            words = bytes(entry["command"]).split(b" ")
            if words[0] == b"EVALSHA":
                all_us.append(entry["duration"])
                if entry["duration"] > cost.worst_us:
                    cost.worst = self._scripts.get(words[1], words[1][:8].decode())
                    cost.worst_us = entry["duration"]
            elif entry["duration"] > cost.worst_us and words[0] not in (b"SLOWLOG", b"CONFIG"):
                cost.worst, cost.worst_us = words[0].decode().lower(), entry["duration"]
        cost.calls = len(all_us)
        if len(all_us) > 1:
            cost.p99_us = round(statistics.quantiles(all_us, n=100)[98])
        self.costs.append(cost)
        client.slowlog_reset()

    def node(self, handlers: Handlers | None = None, **options: Any) -> Node:
        """Return a node of our pool."""
        settings = Settings(lease_ttl_s=TTL_S, messages_max=1_000_000, grace_s=0.0)
        return Node(POOL, self.url, handlers=handlers, settings=settings, observers=(), **options)


async def _until(is_so: Callable[[], Any], limit_s: float = 120.0) -> None:
    with anyio.fail_after(limit_s):
        while not is_so():  # noqa: ASYNC110 - it is the server that is looked at
            await anyio.sleep(0.05)


def _services() -> Handlers:
    handlers = Handlers()

    @handlers.service("hold")
    async def hold(job: Job) -> None:  # noqa: ARG001
        await anyio.sleep_forever()

    return handlers


async def leases(bench: Bench) -> None:
    """Many nodes that own nothing die at once."""
    count = bench.many(IDENTITIES)
    async with bench.node() as node:
        names = {f"client{n}.1": 1 for n in range(count)}
        assert node._wiring is not None
        async with bench.measure(f"{count:,} keyless leases end at once"):
            bench.client.zadd(bench.names.keepalive, names)
            node._wiring._reaper.lease_ends(0, 0.0)  # as its next renewal would tell
            await _until(
                lambda: sum(v == b"done" for v in bench.client.hvals(bench.names.cleanup)) >= count
            )


async def reconcile(bench: Bench) -> None:
    """One worker compares what it owns."""
    count = bench.many(KEYS)
    async with bench.node(_services(), capacity=count) as node:
        await _hold(bench, node, count)
        assert node._wiring is not None
        (worker,) = node._wiring.membership.workers.values()
        lane = worker._lanes[0]
        await _until(lambda: lane.box.is_empty)
        before_s = lane.reconciled_s
        async with bench.measure(f"a worker of {count:,} keys reconciles"):
            worker._reconcile(0)
            await _until(lambda: lane.reconciled_s > before_s)
        bench.client.config_set("slowlog-log-slower-than", -1)


async def reap(bench: Bench) -> None:
    """A worker dies that owned many keys."""
    count = bench.many(KEYS)
    owned = bench.names.owned("dead.1")
    async with bench.node(_services(), capacity=count) as node:
        await _hold(bench, node, count)
        (mine,) = (key for key in bench.client.scan_iter(match=f"{bench.names.prefix}owned:*"))
        keys = list(bench.client.smembers(mine))[: count // 2]
        me = mine.decode().rpartition("owned:")[2]
        with bench.client.pipeline(transaction=False) as pipe:
            for key in keys:
                text = bench.client.hget(bench.names.jobs, key) or b""
                pipe.hset(bench.names.jobs, key, text.replace(me.encode(), b"dead.1"))
                pipe.smove(mine.decode(), owned, key)
            pipe.zadd(bench.names.keepalive, {"dead.1": 1})
            async with bench.measure(f"a dead worker's {len(keys):,} keys are moved"):
                pipe.execute()
                await _until(lambda: bench.client.hget(bench.names.cleanup, "dead.1") == b"done")


async def _hold(bench: Bench, node: Node, count: int) -> None:
    for first in range(0, count, _TOGETHER):
        calls = [Call(f"key{n}") for n in range(first, min(first + _TOGETHER, count))]
        await node.dispatch_many("hold", calls)
    await _until(
        lambda: (
            sum(
                bench.client.scard(key)
                for key in bench.client.scan_iter(match=f"{bench.names.prefix}owned:*")
            )
            >= count
        )
    )


async def inbox(bench: Bench) -> None:
    """A service finds many messages when it begins."""
    count, done = bench.many(MESSAGES), anyio.Event()
    handlers, got = Handlers(), list[int]()

    @handlers.service("read")
    async def read(job: Job) -> None:
        async for message in job.notifications():
            got.append(message)
            if message == count - 1:
                done.set()

    async with bench.node() as client:
        via = client.options(allow_unknown=True)
        await via.dispatch("read", "reader")
        await client.notify("reader", 0)
        [first] = bench.client.lrange(bench.names.inbox("reader"), 0, -1)
        number = int(first.partition(b"|")[0])
        for at in range(1, count, _TOGETHER):
            some = [b"%d|r|%d" % (number + n, n) for n in range(at, min(at + _TOGETHER, count))]
            bench.client.rpush(bench.names.inbox("reader"), *some)
        async with bench.measure(f"a notification behind {count:,}, tried again"):
            await _doubtful(client)
        bench.client.rpop(bench.names.inbox("reader"))
        case = f"{count:,} messages of one inbox are handled"
        async with bench.measure(case), bench.node(handlers):
            with anyio.fail_after(300.0):
                await done.wait()
    assert got == list(range(count))


async def _doubtful(node: Node) -> None:
    """Send one that was never sent before as if its first answer had been lost."""
    assert node._wiring is not None
    context = node._wiring.context
    state = context.lanes[0]
    call = state.lane.notify("reader", "", "!again", b"-1", messages_max=1_000_000)
    told = await context.pipeline.call(call)
    while isinstance(told, LookedAt):
        call = state.lane.notify(
            "reader", "", "!again", b"-1", messages_max=1_000_000, skip=told.skip
        )
        told = await context.pipeline.call(call)
    assert told == Noted()


async def due(bench: Bench) -> None:
    """Many delays are over at the same moment."""
    count = bench.many(DUE)
    async with bench.node() as node:
        via = node.options(delay_s=3600.0, allow_unknown=True)
        for first in range(0, count, 10_000):
            calls = [Call(f"key{n}") for n in range(first, min(first + 10_000, count))]
            await via.dispatch_many("later", calls)
        script = (
            "local all = redis.call('ZRANGE', KEYS[1], 0, -1) "
            "for _, member in ipairs(all) do redis.call('ZADD', KEYS[1], 1, member) end"
        )
        bench.client.execute_command("EVAL", script, 1, bench.names.due)
        assert node._wiring is not None
        async with bench.measure(f"{count:,} keys are due at once"):
            node._wiring.context.on_due(0, 0.0)
            await _until(lambda: bench.client.zcard(bench.names.due) == 0, 600.0)


CASES: Final[dict[str, Callable[[Bench], Awaitable[None]]]] = {
    "leases": leases,
    "reconcile": reconcile,
    "reap": reap,
    "inbox": inbox,
    "due": due,
}


async def run(bench: Bench, only: list[str]) -> None:
    """Run the cases, each on an empty server."""
    for name in only or list(CASES):
        bench.client.flushall()
        await CASES[name](bench)
        for cost in bench.costs:
            sys.stdout.write(f"{cost.row()}\n")
            sys.stdout.flush()
        bench.costs.clear()


def main() -> None:
    """Measure, and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--only", nargs="*", default=[], choices=list(CASES))
    parser.add_argument("--loop", default="asyncio", choices=["asyncio", "trio"])
    args = parser.parse_args()
    sys.stdout.write(f"{HEAD}\n")
    with (
        EmbeddedServer.start(find_server("wheel")) as server,
        redis.Redis.from_url(server.url) as client,
    ):
        anyio.run(run, Bench(server, client, args.scale), args.only, backend=args.loop)


if __name__ == "__main__":
    main()
