"""What a call beside the event loop costs: in a thread, and in a process of its own.

    python -m benchmarks.blocking

The function does nothing, and is imported from the standard library, so what is left is the way
there and back.  Medians; beside them what an empty Python takes on this machine.
"""

from __future__ import annotations

import operator
import statistics
import subprocess
import sys
from time import perf_counter
from typing import Final

import anyio

from pool import Job
from pool.testing import make_job

THREADS: Final = 2000
PROCESSES: Final = 20


async def call_ms(job: Job, times: int, *, process: bool) -> float:
    """Return how long a call takes."""
    took = list[float]()
    for number in range(times):
        began_s = perf_counter()
        assert await job.run_blocking(operator.index, number, process=process) == number
        took.append((perf_counter() - began_s) * 1e3)
    return statistics.median(took)


def empty_ms() -> float:
    """Return how long it takes to start Python and end it."""
    took = list[float]()
    for _ in range(PROCESSES):
        began_s = perf_counter()
        subprocess.run([sys.executable, "-c", ""], check=True)
        took.append((perf_counter() - began_s) * 1e3)
    return statistics.median(took)


async def main() -> None:
    """Measure and print."""
    job = make_job("k")
    print(f"in a thread: {await call_ms(job, THREADS, process=False):.3f} ms")
    print(f"in a process: {await call_ms(job, PROCESSES, process=True):.0f} ms")
    print(f"an empty Python: {await anyio.to_thread.run_sync(empty_ms):.0f} ms")


if __name__ == "__main__":
    for backend in ("asyncio", "trio"):
        print(f"on {backend}")
        anyio.run(main, backend=backend)
