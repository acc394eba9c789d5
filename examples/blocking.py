"""What would hold up the event loop: in a thread, and in a process that can be killed.

It prints:

    2 lines, 78498 primes below 1000000
    hangs: killed with its handler
    it wanted more than 300 MiB
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import anyio

from pool import Handlers, Job, Node, Park
from pool.errors import JobParked, OutOfMemory

handlers = Handlers()
MIB = 1024 * 1024


def lines(path: str) -> int:
    """Wait for the disk."""
    return len(Path(path).read_text("utf-8").splitlines())


def primes(below: int) -> int:
    """Compute.  A process imports this file to find it, so it stands in no other function."""
    sieve = bytearray(2) + bytearray([1]) * (below - 2)
    for n in range(2, int(below**0.5) + 1):
        if sieve[n]:
            sieve[n * n :: n] = bytes(len(range(n * n, below, n)))
    return sum(sieve)


def spin() -> None:
    while True:  # as a fault may have it
        pass


@handlers.job("report")
async def report(job: Job, path: str, below: int) -> str:
    found = await job.run_blocking(lines, path)
    try:
        counted = await job.run_blocking(primes, below, process=True, memory_bytes=300 * MIB)
    except OutOfMemory as error:
        raise Park(f"it wanted more than {error.memory_bytes // MIB} MiB") from error
    return f"{found} lines, {counted} primes below {below}"


@handlers.job("hangs", timeout_s=1.0, attempts_max=1)
async def hangs(job: Job) -> None:
    try:
        await job.run_blocking(spin, process=True)
    finally:
        print(f"{job.key}: killed with its handler")


async def main() -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "notes.txt"
        await anyio.Path(path).write_text("one\ntwo\n", "utf-8")
        async with Node("reports", "embedded://", handlers=handlers, observers=()) as node:
            print(await (await node.dispatch(report, "small", str(path), 1_000_000)).result())
            for call in (
                node.dispatch(hangs, "hangs"),
                node.dispatch(report, "large", str(path), 1_000_000_000),
            ):
                try:
                    await (await call).result()
                except JobParked as error:
                    if error.cause != "timed out":
                        print(error.cause)


if __name__ == "__main__":
    anyio.run(main)
