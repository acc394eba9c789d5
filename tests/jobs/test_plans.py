"""Plans: the jobs of a pool are made to be what a producer says, and nobody else's are touched."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import attrs
import pytest

from pool import Call, Follower, Handlers, Job, JobRef, Node, Park
from pool.core.codec import encode_value
from pool.core.pauses import Asked
from pool.core.plans import (
    ANSWERED_MAX,
    ANYTHING,
    CONFIRMED_MAX,
    ID_CHARS_MAX,
    PROBLEM_CHARS_MAX,
    TOLD_MAX,
    PlanTurn,
    Turns,
    after,
    own_id,
    pack_turns,
    parse_turns,
    plan_key,
    plan_of,
    planned_id,
)
from pool.errors import (
    ConfigError,
    InboxFull,
    InvalidKey,
    InvalidOption,
    NoSuchJob,
    NoSuchPlan,
    PlanRefused,
    PoolError,
    StoreLost,
    StoreUnavailable,
)
from pool.events import PlanConflicted, PlanFailed, PlanHeld, PlanTurned
from pool.jobs.client import plans
from pool.jobs.client.job_client import JobClient
from pool.jobs.client.options import DispatchOptions
from pool.jobs.client.plans import Comparing, PlanKeeper
from pool.jobs.client.requests import Requests
from pool.names import KEY_BYTES_MAX
from pool.plans import Planned, PlanRef, PlanStatus, StopAll
from pool.schedules import Every
from tests.ops.facts import record

if TYPE_CHECKING:
    from tests.nodes import Fleet

pytestmark = pytest.mark.anyio

LONG_S = 3600.0  # turns are taken when a test asks for one
ASK_S = 60.0
UP_S = 61.0  # as nobody else waits
# No lease is lost on a busy machine: what begins again for that would be counted here.
PATIENT: dict[str, Any] = {"lease_ttl_s": 30.0, "op_timeout_s": 10.0}


@attrs.define
class World:
    """What the producer answers, and what runs."""

    answer: Any = ()
    running: dict[str, Any] = attrs.field(factory=dict)
    begun: list[tuple[str, Any]] = attrs.field(factory=list)
    asked: int = 0


def house(world: World, *, version: int = 1, **options: Any) -> Handlers:
    """Return handlers with a plan, whose producer answers what the test says."""
    handlers = Handlers()

    @handlers.service("follow")
    async def follow(job: Job, url: str = "") -> None:
        world.running[job.key] = url
        world.begun.append((job.key, url))
        try:
            await anyio.sleep_forever()
        finally:
            del world.running[job.key]

    @handlers.plan("feeds", follow, every_s=LONG_S, version=version, **options)
    async def feeds(job: Job) -> Any:
        world.asked += 1
        answer = world.answer(job) if callable(world.answer) else world.answer
        return [each async for each in answer] if hasattr(answer, "__aiter__") else answer

    return handlers


async def kept(node: Node) -> PlanStatus:
    """Wait until the plan is kept, and has taken a turn."""
    with anyio.fail_after(ASK_S):
        while True:
            try:
                return await node.plan("feeds").apply(ASK_S)
            except NoSuchPlan:
                await anyio.sleep(0.01)


async def turn(node: Node, world: World, *answer: Any) -> PlanStatus:
    world.answer = answer
    return await node.plan("feeds").apply(ASK_S)


async def until(is_so: Callable[[], object]) -> None:
    with anyio.fail_after(ASK_S):
        while not is_so():  # noqa: ASYNC110 - of what another task or thread has done
            await anyio.sleep(0.01)


async def test_what_a_plan_starts_and_stops_is_told(fleet: Fleet) -> None:
    world = World()
    node = await fleet.node(house(world), **PATIENT)
    status = await kept(node)
    assert (status.plan, status.state, status.version) == ("feeds", "running", 1)
    assert status.owner == fleet.workers(node)[0].id + ".1"
    assert await node.plans() == ["feeds"]
    await turn(node, world, "a", "b")
    await node.dispatch("follow", "others")
    world.answer = ("b", Call("others", "x"), "c")
    diff = await node.plan("feeds").diff(ASK_S)
    assert (diff.wanted, diff.kept, diff.start_keys, diff.stop_keys) == (3, 1, ("c",), ("a",))
    assert (diff.replaces, diff.taken_keys, diff.is_held, diff.token) == (0, ("others",), False, "")
    await until(lambda: set(world.running) == {"a", "b", "others"})  # nothing has changed
    world.answer = ()
    diff = await node.plan("feeds").diff(ASK_S)
    assert (diff.is_held, diff.stops) == (True, 2)
    assert (await node.plan("feeds").confirm(diff.token, ASK_S)).last.stopped == 2


async def test_a_dry_run_of_what_is_paused_is_refused_and_none_is_left_behind(
    fleet: Fleet,
) -> None:
    node = await fleet.node(house(World()), **PATIENT)
    await kept(node)
    await node.pause(reason="a test")
    await until(lambda: fleet.wiring(node).context.roster.asked.pauses)
    with pytest.raises(PlanRefused, match="the whole pool is paused: a test"):
        await node.plan("feeds").diff(ASK_S)
    fleet.wiring(node).context.roster.asked = Asked()  # it has not heard of it yet
    with pytest.raises(TimeoutError):
        await node.plan("feeds").diff(0.2)

    async def is_none_left() -> bool:
        return not (await node.jobs(prefix="plan:feeds:diff")).jobs

    await fleet.until(is_none_left)
    await node.resume()


@pytest.mark.parametrize("lanes", [1, 4])
async def test_jobs_are_started_stopped_and_replaced_as_the_producer_says(
    fleet: Fleet, lanes: int
) -> None:
    world = World()
    node = await fleet.node(house(world), lanes=lanes, **PATIENT)
    await kept(node)
    last = (await turn(node, world, "a", Call("b", "x"), Planned("follow", "c"))).last
    assert (last.started, last.kept, last.wanted, last.problem) == (3, 0, 3, "")
    await until(lambda: world.running == {"a": "", "b": "x", "c": ""})
    last = (await turn(node, world, "a", Call("b", "y"))).last
    assert (last.started, last.kept, last.replaced, last.stopped) == (0, 1, 1, 1)
    await until(lambda: world.running == {"a": "", "b": "y"})
    assert world.begun.count(("a", "")) == 1  # what stays as it was goes on
    await fleet.seen(PlanTurned, times=2)
    turned = fleet.all_seen(PlanTurned)
    assert [(e.started, e.replaced, e.stopped) for e in turned] == [(3, 0, 0), (0, 1, 1)]


async def test_a_key_that_comes_back_begins_at_once(fleet: Fleet) -> None:
    world = World()
    node = await fleet.node(house(world, stop_max=1.0), **PATIENT)
    await kept(node)
    for _ in range(3):  # each run of it has an id of its own, though all are remembered
        assert (await turn(node, world, "a", "b")).last.ended == 0
        await until(lambda: world.running == {"a": "", "b": ""})
        assert (await turn(node, world, "a")).last.stopped == 1
        assert world.running == {"a": ""}
    assert world.begun.count(("b", "")) == 3


async def test_keys_that_come_back_are_looked_at_together(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, keys = World(), "abcdefgh"
    node = await fleet.node(house(world, stop_max=1.0), **PATIENT)
    await kept(node)
    await turn(node, world, "kept", *keys)
    await turn(node, world, "kept")
    look, looking, all_do = JobClient.look, list[str](), anyio.Event()

    async def looked(client: JobClient, key: str, job_id: str, *more: Any) -> Any:
        looking.append(key)
        if len(looking) == len(keys):
            all_do.set()
        await all_do.wait()
        return await look(client, key, job_id, *more)

    with monkeypatch.context() as patch:
        patch.setattr(JobClient, "look", looked)
        assert (await turn(node, world, "kept", *keys)).last.started == len(keys)


async def test_jobs_of_others_are_never_touched(fleet: Fleet) -> None:
    world = World()
    node = await fleet.node(house(world), **PATIENT)
    await kept(node)
    others = [await node.dispatch("follow", key, "mine") for key in ("other", "taken")]
    await until(lambda: len(world.running) == 2)
    last = (await turn(node, world, "a", "taken")).last
    assert (last.started, last.taken, last.taken_keys) == (1, 1, ("taken",))
    await fleet.seen(PlanConflicted, plan="feeds", key="taken")
    world.answer = StopAll()
    assert (await node.plan("feeds").apply(ASK_S)).last.stopped == 1
    assert world.running == {"other": "mine", "taken": "mine"}
    assert [(await ref.status()).state for ref in others] == ["running", "running"]


async def test_an_answer_that_would_stop_too_much_is_held_until_confirmed(fleet: Fleet) -> None:
    world = World()
    node = await fleet.node(house(world), **PATIENT)
    await kept(node)
    plan = node.plan("feeds")
    await turn(node, world, *"abcd")
    await until(lambda: len(world.running) == 4)
    assert (await turn(node, world, *"ab")).last.held == 0  # half of them it may
    await until(lambda: len(world.running) == 2)
    await turn(node, world, *"abcd")
    held = (await turn(node, world, "a", "new")).last
    assert (held.held, held.started, held.stopped, set(held.held_keys)) == (3, 0, 0, set("bcd"))
    await until(lambda: len(world.running) == 4)
    # What was confirmed are those stops, and not others.
    world.answer = ("b",)
    other = (await plan.confirm(held.token, ASK_S)).last
    assert (other.held, other.stopped) == (3, 0)
    assert other.token != held.token
    world.answer = ("a", "new")
    done = (await plan.confirm(held.token, ASK_S)).last
    assert (done.held, done.stopped, done.started) == (0, 3, 1)
    await until(lambda: set(world.running) == {"a", "new"})
    await fleet.seen(PlanHeld, times=2)
    told = [e.token for e in fleet.all_seen(PlanHeld)]
    assert told == [held.token, other.token]


async def test_a_confirmation_that_comes_again_confirms_nothing_more(fleet: Fleet) -> None:
    world = World()
    node = await fleet.node(house(world), **PATIENT)
    await kept(node)
    await turn(node, world, "a", "b", "c")
    # As who keeps the plan is told anew, if it died when this was done and not yet off the table.
    for answer in (("a",), ()):
        world.answer, asked = answer, world.asked
        await node.notify(plan_key("feeds"), {"id": "once", "token": ANYTHING})
        await until(lambda: world.asked > asked)  # noqa: B023 - it is waited for here
    last = (await node.plan("feeds").apply(ASK_S)).last
    assert (last.held, last.asked) == (1, 1)
    await until(lambda: world.running == {"a": ""})


@attrs.define
class Gate:
    """A producer that stands still, once it is closed."""

    world: World
    opened: anyio.Event = attrs.field(factory=anyio.Event)
    begun: int = 0

    async def answer(self) -> AsyncIterator[Any]:
        self.begun += 1
        await self.opened.wait()
        for each in self.answers.pop(0) if self.answers else ():
            if isinstance(each, Exception):
                raise each
            yield each

    answers: list[tuple[Any, ...]] = attrs.field(factory=list)

    def close(self, *answers: tuple[Any, ...]) -> None:
        """Give these answers, one a turn, once it is opened."""
        self.begun, self.opened, self.answers = 0, anyio.Event(), list(answers)
        self.world.answer = lambda _: self.answer()


async def standing(fleet: Fleet, node: Node, count: int) -> None:
    """Wait until so many requests stand in the inbox."""
    context, key = fleet.wiring(node).context, plan_key("feeds")
    inbox = context.lane_of(key).lane.names.inbox(key)

    async def stand() -> bool:
        return bool(await context.pipeline.execute("LLEN", inbox) == count)

    await fleet.until(stand)


async def test_all_who_ask_before_a_turn_begins_share_it_and_are_told_of_it(fleet: Fleet) -> None:
    world = World()
    node, gate = await fleet.node(house(world), **PATIENT), Gate(world)
    await kept(node)
    plan, told, given_up = node.plan("feeds"), dict[int, PlanStatus](), 5
    await turn(node, world, "a", "b", "c")
    token = (await turn(node, world, "a")).last.token

    async def ask(number: int) -> None:
        told[number] = await (plan.confirm(token, ASK_S) if number == 9 else plan.apply(ASK_S))

    before = (await plan.status()).last.number
    gate.close((RuntimeError("no list"),), ("a",), ("a", "d"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask, 0)
        await until(lambda: gate.begun == 1)
        for number in range(1, 40):
            tasks.start_soon(ask, number)
        await standing(fleet, node, 40)  # that of the turn under way is there until it is saved
        for _ in range(given_up):
            with pytest.raises(TimeoutError, match="stays asked for"):
                await plan.apply(0)
        await standing(fleet, node, 40 + given_up)
        gate.opened.set()
    assert gate.begun == 2
    # The first was told of the turn that failed, the others of the next one.
    assert (told[0].last.number, told[0].last.asked) == (before + 1, 1)
    assert "no list" in told[0].last.problem
    assert {each.last for n, each in told.items() if n} == {told[1].last}
    shared = told[1].last
    assert (shared.number, shared.asked, shared.stopped) == (before + 2, 39 + given_up, 2)
    last = (await plan.apply(ASK_S)).last
    assert (last.number, last.started, last.asked) == (before + 3, 1, 1)


async def test_who_looks_late_is_told_of_the_turn_that_answered(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    node = await fleet.node(house(world), **PATIENT)
    await kept(node)
    look, held_up, looked = plans._look, anyio.Event(), anyio.Event()

    async def late(*args: Any) -> Any:
        if not looked.is_set():
            looked.set()
            await held_up.wait()
        return await look(*args)

    told = list[PlanStatus]()

    async def ask() -> None:
        told.append(await node.plan("feeds").apply(ASK_S))

    world.answer, asked = raises, world.asked
    monkeypatch.setattr(plans, "_look", late)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await looked.wait()
        await until(lambda: world.asked > asked)
        for _ in range(3):
            await turn(node, world, "a")
        held_up.set()
    assert "the list is on fire" in told[0].last.problem
    assert told[0].last.asked == 1


async def test_more_than_an_inbox_takes_wait_or_are_told_so(fleet: Fleet) -> None:
    world = World()
    node, gate = await fleet.node(house(world), messages_max=4, **PATIENT), Gate(world)
    await kept(node)
    gate.close()
    plan = node.plan("feeds")
    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(plan.apply, ASK_S)
        await standing(fleet, node, 4)
        await until(lambda: gate.begun)
        with pytest.raises(InboxFull):
            await plan.apply(0.2)
        for _ in range(8):
            tasks.start_soon(plan.apply, ASK_S)
        await anyio.wait_all_tasks_blocked()
        gate.opened.set()


async def test_a_plan_of_ones_own_is_there_as_soon_as_the_node_is_open(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, see_to, asked = PlanRef._request, plans._see_to, anyio.Event()

    async def requested(*args: Any) -> Any:
        try:
            return await request(*args)
        finally:
            asked.set()

    async def seen_to(*args: Any) -> None:
        await asked.wait()
        await see_to(*args)

    monkeypatch.setattr(PlanRef, "_request", requested)
    monkeypatch.setattr(plans, "_see_to", seen_to)
    node = await fleet.node(house(World(answer=("a",))), **PATIENT)
    assert (await node.plan("feeds").apply(ASK_S)).last.wanted == 1


async def test_who_asks_while_the_plan_begins_anew_is_answered(fleet: Fleet) -> None:
    world = World()
    node, gate = await fleet.node(house(world), **PATIENT), Gate(world)
    await kept(node)
    gate.close()
    told = list[PlanStatus]()

    async def ask() -> None:
        told.append(await node.plan("feeds").apply(ASK_S))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await until(lambda: gate.begun)
        before = (await node.job(plan_key("feeds"))).job_id
        # As a later version takes it over: what was asked of the job before has ended with it.
        client = node.plan("feeds")._opened()
        replace = client.admitting("feeds:plan", DispatchOptions(if_exists="replace"))
        client.dispatcher.admit([replace.admission(plan_key("feeds"), (), {}, is_plans=True)])
        gate.opened.set()
        world.answer = ("a",)
    assert (await node.job(plan_key("feeds"))).job_id != before
    assert told[0].last.wanted == 1


def limits(monkeypatch: pytest.MonkeyPatch) -> list[anyio.CancelScope]:
    """Return the scopes of who waits for UP_S, the newest last: a test says when time is up."""
    made, found = anyio.move_on_after, list[anyio.CancelScope]()

    def limited(delay: float | None, *args: Any, **more: Any) -> anyio.CancelScope:
        scope = made(delay, *args, **more)
        if delay == UP_S:
            found.append(scope)
        return scope

    monkeypatch.setattr(anyio, "move_on_after", limited)
    return found


FULL = InboxFull(key="plan:feeds", messages=1, messages_max=1)


@pytest.mark.parametrize("refused", [FULL, NoSuchJob(key="plan:feeds")], ids=["full", "none"])
async def test_what_is_under_way_when_time_is_up_may_be_asked_for(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, refused: PoolError
) -> None:
    """It stands, and may be carried out: that nothing was asked for would be a lie."""
    world, errors, notify = World(), [refused], Requests.notify
    node, gate = await fleet.node(house(world), **PATIENT), Gate(world)
    await kept(node)

    async def notified(*args: Any) -> Any:
        if errors:
            raise errors.pop()
        await notify(*args)
        waits[-1].cancel()
        await anyio.sleep_forever()  # its answer comes too late

    gate.close(())
    with monkeypatch.context() as patch:
        waits = limits(patch)
        patch.setattr(Requests, "notify", notified)
        with pytest.raises(TimeoutError, match="may be asked for"):
            await node.plan("feeds").confirm(timeout_s=UP_S)
    await standing(fleet, node, 1)
    gate.opened.set()


async def test_a_store_that_does_not_answer_takes_nobody_longer_than_his_time(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await fleet.node(house(World()), **PATIENT)
    await kept(node)
    late, came, gone = anyio.Event(), list[str](), list[str]()

    async def hang(self: Any, *args: Any, **more: Any) -> Any:
        came.append(type(self).__name__)
        try:
            await late.wait()
        finally:
            gone.append(type(self).__name__)
        raise StoreUnavailable(problem="a test", maybe_done=False)

    monkeypatch.setattr(Requests, "notify", hang)
    monkeypatch.setattr(JobClient, "request_stop", hang)
    with anyio.fail_after(ASK_S):
        with pytest.raises(TimeoutError, match="may be asked for, or taken"):
            await node.plan("feeds").apply(0.1)
        with pytest.raises(TimeoutError, match="may be asked for, or taken"):
            await node.plan("feeds").confirm(timeout_s=0.1)
        assert gone == ["Requests"] * 2
        monkeypatch.setattr(plans, "_look", partial(hang, None))
        with pytest.raises(TimeoutError, match="its store has not answered"):
            await node.plan("feeds").diff(0.1)
        monkeypatch.undo()
        monkeypatch.setattr(JobClient, "request_stop", hang)
        await node.pause()
        await until(lambda: fleet.wiring(node).context.roster.asked.pauses)
        fleet.wiring(node).context.roster.asked = Asked()  # it has not heard of it yet
        with pytest.raises(TimeoutError):
            await node.plan("feeds").diff(0.1)
        await until(lambda: came[-1] == "JobClient")
        assert gone[-1] != "JobClient"
    late.set()
    await node.resume()


async def test_a_plan_that_went_with_the_data_of_its_pool_is_not_said_to_be_none(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker has not announced itself anew; who asked is told of the loss, as by any wait."""
    node = await fleet.node(house(World()), **PATIENT)
    client = await fleet.node(**PATIENT)
    await kept(node)
    state = fleet.wiring(client).context.lane_of(plan_key("feeds"))

    async def lost(self: Requests, key: str, *_: Any) -> Any:
        if is_lost:
            state.lane = attrs.evolve(state.lane, generation="another")
        raise NoSuchJob(key=key)

    monkeypatch.setattr(Requests, "notify", lost)
    monkeypatch.setattr(plans, "_versions", lambda *_: [])
    is_lost = False
    with pytest.raises(NoSuchPlan):
        await client.plan("feeds").apply(ASK_S)
    is_lost, before = True, state.lane
    with pytest.raises(StoreLost):
        await client.plan("feeds").apply(ASK_S)
    state.lane = before


async def test_what_ended_with_the_job_that_was_asked_may_have_been_done(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is answered by the next one."""
    node, notify = await fleet.node(house(World()), **PATIENT), Requests.notify
    await kept(node)
    waits, tries = limits(monkeypatch), list[PoolError | None]()

    async def notified(*args: Any) -> Any:
        if error := tries.pop():
            if not tries:
                waits[-1].cancel()
            raise error
        return "ended", (await notify(*args))[1]

    monkeypatch.setattr(Requests, "notify", notified)
    tries[:] = FULL, None
    with pytest.raises(TimeoutError, match="may be asked for, or taken"):
        await node.plan("feeds").apply(UP_S)
    tries[:] = StoreUnavailable(problem="a test", maybe_done=False), None
    with pytest.raises(StoreUnavailable) as failed:
        await node.plan("feeds").apply(UP_S)
    assert failed.value.maybe_done


async def test_whatever_was_confirmed_is_not_to_a_later_version(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has seen what its first answer would stop: it is held, and told by its own token."""
    old, new, keys = World(), World(answer=()), set("abc")
    first = await fleet.node(house(old), **PATIENT)
    await kept(first)
    await turn(first, old, *keys)
    stop, stopping, told = PlanKeeper._stop, anyio.Event(), list[PlanStatus]()

    async def stopped(keeper: PlanKeeper, *args: Any) -> Any:
        if keeper.comparing.producer.version == 1:
            stopping.set()
            await anyio.sleep_forever()  # until it is replaced
        return await stop(keeper, *args)

    async def confirm() -> None:
        told.append(await first.plan("feeds").confirm(timeout_s=ASK_S))

    monkeypatch.setattr(PlanKeeper, "_stop", stopped)
    old.answer = ("a",)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(confirm)
        await stopping.wait()
        await fleet.node(house(new, version=2), **PATIENT)
    assert (told[0].version, told[0].last.held, told[0].last.stopped) == (2, 3, 0)
    assert told[0].last.token
    assert all(fleet.record(key) for key in keys)


def test_a_turn_of_before_a_loss_answers_nobody() -> None:
    """Numbers of requests may be lower then: turns that answered lost ones count no more."""
    turns = Turns().then(PlanTurn(number=1, asked=1), 100, [])
    turns = turns.then(PlanTurn(number=2, asked=1), 200, [])
    turns = turns.then(PlanTurn(number=3), 0, [])
    assert turns.answer(150, "") == PlanTurn(number=2, asked=1)
    turns = turns.then(PlanTurn(number=4, asked=1), 120, [])
    assert turns.answer(100, "") == PlanTurn(number=1, asked=1)
    assert turns.answer(120, "") == PlanTurn(number=4, asked=1)
    assert turns.answer(150, "") is None


def test_what_is_remembered_of_turns_is_bounded_and_read_as_it_was() -> None:
    turns = Turns()
    for number in range(1, 200):
        turns = turns.then(PlanTurn(number=number, asked=2), 10 * number, [f"c{number}"])
    turns = turns.then(PlanTurn(number=200), 0, [])
    assert parse_turns(pack_turns(turns)) == turns
    assert len(turns.asked) == ANSWERED_MAX
    found = turns.answer(10 * 190 - 5, "nobody")
    assert found is not None
    assert found.number == 190
    again = turns.answer(10**6, "c190")  # it was sent twice: what counts is what it did
    assert again is not None
    assert again.number == 190
    early = turns.answer(10, "c1")  # and forgotten: the earliest of those behind it
    assert early is not None
    assert early.number == 199 - ANSWERED_MAX + 1
    assert turns.answer(10 * 199 + 1, "new") is None
    long = PlanTurn(number=1, asked=1, held_keys=("k" * 512,) * 20)
    for number in range(5):
        turns = turns.then(attrs.evolve(long, number=300 + number), 3000 + number, [])
    assert len(turns.asked) == 1
    assert turns.last.number == 304
    assert parse_turns({"asked": [7, ["x", {}], [1]], "confirmed": 3, "last": []}) == Turns()
    keys = ('"' * KEY_BYTES_MAX,) * TOLD_MAX  # as long as they can be where they stand
    most = attrs.evolve(long, held_keys=keys, taken_keys=keys, problem='"' * PROBLEM_CHARS_MAX)
    many = [f"{number:0{ID_CHARS_MAX}}" for number in range(CONFIRMED_MAX)]
    for number in range(3):
        turns = turns.then(attrs.evolve(most, number=400 + number), 4000 + number, many)
    assert len(encode_value(pack_turns(turns))) < 128 * 1024


async def test_turns_are_saved_whatever_a_state_may_take(fleet: Fleet) -> None:
    """What cannot be saved is taken again and again, and answers nobody."""
    node = await fleet.node(house(World(answer=("a",))), state_bytes_max=1, **PATIENT)
    before = (await kept(node)).last.number
    await node.notify(plan_key("feeds"), {"id": "x" * 10_000, "token": "t"})
    assert (await node.plan("feeds").apply(ASK_S)).last.number > before
    context, key = fleet.wiring(node).context, plan_key("feeds")
    saved = await context.pipeline.execute("HGET", context.lane_of(key).lane.names.checkpoints, key)
    assert len(saved) < 1000


async def test_an_empty_answer_stops_nothing_unless_it_is_told_to(fleet: Fleet) -> None:
    world = World()
    node = await fleet.node(house(world, stop_max=1.0), **PATIENT)
    await kept(node)
    await turn(node, world, "a")
    await until(lambda: world.running)
    assert (await turn(node, world)).last.held == 1
    assert world.running
    assert (await node.plan("feeds").confirm(timeout_s=ASK_S)).last.stopped == 1
    assert not world.running
    assert (await turn(node, world)).last.held == 0  # there is nothing to be stopped


def twice(_: Job) -> list[str]:
    return ["a", "b", "a"]


def nobodys(_: Job) -> list[Any]:
    return [Planned("nobody_has_it", "k")]


def too_large(_: Job) -> list[Any]:
    return [Call("k", "x" * 10_000_000)]


def no_key(_: Job) -> list[Any]:
    return ["a", 7]


def bad_key(_: Job) -> list[Any]:
    return ["a\n"]


def text(_: Job) -> str:
    return "abc"


def raises(_: Job) -> list[Any]:
    raise RuntimeError("the list is on fire")


def both(_: Job) -> list[Any]:
    return ["a", StopAll()]


def own(job: Job) -> list[Any]:
    return [job.key]


async def fails_late(_: Job) -> AsyncIterator[str]:
    yield "before"
    yield "new"
    raise RuntimeError("the rest is missing")


def wrong(_: Job) -> list[Any]:
    return [Call("k", nothing=1)]


UNUSABLE = (
    (twice, "it is there twice"),
    (nobodys, "no node has registered 'nobody_has_it'"),
    (too_large, "POOLTOOLARGE"),
    (no_key, "7 is neither a key nor"),
    (bad_key, "POOLKEY"),
    (text, "it returned abc, and not an iterable of keys"),
    (raises, "RuntimeError: the list is on fire"),
    (fails_late, "RuntimeError: the rest is missing"),
    (both, "StopAll() stands alone"),
    (own, "'plan:feeds': [POOLKEY]"),
    (wrong, "POOLARGUMENTS"),
)


async def test_what_cannot_be_changes_nothing(fleet: Fleet) -> None:
    world, problems = World(), list[str]()
    node = await fleet.node(house(world), **PATIENT)
    await kept(node)
    await turn(node, world, "before")
    await until(lambda: world.running)
    for answer, said in UNUSABLE:
        world.answer = answer
        last = (await node.plan("feeds").apply(ASK_S)).last
        assert said in last.problem
        assert (last.started, last.stopped, last.held) == (0, 0, 0)
        problems.append(last.problem)
        with pytest.raises(PlanRefused, match="POOLPLAN"):
            await node.plan("feeds").diff(ASK_S)
    await fleet.seen(PlanFailed, times=len(problems))
    assert [e.problem for e in fleet.all_seen(PlanFailed)] == problems
    assert world.begun == [("before", "")]
    assert set(world.running) == {"before"}


def leaves_open(_: Job) -> AsyncIterator[str]:
    async def answer() -> AsyncIterator[str]:
        anyio.CancelScope().__enter__()
        yield "a"

    return answer()


async def test_a_dry_run_of_what_leaves_a_scope_open_is_refused_and_leaves_nothing(
    fleet: Fleet,
) -> None:
    world = World()
    node = await fleet.node(house(world), **PATIENT)
    await kept(node)
    world.answer = leaves_open
    said = "its producer failed: RuntimeError: it left a cancel scope or a task group open"
    for _ in range(2):
        with pytest.raises(PlanRefused, match=said):
            await node.plan("feeds").diff(ASK_S)
    assert said in (await node.plan("feeds").apply(ASK_S)).last.problem
    assert not (await node.parked.list()).jobs


async def test_a_handler_of_no_entry_and_too_many_keys_are_refused(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    handlers = house(world)
    handlers.plan("bare", every_s=LONG_S)(lambda _: ["a"])
    node = await fleet.node(handlers, **PATIENT)
    await kept(node)
    with pytest.raises(PlanRefused, match=r"use Planned\(...\)"):
        await node.plan("bare").diff(ASK_S)
    monkeypatch.setattr(plans, "KEYS_MAX", 3)
    assert "over 3 keys" in (await turn(node, world, *"abcd")).last.problem
    assert (await turn(node, world, *"abc")).last.started == 3


FORMS: list[Any] = []


@FORMS.append
def plain(job: Job) -> list[str]:
    return ["x-" + job.key]


@FORMS.append
def plain_generator(job: Job) -> Iterator[str]:
    yield from ("x-" + job.key for _ in range(1))


@FORMS.append
async def coroutine(job: Job) -> set[str]:
    return {"x-" + job.key}


@FORMS.append
async def async_generator(job: Job) -> AsyncIterator[str]:
    yield "x-" + job.key


@FORMS.append
def lazy(job: Job) -> Iterator[str]:
    return map(str, ["x-" + job.key])


async def test_a_producer_may_have_any_form(fleet: Fleet) -> None:
    world = World()
    handlers = house(world)
    for form in FORMS:
        assert handlers.plan(form.__name__, "follow", every_s=LONG_S)(form) is form
    await fleet.node(handlers, **PATIENT)
    wanted = {f"x-plan:{form.__name__}" for form in FORMS}
    await until(lambda: set(world.running) == wanted)


async def test_a_producer_that_hangs_changes_nothing_and_is_not_called_again(fleet: Fleet) -> None:
    world, gate, hangs = World(), threading.Event(), threading.Event()
    handlers = Handlers()

    @handlers.service("follow")
    async def follow(job: Job) -> None:
        await anyio.sleep_forever()

    @handlers.plan("feeds", follow, every_s=LONG_S, timeout_s=0.3)
    def feeds(_: Job) -> list[str]:
        world.asked += 1
        if hangs.is_set():
            gate.wait(ASK_S)
        return ["a"]

    node = await fleet.node(handlers, **PATIENT)
    await kept(node)
    plan = node.plan("feeds")
    with anyio.fail_after(ASK_S):
        while (await plan.apply(ASK_S)).last.problem:  # on a busy machine
            pass
    hangs.set()
    try:
        assert "has not answered within 0.3 s" in (await plan.apply(ASK_S)).last.problem
        asked = world.asked
        last = (await plan.apply(ASK_S)).last
        assert "has not returned" in last.problem
        assert (last.stopped, world.asked) == (0, asked)
    finally:
        hangs.clear()
        gate.set()
    with anyio.fail_after(ASK_S):
        while (await plan.apply(ASK_S)).last.problem:
            pass


async def test_what_was_parked_is_not_begun_again_and_is_told(fleet: Fleet) -> None:
    world = World()
    handlers = house(world)

    @handlers.job("broken")
    async def broken(job: Job) -> None:
        world.begun.append((job.key, ""))
        raise Park("it cannot work")

    node = await fleet.node(handlers, **PATIENT)
    await kept(node)
    await turn(node, world, Planned(broken, "k"))
    await until(lambda: fleet.record("k") is None and world.begun)
    for _ in range(3):
        last = (await turn(node, world, Planned(broken, "k"))).last
        assert (last.ended, last.started) == (1, 0)
    assert world.begun == [("k", "")]


async def test_who_takes_a_plan_over_knows_what_to_stop(fleet: Fleet) -> None:
    world = World()
    first = await fleet.node(house(world), **PATIENT)
    await kept(first)
    await turn(first, world, "a", "b", "c")
    # As a call of a former owner that came late: a job of the plan of which it knows nothing.
    client = first.plan("feeds")._opened()
    late = client.admitting("follow", DispatchOptions()).admission("late", (), {})
    late.id = planned_id("feeds", "0123456789abcdef")
    client.dispatcher.admit([late])
    await until(lambda: len(world.running) == 4)
    before = (await first.plan("feeds").status()).last
    world.answer = ("a", "b")
    # The plan moves when the second comes, or when the first leaves: to who never kept it.
    second = await fleet.node(house(world), **PATIENT)
    await fleet.leave(first)
    last = (await kept(second)).last
    assert last.number > before.number
    await until(lambda: set(world.running) == {"a", "b"})


async def test_the_latest_version_of_a_producer_keeps_the_plan(fleet: Fleet) -> None:
    old, new = World(answer=("a",)), World(answer=("b",))
    first = await fleet.node(house(old, stop_max=1.0), **PATIENT)
    await kept(first)
    second = await fleet.node(house(new, version=2), **PATIENT)

    async def has_moved() -> bool:
        return new.asked > 0 and (await second.plan("feeds").status()).version == 2

    await fleet.until(has_moved)
    asked = old.asked
    assert (await second.plan("feeds").confirm(timeout_s=ASK_S)).last.problem == ""
    await until(
        lambda: not {"a"} & {*old.running, *new.running} and "b" in {*old.running, *new.running}
    )
    await fleet.leave(second)

    async def waits() -> bool:
        return (await first.plan("feeds").status()).state == "unassigned"

    await fleet.until(waits)  # for a worker that knows it
    assert old.asked == asked


class Died(Exception):
    """In the place of the process."""


def dying(step: Callable[..., Any], armed: list[str], *, first: bool = False) -> Any:
    """Return a step after which, or before, its caller dies once."""

    async def stepped(*args: Any, **kwargs: Any) -> Any:
        if armed and first:
            raise Died(armed.pop())
        value = await step(*args, **kwargs)
        if armed:
            raise Died(armed.pop())
        return value

    return stepped


STEPS: tuple[tuple[Any, str, bool], ...] = (
    (Comparing, "walk", False),
    (Comparing, "compare", False),
    (JobClient, "request_stop", False),
    (JobRef, "stop", False),
    (PlanKeeper, "_stop", False),
    (PlanKeeper, "_start", True),
    (PlanKeeper, "_start", False),
    (Job, "_store", True),
    (Job, "_store", False),
)


async def test_a_plan_converges_whatever_step_its_owner_dies_after(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it knew is lost with it; each job begins once all the same."""
    world, armed = World(), list[str]()
    node = await fleet.node(house(world, stop_max=1.0), lanes=4, **PATIENT)
    await kept(node)
    for n, (owner, name, first) in enumerate(STEPS):
        await turn(node, world, "kept", f"a{n}", f"b{n}", f"c{n}")
        await until(lambda: len(world.running) == 4)
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, dying(getattr(owner, name), armed, first=first))
            if name == "walk":  # else only a new owner does
                patch.setattr(PlanKeeper, "_take_turn", walking(PlanKeeper._take_turn))
            armed.append(name)
            await turn(node, world, "kept", f"a{n}", Call(f"b{n}", "y"), f"d{n}")
            assert not armed
        wanted = {"kept": "", f"a{n}": "", f"b{n}": "y", f"d{n}": ""}
        await until(lambda: world.running == wanted)  # noqa: B023 - it is waited for here
        again = (await node.plan("feeds").apply(ASK_S)).last
        assert (again.kept, again.started, again.stopped, again.replaced) == (4, 0, 0, 0)
    assert sorted(world.begun) == sorted(set(world.begun))


async def test_who_asks_while_a_turn_is_taken_whose_owner_dies_is_answered(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saving that turn took the request with it, of which it knew nothing."""
    begun, gate, armed = anyio.Event(), anyio.Event(), list[str]()

    async def slow() -> AsyncIterator[str]:
        begun.set()
        await gate.wait()
        yield "a"

    world = World(answer=lambda _: slow())
    node = await fleet.node(house(world), **PATIENT)
    turns = list[PlanStatus]()

    async def ask() -> None:
        turns.append(await node.plan("feeds").apply(ASK_S))

    await begun.wait()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        run = fleet.workers(node)[0].runs[plan_key("feeds")]
        await until(lambda: run.inbox and (run.inbox._last or run.inbox._is_behind))
        await anyio.wait_all_tasks_blocked()
        monkeypatch.setattr(Job, "_store", dying(Job._store, armed))
        armed.append("_store")
        gate.set()
    assert not armed
    assert turns[0].last.number > 1
    assert turns[0].last.kept == 1


def walking(take_turn: Callable[..., Any]) -> Any:
    async def taken(self: PlanKeeper, *args: Any) -> Any:
        self._had = None
        return await take_turn(self, *args)

    return taken


def test_what_a_plan_is_called_and_how_often_it_is_asked_is_checked() -> None:
    handlers = Handlers()
    for name in ("a:b", "x" * 65, "", "a b"):
        with pytest.raises(ConfigError):
            handlers.plan(name)
    with pytest.raises(InvalidOption):
        handlers.plan("a", every_s=0)
    with pytest.raises(InvalidOption):
        handlers.plan("a", stop_max=1.5)
    with pytest.raises(ConfigError):
        handlers.plan("a", "no name")
    with pytest.raises(ConfigError):
        handlers.plan("a")(7)  # type: ignore[type-var]


async def test_no_job_of_a_callers_is_taken_for_a_plans(fleet: Fleet) -> None:
    node = await fleet.node(house(World()), **PATIENT)
    for options in (node.options, Call("k").identified):
        with pytest.raises(InvalidOption, match="'plan:', by which a plan knows its own jobs"):
            options(job_id="plan:feeds:0123456789abcdef")
    assert (await node.job("k", "plan:feeds:0123456789abcdef")).job_id  # to be looked at, it may
    mine = planned_id("feeds", "0123456789abcdef")
    for job_id in (mine, after(mine, 7), after(after(mine, 7), 8)):
        assert plan_of(job_id) == "feeds"
        assert own_id("feeds", record("running", id=job_id)) == mine
        assert own_id("feed", record("running", id=job_id)) == ""
    # Schedules may be called as they like: their jobs are none of a plan's.
    for name in ("plan:feeds:0123456789abcdef", "plan:feeds:x"):
        for job_id in (f"{name}@2026-03-29T01:00:00Z", f"{name}@trigger-0123"):
            assert own_id("feeds", record("running", id=job_id)) == ""


async def test_the_key_of_a_plans_own_job_is_nobody_elses(fleet: Fleet) -> None:
    """What waited behind it would follow it, and the plan would end without a word."""
    handlers = house(World())
    node, key = await fleet.node(handlers, **PATIENT), plan_key("feeds")
    status = await kept(node)
    waits = node.options(if_exists="queue")

    places: list[Callable[[], Any]] = [
        lambda: waits.dispatch("follow", key),
        lambda: node.options(if_exists="replace").dispatch("feeds:plan", key),
        lambda: node.dispatch("feeds:diff", key + ":diff:mine"),
        lambda: waits.schedule("s", Every(60), "follow", key),
        lambda: node.options(then=[Follower("follow", key)]).dispatch("follow", "first"),
    ]
    for place in places:
        with pytest.raises(InvalidKey, match="'plan:' are of the jobs that keep plans"):
            await place()
    with pytest.raises(InvalidKey):
        handlers.schedule(Every(60), key=key)
    with pytest.raises(InvalidKey):
        Planned("follow", key)
    [refused, accepted] = await waits.dispatch_many("follow", [key, "k"])
    assert isinstance(refused, InvalidKey)
    assert isinstance(accepted, JobRef)
    async with node.batch("b") as batch:
        with pytest.raises(InvalidKey):
            await batch.add("follow", [key])
    assert (await node.job(key)).key == key  # to be looked at, and stopped, it may
    assert (await node.plan("feeds").status()).last.epoch == status.last.epoch


async def test_where_only_an_earlier_version_is_left_it_is_said(fleet: Fleet) -> None:
    new = await fleet.node(house(World(), version=2), **PATIENT)
    await kept(new)
    await fleet.leave(new)
    old = await fleet.node(house(World()), **PATIENT)
    await fleet.knows(old, 1)
    said = r"no worker has version 2 of its producer.*only version 1.*stop the job 'plan:feeds'"
    with pytest.raises(PlanRefused, match=said):
        await old.plan("feeds").diff(ASK_S)
    with pytest.raises(TimeoutError, match="took no turn within 0.2 s.*" + said):
        await old.plan("feeds").apply(0.2)
    client = await fleet.node(observers=(), **PATIENT)
    await fleet.leave(old)
    await fleet.knows(client, 0)
    with pytest.raises(TimeoutError, match=r"no worker has version 2.*none is there: deploy"):
        await client.plan("feeds").apply(0.2)


async def test_there_may_be_no_such_plan(fleet: Fleet) -> None:
    node = await fleet.node(**PATIENT)
    for ask in (node.plan("x").status, node.plan("x").diff, node.plan("x").apply):
        with pytest.raises(NoSuchPlan):
            await ask()
    assert await node.plans() == []


async def test_a_plan_of_included_handlers_has_their_prefix(fleet: Fleet) -> None:
    world, outer = World(answer=("a",)), Handlers()
    outer.include(house(world), prefix="eu.")
    node = await fleet.node(outer, **PATIENT)
    await fleet.until(lambda: set(world.running) == {"a"})
    assert await node.plans() == ["eu.feeds"]
    found = fleet.record("a")
    assert found is not None
    assert plan_of(found.id) == "eu.feeds"
