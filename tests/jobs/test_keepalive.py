"""Leases: handlers stop before anyone may take their keys, and go on when nobody did."""

from __future__ import annotations

import random
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.from_thread
import pytest

from pool import Handlers, Job, PoolError
from pool.core.lease import Timing
from pool.errors import StoreLost, StoreUnavailable
from pool.events import (
    DataLost,
    HandlerOverran,
    LeaseLost,
    LeaseResumed,
    LoopHung,
    ReconciliationMended,
    WorkerFenced,
    WorkerReaped,
)
from pool.jobs.fleet.keepalive import KeepAlive, _Due
from pool.jobs.listener import Listener
from pool.jobs.roster import WorkerEntry
from pool.jobs.run import Run
from pool.jobs.wiring import Wiring
from pool.jobs.worker.messages import Missed
from pool.jobs.worker.outbox import Outbox
from pool.names import WORKERS
from pool.redis.commands.lane import Lane
from pool.redis.commands.member import Opening
from pool.testing.proxy import fault_proxy
from tests.nodes import PATIENCE_S
from tests.stopwatch import stopwatch

if TYPE_CHECKING:
    from pool.jobs.worker.worker import Worker
    from pool.redis.scripts import ScriptCall
    from tests.nodes import Diary, Fleet

pytestmark = [pytest.mark.anyio, pytest.mark.one_server]  # a proxy stands before it

TTL_S = 2.0
RENEW_S = TTL_S / 5
LONG_TTL_S = 20.0  # where nobody shall lose a lease, however slow the machine is


def timed(diary: Diary) -> Handlers:
    """Return a service that notes under which epoch and attempt it runs, and when."""
    handlers = Handlers()

    @handlers.service("serve")
    async def serve(job: Job) -> None:
        diary.note("start", job.epoch, job.attempt, anyio.current_time())
        try:
            await anyio.sleep_forever()
        finally:
            diary.note("end", job.epoch, job.attempt, anyio.current_time())

    @handlers.job("echo")
    async def echo(job: Job, value: int) -> int:
        return value

    return handlers


def words(diary: Diary) -> list[str]:
    return [entry[0] for entry in diary.entries]


class Answers(dict[Any, Any]):
    """The newest answers of a node; notes of each renewal that was answered, by its thread."""

    def __init__(self, fleet: Fleet, node: Any) -> None:
        super().__init__()
        self.fleet, self.node = fleet, node
        self.asked_s, self.heard_s = list[float](), list[float]()
        self.are_open: list[bool] = []  # then: all its workers take keys
        fleet.wiring(node)._keepalive._newest = self

    def __setitem__(self, url: Any, answer: Any) -> None:
        super().__setitem__(url, answer)
        if not any(isinstance(reply, PoolError) for reply in answer.replies):
            self.asked_s.append(answer.round.asked_s)
            self.heard_s.append(answer.heard_s)
            self.are_open.append(all(takes(self.fleet, self.node)))

    def longest_s(self) -> float:
        """Return for how long nothing newer was known than what was asked for before."""
        times = zip(self.asked_s, self.heard_s[1:], strict=False)
        return max((heard_s - asked_s for asked_s, heard_s in times), default=0.0)

    async def until_open(self) -> int:
        """Wait until all its workers take keys; return how many renewals that took."""
        before = len(self.are_open)
        await self.fleet.until(lambda: any(self.are_open[before:]))
        return 1 + self.are_open[before:].index(True)


def overdue_s(fleet: Fleet) -> float:
    """Return how long the last lease has been over, by the server's clock."""
    ends: Any = fleet.client.zrange(fleet.names.keepalive, -1, -1, withscores=True)
    now: Any = fleet.client.time()
    return float(now[0] + now[1] / 1e6 - ends[0][1] / 1000)


async def test_handlers_stop_before_the_lease_can_end_and_go_on_as_they_were(
    fleet: Fleet, diary: Diary
) -> None:
    """G-03, resume: an outage shorter than the lease costs no move, no attempt, no crash mark."""
    async with fault_proxy(fleet.url) as proxy:
        node = await fleet.node(timed(diary), url=proxy.url, lease_ttl_s=TTL_S)
        ref = await node.dispatch("serve", "k")
        await ref.started(timeout_s=30)
        with stopwatch() as watch:
            proxy.go_silent()
            await diary.counts(2)
            # The last renewal that was heard was asked for before the silence.
            assert watch.took_s() < TTL_S - Timing(TTL_S).margin_s
        _, epoch, attempt, _ = diary.entries[1]
        lost = fleet.all_seen(LeaseLost)
        assert [event.ttl_s for event in lost] == [TTL_S]
        assert lost[0].silent_s >= TTL_S - Timing(TTL_S).stop_budget_s - 0.1
        await proxy.heal()
        await diary.counts(3)
        assert diary.entries[2][:3] == ("start", epoch, attempt)
        await fleet.seen(LeaseResumed)
        status = await ref.status()
        assert (status.state, status.epoch, status.attempt, status.crashes) == (
            "running",
            epoch,
            1,
            0,
        )
        assert fleet.all_seen(WorkerFenced) == []
        await fleet.leave(node)


async def test_a_service_that_goes_on_after_an_outage_is_told_what_it_had_not_handled(
    fleet: Fleet, diary: Diary
) -> None:
    """G-07: without waiting for another message to be sent."""
    handlers = Handlers()
    holds = True

    @handlers.service("serve")
    async def serve(job: Job) -> None:
        nonlocal holds
        async for message in job.notifications():
            diary.note(message)
            if holds:
                holds = False
                await anyio.sleep_forever()

    async with fault_proxy(fleet.url) as proxy:
        node = await fleet.node(handlers, url=proxy.url, lease_ttl_s=TTL_S)
        ref = await node.dispatch("serve", "k")
        await ref.started(timeout_s=30)
        for message in ("first", "second"):
            await node.notify("k", message)
        await diary.has("first")
        proxy.go_silent()
        await fleet.seen(LeaseLost)
        await proxy.heal()
        await fleet.seen(LeaseResumed)
        await diary.counts(3)
        assert diary.entries == ["first", "first", "second"]
        await fleet.leave(node)


async def test_after_an_outage_of_two_leases_with_nobody_else_everything_is_where_it_was(
    fleet: Fleet, diary: Diary
) -> None:
    """The server was away from all: no lease ends by that time."""
    async with fault_proxy(fleet.url) as proxy:
        nodes = [await fleet.node(timed(diary), url=proxy.url, lease_ttl_s=TTL_S) for _ in range(2)]
        await fleet.knows(nodes[0], 2)
        refs = [await nodes[0].dispatch("serve", f"k{n}") for n in range(6)]
        for ref in refs:
            await ref.started(timeout_s=30)
        before = [(await ref.status()).owner for ref in refs]
        await proxy.refuse()
        await diary.until(lambda _: words(diary).count("end") == 6)
        await fleet.until(lambda: overdue_s(fleet) > TTL_S)
        await proxy.listen()
        await diary.until(lambda _: words(diary).count("start") == 12)
        after = [await ref.status() for ref in refs]
        assert [status.owner for status in after] == before
        assert {(status.attempt, status.crashes) for status in after} == {(1, 0)}
        assert fleet.all_seen(WorkerFenced) == []
        for node in nodes:
            await fleet.leave(node)


async def test_renewals_say_since_when_they_were_not_answered(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G-06: so lease time stands still; the next try follows within TTL/20 or a deadline."""
    told = list[tuple[int, int]]()
    renew = Lane.renew

    def spy(self: Lane, *args: Any, **options: Any) -> ScriptCall:
        told.append(options["tried_ms"])
        return renew(self, *args, **options)

    monkeypatch.setattr(Lane, "renew", spy)
    async with fault_proxy(fleet.url) as proxy:
        node = await fleet.node(url=proxy.url, lanes=1, lease_ttl_s=TTL_S)
        assert {*told} == {(0, 0)}
        await proxy.refuse()
        await fleet.until(lambda: overdue_s(fleet) > 0)
        firsts = [first_ms for first_ms, _ in told if first_ms]
        assert firsts == sorted(firsts)
        assert 500 * TTL_S < firsts[-1] < 2000 * TTL_S
        # A try that is refused at once begins and fails in the same millisecond.
        tried = [first_ms - last_ms for first_ms, last_ms in told if first_ms]
        assert min(tried) >= 0
        assert tried[-1] > 500 * TTL_S
        assert len(firsts) >= 5, "with growing pauses it would be fewer"
        await proxy.listen()
        await fleet.until(lambda: told[-1] == (0, 0))
        await fleet.leave(node)


async def test_a_node_cut_off_alone_loses_its_keys_and_joins_again_under_another_number(
    fleet: Fleet, diary: Diary
) -> None:
    """G-02, G-06: others take over within the lease and a second; its handlers ended before."""
    async with fault_proxy(fleet.url) as proxy:
        node = await fleet.node(timed(diary), url=proxy.url, lease_ttl_s=TTL_S)
        ref = await node.dispatch("serve", "k")
        await ref.started(timeout_s=30)
        other = await fleet.node(timed(diary), lease_ttl_s=TTL_S, settle_delay_s=60.0)
        with stopwatch(TTL_S) as watch:
            proxy.go_silent()
            await diary.counts(3)
            assert watch.took_s() < TTL_S + 1.0
        assert words(diary) == ["start", "end", "start"]
        _, epoch, attempt, _ = diary.entries[2]
        assert epoch > diary.entries[0][1]
        assert attempt == 1
        assert (await fleet.seen(WorkerReaped)).by == other.id
        elsewhere = type(ref)(ref.key, ref.job_id, ref.handler, other._client)
        status = await elsewhere.status()
        assert (status.crashes, status.attempt) == (1, 1)
        await proxy.heal()
        fenced = await fleet.seen(WorkerFenced)
        assert fenced.worker == f"{fenced.worker.rpartition('.')[0]}.1"

        def joined_again() -> bool:
            numbers = {info.node: info.numbers for info in fleet.entries(other)}
            return numbers.get(node.id) == (2,)

        await fleet.until(joined_again)
        assert await (await node.dispatch("echo", "e", 7)).result(timeout_s=30) == 7
        assert words(diary).count("start") == 2
        await fleet.leave(node)


async def test_a_settlement_made_while_the_store_was_away_is_sent_when_it_is_back(
    fleet: Fleet, diary: Diary
) -> None:
    """G-01, G-04: a handler that ended within the stop budget is settled, not run again."""
    handlers = Handlers()
    release = fleet.gate()

    @handlers.job("finish")
    async def finish(job: Job) -> str:
        diary.note("start")
        with anyio.CancelScope(shield=True):
            await release.wait()
        return "made offline"

    async with fault_proxy(fleet.url) as proxy:
        node = await fleet.node(handlers, url=proxy.url, lease_ttl_s=TTL_S)
        ref = await node.dispatch(finish, "k")
        await diary.counts(1)
        await ref.started(timeout_s=30)
        proxy.go_silent()
        await fleet.seen(LeaseLost)
        release.set()
        await proxy.heal()
        assert await ref.result(timeout_s=30) == "made offline"
        assert diary.entries == ["start"]
        await fleet.leave(node)


async def test_calls_while_the_store_is_away_end_within_their_deadline(
    fleet: Fleet, diary: Diary
) -> None:
    """Every call: typed, retryable, and it says if the work may have been done."""
    async with fault_proxy(fleet.url) as proxy:
        node = await fleet.node(timed(diary), url=proxy.url, op_timeout_s=1.0)
        proxy.go_silent()
        for call in (
            lambda: node.dispatch("echo", "k", 1),
            lambda: node.notify("k", 1),
            lambda: node.stop("k"),
            lambda: node.status("k"),
        ):
            with stopwatch() as watch, pytest.raises(StoreUnavailable) as refused:
                await call()
            assert refused.value.retryable
            assert watch.took_s() < 2.0
        await proxy.heal()

        async def works() -> bool:
            try:
                options = node.options(if_exists="attach")
                ref = await options.dispatch("echo", "k", 1)
                return bool(await ref.result(timeout_s=30) == 1)
            except StoreUnavailable:
                return False

        await fleet.until(works)
        await fleet.leave(node)


async def test_services_go_on_without_the_store_when_the_pool_says_so(
    fleet: Fleet, diary: Diary
) -> None:
    """on_store_loss="continue": not even stopped; their commits are fenced all the same."""
    async with fault_proxy(fleet.url) as proxy:
        node = await fleet.node(
            timed(diary), url=proxy.url, lease_ttl_s=TTL_S, on_store_loss="continue"
        )
        ref = await node.dispatch("serve", "k")
        await ref.started(timeout_s=30)
        proxy.go_silent()
        await fleet.seen(LeaseLost)
        await fleet.until(lambda: overdue_s(fleet) > 0.0)
        assert words(diary) == ["start"]
        await proxy.heal()
        await fleet.seen(LeaseResumed)
        assert (await ref.status()).state == "running"
        await ref.stop(timeout_s=30)
        assert words(diary) == ["start", "end"]
        await fleet.leave(node)


async def test_after_a_freeze_only_handlers_that_do_not_end_are_reported(
    fleet: Fleet, diary: Diary
) -> None:
    """Both deadlines have passed when it goes on: nobody had been told to end before."""
    handlers = timed(diary)
    release = fleet.gate()

    @handlers.service("deaf")
    async def deaf(job: Job) -> None:
        diary.note("deaf")
        with anyio.CancelScope(shield=True):
            await release.wait()

    async with fault_proxy(fleet.url) as proxy:
        node = await fleet.node(handlers, url=proxy.url, lease_ttl_s=TTL_S)
        await node.dispatch("deaf", "d")
        for number in range(3):
            await node.dispatch("serve", f"s{number}")
        await diary.counts(4)
        proxy.go_silent()
        threading.Event().wait(1.2 * TTL_S)  # the loop stands still, as in a frozen process
        await fleet.seen(HandlerOverran, key="d")
        assert len(fleet.all_seen(HandlerOverran)) == 1
        await proxy.heal()
        await fleet.seen(LeaseResumed)
        release.set()
        await fleet.leave(node)


async def test_who_stood_still_since_it_was_told_to_end_has_its_time_to_end(
    fleet: Fleet, diary: Diary
) -> None:
    """It thaws for a moment at the first deadline, and again behind the second one."""
    handlers = Handlers()

    @handlers.service("tidy")
    async def tidy(job: Job) -> None:
        diary.note("start")
        try:
            await anyio.sleep_forever()
        finally:
            threading.Event().wait(TTL_S)  # the loop stands still, as in a frozen process
            with anyio.CancelScope(shield=True):
                await anyio.sleep(TTL_S / 10)
            diary.note("ended")

    async with fault_proxy(fleet.url) as proxy:
        node = await fleet.node(handlers, url=proxy.url, lease_ttl_s=TTL_S)
        await node.dispatch("tidy", "t")
        await diary.has("start")
        proxy.go_silent()
        await diary.has("ended")
        assert fleet.all_seen(HandlerOverran) == []
        await proxy.heal()
        await fleet.seen(LeaseResumed)
        await fleet.leave(node)


async def test_a_handler_that_outlives_its_lease_is_reported_and_its_commit_refused(
    fleet: Fleet, diary: Diary
) -> None:
    """G-02, G-03: its residual window; the one who took over settles."""
    handlers = Handlers()
    release = fleet.gate()

    @handlers.job("deaf")
    async def deaf(job: Job) -> str:
        diary.note(job.node_id)
        if job.node_id == first.id:
            with anyio.CancelScope(shield=True):
                await release.wait()
        return job.node_id

    async with fault_proxy(fleet.url) as proxy:
        first = await fleet.node(handlers, url=proxy.url, lease_ttl_s=TTL_S)
        ref = await first.dispatch(deaf, "k")
        await diary.has(first.id)
        await ref.started(timeout_s=30)
        second = await fleet.node(handlers, lease_ttl_s=TTL_S)
        proxy.go_silent()
        overran = await fleet.seen(HandlerOverran)
        assert (overran.key, overran.handler) == ("k", "deaf")
        await diary.has(second.id)
        await proxy.heal()
        elsewhere = type(ref)(ref.key, ref.job_id, ref.handler, second._client)
        assert await elsewhere.result(timeout_s=30) == second.id
        release.set()
        await fleet.seen(WorkerFenced)
        await fleet.leave(first)
        assert await elsewhere.result(timeout_s=30) == second.id


async def test_a_handler_that_blocks_the_loop_is_reported_with_the_place_and_keeps_its_lease(
    fleet: Fleet, diary: Diary
) -> None:
    """on_overrun="report": seen from the thread, while the loop cannot say anything."""
    handlers = Handlers()
    go_on, unblock = anyio.Event(), threading.Event()

    @handlers.job("block")
    async def block_the_loop(job: Job) -> str:
        diary.note("start")
        await go_on.wait()
        unblock.wait(PATIENCE_S)  # what a careless handler does
        return "done"

    def see(event: Any) -> None:
        fleet.events.note(event)
        if isinstance(event, LoopHung) and "block_the_loop" in event.stack:
            unblock.set()

    node = await fleet.node(handlers, lease_ttl_s=LONG_TTL_S, observers=(see,))
    ref = await node.dispatch(block_the_loop, "k")
    go_on.set()
    assert await ref.result(timeout_s=30) == "done"
    await fleet.seen(LoopHung, node=node.id)
    [hung] = [each for each in fleet.all_seen(LoopHung) if "block_the_loop" in each.stack]
    assert 1.0 <= hung.hung_s < PATIENCE_S
    assert diary.entries == ["start"]
    assert fleet.all_seen(WorkerFenced) == []


async def test_a_hang_longer_than_the_ttl_makes_nothing_begin_again(
    fleet: Fleet, diary: Diary
) -> None:
    """on_overrun="report": the thread has renewed meanwhile, and the loop goes by its last answer.

    Else who hangs and then awaits would lose the lease each time, and begin again for ever.
    """
    handlers = Handlers()

    @handlers.job("hangs", attempts_max=1)
    async def hangs(job: Job) -> int:
        diary.note("hangs")
        for _ in range(2):
            time.sleep(1.3 * TTL_S)  # noqa: ASYNC251, TID251 - what a careless handler does
            await anyio.sleep(0.01)
        return job.attempt

    @handlers.service("beside")
    async def beside(job: Job) -> None:
        diary.note("beside")
        await anyio.sleep_forever()

    node = await fleet.node(handlers, lease_ttl_s=TTL_S)
    answers = Answers(fleet, node)
    await node.dispatch("beside", "b")
    await diary.has("beside")
    assert await (await node.dispatch(hangs, "k")).result(timeout_s=30) == 1
    assert fleet.all_seen(LoopHung)
    await fleet.wiring(node)._keepalive.confirm(PATIENCE_S)  # the last of these answers
    timing = Timing(TTL_S)
    # Where the machine stands still the thread may be late, too: then it was lost.
    if answers.longest_s() < timing.ttl_s - timing.margin_s - timing.stop_budget_s:
        assert diary.entries == ["beside", "hangs"]
        assert not fleet.all_seen(LeaseLost)


async def test_what_was_to_start_behind_a_handler_that_outlasted_the_lease_does_not(
    fleet: Fleet, diary: Diary
) -> None:
    """G-02: it had its slot while the lease was good, and its turn comes when that is not."""
    handlers = Handlers()
    begun: list[bool] = []

    async with fault_proxy(fleet.url) as proxy:

        def has_lease() -> bool:
            assert node._wiring is not None
            context = node._wiring.context
            return context.lanes[0].lease.is_good(context.io.clock())

        @handlers.job("block")
        async def block_the_loop(job: Job) -> None:
            begun.append(has_lease())
            if len(begun) == 1:
                # The proxy is of this loop too, so renewals get nowhere meanwhile.
                time.sleep(1.5 * TTL_S)  # noqa: ASYNC251, TID251 - what a careless handler does

        node = await fleet.node(handlers, url=proxy.url, lease_ttl_s=TTL_S)
        client = await fleet.node(lease_ttl_s=TTL_S)
        refs = await client.dispatch_many("block", ["k1", "k2", "k3"])
        for ref in refs:
            assert not isinstance(ref, PoolError)
            await ref.result(timeout_s=20)
    assert all(begun)
    assert len(begun) >= 3


async def test_a_blocking_call_in_a_thread_keeps_nobody_waiting(fleet: Fleet, diary: Diary) -> None:
    """A plain function may block as it likes: leases are renewed, other jobs run."""
    handlers, others_ran = Handlers(), threading.Event()

    @handlers.job("block")
    def block(job: Job) -> str:
        anyio.from_thread.run_sync(diary.note, "start")
        assert others_ran.wait(PATIENCE_S)
        return "done"

    @handlers.job("echo")
    async def echo(job: Job) -> str:
        return "quick"

    node = await fleet.node(handlers, lease_ttl_s=LONG_TTL_S)
    ref = await node.dispatch(block, "k")
    await diary.counts(1)
    assert await (await node.dispatch(echo, "e")).result(timeout_s=30) == "quick"
    assert await fleet.wiring(node)._keepalive.confirm(PATIENCE_S) == set()
    others_ran.set()
    assert await ref.result(timeout_s=30) == "done"
    assert not [hung for hung in fleet.all_seen(LoopHung) if "others_ran" in hung.stack]
    assert fleet.all_seen(LeaseLost) == []


async def test_lost_connections_are_opened_again_without_anybody_noticing(
    fleet: Fleet, diary: Diary
) -> None:
    """F25, F29: all of them at once, several times, under way."""
    async with fault_proxy(fleet.url) as proxy:
        node = await fleet.node(timed(diary), url=proxy.url, lease_ttl_s=LONG_TTL_S)
        service = await node.dispatch("serve", "s")
        await diary.counts(1)
        for round_ in range(5):
            refs = [await node.dispatch("echo", f"k{n}", n) for n in range(10)]
            await proxy.cut()
            assert [await ref.result(timeout_s=30) for ref in refs] == list(range(10)), round_
        assert await fleet.wiring(node)._keepalive.confirm(PATIENCE_S) == set()
        assert words(diary) == ["start"]
        assert (await service.status()).attempt == 1
        assert fleet.all_seen(LeaseLost) == []
        await fleet.leave(node)


async def test_when_the_data_are_lost_everybody_is_told_and_new_work_is_served(
    fleet: Fleet, diary: Diary
) -> None:
    """F35: handlers cancelled, waiters told, and the pool founded anew within two leases."""
    node = await fleet.node(timed(diary), lease_ttl_s=TTL_S)
    ref = await node.dispatch("serve", "k")
    await diary.counts(1)
    errors: list[Exception] = []

    async def wait() -> None:
        try:
            await ref.result(timeout_s=30)
        except StoreLost as error:
            errors.append(error)

    async def works() -> bool:
        try:
            return bool(await (await node.dispatch("echo", "e", 5)).result(timeout_s=30) == 5)
        except StoreLost:
            return False

    with stopwatch() as watch:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await fleet.until(lambda: (record := fleet.record("k")) and record.waiters)
            keys = list(fleet.client.scan_iter(match=f"pool:{{{fleet.pool}*", count=1000))
            watch.restart()
            fleet.client.delete(*keys)
            await fleet.seen(DataLost)
            await diary.counts(2)
        assert words(diary) == ["start", "end"]
        assert len(errors) == 1
        await fleet.until(works)
        assert watch.took_s() < 2 * TTL_S + 1.0
    again = await node.dispatch("serve", "k")
    await again.started(timeout_s=30)
    await again.stop(timeout_s=30)


async def test_a_start_that_was_never_heard_of_is_found_by_reconciliation(
    fleet: Fleet, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G-05: Redis says that we own it, and we know nothing of it."""
    lost: list[str] = []
    route = Wiring._route_starts

    def lose_one(self: Wiring, lane: int, worker: Worker, entries: list[Any]) -> bool:
        if not lost:
            lost.append(worker.id)
            return False  # its position moves on, as if it had been taken
        return route(self, lane, worker, entries)

    monkeypatch.setattr(Wiring, "_route_starts", lose_one)
    node = await fleet.node(timed(diary), lease_ttl_s=TTL_S)
    ref = await node.dispatch("serve", "k")
    mended = await fleet.seen(ReconciliationMended)
    assert (mended.adopted, mended.released, mended.cancelled) == (1, 0, 0)
    await diary.counts(1)
    status = await ref.status()
    assert (status.owner, status.attempt) == (f"{lost[0]}.1", 1)


async def test_a_start_that_is_still_to_be_read_is_found_and_was_not_lost(
    fleet: Fleet, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind an outage reconciliation may be faster than the reader: no bug is told then."""
    node = await fleet.node(timed(diary), lease_ttl_s=TTL_S)
    [worker] = fleet.workers(node)
    handle, held = Listener.handle, list[Any]()
    monkeypatch.setattr(Listener, "handle", lambda _, message: held.append(message))
    await node.dispatch("serve", "k")
    await fleet.until(lambda: held)
    worker._reconcile(0)
    await diary.counts(1)
    await fleet.until(lambda: worker._lanes[0].audit is None)
    monkeypatch.setattr(Listener, "handle", handle)
    for message in held:
        fleet.wiring(node)._listener.handle(message)
    assert await (await node.dispatch("echo", "other", 3)).result(timeout_s=PATIENCE_S) == 3
    await diary.counts(1)
    assert not fleet.all_seen(ReconciliationMended)


async def test_an_acknowledgement_that_the_server_lost_is_sent_again(
    fleet: Fleet, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that had not received it is primary now: what runs is not begun a second time."""
    client, names = fleet.client, fleet.names
    behind: dict[str, Any] = {}
    acknowledge = Outbox.acknowledge

    def noted(self: Outbox, run: Run, began_s: float = 0.0) -> None:
        for key in (names.jobs, names.pending, names.stream(self.target.name)):
            behind.setdefault(key, client.dump(key))
        acknowledge(self, run, began_s)

    monkeypatch.setattr(Outbox, "acknowledge", noted)
    node = await fleet.node(timed(diary), lease_ttl_s=TTL_S)
    ref = await node.dispatch("serve", "k")
    await ref.started(timeout_s=30)
    for key, dump in behind.items():
        client.restore(key, 0, dump, replace=True)
    assert (await ref.status()).state == "pending"

    async def runs_by_the_record() -> bool:
        return (await ref.status()).state == "running"

    await fleet.until(runs_by_the_record)
    assert len(diary.entries) == 1


async def test_a_start_of_before_what_was_settled_last_is_begun_anew_by_who_has_it(
    fleet: Fleet, diary: Diary
) -> None:
    """G-05: a server that went back has the start of a job whose end its worker has forgotten, as
    it does after a while: it would wait for it for ever.
    """
    client, names, mine = fleet.client, fleet.names, Handlers()
    all_there, behind = partial(client.scan_iter, f"{names.prefix}*"), dict[bytes, Any]()

    @mine.job("look")
    async def look(job: Job) -> None:
        if not diary.entries:  # nothing leaves before the handler waits for something
            behind.update((key, client.dump(key)) for key in all_there())
            assert client.zscore(names.pending, "k") is not None
        diary.note(job.id)

    node = await fleet.node(mine, lease_ttl_s=60.0)
    for _ in range(2):
        await (await node.dispatch(look, "k")).result(timeout_s=30)
    with client.pipeline() as at_once:
        at_once.delete(*all_there())
        for key, dump in behind.items():
            at_once.restore(key, 0, dump)
        at_once.execute()
    [worker] = fleet.workers(node)
    worker._memory._drop(("k", diary.entries[0]))
    worker.put(Missed(0))  # as whenever signals may be lost
    await diary.counts(3)
    first, second, third = diary.entries
    assert third == first != second


# --- what is said with each renewal -------------------------------------------------------------


def blocking(seconds: float) -> Handlers:
    """Return a job that blocks its loop, and a quick one that tells where it ran."""
    handlers = Handlers()

    @handlers.job("block")
    async def block(job: Job) -> None:
        time.sleep(seconds)  # noqa: ASYNC251, TID251 - what a careless handler does

    @handlers.job("where")
    async def where(job: Job) -> str:
        return job.node_id

    return handlers


def takes(fleet: Fleet, node: Any) -> list[int | None]:
    """Return how many keys the workers of a node take, as the lane has it; None: it hangs."""
    found: list[int | None] = []
    for worker in fleet.workers(node):
        text: Any = fleet.client.hget(fleet.names.open, worker.id)
        told = Opening.parse(text or b"")
        found.append(told.takes if told is not None else -1)
    return found


async def test_after_dozens_of_short_hangs_a_worker_takes_keys_within_a_period(
    fleet: Fleet,
) -> None:
    """B1: hangs as long as the thread needs to see them, so that it speaks when they are over."""
    node = await fleet.node(blocking(0.0), lease_ttl_s=TTL_S)
    answers, dice = Answers(fleet, node), random.Random(7)
    for _ in range(8):
        time.sleep(dice.uniform(1.0, 1.35))  # noqa: ASYNC251, TID251
        assert await answers.until_open() <= 2  # one may have been under way
    assert fleet.all_seen(LoopHung)
    ref = await node.dispatch("where", "k")
    assert await ref.result(timeout_s=30) == node.id


@pytest.mark.parametrize("how", ["blocks", "raises"])
async def test_nothing_that_an_observer_of_a_hang_does_stops_renewals(
    fleet: Fleet, how: str
) -> None:
    """It was called in the thread that renews: what blocked there ended all leases of the node."""
    called, go_on = threading.Event(), threading.Event()

    def observe(event: Any) -> None:
        if isinstance(event, LoopHung):
            called.set()
            if how == "raises":
                raise KeyboardInterrupt
            go_on.wait(PATIENCE_S)

    node = await fleet.node(blocking(0.0), lease_ttl_s=TTL_S, observers=(observe,))
    try:
        assert called.wait(PATIENCE_S)  # on the loop: it hangs until that has been told
        assert await fleet.wiring(node)._keepalive.confirm(TTL_S / 2) == set()
    finally:
        go_on.set()


async def test_a_slow_observer_of_a_hang_keeps_no_worker_closed(fleet: Fleet) -> None:
    """B1: it is told in a thread, while the loop turns again."""

    def slow(event: Any) -> None:
        if isinstance(event, LoopHung):
            time.sleep(0.5)  # noqa: TID251 - what a careless observer does

    node = await fleet.node(blocking(0.0), lease_ttl_s=TTL_S, observers=(slow, fleet.events.note))
    answers = Answers(fleet, node)
    for _ in range(3):
        time.sleep(1.3)  # noqa: ASYNC251, TID251
        assert await answers.until_open() <= 2


async def test_a_worker_takes_keys_again_though_the_answers_after_a_hang_were_lost(
    fleet: Fleet,
) -> None:
    """B1: there is no call that opens, only the next renewal."""
    async with fault_proxy(fleet.url) as proxy:
        node = await fleet.node(blocking(0.0), url=proxy.url, lease_ttl_s=TTL_S)
        answers = Answers(fleet, node)
        for _ in range(3):
            # The proxy hangs as well: renewals of meanwhile get nowhere, and are cut off after.
            time.sleep(1.3)  # noqa: ASYNC251, TID251
            await proxy.cut()
            assert await answers.until_open() <= 2
        await fleet.leave(node)


async def test_while_its_loop_hangs_a_worker_takes_nothing(fleet: Fleet) -> None:
    """B1: said with every renewal, and seen from another process."""
    node = await fleet.node(blocking(0.0), lease_ttl_s=TTL_S)
    [worker] = fleet.workers(node)
    seen: list[Any] = []

    def look() -> None:
        while not is_over.wait(0.05):
            text: Any = fleet.client.hget(fleet.names.open, worker.id)
            told = Opening.parse(text or b"")
            seen.append(told is not None and told.takes)
            if seen[-1] is None:
                is_over.set()

    is_over, thread = threading.Event(), threading.Thread(target=look)
    thread.start()
    is_over.wait(PATIENCE_S)  # its loop hangs until that has been seen
    is_over.set()
    thread.join()
    assert seen[0]
    assert seen[-1] is None
    await fleet.until(lambda: all(takes(fleet, node)))


@pytest.mark.parametrize("index", ["open", "handlers", "workers", "keepalive"])
async def test_what_an_operator_deletes_is_there_again_two_periods_later(
    fleet: Fleet, index: str
) -> None:
    """B4: what is true for a while is said again and again, not once."""
    node = await fleet.node(blocking(0.0), lease_ttl_s=TTL_S)
    [worker] = fleet.workers(node)
    key = {"workers": fleet.control.map_data(WORKERS)}.get(index) or getattr(fleet.names, index)
    fleet.client.delete(key)

    def is_whole() -> bool:
        target = worker.target(0)
        entry: Any = fleet.client.hget(fleet.control.map_data(WORKERS), f"={worker.id}")
        info = WorkerEntry.parse(entry)
        return (
            (takes(fleet, node)[0] or 0) > 0
            and fleet.client.hexists(fleet.names.handlers, "where")
            and fleet.client.zscore(fleet.names.keepalive, target.name) is not None
            and info is not None
            and info.numbers == (target.number,)
        )

    with stopwatch() as watch:
        await fleet.until(is_whole)
        assert watch.took_s() < 2 * RENEW_S + 0.5
    ref = await node.dispatch("where", "k")
    assert await ref.result(timeout_s=30) == node.id


async def test_a_worker_whose_signals_were_deleted_hears_what_it_was_told_meanwhile(
    fleet: Fleet, diary: Diary
) -> None:
    """G-07: nothing is signalled to a stream that is not there, nor was it ever made again."""
    handlers = Handlers()

    @handlers.service("serve")
    async def serve(job: Job) -> None:
        async for message in job.notifications():
            diary.note(message)

    node = await fleet.node(handlers, lease_ttl_s=TTL_S)
    client = await fleet.node(lease_ttl_s=TTL_S)
    [worker] = fleet.workers(node)
    ref = await client.dispatch("serve", "k")
    await ref.started(timeout_s=30)
    await client.notify("k", "before")
    await diary.has("before")
    fleet.client.delete(fleet.names.signal(worker.target(0).name))
    with stopwatch() as watch:
        await client.notify("k", "meanwhile")
        await diary.has("meanwhile")
        assert watch.took_s() < 2 * RENEW_S + 0.5
        watch.restart()
        await client.notify("k", "after")
        await diary.has("after")
        assert watch.took_s() < RENEW_S


async def test_a_node_whose_signals_were_deleted_hears_of_the_end_of_its_jobs(
    fleet: Fleet,
) -> None:
    handlers = Handlers()
    release = fleet.gate()

    @handlers.job("wait")
    async def wait(job: Job) -> int:
        await release.wait()
        return 7

    await fleet.node(handlers, lease_ttl_s=TTL_S)
    client = await fleet.node(lease_ttl_s=TTL_S)
    ref = await client.dispatch("wait", "k")
    got: list[int] = []

    async def hear() -> None:
        got.append(await ref.result(timeout_s=30))

    with stopwatch() as watch:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hear)
            await ref.started(timeout_s=30)
            watch.restart()
            fleet.client.delete(*fleet.client.keys(fleet.names.signal("n*")))
            release.set()
        assert watch.took_s() < 2 * RENEW_S + 0.5
    assert got == [7]


async def test_an_answer_that_is_there_counts_before_a_lease_is_given_up(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may stand behind the word that the lease is due, in a mailbox that was not read."""
    keepalive = fleet.wiring(await fleet.node(lease_ttl_s=60.0))._keepalive
    done, answer = list[Any](), object()
    monkeypatch.setattr(KeepAlive, "_take_leases", lambda _, taken: done.append(taken))
    monkeypatch.setattr(KeepAlive, "_step", lambda *_: done.append("step"))
    newest: Any = {keepalive.context.url: answer}
    with monkeypatch.context() as patched:
        patched.setattr(keepalive, "_newest", newest)
        keepalive.handle(_Due())
    assert done == [answer, "step"]


async def test_a_node_whose_renewals_fail_does_not_open_though_its_calls_are_answered(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A9: they have a connection of their own; keys would come to it only to be lost."""
    body, confirm = KeepAlive._body, KeepAlive.confirm

    class CutOff:
        def __init__(self, body_io: Any) -> None:
            self._body_io = body_io

        def __getattr__(self, name: str) -> Any:
            return getattr(self._body_io, name)

        async def run(self, calls: list[Any], **_: Any) -> list[StoreUnavailable]:
            return [StoreUnavailable(problem="no descriptor", maybe_done=False) for _ in calls]

    async def cut_off(self: KeepAlive, url: Any, body_io: Any) -> None:
        cut: Any = CutOff(body_io)
        await body(self, url, cut)

    monkeypatch.setattr(KeepAlive, "_body", cut_off)
    monkeypatch.setattr(KeepAlive, "confirm", lambda self, _: confirm(self, 0.2))
    with pytest.raises(StoreUnavailable, match="no lease can be renewed"):
        await fleet.node(Handlers())
