"""What every peer's adapter shares: the same questions, asked by the driver in the same words.

    driver --{"do": ..., arguments}--> stdin    stdout --{answer}--> driver

An adapter is a process in the peer's own virtual environment, so this file imports the standard
library alone.  `python -m benchmarks.peers.NAME ROLE URL SETTING SLOTS` is one of three:

    facts    says what is measured with which settings and which versions, and ends
    client   enqueues; answers one line for each line
    worker   says that everything is imported, waits for a line, works until its input ends

Jobs have one argument, a number.  The handler notes number and CLOCK_MONOTONIC, which all processes
of a host share, and does nothing else; `hold` is the same and then goes on for ever.
"""

from __future__ import annotations

import abc
import asyncio
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from itertools import count
from typing import Any, ClassVar, Final, Literal, Self, TypeAlias, cast

Words: TypeAlias = tuple[str, ...]
Setting: TypeAlias = Literal["usual", "results", "safe"]

PAUSE_S: Final = 0.005  # between two jobs of an idle library: everything is at rest again by then
HOLD_S: Final = 600.0  # a held job outlives every recovery that is waited for
WAIT_S: Final = 30.0
CALLERS: Final = 100

starts: list[tuple[int, int]] = []  # (job, when its handler was entered)
_first_cpu_s: list[float] = []


def mark(number: int) -> None:
    """Note that a handler was entered.  Handlers call nothing else."""
    if not _first_cpu_s:
        _first_cpu_s.append(time.process_time())
    starts.append((number, time.monotonic_ns()))


async def hold(number: int) -> None:
    """Be a job that runs."""
    mark(number)
    await asyncio.sleep(HOLD_S)


def hold_thread(number: int) -> None:
    """Be a job that runs, in a library of threads."""
    mark(number)
    time.sleep(HOLD_S)


class Adapter(abc.ABC):
    """One library: what it is, how it enqueues, how it works.  Subclass one of the two below."""

    distributions: ClassVar[Words]  # whose versions are recorded; the first is the library
    docs: ClassVar[str]  # where the settings come from
    usual: ClassVar[str]  # the settings of all measurements but the recovery with `safe` ones
    results: ClassVar[str] = ""  # beside `usual`, where results are waited for; "": nothing
    safe: ClassVar[str] = ""  # for the soonest recovery that its documentation has; "": none
    left: ClassVar[tuple[Words, ...]]  # commands whose answers add up to the jobs not yet ended
    has_bulk: ClassVar[bool] = False
    running_max: ClassVar[int] = 10_000  # jobs that one worker process can run at once
    cannot: ClassVar[Mapping[str, str]] = {}  # metric, or the beginning of some -> why not

    def __init__(self, url: str, setting: Setting, slots: int) -> None:
        self.url = url
        self.is_safe = setting == "safe"
        self.has_results = setting == "results"
        self.slots = slots  # jobs at once in one worker process; 0: what suits the library

    @abc.abstractmethod
    def work(self) -> None:
        """Work on jobs for ever."""

    @abc.abstractmethod
    def answer_all(self, asked: Iterator[dict[str, Any]], answer: Callable[[Any], None]) -> None:
        """Be a client."""

    @classmethod
    def facts(cls) -> dict[str, Any]:
        """Return what a reader must know."""
        return {
            "versions": {name: version(name) for name in cls.distributions},
            "docs": cls.docs,
            "usual": cls.usual,
            "results": cls.results,
            "safe": cls.safe,
            "left": cls.left,
            "has_bulk": cls.has_bulk,
            "running_max": cls.running_max,
            "cannot": dict(cls.cannot),
        }


class AsyncAdapter(Adapter):
    """A library whose client is awaited."""

    @abc.abstractmethod
    async def open(self) -> None:
        """Connect as a client."""

    @abc.abstractmethod
    async def enqueue(self, number: int) -> Any:
        """Enqueue one job; return what `result` needs."""

    @abc.abstractmethod
    async def enqueue_held(self, number: int) -> None:
        """Enqueue a job that goes on."""

    @abc.abstractmethod
    async def result(self, ref: Any) -> None:
        """Wait until a job has ended."""

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        """Enqueue all, in the library's own way for many."""
        raise NotImplementedError

    def answer_all(self, asked: Iterator[dict[str, Any]], answer: Callable[[Any], None]) -> None:
        """Be a client on asyncio."""

        async def serve() -> None:
            await self.open()
            answer({"state": "open"})
            # Lines come one at a time, each after the answer before: nothing runs meanwhile.
            for line in asked:
                answer(await getattr(self, line.pop("do"))(**line))

        asyncio.run(serve())

    async def one_by_one(self, first: int, jobs: int) -> dict[str, Any]:
        """Enqueue, each awaited before the next."""
        with _Clock() as clock:
            for number in range(first, first + jobs):
                await self.enqueue(number)
        return clock.told

    async def callers(self, first: int, jobs: int) -> dict[str, Any]:
        """Enqueue from many tasks, each awaiting its own."""
        numbers = iter(range(first, first + jobs))

        async def caller() -> None:
            for number in numbers:
                await self.enqueue(number)

        with _Clock() as clock:
            await asyncio.gather(*(caller() for _ in range(CALLERS)))
        return clock.told

    async def many(self, first: int, jobs: int) -> dict[str, Any]:
        """Enqueue in bulk."""
        with _Clock() as clock:
            await self.enqueue_many(range(first, first + jobs))
        return clock.told

    async def held(self, first: int, jobs: int) -> dict[str, Any]:
        """Enqueue jobs that go on."""
        with _Clock() as clock:
            for number in range(first, first + jobs):
                await self.enqueue_held(number)
        return clock.told

    async def start_latency(self, first: int, jobs: int, seconds: float) -> dict[str, Any]:
        """Enqueue one at a time with nothing else to do; the worker knows when each began."""
        asked_ns = []
        for number in _while(first, jobs, seconds):
            await asyncio.sleep(PAUSE_S)
            asked_ns.append(time.monotonic_ns())
            await self.enqueue(number)
        return {"asked_ns": asked_ns}

    async def result_latency(self, first: int, jobs: int, seconds: float) -> dict[str, Any]:
        """Enqueue and wait for the end, one at a time."""
        latency_us = []
        for number in _while(first, jobs, seconds):
            await asyncio.sleep(PAUSE_S)
            began_ns = time.monotonic_ns()
            await asyncio.wait_for(self.result(await self.enqueue(number)), WAIT_S)
            latency_us.append((time.monotonic_ns() - began_ns) / 1e3)
        return {"latency_us": latency_us}

    async def open_loop(self, first: int, rate_per_s: float, seconds: float) -> dict[str, Any]:
        """Enqueue at a fixed rate, whether or not earlier ones are done."""
        tasks: set[asyncio.Task[Any]] = set()
        due_ns = []
        for number, due in _dues(first, rate_per_s, seconds):
            if (left_s := (due - time.monotonic_ns()) / 1e9) > 0:
                await asyncio.sleep(left_s)
            due_ns.append(due)
            tasks.add(asyncio.ensure_future(self.enqueue(number)))
        await asyncio.gather(*tasks)
        return {"due_ns": due_ns}


class BlockingAdapter(Adapter):
    """A library whose client blocks: its concurrent callers are threads, as its users' are."""

    def open(self) -> None:
        """Connect as a client."""

    @abc.abstractmethod
    def enqueue(self, number: int) -> Any:
        """Enqueue one job; return what `result` needs."""

    @abc.abstractmethod
    def enqueue_held(self, number: int) -> None:
        """Enqueue a job that goes on."""

    @abc.abstractmethod
    def result(self, ref: Any) -> None:
        """Wait until a job has ended."""

    def enqueue_many(self, numbers: Sequence[int]) -> None:
        """Enqueue all, in the library's own way for many."""
        raise NotImplementedError

    def answer_all(self, asked: Iterator[dict[str, Any]], answer: Callable[[Any], None]) -> None:
        """Be a client."""
        self.open()
        answer({"state": "open"})
        for line in asked:
            answer(getattr(self, line.pop("do"))(**line))

    def one_by_one(self, first: int, jobs: int) -> dict[str, Any]:
        """Enqueue, each awaited before the next."""
        with _Clock() as clock:
            for number in range(first, first + jobs):
                self.enqueue(number)
        return clock.told

    def callers(self, first: int, jobs: int) -> dict[str, Any]:
        """Enqueue from many threads, each awaiting its own."""

        def caller(caller_first: int) -> None:
            for number in range(caller_first, first + jobs, CALLERS):
                self.enqueue(number)

        with _Clock() as clock, ThreadPoolExecutor(CALLERS) as threads:
            list(threads.map(caller, range(first, first + CALLERS)))
        return clock.told

    def many(self, first: int, jobs: int) -> dict[str, Any]:
        """Enqueue in bulk."""
        with _Clock() as clock:
            self.enqueue_many(range(first, first + jobs))
        return clock.told

    def held(self, first: int, jobs: int) -> dict[str, Any]:
        """Enqueue jobs that go on."""
        with _Clock() as clock:
            for number in range(first, first + jobs):
                self.enqueue_held(number)
        return clock.told

    def start_latency(self, first: int, jobs: int, seconds: float) -> dict[str, Any]:
        """Enqueue one at a time with nothing else to do; the worker knows when each began."""
        asked_ns = []
        for number in _while(first, jobs, seconds):
            time.sleep(PAUSE_S)
            asked_ns.append(time.monotonic_ns())
            self.enqueue(number)
        return {"asked_ns": asked_ns}

    def result_latency(self, first: int, jobs: int, seconds: float) -> dict[str, Any]:
        """Enqueue and wait for the end, one at a time."""
        latency_us = []
        for number in _while(first, jobs, seconds):
            time.sleep(PAUSE_S)
            began_ns = time.monotonic_ns()
            self.result(self.enqueue(number))
            latency_us.append((time.monotonic_ns() - began_ns) / 1e3)
        return {"latency_us": latency_us}

    def open_loop(self, first: int, rate_per_s: float, seconds: float) -> dict[str, Any]:
        """Enqueue at a fixed rate, whether or not earlier ones are done."""
        due_ns = []
        with ThreadPoolExecutor(CALLERS) as threads:
            calls = []
            for number, due in _dues(first, rate_per_s, seconds):
                if (left_s := (due - time.monotonic_ns()) / 1e9) > 0:
                    time.sleep(left_s)
                due_ns.append(due)
                calls.append(threads.submit(self.enqueue, number))
            for call in calls:
                call.result()
        return {"due_ns": due_ns}


class _Clock:
    """Wall and CPU time of a block."""

    def __enter__(self) -> Self:
        self._began = time.monotonic(), time.process_time(), time.monotonic_ns()
        return self

    def __exit__(self, *_: object) -> None:
        began_s, began_cpu_s, began_ns = self._began
        self.told = {
            "seconds": time.monotonic() - began_s,
            "cpu_s": time.process_time() - began_cpu_s,
            "began_ns": began_ns,
        }


def _while(first: int, jobs: int, seconds: float) -> Iterator[int]:
    """Yield so many numbers, fewer if it takes longer than that."""
    end_s = time.monotonic() + seconds
    for number in range(first, first + jobs):
        if time.monotonic() > end_s:
            return
        yield number


def _dues(first: int, rate_per_s: float, seconds: float) -> Iterator[tuple[int, int]]:
    """Yield jobs and when they are due; latency counts from then, so no stall hides itself."""
    start_ns = time.monotonic_ns()
    for i, number in zip(range(math.ceil(rate_per_s * seconds)), count(first)):
        yield number, start_ns + int(1e9 * i / rate_per_s)


# --- the process ----------------------------------------------------------------------------------


def _report() -> dict[str, Any]:
    """Tell what began here since the last report, and the CPU time since the first job."""
    now_s, told_starts = time.process_time(), starts.copy()
    told = {
        "starts": told_starts,
        "cpu_s": now_s - _first_cpu_s[0] if _first_cpu_s else 0.0,
        "process_cpu_s": now_s,
    }
    del starts[: len(told_starts)]
    return told


def _listen(asked: Iterable[dict[str, Any]], answer: Callable[[Any], None]) -> None:
    """Answer beside the library, whatever it does with the main thread."""
    for _ in asked:
        answer(_report())
    os._exit(0)


def channel() -> tuple[Iterator[dict[str, Any]], Callable[[Any], None]]:
    """Return the lines that the driver sends, and what answers it."""
    # What a library prints goes to standard error.
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(told: Any) -> None:
        lines.write(json.dumps(told) + "\n")
        lines.flush()

    return (json.loads(line) for line in iter(sys.stdin.readline, "")), answer


def main(adapter: type[Adapter]) -> None:
    """Run `MODULE ROLE URL SETTING SLOTS`."""
    role, url, setting, slots = sys.argv[1:]
    asked, answer = channel()
    if role == "facts":
        answer(adapter.facts())
        return
    made = adapter(url, cast(Setting, setting), int(slots))
    if role == "client":
        made.answer_all(asked, answer)
        os._exit(0)  # nothing leaves: a driver that measures on has a server of its own for that
    answer({"state": "ready"})
    next(asked)
    threading.Thread(target=_listen, args=(asked, answer), daemon=True).start()
    made.work()
