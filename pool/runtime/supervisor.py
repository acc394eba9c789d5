r"""Starts actors in order, restarts one that crashed, and stops them in the opposite order.

    running --stop()--> ended                                  asked for
       |  \--raises, or returns unasked--> down --pause--> running again, same mailbox
       |                                    \-- restarts_max in a minute: the node ends by it
       \--KeyboardInterrupt--> running again at once, while the node leaves in order

A crash is a bug of ours or foreign data; so is an end that nobody asked for, such as a stranger's
cancellation of one of its tasks.  From the crash on, however long what the part had begun takes to
end, the part is down, and the node says so (`down`): it never reports itself healthy with a dead
loop.  Whoever keeps other parts (bodies beside the loop) counts their crashes likewise:
`restarts()`, `fell()`, `rose()`, and `fail()` at the end.  Those bodies end with it: when the task
scope has ended, however that was, nothing of it may run on and renew leases.

An errand is a part that ends by itself: it is done anew after a crash, until it returns.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context as LogContext
from functools import partial
from typing import Any, Final, TypeAlias

import anyio
import attrs
from anyio.abc import TaskGroup, TaskStatus

from pool.core.retry import Dice, Restarts
from pool.errors import NotRunning, PartEnded, StoreError
from pool.events import ActorCrashed, Event, TasksCancelled
from pool.redis.io.loops import BY_STRANGER, is_asked_for, is_cancellation, strays, unmoved
from pool.redis.io.task import Ends
from pool.runtime.actor import Actor
from pool.runtime.exceptions import told

_TOGETHER_S: Final = 1.0  # in which all parts are cancelled by whoever cancels all tasks
Work: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


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
    struck_s: Callable[[], float]  # when a stranger cancelled the task scope last: maybe all tasks
    _ended: dict[str, anyio.Event] = attrs.field(init=False, factory=dict)
    _down: dict[Restarts, str] = attrs.field(init=False, factory=dict)  # names may be shared
    # In the order of their beginning, as sets are not: simulations are to be played again.
    _bodies: weakref.WeakKeyDictionary[Ends, None] = attrs.field(
        init=False, factory=weakref.WeakKeyDictionary
    )
    _errands: dict[Callable[[], object], None] = attrs.field(init=False, factory=dict)
    _actors: dict[Actor[Any], None] = attrs.field(init=False, factory=dict)
    _told_of_all_s: float = attrs.field(init=False, default=-math.inf)
    _is_over: bool = attrs.field(init=False, default=False)
    _cause: BaseException | None = attrs.field(init=False, default=None)
    _failed: anyio.Event = attrs.field(init=False, factory=anyio.Event)

    # --- for all parts ------------------------------------------------------------------------

    @property
    def down(self) -> tuple[str, ...]:
        """The names of the parts that are down: crashed and not running again yet, or not woken."""
        unwoken = (actor.name for actor in self._actors if actor.is_unwoken)
        return tuple(sorted({*self._down.values(), *unwoken}))

    def look(self) -> None:
        """Restart what was told something and not woken; now and then, from a callback."""
        for actor in list(self._actors):
            actor.look()

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
        if self._is_over:
            return None  # it has ended by something else, and so does this part
        self._down[restarts] = part
        self.on_down()
        pause_s = restarts.crashed(self.clock(), is_fault=issubclass(type(error), StoreError))
        if self._is_of_all(error):
            self._tell_of_all()
        else:
            self.emit(ActorCrashed(actor=part, error=told(error), restarts=restarts.count))
        if pause_s is None:
            (fail or self.fail)(error if isinstance(error, Exception) else _unasked(part, error))
        return pause_s

    def _is_of_all(self, error: BaseException) -> bool:
        """Whether it is the end of one of all tasks, as `sys.exit()` in one of asyncio's has it."""
        is_by_stranger = isinstance(error, PartEnded) and error.problem == BY_STRANGER
        return is_by_stranger and self.struck_s() >= self.clock() - _TOGETHER_S

    def _tell_of_all(self) -> None:
        """Tell once: no part of ours is to blame."""
        now_s = self.clock()
        if now_s - self._told_of_all_s > _TOGETHER_S:
            self._told_of_all_s = now_s
            self.emit(TasksCancelled())

    def rose(self, part: str, restarts: Restarts) -> None:  # noqa: ARG002 - for whoever listens
        """A part runs again, or has been stopped."""
        if self._down.pop(restarts, None) is not None:
            self.on_down()

    def began(self, body: Ends) -> None:
        """A body runs; it ends with us."""
        self._bodies[body] = None
        if self._is_over:
            body.end()

    def end(self) -> None:
        """The task scope has ended: so do the bodies, and nothing begins any more."""
        self._is_over = True
        for body in list(self._bodies):
            with suppress(RuntimeError):  # the loop may be closed, and its tasks with it
                body.end()
        for over in list(self._errands):
            over()  # a stranger cancelled it before it began

    def fail(self, error: Exception) -> None:
        """End the node with this cause; the first one counts.  Also from a callback of the loop."""
        if self._cause is None:
            self._cause = error
            self._failed.set()

    def begin(self) -> None:
        """From here on `fail()` is heeded."""
        self.tasks.start_soon(self._wait_for_failure)

    async def _wait_for_failure(self) -> None:
        await unmoved(self._failed.wait)
        assert self._cause is not None
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
        self._check_goes_on()
        ready = anyio.Event()
        self._ended[actor.name] = ended = anyio.Event()
        self.log_context.run(self.tasks.start_soon, self._keep, actor, ready, ended, on_failed)
        await ready.wait()
        self._check_goes_on()

    def _check_goes_on(self) -> None:
        if self._cause is not None or self._is_over:
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
        restarts = self.restarts()
        pauses: list[float | None] = []  # before its next start, once it has crashed

        def fall(crash: BaseException) -> None:
            if not pauses and not isinstance(crash, KeyboardInterrupt):
                pauses.append(self.fell(actor.name, crash, restarts, on_failed))

        def fallen(crash: BaseException) -> float | None:
            fall(crash)
            return pauses.pop()

        actor.on_crash = fall
        self._actors[actor] = None
        status = _Ready(self, actor.name, restarts, ready)
        try:
            await self._repeat(actor.name, partial(actor.run, task_status=status), fallen)
        finally:
            self._actors.pop(actor, None)
            actor.stop()  # one that is not run again answers whoever waits
            if self._cause is None:
                self.rose(actor.name, restarts)
            ready.set()
            if self._ended.get(actor.name) is ended:
                del self._ended[actor.name]
            ended.set()

    def errand(self, name: str, work: Work, on_over: Callable[[], object] = lambda: None) -> None:
        """Do something that ends by itself, and outlives whoever asks for it.

        `on_over` is called when it was done, or will not be any more.

        Raises:
            NotRunning: Some part has ended for good, and the node with it.
        """
        self._check_goes_on()
        restarts = self.restarts()

        async def run() -> None:
            self.rose(name, restarts)
            await work()

        def over() -> None:
            if over in self._errands:
                del self._errands[over]
                on_over()

        async def do() -> None:
            try:
                await self._repeat(name, run, lambda crash: self.fell(name, crash, restarts))
            finally:
                over()

        self._errands[over] = None
        self.log_context.run(partial(self.tasks.start_soon, do, name=name))

    async def _repeat(
        self, part: str, run: Work, fallen: Callable[[BaseException], float | None]
    ) -> None:
        """Run a part until it ends as it should, or too often as it should not."""
        cancels = strays()
        while True:
            crash = await _crash_of(part, run)
            if crash is None:
                return
            pause_s: float | None = 0.0
            if isinstance(crash, KeyboardInterrupt):  # on trio it comes wherever we are
                self.on_interrupt(crash)
            else:
                pause_s = fallen(crash)
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


async def _crash_of(part: str, run: Work) -> BaseException | None:
    """Run a part until it ends; return what ended it, None if it ended as it should."""
    try:
        await run()
    except GeneratorExit:
        raise  # the loop is thrown away
    except BaseException as error:
        if not is_cancellation(error):
            return error
        if is_asked_for():
            raise
        return PartEnded(part=part, problem=BY_STRANGER)
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
            self.rose(part, restarts)  # nobody waits for it any more
        return pause_s

    def rose(self, part: str, restarts: Restarts) -> None:
        """As the supervisor's."""
        self.supervisor.rose(part, restarts)

    def began(self, body: Ends) -> None:
        """As the supervisor's."""
        self.supervisor.began(body)


def _unasked(part: str, error: BaseException) -> PartEnded:
    ended = PartEnded(part=part, problem=told(error))
    ended.__cause__ = error
    return ended


@attrs.frozen
class _Ready(TaskStatus[None]):
    """Tells `start` that the actor takes messages; again after each restart."""

    supervisor: Supervisor
    name: str
    restarts: Restarts
    event: anyio.Event

    def started(self, value: None = None) -> None:  # noqa: ARG002 - anyio's signature
        """Say so."""
        self.supervisor.rose(self.name, self.restarts)
        self.event.set()
