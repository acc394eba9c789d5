"""arq."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, ClassVar

from arq import Worker, create_pool, func
from arq.connections import RedisSettings

from benchmarks.peers.protocol import AsyncAdapter, Words, hold, main, mark

POLL_S = 0.01  # half a second by default: that is then every latency
JOB_TIMEOUT_S = 300  # the default; held jobs are shorter


async def noop(_: Any, number: int) -> None:
    """Do nothing but note when."""
    mark(number)


async def held(_: Any, number: int) -> None:
    """Go on."""
    await hold(number)


class Arq(AsyncAdapter):
    """A worker polls; a job's key in progress lasts for its longest run and 10 s."""

    distributions: ClassVar[Words] = ("arq", "redis", "hiredis")
    docs: ClassVar[str] = "https://arq-docs.helpmanual.io/#arq.worker.Worker"
    usual: ClassVar[str] = f"max_jobs=100, poll_delay={POLL_S}"
    left: ClassVar[tuple[Words, ...]] = (("ZCARD", "arq:queue"),)
    cannot: ClassVar[Mapping[str, str]] = {
        "dispatch_bulk": "no call for many",
        "recovery_safe": "only job_timeout shortens it, which ends every job that runs longer",
    }

    def work(self) -> None:
        """Be a worker."""

        async def run() -> None:
            await Worker(
                [func(noop, name="noop"), func(held, name="held")],
                redis_settings=RedisSettings.from_dsn(self.url),
                max_jobs=self.slots or 100,
                poll_delay=POLL_S,
                job_timeout=JOB_TIMEOUT_S,
                handle_signals=False,
            ).async_run()

        asyncio.run(run())

    async def open(self) -> None:
        """Connect."""
        self.pool = await create_pool(RedisSettings.from_dsn(self.url))

    async def enqueue(self, number: int) -> Any:
        """Enqueue by name."""
        return await self.pool.enqueue_job("noop", number)

    async def enqueue_held(self, number: int) -> None:
        """Enqueue by name."""
        await self.pool.enqueue_job("held", number)

    async def result(self, ref: Any) -> None:
        """Poll as often as the worker does."""
        await ref.result(poll_delay=POLL_S)


if __name__ == "__main__":
    main(Arq)
