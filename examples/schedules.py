"""Schedules: a job at its time, in the code and by a call; looked at, paused and triggered.

It prints:

    watch watches the shop, as scheduled
    watch is paused
    by hand: watch watches the shop
    the report comes at 03:00 in Paris, 3 times in 3 days
"""

from __future__ import annotations

from zoneinfo import ZoneInfo

import anyio

from pool import Handlers, Job, Node
from pool.schedules import Every

handlers = Handlers()
PARIS = ZoneInfo("Europe/Paris")


@handlers.schedule("0 3 * * *", tz="Europe/Paris")
@handlers.job("report", timeout_s=600)
async def report(job: Job) -> None:
    """Of `job.scheduled_for`: a late one, or one that is run again, is still of that night."""


@handlers.job("watch", timeout_s=10)
async def watch(job: Job, what: str) -> str:
    if job.scheduled_for is not None:  # by hand it is for no time
        print(f"{job.key} watches {what}, as scheduled")
        await job.node.notify("waiter", job.id)
    return f"{job.key} watches {what}"


@handlers.service("wait")
async def wait(job: Job) -> None:
    async for _ in job.notifications():
        return  # one is enough


async def main() -> None:
    async with Node("shop", "embedded://", handlers=handlers) as node:
        # Only the latest of those that nobody was there for; if one still runs, no second one.
        once_a_day = Every(86_400, misfire="once")
        await node.schedule("watch", once_a_day, watch, "watch", "the shop")
        await node.schedules.pause("watch")
        ref = await node.schedules.trigger("watch")
        by_hand = await ref.result(timeout_s=10)
        fired = await node.dispatch(wait, "waiter")
        await fired.started(timeout_s=10)
        await node.schedule("soon", Every(1), watch, "watch", "the shop")
        await fired.result(timeout_s=30)
        await node.schedules.remove("soon")
        schedule = await node.schedules.show("watch")
        await anyio.sleep(0.2)
        print(f"watch is {'paused' if schedule.is_paused else 'active'}")
        print(f"by hand: {by_hand}")
        times = [at.astimezone(PARIS) for at in await node.schedules.next_times("report", 3)]
        days = len({at.date() for at in times})
        print(f"the report comes at {times[0]:%H:%M} in Paris, {len(times)} times in {days} days")


if __name__ == "__main__":
    anyio.run(main)
