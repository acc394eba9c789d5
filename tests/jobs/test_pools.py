"""Several pools on one server, of which none touches another (their users may not, either)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from pool import Handlers, Job
from pool.events import DataLost

if TYPE_CHECKING:
    from tests.nodes import Diary, Fleet

pytestmark = pytest.mark.anyio


def made(diary: Diary, pool: str) -> Handlers:
    mine = Handlers()

    @mine.job("where")
    async def where(job: Job) -> str:
        return pool

    @mine.service("listen")
    async def listen(job: Job) -> None:
        diary.note(pool, "start", job.epoch)
        async for note in job.notifications():
            diary.note(pool, "heard", note)

    return mine


async def test_pools_of_one_server_share_names_and_nothing_else(
    fleet: Fleet, diary: Diary, url_of: Callable[[str], str]
) -> None:
    """Same keys, handlers, labels; one is shut down, then emptied: the other notices nothing."""
    name = f"{fleet.pool}-2"  # the other's name and more: a pattern could match too much
    second = type(fleet)(url_of(name), name, fleet.client)
    async with second.running():
        ours = await fleet.node(made(diary, "ours"), label="a")
        theirs = await second.node(made(diary, "theirs"), label="a")
        for node, pool in ((ours, "ours"), (theirs, "theirs")):
            ref = await node.dispatch("where", "key")
            assert await ref.result(timeout_s=30) == pool
            await node.dispatch("listen", "service")
            await node.notify("service", "hello")
            await diary.has(pool, "heard", "hello")
            assert len(node.workers) == 1
        before = fleet.record("service")

        await theirs.shutdown_pool()
        assert (ours.state, theirs.state) == ("open", "drained")
        await second.leave(theirs)
        for key in fleet.client.scan_iter(match=f"pool:{{{name}*", count=1000):
            fleet.client.delete(key)

        await ours.notify("service", "still here")
        await diary.has("ours", "heard", "still here")
        assert fleet.record("service") == before
        assert not fleet.all_seen(DataLost)
        assert diary.entries.count(("theirs", "heard", "hello")) == 1
