"""The constants of `docs/scale.md`: `python -m benchmarks.scale`, about a minute and a half.

    nodes at rest, by workers and lanes | a job in bulk, and one by one | a large fleet's ranking

All nodes are in this process: what is measured is the server's CPU time, which cannot tell, and
for the ranking this process's.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any, Final

import anyio
import attrs
import redis

from benchmarks.member import WAIT_S, handlers
from benchmarks.probe import Probe
from pool import Call, JobRef, Node, Settings
from pool.jobs.roster import Roster, WorkerEntry
from pool.names import key_hash
from pool.redis.embedded.server import EmbeddedServer, find_server

REST_S: Final = 10.0
SETTLE_S: Final = 3.0
BULK: Final = 5_000
SINGLE: Final = 1_000
XADDS: Final = 20_000
CHANGES: Final = 10
SIZES: Final = ((10, 1, 1), (30, 1, 1), (10, 10, 1), (10, 1, 4))  # nodes, workers of each, lanes


@attrs.frozen
class Rest:
    """What one node costs a server that has nothing else to do, per second; bytes and sockets."""

    cpu_us: float
    commands: float
    calls: float
    bytes_each_way: float
    connections: float
    memory_bytes: float
    xadd_us: float  # of one XADD in a pipeline, just after: what this machine is worth


async def rest(nodes: int, workers: int, lanes: int) -> Rest:
    """Have so many nodes at rest on a server of their own."""
    settings = Settings(lanes=lanes)
    server = await anyio.to_thread.run_sync(EmbeddedServer.start, find_server("path"))
    try:
        async with anyio.create_task_group() as tasks:
            with redis.Redis.from_url(server.url) as client:
                empty: Any = client.info("everything")
                for _ in range(nodes):
                    node = Node("rest", server.url, settings=settings, observers=())
                    await tasks.start(_live, node, workers)
                await anyio.sleep(SETTLE_S)
                before: Any = client.info("everything")
                await anyio.sleep(REST_S)
                after: Any = client.info("everything")
            tasks.cancel_scope.cancel()
        yardstick = Probe(server.url)
        _, xadd_us = await anyio.to_thread.run_sync(yardstick.xadd_pipelined, XADDS)
        yardstick.close()
    finally:
        await anyio.to_thread.run_sync(server.stop)

    def gone(*names: str) -> float:
        return float(sum(after[name] - before[name] for name in names)) / REST_S / nodes

    return Rest(
        1e6 * gone("used_cpu_user", "used_cpu_sys"),
        gone("total_commands_processed"),
        gone("total_reads_processed"),
        gone("total_net_input_bytes", "total_net_output_bytes") / 2,
        (after["connected_clients"] - empty["connected_clients"]) / nodes,
        (after["used_memory"] - empty["used_memory"]) / nodes,
        xadd_us,
    )


async def _live(node: Node, workers: int, *, task_status: Any) -> None:
    async with node:
        for _ in range(workers):
            await node.add_worker(handlers)
        task_status.started()
        await anyio.sleep_forever()


async def jobs(count: int, *, at_once: bool) -> tuple[float, float]:
    """Return the server's CPU time for one job's whole life, in us: in bulk, or one by one.

    And that of one XADD in a pipeline, just before: what this machine is worth at the moment.
    """
    server = await anyio.to_thread.run_sync(EmbeddedServer.start, find_server("path"))
    try:
        async with (
            Node("jobs", server.url, handlers=handlers, observers=(), capacity=1000),
            Node("jobs", server.url, observers=()) as client,
        ):
            with redis.Redis.from_url(server.url) as probe:
                await _done(client, 100, at_once=at_once)  # everything is warm
                yardstick = Probe(server.url)
                _, xadd_us = await anyio.to_thread.run_sync(yardstick.xadd_pipelined, XADDS)
                yardstick.close()
                before: Any = probe.info("cpu")
                await _done(client, count, at_once=at_once)
                after: Any = probe.info("cpu")
    finally:
        await anyio.to_thread.run_sync(server.stop)
    names = ("used_cpu_user", "used_cpu_sys")
    return float(1e6 * sum(after[name] - before[name] for name in names) / count), xadd_us


async def _done(client: Node, count: int, *, at_once: bool) -> None:
    if at_once:
        refs = await client.dispatch_many("noop", [Call(f"k{i}") for i in range(count)])
        assert isinstance(refs[-1], JobRef)
        for ref in refs:
            assert isinstance(ref, JobRef)
            await ref.result(timeout_s=WAIT_S)
        return
    for i in range(count):
        await (await client.dispatch("noop", f"k{i}")).result(timeout_s=WAIT_S)


def ranking(workers: int) -> tuple[float, float]:
    """Return what a node of so large a fleet spends, in us: on a key, and on a change of it.

    A change alone costs nothing: what is measured is a change before a dispatch.
    """
    known = [
        WorkerEntry(
            id=f"w{i:011}",
            node=f"n{i:011}",
            handlers=("noop",),
            capacity=100,
            weight=1.0,
            label="",
            version="",
            is_draining=False,
            numbers=(1,),
        )
        for i in range(workers)
    ]
    items: dict[bytes, Any] = {info.id.encode(): info.pack() for info in known}
    roster = Roster()
    roster.update(items)
    assert len(roster.workers) == workers
    began_s = time.process_time()
    for drained in known[:CHANGES]:
        items = items | {drained.id.encode(): attrs.evolve(drained, is_draining=True).pack()}
        roster.update(items)
        roster.candidates.ranked(0, "noop", 1)
    change_us = 1e6 * (time.process_time() - began_s) / CHANGES
    candidates = roster.candidates
    began_s, keys = time.process_time(), max(10, 50_000 // workers)
    for i in range(keys):
        candidates.ranked(key_hash(f"k{i}"), "noop", 8)
    return 1e6 * (time.process_time() - began_s) / keys, change_us


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.parse_args()
    names = [field.name for field in attrs.fields(Rest)]
    print("nodes workers lanes " + " ".join(f"{name:>14}" for name in names))
    for nodes, workers, lanes in SIZES:
        found = anyio.run(rest, nodes, workers, lanes)
        figures = " ".join(f"{value:14,.1f}" for value in attrs.astuple(found))
        print(f"{nodes:5} {workers:7} {lanes:5} {figures}")
    for at_once, count in ((True, BULK), (False, SINGLE)):
        cpu_us, xadd_us = anyio.run(partial(jobs, count, at_once=at_once))
        how = "in bulk" if at_once else "one by one"
        print(f"server CPU us of a job, {how}: {cpu_us:.1f}; of an XADD beside it {xadd_us:.2f}")
    for workers in (100, 1000, 10_000):
        key_us, change_us = ranking(workers)
        print(f"{workers} workers: {key_us:,.0f} us to rank a key, {change_us:,.0f} us a change")


if __name__ == "__main__":
    main()
