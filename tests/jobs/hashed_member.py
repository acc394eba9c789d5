"""A process with a hash seed of its own, which makes equal calls: see test_types.py."""

from __future__ import annotations

import sys
from typing import Any

import anyio
import msgspec
import pydantic

from pool import Call, Handlers, Job, Node, Settings

handlers = Handlers()
TEXTS = [f"n{n}" for n in range(40)]


class Model(pydantic.BaseModel):
    words: set[str]


class Struct(msgspec.Struct):
    words: frozenset[str]


@handlers.service("model")
async def model(job: Job, x: Model) -> None: ...


@handlers.service("struct")
async def struct(job: Job, x: Struct) -> None: ...


@handlers.service("packed", codec="msgspec")
async def packed(job: Job, x: set[str]) -> None: ...


CALLS: list[tuple[Any, Any]] = [
    (model, Model(words=set(TEXTS))),
    (struct, Struct(frozenset(TEXTS))),
    (packed, set(TEXTS)),
]


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")


async def main(pool: str, url: str) -> None:
    settings = Settings(lease_ttl_s=3.0)
    async with Node(pool, url, settings=settings, observers=()) as node:
        for handler, value in CALLS:
            key, known = f"k-{handler.name}", f"id-{handler.name}"
            named = node.options(job_id=known, allow_unknown=True)
            ref = await named.dispatch(handler, key, value)
            say(handler.name, ref.job_id)
            live = await node.options(if_exists="attach").dispatch(handler, key, value)
            say(handler.name, live.job_id)
        async with node.batch("b") as batch:
            refused = await batch.add(model, [Call("member", CALLS[0][1])])
            say(*(type(each.error).__name__ for each in refused))
            say(batch.added)
            raise SystemExit(0)  # it stays open


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2])
