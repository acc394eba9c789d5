"""pool itself: default settings and default observers."""

from __future__ import annotations

from itertools import count
from typing import Any, ClassVar

import anyio

import pool
from benchmarks.flows.protocol import AFTER, MEMBER, Flow, main, mark, name_of
from pool import Call, Follower, Handlers, Job, Node
from pool.schedules import Cron

POOL = "bench"
EACH_SECOND = Cron("* * * * * *")

handlers = Handlers()


@handlers.job("member")
async def member(_: Job, number: int) -> int:
    """Be one of many."""
    mark(MEMBER)
    return number


@handlers.job("after")
async def after(_: Job) -> None:
    """Come last."""
    mark(AFTER)


@handlers.job("tick")
async def tick(_: Job, name: str) -> None:
    """Be due."""
    mark(name)


class Ours(Flow):
    """One node in each process."""

    distributions: ClassVar[tuple[str, ...]] = ("redis", "hiredis", "anyio")
    docs: ClassVar[str] = "docs/how-to/batches.md and docs/how-to/schedules.md"
    setting: ClassVar[str] = "defaults (capacity 100)"
    ways: ClassVar[dict[str, str]] = {
        "batch": "node.batch(), result(): told by the store",
        "fan_in": "node.batch(then=...)",
        "cron": "node.schedule(Cron('* * * * * *'))",
    }
    promises: ClassVar[dict[str, str]] = {
        "batch": "each member is counted once, whoever dies; one never dispatched is found, and"
        " told as missing; it settles without its maker",
        "fan_in": "likewise; the follower is accepted in the step that settles the batch, once",
        "cron": "one job for each time, whoever dies and however the clock is set; any node fires;"
        " misfires by policy",
    }

    _ids = count()

    @classmethod
    def facts(cls) -> dict[str, Any]:
        """Say this tree's version: it need not be installed."""
        told = super().facts()
        return told | {"versions": {"pool": pool.__version__, **told["versions"]}}

    def work(self) -> None:
        """Be a node with a worker."""

        async def run() -> None:
            async with Node(POOL, self.url, handlers=handlers) as node:
                await node.wait_drained()

        anyio.run(run)

    async def open(self) -> None:
        """Join as a client; the process is killed, so nothing leaves."""
        self.node = Node(POOL, self.url)
        await self.node.__aenter__()

    async def batch(self, count: int) -> None:
        """Make it, and wait."""
        async with self.node.batch(f"b{next(self._ids)}") as made:
            await made.add(member, self._calls(made.id, count))
        await made.ref.result()

    async def fan_in(self, count: int) -> None:
        """Make it."""
        batch_id = f"b{next(self._ids)}"
        async with self.node.batch(batch_id, then=Follower("after", batch_id)) as made:
            await made.add(member, self._calls(batch_id, count))

    async def cron(self) -> None:
        """Store them."""
        for number in range(self.schedules):
            name = name_of(number)
            await self.node.schedule(name, EACH_SECOND, tick, name, name)

    def _calls(self, of: str, count: int) -> list[Call]:
        return [Call(f"{of}-{number}", number) for number in range(count)]


if __name__ == "__main__":
    main(Ours)
