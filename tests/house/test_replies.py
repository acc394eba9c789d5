"""Each script and each plain command has what reads its reply: none is taken as it comes (13.1)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pool
from pool.maps import commands as rmap
from pool.redis.acl import OPERATING, SENT
from pool.redis.commands import lane
from pool.redis.commands.plain import READERS, read
from pool.redis.scripts import Script
from pool.streams import commands as stream

ROOT = Path(pool.__file__).parent
SCRIPTS = [
    *lane.SCRIPTS,
    *(
        each
        for module in (rmap, stream)
        for each in vars(module).values()
        if isinstance(each, Script)
    ),
]
# The connection's own, which are no calls: the wire and the port look at their replies.  And INFO,
# which is text for people: `ops/checkup.py` takes of it what it knows.
OWN = {"info|memory", "cluster|slots", "script|load", "evalsha"}
OWN |= {
    "info|commandstats",
    "info|persistence",
    "info|replication",
    "cluster|nodes",
    "cluster|info",
}
OWN |= {"info|clients", "info|latencystats", "info|stats"}


def compared(tree: ast.AST) -> Iterator[object]:
    """Yield the constants that something is compared with."""
    for node in ast.walk(tree):
        sides: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            sides = [node.value]
        for side in sides:
            yield from (each.value for each in ast.walk(side) if isinstance(each, ast.Constant))


def test_what_a_script_says_in_words_is_read_where_it_is_called() -> None:
    """A status that is added or changed has one reader; all others have what that returns."""
    words = set[str]()
    for script in SCRIPTS:
        text = (ROOT / "redis" / "lua" / f"{script.name}.lua").read_text("utf-8")
        said = re.search(r"^Returns +(.*?)^Errors", text, re.MULTILINE | re.DOTALL)
        words |= {*re.findall(r"\b[A-Z][A-Z_]+\b", said[1])} if said else set()
    assert {"OK", "MOVED_ON", "TIMEDOUT", "NOROOM", "LOOKED"} <= words
    broken = [
        f"{path.relative_to(ROOT)}: {each!r}"
        for path in sorted(ROOT.rglob("*.py"))
        if path.parent.name != "commands" and path.name != "commands.py"
        for each in compared(ast.parse(path.read_text("utf-8")))
        if (each.decode(errors="replace") if isinstance(each, bytes) else each) in words
    ]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_script_has_a_reader(script: Script) -> None:
    assert script.reads is not Script("", (), (), ()).reads


def test_each_plain_command_has_a_reader() -> None:
    """What is sent stands in `acl.SENT`, which is held to what the tests' servers allow."""
    sent = {name.removesuffix("|groups") for name in SENT - OWN}
    assert {name.lower() for name in READERS} == sent | OPERATING


COMMANDS = {
    "HGET": ("HGET", "k", "f"),
    "HMGET": ("HMGET", "k", "f", "g"),
    "XREAD": ("XREAD", "COUNT", 1, "STREAMS", "a", "b", "0-0", "0-0"),
    "XREADGROUP": ("XREADGROUP", "GROUP", "g", "c", "STREAMS", "a", ">"),
    "ZMSCORE": ("ZMSCORE", "k", "f", "g"),
    "SMISMEMBER": ("SMISMEMBER", "k", "f", "g"),
    "ZRANGE": ("ZRANGE", "k", 0, -1, "WITHSCORES"),
}
FIT: dict[str, Any] = {
    "HGET": b"v",
    "HMGET": [b"v", None],
    "XREAD": [[b"a", [[b"1-0", [b"n", b"v"]]]]],
    "XREADGROUP": [[b"a", [[b"1-0", None]]]],
    "ZMSCORE": [None, b"1"],
    "SMISMEMBER": [0, 1],
    "ZRANGE": [b"m", b"1.5"],
    "HGETALL": [b"f", b"v"],
    "HKEYS": [b"f"],
    "HSCAN": [b"12", [b"f", b"v"]],
    "SSCAN": [b"0", [b"m"]],
    "SCAN": [b"0", [b"m"]],
    "XINFO": [[b"name", b"g", b"lag", None]],
    "PING": b"PONG",
    "TYPE": b"stream",
    "TIME": [b"1", b"2000"],
    "XADD": None,
    "XRANGE": [[b"1-0", [b"n", b"v"]]],
    "XREVRANGE": [[b"1-0", [b"n", b"v"]]],
}
UNFIT: tuple[Any, ...] = (
    *(-1, 1.5, True, {b"a": 1}, [1], [None], [[]], [[b"x"]], [b"a", [b"b"]], [b"a", b"b", b"c"]),
    *([[b"c", [[b"1-0", [b"n", b"v"]]]]], [[b"a", [[b"one", [b"n", b"v"]]]]]),
    *([[b"a", [[b"1-0", [b"n"]]]]], [[b"a", [[b"1-0", [b"n", 1]]]]], [[b"1-0", [b"n"]]]),
)


@pytest.mark.parametrize("name", READERS)
def test_a_reader_takes_what_fits_and_nothing_else(name: str) -> None:
    words = COMMANDS.get(name, (name, "k"))
    read(words, FIT.get(name, 1))
    for reply in UNFIT:
        if (name, reply) != ("HKEYS", [b"a", b"b", b"c"]):
            with pytest.raises((TypeError, ValueError, AttributeError)):
                read(words, reply)
