"""Readers and sinks over slow lines get on event by event, and each event once (G2)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pool import Settings
from pool.streams import Reader, Sink, StreamEvent
from pool.streams import buffer as buffers
from pool.testing.proxy import FaultProxy, fault_proxy

if TYPE_CHECKING:
    from tests.streams.conftest import Bench

pytestmark = pytest.mark.anyio

MB = 1_000_000.0
KIB = 1024
PAYLOAD = b"x" * 64 * KIB
PATIENCE_S = 60.0
CALM = Settings(lease_ttl_s=20.0, op_timeout_s=2.0)
KINDS = ["reader", "sink"]


@asynccontextmanager
async def slow(bench: Bench, bytes_per_s: float) -> AsyncIterator[FaultProxy]:
    with anyio.fail_after(PATIENCE_S):
        async with fault_proxy(bench.url) as proxy:
            proxy.line_bytes_per_s = bytes_per_s
            yield proxy
            await proxy.heal()


@asynccontextmanager
async def opened(bench: Bench, proxy: FaultProxy, kind: str, **options: Any) -> AsyncIterator[Any]:
    async with bench.stream(url=proxy.url, settings=CALM) as far:
        made: Reader | Sink = far.sink("s", **options) if kind == "sink" else far.reader(**options)
        async with made as events:
            yield events


async def fill(bench: Bench, *payloads: bytes) -> None:
    async with bench.stream(settings=CALM) as near:
        for payload in payloads:
            await near.add("e", payload)


async def take(events: Any, count: int) -> list[StreamEvent]:
    got: list[StreamEvent] = []
    for _ in range(count):
        event = await anext(events)
        got.append(event)
        if isinstance(events, Sink):
            await events.ack(event)
    return got


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("megabytes_per_s", [1, 6, 12])
async def test_the_first_event_does_not_wait_for_all_others(
    bench: Bench, kind: str, megabytes_per_s: int
) -> None:
    """G2: half of a buffer was asked for at once, and nothing was there before all of it was."""
    count = 48
    await fill(bench, *[PAYLOAD] * count)
    async with (
        slow(bench, megabytes_per_s * MB) as proxy,
        opened(bench, proxy, kind, buffer_max=1_000) as events,
    ):
        got = await take(events, 1)
        assert proxy.reply_bytes < 20 * len(PAYLOAD), (
            "what was asked for, of which nothing is known"
        )
        proxy.reply_bytes = 0
        got += await take(events, count - 1)
        assert proxy.reply_bytes < 1.1 * count * len(PAYLOAD)
        assert len({event.id for event in got}) == count
        assert {event.deliveries for event in got} == {1}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_line_that_breaks_carries_what_is_small_enough(bench: Bench, kind: str) -> None:
    """The same read was repeated for ever; a sink's events are its own meanwhile, not delivered."""
    count = 24
    await fill(bench, *[PAYLOAD] * count)
    async with (
        slow(bench, 12 * MB) as proxy,
        opened(bench, proxy, kind, buffer_max=1_000) as events,
    ):
        proxy.cut_each_after_bytes = 300 * KIB
        got = await take(events, count)
        assert len({event.id for event in got}) == count
        assert {event.deliveries for event in got} == {1}
        assert proxy.connections > 5


@pytest.mark.parametrize("kind", KINDS)
async def test_a_buffer_is_bounded_in_bytes(bench: Bench, kind: str) -> None:
    """1,000 events of 256 KiB were 250 MiB in a program that did not read on."""
    count = 100
    await fill(bench, *[b"x" * 256 * KIB] * count)
    most = buffers.BUFFER_BYTES_MAX // (256 * KIB)
    async with slow(bench, 0.0) as proxy, opened(bench, proxy, kind, buffer_max=1_000) as events:
        event = await anext(events)
        await bench.until(lambda: len(events._buffer) >= most // 2)
        for _ in range(20):
            await anyio.sleep(0.005)
            assert len(events._buffer) <= most
        rest = await take(events, count - 1)
        assert len({each.id for each in [event, *rest]}) == count
