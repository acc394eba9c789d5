"""Looking at jobs, page by page; and stopping many of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest

from pool import Handlers, Job, Node, Status
from pool.errors import InvalidOption, JobCancelled, NoSuchJob, NotStopped
from pool.jobs.client import stopping
from pool.jobs.client.listing import PAGE_MAX, JobFilter
from pool.names import Names, queued
from pool.ops import browse, inspect
from pool.redis.url import Url

if TYPE_CHECKING:
    from tests.nodes import Fleet

pytestmark = pytest.mark.anyio

handlers = Handlers()
causes: list[str] = []
cleaned: list[str] = []
gate: list[anyio.Event] = []


@handlers.job("until_stopped")
async def until_stopped(job: Job, *_: Any, **__: Any) -> None:
    try:
        await anyio.sleep_forever()
    finally:
        causes.append(job.stop_cause)
        with job.ending():
            await anyio.lowlevel.checkpoint()
            cleaned.append(job.key)


@handlers.job("stubborn")
async def stubborn(job: Job) -> str:
    with anyio.CancelScope(shield=True):
        await gate[0].wait()
    return job.stop_cause


@handlers.service("poller")
async def poller(job: Job) -> None:
    await anyio.sleep_forever()


@handlers.job("enough")
async def enough(job: Job, call: str) -> None:
    if call == "stop_all":
        await job.node.stop_all()
    else:
        await job.node.shutdown_pool(end_jobs=True)


@pytest.fixture(autouse=True)
def _forget() -> None:
    causes.clear()
    cleaned.clear()
    gate.clear()


async def every(node: Node, **wanted: Any) -> list[Status]:
    """Return all jobs that a filter means, by pages of a few records."""
    found, cursor = list[Status](), ""
    while True:
        page = await node.jobs(page=3, cursor=cursor, **wanted)
        found += page.jobs
        if not (cursor := page.cursor):
            return found


async def keys(node: Node, **wanted: Any) -> list[str]:
    told = sorted(status.key for status in await every(node, **wanted))
    assert await node.count(**wanted) == len(told)
    return told


async def full_house(fleet: Fleet) -> tuple[Node, str]:
    """Fill a pool with jobs in each state; return a node, and the name of its worker."""
    node = await fleet.node(handlers, capacity=2)
    running = [await node.dispatch(until_stopped, f"r{n}", n, word="x") for n in (1, 2)]
    for ref in running:
        await ref.started(timeout_s=30)
    await node.options(if_exists="queue").dispatch(poller, "r1")
    await node.options(delay_s=300).dispatch(until_stopped, "later", "a" * 5000)
    await node.dispatch(until_stopped, "u1", 3)
    await node.dispatch(poller, "u2")
    await node.options(allow_unknown=True).dispatch("nobody", "u3", 4)
    return node, (await running[0].status()).owner


async def test_each_filter_finds_what_it_says_and_nothing_else(fleet: Fleet) -> None:
    node, owner = await full_house(fleet)
    everything = ["later", "r1", "r1", "r2", "u1", "u2", "u3"]
    assert await keys(node) == everything
    assert await keys(node, state="running") == ["r1", "r2"]
    assert await keys(node, state="waiting") == ["later"]
    assert await keys(node, state="unassigned") == ["u1", "u2", "u3"]
    assert await keys(node, state="unassigned", handler="nobody") == ["u3"]
    assert await keys(node, state="queued") == ["r1"]
    assert await keys(node, state="pending") == []
    assert await keys(node, handler="poller") == ["r1", "u2"]
    assert await keys(node, prefix="r") == ["r1", "r1", "r2"]
    assert await keys(node, owner=owner) == ["r1", "r2"]
    assert await keys(node, owner=owner.split(".")[0], prefix="r2") == ["r2"]
    assert await keys(node, owner="w0.1") == await keys(node, owner="w0") == []
    assert await keys(node, older_than_s=3600.0) == []
    assert await keys(node, older_than_s=0.0) == everything


async def test_a_walk_says_at_how_many_it_looked_and_an_index_leads_there(fleet: Fleet) -> None:
    node, owner = await full_house(fleet)
    page = await node.jobs(handler="poller")
    assert (len(page.jobs), page.looked, page.of, page.cursor) == (2, 7, 7, "")
    page = await node.jobs(owner=owner)
    assert (len(page.jobs), page.looked, page.of) == (2, 2, 0)


async def test_arguments_are_fetched_if_they_are_asked_for(fleet: Fleet) -> None:
    """Wherever they stand: in a start, apart from it, or under the name of who is queued."""
    node, _ = await full_house(fleet)
    told: dict[str, Any] = {}
    cursor = ""
    while True:
        page = await node.jobs(page=3, cursor=cursor, payloads=True)
        told |= {f"{s.key} {s.state}": page.payloads[s.key, s.job_id] for s in page.jobs}
        if not (cursor := page.cursor):
            break
    assert told["r1 running"] == ((1,), {"word": "x"})
    assert told["r1 queued"] == ((), {})
    assert told["later waiting"] == (("a" * 5000,), {})
    assert told["u3 unassigned"] == ((4,), {})
    assert (await node.jobs()).payloads == {}


async def test_a_page_of_a_large_pool_looks_at_no_more_than_it_says(fleet: Fleet) -> None:
    """G-09: what nobody is asked for costs no more than a page, however many there are."""
    node = await fleet.node(handlers)
    names, records = Names(fleet.pool, 0), 20_000
    text = "W|j|id-{0}|until_stopped||{1}|1|d||||||||"
    fleet.is_audited = False
    for first in range(0, records, 5000):
        some = range(first, first + 5000)
        fleet.client.hset(names.jobs, mapping={f"k{n}": text.format(n, n + 1) for n in some})
    fleet.client.config_resetstat()
    page = await node.jobs(prefix="k1", page=PAGE_MAX)
    calls = fleet.client.info("commandstats")
    assert calls["cmdstat_hscan"]["calls"] == 1
    assert PAGE_MAX / 2 <= page.looked <= 2 * PAGE_MAX
    assert (page.of, bool(page.cursor)) == (records, True)
    assert await node.count(prefix="k1") >= 11_111
    fleet.client.delete(names.jobs)


async def test_a_page_looks_at_no_more_though_it_finds_nothing(fleet: Fleet) -> None:
    node = await fleet.node(handlers)
    for n in range(6):
        await node.options(delay_s=300).dispatch(poller, f"k{n}")
    page = await node.jobs(state="waiting", prefix="none", page=2)
    assert (page.jobs, page.looked, bool(page.cursor)) == ((), 2, True)


async def test_a_cursor_of_no_page_is_refused(fleet: Fleet) -> None:
    """One that names a lane, a place or a kind that does not exist; by all listings."""
    node = await fleet.node(handlers)
    over = 2**64

    async def look(cursor: str) -> object:
        async with inspect.opened(fleet.pool, Url.parse(fleet.url)) as (pipeline, found):
            return await browse.jobs(pipeline, found, JobFilter(), cursor=cursor)

    for cursor in ("7.0.0", f"0.0.{over}", "0.0.5-3"):
        for listing in (lambda cursor: node.jobs(cursor=cursor), look):
            with pytest.raises(InvalidOption):
                await listing(cursor)
    with pytest.raises(InvalidOption):
        await node.schedules.list(cursor=f"0.{over}")
    assert (await node.jobs(state="waiting", cursor=f"0.0.{over - 1}")).jobs == ()
    for ask in (
        node.jobs(cursor="7.0.0"),
        node.schedules.list(cursor="7.0"),
        node.parked.list(cursor="7.."),
    ):
        with pytest.raises(InvalidOption, match="it names lane 7, and the last one is 0"):
            await ask


@pytest.mark.parametrize(
    "wanted",
    [{"state": "parked"}, {"page": 0}, {"page": 2001}, {"cursor": "x"}, {"older_than_s": -1}],
)
async def test_what_cannot_be_looked_for(fleet: Fleet, wanted: Any) -> None:
    node = await fleet.node()
    with pytest.raises(InvalidOption):
        await node.jobs(**wanted)


# --- stopping -----------------------------------------------------------------------------------


async def test_a_handler_sees_why_it_is_stopped_and_may_clean_up(fleet: Fleet) -> None:
    node = await fleet.node(handlers)
    ref = await node.dispatch(until_stopped, "k")
    await ref.started(timeout_s=30)
    await ref.stop("the user has left")
    assert (causes, cleaned) == (["the user has left"], ["k"])
    await ref.stop("again")
    assert (await ref.status()).cause == "the user has left"


@pytest.mark.parametrize("state", ["running", "waiting", "unassigned", "queued"])
async def test_a_stop_is_confirmed_in_every_state_and_asked_for_again_does_nothing(
    fleet: Fleet, state: str
) -> None:
    """By the reference and from another node; what was asked first is what is told."""
    node, other = await fleet.node(handlers), await fleet.node()
    if state == "waiting":
        ref = await node.options(delay_s=300).dispatch(until_stopped, "k")
    elif state == "unassigned":
        ref = await node.options(allow_unknown=True).dispatch("nobody", "k")
    else:
        ref = await node.dispatch(until_stopped, "k")
        await ref.started(timeout_s=30)
    if state == "queued":
        ref = await node.options(if_exists="queue").dispatch(until_stopped, "k")
    assert (await ref.status()).state == state
    theirs = await other.job("k", ref.job_id)
    await theirs.stop("first", timeout_s=30)
    await ref.stop("second", timeout_s=30)
    status = await ref.status()
    assert (status.state, status.cause) == ("cancelled", "first")
    assert causes == (["first"] if state == "running" else [])


async def test_a_hand_over_is_no_stop(fleet: Fleet) -> None:
    node = await fleet.node(handlers, grace_s=0.0)
    ref = await node.dispatch(until_stopped, "k")
    await ref.started(timeout_s=30)
    await fleet.leave(node)
    assert causes == [""]


async def test_what_did_not_stop_is_told_with_what_it_does(fleet: Fleet) -> None:
    node = await fleet.node(handlers)
    gate.append(fleet.gate())
    ref = await node.dispatch(stubborn, "k")
    await ref.started(timeout_s=30)
    with pytest.raises(NotStopped) as raised:
        await ref.stop("enough", timeout_s=1.0)
    owner = (await ref.status()).owner
    assert (raised.value.owner, raised.value.waited_s) == (owner, 1.0)
    assert raised.value.why == "its handler has been told, and has not returned"
    report = await node.stop_all(timeout_s=1.0)
    assert (report.found, report.stopped, report.is_complete) == (1, 0, False)
    assert isinstance(report.problems[0], NotStopped)
    gate[0].set()
    assert await ref.result(timeout_s=30) == "enough"


async def test_a_dry_run_tells_what_would_be_stopped(fleet: Fleet) -> None:
    node, _ = await full_house(fleet)
    report = await node.stop_all(prefix="u", dry_run=True)
    assert (report.found, report.stopped, sorted(report.keys)) == (3, 0, ["u1", "u2", "u3"])
    assert len(await every(node)) == 7


async def test_of_many_that_are_stopped_the_first_are_named(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping, "TOLD_MAX", 2)
    monkeypatch.setattr(stopping, "PAGE", 1)
    node, _ = await full_house(fleet)
    report = await node.stop_all(timeout_s=5)
    assert (report.found, report.is_complete, len({*report.keys})) == (7, True, 2)


async def test_all_of_a_handler_are_stopped_and_no_others(fleet: Fleet) -> None:
    """In whatever state; the queued ones, too."""
    node, _ = await full_house(fleet)
    report = await node.stop_all(handler="poller", cause="bye")
    assert (report.found, report.is_complete, sorted(report.keys)) == (2, True, ["r1", "u2"])
    assert await keys(node) == ["later", "r1", "r2", "u1", "u3"]
    report = await node.stop_all(prefix="r", cause="bye")
    assert (report.found, report.is_complete, causes) == (2, True, ["bye", "bye"])
    report = await node.stop_all()
    assert report.is_complete
    assert (await keys(node), await node.count()) == ([], 0)
    assert (await node.stop_all()).found == 0


async def test_the_whole_line_is_stopped_though_it_moves_on_meanwhile(fleet: Fleet) -> None:
    node = await fleet.node(handlers)
    options = node.options(if_exists="queue")
    refs = [await options.dispatch(until_stopped, f"k{n % 3}", n) for n in range(30)]
    report = await node.stop_all()
    assert (report.found, report.is_complete) == (30, True)
    for ref in refs:
        with pytest.raises(JobCancelled):
            await ref.result(timeout_s=30)
    names = Names(fleet.pool, 0)
    assert not fleet.client.exists(names.jobs, names.payloads)
    assert queued("k", "id") == "\tid k"


@pytest.mark.parametrize("lanes", [1, 3])
async def test_what_nobody_takes_is_listed_and_counted(fleet: Fleet, lanes: int) -> None:
    """No index leads to it, as no name of it is registered."""
    node = await fleet.node(handlers, capacity=1, lanes=lanes)
    await node.options(allow_unknown=True).dispatch_many("nobody", [f"n{i}" for i in range(5)])
    assert await node.count(state="unassigned") == 5
    await node.dispatch_many(until_stopped, [f"k{i}" for i in range(4)])
    found = {"n0", "n1", "n2", "n3", "n4"}

    async def all_found() -> bool:
        keys = {status.key for status in await every(node, state="unassigned")}
        return found < keys and len(keys) == 8

    await fleet.until(all_found)
    assert await node.count(state="unassigned") == 8
    assert {s.key for s in await every(node, state="unassigned", handler="nobody")} == found
    assert await node.count(state="unassigned", handler="nobody") == 5


async def test_who_stops_what_never_was_is_told(fleet: Fleet) -> None:
    node = await fleet.node(handlers)
    ref = await node.dispatch(until_stopped, "k")
    await ref.stop(timeout_s=30)
    await ref.stop(timeout_s=30)  # it has ended: that is as it should be
    for other in (await node.job("k", "none"), await node.job("nowhere", "none")):
        with pytest.raises(NoSuchJob):
            await other.stop(timeout_s=30)


@pytest.mark.parametrize("call", ["stop_all", "shutdown_pool"])
async def test_a_job_that_ends_all_is_one_of_them_and_it_goes_on(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setattr(stopping, "AT_ONCE", 1)
    node, other = await fleet.node(handlers), await fleet.node(handlers)
    refs = [await node.dispatch(until_stopped, f"k{i}") for i in range(20)]
    refs.append(await node.dispatch(enough, "k", call))
    for ref in refs:
        with pytest.raises(JobCancelled):
            await ref.result(timeout_s=30)
    assert len(cleaned) == 20
    if call == "shutdown_pool":
        await fleet.until(lambda: (node.state, other.state) == ("drained", "drained"))
    else:
        assert (node.state, other.state) == ("open", "open")


async def test_a_pool_is_shut_down_with_its_jobs(fleet: Fleet) -> None:
    node, _ = await full_house(fleet)
    report = await node.shutdown_pool(end_jobs=True)
    assert report is not None
    assert (report.found, report.is_complete) == (7, True)
    assert causes == ["the pool is shut down"] * len(causes)
    assert not fleet.client.exists(Names(fleet.pool, 0).jobs)
