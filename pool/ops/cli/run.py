"""`pool run`: a node in a process of its own, told to leave by signals."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from types import FrameType
from typing import Any, Final

import anyio

from pool.errors import ConfigError
from pool.jobs.job import RUNNING
from pool.jobs.node import Node
from pool.names import split_pair
from pool.ops.cli.config import gather
from pool.ops.cli.loading import load_all, load_observer
from pool.ops.logs import configure
from pool.runtime.memory import freeze_memory
from pool.runtime.observers import log_observer

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def run(args: argparse.Namespace) -> int:
    """Carry out `pool run`."""
    said = gather(args, os.environ)
    said.check("handlers", "pool", "url")
    options = said.options
    if options.loop == "trio" and importlib.util.find_spec("trio") is None:
        raise ConfigError(setting="loop", problem="trio is not installed: pip install trio")
    handlers = load_all(options.handlers)
    observers = [load_observer(each) for each in options.observers]
    is_json = args.json if options.log_format == "auto" else options.log_format == "json"
    configure(sys.stderr, is_json=is_json)
    tell = partial(_tell, is_json=args.json)

    async def work() -> None:
        node = Node(
            options.pool,
            options.url,
            handlers=handlers,
            settings=said.settings,
            capacity=options.capacity,
            weight=options.weight,
            label=options.label,
            version=options.version_label,
            observers=(log_observer, *observers),
        )

        async def on_ready() -> None:
            freeze_memory()
            tell("ready", pool=options.pool, node=node.id, handlers=sorted(handlers))

        def on_leaving(why: str) -> None:
            tell("draining", pool=options.pool, node=node.id, why=why)

        await serve(node, on_ready, on_leaving)
        tell("left", pool=options.pool, node=node.id)

    anyio.run(work, backend=options.loop)
    return 0


async def serve(
    node: Node, on_ready: Callable[[], Awaitable[None]], on_leaving: Callable[[str], object]
) -> None:
    """Be a node until SIGTERM or SIGINT, or until the pool is shut down; then drain it.

    From the first signal on, a second one has its default action: the process ends at once, also
    when the event loop hangs, and what it ran is recovered elsewhere after one lease TTL.
    """
    # Before the node opens: a signal that comes meanwhile must not leave a half-open node behind.
    with anyio.open_signal_receiver(*_SIGNALS) as signals:
        _watch_for_culprits(node)
        try:
            async with node:
                await on_ready()
                why = await _told(node, signals)
                for number in _SIGNALS:
                    signal.signal(number, signal.SIG_DFL)
                on_leaving(why)
                await node.drain()
        except KeyboardInterrupt:  # a handler raised it: the node has left as for the signal
            on_leaving("KeyboardInterrupt")


def _watch_for_culprits(node: Node) -> None:
    """Note in whose code a signal comes: a job that ends its own process so is found there.

    A signal from outside hardly ever finds a job at work four times running.
    """

    def noting(before: Any) -> Callable[[int, FrameType | None], None]:
        def on_signal(number: int, frame: FrameType | None) -> None:
            if job := RUNNING.get():
                node.suspect(split_pair(job)[1])
            before(number, frame)

        return on_signal

    for number in _SIGNALS:
        signal.signal(number, noting(signal.getsignal(number)))


async def _told(node: Node, signals: AsyncIterator[signal.Signals]) -> str:
    why = "the pool is shut down"
    async with anyio.create_task_group() as tasks:

        async def heard() -> None:
            nonlocal why
            async for number in signals:
                why = signal.Signals(number).name
                break
            tasks.cancel_scope.cancel()

        tasks.start_soon(heard)
        await node.wait_drained()
        tasks.cancel_scope.cancel()
    return why


def _tell(event: str, *, is_json: bool, **facts: Any) -> None:
    """Write one line about our own state; log lines go to standard error."""
    if is_json:
        line = json.dumps({"event": event, **facts})
    else:
        rest = (f"{k}={','.join(v) if isinstance(v, list) else v}" for k, v in facts.items())
        line = f"{event}  {' '.join(rest)}"
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
