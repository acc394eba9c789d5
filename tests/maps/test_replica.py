"""Replicas on a real server: no gap goes unseen, and nobody who waits blocks anybody else."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import attrs
import pytest
from anyio.abc import TaskGroup

from pool.core.lease import TTL_DEFAULT_S, Timing
from pool.errors import NotRunning, StoreFault, StoreLost, StoreUnavailable
from pool.events import MapNotFetched, MapResynced, MapsReachable, MapsUnreachable
from pool.maps.commands import WRITE, StoredMap, entry_of
from pool.maps.deltas import (
    Delete,
    Deltas,
    History,
    KeyChange,
    Position,
    Probed,
    Resync,
    Set,
    SetIfNotExists,
    Value,
)
from pool.maps.follower import HistoryLost, MapFollower
from pool.maps.replica import Replica, _Found, _Sought, _Waiter
from pool.names import Control
from pool.redis.embedded.server import EmbeddedServer
from pool.redis.io.system import SystemIO
from pool.redis.pipeline import Pipeline
from pool.redis.url import Url
from pool.settings import Settings
from tests.servers import connect

pytestmark = pytest.mark.anyio

SETTINGS = Settings(lease_ttl_s=1.0)  # a renewal period of 0.2 s
PATIENCE_S = 30.0


def beyond(at: Position) -> Position:
    """Return a position that no history has."""
    return Position(at.generation, at.revision + 1, "ffff")


class Watch:
    """A watcher that keeps all it hears, and can be waited for."""

    def __init__(self, replica: Replica) -> None:
        self.heard: list[KeyChange | Resync] = []
        self.replica = replica
        self._bell = anyio.Event()
        replica.watch(self._hear)

    def _hear(self, news: KeyChange | Resync) -> None:
        self.heard.append(news)
        self._bell.set()

    async def until(self, is_so: Callable[[], bool]) -> None:
        with anyio.fail_after(PATIENCE_S):
            while not is_so():
                self._bell = anyio.Event()
                await self._bell.wait()

    def resyncs(self) -> list[Resync]:
        return [news for news in self.heard if isinstance(news, Resync)]

    async def resynced(self) -> Resync:
        await self.until(lambda: bool(self.resyncs()))
        return self.resyncs()[-1]


@attrs.define
class Fleet:
    """One node's maps, on one server, and a plain client beside them."""

    url: str
    control: Control
    client: Any
    pipeline: Pipeline
    follower: MapFollower
    tasks: TaskGroup
    events: list[object]
    lost: list[StoreLost] = attrs.field(factory=list)
    replicas: list[Replica] = attrs.field(factory=list)
    _is_lost: anyio.Event = attrs.field(init=False, factory=anyio.Event)

    def make(self, name: str = "flags", **options: Any) -> Replica:
        replica = Replica(
            name=f"replica/{name}",
            stored=StoredMap(self.control, name),
            pipeline=self.pipeline,
            follower=self.follower,
            emit=self.events.append,
            on_lost=self._lose,
            **options,
        )
        self.replicas.append(replica)
        return replica

    def _lose(self, error: StoreLost) -> None:
        self.lost.append(error)
        self._is_lost.set()

    async def told_lost(self) -> None:
        """Wait until a copy has heard that its generation is lost."""
        with anyio.fail_after(PATIENCE_S):
            await self._is_lost.wait()

    async def join(self, name: str = "flags", **options: Any) -> Replica:
        replica = self.make(name, **options)
        await self.tasks.start(replica.run)
        with anyio.fail_after(PATIENCE_S):
            await replica.synced()
        return replica

    def write_unseen(self, replica: Replica, *words: str) -> Position:
        """Write, and take the delta out of the log before anyone can read it."""
        stored = replica.stored
        keys, limits = stored.keys(), (stored.name, secrets.token_hex(8), 1024, "")
        with self.client.pipeline(transaction=True) as pipe:
            pipe.eval(WRITE.source, len(keys), *keys, self.follower.generation, *limits, *words)
            pipe.xtrim(stored.log, maxlen=0, approximate=False)
            revision, stamp, _ = WRITE.reads(pipe.execute()[0])
        return Position(self.follower.generation, revision, stamp)

    def truth(self, replica: Replica) -> dict[bytes, Value]:
        held = self.client.hgetall(replica.stored.data)
        return {field[1:]: value for field, value in held.items() if field[:1] == b"="}


@asynccontextmanager
async def joined(
    url: str, pool: str, settings: Settings = SETTINGS, *, admin_url: str = ""
) -> AsyncIterator[Fleet]:
    control, io = Control(pool), SystemIO()
    address = Url.parse(url).at(control.prefix)
    events: list[object] = []
    with connect(admin_url or url) as client:
        client.hset(control.config, "incarnation", "i1")
        pipeline = await Pipeline.open(io, address, op_timeout_s=settings.op_timeout_s)
        follower = MapFollower(
            io=io,
            url=address,
            control=control,
            generation="i1",
            settings=settings,
            timing=lambda: Timing(settings.lease_ttl_s or TTL_DEFAULT_S),
            emit=events.append,
            care=None,
        )
        follower.start()
        try:
            async with anyio.create_task_group() as tasks:
                fleet = Fleet(url, control, client, pipeline, follower, tasks, events)
                yield fleet
                for replica in fleet.replicas:
                    replica.stop()
        finally:
            await follower.aclose(1.0)
            await follower.aclose(1.0)
            await pipeline.aclose(1.0)


@pytest.fixture
def open_fleet(redis_url: str, pool_url: str, pool_name: str) -> Callable[[], Any]:
    return lambda: joined(pool_url, pool_name, admin_url=redis_url)


def asked(replica: Replica) -> int:
    """How many snapshots it has asked for."""
    return replica._copy.ask


# --- without faults ---------------------------------------------------------------------------


async def test_a_watcher_sees_every_revision_and_the_map_is_fetched_once(
    open_fleet: Callable[[], Any],
) -> None:
    """G-10: one snapshot to join, then only deltas."""
    async with open_fleet() as fleet:
        replica = await fleet.join()
        watch = Watch(replica)
        written = [await replica.write([Set(b"n", b"%d" % n)]) for n in range(200)]
        await replica.write([Set(b"a", b"1"), Set(b"b", b"2"), Delete(b"n")])
        await watch.until(lambda: b"n" not in replica.items and replica.revision > 0)
        first = written[0].revision
        values = [None, *(b"%d" % n for n in range(200))]
        changes = [KeyChange(first + n, b"n", values[n], values[n + 1]) for n in range(200)]
        changes += [
            KeyChange(first + 200, b"a", None, b"1"),
            KeyChange(first + 200, b"b", None, b"2"),
            KeyChange(first + 200, b"n", b"199", None),
        ]
        assert watch.heard == changes
        assert dict(replica.items) == {b"a": b"1", b"b": b"2"} == fleet.truth(replica)
        assert (asked(replica), fleet.events) == (1, [])
        [reading] = fleet.follower._readings.values()
        assert reading.position == entry_of(replica._copy.state.at)  # nothing is read twice


async def test_a_writer_that_waits_reads_its_own_write(open_fleet: Callable[[], Any]) -> None:
    async with open_fleet() as fleet:
        replica = await fleet.join()
        with anyio.fail_after(PATIENCE_S):
            for n in range(50):
                written = await replica.write([Set(b"n", b"%d" % n)])
                await replica.wait_for(written.at)
                assert replica.items[b"n"] == b"%d" % n
        kept = replica.items
        written = await replica.write([Delete(b"n")])
        await replica.wait_for(written.at)
        assert (dict(kept), dict(replica.items)) == ({b"n": b"49"}, {})


async def test_many_replicas_of_many_maps_follow_on_one_connection(
    open_fleet: Callable[[], Any],
) -> None:
    async with open_fleet() as fleet:
        replicas = [await fleet.join(f"map-{n}") for n in range(20)]
        with anyio.fail_after(PATIENCE_S):
            for replica in replicas:
                written = await replica.write([Set(b"k", replica.stored.name.encode())])
                await replica.wait_for(written.at)
        assert [r.items[b"k"] for r in replicas] == [r.stored.name.encode() for r in replicas]
        assert {asked(replica) for replica in replicas} == {1}


async def test_a_map_joined_while_another_is_read_does_not_wait_for_it(
    pool_url: str, redis_url: str, pool_name: str
) -> None:
    """The blocked read is ended: at this lease it would last for minutes."""
    settings = Settings(lease_ttl_s=3600.0)
    async with joined(pool_url, pool_name, settings, admin_url=redis_url) as fleet:
        first, second = await fleet.join("first"), await fleet.join("second")
        with anyio.fail_after(PATIENCE_S):
            for replica in (second, first):
                await replica.wait_for((await replica.write([Set(b"a", b"1")])).at)
        assert fleet.events == []


async def test_what_was_read_before_following_anew_is_not_delivered(
    open_fleet: Callable[[], Any],
) -> None:
    async with open_fleet() as fleet:
        replica = await fleet.join()
        heard: list[object] = []
        follower, at = fleet.follower, replica._copy.state.at
        follower.follow(replica.stored, at, heard.append)
        [old] = follower._readings.values()
        [tailer] = follower._tailers
        follower._deliver(tailer, [(old, Deltas(()))])
        follower.follow(replica.stored, at, replica._receive)
        follower._deliver(tailer, [(old, Deltas(()))])
        assert heard == [Deltas(())]


async def test_one_that_joins_late_starts_from_what_is_there(open_fleet: Callable[[], Any]) -> None:
    async with open_fleet() as fleet:
        early = await fleet.join()
        written = await early.write([Set(b"a", b"1")])
        await early.wait_for(written.at)
        early.stop()
        late = await fleet.join()
        assert (dict(late.items), late.revision) == ({b"a": b"1"}, written.revision)


# --- with faults ------------------------------------------------------------------------------


@pytest.mark.one_server  # it writes by hand in a transaction
async def test_a_delta_lost_before_others_is_a_gap_and_is_mended_at_once(
    open_fleet: Callable[[], Any],
) -> None:
    """G-10: the log was trimmed further than we had read."""
    async with open_fleet() as fleet:
        replica = await fleet.join()
        watch = Watch(replica)
        written = await replica.write([Set(b"a", b"1")])
        await watch.until(lambda: replica.revision == written.revision)
        fleet.write_unseen(replica, "set", "lost", "1")
        await replica.write([Set(b"b", b"2")])
        resync = await watch.resynced()
        assert (resync.reason, resync.is_fork) == ("gap", False)
        assert resync.revision_before == written.revision
        assert dict(replica.items) == {b"a": b"1", b"lost": b"1", b"b": b"2"}
        after = await replica.write([Set(b"c", b"3")])
        await watch.until(lambda: replica.revision == after.revision)
        assert asked(replica) == 2
        assert [type(event) for event in fleet.events] == [MapResynced]


@pytest.mark.one_server  # it writes by hand in a transaction
async def test_a_lost_delta_that_none_follows_is_found_by_probing(
    open_fleet: Callable[[], Any],
) -> None:
    async with open_fleet() as fleet:
        replica = await fleet.join()
        watch = Watch(replica)
        fleet.write_unseen(replica, "set", "lost", "1")
        assert (await watch.resynced()).reason == "drift"
        assert dict(replica.items) == {b"lost": b"1"}


async def test_a_server_that_went_back_is_followed_and_those_who_wait_for_more_are_told(
    open_fleet: Callable[[], Any],
) -> None:
    """A failover to an older copy: the same numbers come again with another history."""
    async with open_fleet() as fleet:
        replica = await fleet.join()
        watch = Watch(replica)
        await replica.write([Set(b"a", b"1")])
        stored = replica.stored
        keys = (stored.data, stored.log)
        older = [fleet.client.dump(key) for key in keys]
        gone = [await replica.write([Set(b"lost", b"%d" % n)]) for n in range(3)]
        await watch.until(lambda: replica.revision == gone[-1].revision)
        with fleet.client.pipeline(transaction=True) as pipe:
            for key, value in zip(keys, older, strict=True):
                pipe.restore(key, 0, value, replace=True)
            pipe.execute()
        with anyio.fail_after(PATIENCE_S), pytest.raises(StoreLost):
            await replica.wait_for(beyond(gone[-1].at))
        resync = await watch.resynced()
        assert resync.is_fork
        assert resync.revision < resync.revision_before
        assert dict(replica.items) == {b"a": b"1"}
        again = await replica.write([Set(b"b", b"2")])
        assert again.revision == gone[0].revision
        await watch.until(lambda: replica.revision == again.revision)
        assert dict(replica.items) == {b"a": b"1", b"b": b"2"}


async def test_a_write_that_the_server_lost_before_we_saw_it_is_not_waited_for_for_ever(
    open_fleet: Callable[[], Any],
) -> None:
    """Its history looks unbroken to us: only that it does not have the revision says so."""
    async with open_fleet() as fleet:
        replica = await fleet.join()
        written = await replica.write([Set(b"a", b"1")])
        await replica.wait_for(written.at)
        with anyio.fail_after(PATIENCE_S), pytest.raises(StoreLost):
            await replica.wait_for(beyond(written.at))
        assert not replica._waiters
        with anyio.fail_after(PATIENCE_S):
            await replica.wait_for((await replica.write([Set(b"a", b"2")])).at)


async def test_a_write_is_lost_where_its_map_has_begun_anew_in_the_same_generation(
    open_fleet: Callable[[], Any],
) -> None:
    """The control keys were lost and put back, as the lanes know them: maps are not."""
    async with open_fleet() as fleet:
        replica = await fleet.join()
        watch = Watch(replica)
        seen = await replica.write([Set(b"a", b"1")])
        await replica.wait_for(seen.at)
        lost = fleet.write_unseen(replica, "set", "a", "2")
        stored = replica.stored
        fleet.client.delete(stored.data, stored.log, fleet.control.maps)
        written = await replica.write([Set(b"b", b"3")])
        with anyio.fail_after(PATIENCE_S), pytest.raises(StoreLost):
            await replica.wait_for(lost)
        assert (await watch.resynced()).is_fork
        with anyio.fail_after(PATIENCE_S), pytest.raises(StoreLost):
            await replica.wait_for(seen.at)
        await replica.wait_for(written.at)
        assert dict(replica.items) == {b"b": b"3"}


async def test_who_was_answered_is_not_answered_again(open_fleet: Callable[[], Any]) -> None:
    """Before it has had its turn the revision may be there: of another history."""
    async with open_fleet() as fleet:
        replica = await fleet.join()
        at = beyond((await replica.write([Set(b"a", b"1")])).at)
        async with anyio.create_task_group() as tasks:

            async def wait() -> None:
                with pytest.raises(StoreLost):
                    await replica.wait_for(at)

            tasks.start_soon(wait)
            while not replica._waiters:
                await anyio.lowlevel.checkpoint()
            [waiter] = replica._waiting()
            replica._found(_Found((waiter,), replica.at, History(at.revision - 1, 0, {})))
            assert not replica._waiters
            there = History(at.revision, 0, {at.revision: at.stamp})
            replica._found(_Found((waiter,), replica.at, there))


async def test_a_copy_that_the_log_does_not_reach_back_to_answers_nobody(
    open_fleet: Callable[[], Any],
) -> None:
    """It may be along what the server has lost: a snapshot says so."""
    async with open_fleet() as fleet:
        replica = await fleet.join()
        written = await replica.write([Set(b"a", b"1")])
        await replica.wait_for(written.at)
        other = attrs.evolve(written.at, stamp="ffff")
        waiter = _Waiter(other)
        replica._found(_Found((waiter,), replica.at, History(other.revision + 2_000, 0, {})))
        assert not waiter.event.is_set()
        assert replica._copy.reason == "drift"
        with anyio.fail_after(PATIENCE_S), pytest.raises(StoreLost):
            await replica.wait_for(other)


async def test_what_was_probed_before_a_write_says_nothing_of_it(
    open_fleet: Callable[[], Any],
) -> None:
    """However long it waited in the mailbox: old probes failed those who waited since."""
    async with open_fleet() as fleet:
        replica = await fleet.join()
        written = await replica.write([Set(b"a", b"1")])
        await replica.wait_for(written.at)
        for _ in range(3):
            replica._receive(Probed(written.at, is_fresh=False))
        written = await replica.write([Set(b"a", b"2")])
        for _ in range(3):
            replica._receive(Probed(replica.at, is_fresh=False))
        with anyio.fail_after(PATIENCE_S):
            await replica.wait_for(written.at)


async def test_a_foreign_entry_in_the_log_costs_a_snapshot_a_period_and_no_drift(
    open_fleet: Callable[[], Any],
) -> None:
    async with open_fleet() as fleet:
        replica = await fleet.join()
        watch = Watch(replica)
        written = await replica.write([Set(b"a", b"1")])
        await watch.until(lambda: replica.revision == written.revision)
        fleet.client.xadd(replica.stored.log, {"x": "y"}, id=f"{written.revision + 1}-0")
        fleet.client.hset(replica.stored.data, "=b", "2")
        assert (await watch.resynced()).reason == "gap"
        after = await replica.write([Set(b"c", b"3")])
        await watch.until(lambda: replica.revision == after.revision)
        assert dict(replica.items) == fleet.truth(replica)


async def test_flushall_is_told_once_and_the_next_generation_is_followed(
    own_server: EmbeddedServer,
) -> None:
    """Everything is gone: writers and waiters hear it, and a node that joins anew goes on."""
    async with joined(own_server.url, "p") as fleet:
        replica = await fleet.join()
        watch = Watch(replica)
        before = await replica.write([Set(b"a", b"1")])
        await watch.until(lambda: replica.revision == before.revision)
        fleet.client.flushall()
        with anyio.fail_after(PATIENCE_S), pytest.raises(StoreLost) as caught:
            await replica.wait_for(beyond(before.at))
        assert caught.value.pool == "p"
        with pytest.raises(StoreLost):
            await replica.write([Set(b"a", b"2")])
        assert dict(replica.items) == {b"a": b"1"}  # the last that was known

        fleet.client.hset(fleet.control.config, "incarnation", "i2")
        fleet.follower.rejoin("i2")
        resync = await watch.resynced()
        assert (resync.reason, resync.is_fork, dict(replica.items)) == ("data lost", True, {})
        written = await replica.write([SetIfNotExists(b"a", b"3")])
        assert written.revision > before.revision
        with anyio.fail_after(PATIENCE_S):
            await replica.wait_for(written.at)
        assert dict(replica.items) == {b"a": b"3"}
        assert len(fleet.lost) == 1


def elsewhere(fleet: Fleet, replica: Replica, generation: str, key: str = "a") -> Position:
    """Have another process lose all, make the pool anew, and write."""
    stored, control = replica.stored, fleet.control
    if fleet.client.hget(control.config, "incarnation") != generation.encode():
        fleet.client.delete(*stored.keys())
        fleet.client.hset(control.config, "incarnation", generation)
    words = (generation, stored.name, secrets.token_hex(8), 1024, "", "set", key, generation)
    revision, stamp, _ = WRITE.reads(
        fleet.client.eval(WRITE.source, len(stored.keys()), *stored.keys(), *words)
    )
    return Position(generation, revision, stamp)


@pytest.mark.parametrize("begins", ["before", "between", "after"])
async def test_a_wait_for_what_another_wrote_behind_a_loss_goes_through_it(
    open_fleet: Callable[[], Any], begins: str
) -> None:
    """Its process made the pool anew before this copy has heard of the loss, or was told of it."""
    async with open_fleet() as fleet:
        replica = await fleet.join()
        seen = (await replica.write([Set(b"a", b"1")])).at
        await replica.wait_for(seen)
        if begins == "before":
            at = elsewhere(fleet, replica, "i2")
        else:
            elsewhere(fleet, replica, "i2")
            await fleet.told_lost()
            at = elsewhere(fleet, replica, "i2", "b")
        if begins == "after":
            fleet.follower.rejoin("i2")

        with anyio.fail_after(PATIENCE_S):
            async with anyio.create_task_group() as tasks:

                async def wait_for_both() -> None:
                    await replica.wait_for(at)
                    assert replica.at.generation == "i2"

                tasks.start_soon(wait_for_both)
                with pytest.raises(StoreLost):  # the loss took this one
                    await replica.wait_for(beyond(seen))
                assert fleet.lost
                if begins != "after":
                    fleet.follower.rejoin("i2")
        assert dict(replica.items)[b"a"] == b"i2"
        assert len(fleet.lost) == 1


async def test_a_wait_for_a_newer_generation_asks_when_a_loss_is_told_and_no_more(
    open_fleet: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it takes to join the pool that the copy is to follow."""
    async with open_fleet() as fleet:
        replica, asked = await fleet.join(), list[str]()

        async def find(_: StoredMap, __: Pipeline, generation: str, *___: object) -> History:
            asked.append(generation)
            await anyio.lowlevel.checkpoint()
            return History(1, 0, {})

        monkeypatch.setattr(MapFollower, "_deliver", lambda *_: None)  # what probes bring
        at = elsewhere(fleet, replica, "i2")
        async with anyio.create_task_group() as tasks:
            with monkeypatch.context() as patch:
                patch.setattr(StoredMap, "find", find)
                tasks.start_soon(replica.wait_for, at)
                await fleet.told_lost()
                for told in range(3):
                    for _ in range(200):
                        await anyio.lowlevel.checkpoint()
                    assert asked == ["i2"] * (2 + told)
                    replica._receive(HistoryLost("i1", StoreLost(pool="p")))
            fleet.follower.rejoin("i2")
        assert dict(replica.items) == {b"a": b"i2"}
        assert len(fleet.lost) == 1


async def test_what_is_of_a_generation_that_the_server_does_not_hold_is_lost(
    open_fleet: Callable[[], Any],
) -> None:
    """An older one, one that nobody knows, or one that came and went before this copy was there."""
    async with open_fleet() as fleet:
        replica = await fleet.join()
        for at in (Position("i0", 5, "ab"), Position("i0", 0), Position("i2", 5, "ab")):
            with anyio.fail_after(PATIENCE_S), pytest.raises(StoreLost):
                await replica.wait_for(at)
        assert not fleet.lost  # ours is there
        gone = elsewhere(fleet, replica, "i2")
        async with anyio.create_task_group() as tasks:
            told = anyio.Event()

            async def wait() -> None:
                with pytest.raises(StoreLost):
                    await replica.wait_for(gone)
                told.set()

            tasks.start_soon(wait)
            await fleet.told_lost()
            assert not told.is_set()
            at = elsewhere(fleet, replica, "i3")
            fleet.follower.rejoin("i3")
            with anyio.fail_after(PATIENCE_S):
                await told.wait()
                await replica.wait_for(at)
        assert dict(replica.items) == {b"a": b"i3"}
        assert not replica._waiters


async def test_a_loss_that_is_told_late_takes_nothing_that_was_written_since(
    open_fleet: Callable[[], Any],
) -> None:
    """The pool was put back in the same generation before this copy was told that it was gone."""
    async with open_fleet() as fleet:
        replica = await fleet.join()
        at = fleet.write_unseen(replica, "set", "a", "1")
        with anyio.fail_after(PATIENCE_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(replica.wait_for, at)
                while not replica._waiters:
                    await anyio.lowlevel.checkpoint()
                replica._receive(HistoryLost("i1", StoreLost(pool="p")))
        assert dict(replica.items) == {b"a": b"1"}


async def test_who_waits_is_told_nothing_by_a_server_that_could_not_say(
    open_fleet: Callable[[], Any],
) -> None:
    """The next probe asks again."""
    async with open_fleet() as fleet:
        replica = await fleet.join()
        replica._sought.add("i0")  # it is asked already, for somebody else
        async with anyio.create_task_group() as tasks:

            async def wait() -> None:
                with pytest.raises(StoreLost):
                    await replica.wait_for(Position("i0", 5, "ab"))

            tasks.start_soon(wait)
            while not replica._waiters:
                await anyio.lowlevel.checkpoint()
            [waiter] = replica._waiting()
            replica.handle(_Sought((waiter,), "i0", "i1", None))
            assert not waiter.event.is_set()
            with anyio.fail_after(PATIENCE_S):
                await waiter.event.wait()
        assert not fleet.lost


async def test_a_pool_whose_data_come_back_goes_on(open_fleet: Callable[[], Any]) -> None:
    """A server that loads an older file may answer for a moment as if it had lost everything."""
    async with open_fleet() as fleet:
        replica = await fleet.join()
        watch = Watch(replica)
        fleet.client.delete(fleet.control.config)
        with anyio.fail_after(PATIENCE_S), pytest.raises(StoreLost):
            await replica.wait_for(beyond(replica.at))
        fleet.client.hset(fleet.control.config, "incarnation", "i1")
        written = await replica.write([Set(b"a", b"1")])
        await watch.until(lambda: replica.revision == written.revision)


async def test_after_a_lost_connection_what_was_missed_is_fetched_at_once(
    own_server: EmbeddedServer,
) -> None:
    """Not a renewal period later: at this lease that would be minutes."""
    async with joined(own_server.url, "p", Settings(lease_ttl_s=3600.0)) as fleet:
        replica = await fleet.join()
        watch = Watch(replica)
        written = await replica.write([Set(b"a", b"1")])
        await watch.until(lambda: replica.revision == written.revision)
        fleet.write_unseen(replica, "set", "b", "2")
        fleet.client.client_kill_filter(_type="normal", skipme=True)
        assert (await watch.resynced()).reason == "reconnect"
        assert dict(replica.items) == {b"a": b"1", b"b": b"2"}
        kinds = [type(event) for event in fleet.events]
        assert kinds == [MapsUnreachable, MapsReachable, MapResynced]
        after = await replica.write([Set(b"c", b"3")], repeatable=True)
        await watch.until(lambda: replica.revision == after.revision)


async def test_a_server_that_was_killed_and_restarted_is_followed_on(
    own_server: EmbeddedServer,
) -> None:
    async with joined(own_server.url, "p") as fleet:
        replica = await fleet.join()
        watch = Watch(replica)
        written = await replica.write([Set(b"a", b"1")])
        await watch.until(lambda: replica.revision == written.revision)
        await anyio.to_thread.run_sync(own_server.kill)
        with pytest.raises(StoreUnavailable):
            await replica.write([Set(b"a", b"2")])
        assert dict(replica.items) == {b"a": b"1"}
        await anyio.to_thread.run_sync(own_server.restart)
        after = await replica.write([Set(b"b", b"2")], repeatable=True)
        await watch.until(lambda: replica.revision >= after.revision)
        assert dict(replica.items) == fleet.truth(replica)
        assert {type(event) for event in fleet.events} >= {MapsUnreachable, MapsReachable}


async def test_a_replica_told_more_than_it_can_hold_fetches_the_map(
    open_fleet: Callable[[], Any],
) -> None:
    """G-09 and G-10: what finds no place in the mailbox is missed, never half applied."""
    async with open_fleet() as fleet:
        replica = await fleet.join(inbox_max=1)
        watch = Watch(replica)
        written = await replica.write([Set(b"a", b"1")])
        await watch.until(lambda: replica.revision == written.revision)
        before = asked(replica)
        replica._receive(Deltas(()))
        replica._receive(Deltas(()))
        with anyio.fail_after(PATIENCE_S):
            while asked(replica) == before:
                await anyio.lowlevel.checkpoint()
        after = await replica.write([Set(b"b", b"2")])
        await watch.until(lambda: replica.revision == after.revision)
        assert dict(replica.items) == fleet.truth(replica)


async def test_foreign_data_under_a_maps_key_are_told_to_who_waits(
    open_fleet: Callable[[], Any],
) -> None:
    """An outage of that map: nothing crashes, and it goes on once the cause is mended."""
    async with open_fleet() as fleet:
        replica = fleet.make()
        fleet.client.set(replica.stored.data, "foreign")
        with anyio.fail_after(PATIENCE_S):
            await fleet.tasks.start(replica.run)
            for _ in range(2):
                with pytest.raises(StoreFault):
                    await replica.synced()
            fleet.client.delete(replica.stored.data)
            while not replica.is_synced:
                with suppress(StoreFault):
                    await replica.synced()
        written = await replica.write([Set(b"a", b"1")])
        with anyio.fail_after(PATIENCE_S):
            await replica.wait_for(written.at)
        assert len([event for event in fleet.events if isinstance(event, MapNotFetched)]) == 1


# --- waiters and watchers ---------------------------------------------------------------------


async def test_concurrent_writers_of_the_same_value_each_get_their_own_answer(
    open_fleet: Callable[[], Any],
) -> None:
    async with open_fleet() as fleet:
        replica = await fleet.join()
        revisions: list[int] = []

        async def set_and_wait() -> None:
            written = await replica.write([Set(b"k", b"same")])
            await replica.wait_for(written.at)
            revisions.append(written.revision)

        with anyio.fail_after(PATIENCE_S):
            async with anyio.create_task_group() as tasks:
                for _ in range(100):
                    tasks.start_soon(set_and_wait)
        first = min(revisions)
        assert sorted(revisions) == list(range(first, first + 100))
        assert not replica._waiters


@pytest.mark.one_server  # it writes by hand in a transaction
async def test_a_cancelled_waiter_disturbs_nobody_and_leaves_nothing(
    open_fleet: Callable[[], Any],
) -> None:
    async with open_fleet() as fleet:
        replica = await fleet.join()
        await replica.wait_for((await replica.write([Set(b"k", b"1")])).at)
        at = fleet.write_unseen(replica, "set", "k", "2")  # until a second probe
        target = at.revision
        released: list[int] = []

        async def wait(n: int) -> None:
            await replica.wait_for(at)
            released.append(n)

        with anyio.fail_after(PATIENCE_S):
            async with anyio.create_task_group() as others:
                async with anyio.create_task_group() as cancelled:
                    for n in range(10):
                        (cancelled if n % 2 else others).start_soon(wait, n)
                    await anyio.wait_all_tasks_blocked()
                    cancelled.cancel_scope.cancel()
                assert len(replica._waiters[target]) == 5
        assert sorted(released) == [0, 2, 4, 6, 8]
        with anyio.move_on_after(0):
            await replica.wait_for(Position("i1", target + 100))
        assert not replica._waiters


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_waiters_on_a_closing_map_get_an_error(
    open_fleet: Callable[[], Any], is_cancelled: bool
) -> None:
    async with open_fleet() as fleet:
        replica = fleet.make()
        errors: list[NotRunning] = []

        async def wait() -> None:
            with pytest.raises(NotRunning) as caught:
                await replica.wait_for(Position("i1", 2**52))
            errors.append(caught.value)

        with anyio.fail_after(PATIENCE_S):
            async with anyio.create_task_group() as waiting, anyio.create_task_group() as running:
                await running.start(replica.run)
                for _ in range(3):
                    waiting.start_soon(wait)
                await anyio.wait_all_tasks_blocked()
                if is_cancelled:
                    running.cancel_scope.cancel()
                else:
                    replica.stop()
        assert len(errors) == 3
        with pytest.raises(NotRunning):
            await replica.wait_for(Position("i1", 2**52))


async def test_a_watcher_that_never_reads_blocks_nobody(open_fleet: Callable[[], Any]) -> None:
    """The historical deadlock: a shared notification channel that one subscriber fills."""
    async with open_fleet() as fleet:
        replica = await fleet.join()
        send, receive = anyio.create_memory_object_stream[KeyChange | Resync](1)
        missed: list[KeyChange | Resync] = []

        def hand_on(news: KeyChange | Resync) -> None:
            try:
                send.send_nowait(news)
            except anyio.WouldBlock:
                missed.append(news)

        with send, receive:
            unwatch = replica.watch(hand_on)
            watch = Watch(replica)
            with anyio.fail_after(PATIENCE_S):
                for n in range(100):
                    written = await replica.write([Set(b"n", b"%d" % n)])
                    await replica.wait_for(written.at)
            assert (len(watch.heard), len(missed)) == (100, 99)
            unwatch()
            unwatch()
            await replica.wait_for((await replica.write([Delete(b"n")])).at)
            assert (len(watch.heard), len(missed)) == (101, 99)


async def test_a_watcher_may_end_itself_or_add_another(open_fleet: Callable[[], Any]) -> None:
    async with open_fleet() as fleet:
        replica = await fleet.join()
        heard: list[str] = []

        def once(_: KeyChange | Resync) -> None:
            heard.append("once")
            unwatch()
            replica.watch(lambda _: heard.append("other"))

        unwatch = replica.watch(once)
        with anyio.fail_after(PATIENCE_S):
            for _ in range(2):
                written = await replica.write([Set(b"a", b"1")])
                await replica.wait_for(written.at)
        assert heard == ["once", "other"]
