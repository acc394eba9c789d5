"""A program that looks at all objects of its process for the password that it reads: see test_walk.

    python walked.py LOOP POOL WAY      reads the address from standard input

It prints, for each object that holds the password itself, of what type that is.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from types import AsyncGeneratorType, CoroutineType, FrameType, GeneratorType
from typing import Any

import anyio

from pool import Handlers, Job, Node, ReplicatedMap, Settings
from pool.streams.stream import Stream

SETTINGS = Settings(lease_ttl_s=2.0)
handlers = Handlers()


@handlers.service("stay")
async def stay(job: Job) -> None:
    await anyio.sleep_forever()


def address() -> str:
    """Return what is never a local of anything that lasts."""
    with open(0, closefd=False) as given:
        given.seek(0)
        return given.read().strip()


def holders() -> Iterator[str]:
    """Yield the types of what holds it, frames by their function."""
    secret = address().partition("SECRET-")[2].partition("@")[0].encode()
    assert secret
    mine = {id(sys._getframe())}
    seen = set[int]()
    waiting: list[Any] = gc.get_objects()
    own = id(waiting)
    while waiting:
        each = waiting.pop()
        if id(each) in seen or id(each) in mine or id(each) == own:
            continue
        seen.add(id(each))
        for inner in gc.get_referents(each):
            if isinstance(inner, (str, bytes, bytearray)):
                text = inner.encode("utf-8", "replace") if isinstance(inner, str) else bytes(inner)
                if secret in text and inner is not secret:
                    yield name_of(each)
            elif not gc.is_tracked(inner):  # a tuple or a dict of plain words
                waiting.append(inner)


def name_of(each: object) -> str:
    if isinstance(each, FrameType):
        return f"frame {each.f_code.co_qualname}"
    if isinstance(each, (GeneratorType, CoroutineType, AsyncGeneratorType)):
        return f"{type(each).__name__} {each.__qualname__}"
    return f"{type(each).__module__}.{type(each).__qualname__}"


async def main(*words: str) -> None:
    pool, way = words
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        match way:
            case "node":
                node = await enter(
                    Node(pool, address(), handlers=handlers, settings=SETTINGS, observers=())
                )
                await enter(node.map("flags"))
                await node.stream("events").add("orders", b"1")
                await (await node.dispatch(stay, "k")).started(timeout_s=30)
                assert node.url == address()
            case "map":
                await enter(ReplicatedMap.open(address(), "flags", pool=pool, observers=()))
            case "stream":
                stream = await enter(Stream.open(address(), "events", pool=pool, observers=()))
                await stream.add("orders", b"1")
        await anyio.sleep(0.5)  # renewals and reads have come and gone
        for holder in sorted(set(holders()) - {"generator holders"}):
            sys.stdout.write(f"{holder}\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    anyio.run(main, *sys.argv[2:], backend=sys.argv[1])
