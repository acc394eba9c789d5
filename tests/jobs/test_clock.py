"""Nodes beside a server whose clock steps: by the lane's offset, the same to all scripts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pool import Handlers, Job
from pool.errors import JobLost, StoreLost, UnknownHandler
from pool.events import ClockStepped, LeaseLost, WorkerFenced
from pool.names import Names
from tests.stopwatch import Stopwatch

if TYPE_CHECKING:
    from tests.nodes import Diary, Fleet

pytestmark = pytest.mark.anyio

HOUR_S = 3600
SLACK_S = 1.0 + 2 * 0.6  # two periods of the fleet's 3 s, and 1 s


def working(diary: Diary) -> Handlers:
    mine = Handlers()

    @mine.job("work")
    async def work(job: Job) -> None:
        diary.note("started", job.key)

    @mine.service("serve")
    async def serve(job: Job) -> None:
        diary.note("serving", job.key)
        await anyio.sleep_forever()

    return mine


def ends_ms(fleet: Fleet) -> list[float]:
    """Return when the leases end, by pool time."""
    leases: Any = fleet.client.zrange(fleet.names.keepalive, 0, -1, withscores=True)
    return [end_ms for _, end_ms in leases]


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("hours", [1, -1])
async def test_an_hour_of_the_servers_clock_changes_nothing(
    fleet: Fleet, diary: Diary, watch: Stopwatch, hours: int, nodes: int
) -> None:
    """D5: no delay fires early or waits for the hour, no lease ends, and it is told."""
    wiring = [await fleet.node(working(diary)) for _ in range(nodes)]
    await wiring[0].dispatch("serve", "s")
    await diary.counts(1)
    last_ms = max(ends_ms(fleet))
    await fleet.until(lambda: min(ends_ms(fleet)) > last_ms)  # renewals have vouched for the clock
    watch.restart()
    delayed = await wiring[0].options(delay_s=5.0).dispatch("work", "delayed")
    fleet.client.hincrby(Names(fleet.pool, 0).lane, "offset", hours * HOUR_S * 1000)
    soon = await wiring[0].options(delay_s=1.0).dispatch("work", "soon")
    for node in wiring:
        await fleet.seen(ClockStepped, node=node.id)
    await soon.result(timeout_s=30.0)
    assert watch.took_s() < 1.0 + SLACK_S + 2.0
    await delayed.result(timeout_s=30.0)
    assert time.monotonic() - watch.began_s >= 5.0 - SLACK_S
    assert watch.took_s() <= 5.0 + SLACK_S + 2.0
    assert [key for word, key, *_ in diary.entries if word == "serving"] == ["s"]
    assert not [e for e in fleet.events.entries if isinstance(e, LeaseLost | WorkerFenced)]


@pytest.mark.parametrize("loses", ["all", "lane"])
async def test_epochs_do_not_fall_when_data_are_lost_behind_a_clock_that_was_set_back(
    fleet: Fleet, loses: str
) -> None:
    """Rule 8: whoever fences by epoch would refuse each new owner for the hour."""
    mine = Handlers()

    @mine.job("epoch")
    async def epoch(job: Job) -> int:
        return job.epoch

    node = await fleet.node(mine)
    lane = Names(fleet.pool, 0).lane  # pool time is an hour ahead of the server's clock
    ahead: Any = fleet.client.hget(lane, "seen")
    fleet.client.hset(
        lane,
        mapping={
            "offset": HOUR_S * 1000,
            "seen": int(ahead) + HOUR_S * 1000,
            "stamp": 1000 * (int(ahead) + HOUR_S * 1000),
        },
    )
    before = await (await node.dispatch("epoch", "k")).result(timeout_s=30.0)
    assert before > 1_000_000 * (time.time() + HOUR_S - 60)
    prefix = f"pool:{{{fleet.pool}" + ("*" if loses == "all" else ":0}*")
    fleet.client.delete(*fleet.client.scan_iter(match=prefix, count=1000))

    after: list[int] = []

    async def has_run() -> bool:
        try:
            ref = await node.options(if_exists="queue").dispatch("epoch", "k")
            after.append(int(await ref.result(timeout_s=30.0)))
        except (StoreLost, JobLost, UnknownHandler):  # it has not joined again yet
            return False
        return True

    await fleet.until(has_run)
    assert after[0] > before
