"""Maps over a server that goes back, with its clock behind, ahead or stepping (G-10).

    two writers, two copies --> a server with a clock of its own
         |                        | older copies of the keys are put back: a failover
         +-- every position that a write was answered is waited for: it is there, or told as lost

After each fork both copies are what the server holds, however the revisions of the two histories
meet: below, at, or above each other.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest

from pool import PoolError, ReplicatedMap, Settings
from pool.core.lease import Timing
from pool.errors import StoreLost
from pool.maps import Position, Resync
from pool.maps.commands import StoredMap
from pool.names import Control
from pool.redis.embedded.server import EmbeddedServer, ServerProgram
from tests.servers import connect
from tests.verify.clock import NoClock, SteppedClock, stepped

pytestmark = [pytest.mark.anyio, pytest.mark.one_server]  # a server with a clock of its own

SETTINGS = Settings(lease_ttl_s=1.0)
RENEW_S = Timing(1.0).renew_s
PATIENCE_S = 50.0
HOUR_S = 3600.0


async def until(is_so: Callable[[], object]) -> None:
    """Look again until it is so: nobody tells what only the server and the copy know."""
    with anyio.fail_after(PATIENCE_S):
        while True:
            if is_so():
                return
            await anyio.sleep(RENEW_S / 8)


@attrs.define(eq=False)
class Bench:
    """Two processes' copies of one map, a plain client, and the server's clock."""

    client: Any
    clock: SteppedClock
    stored: StoredMap
    near: ReplicatedMap[str]
    far: ReplicatedMap[str]
    news: list[Any]
    written: list[Position] = attrs.field(factory=list)
    writes: int = 0

    async def write(self, dice: random.Random) -> None:
        """Write what no other write was: values tell histories apart."""
        self.writes += 1
        key, value = dice.choice("abc"), str(self.writes)
        which = dice.choice((self.near, self.far))
        if dice.random() < 0.3:
            self.written.append((await which.append("l", value)).at)
        else:
            self.written.append((await which.set(key, value)).at)
        if dice.random() < 0.1:
            self.written.append((await which.reset()).at)

    def save(self) -> dict[str, bytes | None]:
        control = self.stored.control
        keys = (self.stored.data, self.stored.lists, self.stored.log, control.maps, control.map_due)
        return {key: self.client.dump(key) for key in keys}

    def go_back(self, older: dict[str, bytes | None]) -> None:
        """Be an older copy of the server, at once."""
        with self.client.pipeline(transaction=True) as pipe:
            for key, dump in older.items():
                pipe.delete(key)
                if dump is not None:
                    pipe.restore(key, 0, dump)
            pipe.execute()

    def has(self, at: Position) -> bool:
        """Say by the server's log whether the present history has a write; it is never trimmed."""
        found = self.client.xrange(self.stored.log, f"{at.revision}-0", f"{at.revision}-0")
        return bool(found) and found[0][1][b"at"].split()[1].decode() == at.stamp

    def truth(self) -> dict[str, Any]:
        held = self.client.hgetall(self.stored.data)
        found: dict[str, Any] = {
            key[1:].decode(): value.decode() for key, value in held.items() if key[:1] == b"="
        }
        for member in self.client.zrangebylex(self.stored.lists, "[l", "(m"):
            size, _, rest = member[1:].decode().partition(":")
            key, value = rest[: int(size)], rest[int(size) + 19 :]
            found[key] = (*found.get(key, ()), value)
        return found

    async def is_equal(self) -> None:
        """Wait until both copies are in the server's history, and equal it."""
        _, revision, stamp, *_ = self.client.hget(self.stored.data, "at").decode().split()
        there = (int(revision), stamp)
        for copy in (self.near, self.far):
            await until(lambda at=copy: (at.at.revision, at.at.stamp) == there)  # type: ignore[misc]
            assert copy.snapshot() == self.truth()

    async def judge(self) -> None:
        """Wait for each write: those that are there are said to be, all others are told as lost."""
        for at in self.written:
            is_there = self.has(at)
            for copy in (self.near, self.far):
                with anyio.fail_after(PATIENCE_S):
                    try:
                        await copy.wait_for(at)
                    except StoreLost:
                        assert not is_there
                    else:
                        assert is_there


@pytest.fixture
def clocked(program: ServerProgram, tmp_path: Path) -> Iterator[tuple[str, SteppedClock]]:
    with ExitStack() as stack:
        try:
            its, clock = stack.enter_context(stepped(program, tmp_path))
        except NoClock as error:
            pytest.skip(str(error))
        yield stack.enter_context(EmbeddedServer.start(its)).url, clock


@pytest.fixture
async def bench(anyio_backend: str, clocked: tuple[str, SteppedClock]) -> AsyncIterator[Bench]:
    url, clock = clocked
    async with AsyncExitStack() as stack:
        copies = [
            await stack.enter_async_context(
                ReplicatedMap.open(url, "flags", pool="p", settings=SETTINGS, observers=())
            )
            for _ in range(2)
        ]
        news: list[Any] = []
        tasks = await stack.enter_async_context(anyio.create_task_group())
        watch = copies[1].watch()

        async def hear() -> None:
            async for each in watch:
                news.append(each)  # noqa: PERF401 - it is read meanwhile

        tasks.start_soon(hear)
        with connect(url) as client:
            near, far = copies
            yield Bench(client, clock, StoredMap(Control("p"), "flags"), near, far, news)
        watch.close()


def steps(kind: str, dice: random.Random) -> float:
    by = {"behind": -HOUR_S, "ahead": HOUR_S, "stepping": dice.choice((-HOUR_S, HOUR_S, 7.0, -7.0))}
    return by[kind]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", ["behind", "ahead", "stepping"])
async def test_copies_are_whole_and_lost_writes_are_told_whatever_the_clock_says(
    bench: Bench, kind: str, seed: int
) -> None:
    """G3: with the clock behind, two histories had equal revisions and stamps."""
    dice = random.Random(f"{kind} {seed}")
    await bench.write(dice)
    await bench.is_equal()
    for _ in range(4):
        for _ in range(dice.randrange(3)):
            await bench.write(dice)
        older = bench.save()
        bench.clock.step(steps(kind, dice))
        for _ in range(dice.randrange(4)):  # these are lost; some of the copies have seen them
            await bench.write(dice)
        if dice.random() < 0.5:
            await bench.is_equal()
        bench.go_back(older)
        for _ in range(dice.randrange(6)):  # fewer, as many, or more: the numbers meet
            await bench.write(dice)
        await bench.is_equal()
        await bench.judge()
    assert bench.far.at == bench.near.at


async def test_a_history_of_equal_numbers_is_not_taken_for_ours(bench: Bench) -> None:
    """As many writes as were lost, by a clock that stands behind: only what was drawn differs."""
    await bench.near.set_and_wait("a", "kept")
    older = bench.save()
    bench.clock.step(-HOUR_S)
    lost = (await bench.near.set("a", "lost")).at
    await bench.far.wait_for(lost)
    bench.go_back(older)
    other = (await bench.near.set("a", "other")).at
    assert other.revision == lost.revision
    await bench.is_equal()
    await bench.far.wait_for(other)
    with pytest.raises(StoreLost):
        await bench.far.wait_for(lost)
    assert [news.is_fork for news in bench.news if isinstance(news, Resync)] == [True]


@pytest.mark.parametrize("lost", [1, 3])
async def test_who_waits_for_a_write_behind_a_fork_has_it(bench: Bench, lost: int) -> None:
    """The copy is as far by its number, or further, along what the server has lost."""
    await bench.near.set_and_wait("a", "kept")
    older = bench.save()
    for n in range(lost):
        await bench.near.set_and_wait("a", f"lost {n}")
    bench.go_back(older)
    await bench.near.set_and_wait("a", "other")
    assert bench.near["a"] == "other"
    await bench.is_equal()


async def test_a_lost_write_is_told_where_the_numbers_were_skipped(bench: Bench) -> None:
    """The map has ended and lives again: its log goes past the number, and has nothing there."""
    await bench.near.set_and_wait("a", "kept")
    older = bench.save()
    await bench.near.set("a", "lost 1")
    lost = await bench.near.set_and_wait("a", "lost 2")
    bench.go_back(older)
    await bench.near.destroy()
    written = await bench.near.set_and_wait("a", "other")
    assert written.at.revision > lost.at.revision
    await bench.is_equal()
    for copy in (bench.near, bench.far):
        with anyio.fail_after(PATIENCE_S), pytest.raises(StoreLost):
            await copy.wait_for(lost.at)


async def test_a_fork_that_has_overtaken_a_copy_is_told_as_one(bench: Bench) -> None:
    await bench.near.set_and_wait("a", "kept")
    older = bench.save()
    lost = (await bench.near.set("a", "lost")).at
    await bench.far.wait_for(lost)
    bench.go_back(older)
    await bench.near.update({"a": "1", "b": "2"})
    for n in range(5):
        await bench.near.set("n", str(n))
    await bench.is_equal()
    await until(lambda: any(isinstance(each, Resync) for each in bench.news))
    resyncs = [each for each in bench.news if isinstance(each, Resync)]
    assert resyncs[0].is_fork  # wherever the other history was by then; later ones may be gaps


async def test_a_position_goes_to_another_process_as_text(bench: Bench) -> None:
    at = (await bench.near.set("a", "1")).at
    await bench.far.wait_for(Position.parse(str(at)))
    assert bench.far["a"] == "1"
    made: Any = Position
    broken = [made("a", "b"), made("a", 1, 2), made("a", str(at.revision)), made("", 1, "a")]
    for wrong in (at.revision, str(at), None, *broken, attrs.evolve(at, revision=-1)):
        with pytest.raises(PoolError, match="Position"):
            await bench.far.wait_for(wrong)


@pytest.mark.parametrize("step_s", [HOUR_S, -HOUR_S])
@pytest.mark.parametrize("life", ["ttl", "sliding", "absolute"])
async def test_no_step_of_the_clock_ends_a_map_or_keeps_it(
    bench: Bench, clocked: tuple[str, SteppedClock], life: str, step_s: float
) -> None:
    """By what the processes of the pool have seen pass (13.10)."""
    url, clock = clocked
    client: Any = bench.client
    now_s = client.time()[0]
    how: dict[str, Any] = {
        "ttl": {"ttl_s": 3.0},
        "sliding": {"ttl_s": 3.0, "is_sliding": True},
        "absolute": {"expires_at": now_s + 3.0},
    }[life]
    maps = bench.stored.control.maps
    async with ReplicatedMap.open(
        url, "brief", pool="p", settings=SETTINGS, observers=(), **how
    ) as brief:
        await brief.set_and_wait("a", "1")

        def seen_s() -> float:
            return int(client.hget(maps, "seen") or 0) / 1000

        await until(seen_s)
        before_s = seen_s()
        clock.step(step_s)
        await until(lambda: abs(seen_s() - before_s) > HOUR_S / 2)
        assert brief.snapshot() == {"a": "1"}
        await until(lambda: not brief.snapshot())
        assert not client.exists(StoredMap(Control("p"), "brief").data)
