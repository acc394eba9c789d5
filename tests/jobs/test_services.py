"""Services: run until stopped, hear what they are told, and carry their state when they move."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pool import Handlers, Job, Node
from pool.errors import InboxFull, JobCancelled, NoSuchJob, NotStopped, UsageError
from pool.events import AttemptFailed, ServiceMoved
from pool.jobs.worker.messages import LeaseSoft

if TYPE_CHECKING:
    from tests.nodes import Diary, Fleet

pytestmark = pytest.mark.anyio


def listening(diary: Diary) -> Handlers:
    """Return a service that notes where it runs, and what it hears."""
    handlers = Handlers()

    @handlers.service("listen", backoff_s=0.01, backoff_max_s=0.02)
    async def listen(job: Job) -> None:
        diary.note("started", job.node_id)
        try:
            async for note in job.notifications():
                diary.note("heard", note)
        finally:
            diary.note("ended", job.node_id)

    return handlers


def heard(diary: Diary) -> list[Any]:
    return [what for word, what in diary.entries if word == "heard"]


# --- running ------------------------------------------------------------------------------------


async def test_a_service_runs_until_it_is_stopped(fleet: Fleet, diary: Diary) -> None:
    node = await fleet.node(listening(diary))
    ref = await node.dispatch("listen", "k")
    await ref.started(timeout_s=30)
    await diary.counts(1)
    assert (await node.status("k")).handler == "listen"
    await ref.stop(cause="enough", timeout_s=30)
    assert diary.entries == [("started", node.id), ("ended", node.id)]
    with pytest.raises(JobCancelled) as cancelled:
        await ref.result(timeout_s=30)
    assert cancelled.value.cause == "enough"


async def test_a_service_that_returns_is_done(fleet: Fleet) -> None:
    handlers = Handlers()

    @handlers.service("short")
    async def short(job: Job) -> None:
        return

    node = await fleet.node(handlers)
    ref = await node.dispatch(short, "k")
    await ref.result(timeout_s=30)
    assert (await ref.status()).state == "done"


async def test_a_service_that_fails_is_started_again_however_often(
    fleet: Fleet, diary: Diary
) -> None:
    """It has no last attempt; finite jobs would have been parked after five."""
    handlers = Handlers()

    @handlers.service("shaky", backoff_s=0.001, backoff_max_s=0.002)
    async def shaky(job: Job) -> None:
        diary.note(job.attempt)
        if job.attempt < 8:
            raise OSError("lost the line")
        await anyio.sleep_forever()

    node = await fleet.node(handlers)
    await node.dispatch(shaky, "k")
    await diary.has(8)
    assert diary.entries == list(range(1, 9))
    await fleet.seen(AttemptFailed, times=7)
    assert len(fleet.all_seen(AttemptFailed)) == 7


async def test_after_a_healthy_run_failures_count_afresh(fleet: Fleet, diary: Diary) -> None:
    handlers = Handlers()

    @handlers.service("shaky", backoff_s=0.001, backoff_max_s=0.002, healthy_s=1.0)
    async def shaky(job: Job) -> None:
        diary.note(job.attempt)
        if len(diary.entries) == 3:
            await anyio.sleep(1.1)
        raise OSError("lost the line")

    node = await fleet.node(handlers)
    ref = await node.dispatch(shaky, "k")
    await diary.counts(5)
    assert diary.entries[:5] == [1, 2, 3, 2, 3]
    await ref.stop(timeout_s=30)


# --- notifications ------------------------------------------------------------------------------


async def test_notifications_are_handled_in_the_order_in_which_they_were_accepted(
    fleet: Fleet, diary: Diary
) -> None:
    """G-07."""
    node = await fleet.node(listening(diary))
    client = await fleet.node()
    await node.dispatch("listen", "k")
    for n in range(100):
        await (client if n % 2 else node).notify("k", n)
    await diary.has("heard", 99)
    assert heard(diary) == list(range(100))


async def test_what_many_senders_send_at_once_is_all_handled(fleet: Fleet, diary: Diary) -> None:
    node = await fleet.node(listening(diary))
    clients = [node, await fleet.node(), await fleet.node()]
    await node.dispatch("listen", "k")

    async def send(client: Node, name: int) -> None:
        for n in range(30):
            await client.notify("k", [name, n])

    async with anyio.create_task_group() as tasks:
        for name, client in enumerate(clients):
            tasks.start_soon(send, client, name)
    await diary.until(lambda _: len(heard(diary)) >= 90)
    for name in range(3):  # in order, for each sender
        assert [n for who, n in heard(diary) if who == name] == list(range(30))


async def test_a_service_without_an_owner_finds_what_it_was_told_when_it_starts(
    fleet: Fleet, diary: Diary
) -> None:
    """G-05, G-07: accepted while nobody could run it."""
    client = await fleet.node()
    await client.options(allow_unknown=True).dispatch("listen", "k")
    for n in range(5):
        await client.notify("k", n)
    await fleet.node(listening(diary))
    await diary.has("heard", 4)
    assert heard(diary) == [0, 1, 2, 3, 4]


async def test_a_service_dispatched_before_anybody_knew_it_is_a_service(
    fleet: Fleet, diary: Diary
) -> None:
    """Its handler says so, whatever the dispatcher could know: it is handed over at once."""
    client = await fleet.node()
    ref = await client.options(allow_unknown=True).dispatch("listen", "k")
    first = await fleet.node(listening(diary), grace_s=300.0)
    await diary.has("started", first.id)
    second = await fleet.node(listening(diary), settle_delay_s=60.0)
    with anyio.fail_after(50):  # well within the grace that a finite job would have
        await fleet.leave(first)
    await diary.has("started", second.id)
    await ref.stop(timeout_s=30)


async def test_a_loop_over_notifications_may_be_left_and_begun_again(
    fleet: Fleet, diary: Diary
) -> None:
    handlers = Handlers()

    @handlers.service("twice")
    async def twice(job: Job) -> None:
        for _ in range(2):
            async for note in job.notifications():
                diary.note(note)
                if note == "next":
                    break

    node = await fleet.node(handlers)
    ref = await node.dispatch(twice, "k")
    for note in (1, "next", 2, "next"):
        await node.notify("k", note)
    await ref.result(timeout_s=30)
    assert diary.entries == [1, "next", 2, "next"]


async def test_a_message_that_cannot_be_read_fails_one_attempt_and_not_the_next(
    fleet: Fleet, diary: Diary
) -> None:
    """D34: the inbox may hold foreign bytes; the service goes on behind them."""
    client = await fleet.node()
    await client.options(allow_unknown=True).dispatch("listen", "k")
    await client.notify("k", "first")
    inbox = fleet.names.inbox("k")
    raw: Any = fleet.client.lindex(inbox, 0)
    number, request, _ = raw.split(b"|", 2)
    fleet.client.rpush(inbox, b"|".join((b"%d" % (int(number) + 1), request, b"[1,")))
    await client.notify("k", "last")
    await fleet.node(listening(diary))
    await diary.has("heard", "last")
    assert heard(diary) == ["first", "last"]
    assert len(fleet.all_seen(AttemptFailed)) == 1


@pytest.mark.parametrize("payload", [None, "", b"", b"\x00|\n", {"a": [1, None]}, "x" * 60_000])
async def test_any_payload_arrives_as_it_was_sent(
    fleet: Fleet, diary: Diary, payload: object
) -> None:
    node = await fleet.node(listening(diary))
    await node.dispatch("listen", "k")
    await node.notify("k", payload)
    await node.notify("k", "last")
    await diary.has("heard", "last")
    assert heard(diary) == [payload, "last"]


async def test_a_finite_job_hears_notifications_too(fleet: Fleet) -> None:
    handlers = Handlers()

    @handlers.job("first")
    async def first(job: Job) -> Any:
        return await anext(job.notifications())

    node = await fleet.node(handlers)
    ref = await node.dispatch(first, "k")
    await node.notify("k", {"go": True})
    assert await ref.result(timeout_s=30) == {"go": True}


async def test_a_message_counts_as_handled_when_the_next_one_is_asked_for(
    fleet: Fleet, diary: Diary
) -> None:
    """At least once: what was in hand when the handler failed is delivered again."""
    handlers = Handlers()

    @handlers.service("shaky", backoff_s=0.001, backoff_max_s=0.002)
    async def shaky(job: Job) -> None:
        async for note in job.notifications():
            diary.note(job.attempt, note)
            if note == "b" and job.attempt == 1:
                raise OSError("in the middle of b")

    node = await fleet.node(handlers)
    await node.dispatch(shaky, "k")
    for note in ("a", "b", "c"):
        await node.notify("k", note)
    await diary.has(2, "c")
    assert diary.entries == [(1, "a"), (1, "b"), (2, "b"), (2, "c")]
    await fleet.until(lambda: not fleet.client.llen(fleet.names.inbox("k")))


async def test_what_came_while_a_service_ended_for_its_lease_is_handled_when_it_goes_on(
    fleet: Fleet, diary: Diary
) -> None:
    """G-07: the run that ended has heard of it; the one that goes on waits for no other message."""
    handlers = Handlers()
    ending, may_end = anyio.Event(), fleet.gate()

    @handlers.service("interrupted")
    async def interrupted(job: Job) -> None:
        if ending.is_set():
            diary.note(job.epoch, await anext(job.notifications()))
        try:
            await anyio.sleep_forever()
        finally:
            ending.set()
            with anyio.CancelScope(shield=True):
                await may_end.wait()

    node = await fleet.node(handlers)
    ref = await node.dispatch(interrupted, "k")
    await ref.started(timeout_s=30)
    [worker] = fleet.workers(node)
    run = worker.runs["k"]
    worker.put(LeaseSoft(0))  # it is good all the same: what was ended goes on at once
    await ending.wait()
    await node.notify("k", "told")
    await fleet.until(lambda: run.inbox is not None and not run.inbox.is_unread)
    may_end.set()
    await diary.has(run.start.epoch, "told")


async def test_a_full_inbox_refuses_and_has_room_again_when_messages_are_handled(
    fleet: Fleet, diary: Diary
) -> None:
    """G-09."""
    handlers = Handlers()
    go_on = anyio.Event()

    @handlers.service("slow")
    async def slow(job: Job) -> None:
        await go_on.wait()
        async for note in job.notifications():
            diary.note(note)

    node = await fleet.node(handlers, messages_max=3)
    await node.dispatch(slow, "k")
    for n in range(3):
        await node.notify("k", n)
    with pytest.raises(InboxFull) as refused:
        await node.notify("k", 3)
    assert (refused.value.key, refused.value.messages, refused.value.messages_max) == ("k", 3, 3)
    go_on.set()
    await diary.has(2)

    async def has_room() -> bool:
        try:
            await node.notify("k", "last")
        except InboxFull:
            return False
        return True

    await fleet.until(has_room)
    await diary.has("last")
    assert diary.entries == [0, 1, 2, "last"]


async def test_a_key_without_a_live_job_takes_no_messages(fleet: Fleet, diary: Diary) -> None:
    node = await fleet.node(listening(diary))
    with pytest.raises(NoSuchJob):
        await node.notify("nobody", 1)
    ref = await node.dispatch("listen", "k")
    await ref.stop(timeout_s=30)
    with pytest.raises(NoSuchJob):
        await node.notify("k", 1)


# --- moving -------------------------------------------------------------------------------------


async def test_messages_not_handled_before_a_hand_off_are_handled_after_it_in_order(
    fleet: Fleet, diary: Diary
) -> None:
    """G-07: none lost, none out of order, the one in hand delivered again."""
    handlers = Handlers()

    @handlers.service("slow")
    async def slow(job: Job) -> None:
        async for note in job.notifications():
            diary.note(job.node_id, note)
            if note == 2 and job.node_id == first.id:
                await anyio.sleep_forever()

    first = await fleet.node(handlers)
    client = await fleet.node()
    await client.dispatch(slow, "k")
    for n in range(5):
        await client.notify("k", n)
    await diary.has(first.id, 2)
    second = await fleet.node(handlers, settle_delay_s=60.0)
    await fleet.leave(first)
    for n in range(5, 8):
        await client.notify("k", n)
    await diary.has(second.id, 7)
    assert [n for node, n in diary.entries if node == first.id] == [0, 1, 2]
    assert [n for node, n in diary.entries if node == second.id] == [2, 3, 4, 5, 6, 7]


def counting(diary: Diary) -> Handlers:
    """Return a service whose state is a number: each owner adds one."""
    handlers = Handlers()

    @handlers.service("count")
    async def count(job: Job) -> None:
        found = job.state
        diary.note(job.node_id, found)
        try:
            await anyio.sleep_forever()
        finally:
            job.state = {"runs": (found or {"runs": 0})["runs"] + 1}

    return handlers


async def test_state_assigned_while_ending_reaches_the_next_owner(
    fleet: Fleet, diary: Diary
) -> None:
    first = await fleet.node(counting(diary))
    client = await fleet.node()
    await client.dispatch("count", "k")
    await diary.counts(1)
    second = await fleet.node(counting(diary), settle_delay_s=60.0)
    await fleet.leave(first)
    await diary.counts(2)
    third = await fleet.node(counting(diary), settle_delay_s=60.0)
    await fleet.leave(second)
    await diary.counts(3)
    assert diary.entries == [
        (first.id, None),
        (second.id, {"runs": 1}),
        (third.id, {"runs": 2}),
    ]


async def test_state_that_an_owner_does_not_touch_is_kept_for_the_one_after(
    fleet: Fleet, diary: Diary
) -> None:
    handlers = Handlers()

    @handlers.service("once")
    async def once(job: Job) -> None:
        diary.note(job.node_id, job.state)
        if job.state is None:
            job.state = b"\x00 bytes"
        await anyio.sleep_forever()

    nodes = [await fleet.node(handlers)]
    client = await fleet.node()
    await client.dispatch(once, "k")
    for n in range(1, 3):
        await diary.counts(n)
        nodes.append(await fleet.node(handlers, settle_delay_s=60.0))
        await fleet.leave(nodes[n - 1])
    await diary.counts(3)
    assert [state for _, state in diary.entries] == [None, b"\x00 bytes", b"\x00 bytes"]


async def test_a_service_moves_to_the_worker_that_should_have_it_and_at_most_once(
    fleet: Fleet, diary: Diary
) -> None:
    """A joining worker gets its share, with the state; nothing moves to and fro."""
    first = await fleet.node(counting(diary))
    keys = [f"k{n}" for n in range(16)]
    for key in keys:
        await first.dispatch("count", key)
    await diary.counts(16)
    second = await fleet.node(counting(diary))
    await fleet.seen(ServiceMoved)
    moved = {event.key for event in fleet.all_seen(ServiceMoved)}

    [there] = [info.id for info in first.workers if info.node == second.id]

    async def all_there() -> bool:
        moved.update(event.key for event in fleet.all_seen(ServiceMoved))
        owners = [(await first.status(key)).owner for key in moved]
        return all(owner.startswith(there) for owner in owners)

    await fleet.until(all_there)
    assert 0 < len(moved) < 16
    moves = [event.key for event in fleet.all_seen(ServiceMoved)]
    assert len(moves) == len(set(moves))
    assert all(state == {"runs": 1} for node, state in diary.entries if node == second.id)


async def test_state_that_cannot_be_stored_is_refused_where_it_is_assigned(
    fleet: Fleet, diary: Diary
) -> None:
    handlers = Handlers()

    @handlers.service("greedy")
    async def greedy(job: Job) -> None:
        for value in ("x" * 70_000, object()):
            try:
                job.state = value
            except UsageError as error:
                diary.note(type(error).__name__)
        diary.note(job.state)

    node = await fleet.node(handlers)
    await (await node.dispatch(greedy, "k")).result(timeout_s=30)
    assert diary.entries == ["PayloadTooLarge", "PayloadEncodingError", None]


# --- stopping -----------------------------------------------------------------------------------


async def test_a_job_that_waits_or_has_no_owner_is_stopped_at_once(fleet: Fleet) -> None:
    client = await fleet.node()
    options = client.options(allow_unknown=True, delay_s=60)
    waiting = await options.dispatch("any", "waiting")
    unassigned = await client.options(allow_unknown=True).dispatch("any", "unassigned")
    for ref, state in ((waiting, "waiting"), (unassigned, "unassigned")):
        assert (await ref.status()).state == state
        await ref.stop(cause="changed my mind", timeout_s=30)
        status = await ref.status()
        assert (status.state, status.cause) == ("cancelled", "changed my mind")


async def test_a_job_without_a_slot_is_stopped_without_ever_starting(
    fleet: Fleet, diary: Diary
) -> None:
    handlers = Handlers()

    @handlers.job("note")
    async def note(job: Job) -> None:
        diary.note(job.key)
        await anyio.sleep_forever()

    node = await fleet.node(handlers, capacity=1)
    first = await node.dispatch(note, "a")
    await diary.has("a")
    second = await node.dispatch(note, "b")
    assert (await second.status()).state == "unassigned"
    await second.stop(timeout_s=30)
    await first.stop(timeout_s=30)
    assert diary.entries == ["a"]


async def test_stopping_what_has_ended_or_never_was(fleet: Fleet, diary: Diary) -> None:
    handlers = Handlers()

    @handlers.job("echo")
    async def echo(job: Job) -> str:
        return "done"

    node = await fleet.node(handlers)
    ref = await node.dispatch(echo, "k")
    await ref.result(timeout_s=30)
    await ref.stop(timeout_s=30)  # it has ended, and stays as it is
    assert await ref.result(timeout_s=30) == "done"
    with pytest.raises(NoSuchJob):
        await node.stop("k", timeout_s=30)
    with pytest.raises(NoSuchJob):
        await node.stop("never-was", timeout_s=30)


async def test_stopping_an_ended_job_leaves_the_next_job_of_its_key_alone(
    fleet: Fleet, diary: Diary
) -> None:
    node = await fleet.node(listening(diary))
    first = await node.dispatch("listen", "k")
    await first.stop(timeout_s=30)
    second = await node.dispatch("listen", "k")
    await first.stop(timeout_s=30)
    assert (await second.status()).state in ("pending", "running")


async def test_a_stop_that_does_not_end_says_so_and_stays_requested(
    fleet: Fleet, diary: Diary
) -> None:
    handlers = Handlers()
    release = fleet.gate()

    @handlers.service("deaf")
    async def deaf(job: Job) -> None:
        diary.note("started")
        with anyio.CancelScope(shield=True):
            await release.wait()

    node = await fleet.node(handlers)
    client = await fleet.node()
    ref = await client.dispatch(deaf, "k")
    await diary.counts(1)
    with pytest.raises(NotStopped) as late:
        await ref.stop(cause="now", timeout_s=2.0)
    assert (late.value.key, late.value.job_id, late.value.waited_s) == ("k", ref.job_id, 2.0)
    assert (await ref.status()).is_stopping
    release.set()
    with pytest.raises(JobCancelled) as cancelled:
        await ref.result(timeout_s=30)
    assert cancelled.value.cause == "now"
    assert node.state == "open"


async def test_a_stop_survives_the_one_who_asked_for_it(fleet: Fleet, diary: Diary) -> None:
    """The intent is in the record: cancelling the call takes nothing back."""
    handlers = Handlers()
    release = fleet.gate()

    @handlers.service("slow")
    async def slow(job: Job) -> None:
        diary.note("started")
        try:
            await anyio.sleep_forever()
        finally:
            diary.note("ending")
            with anyio.CancelScope(shield=True):
                await release.wait()

    await fleet.node(handlers)
    client = await fleet.node()
    ref = await client.dispatch(slow, "k")
    await diary.counts(1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ref.stop)
        await diary.has("ending")
        tasks.cancel_scope.cancel()
    release.set()
    with pytest.raises(JobCancelled):
        await ref.result(timeout_s=30)


async def test_a_service_told_to_stop_while_it_is_handed_over_ends(
    fleet: Fleet, diary: Diary
) -> None:
    """Every script that would grant a record with a stop in it settles it instead."""
    handlers = Handlers()
    release = fleet.gate()

    @handlers.service("slow")
    async def slow(job: Job) -> None:
        diary.note("started", job.node_id)
        try:
            await anyio.sleep_forever()
        finally:
            diary.note("ending", job.node_id)
            with anyio.CancelScope(shield=True):
                await release.wait()

    first = await fleet.node(handlers)
    client = await fleet.node()
    ref = await client.dispatch(slow, "k")
    await diary.has("started", first.id)
    await fleet.node(handlers, settle_delay_s=60.0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(fleet.leave, first)
        await diary.has("ending", first.id)
        tasks.start_soon(partial(ref.stop, timeout_s=60))

        async def is_stopping() -> bool:
            return (await ref.status()).is_stopping

        await fleet.until(is_stopping)
        release.set()
        with pytest.raises(JobCancelled):
            await ref.result(timeout_s=60)
    assert [word for word, _ in diary.entries] == ["started", "ending"]
