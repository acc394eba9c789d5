"""The access rules are what the code sends: no command less, and none more."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from pool.errors import ConfigError
from pool.redis.acl import DEFAULT_ONLY, OPERATING, SENT, called, rules
from pool.redis.errors import from_words

PACKAGE = Path(__file__).parents[2] / "pool"
# Words in capitals that begin a tuple and are no command, and what needs no rule.
_NOT_SENT = {
    "redis/errors.py": {"READONLY"},
    "redis/connection.py": {"AUTH", "HELLO", "SELECT"},
    "redis/topology.py": {"AUTH", "HELLO", "SUBSCRIBE"},  # the last one is for sentinels
}
_WORD = re.compile(r"[A-Z]{2,}")


def first_words(path: Path) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield the words in capitals that begin a tuple or the arguments of `execute`."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        match node:
            case ast.Tuple(elts=[ast.Constant(value=str(word)), *rest]):
                pass
            case ast.Call(
                func=ast.Attribute(attr="execute"), args=[ast.Constant(value=str(word)), *rest]
            ):
                pass
            case _:
                continue
        if _WORD.fullmatch(word):
            yield word, rest[0] if rest else None


def sent_by(path: Path, has_subcommands: set[str], known: set[str]) -> Iterator[str]:
    for word, following in first_words(path):
        name = word.lower()
        if name not in known or word in _NOT_SENT.get(str(path.relative_to(PACKAGE)), ()):
            continue
        is_narrow = name in has_subcommands or name == "info"
        if is_narrow and isinstance(following, ast.Constant):
            yield f"{name}|{str(following.value).lower()}"
        else:
            yield name


def test_what_the_code_sends_is_what_the_rules_allow(redis_url: str) -> None:
    """`SENT` is compared with all commands that stand in the package as text."""
    with redis.Redis.from_url(redis_url) as client:
        answer: Any = client.execute_command("COMMAND")
        known = {str(name) for name in answer}
        families: Any = client.execute_command("COMMAND", "INFO", "SCRIPT", "CLUSTER", "XINFO")
    assert len(known) > 100
    has_subcommands = {str(name) for name in families}
    sent = {
        word
        for path in PACKAGE.rglob("*.py")
        if path.is_relative_to(PACKAGE / "testing") is False
        for word in sent_by(path, has_subcommands, known)
    }
    assert sent == SENT | OPERATING | DEFAULT_ONLY


CALLS = r"redis\.p?call\(|\blater\(|\btyped\("


def test_every_call_of_a_script_names_its_command() -> None:
    """What the rules are read from leaves no call out."""
    sources = [path.read_text("utf-8") for path in (PACKAGE / "redis/lua").rglob("*.lua")]
    calls = sum(len(re.findall(CALLS, text)) for text in sources)
    named = sum(len(re.findall(rf"(?:{CALLS})'[A-Z]+'", text)) for text in sources)
    # The others are in lib/batch.lua and lib/typed.lua: `later` and `typed` themselves, in the
    # headers too, and what they call.
    assert calls - 10 == named > 100


def test_nothing_dangerous_is_among_the_rules() -> None:
    """Not one command that reaches beyond declared keys, but those named here."""
    reaching = {"info|memory", "cluster|slots", "script|load", "evalsha", "ping", "time"}
    reaching |= {
        "info|server",
        "info|commandstats",
        "info|persistence",
        "info|replication",
        "cluster|info",
    }
    reaching |= {"cluster|nodes", "info|clients", "info|latencystats", "info|stats"}
    words = {word.removeprefix("+") for word in rules("media") if word.startswith("+")}
    assert words == called() | SENT
    assert not words & {"keys", "scan", "eval", "flushall", "config", "acl", "script", "info"}
    plain = r"get|set|del|exists|type|unlink|persist|pexpire(at|time)?"
    on_keys = rf"({plain})|[hlrsxz][a-z]+|x[a-z]+\|[a-z]+"
    assert {word for word in words if not re.fullmatch(on_keys, word)} == reaching


def test_only_an_operator_may_list_the_names_of_others_keys() -> None:
    lacking = set(rules("media", is_operator=True)) - set(rules("media"))
    assert lacking == {"+scan"}
    for word in lacking:  # and a user who lacks that right is told of the option
        text = f"NOPERM User ann has no permissions to run the '{word[1:]}' command"
        assert "pool acl NAME --operator" in str(from_words(text))


def test_a_pool_gets_its_own_keys_and_database() -> None:
    words = rules("media", db=3)
    assert [word for word in words if word[0] == "~"] == ["~pool:{media}:*", "~pool:{media:*"]
    assert "+select|3" in words
    assert words.index("-@all") < words.index("+get")
    for bad in ("a*", "", "a:b"):
        with pytest.raises(ConfigError):
            rules(bad)
