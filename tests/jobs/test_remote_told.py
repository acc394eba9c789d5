"""Workers that poll: who hears of what a gateway does for them, and how much it does at once."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pool.core.settlement import Decision, ParkJob
from pool.errors import JobCancelled, JobParked
from pool.events import AttemptFailed, JobEvents, JobSettled, JobStarted
from pool.jobs.remote import visit, workers
from pool.jobs.remote.claims import Failure, Polled
from pool.jobs.remote.ending import Endings
from pool.jobs.remote.visit import Handing, Room
from pool.names import lane_of
from tests.jobs.test_remote import WAIT_S, client, door

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pool.jobs.remote.polls import Desk
    from pool.jobs.remote.visit import Visit
    from tests.nodes import Diary, Fleet

pytestmark = pytest.mark.anyio


# --- listeners ------------------------------------------------------------------------------------


def runs(diary: Diary) -> list[Any]:
    return [each for each in diary.entries if isinstance(each, (JobStarted, JobSettled))]


def told(diary: Diary) -> list[str]:
    return [getattr(each, "outcome", each.event) for each in runs(diary)]


async def test_each_run_is_told_of_by_the_gateway_that_did_it(fleet: Fleet, diary: Diary) -> None:
    node = await fleet.node(observers=[JobEvents(diary.note)])
    mine = await client(node)
    ref = await node.dispatch("add", "k", 1)
    await mine.until(1)
    await mine.door.release(mine.claim, [(mine.held.pop("k"), None)])
    await mine.until(1)
    await mine.door.fail(mine.claim, [Failure(job=mine.held.pop("k"))])
    await mine.until(1)
    job = mine.held["k"]
    assert (await mine.complete(7))[0].outcome == "done"
    [again] = await mine.door.complete(mine.claim, [(job, 7)])
    assert again.outcome == "repeated"
    assert await ref.result(timeout_s=WAIT_S) == 7
    assert told(diary) == [
        *("job.started", "moved", "job.started", "retried", "job.started", "done")
    ]
    first, *_, started, settled = runs(diary)
    assert (first.attempt, first.is_again, started.attempt, started.is_again) == (1, False, 2, True)
    for event in (started, settled):
        assert (event.handler, event.key, event.job_id) == ("add", "k", ref.job_id)
        assert (event.worker, event.epoch, event.attempt) == (mine.claim.name, job.epoch, 2)
    assert started.waited_s == settled.waited_s >= 0
    assert settled.ran_s >= 0
    assert settled.took_s > 0


async def test_of_another_gateways_run_the_store_is_asked_since_when_it_is(
    fleet: Fleet, diary: Diary
) -> None:
    first = await fleet.node()
    other = await fleet.node(observers=[JobEvents(diary.note)])
    mine = await client(first)
    await first.dispatch("add", "k", 1)
    await mine.until(1)
    mine.doors = [await door(other)]
    job = mine.held["k"]
    record = fleet.record("k")
    assert record is not None
    await mine.complete(7)
    [repeated] = await mine.door.complete(mine.claim, [(job, 7)])
    assert repeated.outcome == "repeated"
    [settled] = runs(diary)
    assert (settled.outcome, settled.worker) == ("done", mine.claim.name)
    waited_s = (record.since_ms - record.accepted / 1000) / 1000
    assert settled.waited_s == pytest.approx(max(0.0, waited_s), abs=0.001)
    assert settled.ran_s >= 0


async def test_what_a_leaving_worker_gives_back_has_moved(fleet: Fleet, diary: Diary) -> None:
    node = await fleet.node(observers=[JobEvents(diary.note)])
    mine = await client(node)
    await node.dispatch("add", "k", 1)
    await mine.until(1)
    assert await mine.door.leave(mine.claim) == 1
    assert told(diary) == ["job.started", "moved"]
    other = await client(node)
    await other.until(1)
    await other.complete(1)


async def test_what_fails_as_it_is_handed_out_is_told_as_the_attempt_that_it_is(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await fleet.node()
    mine = await client(node)
    ref = await node.dispatch("add", "k", 1)
    await mine.until(1)
    await mine.door.fail(mine.claim, [Failure(job=mine.held.pop("k"))])

    def cannot(*_: object) -> Decision:
        return ParkJob("malformed payload", "a test")

    monkeypatch.setattr(Handing, "_made", cannot)
    with anyio.fail_after(WAIT_S):
        while fleet.record("k") is not None:
            await mine.poll(wait_s=0.5)
    with pytest.raises(JobParked):
        await ref.result(timeout_s=WAIT_S)
    assert [each.attempt for each in fleet.all_seen(AttemptFailed)] == [1, 2]


# --- who waits ------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["beat", "leave", "leave running"])
async def test_who_stops_what_is_given_back_hears_of_it(fleet: Fleet, lanes: int, way: str) -> None:
    node = await fleet.node(lanes=lanes)
    mine = await client(node)
    lane = lane_of("k", lanes)
    if way == "leave running":
        ref = await node.dispatch("add", "k", 1)
        await mine.until(1)
    else:  # as of a gateway that was killed with its poll open
        await (await door(node)).waiting.leases.say(lane, mine.claim.name, 1)
        ref = await node.dispatch("add", "k", 1)
    waiting = anyio.Event()

    async def wait() -> None:
        waiting.set()
        with pytest.raises(JobCancelled, match="enough"):
            await ref.result(timeout_s=WAIT_S)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        tasks.start_soon(node.stop, "k", "enough")
        await waiting.wait()
        state = node._open_wiring.context.lanes[lane]
        await fleet.until(lambda: _intent(fleet, state.lane.names.jobs))
        await (mine.beat() if way == "beat" else mine.door.leave(mine.claim))


def _intent(fleet: Fleet, jobs: str) -> bool:
    text: Any = fleet.client.hget(jobs, "k")
    return text is None or b"senough" in text


# --- how much at once -----------------------------------------------------------------------------


async def test_all_lanes_together_fill_one_answer(
    fleet: Fleet, lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "Room", partial(Room, left_bytes=1000))
    node = await fleet.node(lanes=lanes)
    for n in range(6):
        await node.options(allow_unknown=True).dispatch("add", f"k{n}", "x" * 600)
    mine, answers = await client(node), list[Polled]()
    with anyio.fail_after(WAIT_S):
        while len(mine.held) < 6:
            answers.append(await mine.poll(8, wait_s=1.0))
    assert {len(each.jobs) for each in answers} <= {0, 1}
    mine.held.clear()  # all answers were lost
    told = await mine.poll(8)
    assert len(told.jobs) == 1
    monkeypatch.undo()
    await mine.until(6)
    await mine.complete(0)


async def test_many_are_handed_out_in_bounded_calls(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visit, "BATCH_MAX", 2)
    node = await fleet.node()
    for n in range(5):
        await node.options(allow_unknown=True).dispatch("add", f"k{n}", n)
    mine, sizes, advance = await client(node), list[int](), Endings.advance

    async def counted(self: Endings, claim: Any, lane: int, edges: Sequence[Any]) -> Any:
        sizes.append(len(edges))
        return await advance(self, claim, lane, edges)

    monkeypatch.setattr(Endings, "advance", counted)
    await mine.until(5)
    assert sum(sizes) == 5
    assert max(sizes) == 2
    monkeypatch.undo()
    await mine.complete(0)


async def test_a_start_that_is_read_late_is_not_handed_out_beside_its_run(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client has not heard of the run, which is handed out again: once."""
    node = await fleet.node()
    mine = await client(node)
    await node.dispatch("add", "k", 1)
    await mine.until(1)
    job, take = mine.held.pop("k"), workers.RemoteWorkers._take
    record = fleet.record("k")
    assert record is not None
    late = visit.start_of("k", record)

    async def after_it(self: workers.RemoteWorkers, visit: Visit, desk: Desk) -> Any:
        desk.bring(0, [late])
        return await take(self, visit, desk)

    monkeypatch.setattr(workers.RemoteWorkers, "_take", after_it)
    told = await mine.poll(8)
    assert [out.job for out in told.jobs] == [job]
    monkeypatch.undo()
    await mine.complete(0)
