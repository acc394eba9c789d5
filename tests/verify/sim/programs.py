"""What programs do with maps and streams in a simulated world, beside jobs.

    maps      each process holds all of them, watches each, and writes to any; keys `own-NODE` are
              one node's alone, written one after another and often waited for, by others, too, who
              are told at once where in the map's history they stand
    streams   each process adds events, reads every stream with a reader (which goes on where the
              one before it was), and is a consumer of every sink: two of one name, on a stream
              each, and one on all streams.  Handlers are quick or slow; some events are never
              acknowledged, by anybody

They use what a `Node` offers, and nothing else.  They write until chaos is over, and read until
their node leaves; what goes wrong is begun again.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
import attrs

from pool import Node, PoolError
from pool.errors import StoreFault, StoreLost, StoreUnavailable
from pool.maps import Position, Resync
from tests.verify.sim import reading
from tests.verify.sim.config import Config
from tests.verify.sim.faults import POOL
from tests.verify.sim.keyspace import Keyspace
from tests.verify.sim.streams import Stream
from tests.verify.sim.world import World

if TYPE_CHECKING:
    from tests.verify.sim.fleet import Boot

_AGAIN_S: Final = 0.2  # before what failed is begun again
_KEYS: Final = 4  # that all write, of each map
STUBBORN: Final = "stubborn"  # an event that nobody acknowledges


@attrs.frozen
class SinkPlan:
    """One sink: its name, its streams, and how its consumers are."""

    name: str
    streams: tuple[str, ...]
    grace_s: float
    deliveries_max: int
    takes_s: tuple[float, ...]
    at_once: int  # handlers of one consumer
    buffer_max: int


@attrs.define(eq=False)
class Programs:
    """What all processes of one world do with maps and streams."""

    config: Config
    world: World
    maps: tuple[str, ...] = ()
    streams: dict[str, int | None] = attrs.field(factory=dict)  # name -> length cap
    sinks: tuple[SinkPlan, ...] = ()
    positions: dict[tuple[str, str], str] = attrs.field(factory=dict)  # node, stream -> read to
    held: dict[tuple[Boot, str], Any] = attrs.field(factory=dict)  # process, map -> its copy
    _numbers: int = 0

    def __attrs_post_init__(self) -> None:
        dice = self.world.dice("programs")
        if "maps" in self.config.shapes:
            count = dice.choice((1, 2, 3, 20))
            self.maps = tuple(f"m{number}" for number in range(count))
        if "sinks" in self.config.shapes:
            self.streams = {"e0": None, "e1": dice.choice((None, None, 10))}
            plans = (("s", ("e0",)), ("s", ("e1",)), ("all", ("e0", "e1")))
            self.sinks = tuple(self._plan(dice, *plan) for plan in plans)

    def _plan(self, dice: random.Random, name: str, streams: tuple[str, ...]) -> SinkPlan:
        grace_s = self.config.ttl_s * dice.choice((0.3, 0.6, 1.0))
        slow = dice.choice(((0.0,), (0.0, 0.02), (0.0, 0.1, 0.4 * grace_s), (0.0, 1.3 * grace_s)))
        return SinkPlan(
            name=name,
            streams=streams,
            grace_s=grace_s,
            deliveries_max=dice.choice((2, 3)),
            takes_s=(*slow, *(0.0 for _ in range(4))),
            at_once=dice.choice((1, 1, 5)),
            buffer_max=dice.choice((2, 10, 100)),
        )

    @asynccontextmanager
    async def running(self, boot: Boot, node: Node) -> AsyncIterator[None]:
        """Have a process do its part within this block."""
        if not self.maps and not self.streams:
            yield
            return
        async with anyio.create_task_group() as tasks:
            self._start(boot, node, tasks)
            yield
            tasks.cancel_scope.cancel()

    def _start(self, boot: Boot, node: Node, tasks: Any) -> None:
        dice = self.world.dice(f"programs/{boot.process.name}")
        for name in self.maps:
            tasks.start_soon(self._hold, boot, node, name)
        if self.maps:
            tasks.start_soon(self._write, boot, dice)
        for name in self.streams:
            tasks.start_soon(self._read, boot, node, name)
        for plan in self.sinks:
            tasks.start_soon(self._consume, boot, node, plan)
        if self.streams:
            tasks.start_soon(self._add, boot, node, self.world.dice(f"adds/{boot.process.name}"))

    def _token(self, boot: Boot) -> str:
        self._numbers += 1
        return f"{boot.process.name}#{self._numbers}"

    @property
    def _is_writing(self) -> bool:
        return self.world.now_s < self.config.chaos_s

    # --- maps ---

    async def _hold(self, boot: Boot, node: Node, name: str) -> None:
        while not boot.is_leaving:
            try:
                async with node.map(name) as copy:
                    self.held[boot, name] = copy
                    await self._watch(boot, name, copy)
            except PoolError:
                await anyio.sleep(_AGAIN_S)
            finally:
                self.held.pop((boot, name), None)

    async def _watch(self, boot: Boot, name: str, copy: Any) -> None:
        self._numbers += 1
        watcher = self._numbers
        with copy.watch() as news:

            def begin(why: str, at: int) -> None:
                facts = {"w": watcher, "r": copy.revision, "at": at, "why": why}
                facts["items"] = copy.snapshot()
                boot.record("saw", "info", key=name, extra=facts)

            begin("begin", copy.revision)
            async for each in news:
                if isinstance(each, Resync):
                    begin(each.reason, each.revision)
                else:
                    change = {"k": each.key, "old": each.old, "new": each.new}
                    boot.record("saw", key=name, extra={"w": watcher, "r": each.revision, **change})

    async def _write(self, boot: Boot, dice: random.Random) -> None:
        while self._is_writing:
            await anyio.sleep(dice.expovariate(2.0))
            name = dice.choice(self.maps)
            copy = self.held.get((boot, name))
            if copy is None:
                continue
            if dice.random() < 0.5:
                await self._put(boot, copy, name, is_waiting=dice.random() < 0.6)
            else:
                try:
                    await _change(copy, dice, may_reset=name != "m0")
                except PoolError:
                    await anyio.sleep(_AGAIN_S)

    async def _put(self, boot: Boot, copy: Any, name: str, *, is_waiting: bool) -> None:
        """Write what nobody else writes, and look whether it is there where that is said."""
        key, value = f"own-{boot.process.node}", self._token(boot)
        facts: dict[str, Any] = {"key": f"{name}/{key}", "idem": value}
        within = {} if is_waiting else {"within_s": boot.op_timeout_s}
        boot.record("put", "invoke", extra={"wait": is_waiting, **within}, **facts)
        try:
            if is_waiting:
                written = await copy.set_and_wait(key, value)
            else:
                written = await copy.set(key, value)
        except anyio.get_cancelled_exc_class():
            boot.give_up("put", **facts)
            raise
        except PoolError as error:
            # Who waited may have written: `StoreLost` does not say whether the write is gone.
            is_unknown = is_waiting or maybe_done(error)
            boot.record("put", "info" if is_unknown else "fail", err=error.code, **facts)
            await anyio.sleep(_AGAIN_S)
        else:
            extra = {"wait": is_waiting, "r": written.revision}
            if is_waiting:
                extra |= {"copy": copy.revision, "got": copy.get(key)}
            boot.record("put", extra=extra, **facts)
            self._tell_others(boot, name, key, value, str(written.at))

    def _tell_others(self, boot: Boot, name: str, key: str, value: str, at: str) -> None:
        """Have the others wait for it, as jobs would that carry a position."""
        for (other, held), copy in self.held.items():
            if held == name and other is not boot:
                other.do(partial(self._await, copy=copy, path=f"{name}/{key}", value=value, at=at))

    async def _await(self, boot: Boot, *, copy: Any, path: str, value: str, at: str) -> None:
        facts: dict[str, Any] = {"key": path, "idem": value}
        boot.record("await", "invoke", **facts)
        try:
            await copy.wait_for(Position.parse(at))
        except anyio.get_cancelled_exc_class():
            boot.give_up("await", **facts)
            raise
        except PoolError as error:
            is_lost = isinstance(error, StoreLost)
            boot.record("await", "fail" if is_lost else "info", err=error.code, **facts)
        else:
            extra = {"got": copy.get(path.partition("/")[2])}
            boot.record("await", extra=extra, **facts)

    def copies(self, name: str) -> list[tuple[str, dict[str, Any]]]:
        """Return process -> what its copy of a map is, of those that live."""
        return [
            (boot.process.name, copy.snapshot())
            for (boot, held), copy in self.held.items()
            if held == name and copy._state == "open" and not boot.is_gone
        ]

    # --- streams ---

    async def _add(self, boot: Boot, node: Node, dice: random.Random) -> None:
        while self._is_writing and not boot.is_leaving:
            await anyio.sleep(dice.expovariate(1.2))
            name = dice.choice((*self.streams,))
            for _ in range(dice.choice((1, 1, 1, 5))):
                token = self._token(boot)
                if dice.random() < 0.02:
                    token = f"{STUBBORN}/{token}"
                pad = "x" * dice.choice((0, 0, 0, 2000))
                facts = {"key": name, "idem": token}
                boot.record("add", "invoke", extra={"within_s": boot.op_timeout_s}, **facts)
                try:
                    stream = node.stream(name, length_max=self.streams[name])
                    added = await stream.add("event", f"{token}|{pad}")
                except anyio.get_cancelled_exc_class():
                    boot.give_up("add", **facts)
                    raise
                except PoolError as error:
                    is_unknown = maybe_done(error)
                    boot.record("add", "info" if is_unknown else "fail", err=error.code, **facts)
                    await anyio.sleep(_AGAIN_S)
                else:
                    boot.record("add", stream_id=added or "", **facts)

    async def _read(self, boot: Boot, node: Node, name: str) -> None:
        at = boot.process.node, name
        while not boot.is_leaving:
            self._numbers += 1
            start, facts = self.positions.get(at, "oldest"), {"reader": self._numbers}
            try:
                async with node.stream(name).reader(start, buffer_max=20) as reader:
                    boot.record("read", "info", key=name, extra={**facts, "start": start})
                    async for event in reader:
                        extra = {**facts, "after": event.after}
                        about: dict[str, Any] = {"key": name, "stream_id": event.id}
                        boot.record("read", idem=token_of(event.payload), extra=extra, **about)
                        self.positions[at] = event.id
            except PoolError:
                await anyio.sleep(_AGAIN_S)

    async def _consume(self, boot: Boot, node: Node, plan: SinkPlan) -> None:
        # Each stream's handlers have dice of their own, whatever comes on others.
        name = f"{plan.name}/{','.join(plan.streams)}"
        dice = self.world.dice(f"handlers/{boot.process.name}/{name}")
        while not boot.is_leaving:
            try:
                async with _entered(node, plan) as sink:
                    facts = {"sink": plan.name, "max": plan.deliveries_max}
                    boot.record("consumer", extra=facts, key=",".join(plan.streams))
                    try:
                        await self._handle_all(boot, sink, plan, dice)
                    finally:
                        facts = {"sink": plan.name}
                        boot.record("consumer", "info", extra=facts, key=",".join(plan.streams))
            except* PoolError:
                await anyio.sleep(_AGAIN_S)

    async def _handle_all(self, boot: Boot, sink: Any, plan: SinkPlan, dice: random.Random) -> None:
        if plan.at_once == 1:
            async for event in sink:
                await self._handle(boot, sink, plan, event, dice.choice(plan.takes_s))
            return
        places = anyio.Semaphore(plan.at_once)
        async with anyio.create_task_group() as handlers:

            async def handle(event: Any, takes_s: float) -> None:
                try:
                    await self._handle(boot, sink, plan, event, takes_s)
                finally:
                    places.release()

            await places.acquire()
            async for event in sink:
                handlers.start_soon(handle, event, dice.choice(plan.takes_s))
                await places.acquire()

    async def _handle(
        self, boot: Boot, sink: Any, plan: SinkPlan, event: Any, takes_s: float
    ) -> None:
        token = token_of(event.payload)
        facts: dict[str, Any] = {"key": event.stream, "stream_id": event.id}
        given = {"sink": plan.name, "n": event.deliveries, "grace_s": plan.grace_s}
        boot.record("given", idem=token, nonce=sink.consumer, extra=given, **facts)
        await anyio.sleep(takes_s)
        if token.startswith(STUBBORN):
            return
        call: dict[str, Any] = {**facts, "idem": self._token(boot), "extra": {"sink": plan.name}}
        boot.record("done", "invoke", **call)
        try:
            is_first = await sink.ack(event)
        except anyio.get_cancelled_exc_class():
            boot.give_up("done", **call)
            raise
        except PoolError as error:
            boot.record("done", "info", err=error.code, **call)
        else:
            boot.record("done", result=is_first, **call)

    def is_quiet(self, keyspace: Keyspace) -> bool:
        """Whether every sink has handled all that its streams hold."""
        for plan in self.sinks:
            for name in plan.streams:
                stream = reading.user_stream(keyspace, POOL, name)
                if not isinstance(stream, Stream):
                    continue
                group = stream.groups.get(plan.name.encode())
                last = max(stream.entries, default=(0, 0))
                if group is None or group.pending or group.last < last:
                    return False
        return True


@asynccontextmanager
async def _entered(node: Node, plan: SinkPlan) -> AsyncIterator[Any]:
    first, *others = plan.streams
    sink = node.stream(first).sink(
        plan.name,
        grace_s=plan.grace_s,
        deliveries_max=plan.deliveries_max,
        buffer_max=plan.buffer_max,
    )
    async with sink:
        for name in others:
            await sink.add_stream(node.stream(name))
        yield sink


async def _change(copy: Any, dice: random.Random, *, may_reset: bool) -> None:
    """Do something to a map that many write."""
    key, value = f"k{dice.randrange(_KEYS)}", f"{dice.randrange(1000)}"
    what = dice.choice(
        (*("set", "delete", "increment", "new", "append", "append", "unique", "remove", "many"),)
    )
    if may_reset and dice.random() < 0.03:
        what = dice.choice(("reset", "destroy"))
    match what:
        case "set":
            await copy.set(key, value)
        case "delete":
            await copy.delete(dice.choice((key, key, "list")))
        case "increment":
            await copy.increment("count")
        case "new":
            await copy.set_if_not_exists(key, value)
        case "append":
            await copy.append("list", value, f"{dice.randrange(3)}")
        case "unique":
            await copy.append_unique("list", f"{dice.randrange(3)}")
        case "remove":
            await copy.remove("list", f"{dice.randrange(3)}")
        case "many":
            await copy.update({key: value, "other": value})
        case "reset":
            await copy.reset()
        case "destroy":
            await copy.destroy()


def token_of(payload: bytes) -> str:
    """Return which call has added an event; empty for a foreign one."""
    return payload.partition(b"|")[0].decode(errors="replace")


def maybe_done(error: PoolError) -> bool:
    """Say whether what failed may have been done."""
    return isinstance(error, (StoreFault, StoreUnavailable, StoreLost)) and error.maybe_done
