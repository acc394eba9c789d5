"""Calls that were tried several times: what one try may have done, no later answer denies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import attrs
import pytest

from pool import Handlers, Job
from pool.errors import (
    AuthError,
    InboxFull,
    JobExists,
    NoSuchJob,
    NotRunning,
    StorageFull,
    StoreError,
    StoreFault,
    StoreLost,
    StoreUnavailable,
    unchanged,
    unsure,
)
from pool.jobs.client.dispatcher import Dispatcher, Load, Pending, _Admitted
from pool.jobs.client.requests import _Limit
from pool.jobs.client.waiters import Waiters, Waiting
from pool.maps.commands import RESET
from pool.maps.replica import Replica
from pool.redis.commands.admission import Admission
from pool.redis.commands.talk import INTEND, NOTIFY, InboxHas, MovedOn, Noted, NotNoted
from pool.redis.pipeline import LATE, Pipeline
from pool.redis.scripts import ScriptCall
from pool.streams.commands import ADD_ONCE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pool.redis.io.system import Waiter
    from tests.nodes import Diary, Fleet

SENT = StoreUnavailable(problem="it did not answer in time", maybe_done=True)
UNSENT = StoreUnavailable(problem=LATE, maybe_done=False)


def test_what_was_not_sent_the_last_time_is_not_said_to_be_done_or_not_done_at_once() -> None:
    """C1: "not sent ..., maybe_done=True" told two things at once."""
    for error in (UNSENT, StoreFault(problem=LATE, maybe_done=False), AuthError(problem="no")):
        told = unsure(error)
        assert told.maybe_done
        assert "an earlier try had no answer" in str(told)
    assert unsure(SENT) is not SENT
    assert str(unsure(SENT)) == str(SENT)
    assert str(unsure(StoreLost(pool="p"))) == str(StoreLost(pool="p", maybe_done=True))


def test_what_only_looked_is_not_said_to_have_been_carried_out() -> None:
    error = unsure(UNSENT)
    assert isinstance(error, StoreUnavailable)
    assert str(unchanged(error)) == str(UNSENT)
    assert str(unchanged(SENT)) == str(attrs.evolve(SENT, maybe_done=False))


def _nobody_waits() -> Waiter:
    raise NotImplementedError


@pytest.mark.parametrize("maybe_done", [False, True])
def test_a_dispatch_tells_the_union_of_its_tries(maybe_done: bool) -> None:
    item = Admission(key="k", id="1", handler="h", kind=None, payload=b"payload")
    pending = Pending(item, 0.0, 0.0, Load(), _nobody_waits)
    pending.maybe_done = maybe_done
    pending.fail(UNSENT)
    told = pending.answer
    assert isinstance(told, StoreUnavailable)
    assert told.maybe_done == maybe_done
    assert told.problem.startswith("not sent") != maybe_done
    lost = Pending(item, 0.0, 0.0, Load(), _nobody_waits, maybe_done=True)
    lost.fail(StoreLost(pool="p"))
    assert type(lost.answer) is StoreLost
    assert lost.answer.maybe_done


def test_what_was_tried_gets_no_more_time_because_others_move() -> None:
    """A line that moves gives what waits for it time, up to a limit, and second tries none."""
    item = Admission(key="k", id="1", handler="h", kind=None, payload=b"payload")
    pending = Pending(item, 4.0, 9.0, Load(), _nobody_waits)
    for moved_s, deadline_s in ((3.0, 5.0), (2.0, 5.0), (6.0, 8.0), (8.0, 9.0)):
        pending.go_on(moved_s, 2.0)
        assert pending.deadline_s == deadline_s
    tried = Pending(item, 4.0, 9.0, Load(), _nobody_waits, failure=UNSENT)
    tried.go_on(3.0, 2.0)
    assert tried.deadline_s == 4.0


def test_a_late_answer_gives_a_request_time_from_when_the_line_moved() -> None:
    at_s = {"now": 0.0, "moved": 0.0}
    limit = _Limit(lambda: at_s["now"], lambda: at_s["moved"], 2.0, 4.0, 9.0)
    for now_s, moved_s, deadline_s in (
        *((3.0, 3.0, 4.0), (4.0, 1.0, 4.0)),
        *((4.5, 4.0, 6.0), (8.0, 7.0, 9.0), (9.5, 9.5, 9.0)),
    ):
        at_s.update(now=now_s, moved=moved_s)
        limit.go_on()
        assert limit.deadline_s == deadline_s


async def _lossy(
    fleet: Fleet,
    monkeypatch: pytest.MonkeyPatch,
    script: object,
    then: Callable[[], Awaitable[object]],
) -> list[type]:
    """Have the answer to the first call of this script that is carried out be lost.

    Then this is done before it is tried again; return what the tries were answered.
    """
    real, told = Pipeline._once, list[type]()

    async def once(self: Pipeline, command: Any, timeout_s: float, until_s: float | None) -> Any:
        reply = await real(self, command, timeout_s, until_s)
        if not isinstance(command, ScriptCall) or command.script is not script:
            return reply
        told.append(type(reply))
        if told.count(Noted) == 1 and type(reply) is Noted:
            await then()
            raise attrs.evolve(SENT)
        return reply

    monkeypatch.setattr(Pipeline, "_once", once)
    return told


@pytest.mark.anyio
@pytest.mark.parametrize("follows", [False, True])
async def test_a_message_without_an_answer_is_for_the_job_that_it_found(
    fleet: Fleet, diary: Diary, monkeypatch: pytest.MonkeyPatch, follows: bool
) -> None:
    """C2's class: its repeat says neither that there was no job, nor reaches the next one."""
    mine = Handlers()

    @mine.job("listen")
    async def listen(job: Job) -> None:
        async for note in job.notifications():
            diary.note(job.id, note)
            if note == "end":
                return

    node = await fleet.node(mine)
    first = await node.dispatch(listen, "k")
    await first.started(timeout_s=30)
    refs = [first]

    async def then() -> None:
        await first.result(timeout_s=30)
        if follows:
            refs.append(await node.dispatch(listen, "k"))
            await refs[-1].started(timeout_s=30)

    told = await _lossy(fleet, monkeypatch, NOTIFY, then)
    with pytest.raises(StoreUnavailable, match="an earlier try had no answer") as unknown:
        await node.notify("k", "end")
    assert unknown.value.maybe_done
    assert told == [MovedOn, Noted, MovedOn if follows else NotNoted]
    monkeypatch.undo()
    if follows:
        await node.notify("k", "other")
        await diary.has(refs[-1].job_id, "other")
        await refs[-1].stop(timeout_s=30)
    assert diary.entries[0] == (first.job_id, "end")
    assert (refs[-1].job_id, "end") not in diary.entries[1:]


@pytest.mark.anyio
async def test_a_message_that_was_lost_before_it_came_is_sent_again(
    fleet: Fleet, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer was lost, and the job is there: it is found in the inbox, and not twice there."""
    mine = Handlers()

    @mine.job("deaf")
    async def deaf(job: Job) -> None:
        await anyio.sleep_forever()

    node = await fleet.node(mine, messages_max=1)
    ref = await node.dispatch(deaf, "k")
    await ref.started(timeout_s=30)

    async def nothing() -> None:
        pass

    told = await _lossy(fleet, monkeypatch, NOTIFY, nothing)
    await node.notify("k", "once")
    assert told == [MovedOn, Noted, Noted]
    assert fleet.client.llen(fleet.names.inbox("k")) == 1
    with pytest.raises(InboxFull):  # surely refused: nothing of this one was ever sent before
        await node.notify("k", "more")
    assert told[3:] == [InboxHas]  # whose job it is was known
    await ref.stop(timeout_s=30)
    with pytest.raises(NoSuchJob):
        await node.notify("k", "late")


@pytest.mark.anyio
async def test_a_server_that_is_full_since_says_nothing_of_an_earlier_try(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I30: what had come, and was handled, was said to be refused."""
    mine = Handlers()

    @mine.job("deaf")
    async def deaf(job: Job) -> None:
        await anyio.sleep_forever()

    node = await fleet.node(mine)
    await (await node.dispatch(deaf, "k")).started(timeout_s=30)
    real, is_full = Pipeline._once, False

    async def once(self: Pipeline, command: Any, timeout_s: float, until_s: float | None) -> Any:
        nonlocal is_full
        if is_full:
            raise StorageFull
        reply = await real(self, command, timeout_s, until_s)
        if isinstance(command, ScriptCall) and command.script is NOTIFY and type(reply) is Noted:
            is_full = True
            raise attrs.evolve(SENT)
        return reply

    with monkeypatch.context() as patched:
        patched.setattr(Pipeline, "_once", once)
        with pytest.raises(StoreUnavailable, match="an earlier try had no answer") as unknown:
            await node.notify("k", "note")
        with pytest.raises(StorageFull):  # surely refused: nothing of this one came before
            await node.notify("k", "more")
    assert unknown.value.maybe_done
    assert fleet.client.llen(fleet.names.inbox("k")) == 1


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (StorageFull(), StoreUnavailable),
        (AuthError(problem="no"), StoreUnavailable),
        (StoreLost(pool="p"), StoreLost),
        (NotRunning(state="closed"), StoreUnavailable),
    ],
)
async def test_what_a_link_repeats_is_not_said_to_be_refused(
    fleet: Fleet,
    monkeypatch: pytest.MonkeyPatch,
    error: StoreError | NotRunning,
    told: type[StoreError],
) -> None:
    """Its first try had no answer: no later one says that nothing was written."""
    node = await fleet.node()
    answers: list[Exception] = [attrs.evolve(SENT), error]

    async def fail(answer: Exception) -> None:
        raise answer

    def once(self: Pipeline, command: Any, timeout_s: float, until_s: float | None) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, NotRunning):
            raise answer  # it is closed: nothing is sent
        return fail(answer)

    with monkeypatch.context() as patched:
        patched.setattr(Pipeline, "_once", once)
        with pytest.raises((StoreUnavailable, StoreLost)) as unknown:
            await node._open_wiring.requests.context.pipeline.execute(
                "SET", "a", "b", repeatable=True
            )
    assert type(unknown.value) is told
    assert unknown.value.maybe_done  # type: ignore[attr-defined]


@pytest.mark.anyio
@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("asked", ["notify", "stop", "reset", "add"])
async def test_a_server_without_its_data_denies_no_earlier_try(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, asked: str, is_new: bool
) -> None:
    """I30: a message had been handled, and its answer was lost; then the server lost its data."""
    mine = Handlers()

    @mine.job("deaf")
    async def deaf(job: Job) -> None:
        await anyio.sleep_forever()

    node = await fleet.node(mine)
    await (await node.dispatch(deaf, "k")).started(timeout_s=30)
    async with node.map("m") as shared:
        calls: dict[str, tuple[object, Callable[[], Awaitable[object]]]] = {
            "notify": (NOTIFY, lambda: node.notify("k", "note")),
            "stop": (INTEND, lambda: node.stop("k")),
            "reset": (RESET, shared.reset),
            "add": (ADD_ONCE, lambda: node.stream("s").add("event", b"", once_id="1")),
        }
        script, call = calls[asked]
        real, is_lost = Pipeline._once, is_new

        async def once(self: Pipeline, command: Any, timeout_s: float, until_s: Any) -> Any:
            nonlocal is_lost
            if not isinstance(command, ScriptCall) or command.script is not script:
                return await real(self, command, timeout_s, until_s)
            if is_lost:
                raise StoreLost(pool="p")
            reply = await real(self, command, timeout_s, until_s)
            if isinstance(reply, MovedOn):
                return reply
            is_lost = True
            raise attrs.evolve(SENT)

        with monkeypatch.context() as patched:
            patched.setattr(Pipeline, "_once", once)
            with pytest.raises(StoreLost) as lost:
                await call()
    assert lost.value.maybe_done != is_new


@pytest.mark.anyio
@pytest.mark.parametrize("answer", [StoreLost(pool="p"), NotRunning(state="closed")])
async def test_a_stop_whose_end_nobody_tells_may_be_done(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, answer: StoreLost | NotRunning
) -> None:
    """Whoever waited for the end was told that it had come."""
    mine = Handlers()

    @mine.job("deaf")
    async def deaf(job: Job) -> None:
        await anyio.sleep_forever()

    node = await fleet.node(mine)
    await (await node.dispatch(deaf, "k")).started(timeout_s=30)

    async def wait(self: Waiters, waiting: Waiting, limit_s: float | None) -> None:
        waiting.end(answer)

    monkeypatch.setattr(Waiters, "wait", wait)
    with pytest.raises((StoreLost, StoreUnavailable)) as told:
        await node.stop("k")
    assert told.value.maybe_done  # type: ignore[attr-defined]


@pytest.mark.anyio
async def test_what_was_written_into_a_map_that_is_lost_since_may_be_done(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await fleet.node()

    async def wait_for(self: Replica, at: object) -> None:
        raise StoreLost(pool="p")

    async with node.map("m") as shared:
        monkeypatch.setattr(Replica, "wait_for", wait_for)
        with pytest.raises(StoreLost) as lost:
            await shared.set_and_wait("a", "b")
    assert lost.value.maybe_done


@pytest.mark.anyio
@pytest.mark.parametrize("script", [NOTIFY, INTEND])
async def test_who_only_looked_has_surely_done_nothing(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, script: object
) -> None:
    node = await fleet.node(op_timeout_s=1.0)

    async def once(self: Pipeline, command: Any, timeout_s: float, until_s: float | None) -> Any:
        raise attrs.evolve(SENT)

    with monkeypatch.context() as patched:
        patched.setattr(Pipeline, "_once", once)
        with pytest.raises(StoreUnavailable) as failed:
            await (node.notify("k", 1) if script is NOTIFY else node.stop("k"))
    assert not failed.value.maybe_done


@pytest.mark.anyio
async def test_a_dispatch_of_which_a_try_had_no_answer_is_not_said_to_be_refused(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key's record cannot be read since: that says nothing of the try before it."""
    handle, lost = Dispatcher.handle, list[object]()

    def lose(self: Dispatcher, message: Any) -> None:
        if isinstance(message, _Admitted) and not lost:
            lost.append(message)
            message = attrs.evolve(message, reply=SENT)
        handle(self, message)

    node = await fleet.node(Handlers())
    fleet.client.hset(fleet.names.jobs, "k", "junk")
    monkeypatch.setattr(Dispatcher, "handle", lose)
    with pytest.raises(StoreFault, match="cannot be read") as unknown:
        await node.options(allow_unknown=True).dispatch("any", "k")
    assert unknown.value.maybe_done
    with pytest.raises(StoreFault, match="cannot be read") as refused:
        await node.options(allow_unknown=True).dispatch("any", "k")
    assert not refused.value.maybe_done
    fleet.client.hdel(fleet.names.jobs, "k")


@pytest.mark.anyio
async def test_what_a_lane_refused_that_is_not_joined_yet_is_surely_not_done(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a call names no generation, and its script did nothing but say so."""
    handle, told = Dispatcher.handle, list[object]()
    node = await fleet.node(Handlers())
    state = fleet.wiring(node).context.lanes[0]

    def before_joining(self: Dispatcher, message: Any) -> None:
        if not isinstance(message, _Admitted) or told:
            handle(self, message)
            return
        told.append(message)
        joined, state.lane = state.lane, attrs.evolve(state.lane, generation="")
        handle(self, attrs.evolve(message, reply=StoreLost(pool=fleet.pool)))
        state.lane = joined

    fleet.client.hset(fleet.names.jobs, "k", "junk")
    monkeypatch.setattr(Dispatcher, "handle", before_joining)
    with pytest.raises(StoreFault, match="cannot be read") as refused:
        await node.options(allow_unknown=True).dispatch("any", "k")
    assert told
    assert not refused.value.maybe_done
    fleet.client.hdel(fleet.names.jobs, "k")


@pytest.mark.anyio
@pytest.mark.parametrize("is_anew", [False, True])
async def test_a_refusal_of_new_data_says_nothing_of_a_try_with_those_that_are_lost(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, is_anew: bool
) -> None:
    """It may have run before the loss, and somebody else has the key since."""
    handle, told = Dispatcher.handle, list[object]()
    node = await fleet.node(Handlers())
    await node.options(allow_unknown=True).dispatch("any", "k")

    def lose(self: Dispatcher, message: Any) -> None:
        if isinstance(message, _Admitted):
            told.append(message)
            if len(told) == 1:
                message = attrs.evolve(message, reply=SENT)
            elif is_anew:
                message = attrs.evolve(message, generation="anew")
        handle(self, message)

    monkeypatch.setattr(Dispatcher, "handle", lose)
    with pytest.raises(StoreLost if is_anew else JobExists) as refused:
        await node.options(allow_unknown=True).dispatch("any", "k")
    assert len(told) == 2
    assert not is_anew or refused.value.maybe_done  # type: ignore[attr-defined]
