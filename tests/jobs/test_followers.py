"""Jobs that follow jobs: released with the result, carried to their lane, never twice."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from itertools import product
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pool import Cancel, Follower, Handlers, Job, JobRef, Node, Park
from pool.core.followers import name_of
from pool.core.ids import derived_id
from pool.core.record import Outcome, pack_more
from pool.errors import (
    ConfigError,
    IdempotencyConflict,
    InvalidKey,
    InvalidOption,
    JobCancelled,
    JobExists,
    JobParked,
    NoSuchJob,
    NotStarted,
    OutcomeExpired,
    PayloadEncodingError,
    PayloadTooLarge,
    StoreUnavailable,
    WrongArguments,
)
from pool.events import ChannelApart, JobEvents, JobStarted, StoreTroubled
from pool.jobs.client.job_client import JobClient
from pool.jobs.fleet.carrier import Carrier
from pool.jobs.followers import CHAIN_MAX, FOLLOWERS_MAX
from pool.listing import Stage
from pool.names import Names, lane_of, out
from pool.testing import make_job
from tests.nodes import LANES, PATIENCE_S

if TYPE_CHECKING:
    from tests.nodes import Diary, Fleet

pytestmark = pytest.mark.anyio


@pytest.fixture
def handlers(diary: Diary) -> Handlers:
    made = Handlers()

    @made.job("charge", attempts_max=1)
    async def charge(job: Job, amount: int) -> dict[str, int]:
        diary.note("charge", amount)
        if amount < 0:
            raise Park("no money")
        if amount == 0:
            raise Cancel("nothing to do")
        return {"paid": amount}

    @made.job("ship", attempts_max=1)
    async def ship(job: Job, receipt: Any, *, fast: bool = False) -> str:
        diary.note("ship", str(receipt), fast)
        if receipt == {"paid": 13}:
            raise ValueError("out of stock")
        return "label"

    @made.job("refund")
    async def refund(job: Job, why: str) -> None:
        diary.note("refund", why)

    @made.job("note", attempts_max=1)
    async def note(job: Job, *words: Any) -> None:
        diary.note("note", job.key, *words)

    @made.job("spread", attempts_max=2, backoff_s=0.001)
    async def spread(job: Job, count: int) -> None:
        for number in range(count):
            job.then(Follower("note", f"{job.key}-{number}", job.attempt))
        if job.attempt == 1:
            raise ValueError("once more")

    @made.service("for-ever")
    async def for_ever(job: Job) -> None:
        await anyio.sleep_forever()

    return made


def chain(order: str) -> dict[str, Any]:
    """Return what follows the charge of an order."""
    refund = Follower("refund", f"{order}/refund").options(takes_result=True)
    told = Follower("note", f"{order}/note", "shipped")
    shipped = Follower("ship", f"{order}/ship", fast=True)
    ship = shipped.options(takes_result=True, then=told, otherwise=refund)
    return {"then": ship, "otherwise": refund}


async def settled(ref: JobRef[Any]) -> list[Stage]:
    """Wait until nothing of a chain is to come any more."""
    going = {"expected", "released", "pending", "running", "waiting", "unassigned", "queued"}
    with anyio.fail_after(30.0):
        while True:
            stages = await ref.stages()
            if not going & {stage.state for stage in stages}:
                return stages
            await anyio.sleep(0.01)


async def test_a_chain_runs_stage_after_stage(
    fleet: Fleet, handlers: Handlers, diary: Diary, lanes: int
) -> None:
    """G-01: each stage is accepted in the step that ends the one before it, with its result."""
    node = await fleet.node(handlers, lanes=lanes)
    ref = await node.options(**chain("o1")).dispatch("charge", "o1", 7)
    await diary.has("note", "o1/note", "shipped")
    assert diary.entries == [
        ("charge", 7),
        ("ship", "{'paid': 7}", True),
        ("note", "o1/note", "shipped"),
    ]
    stages = await settled(ref)
    assert [(s.key, s.when, s.depth, s.state) for s in stages] == [
        ("o1", "", 0, "done"),
        ("o1/ship", "then", 1, "done"),
        ("o1/note", "then", 2, "done"),
    ]
    last = await node.job("o1/ship", stages[1].job_id)
    assert await last.result(timeout_s=30) == "label"


@pytest.mark.parametrize(
    ("amount", "why"),
    [
        (-1, "parked: no money"),
        (0, "cancelled: nothing to do"),
        (13, "parked: failed: ValueError: out of stock"),
    ],
)
async def test_what_is_not_done_is_followed_otherwise(
    fleet: Fleet, handlers: Handlers, diary: Diary, lanes: int, amount: int, why: str
) -> None:
    node = await fleet.node(handlers, lanes=lanes)
    ref = await node.options(**chain("o1")).dispatch("charge", "o1", amount)
    await diary.has("refund", why)
    stages = await settled(ref)
    assert [(s.key, s.when) for s in stages[1:]][-1] == ("o1/refund", "otherwise")
    assert not [entry for entry in diary.entries if entry[0] == "note"]


async def test_stages_that_are_to_come_are_told_from_any_node(
    fleet: Fleet, handlers: Handlers, lanes: int
) -> None:
    node, client = await fleet.node(lanes=lanes), await fleet.node(lanes=lanes)
    via = node.options(allow_unknown=True, **chain("o1"))
    ref = await via.dispatch("charge", "o1", 7)
    other = await client.job("o1", ref.job_id)
    assert [(s.key, s.handler, s.when, s.depth, s.state) for s in await other.stages()] == [
        ("o1", "charge", "", 0, "unassigned"),
        ("o1/ship", "ship", "then", 1, "expected"),
        ("o1/note", "note", "then", 2, "expected"),
        ("o1/refund", "refund", "otherwise", 2, "expected"),
        ("o1/refund", "refund", "otherwise", 1, "expected"),
    ]
    await other.stop()
    first, last = await other.stages()
    assert (first.key, first.state) == ("o1", "cancelled")
    assert (last.key, last.when) == ("o1/refund", "otherwise")
    assert last.state in ("released", "waiting", "unassigned")  # nobody has its handler


async def test_stages_of_a_chain_as_long_as_can_be_are_told(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await fleet.node()
    names = Names(fleet.pool, lane_of("k", 1))
    with fleet.client.pipeline(transaction=False) as written:
        for i in range(1500):  # more than there may be calls within calls
            more = pack_more(handler="again", followers=name_of("k", f"j{i + 1}"))
            outcome = Outcome.pack("done", 1, "w.1", 1).replace(b"||\n", f"|{more}|\n".encode())
            written.set(names.result("k", f"j{i}"), outcome)
        written.execute()
    ref = await node.job("k", "j0")
    stages = await ref.stages()
    assert [(s.job_id, s.depth) for s in stages] == [(f"j{i}", i) for i in range(1501)]
    assert [s.state for s in stages] == ["done"] * 1500 + ["released"]
    monkeypatch.setattr("pool.jobs.client.ref.STAGES_MAX", 100)
    assert await ref.stages() == stages[:100]


async def test_stages_name_what_a_parked_one_was_replayed_as(
    fleet: Fleet, handlers: Handlers, lanes: int
) -> None:
    node = await fleet.node(handlers, lanes=lanes)
    ref = await node.options(then=Follower("note", "n", "x")).dispatch("charge", "o1", -1)
    with pytest.raises(JobParked):
        await ref.result(timeout_s=30)
    [parked, _] = await ref.stages()
    assert parked.replayed_as == ""
    again = await node.parked.replay("o1", ref.job_id)
    [parked, *_] = await ref.stages()
    assert (parked.state, parked.replayed_as) == ("parked", again.job_id)


async def test_a_run_adds_followers_and_one_that_fails_leaves_none(
    fleet: Fleet, handlers: Handlers, diary: Diary, lanes: int
) -> None:
    node = await fleet.node(handlers, lanes=lanes)
    ref = await node.dispatch("spread", "s", 3)
    await diary.counts(3)
    stages = await settled(ref)
    assert sorted(diary.entries) == [("note", f"s-{number}", 2) for number in range(3)]
    assert [stage.state for stage in stages] == ["done"] * 4


async def test_who_stops_a_service_is_told_by_who_follows_it(
    fleet: Fleet, handlers: Handlers, diary: Diary
) -> None:
    node = await fleet.node(handlers)
    refund = Follower("refund", "r").options(takes_result=True)
    ref = await node.options(otherwise=refund).dispatch("for-ever", "s")
    await ref.started(timeout_s=30)
    await ref.stop("enough")
    await diary.has("refund", "cancelled: enough")


async def test_a_follower_waits_behind_the_live_job_of_its_key_and_for_its_delay(
    fleet: Fleet, handlers: Handlers, diary: Diary
) -> None:
    node = await fleet.node(handlers, observers=[JobEvents(fleet.events.note)])
    live = await node.dispatch("for-ever", "busy")
    await live.started(timeout_s=30)
    late = Follower("note", "later", "late").options(delay_s=2.0)
    ref = await node.options(then=[Follower("note", "busy", "behind"), late]).dispatch(
        "charge", "k", 1
    )
    await ref.result(timeout_s=30)
    await diary.has("note", "later", "late")
    assert (await fleet.seen(JobStarted, key="later")).waited_s >= 1.9  # since it was released
    stages = await ref.stages()
    assert [(s.key, s.state) for s in stages if s.key == "busy"] == [("busy", "queued")]
    await live.stop()
    await diary.has("note", "busy", "behind")


async def test_a_parked_job_without_anybody_else_is_followed_when_its_replay_is_done(
    fleet: Fleet, handlers: Handlers, diary: Diary
) -> None:
    node = await fleet.node(handlers)
    ref = await node.options(then=Follower("note", "n", "paid")).dispatch("charge", "k", -1)
    with pytest.raises(JobParked):
        await ref.result(timeout_s=30)
    assert [stage.state for stage in await ref.stages()] == ["parked", "expected"]
    await node.parked.edit("k", ref.job_id, 5)
    await node.parked.replay("k", ref.job_id)
    await diary.has("note", "n", "paid")


async def test_a_dispatch_that_is_repeated_makes_one_chain(
    fleet: Fleet, handlers: Handlers, diary: Diary, lanes: int
) -> None:
    """Also after its end; and another chain under the same id is another job."""
    node = await fleet.node(handlers, lanes=lanes)
    via = node.options(job_id="once", **chain("o1"))
    refs = [await via.dispatch("charge", "o1", 7) for _ in range(3)]
    await diary.has("note", "o1/note", "shipped")
    stages = await settled(refs[0])
    await via.dispatch("charge", "o1", 7)
    assert await settled(refs[1]) == stages
    with pytest.raises(IdempotencyConflict) as conflict:
        await node.options(job_id="once").dispatch("charge", "o1", 7)
    assert conflict.value.differs == "followers"
    assert diary.entries.count(("charge", 7)) == 1


async def test_a_follower_is_the_same_by_its_name_and_its_function(
    fleet: Fleet, handlers: Handlers
) -> None:
    """Whether or not the node that dispatches knows its handler, and of what kind that is."""
    note, node, client = handlers["note"], await fleet.node(handlers), await fleet.node()

    def chain_of(handler: Any) -> Follower:
        inner = Follower(handler, "n2", "b").options(takes_result=True)
        return Follower(handler, "n1", "a").options(then=inner, otherwise=inner)

    for asks in (node, client):
        for handler in (note, "note"):
            via = asks.options(job_id="one", then=chain_of(handler), allow_unknown=True)
            ref = await via.dispatch("charge", "o1", 7)
            assert ref.job_id == "one"
    other = node.options(job_id="one", then=Follower(note, "n1", "a"))
    with pytest.raises(IdempotencyConflict) as conflict:
        await other.dispatch("charge", "o1", 7)
    assert conflict.value.differs == "followers"


async def test_a_handler_that_attaches_by_default_refuses_instead_where_somebody_follows(
    fleet: Fleet, handlers: Handlers
) -> None:
    """Else whoever follows would be forgotten without a word."""
    attaching = Handlers()

    @attaching.service("attached", if_exists="attach")
    async def attached(job: Job) -> None:
        await anyio.sleep_forever()

    node = await fleet.node(attaching)
    ref = await node.dispatch(attached, "k")
    assert (await node.dispatch(attached, "k")).job_id == ref.job_id
    with pytest.raises(JobExists):
        await node.options(then=Follower("note", "n")).dispatch(attached, "k")


async def test_what_is_lost_of_the_index_is_found_by_the_walk(
    fleet: Fleet, handlers: Handlers, diary: Diary
) -> None:
    """G-05: messages that nothing in `due` leads to are carried over all the same."""
    node = await fleet.node(handlers, lanes=LANES, lease_ttl_s=1.0)
    names = Names(fleet.pool, lane_of("k", LANES))
    to = lane_of("n", LANES)
    text = b'j 0 j 1 2 4 0 5\nnidnote["w"]'
    fleet.client.hset(names.payloads, f"{out(to)} 0", b"0123456789abcdef" + text)
    fleet.client.hset(names.payloads, out(to), "0 1 - 0123456789abcdef")
    fleet.client.hset(names.lane, "outgoing", 1)
    await diary.has("note", "n", "w")
    assert node.state == "open"


async def test_what_its_lane_did_not_take_is_carried_once_more(
    fleet: Fleet, handlers: Handlers, diary: Diary
) -> None:
    """G-05: a message that a lane refused as a whole is there until that lane has it."""
    lanes = LANES
    origin = next(n for n in range(99) if lane_of(f"k-{n}", lanes) == 0)
    follower = next(n for n in range(99) if lane_of(f"n-{n}", lanes) == 1)
    node = await fleet.node(handlers, lanes=lanes)
    payloads = Names(fleet.pool, 1).payloads
    fleet.client.set(payloads, "somebody's")
    try:
        then = Follower("note", f"n-{follower}", "w")
        await node.options(then=then).dispatch("charge", f"k-{origin}", 1)
        await fleet.seen(StoreTroubled, during="carry over")
    finally:
        fleet.client.delete(payloads)
    await diary.has("note", f"n-{follower}", "w")


async def test_two_that_carry_at_once_take_no_data_for_lost(
    fleet: Fleet, handlers: Handlers, diary: Diary
) -> None:
    """One is often overtaken by the other: that is told to nobody."""
    lanes, count = 2, 200
    nodes = [await fleet.node(handlers, lanes=lanes) for _ in range(2)]
    async with anyio.create_task_group() as both:

        async def carry(node: Node) -> None:
            carrier = fleet.wiring(node)._sweeper._carrier
            while True:
                for lane, to in product(range(lanes), repeat=2):
                    carrier.carry(lane, to)
                await anyio.sleep(0.001)

        for node in nodes:
            both.start_soon(carry, node)
        for number in range(count):
            then = Follower("note", f"n-{number}", number)
            await nodes[0].options(then=then).dispatch("charge", f"k-{number}", 1)
        await diary.until(lambda told: sum(each[0] == "note" for each in told) == count)
        both.cancel_scope.cancel()
    assert fleet.all_seen(ChannelApart) == []


# --- bad input ----------------------------------------------------------------------------------


def long_chain(length: int) -> Follower:
    last = Follower("note", "n")
    for _ in range(length - 1):
        last = Follower("note", "n").options(then=last)
    return last


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: {"then": "text"}, InvalidOption),
        (lambda: {"then": [3]}, InvalidOption),
        (lambda: {"otherwise": 3}, InvalidOption),
        (lambda: {"then": Follower("note", "")}, InvalidKey),
        (lambda: {"then": Follower("no name", "n")}, ConfigError),
        (lambda: {"then": Follower("note", "n", object())}, PayloadEncodingError),
        (
            lambda: {"then": Follower("note", "n", b"raw").options(takes_result=True)},
            PayloadEncodingError,
        ),
        (lambda: {"then": Follower("note", "n", "x" * 2000)}, PayloadTooLarge),
        (lambda: {"then": [Follower("note", "n", "x" * 500)] * 3}, PayloadTooLarge),
        (lambda: {"then": long_chain(CHAIN_MAX + 1)}, InvalidOption),
        (lambda: {"then": [Follower("note", "n")] * (FOLLOWERS_MAX + 1)}, InvalidOption),
        (
            lambda: {
                "then": [Follower("note", "n").options(then=[Follower("note", "m")] * 15)] * 17
            },
            InvalidOption,
        ),
        (lambda: {"then": Follower("note", "n"), "if_exists": "attach"}, InvalidOption),
    ],
)
async def test_what_cannot_follow_is_refused_and_nothing_is_written(
    fleet: Fleet, handlers: Handlers, make: Any, kind: type[Exception]
) -> None:
    """G-09."""
    node = await fleet.node(handlers, payload_bytes_max=1024)
    with pytest.raises(kind):
        await node.options(**make()).dispatch("charge", "k", 1)
    assert await node.count() == 0


@pytest.mark.parametrize(
    "options", [{"then": 3}, {"otherwise": "x"}, {"takes_result": "yes"}, {"delay_s": -1.0}]
)
def test_a_follower_is_made_of_what_can_be_one(options: Any) -> None:
    with pytest.raises(InvalidOption):
        Follower("note", "n").options(**options)


async def test_the_longest_chain_runs_to_its_end(
    fleet: Fleet, handlers: Handlers, diary: Diary
) -> None:
    node = await fleet.node(handlers)
    ref = await node.options(then=long_chain(CHAIN_MAX)).dispatch("charge", "k", 1)
    await diary.has("note", "n", times=CHAIN_MAX)
    assert [stage.depth for stage in await settled(ref)] == [*range(CHAIN_MAX + 1)]


def test_a_run_adds_as_many_as_a_dispatch_at_most() -> None:
    """However often it adds some: the step that releases them holds up the server."""
    job = make_job("k")
    for _ in range(FOLLOWERS_MAX - 2):
        job.then(Follower("note", "n"))
    job.then(Follower("note", "n").options(otherwise=Follower("note", "m")))
    added = job._packed
    with pytest.raises(InvalidOption):
        job.then(Follower("note", "n"))
    assert (len(job.followers), job._packed) == (FOLLOWERS_MAX - 1, added)


async def test_what_a_run_adds_wrongly_is_its_own_error(fleet: Fleet, diary: Diary) -> None:
    made = Handlers()

    @made.job("wrong", attempts_max=1)
    async def wrong(job: Job) -> str:
        with pytest.raises(InvalidOption):
            job.then("text")  # type: ignore[arg-type]
        with pytest.raises(InvalidKey):
            job.then(Follower("note", ""))
        return "went on"

    node = await fleet.node(made)
    ref = await node.dispatch(wrong, "k")
    assert await ref.result(timeout_s=30) == "went on"
    assert [stage.key for stage in await ref.stages()] == ["k"]


def test_names_of_jobs_have_nothing_that_separates_them() -> None:
    assert name_of("a b;c,d|e\u00e9", "id") == "id%20a%20b%3Bc%2Cd%7Ce%C3%A9"


async def test_a_stopped_client_made_chain_is_told_as_cancelled(
    fleet: Fleet, handlers: Handlers
) -> None:
    node: Node = await fleet.node(handlers)
    ref = await node.options(delay_s=60.0, then=Follower("note", "n")).dispatch("charge", "k", 1)
    await ref.stop()
    with pytest.raises(JobCancelled):
        await ref.result(timeout_s=30)
    assert [(s.key, s.state) for s in await ref.stages()] == [("k", "cancelled")]


async def test_a_follower_has_the_types_and_the_version_of_its_handler(
    fleet: Fleet, diary: Diary
) -> None:
    """Wrong arguments are refused at once; what goes along is read as its handler says."""
    made = Handlers()

    def upcast(version: int, args: Any, kwargs: Any) -> Any:
        raise AssertionError("it is of the present version")

    @made.job("day")
    async def day(job: Job) -> str:
        return "2026-11-25"

    @made.job("after", attempts_max=1, version=2, upcast=upcast)
    async def after(job: Job, when: date, count: int) -> None:
        diary.note("after", when, count)

    node = await fleet.node(made)
    with pytest.raises(WrongArguments):
        await node.options(then=Follower(after, "n", date(2026, 1, 1), "x")).dispatch(day, "k")
    told = Follower(after, "n", 3).options(takes_result=True)
    plain = Follower(after, "m", date(2026, 1, 1), 4)
    await node.options(then=[told, plain]).dispatch(day, "k")
    await diary.has("after", date(2026, 11, 25), 3)
    await diary.has("after", date(2026, 1, 1), 4)


# --- on its way ---------------------------------------------------------------------------------


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what lets messages to lanes through once there is something in it."""
    opened, carry = list[str](), Carrier.carry

    def held(self: Carrier, lane: int, to: int) -> None:
        if opened:
            carry(self, lane, to)

    monkeypatch.setattr(Carrier, "carry", held)
    return opened


async def test_what_was_released_is_waited_for_while_it_is_on_its_way(
    fleet: Fleet,
    handlers: Handlers,
    diary: Diary,
    lanes: int,
    door: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is named in the step that ends its predecessor, and comes to its lane after that."""
    node, looked = await fleet.node(handlers, lanes=lanes), list[str]()
    under_way = JobClient._under_way

    async def counted(self: JobClient, lane: int, to: int) -> tuple[int, int]:
        looked.append("")
        return await under_way(self, lane, to)

    then = [Follower("note", "n"), Follower("for-ever", "f")]
    ref = await node.options(then=then).dispatch("charge", "o", 7)
    await ref.result(PATIENCE_S)
    noted, goes_on = [
        await node.job(each.key, each.job_id) for each in (await ref.stages()) if each.depth
    ]
    with pytest.raises(TimeoutError):
        await noted.result(0.05)
    with pytest.raises(NotStarted):
        await goes_on.started(0.05)
    monkeypatch.setattr(JobClient, "_under_way", counted)
    async with anyio.create_task_group() as tasks:

        async def told(what: str, call: Callable[[], Awaitable[object]]) -> None:
            await call()
            diary.note(what)

        tasks.start_soon(told, "result", noted.result)
        tasks.start_soon(told, "status", noted.status)
        tasks.start_soon(told, "stop", goes_on.stop)
        await fleet.until(lambda: len(looked) > 3 * lanes)
        door.append("open")
    for what in ("result", "status", "stop"):
        await diary.has(what)
    with pytest.raises(JobCancelled):
        await goes_on.result(PATIENCE_S)


async def test_what_has_long_ended_is_not_waited_for_however_busy_the_way_is(
    fleet: Fleet, handlers: Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what was on its way when it was asked for is waited for."""
    node, first = await fleet.node(handlers, lanes=1), [0]

    async def busy(self: JobClient, lane: int, to: int) -> tuple[int, int]:
        first[0] += 3
        return first[0], first[0] + 5

    monkeypatch.setattr(JobClient, "_under_way", busy)
    gone = await node.job("k", derived_id("of long ago"))
    with pytest.raises(OutcomeExpired):
        await gone.result(PATIENCE_S)
    assert first == [9], "twice behind what there was"
    with pytest.raises(NoSuchJob):
        await gone.status()
    with pytest.raises(NoSuchJob):
        await gone.stop()


async def test_whoever_is_not_told_in_time_is_told_so(
    fleet: Fleet, handlers: Handlers, door: list[str]
) -> None:
    """Nobody carries it over: it cannot be said how it is, and not that it has ended."""
    node = await fleet.node(handlers, lanes=1, op_timeout_s=1.0)
    ref = await node.options(then=Follower("note", "n")).dispatch("charge", "o", 7)
    await ref.result(PATIENCE_S)
    told = (await ref.stages())[1]
    assert told.state == "released"
    with pytest.raises(StoreUnavailable, match="has not taken in"):
        await (await node.job(told.key, told.job_id)).status()
    door.append("open")
    assert await (await node.job(told.key, told.job_id)).result(PATIENCE_S) is None


# --- what can be known before ---------------------------------------------------------------------


class Fixed:
    """A codec of the user's own."""

    name = "fixed"

    def encode(self, value: Any) -> bytes:
        return repr(value).encode()

    def decode(self, data: bytes) -> Any:
        raise NotImplementedError


@pytest.fixture
def typed_handlers(handlers: Handlers, diary: Diary) -> Handlers:
    def returns(name: str, hint: Any, codec: Any = "json") -> None:
        async def fn(job: Job) -> Any:
            diary.note("worked", name)

        async def of_bytes(job: Job, body: bytes) -> Any:
            diary.note("worked", name)

        if codec == "bytes":  # it takes one value and no other
            of_bytes.__annotations__ = {"job": Job, "body": bytes, "return": hint}
            handlers.job(name, codec=codec)(of_bytes)
            return
        fn.__annotations__ = {"job": Job, "return": hint}
        handlers.job(name, codec=codec)(fn)

    returns("by-msgspec", int, "msgspec")
    returns("by-own", int, Fixed())
    returns("by-bytes", bytes, "bytes")
    returns("bytes", bytes)
    returns("none", None)
    returns("int", int)
    returns("any", Any)
    returns("maybe", bytes | None)
    returns("date", date)
    returns("decimal", Decimal)

    @handlers.job("takes-span")
    async def takes_span(job: Job, span: timedelta) -> None: ...

    @handlers.job("takes-time")
    async def takes_time(job: Job, at: datetime) -> None: ...

    @handlers.job("takes-bytes")
    async def takes_bytes(job: Job, data: bytes) -> None: ...

    @handlers.job("only-bytes", codec="bytes")
    async def only_bytes(job: Job, data: bytes) -> None: ...

    @handlers.job("takes-int")
    async def takes_int(job: Job, number: int, day: date | None = None) -> None: ...

    @handlers.job("takes-msgspec", codec="msgspec")
    async def takes_msgspec(job: Job, number: int, day: date | None = None) -> None: ...

    @handlers.job("takes-nothing")
    async def takes_nothing(job: Job) -> None: ...

    return handlers


NEVER: list[tuple[str, str, tuple[Any, ...]]] = [
    *(("by-msgspec", name, ()) for name in ("takes-int", "note", "unknown", "takes-msgspec")),
    *(("by-own", name, ()) for name in ("takes-int", "note", "unknown")),
    *(("bytes", "note", (1,)), ("by-bytes", "takes-int", ()), ("bytes", "unknown", (1,))),
    *(("none", "takes-bytes", ()), ("none", "takes-int", ()), ("none", "only-bytes", ())),
    *(("int", "takes-bytes", ()), ("int", "only-bytes", ()), ("int", "refund", ())),
    *(("any", "takes-nothing", ()), ("any", "takes-int", ("no day",)), ("any", "ship", (1,))),
    *(("any", "takes-msgspec", ("no day",)), ("any", "only-bytes", (1,))),
    *(("date", "takes-span", ()), ("decimal", "takes-span", ()), ("date", "takes-bytes", ())),
]
MAY: list[tuple[str, str, tuple[Any, ...]]] = [
    *(("by-bytes", "takes-bytes", ()), ("by-bytes", "only-bytes", ()), ("bytes", "note", ())),
    *(("bytes", "takes-msgspec", ()), ("bytes", "unknown", ()), ("by-bytes", "note", (1,))),
    *(("none", "note", (1,)), ("any", "takes-bytes", ()), ("maybe", "note", (1,))),
    *(("int", "takes-int", (date(2026, 1, 2),)), ("int", "takes-msgspec", ("2026-01-02",))),
    *(("any", "unknown", (1,)), ("any", "only-bytes", ())),
    *(("date", "takes-time", ()), ("decimal", "takes-time", ()), ("date", "note", ())),
]


def taken(first: str) -> tuple[bytes, ...]:
    """Return what the first job of these tests takes."""
    return (b"",) if first == "by-bytes" else ()


@pytest.mark.parametrize(("first", "then", "args"), NEVER)
async def test_a_result_that_can_never_fit_is_refused_when_it_is_dispatched(
    fleet: Fleet, typed_handlers: Handlers, diary: Diary, first: str, then: str, args: Any
) -> None:
    """V4: both handlers are known; later it would be parked, when the first has done its work."""
    node = await fleet.node(typed_handlers)
    follower = Follower(then, "f", *args).options(takes_result=True)
    with pytest.raises(WrongArguments):
        await node.options(then=follower, allow_unknown=True).dispatch(first, "k", *taken(first))
    # So is one of a follower.
    behind = Follower(first, "g", *taken(first)).options(then=follower)
    with pytest.raises(WrongArguments):
        await node.options(then=behind).dispatch("note", "k")
    assert not diary.entries


@pytest.mark.parametrize(("first", "then", "args"), MAY)
async def test_a_result_that_may_fit_is_accepted(
    fleet: Fleet, typed_handlers: Handlers, first: str, then: str, args: Any
) -> None:
    node = await fleet.node(typed_handlers)
    follower = Follower(then, "f", *args).options(takes_result=True)
    ref = await node.options(then=follower, allow_unknown=True).dispatch(first, "k", *taken(first))
    await ref.stop()


async def test_why_a_job_was_not_done_is_text_and_counts_are_an_object(
    fleet: Fleet, typed_handlers: Handlers
) -> None:
    node = await fleet.node(typed_handlers)
    number = Follower("takes-int", "f").options(takes_result=True)
    with pytest.raises(WrongArguments):
        await node.options(otherwise=number).dispatch("int", "k")
    some: list[dict[str, Any]] = [{"then": number}, {"otherwise": number}]
    for given in some:
        with pytest.raises(WrongArguments):
            await node.batch("b", **given).__aenter__()


async def test_bytes_beside_other_arguments_are_named_in_the_letter(fleet: Fleet) -> None:
    """Where no annotation tells before."""
    handlers = Handlers()

    @handlers.job("packs")
    async def packs(job: Job):  # type: ignore[no-untyped-def]
        return b"\xff"

    @handlers.job("takes")
    async def takes(job: Job, data: Any, *, size: int) -> None: ...

    node = await fleet.node(handlers)
    then = Follower(takes, "f", size=1).options(takes_result=True)
    await (await node.options(then=then).dispatch(packs, "k")).result(timeout_s=30)

    async def is_parked() -> bool:
        return bool((await node.parked.list()).jobs)

    await fleet.until(is_parked)
    [letter] = (await node.parked.list()).jobs
    assert letter.cause == "malformed payload"
    assert "its first argument is bytes, or what a codec made" in letter.error


async def test_other_arguments_beside_a_result_go_by_their_annotations(
    fleet: Fleet, typed_handlers: Handlers, diary: Diary
) -> None:
    """They are checked and converted as those of any other dispatch."""

    @typed_handlers.job("dated")
    async def dated(job: Job, paid: dict[str, int], day: date, *, tags: set[str]) -> None:
        diary.note("dated", paid["paid"], day, *sorted(tags))

    node = await fleet.node(typed_handlers)
    then = Follower(dated, "f", date(2026, 1, 2), tags={"b", "a"}).options(takes_result=True)
    await node.options(then=then).dispatch("charge", "k", 5)
    await diary.has("dated", 5, date(2026, 1, 2), "a", "b")
