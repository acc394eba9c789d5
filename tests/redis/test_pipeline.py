"""The pipeline keeps its promises on a bad network: deadlines, one effect, replies that match."""

from __future__ import annotations

import os
import random
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
import redis

from pool.errors import (
    AuthError,
    ConfigError,
    Gone,
    NotRunning,
    PoolError,
    StorageFull,
    StoreFault,
    StoreUnavailable,
    UnsupportedServer,
)
from pool.redis import connection
from pool.redis import pipeline as pipelines
from pool.redis.embedded.server import EmbeddedServer
from pool.redis.errors import naming
from pool.redis.io.loops import current_loop
from pool.redis.io.system import BodyIO, RunningBody, SystemIO
from pool.redis.pipeline import LARGE_BYTES, Pipeline
from pool.redis.scripts import Script
from pool.redis.url import Url
from pool.testing.proxy import FaultProxy, fault_proxy
from tests.impatient import opened
from tests.partitions import FakeSentinel
from tests.stopwatch import stopwatch

OP_TIMEOUT_S = 1.0
PATIENCE_S = 30.0
SLACK_S = 0.35  # of a busy machine, on top of a deadline

_ADD = """--[[
add: count an effect, and answer with what was sent.

KEYS[1] count  str    a counter
ARGV[1] word   bytes  comes back
]]
redis.call('INCR', KEYS[1])
return ARGV[1]
"""
_REFUSE = """--[[
refuse: answer with an error.

KEYS[1] count  str  a counter
ARGV[1] text   str  of the error
]]
return redis.error_reply(ARGV[1])
"""


@pytest.fixture
def add(tmp_path: Path) -> Script:
    (tmp_path / "add.lua").write_text(_ADD, "utf-8")
    return Script.load("add", keys="count", args="word", directory=tmp_path)


@pytest.fixture
def refuse(tmp_path: Path) -> Script:
    (tmp_path / "refuse.lua").write_text(_REFUSE, "utf-8")
    return Script.load("refuse", keys="count", args="text", directory=tmp_path)


@pytest.fixture
def key(pool_name: str) -> str:
    return f"pool:{{{pool_name}}}:count"


@asynccontextmanager
async def linked(url: str, **options: Any) -> AsyncIterator[Pipeline]:
    options = {"op_timeout_s": PATIENCE_S, **options}
    with anyio.fail_after(PATIENCE_S):
        pipeline = await opened(url, **options)
        try:
            yield pipeline
        finally:
            await pipeline.aclose(PATIENCE_S)


@asynccontextmanager
async def proxied(url: str, **options: Any) -> AsyncIterator[tuple[Pipeline, FaultProxy]]:
    options = {"op_timeout_s": OP_TIMEOUT_S, **options}
    with anyio.fail_after(PATIENCE_S):
        async with fault_proxy(url) as proxy, linked(proxy.url, **options) as pipeline:
            yield pipeline, proxy


def count(url: str, key: str) -> int:
    with redis.Redis.from_url(url) as client:
        return int(client.get(key) or 0)


@pytest.mark.anyio
async def test_many_callers_each_get_their_own_reply(redis_url: str, key: str, add: Script) -> None:
    """1,200 calls at once are more than one batch."""
    got: dict[int, bytes] = {}

    async with linked(redis_url) as pipeline:

        async def ask(n: int) -> None:
            got[n] = await pipeline.call(add([key], [n]))

        async with anyio.create_task_group() as callers:
            for n in range(1200):
                callers.start_soon(ask, n)
        assert pipeline.connections == 1
        assert pipeline.server is not None
        assert pipeline.server.name in ("redis", "valkey")
    assert got == {n: b"%d" % n for n in range(1200)}
    assert count(redis_url, key) == 1200


@pytest.mark.anyio
async def test_replies_are_bytes_numbers_lists_or_nothing(redis_url: str, key: str) -> None:
    async with linked(redis_url) as pipeline:
        assert await pipeline.execute("HSET", key, "f", 1.5) == 1
        assert await pipeline.execute("HGETALL", key) == [b"f", b"1.5"]
        assert await pipeline.execute("HGET", key, b"none") is None


@pytest.mark.anyio
async def test_commands_sent_together_are_one_round_trip(redis_url: str) -> None:
    async with linked(redis_url) as pipeline:
        connection, counts = pipeline._running_body.body_io.connection, list[int]()  # type: ignore[attr-defined]
        exchange = connection.exchange

        async def counted(packed: bytes, count: int, **options: Any) -> Any:
            counts.append(count)
            return await exchange(packed, count, **options)

        connection.exchange = counted
        assert await pipeline.execute_all([("ECHO", n) for n in range(3)]) == [b"0", b"1", b"2"]
        assert counts == [4]  # a PING behind what brings no number back


@pytest.mark.anyio
async def test_send_answers_in_order_with_values_and_errors(
    redis_url: str, key: str, add: Script, refuse: Script
) -> None:
    replies: list[Any] = []
    async with linked(redis_url) as pipeline:
        pipeline.send(("PING",), replies.append)
        pipeline.send(refuse([key], ["POOLGONE w1.2"]), replies.append)
        pipeline.send(add([key], ["x"]), replies.append)
        pipeline.send(("INCR", object()), replies.append)  # type: ignore[arg-type]
        await pipeline.execute("PING")
    pong, gone, word, unfit = replies
    assert (pong, word) == (b"PONG", b"x")
    assert isinstance(gone, Gone)
    assert gone.identity == "w1.2"
    assert isinstance(unfit, StoreFault)
    assert "cannot be sent" in unfit.problem


@pytest.mark.anyio
async def test_a_call_raises_what_the_server_answered(
    redis_url: str, key: str, refuse: Script
) -> None:
    async with linked(redis_url) as pipeline:
        with pytest.raises(StorageFull):
            await pipeline.call(refuse([key], ["OOM command not allowed"]))
        with pytest.raises(StoreFault, match="WRONGTYPE"):
            await pipeline.call(refuse([key], ["WRONGTYPE of value"]))


@pytest.mark.anyio
async def test_a_call_that_meets_a_foreign_value_names_its_key(
    redis_url: str, key: str, refuse: Script
) -> None:
    async with linked(redis_url) as pipeline:
        with pytest.raises(StoreFault) as raised:
            await pipeline.call(refuse([key], ["WRONGTYPE Operation against a key"]))
        assert raised.value.problem.startswith(f"WRONGTYPE: the key {key} holds what is none")
        assert not raised.value.maybe_done
        told = f"WRONGTYPE {key} holds what is none of ours"
        with pytest.raises(StoreFault, match=told):
            await pipeline.call(refuse([key], [told]))


@pytest.mark.parametrize("count", [2, 8, 12])
def test_of_many_keys_some_are_named(count: int) -> None:
    keys = [f"k:{n}" for n in range(count)]
    problem = naming(StoreFault(problem="WRONGTYPE of value"), keys).problem
    assert all(each in problem for each in keys[:8])
    assert ("4 more" in problem) is (count == 12)
    other = StoreFault(problem="ERR of another kind")
    assert naming(other, keys) is other


# --- deadlines ---------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_dead_host_answers_every_call_within_its_time(redis_url: str) -> None:
    """The machine is gone: nobody says no.  Calls that follow are not late either."""
    async with proxied(redis_url) as (pipeline, proxy):
        proxy.go_silent()
        late_s: list[float] = []

        async def ask(after_s: float) -> None:
            await anyio.sleep(after_s)
            asked_s = time.monotonic()
            with pytest.raises(StoreUnavailable):
                await pipeline.execute("PING")
            late_s.append(watch.took_s(asked_s) - OP_TIMEOUT_S)
            # What was sent is given up after half of its time, so that a repeat has time left.
            assert time.monotonic() - asked_s > OP_TIMEOUT_S / 2 - 0.1

        with stopwatch() as watch:
            async with anyio.create_task_group() as callers:
                for n in range(6):
                    callers.start_soon(ask, n * OP_TIMEOUT_S / 2)
    assert len(late_s) == 6
    assert max(late_s) < SLACK_S


@pytest.mark.anyio
async def test_a_call_whose_time_is_up_already_is_answered_and_ends_nothing(
    redis_url: str, add: Script, key: str
) -> None:
    """As when the pause before a repeat took longer than planned."""
    async with linked(redis_url) as pipeline:
        with anyio.fail_after(PATIENCE_S), pytest.raises(StoreUnavailable) as late:
            await pipeline.call(add([key], ["x"]), timeout_s=-0.01)
        assert not late.value.maybe_done
        assert await pipeline.call(add([key], ["y"])) == b"y"


@pytest.mark.anyio
async def test_opening_to_a_dead_host_ends_in_time(redis_url: str) -> None:
    async with fault_proxy(redis_url) as proxy:
        proxy.go_silent()
        with (
            stopwatch() as watch,
            pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:\d+ did not answer") as failed,
        ):
            await Pipeline.open(SystemIO(), Url.parse(proxy.url), op_timeout_s=OP_TIMEOUT_S)
        assert watch.took_s() < OP_TIMEOUT_S + 3 * SLACK_S
    assert not failed.value.maybe_done


@pytest.mark.anyio
async def test_a_call_may_have_a_shorter_time_than_those_before(redis_url: str) -> None:
    async with proxied(redis_url, op_timeout_s=PATIENCE_S) as (pipeline, proxy):
        proxy.go_silent()
        pipeline.send(("PING",), lambda _: None)
        answered = anyio.Event()
        pipeline.send(("PING",), lambda _: answered.set(), timeout_s=0.05)
        with anyio.fail_after(PATIENCE_S / 4):
            await answered.wait()
        await proxy.cut()


@pytest.mark.anyio
async def test_who_is_answered_may_ask_anew_for_a_shorter_time_than_others_have(
    redis_url: str,
) -> None:
    """Found by simulation (seed 420): it waited until the next of the others was overdue."""
    async with proxied(redis_url, op_timeout_s=PATIENCE_S) as (pipeline, proxy):
        proxy.go_silent()
        others, answered = list[Any](), anyio.Event()
        pipeline.send(("PING",), others.append)

        def ask_anew(_: object) -> None:
            pipeline.send(("PING",), lambda _: answered.set(), timeout_s=0.05)

        pipeline.send(("PING",), ask_anew, timeout_s=0.05)
        with anyio.fail_after(PATIENCE_S):
            await answered.wait()
        assert not others
        await proxy.cut()


@pytest.mark.anyio
async def test_a_dropped_reply_is_an_unknown_outcome_and_one_effect(
    redis_url: str, key: str, add: Script
) -> None:
    """By itself redis-py would have sent this ten times."""
    async with proxied(redis_url) as (pipeline, proxy):
        await pipeline.call(add([key], ["warm"]))
        proxy.drop_replies = True
        with anyio.fail_after(PATIENCE_S), pytest.raises(StoreUnavailable) as failed:
            await pipeline.call(add([key], ["x"]))
        assert failed.value.maybe_done
        await proxy.heal()
        assert await pipeline.call(add([key], ["y"])) == b"y"
        assert pipeline.connections == 2
    assert count(redis_url, key) == 3


@pytest.mark.anyio
async def test_a_lost_connection_answers_its_whole_batch_at_once(
    redis_url: str, key: str, add: Script
) -> None:
    replies: list[Any] = []
    async with proxied(redis_url, op_timeout_s=PATIENCE_S) as (pipeline, proxy):
        await pipeline.call(add([key], ["warm"]))
        proxy.drop_requests = True
        all_in = anyio.Event()
        for n in range(10):
            pipeline.send(add([key], [n]), replies.append)
        pipeline.send(("PING",), lambda _: all_in.set())
        while not proxy.dropped_bytes:
            await anyio.lowlevel.checkpoint()
        proxy.drop_requests = False
        await proxy.cut()
        with anyio.fail_after(PATIENCE_S / 4):
            await all_in.wait()
    assert all(isinstance(r, StoreUnavailable) and r.maybe_done for r in replies[:1])
    assert len(replies) == 10
    assert count(redis_url, key) == 1 + sum(not isinstance(reply, PoolError) for reply in replies)


@pytest.mark.anyio
async def test_what_was_answered_before_the_cut_stands(
    redis_url: str, key: str, add: Script
) -> None:
    replies: list[Any] = []
    async with proxied(redis_url) as (pipeline, proxy):
        await pipeline.call(add([key], ["warm"]))
        first = b"$4\r\n2 ab\r\n"  # with its number
        proxy.cut_after_bytes = len(first) + 3  # inside the second reply
        done = anyio.Event()
        for word in ("ab", "cd"):
            pipeline.send(add([key], [word]), replies.append)
        pipeline.send(("PING",), lambda _: done.set())
        await done.wait()
    assert replies[0] == b"ab"
    assert isinstance(replies[1], StoreUnavailable)
    assert replies[1].maybe_done


@pytest.mark.anyio
async def test_while_disconnected_calls_wait_and_are_not_sent_late(
    redis_url: str, key: str, add: Script
) -> None:
    async with proxied(redis_url) as (pipeline, proxy):
        await proxy.refuse()
        with anyio.fail_after(PATIENCE_S), pytest.raises(StoreUnavailable) as failed:
            await pipeline.call(add([key], ["x"]))
        assert not failed.value.maybe_done
        assert "refused" in failed.value.problem
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pipeline.call, add([key], ["y"]))
            await anyio.lowlevel.checkpoint()
            await proxy.listen()
    assert count(redis_url, key) == 1


@pytest.mark.anyio
async def test_what_waits_aside_as_it_is_large_is_neither_sent_late_nor_in_the_way(
    redis_url: str, key: str, add: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipelines, "WAITING_BYTES_MAX", 3 * LARGE_BYTES)
    large = b"x" * 2 * LARGE_BYTES  # two of them are too much to wait
    async with proxied(redis_url) as (pipeline, proxy):
        await proxy.refuse()
        for _ in range(2):
            with anyio.fail_after(PATIENCE_S), pytest.raises(StoreUnavailable) as late:
                await pipeline.call(add([key], [large]))
            assert not late.value.maybe_done
            assert "wait already" not in late.value.problem
        await proxy.listen()
        await pipeline.call(add([key], ["y"]))
        await pipeline.call(add([key], [large]))  # behind whatever waits aside
    assert count(redis_url, key) == 2


@pytest.mark.anyio
async def test_a_repeatable_call_goes_on_until_its_time_is_up(
    redis_url: str, key: str, add: Script
) -> None:
    async with proxied(redis_url, op_timeout_s=0.1) as (pipeline, proxy):
        proxy.drop_replies = True
        with pytest.raises(StoreUnavailable) as failed:
            await pipeline.call(add([key], ["x"]), repeatable=True, timeout_s=0.5)
        tries = count(redis_url, key)
        assert tries <= 5
        assert failed.value.maybe_done or not tries  # a busy machine may not have sent it at all
        async with anyio.create_task_group() as tasks:
            proxy.drop_replies = True
            tasks.start_soon(heal_when_tried_twice, proxy)
            reply = await pipeline.call(add([key], ["y"]), repeatable=True, timeout_s=PATIENCE_S)
    assert reply == b"y"


async def heal_when_tried_twice(proxy: FaultProxy) -> None:
    first = proxy.connections
    while proxy.connections < first + 2:
        await anyio.lowlevel.checkpoint()
    await proxy.heal()


@pytest.mark.anyio
async def test_more_calls_than_may_wait_are_refused(redis_url: str) -> None:
    replies: list[Any] = []
    async with proxied(redis_url, queued_max=3) as (pipeline, proxy):
        proxy.go_silent()
        pipeline.send(("PING",), replies.append)
        while not proxy.dropped_bytes:
            await anyio.lowlevel.checkpoint()
        for _ in range(3):
            pipeline.send(("PING",), replies.append)
        with pytest.raises(StoreUnavailable, match="3 calls wait already") as refused:
            pipeline.send(("PING",), replies.append)
        assert not refused.value.maybe_done
        await proxy.heal()
    assert len(replies) == 4


# --- a server that goes and comes --------------------------------------------------------------


@pytest.mark.anyio
async def test_a_killed_connection_is_noticed_before_the_next_call(
    redis_url: str, key: str, add: Script
) -> None:
    """An idle connection that the server closed costs nobody an error."""
    async with linked(redis_url, name="pool-victim") as pipeline:
        await pipeline.call(add([key], ["x"]))
        with redis.Redis.from_url(redis_url) as client:
            [victim] = [c["id"] for c in client.client_list() if c["name"] == "pool-victim"]
            client.client_kill_filter(_id=victim)
        assert await pipeline.call(add([key], ["y"])) == b"y"
        assert pipeline.connections == 2
    assert count(redis_url, key) == 2


@pytest.mark.anyio
async def test_flushed_scripts_are_loaded_again_once(redis_url: str, key: str, add: Script) -> None:
    async with linked(redis_url) as pipeline:
        await pipeline.call(add([key], ["x"]))
        await pipeline.execute("SCRIPT", "FLUSH")
        assert await pipeline.call(add([key], ["y"])) == b"y"
    assert count(redis_url, key) == 2


@pytest.mark.anyio
async def test_a_stopped_server_does_late_what_it_was_sent(
    own_server: EmbeddedServer, add: Script
) -> None:
    async with linked(own_server.url, op_timeout_s=OP_TIMEOUT_S) as pipeline:
        await pipeline.call(add(["{a}"], ["warm"]))
        os.kill(own_server.pid, signal.SIGSTOP)
        try:
            with pytest.raises(StoreUnavailable) as failed:
                await pipeline.call(add(["{a}"], ["x"]))
            with pytest.raises(StoreUnavailable) as unsent:
                await pipeline.call(add(["{a}"], ["y"]))
        finally:
            os.kill(own_server.pid, signal.SIGCONT)
        assert failed.value.maybe_done
        assert not unsent.value.maybe_done
        assert await pipeline.call(add(["{a}"], ["z"])) == b"z"
        assert await pipeline.execute("GET", "{a}") == b"3"


@pytest.mark.anyio
async def test_a_restarted_server_is_found_again(own_server: EmbeddedServer, add: Script) -> None:
    async with linked(own_server.url) as pipeline:
        await pipeline.call(add(["{a}"], ["x"]))
        own_server.kill()
        own_server.restart()
        assert await pipeline.call(add(["{a}"], ["y"])) == b"y"
        assert pipeline.connections == 2


@pytest.mark.anyio
@pytest.mark.parametrize("size", [1, 100_000], ids=["small", "waits aside"])
async def test_a_call_that_is_bound_to_a_connection_goes_by_no_other(
    own_server: EmbeddedServer, size: int
) -> None:
    """A server that was restarted may have lost what the call is about: nothing is done then."""
    async with linked(own_server.url) as pipeline:
        link, replies, answered = pipeline.link, list[Any](), anyio.Event()

        def answer(reply: Any) -> None:
            replies.append(reply)
            if len(replies) == 2:
                answered.set()

        pipeline.send(("SET", "{a}", "x" * size), answer, link=link)
        await pipeline.execute("PING")
        own_server.kill()
        own_server.restart()
        assert await pipeline.execute("PING", repeatable=True) == b"PONG"
        assert pipeline.link is not link
        pipeline.send(("SET", "{a}", "y" * size), answer, link=link)
        with anyio.fail_after(PATIENCE_S):
            await answered.wait()
        assert replies[0] == b"OK"
        assert isinstance(replies[1], StoreUnavailable)
        assert not replies[1].maybe_done
        assert await pipeline.execute("GET", "{a}") == b"x" * size


@pytest.mark.anyio
async def test_a_demoted_master_is_left(own_server: EmbeddedServer, add: Script) -> None:
    """D28: a replica is refused with its role; the words of LOADING are in test_replies."""
    async with linked(own_server.url, op_timeout_s=OP_TIMEOUT_S) as pipeline:
        with redis.Redis.from_url(own_server.url) as client:
            client.execute_command("REPLICAOF", "127.0.0.1", "1")
            [reply] = await pipeline.replies_to([add(["{a}"], ["x"])])
            assert isinstance(reply, StoreUnavailable)
            assert "READONLY" in reply.problem
            with pytest.raises(StoreUnavailable, match="not a master"):
                await pipeline.call(add(["{a}"], ["x"]))
            with pytest.raises(UnsupportedServer, match="not a master"):
                await Pipeline.open(SystemIO(), Url.parse(own_server.url), op_timeout_s=PATIENCE_S)
            client.execute_command("REPLICAOF", "NO", "ONE")
        assert await pipeline.call(add(["{a}"], ["y"])) == b"y"


@pytest.mark.anyio
async def test_replies_in_single_bytes_are_the_same(redis_url: str, key: str) -> None:
    async with proxied(redis_url, op_timeout_s=PATIENCE_S) as (pipeline, proxy):
        await pipeline.execute("HSET", key, "text", "é" * 20, "number", 17)
        whole = await pipeline.execute("HGETALL", key)
        proxy.slice_bytes = 1
        assert await pipeline.execute("HGETALL", key) == whole
        await proxy.cut()
        assert await pipeline.execute("HGETALL", key) == whole  # the greeting was sliced as well
        assert pipeline.connections == 2


@pytest.mark.anyio
async def test_a_slow_network_is_only_slow(redis_url: str, key: str, add: Script) -> None:
    async with proxied(redis_url) as (pipeline, proxy):
        proxy.delay_s = 0.02
        assert await pipeline.call(add([key], ["x"])) == b"x"
        assert pipeline.connections == 1


# --- callers -----------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_cancelled_caller_leaves_the_connection_alone(
    redis_url: str, key: str, add: Script
) -> None:
    async with proxied(redis_url) as (pipeline, proxy):
        await pipeline.call(add([key], ["warm"]))
        proxy.delay_s = 0.05
        with anyio.move_on_after(0.02) as scope:
            await pipeline.call(add([key], ["abandoned"]))
        assert scope.cancelled_caught
        proxy.delay_s = 0.0
        assert [await pipeline.call(add([key], [n])) for n in range(3)] == [b"0", b"1", b"2"]
        assert pipeline.connections == 1
    assert count(redis_url, key) == 5


@pytest.mark.anyio
async def test_close_lets_calls_end_and_answers_the_others(redis_url: str) -> None:
    replies: list[Any] = []
    async with proxied(redis_url) as (pipeline, proxy):
        pipeline.send(("PING",), replies.append)
        await pipeline.aclose(PATIENCE_S)
        assert replies == [b"PONG"]
        await pipeline.aclose(PATIENCE_S)
        with pytest.raises(NotRunning, match="closed"):
            await pipeline.execute("PING")
    async with proxied(redis_url, op_timeout_s=PATIENCE_S) as (pipeline, proxy):
        proxy.go_silent()
        pipeline.send(("PING",), replies.append)
        while not proxy.dropped_bytes:
            await anyio.lowlevel.checkpoint()
        await pipeline.aclose(0.01)
        [unknown] = replies[1:]
        assert isinstance(unknown, StoreUnavailable)
        assert unknown.maybe_done


@pytest.mark.anyio
async def test_a_link_in_a_forked_child_refuses(redis_url: str) -> None:
    async with linked(redis_url) as pipeline:
        pipeline._running_body.state = (
            "forked"  # what the fork handler does in the child; see test_seam
        )
        with pytest.raises(NotRunning, match="forked"):
            await pipeline.execute("PING")
        pipeline._running_body.state = "running"


# --- who may come in ---------------------------------------------------------------------------


@pytest.mark.anyio
async def test_wrong_credentials_are_refused_without_showing_them(
    own_server: EmbeddedServer,
) -> None:
    path = Url.parse(own_server.url).path
    with redis.Redis.from_url(own_server.url) as client:
        client.execute_command("ACL", "SETUSER", "ann", "on", ">canary-1", "~*", "+get")
        client.config_set("requirepass", "canary-2")
        for address, said in (
            (f"unix://{path}", "wants a password"),
            (f"unix://ann:canary-3@{path}", "no such user with this password"),
            (f"unix://:canary-3@{path}", "no such user with this password"),
        ):
            with pytest.raises(AuthError, match=said) as refused:
                await Pipeline.open(SystemIO(), Url.parse(address), op_timeout_s=PATIENCE_S)
            assert "canary" not in str(refused.value)
            assert path in str(refused.value)  # of several servers one may lack the user
        async with linked(f"unix://:canary-2@{path}") as pipeline:
            assert await pipeline.execute("PING") == b"PONG"
        async with linked(f"unix://ann:canary-1@{path}") as pipeline:  # INFO is forbidden to her
            assert await pipeline.execute("GET", "a") is None
            with pytest.raises(AuthError, match="'set'"):
                await pipeline.execute("SET", "a", 1)
        client.execute_command("AUTH", "canary-2")
        client.config_set("requirepass", "")


@pytest.mark.parametrize(
    ("version", "is_old"),
    [("6.2.14", True), ("6.9.240", True), ("7.0.0", False), ("10.1", False)],  # 7.0-rc1 is 6.9.240
)
def test_a_server_that_lacks_what_scripts_use_is_refused(version: str, *, is_old: bool) -> None:
    facts = {"server": "redis", "version": version, "mode": "standalone", "role": "master"}
    url = Url.parse("redis://h")
    if is_old:
        with pytest.raises(UnsupportedServer, match="older than Redis 7"):
            connection._check(facts, b"", url)
    else:
        assert connection._check(facts, b"", url).version == version


@pytest.mark.anyio
async def test_a_server_says_whether_it_may_evict_jobs(own_server: EmbeddedServer) -> None:
    """Nodes refuse one that may; who looks at a pool must be able to."""
    with redis.Redis.from_url(own_server.url) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    async with linked(own_server.url) as pipeline:
        assert pipeline.server is not None
        assert pipeline.server.policy == "allkeys-lru"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("address", "kind", "said"),
    [
        ("redis://127.0.0.1:1", StoreUnavailable, "127.0.0.1:1 refused the connection"),
        ("redis://nowhere.invalid", StoreUnavailable, "nowhere.invalid:6379 has no address"),
        ("unix:///nowhere/redis.sock", StoreUnavailable, "/nowhere/redis.sock does not exist"),
        ("redis+cluster://127.0.0.1:1,127.0.0.1:2", StoreUnavailable, "refused"),
        ("redis+sentinel://127.0.0.1:1/main", StoreUnavailable, "main"),
    ],
)
async def test_an_address_that_leads_nowhere_says_why(
    address: str, kind: type[PoolError], said: str
) -> None:
    with anyio.fail_after(PATIENCE_S), pytest.raises(kind) as failed:
        await Pipeline.open(SystemIO(), Url.parse(address), op_timeout_s=PATIENCE_S)
    assert said in str(failed.value)


@pytest.mark.anyio
@pytest.mark.parametrize("has_thread", [False, True])
@pytest.mark.parametrize(
    "named", [(64 * "x" + ".org", 1), ("a..b", 1), ("", -1), ("127.0.0.1", 70_000), ("a\0b", 1)]
)
async def test_a_place_that_no_socket_takes_cannot_be_reached(
    named: tuple[str, int], has_thread: bool
) -> None:
    """Named by a sentinel; it crashed whoever asked, six times, and then the node."""
    replies: list[Any] = []

    async def ask(body_io: BodyIO) -> None:
        replies.extend(await body_io.run([("PING",)], timeout_s=PATIENCE_S))
        body_io.post(over.set)
        while not body_io.closing:
            await body_io.wait()

    over = anyio.Event()
    with FakeSentinel(named) as sentinel, anyio.fail_after(PATIENCE_S):
        url = Url.parse(f"redis+sentinel://{sentinel.place}/main")
        beside = SystemIO().start(
            "ask", url, ask, has_thread=has_thread, on_end=lambda _: over.set()
        )
        await over.wait()
        assert await beside.aclose(PATIENCE_S)
    assert [type(reply) for reply in replies] == [StoreUnavailable]
    assert not replies[0].maybe_done


@pytest.fixture
def hole() -> Iterator[tuple[str, int]]:
    """Yield where packets are dropped: a queue of connections that nobody accepts, and is full."""
    with ExitStack() as sockets:
        place = sockets.enter_context(socket.socket())
        place.bind(("127.0.0.1", 0))
        place.listen(0)
        for _ in range(4):
            filling = sockets.enter_context(socket.socket())
            filling.setblocking(False)
            filling.connect_ex(place.getsockname())
        yield place.getsockname()


@pytest.mark.anyio
@pytest.mark.parametrize("has_thread", [False, True])
async def test_an_address_that_drops_packets_leaves_time_for_the_others(
    redis_url: str, hole: tuple[str, int], has_thread: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had all the time there was: a host with such a first address was never reached."""
    look_up, dropped = socket.getaddrinfo, (socket.AF_INET, socket.SOCK_STREAM, 6, "", hole)
    replies: list[Any] = []

    async def ask(body_io: BodyIO) -> None:
        replies.extend(await body_io.run([("PING",)], timeout_s=4 * OP_TIMEOUT_S))
        body_io.post(over.set)
        while not body_io.closing:
            await body_io.wait()

    async with fault_proxy(redis_url) as proxy:
        of_proxy = Url.parse(proxy.url)
        found = look_up(*of_proxy.hosts[0], type=socket.SOCK_STREAM)
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [dropped, dropped, *found])
        over = anyio.Event()
        with anyio.fail_after(PATIENCE_S):
            beside = SystemIO().start("ask", of_proxy, ask, has_thread=has_thread)
            await over.wait()
            assert await beside.aclose(PATIENCE_S)
    assert replies == [b"PONG"]


@pytest.mark.anyio
async def test_a_database_that_is_not_there_is_a_mistake_in_the_address(
    own_server: EmbeddedServer,
) -> None:
    with pytest.raises(ConfigError, match="no database of this number"):
        await Pipeline.open(
            SystemIO(), Url.parse(f"{own_server.url}?db=99"), op_timeout_s=PATIENCE_S
        )
    async with linked(f"{own_server.url}?db=1") as pipeline:
        await pipeline.execute("SET", "a", 1)
    async with linked(own_server.url) as pipeline:
        assert await pipeline.execute("GET", "a") is None


@pytest.mark.anyio
async def test_a_closed_link_of_a_cluster_opens_no_other() -> None:
    """Each place has a pipeline, under its own name; none is begun for a place not seen before."""
    io, names = SystemIO(), list[str]()
    start = io.start

    def noted(name: str, *args: Any, **options: Any) -> RunningBody:
        names.append(name)
        return start(name, *args, **options)

    io.start = noted  # type: ignore[method-assign]
    url = Url.parse("redis+cluster://127.0.0.1:1").at("pool:{p}:config")
    pipeline = Pipeline(io, url, op_timeout_s=0.5, queued_max=10, name="pool-pipeline", care=None)
    pipeline._start()
    pipeline.at("pool:{p:0}:lane")
    pipeline.at("pool:{p:0}:jobs")
    assert names == ["pool-pipeline", "pool-pipeline-pool:{p:0}"]
    await pipeline.aclose(0.2)
    for key in ("pool:{p}:config", "pool:{p:0}:lane", "pool:{p:1}:lane"):
        with pytest.raises(NotRunning):
            await pipeline.execute("GET", key)
    assert len(names) == 2


@pytest.mark.anyio
async def test_a_callback_may_be_the_first_that_calls_for_a_place_of_a_cluster() -> None:
    """As a timer of ours; on asyncio it could not say where it runs, and was refused for that."""
    url = Url.parse("redis+cluster://127.0.0.1:1").at("pool:{p}:config")
    pipeline = Pipeline(
        SystemIO(), url, op_timeout_s=0.5, queued_max=10, name="pool-pipeline", care=None
    )
    pipeline._start()
    found, heard, loop = list[object](), anyio.Event(), current_loop()

    def hear(reply: object) -> None:
        found.append(reply)
        heard.set()

    def call() -> None:
        try:
            pipeline.send(("HGET", "pool:{p:0}:lane", "stamp"), hear)
        except BaseException as error:  # noqa: BLE001 - whatever it is
            hear(error)

    threading.Thread(target=partial(loop.post, call)).start()  # no task's context comes along
    with anyio.fail_after(PATIENCE_S):
        await heard.wait()
    await pipeline.aclose(0.2)
    assert [type(each) for each in found] == [StoreUnavailable]


def test_who_hangs_up_is_gone_for_the_other_side_whoever_has_a_copy_of_the_socket() -> None:
    """A child process that was forked meanwhile would keep the connection, and its server a client.

    So it is shut down, and not only closed.
    """
    ours, theirs = socket.socketpair()
    with ours.dup(), theirs:
        connection._hang_up(ours)
        theirs.settimeout(5)
        assert theirs.recv(1) == b""


@pytest.mark.anyio
async def test_a_body_whose_event_loop_is_gone_does_nothing_more() -> None:
    batches = list[object]()

    async def connect(_: object) -> bool:
        return True

    async def run_batch(port: object) -> bool:
        await anyio.lowlevel.checkpoint()
        batches.append(port)
        return len(batches) < 3  # nobody is there who would take a reply

    port: Any = SimpleNamespace(closing=False, is_connected=lambda: True)
    pipeline: Any = SimpleNamespace(
        _flying=(), _queue=[1], _aside=[], _connect=connect, _run_batch=run_batch
    )
    with anyio.fail_after(5):
        await Pipeline._work(pipeline, port)
    assert batches == [port] * 3


@pytest.mark.anyio
async def test_a_call_that_a_busy_server_refused_is_sent_again_within_its_time(
    own_server: EmbeddedServer, key: str, add: Script
) -> None:
    """What a server refuses while it is busy or loads its dump was not done: no id is needed."""
    replies = list[Any]()
    with (
        # Its script spins until it is killed, however long that takes on a busy machine.
        redis.Redis.from_url(own_server.url, socket_timeout=None) as stuck,
        redis.Redis.from_url(own_server.url) as other,
    ):
        other.config_set("busy-reply-threshold", 1)
        async with linked(own_server.url) as pipeline, anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, _spin, stuck)
            await anyio.to_thread.run_sync(_wait_until_busy, other)

            async def call() -> None:
                replies.append(await pipeline.call(add([key], ["x"]), timeout_s=PATIENCE_S))

            tasks.start_soon(call)
            refused = anyio.Event()
            await anyio.lowlevel.checkpoint()
            pipeline.send(("GET", key), lambda _: refused.set())
            await refused.wait()  # replies come in order: the call's first try was refused
            assert not replies
            other.script_kill()
        assert replies == [b"x"]
        assert count(own_server.url, key) == 1
        async with linked(own_server.url) as pipeline, anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, _spin, stuck)
            await anyio.to_thread.run_sync(_wait_until_busy, other)
            try:
                with pytest.raises(StoreUnavailable, match="BUSY") as failed:
                    await pipeline.call(add([key], ["y"]), timeout_s=2.0)
            finally:
                other.script_kill()
        assert not failed.value.maybe_done
        assert count(own_server.url, key) == 1


@pytest.mark.anyio
async def test_a_try_without_time_hides_no_refusal(own_server: EmbeddedServer, key: str) -> None:
    """The last pause ends a moment before the deadline: nothing can be sent in what is left."""
    with redis.Redis.from_url(own_server.url) as client:
        client.config_set("min-replicas-to-write", 1)
        try:
            async with linked(own_server.url, op_timeout_s=1.0) as pipeline:
                until_s = pipeline.io.clock() + 1.0

                class Dice(random.Random):
                    def uniform(self, a: float, b: float) -> float:
                        left_s = until_s - pipeline.io.clock()
                        return b if left_s > 0.5 else max(a, left_s - 1e-6)

                pipeline.io.dice = Dice()
                with pytest.raises(StoreUnavailable, match="NOREPLICAS") as failed:
                    await pipeline.execute("SET", key, "x", repeatable=True)
                assert not failed.value.maybe_done
        finally:
            client.config_set("min-replicas-to-write", 0)


def _spin(client: redis.Redis) -> None:
    with suppress(redis.ResponseError):  # killed
        client.eval("while true do end", 0)


def _wait_until_busy(client: redis.Redis) -> None:
    with suppress(redis.ResponseError):  # that it is busy
        while True:
            client.ping()
