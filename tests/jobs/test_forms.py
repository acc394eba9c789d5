"""The forms of handlers beside functions: generators, and classes."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import anyio
import anyio.from_thread
import anyio.lowlevel
import attrs
import pytest
from anyio.abc import TaskGroup

from pool import Depends, Handler, Handlers, Job, Progress, Result
from pool.errors import ConfigError, InvalidOption, JobCancelled, JobParked, WrongArguments
from pool.events import AttemptFailed, HandlerLeaked
from pool.testing import make_job

if TYPE_CHECKING:
    from tests.nodes import Diary, Fleet

pytestmark = pytest.mark.anyio
PATIENCE_S = 50


async def client(job: Job) -> AsyncIterator[str]:
    """Be given to handlers; noted at its end."""
    NOTED.append(f"opened for {job.key}")
    try:
        yield "client"
    finally:
        NOTED.append("closed")


NOTED: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_noted() -> None:
    NOTED.clear()


def told(job: Job) -> Any:
    """Return how far a job that `make_job` made said it is."""
    return Progress.parse(f"0/{job._keeper()._note}")


# --- generators: how far they are, and their result -----------------------------------------------


@pytest.mark.parametrize(
    ("said", "done", "total", "note"),
    [
        (3, 3, None, ""),
        (0.5, 0.5, None, ""),
        ((3,), 3, None, ""),
        ((3, 4), 3, 4, ""),
        ((3, None, "busy"), 3, None, "busy"),
        (Progress(done=3, total=4, note="busy"), 3, 4, "busy"),
    ],
)
@pytest.mark.parametrize("is_async", [True, False])
async def test_what_a_generator_yields_is_how_far_the_job_is(
    fleet: Fleet, said: Any, done: float, total: float | None, note: str, is_async: bool
) -> None:
    handlers, go = Handlers(), threading.Event()

    @handlers.job("async")
    async def rows(job: Job) -> AsyncIterator[Any]:
        yield said
        while not go.is_set():  # noqa: ASYNC110 - as of the plain one
            await anyio.sleep(0.01)
        yield None

    @handlers.job("plain")
    def plain(job: Job) -> Iterator[Any]:
        yield said
        go.wait()
        yield None

    node = await fleet.node(handlers)
    ref = await node.dispatch("async" if is_async else "plain", "k")
    try:
        with anyio.fail_after(PATIENCE_S):
            # Nothing tells it.
            while (progress := (await ref.status()).progress) is None:  # noqa: ASYNC110
                await anyio.sleep(0.01)
    finally:
        go.set()
    assert (progress.done, progress.total, progress.note) == (done, total, note)
    assert await ref.result(timeout_s=PATIENCE_S) is None
    last = (await ref.status()).progress
    assert last is not None
    assert last.done == done


async def test_the_result_of_a_plain_generator_is_what_it_returns(fleet: Fleet) -> None:
    handlers = Handlers()

    @handlers.job("rows")
    def rows(job: Job, number: int, *, by: int = 1) -> Generator[int, None, str]:
        here = threading.get_ident()
        for n in range(0, number, by):
            yield n
            assert threading.get_ident() == here, "the thread is the same throughout"
        return f"{number} rows"

    node = await fleet.node(handlers)
    ref = await node.dispatch(rows, "k", 6, by=2)
    assert await ref.result(timeout_s=PATIENCE_S) == "6 rows"
    progress = (await ref.status()).progress
    assert progress is not None
    assert progress.done == 4


async def test_the_result_of_an_async_generator_is_the_one_that_it_yields(fleet: Fleet) -> None:
    """What stands behind it is carried out."""
    handlers, after = Handlers(), list[str]()

    @handlers.job("rows")
    async def rows(job: Job, number: int) -> AsyncGenerator[int | Result[str], None]:
        for n in range(number):
            yield n
        yield Result(f"{number} rows")
        after.append("carried out")

    node = await fleet.node(handlers)
    assert await (await node.dispatch(rows, "k", 3)).result(timeout_s=PATIENCE_S) == "3 rows"
    assert after == ["carried out"]


@pytest.mark.parametrize("is_async", [True, False])
async def test_called_directly_it_runs_through_and_returns_its_result(is_async: bool) -> None:
    handlers = Handlers()

    @handlers.job("async")
    async def rows(job: Job) -> AsyncIterator[int | Result[str]]:
        yield 1
        yield Result("done")

    @handlers.job("plain")
    def plain(job: Job) -> Generator[int, None, str]:
        yield 1
        return "done"

    job = make_job("k")
    assert (await rows(job) if is_async else plain(job)) == "done"
    assert job._keeper().results == {}


@pytest.mark.parametrize("said", ["text", -1, (1, 2, 3, 4), (), object(), float("nan"), b"x"])
@pytest.mark.parametrize("is_async", [True, False])
async def test_what_cannot_be_progress_is_raised_where_it_was_yielded(
    said: Any, is_async: bool
) -> None:
    handlers, seen = Handlers(), list[str]()

    @handlers.job("async")
    async def rows(job: Job) -> AsyncIterator[Any]:
        try:
            yield said
        except InvalidOption as error:
            seen.append(error.option)
            raise
        finally:
            seen.append("closed")

    @handlers.job("plain")
    def plain(job: Job) -> Iterator[Any]:
        try:
            yield said
        except InvalidOption as error:
            seen.append(error.option)
            raise
        finally:
            seen.append("closed")

    async def call() -> None:
        if is_async:
            await rows(make_job("k"))
        else:
            plain(make_job("k"))

    with pytest.raises(InvalidOption):
        await call()
    assert seen == ["done", "closed"]


async def test_an_object_whose_call_is_a_generator_is_one_too(fleet: Fleet) -> None:
    class Rows:
        async def __call__(
            self, job: Job, number: int
        ) -> AsyncIterator[tuple[int, int] | Result[str]]:
            yield number, job.attempt
            yield Result(f"{number} rows")

    class Plain:
        def __call__(self, job: Job, number: int) -> Generator[tuple[int, int], None, str]:
            yield number, job.attempt
            return f"{number} rows"

    def rows(first: str, job: Job, number: int) -> Generator[int, None, str]:
        yield number
        return f"{first}{number} rows"

    handlers = Handlers()
    handlers.job("async")(Rows())
    handlers.job("plain")(Plain())
    handlers.job("partial")(partial(rows, "the "))
    node = await fleet.node(handlers)
    found = [
        await (await node.dispatch(name, name, 3)).result(timeout_s=PATIENCE_S) for name in handlers
    ]
    assert found == ["3 rows", "3 rows", "the 3 rows"]


async def test_two_results_and_one_of_a_plain_generator_are_refused() -> None:
    handlers = Handlers()

    @handlers.job("two")
    async def two(job: Job) -> AsyncIterator[Result[int]]:
        yield Result(1)
        yield Result(2)

    @handlers.job("plain")
    def plain(job: Job) -> Iterator[Any]:
        yield Result(1)

    with pytest.raises(InvalidOption, match="a job has one"):
        await two(make_job("k"))
    with pytest.raises(InvalidOption, match="returns its result"):
        plain(make_job("k"))


async def test_a_generator_that_goes_on_after_that_may(fleet: Fleet) -> None:
    """It is told where it stands, as of any call; what it does about it is its own."""
    handlers = Handlers()

    @handlers.job("rows")
    async def rows(job: Job) -> AsyncIterator[Any]:
        try:
            yield "text"
        except InvalidOption:
            yield 1
        yield Result("went on")

    node = await fleet.node(handlers)
    assert await (await node.dispatch(rows, "k")).result(timeout_s=PATIENCE_S) == "went on"


# --- generators: how they end ---------------------------------------------------------------------


async def test_an_async_generator_is_closed_in_order_when_its_job_is_stopped(
    fleet: Fleet, diary: Diary
) -> None:
    """At a yield it stands, or where it awaits; and its end may await within the stop budget."""
    handlers = Handlers()

    @handlers.service("busy")
    async def busy(job: Job) -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        except GeneratorExit:
            diary.note("at a yield")
            raise
        finally:
            await anyio.lowlevel.checkpoint()
            diary.note("closed")

    @handlers.service("waits")
    async def waits(job: Job) -> AsyncIterator[int]:
        try:
            yield 1
            diary.note("waits")
            await anyio.sleep_forever()
        finally:
            with job.ending():
                await anyio.lowlevel.checkpoint()
                diary.note("closed")

    node = await fleet.node(handlers)
    for name in ("busy", "waits"):
        ref = await node.dispatch(name, name)
        await ref.started(timeout_s=PATIENCE_S)
        if name == "waits":
            await diary.has("waits")
        await ref.stop(timeout_s=PATIENCE_S)
        with pytest.raises(JobCancelled):
            await ref.result(timeout_s=PATIENCE_S)
    assert diary.entries == ["at a yield", "closed", "waits", "closed"]


@pytest.mark.parametrize("how", ["stop", "fails", "ends"])
async def test_what_is_open_across_a_yield_is_left_in_order(
    fleet: Fleet, diary: Diary, how: str
) -> None:
    """A task group, say: of a generator, a dependency, or an object that was started."""
    handlers = Handlers()

    async def live() -> None:
        if how == "stop":
            await anyio.sleep_forever()
        if how == "fails":
            raise ConnectionError

    async def group() -> AsyncIterator[TaskGroup]:
        async with anyio.create_task_group() as tasks:
            yield tasks
            tasks.cancel_scope.cancel()
        diary.note("left")

    @handlers.job("depends", attempts_max=1)
    async def depends(job: Job, *, tasks: TaskGroup = Depends(group)) -> str:
        tasks.start_soon(anyio.sleep_forever)
        diary.note("begun", job.key)
        await live()
        return "done"

    @handlers.job("generator", attempts_max=1)
    async def generator(job: Job) -> AsyncIterator[int | Result[str]]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.sleep_forever)
            with anyio.fail_after(PATIENCE_S):
                yield 1
                diary.note("begun", job.key)
                while how == "stop":
                    yield 2
                await live()
            yield Result("done")
            tasks.cancel_scope.cancel()

    class Thing:
        async def start(self, job: Job) -> None:
            self.tasks = await anyio.create_task_group().__aenter__()
            self.tasks.start_soon(anyio.sleep_forever)
            diary.note("begun", job.key)

        async def stop(self, job: Job) -> None:
            self.tasks.cancel_scope.cancel()
            try:
                await self.tasks.__aexit__(None, None, None)
            finally:  # on asyncio it raises the cancellation that there was before
                diary.note("stopped", job.key)

    handlers.service("object")(Thing)
    node = await fleet.node(handlers)
    for name in ("depends", "generator", "object"):
        ref = await node.dispatch(name, name)
        await diary.has("begun", name)
        if how == "stop" or name == "object":
            await ref.stop(timeout_s=PATIENCE_S)
        if how == "ends" and name != "object":
            assert await ref.result(timeout_s=PATIENCE_S) == "done"
        elif how == "fails" and name != "object":
            with pytest.raises(JobParked, match="ConnectionError"):
                await ref.result(timeout_s=PATIENCE_S)
        else:
            with pytest.raises(JobCancelled):
                await ref.result(timeout_s=PATIENCE_S)
    assert ("stopped", "object") in diary.entries
    assert len(fleet.all_seen(AttemptFailed)) == (2 if how == "fails" else 0)


async def test_a_scope_that_is_left_open_is_named_and_harms_nobody_else(fleet: Fleet) -> None:
    handlers = Handlers()

    async def nothing() -> AsyncIterator[None]:
        yield

    async def opens() -> AsyncIterator[None]:
        await anyio.create_task_group().__aenter__()
        yield

    @handlers.job("handler", attempts_max=1)
    async def handler(job: Job, *, it: None = Depends(nothing)) -> None:
        await anyio.create_task_group().__aenter__()

    @handlers.job("dependency", attempts_max=1)
    async def dependency(job: Job, *, it: None = Depends(opens)) -> None: ...

    @handlers.job("generator", attempts_max=1)
    async def generator(job: Job) -> AsyncIterator[int]:
        await anyio.create_task_group().__aenter__()
        yield 1

    @handlers.job("raises", attempts_max=1)
    async def raises(job: Job, *, it: None = Depends(nothing)) -> None:
        await anyio.create_task_group().__aenter__()
        raise LookupError("its own")

    @handlers.job("good")
    async def good(job: Job) -> str:
        return "good"

    node = await fleet.node(handlers, capacity=1)
    for each in (handler, dependency, generator, raises):
        wanted = "its own" if each is raises else "it left a cancel scope or a task group open"
        with pytest.raises(JobParked, match=wanted):
            await (await node.dispatch(each, each.name)).result(timeout_s=PATIENCE_S)
        ref = await node.dispatch(good, f"after {each.name}")
        assert await ref.result(timeout_s=PATIENCE_S) == "good"
    assert node.state == "open"


async def test_a_generator_whose_end_hangs_is_cut_short_and_stays_what_it_was(
    fleet: Fleet, diary: Diary
) -> None:
    """It was told to end: what its end does about that, and for how long, makes it no success."""
    handlers = Handlers()

    @handlers.job("hangs")
    async def hangs(job: Job) -> AsyncIterator[int]:
        try:
            while True:
                diary.note("yields", job.attempt)
                yield 1
        finally:
            await anyio.sleep_forever()

    node = await fleet.node(handlers, lease_ttl_s=1.0)
    ref = await node.dispatch(hangs, "k")
    await diary.has("yields", 1)
    await ref.stop(timeout_s=PATIENCE_S)
    with pytest.raises(JobCancelled):
        await ref.result(timeout_s=PATIENCE_S)


@pytest.mark.parametrize("how", ["stop", "time", "leave"])
async def test_a_plain_generator_ends_at_its_next_yield_when_its_job_is_told_to_end(
    fleet: Fleet, how: str
) -> None:
    handlers, seen, began = Handlers(), list[str](), anyio.Event()

    @handlers.job("rows", timeout_s=0.5 if how == "time" else None, attempts_max=1)
    def rows(job: Job) -> Iterator[int]:
        anyio.from_thread.run_sync(began.set)
        try:
            while True:
                yield 1
        except GeneratorExit:
            seen.append("at a yield")
            raise
        finally:
            seen.append("closed")

    node = await fleet.node(handlers, grace_s=0.1)
    ref = await node.dispatch(rows, "k")
    await began.wait()
    if how == "stop":
        await ref.stop(timeout_s=PATIENCE_S)
    elif how == "leave":
        await fleet.leave(node)
    else:
        with pytest.raises(JobParked):
            await ref.result(timeout_s=PATIENCE_S)
    assert seen == ["at a yield", "closed"]
    assert fleet.all_seen(HandlerLeaked) == []


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_generator_that_fails_is_a_failed_attempt(fleet: Fleet, is_async: bool) -> None:
    handlers, seen = Handlers(), list[int]()

    def once(attempt: int) -> None:
        seen.append(attempt)
        if attempt == 1:
            raise ConnectionError("at first")

    @handlers.job("async", backoff_s=0.001, backoff_max_s=0.002)
    async def rows(job: Job) -> AsyncIterator[int | Result[int]]:
        yield 1
        once(job.attempt)
        yield Result(job.attempt)

    @handlers.job("plain", backoff_s=0.001, backoff_max_s=0.002)
    def plain(job: Job) -> Generator[int, None, int]:
        yield 1
        once(job.attempt)
        return job.attempt

    node = await fleet.node(handlers)
    ref = await node.dispatch("async" if is_async else "plain", "k")
    assert await ref.result(timeout_s=PATIENCE_S) == 2
    assert seen == [1, 2]


async def test_a_generator_that_yields_what_counts_as_progress_has_time_anew(fleet: Fleet) -> None:
    handlers, ends_s = Handlers(), list[float]()

    def note_end() -> None:
        [worker] = fleet.workers(node)
        scope = worker.runs["rows"].scope
        assert scope is not None
        ends_s.append(scope.deadline)

    @handlers.job("rows", progress_timeout_s=60.0, attempts_max=1)
    async def rows(job: Job) -> AsyncIterator[int | Result[str]]:
        note_end()
        for n in range(5):
            yield n
            note_end()
            await anyio.lowlevel.checkpoint()
        yield Result("in time")

    @handlers.job("silent", progress_timeout_s=0.2, attempts_max=1)
    async def silent(job: Job) -> AsyncIterator[None]:
        while True:
            yield None  # it says nothing
            await anyio.sleep(0.05)

    node = await fleet.node(handlers)
    both = [await node.dispatch(each, each.name) for each in (rows, silent)]
    assert await both[0].result(timeout_s=PATIENCE_S) == "in time"
    assert all(before < after for before, after in pairwise(ends_s))
    assert len(ends_s) == 6
    with pytest.raises(JobParked, match="timed out"):
        await both[1].result(timeout_s=PATIENCE_S)


async def test_generators_may_save_and_depend_and_have_middleware_around(fleet: Fleet) -> None:
    handlers = Handlers()

    @handlers.around_run
    async def around(job: Job, call_next: Any) -> Any:
        return f"around {await call_next()}"

    @handlers.job("async", backoff_s=0.001, backoff_max_s=0.002)
    async def rows(job: Job, *, client: str = Depends(client)) -> AsyncIterator[Any]:
        at = job.state or 0
        yield at
        if at == 0:
            await job.save(7)
            raise ConnectionError
        yield Result([client, at])

    @handlers.job("plain")
    def plain(job: Job, *, client: str = Depends(client)) -> Generator[int, None, str]:
        yield 1
        return client

    node = await fleet.node(handlers)
    ref = await node.dispatch(rows, "k")
    assert await ref.result(timeout_s=PATIENCE_S) == "around ['client', 7]"
    assert NOTED == ["opened for k", "closed"] * 2
    assert await (await node.dispatch(plain, "k2")).result(timeout_s=PATIENCE_S) == "around client"


# --- classes --------------------------------------------------------------------------------------


async def test_a_class_is_made_for_each_attempt_with_what_it_depends_on(fleet: Fleet) -> None:
    handlers = Handlers()

    class Thumbnail:
        made = 0

        def __init__(self, of: Job, client: str = Depends(client), size: int = 3) -> None:
            Thumbnail.made += 1
            self.key, self.client, self.size = of.key, client, size

        async def run(self, job: Job, path: str, *, wide: bool = False) -> list[Any]:
            if job.attempt == 1:
                raise ConnectionError
            return [self.key, self.client, self.size, path, wide]

    thumbnail = handlers.job("thumbnail", backoff_s=0.001, backoff_max_s=0.002)(Thumbnail)
    node = await fleet.node(handlers)
    ref = await node.dispatch(thumbnail, "k", "a.png", wide=True)
    assert await ref.result(timeout_s=PATIENCE_S) == ["k", "client", 3, "a.png", True]
    assert Thumbnail.made == 2
    assert NOTED == ["opened for k", "closed"] * 2


async def test_the_run_of_a_class_may_be_plain_or_a_generator_and_depend_on_more(
    fleet: Fleet,
) -> None:
    handlers = Handlers()

    class Plain:
        def run(self, job: Job, n: int) -> bool:
            assert job.attempt == n
            return threading.current_thread() is not threading.main_thread()

    @attrs.define
    class Rows:
        of: str = Depends(client)

        async def run(
            self, job: Job, n: int, *, other: Annotated[str, Depends(client)] = ""
        ) -> AsyncIterator[Any]:
            yield n, job.attempt
            yield Result([self.of, other])

    class Counts:
        def run(self, job: Job, n: int) -> Generator[int, None, int]:
            yield n
            return n + job.attempt

    handlers.job("plain")(Plain)
    handlers.job("rows")(Rows)
    handlers.job("counts")(Counts)
    node = await fleet.node(handlers)
    found = [
        await (await node.dispatch(name, name, 1)).result(timeout_s=PATIENCE_S)
        for name in ("plain", "rows", "counts")
    ]
    assert found == [True, ["client", "client"], 2]
    assert NOTED == ["opened for rows", "closed"]  # once, for both


async def test_one_object_for_all_is_its_bound_method(fleet: Fleet) -> None:
    class Counter:
        def __init__(self) -> None:
            self.calls = 0

        async def run(self, job: Job) -> int:
            self.calls += job.attempt
            return self.calls

    handlers = Handlers()
    count = handlers.job("count")(Counter().run)
    node = await fleet.node(handlers)
    found = [
        await (await node.dispatch(count, key)).result(timeout_s=PATIENCE_S) for key in ("a", "b")
    ]
    assert found == [1, 2]


async def test_a_class_called_directly_takes_what_it_depends_on() -> None:
    handlers = Handlers()

    class Thumbnail:
        def __init__(self, client: str = Depends(client)) -> None:
            self.client = client

        async def run(self, job: Job, path: str) -> str:
            return f"{self.client}: {path} of {job.key}"

    thumbnail: Any = handlers.job("thumbnail")(Thumbnail)
    assert await thumbnail(make_job("k"), "a.png", client="fake") == "fake: a.png of k"
    assert await Thumbnail("fake").run(make_job("k"), "a.png") == "fake: a.png of k"


async def test_as_a_decorator_it_makes_a_handler_of_the_class(fleet: Fleet) -> None:
    """As of a function.  mypy does not look at that, so its users call it."""
    handlers = Handlers()

    @handlers.job("twice")
    class Twice:
        async def run(self, job: Job, n: int) -> int:
            return job.attempt + n

    handler: Any = Twice
    assert isinstance(handler, Handler)
    node = await fleet.node(handlers)
    assert await (await node.dispatch(handler, "k", 4)).result(timeout_s=PATIENCE_S) == 5


async def test_a_dependency_of_a_class_can_be_overridden(fleet: Fleet) -> None:
    handlers = Handlers()

    class Thumbnail:
        def __init__(self, client: str = Depends(client)) -> None:
            self.client = client

        async def run(self, job: Job) -> str:
            return f"{self.client} of {job.key}"

    thumbnail = handlers.job("thumbnail")(Thumbnail)
    node = await fleet.node(handlers)
    with handlers.override(client, lambda: "fake"):
        ref = await node.dispatch(thumbnail, "k")
        assert await ref.result(timeout_s=PATIENCE_S) == "fake of k"


class Abstract(ABC):
    @abstractmethod
    async def run(self, job: Job) -> None: ...


def _class(**methods: Any) -> type:
    return type("Odd", (), methods)


async def _run(self: Any, job: Job) -> None: ...


def _raises(self: Any) -> Any:
    raise KeyError


def _takes(self: Any, url: str) -> None: ...


def _takes_job(self: Any, job: str = Depends(client)) -> None: ...


def _yields(self: Any, job: Job) -> Iterator[None]:
    yield


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (_class(), "this one has neither"),
        (int, "this one has neither"),
        (_class(start=_run), "this one has neither"),
        (_class(run=_run, start=_run, stop=_run), "this one has both"),
        (Abstract, "it lacks run"),
        (_class(start=_run, stop=_run), "register it as a service"),
        (_class(run=_run, __init__=_takes), "__init__ the parameter 'url'"),
        (_class(run=lambda self: self), "does not take the Job"),
        (_class(start=lambda self: self, stop=_run), "register it as a service"),
        (_class(run=property(_raises)), "this one has neither"),
        (_class(run=_run, __init__=_takes_job), "both take 'job'"),
    ],
)
def test_a_class_that_is_no_form_is_refused_when_it_is_registered(given: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        Handlers().job("odd")(given)


def test_an_object_whose_methods_yield_is_refused() -> None:
    for method in ("start", "stop", "notify"):
        methods = {"start": _run, "stop": _run, method: _yields}
        with pytest.raises(ConfigError, match=f"its {method} is a generator"):
            Handlers().service("odd")(_class(**methods))
        with pytest.raises(ConfigError, match=f"its {method} is a generator"):
            Handlers().runner("odd", _class(**methods)())


def test_a_metaclass_that_raises_is_the_callers_own_fault() -> None:
    class Meta(type):
        def __getattribute__(cls, name: str) -> Any:
            raise KeyError(name)

    class Odd(metaclass=Meta):
        pass

    with pytest.raises(ConfigError, match="KeyError was raised by it"):
        Handlers().job("odd")(Odd)  # type: ignore[arg-type]


def test_a_function_is_called_as_it_is() -> None:
    """Nothing is paid for forms that are not used."""
    handlers = Handlers()

    async def fn(job: Job) -> None: ...

    def plain(job: Job) -> None: ...

    assert handlers.job("a")(fn).fn is fn
    assert handlers.job("b")(plain).fn is plain
    assert handlers.job("c")(partial(fn)).fn.func is fn  # type: ignore[attr-defined]


# --- arguments and results by their types ---------------------------------------------------------


@attrs.frozen
class Order:
    id: UUID
    at: datetime


ORDER = Order(UUID(int=7), datetime(2026, 5, 4, tzinfo=UTC))


async def test_all_forms_take_and_return_what_their_annotations_say(
    fleet: Fleet, diary: Diary
) -> None:
    """The result's stands within that of a generator."""
    handlers = Handlers()

    @handlers.job("async")
    async def rows(job: Job, order: Order) -> AsyncIterator[tuple[int, int] | Result[Order]]:
        yield order.at.day, job.attempt
        yield Result(order)

    @handlers.job("plain")
    def plain(job: Job, order: Order) -> Generator[int, None, Order]:
        yield job.attempt
        return order

    class Classy:
        async def run(self, job: Job, order: Order) -> Order:
            assert job.attempt == 1
            return order

    class Thing:
        async def start(self, job: Job, order: Order) -> None:
            diary.note(job.key, order)

        async def stop(self, job: Job) -> None:
            diary.note(job.key)

    classy, thing = handlers.job("class")(Classy), handlers.service("object")(Thing)
    node = await fleet.node(handlers)
    for each in (rows, plain, classy):
        ref = await node.dispatch(each, each.name, ORDER)
        assert await ref.result(timeout_s=PATIENCE_S) == ORDER
        with pytest.raises(WrongArguments):
            await node.dispatch(each.name, each.name)
    await node.dispatch(thing, "object", ORDER)
    await diary.has("object", ORDER)
    with pytest.raises(WrongArguments):
        await node.dispatch("object", "another", "weather")


async def test_a_result_of_another_type_than_a_generators_annotation_is_refused(
    fleet: Fleet,
) -> None:
    handlers = Handlers()

    @handlers.job("rows", attempts_max=1)
    async def rows(job: Job) -> AsyncIterator[int | Result[UUID]]:
        yield job.attempt
        yield Result("none")  # type: ignore[arg-type]

    node = await fleet.node(handlers)
    with pytest.raises(JobParked, match="unusable result"):
        await (await node.dispatch(rows, "k")).result(timeout_s=PATIENCE_S)
