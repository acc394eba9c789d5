"""What is spelled differently on asyncio and on trio, or dear in anyio: the only module which knows
either of them.

post     from any thread          later     a timer without a task of ours
waiter   a place for one reply    readable  a socket that is watched from one wait to the next
strays   cancellations that no scope asked for, which on asyncio come from whoever knows a task
let_go   of a socket, before it is closed
spawn    a task that belongs to no group
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from traceback import walk_tb
from typing import Any, Final, Protocol, Self, TypeAlias, TypeVar

import anyio
import attrs
import sniffio

from pool.errors import WrongLoop
from pool.redis.connection import Reply

T = TypeVar("T")


class Waiter(Protocol):
    """A place for one reply.  A waiter that nobody waits for any more takes it all the same."""

    def take(self, reply: Reply) -> None:
        """Let `wait()` return this, on the loop's thread; what comes second is dropped.

        If it raises, whatever it is, nothing was taken, and it can be called again.
        """

    def is_taken(self) -> bool:
        """Whether it has one, or was cancelled."""

    def wait(self) -> Awaitable[Reply]:
        """Wait for the reply.  Once, by one task."""


Read: TypeAlias = Callable[[socket.socket], "int | None"]  # None: there was not enough


class Readable(Protocol):
    """Reads from one socket as soon as there is something, its end included."""

    def read(self, fn: Read) -> Awaitable[int]:
        """Return what `fn` returns or raises; it is tried at each arrival.  For one task."""

    def close(self) -> None:
        """Let go of the socket.  Before it is closed: its number may be another's at once."""


class Loop(Protocol):
    """What is spelled differently on each event loop."""

    def post(self, fn: Callable[..., object], *args: Any) -> bool:
        """Run `fn` soon, from any thread; False when the loop is gone."""

    def later(self, delay_s: float, fn: Callable[[], object]) -> Callable[[], object]:
        """Run `fn` after a delay, at once if that is past, without a task of ours.

        Calling the result takes that back.
        """

    def close(self) -> None:
        """Take back every timer that this object has made."""

    def waiter(self) -> Waiter:
        """Return a new waiter: 5 to 8 us cheaper than an `anyio.Event`, which is the half of what
        a call costs the loop (measured: 12 against 4 us on asyncio, 13 against 8 on trio)."""


Invoker: TypeAlias = Callable[[Callable[[], object]], object]  # calls, and tells whom it should


class TaskLoop(Loop, Protocol):
    """A loop that also runs tasks; a simulation drives its bodies by itself."""

    def again(self, run: Invoker) -> TaskLoop:
        """Return the same loop with timers of its own, whose callbacks are run by that.

        One that raised would be a log line on asyncio, and the end of the program on trio.
        """

    def readable(self, found: socket.socket) -> Readable:
        """Return what reads from this socket; it must not block."""

    def spawn(
        self, work: Callable[[], Coroutine[Any, Any, None]], on_over: Callable[[], object]
    ) -> object:
        """Begin a task that belongs to nobody, soon; whoever needs it holds what this returns.

        From callbacks, too, and with no task group around: a pipeline is opened before a node's,
        and another one by whoever first calls for its part of a cluster.  `on_over` is called when
        it has ended, also without having begun: a stranger may cancel it before its first step.
        """


class Strays(Protocol):
    """The cancellations of one task that no cancel scope asked for.

    On asyncio whoever knows a task can cancel it, and a handler knows the one that runs it.
    """

    def has_any(self) -> bool:
        """Whether one came, delivered or not, and was not taken back."""

    async def absorb(self) -> None:
        """Be as if none had come; raises only the cancellation that a scope around us asked for."""


def _call(fn: Callable[[], object]) -> object:
    return fn()


class _AsyncioWaiter(asyncio.Future[Reply]):
    """A future that is done once its task is sure to be woken.

    asyncio's own is done first: if `call_soon` raises then (a deep stack, no memory), its task
    sleeps for ever, and cannot even be cancelled.
    """

    _wake: Callable[..., object] | None  # of the task that waits
    _context: Context | None
    __slots__ = ("_context", "_wake")

    def add_done_callback(
        self, fn: Callable[[Self], object], /, *, context: Context | None = None
    ) -> None:
        self._wake, self._context = fn, context

    def _wake_soon(self) -> None:
        if self._wake is not None:
            self.get_loop().call_soon(self._wake, self, context=self._context)
            self._wake = None

    def take(self, reply: Reply) -> None:
        if not self.done():  # it is done when its caller was cancelled
            self._wake_soon()
            self.set_result(reply)

    def cancel(self, msg: Any | None = None) -> bool:
        if self.done():
            return False
        self._wake_soon()
        return super().cancel(msg)

    def is_taken(self) -> bool:
        return self.done()

    def wait(self) -> Awaitable[Reply]:
        return self


class _AsyncioReadable:
    """A reader that stays between two waits: to add and to remove it costs as much as to read.

        off --read()--> waited --event, and there was enough--> kept
                          ^                                       | read(): waited
                          +---------------------------------------+ event: off

    Who waits for nothing must not be told for ever, in each turn of the loop: of stray bytes, or
    of an end, which nobody reads before the connection is used again.  So the first such event
    takes the reader away.

    It reads in the callback, as asyncio's own `sock_recv` does: a task has its turn after the
    selector was asked once more, which would tell of the same bytes again.  A wait that was
    cancelled is none any more; `close()` leads to off from everywhere.
    """

    __slots__ = ("_fn", "_found", "_is_on", "_loop", "_waiter")

    def __init__(self, loop: asyncio.AbstractEventLoop, found: socket.socket) -> None:
        self._loop = loop
        self._found = found
        self._fn: Read
        self._waiter: asyncio.Future[int]
        self._is_on = False

    def read(self, fn: Read) -> Awaitable[int]:
        self._fn, self._waiter = fn, self._loop.create_future()
        if not self._is_on:
            self._loop.add_reader(self._found, self._on_event)
            self._is_on = True
        return self._waiter

    def close(self) -> None:
        if self._is_on:
            self._is_on = False
            with suppress(RuntimeError):  # the loop is closed, and has forgotten all
                self._loop.remove_reader(self._found)

    def _on_event(self) -> None:
        if self._waiter.done():
            self.close()
            return
        try:
            size = self._fn(self._found)
        except Exception as error:  # noqa: BLE001 - his who waits, whatever it is
            self._waiter.set_exception(error)
        else:
            if size is not None:
                self._waiter.set_result(size)


@attrs.frozen
class _Asyncio:
    loop: asyncio.AbstractEventLoop
    run: Invoker = _call
    timers: set[asyncio.TimerHandle] = attrs.field(init=False, factory=set)

    def post(self, fn: Callable[..., object], *args: Any) -> bool:
        try:
            self.loop.call_soon_threadsafe(fn, *args)
        except RuntimeError:  # closed
            return False
        return True

    def later(self, delay_s: float, fn: Callable[[], object]) -> Callable[[], object]:
        timer: asyncio.TimerHandle | None = None  # it knows `fire`: a cycle, while it is to come

        def fire() -> None:
            nonlocal timer
            if timer is not None:
                self.timers.discard(timer)
                timer = None
            self.run(fn)

        def cancel() -> None:
            nonlocal timer
            if timer is not None:
                self.timers.discard(timer)
                timer.cancel()
                timer = None

        timer = self.loop.call_later(delay_s, fire)
        self.timers.add(timer)
        return cancel

    def close(self) -> None:
        for timer in self.timers:
            timer.cancel()
        self.timers.clear()

    def waiter(self) -> Waiter:
        waiter = _AsyncioWaiter(loop=self.loop)
        waiter._wake = None  # an `__init__` would cost twice as much
        return waiter

    def readable(self, found: socket.socket) -> Readable:
        return _AsyncioReadable(self.loop, found)

    def again(self, run: Invoker) -> _Asyncio:
        return _Asyncio(self.loop, run)

    def spawn(
        self, work: Callable[[], Coroutine[Any, Any, None]], on_over: Callable[[], object]
    ) -> object:
        task = self.loop.create_task(work())
        task.add_done_callback(lambda _: self.run(on_over))
        return task


@attrs.frozen
class _AsyncioStrays:
    task: asyncio.Task[Any]
    before: int  # that many had been asked for when we began

    def has_any(self) -> bool:
        return self.task.cancelling() > self.before

    async def absorb(self) -> None:
        while True:
            while self.task.cancelling() > self.before:
                self.task.uncancel()
            try:
                # Before Python 3.13 `uncancel` leaves what was not delivered: it comes here.
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                if is_asked_for():
                    raise
            else:
                if not self.has_any():
                    return


class _TrioWaiter:
    __slots__ = ("_is_taken", "_lowlevel", "_reply", "_task")

    def __init__(self, lowlevel: Any) -> None:
        self._lowlevel = lowlevel
        self._task: Any = None
        self._reply: Reply = None
        self._is_taken = False

    def take(self, reply: Reply) -> None:
        if self._is_taken:
            return
        if self._task is not None:
            self._lowlevel.reschedule(self._task)
        self._reply, self._is_taken, self._task = reply, True, None

    def is_taken(self) -> bool:
        return self._is_taken

    async def wait(self) -> Reply:
        if not self._is_taken:
            self._task = self._lowlevel.current_task()
            await self._lowlevel.wait_task_rescheduled(self._abort)
        return self._reply

    def _abort(self, _: object) -> Any:
        self._task = None
        return self._lowlevel.Abort.SUCCEEDED


@attrs.frozen
class _TrioReadable:
    """trio keeps registered by itself what it watches."""

    lowlevel: Any
    found: socket.socket

    async def read(self, fn: Read) -> int:
        while True:
            await self.lowlevel.wait_readable(self.found)
            if (size := fn(self.found)) is not None:
                return size

    def close(self) -> None:
        return  # between two waits nothing of ours is there


class _TrioStrays:
    def has_any(self) -> bool:
        return False

    async def absorb(self) -> None:
        return  # who raises the cancellation of another scope has it caught; nothing is pending


@attrs.frozen
class _Trio:
    trio: Any  # the module: trio is optional, and this class is used only where it runs
    token: Any
    run: Invoker = _call
    timers: set[Any] = attrs.field(init=False, factory=set)  # cancel scopes

    def post(self, fn: Callable[..., object], *args: Any) -> bool:
        try:
            self.token.run_sync_soon(fn, *args)
        except self.trio.RunFinishedError:
            return False
        return True

    def later(self, delay_s: float, fn: Callable[[], object]) -> Callable[[], object]:
        scope = self.trio.CancelScope()

        async def nap() -> None:
            with scope:
                # What is overdue runs at once.  trio refuses a negative delay, and an error in a
                # system task would end the program.
                await self.trio.sleep(max(delay_s, 0.0))
                self.timers.discard(scope)
                self.run(fn)
            self.timers.discard(scope)

        self.timers.add(scope)
        self.trio.lowlevel.spawn_system_task(nap)
        cancel: Callable[[], object] = scope.cancel
        return cancel

    def close(self) -> None:
        for scope in list(self.timers):
            scope.cancel()

    def waiter(self) -> Waiter:
        return _TrioWaiter(self.trio.lowlevel)

    def readable(self, found: socket.socket) -> Readable:
        return _TrioReadable(self.trio.lowlevel, found)

    def again(self, run: Invoker) -> _Trio:
        return _Trio(self.trio, self.token, run)

    def spawn(
        self,
        work: Callable[[], Coroutine[Any, Any, None]],
        on_over: Callable[[], object],  # noqa: ARG002 - strangers cancel no task of trio's
    ) -> object:
        return self.trio.lowlevel.spawn_system_task(work, context=copy_context())


def current_loop() -> TaskLoop:
    """Return the event loop that runs the present task.

    Raises:
        sniffio.AsyncLibraryNotFoundError: No task runs; it may be a callback of asyncio's.
    """
    if sniffio.current_async_library() == "trio":
        import trio

        return _Trio(trio, trio.lowlevel.current_trio_token())
    return _Asyncio(asyncio.get_running_loop())


def door() -> Callable[[], object]:
    """Return what refuses whoever calls it elsewhere than on the present event loop: `WrongLoop`.

    Futures, events and wake-ups are of one loop and its thread.  Called from another one they do
    not fail: they are lost, or wake nobody, and what waits for them waits for ever.
    """
    if sniffio.current_async_library() != "trio":
        running, mine = asyncio._get_running_loop, asyncio.get_running_loop()

        def check() -> None:
            if running() is not mine:  # each thread has its own
                raise WrongLoop

        return check

    import trio

    token = trio.lowlevel.current_trio_token

    def check_token() -> None:
        try:
            is_here = token() is here
        except RuntimeError:
            is_here = False
        if not is_here:
            raise WrongLoop

    here = token()
    return check_token


def strays() -> Strays:
    """Return what watches the present task for cancellations which no scope asked for."""
    if sniffio.current_async_library() == "trio":
        return _TrioStrays()
    task = asyncio.current_task()
    assert task is not None
    return _AsyncioStrays(task, task.cancelling())


async def unmoved(wait: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Wait, however often a stranger cancels the present task; then it begins anew."""
    cancels = strays()
    while True:
        try:
            return await wait()
        except anyio.get_cancelled_exc_class():
            if is_asked_for():
                raise
            await cancels.absorb()


def scopes() -> Callable[[], anyio.CancelScope]:
    """Return what makes cancel scopes of the present event loop.

    `anyio.CancelScope()` looks each time for the loop, and then initialises the scope twice.
    """
    return type(anyio.CancelScope())


def after_task() -> Callable[[Callable[[], object]], object]:
    """Return what has a function called once the present task has ended, however it did.

    On trio nothing: there no task ends before what it has opened, and strangers end none.
    """
    if sniffio.current_async_library() == "trio":
        return lambda _: None
    task = asyncio.current_task()
    assert task is not None
    return lambda fn: task.add_done_callback(lambda _: fn())


def let_go(found: socket.socket) -> None:
    """Forget a socket that was waited for, before it is closed.

    trio keeps what it has watched registered, by its number, for as long as any copy of it is open.
    """
    with suppress(sniffio.AsyncLibraryNotFoundError, RuntimeError):  # the loop has ended
        if sniffio.current_async_library() == "trio":
            import trio

            trio.lowlevel.notify_closing(found)


def is_cancellation(error: BaseException) -> bool:
    """Whether it is what cancels tasks on this event loop; `isinstance` would ask the error."""
    try:
        is_on_trio = sniffio.current_async_library() == "trio"
    except sniffio.AsyncLibraryNotFoundError:  # in a callback of asyncio's, or in no loop
        is_on_trio = False
    if is_on_trio:
        import trio

        return issubclass(type(error), trio.Cancelled)
    return issubclass(type(error), asyncio.CancelledError)


BY_STRANGER: Final = "a stranger cancelled its task"  # of a part of ours: why it has ended


def is_asked_for() -> bool:
    """Whether a cancel scope around us is cancelled: any other cancellation is a stranger's."""
    return anyio.current_effective_deadline() == -math.inf


# --- exits ------------------------------------------------------------------------------------


class _TellingLoop(asyncio.SelectorEventLoop):
    """Tells of an exit that a task or callback asks for; asyncio lets it out of the whole loop."""

    def __init__(self, on_exit: Callable[[Context], object]) -> None:
        super().__init__()
        self._on_exit = on_exit

    def run_forever(self) -> None:
        try:
            super().run_forever()
        except (SystemExit, KeyboardInterrupt) as error:
            # asyncio tells nobody whose it was: only its own frame has the handle that it ran.
            for frame, _ in walk_tb(error.__traceback__):
                context = getattr(frame.f_locals.get("handle"), "_context", None)
                if isinstance(context, Context):
                    self._on_exit(context)
            raise


def exits_told(backend: str, on_exit: Callable[[Context], object]) -> dict[str, Any]:
    """Return options for `anyio.run`: `on_exit` gets the context of a task that raises SystemExit
    or KeyboardInterrupt.

    On trio there are none: it passes the exit to the nursery of the task.
    """
    return {"loop_factory": partial(_TellingLoop, on_exit)} if backend == "asyncio" else {}
