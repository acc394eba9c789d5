"""The IO of one simulated process: the product's own body IO, in a world of its own."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any

import attrs

from pool.core.ids import SEED_BYTES, Ids
from pool.core.walk import PAGES, Pages
from pool.errors import PoolError
from pool.redis.connection import Connection
from pool.redis.io.body import ConnectionIO, Handle
from pool.redis.io.loops import current_loop
from pool.redis.io.system import Body, Loop, OnEnd, RunningBody, Waiter
from pool.redis.io.task import Care, supervised
from pool.redis.url import Url
from tests.verify.history import MOVED_S
from tests.verify.sim.server import PIECE_S, RemoteConnection, Server
from tests.verify.sim.world import Process, Thread, Timer


class SimConnection(Connection):
    """The product's own connection, on a stream of bytes to the simulated server.

    A connection is there at once, or is refused; the greeting takes its time.
    """

    def __init__(
        self, url: Url, name: str, remote: Server, thread: Thread, on_moved: Callable[[], object]
    ) -> None:
        # Where the primary of a hash tag is, is known here.
        super().__init__(attrs.evolve(url, kind="tcp"), name, thread.process.clock)
        self._on_moved = on_moved
        self._remote = remote
        self._thread = thread
        self._found: RemoteConnection | None = None

    def shut(self) -> None:
        if self._found is not None:
            self._remote.drop(self._found)

    def close(self) -> None:
        if self._found is not None:
            self._remote.close(self._found)
        self._socket = self._poll = self._found = None

    def abandon(self) -> None:
        raise AssertionError("no simulated process forks")

    async def _apart(
        self, fn: Callable[..., Any], *args: Any, discard: Callable[[Any], object]
    ) -> Any:
        del fn, args, discard
        if not self._remote.is_up:
            raise ConnectionRefusedError
        self._found = self._remote.connect(self._thread)
        return self._found

    def _poll_of(self, found: Any) -> Any:
        return found

    async def _send(self, found: Any, packed: bytes) -> None:
        self._left_s()
        await self._carry(found, packed)
        self._sent_bytes = len(packed)
        self._remote.send(found, packed)

    async def _carry(self, found: Any, packed: bytes) -> None:
        """Have it leave piece by piece while the line is thin; of a part, what is whole arrives."""
        network, process = self._remote.network, self._thread.process
        try:
            while (rate := network.bytes_per_s(process)) and self._sent_bytes < len(packed):
                found.ticket = self._thread.ticket
                await self._thread.park(min(PIECE_S, self._left_s()))
                found.ticket = None
                if not found.is_open:
                    raise ConnectionResetError
                size = min(max(1, int(rate * PIECE_S)), len(packed) - self._sent_bytes)
                self._sent_bytes += size
                self._move()
        except OSError:
            self._remote.send(found, packed[: self._sent_bytes])
            raise

    def _move(self) -> None:
        self.moved_s = self._clock()
        self._on_moved()

    async def _receive(self, found: Any) -> int:
        self._left_s()
        while not found.inbox:
            if not found.is_open:
                raise ConnectionResetError
            if (left_s := self._ends_s - self._clock()) <= 0:
                raise TimeoutError
            found.ticket = self._thread.ticket
            await self._thread.park(left_s)
            found.ticket = None
        self._move()
        size = min(len(found.inbox), len(self._buffer))
        self._buffer[:size] = found.inbox[:size]
        del found.inbox[:size]
        return size


class SimBell:
    """A bell whose waits park the thread."""

    def __init__(self, thread: Thread) -> None:
        self._thread = thread
        self._rung = False
        self._ticket: int | None = None

    def ring(self) -> None:
        if self._ticket is not None:
            self._thread.resume(self._ticket, None)
            self._ticket = None
        else:
            self._rung = True

    async def wait(self) -> None:
        await self._park(None)

    async def sleep(self, seconds: float) -> None:
        await self._park(seconds)

    async def _park(self, seconds: float | None) -> None:
        if not self._rung:
            self._ticket = self._thread.ticket
            await self._thread.park(seconds)
            self._ticket = None
        self._rung = False


class _SimBody(Handle):
    """One body that runs beside the loop of its process."""

    def __init__(self, process: Process, on_end: OnEnd | None) -> None:
        super().__init__(on_end)
        self.thread = Thread(process, self._ended)
        self._process = process

    @property
    def is_dead(self) -> bool:
        """Whether it has ended, and nobody had told it to."""
        return self.thread.is_over and not self.body_io.closing

    def _ended(self, error: BaseException | None) -> None:
        self.body_io.connection.close()
        self._process.post(self._end, error)

    def _end(self, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, PoolError):
            self._process.failures.append(error)
        super()._end(error)


class _SimLoop:
    """What differs between event loops: waiters are the real ones, timers are the world's."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._timers: dict[Timer, None] = {}
        self._waiter = current_loop().waiter

    def post(self, fn: Callable[..., object], *args: Any) -> bool:
        return self._process.post(fn, *args)

    def later(self, delay_s: float, fn: Callable[[], object]) -> Callable[[], object]:
        def ring() -> None:
            self._process.post(fire)  # waits there while the process is frozen

        def fire() -> None:
            if timer in self._timers:
                del self._timers[timer]
                fn()

        def cancel() -> None:
            self._timers.pop(timer, None)
            timer.cancel()

        timer = self._process.world.after(delay_s, ring)
        self._timers[timer] = None
        return cancel

    def close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def waiter(self) -> Waiter:
        return self._waiter()


class SimIO:
    """The world outside of one node."""

    def __init__(
        self,
        process: Process,
        remote: Server,
        pages: Pages = PAGES,
        on_moved: Callable[[str], object] = lambda _: None,
    ) -> None:
        self.pages = pages
        self.place, self.siblings = ("sim", 1), ""
        self._on_moved = on_moved  # of what carries calls; it is told the lane, if it has one
        self.dice: random.Random = process.world.dice(f"dice/{process.name}")
        self.ids = Ids(self.dice.randbytes(SEED_BYTES))
        self.bodies: dict[str, _SimBody] = {}  # the last one of each name
        self._process = process
        self._remote = remote

    def dead(self) -> list[str]:
        """Return the bodies that have ended, and nobody had told them to."""
        return [name for name, beside in self.bodies.items() if beside.is_dead]

    def clock(self) -> float:
        return self._process.clock()

    def loop(self, care: Care | None = None) -> Loop:  # noqa: ARG002 - what a timer raises is a find
        return _SimLoop(self._process)

    def _told(self, name: str, url: Url) -> Callable[[], object]:
        """Return what tells that the line has moved, at most each `MOVED_S`."""
        world, last = self._process.world, [-math.inf]
        found = re.search(r":(\d+)\}?$", url.tag)

        def tell() -> None:
            if world.now_s - last[0] >= MOVED_S:
                last[0] = world.now_s
                self._on_moved(found[1] if found else "")

        return tell if name.startswith("pool-pipeline") else lambda: None

    def stack(self) -> Callable[[], str]:
        return lambda: "somewhere"

    def inside(self, _: CodeType) -> Mapping[str, Any]:
        return {}

    def aside(self, fn: Callable[[], object]) -> None:
        fn()  # the world's observers hold up nobody here

    def waits(self) -> int:
        return 0  # whoever stands still here is frozen

    def end_process(self, code: int) -> None:
        self._process.kill()
        self._process.on_exit(code)

    def start(
        self,
        name: str,
        url: Url,
        body: Body,
        *,
        has_thread: bool = False,  # noqa: ARG002 - each moves while the loop hangs: worse than real
        care: Care | None = None,
        on_end: OnEnd | None = None,
    ) -> RunningBody:
        process = self._process
        beside = _SimBody(process, on_end)
        beside.body_io = ConnectionIO(
            SimConnection(
                url, name, self._remote.at(url.tag), beside.thread, self._told(name, url)
            ),
            SimBell(beside.thread),
            process.post,
            self.clock,
        )
        self.bodies[f"{name} {url.tag}".strip()] = beside
        beside.thread.start(supervised(name, body, care)(beside.body_io))
        if care is not None:
            care.began(beside)
        return beside
