"""A key with a live job: refused, attached to, queued behind, or replaced by the newest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pool import Handlers, Job, JobRef, Node
from pool.errors import (
    ArgumentsDiffer,
    IdempotencyConflict,
    InvalidOption,
    JobCancelled,
    JobExists,
    JobParked,
    JobStopping,
    JobSuperseded,
    PoolFull,
    QueueFull,
)
from pool.events import IndexRestored, MessagesDropped
from pool.redis.commands.admission import DISPATCH
from pool.redis.pipeline import Pipeline

if TYPE_CHECKING:
    from tests.nodes import Fleet

pytestmark = pytest.mark.anyio

handlers = Handlers()
gates: dict[str, anyio.Event] = {}
ran: list[str] = []


@handlers.job("gated", attempts_max=1)
async def gated(job: Job, name: str) -> str:
    ran.append(name)
    await gates.setdefault(job.id, anyio.Event()).wait()
    return name


@handlers.job("stubborn", attempts_max=1)
async def stubborn(job: Job) -> str:
    with anyio.CancelScope(shield=True):
        await gates.setdefault(job.id, anyio.Event()).wait()
    return "done"


@handlers.job("failing", attempts_max=1)
async def failing(job: Job) -> None:
    await gates.setdefault(job.id, anyio.Event()).wait()
    raise ValueError("no")


@handlers.job("lined", if_exists="queue", queue_max=2)
async def lined(job: Job, name: str) -> str:
    text: str = await gated(job, name)
    return text


@handlers.service("forever")
async def forever(job: Job) -> None:
    await anyio.sleep_forever()


@pytest.fixture(autouse=True)
def _forget() -> None:
    gates.clear()
    ran.clear()


def let(*refs: JobRef[Any]) -> None:
    for ref in refs:
        gates.setdefault(ref.job_id, anyio.Event()).set()


async def line(node: Node, *names: str, policy: Any = "queue") -> list[JobRef[str]]:
    options = node.options(if_exists=policy)
    return [await options.dispatch(gated, "k", name) for name in names]


async def ends(ref: JobRef[Any], kind: type[Exception]) -> Any:
    with pytest.raises(kind) as raised:
        await ref.result(timeout_s=30)
    return raised.value


# --- queue --------------------------------------------------------------------------------------


async def test_what_is_queued_runs_in_order_and_each_has_its_result(fleet: Fleet) -> None:
    """G-02: one at a time; each has a reference, a status and a result of its own."""
    node = await fleet.node(handlers)
    refs = await line(node, "a", "b", "c")
    await refs[0].started(timeout_s=30)
    states = [(await ref.status()).state for ref in refs]
    assert states == ["running", "queued", "queued"]
    assert (await refs[1].status()).why == "the job before it has not ended"
    assert (await node.status("k")).job_id == refs[0].job_id
    let(*refs)
    assert [await ref.result(timeout_s=30) for ref in refs] == ["a", "b", "c"]
    assert ran == ["a", "b", "c"]


async def test_a_waiter_that_came_while_it_was_queued_is_told(fleet: Fleet) -> None:
    node, client = await fleet.node(handlers), await fleet.node()
    first, second = await line(client, "a", "b")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(second.started, 30)
        tasks.start_soon(second.result, 30)
        await first.started(timeout_s=30)
        await anyio.wait_all_tasks_blocked()
        let(first, second)
    assert node.state == "open"


@pytest.mark.parametrize("handler", [failing, forever])
async def test_whatever_ends_the_one_before_the_next_one_runs(fleet: Fleet, handler: Any) -> None:
    """Parked or stopped: the line goes on."""
    node = await fleet.node(handlers)
    first = await node.dispatch(handler, "k")
    await first.started(timeout_s=30)
    [second] = await line(node, "b")
    let(first, second)
    if handler is forever:
        await first.stop("enough")
        await ends(first, JobCancelled)
    else:
        await ends(first, JobParked)
    assert await second.result(timeout_s=30) == "b"


async def test_a_queued_job_is_stopped_at_once_and_the_line_goes_on(fleet: Fleet) -> None:
    node = await fleet.node(handlers)
    refs = await line(node, "a", "b", "c")
    await refs[1].stop("not wanted")
    await refs[1].stop("again")  # changes nothing
    assert (await ends(refs[1], JobCancelled)).cause == "not wanted"
    assert (await refs[1].status()).state == "cancelled"
    let(*refs)
    assert await refs[2].result(timeout_s=30) == "c"
    assert ran == ["a", "c"]


async def test_the_line_of_a_key_is_bounded_as_is_the_pool(fleet: Fleet) -> None:
    """G-09: refused at once, and told what is full."""
    node = await fleet.node(handlers, queued_jobs_max=3)
    options = node.options(if_exists="queue", queue_max=2)
    refs = [await options.dispatch(gated, "k", name) for name in "abc"]
    await refs[0].started(timeout_s=30)
    with pytest.raises(QueueFull) as refused:
        await options.dispatch(gated, "k", "d")
    assert (refused.value.key, refused.value.queue_max) == ("k", 2)
    longer = node.options(if_exists="queue")
    refs.append(await longer.dispatch(gated, "k", "d"))
    with pytest.raises(PoolFull):
        await longer.dispatch(gated, "k", "e")
    newest = await node.options(if_exists="coalesce").dispatch(gated, "k", "f")  # makes room itself
    let(refs[0], newest)
    assert await newest.result(timeout_s=30) == "f"


async def test_a_repeat_is_recognised_in_the_line(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G-01, G-04: whose answer was lost asks again, and has one job."""
    node = await fleet.node(handlers)
    [first] = await line(node, "a")
    send, copies = Pipeline.send, []

    def twice(self: Pipeline, call: Any, *args: Any, **kwargs: Any) -> Any:
        if call.script is DISPATCH:
            copies.append(call)
            send(self, call, lambda _: None)
        return send(self, call, *args, **kwargs)

    monkeypatch.setattr(Pipeline, "send", twice)
    [second] = await line(node, "b")
    monkeypatch.undo()
    assert len(copies) == 1
    let(first, second)
    assert await second.result(timeout_s=30) == "b"
    assert ran == ["a", "b"]


async def test_an_id_that_was_given_is_known_in_the_line(fleet: Fleet) -> None:
    """Whatever is asked for the second time; another job under it is refused."""
    node = await fleet.node(handlers)
    [first] = await line(node, "a")
    named = node.options(if_exists="queue", idempotency_key="order-7")
    second = await named.dispatch(gated, "k", "b")
    policies: tuple[Any, ...] = ("queue", "reject", "replace")
    for policy in policies:
        again = node.options(if_exists=policy, idempotency_key="order-7")
        assert (await again.dispatch(gated, "k", "b")).job_id == second.job_id
        with pytest.raises(IdempotencyConflict):
            await again.dispatch(gated, "k", "c")
    assert not (await first.status()).is_stopping
    let(first, second)
    assert await second.result(timeout_s=30) == "b"
    assert await (await named.dispatch(gated, "k", "b")).result(timeout_s=30) == "b"
    assert ran == ["a", "b"]


async def test_a_delay_counts_from_the_dispatch(fleet: Fleet) -> None:
    node = await fleet.node(handlers)
    [first] = await line(node, "a")
    later = node.options(if_exists="queue", delay_s=0.3)
    second = await later.dispatch(gated, "k", "b")
    let(first, second)
    assert await first.result(timeout_s=30) == "a"
    assert (await second.status()).state in ("waiting", "pending", "running", "done")
    assert await second.result(timeout_s=30) == "b"


async def test_the_next_one_has_an_empty_inbox_and_it_is_told(fleet: Fleet) -> None:
    """G-07: a message is for the job that it was sent to; what that left unhandled is counted."""
    node = await fleet.node(handlers)
    first, second = await line(node, "a", "b")
    await first.started(timeout_s=30)
    await node.notify("k", 1)
    await node.notify("k", 2)
    let(first, second)
    assert await second.result(timeout_s=30) == "b"
    told = await fleet.seen(MessagesDropped)
    assert (told.key, told.job_id, told.messages) == ("k", first.job_id, 2)


async def test_a_handler_says_what_its_dispatches_do(fleet: Fleet) -> None:
    """Its node knows; who only knows its name asks the lane; each call may say otherwise."""
    node, client = await fleet.node(handlers), await fleet.node()
    refs = [await node.dispatch(lined, "k", "a"), await client.dispatch("lined", "k", "b")]
    with pytest.raises(JobExists):
        await client.options(if_exists="reject").dispatch("lined", "k", "no")
    refs.append(await client.dispatch("lined", "k", "c"))
    with pytest.raises(QueueFull):
        await client.dispatch("lined", "k", "d")
    let(*refs)
    assert [await ref.result(timeout_s=30) for ref in refs] == ["a", "b", "c"]


# --- replace and coalesce -----------------------------------------------------------------------


async def test_replacing_stops_the_live_one_and_then_runs(fleet: Fleet) -> None:
    """G-02: the new one begins when the old one has really ended."""
    node, client = await fleet.node(handlers), await fleet.node()
    first = await node.dispatch(forever, "k")
    await first.started(timeout_s=30)
    [second] = await line(client, "b", policy="replace")
    assert (await ends(first, JobCancelled)).cause == f"replaced by {second.job_id}"
    let(second)
    assert await second.result(timeout_s=30) == "b"


async def test_replacing_what_nobody_runs_yet(fleet: Fleet) -> None:
    """Delayed, or without a worker: it ends at once, whoever comes for it."""
    node = await fleet.node(handlers)
    first = await node.options(delay_s=300).dispatch(gated, "k", "a")
    [second] = await line(node, "b", policy="replace")
    await ends(first, JobCancelled)
    let(second)
    assert await second.result(timeout_s=30) == "b"


async def test_while_a_stop_stands_the_new_ones_wait(fleet: Fleet) -> None:
    """What does not stop holds everybody up, and nobody runs beside it."""
    node = await fleet.node(handlers)
    first = await node.dispatch(stubborn, "k")
    await first.started(timeout_s=30)
    [second] = await line(node, "b", policy="replace")
    with pytest.raises(JobStopping):
        await node.options(if_exists="attach").dispatch(stubborn, "k")
    [third] = await line(node, "c")
    assert (await second.status()).state == "queued"
    let(first, second, third)
    assert await third.result(timeout_s=30) == "c"
    assert ran == ["b", "c"]


@pytest.mark.parametrize("policy", ["replace", "coalesce"])
async def test_the_newest_takes_the_place_of_all_that_wait(fleet: Fleet, policy: Any) -> None:
    """Each displaced one ends superseded, and says by whom."""
    node = await fleet.node(handlers)
    first = await node.dispatch(stubborn, "k")
    await first.started(timeout_s=30)
    refs = [*await line(node, "a", "b"), *await line(node, "c", "d", policy=policy)]
    for ref, by in zip(refs[:3], (refs[2], refs[2], refs[3]), strict=True):
        error = await ends(ref, JobSuperseded)
        assert (error.job_id, error.by) == (ref.job_id, by.job_id)
    assert (await first.status()).is_stopping == (policy == "replace")
    let(first, refs[3])
    assert await first.result(timeout_s=30) == "done"
    assert await refs[3].result(timeout_s=30) == "d"
    assert ran == ["d"]
    assert not fleet.all_seen(IndexRestored), "the walk had to end it"


# --- attach -------------------------------------------------------------------------------------


async def test_attaching_with_other_arguments_is_refused_unless_asked(fleet: Fleet) -> None:
    """Pending, running, waiting, unassigned: what it was given is found wherever it is."""
    node, client = await fleet.node(handlers), await fleet.node()
    attach = client.options(if_exists="attach")
    whatever = client.options(if_exists="attach", attach_any=True)
    jobs = {
        "running": await node.dispatch(gated, "running", "a"),
        "waiting": await node.options(delay_s=60).dispatch(gated, "waiting", "a"),
        "large": await node.dispatch(gated, "large", "a" * 5000),
        "nowhere": await node.options(allow_unknown=True).dispatch("nobody", "nowhere", "a"),
    }
    await jobs["running"].started(timeout_s=30)
    for key, ref in jobs.items():
        name = "a" * 5000 if key == "large" else "a"
        same = await attach.dispatch(ref.handler, key, name)
        assert same.job_id == ref.job_id
        for handler, arg in ((ref.handler, "b"), ("lined", name)):
            with pytest.raises(ArgumentsDiffer) as refused:
                await attach.dispatch(handler, key, arg)
            assert (refused.value.job_id, refused.value.handler) == (ref.job_id, ref.handler)
            found = await whatever.dispatch(handler, key, arg)
            assert (found.job_id, found.handler) == (ref.job_id, ref.handler)
    for ref in jobs.values():
        await ref.stop()


@pytest.mark.parametrize(
    "options", [{"if_exists": "other"}, {"queue_max": 0}, {"queue_max": 1001}, {"attach_any": 1}]
)
async def test_what_cannot_be_asked_for(fleet: Fleet, options: Any) -> None:
    node = await fleet.node()
    with pytest.raises(InvalidOption):
        node.options(**options)
    with pytest.raises(InvalidOption):
        Handlers().job("h", queue_max=0)
