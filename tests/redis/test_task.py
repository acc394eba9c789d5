"""A body on the event loop is one task: it waits beside everybody else, and ends in its time."""

from __future__ import annotations

import contextvars
import random
import socket
import threading
import time
from contextlib import suppress
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from pool.core.retry import Restarts
from pool.errors import StoreUnavailable
from pool.redis import connection
from pool.redis.io import loops
from pool.redis.io.system import Body, BodyIO, RunningBody, SystemIO
from pool.redis.pipeline import Pipeline
from pool.redis.url import Url
from pool.testing.proxy import fault_proxy
from tests.impatient import opened
from tests.stopwatch import stopwatch

PATIENCE_S = 30.0
SLACK_S = 0.35  # of a busy machine, on top of a deadline
LARGE = b"x" * 3_000_000  # more than the buffers of two sockets hold


def start(url: str, body: Body) -> RunningBody:
    return SystemIO().start("pool-test", Url.parse(url), body)


@pytest.mark.anyio
async def test_what_no_buffer_holds_goes_out_and_comes_back(redis_url: str) -> None:
    """Sending and reading in parts, while a server that takes its time holds nobody up."""
    with anyio.fail_after(PATIENCE_S):
        async with fault_proxy(redis_url) as proxy:
            pipeline = await Pipeline.open(
                SystemIO(), Url.parse(proxy.url), op_timeout_s=PATIENCE_S
            )
            proxy.delay_s = 0.002
            turns, done = 0, False

            async def ask() -> None:
                nonlocal done
                assert await pipeline.execute("ECHO", LARGE) == LARGE
                done = True

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask)
                while not done:
                    await anyio.sleep(0.001)
                    turns += 1
            assert turns > 10
            assert await pipeline.execute("ECHO", b"y") == b"y"
            await pipeline.aclose(1.0)


@pytest.mark.anyio
async def test_a_server_that_reads_nothing_costs_a_call_its_time_and_no_more(
    redis_url: str,
) -> None:
    with anyio.fail_after(PATIENCE_S):
        async with fault_proxy(redis_url) as proxy:
            pipeline = await Pipeline.open(SystemIO(), Url.parse(proxy.url), op_timeout_s=1.0)
            proxy.delay_s = 60.0
            with stopwatch() as watch:
                with pytest.raises(StoreUnavailable):  # maybe done, if the system takes all of it
                    await pipeline.execute("ECHO", LARGE)
                assert watch.took_s() < 1.0 + SLACK_S
            proxy.delay_s = 0.0
            assert await pipeline.execute("PING") == b"PONG"  # on another connection
            await pipeline.aclose(1.0)


@pytest.mark.anyio
async def test_who_rings_hears_nothing_before_he_has_rung(redis_url: str) -> None:
    """A post made in a caller's stack waits until that has unwound, and keeps its place."""
    heard: list[str] = []
    waits = anyio.Event()

    async def body(body_io: BodyIO) -> None:
        body_io.post(waits.set)
        await body_io.wait()
        body_io.post(heard.append, "first")
        await body_io.run([("PING",)], timeout_s=PATIENCE_S)
        body_io.post(heard.append, "second")

    beside = start(redis_url, body)
    with anyio.fail_after(PATIENCE_S):
        await waits.wait()
        beside.wake()
        assert heard == []
        while len(heard) < 2:
            await anyio.lowlevel.checkpoint()
    assert heard == ["first", "second"]
    assert await beside.aclose(PATIENCE_S)


@pytest.mark.anyio
async def test_a_post_runs_in_the_context_of_who_started(redis_url: str) -> None:
    request = contextvars.ContextVar("request", default="none")
    seen: list[str] = []
    waits = anyio.Event()

    async def body(body_io: BodyIO) -> None:
        body_io.post(waits.set)
        await body_io.wait()
        body_io.post(lambda: seen.append(request.get()))
        await body_io.run([("PING",)], timeout_s=PATIENCE_S)
        body_io.post(lambda: seen.append(request.get()))

    token = request.set("opener")
    beside = start(redis_url, body)
    request.reset(token)
    with anyio.fail_after(PATIENCE_S):
        await waits.wait()
        token = request.set("caller")
        beside.wake()
        request.reset(token)
        while len(seen) < 2:
            await anyio.lowlevel.checkpoint()
    assert seen == ["opener", "opener"]
    assert await beside.aclose(PATIENCE_S)


@pytest.mark.anyio
async def test_a_nap_ends_in_time_also_behind_a_later_deadline(redis_url: str) -> None:
    """One timer serves all waits: an earlier one arms it anew, and a late one is taken up again."""
    spans: list[tuple[float, float, float]] = []
    io = SystemIO()

    async def body(body_io: BodyIO) -> None:
        for nap_s in (0.05, 0.2, 0.05):
            await body_io.run([("PING",)], timeout_s=0.1)
            began_s = time.monotonic()
            await body_io.sleep(nap_s)
            spans.append((began_s, time.monotonic(), nap_s))

    over = anyio.Event()
    with stopwatch() as watch:
        io.start("pool-test", Url.parse(redis_url), body, on_end=lambda _: over.set())
        with anyio.fail_after(PATIENCE_S):
            await over.wait()
    assert len(spans) == 3
    for began_s, ended_s, nap_s in spans:
        assert ended_s - began_s > nap_s - 0.005
        assert watch.took_s(began_s, ended_s) < nap_s + SLACK_S


@pytest.mark.anyio
async def test_a_look_up_that_hangs_holds_up_neither_the_loop_nor_the_end(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it still brings, when nobody waits any more, is closed."""
    going_on, discarded = threading.Event(), anyio.Event()
    dial, hang_up = connection._dial, connection._hang_up

    def hang(*args: Any) -> Any:
        found = dial(*args)
        going_on.wait(PATIENCE_S)
        return found

    def noted(found: socket.socket) -> None:
        hang_up(found)
        discarded.set()

    monkeypatch.setattr(connection, "_hang_up", noted)
    monkeypatch.setattr(connection, "_dial", hang)
    with anyio.fail_after(PATIENCE_S), stopwatch() as watch:
        with pytest.raises(StoreUnavailable):
            await Pipeline.open(SystemIO(), Url.parse(redis_url), op_timeout_s=0.2)
        assert watch.took_s() < 0.4 + SLACK_S  # its time, and that for closing
        going_on.set()
        await discarded.wait()


@pytest.mark.anyio
async def test_an_error_of_a_body_ends_it_and_is_told_once(redis_url: str) -> None:
    """In a caller's stack too: who rings is not to blame."""
    told: list[BaseException | None] = []
    waits = anyio.Event()

    async def body(body_io: BodyIO) -> None:
        body_io.post(waits.set)
        await body_io.wait()
        raise ZeroDivisionError

    beside = SystemIO().start("pool-test", Url.parse(redis_url), body, on_end=told.append)
    with anyio.fail_after(PATIENCE_S):
        await waits.wait()
        beside.wake()
        while not told:
            await anyio.lowlevel.checkpoint()
        beside.wake()
        beside.interrupt()
        assert await beside.aclose(PATIENCE_S)
    assert [type(error) for error in told] == [ZeroDivisionError]


@pytest.mark.anyio
@pytest.mark.parametrize(
    "hung_s",
    [
        pytest.param(0.55, id="longer than a server may take, which is half"),
        pytest.param(1.1, id="longer than a call may"),
    ],
)
async def test_a_reply_that_came_while_the_loop_hung_is_in_time(
    redis_url: str, hung_s: float
) -> None:
    """Reply and deadline are found in the same turn: the socket is read first."""
    pipeline = await Pipeline.open(SystemIO(), Url.parse(redis_url), op_timeout_s=1.0)
    for _ in range(6):  # trio takes what is ready in any order
        answers: list[object] = []
        pipeline.send(("PING",), answers.append)
        while pipeline._queue:
            await anyio.lowlevel.checkpoint()
        time.sleep(hung_s)  # noqa: ASYNC251, TID251 - what a careless handler does
        while not answers:
            await anyio.lowlevel.checkpoint()
        assert answers == [b"PONG"]
    assert pipeline.connections == 1
    await pipeline.aclose(1.0)


@pytest.mark.anyio
async def test_what_was_not_sent_before_the_loop_hung_is_not_sent_so_late(redis_url: str) -> None:
    """It may be the second try of what nobody remembers any more."""
    pipeline = await Pipeline.open(SystemIO(), Url.parse(redis_url), op_timeout_s=1.0)
    answers: list[object] = []
    pipeline.send(("PING",), answers.append)
    time.sleep(1.5)  # noqa: ASYNC251, TID251 - what a careless handler does
    while not answers:
        await anyio.lowlevel.checkpoint()
    assert isinstance(answers[0], StoreUnavailable)
    assert not answers[0].maybe_done
    await pipeline.aclose(1.0)


@pytest.mark.anyio
async def test_a_loop_that_hangs_again_and_again_stretches_a_deadline_once(redis_url: str) -> None:
    """Each turn is late then; who waits hears of it all the same, by the timer that was put off."""
    pipeline = await Pipeline.open(SystemIO(), Url.parse(redis_url), op_timeout_s=1.0)
    answers: list[object] = []
    pipeline.send(("BLPOP", "nothing", "0"), answers.append)
    while not answers:
        await anyio.lowlevel.checkpoint()
        time.sleep(0.75)  # noqa: ASYNC251, TID251 - what a careless handler does
    assert isinstance(answers[0], StoreUnavailable)
    await pipeline.aclose(1.0)


@pytest.mark.anyio
async def test_bytes_without_end_stretch_no_deadline_and_leave_others_their_turn(
    redis_url: str,
) -> None:
    """A server that sends faster than we read never lets a read wait."""
    size_bytes = 2_000_000_000
    listener = socket.create_server(("127.0.0.1", 0))

    def flood() -> None:
        with suppress(OSError), listener, listener.accept()[0] as client:
            client.recv(65_536)
            facts = b"server redis version 7.4.0 proto 2 mode standalone role master".split()
            hello = b"".join(b"$%d\r\n%s\r\n" % (len(fact), fact) for fact in facts)
            client.sendall(b"*%d\r\n%s$0\r\n\r\n" % (len(facts), hello))
            client.recv(65_536)
            client.sendall(b"$%d\r\n" % size_bytes)
            while True:
                client.sendall(LARGE)

    thread = threading.Thread(target=flood)
    thread.start()
    url = f"redis://127.0.0.1:{listener.getsockname()[1]}"
    with anyio.fail_after(PATIENCE_S), stopwatch() as watch:
        pipeline = await opened(url, op_timeout_s=0.4, longest_s=0.4)
        watch.restart()
        turns = 0
        async with anyio.create_task_group() as tasks:

            async def ask() -> None:
                with pytest.raises(StoreUnavailable) as lost:
                    await pipeline.execute("GET", "x")
                assert lost.value.maybe_done
                assert watch.took_s() < 0.4 + SLACK_S
                tasks.cancel_scope.cancel()

            tasks.start_soon(ask)
            while True:
                await anyio.sleep(0.001)
                turns += 1
        assert turns > 5
        await pipeline.aclose(0.2)
    thread.join(PATIENCE_S)


@pytest.mark.anyio
async def test_no_thread_to_be_had_is_a_server_that_cannot_be_reached(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("pool-"):
            raise RuntimeError("can't start new thread")
        start(thread)

    pipeline = await opened(redis_url, op_timeout_s=0.4)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        pipeline._running_body.body_io.connection.shut()  # type: ignore[attr-defined]
        with pytest.raises(StoreUnavailable):
            await pipeline.execute("PING")
    with anyio.fail_after(PATIENCE_S):
        while True:
            with suppress(StoreUnavailable):
                assert await pipeline.execute("PING") == b"PONG"
                break
    await pipeline.aclose(1.0)


@pytest.mark.anyio
@pytest.mark.parametrize("has_care", [False, True])
async def test_a_body_that_a_stranger_cancels_before_its_first_step_is_told(
    redis_url: str, anyio_backend_name: str, has_care: bool
) -> None:
    """Alone it has ended, for whoever waits for that; else it begins anew, as after any crash."""
    if anyio_backend_name == "trio":
        pytest.skip("tasks that anybody may cancel are asyncio's")
    ended: list[BaseException | None] = []
    begun, care = anyio.Event(), Caring()

    async def body(body_io: BodyIO) -> None:
        body_io.post(begun.set)
        while not body_io.closing:
            await body_io.wait()

    beside: Any = SystemIO().start(
        "pool-test",
        Url.parse(redis_url),
        body,
        care=care if has_care else None,
        on_end=ended.append,
    )
    beside._task.cancel()
    with anyio.fail_after(PATIENCE_S):
        if has_care:
            await begun.wait()
            assert ["stranger" in str(error) for error in care.crashes] == [True]
        else:
            while not ended:  # noqa: ASYNC110 - nothing tells it
                await anyio.sleep(0.001)
            assert "stranger" in str(ended)
        assert await beside.aclose(PATIENCE_S)
    assert len(ended) == 1


class Caring:
    """Whoever cares for one body."""

    def __init__(self) -> None:
        self.crashes: list[BaseException] = []

    def restarts(self) -> Restarts:
        return Restarts(5, random.Random())

    def fell(self, _: str, error: BaseException, __: Restarts) -> float:
        self.crashes.append(error)
        return 0.0

    def rose(self, _: str, __: Restarts) -> None:
        """Nothing."""

    def began(self, _: object) -> None:
        """Nothing."""


@pytest.mark.anyio
async def test_a_socket_that_came_as_a_stranger_cancelled_is_closed(
    redis_url: str, anyio_backend_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the thread's last word and the body's next step it is nobody's."""
    if anyio_backend_name == "trio":
        pytest.skip("tasks that anybody may cancel are asyncio's")
    came: list[socket.socket] = []
    real_dial, real_take = connection._dial, loops._AsyncioWaiter.take

    def dial(*args: Any) -> socket.socket:
        came.append(real_dial(*args))
        return came[-1]

    def take(self: Any, value: Any) -> None:
        real_take(self, value)
        if isinstance(value, tuple) and value[0] in came:
            beside._task.cancel()

    monkeypatch.setattr(connection, "_dial", dial)
    monkeypatch.setattr(loops._AsyncioWaiter, "take", take)

    async def body(body_io: BodyIO) -> None:
        await body_io.connect(timeout_s=PATIENCE_S)

    ended = anyio.Event()
    beside: Any = SystemIO().start(
        "pool-test", Url.parse(redis_url), body, care=None, on_end=lambda _: ended.set()
    )
    with anyio.fail_after(PATIENCE_S):
        await ended.wait()
    assert [each.fileno() for each in came] == [-1]
