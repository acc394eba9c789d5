r"""A node for callers that block: it lives on an event loop in a thread of its own.

    callers' threads                          |  the portal's thread
    call(fn) --post--> a task: fn(node) ------>  its answer, or its error, is the caller's
      gave up, or was interrupted --post------>  the task is cancelled
    stop() --post----------------------------->  the node leaves, and answers whoever waits for it

    new --start--> opening --> open --> leaving --> over
                      \-------- failed, stopped ----/

Only the portal's thread moves it on, and sets what callers wait for; nobody shares a lock with it.
A caller is in `_flying` before it posts, and the thread looks there once its loop takes nothing any
more: so none waits for a loop that will not run again.  That, and limits that hold while the loop
stands still, is why this is no `anyio.from_thread.BlockingPortal`, which waits without a limit
until its loop has taken a call.

Who opens a portal may be interrupted anywhere, by Ctrl-C or by a signal's handler that raises, or
calls the client itself: gunicorn's and Celery's time limits do.  So a thread without a name makes
it, starts it and writes it down, one such thread at a time: no signal's handler runs there, and who
has asked only waits.  What is interrupted so goes on opening; `close()` finds it.

A portal is of one process.  In a forked child the thread is not there: whoever finds a portal of
before the fork makes another, and leaves that one alone.  One whose node failed is over too, and
the next call makes another.  At the end of the interpreter portals leave before threads can no
longer be started; a process that is killed leaves a lease, which ends by itself.

Opening a portal imports nothing: a process that is forked while one of its threads imports a module
has a copy of that module's lock, which nobody releases, so the same import in the child never ends.
This module imports everything that a portal needs.
"""

from __future__ import annotations

import _thread
import atexit
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, Generic, TypeVar

import anyio
import anyio._backends._asyncio  # which `anyio.run` would import in the thread
import anyio.lowlevel
import attrs
import sniffio
from anyio.abc import TaskGroup, TaskStatus

from pool import checks
from pool.errors import NotRunning, PoolError, StoreUnavailable, WrongLoop, again
from pool.jobs.node import Node
from pool.maps.map import ReplicatedMap
from pool.maps.watch import V
from pool.redis.io.loops import TaskLoop, current_loop
from pool.redis.io.system import LINEAGE, SystemIO

T = TypeVar("T")

LEAVE_S: Final = 10.0  # who closes a portal waits for its thread no longer
_UNANSWERED: Final = "the client was closed before it was answered"


@attrs.define(eq=False)
class _Call(Generic[T]):
    """One call on its way."""

    fn: Callable[[Node], Awaitable[T]]
    answer: Future[T] = attrs.field(factory=Future)
    task: object = None  # held while it runs
    scope: anyio.CancelScope | None = None
    is_given_up: bool = False

    async def carry_out(self, portal: Portal) -> None:
        """Do it, and tell who asked; on the portal's loop.

        Whatever it raises is its caller's: SystemExit here would end the loop with the node on it.
        """
        if self.is_given_up:
            return
        try:
            with anyio.CancelScope() as self.scope:
                self.answer.set_result(await self.fn(portal.node))
        except anyio.get_cancelled_exc_class() as error:
            if portal.is_over:  # its loop ends
                raise
            self.answer.set_exception(error)
        except BaseException as error:  # noqa: BLE001 - as above
            self.answer.set_exception(error)

    def give_up(self) -> None:
        """Cancel it: nobody waits any more.  On the portal's loop."""
        self.is_given_up = True
        if self.scope is not None:
            self.scope.cancel()

    def leave_open(self) -> None:
        """Tell who asked that nothing more will be known, if nothing has been told."""
        if not self.answer.done():
            self.answer.set_exception(StoreUnavailable(problem=_UNANSWERED, maybe_done=True))


class Portal:
    """One node in one thread, for the callers of one process; it is used once."""

    def __init__(self, make: Callable[[SystemIO], Node]) -> None:
        self._make = make
        self._io = SystemIO()
        self.clock: Callable[[], float] = self._io.clock
        self.maps: dict[tuple[str, type], ReplicatedMap[Any]] = {}  # written on the loop
        self.node: Node  # once it is open
        self.is_over: bool = False  # it takes no new calls: its node leaves, has left or never came
        self._forks = LINEAGE.forks
        self._opened: Future[Node] = Future()
        self._flying: set[_Call[Any]] = set()
        self._thread = threading.Thread(target=self._run, name="pool-client", daemon=True)
        self._is_stopping = False
        self._loop: TaskLoop | None = None
        self._scope: anyio.CancelScope
        self._holding: TaskGroup
        self._joining: anyio.Lock

    @property
    def is_here(self) -> bool:
        """Whether it was made in this process, and not in one that this is a fork of."""
        return self._forks == LINEAGE.forks

    # --- for callers --------------------------------------------------------------------------

    def start(self) -> None:
        """Let the node open; calls wait until it has."""
        self._thread.start()
        _OPEN.portals.add(self)
        if self.is_over:  # already: it has looked there before we came
            _OPEN.portals.discard(self)
        if _OPEN.is_ending:
            self.stop()

    def call(self, fn: Callable[[Node], Awaitable[T]], limit_s: float | None) -> T:
        """Return what `fn` returns of the open node, on its event loop.

        Raises:
            StoreUnavailable: Not within `limit_s`, opening included.
            WrongLoop: We are on that loop, and would keep it from answering.
        """
        if threading.get_ident() == self._thread.ident:
            raise WrongLoop
        until_s = None if limit_s is None else self.clock() + limit_s
        self.wait_open(limit_s)
        assert self._loop is not None, "an open portal has a loop"
        call = _Call(fn)
        try:
            self._flying.add(call)
            if not self._loop.post(self._begin, call):
                raise NotRunning(state="closed")
            try:
                return call.answer.result(None if until_s is None else until_s - self.clock())
            except TimeoutError:
                if call.answer.done():
                    return call.answer.result()  # it is the call's own, or came just now
                problem = f"no answer within {limit_s:g} s"
                raise StoreUnavailable(problem=problem, maybe_done=True) from None
        finally:
            self._flying.discard(call)
            if not call.answer.done():  # whatever interrupted us
                self._loop.post(call.give_up)
            call.answer = Future()  # an error's traceback leads back to us

    def wait_open(self, limit_s: float | None) -> None:
        """Return once the node is open.

        Raises:
            StoreUnavailable: It is not within `limit_s`.
            PoolError: As for entering a node.
        """
        try:
            failed = self._opened.exception(limit_s)
        except TimeoutError:
            problem = f"not joined within {limit_s:g} s"
            raise StoreUnavailable(problem=problem, maybe_done=False) from None
        if isinstance(failed, PoolError):
            raise again(failed)  # each caller raises one of its own
        if failed is not None:
            raise failed

    def hold(
        self, name: str, values: type[V]
    ) -> Callable[[Node], Coroutine[Any, Any, ReplicatedMap[V]]]:
        """Return what joins a map, for as long as the node is open, and returns it."""
        key = (name, values)

        async def join(node: Node) -> ReplicatedMap[V]:
            async with self._joining:
                if key not in self.maps:
                    described = node.map(name, values=values)
                    self.maps[key] = await self._holding.start(self._hold, described)
            return self.maps[key]

        return join

    def stop(self) -> None:
        """Let the node leave; from any thread, without waiting.  Twice is fine."""
        self._is_stopping = True  # the thread looks here once its loop can be found
        if self._loop is not None and self.is_here:
            self._loop.post(self._scope.cancel)

    def wait_over(self, limit_s: float) -> None:
        """Wait until the thread has ended, unless we are it."""
        if self.is_here and threading.get_ident() != self._thread.ident:
            self._thread.join(limit_s)

    # --- in the thread ------------------------------------------------------------------------

    def _run(self) -> None:
        error: BaseException = NotRunning(state="closed")
        try:
            anyio.run(self._live)
        except BaseException as failed:  # noqa: BLE001 - whoever waits is told
            error = failed
        self.is_over = True
        if not self._opened.done():
            self._opened.set_exception(error)
        for call in list(self._flying):
            call.leave_open()
        _OPEN.portals.discard(self)

    async def _live(self) -> None:
        with anyio.CancelScope() as self._scope:
            self._joining, self._loop = anyio.Lock(), current_loop()
            if not self._is_stopping:
                await self._serve()
        await anyio.lowlevel.checkpoint()  # whom the node answered; all others end with the loop

    async def _serve(self) -> None:
        try:
            async with self._make(self._io) as node, anyio.create_task_group() as self._holding:
                self.node = node
                self._opened.set_result(node)
                try:
                    await anyio.sleep_forever()
                finally:
                    self.is_over = True
        except Exception as error:  # noqa: BLE001 - it is told to whoever waits, or was by observers
            self.is_over = True
            if not self._opened.done():
                self._opened.set_exception(error)

    def _begin(self, call: _Call[Any]) -> None:
        # In a copy of its caller's context: what he waits in is known (`DeadlockRisk`), and traced.
        sniffio.current_async_library_cvar.set("asyncio")  # his may be another
        assert self._loop is not None, "we run on it"
        call.task = self._loop.spawn(partial(call.carry_out, self), call.leave_open)

    async def _hold(
        self, described: ReplicatedMap[Any], *, task_status: TaskStatus[ReplicatedMap[Any]]
    ) -> None:
        async with described as held:
            task_status.started(held)
            await anyio.sleep_forever()


@attrs.define
class _Open:
    """The portals of this process: an interpreter's end comes once, for all of them."""

    portals: set[Portal] = attrs.field(factory=set)
    is_ending: bool = False

    def leave(self) -> None:
        """Let all nodes leave, as at the end of a program that closes them."""
        self.is_ending = True
        here = [portal for portal in list(self.portals) if portal.is_here]
        for portal in here:
            portal.stop()
        for portal in here:
            portal.wait_over(LEAVE_S)


_OPEN: Final = _Open()
atexit.register(_OPEN.leave)


class Portals:
    """The portal of a client, in whichever process it is used; shared by all of its threads."""

    def __init__(self, make: Callable[[SystemIO], Node]) -> None:
        self._make = make
        self._portal: Portal | None = None
        self._is_closed = False
        self._opener = (0, 0)  # the thread that opens one, and how many forks ago
        self._locks: dict[int, threading.Lock] = {}

    def portal(self) -> Portal:
        """Return a portal that takes calls; a new one has started, and may not be open yet.

        Raises:
            NotRunning: The client is closed, or the interpreter ends.
            WrongLoop: The collector runs, in the thread that opens it: that cannot wait for itself.
        """
        if (portal := self._usable()) is not None:
            return portal
        if self._is_closed or _OPEN.is_ending:
            raise NotRunning(state="closed")
        if self._opener == (LINEAGE.forks, threading.get_ident()):
            raise WrongLoop
        told: Future[Portal | None] = Future()
        _thread.start_new_thread(self._open, (told,))
        if (portal := told.result()) is None:
            raise NotRunning(state="closed")
        return portal

    def _open(self, told: Future[Portal | None]) -> None:
        """Open one, unless another thread has; in a thread that nothing interrupts."""
        try:
            with self._lock:
                self._opener = (LINEAGE.forks, threading.get_ident())
                try:
                    portal = self._usable()
                    if portal is None and not self._is_closed:
                        portal = Portal(self._make)
                        portal.start()
                        self._portal = portal
                    if portal is not None and self._is_closed:  # meanwhile, by who did not see it
                        portal.stop()
                finally:
                    self._opener = (0, 0)
            told.set_result(portal)
        except BaseException as error:  # noqa: BLE001 - who has asked is told
            told.set_exception(error)

    def wait(self, fn: Callable[[Node, float | None], Awaitable[T]], timeout_s: float | None) -> T:
        """Carry out what waits for a job: its limit is its own, what opening takes included."""
        limit_s = checks.seconds("timeout_s", timeout_s, or_none=True)
        portal = self.portal()
        until_s = portal.clock() + (limit_s or 0)
        portal.wait_open(limit_s or None)  # with 0 the store is asked once, however long that takes
        left_s = limit_s and max(0.0, until_s - portal.clock())
        return portal.call(lambda node: fn(node, left_s), None)

    def close(self) -> None:
        """Let its node leave, and return when it has; for good, in this process.  Twice is fine."""
        self._is_closed = True
        portal = self._portal
        if portal is not None:
            portal.stop()
            portal.wait_over(LEAVE_S)

    def _usable(self) -> Portal | None:
        portal = self._portal
        if portal is None or portal.is_over or not portal.is_here or self._is_closed:
            return None
        return portal

    @property
    def _lock(self) -> threading.Lock:
        """One for each fork: what another thread held then is never free."""
        return self._locks.setdefault(LINEAGE.forks, threading.Lock())

    def __del__(self) -> None:
        if self._portal is not None:
            self._portal.stop()
