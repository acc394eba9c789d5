"""A worker of examples/payments.py that is killed at a point of its work; see test_payments.py.

A point stands before and behind each of its calls to the store and to the provider.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import attrs

from pool import Node, Settings, Step
from pool.jobs.worker.outbox import Answered
from pool.jobs.worker.worker import Worker
from pool.redis.commands.edges import Edge
from pool.redis.commands.lane import Lane
from pool.redis.scripts import ScriptCall

sys.path.append(str(Path(__file__).parents[2] / "examples"))
payments: Any = import_module("payments")  # the example, as it is run
SETTINGS = Settings(lease_ttl_s=1.0, op_timeout_s=5.0, grace_s=0.0)


def forget_keys() -> None:
    """Have the provider be told another key each time, as by who does not know of `step.key`."""
    ask = payments.ask

    def ask_anew(port: int, what: str, order: str, step: Step) -> int:
        number: int = ask(port, what, order, attrs.evolve(step, key=uuid4().hex))
        return number

    payments.ask = ask_anew


def mine(dies_at: int) -> list[str]:
    """Count the points, and die at one of them; 0: at none."""
    points: list[str] = []
    ask, advance, handle = payments.ask, Lane.advance, Worker.handle

    def point(name: str) -> None:
        points.append(name)
        if len(points) == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def asked(port: int, what: str, order: str, step: Step) -> int:
        point(f"before {what}")
        number: int = ask(port, what, order, step)
        point(f"after {what}")
        return number

    def advanced(
        self: Lane, guard: Any, source: str, edges: Sequence[Edge], **rest: Any
    ) -> ScriptCall:
        point(f"before {''.join(edge.letter for edge in edges)}")
        return advance(self, guard, source, edges, **rest)

    def handled(self: Worker, message: Any) -> None:
        if isinstance(message, Answered):
            point("after it")
        handle(self, message)

    payments.ask = asked
    Lane.advance = advanced  # type: ignore[assignment, method-assign]
    Worker.handle = handled  # type: ignore[method-assign]
    return points


async def main(url: str, pool: str, *, dies_at: int, has_keys: bool) -> None:
    if not has_keys:
        forget_keys()
    points = mine(dies_at)
    async with Node(pool, url, handlers=payments.handlers, settings=SETTINGS, observers=()) as node:
        await node.wait_drained()
    sys.stdout.write("\n".join(points))


if __name__ == "__main__":
    _, url, pool, number, keys, backend = sys.argv
    anyio.run(
        lambda: main(url, pool, dies_at=int(number), has_keys=keys == "keys"), backend=backend
    )
