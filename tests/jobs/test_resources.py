"""Resources: what a node holds for its handlers, and what is made for each attempt."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import attrs
import pytest

from pool import Depends, Handlers, Job, Node
from pool.errors import ConfigError, JobCancelled, JobParked
from pool.events import ActorCrashed, AttemptFailed, Event
from pool.jobs.node import OPEN_CALLS
from pool.jobs.run import _given
from pool.testing import make_job

if TYPE_CHECKING:
    from tests.nodes import Diary, Fleet

pytestmark = pytest.mark.anyio


async def test_a_lifespan_is_entered_once_per_node_and_closed_behind_its_jobs(
    fleet: Fleet, diary: Diary
) -> None:
    @asynccontextmanager
    async def lifespan(node: Node) -> AsyncIterator[str]:
        diary.note("opened")
        async with anyio.create_task_group():  # in a task of its own: it may
            yield f"of {node.pool}"
        diary.note("closed")

    handlers = Handlers(lifespan=lifespan)

    @handlers.job("sees")
    async def sees(job: Job, *, of: str = Depends(lifespan)) -> list[Any]:
        return [job.resources, of]

    @handlers.job("last")
    async def last(job: Job) -> None:
        diary.note("begun")
        await anyio.sleep(0.05)
        diary.note("ended")

    node = await fleet.node(handlers)
    await node.add_worker(handlers)
    said = f"of {fleet.pool}"
    assert await (await node.dispatch(sees, "k")).result(timeout_s=30) == [said, said]
    await node.dispatch(last, "k")
    await diary.has("begun")
    await fleet.leave(node)
    assert diary.entries == ["opened", "begun", "ended", "closed"]


async def test_a_lifespan_takes_as_long_as_it_needs(fleet: Fleet) -> None:
    """Longer than all that is asked of the server: what it waits for is its own."""
    settings = attrs.evolve(fleet.settings, op_timeout_s=0.3)

    @asynccontextmanager
    async def lifespan(_: Node) -> AsyncIterator[None]:
        await anyio.sleep(OPEN_CALLS * settings.op_timeout_s + 0.1)
        yield

    handlers = Handlers(lifespan=lifespan)
    handlers.job("any")(lambda _: 5)
    async with Node(fleet.pool, fleet.url, handlers=handlers, settings=settings) as node:
        assert await (await node.dispatch("any", "k")).result(timeout_s=30) == 5


async def test_a_lifespan_that_is_still_opening_ends_with_who_opens(
    fleet: Fleet, diary: Diary
) -> None:
    """At once, and without a word of an end that would be too long."""

    @asynccontextmanager
    async def lifespan(_: Node) -> AsyncIterator[None]:
        diary.note("opening")
        try:
            await anyio.sleep_forever()
        finally:
            diary.note("cancelled")
        yield

    handlers = Handlers(lifespan=lifespan)
    handlers.job("any")(lambda _: 5)
    crashes: list[ActorCrashed] = []

    def hear(event: Event) -> None:
        if isinstance(event, ActorCrashed):
            crashes.append(event)

    settings = attrs.evolve(fleet.settings, grace_s=3600.0)
    node = Node(fleet.pool, fleet.url, handlers=handlers, settings=settings, observers=(hear,))
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(node.__aenter__)
            await diary.has("opening")
            tasks.cancel_scope.cancel()
    assert (diary.entries, crashes, node.state) == (["opening", "cancelled"], [], "closed")


async def test_a_lifespan_that_fails_is_told(fleet: Fleet) -> None:
    """Out of the block that opens the node, or by an event at its end."""

    def failing(*, at_end: bool) -> Handlers:
        @asynccontextmanager
        async def lifespan(node: Node) -> AsyncIterator[None]:
            if at_end:
                yield
            raise LookupError("no database")

        handlers = Handlers(lifespan=lifespan)

        @handlers.job("any")
        async def never(job: Job) -> None: ...

        return handlers

    node = Node(fleet.pool, fleet.url, handlers=failing(at_end=False), settings=fleet.settings)
    with pytest.raises(LookupError, match="no database"):
        await node.__aenter__()
    assert node.state == "closed"
    node = await fleet.node(failing(at_end=True))
    await fleet.leave(node)
    assert "no database" in fleet.all_seen(ActorCrashed)[-1].error


async def test_dependencies_are_made_once_an_attempt_and_closed_in_the_opposite_order(
    fleet: Fleet, diary: Diary
) -> None:
    """Whatever ended it, and whatever they do about that."""

    async def url(job: Job) -> str:
        diary.note("url")
        return f"for {job.key}"

    async def client(url: str = Depends(url)) -> AsyncIterator[str]:
        diary.note("client")
        try:
            yield f"client {url}"
        except BaseException as error:  # noqa: BLE001 - the promise is about all of them
            diary.note("client saw", type(error).__name__)
            # Swallowed: it fails all the same.
        with anyio.move_on_after(5):
            await anyio.sleep(0.01)  # shielded
        diary.note("client closed")

    def table(client: str = Depends(client)) -> Iterator[str]:
        try:
            yield f"table of {client}"
        finally:
            closed.append("table closed")

    def size(job: Job) -> int:
        return len(job.key)

    closed: list[str] = []
    handlers = Handlers()

    @handlers.job("uses", attempts_max=1)
    async def uses(
        job: Job,
        how: str,
        *,
        table: str = Depends(table),
        url: str = Depends(url),
        size: int = Depends(size),
    ) -> list[Any]:
        assert not closed
        diary.note("handler")
        if how == "fails":
            raise ValueError("of the handler")
        if how == "hangs":
            await anyio.sleep_forever()
        return [table, url, size]

    @handlers.job("plain")
    def plain(job: Job, number: int, *, table: str = Depends(table)) -> list[Any]:
        return [number, table]

    node = await fleet.node(handlers)
    ref = await node.dispatch(uses, "k", "returns")
    assert await ref.result(timeout_s=30) == ["table of client for k", "for k", 1]
    assert diary.entries == ["url", "client", "handler", "client closed"]
    assert closed == ["table closed"]

    for how in ("fails", "hangs"):
        diary.entries.clear()
        closed.clear()
        ref = await node.dispatch(uses, "k", how)
        await diary.has("handler")
        if how == "hangs":
            await ref.stop(timeout_s=30)
        with pytest.raises((JobParked, JobCancelled)):
            await ref.result(timeout_s=30)
        saw = "ValueError" if how == "fails" else diary.entries[-2][1]
        assert diary.entries == ["url", "client", "handler", ("client saw", saw), "client closed"]
        assert closed == ["table closed"]
    ref = await node.dispatch(plain, "k", 3)
    assert await ref.result(timeout_s=30) == [3, "table of client for k"]


async def test_a_dependency_that_fails_is_a_failed_attempt(fleet: Fleet) -> None:
    """With its cause; at its end as at its beginning, async and plain."""
    handlers = Handlers()

    def plain() -> None:
        raise StopIteration("plain")

    async def early() -> None:
        raise OSError("early")

    async def late() -> AsyncIterator[None]:
        yield
        raise OSError("late")

    @handlers.job("plain", attempts_max=1)
    async def of_plain(job: Job, *, it: None = Depends(plain)) -> None: ...

    @handlers.job("early", attempts_max=1)
    async def of_early(job: Job, *, it: None = Depends(early)) -> None: ...

    @handlers.job("late", attempts_max=1)
    async def of_late(job: Job, *, it: None = Depends(late)) -> None: ...

    node = await fleet.node(handlers)
    for name in ("plain", "early", "late"):
        with pytest.raises(JobParked):
            await (await node.dispatch(name, "k")).result(timeout_s=30)
        said = "StopIteration" if name == "plain" else name
        assert said in fleet.all_seen(AttemptFailed, handler=name)[-1].error


class SaysNo(Exception):
    """One that is false, as a list of errors that is empty would be."""

    def __bool__(self) -> bool:
        return False


@pytest.mark.parametrize(
    ("does", "saw", "ended"),
    [
        ("", "- - -", ""),
        ("handler raises", "handler handler handler", "handler"),
        ("handler raises, second swallows", "- handler handler", "handler"),
        ("third raises", "third third -", "third"),
        ("third raises, first swallows", "third third -", ""),
        ("handler raises, third raises", "third third handler", "third behind handler"),
        ("handler raises, third raises, first swallows", "third third handler", "handler"),
        ("handler raises, second swallows, first raises", "- handler handler", "first"),
        (
            "handler raises, third raises, second raises, first raises",
            "second third handler",
            "first behind second behind third behind handler",
        ),
    ],
)
async def test_each_that_closes_is_told_what_is_raised_then(
    does: str, saw: str, ended: str
) -> None:
    """As blocks within blocks are; at last it has failed by that, or by what the handler raised."""
    seen: dict[str, str] = {}

    @contextmanager
    def here(name: str) -> Iterator[None]:
        seen[name] = "-"
        try:
            yield
        except SaysNo as error:
            seen[name] = str(error)
            if f"{name} " not in does:
                raise
        if f"{name} raises" in does:
            raise SaysNo(name)

    async def first() -> AsyncIterator[None]:
        with here("first"):
            yield

    @asynccontextmanager
    async def second(first: None = Depends(first)) -> AsyncIterator[None]:
        with here("second"):
            yield

    async def third(second: None = Depends(second)) -> AsyncIterator[None]:
        with here("third"):
            yield

    @Handlers().job("uses")
    async def uses(job: Job, *, third: None = Depends(third)) -> None:
        if "handler raises" in does:
            raise SaysNo("handler")

    raised: list[str] = []
    try:
        await _given(uses, make_job("k"), (), {}, anyio.CapacityLimiter(1))
    except SaysNo as error:
        told: BaseException | None = error
        while told is not None:
            raised.append(str(told))
            told = told.__context__
    assert " ".join(seen[name] for name in ("first", "second", "third")) == saw
    assert " behind ".join(raised) == ended


async def test_a_dependency_that_yields_more_than_once_or_never_is_a_failed_attempt(
    fleet: Fleet, diary: Diary
) -> None:
    async def never() -> AsyncIterator[None]:
        if diary.entries:
            yield

    async def twice() -> AsyncIterator[None]:
        try:
            yield
            yield
        finally:
            diary.note("closed")

    handlers = Handlers()

    @handlers.job("never", attempts_max=1)
    async def of_never(job: Job, *, it: None = Depends(never)) -> None: ...

    @handlers.job("twice", attempts_max=1)
    async def of_twice(job: Job, *, it: None = Depends(twice)) -> None: ...

    node = await fleet.node(handlers)
    for each, problem in ((of_never, "never has not yielded"), (of_twice, "more than once")):
        with pytest.raises(JobParked, match=problem):
            await (await node.dispatch(each, "k")).result(timeout_s=30)
    assert diary.entries == ["closed"]


async def tenant(job: Job) -> str:
    return job.key.partition("/")[0]


Tenant = Annotated[str, Depends(tenant)]


async def test_dependencies_are_found_by_annotation_too(fleet: Fleet) -> None:
    handlers = Handlers()

    @handlers.job("tells")
    async def tells(job: Job, number: int, tenant: Tenant) -> list[Any]:
        return [number, tenant]

    node = await fleet.node(handlers)
    assert await (await node.dispatch("tells", "t-1/k", 7)).result(timeout_s=30) == [7, "t-1"]


async def test_dependencies_are_overridden_in_tests(fleet: Fleet) -> None:
    async def name() -> str:
        return "real"

    async def greeting(name: str = Depends(name)) -> str:
        return f"hello {name}"

    async def fake(job: Job) -> str:
        return f"fake {job.key}"

    handlers = Handlers()

    @handlers.job("greets")
    async def greets(job: Job, *, greeting: str = Depends(greeting)) -> str:
        return greeting

    node = await fleet.node(handlers)
    with handlers.override(name, fake):
        assert await (await node.dispatch(greets, "k")).result(timeout_s=30) == "hello fake k"
    assert await (await node.dispatch(greets, "k")).result(timeout_s=30) == "hello real"


def test_what_cannot_be_made_is_refused_at_registration() -> None:
    handlers = Handlers()

    def first(second: Any) -> None: ...

    def second(first: Any = Depends(first)) -> None: ...

    first.__defaults__ = (Depends(second),)

    def in_circle(job: Job, *, it: None = Depends(first)) -> None: ...

    with pytest.raises(ConfigError, match="first -> second -> first"):
        handlers.job("circle")(in_circle)

    def unknown(what: int) -> None: ...

    def needs(job: Job, *, it: None = Depends(unknown)) -> None: ...

    with pytest.raises(ConfigError, match="nothing gives its dependency unknown"):
        handlers.job("unknown")(needs)

    def unreadable(job: Job, it: Annotated[NotThere, Depends(unknown)]) -> None: ...  # type: ignore[name-defined] # noqa: F821

    with pytest.raises(ConfigError, match="cannot be read"):
        handlers.job("unreadable")(unreadable)
    with pytest.raises(ConfigError, match="not callable"):
        Depends(3)  # type: ignore[call-overload]

    async def lifespan(node: Node) -> AsyncIterator[None]:
        yield

    with pytest.raises(ConfigError, match="asynccontextmanager"):
        Handlers(lifespan=lifespan)  # type: ignore[arg-type]
    assert len(handlers) == 0
