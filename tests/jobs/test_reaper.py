"""Whom a reaper holds for deaths that nobody saw coming: only what no other lane or death explains.

The dead identity and its job are written as a worker would have left them.
"""

from __future__ import annotations

import random
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from pool import Handlers, Job, PoolError
from pool.core.ids import process_of
from pool.core.record import Record
from pool.core.settlement import Grant
from pool.errors import Gone, StoreFault, StoreLost
from pool.jobs.context import Context
from pool.jobs.fleet.reaper import Reaper
from pool.jobs.fleet.scatter import Scatter
from pool.jobs.roster import WorkerEntry
from pool.redis.pipeline import Pipeline
from tests.nodes import Fleet

pytestmark = pytest.mark.anyio

DIED = "wdeadprocss1.1"
BESIDE = "wdeadprocss2.1"  # another worker of that process
BEFORE = [f"wearlier{n}ss1.1" for n in range(4)]  # identities whose deaths it is suspected of
LATE = 1 << 45  # ms: beyond what any test lives


def serving() -> Handlers:
    handlers = Handlers()

    @handlers.service("serve")
    async def serve(job: Job) -> None:
        await anyio.sleep_forever()

    return handlers


def died(fleet: Fleet, key: str) -> None:
    """Leave a job that was aboard at four deaths before this one, which makes it the last."""
    marks = ",".join(f"{name}-" for name in BEFORE)
    record = f"R|s|id-{key}|serve|{DIED}|7|1|||{marks}|0|11|1|||"
    with fleet.client.pipeline() as pipe:
        pipe.hset(fleet.names.jobs, key, record)
        pipe.hset(fleet.names.payloads, key, "[]")
        pipe.sadd(fleet.names.owned(DIED), key)
        pipe.zadd(fleet.names.keepalive, {DIED: 1})
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


async def test_who_alone_was_aboard_at_the_most_deaths_is_held(fleet: Fleet) -> None:
    await fleet.node(serving(), crashes_max=3, lease_ttl_s=1.0)
    died(fleet, "k")
    assert await becomes(fleet, "k") == "held"


async def test_a_death_with_a_culprit_is_no_evidence_against_others(fleet: Fleet) -> None:
    await fleet.node(serving(), crashes_max=3, lease_ttl_s=1.0)
    fleet.client.zadd(fleet.names.thawed, {f"!{BEFORE[0]}": LATE})
    died(fleet, "k")
    assert await becomes(fleet, "k") == "running"


@pytest.mark.parametrize("told", ["=5", "=6", "!"])
async def test_nobody_is_held_while_another_worker_of_the_process_may_have_had_the_guilty_one(
    fleet: Fleet, told: str
) -> None:
    await fleet.node(serving(), crashes_max=3, lease_ttl_s=1.0)
    assert process_of(DIED) == process_of(BESIDE)
    fleet.client.hset(fleet.names.trials, BESIDE, told)
    died(fleet, "k")
    assert await becomes(fleet, "k") == "running"


async def test_who_was_aboard_at_fewer_deaths_explains_nothing(fleet: Fleet) -> None:
    await fleet.node(serving(), crashes_max=3, lease_ttl_s=1.0)
    fleet.client.hset(fleet.names.trials, BESIDE, "=4")
    died(fleet, "k")
    assert await becomes(fleet, "k") == "held"


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


async def test_who_stood_together_is_dealt_out_to_different_processes() -> None:
    """One after the other, wherever it begins: none is asked twice before all were asked once."""
    infos = [
        WorkerEntry(
            id=f"wprocess{n}ss1",
            node=f"n{n}",
            handlers=("serve",),
            capacity=1,
            weight=1.0,
            label="",
            version="1",
            is_draining=False,
            numbers=(1,),
        )
        for n in range(5)
    ]
    context = cast(
        "Context",
        SimpleNamespace(
            roster=SimpleNamespace(workers=infos),
            candidates=SimpleNamespace(workers={info.id: info for info in infos}),
            io=SimpleNamespace(dice=random.Random(1)),
        ),
    )
    context.as_targets = partial(Context.as_targets, context)  # type: ignore[method-assign]
    scatter = Scatter(context, 0, DIED)
    record = Record.parse(b"R|s|id|serve|wdeadprocss1.1|7|1|||w1.1-|0|11|1|||")
    assert record is not None
    grant = Grant("m=w1.1-")
    firsts = [scatter.targets(f"k{n}", record, grant)[0].id for n in range(10)]
    assert firsts[:5] == firsts[5:]
    assert len(set(firsts)) == 5
