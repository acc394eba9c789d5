"""`pool doctor` of processes, streams, batches and results: each trouble is planted for real."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pool import Handlers, Job, Stream
from pool.core import ailing
from pool.events import LeaseLost
from pool.metrics import Metrics
from pool.ops import checkup, doctor, doctor_nodes, doctor_streams, inspect
from pool.ops.cli.doctor import diagnose
from pool.ops.findings import Finding
from pool.redis.url import Url
from pool.testing.proxy import fault_proxy

if TYPE_CHECKING:
    from tests.nodes import Fleet

PATIENCE_S = 60.0
pytestmark = pytest.mark.anyio


async def found(fleet: Fleet, operator: str = "") -> dict[str, Finding]:
    """Look; with the address of somebody who may list names of keys at streams, too."""
    url = Url.parse(operator or fleet.url)
    told = await diagnose(fleet.pool, url, has_streams=bool(operator))
    return {each.rule: each for each in told.findings}


async def finds(fleet: Fleet, rule: str, operator: str = "") -> Finding:
    with anyio.fail_after(PATIENCE_S):
        while rule not in (told := await found(fleet, operator)):  # noqa: ASYNC110 - nobody tells
            await anyio.sleep(0.05)
    assert told[rule].advice
    return told[rule]


async def is_over(fleet: Fleet, rule: str, operator: str = "") -> None:
    with anyio.fail_after(PATIENCE_S):
        while rule in await found(fleet, operator):  # noqa: ASYNC110 - likewise
            await anyio.sleep(0.05)


# --- what nodes say of themselves -----------------------------------------------------------------


async def test_a_loop_that_is_always_late_is_told_of_by_its_node(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ailing, "BEATS_MIN", 3)
    monkeypatch.setattr(ailing, "SPAN_S", 1.0)
    mine, blocks = Handlers(), [True]

    @mine.job("computes")
    async def computes(job: Job) -> None:
        while blocks:
            threading.Event().wait(0.7)
            await anyio.lowlevel.checkpoint()

    async def plant() -> None:
        told = await finds(fleet, "loop-lag")
        assert told.severity == "warning"
        assert node.id in told.where
        assert any(each.startswith("pid ") for each in told.where)

    node = await fleet.node(mine)
    await node.dispatch("computes", "k")
    await _in_another_loop(plant)
    blocks.clear()
    await is_over(fleet, "loop-lag")


@pytest.mark.parametrize("busy_s", [0.04, 0.0], ids=["busy", "idle"])
async def test_a_loop_that_is_busy_most_of_the_time_is_told_of(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, busy_s: float
) -> None:
    """It takes everything up within some milliseconds, so it is not late."""
    monkeypatch.setattr(ailing, "BUSY_BEATS_MIN", 12)
    mine = Handlers()

    @mine.job("computes")
    async def computes(job: Job) -> None:
        while True:
            threading.Event().wait(busy_s)
            await anyio.sleep(0.01)

    node = await fleet.node(mine, lease_ttl_s=1.0)
    await node.dispatch("computes", "k")
    seen = fleet.wiring(node)._keepalive._busy
    with anyio.fail_after(PATIENCE_S):
        while seen.read(time.monotonic()).count < 16:  # noqa: ASYNC110 - no test is told
            await anyio.sleep(0.05)

    async def look() -> None:
        if busy_s:
            told = await finds(fleet, "loop-busy")
            assert (told.severity, told.where[0]) == ("warning", node.id)
        elif "loop-busy" in await found(fleet):
            share = seen.read(time.monotonic())
            assert share.total >= ailing.BUSY_SHARE * share.count  # the machine is too busy

    await _in_another_loop(look)
    await node.stop_all()


async def _in_another_loop(look: Callable[[], Awaitable[None]]) -> None:
    """Look from a thread, as the loop here is the one in trouble."""
    await anyio.to_thread.run_sync(lambda: anyio.run(look))


async def test_pauses_of_the_collector_are_told_of_by_who_measures_them(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ailing, "PAUSE_S", 0.005)
    monkeypatch.setattr(ailing, "SPAN_S", 1.0)
    await fleet.node(Handlers(), observers=[Metrics()])
    heap: list[Any] = [[] for _ in range(400_000)]
    gc.collect()
    heap.clear()
    assert (await finds(fleet, "collector-pauses")).severity == "note"


async def test_renewals_that_fail_now_and_then_are_told_of(fleet: Fleet) -> None:
    async with fault_proxy(fleet.url) as proxy:
        node = await fleet.node(Handlers(), url=proxy.url)
        seen = fleet.wiring(node)._keepalive._renewals
        proxy.drop_replies = True
        with anyio.fail_after(PATIENCE_S):
            while seen.read(time.monotonic()).total < 6:  # noqa: ASYNC110 - no test is told
                await anyio.sleep(0.01)
        await proxy.heal()
        told = await finds(fleet, "renewals-fail")
        assert told.where[0] == node.id
        assert told.count >= ailing.FAILED[0]
        await fleet.leave(node)
    assert "renewals-fail" not in await found(fleet)


async def test_a_copy_that_cannot_go_on_is_told_of_and_mended_by_deleting_what_is_in_its_way(
    fleet: Fleet,
) -> None:
    node = await fleet.node(Handlers(), lease_ttl_s=1.0)
    async with node.map("prices") as prices:
        await prices.set("tea", "3")
        log = fleet.control.map_log("prices")
        fleet.client.delete(log)
        fleet.client.set(log, "of another hand")
        told = await finds(fleet, "copies-behind")
        assert (told.count, told.where[0]) == (1, node.id)
        fleet.client.delete(log)
        await is_over(fleet, "copies-behind")
        await prices.set("tea", "4")


async def test_a_copy_of_which_nothing_is_heard_is_behind(fleet: Fleet) -> None:
    """As where the server of the maps hangs, and those of the lanes do not."""
    node = await fleet.node(Handlers(), lease_ttl_s=3600.0)  # so that no probe comes meanwhile
    wiring = fleet.wiring(node)
    async with node.map("prices"):
        assert wiring.maps.behind() == set()
        for reading in wiring.maps.follower._readings.values():
            reading.heard_s -= 3601.0
        assert wiring.maps.behind() == {"prices", "workers"}
        assert wiring._count_behind() == 2


# --- what happens again and again -----------------------------------------------------------------


async def crashing() -> None:
    raise LookupError("what it meets is still there")


async def test_a_part_that_crashes_each_time_it_is_begun_is_told_of(fleet: Fleet) -> None:
    node = await fleet.node(Handlers())
    sweeper = fleet.wiring(node)._sweeper
    for _ in range(doctor_nodes.AGAIN):
        assert "parts-crash" not in await found(fleet)
        await fleet.until(lambda: sweeper.state == "running")
        wanted = len(_crashes(fleet)) + 1
        sweeper.spawn(crashing)
        await fleet.until(lambda wanted=wanted: len(_crashes(fleet)) >= wanted)  # type: ignore[misc]
    told = await finds(fleet, "parts-crash")
    assert (told.count, told.where[0]) == (doctor_nodes.AGAIN, node.id)
    assert "what it meets is still there" in told.says


def _crashes(fleet: Fleet) -> list[Any]:
    return [each for each in fleet.events.entries if each.event == "actor.crashed"]


async def test_who_loses_its_leases_again_and_again_is_told_of(fleet: Fleet) -> None:
    """By way of the journal, as the node that lost them may be gone."""
    node = await fleet.node(Handlers())
    for _ in range(doctor_nodes.AGAIN):
        lost = LeaseLost(node=node.id, lane=0, silent_s=9.0, ttl_s=3.0)
        fleet.wiring(node).context.emit(lost)
    await fleet.leave(node)
    other = await fleet.node(Handlers())
    told = await finds(fleet, "leases-lost")
    assert told.where[0] == node.id != other.id


async def test_a_server_whose_clock_is_behind_is_told_of(fleet: Fleet) -> None:
    await fleet.node(Handlers())
    fleet.client.hset(fleet.names.lane, "behind", "1")
    assert "clock-stepped" in await found(fleet)


async def test_a_drain_that_does_not_end_is_told_of(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_nodes, "DRAIN_S", 0.0)
    mine, gate = Handlers(), fleet.gate()

    @mine.job("stubborn")
    async def stubborn(job: Job) -> None:
        with anyio.CancelScope(shield=True):
            await gate.wait()

    node, other = await fleet.node(mine, grace_s=60.0), await fleet.node(Handlers())
    await (await other.dispatch("stubborn", "k")).started(PATIENCE_S)
    worker = fleet.workers(node)[0].id
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: other.drain_member(worker, timeout_s=1.0))
        told = await finds(fleet, "drain-late")
        assert (told.count, told.command) == (1, f"pool jobs --owner {worker}")
        gate.set()
    await is_over(fleet, "drain-late")


# --- batches, results, streams --------------------------------------------------------------------


async def test_a_batch_under_way_that_lacks_members_is_told_of(fleet: Fleet) -> None:
    mine, gate, standing = Handlers(), anyio.Event(), set[str]()

    @mine.job("stand")
    async def stand(job: Job) -> None:
        standing.add(job.key)
        await gate.wait()

    fleet.is_audited = False  # of the handler whose record is gone
    node = await fleet.node(mine, capacity=2)
    async with node.batch("b1") as batch:
        await batch.add("stand", ["lost", "there"])
    await fleet.until(lambda: standing == {"lost", "there"})
    fleet.client.hdel(fleet.names.jobs, "lost")
    fleet.client.zadd(fleet.names.due, {"b:b1": 1})
    told = await finds(fleet, "batch-lacks")
    assert (told.keys, told.count, told.command) == (("b1",), 1, "pool batches show b1")
    gate.set()
    await batch.ref.wait(PATIENCE_S)
    await is_over(fleet, "batch-lacks")


async def test_results_that_nobody_fetches_are_told_of(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = Handlers()

    @mine.job("tells")
    async def tells(job: Job) -> str:
        return "x" * 1000

    node = await fleet.node(mine)
    await (await node.dispatch("tells", "k")).result(PATIENCE_S)
    assert "results-kept" not in await found(fleet)
    monkeypatch.setattr(doctor, "RESULTS_BYTES", 1000)
    assert (await finds(fleet, "results-kept")).count >= 1


async def test_sinks_without_consumers_are_told_of_and_one_that_comes_mends_it(
    fleet: Fleet, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_streams, "PATIENCE_S", 0.2)
    node = await fleet.node(Handlers(), lease_ttl_s=1.0)
    stream = node.stream("orders")
    for number in range(3):
        await stream.add("made", str(number))
    async with Stream.open(fleet.url, "orders", pool=fleet.pool, observers=()) as apart:
        sink = apart.sink("billing", buffer_max=1)
        await sink.__aenter__()
        await anext(sink)
        fleet.client.xgroup_setid(fleet.control.stream("orders"), "billing", "0-0")
        behind = await finds(fleet, "sink-behind", redis_url)
        assert behind.command == "pool streams orders"
        await sink.aclose()
    seen = fleet.control.sink("orders", "billing")
    fleet.client.hset(seen, "seen", str(int(time.time() * 1000) - 100_000))
    told = await found(fleet, redis_url)
    assert "no consumer is there" in told["sink-behind"].says
    if "consumers-stale" in told:  # what it held was given back if it left in peace
        assert told["consumers-stale"].count >= 1
    async with stream.sink("billing") as billing:
        for _ in range(3):
            await billing.ack(await anext(billing))
        await is_over(fleet, "sink-behind", redis_url)
    fleet.client.xadd(fleet.control.sink_parked("orders", "billing"), {"x": "y"})
    assert (await found(fleet, redis_url))["sink-parked"].count == 1


async def test_what_the_server_says_of_itself_is_read_whole(fleet: Fleet, redis_url: str) -> None:
    """Each section is there for a pool's own user; calls that were refused are counted by it."""
    await fleet.node(Handlers())
    async with inspect.opened(fleet.pool, Url.parse(fleet.url)) as (pipeline, pool):
        facts = await checkup.gather(pipeline, pool)
    [server] = facts.servers
    assert all(server.sections().values())
    assert int((server.clients or {})["maxclients"]) > 0
    assert any(name.endswith("_evalsha") for name in server.latencystats or {})
