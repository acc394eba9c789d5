"""Waiters: each has a channel of its own, and hears what became of the job, from any node."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pool import Handlers, Job, JobRef, Node
from pool.errors import InvalidOption, JobCancelled, NotRunning, NotStarted
from pool.jobs.client.waiters import Waiters

if TYPE_CHECKING:
    from tests.nodes import Diary, Fleet

pytestmark = pytest.mark.anyio

SOON_S = 30.0  # told at once, on a busy machine


def gated(diary: Diary, release: anyio.Event) -> Handlers:
    handlers = Handlers()

    @handlers.job("gated")
    async def gated_run(job: Job) -> str:
        diary.note(job.key)
        await release.wait()
        return job.key

    return handlers


def seen_from(ref: JobRef[Any], node: Node) -> JobRef[Any]:
    """Return the same job's reference as another node would hold it."""
    return JobRef(ref.key, ref.job_id, ref.handler, node._client)


async def test_started_result_and_status_are_told_to_any_node(fleet: Fleet, diary: Diary) -> None:
    release = anyio.Event()
    await fleet.node(gated(diary, release))
    dispatcher, other = await fleet.node(), await fleet.node()
    ref = await dispatcher.dispatch("gated", "k")
    elsewhere = seen_from(ref, other)
    await elsewhere.started(timeout_s=SOON_S)
    status = await elsewhere.status()
    assert (status.state, status.job_id, status.handler) == ("running", ref.job_id, "gated")
    release.set()
    assert await elsewhere.result(timeout_s=SOON_S) == "k"
    assert await ref.result(timeout_s=SOON_S) == "k"


async def test_twenty_waiters_of_one_job_on_two_nodes_all_hear(fleet: Fleet, diary: Diary) -> None:
    release = anyio.Event()
    await fleet.node(gated(diary, release))
    clients = [await fleet.node(), await fleet.node()]
    ref = await clients[0].dispatch("gated", "k")
    results: list[str] = []

    async def wait(node: Node) -> None:
        results.append(await seen_from(ref, node).result(timeout_s=30))

    async with anyio.create_task_group() as tasks:
        for n in range(20):
            tasks.start_soon(wait, clients[n % 2])
        await diary.counts(1)
        with anyio.fail_after(SOON_S):
            release.set()
            await fleet.until(lambda: len(results) == 20)
    assert results == ["k"] * 20


async def test_waiters_on_twenty_nodes_all_hear(
    fleet: Fleet, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record remembers sixteen nodes; the others ask again, and nobody waits for ever."""
    monkeypatch.setattr("pool.jobs.client.waiters.ASK_AGAIN_S", 0.5)
    asked: Counter[int] = Counter()
    look_again = Waiters.look_again

    def counted(self: Waiters) -> None:
        asked[id(self)] += 1
        look_again(self)

    monkeypatch.setattr(Waiters, "look_again", counted)
    release = anyio.Event()
    await fleet.node(gated(diary, release))
    clients = [await fleet.node() for _ in range(20)]
    ref = await clients[0].dispatch("gated", "k")
    await ref.started(timeout_s=SOON_S)
    results: list[str] = []

    async def wait(node: Node) -> None:
        results.append(await seen_from(ref, node).result(timeout_s=30))

    async with anyio.create_task_group() as tasks:
        for client in clients:
            tasks.start_soon(wait, client)

        def registered() -> bool:
            record = fleet.record("k")
            return record is not None and len(record.waiters) == 16

        await fleet.until(registered)
        # Once would not do: the job may end at any time.
        await fleet.until(lambda: sum(times > 2 for times in asked.values()) == len(clients))
        release.set()
        with anyio.fail_after(SOON_S):
            await fleet.until(lambda: len(results) >= 16)
    assert results == ["k"] * 20


async def test_a_waiter_that_is_cancelled_disturbs_no_other(fleet: Fleet, diary: Diary) -> None:
    release = anyio.Event()
    await fleet.node(gated(diary, release))
    client = await fleet.node()
    ref = await client.dispatch("gated", "k")
    results: list[str] = []

    async def wait() -> None:
        results.append(await ref.result(timeout_s=30))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        with pytest.raises(TimeoutError):
            await ref.result(timeout_s=0.05)
        with anyio.move_on_after(0.05):
            await ref.result()
        release.set()
    assert results == ["k"]
    assert await ref.result(timeout_s=SOON_S) == "k"


async def test_a_time_limit_of_a_waiter_ends_its_waiting_and_not_the_job(
    fleet: Fleet, diary: Diary
) -> None:
    release = anyio.Event()
    node = await fleet.node(gated(diary, release))
    ref = await node.dispatch("gated", "k")
    with pytest.raises(TimeoutError):
        await ref.result(timeout_s=0.02)
    with pytest.raises(TimeoutError):
        await ref.result(timeout_s=0)
    release.set()
    assert await ref.result(timeout_s=SOON_S) == "k"
    with pytest.raises(InvalidOption):
        await ref.result(timeout_s=-1)
    with pytest.raises(InvalidOption):
        await ref.started(timeout_s=float("nan"))


async def test_closing_a_node_wakes_those_who_wait_on_it(fleet: Fleet, diary: Diary) -> None:
    """Nobody is left waiting for a node that hears nothing any more; the job goes on."""
    release = anyio.Event()
    await fleet.node(gated(diary, release))
    client, other = await fleet.node(), await fleet.node()
    ref = await client.dispatch("gated", "k")
    errors: list[Exception] = []

    async def wait() -> None:
        try:
            await ref.result()
        except NotRunning as error:
            errors.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await diary.counts(1)
        with anyio.fail_after(SOON_S):
            await fleet.leave(client)
    assert len(errors) == 1
    with pytest.raises(NotRunning):
        await ref.result(timeout_s=1)
    release.set()
    assert await seen_from(ref, other).result(timeout_s=SOON_S) == "k"


async def test_whoever_comes_after_the_end_is_told_at_once(fleet: Fleet, diary: Diary) -> None:
    release = anyio.Event()
    release.set()
    node = await fleet.node(gated(diary, release))
    client = await fleet.node()
    ref = await node.dispatch("gated", "k")
    assert await ref.result(timeout_s=SOON_S) == "k"
    late = seen_from(ref, client)
    with anyio.fail_after(SOON_S):
        await late.started()
        assert await late.result() == "k"


async def test_started_is_told_before_the_end_and_again_to_latecomers(
    fleet: Fleet, diary: Diary
) -> None:
    release = anyio.Event()
    client = await fleet.node()
    ref = await client.options(allow_unknown=True).dispatch("gated", "k")
    began: list[str] = []

    async def wait() -> None:
        await ref.started(timeout_s=30)
        began.append("started")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        with pytest.raises(NotStarted, match="no worker takes 'gated'"):
            await ref.started(timeout_s=0.05)
        assert began == []
        await fleet.node(gated(diary, release))
    await ref.started(timeout_s=SOON_S)
    assert (await ref.status()).state == "running"
    release.set()


async def test_a_stop_wakes_those_who_wait_for_the_result(fleet: Fleet, diary: Diary) -> None:
    release = anyio.Event()
    await fleet.node(gated(diary, release))
    client, other = await fleet.node(), await fleet.node()
    ref = await client.dispatch("gated", "k")
    causes: list[str] = []

    async def wait() -> None:
        try:
            await ref.result(timeout_s=30)
        except JobCancelled as error:
            causes.append(error.cause)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await diary.counts(1)
        with anyio.fail_after(SOON_S):
            await other.stop("k", cause="by somebody else")
    assert causes == ["by somebody else"]


async def test_a_stop_of_a_job_without_an_owner_wakes_them_too(fleet: Fleet) -> None:
    client, other = await fleet.node(), await fleet.node()
    ref = await client.options(delay_s=60, allow_unknown=True).dispatch("any", "k")
    causes: list[str] = []

    async def wait() -> None:
        try:
            await ref.result(timeout_s=30)
        except JobCancelled as error:
            causes.append(error.cause)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)

        def registered() -> bool:
            record = fleet.record("k")
            return record is not None and len(record.waiters) == 1

        await fleet.until(registered)
        with anyio.fail_after(SOON_S):
            await other.stop("k", cause="by somebody else")
            await fleet.until(lambda: causes)
    assert causes == ["by somebody else"]


async def test_a_reference_stays_good_when_its_worker_changes(fleet: Fleet, diary: Diary) -> None:
    """Waiters are registered with the record: they move with the job."""
    release = anyio.Event()
    first = await fleet.node(gated(diary, release), grace_s=0.0)
    client = await fleet.node()
    ref = await client.dispatch("gated", "k")
    results: list[str] = []

    async def wait() -> None:
        results.append(await ref.result(timeout_s=30))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await diary.counts(1)
        await fleet.node(gated(diary, release))
        await fleet.leave(first)
        await diary.counts(2)
        with anyio.fail_after(SOON_S):
            release.set()
            await fleet.until(lambda: results)
    assert results == ["k"]
