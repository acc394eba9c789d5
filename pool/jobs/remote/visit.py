r"""One request of a polling worker: its jobs compared, and starts handed out.

From starts that a worker was granted to jobs that its client is handed.

    granted --fetched, decoded--> acknowledged, with its limit --> handed out
       |          \--not for this client: left to others, or parked
       +--too much: given back          +--a stop was asked for: ended; too late: the sweeper's

It is acknowledged before it is handed out, so what nobody heard of has not begun and what was taken
back never begins.  The gateway dies before the acknowledgement: it is granted still, and the next
poll hands it out.  Dies after it, or its answer is lost: the worker runs it by the record and the
next poll does not name it, so it is handed out again, under the same epoch and attempt.

Two polls at once: both may acknowledge it, and hand out the same claim.  Of what is acknowledged
neither gives anything back: that takes its client's word, its time limit, or its lease's end.

One request of a polling worker: what its lanes say of it, compared with what its client says.

    per lane: renew.lua --> reconcile.lua --> the stream of its starts
              gone: all it held there is lost

    held, and the worker's by its record       goes on; told to end if somebody wants that
    held, and not the worker's                 lost, with the reason
    the worker's by its record, and not held   handed out again, whatever room there is: the
                                               answer with it was lost.  Timed out like any other
    granted, and not acknowledged              handed out, or given back

Lanes are islands: one that does not answer fails the request only if the worker holds jobs there,
for whose sake the client must not believe that they were renewed.  How far jobs are is written down
in each lane by itself, and counts from when the request came: no later than its renewal says, less
what was over before that was asked for.  So nobody is told that he had his time whose word came
before, though a lane or this gateway hung since; and nobody goes on who was told before he sent it.

What is not held is never given to others on that account alone: this request may be a late one, of
before the client heard of it.  So it is the client who gives it back, when it has heard.  A start
that was read here may be acknowledged, and handed out, by another request before this one goes on:
what is done with it on this one's account is done in the step that finds it still granted
(`UNBEGUN`), and refused otherwise.

Where a polling worker's services should be: told, and never more often than there is room.

    the fleet is as it was for `settle_delay_s` --> another worker is first and has room --> release

Its client is told at each request until it has released the service, which then goes to whoever is
first; see `jobs/worker/rebalance.py` for the same of a worker of ours.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import anyio
import attrs

from pool.core.codec import decode_call, decode_value, head_of
from pool.core.lease import Timing
from pool.core.options import Options
from pool.core.record import Outcome, Record, Start, pack_more, saves_of, state_of, without_more
from pool.core.settlement import Decision, Grant, ParkJob, Wait
from pool.errors import (
    CodecMissing,
    Gone,
    PayloadEncodingError,
    PoolError,
    StoreLost,
    StoreUnavailable,
    WorkerGone,
    again,
    sentence,
    was_cut,
)
from pool.jobs.context import Context
from pool.jobs.remote.claims import Beat, HandedOut, JobClaim, Lost, Message, ToStop, WorkerClaim
from pool.jobs.remote.ending import BATCH_MAX, UNBEGUN, Endings, KnownRun
from pool.jobs.remote.leases import LaneLease, Leases
from pool.jobs.repair import quarantine
from pool.jobs.settlement import TellWaiters, edge_of, left_to_others
from pool.jobs.trials import LIVED_S
from pool.names import pair
from pool.redis.commands.calls import Target
from pool.redis.commands.edges import (
    AcknowledgeEdge,
    CancelEdge,
    Changed,
    Edge,
    EdgeStatus,
    LimitEdge,
    NoteEdge,
    OverEdge,
    SeenEdge,
)
from pool.redis.commands.member import Opening
from pool.redis.commands.talk import NO_MESSAGE, InboxPage, number_in
from pool.redis.commands.upkeep import Owned

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


MESSAGE_BYTES_MAX: Final = 1024 * 1024  # of messages in one answer; one page may be larger


@attrs.define(eq=False, kw_only=True)
class Visit:
    """What is learned while one request is served."""

    context: Context
    leases: Leases
    endings: Endings
    claim: WorkerClaim
    beats: dict[str, Beat]  # by key: what the client says it holds
    arrived_s: float
    open_takes: Callable[[int], int]  # of a lane: by the poll that is open here; 0: none is
    only: int | None = None  # one lane alone
    takes: dict[int, int] = attrs.field(factory=dict)  # by lane, as was said last
    said: dict[int, LaneLease] = attrs.field(factory=dict)
    errors: dict[int, PoolError] = attrs.field(factory=dict)
    gone: set[int] = attrs.field(factory=set)
    lacking: set[int] = attrs.field(factory=set)  # lanes that answer, and that it has not joined
    running: dict[str, Record] = attrs.field(factory=dict)  # of what is held
    forgotten: dict[int, list[tuple[str, Record]]] = attrs.field(
        factory=lambda: defaultdict(list)
    )  # the worker's, and not held
    starts: dict[int, dict[str, Start]] = attrs.field(factory=lambda: defaultdict(dict))
    stop: list[ToStop] = attrs.field(factory=list)
    lost: dict[str, Lost] = attrs.field(factory=dict)  # by key
    former: list[Lost] = attrs.field(factory=list)  # of keys that it holds under a later claim
    messages: list[Message] = attrs.field(factory=list)

    @property
    def lanes(self) -> list[int]:
        """Those that the worker is in."""
        return [
            lane
            for lane, has in enumerate(self.claim.lanes)
            if has and lane not in self.gone and self.only in (None, lane)
        ]

    def held(self, lane: int) -> list[Beat]:
        """Return what the client says it holds in a lane, and is not lost."""
        return [
            beat
            for key, beat in self.beats.items()
            if beat.job.lane == lane and key not in self.lost
        ]

    @property
    def count(self) -> int:
        """How many jobs were found to be handed out."""
        return self.started + sum(map(len, self.forgotten.values()))

    @property
    def started(self) -> int:
        """How many were granted, and have not begun."""
        return sum(map(len, self.starts.values()))

    @property
    def registers_again(self) -> bool:
        """Whether its client has to; it is handed nothing, as it will be another worker."""
        return bool(self.gone or self.lacking)

    def has_news(self, told: set[object]) -> bool:
        """Say whether there is something that was not told yet, and note what is.

        A client that does not heed what it is told is told it again, and waits in between.
        """
        news: set[object] = {lost.job for lost in (*self.former, *self.lost.values())}
        news |= {*self.gone, *self.lacking, *self.stop}
        news |= {(message.job, message.id) for message in self.messages}
        news |= {
            claim_of(self.claim, lane, start_of(key, record))
            for lane, found in self.forgotten.items()
            for key, record in found
        }
        is_new = not news <= told
        told.intersection_update(news)
        told.update(news)
        return is_new

    def expires_in_s(self) -> float:
        """Return for how long nobody else can have what it holds, from when the request came."""
        mine = [lane for lane in self.said if self.held(lane)] or list(self.said)
        ends = [
            said.asked_s + said.ttl_s - Timing(said.ttl_s).margin_s
            for said in (self.said[lane] for lane in mine)
        ]
        return max(0.0, min(ends) - self.arrived_s) if ends else 0.0

    # --- renewing -----------------------------------------------------------------------------

    async def renew(self, wants: int) -> None:
        """Renew in all lanes; the worker takes so many more than it holds.

        What it does not say that it holds is looked for; how far jobs are is written down.

        Raises:
            WorkerGone: It is fenced in all lanes, or nowhere known.
            StoreUnavailable, StoreLost, StoreFault: See above.
        """
        async with anyio.create_task_group() as tasks:
            for lane in self.lanes:
                tasks.start_soon(self._renew_in, lane, wants)
        if not self.lanes:
            raise WorkerGone(worker=self.claim.id)
        failed = [lane for lane in self.errors if self.held(lane)]
        if failed or len(self.errors) >= len(self.lanes):
            raise again(self.errors[(failed or list(self.errors))[0]])

    async def _renew_in(self, lane: int, wants: int) -> None:
        mine = self.held(lane)
        # Before it is said: whoever is cancelled meanwhile has said it, maybe.
        self.takes[lane] = takes = len(mine) + wants if wants else self.open_takes(lane)
        self.errors.pop(lane, None)
        try:
            said = await self.leases.say(lane, self.claim.name, takes)
            if said.is_gone:
                self.lose(lane, "expired")
                return
            self.said[lane] = said
            if mine or said.keys:
                await self._compare(lane, mine, finds_all=True)
            await self._note(lane)
            await self.read_starts(lane)
        except Gone:
            self.lose(lane, "expired")
        except StoreLost:
            self.lose(lane, "lost")
        except PoolError as error:
            self.errors[lane] = error

    def lose(self, lane: int, reason: str) -> None:
        """Note that the worker has no lease in a lane, and nothing it held there."""
        for beat in self.held(lane):
            self.lost[beat.job.key] = Lost(beat.job, reason)
        self.gone.add(lane)
        self.takes.pop(lane, None)
        self.said.pop(lane, None)
        self.starts.pop(lane, None)
        self.forgotten.pop(lane, None)

    async def read_starts(self, lane: int) -> None:
        """Read what the worker was granted and has not acknowledged.

        Raises:
            StoreUnavailable, StoreFault: Why not.
        """
        stream = self.context.lanes[lane].lane.names.stream(self.claim.name)
        # Never more than it takes, by far: what is left the next poll reads.
        entries = await self.context.pipeline.execute(
            "XRANGE", stream, "-", "+", "COUNT", max(1, self.claim.capacity), repeatable=True
        )
        for entry_id, flat in entries:
            fields = {
                n.decode(errors="replace"): v for n, v in zip(flat[::2], flat[1::2], strict=True)
            }
            start = Start.parse(entry_id, fields)
            if start is not None and start.key not in self.running:
                self.starts[lane][start.key] = start

    # --- comparing ----------------------------------------------------------------------------

    async def compare(self, busy: Collection[int] = ()) -> None:
        """Compare what is held once more; in these lanes it has jobs that were not looked for.

        Raises:
            StoreUnavailable, StoreFault: Why not.
        """
        for lane in list(self.said):
            mine, finds_all = self.held(lane), lane in busy or bool(self.forgotten[lane])
            if mine or finds_all:
                try:
                    await self._compare(lane, mine, finds_all=finds_all)
                except StoreLost:
                    self.lose(lane, "lost")

    async def _compare(self, lane: int, mine: Sequence[Beat], *, finds_all: bool) -> None:
        state, size = self.context.lanes[lane], self.context.io.pages.compared
        items = [(beat.job.key.encode(), "") for beat in mine]
        running, listed = dict[str, Record](), list[bytes]()
        at = "0" if finds_all else ""
        while True:
            some, items = items[:size], items[size:]
            call = state.lane.reconcile(self.claim.name, some, at=at, after="")
            theirs: Owned = await self.context.pipeline.call(call, repeatable=True)
            at = theirs.at
            listed += theirs.names
            running |= theirs.running
            running |= {key: record for key, _, record in theirs.strays}
            for start in theirs.starts:  # acknowledged before, which the server has lost
                self.starts[lane][start.key] = start
            for key, text in theirs.unreadable.items():
                await quarantine(self.context, state, key, text, self.claim.name)
            if not (at or items):
                break
        await self._sort(lane, mine, running)
        held = {beat.job.key for beat in mine}
        names = {key.decode(errors="surrogateescape") for key in listed} - held
        self.forgotten.pop(lane, None)
        if names:
            found = await self.endings.records(self.claim, lane, sorted(names))
            self.forgotten[lane] = list(found.items())

    async def _sort(self, lane: int, mine: Sequence[Beat], running: dict[str, Record]) -> None:
        for beat in mine:
            job, record = beat.job, running.get(beat.job.key)
            if record is not None and (record.epoch, record.id) == (job.epoch, job.id):
                self.running[job.key] = record
                continue
            start = self.starts[lane].get(job.key)
            if start is not None and (start.epoch, start.id) == (job.epoch, job.id):
                # It is at work on it: whoever comes for what is not acknowledged shall not.
                del self.starts[lane][job.key]
                edge = AcknowledgeEdge(job.key, job.epoch, job.id, has_begun=True)
                told = await self.endings.advance(self.claim, lane, [edge])
                if told[0].status is EdgeStatus.DONE:
                    continue
            self.running.pop(job.key, None)
            self.lost[job.key] = Lost(job, await self._why(job))
        for start in list(self.starts[lane].values()):
            if start.key in self.running:
                del self.starts[lane][start.key]

    async def _why(self, job: JobClaim) -> str:
        found = await self.endings.look(job)
        match found:
            case Outcome(word=word):
                return f"ended: {word}"
            case Record(owner=owner) if owner:
                return "moved"
            case Record():
                return "requeued"
        return "ended"

    # --- what there is to say of what it holds --------------------------------------------------

    def now_ms(self, lane: int) -> float:
        """Return what pool time is, at least."""
        said = self.said[lane]
        return said.now_ms + 1000 * (self.context.io.clock() - said.heard_s)

    def came_ms(self, lane: int) -> float:
        """Return what pool time was, at most, when the request came."""
        said = self.said[lane]
        return said.now_ms - 1000 * (said.asked_s - self.arrived_s)

    async def _note(self, lane: int) -> None:
        """Write down how far jobs are.

        Raises:
            Gone, StoreUnavailable, StoreLost, StoreFault: Some of it may be done.
        """
        edges = [edge for beat in self.held(lane) for edge in self._notes(lane, beat)]
        while edges:
            some, edges = edges[:BATCH_MAX], edges[BATCH_MAX:]
            told = await self.endings.advance(self.claim, lane, some)
            edges += [
                edge
                for edge, changed in zip(some, told, strict=True)
                if changed.status is EdgeStatus.MORE  # messages than one call takes out
            ]

    def _notes(self, lane: int, beat: Beat) -> list[Edge]:
        job, record = beat.job, self.running.get(beat.job.key)
        if record is None:
            return []
        of, found = (job.key, job.epoch, job.id), list[Edge]()
        now_ms, run = self.now_ms(lane), KnownRun(record, self.came_ms(lane))
        ran_s = (now_ms - record.since_ms) / 1000
        # What has had its time is to end, whatever it tells from then on: progress or not.
        if beat.progress is not None and not run.has_had_its_time(self.claim, job):
            progress = beat.progress.pack()
            found.append(NoteEdge(*of, progress=progress))
            told = pack_more(progress=f"{int(now_ms)}/{progress}")
            more = f"{told},{without_more(record.more, 'progress')}"
            self.running[job.key] = attrs.evolve(record, more=more)  # it counts from here on
            options = self.claim.handlers.get(job.handler)
            if options is not None and options.progress_timeout_s is not None:
                left_s = min(
                    options.progress_timeout_s,
                    (options.timeout_s or options.progress_timeout_s + ran_s) - ran_s,
                )
                in_ms = max(1, round(1000 * (left_s + self.context.timing.stop_budget_s)))
                found.append(LimitEdge(*of, in_ms=in_ms))
        if beat.seen:
            found.append(SeenEdge(*of, message=str(beat.seen)))
        if record.marks.deaths and LIVED_S <= ran_s < LIVED_S + 3 * self.context.timing.renew_s:
            found.append(OverEdge(*of))
        return found

    async def time_out(self) -> None:
        """End what the sweeper has found to be past its limit: its client had its time to end."""
        for lane in list(self.said):
            late = [
                (beat.job, self.running[beat.job.key])
                for beat in self.held(lane)
                if self._intent(beat.job.key).startswith("t")
            ]
            self.lost |= {job.key: Lost(job, "timed out") for job, _ in late}
            for key, record in self.forgotten[lane]:
                if record.intent.startswith("t"):
                    job = claim_of(self.claim, lane, start_of(key, record))
                    late.append((job, record))
            if late:
                keys, now_ms = {job.key for job, _ in late}, self.now_ms(lane)
                self.forgotten[lane] = [x for x in self.forgotten[lane] if x[0] not in keys]
                edges = [
                    (job, self.endings.timed_out(self.claim, job, KnownRun(record, now_ms)))
                    for job, record in late
                ]
                await self.endings.end(self.claim, lane, edges)

    def is_trying(self) -> bool:
        """Say whether it holds one that is suspected of a death, and has not lived for long."""
        return any(
            record.marks.deaths and self.now_ms(lane) - record.since_ms < 1000 * LIVED_S
            for lane in self.said
            for beat in self.held(lane)
            if (record := self.running.get(beat.job.key)) is not None
        )

    def _intent(self, key: str) -> str:
        record = self.running.get(key)
        return record.intent if record is not None else ""

    def tell(self, *, is_draining: bool, moves: Sequence[JobClaim]) -> None:
        """Say which jobs are to be ended, as far as is known by now."""
        self.stop.clear()
        for lane in self.said:
            for beat in self.held(lane):
                job, intent = beat.job, self._intent(beat.job.key)
                record = self.running.get(job.key)
                if intent.startswith("s"):
                    self.stop.append(ToStop(job, "stop", intent[1:]))
                elif KnownRun(record, self.now_ms(lane)).has_had_its_time(self.claim, job):
                    self.stop.append(ToStop(job, "timeout"))
                elif job in moves or (is_draining and job.kind == "service"):
                    self.stop.append(ToStop(job, "release"))

    def limit_in_s(self) -> float:
        """Return in how long the next of what it holds has had its time; infinity: none has."""
        lefts_ms = [
            left_ms
            for lane in self.said
            for beat in self.held(lane)
            if (record := self.running.get(beat.job.key)) is not None
            and (left_ms := KnownRun(record, self.now_ms(lane)).left_ms(self.claim, beat.job)) > 0
        ]
        return (1 + min(lefts_ms, default=math.inf)) / 1000  # when it is surely over

    async def read_messages(self) -> None:
        """Read what was said to jobs that the worker holds.

        Raises:
            StoreUnavailable, StoreFault: Why not.
        """
        left_bytes = MESSAGE_BYTES_MAX
        self.messages.clear()
        for lane in list(self.said):
            for beat in self.held(lane):
                record = self.running.get(beat.job.key)
                if record is None or "i" not in record.flags or left_bytes <= 0:
                    continue
                page = await self._read_inbox(lane, beat)
                for message, payload in page.messages:
                    left_bytes -= len(payload)
                    self.messages.append(Message(beat.job, number_in(message), _value(payload)))

    async def _read_inbox(self, lane: int, beat: Beat) -> InboxPage:
        """Read what was said to a job: a page, or one message where a page is too large for its
        server to deliver, or none.
        """
        inbox = partial(
            self.context.lanes[lane].lane.inbox, beat.job.key, str(beat.seen or NO_MESSAGE)
        )
        for call in (inbox(), inbox(is_alone=True)):
            try:
                page: InboxPage = await self.context.pipeline.call(call, repeatable=True)
            except StoreUnavailable as error:
                if not was_cut(error):
                    raise
                self.context.trouble("messages", lane, error)
            else:
                return page
        return InboxPage(has_more=False, messages=[])

    async def give_back(self) -> None:
        """Give back what was granted while no poll is open: others may have room.

        Raises:
            StoreUnavailable, StoreFault: Some of it may be done.
        """
        for lane in list(self.said):
            jobs = [claim_of(self.claim, lane, start) for start in self.starts[lane].values()]
            self.starts[lane].clear()
            items = [(job, self.endings.given_back(job)) for job in jobs]
            with suppress(Gone, StoreLost):  # the next renewal says so
                await self.endings.give_back(self.claim, lane, items)


def _value(payload: bytes) -> object:
    """Return a message's value; of what cannot be read its bytes, as they are."""
    try:
        return decode_value(payload)
    except PayloadEncodingError:
        return payload


@attrs.define(eq=False)
class Moving:
    """Decides for one gateway."""

    context: Context
    _candidates: object = None  # as it was seen last
    _since_s: float = 0.0

    async def of(self, visit: Visit) -> list[JobClaim]:
        """Return which services should go elsewhere."""
        services = [
            beat.job
            for lane in visit.said
            for beat in visit.held(lane)
            if beat.job.kind == "service"
        ]
        found = list[JobClaim]()
        if not services or not self._is_settled():
            return found
        own = self.context.candidates.workers.get(visit.claim.id)
        if own is None or own.is_draining:
            return found  # it is announced again; or it is cordoned, and keeps what it has
        for job in services:
            record = visit.running.get(job.key)
            if record is not None and not record.intent and await self._is_away(visit, job, record):
                found.append(job)
        return found

    def _is_settled(self) -> bool:
        """Whether the fleet has stayed as it is for long enough, as far as we have looked."""
        now_s, candidates = self.context.io.clock(), self.context.candidates
        if candidates is not self._candidates:
            self._candidates, self._since_s = candidates, now_s
        return now_s - self._since_s >= self.context.settings.settle_delay_s

    async def _is_away(self, visit: Visit, job: JobClaim, record: Record) -> bool:
        first = self.context.targets(job.key, job.handler, lane=job.lane, limit=1)
        if not first or first[0].id == visit.claim.id:
            return False
        if self.context.roster.asked.pause_of(job.key, job.handler) is not None:
            return False
        ran_s = (visit.now_ms(job.lane) - record.since_ms) / 1000
        if record.marks.deaths and ran_s < self.context.settings.crash_window_s:
            return False
        return await self._has_room(job.lane, first[0])

    async def _has_room(self, lane: int, target: Target) -> bool:
        names, pipeline = self.context.lanes[lane].lane.names, self.context.pipeline
        try:
            text, running, pending = await pipeline.execute_all(
                [
                    ("HGET", names.open, target.id),
                    ("SCARD", names.owned(target.name)),
                    ("XLEN", names.stream(target.name)),
                ]
            )
        except PoolError:
            return False
        told = Opening.parse(text or b"")
        takes = told.takes if told is not None and told.number == target.number else None
        return takes is not None and takes > running + pending
