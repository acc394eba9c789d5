"""One node in a process of its own: `python member.py CAST`, where CAST is a JSON object.

Handlers, the node's events and the answers to commands are appended to the ledger, a file outside
Redis that all processes of a test write to: one `write` a line, in append mode, so that lines do
not mix and what was written before a SIGKILL stays.  Commands come on standard input, one JSON
object a line; at its end the process dies with the test.  SIGTERM leaves the pool.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import attrs

from pool import Call, Handlers, Job, JobRef, Node, PoolError, Retry, Settings
from pool.core.record import Start
from pool.events import Event
from pool.names import key_hash
from pool.redis.commands.edges import AdvanceGuard, Edge
from pool.redis.commands.lane import Lane
from pool.redis.scripts import ScriptCall

LOOK_S = 0.02  # how often a held handler looks whether its gate is open
TICK_S = 0.02
LIMIT_S = 0.6  # run-time limit of the handlers that do not obey it
HOLD_S = 4  # for which a handler keeps the interpreter to itself


class Ledger:
    """The writing end."""

    def __init__(self, path: str, node: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._node = node
        self._runs = 0

    def write(self, what: str, **facts: Any) -> None:
        line = {"at_s": time.monotonic(), "what": what, "node": self._node, **facts}
        os.write(self._fd, json.dumps(line, default=str).encode() + b"\n")

    @contextmanager
    def running(self, job: Job, counted: Callable[[], int] = lambda: 0) -> Iterator[None]:
        """Write that a handler has started and, whatever happens, how it has ended."""
        self._runs += 1
        about = {
            "key": job.key,
            "job": job.id,
            "epoch": job.epoch,
            "attempt": job.attempt,
            "run": self._runs,
        }
        self.write("start", count=counted(), **about)
        how = "failed"
        try:
            yield
            how = "returned"
        except anyio.get_cancelled_exc_class():
            how = "cancelled"
            raise
        finally:
            self.write("end", how=how, count=counted(), **about)


def make(ledger: Ledger, node: str) -> Handlers:
    """Return the handlers of every member."""
    handlers = Handlers()

    def told(job: Job) -> dict[str, Any]:
        return {"epoch": job.epoch, "attempt": job.attempt, "node": node}

    @handlers.job("nap")
    async def nap(job: Job, seconds: float) -> dict[str, Any]:
        with ledger.running(job):
            await anyio.sleep(seconds)
        return told(job)

    @handlers.job("held")
    async def held(job: Job, gate: str) -> dict[str, Any]:
        with ledger.running(job):
            await _opened(gate)
        return told(job)

    @handlers.job("flaky")
    async def flaky(job: Job, after_s: float) -> dict[str, Any]:
        with ledger.running(job):
            if job.attempt == 1:
                raise Retry(after_s=after_s)
        return told(job)

    @handlers.job("stubborn", timeout_s=LIMIT_S, attempts_max=1)
    async def stubborn(job: Job, gate: str) -> dict[str, Any]:
        with ledger.running(job), anyio.CancelScope(shield=True):
            await _opened(gate)
        return told(job)

    @handlers.job("blocking", timeout_s=LIMIT_S, attempts_max=2, backoff_s=0.05)
    async def blocking(job: Job, gate: str) -> dict[str, Any]:
        with ledger.running(job):
            if job.attempt == 1:
                await anyio.sleep(LIMIT_S * 0.8)  # long enough for the limit to stand in Redis
                while not Path(gate).exists():  # noqa: ASYNC240 - that it blocks is the point
                    threading.Event().wait(LOOK_S)
        return told(job)

    @handlers.job("stuck")
    async def stuck(job: Job, seconds: float) -> dict[str, Any]:
        with ledger.running(job):
            threading.Event().wait(seconds)
        return told(job)

    @handlers.service("clock", backoff_s=0.1)
    async def clock(job: Job) -> None:
        ticks = job.state or 0
        try:
            with ledger.running(job, lambda: ticks):
                while True:  # the first one at once: however short, no run hands over nothing
                    ticks += 1
                    await anyio.sleep(TICK_S)
        finally:
            job.state = ticks

    async def deadly(job: Job, how: str, after_s: float = 0.0) -> None:
        """End this process, at the first instruction or a little later; `""`: only run."""
        with ledger.running(job):
            if after_s:
                await anyio.sleep(after_s)
            match how:
                case "exit":
                    os._exit(66)
                case "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "segv":
                    os.kill(os.getpid(), signal.SIGSEGV)
                case "hold":
                    ctypes.PyDLL(None).sleep(HOLD_S)  # nobody else gets the interpreter
            await anyio.sleep_forever()

    handlers.job("deadly")(deadly)
    handlers.service("perilous")(deadly)
    return handlers


async def _opened(gate: str) -> None:
    while not Path(gate).exists():  # noqa: ASYNC110, ASYNC240 - other processes open it
        await anyio.sleep(LOOK_S)


# --- traps: faults at a point that no signal from outside could hit ------------------------------


def trap(kind: str, ledger: Ledger) -> None:
    """Have this process die at a marker, or be deaf."""
    advance, parse = Lane.advance, Start.parse
    reaps = 0
    heard: set[tuple[str, bytes]] = set()

    def die() -> None:
        ledger.write("trap", how=kind)
        os.kill(os.getpid(), signal.SIGKILL)

    def trapped(
        self: Lane, guard: AdvanceGuard, source: str, edges: Sequence[Edge], **rest: Any
    ) -> ScriptCall:
        nonlocal reaps
        if kind == "settle" and guard == "own" and any(edge.letter == "d" for edge in edges):
            die()
        if kind == "reap" and guard == "reap":
            reaps += 1
            if reaps == 2:
                die()
        return advance(self, guard, source, edges, **rest)

    def deaf(entry_id: str, fields: dict[str, bytes]) -> Start | None:
        """Miss every start the first time that it is told."""
        known = (entry_id, fields.get("k", b""))
        if known not in heard:
            heard.add(known)
            ledger.write("trap", how=kind)
            return None
        return parse(entry_id, fields)

    if kind in ("settle", "reap"):
        Lane.advance = trapped  # type: ignore[assignment, method-assign]
    elif kind == "deaf":
        Start.parse = staticmethod(deaf)  # type: ignore[method-assign]


# --- commands ------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Obedient:
    """Carries out what the test asks for."""

    node: Node
    ledger: Ledger
    _refs: dict[str, JobRef[Any]] = attrs.field(factory=dict)

    async def obey(self) -> None:
        """Take commands until there are no more; several may be under way."""
        async with anyio.create_task_group() as tasks:
            async for command in _commands():
                tasks.start_soon(self._carry_out, command)
        os.kill(os.getpid(), signal.SIGKILL)

    async def _carry_out(self, command: dict[str, Any]) -> None:
        ask, do = command.pop("ask"), command.pop("do")
        carry_out: Callable[..., Coroutine[Any, Any, Any]] = getattr(self, do)
        try:
            self.ledger.write("reply", ask=ask, value=await carry_out(**command))
        except PoolError as error:
            self.ledger.write("reply", ask=ask, value=f"!{error.code}")

    async def dispatch(self, handler: str, calls: list[list[Any]], **options: Any) -> list[str]:
        wanted = [Call(key, *args) for key, *args in calls]
        refs = await self.node.options(**options).dispatch_many(handler, wanted)
        self._refs.update({ref.job_id: ref for ref in refs if isinstance(ref, JobRef)})
        return [ref.job_id if isinstance(ref, JobRef) else f"!{ref.code}" for ref in refs]

    async def one_by_one(self, handler: str, calls: list[list[Any]], every_s: float) -> list[str]:
        jobs = []
        for key, *args in calls:
            ref = await self.node.dispatch(handler, key, *args)
            self._refs[ref.job_id] = ref
            jobs.append(ref.job_id)
            await anyio.sleep(every_s)
        return jobs

    async def results(self, jobs: list[str], timeout_s: float) -> dict[str, Any]:
        """Wait for all of them at the same time."""
        values: dict[str, Any] = {}

        async def result(job_id: str) -> None:
            try:
                values[job_id] = await self._refs[job_id].result(timeout_s)
            except PoolError as error:
                values[job_id] = f"!{error.code}"
            except TimeoutError:
                values[job_id] = "!TIMEOUT"

        async with anyio.create_task_group() as tasks:
            for job_id in jobs:
                tasks.start_soon(result, job_id)
        return values

    async def status(self, jobs: list[str]) -> list[dict[str, Any]]:
        return [attrs.asdict(await self._refs[job_id].status()) for job_id in jobs]

    async def knows(self, workers: list[str]) -> None:
        """Wait until this member's map has these workers."""
        while not {info.id for info in self.node.workers} >= set(workers):  # noqa: ASYNC110
            await anyio.sleep(LOOK_S / 4)

    async def first_ranked(self, handler: str, keys: list[str]) -> dict[str, str]:
        """Say which worker should have each key, by the map that this member has."""
        assert self.node._wiring is not None
        known = self.node._wiring.context.roster.candidates
        return {key: known.ranked(key_hash(key), handler, 1)[0] for key in keys}

    async def drain(self) -> None:
        await self.node.drain()


async def _commands() -> AsyncIterator[dict[str, Any]]:
    while line := await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
        yield json.loads(line)


async def main(cast: dict[str, Any]) -> None:
    ledger = Ledger(cast["ledger"], cast["name"])

    def note(event: Event) -> None:
        ledger.write("event", event=event.event, facts=attrs.asdict(event))

    trap(cast["trap"], ledger)
    node = Node(
        cast["pool"],
        cast["url"],
        handlers=None if cast["is_client"] else make(ledger, cast["name"]),
        settings=Settings(**cast["settings"]),
        capacity=cast["capacity"],
        label=cast["label"],
        observers=(note,),
    )
    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        async with node:
            ledger.write("ready", worker=[w.id for w in node.workers if w.node == node.id])
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(Obedient(node, ledger).obey)
                async for _ in signals:
                    break
                tasks.cancel_scope.cancel()
    ledger.write("left")
    os._exit(0)  # a thread still reads standard input


if __name__ == "__main__":
    told: dict[str, Any] = json.loads(sys.argv[1])
    anyio.run(main, told, backend=told["loop"])
