"""Starts actors in order, restarts one that crashed, and stops them in the opposite order.

A crash is a bug of ours or foreign data.  The actor is run again after a pause, with its mailbox as
it was; when that has happened `restarts_max` times within a minute, the node ends with the cause:
it never reports itself healthy with a dead loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextvars import Context as LogContext
from typing import Any, Final

import anyio
import attrs
from anyio.abc import TaskGroup, TaskStatus

from pool.actors.actor import Actor
from pool.actors.observe import ActorCrashed, Event
from pool.model.backoff import Dice, reconnect_delay

WINDOW_S: Final = 60.0


@attrs.define(eq=False, kw_only=True)
class Supervisor:
    """Keeps the actors of one node running, in the node's own task group."""

    tasks: TaskGroup
    log_context: LogContext  # of whoever opened the node: handlers log in it
    emit: Callable[[Event], object]
    dice: Dice
    restarts_max: int
    _ended: dict[str, anyio.Event] = attrs.field(init=False, factory=dict)

    async def start(self, actor: Actor[Any]) -> None:
        """Run an actor until it is stopped; returns when it takes messages."""
        self._ended[actor.name] = anyio.Event()
        ready = anyio.Event()
        self.log_context.run(self.tasks.start_soon, self._keep, actor, ready)
        await ready.wait()

    async def stop(self, actor: Actor[Any], budget_s: float) -> bool:
        """Stop an actor; False if it has not ended within the budget.  Twice is fine."""
        actor.stop()
        ended = self._ended.get(actor.name)
        if ended is None:
            return True
        with anyio.move_on_after(budget_s, shield=True):
            await ended.wait()
        return ended.is_set()

    async def _keep(self, actor: Actor[Any], ready: anyio.Event) -> None:
        crashes: deque[float] = deque()
        try:
            while True:
                try:
                    await actor.run(task_status=_Ready(ready))
                    return
                except Exception as error:
                    now_s = anyio.current_time()
                    crashes.append(now_s)
                    while crashes[0] < now_s - WINDOW_S:
                        crashes.popleft()
                    self.emit(
                        ActorCrashed(
                            actor=actor.name,
                            error=f"{type(error).__name__}: {error}",
                            restarts=len(crashes),
                        )
                    )
                    if len(crashes) > self.restarts_max:
                        raise
                    await anyio.sleep(reconnect_delay(len(crashes) - 1, self.dice))
        finally:
            ready.set()
            self._ended.pop(actor.name).set()


@attrs.frozen
class _Ready(TaskStatus[None]):
    """Tells `start` that the actor takes messages; again after each restart."""

    event: anyio.Event

    def started(self, value: None = None) -> None:  # noqa: ARG002 - anyio's signature
        """Say so."""
        self.event.set()
