"""What a batch costs: `python -m benchmarks.batches --members 100000 --lanes 1`.

A private server, and one node that makes a batch and runs its members, which do nothing; then the
same jobs without a batch, as `dispatch_many` takes them, whose ends are waited for at the store.
Reported are how long it takes to add all, until it has settled, and to read all members; the
server's processor time for each member, beside that of a job without a batch; and what the batch
takes of the server's memory when it has settled.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import anyio
import attrs
import redis

from pool import Handlers, Job, Node, Settings
from pool.names import Names, lane_of
from pool.redis.embedded.server import EmbeddedServer, find_server

POOL: Final = "batches"
ID: Final = "nightly"
LOOK_S: Final = 0.02
handlers: Final = Handlers()


@handlers.job("nothing", attempts_max=1)
async def nothing(job: Job) -> None:
    """Return at once."""


@attrs.define
class Meter:
    """Time that passes, and the server's processor time."""

    client: redis.Redis
    _since_s: float = attrs.field(init=False, factory=time.perf_counter)
    _cpu_s: float = 0.0

    def begin(self) -> None:
        self._since_s, self._cpu_s = time.perf_counter(), self._server_s()

    def took(self) -> tuple[float, float]:
        """Return both, in seconds."""
        return time.perf_counter() - self._since_s, self._server_s() - self._cpu_s

    def _server_s(self) -> float:
        cpu: Any = self.client.info("cpu")
        return float(cpu["used_cpu_user"] + cpu["used_cpu_sys"])


def _memory(client: redis.Redis) -> int:
    told: Any = client.info("memory")
    return int(told["used_memory"])


def _ended(client: redis.Redis, lanes: int) -> int:
    counts = (client.hget(Names(POOL, number).lane, "done") for number in range(lanes))
    return sum(int(count or 0) for count in counts)


async def measure(url: str, client: redis.Redis, members: int, lanes: int) -> AsyncIterator[str]:
    """Make a batch of so many, then do the same without one."""
    settings = Settings(lanes=lanes, queued_jobs_max=10_000_000, result_ttl_s=3600.0)
    meter, keys = Meter(client), [f"tenant-{number:07d}" for number in range(members)]
    async with Node(
        POOL, url, handlers=handlers, settings=settings, capacity=1000, observers=()
    ) as node:
        meter.begin()
        async with node.batch(ID) as batch:
            refused = await batch.add(nothing, keys)
        added_s, _ = meter.took()
        status = await batch.ref.result()
        settled_s, server_s = meter.took()
        assert not refused
        assert (status.expected, status.succeeded) == (members, members)
        names = Names(POOL, lane_of(ID, lanes))
        held: Any = client.memory_usage(names.batch(ID), samples=0)
        meter.begin()
        read = 0
        async for member in batch.ref.members(nothing):
            read += member.end == "succeeded"
        read_s, read_server_s = meter.took()
        assert read == members

        before = _ended(client, lanes)
        meter.begin()
        for first in range(0, members, 100_000):
            await node.dispatch_many(nothing, [f"x{key}" for key in keys[first : first + 100_000]])
        sent_s, _ = meter.took()
        while _ended(client, lanes) < before + members:  # noqa: ASYNC110 - only the server knows
            await anyio.sleep(LOOK_S)
        plain_s, plain_server_s = meter.took()
    each_us, plain_us = 1e6 * server_s / members, 1e6 * plain_server_s / members
    rate, plain_rate = members / settled_s, members / plain_s
    yield f"{members} members, {lanes} lanes; {_memory(client) / 1e6:.0f} MB in the end"
    yield f"added in {added_s:.1f} s, settled in {settled_s:.1f} s: {rate:.0f} a s"
    yield f"as plain jobs: sent in {sent_s:.1f} s, ended in {plain_s:.1f} s: {plain_rate:.0f} a s"
    yield f"of the server's time: {each_us:.0f} us a member, {plain_us:.0f} us a plain job"
    yield f"all read in {read_s:.1f} s, {1e6 * read_server_s / members:.1f} us of the server each"
    yield f"the batch itself: {held / members:.0f} B a member"


async def _tell(url: str, client: redis.Redis, members: int, lanes: int) -> None:
    async for line in measure(url, client, members, lanes):
        sys.stdout.write(f"{line}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.batches", description=__doc__)
    parser.add_argument("--members", type=int, default=100_000)
    parser.add_argument("--lanes", type=int, default=1)
    given = parser.parse_args(argv)
    with (
        EmbeddedServer.start(find_server("wheel")) as server,
        redis.Redis.from_url(server.url, protocol=2) as client,
    ):
        anyio.run(_tell, server.url, client, given.members, given.lanes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
