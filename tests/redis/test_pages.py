"""A map is fetched in pages of bounded size, on a real server, while it is written (G2)."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from typing import Any

import attrs
import pytest

from pool.errors import StoreUnavailable
from pool.maps import commands as stored
from pool.maps.commands import (
    MAP_VALUE_BYTES_MAX,
    OPS_MAX,
    PAGE_BYTES_MAX,
    SnapshotPages,
    StoredMap,
    delta_of,
)
from pool.maps.deltas import Delete, ListOp, MapState, Op, Position, ResetOp, Set, Value, apply
from pool.names import Control
from pool.redis.io.system import SystemIO
from pool.redis.pipeline import Pipeline
from pool.redis.url import Url
from tests.servers import connect

pytestmark = pytest.mark.anyio

GENERATION = "i1"
KEYS = [b"%d" % n * (1 + n % 3) for n in range(40)] + [b"", b"3:abc", b"\xff\xff", b":", b"9" * 20]


@attrs.frozen
class Bench:
    """A map on a server, a pipeline to it, a plain client beside it, and the sizes of pages."""

    pipeline: Pipeline
    client: Any
    map: StoredMap
    sizes: list[tuple[int, int]]  # of each page: bytes and items

    async def set(self, *pairs: tuple[bytes, bytes]) -> None:
        ops: list[Op] = [Set(key, value) for key, value in pairs]
        await self.map.write(self.pipeline, GENERATION, ops)

    async def append(self, key: bytes, *values: bytes) -> None:
        op = ListOp("append", key, values)
        await self.map.change_list(self.pipeline, GENERATION, op)

    async def write_something(self, dice: random.Random, n: int) -> None:
        key, value = dice.choice(KEYS), b"%d" % n * dice.choice([1, 1, 40])
        is_string = self.client.hexists(self.map.data, b"=" + key)
        match dice.choice("++-aaaaar" if dice.random() > 0.01 else "*"):
            case "*":
                await self.map.reset(self.pipeline, GENERATION, ResetOp())
            case "+":
                await self.set((key, value))
            case "-":
                await self.map.write(self.pipeline, GENERATION, [Delete(key)])
            case "a" if not is_string:
                await self.append(key, value, value, b"same")
            case "r" if not is_string:
                op = ListOp("remove", key, (b"same",))
                await self.map.change_list(self.pipeline, GENERATION, op)

    async def fetched(self, pages: SnapshotPages) -> MapState:
        while (state := await pages.fetch(self.pipeline)) is None:
            continue
        return state

    def log(self) -> Sequence[Any]:
        found = self.client.xrange(self.map.log)
        return [
            delta_of(entry.decode(), {name.decode(): value for name, value in fields.items()})
            for entry, fields in found
        ]

    def truth(self) -> dict[Position, dict[bytes, Value]]:
        """Return the map at each of its positions, by its log."""
        state = MapState(Position(GENERATION, 0))
        found = {state.at: dict(state.items)}
        for delta in self.log():
            state = apply(state, [delta]).state
            found[state.at] = dict(state.items)
        return found


@pytest.fixture
async def bench(
    anyio_backend: str,
    redis_url: str,
    pool_url: str,
    pool_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Bench]:
    control, sizes, page = Control(pool_name), list[tuple[int, int]](), SnapshotPages._page

    def noted(self: SnapshotPages, paged: Any) -> Any:
        sizes.append((paged.size, len(paged.fields) + len(paged.members)))
        return page(self, paged)

    monkeypatch.setattr(SnapshotPages, "_page", noted)
    pipeline = await Pipeline.open(SystemIO(), Url.parse(pool_url), op_timeout_s=10.0)
    try:
        with connect(redis_url) as client:
            client.hset(control.config, mapping={"incarnation": GENERATION, "protocol": 1})
            yield Bench(pipeline, client, StoredMap(control, "flags"), sizes)
    finally:
        await pipeline.aclose(1.0)


@pytest.mark.parametrize("seed", range(12))
async def test_what_is_fetched_in_small_pages_is_the_map_as_it_once_was(
    bench: Bench, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G-10, whatever is written between two pages."""
    monkeypatch.setattr(stored, "PAGE_BYTES_MAX", 300)
    dice = random.Random(seed)
    for n in range(150):
        await bench.write_something(dice, n)
    pages, n = bench.map.pages(GENERATION), 150
    pages._bytes_max = 300
    while (state := await pages.fetch(bench.pipeline)) is None:
        for _ in range(dice.choice([0, 1, 2])):
            n += 1
            await bench.write_something(dice, n)
    assert len(bench.sizes) > 2
    assert dict(state.items) == bench.truth()[state.at]


async def test_a_page_of_what_is_large_is_bounded_in_bytes(bench: Bench) -> None:
    """Also where small values come first, and in lists."""
    dice, count = random.Random(1), 0
    for part in range(4):
        pairs = [(b"small %d %d" % (part, n), b"x" * 10) for n in range(200)]
        pairs += [(b"large %d %d" % (part, n), b"x" * MAP_VALUE_BYTES_MAX) for n in range(20)]
        dice.shuffle(pairs)
        for at in range(0, len(pairs), 50):
            await bench.set(*pairs[at : at + 50])
        await bench.append(b"list", *[b"x"] * 100)
        await bench.append(b"list", *[b"y" * MAP_VALUE_BYTES_MAX] * 20)
        count += 220 + 1
    state = await bench.fetched(bench.map.pages(GENERATION))
    assert len(state.items) == count - 3
    assert len(state.items[b"list"]) == 480
    assert sum(size for size, _ in bench.sizes) < 1.1 * 160 * MAP_VALUE_BYTES_MAX
    over = [size for size, _ in bench.sizes if size > PAGE_BYTES_MAX + 24 * MAP_VALUE_BYTES_MAX]
    assert not over


async def test_a_page_of_what_is_small_is_bounded_in_number(bench: Bench) -> None:
    """A script may hold the server for some milliseconds, whatever the size of the map."""
    for part in range(40):
        await bench.set(*[(b"%d" % (part * OPS_MAX + n), b"") for n in range(OPS_MAX)])
    for _ in range(40):
        await bench.append(b"list", *[b""] * OPS_MAX)
    state = await bench.fetched(bench.map.pages(GENERATION))
    assert len(state.items) == 40 * OPS_MAX + 1
    assert max(items for _, items in bench.sizes) < 5_000


async def test_a_small_map_is_one_page(bench: Bench) -> None:
    await bench.set(*[(b"%d" % n, b"x" * 100) for n in range(200)])
    await bench.append(b"list", *[b"x"] * 100)
    assert await bench.map.pages(GENERATION).fetch(bench.pipeline) is not None


async def test_what_its_log_does_not_lead_on_from_is_begun_anew_and_told(bench: Bench) -> None:
    for n in range(20):
        await bench.set((b"%d" % n, b"x" * MAP_VALUE_BYTES_MAX))
    pages = bench.map.pages(GENERATION)
    assert await pages.fetch(bench.pipeline) is None
    await bench.set((b"new", b"1"))
    await bench.set((b"newer", b"1"))
    bench.client.xtrim(bench.map.log, maxlen=1, approximate=False)
    with pytest.raises(StoreUnavailable, match="does not continue"):
        await pages.fetch(bench.pipeline)
    state = await bench.fetched(pages)
    assert len(state.items) == 22


async def test_what_other_hands_take_away_meanwhile_is_begun_anew(bench: Bench) -> None:
    """No delta tells of it: the counts do."""
    for n in range(20):
        await bench.set((b"%d" % n, b"x" * MAP_VALUE_BYTES_MAX))
    pages = bench.map.pages(GENERATION)
    assert await pages.fetch(bench.pipeline) is None
    bench.client.hdel(bench.map.data, *[b"=" + key for key in pages._gathering._strings])
    with pytest.raises(StoreUnavailable, match="does not continue"):
        await bench.fetched(pages)
    state = await bench.fetched(pages)
    assert len(state.items) == bench.client.hlen(bench.map.data) - 1


async def test_the_largest_change_there_may_be_comes_between_two_pages(bench: Bench) -> None:
    for n in range(20):
        await bench.set((b"%d" % n, b"x" * MAP_VALUE_BYTES_MAX))
    pages = bench.map.pages(GENERATION)
    assert await pages.fetch(bench.pipeline) is None
    await bench.set(*[(b"%d" % n, b"y" * MAP_VALUE_BYTES_MAX) for n in range(OPS_MAX)])
    await bench.set((b"0", b"z"))
    state = await bench.fetched(pages)
    expected = {b"%d" % n: b"y" * MAP_VALUE_BYTES_MAX for n in range(OPS_MAX)}
    assert dict(state.items) == {**expected, b"0": b"z"}
    assert max(size for size, _ in bench.sizes) < 1.1 * OPS_MAX * MAP_VALUE_BYTES_MAX
