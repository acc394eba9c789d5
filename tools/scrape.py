"""What a node answers to who scrapes it, on standard output: `python -m tools.scrape /metrics`.

For `promtool check metrics`, see `make test-ops`.  The node has run a job that is done and one that
is parked, so that there is a sample of each kind.
"""

from __future__ import annotations

import sys
from contextlib import suppress

import anyio
import anyio.to_thread

from pool import Handlers, Job, Node
from pool.errors import JobParked
from pool.metrics import Metrics
from pool.ops.endpoints import Endpoints

handlers = Handlers()


@handlers.job("scraped", attempts_max=1)
async def scraped(_: Job, is_well: bool) -> None:
    """Be done, or fail."""
    if not is_well:
        raise LookupError


async def main(path: str) -> None:
    """Have the jobs run, and print."""
    metrics = Metrics()
    async with Node("scraped", "embedded://", handlers=handlers, observers=[metrics]) as node:
        for is_well in (True, False):
            with suppress(JobParked):
                await (await node.dispatch(scraped, f"k-{is_well}", is_well)).result(60)
        answer = await anyio.to_thread.run_sync(Endpoints(node, metrics).answer, "GET", path)
    if answer.status != 200:
        raise SystemExit(f"{path}: {answer.status} {answer.body!r}")
    sys.stdout.write(answer.body.decode())


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
