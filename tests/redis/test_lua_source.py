"""What the server gets of a script does what its parts say, with less to do per call."""

from __future__ import annotations

import pytest
from lupa import lua51

from pool.maps import commands as maps
from pool.redis.commands import lane
from pool.redis.scripts import Script, joined
from pool.streams import commands as streams

SCRIPTS = [
    *lane.SCRIPTS,
    *(
        each
        for module in (maps, streams)
        for each in vars(module).values()
        if isinstance(each, Script)
    ),
]


def run(*parts: str, names: dict[str, str] | None = None, first: str = "") -> object:
    """Run parts one after another; one that begins with a bracket is made late."""
    named = [(text.partition("\n")[0], text.partition("\n")[2]) for text in parts]
    lua = lua51.LuaRuntime()
    lua.execute("KEYS, ARGV = { 'one', 'two' }, { '3', 'four' }")
    return lua.execute(joined(named, names or {}, first))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_every_script_can_be_compiled(script: Script) -> None:
    lua = lua51.LuaRuntime()
    lua.compile(script.source)
    lua.compile(script.numbered)


def test_a_constant_stands_where_it_is_used_and_texts_stay() -> None:
    part = "a\nlocal ROOM, NAME = 2 * 3, 'x ROOM' -- ROOM\n"
    assert run(part, "b\nreturn 12 / ROOM .. NAME .. 'ROOM' -- NAME\n") == "2x ROOMROOM"
    assert "local" not in joined([("a", part.partition("\n")[2])], {}, "")


def test_a_constant_that_is_two_things_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="ROOM is two things"):
        run("a\nlocal ROOM = 1\n", "b\nlocal ROOM = 2\nreturn ROOM\n")


def test_what_is_computed_is_no_constant() -> None:
    assert run("a\nlocal ROOM = #KEYS\n", "b\nreturn ROOM\n") == 2


@pytest.mark.parametrize(
    "code",
    [
        "return lane .. limit",
        "local t = { lane = 'no' } return (t.lane == 'no' and lane) .. limit",
        "local t = {} t.lane = 'no' return lane .. limit",
        "local function f(lane, x) return x end return f('no', lane) .. limit",
        "local function f(x,\n lane) return x end return f(lane) .. limit",
        "local function lane_of() return lane end return lane_of() .. limit",
        "local had = lane for _, lane in ipairs({ 'no' }) do had = had end return had .. limit",
        "local was = lane\ndo\n  local x, lane = 1, 'no'\nend\nreturn was .. limit",
        "local was = lane\nlane = 'no'\nreturn was .. limit",
    ],
)
def test_a_name_of_the_header_is_what_it_says_unless_something_else_has_it(code: str) -> None:
    names = {"lane": "KEYS[1]"}
    assert run(f"a\n{code}\n", names=names, first="local limit = tonumber(ARGV[1])") == "one3"


def test_a_part_in_brackets_is_made_when_it_is_first_called_and_once() -> None:
    made = "local made = 0\nlocal function count()\n  made = made + 1\n  return made\nend\n"
    part = (
        "(b)\nlocal STEP = 1\nlocal left = {}\n\n-- Takes one.\nlocal function take()\n"
        "  left[#left + STEP] = count()\n  return #left\nend\nlocal function taken()\n"
        "  return take() + 10\nend\n"
    )
    assert run("a\n" + made, part, "c\nreturn made\n") == 0
    assert (
        run("a\n" + made, part, "c\nreturn take() + take() + taken() .. 'take()'\n") == "16take()"
    )


def test_what_stands_between_marks_is_made_late_too() -> None:
    text = (
        "a\nlocal base = 5\n-- late rare\nlocal function rare(x)\n  return base + x\nend\n"
        "-- end rare\n\nlocal function plain(x)\n  return x > 0 and rare(x) or x\nend\n"
        "base = 7\nreturn plain(0) .. plain(1)\n"
    )
    assert run(text) == "08"
    named = [("a", text.partition("\n")[2])]
    assert "KEYS.rare().rare(x)" in joined(named, {}, "")


@pytest.mark.parametrize(
    "line", ["redis.call('GET', 'x')", "local n = #KEYS", "count()", "if x then"]
)
def test_what_does_something_by_itself_is_not_made_late(line: str) -> None:
    with pytest.raises(AssertionError, match="no function and no constant"):
        run(f"(b)\nlocal function f()\n  return 1\nend\n{line}\n", "c\nreturn f()\n")
