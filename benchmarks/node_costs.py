"""What nodes send for each operation, what they send at rest, and how much Python a job runs.

Real nodes on a real server, in one process.  Each has a IO of its own that notes what its bodies
send; an operation is over when each node's pipeline has answered a last PING, which comes behind
all that the operation had sent.  Where two nodes could overtake each other a handler waits, so that
the same calls are made on a slow machine and on a fast one, on asyncio and on trio.
"""

from __future__ import annotations

import statistics
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from types import FrameType
from typing import Any, Final

import anyio
import attrs

from benchmarks.budget import Figure
from pool import Call, Handlers, Job, Node, Settings
from pool.core.lease import Timing
from pool.jobs.worker.worker import Worker
from pool.names import Control
from pool.ops.cli.ttl import change
from pool.ops.inspect import find
from pool.redis.connection import Server
from pool.redis.io.system import Body, BodyIO, Entries, Group, Reply, RunningBody, SystemIO
from pool.redis.pipeline import Pipeline
from pool.redis.scripts import Command, ScriptCall
from pool.redis.url import Url

# What belongs to no operation: a reaper's look at a worker that has just come, whenever that is.
BESIDE: Final = ("PING", "fence")
# Nothing but the operation under measurement happens within this time: no renewal, no probe.
QUIET_TTL_S: Final = 600.0
QUIET: Final = Settings(lease_ttl_s=QUIET_TTL_S)
SHORT_TTL_S: Final = 1.0
SHORT_RENEW_S: Final = Timing(SHORT_TTL_S).renew_s
PERIODS: Final = 7
BATCH: Final = 32
JOBS: Final = 512  # over which Python is counted
PATIENCE_S: Final = 30.0
LOOK_AGAIN_S: Final = 0.002


# --- what is sent ---------------------------------------------------------------------------------


class Counting(SystemIO):
    """The production IO; it notes the name of every call, and every read that brought something.

    With `is_resting` it notes reads that brought nothing too.
    """

    def __init__(self, *, is_resting: bool = False) -> None:
        super().__init__()
        self.is_resting = is_resting
        self.noted: list[str] = []  # by all bodies; appending is one step

    def start(self, name: str, url: Url, body: Body, **options: Any) -> RunningBody:
        """Start the body on a port that notes."""

        async def counted(body_io: BodyIO) -> None:
            await body(_CountingBodyIO(body_io, name, self))

        return super().start(name, url, counted, **options)


@attrs.define(eq=False)
class _CountingBodyIO:
    """A port that notes what goes through it."""

    port: BodyIO
    name: str
    io: Counting

    @property
    def closing(self) -> bool:
        return self.port.closing

    @closing.setter
    def closing(self, value: bool) -> None:
        self.port.closing = value

    @property
    def server(self) -> Server | None:
        return self.port.server

    def is_connected(self) -> bool:
        return self.port.is_connected()

    async def connect(self, *, timeout_s: float) -> None:
        await self.port.connect(timeout_s=timeout_s)

    @property
    def moved_s(self) -> float:
        return self.port.moved_s

    @property
    def came_bytes(self) -> int:
        """How many bytes of replies came last."""
        return self.port.came_bytes

    async def run(
        self, calls: Sequence[Command], *, timeout_s: float, longest_s: float | None = None
    ) -> list[Reply]:
        self.io.noted += [_name(call) for call in calls]
        return await self.port.run(calls, timeout_s=timeout_s, longest_s=longest_s)

    async def read(
        self,
        positions: Mapping[str, str],
        *,
        block_s: float,
        timeout_s: float,
        count: int,
        group: Group | None = None,
    ) -> Entries:
        got = await self.port.read(
            positions, block_s=block_s, timeout_s=timeout_s, count=count, group=group
        )
        if got or self.io.is_resting:
            self.io.noted.append(f"read by {self.name}")
        return got

    async def sleep(self, seconds: float) -> None:
        await self.port.sleep(seconds)

    async def wait(self) -> None:
        await self.port.wait()

    def post(self, fn: Callable[..., object], *args: Any) -> bool:
        return self.port.post(fn, *args)


def _counted(noted: Sequence[str]) -> Counter[str]:
    return Counter(name for name in noted if name not in BESIDE)


def _name(call: Command) -> str:
    return call.script.name if isinstance(call, ScriptCall) else str(call[0])


# --- operations -----------------------------------------------------------------------------------


@attrs.define(eq=False)
class _Stage:
    """A client and a worker, and handlers that do as they are told."""

    client: Node
    workshop: Node
    sent: Counting
    done: Counting
    gate: anyio.Event = attrs.field(factory=anyio.Event)
    heard: int = 0
    figures: dict[str, Figure] = attrs.field(factory=dict)

    @property
    def worker(self) -> Worker:
        assert self.workshop._wiring is not None
        [worker] = self.workshop._wiring.membership.workers.values()
        return worker

    async def settle_down(self) -> None:
        """Return once both nodes have sent all that they had to send."""
        for node in (self.client, self.workshop):
            assert node._pipeline is not None
            await node._pipeline.execute("PING")

    async def measure(
        self,
        name: str,
        what: str,
        operation: Callable[[], Awaitable[object]],
        *,
        of: Sequence[str] = ("client", "worker"),
        samples: int = 1,
    ) -> None:
        """Note the calls and reads of each side that has a part in it; of samples, the fewest."""
        found: list[dict[str, Counter[str]]] = []
        for _ in range(samples):
            await self.settle_down()
            self.sent.noted.clear()
            self.done.noted.clear()
            await operation()
            await self.settle_down()
            seams = {"client": self.sent, "worker": self.done}
            found.append({side: _counted(io.noted) for side, io in seams.items()})
        for side in of:
            whose = "caller" if side == "client" else "worker"
            noted = min((each[side] for each in found), key=Counter.total)
            listed = ", ".join(f"{n} {call}" for call, n in sorted(noted.items()))
            self.figures[f"calls.{name}.{side}"] = Figure(
                value=noted.total(), unit="calls", what=f"{what}, {whose}'s node", parts=listed
            )

    async def until(self, is_so: Callable[[], object]) -> None:
        """Look again until it is so: there is no event to wait for."""
        while True:
            if is_so():
                return
            await anyio.sleep(LOOK_AGAIN_S)

    # --- the operations ---------------------------------------------------------------------------

    async def quick_job(self) -> None:
        self.heard = 0
        await self.client.dispatch("quick", "quick-1")
        await self.until(lambda: self.heard)
        await self.worker.wait_idle()

    async def many(self) -> None:
        refs = await self.client.dispatch_many("held", [Call(f"many-{n}") for n in range(BATCH)])
        assert not any(isinstance(ref, Exception) for ref in refs)

    async def awaited_job(self) -> None:
        """The caller has asked for the result before the handler ends, and after it began."""
        ref = await self.client.dispatch("held", "held-1")
        await self.until(lambda: self.is_acknowledged("held-1"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ref.result)
            await self.until(lambda: "look" in self.sent.noted)
            await self.settle_down()
            self.gate.set()
        await self.worker.wait_idle()

    async def notified(self) -> None:
        before = self.heard
        await self.client.notify("service-1", "news")
        await self.until(lambda: self.heard > before)
        await self.until(lambda: not self.worker._lanes[0].box.has_edges)

    async def stopped(self) -> None:
        """The caller waits for the end before the handler ends."""
        self.gate = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.client.stop, "service-1")
            await self.until(lambda: "look" in self.sent.noted)
            await self.settle_down()
            self.gate.set()
        await self.worker.wait_idle()

    def is_acknowledged(self, key: str) -> bool:
        run = self.worker.runs.get(key)
        return run is not None and run.is_acknowledged


def _handlers(stage: Callable[[], _Stage]) -> Handlers:
    handlers = Handlers()

    @handlers.job("quick")
    async def quick(_: Job) -> None:
        stage().heard += 1

    @handlers.job("held")
    async def held(_: Job) -> None:
        await stage().gate.wait()

    @handlers.service("service")
    async def service(job: Job) -> None:
        try:
            async for _ in job.notifications():
                stage().heard += 1
        finally:
            with anyio.CancelScope(shield=True):
                await stage().gate.wait()

    return handlers


@asynccontextmanager
async def _staged(url: str, pool: str) -> AsyncIterator[_Stage]:
    stages: list[_Stage] = []
    sent, done = Counting(), Counting()
    async with (
        Node(
            pool,
            url,
            handlers=_handlers(lambda: stages[0]),
            settings=QUIET,
            observers=(),
            _io=done,
        ) as workshop,
        Node(pool, url, settings=QUIET, observers=(), _io=sent) as client,
    ):
        stage = _Stage(client, workshop, sent, done)
        stages.append(stage)
        await stage.until(lambda: client.workers)
        # What only the first operation pays for has been paid: scripts are loaded.
        await stage.quick_job()
        await stage.worker.wait_idle()
        yield stage


async def node_costs(url: str, pool: str) -> dict[str, Figure]:
    """Measure what operations send; the pool is new, and its keys are the caller's to delete."""
    with anyio.fail_after(PATIENCE_S):
        async with _staged(url, pool) as stage:
            measure = stage.measure
            # A machine that stands still in the middle of a job has it acknowledged before its end.
            await measure("job", "a job that nobody waits for", stage.quick_job, samples=3)
            await measure("result", "a job and its result", stage.awaited_job)
            client = stage.client
            await client.dispatch("service", "service-1")
            await stage.until(lambda: stage.is_acknowledged("service-1"))
            await stage.notified()  # the first has to find the owner
            await measure("notify", "a notification, until it is handled", stage.notified)
            await measure("stop", "stopping a service", stage.stopped)
            stage.gate = anyio.Event()
            await measure("dispatch_many", f"{BATCH} jobs at once", stage.many, of=["client"])
            await stage.until(lambda: all(r.is_acknowledged for r in stage.worker.runs.values()))
            stage.gate.set()
            await stage.worker.wait_idle()
            await _maps_and_streams(stage)
            return stage.figures


async def _maps_and_streams(stage: _Stage) -> None:
    client = stage.client
    async with client.map("prices") as prices, stage.workshop.map("prices") as copy:

        async def write() -> None:
            written = await prices.set_and_wait("k", "v2")
            await copy.wait_for(written.at)

        await prices.set("k", "v1")
        await write()
        await stage.measure("map.set_and_wait", "a write to a map, until two nodes have it", write)
    stream = client.stream("events")
    await stream.add("made", b"x")
    async with stream.sink("mailer") as sink:

        async def take() -> None:
            await stream.add("made", b"x")
            await sink.ack(await anext(sink))

        await sink.ack(await anext(sink))
        # What is in hand for long is noted, too, and on a busy machine that is soon.
        told = "an event added, taken and acknowledged"
        await stage.measure("sink", told, take, of=["client"], samples=5)


# --- at rest --------------------------------------------------------------------------------------


async def go_by(url: str, pool: str, ttl_s: float) -> None:
    """Have the pool of another measurement go by the TTL of this one."""
    address = Url.parse(url).at(Control(pool).prefix)
    pipeline = await Pipeline.open(SystemIO(), address, op_timeout_s=PATIENCE_S)
    try:
        found = await find(pipeline, pool)
        if found is not None:
            await change(pipeline, found, ttl_s)
    finally:
        await pipeline.aclose(1.0)


async def rest_costs(url: str, pool: str) -> dict[str, Figure]:
    """Measure what a node with a worker sends between two of its renewals: the median of each."""
    await go_by(url, pool, SHORT_TTL_S)
    handlers = _handlers(_nobody)
    io = Counting(is_resting=True)
    with anyio.fail_after(PATIENCE_S):
        async with Node(
            pool,
            url,
            handlers=handlers,
            settings=Settings(lease_ttl_s=SHORT_TTL_S),
            observers=(),
            _io=io,
        ):
            io.noted.clear()
            while True:
                await anyio.sleep(SHORT_RENEW_S / 2)
                noted = list(io.noted)
                if noted.count("renew") >= PERIODS + 2:
                    break
    periods: list[Counter[str]] = []
    for name in noted:
        if name == "renew":
            periods.append(Counter())
        if periods:
            periods[-1][name] += 1
    periods = periods[1 : 1 + PERIODS]  # joining may reach into the first one
    names = {name for period in periods for name in period}
    medians = {name: statistics.median(period[name] for period in periods) for name in names}
    listed = ", ".join(f"{n:g} {name}" for name, n in sorted(medians.items()) if n)
    return {
        "calls.rest": Figure(
            value=sum(medians.values()),
            unit="calls",
            what="a node at rest, with a worker, in one renewal period (2 s by default)",
            parts=listed,
        )
    }


def _nobody() -> _Stage:
    raise AssertionError("a handler was called in a pool at rest")


# --- Python ---------------------------------------------------------------------------------------


@contextmanager
def _lines_of_ours() -> Iterator[Callable[[], int]]:
    """Count the lines of the library that this thread runs; what it calls outside is not in it.

    Lines are the one measure that is much the same in all versions of Python: opcodes are not, and
    allocations depend on free lists.  Methods that attrs has generated are ours too.
    """
    count = 0

    def on_line(_: FrameType, event: str, __: Any) -> Any:
        nonlocal count
        if event == "line":
            count += 1
        return on_line

    def on_call(frame: FrameType, _: str, __: Any) -> Any:
        name = frame.f_globals.get("__name__", "")
        return on_line if name == "pool" or name.startswith("pool.") else None

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        yield lambda: count
    finally:
        sys.settrace(before)


async def python_costs(url: str, pool: str) -> dict[str, Figure]:
    """Measure the event loop's Python work: bulk dispatch and, of a backlog, each job's life."""
    heard, dispatched, ran = 0, 0, 0
    is_over = anyio.Event()
    handlers = Handlers()

    @handlers.job("noop")
    async def noop(_: Job) -> None:
        nonlocal heard
        heard += 1
        if heard % JOBS == 0:
            is_over.set()

    with anyio.fail_after(PATIENCE_S):
        await go_by(url, pool, QUIET_TTL_S)
        async with Node(pool, url, settings=QUIET, observers=()) as node:
            for name in ("warm", "measured"):  # first calls import modules and fill caches
                is_over = anyio.Event()
                calls = [Call(f"{name}-{n}") for n in range(JOBS)]
                with _lines_of_ours() as lines:
                    await node.dispatch_many(noop, calls)
                    dispatched = lines()
                    added = await node.add_worker(handlers)
                    assert node._wiring is not None
                    [worker] = node._wiring.membership.workers.values()
                    await is_over.wait()
                    await worker.wait_idle()
                    ran = lines() - dispatched
                await added.remove()
    return {
        "python.dispatch_many": Figure(
            value=dispatched / JOBS,
            unit="lines",
            what=f"lines of pool/ run on the event loop per job dispatched, {JOBS} at once",
        ),
        "python.drain": Figure(
            value=ran / JOBS,
            unit="lines",
            what=f"lines of pool/ run on a worker's event loop per job of a backlog of {JOBS}",
        ),
    }
