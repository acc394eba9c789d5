"""Whoever puts a deadline into a lane comes for it in time, whoever else sweeps there."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest

from pool import Handlers, Job, Node, Retry
from pool.jobs.fleet import sweeper
from pool.jobs.fleet.sweeper import LOCK_S, NEAR_S, STEP_S, Agenda
from pool.redis.commands.lane import Lane
from tests.nodes import Diary, Fleet

pytestmark = pytest.mark.anyio
DELAY_S = 0.02


def server_s(fleet: Fleet) -> float:
    seconds, micros = fleet.client.time()
    return float(seconds) + float(micros) / 1e6


async def somebody_sweeps(fleet: Fleet, node: Node) -> float:
    """Have another node take the lock of the only lane; return until when it holds at least."""
    since_s, context = server_s(fleet), fleet.wiring(node).context
    call = context.lanes[0].lane.sweep("n9.1", lock_s=LOCK_S, keys_max=9)
    await context.pipeline.call(call, repeatable=True)
    return since_s + LOCK_S


async def test_a_delay_is_over_in_time_while_another_node_sweeps(
    fleet: Fleet, diary: Diary
) -> None:
    """It came when the lock ended, or a second after it; each of several, too."""
    handlers = Handlers()

    @handlers.job("note")
    async def note(job: Job) -> None:
        diary.note(job.key, server_s(fleet))

    node = await fleet.node(handlers, lease_ttl_s=60.0)
    until_s = await somebody_sweeps(fleet, node)
    delayed = node.options(delay_s=DELAY_S), node.options(delay_s=3 * DELAY_S)
    for key, options in zip("ab", delayed, strict=True):
        await options.dispatch(note, key)
    await diary.counts(2)
    assert [key for key, _ in diary.entries] == ["a", "b"]
    assert max(at_s for _, at_s in diary.entries) < until_s


async def test_a_retry_is_in_time_while_another_node_sweeps(fleet: Fleet, diary: Diary) -> None:
    handlers = Handlers()

    @handlers.job("again")
    async def again(job: Job) -> None:
        if job.attempt == 1:
            diary.note(await somebody_sweeps(fleet, node))
            raise Retry(after_s=DELAY_S)
        diary.note(server_s(fleet))

    node = await fleet.node(handlers, lease_ttl_s=60.0)
    await node.dispatch(again, "k")
    await diary.counts(2)
    until_s, at_s = diary.entries
    assert at_s < until_s


async def test_who_said_nothing_does_not_sweep_for_others(
    fleet: Fleet, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But what a renewal told, and those are far apart here; one has the lock, and goes on."""
    sweeps: Counter[str] = Counter()
    handlers, real = Handlers(), Lane.sweep

    def counted(lane: Lane, holder: str, **options: Any) -> Any:
        sweeps[holder] += 1
        return real(lane, holder, **options)

    monkeypatch.setattr(Lane, "sweep", counted)

    @handlers.job("note")
    async def note(job: Job) -> None:
        diary.note(job.key)

    nodes = [await fleet.node(handlers, lease_ttl_s=60.0) for _ in range(6)]
    names = [fleet.wiring(node).context.lanes[0].node.name for node in nodes]
    sweeps.clear()
    for i in range(10):
        await nodes[i % 2].options(delay_s=DELAY_S * (i + 1)).dispatch(note, f"k{i}")
    await diary.counts(10)
    assert sum(sweeps[name] for name in names[:2]) >= 2
    assert sum(sweeps[name] > 2 for name in names[2:]) <= 1


def test_an_agenda_that_is_full_takes_every_deadline_for_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sweeper, "STEPS_MAX", 2)
    agenda = Agenda()
    assert agenda.passed(9.0) == -math.inf
    for step in (300, 200, 200):
        agenda.add(step)
    assert agenda.first_s() == pytest.approx(2.0)
    assert agenda.passed(2.5) == pytest.approx(200 * STEP_S + NEAR_S)
    assert agenda.passed(2.5) == -math.inf
    for step in (400, 900):
        agenda.add(step)
    assert agenda.passed(2.5) == pytest.approx(900 * STEP_S + NEAR_S)
    assert agenda.first_s() == pytest.approx(3.0)
