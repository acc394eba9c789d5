"""taskiq with the streams broker of taskiq-redis."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, ClassVar

from taskiq.api import run_receiver_task
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

from benchmarks.peers.protocol import AsyncAdapter, Words, hold, main, mark

CHECK_S = 0.001  # 0.2 by default: that is then every latency
IDLE_SAFE_MS = 1_000
SAFE: Mapping[str, Any] = {"idle_timeout": IDLE_SAFE_MS, "unacknowledged_lock_timeout": 1.0}


class Taskiq(AsyncAdapter):
    """A consumer group; entries stay in the stream unless it is given a length."""

    distributions: ClassVar[Words] = ("taskiq", "taskiq-redis", "redis", "hiredis")
    docs: ClassVar[str] = "https://github.com/taskiq-python/taskiq-redis#readme"
    usual: ClassVar[str] = "RedisStreamBroker, max_async_tasks=100 (default), no result backend"
    results: ClassVar[str] = f"RedisAsyncResultBackend, wait_result(check_interval={CHECK_S})"
    safe: ClassVar[str] = (
        f"idle_timeout={IDLE_SAFE_MS}, unacknowledged_lock_timeout=1 (no setting is safe for jobs"
        " that run longer)"
    )
    left: ClassVar[tuple[Words, ...]] = (("XINFO", "GROUPS", "taskiq"),)
    cannot: ClassVar[Mapping[str, str]] = {
        "dispatch_bulk": "no call for many",
        "finished_job_bytes": "entries stay in the stream unless maxlen trims it, queued ones too",
    }

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.broker: Any = RedisStreamBroker(self.url, **(SAFE if self.is_safe else {}))
        if self.has_results:
            self.broker = self.broker.with_result_backend(RedisAsyncResultBackend(self.url))

        @self.broker.task(task_name="noop")
        async def noop(number: int) -> None:
            mark(number)

        @self.broker.task(task_name="held")
        async def held(number: int) -> None:
            await hold(number)

        self.noop, self.held_task = noop, held

    def work(self) -> None:
        """Be a worker, as `taskiq worker` makes it."""

        async def run() -> None:
            self.broker.is_worker_process = True
            await self.broker.startup()
            await run_receiver_task(self.broker, max_async_tasks=self.slots or 100)

        asyncio.run(run())

    async def open(self) -> None:
        """Connect."""
        await self.broker.startup()

    async def enqueue(self, number: int) -> Any:
        """Kick the task."""
        return await self.noop.kiq(number)

    async def enqueue_held(self, number: int) -> None:
        """Kick the task."""
        await self.held_task.kiq(number)

    async def result(self, ref: Any) -> None:
        """Poll."""
        await ref.wait_result(check_interval=CHECK_S)


if __name__ == "__main__":
    main(Taskiq)
