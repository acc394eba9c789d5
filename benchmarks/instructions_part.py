"""Jobs whose instructions are counted, with whatever `pool` this process finds.

Run by path from `instructions.py`, for trees of any layout: it uses public names only, those that
all of them have.

    python instructions_part.py URL alone|bulk JOBS
"""

from __future__ import annotations

import gc
import sys

import anyio

from pool import Call, Handlers, Job, Node, Settings

# No renewal and no probe falls into a run, however slow a counted process is.
QUIET = Settings(lease_ttl_s=600.0, op_timeout_s=60.0)
WARM = 64  # jobs before which nothing is warm: scripts, imports, caches


async def main(url: str, how: str, jobs: int) -> None:
    """Have so many jobs run, one after another or as a backlog."""
    handlers, heard, is_over = Handlers(), 0, anyio.Event()

    @handlers.job("noop")
    async def noop(_: Job) -> None:
        nonlocal heard
        heard += 1
        if heard == jobs:
            is_over.set()

    @handlers.job("warm")
    async def warm(_: Job) -> None:
        pass

    async with Node("counted", url, handlers=handlers, settings=QUIET, observers=()) as node:
        for number in range(WARM):
            ref = await node.dispatch("warm", f"warm-{number:08d}")
            await ref.result(timeout_s=300)
        gc.disable()  # when it runs hangs on all that was allocated before
        if how == "alone":
            for number in range(jobs):
                ref = await node.dispatch("noop", f"tenant-{number:08d}")
                await ref.result(timeout_s=300)
        else:
            calls = [Call(f"tenant-{number:08d}") for number in range(jobs)]
            await node.dispatch_many("noop", calls)
            await is_over.wait()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2], int(sys.argv[3]))
