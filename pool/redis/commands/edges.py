"""Changes of jobs after their dispatch: the edges of a job's life, sent by `advance`.

One change of one job, as `advance` takes it: a class for each edge of a job's life.

On the wire each is a letter and three words, which mean something else behind each letter (see
`lua/advance.lua`); here they have names.  None is frozen, only because that costs time.  `LIFE` is
what the script knows of them, and of `core/lifecycle.TABLE`: it has no table of its own.

Every change of a job after its dispatch, and what a worker pulls.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import ClassVar, Final, Literal, TypeAlias

import attrs

from pool.core import lifecycle
from pool.core.ids import number
from pool.core.record import STATES
from pool.names import key_of
from pool.redis.commands.calls import Calls, Target, as_ms
from pool.redis.commands.plain import count, typed
from pool.redis.commands.talk import NO_MESSAGE, MessageId
from pool.redis.connection import Reply
from pool.redis.scripts import Script, ScriptCall, Word

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
    bits: int | None = None  # of a suspect, as of `Aboard` in core/crash_marks.py

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


AdvanceGuard: TypeAlias = Literal["own", "reap", "free"]


class EdgeStatus(Enum):
    """What became of an edge; what its facts are."""

    DONE = "OK"  # who waits, and what was left unheard; of an acknowledgement: flags, and who waits
    STOPPED = "STOPPED"  # the cause: it must not begin
    LATE = "LATE"  # likewise; whoever sweeps ends it
    GRANTED = "GRANTED"  # owner and epoch
    UNASSIGNED = "UNASSIGNED"
    REPEAT = "REPEAT"  # the outcome that stands is this writer's own; or a later state of its
    SETTLED = "SETTLED"  # another's outcome stands
    FENCED = "FENCED"
    TIMED_OUT = "TIMEDOUT"  # it must end as such
    OWNED = "OWNED"  # the owner
    REFUSED = "REFUSED"  # the state
    MOVED_ON = "MOVED_ON"  # the handler that its record names: its unassigned keys were not passed
    UNREADABLE = "MALFORMED"
    MORE = "MORE"  # messages than one call takes out
    FULL = "FULL"  # the server is, and nothing was stored
    STANDS = "STANDS"  # the step has another result, which stands


@attrs.define(eq=False)
class Changed:
    """What is said of an edge.  Not frozen only because that costs time."""

    status: EdgeStatus
    facts: str
    stands: bytes = b""  # the result that a step had before

    def __str__(self) -> str:
        return f"{self.status.value} {self.facts}".strip()

    @property
    def waiters(self) -> Sequence[str]:
        """Who waits for the job."""
        if not self.facts:
            return ()
        waiters = self.facts.partition(" ")[0]
        return () if waiters == "-" else waiters.split(",")

    @property
    def unheard(self) -> int | None:
        """How many messages it left that nobody took, where the next one of its key has its turn.

        None: there is no next one, and nobody has counted them.
        """
        count = self.facts.partition(" ")[2]
        return number(count) if count else None

    @property
    def of_start(self) -> tuple[str, Sequence[str]]:
        """The record's flags, and who waits, of an acknowledgement."""
        flags, _, waiters = self.facts.partition(" ")
        return flags, waiters.split(",") if waiters else ()


_STATUSES: Final = {status.value: status for status in EdgeStatus}


@attrs.define(eq=False)
class Advanced:
    """What is said of each edge.  Not frozen only because that costs time."""

    unassigned: int  # keys of the lane; negative: none of them is for the handlers asked about
    told: list[Changed]


def advanced(reply: Reply) -> Advanced:
    """Read the reply of `advance`."""
    unassigned, *told = reply
    words = [text.decode(errors="replace").partition(" ") for text in told]
    changed = [Changed(_STATUSES[word], facts) for word, _, facts in words]
    for each, text in zip(changed, told, strict=True):
        if each.status is EdgeStatus.STANDS:
            each.facts, each.stands = "", text.partition(b" ")[2]
    return Advanced(typed(unassigned, int), changed)


@attrs.frozen
class Pulled:
    """What a worker was granted of the unassigned keys, and what it left."""

    left: int
    granted: int
    oldest: int  # acceptance stamp of the oldest one left; 0: there is none


def pulled(reply: Reply) -> Pulled:
    """Read the reply of `pull`."""
    left, granted, *oldest = reply
    return Pulled(typed(left, int), count(granted), int(oldest[0]) if oldest else 0)


ADVANCE: Final = Script.load(
    "advance",
    keys="lane keepalive cleanup open jobs pending due payloads checkpoints parked letters "
    "journal source_owned source_stream trials kept attempts *rest",
    args="generation guard source claim pending_ms reap_ms parked_ms brief_ms results_max "
    "says expects target_count *items",
    reads=advanced,
    made={"life": LIFE},
)
PULL: Final = Script.load(
    "pull",
    keys="lane keepalive cleanup open jobs pending payloads stream owned *unassigned",
    args="generation pending_ms keys_max ahead says target_count id number",
    reads=pulled,
    behind=ADVANCE,  # which frees the slots that it looks for
)


@attrs.frozen
class ChangeCalls(Calls):
    """Changing jobs, and pulling some."""

    def advance(
        self,
        guard: AdvanceGuard,
        source: str,
        edges: Sequence[Edge],
        *,
        pending_s: float,
        targets: Sequence[Target] = (),
        claim: str = "",
        reap_s: float = 1.0,
        says: str = "",
        expects: str = "0",
        asks: Iterable[str] = (),
    ) -> ScriptCall:
        """Change jobs; one status per edge.

        `asks`: handlers; the answer says whether an unassigned key is for one of them.
        """
        n = self.names
        keys = [n.lane, n.keepalive, n.cleanup, n.open, n.jobs, n.pending, n.due, n.payloads]
        keys += (n.checkpoints, n.parked, n.letters, n.journal, n.owned(source), n.stream(source))
        keys += (n.trials, n.kept, n.attempts)
        args: list[Word] = [self.generation, guard, source, claim, as_ms(pending_s), as_ms(reap_s)]
        keeps = self.keeps
        args += (as_ms(keeps.parked_s), as_ms(keeps.brief_s), keeps.results_bytes_max)
        args += (says, expects)
        self._add_targets(keys, args, targets)
        for edge in edges:
            if edge.takes > 1:
                assert edge.ttl_ms > 0  # the server refuses any other, in the middle of a batch
                of = edge.key if edge.takes == 2 else key_of(edge.key)  # it may be queued
                keys.append(n.result(of, edge.id))
            if edge.takes:
                keys.append(n.inbox(edge.key))
                if edge.takes > 2:
                    keys.append(n.unassigned(edge.handler))
            args += (edge.letter, edge.key, edge.epoch, edge.id, edge.ttl_ms)
            args += edge.words()
        keys += map(n.unassigned, asks)
        return ADVANCE(keys, args, parts=1 + len(edges))

    def pull(
        self,
        worker: Target,
        handlers: Iterable[str],
        *,
        keys_max: int,
        pending_s: float,
        ahead: int = 0,
        says: str = "",
    ) -> ScriptCall:
        """Grant a worker the oldest unassigned keys."""
        n = self.names
        keys = [n.lane, n.keepalive, n.cleanup, n.open, n.jobs, n.pending, n.payloads]
        keys += (n.stream(worker.name), n.owned(worker.name), *map(n.unassigned, handlers))
        args: list[Word] = [self.generation, as_ms(pending_s), keys_max, ahead, says]
        return PULL(keys, [*args, 1, worker.id, worker.number])
