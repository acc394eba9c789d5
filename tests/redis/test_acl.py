"""What a pool's user may not do, on each kind of server that is here."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from pool.names import Control, Names
from pool.redis.acl import rules
from pool.redis.commands.lane import Lane
from pool.redis.embedded.server import EmbeddedServer

MINE, OTHERS = "media", "media-2"

# As Redis 7.0 and Valkey 9.1 say that a script's user may not.
_REFUSED = r"NOPERM|ACL|permission|can't run this command|can't access at least one of the keys"

Do = Callable[..., Any]


@pytest.fixture
def admin(server_to_fill: EmbeddedServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server_to_fill.url) as client:
        yield client
        client.flushall()


@pytest.fixture
def do(server_to_fill: EmbeddedServer, admin: redis.Redis) -> Iterator[Do]:
    """Yield what runs one command as a user of the pool `media`."""
    password = secrets.token_hex(8)
    setuser: Any = admin.execute_command
    setuser("ACL", "SETUSER", MINE, "reset", "on", f">{password}", *rules(MINE))
    place = server_to_fill.url.partition("://")[2]
    with redis.Redis.from_url(f"unix://{MINE}:{password}@{place}") as client:
        yield client.execute_command
    admin.acl_deluser(MINE)


@pytest.mark.parametrize(
    "command",
    [
        "FLUSHALL",
        "FLUSHDB",
        "CONFIG GET *",
        "CONFIG SET maxmemory 1",
        "KEYS *",
        "SCAN 0",
        "RANDOMKEY",
        "DBSIZE",
        "MONITOR",
        "SHUTDOWN NOSAVE",
        "EVAL return{} 0",
        "SCRIPT FLUSH",
        "SCRIPT EXISTS x",
        "CLIENT LIST",
        "CLIENT KILL ID 1",
        "CLIENT PAUSE 1",
        "INFO",
        "INFO everything",
        "FUNCTION LIST",
        "FUNCTION FLUSH",
        "SWAPDB 0 1",
        "SELECT 1",
        "MOVE pool:{media}:config 1",
        "PSUBSCRIBE *",
        "SUBSCRIBE anything",
        "PUBLISH anything x",
        "ACL LIST",
        "ACL SETUSER media allcommands",
        "REPLICAOF NO ONE",
        "MIGRATE h 1 k 0 1",
        "DUMP pool:{media}:config",
        "RESTORE pool:{media}:x 0 x",
        "SORT pool:{media}:config",
        "BGSAVE",
        "SLOWLOG GET",
        "LATENCY LATEST",
        "MEMORY STATS",
        "MODULE LIST",
    ],
)
def test_commands_beyond_the_pool_are_refused(do: Do, command: str) -> None:
    with pytest.raises(redis.exceptions.NoPermissionError):
        do(*command.split())


def test_the_scripts_that_it_may_load_have_no_more_rights(do: Do, admin: redis.Redis) -> None:
    """SCRIPT LOAD lets it run any Lua; what that calls is checked like its own commands."""
    bodies = [
        "return redis.call('FLUSHALL')",
        "return redis.call('SWAPDB', '0', '1')",
        "return redis.call('KEYS', '*')",
        "return redis.call('PUBLISH', 'anything', 'x')",
        f"return redis.call('GET', '{Control(OTHERS).config}')",  # a key that it hides in its body
        f"return redis.call('SET', '{OTHERS}', 'x')",
    ]
    for body in bodies:
        sha = do("SCRIPT", "LOAD", body)
        with pytest.raises(redis.exceptions.ResponseError, match=_REFUSED):
            do("EVALSHA", sha, 1, Control(MINE).config)
        with pytest.raises(redis.exceptions.ResponseError, match=_REFUSED):
            do("EVALSHA", sha, 1, Names(OTHERS, 0).jobs)
    assert admin.dbsize() == 0


def test_another_pools_keys_are_refused_whatever_its_name(do: Do, admin: redis.Redis) -> None:
    """Also of pools whose names begin, or end, like the own one's."""
    for other in (OTHERS, "medi", "media-", "a-media", "x"):
        for key in (Control(other).config, Names(other, 0).jobs, Names(other, 7).inbox("k")):
            for command in (("HGET", key, "f"), ("DEL", key), ("XREAD", "STREAMS", key, "0")):
                with pytest.raises(redis.exceptions.NoPermissionError):
                    do(*command)
    call = Lane(Names(OTHERS, 0), "inc-1").look([("k", "id")])
    do("SCRIPT", "LOAD", call.script.source)
    with pytest.raises(redis.exceptions.NoPermissionError):
        do(*call.words())
    for key in ("plain", "pool:media:x", "pool:{media", "pool:{mediax}:config", "{media}:x"):
        with pytest.raises(redis.exceptions.NoPermissionError):
            do("GET", key)
    refused = admin.acl_log()
    assert {each["username"] for each in refused} == {MINE}


def test_its_own_keys_are_allowed_whatever_they_are_called(do: Do) -> None:
    for key in (Control(MINE).config, Names(MINE, 0).jobs, Names(MINE, 31).inbox("a*[b]?c:{d}")):
        do("GET", key)
    for kind in ("*", "[x]", "\\", "}:", "{media-2}:x"):
        do("GET", Names(MINE, 0).result("k", kind))
