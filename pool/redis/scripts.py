"""Scripts: each one is a `.lua` file whose header is checked against the Python side at import."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, Final, TypeAlias

import attrs

from pool.redis.lua_source import joined

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
        the script's own text: `lua_source.py` makes one of them.  An AssertionError says where
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
