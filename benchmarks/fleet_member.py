"""A process of the benchmark of fleets: it holds as many nodes as it is told to.

Several nodes share an interpreter and an event loop, and so the time of one core; each has its own
connections, threads, actors and leases.  Lines of JSON each way, as of `member.py`, but it enters
no node before it is told to.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import sys
import time
from array import array
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
import attrs
from anyio.abc import TaskGroup

from benchmarks import member
from benchmarks.member import Answer
from benchmarks.openloop import offer
from pool import Handler, Handlers, Job, Node, PoolError, Settings
from pool.errors import InboxFull

WAIT_S: Final = 50.0  # the parent gives up a little later
LOOK_S: Final = 0.02  # between two looks at a copy of `workers`
_STATM: Final = Path("/proc/self/statm")

serving = Handlers()
asking = Handlers()


@attrs.define
class Seen:
    """What the handlers of this process noted; times are of the clock all processes share."""

    begun_ns: list[tuple[str, int]] = attrs.field(factory=list)  # key, first line of a service
    ended_ns: list[tuple[str, int]] = attrs.field(factory=list)  # key, last line of a service
    late_ns: list[tuple[str, int]] = attrs.field(factory=list)  # key, from due to received
    echoed: int = 0

    # Of a million jobs only each so manieth is noted: the notes must not be the memory measured.
    every: int = 1
    jobs: int = 0
    jobs_ns: array[int] = attrs.field(factory=lambda: array("q"))
    jobs_cpu_s: array[float] = attrs.field(factory=lambda: array("d"))
    jobs_rss: array[int] = attrs.field(factory=lambda: array("q"))


seen = Seen()
nodes: dict[str, Node] = {}  # those that are open, by name
_leave: dict[str, anyio.Event] = {}
_left: dict[str, anyio.Event] = {}
_heard: list[anyio.Event] = []  # of who waits for an answer to a notification


# --- handlers -------------------------------------------------------------------------------------


@serving.service("live")
async def live(job: Job) -> None:
    """Be there, and note when that begins and ends."""
    seen.begun_ns.append((job.key, time.monotonic_ns()))
    try:
        await anyio.sleep_forever()
    finally:
        seen.ended_ns.append((job.key, time.monotonic_ns()))


@serving.service("listen")
async def listen(job: Job) -> None:
    """Note how late each notification is; its payload is when it was due."""
    seen.begun_ns.append((job.key, time.monotonic_ns()))
    async for due_ns in job.notifications():
        seen.late_ns.append((job.key, time.monotonic_ns() - due_ns))


@serving.service("echo")
async def echo(job: Job, to: str) -> None:
    """Send each notification on to another key."""
    node = next(iter(nodes.values()))
    async for payload in job.notifications():
        await node.notify(to, payload)


@asking.service("hear")
async def hear(job: Job) -> None:
    """Wake who waits for the answer."""
    async for _ in job.notifications():
        _heard.pop().set()


@serving.job("tick")
async def tick(_: Job) -> None:
    """Do nothing but count."""
    seen.jobs += 1
    if seen.jobs % seen.every == 0:
        seen.jobs_ns.append(time.monotonic_ns())
        seen.jobs_cpu_s.append(time.process_time())
        seen.jobs_rss.append(rss_bytes())


@serving.job("noop")
async def noop(_: Job) -> None:
    """Do nothing."""


HANDLERS: Final = {"worker": serving, "asker": asking, "client": None}
_BY_NAME: Final[dict[str, Handler[[], None]]] = {"live": live, "listen": listen, "tick": tick}


# --- nodes ----------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Home:
    """Where nodes of this process live, and how they are made."""

    role: str
    pool: str
    url: str
    tasks: TaskGroup


async def join(
    home: Home,
    names: Sequence[str],
    capacity: int,
    workers: int,
    settings: dict[str, Any],
    at_once: int,
) -> dict[str, Any]:
    """Enter nodes, so many at once; a name is the label of the workers, a dot, a generation."""
    gate = anyio.Semaphore(at_once)

    async def hold(name: str, joined: anyio.Event) -> None:
        label = name.partition(".")[0]
        node = Node(
            home.pool,
            home.url,
            handlers=HANDLERS[home.role],
            settings=Settings(**settings),
            capacity=capacity,
            label=label,
        )
        _leave[name], _left[name] = anyio.Event(), anyio.Event()
        await gate.acquire()
        async with node:
            gate.release()
            for extra in range(1, workers):
                await node.add_worker(serving, capacity=capacity, label=f"{label}-{extra}")
            nodes[name] = node
            joined.set()
            await _leave[name].wait()
            del nodes[name]
        _left[name].set()

    all_joined = [anyio.Event() for _ in names]
    for name, joined in zip(names, all_joined, strict=True):
        home.tasks.start_soon(hold, name, joined)
    for joined in all_joined:
        await joined.wait()
    return {"pid": os.getpid(), "at_ns": time.monotonic_ns()}


async def leave(_: Home, names: Sequence[str]) -> dict[str, Any]:
    """Have nodes leave, all at once, as on SIGTERM."""
    for name in names:
        _leave[name].set()
    for name in names:
        await _left[name].wait()
    return {"at_ns": time.monotonic_ns()}


async def sees(_: Home, workers: int) -> dict[str, Any]:
    """Return when every node of this process sees so many workers."""
    for node in list(nodes.values()):
        while len(node.workers) != workers:  # noqa: ASYNC110 - users have nothing to wait for either
            await anyio.sleep(LOOK_S)
    return {"at_ns": time.monotonic_ns()}


# --- jobs -----------------------------------------------------------------------------------------


async def dispatch(_: Home, handler: str, prefix: str, first: int, count: int) -> dict[str, Any]:
    """Dispatch to the keys PREFIX-FIRST and so on, in one call; repeat what may be repeated."""
    began_ns, repeated = time.monotonic_ns(), -count
    keys, node = [f"{prefix}-{n}" for n in range(first, first + count)], any_node()
    while keys:
        repeated += len(keys)
        # Where the first try was carried out, and only its answer was lost, there is a job already.
        many = node.options(if_exists="attach") if repeated else node
        answers = await many.dispatch_many(_BY_NAME[handler], keys)
        refused = {key: a for key, a in zip(keys, answers, strict=True) if isinstance(a, PoolError)}
        for error in (each for each in refused.values() if not each.retryable):
            raise error
        keys = list(refused)
    return {"began_ns": began_ns, "ended_ns": time.monotonic_ns(), "repeated": repeated}


async def results(_: Home, jobs: int, rate_per_s: float) -> dict[str, Any]:
    """Dispatch at a fixed rate; return how late each result was, counted from when it was due."""

    async def one(i: int) -> None:
        ref = await any_node().dispatch(noop, f"noop-{i}")
        await ref.result(timeout_s=WAIT_S)

    return {"late_s": await offer(one, rate_per_s=rate_per_s, jobs=jobs)}


async def notify(_: Home, prefix: str, keys: int, notes: int, rate_per_s: float) -> dict[str, Any]:
    """Notify keys by turns at a fixed rate; what an inbox has no room for is counted."""
    refused, node, began_ns = 0, any_node(), time.monotonic_ns()

    async def one(i: int) -> None:
        nonlocal refused
        try:
            await node.notify(f"{prefix}-{i % keys}", began_ns + int(i * 1e9 / rate_per_s))
        except InboxFull:
            refused += 1

    spent_s = await offer(one, rate_per_s=rate_per_s, jobs=notes)
    seconds = (time.monotonic_ns() - began_ns) / 1e9
    return {"spent_s": spent_s, "refused": refused, "seconds": seconds}


async def flood(_: Home, prefix: str, keys: int, callers: int, seconds: float) -> dict[str, Any]:
    """Notify keys by turns from so many tasks, each awaiting its own."""
    node, turns = any_node(), itertools.count()
    began_s = time.monotonic()

    async def caller() -> None:
        while time.monotonic() < began_s + seconds:
            await node.notify(f"{prefix}-{next(turns) % keys}", time.monotonic_ns())

    async with anyio.create_task_group() as tasks:
        for _number in range(callers):
            tasks.start_soon(caller)
    return {"notes": next(turns), "seconds": time.monotonic() - began_s}


async def converse(_: Home, turns: int) -> dict[str, Any]:
    """Notify the echo and wait for its answer, one after another; return how long each took."""
    node, spent_s = any_node(), []
    await node.dispatch(hear, "hear-0")
    ref = await node.options(allow_unknown=True).dispatch("echo", "echo-0", "hear-0")
    await ref.started(timeout_s=WAIT_S)
    for turn in range(turns):
        answered = anyio.Event()
        _heard.append(answered)
        began_s = time.monotonic()
        await node.notify("echo-0", turn)
        with anyio.fail_after(WAIT_S):
            await answered.wait()
        spent_s.append(time.monotonic() - began_s)
        await anyio.sleep(member.PAUSE_S)
    return {"spent_s": spent_s}


# --- what was seen --------------------------------------------------------------------------------


async def news(_: Home, *, is_whole: bool = True) -> dict[str, Any]:
    """Tell, and forget, what services noted; or only tell how many there are of each."""
    if not is_whole:
        return {
            "begun": len(seen.begun_ns),
            "ended": len(seen.ended_ns),
            "late": len(seen.late_ns),
            "last_ns": seen.begun_ns[-1][1] if seen.begun_ns else 0,
        }
    told = {"begun": seen.begun_ns, "ended": seen.ended_ns, "late": seen.late_ns}
    seen.begun_ns, seen.ended_ns, seen.late_ns = [], [], []
    return told


async def count(_: Home, every: int) -> dict[str, Any]:
    """Note each so manieth job from now on."""
    seen.every = every
    return {}


async def counted(_: Home) -> dict[str, Any]:
    """Tell of each noted job when it began, and what this process had used by then."""
    marks = list(zip(seen.jobs_ns, seen.jobs_cpu_s, seen.jobs_rss, strict=True))
    return {"jobs": seen.jobs, "marks": marks}


async def cost(_: Home) -> dict[str, Any]:
    """Tell what this process has used."""
    return {"cpu_s": time.process_time(), "rss_bytes": rss_bytes()}


def any_node() -> Node:
    """Return a node of this process."""
    return next(iter(nodes.values()))


def rss_bytes() -> int:
    """Return the memory of this process; where only the greatest so far is known, that."""
    if _STATM.exists():
        return int(_STATM.read_text("ascii").split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


DO: Final[dict[str, Callable[..., Awaitable[dict[str, Any]]]]] = {
    fn.__name__: fn
    for fn in (
        join,
        leave,
        sees,
        dispatch,
        results,
        notify,
        flood,
        converse,
        news,
        count,
        counted,
        cost,
    )
}


async def serve(role: str, pool: str, url: str, answer: Answer) -> None:
    """Answer until standard input ends; then leave with all nodes."""
    answer({"state": "ready"})
    with suppress(KeyboardInterrupt):
        async with anyio.create_task_group() as tasks:
            home = Home(role=role, pool=pool, url=url, tasks=tasks)
            while line := await anyio.to_thread.run_sync(sys.stdin.readline):
                asked = json.loads(line)
                answer(await DO[asked.pop("do")](home, **asked))
            for left in _leave.values():
                left.set()


if __name__ == "__main__":
    member.main(serve)
