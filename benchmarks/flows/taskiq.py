"""taskiq with the streams broker of taskiq-redis, and its scheduler."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from taskiq import TaskiqScheduler, gather
from taskiq.api import run_receiver_task, run_scheduler_task
from taskiq.schedule_sources import LabelScheduleSource
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

from benchmarks.flows.protocol import MEMBER, Flow, main, mark, name_of

CHECK_S = 0.01


class Taskiq(Flow):
    """A consumer group."""

    distributions: ClassVar[tuple[str, ...]] = ("taskiq", "taskiq-redis", "redis", "hiredis")
    docs: ClassVar[str] = "https://taskiq-python.github.io/guide/scheduling-tasks.html"
    setting: ClassVar[str] = "RedisStreamBroker, max_async_tasks=100 (default)"
    ways: ClassVar[dict[str, str]] = {
        "batch": f"kiq() of each, gather(periodicity={CHECK_S}): polled",
        "cron": "TaskiqScheduler, interval of 1 s (its cron has no seconds)",
    }
    promises: ClassVar[dict[str, str]] = {
        "batch": "a killed worker's come back after idle_timeout (10 min); nobody counts them: who"
        " waits for all must live",
        "cron": "one scheduler process: while it is down nothing is sent, and two send twice",
    }
    cannot: ClassVar[dict[str, str]] = {"fan_in": "in a package of its own (taskiq-pipelines)"}
    by_interval: ClassVar[bool] = True
    has_beat: ClassVar[bool] = True

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        results: Any = RedisAsyncResultBackend(self.url)
        self.broker: Any = RedisStreamBroker(self.url).with_result_backend(results)

        @self.broker.task(task_name="member")
        async def member(number: int) -> int:
            mark(MEMBER)
            return number

        schedule = [{"interval": 1, "args": [name_of(n)]} for n in range(self.schedules)]

        @self.broker.task(task_name="tick", schedule=schedule)
        async def tick(name: str) -> None:
            mark(name)

        self.member = member

    def work(self) -> None:
        """Be a worker, as `taskiq worker` makes it."""

        async def run() -> None:
            self.broker.is_worker_process = True
            await self.broker.startup()
            await run_receiver_task(self.broker, max_async_tasks=100)

        asyncio.run(run())

    def beat(self) -> None:
        """Be the scheduler."""

        async def run() -> None:
            scheduler = TaskiqScheduler(self.broker, [LabelScheduleSource(self.broker)])
            await run_scheduler_task(scheduler, run_startup=True)

        asyncio.run(run())

    async def open(self) -> None:
        """Connect."""
        await self.broker.startup()

    async def batch(self, count: int) -> None:
        """Kick each, and wait for all."""
        kicked = [await self.member.kiq(number) for number in range(count)]
        await gather(*kicked, timeout=60, periodicity=CHECK_S)


if __name__ == "__main__":
    main(Taskiq)
