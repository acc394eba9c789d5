"""What the adapters of this comparison share: the standard library alone, as `peers/protocol.py`.

`python -m benchmarks.flows.NAME ROLE URL PART COUNT` is one of four processes:

    facts    says how the library does each part, with which versions, and ends
    client   makes batches, fan-ins and schedules; answers one line for each line
    worker   says that everything is imported, waits for a line, works until its input ends
    beat     likewise, where schedules are fired by a process of their own

A handler notes what it is, CLOCK_MONOTONIC, which all processes of a host share, and the time of
day, and does nothing else.
"""

from __future__ import annotations

import abc
import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from typing import Any, ClassVar, Final

from benchmarks.peers.protocol import channel

MEMBER: Final = "member"  # what a handler notes that is one of many,
AFTER: Final = "after"  # and what comes when all of them have ended
PARTS: Final = ("batch", "fan_in", "cron")

starts: list[tuple[str, int, int]] = []  # (what, monotonic ns, ns of the day's clock)


def mark(what: str) -> None:
    """Note that a handler was entered.  Handlers call nothing else."""
    starts.append((what, time.monotonic_ns(), time.time_ns()))


def name_of(number: int) -> str:
    """Return the name of a schedule."""
    return f"s{number}"


class Flow(abc.ABC):
    """One library: how it makes many jobs one thing, and how it fires what is due."""

    distributions: ClassVar[tuple[str, ...]]  # whose versions are recorded; the library first
    docs: ClassVar[str]
    setting: ClassVar[str]
    ways: ClassVar[Mapping[str, str]]  # part -> how it is done; what is not here cannot be
    promises: ClassVar[Mapping[str, str]]  # part -> what holds when a process dies
    cannot: ClassVar[Mapping[str, str]] = {}  # part -> why not
    by_interval: ClassVar[bool] = False  # no cron with seconds: each second since the first
    has_beat: ClassVar[bool] = False

    def __init__(self, url: str, part: str, count: int) -> None:
        self.url = url
        self.schedules = count if part == "cron" else 0  # each is due in every second

    @abc.abstractmethod
    def work(self) -> None:
        """Work on jobs for ever."""

    def beat(self) -> None:
        """Fire schedules for ever."""
        raise NotImplementedError

    async def open(self) -> None:  # noqa: B027 - some connect by themselves
        """Connect as a client."""

    async def batch(self, count: int) -> None:
        """Make so many jobs; return when it is known here that all have ended."""
        raise NotImplementedError

    async def fan_in(self, count: int) -> None:
        """Make so many jobs, and one that begins when all have ended; return once that stands."""
        raise NotImplementedError

    async def cron(self) -> None:  # noqa: B027 - only some have them there
        """Store the schedules, where they do not stand in the code of worker or beat."""

    @classmethod
    def facts(cls) -> dict[str, Any]:
        """Return what a reader must know."""
        assert {*cls.ways, *cls.cannot} == set(PARTS), cls
        assert cls.ways.keys() == cls.promises.keys(), cls
        return {
            "versions": {name: version(name) for name in cls.distributions},
            "docs": cls.docs,
            "setting": cls.setting,
            "ways": dict(cls.ways),
            "promises": dict(cls.promises),
            "cannot": dict(cls.cannot),
            "by_interval": cls.by_interval,
            "has_beat": cls.has_beat,
        }


# --- the process ----------------------------------------------------------------------------------


async def _serve(
    flow: Flow, asked: Iterable[dict[str, Any]], answer: Callable[[Any], None]
) -> None:
    await flow.open()
    answer({"state": "open"})
    # Lines come one at a time, each after the answer before: what runs beside has its turn then.
    for line in asked:
        began_ns = time.monotonic_ns()
        await getattr(flow, line.pop("do"))(**line)
        answer({"began_ns": began_ns, "ended_ns": time.monotonic_ns()})


def _listen(asked: Iterable[dict[str, Any]], answer: Callable[[Any], None]) -> None:
    """Answer beside the library, whatever it does with the main thread."""
    for _ in asked:
        told = starts.copy()
        del starts[: len(told)]
        answer({"starts": told})
    os._exit(0)


def main(flow: type[Flow]) -> None:
    """Run `MODULE ROLE URL PART COUNT`."""
    role, url, part, count = sys.argv[1:]
    asked, answer = channel()
    if role == "facts":
        answer(flow.facts())
        return
    made = flow(url, part, int(count))
    answer({"state": "ready"})
    next(asked)
    if role == "client":
        asyncio.run(_serve(made, asked, answer))
        os._exit(0)
    threading.Thread(target=_listen, args=(asked, answer), daemon=True).start()
    if role == "beat":
        made.beat()
    else:
        made.work()
