"""Tickers: one tick in each period for the whole fleet, handed over, and told where missed."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pool import Node
from pool.errors import ConfigError, InvalidOption, NotRunning
from pool.names import Names, lane_of
from pool.redis.commands.schedules import TickTold

if TYPE_CHECKING:
    from pool.schedules import TickInfo
    from tests.nodes import Diary, Fleet

pytestmark = pytest.mark.anyio
EVERY_S = 0.2


async def tick_on(node: Node, diary: Diary) -> None:
    async with node.ticker("t", every_s=EVERY_S) as ticks:
        async for tick in ticks:
            diary.note(node.id, tick)


def seen(diary: Diary) -> list[TickInfo]:
    return [tick for _, tick in diary.entries]


async def test_each_tick_comes_to_one_node_and_to_another_when_that_leaves(
    fleet: Fleet, diary: Diary
) -> None:
    nodes = [await fleet.node(lanes=4) for _ in range(3)]
    async with anyio.create_task_group() as tasks:
        scopes = {}
        for node in nodes:
            scopes[node.id] = anyio.CancelScope()

            async def one(node: Node) -> None:
                with scopes[node.id]:
                    await tick_on(node, diary)

            tasks.start_soon(one, node)
        for left in range(3, 0, -1):
            before = len(diary.entries)
            await diary.counts(before + 4)
            who = diary.entries[-1][0]
            scopes[who].cancel()
            if left > 1:
                await diary.until(partial(_is_anothers, who))
    numbers = [tick.number for tick in seen(diary)]
    assert numbers == sorted(set(numbers))  # none came twice, whoever had it
    gaps = [later - at - 1 for at, later in pairwise(numbers)]
    missed = [tick.missed for tick in seen(diary)[1:]]
    # Who was stopped while it asked may have had one, of which the next is told otherwise.
    assert all(told <= gap <= told + 1 for told, gap in zip(missed, gaps, strict=True))


def _is_anothers(who: str, entries: list[Any]) -> bool:
    return bool(entries[-1][0] != who)


async def test_who_dies_with_a_tick_is_told_of_and_so_is_who_was_away(
    fleet: Fleet, diary: Diary
) -> None:
    node, other = await fleet.node(), await fleet.node()
    async with node.ticker("t", every_s=EVERY_S) as ticks:
        first = await anext(ticks)
        second = await anext(ticks)
        assert (first.was_done, second.was_done) == (True, True)
        async with other.ticker("t", every_s=EVERY_S) as others:
            third = await anext(others)  # nobody says that the second one is done
    assert third.number > second.number
    assert not third.was_done
    key = Names(fleet.pool, lane_of("t", 1)).tickers
    text: Any = fleet.client.hget(key, "t")
    at, *rest = text.decode().split()
    assert rest[1] == "1"  # who leaves in peace has said so
    fleet.client.hset(key, "t", " ".join([str(int(at) - 2000), *rest]))
    async with node.ticker("t", every_s=EVERY_S) as ticks:
        late = await anext(ticks)
    assert late.missed >= 9
    assert late.was_done


async def test_who_leaves_takes_no_tick_along(fleet: Fleet) -> None:
    """Also when the next one's time has come meanwhile."""
    node, other = await fleet.node(), await fleet.node()
    async with node.ticker("t", every_s=EVERY_S) as ticks:
        mine = await anext(ticks)
        await anyio.sleep(2 * EVERY_S)
    async with other.ticker("t", every_s=EVERY_S) as ticks:
        late = await anext(ticks)
    assert late.was_done
    assert late.missed == late.number - mine.number - 1


async def test_a_repeat_has_the_same_tick_and_a_late_call_none(fleet: Fleet) -> None:
    node = await fleet.node()
    context = fleet.wiring(node).context
    lane = context.lanes[0].lane

    async def ask(token: str, **more: Any) -> TickTold:
        call = lane.tick("t", token, every_s=3600.0, **more)
        told: TickTold = await context.pipeline.call(call, repeatable=True)
        return told

    assert (await ask("a")).at_ms == 0  # it begins with the next one
    names = context.lanes[0].lane.names
    text: Any = fleet.client.hget(names.tickers, "t")
    at, *rest = text.decode().split()
    before = " ".join([str(int(at) - 2 * 3_600_000), *rest])
    fleet.client.hset(names.tickers, "t", before)
    mine = await ask("a")
    assert (mine.at_ms, mine.missed) == (int(at), 1)
    assert (await ask("a")).at_ms == mine.at_ms
    assert (await ask("b")).at_ms == 0
    await ask("c", done_ms=mine.at_ms)
    text = fleet.client.hget(names.tickers, "t")
    assert text.split()[2] == b"1"
    for junk in (b"", b"x", b"9" * 16 + b" t 0 0", b"1 2 3"):
        fleet.client.hset(names.tickers, "t", junk)
        assert (await ask("d")).at_ms == 0
        text = fleet.client.hget(names.tickers, "t")
        assert text.split()[0] == at.encode()


async def test_a_ticker_goes_on_when_its_lane_lost_its_data(fleet: Fleet, diary: Diary) -> None:
    node = await fleet.node()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(tick_on, node, diary))
        await diary.counts(2)
        fleet.client.delete(*fleet.client.keys(Names(fleet.pool, 0).prefix + "*"))
        before = len(diary.entries)
        await diary.counts(before + 3)
        tasks.cancel_scope.cancel()


async def test_what_is_no_ticker_is_refused(fleet: Fleet) -> None:
    node = await fleet.node()
    with pytest.raises(ConfigError):
        node.ticker("a b", every_s=1.0)
    with pytest.raises(InvalidOption):
        node.ticker("t", every_s=0.0)
    ticks = node.ticker("t", every_s=1.0)
    with pytest.raises(NotRunning):
        await anext(ticks)
    async with ticks:
        pass
    with pytest.raises(NotRunning):
        await anext(ticks)
