"""What is done as a whole, whoever cancels the request that has asked for it.

A shield keeps the cancelling of scopes out, which is all there is on trio.  asyncio's own
(`task.cancel()`, as `asyncio.wait_for` does) goes through it, and ends what its task awaits: so the
deed has a task of its own, and who asked is cancelled once that has ended.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

T = TypeVar("T")


async def as_a_whole(act: Callable[[], Awaitable[T]]) -> T:
    """Run it to its end; return what it returns."""
    ended, found, failed = anyio.Event(), list[T](), list[BaseException]()

    async def run() -> None:
        try:
            found.append(await act())
        except Exception as error:  # noqa: BLE001 - it is raised where it was asked for
            failed.append(error)
        finally:
            ended.set()

    with anyio.CancelScope(shield=True):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            while not ended.is_set():
                try:
                    await ended.wait()
                except anyio.get_cancelled_exc_class() as cancelled:
                    failed.insert(0, cancelled)
    if failed:
        del failed[1:]
        raise failed.pop()
    return found[0]
