"""A process whose handler calls functions in processes: see test_blocking.py.

argv: pool, url, event loop, where to note the number of the function's process, how.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

import anyio

from pool import Handlers, Job, Node, Settings
from tests.jobs import blocking_work

handlers = Handlers()
FUNCTIONS = {"sleeps": blocking_work.sleep, "holds": blocking_work.hold_the_gil}


def double(value: int) -> int:
    """A function of the program's own file."""
    return 2 * value


@handlers.job("call")
async def call(job: Job, how: str, noted: str) -> None:
    await job.run_blocking(FUNCTIONS[how], noted, process=True)


@handlers.job("double")
async def doubled(job: Job, value: int) -> int:
    return await job.run_blocking(double, value, process=True)


def _stay(noted: str) -> NoReturn:
    """Be a copy that says who it is, and does nothing."""
    Path(f"{noted}.new").write_text(str(os.getpid()))
    Path(f"{noted}.new").rename(f"{noted}.copy")
    while True:
        signal.pause()


async def main(pool: str, url: str, how: str, noted: str) -> None:
    settings = Settings(lease_ttl_s=3.0)
    async with Node(pool, url, handlers=handlers, settings=settings, observers=()) as node:
        if how == "main":
            ref = await node.dispatch(doubled, "k", 21)
            await anyio.Path(noted).write_text(str(await ref.result(timeout_s=20)))
            return
        await node.dispatch(call, "k", how.removesuffix(" beside a copy"), noted)
        while not await anyio.Path(noted).exists():  # noqa: ASYNC110 - of another process
            await anyio.sleep(0.01)
        if how.endswith("beside a copy") and os.fork() == 0:
            _stay(noted)
        await node.wait_drained()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2], sys.argv[4], sys.argv[5], backend=sys.argv[3])
