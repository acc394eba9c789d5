r"""Starts actors in order, restarts one that crashed, and stops them in the opposite order.

    running --stop()--> ended                                  asked for
       |  \--raises, or returns unasked--> down --pause--> running again, same mailbox
       |                                    \-- restarts_max in a minute: the node ends by it
       \--KeyboardInterrupt--> running again at once, while the node leaves in order

A crash is a bug of ours or foreign data; so is an end that nobody asked for, such as a stranger's
cancellation of one of its tasks.  From the crash on, however long what the part had begun takes to
end, the part is down, and the node says so (`down`): it never reports itself healthy with a dead
loop.  Whoever keeps other parts (bodies beside the loop) counts their
crashes likewise: `restarts()`, `fell()`, `rose()`, and `fail()` at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextvars import Context as LogContext
from typing import Any

import anyio
import attrs
from anyio.abc import TaskGroup, TaskStatus

from pool.actors.actor import Actor
from pool.actors.observe import ActorCrashed, Event
from pool.errors import NotRunning, PartEnded, StoreError
from pool.model.backoff import Dice, Restarts
from pool.store.loops import is_asked_for, is_cancellation, strays


@attrs.define(eq=False, kw_only=True)
class Supervisor:
    """Keeps the actors of one node running, in the node's own task group."""

    tasks: TaskGroup
    log_context: LogContext  # of whoever opened the node: handlers log in it
    emit: Callable[[Event], object]
    dice: Dice
    restarts_max: int
    clock: Callable[[], float]
    on_interrupt: Callable[[KeyboardInterrupt], object]  # has the node leave in order
    on_down: Callable[[], object] = lambda: None  # a part is down, or is not any more
    _ended: dict[str, anyio.Event] = attrs.field(init=False, factory=dict)
    _down: set[str] = attrs.field(init=False, factory=set)
    _cause: BaseException | None = attrs.field(init=False, default=None)
    _failed: anyio.Event = attrs.field(init=False, factory=anyio.Event)

    # --- for all parts ------------------------------------------------------------------------

    @property
    def down(self) -> tuple[str, ...]:
        """The names of the parts that are down: crashed, and not running again yet."""
        return tuple(sorted(self._down))

    def count_down(self) -> int:
        """How many parts are down; from any thread."""
        return len(self._down)

    def restarts(self) -> Restarts:
        """Return what counts the crashes of one part."""
        return Restarts(self.restarts_max, self.dice)

    def fell(
        self,
        part: str,
        error: BaseException,
        restarts: Restarts,
        fail: Callable[[Exception], object] | None = None,
    ) -> float | None:
        """A part has crashed: tell; return the pause before its next start.

        None if that was one too many: the node ends with this cause, or `fail` hears of it.
        """
        self._down.add(part)
        self.on_down()
        pause_s = restarts.crashed(self.clock(), is_fault=isinstance(error, StoreError))
        told = f"{type(error).__name__}: {error}"
        self.emit(ActorCrashed(actor=part, error=told, restarts=restarts.count))
        if pause_s is None:
            (fail or self.fail)(error if isinstance(error, Exception) else _unasked(part, error))
        return pause_s

    def rose(self, part: str) -> None:
        """A part runs again, or has been stopped."""
        if part in self._down:
            self._down.discard(part)
            self.on_down()

    def fail(self, error: Exception) -> None:
        """End the node with this cause; the first one counts.  Also from a callback of the loop."""
        if self._cause is None:
            self._cause = error
            self._failed.set()

    def spawn(self, work: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
        """Do what outlives whoever asks for it, in the node's own group; its error ends the node.

        Raises:
            NotRunning: Some part has ended for good, and the node with it.
        """
        if self._cause is not None:
            raise NotRunning(state="closing")
        self.log_context.run(self.tasks.start_soon, work, *args)

    def begin(self) -> None:
        """From here on `fail()` is heeded."""
        self.tasks.start_soon(self._wait_for_failure)

    async def _wait_for_failure(self) -> None:
        cancels = strays()
        while self._cause is None:
            try:
                await self._failed.wait()
            except anyio.get_cancelled_exc_class():
                if is_asked_for():
                    raise
                await cancels.absorb()
        raise self._cause

    # --- for actors ---------------------------------------------------------------------------

    async def start(
        self, actor: Actor[Any], on_failed: Callable[[Exception], object] | None = None
    ) -> None:
        """Run an actor until it is stopped; returns when it takes messages.

        One that has crashed too often ends the node, or tells `on_failed`.

        Raises:
            NotRunning: Some part has ended for good, and the node with it.
        """
        ready, ended = anyio.Event(), anyio.Event()
        self.spawn(self._keep, actor, ready, ended, on_failed)
        self._ended[actor.name] = ended
        await ready.wait()
        if self._cause is not None:
            raise NotRunning(state="closing")

    async def stop(self, actor: Actor[Any], budget_s: float) -> bool:
        """Stop an actor; False if it has not ended within the budget.  Twice is fine."""
        actor.stop()
        ended = self._ended.get(actor.name)
        if ended is None:
            return True
        with anyio.move_on_after(budget_s, shield=True):
            await ended.wait()
        return ended.is_set()

    async def _keep(
        self,
        actor: Actor[Any],
        ready: anyio.Event,
        ended: anyio.Event,
        on_failed: Callable[[Exception], object] | None,
    ) -> None:
        restarts, cancels = self.restarts(), strays()
        pauses: list[float | None] = []  # before its next start, once it has crashed

        def fall(crash: BaseException) -> None:
            if not pauses and not isinstance(crash, KeyboardInterrupt):
                pauses.append(self.fell(actor.name, crash, restarts, on_failed))

        actor.on_crash = fall
        try:
            while True:
                crash = await self._run(actor, ready)
                if crash is None:
                    return
                pause_s: float | None = 0.0
                if isinstance(crash, KeyboardInterrupt):  # on trio it comes wherever we are
                    self.on_interrupt(crash)
                else:
                    fall(crash)
                    pause_s = pauses.pop()
                del crash  # its traceback leads back here
                if pause_s is None:
                    return
                try:
                    await anyio.sleep(pause_s)
                    await cancels.absorb()
                except anyio.get_cancelled_exc_class():
                    if is_asked_for():
                        raise
                    await cancels.absorb()
        finally:
            actor.stop()  # one that is not run again answers whoever waits
            if self._cause is None:
                self.rose(actor.name)
            ready.set()
            if self._ended.get(actor.name) is ended:
                del self._ended[actor.name]
            ended.set()

    async def _run(self, actor: Actor[Any], ready: anyio.Event) -> BaseException | None:
        """Run an actor until it ends; return what ended it, None if it was asked to."""
        try:
            await actor.run(task_status=_Ready(self, actor.name, ready))
        except GeneratorExit:
            raise  # the loop is thrown away
        except BaseException as error:
            if is_cancellation(error) and is_asked_for():
                raise
            return error
        return None


@attrs.frozen
class Apart:
    """Cares for a part whose end is its own program's alone: that of a reader, or a sink."""

    supervisor: Supervisor
    on_failed: Callable[[Exception], object]

    def restarts(self) -> Restarts:
        """As the supervisor's."""
        return self.supervisor.restarts()

    def fell(self, part: str, error: BaseException, restarts: Restarts) -> float | None:
        """As the supervisor's, but for the last time."""
        pause_s = self.supervisor.fell(part, error, restarts, self.on_failed)
        if pause_s is None:
            self.rose(part)  # nobody waits for it any more
        return pause_s

    def rose(self, part: str) -> None:
        """As the supervisor's."""
        self.supervisor.rose(part)


def _unasked(part: str, error: BaseException) -> PartEnded:
    ended = PartEnded(part=part, problem=f"{type(error).__name__}: {error}")
    ended.__cause__ = error
    return ended


@attrs.frozen
class _Ready(TaskStatus[None]):
    """Tells `start` that the actor takes messages; again after each restart."""

    supervisor: Supervisor
    name: str
    event: anyio.Event

    def started(self, value: None = None) -> None:  # noqa: ARG002 - anyio's signature
        """Say so."""
        self.supervisor.rose(self.name)
        self.event.set()
