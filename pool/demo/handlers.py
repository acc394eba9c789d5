"""What the nodes of the demo do: compute zones, and be world clocks."""

from __future__ import annotations

import random
from datetime import datetime
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import anyio

from pool.demo import zones
from pool.demo.conductor import PlayPace
from pool.demo.ledger import CLOCK, ZONE, Ledger, Running
from pool.demo.tzif import Change
from pool.jobs.handlers import Handlers
from pool.jobs.job import Job

SLICES = 4  # of 17 years each, 1 to 2 ms of work


def make(ledger: Ledger, pace: PlayPace) -> Handlers:
    """Return the handlers of one node."""
    handlers = Handlers()

    @handlers.job(ZONE)
    async def zone(job: Job, name: str) -> dict[str, Any]:
        """Return all changes of a zone, and which attempt of which owner this is the work of."""
        with ledger.running(job):
            found = await _transitions(name, random.uniform(pace.zone_min_s, pace.zone_max_s))
            first = zones.state_at(ZoneInfo(name), zones.SINCE_S)
        return {"epoch": job.epoch, "first": first, "changes": found}

    @handlers.service(CLOCK, backoff_s=0.1)
    async def clock(job: Job, name: str) -> None:
        """Tick until stopped; go on counting where the former owner stopped."""
        ticks = job.state or 0
        with ledger.running(job, ticks) as running:
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_listen, job, running)
                    await _tick(ZoneInfo(name), running, pace.tick_s)
            finally:
                job.state = running.count

    return handlers


async def _transitions(name: str, took_s: float) -> list[Change]:
    zone = ZoneInfo(name)
    found: list[Change] = []
    span_s = (zones.UNTIL_S - zones.SINCE_S) / SLICES
    edges = [zones.SINCE_S + round(i * span_s) for i in range(SLICES + 1)]
    for since_s, until_s in pairwise(edges):
        await anyio.sleep(took_s / SLICES)
        # A change at the very edge belongs to the later slice.
        found += zones.transitions(zone, max(since_s - 1, zones.SINCE_S), until_s)
    return found


async def _listen(job: Job, running: Running) -> None:
    async for number in job.notifications():
        running.write("heard", count=number)


async def _tick(zone: ZoneInfo, running: Running, tick_s: float) -> None:
    while True:
        await anyio.sleep(tick_s)
        running.count += 1
        running.write("tick", how=datetime.now(zone).strftime("%H:%M:%S"))
