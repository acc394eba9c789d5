"""Jobs that must begin in time: too late is never, or the end of an attempt."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pool import Call, Handlers, Job, JobRef, Node, Retry
from pool.errors import InvalidOption, JobCancelled, JobExpired, JobParked, PoolError
from pool.events import AttemptFailed
from pool.names import Names

if TYPE_CHECKING:
    from tests.nodes import Fleet

pytestmark = pytest.mark.anyio

SHORT_S = 0.15
LONG_S = 60.0
BUSY_S = 3.0  # within this a busy machine begins a job

gates: dict[str, anyio.Event] = {}
ran: list[tuple[str, int]] = []


def _handlers(**options: Any) -> Handlers:
    handlers = Handlers()

    @handlers.job("timed", backoff_s=0.01, backoff_max_s=0.01, **options)
    async def timed(job: Job, fails: int = 0) -> int:
        ran.append((job.id, job.attempt))
        if job.attempt <= fails:
            raise Retry(after_s=BUSY_S + 0.5)  # by then its time to begin would be over
        return job.attempt

    @handlers.job("gated")
    async def gated(job: Job) -> str:
        await gates.setdefault(job.key, anyio.Event()).wait()
        return job.key

    @handlers.service("hold")
    async def hold(job: Job) -> None:
        await anyio.sleep_forever()

    return handlers


@pytest.fixture(autouse=True)
def _forget() -> None:
    gates.clear()
    ran.clear()


async def expires(ref: JobRef[Any]) -> None:
    """Check that it ends as such, without having begun."""
    for wait in (ref.started, ref.result):
        with pytest.raises(JobExpired) as expired:
            await wait(timeout_s=20)
        assert isinstance(expired.value, JobCancelled)
        assert expired.value.job_id == ref.job_id
    status = await ref.status()
    assert (status.state, status.cause, status.started_ms) == (
        "cancelled",
        "not started in time",
        0,
    )
    assert ref.job_id not in {job_id for job_id, _ in ran}


async def full(fleet: Fleet, **options: Any) -> Node:
    """Return a node whose only slot is taken."""
    node = await fleet.node(_handlers(**options), capacity=1)
    await (await node.dispatch("gated", "busy")).started(timeout_s=30)
    return node


def have_passed(fleet: Fleet, limit: str) -> None:
    """Have it be too late for the job of `k` now; what is long enough for a busy machine is not."""
    names = Names(fleet.pool, 0)

    def rewrite(client: Any) -> None:
        text = client.hget(names.jobs, "k").decode()
        [by_ms] = re.findall(rf"[|,]{limit}\d+/(\d+)", text)
        assert client.zscore(names.due, "k:k") == int(by_ms)  # then somebody would come for it
        late = re.sub(rf"([|,]{limit}\d+)/\d+", r"\1/1", text)
        client.multi()
        client.hset(names.jobs, "k", late)
        client.zadd(names.due, {"k:k": 1})

    fleet.client.transaction(rewrite, names.jobs)


# --- expires_s ----------------------------------------------------------------------------------


async def test_a_job_that_nobody_takes_expires(fleet: Fleet) -> None:
    """G-05: no worker knows its handler; then one comes, and is not given it."""
    client = await fleet.node()
    options = client.options(expires_s=LONG_S, allow_unknown=True)
    ref = await options.dispatch("timed", "k")
    status = await ref.status()
    assert 0 < status.begin_by_ms - status.accepted_us / 1000 <= LONG_S * 1000 + 1
    have_passed(fleet, "x")
    await expires(ref)
    node = await fleet.node(_handlers())
    assert await (await node.dispatch("timed", "k")).result(timeout_s=30) == 1
    failed = await fleet.seen(AttemptFailed, key="k")
    assert (failed.error, failed.follows) == (
        "was not started within expires_s",
        "it never will be",
    )


async def test_a_job_expires_while_all_slots_are_taken(fleet: Fleet) -> None:
    node = await full(fleet)
    ref = await node.options(expires_s=SHORT_S).dispatch("timed", "k")
    stays = await node.options(expires_s=LONG_S).dispatch("timed", "l")
    await expires(ref)
    gates["busy"].set()
    assert await stays.result(timeout_s=30) == 1
    assert (await stays.status()).begin_by_ms == 0


async def test_a_delayed_job_expires_that_finds_no_room(fleet: Fleet) -> None:
    node = await full(fleet)
    options = node.options(delay_s=SHORT_S, expires_s=2 * SHORT_S)
    await expires(await options.dispatch("timed", "k"))


async def test_a_queued_job_expires_and_so_does_one_whose_turn_comes_too_late(fleet: Fleet) -> None:
    node = await fleet.node(_handlers(), capacity=5)
    await (await node.dispatch("gated", "k")).started(timeout_s=30)
    queue = node.options(if_exists="queue", expires_s=SHORT_S)
    first = await queue.dispatch("timed", "k")
    last = await node.options(if_exists="queue", expires_s=LONG_S).dispatch("timed", "k")
    await expires(first)
    late = await queue.dispatch("timed", "k")
    name = f"\t{late.job_id} k"
    fleet.client.zadd(fleet.names.due, {f"k:{name}": 4e12})  # nobody comes for it while it waits
    await anyio.sleep(2 * SHORT_S)
    gates["k"].set()
    assert await last.result(timeout_s=30) == 1
    await expires(late)


@pytest.mark.parametrize("policy", ["replace", "coalesce"])
async def test_what_took_the_place_of_others_expires_too(fleet: Fleet, policy: Any) -> None:
    node = await fleet.node(_handlers(), capacity=5)

    async def stays() -> None:
        with anyio.CancelScope(shield=True):
            await gates.setdefault("k", anyio.Event()).wait()

    handlers = Handlers()

    @handlers.job("stubborn")
    async def stubborn(job: Job) -> None:
        await stays()

    await node.add_worker(handlers)
    await (await node.dispatch("stubborn", "k")).started(timeout_s=30)
    ref = await node.options(if_exists=policy, expires_s=SHORT_S).dispatch("timed", "k")
    await expires(ref)
    gates.setdefault("k", anyio.Event()).set()


async def test_a_job_that_has_begun_once_expires_no_more(fleet: Fleet) -> None:
    """Neither while it waits for its retry, nor when it is handed over."""
    node = await fleet.node(_handlers(), capacity=5)
    options = node.options(expires_s=BUSY_S)  # for the machine to begin it in
    retried = await options.dispatch("timed", "k", 1)
    moved = await options.dispatch("gated", "m")
    await moved.started(timeout_s=30)
    other = await fleet.node(_handlers(), capacity=5)
    await fleet.knows(node, 2)
    assert await retried.result(timeout_s=20) == 2
    await node.drain()
    gates.setdefault("m", anyio.Event()).set()
    assert await (await other.job("m", moved.job_id)).result(timeout_s=30) == "m"
    assert not fleet.all_seen(AttemptFailed, error="was not started within expires_s")


async def test_a_bulk_of_jobs_expires(fleet: Fleet) -> None:
    node = await full(fleet)
    many = await node.options(expires_s=SHORT_S).dispatch_many(
        "timed", [Call(f"k{n}") for n in range(100)]
    )
    for ref in many:
        assert isinstance(ref, JobRef)
        with pytest.raises(JobExpired):
            await ref.result(timeout_s=20)
    assert ran == []


async def test_an_idempotent_dispatch_of_an_expired_job_answers_that(fleet: Fleet) -> None:
    node = await full(fleet)
    options = node.options(expires_s=SHORT_S, job_id="once")
    await expires(await options.dispatch("timed", "k"))
    gates["busy"].set()
    again = await options.dispatch("timed", "k")
    with pytest.raises(JobExpired):
        await again.result(timeout_s=30)
    assert ran == []


# --- start_timeout_s ----------------------------------------------------------------------------


async def test_an_attempt_that_no_worker_begins_has_failed(fleet: Fleet) -> None:
    """Others follow it, as after a run that was too long; the last one parks the job."""
    node = await full(fleet, start_timeout_s=SHORT_S, attempts_max=2)
    ref = await node.dispatch("timed", "k")
    with pytest.raises(JobParked) as parked:
        await ref.result(timeout_s=20)
    why = "was not started within start_timeout_s"
    assert (parked.value.cause, parked.value.attempts) == ("timed out", 2)
    assert parked.value.last_error == why
    shown = await node.parked.show("k", ref.job_id)
    assert [(each.number, each.message) for each in shown.history] == [(1, why), (2, why)]
    assert ran == []


async def test_it_begins_when_there_is_room_in_time(fleet: Fleet) -> None:
    node = await full(fleet, start_timeout_s=SHORT_S, attempts_max=1000)
    ref = await node.dispatch("timed", "k")
    await fleet.seen(AttemptFailed, key="k")
    gates["busy"].set()
    assert await ref.result(timeout_s=20) > 1


async def test_park_on_start_gives_it_up_at_once(fleet: Fleet) -> None:
    node = await full(fleet, start_timeout_s=SHORT_S, park_on=["start"])
    with pytest.raises(JobParked) as parked:
        await (await node.dispatch("timed", "k")).result(timeout_s=20)
    assert parked.value.attempts == 1


async def test_a_replay_has_as_long_again(fleet: Fleet) -> None:
    node = await full(fleet, start_timeout_s=LONG_S, park_on=["start"])
    ref = await node.options(expires_s=LONG_S).dispatch("timed", "k")
    have_passed(fleet, "s")
    with pytest.raises(JobParked):
        await ref.result(timeout_s=20)
    again = await node.parked.replay("k", ref.job_id)
    status = await again.status()
    assert status.begin_by_ms > status.accepted_us / 1000
    have_passed(fleet, "s")
    with pytest.raises(JobParked):
        await again.result(timeout_s=20)
    gates["busy"].set()
    last = await node.parked.replay("k", again.job_id)
    assert await last.result(timeout_s=30) == 1


async def test_a_job_expires_between_attempts_that_nobody_began(fleet: Fleet) -> None:
    node = await full(fleet, start_timeout_s=SHORT_S, expires_s=BUSY_S, attempts_max=1000)
    ref = await node.dispatch("timed", "k")
    await expires(ref)
    await fleet.seen(AttemptFailed, error="was not started within start_timeout_s")


async def test_what_is_stopped_and_too_late_was_stopped(fleet: Fleet) -> None:
    """Whoever sweeps may come for both at once."""
    node = await fleet.node(_handlers())
    ref = await node.options(expires_s=LONG_S, allow_unknown=True).dispatch("nobody", "k")
    names = Names(fleet.pool, 0)
    fields = str(fleet.client.hget(names.jobs, "k"), "ascii").split("|")  # type: ignore[arg-type]
    fields[8], fields[15] = "sby somebody", "x1/1"
    fleet.client.hset(names.jobs, "k", "|".join(fields))
    fleet.client.zadd(names.due, {"k:k": 1})
    with pytest.raises(JobCancelled, match="by somebody"):
        await ref.result(timeout_s=20)
    assert not fleet.all_seen(AttemptFailed)


async def test_it_counts_from_the_end_of_a_delay_and_from_its_turn(fleet: Fleet) -> None:
    """What waits for something else waits for no worker."""
    node = await fleet.node(_handlers(start_timeout_s=LONG_S), capacity=5)
    await (await node.dispatch("gated", "k")).started(timeout_s=30)
    turn = await node.options(if_exists="queue").dispatch("timed", "k")
    delayed = await node.options(delay_s=SHORT_S).dispatch("timed", "l")
    put_off = await node.options(delay_s=2 * LONG_S).dispatch("timed", "m")
    for ref, state in ((turn, "queued"), (put_off, "waiting")):
        status = await ref.status()
        assert (status.state, status.begin_by_ms) == (state, 0)
    assert await delayed.result(timeout_s=30) == 1
    gates["k"].set()
    assert await turn.result(timeout_s=30) == 1


# --- said otherwise -----------------------------------------------------------------------------


async def test_who_knows_the_handler_by_its_name_alone_goes_by_what_it_says(fleet: Fleet) -> None:
    await full(fleet, expires_s=SHORT_S)
    client = await fleet.node()
    await expires(await client.dispatch("timed", "k"))
    stays = await client.options(expires_s=LONG_S).dispatch("timed", "l")
    gates["busy"].set()
    assert await stays.result(timeout_s=30) == 1


async def test_what_cannot_be_is_refused_before_anything_is_sent(fleet: Fleet) -> None:
    node, client = await fleet.node(_handlers()), await fleet.node()
    for bad in (0, -1.0, float("nan"), float("inf"), True, "1", 0.001, 366 * 86400):
        for name in ("expires_s", "start_timeout_s"):
            makers: list[Any] = [node.options, Handlers, partial(Handlers().job, "h")]
            for refuse in makers:
                with pytest.raises(InvalidOption) as refused:
                    refuse(**{name: bad})
                assert refused.value.option == name
    pairs: list[dict[str, Any]]
    pairs = [{"expires_s": 5, "start_timeout_s": 6}, {"expires_s": 5, "delay_s": 5}]
    for options in pairs:
        with pytest.raises(InvalidOption):
            node.options(**options)
    with pytest.raises(InvalidOption):
        Handlers().job("h", expires_s=5, start_timeout_s=6)
    for name in ("expires_s", "start_timeout_s"):
        limit: dict[str, Any] = {name: 5}
        for caller in (node, client):
            with pytest.raises(InvalidOption) as refused:
                await caller.options(**limit).dispatch("hold", "s")
            assert refused.value.option == name
            [answer] = await caller.options(**limit).dispatch_many("hold", ["s"])
            assert isinstance(answer, PoolError)
    assert fleet.record("s") is None


async def test_a_call_and_its_handler_must_go_together(fleet: Fleet) -> None:
    node = await fleet.node(_handlers(expires_s=1.0))
    pairs: list[dict[str, Any]] = [{"start_timeout_s": 2.0}, {"delay_s": 2.0}]
    for options in pairs:
        with pytest.raises(InvalidOption):
            await node.options(**options).dispatch("timed", "k")
    assert await (await node.options(expires_s=9.0).dispatch("timed", "k")).result(30) == 1
