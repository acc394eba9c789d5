"""A program need not be started by anyio: everything works under the loops' own runners.

There anyio cannot tell, within a callback of the loop, which loop that is.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import {loop}, sys
import anyio
from pool import Call, Handlers, Job, Node, Retry

handlers = Handlers()


@handlers.job("echo")
async def echo(job: Job, value: int) -> int:
    return value


@handlers.job("sync")
def sync(job: Job, value: int) -> int:
    return value


@handlers.job("flaky")
async def flaky(job: Job) -> int:
    if job.attempt == 1:
        raise Retry(after_s=0.01)
    return job.attempt


@handlers.service("clock")
async def clock(job: Job) -> None:
    async for word in job.notifications():
        job.state = word


async def main(url: str) -> None:
    async with (
        Node("plain", url, handlers=handlers, observers=()) as one,
        Node("plain", url, handlers=handlers, observers=()) as two,
        one.map("flags") as flags,
    ):
        refs = await one.dispatch_many(echo, [Call(f"k{{n}}", n) for n in range(300)])
        assert [await ref.result(timeout_s=30) for ref in refs] == list(range(300))
        for node, fn in ((two, sync), (one, echo)):
            assert await (await node.dispatch(fn, "one", 7)).result(timeout_s=30) == 7
        assert await (await two.dispatch(flaky, "f")).result(timeout_s=30) == 2
        ref = await one.dispatch(clock, "c")
        await ref.started(timeout_s=30)
        await two.notify("c", "tick")
        await flags.set_and_wait("a", "1")
        await ref.stop(timeout_s=30)
    print("done")


{run}
"""
RUN = {
    "asyncio": "asyncio.run(main(sys.argv[1]))",
    "trio": "trio.run(main, sys.argv[1])",
}


@pytest.mark.parametrize("loop", RUN)
def test_a_whole_program_runs_without_anyio_run(loop: str, pool_url: str, pool_name: str) -> None:
    text = PROGRAM.format(loop=loop, run=RUN[loop]).replace('"plain"', repr(pool_name))
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", text, pool_url],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert ran.stdout == "done\n", ran.stderr
    assert ran.stderr == ""
