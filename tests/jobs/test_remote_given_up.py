"""Workers that poll: what had its time, what an answer that was lost brought, what is lost."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import anyio
import attrs
import pytest

from pool.core.record import Progress
from pool.core.settlement import TOO_LONG
from pool.errors import JobCancelled, JobParked
from pool.jobs.remote.claims import Beat, Failure, HandlerOffer, Polled, ToStop
from pool.jobs.remote.ending import KnownRun
from pool.jobs.remote.leases import LaneLease, Leases
from pool.jobs.remote.polls import OpenPolls
from pool.jobs.remote.visit import Visit
from pool.names import lane_of
from tests.jobs.test_remote import WAIT_S, Client, client, door, opened

if TYPE_CHECKING:
    from pool import Node
    from pool.jobs.remote.polls import Desk
    from tests.nodes import Fleet

pytestmark = pytest.mark.anyio

LONG_TTL_S = 60.0  # so that nobody else ends what has had its time, or what a test is slow with
LIMITED = HandlerOffer.of("limited", timeout_s=0.2, park_on=("timeout",))
MUTE = HandlerOffer.of("limited", progress_timeout_s=0.2, park_on=("progress",))
OFFERS = {
    "timeout": LIMITED,
    "progress": MUTE,
    "first": HandlerOffer.of(
        "limited", progress_timeout_s=0.2, timeout_s=600.0, park_on=("progress",)
    ),
}


async def limited(*nodes: Node, offer: HandlerOffer = LIMITED) -> Client:
    doors = [await door(node) for node in nodes]
    return Client((await doors[0].register([offer], capacity=2)).claim, doors)


async def until_told(mine: Client) -> ToStop:
    with anyio.fail_after(WAIT_S):
        while not (told := await mine.beat()).stop:
            assert not told.lost
        # When a request came is known to a round trip's length: the next one comes clearly later.
        later_s = time.monotonic() + 0.05
        while time.monotonic() < later_s:
            assert (await mine.beat()).stop
    return told.stop[0]


# --- what had its time ----------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [*OFFERS])
@pytest.mark.parametrize("way", ["release", "fail", "leave"])
async def test_what_had_its_time_has_used_an_attempt_up_however_it_is_given_up(
    fleet: Fleet, lanes: int, way: str, limit: str
) -> None:
    """Or a client that gives such a job back would repeat it for ever."""
    first = await fleet.node(lanes=lanes, lease_ttl_s=LONG_TTL_S)
    other = await fleet.node(lanes=lanes, lease_ttl_s=LONG_TTL_S)
    mine = await limited(first, other, offer=OFFERS[limit])
    ref = await first.dispatch("limited", "k")
    await mine.until(1)
    assert (await until_told(mine)).reason == "timeout"
    job = mine.held["k"]
    if way == "leave":
        await mine.door.leave(mine.claim)
    elif way == "release":
        [ended] = await mine.door.release(mine.claim, [(job, {"at": 1})])
        assert ended.outcome == "parked"
    else:
        [ended] = await mine.door.fail(mine.claim, [Failure(job=job, message="aborted")])
        assert ended.outcome == "parked"
    over = TOO_LONG["timeout" if limit == "timeout" else "progress"]
    with pytest.raises(JobParked, match=over):
        await ref.result(timeout_s=WAIT_S)
    history = (await first.parked.show("k", ref.job_id)).history
    said = "aborted" if way == "fail" else over
    assert [each.message for each in history] == [said]


async def test_progress_that_comes_too_late_is_none(fleet: Fleet) -> None:
    """Who was told to end has to, and what it gives back then has had its time."""
    node = await fleet.node(lease_ttl_s=LONG_TTL_S)
    mine = await limited(node, offer=MUTE)
    await node.dispatch("limited", "k")
    await mine.until(1)
    job = (await until_told(mine)).job
    due_ms = fleet.client.zscore(fleet.names.due, "k:k")
    for _ in range(2):
        told = await mine.beat(Beat(job, Progress(done=1)))
        assert [each.reason for each in told.stop] == ["timeout"]
    assert fleet.client.zscore(fleet.names.due, "k:k") == due_ms
    [ended] = await mine.door.release(mine.claim, [(job, None)])
    assert ended.outcome == "parked"


@pytest.mark.parametrize("hangs", ["another lane", "its gateway"])
async def test_progress_counts_from_when_it_came_whatever_hangs_then(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, hangs: str
) -> None:
    """And it is written down beside what hangs, not behind it."""
    node = await fleet.node(lanes=2, lease_ttl_s=LONG_TTL_S)
    mine = await limited(node, offer=HandlerOffer.of("limited", progress_timeout_s=600.0))
    key = next(key for key in map("k{}".format, range(64)) if lane_of(key, 2) == 0)
    await node.dispatch("limited", key)
    await mine.until(1)
    go_on, later_ms = anyio.Event(), [0.0]
    say, now_ms, compare, told = Leases.say, Visit.now_ms, Visit._compare, list[Polled]()

    async def gated(leases: Leases, lane: int, name: str, takes: int) -> LaneLease:
        if lane == 1 and hangs == "another lane":
            await go_on.wait()
        return await say(leases, lane, name, takes)

    async def hung(visit: Visit, *args: Any, **options: Any) -> None:
        await compare(visit, *args, **options)
        if hangs == "its gateway":
            later_ms[0] = 600_000.0

    async def beat() -> None:
        told.append(await mine.beat(Beat(mine.held[key], Progress(done=1))))

    monkeypatch.setattr(Leases, "say", gated)
    monkeypatch.setattr(Visit, "_compare", hung)
    monkeypatch.setattr(Visit, "now_ms", lambda *of: now_ms(*of) + later_ms[0])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(beat)
        await fleet.until(lambda: (r := fleet.record(key)) is not None and "p" in r.more)
        go_on.set()
    assert not told[0].stop
    await mine.complete(0)


async def test_progress_of_who_was_told_to_end_is_none_however_late_an_answer_comes(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What pool time is, at least, says nothing of what others were told since."""
    node = await fleet.node(lease_ttl_s=LONG_TTL_S)
    mine = await limited(node, offer=MUTE)
    await node.dispatch("limited", "k")
    await mine.until(1)
    job, say = (await until_told(mine)).job, Leases.say

    async def late(leases: Leases, lane: int, name: str, takes: int) -> LaneLease:
        said = await say(leases, lane, name, takes)
        return attrs.evolve(said, heard_s=said.heard_s + 600.0)

    with monkeypatch.context() as patched:
        patched.setattr(Leases, "say", late)
        await mine.beat(Beat(job, Progress(done=1)))
    record = fleet.record("k")
    assert record is not None
    assert "p" not in record.more
    [ended] = await mine.door.release(mine.claim, [(job, None)])
    assert ended.outcome == "parked"


async def test_progress_that_comes_in_time_is_not_followed_by_a_stop(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the time that it had before is over while its request is served."""
    node = await fleet.node(lease_ttl_s=LONG_TTL_S)
    mine = await limited(node, offer=HandlerOffer.of("limited", progress_timeout_s=600.0))
    await node.dispatch("limited", "k")
    await mine.until(1)
    record = fleet.record("k")
    assert record is not None
    at_ms, began_ms, limit_ms = [0.0], record.since_ms, 600_000
    tell = Visit.tell

    def later(visit: Visit, **about: Any) -> None:
        at_ms[0] += 2
        tell(visit, **about)

    monkeypatch.setattr(Visit, "now_ms", lambda *_: at_ms[0])
    monkeypatch.setattr(Visit, "tell", later)
    for progress, stops in ((None, 1), (Progress(done=1), 0)):
        at_ms[0] = began_ms + limit_ms - 1
        assert len((await mine.beat(Beat(mine.held["k"], progress))).stop) == stops
    await mine.complete(0)


async def test_progress_of_an_attempt_before_is_not_this_ones(fleet: Fleet) -> None:
    node = await fleet.node()
    mine = await limited(node, offer=HandlerOffer.of("limited", progress_timeout_s=600.0))
    await node.dispatch("limited", "k")
    await mine.until(1)
    job, record = mine.held["k"], fleet.record("k")
    assert record is not None
    for told_ms, left_ms in ((-900_000, 600_000), (100_000, 700_000)):
        told = attrs.evolve(record, more=f"p{record.since_ms + told_ms}/1//")
        assert KnownRun(told, record.since_ms).left_ms(mine.claim, job) == left_ms
    await mine.complete(0)


@pytest.mark.parametrize("limits", [{"timeout_s": 8.0}, {"progress_timeout_s": 8.0}])
async def test_an_open_poll_ends_when_what_it_holds_has_had_its_time(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, limits: dict[str, Any]
) -> None:
    """A beat is due after 10 s; who was told is not told without end."""
    node = await fleet.node(lease_ttl_s=LONG_TTL_S)
    mine = await limited(node, offer=HandlerOffer.of("limited", **limits))
    waits_s, later_ms, now_ms = list[float](), [0.0], Visit.now_ms

    async def wait(polls: OpenPolls, desk: Desk, until_s: float) -> None:
        waits_s.append(until_s - polls.context.io.clock())

    await node.dispatch("limited", "k")
    await mine.until(1)
    monkeypatch.setattr(OpenPolls, "wait", wait)
    monkeypatch.setattr(Visit, "now_ms", lambda *of: now_ms(*of) + later_ms[0])
    assert not (await mine.poll()).stop
    later_ms[0] = 8_000.0
    for _ in range(2):
        assert [each.reason for each in (await mine.poll()).stop] == ["timeout"]
    before_s, after_s = waits_s
    assert before_s < 8.5 < after_s
    await mine.complete(0)


async def test_what_has_time_left_is_given_back_as_the_attempt_that_it_was(fleet: Fleet) -> None:
    node = await fleet.node()
    remote = await door(node)
    offer = HandlerOffer.of("limited", timeout_s=600.0)
    mine = Client((await remote.register([offer], capacity=1)).claim, [remote])
    await node.dispatch("limited", "k")
    await mine.until(1)
    [ended] = await remote.release(mine.claim, [(mine.held.pop("k"), None)])
    assert ended.outcome == "released"
    await mine.until(1)
    assert mine.held["k"].attempt == 1
    await mine.complete(0)


async def test_what_was_asked_to_stop_is_cancelled_whatever_time_it_had(fleet: Fleet) -> None:
    node = await fleet.node(lease_ttl_s=LONG_TTL_S)
    mine = await limited(node)
    ref = await node.dispatch("limited", "k")
    await mine.until(1)
    await until_told(mine)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(node.stop, "k", "enough")
        await fleet.until(lambda: (r := fleet.record("k")) is not None and r.intent)
        [ended] = await mine.door.release(mine.claim, [(mine.held.pop("k"), None)])
        assert ended.outcome == "cancelled"
    with pytest.raises(JobCancelled, match="enough"):
        await ref.result(timeout_s=WAIT_S)


# --- what an answer that was lost brought ---------------------------------------------------------


async def forgotten(fleet: Fleet, node: Node, mine: Client, handler: str = "add") -> Any:
    """Have it hold `a`, and not know of `b`; return what it was told of that."""
    await node.dispatch("add", "a", 1)
    await mine.until(1)
    await node.dispatch(handler, "b")
    await mine.until(2)
    return mine.held.pop("b")


@pytest.mark.parametrize("way", ["beat", "poll"])
async def test_who_takes_no_more_is_told_again_what_it_has_and_gives_it_back(
    fleet: Fleet, lanes: int, way: str
) -> None:
    """At once, and under the same claim: it is not given away, as its client may yet hear of it."""
    node = await fleet.node(lanes=lanes)
    mine, other = await client(node), await client(node)
    job = await forgotten(fleet, node, mine)
    told = await mine.beat() if way == "beat" else await mine.poll(0)
    assert [out.job for out in told.jobs] == [job]
    [ended] = await mine.door.release(mine.claim, [(mine.held.pop("b"), None)])
    assert ended.outcome == "released"
    with anyio.fail_after(WAIT_S):
        while "b" not in other.held | mine.held:
            await other.poll(wait_s=0.2)
            await mine.poll(wait_s=0.2)
    assert (other.held | mine.held)["b"].attempt == 1
    for each in (mine, other):
        if each.held:
            await each.complete(0)


async def test_what_is_not_named_is_told_at_once_only_once_to_who_has_no_room(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await fleet.node()
    mine, waits, wait = await client(node), list[str](), OpenPolls.wait
    await forgotten(fleet, node, mine)

    async def counted(self: OpenPolls, desk: Any, until_s: float) -> None:
        waits.append(desk.claim.id)
        await wait(self, desk, until_s)

    monkeypatch.setattr(OpenPolls, "wait", counted)
    held = list(mine.held.values())
    for count in (0, 1, 2):
        told = await mine.door.poll(mine.claim, held, jobs_max=0, wait_s=0.01)
        assert len(told.jobs) == 1
        assert len(waits) == count
    await mine.poll(0)
    await mine.complete(0)


async def test_a_limit_counts_for_what_is_not_named(fleet: Fleet) -> None:
    node = await fleet.node(lease_ttl_s=1.0)
    mine = await client(node)
    await forgotten(fleet, node, mine, "short")
    a, ref = mine.held["a"], await node.job("b")
    with anyio.fail_after(WAIT_S):
        while fleet.record("b") is not None:
            await mine.door.heartbeat(mine.claim, [a])
            await anyio.sleep(0.05)
    with pytest.raises(JobParked, match="ran longer"):
        await ref.result(timeout_s=WAIT_S)
    await mine.complete(0)


# --- what is lost ---------------------------------------------------------------------------------


async def test_what_is_lost_is_told_at_once_and_takes_no_other_job_away(fleet: Fleet) -> None:
    """A client that goes on naming it gets what there is, and waits like any other."""
    node = await fleet.node(lease_ttl_s=LONG_TTL_S)
    mine = await client(node)
    await node.dispatch("add", "a", 1)
    await mine.until(1)
    lost = mine.held["a"]
    assert (await mine.door.complete(mine.claim, [(lost, 1)]))[0].outcome == "done"
    await node.dispatch("add", "b", 1)
    told = await mine.door.poll(mine.claim, [lost], jobs_max=4, wait_s=WAIT_S)
    assert [each.job for each in told.lost] == [lost]
    assert [out.job.key for out in told.jobs] == ["b"]
    held, answers = [lost, told.jobs[0].job], list[Polled]()

    async def poll() -> None:
        answers.append(await mine.door.poll(mine.claim, held, jobs_max=4, wait_s=WAIT_S))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(poll)
        await opened(fleet, mine, 1)
        await node.dispatch("add", "c", 1)
    assert [out.job.key for out in answers[0].jobs] == ["c"]  # it had waited for that
    assert [each.job for each in answers[0].lost] == [lost]
    jobs = [told.jobs[0].job, answers[0].jobs[0].job]
    ended = await mine.door.complete(mine.claim, [(job, 0) for job in jobs])
    assert {each.outcome for each in ended} == {"done"}


async def test_what_came_to_be_lost_after_it_was_told_is_told_at_once(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await fleet.node()
    mine = await client(node)
    for key in ("a", "b"):
        await node.dispatch("add", key, 1)
    await mine.until(2)
    held = list(mine.held.values())

    async def never(*_: object) -> None:
        pytest.fail("it waits")

    monkeypatch.setattr(OpenPolls, "wait", never)
    for job in held:
        assert (await mine.door.complete(mine.claim, [(job, 1)]))[0].outcome == "done"
        told = await mine.door.poll(mine.claim, held, jobs_max=0, wait_s=WAIT_S)
        assert job in [each.job for each in told.lost]
