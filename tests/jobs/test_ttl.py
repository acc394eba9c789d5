"""The TTL belongs to the pool: who names another one is refused, who names none goes by it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

import anyio
import pytest

from pool import Handlers, Job, Node, Settings, Stream
from pool.errors import ConfigError
from pool.events import TtlChanged
from pool.names import Names
from pool.ops import inspect
from pool.ops.cli.status import fetch
from pool.ops.cli.ttl import change
from pool.redis.url import Url

if TYPE_CHECKING:
    from pool.ops.cli.ttl import TtlSet
    from pool.redis.pipeline import Pipeline
    from pool.redis.scripts import Word
    from tests.nodes import Diary, Fleet

pytestmark = pytest.mark.anyio

LONG_S = 20.0  # and those that follow it: no handler shall end, however slow the machine is


@pytest.fixture
def renews_often(told_or_never: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases are long, and what is heard with a renewal is heard as soon as with short ones."""
    monkeypatch.setattr("pool.core.lease.RENEW_MAX_S", 0.5)


def serving(diary: Diary) -> Handlers:
    mine = Handlers()

    @mine.service("serve")
    async def serve(job: Job) -> None:
        diary.note("started", job.key)
        try:
            await anyio.sleep_forever()
        finally:
            diary.note("ended", job.key)

    return mine


async def go_by(fleet: Fleet, node: Node, ttl_s: float) -> TtlSet:
    """Change it as `pool ttl` does, on a node's pipeline."""
    pipeline = fleet.wiring(node).context.pipeline
    found = await inspect.find(pipeline, fleet.pool)
    assert found is not None
    return await change(pipeline, found, ttl_s)


async def test_who_names_another_ttl_is_refused(fleet: Fleet) -> None:
    """D1: a client with 1 s among nodes of 3 s held up fencing; now it does not come in."""
    await fleet.node()
    with pytest.raises(ConfigError) as refused:
        await fleet.node(lease_ttl_s=1.0)
    assert refused.value.setting == "lease_ttl_s"
    for part in ("3 s", "1 s", f"pool ttl 1 --pool {fleet.pool}"):
        assert part in refused.value.problem
    assert fleet.client.hget(fleet.control.config, "ttl") == b"3000"
    with pytest.raises(ConfigError):
        async with Stream.open(fleet.url, "s", pool=fleet.pool, settings=Settings(lease_ttl_s=1.0)):
            pass


async def test_who_names_none_goes_by_the_pools(fleet: Fleet) -> None:
    first = await fleet.node()
    later = await fleet.node(lease_ttl_s=None)
    assert fleet.wiring(later).context.timing == fleet.wiring(first).context.timing
    async with Stream.open(
        fleet.url, "s", pool=fleet.pool, settings=Settings(lease_ttl_s=None)
    ) as stream:
        assert stream._session.timing.ttl_s == 3.0


async def test_a_pool_founded_without_one_has_ten_seconds(fleet: Fleet) -> None:
    await fleet.node(lease_ttl_s=None)
    assert fleet.client.hget(fleet.control.config, "ttl") == b"10000"
    assert fleet.client.hget(fleet.names.lane, "ttl") == b"10000"


def _goes_by(fleet: Fleet, node: Node, ttl_s: float) -> bool:
    return {state.lease.ttl_s for state in fleet.wiring(node).context.lanes} == {ttl_s}


def ttls_in_lanes(fleet: Fleet, lanes: int) -> set[bytes]:
    client: Any = fleet.client
    return {client.hget(Names(fleet.pool, number).lane, "ttl") for number in range(lanes)}


@pytest.mark.usefixtures("renews_often")
@pytest.mark.parametrize("lanes", [1, 4])
async def test_a_client_without_settings_does_not_fix_the_ttl(
    fleet: Fleet, diary: Diary, lanes: int
) -> None:
    """The first node that names a TTL decides, and all that are open take it up."""
    client = await fleet.node(lease_ttl_s=None, lanes=lanes)
    await fleet.node(serving(diary), lease_ttl_s=None, lanes=lanes)
    await client.dispatch("serve", "k")
    await diary.counts(1)
    assert ttls_in_lanes(fleet, lanes) == {b"10000"}
    first = await fleet.node(lease_ttl_s=4.0, lanes=lanes)
    assert ttls_in_lanes(fleet, lanes) == {b"4000"}
    assert fleet.client.hget(fleet.control.config, "ttl") == b"4000"
    for node in (client, first):
        await fleet.until(partial(_goes_by, fleet, node, 4.0))
    await fleet.seen(TtlChanged, node=client.id, ttl_s=4.0)
    with pytest.raises(ConfigError, match="goes by 4 s, not 5 s"):
        await fleet.node(lease_ttl_s=5.0, lanes=lanes)
    assert len(diary.entries) == 1  # no handler ended
    assert not (await fetch(fleet.pool, Url.parse(fleet.url))).findings


async def test_a_client_and_a_node_that_open_at_once_go_by_the_nodes_ttl(fleet: Fleet) -> None:
    """Whichever writes first, in `config` and in each lane."""
    async with anyio.create_task_group() as tasks:
        for ttl_s in (None, 5.0, None, 5.0, None):
            tasks.start_soon(partial(fleet.node, lease_ttl_s=ttl_s, lanes=8))
    assert ttls_in_lanes(fleet, 8) == {b"5000"}
    assert fleet.client.hget(fleet.control.config, "ttl") == b"5000"


async def test_a_node_that_died_between_config_and_lanes_is_finished_by_the_next(
    fleet: Fleet,
) -> None:
    await fleet.node(lease_ttl_s=None, lanes=4)
    fleet.client.hset(fleet.control.config, mapping={"ttl": 6000, "named": 1})
    await fleet.node(lease_ttl_s=6.0, lanes=4)
    assert ttls_in_lanes(fleet, 4) == {b"6000"}


async def test_a_ttl_that_an_operator_sets_counts_as_named(fleet: Fleet) -> None:
    """`pool ttl` decides also where its TTL is the one by default."""
    client = await fleet.node(lease_ttl_s=None)
    await go_by(fleet, client, 10.0)
    with pytest.raises(ConfigError, match="goes by 10 s, not 3 s"):
        await fleet.node(lease_ttl_s=3.0)


async def test_config_that_was_lost_keeps_a_ttl_that_was_named(fleet: Fleet) -> None:
    """The lanes say it, so that no node with another one replaces it."""
    await fleet.node(lease_ttl_s=7.0)
    fleet.client.delete(fleet.control.config)
    with pytest.raises(ConfigError, match="goes by 7 s, not 3 s"):
        await fleet.node(lease_ttl_s=3.0)
    assert fleet.client.hget(fleet.control.config, "ttl") == b"7000"


async def test_a_stream_that_names_a_ttl_does_not_fix_it(fleet: Fleet) -> None:
    await fleet.node(lease_ttl_s=None)
    settings = Settings(lease_ttl_s=1.0)
    async with Stream.open(fleet.url, "s", pool=fleet.pool, settings=settings) as stream:
        assert stream._session.timing.ttl_s == 10.0
    await fleet.node(lease_ttl_s=4.0)
    assert ttls_in_lanes(fleet, 1) == {b"4000"}


@pytest.mark.usefixtures("renews_often")
@pytest.mark.parametrize("lanes", [1, 4])
async def test_nodes_take_up_what_the_pool_goes_by(fleet: Fleet, diary: Diary, lanes: int) -> None:
    """13.4: heard of with a renewal, told, and all times derive from it; no handler ends."""
    options: dict[str, Any] = {"lanes": lanes, "lease_ttl_s": LONG_S}
    nodes = [await fleet.node(serving(diary), **options) for _ in range(2)]
    for n in range(8):
        await nodes[0].dispatch("serve", f"k{n}")
    await diary.counts(8)
    for ttl_s in (14.0, 40.0, 16.0):
        changed = await go_by(fleet, nodes[0], ttl_s)
        assert changed.is_done
        assert len(changed.before_s) == lanes
        for node in nodes:
            await fleet.seen(TtlChanged, node=node.id, ttl_s=ttl_s)
            assert fleet.wiring(node).context.timing.ttl_s == ttl_s
            states = fleet.wiring(node).context.lanes
            assert {state.lease.ttl_s for state in states} == {ttl_s}
    # Once they have said so, their leases are no longer than that.
    names = [Names(fleet.pool, lane) for lane in range(lanes)]

    def ends_ms() -> list[float]:
        client: Any = fleet.client
        return [
            end
            for each in names
            for _, end in client.zrange(each.keepalive, 0, -1, withscores=True)
        ]

    def now_ms() -> float:
        client: Any = fleet.client
        seconds, us = client.time()
        return float(1000 * seconds + us / 1000)

    await fleet.until(lambda: max(ends_ms()) <= now_ms() + 16_000)
    assert not [entry for entry in diary.entries if entry[0] == "ended"]
    assert len(diary.entries) == 8


@pytest.mark.usefixtures("renews_often")
async def test_a_change_that_stopped_half_way_is_found_and_resumed(
    fleet: Fleet, diary: Diary
) -> None:
    """The command died after `config` and two of four lanes: all work on, and it is told."""
    node = await fleet.node(serving(diary), lanes=4, lease_ttl_s=LONG_S)
    context = fleet.wiring(node).context
    fleet.client.hset(fleet.control.config, "ttl", 14_000)
    for state in context.lanes[:2]:
        call = state.lane.change_ttl(14_000)
        await context.pipeline.call(call)
    await fleet.seen(TtlChanged, ttl_s=14.0)
    for n in range(8):
        await node.dispatch("serve", f"k{n}")
    await diary.counts(8)
    [finding] = (await fetch(fleet.pool, Url.parse(fleet.url))).findings
    assert (finding.rule, finding.where) == ("ttl-apart", ("lane 2", "lane 3"))
    later = await fleet.node(lanes=4, lease_ttl_s=None)
    assert fleet.wiring(later).context.timing.ttl_s == 14.0  # as the shortest of its lanes asks for
    changed = await go_by(fleet, node, 14.0)
    assert changed.is_done
    assert changed.before_s == {0: 14.0, 1: 14.0, 2: LONG_S, 3: LONG_S}
    assert not (await fetch(fleet.pool, Url.parse(fleet.url))).findings
    await fleet.until(lambda: {s.lease.ttl_s for s in context.lanes} == {14.0})
    assert not [entry for entry in diary.entries if entry[0] == "ended"]


async def test_a_lane_that_cannot_be_reached_is_named(fleet: Fleet) -> None:
    node = await fleet.node(lanes=3)
    fleet.client.rename(fleet.names.lane, fleet.names.prefix + "aside")
    fleet.client.set(fleet.names.lane, "of another type")
    try:
        changed = await go_by(fleet, node, 2.0)
    finally:
        fleet.client.delete(fleet.names.lane)
        fleet.client.rename(fleet.names.prefix + "aside", fleet.names.lane)
    assert not changed.is_done
    assert list(changed.missed) == [0]
    assert sorted(changed.before_s) == [1, 2]
    assert (await go_by(fleet, node, 2.0)).is_done


async def test_of_two_changes_at_once_the_later_word_counts_in_all_lanes(fleet: Fleet) -> None:
    """Whoever was held up between his word and the lanes does not bring them what is past."""
    node = await fleet.node(lanes=4)
    context = fleet.wiring(node).context
    pipeline = context.pipeline
    found = cast("inspect.Found", await inspect.find(pipeline, fleet.pool))
    told: list[TtlSet] = []

    class Slow:
        """What is asked for right behind one's own word comes a whole change later."""

        async def execute(self, *words: Word) -> Any:
            reply = await pipeline.execute(*words)
            if words[0] == "HSET":
                told.append(await change(pipeline, found, 5.0))
            return reply

        def at(self, tag: str) -> Pipeline:
            return pipeline.at(tag)

    first = await change(cast("Pipeline", Slow()), found, 2.0)
    assert (first.overtaken_by_s, told[0].overtaken_by_s) == (5.0, None)
    lanes = [Names(fleet.pool, number).lane for number in range(4)]
    assert [fleet.client.hget(lane, "ttl") for lane in lanes] == [b"5000"] * 4


@pytest.mark.parametrize("ttl_s", [0.5, 3601.0, float("nan")])
async def test_what_is_no_ttl_changes_nothing(fleet: Fleet, ttl_s: float) -> None:
    node = await fleet.node()
    with pytest.raises(ConfigError):
        await go_by(fleet, node, ttl_s)
    assert fleet.client.hget(fleet.control.config, "ttl") == b"3000"


async def test_a_sink_goes_by_the_pools_ttl(fleet: Fleet) -> None:
    """Its leases are granted by what stands in `config`, also once that has changed."""
    node = await fleet.node()
    stream = node.stream("events")
    async with stream.sink("billing") as sink:
        await fleet.until(lambda: sink._timing.ttl_s == 3.0)
        await go_by(fleet, node, 1.0)
        await fleet.until(lambda: sink._timing.ttl_s == 1.0)
