"""pool itself: default settings and default observers, a program as README shows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import anyio

import pool
from benchmarks.peers.protocol import AsyncAdapter, Words, hold, main, mark
from pool import Call, Handlers, Job, JobRef, Node, Settings
from pool.names import Names

POOL = "bench"
LEASE_MIN_S = 1.0

handlers = Handlers()


@handlers.job("noop")
async def noop(_: Job, number: int) -> None:
    """Do nothing but note when."""
    mark(number)


@handlers.job("held")
async def held(_: Job, number: int) -> None:
    """Go on."""
    await hold(number)


class Ours(AsyncAdapter):
    """One node in each process."""

    distributions: ClassVar[Words] = ("redis", "hiredis", "anyio")
    docs: ClassVar[str] = "README.md"
    usual: ClassVar[str] = "defaults (capacity 100, lease_ttl_s 10)"
    safe: ClassVar[str] = "lease_ttl_s=1, the least there is"
    left: ClassVar[tuple[Words, ...]] = (("HLEN", Names(POOL, 0).jobs),)
    has_bulk: ClassVar[bool] = True

    @classmethod
    def facts(cls) -> dict[str, Any]:
        """Say this tree's version: it need not be installed."""
        told = super().facts()
        return told | {"versions": {"pool": pool.__version__, **told["versions"]}}

    def node(self, handlers: Handlers | None) -> Node:
        """Return a node; its capacity is given only where that of the others is."""
        settings = Settings(lease_ttl_s=LEASE_MIN_S) if self.is_safe else Settings()
        more: dict[str, Any] = {"capacity": self.slots} if self.slots else {}
        return Node(POOL, self.url, handlers=handlers, settings=settings, **more)

    def work(self) -> None:
        """Be a node with a worker."""

        async def run() -> None:
            async with self.node(handlers) as node:
                await node.wait_drained()

        anyio.run(run)

    async def open(self) -> None:
        """Join as a client; the process is killed, so nothing leaves."""
        self.client = self.node(None)
        await self.client.__aenter__()

    async def enqueue(self, number: int) -> JobRef[None]:
        """Dispatch."""
        return await self.client.dispatch(noop, f"job-{number}", number)

    async def enqueue_held(self, number: int) -> None:
        """Dispatch."""
        await self.client.dispatch(held, f"job-{number}", number)

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        """Dispatch all in one call."""
        for ref in await self.client.dispatch_many(noop, [Call(f"job-{n}", n) for n in numbers]):
            if isinstance(ref, Exception):
                raise ref

    async def result(self, ref: JobRef[None]) -> None:
        """Wait for the outcome."""
        await ref.result()


if __name__ == "__main__":
    main(Ours)
