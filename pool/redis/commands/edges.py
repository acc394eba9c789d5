"""One change of one job, as `advance` takes it: a class for each edge of a job's life.

On the wire each is a letter and three words, which mean something else behind each letter (see
`lua/advance.lua`); here they have names.  None is frozen, only because that costs time.  `LIFE` is
what the script knows of them, and of `core/lifecycle.TABLE`: it has no table of its own.
"""

from __future__ import annotations

from typing import ClassVar, Final, TypeAlias

import attrs

from pool.core import lifecycle
from pool.core.record import STATES
from pool.redis.commands.talk import NO_MESSAGE, MessageId
from pool.redis.scripts import Word

Words: TypeAlias = tuple[Word, Word, Word]

WORK_MAX: Final = 512  # of the edges of one call: up to some 4 ms of the server's time


@attrs.define(eq=False)
class Edge:
    """What all have: the run that it is about, and for how long its outcome is kept."""

    letter: ClassVar[str] = ""
    takes: ClassVar[int] = 0  # so many keys: 1 its inbox; 2 its result, too; 3 its unassigned:H
    work: ClassVar[int] = 2  # what it is to the server, in some 7 us

    key: str
    epoch: int
    id: str
    ttl_ms: int = 0
    handler: str = ""

    def words(self) -> Words:
        """Return what stands behind the letter."""
        return "", "", ""

    @property
    def size_bytes(self) -> int:
        """How much of it is text, about."""
        return sum(len(word) for word in self.words() if isinstance(word, (bytes, str)))


@attrs.define(eq=False)
class AcknowledgeEdge(Edge):
    """Its start has arrived."""

    letter = lifecycle.ACKNOWLEDGE

    has_begun: bool = False  # then a stop that was asked for does not keep it from running
    bits: int | None = None  # of a suspect, as of `Aboard` in core/marks.py

    def words(self) -> Words:
        return _flag(self.has_begun), "" if self.bits is None else self.bits, ""


@attrs.define(eq=False)
class LimitEdge(Edge):
    """In so long others may end its attempt; `is_anew`: a time-out of before is taken back."""

    letter = lifecycle.LIMIT

    in_ms: int = 0
    is_anew: bool = False

    def words(self) -> Words:
        return self.in_ms, _flag(self.is_anew), ""


@attrs.define(eq=False)
class SeenEdge(Edge):
    """Its messages up to this one were handled; if it is not there, none is removed."""

    letter = lifecycle.SEEN
    takes = 1

    message: MessageId = NO_MESSAGE

    def words(self) -> Words:
        return self.message, "", ""


@attrs.define(eq=False)
class SaveEdge(Edge):
    """Its state, which holds what its messages up to this one had to say."""

    letter = lifecycle.SAVE
    takes = 1

    state: bytes = b""
    message: MessageId = NO_MESSAGE
    number: int = 0  # rises within a run: a late copy of a call must not put an older one back

    def words(self) -> Words:
        return self.state, self.message, self.number


@attrs.define(eq=False)
class StepEdge(Edge):
    """What a step of it returned; the first that is stored stands."""

    letter = lifecycle.STEP

    step: str = ""
    result: bytes = b""

    def words(self) -> Words:
        return self.step, self.result, ""


@attrs.define(eq=False)
class NoteEdge(Edge):
    """How far it is, as its handler says."""

    letter = lifecycle.NOTE

    progress: str = ""

    def words(self) -> Words:
        return self.progress, "", ""


@attrs.define(eq=False)
class OverEdge(Edge):
    """Its trial is over: it has lived for long enough."""

    letter = lifecycle.OVER


@attrs.define(eq=False)
class DoneEdge(Edge):
    """It returned."""

    letter = lifecycle.DONE
    takes = 2

    result: bytes = b""
    followers: bytes = b""  # those that this run has added; see `core/followers.py`

    def words(self) -> Words:
        return self.result, self.followers, ""

    @property
    def size_bytes(self) -> int:
        return len(self.result) + len(self.followers)


@attrs.define(eq=False)
class CancelEdge(Edge):
    """It was stopped, or cancelled itself."""

    letter = lifecycle.CANCEL
    takes = 3
    work = 3

    cause: str = ""
    has_begun: bool = False

    def words(self) -> Words:
        return self.cause, "", _flag(self.has_begun)


@attrs.define(eq=False)
class ParkEdge(Edge):
    """It is given up."""

    letter = lifecycle.PARK
    takes = 3
    work = 4

    cause: str = ""
    error: str = ""
    has_begun: bool = False
    failed: str = ""  # what is kept of the attempt that has failed; see `pack_attempt`
    mark: str = ""

    def words(self) -> Words:
        return self.cause, _with(self.error, self.failed), self.mark or _flag(self.has_begun)


@attrs.define(eq=False)
class WaitEdge(Edge):
    """It runs again after a delay, as this attempt."""

    letter = lifecycle.WAIT
    takes = 3
    work = 3

    delay_ms: int = 0
    attempt: int = 1
    error: str = ""
    mark: str = ""
    failed: str = ""  # as of `ParkEdge`

    def words(self) -> Words:
        attempt = f"{self.attempt} {self.mark}".rstrip()
        return self.delay_ms, attempt, _with(self.error, self.failed)


@attrs.define(eq=False)
class GrantEdge(Edge):
    """It goes to the first with room of these places in the call's list of targets."""

    letter = lifecycle.GRANT
    takes = 3
    work = 4

    ranked: str = ""
    mark: str = ""
    checkpoint: bytes | None = None  # None: what is there stays

    def words(self) -> Words:
        return self.ranked, self.mark, b"" if self.checkpoint is None else b"=" + self.checkpoint


EDGES: Final[dict[str, type[Edge]]] = {
    kind.letter: kind
    for kind in (
        *(AcknowledgeEdge, LimitEdge, SeenEdge, SaveEdge, StepEdge, NoteEdge, OverEdge),
        *(DoneEdge, CancelEdge, ParkEdge, WaitEdge, GrantEdge),
    )
}


def _life() -> str:
    """Return the table as Lua: of each edge the letters of the states it leaves, and its keys."""
    states = {state: letter for letter, state in STATES.items()}
    leaves = {edge: "".join(states[s] for s, e in lifecycle.TABLE if e == edge) for edge in EDGES}
    froms = ", ".join(f"{edge} = '{letters}'" for edge, letters in leaves.items())
    takes = ", ".join(f"{edge} = {kind.takes}" for edge, kind in EDGES.items())
    return f"local FROM = {{ {froms} }}\nlocal TAKES = {{ {takes} }}"


LIFE: Final = _life()


def _with(error: str, failed: str) -> str:
    return f"{error}\n{failed}" if failed else error


def _flag(is_so: bool) -> str:
    return "1" if is_so else ""
