"""A process of the benchmark of streams: `python -m benchmarks.stream_member ROLE LOOP POOL URL`.

It says that it is ready, then takes one JSON object a line and answers each with one.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.to_thread

from pool import Stream

ACK_MAX = 100


async def write(stream: Stream, events: int, callers: int) -> dict[str, Any]:
    """Add events, so many at a time."""
    left = iter(range(events))

    async def call() -> None:
        for n in left:
            await stream.add("benched", b"%d" % n)

    began_s = time.monotonic()
    async with anyio.create_task_group() as tasks:
        for _ in range(callers):
            tasks.start_soon(call)
    return {"seconds": time.monotonic() - began_s}


async def write_raw(stream: Stream, events: int) -> dict[str, Any]:
    """Add events as a plain command of the same client, one after the other."""
    pipeline, key = stream._session.pipeline, f"{stream._stored.events}-raw"
    began_s = time.monotonic()
    for n in range(events):
        await pipeline.execute("XADD", key, "*", "n", n, "e", b"benched", "p", b"%d" % n)
    seconds = time.monotonic() - began_s
    await pipeline.execute("XTRIM", key, "MAXLEN", 0)
    return {"seconds": seconds}


async def offer(stream: Stream, rate_per_s: float, seconds: float, callers: int) -> dict[str, Any]:
    """Add events when they are due, whether or not earlier ones are done; each carries when."""
    events = int(rate_per_s * seconds)
    left = iter(range(events))
    start_s = time.monotonic() + 0.1

    async def call() -> None:
        for n in left:
            due_s = start_s + n / rate_per_s
            late_s = time.monotonic() - due_s
            if late_s < 0:
                await anyio.sleep(-late_s)
            await stream.add("benched", repr(due_s))

    async with anyio.create_task_group() as tasks:
        for _ in range(callers):
            tasks.start_soon(call)
    return {"seconds": time.monotonic() - start_s, "events": events}


async def consume(stream: Stream, ack_max: int, events: int) -> dict[str, Any]:
    """Take and acknowledge, until nothing comes any more."""
    got, last_s, began_s = 0, time.monotonic(), 0.0
    batch: list[Any] = []
    async with stream.sink("bench", buffer_max=1000) as sink:
        while got < events:
            with anyio.move_on_after(1.0) as scope:
                event = await anext(sink)
            if scope.cancelled_caught:
                break
            began_s = began_s or time.monotonic()
            batch.append(event)
            got += 1
            if len(batch) >= ack_max:
                await sink.ack_many(batch)
                batch.clear()
                last_s = time.monotonic()
        if batch:
            await sink.ack_many(batch)
            last_s = time.monotonic()
    return {"events": got, "began_s": began_s, "ended_s": last_s}


async def share(stream: Stream, tasks: int, events: int) -> dict[str, Any]:
    """Have several tasks take and acknowledge, each event alone."""
    got, began_s = 0, 0.0
    async with stream.sink("bench", buffer_max=1000) as sink:

        async def handle() -> None:
            nonlocal got, began_s
            while got < events:
                got += 1
                event = await anext(sink)
                began_s = began_s or time.monotonic()
                await sink.ack(event)

        async with anyio.create_task_group() as group:
            for _ in range(tasks):
                group.start_soon(handle)
        return {"events": got, "began_s": began_s, "ended_s": time.monotonic()}


async def follow(stream: Stream, events: int) -> dict[str, Any]:
    """Read so many events that carry when they were due; return how long ago that was."""
    lags_s: list[float] = []
    async with stream.reader(buffer_max=10_000) as reader:
        with anyio.move_on_after(60.0):
            while len(lags_s) < events:
                event = await anext(reader)
                lags_s.append(time.monotonic() - float(event.payload))
    return {"lags_s": lags_s}


DO: dict[str, Callable[..., Awaitable[dict[str, Any]]]] = {
    "write": write,
    "write_raw": write_raw,
    "share": share,
    "offer": offer,
    "consume": consume,
    "follow": follow,
}


async def main(pool: str, url: str) -> None:
    async with Stream.open(url, "bench", pool=pool, observers=()) as stream:
        print(json.dumps({"ready": True}), flush=True)
        while line := await anyio.to_thread.run_sync(sys.stdin.readline):
            asked = json.loads(line)
            answer = await DO[asked.pop("do")](stream, **asked)
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _, _, loop, pool_name, address = sys.argv
    anyio.run(main, pool_name, address, backend=loop)
