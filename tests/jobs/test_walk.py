"""The walk over all records: what no index leads to is found, and put right (G-05).

Indexes are deleted by hand, one entry or the whole key; jobs of a worker that only the store knows
(a ghost) stand for those of a process that is alive, dead, or dead for long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
import attrs
import pytest

from pool import Handlers, Job, Node, PoolError
from pool.core.options import Options
from pool.core.record import Record
from pool.errors import JobSuperseded, StoreFault, StoreUnavailable
from pool.events import (
    CountersMended,
    IndexRestored,
    LeaseLost,
    RecordQuarantined,
    StoreTroubled,
    WorkerFenced,
)
from pool.jobs.fleet.walker import Walker
from pool.names import Names, lane_of, line, queued
from pool.redis.commands.admission import Admission
from pool.redis.commands.calls import Target
from pool.redis.commands.edges import AcknowledgeEdge
from pool.redis.commands.lane import Lane
from pool.redis.scripts import ScriptCall
from pool.testing.audit import audit

if TYPE_CHECKING:
    from tests.nodes import Diary, Fleet

pytestmark = pytest.mark.anyio

TTL_S = 1.0
FOUND_S = 30.0  # two passes and a lease, on a busy machine
FAR_MS = 3_600_000


def made(diary: Diary, gate: anyio.Event | None = None) -> Handlers:
    """Return handlers that note each of their starts and ends."""
    mine = Handlers()

    @mine.service("serve")
    async def serve(job: Job) -> None:
        diary.note("start", job.key)
        try:
            await anyio.sleep_forever()
        finally:
            diary.note("stop", job.key)

    @mine.job("quick")
    async def quick(job: Job) -> str:
        diary.note("start", job.key)
        return job.key

    @mine.job("held")
    async def held(job: Job) -> str:
        diary.note("start", job.key)
        assert gate is not None
        await gate.wait()
        return job.key

    return mine


@attrs.define
class Ghost:
    """A worker of which only the store knows, in every lane; nobody renews its leases."""

    fleet: Fleet
    node: Node
    lanes: int
    id: str = "wghost"

    @property
    def name(self) -> str:
        return f"{self.id}.1"

    def each(self) -> list[Lane]:
        return [state.lane for state in self.fleet.wiring(self.node).context.lanes]

    def run(self, call: ScriptCall) -> Any:
        client: Any = self.fleet.client
        return client.eval(call.script.source, len(call.keys), *call.keys, *call.args)

    def join(self) -> Ghost:
        for lane in self.each():
            call = lane.join(
                Target("nghost", 1),
                {Target(self.id, 1): 100},
                {"serve": Options(kind="service"), "quick": Options(), "nobodys": Options()},
                is_new=False,
                not_after_ms=10**15,
                pool_ttl_ms=FAR_MS,
            )
            now_ms, *_ = self.run(call)
            self.fleet.client.zadd(lane.names.keepalive, {self.name: int(now_ms) + FAR_MS})
        return self

    def put(self, key: str, state: str, handler: str = "quick") -> None:
        """Make a job of the ghost's, or of nobody's where its state has no owner."""
        lane = self.each()[lane_of(key, self.lanes)]
        item = Admission(
            key=key,
            id=f"id-{key}",
            handler=handler,
            kind=None,
            payload=b"[]",
            delay_s=300.0 if state == "W" else 0.0,
            unassigned=True,
            ranked=(1,) if state in "PR" else (),
        )
        target = Target(self.id, 1)
        call = lane.dispatch([item], [target], pending_s=300.0, queued_jobs_max=10**6)
        assert self.run(call)[0].startswith(b"OK")
        if state == "R":
            record = Record.parse(self.fleet.client.hget(lane.names.jobs, key) or b"")  # type: ignore[arg-type]
            assert record is not None
            edge = AcknowledgeEdge(key, record.epoch, record.id)
            call = lane.advance("own", self.name, [edge], pending_s=300.0)
            assert self.run(call)[1].startswith(b"OK")

    def end_lease(self) -> None:
        for lane in self.each():
            self.fleet.client.zadd(lane.names.keepalive, {self.name: 1})


def states(fleet: Fleet) -> list[str]:
    """Return the states of all jobs of a pool with one lane."""
    texts: Any = fleet.client.hvals(fleet.names.jobs)
    return [record.state for text in texts if (record := Record.parse(text)) is not None]


async def is_sound(fleet: Fleet, within_s: float = FOUND_S) -> None:
    """Wait until the audit is clean: within a bound."""
    problems: list[str] = []

    def look() -> bool:
        problems[:] = audit(fleet.client, fleet.pool)
        return not problems

    with suppress(TimeoutError):
        await fleet.until(look, within_s)
        return
    pytest.fail("\n".join(problems))


def disturbed(fleet: Fleet, diary: Diary, lanes: int) -> list[str]:
    """Return what began twice or was fenced, but for where the machine was too slow for a lease."""
    slow = {event.lane for event in fleet.all_seen(LeaseLost)}
    starts = Counter(key for what, key in diary.entries if what == "start")
    twice = [key for key, n in starts.items() if n > 1 and lane_of(key, lanes) not in slow]
    fenced = fleet.all_seen(WorkerFenced)
    return twice + [event.worker for event in fenced if event.lane not in slow]


Damage = Callable[[Any, Names, str], object]


def key_of(name: str) -> Damage:
    return lambda client, names, _: client.delete(getattr(names, name))


WHOLE: dict[str, Damage] = {
    "keepalive": key_of("keepalive"),
    "pending": key_of("pending"),
    "due": key_of("due"),
    "cleanup": key_of("cleanup"),
    "owned": lambda client, names, owner: client.delete(names.owned(owner)),
    "unassigned": lambda client, names, _: client.delete(names.unassigned("nobodys")),
}


async def test_what_a_server_that_went_back_has_lost_ends_without_traffic(
    fleet: Fleet, diary: Diary
) -> None:
    """Its handlers would run on beside whoever dispatches the keys again: no stamp is as new."""
    node = await fleet.node(made(diary), lease_ttl_s=TTL_S)
    n = fleet.names
    await (await node.dispatch("quick", "before")).result(timeout_s=30)
    stamp: Any = fleet.client.hget(n.lane, "stamp")
    for key in ("a", "b"):
        await (await node.dispatch("serve", key)).started(timeout_s=30)
    with fleet.client.pipeline() as pipe:
        pipe.delete(n.jobs, n.payloads, *fleet.client.keys(n.owned("*")))
        pipe.hset(n.lane, "stamp", stamp)
        pipe.execute()
    await diary.has("stop", "a")
    await diary.has("stop", "b")


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("index", WHOLE)
async def test_an_index_that_was_deleted_is_made_again(
    fleet: Fleet, diary: Diary, index: str, lanes: int
) -> None:
    """G-05: its owner lives; nobody innocent is stopped, and the data are sound in two passes."""
    node = await fleet.node(made(diary), lanes=lanes, lease_ttl_s=TTL_S)
    ghost = Ghost(fleet, node, lanes).join()
    services = [f"serve-{n}" for n in range(2 * lanes)]
    for key in services:
        await node.dispatch("serve", key)
    for key in services:
        await diary.has("start", key)
    for state in "PRWU":  # the last ones last: who comes behind them would join their queue
        for n in range(4 * lanes):
            ghost.put(f"{state}-{n}", state, "nobodys")
    await is_sound(fleet)
    [worker] = fleet.workers(node)
    for lane in ghost.each():
        for owner in (ghost.name, worker.target(lane.names.number).name):
            WHOLE[index](fleet.client, lane.names, owner)
    await is_sound(fleet)
    if index == "keepalive":  # then nobody had a lease, and all had to join again
        for key in services:
            await diary.has("start", key, times=2)
    else:
        assert disturbed(fleet, diary, lanes) == []
    if index in ("pending", "due", "owned", "unassigned"):
        await fleet.seen(IndexRestored, index=index)
    for key in ("W-0", "U-0"):
        names = Names(fleet.pool, lane_of(key, lanes))
        text: Any = fleet.client.hget(names.jobs, key)
        record = Record.parse(text)
        assert record is not None
        assert record.state == {"W": "waiting", "U": "unassigned"}[key[0]]
        if record.state == "waiting":
            assert fleet.client.zscore(names.due, f"k:{key}") == record.since_ms


ENTRY: dict[str, Damage] = {
    "pending": lambda client, names, _: client.zrem(names.pending, "P-0"),
    "due": lambda client, names, _: client.zrem(names.due, "k:W-0"),
    "owned": lambda client, names, owner: client.srem(names.owned(owner), "R-0"),
    "unassigned": lambda client, names, _: client.zrem(names.unassigned("quick"), "U-0"),
}


STATE = {"pending": "P", "due": "W", "owned": "R", "unassigned": "U"}


@pytest.mark.parametrize("index", ENTRY)
async def test_an_entry_that_was_deleted_is_made_again(fleet: Fleet, index: str) -> None:
    """G-05: a client is enough for it, and what its record says is not changed by it."""
    client = await fleet.node(lease_ttl_s=TTL_S)
    ghost = Ghost(fleet, client, 1).join()
    key = f"{STATE[index]}-0"
    ghost.put(key, STATE[index])
    before = fleet.record(key)
    assert ENTRY[index](fleet.client, fleet.names, ghost.name) == 1
    assert audit(fleet.client, fleet.pool)
    await is_sound(fleet)
    after = fleet.record(key)
    assert before is not None
    assert after is not None
    if index == "unassigned":  # granted anew, to nobody
        assert (after.state, after.accepted) == ("unassigned", before.accepted)
    else:
        assert after == before
    await fleet.seen(IndexRestored, index=index, keys=1, key=key)


DEAD: dict[str, Callable[[Any, Names, str], object]] = {
    "owned": lambda client, names, name: client.delete(names.owned(name)),
    "keepalive": lambda client, names, name: client.zrem(names.keepalive, name),
    "keepalive and owned": lambda client, names, name: (
        client.zrem(names.keepalive, name),
        client.delete(names.owned(name)),
    ),
    "keepalive, owned, open and pending": lambda client, names, name: (
        client.zrem(names.keepalive, name),
        client.hdel(names.open, "wghost"),
        client.delete(names.owned(name), names.pending),
    ),
    "reaped": lambda client, names, name: (
        client.hset(names.cleanup, name, "done"),
        client.hdel(names.open, "wghost"),
        client.delete(names.owned(name), names.pending),
    ),
    "being reaped": lambda client, names, name: (
        client.hset(names.cleanup, name, "ndead.1|17"),
        client.zrem(names.keepalive, name),
        client.hdel(names.open, "wghost"),
    ),
}


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("missing", DEAD)
async def test_what_a_dead_worker_ran_is_taken_over(
    fleet: Fleet, diary: Diary, missing: str, lanes: int
) -> None:
    """G-05, G-06: whatever of its traces is missing, in whichever lane; it is in no `workers`."""
    node = await fleet.node(made(diary), lanes=lanes, lease_ttl_s=TTL_S)
    ghost = Ghost(fleet, node, lanes).join()
    keys = [f"{state}-{n}" for n in range(4 * lanes) for state in "PR"]
    for key in keys:
        ghost.put(key, key[0])
    if missing == "owned":
        ghost.end_lease()
    for lane in ghost.each():
        DEAD[missing](fleet.client, lane.names, ghost.name)
    with suppress(TimeoutError):
        await fleet.until(lambda: {key for _, key in diary.entries} >= set(keys), FOUND_S)
    assert {key for _, key in diary.entries} == set(keys)
    await is_sound(fleet)
    assert disturbed(fleet, diary, lanes) == []


async def test_a_worker_asks_before_it_cancels_what_no_index_has_as_its_own(
    fleet: Fleet, diary: Diary
) -> None:
    """G-05: the record decides; reconciliation itself puts the keys back, in two renewals."""
    node = await fleet.node(made(diary), lease_ttl_s=3.0)
    for n in range(3):
        await node.dispatch("serve", f"k{n}")
    await fleet.until(lambda: sorted(states(fleet)) == ["running"] * 3)
    [worker] = fleet.workers(node)
    owned = fleet.names.owned(worker.target(0).name)
    assert fleet.client.delete(owned)
    await fleet.seen(IndexRestored, index="owned", keys=3)
    await fleet.until(lambda: fleet.client.scard(owned) == 3)
    text: Any = fleet.client.hget(fleet.names.jobs, "k1")
    fleet.client.hset(fleet.names.jobs, "k1", text.replace(worker.id.encode(), b"wother"))
    worker._reconcile(0)
    await diary.has("stop", "k1")  # its record names somebody else
    await is_sound(fleet)
    assert diary.entries.count(("stop", "k0")) + diary.entries.count(("stop", "k2")) == 0


async def test_counters_come_right_again(fleet: Fleet) -> None:
    """G-05: whoever wrote them, or whatever went with a record that could not be read."""
    client = await fleet.node(lease_ttl_s=TTL_S)
    ghost = Ghost(fleet, client, 1).join()
    for n in range(3):
        ghost.put(f"W-{n}", "W")
        ghost.put(f"U-{n}", "U", "nobodys")
    fleet.client.hset(fleet.names.jobs, "W-0", "garbage")
    await fleet.seen(RecordQuarantined, key="W-0")
    await fleet.seen(CountersMended, before=(3, 3), after=(3, 2))
    fleet.client.hset(fleet.names.lane, mapping={"unassigned": 77, "waiting": 0})
    await fleet.seen(CountersMended, before=(77, 0), after=(3, 2))
    await is_sound(fleet)


async def test_what_was_found_is_told_until_a_pass_is_clean(fleet: Fleet) -> None:
    """`pool status` says that something was not in order."""
    client = await fleet.node(lease_ttl_s=TTL_S)
    Ghost(fleet, client, 1).join().put("U-0", "U", "nobodys")
    fleet.client.delete(fleet.names.unassigned("nobodys"))

    def astray() -> Any:
        return fleet.client.hget(fleet.names.lane, "astray")

    await fleet.until(lambda: astray() == b"1")
    await fleet.until(lambda: astray() == b"0")


async def test_a_pool_under_load_loses_all_its_indexes_and_no_job(
    fleet: Fleet, diary: Diary
) -> None:
    """G-01, G-05: every job ends, nothing runs twice, and no service is stopped."""
    node = await fleet.node(made(diary), lanes=2, lease_ttl_s=TTL_S, capacity=4)
    other = await fleet.node(made(diary), lanes=2, lease_ttl_s=TTL_S, capacity=4)
    for n in range(4):
        await node.dispatch("serve", f"serve-{n}")
    ended: list[str] = []

    async def load(caller: int) -> None:
        for n in range(150):
            delay_s = 0.2 if n % 5 == 0 else 0.0
            ref = await node.options(delay_s=delay_s).dispatch("quick", f"{caller}-{n}")
            ended.append(await ref.result(timeout_s=30))

    async def damage() -> None:
        for n in range(12):
            names = Names(fleet.pool, n % 2)
            fleet.client.delete(names.pending, names.due, names.unassigned("quick"))
            for each in (node, other):
                [worker] = fleet.workers(each)
                fleet.client.delete(names.owned(worker.target(n % 2).name))
            await anyio.sleep(0.25)

    async with anyio.create_task_group() as tasks:
        for caller in range(16):
            tasks.start_soon(load, caller)
        tasks.start_soon(damage)
    assert len(ended) == 16 * 150
    await is_sound(fleet)
    assert disturbed(fleet, diary, lanes=2) == []


async def test_a_walk_that_fails_is_told_and_an_absent_server_is_not(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Renewals tell of the server."""
    errors: list[PoolError] = [
        StoreUnavailable(problem="away", maybe_done=False),
        StoreFault(problem="odd", maybe_done=False),
    ]

    async def look(*_: object) -> float:
        if errors:
            raise errors.pop(0)
        return FAR_MS / 1000

    monkeypatch.setattr(Walker, "look", look)
    await fleet.node(lease_ttl_s=1.0)
    told = await fleet.seen(StoreTroubled, during="walk")
    assert "odd" in told.problem
    assert not errors
    assert len(fleet.all_seen(StoreTroubled, during="walk")) == 1  # a renewal may be slow
    assert not [each for each in fleet.all_seen(StoreTroubled) if "away" in each.problem]


async def test_an_error_in_place_of_an_answer_costs_one_lease(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once: what stays in the way (a key of another type) is met again at the usual pace."""
    look, pauses = Walker.look, list[float]()

    async def noted(self: Walker, *args: Any) -> float:
        pauses.append(await look(self, *args))
        return pauses[-1]

    monkeypatch.setattr(Walker, "look", noted)
    client = await fleet.node(lease_ttl_s=TTL_S)
    Ghost(fleet, client, 1).join().put("U-0", "U", "nobodys")
    fleet.client.delete(fleet.names.unassigned("nobodys"))
    fleet.client.set(fleet.names.unassigned("nobodys"), "odd")
    await fleet.until(lambda: TTL_S in pauses[:-1])
    assert pauses[pauses.index(TTL_S) + 1] == 2 * TTL_S
    fleet.client.delete(fleet.names.unassigned("nobodys"))
    await fleet.seen(IndexRestored)


# --- lines --------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["record", "line", "flag", "deadline"])
async def test_who_is_queued_has_its_turn_whatever_was_deleted_by_hand(
    fleet: Fleet, diary: Diary, lost: str
) -> None:
    """Without a live job, in no line, behind one that does not know, or displaced for ever."""
    gate = anyio.Event()
    node = await fleet.node(made(diary, gate), lease_ttl_s=TTL_S)
    first = await node.options(delay_s=600).dispatch("held", "k")
    [second] = [await node.options(if_exists="queue").dispatch("quick", "k")]
    names, do = fleet.wiring(node).context.lanes[0].lane.names, fleet.client
    text: Any = do.hget(names.jobs, "k")
    third = second
    match lost:
        case "record":
            do.hdel(names.jobs, "k")
            do.hdel(names.payloads, "k")
            do.zrem(names.due, "k:k")
            do.hincrby(names.lane, "waiting", -1)
        case "line":
            do.hdel(names.payloads, line("k"))
        case "flag":
            do.hset(names.jobs, "k", text.replace(b"|dn|", b"|d|"))
        case "deadline":
            third = await node.options(if_exists="coalesce").dispatch("quick", "k")
            do.zrem(names.due, f"k:{queued('k', second.job_id)}")
    told = None if lost == "deadline" else await fleet.seen(IndexRestored)
    assert told is None or told.index == "queue"
    if lost == "deadline":
        with pytest.raises(JobSuperseded):
            await second.result(timeout_s=FOUND_S)
        second = third
    elif lost != "record":
        await first.stop()
    gate.set()
    if lost == "deadline":
        await first.stop()
    assert await second.result(timeout_s=FOUND_S) == "k"
