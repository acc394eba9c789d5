"""A strand: one body on the event loop, resumed by the callback that brings what it waits for.

    parked for | the bell     wake() resumes it at once, in its caller's stack
               | its socket   a watch of the loop
               | a thread     which looks a name up, connects and shakes hands with TLS
               | a deadline   one timer, armed anew only for an earlier deadline

A task would be resumed a turn of the loop after each of these, and a thread (which this was) after
two changes of the thread that runs: an idle start took the half again as long.  The price is that a
handler that blocks the loop holds up the calls of its own node.

Only one thing is waited for at a time, and what comes from elsewhere, or too late, resumes nothing.
A post made while the loop itself resumed the strand runs at once; one made while some caller did
(it rang) runs soon: nobody who sends gets answers before he has the call behind him.
"""

from __future__ import annotations

import contextvars
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from types import coroutine
from typing import Any, Final

from pool.store.loops import Watch, WatchingLoop
from pool.store.port import Handle, OnEnd, WirePort
from pool.store.url import Url
from pool.store.wire import Wire

_LATE: Final = object()  # resumes whoever waited for something else until its deadline
_NEVER: Final = float("inf")
_AHEAD_MAX: Final = 16  # full buffers, 1 MB, that are read before others have a turn


@coroutine
def _parked() -> Generator[None, Any, Any]:
    return (yield)


class Strand(Handle):
    """The handle of one body; all of it belongs to the loop's thread."""

    def __init__(
        self,
        url: Url,
        name: str,
        loop: WatchingLoop,
        clock: Callable[[], float],
        on_end: OnEnd | None,
    ) -> None:
        super().__init__(on_end)
        self.name = name
        self.loop = loop
        self._clock = clock
        wire = _LoopWire(url, self, clock)
        self.port = WirePort(wire, _Bell(self), self._post, clock)
        self._body: Coroutine[Any, Any, None]
        # What a post runs shall find what is logged with everything else of this node.
        self._context = contextvars.copy_context()
        self._waits_for: object = None
        self._deadline_s = _NEVER
        self._timer_s = _NEVER
        self._cancel_timer: Callable[[], object] | None = None
        self._is_direct = False  # the loop resumed us, and nobody's call is in the stack
        self._posts: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()

    def start(self, body: Callable[[WirePort], Coroutine[Any, Any, None]]) -> None:
        """Begin, soon."""
        self._body = body(self.port)
        self._waits_for = self
        self.loop.post(self.resume, self)

    # --- the handle ---------------------------------------------------------------------------

    def die(self) -> None:
        self._waits_for = None
        super().die()

    # --- what the body waits for --------------------------------------------------------------

    async def park(self, what: object, deadline_s: float = _NEVER) -> Any:
        """Wait for `resume(what)`, and return its value; raises TimeoutError at the deadline."""
        self._waits_for, self._deadline_s = what, deadline_s
        if deadline_s < self._timer_s:
            self._arm(deadline_s)
        value = await _parked()
        if value is _LATE:
            raise TimeoutError
        return value

    async def nap(self, what: object, seconds: float) -> None:
        """Wait for `resume(what)`, but no longer than that."""
        with suppress(TimeoutError):
            await self.park(what, self._clock() + seconds)

    def is_parked_for(self, what: object) -> bool:
        """Say whether `resume(what)` would do anything."""
        return self._waits_for is what

    def resume(self, what: object, value: Any = None) -> None:
        """Go on, if that is what the body waits for.  From a callback of the loop."""
        if self._waits_for is what:
            self._context.run(self._step, value, is_direct=True)

    def resume_for_caller(self, what: object) -> None:
        """Likewise, with a call of some task, or of another strand, in the stack."""
        if self._waits_for is what:
            self._step(None, is_direct=False)

    async def apart(
        self, fn: Callable[..., Any], *args: Any, discard: Callable[[Any], object]
    ) -> Any:
        """Run what may block in a thread; what it returns to nobody is discarded."""
        ticket = object()

        def work() -> None:
            value, error = None, None
            try:
                value = fn(*args)
            except Exception as caught:  # noqa: BLE001  (raised in the body)
                error = caught
            if not self.loop.post(arrive, value, error) and error is None:
                discard(value)

        def arrive(value: Any, error: Exception | None) -> None:
            thread.join()  # this was its last word: microseconds are left of it
            if self.is_parked_for(ticket):
                self.resume(ticket, (value, error))
            elif error is None:
                discard(value)

        # Daemon: a process may end although a thread of ours hangs in a name look-up.
        thread = threading.Thread(target=work, name=self.name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # there are too many: like a host that cannot be reached
            raise OSError(str(error)) from None
        value, failed = await self.park(ticket)
        try:
            if failed is not None:
                raise failed
            return value
        finally:
            failed = None  # its traceback leads back here

    # --- driving ------------------------------------------------------------------------------

    def _step(self, value: Any, *, is_direct: bool) -> None:
        """Run the body until it parks again, or ends."""
        self._waits_for, self._deadline_s, self._is_direct = None, _NEVER, is_direct
        try:
            self._body.send(value)
        except StopIteration:
            self._finish(None)
        except BaseException as error:
            self._finish(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._is_direct = False

    def _finish(self, error: BaseException | None) -> None:
        self.port.wire.close()
        if self._cancel_timer is not None:
            self._cancel_timer()
            self._cancel_timer = None
        self._post(self._end, error)

    def _end(self, error: BaseException | None) -> None:
        super()._end(error)
        if error is not None and self._on_end is None:
            raise error  # nobody else will tell

    def _post(self, fn: Callable[..., object], *args: Any) -> bool:
        is_first = not self._posts
        self._posts.append((fn, args))
        if self._is_direct:
            self._run_posts()
            return True
        if is_first and not self.loop.post(self._context.run, self._run_posts):
            self._posts.clear()
            return False
        return True

    def _run_posts(self) -> None:
        while self._posts:
            fn, args = self._posts.popleft()
            try:
                fn(*args)
            except Exception as error:  # noqa: BLE001  (the loop tells of it, as of any callback)
                self.loop.post(_raise, error)

    def _arm(self, deadline_s: float) -> None:
        if self._cancel_timer is not None:
            self._cancel_timer()
        self._timer_s = deadline_s
        self._cancel_timer = self.loop.later(deadline_s - self._clock(), self._on_timer)

    def _on_timer(self) -> None:
        self._cancel_timer, self._timer_s = None, _NEVER
        if self._deadline_s > self._clock():
            if self._deadline_s < _NEVER:
                self._arm(self._deadline_s)
        elif self._waits_for is not None:
            self.resume(self._waits_for, _LATE)


def _raise(error: Exception) -> None:
    raise error


class _Bell:
    """A bell whose waits park the strand."""

    def __init__(self, strand: Strand) -> None:
        self._strand = strand
        self._is_rung = False

    def ring(self) -> None:
        if self._strand.is_parked_for(self):
            self._strand.resume_for_caller(self)
        else:
            self._is_rung = True

    async def wait(self) -> None:
        await self.sleep(_NEVER)

    async def sleep(self, seconds: float) -> None:
        if not self._is_rung:
            await self._strand.nap(self, seconds)
        self._is_rung = False


class _LoopWire(Wire):
    """A connection that never blocks: what would, parks the strand or runs apart."""

    def __init__(self, url: Url, strand: Strand, clock: Callable[[], float]) -> None:
        super().__init__(url, strand.name, clock)
        self._strand = strand
        self._watch: Watch | None = None
        self._ahead = 0  # so often we may read on without asking the loop

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()  # before its number can be another's
            self._watch = None
        super().close()

    async def _apart(
        self, fn: Callable[..., Any], *args: Any, discard: Callable[[Any], object]
    ) -> Any:
        return await self._strand.apart(fn, *args, discard=discard)

    async def _send(self, found: socket.socket, packed: bytes, deadline_s: float) -> None:
        if self._watch is None:
            found.setblocking(False)
            self._watch = self._strand.loop.watch(found, self._on_ready)
        left = memoryview(packed)
        while left:
            self._left_s(deadline_s)
            try:
                left = left[found.send(left) :]
            except (BlockingIOError, ssl.SSLWantWriteError):
                await self._ready(deadline_s, is_write=True)
            except ssl.SSLWantReadError:
                await self._ready(deadline_s)
        self._ahead = 0

    async def _receive(self, found: socket.socket, deadline_s: float) -> int:
        self._left_s(deadline_s)  # a stream of bytes without end does not stretch it
        is_late, is_write = False, False
        while True:
            if not self._ahead:
                try:
                    await self._ready(deadline_s, is_write=is_write)
                except TimeoutError:
                    # If the loop hung, the reply and its deadline came together: it is in time.
                    is_late = True
            try:
                size = found.recv_into(self._buffer)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError) as wants:
                if is_late:
                    raise TimeoutError from None
                is_write = isinstance(wants, ssl.SSLWantWriteError)
                self._ahead = 0
                continue
            self._ahead = self._reads_ahead(found, size)
            return size

    def _reads_ahead(self, found: socket.socket, size: int) -> int:
        if isinstance(found, ssl.SSLSocket) and found.pending():
            return 1  # the rest of a record, of which the socket does not tell
        if size < len(self._buffer):
            return 0
        return self._ahead - 1 if self._ahead else _AHEAD_MAX

    async def _ready(self, deadline_s: float, *, is_write: bool = False) -> None:
        if self._watch is None:  # the connection was closed meanwhile
            raise ConnectionError
        self._watch.arm(is_write=is_write)
        await self._strand.park(self, deadline_s)

    def _on_ready(self) -> None:
        self._strand.resume(self)
