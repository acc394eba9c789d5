"""Schedules: one job for each time, whoever dies; kept, changed, paused, and found again."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import attrs
import pytest

from pool import Follower, Handlers, Job, Node
from pool.core.record import Record, begin_by_ms
from pool.core.schedules import due_ms, parse, told_time
from pool.core.times import moment
from pool.errors import (
    ConfigError,
    IdempotencyConflict,
    InvalidKey,
    InvalidOption,
    JobCancelled,
    JobExists,
    NoSuchSchedule,
    PoolError,
    QueueFull,
    UnknownHandler,
    WrongArguments,
)
from pool.events import (
    IndexRestored,
    ScheduleMissed,
    ScheduleMoved,
    ScheduleOverlapped,
    ScheduleUnreadable,
    StoreTroubled,
)
from pool.jobs.fleet.scheduler import Scheduler
from pool.jobs.scheduling import HOLD_S
from pool.names import Names, lane_of
from pool.redis.commands.schedules import ScheduleCalls, ScheduleChange
from pool.schedules import At, Cron, Every

if TYPE_CHECKING:
    from tests.nodes import Diary, Fleet

pytestmark = pytest.mark.anyio
RARE = Every(86_400 * 300, window_s=365 * 86_400)


@pytest.fixture
def handlers(diary: Diary) -> Handlers:
    made = Handlers()

    @made.job("note", attempts_max=1)
    async def note(job: Job, *words: Any) -> str:
        diary.note(job.key, job.id, job.scheduled_for, *words)
        return "noted"

    @made.job("hold")
    async def hold(job: Job) -> None:
        diary.note(job.key, job.id)
        await anyio.sleep_forever()

    return made


def names_of(fleet: Fleet, name: str, lanes: int) -> Names:
    return Names(fleet.pool, lane_of(name, lanes))


def put_back(fleet: Fleet, name: str, lanes: int, by_s: float) -> int:
    """Have a schedule stand as if nobody had come for so long; return its next time."""
    names = names_of(fleet, name, lanes)
    text: Any = fleet.client.hget(names.schedules, name)
    stored = parse(name, text)
    assert stored is not None
    next_ms = stored.head.next_ms - round(1000 * by_s)
    head = attrs.evolve(stored.head, next_ms=next_ms, due_ms=next_ms)
    fleet.client.hset(names.schedules, name, head.pack().encode() + b"\n" + stored.body)
    fleet.client.zadd(names.scheduled, {name: next_ms})
    fleet.client.zadd(names.due, {"s:": 0})
    return next_ms


async def test_each_time_is_one_job_with_its_followers(
    fleet: Fleet, handlers: Handlers, diary: Diary, lanes: int
) -> None:
    """G-01: each of several nodes comes for it, and each time is fired once."""
    nodes = [await fleet.node(handlers, lanes=lanes) for _ in range(3)]
    then = Follower("note", "behind", "it").options(takes_result=True)
    dispatching = nodes[0].options(then=then, if_exists="queue")
    await dispatching.schedule("quick", Cron("* * * * * *", misfire="all"), "note", "key", 1)
    await diary.until(lambda entries: len([e for e in entries if e[0] == "key"]) >= 3)
    await nodes[1].schedules.pause("quick")
    told = await nodes[2].schedules.show("quick")
    assert told.is_paused
    assert told.next_at is None
    await diary.counts(2 * told.fired)
    fired = [e for e in diary.entries if e[0] == "key"]
    times = [e[2] for e in fired]
    assert times == [times[0] + timedelta(seconds=n) for n in range(told.fired)]
    assert told.last_at == times[-1]
    assert [e[1] for e in fired] == [f"quick@{told_time(1000 * int(t.timestamp()))}" for t in times]
    behind = [e for e in diary.entries if e[0] == "behind"]
    assert [e[3:] for e in behind] == [("noted", "it")] * told.fired
    assert len({e[1] for e in behind}) == told.fired


async def test_who_is_late_fires_what_the_policy_says_and_tells_of_the_rest(
    fleet: Fleet, handlers: Handlers, diary: Diary, lanes: int
) -> None:
    node = await fleet.node(handlers, lanes=lanes)
    every, begin = 1000.0, datetime.now(UTC) - timedelta(seconds=90)
    for misfire in ("skip", "once", "all"):
        start = begin - timedelta(seconds=5 * every)
        when = Every(every, start=start, misfire=misfire, window_s=5000)
        await node.options(if_exists="queue").schedule(misfire, when, "note", misfire)
        put_back(fleet, misfire, lanes, 3 * every)
    await fleet.seen(ScheduleMissed, schedule="skip", missed=3)
    await fleet.seen(ScheduleMissed, schedule="once", missed=2)
    await diary.counts(4)
    times = {name: [e[2] for e in diary.entries if e[0] == name] for name in ("once", "all")}
    assert [round((t - begin).total_seconds()) for t in times["once"]] == [0]
    assert [round((t - begin).total_seconds()) for t in times["all"]] == [-2000, -1000, 0]
    told = await node.schedules.show("once")
    assert (told.fired, told.missed) == (1, 2)


LATE_MS = 3500  # long before it is too late, also on a busy machine


@pytest.mark.parametrize("by_name", [False, True], ids=["worker", "client"])
async def test_of_late_times_only_the_newest_is_fired_where_the_others_would_be_left_out(
    fleet: Fleet, handlers: Handlers, diary: Diary, lanes: int, *, by_name: bool
) -> None:
    """None is gone without a word: they are counted, and told; whoever made the schedule."""
    node = await fleet.node(handlers, lanes=lanes)
    if by_name:
        node = await fleet.node(lanes=lanes)
    await node.schedule("s", Every(1000, window_s=5000), "note", "key")
    before = await node.schedules.show("s")
    await node.schedules.pause("s")
    name = names_of(fleet, "s", lanes)
    stored = parse("s", fleet.client.hget(name.schedules, "s"))  # type: ignore[arg-type]
    assert stored is not None
    now_ms = round(1000 * datetime.now(UTC).timestamp())
    head = attrs.evolve(
        stored.head, is_paused=False, next_ms=now_ms - LATE_MS, due_ms=now_ms - LATE_MS
    )
    quick = Every(1, start=moment(now_ms - LATE_MS), window_s=5000)
    quickly = attrs.evolve(stored, head=head, when=quick)
    fleet.client.hset(name.schedules, "s", quickly.head.pack().encode() + b"\n" + quickly.body)
    fleet.client.zadd(name.scheduled, {"s": head.due_ms})
    fleet.client.zadd(name.due, {"s:": 0})
    told = await fleet.seen(ScheduleOverlapped, schedule="s")
    assert told.overlapped >= 3
    await node.schedules.pause("s")
    await diary.counts(1)
    after = await node.schedules.show("s")
    assert after.overlapped >= 3
    assert after.last_at is not None
    passed = round((after.last_at - moment(now_ms - LATE_MS)).total_seconds()) + 1
    assert after.fired + after.overlapped == passed
    # The newest of those that came at once; further ones have come since, one by one.
    assert diary.entries[0][2] >= moment(now_ms - 1500)
    assert not after.missed
    assert before.fired == 0
    with pytest.raises(InvalidOption, match="if_exists='queue'"):
        await node.schedule("s", Every(60, misfire="all"), "note", "key")
    over = datetime(2026, 1, 1, tzinfo=UTC)
    with pytest.raises(InvalidOption, match="server's clock says") as refused:
        await node.schedule("over", At(over), "note", "key")
    assert over.isoformat() in str(refused.value)


async def test_times_that_come_once_more_are_not_fired_again_by_a_pause_or_a_change(
    fleet: Fleet, handlers: Handlers, lanes: int
) -> None:
    """The server's clock was set back behind what was fired last; what comes once may come."""
    node = await fleet.node(handlers, lanes=lanes)
    await node.schedule("s", Every(600), "note", "key")
    await node.schedules.pause("s")
    name = fleet.wiring(node).context.lane_of("s").lane.names
    text: Any = fleet.client.hget(name.schedules, "s")
    stored = parse("s", text)
    assert stored is not None
    last_ms = stored.head.next_ms + 600_000
    head = attrs.evolve(stored.head, last_ms=last_ms)
    fleet.client.hset(name.schedules, "s", head.pack().encode() + b"\n" + stored.body)
    await node.schedules.resume("s")
    assert (await node.schedules.show("s")).next_at == moment(last_ms + 600_000)
    await node.schedule("s", Every(300), "note", "key")
    assert (await node.schedules.show("s")).next_at == moment(last_ms + 300_000)
    await node.schedule("s", At(moment(last_ms)), "note", "key")
    assert (await node.schedules.show("s")).next_at == moment(last_ms)


async def test_what_begins_after_an_absence_has_no_times_from_before(
    fleet: Fleet, handlers: Handlers, lanes: int
) -> None:
    """All were away, and nobody has vouched for pool time yet: it stands where they left."""
    node = await fleet.node(handlers, lanes=lanes, lease_ttl_s=60.0)
    await node.schedule("s", Every(600), "note", "key")
    await node.schedules.pause("s")
    await fleet.leave(node)
    for lane in range(lanes):
        fleet.client.hincrby(Names(fleet.pool, lane).lane, "seen", -7_200_000)
    node = await fleet.node(handlers, lanes=lanes, lease_ttl_s=60.0)
    seconds: Any = fleet.client.time()
    now = moment(1000 * seconds[0])
    await node.schedules.resume("s")
    await node.schedule("new", Every(600), "note", "key")
    for name in ("s", "new"):
        next_at = (await node.schedules.show(name)).next_at
        assert next_at is not None
        assert next_at > now
    with pytest.raises(InvalidOption, match="server's clock says"):
        await node.schedule("over", At(moment(1000 * seconds[0] - 3_600_000)), "note", "key")


async def test_what_waits_for_no_time_begins_before_anybody_has_vouched_for_pool_time(
    fleet: Fleet, handlers: Handlers, diary: Diary, lanes: int
) -> None:
    """G-01: all were away.  Who comes first vouches for it after 20 s; nothing waits for that."""
    node = await fleet.node(handlers, lanes=lanes, lease_ttl_s=60.0)
    late = Every(1000, misfire="once", window_s=5000)
    await node.schedule("late", late, "note", "key")
    await fleet.leave(node)
    lane_names = [Names(fleet.pool, lane).lane for lane in range(lanes)]
    seen = [int(fleet.client.hincrby(name, "seen", -100_000)) for name in lane_names]
    put_back(fleet, "late", lanes, 1500)
    node = await fleet.node(handlers, lanes=lanes, lease_ttl_s=60.0)
    then = Follower("note", "behind")
    await node.options(then=then, otherwise=then).dispatch("note", "before")
    for _ in range(3):
        await node.options(if_exists="queue").dispatch("note", "line")
    with anyio.fail_after(60.0):
        await diary.counts(6)
    assert sorted(e[0] for e in diary.entries) == ["before", "behind", "key", *["line"] * 3]
    assert [int(fleet.client.hget(name, "seen") or 0) for name in lane_names] == seen


async def test_a_time_that_passed_while_all_were_away_is_late_by_the_clock_of_who_comes_back(
    fleet: Fleet, handlers: Handlers, lanes: int
) -> None:
    """Pool time stands where they left, where that time has just come."""
    node = await fleet.node(handlers, lanes=lanes, lease_ttl_s=60.0)
    start = datetime.now(UTC) + timedelta(seconds=1000)
    await node.schedule("s", Every(2000, start=start, misfire="skip"), "note", "key")
    await fleet.leave(node)
    for lane in range(lanes):
        fleet.client.hincrby(Names(fleet.pool, lane).lane, "seen", -60_000)
    put_back(fleet, "s", lanes, 1000 + 45)  # it came 15 s after they left
    node = await fleet.node(handlers, lanes=lanes, lease_ttl_s=60.0)
    await fleet.seen(ScheduleMissed, schedule="s", missed=1)
    told = await node.schedules.show("s")
    assert (told.fired, told.missed) == (0, 1)


async def test_what_another_has_changed_meanwhile_is_not_fired_twice(
    fleet: Fleet, handlers: Handlers, diary: Diary, lanes: int
) -> None:
    """A late copy of a firing, or of another's, finds another line; a repeat finds its own."""
    node = await fleet.node(handlers, lanes=lanes)
    await node.schedule("s", RARE, "note", "key")
    context = fleet.wiring(node).context
    state = context.lane_of("s")
    text: Any = fleet.client.hget(state.lane.names.schedules, "s")
    stored = parse("s", text)
    assert stored is not None
    line, job = text.partition(b"\n")[0], stored.job
    later = attrs.evolve(stored.head, next_ms=stored.head.next_ms + 1, token="mine")

    def firing(token: str) -> ScheduleChange:
        return ScheduleChange(
            name="s",
            seen=line,
            head=attrs.evolve(later, token=token).pack(),
            due_ms=later.due_ms,
            messages=((job.lane, job.message(f"s@{token}")),),
        )

    for token, is_done in (("mine", True), ("mine", True), ("other", False)):
        call = state.lane.schedule([firing(token)], hold_s=1.0)
        page = await context.pipeline.call(call, repeatable=True)
        assert list(page.done) == [is_done]
    context.on_due(state.number, 0.0)
    await diary.counts(1)
    assert await (await node.job("key", "s@mine")).result(timeout_s=20) == "noted"
    assert len(diary.entries) == 1


async def test_the_policy_of_the_key_decides_what_overlaps(
    fleet: Fleet, handlers: Handlers, diary: Diary, lanes: int
) -> None:
    node = await fleet.node(handlers, lanes=lanes)
    policies: dict[str, Any] = {name: name for name in ("reject", "queue", "coalesce", "replace")}
    for name, policy in policies.items():
        await node.dispatch("hold", name)
        options = node.options(if_exists=policy, queue_max=2)
        await options.schedule(name, RARE, "hold", name)
    await node.schedule("usual", RARE, "hold", "reject")
    await diary.counts(4)
    for name in (*policies, "usual"):
        for number in range(3):
            await _fire_now(fleet, node, name, lanes, number)

    async def queued(name: str) -> int:
        return await node.count(state="queued", prefix=name)

    await fleet.until(lambda: _are(queued, {"reject": 0, "queue": 2, "coalesce": 1}))
    await diary.until(lambda entries: len([e for e in entries if e[0] == "replace"]) >= 2)
    edges: Any = fleet.client.xrange(names_of(fleet, "reject", lanes).journal)
    assert len([fields for _, fields in edges if fields[b"edge"] == b"overlap"]) >= 6

    async def counted(name: str) -> tuple[int, int]:
        told = await node.schedules.show(name)
        return told.fired, told.overlapped

    counts = {"reject": (0, 3), "usual": (0, 3), "queue": (2, 1), "coalesce": (3, 0)}
    await fleet.until(lambda: _are(counted, counts))
    await fleet.seen(ScheduleOverlapped, times=3, schedule="reject", overlapped=1)
    assert len(fleet.all_seen(ScheduleOverlapped, schedule="reject", overlapped=1)) == 3
    await node.stop_all()


async def test_what_is_triggered_is_dispatched_as_anything_is(
    fleet: Fleet, handlers: Handlers, diary: Diary, lanes: int
) -> None:
    """Who triggers is told what has become of it, and each job is followed by its own."""
    node = await fleet.node(handlers, lanes=lanes)
    for policy in ("reject", "attach", "queue", "replace"):
        options: Any = {"if_exists": policy, "queue_max": 1}
        await node.options(**options).schedule(policy, RARE, "hold", policy)
        live = await node.schedules.trigger(policy)
        assert live.job_id.startswith(f"{policy}@trigger-")
        await live.started(timeout_s=20)
        match policy:
            case "reject":
                with pytest.raises(JobExists) as refused:
                    await node.schedules.trigger(policy)
                assert refused.value.job_id == live.job_id
            case "attach":
                assert (await node.schedules.trigger(policy)).job_id == live.job_id
            case "queue":
                behind = await node.schedules.trigger(policy)
                assert (await behind.status()).state == "queued"
                with pytest.raises(QueueFull):
                    await node.schedules.trigger(policy)
            case _:
                newer = await node.schedules.trigger(policy)
                with pytest.raises(JobCancelled):
                    await live.result(timeout_s=20)
                await newer.started(timeout_s=20)
    await node.stop_all()
    then = Follower("note", "behind", "it").options(takes_result=True)
    await node.options(then=then).schedule("followed", RARE, "note", "key", 1)
    refs = []
    for _ in range(2):
        refs.append(await node.schedules.trigger("followed"))
        assert await refs[-1].result(timeout_s=20) == "noted"
    await diary.until(lambda entries: len([e for e in entries if e[0] == "behind"]) == 2)
    behind_ids = {e[1] for e in diary.entries if e[0] == "behind"}
    assert behind_ids == {(await ref.stages())[1].job_id for ref in refs}
    assert (await node.schedules.show("followed")).fired == 0


async def _are(count: Any, wanted: dict[str, Any]) -> bool:
    return {name: await count(name) for name in wanted} == wanted


async def _fire_now(fleet: Fleet, node: Node, name: str, lanes: int, number: int) -> None:
    """Have a rare schedule fire one of its times, and wait until it has."""

    async def counted() -> int:
        told = await node.schedules.show(name)
        return told.fired + told.overlapped

    async def has_fired() -> bool:
        """Say whether it has, and all is carried out that was to be carried."""
        names = [Names(fleet.pool, lane) for lane in range(lanes)]
        due: Any = [each for name in names for each in fleet.client.zrange(name.due, 0, -1)]
        is_under_way = any(member.startswith(b"o:") for member in due)
        return await counted() == before + 1 and not is_under_way

    before = await counted()
    put_back(fleet, name, lanes, 86_400 * 300 - number)

    await fleet.until(has_fired)


async def test_an_edit_keeps_the_times_and_a_pause(
    fleet: Fleet, handlers: Handlers, diary: Diary, lanes: int
) -> None:
    node = await fleet.node(handlers, lanes=lanes)
    await node.schedule("s", RARE, "note", "key", "old")
    await node.schedules.pause("s")
    await node.schedules.pause("s")
    first = await node.schedules.next_times("s", 2)
    await node.schedule("s", RARE, "note", "key", "new")
    told = await node.schedules.show("s")
    assert told.is_paused
    assert told.args == ("new",)
    assert await node.schedules.next_times("s", 2) == first
    assert first[1] - first[0] == timedelta(days=300)
    ref = await node.schedules.trigger("s")
    assert await ref.result(timeout_s=20) == "noted"
    assert ref.job_id.startswith("s@trigger-")
    assert diary.entries == [("key", ref.job_id, None, "new")]
    put_back(fleet, "s", lanes, 86_400 * 900)  # it stays paused, though its time has come
    assert await node.schedules.next_times("s", 2) == first  # as it would go on if it were resumed
    await node.schedules.resume("s")
    await node.schedules.resume("s")
    assert (await node.schedules.show("s")).next_at == first[0]
    await node.schedule("s", Every(86_400 * 100), "note", "key", "new")
    assert (await node.schedules.show("s")).next_at != first[0]
    assert (await node.schedules.show("s")).fired == 0
    await node.schedules.remove("s")
    with pytest.raises(NoSuchSchedule):
        await node.schedules.remove("s")
    with pytest.raises(NoSuchSchedule):
        await node.schedules.show("s")


async def test_a_repeat_of_what_was_triggered_is_the_same_job_or_is_refused(
    fleet: Fleet, handlers: Handlers, lanes: int
) -> None:
    node = await fleet.node(handlers, lanes=lanes)
    trigger = partial(node.schedules.trigger, "s", idempotency_key="once")
    await node.schedule("s", RARE, "note", "key", 1)
    first = await trigger()
    assert await first.result(timeout_s=20) == "noted"
    assert (await trigger()).job_id == first.job_id
    then = Follower("note", "behind")
    changes: list[tuple[str, str, Any]] = [
        ("arguments", "note", node.options()),
        ("handler", "hold", node.options()),
        ("followers", "note", node.options(then=then)),
    ]
    for differs, handler, options in changes:
        args = (2,) if differs == "arguments" else (1,) if handler == "note" else ()
        await options.schedule("s", RARE, handler, "key", *args)
        with pytest.raises(IdempotencyConflict) as refused:
            await trigger()
        assert refused.value.differs == differs


async def test_a_time_to_come_fires_once_and_is_gone(
    fleet: Fleet, handlers: Handlers, diary: Diary, lanes: int
) -> None:
    node = await fleet.node(handlers, lanes=lanes)
    when = datetime.now(UTC) + timedelta(seconds=2.0)
    await node.schedule("s", At(when), "note", "key")
    await diary.counts(1)
    assert diary.entries[0][2] == moment(round(when.timestamp() * 1000))

    async def is_gone() -> bool:
        return not (await node.schedules.list()).schedules

    await fleet.until(is_gone)


async def test_what_stands_in_the_code_is_kept_and_put_back_after_a_loss(
    fleet: Fleet, diary: Diary, lanes: int
) -> None:
    made, others = Handlers(), Handlers()

    @made.schedule("0 3 * * *", tz="Europe/Paris")
    @made.job("nightly")
    async def nightly(job: Job) -> None: ...

    @others.schedule(Every(1), name="often", key="k", kwargs={"n": 2}, if_exists="queue")
    @others.job("poll")
    async def poll(job: Job, *, n: int) -> None:
        diary.note(job.key, n)

    made.include(others, "part.")
    node = await fleet.node(made, lanes=lanes)
    await diary.has("k", 2)

    async def are_there() -> bool:
        page = await node.schedules.list(count=1000)
        found = {each.name: each for each in page.schedules}
        cursor = page.cursor
        while cursor:
            page = await node.schedules.list(cursor=cursor)
            found |= {each.name: each for each in page.schedules}
            cursor = page.cursor
        return set(found) == {"nightly", "part.often"}

    await fleet.until(are_there)
    assert (await node.schedules.show("nightly")).key == "nightly"
    await node.schedules.pause("part.often")
    other = await fleet.node(made, lanes=lanes)  # it finds them as they are
    assert (await other.schedules.show("part.often")).is_paused
    for number in range(lanes):
        fleet.client.delete(*fleet.client.keys(Names(fleet.pool, number).prefix + "*"))
    diary.entries.clear()
    await diary.has("k", 2)
    await fleet.until(are_there)


async def test_one_in_the_code_whose_time_is_over_keeps_none_of_the_others_out(
    fleet: Fleet,
) -> None:
    """As when a service starts again on the day after."""
    made = Handlers()

    @made.schedule(At(datetime.now(UTC) - timedelta(days=1)), name="over")
    @made.schedule(RARE, name="behind")
    @made.schedule(At(datetime.now(UTC) - timedelta(days=1)), name="over-too")
    @made.job("note")
    async def note(job: Job) -> None: ...

    node = await fleet.node(made)

    async def are_there() -> bool:
        return [each.name for each in (await node.schedules.list()).schedules] == ["behind"]

    await fleet.until(are_there)
    assert not fleet.all_seen(StoreTroubled, during="keep schedules")


async def test_a_lost_index_is_found_by_the_walk(
    fleet: Fleet, handlers: Handlers, diary: Diary
) -> None:
    """G-05: neither the entry in `due` nor that of the schedule need be there."""
    fleet.is_audited = False
    node = await fleet.node(handlers, lease_ttl_s=1.0)
    await node.options(if_exists="queue").schedule("s", Every(1, misfire="all"), "note", "key")
    await diary.counts(1)
    fleet.client.zrem(fleet.names.scheduled, "s")
    fleet.client.zrem(fleet.names.due, "s:")
    await fleet.seen(IndexRestored, index="scheduled")
    before = len(diary.entries)
    await diary.counts(before + 2)
    times = [e[2] for e in diary.entries]
    assert times == [times[0] + timedelta(seconds=n) for n in range(len(times))]


async def test_what_nobody_can_read_is_told_and_keeps_none_of_the_others_waiting(
    fleet: Fleet, handlers: Handlers, diary: Diary
) -> None:
    fleet.is_audited = False
    node = await fleet.node(handlers)
    names = fleet.names
    for n, junk in enumerate((b"", b"\n", b"a 1 1 0 0 0 0 t\nwhat", b"\xff" * 100)):
        fleet.client.hset(names.schedules, f"junk{n}", junk)
        fleet.client.zadd(names.scheduled, {f"junk{n}": n, f"none{n}": n})
    fleet.client.zadd(names.scheduled, {b"\xff": 1})
    await node.schedule("s", Every(1), "note", "key")
    await diary.counts(1)
    for n in (0, 2, 3):
        await fleet.seen(ScheduleUnreadable, schedule=f"junk{n}")
    assert [s.name for s in (await node.schedules.list()).schedules] == ["s"]
    await fleet.until(lambda: fleet.client.zrange(names.scheduled, 0, -1) == [b"s"])


async def test_without_the_extra_others_fire(
    fleet: Fleet, handlers: Handlers, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a node cannot read it leaves where it is, and fires the rest."""
    node = await fleet.node(handlers)
    await node.schedule("cron", Cron("* * * * * *"), "note", "cron")
    await node.schedule("rare", Cron("0 0 1 1 *", tz="Europe/Paris"), "note", "rare")
    with monkeypatch.context() as patch:
        patch.setattr("pool.core.times._zone", _no_zone)
        await node.schedule("every", Every(1), "note", "every")
        await diary.until(lambda entries: len([e for e in entries if e[0] == "every"]) >= 3)
        before = len([e for e in diary.entries if e[0] == "cron"])
        await _can_be_looked_at_and_changed(node)
        told = await fleet.seen(StoreTroubled, during="fire schedules")
        assert "schedule 'cron'" in told.problem
    await diary.until(lambda entries: len([e for e in entries if e[0] == "cron"]) > before)


async def _can_be_looked_at_and_changed(node: Node) -> None:
    """But for what needs its expression: the error names it."""
    schedules = node.schedules
    found = {each.name: each for each in (await schedules.list()).schedules}
    assert set(found) == {"cron", "every", "rare"}
    when: Any = found["rare"].when
    assert (type(when), when.expression, when.tz) == (Cron, "0 0 1 1 *", "Europe/Paris")
    assert (await schedules.show("rare")).next_at is not None
    assert len(await schedules.next_times("rare", 1)) == 1
    await schedules.pause("rare")
    for ask in (schedules.next_times, schedules.resume):
        with pytest.raises(ConfigError, match=r"schedule 'rare': .*extra"):
            await ask("rare")
    ref = await schedules.trigger("rare")
    assert await ref.result(timeout_s=20) == "noted"
    await schedules.remove("rare")
    with pytest.raises(NoSuchSchedule):
        await schedules.show("rare")


async def test_what_a_node_cannot_read_is_due_for_the_next_one_at_once(
    fleet: Fleet, handlers: Handlers, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many nodes without the extra there are, and however often they look."""
    blind, judge = await fleet.node(), Scheduler._judge
    await blind.options(allow_unknown=True).schedule("s", RARE, "note", "key")

    def judging(self: Scheduler, *args: Any) -> Any:
        return (None, None) if self.context.node_id == blind.id else judge(self, *args)

    monkeypatch.setattr(Scheduler, "_judge", judging)
    wiring = fleet.wiring(blind)
    put_back(fleet, "s", 1, 86_400 * 300)
    ahead_ms = []
    for _ in range(5):  # it may look by itself, too
        await wiring._sweeper.scheduler._fire_due(wiring.context.lanes[0])
        seconds, micros = fleet.client.time()
        score: Any = fleet.client.zscore(fleet.names.due, "s:")
        ahead_ms.append(score - 1000 * seconds - micros / 1000)
    assert min(ahead_ms) < 500 * HOLD_S
    await fleet.node(handlers)
    await diary.counts(1)


async def test_counting_what_was_missed_keeps_nobody_waiting(
    fleet: Fleet, handlers: Handlers, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of schedules that missed a thousand times each is seconds of work."""
    node = await fleet.node(handlers)
    judged, judge, turns, count = 0, Scheduler._judge, list[int](), 10

    def judging(self: Scheduler, *args: Any) -> Any:
        nonlocal judged
        judged += 1
        return judge(self, *args)

    monkeypatch.setattr(Scheduler, "_judge", judging)
    names, pages = fleet.names, fleet.client.pipeline()
    for name in (f"s{number}" for number in range(count)):
        await node.schedule(name, Cron("* * * * *"), "note", name)
        text: Any = fleet.client.hget(names.schedules, name)
        stored = parse(name, text)
        assert stored is not None
        next_ms = stored.head.next_ms - 86_400_000
        head = attrs.evolve(stored.head, next_ms=next_ms, due_ms=next_ms)
        pages.hset(names.schedules, name, head.pack().encode() + b"\n" + stored.body)
        pages.zadd(names.scheduled, {name: next_ms})
    pages.zadd(names.due, {"s:": 0})
    pages.execute()
    fleet.wiring(node).context.on_due(0, 0.0)
    with anyio.fail_after(60.0):
        while len(diary.entries) < count:
            turns.append(judged)
            await anyio.lowlevel.checkpoint()
    assert judged >= count
    assert max(later - at for at, later in pairwise(turns)) <= 2


def _no_zone(*_: object) -> Any:
    raise ConfigError(setting="tz", problem="the extra is not installed")


async def test_many_at_once_are_fired_in_slices_in_order(
    fleet: Fleet, handlers: Handlers, diary: Diary
) -> None:
    """Those due first first, however many there are."""
    node = await fleet.node(handlers)
    count, context = 300, fleet.wiring(node).context
    await node.schedule("s", RARE, "note", "key")
    await node.schedules.pause("s")
    text: Any = fleet.client.hget(fleet.names.schedules, "s")
    stored = parse("s", text)
    assert stored is not None
    calls: ScheduleCalls = context.lanes[0].lane
    now_ms = round(datetime.now(UTC).timestamp() * 1000)
    changes = []
    for n in range(count):
        job = attrs.evolve(stored.job, key=f"k{n}")
        head = attrs.evolve(
            stored.head, is_paused=False, next_ms=now_ms - 5000 + n, due_ms=now_ms - 5000 + n
        )
        one = attrs.evolve(stored, name=f"s{n}", job=job, when=At(moment(head.next_ms)))
        line = head.pack()
        changes.append(
            ScheduleChange(name=one.name, seen=b"", head=line, body=one.body, due_ms=head.due_ms)
        )
    for first in range(0, count, 100):
        call = calls.schedule(changes[first : first + 100], hold_s=1.0)
        await context.pipeline.call(call, repeatable=True)
    context.on_due(0, 0.0)
    await diary.counts(count)
    accepted = [e[0] for e in diary.entries]
    assert sorted(accepted) == sorted(f"k{n}" for n in range(count))
    places = {key: at for at, key in enumerate(accepted)}
    assert max(abs(places[f"k{n}"] - n) for n in range(count)) < 200
    assert [s.name for s in (await node.schedules.list()).schedules] == ["s"]


async def test_what_cannot_be_scheduled_is_refused_and_nothing_is_written(
    fleet: Fleet, handlers: Handlers
) -> None:
    node = await fleet.node(handlers)
    past = At(datetime.now(UTC) - timedelta(seconds=5))
    cases: list[tuple[type[Exception], Any]] = [
        (InvalidOption, lambda: node.schedule("s", past, "note", "k")),
        (InvalidOption, lambda: node.schedule("s", "* * * * *", "note", "k")),  # type: ignore[call-overload]
        (ConfigError, lambda: node.schedule("a b", RARE, "note", "k")),
        (ConfigError, lambda: node.schedule("s" * 97, RARE, "note", "k")),
        (InvalidKey, lambda: node.schedule("s", RARE, "note", "")),
        (WrongArguments, lambda: node.schedule("s", RARE, "hold", "k", 1)),
        (UnknownHandler, lambda: node.schedule("s", RARE, "nobody", "k")),
        (InvalidOption, lambda: node.options(job_id="x").schedule("s", RARE, "note", "k")),
        (
            InvalidOption,
            lambda: node.options(idempotency_key="x").schedule("s", RARE, "note", "k"),
        ),
        (NoSuchSchedule, lambda: node.schedules.pause("s")),
        (NoSuchSchedule, lambda: node.schedules.resume("s")),
        (NoSuchSchedule, lambda: node.schedules.trigger("s")),
        (NoSuchSchedule, lambda: node.schedules.next_times("s")),
        (InvalidOption, lambda: node.schedules.next_times("s", 0)),
        (InvalidOption, lambda: node.schedules.list(cursor="x")),
        (InvalidOption, lambda: node.schedules.list(count=0)),
    ]
    for kind, call in cases:
        with pytest.raises(kind):
            await call()
    assert not fleet.client.exists(fleet.names.schedules, fleet.names.scheduled)
    await node.options(allow_unknown=True).schedule("s", RARE, "nobody", "k")
    assert (await node.schedules.show("s")).handler == "nobody"


def test_what_cannot_stand_in_the_code_is_refused_there() -> None:
    made, other = Handlers(), Handlers()

    @other.job("other")
    async def others(job: Job) -> None: ...

    bad_ones: list[Callable[[], object]] = [
        lambda: made.schedule("61 * * * *"),
        lambda: made.schedule("0 3 * * *", tz="Nowhere"),
        lambda: made.schedule(Every(5), tz="Europe/Paris"),
        lambda: made.schedule(5),  # type: ignore[arg-type]
        lambda: made.schedule(Every(5), args="ab"),
    ]
    for bad in bad_ones:
        with pytest.raises(InvalidOption):
            bad()
    with pytest.raises(ConfigError):
        made.schedule(Every(5), name="a b")
    for thing in (others, print):
        with pytest.raises(ConfigError, match="above"):
            made.schedule(Every(5))(thing)  # type: ignore[arg-type]


# --- what is changed around a time --------------------------------------------------------------


def stand(fleet: Fleet, name: str, lanes: int, next_ms: int, due_ms: int) -> None:
    """Have a schedule stand with this next time; nobody comes for it by itself."""
    names = names_of(fleet, name, lanes)
    stored = parse(name, fleet.client.hget(names.schedules, name))  # type: ignore[arg-type]
    assert stored is not None
    head = attrs.evolve(stored.head, next_ms=next_ms, due_ms=due_ms)
    fleet.client.hset(names.schedules, name, head.pack().encode() + b"\n" + stored.body)
    fleet.client.zadd(names.scheduled, {name: due_ms + 86_400_000})


JITTERED = Every(7200, jitter_s=3600, window_s=86_400)
# How long ago the time came, and in how many seconds its jitter is over.
MOMENTS = [(-5.0, 60.0), (0.001, 300.0), (60.0, 300.0), (301.0, -1.0), (3700.0, -100.0)]


@pytest.mark.parametrize(("ago_s", "left_s"), MOMENTS)
@pytest.mark.parametrize("act", ["edit", "deploy", "pause", "remove", "arguments"])
async def test_a_time_that_has_come_is_fired_or_missed_though_its_schedule_changes(
    fleet: Fleet, handlers: Handlers, lanes: int, act: str, ago_s: float, left_s: float
) -> None:
    """None is gone without a word, at whatever moment between a time and the end of its jitter."""
    node = await fleet.node(handlers, lanes=lanes)
    seconds, micros = fleet.client.time()
    now_ms = 1000 * seconds + micros // 1000
    next_ms = now_ms - round(1000 * ago_s)
    # What is stored has milliseconds: it is the same schedule all the same.
    start = moment(next_ms - 720_000_000) + timedelta(microseconds=456)
    when = attrs.evolve(JITTERED, start=start)
    await node.schedule("s", when, "note", "key", "old")
    stand(fleet, "s", lanes, next_ms, now_ms + round(1000 * left_s))
    other = attrs.evolve(JITTERED, seconds=3600)
    match act:
        case "edit":
            await node.schedule("s", other, "note", "key", "new")
        case "deploy":
            made = Handlers()
            made.schedule(other, name="s", key="key", args=["new"])(handlers_note(made))
            await fleet.node(made, lanes=lanes)
        case "pause":
            await node.schedules.pause("s")
            await node.schedules.resume("s")
        case "arguments":
            await node.schedule("s", when, "note", "key", "new")
        case _:
            await node.schedules.remove("s")
    has_come = ago_s > 0
    if act == "remove":
        if has_come:
            await fleet.seen(ScheduleMissed, schedule="s", missed=1)
        return
    told = await node.schedules.show("s")
    if act == "arguments":  # as before: it is fired when its jitter is over
        assert (told.fired, told.missed, told.args) == (0, 0, ("new",))
        assert told.next_at == moment(next_ms)
        return
    assert told.next_at is not None
    assert told.next_at > moment(now_ms)
    assert told.fired + told.missed == has_come
    if act == "pause":
        assert told.missed == has_come
        if has_come:
            await fleet.seen(ScheduleMissed, schedule="s", missed=1)
    elif has_come:
        assert told.fired == 1
        assert told.last_at == moment(next_ms)
        job_id = f"s@{told_time(next_ms)}"
        await fleet.until(lambda: is_accepted(node, job_id))


def handlers_note(made: Handlers) -> Any:
    @made.job("note", attempts_max=1)
    async def note(job: Job, *words: Any) -> None: ...

    return note


async def is_accepted(node: Node, job_id: str) -> bool:
    try:
        await (await node.job("key", job_id)).status()
    except PoolError:
        return False
    return True


async def test_a_job_whose_schedule_changed_waits_until_its_jitter_is_over(
    fleet: Fleet, handlers: Handlers, diary: Diary, lanes: int
) -> None:
    """A deployment does not make what jitter has spread come at once."""
    node = await fleet.node(handlers, lanes=lanes)
    await node.schedule("s", JITTERED, "note", "key")
    seconds, _ = fleet.client.time()
    next_ms = 1000 * seconds
    while due_ms("s", JITTERED, next_ms) < 1000 * seconds + 60_000:
        next_ms -= 1
    stand(fleet, "s", lanes, next_ms, due_ms("s", JITTERED, next_ms))
    await node.schedule("s", Every(3600), "note", "key")
    job_id = f"s@{told_time(next_ms)}"
    await fleet.until(lambda: is_accepted(node, job_id))
    status = await (await node.job("key", job_id)).status()
    assert status.state == "waiting"
    assert not diary.entries


async def test_a_schedule_whose_only_time_is_over_is_not_resumed_and_says_why(
    fleet: Fleet, handlers: Handlers
) -> None:
    node = await fleet.node(handlers)
    at = datetime.now(UTC) + timedelta(seconds=1)
    await node.schedule("s", At(at), "note", "key")
    await node.schedules.pause("s")
    while datetime.now(UTC) <= at + timedelta(seconds=0.1):  # noqa: ASYNC110
        await anyio.sleep(0.05)
    with pytest.raises(InvalidOption, match="time to come: remove it") as refused:
        await node.schedules.resume("s")
    assert (refused.value.option, refused.value.value) == ("name", "s")


async def test_an_interval_is_of_whole_milliseconds_as_it_is_told() -> None:
    assert Every(7 / 3).seconds == 2.333
    assert Every(1.0004) == Every(1.0)


async def test_a_job_that_waits_for_its_jitter_expires_so_much_later(
    fleet: Fleet, handlers: Handlers, lanes: int
) -> None:
    """As one whose schedule did not change: its `expires_s` counts from the end of its jitter."""
    node = await fleet.node(handlers, lanes=lanes)
    limited = node.options(expires_s=10.0, delay_s=1.0)
    await limited.schedule("s", JITTERED, "note", "key")
    seconds, _ = fleet.client.time()
    next_ms = 1000 * seconds
    due = partial(due_ms, "s", JITTERED)
    while not 60_000 < due(next_ms) - 1000 * seconds < 90_000:
        next_ms -= 1
    stand(fleet, "s", lanes, next_ms, due(next_ms))
    await limited.schedule("s", Every(3600), "note", "key")
    job_id = f"s@{told_time(next_ms)}"
    await fleet.until(lambda: is_accepted(node, job_id))
    jobs = Names(fleet.pool, lane_of("key", lanes)).jobs
    record = Record.parse(fleet.client.hget(jobs, "key") or b"")  # type: ignore[arg-type]
    assert record is not None
    begins_ms, ends_ms = record.since_ms, begin_by_ms(record.more)
    assert ends_ms - begins_ms == pytest.approx(9_000, abs=1_000)


async def test_more_late_times_than_one_step_fires_are_all_fired_before_a_change(
    fleet: Fleet, handlers: Handlers, diary: Diary
) -> None:
    node = await fleet.node(handlers)
    often = Every(1, misfire="all", window_s=86_400, jitter_s=3600)
    await node.options(if_exists="queue", queue_max=1000).schedule("s", often, "note", "key")
    seconds, _ = fleet.client.time()
    stand(fleet, "s", 1, 1000 * (seconds - 250), 1000 * (seconds + 60))
    await node.options(if_exists="queue", queue_max=1000).schedule("s", RARE, "note", "key")
    told = await node.schedules.show("s")
    assert told.fired >= 251
    assert told.fired + told.missed + told.overlapped <= 260
    assert told.when == RARE


# --- what stands in the code, when its node is open ---------------------------------------------


async def test_a_schedule_of_the_code_is_there_when_its_node_is_open(
    fleet: Fleet, lanes: int
) -> None:
    made = Handlers()
    note = handlers_note(made)
    for number in range(20):
        made.schedule(RARE, name=f"s{number}")(note)
    node = await fleet.node(made, lanes=lanes)
    for number in range(20):
        assert (await node.schedules.show(f"s{number}")).handler == "note"
    ref = await node.schedules.trigger("s0")
    await ref.result(timeout_s=20)
    late = Handlers()
    late.schedule(RARE, name="late")(handlers_note(late))
    client = await fleet.node(lanes=lanes)
    await client.add_worker(late)
    assert (await client.schedules.show("late")).handler == "note"


async def test_an_interval_of_the_code_that_begins_anew_at_each_start_is_told(
    fleet: Fleet,
) -> None:
    """With `start=now` it never fires where restarts are more frequent than the interval."""
    for number in range(3):
        made = Handlers()
        start = moment(1_767_225_600_000 + number)
        made.schedule(Every(3600, start=start), name="s")(handlers_note(made))
        await fleet.node(made)
        assert len(fleet.all_seen(ScheduleMoved, schedule="s")) == number
    made = Handlers()
    made.schedule(Every(60), name="s")(handlers_note(made))
    await fleet.node(made)
    assert len(fleet.all_seen(ScheduleMoved, schedule="s")) == 2  # this is another interval


async def test_a_schedule_of_the_code_that_cannot_be_kept_is_told(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for a time that is over, which was fired."""
    made = Handlers()
    made.schedule("0 3 * * *", name="s")(handlers_note(made))
    monkeypatch.setattr("pool.jobs.scheduling.first_head", lambda *_: None)
    await fleet.node(made)
    await fleet.seen(StoreTroubled, during="keep schedules")
