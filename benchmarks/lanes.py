"""What lanes are worth: `python -m benchmarks.throughput --lanes 1 2 4`.

    one server | a cluster of three primaries      x      each number of lanes
    dispatch_many by one client -> drain by two workers; everything interleaved, several times

The figures are throughput as a ratio to the first number of lanes on the same servers within the
same round, and the servers' CPU time per job, in all and on the busiest of them.  Where all these
processes share few cores, the first says what lanes cost; what they are worth is told by the
second, since a server has one thread for commands.
"""

from __future__ import annotations

import secrets
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Final

import attrs
import redis

from pool.names import Control, Names
from pool.redis.embedded.server import EmbeddedServer, ServerProgram
from tests.servers import Cluster, connect

Usages = list[float]  # CPU us of each server
MakeMember = Callable[..., Any]

WORKERS: Final = 2
_LOOK_S: Final = 0.01
_LIMIT_S: Final = 120.0


@attrs.frozen
class Place:
    """Where a pool is: an address, and its server processes."""

    name: str
    url: str
    servers: Sequence[str]

    def cpu_us(self) -> Usages:
        """Return what each server process has spent."""
        spent = []
        for url in self.servers:
            with redis.Redis.from_url(url) as client:
                info: Any = client.info("cpu")
                spent.append(1e6 * (info["used_cpu_user"] + info["used_cpu_sys"]))
        return spent


@attrs.frozen
class Figures:
    """One round: jobs per second, and CPU us per job of all servers and of the busiest one."""

    dispatched_per_s: float
    drained_per_s: float
    servers_us: float
    busiest_us: float


def run(
    member: MakeMember, program: ServerProgram, *, lanes: Sequence[int], jobs: int, repeats: int
) -> dict[tuple[str, int], list[Figures]]:
    """Measure; returns the rounds of each place and number of lanes."""
    found: dict[tuple[str, int], list[Figures]] = defaultdict(list)
    with ExitStack() as stack:
        server = stack.enter_context(EmbeddedServer.start(program))
        cluster = stack.enter_context(Cluster.start(program))
        places = [
            Place("one server", server.url, [server.url]),
            Place("3 primaries", cluster.url, [each.url for each in cluster.processes]),
        ]
        for _ in range(repeats):
            for place in places:
                for count in lanes:
                    found[place.name, count].append(_round(member, place, count, jobs))
    return found


def _round(member: MakeMember, place: Place, lanes: int, jobs: int) -> Figures:
    pool = f"bench-{secrets.token_hex(4)}"
    with ExitStack() as stack:
        workers = [
            stack.enter_context(member("worker", pool, place.url, lanes)) for _ in range(WORKERS)
        ]
        client = stack.enter_context(member("client", pool, place.url, lanes))
        client.tell()
        client.hear()
        before = place.cpu_us()
        seconds = client.ask("many", jobs=jobs)["seconds"]
        for worker in workers:
            worker.tell()
        ended_s = _drained(place.url, pool, lanes, jobs)
        spent = [now - then for now, then in zip(place.cpu_us(), before, strict=True)]
        starts_ns = []
        for worker in workers:
            worker.hear()
            starts_ns += worker.ask("report")["starts_ns"]
        assert len(starts_ns) == jobs, f"{jobs} jobs, {len(starts_ns)} runs"
    _forget(place.url, pool)
    return Figures(
        jobs / seconds,
        jobs / (ended_s - min(starts_ns) / 1e9),
        sum(spent) / jobs,
        max(spent) / jobs,
    )


def _drained(url: str, pool: str, lanes: int, jobs: int) -> float:
    """Wait until so many jobs are done; returns when."""
    names, deadline_s = [Names(pool, k).lane for k in range(lanes)], time.monotonic() + _LIMIT_S
    with connect(url) as client:
        while sum(int(client.hget(name, "done") or 0) for name in names) < jobs:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"not {jobs} jobs within {_LIMIT_S:g} s")
            time.sleep(_LOOK_S)
    return time.monotonic()


def _forget(url: str, pool: str) -> None:
    with connect(url) as client:
        everything = Control(pool).prefix.rpartition("}")[0]  # the lanes' tags begin like it
        for key in list(client.scan_iter(match=f"{everything}*", count=1000)):
            client.unlink(key)


def lines(found: dict[tuple[str, int], list[Figures]]) -> Iterator[str]:
    """Print the medians; ratios are taken within each round."""
    heads = f"{'dispatch':>18} {'drain':>18} {'servers us/job':>15} {'busiest':>8}"
    yield f"{'':12} lanes {heads}"
    for (place, lanes), rounds in found.items():
        first = next(rounds for (name, _), rounds in found.items() if name == place)
        texts = []
        for name in ("dispatched_per_s", "drained_per_s"):
            pairs = zip(rounds, first, strict=True)
            ratios = [getattr(mine, name) / getattr(theirs, name) for mine, theirs in pairs]
            median = statistics.median(getattr(each, name) for each in rounds)
            texts.append(f"{median:9,.0f}/s x{statistics.median(ratios):5.2f}")
        all_us = statistics.median(each.servers_us for each in rounds)
        busiest_us = statistics.median(each.busiest_us for each in rounds)
        yield f"{place:12} {lanes:5} {texts[0]:>18} {texts[1]:>18} {all_us:15.1f} {busiest_us:8.1f}"
