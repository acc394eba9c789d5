"""A fault at one map's keys is an outage of that map: nobody ends by it, and it heals by itself."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
import attrs
import pytest

from pool import Handlers, Job, NotRunning, StoreFault
from pool.actors.observe import ActorCrashed
from pool.actors.replica import MapNotFetched, MapResynced
from pool.model.names import WORKERS
from pool.model.timing import Timing

if TYPE_CHECKING:
    from tests.actors.conftest import Fleet

pytestmark = pytest.mark.anyio

TTL_S = 1.0
RENEW_S = Timing(TTL_S).renew_s
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
        fields |= {b"after": b"%d-%s" % (before, fields[b"stamp"]), b"edits": b"-1:a"}
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
        replica = fleet.crew(node).maps._held["flags"].replica
        replica.watch(fail)
        while replica.state != "ended":
            with suppress(NotRunning):
                await flags.set_and_wait("a", replica.state)
            await fleet.until(lambda: replica.state != "crashed")
        async with node.map("flags") as anew:
            await anew.set_and_wait("a", "new")
    assert node.state == "open"
    assert len(fleet.all_seen(ActorCrashed, actor="map/flags")) == 2
