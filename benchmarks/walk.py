"""What the walk over all records costs: `python -m benchmarks.walk --records 1000000`.

A private server is filled with records in all states, each where it belongs, of 300 workers.  Then
a node walks over them once without pausing.  Reported are the time of the whole pass so, and as it
is paced; the server's time per slice, and the longest of its commands; and for how long the node's
event loop was held in one turn, as processor time of its thread.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final

import anyio
import anyio.lowlevel
import attrs
import redis

from pool import Node, Settings
from pool.core import walk as model
from pool.jobs.fleet.walker import Pass, Walker
from pool.names import Names
from pool.redis.embedded.server import EmbeddedServer, find_server

POOL: Final = "walk"
WORKERS: Final = 300
PACED_TTL_S: Final = 10.0
FAR_MS: Final = 9_999_999_999_999
_TOGETHER: Final = 2_000
_CALLS: Final = re.compile(r"usec=(\d+)")


@attrs.define
class Turns:
    """How long each turn of the event loop took of its thread's processor time."""

    all_s: list[float] = attrs.field(factory=list)
    is_over: bool = False

    async def watch(self) -> None:
        while not self.is_over:
            began_s = time.thread_time()
            await anyio.lowlevel.checkpoint()
            self.all_s.append(time.thread_time() - began_s)


def fill(client: redis.Redis, records: int, *, pool: str = POOL, count: int = WORKERS) -> list[str]:
    """Write records of all states, and the indexes that lead to them; return their workers."""
    names = Names(pool, 0)
    workers = [f"w8z4k0qv1xt{n}.1" for n in range(count)]
    client.zadd(names.keepalive, dict.fromkeys(workers, FAR_MS))
    client.hset(names.handlers, "thumbnail", "j|5|1000|60000|0|60000")
    for first in range(0, records, _TOGETHER):
        _fill(client, names, range(first, min(first + _TOGETHER, records)), workers)
    client.hset(names.lane, mapping={"waiting": len(range(3, records, 4))})
    client.hset(names.lane, mapping={"unassigned": len(range(2, records, 4))})
    return workers


def _fill(client: redis.Redis, names: Names, numbers: range, workers: list[str]) -> None:
    """Write some of them, all of one worker: one command for each structure."""
    worker = workers[numbers.start // _TOGETHER % len(workers)]
    jobs: dict[Any, Any] = {}
    by_state: list[list[str]] = [[], [], [], []]
    for n in numbers:
        key, epoch = f"tenant-{n:08d}", 1_763_819_635_000_000 + n
        head = f"|j|8z4k0qv1xt{n:x}|thumbnail|"
        by_state[n % 4].append(key)
        jobs[key] = (
            f"P{head}{worker}|{epoch}|1||||||||",
            f"R{head}{worker}|{epoch}|1|||||{epoch - 9}|1763819635000||",
            f"U{head}|{epoch}|1||||||||",
            f"W{head}|{epoch}|2|d||||{epoch - 9}|{FAR_MS}||",
        )[n % 4]
    pending, running, unassigned, waiting = by_state
    with client.pipeline(transaction=False) as pipe:
        pipe.hset(names.jobs, mapping=jobs)
        pipe.zadd(names.pending, dict.fromkeys(pending, FAR_MS))
        pipe.sadd(names.owned(worker), *running)
        pipe.zadd(names.unassigned("thumbnail"), dict.fromkeys(unassigned, 1))
        pipe.zadd(names.due, {f"k:{key}": FAR_MS for key in waiting})
        pipe.execute()


async def measure(url: str, client: redis.Redis, records: int) -> Iterator[str]:
    """Walk over everything once, and return what it cost."""
    slices, longest_s, turns = 0, 0.0, Turns()
    # With so long a lease the node's own walk does not begin meanwhile.
    async with Node(POOL, url, settings=Settings(lease_ttl_s=3600.0), observers=()) as node:
        fill(client, records)
        assert node._wiring is not None
        context, suspects = node._wiring.context, list[str]()
        walker = Walker(
            context=context,
            move=lambda *_: anyio.lowlevel.checkpoint(),
            carry=lambda *_: None,
            mend_schedules=lambda _: anyio.lowlevel.checkpoint(),
            tend=lambda *_: None,
            on_suspects=lambda _, names: suspects.extend(names),
        )
        mine, state = Pass(), context.lanes[0]
        client.config_set("slowlog-log-slower-than", 500)
        client.config_set("slowlog-max-len", 100_000)
        client.slowlog_reset()
        client.config_resetstat()

        began_s = time.perf_counter()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(turns.watch)
            while mine.cursor != "0":
                from_s = time.perf_counter()
                await walker.look(state, mine)
                longest_s = max(longest_s, time.perf_counter() - from_s)
                slices += 1
            turns.is_over = True
        took_s = time.perf_counter() - began_s
        stats: Any = client.info("commandstats")
        slow: Any = client.slowlog_get(100_000)
    assert mine.is_whole
    assert not suspects
    assert mine.found == 0
    server_us = sum(
        each["usec"]
        for name, each in stats.items()
        if name in ("cmdstat_evalsha", "cmdstat_zmscore", "cmdstat_smismember", "cmdstat_hmget")
    )
    pause_s = model.pause_s(records, 1, PACED_TTL_S)
    paced_s = pause_s * max(1, math.ceil(records / model.SLICE))
    commands = (each["duration"] / 1e6 for each in slow)
    lines = [
        f"{records} records in {slices} slices: {took_s:.1f} s without a pause",
        f"as it is paced: {paced_s:.0f} s, one slice every {pause_s:.2f} s",
        f"a slice: {1000 * took_s / slices:.1f} ms, at most {1000 * longest_s:.1f} ms",
        f"of the server's time: {server_us / slices / 1000:.2f} ms a slice",
        f"the server's longest commands: {_longest(commands)} ms",
        f"the event loop's longest turns: {_longest(turns.all_s)} ms of processor time",
    ]
    return iter(lines)


def _longest(all_s: Iterable[float]) -> str:
    return ", ".join(f"{1000 * each_s:.1f}" for each_s in sorted(all_s, reverse=True)[:8])


def main() -> None:
    """Fill, walk, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    args = parser.parse_args()
    with (
        EmbeddedServer.start(find_server("wheel")) as server,
        redis.Redis.from_url(server.url) as client,
    ):
        for line in anyio.run(measure, server.url, client, args.records):
            sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main()
