"""What handlers need for as long as their node is open, such as a client with its connections.

    first worker that has it --enter--> a task: opened, held --leave, at the node's end--> closed

Each is entered once per node, before the worker takes keys, and closed when no worker is left; the
last that was entered first.  It has a task of its own, so that it may open cancel scopes and task
groups.  If it fails while it is open, the node ends with that; at its end, that is told, and so is
an end that was cut.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
import attrs

from pool.events import ActorCrashed
from pool.redis.io.loops import is_asked_for, is_cancellation, strays
from pool.runtime.exceptions import told
from pool.runtime.supervisor import Supervisor


@attrs.define(eq=False)
class _Held:
    opened: anyio.Event = attrs.field(factory=anyio.Event)  # or it has failed to
    leaving: anyio.Event = attrs.field(factory=anyio.Event)
    over: anyio.Event = attrs.field(factory=anyio.Event)
    scope: anyio.CancelScope = attrs.field(factory=anyio.CancelScope)
    error: BaseException | None = None
    value: Any = None


@attrs.define(eq=False)
class Lifespans:
    """Those of one node, by their functions."""

    node: Any
    supervisor: Supervisor
    _held: dict[Callable[..., Any], _Held] = attrs.field(factory=dict)

    def value_of(self, lifespan: Callable[..., Any]) -> Any:
        """Return what one has yielded that was entered."""
        return self._held[lifespan].value

    async def enter(self, lifespan: Callable[..., AbstractAsyncContextManager[Any]]) -> None:
        """Return once it is open; raises what it raises."""
        held = self._held.get(lifespan)
        if held is None:
            held = self._held[lifespan] = _Held()

            async def hold() -> None:
                await self._hold(lifespan, held)

            self.supervisor.errand("lifespan", hold, held.opened.set)
        await held.opened.wait()
        if held.error is not None:
            self._held.pop(lifespan, None)
            raise held.error

    async def _hold(
        self, lifespan: Callable[..., AbstractAsyncContextManager[Any]], held: _Held
    ) -> None:
        cancels = strays()
        try:
            with held.scope:
                async with lifespan(self.node) as held.value:
                    held.opened.set()
                    await held.leaving.wait()
        except BaseException as error:
            is_strangers = is_cancellation(error)
            if is_strangers and is_asked_for():
                raise
            if not held.opened.is_set():
                # A cancellation raised by who opens us would be taken for his own.
                held.error = RuntimeError(told(error)) if is_strangers else error
            elif held.leaving.is_set():
                self._tell(told(error))
            else:
                cause = error if isinstance(error, Exception) else RuntimeError(told(error))
                self.supervisor.fail(cause)
            await cancels.absorb()
        finally:
            held.opened.set()
            held.over.set()

    async def leave(self, budget_s: float) -> None:
        """Close all, each within the budget; one that still opens is cancelled at once."""
        for held in reversed(list(self._held.values())):
            held.leaving.set()
            has_opened = held.opened.is_set()
            if not has_opened:
                held.scope.cancel()  # the node that was to use it does not open
            with anyio.move_on_after(budget_s) as patience:
                await held.over.wait()
            if patience.cancelled_caught and has_opened:
                held.scope.cancel()
                self._tell(f"its end took longer than grace_s, {budget_s:g} s, and was cut short")
        self._held.clear()

    def _tell(self, problem: str) -> None:
        self.supervisor.emit(ActorCrashed(actor="lifespan", error=problem, restarts=0))
