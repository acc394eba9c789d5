"""The worker of `pool run`: a node in a process of its own, told to leave by signals."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from types import FrameType
from typing import Any, Final

import anyio
import anyio.lowlevel
import attrs

from pool.errors import ConfigError
from pool.events import Event, NodeLeft
from pool.jobs.fleet.keepalive import EXIT_CODE
from pool.jobs.job import RUNNING
from pool.jobs.node import Node
from pool.names import split_pair
from pool.ops.cli.child import DRAINED, SHUT_DOWN, Leash
from pool.ops.cli.config import Configuration, RunOptions
from pool.ops.cli.loading import load_all, load_observer
from pool.ops.cli.readiness import Readiness
from pool.ops.endpoints import Endpoints
from pool.ops.httpd import LOOPBACK, HttpServer
from pool.ops.logs import configure
from pool.ops.metrics import Metrics
from pool.ops.rates import Rating, keep_rates_of
from pool.ops.terminal import by_lines
from pool.runtime.memory import freeze_memory
from pool.runtime.observers import log_observer
from pool.runtime.session import CLOSE_BUDGET_S

_TELLINGS: Final = 4  # calls to Redis one after another, when a worker leaves
_ENDS_S: Final = 1.0  # by then a process has ended whose node has left
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def run_worker(
    said: Configuration, leash: Leash | None, tell: Callable[..., None], *, is_json: bool
) -> int:
    """Be the worker that is described; return when it has drained.

    Raises:
        PoolError: It could not begin, or has failed.
    """
    options = said.options
    if options.loop == "trio" and importlib.util.find_spec("trio") is None:
        raise ConfigError(setting="loop", problem="trio is not installed: pip install trio")
    by_lines(sys.stdout)  # what handlers print is for whoever watches this worker
    # Before what takes long: a file that is left of a process that was killed is not so any more.
    readiness = Readiness() if leash else Readiness.of(options.ready_file, os.environ)
    handlers = load_all(options.handlers)
    observers = [load_observer(each) for each in options.observers]
    configure(
        sys.stderr,
        is_json=options.log_format == "json" or (options.log_format == "auto" and is_json),
    )
    metrics = None if options.metrics_port is None else Metrics()
    counting, late_end = () if metrics is None else (metrics,), _LateEnd()
    if said.settings.on_overrun == "exit":
        observers.append(late_end.hear)
    node = Node(
        options.pool,
        options.url,
        handlers=handlers,
        settings=said.settings,
        capacity=options.capacity,
        weight=options.weight,
        label=_label(options, leash),
        version=options.version_label,
        observers=(log_observer, *counting, *observers),
    )
    if leash is None:
        tell = partial(tell, pool=options.pool)
    else:
        leash.loaded()
        tell = partial(leash.tell, child=leash.number)
    server = None if metrics is None else _serving(options, leash, Endpoints(node, metrics))
    work = partial(_work, node, sorted(handlers), leash, readiness, tell, server, metrics)
    try:
        anyio.run(work, backend=options.loop)
    finally:
        late_end.over()
        if server is not None:
            server.close()
    return 0


@attrs.define(eq=False)
class _LateEnd:
    """Ends the process if that does not end though its node has left.

    A thread of a handler goes on then, its key may be another's, and nothing else can end it.
    """

    _timer: threading.Timer = attrs.field(
        factory=lambda: threading.Timer(_ENDS_S, os._exit, (EXIT_CODE,))
    )

    def hear(self, event: Event) -> None:
        if isinstance(event, NodeLeft):
            self._timer.daemon = True
            self._timer.start()

    def over(self) -> None:
        self._timer.cancel()


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
        tell("draining", node=node.id, why=why)

    try:
        async with _alive(readiness), _rated(rating):
            await serve(node, on_ready, on_leaving, leash, on_drained)
    finally:
        readiness.leaving("ended")
    tell("left", node=node.id)


def _drain_s(node: Node) -> float:
    """Return what a drain takes at most: grace, handlers' ends, what is told, closing twice."""
    context, settings = node._open_wiring.context, node.settings
    ends_s = settings.grace_s + context.timing.stop_budget_s
    return ends_s + _TELLINGS * settings.op_timeout_s + 2 * CLOSE_BUDGET_S


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

    From the first signal on, a second one has its default action, but for a child: the process ends
    at once, also when the event loop hangs, and what it ran is recovered elsewhere after one lease
    TTL.
    """
    # Before the node opens: a signal that comes meanwhile must not leave a half-open node behind.
    numbers = [each for each in _SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]  # nohup
    with anyio.open_signal_receiver(*numbers) as signals:
        _watch_for_culprits(node, numbers)
        try:
            async with node:
                await on_ready()
                why = await _told(node, signals, leash)
                # To a child the parent's word and a signal to all of them are one and the same, in
                # whatever order they come; if there is a second one, the parent kills.
                after = signal.SIG_DFL if leash is None else signal.SIG_IGN
                for number in numbers:
                    signal.signal(number, after)
                on_leaving(why)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_ignore, signals)
                    await node.drain()
                    await on_drained()
                    tasks.cancel_scope.cancel()
        except KeyboardInterrupt:  # a handler raised it: the node has left as for the signal
            on_leaving("KeyboardInterrupt")


async def _ignore(signals: AsyncIterator[signal.Signals]) -> None:
    """Take what came while we were told otherwise: trio would raise it again at the end."""
    async for _ in signals:
        pass


def _watch_for_culprits(node: Node, numbers: Sequence[signal.Signals]) -> None:
    """Note in whose code a signal comes: a job that ends its own process so is found there.

    A signal from outside hardly ever finds a job at work four times running.
    """

    def noting(before: Any) -> Callable[[int, FrameType | None], None]:
        def on_signal(number: int, frame: FrameType | None) -> None:
            if job := RUNNING.get():
                node.suspect(split_pair(job)[1])
            before(number, frame)

        return on_signal

    for number in numbers:
        signal.signal(number, noting(signal.getsignal(number)))


async def _told(node: Node, signals: AsyncIterator[signal.Signals], leash: Leash | None) -> str:
    why = SHUT_DOWN
    async with anyio.create_task_group() as tasks:

        async def heard() -> None:
            nonlocal why
            async for number in signals:
                why = signal.Signals(number).name
                break
            tasks.cancel_scope.cancel()

        async def led(leash: Leash) -> None:
            nonlocal why
            await leash.wait()
            why = "its parent"
            tasks.cancel_scope.cancel()

        tasks.start_soon(heard)
        if leash is not None:
            tasks.start_soon(led, leash)
        await node.wait_drained()
        if node._open_wiring.is_to_drain:
            why = DRAINED
        tasks.cancel_scope.cancel()
    return why
