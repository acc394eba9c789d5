"""A consumer that dies after any single step of its life loses nothing and repeats little."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import anyio
import attrs
import pytest

from pool import PoolError, Settings, Sink, StreamEvent
from pool.errors import StoreUnavailable
from pool.store.scripts import Command, ScriptCall
from pool.store.seam import Beside, Body, Entries, Group, Host, Port, Reply
from pool.store.url import Url

if TYPE_CHECKING:
    from tests.streams.conftest import Bench

pytestmark = pytest.mark.anyio

QUICK = Settings(lease_ttl_s=60.0, op_timeout_s=0.25)
STEPS_MAX = 60
PATIENCE_S = 10.0


@attrs.define(eq=False)
class Life:
    """How many more commands reach the server.  The last one does; its answer reaches nobody."""

    left: int
    steps: list[str] = attrs.field(factory=list)

    def spend(self, what: str) -> None:
        self.steps.append(what)
        self.left -= 1


@attrs.define(eq=False)
class MortalPort:
    """A port of a process that may die: each command is a step of its own."""

    port: Port
    life: Life

    def __getattr__(self, name: str) -> Any:
        return getattr(self.port, name)

    async def connect(self, *, timeout_s: float) -> None:
        self._check()
        await self.port.connect(timeout_s=timeout_s)

    @property
    def moved_s(self) -> float:
        return self.port.moved_s

    @property
    def came_bytes(self) -> int:
        return self.port.came_bytes

    async def run(
        self, calls: Sequence[Command], *, timeout_s: float, longest_s: float | None = None
    ) -> list[Reply]:
        replies: list[Reply] = []
        for call in calls:
            if self.life.left <= 0:
                replies.append(StoreUnavailable(problem="dead", maybe_done=False))
                continue
            self.life.spend(call.script.name if isinstance(call, ScriptCall) else str(call[0]))
            [reply] = await self.port.run([call], timeout_s=timeout_s, longest_s=longest_s)
            is_last = self.life.left == 0
            replies.append(StoreUnavailable(problem="dead", maybe_done=True) if is_last else reply)
        return replies

    async def read(
        self,
        positions: Mapping[str, str],
        *,
        block_s: float,
        timeout_s: float,
        count: int,
        group: Group | None = None,
    ) -> Entries:
        self._check()
        # A read that brings nothing is no step: it changes nothing.
        block_s = min(block_s, 0.02)
        entries = await self.port.read(
            positions, block_s=block_s, timeout_s=timeout_s, count=count, group=group
        )
        if entries and any(found for _, found in entries):
            self.life.spend("read")
        self._check()
        return entries

    def _check(self) -> None:
        if self.life.left <= 0:
            raise StoreUnavailable(problem="dead", maybe_done=True)


class MortalSeam(Host):
    """The world of that process."""

    def __init__(self, life: Life) -> None:
        super().__init__()
        self._life = life

    def start(self, name: str, url: Url, body: Body, **options: Any) -> Beside:
        life = self._life
        return super().start(name, url, lambda port: body(MortalPort(port, life)), **options)


async def live(bench: Bench, life: Life, done: list[str]) -> bool:
    """Be a consumer, as far as the life goes: join, clean, take, acknowledge half, leave.

    `done` is what it acknowledged, to its own knowledge; return whether it lived to its end.
    """
    try:
        async with (
            bench.stream(settings=QUICK, seam=MortalSeam(life)) as stream,
            stream.sink("billing", buffer_max=8, grace_s=60) as sink,
        ):
            for n in range(14):
                event = await next_of(sink, life)
                if event is None:
                    return False
                if n % 2:
                    continue
                await sink.ack(event)
                done.append(event.id)
            # There is something to give back.
            await bench.until(lambda: len(sink._feed) or life.left <= 0)
    except PoolError:
        return False
    return life.left > 0


async def next_of(sink: Sink, life: Life) -> StreamEvent | None:
    """Return its next event, or None once it is dead and nothing is left."""
    with anyio.fail_after(PATIENCE_S):
        while True:
            with anyio.move_on_after(0.1):
                return await anext(sink)
            if life.left <= 0:
                return None


async def test_a_consumer_may_die_after_any_single_step(bench: Bench) -> None:
    """What was not acknowledged comes exactly once more, to whoever lives; the rest does not."""
    finished, life = False, Life(0)
    for steps in range(1, STEPS_MAX):
        bench.client.delete(*bench.keys() or ["-"])
        async with bench.stream() as stream:
            bench.client.xgroup_create(bench.key, "billing", "0", mkstream=True)
            ids = await bench.add(stream, *range(20))
            # One that died before, to be cleaned by the one that dies now.
            bench.client.xreadgroup("billing", "stale.1", {bench.key: ">"}, count=6)
            life, done = Life(steps), list[str]()
            finished = await live(bench, life, done)
            # Time passes: its lease ends, and with it the cleaner's lock.
            state = bench.control.sink("orders", "billing")
            leases = bench.control.sink_leases("orders", "billing")
            for member in bench.client.zrange(leases, 0, -1):
                bench.end_lease(member)
            bench.client.hdel(state, "holder")
            unacknowledged = set(bench.pending()) | _not_given(bench)
            assert unacknowledged.isdisjoint(done), life.steps
            got: list[StreamEvent] = []
            async with stream.sink("billing") as survivor:
                got = await bench.take(survivor, len(unacknowledged))
                assert await survivor.ack_many(got) == len(got), life.steps
                await bench.until(lambda: bench.consumers() == {survivor.consumer})
                assert len(survivor._feed) == 0
            assert sorted(event.id for event in got) == sorted(unacknowledged), life.steps
            # The steps add up: what the dead one's acknowledgements reached is all that is missing.
            acknowledged = set(ids) - unacknowledged
            assert acknowledged >= set(done), life.steps
            assert len(acknowledged) <= len(done) + 1, life.steps
            assert bench.pending() == {}
        if finished:
            break
    assert finished, "the consumer's life has more steps than the test knows"
    names = set(life.steps)
    assert names >= {
        *("sink_join", "sink_renew", "sink_mend", "sink_take", "read"),
        *("XACK", "sink_release", "sink_leave"),
    }, names


def _not_given(bench: Bench) -> set[str]:
    [info] = bench.client.xinfo_groups(bench.key)
    last = info["last-delivered-id"]
    return {entry.decode() for entry, _ in bench.client.xrange(bench.key, min=b"(" + last)}
