"""What a handler calls beside the event loop: plain functions, in threads and in processes.

    run_blocking(fn) --> a place --> thread   cannot be ended: the handler waits, and may be leaked
                                 --> process  is killed when the handler is told to end

Each worker has as many places for that as slots, beside those for its plain handlers: a handler
that calls many at once holds up no other worker's, and no plain handler.  What is called in a
thread and calls another one keeps its place for that.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

import anyio
import anyio.to_thread
import attrs

from pool import checks
from pool.redis.io.system import LINEAGE

# The limit under which the present thread has its place.
_WITHIN: ContextVar[anyio.CapacityLimiter | None] = ContextVar("pool_blocking", default=None)


@attrs.define(eq=False)
class Blocking:
    """What one run has under way beside the event loop."""

    limiter: anyio.CapacityLimiter
    threads: int = 0  # under way: they cannot be ended

    async def in_thread(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        limiter: anyio.CapacityLimiter | None = None,
    ) -> Any:
        """Call a function in a thread; however its caller is cancelled, that is waited for."""
        checks.plain_function("fn", fn)
        is_within = _WITHIN.get() is self.limiter
        limiter = limiter or (anyio.CapacityLimiter(1) if is_within else self.limiter)
        token = _WITHIN.set(self.limiter)
        self.threads += 1
        try:
            # In a list: trio takes no coroutine from a thread.
            [value] = await in_thread(lambda: [fn(*args)], limiter)
            return value
        finally:
            self.threads -= 1
            _WITHIN.reset(token)

    async def in_process(
        self, fn: Callable[..., Any], args: tuple[Any, ...], memory_bytes: int | None
    ) -> Any:
        """Call a function in a process of its own, which is killed when its caller is cancelled."""
        from pool.jobs import process  # with what starts processes; few need it

        return await process.run(process.Request.of(fn, args, memory_bytes), self.limiter)


NO_BLOCKING: Final[Blocking | None] = None  # of a run that calls nothing so


async def in_thread(fn: Callable[[], Any], limiter: anyio.CapacityLimiter | None) -> Any:
    """Call a plain function: not every error can be raised across threads as it is."""
    failed: list[BaseException] = []

    def call() -> Any:
        forks = LINEAGE.forks
        try:
            return fn()
        except BaseException as error:  # noqa: BLE001 - raised below
            failed.append(error)
        finally:
            LINEAGE.end_copy(forks)

    value = await anyio.to_thread.run_sync(call, limiter=limiter)
    if failed:
        raise failed.pop()
    return value
