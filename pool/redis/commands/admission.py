"""Accepting jobs: the call, and what is said of each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final, TypeAlias

import attrs

from pool.core.digits import number
from pool.core.lifecycle import State
from pool.core.record import KIND_LETTERS, STATES, Kind
from pool.redis.commands.calls import Calls, Target, as_ms
from pool.redis.connection import Reply
from pool.redis.scripts import Script, ScriptCall, Word


@attrs.define(eq=False, kw_only=True)
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
    attach: bool = False
    allow_unknown: bool = False
    unassigned: bool = False
    ranked: Sequence[int] = ()

    @property
    def flags(self) -> str:
        """The letters that `dispatch` takes."""
        return f"{'a' * self.attach}{'k' * self.allow_unknown}{'u' * self.unassigned}"


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
    is_attached: bool  # as was asked for


Admitted: TypeAlias = Said | Full | Exists


def admitted(reply: Reply) -> list[Admitted]:
    """Read the reply of `dispatch`, per item."""
    return [_SAID.get(text.partition(b" ")[0]) or _admitted(text) for text in reply]


_SAID: Final = {said.value: said for said in Said}  # there is one for each job


def _admitted(text: bytes) -> Full | Exists:
    match text.decode(errors="replace").split(" ", 4):
        case ["FULL", queued]:
            return Full(number(queued))
        case ["EXISTS" | "ATTACHED" as word, state, owner, job_id, handler]:
            owner = "" if owner == "-" else owner
            return Exists(STATES[state], owner, job_id, handler, word == "ATTACHED")
    raise ValueError("no status of this script")


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
    ) -> ScriptCall:
        """Accept jobs; one status per item, see `dispatch.lua`."""
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
        return DISPATCH(keys, args, parts=len(items))
