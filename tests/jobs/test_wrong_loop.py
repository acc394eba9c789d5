"""A node, and all that came from it, belongs to the event loop that entered it.

That every call is refused elsewhere, `test_every_argument.py` shows; this is how to make one.
"""

from __future__ import annotations

from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest

from pool import Handlers, Job
from pool.errors import WrongLoop
from pool.maps.replicas import Maps
from tests.nodes import Fleet

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


async def test_a_map_is_not_entered_on_another_loop(
    fleet: Fleet, anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is begun there: what is the loop's own would be touched from another thread."""
    node = await fleet.node()
    begun, real = list[str](), Maps.new_replica

    def new_replica(self: Maps, name: str) -> Any:
        begun.append(name)
        return real(self, name)

    async def enter() -> None:
        with pytest.raises(WrongLoop):
            async with node.map("flags"):
                pass

    monkeypatch.setattr(Maps, "new_replica", new_replica)
    await anyio.to_thread.run_sync(lambda: anyio.run(enter, backend=anyio_backend))
    assert not begun
