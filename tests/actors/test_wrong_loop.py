"""A node, and all that came from it, belongs to the event loop that entered it.

That every call is refused elsewhere, `test_every_argument.py` shows; this is how to make one.
"""

from __future__ import annotations

from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest

from pool import (
    Handlers,
    Job,
    WrongLoop,
)
from tests.actors.conftest import Fleet

pytestmark = pytest.mark.anyio

handlers = Handlers()


@handlers.job("echo")
async def echo(job: Job, value: str = "") -> str:
    return value


async def test_a_thread_without_a_loop_reads_what_is_here_and_calls_by_the_loop(
    fleet: Fleet,
) -> None:
    """As a plain handler does."""
    node = await fleet.node(handlers)
    async with node.map("flags") as flags:
        await flags.set_and_wait("k", "v")
        watch = flags.watch()

        def work() -> tuple[Any, ...]:
            with pytest.raises(WrongLoop):
                node.stream("s")
            with pytest.raises(WrongLoop):
                flags.watch()
            with pytest.raises(WrongLoop):
                watch.close()
            ref = anyio.from_thread.run(node.dispatch, echo, "a", "x")
            return node.state, flags["k"], anyio.from_thread.run(ref.result)

        assert await anyio.to_thread.run_sync(work) == ("open", "v", "x")
