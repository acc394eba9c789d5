"""Every operation of a replicated map on a real server, and every refusal writes nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from pool.errors import (
    ConfigError,
    InvalidOption,
    PayloadTooLarge,
    PoolError,
    StorageFull,
    StoreFault,
    StoreLost,
)
from pool.model.names import Control
from pool.model.rmap import (
    CompareAndDelete,
    CompareAndSet,
    Delete,
    Delta,
    MapState,
    Op,
    Outcome,
    Position,
    Set,
    SetIfNotExists,
    Written,
    apply,
)
from pool.store.link import Link
from pool.store.rmap import (
    MAP_KEY_BYTES_MAX,
    MAP_VALUE_BYTES_MAX,
    OPS_MAX,
    StoredMap,
    delta_of,
    probe_call,
    probed,
)
from pool.store.seam import Threads
from pool.store.server import EmbeddedServer
from pool.store.url import Url

pytestmark = pytest.mark.anyio

INCARNATION = "i1"
AWKWARD = [b"", b"=", b",", b":", b"-", b"+", b"\0\r\n", b"3:ab", "\N{SNOWMAN}".encode(), b"\xff"]


@attrs.frozen
class Store:
    """A map on a server, a link to it, and a plain client beside it."""

    link: Link
    client: Any
    map: StoredMap

    async def write(self, *ops: Op, deltas_max: int = 1024) -> Written:
        return await self.map.write(self.link, INCARNATION, ops, deltas_max=deltas_max)

    async def state(self) -> MapState:
        return await self.map.snapshot(self.link, INCARNATION)

    async def items(self) -> dict[bytes, bytes]:
        return dict((await self.state()).items)

    async def probe(self, *maps: StoredMap) -> list[Position | None]:
        call = probe_call(self.map.control, INCARNATION, maps or [self.map])
        return probed(INCARNATION, await self.link.call(call.script, call.keys, call.args))

    def log(self) -> list[Delta]:
        return [
            delta_of(entry.decode(), {name.decode(): value for name, value in fields.items()})
            for entry, fields in self.client.xrange(self.map.log)
        ]

    def dump(self) -> list[bytes | None]:
        return [self.client.dump(key) for key in (self.map.meta, self.map.items, self.map.log)]


@asynccontextmanager
async def opened(url: str, pool: str) -> AsyncIterator[Store]:
    control = Control(pool)
    link = await Link.open(Threads(), Url.parse(url), op_timeout_s=5.0)
    try:
        with redis.Redis.from_url(url) as client:
            client.hset(control.config, mapping={"incarnation": INCARNATION, "protocol": 1})
            yield Store(link, client, StoredMap(control, "flags"))
    finally:
        await link.aclose(1.0)


@pytest.fixture
async def store(anyio_backend: str, redis_url: str, pool_name: str) -> AsyncIterator[Store]:
    async with opened(redis_url, pool_name) as store:
        yield store


# --- operations -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "outcome", "value"),
    [
        (Set(b"k", b"new"), Outcome(True, b"old"), b"new"),
        (SetIfNotExists(b"k", b"new"), Outcome(False, b"old"), b"old"),
        (CompareAndSet(b"k", b"old", b"new"), Outcome(True, b"old"), b"new"),
        (CompareAndSet(b"k", b"other", b"new"), Outcome(False, b"old"), b"old"),
        (Delete(b"k"), Outcome(True, b"old"), None),
        (CompareAndDelete(b"k", b"old"), Outcome(True, b"old"), None),
        (CompareAndDelete(b"k", b"other"), Outcome(False, b"old"), b"old"),
    ],
)
async def test_an_operation_on_a_key_that_is_there(
    store: Store, op: Op, outcome: Outcome, value: bytes | None
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
    assert written.outcomes == (Outcome(is_met, None),)
    assert (await store.items()).get(b"k") == value
    assert written.revision == before.revision + (value is not None)


async def test_what_changes_nothing_writes_nothing_and_says_where_the_map_is(store: Store) -> None:
    assert (await store.write(Delete(b"k"))).at == Position(INCARNATION, 0, 0)
    assert store.dump() == [None, None, None]
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
        Outcome(True, None),
        Outcome(True, b"1"),
        Outcome(False, b"2"),
        Outcome(True, None),
        Outcome(True, b"1"),
        Outcome(True, None),
    )
    assert await store.items() == {b"a": b"2", b"c": b"4"}
    [delta] = store.log()
    assert delta == Delta(written.at, (0, 0), ((b"a", b"2"), (b"b", None), (b"c", b"4")))


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
    """Readers of an older incarnation wake: the number is above all that they can have seen."""
    seconds, micros = store.client.time()
    written = await store.write(Set(b"a", b"1"))
    assert 0 <= written.revision - (seconds * 1_000_000 + micros) < 10_000_000


async def test_a_new_incarnation_starts_above_the_last_revision_and_keeps_the_items(
    store: Store,
) -> None:
    """G-10.  Also when the server's clock is behind: max(last + 1, time)."""
    far = 8_000_000_000_000_000
    store.client.hset(
        store.map.meta, mapping={"incarnation": "i0", "revision": far, "stamp": far + 7}
    )
    store.client.hset(store.map.items, "kept", "1")
    assert (await store.state()).at == Position(INCARNATION, far, far + 7)
    written = await store.write(Set(b"a", b"1"))
    assert written.at == Position(INCARNATION, far + 1, far + 8)
    assert store.log()[-1].after == (far, far + 7)
    assert await store.items() == {b"kept": b"1", b"a": b"1"}


async def test_a_map_whose_history_was_deleted_starts_above_its_log(store: Store) -> None:
    store.client.xadd(store.map.log, {"foreign": "entry"}, id="8000000000000000-3")
    written = await store.write(Set(b"a", b"1"))
    assert written.revision == 8_000_000_000_000_001


async def test_the_log_is_trimmed_by_length(store: Store) -> None:
    for n in range(500):
        await store.write(Set(b"k", b"%d" % n), deltas_max=10)
    assert 10 <= store.client.xlen(store.map.log) < 300  # whole nodes of the stream go, of 100


async def test_any_bytes_are_keys_and_values(store: Store) -> None:
    """Nothing of the encoding leaks: neither into the items nor into the deltas."""
    ops = [Set(key, value) for key, value in zip(AWKWARD, reversed(AWKWARD), strict=True)]
    written = await store.write(*ops)
    expected = dict(zip(AWKWARD, reversed(AWKWARD), strict=True))
    assert await store.items() == expected
    assert dict(apply(MapState(Position(INCARNATION, 0, 0)), store.log()).state.items) == expected
    assert all(outcome == Outcome(True, None) for outcome in written.outcomes)
    await store.write(*[Delete(key) for key in AWKWARD])
    assert await store.items() == {}


async def test_several_maps_are_probed_in_one_script(store: Store) -> None:
    never, broken = (StoredMap(store.map.control, name) for name in ("never", "broken"))
    store.client.set(broken.meta, "no hash")
    written = await store.write(Set(b"a", b"1"))
    found = await store.probe(never, broken, store.map)
    assert found == [Position(INCARNATION, 0, 0), None, written.at]


# --- refusals ---------------------------------------------------------------------------------


async def refused(store: Store, error: type[PoolError], *ops: Op) -> None:
    before = store.dump()
    with pytest.raises(error):
        await store.write(*ops)
    assert store.dump() == before


@pytest.mark.parametrize("there", ["i0", None])
async def test_another_incarnation_or_none_is_data_loss(store: Store, there: str | None) -> None:
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


@pytest.mark.parametrize("key", ["meta", "items", "log"])
@pytest.mark.parametrize("op", [Set(b"a", b"2"), Delete(b"a"), SetIfNotExists(b"b", b"1")])
@pytest.mark.parametrize("has_history", [True, False])
async def test_foreign_data_under_a_key_is_refused(
    store: Store, key: str, op: Op, has_history: bool
) -> None:
    await store.write(Set(b"a", b"1"))
    if not has_history:
        store.client.delete(store.map.meta)
    store.client.delete(getattr(store.map, key))
    store.client.set(getattr(store.map, key), "foreign")
    await refused(store, StoreFault, op)


@pytest.mark.parametrize("op", [Set(b"a", b"2"), Delete(b"a")])
async def test_a_log_that_is_ahead_refuses_before_anything_is_written(store: Store, op: Op) -> None:
    """XADD is the one write that can still be refused: it comes before all others."""
    await store.write(Set(b"a", b"1"))
    store.client.xadd(store.map.log, {"foreign": "entry"}, id="8000000000000000-0")
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


# --- deltas -----------------------------------------------------------------------------------


@given(
    st.dictionaries(
        st.sampled_from(["incarnation", "stamp", "after", "edits", "other"]),
        st.sampled_from(
            [b"", b"1", b"1-2", b"i1", b"+1:a2:bc", b"-1:a", b"+9:a", b"+1:a", b"?1:a", b"\xff"]
        )
        | st.binary(max_size=8),
    ),
    st.sampled_from(["5-0", "6-3"]),
)
@settings(max_examples=300)
async def test_a_damaged_entry_continues_nobodys_history(
    fields: dict[str, bytes], entry: str
) -> None:
    state = MapState(Position(INCARNATION, 4, 40))
    applied = apply(state, [delta_of(entry, fields)])
    assert applied.gap is not None or applied.state.at.incarnation == INCARNATION


keys = st.sampled_from([b"a", b"b", b"c"])
values = st.sampled_from([b"", b"1", b"2"])
operations: st.SearchStrategy[Op] = st.one_of(
    st.builds(Set, keys, values),
    st.builds(SetIfNotExists, keys, values),
    st.builds(CompareAndSet, keys, values, values),
    st.builds(Delete, keys),
    st.builds(CompareAndDelete, keys, values),
)


def expected(items: dict[bytes, bytes], ops: Sequence[Op]) -> list[Outcome]:
    """Do to a plain dict what the script does to the map."""
    outcomes = []
    for op in ops:
        now, is_met = items.get(op.key), True
        match op:
            case SetIfNotExists():
                is_met = now is None
            case CompareAndSet(expected=wanted) | CompareAndDelete(expected=wanted):
                is_met = now == wanted
        outcomes.append(Outcome(is_met, now))
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
    items: dict[bytes, bytes] = {}
    batches = _examples(st.lists(operations, min_size=1, max_size=6), 150)
    for ops in batches:
        written = await store.write(*ops)
        assert list(written.outcomes) == expected(items, ops)
    state = await store.state()
    assert dict(state.items) == items
    followed = apply(MapState(Position(INCARNATION, 0, 0)), store.log())
    assert (followed.state.at, dict(followed.state.items)) == (state.at, items)


def _examples(strategy: st.SearchStrategy[list[Op]], count: int) -> list[list[Op]]:
    found: list[list[Op]] = []

    @settings(max_examples=count, database=None)
    @given(strategy)
    def collect(ops: list[Op]) -> None:
        found.append(ops)

    collect()
    return found
