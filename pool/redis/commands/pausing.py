"""Pausing in a lane, and what stands there of that."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, Literal, Self

import attrs

from pool.core.ids import number
from pool.core.pauses import HANDLERS_PAUSED_MAX, KEYS_PAUSED_MAX, Pause
from pool.names import PAUSED, lane_of, paused_key
from pool.redis.commands.calls import Calls
from pool.redis.connection import Reply
from pool.redis.scripts import Script, ScriptCall

_HELD: Final = 5e15  # as lib/pause.lua has it
_FORM: Final = re.compile(r"(p?)(\d*)\|((?:[^|]+\|)*)")


@attrs.frozen
class PauseTold:
    """What became of it: done; `is_full`; or the key's job has another handler, `moved_on`; or what
    decided otherwise here has this order, `behind`, and nothing was changed."""

    is_full: bool = False
    moved_on: str = ""
    behind: int = 0


def told(reply: Reply) -> PauseTold:
    """Read the reply of `pause`."""
    word, _, rest = reply.decode().partition(" ")
    if word == "BEHIND":
        return PauseTold(behind=number(rest))
    if word not in ("OK", "FULL", "MOVED_ON") or bool(rest) != (word == "MOVED_ON"):
        raise ValueError(word)
    return PauseTold(word == "FULL", rest)


@attrs.frozen
class LanePauses:
    """What is paused in a lane, as its fields say."""

    is_all: bool = False
    handlers: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    count: int = 0  # of keys, as it counts them

    @classmethod
    def of(cls, fields: Mapping[str, bytes]) -> Self:
        """Read the fields of `lane`; what another hand wrote there is nothing, as it is for Lua."""
        found = _FORM.fullmatch(fields.get(PAUSED, b"").decode(errors="replace"))
        if found is None:
            return cls()
        begin = paused_key("")
        keys = tuple(name[len(begin) :] for name in fields if name.startswith(begin))
        handlers = tuple(found[3].split("|")[:-1])
        return cls(bool(found[1]), handlers, keys, int(found[2] or 0))

    @classmethod
    def asked_for(cls, pauses: Iterable[Pause], lane: int, lanes: int) -> Self:
        """Return what is to be paused in a lane, of all that operators have asked for."""
        those = [each for each in pauses if not each.is_over]
        keys = tuple(e.name for e in those if e.what == "key" and lane_of(e.name, lanes) == lane)
        handlers = tuple(each.name for each in those if each.what == "handler")
        return cls(any(each.what == "pool" for each in those), handlers, keys, len(keys))

    def pack(self) -> str:
        """Return the field that says so, and behind it the keys; empty: nothing is paused."""
        if not (self.is_all or self.handlers or self.keys):
            return ""
        count = str(len(self.keys)) if self.keys else ""
        handlers = "".join(f"{name}|" for name in self.handlers)
        keys = "".join(f"\n{key}" for key in self.keys)  # no key has a control character
        return f"{'p' if self.is_all else ''}{count}|{handlers}{keys}"

    def pauses(self) -> list[Pause]:
        """Return what is paused here."""
        found = [Pause()] if self.is_all else []
        found += [Pause(handler=name) for name in self.handlers]
        return found + [Pause(key=name) for name in self.keys]

    def has(self, pause: Pause) -> bool:
        """Say whether it is paused here."""
        match pause.what:
            case "pool":
                return self.is_all
            case "handler":
                return pause.name in self.handlers
            case _:
                return pause.name in self.keys


def is_held_back(score: float) -> bool:
    """Say whether a place in a handler's line is that of a paused key."""
    return score >= _HELD


def without_hold(score: float) -> float:
    """Return when a job was accepted, by its place in its handler's line."""
    return score - _HELD if is_held_back(score) else score


PAUSE: Final = Script.load(
    "pause",
    keys="lane jobs journal unassigned",
    args="generation verb what name handler paused_max order",
    reads=told,
)


@attrs.frozen
class PauseCalls(Calls):
    """Pausing, and what takes that back."""

    def pause(
        self, verb: Literal["pause", "resume"], pause: Pause, handler: str = "-"
    ) -> ScriptCall:
        """Pause in this lane, or resume.

        `handler` is that of the key's job, as the caller knows it: see `PauseTold.moved_on`.
        """
        n = self.names
        most = KEYS_PAUSED_MAX if pause.what == "key" else HANDLERS_PAUSED_MAX
        keys = (n.lane, n.jobs, n.journal, n.unassigned(handler))
        of = (pause.what, pause.name, handler, most, pause.order)
        return PAUSE(keys, (self.generation, verb, *of))
