"""A consumer that dies after any single step of its life loses nothing and repeats little."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from pool import PoolError, Settings
from pool.streams import Sink, StreamEvent
from tests.streams.mortal import Life, MortalIO

if TYPE_CHECKING:
    from tests.streams.conftest import Bench

pytestmark = pytest.mark.anyio

QUICK = Settings(lease_ttl_s=60.0, op_timeout_s=0.25)
STEPS_MAX = 60
PATIENCE_S = 30.0


async def live(bench: Bench, life: Life, done: list[str]) -> bool:
    """Be a consumer, as far as the life goes: join, clean, take, acknowledge half, leave.

    `done` is what it acknowledged, to its own knowledge; return whether it lived to its end.
    """
    try:
        async with (
            bench.stream(settings=QUICK, _io=MortalIO(life)) as stream,
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
            await bench.until(lambda: len(sink._buffer) or life.left <= 0)
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
                assert len(survivor._buffer) == 0
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
