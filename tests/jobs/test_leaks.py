"""A handler whose thread does not end when it was told to: its job goes on, its slot does not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import pytest

from pool import Handlers, Job
from pool.errors import JobCancelled
from pool.events import HandlerLeaked

if TYPE_CHECKING:
    from tests.nodes import Diary, Fleet

pytestmark = pytest.mark.anyio
TTL_S = 1.4  # of which half passes before a key that is taken here is another's


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Yield what handlers wait for; whatever happens, their threads end."""
    gate = threading.Event()
    yield gate
    gate.set()


def made(diary: Diary, gate: threading.Event, *, is_plain: bool = True, **options: Any) -> Handlers:
    """Make a handler that does not end when it first has a thread, or a function that it calls."""
    mine = Handlers()

    def held(job: Job) -> None:
        diary.entries.append(job.node_id)
        if len(diary.entries) == 1:
            gate.wait()

    def plain(job: Job) -> str:
        is_first = not diary.entries
        held(job)
        if is_first:
            diary.entries.append("over")
        return job.node_id

    async def calls(job: Job) -> str:
        is_first = not diary.entries
        try:
            await job.run_blocking(held, job)
            if is_first:
                diary.entries.append("went on")
                await anyio.lowlevel.checkpoint()
        finally:
            if is_first and diary.entries:
                diary.entries.append("over")
        return job.node_id

    way: Callable[[Job], Any] = plain if is_plain else calls
    mine.job("held", backoff_s=0.001, backoff_max_s=0.002, **options)(way)
    return mine


@pytest.mark.parametrize("is_plain", [True, False])
async def test_one_that_was_timed_out_is_left_behind_and_its_job_goes_on_elsewhere(
    fleet: Fleet, diary: Diary, gate: threading.Event, is_plain: bool
) -> None:
    """It never settles later, and its slot is another's only when its thread has ended."""
    handlers = made(diary, gate, is_plain=is_plain, timeout_s=0.1, attempts_max=1000)
    first = await fleet.node(handlers, lease_ttl_s=TTL_S)
    # Its lease shall not end meanwhile: that would be what it was to end for.
    fleet.shorten_stops(first, 0.1)
    ref = await first.dispatch("held", "k")
    leaked = await fleet.seen(HandlerLeaked)
    assert (leaked.key, leaked.handler, leaked.why) == ("k", "held", "timeout")
    (worker,) = fleet.workers(first)
    assert worker.takes(0) == worker.capacity - 1
    handlers = made(diary, gate, is_plain=is_plain, timeout_s=60.0)  # here it need not hurry
    second = await fleet.node(handlers, lease_ttl_s=TTL_S)
    assert await ref.result(timeout_s=20) == second.id
    assert (await ref.status()).attempt > 1
    assert diary.entries == [first.id, second.id]
    gate.set()
    await fleet.until(lambda: worker.takes(0) == worker.capacity)
    went_on = [] if is_plain else ["went on"]  # to its next await
    assert diary.entries == [first.id, second.id, *went_on, "over"]
    assert (await ref.status()).state == "done"
    assert await (await first.dispatch("held", "k2")).result(timeout_s=20)


@pytest.mark.parametrize("is_plain", [True, False])
async def test_one_that_was_stopped_is_left_behind_and_its_stop_confirmed(
    fleet: Fleet, diary: Diary, gate: threading.Event, is_plain: bool
) -> None:
    node = await fleet.node(made(diary, gate, is_plain=is_plain), lease_ttl_s=1.0)
    ref = await node.dispatch("held", "k")
    await fleet.until(lambda: diary.entries == [node.id])
    await ref.stop(timeout_s=20)
    assert (await fleet.seen(HandlerLeaked)).why == "stop"
    with pytest.raises(JobCancelled):
        await ref.result(timeout_s=30)
    gate.set()
    (worker,) = fleet.workers(node)
    await fleet.until(lambda: worker.takes(0) == worker.capacity)


@pytest.mark.parametrize("is_leaked", [False, True])
async def test_one_that_asks_for_a_step_too_late_ends_and_its_slot_is_free(
    fleet: Fleet, diary: Diary, gate: threading.Event, is_leaked: bool
) -> None:
    """It was told to end while it worked: at its next step it hears so, on either loop."""
    mine = Handlers()

    @mine.job("plain")
    def plain(job: Job) -> None:
        diary.entries.append("begun")
        gate.wait()
        try:
            anyio.from_thread.run(job.once, "late", lambda: None)
        finally:
            diary.entries.append("over")

    node = await fleet.node(mine, lease_ttl_s=1.0 if is_leaked else 30.0)
    ref = await node.dispatch("plain", "k")
    await fleet.until(lambda: diary.entries == ["begun"])
    (worker,) = fleet.workers(node)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ref.stop, "stopped", 20)
        if is_leaked:
            await fleet.seen(HandlerLeaked)
        else:
            await fleet.until(lambda: all(run.why for run in worker.runs.values()))
        gate.set()
    await fleet.until(lambda: worker.takes(0) == worker.capacity)
    assert diary.entries == ["begun", "over"]


async def test_one_that_ends_within_its_stop_budget_is_no_leak(
    fleet: Fleet, diary: Diary, gate: threading.Event
) -> None:
    """The limit is of that run alone: whatever follows begins in a thread, and may be late."""
    node = await fleet.node(made(diary, gate, timeout_s=60.0), lease_ttl_s=60.0)
    ref = await node.dispatch("held", "k")
    await fleet.until(lambda: diary.entries == [node.id])
    (worker,) = fleet.workers(node)
    (run,) = worker.runs.values()
    assert run.scope is not None
    run.scope.deadline = anyio.current_time()  # its limit is over; the stop budget of 15 s is not
    await fleet.until(lambda: run.scope is not None and run.scope.cancel_called)
    gate.set()
    assert await ref.result(timeout_s=20) == node.id
    assert (await ref.status()).attempt == 2
    assert fleet.all_seen(HandlerLeaked) == []
