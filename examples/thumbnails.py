"""Finite jobs: dispatch many, wait for their results.

It prints:

    img-0: 64x64 -> 8x8, mean grey 35
    img-1: 64x64 -> 8x8, mean grey 67
    img-2: 64x64 -> 8x8, mean grey 99
    img-3: JobParked, ValueError: img-3 is empty
"""

from __future__ import annotations

import anyio

from pool import Call, Handlers, Job, JobRef, Node
from pool.errors import JobParked

SIDE = 64

handlers = Handlers()


@handlers.job("thumbnail", timeout_s=30, attempts_max=2, backoff_s=0.05)
def thumbnail(job: Job, pixels: list[int], *, size: int = 8) -> list[int]:
    """Shrink a square grey picture.  A plain function: it runs in a worker thread."""
    if not pixels:
        raise ValueError(f"{job.key} is empty")
    step = SIDE // size
    blocks = [(x, y) for y in range(0, SIDE, step) for x in range(0, SIDE, step)]
    return [
        sum(pixels[(y + dy) * SIDE + x + dx] for dy in range(step) for dx in range(step)) // step**2
        for x, y in blocks
    ]


def picture(brightness: int) -> list[int]:
    """Return a picture that grows brighter from left to right."""
    return [x + brightness for _ in range(SIDE) for x in range(SIDE)]


async def main() -> None:
    async with Node("thumbnails", "embedded://", handlers=handlers) as node:
        calls = [Call(f"img-{i}", picture(4 + 32 * i), size=8) for i in range(3)]
        calls.append(Call("img-3", []))
        for ref in await node.dispatch_many(thumbnail, calls):
            if not isinstance(ref, JobRef):
                raise ref  # this one was not accepted; the others were
            try:
                small = await ref.result(timeout_s=10)
            except JobParked as error:
                print(f"{ref.key}: JobParked, {error.last_error}")
            else:
                mean = sum(small) // len(small)
                print(f"{ref.key}: {SIDE}x{SIDE} -> 8x8, mean grey {mean}")


if __name__ == "__main__":
    anyio.run(main)
