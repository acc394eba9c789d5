"""`pool run`: a node in a process of its own, told to leave by signals."""

from __future__ import annotations

import argparse
import difflib
import importlib
import json
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

import anyio

from pool.errors import NoHandlers, shown
from pool.jobs.handlers import Handlers
from pool.jobs.job import RUNNING
from pool.jobs.node import Node
from pool.names import split_pair
from pool.ops.logs import configure
from pool.runtime.memory import freeze_memory
from pool.settings import Settings

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def run(args: argparse.Namespace) -> int:
    """Carry out `pool run`."""
    handlers = load(args.handlers)
    settings = Settings(lease_ttl_s=args.ttl, grace_s=args.grace, on_overrun=args.on_overrun)
    configure(sys.stderr, is_json=args.log_format == "json" if args.log_format else args.json)
    tell = partial(_tell, is_json=args.json)

    async def work() -> None:
        node = Node(
            args.pool,
            args.url,
            handlers=handlers,
            settings=settings,
            capacity=args.capacity,
            weight=args.weight,
            label=args.label,
        )

        async def on_ready() -> None:
            freeze_memory()
            tell("ready", pool=args.pool, node=node.id, handlers=sorted(handlers))

        def on_leaving(why: str) -> None:
            tell("draining", pool=args.pool, node=node.id, why=why)

        await serve(node, on_ready, on_leaving)
        tell("left", pool=args.pool, node=node.id)

    anyio.run(work, backend=args.loop)
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


def load(reference: str) -> Handlers:
    """Return the `Handlers` that `module:attribute` names.

    Raises:
        NoHandlers: There is none; `problem` says what is there instead.  Where the module failed by
            itself, that failure is the cause.
    """
    name, colon, attribute = reference.partition(":")
    if not (name and colon and attribute):
        raise _none(reference, "it is not of the form module:attribute")
    if name.endswith(".py") or "/" in name:
        raise _none(reference, "a module is named without .py, and without a path")
    # As `python -m` does: what is being developed lies in the working directory.
    sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _none(reference, _failed(name, error)) from error
        raise _none(reference, f"there is no module {error.name}{_near(error.name)}") from None
    except (Exception, SystemExit) as error:  # the module's own code runs here: anything may come
        raise _none(reference, _failed(name, error)) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise _none(reference, f"{name} has no {attribute}{_instead(name, found)}")
        found = getattr(found, part)
    if not isinstance(found, Handlers):
        kind = type(found).__name__
        raise _none(
            reference, f"it is of type {kind}, not Handlers{_instead(name, sys.modules[name])}"
        )
    if not len(found):
        raise _none(reference, "it has no handlers: decorate some with @handlers.job(...)")
    return found


def _failed(name: str, error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}"
    return f"{name} fails while it is imported, as the traceback above says: {text}"


def _near(name: str) -> str:
    """Return where a module was looked for, and which one there is spelled alike."""
    here = [path.stem for path in Path.cwd().glob("*.py")]
    near = difflib.get_close_matches(name, here, n=1)
    return f" in {Path.cwd()}, nor installed" + (f"; is it {near[0]}?" if near else "")


def _instead(name: str, module: object) -> str:
    found = sorted(name for name, each in vars(module).items() if isinstance(each, Handlers))
    return f"; there is {' and '.join(f'{name}:{each}' for each in found)}" if found else ""


def _none(reference: str, problem: str) -> NoHandlers:
    return NoHandlers(reference=shown(reference), problem=problem)


def _tell(event: str, *, is_json: bool, **facts: Any) -> None:
    """Write one line about our own state; log lines go to standard error."""
    if is_json:
        line = json.dumps({"event": event, **facts})
    else:
        rest = (f"{k}={','.join(v) if isinstance(v, list) else v}" for k, v in facts.items())
        line = f"{event}  {' '.join(rest)}"
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
