"""Outcomes: how a job ends, when it is tried again, and who hears of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.from_thread
import pytest

from pool import Cancel, Handlers, Job, JobRef, Park, Retry
from pool.core.crash_marks import Marks
from pool.core.record import Outcome
from pool.errors import (
    JobCancelled,
    JobParked,
    NoSuchJob,
    NotStarted,
    NotStopped,
    OutcomeExpired,
    StoreUnavailable,
    WrongArguments,
)
from pool.events import AttemptFailed, CommitRefused
from pool.names import pair
from pool.redis.pipeline import Pipeline
from pool.redis.scripts import ScriptCall
from tests.stopwatch import stopwatch

if TYPE_CHECKING:
    from tests.nodes import Diary, Fleet

pytestmark = pytest.mark.anyio


def kept_of(fleet: Fleet) -> list[tuple[str, float]]:
    """Return for how long which outcomes are remembered."""
    found: Any = fleet.client.zrange(fleet.names.kept, 0, -1, withscores=True)
    return [(line, due) for text, due in found for line in text.decode().split("\n")]


async def test_a_failing_job_is_tried_again_with_backoff_and_then_parked_with_its_cause(
    fleet: Fleet, diary: Diary
) -> None:
    """Every attempt counts up under a new epoch; the last error is what the caller gets."""
    handlers = Handlers()

    @handlers.job("fail", attempts_max=3, backoff_s=0.02, backoff_max_s=0.05)
    async def fail(job: Job) -> None:
        diary.note(job.attempt, job.epoch)
        raise ValueError(f"no {job.attempt}\nsecond line")

    node = await fleet.node(handlers)
    ref = await node.dispatch(fail, "k")
    with pytest.raises(JobParked) as parked:
        await ref.result(timeout_s=30)
    error = parked.value
    assert (error.key, error.job_id, error.attempts) == ("k", ref.job_id, 3)
    assert error.cause == "failed"
    assert error.last_error.startswith("ValueError: no 3")
    assert [attempt for attempt, _ in diary.entries] == [1, 2, 3]
    epochs = [epoch for _, epoch in diary.entries]
    assert epochs == sorted(set(epochs))
    failed = fleet.all_seen(AttemptFailed)
    assert [event.attempt for event in failed] == [1, 2, 3]
    assert failed[-1].follows == "parked"
    status = await ref.status()
    assert (status.state, status.attempt, status.cause) == ("parked", 3, "failed")


async def test_a_status_tells_when_a_job_was_accepted_started_and_ended(
    fleet: Fleet, diary: Diary
) -> None:
    """C6: also once it has ended, and of a crash that it was aboard of."""
    handlers, go = Handlers(), anyio.Event()

    @handlers.job("work")
    async def work(job: Job, waits: bool) -> None:
        if waits:
            await go.wait()

    node = await fleet.node(handlers)
    quick = await node.dispatch(work, "quick", False)
    long = await node.dispatch(work, "long", True)
    never = await node.options(delay_s=600).dispatch(work, "never", False)
    await never.stop(timeout_s=30)
    await fleet.until(lambda: (found := fleet.record("long")) and found.state == "running")
    now = await long.status()
    assert 0 < now.accepted_us // 1000 <= now.started_ms == now.since_ms
    assert now.ended_ms == 0
    text: Any = fleet.client.hget(fleet.names.jobs, "long")
    fields = text.split(b"|")
    fields[9] = Marks(deaths=2).pack().encode()  # as after deaths of its workers
    fleet.client.hset(fleet.names.jobs, "long", b"|".join(fields))
    assert (await long.status()).crashes == 2
    go.set()
    for ref in (quick, long):
        await ref.result(timeout_s=30)
        told = await ref.status()
        assert 0 < told.accepted_us // 1000 <= told.started_ms <= told.ended_ms == told.since_ms
    told = await long.status()
    assert (told.accepted_us // 1000, told.started_ms) == (now.accepted_us // 1000, now.started_ms)
    assert told.crashes == 2
    told = await never.status()
    assert (told.state, told.started_ms, told.crashes) == ("cancelled", 0, 0)
    assert 0 < told.accepted_us // 1000 <= told.ended_ms


@pytest.mark.parametrize("order", [Cancel("enough"), Park("enough"), ValueError("always")])
async def test_a_job_that_ran_for_no_time_has_started(fleet: Fleet, order: Exception) -> None:
    """However it ended, also before its start was acknowledged."""
    handlers = Handlers()

    @handlers.job("work", attempts_max=1)
    async def work(job: Job) -> None:
        raise order

    node = await fleet.node(handlers)
    ref = await node.dispatch(work, "k")
    with pytest.raises((JobCancelled, JobParked)):
        await ref.result(timeout_s=30)
    told = await ref.status()
    assert 0 < told.accepted_us // 1000 <= told.started_ms <= told.ended_ms


async def test_a_time_limit_of_zero_asks_the_store(fleet: Fleet) -> None:
    """Of what has begun or ended it says so, of the others what they wait for."""
    handlers, go = Handlers(), anyio.Event()

    @handlers.job("work")
    async def work(job: Job, waits: bool) -> str:
        if waits:
            await go.wait()
        return "done"

    node, client = await fleet.node(handlers), await fleet.node()
    done = await client.dispatch(work, "done", False)
    assert await done.result(timeout_s=30) == "done"
    runs = await client.dispatch(work, "runs", True)
    await runs.started(timeout_s=30)
    later = await client.options(delay_s=600).dispatch(work, "later", False)
    for home in (client, node):
        of = [JobRef[str](ref.key, ref.job_id, "work", home._client) for ref in (done, runs, later)]
        assert await of[0].result(timeout_s=0) == "done"
        for ref in of[:2]:
            await fleet.until(partial(_has_begun, fleet, ref.key))
            await ref.started(timeout_s=0)
        with pytest.raises(TimeoutError):
            await of[1].result(timeout_s=0)
        with pytest.raises(NotStarted, match="its delay is not over"):
            await of[2].started(timeout_s=0)
    await later.stop(timeout_s=30)
    go.set()


def _has_begun(fleet: Fleet, key: str) -> bool:
    record = fleet.record(key)
    return record is None or record.state == "running"


async def test_a_parked_job_does_not_hold_its_key(fleet: Fleet) -> None:
    handlers = Handlers()

    @handlers.job("work", attempts_max=1)
    async def work(job: Job, fails: bool) -> str:
        if fails:
            raise ValueError
        return "done"

    node = await fleet.node(handlers)
    with pytest.raises(JobParked):
        await (await node.dispatch(work, "k", True)).result(timeout_s=30)
    assert await (await node.dispatch(work, "k", False)).result(timeout_s=30) == "done"
    assert fleet.client.hlen(fleet.names.letters) == 1


async def test_between_two_attempts_a_job_waits_without_an_owner(
    fleet: Fleet, diary: Diary
) -> None:
    handlers = Handlers()

    @handlers.job("later", backoff_s=60, backoff_max_s=60)
    async def later(job: Job) -> str:
        diary.note(job.attempt)
        if job.attempt == 1:
            raise Retry(after_s=0.3, cause="not yet")
        return "now"

    node = await fleet.node(handlers)
    ref = await node.dispatch(later, "k")
    await fleet.seen(AttemptFailed)

    async def waits() -> bool:
        return (await ref.status()).state == "waiting"

    await fleet.until(waits)
    status = await ref.status()
    assert (status.owner, status.attempt, status.error) == ("", 2, "not yet")
    assert await ref.result(timeout_s=30) == "now"
    assert diary.entries == [1, 2]


async def test_retry_waits_as_long_as_it_says_and_counts_as_an_attempt(
    fleet: Fleet, diary: Diary
) -> None:
    handlers = Handlers()

    @handlers.job("retry", attempts_max=2, backoff_s=60, backoff_max_s=60)
    async def retry(job: Job) -> None:
        diary.note(time.monotonic())
        raise Retry(after_s=0.2, cause="busy")

    node = await fleet.node(handlers)
    with stopwatch() as watch:
        with pytest.raises(JobParked) as parked:
            await (await node.dispatch(retry, "k")).result(timeout_s=30)
        first_s, second_s = diary.entries
        assert watch.took_s(first_s, second_s) < 1.0
    assert second_s - first_s >= 0.19
    assert (parked.value.attempts, parked.value.last_error) == (2, "busy")
    assert parked.value.cause == "failed"


async def test_a_bar_in_what_a_handler_says_is_told_as_a_broken_one(fleet: Fleet) -> None:
    """The fields of a record are divided by bars; a filter finds what was written."""
    handlers = Handlers()

    @handlers.job("parks", attempts_max=1)
    async def parks(job: Job, cause: str) -> None:
        raise Park(cause) if cause else ValueError("int | None")

    node = await fleet.node(handlers)
    for key, cause, said in (("a", "quota|tenant", "quota¦tenant"), ("b", "", "failed")):
        with pytest.raises(JobParked) as parked:
            await (await node.dispatch(parks, key, cause)).result(timeout_s=30)
        error = "" if cause else "ValueError: int ¦ None"
        assert (parked.value.cause, parked.value.last_error) == (said, error)
        page = await node.parked.list(cause=cause or "failed")
        assert [each.key for each in page.jobs] == [key]


async def test_cancel_ends_the_job_as_cancelled_with_its_cause(fleet: Fleet) -> None:
    handlers = Handlers()

    @handlers.job("cancel")
    async def cancel(job: Job) -> None:
        raise Cancel("the tenant left | at once\nreally")

    node = await fleet.node(handlers)
    ref = await node.dispatch(cancel, "k")
    with pytest.raises(JobCancelled) as cancelled:
        await ref.result(timeout_s=30)
    assert cancelled.value.cause.startswith("the tenant left")
    assert (await ref.status()).state == "cancelled"


async def test_park_gives_up_without_another_attempt(fleet: Fleet, diary: Diary) -> None:
    handlers = Handlers()

    @handlers.job("park", attempts_max=9)
    async def park(job: Job) -> None:
        diary.note(job.attempt)
        raise Park("the file is broken")

    node = await fleet.node(handlers)
    with pytest.raises(JobParked) as parked:
        await (await node.dispatch(park, "k")).result(timeout_s=30)
    assert (parked.value.cause, parked.value.attempts) == ("the file is broken", 1)
    assert diary.entries == [1]


async def test_instructions_work_from_plain_functions_too(fleet: Fleet) -> None:
    handlers = Handlers()

    @handlers.job("sync")
    def sync(job: Job, how: str) -> None:
        raise {"cancel": Cancel("c"), "park": Park("p")}[how]

    node = await fleet.node(handlers)
    with pytest.raises(JobCancelled):
        await (await node.dispatch(sync, "a", "cancel")).result(timeout_s=30)
    with pytest.raises(JobParked):
        await (await node.dispatch(sync, "b", "park")).result(timeout_s=30)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (object(), "object cannot be encoded"),
        ({1: 2}, "a key is int"),
        (float("nan"), "nan is not JSON"),
        ([b"x"], "bytes must be the only value"),
        ("x" * 3000, "larger than the pool takes"),
    ],
    ids=["object", "key", "nan", "bytes", "size"],
)
async def test_a_result_that_cannot_be_stored_parks_the_job_and_is_not_tried_again(
    fleet: Fleet, diary: Diary, value: object, problem: str
) -> None:
    """D16: running it again would give the same."""
    handlers = Handlers()

    @handlers.job("give")
    async def give(job: Job) -> object:
        diary.note(job.attempt)
        return value

    node = await fleet.node(handlers, result_bytes_max=3000)
    with pytest.raises(JobParked) as parked:
        await (await node.dispatch(give, "k")).result(timeout_s=30)
    assert parked.value.cause == "unusable result"
    assert problem in parked.value.last_error
    assert diary.entries == [1]


async def test_a_result_as_large_as_allowed_is_delivered(fleet: Fleet) -> None:
    handlers = Handlers()

    @handlers.job("give")
    async def give(job: Job, size: int) -> str:
        return "x" * size

    await fleet.node(handlers, result_bytes_max=200_000)
    client = await fleet.node()
    for size in (1000, 1022, 1100, 199_998):
        ref = await client.dispatch(give, f"k{size}", size)
        assert len(await ref.result(timeout_s=30)) == size


async def test_a_stored_payload_that_cannot_be_read_parks_its_job_and_the_worker_goes_on(
    fleet: Fleet,
) -> None:
    """D34, D36: Redis may hold anybody's bytes; only that one job is given up."""
    handlers = Handlers()

    @handlers.job("echo")
    async def echo(job: Job, value: int) -> int:
        return value

    bad = [b"[1,", b"\xff", b"7", b'{"args":1,"kwargs":{}}', b"\x01x", b"[1e999]", b"[NaN]"]
    client = await fleet.node()
    refs = [await client.dispatch(echo, f"bad-{n}", n) for n in range(len(bad))]
    for n, payload in enumerate(bad):
        fleet.client.hset(fleet.names.payloads, f"bad-{n}", payload)
    node = await fleet.node(handlers)
    for ref in refs:
        with pytest.raises(JobParked) as parked:
            await ref.result(timeout_s=30)
        assert (parked.value.cause, parked.value.attempts) == ("malformed payload", 1)
    assert await (await node.dispatch(echo, "good", 2)).result(timeout_s=30) == 2


async def test_arguments_that_do_not_fit_the_function_are_parked_without_another_attempt(
    fleet: Fleet,
) -> None:
    """From who does not know the function; who does is told himself."""
    handlers = Handlers()

    @handlers.job("two")
    async def two(job: Job, a: int, b: int) -> int:
        return a + b

    node = await fleet.node(handlers)
    with pytest.raises(WrongArguments, match="missing a required argument: 'b'"):
        await node.dispatch("two", "k", 1)
    other = await fleet.node()
    with pytest.raises(JobParked) as parked:
        await (await other.dispatch("two", "k", 1)).result(timeout_s=30)
    assert (parked.value.cause, parked.value.attempts) == ("wrong arguments", 1)
    assert "missing a required argument: 'b'" in parked.value.last_error


async def test_a_run_longer_than_its_limit_is_cancelled_and_counts_as_failed(
    fleet: Fleet, diary: Diary
) -> None:
    handlers = Handlers()

    @handlers.job("slow", timeout_s=0.1, attempts_max=2, backoff_s=0.01)
    async def slow(job: Job) -> None:
        began_s = time.monotonic()
        try:
            await anyio.sleep_forever()
        finally:
            diary.note(began_s, time.monotonic())

    node = await fleet.node(handlers)
    with stopwatch() as watch, pytest.raises(JobParked) as parked:
        await (await node.dispatch(slow, "k")).result(timeout_s=30)
    assert (parked.value.cause, parked.value.attempts) == ("timed out", 2)
    assert len(diary.entries) == 2
    for began_s, ended_s in diary.entries:
        assert ended_s - began_s >= 0.09
        assert watch.took_s(began_s, ended_s) < 0.6


async def test_a_plain_function_over_its_limit_has_its_result_refused(
    fleet: Fleet, diary: Diary
) -> None:
    """Its thread cannot be stopped: the slot stays taken until it ends, the result is dropped."""
    handlers = Handlers()
    release = threading.Event()

    @handlers.job("slow", timeout_s=0.1, attempts_max=1)
    def slow(job: Job) -> str:
        anyio.from_thread.run_sync(diary.note, "started")
        release.wait(60)
        return "too late"

    @handlers.job("next")
    async def following(job: Job) -> None:
        diary.note("next")

    node = await fleet.node(handlers, capacity=1)
    ref = await node.dispatch(slow, "k")
    other = await node.dispatch(following, "other")
    await diary.has("started")
    with pytest.raises(TimeoutError):
        await ref.result(timeout_s=0.3)
    assert diary.entries == ["started"]
    release.set()
    with pytest.raises(JobParked) as parked:
        await ref.result(timeout_s=30)
    assert parked.value.cause == "timed out"
    await other.result(timeout_s=30)


async def test_a_handler_that_swallows_cancellation_keeps_its_slot_and_loses_its_result(
    fleet: Fleet, diary: Diary
) -> None:
    """F15: its slot is not given to another job before it has really ended."""
    handlers = Handlers()
    release = fleet.gate()

    @handlers.job("deaf", timeout_s=0.1, attempts_max=1)
    async def deaf(job: Job) -> str:
        diary.note("started")
        with anyio.CancelScope(shield=True):
            await release.wait()
        return "too late"

    @handlers.job("next")
    async def following(job: Job) -> None:
        diary.note("next")

    node = await fleet.node(handlers, capacity=1)
    ref = await node.dispatch(deaf, "k")
    other = await node.dispatch(following, "other")
    await diary.has("started")
    with pytest.raises(TimeoutError):
        await ref.result(timeout_s=0.3)
    assert diary.entries == ["started"]
    with pytest.raises(NotStopped):
        await ref.stop(timeout_s=1.0)
    release.set()
    with pytest.raises(JobCancelled):  # its limit had passed when the stop came
        await ref.result(timeout_s=30)
    await other.result(timeout_s=30)
    assert diary.entries == ["started", "next"]


async def test_the_time_limit_counts_per_attempt_and_a_quick_retry_succeeds(fleet: Fleet) -> None:
    handlers = Handlers()

    @handlers.job("once-slow", timeout_s=0.1, backoff_s=0.01)
    async def once_slow(job: Job) -> int:
        if job.attempt == 1:
            await anyio.sleep_forever()
        return job.attempt

    node = await fleet.node(handlers)
    assert await (await node.dispatch(once_slow, "k")).result(timeout_s=30) == 2


async def test_an_outcome_is_kept_for_its_time_and_then_said_to_be_expired(fleet: Fleet) -> None:
    """Never a second run, never a wrong answer: what is not known any more is said so."""
    handlers = Handlers()

    @handlers.job("echo")
    async def echo(job: Job) -> str:
        return "done"

    node = await fleet.node(handlers, op_timeout_s=1.0, retry_window_s=6.5, result_ttl_s=0.0)
    ref = await node.dispatch(echo, "k")
    assert await ref.result(timeout_s=30) == "done"
    seconds, micros = fleet.client.time()
    [(line, due_ms)] = kept_of(fleet)
    assert line.partition(" ")[2] == pair(ref.key, ref.job_id)
    assert 5000 < due_ms - (1000 * seconds + micros // 1000) <= 6500
    fleet.client.delete(fleet.names.result(ref.key, ref.job_id))  # as if that time had passed
    with pytest.raises(OutcomeExpired) as expired:
        await ref.result(timeout_s=30)
    assert (expired.value.key, expired.value.job_id) == ("k", ref.job_id)
    with pytest.raises(OutcomeExpired):
        await ref.started(timeout_s=30)
    with pytest.raises(NoSuchJob):
        await ref.status()
    with pytest.raises(NoSuchJob):  # nobody knows any more whether it has ended
        await ref.stop(timeout_s=30)


async def test_results_of_every_ending_are_the_same_from_any_node(fleet: Fleet) -> None:
    """G-04: one outcome, whoever asks, and as often as they ask."""
    handlers = Handlers()

    @handlers.job("end", attempts_max=1)
    async def end(job: Job, how: str) -> str:
        if how == "cancel":
            raise Cancel("why")
        if how == "fail":
            raise OSError("disk")
        return how

    await fleet.node(handlers)
    first, second = await fleet.node(), await fleet.node()
    for how in ("well", "cancel", "fail"):
        ref = await first.dispatch(end, f"k-{how}", how)
        texts = set()
        for node in (first, second, first):
            asked = JobRef[Any](ref.key, ref.job_id, ref.handler, node._client)
            try:
                texts.add(str(await asked.result(timeout_s=30)))
            except (JobCancelled, JobParked) as error:
                texts.add(str(error))
        assert len(texts) == 1


async def test_the_first_outcome_stands_when_another_owner_settled_meanwhile(
    fleet: Fleet, diary: Diary
) -> None:
    """G-02, G-04: what a handler returns after its key was taken is refused, and said so."""
    handlers = Handlers()
    release = fleet.gate()

    @handlers.job("work")
    async def work(job: Job) -> str:
        diary.note("started")
        with anyio.CancelScope(shield=True):
            await release.wait()
        return "second"

    node = await fleet.node(handlers)
    ref = await node.dispatch(work, "k")
    await diary.has("started")

    async def runs() -> bool:
        return (await ref.status()).state == "running"

    await fleet.until(runs)
    # Another one settled it: the record is gone, its outcome stands.
    record = fleet.record("k")
    assert record is not None
    outcome = f"done|{record.epoch + 1}|other.1|1|0||\n".encode() + b'"first"'
    assert Outcome.parse(outcome) is not None
    fleet.client.hdel(fleet.names.jobs, "k")
    fleet.client.hdel(fleet.names.payloads, "k")
    fleet.client.srem(fleet.names.owned(record.owner), "k")
    fleet.client.set(fleet.names.result(ref.key, ref.job_id), outcome, ex=60)
    release.set()
    refused = await fleet.seen(CommitRefused)
    assert refused.key == "k"
    assert await ref.result(timeout_s=30) == "first"


async def test_a_failure_whose_answer_was_lost_is_not_said_to_be_refused(
    fleet: Fleet, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was recorded, and another worker has the next attempt by the time it is sent again."""
    handlers, real, lost = Handlers(), Pipeline.send, list[Callable[[], object]]()

    @handlers.job("fail", attempts_max=2, backoff_s=0.02)
    async def fail(job: Job) -> None:
        diary.note(job.attempt)
        if job.attempt == 1:
            raise ValueError("no")
        await anyio.sleep_forever()

    def send(self: Pipeline, command: Any, on_reply: Any, **limits: float) -> None:
        words = [str(word) for word in command.args] if isinstance(command, ScriptCall) else []
        if not lost and any(word.startswith("ValueError: no") for word in words):
            error = StoreUnavailable(problem="the answer was lost", maybe_done=True)
            lost.append(partial(on_reply, error))
            real(self, command, lambda _: None, **limits)
        else:
            real(self, command, on_reply, **limits)

    monkeypatch.setattr(Pipeline, "send", send)
    first = await fleet.node(handlers)
    await first.dispatch(fail, "k")
    await fleet.until(lambda: bool(lost))
    await fleet.node(handlers)
    await diary.counts(2)
    lost[0]()
    [worker] = fleet.workers(first)
    await fleet.until(lambda: worker._lanes[0].box.is_empty and not worker._settling[0])
    assert diary.entries == [1, 2]
    assert not fleet.all_seen(CommitRefused)
