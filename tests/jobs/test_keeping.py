"""What a job stores while it goes on: its state, and what its steps returned."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import attrs
import pytest

from pool import Handlers, Job, Park
from pool.core.options import LIMITS, Options
from pool.core.record import letters_steps, state_of, steps_name
from pool.errors import (
    InvalidOption,
    JobParked,
    NotOwner,
    PayloadEncodingError,
    PayloadTooLarge,
    PoolError,
    StorageFull,
    TooManySteps,
    WrongLoop,
)
from pool.jobs.keeper import Step
from tests.nodes import Fleet
from tests.servers import connect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pool.redis.embedded.server import EmbeddedServer
    from tests.nodes import Diary

pytestmark = pytest.mark.anyio
FAST: dict[str, Any] = {"backoff_s": 0.001, "backoff_max_s": 0.002}


def stored(fleet: Fleet, key: str = "k") -> bytes:
    found: Any = fleet.client.hget(fleet.names.checkpoints, key)
    return state_of(found or b"")


def waiting(fleet: Fleet, key: str = "k") -> int:
    count: Any = fleet.client.llen(fleet.names.inbox(key))
    return int(count)


def called(fleet: Fleet) -> int:
    """Return how many scripts the server has run; others may use it, too."""
    info: Any = fleet.client.info("commandstats")
    return int(info["cmdstat_evalsha"]["calls"])


def taken(fleet: Fleet, key: str = "k") -> None:
    """Have the job be another's by now, as far as its owner can see."""
    text: Any = fleet.client.hget(fleet.names.jobs, key)
    fields = text.decode().split("|")
    fields[5] = str(int(fields[5]) + 1)
    fleet.client.hset(fleet.names.jobs, key, "|".join(fields))


# --- steps ----------------------------------------------------------------------------------


async def test_a_step_that_is_done_is_not_done_again(fleet: Fleet, diary: Diary) -> None:
    """Its first stored result is what every later attempt has, on whichever node."""
    mine = Handlers()

    @mine.job("pay", **FAST)
    async def pay(job: Job) -> list[Any]:
        async def charge(step: Step) -> tuple[str, int]:
            diary.note("charged", step.key)
            return job.node_id, job.attempt

        paid = await job.once("charge", charge)
        diary.note("paid", paid, job.is_recovered)
        if job.attempt < 4:
            raise OSError("afterwards")
        return [paid, job.attempt]

    for _ in range(2):
        await fleet.node(mine)
    node = await fleet.node()
    ref = await node.dispatch("pay", "k")
    paid, attempt = await ref.result(timeout_s=20)
    assert (paid[1], attempt) == (1, 4)
    assert [entry[0] for entry in diary.entries].count("charged") == 1
    told = [entry[1:] for entry in diary.entries if entry[0] == "paid"]
    assert told == [(paid, False)] + [(paid, True)] * 3
    assert fleet.client.hlen(fleet.names.checkpoints) == 0


async def test_a_step_that_failed_is_tried_again_under_the_same_key(
    fleet: Fleet, diary: Diary
) -> None:
    """Nothing is stored of one that raises."""
    mine = Handlers()

    @mine.job("pay", **FAST)
    async def pay(job: Job) -> str:
        async def charge(step: Step) -> str:
            diary.note(step.key)
            if job.attempt < 3:
                raise OSError("the line broke")
            return step.name

        return await job.once("charge", charge)

    node = await fleet.node(mine)
    assert await (await node.dispatch(pay, "k")).result(timeout_s=20) == "charge"
    assert len(diary.entries) == 3
    assert len(set(diary.entries)) == 1
    assert await (await node.dispatch(pay, "k")).result(timeout_s=20) == "charge"
    assert len(set(diary.entries)) == 2  # another job of the key has others


async def test_keys_of_steps_differ(fleet: Fleet, diary: Diary) -> None:
    mine = Handlers()

    @mine.job("keys")
    async def keys(job: Job) -> list[str]:
        return [await job.once(name, lambda step: step.key) for name in ("a", "b", "a")]

    node = await fleet.node(mine)
    found: list[str] = []
    for key in ("k", "l"):
        a, b, again = await (await node.dispatch(keys, key)).result(timeout_s=30)
        assert a == again
        found += (a, b)
    assert len(set(found)) == 4


async def test_two_tasks_that_ask_for_one_step_run_it_once(fleet: Fleet, diary: Diary) -> None:
    """The second waits for the first; if that fails, it is its turn."""
    mine = Handlers()

    @mine.job("both")
    async def both(job: Job, fails: int) -> list[int]:
        results: list[int] = []
        asking, all_ask = [1, 2, 3], anyio.Event()

        async def count() -> int:
            diary.note("called")
            await all_ask.wait()
            if len(diary.entries) <= fails:
                raise OSError("not yet")
            return len(diary.entries)

        async def ask() -> None:
            asking.pop()
            if not asking:
                all_ask.set()
            try:
                results.append(await job.once("count", count))
            except OSError:
                results.append(-1)

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(ask)
        return results

    node = await fleet.node(mine)
    assert await (await node.dispatch(both, "k", 0)).result(timeout_s=30) == [1, 1, 1]
    diary.entries.clear()
    assert sorted(await (await node.dispatch(both, "k", 1)).result(timeout_s=30)) == [-1, 2, 2]


async def test_a_plain_handler_has_steps_and_saves_too(fleet: Fleet, diary: Diary) -> None:
    """By way of the event loop; what it must not call from its thread says so."""
    mine = Handlers()

    @mine.job("plain", **FAST)
    def plain(job: Job) -> list[Any]:
        def charge(step: Step) -> str:
            diary.entries.append("charged")
            return step.name

        call = anyio.from_thread.run
        name = call(job.once, "charge", charge)
        call(job.save, [job.attempt])
        anyio.from_thread.run_sync(job.save_soon, [job.attempt, 2])
        with pytest.raises(WrongLoop):
            job.save_soon(3)
        if job.attempt == 1:
            raise OSError("afterwards")
        return [name, job.attempt, len(diary.entries)]

    node = await fleet.node(mine)
    assert await (await node.dispatch(plain, "k")).result(timeout_s=30) == ["charge", 2, 1]


@pytest.mark.parametrize(
    ("name", "fn", "error"),
    [
        ("", lambda: 1, InvalidOption),
        ("x" * 129, lambda: 1, InvalidOption),
        ("two\nlines", lambda: 1, InvalidOption),
        (7, lambda: 1, InvalidOption),
        ("a", 7, InvalidOption),
        ("a", object, PayloadEncodingError),
        ("a", lambda: "x" * 300, PayloadTooLarge),
        ("a", lambda: "x" * 150, PayloadTooLarge),  # with what is there
        ("third", lambda: 1, TooManySteps),
    ],
)
async def test_what_cannot_be_a_step_is_refused_in_words(
    fleet: Fleet, name: Any, fn: Any, error: type[PoolError]
) -> None:
    """And another step goes on."""
    mine = Handlers()

    @mine.job("steps")
    async def steps(job: Job) -> str:
        await job.once("first", lambda: "x" * 100)
        if name == "third":
            await job.once("second", lambda: 2)
        with pytest.raises(error) as raised:
            await job.once(name, fn)
        assert await job.once("first", lambda: "other") == "x" * 100
        return str(raised.value)[:200]

    node = await fleet.node(mine, steps_max=2, steps_bytes_max=200, result_bytes_max=290)
    said = await (await node.dispatch(steps, "k")).result(timeout_s=30)
    assert said.startswith(f"[{error.code}]")
    if error is TooManySteps:
        assert "steps_max=2" in said


async def test_a_step_of_who_lost_the_job_is_refused(fleet: Fleet, diary: Diary) -> None:
    """And its attempt ends: whatever it makes of that changes nothing."""
    fleet.is_audited = False
    mine = Handlers()

    @mine.job("pay")
    async def pay(job: Job, what: str) -> None:
        async def charge() -> str:
            taken(fleet)
            return "charged"

        try:
            if what == "step":
                await job.once("charge", charge)
            else:
                taken(fleet)
                await job.save("mine")
        except BaseException as error:
            diary.note(type(error))
            with job.ending(), pytest.raises(NotOwner):
                await job.once("other", charge)
            with pytest.raises(NotOwner):
                job.save_soon("mine")
            diary.note("over")
            raise

    node = await fleet.node(mine)
    for number, what in enumerate(("step", "save"), start=1):
        await node.dispatch(pay, "k", what)
        await diary.has("over", times=number)
        assert fleet.client.hlen(fleet.names.checkpoints) == 0
        fleet.client.hdel(fleet.names.jobs, "k")
        await fleet.until(lambda: not fleet.workers(node)[0].runs)


async def test_a_parked_job_keeps_its_steps(fleet: Fleet) -> None:
    mine = Handlers()

    @mine.job("pay")
    async def pay(job: Job) -> None:
        await job.once("charge", lambda: "charged")
        raise Park("enough")

    node = await fleet.node(mine)
    ref = await node.dispatch(pay, "k")
    with pytest.raises(JobParked):
        await ref.result(timeout_s=30)
    kept: Any = fleet.client.hgetall(fleet.names.checkpoints)
    assert kept == {letters_steps(ref.job_id, "k").encode(): b'charge\n9\n"charged"'}


@pytest.mark.parametrize("edited", [False, True])
async def test_a_replayed_job_has_the_keys_of_its_steps_unless_its_arguments_are_others(
    fleet: Fleet, diary: Diary, edited: bool
) -> None:
    """Else a provider would take the same charge for another one; and another one for the same."""
    mine = Handlers()

    @mine.job("pay")
    async def pay(job: Job, amount: int) -> int:
        async def charge(step: Step) -> None:
            diary.note(step.key)
            raise Park("its answer was lost")

        if len(diary.entries) < 3:
            await job.once("charge", charge)
        return amount

    node = await fleet.node(mine)
    ref: Any = await node.dispatch(pay, "k", 1)
    for _ in range(3):
        with pytest.raises(JobParked):
            await ref.result(timeout_s=30)
        if edited:
            await node.parked.edit("k", ref.job_id, 2)
        ref = await node.parked.replay("k", ref.job_id)
    assert await ref.result(timeout_s=30) == (2 if edited else 1)
    assert len({*diary.entries}) == (3 if edited else 1)


async def test_limits_hold_for_steps_at_once(fleet: Fleet) -> None:
    mine = Handlers()
    refused: list[PoolError] = []

    @mine.job("many")
    async def many(job: Job, count: int, size: int) -> None:
        started, all_are = 0, anyio.Event()

        async def step() -> str:
            nonlocal started
            started += 1
            await all_are.wait()
            return "x" * size

        async def ask(name: str) -> None:
            try:
                await job.once(name, step)
            except (TooManySteps, PayloadTooLarge) as error:
                refused.append(error)

        async with anyio.create_task_group() as tasks:
            for n in range(count):
                tasks.start_soon(ask, f"s{n}")
            await anyio.wait_all_tasks_blocked()
            all_are.set()

    node = await fleet.node(mine, steps_max=5, steps_bytes_max=10_000, result_bytes_max=8_000)
    await (await node.dispatch(many, "k1", 9, 10)).result(timeout_s=30)
    assert [type(each) for each in refused] == [TooManySteps] * 4
    refused.clear()
    await (await node.dispatch(many, "k2", 5, 4_000)).result(timeout_s=30)
    assert [type(each) for each in refused] == [PayloadTooLarge] * 3


@pytest.mark.parametrize("how", ["at once", "in a task", "by two"])
async def test_a_step_that_would_wait_for_itself_is_told(fleet: Fleet, how: str) -> None:
    mine = Handlers()
    refused: list[InvalidOption] = []

    @mine.job("nested")
    async def nested(job: Job) -> None:
        both = {"a": anyio.Event(), "b": anyio.Event()}

        async def ask(name: str) -> None:
            try:
                await job.once(name, lambda: None)
            except InvalidOption as error:
                refused.append(error)

        async def asks(mine: str, other: str) -> None:
            both[mine].set()
            if how == "by two":
                await both[other].wait()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, other if how == "by two" else mine)

        async with anyio.create_task_group() as tasks:
            for name, other in ("ab", "ba") if how == "by two" else ("ab",):

                async def step(name: str = name, other: str = other) -> None:
                    await (ask(name) if how == "at once" else asks(name, other))

                tasks.start_soon(job.once, name, step)

    node = await fleet.node(mine)
    await (await node.dispatch(nested, "k")).result(timeout_s=30)
    assert len(refused) == 1
    assert "would wait for itself" in str(refused[0])


async def test_a_plain_function_around_an_async_one_is_a_step(fleet: Fleet) -> None:
    mine = Handlers()

    @mine.job("lambda")
    async def handler(job: Job) -> Any:
        async def charge(key: str) -> str:
            return key[:1]

        return await job.once("charge", lambda step: charge(step.name))

    node = await fleet.node(mine)
    assert await (await node.dispatch(handler, "k")).result(timeout_s=30) == "c"


# --- saving ---------------------------------------------------------------------------------


async def test_what_was_saved_is_there_in_the_next_attempt(fleet: Fleet, diary: Diary) -> None:
    """A failure hands nothing over: what was assigned is gone, what was saved is not."""
    mine = Handlers()

    @mine.job("count", **FAST)
    async def count(job: Job) -> list[Any]:
        diary.note(job.state, job.is_recovered)
        if job.attempt == 3:
            return [job.state]
        await job.save({"n": job.attempt})
        assert job.state == {"n": job.attempt}
        job.state = "assigned"
        raise OSError("afterwards")

    node = await fleet.node(mine)
    assert await (await node.dispatch(count, "k")).result(timeout_s=30) == [{"n": 2}]
    assert diary.entries == [(None, False), ({"n": 1}, True), ({"n": 2}, True)]
    assert stored(fleet) == b""


async def test_a_state_and_the_messages_in_it_change_in_one_step(
    fleet: Fleet, diary: Diary
) -> None:
    """Whatever ends the run then: each message is in the state, or in the inbox, never in both."""
    mine = Handlers()

    @mine.service("sum", **FAST)
    async def total(job: Job) -> None:
        heard: list[int] = job.state or []
        diary.note("begins", list(heard))
        async for n in job.notifications():
            heard.append(n)
            await job.save(heard)
            diary.note("saved", list(heard))
            if n == 2:
                raise OSError("afterwards")

    node = await fleet.node(mine)
    ref = await node.dispatch(total, "k")
    for n in range(1, 5):
        await node.notify("k", n)
    await diary.has("saved", times=0)
    await diary.until(lambda entries: ("saved", [1, 2, 3, 4]) in entries)
    assert [entry for entry in diary.entries if entry[0] == "begins"] == [
        ("begins", []),
        ("begins", [1, 2]),
    ]
    assert (stored(fleet), waiting(fleet)) == (b"[1,2,3,4]", 0)
    await ref.stop(timeout_s=30)


async def test_states_that_nobody_waits_for_are_sent_as_the_newest_alone(
    fleet: Fleet, diary: Diary
) -> None:
    """And `save()` waits for the last one of them."""
    mine = Handlers()

    @mine.service("fast")
    async def fast(job: Job) -> None:
        for n in range(1000):
            job.save_soon(n)
        await job.save(1000)
        diary.note("saved")
        await anyio.sleep_forever()

    node = await fleet.node(mine)

    before = called(fleet)
    ref = await node.dispatch(fast, "k")
    await diary.has("saved")
    assert stored(fleet) == b"1000"
    assert called(fleet) - before < 50
    await ref.stop(timeout_s=30)


async def test_messages_that_were_passed_go_when_the_state_before_them_is_stored(
    fleet: Fleet, diary: Diary
) -> None:
    """A handler may go on without saving each: what it passed is handled as ever."""
    mine = Handlers()

    @mine.service("some")
    async def some(job: Job) -> None:
        async for n in job.notifications():
            if n % 2:
                job.save_soon(n)
            diary.note(n)

    node = await fleet.node(mine)
    ref = await node.dispatch(some, "k")
    for n in range(7):
        await node.notify("k", n)
    await diary.has(6)
    await fleet.until(lambda: (stored(fleet), waiting(fleet)) == (b"5", 0))
    await ref.stop(timeout_s=30)


async def test_a_hand_off_carries_what_was_saved(fleet: Fleet, diary: Diary) -> None:
    """The next owner follows one that handed over, so nothing has to be recovered."""
    mine = Handlers()

    @mine.service("follow")
    async def follow(job: Job) -> None:
        diary.note(job.node_id, job.state, job.is_recovered)
        await job.save({"from": job.node_id})
        await anyio.sleep_forever()

    first = await fleet.node(mine)
    await first.dispatch(follow, "k")
    await diary.counts(1)
    second = await fleet.node(mine)
    await fleet.leave(first)
    await diary.until(lambda entries: any(entry[0] == second.id for entry in entries))
    assert diary.entries[-1][1] in ({"from": first.id}, {"from": second.id})
    assert not any(entry[2] for entry in diary.entries)
    await second.stop("k", timeout_s=30)


@pytest.mark.parametrize(
    ("value", "error"), [(object(), PayloadEncodingError), ("x" * 300, PayloadTooLarge)]
)
async def test_what_cannot_be_a_state_is_refused(
    fleet: Fleet, value: Any, error: type[PoolError]
) -> None:
    """The one before stands."""
    mine = Handlers()

    @mine.job("save")
    async def save(job: Job) -> str:
        await job.save("before")
        with pytest.raises(error):
            await job.save(value)
        with pytest.raises(error):
            job.save_soon(value)
        assert job.state == "before"
        assert stored(fleet) == b'"before"'
        return "ok"

    node = await fleet.node(mine, state_bytes_max=200)
    assert await (await node.dispatch(save, "k")).result(timeout_s=30) == "ok"


@pytest.fixture
async def full(anyio_backend: str, own_server: EmbeddedServer) -> AsyncIterator[Fleet]:
    """Yield a fleet on a server of its own, to be filled."""
    with connect(own_server.url) as client:
        async with Fleet(own_server.url, "full", client).running() as fleet:
            yield fleet
            client.config_set("maxmemory", 0)


@pytest.mark.one_server
async def test_a_full_server_refuses_a_state_and_loses_nothing(full: Fleet, diary: Diary) -> None:
    """What was passed since stays, too, until it is stored, as is tried again; steps are taken."""
    mine, go = Handlers(), anyio.Event()

    @mine.service("sum")
    async def total(job: Job) -> None:
        heard: list[int] = []
        await go.wait()
        async for n in job.notifications():
            heard.append(n)
            full.client.config_set("maxmemory", int(n > 1))
            if n <= 2:
                try:
                    await job.save(heard)
                except StorageFull:
                    diary.note("refused", n)
            elif n == 4:  # behind whatever passing 3 has sent
                diary.note(await job.once("note", lambda: "taken"))

    node = await full.node(mine, lease_ttl_s=1.0)
    ref = await node.dispatch(total, "k")
    for n in (1, 2, 3, 4):
        await node.notify("k", n)
    go.set()
    await diary.has("taken")
    assert diary.entries == [("refused", 2), "taken"]
    assert (stored(full), waiting(full)) == (b"[1]", 3)
    full.client.config_set("maxmemory", 0)
    await full.until(lambda: (stored(full), waiting(full)) == (b"[1,2]", 0))
    assert full.client.hexists(full.names.checkpoints, steps_name("k"))
    await ref.stop(timeout_s=30)


# --- progress -------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["done", "failed", "stopped"])
async def test_progress_is_told_while_it_runs_and_when_it_has_ended(
    fleet: Fleet, diary: Diary, how: str
) -> None:
    """However it ended: the last that it said is there."""
    mine, go = Handlers(), anyio.Event()

    @mine.job("count", attempts_max=1)
    async def count(job: Job) -> None:
        await job.progress(1, 3, "first, or 1/3 | 100 %")
        diary.note("said")
        await go.wait()
        await job.progress(2.5, 3)
        await job.progress(3, note="all")
        if how == "failed":
            raise OSError("afterwards")
        if how == "stopped":
            await anyio.sleep_forever()

    worker, client = await fleet.node(mine), await fleet.node()
    ref = await client.dispatch("count", "k")
    await diary.has("said")
    progress = None
    with anyio.fail_after(30):
        while progress is None:
            progress = (await client.status("k")).progress
    assert (progress.done, progress.total) == (1, 3)
    assert progress.note.split() == ["first,", "or", "1/3", "¦", "100", "%"]
    assert progress.at_ms > 0
    go.set()
    if how == "stopped":
        await fleet.until(lambda: "all" in str(fleet.client.hget(fleet.names.jobs, "k")))
        await ref.stop(timeout_s=30)
    else:
        with contextlib.suppress(JobParked):
            await ref.result(timeout_s=30)
    last = (await ref.status()).progress
    assert last is not None
    assert (last.done, last.total, last.note) == (3, None, "all")
    assert worker.id


async def test_progress_costs_no_call_each_time(fleet: Fleet) -> None:
    """Told in a loop, it goes out once a second."""
    mine = Handlers()

    @mine.job("count")
    async def count(job: Job) -> int:
        before = called(fleet)
        for n in range(1000):
            await job.progress(n, 1000)
            await anyio.lowlevel.checkpoint()
        return called(fleet) - before

    node = await fleet.node(mine)
    ref = await node.dispatch(count, "k")
    assert await ref.result(timeout_s=20) < 50
    last = (await ref.status()).progress
    assert last is not None
    assert last.done == 999


@pytest.mark.parametrize("given", [(-1, None), (1, "x"), (float("nan"), None), ("1", 2), (1, 1e16)])
async def test_what_cannot_be_progress_is_refused(fleet: Fleet, given: Any) -> None:
    mine = Handlers()

    @mine.job("count")
    async def count(job: Job) -> str:
        with pytest.raises(InvalidOption):
            await job.progress(*given)
        return "ok"

    node = await fleet.node(mine)
    assert await (await node.dispatch(count, "k")).result(timeout_s=30) == "ok"


async def test_who_tells_nothing_for_too_long_is_ended(fleet: Fleet, diary: Diary) -> None:
    """As long as it goes on it may take as long as it likes; `park_on` allows no other attempt."""
    mine = Handlers()

    async def go_on(job: Job) -> None:
        for n in range(8):
            await job.progress(n, 8)
        diary.note(job.attempt)
        await anyio.sleep_forever()

    limits: dict[str, Any] = {"progress_timeout_s": 0.8, "attempts_max": 2, **FAST}
    mine.job("again", **limits)(go_on)
    mine.job("once", **{**limits, "park_on": ("progress",)})(go_on)
    mine.job("other", timeout_s=20.0, **{**limits, "park_on": ["timeout"]})(go_on)
    node = await fleet.node(mine)
    for name, attempts in (("again", 2), ("once", 1), ("other", 2)):
        ref = await node.dispatch(name, name)
        with pytest.raises(JobParked) as parked:
            await ref.result(timeout_s=20)
        assert (parked.value.cause, parked.value.attempts) == ("timed out", attempts)
        assert parked.value.last_error == "made no progress for progress_timeout_s"
        last = (await ref.status()).progress
        assert last is not None
        assert last.done == 7
    assert diary.entries == [1, 2, 1, 1, 2]


async def test_the_time_for_progress_is_written_where_others_can_enforce_it(fleet: Fleet) -> None:
    """It moves on with the renewal after the handler has."""
    mine, goes_on, stop = Handlers(), anyio.Event(), anyio.Event()

    @mine.job("long", progress_timeout_s=60.0)
    async def long(job: Job) -> None:
        await goes_on.wait()
        await job.progress(1)
        await stop.wait()

    def due() -> float:
        return fleet.client.zscore(fleet.names.due, "k:k") or 0.0

    node = await fleet.node(mine, lease_ttl_s=1.0)
    ref = await node.dispatch(long, "k")
    await fleet.until(due)
    first = due()
    goes_on.set()
    await fleet.until(lambda: due() > first)
    stop.set()
    await ref.result(timeout_s=30)


@pytest.mark.parametrize(
    "options",
    [{"progress_timeout_s": 0}, {"park_on": "timeout"}, {"park_on": ["never"]}, {"park_on": 7}],
)
def test_what_cannot_be_a_limit_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption):
        Handlers().job("h", **options)


def test_a_handlers_limits_are_kept_for_those_who_lack_its_code() -> None:
    """And what few have costs the others nothing."""
    limits = Options(progress_timeout_s=1.5, park_on=frozenset(("progress",)))
    assert Options.parse(limits.pack().encode()) == limits
    both = attrs.evolve(limits, timeout_s=2.0, park_on=frozenset(LIMITS))
    assert Options.parse(both.pack().encode()) == both
    assert Options().pack().count("|") == 5
