"""`on_overrun = "exit"`: a process whose handler outlives its lease ends itself (G-03)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import pool
from pool.actors.keepalive import EXIT_CODE
from pool.store.program import ServerProgram
from pool.store.server import EmbeddedServer

PATIENCE_S = 20.0
MEMBER = """
import sys, time
import anyio
from pool import Handlers, Job, Node, Settings

handlers = Handlers()

@handlers.job("deaf")
async def deaf(job: Job) -> None:
    print("started", flush=True)
    while True:
        try:
            await anyio.sleep(3600)
        except BaseException:
            continue

@handlers.job("blocked")
async def blocked(job: Job) -> None:
    print("started", flush=True)
    time.sleep(3600)

async def main() -> None:
    settings = Settings(lease_ttl_s=1.0, on_overrun="exit")
    async with Node("overrun", sys.argv[1], handlers=handlers, settings=settings) as node:
        await node.dispatch(sys.argv[2], "k")
        await anyio.sleep(3600)

anyio.run(main, backend=sys.argv[3])
"""


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize("handler", ["deaf", "blocked"])
def test_a_process_that_cannot_stop_its_handler_ends(
    program: ServerProgram, tmp_path: Path, handler: str, loop: str
) -> None:
    """G-03: by the thread that renews, so that a hung loop cannot prevent it."""
    script = tmp_path / "member.py"
    script.write_text(MEMBER)
    with EmbeddedServer.start(program) as server:
        member = subprocess.Popen(
            [sys.executable, script, server.url, handler, loop],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(Path(pool.__file__).parents[1])},
        )
        assert member.stdout is not None
        try:
            assert any(line == b"started\n" for line in member.stdout)
            if handler == "deaf":
                os.kill(server.pid, signal.SIGSTOP)  # no renewal succeeds any more
            assert member.wait(PATIENCE_S) == EXIT_CODE
        finally:
            os.kill(server.pid, signal.SIGCONT)
            member.kill()
            member.wait()
            member.stdout.close()
