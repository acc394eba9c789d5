"""How late schedules fire, and what they cost at rest: `python -m benchmarks.schedules`.

A private server and one node with a worker, in one process.  First the server's time at rest,
without schedules and with so many that are due tomorrow.  Then these come due evenly within a
while, one after another, and then all in the same second: how long after its time each handler
begins, and how much of the server's time each took, job and all.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import anyio
import attrs
import redis

from pool import Handlers, Job, Node
from pool.core.schedules import ScheduledJob, StoredSchedule, first_head
from pool.core.times import At, When, moment
from pool.names import Names
from pool.redis.commands.schedules import ScheduleChange
from pool.redis.embedded.server import EmbeddedServer, find_server

POOL: Final = "schedules"
CAPACITY: Final = 1000
_TOGETHER: Final = 200  # changes in one call
_LEAD_S: Final = 8.0  # by so much all are stored before the first is due
_DAY_S: Final = 86_400.0


@attrs.define
class Firings:
    """How late each handler began, in seconds."""

    late_s: list[float] = attrs.field(factory=list)
    wanted: int = 0
    over: anyio.Event = attrs.field(factory=anyio.Event)

    def begin(self, count: int) -> None:
        self.late_s.clear()
        self.wanted, self.over = count, anyio.Event()

    def note(self, job: Job) -> None:
        assert job.scheduled_for is not None
        self.late_s.append(time.time() - job.scheduled_for.timestamp())
        if len(self.late_s) >= self.wanted:
            self.over.set()

    def told(self) -> str:
        found = sorted(self.late_s)
        p50, p99 = (1000 * found[int(len(found) * share)] for share in (0.5, 0.99))
        return f"late by p50 {p50:.1f}, p99 {p99:.1f}, at most {1000 * found[-1]:.1f} ms"


def handlers_of(firings: Firings) -> Handlers:
    handlers = Handlers()

    @handlers.job("note")
    async def note(job: Job) -> None:
        firings.note(job)

    return handlers


async def store(node: Node, whens: Sequence[When]) -> None:
    """Store one schedule for each, some by one call: as `Node.schedule` does one by one."""
    assert node._wiring is not None
    context = node._wiring.context
    state, now_ms = context.lanes[0], round(time.time() * 1000)
    changes = []
    for number, when in enumerate(whens):
        name = f"s{number}"
        head = first_head(name, when, now_ms, context.ids.next())
        assert head is not None
        job = ScheduledJob(lane=0, key=f"k{number}", handler="note", kind="job", call=b"[]")
        stored = StoredSchedule(name=name, head=head, when=when, job=job)
        changes.append(
            ScheduleChange(
                name=name, seen=b"", head=head.pack(), body=stored.body, due_ms=head.due_ms
            )
        )
    for first in range(0, len(changes), _TOGETHER):
        call = state.lane.schedule(changes[first : first + _TOGETHER], hold_s=2.0)
        page = await context.pipeline.call(call, repeatable=True)
        assert all(page.done)
        if page.next_s is not None:
            context.on_due(0, page.next_s)


def server_us(client: redis.Redis) -> int:
    """Return the time of the server's commands since the last look, in microseconds."""
    stats: Any = client.info("commandstats")
    client.config_resetstat()
    spent = (each["usec"] for name, each in stats.items() if "config" not in name)
    return int(sum(spent))


async def measure(url: str, client: redis.Redis, count: int, over_s: float) -> Iterator[str]:
    """Measure all three, and return what to say."""
    firings, lines = Firings(), list[str]()
    async with Node(
        POOL, url, handlers=handlers_of(firings), capacity=CAPACITY, observers=()
    ) as node:
        await anyio.sleep(1.0)
        rests, names = [], Names(POOL, 0)
        for whens in ([], [At(moment(round((time.time() + _DAY_S) * 1000)))] * count):
            await store(node, whens)
            await anyio.sleep(1.0)
            server_us(client)
            await anyio.sleep(over_s / 2)
            rests.append(server_us(client) / (over_s / 2))
        lines.append(
            f"at rest: {rests[1]:.0f} us of the server's time a second with {count} schedules, "
            f"{rests[0]:.0f} without"
        )
        client.delete(names.schedules, names.scheduled)
        for spread_s in (over_s, 0.0):
            begin_s = time.time() + _LEAD_S
            whens = [
                At(datetime.fromtimestamp(round(begin_s + spread_s * n / count, 3), UTC))
                for n in range(count)
            ]
            firings.begin(count)
            await store(node, whens)
            server_us(client)
            await firings.over.wait()
            rate = f"over {spread_s:g} s" if spread_s else "at the same moment"
            each_us = server_us(client) / count
            lines.append(f"{count} firings {rate}: {firings.told()}; {each_us:.0f} us each")
    return iter(lines)


def main() -> None:
    """Measure, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--over-s", type=float, default=20.0, help="in which they come due")
    args = parser.parse_args()
    with (
        EmbeddedServer.start(find_server("wheel")) as server,
        redis.Redis.from_url(server.url) as client,
    ):
        for line in anyio.run(measure, server.url, client, args.schedules, args.over_s):
            sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main()
