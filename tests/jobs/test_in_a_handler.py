"""What a handler has of its node, and what becomes of handlers that wait for each other."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import structlog

from pool import Call, Follower, Handlers, Job
from pool.core.record import Record
from pool.errors import DeadlockRisk, JobParked
from pool.jobs.client.waiters import Waiters
from pool.sync import Client

if TYPE_CHECKING:
    from tests.nodes import Diary, Fleet

# Of two waits that come together one is told when it is asked again.
pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("asks_again")]


async def test_a_handler_dispatches_waits_and_notifies_with_its_node(fleet: Fleet) -> None:
    handlers = Handlers()

    @handlers.job("double")
    async def double(job: Job, number: int) -> int:
        return 2 * number

    @handlers.job("sum")
    async def total(job: Job, *numbers: int) -> list[Any]:
        refs = [await job.node.dispatch(double, f"n-{n}", n) for n in numbers]
        return [job.node_id == job.node.id, sum([await ref.result() for ref in refs])]

    @handlers.job("plain")
    def plain(job: Job) -> int:
        async def work() -> int:
            return await (await job.node.dispatch(double, "n", 4)).result()

        return anyio.from_thread.run(work)

    node = await fleet.node(handlers)
    assert await (await node.dispatch(total, "t", 1, 2, 3)).result(timeout_s=30) == [True, 12]
    assert await (await node.dispatch(plain, "p")).result(timeout_s=30) == 8


def circle(diary: Diary, gates: dict[str, anyio.Event]) -> Handlers:
    """Each job waits for the next one; whoever is told that this is in vain says so."""
    handlers = Handlers()

    @handlers.job("waits", attempts_max=1)
    async def waits(job: Job, key: str) -> str:
        diary.note("began", job.key)
        await gates[job.key].wait()
        ref = await job.node.job(key)
        diary.note("waits", job.key)
        try:
            await ref.result()
        except DeadlockRisk as error:
            diary.note("told", job.key, error.key)
            return f"{job.key} gave way"
        return f"{job.key} after {key}"

    return handlers


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("nodes", [1, 2])
async def test_who_closes_a_circle_of_waits_is_told_and_the_others_go_on(
    fleet: Fleet, diary: Diary, count: int, nodes: int
) -> None:
    """D31: whichever nodes they are on; a wait that is no part of it is left alone."""
    keys = [f"k-{n}" for n in range(count)]
    gates = {key: anyio.Event() for key in (*keys, "apart")}
    handlers = circle(diary, gates)
    members = [await fleet.node(handlers) for _ in range(nodes)]
    refs = []
    for at, key in enumerate(keys):
        refs.append(await members[0].dispatch("waits", key, keys[(at + 1) % count]))
        await diary.has("began", key)
    apart = await members[0].dispatch("waits", "apart", keys[0])
    for key in ("apart", *keys):
        gates[key].set()
        await diary.has("waits", key)
    with anyio.fail_after(30):
        results = [await ref.result() for ref in refs]
        assert await apart.result() == f"apart after {keys[0]}"
    told = [entry[1:] for entry in diary.entries if entry[0] == "told"]
    assert len(told) >= 1  # two waits that come together may both be
    assert {key for key, _ in told} <= set(keys)
    assert sum("gave way" in result for result in results) == len(told)


async def test_handlers_of_two_processes_that_wait_for_each_other_are_told(fleet: Fleet) -> None:
    """D31: one of them gives way, and the other goes on with its result."""
    handlers = Handlers()

    @handlers.job("here")
    async def here(job: Job) -> str:
        ref = await job.node.options(allow_unknown=True).dispatch("there", "t", job.key)
        try:
            return f"here after: {await ref.result()}"
        except DeadlockRisk:
            return "here gave way"

    node = await fleet.node(handlers)
    member = Path(__file__).with_name("waiting_member.py")
    command = [sys.executable, str(member), fleet.pool, fleet.url]
    async with await anyio.open_process(command, stdout=None, stderr=None) as process:
        try:
            ref = await node.dispatch(here, "h")
            said = await ref.result(timeout_s=30)
            assert said in ("here after: there gave way", "here gave way")
            await node.shutdown_pool()
            with anyio.fail_after(30):
                assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()


async def test_a_handler_that_waits_for_what_is_queued_behind_it_is_told(fleet: Fleet) -> None:
    """D31: by its result as by its start."""
    handlers = Handlers()

    @handlers.job("next")
    async def following(job: Job) -> int:
        return 1

    @handlers.job("own", attempts_max=1)
    async def own(job: Job, for_start: bool) -> None:
        ref = await job.node.options(if_exists="queue").dispatch(following, job.key)
        await (ref.started() if for_start else ref.result())

    node = await fleet.node(handlers)
    for number, for_start in enumerate((False, True)):
        with pytest.raises(JobParked) as parked:
            await (await node.dispatch(own, f"k-{number}", for_start)).result(timeout_s=30)
        assert DeadlockRisk.code in parked.value.last_error


async def test_a_plain_handler_that_waits_for_its_own_job_is_told_so(fleet: Fleet) -> None:
    """D31: in its thread, too."""
    handlers = Handlers()

    @handlers.job("own", attempts_max=1)
    def own(job: Job) -> None:
        async def work() -> None:
            await (await job.node.job(job.key)).result()

        anyio.from_thread.run(work)

    node = await fleet.node(handlers)
    with pytest.raises(JobParked) as parked:
        await (await node.dispatch(own, "k")).result(timeout_s=30)
    assert DeadlockRisk.code in parked.value.last_error


async def test_a_circle_further_on_keeps_nobody_busy(
    fleet: Fleet, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was passed on of late is not passed on again: else it would go round for ever."""
    passed: list[Any] = []

    def never(self: Waiters, waiting: Any, record: Record) -> None: ...

    suspect = Waiters._suspect
    monkeypatch.setattr(Waiters, "_suspect", never)  # nobody finds the circle of the two
    gates = {key: anyio.Event() for key in ("k-0", "k-1", "apart")}
    node = await fleet.node(circle(diary, gates))
    for at in range(2):
        await node.dispatch("waits", f"k-{at}", f"k-{1 - at}")
        await diary.has("began", f"k-{at}")
        gates[f"k-{at}"].set()
    await diary.has("waits", "k-1")
    waiters = fleet.wiring(node).waiters
    tell_wait = waiters.tell_wait

    def counted(*args: Any) -> None:
        passed.append(args)
        tell_wait(*args)

    waiters.tell_wait = counted
    await fleet.until(lambda: sum(map(bool, waiters._origins.values())) == 2)
    await fleet.until(lambda: all(w.record for some in waiters._origins.values() for w in some))
    monkeypatch.setattr(Waiters, "_suspect", suspect)
    await node.dispatch("waits", "apart", "k-0")
    gates["apart"].set()
    await fleet.until(lambda: len(passed) >= 3)
    for _ in range(20):
        await anyio.lowlevel.checkpoint()
    apart = [wait for _, _, wait in passed if wait.origin.endswith("apart")]
    assert len(apart) <= 4
    waiters.look_again()  # as it does now and then; now the circle is found
    await fleet.until(lambda: any(entry[0] == "told" for entry in diary.entries))


async def test_log_lines_of_a_handler_say_whose_they_are(fleet: Fleet) -> None:
    """Also from a thread; and nothing that one job binds is there in the next."""
    handlers, lines = Handlers(), list[dict[str, Any]]()

    def note(job: Job) -> None:
        lines.append(structlog.contextvars.get_contextvars())
        structlog.contextvars.bind_contextvars(tenant=job.key)

    @handlers.job("async")
    async def on_loop(job: Job) -> None:
        note(job)
        await anyio.lowlevel.checkpoint()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, note, job)

    @handlers.job("plain")
    def plain(job: Job) -> None:
        note(job)

    node = await fleet.node(handlers, capacity=1)
    ids = list[str]()
    for name, key in [("async", "a-1"), ("plain", "p-1"), ("async", "a-2"), ("plain", "p-2")]:
        ref = await node.dispatch(name, key)
        await ref.result(timeout_s=30)
        ids += [ref.job_id] * (2 if name == "async" else 1)
    assert [line["job_id"] for line in lines] == ids
    assert [line.get("tenant") for line in lines] == [None, "a-1", None, None, "a-2", None]
    for line in lines:
        assert line["pool"] == fleet.pool
        assert line["handler"] == ("async" if line["key"].startswith("a") else "plain")
        assert line["attempt"] == 1
        assert line["epoch"] > 0
    assert structlog.contextvars.get_contextvars() == {}


# --- circles over batches -------------------------------------------------------------------------


def batch_circle(diary: Diary, gates: dict[str, anyio.Event], url: str = "") -> Handlers:
    """Some wait for batches, some for jobs; who is told that this is in vain gives way."""
    handlers = Handlers()

    @handlers.job("gathers", attempts_max=1)
    async def gathers(job: Job, batch_id: str, *members: list[str], reads: bool = False) -> str:
        """Make a batch of jobs that wait for others, and wait for it."""
        async with job.node.batch(batch_id) as batch:
            await batch.add("asks", [Call(key, then) for key, then in members])
        diary.note("began", job.key)
        await gates[job.key].wait()
        try:
            if reads:
                assert [each.end async for each in batch.ref.members()] == ["succeeded"]
            else:
                await batch.ref.result()
        except DeadlockRisk as error:
            diary.note("told", job.key, error.key, error.batch)
            return "gave way"
        return "went on"

    @handlers.job("asks", attempts_max=1)
    async def asks(job: Job, then: str) -> str:
        """Wait for the live job of a key; of "batch:ID" for that."""
        diary.note("began", job.key)
        await gates[job.key].wait()
        _, _, batch_id = then.partition("batch:")
        try:
            if batch_id:
                await job.node.batches.get(batch_id).result()
            else:
                await (await job.node.job(then)).result()
        except DeadlockRisk as error:
            diary.note("told", job.key, error.key, error.batch)
            return "gave way"
        return "went on"

    @handlers.job("blocks", attempts_max=1)
    def blocks(job: Job, batch_id: str, member: str, then: str) -> str:
        """Do what `gathers` does, without async."""
        with Client(job.node.pool, url) as client:
            with client.batch(batch_id) as batch:
                batch.add("asks", [Call(member, then)])
            anyio.from_thread.run_sync(diary.note, "began", job.key)
            anyio.from_thread.run(gates[job.key].wait)
            try:
                batch.ref.result()
            except DeadlockRisk as error:
                anyio.from_thread.run_sync(diary.note, "told", job.key, error.key, error.batch)
                return "gave way"
            return "went on"

    @handlers.job("blocks-on", attempts_max=1)
    def blocks_on_a_job(job: Job, then: str) -> str:
        with Client(job.node.pool, url) as client:
            anyio.from_thread.run_sync(diary.note, "began", job.key)
            anyio.from_thread.run(gates[job.key].wait)
            try:
                client.job(then).result()
            except DeadlockRisk as error:
                anyio.from_thread.run_sync(diary.note, "told", job.key, error.key, error.batch)
                return "gave way"
            return "went on"

    return handlers


def gates_of(*keys: str) -> dict[str, anyio.Event]:
    return {key: anyio.Event() for key in keys}


async def open_gates(diary: Diary, gates: dict[str, anyio.Event]) -> None:
    """Let all wait for each other, once all are there."""
    for key in gates:
        await diary.has("began", key)
    for gate in gates.values():
        gate.set()


@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize("nodes", [1, 2])
async def test_who_waits_for_a_batch_whose_member_waits_for_it_is_told(
    fleet: Fleet, diary: Diary, nodes: int, reads: bool
) -> None:
    """V9: by a result as by members that are read one after another; the member goes on."""
    gates = gates_of("a", "m")
    node, *_ = [await fleet.node(batch_circle(diary, gates)) for _ in range(nodes)]
    ref = await node.dispatch("gathers", "a", "b", ["m", "a"], reads=reads)
    await open_gates(diary, gates)
    with anyio.fail_after(30):
        assert await ref.result() == "gave way"
        assert (await node.batches.get("b").result()).succeeded == 1
    assert [each for each in diary.entries if each[0] == "told"] == [("told", "a", "a", "b")]


@pytest.mark.parametrize("nodes", [1, 2])
async def test_a_longer_circle_over_a_batch_is_told(fleet: Fleet, diary: Diary, nodes: int) -> None:
    """V9: a --> batch --> m --> k-1 --> k-2 --> a; whoever waits beside it is left alone."""
    gates = gates_of("a", "m", "k-1", "k-2", "apart")
    node, *_ = [await fleet.node(batch_circle(diary, gates)) for _ in range(nodes)]
    refs = [await node.dispatch("gathers", "a", "b", ["m", "k-1"])]
    for key, then in (("k-1", "k-2"), ("k-2", "a"), ("apart", "batch:b")):
        refs.append(await node.dispatch("asks", key, then))
    await open_gates(diary, gates)
    with anyio.fail_after(30):
        results = [await ref.result() for ref in refs]
        await node.batches.get("b").result()
    assert "gave way" in results[:3]
    assert results[3] == "went on"


@pytest.mark.parametrize("nodes", [1, 2])
async def test_a_circle_over_several_batches_is_told(
    fleet: Fleet, diary: Diary, nodes: int
) -> None:
    """V9: a --> b --> m --> c --> n --> a, and two batches that wait for each other."""
    gates = gates_of("a", "m", "other", "n", "p", "q", "r", "s")
    node, *_ = [await fleet.node(batch_circle(diary, gates)) for _ in range(nodes)]
    refs = [
        await node.dispatch("gathers", "a", "b", ["m", "batch:c"]),
        await node.dispatch("gathers", "other", "c", ["n", "a"]),
        await node.dispatch("gathers", "p", "d", ["q", "batch:e"]),
        await node.dispatch("gathers", "r", "e", ["s", "batch:d"]),
    ]
    await open_gates(diary, gates)
    with anyio.fail_after(60):
        for ref in refs:
            await ref.result()
        for batch_id in "bcde":
            await node.batches.get(batch_id).result()
    told = {key for word, key, *_ in diary.entries if word == "told"}
    assert told & {"a", "m", "n"}
    assert told & {"q", "s"}
    assert not told & {"p", "r", "other"}


async def test_handlers_without_async_that_wait_for_each_other_are_told(
    fleet: Fleet, diary: Diary
) -> None:
    """V9: their clients are nodes of their own, in the process that runs them."""
    gates = gates_of("a", "m", "c", "d")
    node = await fleet.node(batch_circle(diary, gates, fleet.url))
    refs = [
        await node.dispatch("blocks", "a", "b", "m", "a"),
        await node.dispatch("blocks-on", "c", "d"),
        await node.dispatch("blocks-on", "d", "c"),
    ]
    await open_gates(diary, gates)
    with anyio.fail_after(30):
        results = [await ref.result() for ref in refs]
    assert results[0] == "gave way"
    assert "gave way" in results[1:]


async def test_a_follower_in_a_circle_over_a_batch_is_told(fleet: Fleet, diary: Diary) -> None:
    """V9: what was released waits as any other job does."""
    gates = gates_of("a", "m", "f")
    handlers = batch_circle(diary, gates)

    @handlers.job("first")
    async def first(job: Job) -> None: ...

    node = await fleet.node(handlers)
    then = Follower("asks", "f", "batch:b")
    await (await node.options(then=then).dispatch(first, "first")).result(timeout_s=30)
    ref = await node.dispatch("gathers", "a", "b", ["m", "f"])
    await open_gates(diary, gates)
    with anyio.fail_after(30):
        assert await ref.result() == "went on"
        assert (await node.batches.get("b").result()).succeeded == 1
    told = {key for word, key, *_ in diary.entries if word == "told"}
    assert told & {"m", "f"}
    assert "a" not in told
