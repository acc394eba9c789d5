"""A fault at one map's keys is an outage of that map: nobody ends by it, and it heals by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import attrs
import pytest

from pool import Handlers, Job, Node, ReplicatedMap
from pool.core.lease import Timing
from pool.errors import NotRunning, StoreFault
from pool.events import (
    ActorCrashed,
    MapDamaged,
    MapNotFetched,
    MapResynced,
    MapsDamaged,
    MapsReachable,
    MapsUnreachable,
)
from pool.maps import Change, Resync
from pool.maps.commands import StoredMap
from pool.names import WORKERS
from tests.nodes import Fleet
from tests.servers import connect

if TYPE_CHECKING:
    from pool.redis.embedded.server import EmbeddedServer

pytestmark = pytest.mark.anyio

TTL_S = 1.0
RENEW_S = Timing(TTL_S).renew_s
PATIENCE_S = 50.0
FAULT_S = 2.5  # a node that had ended by it did so within 1.9 s


def echoing() -> Handlers:
    handlers = Handlers()

    @handlers.job("echo")
    async def echo(job: Job) -> None:
        pass

    return handlers


@pytest.mark.parametrize("name", [WORKERS, "flags"])
async def test_a_map_that_cannot_be_read_for_seconds_ends_no_node(fleet: Fleet, name: str) -> None:
    node = await fleet.node(echoing(), lease_ttl_s=TTL_S)
    meta, kept = fleet.control.map_data(name), fleet.control.map_data("kept")
    async with node.map("flags") as flags:
        await flags.set_and_wait("a", "1")
        fleet.client.rename(meta, kept)
        fleet.client.set(meta, "junk")
        await fleet.seen(MapNotFetched, map=name)
        if name == "flags":
            with pytest.raises(StoreFault):  # its holders are told
                await flags.wait_for(attrs.evolve(flags.at, revision=2**52))
            with pytest.raises(StoreFault):
                await flags.set("a", "2")
        await anyio.sleep(FAULT_S)
        assert node.state == "open"
        fleet.client.rename(kept, meta)
        assert (await flags.set_and_wait("a", "3")).is_met
    other = await fleet.node(echoing(), lease_ttl_s=TTL_S)
    await fleet.knows(node, 2)
    async with other.map("flags") as flags:
        assert flags.snapshot() == {"a": "3"}
    assert fleet.all_seen(ActorCrashed) == []
    assert len(fleet.all_seen(MapNotFetched)) == 1


@pytest.mark.parametrize("name", [WORKERS, "flags"])
async def test_a_map_whose_place_in_its_history_was_deleted_gets_another(
    fleet: Fleet, name: str
) -> None:
    """One resync tells of it; what was written before stays."""
    node = await fleet.node(echoing(), lease_ttl_s=TTL_S)
    async with node.map("flags") as flags:
        for number in range(3):
            await flags.set("a", str(number))
            await flags.append("l", str(number))
        await flags.set_and_wait("b", "1")
        fleet.client.hdel(fleet.control.map_data(name), "at")
        await fleet.seen(MapResynced, map=name)
        await anyio.sleep(8 * RENEW_S)
        assert len(fleet.all_seen(MapResynced)) == 1
        await flags.set_and_wait("a", "3")
        assert flags.snapshot() == {"a": "3", "b": "1", "l": ("0", "1", "2")}
        assert len(fleet.all_seen(MapResynced)) == 1


@pytest.mark.parametrize("is_written", [True, False])
async def test_a_write_that_was_broken_off_behind_its_log_stops_no_later_one(
    fleet: Fleet, is_written: bool
) -> None:
    """A right that its user lacks ends a script half-way; for ever all writes were refused."""
    node = await fleet.node(echoing(), lease_ttl_s=TTL_S)
    async with node.map("flags") as flags:
        await flags.set("a", "1")
        before = (await flags.set_and_wait("a", "2")).revision
        client: Any = fleet.client
        log = fleet.control.map_log("flags")
        [(_, fields)] = client.xrevrange(log, count=1)
        made, stamp, _ = fields[b"at"].split()
        fields |= {b"at": b"%s %s %d-%s" % (made, stamp, before, stamp), b"edits": b"-1:a"}
        client.xadd(log, fields, id=f"{before + 1}-0")
        if not is_written:
            await fleet.seen(MapResynced, map="flags")
            await anyio.sleep(8 * RENEW_S)
            assert flags.snapshot() == {"a": "2"}
            assert len(fleet.all_seen(MapResynced)) == 1
        assert (await flags.set_and_wait("a", "3")).revision > before + 1
        await fleet.until(lambda: flags.snapshot() == {"a": "3"})


async def test_a_users_map_that_crashes_too_often_is_its_holders_matter(fleet: Fleet) -> None:
    node = await fleet.node(lease_ttl_s=TTL_S, restarts_max=1)

    def fail(_: object) -> None:
        raise KeyError("bug")

    async with node.map("flags") as flags:
        replica = fleet.wiring(node).maps._held["flags"].replica
        replica.watch(fail)
        while replica.state != "ended":
            with suppress(NotRunning):
                await flags.set_and_wait("a", replica.state)
            await fleet.until(lambda: replica.state != "crashed")
        async with node.map("flags") as anew:
            await anew.set_and_wait("a", "new")
    assert node.state == "open"
    assert len(fleet.all_seen(ActorCrashed, actor="map/flags")) == 2


async def probed(fleet: Fleet, node: Node, times: int) -> None:
    """Wait until each of the node's connections has probed its maps so often from now on."""
    tailers = [tailer for tailer in fleet.wiring(node).maps.follower._tailers if tailer.readings]
    counts = dict.fromkeys(map(id, tailers), -1)  # one may have been under way

    def count(tailer: Any, hear: Any, told: Any) -> None:
        hear(told)
        counts[id(tailer)] += 1

    heard = [tailer.on_probed for tailer in tailers]
    for tailer in tailers:
        tailer.on_probed = partial(count, tailer, tailer.on_probed)
    await fleet.until(lambda: min(counts.values()) >= times)
    for tailer, hear in zip(tailers, heard, strict=True):
        tailer.on_probed = hear


# --- neighbours -------------------------------------------------------------------------------


@asynccontextmanager
async def opened(node: Node, *names: str) -> AsyncIterator[list[ReplicatedMap[str]]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(node.map(name)) for name in names]


@pytest.mark.parametrize("which", ["data", "lists", "log"])
async def test_a_foreign_value_fails_its_own_map_alone_and_is_named(
    fleet: Fleet, which: str
) -> None:
    """G8: under one map's log it stopped all that its process followed, jobs included."""
    node = await fleet.node(echoing(), lease_ttl_s=TTL_S)
    async with opened(node, "flags", "routes", "prices") as [flags, *others]:
        for each in (flags, *others):
            await each.append("l", "1")
            await each.set_and_wait("a", "1")
        key = getattr(StoredMap(fleet.control, "flags"), which)
        kept: Any = fleet.client.dump(key)
        fleet.client.delete(key)
        fleet.client.set(key, "foreign")
        await fleet.seen(MapDamaged, map="flags", key=key)
        with pytest.raises(StoreFault):
            await flags.append("l", "2")
        for n in range(20):  # further probes and reads find it there still
            for each in others:
                with anyio.fail_after(PATIENCE_S):
                    await each.set_and_wait("n", str(n))
            await anyio.sleep(RENEW_S / 8)
        assert len(fleet.all_seen(MapDamaged)) == 1
        assert fleet.all_seen(MapResynced) == []  # they were read, and not fetched
        fleet.client.delete(key)
        fleet.client.restore(key, 0, kept)
        await flags.append("l", "3")
        await fleet.until(lambda: flags.get_list("l") == ("1", "3"))
        assert flags["a"] == "1"
    assert node.state == "open"
    assert fleet.all_seen(ActorCrashed) == []


@pytest.mark.parametrize("which", ["data", "lists", "log"])
@pytest.mark.parametrize("is_written", [False, True])
async def test_what_an_operator_deletes_of_a_map_is_gone_from_its_copies_too(
    fleet: Fleet, which: str, *, is_written: bool
) -> None:
    """G7: they kept what was not there, and `remove()` did nothing."""
    node, other = [await fleet.node(lease_ttl_s=TTL_S) for _ in range(2)]
    async with opened(node, "flags") as [flags], opened(other, "flags") as [far]:
        await flags.append("l", "x", "y", "x")
        await far.wait_for((await flags.set("a", "1")).at)
        fleet.client.delete(getattr(StoredMap(fleet.control, "flags"), which))
        wanted: dict[str, Any] = {"a": "1", "l": ("x", "y", "x")}
        wanted.pop({"data": "a", "lists": "l"}.get(which, ""), None)
        if is_written:
            await flags.append("m", "z")
            wanted["m"] = ("z",)
        await fleet.until(lambda: flags.snapshot() == far.snapshot() == wanted)
        removed = await far.remove("l", "x")
        assert removed.size_before - removed.size == 2 * (which != "lists")
        await flags.wait_for(removed.at)
        assert flags.get_list("l") == (() if which == "lists" else ("y",))
        await probed(fleet, node, 3)
        assert fleet.all_seen(MapDamaged) == []


def ends_now(fleet: Fleet, name: str) -> None:
    """Have a map's time be up, by what it says itself alone."""
    data = StoredMap(fleet.control, name).data
    place: Any = fleet.client.hget(data, "at")
    fleet.client.hset(data, "at", " ".join([*place.decode().split()[:3], "1"]))


@pytest.mark.parametrize("which", ["maps", "map_due"])
async def test_a_foreign_value_that_all_maps_share_is_named_and_ends_go_on_behind_it(
    fleet: Fleet, which: str
) -> None:
    node = await fleet.node(lease_ttl_s=TTL_S)
    key = getattr(fleet.control, which)
    async with opened(node, "two") as [two], node.map("one", ttl_s=3600.0) as one:
        await one.set_and_wait("a", "1")
        fleet.client.delete(fleet.control.map_due, key)
        fleet.client.set(key, "foreign")
        await fleet.seen(MapsDamaged, key=key)
        await two.set_and_wait("a", "1")
        await two.append("l", "1")
        ends_now(fleet, "one")
        fleet.client.zrem(fleet.control.map_due, "one") if which == "maps" else None
        if which == "maps":
            with pytest.raises(StoreFault, match=key):
                await one.set("a", "2")
            await probed(fleet, node, 3)
            assert one.snapshot() == {"a": "1"}
            fleet.client.delete(key)
        await fleet.until(lambda: not one.snapshot())
        assert two.snapshot() == {"a": "1", "l": ("1",)}
        fleet.client.delete(key)
        await probed(fleet, node, 2)
        assert len(fleet.all_seen(MapsDamaged)) == 1
        fleet.client.set(key, "foreign")
        await fleet.until(lambda: len(fleet.all_seen(MapsDamaged)) == 2)
        fleet.client.delete(key)
    assert fleet.all_seen(MapResynced) == []


@pytest.mark.parametrize("is_all", [False, True])
async def test_a_map_ends_though_its_place_among_the_ends_was_deleted(
    fleet: Fleet, *, is_all: bool
) -> None:
    """An open copy kept what had ended, and Redis too, until somebody wrote or joined."""
    node = await fleet.node(lease_ttl_s=TTL_S)
    async with node.map("flags", ttl_s=3600.0) as flags:
        await flags.set_and_wait("a", "1")
        ends_now(fleet, "flags")
        # Behind that: a probe in between would put it back by the end that it had.
        if is_all:
            fleet.client.delete(fleet.control.map_due)
        else:
            fleet.client.zrem(fleet.control.map_due, "flags")
        await fleet.until(lambda: not flags.snapshot())
        assert not fleet.client.exists(StoredMap(fleet.control, "flags").data)


async def test_what_no_snapshot_can_mend_is_told_once(fleet: Fleet) -> None:
    """A field that is none of ours, and what finds a value of a list without that value."""
    node = await fleet.node(lease_ttl_s=TTL_S)
    stored = StoredMap(fleet.control, "flags")
    async with opened(node, "flags") as [flags]:
        await flags.append("l", "x", "y")
        await flags.set_and_wait("a", "1")
        fleet.client.hset(stored.data, "foreign", "1")
        await fleet.seen(MapDamaged, map="flags", key=stored.data)
        fleet.client.hdel(stored.data, "foreign")
        await probed(fleet, node, 3)
        places: Any = fleet.client.zrange(stored.lists, 0, 0)
        fleet.client.zrem(stored.lists, places[0])
        await fleet.seen(MapDamaged, map="flags", key=stored.lists)
        await probed(fleet, node, 3)
        assert len(fleet.all_seen(MapDamaged)) == 2
        assert flags.snapshot() == {"a": "1", "l": ("x", "y")}


# --- many -------------------------------------------------------------------------------------


async def test_many_maps_are_read_a_few_by_each_connection(fleet: Fleet) -> None:
    """G10: each delta names all logs of its connection anew; 200 of them cost 230 us a write."""
    node = await fleet.node(lease_ttl_s=TTL_S)
    follower = fleet.wiring(node).maps.follower
    names = [f"m{n}" for n in range(30)]
    async with opened(node, *names) as maps:
        assert [len(tailer.readings) for tailer in follower._tailers] == [
            8,
            8,
            8,
            7,
        ]  # `workers` too
        for each in maps:
            await each.set_and_wait("a", each.name)
    assert [len(tailer.readings) for tailer in follower._tailers] == [1, 0, 0, 0]
    async with opened(node, *names[:9]) as maps:  # those that are empty are used again
        assert [len(tailer.readings) for tailer in follower._tailers] == [8, 2, 0, 0]
        for each in maps:
            await each.set_and_wait("b", each.name)


async def test_ends_reach_every_copy_in_one_period_and_leave_nothing(fleet: Fleet) -> None:
    """G4: 16 in a period were ended, and what nobody held stayed for ever."""
    node = await fleet.node(lease_ttl_s=TTL_S)
    names = [f"m{n}" for n in range(40)]
    async with opened(node, *names) as maps:
        for each in maps:
            await each.set_and_wait("a", "1")
        others = [f"other{n}" for n in range(300)]
        with fleet.client.pipeline(transaction=True) as pipe:
            for name in (*names, *others):
                stored = StoredMap(fleet.control, name)
                place: Any = fleet.client.hget(stored.data, "at")
                words = (place or b"i 5 a 0").decode().split()
                words[3] = "1"
                pipe.hset(stored.data, "at", " ".join(words))
                if place is None:
                    pipe.hset(stored.data, "=b", "1")
                pipe.zadd(fleet.control.map_due, {name: 1})
            pipe.execute()
        await probed(fleet, node, 2)
        assert {each.name: each.snapshot() for each in maps if each.snapshot()} == {}
        assert not fleet.client.exists(fleet.control.map_due)
        left = {
            key.split(b"}:")[1] for key in fleet.client.scan_iter(f"{fleet.control.prefix}map-*")
        }
        assert {name for name in left if not name.startswith(b"map-log:")} == set()
        for each in maps:  # they live again, by deltas alone
            await each.set_and_wait("a", "2")
        assert fleet.all_seen(MapResynced) == []


async def test_one_process_ends_all_that_have_ended_in_one_period(fleet: Fleet) -> None:
    node = await fleet.node(lease_ttl_s=TTL_S)
    async with opened(node, "flags"):
        with fleet.client.pipeline(transaction=True) as pipe:
            for n in range(600):
                stored = StoredMap(fleet.control, f"other{n}")
                pipe.hset(stored.data, mapping={"at": "i 5 a 1", "=b": "1"})
                pipe.zadd(fleet.control.map_due, {stored.name: 1})
            pipe.execute()
        await probed(fleet, node, 1)
        assert not fleet.client.exists(fleet.control.map_due)


async def test_a_map_that_ended_is_no_fork_whoever_was_away(fleet: Fleet) -> None:
    """G9: also when even its log is forgotten."""
    node = await fleet.node(lease_ttl_s=TTL_S)
    stored = StoredMap(fleet.control, "flags")
    async with opened(node, "flags") as [flags]:
        watch = flags.watch()
        for _ in range(2):
            await flags.set_and_wait("a", "1")
            await flags.wait_for((await flags.destroy()).at)
            fleet.client.delete(stored.log)
            await probed(fleet, node, 3)
        at = (await flags.set_and_wait("a", "2")).at
        with anyio.fail_after(PATIENCE_S):
            heard = [await anext(watch) for _ in range(5)]
        assert [each.new for each in heard if isinstance(each, Change)] == [
            "1",
            None,
            "1",
            None,
            "2",
        ]
        # It ends by another hand's script while we do not see that.
        fleet.client.hset(fleet.control.maps, "floor", at.revision + 1)
        fleet.client.delete(stored.data, stored.log)
        with anyio.fail_after(PATIENCE_S):
            resync = await anext(watch)
        assert isinstance(resync, Resync)
        assert not resync.is_fork
        await flags.wait_for(at)  # it was there


@pytest.mark.one_server  # it brings its own
async def test_a_server_that_refuses_writes_has_no_foreign_data(
    anyio_backend: str, own_server: EmbeddedServer
) -> None:
    """C4, L2: `min-replicas-to-write` with no replica there.  Two healthy keys were named."""
    with connect(own_server.url) as client:
        async with Fleet(own_server.url, "refusing", client).running() as fleet:
            node = await fleet.node(echoing(), lease_ttl_s=TTL_S)
            async with node.map("flags") as flags:
                await flags.set_and_wait("a", "1")
                client.config_set("min-replicas-to-write", 1)
                told = await fleet.seen(MapsUnreachable)
                assert "NOREPLICAS" in told.problem
                client.config_set("min-replicas-to-write", 0)
                await fleet.seen(MapsReachable)
                assert (await flags.set_and_wait("a", "2")).is_met
            assert not fleet.all_seen(MapsDamaged)
            assert not fleet.all_seen(MapDamaged)
