"""Accepting jobs: the call, and what is said of each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from enum import Enum
from operator import attrgetter
from typing import Final, TypeAlias

import attrs

from pool.core.ids import number
from pool.core.lifecycle import State
from pool.core.options import POLICY_LETTERS, attaches
from pool.core.record import KIND_LETTERS, KINDS, STATES, Kind, more_of
from pool.redis.commands.calls import Calls, Target, as_ms
from pool.redis.connection import Reply
from pool.redis.scripts import Script, ScriptCall, Word


@attrs.define(eq=False)
class Admission:
    """One job to accept; `ranked` are places in the call's list of targets, counted from 1.

    Not frozen only because that costs time; the dispatcher fills the last two in for each try.
    """

    key: str
    id: str
    handler: str
    kind: Kind | None  # None: as the handler was registered
    payload: bytes
    delay_s: float = 0.0
    policy: str = ""  # for a key with a live job: letters as `dispatch` takes them
    allow_unknown: bool = False
    more: str = ""  # of its record
    unassigned: bool = False
    ranked: Sequence[int] = ()

    @property
    def flags(self) -> str:
        """The letters that `dispatch` takes."""
        more = self.more and f",{self.more}"
        return f"{self.policy}{'k' * self.allow_unknown}{'u' * self.unassigned}{more}"

    def go_by(self, policy: str) -> None:
        """Take what its handler says; what is named by an id, or followed, is itself a job."""
        is_own = any(more_of(self.more, name) for name in ("digest", "followers", "batch"))
        is_attaching = attaches(policy) and is_own
        self.policy = "" if is_attaching else policy


AS_REGISTERED: Final = "h"  # the policy of a handler that the caller does not know


def ranking(places: Iterable[int]) -> str:
    """Return places in a call's list of targets as the scripts take them."""
    return ",".join(map(str, places))


class Said(Enum):
    """What is said of a job without any facts."""

    ACCEPTED = b"OK"
    ENDED = b"ENDED"  # a repeat, and the job is over
    UNKNOWN = b"UNKNOWN"  # its handler
    NO_ROOM = b"NOROOM"  # at the targets named, and it may not wait unassigned
    UNREADABLE = b"MALFORMED"  # what its key has
    SERVICE = b"SERVICE"  # it must begin by some time, and is one


@attrs.frozen
class Queued:
    """It stands in the line behind the key's live job."""

    has_due: bool  # a sweeper has something to do for it


@attrs.frozen
class LineFull:
    """So many stand in the line behind the key's live job, and no more may."""

    line_max: int


@attrs.frozen
class Stopping:
    """The key's live job is to end: nobody attaches to it."""

    job_id: str


@attrs.frozen
class Differs:
    """The key's live job is of another handler, or of other arguments."""

    job_id: str
    handler: str


@attrs.frozen
class Policy:
    """The key has a live job, and its handler's options say what to do then: come again so."""

    policy: str


@attrs.frozen
class Elsewhere:
    """What it is to be compared with stands in the stream of this worker: come again with it."""

    owner: Target


@attrs.frozen
class Full:
    """So many jobs of the lane wait: it takes no more."""

    queued: int


@attrs.frozen
class Exists:
    """The key has a job."""

    state: State
    owner: str
    job_id: str
    handler: str
    kind: Kind
    is_attached: bool  # as was asked for


@attrs.frozen
class Replayed:
    """The job is over, and that one was made from its dead letter."""

    job_id: str
    handler: str


@attrs.frozen
class Conflict:
    """The id is that of another job."""

    handler: str
    digest: str


Admitted: TypeAlias = (
    Said
    | Full
    | Exists
    | Replayed
    | Conflict
    | Queued
    | LineFull
    | Stopping
    | Differs
    | Policy
    | Elsewhere
)


def admitted(reply: Reply) -> list[Admitted]:
    """Read the reply of `dispatch`, per item."""
    return [_SAID.get(text.partition(b" ")[0]) or _admitted(text) for text in reply]


_SAID: Final = {said.value: said for said in Said}  # there is one for each job


def _admitted(text: bytes) -> Admitted:
    match text.decode(errors="replace").split(" ", 5):
        case ["FULL", queued]:
            return Full(number(queued))
        case ["REPLAYED", job_id, handler]:
            return Replayed(job_id, handler)
        case ["CONFLICT", handler, digest]:
            return Conflict(handler, digest)
        case ["QUEUED", "0" | "1" as has_due]:
            return Queued(has_due == "1")
        case ["LINE", line_max]:
            return LineFull(number(line_max))
        case ["STOPPING", job_id]:
            return Stopping(job_id)
        case ["DIFFERS", job_id, handler]:
            return Differs(job_id, handler)
        case ["POLICY", policy] if policy[:1] in POLICY_LETTERS:
            return Policy(policy)
        case ["ELSEWHERE", worker, its]:
            return Elsewhere(Target(worker, number(its)))
        case ["EXISTS" | "ATTACHED" as word, state, owner, job_id, handler, kind]:
            owner = "" if owner == "-" else owner
            return Exists(STATES[state], owner, job_id, handler, KINDS[kind], word == "ATTACHED")
    raise ValueError("no status of this script")


_more_of: Final = attrgetter("more")

DISPATCH: Final = Script.load(
    "dispatch",
    keys="lane open jobs pending due payloads handlers kept *rest",
    args="generation pending_ms queued_jobs_max refused_ms expects target_count *items",
    reads=admitted,
)


@attrs.frozen
class AdmissionCalls(Calls):
    """Accepting jobs."""

    def dispatch(
        self,
        items: Sequence[Admission],
        targets: Sequence[Target],
        *,
        pending_s: float,
        queued_jobs_max: int,
        refused_s: float = 0.0,
        expects: str = "0",
        is_followed: bool = False,
    ) -> ScriptCall:
        """Accept jobs; one status per item, see `dispatch.lua`.

        `is_followed`: the lane has said that its journal takes all edges of some jobs.
        """
        n = self.names
        keys = [n.lane, n.open, n.jobs, n.pending, n.due, n.payloads, n.handlers, n.kept]
        args: list[Word] = [self.generation, as_ms(pending_s), queued_jobs_max]
        args += (as_ms(refused_s) if refused_s else 0, expects)
        self._add_targets(keys, args, targets)
        for item in items:
            keys += (n.result(item.key, item.id), n.unassigned(item.handler))
            args += (
                item.key,
                item.id,
                item.handler,
                KIND_LETTERS[item.kind] if item.kind else "?",
                item.flags,
                math.ceil(item.delay_s * 1000) if item.delay_s else 0,
                ranking(item.ranked),
                item.payload,
            )
        if is_followed:
            keys += (n.letters, n.journal)
        elif any(map(_more_of, items)):
            keys.append(n.letters)
        return DISPATCH(keys, args, parts=len(items))
