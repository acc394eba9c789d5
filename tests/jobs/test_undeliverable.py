"""What the server takes and cannot deliver: it ends each connection that fetches it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pool import Handlers, Job, Retry
from pool.errors import JobParked, StoreUnavailable
from pool.events import StoreTroubled
from tests.nodes import PATIENCE_S, Fleet
from tests.servers import connect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pool.redis.embedded.server import EmbeddedServer

pytestmark = [pytest.mark.anyio, pytest.mark.one_server]  # it brings its own
LARGE, STATE, SMALL = "x" * 200_000, "x" * 60_000, "y" * 2_000
LIMIT = "client-output-buffer-limit"
CUTS = "client_output_buffer_limit_disconnections"


@pytest.fixture
async def narrow(anyio_backend: str, own_server: EmbeddedServer) -> AsyncIterator[Fleet]:
    """Yield a fleet on a server that delivers no more than 32 KiB at once."""
    with connect(own_server.url) as client:
        client.config_set(LIMIT, "normal 32768 0 0")
        async with Fleet(own_server.url, "narrow", client).running() as fleet:
            yield fleet
            client.config_set(LIMIT, "normal 0 0 0")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what was refused, or not told, be tried again within half a second."""
    monkeypatch.setattr("pool.core.retry.REFUSED_CAP_S", 0.5)
    monkeypatch.setattr("pool.jobs.client.waiters.ASK_AGAIN_S", 0.5)


def cuts(fleet: Fleet) -> int:
    client: Any = fleet.client
    return int(client.info("stats")[CUTS])


def widen(fleet: Fleet) -> None:
    fleet.client.config_set(LIMIT, "normal 0 0 0")


mine = Handlers()


@mine.job("size")
async def size(job: Job, text: str) -> int:
    return len(text)


@mine.job("state")
async def state(job: Job) -> int:
    if job.state is None:
        await job.save(STATE)
        raise Retry(after_s=0.05)
    return len(job.state)


@mine.job("step")
async def step(job: Job) -> int:
    async def made() -> str:
        return LARGE

    text = await job.once("step", made)
    if job.attempt == 1:
        raise Retry(after_s=0.05)
    return len(text)


@mine.job("result")
async def result(job: Job) -> str:
    return LARGE


@mine.job("listen")
async def listen(job: Job) -> int:
    async for message in job.notifications():
        return len(message)
    return 0


@pytest.mark.parametrize("kind", ["size", "state", "step"])
async def test_a_job_that_cannot_be_fetched_is_parked_and_cuts_few_connections(
    narrow: Fleet, kind: str
) -> None:
    """Red at first: it was pending for ever, and ten connections a second were cut."""
    node = await narrow.node(mine)
    before = cuts(narrow)
    ref = await node.dispatch(kind, "large", *([LARGE] if kind == "size" else []))
    others = [await node.dispatch(size, f"small-{n}", SMALL) for n in range(20)]
    for other in others:  # which are fetched as well, on the same line
        assert await other.result(PATIENCE_S) == len(SMALL)
    with pytest.raises(JobParked) as parked:
        await ref.result(PATIENCE_S)
    assert parked.value.cause == "undeliverable payload"
    assert LIMIT in parked.value.last_error
    assert cuts(narrow) - before < 25
    widen(narrow)
    again = await node.parked.replay("large", parked.value.job_id)
    with anyio.fail_after(PATIENCE_S):
        assert await again.result() in (len(LARGE), len(STATE))


async def test_a_job_is_fetched_when_its_server_delivers_again(narrow: Fleet) -> None:
    node = await narrow.node(mine)
    before = cuts(narrow)
    ref = await node.dispatch(size, "large", LARGE)
    await narrow.until(lambda: cuts(narrow) > before + 1)
    widen(narrow)
    with anyio.fail_after(PATIENCE_S):
        assert await ref.result() == len(LARGE)


async def test_a_result_that_cannot_be_delivered_is_refused_with_the_reason(
    narrow: Fleet,
) -> None:
    """Red at first: `result()` waited for ever, and "check the network" was all that was said."""
    node = await narrow.node(mine, op_timeout_s=1.0)
    before, pipeline = cuts(narrow), narrow.wiring(node).context.pipeline
    made = pipeline.connections
    ref = await node.dispatch(result, "large")
    others = [await node.dispatch(size, f"small-{n}", SMALL) for n in range(20)]
    with anyio.fail_after(PATIENCE_S):
        with pytest.raises(StoreUnavailable) as refused:
            await ref.result()
        with pytest.raises(StoreUnavailable):
            await ref.status()
        for other in others:  # looked at together with it
            assert await other.result() == len(SMALL)
    assert LIMIT in str(refused.value)
    await narrow.seen(StoreTroubled, during="look")
    assert cuts(narrow) - before < 40
    assert pipeline.connections - made <= 6  # of all others
    widen(narrow)
    with anyio.fail_after(PATIENCE_S):
        assert await ref.result() == LARGE


async def test_a_message_that_cannot_be_delivered_waits_until_it_can(narrow: Fleet) -> None:
    """Red at first: 195 connections were cut in 30 s."""
    node = await narrow.node(mine, op_timeout_s=1.0)
    before = cuts(narrow)
    ref = await node.dispatch(listen, "large")
    await node.notify("large", STATE)
    await narrow.until(lambda: cuts(narrow) > before + 15)
    assert await (await node.dispatch(size, "small", SMALL)).result(PATIENCE_S) == len(SMALL)
    widen(narrow)
    with anyio.fail_after(PATIENCE_S):
        assert await ref.result() == len(STATE)


async def test_many_messages_come_one_by_one_where_a_page_of_them_is_too_large(
    narrow: Fleet,
) -> None:
    gate, handlers = narrow.gate(), Handlers()

    @handlers.job("collect")
    async def collect(job: Job, count: int) -> int:
        await gate.wait()
        total = 0
        async for message in job.notifications():
            total += len(message)
            if total == count * len(SMALL):
                break
        return total

    node = await narrow.node(handlers, op_timeout_s=1.0)
    ref = await node.dispatch("collect", "many", 30)
    for _ in range(30):
        await node.notify("many", SMALL)
    gate.set()
    with anyio.fail_after(PATIENCE_S):
        assert await ref.result() == 30 * len(SMALL)
