"""Whoever is cancelled while he enters gets out again, at whichever step that was.

Each opening is driven by hand: it is counted how often it waits, and it is cancelled while it waits
for the n-th time, at once or some turns of the loop later, when what it waits for may have begun.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - its tasks may be cancelled without a scope
import gc
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import anyio
import anyio.lowlevel
import attrs
import pytest

from pool import Handlers, Job, Node, ReplicatedMap, Stream
from pool.errors import NotRunning
from pool.redis.embedded.server import EmbeddedServer
from pool.redis.io.loops import current_loop
from pool.runtime.task_scope import TaskScope
from tests.jobs.test_leaving import leases
from tests.nodes import SETTINGS

if TYPE_CHECKING:
    from tests.nodes import Fleet

pytestmark = pytest.mark.anyio
SOON_S: Final = 30.0  # what takes a moment, on a busy machine
STEPS_MAX: Final = 400  # far more than any opening waits
Kind = Literal["client", "worker", "stream", "map"]
How = Literal["scope", "task"]  # a cancel scope, or the task itself, as `asyncio.timeout` does


@attrs.define
class Stepped:
    """Drives a coroutine; `strike` is called when it waits for the n-th time."""

    work: Any
    at: int
    strike: Callable[[], object]
    steps: int = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        driven = self.work.__await__()
        send, given = driven.send, None
        while True:
            try:
                asked = send(given)
            except StopIteration as end:
                return end.value
            if self.steps == self.at:
                self.strike()
            self.steps += 1
            try:
                given = yield asked
                send = driven.send
            except BaseException as error:  # noqa: BLE001 - it is his who waits
                given, send = error, driven.throw


def opening(kind: Kind, fleet: Fleet) -> AbstractAsyncContextManager[Any]:
    handlers = Handlers()

    @handlers.job("quick")
    async def quick(job: Job) -> None: ...

    match kind:
        case "stream":
            return Stream.open(fleet.url, "s", pool=fleet.pool, settings=SETTINGS, observers=())
        case "map":
            return ReplicatedMap.open(
                fleet.url, "m", pool=fleet.pool, settings=SETTINGS, observers=()
            )
        case _:
            given = handlers if kind == "worker" else None
            return Node(fleet.pool, fleet.url, handlers=given, settings=SETTINGS, observers=())


def release_all() -> None:
    """Have every task scope end, so that a test which has failed ends too."""
    for task_scope in [each for each in gc.get_objects() if type(each) is TaskScope]:
        task_scope._closed.set()


def others() -> list[Any]:
    """Return what else there is: tasks of this program, threads of ours, what is open."""
    threads = [t.name for t in threading.enumerate() if t.name.startswith("pool-")]
    tasks = [] if not is_asyncio() else [t.get_name() for t in asyncio.all_tasks()]
    return [*sorted(threads + tasks), len(list(Path("/dev/fd").iterdir()))]


def is_asyncio() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def cancelled(
    block: AbstractAsyncContextManager[Any], how: How, at: int, turns: int
) -> tuple[bool, bool]:
    """Enter, and be cancelled; return whether the step came, and whether it ended."""
    has_struck, over = False, anyio.Event()
    begun: list[asyncio.Task[None]] = []
    scope, loop = anyio.CancelScope(), current_loop()

    def cancel() -> None:
        begun[0].cancel() if how == "task" else scope.cancel()

    def strike(left: int = turns) -> None:
        nonlocal has_struck
        has_struck = True
        if left:
            loop.post(strike, left - 1)
        else:
            cancel()

    async def enter() -> None:
        with scope:
            await Stepped(block.__aenter__(), at, strike)
            await block.__aexit__(None, None, None)

    async def run() -> None:
        try:
            await enter()
        except asyncio.CancelledError:
            if how == "scope":
                raise
        finally:
            over.set()

    async with anyio.create_task_group() as tasks:
        if how == "task":
            begun.append(asyncio.get_running_loop().create_task(run()))
        else:
            tasks.start_soon(run)
        with anyio.move_on_after(SOON_S):
            await over.wait()
        has_ended = over.is_set()
        if not has_ended:
            release_all()
            await over.wait()
        if begun:
            await asyncio.wait(begun)
    return has_struck, has_ended


@pytest.mark.parametrize("kind", ["client", "worker", "stream", "map"])
@pytest.mark.parametrize("how", ["scope", "task"])
async def test_who_is_cancelled_while_entering_ends_at_every_step(
    kind: Kind, how: How, fleet: Fleet, anyio_backend_name: str
) -> None:
    if how == "task" and anyio_backend_name == "trio":
        pytest.skip("on trio only scopes cancel")
    fleet.client.ping()  # what opens its connection
    before = others()
    for turns in (0, 1, 2):
        for at in range(STEPS_MAX):
            block = opening(kind, fleet)
            has_struck, has_ended = await cancelled(block, how, at, turns)
            assert has_ended, f"step {at}, {turns} turns later: it hangs"
            if not has_struck:
                break
            if isinstance(block, Node):
                assert block.state == "closed"
                with anyio.fail_after(SOON_S):  # nobody waits for a node that never was
                    await block.wait_drained()
                with pytest.raises(NotRunning):
                    block._check_open()
            await anyio.lowlevel.checkpoint()
            assert leases(fleet) == set()
            assert others() == before, f"step {at}, {turns} turns later"
        assert at >= 3  # it was cancelled while it opened


@pytest.mark.parametrize("kind", ["client", "stream"])
@pytest.mark.parametrize("how", ["scope", "task"])
async def test_a_server_that_was_begun_for_who_is_cancelled_is_stopped(
    kind: Kind, how: How, a_fleet: Fleet, anyio_backend_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "task" and anyio_backend_name == "trio":
        pytest.skip("on trio only scopes cancel")
    a_fleet.url, begun = "embedded://", list[EmbeddedServer]()
    start, asked = EmbeddedServer.start, list[None]()

    def start_noted(*args: Any, **options: Any) -> EmbeddedServer:
        asked.append(None)
        begun.append(start(*args, **options))
        return begun[-1]

    monkeypatch.setattr(EmbeddedServer, "start", start_noted)
    for at in range(STEPS_MAX):
        has_struck, has_ended = await cancelled(opening(kind, a_fleet), how, at, 1)
        assert has_ended
        if not has_struck:
            break
    assert len(begun) == len(asked) > 0  # none comes up when everybody has gone
    assert [server for server in begun if server.directory.exists()] == []
