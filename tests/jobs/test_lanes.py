"""More lanes than one: nothing may assume that there is just one (keys with one hash tag each)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import NoneType
from typing import TYPE_CHECKING, Any

import pytest

from pool import Call, Handlers, Job, JobRef
from pool.core.placement import Candidate, Candidates
from pool.core.record import Outcome, Record
from pool.errors import ConfigError, StoreLost
from pool.events import WorkerReaped
from pool.jobs.roster import WorkerEntry
from pool.jobs.worker.messages import Ticked
from pool.maps.deltas import Set
from pool.names import Control, Names, lane_of
from pool.ops import inspect
from pool.redis.commands.edges import Pulled

if TYPE_CHECKING:
    from tests.nodes import Diary, Fleet

pytestmark = pytest.mark.anyio
LANES = 3


def made(diary: Diary) -> Handlers:
    mine = Handlers()

    @mine.job("double", attempts_max=2, backoff_s=0.01)
    async def double(job: Job, n: int) -> int:
        if job.attempt == 1 and n % 2:
            raise ValueError("the first try fails")
        return 2 * n

    @mine.service("listen")
    async def listen(job: Job) -> None:
        seen = job.state or 0
        diary.note("start", job.key, seen)
        try:
            async for note in job.notifications():
                seen += 1
                diary.note("heard", job.key, note)
        finally:
            job.state = seen

    return mine


class Counted(dict[str, Any]):
    """Counts how often all of it is looked at."""

    looked = 0

    def values(self) -> Any:
        self.looked += 1
        return super().values()


class CountedLanes(list[Any]):
    """Likewise."""

    looked = 0

    def __iter__(self) -> Iterator[Any]:
        self.looked += 1
        return super().__iter__()


async def test_what_concerns_one_lane_looks_at_no_other(fleet: Fleet, diary: Diary) -> None:
    """At 256 lanes each job looked at all of them, and each lane's tick at all runs."""
    node = await fleet.node(made(diary), lanes=LANES)
    for n in range(LANES):
        await (await node.dispatch("listen", f"k{n}")).started(timeout_s=30)
    [worker] = fleet.workers(node)
    runs, lanes = Counted(worker.runs), CountedLanes(worker.context.lanes)
    worker.runs, worker.context.lanes = runs, lanes
    worker._fill()
    for lane in range(LANES):
        worker._on_tick(Ticked(lane, 0.0, len(worker._in_lane(lane)), was_away=False))
    assert (runs.looked, lanes.looked) == (0, 0)
    assert sum(len(worker._in_lane(lane)) for lane in range(LANES)) == len(runs) == LANES


async def test_jobs_of_all_lanes_live_their_lives(fleet: Fleet, diary: Diary) -> None:
    """G-01, G-04: dispatch, retry, delay, result, whichever lane the key is in."""
    node = await fleet.node(made(diary), lanes=LANES)
    keys = [f"k{n}" for n in range(24)]
    assert {lane_of(key, LANES) for key in keys} == set(range(LANES))
    refs = await node.options(delay_s=0.05).dispatch_many(
        "double", [Call(key, n) for n, key in enumerate(keys)]
    )
    results: list[Any] = []
    for ref in refs:
        assert isinstance(ref, JobRef)
        results.append(await ref.result(timeout_s=30))
    assert results == [2 * n for n in range(24)]


async def test_services_of_all_lanes_are_notified_handed_over_and_stopped(
    fleet: Fleet, diary: Diary
) -> None:
    """G-02, G-07: with their state and what they had not handled."""
    first = await fleet.node(made(diary), lanes=LANES)
    keys = [f"service-{n}" for n in range(12)]
    assert {lane_of(key, LANES) for key in keys} == set(range(LANES))
    for key in keys:
        await first.dispatch("listen", key)
        await first.notify(key, "one")
    for key in keys:
        await diary.has("heard", key, "one")
    second = await fleet.node(made(diary), lanes=LANES)
    await fleet.leave(first)
    for key in keys:
        await diary.has("start", key, 1)
        await second.notify(key, "two")
        await diary.has("heard", key, "two")
        await second.stop(key, timeout_s=30)


async def test_the_number_of_lanes_is_fixed_when_the_pool_is_made(fleet: Fleet) -> None:
    """A node with another number would look for keys where they are not."""
    await fleet.node(lanes=LANES)
    with pytest.raises(ConfigError, match="lanes"):
        await fleet.node(lanes=LANES + 1)


async def test_who_names_no_number_joins_a_pool_of_any(fleet: Fleet, diary: Diary) -> None:
    """Client and worker find the keys where those who named it have them."""
    first = await fleet.node(lanes=LANES)
    second = await fleet.node(made(diary))
    third = await fleet.node()
    keys = [f"k{n}" for n in range(12)]
    assert {lane_of(key, LANES) for key in keys} == set(range(LANES))
    assert [len(fleet.wiring(node).context.lanes) for node in (first, second, third)] == [3, 3, 3]
    for n, key in enumerate(keys):
        ref = await (first, third)[n % 2].dispatch("double", key, n)
        assert await ref.result(timeout_s=30) == 2 * n
    assert second.settings.lanes is None  # as it was given


async def test_who_names_no_number_founds_a_pool_of_one_lane(fleet: Fleet) -> None:
    node = await fleet.node()
    assert len(fleet.wiring(node).context.lanes) == 1
    with pytest.raises(ConfigError, match="was made with 1, not 2: name none, or 1") as refused:
        await fleet.node(lanes=2)
    assert refused.value.setting == "lanes"


async def test_more_lanes_than_its_settings_can_be_shared_by_are_refused(fleet: Fleet) -> None:
    """As they are where both numbers stand in the settings."""
    await fleet.node(lanes=LANES)
    with pytest.raises(ConfigError, match="1 for each of the 3 lanes") as refused:
        await fleet.node(queued_jobs_max=LANES - 1)
    assert refused.value.setting == "queued_jobs_max"
    await fleet.node(queued_jobs_max=LANES)


@pytest.mark.parametrize("named", [LANES, None])
async def test_a_pool_that_lost_its_data_is_joined_anew_in_all_lanes(
    fleet: Fleet, diary: Diary, named: int | None
) -> None:
    """New work is served again, in each lane: it is made again as it was."""
    founder = await fleet.node(lanes=LANES, lease_ttl_s=1.0)
    node = await fleet.node(made(diary), lanes=named, lease_ttl_s=None)
    await fleet.leave(founder)
    for key in fleet.client.scan_iter(match=f"pool:{{{fleet.pool}*", count=1000):
        fleet.client.delete(key)

    async def serves(key: str) -> bool:
        try:
            ref = await node.dispatch("double", key, 2)
            return bool(await ref.result(timeout_s=30) == 4)
        except StoreLost:
            return False

    for key in ("k0", "k1", "k2", "k3", "k4", "k5"):
        await fleet.until(partial(serves, key))
    assert fleet.client.hget(Control(fleet.pool).config, "lanes") == b"%d" % LANES


async def test_an_orphan_is_found_in_whichever_lane_it_is(fleet: Fleet) -> None:
    """G-05: its lease in lane 0 is good, in lane 1 it never was, in lane 2 it is gone."""
    node = await fleet.node(lanes=LANES, lease_ttl_s=1.0)
    wiring = fleet.wiring(node)
    fleet.client.zadd(Names(fleet.pool, 0).keepalive, {"ghost.1": 9e12})
    ghost = WorkerEntry(
        id="ghost",
        node="n0",
        handlers=("h",),
        capacity=1,
        weight=1.0,
        label="",
        version="",
        is_draining=False,
        numbers=(1, 0, 1),
    )
    await wiring.replica.write([Set(b"ghost", ghost.pack())])
    await fleet.seen(WorkerReaped, identity="ghost.1")
    await fleet.until(lambda: not node.workers)
    fleet.client.zadd(Names(fleet.pool, 0).keepalive, {"ghost.1": 1})
    await fleet.seen(WorkerReaped, 2)
    assert {each.identity for each in fleet.all_seen(WorkerReaped)} == {"ghost.1"}


async def test_a_worker_that_has_not_joined_a_lane_is_nobodys_target_there(fleet: Fleet) -> None:
    """It announces 0 for that lane; the next in rank is first there."""
    node = await fleet.node(lanes=LANES)
    context = fleet.wiring(node).context
    of = partial(Candidate, handlers=frozenset(["h"]))
    context.roster._candidates = Candidates(
        [of(f"w{n}", numbers=(1, 0 if n else 1, 1)) for n in range(20)]
    )
    for n in range(20):
        key = f"k{n}"
        assert [t.id for t in context.targets(key, "h", lane=1, limit=1)] == ["w0"]
        assert context.targets(key, "h", lane=1, limit=8, but="w0") == ()
        assert len(context.targets(key, "h", lane=2, limit=8)) == 8


async def test_what_runs_in_one_lane_is_a_slot_less_for_the_others(
    fleet: Fleet, diary: Diary
) -> None:
    """And what a pull has brought before it was answered is not counted as still coming."""
    node = await fleet.node(made(diary), lanes=LANES, lease_ttl_s=60.0)
    await (await node.dispatch("listen", "k")).started(timeout_s=30)
    [worker], mine = fleet.workers(node), lane_of("k", LANES)
    free = [worker.capacity - (lane != mine) for lane in range(LANES)]
    assert [worker.takes(lane) for lane in range(LANES)] == free
    lane = worker._lanes[mine]
    lane.is_pulling, lane.coming, lane.come = True, 5, 0
    worker._note_come(lane, 2)
    worker._on_pulled(lane.box, Pulled(left=0, granted=3, oldest=0))
    assert (lane.is_pulling, lane.coming) == (False, 1)
    worker._note_come(lane, 1)
    assert lane.coming == 0


async def test_how_jobs_of_all_lanes_are_or_ended_is_told_in_their_order(
    fleet: Fleet, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspect, "_LOOKS", 3)  # more than one call in each lane
    node = await fleet.node(made(diary), lanes=LANES)
    refs = [await node.dispatch("double", f"k{n}", 2 * n) for n in range(24)]
    refs.append(await node.dispatch("listen", "service"))
    for ref in refs[:-1]:
        await ref.result(timeout_s=30)
    pipeline = fleet.wiring(node).context.pipeline
    found = await inspect.find(pipeline, fleet.pool)
    assert found is not None
    asked = [(ref.key, ref.job_id) for ref in refs]
    told = await inspect.outcomes(pipeline, found, [*asked, ("k0", "unknown")])
    assert [type(each) for each in told] == [*[Outcome] * 24, Record, NoneType]
    assert [each.body for each in told if isinstance(each, Outcome)] == [
        str(4 * n).encode() for n in range(24)
    ]
