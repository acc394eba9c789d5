"""docket (distribution: pydocket)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, ClassVar

from docket import Docket, Worker

from benchmarks.peers.protocol import AsyncAdapter, Words, hold, main, mark

REDELIVERY_SAFE = timedelta(seconds=1)


async def noop(number: int) -> None:
    """Do nothing but note when."""
    mark(number)


async def held(number: int) -> None:
    """Go on."""
    await hold(number)


class OfDocket(AsyncAdapter):
    """A stream; a worker claims its running tasks again four times per redelivery_timeout."""

    distributions: ClassVar[Words] = ("pydocket", "redis", "hiredis")
    docs: ClassVar[str] = "https://docket.lol/"
    usual: ClassVar[str] = "concurrency=100, redelivery_timeout 300 s (default)"
    safe: ClassVar[str] = "redelivery_timeout=1 s"
    left: ClassVar[tuple[Words, ...]] = (("XLEN", "bench:stream"), ("ZCARD", "bench:queue"))
    has_bulk: ClassVar[bool] = True

    def docket(self) -> Docket:
        """Return a docket that knows both tasks."""
        # Each slot takes a connection; redis-py stops at 100 unless it is told, and jobs are stuck.
        docket = Docket(name="bench", url=f"{self.url}?max_connections=5000")
        docket.register(noop)
        docket.register(held)
        return docket

    def work(self) -> None:
        """Be a worker."""
        more: dict[str, Any] = {"redelivery_timeout": REDELIVERY_SAFE} if self.is_safe else {}

        async def run() -> None:
            async with (
                self.docket() as docket,
                Worker(docket, concurrency=self.slots or 100, **more) as worker,
            ):
                await worker.run_forever()

        asyncio.run(run())

    async def open(self) -> None:
        """Connect; the process is killed, so nothing leaves."""
        self.client = self.docket()
        await self.client.__aenter__()

    async def enqueue(self, number: int) -> Any:
        """Add the task."""
        return await self.client.add(noop)(number)

    async def enqueue_held(self, number: int) -> None:
        """Add the task."""
        await self.client.add(held)(number)

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        """Add all."""
        await self.client.add_many([self.client.call(noop)(number) for number in numbers])

    async def result(self, ref: Any) -> None:
        """Wait for the message."""
        await ref.get_result()


if __name__ == "__main__":
    main(OfDocket)
