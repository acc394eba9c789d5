"""The loader refuses a script whose header and Python side differ."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from pool.redis.commands.edges import ADVANCE
from pool.redis.scripts import Script

HEADER = """--[[
sum: add up.

KEYS[1] total    hash    where it goes
KEYS[...] parts          what is added
ARGV[1] unit     str     of all
ARGV[2] limit    int     > 0

Uses     first, second
Returns  int
]]
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "lib").mkdir()
    (tmp_path / "sum.lua").write_text(f"{HEADER}return 1\n", "utf-8")
    (tmp_path / "lib" / "first.lua").write_text("local first = 1\n", "utf-8")
    (tmp_path / "lib" / "second.lua").write_text("local second = first\n", "utf-8")
    return tmp_path


def load(directory: Path, keys: tuple[str, ...], args: tuple[str, ...]) -> Script:
    return Script.load("sum", keys=" ".join(keys), args=" ".join(args), directory=directory)


def test_a_script_is_its_parts_and_its_text_in_order(directory: Path) -> None:
    script = load(directory, ("total", "*parts"), ("unit", "limit"))
    order = [script.source.index(text) for text in ("local first", "local second", "return 1")]
    assert order == sorted(order)
    assert script.sha == hashlib.sha1(script.source.encode()).hexdigest()
    assert "return 1" not in repr(script)


def test_a_part_may_be_made_of_what_python_has(directory: Path) -> None:
    made = {"first": "local first = 2"}
    script = Script.load(
        "sum", keys="total *parts", args="unit limit", directory=directory, made=made
    )
    assert "local first = 2" in script.source
    assert "local first = 1" not in script.source


@pytest.mark.parametrize(
    ("keys", "args"),
    [
        (("total",), ("unit", "limit")),
        (("total", "parts"), ("unit", "limit")),
        (("total", "*parts"), ("limit", "unit")),
        (("total", "*parts"), ("unit", "limit", "*more")),
    ],
)
def test_a_difference_between_header_and_python_fails_at_import(
    directory: Path, keys: tuple[str, ...], args: tuple[str, ...]
) -> None:
    with pytest.raises(AssertionError, match=r"sum\.lua: header says"):
        load(directory, keys, args)


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("ARGV[2] limit", "ARGV[3] limit", r"ARGV\[3\] out of order"),
        ("ARGV[1] unit", "ARGV[...] unit", r"ARGV\[\.\.\.\] is not last"),
    ],
)
def test_a_header_out_of_order_fails_at_import(
    directory: Path, before: str, after: str, problem: str
) -> None:
    (directory / "sum.lua").write_text(HEADER.replace(before, after), "utf-8")
    with pytest.raises(AssertionError, match=problem):
        load(directory, ("total", "*parts"), ("unit", "limit"))


def test_a_call_has_as_many_keys_and_arguments_as_the_header_says(directory: Path) -> None:
    script = load(directory, ("total", "*parts"), ("unit", "limit"))
    assert script(["{a}t"], ["ms", 5]).words() == ("EVALSHA", script.sha, 1, "{a}t", "ms", 5)
    assert script(["{a}t", "{a}1", "{a}2"], ["ms", 5]).words()[2] == 3
    with pytest.raises(AssertionError, match="0 keys"):
        script([], ["ms", 5])
    with pytest.raises(AssertionError, match="3 args"):
        script(["{a}t"], ["ms", 5, 6])


def test_a_reply_with_too_few_or_too_many_statuses_is_none() -> None:
    """A3: whoever goes through them beside his items would fall over it, or answer others."""
    call = ADVANCE(["k"] * len(ADVANCE.keys), ["0"] * len(ADVANCE.args), parts=3)
    assert call.read([0, b"OK", b"OK"])
    for reply in ([0, b"OK"], [0, b"OK", b"OK", b"OK"]):
        with pytest.raises(ValueError, match="parts, not 3"):
            call.read(reply)
