"""Something is called, and something is closed behind it, however that ended.

    scope open --> call --> shield on, deadline: the stop budget --> close --> scope closed

The scope is opened before the call, and not where the closing begins: what is closed may have
opened scopes of its own meanwhile (a task group of a generator, which is open across its `yield`),
and those can be left only as long as they are the innermost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import anyio

from pool.jobs.job import Job

LEFT_OPEN: Final = "it left a cancel scope or a task group open"


async def closed(
    job: Job,
    call: Callable[[], Awaitable[Any]],
    close: Callable[[BaseException | None], Awaitable[object]],
) -> Any:
    """Return what a call returns, or raise what it raises; close behind it, shielded.

    Closing is told what was raised, and cannot make it good.  What takes longer than the stop
    budget is cancelled, and changes nothing.
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
                    scope.shield = True
                    scope.deadline = anyio.current_time() + job._timing().stop_budget_s
                    await close(raised)
            except BaseException as error:
                flying = error
                raise
        if raised is not None:
            raise raised  # the closing was cut short, and its scope has taken that for its own
        return value
    except RuntimeError as error:
        # Leaving our scope fails only if one was left open within it.
        if error is flying or error is raised:
            raise
        raise (RuntimeError(LEFT_OPEN) if raised is None else raised) from None
    finally:
        raised = flying = None  # their tracebacks lead back here
