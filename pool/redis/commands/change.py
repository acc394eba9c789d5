"""Every change of a job after its dispatch, and what a worker pulls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal, TypeAlias

import attrs

from pool.core import lifecycle
from pool.redis.commands.calls import Calls, Target, as_ms
from pool.redis.commands.plain import count, typed
from pool.redis.commands.reply import Said, statuses
from pool.redis.connection import Reply
from pool.redis.scripts import Script, ScriptCall, Word


@attrs.define(eq=False)
class Edge:
    """One change of one job, as `advance` takes it.  Not frozen only because that costs time."""

    letter: str
    key: str
    epoch: int
    id: str
    ttl_ms: int = 0
    x: Word = b""
    y: Word = b""
    z: Word = b""
    handler: str = ""

    def is_past(self, epoch: int, job_id: str) -> bool:
        """Whether a run had come by then, or this is its own end; not if one was misread."""
        return self.epoch > epoch or (self.epoch == epoch and self.id == job_id)


Guard: TypeAlias = Literal["own", "reap", "free"]

_moved: Final = statuses(
    *("OK", "STOPPED", "GRANTED", "UNASSIGNED", "REPEAT", "SETTLED", "FENCED", "TIMEDOUT"),
    *("OWNED", "REFUSED", "MOVED_ON", "MALFORMED", "MORE"),
)


def moved(reply: Reply) -> tuple[int, list[Said]]:
    """Read the reply of `advance`: the lane's number of unassigned keys, then one status each."""
    unassigned, *rest = reply
    return typed(unassigned, int), _moved(rest)


def pulled(reply: Reply) -> tuple[int, int, int]:
    """Read the reply of `pull`: how many keys are left and were granted; how old the oldest is."""
    left, granted, *oldest = reply
    return typed(left, int), count(granted), int(oldest[0]) if oldest else 0


ADVANCE: Final = Script.load(
    "advance",
    keys="lane keepalive cleanup open jobs pending due payloads checkpoints parked letters "
    "journal source_owned source_stream trials kept *rest",
    args="incarnation guard source claim pending_ms reap_ms parked_ms says expects "
    "target_count *items",
    reads=moved,
)

PULL: Final = Script.load(
    "pull",
    keys="lane keepalive cleanup open jobs pending payloads stream owned *unassigned",
    args="incarnation pending_ms keys_max ahead says target_count id number",
    reads=pulled,
    behind=ADVANCE,  # which frees the slots that it looks for
)


@attrs.frozen
class ChangeCalls(Calls):
    """Changing jobs, and pulling some."""

    def advance(
        self,
        guard: Guard,
        source: str,
        edges: Sequence[Edge],
        *,
        pending_s: float,
        targets: Sequence[Target] = (),
        claim: str = "",
        reap_s: float = 1.0,
        says: str = "",
        expects: str = "0",
    ) -> ScriptCall:
        """Change jobs; the number of unassigned keys, then one status per edge."""
        n = self.names
        keys = [n.lane, n.keepalive, n.cleanup, n.open, n.jobs, n.pending, n.due, n.payloads]
        keys += (n.checkpoints, n.parked, n.letters, n.journal, n.owned(source), n.stream(source))
        keys += (n.trials, n.kept)
        args: list[Word] = [self.incarnation, guard, source, claim, as_ms(pending_s), as_ms(reap_s)]
        args += (as_ms(self.parked_s), says, expects)
        self._add_targets(keys, args, targets)
        for edge in edges:
            match edge.letter:
                case lifecycle.DONE:
                    assert edge.ttl_ms > 0  # the server refuses any other, in the middle of a batch
                    keys += (n.result(edge.id), n.inbox(edge.key))
                case lifecycle.SEEN:
                    keys.append(n.inbox(edge.key))
                case lifecycle.CANCEL | lifecycle.PARK | lifecycle.WAIT | lifecycle.GRANT:
                    assert edge.ttl_ms > 0
                    keys += (n.result(edge.id), n.inbox(edge.key), n.unassigned(edge.handler))
            args += (edge.letter, edge.key, edge.epoch, edge.id, edge.ttl_ms)
            args += (edge.x, edge.y, edge.z)
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
        args: list[Word] = [self.incarnation, as_ms(pending_s), keys_max, ahead, says]
        return PULL(keys, [*args, 1, worker.id, worker.number])
