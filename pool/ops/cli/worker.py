"""The worker of `pool run`: a node in a process of its own, told to leave by signals."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from contextvars import Context
from functools import partial
from types import FrameType
from typing import Any, Final

import anyio
import anyio.lowlevel
import attrs

from pool.errors import ConfigError, NotRunning
from pool.events import Event, HandlerOverran, LoopOverran, NodeLeft
from pool.jobs.job import RUNNING
from pool.jobs.node import Node
from pool.names import split_pair
from pool.ops.cli.child import DRAINED, SHUT_DOWN, TWICE_S, Leash
from pool.ops.cli.config import Configuration, RunOptions
from pool.ops.cli.exiting import ENDS_S, LateEnd
from pool.ops.cli.loading import load_all, load_observer
from pool.ops.cli.readiness import Readiness
from pool.ops.endpoints import Endpoints
from pool.ops.httpd import LOOPBACK, HttpServer
from pool.ops.lines import END_S, Lines
from pool.ops.logs import configure, line
from pool.ops.metrics import Metrics
from pool.ops.rates import Rating, keep_rates_of
from pool.ops.terminal import by_lines
from pool.redis.io.loops import exits_told
from pool.redis.log import Log
from pool.runtime.memory import freeze_memory
from pool.runtime.observers import log_observer, log_seldom
from pool.runtime.session import CLOSE_BUDGET_S

_log = Log("pool")
_TELLINGS: Final = 4  # calls to Redis one after another, when a worker leaves
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def run_worker(
    said: Configuration,
    leash: Leash | None,
    tell: Callable[..., None],
    late_end: LateEnd | None,
    *,
    is_json: bool,
) -> int:
    """Be the worker that is described; return when it has drained.

    `late_end` ends the process if it goes on without its node; `is_json` is the form of the log.

    Raises:
        PoolError: It could not begin, or has failed.
    """
    options = said.options
    if options.loop == "trio" and importlib.util.find_spec("trio") is None:
        raise ConfigError(setting="loop", problem="trio is not installed: pip install trio")
    # What handlers print is for whoever watches this worker, and fails no job when nobody does.
    sys.stdout = by_lines(sys.stdout, partial(_tell_lost, "stdout"))
    sys.stderr = by_lines(sys.stderr, partial(_tell_lost, "stderr"))
    # Before what takes long: a file that is left of a process that was killed is not so any more.
    readiness = Readiness() if leash else Readiness.of(options.ready_file, os.environ)
    handlers = load_all(options.handlers)
    observers = [load_observer(each) for each in options.observers]
    dropped = partial(line, "warning", "log.dropped", is_json=is_json)
    log = Lines(sys.stderr, lambda count: dropped(lines=count))
    configure(log.stream, is_json=is_json)
    metrics = None if options.metrics_port is None else Metrics()
    # First: an observer that takes its time must not hold up the end.
    first = () if late_end is None else (partial(_on_end, late_end=late_end, readiness=readiness),)
    counting = () if metrics is None else (metrics,)
    node = Node(
        options.pool,
        options.url,
        handlers=handlers,
        settings=said.settings,
        capacity=options.capacity,
        weight=options.weight,
        label=_label(options, leash),
        version=options.version_label,
        observers=(*first, log_observer, *counting, *observers),
    )
    if leash is None:
        tell = partial(tell, pool=options.pool)
    else:
        node._io.siblings = f"{os.getppid()}/{options.processes or 1}"
        leash.loaded()
        tell = partial(leash.tell, child=leash.number)
    server = None if metrics is None else _serving(options, leash, Endpoints(node, metrics))
    work = partial(_work, node, sorted(handlers), leash, readiness, tell, server, metrics)
    try:
        telling = exits_told(options.loop, partial(_note_exit, node))
        anyio.run(work, backend=options.loop, backend_options=telling)
    finally:
        if late_end is not None:
            late_end.over()
        if server is not None:
            server.close()
        log.end()
    return 0


def _tell_lost(stream: str, error: OSError) -> None:
    """Warn that what handlers print is lost; most often its reader has ended."""
    log_seldom(_log, "output.lost", stream=stream, error=f"{type(error).__name__}: {error}")


def _note_exit(node: Node, context: Context) -> None:
    """Note in whose code an exit was asked for that ends the loop: a job's child runs in that
    job's context.
    """
    if job := context.get(RUNNING):
        node.suspect(split_pair(job)[1])


def _on_end(event: Event, *, late_end: LateEnd, readiness: Readiness) -> None:
    if isinstance(event, NodeLeft):
        late_end.begin()
    elif isinstance(event, (HandlerOverran, LoopOverran)):
        readiness.leaving("overran")  # our process ends next, with all that could remove the file


def _serving(options: RunOptions, leash: Leash | None, endpoints: Endpoints) -> HttpServer:
    """Listen where this process is asked; from before it joins on, as it may take long."""
    port, place = options.metrics_port or 0, 1 if leash is None else leash.number
    server = HttpServer(
        options.metrics_host or LOOPBACK,
        port + place - 1 if port else 0,
        endpoints.answer,
        is_patient=leash is not None,  # who was in our place may still be leaving
    )
    server.start()
    return server


def _label(options: RunOptions, leash: Leash | None) -> str:
    """Return the label; of several workers each has its own, or all keys would go to one."""
    if leash is None or not options.label or (options.processes or 1) == 1:
        return options.label
    return f"{options.label}-{leash.number}"


@asynccontextmanager
async def _rated(rating: Rating | None) -> AsyncIterator[None]:
    """Add to the pool's figures within the block."""
    if rating is None:
        yield
        return
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(keep_rates_of, rating)
        yield
        tasks.cancel_scope.cancel()


async def _work(
    node: Node,
    handlers: list[str],
    leash: Leash | None,
    readiness: Readiness,
    tell: Callable[..., None],
    server: HttpServer | None,
    metrics: Metrics | None,
) -> None:
    rating = None if metrics is None else Rating(metrics)

    async def on_drained() -> None:
        if rating is not None:
            await rating.send()

    async def on_ready() -> None:
        freeze_memory()
        readiness.ready(f"node {node.id}")
        bound: dict[str, Any] = {} if leash is None else {"drain_s": _drain_s(node)}
        if server is not None:
            bound["metrics"] = server.address
        tell("ready", node=node.id, handlers=handlers, **bound)

    def on_leaving(why: str) -> None:
        readiness.leaving(why)
        if server is not None and leash is not None:
            server.close()  # its successor listens there
        # If it is killed from here on, at most so many jobs are left to others.
        tell("draining", **_id_of(node), why=why, jobs=_count_jobs(node))

    try:
        async with _alive(readiness), _rated(rating):
            await serve(node, on_ready, on_leaving, leash, on_drained)
    finally:
        readiness.leaving("ended")
    tell("left", **_id_of(node))


def _id_of(node: Node) -> dict[str, str]:
    """Return its id, once it has one."""
    try:
        return {"node": node.id}
    except NotRunning:  # it was told to leave before it had joined
        return {}


def _count_jobs(node: Node) -> int:
    """Return how many jobs it has in hand."""
    return 0 if node._wiring is None else node._wiring.count_runs()


def _drain_s(node: Node) -> float:
    """Return how many seconds a drain takes at most.

    That is the grace, the end of handlers, the last events and log lines, closing the node and its
    connections, and the end of the interpreter.
    """
    context, settings = node._open_wiring.context, node.settings
    ends_s = settings.grace_s + context.timing.stop_budget_s
    closing_s = 2 * CLOSE_BUDGET_S + 2 * END_S + ENDS_S
    return ends_s + _TELLINGS * settings.op_timeout_s + closing_s


@asynccontextmanager
async def _alive(readiness: Readiness) -> AsyncIterator[None]:
    """Say so within the block, from the event loop: it is what could be stuck."""
    if readiness.beat_s is None:
        yield
        return
    beat_s = readiness.beat_s

    async def beat() -> None:
        while True:
            readiness.alive()
            await anyio.sleep(beat_s)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(beat)
        yield
        tasks.cancel_scope.cancel()


async def serve(
    node: Node,
    on_ready: Callable[[], Awaitable[None]],
    on_leaving: Callable[[str], object],
    leash: Leash | None = None,
    on_drained: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint,
) -> None:
    """Be a node until SIGTERM, SIGINT, SIGHUP, its parent's word, the pool's end; then drain it.

    One that is still opening leaves at once: it has taken no job.  A second signal has its default
    action, but for a child: the process ends at once, also when the event loop hangs, and what it
    ran is recovered elsewhere after one lease TTL.
    """
    # Before the node opens: a signal that comes meanwhile must not leave a half-open node behind.
    numbers = [each for each in _SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]  # nohup
    order = _Order(on_leaving)
    with anyio.open_signal_receiver(*numbers) as signals:
        # To a child the parent's word and a signal to all of them are one and the same, in whatever
        # order they come; if there is a second one, the parent kills.
        _watch_signals(node, numbers, signal.SIG_DFL if leash is None else signal.SIG_IGN)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(order.take_signals, signals)
            if leash is not None:
                tasks.start_soon(order.follow_parent, leash)
            try:
                with order.opening:
                    async with node:
                        await anyio.lowlevel.checkpoint_if_cancelled()
                        order.is_open = True
                        await on_ready()
                        tasks.start_soon(order.follow_node, node)
                        await order.given.wait()
                        on_leaving(order.why)
                        await node.drain()
                        await on_drained()
            except KeyboardInterrupt:  # a handler raised it: the node has left as for the signal
                on_leaving("KeyboardInterrupt")
            tasks.cancel_scope.cancel()


@attrs.define(eq=False)
class _Order:
    """That the node shall leave, and why; the first one counts."""

    on_leaving: Callable[[str], object]
    why: str = ""
    given: anyio.Event = attrs.field(factory=anyio.Event)
    opening: anyio.CancelScope = attrs.field(factory=anyio.CancelScope)
    is_open: bool = False

    def give(self, why: str) -> None:
        if self.why:
            return
        self.why = why
        self.given.set()
        if not self.is_open:
            self.on_leaving(why)
            self.opening.cancel()

    async def take_signals(self, signals: AsyncIterator[signal.Signals]) -> None:
        """Take all that come: trio raises again at the end what nobody has taken."""
        async for number in signals:
            self.give(signal.Signals(number).name)

    async def follow_parent(self, leash: Leash) -> None:
        await leash.wait()
        self.give("its parent")

    async def follow_node(self, node: Node) -> None:
        await node.wait_drained()
        self.give(DRAINED if node._open_wiring.is_to_drain else SHUT_DOWN)


def _watch_signals(node: Node, numbers: Sequence[signal.Signals], second: signal.Handlers) -> None:
    """Have signals that follow the first one do what is `second`; it comes where no loop turns.

    Note in whose code the first one comes: a job that ends its own process so is found there.  A
    signal from outside hardly ever finds a job at work four times running.
    """

    is_told: list[int] = []

    def watching(before: Any) -> Callable[[int, FrameType | None], None]:
        def on_signal(number: int, frame: FrameType | None) -> None:
            if is_told:
                return
            is_told.append(number)
            if second == signal.SIG_DFL:
                threading.Event().wait(TWICE_S)  # what comes meanwhile is the same order
            for each in numbers:
                signal.signal(each, second)
            if job := RUNNING.get():
                node.suspect(split_pair(job)[1])
            before(number, frame)

        return on_signal

    for number in numbers:
        signal.signal(number, watching(signal.getsignal(number)))
    if hasattr(os, "register_at_fork"):
        _Forks(numbers).watch()


@attrs.define(eq=False)
class _Forks:
    """Lets signals end forked processes, as `multiprocessing` ends its own.

    A fork inherits the handlers, and the socket by which signals wake the event loop of this
    process: without this, a signal to a fork would begin a drain here.  Signals are blocked until
    the fork has handlers of its own.
    """

    numbers: Sequence[signal.Signals]
    _before: threading.local = attrs.field(factory=threading.local)  # a thread's mask

    def watch(self) -> None:
        """Begin; it cannot be taken back, and our process ends with what it is for."""
        os.register_at_fork(
            before=self._block, after_in_parent=self._restore, after_in_child=self._reset
        )

    def _block(self) -> None:
        self._before.mask = signal.pthread_sigmask(signal.SIG_BLOCK, self.numbers)

    def _restore(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before.mask)

    def _reset(self) -> None:
        signal.set_wakeup_fd(-1)
        for number in self.numbers:
            is_ctrl_c = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if is_ctrl_c else signal.SIG_DFL)
        self._restore()
