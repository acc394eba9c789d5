"""What the store has lost is told as lost, what has ended as ended; who cannot know says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import attrs
import pytest

from pool import Handlers, Job, JobRef
from pool.errors import JobLost, NoSuchJob, OutcomeExpired, StoreLost, StoreUnavailable
from pool.events import DataLost
from pool.jobs.context import Seen
from pool.names import pair
from pool.redis.commands.talk import Missing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pool import Node
    from tests.nodes import Fleet

KNOWN_S = 30.0
HOUR_S = 3600.0


async def asked(call: Callable[[], Awaitable[object]]) -> str:
    """Return the name of the error that this call raises."""
    try:
        with anyio.fail_after(30):
            await call()
    except (JobLost, OutcomeExpired, NoSuchJob) as error:
        return type(error).__name__
    return ""


async def later(fleet: Fleet, node: Node, key: str = "k") -> JobRef[Any]:
    """Dispatch what nobody starts; its record will be gone, so nothing is audited."""
    fleet.is_audited = False
    return await node.options(delay_s=HOUR_S, allow_unknown=True).dispatch("later", key)


def long_ago(ref: JobRef[Any]) -> None:
    """Have it be an hour since the job was seen, by our clock and by the server's."""
    seen = ref._seen
    assert seen is not None
    at_s, server_ms = seen.at_s - HOUR_S, seen.server_ms - 1000 * HOUR_S
    ref._see(attrs.evolve(seen, at_s=at_s, server_ms=server_ms))


@pytest.mark.anyio
@pytest.mark.parametrize("record", [None, b"garbage", b"another"])
async def test_a_job_that_was_there_a_moment_ago_is_lost(
    fleet: Fleet, record: bytes | None
) -> None:
    """B6: its record was deleted, cannot be read, or is another job's."""
    node = await fleet.node()
    ref = await later(fleet, node)
    if record == b"another":
        text: Any = fleet.client.hget(fleet.names.jobs, "k")
        record = text.replace(ref.job_id.encode(), b"another")
    if record is None:
        fleet.client.hdel(fleet.names.jobs, "k")
    else:
        fleet.client.hset(fleet.names.jobs, "k", record)
    for call in (ref.result, ref.started, ref.status):
        assert await asked(call) == "JobLost"


@pytest.mark.anyio
@pytest.mark.parametrize("first", ["result", "started", "status", "stages", "stop"])
async def test_what_was_told_as_lost_stays_lost(fleet: Fleet, first: str) -> None:
    """An hour later nobody could tell any more that it has not just ended."""
    node = await fleet.node()
    ref = await later(fleet, node)
    fleet.client.hdel(fleet.names.jobs, "k")
    assert await asked(getattr(ref, first)) == "JobLost"
    long_ago(ref)
    for call in (ref.result, ref.started, ref.status, ref.stages, ref.stop):
        assert await asked(call) == "JobLost"


@pytest.mark.anyio
@pytest.mark.usefixtures("asks_again")
async def test_who_waits_is_told_that_it_was_lost(fleet: Fleet) -> None:
    """However long ago it was accepted: who waits has seen it since."""
    mine = Handlers()

    @mine.job("long")
    async def long(job: Job) -> None:
        await anyio.sleep_forever()

    node = await fleet.node(mine)
    ref = await node.dispatch(long, "k")
    await ref.started(timeout_s=30)
    long_ago(ref)
    fleet.is_audited = False
    async with anyio.create_task_group() as tasks:

        async def wait() -> None:
            assert await asked(ref.result) == "JobLost"

        tasks.start_soon(wait)
        waiting = fleet.wiring(node).waiters._waiting
        await fleet.until(lambda: waiting.get(pair(ref.key, ref.job_id)))
        [one] = waiting[pair(ref.key, ref.job_id)]
        before = one.seen
        await fleet.until(lambda: one.seen is not before)
        fleet.client.hdel(fleet.names.jobs, "k")
        fleet.wiring(node).waiters.look_again()


@pytest.mark.anyio
async def test_a_lane_back_with_older_data_has_lost_what_it_had_not_then(fleet: Fleet) -> None:
    """B6: an old RDB was restored; the stamp tells, though the job was last seen an hour ago."""
    node = await fleet.node()
    await later(fleet, node, "before")
    [state] = fleet.wiring(node).context.lanes
    await fleet.until(lambda: state.stamp)  # a renewal told it
    ref = await later(fleet, node)
    long_ago(ref)
    fleet.client.hdel(fleet.names.jobs, "k")
    assert await asked(ref.result) == "OutcomeExpired"  # the lane has not gone back
    fleet.client.hset(fleet.names.lane, "stamp", 5)
    assert await asked(ref.result) == "JobLost"
    assert await asked(ref.status) == "JobLost"


@pytest.mark.anyio
async def test_what_ended_long_ago_has_ended_or_was_lost(fleet: Fleet) -> None:
    mine = Handlers()

    @mine.job("quick")
    async def quick(job: Job) -> None:
        pass

    node = await fleet.node(mine)
    heard, unheard = [await node.dispatch(quick, key) for key in ("a", "b")]
    await heard.result(timeout_s=30)
    await fleet.until(lambda: fleet.client.exists(fleet.names.result(unheard.key, unheard.job_id)))
    long_ago(unheard)
    for ref in (heard, unheard, JobRef[Any]("c", "never", "quick", node._client)):
        fleet.client.delete(fleet.names.result(ref.key, ref.job_id))
        with pytest.raises(OutcomeExpired, match="has ended, or was lost"):
            await ref.result(timeout_s=30)
        assert await asked(ref.status) == "NoSuchJob"


SEEN = Seen(stamp=10**15, at_s=100.0, server_ms=10**12, generation="i1")


@pytest.mark.parametrize(
    ("stamp", "own_s", "server_s", "generation", "is_lost"),
    [
        (10**15, 5.0, 5.0, "i1", True),
        (10**15 - 1, HOUR_S, HOUR_S, "i1", True),  # the lane has gone back
        (10**15, 20.0, 20.0, "i1", False),  # a node with a shorter window may have forgotten it
        (10**15, 5.0, HOUR_S, "i1", False),  # the server's clock leapt, and outcomes ended by it
        (10**15, HOUR_S, 5.0, "i1", False),  # it went back
        (10**16, HOUR_S, HOUR_S, "i2", True),  # the lane was made anew, and has accepted more since
        (10**16, HOUR_S, HOUR_S, "", False),  # nobody knows that
    ],
)
def test_what_is_known_of_a_job_that_is_not_there(
    stamp: int, own_s: float, server_s: float, generation: str, is_lost: bool
) -> None:
    missing = Missing(stamp, 10**12 + round(1000 * server_s))
    assert SEEN.is_lost(missing, 100.0 + own_s, KNOWN_S, generation) == is_lost


async def accepted_anew(client: Node) -> JobRef[Any]:
    """Dispatch until the pool that was made anew accepts it."""
    with anyio.fail_after(30):
        while True:
            try:
                return await client.options(allow_unknown=True).dispatch("serve", "k")
            except (StoreLost, StoreUnavailable):
                await anyio.sleep(0.01)  # it joins its lanes anew


@pytest.mark.anyio
@pytest.mark.parametrize("by", ["dispatch", "status", "result"])
@pytest.mark.parametrize("lanes", [1, 4])
async def test_what_was_seen_before_all_data_were_lost_is_lost_whatever_came_since(
    fleet: Fleet, by: str, lanes: int
) -> None:
    """K5: once the new data had one job, a service seen running was `NoSuchJob` to its client."""
    fleet.is_audited = False
    handlers, release = Handlers(), anyio.Event()

    @handlers.service("serve")
    async def serve(job: Job) -> None:
        await release.wait()

    await fleet.node(handlers, lanes=lanes)
    client = await fleet.node(lanes=lanes)
    await fleet.knows(client, 1)
    ref = await client.dispatch("serve", "k")
    if by == "status":
        assert (await ref.status()).state
    elif by == "result":
        with pytest.raises(TimeoutError):
            await ref.result(timeout_s=0)
    long_ago(ref)
    every = fleet.client.scan_iter(match=f"pool:{{{fleet.pool}*", count=1000)
    fleet.client.delete(*every)
    await fleet.seen(DataLost, times=2)
    again = await accepted_anew(client)
    assert again.job_id != ref.job_id
    for ask in (ref.status, ref.result, ref.started, ref.stop, ref.stages):
        assert await asked(ask) == "JobLost", ask
    assert (await again.status()).job_id == again.job_id
    release.set()
