"""Dispatch: accepted once, by key, to whoever can run it; everything else is a typed answer."""

from __future__ import annotations

import math
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import attrs
import pytest

from pool import Call, Handlers, Job, JobRef, PoolError
from pool.errors import (
    InvalidKey,
    JobCancelled,
    JobExists,
    NoSuchJob,
    PayloadTooLarge,
    PoolFull,
    StoreFault,
    StoreUnavailable,
    UnknownHandler,
)
from pool.jobs.client.dispatcher import BATCH_MAX, Dispatcher
from pool.redis.commands.admission import DISPATCH
from pool.redis.commands.edges import ADVANCE
from pool.redis.commands.talk import INTEND, NOTIFY, MovedOn, Noted
from pool.redis.io.system import SystemIO
from pool.redis.pipeline import Pipeline
from pool.redis.scripts import ScriptCall, Word
from pool.testing.proxy import fault_proxy
from tests.impatient import limit
from tests.stopwatch import stopwatch

if TYPE_CHECKING:
    from tests.nodes import Diary, Fleet

pytestmark = pytest.mark.anyio

handlers = Handlers()


@handlers.job("echo")
async def echo(job: Job, value: Any = None, *, times: int = 1) -> Any:
    return value if times == 1 else [value] * times


@handlers.job("key")
async def key_of(job: Job) -> str:
    return job.key


@handlers.job("sync")
def doubled(job: Job, value: int) -> int:
    return 2 * value


@handlers.service("forever")
async def forever(job: Job) -> None:
    await anyio.sleep_forever()


async def test_a_job_runs_on_the_node_that_has_its_handler_and_its_result_comes_back(
    fleet: Fleet,
) -> None:
    """G-01: dispatched by a client, run by a worker, settled once."""
    await fleet.node(handlers)
    client = await fleet.node()
    ref = await client.dispatch(echo, "img-17", "17.png", times=2)
    assert await ref.result(timeout_s=30) == ["17.png", "17.png"]
    assert (ref.key, ref.handler) == ("img-17", "echo")
    status = await ref.status()
    assert (status.state, status.attempt, status.is_ended) == ("done", 1, True)


async def test_a_handler_may_be_named_instead_of_given(fleet: Fleet) -> None:
    """A client needs no code of the worker's: the name is enough."""
    await fleet.node(handlers)
    client = await fleet.node()
    ref = await client.dispatch("sync", "n", 21)
    assert await ref.result(timeout_s=30) == 42


async def test_a_node_runs_its_own_dispatches_too(fleet: Fleet) -> None:
    node = await fleet.node(handlers)
    assert await (await node.dispatch(doubled, "n", 4)).result(timeout_s=30) == 8


async def test_an_unknown_handler_is_refused_with_the_names_that_are_close(fleet: Fleet) -> None:
    """D7."""
    await fleet.node(handlers)
    client = await fleet.node()
    with pytest.raises(UnknownHandler) as refused:
        await client.dispatch("ecko", "k")
    assert refused.value.handler == "ecko"
    assert refused.value.close_matches == ("echo",)
    assert fleet.record("k") is None


@pytest.mark.parametrize("knows", ["by a dispatch", "by the workers"])
async def test_a_handler_that_was_registered_is_not_unknown_right_after_a_flush(
    fleet: Fleet, knows: str
) -> None:
    """Its job waits for whoever joins the new data; a name that nobody had is refused still."""
    node = await fleet.node(handlers)
    client = await fleet.node()
    if knows == "by a dispatch":
        assert await (await client.dispatch("sync", "k", 1)).result(timeout_s=30) == 2
        await fleet.leave(node)
        await fleet.knows(client, 0)
    else:
        await fleet.knows(client, 1)
    fleet.client.delete(fleet.names.handlers)
    ref = await client.dispatch("sync", "k", 5)
    if knows == "by a dispatch":
        await fleet.node(handlers)
    assert await ref.result(timeout_s=30) == 10
    fleet.client.delete(fleet.names.handlers)
    with pytest.raises(UnknownHandler):
        await client.dispatch("ecko", "k")


async def test_a_handler_nobody_has_yet_waits_for_the_first_node_that_has_it(
    fleet: Fleet,
) -> None:
    """G-05: allow_unknown accepts it, visibly unassigned, until somebody can run it."""
    client = await fleet.node()
    ref = await client.options(allow_unknown=True).dispatch("sync", "k", 5)
    assert (await ref.status()).state == "unassigned"
    await fleet.node(handlers)
    assert await ref.result(timeout_s=30) == 10


async def test_a_typed_handler_needs_no_permission_to_be_unknown(fleet: Fleet) -> None:
    """Whoever holds the function cannot have misspelt its name."""
    client = await fleet.node()
    ref = await client.dispatch(doubled, "k", 5)
    await fleet.node(handlers)
    assert await ref.result(timeout_s=30) == 10


async def test_a_name_of_the_nodes_own_handlers_needs_no_permission_either(fleet: Fleet) -> None:
    """The same name is refused to a client that knows it from nowhere."""
    client = await fleet.node()
    with pytest.raises(UnknownHandler):
        await client.dispatch("sync", "k", 5)
    node = await fleet.node(handlers)
    assert await (await node.dispatch("sync", "k", 5)).result(timeout_s=30) == 10


async def test_a_key_with_a_live_job_refuses_a_second_and_says_whose_it_is(fleet: Fleet) -> None:
    """G-02."""
    node = await fleet.node(handlers)
    ref = await node.dispatch(forever, "k")
    await ref.started(timeout_s=30)
    with pytest.raises(JobExists) as refused:
        await node.dispatch(forever, "k")
    assert (refused.value.key, refused.value.job_id) == ("k", ref.job_id)
    assert refused.value.owner.startswith(node.workers[0].id)
    assert (refused.value.handler, refused.value.kind) == ("forever", "service")


async def test_a_key_that_a_service_has_is_not_waited_for(fleet: Fleet) -> None:
    """A service never ends by itself, so the error does not advise to wait for it."""
    mine = Handlers()

    @mine.service("serve")
    async def serve(job: Job) -> None:
        await anyio.sleep_forever()

    node = await fleet.node(mine)
    ref = await node.dispatch(serve, "k")
    await ref.started(timeout_s=30)
    with pytest.raises(JobExists, match=r"handler='serve', kind='service'.*Hint: stop the service"):
        await node.dispatch(serve, "k")
    client = await fleet.node()
    with pytest.raises(JobExists, match="Hint: stop the service"):
        await client.options(allow_unknown=True).dispatch("other", "k")


async def test_attaching_returns_the_live_job_whoever_dispatched_it(fleet: Fleet) -> None:
    node = await fleet.node(handlers)
    ref = await node.dispatch(forever, "k")
    client = await fleet.node()
    attached = await client.options(if_exists="attach").dispatch(forever, "k")
    assert (attached.job_id, attached.handler) == (ref.job_id, "forever")


async def test_attaching_to_a_free_key_dispatches(fleet: Fleet) -> None:
    node = await fleet.node(handlers)
    ref = await node.options(if_exists="attach").dispatch(echo, "k", 7)
    assert await ref.result(timeout_s=30) == 7


async def test_a_key_is_free_again_when_its_job_has_ended(fleet: Fleet) -> None:
    node = await fleet.node(handlers)
    first = await node.dispatch(echo, "k", 1)
    assert await first.result(timeout_s=30) == 1
    second = await node.dispatch(echo, "k", 2)
    assert await second.result(timeout_s=30) == 2
    assert await first.result(timeout_s=30) == 1
    assert first.job_id != second.job_id


async def test_many_dispatches_of_one_key_at_once_make_one_job(fleet: Fleet) -> None:
    """G-02: the others are told, none is lost without a word."""
    node = await fleet.node(handlers)
    client = await fleet.node()
    answers: list[object] = []

    async def one(who: Any) -> None:
        try:
            answers.append(await who.dispatch(forever, "k"))
        except JobExists as error:
            answers.append(error.job_id)

    async with anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(one, node)
            tasks.start_soon(one, client)
    refs = [answer for answer in answers if isinstance(answer, JobRef)]
    assert len(refs) == 1
    assert [answer for answer in answers if answer not in refs] == [refs[0].job_id] * 19


async def test_the_pool_takes_queued_jobs_up_to_its_limit_and_not_one_more(fleet: Fleet) -> None:
    """G-09, D32: refused at once, typed, with both numbers; a place that becomes free is used."""
    client = await fleet.node(queued_jobs_max=3)
    waiting = client.options(delay_s=60)
    refs = [await waiting.dispatch(echo, f"k{n}") for n in range(3)]
    with pytest.raises(PoolFull) as refused:
        await waiting.dispatch(echo, "k3")
    assert (refused.value.queued_jobs, refused.value.queued_jobs_max) == (3, 3)
    assert refused.value.retryable
    await refs[0].stop(timeout_s=30)
    await waiting.dispatch(echo, "k3")


async def test_in_a_batch_the_limit_cuts_where_it_is_reached(fleet: Fleet) -> None:
    client = await fleet.node(queued_jobs_max=5)
    answers = await client.dispatch_many(echo, [f"k{n}" for n in range(8)])
    assert [type(answer) for answer in answers] == [JobRef] * 5 + [PoolFull] * 3


async def test_a_delayed_job_starts_when_its_time_has_come_and_not_before(
    fleet: Fleet, diary: Diary
) -> None:
    mine = Handlers()

    @mine.job("now")
    async def now(job: Job) -> None:
        diary.note(time.monotonic())

    node = await fleet.node(mine)
    with stopwatch() as watch:
        ref = await node.options(delay_s=2.0).dispatch(now, "k")
        assert (await ref.status()).state == "waiting"
        await ref.result(timeout_s=30)
        assert diary.entries[0] - watch.began_s >= 1.99
        assert watch.took_s() < 3.0


async def test_a_delayed_job_needs_nobody_who_dispatched_it(fleet: Fleet) -> None:
    """G-05: its deadline is found by any node, when its dispatcher has left."""
    client = await fleet.node()
    ref = await client.options(delay_s=0.5).dispatch(echo, "k", 3)
    await fleet.leave(client)
    node = await fleet.node(handlers)
    again = JobRef[Any](ref.key, ref.job_id, ref.handler, node._client)
    assert await again.result(timeout_s=30) == 3


async def test_many_jobs_are_dispatched_with_an_answer_for_each_in_order(fleet: Fleet) -> None:
    node = await fleet.node(handlers)
    taken = await node.dispatch(forever, "taken")
    answers = await node.dispatch_many(
        echo,
        [
            Call("a", 1),
            Call("b", 2, times=2),
            Call(""),
            Call("taken"),
            "c",
            Call("d", "x" * (node.settings.payload_bytes_max + 1)),
            *(Call(f"many-{n}", n) for n in range(1000)),
        ],
    )
    assert len(answers) == 1006
    kinds = [type(answer) for answer in answers[:6]]
    assert kinds == [JobRef, JobRef, InvalidKey, JobExists, JobRef, PayloadTooLarge]
    values = [await a.result(timeout_s=30) for a in answers if not isinstance(a, PoolError)]
    assert values == [1, [2, 2], None, *range(1000)]
    assert (await taken.status()).state in ("pending", "running")


async def test_an_empty_batch_is_answered_with_nothing(fleet: Fleet) -> None:
    node = await fleet.node(handlers)
    assert await node.dispatch_many(echo, []) == []


@pytest.mark.parametrize("size_bytes", [0, 1, 1023, 1024, 1025, 200 * 1024])
async def test_payloads_of_any_size_arrive_as_they_were_sent(fleet: Fleet, size_bytes: int) -> None:
    """Up to 1 KB they travel in the start, above that apart: nobody can tell which."""
    node = await fleet.node(handlers)
    payload = bytes(n % 256 for n in range(size_bytes))
    assert await (await node.dispatch(echo, "k", payload)).result(timeout_s=30) == payload
    text = "ü" * (size_bytes // 2)
    assert await (await node.dispatch(echo, "k", text)).result(timeout_s=30) == text


ODD_KEYS = [
    "a b",
    " ",
    "a|b|c",
    "a:b:",
    ":",
    "{x}",
    "k:key",
    "r:id",
    "-",
    "*",
    "[a-z]?",
    "%s",
    "ключ",
    "日本語",
    "👩‍👩‍👧‍👦",
    "é",
    "e\u0301",
    "a\\n",
    '"',
    "'",
    "n" * 512,
    "ü" * 256,
    "0",
    "1e999",
    "\u2028",
    "\u202eabc",
]


async def test_odd_keys_are_keys_like_any_other(fleet: Fleet) -> None:
    """Each is its own key, from dispatch to status, notification and stop."""
    node = await fleet.node(handlers)
    refs = [await node.dispatch(key_of, key) for key in ODD_KEYS]
    assert [await ref.result(timeout_s=30) for ref in refs] == ODD_KEYS
    services = [await node.dispatch(forever, key) for key in ODD_KEYS]
    for key, ref in zip(ODD_KEYS, services, strict=True):
        await ref.started(timeout_s=30)
        assert (await node.status(key)).job_id == ref.job_id
        await node.notify(key, key)
        await node.stop(key, timeout_s=30)
        assert (await ref.status()).state == "cancelled"


@pytest.mark.parametrize(
    ("value", "arrives"),
    [
        (None, None),
        (True, True),
        (-(10**30), -(10**30)),
        (0.1, 0.1),
        ("", ""),
        ("\x00\n|\t\\", "\x00\n|\t\\"),
        (b"", b""),
        (b"\x00\xff|\n", b"\x00\xff|\n"),
        ([], []),
        ((1, (2,)), [1, [2]]),
        ({"a": {"b": [None]}, "": 1}, {"a": {"b": [None]}, "": 1}),
    ],
    ids=repr,
)
async def test_what_json_and_bytes_can_say_comes_back(
    fleet: Fleet, value: object, arrives: object
) -> None:
    node = await fleet.node(handlers)
    result = await (await node.dispatch(echo, "k", value)).result(timeout_s=30)
    assert result == arrives
    assert type(result) is type(arrives)


@pytest.mark.one_server
async def test_a_dispatch_whose_answer_was_lost_is_repeated_and_runs_once(
    fleet: Fleet, diary: Diary
) -> None:
    """G-01, G-04: the server has done it, nobody heard; the repeat finds it by its id."""
    mine = Handlers()

    @mine.job("once")
    async def once(job: Job) -> str:
        diary.note(job.id)
        return job.id

    await fleet.node(mine, lease_ttl_s=10.0)
    async with fault_proxy(fleet.url) as proxy:
        client = await fleet.node(url=proxy.url, op_timeout_s=2.0, lease_ttl_s=10.0)
        # At rest: what waits for an answer would keep the dispatch from being sent.
        signals = fleet.names.signal(f"{client.id}.1")
        lane = fleet.wiring(client).context.lanes[0]
        joined = lane.lease
        await fleet.until(lambda: lane.lease is not joined)  # renewed for the first time
        await fleet.until(lambda: not fleet.client.xlen(signals))
        with pytest.raises(NoSuchJob):
            await client.status("k")
        refs: list[JobRef[str]] = []

        async def dispatch() -> None:
            refs.append(await client.dispatch(once, "k"))

        await fleet.until(lambda: fleet.wiring(client).context.pipeline._is_idle)
        proxy.drop_replies = True
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(dispatch)
            await diary.counts(1)  # it has run, and its dispatcher does not know that it may
            await proxy.heal()
        assert await refs[0].result(timeout_s=30) == refs[0].job_id
        await fleet.leave(client)
    assert diary.entries == [refs[0].job_id]


@pytest.mark.parametrize("follows", [False, True])
async def test_a_stop_of_a_key_whose_answer_was_lost_is_for_the_job_that_it_found(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, follows: bool
) -> None:
    """It was carried out: its repeat neither says that there is no job nor ends the next one."""
    real = Pipeline._once
    mine, repeated = Handlers(), list[ScriptCall]()

    @mine.job("long")
    async def long(job: Job) -> None:
        await anyio.sleep_forever()

    node = await fleet.node(mine)
    first = await node.dispatch(long, "k")
    await first.started(timeout_s=30)
    await node.notify("k", "so that it knows the owner")

    async def once(self: Pipeline, command: Any, timeout_s: float, until_s: float | None) -> Any:
        reply = await real(self, command, timeout_s, until_s)
        is_stop = isinstance(command, ScriptCall) and command.script is INTEND
        if repeated or not is_stop or not isinstance(reply, Noted):
            return reply
        repeated.append(command)
        await fleet.until(lambda: fleet.record("k") is None)
        if follows:
            await node.dispatch(long, "k")
        return await real(self, command, timeout_s, until_s)

    monkeypatch.setattr(Pipeline, "_once", once)
    await node.stop("k", timeout_s=30)
    assert repeated
    with pytest.raises(JobCancelled):
        await first.result(timeout_s=30)
    record = fleet.record("k")
    assert (record.intent if record is not None else "") == ""
    assert (record is not None) == follows


@pytest.mark.parametrize("first", ["notify", "stop"])
async def test_who_had_a_key_last_is_asked_first(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """Whose it is costs a round trip; from then on the next request costs one in all."""
    real, mine, told = Pipeline._once, Handlers(), list[type]()
    may_end = fleet.gate()

    @mine.job("stubborn")
    async def stubborn(job: Job) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await may_end.wait()

    async def once(self: Pipeline, command: Any, timeout_s: float, until_s: float | None) -> Any:
        reply = await real(self, command, timeout_s, until_s)
        if isinstance(command, ScriptCall) and command.script in (NOTIFY, INTEND):
            told.append(type(reply))
        return reply

    node = await fleet.node(mine)
    ref = await node.dispatch(stubborn, "k")
    await ref.started(timeout_s=30)
    with monkeypatch.context() as patched:
        patched.setattr(Pipeline, "_once", once)
        if first == "notify":
            await node.notify("k", 1)
        else:
            await node._client.request_stop("k", ref.job_id, "enough")
        await node.notify("k", 2)
    may_end.set()
    await ref.stop(timeout_s=30)
    assert told == [MovedOn, Noted, Noted]


async def test_a_stop_of_what_nobody_owns_whose_answer_was_lost_is_asked_again(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Doing it again changes nothing, and says what became of the first time."""
    real, lost = Pipeline._once, list[Any]()

    async def once(self: Pipeline, command: Any, timeout_s: float, until_s: float | None) -> Any:
        reply = await real(self, command, timeout_s, until_s)
        if isinstance(command, ScriptCall) and command.script is ADVANCE and not lost:
            lost.append(reply)
            raise StoreUnavailable(problem="the answer was lost", maybe_done=True)
        return reply

    node = await fleet.node(handlers)
    ref = await node.options(delay_s=60).dispatch(echo, "k")
    monkeypatch.setattr(Pipeline, "_once", once)
    await node.stop("k", timeout_s=30)
    assert lost
    with pytest.raises(JobCancelled):
        await ref.result(timeout_s=30)


async def test_a_batch_that_could_not_even_be_sent_is_sent_again(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, refused = Pipeline.send, list[Any]()

    def send(self: Pipeline, command: Any, *args: Any, **options: Any) -> None:
        if isinstance(command, ScriptCall) and command.script is DISPATCH and not refused:
            refused.append(command)
            raise StoreUnavailable(problem="too many calls wait", maybe_done=False)
        real(self, command, *args, **options)

    node = await fleet.node(handlers)
    monkeypatch.setattr(Pipeline, "send", send)
    with anyio.fail_after(30):
        ref = await node.dispatch(echo, "k", 7)
        assert await ref.result() == 7
    assert refused


@pytest.mark.parametrize(
    ("name", "error"),
    [("notify", StoreUnavailable), ("stop", StoreUnavailable), ("stop", StoreFault)],
)
async def test_all_tries_to_reach_a_key_that_moves_share_one_deadline(
    fleet: Fleet,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    error: Any,
) -> None:
    """Each is given what is left, and when nothing is, the caller has an answer.

    Also where the answer before comes in the last moment, and nothing has moved since the first.
    """
    real, lefts, moved = Pipeline._once, list[float](), list[Any]()
    mine = Handlers()

    @mine.service("long")
    async def long(job: Job) -> None:
        await anyio.sleep_forever()

    node = await fleet.node(mine, op_timeout_s=1.0, lease_ttl_s=60.0)
    ref = await node.dispatch(long, "k")
    await ref.started(timeout_s=30)
    began_s = now_s = float(math.ceil(SystemIO.clock()))

    async def once(self: Pipeline, command: Any, timeout_s: float, until_s: float | None) -> Any:
        if not isinstance(command, ScriptCall) or command.script not in (NOTIFY, INTEND):
            return await real(self, command, timeout_s, until_s)
        nonlocal now_s
        lefts.append(timeout_s)
        moved[:] = moved or [await real(self, command, timeout_s, until_s)]
        now_s += min(0.25, timeout_s)
        if timeout_s < 0.25:
            raise error(problem="too late", maybe_done=False)
        return moved[0]

    with monkeypatch.context() as patched:
        patched.setattr(Pipeline, "_once", once)
        patched.setattr(Pipeline, "moved_s", lambda *_: began_s)
        patched.setattr(SystemIO, "clock", lambda _: now_s)
        with pytest.raises(error) as refused:
            await (node.notify("k", 1) if name == "notify" else node.stop("k"))
    assert isinstance(moved[0], MovedOn)
    assert refused.value.maybe_done == (name == "stop")  # a try that named an owner was sent
    assert lefts == [1.0, 0.75, 0.5, 0.25, 0.0]


@pytest.mark.parametrize(("lanes", "most"), [(1, 256), (3, 768), (8, 1024)])
async def test_many_are_prepared_by_slices_so_that_others_have_their_turn(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, lanes: int, most: int
) -> None:
    """One call of each lane is carried out while the next is encoded; the loop is not held long."""
    sizes, seen = list[int](), [0]
    real = Dispatcher.admit

    def admit(self: Dispatcher, items: Any, **options: Any) -> Any:
        sizes.append(len(items))
        return real(self, items, **options)

    monkeypatch.setattr(Dispatcher, "admit", admit)

    async def look() -> None:
        while True:
            seen.append(sum(sizes))
            await anyio.lowlevel.checkpoint()

    client = await fleet.node(lanes=lanes)
    many = client.options(allow_unknown=True)
    keys = [f"k{n}" for n in range(6000)]
    async with anyio.create_task_group() as others:
        others.start_soon(look)
        answers = await many.dispatch_many("later", keys)
        others.cancel_scope.cancel()
    assert [each.key for each in answers if isinstance(each, JobRef)] == keys
    assert sum(sizes) == len(keys)
    assert max(sizes) == BATCH_MAX
    assert len(sizes) <= len(keys) / BATCH_MAX + lanes  # no call carries less than it could
    assert max(now - before for before, now in pairwise(seen)) <= most + BATCH_MAX


@pytest.mark.one_server
async def test_each_of_very_many_has_time_for_its_second_try(fleet: Fleet) -> None:
    """The time that a call has is counted from its turn: what stands before it uses none of it."""
    count = 4_500
    async with fault_proxy(fleet.url) as proxy:
        client = await fleet.node(url=proxy.url, op_timeout_s=20.0, lease_ttl_s=10.0)
        context = fleet.wiring(client).context
        context.settings = attrs.evolve(context.settings, op_timeout_s=2.0)  # it opened at leisure
        limit(context.pipeline, op_timeout_s=2.0)
        answers: list[JobRef[Any] | PoolError] = []

        async def dispatch() -> None:
            many = client.options(allow_unknown=True)
            answers.extend(await many.dispatch_many("later", [f"k{n}" for n in range(count)]))

        proxy.delay_s = 0.1  # 256 in each 0.2 s, so the last ones' turn is later than 2 s
        began_s = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(dispatch)
            await fleet.until(lambda: fleet.client.hlen(fleet.names.jobs) > count - 1_000)
            assert anyio.current_time() - began_s > 2.0
            await proxy.cut()
            await proxy.heal()
    assert [answer for answer in answers if isinstance(answer, PoolError)] == []
    assert len({answer.key for answer in answers if isinstance(answer, JobRef)}) == count


async def test_a_cancelled_dispatch_disturbs_nobody_else(fleet: Fleet) -> None:
    """Its waiter is gone; the reply is read and dropped, and the connection goes on."""
    node = await fleet.node(handlers)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await node.dispatch(echo, "given-up")
    assert scope.cancelled_caught
    assert await (await node.dispatch(echo, "k", 1)).result(timeout_s=30) == 1
    await fleet.until(lambda: fleet.record("given-up") is None)


@pytest.mark.anyio
async def test_many_large_payloads_and_results_go_in_calls_of_limited_size(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """256 of them in one call would hold the server, and every lease in it, up for long."""
    mine = Handlers()

    @mine.job("back")
    async def back(job: Job, value: bytes) -> bytes:
        return value

    node = await fleet.node(mine)
    sizes: list[int] = []
    numbered = ScriptCall.numbered

    def measured(call: ScriptCall, number: bytes) -> tuple[Word, ...]:
        said = numbered(call, number)
        sizes.append(sum(len(word) for word in said if isinstance(word, bytes)))
        return said

    monkeypatch.setattr(ScriptCall, "numbered", measured)
    payload = b"x" * (64 * 1024 - 1)
    calls = [Call(f"k{n}", payload) for n in range(24)]
    refs = await node.dispatch_many(back, calls)
    for ref in refs:
        assert not isinstance(ref, PoolError)
        assert await ref.result(timeout_s=30) == payload
    assert len(payload) <= max(sizes) <= 256 * 1024 + 1024  # and the short words
    assert sum(size > 2 * len(payload) for size in sizes) > 1  # there were batches of several
