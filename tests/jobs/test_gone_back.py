"""The server comes back as it was a while ago, under a worker that goes on with its job.

What was numbered since then is numbered anew, with lower numbers or with the same ones.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import anyio
import attrs
import pytest

from pool import Handlers, Job, Node
from pool.errors import JobCancelled, StoreUnavailable
from pool.redis.embedded.server import EmbeddedServer
from tests.nodes import SETTINGS, Diary, Fleet
from tests.servers import connect

if TYPE_CHECKING:
    from pool.redis.embedded.program import ServerProgram

pytestmark = [pytest.mark.anyio, pytest.mark.one_server]  # it brings its own

TTL_S = 3.0
AHEAD_US = 3_600_000_000


@attrs.frozen
class World:
    """A fleet, and its server, which can go back to what it has saved."""

    server: EmbeddedServer
    fleet: Fleet

    def save(self) -> None:
        """Have the server keep what it has now."""
        with connect(self.server.url) as client:
            client.save()

    def go_back(self) -> None:
        """Kill the server, and start it with what it has saved."""
        self.server.kill()
        self.server.restart()

    def lane(self, field: str) -> int:
        """Return a number of the only lane."""
        with connect(self.server.url) as client:
            return int(client.hget(self.fleet.names.lane, field) or 0)


@pytest.fixture
def forgetful(program: ServerProgram) -> Iterator[EmbeddedServer]:
    """Yield a server that has, after `restart()`, what it had at the last SAVE."""
    with EmbeddedServer.start(program) as server:
        yield server


@pytest.fixture
async def world(anyio_backend: str, forgetful: EmbeddedServer) -> AsyncIterator[World]:
    with connect(forgetful.url) as client:
        settings = attrs.evolve(SETTINGS, lease_ttl_s=TTL_S)
        fleet = Fleet(forgetful.url, "back", client, settings)
        async with fleet.running():
            yield World(forgetful, fleet)


def listening(diary: Diary) -> Handlers:
    mine = Handlers()

    @mine.service("listens")
    async def listens(job: Job) -> None:
        diary.note("runs")
        async for message in job.notifications():
            diary.note("handled", message)

    return mine


async def notify(node: Node, message: str) -> None:
    """Have a message accepted, however long the server is away."""
    while True:
        try:
            return await node.notify("k", message)
        except StoreUnavailable:
            await anyio.sleep(0.05)


@pytest.mark.parametrize("numbers", ["lower", "the same"])
async def test_what_is_accepted_after_a_loss_is_handled(
    world: World, diary: Diary, numbers: str
) -> None:
    """G-01, G-07: the owner took lower numbers for handled ones, and they were taken out."""
    node = await world.fleet.node(listening(diary))
    ref = await node.dispatch("listens", "k")
    await diary.has("runs")
    await node.notify("k", "first")
    await diary.has("handled", "first")
    if numbers == "the same":
        # As after a clock that was ahead: each number is the one before it, and one more.
        world.fleet.client.hincrby(world.fleet.names.lane, "stamp", AHEAD_US)
    await world.fleet.until(lambda: not world.fleet.client.exists(world.fleet.names.inbox("k")))
    world.save()
    saved_ms = world.lane("seen")
    if numbers == "lower":
        await world.fleet.until(lambda: world.lane("seen") > saved_ms + 600 * TTL_S)
    for message in ("lost 1", "lost 2", "lost 3"):
        await node.notify("k", message)
        await diary.has("handled", message)
    world.go_back()
    for message in ("new 1", "new 2", "new 3"):
        await notify(node, message)
    for message in ("new 1", "new 2", "new 3"):
        await diary.has("handled", message)
    await world.fleet.until(lambda: not world.fleet.client.exists(world.fleet.names.inbox("k")))
    await ref.stop("done")
    with pytest.raises(JobCancelled):
        await ref.result(timeout_s=60)


async def test_a_stop_behind_a_loss_is_seen(world: World, diary: Diary) -> None:
    """Signals behind a fork whose clock is behind have ids that were read before it."""
    node = await world.fleet.node(listening(diary))
    ref = await node.dispatch("listens", "k")
    await diary.has("runs")
    client, ahead = world.fleet.client, "9999999999999-5"
    signal = world.fleet.names.signal(f"{node.workers[0].id}.1")
    world.save()
    client.xadd(signal, {"t": "none"}, id=ahead)  # by a clock that was ahead
    await world.fleet.until(lambda: not client.xlen(signal))  # it was read, and taken out
    world.go_back()
    await world.fleet.until(client.ping)
    with anyio.fail_after(5 * TTL_S):  # each took up to ten
        for message in ("one", "two", "three"):
            await notify(node, message)
            await diary.has("handled", message)
    await ref.stop("done")
    with pytest.raises(JobCancelled):
        await ref.result(timeout_s=5 * TTL_S)
