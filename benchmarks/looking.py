"""What looking at a large pool costs: `python -m benchmarks.looking`, or `make bench-looking`.

A private server is filled with a million records in all states, of 1,000 workers, each with its
entry in the map of workers.  Then each verb looks as `pool` does, a few pages of it, or all that it
looks at.  Reported are the seconds until it is told, what the server was busy, and the longest of
its commands, which is how long everybody else had to wait (DESIGN: 5 ms).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import anyio
import attrs
import redis

from benchmarks.walk import fill
from pool import Node, Settings
from pool.jobs.client.listing import PAGE_MAX, JobFilter
from pool.jobs.roster import WorkerEntry
from pool.maps.commands import StoredMap
from pool.maps.deltas import Set
from pool.names import WORKERS, Control, Names
from pool.ops import browse, inspect, keyfacts, members, summary
from pool.ops.cli.doctor import diagnose
from pool.ops.inspect import Found
from pool.redis.embedded.server import EmbeddedServer, find_server
from pool.redis.pipeline import Pipeline
from pool.redis.url import Url

POOL: Final = "looking"
PAGES: Final = 10  # of a list of jobs
LIMIT_MS: Final = 5.0  # of one command
ROUNDS: Final = 3  # the least of them is told: a command that is long is so each time
LONG: Final = "doctor --all"
_TOGETHER: Final = 200
FILTERS: Final[dict[str, dict[str, Any]]] = {
    "jobs": {},
    "jobs --state pending": {"state": "pending"},
    "jobs --state running": {"state": "running"},
    "jobs --state unassigned": {"state": "unassigned"},
    "jobs --state waiting": {"state": "waiting"},
    "jobs --state unassigned --handler": {"state": "unassigned", "handler": "thumbnail"},
    "jobs --owner": {"owner": "w8z4k0qv1xt0"},
    "jobs --prefix": {"prefix": "tenant-0000"},
    "jobs --older-than": {"older_than_s": 60.0},
}


@attrs.frozen(kw_only=True)
class Look:
    """What one verb took."""

    verb: str
    took_s: float
    server_ms: float  # all that the server did for it
    longest_ms: float  # one command
    commands: int
    slowest: str
    beyond: int = 0  # commands that took longer than the limit

    def line(self) -> str:
        """Return it as a row."""
        return (
            f"| `{self.verb}` | {self.took_s:.2f} s | {self.server_ms:.1f} ms | {self.commands} | "
            f"{self.longest_ms:.2f} ms ({self.slowest}) |"
        )


@attrs.frozen
class Watch:
    """Measures what the server does meanwhile."""

    client: redis.Redis

    async def over(self, verb: str, look: Callable[[], Awaitable[object]]) -> Look:
        """Look once, and tell what that took."""
        self.client.slowlog_reset()
        self.client.config_resetstat()
        began_s = time.perf_counter()
        await look()
        took_s = time.perf_counter() - began_s
        stats: Any = self.client.info("commandstats")
        slow: Any = self.client.slowlog_get(100_000)
        own = ("cmdstat_slowlog", "cmdstat_config", "cmdstat_info")
        mine = [each for name, each in stats.items() if not name.startswith(own)]
        slow = [each for each in slow if not each["command"].startswith((b"SLOWLOG", b"CONFIG"))]
        longest = max(slow, key=lambda each: each["duration"], default=None)
        return Look(
            verb=verb,
            took_s=took_s,
            server_ms=sum(each["usec"] for each in mine) / 1000,
            longest_ms=longest["duration"] / 1000 if longest else 0.0,
            commands=sum(each["calls"] for each in mine),
            slowest=longest["command"].split()[0].decode() if longest else "none",
            beyond=sum(each["duration"] > 1000 * LIMIT_MS for each in slow),
        )


async def looks(url: str, client: redis.Redis, records: int, workers: int) -> list[Look]:
    """Fill the pool, and look at it in each way."""
    client.config_set("slowlog-log-slower-than", 100)
    client.config_set("slowlog-max-len", 100_000)
    watch, found = Watch(client), list[Look]()
    async with Node(POOL, url, settings=Settings(lease_ttl_s=3600.0), observers=()) as node:
        names = fill(client, records, pool=POOL, count=workers)
        await _announce(node, client, names)
        async with inspect.opened(POOL, Url.parse(url)) as (pipeline, pool):
            for verb, look in _verbs(pipeline, pool, url).items():
                rounds = 1 if verb == LONG else ROUNDS
                seen = [await watch.over(verb, look) for _ in range(rounds)]
                found.append(min(seen, key=lambda each: each.longest_ms))
    return found


async def _announce(node: Node, client: redis.Redis, names: list[str]) -> None:
    """Have the workers be there, as far as anybody sees."""
    entries = [
        WorkerEntry(
            id=name.partition(".")[0],
            node="n8z4k0qv1xt",
            handlers=("thumbnail",),
            capacity=1_000,
            weight=1.0,
            label="",
            version="1",
            is_draining=False,
            numbers=(1,),
            host="host",
            pid=1,
        )
        for name in names
    ]
    client.hset(Names(POOL, 0).open, mapping={each.id: "1|1000|1" for each in entries})
    assert node._wiring is not None
    context, stored = node._wiring.context, StoredMap(Control(POOL), WORKERS)
    for first in range(0, len(entries), _TOGETHER):
        some = [Set(each.id.encode(), each.pack()) for each in entries[first : first + _TOGETHER]]
        await stored.write(context.pipeline, context.generation, some, repeatable=True)


def _verbs(pipeline: Pipeline, pool: Found, url: str) -> dict[str, Callable[[], Awaitable[object]]]:
    async def pages(wanted: JobFilter) -> None:
        cursor = ""
        for _ in range(PAGES):
            page = await browse.jobs(pipeline, pool, wanted, cursor=cursor, page=PAGE_MAX)
            cursor = page.cursor
            if not cursor:
                break

    def of_jobs(words: dict[str, Any]) -> Callable[[], Awaitable[object]]:
        return lambda: pages(JobFilter(**words))

    at = Url.parse(url)
    return {
        **{verb: of_jobs(words) for verb, words in FILTERS.items()},
        "job, why": lambda: keyfacts.read(pipeline, pool, "tenant-00000001"),
        "workers, nodes": lambda: members.read(pipeline, pool),
        "status, top": lambda: summary.status(pipeline, POOL),
        "doctor": lambda: diagnose(POOL, at),
        LONG: lambda: diagnose(POOL, at, True),
    }


def report(found: list[Look], records: int, workers: int) -> Iterator[str]:
    """Yield the table, and what is beyond the limit."""
    load = " ".join(f"{each:.2f}" for each in os.getloadavg())
    yield f"{records} jobs, {workers} workers; load {load}"
    yield "| verb | until it is told | the server was busy | commands | the longest |"
    yield "| --- | --- | --- | --- | --- |"
    for each in found:
        yield each.line()
    for each in found:
        if each.longest_ms > LIMIT_MS:
            yield f"beyond {LIMIT_MS:g} ms: {each.verb}, {each.beyond} of {each.commands} commands"


def main() -> int:
    """Fill, look, report; 1 if a command held the server for longer than it may."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=1_000)
    args = parser.parse_args()
    with (
        EmbeddedServer.start(find_server("wheel")) as server,
        redis.Redis.from_url(server.url) as client,
    ):
        found = anyio.run(looks, server.url, client, args.records, args.workers)
    for line in report(found, args.records, args.workers):
        sys.stdout.write(f"{line}\n")
    # Of one that is looked at once a few may have waited for a processor.
    return int(
        any(each.beyond > (each.commands // 1000 if each.verb == LONG else 0) for each in found)
    )


if __name__ == "__main__":
    sys.exit(main())
