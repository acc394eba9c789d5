"""Starts actors in order, restarts one that crashed, and stops them in the opposite order.

A crash is a bug of ours or foreign data.  The actor is run again after a pause, with its mailbox as
it was; when that has happened `restarts_max` times within a minute, the node ends with the cause:
it never reports itself healthy with a dead loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

import anyio
import attrs
from anyio.abc import TaskGroup

from pool.actors.actor import Actor
from pool.actors.observe import ActorCrashed, Event
from pool.model.backoff import Dice, reconnect_delay

WINDOW_S: Final = 60.0


@attrs.define(eq=False, kw_only=True)
class Supervisor:
    """Keeps the actors of one node running, in the node's own task group."""

    tasks: TaskGroup
    emit: Callable[[Event], object]
    dice: Dice
    restarts_max: int
    _ended: dict[str, anyio.Event] = attrs.field(init=False, factory=dict)

    async def start(self, actor: Actor[Any]) -> None:
        """Run an actor until it is stopped; returns when it takes messages."""
        self._ended[actor.name] = anyio.Event()
        await self.tasks.start(self._keep, actor, name=actor.name)

    async def stop(self, actor: Actor[Any], budget_s: float) -> bool:
        """Stop an actor; False if it has not ended within the budget.  Twice is fine."""
        actor.stop()
        ended = self._ended.get(actor.name)
        if ended is None:
            return True
        with anyio.move_on_after(budget_s, shield=True):
            await ended.wait()
        return ended.is_set()

    async def _keep(self, actor: Actor[Any], *, task_status: Any) -> None:
        crashes: deque[float] = deque()
        try:
            while True:
                try:
                    if crashes:
                        await actor.run()
                    else:
                        await actor.run(task_status=task_status)
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
            self._ended[actor.name].set()
