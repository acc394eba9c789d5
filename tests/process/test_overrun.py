"""`on_overrun = "exit"`: a process whose handler outlives its lease ends itself (G-03)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

import pool
from pool import Node, Settings
from pool.jobs.fleet.keepalive import EXIT_CODE
from pool.redis.embedded.server import EmbeddedServer, ServerProgram
from tests.servers import connect

PATIENCE_S = 60.0
BACK_S = 1.0  # a busy machine
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

@handlers.job("obedient")
async def obedient(job: Job) -> None:
    print("started", flush=True)
    await anyio.sleep(3600)

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


HANDLERS = """
import time
import anyio
from pool import Handlers, Job

handlers = Handlers()

@handlers.service("serve")
async def serve(job: Job) -> None:
    print("serving", flush=True)
    await anyio.sleep_forever()

@handlers.job("block")
async def block(job: Job) -> None:
    time.sleep(600)

@handlers.job("interrupt")
async def interrupt(job: Job) -> None:
    raise KeyboardInterrupt
"""


@contextmanager
def pool_run(server: EmbeddedServer, directory: Path, loop: str) -> Iterator[subprocess.Popen[str]]:
    """Run `pool run` with these handlers until it is ready."""
    (directory / "mine.py").write_text(HANDLERS)
    words = ("run", "mine:handlers", "--pool", "overrun", "--url", server.url)
    member = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "pool.ops.cli",
            *words,
            "--lease-ttl-s",
            "1",
            "--grace-s",
            "1",
            "--loop",
            loop,
            "--ready-file",
            "ready",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(Path(pool.__file__).parents[1])},
    )
    assert member.stdout is not None
    try:
        assert any(line.startswith("ready") for line in member.stdout)
        yield member
    finally:
        member.kill()
        member.wait()
        member.stdout.close()


def dispatched(server: EmbeddedServer, handler: str) -> None:
    async def dispatch() -> None:
        async with Node("overrun", server.url, settings=Settings(lease_ttl_s=1.0)) as node:
            await node.dispatch(handler, "k")

    anyio.run(dispatch)


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize("is_busy", [False, True])
def test_a_freeze_of_the_whole_process_is_no_hung_loop(
    program: ServerProgram, tmp_path: Path, loop: str, is_busy: bool
) -> None:
    """`pool run` says `exit`: a suspended machine would find its workers gone in the morning."""
    with EmbeddedServer.start(program) as server, pool_run(server, tmp_path, loop) as member:
        assert member.stdout is not None
        if is_busy:
            dispatched(server, "serve")
            assert member.stdout.readline() == "serving\n"
        for _ in range(3):
            os.kill(member.pid, signal.SIGSTOP)
            threading.Event().wait(2.5)
            os.kill(member.pid, signal.SIGCONT)
            with pytest.raises(subprocess.TimeoutExpired):  # it would end at its first look
                member.wait(1.0)
        member.terminate()
        said, _ = member.communicate(timeout=PATIENCE_S)
        assert [line.split()[0] for line in said.splitlines()][-2:] == ["draining", "left"]
        assert member.returncode == 0


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_an_interrupt_out_of_a_handler_ends_the_process_as_the_signal_does(
    program: ServerProgram, tmp_path: Path, loop: str
) -> None:
    with EmbeddedServer.start(program) as server, pool_run(server, tmp_path, loop) as member:
        dispatched(server, "interrupt")
        said, _ = member.communicate(timeout=PATIENCE_S)
        assert [line.split()[0] for line in said.splitlines()] == ["draining", "left"]
        assert member.returncode == 0


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_process_that_ends_itself_leaves_no_ready_file(
    program: ServerProgram, tmp_path: Path, loop: str
) -> None:
    with EmbeddedServer.start(program) as server, pool_run(server, tmp_path, loop) as member:
        assert (tmp_path / "ready").exists()
        dispatched(server, "block")
        assert member.wait(PATIENCE_S) == EXIT_CODE
        assert not (tmp_path / "ready").exists()


@contextmanager
def deaf_member(
    server: EmbeddedServer, script: Path, handler: str, loop: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process of whose handler nothing can be taken away, until that has begun."""
    script.write_text(MEMBER)
    member = subprocess.Popen(
        [sys.executable, script, server.url, handler, loop],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(pool.__file__).parents[1])},
    )
    assert member.stdout is not None
    try:
        assert any(line == b"started\n" for line in member.stdout)
        yield member
    finally:
        member.kill()
        member.wait()
        member.stdout.close()


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize("handler", ["deaf", "blocked"])
def test_a_process_that_cannot_stop_its_handler_ends(
    program: ServerProgram, tmp_path: Path, handler: str, loop: str
) -> None:
    """G-03: by the thread that renews, so that a hung loop cannot prevent it."""
    with (
        EmbeddedServer.start(program) as server,
        deaf_member(server, tmp_path / "member.py", handler, loop) as member,
    ):
        try:
            if handler == "deaf":
                os.kill(server.pid, signal.SIGSTOP)  # no renewal succeeds any more
            assert member.wait(PATIENCE_S) == EXIT_CODE
        finally:
            os.kill(server.pid, signal.SIGCONT)


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize("handler", ["deaf", "obedient"])
@pytest.mark.parametrize("loss", ["freeze", "data"])
def test_a_process_lives_beside_the_next_owner_only_if_its_handlers_end(
    program: ServerProgram, tmp_path: Path, handler: str, loss: str, loop: str
) -> None:
    """Told to end only after the thaw, or for another reason than the lease: it has its time."""

    async def take_over(member: subprocess.Popen[bytes]) -> None:
        settings = Settings(lease_ttl_s=1.0)
        async with Node("overrun", server.url, settings=settings) as node:
            os.kill(member.pid, signal.SIGSTOP)
            with anyio.fail_after(PATIENCE_S):
                while True:
                    if not (await node.status("k")).owner:  # nobody else has its handler
                        break
                    await anyio.sleep(0.05)
            os.kill(member.pid, signal.SIGCONT)

    with (
        EmbeddedServer.start(program) as server,
        deaf_member(server, tmp_path / "member.py", handler, loop) as member,
    ):
        if loss == "freeze":
            anyio.run(take_over, member)
        else:
            with connect(server.url) as client:
                client.flushall()
        if handler == "deaf":
            assert member.wait(PATIENCE_S) == EXIT_CODE
        else:
            with pytest.raises(subprocess.TimeoutExpired):
                member.wait(2.0)


BLOCKING = """
import os, time
import anyio
from pool import Handlers, Job

handlers = Handlers()

@handlers.service("block")
async def block(job: Job) -> None:
    print("began", job.key, flush=True)
    await anyio.sleep(0.1)
    if os.environ["BLOCKS"] == "yes":
        time.sleep(3600)
    await anyio.sleep_forever()

@handlers.service("serve")
async def serve(job: Job) -> None:
    print("began", job.key, flush=True)
    await anyio.sleep_forever()
"""
TTL_S = 3.0


@contextmanager
def blocking_worker(
    server: EmbeddedServer, directory: Path, loop: str, *, blocks: bool
) -> Iterator[subprocess.Popen[str]]:
    (directory / "mine.py").write_text(BLOCKING)
    options = ["--pool", "overrun", "--url", server.url, "--lease-ttl-s", str(TTL_S)]
    options += ["--loop", loop, "--log-format", "json"]
    worker = subprocess.Popen(
        [sys.executable, "-m", "pool.ops.cli", "run", "mine:handlers", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=directory,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(pool.__file__).parents[1]),
            "BLOCKS": "yes" if blocks else "no",
        },
    )
    assert worker.stdout is not None
    try:
        assert any(line.startswith("ready") for line in worker.stdout)
        yield worker
    finally:
        worker.kill()
        worker.communicate()


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_worker_whose_handler_blocks_for_a_ttl_says_which_and_its_jobs_go_on_elsewhere(
    program: ServerProgram, tmp_path: Path, loop: str
) -> None:
    """G-06: all that it had, the job that blocked too, starts within TTL + 1 s of its end."""

    async def dispatch() -> None:
        async with Node("overrun", server.url, settings=Settings(lease_ttl_s=TTL_S)) as node:
            for key in ("s1", "s2", "s3"):
                await node.dispatch("serve", key)
            await node.dispatch("block", "culprit")

    with (
        EmbeddedServer.start(program) as server,
        blocking_worker(server, tmp_path, loop, blocks=True) as worker,
    ):
        anyio.run(dispatch)
        with blocking_worker(server, tmp_path, loop, blocks=False) as other:
            assert worker.stderr is not None
            assert other.stdout is not None
            said = worker.stderr.read()
            assert worker.wait(PATIENCE_S) == EXIT_CODE
            ended_s, keys = time.monotonic(), set[str]()
            while keys != {"s1", "s2", "s3", "culprit"}:
                keys.add(other.stdout.readline().split()[-1])
            assert time.monotonic() - ended_s < TTL_S + 1.0 + BACK_S
    events = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    [told] = [event for event in events if event["event"] == "loop.overran"]
    assert (told["handler"], told["key"], told["keys"]) == ("block", "culprit", 4)
    assert "time.sleep(3600)" in told["stack"]
    assert told["hung_s"] > TTL_S / 2
