"""A process whose handler waits for a job of another process: see test_in_a_handler.py."""

from __future__ import annotations

import sys

import anyio

from pool import Handlers, Job, Node, Settings
from pool.errors import DeadlockRisk

handlers = Handlers()


@handlers.job("there")
async def there(job: Job, key: str) -> str:
    try:
        await (await job.node.job(key)).result()
    except DeadlockRisk:
        return "there gave way"
    return "there went on"


async def main(pool: str, url: str) -> None:
    settings = Settings(lease_ttl_s=3.0)
    async with Node(pool, url, handlers=handlers, settings=settings, observers=()) as node:
        await node.wait_drained()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2])
