r"""A body on the event loop: one plain task for one connection; and the lives of any body.

    waits for | the bell     a waiter of the loop, which `ring()` fills
              | its socket   until something is read, or, rarely, there is room to write; what
              |              comes late shuts the socket
              | a thread     which looks a name up, connects and shakes hands with TLS

The time that an exchange has is kept by one timer per connection, armed anew only for an earlier
deadline: a cancel scope around each wait would cost as much as the wait.

A wait lasts as long as the line stands still, up to the end of the exchange.  The line has moved
when something was read, when there was room to write after there was none, and when the system
holds less of what we wrote: that alone tells of a large command which it took all at once.

A crash is told, and the body begins anew after a pause, in a task or in a thread (`supervised`):

    running --asked to close--> ended
       |  \--raises, or returns unasked--> down --pause--> running again, on a new connection
       |                                     \-- too often in a minute: it ends by its error, and
       |                                         whoever cares for it ends by that, too
       \--a callback of it raises: told likewise, and nothing else of it stops

How long the pause is, and what too often means, say whoever cares: a node's supervisor, most often.
"""

from __future__ import annotations

import array
import select
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

import anyio
import attrs

from pool.core.retry import Restarts
from pool.errors import PartEnded
from pool.redis.connection import Connection
from pool.redis.io.body import ConnectionIO, Handle, OnEnd
from pool.redis.io.loops import BY_STRANGER, Read, Readable, TaskLoop, Waiter, is_asked_for, strays
from pool.redis.log import Log
from pool.redis.url import Url

try:
    import fcntl
    import termios
except ImportError:  # not a Unix: no system tells what it holds
    _HELD = 0
else:
    _HELD = termios.TIOCOUTQ

_log = Log("pool")

LoopBody: TypeAlias = Callable[[ConnectionIO], Coroutine[Any, Any, None]]

_NEVER: Final = float("inf")
_LARGE_BYTES: Final = 65_536  # the system takes it at once, and a slow line needs a while for it
_LOOKS: Final = 4  # ... in the time of a line that stands still


class Task(Handle):
    """The handle of one body; all of it belongs to the loop's thread."""

    def __init__(
        self,
        url: Url,
        name: str,
        loop: TaskLoop,
        clock: Callable[[], float],
        guard: Guard,
        on_end: OnEnd | None,
    ) -> None:
        super().__init__(on_end)
        self._name = name
        self._loop = loop
        self._guard = guard
        self._connection = _TaskConnection(url, name, loop, clock)
        self.body_io: ConnectionIO = ConnectionIO(self._connection, _Bell(loop), self._post, clock)
        self._scope: anyio.CancelScope | None = None
        self._task: object = None  # on asyncio somebody has to hold it
        self._has_begun = False
        self._is_struck = False  # by a stranger, before the first step

    def start(self, body: LoopBody) -> None:
        """Begin, soon."""

        def on_over() -> None:
            if not self._has_begun:  # nobody has heard of it: in another task it is told
                self._is_struck = True
                self.start(body)

        self._task = self._loop.spawn(lambda: self._run(body), on_over)

    async def aclose(self, budget_s: float) -> bool:
        if not await super().aclose(budget_s) and self._scope is not None:
            self._scope.cancel()  # it waits for a thread that hangs
            with anyio.CancelScope(shield=True):
                await self._over.wait()
        return self.state != "running"

    def told(self, body: LoopBody) -> LoopBody:
        """Return a body to which a stranger's cancellation is a crash like any other."""

        async def run(body_io: ConnectionIO) -> None:
            cancels = strays()
            try:
                if not self._is_struck:
                    return await body(body_io)
                self._is_struck = False
            except anyio.get_cancelled_exc_class():
                if is_asked_for():
                    raise
                await cancels.absorb()
            raise PartEnded(part=self._name, problem=BY_STRANGER)

        return run

    async def _run(self, body: LoopBody) -> None:
        self._has_begun = True
        error: BaseException | None = PartEnded(part=self._name, problem="its task was cancelled")
        try:
            with anyio.CancelScope() as self._scope:
                await body(self.body_io)
            error = None
        except Exception as caught:  # noqa: BLE001  (passed on below, whatever it is)
            error = caught
        finally:
            self._connection.end()
            self._guard.run(self._end, error)

    def _post(self, fn: Callable[..., object], *args: Any) -> bool:
        if self.state == "ended":
            return False
        self._guard.run(fn, *args)
        return True


class _Bell:
    """A bell whose waits are those of a task."""

    def __init__(self, loop: TaskLoop) -> None:
        self._loop = loop
        self._waiter: Waiter | None = None
        self._is_rung = False

    def ring(self) -> None:
        self._is_rung = True
        if self._waiter is not None:
            self._waiter.take(None)

    async def wait(self) -> None:
        if not self._is_rung:
            self._waiter = self._loop.waiter()
            try:
                await self._waiter.wait()
            finally:
                self._waiter = None
        self._is_rung = False

    async def sleep(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await self.wait()
        self._is_rung = False


class _TaskConnection(Connection):
    """A connection that never blocks the loop."""

    def __init__(self, url: Url, name: str, loop: TaskLoop, clock: Callable[[], float]) -> None:
        super().__init__(url, name, clock)
        self._loop = loop
        self._readable: Readable | None = None  # of the present socket
        self._deadline_s = _NEVER  # of the present wait
        self._held_bytes = 0  # of what we wrote, when we looked last; 0: it is not looked at
        self._is_reading = False
        self._timer_s = _NEVER
        self._cancel_timer: Callable[[], object] | None = None

    def end(self) -> None:
        super().end()
        if self._cancel_timer is not None:
            self._cancel_timer()
            self._cancel_timer = None

    def close(self) -> None:
        if self._readable is not None:
            self._readable.close()
            self._readable = None
        super().close()

    def abandon(self) -> None:
        self._readable = None  # what watches it is the parent's, who shares it with the child
        super().abandon()

    async def _apart(
        self, fn: Callable[..., Any], *args: Any, discard: Callable[[Any], object]
    ) -> Any:
        waiter, is_awaited = self._loop.waiter(), True
        arrived: list[Any] = []

        def work() -> None:
            value, error = None, None
            try:
                value = fn(*args)
            except Exception as caught:  # noqa: BLE001  (raised below)
                error = caught
            if not self._loop.post(arrive, value, error) and error is None:
                discard(value)

        def arrive(value: Any, error: Exception | None) -> None:
            thread.join()  # this was its last word: microseconds are left of it
            if is_awaited:
                arrived.extend([value] if error is None else ())
                waiter.take((value, error))
            elif error is None:
                discard(value)

        # Not a thread of anyio's: those are shared with whatever else waits for one, and a process
        # may end although a thread of ours hangs in a name look-up.
        thread = threading.Thread(target=work, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # there are too many: like a host that cannot be reached
            raise OSError(str(error)) from None
        try:
            value, failed = await waiter.wait()
        except BaseException:
            for each in arrived:  # a stranger's cancellation came between it and us
                discard(each)
            raise
        finally:
            is_awaited = False
        try:
            if failed is not None:
                raise failed
            return value
        finally:
            failed = None  # its traceback leads back here

    async def _send(self, found: socket.socket, packed: bytes) -> None:
        left, has_waited = memoryview(packed), False
        self._held_bytes = 0
        while left:
            try:
                size = found.send(left)
            except (BlockingIOError, ssl.SSLWantWriteError):
                self._held_bytes, has_waited = self._held(), True
                await self._ready(found, None)
            except ssl.SSLWantReadError:
                await self._ready(found, lambda _: 0)
            else:
                left, self._sent_bytes = left[size:], self._sent_bytes + size
                if has_waited:
                    self.moved_s, has_waited = self._clock(), False
        self._held_bytes = self._held() if len(packed) > _LARGE_BYTES else 0

    async def _receive(self, found: socket.socket) -> int:
        # The rest of a TLS record is nothing that the socket would tell of.
        is_there = isinstance(found, ssl.SSLSocket) and found.pending() > 0
        while True:
            try:
                if not is_there:
                    size = await self._ready(found, self._read)
                    if size:
                        self.moved_s = self._clock()
                    return size
                if (some := self._read(found)) is not None:
                    return some
                is_there = False
            except ssl.SSLWantWriteError:
                await self._ready(found, None)
                is_there = True

    def _read(self, found: socket.socket) -> int | None:
        try:
            size = found.recv_into(self._buffer)
        except (BlockingIOError, ssl.SSLWantReadError):
            return None
        self._deadline_s = _NEVER  # in time, if the timer goes off before the task has its turn
        return size

    async def _ready(self, found: socket.socket, read: Read | None) -> int:
        """Wait until that has read something; without it, until there is room to write."""
        left_s = self._left_s()
        self._deadline_s, self._is_reading = self._ends_s, read is not None
        self._watch(self._ends_s - left_s)
        try:
            if read is None:
                await anyio.wait_writable(found)
                return 0
            if self._readable is None:
                self._readable = self._loop.readable(found)
            return await self._readable.read(read)
        finally:
            self._deadline_s = _NEVER

    def _watch(self, now_s: float) -> None:
        """Look at the present wait when its time is up, and earlier if the line may move unseen."""
        look_s = self._deadline_s
        if self._held_bytes:
            look_s = min(look_s, now_s + self._timeout_s / _LOOKS)
        if look_s < self._timer_s:
            self._arm(look_s, now_s)

    def _arm(self, look_s: float, now_s: float) -> None:
        if self._cancel_timer is not None:
            self._cancel_timer()
        self._timer_s = look_s
        self._cancel_timer = self._loop.later(look_s - now_s, self._on_timer)

    def _on_timer(self) -> None:
        self._cancel_timer, self._timer_s = None, _NEVER
        if self._deadline_s == _NEVER:
            return
        now_s = self._clock()
        if self._held_bytes and (held := self._held()) < self._held_bytes:
            self._held_bytes, self.moved_s = held, now_s
            self._ends_s = self._deadline_s = min(self._until_s, now_s + self._timeout_s)
        if self._deadline_s > now_s:
            self._watch(now_s)
        elif not (self._is_reading and self._has_bytes()):
            self.shut()  # but if the loop hung, reply and deadline came together: in time

    def _held(self) -> int:
        """Return how many bytes of ours the other side has not yet taken, as far as is known."""
        held = array.array("i", [0])
        if self._socket is not None and _HELD:
            with suppress(OSError):
                fcntl.ioctl(self._socket, _HELD, held)
        return held[0]

    def _has_bytes(self) -> bool:
        with suppress(OSError):
            if self._socket is not None and hasattr(select, "poll"):
                poll = select.poll()
                poll.register(self._socket, select.POLLIN)
                return bool(poll.poll(0))
        return False


# --- the lives of a body ------------------------------------------------------------------------


class Ends(Protocol):
    """A body, as far as whoever cares for it needs to know it."""

    def end(self) -> object:
        """Have it end, soon; nobody waits for that."""


class Care(Protocol):
    """Whoever hears of crashes.  All of it is called on the event loop."""

    def restarts(self) -> Restarts:
        """Return what counts the crashes of one part."""

    def fell(self, part: str, error: BaseException, restarts: Restarts) -> float | None:
        """A part has crashed; return the pause before its next start.

        None: it was one too many, and the owner ends by it.
        """

    def rose(self, part: str, restarts: Restarts) -> object:
        """A part runs again."""

    def began(self, body: Ends) -> object:
        """A body runs: it shall end with whoever cares for it, however that ends."""


@attrs.define(eq=False)
class Guard:
    """Runs what is somebody else's: if that raises, it is told as a crash, and stops nobody."""

    part: str
    care: Care | None  # None: whoever uses it alone, as the command line does, finds it in the log
    _restarts: Restarts | None = attrs.field(init=False, default=None)

    def run(self, fn: Callable[..., object], *args: Any) -> None:
        """Call it."""
        try:
            fn(*args)
        except Exception as error:  # noqa: BLE001 - told, whatever it is
            self.tell(error)

    def tell(self, error: Exception) -> None:
        """Tell what was raised."""
        if self.care is None:
            _log.error("part.crashed", part=self.part, exc_info=error)
            return
        self._restarts = self._restarts or self.care.restarts()
        if self.care.fell(self.part, error, self._restarts) is not None:
            self.care.rose(self.part, self._restarts)


WaitCall: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


async def _wait(wait: WaitCall) -> None:
    await wait()


def supervised(
    name: str,
    body: Callable[[Any], Coroutine[Any, Any, None]],
    care: Care | None,
    unmoved: Callable[[WaitCall], Coroutine[Any, Any, None]] = _wait,
) -> Callable[[Any], Coroutine[Any, Any, None]]:
    """Return a body that lives as drawn above; without anybody who cares it is the same one.

    Between two lives it waits by `unmoved`, which no stranger can end.
    """
    if care is None:
        return body

    async def live(body_io: ConnectionIO) -> None:
        restarts = care.restarts()
        while True:
            crash: Exception = PartEnded(part=name, problem="it returned")
            try:
                await body(body_io)
            except Exception as error:  # noqa: BLE001 - told, and raised in the end
                crash = error
            if _is_closing(body_io):
                return
            body_io.connection.close()  # what is on its way there is nobody's by now
            told: list[float | None] = []

            def tell(crash: Exception = crash, told: list[float | None] = told) -> None:
                told.append(care.fell(name, crash, restarts))
                body_io.ring()

            if not body_io.post(tell):
                return  # there is no event loop any more
            while not told and not _is_closing(body_io):
                await unmoved(body_io.wait)
            if told == [None]:
                raise crash
            await unmoved(partial(body_io.pause, sum(filter(None, told))))
            if _is_closing(body_io) or not body_io.post(care.rose, name, restarts):
                return

    return live


def _is_closing(body_io: ConnectionIO) -> bool:
    return body_io.closing  # which others set meanwhile, as a checker of types cannot see
