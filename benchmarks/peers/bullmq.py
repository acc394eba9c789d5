"""BullMQ, its Python package."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

from bullmq import Queue, QueueEvents, Worker

from benchmarks.peers.protocol import AsyncAdapter, Words, hold, main, mark

SAFE_MS = {"lockDuration": 1_000, "stalledInterval": 500}  # locks are renewed each half duration


async def process(job: Any, _: str) -> None:
    """Run either kind of job."""
    if job.name == "held":
        await hold(job.data["number"])
    else:
        mark(job.data["number"])


class Bullmq(AsyncAdapter):
    """A list, and a lock per running job that its worker renews."""

    distributions: ClassVar[Words] = ("bullmq", "redis", "hiredis")
    docs: ClassVar[str] = "https://docs.bullmq.io/guide/workers/stalled-jobs"
    usual: ClassVar[str] = "concurrency=100, lockDuration and stalledInterval 30 s (default)"
    results: ClassVar[str] = "QueueEvents"
    safe: ClassVar[str] = "lockDuration=1000, stalledInterval=500"
    left: ClassVar[tuple[Words, ...]] = (
        ("LLEN", "bull:bench:wait"),
        ("LLEN", "bull:bench:active"),
    )
    has_bulk: ClassVar[bool] = True

    def work(self) -> None:
        """Be a worker."""
        options: dict[str, Any] = {
            "connection": self.url,
            "concurrency": self.slots or 100,
            **(SAFE_MS if self.is_safe else {}),
        }

        async def run() -> None:
            worker = Worker("bench", process, options)
            await asyncio.Event().wait()
            await worker.close()

        asyncio.run(run())

    async def open(self) -> None:
        """Connect, and listen to what ends."""
        self.queue = Queue("bench", {"connection": self.url})
        self.ended: dict[str, asyncio.Event] = {}
        if self.has_results:
            self.events = QueueEvents("bench", {"connection": self.url})
            self.events.on("completed", self._end)

    def _end(self, args: Any, _: str) -> None:
        self.ended.setdefault(args["jobId"], asyncio.Event()).set()

    async def enqueue(self, number: int) -> Any:
        """Add a job."""
        return await self.queue.add("noop", {"number": number})

    async def enqueue_held(self, number: int) -> None:
        """Add a job."""
        await self.queue.add("held", {"number": number})

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        """Add all."""
        await self.queue.addBulk([{"name": "noop", "data": {"number": n}} for n in numbers])

    async def result(self, ref: Any) -> None:
        """Wait for the event."""
        await self.ended.setdefault(ref.id, asyncio.Event()).wait()


if __name__ == "__main__":
    main(Bullmq)
