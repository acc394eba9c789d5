"""Where actors live: a task group beside the body of an `async with`, not inside it.

outer group:  the body, and the house      cancelling the body does not end the actors before
house:        the actors, shielded         they have left; an actor that ends for good cancels
                                           the body, and its error comes out of the block; so does
                                           KeyboardInterrupt, once all have left in order
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

import anyio
import attrs
from anyio.abc import TaskGroup, TaskStatus


@attrs.define(eq=False)
class House:
    """Opened, then closed, then left; each once, by the task that opened it."""

    _outer: TaskGroup
    _closed: anyio.Event
    actors: TaskGroup = attrs.field(init=False)  # start actors here
    # Whether an actor ended for good, so that nobody is left who could leave in order.
    has_crashed: bool = attrs.field(init=False, default=False)
    _interrupt: KeyboardInterrupt | None = attrs.field(init=False, default=None)

    @classmethod
    async def open(cls) -> Self:
        """Begin.  Whoever opened it must close and leave it."""
        outer = anyio.create_task_group()
        await outer.__aenter__()
        try:
            house = cls(outer, anyio.Event())
            house.actors = await outer.start(house._live)
            return house
        except BaseException as error:
            await outer.__aexit__(type(error), error, error.__traceback__)
            raise

    def interrupt(self, error: KeyboardInterrupt) -> None:
        """Cancel the body, so that it leaves in order; this is raised when it has left."""
        if self._interrupt is None:
            self._interrupt = error
            self._outer.cancel_scope.cancel()

    def close(self) -> None:
        """Cancel what still runs.  Twice is fine."""
        self._closed.set()

    async def abandon(self) -> None:
        """Leave after a failure to open; raises what ended an actor, else the caller raises."""
        self.close()
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
        self.close()
        if isinstance(error, anyio.get_cancelled_exc_class()):
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

    async def _live(self, *, task_status: TaskStatus[TaskGroup]) -> None:
        with anyio.CancelScope(shield=True):
            try:
                async with anyio.create_task_group() as actors:
                    task_status.started(actors)
                    await self._closed.wait()
                    actors.cancel_scope.cancel()
            except BaseException as error:
                self.has_crashed = True
                if isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
                    raise error.exceptions[0] from error.exceptions[0].__cause__
                raise
