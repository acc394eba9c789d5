"""Open-loop load: job i is due at start + i / rate, whether or not earlier ones are done.

Latency counts from the due time, so a stalled pool cannot hide its own stall (coordinated
omission).  Peak throughput is another question, which a closed loop answers.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio


async def offer(
    job: Callable[[int], Awaitable[None]], *, rate_per_s: float, jobs: int
) -> list[float]:
    """Return one latency in seconds per job, in due order."""
    assert rate_per_s > 0
    assert jobs > 0
    latency_s = [0.0] * jobs

    async def one(i: int, due_s: float) -> None:
        await job(i)
        latency_s[i] = anyio.current_time() - due_s

    async with anyio.create_task_group() as tasks:
        start_s = anyio.current_time()
        for i in range(jobs):
            due_s = start_s + i / rate_per_s
            await anyio.sleep_until(due_s)
            tasks.start_soon(one, i, due_s)
    return latency_s
