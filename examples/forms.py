"""Handlers that are no functions: a generator tells how far it is, a class holds its tools.

It prints:

    2.0 of 4.0: the second half of book-1
    4 pages
    logo.png: drawn with pens, attempt 1
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio

from pool import Depends, Handlers, Job, Node, Result

handlers = Handlers()
half, go_on = anyio.Event(), anyio.Event()


@handlers.job("print", timeout_s=60)
async def pages(job: Job, number: int) -> AsyncIterator[tuple[int, int, str] | Result[str]]:
    """What it yields is how far it is, and the `Result` is what the job returns."""
    for page in range(1, number + 1):
        yield page, number, f"the second half of {job.key}" if 2 * page >= number else ""
        if 2 * page == number:
            half.set()
            await go_on.wait()
    yield Result(f"{number} pages")


async def pens() -> str:
    return "pens"


class Drawing:
    """Made for each attempt, with what it depends on; `run` is the handler."""

    def __init__(self, tool: str = Depends(pens)) -> None:
        self.tool = tool

    async def run(self, job: Job, path: str) -> str:
        return f"{path}: drawn with {self.tool}, attempt {job.attempt}"


drawing = handlers.job("drawing")(Drawing)


async def main() -> None:
    async with Node("studio", "embedded://", handlers=handlers, observers=()) as node:
        ref = await node.dispatch(pages, "book-1", 4)
        await half.wait()
        progress = None
        while progress is None or progress.note == "":
            await anyio.sleep(0.01)
            progress = (await ref.status()).progress
        print(f"{progress.done} of {progress.total}: {progress.note}")
        go_on.set()
        print(await ref.result())
        print(await (await node.dispatch(drawing, "logo", "logo.png")).result())


if __name__ == "__main__":
    anyio.run(main)
