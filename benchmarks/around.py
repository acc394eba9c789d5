"""What dependencies and middleware cost a job: beside the same handlers without, in one run.

    python -m benchmarks.around

What stands between a worker and the handler is called here as a worker calls it: beside all that a
job is, it would not be seen.  Blocks of calls of each kind take turns, so that what else the
machine does hits all of them alike; the figures are medians of the differences between neighbours.
At most 15 us are allowed to two of them; what needs threads takes longer.
"""

from __future__ import annotations

import statistics
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from time import perf_counter
from typing import Any, Final

import anyio

from pool import Call, Depends, Handler, Handlers, Job, Node
from pool.jobs.run import _given
from pool.testing import make_job

JOBS: Final = 2000
CALLS: Final = 2000
ROUNDS: Final = 15

plain, depending, opening, wrapped = Handlers(), Handlers(), Handlers(), Handlers()


async def client() -> int:
    """Stand for what is there anyway."""
    return 1


async def table(client: int = Depends(client)) -> int:
    """Depend on another one."""
    return client + 1


@plain.job("plain")
async def bare(job: Job) -> None:
    """Do nothing."""


@depending.job("depends")
async def depends(job: Job, *, table: int = Depends(table), client: int = Depends(client)) -> None:
    """Do nothing with two dependencies."""


async def session() -> AsyncIterator[int]:
    """Open something, and close it."""
    yield 1


async def transaction(session: int = Depends(session)) -> AsyncIterator[int]:
    """Likewise within another one."""
    yield session + 1


@opening.job("opens")
async def opens(job: Job, *, transaction: int = Depends(transaction)) -> None:
    """Do nothing with two dependencies that are closed behind it."""


def file() -> Iterator[int]:
    """Open something in a thread, and close it there."""
    yield 1


@opening.job("opens-plain")
async def opens_plain(job: Job, *, file: int = Depends(file)) -> None:
    """Do nothing with one whose opening and closing are a thread's."""


@wrapped.around_run
async def outer(_: Job, call_next: Callable[[], Awaitable[Any]]) -> Any:
    """Only call the next one."""
    return await call_next()


@wrapped.around_run
async def inner(_: Job, call_next: Callable[[], Awaitable[Any]]) -> Any:
    """Likewise."""
    return await call_next()


@wrapped.job("wrapped")
async def within(job: Job) -> None:
    """Do nothing within two middlewares."""


async def call_us(handler: Handler[..., Any], limiter: anyio.CapacityLimiter) -> float:
    """Return how long a call takes, by way of what stands around the handler if there is any."""
    job = make_job("k")
    is_bare = handler._plan is None and not handler._around
    began_s = perf_counter()
    for _ in range(CALLS):
        if is_bare:
            await handler.fn(job)
        else:
            await _given(handler, job, (), {}, limiter)
    return (perf_counter() - began_s) / CALLS * 1e6


async def job_us() -> float:
    """Return how long a whole job takes that has nothing around it: dispatched, run, waited for."""
    async with Node("around", "embedded://", handlers=plain, observers=()) as node:
        began_s = perf_counter()
        for ref in await node.dispatch_many(bare, [Call(f"k-{n}") for n in range(JOBS)]):
            assert not isinstance(ref, Exception)
            await ref.result()
        return (perf_counter() - began_s) / JOBS * 1e6


async def main() -> None:
    """Measure and print."""
    limiter, took = anyio.CapacityLimiter(1), dict[str, list[float]]()
    for at in range(ROUNDS + 1):
        for handler in (bare, depends, opens, opens_plain, within):
            us = await call_us(handler, limiter)
            if at:  # the first is to warm up
                took.setdefault(handler.name, []).append(us)
    whole_us = await job_us()
    print(f"a whole job without: {whole_us:.0f} us")
    for name in ("depends", "opens", "opens-plain", "wrapped"):
        more = [a - b for a, b in zip(took[name], took["plain"], strict=True)]
        more_us = statistics.median(more)
        print(f"{name}: {more_us:+.1f} us a job, {more_us / whole_us:.1%} of that")


if __name__ == "__main__":
    anyio.run(main)
