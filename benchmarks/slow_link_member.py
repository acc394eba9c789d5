"""A node behind a slow line: `python -m benchmarks.slow_link_member node LOOP POOL URL`.

It says that it is ready, enters its node, and answers line by line (as `member.py`).  Whatever it
is asked, it dispatches jobs meanwhile, one after the other, and tells how long each took.
"""

from __future__ import annotations

import json
import secrets
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count as numbers
from typing import Any, Final

import anyio
import anyio.to_thread

from benchmarks.member import Answer, main
from pool import Node
from pool.streams import Reader, Sink, StreamEvent

PAUSE_S: Final = 0.01  # between two dispatches
ACK_MAX: Final = 16  # events acknowledged at once


async def rest(_: Node) -> float:
    """Do nothing."""
    return 0.0


async def open_map(node: Node, name: str) -> float:
    """Have a copy of a map; return when."""
    async with node.map(name, values=bytes):
        return time.perf_counter()


async def take(node: Node, kind: str, name: str, count: int, sink: str) -> float:
    """Take so many events, from the oldest on; a sink acknowledges them.  Return when."""
    stream = node.stream(name)
    made: Reader | Sink = stream.sink(sink) if kind == "sink" else stream.reader()
    async with made as events:
        batch: list[StreamEvent] = []
        for left in reversed(range(count)):
            batch.append(await anext(events))
            if isinstance(events, Sink) and (len(batch) >= ACK_MAX or not left):
                await events.ack_many(batch)
                batch.clear()
        return time.perf_counter()


DO: Final[dict[str, Callable[..., Awaitable[float]]]] = {
    each.__name__: each for each in (rest, open_map, take)
}


async def timed(node: Node, work: Callable[[], Awaitable[float]]) -> dict[str, Any]:
    """Do it, and dispatch meanwhile; tell how long all that took."""
    waits = node.options(allow_unknown=True, delay_s=3600)
    spent_s, ours = list[float](), secrets.token_hex(4)

    async def dispatch() -> None:
        for n in numbers():
            began_s = time.perf_counter()
            await waits.dispatch("later", f"{ours}-{n}")
            spent_s.append(time.perf_counter() - began_s)
            await anyio.sleep(PAUSE_S)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(dispatch)
        began_s = time.perf_counter()
        seconds = await work() - began_s
        tasks.cancel_scope.cancel()
    return {"seconds": seconds, "dispatches_s": spent_s}


async def serve(role: str, pool: str, url: str, answer: Answer) -> None:
    """Answer until standard input ends."""
    assert role == "node"
    answer({"state": "ready"})
    async with Node(pool, url) as node:
        while line := await anyio.to_thread.run_sync(sys.stdin.readline):
            asked = json.loads(line)
            answer(await timed(node, partial(DO[asked.pop("do")], node, **asked)))


if __name__ == "__main__":
    main(serve)
