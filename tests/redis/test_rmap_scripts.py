"""Every operation of a replicated map on a real server, and every refusal writes nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

import attrs
import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from pool.errors import (
    ConfigError,
    InvalidOption,
    MapFull,
    PayloadTooLarge,
    PoolError,
    StorageFull,
    StoreFault,
    StoreLost,
    WrongValue,
)
from pool.maps.commands import (
    DELTAS_MAX,
    LATE_MS,
    LOG_BYTES_MAX,
    MAP_KEY_BYTES_MAX,
    MAP_VALUE_BYTES_MAX,
    OPS_MAX,
    READING_S,
    WRITE,
    MapLife,
    Probe,
    StoredMap,
    delta_of,
    expire_calls,
    probe_call,
    probed,
)
from pool.maps.deltas import (
    CompareAndDelete,
    CompareAndSet,
    Delete,
    Delta,
    History,
    Increment,
    ListOp,
    MapState,
    Op,
    OpResult,
    Position,
    Probed,
    ResetOp,
    ResizeResult,
    Set,
    SetIfNotExists,
    Value,
    WriteResult,
    apply,
)
from pool.names import WORKERS, Control
from pool.redis.embedded.server import EmbeddedServer
from pool.redis.io.system import SystemIO
from pool.redis.pipeline import Pipeline
from pool.redis.url import Url

pytestmark = pytest.mark.anyio

GENERATION = "i1"
AWKWARD = [b"", b"=", b",", b":", b"-", b"+", b"\0\r\n", b"3:ab", "\N{SNOWMAN}".encode(), b"\xff"]


@attrs.frozen
class Store:
    """A map on a server, a pipeline to it, and a plain client beside it."""

    pipeline: Pipeline
    client: Any
    map: StoredMap

    async def write(self, *ops: Op, **limits: Any) -> WriteResult:
        return await self.map.write(self.pipeline, GENERATION, ops, **limits)

    async def change(
        self,
        kind: Literal["append", "append_unique", "remove"],
        key: bytes,
        *values: bytes,
        **o: Any,
    ) -> ResizeResult:
        return await self.map.change_list(
            self.pipeline, GENERATION, ListOp(kind, key, tuple(values)), **o
        )

    async def reset(self, *expected: tuple[bytes, bytes]) -> ResizeResult:
        return await self.map.reset(self.pipeline, GENERATION, ResetOp("reset", expected))

    async def destroy(self) -> ResizeResult:
        return await self.map.reset(self.pipeline, GENERATION, ResetOp("destroy"))

    async def expire(self) -> list[bytes]:
        """Do what a follower does once per period; return which maps it found ended."""
        call = probe_call(self.map.control, GENERATION, [])
        reply = await self.pipeline.call(call)
        for each in expire_calls(self.pipeline.io, self.map.control, GENERATION, reply.ended):
            await self.pipeline.call(each)
        return list(reply.ended)

    def followed(self) -> MapState:
        """Where the log alone leads."""
        return apply(MapState(Position(GENERATION, 0)), self.log()).state

    async def state(self) -> MapState:
        return await self.map.snapshot(self.pipeline, GENERATION)

    async def items(self) -> dict[bytes, Value]:
        return dict((await self.state()).items)

    async def probe(self, *maps: StoredMap) -> list[Position | None]:
        return [told.at for told in await self.look(*maps)]

    async def look(self, *maps: StoredMap, expected_ms: int = 0) -> list[Probed]:
        asked = maps or (self.map,)
        control = self.map.control
        call = probe_call(control, GENERATION, asked, expected_ms=expected_ms, logs=True)
        return probed(GENERATION, asked, await self.pipeline.call(call))

    def place(self) -> list[str]:
        """Where the map is: generation, revision, stamp, ends."""
        return str(self.client.hget(self.map.data, "at").decode()).split()

    def end_now(self) -> None:
        """Have its time be up."""
        place = self.place()
        place[3] = "1"
        self.client.hset(self.map.data, "at", " ".join(place))
        self.client.zadd(self.map.control.map_due, {self.map.name: 1})

    async def look_at_time(self, expected_ms: int = 0) -> int:
        call = probe_call(self.map.control, GENERATION, [], expected_ms=expected_ms)
        probe: Probe = await self.pipeline.call(call)
        return probe.now_ms

    def all_keys(self) -> list[bytes]:
        """Return all keys of the pool's maps."""
        return list(self.client.scan_iter(f"{self.map.control.prefix}*", count=1000))

    def log(self) -> list[Delta]:
        return [
            delta_of(entry.decode(), {name.decode(): value for name, value in fields.items()})
            for entry, fields in self.client.xrange(self.map.log)
        ]

    def dump(self) -> list[bytes | None]:
        stored = self.map
        keys = (stored.data, stored.lists, stored.log, stored.control.map_due)
        return [self.client.dump(key) for key in (*keys, stored.control.maps)]


@asynccontextmanager
async def opened(url: str, pool: str, *, admin_url: str = "") -> AsyncIterator[Store]:
    control = Control(pool)
    pipeline = await Pipeline.open(SystemIO(), Url.parse(url), op_timeout_s=5.0)
    try:
        with redis.Redis.from_url(admin_url or url) as client:
            client.hset(control.config, mapping={"incarnation": GENERATION, "protocol": 1})
            yield Store(pipeline, client, StoredMap(control, "flags"))
    finally:
        await pipeline.aclose(1.0)


@pytest.fixture
async def store(
    anyio_backend: str, redis_url: str, pool_url: str, pool_name: str
) -> AsyncIterator[Store]:
    async with opened(pool_url, pool_name, admin_url=redis_url) as store:
        yield store


# --- operations -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "outcome", "value"),
    [
        (Set(b"k", b"new"), OpResult(True, b"old"), b"new"),
        (SetIfNotExists(b"k", b"new"), OpResult(False, b"old"), b"old"),
        (CompareAndSet(b"k", b"old", b"new"), OpResult(True, b"old"), b"new"),
        (CompareAndSet(b"k", b"other", b"new"), OpResult(False, b"old"), b"old"),
        (Delete(b"k"), OpResult(True, b"old"), None),
        (CompareAndDelete(b"k", b"old"), OpResult(True, b"old"), None),
        (CompareAndDelete(b"k", b"other"), OpResult(False, b"old"), b"old"),
    ],
)
async def test_an_operation_on_a_key_that_is_there(
    store: Store, op: Op, outcome: OpResult, value: bytes | None
) -> None:
    before = await store.write(Set(b"k", b"old"))
    written = await store.write(op)
    assert written.outcomes == (outcome,)
    assert (await store.items()).get(b"k") == value
    assert written.revision == before.revision + outcome.is_met


@pytest.mark.parametrize(
    ("op", "is_met", "value"),
    [
        (Set(b"k", b"new"), True, b"new"),
        (Set(b"k", b""), True, b""),
        (SetIfNotExists(b"k", b"new"), True, b"new"),
        (CompareAndSet(b"k", b"", b"new"), False, None),
        (Delete(b"k"), True, None),
        (CompareAndDelete(b"k", b""), False, None),
    ],
)
async def test_an_operation_on_a_key_that_is_absent(
    store: Store, op: Op, is_met: bool, value: bytes | None
) -> None:
    """An absent key is not an empty one."""
    before = await store.write(Set(b"other", b"1"))
    written = await store.write(op)
    assert written.outcomes == (OpResult(is_met, None),)
    assert (await store.items()).get(b"k") == value
    assert written.revision == before.revision + (value is not None)


async def test_what_changes_nothing_writes_nothing_and_says_where_the_map_is(store: Store) -> None:
    assert (await store.write(Delete(b"k"))).at == Position(GENERATION, 0)
    assert store.dump() == [None] * 5
    before = await store.write(Set(b"k", b"1"))
    dump = store.dump()
    written = await store.write(SetIfNotExists(b"k", b"2"), Delete(b"none"))
    assert written.at == before.at
    assert store.dump() == dump


async def test_several_operations_are_one_revision_and_see_each_other(store: Store) -> None:
    written = await store.write(
        Set(b"a", b"1"),
        CompareAndSet(b"a", b"1", b"2"),
        SetIfNotExists(b"a", b"3"),
        Set(b"b", b"1"),
        Delete(b"b"),
        SetIfNotExists(b"c", b"4"),
    )
    assert written.outcomes == (
        OpResult(True, None),
        OpResult(True, b"1"),
        OpResult(False, b"2"),
        OpResult(True, None),
        OpResult(True, b"1"),
        OpResult(True, None),
    )
    assert await store.items() == {b"a": b"2", b"c": b"4"}
    [delta] = store.log()
    assert delta == Delta(
        written.at, (0, "0"), (("+", b"a", b"2"), ("-", b"b", b""), ("+", b"c", b"4"))
    )


async def test_revisions_are_contiguous_and_each_delta_names_the_one_before(store: Store) -> None:
    ops: list[Op] = [Set(b"a", b"1"), Set(b"a", b"2"), Delete(b"a")]
    written = [await store.write(op) for op in ops]
    first = written[0].revision
    assert [each.revision for each in written] == [first, first + 1, first + 2]
    log = store.log()
    assert [delta.at for delta in log] == [each.at for each in written]
    assert [delta.after for delta in log[1:]] == [(d.at.revision, d.at.stamp) for d in log[:-1]]
    assert await store.probe() == [written[-1].at]
    assert (await store.state()).at == written[-1].at


async def test_the_first_revision_is_the_servers_time(store: Store) -> None:
    """Readers of an older generation wake: the number is above all that they can have seen."""
    seconds, micros = store.client.time()
    written = await store.write(Set(b"a", b"1"))
    assert 0 <= written.revision - (seconds * 1_000_000 + micros) < 10_000_000


async def test_a_new_generation_starts_above_the_last_revision_and_keeps_the_items(
    store: Store,
) -> None:
    """G-10.  Also when the server's clock is behind: max(last + 1, time)."""
    far = 8_000_000_000_000_000
    store.client.hset(
        store.map.data, mapping={"at": f"i0 {far} abc 0", "=kept": "1", "foreign": "2"}
    )
    assert (await store.state()).at == Position(GENERATION, far, "abc")
    written = await store.write(Set(b"a", b"1"))
    assert written.revision == far + 1
    assert store.log()[-1].after == (far, "abc")
    assert await store.items() == {b"kept": b"1", b"a": b"1"}


async def test_a_map_whose_history_was_deleted_starts_above_its_log(store: Store) -> None:
    store.client.xadd(store.map.log, {"foreign": "entry"}, id="8000000000000000-3")
    written = await store.write(Set(b"a", b"1"))
    assert written.revision == 8_000_000_000_000_001


async def test_a_stamp_names_a_whole_history(store: Store) -> None:
    """Two that have parted never meet again: not by the same writes, and not by the same call done
    in both, as when it was sent again after a failover."""
    stored = store.map
    await store.write(Set(b"a", b"1"))
    older = {key: store.client.dump(key) for key in (stored.data, stored.log)}
    call = WRITE(stored.keys(), (GENERATION, "flags", "same", 10, "", "set", "b", "2"))

    async def history(value: bytes) -> list[Position]:
        for key, dump in older.items():
            store.client.restore(key, 0, dump, replace=True)
        found = [(await store.write(Set(b"a", value))).at]
        for _ in range(2):
            revision, stamp, _ = await store.pipeline.call(call)
            found.append(Position(GENERATION, revision, stamp))
        return found

    first, second = await history(b"x"), await history(b"x")
    assert [at.revision for at in first] == [at.revision for at in second]
    assert len({at.stamp for at in first + second}) == 6


@pytest.mark.parametrize("name", ["flags", WORKERS])
async def test_a_plain_write_does_what_any_other_does(store: Store, name: str) -> None:
    """It is written a second time, straight on: answer, items, place and log are the same."""
    stored = StoredMap(store.map.control, name)
    await stored.write(store.pipeline, GENERATION, [Set(b"a", b"1")])
    keys = (stored.data, stored.log)
    before = {key: store.client.dump(key) for key in keys}
    found = []
    for times in (1, 2):  # the same set twice is one revision, and no plain write
        for key, dump in before.items():
            store.client.restore(key, 0, dump, replace=True)
        words = ("set", "a", "2") * times
        call = WRITE(stored.keys(), (GENERATION, name, "same", 10, "", *words))
        revision, stamp, outcomes = await store.pipeline.call(call)
        assert outcomes[0] == OpResult(True, b"1")
        log = store.client.xrange(stored.log)
        found.append((revision, stamp, store.client.hgetall(stored.data), log))
    assert found[0] == found[1]


async def test_the_log_is_bounded_in_deltas(store: Store) -> None:
    for n in range(1_300):
        await store.write(Set(b"k", b"%d" % n))
    assert DELTAS_MAX <= store.client.xlen(store.map.log) <= DELTAS_MAX + 100  # whole nodes go


async def test_the_log_is_bounded_in_bytes(store: Store) -> None:
    """G5: a map of 4 MiB that was written 251 times held 1 GiB."""
    ops = [Set(b"%d" % n, b"v" * MAP_VALUE_BYTES_MAX) for n in range(64)]
    for _ in range(12):
        await store.write(*ops)
        held = store.client.memory_usage(store.map.log, samples=0)
        assert held < 2 * LOG_BYTES_MAX
    assert store.client.xlen(store.map.log) >= 1
    for n in range(300):  # and of small ones behind it as many as ever
        await store.write(Set(b"k", b"%d" % n))
    assert store.client.xlen(store.map.log) >= 300


async def test_any_bytes_are_keys_and_values(store: Store) -> None:
    """Nothing of the encoding leaks: neither into the items nor into the deltas."""
    ops = [Set(key, value) for key, value in zip(AWKWARD, reversed(AWKWARD), strict=True)]
    written = await store.write(*ops)
    expected = dict(zip(AWKWARD, reversed(AWKWARD), strict=True))
    assert await store.items() == expected
    assert dict(store.followed().items) == expected
    assert all(outcome == OpResult(True, None) for outcome in written.outcomes)
    await store.write(*[Delete(key) for key in AWKWARD])
    assert await store.items() == {}


async def test_several_maps_are_probed_in_one_script(store: Store) -> None:
    control = store.map.control
    never, *broken = (StoredMap(control, name) for name in ("never", "data", "lists", "log"))
    for stored in broken:
        store.client.set(getattr(stored, stored.name), "foreign")
    written = await store.write(Set(b"a", b"1"))
    await store.change("append", b"l", b"1", b"2")
    at = (await store.change("remove", b"l", b"2")).at
    assert await store.look(never, *broken, store.map) == [
        Probed(Position(GENERATION, 0), counts=(0, 0)),
        *(Probed(None, damaged=getattr(stored, stored.name)) for stored in broken),
        Probed(at, counts=(1, 1)),
    ]
    assert at.revision == written.revision + 2
    store.client.zrem(store.map.lists, store.client.zrange(store.map.lists, 0, 0)[0])
    assert await store.look() == [Probed(at, counts=(1, 1), damaged=store.map.lists)]


async def test_a_position_is_found_in_the_log_or_known_to_be_lost(store: Store) -> None:
    written = [(await store.write(Set(b"a", b"%d" % n))).at for n in range(3)]
    first, middle, last = (at.revision for at in written)

    async def find(*revisions: int) -> History:
        return await store.map.find(store.pipeline, GENERATION, revisions)

    stamps = {at.revision: at.stamp for at in written}
    assert await find(first, middle, last, last + 1) == History(last, 0, {**stamps, last + 1: "0"})
    store.client.hdel(store.map.data, "at")
    mended = (await store.state()).at  # its number is skipped, and no delta leads there
    written.append((await store.write(Set(b"a", b"4"))).at)
    numbers = (last, last + 1, mended.revision - 1, mended.revision)
    found = await find(*numbers)
    assert found.stamps == dict(zip(numbers, (stamps[last], "0", "0", mended.stamp), strict=True))
    assert found.has(mended)
    assert not found.has(Position(GENERATION, last + 1, "a"))
    last = written[-1].revision
    store.client.delete(store.map.log)
    assert await find(middle, last) == History(last, 0, {last: written[-1].stamp})
    ended = (await store.destroy()).at
    other = StoredMap(store.map.control, "other")
    found = await other.find(store.pipeline, GENERATION, [first])
    assert found == History(0, ended.revision, {})


async def test_what_is_below_where_its_map_began_is_lost_unless_one_has_ended_above_it(
    store: Store,
) -> None:
    async def find(at: Position) -> History:
        return await store.map.find(store.pipeline, GENERATION, [at.revision])

    def wipe() -> None:
        store.client.delete(store.map.data, store.map.log)

    lost = (await store.write(Set(b"a", b"1"))).at
    wipe()
    began = (await store.write(Set(b"a", b"2"))).at
    assert await find(lost) == History(began.revision, 0, {lost.revision: "0"})
    later = (await store.write(Set(b"a", b"3"))).at  # which goes on
    assert await find(lost) == History(later.revision, 0, {lost.revision: "0"})
    maps = store.map.control.maps
    store.client.set(maps, "foreign")  # nobody knows then whether the map has ended
    assert await find(lost) == History(later.revision, 0, {})
    store.client.delete(maps)
    ended = (await store.destroy()).at
    store.client.delete(store.map.log)  # as its time does
    began = (await store.write(Set(b"a", b"4"))).at
    for done in (lost, later, ended):
        assert await find(done) == History(began.revision, ended.revision, {})
    wipe()
    later = (await store.write(Set(b"a", b"5"))).at
    found = await find(began)
    assert found == History(later.revision, ended.revision, {began.revision: "0"})
    assert not found.has(began)


YEAR_2100_US = 4_102_444_800_000_000


# --- refusals ---------------------------------------------------------------------------------


async def refused(store: Store, error: type[PoolError], *ops: Op, **limits: Any) -> None:
    before = store.dump()
    with pytest.raises(error):
        await store.write(*ops, **limits)
    assert store.dump() == before


@pytest.mark.parametrize("there", ["i0", None])
async def test_another_generation_or_none_is_data_loss(store: Store, there: str | None) -> None:
    await store.write(Set(b"a", b"1"))
    if there is None:
        store.client.delete(store.map.control.config)
    else:
        store.client.hset(store.map.control.config, "incarnation", there)
    await refused(store, StoreLost, Set(b"a", b"2"))
    await refused(store, StoreLost, Delete(b"a"))
    for ask in (store.state, store.probe):
        with pytest.raises(StoreLost):
            await ask()
    with pytest.raises(StoreLost) as caught:
        await store.state()
    assert caught.value.pool == store.map.control.pool


@pytest.mark.parametrize("key", ["data", "log"])
@pytest.mark.parametrize("op", [Set(b"a", b"2"), Delete(b"a"), SetIfNotExists(b"b", b"1")])
@pytest.mark.parametrize("has_history", [True, False])
async def test_foreign_data_under_a_key_is_refused(
    store: Store, key: str, op: Op, has_history: bool
) -> None:
    await store.write(Set(b"a", b"1"))
    if not has_history:
        store.client.hdel(store.map.data, "at")
    store.client.delete(getattr(store.map, key))
    store.client.set(getattr(store.map, key), "foreign")
    await refused(store, StoreFault, op)


@pytest.mark.parametrize("op", [Set(b"a", b"2"), Delete(b"a")])
async def test_a_log_at_its_end_refuses_before_anything_is_written(store: Store, op: Op) -> None:
    """XADD is the one write that can still be refused: it comes before all others."""
    await store.write(Set(b"a", b"1"))
    store.client.xadd(store.map.log, {"foreign": "entry"}, id=f"{2**64 - 1}-0")
    await refused(store, StoreFault, op)


async def test_a_full_server_refuses_to_set_and_still_deletes(own_server: EmbeddedServer) -> None:
    """G-09."""
    async with opened(own_server.url, "full") as store:
        await store.write(Set(b"a", b"1"), Set(b"b", b"2"))
        store.client.config_set("maxmemory", 1)
        for op in (Set(b"a", b"2"), SetIfNotExists(b"c", b"3"), CompareAndSet(b"a", b"1", b"2")):
            await refused(store, StorageFull, op)
        await refused(store, StorageFull, Delete(b"b"), Set(b"a", b"2"))
        state = await store.state()
        assert dict(state.items) == {b"a": b"1", b"b": b"2"}
        assert await store.probe() == [state.at]
        written = await store.write(Delete(b"a"), CompareAndDelete(b"b", b"2"))
        assert await store.items() == {}
        assert store.log()[-1].at == written.at
        assert written.revision == state.at.revision + 1


async def test_the_pools_own_map_is_written_on_a_full_server(own_server: EmbeddedServer) -> None:
    """G-09: whoever joins to drain it, or leaves it, says so there."""
    async with opened(own_server.url, "full") as found:
        store = attrs.evolve(found, map=StoredMap(found.map.control, WORKERS))
        await store.write(Set(b"w1", b"1"))
        store.client.config_set("maxmemory", 1)
        written = await store.write(Set(b"w1", b"2"), SetIfNotExists(b"w2", b"1"))
        assert await store.items() == {b"w1": b"2", b"w2": b"1"}
        assert store.log()[-1].at == written.at


async def test_limits_are_refused_before_anything_is_sent(store: Store) -> None:
    await refused(store, InvalidOption)
    await refused(store, InvalidOption, *[Delete(b"a")] * (OPS_MAX + 1))
    await refused(store, PayloadTooLarge, Set(b"k" * (MAP_KEY_BYTES_MAX + 1), b""))
    await refused(store, PayloadTooLarge, Set(b"k", b"v" * (MAP_VALUE_BYTES_MAX + 1)))
    ops = [Set(b"k" * MAP_KEY_BYTES_MAX, b"v" * MAP_VALUE_BYTES_MAX)] * OPS_MAX
    assert len((await store.write(*ops)).outcomes) == OPS_MAX


async def test_a_maps_name_is_checked() -> None:
    with pytest.raises(ConfigError):
        StoredMap(Control("p"), "")


# --- numbers, lists, resets, time to live -----------------------------------------------------


async def refused_list_op(store: Store, error: type[PoolError], op: ListOp, **limits: Any) -> None:
    before = store.dump()
    with pytest.raises(error):
        await store.change(op.kind, op.key, *op.values, **limits)
    assert store.dump() == before


async def test_increment_counts_from_nothing_up_and_down(store: Store) -> None:
    by = [5, -7, 2**53 - 1, 2, -4]
    found = [(await store.write(Increment(b"n", each))).outcomes[0].previous for each in by]
    assert found == [None, b"5", b"-2", b"%d" % (2**53 - 3), b"%d" % (2**53 - 1)]
    assert await store.items() == {b"n": b"%d" % (2**53 - 5)}


@pytest.mark.parametrize(
    "text",
    [b"", b"1.5", b"x", b" 1", b"1e3", b"0x1", b"\xff", b"9" * 16, b"-%d" % 2**53, b"1" * 5_000],
)
async def test_increment_of_what_is_no_whole_number_is_refused(store: Store, text: bytes) -> None:
    await store.write(Set(b"n", text))
    await refused(store, WrongValue, Set(b"a", b"1"), Increment(b"n", 1))


async def test_increment_beyond_what_can_be_counted_is_refused(store: Store) -> None:
    await store.write(Set(b"n", b"%d" % (2**53 - 1)))
    await refused(store, WrongValue, Increment(b"n", 1))
    await store.change("append", b"list", b"1")
    await refused(store, WrongValue, Increment(b"list", 1))


async def test_a_list_keeps_its_order_and_repeats(store: Store) -> None:
    first = await store.change("append", b"l", b"b", b"a", b"b")
    assert (first.is_met, first.size_before, first.size) == (True, 0, 3)
    assert await store.items() == {b"l": (b"b", b"a", b"b")}
    again = await store.change("append_unique", b"l", b"a", b"c", b"c")
    assert (again.size_before, again.size) == (3, 4)
    gone = await store.change("remove", b"l", b"b", b"none")
    assert (gone.size_before, gone.size) == (4, 2)
    assert await store.items() == {b"l": (b"a", b"c")}
    assert [delta.edits for delta in store.log()] == [
        (("a", b"l", b"b"), ("a", b"l", b"a"), ("a", b"l", b"b")),
        (("a", b"l", b"c"),),
        (("r", b"l", b"b"),),
    ]


async def test_what_is_appended_stands_last_even_if_the_count_was_lost(store: Store) -> None:
    await store.change("append", b"l", b"1", b"2")
    store.client.hdel(store.map.data, "at")
    await store.change("append", b"l", b"3")
    assert await store.items() == {b"l": (b"1", b"2", b"3")}


@pytest.mark.parametrize("is_read", [False, True])
async def test_what_is_appended_stands_last_though_the_clock_is_behind_what_is_there(
    store: Store, *, is_read: bool
) -> None:
    """Where the map was and its log were deleted, and the server's clock was set back: followers
    were told of an item at the end that stood in front.
    """
    first = (await store.change("append", b"l", b"1", b"2")).at.revision
    for member in store.client.zrange(store.map.lists, 0, -1):
        store.client.zrem(store.map.lists, member)
        moved = member.replace(b"%016d" % first, b"%016d" % YEAR_2100_US)
        assert moved != member
        store.client.zadd(store.map.lists, {moved: 0})
    store.client.hdel(store.map.data, "at")
    store.client.delete(store.map.log)
    if is_read:  # which gives it a place
        assert (await store.state()).at.revision > YEAR_2100_US
    assert (await store.change("append", b"l", b"3")).at.revision > YEAR_2100_US
    await store.change("append", b"m", b"4")
    assert await store.items() == {b"l": (b"1", b"2", b"3"), b"m": (b"4",)}


async def test_removing_the_last_item_deletes_the_key(store: Store) -> None:
    await store.change("append", b"l", b"1")
    assert (await store.change("remove", b"l", b"1")).size == 0
    assert await store.items() == {}
    assert dict(store.followed().items) == {}
    assert not store.client.exists(store.map.lists)


async def test_a_list_operation_that_changes_nothing_writes_nothing(store: Store) -> None:
    await store.change("append", b"l", b"1")
    before = store.dump()
    assert not (await store.change("append_unique", b"l", b"1")).is_met
    assert not (await store.change("remove", b"l", b"2")).is_met
    assert not (await store.change("remove", b"none", b"2")).is_met
    assert store.dump() == before


async def test_a_string_replaces_a_list_and_tells_how_long_it_was(store: Store) -> None:
    await store.change("append", b"l", b"1", b"2")
    assert (await store.write(SetIfNotExists(b"l", b"x"))).outcomes == (OpResult(False, None, 2),)
    assert (await store.write(CompareAndSet(b"l", b"1", b"x"))).outcomes[0].is_met is False
    assert (await store.write(Set(b"l", b"x"))).outcomes == (OpResult(True, None, 2),)
    assert await store.items() == {b"l": b"x"}
    await refused_list_op(store, WrongValue, ListOp("append", b"l", (b"1",)))
    await store.change("append", b"m", b"1")
    assert (await store.write(Delete(b"m"))).outcomes == (OpResult(True, None, 1),)
    assert await store.items() == {b"l": b"x"}
    assert not store.client.exists(store.map.lists)


async def test_no_answer_is_larger_than_one_value(store: Store) -> None:
    """A list of any length came back whole, and from an update 256 values that nobody asked for."""
    large = b"x" * 65_536
    for n in range(64):
        await store.change("append", b"l", b"%d" % n + large[2:])
    names = [b"k%d" % n for n in range(64)]
    await store.write(*(Set(name, large, is_told=False) for name in names))
    writes: list[tuple[Op, ...]] = [
        (SetIfNotExists(b"l", b""), CompareAndSet(b"l", b"a", b"b")),
        tuple(Set(name, b"", is_told=False) for name in names),
        (Set(b"l", b""),),
    ]
    before = store.client.info("stats")["total_net_output_bytes"]
    outcomes = [(await store.write(*ops)).outcomes for ops in writes]
    shipped = store.client.info("stats")["total_net_output_bytes"] - before
    assert shipped < 30_000, "INFO itself is most of it"
    assert outcomes[0] == (OpResult(False, None, 64),) * 2
    assert outcomes[1:] == [(OpResult(True, None),) * 64, (OpResult(True, None, 64),)]


async def test_lists_of_awkward_keys_do_not_meet(store: Store) -> None:
    """Keys of which one is the beginning of another, digits, and values that look like items."""
    keys = [*AWKWARD, b"1", b"11", b"1:1", b"1:10000000000000001", b"0" * 17]
    for key in keys:
        await store.change("append", key, b"0000000000000001", key, b"")
    wanted = {key: (b"0000000000000001", key, b"") for key in keys}
    assert await store.items() == wanted
    assert dict(store.followed().items) == wanted
    for key in keys:
        await store.change("remove", key, b"0000000000000001", b"", key)
    assert await store.items() == {}


async def test_a_long_list_stays_usable(store: Store) -> None:
    """One item is found, appended and removed without the others being read or shipped."""
    for start in range(0, 10_000, OPS_MAX):
        await store.change("append", b"l", *[b"%d" % n for n in range(start, start + OPS_MAX)])
    size = (await store.change("append_unique", b"l", b"5000")).size
    assert size == len((await store.items())[b"l"]) >= 10_000
    before = store.client.info("stats")["total_net_output_bytes"]
    assert (await store.change("append", b"l", b"new")).size == size + 1
    assert (await store.change("remove", b"l", b"7")).size == size
    shipped = store.client.info("stats")["total_net_output_bytes"] - before
    assert shipped < 20_000  # INFO itself is most of it; the list is 50 KB
    assert sum(len(each.edits) for each in store.log()[-2:]) == 2


async def test_a_full_map_refuses_and_still_removes(store: Store) -> None:
    """G-09."""
    await store.write(Set(b"a", b"1"), items_max=3)
    await store.change("append", b"l", b"1", b"2", items_max=3)
    before = store.dump()
    with pytest.raises(MapFull) as caught:
        await store.write(Set(b"b", b"1"), items_max=3)
    assert (caught.value.items, caught.value.items_max) == (3, 3)
    assert store.dump() == before
    await refused_list_op(store, MapFull, ListOp("append", b"l", (b"3",)), items_max=3)
    await store.write(Set(b"a", b"2"), items_max=3)
    await store.change("remove", b"l", b"1", items_max=3)
    await store.write(Set(b"b", b"1"), items_max=3)


async def test_reset_is_one_revision_and_leaves_no_item(store: Store) -> None:
    await store.change("append", b"l", b"1", b"2")
    before = await store.write(Set(b"a", b"1"))
    resized = await store.reset()
    assert (resized.at.revision, resized.size_before) == (before.revision + 1, 3)
    assert await store.items() == {}
    assert store.log()[-1].edits == (("*", b"", b""),)
    assert (await store.reset()).at == resized.at  # nothing to remove: no revision
    await store.change("append", b"l", b"3")
    assert await store.items() == {b"l": (b"3",)} == dict(store.followed().items)


async def test_compare_and_reset_wants_all_it_expects(store: Store) -> None:
    await store.write(Set(b"a", b"1"), Set(b"b", b"2"))
    assert not (await store.reset((b"a", b"1"), (b"b", b"1"))).is_met
    assert not (await store.reset((b"c", b""))).is_met
    assert len(await store.items()) == 2
    assert (await store.reset((b"a", b"1"), (b"b", b"2"))).is_met
    assert await store.items() == {}


async def test_destroy_leaves_nothing_but_the_log_and_that_not_for_long(store: Store) -> None:
    await store.change("append", b"l", b"1")
    written = await store.write(Set(b"a", b"1"), life=MapLife(60.0))
    gone = await store.destroy()
    stored = store.map
    assert gone.at.revision == written.revision + 1
    assert not store.client.exists(stored.data, stored.lists, stored.control.map_due)
    assert 0 < store.client.pttl(stored.log) <= READING_S * 1000
    assert await store.probe() == [Position(GENERATION, 0)]
    assert (await store.state()).at == gone.at  # nobody reads what its log has of before
    assert (await store.destroy()).at == Position(GENERATION, 0)
    again = await store.write(Set(b"a", b"2"))  # it lives again, and ids did not fall
    assert again.revision > gone.at.revision
    assert store.client.pttl(stored.log) == -1
    assert dict(store.followed().items) == {b"a": b"2"}


async def test_no_map_begins_below_where_one_has_ended(store: Store) -> None:
    """A clock that went back, or a log that is gone, leaves no reader waiting at a higher id."""
    far = 8_000_000_000_000_000
    store.client.hset(store.map.data, mapping={"at": f"{GENERATION} {far} abc 0"})
    ended = await store.destroy()
    assert ended.at.revision == far + 1
    store.client.delete(store.map.log)
    assert (await store.write(Set(b"a", b"1"))).revision == far + 2


async def test_an_absolute_life_counts_from_the_first_write(store: Store) -> None:
    life = MapLife(60.0)
    await store.write(Set(b"a", b"1"), life=life)
    until = store.client.zscore(store.map.control.map_due, "flags")
    await store.write(Set(b"a", b"2"), life=life)
    await store.change("append", b"l", b"2", life=life)
    assert store.client.zscore(store.map.control.map_due, "flags") == until
    seconds, _ = store.client.time()
    assert 50_000 < until - seconds * 1000 <= 61_000


async def test_an_emptied_map_has_no_end_left(store: Store) -> None:
    """What is written into it much later does not die with what was."""
    due = store.map.control.map_due
    await store.write(Set(b"a", b"1"), life=MapLife(60.0))
    await store.change("append", b"l", b"1", life=MapLife(60.0))
    await store.write(Delete(b"a"), life=MapLife(60.0))
    assert store.client.zscore(due, "flags") is not None
    await store.change("remove", b"l", b"1", life=MapLife(60.0))
    assert store.client.zscore(due, "flags") is None


async def test_a_sliding_life_counts_from_the_latest_write(store: Store) -> None:
    due = store.map.control.map_due
    life = MapLife(60.0, is_sliding=True)
    await store.write(Set(b"a", b"1"), life=life)
    early = store.client.zscore(due, "flags")
    await store.look(expected_ms=int(early) - 55_000)
    await store.change("append", b"l", b"2", life=life)
    assert store.client.zscore(due, "flags") >= early + 5_000
    assert int(store.place()[3]) == store.client.zscore(due, "flags")


async def test_what_changes_nothing_prolongs_no_sliding_life(store: Store) -> None:
    """`set` of the same value does: it is a revision."""
    life = MapLife(60.0, is_sliding=True)
    await store.change("append", b"l", b"x", life=life)
    await store.write(Set(b"a", b"1"), life=life)
    now = await store.look_at_time()
    await store.look(expected_ms=now + 3_000)
    place = store.place()
    await store.change("append_unique", b"l", b"x", b"x", life=life)
    await store.change("remove", b"l", b"y", life=life)
    await store.write(SetIfNotExists(b"a", b"2"), Delete(b"b"), life=life)
    await store.reset((b"a", b"2"))
    assert store.place() == place
    await store.write(Set(b"a", b"1"), life=life)
    assert int(store.place()[3]) >= int(place[3]) + 3_000


async def test_a_life_until_a_time_ends_then_whoever_wrote(store: Store) -> None:
    seconds, _ = store.client.time()
    now = await store.look_at_time()
    for ahead_s in (600, 60):  # each write says it anew
        await store.write(Set(b"a", b"1"), life=MapLife(expires_at=seconds + ahead_s))
        ends = store.client.zscore(store.map.control.map_due, "flags")
        assert abs(ends - now - 1000 * ahead_s) < 10_000
    await store.write(Set(b"b", b"1"), life=MapLife(expires_at=seconds - 60.0))
    assert await store.items() == {}


async def ended(store: Store) -> None:
    await store.write(Set(b"a", b"1"), life=MapLife(60.0))
    await store.change("append", b"l", b"1")
    store.end_now()


async def test_an_end_has_come_when_its_millisecond_has(store: Store) -> None:
    await store.write(Set(b"a", b"1"), life=MapLife(60.0))
    assert await store.expire() == []
    now = await store.look_at_time()
    due = store.map.control.map_due
    store.client.zadd(due, {"flags": now + 600_000})
    assert await store.expire() == []
    store.client.zadd(due, {"flags": now})
    assert await store.expire() == [b"flags"]
    # It was given more time than it said there: it keeps that.
    assert store.client.zscore(due, "flags") == int(store.place()[3])


async def test_an_ended_map_is_emptied_by_a_delta(store: Store) -> None:
    """Never by a time to live of Redis, of which replicas would not hear."""
    await ended(store)
    assert store.client.exists(store.map.data)
    assert await store.expire() == [b"flags"]
    assert not store.client.exists(store.map.data, store.map.lists, store.map.control.map_due)
    assert store.log()[-1].edits == (("*", b"", b""),)
    assert dict(store.followed().items) == {}
    assert await store.expire() == []


async def test_each_ended_map_is_handed_to_one_and_to_another_if_he_dies(store: Store) -> None:
    """G4: 300 that nobody holds leave nothing, and a thousand processes do not end each of them."""
    for n in range(300):
        stored = StoredMap(store.map.control, f"m{n}")
        at = attrs.evolve(store, map=stored)
        await at.write(Set(b"a", b"1"), life=MapLife(60.0))
        at.end_now()
    call = probe_call(store.map.control, GENERATION, [])
    first, second, third, fourth = [await store.pipeline.call(call) for _ in range(4)]
    assert [len(each.ended) for each in (first, second, third, fourth)] == [128, 128, 44, 0]
    assert len({*first.ended, *second.ended, *third.ended}) == 300
    late = probe_call(store.map.control, GENERATION, [], expected_ms=first.now_ms + LATE_MS + 1000)
    again = await store.pipeline.call(late)  # the first three have died
    assert len(again.ended) == 128
    for names in (first.ended, second.ended, third.ended):
        for each in expire_calls(store.pipeline.io, store.map.control, GENERATION, names):
            await store.pipeline.call(each)
    kinds = {key.decode().split("}:")[1].split(":")[0] for key in store.all_keys()}
    assert kinds == {"config", "maps", "map-log"}


async def test_no_step_of_the_clock_and_no_time_without_anybody_ends_a_map(store: Store) -> None:
    """By what its callers have seen pass (13.10)."""
    maps = store.map.control.maps

    async def now(expected_ms: int = 0, clock_off_ms: int = 0) -> int:
        seen = int(store.client.hget(maps, "seen") or 0)
        if clock_off_ms:  # the clock goes on by that much
            store.client.hset(maps, "seen", seen - clock_off_ms)
        return await store.look_at_time(expected_ms)

    def is_near(found: int, wanted: int) -> bool:
        return wanted <= found < wanted + 1_000

    first = await now()
    assert is_near(await now(), first)
    for step_ms in (3_600_000, -3_600_000):
        assert is_near(await now(clock_off_ms=step_ms), first)
        assert is_near(await now(first + 2_000, clock_off_ms=step_ms), first + 2_000)
        first += 2_000
    assert is_near(await now(first + 3_000, clock_off_ms=10_000), first + 3_000)  # a small step
    first += 3_000
    assert is_near(await now(clock_off_ms=10_000), first + 10_000)  # somebody's probe was late
    first += 10_000
    assert is_near(
        await now(first - 8_000), first
    )  # what was on its way for long takes nothing back
    store.client.set(maps, "foreign")
    store.client.delete(maps)
    assert is_near(await now(first + 100_000), first + 100_000)  # who knows it says so


@pytest.mark.parametrize("which", ["maps", "map_due"])
async def test_foreign_data_under_the_shared_keys_stop_only_ends(store: Store, which: str) -> None:
    """Without `due` not even those; where no time is known, who would need it is told the key."""
    key = getattr(store.map.control, which)
    store.client.set(key, "foreign")
    written = await store.write(Set(b"a", b"1"))
    assert await store.probe() == [written.at]
    found = await store.map.find(store.pipeline, GENERATION, [written.revision])
    assert found.has(written.at)
    await store.change("append", b"l", b"1")
    if which == "maps":
        await refused(store, StoreFault, Set(b"b", b"1"), life=MapLife(60.0))
        with pytest.raises(StoreFault, match=f"WRONGTYPE {key}"):
            await store.write(Set(b"b", b"1"), life=MapLife(60.0))
        with pytest.raises(StoreFault, match=f"WRONGTYPE {key}"):
            await store.destroy()
        assert await store.items() == {b"a": b"1", b"l": (b"1",)}
        await store.change("remove", b"l", b"1")
        other = StoredMap(store.map.control, "other")
        with pytest.raises(StoreFault, match=f"WRONGTYPE {key}"):
            await other.find(store.pipeline, GENERATION, [1])
        store.client.delete(key)
    await store.write(Set(b"b", b"1"), life=MapLife(60.0))
    if which == "maps":
        store.client.set(key, "foreign")
        refusals = (store.state, store.reset, lambda: store.change("append", b"l", b"2"))
        for ask in refusals:
            with pytest.raises(StoreFault, match=f"WRONGTYPE {key}"):
                await ask()
        store.client.delete(key)
    await store.change("append", b"l", b"2")
    assert (await store.destroy()).is_met
    assert await store.items() == {}


async def test_what_lacks_where_ends_are_found_is_put_back(store: Store) -> None:
    """By whoever follows the map; what has ended by then is handed to one, at once."""
    due = store.map.control.map_due
    await store.write(Set(b"a", b"1"), life=MapLife(60.0))
    for _ in range(2):
        store.client.delete(due)
        await store.probe()
        assert store.client.zscore(due, "flags") == int(store.place()[3])
    store.end_now()
    call = probe_call(store.map.control, GENERATION, [store.map])
    for harm in (store.client.delete, lambda key: store.client.set(key, "foreign")):
        harm(due)
        first, second = [await store.pipeline.call(call) for _ in range(2)]
        is_foreign = first.foreign > 0
        assert (first.ended, second.ended) == ([b"flags"], [b"flags"] if is_foreign else [])


async def test_who_writes_to_an_ended_map_finds_it_empty(store: Store) -> None:
    await ended(store)
    written = await store.write(SetIfNotExists(b"a", b"2"), life=MapLife(60.0))
    assert written.outcomes == (OpResult(True, None),)
    assert store.log()[-1].edits == (("*", b"", b""), ("+", b"a", b"2"))
    assert await store.items() == {b"a": b"2"} == dict(store.followed().items)
    assert store.client.zscore(store.map.control.map_due, "flags") > 1
    store.end_now()
    assert (await store.change("append", b"a", b"3")).size_before == 0
    assert await store.items() == {b"a": (b"3",)} == dict(store.followed().items)


async def test_who_joins_an_ended_map_finds_it_empty(store: Store) -> None:
    await ended(store)
    assert await store.items() == {}
    assert store.log()[-1].edits == (("*", b"", b""),)


async def test_a_late_expiry_of_a_map_that_lives_again_does_nothing(store: Store) -> None:
    await store.write(Set(b"a", b"1"), life=MapLife(60.0))
    resized = await store.map.reset(store.pipeline, GENERATION, ResetOp("expire"))
    assert not resized.is_met
    assert await store.items() == {b"a": b"1"}


@pytest.mark.parametrize("life", [(0.0, False), (-1.0, False), (float("nan"), True), (None, True)])
async def test_a_life_out_of_bounds_is_refused(life: tuple[float | None, bool]) -> None:
    with pytest.raises(InvalidOption):
        MapLife(*life)


@pytest.mark.parametrize("key", ["data", "lists", "log"])
async def test_foreign_data_under_a_lists_key_is_refused(store: Store, key: str) -> None:
    await store.change("append", b"l", b"1")
    store.client.delete(getattr(store.map, key))
    store.client.set(getattr(store.map, key), "foreign")
    for kind in ("append", "append_unique", "remove"):
        await refused_list_op(store, StoreFault, ListOp(kind, b"l", (b"2", b"1")))
    await refused(store, StoreFault, Set(b"l", b"2"))


async def test_a_full_server_refuses_to_append_and_still_removes(
    own_server: EmbeddedServer,
) -> None:
    """G-09."""
    async with opened(own_server.url, "full") as store:
        await store.change("append", b"l", b"1", b"2")
        await store.write(Set(b"a", b"1"))
        store.client.config_set("maxmemory", 1)
        await refused_list_op(store, StorageFull, ListOp("append", b"l", (b"3",)))
        assert (await store.change("remove", b"l", b"1")).size == 1
        assert (await store.reset()).is_met
        assert (await store.destroy()).is_met
        assert await store.items() == {}


async def test_a_page_reads_nothing_of_the_log_that_it_does_not_bring(
    own_server: EmbeddedServer,
) -> None:
    """A list of 32 MiB took 130 pages, and each of them read the latest append of 16 MiB."""
    async with opened(own_server.url, "large") as store:
        await store.change("append", b"l", *(b"%065536d" % n for n in range(16)))

        def reads() -> int:
            stats = store.client.info("commandstats")
            kinds = ("cmdstat_xrevrange", "cmdstat_xinfo|stream")
            return sum(stats.get(kind, {"calls": 0})["calls"] for kind in kinds)

        before = reads()
        state = await store.state()
        assert state.counts == (0, 16)
        assert reads() == before


# --- deltas -----------------------------------------------------------------------------------


@given(
    st.dictionaries(
        st.sampled_from(["at", "edits", "other"]),
        st.sampled_from(
            [
                b"",
                b"1",
                b"1-2",
                b"i1 2 1-2",
                b"+1:a2:bc",
                b"-1:a",
                b"+9:a",
                b"+1:a",
                b"?1:a",
                b"--4:",
                b"*a1:b",
                b"\xff",
            ]
        )
        | st.binary(max_size=8),
    ),
    st.sampled_from(["5-0", "6-3"]),
)
@settings(max_examples=300)
async def test_a_damaged_entry_continues_nobodys_history(
    fields: dict[str, bytes], entry: str
) -> None:
    state = MapState(Position(GENERATION, 4, "40"))
    applied = apply(state, [delta_of(entry, fields)])
    assert applied.gap is not None or applied.state.at.generation == GENERATION


keys = st.sampled_from([b"a", b"b", b"c"])
values = st.sampled_from([b"", b"1", b"2"])
operations: st.SearchStrategy[Op] = st.one_of(
    st.builds(Set, keys, values, st.booleans()),
    st.builds(SetIfNotExists, keys, values),
    st.builds(CompareAndSet, keys, values, values),
    st.builds(Delete, keys),
    st.builds(CompareAndDelete, keys, values),
)


list_ops = st.builds(
    ListOp,
    st.sampled_from(["append", "append", "append_unique", "remove"]),
    keys,
    st.lists(values, min_size=1, max_size=3).map(tuple),
)


def expected(items: dict[bytes, Value], ops: Sequence[Op]) -> list[OpResult]:
    """Do to a plain dict what the script does to the map."""
    outcomes = []
    for op in ops:
        now, is_met = items.get(op.key), True
        match op:
            case SetIfNotExists():
                is_met = now is None
            case CompareAndSet(expected=wanted) | CompareAndDelete(expected=wanted):
                is_met = now == wanted
        if isinstance(op, Set) and not op.is_told:
            outcomes.append(OpResult(True, None))
        elif isinstance(now, tuple):
            outcomes.append(OpResult(is_met, None, len(now)))
        else:
            outcomes.append(OpResult(is_met, now))
        if not is_met:
            continue
        match op:
            case Delete(key=key) | CompareAndDelete(key=key):
                items.pop(key, None)
            case Set(value=value) | SetIfNotExists(value=value) | CompareAndSet(value=value):
                items[op.key] = value
    return outcomes


async def test_any_operations_do_what_they_do_to_a_dict(store: Store) -> None:
    """And the log alone leads to the same map."""
    items: dict[bytes, Value] = {}
    for done in _examples(st.lists(operations, min_size=1, max_size=6) | list_ops, 300):
        if isinstance(done, ListOp):
            await check_list_op(store, items, done)
        else:
            written = await store.write(*done)
            assert list(written.outcomes) == expected(items, done)
    state = await store.state()
    assert dict(state.items) == items
    followed = store.followed()
    assert (followed.at, dict(followed.items)) == (state.at, items)
    [told] = await store.look()
    assert told == Probed(state.at, counts=state.counts)


async def check_list_op(store: Store, items: dict[bytes, Value], op: ListOp) -> None:
    """Do it to the map and, the long way, to a dict of lists."""
    now = items.get(op.key, ())
    if isinstance(now, bytes):
        await refused_list_op(store, WrongValue, op)
        return
    held = list(now)
    for value in op.values:
        if op.kind == "remove":
            held = [each for each in held if each != value]
        elif op.kind == "append" or value not in held:
            held.append(value)
    resized = await store.change(op.kind, op.key, *op.values)
    assert (resized.size_before, resized.size) == (len(now), len(held))
    assert resized.is_met == (tuple(held) != now)
    if held:
        items[op.key] = tuple(held)
    else:
        items.pop(op.key, None)


def _examples(strategy: st.SearchStrategy[Any], count: int) -> list[Any]:
    found: list[Any] = []

    @settings(max_examples=count, database=None)
    @given(strategy)
    def collect(done: Any) -> None:
        found.append(done)

    collect()
    return found
