"""Commands of ours as processes: what they print, and how they end."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

ROOT = Path(__file__).parents[2]
WAIT_S = 60.0


class Cli:
    """A running `pool` command."""

    def __init__(self, process: Process) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self.process = process
        self._out = BufferedByteReceiveStream(process.stdout)
        self._err = process.stderr

    async def line(self) -> str:
        return (await self._out.receive_until(b"\n", 65_536)).decode()

    async def event(self) -> dict[str, Any]:
        event: dict[str, Any] = json.loads(await self.line())
        return event

    async def until(self, event: str, **facts: Any) -> dict[str, Any]:
        """Read on to an event with these facts; return it."""
        while True:
            found = await self.event()
            if found["event"] == event and facts.items() <= found.items():
                return found

    async def end(self) -> tuple[int, str]:
        """Wait for its end; return exit code and standard error."""
        text = b""
        try:
            while True:
                text += await self._err.receive()
        except anyio.EndOfStream:
            return await self.process.wait(), text.decode()


@asynccontextmanager
async def running(
    *words: str, cwd: Path, wait_s: float = WAIT_S, **environ: str
) -> AsyncIterator[Cli]:
    """Yield a running command; all waiting for it is bounded, and it has ended afterwards."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environ}
    command = [sys.executable, "-m", "pool.ops.cli", *words]
    with anyio.fail_after(wait_s):
        async with await anyio.open_process(command, cwd=cwd, env=env) as process:
            try:
                yield Cli(process)
            finally:
                if process.returncode is None:
                    process.kill()
