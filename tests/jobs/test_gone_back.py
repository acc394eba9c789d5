"""The server comes back as it was a while ago, under a worker that goes on with its job.

What was numbered since then is numbered anew, with lower numbers or with the same ones.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import attrs
import pytest

from pool import Handlers, Job, JobRef, Node
from pool.errors import JobCancelled, StoreLost, StoreUnavailable
from pool.events import DataLost, DataOlder
from pool.ops.cli.doctor import diagnose
from pool.redis.embedded.server import EmbeddedServer
from pool.redis.url import Url
from pool.testing.proxy import fault_proxy
from tests.nodes import SETTINGS, Diary, Fleet
from tests.servers import connect

if TYPE_CHECKING:
    from pool.redis.embedded.server import ServerProgram

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


async def is_done(node: Node, handler: Any) -> bool:
    """Have a job done, if the pool has been made anew."""
    try:
        await (await node.dispatch(handler, "again")).result(timeout_s=60)
    except (StoreUnavailable, StoreLost):
        return False
    return True


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


async def saved_with_one_done(world: World) -> tuple[Node, Any]:
    """Open a node, have it do one job, and save the data; return it and the job's handler."""
    handlers = Handlers()

    @handlers.job("quick")
    async def quick(job: Job) -> None: ...

    node = await world.fleet.node(handlers)
    await (await node.dispatch(quick, "k")).result(timeout_s=60)
    world.save()
    return node, quick


async def test_older_data_are_told_once_and_found_by_the_doctor(world: World) -> None:
    """Also where only what was granted since the last renewal is missing."""
    node, quick = await saved_with_one_done(world)
    await (await node.dispatch(quick, "l")).result(timeout_s=60)
    world.go_back()
    told = await world.fleet.seen(DataOlder)
    assert (told.lane, told.pool) == (0, world.fleet.pool)
    assert 0 < told.older_s < 60
    await (await node.dispatch(quick, "m")).result(timeout_s=60)
    renewed = world.lane("lease")
    await world.fleet.until(lambda: world.lane("lease") > renewed)
    assert len(world.fleet.all_seen(DataOlder)) == 1
    found = await diagnose(world.fleet.pool, Url.parse(world.fleet.url))
    [says] = [each.says for each in found.findings if each.rule == "data-older"]
    assert f"older_s={told.older_s}" in says


async def test_a_restart_that_lost_nothing_or_all_tells_of_no_older_data(world: World) -> None:
    node, quick = await saved_with_one_done(world)
    world.go_back()
    await (await node.dispatch(quick, "l")).result(timeout_s=60)
    world.fleet.client.flushall()
    await world.fleet.seen(DataLost)
    await world.fleet.until(lambda: world.fleet.client.exists(world.fleet.names.lane))
    await world.fleet.until(partial(is_done, node, quick))
    renewed = world.lane("lease")
    await world.fleet.until(lambda: world.lane("lease") > renewed)
    assert not world.fleet.all_seen(DataOlder)


async def test_no_handler_begins_under_an_epoch_of_older_data(world: World, diary: Diary) -> None:
    """Its worker knows of higher ones; who came first after the loss was granted a lower one."""
    mine, others = Handlers(), Handlers()

    @mine.job("epoch")
    @others.job("elsewhere")
    async def epoch(job: Job) -> int:
        diary.note(job.epoch)
        return job.epoch

    async with fault_proxy(world.server.url) as proxy:
        node = await world.fleet.node(mine, url=proxy.url)
        elsewhere = await world.fleet.node(others)
        await (await node.dispatch("epoch", "first")).result(timeout_s=20)
        world.save()
        # As after a clock that was ahead, and is right again where the data are restored.
        world.fleet.client.hincrby(world.fleet.names.lane, "stamp", AHEAD_US)
        before = await (await elsewhere.dispatch("elsewhere", "k")).result(timeout_s=20)
        [state] = world.fleet.wiring(node).context.lanes
        await world.fleet.until(lambda: state.highest >= before)  # a renewal told it
        await world.fleet.leave(elsewhere)
        proxy.go_silent()
        world.go_back()
        ref = await dispatched(await world.fleet.node())
        await proxy.heal()
        await ref.result(timeout_s=20)
    assert diary.entries == sorted(diary.entries)


async def dispatched(node: Node) -> JobRef[int]:
    while True:
        try:
            return await node.options(allow_unknown=True).dispatch("epoch", "k")
        except StoreUnavailable:
            await anyio.sleep(0.05)


def counting(diary: Diary) -> Handlers:
    """Two handlers of one key, of which each run has a result of its own."""
    mine = Handlers()

    @mine.job("waits", attempts_max=2, backoff_s=0.05)
    async def waits(job: Job, until: str) -> str:
        diary.note("waits", job.attempt)
        if until == "second" and job.attempt == 1:
            await diary.has("fail")
            raise ValueError("the first attempt")
        await diary.has(until if until != "second" else "go")
        return f"run {sum(entry[0] == 'waits' for entry in diary.entries if len(entry) == 2)}"

    @mine.job("later")
    async def later(job: Job) -> None:
        diary.note("later runs")
        await diary.has("later goes")

    return mine


@pytest.mark.parametrize("later", ["settled", "running"])
@pytest.mark.parametrize("saved", ["in its first attempt", "while it runs"])
async def test_an_end_that_is_undone_stands_however_often_its_key_was_used_since(
    world: World, diary: Diary, saved: str, later: str
) -> None:
    """G-04: it was remembered by key, so the job ran again, and its outcome was replaced."""
    node = await world.fleet.node(counting(diary))
    other = await world.fleet.node(Handlers())
    is_retried = saved == "in its first attempt"
    ref = await node.dispatch("waits", "k", "second" if is_retried else "go")
    if saved == "before its start":
        world.save()
    await diary.has("waits", 1)
    if saved != "before its start":
        await world.fleet.until(
            lambda: world.fleet.client.scard(world.fleet.names.owned(owner(node)))
        )
        world.save()
    diary.note("fail")
    diary.note("go")
    runs = 2 if is_retried else 1
    assert await ref.result(timeout_s=20) == f"run {runs}"
    second = await node.dispatch("later", "k")
    await diary.has("later runs")
    if later == "settled":
        diary.note("later goes")
        await second.result(timeout_s=20)
    world.go_back()
    with anyio.fail_after(20):
        while (found := await looked_at(other, ref.job_id)) is None or found != f"run {runs}":
            assert found is None, found
            await anyio.sleep(0.05)
    diary.note("later goes")
    assert [entry for entry in diary.entries if entry[0] == "waits"] == [
        ("waits", attempt + 1) for attempt in range(runs)
    ]


def owner(node: Node) -> str:
    return f"{node.workers[0].id}.1"


async def looked_at(node: Node, job_id: str) -> str | None:
    """Return the result of the job as another node reads it; None: it has none yet."""
    try:
        return str(await (await node.job("k", job_id)).result(timeout_s=0.2))
    except (StoreUnavailable, TimeoutError):
        return None
