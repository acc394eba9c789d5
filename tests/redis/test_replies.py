"""Every foreign error becomes one of ours, and none shows a credential."""

from __future__ import annotations

import socket
import ssl

import pytest
from redis import exceptions as redis_errors

from pool.errors import (
    AuthError,
    ConfigError,
    Gone,
    PoolError,
    StorageFull,
    StoreFault,
    StoreLost,
    StoreUnavailable,
    UnsupportedServer,
)
from pool.redis.errors import from_host, from_words, is_stale


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("OOM command not allowed when used memory > 'maxmemory'.", StorageFull),
        ("MISCONF Redis is configured to save RDB snapshots", StoreUnavailable),
        ("NOAUTH Authentication required.", AuthError),
        ("WRONGPASS invalid username-password pair or user is disabled.", AuthError),
        ("NOPERM User a has no permissions to run the 'set' command", AuthError),
        ("LOADING Redis is loading the dataset in memory", StoreUnavailable),
        ("BUSY Redis is busy running a script.", StoreUnavailable),
        ("MASTERDOWN Link with MASTER is down", StoreUnavailable),
        ("TRYAGAIN Multiple keys request during rehashing of slot", StoreUnavailable),
        ("CLUSTERDOWN The cluster is down", StoreUnavailable),
        ("READONLY You can't write against a read only replica.", StoreUnavailable),
        ("NOREPLICAS Not enough good replicas to write.", StoreUnavailable),
        ("UNBLOCKED force unblock from blocking operation", StoreUnavailable),
        ("ERR max number of clients reached", StoreUnavailable),
        ("ERR DB index is out of range", ConfigError),
        ("ERR unknown command 'HELLO', with args beginning with: ", UnsupportedServer),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", StoreFault),
        ("BUSYGROUP Consumer Group name already exists", StoreFault),
        ("ERR something new", StoreFault),
        ("POOLWHATEVER x", StoreFault),
        ("", StoreFault),
    ],
)
def test_an_error_reply_is_known_by_its_first_word(text: str, kind: type[PoolError]) -> None:
    error = from_words(text)
    assert type(error) is kind
    if isinstance(error, StoreUnavailable):
        assert not error.maybe_done  # the server said no


def test_errors_of_our_scripts_carry_their_facts() -> None:
    lost, gone = from_words("POOLDATALOST media"), from_words("POOLGONE w17.2")
    assert isinstance(lost, StoreLost)
    assert lost.pool == "media"
    for key in ("pool:{media:3}:lane", "pool:{media}:config"):
        lost = from_words(f"POOLDATALOST {key}")
        assert isinstance(lost, StoreLost)
        assert lost.pool == "media"
    assert isinstance(gone, Gone)
    assert gone.identity == "w17.2"


def test_a_refusal_says_which_command_or_rule() -> None:
    error = from_words("NOPERM User a has no permissions to run the 'set' command")
    assert isinstance(error, AuthError)
    assert "'set'" in error.problem


def test_a_demoted_server_makes_the_connection_stale() -> None:
    assert is_stale("READONLY You can't write against a read only replica.")
    assert not is_stale("OOM command not allowed")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("NOPERM User u has no permissions to run the 'config|get' command", "+config|get"),
        ("NOPERM this user has no permissions to run the 'set' command", "+set"),
        ("ERR ACL failure in script: User u has no permissions to run the 'set' command", "+set"),
        ("ERR The user executing the script can't run this command or subcommand", "ACL rules"),
        ("NOPERM No permissions to access a key", "~PATTERN"),
        ("NOPERM this user has no permissions to access one of the keys used as ar", "~PATTERN"),
        ("ERR ACL failure in script: No permissions to access a key", "~PATTERN"),
        ("ERR The user executing the script can't access at least one of the keys", "~PATTERN"),
    ],
)
def test_a_missing_right_is_named_as_the_rule_that_would_give_it(words: str, said: str) -> None:
    """D27: as Redis 7.0 and Valkey 9.1 say it, of a command and of what a script calls."""
    error = from_words(words)
    assert isinstance(error, AuthError)
    assert said in error.problem
    assert "pool acl" in str(error)


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "refused the connection"),
        (socket.gaierror(-2, "Name or service not known"), "has no address"),
        (TimeoutError(), "did not answer in time"),
        (FileNotFoundError(2, "No such file or directory"), "does not exist"),
        (PermissionError(13, "Permission denied"), "may not be opened"),
        (ConnectionResetError(104, "Connection reset by peer"), "Connection reset by peer"),
        (ConnectionError(), "end of stream"),
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version"), "TLS"),
        (OSError(113, "No route to host"), "No route to host"),
    ],
)
def test_a_broken_connection_names_place_and_cause(cause: OSError, said: str) -> None:
    try:
        try:
            raise cause
        except OSError:
            raise redis_errors.ConnectionError("redis-py's own words") from None
    except redis_errors.ConnectionError as wrapped:
        for error in (
            from_host(cause, "h:1", maybe_done=True),
            from_host(wrapped, "h:1", maybe_done=True),
        ):
            assert error.problem.startswith("h:1 ")
            assert said in error.problem
            assert error.maybe_done
