"""SAQ on its Redis queue."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, ClassVar

from saq import Queue, Worker

from benchmarks.peers.protocol import HOLD_S, AsyncAdapter, Words, main, mark

BEAT_S = 0.5
HEARTBEAT_S = 2  # whole seconds; two updates in one are not yet late


async def noop(_: Any, *, number: int) -> None:
    """Do nothing but note when."""
    mark(number)


async def held(ctx: Any, *, number: int, beats: bool) -> None:
    """Go on; with a heartbeat, which a job sends itself."""
    mark(number)
    if not beats:
        await asyncio.sleep(HOLD_S)
    while True:
        await asyncio.sleep(BEAT_S)
        await ctx["job"].update()


class Saq(AsyncAdapter):
    """A job is swept when its time limit or its heartbeat is over."""

    distributions: ClassVar[Words] = ("saq", "redis", "hiredis")
    docs: ClassVar[str] = "https://saq-py.readthedocs.io/en/latest/"
    usual: ClassVar[str] = "concurrency=100; held jobs: timeout=300 (by default 10 s ends them)"
    safe: ClassVar[str] = (
        f"sweep timer 1 s, heartbeat={HEARTBEAT_S}, retries=3, job.update() twice a second"
    )
    left: ClassVar[tuple[Words, ...]] = (("ZCARD", "saq:bench:incomplete"),)
    cannot: ClassVar[Mapping[str, str]] = {
        "dispatch_bulk": "no call for many that does not wait for results"
    }

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        # Each slot waits on a connection of its own; redis-py stops at 100 unless it is told.
        self.queue = Queue.from_url(f"{self.url}?max_connections=5000", name="bench")

    def work(self) -> None:
        """Be a worker."""
        timers: dict[str, Any] = {"timers": {"sweep": 1}} if self.is_safe else {}
        worker = Worker(
            self.queue,
            functions=[("noop", noop), ("held", held)],
            concurrency=self.slots or 100,
            **timers,
        )

        async def run() -> None:
            # Its first sweep takes jobs that were just fetched for stuck ones, and each of them
            # stalls it for 5 s.  Nothing is fetched yet, so this one finds none; the next is due in
            # a minute.
            await self.queue.sweep(lock=1 if self.is_safe else 60)
            await worker.start()

        asyncio.run(run())

    async def open(self) -> None:
        """Connect."""
        await self.queue.connect()

    async def enqueue(self, number: int) -> Any:
        """Enqueue by name."""
        return await self.queue.enqueue("noop", number=number)

    async def enqueue_held(self, number: int) -> None:
        """Enqueue a job that may run long."""
        more = {"heartbeat": HEARTBEAT_S, "retries": 3} if self.is_safe else {"retries": 3}
        await self.queue.enqueue("held", number=number, beats=self.is_safe, timeout=300, **more)

    async def result(self, ref: Any) -> None:
        """Wait until it is published."""
        await ref.refresh(until_complete=0)


if __name__ == "__main__":
    main(Saq)
