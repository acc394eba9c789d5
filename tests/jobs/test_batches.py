"""Batches: members that are counted once, whoever dies; what follows them; what is told of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import anyio
import attrs
import pytest

from pool import Call, Cancel, Follower, Handlers, Job, JobRef, Node, Park
from pool.batches import BatchRef, BatchStatus, Member
from pool.errors import (
    BatchDiffers,
    BatchFailed,
    BatchSealed,
    BatchTooLarge,
    DeadlockRisk,
    InvalidKey,
    InvalidOption,
    JobExists,
    JobParked,
    MiddlewareFailed,
    NoSuchBatch,
    NoSuchJob,
    NotRunning,
    StoreUnavailable,
    UnknownHandler,
)
from pool.jobs.client.batches import NOTED, Batch, ask
from pool.jobs.client.dispatcher import Dispatcher, Pending
from pool.jobs.client.waiters import Waiters
from pool.middleware import Outgoing
from pool.names import Names, lane_of
from pool.redis.commands.batches import BATCH_OPEN
from pool.redis.commands.lane import Lane
from pool.testing.proxy import fault_proxy
from tests.nodes import LANES, PATIENCE_S

if TYPE_CHECKING:
    from pool.jobs.client.job_client import JobClient
    from pool.jobs.context import LaneState
    from pool.redis.commands.admission import Admission
    from pool.redis.scripts import ScriptCall
    from tests.nodes import Diary, Fleet

pytestmark = pytest.mark.anyio
Send = Callable[[Outgoing], Awaitable[JobRef[Any]]]


@attrs.define
class Gate:
    """Where handlers stand until they are let go on."""

    event: anyio.Event = attrs.field(factory=anyio.Event)


class Beside:
    """Something as it is, but for some attributes."""

    def __init__(self, of: Any, **instead: Any) -> None:
        self._of = of
        self.__dict__.update(instead)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)


@attrs.define
class Ahead:
    """A clock that may go ahead, for one of those that go by it."""

    seconds: float = 0.0

    def of(self, context: Any) -> Any:
        return Beside(
            context, io=Beside(context.io, clock=lambda: self.seconds + context.io.clock())
        )

    def goes_while_mustering(self, monkeypatch: pytest.MonkeyPatch) -> None:
        muster = Lane.muster

        def long(*args: Any, **options: Any) -> Any:
            self.seconds += 3600.0
            return muster(*args, **options)

        monkeypatch.setattr(Lane, "muster", long)


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def handlers(diary: Diary, gate: Gate) -> Handlers:
    made = Handlers()

    @made.job("report", attempts_max=1)
    async def report(job: Job, number: int) -> int:
        if number % 7 == 3:
            raise Park("no data")
        if number % 7 == 5:
            raise Cancel("not today")
        return 2 * number

    @made.job("note")
    async def note(job: Job, *words: Any) -> None:
        diary.note("note", job.key, *words)

    @made.job("stand")
    async def stand(job: Job) -> None:
        diary.note("stands", job.key)
        await gate.event.wait()

    @made.job("fan-out", attempts_max=5, backoff_s=0.001)
    async def fan_out(job: Job, parts: int, fails: int) -> None:
        """Add half of the parts, and fail the first times."""
        async with job.node.batch(f"of-{job.id}", then=Follower("note", "all", job.key)) as batch:
            await batch.add("report", [Call(f"{job.key}-{n}", 0) for n in range(parts // 2)])
            if job.attempt <= fails:
                raise ValueError("half-way")
            await batch.add("report", [Call(f"{job.key}-{n}", 0) for n in range(parts // 2, parts)])

    return made


def counts(status: BatchStatus) -> tuple[int, ...]:
    return (
        *(status.expected, status.waiting, status.running),
        *(status.succeeded, status.failed, status.cancelled, status.missing),
    )


# --- what becomes of it -------------------------------------------------------------------------


async def test_it_settles_when_all_have_ended_and_what_follows_runs(
    fleet: Fleet, handlers: Handlers, diary: Diary, lanes: int
) -> None:
    """G-01, G-04: across lanes, more members than one call takes."""
    node = await fleet.node(handlers, lanes=lanes)
    then = Follower("note", "then").options(takes_result=True)
    async with node.batch("b", then=then, otherwise=Follower("note", "otherwise")) as batch:
        assert await batch.add("report", [Call(f"k{n}", 0) for n in range(NOTED + 52)]) == []
        assert batch.added == NOTED + 52
    status = await batch.ref.result(PATIENCE_S)
    assert (counts(status), status.state) == ((NOTED + 52, 0, 0, NOTED + 52, 0, 0, 0), "done")
    await diary.until(len)
    [(_, key, told)] = diary.entries
    assert (key, told["expected"], told["succeeded"]) == ("then", NOTED + 52, NOTED + 52)
    assert status.released[0][0] == "then"
    assert 0 < status.created_ms <= status.sealed_ms <= status.settled_ms


async def test_each_member_is_told_with_its_result_as_it_ends(
    fleet: Fleet, handlers: Handlers, lanes: int
) -> None:
    """From another node, which looks before anything has ended; and again afterwards."""
    node, client = await fleet.node(handlers, lanes=lanes), await fleet.node(lanes=lanes)
    found: dict[int, Member[Any]] = {}
    told: list[BatchStatus] = []

    async def read() -> None:
        async for member in client.batches.get("b").members(handlers["report"]):
            assert member.index not in found
            found[member.index] = member

    async with anyio.create_task_group() as tasks, node.batch("b", success_min=60) as batch:
        tasks.start_soon(read)
        assert await batch.add("report", (Call(f"k{n}", n) for n in range(70))) == []
    status = await client.batches.get("b").wait(PATIENCE_S, on_progress=told.append)
    assert (counts(status), status.state) == ((70, 0, 0, 50, 10, 10, 0), "failed")
    assert told[-1] == status == (await client.batches.list())[0]
    assert sorted(found) == list(range(70))
    for index, member in found.items():
        assert (member.key, member.is_batch) == (f"k{index}", False)
        if member.end == "succeeded":
            assert member.result() == 2 * index
    with pytest.raises(JobParked):
        found[3].result()
    again = [member.index async for member in client.batches.get("b").members(passed=60)]
    assert again == list(found)[60:], "in the order in which they ended"
    with pytest.raises(BatchFailed) as failed:
        await client.batches.get("b").result()
    assert (failed.value.succeeded, failed.value.failed) == (50, 10)


async def test_those_that_run_are_counted_and_all_are_cancelled(
    fleet: Fleet, handlers: Handlers, diary: Diary, lanes: int
) -> None:
    node = await fleet.node(handlers, lanes=lanes, capacity=8)
    async with node.batch("b", otherwise=Follower("note", "otherwise")) as batch:
        await batch.add("stand", [f"k{n}" for n in range(40)])
        await diary.counts(8)
        await fleet.until(lambda: _runs(batch, 8))
        status = await batch.ref.status()
        assert (counts(status), status.state) == ((40, 32, 8, 0, 0, 0, 0), "open")
        with pytest.raises(TimeoutError, match="it is open, and 0 of 40 have ended"):
            await batch.ref.wait(0)
        with pytest.raises(TimeoutError, match="has not settled within"):
            await batch.ref.wait(0.01)
        await batch.ref.cancel("enough")
        with pytest.raises(BatchSealed):
            await batch.add("stand", ["more"])
    status = await batch.ref.wait(PATIENCE_S)
    assert (counts(status), status.state) == ((40, 0, 0, 0, 0, 40, 0), "cancelled")
    assert status.cause == "enough"
    await diary.has("note", "otherwise")
    await batch.ref.cancel("again")
    assert (await batch.ref.status()).cause == "enough"


async def _runs(batch: Batch, number: int) -> bool:
    return (await batch.ref.status()).running == number


async def wait_in_both_ways(ref: BatchRef, diary: Diary) -> None:
    """Wait for a batch, and for its members; note what comes of that."""

    async def waits(what: str, wait: Callable[[], Awaitable[object]]) -> None:
        try:
            diary.note(what, await wait())
        except NotRunning as error:
            diary.note(what, error.code)

    async def state() -> str:
        return (await ref.wait(PATIENCE_S)).state

    async def keys() -> tuple[str, ...]:
        return tuple([member.key async for member in ref.members()])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(waits, "state", state)
        tasks.start_soon(waits, "keys", keys)


async def waiting(fleet: Fleet, node: Node) -> None:
    """Wait until both wait on this node."""
    bells = fleet.wiring(node).waiters._bells
    await fleet.until(lambda: len(bells.get("b", ())) == 2)


async def test_an_outage_is_waited_out(
    fleet: Fleet,
    handlers: Handlers,
    diary: Diary,
    gate: Gate,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As by who waits for a job: it may last for hours, and the store be away for a moment."""
    monkeypatch.setattr("pool.jobs.client.batches.ASK_AGAIN_S", 0.05)
    node = await fleet.node(handlers)
    async with node.batch("b") as batch:
        await batch.add("stand", ["k"])
    await diary.has("stands", "k")
    async with fault_proxy(fleet.url) as proxy, anyio.create_task_group() as tasks:
        client = await fleet.node(url=proxy.url, op_timeout_s=1.5)
        ref = client.batches.get("b")
        tasks.start_soon(wait_in_both_ways, ref, diary)
        await waiting(fleet, client)
        await proxy.refuse()
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                await ref.status()
        with pytest.raises(TimeoutError, match="its store has not answered"):
            await ref.wait(0)
        gate.event.set()
        await batch.ref.result(PATIENCE_S)
        await proxy.listen()
        await diary.has("state", "done")
        await diary.has("keys", ("k",))
        await fleet.leave(client)


async def test_who_waits_is_told_at_once_that_its_node_has_left(
    fleet: Fleet,
    handlers: Handlers,
    diary: Diary,
    gate: Gate,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pool.jobs.client.batches.ASK_AGAIN_S", 3600.0)
    node, client = await fleet.node(handlers), await fleet.node()
    async with node.batch("b") as batch:
        await batch.add("stand", ["k"])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait_in_both_ways, client.batches.get("b"), diary)
        await waiting(fleet, client)
        await fleet.leave(client)
        await diary.has("state", NotRunning.code)
        await diary.has("keys", NotRunning.code)
    gate.event.set()


async def test_only_those_that_are_listed_are_looked_at(
    fleet: Fleet, handlers: Handlers, lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = list[str]()

    async def counted(client: JobClient, state: LaneState, call: ScriptCall) -> Any:
        looked.append(call.script.name)
        return await ask(client, state, call)

    node = await fleet.node(handlers, lanes=lanes)
    for n in range(8):
        async with node.batch(f"b{n}"):
            pass
        await anyio.sleep(0.002)  # they are listed by the millisecond
    monkeypatch.setattr("pool.jobs.client.batches.ask", counted)
    assert [each.id for each in await node.batches.list(newest=3)] == ["b7", "b6", "b5"]
    assert looked == ["batch_look"] * 3


# --- who makes it may go ------------------------------------------------------------------------


async def test_one_that_its_maker_has_left_settles_with_true_counts(
    fleet: Fleet, handlers: Handlers, lanes: int
) -> None:
    """Two were noted, and never dispatched: they are missing, and never run."""
    node = await fleet.node(handlers, lanes=lanes)
    batch = node.batch("b", open_s=3.0)
    await batch.__aenter__()
    await batch.add("report", [Call(f"k{n}", 0) for n in range(5)])
    await batch._note(["never1", "never2"])
    batch._added += 2
    status = await batch.ref.wait(PATIENCE_S)
    assert (counts(status), status.state) == ((7, 0, 0, 5, 0, 0, 2), "failed")
    missing = [each async for each in batch.ref.members() if each.end == "missing"]
    assert sorted(each.key for each in missing) == ["never1", "never2"]
    with pytest.raises(NoSuchJob):
        missing[0].result()
    with pytest.raises(BatchSealed):
        await batch.add("report", [Call("late", 0)])


async def test_a_handler_that_makes_one_may_fail_half_way(
    fleet: Fleet, handlers: Handlers, diary: Diary, lanes: int
) -> None:
    """Each attempt adds the same members: none of them runs twice."""
    node = await fleet.node(handlers, lanes=lanes)
    ref = await node.dispatch("fan-out", "f", 10, 2)
    await ref.result(PATIENCE_S)
    batch = node.batches.get(f"of-{ref.job_id}")
    assert counts(await batch.result(PATIENCE_S)) == (10, 0, 0, 10, 0, 0, 0)
    await diary.has("note", "all", "f")
    assert diary.entries.count(("note", "all", "f")) == 1


async def test_who_enters_again_goes_on(fleet: Fleet, handlers: Handlers, lanes: int) -> None:
    node, other = await fleet.node(handlers, lanes=lanes), await fleet.node(lanes=lanes)
    calls = [Call(f"k{n}", 0) for n in range(20)]
    await (await node.batch("b").__aenter__()).add("report", calls[:10])
    with pytest.raises(BatchDiffers) as differs:
        await (await other.batch("b").__aenter__()).add("report", [calls[0], calls[2]])
    assert differs.value.index == 1
    async with other.batch("b") as batch:
        await batch.add("report", calls)
    async with node.batch("b") as batch:
        await batch.add("report", calls)
        with pytest.raises(BatchSealed):
            await batch.add("report", [Call("more", 0)])
    assert counts(await batch.ref.result(PATIENCE_S)) == (20, 0, 0, 20, 0, 0, 0)
    with pytest.raises(BatchSealed):
        await batch.seal()


async def test_who_adds_another_call_in_the_place_of_one_is_told(
    fleet: Fleet, handlers: Handlers, gate: Gate, diary: Diary, lanes: int
) -> None:
    """Another handler, or other arguments; also of one that has ended, or was refused."""
    node = await fleet.node(handlers, lanes=lanes)
    batch = await node.batch("b").__aenter__()
    await batch.add("stand", ["k0"])
    await batch.add("report", [Call("k1", 1)])
    assert await batch.add("nobody", ["k2"]), "it was refused"
    await fleet.until(lambda: _ended(batch, 2))
    again = await node.batch("b").__aenter__()
    others: list[tuple[str, Call]] = [
        ("report", Call("k0", 1)),
        ("report", Call("k1", 2)),
        ("stand", Call("k2")),
    ]
    firsts: list[tuple[str, Call]] = [
        ("stand", Call("k0")),
        ("report", Call("k1", 1)),
        ("nobody", Call("k2")),
    ]
    for index, (other, first) in enumerate(zip(others, firsts, strict=True)):
        with pytest.raises(BatchDiffers) as differs:
            await again.add(other[0], [other[1]])
        error = differs.value
        assert (error.index, error.differs, again.added) == (index, "call", index)
        assert error.known != error.asked
        assert await again.add(first[0], [first[1]]) == []
    with pytest.raises(BatchDiffers) as differs:
        await (await node.batch("b").__aenter__()).add("stand", ["k1"])
    error = differs.value
    assert (error.index, error.differs, error.known, error.asked) == (0, "key", "k0", "k1")
    gate.event.set()
    await again.seal()
    assert counts(await again.ref.wait(PATIENCE_S)) == (3, 0, 0, 2, 0, 0, 1)
    assert [entry for entry in diary.entries if entry[0] != "stands"] == []


async def _ended(batch: Batch, number: int) -> bool:
    return (await batch.ref.status()).ended == number


async def test_one_that_is_entered_once_more_begins_with_the_first_member(
    fleet: Fleet, handlers: Handlers, lanes: int
) -> None:
    node = await fleet.node(handlers, lanes=lanes)
    calls = [Call(f"k{n}", 0) for n in range(10)]
    batch = node.batch("b")
    await (await batch.__aenter__()).add("report", calls[:5])
    for _ in range(2):
        async with batch:
            assert batch.added == 0
            await batch.add("report", calls)
    assert counts(await batch.ref.result(PATIENCE_S)) == (10, 0, 0, 10, 0, 0, 0)


async def test_members_of_lost_data_are_missing(
    fleet: Fleet, handlers: Handlers, diary: Diary
) -> None:
    """A lane loses its data: the batch, in another lane, is told when it is looked after."""
    node = await fleet.node(handlers, lanes=LANES)
    there = next(n for n in map("b{}".format, range(99)) if lane_of(n, LANES) == 0)
    key = next(n for n in map("k{}".format, range(99)) if lane_of(n, LANES) == 1)
    async with node.batch(there) as batch:
        await batch.add("stand", [key])
        await diary.has("stands", key)
    fleet.is_audited = False  # of the handler whose record is gone
    fleet.client.hdel(Names(fleet.pool, 1).jobs, key)
    fleet.client.zadd(Names(fleet.pool, 0).due, {f"b:{there}": 1})
    status = await batch.ref.wait(PATIENCE_S)
    assert counts(status) == (1, 0, 0, 0, 0, 0, 1)


# --- within others ------------------------------------------------------------------------------


async def test_batches_within_a_batch(fleet: Fleet, handlers: Handlers, lanes: int) -> None:
    node = await fleet.node(handlers, lanes=lanes)
    async with node.batch("outer") as outer:
        await outer.add("report", [Call(f"k{n}", 0) for n in range(5)])
        for number in range(4):
            async with node.batch(f"inner{number}", within=outer) as inner:
                await inner.add("report", [Call(f"i{number}.{n}", number) for n in range(3)])
    status = await outer.ref.wait(PATIENCE_S)
    assert (counts(status), status.state) == ((9, 0, 0, 8, 1, 0, 0), "failed")
    inner_ends = {m.key: m.end async for m in outer.ref.members() if m.is_batch}
    assert inner_ends == {f"inner{n}": "failed" if n == 3 else "succeeded" for n in range(4)}


@pytest.mark.parametrize(("number", "end"), [(0, "succeeded"), (3, "failed"), (None, "cancelled")])
async def test_one_that_has_ended_counts_at_once_in_another(
    fleet: Fleet, handlers: Handlers, lanes: int, number: int | None, end: str
) -> None:
    """Nobody looks after the outer one: that would be a minute later."""
    node = await fleet.node(handlers, lanes=lanes)
    calls = [] if number is None else [Call("k", number)]
    async with node.batch("kid") as kid:
        await kid.add("report", calls)
        if number is None:
            await kid.ref.cancel()
    settled = await kid.ref.wait(PATIENCE_S)
    for outer_id in ("outer", "outer", "further"):  # again as after a crash, and in yet another
        async with node.batch(outer_id) as outer:
            async with node.batch("kid", within=outer) as kid:
                await kid.add("report", calls)
            assert outer.added == 1
        status = await outer.ref.wait(PATIENCE_S)
        assert getattr(status, end) == status.expected == 1
    [member] = [each async for each in node.batches.get("further").members()]
    assert (member.key, member.end, settled.within) == ("kid", end, "")
    if end == "succeeded":
        assert member.result() is None
    else:
        with pytest.raises(BatchFailed) as failed:
            member.result()
        assert (failed.value.batch, failed.value.state) == ("kid", settled.state)


async def test_one_within_another_that_was_forgotten_counts_in_the_next_of_that_id(
    fleet: Fleet, handlers: Handlers, lanes: int
) -> None:
    """A nested program runs again after `keep_s` of the outer one."""
    node = await fleet.node(handlers, lanes=lanes)
    for turn in range(2):
        outer = node.batch("outer", keep_s=2.0)
        async with outer, node.batch("kid", within=outer) as kid:
            await kid.add("report", [Call("k", 0)])
        assert counts(await outer.ref.result(PATIENCE_S)) == (1, 0, 0, 1, 0, 0, 0), turn
        assert (await kid.ref.status()).within == "outer"
        await fleet.until(lambda: _is_gone(node.batches.get("outer")))


async def _is_gone(ref: BatchRef) -> bool:
    try:
        await ref.status()
    except NoSuchBatch:
        return True
    return False


async def test_one_is_within_one_other_and_never_within_itself(
    fleet: Fleet, handlers: Handlers, lanes: int
) -> None:
    """Refused before anything is noted; what is there stays what it is, and settles."""
    node = await fleet.node(handlers, lanes=lanes)

    async def refused(batch_id: str, within: Batch, known: str) -> None:
        before = (await within.ref.status()).expected
        with pytest.raises(BatchDiffers) as differs:
            await node.batch(batch_id, within=within).__aenter__()
        error = differs.value
        assert (error.differs, error.batch, error.known) == ("within", batch_id, known)
        assert (error.asked, error.index) == (within.id, within.added)
        assert (await within.ref.status()).expected == before

    async with node.batch("a") as a, node.batch("b", within=a) as b, node.batch("c", within=b) as c:
        await refused("a", b, "")
        await refused("a", c, "")
        await refused("b", c, "a")
        async with node.batch("other") as other:
            await refused("c", other, "b")
            await refused("a", other, "")
        async with node.batch("b", within=await node.batch("a").__aenter__()) as again:
            assert again.added == 0, "it is its own"
            async with node.batch("c", within=again):
                pass
    for each in ("other", "c", "b", "a"):
        assert (await node.batches.get(each).result(PATIENCE_S)).state == "done"


async def test_one_that_another_has_opened_meanwhile_is_missing(
    fleet: Fleet, handlers: Handlers, lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between looking at it and opening it: it was noted, and is told of as what is refused."""
    node = await fleet.node(handlers, lanes=lanes)

    async def late(client: JobClient, state: LaneState, call: ScriptCall) -> Any:
        if call.script is BATCH_OPEN:
            monkeypatch.undo()
            await node.batch("kid").__aenter__()
        return await ask(client, state, call)

    async with node.batch("outer") as outer:
        monkeypatch.setattr("pool.jobs.client.batches.ask", late)
        with pytest.raises(BatchDiffers):
            await node.batch("kid", within=outer).__aenter__()
        await outer.add("report", [Call("k", 0)])
    assert counts(await outer.ref.wait(PATIENCE_S)) == (2, 0, 0, 1, 0, 0, 1)
    async with node.batch("kid"):
        pass


async def test_a_member_that_waits_for_its_own_batch_is_told(
    fleet: Fleet,
    handlers: Handlers,
    diary: Diary,
    lanes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or for one around that, at once; for another one, or without waiting, it may."""
    monkeypatch.setattr(Waiters, "tell_members", lambda *_: None)

    @handlers.job("wait", attempts_max=1)
    async def wait(job: Job) -> None:
        for batch_id in ("inner", "outer"):
            with pytest.raises(DeadlockRisk) as risk:
                await job.node.batches.get(batch_id).result()
            assert (risk.value.batch, risk.value.key) == (batch_id, job.key)
            with pytest.raises(TimeoutError):
                await job.node.batches.get(batch_id).wait(0)
        await job.node.batches.get("other").result(PATIENCE_S)
        diary.note("waited")

    node = await fleet.node(handlers, lanes=lanes)
    async with node.batch("other"):
        pass
    async with node.batch("outer") as outer, node.batch("inner", within=outer) as inner:
        await inner.add("wait", ["k"])
    await outer.ref.result(PATIENCE_S)
    await diary.has("waited")


async def test_one_that_could_not_be_opened_within_another_is_one_member(
    fleet: Fleet, handlers: Handlers, lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its maker was not answered, and opens it again."""

    async def lost(client: JobClient, state: LaneState, call: ScriptCall) -> Any:
        answer = await ask(client, state, call)
        if call.script is BATCH_OPEN:
            raise StoreUnavailable(problem="lost", maybe_done=True)
        return answer

    node = await fleet.node(handlers, lanes=lanes)
    async with node.batch("outer") as outer:
        monkeypatch.setattr("pool.jobs.client.batches.ask", lost)
        with pytest.raises(StoreUnavailable):
            await node.batch("inner", within=outer).__aenter__()
        monkeypatch.undo()
        async with node.batch("inner", within=outer) as inner:
            await inner.add("report", [Call("k", 0)])
        assert outer.added == 1
    assert counts(await outer.ref.result(PATIENCE_S)) == (1, 0, 0, 1, 0, 0, 0)


async def test_cancelling_reaches_batches_within(
    fleet: Fleet, handlers: Handlers, diary: Diary, lanes: int
) -> None:
    node = await fleet.node(handlers, lanes=lanes)
    async with node.batch("outer") as outer, node.batch("inner", within=outer) as inner:
        await inner.add("stand", ["a", "b"])
        await diary.counts(2)
    await outer.ref.cancel("all of it")
    assert counts(await outer.ref.wait(PATIENCE_S)) == (1, 0, 0, 0, 0, 1, 0)
    assert counts(await inner.ref.wait(PATIENCE_S)) == (2, 0, 0, 0, 0, 2, 0)


# --- what cannot be -----------------------------------------------------------------------------


async def test_what_is_refused_is_named_and_counts_as_missing(
    fleet: Fleet, handlers: Handlers, diary: Diary, gate: Gate, lanes: int
) -> None:
    node = await fleet.node(handlers, lanes=lanes)
    await node.dispatch("stand", "busy")
    async with node.batch("b") as batch:
        refused = await batch.add("report", [Call("k", 0), Call("busy", 0)])
        refused += await batch.add("nobody", ["u"])
    assert [(each.index, each.key, type(each.error)) for each in refused] == [
        (1, "busy", JobExists),
        (2, "u", UnknownHandler),
    ]
    assert counts(await batch.ref.wait(PATIENCE_S)) == (3, 0, 0, 1, 0, 0, 2)
    gate.event.set()


async def test_one_that_was_refused_and_runs_since_is_neither_refused_nor_missing(
    fleet: Fleet, handlers: Handlers, gate: Gate, lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its key is free again, and another one goes on, before the batch has noted that."""
    node, other = await fleet.node(handlers, lanes=lanes), await fleet.node(lanes=lanes)
    stands = await node.dispatch("stand", "k")
    dispatch, calls = Batch._dispatch, ["k", "k"]

    async def late(self: Batch, *args: Any) -> None:
        await dispatch(self, *args)
        monkeypatch.undo()
        gate.event.set()
        await stands.result(PATIENCE_S)
        gate.event = anyio.Event()
        again = await other.batch("b").__aenter__()
        assert [each.index for each in await again.add("stand", calls)] == [1]

    async with node.batch("b") as batch:
        monkeypatch.setattr(Batch, "_dispatch", late)
        refused = await batch.add("stand", calls)
    assert [each.index for each in refused] == [1]
    gate.event.set()
    assert counts(await batch.ref.wait(PATIENCE_S)) == (2, 0, 0, 1, 0, 0, 1)


async def test_one_that_was_refused_to_who_died_then_is_missing(
    fleet: Fleet, handlers: Handlers, gate: Gate, lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lane was told that it never begins, and its batch was not: who goes on tells it."""
    node, other = await fleet.node(handlers, lanes=lanes), await fleet.node(lanes=lanes)
    stands = await node.dispatch("stand", "k")

    async def dies(self: Batch, items: object) -> None:
        raise StoreUnavailable(problem="died", maybe_done=True)

    monkeypatch.setattr(Batch, "_tell_ends", dies)
    with pytest.raises(StoreUnavailable):
        await (await node.batch("b").__aenter__()).add("stand", ["k"])
    monkeypatch.undo()
    gate.event.set()
    await stands.result(PATIENCE_S)
    batch = await other.batch("b").__aenter__()
    await batch.add("stand", ["k"])
    assert counts(await batch.ref.status()) == (1, 0, 0, 0, 0, 0, 1)
    await batch.seal()
    assert (await batch.ref.wait(PATIENCE_S)).state == "failed"


async def test_one_that_was_refused_to_another_is_not_dispatched_by_who_comes_late(
    fleet: Fleet, handlers: Handlers, diary: Diary, gate: Gate, lanes: int
) -> None:
    """By then its lane has forgotten the refusal: who noted it long ago asks its batch again."""
    slow, noted, go_on, ahead = Handlers(), anyio.Event(), anyio.Event(), Ahead()

    @slow.around_dispatch
    async def around(outgoing: Outgoing, call_next: Send) -> JobRef[Any]:
        noted.set()
        await go_on.wait()
        return await call_next(outgoing)

    @slow.job("stand")
    async def stand(job: Job) -> None:
        diary.note("stands", job.key)

    node = await fleet.node(handlers, lanes=lanes)
    stands = await node.dispatch("stand", "k")
    await diary.has("stands", "k")
    other = await fleet.node(slow, lanes=lanes)
    late = await other.batch("b").__aenter__()
    late._client = attrs.evolve(late._client, context=ahead.of(late._client.context))
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(late.add, "stand", ["k"])
            await noted.wait()
            batch = await node.batch("b").__aenter__()
            [refused] = await batch.add("stand", ["k"])
            gate.event.set()
            await stands.result()
            forgotten = [*fleet.client.scan_iter(match=f"*result:*.{refused.index} k")]
            assert fleet.client.delete(*forgotten) == 1
            ahead.seconds = 3600.0
            go_on.set()
    assert late.added == 1
    assert counts(await batch.ref.status()) == (1, 0, 0, 0, 0, 0, 1)
    assert fleet.record("k") is None
    assert diary.entries.count(("stands", "k")) == 1


async def test_what_was_asked_too_long_ago_is_not_told_as_missing(
    fleet: Fleet, handlers: Handlers, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have begun meanwhile, for somebody else: who comes next asks again."""
    ahead, node = Ahead(), await fleet.node(handlers, lanes=1)
    await node.dispatch("stand", "k")
    batch = await node.batch("b").__aenter__()
    batch._client = attrs.evolve(batch._client, context=ahead.of(batch._client.context))
    with monkeypatch.context() as patch:
        ahead.goes_while_mustering(patch)
        with pytest.raises(StoreUnavailable):
            await batch.add("stand", ["k"])
        assert (batch.added, counts(await batch.ref.status())) == (0, (1, 1, 0, 0, 0, 0, 0))
    await batch.add("stand", ["k"])
    assert (batch.added, counts(await batch.ref.status())) == (1, (1, 0, 0, 0, 0, 0, 1))
    await batch._note(["never"])
    batch._added += 1
    await batch.seal()
    caretaker, [state] = fleet.wiring(node)._sweeper._caretaker, fleet.wiring(node).context.lanes
    with monkeypatch.context() as patch:
        ahead.goes_while_mustering(patch)
        await attrs.evolve(caretaker, context=ahead.of(caretaker.context))._all(state, "b")
        assert counts(await batch.ref.status()) == (2, 1, 0, 0, 0, 0, 1)
    await caretaker._all(state, "b")
    assert counts(await batch.ref.status()) == (2, 0, 0, 0, 0, 0, 2)
    gate.event.set()


async def test_a_lane_that_is_not_joined_yet_has_not_lost_its_data(fleet: Fleet) -> None:
    """Who is refused asks it to make sure that the member never begins."""
    handlers = Handlers()

    @handlers.around_dispatch
    async def around(outgoing: Outgoing, call_next: Send) -> JobRef[Any]:
        raise PermissionError("no quota")

    node = await fleet.node(handlers, lanes=1)
    batch = await node.batch("b").__aenter__()
    client = batch._client
    unjoined: Any = Beside(
        client.context,
        lane_of=client.context.lane_of,
        lanes=[
            Beside(each, lane=attrs.evolve(each.lane, generation=""))
            for each in client.context.lanes
        ],
    )
    batch._client = attrs.evolve(client, context=unjoined)
    with pytest.raises(StoreUnavailable):
        await batch.add("nobody", ["k"])
    batch._client = client
    assert [each.key for each in await batch.add("nobody", ["k"])] == ["k"]


async def test_a_full_pool_is_waited_for(
    fleet: Fleet, handlers: Handlers, diary: Diary, gate: Gate
) -> None:
    node = await fleet.node(handlers, lanes=1, capacity=4, queued_jobs_max=10)
    async with node.batch("b") as batch, anyio.create_task_group() as tasks:

        async def let_go() -> None:
            await diary.counts(4)
            gate.event.set()

        tasks.start_soon(let_go)
        assert await batch.add("stand", [f"k{n}" for n in range(100)]) == []
    assert counts(await batch.ref.result(PATIENCE_S)) == (100, 0, 0, 100, 0, 0, 0)


async def test_a_full_pool_is_not_asked_for_all_members_again_and_again(
    fleet: Fleet, handlers: Handlers, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where some have found no room, those behind them are not sent."""
    admit, sleep, sent, full_s = Dispatcher.admit, anyio.sleep, list[str](), 3600.0
    rests = anyio.Event()

    def counted(self: Dispatcher, items: Sequence[Admission], **options: Any) -> list[Pending]:
        sent.extend(item.key for item in items)
        return admit(self, items, **options)

    async def slept(delay_s: float) -> None:
        if delay_s == full_s:
            rests.set()
        await sleep(delay_s)

    monkeypatch.setattr(Dispatcher, "admit", counted)
    monkeypatch.setattr("pool.jobs.client.batches.SLICE", 10)
    monkeypatch.setattr("pool.jobs.client.batches.FULL_S", full_s)
    monkeypatch.setattr("pool.jobs.client.batches.anyio.sleep", slept)
    node = await fleet.node(handlers, lanes=1, capacity=4, queued_jobs_max=10)
    keys = [f"k{n}" for n in range(100)]
    async with node.batch("b") as batch:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(batch.add, "stand", keys)
            with anyio.fail_after(PATIENCE_S):
                await rests.wait()
            tasks.cancel_scope.cancel()
        assert len(sent) <= 40
        gate.event.set()
        monkeypatch.undo()
        assert await batch.add("stand", keys) == []
    assert counts(await batch.ref.result(PATIENCE_S)) == (100, 0, 0, 100, 0, 0, 0)


async def test_bad_members_are_refused_before_any_is_noted(
    fleet: Fleet, handlers: Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await fleet.node(handlers, lanes=1)
    async with node.batch("b") as batch:
        with pytest.raises(InvalidKey) as caught:
            await batch.add("report", [Call("k", 0), Call("", 0)])
        assert caught.value.__notes__ == ["It is call 1 of the batch, from 0 on, of key ''."]
        with pytest.raises(InvalidOption):
            await batch.add("report", [Call("k", 0), 3])  # type: ignore[list-item]
        assert (await batch.ref.status()).expected == batch.added == 0
        monkeypatch.setattr("pool.redis.commands.batches.MEMBERS_MAX", 2)
        with pytest.raises(BatchTooLarge):
            await batch.add("report", [Call(f"k{n}", 0) for n in range(3)])
        assert (await batch.ref.status()).expected == 0
    for id_ in ("", "a b", "a,b", "a|b", "x" * 129):
        with pytest.raises(InvalidOption):
            node.batch(id_)
    with pytest.raises(InvalidOption, match="another batch"):
        node.batch("b", within=batch)
    with pytest.raises(NotRunning):
        await node.batch("new").add("report", [])
    gone = node.batches.get("never")
    for call in (gone.status, gone.wait, gone.result, gone.cancel):
        with pytest.raises(NoSuchBatch):
            await call()
    with pytest.raises(NoSuchBatch):
        await anext(gone.members())


async def test_members_that_got_no_answer_are_added_again(
    fleet: Fleet, handlers: Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await fleet.node(handlers, lanes=1)
    admit = Dispatcher.admit

    def lost(self: Dispatcher, *args: Any, **options: Any) -> Any:
        taken = admit(self, *args, **options)
        for pending in taken:
            pending.resolve(StoreUnavailable(problem="lost", maybe_done=True))
        return taken

    async with node.batch("b") as batch:
        monkeypatch.setattr(Dispatcher, "admit", lost)
        with pytest.raises(StoreUnavailable):
            await batch.add("report", [Call("k", 0)])
        assert batch.added == 0
        monkeypatch.setattr(Dispatcher, "admit", admit)
        assert await batch.add("report", [Call("k", 0)]) == []
    assert counts(await batch.ref.result(PATIENCE_S)) == (1, 0, 0, 1, 0, 0, 0)


async def test_members_go_by_way_of_middleware_some_at_once(fleet: Fleet) -> None:
    """What the store has said of one counts, whatever the middleware makes of that."""
    handlers, inside, everyone = Handlers(), set[str](), anyio.Event()

    @handlers.around_dispatch
    async def around(outgoing: Outgoing, call_next: Send) -> JobRef[Any]:
        inside.add(outgoing.key)
        if len(inside) == 5:
            everyone.set()
        await everyone.wait()
        if outgoing.key == "refused":
            raise PermissionError("no quota")
        if outgoing.key == "other":
            outgoing = attrs.evolve(outgoing, key="another")
        ref = None if outgoing.key == "nothing" else await call_next(outgoing)
        if outgoing.key == "late":
            raise PermissionError("too late: it is accepted")
        return ref  # type: ignore[return-value]

    @handlers.job("nap")
    async def nap(job: Job) -> None:
        return

    node = await fleet.node(handlers, lanes=1)
    async with node.batch("b") as batch:
        with anyio.fail_after(PATIENCE_S):
            refused = await batch.add(nap, ["k", "refused", "other", "nothing", "late"])
    assert [(each.key, type(each.error)) for each in refused] == [
        ("refused", MiddlewareFailed),
        ("other", InvalidOption),
        ("nothing", MiddlewareFailed),
    ]
    assert counts(await batch.ref.wait(PATIENCE_S)) == (5, 0, 0, 2, 0, 0, 3)


async def test_a_job_of_a_batch_says_so_to_nobody_else(fleet: Fleet, handlers: Handlers) -> None:
    """An ordinary job beside: it has nothing of a batch, and costs what it did."""
    node: Node = await fleet.node(handlers, lanes=1)
    ref = await node.dispatch("report", "k", 1)
    assert await ref.result(PATIENCE_S) == 2
    assert int(fleet.client.hget(fleet.names.lane, "outgoing") or 0) == 0


async def test_a_call_with_an_id_of_its_own_is_no_member(
    fleet: Fleet, handlers: Handlers, lanes: int
) -> None:
    """V8: a member is known by its batch: by that id it would run once more."""
    node = await fleet.node(handlers, lanes=lanes)
    async with node.batch("b") as batch:
        for given in ({"idempotency_key": "i"}, {"job_id": "j"}):
            calls = [Call("k", 0), Call("l", 1).identified(**given)]
            with pytest.raises(InvalidOption):
                await batch.add("report", calls)
        assert batch.added == 0
    assert (await batch.ref.result(PATIENCE_S)).expected == 0
