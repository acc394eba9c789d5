"""Whom a reaper holds for deaths that nobody saw coming: only what no other lane or death explains.

The dead identity and its job are written as a worker would have left them.
"""

from __future__ import annotations

import random
from collections import Counter
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from pool import Handlers, Job, Node, PoolError
from pool.core.crash_marks import Marks
from pool.core.ids import process_of
from pool.core.record import Record
from pool.core.settlement import Deal, Grant
from pool.errors import Gone, StoreFault, StoreLost
from pool.jobs.context import Context
from pool.jobs.fleet.reaper import Reaper, Scatter
from pool.jobs.roster import WorkerEntry
from pool.redis.pipeline import Pipeline
from tests.nodes import Fleet

pytestmark = pytest.mark.anyio

DIED = "wdeadprocss1.1"


def serving() -> Handlers:
    handlers = Handlers()

    @handlers.service("serve")
    async def serve(job: Job) -> None:
        await anyio.sleep_forever()

    return handlers


def died(fleet: Fleet, key: str, *, bits: int = 250) -> None:
    """Leave a job that was aboard at four deaths before this one, and what they proved."""
    marks = Marks(4, bits, bits, place=process_of(DIED), dealt=3).pack()
    now_ms = fleet.client.time()[0] * 1000
    record = f"R|s|id-{key}|serve|{DIED}|7|1|||{marks}|0|11|{now_ms - 20_000}|||"
    with fleet.client.pipeline() as pipe:
        pipe.hset(fleet.names.jobs, key, record)
        pipe.hset(fleet.names.payloads, key, "[]")
        pipe.sadd(fleet.names.owned(DIED), key)
        pipe.hset(fleet.names.open, DIED.partition(".")[0], "1|9|1")
        pipe.zadd(fleet.names.keepalive, {DIED: now_ms - 5_000})
        pipe.execute()


async def becomes(fleet: Fleet, key: str) -> str:
    """Return what becomes of a job whose owner died: it is held, or runs elsewhere."""

    def moved() -> bool:
        record = fleet.record(key)
        return record is not None and record.owner != DIED and record.state != "pending"

    await fleet.until(moved)
    record = fleet.record(key)
    assert record is not None
    return "held" if "h" in record.flags else record.state


async def test_what_is_proved_to_kill_is_held_and_then_parked(fleet: Fleet) -> None:
    node = await fleet.node(serving(), crashes_max=3, lease_ttl_s=1.0)
    died(fleet, "k")
    assert await becomes(fleet, "k") == "held"
    outcome = await settled(fleet, node, "k")
    assert outcome == ("parked", "suspected of 5 worker crashes")


@pytest.mark.parametrize("rival", [299, 300, 301])
async def test_a_job_is_held_only_if_no_other_one_aboard_has_as_much_evidence(
    fleet: Fleet, rival: int
) -> None:
    """Both were aboard at the same deaths; they are read in several pages, in any order."""
    await fleet.node(serving(), crashes_max=3, lease_ttl_s=1.0)
    others = [f"other{number}" for number in range(90)]
    for key in others:
        died(fleet, key, bits=0)
    died(fleet, "a", bits=rival)
    died(fleet, "b", bits=300)
    expected = {299: ("running", "held"), 300: ("running",) * 2, 301: ("held", "running")}
    assert (await becomes(fleet, "a"), await becomes(fleet, "b")) == expected[rival]
    assert {await becomes(fleet, key) for key in others} == {"running"}


async def test_in_a_crash_loop_of_one_process_a_coin_holds_half_of_the_suspects(
    fleet: Fleet,
) -> None:
    """They begin when the round is over, and nobody holds them again before the next death."""
    await fleet.node(serving(), crashes_max=3, lease_ttl_s=1.0)
    now_ms = fleet.client.time()[0] * 1000
    earlier = {f"process00{n}.1": now_ms - 6_000 - 1_000 * n for n in range(4)}
    fleet.client.zadd(fleet.names.deaths, earlier)
    keys = [f"k{number}" for number in range(20)]
    for key in keys:
        died(fleet, key, bits=0)
    became = [await becomes(fleet, key) for key in keys]
    assert set(became) == {"waiting", "running"}
    held = keys[became.index("waiting")]
    record = fleet.record(held)
    assert record is not None
    assert record.marks.round is not None
    assert record.marks.round.is_held
    await fleet.until(lambda: all(running(fleet, key) for key in keys))


@pytest.mark.parametrize("why", ["little", "crowd", "thawed"])
async def test_what_is_not_proved_runs_elsewhere(fleet: Fleet, why: str) -> None:
    """By too little, or in a pool so large that it may be chance, or its process came back."""
    node = await fleet.node(serving(), crashes_max=3, lease_ttl_s=1.0)
    if why == "crowd":
        for number in range(12):
            await node.dispatch("serve", f"other{number}")
    died(fleet, "k", bits={"little": 150, "crowd": 215, "thawed": 215}[why])
    if why == "thawed":
        assert await becomes(fleet, "k") == "held"
        assert fleet.client.delete(fleet.names.deaths)
        await fleet.until(lambda: running(fleet, "k"))
    else:
        assert await becomes(fleet, "k") == "running"
    assert (await node.status("k")).state == "running"


def running(fleet: Fleet, key: str) -> bool:
    record = fleet.record(key)
    return record is not None and record.state == "running"


async def settled(fleet: Fleet, node: Node, key: str) -> tuple[str, str]:
    """Wait until a job is over; return how it ended."""
    ref = await node.job(key, f"id-{key}")

    async def is_over() -> bool:
        return (await ref.status()).state == "parked"

    await fleet.until(is_over)
    status = await ref.status()
    return status.state, status.error


@pytest.mark.parametrize(
    ("error", "doubted"), [(StoreLost(pool="p"), [0]), (StoreFault(problem="x"), [])]
)
async def test_only_lost_data_puts_a_lane_in_doubt(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, error: PoolError, doubted: list[int]
) -> None:
    reaper, told = fleet.wiring(await fleet.node())._reaper, list[int]()

    async def fails(self: Pipeline, *args: Any, **kwargs: Any) -> Any:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(reaper.context, "on_data_lost", told.append)
        patched.setattr(Pipeline, "call", fails)
        assert not await reaper.doom(0, DIED)
        assert told == doubted


async def test_who_was_taken_over_is_reaped_here_when_the_other_is_gone(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a node that has once lost a claim would leave that identity to others for ever."""
    real, gone = Reaper._move, list[str]()

    async def move(self: Reaper, state: Any, claim: Any, *args: Any) -> int:
        if not gone:
            gone.append(claim.identity)
            raise Gone(identity=claim.identity)
        return await real(self, state, claim, *args)

    monkeypatch.setattr(Reaper, "_move", move)
    await fleet.node(serving(), lease_ttl_s=1.0)
    died(fleet, "k")
    await becomes(fleet, "k")
    assert gone == [DIED]


def scatter_of(seed: int, *processes: int, draining: int = 0) -> Scatter:
    """Return what deals to processes with so many workers each; the last ones drain."""
    infos = [
        WorkerEntry(
            id=f"wprocess{process}ss{number}",
            node=f"n{process}",
            handlers=("serve",) if process < 8 else ("other",),
            capacity=1,
            weight=1.0,
            label="",
            version="1",
            is_draining=process >= len(processes) - draining,
            numbers=(1,),
        )
        for process, workers in enumerate(processes)
        for number in range(workers)
    ]
    context = cast(
        "Context",
        SimpleNamespace(
            roster=SimpleNamespace(workers=infos),
            candidates=SimpleNamespace(workers={info.id: info for info in infos}),
            io=SimpleNamespace(dice=random.Random(seed)),
        ),
    )
    context.as_targets = partial(Context.as_targets, context)  # type: ignore[method-assign]
    return Scatter(context, 0, "wprocess0ss0.1")


async def test_who_stood_together_is_dealt_out_to_different_processes() -> None:
    """Each process once in a round, whatever their workers; the dead and the leaving not at all."""
    scatter = scatter_of(1, 1, 1, 4, 1, 2, 1, draining=1)
    record = Record.parse(b"R|s|id|serve|wprocess0ss0.1|7|1||||0|11|1|||")
    assert record is not None
    grant = Grant(f"m={Marks(1).pack()}")
    rounds: list[list[str]] = []
    for _ in range(3):
        dealt = [scatter.deal("serve") for _ in range(4)]
        assert {deal.of for deal, _ in dealt} == {4}
        rounds.append([deal.place for deal, _ in dealt])
        for deal, workers in dealt:
            targets = scatter.targets("k", record, grant, workers)
            assert process_of(targets[0].id) == deal.place
            assert len(targets) == 8
    assert [sorted(places) for places in rounds] == [sorted(rounds[0])] * 3
    assert len({*rounds[0]}) == 4
    assert scatter.deal("nobody's")[0] == Deal()


async def test_each_process_is_dealt_a_job_as_often() -> None:
    """Whatever its place among the jobs; what cannot take it counts for nothing."""
    for place in range(3):
        counts = Counter[str]()
        for seed in range(900):
            scatter = scatter_of(seed, 1, 1, 8, 1, 1, 1, 1, 1, 1)
            dealt = [scatter.deal("serve")[0] for _ in range(place + 1)]
            assert dealt[place].of == 7
            counts[dealt[place].place] += 1
        assert len(counts) == 7
        assert max(counts.values()) < 180, counts  # 129 on average
