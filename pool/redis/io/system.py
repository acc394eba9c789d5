"""The IO: everything that waits for the world runs behind these few names.

A body is written once, as `async def body(body_io)`.  In production it is a task of the event loop,
or it runs in a thread of its own, where the methods of its IO block and never suspend; a simulation
drives the same bodies by itself.  Clock and dice come from here too, so that a simulation can hold
them still.

    event loop                             |  body
    RunningBody.wake / interrupt / aclose ---> BodyIO.wait / sleep / read end
    fn runs on the loop  <-------------------- BodyIO.post(fn)
"""

from __future__ import annotations

import os
import random
import socket
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from types import CodeType
from typing import Any, Final, Literal, Protocol, TypeAlias

import attrs
import sniffio

from pool.core.ids import SEED_BYTES, Ids
from pool.core.walk import PAGES, Pages
from pool.errors import NotRunning
from pool.redis import topology
from pool.redis.commands.plain import Entries
from pool.redis.connection import Connection, Reply, Server
from pool.redis.io.body import ConnectionIO, Group, Handle, OnEnd, ThreadBell
from pool.redis.io.loops import Loop, TaskLoop, Waiter, current_loop, unmoved
from pool.redis.io.scribe import Scribe
from pool.redis.io.task import Care, Guard, Task, supervised
from pool.redis.log import Log
from pool.redis.scripts import Command
from pool.redis.url import Url

try:
    import resource

    _THREAD: int | None = resource.RUSAGE_THREAD
except (ImportError, AttributeError):  # Linux alone counts them by thread
    _THREAD = None

__all__ = [
    "IO",
    "Body",
    "BodyIO",
    "Care",
    "Entries",
    "Group",
    "Loop",
    "OnEnd",
    "Reply",
    "RunningBody",
    "SystemIO",
    "Waiter",
]

Body: TypeAlias = Callable[["BodyIO"], Coroutine[Any, Any, None]]

_log = Log("pool")
_STACK_FRAMES = 6  # the innermost ones: where it hangs, and who called that


class BodyIO(Protocol):
    """What a body may do: its own connection, its own sleep, and the way back to the loop."""

    closing: bool  # the body is to end

    @property
    def server(self) -> Server | None:
        """What is at the other end; None before the first connection."""

    def is_connected(self) -> bool:
        """Say whether `run` could send at once."""

    async def connect(self, *, timeout_s: float) -> None:
        """Open the connection; for the errors see `Connection.connect`."""

    @property
    def moved_s(self) -> float:
        """When the other side last took or sent something that is not its greeting."""

    @property
    def came_bytes(self) -> int:
        """How many bytes of replies came last."""

    async def run(
        self, calls: Sequence[Command], *, timeout_s: float, longest_s: float | None = None
    ) -> list[Reply]:
        """Send the calls as one pipeline, connecting if need be; return one reply each, in order.

        A reply is a value or a PoolError *instance*.  All of it ends within `timeout_s`; with
        `longest_s` within that, and `timeout_s` is for a line that stands still.  What has no reply
        by then, or when the connection breaks, gets StoreUnavailable, whose `maybe_done` says
        whether all of its bytes may have reached the server.
        """

    async def read(
        self,
        positions: Mapping[str, str],
        *,
        block_s: float,
        timeout_s: float,
        count: int,
        group: Group | None = None,
    ) -> Entries:
        """Wait up to `block_s` for entries behind these positions (stream name -> last id).

        `timeout_s`, which is longer, is when a connection counts as lost on which nothing came;
        what comes slowly may take `READ_S`.
        Returns [] when there are none, or when interrupted.  As a consumer of a group: `>` is a
        position, and at any other one it is the consumer's own pending entries that are read.

        Raises:
            StoreUnavailable: The connection was lost, or cannot be opened.
        """

    async def sleep(self, seconds: float) -> None:
        """Wait; ends early on `wake()` or close."""

    async def wait(self) -> None:
        """Wait until `wake()` or close; a `wake()` since the last wait or sleep counts."""

    def post(self, fn: Callable[..., object], *args: Any) -> bool:
        """Have the event loop run `fn`, soon or at once; False when the loop is gone."""


class RunningBody(Protocol):
    """The handle of one running body, for the event loop's side."""

    state: Literal["running", "ended", "forked"]

    def wake(self) -> None:
        """End the body's `wait` or `sleep`, now or when it comes to one."""

    def interrupt(self) -> None:
        """End what the body waits for on its connection; the next use opens a new one."""

    async def aclose(self, budget_s: float) -> bool:
        """End the body; returns within the budget, True if it has ended by then."""


class IO(Protocol):
    """The world outside, one per node."""

    dice: random.Random
    ids: Ids
    pages: Pages
    place: tuple[str, int]  # the host, and the process there
    siblings: str  # PID of the parent / how many children it keeps; empty: it is no child of ours

    def clock(self) -> float:
        """Return seconds that never go back and, where the system can, count a suspension."""

    def loop(self, care: Care | None = None) -> Loop:
        """Return what the running event loop can do that anyio does not spell, or not cheaply.

        `care` hears of what its timers raise.
        """

    def stack(self) -> Callable[[], str]:
        """Look where the event loop stands; return what spells it, which reads sources.

        A body may ask when the loop does not answer.
        """

    def inside(self, code: CodeType) -> Mapping[str, Any]:
        """Return the variables of the call of this function that the event loop stands in.

        Empty if it stands in none. A body may ask when the loop does not answer.
        """

    def aside(self, fn: Callable[[], object]) -> None:
        """Run what is a user's in a thread for that alone, one after the other: a body is held up
        neither by what blocks there nor by what that raises."""

    def waits(self) -> int:
        """Return how often the calling thread has waited for anything; 0 where nobody counts."""

    def end_process(self, code: int) -> None:
        """End the process at once, from any thread: a handler of ours outlived its lease."""

    def start(
        self,
        name: str,
        url: Url,
        body: Body,
        *,
        has_thread: bool = False,
        care: Care | None = None,
        on_end: OnEnd | None = None,
    ) -> RunningBody:
        """Run `body` beside the loop's tasks until `aclose()`, or too many crashes.

        `has_thread` is for what must go on while the loop hangs.  `care` hears of crashes; without
        it the first one is the last, and a body may return.  `on_end` runs on the loop when the
        body has ended for good, with the exception that ended it, if any.
        """


# --- the thread's side ------------------------------------------------------------------------


class _Thread(Handle):
    """One thread that runs one body."""

    def __init__(
        self, name: str, body_io: ConnectionIO, body: Body, on_end: OnEnd | None, *, has_care: bool
    ) -> None:
        super().__init__(on_end)
        self.body_io = body_io
        self._is_told = has_care or on_end is not None  # of what ends the body
        self._body = body
        # Daemon: a process may end although a thread of ours hangs in a name look-up.
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    async def aclose(self, budget_s: float) -> bool:
        is_over = await super().aclose(budget_s)
        if self.state == "ended":
            self.thread.join()  # its last word was that it ended: microseconds are left of it
        return is_over

    def _run(self) -> None:
        caught: Exception | None = None
        try:
            _drive(self._body(self.body_io))
        except Exception as error:  # noqa: BLE001  (passed on below, whatever it is)
            caught = error
        self.body_io.connection.end()
        heard = self.body_io.post(self._end, caught)
        if caught is not None and not (heard and self._is_told):
            raise caught  # nobody else will tell: threading's hook prints it


def _drive(body: Coroutine[Any, Any, None]) -> None:
    try:
        body.send(None)
    except StopIteration:
        return
    raise AssertionError("a body awaited something that is not its `BodyIO`")


class SystemIO:
    """The production IO: sockets on the loop, or in daemon threads; real clock, real dice."""

    def __init__(self) -> None:
        self.dice: random.Random = random.Random()
        self.ids: Ids = Ids(self.dice.randbytes(SEED_BYTES))
        self.pages = PAGES
        self.place: tuple[str, int] = (socket.gethostname(), os.getpid())
        self.siblings = ""
        self._running: weakref.WeakSet[_Thread | Task] = weakref.WeakSet()
        self._forked = False
        self._loop_thread = 0  # the one that starts bodies
        self._loop: TaskLoop | None = None  # as found last
        self._aside = Scribe(lambda n: _log.warning("observers.failed", times=n), patience_s=0.0)
        _IOS.add(self)

    # A lease goes on ending while the machine sleeps; CLOCK_MONOTONIC would not notice.
    clock: staticmethod[[], float] = staticmethod(
        partial(time.clock_gettime, time.CLOCK_BOOTTIME)
        if hasattr(time, "CLOCK_BOOTTIME")
        else time.monotonic
    )

    def loop(self, care: Care | None = None) -> TaskLoop:
        with suppress(sniffio.AsyncLibraryNotFoundError):  # in a callback, it is the one of before
            self._loop = current_loop()
        assert self._loop is not None, "no event loop runs here"
        return self._loop.again(Guard("timer", care).run)

    def start(
        self,
        name: str,
        url: Url,
        body: Body,
        *,
        has_thread: bool = False,
        care: Care | None = None,
        on_end: OnEnd | None = None,
    ) -> RunningBody:
        if self._forked:
            raise NotRunning(state="forked")
        self._loop_thread = threading.get_ident()
        loop, guard = self.loop(care), Guard(f"{name}/callback", care)
        if not has_thread:
            task = Task(url, name, loop, self.clock, guard, on_end)
            self._running.add(task)
            task.start(supervised(name, task.told(body), care, unmoved))
            if care is not None:
                care.began(task)
            return task

        def post(fn: Callable[..., object], *args: Any) -> bool:
            return loop.post(guard.run, fn, *args)

        connection = Connection(url, name, self.clock)
        body_io = ConnectionIO(connection, ThreadBell(), post, self.clock)
        running = _Thread(
            name, body_io, supervised(name, body, care), on_end, has_care=care is not None
        )
        self._running.add(running)
        running.thread.start()
        if care is not None:
            care.began(running)
        return running

    def stack(self) -> Callable[[], str]:
        frame = sys._current_frames().get(self._loop_thread)
        walk = islice(traceback.walk_stack(frame), _STACK_FRAMES) if frame else ()
        places = [(f.f_code.co_filename, line, f.f_code.co_name, None) for f, line in walk]
        return lambda: "".join(traceback.format_list(places[::-1]))

    def inside(self, code: CodeType) -> Mapping[str, Any]:
        frame = sys._current_frames().get(self._loop_thread)
        walk = traceback.walk_stack(frame) if frame else ()
        return next((f.f_locals for f, _ in walk if f.f_code is code), {})

    def aside(self, fn: Callable[[], object]) -> None:
        self._aside.write(fn)

    def waits(self) -> int:
        return resource.getrusage(_THREAD).ru_nvcsw if _THREAD is not None else 0

    def end_process(self, code: int) -> None:
        os._exit(code)

    def die(self) -> None:
        """Be the copy in a forked child: nothing runs here, and nothing can be started."""
        self._forked = True
        self.dice.seed()  # else parent and child would throw alike, and make the same ids
        self.ids.redraw(self.dice.randbytes(SEED_BYTES))
        for running in list(self._running):
            running.die()


COPY_EXIT_CODE: Final = 70  # of a forked child that came back to us


@attrs.define
class Lineage:
    """Which process this is: by how many forks it came from the first that had us."""

    forks: int = 0

    def end_copy(self, before: int) -> None:
        """End this process if it is the child of a fork since then.

        What it would go on with is a copy: of a loop whose epoll it shares with the parent, of
        leases, and of a job that the parent runs.  It shall say nothing of them, and undo nothing.
        """
        if self.forks != before:
            os.write(
                2, b"pool: a forked child left its handler, and was ended: it must exec or _exit\n"
            )
            os._exit(COPY_EXIT_CODE)


LINEAGE: Final = Lineage()

# The one global state of the package: fork handlers cannot be taken back, so there is one for all.
_IOS: weakref.WeakSet[SystemIO] = weakref.WeakSet()


def _die_in_child() -> None:
    LINEAGE.forks += 1
    topology.forget_all()
    for io in list(_IOS):
        io.die()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_die_in_child)
