"""A gateway that is killed: it says the claims that it made, each in a line."""

from __future__ import annotations

import sys

import anyio

from pool import Node
from pool.jobs.remote.claims import HandlerOffer


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def main(pool: str, url: str) -> None:
    async with Node(pool, url, observers=()) as node:
        remote = await node._open_wiring.remote_workers()
        offers = [HandlerOffer.of("add")]
        claim = (await remote.register(offers, capacity=4)).claim
        say(claim.pack())
        told = await remote.poll(claim, jobs_max=4, wait_s=30.0)
        for out in told.jobs:
            say(out.job.pack())
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2], backend=sys.argv[3])
