"""What scripts and Python both say, said alike; and the headers of the scripts' parts are true."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from pool.core import record
from pool.core.batches import CHUNK
from pool.core.crash_marks import MARKS_CHARS_MAX
from pool.core.ids import DIGITS_MAX
from pool.core.journal import DETAIL_BYTES_MAX
from pool.core.lease import RENEW_MAX_S
from pool.core.options import POLICY_LETTERS
from pool.core.pooltime import CLOCK_S
from pool.jobs.wiring import _SIGNALS_MAX
from pool.maps.commands import DELTAS_MAX, LOG_BYTES_MAX, READING_S
from pool.redis.commands.admission import AS_REGISTERED
from pool.redis.commands.edges import LIFE
from pool.redis.commands.pausing import _HELD
from pool.redis.commands.upkeep import LINES_MAX

LUA = Path(__file__).parents[2] / "pool" / "redis" / "lua"
PARTS = sorted(path.stem for path in (LUA / "lib").glob("*.lua"))
MADE = {"life": LIFE}  # of Python's tables; the others stand in files
KEYWORDS = {
    *("and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in"),
    *("local", "nil", "not", "or", "repeat", "return", "then", "true", "until", "while"),
}
SERVER = {
    *("redis", "KEYS", "ARGV", "string", "table", "math", "unpack", "ipairs", "pairs", "next"),
    *("tonumber", "tostring", "type", "bit"),
}
TOKEN = re.compile(
    r"--\[\[.*?\]\]|--[^\n]*|'(?:\\.|[^'\\])*'|\"[^\"]*\"|\d[\w.]*|\.\.\.|\.\.|==|~=|<=|>=|\w+|\S",
    re.DOTALL,
)


# --- reading Lua --------------------------------------------------------------------------------


def tokens(text: str) -> list[str]:
    return [t for t in TOKEN.findall(text) if not t.startswith("--")]


def names_after(words: list[str], at: int) -> Iterator[str]:
    """Yield `a` and `b` of `a, b`, from a place on."""
    while at < len(words) and words[at].isidentifier():
        yield words[at]
        if words[at + 1 : at + 2] != [","]:
            return
        at += 2


def declared(text: str) -> set[str]:
    """Return what is a local anywhere in it: parameters and loop variables are, too."""
    words, found = tokens(text), set()
    for at, word in enumerate(words):
        if word == "function":
            found |= {words[at + 1]} - {"("}
            found |= set(names_after(words, words.index("(", at) + 1))
        elif word in ("local", "for"):
            found |= set(names_after(words, at + 1))
    return found - KEYWORDS


def free(text: str) -> set[str]:
    """Return the names that it uses and does not make: keys, arguments, and what parts give."""
    words, open_ones, found = tokens(text), [], set()
    for at, word in enumerate(words):
        if word in "([{":
            open_ones.append(word)
        elif word in ")]}":
            open_ones.pop()
        is_field = words[at - 1 : at] in (["."], [":"])
        is_entry = open_ones[-1:] == ["{"] and words[at + 1 : at + 2] == ["="]
        if word.isidentifier() and not is_field and not is_entry:
            found.add(word)
    return found - KEYWORDS - SERVER - declared(text)


@cache
def text_of(part: str) -> str:
    return MADE.get(part) or (LUA / "lib" / f"{part}.lua").read_text("utf-8")


def gives(part: str) -> set[str]:
    """Return its locals that what comes behind it can use: those that stand in no function."""
    found = set(re.findall(r"^local function (\w+)", text_of(part), re.MULTILINE))
    for line in re.findall(r"^local ((?:\w+, )*\w+)(?! ?\w)", text_of(part), re.MULTILINE):
        found |= set(line.split(", "))
    return found - {"function"}


def needs(part: str) -> tuple[set[str], set[str]]:
    """Return which parts it needs, and which keys and arguments, as its header has them."""
    header = re.sub(r"\([^)]*\)", "", text_of(part).partition("]]")[0])
    said = re.search(r"\bNeeds\s+(.*?)\.(?:\s|$)", header, re.DOTALL)
    parts: set[str] = set()
    names: set[str] = set()
    for clause in said[1].split(";") if said else ():
        kind, _, listed = clause.strip().partition(" ")
        if kind in ("key", "keys", "argument", "arguments"):
            names |= {name.strip() for name in listed.split(",")}
        else:
            parts |= {name.strip() for name in clause.split(",")}
    return parts, names


@pytest.mark.parametrize("part", PARTS)
def test_a_parts_header_names_what_it_uses_and_nothing_else(part: str) -> None:
    parts, names = needs(part)
    used = free(text_of(part))
    given = {each: used & gives(each) - names for each in parts}
    assert used == names.union(*given.values())
    assert all(given.values()), given


@pytest.mark.parametrize("name", sorted(path.stem for path in LUA.glob("*.lua")))
def test_a_script_gives_its_parts_what_they_need(name: str) -> None:
    """In their order: a part sees only what stands before it."""
    text = (LUA / f"{name}.lua").read_text("utf-8")
    header = text[: text.index("]]")]
    there = set(re.findall(r"^(?:KEYS|ARGV)\[\d+\] +(\w+)", header, re.MULTILINE))
    line = re.search(r"^Uses +(.+)$", header, re.MULTILINE)
    before: list[str] = []
    for part in re.sub(r"[()]", "", line[1]).split(", ") if line else ():
        parts, names = needs(part)
        assert names <= there, part
        assert parts <= {*before}, part
        before.append(part)
    known = there.union(*map(gives, before))
    used = free(text)
    assert used <= known
    used = used.union(*(free(text_of(part)) for part in before))
    rest = [part for part in before if not used & gives(part)]
    assert {*rest} <= {"lane", "expected", "rmap_plain", "list_plain"}, (
        rest
    )  # these do something by themselves


# --- the record -----------------------------------------------------------------------------------


def test_the_records_fields_are_the_same_on_both_sides() -> None:
    """By name and place, and in what may stand there; how long it may be, Lua asks apart."""
    text = text_of("record")
    named: dict[str, int] = {}
    for names, places in re.findall(r"^local ([A-Z, ]+) = ([\d, ]+)$", text, re.MULTILINE):
        named |= dict(zip(names.split(", "), map(int, places.split(", ")), strict=True))
    patterns = text.split("local RECORD = '^(")[1].split(")(.*)$'")[0].split(")|(")
    in_lua = {
        r"\{1,\d+\}": "+",
        r"\{0,\d+\}": "*",
        r"\\d": "%d",
        "0-9A-Za-z": "%w",
        r"\[a-z\]": "%l",
    }
    wanted = "\n".join(record.FIELDS.values())
    for here, there in in_lua.items():
        wanted = re.sub(here, there, wanted)
    assert patterns == wanted.splitlines()
    assert [*named] == [*(name.upper() for name in record.FIELDS), "REST"]
    assert [*named.values()] == list(range(1, len(named) + 1))


# --- numbers and letters --------------------------------------------------------------------------

# (a script or part, where in it) -> what stands there each time
TWINS = {
    ("lib/record", r"^local INLINE_BYTES_MAX = (\S+)"): record.INLINE_BYTES_MAX,
    ("lib/record", r"^local MARKS_CHARS_MAX = (\S+)"): MARKS_CHARS_MAX,
    ("lib/record", r"^local DIGITS_MAX = (\S+)"): DIGITS_MAX,
    ("lib/members", r"^local CHUNK = (\S+)"): CHUNK,
    ("lib/keep", r"^local KEPT_MAX = (\S+)"): LINES_MAX,
    ("lib/journal", r"^local ENTRIES_MAX, DETAIL_MAX = \d+, (\S+)"): DETAIL_BYTES_MAX,
    ("lib/pause", r"^local HELD = (\S+)"): _HELD,
    ("lib/clock", r"^local CLOCK_MS = (\S+)"): 1000 * CLOCK_S,
    ("lib/lane", r"ms / 5 or 2000, (\d+)\)"): 1000 * RENEW_MAX_S,
    ("join", r"ms / 5 or 2000, (\d+)\)"): 1000 * RENEW_MAX_S,
    ("lib/rmap", r"^local LOG_BYTES = (\S+)"): LOG_BYTES_MAX,
    ("lib/rmap", r"^local LOG_DELTAS = (\S+)"): DELTAS_MAX,
    ("lib/rmap", r"^local READING_MS = (\S+)"): 1000 * READING_S,
    ("lib/rmap_plain", r"local kept = .* and (\d+) or"): DELTAS_MAX,
    ("lib/rmap_plain", r"local kept = .*floor\((\d+) "): LOG_BYTES_MAX,
    ("lib/list_plain", r"local kept = .* and (\d+) or"): DELTAS_MAX,
    ("lib/list_plain", r"local kept = .*floor\((\d+) "): LOG_BYTES_MAX,
    ("intend", r"'MAXLEN', '~', (\d+)"): _SIGNALS_MAX,
    ("notify", r"'MAXLEN', '~', (\d+)"): _SIGNALS_MAX,
    ("signal", r"'MAXLEN', '~', (\d+)"): _SIGNALS_MAX,
}


@pytest.mark.parametrize(("name", "place"), TWINS)
def test_limits_are_the_same_on_both_sides(name: str, place: str) -> None:
    said = re.findall(place, (LUA / f"{name}.lua").read_text("utf-8"), re.MULTILINE)
    assert said
    assert {float(each) for each in said} == {TWINS[name, place]}


@pytest.mark.parametrize("name", ["dispatch", "incoming"])
def test_the_letters_of_policies_are_the_same_on_both_sides(name: str) -> None:
    """As a handler says them, and as a dispatch does, which may leave it to the handler."""
    said = re.findall(r"\[(?:%-)?(abc[a-z]+)\]", (LUA / f"{name}.lua").read_text("utf-8"))
    assert sorted(map(sorted, said)) == sorted(
        [sorted(POLICY_LETTERS), sorted(POLICY_LETTERS + AS_REGISTERED)]
    )
