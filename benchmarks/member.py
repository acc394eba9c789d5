"""One process under measurement: a worker, or a client that dispatches.

    parent --{"do": ..., arguments}--> stdin    stdout --{results}--> parent

One line of JSON each way.  A member says that it is ready, waits for the first line, enters its
node, and then answers line by line until its standard input ends.  The node is as a user would
make it: default settings, default observers, no tuning of the interpreter.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

import anyio
import anyio.to_thread

from benchmarks.openloop import offer
from pool import Call, Handlers, Job, Node, Settings

Answer: TypeAlias = Callable[[dict[str, Any]], None]
Serve: TypeAlias = Callable[[str, str, str, Answer], Awaitable[None]]

LANES: Final = "BENCH_LANES"  # the environment's name for how many lanes the pool has
PAUSE_S: Final = 0.005  # between two jobs of an idle pool: everything is at rest again by then
WAIT_S: Final = 30.0

handlers = Handlers()
starts_ns: list[int] = []  # when each handler was entered, on the clock all processes share
_first_cpu_s: list[float] = []


@handlers.job("noop")
async def noop(_: Job) -> None:
    """Do nothing but note when."""
    if not _first_cpu_s:
        _first_cpu_s.append(time.process_time())
    starts_ns.append(time.monotonic_ns())


# --- what a worker is asked -----------------------------------------------------------------------


async def report(_: Node) -> dict[str, Any]:
    """Tell what has run here since the last report, and what CPU time went since its first job."""
    now_s = time.process_time()
    told = {
        "starts_ns": starts_ns.copy(),
        "cpu_s": now_s - _first_cpu_s[0] if _first_cpu_s else 0.0,
        "process_cpu_s": now_s,
    }
    starts_ns.clear()
    _first_cpu_s.clear()
    return told


# --- what a client is asked -----------------------------------------------------------------------


async def one_by_one(node: Node, jobs: int) -> dict[str, Any]:
    """Dispatch, each awaited before the next."""
    began_s = time.monotonic()
    for i in range(jobs):
        await node.dispatch(noop, f"one-{i}")
    return {"seconds": time.monotonic() - began_s}


async def callers(node: Node, jobs: int, count: int, wait: bool) -> dict[str, Any]:
    """Dispatch from `count` tasks, each awaiting its own; with `wait`, the result too."""

    async def caller(first: int) -> None:
        for i in range(first, jobs, count):
            ref = await node.dispatch(noop, f"c-{i}")
            if wait:
                await ref.result(timeout_s=WAIT_S)

    began_s = time.monotonic()
    async with anyio.create_task_group() as tasks:
        for first in range(count):
            tasks.start_soon(caller, first)
    return {"seconds": time.monotonic() - began_s}


async def many(node: Node, jobs: int) -> dict[str, Any]:
    """Dispatch all with one `dispatch_many`."""
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    refs = await node.dispatch_many(noop, [Call(f"many-{i}") for i in range(jobs)])
    seconds, cpu_s = time.monotonic() - began_s, time.process_time() - began_cpu_s
    refused = [ref for ref in refs if isinstance(ref, Exception)]
    if refused:
        raise refused[0]
    return {"seconds": seconds, "cpu_s": cpu_s}


async def start_latency(node: Node, jobs: int) -> dict[str, Any]:
    """Dispatch into an idle pool, one at a time; the worker knows when each began."""
    asked_ns = []
    for i in range(jobs):
        await anyio.sleep(PAUSE_S)
        asked_ns.append(time.monotonic_ns())
        await node.dispatch(noop, f"start-{i}")
    await anyio.sleep(10 * PAUSE_S)
    return {"asked_ns": asked_ns}


async def result_latency(node: Node, jobs: int) -> dict[str, Any]:
    """Dispatch into an idle pool and wait for the result, one at a time."""
    latency_s = []
    for i in range(jobs):
        await anyio.sleep(PAUSE_S)
        began_s = time.monotonic()
        ref = await node.dispatch(noop, f"result-{i}")
        await ref.result(timeout_s=WAIT_S)
        latency_s.append(time.monotonic() - began_s)
    return {"latency_s": latency_s}


async def open_loop(node: Node, rate_per_s: float, seconds: float) -> dict[str, Any]:
    """Dispatch at a fixed rate, whether or not earlier jobs have ended; latency to the result."""

    async def job(i: int) -> None:
        ref = await node.dispatch(noop, f"open-{rate_per_s:g}-{i}")
        await ref.result(timeout_s=WAIT_S)

    jobs = math.ceil(rate_per_s * seconds)
    return {"latency_s": await offer(job, rate_per_s=rate_per_s, jobs=jobs)}


DO: Final[dict[str, Callable[..., Awaitable[dict[str, Any]]]]] = {
    fn.__name__: fn
    for fn in (report, one_by_one, callers, many, start_latency, result_latency, open_loop)
}


# --- the process ----------------------------------------------------------------------------------


async def serve(role: str, pool: str, url: str, answer: Answer) -> None:
    """Be a member until standard input ends."""
    answer({"state": "ready"})
    await anyio.to_thread.run_sync(sys.stdin.readline)
    settings = Settings(lanes=int(os.environ.get(LANES, "1")))
    mine = handlers if role == "worker" else None
    async with Node(pool, url, handlers=mine, settings=settings) as node:
        answer({"state": "open"})
        while line := await anyio.to_thread.run_sync(sys.stdin.readline):
            asked = json.loads(line)
            answer(await DO[asked.pop("do")](node, **asked))


def main(serve: Serve) -> None:
    """Run `MODULE ROLE LOOP POOL URL`: what it serves, on which event loop, where."""
    role, loop, pool, url = sys.argv[1:]
    # Log lines go to standard output unless the user says otherwise: let them go to the other one.
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(told: dict[str, Any]) -> None:
        channel.write(json.dumps(told) + "\n")
        channel.flush()

    anyio.run(serve, role, pool, url, answer, backend=loop)


if __name__ == "__main__":
    main(serve)
