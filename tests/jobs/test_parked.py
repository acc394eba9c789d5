"""Dead letters: looked through, mended, made jobs of again, thrown away."""

from __future__ import annotations

import os
import socket
from typing import Any

import anyio
import pytest

from pool import Handlers, Job, Node
from pool.errors import (
    InvalidOption,
    JobExists,
    JobParked,
    NoSuchLetter,
    UnknownHandler,
)
from pool.jobs.client import parked as client
from tests.nodes import Fleet

pytestmark = pytest.mark.anyio


def _handlers(done: list[Any]) -> Handlers:
    handlers = Handlers()

    @handlers.job("mail", attempts_max=2, backoff_s=0.001, backoff_max_s=0.001)
    async def mail(job: Job, to: str, *, size: int = 1) -> str:
        if to == "nobody":
            raise ValueError(f"no such address: {job.attempt}")
        done.append((job.key, to, size))
        return to

    @handlers.service("hold")
    async def hold(job: Job) -> None:
        async for _ in job.notifications():
            pass

    return handlers


async def _parked(fleet: Fleet, keys: list[str]) -> tuple[Node, list[Any], list[Any]]:
    done: list[Any] = []
    node = await fleet.node(_handlers(done))
    refs: list[Any] = [await node.dispatch("mail", key, "nobody", size=7) for key in keys]
    for ref in refs:
        with pytest.raises(JobParked):
            await ref.result(timeout_s=30)
    return node, refs, done


async def test_a_letter_tells_all_that_happened(fleet: Fleet) -> None:
    node, [ref], _ = await _parked(fleet, ["k"])
    [listed] = (await node.parked.list()).jobs
    shown = await node.parked.show("k", ref.job_id)
    for job in (listed, shown):
        assert (job.key, job.job_id, job.handler, job.kind) == ("k", ref.job_id, "mail", "job")
        assert (job.cause, job.attempt) == ("failed", 2)
        assert job.error == "ValueError: no such address: 2"
        assert 0 < job.accepted_ms <= job.started_ms <= job.parked_ms
        assert job.payload_bytes > 0
    assert (listed.history, listed.args) == ((), None)
    assert (shown.args, shown.kwargs) == (("nobody",), {"size": 7})
    assert [(each.number, each.type, each.message) for each in shown.history] == [
        (1, "ValueError", "no such address: 1"),
        (2, "ValueError", "no such address: 2"),
    ]
    assert all("in mail" in each.traceback for each in shown.history)
    assert not any("run.py" in each.traceback for each in shown.history)  # it is the user's alone
    status = await ref.status()
    assert (status.history, status.handler) == (shown.history, "mail")


async def test_a_letter_is_edited_and_replayed_once_however_often_that_is_asked(
    fleet: Fleet,
) -> None:
    node, [ref], done = await _parked(fleet, ["k"])
    await node.parked.edit("k", ref.job_id, "somebody", size=9)
    shown = await node.parked.show("k", ref.job_id)
    assert (shown.args, shown.kwargs, shown.is_edited) == (("somebody",), {"size": 9}, True)
    anew = await node.parked.replay("k", ref.job_id)
    again = await node.parked.replay("k", ref.job_id)
    assert anew.job_id == again.job_id != ref.job_id
    assert await again.result(timeout_s=30) == "somebody"
    assert done == [("k", "somebody", 9)]
    assert await node.parked.count() == 0
    with pytest.raises(NoSuchLetter):
        await node.parked.show("k", ref.job_id)
    with pytest.raises(NoSuchLetter):
        await node.parked.edit("k", ref.job_id)
    with pytest.raises(NoSuchLetter):
        await node.parked.discard("k", ref.job_id)
    with pytest.raises(NoSuchLetter):
        await node.parked.replay("k", "never")


async def test_pages_and_filters_tell_each_letter_once(fleet: Fleet) -> None:
    keys = [f"{letter}{i}" for letter in "ab" for i in range(6)]
    node, refs, _ = await _parked(fleet, keys)
    for count in (1, 5, 12, 100):
        found, cursor = list[str](), ""
        while True:
            page = await node.parked.list(cursor=cursor, count=count)
            assert len(page.jobs) <= count
            found += [job.key for job in page.jobs]
            cursor = page.cursor
            if not cursor:
                break
        assert sorted(found) == keys
    parked = node.parked
    assert await parked.count() == await parked.count(handler="mail") == 12
    assert await parked.count(prefix="a") == await parked.count(prefix="b", cause="failed") == 6
    assert await parked.count(cause="poison") == await parked.count(handler="other") == 0
    assert await parked.count(newer_than_s=3600) == await parked.count(older_than_s=0) == 12
    assert await parked.count(older_than_s=3600) == 0
    for bad in ("x", "9..", "0.x.y", "0"):
        with pytest.raises(InvalidOption):
            await parked.list(cursor=bad)
    assert await parked.discard_all(prefix="a", dry_run=True) == 6
    assert await parked.discard_all(prefix="a") == 6
    await parked.discard("b0", refs[6].job_id)
    assert await parked.count() == 5


async def test_many_are_replayed_and_those_refused_stay(fleet: Fleet) -> None:
    node, refs, done = await _parked(fleet, [f"k{i}" for i in range(5)])
    for ref in refs[1:]:
        await node.parked.edit(ref.key, ref.job_id, ref.key)
    held = await node.dispatch("hold", "k0")
    assert (await node.parked.replay_all(handler="mail", dry_run=True)).count == 5
    assert (await node.parked.replay_all(handler="none")).count == 0
    many = await node.parked.replay_all(handler="mail", rate=1000)
    assert (many.count, many.refused) == (4, 1)
    assert [type(reason) for reason in many.reasons] == [JobExists]
    await fleet.until(lambda: len(done) == 4)
    with pytest.raises(JobExists):
        await node.parked.replay("k0", refs[0].job_id)
    await held.stop(timeout_s=30)
    assert await node.parked.count() == 1


async def test_of_two_who_replay_all_each_counts_its_own(fleet: Fleet) -> None:
    node, refs, _ = await _parked(fleet, [f"k{i}" for i in range(20)])
    other = await fleet.node()
    counts = list[int]()

    async def replay(by: Node) -> None:
        counts.append((await by.parked.replay_all(handler="mail")).count)

    async with anyio.create_task_group() as tasks:
        for by in (node, other):
            tasks.start_soon(replay, by)
    assert sum(counts) == len(refs)


async def test_of_many_that_are_refused_the_first_are_told(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "REFUSED_MAX", 2)
    node, _, _ = await _parked(fleet, ["a", "b", "c"])
    held = [await node.dispatch("hold", key) for key in "abc"]
    many = await node.parked.replay_all()
    assert (many.count, many.refused) == (0, 3)
    assert [type(reason) for reason in many.reasons] == [JobExists, JobExists]
    for ref in held:
        await ref.stop(timeout_s=30)
    assert await node.parked.count() == 3


async def test_a_letter_of_a_handler_that_nobody_has_any_more_stays(fleet: Fleet) -> None:
    """D38."""
    node, [ref], _ = await _parked(fleet, ["k"])
    fleet.client.hdel(fleet.names.handlers, "mail")
    with pytest.raises(UnknownHandler):
        await node.parked.replay("k", ref.job_id)
    assert await node.parked.count() == 1


async def test_a_live_job_tells_which_of_its_attempts_failed_and_why(fleet: Fleet) -> None:
    handlers = Handlers()

    @handlers.job("flaky", attempts_max=20, backoff_s=0.001, backoff_max_s=0.001)
    async def flaky(job: Job) -> str:
        if job.attempt < 12:
            raise ValueError("x" * 9000 + str(job.attempt))
        async for _ in job.notifications():
            break
        return "well"

    node = await fleet.node(handlers)
    ref = await node.dispatch(flaky, "k")

    async def is_at_last() -> bool:
        status = await ref.status()
        return (status.attempt, status.state) == (12, "running")

    await fleet.until(is_at_last)
    status = await ref.status()
    assert [each.number for each in status.history] == list(range(4, 12))
    assert all(len(each.traceback) <= 4000 for each in status.history)
    assert "characters ..." in status.history[0].traceback
    assert status.worker is not None
    assert status.worker.id == node.workers[0].id
    assert (status.worker.host, status.worker.pid) == (socket.gethostname(), os.getpid())
    await node.notify("k", 1)
    assert await ref.result(timeout_s=30) == "well"

    @handlers.job("never", attempts_max=10, backoff_s=0.001, backoff_max_s=0.001)
    async def never(job: Job) -> None:
        raise ValueError(job.attempt)

    parked = await (await fleet.node(handlers)).dispatch(never, "k2")
    with pytest.raises(JobParked):
        await parked.result(timeout_s=30)
    assert [each.number for each in (await parked.status()).history] == list(range(3, 11))
    assert not fleet.client.exists(fleet.names.attempts)


async def test_what_waits_says_until_when(fleet: Fleet) -> None:
    handlers = _handlers([])
    node = await fleet.node(handlers)
    ref = await node.options(delay_s=60).dispatch("mail", "k", "me")
    status = await ref.status()
    now_ms = int(fleet.client.time()[0]) * 1000
    assert now_ms < status.waits_until_ms <= now_ms + 62_000
    assert status.why


async def test_letters_too_old_or_too_many_go_the_oldest_first(fleet: Fleet) -> None:
    """Retention by age and by number is enforced without any new letter."""
    done: list[Any] = []
    node = await fleet.node(_handlers(done), parked_max=3, parked_ttl_s=3600.0)
    refs = []
    for i in range(6):
        refs.append(await node.dispatch("mail", f"k{i}", "nobody"))
        with pytest.raises(JobParked):
            await refs[-1].result(timeout_s=30)
    await fleet.until(lambda: fleet.client.zcard(fleet.names.parked) == 3)
    assert {job.key for job in (await node.parked.list()).jobs} == {"k3", "k4", "k5"}
    fleet.client.zadd(fleet.names.parked, {f"{refs[-1].job_id} k5": 1})
    await fleet.until(lambda: fleet.client.zcard(fleet.names.parked) == 2)


async def test_results_are_kept_for_an_hour_while_there_is_room(fleet: Fleet) -> None:
    """What returned something, or failed, is kept long; None, and what is too much, is not."""
    handlers = Handlers()

    @handlers.job("give", attempts_max=1)
    async def give(job: Job, size: Any) -> str | None:
        return None if size is None else "x" * size

    @handlers.job("keep", retention_s=7200)
    async def keep(job: Job) -> None:
        pass

    node = await fleet.node(handlers, results_bytes_max=2000)
    refs = [
        await node.dispatch("give", "long", 100),
        await node.dispatch("give", "none", None),
        await node.dispatch("keep", "kept"),
        await node.options(retention_s=600).dispatch("give", "asked", None),
        await node.dispatch("give", "failed", {}),
    ]
    for ref in refs[:4]:
        await ref.result(timeout_s=30)
    with pytest.raises(JobParked):
        await refs[4].result(timeout_s=30)
    much = await node.dispatch("give", "much", 3000)
    await much.result(timeout_s=30)
    now_s = fleet.client.time()[0]
    found: Any = fleet.client.zrange(fleet.names.kept, 0, -1, withscores=True)
    kept = {
        line.split(" ")[2]: until_ms / 1000 - now_s
        for text, until_ms in found
        for line in text.decode().split("\n")
    }
    assert {key: round(left_s, -1) for key, left_s in kept.items()} == {
        "long": 3600,
        "none": 30,
        "kept": 7200,
        "asked": 600,
        "failed": 3600,
        "much": 30,
    }
    sizes = [int(line.split(" ")[0]) for text, _ in found for line in text.decode().split("\n")]
    assert int(fleet.client.hget(fleet.names.lane, "results") or 0) == sum(sizes)
