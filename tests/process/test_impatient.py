"""A program that ends before its node has left: it ends, nothing renews, and others take over."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from pool import Handlers, Job, Node, Settings

PROGRAM = Path(__file__).with_name("embedded.py")
PATIENCE_S = 60.0
GRACE_S = 2.0  # as in the program
SLACK_S = 40.0  # of a busy machine, and for closing

pytestmark = pytest.mark.anyio


async def ends(loop: str, pool: str, url: str, how: str, *signals: signal.Signals) -> str:
    """Run the program, and send these signals; return what it has said when it has ended."""
    words = [sys.executable, str(PROGRAM), loop, pool, url, how]
    process = subprocess.Popen(  # noqa: ASYNC220 - a moment
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    said: list[str] = []

    def read(until: str) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            if until and line.startswith(until):
                return

    with process:
        try:
            with anyio.fail_after(PATIENCE_S):
                await anyio.to_thread.run_sync(read, "ready", abandon_on_cancel=True)
            for number in signals:
                process.send_signal(number)
                await anyio.sleep(0.3)  # the first one is heard, and leaving has begun
            with anyio.fail_after(GRACE_S + SLACK_S):
                await anyio.to_thread.run_sync(read, "", abandon_on_cancel=True)
                await anyio.to_thread.run_sync(process.wait, abandon_on_cancel=True)
        except TimeoutError:
            pytest.fail(f"it did not end:\n{''.join(said)[-3000:]}")
        finally:
            process.kill()
    return "".join(said)


async def others_have(pool: str, url: str) -> list[tuple[str, int, object]]:
    """Take over what it had; return key, attempt and state of each start, in the order of keys."""
    mine, heard = Handlers(), set[tuple[str, int, object]]()
    both = anyio.Event()

    async def note(job: Job) -> None:
        heard.add((job.key, job.attempt, job.state))
        if len(heard) == 2:
            both.set()

    mine.job("long")(note)
    mine.service("serve")(note)
    with anyio.fail_after(PATIENCE_S):
        async with Node(pool, url, handlers=mine, settings=Settings(), observers=()):
            await both.wait()
    return sorted(heard, key=str)


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
async def test_ctrl_c_twice_ends_a_program_and_burns_no_attempt(
    anyio_backend_name: str, redis_url: str, pool_name: str, loop: str
) -> None:
    if anyio_backend_name == "trio":
        pytest.skip("the program's loop is what matters")
    said = await ends(loop, pool_name, redis_url, "stays", signal.SIGINT, signal.SIGINT)
    assert "KeyboardInterrupt" in said
    assert "TrioInternalError" not in said
    assert "node.left" in said
    assert "attempt.failed" not in said
    found = await others_have(pool_name, redis_url)
    assert [(key, attempt) for key, attempt, _ in found] == [("job", 1), ("service", 1)]


async def test_a_loop_that_ends_with_a_node_open_ends_the_node(
    anyio_backend_name: str, redis_url: str, pool_name: str
) -> None:
    if anyio_backend_name == "trio":
        pytest.skip("a task of trio's cannot end before what it has opened")
    said = await ends("asyncio", pool_name, redis_url, "forgets")
    assert "did not leave" in said
    found = await others_have(pool_name, redis_url)
    assert [(key, attempt) for key, attempt, _ in found] == [("job", 1), ("service", 1)]
