"""Bad input: a typed error at once, nothing lost, and the node goes on."""

from __future__ import annotations

import math
import socket
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from decimal import Decimal
from enum import IntEnum
from functools import wraps
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest
import redis

from pool import Call, Handlers, Job, JobRef, Node, Park, PoolError, Retry, Settings
from pool.errors import (
    AuthError,
    ConfigError,
    DuplicateHandler,
    InvalidKey,
    InvalidOption,
    JobParked,
    NoSuchJob,
    NotRunning,
    OutcomeExpired,
    PayloadEncodingError,
    PayloadTooLarge,
    PoolFull,
    StoreUnavailable,
    UnsupportedServer,
    UsageError,
)
from pool.events import RecordQuarantined
from pool.jobs.client.dispatcher import Dispatcher
from pool.jobs.handlers import NAMES_BYTES_MAX
from pool.maps.deltas import Op, Set
from pool.names import Names, lane_of
from pool.redis.acl import rules
from pool.redis.commands.admission import Admission
from pool.redis.commands.lane import Lane
from pool.testing.proxy import fault_proxy
from tests.stopwatch import stopwatch

if TYPE_CHECKING:
    from pool.redis.embedded.server import ServerProgram
from tests.nodes import Diary, Fleet

handlers = Handlers()


@handlers.job("echo")
async def echo(job: Job, value: Any = None) -> Any:
    return value


async def answers(node: Node) -> None:
    """Check that the node still does what it is for."""
    ref = await node.dispatch(echo, "afterwards", 1)
    assert await ref.result(timeout_s=30) == 1


class Text(str):
    """Looks like a key."""

    __slots__ = ()


# --- keys ---------------------------------------------------------------------------------------

BAD_KEYS: list[tuple[Any, str]] = [
    ("", "empty"),  # D1
    (None, "expected str, not NoneType"),  # D2
    (17, "expected str, not int"),
    (b"k", "expected str, not bytes"),
    (Text("k"), "expected str, not Text"),
    ("k" * 513, "513 bytes, at most 512"),  # D3
    ("ü" * 257, "514 bytes, at most 512"),
    ("a\x00", "U+0000 at offset 1"),  # D4
    ("ab\n", "U+000A at offset 2"),
    ("\x7f", "U+007F at offset 0"),
    ("\x85", "U+0085 at offset 0"),
    ("a\ud800", "lone surrogate U+D800 at offset 1"),
]


@pytest.mark.anyio
async def test_a_bad_key_is_refused_by_every_call_before_anything_is_sent(fleet: Fleet) -> None:
    """D1 to D4: the error says what is wrong with it, and where."""
    node = await fleet.node(handlers)
    calls: list[Callable[[Any], Awaitable[object]]] = [
        lambda key: node.dispatch(echo, key),
        lambda key: node.dispatch("echo", key),
        lambda key: node.notify(key, 1),
        node.stop,
        node.status,
    ]
    for key, problem in BAD_KEYS:
        for call in calls:
            with pytest.raises(InvalidKey) as refused:
                await call(key)
            assert problem in refused.value.problem
            assert len(str(refused.value)) < 500
        [answer] = await node.dispatch_many(echo, [Call(key)])
        assert isinstance(answer, InvalidKey)
    await answers(node)


@pytest.mark.anyio
async def test_keys_that_only_look_alike_are_different_keys(fleet: Fleet) -> None:
    """D5: bytes decide, before any normalisation."""
    node = await fleet.node(handlers)
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    waiting = node.options(delay_s=60)
    first, second = await waiting.dispatch(echo, composed), await waiting.dispatch(echo, decomposed)
    assert (await node.status(composed)).job_id == first.job_id
    assert (await node.status(decomposed)).job_id == second.job_id


@pytest.mark.parametrize(
    "pool",
    ["", "A", "a:b", "a*", "a?", "a[b]", "a{b}", "a b", "a" * 65, "ü", "a\n", None, 7, b"pool"],
)
def test_a_bad_pool_name_is_refused_when_the_node_is_described(pool: Any) -> None:
    """D6: an alphabet in which no pool's keys can be taken for another's."""
    with pytest.raises(ConfigError) as refused:
        Node(pool, "redis://localhost")
    assert refused.value.setting == "pool"


# --- handlers -----------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_bad_handler_name_is_refused_at_dispatch(fleet: Fleet) -> None:
    node = await fleet.node(handlers)
    for name in ("", "a b", "a\n", "a" * 129, "ü", "a|b", "%s"):
        with pytest.raises(ConfigError):
            await node.dispatch(name, "k")
        with pytest.raises(ConfigError):
            await node.dispatch_many(name, ["k"])
    no_names: list[Any] = [None, 7, b"echo", echo.fn]
    for no_name in no_names:
        with pytest.raises(UsageError):
            await node.dispatch(no_name, "k")
    await answers(node)


def test_a_name_taken_twice_is_refused_when_it_is_registered() -> None:
    """D9."""
    mine = Handlers()
    mine.job("a")(echo.fn)
    with pytest.raises(DuplicateHandler):
        mine.service("a")(echo.fn)


def test_what_cannot_be_called_with_a_job_is_refused_when_it_is_registered() -> None:
    """D10."""

    def no_arguments() -> None: ...
    def generator() -> Any:
        yield

    for bad in (None, 7, "echo", no_arguments, generator, int):
        with pytest.raises(ConfigError) as refused:
            Handlers().job("a")(bad)  # type: ignore[arg-type]
        assert refused.value.setting == "handler"


@pytest.mark.anyio
async def test_a_handler_registered_after_the_start_is_not_served_by_that_worker(
    fleet: Fleet,
) -> None:
    """D11: what a worker takes is announced when it joins; add another worker instead."""
    mine = Handlers()
    mine.job("early")(echo.fn)
    node = await fleet.node(mine)
    mine.job("late")(echo.fn)
    assert node.workers[0].handlers == ("early",)
    ref = await node.options(allow_unknown=True).dispatch("late", "k", 1)
    await node.add_worker(mine)
    assert await ref.result(timeout_s=30) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"timeout_s": 0},  # D20
        {"timeout_s": -1},
        {"timeout_s": math.inf},
        {"timeout_s": math.nan},
        {"timeout_s": "1"},
        {"timeout_s": True},
        {"attempts_max": 0},  # D21
        {"attempts_max": -1},
        {"attempts_max": 1001},
        {"attempts_max": True},
        {"attempts_max": 1.5},
        {"backoff_s": 0},  # D22
        {"backoff_s": -1},
        {"backoff_s": math.nan},
        {"backoff_s": 2.0, "backoff_max_s": 1.0},
        {"backoff_max_s": math.inf},
    ],
    ids=str,
)
def test_options_out_of_bounds_are_refused_when_a_handler_is_registered(
    options: dict[str, Any],
) -> None:
    with pytest.raises(InvalidOption) as refused:
        Handlers().job("a", **options)
    assert refused.value.option in options
    with pytest.raises(InvalidOption):
        Handlers().service("a", healthy_s=-1)


# --- payloads -----------------------------------------------------------------------------------

circular: list[Any] = []
circular.append(circular)


@pytest.mark.anyio
async def test_what_cannot_be_encoded_is_refused_with_its_place(fleet: Fleet) -> None:
    """D12, D14."""
    node = await fleet.node(handlers)
    deep: Any = None
    for _ in range(200):
        deep = [deep]
    bad: list[tuple[Any, str, str]] = [
        ({"a": [1, 2, {3}]}, "$.args[0].a[2]", "set cannot be encoded"),
        ({"a": b"x"}, "$.args[0].a", "bytes must be the only value"),
        (Decimal(1), "$.args[0]", "Decimal"),
        (datetime.now().astimezone(), "$.args[0]", "datetime"),
        (object(), "$.args[0]", "object"),
        ({1: 2}, "$.args[0]", "a key is int"),
        (math.nan, "$.args[0]", "nan is not JSON"),
        ([math.inf], "$.args[0][0]", "inf is not JSON"),
        ("\ud800", "$.args[0]", "lone surrogate"),
        (circular, "$.args[0][0]", "circular"),
        (deep, "$.args[0]", "deeper than 100"),
        (10**5000, "$.args[0]", "digits"),
    ]
    for value, path, problem in bad:
        with pytest.raises(PayloadEncodingError) as refused:
            await node.dispatch(echo, "k", value)
        assert refused.value.path.startswith(path)
        assert problem in refused.value.problem
        with pytest.raises(PayloadEncodingError):
            await node.notify("k", value)
    assert fleet.record("k") is None
    await answers(node)


@pytest.mark.anyio
async def test_a_tuple_arrives_as_a_list(fleet: Fleet) -> None:
    """D13."""
    node = await fleet.node(handlers)
    assert await (await node.dispatch(echo, "k", (1, (2,)))).result(timeout_s=30) == [1, [2]]


@pytest.mark.anyio
async def test_a_payload_over_the_limit_is_refused_before_it_is_sent(fleet: Fleet) -> None:
    """D15: with both sizes; one byte less is taken."""
    node = await fleet.node(handlers, payload_bytes_max=1000, message_bytes_max=100)
    with pytest.raises(PayloadTooLarge) as refused:
        await node.dispatch(echo, "k", b"x" * 1000)  # and one byte that says what follows
    error = refused.value
    assert (error.what, error.size_bytes, error.size_bytes_max) == ("payload", 1001, 1000)
    assert await (await node.dispatch(echo, "k", b"x" * 999)).result(timeout_s=30) == b"x" * 999
    with pytest.raises(PayloadTooLarge):
        await node.notify("k", "x" * 100)


# --- options of calls ---------------------------------------------------------------------------


@pytest.mark.anyio
async def test_delays_and_options_out_of_bounds_are_refused(fleet: Fleet) -> None:
    """D19."""
    node = await fleet.node(handlers)
    for delay_s in (-1, -0.001, math.nan, math.inf, 366 * 86_400, "1", None, True, timedelta(1)):
        with pytest.raises(InvalidOption) as refused:
            node.options(delay_s=delay_s)  # type: ignore[arg-type]
        assert refused.value.option == "delay_s"
    with pytest.raises(InvalidOption):
        node.options(if_exists="other")  # type: ignore[arg-type]
    ref = await node.options(delay_s=365 * 86_400).dispatch(echo, "far")
    assert (await ref.status()).state == "waiting"
    await answers(node)


@pytest.mark.anyio
async def test_too_many_calls_in_one_batch_are_refused_and_none_is_dispatched(
    fleet: Fleet,
) -> None:
    node = await fleet.node()
    with pytest.raises(InvalidOption):
        await node.dispatch_many(echo, (f"k{n}" for n in range(100_001)))
    assert fleet.record("k0") is None


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"lease_ttl_s": 0.5}, "lease_ttl_s"),
        ({"lease_ttl_s": math.nan}, "lease_ttl_s"),
        ({"lease_ttl_s": "10"}, "lease_ttl_s"),
        ({"queued_jobs_max": 0}, "queued_jobs_max"),
        ({"queued_jobs_max": 1.5}, "queued_jobs_max"),
        ({"lanes": 0}, "lanes"),
        ({"on_overrun": "ignore"}, "on_overrun"),
    ],
    ids=str,
)
def test_settings_that_cannot_work_are_refused_with_their_values(
    changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        Settings(**changes)


@pytest.mark.anyio
async def test_a_worker_that_cannot_work_is_refused(fleet: Fleet) -> None:
    """D24."""
    node = await fleet.node()
    bad: list[dict[str, Any]] = [
        {"capacity": 0},
        {"capacity": -1},
        {"capacity": 10_001},
        {"capacity": 1.5},
        {"capacity": True},
        {"weight": 0},
        {"weight": -1.0},
        {"weight": math.nan},
        {"weight": "1"},
        {"weight": True},
        {"label": "a\n"},
        {"label": 7},
        {"version": "x" * 129},
    ]
    for options in bad:
        with pytest.raises(ConfigError) as refused:
            await node.add_worker(handlers, **options)
        assert refused.value.setting in options
        with pytest.raises(ConfigError):
            Node("p", "redis://localhost", **options)
    assert node.workers == ()


# --- addresses ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:6379",
        "http://localhost",
        "redis://h:99999",
        "redis://h:port",
        "redis://u:CANARY/@h",
        "redis://u:CANARY%@h/x",
        "redis+cluster://u:CANARY@h/3",
        None,
        7,
    ],
    ids=str,
)
def test_an_address_that_is_none_is_refused_without_its_password(url: Any) -> None:
    """D25."""
    with pytest.raises(ConfigError) as refused:
        Node("p", url)
    assert refused.value.setting == "url"
    assert "CANARY" not in str(refused.value)


@pytest.mark.anyio
async def test_a_server_that_is_not_there_is_said_so_within_the_deadline(fleet: Fleet) -> None:
    """D26: after op_timeout_s, not after minutes."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    with stopwatch() as watch:
        for url in (
            f"redis://127.0.0.1:{port}",
            "unix:///nowhere/at/all",
            "redis://no.host.invalid",
        ):
            with pytest.raises(StoreUnavailable) as refused:
                await fleet.node(url=url, op_timeout_s=0.3)
            assert refused.value.retryable
        assert watch.took_s() < 3
    await answers(await fleet.node(handlers))


@pytest.mark.anyio
@pytest.mark.one_server
async def test_a_server_that_says_nothing_is_said_so_within_the_deadline(fleet: Fleet) -> None:
    async with fault_proxy(fleet.url) as proxy:
        proxy.go_silent()
        with stopwatch() as watch, pytest.raises(StoreUnavailable):
            await fleet.node(url=proxy.url, op_timeout_s=0.3)
        assert watch.took_s() < 2


@pytest.mark.anyio
async def test_what_is_no_redis_is_said_so_within_the_deadline(fleet: Fleet) -> None:
    async def talk(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await stream.send(b"SSH-2.0-OpenSSH_9.6\r\n")

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)  # noqa: S610 - not Django's
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, talk)
        with anyio.fail_after(30), pytest.raises(PoolError):
            await fleet.node(url=f"redis://127.0.0.1:{port}", op_timeout_s=0.5)
        tasks.cancel_scope.cancel()
    await listener.aclose()


@pytest.mark.anyio
@pytest.mark.one_server
async def test_wrong_credentials_are_said_so(fleet: Fleet) -> None:
    """D27: and the password is not in what is said."""
    user = f"bad-{fleet.pool}"
    fleet.client.acl_setuser(user, enabled=True, passwords=["+right"], categories=["+@all"])
    try:
        path = fleet.url.rpartition("@")[2]
        with redis.Redis(unix_socket_path=path) as probe:
            probe.ping()
        for name, password in ((user, "CANARY-wrong"), ("nobody", "CANARY-any")):
            url = f"unix://{name}:{password}@{path}"
            with pytest.raises(AuthError) as refused:
                await fleet.node(url=url)
            assert "CANARY" not in str(refused.value)
    finally:
        fleet.client.acl_deluser(user)


@pytest.mark.anyio
@pytest.mark.one_server
async def test_a_right_that_is_missing_is_named(fleet: Fleet) -> None:
    """D27: NOPERM on the keys of the pool."""
    user = f"bad-{fleet.pool}"
    fleet.client.acl_setuser(
        user, enabled=True, passwords=["+right"], categories=["+@all"], keys=["other:*"]
    )
    try:
        url = f"unix://{user}:right@{fleet.url.rpartition('@')[2]}"
        with pytest.raises(AuthError) as refused:
            await fleet.node(url=url)
        assert "CANARY" not in str(refused.value)
        assert refused.value.problem
    finally:
        fleet.client.acl_deluser(user)


@pytest.mark.anyio
@pytest.mark.one_server
@pytest.mark.parametrize("command", ["hset", "scard"])
async def test_a_right_that_only_renewals_need_is_named_too(fleet: Fleet, command: str) -> None:
    """Whoever joins was told that the server had not answered."""
    await fleet.node()
    user, words = f"bad-{fleet.pool}", [each for each in rules(fleet.pool) if each != f"+{command}"]
    client: Any = fleet.client
    client.execute_command("ACL", "SETUSER", user, "on", ">right", *words)
    try:
        with pytest.raises(AuthError, match=rf"\+{command}"):
            await fleet.node(
                url=f"unix://{user}:right@{fleet.url.rpartition('@')[2]}", op_timeout_s=0.5
            )
    finally:
        fleet.client.acl_deluser(user)


@pytest.mark.anyio
async def test_an_evicting_server_is_refused(
    anyio_backend: str, program: ServerProgram, diary: Diary
) -> None:
    """D29: it may drop jobs without a word."""
    from pool.redis.embedded.server import EmbeddedServer

    with EmbeddedServer.start(program) as server, redis.Redis.from_url(server.url) as client:
        client.config_set("maxmemory", "100mb")
        client.config_set("maxmemory-policy", "allkeys-lru")
        with pytest.raises(UnsupportedServer):
            async with Node("p", server.url, observers=(diary.note,)):
                pass


@pytest.mark.anyio
async def test_a_pool_of_another_number_of_lanes_is_refused(fleet: Fleet) -> None:
    await fleet.node()
    with pytest.raises(ConfigError) as refused:
        await fleet.node(lanes=2)
    assert refused.value.setting == "lanes"


@pytest.mark.anyio
@pytest.mark.parametrize("wrong", ["tenant-17", b"k", {"k": 1}, None, 5, Call("k")], ids=repr)
async def test_what_is_no_list_of_calls_is_refused_whole(fleet: Fleet, wrong: Any) -> None:
    """Text has characters and a dict has keys: each would be a job."""
    node = await fleet.node(handlers)
    with pytest.raises(InvalidOption) as error:
        await node.dispatch_many(echo, wrong)
    assert error.value.option == "calls"
    for key in ("t", "k"):
        with pytest.raises(NoSuchJob):
            await node.status(key)


@pytest.mark.anyio
@pytest.mark.parametrize("lanes", [1, 3])
async def test_what_is_no_call_among_others_is_answered_alone(fleet: Fleet, lanes: int) -> None:
    node = await fleet.node(handlers, lanes=lanes)
    wrong: list[Any] = [None, b"x", ("k", 1), {"key": "k"}, echo]
    calls = [Call("a", "x"), *wrong, "b"]
    first, *answers, last = await node.dispatch_many(echo, calls)
    assert [type(answer) for answer in answers] == [InvalidOption] * len(wrong)
    assert (first.key, last.key) == ("a", "b")  # type: ignore[union-attr]


class Keyless(Call):
    @property
    def key(self) -> str:
        raise RuntimeError("planted")

    @key.setter
    def key(self, _: str) -> None:
        pass


class Uncounted(str):
    __slots__ = ()

    def __len__(self) -> int:
        raise RuntimeError("planted")


class Closed(dict[str, int]):
    def __iter__(self) -> Any:
        raise RuntimeError("planted")


@pytest.mark.anyio
@pytest.mark.parametrize("lanes", [1, 3])
async def test_what_a_calls_own_code_raises_is_that_calls_answer(fleet: Fleet, lanes: int) -> None:
    node = await fleet.node(handlers, lanes=lanes)
    keys = [f"k{n}" for n in range(10)]
    wrong: dict[Call | str, type[PoolError]] = {
        Keyless("a"): InvalidOption,
        Uncounted("b"): InvalidKey,
        Call("c", Closed(a=1)): PayloadEncodingError,
        Call("d", [Closed(a=1)]): PayloadEncodingError,
    }
    refused = await node.dispatch_many(echo, [*wrong, *keys])
    assert [type(answer) for answer in refused] == [*wrong.values(), *[JobRef] * len(keys)]
    planted = refused[0].__cause__  # type: ignore[union-attr]
    assert isinstance(planted, RuntimeError)
    with pytest.raises(PayloadEncodingError, match=r"RuntimeError was raised by it.*\$\.args"):
        await node.dispatch(echo, "c", Closed(a=1))


@pytest.mark.anyio
@pytest.mark.parametrize("lanes", [1, 3])
async def test_what_ends_one_lanes_share_comes_plain_and_ends_no_other(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, lanes: int
) -> None:
    node = await fleet.node(handlers, lanes=lanes)
    keys = [f"k{n}" for n in range(10)]
    hurt = lane_of(keys[0], lanes)
    real = Dispatcher.admit

    def admit(self: Dispatcher, items: Any, **how: Any) -> Any:
        if lane_of(items[0].key, lanes) == hurt:
            raise RuntimeError("planted")
        return real(self, items, **how)

    with monkeypatch.context() as patch:
        patch.setattr(Dispatcher, "admit", admit)
        with pytest.raises(RuntimeError, match="planted"):
            await node.options(delay_s=60).dispatch_many(echo, keys)
    for key in keys:
        if lane_of(key, lanes) != hurt:
            await node.status(key)  # it is there


# --- times at which a call cannot work ----------------------------------------------------------


@pytest.mark.anyio
async def test_calls_before_the_start_and_after_the_end_are_refused_with_the_state(
    fleet: Fleet,
) -> None:
    """D30."""
    node = Node(fleet.pool, fleet.url, observers=())

    async def refused(state: str) -> None:
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: node.dispatch(echo, "k"),
            lambda: node.dispatch_many(echo, ["k"]),
            lambda: node.notify("k", 1),
            lambda: node.stop("k"),
            lambda: node.status("k"),
            lambda: node.add_worker(handlers),
            node.shutdown_pool,
        ]
        of_a_ref: list[Callable[[], Awaitable[object]]] = [
            lambda: JobRef[Any]("k", "id", "echo", node._client).result(timeout_s=1),
            lambda: JobRef[Any]("k", "id", "echo", node._client).status(),
            lambda: JobRef[Any]("k", "id", "echo", node._client).stop(),
        ]
        for call in [*calls, *(of_a_ref if state != "new" else ())]:
            with pytest.raises(NotRunning) as error:
                await call()
            assert error.value.state == state

    await refused("new")
    async with node:
        assert node.state == "open"
    await refused("closed")


@pytest.mark.anyio
async def test_unknown_expired_and_malformed_job_ids_are_said_to_be_unknown(fleet: Fleet) -> None:
    """D33."""
    node = await fleet.node()
    for job_id in ("never", "x" * 100, "a:b", "日本"):
        ref = JobRef[Any]("k", job_id, "echo", node._client)
        with pytest.raises(NoSuchJob):
            await ref.status()
        with pytest.raises(OutcomeExpired):
            await ref.result(timeout_s=30)
        with pytest.raises(NoSuchJob):  # its caller may have meant another one
            await ref.stop(timeout_s=30)


# --- what stands in Redis -----------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_stream_entry_that_is_none_of_ours_disturbs_nobody(fleet: Fleet) -> None:
    """D34: the reader goes on behind it."""
    fleet.is_audited = False  # the foreign entries stay
    node = await fleet.node(handlers)
    worker = f"{node.workers[0].id}.1"
    junk: list[dict[Any, Any]] = [
        {"x": b"y"},
        {"k": b"k"},
        {"k": b"\xff\xfe", "m": b"a|b|j|1||0|1|"},
        {"k": b"k", "m": b"a|b|q|1||0|1|"},
        {"k": b"k", "m": b"a|b|j|1e999||0|1|"},
    ]
    for stream in (fleet.names.stream(worker), fleet.names.signal(worker)):
        for fields in junk:
            fleet.client.xadd(stream, fields)
    signals: list[dict[Any, Any]] = [
        {"t": b"message", "k": b"k"},
        {"t": b"intent", "k": b"k", "e": b"x", "d": b"s"},
        {"t": b"message", "k": b"k", "i": b"x", "b": b"-"},
        {"t": b"\xff"},
    ]
    for fields in signals:
        fleet.client.xadd(fleet.names.signal(worker), fields)
        fleet.client.xadd(fleet.names.signal(f"{node.id}.1"), fields)
    await answers(node)


@pytest.mark.anyio
async def test_a_record_that_cannot_be_read_is_refused_and_its_neighbours_go_on(
    fleet: Fleet,
) -> None:
    """D35, D36: a newer version's record, or junk: never guessed at, never written over."""
    node = await fleet.node(handlers)
    fleet.is_audited = False  # the foreign records stay
    junk = [b"", b"junk", b"Z|x", b"P|j|id|echo|w.1|1e999|1||||||||||", b"\xff|" * 20]
    for n, text in enumerate(junk):
        fleet.client.hset(fleet.names.jobs, f"bad-{n}", text)
    for n in range(len(junk)):
        for call in (
            lambda key: node.dispatch(echo, key),
            lambda key: node.notify(key, 1),
            lambda key: node.stop(key, timeout_s=1),
            node.status,
        ):
            with pytest.raises(PoolError) as refused, anyio.fail_after(30):
                await call(f"bad-{n}")
            assert not isinstance(refused.value, StoreUnavailable)  # as of who was not answered
        assert fleet.client.hget(fleet.names.jobs, f"bad-{n}") == junk[n]
    await answers(node)


@pytest.mark.anyio
async def test_a_start_whose_record_became_junk_is_not_committed(
    fleet: Fleet, diary: Diary
) -> None:
    """The worker is told so, and its loop goes on.  A sweep may set the record aside meanwhile."""
    mine = Handlers()
    release = anyio.Event()

    @mine.job("work")
    async def work(job: Job) -> None:
        diary.note(job.key)
        await release.wait()

    mine.job("echo")(echo.fn)
    node = await fleet.node(mine)
    fleet.is_audited = False
    ref = await node.dispatch(work, "k")
    await ref.started(timeout_s=30)
    fleet.client.hset(fleet.names.jobs, "k", "junk")
    release.set()
    await fleet.until(lambda: not fleet.workers(node)[0].runs)
    await answers(node)
    assert not fleet.client.exists(fleet.names.result(ref.key, ref.job_id))
    if fleet.client.hget(fleet.names.jobs, "k") != b"junk":
        await fleet.seen(RecordQuarantined, key="k")  # its answer may be on its way
        assert fleet.client.hget(fleet.names.jobs, "k") is None


@pytest.mark.anyio
async def test_an_overdue_key_without_a_readable_record_is_parked_as_it_is(fleet: Fleet) -> None:
    """D34: found by its deadline, set aside with its text, and the sweep goes on."""
    client = await fleet.node()
    await client.options(delay_s=0.3, allow_unknown=True).dispatch("echo", "bad")
    good = await client.options(delay_s=0.4, allow_unknown=True).dispatch("echo", "good", 1)
    fleet.client.hset(fleet.names.jobs, "bad", "junk")
    event = await fleet.seen(RecordQuarantined)
    assert event.key == "bad"
    await fleet.node(handlers)
    assert await good.result(timeout_s=30) == 1
    fleet.is_audited = False
    assert not fleet.client.hexists(fleet.names.jobs, "bad")


@pytest.mark.anyio
async def test_a_workers_entry_that_cannot_be_read_is_left_out(fleet: Fleet) -> None:
    node = await fleet.node(handlers)

    ops: list[Op] = [Set(b"w-bad", b"junk"), Set(b"w-odd", b"{}"), Set(b"\xff", b"[1]")]
    replica = fleet.wiring(node).replica
    await replica.write(ops, repeatable=True)
    await fleet.until(lambda: len(replica.items) == 4)
    assert len(node.workers) == 1
    await answers(node)


@pytest.mark.anyio
async def test_a_key_of_the_wrong_type_is_a_typed_error_and_mends_when_it_is_gone(
    fleet: Fleet,
) -> None:
    """Foreign data under our names: said, not guessed at; the loop lives."""
    client = await fleet.node()
    fleet.client.set(fleet.names.jobs, "a string")
    for call in (
        client.dispatch(echo, "k"),
        client.notify("k", 1),
        client.stop("k"),
        client.status("k"),
    ):
        with pytest.raises(PoolError) as refused, anyio.fail_after(30):
            await call
        assert not isinstance(refused.value, StoreUnavailable)  # as of who was not answered
    fleet.client.delete(fleet.names.jobs)
    node = await fleet.node(handlers)
    await answers(node)


@pytest.mark.anyio
async def test_errors_of_every_kind_keep_their_promise_of_being_parked_with_text(
    fleet: Fleet,
) -> None:
    """Whatever a handler raises, its text is stored in one line and cut, never evaluated."""
    mine = Handlers()

    class Odd(Exception):
        def __str__(self) -> str:
            return "a|b\n\x00\ud800" + "x" * 10_000

    class Worse(Exception):
        def __str__(self) -> str:
            raise RuntimeError("even this")

    @mine.job("odd", attempts_max=1)
    async def odd(job: Job, which: int) -> None:
        raise (Odd(), Worse(), Exception(), Park(Odd()))[which]  # type: ignore[arg-type]

    mine.job("echo")(echo.fn)
    node = await fleet.node(mine)
    for which in range(4):
        with pytest.raises(JobParked) as parked:
            await (await node.dispatch(odd, f"k{which}", which)).result(timeout_s=30)
        assert len(parked.value.last_error) < 2000
        assert "\n" not in parked.value.last_error
    await answers(node)


@pytest.mark.anyio
async def test_an_instruction_out_of_bounds_is_a_failed_attempt_that_says_so(fleet: Fleet) -> None:
    """D19: it is refused where it is made, inside the handler."""
    mine = Handlers()

    @mine.job("retry", attempts_max=1)
    async def retry(job: Job, which: int) -> None:
        bad: list[Any] = [math.nan, math.inf, -1, "1", True, 366 * 86_400]
        raise Retry(after_s=bad[which])

    mine.job("echo")(echo.fn)
    node = await fleet.node(mine)
    for which in range(6):
        with pytest.raises(JobParked) as parked:
            await (await node.dispatch(retry, f"k{which}", which)).result(timeout_s=30)
        assert "InvalidOption" in parked.value.last_error
    await answers(node)


@pytest.mark.anyio
async def test_odd_causes_of_a_stop_are_stored_in_one_line(fleet: Fleet) -> None:
    node = await fleet.node()
    for cause in ("a|b\nc\x00", "\ud800", "x" * 100_000, ""):
        ref = await node.options(delay_s=60, allow_unknown=True).dispatch("any", "k")
        await ref.stop(cause=cause, timeout_s=30)
        status = await ref.status()
        assert status.state == "cancelled"
        assert len(status.cause) < 1000
        assert "\n" not in status.cause


# --- true limits --------------------------------------------------------------------------------


def test_settings_that_contradict_each_other_are_refused() -> None:
    """D23: a lane that accepts nothing accepts nothing."""
    assert Settings(lanes=8, queued_jobs_max=17).queued_jobs_of_lane == 2
    with pytest.raises(ConfigError, match="8 lanes") as refused:
        Settings(lanes=8, queued_jobs_max=7)
    assert refused.value.setting == "queued_jobs_max"


@pytest.mark.anyio
@pytest.mark.parametrize("named", [4, None])
async def test_several_lanes_accept_no_more_than_one(fleet: Fleet, named: int | None) -> None:
    """C6: divided by lanes, but at least one each; and the error told of the whole pool."""
    await fleet.node(lanes=4)
    node = await fleet.node(lanes=named, queued_jobs_max=11)
    many = node.options(delay_s=60, allow_unknown=True)
    answers = await many.dispatch_many("echo", [f"k{n}" for n in range(60)])
    assert sum(isinstance(answer, JobRef) for answer in answers) == 8
    full = [answer for answer in answers if isinstance(answer, PoolFull)]
    assert len(full) == 52
    assert {(each.queued_jobs, each.queued_jobs_max) for each in full} == {(2, 2)}


def test_a_delay_is_never_none_however_short() -> None:
    """C6: what is less than half a millisecond was sent as 0, without a target: 1.4 s."""
    lane = Lane(Names("p", 0), "1.1")
    for delay_s, delay_ms in ((5e-324, 1), (0.0004, 1), (0.0011, 2), (1, 1000), (0.0, 0)):
        item = Admission(key="k", id="i", handler="h", kind="job", payload=b"", delay_s=delay_s)
        call = lane.dispatch([item], (), pending_s=1, queued_jobs_max=1)
        assert call.args[-3] == delay_ms


@pytest.mark.anyio
@pytest.mark.parametrize("delay_s", [5e-324, 0.0004, 0.001])
async def test_a_job_with_the_shortest_delay_begins(fleet: Fleet, delay_s: float) -> None:
    node = await fleet.node(handlers)
    ref = await node.options(delay_s=delay_s).dispatch(echo, "k", 1)
    assert await ref.result(timeout_s=30) == 1


def test_a_number_of_another_kind_counts_as_the_number_that_it_is() -> None:
    """An IntEnum, or numpy's: but what it says of itself is not asked."""

    class Level(IntEnum):
        TWO = 2

    class Odd(float):
        def __le__(self, other: object) -> bool:
            return False

        __repr__ = None  # type: ignore[assignment]

    settings = Settings(lanes=Level.TWO, grace_s=Odd(1.5))
    assert [(type(n), n) for n in (settings.lanes, settings.grace_s)] == [(int, 2), (float, 1.5)]
    with pytest.raises(ConfigError, match="<Odd>"):
        Settings(grace_s=Odd(-1.5))


def test_more_handlers_than_the_fleet_can_be_told_of_are_refused_when_they_are_registered() -> None:
    """It was `map value`, 64 KiB, when the worker joined."""
    mine = Handlers()
    for n in range(NAMES_BYTES_MAX // 131):
        mine.job(f"{n:0128}")(echo.fn)
    one_more = mine.job("x" * 128)
    with pytest.raises(ConfigError, match="57,344") as refused:
        one_more(echo.fn)
    assert refused.value.setting == "handlers"
    assert "x" * 128 not in mine


@pytest.mark.anyio
async def test_as_many_handlers_as_may_be_registered_are_told_to_the_fleet(fleet: Fleet) -> None:
    mine = Handlers()
    for n in range(NAMES_BYTES_MAX // 131):
        mine.job(f"{n:0128}")(echo.fn)
    node = await fleet.node(mine, label="\U0001f600" * 32, version="\U0001f600" * 32)
    assert len(node.workers[0].handlers) == len(mine)


def test_a_decorator_without_its_name_says_how_to_write_it() -> None:
    mine: Any = Handlers()
    for decorator in (mine.job, mine.service):
        with pytest.raises(ConfigError, match="name that its jobs are stored under"):
            decorator(echo.fn)


@pytest.mark.anyio
async def test_a_plain_wrapper_around_an_async_handler_is_awaited(
    fleet: Fleet, diary: Diary
) -> None:
    """As a decorator without `async` makes it: its coroutine was the result, and unusable."""
    mine = Handlers()

    def timed(fn: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(fn)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            diary.note("called")
            return fn(*args, **kwargs)

        return wrapper

    @mine.job("one")
    @timed
    async def one(job: Job, value: int) -> int:
        await anyio.lowlevel.checkpoint()
        return value

    @mine.job("bad", attempts_max=1)
    @timed
    async def bad(job: Job) -> None:
        raise KeyError(job.key)

    @mine.job("long", attempts_max=1, timeout_s=0.05)
    @timed
    async def long(job: Job) -> None:
        await anyio.sleep_forever()

    node = await fleet.node(mine)
    assert await (await node.dispatch("one", "k", 1)).result(timeout_s=30) == 1
    for name, problem in (("bad", "KeyError"), ("long", "timeout_s")):
        with pytest.raises(JobParked) as parked:
            await (await node.dispatch(name, "k")).result(timeout_s=30)
        assert problem in parked.value.last_error
    assert diary.entries == ["called"] * 3


@pytest.mark.anyio
async def test_waiting_for_the_end_of_a_node_that_was_never_entered_is_refused(
    fleet: Fleet,
) -> None:
    with pytest.raises(NotRunning) as refused:
        await Node(fleet.pool, fleet.url).wait_drained()
    assert refused.value.state == "new"


def test_the_text_of_an_error_never_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever made it of what: nobody's `repr` is called, and none is endless."""

    class Raises(str):
        __slots__ = ()

        def __repr__(self) -> str:
            raise AssertionError

        def __str__(self) -> str:
            raise AssertionError

    for given in (Raises("k"), 10**5000, [Raises("k")] * 3, Raises, object()):
        text = str(InvalidKey(key=given, problem="none"))  # type: ignore[arg-type]
        assert "control characters: none. (key=" in text
        assert len(text) < 300
    monkeypatch.setattr(NotRunning, "__doc__", None)  # as with -OO, which was an IndexError
    assert str(NotRunning(state="new")).startswith("[POOLNOTRUNNING] NotRunning (state='new')")


@pytest.mark.anyio
async def test_the_place_of_what_cannot_be_encoded_is_short(fleet: Fleet) -> None:
    node = await fleet.node(handlers)
    deep: Any = {3}
    for _ in range(90):
        deep = [deep]
    for value in ({"x" * 200_000: {3}}, {"x" * 200_000: {"y" * 200_000: {3}}}, deep):
        with pytest.raises(PayloadEncodingError) as refused:
            await node.notify("k", value)
        assert len(str(refused.value)) < 700
        assert refused.value.problem == "set cannot be encoded"


def test_what_raises_when_it_is_looked_at_is_no_handler_and_stands_behind_the_error() -> None:
    class Odd:
        def __call__(self) -> None:
            raise AssertionError

        @property
        def __signature__(self) -> None:
            raise RuntimeError("of its own")

    odd: Any = Odd()
    with pytest.raises(ConfigError, match="cannot be looked at: RuntimeError") as refused:
        Handlers().job("odd")(odd)
    assert str(refused.value.__cause__) == "of its own"
