"""A backlog that a worker cannot run costs its own jobs nothing, and hides none of them (K6).

The lane counts the unassigned keys of all handlers.  Scripts are counted, so no clock decides; the
TTL is so long that no renewal comes to anybody's help.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from benchmarks.node_costs import Counting
from pool import Handlers, Job, Node
from pool.jobs.remote.claims import HandlerOffer
from pool.jobs.worker.executor import AHEAD_MAX

if TYPE_CHECKING:
    from tests.nodes import Diary, Fleet

pytestmark = pytest.mark.anyio

LONG_TTL_S = 600.0  # a renewal is later than anybody waits here
SOON_S = 30.0
JOBS = 20


def made(diary: Diary, release: anyio.Event) -> Handlers:
    handlers = Handlers()

    @handlers.job("quick")
    async def quick(job: Job) -> None:
        pass

    @handlers.job("other")
    async def other(job: Job) -> None:
        diary.note("other")

    @handlers.job("hold")
    async def hold(job: Job) -> None:
        diary.note(job.key)
        await release.wait()

    return handlers


async def put_aside(client: Node, kind: str) -> None:
    """Have a job wait that no worker here may begin."""
    match kind:
        case "nobody has it":
            await client.options(allow_unknown=True).dispatch("nobody-has-this", "aside")
            return
        case "its handler is paused":
            await client.pause(handler="other")
        case "its key is paused":
            await client.pause(key="aside")
    await client.dispatch("other", "aside")


@pytest.mark.parametrize("kind", ["nobody has it", "its handler is paused", "its key is paused"])
async def test_a_job_costs_the_same_scripts_beside_a_backlog_of_others(
    fleet: Fleet, diary: Diary, kind: str
) -> None:
    """Red at first: each job took one pull more, in vain."""
    io = Counting()
    await fleet.node(made(diary, anyio.Event()), lease_ttl_s=LONG_TTL_S, _io=io)
    client = await fleet.node(lease_ttl_s=LONG_TTL_S)
    await fleet.knows(client, 1)

    async def run(first: int, jobs: int) -> dict[str, int]:
        io.noted.clear()
        for number in range(first, first + jobs):
            ref = await client.dispatch("quick", f"k{number}")
            await ref.result(timeout_s=SOON_S)
        return {name: io.noted.count(name) for name in ("advance", "pull")}

    before = await run(0, JOBS)
    await put_aside(client, kind)
    await run(100, 3)  # the first ones learn of it
    after = await run(200, JOBS)
    assert before["pull"] == after["pull"] == 0
    assert after["advance"] <= JOBS + 2  # a machine that stands still acknowledges apart
    assert diary.entries == []


async def test_what_becomes_ours_among_as_many_of_others_begins_at_once(
    fleet: Fleet, diary: Diary
) -> None:
    """The count of a lane hides it: as many of others are gone as have come for us."""
    release = anyio.Event()
    worker = await fleet.node(made(diary, release), lease_ttl_s=LONG_TTL_S, capacity=1)
    client = await fleet.node(lease_ttl_s=LONG_TTL_S)
    await fleet.knows(client, 1)
    await client.options(allow_unknown=True).dispatch("nobody-has-this", "aside")
    lane = client._open_wiring.context.lane_of("aside").number
    wiring = fleet.wiring(worker)
    with anyio.fail_after(SOON_S):
        while lane not in wiring.context.barren:
            await (await client.dispatch("quick", "aside-2")).result(timeout_s=SOON_S)
    await client.dispatch("hold", "running")
    await diary.has("running")
    for number in range(AHEAD_MAX + 2):  # after so many that were quick it may hold some ahead
        waiting = await client.dispatch("hold", f"waiting-{number}")
        if (await waiting.status()).state == "unassigned":
            break
    else:
        pytest.fail("all of them are held ahead")
    await client.stop("aside")
    release.set()
    await diary.has(waiting.key)
    await waiting.result(timeout_s=SOON_S)


async def test_what_is_resumed_begins_at_once(fleet: Fleet, diary: Diary) -> None:
    await fleet.node(made(diary, anyio.Event()), lease_ttl_s=LONG_TTL_S)
    client = await fleet.node(lease_ttl_s=LONG_TTL_S)
    await fleet.knows(client, 1)
    await put_aside(client, "its handler is paused")
    for number in range(5):
        await (await client.dispatch("quick", f"k{number}")).result(timeout_s=SOON_S)
    await client.resume(handler="other")
    await diary.has("other")


@pytest.mark.parametrize("kind", ["nobody has it", "its handler is paused", "its key is paused"])
async def test_a_poll_pulls_nothing_beside_a_backlog_of_others(
    fleet: Fleet, diary: Diary, kind: str
) -> None:
    """Alike over HTTP; what is there for the worker is handed out by the poll that finds it."""
    io = Counting()
    gateway = await fleet.node(lease_ttl_s=LONG_TTL_S, _io=io)
    remote = await gateway._open_wiring.remote_workers()
    offers = (HandlerOffer.of("quick"), HandlerOffer.of("other"))
    claim = (await remote.register(offers, capacity=1)).claim
    await fleet.knows(gateway, 1)
    await put_aside(gateway, kind)
    io.noted.clear()
    for _ in range(3):
        assert (await remote.poll(claim, wait_s=0.0)).jobs == []
    assert io.noted.count("pull") == 0
    await gateway.dispatch("quick", "ours")
    polled = await remote.poll(claim, wait_s=0.0)
    assert [out.job.key for out in polled.jobs] == ["ours"]
    await remote.complete(claim, [(polled.jobs[0].job, None)])
