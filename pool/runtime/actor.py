"""One mailbox, one task, one owner of state: the base of everything that runs on the event loop.

    tell() --> mailbox --> handle() --> effects        what waits: spawn() --> ... --> put()

A restart after a crash is the same object run again: others hold it, and its mailbox goes on.
Restart and stop policy live in the supervisor, not here.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Coroutine, Hashable
from functools import partial
from typing import Any, Generic, Literal, TypeVar, TypeVarTuple

import anyio
import anyio.lowlevel
import attrs
from anyio.abc import TaskGroup, TaskStatus

from pool.errors import PartEnded
from pool.redis.io.loops import (
    BY_STRANGER,
    Waiter,
    current_loop,
    is_asked_for,
    is_cancellation,
    strays,
)

M = TypeVar("M")
Ts = TypeVarTuple("Ts")


@attrs.define(eq=False, kw_only=True)
class Actor(Generic[M]):
    """Base of everything that runs.

    `handle()` is a plain function on purpose: between two messages nothing else can touch our
    fields, and a dead network cannot make us deaf.  Work that waits goes to `spawn()` and comes
    back as a message.
    """

    name: str
    inbox_max: int = 256
    state: Literal["new", "running", "stopping", "crashed", "ended"] = attrs.field(
        init=False, default="new"
    )
    # A deque and an event instead of a memory stream: in a burst a message costs 0.6 us instead
    # of 15, and an actor that never ran leaves nothing that must be closed.
    _inbox: deque[M] = attrs.field(init=False, factory=deque)
    _latest: dict[Hashable, M] = attrs.field(init=False, factory=dict)
    _bell: Waiter | None = attrs.field(init=False, default=None)
    _is_resting: bool = attrs.field(init=False, default=False)  # our task waits for the bell
    _is_awake: bool = attrs.field(init=False, default=False)  # our task runs, and no other
    _spawned: deque[Callable[[], object]] = attrs.field(init=False, factory=deque)
    _children: TaskGroup | None = attrs.field(init=False, default=None)
    _crash: BaseException | None = attrs.field(init=False, default=None)
    # Told at once: what the actor had begun may take long to end, a handler in a thread above all.
    on_crash: Callable[[BaseException], object] = attrs.field(init=False, default=lambda _: None)

    def __attrs_post_init__(self) -> None:
        assert 0 < self.inbox_max < math.inf  # an unbounded inbox only hides overload

    @property
    def is_unwoken(self) -> bool:
        """Whether something waits for our task, and nobody has woken it: whoever told was
        interrupted, by a `MemoryError` or KeyboardInterrupt."""
        has_any = self._inbox or self._latest or self._spawned
        return bool(has_any and self._is_resting and self._bell and not self._bell.is_taken())

    def look(self) -> None:
        """Take that for a crash."""
        if self.is_unwoken:
            self._crash_by(PartEnded(part=self.name, problem="it was told, and not woken"))

    @property
    def is_crashed(self) -> bool:
        """Whether it has crashed, and does not run again yet."""
        return self._crash is not None or self.state == "crashed"

    def tell(self, message: M) -> bool:
        """Post without waiting, from the event loop's thread; False if it was not taken.

        That is when the inbox is full, or the actor is stopping or has ended: whoever tells then
        answers whoever waits.  Messages told before the start, or between a crash and the restart,
        are kept for it.
        """
        return len(self._inbox) < self.inbox_max and self.put(message)

    def put(self, message: M) -> bool:
        """Post what is bounded by its sender, so that no inbox need refuse it.

        The answer to what the actor has asked for itself; what is told once per lane and renewal.
        """
        if self.state in ("stopping", "ended"):
            return False
        self._inbox.append(message)
        self._ring()
        return True

    def tell_latest(self, about: Hashable, message: M) -> bool:
        """Post in the place of what was told last about the same, if that still waits."""
        if self.state in ("stopping", "ended"):
            return False
        self._latest[about] = message
        self._ring()
        return True

    def receive(self, message: M) -> bool:
        """Handle a message in the caller's stack if nothing else waits or runs, else as `tell()`.

        Saves waking our task, which is a turn of the loop later.  For what callbacks of the loop
        bring; not for one actor's message to another, but where a post is passed on.
        """
        if len(self._inbox) >= self.inbox_max or self.state in ("stopping", "ended"):
            return False
        self.deliver(message)
        return True

    def deliver(self, message: M) -> None:
        """Likewise, for what `put()` is for."""
        if not self._is_resting or self._inbox or self.state != "running":
            self.put(message)
            return
        self._is_resting = False
        try:
            self.handle(message)
        except BaseException as error:  # noqa: BLE001 - run() raises it
            self._crash_by(error)
        else:
            self._is_resting = True

    def attempt(self, do: Callable[[*Ts], object], *args: *Ts) -> None:
        """Do something in the stack of some caller, who is not to blame for what it raises.

        While we are down nothing is done: `begin` does that.
        """
        if self.state == "running":
            try:
                do(*args)
            except Exception as error:  # noqa: BLE001 - run() raises it
                self._crash_by(error)

    def stop(self) -> None:
        """Take no more messages; those already in the inbox are still handled.  Twice is fine."""
        if self.state == "running":
            self.state = "stopping"
            self._ring()
        elif self.state in ("new", "crashed"):
            self.state = "ended"
            self.ended(None)

    def spawn(self, work: Callable[[*Ts], Coroutine[Any, Any, Any]], *args: *Ts) -> None:
        """Run `work` beside the mailbox; it is cancelled when the actor ends.

        What it raises ends the actor, as if `handle` had raised it.  Nothing is begun while the
        actor does not run, since who calls in a task of his own may come between a crash and the
        restart, or after the end: `begin()` forgets what was under way and looks anew.
        """
        if self._children is None or self._crash is not None:
            return
        start = self._children.start_soon
        name = f"{self.name}/{work.__name__}"
        if self._is_awake:
            start(self._watched, work, args, name=name)
        else:
            # Our own task starts it: a callback of the loop, in whose stack we or whoever calls us
            # may be, cannot start tasks on asyncio.
            self._spawned.append(partial(start, self._watched, work, args, name=name))
            self._ring()

    @property
    def is_over(self) -> bool:
        """Whether what was spawned is being cancelled, or has been."""
        return self._children is None or self._children.cancel_scope.cancel_called

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Handle messages until `stop()`; what `handle` raises ends the actor and is raised here.

        After such an end it may be run again.  After `stop()` it returns at once.  Whatever else
        ends it, but a cancel scope of the caller's, is a crash too: see `PartEnded`.
        """
        if self.state == "ended":
            task_status.started()
            return
        assert self.state in ("new", "crashed"), f"{self.name} runs already"
        self.state, is_asked = "running", False
        try:
            async with anyio.create_task_group() as self._children:
                await self._watched(self._loop, (task_status,))
                self._children.cancel_scope.cancel()
            state: str = self.state  # stop() has changed it, which mypy cannot see
            is_asked = state == "stopping"
        except BaseException as error:
            is_asked = is_cancellation(error) and is_asked_for()
            if is_asked:
                raise
            self._crash = self._crash or error
        finally:
            crash, self._crash, self._children = self._crash, None, None
            if crash is None and not is_asked:
                # A child that is cancelled before it begins ends its group without a word.
                crash = PartEnded(part=self.name, problem="it returned")
            self._spawned.clear()
            self.state = "ended" if crash is None else "crashed"
            self.ended(crash)
        if crash is not None:
            raise crash

    def begin(self) -> None:
        """Start, or start again: what a crash left half done is forgotten here."""

    def handle(self, message: M) -> None:
        raise NotImplementedError

    def ended(self, crash: BaseException | None) -> None:
        """Answer those who wait, as nobody else will; called however the actor ended."""

    async def _loop(self, task_status: TaskStatus[None]) -> None:
        cancels, waiter = strays(), current_loop().waiter
        self._turn(self.begin)
        task_status.started()
        while True:
            self._turn(self._handle_all)
            if self.state == "stopping" and not (self._inbox or self._latest):
                return
            try:
                if self._inbox or self._latest or self._spawned:
                    await anyio.lowlevel.checkpoint()
                else:
                    self._bell, self._is_resting = waiter(), True
                    await self._bell.wait()
            except anyio.get_cancelled_exc_class():
                if is_asked_for():
                    raise
                await cancels.absorb()
            finally:
                self._is_resting = False

    def _turn(self, fn: Callable[[], object]) -> None:
        """Do something in our own task, without a pause."""
        self._is_awake = True
        try:
            fn()
        finally:
            self._is_awake = False

    def _handle_all(self) -> None:
        while self._spawned:
            self._spawned.popleft()()
        # Only what is there now: handlers that tell themselves must not starve the others.
        for about in list(self._latest):
            self.handle(self._latest.pop(about))
        for _ in range(len(self._inbox)):
            self.handle(self._inbox.popleft())

    def _ring(self) -> None:
        if self._bell is not None:
            self._bell.take(None)

    async def _watched(
        self, work: Callable[[*Ts], Coroutine[Any, Any, Any]], args: tuple[*Ts]
    ) -> None:
        """Run `work`; its error is kept and ends the actor, and no exception group hides it."""
        try:
            await work(*args)
        except GeneratorExit:
            raise  # the loop is thrown away
        except BaseException as error:
            if not is_cancellation(error):
                self._crash_by(error)
            elif is_asked_for():
                raise
            else:
                self._crash_by(PartEnded(part=self.name, problem=BY_STRANGER))

    def _crash_by(self, error: BaseException) -> None:
        is_first = self._crash is None
        self._crash, self._is_resting = self._crash or error, False
        assert self._children is not None
        self._children.cancel_scope.cancel()
        if is_first:
            self.on_crash(error)
