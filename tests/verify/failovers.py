"""Failovers of real servers: `python -m tests.verify.failovers [--runs 3] [--server PATH]`.

Two nodes dispatch as fast as the server answers, one job after the other, while the primary is
replaced.  Each run prints how much of the acknowledged work the new primary lacks, for how long
nothing was acknowledged, and after how long every connection had left the old primary.

    planned      SENTINEL FAILOVER, or CLUSTER FAILOVER
    cut off      the primary is cut off from sentinels and replicas, or from its cluster, and not
                 from its clients
    killed       SIGKILL

A cut-off primary loses what it acknowledges between the cut and its replacement, unless it has
min-replicas-to-write.  With that and a single replica there is no service until it is back.
The exit code is 1 if a node stays at a primary that was replaced, or work is lost that was
acknowledged later than `--late` seconds after the quorum had named the new one.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
import attrs
import redis

from pool import Handlers, Job, Node, Settings
from pool.errors import StoreUnavailable
from pool.names import Names
from pool.redis.embedded import server as programs
from pool.redis.embedded.server import EmbeddedServer, ServerProgram
from tests.partitions import RelayedCluster, as_client, client_of, isolate, let_clients_in
from tests.servers import SERVICE, Sentinels, admin

POOL: Final = "failover"
_MAX_LAG_S: Final = "2"  # of replicas: below half of the lease, as the page says
NODES: Final = 2
BEFORE_S: Final = 1.0  # of dispatching, before anything happens
LOOK_AGAIN_S: Final = 0.01
LATER_S: Final = 3600.0  # when its jobs are due: until then their records stay
TTL_S: Final = 10.0

Place = Sentinels | RelayedCluster


@attrs.frozen
class Situation:
    """What happens to which servers."""

    name: str
    kind: str
    how: str
    replicas: int = 1
    min_replicas: int = 0

    def start(self, program: ServerProgram) -> Place:
        config: dict[str, Any] = {}
        if self.min_replicas:
            config = {
                "min_replicas_to_write": str(self.min_replicas),
                "min_replicas_max_lag": _MAX_LAG_S,
            }
        if self.kind == "cluster":
            return RelayedCluster.start(program, replicas=True, **config)
        return Sentinels.start(program, replicas=self.replicas, **config)


SITUATIONS: Final = (
    Situation("planned, 1 replica", "sentinel", "planned"),
    Situation("planned, 2 replicas", "sentinel", "planned", replicas=2),
    Situation("planned, 2 replicas, min 1", "sentinel", "planned", replicas=2, min_replicas=1),
    Situation("cut off, 1 replica", "sentinel", "cut"),
    Situation("cut off, 2 replicas", "sentinel", "cut", replicas=2),
    Situation("cut off, 2 replicas, min 1", "sentinel", "cut", replicas=2, min_replicas=1),
    Situation("killed, 1 replica", "sentinel", "kill"),
    Situation("planned, cluster", "cluster", "planned"),
    Situation("cut off, cluster", "cluster", "cut"),
)


@attrs.define
class Run:
    """What one run has shown."""

    acknowledged: int = 0
    lost: int = 0
    lost_late: int = 0  # ... of what was acknowledged long after the quorum had named the new one
    silent_s: float = 0.0
    named_s: float = 0.0
    left_s: float | None = None  # None: somebody stayed

    @property
    def is_bad(self) -> bool:
        return self.left_s is None or self.lost_late > 0

    def cells(self) -> Iterator[str]:
        yield f"{self.lost} of {self.acknowledged}"
        yield str(self.lost_late)
        yield f"{self.silent_s:.2f}"
        yield f"{self.named_s:.2f}"
        yield "stayed" if self.left_s is None else f"{self.left_s:.2f}"


@attrs.define(eq=False)
class Load:
    """Dispatches until it is cancelled; knows what was acknowledged when."""

    times: dict[str, float] = attrs.field(factory=dict)

    async def run(self, node: Node, name: str) -> None:
        number, dispatching = 0, node.options(delay_s=LATER_S)
        while True:
            number += 1
            key = f"{name}-{number}"
            try:
                await dispatching.dispatch("later", key)
                self.times[key] = time.monotonic()
            except StoreUnavailable:
                await anyio.sleep(LOOK_AGAIN_S)


def owner(place: Place, asked: EmbeddedServer) -> EmbeddedServer:
    """Return the primary, as somebody names it who is not cut off."""
    key = Names(POOL, 0).prefix
    return place.primary(key) if isinstance(place, Sentinels) else place.owner(key, asked)


def begin(place: Place, how: str, before: EmbeddedServer, replica: EmbeddedServer) -> None:
    if how == "kill":
        before.kill()
    elif isinstance(place, RelayedCluster):
        if how == "cut":
            place.isolate(before)
            return
        with admin(replica) as client:
            execute: Callable[..., Any] = client.execute_command
            execute("CLUSTER", "FAILOVER")
    elif how == "cut":
        isolate(before)
    else:
        with admin(place.sentinels[0]) as client:
            execute = client.execute_command
            execute("SENTINEL", "FAILOVER", SERVICE)


def ours(server: EmbeddedServer) -> int:
    """Return how many connections of the pool lead to a server; 0 if it is dead."""
    try:
        with client_of(server) as client:
            told: Any = client.client_list()
    except redis.ConnectionError:
        return 0
    return sum(each["name"].startswith("pool-") for each in told)


async def soon(look: Callable[[], object], within_s: float) -> float | None:
    """Look until it is so; return when it was, or None."""
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s:
        try:
            if await anyio.to_thread.run_sync(look):
                return time.monotonic()
        except (redis.RedisError, AssertionError):
            pass
        await anyio.sleep(LOOK_AGAIN_S)
    return None


async def once(situation: Situation, place: Place, seconds: float, late_s: float) -> Run:
    """Have one failover."""
    let_clients_in(*place.nodes())
    before = place.primary(Names(POOL, 0).prefix)
    apart = 1 if isinstance(place, Sentinels) else 3
    replica = place.processes[(place.processes.index(before) + apart) % len(place.processes)]
    settings = Settings(lanes=1, lease_ttl_s=TTL_S, op_timeout_s=5.0)
    handlers = Handlers()

    @handlers.job("later")
    async def later(job: Job) -> None:
        raise AssertionError(job.key)  # not in this run

    load, run, url = Load(), Run(), as_client(place.url)
    async with (
        Node(POOL, url, settings=settings, observers=[]) as one,
        Node(POOL, url, settings=settings, observers=[]) as other,
    ):
        async with anyio.create_task_group() as tasks:
            for number, node in enumerate((one, other)):
                await node.add_worker(handlers)
                tasks.start_soon(load.run, node, f"n{number}")
            await anyio.sleep(BEFORE_S)
            began_s = time.monotonic()
            until_s = began_s + seconds
            await anyio.to_thread.run_sync(begin, place, situation.how, before, replica)
            named_s = await soon(lambda: owner(place, replica) is not before, seconds)
            left_s = await soon(lambda: not ours(before), until_s - time.monotonic())
            await anyio.sleep(max(0.0, until_s - time.monotonic()))
            tasks.cancel_scope.cancel()
        now = await anyio.to_thread.run_sync(owner, place, replica)
        with client_of(now) as client:
            kept: Any = client.hkeys(Names(POOL, 0).jobs)
    if named_s is None:
        raise TimeoutError("nobody was promoted")
    there = set(kept)
    lost = [at_s for key, at_s in load.times.items() if key not in there]
    times = [began_s, *sorted(at_s for at_s in load.times.values() if at_s > began_s), until_s]
    run.acknowledged, run.lost = len(load.times), len(lost)
    run.lost_late = sum(at_s > named_s + late_s for at_s in lost)
    run.silent_s = max(after_s - at_s for at_s, after_s in itertools.pairwise(times))
    run.named_s = named_s - began_s
    run.left_s = left_s - named_s if left_s is not None else None
    return run


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each run, after the fault")
    parser.add_argument("--late", type=float, default=1.0, help="from when on nothing may be lost")
    parser.add_argument("--server", type=Path, help="the server program; else the wheel's")
    parser.add_argument("--only", default="", help="part of the name of a situation")
    given = parser.parse_args()
    program = programs.find_server("wheel")
    if given.server is not None:
        found = programs._look(given.server)
        if not isinstance(found, ServerProgram):
            parser.error(found)
        program = found
    say(f"{program.name} {program.version}, {given.seconds:g} s a run, TTL {TTL_S:g} s\n")
    columns = (
        "situation | acknowledged work lost | later | silent, s | named after, s | left after, s"
    )
    say(f"| {columns} |\n|---|---|---|---|---|---|")
    is_bad = False
    for situation in SITUATIONS:
        for _ in range(given.runs if given.only in situation.name else 0):
            with situation.start(program) as place:
                run = anyio.run(once, situation, place, given.seconds, given.late)
            is_bad = is_bad or run.is_bad
            say(f"| {situation.name} | {' | '.join(run.cells())} |")
    return int(is_bad)


if __name__ == "__main__":
    sys.exit(main())
