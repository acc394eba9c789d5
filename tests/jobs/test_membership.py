"""Joining again: whatever fails half way, it is finished, and nobody is left behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pool import Handlers, Job, Node, PoolError, ReplicatedMap
from pool.core.lease import Tick
from pool.errors import AuthError, StoreUnavailable
from pool.events import DataLost, LeaseLost, LeaseResumed, StoreTroubled, WorkerFenced, WorkerReaped
from pool.jobs.fleet.keepalive import KeepAlive
from pool.jobs.fleet.membership import Announcer, IdentityGone, Membership
from pool.maps.deltas import Doubted
from pool.maps.replica import Replica
from pool.redis.commands.member import Left
from pool.runtime.pool_config import open_pool
from pool.testing.proxy import fault_proxy
from tests.nodes import PATIENCE_S
from tests.servers import with_user

if TYPE_CHECKING:
    from pool.jobs.context import LaneState
    from tests.nodes import Diary, Fleet

pytestmark = pytest.mark.anyio
handlers = Handlers()


@handlers.job("echo")
async def echo(job: Job, value: int) -> int:
    return value


@pytest.fixture
def announce_fails_once(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Lose the answer to the next announcement, after the lanes were joined."""
    real, failed = Announcer.write, ["armed later"]

    async def announce(self: Announcer, worker: Any) -> None:
        if not failed:
            failed.append("once")
            raise StoreUnavailable(problem="planted", maybe_done=True)
        await real(self, worker)

    monkeypatch.setattr(Announcer, "write", announce)
    return failed


async def serves(node: Node) -> bool:
    try:
        return bool(await (await node.dispatch(echo, "k", 5)).result(timeout_s=5) == 5)
    except (PoolError, TimeoutError):
        return False


async def test_a_failure_between_joining_and_announcing_is_made_good(
    fleet: Fleet, announce_fails_once: list[str]
) -> None:
    """G-05: else it would have a lease that nobody renews, and would start nothing for ever."""
    node = await fleet.node(handlers, lease_ttl_s=5.0)
    worker = fleet.workers(node)[0]
    announce_fails_once.clear()
    fleet.wiring(node).membership.tell(IdentityGone(0, worker.target(0).name))
    assert (await fleet.seen(WorkerFenced)).worker == f"{worker.id}.1"
    await fleet.seen(StoreTroubled, during="join")
    await fleet.until(lambda: serves(node))
    assert worker.target(0).number == 2
    await fleet.until(lambda: [w.numbers for w in fleet.entries(node)] == [(2,)])


@pytest.mark.parametrize("lanes", [1, 3])
async def test_a_failure_while_joining_anew_is_made_good(
    fleet: Fleet, announce_fails_once: list[str], lanes: int
) -> None:
    """After a loss of data the node joins once, however often a step of that is repeated."""
    node = await fleet.node(handlers, lease_ttl_s=5.0, lanes=lanes)
    announce_fails_once.clear()
    keys = list(fleet.client.scan_iter(match=f"pool:{{{fleet.pool}*", count=1000))
    fleet.client.delete(*keys)  # at once, as FLUSHALL does
    await fleet.seen(DataLost)
    await fleet.until(lambda: serves(node))
    await fleet.until(lambda: announce_fails_once == ["once"])
    await fleet.until(lambda: [w.numbers for w in fleet.entries(node)] == [(2,) * lanes])
    assert len(fleet.all_seen(DataLost)) == 1
    assert fleet.workers(node)[0].target(0).number == 2


@pytest.fixture
def maps_url(fleet: Fleet, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the address of who may use the control keys alone, and is the first to miss them."""

    async def refound(_: Membership) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr(Membership, "_open_again", refound)
    user, keys = f"bad-{fleet.pool}", [f"{fleet.control.prefix}*"]
    fleet.client.acl_setuser(
        user, enabled=True, passwords=["+right"], categories=["+@all"], keys=keys
    )
    yield with_user(redis_url, user, "right")
    fleet.client.acl_deluser(user)


async def test_who_opens_and_may_not_ask_the_lanes_founds_no_other_pool(
    fleet: Fleet, maps_url: str
) -> None:
    node = await fleet.node(handlers)
    config: Any = fleet.client.hgetall(fleet.control.config)
    fleet.client.delete(fleet.control.config)
    with pytest.raises(AuthError):
        async with ReplicatedMap.open(maps_url, "flags", pool=fleet.pool):
            pass
    assert fleet.client.hgetall(fleet.control.config) == {}
    fleet.client.hset(fleet.control.config, mapping=config)
    assert await serves(node)


async def test_who_may_not_ask_the_lanes_puts_back_what_it_knows(
    fleet: Fleet, maps_url: str
) -> None:
    node = await fleet.node(handlers)
    config = fleet.client.hgetall(fleet.control.config)
    mine: list[object] = []
    opened = ReplicatedMap.open(maps_url, "flags", pool=fleet.pool, observers=[mine.append])
    async with opened:
        fleet.client.delete(*fleet.client.keys(f"{fleet.control.prefix}*"))
        await fleet.until(lambda: fleet.client.hgetall(fleet.control.config))
        assert fleet.client.hgetall(fleet.control.config) == config
    assert [each for each in mine if isinstance(each, DataLost)] == []
    assert await serves(node)
    assert fleet.all_seen(DataLost) == []


async def test_who_has_joined_anew_hears_at_once_of_what_it_is_given(fleet: Fleet) -> None:
    """Its blocked read knows none of its streams, and what joining writes cannot wake it."""
    node = await fleet.node(handlers, lease_ttl_s=600.0)  # a read blocks for 150 s
    ref = await node.dispatch(echo, "before", 1)
    assert await ref.result(timeout_s=30) == 1  # it reads
    worker, membership = fleet.workers(node)[0], fleet.wiring(node).membership
    for name in (f"{node.id}.1", f"{worker.id}.1"):
        membership.tell(IdentityGone(0, name))
    await fleet.until(lambda: [w.numbers for w in fleet.entries(node)] == [(2,)])
    assert await (await node.dispatch(echo, "k", 5)).result(timeout_s=30) == 5
    # What it was is still registered, and nobody is left who could reap it.
    fleet.is_audited = False


@pytest.mark.parametrize("joins_too", [False, True])
async def test_who_was_stopped_with_the_lease_before_goes_on_with_the_next(
    fleet: Fleet, joins_too: bool
) -> None:
    """G-05: the node joins anew, alone or with the worker; that was never told to go on."""
    began: list[int] = []
    both = Handlers()

    @both.job("echo")
    async def echo_too(job: Job, value: int) -> int:
        return value

    @both.service("stay")
    async def stay(job: Job) -> None:
        began.append(job.epoch)
        await anyio.sleep_forever()

    node = await fleet.node(both, lease_ttl_s=600.0)  # no renewal comes by itself meanwhile
    await (await node.dispatch("stay", "s")).started(timeout_s=30)
    wiring = fleet.wiring(node)
    state = wiring.context.lanes[0]
    wiring._keepalive._step(state, Tick(state.lease.hard_s))
    if joins_too:  # as if it had not joined yet when it was told to stop
        wiring.membership._joined.discard((0, fleet.workers(node)[0].target(0).name))
    wiring.membership.tell(IdentityGone(0, state.node.name))
    await fleet.until(lambda: len(began) == 2)
    assert began[0] == began[1]
    assert await serves(node)
    assert (state.node.number, fleet.workers(node)[0].target(0).number) == (2, 1)
    fleet.is_audited = False  # likewise


async def test_who_joins_anew_renews_nobody_else(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G-03: the lease of the worker, which did not join, was counted from when its node asked."""
    node = await fleet.node(handlers, lease_ttl_s=60.0)
    monkeypatch.setattr(KeepAlive, "_take_lease", lambda *_: None)
    membership = fleet.wiring(node).membership
    state = fleet.wiring(node).context.lanes[0]
    lease = state.lease
    membership.tell(IdentityGone(0, state.node.name))
    await fleet.until(lambda: state.node.number == 2 and (0, state.node.name) in membership._joined)
    assert state.lease is lease
    fleet.is_audited = False  # likewise


@pytest.mark.one_server  # a proxy stands before it
async def test_a_join_that_was_answered_late_leaves_who_runs_on_the_end_of_its_lease(
    fleet: Fleet, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G-03: it was taken for the lease of a lane where nobody runs, and nobody watched its end."""
    service = Handlers()

    @service.service("stay")
    async def stay(job: Job) -> None:
        diary.note("begun", job.epoch)
        try:
            await anyio.sleep_forever()
        finally:
            diary.note("ended", job.epoch)

    async with fault_proxy(fleet.url) as proxy:
        node = await fleet.node(service, url=proxy.url, lease_ttl_s=1.0, op_timeout_s=2.0)
        await (await node.dispatch("stay", "s")).started(timeout_s=30)
        context = fleet.wiring(node).context

        async def late(_: Membership, state: LaneState) -> None:
            """Have the join take so long that its lease ends before the next renewal."""
            until_s = context.io.clock() + state.lease.timing.ttl_s * 0.6
            await fleet.until(lambda: context.io.clock() > until_s)
            await proxy.refuse()

        monkeypatch.setattr(Membership, "_thaw", late)
        fleet.client.zrem(fleet.names.keepalive, context.lanes[0].node.name)
        await fleet.seen(LeaseLost)
        [(_, epoch)] = diary.entries[:1]
        await diary.has("ended", epoch)
        monkeypatch.undo()
        await proxy.listen()
        await fleet.seen(LeaseResumed)
        await diary.has("begun", epoch, times=2)
        await fleet.leave(node)


async def test_a_worker_joins_though_the_servers_clock_has_jumped(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G-08: by the time that the server told last, it asks for too late, whenever it asks."""
    node = await fleet.node()
    real, jumps = Membership._join, ["before the first time that it asks"]

    async def join(self: Membership, state: Any, workers: Any, **more: Any) -> None:
        if jumps:
            jumps.clear()
            state.tell_clock(state.clock_ms - 3_600_000, state.server_at_s)
        await real(self, state, workers, **more)

    monkeypatch.setattr(Membership, "_join", join)
    await node.add_worker(handlers)
    [worker] = fleet.workers(node)
    assert await serves(node)
    assert worker.target(0).number == 2
    assert [info.numbers for info in fleet.entries(node)] == [(2,)]


async def test_a_renewal_that_overtakes_a_leave_does_not_bring_the_worker_back(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server forgot the worker, and says so to a renewal before we hear of our leave."""
    real = Membership._leave

    async def leave(self: Membership, state: Any, who: Any) -> Left:
        left: Left = await real(self, state, who)
        self.handle(IdentityGone(state.number, who.name))
        return left

    monkeypatch.setattr(Membership, "_leave", leave)
    node = await fleet.node(handlers)
    await node._remove_worker(fleet.workers(node)[0].id, None)
    await fleet.until(lambda: not node.workers)
    assert fleet.all_seen(WorkerFenced) == []


@pytest.mark.parametrize("leaves", [False, True])
async def test_nobody_is_blamed_for_a_worker_whose_leave_was_not_heard(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    """It will be reaped like one that died, though its process lives: the lane is told that."""
    real, deaths = Membership._leave, fleet.names.deaths

    async def leave(self: Membership, state: Any, who: Any) -> Left:
        if leaves:
            return await real(self, state, who)
        raise StoreUnavailable(problem="planted", maybe_done=False)

    node = await fleet.node(handlers, lease_ttl_s=1.0)
    worker = fleet.workers(node)[0]
    with monkeypatch.context() as patched:
        patched.setattr(Membership, "_leave", leave)
        await node._remove_worker(worker.id, None)
    if leaves:
        assert fleet.wiring(node).membership._former == {}
    else:
        await fleet.seen(WorkerReaped, identity=f"{worker.id}.1")
    assert not fleet.client.exists(deaths)


async def test_a_worker_is_read_for_before_it_joins(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What joining writes wakes the blocked read: one that does not know it hears late of it."""
    real, known = Membership._join, list[bool]()
    node = await fleet.node()
    wiring = fleet.wiring(node)

    async def join(self: Membership, state: Any, workers: Any, **more: Any) -> None:
        names, readings = state.lane.names, wiring._listener.tailers.each[state.number].readings
        for who in (worker.target(state.number).name for worker in workers.values()):
            known.append(names.stream(who) in readings and names.signal(who) in readings)
        await real(self, state, workers, **more)

    monkeypatch.setattr(Membership, "_join", join)
    await node.add_worker(handlers)
    assert known == [True]


@pytest.mark.parametrize("has_one", [False, True])  # else the map itself is gone
async def test_an_announcement_that_the_server_lost_is_written_again(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, has_one: bool
) -> None:
    """The write, and its loss, fall into the time of a snapshot: we waited for it for ever."""
    node = await fleet.node(handlers if has_one else None)
    before = {info.id for info in node.workers}
    lost = anyio.Event()
    real_write, real_fetch = Replica.write, Replica._fetch

    async def write(self: Replica, ops: Any, **more: Any) -> Any:
        if lost.is_set():
            return await real_write(self, ops, **more)
        self._step(Doubted("overflow"))
        keys = (self.stored.data, self.stored.log)
        older = [fleet.client.dump(key) for key in keys]
        written = await real_write(self, ops, **more)
        with fleet.client.pipeline(transaction=True) as pipe:
            pipe.delete(*keys)
            for key, value in zip(keys, older, strict=True):
                if value is not None:
                    pipe.restore(key, 0, value)
            pipe.execute()
        lost.set()
        return written

    async def fetch(self: Replica, ask: int) -> None:
        await lost.wait()
        await real_fetch(self, ask)

    monkeypatch.setattr(Replica, "write", write)
    monkeypatch.setattr(Replica, "_fetch", fetch)
    with anyio.fail_after(PATIENCE_S):
        worker = await node.add_worker(handlers)
    assert lost.is_set()
    assert {info.id for info in node.workers} == {worker.id, *before}
    assert await serves(node)


async def test_a_pool_that_cannot_be_found_anew_is_a_trouble(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = list[PoolError]()

    async def found_late(context: Any) -> Any:
        if not refused:
            refused.append(StoreUnavailable(problem="not yet", maybe_done=False))
            raise refused[0]
        return await open_pool(context)

    node = await fleet.node()
    monkeypatch.setattr("pool.jobs.fleet.membership.open_pool", found_late)
    await fleet.wiring(node).membership._open_again()
    assert "not yet" in (await fleet.seen(StoreTroubled, during="found")).problem


@pytest.mark.parametrize(
    ("trouble", "told"),
    [
        (StoreUnavailable(problem="a cut line", maybe_done=True), "a cut line"),
        (None, "no answer in time"),
    ],
    ids=["told", "silent"],
)
async def test_who_cannot_renew_does_not_open_and_is_told_why(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, trouble: PoolError | None, told: str
) -> None:
    async def confirm(self: KeepAlive, within_s: float) -> set[int]:
        self.trouble = trouble
        return {state.number for state in self.context.lanes}

    with monkeypatch.context() as patched:
        patched.setattr(KeepAlive, "confirm", confirm)
        with pytest.raises(StoreUnavailable, match=told):
            await fleet.node()


async def test_data_that_are_lost_again_and_again_are_recovered_ever_more_slowly(
    fleet: Fleet,
) -> None:
    """Each recovery succeeds, so that no count of failures tells the node to wait."""
    node = await fleet.node(handlers, lease_ttl_s=5.0)

    def scripts() -> int:
        calls: Any = fleet.client.info("commandstats")
        return int(calls["cmdstat_evalsha"]["calls"])

    until, before = anyio.current_time() + 8.0, scripts()
    while anyio.current_time() < until:
        keys = list(fleet.client.scan_iter(match=f"pool:{{{fleet.pool}*", count=1000))
        if keys:
            fleet.client.delete(*keys)
        await anyio.sleep(0.005)
    losses, sent = len(fleet.all_seen(DataLost)), scripts() - before
    assert losses < 15
    assert sent < 400
    await fleet.until(lambda: serves(node))  # none of the losses ended it
