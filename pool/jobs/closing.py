"""Something is called, and something is closed behind it, however that ended.

    scope open --> call --> shield on --> close --> scope closed
                                |- the stop budget is over: shield off (see `shields`)

What closes is the job's own code as its handler is: a commit that was cut must not look like one.
So nothing cuts it but what would cut the handler: a stop, the end of the lease, a time limit.  That
finds it shielded for the stop budget, from the closing's beginning on, and what is cut then ends
the run as a handler that was cut.

The scope is opened before the call, and not where the closing begins: what is closed may have
opened scopes of its own meanwhile (a task group of a generator, which is open across its `yield`),
and those can be left only as long as they are the innermost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import anyio

from pool.jobs.job import Job
from pool.redis.io.loops import is_asked_for
from pool.runtime.exceptions import has_cancellation

LEFT_OPEN: Final = "it left a cancel scope or a task group open"


async def closed(
    job: Job,
    call: Callable[[], Awaitable[Any]],
    close: Callable[[BaseException | None], Awaitable[object]],
) -> Any:
    """Return what a call returns, or raise what it raises; close behind it.

    Closing is told what was raised, and cannot make it good.  It is shielded for the stop budget;
    what goes on is cancelled as soon as the run is, and then this raises what was raised before,
    or that cancellation.
    """
    raised: BaseException | None = None
    flying: BaseException | None = None
    value: Any = None
    try:
        with anyio.CancelScope() as scope:
            try:
                try:
                    value = await call()
                except BaseException as error:
                    raised = error
                    raise
                finally:
                    await _close(scope, job, close, raised)
            except BaseException as error:
                flying = error
                raise
        return value
    except RuntimeError as error:
        # Leaving our scope fails only if one was left open within it.
        if error is flying or error is raised:
            raise
        raise (RuntimeError(LEFT_OPEN) if raised is None else raised) from None
    finally:
        raised = flying = None  # their tracebacks lead back here


async def _close(
    scope: anyio.CancelScope,
    job: Job,
    close: Callable[[BaseException | None], Awaitable[object]],
    raised: BaseException | None,
) -> None:
    shields = job._host.shields
    shields.raise_over(scope)
    try:
        await close(raised)
    except BaseException as error:
        was_cut = has_cancellation(error) and is_asked_for()
        if raised is None or not was_cut:
            raise
    finally:
        shields.lower(scope)
