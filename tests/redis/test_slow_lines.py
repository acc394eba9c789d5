"""A slow line makes calls slow, and nothing else; what waits for it is bounded in bytes.

What passes is counted at a proxy with a real server behind it: nothing is sent twice.  Lines are as
slow, and deadlines as short, as lets a call last several of them.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from pool.errors import PoolError, StoreUnavailable
from pool.redis import pipeline as pipelines
from pool.redis.io.system import BodyIO, SystemIO
from pool.redis.pipeline import Pipeline
from pool.redis.scripts import Script
from pool.redis.url import Url
from pool.testing.proxy import FaultProxy, fault_proxy
from tests.stopwatch import stopwatch

PATIENCE_S = 20.0
OP_TIMEOUT_S = 1.0
SLACK_S = 0.6  # of a busy machine
KIB = 1024
MB = 1_000_000.0

_ECHO = """--[[
echo: answer with what was sent.

KEYS[1] key   str    any
ARGV[1] word  bytes  comes back
]]
return ARGV[1]
"""


@pytest.fixture
def echo(tmp_path: Path) -> Script:
    (tmp_path / "echo.lua").write_text(_ECHO, "utf-8")
    return Script.load("echo", keys="key", args="word", directory=tmp_path)


@asynccontextmanager
async def slow(
    url: str, bytes_per_s: float, **options: Any
) -> AsyncIterator[tuple[Pipeline, FaultProxy]]:
    options = {"op_timeout_s": OP_TIMEOUT_S, "longest_s": PATIENCE_S, **options}
    with anyio.fail_after(PATIENCE_S):
        async with fault_proxy(url) as proxy:
            pipeline = await Pipeline.open(SystemIO(), Url.parse(proxy.url), **options)
            try:
                await pipeline.execute("PING")
                proxy.request_bytes = proxy.reply_bytes = 0
                proxy.line_bytes_per_s = bytes_per_s
                yield pipeline, proxy
            finally:
                proxy.line_bytes_per_s = 0.0
                await pipeline.aclose(1.0)


async def all_of(
    pipeline: Pipeline, key: str, words: list[bytes], *, repeatable: bool = False
) -> list[object]:
    """Set so many keys at once; return what each call brought."""
    answers: list[object] = [None] * len(words)

    async def one(n: int) -> None:
        try:
            answers[n] = await pipeline.execute(
                "SET", f"{key}:{n}", words[n], repeatable=repeatable
            )
        except PoolError as error:
            answers[n] = error

    async with anyio.create_task_group() as callers:
        for n in range(len(words)):
            callers.start_soon(one, n)
    return answers


async def until(is_so: Callable[[], object]) -> None:
    while not is_so():  # noqa: ASYNC110 - the proxy tells nobody when it counts
        await anyio.sleep(0.001)


def is_done(answer: object) -> bool:
    return answer == b"OK"


@pytest.mark.anyio
@pytest.mark.parametrize("bytes_per_s", [1 * MB, 10 * MB])
async def test_calls_that_last_longer_than_their_time_out_are_only_slow(
    redis_url: str, pool_name: str, bytes_per_s: float
) -> None:
    """E2: all failed, after everything had been sent three times."""
    words = [b"x" * 64 * KIB] * int(bytes_per_s / MB * 40)
    async with slow(redis_url, bytes_per_s) as (pipeline, proxy):
        answers = await all_of(pipeline, pool_name, words)
        assert all(map(is_done, answers)), answers
        assert proxy.request_bytes < 1.02 * len(words) * 64 * KIB
        assert pipeline.connections == 1


@pytest.mark.anyio
@pytest.mark.parametrize("bytes_per_s", [1 * MB, 10 * MB])
async def test_replies_that_last_longer_than_their_time_out_are_only_slow(
    redis_url: str, echo: Script, pool_name: str, bytes_per_s: float
) -> None:
    size = int(2.5 * bytes_per_s)
    async with slow(redis_url, 0.0) as (pipeline, proxy):
        await pipeline.execute("SET", pool_name, b"x" * size)
        before = proxy.request_bytes
        proxy.line_bytes_per_s = bytes_per_s
        assert len(await pipeline.execute("GET", pool_name)) == size
        assert proxy.reply_bytes < 1.02 * size + 10_000
        assert proxy.request_bytes - before < 1_000
        assert pipeline.connections == 1


@pytest.mark.anyio
@pytest.mark.parametrize("has_thread", [False, True])
async def test_a_blocking_read_of_much_is_only_slow(
    redis_url: str, pool_name: str, has_thread: bool
) -> None:
    """It was repeated at the same size for ever (G2)."""
    got: list[Any] = []

    async def read(body_io: BodyIO) -> None:
        await body_io.connect(timeout_s=PATIENCE_S)
        proxy.line_bytes_per_s = MB
        try:
            got.append(
                await body_io.read({pool_name: "0-0"}, block_s=0.1, timeout_s=0.3, count=100)
            )
        except PoolError as error:
            got.append(error)
        body_io.post(over.set)
        while not body_io.closing:
            await body_io.wait()

    over = anyio.Event()
    async with slow(redis_url, 0.0) as (pipeline, proxy):
        for _ in range(16):
            await pipeline.execute("XADD", pool_name, "*", "f", b"x" * 64 * KIB)
        proxy.reply_bytes = 0
        url = Url.parse(proxy.url)
        beside = SystemIO().start(
            "reads", url, read, has_thread=has_thread, on_end=lambda _: over.set()
        )
        await over.wait()
        proxy.line_bytes_per_s = 0.0
        assert await beside.aclose(PATIENCE_S)
        [[(stream, entries)]] = got
        assert (stream, len(entries)) == (pool_name, 16)
        assert proxy.reply_bytes < 1.02 * 16 * 64 * KIB


@pytest.mark.anyio
async def test_one_call_that_the_system_takes_at_once_is_only_slow(
    redis_url: str, pool_name: str
) -> None:
    """Nothing can be written then, nothing read, and only what the system holds tells of it."""
    async with slow(redis_url, MB) as (pipeline, proxy):
        assert await pipeline.execute("SET", pool_name, b"x" * 2_500_000) == b"OK"
        assert proxy.request_bytes < 2_510_000
        assert pipeline.connections == 1


@pytest.mark.anyio
async def test_a_small_call_does_not_wait_for_the_large_ones_before_it(
    redis_url: str, echo: Script, pool_name: str
) -> None:
    order: list[object] = []
    async with slow(redis_url, MB) as (pipeline, _):
        pipeline.send(("PING",), lambda _: order.append("first"))
        for n in range(10):
            key = f"{{{pool_name}}}{n}"
            pipeline.send(echo([key], [b"x" * 100 * KIB]), lambda reply: order.append(len(reply)))
        await until(lambda: len(order) >= 2)
        await pipeline.execute("PING")
        order.append("small")
        await until(lambda: len(order) >= 12)
    assert order.index("small") <= 8  # two batches: one under way, and its own


@pytest.mark.anyio
async def test_calls_of_one_kind_keep_their_order_and_the_kinds_take_turns(
    redis_url: str, echo: Script, pool_name: str
) -> None:
    order: list[str] = []
    large = b"x" * 200 * KIB

    def note(name: str, _: object) -> None:
        order.append(name)

    async with slow(redis_url, 10 * MB) as (pipeline, _):
        for n in range(6):
            pipeline.send(echo([pool_name], [large]), partial(note, f"echo {n}"))
        pipeline.send(echo([pool_name], ["small"]), partial(note, "echo 6"))
        for n in range(3):
            pipeline.send(("SET", pool_name, large), partial(note, f"set {n}"))
        pipeline.send(("GET", pool_name), partial(note, "set 3"))
        await until(lambda: len(order) >= 11)
    for kind, count in (("echo", 7), ("set", 4)):
        assert [each for each in order if each.startswith(kind)] == [
            f"{kind} {n}" for n in range(count)
        ]
    assert order.index("set 2") < order.index("echo 5")


@pytest.mark.anyio
@pytest.mark.parametrize("repeatable", [False, True])
async def test_what_is_too_much_to_wait_is_refused_at_once(
    redis_url: str, pool_name: str, repeatable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipelines, "WAITING_BYTES_MAX", 1024 * KIB)
    async with slow(redis_url, 10 * MB) as (pipeline, proxy):
        words = [b"x" * 256 * KIB] * 40
        answers = await all_of(pipeline, pool_name, words, repeatable=repeatable)
        refused = [each for each in answers if isinstance(each, StoreUnavailable)]
        done = [each for each in answers if is_done(each)]
        assert len(refused) + len(done) == 40
        assert 3 <= len(done) <= 5  # none waited when the first came
        assert all("wait already" in each.problem and not each.maybe_done for each in refused)
        assert proxy.request_bytes < 1.02 * len(done) * 256 * KIB
        assert (
            await pipeline.execute("SET", pool_name, b"x" * 2048 * KIB) == b"OK"
        )  # fits when empty


@pytest.mark.anyio
async def test_what_did_not_leave_in_time_is_not_done(redis_url: str, pool_name: str) -> None:
    """`longest_s` ends what moves too slowly: of all that waited, one may be done."""
    async with slow(redis_url, MB, longest_s=1.0) as (pipeline, _):
        answers = await all_of(pipeline, pool_name, [b"x" * 256 * KIB] * 8)
        errors = [each for each in answers if isinstance(each, StoreUnavailable)]
        assert len(errors) + sum(map(is_done, answers)) == 8
        assert sum(each.maybe_done for each in errors) <= 1
        assert len(errors) >= 3


@pytest.mark.anyio
async def test_of_a_command_that_left_in_part_nothing_is_done(
    redis_url: str, pool_name: str
) -> None:
    """The line is lost while it is written: a server does nothing before it has the last byte."""
    async with slow(redis_url, 0.0) as (pipeline, proxy):
        proxy.delay_s = 60.0
        answers: list[Any] = []
        # Whose own time is up first may have been done, as far as anybody knows by then.
        pipeline.send(("INCR", pool_name), answers.append, timeout_s=PATIENCE_S)
        # More than any system holds of a connection.
        pipeline.send(("SET", pool_name, b"x" * 64_000_000), answers.append, timeout_s=PATIENCE_S)
        await until(lambda: len(answers) >= 2)
    assert [each.maybe_done for each in answers] == [True, False]


@pytest.mark.anyio
async def test_a_server_that_takes_some_and_then_hangs_costs_one_more_time_out(
    redis_url: str, pool_name: str
) -> None:
    async with slow(redis_url, MB) as (pipeline, proxy):
        answers: list[Any] = []
        pipeline.send(("SET", pool_name, b"x" * 1_500_000), answers.append)
        await until(lambda: proxy.request_bytes >= 500_000)
        with stopwatch() as watch:
            proxy.delay_s = 60.0
            await until(lambda: answers)
            assert watch.took_s() < OP_TIMEOUT_S + SLACK_S
        assert isinstance(answers[0], StoreUnavailable)


@pytest.mark.anyio
async def test_a_line_that_only_drips_has_an_end(redis_url: str, pool_name: str) -> None:
    """A byte now and then is progress; not for ever."""
    listener = socket.create_server(("127.0.0.1", 0))
    is_over = threading.Event()

    def drip() -> None:
        with suppress(OSError), listener, listener.accept()[0] as client:
            client.recv(65_536)
            facts = b"server redis version 7.4.0 proto 2 mode standalone role master".split()
            hello = b"".join(b"$%d\r\n%s\r\n" % (len(fact), fact) for fact in facts)
            client.sendall(b"*%d\r\n%s$0\r\n\r\n" % (len(facts), hello))
            client.recv(65_536)
            client.sendall(b"$1000000\r\n")
            while not is_over.wait(0.05):
                client.sendall(b"x")

    thread = threading.Thread(target=drip)
    thread.start()
    url = Url.parse(f"redis://127.0.0.1:{listener.getsockname()[1]}")
    with anyio.fail_after(PATIENCE_S):
        pipeline = await Pipeline.open(SystemIO(), url, op_timeout_s=OP_TIMEOUT_S, longest_s=1.0)
        with stopwatch() as watch, pytest.raises(StoreUnavailable) as lost:
            await pipeline.execute("GET", "x")
        spent_s, took_s = time.monotonic() - watch.began_s, watch.took_s()
        await until(lambda: not thread.is_alive())  # the connection is another one then, too
        await pipeline.aclose(0.2)
    is_over.set()
    thread.join(PATIENCE_S)
    assert lost.value.maybe_done
    assert spent_s > 0.9
    assert took_s < 1.0 + SLACK_S


@pytest.mark.anyio
async def test_what_the_system_takes_of_a_dead_line_is_no_progress(
    redis_url: str, pool_name: str
) -> None:
    """Each try writes into an empty buffer; that must not keep those alive who wait."""
    async with slow(redis_url, 0.0) as (pipeline, proxy):
        proxy.drop_requests = proxy.drop_replies = True
        with stopwatch() as watch:
            answers = await all_of(pipeline, pool_name, [b"x" * 100 * KIB] * 10)
            assert watch.took_s() < OP_TIMEOUT_S + SLACK_S
        assert all(isinstance(each, StoreUnavailable) for each in answers)
        await proxy.heal()


@pytest.mark.anyio
async def test_a_cancelled_caller_of_what_is_half_written_disturbs_nobody(
    redis_url: str, pool_name: str
) -> None:
    async with slow(redis_url, MB) as (pipeline, proxy):
        async with anyio.create_task_group() as callers:
            callers.start_soon(pipeline.execute, "SET", pool_name, b"x" * 300_000)
            await until(lambda: proxy.request_bytes >= 100_000)
            callers.cancel_scope.cancel()
        assert await pipeline.execute("STRLEN", pool_name) == 300_000
        assert pipeline.connections == 1
