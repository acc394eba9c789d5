"""A node, and all that came from it, belongs to the event loop that entered it.

Called on another one, of another thread or of none, each call is refused before it touches
anything; and so it is in a forked child.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import attrs
import pytest

from pool import (
    Call,
    Handlers,
    Job,
    JobRef,
    Node,
    NoSuchJob,
    NotRunning,
    PoolError,
    ReplicatedMap,
    WrongLoop,
)
from pool.actors.observe import ActorCrashed
from tests.actors.conftest import Fleet

pytestmark = pytest.mark.anyio

handlers = Handlers()


@handlers.job("echo")
async def echo(job: Job, value: str = "") -> str:
    return value


@attrs.frozen(kw_only=True)
class Things:
    node: Node
    ref: JobRef[Any]
    flags: ReplicatedMap[str]
    watch: Any
    stream: Any
    reader: Any
    sink: Any


async def call(fn: Callable[[], Any]) -> Any:
    return fn()


CALLS: dict[str, Callable[[Things], Awaitable[Any]]] = {
    "dispatch": lambda o: o.node.dispatch(echo, "b"),
    "dispatch with options": lambda o: o.node.options(delay_s=1).dispatch(echo, "b"),
    "dispatch many": lambda o: o.node.dispatch_many(echo, [Call("b")]),
    "status": lambda o: o.node.status("b"),
    "notify": lambda o: o.node.notify("b", 1),
    "stop": lambda o: o.node.stop("b"),
    "result": lambda o: o.ref.result(timeout_s=3),
    "started": lambda o: o.ref.started(timeout_s=3),
    "its status": lambda o: o.ref.status(),
    "its stop": lambda o: o.ref.stop(),
    "drain": lambda o: o.node.drain(),
    "wait closed": lambda o: o.node.wait_closed(),
    "add worker": lambda o: o.node.add_worker(handlers),
    "shut down": lambda o: o.node.shutdown_pool(),
    "leave": lambda o: o.node.__aexit__(None, None, None),
    "map": lambda o: o.node.map("others").__aenter__(),
    "set": lambda o: o.flags.set("k", "w"),
    "set and wait": lambda o: o.flags.set_and_wait("k", "w"),
    "append": lambda o: o.flags.append("l", "w"),
    "wait for": lambda o: o.flags.wait_for(0),
    "reset": lambda o: o.flags.reset(),
    "leave the map": lambda o: o.flags.__aexit__(None, None, None),
    "change": lambda o: o.watch.__anext__(),
    "close the watch": lambda o: call(o.watch.close),
    "with the watch": lambda o: call(o.watch.__enter__),
    "add": lambda o: o.stream.add("e", "p"),
    "length": lambda o: o.stream.fetch_length(),
    "destroy": lambda o: o.stream.destroy(),
    "read": lambda o: o.reader.__anext__(),
    "close the reader": lambda o: o.reader.aclose(),
    "new reader": lambda o: o.stream.reader().__aenter__(),
    "take": lambda o: o.sink.__anext__(),
    "parked": lambda o: o.sink.fetch_parked(),
    "close the sink": lambda o: o.sink.aclose(),
    "new sink": lambda o: o.stream.sink("other").__aenter__(),
}


@pytest.mark.parametrize("other", ["asyncio", "trio"])
async def test_what_is_called_on_another_loop_is_refused_and_harms_nobody(
    fleet: Fleet, other: str
) -> None:
    node = await fleet.node(handlers)
    stream = node.stream("s")
    async with (
        node.map("flags") as flags,
        stream.reader() as reader,
        stream.sink("billing") as sink,
    ):
        await flags.set_and_wait("k", "v")
        ref = await node.dispatch(echo, "a", "x")
        with flags.watch() as watch:
            things = Things(
                node=node,
                ref=ref,
                flags=flags,
                watch=watch,
                stream=stream,
                reader=reader,
                sink=sink,
            )
            said: dict[str, object] = {}

            async def ask(name: str) -> None:
                try:
                    with anyio.fail_after(3):
                        said[name] = await CALLS[name](things)
                except BaseException as error:  # noqa: BLE001 - whatever it is
                    said[name] = type(error)

            for name in CALLS:
                await anyio.to_thread.run_sync(partial(anyio.run, ask, name, backend=other))
            assert said == dict.fromkeys(CALLS, WrongLoop)
            assert (node.state, flags["k"]) == ("open", "v")
            assert await stream.fetch_length() == 0
            with pytest.raises(NoSuchJob):
                await node.status("b")
            assert await ref.result(timeout_s=5) == "x"
            assert not fleet.all_seen(ActorCrashed)
            assert not watch.is_closed


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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
async def test_in_a_forked_child_a_node_says_so_and_refuses_calls(fleet: Fleet) -> None:
    node = await fleet.node(handlers)
    async with node.map("flags") as flags:
        ref = await node.dispatch(echo, "a", "x")
        calls: list[Callable[[], Any]] = [
            lambda: node.dispatch(echo, "b"),
            ref.result,
            node.drain,
            node.wait_closed,
            lambda: flags.set("k", "w"),
            lambda: flags.wait_for(0),
            node.__aenter__,
        ]
        there, here = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                told = [node.state, *map(_refused, calls)]
                os.write(here, " ".join(told).encode())
            finally:
                os._exit(0)
        os.close(here)
        said = await anyio.to_thread.run_sync(os.read, there, 1000)
        os.close(there)
        await anyio.to_thread.run_sync(os.waitpid, pid, 0)
        assert said.decode().split() == ["forked"] * (1 + len(calls))
        assert await ref.result(timeout_s=5) == "x"
        assert node.state == "open"


def _refused(call: Callable[[], Any]) -> str:
    """Take the first step of a call, as there is no loop."""
    try:
        call().send(None)
    except NotRunning as error:
        return error.state
    except PoolError as error:
        return type(error).__name__
    except BaseException as error:  # noqa: BLE001 - whatever it is
        return f"{type(error).__name__}:{error}".replace(" ", "_")
    return "suspended"
