"""Lua scripts: their headers checked, their parts joined, their calls built.

What a script's parts become before the server gets them: the same, with less to do per call.

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

Scripts: each one is a `.lua` file whose header is checked against the Python side at import.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, Final, TypeAlias

import attrs

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


Word: TypeAlias = str | bytes | int | float

# `KEYS[1] owners  hash ...` is one slot; `ARGV[...] items  ...` is any number of them, at the end.
_SLOT = re.compile(r"^(KEYS|ARGV)\[(\d+|\.\.\.)\] +(\w+)", re.MULTILINE)
_TYPED = re.compile(r"^(KEYS|ARGV)\[(\d+)\] +(\w+) +(\w+)", re.MULTILINE)
_USES = re.compile(r"^Uses +(.+)$", re.MULTILINE)

# Around a script's text.  An error that a command raised in it has no number.  What is told has it
# in front of a text, behind a list's parts, else beside it: each list costs the server 1 us.
NUMBERED_HEAD: Final = "local number = table.remove(ARGV) local function call()\n"
NUMBERED_TAIL: Final = """
end
local told = call()
if type(told) == 'string' then
  return number .. ' ' .. told
elseif type(told) == 'table' and not told.err then
  told[#told + 1] = number
  return told
end
return { number, told or false }
"""

ReplyReader: TypeAlias = Callable[[Any], Any]


def _as_it_is(reply: Any) -> Any:
    return reply


@attrs.frozen(eq=False)
class Script:
    """One Lua script and what its KEYS and ARGV are called; a `*name` at the end takes the rest.

    Calling it builds a `ScriptCall`, which a body or a pipeline sends.
    """

    name: str
    parts: tuple[tuple[str, str], ...] = attrs.field(repr=False)  # name and text of each
    keys: tuple[str, ...]
    args: tuple[str, ...]
    reads: ReplyReader = attrs.field(default=_as_it_is, repr=False)  # what callers get of a reply
    behind: Script | None = attrs.field(default=None, repr=False)  # whose calls it never overtakes
    is_text_too: bool = attrs.field(default=False, repr=False)  # its parts may come as one text
    _keys_fit: tuple[int, bool] = attrs.field(init=False, repr=False)
    _args_fit: tuple[int, bool] = attrs.field(init=False, repr=False)

    # Made when they are first asked for: a process uses a dozen of all scripts.

    @cached_property
    def source(self) -> str:
        """What the server runs."""
        texts, numbers = {}, []
        for table, index, slot, kind in _TYPED.findall(self.parts[-1][1]):
            if kind == "int":
                numbers.append(f"local {slot} = tonumber({table}[{index}])")
            else:
                texts[slot] = f"{table}[{index}]"
        return joined(self.parts, texts, " ".join(numbers))

    @cached_property
    def sha(self) -> str:
        """What the server knows it by."""
        return _sha(self.source)

    @cached_property
    def numbered(self) -> str:
        """The same, but its last argument is a number that comes back with what it returns."""
        return NUMBERED_HEAD + self.source + NUMBERED_TAIL

    @cached_property
    def numbered_sha(self) -> str:
        """What the server knows that by."""
        return _sha(self.numbered)

    @_keys_fit.default
    def _(self) -> tuple[int, bool]:
        return _fit(self.keys)

    @_args_fit.default
    def _(self) -> tuple[int, bool]:
        return _fit(self.args)

    @classmethod
    def load(
        cls,
        name: str,
        *,
        keys: str,
        args: str,
        reads: ReplyReader = _as_it_is,
        behind: Script | None = None,
        made: Mapping[str, str] | None = None,
        is_text_too: bool = False,
        directory: Traversable | None = None,
    ) -> Script:
        """Read `lua/{name}.lua` and the parts that its header's `Uses` names.

        `keys` and `args` are the names that the header has, with spaces between; an `int` is a
        number.  The parts come in the order named, each from `made` or else from `lua/lib`, then
        the script's own text: `joined` makes one of them.  An AssertionError says where
        header and Python differ: that is a bug of ours.
        """
        directory = directory or files("pool.redis") / "lua"
        text = (directory / f"{name}.lua").read_text("utf-8")
        header = text[: text.index("]]")]
        found, named = _slots(name, header), (tuple(keys.split()), tuple(args.split()))
        assert found == named, f"{name}.lua: header says {found}, Python {named}"
        used = [part for line in _USES.findall(header) for part in re.split(r"[ ,]+", line.strip())]
        library, made = directory / "lib", made or {}
        parts = [
            (p, made.get(p) or (library / f"{p.strip('()')}.lua").read_text("utf-8")) for p in used
        ]
        return cls(name, (*parts, (name, text)), *found, reads, behind, is_text_too)

    def __call__(
        self, keys: Sequence[str], args: Sequence[Word], parts: int | None = None
    ) -> ScriptCall:
        # Spelled out because this runs for every call: as functions the two checks cost 1 us.
        count = len(keys)
        fixed, has_more = self._keys_fit
        assert count == fixed or (has_more and count > fixed), f"{self.name}: {count} keys"
        count = len(args)
        fixed, has_more = self._args_fit
        assert count == fixed or (has_more and count > fixed), f"{self.name}: {count} args"
        return ScriptCall(self, keys, args, parts)


@attrs.define(eq=False)
class ScriptCall:
    """One call of a script.  Not frozen only because that doubles what making one costs."""

    script: Script
    keys: Sequence[str]
    args: Sequence[Word]
    parts: int | None = None  # how many the reply has, if that is known

    def read(self, reply: Any) -> Any:
        """Return what a reply says; whatever this raises, it is no reply of this script."""
        is_text = self.script.is_text_too and type(reply) is bytes
        if self.parts is not None and not is_text and len(reply) != self.parts:
            raise ValueError(f"{len(reply)} parts, not {self.parts}")
        return self.script.reads(reply)

    def words(self) -> tuple[Word, ...]:
        """Return the command that runs the script if the server still has it."""
        return ("EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.args)

    def numbered(self, number: bytes) -> tuple[Word, ...]:
        """Return the same of the numbered script."""
        sha = self.script.numbered_sha
        return ("EVALSHA", sha, len(self.keys), *self.keys, *self.args, number)


Command: TypeAlias = tuple[Word, ...] | ScriptCall


def _sha(source: str) -> str:
    return hashlib.sha1(source.encode()).hexdigest()


def _fit(slots: tuple[str, ...]) -> tuple[int, bool]:
    """Return how many there must be, and whether there may be more."""
    has_more = any(slot.startswith("*") for slot in slots[-1:])
    return len(slots) - has_more, has_more


def _slots(name: str, header: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    found: dict[str, list[str]] = {"KEYS": [], "ARGV": []}
    for table, index, slot in _SLOT.findall(header):
        names = found[table]
        assert not (names and names[-1].startswith("*")), f"{name}.lua: {table}[...] is not last"
        if index == "...":
            names.append(f"*{slot}")
            continue
        names.append(slot)
        assert int(index) == len(names), f"{name}.lua: {table}[{index}] out of order"
    return tuple(found["KEYS"]), tuple(found["ARGV"])
