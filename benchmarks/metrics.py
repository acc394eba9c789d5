"""What `Metrics` costs a job: beside jobs without, in one process, in turns.

    python -m benchmarks.metrics

Two nodes on one server, each with a pool and a worker of its own, one of which counts: blocks of
jobs take turns between the two, so that what else the machine does hits both alike.  The figure is
the median of the differences between neighbours, and their ratio.  At most 10 us are allowed; what
jobs pay without it is `python -m benchmarks.instructions REV`.
"""

from __future__ import annotations

import statistics
from time import process_time
from typing import Final

import anyio

from pool import Call, Handlers, Job, Node
from pool.metrics import Metrics

JOBS: Final = 1000
ROUNDS: Final = 21
ALLOWED_US: Final = 10.0

handlers = Handlers()


@handlers.job("noop")
async def noop(job: Job) -> None:
    """Do nothing."""


async def block_us(node: Node, number: int) -> float:
    """Return how much of this process's time a job takes: dispatched, run, waited for."""
    calls = [Call(f"k-{number}-{n}") for n in range(JOBS)]
    began_s = process_time()
    for ref in await node.dispatch_many(noop, calls):
        assert not isinstance(ref, Exception)
        await ref.result()
    return (process_time() - began_s) / JOBS * 1e6


async def main() -> None:
    """Measure and print."""
    async with (
        Node("without", "embedded://", handlers=handlers, observers=()) as without,
        Node("counting", without.url, handlers=handlers, observers=[Metrics()]) as counting,
    ):
        pairs: list[tuple[float, float]] = []
        for number in range(ROUNDS + 1):
            order = (without, counting) if number % 2 else (counting, without)
            took = {node: await block_us(node, number) for node in order}
            if number:  # the first is to warm up
                pairs.append((took[without], took[counting]))
    base_us = statistics.median(a for a, _ in pairs)
    more_us = statistics.median(b - a for a, b in pairs)
    ratio = statistics.median(b / a for a, b in pairs)
    verdict = "within" if more_us <= ALLOWED_US else "over"
    print(f"a job without: {base_us:.0f} us of processor")
    print(f"with Metrics: {more_us:+.1f} us, {ratio:.3f} of that; {verdict} {ALLOWED_US:.0f} us")


if __name__ == "__main__":
    anyio.run(main)
