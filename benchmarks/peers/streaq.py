"""streaQ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from streaq import Worker

from benchmarks.peers.protocol import AsyncAdapter, Words, hold, main, mark

IDLE_MIN_S = 1


class Streaq(AsyncAdapter):
    """A stream; running tasks are claimed again by their worker before idle_timeout."""

    distributions: ClassVar[Words] = ("streaq", "coredis")
    docs: ClassVar[str] = "https://streaq.readthedocs.io/en/latest/worker.html"
    usual: ClassVar[str] = "concurrency=100, idle_timeout=60 (default)"
    safe: ClassVar[str] = f"idle_timeout={IDLE_MIN_S}"
    left: ClassVar[tuple[Words, ...]] = (("XLEN", "streaq:bench:queues:normal"),)
    has_bulk: ClassVar[bool] = True

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.worker: Worker[Any] = Worker(
            redis_url=self.url,
            queue_name="bench",
            concurrency=self.slots or 100,
            **({"idle_timeout": IDLE_MIN_S} if self.is_safe else {}),
        )

        @self.worker.task(name="noop")
        async def noop(number: int) -> None:
            mark(number)

        @self.worker.task(name="held")
        async def held(number: int) -> None:
            await hold(number)

        self.noop, self.held_task = noop, held

    def work(self) -> None:
        """Be a worker."""
        self.worker.run_sync()

    async def open(self) -> None:
        """Connect; the process is killed, so nothing leaves."""
        await self.worker.__aenter__()

    async def enqueue(self, number: int) -> Any:
        """Enqueue the task."""
        return await self.noop.enqueue(number)

    async def enqueue_held(self, number: int) -> None:
        """Enqueue the task."""
        await self.held_task.enqueue(number)

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        """Enqueue all in one pipeline."""
        await self.worker.enqueue_many([self.noop.enqueue(number) for number in numbers])

    async def result(self, ref: Any) -> None:
        """Wait for the message."""
        await ref.result()


if __name__ == "__main__":
    main(Streaq)
