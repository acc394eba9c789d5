"""Pausing and resuming, cordoning and draining from afar: what users see of it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import attrs
import pytest

from pool import Handlers, Job, Node
from pool.core.pauses import Asked, Cordon, Pause, parse
from pool.errors import (
    InvalidKey,
    InvalidOption,
    JobExpired,
    NoSuchMember,
    NotStarted,
    PoolError,
    StoreLost,
    TooManyPaused,
    UnknownHandler,
)
from pool.events import (
    DataLost,
    JobsPaused,
    JobsResumed,
    MemberCordoned,
    MemberUncordoned,
    ServiceMoved,
)
from pool.jobs.client.pausing import Operator
from pool.jobs.fleet.heeding import Heeding
from pool.jobs.fleet.keepalive import KeepAlive
from pool.jobs.worker.worker import Worker, _Pulled
from pool.maps.deltas import Delete, Set
from pool.names import PAUSED, Names, lane_of
from pool.redis.commands.member import Opening
from pool.redis.commands.pausing import LanePauses
from pool.schedules import Every

if TYPE_CHECKING:
    from tests.nodes import Diary, Fleet

pytestmark = pytest.mark.anyio


def handlers(diary: Diary) -> Handlers:
    mine = Handlers()

    @mine.job("note", attempts_max=2, backoff_s=0.01)
    async def note(job: Job, fails: bool = False, s: float = 0.0) -> str:
        diary.note("note", job.key)
        await anyio.sleep(s)
        if fails and job.attempt == 1:
            raise RuntimeError
        return job.key

    @mine.job("other")
    async def other(job: Job) -> str:
        diary.note("other", job.key)
        return job.key

    @mine.service("serve")
    async def serve(job: Job) -> None:
        diary.note("serves", job.key)
        await anyio.sleep_forever()

    return mine


def names_in(fleet: Fleet, lanes: int) -> list[Names]:
    return [Names(fleet.pool, number) for number in range(lanes)]


def runs(fleet: Fleet, key: str) -> bool:
    record = fleet.record(key)
    return record is not None and record.state == "running"


def flags(fleet: Fleet, lanes: int) -> list[Any]:
    return [fleet.client.hget(names.lane, PAUSED) for names in names_in(fleet, lanes)]


# --- pausing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["pool", "handler", "key"])
async def test_what_is_paused_is_accepted_and_goes_on_when_it_is_resumed(
    fleet: Fleet, diary: Diary, lanes: int, what: str
) -> None:
    """Whatever it is that is paused; others go on meanwhile."""
    node = await fleet.node(handlers(diary), lanes=lanes, lease_ttl_s=150.0)
    which: dict[str, Any] = {"pool": {}, "handler": {"handler": "note"}, "key": {"key": "k1"}}[what]
    report = await node.pause(**which, reason="a test")
    assert report.is_complete
    assert report.pause.reason == "a test"
    assert node.id in report.pause.by
    refs = [await node.dispatch("note", f"k{n}") for n in range(8 if what != "key" else 0)]
    refs.append(await node.dispatch("note", "k1") if what == "key" else refs[1])
    await fleet.seen(JobsPaused, what=what, reason="a test")
    if what != "pool":
        assert await (await node.dispatch("other", "z1")).result(timeout_s=30.0) == "z1"
    status = await refs[-1].status()
    assert status.state == "unassigned"
    assert "paused: a test" in status.why
    with pytest.raises(NotStarted) as late:
        await refs[-1].started(timeout_s=0)  # asks once, however long that takes
    assert "paused" in str(late.value)
    assert [name for name, _ in diary.entries if name == "note"] == []
    [stands] = await node.pauses()
    assert stands == report.pause
    assert (await node.resume(**which)).is_complete
    for ref in refs:
        assert await ref.result(timeout_s=30.0) == ref.key
    await fleet.seen(JobsResumed, what=what)
    assert await node.pauses() == ()
    assert flags(fleet, lanes) == [None] * lanes


@pytest.mark.parametrize("what", ["pool", "handler", "key"])
async def test_a_lane_that_lost_its_data_is_paused_from_its_first_moment(
    fleet: Fleet, diary: Diary, lanes: int, what: str
) -> None:
    """Whoever makes it anew has a copy of what was asked for: not one job is granted there."""
    fleet.is_audited = False  # of what the other lanes had for this one
    node, _ = [await fleet.node(handlers(diary), lanes=lanes) for _ in range(2)]
    key = next(f"k{n}" for n in range(99) if lane_of(f"k{n}", lanes) == 0)
    which: dict[str, Any] = {"pool": {}, "handler": {"handler": "note"}, "key": {"key": key}}[what]
    await node.pause(**which, reason="a test")
    before: Any = fleet.client.hgetall(fleet.names.lane)
    fleet.client.delete(*fleet.client.keys(f"{fleet.names.prefix}*"))
    ref = None
    with anyio.fail_after(60):
        while ref is None:  # until a node has made the lane anew it takes nothing
            try:
                ref = await node.dispatch("note", key)
            except StoreLost:
                await anyio.sleep(0.001)
    await fleet.until(lambda: fleet.client.zcard(fleet.names.keepalive) >= 4)  # both have joined it
    assert (await ref.status()).state == "unassigned"
    after: Any = fleet.client.hgetall(fleet.names.lane)
    assert after[b"incarnation"] != before[b"incarnation"]
    fields = [
        {k: v for k, v in e.items() if k[:7] in (b"paused", b"paused ")} for e in (after, before)
    ]
    assert fields[0] == fields[1]
    with pytest.raises(NotStarted):
        await ref.started(timeout_s=0.2)
    assert diary.entries == []
    await node.resume(**which)
    assert await ref.result(timeout_s=60) == key
    assert flags(fleet, lanes) == [None] * lanes


async def test_a_pool_that_was_lost_as_a_whole_stays_paused_and_cordoned(
    fleet: Fleet, diary: Diary, lanes: int
) -> None:
    """Who makes it anew remembers what was asked for.

    It is told again only to who has seen the pool anew before that stood in it.
    """
    node, client = await fleet.node(handlers(diary), lanes=lanes), await fleet.node()
    await node.pause(reason="a test")
    await client.cordon(node.id)
    await fleet.seen(JobsPaused, times=2)
    every = fleet.client.scan_iter(match=f"pool:{{{fleet.pool}*", count=1000)
    fleet.client.delete(*every)
    await fleet.seen(DataLost, times=2)
    ref = None
    with anyio.fail_after(60):
        while ref is None:
            try:
                ref = await client.dispatch("note", "k1")
            except (StoreLost, UnknownHandler):
                await anyio.sleep(0.01)
    with pytest.raises(NotStarted):
        await ref.started(timeout_s=0.2)
    assert [each.reason for each in await client.pauses()] == ["a test"]
    assert [each.id for each in await client.cordons()] == [node.id]
    await fleet.until(lambda: flags(fleet, lanes) == [b"p|"] * lanes)
    await client.resume()
    with pytest.raises(NotStarted):
        await ref.started(timeout_s=0.2)
    await client.uncordon(node.id)
    assert await ref.result(timeout_s=60) == "k1"
    assert flags(fleet, lanes) == [None] * lanes
    told = fleet.all_seen(JobsPaused)
    assert {each.reason for each in told} == {"a test"}
    assert 2 <= len(told) <= 3  # of two nodes one makes it


async def test_nodes_hear_of_a_resume_and_wait_for_no_renewal(
    fleet: Fleet, diary: Diary, lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What renewals tell of keys that wait is not heard here; nor does a lane wait for others."""
    answered = KeepAlive._on_answer

    def on_answer(self: KeepAlive, answer: Any) -> None:
        before = dict(self.context.unassigned)
        answered(self, answer)
        self.context.unassigned.clear()
        self.context.unassigned.update(before)

    monkeypatch.setattr(KeepAlive, "_on_answer", on_answer)
    node = await fleet.node(handlers(diary), lanes=lanes)
    await node.pause()
    refs = [await node.dispatch("note", f"k{n}") for n in range(8)]
    await node.resume()
    for ref in refs:
        await ref.result(timeout_s=30.0)


async def test_what_runs_goes_on_and_a_retry_waits(fleet: Fleet, diary: Diary) -> None:
    goes_on, mine = anyio.Event(), handlers(diary)

    @mine.job("fails-once", attempts_max=2, backoff_s=0.01)
    async def fails_once(job: Job) -> str:
        diary.note("note", job.key)
        await goes_on.wait()
        if job.attempt == 1:
            raise RuntimeError
        return job.key

    node = await fleet.node(mine)
    served = await node.dispatch("serve", "s")
    await served.started(timeout_s=30.0)
    ref = await node.dispatch(fails_once, "k")
    await diary.has("note", "k")
    await node.pause()
    goes_on.set()
    await fleet.until(lambda: (r := fleet.record("k")) and r.state == "unassigned")
    assert diary.entries.count(("note", "k")) == 1
    assert (await served.status()).state == "running"
    await node.resume()
    assert await ref.result(timeout_s=30.0) == "k"
    await served.stop()


async def test_a_delay_that_is_over_waits_in_its_place(fleet: Fleet, diary: Diary) -> None:
    node = await fleet.node(handlers(diary))
    await node.pause()
    late = await node.options(delay_s=0.1).dispatch("note", "late")
    await fleet.until(lambda: (r := fleet.record("late")) and r.state == "unassigned")
    then = await node.dispatch("note", "then")
    await node.resume()
    for ref in (late, then):
        await ref.result(timeout_s=30.0)


async def test_times_to_begin_go_on_counting(fleet: Fleet, diary: Diary) -> None:
    node = await fleet.node(handlers(diary))
    await node.pause(handler="note")
    ref = await node.options(expires_s=0.2).dispatch("note", "k")
    with pytest.raises(JobExpired):
        await ref.result(timeout_s=30.0)
    assert diary.entries == []
    await node.resume(handler="note")


async def test_a_firing_is_made_and_waits(fleet: Fleet, diary: Diary) -> None:
    """One job of it, as its key has one: what is missed meanwhile is its schedule's matter."""
    node = await fleet.node(handlers(diary))
    await node.pause(handler="note")
    await node.schedule("s", Every(1), "note", "k")
    await fleet.until(lambda: (r := fleet.record("k")) and r.state == "unassigned")
    assert diary.entries == []
    await node.resume(handler="note")
    await diary.has("note", "k")
    await node.schedules.remove("s")


async def test_who_comes_finds_it_paused_and_who_dies_leaves_his_jobs_waiting(
    fleet: Fleet, diary: Diary
) -> None:
    first = await fleet.node(handlers(diary))
    served = await first.dispatch("serve", "s")
    await diary.has("serves", "s")
    await first.pause(handler="serve")
    second = await fleet.node(handlers(diary))
    assert [each.handler for each in await second.pauses()] == ["serve"]
    await first.drain()  # as a death: what it had is given up
    await fleet.until(lambda: (r := fleet.record("s")) and r.state == "unassigned")
    await second.resume(handler="serve")
    await diary.has("serves", "s", times=2)
    await served.stop()


async def test_a_service_is_not_moved_to_wait(fleet: Fleet, diary: Diary) -> None:
    """What runs goes on: a better place comes, and is taken when it is resumed."""
    first = await fleet.node(handlers(diary))
    keys = [f"s{n}" for n in range(16)]
    for key in keys:
        await first.dispatch("serve", key)
    await diary.until(lambda entries: len(entries) == len(keys))
    await first.pause()
    second = await fleet.node(handlers(diary))
    await fleet.knows(first, 2)
    await anyio.sleep(4 * fleet.settings.settle_delay_s)
    assert fleet.all_seen(ServiceMoved) == []
    assert {r.state for key in keys if (r := fleet.record(key))} == {"running"}
    await second.resume()
    await fleet.seen(ServiceMoved)
    for key in keys:
        await fleet.until(partial(runs, fleet, key))
    await first.stop_all()


@pytest.mark.parametrize("verb", ["pause", "resume"])
async def test_a_lane_that_is_not_reached_is_told_and_doing_it_again_completes_it(
    fleet: Fleet, diary: Diary, verb: str
) -> None:
    """13.5: lanes are islands; here one has other data, which is what a call can know of it."""
    node = await fleet.node(handlers(diary), lanes=4)
    if verb == "resume":
        await node.pause()
    lane = names_in(fleet, 4)[2].lane
    key = next(key for key in map("k{}".format, range(99)) if lane_of(key, 4) == 2)
    fleet.client.rename(lane, "elsewhere:" + fleet.pool)
    fleet.client.set(lane, "foreign")
    missed = await getattr(node, verb)()
    fleet.client.rename("elsewhere:" + fleet.pool, lane)
    assert list(missed.missed) == [2]
    assert not missed.is_complete
    assert (await node.pauses())[0].is_over == (verb == "resume")
    assert [flag is not None for flag in flags(fleet, 4)].count(verb == "pause") == 3
    assert (await getattr(node, verb)()).is_complete
    assert {flag is not None for flag in flags(fleet, 4)} == {verb == "pause"}
    await node.resume()
    assert await (await node.dispatch("note", key)).result(timeout_s=30.0) == key


# --- two at once, and who dies on the way ---------------------------------------------------------


def which(what: str, lanes: int) -> dict[str, Any]:
    key = next(f"k{n}" for n in range(99) if lane_of(f"k{n}", lanes) == lanes - 1)
    named: dict[str, dict[str, Any]] = {"pool": {}, "handler": {"handler": "note"}}
    return named.get(what, {"key": key})


def stands_in(fleet: Fleet, lanes: int, given: dict[str, Any]) -> set[bool]:
    """Return what lanes go by: of a key its own does."""
    pause = Pause(**given)
    those = names_in(fleet, lanes)
    if pause.what == "key":
        those = [those[lane_of(pause.name, lanes)]]
    found: list[Any] = [fleet.client.hgetall(names.lane) for names in those]
    told = [{name.decode(): text for name, text in fields.items()} for fields in found]
    return {LanePauses.of(fields).has(pause) for fields in told}


@pytest.mark.parametrize("what", ["pool", "handler", "key"])
@pytest.mark.parametrize("late", ["pause", "resume"])
async def test_of_two_operators_the_last_one_in_the_map_counts_in_all_lanes(
    fleet: Fleet,
    diary: Diary,
    lanes: int,
    what: str,
    late: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One has written, and comes to the lanes when the other one is through: it is too late."""
    node, other = [await fleet.node(handlers(diary), lanes=lanes, lease_ttl_s=150.0) for _ in "ab"]
    given, tell = which(what, lanes), Operator._tell_lane
    written, through = anyio.Event(), anyio.Event()
    if late == "resume":
        await node.pause(**given)

    async def slowly(self: Operator, pause: Pause, names: Names) -> int:
        if node.id in self.by and not through.is_set():
            written.set()
            await through.wait()
        return await tell(self, pause, names)

    monkeypatch.setattr(Operator, "_tell_lane", slowly)
    reports: list[Any] = []

    async def first() -> None:
        reports.append(await getattr(node, late)(**given))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(first)
        await written.wait()
        then = {"pause": "resume", "resume": "pause"}[late]
        assert (await getattr(other, then)(**given)).is_complete
        through.set()
    assert reports[0].is_overtaken
    assert not reports[0].is_complete
    is_paused = then == "pause"
    assert bool(await node.pauses()) == is_paused
    assert stands_in(fleet, lanes, given) == {is_paused}
    ref = await node.dispatch("note", given.get("key", "k1"))
    assert ((await ref.status()).state == "unassigned") == is_paused
    await other.resume(**given)
    assert await ref.result(timeout_s=60.0) == ref.key


async def test_a_resume_that_ends_late_leaves_the_pause_of_another(
    fleet: Fleet, lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has told all lanes, and is about to take the entry away: there stands another one."""
    node, other = [await fleet.node(lanes=lanes, lease_ttl_s=150.0) for _ in "ab"]
    await node.pause()
    tell = Operator._tell

    async def then_another(self: Operator, pause: Pause) -> Any:
        told = await tell(self, pause)
        if node.id in self.by:
            assert (await other.pause(reason="again")).is_complete
        return told

    monkeypatch.setattr(Operator, "_tell", then_another)
    await node.resume()
    monkeypatch.undo()
    assert [each.reason for each in await node.pauses()] == ["again"]
    assert stands_in(fleet, lanes, {}) == {True}
    assert (await node.resume()).is_complete


@pytest.mark.parametrize("what", ["pool", "handler", "key"])
async def test_two_at_once_leave_map_and_lanes_of_one_mind(
    fleet: Fleet, lanes: int, what: str
) -> None:
    node, other = [await fleet.node(lanes=lanes, lease_ttl_s=150.0) for _ in "ab"]
    given = which(what, lanes)
    for turn in range(12):
        await (node.pause if turn % 2 else node.resume)(**given)
        async with anyio.create_task_group() as tasks:
            for call in (node.pause, other.resume)[:: 1 if turn % 4 < 2 else -1]:
                tasks.start_soon(partial(call, **given))
        stands = await node.pauses()
        assert stands_in(fleet, lanes, given) == {bool(stands)}
        assert not any(each.is_over for each in stands)
    await node.resume(**given)


@pytest.mark.parametrize(
    ("what", "died"),
    [
        ("pool", "pausing"),
        ("key", "pausing"),
        ("handler", "resuming"),
        ("key", "resuming"),
        ("key", "ending"),
        ("pool", "hand"),
        ("handler", "lane"),
    ],
)
async def test_nodes_bring_together_what_stands_apart(
    fleet: Fleet, diary: Diary, what: str, died: str
) -> None:
    """Whoever asked for it is gone; or another hand has been there."""
    lanes = 4
    node = await fleet.node(handlers(diary), lanes=lanes)
    given = which(what, lanes)
    entry = Pause(**given, since_ms=1, by="who died", order=1)
    replica = fleet.wiring(node).replica
    if died != "pausing":
        entry = (await node.pause(**given)).pause
    key = given.get("key", "k1")
    match died:
        case "pausing":
            await replica.write([Set(entry.entry, entry.pack())])
        case "resuming" | "ending":
            over = attrs.evolve(entry, is_over=True, order=entry.order + 1)
            await replica.write([Set(entry.entry, over.pack())])
            if died == "ending":  # all lanes were told
                for names in names_in(fleet, lanes):
                    fleet.client.hdel(names.lane, PAUSED, f"{PAUSED} {key}")
        case "hand":
            await replica.write([Delete(entry.entry)])
        case _:
            for names in names_in(fleet, lanes):
                fleet.client.hdel(names.lane, PAUSED, f"{PAUSED} {key}")
    is_paused = died in ("pausing", "lane")

    async def is_one() -> bool:
        stands = await node.pauses()
        return stands_in(fleet, lanes, given) == {is_paused} == {bool(stands)}

    await fleet.until(is_one)
    ref = await node.dispatch("note", key)
    assert ((await ref.status()).state == "unassigned") == is_paused
    await node.resume(**given)
    assert await ref.result(timeout_s=60.0) == ref.key


async def test_a_resume_names_what_may_keep_its_jobs_still(fleet: Fleet) -> None:
    node = await fleet.node()
    for given in ({}, {"handler": "h"}, {"handler": "other"}, {"key": "k"}):
        await node.pause(**given)

    async def others(**given: str) -> set[str]:
        return {str(each) for each in (await node.resume(**given)).others}

    assert await others(handler="h") == {"the whole pool", "key k"}
    assert await others(key="k") == {"the whole pool", "handler other"}
    assert await others() == {"handler other"}
    assert await others(handler="other") == set()


async def test_again_keeps_who_and_since_when(fleet: Fleet) -> None:
    node = await fleet.node()
    first = await node.pause(handler="h", reason="one")
    assert (await node.pause(handler="h", reason="two")).pause == first.pause
    assert (await node.resume(handler="x")).is_complete, "of what is not paused"
    await node.resume(handler="h")


async def test_as_many_as_may_be(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    node = await fleet.node()
    for n in range(64):
        await node.pause(handler=f"h{n}")
    with pytest.raises(TooManyPaused) as refused:
        await node.pause(handler="h64")
    assert refused.value.paused_max == 64
    stands = await node.pauses()
    monkeypatch.setattr(Operator, "_check_room", lambda *_: anyio.lowlevel.checkpoint())
    with pytest.raises(TooManyPaused):  # of several at once, none of whom is known
        await node.pause(handler="h65")
    assert await node.pauses() == stands
    assert stands_in(fleet, 1, {"handler": "h65"}) == {False}
    for n in range(64):
        await node.resume(handler=f"h{n}")


async def test_what_cannot_be_is_refused(fleet: Fleet) -> None:
    node = await fleet.node()
    calls: list[tuple[type[PoolError], dict[str, Any]]] = [
        (InvalidOption, {"handler": "h", "key": "k"}),
        (InvalidOption, {"reason": 5}),
        (InvalidKey, {"key": ""}),
        (InvalidKey, {"key": "k" * 600}),
    ]
    for kind, given in calls:
        with pytest.raises(kind):
            await node.pause(**given)
    assert await node.pauses() == ()


async def test_a_key_as_long_as_may_be_is_paused(fleet: Fleet, diary: Diary) -> None:
    node = await fleet.node(handlers(diary))
    key = "k" * 512
    await node.pause(key=key)
    ref = await node.dispatch("note", key)
    assert "paused" in (await ref.status()).why
    await node.resume(key=key)
    assert await ref.result(timeout_s=30.0) == key


# --- cordons --------------------------------------------------------------------------------------


@pytest.mark.parametrize("of", ["node", "worker"])
async def test_who_is_cordoned_keeps_what_it_has_and_takes_nothing(
    fleet: Fleet, diary: Diary, lanes: int, of: str
) -> None:
    """No renewal opens it again, and others take what comes."""
    first = await fleet.node(handlers(diary), lanes=lanes, label="a")
    served = await first.dispatch("serve", "s")
    await diary.has("serves", "s")
    second = await fleet.node(handlers(diary), lanes=lanes, label="b")
    await fleet.knows(second, 2)
    [mine] = [info for info in second.workers if info.node == first.id]
    member = first.id if of == "node" else mine.id
    report = await second.cordon(member, reason="a look at it")
    assert report.is_complete
    assert report.workers == (mine.id,)
    await fleet.seen(MemberCordoned, worker=mine.id, reason="a look at it", drains=False)

    def taken() -> list[int | None]:
        texts: list[Any] = [fleet.client.hget(n.open, mine.id) for n in names_in(fleet, lanes)]
        return [o.takes for text in texts if (o := Opening.parse(text or b""))]

    assert taken() == [0] * lanes
    for _ in range(2):
        fleet.wiring(first)._keepalive.renew_now()
        await fleet.wiring(first)._keepalive.confirm(30.0)
    assert taken() == [0] * lanes
    for n in range(16):
        ref = await first.dispatch("note", f"k{n}")
        await ref.result(timeout_s=30.0)
        assert mine.id not in (await ref.status()).owner
    assert (await served.status()).owner.startswith(mine.id)
    [cordon] = await second.cordons()
    assert (cordon.id, cordon.reason) == (member, "a look at it")
    assert (await first.uncordon(member)).is_complete
    await fleet.seen(MemberUncordoned, worker=mine.id)
    await fleet.until(lambda: all(taken()))
    await served.stop()


async def test_where_all_are_cordoned_jobs_wait_for_the_first_that_is_not(
    fleet: Fleet, diary: Diary
) -> None:
    """At once when it is uncordoned; a worker that is added to a cordoned node is, too."""
    node = await fleet.node(handlers(diary), lease_ttl_s=150.0)
    await node.cordon(node.id)
    added = await node.add_worker(handlers(diary))
    await fleet.seen(MemberCordoned, worker=added.id, drains=False)
    ref = await node.dispatch("note", "k")
    status = await ref.status()
    assert status.state == "unassigned"
    assert "its workers are cordoned, by node" in status.why
    await node.uncordon(node.id)
    assert await ref.result(timeout_s=30.0) == "k"


async def test_a_pull_answered_behind_a_renewal_takes_back_nothing_of_what_that_told(
    fleet: Fleet, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G-05: it came before its lane knew that the worker takes keys again, and was given none."""
    node = await fleet.node(handlers(diary), lease_ttl_s=150.0)
    await node.cordon(node.id)
    await fleet.seen(MemberCordoned, drains=False)
    await fleet.until(lambda: all(worker.has_closed for worker in fleet.workers(node)))
    ref = await node.dispatch("note", "k")
    held, deliver, close = list[Any](), Worker.deliver, Heeding._close
    door = fleet.wiring(node).context.lanes[0].door
    opened = door.opened

    def deliver_late(self: Worker, message: Any) -> None:
        if isinstance(message, _Pulled):
            held.append(message)
        else:
            deliver(self, message)

    async def close_late(self: Heeding) -> None:
        await fleet.until(lambda: held)
        await close(self)

    with monkeypatch.context() as patched:
        patched.setattr(Worker, "deliver", deliver_late)
        patched.setattr(Heeding, "_close", close_late)
        await node.uncordon(node.id)
        await fleet.until(lambda: door.opened > opened)
    [worker] = fleet.workers(node)
    [pulled] = held
    assert pulled.reply.granted == 0
    worker.deliver(pulled)
    assert await ref.result(timeout_s=30.0) == "k"


async def test_a_worker_of_a_cordoned_node_stays_closed_and_says_so(
    fleet: Fleet, diary: Diary
) -> None:
    node = await fleet.node(handlers(diary), lease_ttl_s=150.0)
    [mine] = node.workers
    await node.cordon(node.id)
    report = await node.uncordon(mine.id)
    assert not report.is_complete
    assert (report.workers, report.cordon.since_ms) == ((mine.id,), 0)
    assert report.kept is not None
    assert report.kept.id == node.id
    assert (await node.uncordon(node.id)).is_complete


async def test_a_cordon_goes_when_who_is_meant_is_gone(fleet: Fleet, diary: Diary) -> None:
    """However it went: nobody has to cordon another one."""
    node = await fleet.node(handlers(diary))
    added = await node.add_worker(handlers(diary))
    await fleet.knows(node, 2)
    assert (await node.cordon(added.id)).is_complete
    await added.remove()
    dead = Cordon(id="n0x0")
    await fleet.wiring(node).replica.write([Set(dead.entry, dead.pack())])
    await fleet.until(lambda: _nobody(node))


async def test_a_node_is_drained_from_afar(fleet: Fleet, diary: Diary) -> None:
    """It hands over, as when it is told to end; and its cordon goes with it."""
    first = await fleet.node(handlers(diary))
    await first.dispatch("serve", "s")
    await diary.has("serves", "s")
    second = await fleet.node(handlers(diary))
    await fleet.knows(second, 2)
    assert (await second.drain_member(first.id)).is_complete
    with anyio.fail_after(30.0):
        await first.wait_drained()
    await diary.has("serves", "s", times=2)
    await fleet.knows(second, 1)
    assert len(fleet.all_seen(MemberCordoned, drains=True)) == 1, "each look at the map told it"
    with pytest.raises(InvalidOption):
        await second.uncordon(first.id)
    await fleet.leave(first)
    await fleet.until(lambda: _nobody(second))
    await second.stop("s")


async def _nobody(node: Node) -> bool:
    return await node.cordons() == ()


async def test_a_worker_is_drained_and_its_node_stays(fleet: Fleet, diary: Diary) -> None:
    node = await fleet.node(handlers(diary))
    added = await node.add_worker(handlers(diary))
    assert (await node.cordon(added.id)).is_complete
    await fleet.seen(MemberCordoned, worker=added.id, drains=False)
    assert (await node.drain_member(added.id)).is_complete
    await fleet.seen(MemberCordoned, worker=added.id, drains=True)
    await fleet.knows(node, 1)
    told = fleet.all_seen(MemberCordoned, worker=added.id)
    assert [each.drains for each in told] == [False, True]
    assert await (await node.dispatch("note", "k")).result(timeout_s=30.0) == "k"
    assert node.state == "open"


async def test_who_is_not_there_cannot_be_cordoned(fleet: Fleet, diary: Diary) -> None:
    """And what was asked of who is gone goes with the next one."""
    node = await fleet.node(handlers(diary), lease_ttl_s=150.0)
    for call in (node.cordon, node.uncordon, node.drain_member):
        with pytest.raises(NoSuchMember):
            await call("n0x0")
    gone = Cordon(id="n0x0")
    stored = fleet.wiring(node).replica
    await stored.write([Set(gone.entry, gone.pack())])
    assert await node.cordons() == (gone,)
    await node.cordon(node.id)
    assert [each.id for each in await node.cordons()] == [node.id]
    await node.uncordon(node.id)


# --- what stands in the map -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        b"", b"[]", b"{}", b'{"handler":"h","key":"k"}', b'{"handler":5}', b'{"handler":""}',
        b'{"handler":"h","since_ms":-1}', b'{"handler":"h","by":5}', b'{"handler":"x"}',
        b'{"handler":"h","reason":"\\ud800"}', b'{"handler":"h","is_over":1}', b"\xff",
    ],
)  # fmt: skip
def test_entries_that_nobody_of_ours_wrote_are_left_out(text: bytes) -> None:
    assert parse([(b"!paused handler h", text), (b"!cordon n1", text)]) == Asked()


def test_entries_are_read_as_they_were_written() -> None:
    pauses = [
        *(Pause(), Pause(handler="h", by="me")),
        Pause(key="k" * 400, reason="\u00e4", is_over=True),
    ]
    cordons = [Cordon(id="n1"), Cordon(id="w1", is_drain=True, since_ms=5)]
    stored = [(each.entry, each.pack()) for each in pauses]
    asked = parse(stored + [(each.entry, each.pack()) for each in cordons])
    assert list(asked.pauses.values()) == pauses
    assert list(asked.cordons.values()) == cordons
    assert asked.pause_of("k", "h") == pauses[1]
    assert asked.pause_of("k", "x") == pauses[0]
    assert asked.cordon_of("w1", "n1") == cordons[1]
