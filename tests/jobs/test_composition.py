"""Handlers put together: included ones, middleware, hooks, defaults, a line per job."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import anyio
import attrs
import pytest
from structlog.testing import capture_logs

from pool import Call, Handlers, Job, JobRef, Retry
from pool.errors import (
    ConfigError,
    DuplicateHandler,
    InvalidKey,
    InvalidOption,
    JobParked,
    MiddlewareFailed,
)
from pool.events import HookFailed
from pool.jobs import around
from pool.middleware import Happened, Outgoing
from pool.testing.proxy import fault_proxy

if TYPE_CHECKING:
    from tests.nodes import Diary, Fleet

pytestmark = pytest.mark.anyio
TTL_S = 2.0

Next = Callable[[], Awaitable[Any]]
Send = Callable[[Outgoing], Awaitable[JobRef[Any]]]


async def test_included_handlers_run_under_their_prefix_with_all_that_is_around_them(
    fleet: Fleet, diary: Diary
) -> None:
    """The includer's middleware stands outside, the first that was added first."""
    outer, inner = Handlers(), Handlers()

    def noting(name: str) -> Callable[[Job, Next], Awaitable[Any]]:
        async def note(job: Job, call_next: Next) -> Any:
            diary.note(f"{name}>")
            value = await call_next()
            diary.note(f"<{name}")
            return f"{name}({value})"

        return note

    @inner.job("early")
    async def early(job: Job) -> str:
        diary.note("handler")
        return job.handler

    inner.around_run(noting("c"))
    outer.include(inner, prefix="in.")
    outer.around_run(noting("a"))
    outer.around_run(noting("b"))

    @inner.job("late")
    def late(job: Job) -> str:
        return job.handler

    node = await fleet.node(outer)
    assert sorted(outer) == ["in.early", "in.late"]
    assert await (await node.dispatch(early, "k")).result(timeout_s=30) == "a(b(c(in.early)))"
    assert diary.entries == ["a>", "b>", "c>", "handler", "<c", "<b", "<a"]
    assert await (await node.dispatch("in.late", "k")).result(timeout_s=30) == "a(b(c(in.late)))"
    with pytest.raises(ConfigError, match="included already"):
        Handlers().include(inner)
    other = Handlers()
    other.job("in.early")(early.fn)
    with pytest.raises(DuplicateHandler):
        outer.include(other)


async def test_middleware_around_a_run_may_answer_and_raise(fleet: Fleet, diary: Diary) -> None:
    handlers = Handlers(attempts_max=1)

    @handlers.around_run
    async def guard(job: Job, call_next: Next) -> Any:
        if job.key == "cached":
            return "from the cache"
        if job.key == "refused":
            raise PermissionError("not you")
        try:
            return await call_next()
        except ValueError as error:
            diary.note("saw", str(error))
            raise

    @handlers.job("fails")
    async def fails(job: Job) -> str:
        raise ValueError("of the handler")

    node = await fleet.node(handlers)
    assert await (await node.dispatch(fails, "cached")).result(timeout_s=30) == "from the cache"
    for key, said in [("refused", "not you"), ("other", "of the handler")]:
        with pytest.raises(JobParked) as parked:
            await (await node.dispatch(fails, key)).result(timeout_s=30)
        assert said in parked.value.last_error
    assert diary.entries == [("saw", "of the handler")]
    with pytest.raises(ConfigError, match="async def"):
        handlers.around_run(lambda _, call_next: call_next())


async def test_middleware_around_a_dispatch_sees_changes_and_refuses(fleet: Fleet) -> None:
    """Of one, and of each of many; from a client without handlers, too."""
    handlers, seen = Handlers(), list[Any]()

    @handlers.around_dispatch
    async def outer(outgoing: Outgoing, call_next: Send) -> JobRef[Any]:
        seen.append((outgoing.handler, outgoing.key, outgoing.args, dict(outgoing.options)))
        if outgoing.key == "refused":
            raise InvalidKey(key="refused", problem="by middleware")
        if outgoing.key == "failed":
            raise PermissionError("no quota")
        return await call_next(outgoing)

    @handlers.around_dispatch
    async def inner(outgoing: Outgoing, call_next: Send) -> JobRef[Any]:
        return await call_next(attrs.evolve(outgoing, kwargs={"tenant": "t"}))

    @handlers.job("tells")
    async def tells(job: Job, number: int, tenant: str = "") -> list[Any]:
        return [number, tenant]

    node, client = await fleet.node(handlers), await fleet.node()
    ref = await client.options(delay_s=0.01).dispatch(tells, "k", 1)
    assert await ref.result(timeout_s=30) == [1, "t"]
    assert seen == [("tells", "k", (1,), {"delay_s": 0.01})]
    with pytest.raises(InvalidKey):
        await node.dispatch("tells", "refused", 1)

    told = await node.dispatch_many(tells, [Call("a", 2), Call("refused", 3), Call("b", 4)])
    assert isinstance(told[1], InvalidKey)
    results = [await each.result(timeout_s=30) for each in told if isinstance(each, JobRef)]
    assert results == [[2, "t"], [4, "t"]]

    told = await node.dispatch_many(tells, [Call("c", 5), Call("failed", 6), Call("d", 7)])
    results = [await each.result(timeout_s=30) for each in told if isinstance(each, JobRef)]
    assert results == [[5, "t"], [7, "t"]]
    assert isinstance(told[1], MiddlewareFailed)
    assert (told[1].key, told[1].problem) == ("failed", "PermissionError: no quota")
    assert type(told[1].__cause__) is PermissionError
    with pytest.raises(PermissionError):
        await node.dispatch(tells, "failed", 1)


async def test_hooks_hear_and_harm_nothing(
    fleet: Fleet, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Async and plain ones; what one raises is an event, as is one too many."""
    handlers = Handlers(backoff_s=0.01, backoff_max_s=0.01)

    @handlers.on("started", "retried", "parked", "moved")
    async def note(happened: Happened) -> None:
        diary.note(happened.what, happened.key, happened.attempt)

    @handlers.on("started")
    def plain(happened: Happened) -> None:
        raise ValueError("of the hook")

    @handlers.job("twice", attempts_max=2)
    async def twice(job: Job) -> None:
        raise Retry(after_s=0)

    @handlers.job("long")
    async def long(job: Job) -> None:
        if job.node_id == first.id:
            await anyio.sleep_forever()

    first = await fleet.node(handlers)
    with pytest.raises(JobParked):
        await (await first.dispatch(twice, "k")).result(timeout_s=30)
    await diary.counts(4)
    assert sorted(diary.entries) == [
        ("parked", "k", 2),
        ("retried", "k", 1),
        ("started", "k", 1),
        ("started", "k", 2),
    ]
    event = await fleet.seen(HookFailed, times=2)
    assert (event.what, event.handler) == ("started", "twice")
    assert "of the hook" in event.problem
    monkeypatch.setattr("pool.jobs.worker.worker.HOOKS_MAX", 0)
    ref = await first.dispatch(long, "l")
    assert "are under way" in (await fleet.seen(HookFailed, handler="long")).problem
    monkeypatch.undo()
    await fleet.node(handlers)
    await first.drain(grace_s=0.0)
    await diary.has("moved", "l", 1)
    await ref.result(timeout_s=30)
    with pytest.raises(InvalidOption):
        handlers.on("ended")  # type: ignore[arg-type]
    assert around.HOOKS_MAX == 1000


async def test_hooks_hear_of_a_job_that_is_lost_and_of_who_recovers_it(
    fleet: Fleet, diary: Diary
) -> None:
    """A worker that is cut off for longer than its lease, and the next owner."""
    handlers = Handlers()

    @handlers.on("lost", "recovered", "started")
    async def note(happened: Happened) -> None:
        diary.note(happened.what, happened.node_id, happened.attempt)

    @handlers.service("serve")
    async def serve(job: Job) -> None:
        await anyio.sleep_forever()

    async with fault_proxy(fleet.url) as proxy:
        first = await fleet.node(handlers, url=proxy.url, lease_ttl_s=TTL_S)
        ref = await first.dispatch(serve, "k")
        await ref.started(timeout_s=30)
        await diary.counts(1)
        proxy.go_silent()
        second = await fleet.node(handlers, lease_ttl_s=TTL_S)
        await diary.until(
            lambda entries: any(entry[:2] == ("recovered", second.id) for entry in entries)
        )
        await proxy.heal()
        await diary.until(lambda entries: any(entry[0] == "lost" for entry in entries))
        await diary.counts(4)
        told = [entry[:2] for entry in diary.entries]
        assert told[0] == ("started", first.id)
        assert sorted(told[1:]) == sorted(
            [("lost", first.id), ("recovered", second.id), ("started", second.id)]
        )
        await second.stop("k", timeout_s=30)
        await fleet.leave(first)


def test_defaults_are_those_of_the_handlers_unless_a_handler_says_otherwise() -> None:
    handlers = Handlers(timeout_s=5, attempts_max=2, if_exists="queue", queue_max=3)
    handlers.job("as-usual")(lambda _: None)
    handlers.job("own", timeout_s=None, attempts_max=7, if_exists="reject")(lambda _: None)
    usual, own = handlers["as-usual"]._options, handlers["own"]._options
    assert (usual.timeout_s, usual.attempts_max, usual.policy) == (5, 2, "q3")
    assert (own.timeout_s, own.attempts_max, own.policy) == (None, 7, "")
    with pytest.raises(InvalidOption):
        Handlers(attempts_max=0)


async def test_each_job_has_a_line_where_that_is_asked_for(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers = Handlers(log_jobs="info", attempts_max=1)

    class AtOnce:
        @staticmethod
        def write(line: Callable[[], object]) -> None:
            line()

    monkeypatch.setattr("pool.runtime.observers._scribe", AtOnce)

    @handlers.job("ok")
    async def ok(job: Job) -> None: ...

    @handlers.job("bad")
    async def bad(job: Job) -> None:
        raise ValueError

    node = await fleet.node(handlers)
    with capture_logs() as lines:
        ref = await node.dispatch(ok, "k")
        await ref.result(timeout_s=30)
        with pytest.raises(JobParked):
            await (await node.dispatch(bad, "k")).result(timeout_s=30)
        await fleet.until(lambda: [line["event"] for line in lines].count("job.ended") >= 2)
    told = [line for line in lines if line["event"] == "job.ended"]
    assert [(line["handler"], line["outcome"]) for line in told] == [
        ("ok", "done"),
        ("bad", "parked"),
    ]
    first = told[0]
    assert (first["job_id"], first["key"], first["attempt"]) == (ref.job_id, "k", 1)
    assert first["pool"] == fleet.pool
    assert 0 <= first["waited_s"] < 60
    assert 0 <= first["ran_s"] < 60
