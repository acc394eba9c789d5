"""Where actors live: a task group beside the body of an `async with`, not inside it.

outer group:  the body, and the task scope      cancelling the body does not end the actors before
task scope:   the actors, shielded         they have left; an actor that ends for good cancels
                                           the body, and its error comes out of the block; so does
                                           KeyboardInterrupt, once all have left in order

A stranger's cancellation of the task scope ends nothing: whoever leaves, leaves in order.  But it
may be the end of the loop, with the task that opened the task scope; once that has ended nobody can
leave, and the task scope ends by that.  However it ends, what runs beside the loop ends with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextvars import copy_context
from types import TracebackType
from typing import Self

import anyio
import attrs
from anyio.abc import TaskGroup

from pool.core.retry import Restarts
from pool.errors import PartEnded
from pool.events import Event
from pool.redis.io.loops import Strays, after_task, is_asked_for, is_cancellation, strays
from pool.redis.io.system import IO
from pool.runtime.supervisor import Supervisor
from pool.settings import Settings

_NAME = "task scope"


@attrs.define(eq=False)
class TaskScope:
    """Opened, then closed, then left; each once, by the task that opened it."""

    _outer: TaskGroup
    _clock: Callable[[], float]
    _after_opener: Callable[[Callable[[], object]], object]
    _begun: anyio.Event = attrs.field(init=False, factory=anyio.Event)
    _closed: anyio.Event = attrs.field(init=False, factory=anyio.Event)
    _over: anyio.Event = attrs.field(init=False, factory=anyio.Event)
    supervisor: Supervisor = attrs.field(init=False)
    # Whether an actor ended for good, so that nobody is left who could leave in order.
    has_crashed: bool = attrs.field(init=False, default=False)
    _interrupt: KeyboardInterrupt | None = attrs.field(init=False, default=None)
    _cancels: Strays = attrs.field(init=False)
    _struck_s: float = attrs.field(init=False, default=-math.inf)

    @classmethod
    async def open(cls, io: IO, settings: Settings, emit: Callable[[Event], object]) -> Self:
        """Begin.  Whoever opened it must close and leave it."""
        outer = anyio.create_task_group()
        await outer.__aenter__()
        task_scope, log_context = cls(outer, io.clock, after_task()), copy_context()
        try:

            def supervisor(actors: TaskGroup) -> Supervisor:
                return Supervisor(
                    tasks=actors,
                    log_context=log_context,
                    emit=emit,
                    dice=io.dice,
                    restarts_max=settings.restarts_max,
                    clock=io.clock,
                    on_interrupt=task_scope.interrupt,
                    struck_s=task_scope.struck_s,
                )

            # Not `outer.start`: whoever is cancelled in there waits until what he began has ended,
            # and a task scope ends for nobody but who closes it.
            outer.start_soon(task_scope._live, supervisor)
            await task_scope._begun.wait()
            return task_scope
        except BaseException as error:
            task_scope._closed.set()
            await outer.__aexit__(type(error), error, error.__traceback__)
            raise

    def interrupt(self, error: KeyboardInterrupt) -> None:
        """Cancel the body, so that it leaves in order; this is raised when it has left."""
        if self._interrupt is None:
            self._interrupt = error
            self._outer.cancel_scope.cancel()

    def struck_s(self) -> float:
        """Return when a stranger cancelled us last, as whoever cancels all tasks does."""
        if self._cancels.has_any():
            self._struck_s = self._clock()
        return self._struck_s

    async def close(self, budget_s: float) -> None:
        """Cancel what still runs; return when nothing does, or time is up.  Twice is fine."""
        self._closed.set()
        with anyio.move_on_after(budget_s, shield=True):
            await self._over.wait()

    async def abandon(self) -> None:
        """Leave after a failure to open; raises what ended an actor, else the caller raises."""
        self._closed.set()
        self._outer.cancel_scope.cancel()
        await self._end(None, None, None)
        if self._interrupt is not None:
            raise self._interrupt

    async def leave(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Wait until nothing runs; raise what ended an actor for good, and a cancellation."""
        self._closed.set()
        if error is not None and is_cancellation(error):
            await self._end(kind, error, traceback)
        else:
            await self._end(None, None, None)
        if self._interrupt is not None:
            raise self._interrupt

    async def _end(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self._outer.__aexit__(kind, error, traceback)
        except BaseExceptionGroup as group:
            if len(group.exceptions) == 1:  # the actor that ended for good
                raise group.exceptions[0] from group.exceptions[0].__cause__
            raise

    async def _live(self, supervisor: Callable[[TaskGroup], Supervisor]) -> None:
        self._cancels = strays()
        with anyio.CancelScope(shield=True):
            try:
                async with anyio.create_task_group() as actors:
                    self.supervisor = supervisor(actors)
                    self.supervisor.begin()
                    self._begun.set()
                    await self._until_closed()
                    actors.cancel_scope.cancel()
                if not self._closed.is_set():
                    # A task that is cancelled before it begins ends its group without a word.
                    raise PartEnded(part=_NAME, problem="it returned")
            except BaseException as error:
                self.has_crashed = True
                if isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
                    raise error.exceptions[0] from error.exceptions[0].__cause__
                raise
            finally:
                self.supervisor.end()
                self._over.set()

    async def _until_closed(self) -> None:
        is_struck = False
        while not self._closed.is_set():
            try:
                await self._closed.wait()
            except anyio.get_cancelled_exc_class():
                if is_asked_for():
                    raise
                self._struck_s = self._clock()
                await self._cancels.absorb()
                if not is_struck:
                    is_struck = True
                    self._after_opener(self._forsaken)

    def _forsaken(self) -> None:
        """Who opened us has ended, and all its tasks were cancelled."""
        if not self._closed.is_set():
            error = PartEnded(part=_NAME, problem="who opened it ended, and did not leave")
            restarts = Restarts(0, self.supervisor.dice)
            self.supervisor.fell(_NAME, error, restarts, lambda _: self._closed.set())
