"""A worker's way out of one lane: how handlers ended, as edges sent in batches.

    send() --------> edges --\
    acknowledge() --> acks ---+-- some are due, no batch under way --> advance.lua --> Answered

An edge is due at once, or when all have ended that end in the same turn of the loop; an
acknowledgement 5 ms after its start: who ends before has no need of one.
But where nothing was under way, and none was sent for so long, all are due as soon as the loop has
turned, and with it their handlers, which may have ended by then.  What waits while a batch is under
way forms the next one, so batches grow with the load.  A batch
whose answer was lost is sent again: the same writer's repeat is answered with what became of it.
While fenced nothing is sent; what waits goes out when a renewal has succeeded, or is dropped with
the identity.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final, Literal, TypeAlias

import attrs

from pool.core.codec import check_size, encode_value
from pool.core.options import Options
from pool.core.record import ERROR_CHARS_MAX, Outcome, one_line, pack_attempt
from pool.core.retry import refused_delay
from pool.core.settlement import (
    TOO_LONG,
    CancelJob,
    Decision,
    Grant,
    ParkJob,
    Wait,
    after_failure,
    after_timeout,
)
from pool.errors import PayloadEncodingError, PayloadTooLarge, PoolError, StoreUnavailable
from pool.events import AttemptFailed
from pool.jobs.context import Context, Ranks
from pool.jobs.raised import Raised, read
from pool.jobs.run import Ending, LeftToOthers, Returned, Run, Unreadable
from pool.jobs.settlement import edge_of, left_to_others, outcome_ttl_ms
from pool.redis import pipeline
from pool.redis.commands.admission import ranking
from pool.redis.commands.calls import Target
from pool.redis.commands.edges import (
    EDGES,
    WORK_MAX,
    AcknowledgeEdge,
    Advanced,
    CancelEdge,
    Changed,
    DoneEdge,
    Edge,
    GrantEdge,
    SaveEdge,
    SeenEdge,
)
from pool.redis.io.system import Reply


@attrs.frozen
class Settlement:
    """Decides for one node; the edges it makes still lack the targets of a grant."""

    context: Context
    _ttl_ms: int = attrs.field(init=False)
    _brief_ms: int = attrs.field(init=False)

    @_ttl_ms.default
    def _(self) -> int:
        return outcome_ttl_ms(self.context.settings)

    @_brief_ms.default
    def _(self) -> int:
        return round(self.context.settings.known_s * 1000)

    def edge_for(self, run: Run, ending: Ending) -> Edge:
        """Return what shall become of the job of a run that has ended while it was ours."""
        if run.why == "timeout":
            return self.timed_out(run)
        try:
            # A result counts although we wanted the handler to end; a service that returns because
            # it was cancelled is not done.
            if type(ending) is Returned and (not run.why or run.start.kind == "job"):
                return self._done(run, ending.value)
            decision = self._judged(run, ending)
        except KeyboardInterrupt as error:  # Ctrl-C, for all that can be seen, as out of a handler
            self.context.on_interrupt(error)
            decision = self._interrupted(run)
        except BaseException as error:  # noqa: BLE001 - what it returns is user code
            raised = read(error)
            decision = self._failed(run, "failed", raised.text, traceback=raised.traceback)
        return self._edge_of(run, decision)

    def timed_out(self, run: Run) -> Edge:
        """Return the end of an attempt that ran too long."""
        options = run.handler._options if run.handler is not None else Options()
        limit = run.limit_of(options)
        decision = after_timeout(run.start.attempt, options, self.context.io.dice, limit)
        self._tell_failed(run, TOO_LONG[limit], decision)
        return self._edge_of(run, decision)

    def _edge_of(self, run: Run, decision: Decision) -> Edge:
        start, settings, handler = run.start, self.context.settings, run.handler
        options = handler._options if handler is not None else None
        return edge_of(
            start.key, start, decision, settings, has_begun=run.is_called, options=options
        )

    def _done(self, run: Run, value: Any) -> Edge:
        start, handler, job = run.start, run.handler, run.job
        assert handler is not None  # it has returned
        assert job is not None
        try:
            of = handler._result
            encoded = encode_value(value) if of is None else of.encode(value)
            check_size("result", encoded, self.context.settings.result_bytes_max)
        except (PayloadEncodingError, PayloadTooLarge) as error:
            failed = pack_attempt(type(error).__name__, str(error))
            return self._edge_of(run, ParkJob("unusable result", str(error), failed))
        # Of None, that it has ended is all there is to tell.
        ttl_ms = self._brief_ms if value is None else self._ttl_ms
        if handler._options.retention_s is not None:
            ttl_ms = outcome_ttl_ms(self.context.settings, handler._options)
        of_run = (run.key, start.epoch, start.id, ttl_ms, start.handler)
        return DoneEdge(*of_run, encoded, job._packed)

    def _judged(self, run: Run, ending: Ending) -> Decision:
        match ending:
            case Raised(order="retry", cause=cause, after_s=after_s):
                return self._failed(run, "retry", cause or "Retry", after_s=after_s)
            case Raised(order="cancel", cause=cause):
                return CancelJob(cause)
            case Raised(order="park", cause=cause):
                failed = pack_attempt("Park", cause)
                return ParkJob(cause or "parked by its handler", "", failed)
            case Unreadable(problem, cause):
                return ParkJob(cause, problem)
            case LeftToOthers(problem):
                return self._left(run, problem)
            case Raised(interrupt=KeyboardInterrupt()) if run.why in ("", "lease"):
                return self._interrupted(run)
            case Raised(text, traceback=traceback) if run.why in ("", "lease"):
                return self._failed(run, "failed", text, traceback=traceback)
        return self._released(run)

    def _interrupted(self, run: Run) -> Decision:
        """Give back a job in whose code Ctrl-C came: that is no failure of its own.

        It takes a mark along, as from a signal: a job that raises it each time would else end one
        node after another.
        """
        run.is_marked = True
        return self._released(run)

    def _released(self, run: Run) -> Decision:
        start = run.start
        if run.why == "stop":
            return CancelJob(run.cause)
        # Released: it goes elsewhere, and its attempt is not burned.
        checkpoint = run.job._checkpoint() if run.job is not None else None
        mark = "f" if run.is_called else ""
        if run.keeper is not None and run.keeper.is_saving(checkpoint):
            checkpoint = None  # if that is refused, its messages and the state of before stay
        if run.is_marked and run.job is not None:
            marks = attrs.evolve(start.marks, ends=start.marks.ends + 1)
            if marks.ends > self.context.settings.crashes_max:
                times = f"its process was told to end while it was at work, {marks.ends} times"
                return ParkJob("poison", times)
            mark += f"a={marks.pack()}"
        return Grant(mark, checkpoint)

    def _failed(
        self,
        run: Run,
        kind: Literal["failed", "retry"],
        error: str,
        *,
        after_s: float | None = None,
        traceback: str = "",
    ) -> Decision:
        start, io = run.start, self.context.io
        options = run.handler._options if run.handler is not None else Options()
        attempt = start.attempt
        ran_s = io.clock() - run.began_s if run.began_s else 0.0
        if options.kind == "service" and ran_s >= options.healthy_s:
            attempt = 1  # it was well for long enough: this failure is a first one
        decision = after_failure(attempt, options, io.dice, cause="failed", error=error)
        what, _, message = error.partition(": ") if kind == "failed" else (kind, "", error)
        decision = attrs.evolve(decision, failed=pack_attempt(what, message, traceback))
        if isinstance(decision, Wait) and after_s is not None:
            decision = attrs.evolve(decision, delay_s=after_s)
        self._tell_failed(run, error, decision, traceback)
        return decision

    def _left(self, run: Run, problem: str) -> Decision:
        """Leave a job to those who know it: it waits as the attempt that it is, however long."""
        options = run.handler._options if run.handler is not None else Options()
        worker = run.job.worker.rpartition(".")[0] if run.job is not None else ""
        decision = left_to_others(self.context, run.lane, run.start, worker, options, problem)
        self._tell_failed(run, problem, decision)
        return decision

    def _tell_failed(self, run: Run, error: str, decision: Decision, traceback: str = "") -> None:
        start, follows = run.start, "parked"
        if isinstance(decision, Wait):
            follows = f"attempt {decision.attempt} in {decision.delay_s:.3f} s"
        self.context.emit(
            AttemptFailed(
                key=start.key,
                handler=start.handler,
                attempt=start.attempt,
                error=one_line(error, ERROR_CHARS_MAX),
                follows=follows,
                traceback=traceback,
            )
        )


def outcome_text(edge: Edge, owner: str, attempt: int) -> bytes | None:
    """Return the outcome that an edge made, but for the times; None if it made none.

    Nor is there one for what is parked: of former attempts only the store knows.
    """
    run = edge.epoch, owner, attempt
    match edge:
        case DoneEdge():
            return Outcome.pack("done", *run, body=edge.result)
        case CancelEdge():
            return Outcome.pack("cancelled", *run, cause=edge.cause)
    return None


BATCH_MAX: Final = WORK_MAX // AcknowledgeEdge.work  # edges in one call, if none is more work
BATCH_BYTES_MAX: Final = pipeline.BATCH_BYTES_MAX  # of results and states in one call
ACK_DELAY_S: Final = 0.005  # from a start to its acknowledgement
MEMORY_MAX: Final = 10_000  # settlements remembered, for reconciliation
MEMORY_BYTES_MAX: Final = 16 * 1024 * 1024

SentEdge: TypeAlias = tuple[Edge, Run | None]


@attrs.frozen(eq=False)
class Answered:
    """A batch was answered, or could not be sent."""

    box: Outbox
    batch: Sequence[SentEdge]
    reply: Reply


@attrs.frozen(eq=False)
class FlushDue:
    """A pause is over: the one after a failed batch, or that of acknowledgements."""

    box: Outbox
    after_failure: bool = False
    acks_until_s: float = 0.0  # which of them are due, at least


@attrs.define(eq=False)
class Outbox:
    """What is on its way out for one identity.  Belongs to its worker's task."""

    context: Context
    lane: int
    target: Target
    put: Callable[[Answered | FlushDue], object]
    deliver: Callable[[Answered | FlushDue], object]  # likewise, from a callback of the loop
    says: Callable[[], str]  # how many keys its worker takes here, if that is news
    asks: Callable[[], Iterable[str]]  # its worker's handlers
    is_fenced: bool = False  # nothing may be sent until a renewal succeeds
    is_flying: bool = False
    is_held: bool = False  # nothing is under way, and nothing shall be
    answered_s: float = 0.0  # when Redis last heard from us what we do
    _acks: OrderedDict[Run, float] = attrs.field(factory=OrderedDict)  # by when they are due
    _edges: deque[SentEdge] = attrs.field(factory=deque)
    _seen: dict[str, SeenEdge] = attrs.field(factory=dict)  # of _edges those of messages, by key
    _saves: dict[str, SaveEdge] = attrs.field(factory=dict)  # likewise those of states
    _has_ack_timer: bool = False
    _refusals: int = 0  # in a row: batches that were answered with an error as a whole
    _acked_s: float = -math.inf  # when some were sent last
    _on_held: Callable[[], object] | None = None
    name: str = attrs.field(init=False)  # in the lane

    @name.default
    def _(self) -> str:
        return self.target.name

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits and nothing is under way."""
        return not (self.is_flying or self._acks or self._edges)

    @property
    def has_edges(self) -> bool:
        """Whether a settlement waits or is under way."""
        return self.is_flying or bool(self._edges)

    def send(self, edge: Edge, run: Run | None) -> None:
        """Send an edge; its status comes back with the run."""
        self.add(edge, run)
        self.flush()

    def add(self, edge: Edge, run: Run | None) -> None:
        """Likewise, at the next `flush()`."""
        self._edges.append((edge, run))

    def see(self, edge: SeenEdge) -> None:
        """Send that messages were handled; what waits of the same run goes with it."""
        waiting = self._seen.get(edge.key)
        if waiting is not None and waiting.epoch == edge.epoch:
            waiting.message = edge.message  # a handler has its messages in their order
            return
        self._seen[edge.key] = edge
        self.send(edge, None)

    def save(self, edge: SaveEdge, run: Run) -> None:
        """Send a state; what waits of the same run is not sent any more."""
        waiting = self._saves.get(edge.key)
        if waiting is not None and waiting.epoch == edge.epoch:
            waiting.state, waiting.message = edge.state, edge.message
            waiting.number = edge.number
            return
        self._saves[edge.key] = edge
        self.send(edge, run)

    def acknowledge(self, run: Run, began_s: float = 0.0) -> None:
        """Acknowledge a start now, or if possible later than it began: most end before that."""
        if not began_s:
            self._acks[run] = 0.0
            self._acks.move_to_end(run, last=False)
            self.flush()
            return
        due_s = began_s + ACK_DELAY_S
        if not self._has_ack_timer:
            is_idle = not (self._acks or self._edges or self.is_flying)
            if is_idle and self._acked_s < began_s - ACK_DELAY_S:
                due_s = 0.0
                self._wake(0.0, math.inf)
            else:
                self._wake(ACK_DELAY_S)
        self._acks[run] = due_s

    def _wake(self, in_s: float, acks_until_s: float = 0.0) -> None:
        self._has_ack_timer = True
        due = FlushDue(self, acks_until_s=acks_until_s)
        self.context.loop.later(in_s, partial(self.put, due))

    def withdraw(self, run: Run) -> None:
        """Do not acknowledge what is about to be settled, or is not ours."""
        self._acks.pop(run, None)

    def flush(self, acks_until_s: float = 0.0) -> None:
        """Send what is due, or would be until then, unless a batch is under way."""
        if self.is_flying or self.is_held:
            return
        if self._on_held is not None:
            on_held, self._on_held, self.is_held = self._on_held, None, True
            on_held()
            return
        if self.is_fenced or not (self._acks or self._edges):
            return
        batch, ranks = self._take(acks_until_s)
        if self._acks and not self._has_ack_timer:
            self._wake(ACK_DELAY_S)
        if not batch:
            return
        self.is_flying = True
        state = self.context.lanes[self.lane]
        call = state.lane.advance(
            "own",
            self.name,
            [edge for edge, _ in batch],
            pending_s=self.context.timing.pending_timeout_s,
            targets=ranks.targets,
            says=self.says(),
            expects=state.time.expects(self.context.io.clock()),
            asks=self.asks() if self.lane in self.context.barren else (),
        )
        try:
            self.context.pipeline.send(
                call, lambda reply: self.deliver(Answered(self, batch, reply))
            )
        except PoolError as error:
            self.put(Answered(self, batch, error))

    def hold(self, on_held: Callable[[], object]) -> None:
        """Call back once no batch is under way, and send none until `release()`.

        What Redis says we own can be compared with what we do only then: of a batch under way
        nobody knows which side has heard, and under load there always is one.
        """
        self._on_held = on_held
        self.flush()

    def release(self) -> None:
        """Go on."""
        self.is_held = False
        self.flush()

    def on_due(self, due: FlushDue) -> None:
        """Go on after a pause."""
        if due.after_failure:
            self.is_flying = False
        else:
            self._has_ack_timer = False
        self.flush(due.acks_until_s)

    def on_answer(self, answer: Answered) -> Iterable[tuple[SentEdge, Changed]]:
        """Take the answer to a batch; return what was sent and what was said of it, each.

        Nothing is returned when the batch failed: then it is sent again after a pause.
        """
        self.is_flying = False
        self.answered_s = self.context.io.clock()
        if isinstance(answer.reply, PoolError):
            is_away = isinstance(answer.reply, StoreUnavailable)
            self._refusals = 0 if is_away else self._refusals + 1
            self._take_back(answer.batch)
            return ()
        self._refusals = 0
        advanced: Advanced = answer.reply
        self.context.tell_unassigned(self.lane, advanced.unassigned)
        if not advanced.unassigned:
            self.context.barren.discard(self.lane)
        return zip(answer.batch, advanced.told, strict=True)

    def _take(self, acks_until_s: float) -> tuple[list[SentEdge], Ranks]:
        batch: list[SentEdge] = []
        ranks = Ranks()
        now_s = self.context.io.clock()
        until_s = max(now_s, acks_until_s)
        while self._acks and len(batch) < BATCH_MAX:
            run, due_s = next(iter(self._acks.items()))
            if due_s > until_s:
                break
            del self._acks[run]
            self._acked_s, start = now_s, run.start
            batch.append((AcknowledgeEdge(run.key, start.epoch, start.id, bits=run.bits), run))
        size_bytes, left = 0, WORK_MAX - len(batch) * AcknowledgeEdge.work
        while self._edges and self._edges[0][0].work <= left:
            size_bytes += self._edges[0][0].size_bytes
            if size_bytes > BATCH_BYTES_MAX and batch:
                break  # one alone may be larger
            edge, owner = self._edges.popleft()
            left -= edge.work
            if self._seen.get(edge.key) is edge:
                del self._seen[edge.key]
            elif self._saves and self._saves.get(edge.key) is edge:
                del self._saves[edge.key]
            if isinstance(edge, GrantEdge):
                edge.ranked = ranking(ranks.of(self._targets(edge, owner)))
            batch.append((edge, owner))
        return batch, ranks

    def _targets(self, edge: Edge, run: Run | None) -> tuple[Target, ...]:
        """Return whom a released key goes to; never back to the releaser."""
        mine = self.target.id
        found = self.context.targets(edge.key, edge.handler, lane=self.lane, but=mine)
        if run is not None and run.target:
            found = tuple(sorted(found, key=lambda target: target.id != run.target))
        return found

    def _take_back(self, batch: Sequence[SentEdge]) -> None:
        for edge, run in reversed(batch):
            if not isinstance(edge, AcknowledgeEdge):
                self._edges.appendleft((edge, run))
            elif run is not None and run.phase in ("running", "preparing"):
                self._acks[run] = 0.0
                self._acks.move_to_end(run, last=False)
        self.is_flying = True  # until the pause is over
        pause_s = refused_delay(self._refusals)
        self.context.loop.later(pause_s, partial(self.put, FlushDue(self, True)))


_FIELDS_OF: Final[dict[str, Callable[[Edge], tuple[Any, ...]]]] = {
    letter: attrgetter(*attrs.fields_dict(kind)) for letter, kind in EDGES.items()
}


@attrs.define(eq=False)
class Memory:
    """What a worker settled lately: a settlement that a server lost is sent again, never redone.

    A server that went back may hold any of a key's jobs, as it was before that job's end or before
    its start.  So the last end of each job is remembered, and not only of the key's latest one:

        run of the server           what stands
        the one that ended          its end
        an earlier one of the job   its end, if that was accepted: what came before it is over
        a later one of the job      the run: its id may have been given again
        another job's               nothing; a run below the key's latest is given up

    An end that was refused (FENCED) is sent again for its own run alone.
    """

    # An edge's letter, its fields, its size, whether it was accepted, and when it was kept: of
    # 10,000 tuples of plain words the collector looks at none, of 10,000 edges at each.  A plain
    # dict finds its oldest entry by walking over all that were deleted before it.
    _kept: OrderedDict[tuple[str, str], tuple[Any, ...]] = attrs.field(factory=OrderedDict)
    latest: dict[str, int] = attrs.field(factory=dict)  # key -> the highest epoch that ended here
    _bytes: int = 0

    def keep(self, edge: Edge, now_s: float, keep_s: float, *, is_accepted: bool = True) -> None:
        """Remember how a job of ours ended; what is older than `keep_s` is forgotten."""
        kept, key, epoch = self._kept, edge.key, edge.epoch
        if (key, edge.id) in kept:
            self._drop((key, edge.id))
        size_bytes, letter = edge.size_bytes, edge.letter
        what = (letter, *_FIELDS_OF[letter](edge), size_bytes, is_accepted, now_s)
        kept[key, edge.id] = what
        self._bytes += size_bytes
        if self.latest.get(key, 0) < epoch:
            self.latest[key] = epoch
        while kept:
            oldest = next(iter(kept))
            is_young = kept[oldest][-1] > now_s - keep_s
            if is_young and len(kept) <= MEMORY_MAX and self._bytes <= MEMORY_BYTES_MAX:
                return
            self._drop(oldest)

    def of(self, key: str, epoch: int, job_id: str) -> Edge | None:
        """Return how a run ended that the server takes for one that goes on."""
        kept = self._kept.get((key, job_id))
        if kept is None:
            return None
        edge = EDGES[kept[0]](*kept[1:-3])
        is_accepted = kept[-2]
        if edge.epoch != epoch:
            if not is_accepted or edge.epoch < epoch:
                return None
            edge.epoch = epoch
        return edge

    def clear(self, is_meant: Callable[[str], bool]) -> None:
        """Forget keys: they are another identity's now."""
        for at in [at for at in self._kept if is_meant(at[0])]:
            self._drop(at)

    def _drop(self, at: tuple[str, str]) -> None:
        kept = self._kept.pop(at)
        self._bytes -= kept[-3]
        if self.latest.get(at[0]) == kept[2]:
            del self.latest[at[0]]
