"""docket (distribution: pydocket)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import ClassVar

from docket import Cron, Docket, Worker

from benchmarks.flows.protocol import MEMBER, Flow, main, mark, name_of

EACH_SECOND = "* * * * * *"


async def member(number: int) -> int:
    """Be one of many."""
    mark(MEMBER)
    return number


def tick(name: str) -> Callable[[], Awaitable[None]]:
    """Return a task that is due in each second: its name is that of its schedule."""

    async def fn(cron: Cron = Cron(EACH_SECOND, automatic=True)) -> None:  # noqa: ARG001, B008 - its way
        mark(name)

    fn.__name__ = name
    return fn


class OfDocket(Flow):
    """A stream, and a sorted set of what is due later."""

    distributions: ClassVar[tuple[str, ...]] = ("pydocket", "redis", "hiredis")
    docs: ClassVar[str] = "https://docket.lol/"
    setting: ClassVar[str] = "concurrency=100, redelivery_timeout 300 s (default)"
    ways: ClassVar[dict[str, str]] = {
        "batch": "add_many(), get_result() of each",
        "cron": "Cron('* * * * * *'): each run adds the next one; looked for each 250 ms (default)",
    }
    promises: ClassVar[dict[str, str]] = {
        "batch": "a killed worker's come back after redelivery_timeout (300 s); nobody counts them:"
        " who waits for all must live",
        "cron": "the next time is added when the run before has ended: a killed worker's schedule"
        " stands still for redelivery_timeout (300 s)",
    }
    cannot: ClassVar[dict[str, str]] = {"fan_in": "no task that waits for others"}

    def docket(self) -> Docket:
        """Return a docket that knows all tasks."""
        # Each slot takes a connection; redis-py stops at 100 unless it is told, and jobs are stuck.
        docket = Docket(name="bench", url=f"{self.url}?max_connections=5000")
        docket.register(member)
        for number in range(self.schedules):
            docket.register(tick(name_of(number)))
        return docket

    def work(self) -> None:
        """Be a worker."""

        async def run() -> None:
            async with self.docket() as docket, Worker(docket, concurrency=100) as worker:
                await worker.run_forever()

        asyncio.run(run())

    async def open(self) -> None:
        """Connect; the process is killed, so nothing leaves."""
        self.client = self.docket()
        await self.client.__aenter__()

    async def batch(self, count: int) -> None:
        """Add all, and wait for each."""
        calls = [self.client.call(member)(number) for number in range(count)]
        added = await self.client.add_many(calls)
        for each in added:  # all at once they take thrice as long
            await each.get_result()


if __name__ == "__main__":
    main(OfDocket)
