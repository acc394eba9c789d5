"""Handlers whose newer version, or whose codec, only some nodes of a simulated pool have."""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final

import attrs

from pool import Handlers, Job
from pool.jobs.handlers import Handler
from tests.verify.sim.config import Config

NEWER: Final = "newer"  # the handler with two versions
CODED: Final = "coded"  # the handler with a codec of its own
LACKS: Final = ("", "version", "codec", "both")
JOBS: Final = 12

Run = Callable[..., Awaitable[Any]]


@attrs.frozen
class Marked:
    """JSON by another name: nodes without this codec refuse it, and the simulation reads it."""

    name: str = "marked"

    def encode(self, value: Any) -> bytes:
        return b" " + json.dumps(value).encode()

    def decode(self, data: bytes) -> Any:
        return json.loads(data)


def lacks(config: Config, node: str) -> str:
    """Return what a node lacks.  The first node lacks nothing, the second one something."""
    number = int(node.removeprefix("n"))
    dice = random.Random(f"versions/{config.seed}/{node}")
    if "versions" not in config.shapes or number == 0:
        return ""
    return dice.choice(LACKS[1:] if number == 1 else LACKS)


def needs(config: Config, handler: str) -> list[str]:
    """Return the nodes that can read the newest arguments of a handler."""
    hidden = {"both", "version" if handler == NEWER else "codec"}
    names = [f"n{number}" for number in range(config.nodes)]
    return [name for name in names if lacks(config, name) not in hidden]


def add_to(
    handlers: Handlers, run: Run, lacked: str, **retries: Any
) -> dict[str, Handler[..., Any]]:
    """Register both handlers as a node knows that lacks this."""
    newer: dict[str, Any] = {"version": 2, "upcast": lambda _, args, kwargs: (args, kwargs)}
    coded: dict[str, Any] = {"codec": Marked()}
    if lacked in ("version", "both"):
        newer = {}
    if lacked in ("codec", "both"):
        coded = {}
    return {
        NEWER: handlers.job(NEWER, **newer, **retries)(run),
        CODED: handlers.job(CODED, **coded, **retries)(run),
    }


async def _nothing(job: Job, idem: str, plan: dict[str, Any]) -> list[Any]:
    return []


def newest() -> dict[str, Handler[..., Any]]:
    """Return the handlers as a caller has them that is newer than some workers."""
    return add_to(Handlers(), _nothing, "")
