"""What a script's parts become before the server gets them: the same, with less to do per call.

The server runs a script from its first line for every call: each `local function` makes a closure,
and for each name from outside that it uses Lua 5.1 walks over all names which any closure has from
outside (`luaF_findupval`).  For one job's end that was a third of all that the server did.  So

    a constant (`local ROOM_MAX = 16`)         stands where it is used
    a text of the header (`KEYS[1] lane`)      is `KEYS[1]` where it is used, if no other thing has
                                               its name; a number stays a local
    a part in brackets (`Uses lane, (queue)`)  is made when the first of its functions is called;
    likewise what stands in a part between     it may hold functions, constants and names of what
    `-- late NAME` and `-- end NAME`           is not there yet

What makes a late part stands in `KEYS`, a table that the server makes anew for each call, and not
in a local: so no closure has it from outside, and those who never call it pay nothing to find it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

# Texts and comments, in which no name is a name; and names.
_TOKEN: Final = re.compile(r"'(?:[^'\\\n]|\\.)*'|--[^\n]*|[A-Za-z_]\w*")
_VALUE: Final = re.compile(r"'(?:[^'\\\n]|\\.)*'|[\d.]+(?:e\d+)?(?: \* \d+)*")
_CONSTANT: Final = re.compile(
    r"^local ([A-Z][A-Z0-9_]*(?:, [A-Z][A-Z0-9_]*)*) = (.*)$", re.MULTILINE
)
_WORD: Final = re.compile(r"\w+")
_OTHER: Final = re.compile(
    r"[.:](\w+)"
    r"|(?:[{,]|^)\s*(\w+(?:, \w+)*)\s*=(?!=)"
    r"|\blocal (?!function\b)(\w+(?:, \w+)*)"
    r"|\bfunction\b([^()]*\([^()]*)\)"
    r"|\bfor (\w+(?:, \w+)*)",
    re.MULTILINE,
)
_HEADER: Final = re.compile(r"^--\[\[.*?\]\]\n", re.DOTALL)
_LATE: Final = re.compile(r"^-- late (\w+)\n(.*?)^-- end \1$", re.MULTILINE | re.DOTALL)
_FUNCTION: Final = re.compile(r"^local function (\w+)\(", re.MULTILINE)
_TOP: Final = re.compile(
    r"^(?!local function |local \w+(?: = {})?(?: --.*)?$|end$|\s|--|$)(.+)$", re.MULTILINE
)


def joined(parts: Sequence[tuple[str, str]], names: Mapping[str, str], first: str) -> str:
    """Return the text of (name, text) parts one after another; a name in brackets is made late.

    `names` are those of the header that are texts, each with what it stands for; `first` is the
    line that makes locals of the others.  An AssertionError says what is wrong with a part: that is
    a bug of ours.
    """
    texts = []
    late: dict[str, str] = {}  # function -> what makes it
    for part, whole in parts:
        text = _HEADER.sub("", whole)
        if part.startswith("("):
            text = f"-- late {part.strip('()')}\n{text}-- end {part.strip('()')}"
        plain, *sections = _LATE.split(text)
        texts.append(_without_calls(plain, late))
        for name, within, after in zip(*[iter(sections)] * 3, strict=True):
            texts.append(_made_late(name, _without_calls(within, late), late))
            texts.append(_without_calls(after, late))
    constants: dict[str, str] = {}
    text = _CONSTANT.sub(lambda found: _taken(found, constants), "\n".join(texts))
    others = _others(text)
    clear = {name: stands for name, stands in names.items() if name not in others}
    kept = [f"local {name} = {stands}" for name, stands in names.items() if name not in clear]
    text = _replaced(text, constants | clear)
    return " ".join([*kept, first]).strip() + "\n" + text


def _replaced(text: str, by: Mapping[str, str]) -> str:
    return _TOKEN.sub(lambda found: by.get(found[0], found[0]), text)


def _taken(found: re.Match[str], constants: dict[str, str]) -> str:
    """Note what a line makes constant, and return what is left of the line: all of it, if more."""
    names = found[1].split(", ")
    code, _, comment = found[2].partition(" --")
    values = _VALUE.findall(code)
    if ", ".join(values) != code or len(values) != len(names):
        return found[0]
    for name, value in zip(names, values, strict=True):
        stands = f"({value})" if " * " in value else value
        assert constants.setdefault(name, stands) == stands, f"{name} is two things"
    return f"-- {comment}" if comment else ""


def _others(text: str) -> set[str]:
    """Return all names that something else has: fields, locals, arguments."""
    return set(_WORD.findall(" ".join(map(" ".join, _OTHER.findall(_TOKEN.sub(_bare, text))))))


def _bare(found: re.Match[str]) -> str:
    return "" if found[0][0] in "'-" else found[0]


def _made_late(name: str, text: str, late: dict[str, str]) -> str:
    """Return `KEYS.NAME()`, which makes the part once, and returns a table of its functions."""
    bare = _CONSTANT.sub(lambda found: _taken(found, {}), text)
    others = _TOP.findall(bare)
    assert not others, f"{name}: {others[0]!r} is no function and no constant"
    functions = _FUNCTION.findall(text)
    late |= dict.fromkeys(functions, name)
    table = ", ".join(f"{each} = {each}" for each in functions)
    return (
        f"function KEYS.{name}()\n"
        f"{text}local made = {{ {table} }} function KEYS.{name}() return made end return made end"
    )


def _without_calls(text: str, late: Mapping[str, str]) -> str:
    """Return the text with calls of what is made late by way of what makes it."""
    return _replaced(text, {name: f"KEYS.{part}().{name}" for name, part in late.items()})
