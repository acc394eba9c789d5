"""Workers that poll: who has to register again, what is told at once, what nobody can tell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import attrs
import pytest

from pool.errors import JobParked, StoreUnavailable
from pool.jobs.remote.claims import Beat, Failure, HandlerOffer, Polled
from pool.jobs.remote.ending import Endings
from pool.jobs.remote.polls import OpenPolls
from pool.jobs.remote.workers import RemoteWorkers
from pool.names import lane_of
from tests.jobs.test_remote import OFFERS, WAIT_S, Client, client, door, opened

if TYPE_CHECKING:
    from pool import Node
    from tests.nodes import Fleet

pytestmark = pytest.mark.anyio

LONG_TTL_S = 60.0  # so that no lease's end helps
KEY = next(key for key in (f"k{n}" for n in range(99)) if lane_of(key, 2) == 0)


async def lapse(node: Node, mine: Client) -> None:
    """End its lease in the second lane."""
    context = (await door(node)).context
    call = context.lanes[1].lane.leave([mine.claim.target])
    await context.pipeline.call(call, repeatable=True)


# --- who has to register again --------------------------------------------------------------------


@pytest.mark.parametrize("why", ["it lacks a lane", "its lease there is over"])
async def test_who_has_to_register_again_is_handed_nothing(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """Its client drops what comes with that answer: it would wait for the lease's end."""
    node = await fleet.node(lanes=2, lease_ttl_s=LONG_TTL_S)
    mine = await client(node)
    if why == "it lacks a lane":
        mine.claim = attrs.evolve(mine.claim, lanes=(True, False))
    else:
        await lapse(node, mine)
    await node.options(allow_unknown=True).dispatch("add", KEY, 1)

    async def pulled(*_: object) -> None:
        pytest.fail("it takes some, which it has to give back")

    with monkeypatch.context() as patched:
        patched.setattr(OpenPolls, "pull", pulled)
        for _ in range(2):  # whether it has been told so or not
            told = await mine.poll(wait_s=0.01)
            assert told.register_again
            assert not told.jobs
    other = await client(node)
    await other.until(1)
    assert other.held[KEY].attempt == 1
    assert [each.outcome for each in await other.complete(0)] == ["done"]


async def test_a_lane_that_comes_back_while_a_poll_is_open_takes_no_job_along(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await fleet.node(lanes=2, lease_ttl_s=LONG_TTL_S)
    mine = await client(node)
    lacking, answers = RemoteWorkers._lacking, list[Polled]()
    full, mine.claim = mine.claim, attrs.evolve(mine.claim, lanes=(True, False))
    monkeypatch.setattr(RemoteWorkers, "_lacking", lambda *_: set())

    async def poll() -> None:
        answers.append(await mine.door.poll(mine.claim, wait_s=WAIT_S))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(poll)
        await opened(fleet, mine, 1)
        monkeypatch.setattr(RemoteWorkers, "_lacking", lacking)
        await node.dispatch("add", KEY, 1)
    assert answers[0].register_again
    assert not answers[0].jobs
    other = await client(node)
    await other.until(1)
    assert await mine.door.leave(full) == 0  # it had nothing
    await other.complete(0)


async def test_what_an_answer_that_was_lost_has_brought_is_given_back_by_leaving(
    fleet: Fleet,
) -> None:
    node = await fleet.node(lanes=2, lease_ttl_s=LONG_TTL_S)
    mine, other = await client(node), await client(node)
    await node.dispatch("add", KEY, 1)
    with anyio.fail_after(WAIT_S):
        while not (await mine.door.poll(mine.claim, wait_s=0.2)).jobs:  # which it never hears
            if (await other.door.poll(other.claim, wait_s=0.2)).jobs:
                mine, other = other, mine
                break
    await lapse(node, mine)
    for told in (await mine.poll(0, wait_s=0.01), await mine.beat()):
        assert told.register_again
        assert not told.jobs
    assert await mine.door.leave(mine.claim) == 1
    await other.until(1)
    assert other.held[KEY].attempt == 1
    await other.complete(0)


# --- what is told at once -------------------------------------------------------------------------


async def test_what_came_between_two_polls_is_told_at_once_and_only_once(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop, a message: nothing rings for them any more when the next poll begins."""
    node = await fleet.node(lease_ttl_s=LONG_TTL_S)
    mine, waits, wait = await client(node), list[str](), OpenPolls.wait
    await node.dispatch("add", "k", 1)
    await mine.until(1)

    async def counted(self: OpenPolls, desk: Any, until_s: float) -> None:
        waits.append(desk.claim.id)
        await wait(self, desk, until_s)

    monkeypatch.setattr(OpenPolls, "wait", counted)
    await node.notify("k", "hello")
    async with anyio.create_task_group() as tasks:
        told = await mine.poll(0)
        assert ([each.value for each in told.messages], waits) == (["hello"], [])
        tasks.start_soon(node.stop, "k", "enough")
        await fleet.until(lambda: (r := fleet.record("k")) is not None and r.intent)
        told = await mine.poll(0)
        assert ([each.detail for each in told.stop], waits) == (["enough"], [])
        told = await mine.poll(0, wait_s=0.01)
        assert (len(told.stop), len(told.messages), len(waits)) == (1, 1, 1)  # told again
        seen = Beat(mine.held["k"], seen=told.messages[0].id)
        assert not (await mine.beat(seen)).messages
        [ended] = await mine.door.release(mine.claim, [(mine.held.pop("k"), None)])
        assert ended.outcome == "cancelled"


# --- what nobody can tell -------------------------------------------------------------------------


async def test_a_failure_that_nobody_can_judge_is_not_taken(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it had its time stands in the store: without that it would be tried again."""
    node = await fleet.node(lease_ttl_s=LONG_TTL_S)
    offer = HandlerOffer.of("limited", timeout_s=0.2, park_on=("timeout",))
    remote = await door(node)
    mine = Client((await remote.register([*OFFERS, offer], capacity=2)).claim, [remote])
    ref = await node.dispatch("limited", "k")
    await mine.until(1)
    with anyio.fail_after(WAIT_S):
        while not (await mine.beat()).stop:
            pass
    failure = Failure(job=mine.held["k"], message="aborted")

    async def away(*_: object) -> None:
        raise StoreUnavailable(problem="refused", maybe_done=False)

    with monkeypatch.context() as patched:
        patched.setattr(Endings, "records", away)
        with pytest.raises(StoreUnavailable):
            await remote.fail(mine.claim, [failure])
    [ended] = await remote.fail(mine.claim, [failure])
    assert ended.outcome == "parked"
    with pytest.raises(JobParked, match="ran longer"):
        await ref.result(timeout_s=WAIT_S)
