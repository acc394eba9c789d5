"""A program with a node in it that knows no signals: `python embedded.py LOOP POOL URL HOW`.

It says `ready` once its job and its service run.  HOW is `stays`, or `forgets`: then its main
function returns without leaving the node.
"""

from __future__ import annotations

import sys

import anyio

from pool import Handlers, Job, Node, Settings
from pool.events import Event

handlers = Handlers()


@handlers.job("long", attempts_max=1)
async def long(job: Job) -> None:
    await anyio.sleep_forever()


@handlers.service("serve")
async def serve(job: Job) -> None:
    try:
        await anyio.sleep_forever()
    finally:
        job.state = "kept"


def tell(event: Event) -> None:
    sys.stdout.write(f"{event.event} {event}\n")
    sys.stdout.flush()


async def main(*words: str) -> None:
    pool, url, how = words
    settings = Settings(lease_ttl_s=1.0, grace_s=2.0)
    node = Node(pool, url, handlers=handlers, settings=settings, observers=(tell,))
    await node.__aenter__()
    try:
        for ref in (await node.dispatch(long, "job"), await node.dispatch(serve, "service")):
            await ref.started(timeout_s=30)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        if how == "stays":
            await anyio.sleep_forever()
    finally:
        if how == "stays":
            await node.__aexit__(*sys.exc_info())


if __name__ == "__main__":
    anyio.run(main, *sys.argv[2:], backend=sys.argv[1])
