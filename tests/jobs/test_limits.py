"""Run-time limits: each run has its own, whatever one before it left in the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from pool import Handlers, Job
from pool.events import AttemptFailed
from pool.jobs.worker.messages import LeaseSoft
from pool.redis.commands.talk import Noted

if TYPE_CHECKING:
    from tests.nodes import Diary, Fleet


@pytest.mark.anyio
@pytest.mark.parametrize("when", ["before it goes on", "while it runs"])
async def test_the_limit_of_a_run_before_strikes_nobody(
    fleet: Fleet, diary: Diary, when: str
) -> None:
    """C3: a job was ended for its lease's sake and goes on, same epoch; `due` is overdue."""
    mine = Handlers()

    @mine.job("slow", timeout_s=60.0)
    async def slow(job: Job) -> int:
        diary.note(job.epoch)
        if len(diary.entries) == 1:
            await anyio.sleep_forever()
        await struck.wait()
        return job.attempt

    struck = anyio.Event()
    node = await fleet.node(mine)
    ref = await node.dispatch(slow, "k")
    names, [worker] = fleet.names, fleet.workers(node)
    await fleet.until(lambda: fleet.client.zscore(names.due, "k:k"))  # the limit is written

    record = fleet.record("k")
    assert record is not None
    state, pipeline = fleet.wiring(node).context.lanes[0], fleet.wiring(node).context.pipeline
    told = state.lane.intend("k", ref.job_id, record.owner, "t", again_s=60.0, epoch=record.epoch)
    worker.put(LeaseSoft(0))  # it is good all the same: what was ended goes on at once
    if when == "while it runs":
        await diary.counts(2)
    assert await pipeline.call(told) == Noted(ref.job_id)  # as a sweeper would
    await diary.counts(2)
    await fleet.until(lambda: (found := fleet.record("k")) is not None and not found.intent)
    struck.set()
    assert await ref.result(timeout_s=30) == 1
    assert len(set(diary.entries)) == 1  # one epoch
    assert not fleet.all_seen(AttemptFailed)
