"""The server comes back as it was a while ago, under a sink whose program has lost events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import anyio
import pytest

from pool.errors import StoreUnavailable
from pool.names import Control
from pool.redis.embedded.server import EmbeddedServer
from pool.streams.stream import Stream
from tests.servers import connect

if TYPE_CHECKING:
    from pool.redis.embedded.server import ServerProgram

pytestmark = [pytest.mark.anyio, pytest.mark.one_server]  # it brings its own

PATIENCE_S = 50.0


async def added(stream: Stream, payload: bytes) -> str:
    """Add an event, however long the server is away."""
    while True:
        try:
            added_id = await stream.add("made", payload)
            assert added_id is not None
            return added_id
        except StoreUnavailable:
            await anyio.sleep(0.05)


@pytest.fixture
def forgetful(program: ServerProgram) -> Iterator[EmbeddedServer]:
    """Yield a server that has, after `restart()`, what it had at the last SAVE."""
    with EmbeddedServer.start(program) as server:
        yield server


@pytest.mark.parametrize("how", ["ack", "ack_many"])
async def test_an_acknowledgement_of_a_lost_event_hits_no_other_one(
    anyio_backend: str, forgetful: EmbeddedServer, how: str
) -> None:
    """G6: the server goes back, and gives the id of a lost event once more."""
    key = Control("default").stream("orders")
    async with Stream.open(forgetful.url, "orders", observers=()) as stream:
        with connect(forgetful.url) as client:
            # As after a clock that was ahead: each id is the one before it, and one more.
            ahead = ("9999999999999-1", "n", "0", "m", "x", "e", "made", "p", "0")
            client.execute_command("XADD", key, *ahead)
        async with stream.sink("billing") as sink:
            first = await anext(sink)
            assert await sink.ack(first)
            with connect(forgetful.url) as client:
                client.save()
            await stream.add("made", b"lost")
            lost = await anext(sink)
            forgetful.kill()
            forgetful.restart()
            new_id = await added(stream, b"new")
            assert new_id == lost.id
            with anyio.fail_after(PATIENCE_S), connect(forgetful.url) as client:
                while True:  # until the new one is given to the consumer
                    if client.xpending_range(key, "billing", new_id, new_id, 1):
                        break
                    await anyio.sleep(0.01)
            if how == "ack":
                assert not await sink.ack(lost)
            else:
                assert await sink.ack_many([lost]) == 0
            with anyio.fail_after(PATIENCE_S):
                event = await anext(sink)
            assert (event.payload, await sink.ack(event)) == (b"new", True)
