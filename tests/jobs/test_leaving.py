"""Coming and going: what was begun is undone, whoever asked for it and however far it came.

And who is still somebody: a crashed worker, a fenced run, a shutdown of before.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import attrs
import pytest

from pool import Handlers, Job, Node
from pool.core.crash_marks import NO_MARKS
from pool.core.record import Start
from pool.errors import InvalidOption, NotRunning, StoreLost, StoreUnavailable
from pool.events import (
    ActorCrashed,
    DataLost,
    HandlerOverran,
    NodeLeft,
    ReconciliationMended,
    WorkerFenced,
    WorkerReaped,
)
from pool.jobs.fleet.keepalive import EXIT_CODE
from pool.jobs.fleet.membership import Announcer, Membership
from pool.jobs.run import Run
from pool.jobs.worker.messages import Granted
from pool.jobs.worker.worker import Worker
from pool.maps.deltas import Delete, Op, Position, Set
from pool.maps.replica import Replica
from pool.redis.io.system import SystemIO
from pool.testing.proxy import fault_proxy
from tests.nodes import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.nodes import Diary, Fleet

pytestmark = pytest.mark.anyio
LONG_S = 300.0  # far longer than anything here is waited for
SOON_S = 30.0  # what takes a moment, on a busy machine; far less than LONG_S


def handlers_of(diary: Diary) -> Handlers:
    handlers = Handlers()

    @handlers.job("quick")
    async def quick(job: Job) -> str:
        return job.node_id

    @handlers.job("long")
    async def long(job: Job) -> None:
        diary.note("long", job.node_id)
        await anyio.sleep_forever()

    return handlers


def leases(fleet: Fleet) -> set[str]:
    """Return who has a lease and has not left."""
    there: Any = fleet.client.zrange(fleet.names.keepalive, 0, -1)
    done: Any = fleet.client.hgetall(fleet.names.cleanup)
    return {name.decode() for name in there if done.get(name) != b"done"}


def mine(fleet: Fleet, *nodes: Node) -> set[str]:
    """Return who of these nodes has a lease by what they know themselves."""
    wirings = [fleet.wiring(node) for node in nodes]
    return {name for wiring in wirings for lane in wiring.membership.identities() for name in lane}


def takes(fleet: Fleet, worker: Worker) -> int:
    """Return how many keys the server says a worker takes."""
    entry: Any = fleet.client.hget(fleet.names.open, worker.id)
    return int(entry.split(b"|")[1])


def wipe(fleet: Fleet) -> None:
    fleet.client.delete(*fleet.client.keys(f"pool:{{{fleet.pool}*"))


# --- joining ------------------------------------------------------------------------------------


@pytest.fixture
def announced(monkeypatch: pytest.MonkeyPatch) -> list[Replica]:
    """Let the copies in this list hang once they wait for what they wrote."""
    hanging: list[Replica] = []
    wait_for = Replica.wait_for

    async def hang(self: Replica, at: Position) -> None:
        if self in hanging:
            hanging.remove(self)
            await anyio.sleep_forever()
        await wait_for(self, at)

    monkeypatch.setattr(Replica, "wait_for", hang)
    return hanging


async def test_a_worker_whose_joining_is_cancelled_is_not_there(
    fleet: Fleet, diary: Diary, announced: list[Replica]
) -> None:
    """It is in `workers` and `open` by then: whoever was granted to it would wait for a lease."""
    fleet.settings = attrs.evolve(SETTINGS, lease_ttl_s=LONG_S)
    client, other = await fleet.node(), await fleet.node(handlers_of(diary))
    announced.append(fleet.wiring(client).replica)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(client.add_worker, handlers_of(diary))
        await fleet.knows(other, 2)
        tasks.cancel_scope.cancel()
    await fleet.knows(other, 1)
    await fleet.until(lambda: leases(fleet) == mine(fleet, client, other))
    assert fleet.client.hlen(fleet.names.open) == 1
    assert await (await client.dispatch("quick", "k")).result(timeout_s=SOON_S) == other.id


@pytest.mark.parametrize("is_leaving", [False, True])
@pytest.mark.parametrize("kind", [Set, Delete])
async def test_an_entry_that_could_not_be_taken_out_is_taken_out_later(
    fleet: Fleet, diary: Diary, monkeypatch: pytest.MonkeyPatch, is_leaving: bool, kind: type[Op]
) -> None:
    """Its lanes were left in peace, so there is no lease by whose end anybody would find it.

    So it is where already that it drains could not be written.
    """
    fleet.settings = attrs.evolve(SETTINGS, lease_ttl_s=5.0)
    node, other = await fleet.node(handlers_of(diary)), await fleet.node()
    await fleet.knows(other, 1)
    mine, write, refused = fleet.wiring(node).replica, Replica.write, list[Op]()

    async def write_late(self: Replica, ops: Sequence[Op], **more: Any) -> Any:
        if self is mine and isinstance(ops[0], kind) and not refused:
            refused.extend(ops)
            raise StoreUnavailable(problem="no answer", maybe_done=False)
        return await write(self, ops, **more)

    monkeypatch.setattr(Replica, "write", write_late)
    if is_leaving:
        await fleet.leave(node)
    else:
        await node._remove_worker(fleet.workers(node)[0].id, None)
    assert refused
    await fleet.knows(other, 0)
    assert not fleet.all_seen(WorkerReaped)


async def test_what_was_granted_and_not_heard_of_is_given_back_before_a_worker_leaves(
    fleet: Fleet, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream and the answers that close it come over two lines: a start may be behind them.

    It would wait for the lease of who has left, and for ever where nobody is left to reap that.
    """
    fleet.settings = attrs.evolve(SETTINGS, lease_ttl_s=LONG_S)
    node, client = await fleet.node(handlers_of(diary)), await fleet.node()
    await fleet.knows(client, 1)
    handle = Worker.handle

    def deaf(self: Worker, message: Any) -> None:
        if not isinstance(message, Granted):
            handle(self, message)

    monkeypatch.setattr(Worker, "handle", deaf)
    ref = await client.dispatch("quick", "k")
    await fleet.until(lambda: fleet.client.zcard(fleet.names.pending) == 1)
    await fleet.leave(node)
    [left] = fleet.all_seen(NodeLeft)
    assert left.abandoned == 0
    assert (await ref.status()).state == "unassigned"
    monkeypatch.setattr(Worker, "handle", handle)
    other = await fleet.node(handlers_of(diary))
    assert await ref.result(timeout_s=SOON_S) == other.id


async def test_what_ended_a_join_is_told_though_the_house_ends_meanwhile(
    fleet: Fleet, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing can be given up any more: that must not hide the error, nor a cancellation."""
    node = await fleet.node()

    async def join(self: Membership, worker: Worker) -> None:
        fleet.wiring(node)._supervisor.fail(KeyError("the cause"))
        raise StoreUnavailable(problem="as asked", maybe_done=True)

    monkeypatch.setattr(Membership, "join_worker", join)
    with pytest.raises(StoreUnavailable, match="as asked"):
        await node.add_worker(handlers_of(diary))
    assert isinstance(await fleet.ended(node), KeyError)


async def test_a_worker_that_joins_while_its_node_leaves_is_not_there(
    fleet: Fleet, diary: Diary, announced: list[Replica]
) -> None:
    keeper, node = await fleet.node(), await fleet.node()
    announced.append(fleet.wiring(node).replica)
    errors: list[BaseException] = []

    async def add() -> None:
        with pytest.raises(NotRunning) as raised:
            await node.add_worker(handlers_of(diary))
        errors.append(raised.value)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(add)
        await fleet.knows(keeper, 1)
        await fleet.leave(node)
    assert len(errors) == 1
    assert leases(fleet) == mine(fleet, keeper)
    assert fleet.client.hlen(fleet.names.open) == 0
    await fleet.knows(keeper, 0)


async def test_a_node_that_fails_to_open_leaves_nothing_behind(
    fleet: Fleet, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = await fleet.node()
    announce = Announcer.write

    async def fail(self: Announcer, worker: Worker) -> None:
        await announce(self, worker)
        monkeypatch.undo()
        raise StoreUnavailable(problem="as asked", maybe_done=True)

    monkeypatch.setattr(Announcer, "write", fail)
    with pytest.raises(StoreUnavailable, match="as asked"):
        async with Node(fleet.pool, fleet.url, handlers=handlers_of(diary), settings=SETTINGS):
            raise AssertionError
    assert leases(fleet) == mine(fleet, keeper)
    await fleet.knows(keeper, 0)


async def test_a_join_that_does_not_end_keeps_no_other_from_being_called_off(
    fleet: Fleet, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await fleet.node()
    release = fleet.gate()

    async def join(self: Membership, worker: Worker) -> None:
        is_first = not diary.entries
        diary.note("joins")
        try:
            await anyio.sleep_forever()
        finally:
            if is_first:
                with anyio.CancelScope(shield=True):
                    await release.wait()

    monkeypatch.setattr(Membership, "join_worker", join)

    async def add() -> None:
        with pytest.raises(NotRunning):
            await node.add_worker(handlers_of(diary))
        diary.note("called off")
        release.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(add)
        await diary.has("joins")
        tasks.start_soon(add)
        await diary.has("joins", times=2)
        with anyio.fail_after(SOON_S):
            await fleet.leave(node)
            await diary.has("called off", times=2)


# --- leaving ------------------------------------------------------------------------------------


async def test_who_is_fenced_while_it_drains_has_nothing_to_wait_for(
    fleet: Fleet, diary: Diary
) -> None:
    keeper = await fleet.node()
    node = await fleet.node(handlers_of(diary), grace_s=LONG_S)
    await keeper.dispatch("long", "k")
    await diary.has("long", node.id)
    [worker] = fleet.workers(node)
    async with anyio.create_task_group() as tasks:
        with anyio.fail_after(SOON_S):
            tasks.start_soon(fleet.leave, node)
            await fleet.until(lambda: worker.is_draining)
            fleet.client.hset(fleet.names.cleanup, worker.target(0).name, "x|1|0|0")
            await fleet.seen(WorkerFenced)
            await fleet.until(lambda: node.state == "closed")
    await fleet.seen(WorkerReaped)  # by the keeper, when nobody goes on with that claim


async def test_who_loses_the_data_while_it_drains_says_so_and_leaves(
    fleet: Fleet, diary: Diary
) -> None:
    await fleet.node()
    node = await fleet.node(handlers_of(diary), grace_s=LONG_S)
    ref = await node.dispatch("long", "k")
    await diary.has("long", node.id)
    [worker] = fleet.workers(node)

    async def wait() -> None:
        with pytest.raises(StoreLost):
            await ref.result(timeout_s=SOON_S)
        diary.note("told")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        with anyio.fail_after(SOON_S):
            tasks.start_soon(fleet.leave, node)
            await fleet.until(lambda: worker.is_draining)
            wipe(fleet)
            await diary.has("told")
            await fleet.until(lambda: node.state == "closed")
    await fleet.seen(DataLost)


async def test_a_lane_that_was_silent_once_is_left_when_it_has_been_heard(
    fleet: Fleet, diary: Diary
) -> None:
    async with fault_proxy(fleet.url) as proxy:
        node = await fleet.node(handlers_of(diary), url=proxy.url)
        keepalive = fleet.wiring(node)._keepalive
        proxy.go_silent()
        await node._remove_worker(fleet.workers(node)[0].id, None)
        await proxy.heal()
        assert await keepalive.confirm(SOON_S) == set()
        await fleet.leave(node)
    assert f"{node.id}.1" not in leases(fleet)


async def test_a_worker_that_crashes_while_it_drains_still_ends_its_grace(
    fleet: Fleet, diary: Diary
) -> None:
    node = await fleet.node(handlers_of(diary))
    ref = await node.dispatch("long", "k")
    await diary.has("long", node.id)
    [worker] = fleet.workers(node)
    with anyio.fail_after(SOON_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(node._remove_worker, worker.id, 1.0))
            await fleet.until(lambda: worker._grace_ends_s < float("inf"))
            worker.spawn(crashing)
    assert (await ref.status()).owner == ""
    await ref.stop(timeout_s=SOON_S)


async def crashing() -> None:
    raise RuntimeError("as asked")


async def test_a_job_that_drains_its_own_node_is_given_back_like_any_other(
    fleet: Fleet, diary: Diary
) -> None:
    handlers = Handlers()

    @handlers.job("retire")
    async def retire(job: Job) -> str:
        diary.note("begins", job.node_id)
        if job.node_id == first.id:
            try:
                await first.drain(grace_s=0.1)
            finally:
                diary.note("ended", job.node_id)
        return job.node_id

    first = await fleet.node(handlers)
    ref = await first.dispatch(retire, "k")
    await diary.has("begins", first.id)
    second = await fleet.node(handlers)
    with anyio.fail_after(SOON_S):
        assert await ref.result(timeout_s=LONG_S) == second.id
    assert diary.entries == [("begins", first.id), ("ended", first.id), ("begins", second.id)]
    await first.wait_drained()
    assert first.state == "drained"
    assert not fleet.all_seen(WorkerReaped)


@pytest.mark.parametrize("is_leaving", [False, True])
@pytest.mark.parametrize("is_answered", [True, False])
async def test_a_handler_that_outlives_the_lease_of_its_removed_worker_is_an_overrun(
    fleet: Fleet,
    diary: Diary,
    monkeypatch: pytest.MonkeyPatch,
    is_leaving: bool,
    is_answered: bool,
) -> None:
    """G-03: its key is another's then; `exit` ends the process, also one that leaves.

    However long its leaving waits for an answer: the node goes on to be renewed, the worker not.
    """
    leave = Membership._leave

    async def wait(self: Membership, *what: Any) -> Any:
        if not is_answered and self is fleet.wiring(first).membership:
            await anyio.sleep_forever()
        return await leave(self, *what)

    monkeypatch.setattr(Membership, "_leave", wait)
    monkeypatch.setattr("pool.jobs.wiring.CLOSE_BUDGET_S", 0.2)
    handlers, release = Handlers(), fleet.gate()

    @handlers.job("deaf")
    async def deaf(job: Job) -> str:
        diary.note("begins", job.node_id)
        if len(diary.entries) == 1:
            with anyio.CancelScope(shield=True):
                await release.wait()
        return job.node_id

    def end_process(self: SystemIO, code: int) -> None:
        diary.note("ends", code)

    monkeypatch.setattr(SystemIO, "end_process", end_process)
    fleet.settings = attrs.evolve(SETTINGS, lease_ttl_s=1.0, grace_s=0.0, on_overrun="exit")
    nodes = [await fleet.node(handlers), await fleet.node(handlers)]
    await nodes[0].dispatch(deaf, "k")
    await diary.counts(1)
    first, second = sorted(nodes, key=lambda node: node.id != diary.entries[0][1])
    # Longer than its lease goes on; while it opened it had all the time that it needed.
    context = fleet.wiring(first).context
    context.settings = attrs.evolve(context.settings, op_timeout_s=0.9)
    async with anyio.create_task_group() as tasks:
        if is_leaving:
            tasks.start_soon(fleet.leave, first)
        else:
            tasks.start_soon(first._remove_worker, fleet.workers(first)[0].id, None)
        await diary.has("begins", second.id)
        release.set()
    assert diary.entries == [("begins", first.id), ("ends", EXIT_CODE), ("begins", second.id)]
    await fleet.seen(HandlerOverran, key="k")


async def test_an_overrun_ends_the_process_once(
    fleet: Fleet, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many find it; each that is found later does it again."""
    monkeypatch.setattr(SystemIO, "end_process", lambda *_: diary.note("ends"))
    node = await fleet.node(handlers_of(diary), on_overrun="exit")
    refs = [await node.dispatch("long", key) for key in "ab"]
    await diary.has("long", node.id, times=2)
    wiring, [worker] = fleet.wiring(node), fleet.workers(node)
    first, later = worker.runs.values()
    for runs, ends in (([first], 1), ([first], 1), ([first, later], 2), ([later, first], 2)):
        wiring._overran(runs)
        assert diary.entries.count("ends") == ends
    assert len(fleet.all_seen(HandlerOverran)) == 2
    for ref in refs:
        await ref.stop(timeout_s=SOON_S)


async def test_a_node_that_could_not_drain_does_not_say_that_it_has(
    fleet: Fleet, diary: Diary
) -> None:
    node = await fleet.node(handlers_of(diary))
    bad: Any
    for bad in ("5", -1.0, float("nan"), True, float("inf")):
        with pytest.raises(InvalidOption):
            await node.drain(grace_s=bad)
        with pytest.raises(InvalidOption):
            await node._remove_worker(fleet.workers(node)[0].id, bad)
    assert node.state == "open"
    assert await (await node.dispatch("quick", "k")).result(timeout_s=SOON_S) == node.id


async def test_a_shorter_grace_counts_for_a_worker_that_drains_already(
    fleet: Fleet, diary: Diary
) -> None:
    node = await fleet.node(handlers_of(diary))
    ref = await node.dispatch("long", "k")
    await diary.has("long", node.id)
    [worker] = fleet.workers(node)
    with anyio.fail_after(SOON_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(node.drain, grace_s=LONG_S))
            await fleet.until(lambda: worker._grace_ends_s < float("inf"))
            await node._remove_worker(worker.id, 0.0)
    assert (node.state, (await ref.status()).owner) == ("drained", "")
    await ref.stop(timeout_s=SOON_S)


# --- shutting down ------------------------------------------------------------------------------


async def test_a_shutdown_while_a_node_opens_is_for_it_as_well(
    fleet: Fleet, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = await fleet.node()
    join, opening, go_on = Membership.join_worker, anyio.Event(), anyio.Event()

    async def slow(self: Membership, worker: Worker) -> None:
        opening.set()
        await go_on.wait()
        await join(self, worker)

    monkeypatch.setattr(Membership, "join_worker", slow)
    async with anyio.create_task_group() as tasks:
        nodes: list[Node] = []

        async def open_node() -> None:
            nodes.append(await fleet.node(handlers_of(diary)))

        tasks.start_soon(open_node)
        await opening.wait()
        await keeper.shutdown_pool()
        go_on.set()
    await fleet.until(lambda: nodes[0].state == "drained")


async def test_a_shutdown_of_before_is_not_obeyed_when_old_data_come_back(
    fleet: Fleet, diary: Diary
) -> None:
    first = await fleet.node()
    await first.shutdown_pool()
    await fleet.leave(first)
    node = await fleet.node(handlers_of(diary))
    keys: Any = fleet.client.keys(f"pool:{{{fleet.pool}*")
    kept: list[Any] = [(key, fleet.client.dump(key)) for key in keys]
    wipe(fleet)
    await fleet.seen(DataLost)
    await fleet.until(lambda: fleet.client.hlen(fleet.names.open) == 1)
    late = await fleet.node()  # has never heard of it
    wipe(fleet)
    for key, text in kept:
        fleet.client.restore(key, 0, text, replace=True)
    await fleet.seen(DataLost, times=3)
    await fleet.until(lambda: len(node.workers) == 1 and len(leases(fleet)) >= 3)
    assert (node.state, late.state) == ("open", "open")
    await late.shutdown_pool()
    await fleet.until(lambda: node.state == "drained")


# --- who is still somebody ----------------------------------------------------------------------


async def test_a_worker_is_down_from_its_crash_on_however_long_its_handlers_take(
    fleet: Fleet, diary: Diary
) -> None:
    """In a thread nothing can end them; meanwhile others have the keys."""
    release, handlers = threading.Event(), handlers_of(diary)

    @handlers.job("plain")
    def plain(job: Job) -> None:
        release.wait(LONG_S)

    node = await fleet.node(handlers)
    [worker] = fleet.workers(node)
    try:
        await (await node.dispatch("plain", "p")).started(timeout_s=SOON_S)
        worker.spawn(crashing)
        await fleet.seen(ActorCrashed, actor=worker.name)
        assert (node.state, fleet.wiring(node).down) == ("troubled", (worker.name,))
        await fleet.until(lambda: takes(fleet, worker) == 0)
        other = await fleet.node(handlers)
        for n in range(20):
            ref = await other.dispatch("quick", f"k{n}")
            assert await ref.result(timeout_s=SOON_S) == other.id
    finally:
        release.set()
    await fleet.until(lambda: node.state == "open")
    assert len(fleet.all_seen(ActorCrashed)) == 1
    await fleet.until(lambda: takes(fleet, worker) > 0)


async def test_what_is_nobodys_any_more_is_not_reconciled_nor_begun_again(
    fleet: Fleet, diary: Diary
) -> None:
    """Its worker was fenced, and then it crashed, while its handler had not ended yet."""
    handlers, release = Handlers(), fleet.gate()

    @handlers.job("deaf")
    async def deaf(job: Job) -> int:
        diary.note("begins", job.epoch)
        if len(diary.entries) == 1:
            with anyio.CancelScope(shield=True):
                await release.wait()
            await anyio.sleep_forever()  # it ends as the crash has it end
        return job.epoch

    node = await fleet.node(handlers, lease_ttl_s=1.0)
    ref = await node.dispatch(deaf, "k")
    await ref.started(timeout_s=SOON_S)
    [worker] = fleet.workers(node)
    run = worker.runs["k"]
    fleet.client.hset(fleet.names.cleanup, worker.target(0).name, "x|1|0|0")
    await fleet.seen(WorkerFenced)
    await fleet.seen(HandlerOverran, key="k")
    await fleet.until(lambda: (fleet.record("k") or run.start).epoch > run.start.epoch)
    await anyio.sleep(2.0)  # ten renewal periods: whether it says anything again and again
    assert len(fleet.all_seen(ReconciliationMended)) <= 1
    worker.spawn(crashing)
    await fleet.seen(ActorCrashed, actor=worker.name)
    worker.put(Granted(0, []))  # it fills its slots before it has looked what is its own
    release.set()
    assert await ref.result(timeout_s=LONG_S) > run.start.epoch
    assert diary.entries.count(("begins", run.start.epoch)) == 1


async def test_a_trial_ends_though_its_worker_has_left(fleet: Fleet, diary: Diary) -> None:
    node = await fleet.node(handlers_of(diary))
    [worker] = fleet.workers(node)
    await node._remove_worker(worker.id, None)
    context = fleet.wiring(node).context
    start = Start(
        key="k",
        id="i",
        handler="long",
        kind="job",
        epoch=1,
        attempt=1,
        flags="a",
        marks=NO_MARKS,
        accepted=0,
        payload=b"",
    )
    run = Run(start, 0, 0.0)
    for_s = context.trials.take(run, (0.0, 1), (0, "w"), lambda: None, context.io.clock())
    worker._on_trial(run, for_s)
    await fleet.until(lambda: not context.trials.has(run))


async def test_a_node_is_left_once(fleet: Fleet) -> None:
    new = Node("p", "redis://127.0.0.1:1", observers=())
    for node, state in ((new, "new"), (await fleet.node(), "closed")):
        if state == "closed":
            await fleet.leave(node)
        with pytest.raises(NotRunning) as raised:
            await node.__aexit__(None, None, None)
        assert raised.value.state == state
