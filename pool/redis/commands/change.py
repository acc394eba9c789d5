"""Every change of a job after its dispatch, and what a worker pulls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final, Literal, TypeAlias

import attrs

from pool.core.digits import number
from pool.names import key_of
from pool.redis.commands.calls import Calls, Target, as_ms
from pool.redis.commands.edges import LIFE, Edge
from pool.redis.commands.plain import count, typed
from pool.redis.connection import Reply
from pool.redis.scripts import Script, ScriptCall, Word

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
