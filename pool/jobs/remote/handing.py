r"""From starts that a worker was granted to jobs that its client is handed.

    granted --fetched, decoded--> acknowledged, with its limit --> handed out
       |          \--not for this client: left to others, or parked
       +--too much: given back          +--a stop was asked for: ended; too late: the sweeper's

It is acknowledged before it is handed out, so what nobody heard of has not begun and what was taken
back never begins.  The gateway dies before the acknowledgement: it is granted still, and the next
poll hands it out.  Dies after it, or its answer is lost: the worker runs it by the record and the
next poll does not name it, so it is handed out again, under the same epoch and attempt.

Two polls at once: both may acknowledge it, and hand out the same claim.  Of what is acknowledged
neither gives anything back: that takes its client's word, its time limit, or its lease's end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import attrs

from pool.core.codec import decode_call, decode_value, head_of
from pool.core.options import Options
from pool.core.record import Record, Start
from pool.core.settlement import Decision, Grant, ParkJob, Wait
from pool.core.stored import saves_of, state_of
from pool.errors import CodecMissing, Gone, PayloadEncodingError, sentence
from pool.jobs.context import Context
from pool.jobs.remote.claims import HandedOut, JobClaim, WorkerClaim
from pool.jobs.remote.ending import BATCH_MAX, UNBEGUN, Endings
from pool.jobs.settlement import TellWaiters, edge_of, left_to_others
from pool.names import pair
from pool.redis.commands.change import Changed, EdgeStatus
from pool.redis.commands.edges import AcknowledgeEdge, CancelEdge, Edge, LimitEdge

REPLY_BYTES_MAX: Final = 4 * 1024 * 1024  # of arguments and states in one answer; one may be larger


@attrs.define(eq=False)
class Room:
    """What is left of one answer, for all lanes together."""

    left_bytes: int = REPLY_BYTES_MAX
    is_used: bool = False

    def has(self, size_bytes: int) -> bool:
        """Say whether one more goes in; the first one always does."""
        self.left_bytes -= size_bytes
        return not self.is_full

    @property
    def is_full(self) -> bool:
        """Whether nothing more goes in."""
        return self.is_used and self.left_bytes < 0


@attrs.define(eq=False)
class _Body:
    """What is fetched of a job."""

    payload: bytes | None
    checkpoint: bytes = b""

    @property
    def size(self) -> int:
        return len(self.payload or b"") + len(self.checkpoint)


@attrs.define(eq=False)
class Handing:
    """Hands jobs out for one gateway."""

    context: Context
    endings: Endings
    tell_waiters: TellWaiters

    async def hand_out(
        self, claim: WorkerClaim, lane: int, starts: Sequence[Start], room: Room
    ) -> list[HandedOut]:
        """Acknowledge starts, and return those that may begin.

        What has no room in the answer stays granted.

        Raises:
            StoreUnavailable, StoreLost, StoreFault: Some may be acknowledged.
        """
        edges, ready = list[tuple[Start, Edge]](), dict[str, HandedOut]()
        for start in starts:
            state = self.context.lanes[lane]
            state.see(start.epoch)
            if room.is_full:
                break
            body = await self._body(lane, start.key, start.flags, start.payload)
            if not room.has(body.size):
                break
            is_old = state.is_of_older_data(start.epoch)
            made = Grant() if is_old else self._made(claim, lane, start, body)
            if isinstance(made, HandedOut):
                ready[start.key], room.is_used = made, True
                edges += [(start, edge) for edge in self._beginning(claim, start)]
            else:
                # Another poll may have handed it out by then: it leaves that alone.
                made = attrs.evolve(made, mark=made.mark + UNBEGUN)
                edges.append((start, self._instead(claim, start, made)))
        return await self._acknowledge(claim, lane, edges, ready)

    async def again(
        self, claim: WorkerClaim, lane: int, records: Sequence[tuple[str, Record]], room: Room
    ) -> list[HandedOut]:
        """Return jobs that the worker runs by their records, and of which its client says nothing.

        Raises:
            StoreUnavailable, StoreLost, StoreFault: Why not.
        """
        found = list[HandedOut]()
        for key, record in records:
            if room.is_full:
                break
            body = await self._body(lane, key, f"p{record.flags}", None)
            if not room.has(body.size):
                break
            start = start_of(key, record)
            made = self._made(claim, lane, start, body)
            if isinstance(made, HandedOut):
                found.append(made)
                room.is_used = True
            else:
                edge = self._instead(claim, start, made)
                await self.endings.end(claim, lane, [(claim_of(claim, lane, start), edge)])
        return found

    # --- what it needs ------------------------------------------------------------------------

    async def _body(self, lane: int, key: str, flags: str, payload: bytes | None) -> _Body:
        has_payload, has_state = "p" in flags, "b" in flags
        if not (has_payload or has_state):
            return _Body(payload or b"")
        names = self.context.lanes[lane].lane.names
        places = [names.payloads] if has_payload else []
        places += [names.checkpoints] if has_state else []
        async with self.context.pipeline.at(names.prefix).reads.turn() as turn:
            found = await self.context.pipeline.execute_all(("HGET", at, key) for at in places)
            turn.size = sum(len(each) for each in found if isinstance(each, bytes))
        checkpoint = found[-1] or b"" if has_state else b""
        return _Body(found[0] if has_payload else payload or b"", checkpoint)

    def _made(
        self, claim: WorkerClaim, lane: int, start: Start, body: _Body
    ) -> HandedOut | Grant | Wait | ParkJob:
        """Decode what its client needs; what cannot be handed out is another's, or is parked."""
        options = claim.handlers.get(start.handler)
        if options is None or body.payload is None:
            return Grant()  # where its payload is gone, that parks it
        try:
            name, version, _ = head_of(body.payload)
            if name or version > 1:
                problem = f"a worker over HTTP reads JSON of version 1, not {name or 'json'!r} "
                problem += f"of version {version}"
                raise CodecMissing(path="$", problem=problem, codec=name or "json")
            args, kwargs = decode_call(body.payload)
            saved = state_of(body.checkpoint)
            state: Any = decode_value(saved) if saved else None
        except CodecMissing as error:
            return left_to_others(self.context, lane, start, claim.id, options, sentence(error))
        except PayloadEncodingError as error:
            return ParkJob("malformed payload", str(error))
        return HandedOut(
            job=claim_of(claim, lane, start),
            args=args,
            kwargs=kwargs,
            state=state,
            saves=saves_of(body.checkpoint, start.epoch),
            is_recovered="r" in start.flags,
            timeout_s=options.timeout_s,
        )

    # --- the batch ----------------------------------------------------------------------------

    def _beginning(self, claim: WorkerClaim, start: Start) -> list[Edge]:
        of = (start.key, start.epoch, start.id)
        edges: list[Edge] = [AcknowledgeEdge(*of)]
        limit_s = claim.handlers[start.handler].limit_s
        if limit_s is not None:
            # Whoever sweeps ends it then: its client had as long to end by itself.
            in_ms = round(1000 * (limit_s + self.context.timing.stop_budget_s))
            edges.append(LimitEdge(*of, in_ms=in_ms))
        return edges

    def _instead(self, claim: WorkerClaim, start: Start, decision: Decision) -> Edge:
        options = claim.handlers.get(start.handler, Options())
        return edge_of(start.key, start, decision, self.context.settings, options=options)

    async def _acknowledge(
        self,
        claim: WorkerClaim,
        lane: int,
        edges: Sequence[tuple[Start, Edge]],
        ready: dict[str, HandedOut],
    ) -> list[HandedOut]:
        told, found = list[Changed](), list[HandedOut]()
        try:
            for at in range(0, len(edges), BATCH_MAX):
                some = [edge for _, edge in edges[at : at + BATCH_MAX]]
                told += await self.endings.advance(claim, lane, some)
        except Gone:
            return []  # the next renewal says so
        for (start, edge), changed in zip(edges, told, strict=True):
            if start.key not in ready:
                self.endings.over(claim, claim_of(claim, lane, start), edge, changed)
            if not isinstance(edge, AcknowledgeEdge):
                continue
            if changed.status is EdgeStatus.STOPPED:
                await self._stopped(claim, lane, start, changed.facts)
            elif changed.status is EdgeStatus.DONE:
                _, waiters = changed.of_start
                if waiters:
                    of = pair(start.key, start.id)
                    self.tell_waiters(lane, waiters, "started", of, b"")
                self.endings.telling.started(claim, lane, start)
                found.append(ready[start.key])
        return found

    async def _stopped(self, claim: WorkerClaim, lane: int, start: Start, cause: str) -> None:
        """End what somebody asked to stop before it began."""
        ttl_ms = self._instead(claim, start, Grant()).ttl_ms
        edge = CancelEdge(start.key, start.epoch, start.id, ttl_ms, start.handler, cause)
        await self.endings.end(claim, lane, [(claim_of(claim, lane, start), edge)])


def claim_of(claim: WorkerClaim, lane: int, start: Start) -> JobClaim:
    """Return what a job's client shows to say that it has it."""
    options = claim.handlers.get(start.handler)
    kind = options.kind if options is not None else start.kind
    of = (start.key, start.id, start.handler, kind, start.epoch, start.attempt)
    return JobClaim(claim.id, lane, *of)


def start_of(key: str, record: Record) -> Start:
    """Return what was granted, of a job that runs."""
    return Start(
        key,
        record.id,
        record.handler,
        record.kind,
        record.epoch,
        record.attempt,
        record.flags,
        record.marks,
        record.accepted,
        None,
        record.more,
    )
