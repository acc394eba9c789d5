"""Two processes, one pool: a web service that dispatches, and a worker that it never imports.

It prints:

    accepted before any worker runs: report-7 is unassigned
    the worker's process did it: report-7 has 3 lines
    the worker has left, exit code 0
"""

from __future__ import annotations

import sys
import tempfile

import anyio

from pool import Handlers, Job, Node

handlers = Handlers()


@handlers.job("report")
async def report(job: Job, lines: list[str]) -> str:
    return f"{job.key} has {len(lines)} lines"


async def worker(url: str) -> None:
    """The worker's process: ready until somebody shuts the pool down.

    `pool run two_services:handlers --pool reports --url URL` is the same, with signals.
    """
    async with Node("reports", url, handlers=handlers, label="worker-1") as node:
        await node.wait_drained()


async def web(url: str) -> None:
    """The web service's process: it knows the name of the handler, not its code."""
    async with Node("reports", url) as node:
        # No node has registered the name yet, so say that it is not a slip of the pen.
        ref = await node.options(allow_unknown=True).dispatch("report", "report-7", ["a", "b", "c"])
        print(f"accepted before any worker runs: {ref.key} is {(await ref.status()).state}")
        command = [sys.executable, __file__, url]
        async with await anyio.open_process(command, stdout=None, stderr=None) as process:
            print(f"the worker's process did it: {await ref.result(timeout_s=30)}")
            await node.shutdown_pool()
            print(f"the worker has left, exit code {await process.wait()}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        anyio.run(worker, sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as directory:
            anyio.run(web, f"embedded://{directory}")
