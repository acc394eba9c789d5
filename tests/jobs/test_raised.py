"""What is kept of an error is the same wherever it is read: in a task, a callback, or a thread."""

from __future__ import annotations

import threading
from functools import partial

import anyio
import anyio.to_thread
import pytest

from pool.redis.io.loops import current_loop, is_cancellation
from pool.runtime.exceptions import told

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("where", ["task", "timer", "post", "thread"])
async def test_an_error_keeps_its_text(where: str) -> None:
    """In a callback of asyncio's nobody can say which library runs: no crash told there had one."""
    loop, heard, found = current_loop(), anyio.Event(), list[object]()

    def read() -> None:
        error = ValueError("the reason")
        found.extend((told(error), is_cancellation(error)))

    def hear() -> None:
        try:
            read()
        finally:
            heard.set()

    match where:
        case "task":
            read()
        case "timer":
            loop.later(0.0, hear)
            await heard.wait()
        case "post":
            threading.Thread(target=partial(loop.post, hear)).start()
            await heard.wait()
        case _:
            await anyio.to_thread.run_sync(read)
    assert found == ["ValueError: the reason", False]
