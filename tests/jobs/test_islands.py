"""Lanes are islands: one that hangs or lost its data is nobody else's matter.

Three lanes, each with a primary of its own; the control keys are with the first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import attrs
import pytest
import redis

from pool import Follower, Handlers, Job, JobRef, Node
from pool.errors import ConfigError, StoreLost, StoreUnavailable
from pool.events import (
    ChannelApart,
    ControlLost,
    DataLost,
    LaneDataLost,
    LaneJoined,
    LaneMissing,
    LeaseLost,
    NodeLeft,
    WorkerFenced,
    WorkerReaped,
)
from pool.jobs.client.dispatcher import BATCH_MAX
from pool.jobs.fleet.membership import Membership
from pool.names import Control, Names, lane_of
from pool.redis.pipeline import Pipeline
from pool.runtime import pool_config
from tests.impatient import hurry
from tests.nodes import PATIENCE_S, SETTINGS, Diary, Fleet
from tests.servers import Cluster, admin, connect, freeze, thaw
from tests.stopwatch import stopwatch

if TYPE_CHECKING:
    from pool.redis.embedded.server import EmbeddedServer, ServerProgram

pytestmark = [pytest.mark.anyio, pytest.mark.one_server]  # they bring their own
LANES, LAST = 3, 2
TTL_S = 5.0  # of which a busy machine takes no half: no handler is stopped
OP_TIMEOUT_S = 2.0  # where a lane hangs; elsewhere a call may be as slow as it likes
SLACK_S = 1.5  # of a busy machine
ISLANDS = attrs.evolve(SETTINGS, lanes=LANES, lease_ttl_s=TTL_S, op_timeout_s=10.0)


@pytest.fixture(scope="module")
def cluster(program: ServerProgram) -> Iterator[Cluster]:
    # Without this the servers themselves would have one that hangs take the others along.
    with Cluster.start(program, primaries=LANES, cluster_require_full_coverage="no") as place:
        yield place


def _is_spread(pool: str) -> bool:
    slots = [redis.crc.key_slot(n.encode()) for n in (Control(pool).prefix, *_prefixes(pool))]
    return [slot * LANES // 16_384 for slot in slots] == [0, 0, 1, 2]


def _prefixes(pool: str) -> list[str]:
    return [Names(pool, lane).prefix for lane in range(LANES)]


POOL = next(name for n in range(10_000) if _is_spread(name := f"islands-{n}"))


@pytest.fixture
async def islands(anyio_backend: str, cluster: Cluster) -> AsyncIterator[Fleet]:
    for each in cluster.processes:
        with admin(each) as client:
            client.flushall()
    with connect(cluster.url) as client:
        fleet = Fleet(cluster.url, POOL, client, ISLANDS, is_audited=False)
        async with fleet.running():
            yield fleet


def of(cluster: Cluster, lane: int) -> EmbeddedServer:
    return cluster.processes[lane]


@contextmanager
def hung(cluster: Cluster, lane: int, *nodes: Node) -> Iterator[None]:
    """Have a lane hang for a while, in which these nodes' calls have little time."""
    for node in nodes:
        hurry(node, OP_TIMEOUT_S)
    freeze(of(cluster, lane))
    try:
        yield
    finally:
        thaw(of(cluster, lane))
        for node in nodes:
            if node.state == "open":
                hurry(node, ISLANDS.op_timeout_s)


def wipe(cluster: Cluster, lane: int) -> None:
    with admin(of(cluster, lane)) as client:
        client.flushall()


def key_in(lane: int, name: str = "key") -> str:
    return next(k for n in range(1000) if lane_of(k := f"{name}-{n}", LANES) == lane)


def made(diary: Diary) -> Handlers:
    mine = Handlers()

    @mine.job("echo")
    async def echo(job: Job, text: str) -> str:
        return text

    @mine.job("slow")
    async def slow(job: Job, seconds: float) -> str:
        diary.note("slow", job.key)
        await anyio.sleep(seconds)
        return job.node_id

    @mine.service("follow")
    async def follow(job: Job) -> None:
        diary.note("follows", job.key, job.node_id)
        try:
            await anyio.sleep_forever()
        finally:
            diary.note("ended", job.key, job.node_id)

    return mine


async def serves(node: Node, lane: int, name: str = "echo") -> bool:
    ref = await node.dispatch("echo", key_in(lane, name), "text")
    return bool(await ref.result(timeout_s=PATIENCE_S) == "text")


async def serves_again(node: Node, lane: int) -> bool:
    try:
        return await serves(node, lane)
    except StoreLost:
        return False


def numbers(node: Node) -> set[tuple[int, ...]]:
    return {info.numbers for info in Fleet.entries(node)}


def have(node: Node, wanted: tuple[int, ...]) -> bool:
    return numbers(node) == {wanted}


async def test_nodes_and_workers_join_without_a_lane_that_hangs(
    islands: Fleet, cluster: Cluster, diary: Diary
) -> None:
    """They are there within a call's time, and join that lane when it is back."""
    first = await islands.node(made(diary))
    with hung(cluster, LAST, first):
        with stopwatch() as watch:
            # It joins, then its worker does.
            second = await islands.node(made(diary), op_timeout_s=OP_TIMEOUT_S)
            assert watch.took_s() < 2 * OP_TIMEOUT_S + SLACK_S
        await islands.seen(LaneMissing, lane=LAST, node=second.id)
        await islands.knows(first, workers=2)
        assert numbers(first) == {(1, 1, 1), (1, 1, 0)}
        for lane in (0, 1):
            assert await serves(second, lane)
            assert await serves(first, lane)
        # For longer than a lease lasts: there never was one that could end.
        state, clock = islands.wiring(second).context.lanes[LAST], second._io.clock
        await islands.until(lambda: not state.lease.is_good(clock()))
    hurry(second, ISLANDS.op_timeout_s)
    await islands.seen(LaneJoined, lane=LAST, node=second.id)
    await islands.until(lambda: all(min(each) > 0 for each in numbers(first)))
    assert islands.all_seen(LeaseLost, node=second.id) == []
    assert len(islands.all_seen(LaneMissing)) == 1
    await islands.leave(first)
    assert await serves(second, LAST)
    assert islands.all_seen(DataLost) == []


async def test_who_joins_while_a_lane_hangs_keeps_its_leases_in_the_others(
    islands: Fleet, cluster: Cluster, diary: Diary
) -> None:
    """It renewed nowhere until that lane's time was up, here as long as a lease lasts."""
    first = await islands.node(made(diary))
    with hung(cluster, LAST, first):
        second = await islands.node(made(diary), op_timeout_s=TTL_S)
        await islands.seen(LaneMissing, lane=LAST, node=second.id)
        for lane in (0, 1):
            assert await serves(second, lane)
        assert islands.all_seen(LeaseLost, node=second.id) == []
        assert islands.all_seen(WorkerReaped) == []
    assert all(lane == LAST for node in (first, second) for lane in lost(islands, node))


async def test_a_join_that_was_answered_late_is_no_lease_lost(
    islands: Fleet, cluster: Cluster, diary: Diary
) -> None:
    """Its lease counts from when it was asked for: it began in its last moments."""
    freeze(of(cluster, LAST))

    async def thaw_later() -> None:
        await islands.until(lambda: anyio.current_time() > began_s + 0.85 * TTL_S)
        thaw(of(cluster, LAST))

    began_s = anyio.current_time()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(thaw_later)
        node = await islands.node(made(diary))
    assert await serves(node, LAST)
    assert lost(islands, node) == []


def lost(fleet: Fleet, node: Node) -> list[int]:
    return [event.lane for event in fleet.all_seen(LeaseLost, node=node.id)]


async def test_many_are_dispatched_without_a_lane_that_hangs(
    islands: Fleet, cluster: Cluster
) -> None:
    """G-09: it waited its time again for each thousand calls, and the other lanes with it."""
    patient_s = 2 * OP_TIMEOUT_S  # a slice of a lane that is well may need as long
    node = await islands.node(None, op_timeout_s=patient_s)
    keys = [f"many-{n}" for n in range(6000)]
    with hung(cluster, LAST), stopwatch() as watch:
        answers = await node.options(allow_unknown=True).dispatch_many("nobodys", keys)
        took_s = watch.took_s()
    sent, unsent = 0, 0
    for key, answer in zip(keys, answers, strict=True):
        if lane_of(key, LANES) == LAST:
            assert isinstance(answer, StoreUnavailable)
            sent, unsent = sent + answer.maybe_done, unsent + (not answer.maybe_done)
        else:
            assert isinstance(answer, JobRef), answer
            assert answer.key == key
    assert sent <= 3 * BATCH_MAX < unsent
    assert took_s < 2 * patient_s + SLACK_S, took_s
    # It is itself again, in each lane.
    [*again] = await node.options(allow_unknown=True).dispatch_many(
        "nobodys", [key_in(lane, "later") for lane in range(LANES)]
    )
    assert all(isinstance(each, JobRef) for each in again)


async def test_a_node_leaves_without_a_lane_that_hangs(
    islands: Fleet, cluster: Cluster, diary: Diary
) -> None:
    """Elsewhere services are handed over and finite jobs end in peace; it costs its time once."""
    first = await islands.node(made(diary))
    keys = [key_in(lane, "service") for lane in range(LANES)]
    for key in keys:
        await first.dispatch("follow", key)
        await diary.has("follows", key, first.id)
    second = await islands.node(made(diary), settle_delay_s=60.0)
    slow = await first.dispatch("slow", key_in(1, "slow"), 1.0)
    await diary.has("slow", slow.key)
    with hung(cluster, LAST, first, second), stopwatch() as watch:
        await islands.leave(first)
        took_s = watch.took_s()
        for key in keys[:2]:
            await diary.has("follows", key, second.id)
        job = await second.dispatch("echo", key_in(0), "text")
        assert await job.result(timeout_s=PATIENCE_S) == "text"
        assert islands.all_seen(WorkerReaped) == []
        assert await slow.__class__(slow.key, slow.job_id, "slow", second._client).result(
            timeout_s=PATIENCE_S
        ) in (first.id, second.id)
        # The call's deadline, the second of a job that may end, handlers that lost their lease.
        assert took_s < 1.0 + 2 * OP_TIMEOUT_S + SLACK_S, took_s
    assert diary.entries.count(("slow", slow.key)) == 1
    assert (await islands.seen(NodeLeft, node=first.id)).abandoned <= 1
    await diary.has("follows", keys[LAST], second.id)  # it is reaped there


async def test_a_lane_that_hangs_keeps_nobody_from_taking_over_elsewhere(
    islands: Fleet, cluster: Cluster, diary: Diary
) -> None:
    """G-06: a worker that died is reaped in the other lanes, with the entry that names all."""
    node = await islands.node(made(diary))
    for lane in (0, 1):
        islands.client.zadd(Names(POOL, lane).keepalive, {"ghost.1": 9e15})
    with hung(cluster, LAST, node):
        for lane in (0, 1):
            islands.client.zadd(Names(POOL, lane).keepalive, {"ghost.1": 1})
        with anyio.fail_after(PATIENCE_S):
            await islands.seen(WorkerReaped, 2, identity="ghost.1")


async def test_a_lane_that_lost_its_data_is_joined_anew_by_itself(
    islands: Fleet, cluster: Cluster, diary: Diary
) -> None:
    """Its waiters are told, its handlers end, it serves again; nobody else notices.  Twice."""
    nodes = [await islands.node(made(diary)) for _ in range(2)]
    first, second = nodes
    keys = [key_in(lane, "service") for lane in range(LANES)]
    refs = [await first.dispatch("follow", key) for key in keys]
    await diary.counts(LANES)
    jobs = {lane: await first.dispatch("slow", key_in(lane, "job"), 2.0) for lane in (0, 1)}
    lost: list[int] = []

    async def wait(lane: int) -> None:
        with pytest.raises(StoreLost):
            await refs[lane].result(timeout_s=PATIENCE_S)
        lost.append(lane)

    async with anyio.create_task_group() as waiting:
        waiting.start_soon(wait, LAST)
        await anyio.lowlevel.checkpoint()
        wipe(cluster, LAST)
    for times in (1, 2):
        with anyio.fail_after(PATIENCE_S):
            await islands.seen(LaneDataLost, 2 * times, lane=LAST)
            for node in nodes:
                await islands.until(partial(serves_again, node, LAST))
        await islands.until(partial(have, first, (1, 1, 1 + times)))
        if times == 1:
            wipe(cluster, LAST)
    for lane, job in jobs.items():
        assert await job.result(timeout_s=PATIENCE_S) in (first.id, second.id), lane
    assert lost == [LAST]
    assert islands.all_seen(DataLost) == []
    assert {each.lane for each in islands.all_seen(LaneDataLost)} == {LAST}
    assert {each.lane for each in islands.all_seen(WorkerFenced)} == {LAST}
    ended = {e[1] for e in diary.entries if e[0] == "ended"}
    assert ended == {keys[LAST]}


def lose_control(islands: Fleet) -> None:
    keys: Any = islands.client.keys(f"{Control(POOL).prefix}*")  # one slot: at once
    islands.client.delete(*keys)


async def test_the_control_keys_lost_alone_are_put_back(
    islands: Fleet, cluster: Cluster, diary: Diary
) -> None:
    """Nobody in a lane is touched, no waiter is told, and the fleet is announced again.  Twice."""
    prompt: Any = {"settle_delay_s": 0.0}
    nodes = [await islands.node(made(diary), **prompt) for _ in range(2)]
    refs = [await nodes[0].dispatch("follow", key_in(lane, "service")) for lane in range(LANES)]
    await diary.counts(LANES)
    config = islands.client.hgetall(Control(POOL).config)
    told: list[Exception] = []

    async def wait(ref: Any) -> None:
        try:
            await ref.result()
        except StoreLost as error:
            told.append(error)

    async with anyio.create_task_group() as waiting:
        for ref in refs:
            waiting.start_soon(wait, ref)
        for times in (1, 2):
            lose_control(islands)
            await islands.seen(ControlLost, times)
            late = await islands.node(**prompt)  # takes a snapshot of its own
            await islands.knows(late, workers=2)
            for node in nodes:
                await islands.knows(node, workers=2)
            assert islands.client.hgetall(Control(POOL).config) == config
            assert numbers(late) == {(1, 1, 1)}
            for lane in range(LANES):
                assert await serves(nodes[times - 1], lane)
        waiting.cancel_scope.cancel()
    assert told == []
    assert len(islands.all_seen(ControlLost)) == 2  # of several that found out one tells
    for event in (DataLost, LaneDataLost, WorkerFenced, WorkerReaped):
        assert islands.all_seen(event) == []
    assert [entry for entry in diary.entries if entry[0] == "ended"] == []


async def test_who_opens_when_the_control_keys_are_lost_founds_no_other_pool(
    islands: Fleet, diary: Diary
) -> None:
    """It may be the first to find out: the lanes know what the pool was made as."""
    node = await islands.node(made(diary))
    config = islands.client.hgetall(Control(POOL).config)
    lose_control(islands)
    late = await islands.node(lease_ttl_s=None)
    assert islands.client.hgetall(Control(POOL).config) == config
    await islands.knows(late, workers=1)
    assert await serves(late, LAST)
    lose_control(islands)
    with pytest.raises(ConfigError, match="was made with 3, not 2"):
        await islands.node(lanes=2)
    await islands.leave(node)
    await islands.leave(late)
    lose_control(islands)  # nobody is left who knew
    await islands.node(lease_ttl_s=None)
    assert islands.client.hgetall(Control(POOL).config) == config
    assert islands.all_seen(DataLost) == []


async def test_two_that_found_a_new_pool_at_once_have_lost_nothing(
    islands: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one looks for `config` before the first has made it, and asks the lanes after."""
    real, asks, go_on = pool_config._kept, anyio.Event(), anyio.Event()

    async def kept(context: Any, lanes: int) -> Any:
        if not asks.is_set():
            asks.set()
            await go_on.wait()
        return await real(context, lanes)

    monkeypatch.setattr(pool_config, "_kept", kept)
    async with anyio.create_task_group() as opening:
        opening.start_soon(islands.node)
        await asks.wait()
        await islands.node()
        go_on.set()
    for event in (ControlLost, DataLost, LaneDataLost):
        assert islands.all_seen(event) == []


async def test_the_control_keys_lost_with_one_lane_are_that_lanes_loss(
    islands: Fleet, cluster: Cluster, diary: Diary
) -> None:
    node = await islands.node(made(diary))
    wipe(cluster, 0)
    await islands.seen(LaneDataLost, lane=0)
    for lane in range(LANES):
        await islands.until(partial(serves_again, node, lane))
    await islands.until(lambda: numbers(node) == {(2, 1, 1)})
    assert islands.all_seen(DataLost) == []
    assert {each.lane for each in islands.all_seen(WorkerFenced)} <= {0}


@contextmanager
def replies_lost(
    monkeypatch: pytest.MonkeyPatch, lanes: tuple[int, ...], times: int
) -> Iterator[Counter[int]]:
    """Of those to the question what the pool was made as; yield how many each lane lost."""
    names, lost, real = (
        {Names(POOL, lane).lane: lane for lane in lanes},
        Counter[int](),
        Pipeline._once,
    )

    async def once(self: Pipeline, command: Any, *limits: Any) -> Any:
        reply = await real(self, command, *limits)
        if isinstance(command, tuple) and command[0] == "HMGET" and command[1] in names:
            lane = names[command[1]]
            if "term" in command and lost[lane] < times:
                lost[lane] += 1
                raise StoreUnavailable(problem="planted", maybe_done=True)
        return reply

    with monkeypatch.context() as patch:
        patch.setattr(Pipeline, "_once", once)
        yield lost


@pytest.mark.parametrize("times", [1, 1000])
async def test_a_lane_that_is_silent_to_who_asks_it_may_know(
    islands: Fleet, cluster: Cluster, diary: Diary, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """The control keys and a lane are lost, and the others' replies too: only that lane is told."""
    node = await islands.node(made(diary))
    config = islands.client.hgetall(Control(POOL).config)
    for lane in (1, 2):
        await node.dispatch("follow", key_in(lane, "service"))
    await diary.counts(2)
    hurry(node, OP_TIMEOUT_S)  # those lanes are asked again until their time is up
    with replies_lost(monkeypatch, (1, 2), times) as lost:
        wipe(cluster, 0)
        await islands.seen(LaneDataLost, lane=0)
    hurry(node, ISLANDS.op_timeout_s)
    assert set(lost) == {1, 2}
    for lane in range(LANES):
        await islands.until(partial(serves_again, node, lane))
    assert islands.client.hgetall(Control(POOL).config) == config
    assert islands.all_seen(DataLost) == []
    assert {each.lane for each in islands.all_seen(LaneDataLost)} == {0}
    assert [entry for entry in diary.entries if entry[0] == "ended"] == []


async def test_a_lane_that_has_our_pool_outweighs_two_that_have_another(
    islands: Fleet, diary: Diary
) -> None:
    """They are of an older copy, say; each of them is a lane whose data are lost."""
    node = await islands.node(made(diary))
    config = islands.client.hgetall(Control(POOL).config)
    for lane in (1, 2):
        islands.client.hset(Names(POOL, lane).lane, "incarnation", f"older.{LANES}.1")
    lose_control(islands)
    await islands.seen(ControlLost)
    assert islands.client.hgetall(Control(POOL).config) == config
    for lane in range(LANES):
        await islands.until(partial(serves_again, node, lane))
    assert islands.all_seen(DataLost) == []
    assert {each.lane for each in islands.all_seen(LaneDataLost)} == {1, 2}


async def test_who_opens_asks_a_lane_again_whose_reply_was_lost(
    islands: Fleet, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await islands.leave(await islands.node())
    config = islands.client.hgetall(Control(POOL).config)
    wipe(cluster, 0)
    with replies_lost(monkeypatch, (1, 2), 1) as lost:
        await islands.node()
    assert set(lost) == {1, 2}
    assert islands.client.hgetall(Control(POOL).config) == config


async def test_what_is_lost_with_all_lanes_is_founded_anew(islands: Fleet, diary: Diary) -> None:
    """No lane is left that knows: as when one server has it all."""
    node = await islands.node(made(diary))
    for prefix in (*_prefixes(POOL), Control(POOL).prefix):
        keys: Any = islands.client.keys(f"{prefix}*")
        islands.client.delete(*keys)
    await islands.until(partial(serves_again, node, LAST))
    for lane in range(LANES):
        await islands.until(partial(serves_again, node, lane))


async def test_lanes_have_clocks_of_their_own(
    islands: Fleet, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G-08: a join is not too late in a lane because of what another server's clock says."""
    node = await islands.node()
    asked: list[str] = []
    late = {1, 2}
    real_at, real_join = Pipeline.at, Membership._join

    def at(self: Pipeline, key: str) -> Pipeline:
        asked.append(key)
        return real_at(self, key)

    async def join(self: Membership, state: Any, workers: Any, **more: Any) -> None:
        if state.number in late:
            late.remove(state.number)
            state.clock_ms -= 3_600_000
        await real_join(self, state, workers, **more)

    monkeypatch.setattr(Pipeline, "at", at)
    monkeypatch.setattr(Membership, "_join", join)
    await node.add_worker(made(diary))
    [worker] = islands.workers(node)
    assert [worker.target(lane).number for lane in range(LANES)] == [1, 2, 2]
    assert {*_prefixes(POOL)[1:]} <= {key.removesuffix("lane") for key in asked}
    assert await serves(node, LAST)


async def test_followers_for_a_lane_that_hangs_wait_for_it(
    islands: Fleet, cluster: Cluster, diary: Diary
) -> None:
    """G-01, G-05: hundreds for one that hangs; the others' come at once, and these once each."""
    mine, count = made(diary), 300

    @mine.job("last")
    async def last(job: Job, number: int) -> None:
        diary.note("last", number)

    node, second = await islands.node(mine), await islands.node(mine)
    with hung(cluster, LAST, node, second):
        for number in range(count):
            then = [
                Follower(last, key_in(LAST, f"for-{number}"), number),
                Follower(last, key_in(1, f"for-{number}"), count + number),
            ]
            via = node.options(then=then)
            await via.dispatch("echo", key_in(0, f"of-{number}"), "text")
        await diary.until(lambda told: len(told) >= count)
        assert {number for _, number in diary.entries} == {*range(count, 2 * count)}
        assert islands.client.hget(Names(POOL, 0).lane, "outgoing") == str(count).encode()
    await diary.until(lambda told: len(told) >= 2 * count)
    assert sorted(number for _, number in diary.entries) == [*range(2 * count)]
    assert second.state == node.state == "open"


async def test_the_journal_of_the_others_is_followed_beside_a_lane_that_hangs(
    islands: Fleet, cluster: Cluster, diary: Diary
) -> None:
    """Who follows is told of the one once, and of what it has to say when it answers again."""
    mine = made(diary)

    @mine.job("fail", attempts_max=1)
    async def fail(job: Job) -> None:
        raise ValueError("no luck")

    node = await islands.node(mine)
    reading = Diary()

    async def read() -> None:
        async for entry in node.journal(follow=True):
            if entry.handler == "fail" or entry.edge == "unread":
                reading.note(entry.edge, entry.lane, entry.key)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await node.dispatch("fail", key_in(LAST, "before"))
        await reading.has("parked", LAST, key_in(LAST, "before"))
        with hung(cluster, LAST, node):
            for number in range(3):
                await node.dispatch("fail", key_in(1, f"fails-{number}"))
                await reading.has("parked", 1, key_in(1, f"fails-{number}"))
            await reading.has("unread", LAST, "")
        await islands.until(partial(serves_again, node, LAST))
        await node.dispatch("fail", key_in(LAST, "after"))
        await reading.has("parked", LAST, key_in(LAST, "after"))
        tasks.cancel_scope.cancel()
    assert [edge for edge, *_ in reading.entries].count("parked") == 5


async def test_a_lane_that_was_wiped_is_carried_to_from_where_it_stands(
    islands: Fleet, cluster: Cluster, diary: Diary
) -> None:
    """That it had more is told, and what comes for it then arrives."""
    mine = made(diary)

    @mine.job("last")
    async def last(job: Job, number: int) -> None:
        diary.note("last", number)

    node = await islands.node(mine)
    via = node.options(then=Follower(last, key_in(LAST, "for"), 1))
    await via.dispatch("echo", key_in(0, "of"), "text")
    await diary.has("last", 1)
    wipe(cluster, LAST)
    await islands.seen(LaneDataLost, lane=LAST)
    via = node.options(then=Follower(last, key_in(LAST, "for"), 2))
    await via.dispatch("echo", key_in(0, "of"), "text")
    await diary.has("last", 2)
    await islands.seen(ChannelApart, lane=0, to=LAST)
