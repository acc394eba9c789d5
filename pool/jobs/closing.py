"""Something is called, and something is closed behind it, however that ended.

    scope open --> call --> shield on --> close --> scope closed
                                |- the stop budget is over: shield off (see `Shields`)

What closes is the job's own code as its handler is: a commit that was cut must not look like one.
So nothing cuts it but what would cut the handler: a stop, the end of the lease, a time limit.  That
finds it shielded for the stop budget, from the closing's beginning on, and what is cut then ends
the run as a handler that was cut.

The scope is opened before the call, and not where the closing begins: what is closed may have
opened scopes of its own meanwhile (a task group of a generator, which is open across its `yield`),
and those can be left only as long as they are the innermost.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import anyio
import attrs

from pool.core.timing import Timing
from pool.jobs.job import Job
from pool.redis.io.loops import Loop, is_asked_for
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


@attrs.define(eq=False)
class Shields:
    """Shields that are on, and when each is taken off: by one timer for all of one loop's.

        off --raise_over()--> on --lower()--> off       it was closed: nearly always
                               |--the timer--> off      the stop budget is over

    A timer for each would cost more than most closings.  So it is set for the first that ends, and
    not taken back when that is closed before.  It is set anew when it has come, for what ends
    earlier (the budget has shrunk), and where it has not come in time: its loop was held up, or is
    gone.
    """

    timing: Callable[[], Timing]
    clock: Callable[[], float]
    loop: Callable[[], Loop]
    _ends_s: dict[anyio.CancelScope, float] = attrs.field(init=False, factory=dict)
    _looks_s: float = attrs.field(init=False, default=-math.inf)
    _take_back: Callable[[], object] = attrs.field(init=False, default=lambda: None)

    def raise_over(self, scope: anyio.CancelScope) -> None:
        """Shield a scope for the stop budget."""
        scope.shield = True
        now_s = self.clock()
        self._ends_s[scope] = ends_s = now_s + self.timing().stop_budget_s
        if not now_s < self._looks_s <= ends_s:
            self._look(self.loop())

    def lower(self, scope: anyio.CancelScope) -> None:
        """Forget a scope, which is about to be left."""
        self._ends_s.pop(scope, None)

    def _look(self, loop: Loop) -> None:
        """Take off what is over, and set the timer for the first of the others."""
        self._take_back()
        now_s, self._looks_s = self.clock(), -math.inf
        for scope in [each for each, ends_s in self._ends_s.items() if ends_s <= now_s]:
            del self._ends_s[scope]
            scope.shield = False
        if self._ends_s:
            looks_s = min(self._ends_s.values())
            self._take_back = loop.later(looks_s - now_s, partial(self._look, loop))
            self._looks_s = looks_s
