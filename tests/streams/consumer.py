"""One consumer in a process of its own: `python consumer.py URL POOL TTL_S [DELIVERIES_MAX]`.

It appends a line per event to standard output (a file, in append mode) when it has handled it, and
only then acknowledges it; so an acknowledged event is always in the file, whenever it is killed.
A negative number is poison: it ends the process.
"""

from __future__ import annotations

import os
import sys

import anyio

from pool import PoolError, Settings, Stream

WORK_S = 0.005  # so that a kill meets somebody who has an event in hand


def say(*words: str) -> None:
    os.write(1, (" ".join(words) + "\n").encode())


async def main(url: str, pool: str, ttl_s: float, deliveries_max: int) -> None:
    settings = Settings(lease_ttl_s=ttl_s)
    async with (
        Stream.open(url, "orders", pool=pool, settings=settings, observers=()) as stream,
        stream.sink("billing", buffer_max=8, grace_s=60, deliveries_max=deliveries_max) as sink,
    ):
        say("is", str(os.getpid()), sink.consumer)
        say("open", str(os.getpid()))
        async for event in sink:
            say("handled", str(os.getpid()), event.payload.decode())
            if event.payload.startswith(b"-"):
                os._exit(9)
            await anyio.sleep(WORK_S)
            try:
                done = await sink.ack(event)
            except PoolError as error:
                say("unknown", str(os.getpid()), error.code)
            else:
                say("acknowledged" if done else "late", str(os.getpid()), event.payload.decode())


if __name__ == "__main__":
    url, pool, ttl_s, *most = sys.argv[1:]
    anyio.run(main, url, pool, float(ttl_s), int(most[0]) if most else 10_000)
