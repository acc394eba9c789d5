"""One process under measurement: it writes a replicated map, or holds copies of it.

    parent --{"do": ..., arguments}--> stdin    stdout --{results}--> parent     (as `member.py`)

Each copy is a `ReplicatedMap.open()` of its own, with its own connections, threads and snapshot, as
if it were alone in its process.  All processes of a host share the monotonic clock, so a moment of
one can be subtracted from a moment of another.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import anyio
import anyio.to_thread
import attrs
from anyio.abc import TaskGroup

from benchmarks.member import Answer, main
from benchmarks.openloop import offer
from pool import ReplicatedMap
from pool.errors import StoreUnavailable
from pool.maps import Resync, Watch
from pool.names import Control
from pool.redis.io.system import SystemIO
from pool.redis.pipeline import Pipeline
from pool.redis.url import Url

MAP: Final = "flags"
LIST: Final = "list"
BATCH: Final = 256  # keys, or items, in one write
BATCH_BYTES: Final = 1024 * 1024  # of their values
SAMPLE_PAUSE_S: Final = 0.002  # between two samples: what the last one caused is over
WAIT_S: Final = 60.0
READS: Final = 100_000


@attrs.define(eq=False)
class Copy:
    """One copy, and what its watch was told."""

    map: ReplicatedMap[str]
    revision: int = 0
    resyncs: int = 0


@attrs.define(eq=False)
class Process:
    """What this process holds, and what it can be asked: its public methods."""

    pool: str
    url: str
    copies: list[Copy] = attrs.field(init=False, factory=list)
    arrived_ns: dict[int, int] = attrs.field(init=False, factory=dict)  # at the last of our copies
    _stack: AsyncExitStack = attrs.field(init=False, factory=AsyncExitStack)
    _tasks: TaskGroup = attrs.field(init=False)
    _bell: anyio.Event = attrs.field(init=False, factory=anyio.Event)

    async def __aenter__(self) -> Self:
        self._tasks = await self._stack.enter_async_context(anyio.create_task_group())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.__aexit__(kind, error, traceback)

    # --- copies -----------------------------------------------------------------------------------

    async def hold(self, count: int) -> dict[str, Any]:
        """Open so many copies more, one after another; tell how long each took to join."""
        joins_s = []
        for _ in range(count):
            began_s = time.perf_counter()
            opened = ReplicatedMap.open(self.url, MAP, pool=self.pool)
            copy = Copy(await self._stack.enter_async_context(opened))
            joins_s.append(time.perf_counter() - began_s)
            self.copies.append(copy)
            self._tasks.start_soon(self._listen, copy, copy.map.watch())
        return {"joins_s": joins_s}

    async def _listen(self, copy: Copy, watch: Watch[str]) -> None:
        async for news in watch:
            self.arrived_ns[news.revision] = time.monotonic_ns()  # the last copy's stays
            copy.revision = news.revision
            copy.resyncs += isinstance(news, Resync)
            self._bell.set()

    async def arrivals(self, revision: int) -> dict[str, Any]:
        """Wait until all copies have that revision; tell when the last one had each."""
        with anyio.fail_after(WAIT_S):
            while any(copy.revision < revision for copy in self.copies):
                self._bell = anyio.Event()
                await self._bell.wait()
        told = {
            "arrived_ns": list(self.arrived_ns.items()),
            "resyncs": sum(copy.resyncs for copy in self.copies),
        }
        self.arrived_ns.clear()
        for copy in self.copies:
            copy.resyncs = 0
        return told

    # --- writes -----------------------------------------------------------------------------------

    async def fill(self, keys: int, items: int, size: int = 0) -> dict[str, Any]:
        """Put so many keys, and a list of so many items, into the map, each of so many bytes."""
        target = self.copies[0].map
        at, batch = target.at, max(1, min(BATCH, BATCH_BYTES // max(1, size)))
        for first in range(0, keys, batch):
            numbers = range(first, min(keys, first + batch))
            at = await target.update({f"key-{i:08}": f"value {i:010}".ljust(size) for i in numbers})
        for first in range(0, items, batch):
            numbers = range(first, min(items, first + batch))
            names = [f"item-{i:08}".ljust(size) for i in numbers]
            at = (await target.append(LIST, *names)).at
        await target.wait_for(at)
        return {"revision": at.revision}

    async def latency(self, samples: int) -> dict[str, Any]:
        """Write one after another, each kind in turn, and a bare HSET through such a pipeline."""
        target = self.copies[0].map
        pipeline = await Pipeline.open(SystemIO(), Url.parse(self.url), op_timeout_s=2.0)
        raw = Control(self.pool).map_data("raw")
        kinds: dict[str, Callable[[int], Awaitable[Any]]] = {
            "hset": lambda i: pipeline.execute("HSET", raw, "switch", f"value {i:010}"),
            "set": lambda i: target.set("switch", f"value {i:010}"),
            "set_and_wait": lambda i: target.set_and_wait("switch", f"value {i:010}"),
            "increment": lambda _: target.increment("counter"),
            "append": lambda i: target.append(LIST, f"sample-{time.monotonic_ns()}-{i}"),
        }
        spent_s: dict[str, list[float]] = {name: [] for name in kinds}
        for i in range(samples):
            for name, write in kinds.items():
                await anyio.sleep(SAMPLE_PAUSE_S)
                began_s = time.perf_counter()
                await write(i)
                spent_s[name].append(time.perf_counter() - began_s)
        await pipeline.aclose(1.0)
        return {"spent_s": spent_s}

    async def paced(self, writes: int, rate_per_s: float) -> dict[str, Any]:
        """Set one key at a fixed rate; tell when each revision was asked for.

        A write that has no answer in time is part of the answer: the rate was too high.
        """
        target, began_ns, unanswered = self.copies[0].map, {}, 0

        async def write(i: int) -> None:
            nonlocal unanswered
            now_ns = time.monotonic_ns()
            try:
                written = await target.set("switch", f"value {i:010}")
            except StoreUnavailable:
                unanswered += 1
            else:
                began_ns[written.revision] = now_ns

        await offer(write, rate_per_s=rate_per_s, jobs=writes)
        return {"began_ns": list(began_ns.items()), "unanswered": unanswered}

    # --- memory -----------------------------------------------------------------------------------

    async def memory(self) -> dict[str, Any]:
        """Tell how many bytes of memory this process has, and at most ever had."""
        gc.collect()
        kib = {name: of_status(name) for name in ("VmRSS", "VmHWM")}
        return {"now": 1024 * kib["VmRSS"], "highest": 1024 * kib["VmHWM"]}

    # --- reads ------------------------------------------------------------------------------------

    async def reads(self, keys: int) -> dict[str, Any]:
        """Read keys of the copy, and of a dict that holds the same."""
        target = self.copies[0].map
        names = [f"key-{i * 7919 % keys:08}" for i in range(READS)]
        plain = target.snapshot()
        spent_ns = {}
        for name, get in (("dict_get", plain.get), ("get", target.get)):
            began_ns = time.perf_counter_ns()
            for key in names:
                get(key)
            spent_ns[name] = (time.perf_counter_ns() - began_ns) / READS
        return {"spent_ns": spent_ns}


def of_status(name: str) -> int:
    """Return what Linux says of this process, in KiB."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


async def serve(role: str, pool: str, url: str, answer: Answer) -> None:
    """Answer until standard input ends."""
    assert role == "copies"
    async with Process(pool, url) as process:
        answer({"state": "ready"})
        while line := await anyio.to_thread.run_sync(sys.stdin.readline):
            asked = json.loads(line)
            answer(await getattr(process, asked.pop("do"))(**asked))


if __name__ == "__main__":
    main(serve)
