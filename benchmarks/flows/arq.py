"""arq."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

from arq import Worker, create_pool, cron, func
from arq.connections import RedisSettings

from benchmarks.flows.protocol import MEMBER, Flow, main, mark, name_of

POLL_S = 0.01  # half a second by default: that is then every latency
SECONDS = set(range(60))


async def member(_: Any, number: int) -> int:
    """Be one of many."""
    mark(MEMBER)
    return number


def tick(name: str) -> Callable[[Any], Awaitable[None]]:
    """Return a coroutine that is due in each second."""

    async def fn(_: Any) -> None:
        mark(name)

    fn.__qualname__ = name
    return fn


class Arq(Flow):
    """A worker polls."""

    distributions: ClassVar[tuple[str, ...]] = ("arq", "redis", "hiredis")
    docs: ClassVar[str] = "https://arq-docs.helpmanual.io/#cron-jobs"
    setting: ClassVar[str] = f"max_jobs=100, poll_delay={POLL_S}"
    ways: ClassVar[dict[str, str]] = {
        "batch": f"enqueue_job() all at once, result(poll_delay={POLL_S}) of each",
        "cron": "cron(second=all, microsecond=0): each worker looks when it polls",
    }
    promises: ClassVar[dict[str, str]] = {
        "batch": "a killed worker's come back after job_timeout (300 s) and 10 s; nobody counts"
        " them: who waits for all must live",
        "cron": "one job for each time, by its id; what comes due while no worker polls is lost",
    }
    cannot: ClassVar[dict[str, str]] = {"fan_in": "no job that waits for others"}

    def work(self) -> None:
        """Be a worker."""
        jobs = [
            cron(tick(name_of(n)), name=name_of(n), second=SECONDS, microsecond=0)
            for n in range(self.schedules)
        ]

        async def run() -> None:
            await Worker(
                [func(member, name="member")],
                cron_jobs=jobs or None,
                redis_settings=RedisSettings.from_dsn(self.url),
                max_jobs=100,
                poll_delay=POLL_S,
                handle_signals=False,
            ).async_run()

        asyncio.run(run())

    async def open(self) -> None:
        """Connect."""
        self.pool = await create_pool(RedisSettings.from_dsn(self.url))

    async def batch(self, count: int) -> None:
        """Enqueue each, and wait for each."""
        enqueue = self.pool.enqueue_job
        jobs = await asyncio.gather(*(enqueue("member", number) for number in range(count)))
        for job in jobs:  # all at once they poll each other out of the way
            assert job is not None
            await job.result(poll_delay=POLL_S)


if __name__ == "__main__":
    main(Arq)
