"""Arguments that the server takes and cannot deliver: it ends each connection that fetches them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pool import Handlers, Job
from pool.errors import JobParked
from tests.nodes import PATIENCE_S, Fleet
from tests.servers import connect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pool.redis.embedded.server import EmbeddedServer

pytestmark = [pytest.mark.anyio, pytest.mark.one_server]  # it brings its own
LARGE = "x" * 200_000


@pytest.fixture
async def narrow(anyio_backend: str, own_server: EmbeddedServer) -> AsyncIterator[Fleet]:
    """Yield a fleet on a server that delivers no more than 32 KiB at once."""
    with connect(own_server.url) as client:
        client.config_set("client-output-buffer-limit", "normal 32768 0 0")
        async with Fleet(own_server.url, "narrow", client).running() as fleet:
            yield fleet
            client.config_set("client-output-buffer-limit", "normal 0 0 0")


def connections(fleet: Fleet) -> int:
    client: Any = fleet.client
    return int(client.info("stats")["total_connections_received"])


async def test_such_a_job_is_parked_with_the_reason_and_cuts_few_connections(
    narrow: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red at first: it was pending for ever, and ten connections a second were cut."""
    monkeypatch.setattr("pool.core.retry.REFUSED_CAP_S", 0.5)
    mine = Handlers()

    @mine.job("size")
    async def size(job: Job, text: str) -> int:
        return len(text)

    node = await narrow.node(mine)
    before = connections(narrow)
    ref = await node.dispatch(size, "large", LARGE)
    others = [await node.dispatch(size, f"small-{n}", "y" * 2_000) for n in range(20)]
    for other in others:  # which are fetched as well, on the same line
        assert await other.result(PATIENCE_S) == 2_000
    with pytest.raises(JobParked) as parked:
        await ref.result(PATIENCE_S)
    assert parked.value.cause == "undeliverable payload"
    assert "client-output-buffer-limit" in parked.value.last_error
    assert connections(narrow) - before < 25


async def test_a_job_is_fetched_when_its_server_delivers_again(narrow: Fleet) -> None:
    mine = Handlers()

    @mine.job("size")
    async def size(job: Job, text: str) -> int:
        return len(text)

    node = await narrow.node(mine)
    cut = int(narrow.client.info("stats")["client_output_buffer_limit_disconnections"])
    ref = await node.dispatch(size, "large", LARGE)

    def is_cut() -> bool:
        client: Any = narrow.client
        return int(client.info("stats")["client_output_buffer_limit_disconnections"]) > cut + 1

    await narrow.until(is_cut)
    narrow.client.config_set("client-output-buffer-limit", "normal 0 0 0")
    with anyio.fail_after(PATIENCE_S):
        assert await ref.result() == len(LARGE)
