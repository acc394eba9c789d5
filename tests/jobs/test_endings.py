"""Handlers that end in ways nobody asked for: a failed attempt of that job, and of no other."""

from __future__ import annotations

import asyncio  # noqa: TID251 - what only its tasks can do
import os
import signal
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import attrs
import pytest

from pool import Cancel, Handlers, Job, Node, Park, Retry
from pool.core.crash_marks import NO_MARKS, Marks
from pool.core.record import Start
from pool.errors import JobCancelled, JobParked
from pool.events import ActorCrashed, AttemptFailed, RunDisturbed
from pool.jobs.run import Run, _apart
from pool.redis.io.system import COPY_EXIT_CODE

if TYPE_CHECKING:
    from tests.nodes import Diary, Fleet

pytestmark = pytest.mark.anyio

ONLY_ASYNCIO = "tasks that anybody may cancel are asyncio's"


class Own(BaseException):
    pass


class Mute(Exception):
    def __str__(self) -> str:
        raise SystemExit(1)


class Shy(type):
    def __getattribute__(cls, name: str) -> Any:
        if name == "__name__":
            raise Nameless
        return super().__getattribute__(name)


class Nameless(Exception, metaclass=Shy):
    pass


def unlike(*_: Any) -> Any:
    raise Unlike


class Unlike(Exception):
    """What `isinstance` reads, and all else of it, raises."""

    __getattribute__ = unlike


class UnlikeGroup(BaseExceptionGroup[BaseException]):
    __class__ = property(unlike)
    exceptions = property(unlike)
    split = subgroup = derive = unlike


class Imposter(Exception):
    """It says that it is an order, or a cancellation."""

    __class__ = property(lambda self: self.args[0])


class NoParentsRetry(Retry):
    def __init__(self, limit: int) -> None:  # as users write it, without the parent's
        self.limit = limit


class NoParentsPark(Park):
    def __init__(self, limit: int) -> None:
        self.limit = limit


class NoParentsCancel(Cancel):
    def __init__(self, limit: int) -> None:
        self.limit = limit


def fail(error: BaseException) -> None:
    raise error


# --- on both event loops --------------------------------------------------------------------------

WAYS: dict[str, tuple[Callable[[], BaseException], str]] = {
    "exit": (lambda: SystemExit(3), "SystemExit: 3"),
    "generator": (lambda: GeneratorExit("mine"), "GeneratorExit: mine"),
    "own": (lambda: Own("x"), "Own: x"),
    "group": (lambda: BaseExceptionGroup("g", [Own("x"), OSError("y")]), "Own: x (and 1 more)"),
    "nested": (lambda: ExceptionGroup("g", [ExceptionGroup("h", [OSError("y")])]), "OSError: y"),
    "mute": (Mute, "Mute, whose text cannot be had"),
    "stop": (lambda: StopIteration(7), "StopIteration: 7"),
    "order": (lambda: NoParentsRetry(7), ""),
    "long": (lambda: OSError("x" * 30_000_000), "OSError: xxx"),
    "unlike": (Unlike, "Unlike"),
    "unlike in a group": (lambda: ExceptionGroup("g", [Unlike()]), "Unlike"),
    "unlike group": (lambda: UnlikeGroup("g", [Own("x"), OSError("y")]), "Own: x (and 1 more)"),
    "imposter": (lambda: Imposter(Park), "Imposter: "),
    "cancels": (lambda: Imposter(asyncio.CancelledError), "Imposter: "),
    "interrupts": (lambda: Imposter(KeyboardInterrupt), "Imposter: "),
    "nameless": (Nameless, "an error, whose text cannot be had"),
}


def handlers_of(diary: Diary) -> Handlers:
    handlers = Handlers()

    @handlers.job("ill", attempts_max=2, backoff_s=0.001, backoff_max_s=0.002)
    async def ill(job: Job, way: str) -> None:
        diary.note("ill", job.attempt)
        await anyio.lowlevel.checkpoint()
        fail(WAYS[way][0]())

    @handlers.job("plain", attempts_max=2, backoff_s=0.001, backoff_max_s=0.002)
    def plain(job: Job, way: str) -> None:
        fail(WAYS[way][0]())

    @handlers.job("well")
    async def well(job: Job) -> str:
        return "well"

    @handlers.service("neighbour")
    async def neighbour(job: Job) -> None:
        diary.note("neighbour began")
        await anyio.sleep_forever()

    return handlers


async def with_neighbour(fleet: Fleet, diary: Diary, handlers: Handlers, **options: Any) -> Node:
    node = await fleet.node(handlers, **options)
    await node.dispatch("neighbour", "neighbour")
    await diary.has("neighbour began")
    return node


async def nobody_else_suffered(fleet: Fleet, diary: Diary, node: Node) -> None:
    """Neighbours, slots and leases are untouched."""
    assert node.state == "open"
    assert diary.entries.count("neighbour began") == 1
    assert (await node.status("neighbour")).state == "running"
    assert not fleet.all_seen(ActorCrashed)
    refs = [await node.dispatch("well", f"w{i}") for i in range(3)]
    assert [await ref.result(timeout_s=30) for ref in refs] == ["well"] * 3


@pytest.mark.parametrize("name", ["ill", "plain"])
@pytest.mark.parametrize("way", WAYS)
async def test_whatever_a_handler_raises_is_a_failed_attempt_of_its_job_alone(
    fleet: Fleet, diary: Diary, name: str, way: str
) -> None:
    node = await with_neighbour(fleet, diary, handlers_of(diary))
    ref = await node.dispatch(name, "k", way)
    with pytest.raises(JobParked) as parked:
        await ref.result(timeout_s=30)
    wanted = WAYS[way][1]
    if way == "stop" and name == "ill":
        wanted = "RuntimeError: coroutine raised StopIteration"  # Python's own word for it
    assert wanted in parked.value.last_error
    assert parked.value.attempts == 2
    await nobody_else_suffered(fleet, diary, node)


async def test_an_order_whose_own_init_calls_no_parents_is_obeyed(
    fleet: Fleet, diary: Diary
) -> None:
    handlers = handlers_of(diary)

    @handlers.job("orders", attempts_max=3, backoff_s=0.001)
    async def orders(job: Job, word: str) -> int:
        if job.attempt == 1:
            fail({"park": NoParentsPark, "cancel": NoParentsCancel}.get(word, NoParentsRetry)(7))
        return job.attempt

    node = await fleet.node(handlers)
    with pytest.raises(JobParked) as parked:
        await (await node.dispatch(orders, "p", "park")).result(timeout_s=30)
    assert (parked.value.cause, parked.value.attempts) == ("parked by its handler", 1)
    with pytest.raises(JobCancelled):
        await (await node.dispatch(orders, "c", "cancel")).result(timeout_s=30)
    assert await (await node.dispatch(orders, "r", "retry")).result(timeout_s=30) == 2


async def test_a_block_that_ends_by_what_cannot_be_asked_leaves_in_order(fleet: Fleet) -> None:
    node, raised = Node(fleet.pool, fleet.url, settings=fleet.settings), False
    try:
        async with node:
            raise Unlike
    except Unlike:
        raised = True
    assert (raised, node.state) == (True, "closed")


async def test_an_order_raised_in_a_task_of_the_handlers_is_obeyed(
    fleet: Fleet, diary: Diary
) -> None:
    """Task groups wrap what their tasks raise; beside another error it is an order no more."""
    handlers = handlers_of(diary)

    @handlers.job("orders", attempts_max=2, backoff_s=30)
    async def orders(job: Job, *errors: str) -> int:
        async def child(word: str) -> None:
            raise {"park": Park("no such customer"), "retry": Retry(after_s=0.0)}.get(
                word, OSError(word)
            )

        if job.attempt == 1:
            async with anyio.create_task_group() as outer, anyio.create_task_group() as tasks:
                outer.start_soon(anyio.sleep, 5)
                for word in errors:
                    tasks.start_soon(child, word)
        return job.attempt

    node = await with_neighbour(fleet, diary, handlers)
    with pytest.raises(JobParked) as parked:
        await (await node.dispatch(orders, "p", "park")).result(timeout_s=30)
    assert (parked.value.cause, parked.value.attempts) == ("no such customer", 1)
    assert await (await node.dispatch(orders, "r", "retry")).result(timeout_s=30) == 2
    await node.dispatch(orders, "b", "park", "beside")
    event = await fleet.seen(AttemptFailed, key="b")
    assert "(and 1 more)" in event.error
    await nobody_else_suffered(fleet, diary, node)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("name", ["forks", "forks in a thread"])
@pytest.mark.parametrize("way", ["returns", "raises", "awaits"])
async def test_a_forked_child_that_comes_back_ends_and_says_nothing_of_its_parents_job(
    fleet: Fleet, diary: Diary, name: str, way: str
) -> None:
    """It shares the parent's epoll and sockets: what it closes in order, the parent would miss."""
    if (name, way) == ("forks in a thread", "awaits"):
        pytest.skip("a plain function cannot")
    handlers = handlers_of(diary)

    def fork() -> int:
        pid = os.fork()
        if pid == 0:
            signal.alarm(5)  # whatever becomes of it
            if way == "raises":
                raise OSError("in the child")
        return pid

    def code(pid: int) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    @handlers.job("forks", attempts_max=1)
    async def forks(job: Job) -> int:
        pid = fork()
        if way == "awaits":
            await anyio.sleep(0.001)
        return -1 if pid == 0 else await anyio.to_thread.run_sync(code, pid)

    @handlers.job("forks-in-a-thread", attempts_max=1)
    def forks_in_a_thread(job: Job) -> int:
        pid = fork()
        return -1 if pid == 0 else code(pid)

    fleet.settings = attrs.evolve(fleet.settings, grace_s=300.0)
    node = await with_neighbour(fleet, diary, handlers)
    ref = await node.dispatch(name.replace(" ", "-"), "k")
    assert await ref.result(timeout_s=30) == COPY_EXIT_CODE
    await nobody_else_suffered(fleet, diary, node)
    with anyio.fail_after(40):  # far less than the grace: nothing is waited for
        await fleet.leave(node)


class Lazy(list[int]):
    """What it returns is looked at by the node, in the node's own step."""

    def __iter__(self) -> Any:
        raise LAZY[len(self)]


LAZY: list[type[BaseException]] = [OSError, Own, SystemExit, GeneratorExit, asyncio.CancelledError]


@pytest.mark.parametrize("number", range(len(LAZY)), ids=lambda i: LAZY[i].__name__)
async def test_what_a_result_raises_is_a_failed_attempt(
    fleet: Fleet, diary: Diary, number: int
) -> None:
    handlers = handlers_of(diary)

    @handlers.job("lazy", attempts_max=2, backoff_s=0.001)
    async def lazy(job: Job) -> list[int]:
        return Lazy([0] * number)

    node = await with_neighbour(fleet, diary, handlers)
    with pytest.raises(JobParked) as parked:
        await (await node.dispatch(lazy, "k")).result(timeout_s=30)
    assert parked.value.attempts == 2
    await nobody_else_suffered(fleet, diary, node)


async def test_a_cancellation_that_was_caught_and_raised_again_later_is_its_own(
    fleet: Fleet, diary: Diary
) -> None:
    handlers = handlers_of(diary)

    @handlers.job("again", attempts_max=1)
    async def again(job: Job) -> None:
        caught: list[BaseException] = []
        with anyio.CancelScope() as scope:
            scope.cancel()
            try:
                await anyio.sleep_forever()
            except BaseException as error:
                caught.append(error)
                raise
        raise caught[0]

    node = await with_neighbour(fleet, diary, handlers)
    ref = await node.dispatch("again", "k")
    with pytest.raises(JobParked) as parked:
        await ref.result(timeout_s=30)
    assert "cancelled by itself or by its own tasks" in parked.value.last_error
    await nobody_else_suffered(fleet, diary, node)


# --- asyncio: tasks that anybody may cancel -------------------------------------------------------


async def awaits_a_cancelled_task(job: Job) -> None:
    task = asyncio.ensure_future(anyio.sleep_forever())
    await anyio.lowlevel.checkpoint()
    task.cancel()
    await task


async def gathers_a_cancelled_one(job: Job) -> None:
    task = asyncio.ensure_future(anyio.sleep_forever())
    asyncio.get_running_loop().call_soon(task.cancel)
    await asyncio.gather(task, anyio.sleep(5))


async def cancels_itself(job: Job) -> None:
    current().cancel()
    await anyio.sleep(5)


async def cancels_itself_often(job: Job) -> None:
    for _ in range(3):
        current().cancel()
    try:
        await anyio.sleep(5)
    finally:
        current().cancel()


async def is_cancelled_later(job: Job) -> None:
    asyncio.get_running_loop().call_later(0.01, current().cancel)
    await anyio.sleep(5)


async def in_a_group(job: Job) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(awaits_a_cancelled_task, job)
        raise OSError("beside")


def current() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


@pytest.mark.parametrize(
    "fn",
    [
        awaits_a_cancelled_task,
        gathers_a_cancelled_one,
        cancels_itself,
        cancels_itself_often,
        is_cancelled_later,
    ],
)
@pytest.mark.parametrize("capacity", [2, 10])
async def test_a_cancellation_that_nobody_asked_for_is_a_failed_attempt(
    anyio_backend: str,
    fleet: Fleet,
    diary: Diary,
    fn: Callable[[Job], Awaitable[None]],
    capacity: int,
) -> None:
    if anyio_backend != "asyncio":
        pytest.skip(ONLY_ASYNCIO)
    handlers = handlers_of(diary)
    handlers.job("ill-2", attempts_max=2, backoff_s=0.001)(fn)
    node = await with_neighbour(fleet, diary, handlers, capacity=capacity)
    for key in ("a", "b"):
        ref = await node.dispatch("ill-2", key)
        with pytest.raises(JobParked) as parked:
            await ref.result(timeout_s=30)
        assert parked.value.last_error == "CancelledError: cancelled by itself or by its own tasks"
        assert parked.value.attempts == 2
        await nobody_else_suffered(fleet, diary, node)
    if fn is not is_cancelled_later:  # which may be the doing of one that ran there before
        assert not fleet.all_seen(RunDisturbed)


async def test_a_stop_of_one_job_does_not_take_along_another_that_shares_its_future(
    anyio_backend: str, fleet: Fleet, diary: Diary
) -> None:
    """An asyncio future that a cancelled task awaits is cancelled for everybody."""
    if anyio_backend != "asyncio":
        pytest.skip(ONLY_ASYNCIO)
    handlers, shared = handlers_of(diary), asyncio.get_running_loop().create_future()

    @handlers.job("shares", attempts_max=1)
    async def shares(job: Job) -> None:
        diary.note("shares", job.key)
        await shared

    node = await with_neighbour(fleet, diary, handlers)
    first, second = await node.dispatch(shares, "a"), await node.dispatch(shares, "b")
    await diary.counts(3)
    await first.stop(timeout_s=30)
    with pytest.raises(JobParked) as parked:
        await second.result(timeout_s=30)
    assert "cancelled by itself" in parked.value.last_error
    await nobody_else_suffered(fleet, diary, node)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("spared", ["itself", "nobody"])
async def test_who_cancels_every_task_there_is_fails_alone(
    anyio_backend: str, fleet: Fleet, diary: Diary, spared: str
) -> None:
    """The recipe of many shutdowns: others begin again, with their attempts unburnt."""
    if anyio_backend != "asyncio":
        pytest.skip(ONLY_ASYNCIO)
    handlers, mine = handlers_of(diary), asyncio.all_tasks()

    @handlers.job("once", attempts_max=1)
    async def once(job: Job) -> int:
        diary.note("once")
        await anyio.sleep(10 if diary.entries.count("once") == 1 else 0.001)
        return job.attempt

    @handlers.service("state")
    async def state(job: Job) -> None:
        diary.note("state", job.state, job.attempt)
        job.state = "kept"
        await anyio.sleep_forever()

    @handlers.job("bad", attempts_max=1)
    async def bad(job: Job) -> str:
        for task in asyncio.all_tasks() - mine:
            if task is not current() or spared == "nobody":
                task.cancel()
        await anyio.sleep(0.01)
        return "unharmed"

    node = await with_neighbour(fleet, diary, handlers)
    mine |= {
        task for task in asyncio.all_tasks() if "Fleet._live" in str(task)
    }  # the program's own
    ref = await node.dispatch("once", "o")
    await node.dispatch("state", "s")
    await diary.counts(3)
    culprit = await node.dispatch("bad", "b")
    if spared == "itself":
        assert await culprit.result(timeout_s=30) == "unharmed"
    else:
        with pytest.raises(JobParked):
            await culprit.result(timeout_s=30)
    assert await ref.result(timeout_s=30) == 1
    await diary.has("state", "kept", 1)
    assert {event.key for event in fleet.all_seen(RunDisturbed)} == {"o", "s", "neighbour"}
    assert {event.key for event in fleet.all_seen(AttemptFailed)} <= {"b"}
    assert node.state == "open"


@pytest.mark.parametrize("late_s", [None, 0.0, 0.001, 0.02])
async def test_a_cancellation_that_comes_when_its_handler_has_returned_hits_nobody(
    anyio_backend: str, fleet: Fleet, diary: Diary, late_s: float | None
) -> None:
    """What it returned counts; the next one in its slot, idle or busy, does not pay for it."""
    if anyio_backend != "asyncio":
        pytest.skip(ONLY_ASYNCIO)
    handlers = handlers_of(diary)

    @handlers.job("late")
    async def late(job: Job) -> str:
        if late_s is None:
            current().cancel()
        elif late_s:
            asyncio.get_running_loop().call_later(late_s, current().cancel)
        else:
            asyncio.get_running_loop().call_soon(current().cancel)
        return "returned"

    @handlers.job("next", attempts_max=1)
    async def next_one(job: Job) -> int:
        await anyio.sleep(0.03)
        return job.attempt

    node = await with_neighbour(fleet, diary, handlers, capacity=2)
    for i in range(3):
        ref = await node.dispatch(late, f"l{i}")
        after = await node.dispatch(next_one, f"n{i}")
        assert await ref.result(timeout_s=30) == "returned"
        assert await after.result(timeout_s=30) == 1
    await nobody_else_suffered(fleet, diary, node)
    assert not fleet.all_seen(AttemptFailed)
    assert all(event.handler == "next" for event in fleet.all_seen(RunDisturbed))


async def test_a_resting_slot_that_somebody_cancels_goes_on(
    anyio_backend: str, fleet: Fleet, diary: Diary
) -> None:
    if anyio_backend != "asyncio":
        pytest.skip(ONLY_ASYNCIO)
    handlers, slots = handlers_of(diary), []

    @handlers.job("known")
    async def known(job: Job) -> None:
        slots.append(current())

    node = await with_neighbour(fleet, diary, handlers, capacity=2)
    for i in range(5):
        await (await node.dispatch(known, f"k{i}")).result(timeout_s=30)
        slots[-1].cancel()
        await anyio.lowlevel.checkpoint()
        slots[-1].cancel()
    await nobody_else_suffered(fleet, diary, node)
    assert not any(slot.done() for slot in slots)


async def test_a_stop_counts_though_the_handler_cancels_itself_too(
    anyio_backend: str, fleet: Fleet, diary: Diary
) -> None:
    if anyio_backend != "asyncio":
        pytest.skip(ONLY_ASYNCIO)
    handlers = handlers_of(diary)

    @handlers.job("both", attempts_max=1)
    async def both(job: Job) -> None:
        try:
            diary.note("both")
            await anyio.sleep_forever()
        finally:
            current().cancel()

    node = await with_neighbour(fleet, diary, handlers)
    ref = await node.dispatch(both, "k")
    await diary.has("both")
    await ref.stop(cause="enough", timeout_s=30)
    assert (await ref.status()).state == "cancelled"
    await nobody_else_suffered(fleet, diary, node)


# --- KeyboardInterrupt: the node's ----------------------------------------------------------------


@pytest.mark.parametrize("way", ["alone", "in a group", "in a thread"])
async def test_an_interrupt_out_of_a_handler_ends_the_node_in_order(
    fleet: Fleet, diary: Diary, way: str
) -> None:
    """Its keys go to others without a burnt attempt, and it comes out of the block."""
    handlers = Handlers()
    errors: dict[str, BaseException] = {
        "alone": KeyboardInterrupt(),
        "in a group": BaseExceptionGroup("g", [OSError("x"), KeyboardInterrupt()]),
        "in a thread": KeyboardInterrupt(),
    }
    victim: list[str] = []

    def run(job: Job) -> tuple[int, str]:
        if job.node_id == victim[0]:
            raise errors[way]
        return job.attempt, job.node_id

    @handlers.job("keys", attempts_max=1)
    async def keys(job: Job) -> tuple[int, str]:
        return run(job)

    @handlers.job("held", attempts_max=1)
    async def held(job: Job) -> tuple[int, str]:
        diary.note("held", job.node_id)
        if job.node_id == victim[0]:
            await anyio.sleep_forever()
        return job.attempt, job.node_id

    handlers.job("plain", attempts_max=1)(run)
    left = anyio.Event()

    async def body(node: Node) -> None:
        async with node:
            victim.append(node.id)
            await node.dispatch("held", "h")
            await diary.has("held", node.id)
            await node.dispatch("plain" if way == "in a thread" else "keys", "k")
            await anyio.sleep_forever()

    async def interrupted(node: Node) -> None:
        with pytest.raises(KeyboardInterrupt):
            await body(node)
        diary.note(node.state)
        left.set()

    client = await fleet.node()
    settings = client.settings
    node = Node(fleet.pool, fleet.url, handlers=handlers, settings=settings, observers=())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(interrupted, node)
        with anyio.fail_after(30):
            await left.wait()
    assert diary.entries[-1] == "closed"
    for key, marks in (("h", NO_MARKS), ("k", Marks(ends=1))):
        record = fleet.record(key)
        assert record is not None
        assert (record.attempt, record.marks, record.owner) == (1, marks, "")
    other = await fleet.node(handlers)
    await fleet.until(lambda: fleet.record("h") is None and fleet.record("k") is None)
    assert ("held", other.id) in diary.entries


async def test_a_job_that_always_interrupts_is_parked(fleet: Fleet) -> None:
    """It ends `crashes_max` + 1 nodes in order, whatever its attempts: those are not burned."""
    handlers = Handlers()
    ended = 0

    @handlers.service("s")
    async def serve(_: Job) -> None:
        raise KeyboardInterrupt

    client = await fleet.node()
    settings = attrs.evolve(client.settings, crashes_max=1)
    await client.options(allow_unknown=True).dispatch("s", "k")
    with anyio.fail_after(60):
        while fleet.record("k") is not None:
            node = Node(fleet.pool, fleet.url, handlers=handlers, settings=settings, observers=())
            with pytest.raises(KeyboardInterrupt):
                async with node:
                    await anyio.sleep_forever()
            ended += 1
    [parked] = (await client.parked.list()).jobs
    assert (parked.cause, parked.attempt, ended) == ("poison", 1, 2)


class NoStrays:
    def has_any(self) -> bool:
        return False

    async def absorb(self) -> None:
        raise AssertionError


def test_the_end_of_a_handlers_coroutine_is_not_its_error() -> None:
    """A loop that is thrown away closes what it ran: nothing may go on then."""
    ended: list[str] = []

    class Never:
        def __await__(self) -> Any:
            yield

    async def handler() -> None:
        try:
            await Never()
        finally:
            ended.append("handler")

    async def slot() -> None:
        start = Start.parse("1-0", {"k": b"k", "m": b"j|h|j|1||||"})
        assert start is not None
        await _apart(handler(), copy_context(), Run(start, 0, 0.0), NoStrays())
        ended.append("slot went on")

    coro = slot()
    coro.send(None)
    coro.close()
    assert ended == ["handler"]
