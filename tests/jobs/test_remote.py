"""Workers that poll, by the Python calls of a gateway: what their clients and users see."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import attrs
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

from pool import Handlers, Node
from pool.core.record import Progress
from pool.errors import (
    ClaimRefused,
    ConfigError,
    DuplicateHandler,
    InvalidOption,
    JobCancelled,
    JobParked,
    PayloadEncodingError,
    PayloadTooLarge,
    WorkerGone,
    WrongClaim,
)
from pool.jobs.fleet.sweeper import Sweeper
from pool.jobs.remote.claims import (
    Beat,
    EndedJob,
    Failure,
    HandlerOffer,
    JobClaim,
    Polled,
    WorkerClaim,
)
from pool.jobs.roster import REMOTE
from pool.names import Names, lane_of
from pool.ops import inspect, members
from pool.ops.cli.doctor import diagnose
from pool.ops.cli.why import fetch
from pool.redis.url import Url

if TYPE_CHECKING:
    from pool.jobs.remote.workers import RemoteWorkers
    from tests.nodes import Fleet

pytestmark = pytest.mark.anyio

WAIT_S = 30.0


async def door(node: Node) -> RemoteWorkers:
    return await node._open_wiring.remote_workers()


@attrs.define(eq=False)
class Client:
    """A client in another language, but for the language: it keeps what it was told, no more."""

    claim: WorkerClaim
    doors: list[RemoteWorkers]
    held: dict[str, JobClaim] = attrs.field(factory=dict)
    turn: int = 0

    @property
    def door(self) -> RemoteWorkers:
        """The next gateway: they serve it in turn."""
        self.turn += 1
        return self.doors[self.turn % len(self.doors)]

    async def poll(self, jobs_max: int = 1, wait_s: float = WAIT_S) -> Polled:
        told = await self.door.poll(
            self.claim, list(self.held.values()), jobs_max=jobs_max, wait_s=wait_s
        )
        return self._heard(told)

    async def until(self, jobs: int, jobs_max: int = 8) -> None:
        with anyio.fail_after(WAIT_S):
            while len(self.held) < jobs:
                await self.poll(jobs_max, wait_s=1.0)

    async def beat(self, *beats: Beat) -> Polled:
        held = beats or [Beat(job) for job in self.held.values()]
        return self._heard(await self.door.heartbeat(self.claim, held))

    async def complete(self, value: Any, *keys: str) -> list[EndedJob]:
        items = [(self.held[key], value) for key in keys or self.held]
        told = await self.door.complete(self.claim, items)
        for each in told:
            self.held.pop(each.job.key, None)
        return told

    def _heard(self, told: Polled) -> Polled:
        for out in told.jobs:
            assert self.held.get(out.job.key, out.job) == out.job
            self.held[out.job.key] = out.job
        for lost in told.lost:
            self.held.pop(lost.job.key, None)
        assert len(self.held) <= self.claim.capacity
        return told


OFFERS = (
    HandlerOffer.of("add", attempts_max=2, backoff_s=0.01, backoff_max_s=0.02),
    HandlerOffer.of("short", timeout_s=0.3, attempts_max=1),
    HandlerOffer.of("mute", progress_timeout_s=0.3, attempts_max=1),
    HandlerOffer.of("serve", "service", backoff_s=0.01),
)


async def client(*nodes: Node, capacity: int = 8, **about: Any) -> Client:
    doors = [await door(node) for node in nodes]
    told = await doors[0].register(OFFERS, capacity=capacity, host="elsewhere", pid=17, **about)
    assert 0 < told.heartbeat_s < told.expires_in_s
    return Client(told.claim, doors)


# --- a life ---------------------------------------------------------------------------------------


async def test_jobs_are_handed_out_and_settled_by_two_gateways_in_turn(
    fleet: Fleet, lanes: int
) -> None:
    first = await fleet.node(lanes=lanes)
    other = await fleet.node(lanes=lanes)
    mine = await client(first, other)
    refs = [await other.dispatch("add", f"k{n}", n, by=1) for n in range(20)]
    results = dict[str, int]()
    with anyio.fail_after(WAIT_S):
        while len(results) < len(refs):
            told = await mine.poll(8, wait_s=1.0)
            for out in told.jobs:
                results[out.job.key] = out.args[0] + out.kwargs["by"]
                ended = await mine.complete(results[out.job.key], out.job.key)
                assert [each.outcome for each in ended] == ["done"]
    assert [await ref.result(timeout_s=WAIT_S) for ref in refs] == list(range(1, 21))
    assert await mine.door.leave(mine.claim) == 0


async def test_an_open_poll_is_answered_by_a_dispatch(fleet: Fleet, lanes: int) -> None:
    node = await fleet.node(lanes=lanes)
    mine = await client(node)
    told = list[Polled]()
    async with anyio.create_task_group() as tasks:

        async def poll() -> None:
            told.append(await mine.poll())

        tasks.start_soon(poll)
        await opened(fleet, mine, lanes)
        await node.dispatch("add", "k", 1)
    assert [out.job.key for out in told[0].jobs] == ["k"]
    assert not any(takes(fleet, mine, lane) for lane in range(lanes))  # only while it is open
    await mine.complete(2)


async def test_any_gateway_opens_whom_another_has_closed(fleet: Fleet, lanes: int) -> None:
    """However many calls that one has made before: neither counts its own."""
    first = await fleet.node(lanes=lanes)
    other = await fleet.node(lanes=lanes)
    mine = await client(first)
    for _ in range(20):
        await mine.poll(wait_s=0.0)
    mine.doors = [await door(other)]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(mine.poll)
        await opened(fleet, mine, lanes)
        tasks.cancel_scope.cancel()
    mine.doors = [await door(first)]
    await mine.poll(wait_s=0.0)
    assert not any(takes(fleet, mine, lane) for lane in range(lanes))


async def test_a_poll_that_holds_nothing_ends_when_jobs_were_handed_out_elsewhere(
    fleet: Fleet, lanes: int
) -> None:
    """Or its gateway would renew them though their client is gone."""
    first = await fleet.node(lanes=lanes, lease_ttl_s=1.0)
    other = await fleet.node(lanes=lanes, lease_ttl_s=1.0)
    mine = await client(first)
    polls, answers = (await door(first)).waiting, list[Polled]()

    async def poll() -> None:
        answers.append(await (await door(first)).poll(mine.claim, wait_s=WAIT_S))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(poll)
        await opened(fleet, mine, lanes)
        del polls._followed[mine.claim.id]  # it reads nothing of it any more
        polls._follow()
        mine.doors = [await door(other)]
        await other.dispatch("add", "k", 1)
        await mine.until(1)
        await fleet.until(lambda: answers, within_s=WAIT_S / 2)
    assert [out.job for out in answers[0].jobs] == [mine.held["k"]]  # or its client never hears
    await mine.complete(0)


async def opened(fleet: Fleet, mine: Client, lanes: int) -> None:
    """Wait until it takes keys in each lane."""
    await fleet.until(lambda: all(takes(fleet, mine, lane) for lane in range(lanes)))


def takes(fleet: Fleet, mine: Client, lane: int) -> int:
    text: Any = fleet.client.hget(Names(fleet.pool, lane).open, mine.claim.id)
    return int(text.split(b"|")[1]) if text else 0


async def test_a_backlog_is_pulled_and_never_more_than_it_has_room_for(
    fleet: Fleet, lanes: int
) -> None:
    node = await fleet.node(lanes=lanes)
    dispatching = node.options(allow_unknown=True)
    keys = {f"k{n}" for n in range(24)}
    for key in keys:
        await dispatching.dispatch("add", key)
    mine, done = await client(node, capacity=3), set[str]()
    with anyio.fail_after(WAIT_S):
        while done < keys:
            await mine.poll(3, wait_s=1.0)
            assert len(mine.held) <= 3
            done |= mine.held.keys()
            await mine.complete(None)
    assert done == keys


# --- lost answers, gateways that die --------------------------------------------------------------


async def test_after_a_lost_answer_the_next_poll_brings_the_same_claims(
    fleet: Fleet, lanes: int
) -> None:
    first = await fleet.node(lanes=lanes)
    other = await fleet.node(lanes=lanes)
    mine = await client(first, other)
    for n in range(6):
        await first.dispatch("add", f"k{n}", n)
    await mine.until(6)
    claims, mine.held = dict(mine.held), {}
    big = "x" * 3000  # kept apart, and not in the stream
    await first.dispatch("add", "big", big)
    await mine.until(7)
    assert {key: mine.held[key] for key in claims} == claims
    again = await mine.door.poll(mine.claim, [], jobs_max=8)
    assert {out.job.key: out.args for out in again.jobs}["big"] == (big,)
    assert {out.job for out in again.jobs} == set(mine.held.values())
    await mine.complete(0)


async def test_a_gateway_that_is_gone_with_its_poll_open_loses_nothing(
    fleet: Fleet, lanes: int
) -> None:
    """What is granted then is handed out by the other one."""
    first = await fleet.node(lanes=lanes)
    other = await fleet.node(lanes=lanes)
    mine = await client(first)
    leases = (await door(first)).waiting.leases
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(mine.poll)
        await opened(fleet, mine, lanes)
        leases.is_over = lambda: True  # it says nothing more, as one that was killed
        tasks.cancel_scope.cancel()
    assert any(takes(fleet, mine, lane) for lane in range(lanes))  # nobody has closed it
    for n in range(4):
        await other.dispatch("add", f"k{n}", n)
    mine.doors = [await door(other)]
    await mine.until(4)
    assert [each.outcome for each in await mine.complete(1)] == ["done"] * 4


async def line(lines: BufferedByteReceiveStream) -> str:
    return (await lines.receive_until(b"\n", 10_000)).decode()


@pytest.mark.parametrize("is_late", [False, True], ids=["before", "after"])
async def test_a_gateway_is_killed_before_or_after_it_handed_a_job_out(
    fleet: Fleet, anyio_backend_name: str, is_late: bool
) -> None:
    """By SIGKILL: another one hands the same out, once, and settles it."""
    node = await fleet.node()
    where = [str(Path(__file__).with_name("gateway_member.py")), fleet.pool, fleet.url]
    gateway = await anyio.open_process([sys.executable, *where, anyio_backend_name])
    handed: list[JobClaim] = []
    try:
        assert gateway.stdout is not None
        lines = BufferedByteReceiveStream(gateway.stdout)
        with anyio.fail_after(WAIT_S):
            mine = Client(WorkerClaim.parse(await line(lines)), [await door(node)])
            await opened(fleet, mine, 1)
            if is_late:
                await node.dispatch("add", "k", 1)
                handed.append(JobClaim.parse(await line(lines)))
    finally:
        gateway.kill()
        await gateway.wait()
    if not is_late:
        await node.dispatch("add", "k", 1)
    told = await mine.poll()
    assert [out.job.key for out in told.jobs] == ["k"]
    assert [out.job for out in told.jobs] == (handed or [told.jobs[0].job])
    ref = await node.job("k")
    await mine.complete(7)
    assert await ref.result(timeout_s=WAIT_S) == 7
    await mine.door.leave(mine.claim)


async def test_a_worker_that_is_not_heard_any_more_loses_its_jobs_to_others(
    fleet: Fleet, lanes: int
) -> None:
    node = await fleet.node(lanes=lanes, lease_ttl_s=1.0)
    dead = await client(node)
    ref = await node.dispatch("add", "k", 1)
    await dead.until(1)
    late = dead.held["k"]
    mine = await client(node)
    await mine.until(1)
    assert mine.held["k"].epoch > late.epoch
    [refused] = await dead.complete(1)
    assert isinstance(refused.error, ClaimRefused)
    assert refused.error.reason == "expired"
    with pytest.raises(WorkerGone):
        await dead.door.poll(dead.claim, [late])
    with pytest.raises(WorkerGone):
        await dead.beat(Beat(late))
    await mine.complete(2)
    assert await ref.result(timeout_s=WAIT_S) == 2
    [repeated] = (
        await mine.door.complete(mine.claim, [(late, 3)])
        if late.worker == mine.claim.id
        else [None]
    )
    assert repeated is None
    await fleet.until(lambda: dead.claim.id not in {each.id for each in node.workers})


async def test_beats_keep_a_long_job_and_polls_keep_an_idle_worker(fleet: Fleet) -> None:
    """Beyond the lease that they had: each has one that begins later than that has ended."""
    node = await fleet.node()
    mine, idle = await client(node), await client(node, label="idle")
    await node.dispatch("add", "k", 1)
    with anyio.fail_after(WAIT_S):
        while not (mine.held or idle.held):
            await mine.poll(wait_s=0.1)
            await idle.poll(wait_s=0.1)
    holds, other = (mine, idle) if mine.held else (idle, mine)
    ttl_s = fleet.settings.lease_ttl_s
    assert ttl_s is not None

    def ends() -> float:
        both = [mine.claim.name, idle.claim.name]
        return min(fleet.client.zscore(fleet.names.keepalive, name) or 0.0 for name in both)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other.poll, 1, WAIT_S)
        until = ends() + 1000 * ttl_s
        while ends() < until:
            told = await holds.beat()
            assert not told.lost
            assert 0 < told.expires_in_s < ttl_s  # never beyond the lease
            await anyio.sleep(told.heartbeat_s / 4)
        tasks.cancel_scope.cancel()
    assert [each.outcome for each in await holds.complete(1)] == ["done"]
    assert not (await other.beat()).lost


async def test_a_beat_gives_back_what_was_granted_and_no_poll_waits_for(
    fleet: Fleet, lanes: int
) -> None:
    """As of a gateway that was killed with its poll open."""
    node = await fleet.node(lanes=lanes)
    mine = await client(node)
    leases, lane = (await door(node)).waiting.leases, lane_of("k", lanes)
    await leases.say(lane, mine.claim.name, 1)
    await node.dispatch("add", "k", 1)
    assert fleet.client.xlen(Names(fleet.pool, lane).stream(mine.claim.name)) == 1
    other, told = await client(node), Polled(heartbeat_s=0, expires_in_s=0)
    await mine.beat()
    with anyio.fail_after(WAIT_S):
        while not told.jobs:
            told = await other.poll()
    assert not told.jobs[0].is_recovered  # as it would be of a worker that died
    await other.complete(0)


async def test_the_later_of_two_polls_takes_over(fleet: Fleet, lanes: int) -> None:
    node = await fleet.node(lanes=lanes)
    mine = await client(node)
    remote = await door(node)
    answers = list[Polled]()

    async def poll() -> None:
        answers.append(await remote.poll(mine.claim, wait_s=WAIT_S))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(poll)
        await opened(fleet, mine, lanes)
        tasks.start_soon(poll)
        await fleet.until(lambda: len(answers) == 1)
        assert not answers[0].jobs
        await opened(fleet, mine, lanes)
        await node.dispatch("add", "k", 1)
    assert [out.job.key for out in answers[1].jobs] == ["k"]
    await remote.complete(mine.claim, [(answers[1].jobs[0].job, 0)])


async def test_a_poll_that_is_cancelled_closes_its_worker(fleet: Fleet, lanes: int) -> None:
    node = await fleet.node(lanes=lanes)
    mine = await client(node)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(mine.poll)
        await opened(fleet, mine, lanes)
        tasks.cancel_scope.cancel()
    await fleet.until(lambda: not any(takes(fleet, mine, lane) for lane in range(lanes)))
    for lane in range(lanes):  # and it is here, closed
        assert fleet.client.hexists(Names(fleet.pool, lane).open, mine.claim.id)


async def test_who_may_have_killed_its_worker_is_handed_out_alone(fleet: Fleet, lanes: int) -> None:
    node = await fleet.node(lanes=lanes, lease_ttl_s=1.0)
    dead = await client(node)
    for n in range(3):
        await node.dispatch("add", f"k{n}", n)
    await dead.until(3)
    dead.held.clear()
    mine, answers = await client(node), list[set[str]]()
    with anyio.fail_after(WAIT_S):
        while len(mine.held) < 3:
            told = await mine.poll(8, wait_s=0.2)
            if told.jobs:
                answers.append({out.job.key for out in told.jobs})
            assert all(out.is_recovered for out in told.jobs)
    assert [len(keys) for keys in answers] == [1, 1, 1]
    await mine.complete(0)


async def test_of_two_claims_of_one_key_the_former_is_lost(fleet: Fleet) -> None:
    node = await fleet.node()
    mine = await client(node)
    await node.dispatch("add", "k", 1)
    await mine.until(1)
    former = mine.held.pop("k")
    await mine.door.release(mine.claim, [(former, None)])
    await mine.until(1)
    later = mine.held["k"]
    assert later.epoch > former.epoch
    for held in ([later, former], [former, later]):
        told = await mine.door.poll(mine.claim, held, wait_s=WAIT_S)
        assert [(each.job, each.reason) for each in told.lost] == [(former, "moved")]
        assert not told.jobs
    await mine.complete(0)


# --- ends -----------------------------------------------------------------------------------------


async def test_failures_are_retried_and_then_parked(fleet: Fleet) -> None:
    node = await fleet.node()
    mine = await client(node)
    ref = await node.dispatch("add", "k", 1)
    await mine.until(1)
    first = Failure(job=mine.held.pop("k"), type="ValueError", message="no", traceback="line 1")
    [ended] = await mine.door.fail(mine.claim, [first])
    assert ended.outcome == "retried"
    [again] = await mine.door.fail(mine.claim, [first])
    assert again.outcome == "repeated"
    await mine.until(1)
    assert mine.held["k"].attempt == 2
    [ended] = await mine.door.fail(mine.claim, [Failure(job=mine.held.pop("k"), message="again")])
    assert ended.outcome == "parked"
    with pytest.raises(JobParked) as told:
        await ref.result(timeout_s=WAIT_S)
    assert told.value.last_error == "Error: again"
    history = (await node.parked.show("k", ref.job_id)).history
    assert [(each.type, each.message) for each in history] == [
        ("ValueError", "no"),
        ("Error", "again"),
    ]


async def test_what_must_not_be_retried_is_parked_at_once_and_a_delay_is_kept(
    fleet: Fleet,
) -> None:
    node = await fleet.node()
    mine = await client(node)
    await node.dispatch("add", "a", 1)
    await node.dispatch("add", "b", 1)
    await mine.until(2)
    told = await mine.door.fail(
        mine.claim,
        [
            Failure(job=mine.held["a"], may_retry=False),
            Failure(job=mine.held["b"], delay_s=30.0),
        ],
    )
    assert [(each.outcome, each.in_s) for each in told] == [("parked", 0.0), ("retried", 30.0)]


async def test_a_repeated_end_is_told_its_own_outcome_and_anothers_is_refused(
    fleet: Fleet, lanes: int
) -> None:
    first = await fleet.node(lanes=lanes)
    other = await fleet.node(lanes=lanes)
    mine = await client(first, other)
    ref = await first.dispatch("add", "k", 1)
    await mine.until(1)
    items = [(mine.held["k"], {"sum": 1})]
    assert (await mine.door.complete(mine.claim, items))[0].outcome == "done"
    [again] = await mine.door.complete(mine.claim, [(mine.held["k"], "another")])
    assert again.outcome == "repeated"
    assert await ref.result(timeout_s=WAIT_S) == {"sum": 1}
    mine.held.clear()
    await first.dispatch("add", "m", 1)
    await mine.until(1)
    assert (await mine.door.release(mine.claim, [(mine.held["m"], {"at": 7})]))[
        0
    ].outcome == "released"
    [late] = await mine.door.complete(mine.claim, [(mine.held.pop("m"), 1)])
    assert isinstance(late.error, ClaimRefused)
    assert late.error.reason == "moved"
    told = await mine.poll()
    assert [(out.job.attempt, out.state) for out in told.jobs] == [(1, {"at": 7})]
    await mine.complete(0)


async def test_a_result_that_cannot_be_one_changes_nothing(fleet: Fleet) -> None:
    node = await fleet.node(result_bytes_max=1000)
    mine = await client(node)
    ref = await node.dispatch("add", "k", 1)
    await mine.until(1)
    job = mine.held["k"]
    for value, error in ((float("nan"), PayloadEncodingError), ("x" * 2000, PayloadTooLarge)):
        [ended] = await mine.door.complete(mine.claim, [(job, value)])
        assert type(ended.error) is error
    assert (await mine.door.complete(mine.claim, [(job, b"bytes")]))[0].outcome == "done"
    assert await ref.result(timeout_s=WAIT_S) == b"bytes"


@pytest.mark.parametrize("handler", ["short", "mute"])
async def test_a_limit_is_told_and_enforced(
    fleet: Fleet, handler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep, is_told = Sweeper._sweep, anyio.Event()

    async def swept(self: Sweeper, lane: int) -> None:
        await is_told.wait()  # with a beat, which may be late
        await sweep(self, lane)

    monkeypatch.setattr(Sweeper, "_sweep", swept)
    monkeypatch.setattr("pool.core.lease.RENEW_MAX_S", 0.2)
    node = await fleet.node(lease_ttl_s=10.0)
    fleet.shorten_stops(node, 0.25)
    mine = await client(node)
    ref = await node.dispatch(handler, "k")
    told = await mine.poll()
    assert told.jobs[0].timeout_s == (0.3 if handler == "short" else None)
    late = mine.held["k"]
    stops, lost = set[str](), list[str]()
    with anyio.fail_after(WAIT_S):
        while mine.held:
            told = await mine.beat()
            stops |= {each.reason for each in told.stop}
            lost += [each.reason for each in told.lost]
            if stops:
                is_told.set()
            await anyio.sleep(0.05)
    assert stops == {"timeout"}
    assert lost == ["timed out"] or lost == ["ended: parked"]
    [refused] = await mine.door.complete(mine.claim, [(late, 1)])
    assert isinstance(refused.error, ClaimRefused)
    with pytest.raises(JobParked, match="ran longer" if handler == "short" else "no progress"):
        await ref.result(timeout_s=WAIT_S)


async def test_progress_is_given_more_time_and_a_beat_without_it_none(fleet: Fleet) -> None:
    node = await fleet.node()
    remote = await door(node)
    offer = HandlerOffer.of("slow", progress_timeout_s=20.0, timeout_s=30.0)
    mine = Client((await remote.register([offer], capacity=1)).claim, [remote])
    await node.dispatch("slow", "k")
    await mine.until(1)
    ends = list[float]()
    for progress in (None, Progress(done=1), None, Progress(done=2)):
        await anyio.sleep(0.01)
        assert not (await mine.beat(Beat(mine.held["k"], progress))).lost
        ends.append(fleet.client.zscore(fleet.names.due, "k:k") or 0.0)
    assert ends[0] < ends[1] == ends[2] < ends[3]
    await mine.complete(1)


@pytest.mark.parametrize("failed", [0, 1], ids=["first", "last attempt"])
async def test_a_failure_of_what_was_asked_to_stop_ends_it(fleet: Fleet, failed: int) -> None:
    node = await fleet.node()
    mine = await client(node)
    ref = await node.dispatch("add", "k", 1)
    await mine.until(1)
    for _ in range(failed):
        await mine.door.fail(mine.claim, [Failure(job=mine.held.pop("k"))])
        await mine.until(1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(node.stop, "k", "enough")
        await fleet.until(lambda: (r := fleet.record("k")) is not None and r.intent)
        [ended] = await mine.door.fail(mine.claim, [Failure(job=mine.held.pop("k"))])
        assert (ended.outcome, ended.in_s) == ("cancelled", 0.0)
    with pytest.raises(JobCancelled, match="enough"):
        await ref.result(timeout_s=WAIT_S)


# --- what it is told ------------------------------------------------------------------------------


async def test_a_stop_answers_an_open_poll_and_ends_the_job_when_it_is_released(
    fleet: Fleet, lanes: int
) -> None:
    first = await fleet.node(lanes=lanes)
    other = await fleet.node(lanes=lanes)
    mine = await client(first, other)
    ref = await first.dispatch("add", "k", 1)
    await mine.until(1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other.stop, "k", "enough")
        with anyio.fail_after(WAIT_S):
            while not (told := await mine.poll()).stop:
                pass
        assert [(each.reason, each.detail) for each in told.stop] == [("stop", "enough")]
        [ended] = await mine.door.release(mine.claim, [(mine.held.pop("k"), None)])
        assert ended.outcome == "cancelled"
    with pytest.raises(JobCancelled, match="enough"):
        await ref.result(timeout_s=WAIT_S)


async def test_what_was_stopped_before_it_was_handed_out_is_not(fleet: Fleet) -> None:
    node = await fleet.node()
    mine = await client(node)
    remote = await door(node)
    await remote.waiting.leases.say(0, mine.claim.name, 1)
    ref = await node.dispatch("add", "k", 1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(node.stop, "k", "too late")
        await fleet.until(lambda: (r := fleet.record("k")) is None or r.intent)
        assert not (await mine.poll(wait_s=0.0)).jobs
    with pytest.raises(JobCancelled, match="too late"):
        await ref.result(timeout_s=WAIT_S)


async def test_messages_are_told_until_they_were_seen(fleet: Fleet, lanes: int) -> None:
    first = await fleet.node(lanes=lanes)
    other = await fleet.node(lanes=lanes)
    mine = await client(first, other)
    await first.dispatch("add", "k", 1)
    await mine.until(1)
    for n in range(3):
        await other.notify("k", {"n": n})
    job = mine.held["k"]
    with anyio.fail_after(WAIT_S):
        while len((told := await mine.poll()).messages) < 3:
            pass
    assert [each.value for each in told.messages] == [{"n": 0}, {"n": 1}, {"n": 2}]
    told = await mine.beat(Beat(job, seen=told.messages[1].id))
    assert [each.value for each in told.messages] == [{"n": 2}]
    told = await mine.beat(Beat(job, Progress(done=1, total=2, note="half"), told.messages[0].id))
    assert not told.messages
    status = await other.status("k")
    assert status.progress is not None
    assert (status.progress.done, status.progress.note) == (1, "half")
    saved = await mine.door.save(mine.claim, job, [1, 2], number=1)
    assert saved.outcome == "saved"
    mine.held.clear()
    told = await mine.poll()
    assert told.jobs[0].state == [1, 2]
    await mine.complete(0)


async def test_pauses_cordons_and_drains_are_heard(fleet: Fleet, lanes: int) -> None:
    node = await fleet.node(lanes=lanes)
    mine = await client(node)
    await node.pause(handler="add")
    await node.dispatch("add", "k", 1)
    assert not (await mine.poll(wait_s=0.0)).jobs
    await node.resume(handler="add")
    await mine.until(1)
    await mine.complete(0)
    async with anyio.create_task_group() as tasks:
        told = list[Polled]()

        async def poll() -> None:
            told.append(await mine.poll())

        tasks.start_soon(poll)
        await opened(fleet, mine, lanes)
        report = await node.cordon(mine.claim.id, timeout_s=WAIT_S)
        assert report.is_complete
    assert told[0].is_cordoned
    assert not told[0].is_draining
    await node.dispatch("add", "m", 1)
    assert not (await mine.poll(wait_s=0.0)).jobs
    await node.uncordon(mine.claim.id, timeout_s=0.0)
    await mine.until(1)
    await mine.complete(0)
    await node.drain_member(REMOTE, timeout_s=0.0)
    with anyio.fail_after(WAIT_S):
        while not (await mine.poll(wait_s=0.1)).is_draining:
            pass
    assert await mine.door.leave(mine.claim) == 0


async def test_who_leaves_gives_back_what_it_has(fleet: Fleet, lanes: int) -> None:
    node = await fleet.node(lanes=lanes)
    mine = await client(node)
    for n in range(5):
        await node.dispatch("add", f"k{n}", n)
    await mine.until(5)
    other = await client(node, label="next")
    assert await mine.door.leave(mine.claim) == 5
    assert await mine.door.leave(mine.claim) == 0
    with pytest.raises(WorkerGone):
        await mine.beat()
    await other.until(5)
    assert {job.attempt for job in other.held.values()} == {1}
    await other.complete(0)


async def test_who_has_no_room_for_what_it_was_granted_gives_it_back(fleet: Fleet) -> None:
    """Four lanes are told of one free slot each; what is too much goes elsewhere."""
    node = await fleet.node(lanes=4)
    mine = await client(node, capacity=1)
    keys = [
        next(k for k in (f"k{n}" for n in range(99)) if lane_of(k, 4) == lane) for lane in range(4)
    ]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(mine.poll)
        await opened(fleet, mine, 4)
        for key in keys:
            await node.dispatch("add", key, 1)
    done = set(mine.held)
    await mine.complete(0)
    with anyio.fail_after(WAIT_S):
        while len(done) < 4:
            await mine.poll(wait_s=1.0)
            done |= mine.held.keys()
            await mine.complete(0)


# --- what operators see ---------------------------------------------------------------------------


async def test_it_is_seen_as_a_worker_of_no_node_and_as_nobodys_orphan(
    fleet: Fleet, lanes: int
) -> None:
    node = await fleet.node(lanes=lanes)
    mine = await client(node, label="js-1", version="7")
    await node.dispatch("add", "k", 1)
    await mine.until(1)
    url = Url.parse(fleet.url)
    async with inspect.opened(fleet.pool, url) as (pipeline, found):
        seen = await members.read(pipeline, found)
    [row] = seen.workers
    assert (row.id, row.node, row.label, row.version) == (mine.claim.id, REMOTE, "js-1", "7")
    assert (row.host, row.pid, row.running, row.standing) == ("elsewhere", 17, 1, "closed")
    remote = next(each for each in seen.nodes if each.id == REMOTE)
    assert (remote.standing, remote.workers, remote.running) == ("live", 1, 1)
    told = await diagnose(fleet.pool, url)
    assert [each.rule for each in told.findings if mine.claim.id in str(each)] == []
    facts = await fetch(fleet.pool, url, "k")
    assert facts.owner is not None
    assert (facts.owner.node, facts.owner.host) == (REMOTE, "elsewhere")
    await mine.complete(0)


# --- what cannot be -------------------------------------------------------------------------------


async def test_bad_registrations_are_refused(fleet: Fleet) -> None:
    remote = await door(await fleet.node())
    with pytest.raises(ConfigError):
        await remote.register([], capacity=1)
    with pytest.raises(ConfigError):
        await remote.register(OFFERS, capacity=0)
    with pytest.raises(ConfigError):
        await remote.register([HandlerOffer("a b")], capacity=1)
    with pytest.raises(DuplicateHandler):
        await remote.register([*OFFERS, OFFERS[0]], capacity=1)
    with pytest.raises(InvalidOption):
        HandlerOffer.of("add", attempts_max=0)
    assert not fleet.client.exists(fleet.names.open)


async def test_claims_of_others_are_refused(fleet: Fleet) -> None:
    node = await fleet.node()
    mine, other = await client(node), await client(node)
    await node.dispatch("add", "k", 1)
    await mine.until(1)
    remote = await door(node)
    with pytest.raises(WrongClaim):
        await remote.complete(other.claim, [(mine.held["k"], 1)])
    with pytest.raises(WrongClaim):
        await remote.poll(attrs.evolve(mine.claim, pool="else"))
    with pytest.raises(WorkerGone):
        await remote.poll(attrs.evolve(mine.claim, generation="before"))
    with pytest.raises(WrongClaim):
        JobClaim.parse('["a"]')
    with pytest.raises(WrongClaim):
        WorkerClaim.parse("{}")
    with pytest.raises(InvalidOption):
        await remote.poll(mine.claim, wait_s=31)
    assert JobClaim.parse(mine.held["k"].pack()) == mine.held["k"]
    assert WorkerClaim.parse(mine.claim.pack()) == mine.claim
    await mine.complete(1)


async def test_arguments_that_nobody_here_can_read_are_left_or_parked(fleet: Fleet) -> None:
    codec = Handlers()

    @codec.job("add", version=2, upcast=lambda _, args, kwargs: (args, kwargs))
    async def add(job: Any, n: int) -> None: ...

    node = await fleet.node()
    mine = await client(node)
    await node.dispatch(add, "later", 1)
    ref = await node.dispatch("add", "k", 1)
    await mine.until(1)
    assert list(mine.held) == ["k"]
    await fleet.until(lambda: (r := fleet.record("later")) is not None and r.state == "waiting")
    await mine.complete(1)
    assert await ref.result(timeout_s=WAIT_S) == 1


# --- services -------------------------------------------------------------------------------------


async def test_services_go_to_who_is_first_with_their_state(fleet: Fleet, lanes: int) -> None:
    node = await fleet.node(lanes=lanes)
    mine = await client(node, capacity=20)
    keys = [f"s{n}" for n in range(12)]
    for key in keys:
        await node.dispatch("serve", key)
    await mine.until(12, jobs_max=20)
    other = await client(node, capacity=20)
    await fleet.knows(node, 2)

    def strays() -> list[str]:
        context = fleet.wiring(node).context
        first = {
            key: context.targets(key, "serve", lane=lane_of(key, lanes), limit=1)[0].id
            for key in keys
        }
        return [key for key in mine.held if first[key] != mine.claim.id]

    assert strays()
    moved = dict[str, Any]()

    async def take() -> None:
        while True:
            told = await other.poll(20, wait_s=1.0)
            moved.update({out.job.key: out.state for out in told.jobs})

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take)
        with anyio.fail_after(WAIT_S):
            while strays():
                told = await mine.beat()
                going = [each.job for each in told.stop if each.reason == "release"]
                assert {job.key for job in going} <= set(strays())
                ended = await mine.door.release(
                    mine.claim, [(mine.held.pop(job.key), {"of": job.key}) for job in going]
                )
                assert {each.outcome for each in ended} <= {"released"}
            await fleet.until(lambda: moved.keys() | mine.held.keys() == set(keys))
        tasks.cancel_scope.cancel()
    assert moved == {key: {"of": key} for key in moved}
    assert await other.door.leave(other.claim) == len(moved)
    assert await mine.door.leave(mine.claim) == 12 - len(moved)
    await stop_all(node, keys)


async def stop_all(node: Node, keys: list[str]) -> None:
    async with anyio.create_task_group() as tasks:
        for key in keys:
            tasks.start_soon(node.stop, key)


async def test_a_service_that_was_well_for_long_enough_fails_anew(fleet: Fleet) -> None:
    node = await fleet.node()
    remote = await door(node)
    offer = HandlerOffer.of("serve", "service", backoff_s=0.01, healthy_s=2.0)
    mine = Client((await remote.register([offer], capacity=1)).claim, [remote])
    await node.dispatch("serve", "s")
    for attempt, s in ((1, 0.0), (2, 0.0), (3, 2.2), (2, 0.0)):
        await mine.until(1)
        assert mine.held["s"].attempt == attempt
        await anyio.sleep(s)
        await mine.door.fail(mine.claim, [Failure(job=mine.held.pop("s"))])
    await node.stop("s")


# --- lanes, and many ------------------------------------------------------------------------------


async def test_a_lane_that_lost_its_data_takes_no_other_lanes_jobs_along(fleet: Fleet) -> None:
    fleet.is_audited = False  # nothing is told of what was lost
    node = await fleet.node(lanes=2)
    mine = await client(node)
    lost, kept = (
        next(key for key in (f"k{n}" for n in range(99)) if lane_of(key, 2) == lane)
        for lane in range(2)
    )
    await node.dispatch("add", lost, 1)
    ref = await node.dispatch("add", kept, 1)
    await mine.until(2)
    for name in fleet.client.scan_iter(match=f"{Names(fleet.pool, 0).prefix}*"):
        fleet.client.delete(name)
    with anyio.fail_after(WAIT_S):
        while not (told := await mine.beat()).register_again:
            pass
    assert list(mine.held) == [kept]
    assert not told.jobs
    assert [each.outcome for each in await mine.complete(5)] == ["done"]
    assert await ref.result(timeout_s=WAIT_S) == 5


async def test_idle_polls_are_read_and_renewed_together(fleet: Fleet) -> None:
    """So many cost hardly more than one: no command is sent for each of them."""
    node = await fleet.node(lease_ttl_s=3.0)  # a busy machine stops a process for a second
    remote, many, claims = await door(node), 100, set[str]()

    async def come() -> None:
        claim = (await remote.register(OFFERS, capacity=1)).claim
        claims.add(claim.id)
        await remote.poll(claim, wait_s=WAIT_S)

    def calls() -> int:
        told: Any = fleet.client.info("commandstats")
        names = ("evalsha", "xread", "xrange", "xtrim")
        return sum(told.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in names)

    def ends() -> set[float]:
        leases: Any = fleet.client.zrange(fleet.names.keepalive, 0, -1, withscores=True)
        return {end for name, end in leases if name.decode().rpartition(".")[0] in claims}

    def has_changed(before: set[float]) -> bool:
        return ends() != before

    async with anyio.create_task_group() as tasks:
        for _ in range(many):
            tasks.start_soon(come)
        await fleet.until(lambda: fleet.client.hlen(fleet.names.open) == many)
        await fleet.until(lambda: len(ends()) == 1)  # of one call, all end at once
        before, began = calls(), ends()
        seen = 0
        while seen < 5:
            await fleet.until(partial(has_changed, began))
            began, seen = ends(), seen + 1
        assert calls() - before < seen * many / 2  # one for each would be more than twice that
        tasks.cancel_scope.cancel()
