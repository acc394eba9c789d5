"""Virtual time, and simulated processes, each with a real event loop of its own.

    world      a heap of what happens when; one dice per purpose; nothing else moves time
    process    one event loop, its threads, its monotonic clock (with an offset of its own)
    thread     a body of `pool.redis.io.system`, driven by the world whenever what it waits for is
    there

A loop is run until it has nothing to do, then the world moves on to whatever comes next.  So a
process can be frozen (neither loop nor threads move, time goes on), its loop can hang (only the
threads move), and it can be killed (nothing of it ever moves again; what it held is never cleaned
up).  Nothing here reads a clock, a thread or a socket.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import itertools
import random
import sys
import warnings
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import coroutine
from typing import Any, Final, Literal, TypeAlias

import attrs
import sniffio
import trio
from anyio._backends import _asyncio as anyio_asyncio
from trio._core import _run as trio_run

CancelledError: Final = asyncio.CancelledError
Main: TypeAlias = Callable[[], Coroutine[Any, Any, Any]]
LoopKind: TypeAlias = Literal["asyncio", "trio"]

SPINS_MAX: Final = 2_000  # rounds of a loop that is never idle, before time moves on by ...
SPIN_S: Final = 0.001


@attrs.define(eq=False)
class Timer:
    """Something that will happen; it may be taken back."""

    fn: Callable[..., object] | None
    args: tuple[Any, ...]

    def cancel(self) -> None:
        self.fn = None


class World:
    """What time it is, and what happens next."""

    def __init__(self, seed: int) -> None:
        self.now_s = 0.0
        self.seed = seed
        self.events = 0
        self.processes: list[Process] = []
        self._heap: list[tuple[float, int, Timer]] = []
        self._ready: list[Process] = []
        self._next_s = float("inf")  # when the first loop wants to run
        self._order = itertools.count()
        # trio's own dice decides in which order tasks run that are ready at the same moment.
        trio_run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
        trio_run._r.seed(seed)
        # Where one lies in a set is its number modulo the set's size: each world counts from 0.
        _Task._numbers = itertools.count()
        _Scope._numbers = itertools.count()

    def dice(self, purpose: str) -> random.Random:
        """Return dice for one purpose: what is thrown for one does not change the others."""
        return random.Random(f"{self.seed}/{purpose}")

    def at(self, when_s: float, fn: Callable[..., object], *args: Any) -> Timer:
        """Have something happen at a time."""
        timer = Timer(fn, args)
        heapq.heappush(self._heap, (max(when_s, self.now_s), next(self._order), timer))
        return timer

    def after(self, delay_s: float, fn: Callable[..., object], *args: Any) -> Timer:
        """Have something happen after a delay."""
        return self.at(self.now_s + delay_s, fn, *args)

    def run(self, until_s: float, is_over: Callable[[], bool] = lambda: False) -> None:
        """Let time pass until then, or until it is over."""
        heap = self._heap
        while not is_over():
            while self._ready:
                ready, self._ready = self._ready, []
                for process in ready:
                    process.step()
                self._next_s = min((p.wakes_s for p in self.processes), default=float("inf"))
            while heap and heap[0][2].fn is None:
                heapq.heappop(heap)
            when_s = heap[0][0] if heap else float("inf")
            if min(when_s, self._next_s) > until_s:
                self.now_s = max(self.now_s, until_s)
                return
            if when_s <= self._next_s:
                timer = heapq.heappop(heap)[2]
                self.now_s = max(self.now_s, when_s)
                fn, timer.fn = timer.fn, None
                assert fn is not None
                self.events += 1
                fn(*timer.args)
            else:
                self.now_s = max(self.now_s, self._next_s)
                self._next_s = float("inf")
                for process in self.processes:
                    if process.wakes_s <= self.now_s:
                        process.make_ready()

    def look_again(self) -> None:
        """A process began, stopped or went on."""
        self._next_s = min((p.wakes_s for p in self.processes), default=float("inf"))

    def run_soon(self, process: Process) -> None:
        """Run a process's loop before time goes on."""
        self._ready.append(process)

    def close(self) -> None:
        """Let go of all processes; `sweep` throws them away when nothing else is held of them."""
        with _silence():
            for process in self.processes:
                process.is_dead = True  # what is torn apart writes no history
                process.host.discard()
        self.processes.clear()
        self._heap.clear()


def sweep() -> None:
    """Throw away what nobody holds any more of worlds that are closed, without a word of theirs."""
    with _silence():
        while gc.collect():  # what was torn apart in vain leaves tracebacks that hold the rest
            pass


@contextmanager
def uncollected() -> Iterator[None]:
    """Leave what is made in here to `sweep`: a world is thrown away as a whole.

    Nor is anything looked at that lives when the first one begins.  A quarter of the time.
    """
    if not gc.get_freeze_count():
        gc.freeze()
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_collecting:
            gc.enable()


@contextmanager
def _silence() -> Iterator[None]:
    """What is torn apart in here complains to nobody."""
    hook = sys.unraisablehook
    sys.unraisablehook = lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.unraisablehook = hook


class Process:
    """One simulated process."""

    def __init__(self, world: World, name: str, kind: LoopKind) -> None:
        self.world = world
        self.name = name  # NODE/BOOT
        self.node = name.partition("/")[0]
        self.clock_offset_s = world.dice(f"clock/{name}").uniform(0.0, 1000.0)
        self.is_dead = False
        self.is_frozen = False
        self.is_hung = False
        self.failures: list[BaseException | str] = []
        self.result: Any = None
        self.on_end: Callable[[], object] = lambda: None  # its main task has ended
        self.on_exit: Callable[[int], object] = lambda _: None  # it ended itself, at once
        self.is_interrupted = False  # by its user: whatever it ends with is in order
        self._is_ready = False
        self._deferred: list[Callable[[], object]] = []  # what its threads do when it thaws
        self.host: _AsyncioHost | _TrioHost
        self.host = _AsyncioHost(self) if kind == "asyncio" else _TrioHost(self)
        world.processes.append(self)

    def start(self, main: Main) -> None:
        """Begin with a task; what it raises is a failure of this process."""

        async def run() -> None:
            try:
                self.result = await main()
            except GeneratorExit:
                raise  # the world is thrown away
            except BaseException as error:  # noqa: BLE001 - it is looked at by who runs the world
                if not self.is_interrupted:
                    self.failures.append(error)
            self.on_end()

        self.host.start(run)
        self.make_ready()

    @property
    def is_running(self) -> bool:
        """Whether its loop turns."""
        return not (self.is_dead or self.is_frozen or self.is_hung or self.host.is_over)

    @property
    def wakes_s(self) -> float:
        """When its loop must be run next."""
        if not self.is_running:
            return float("inf")
        return self.host.wakes_s

    def clock(self) -> float:
        """Return its own monotonic time."""
        return self.world.now_s + self.clock_offset_s

    def make_ready(self) -> None:
        """Have its loop run before time goes on."""
        if not self._is_ready:
            self._is_ready = True
            self.world.run_soon(self)

    def step(self) -> None:
        """Run its loop; one that stands still runs when it goes on."""
        if self.is_running:
            self._is_ready = False
            self.host.run()

    def post(self, fn: Callable[..., object], *args: Any) -> bool:
        """Have its loop call something; False when it is over."""
        if self.is_dead or self.host.is_over:
            return False
        self.host.post(fn, args)
        self.make_ready()
        return True

    def after(self, delay_s: float, fn: Callable[..., object]) -> None:
        """Have its loop call something later."""
        self.world.after(delay_s, self.post, fn)

    def in_thread(self, fn: Callable[[], object]) -> None:
        """Do something in one of its threads: now, when it thaws, or never."""
        if self.is_dead:
            return
        if self.is_frozen:
            self._deferred.append(fn)
        else:
            fn()

    def freeze(self) -> None:
        """Stop everything of it; its clock and the rest of the world go on."""
        self.is_frozen = True
        self.world.look_again()

    def thaw(self) -> None:
        """Go on where it stopped."""
        self.is_frozen = False
        deferred, self._deferred = self._deferred, []
        for fn in deferred:
            fn()
        self._go_on()

    def hang(self) -> None:
        """Stop its loop only; from inside of it, as who calls something that blocks does.

        Whoever calls that may go on until it waits; nothing else runs before it ends.
        """
        self.is_hung = True
        self.host.stand()
        self.world.look_again()

    def unhang(self) -> None:
        """Let its loop turn again."""
        self.is_hung = False
        self.host.go_on()
        self._go_on()

    def _go_on(self) -> None:
        self._is_ready = False
        self.make_ready()

    def kill(self) -> None:
        """Nothing of it moves any more."""
        self.is_dead = True
        self.host.stand()
        self._deferred.clear()
        self.world.look_again()


# --- asyncio ------------------------------------------------------------------------------------


class _Task(asyncio.Task[Any]):
    """A task whose hash is its number: in sets of tasks the order must not depend on addresses."""

    _numbers = itertools.count()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.number = next(_Task._numbers)
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self.number


class _Scope(anyio_asyncio.CancelScope):
    """As `_Task`, for the cancel scopes that anyio keeps in sets."""

    __slots__ = ("number",)
    _numbers = itertools.count()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.number = next(_Scope._numbers)
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self.number


anyio_asyncio.CancelScope = _Scope  # type: ignore[misc]


class _VirtualLoop(asyncio.BaseEventLoop):
    """asyncio's own loop with a selector that never waits: when idle, it stops running."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process
        self._selector = self
        self._spins = 0
        self.wakes_s = 0.0
        self.set_task_factory(_make_task)

    def time(self) -> float:
        return self._process.clock()

    def select(self, timeout: float | None) -> list[Any]:
        now_s = self._process.world.now_s
        if timeout is None or timeout > 0:
            self.wakes_s = float("inf") if timeout is None else now_s + timeout
            self.stop()
        else:
            self._spins += 1
            if self._spins >= SPINS_MAX:  # it is busy: that takes time
                self.wakes_s = now_s + SPIN_S
                self.stop()
        return []

    @property
    def ready(self) -> deque[asyncio.Handle]:
        """What will be run next."""
        return self._ready  # type: ignore[attr-defined, no-any-return]

    def run_until_idle(self) -> None:
        self._spins = 0
        self.run_forever()

    def _process_events(self, _: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


def cancel_oneself() -> None:
    """Cancel the present task, as a handler on asyncio may."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


def shared_future(seconds: float) -> asyncio.Future[None]:
    """Return what several handlers may wait for; who of them is cancelled takes it from all."""
    return asyncio.ensure_future(asyncio.sleep(seconds))


def _make_task(loop: asyncio.AbstractEventLoop, coro: Any, **kwargs: Any) -> asyncio.Task[Any]:
    task = _Task(coro, loop=loop, **kwargs)
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    return task


class _AsyncioHost:
    """One event loop, run from outside until it has nothing to do."""

    kind: LoopKind = "asyncio"

    def __init__(self, process: Process) -> None:
        self._process = process
        self._loop = _VirtualLoop(process)
        self._loop.set_exception_handler(self._on_error)
        self._main: asyncio.Task[Any] | None = None
        self._held: list[asyncio.Handle] = []  # what was ready when its loop began to hang

    @property
    def wakes_s(self) -> float:
        return self._loop.wakes_s

    @property
    def is_over(self) -> bool:
        return self._main is not None and self._main.done()

    def start(self, main: Main) -> None:
        self._main = self._loop.create_task(main())

    def run(self) -> None:
        try:
            self._loop.run_until_idle()
        except (KeyboardInterrupt, SystemExit) as error:
            # As `asyncio.run` does: all tasks are cancelled, and may end in order.
            if not self._process.is_interrupted:
                self._process.failures.append(error)
            for task in sorted(asyncio.all_tasks(self._loop), key=hash):
                task.cancel()
            self._process.make_ready()

    def stand(self) -> None:
        """Do nothing more, if it runs: neither what is ready nor what its loop has yet to run."""
        if self._loop.is_running():
            self._held += self._loop.ready
            nothing = asyncio.Handle(lambda: None, (), self._loop)
            nothing.cancel()
            for at in range(len(self._loop.ready)):  # it has counted how many it will run
                self._loop.ready[at] = nothing
            self._loop.stop()

    def go_on(self) -> None:
        """Run what was held first."""
        self._loop.ready.extendleft(reversed(self._held))
        self._held.clear()

    def post(self, fn: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._loop.call_soon(fn, *args)

    def discard(self) -> None:
        # What anyio knows of a task leads to it for as long as one of its scopes is open: held only
        # by its own value, the entry of a weak dictionary stays, and with the task our whole world.
        states = anyio_asyncio._task_states
        for task in [task for task in states if task.get_loop() is self._loop]:
            del states[task]
        self._loop.close()

    def _on_error(self, _: Any, context: dict[str, Any]) -> None:
        self._process.failures.append(context.get("exception") or context["message"])


# --- trio ---------------------------------------------------------------------------------------


class _VirtualClock(trio.abc.Clock):
    def __init__(self, process: Process) -> None:
        self._process = process
        self.wakes_s = 0.0

    def start_clock(self) -> None:
        pass

    def current_time(self) -> float:
        return self._process.clock()

    def deadline_to_sleep_time(self, deadline: float) -> float:
        # A nanosecond behind it: rounded below it, nothing would be due, for ever.
        self.wakes_s = deadline - self._process.clock_offset_s + 1e-9
        return deadline - self._process.clock()


class _TrioHost:
    """As `_AsyncioHost`; `wakes_s` is when it wants to run next, in world time."""

    kind: LoopKind = "trio"

    def __init__(self, process: Process) -> None:
        self._process = process
        self._clock = _VirtualClock(process)
        self._inbox: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self._reader: Any = None  # the task that waits for the inbox
        self._loop: Any = None
        self._runner: Any = None
        self._hooks: Any = (None, None)  # for the async generators that begin in it
        self._has_begun = False
        self._is_inside = False
        self.is_over = False
        self.wakes_s = 0.0

    def start(self, main: Main) -> None:
        async def run() -> None:
            trio.lowlevel.spawn_system_task(self._read_inbox)
            await main()
            self.is_over = True  # what trio does after it needs its socket, which nobody reads

        with self._running():
            self._runner = trio_run.setup_runner(self._clock, (), False, True)
            self._loop = trio_run.unrolled_run(self._runner, run, (), True)

    def run(self) -> None:
        with self._running():
            if self._inbox and self._reader is not None:
                reader, self._reader = self._reader, None
                trio.lowlevel.reschedule(reader)
            timeout_s: float = 0.0
            spins = 0
            try:
                while timeout_s <= 0.0 and spins < SPINS_MAX and not self._stands():
                    spins += 1
                    self._is_inside = True
                    timeout_s = self._loop.send([] if self._has_begun else None)
                    self._has_begun, self._is_inside = True, False
            except StopIteration:
                self._loop = None
                return
            busy_s = self._process.world.now_s + SPIN_S
            self.wakes_s = self._clock.wakes_s if timeout_s > 0.0 else busy_s

    def stand(self) -> None:
        """Do nothing more: each turn asks.  What this one has yet to run is for the next one."""
        if self._is_inside:
            batch: list[Any] = self._loop.gi_frame.f_locals["batch"]
            self._runner.runq.extend(reversed(batch))
            batch.clear()

    def go_on(self) -> None:
        """Nothing is held."""

    def _stands(self) -> bool:
        return self._process.is_hung or self._process.is_dead

    def post(self, fn: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._inbox.append((fn, args))

    async def _read_inbox(self) -> None:
        while True:
            while self._inbox:
                inbox, self._inbox = self._inbox, []
                for fn, args in inbox:
                    try:
                        fn(*args)
                    except Exception as error:  # noqa: BLE001 - as asyncio: told, and no more
                        self._process.failures.append(error)
            self._reader = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._give_up)

    def _give_up(self, _: Any) -> Any:
        self._reader = None
        return trio.lowlevel.Abort.SUCCEEDED

    def discard(self) -> None:
        if self._loop is not None:
            with self._running():
                self._loop.close()

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Be inside this run of trio: several of them share this thread, one at a time."""
        context, library = trio_run.GLOBAL_RUN_CONTEXT, sniffio.thread_local
        before, library.name = library.name, "trio"
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(*self._hooks)
        context.__dict__.clear()
        if self._runner is not None:
            context.runner = self._runner
        try:
            yield
        finally:
            context.__dict__.clear()
            self._hooks = sys.get_asyncgen_hooks()
            sys.set_asyncgen_hooks(*hooks)
            library.name = before


# --- threads ------------------------------------------------------------------------------------


@coroutine
def _suspend() -> Any:
    return (yield)


class Thread:
    """Drives one body.  Where the body waits, it is parked until `resume`."""

    def __init__(self, process: Process, on_end: Callable[[BaseException | None], object]) -> None:
        self.process = process
        self.is_over = False
        self._on_end = on_end
        self._body: Coroutine[Any, Any, None]
        self._ticket = 0  # which of its waits is the present one
        self._timer: Timer | None = None

    def start(self, body: Coroutine[Any, Any, None]) -> None:
        """Begin, a moment from now."""
        self._body = body
        self.resume(self._ticket, None)

    async def park(self, timeout_s: float | None = None) -> Any:
        """Wait for `resume(value)` and return the value; None when the time is up first."""
        ticket = self._ticket
        if timeout_s is not None:
            self._timer = self.process.world.after(timeout_s, self._continue, ticket, None)
        value = await _suspend()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return value

    @property
    def ticket(self) -> int:
        """Return what `resume` takes to end the next or present wait, and no later one."""
        return self._ticket

    def resume(self, ticket: int, value: Any) -> None:
        """End a wait; nothing happens if it has ended already."""
        if ticket == self._ticket:
            self.process.world.after(0.0, self._continue, ticket, value)

    def _continue(self, ticket: int, value: Any) -> None:
        self.process.in_thread(lambda: self._go_on(ticket, value))

    def _go_on(self, ticket: int, value: Any) -> None:
        if ticket != self._ticket or self.is_over:
            return
        self._ticket += 1
        try:
            self._body.send(value)
        except StopIteration:
            self._end(None)
        except Exception as error:  # noqa: BLE001 - passed on, as a thread's is
            self._end(error)

    def _end(self, error: BaseException | None) -> None:
        self.is_over = True
        self._on_end(error)
