"""Decisions about jobs as edges that `advance` takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias

import attrs

from pool.core.crash_marks import NO_DEATHS, Deaths
from pool.core.ids import number_or
from pool.core.options import Options
from pool.core.record import (
    CAUSE_CHARS_MAX,
    ERROR_CHARS_MAX,
    Lapse,
    Record,
    Start,
    lapsed,
    left_by,
    one_line,
    pack_attempt,
)
from pool.core.retry import full_jitter
from pool.core.settlement import (
    NO_DEAL,
    TOO_LONG,
    CancelJob,
    Deal,
    Death,
    Decision,
    Grant,
    Judgement,
    ParkJob,
    Wait,
    is_hold,
    recover,
)
from pool.errors import PoolError
from pool.events import AttemptFailed, JobEnd, JobSettled, MessagesDropped
from pool.jobs.context import Context, LaneState, Ranks
from pool.names import key_of, pair
from pool.redis.commands.admission import ranking
from pool.redis.commands.calls import Keeps, Target
from pool.redis.commands.edges import (
    Advanced,
    AdvanceGuard,
    CancelEdge,
    Changed,
    Edge,
    EdgeStatus,
    GrantEdge,
    ParkEdge,
    WaitEdge,
)
from pool.runtime.observers import JobListeners
from pool.settings import Settings

UNKNOWN_JOBS: Final = 1_000_000  # of a shard that nobody can ask: more evidence is needed
# Lane, who waits, what it hears, of which job (key and id), and the outcome if that is known.
_OVER: Final[dict[type, JobEnd]] = {CancelEdge: "cancelled", ParkEdge: "parked"}
TellWaiters: TypeAlias = Callable[[int, Sequence[str], str, str, bytes], object]


def keeps_of(settings: Settings) -> Keeps:
    """Return what lanes remember of jobs that are over."""
    return Keeps(
        brief_s=settings.known_s,
        results_bytes_max=settings.results_bytes_of_lane,
        parked_s=settings.parked_ttl_s,
        parked_max=settings.parked_of_lane,
    )


def outcome_ttl_ms(settings: Settings, options: Options | None = None) -> int:
    """Return how long an outcome is kept: a repeated call must be recognised in any case."""
    kept_s = options.retention_s if options is not None else None
    kept_s = settings.result_ttl_s if kept_s is None else kept_s
    return round(max(settings.known_s, kept_s) * 1000)


async def judgement_of(
    context: Context, state: LaneState, records: Sequence[Record | None]
) -> Judgement:
    """Return how jobs are judged whose owners died, by what the servers say now.

    The running jobs of all shards are counted only if one of these may be given up.

    Raises:
        PoolError: The server did not say.
    """
    settings, names, jobs, deaths = context.settings, state.lane.names, 0, NO_DEATHS
    # What waits for its time has no worker that died, and hardly ever marks.
    if any(each and (each.owner or each.marks.deaths) for each in records):
        found = await context.pipeline.execute("ZRANGE", names.deaths, 0, -1, "WITHSCORES")
        pairs = zip(found[::2], found[1::2], strict=True)
        deaths = Deaths.parse(pairs, context.timing.renew_s)
    if any(each and each.marks.deaths >= settings.crashes_max for each in records):
        jobs = sum([await _running(context, each) for each in context.lanes])
    return Judgement(
        crash_window_s=settings.crash_window_s,
        crashes_max=settings.crashes_max,
        hold_s=context.timing.ttl_s,
        deaths=deaths,
        jobs=jobs,
        silent_s=2 * context.timing.renew_s,
    )


async def _running(context: Context, state: LaneState) -> int:
    """Count the jobs of a shard that have a worker, or more; many, if the shard does not answer."""
    names = state.lane.names
    if not state.lease.is_good(context.io.clock()):
        return UNKNOWN_JOBS
    try:
        records = await context.pipeline.execute("HLEN", names.jobs)
        others = await context.pipeline.execute("HMGET", names.lane, "unassigned", "waiting")
    except PoolError:  # shards are islands: this one must not hold the others up
        return UNKNOWN_JOBS
    return max(0, int(records) - sum(number_or(0, each or b"") for each in others))


class Named(Protocol):
    """What says which run it is, and of which handler."""

    @property
    def id(self) -> str: ...
    @property
    def epoch(self) -> int: ...
    @property
    def handler(self) -> str: ...


def edge_of(
    key: str,
    run: Named,
    decision: Decision,
    settings: Settings,
    *,
    has_begun: bool = False,
    options: Options | None = None,
) -> Edge:
    """Return the edge that carries a decision about a run out; a grant still lacks its targets."""
    of = (key, run.epoch, run.id, outcome_ttl_ms(settings, options), run.handler)
    match decision:
        case ParkJob(cause, error, failed, mark):
            failed = failed or pack_attempt(cause, error)
            cause, error = one_line(cause, CAUSE_CHARS_MAX), one_line(error, ERROR_CHARS_MAX)
            return ParkEdge(*of, cause, error, has_begun, failed, mark)
        case Wait(delay_s, attempt, error, mark, failed):
            if not mark:  # with one it is delayed, and no attempt has failed
                failed = failed or pack_attempt("timed out", error)
            return WaitEdge(*of, round(delay_s * 1000), attempt, error, mark, failed)
        case CancelJob(cause):
            return CancelEdge(*of, one_line(cause, CAUSE_CHARS_MAX), has_begun)
        case Grant(mark, checkpoint):
            return GrantEdge(*of, mark=mark, checkpoint=checkpoint)


def tell_all(
    context: Context,
    tell_waiters: TellWaiters,
    lane: int,
    edges: Sequence[Edge],
    told: Sequence[Changed],
) -> int:
    """Tell those who wait for jobs that ended with these edges; they look up how.  What waits for
    its retry now we come for, too.

    Returns how many of the records could be read.
    """
    for edge, each in zip(edges, told, strict=True):
        if each.status is not EdgeStatus.DONE:
            continue
        if isinstance(edge, WaitEdge):
            context.on_due(lane, edge.delay_ms / 1000)
        if context.jobs is not None and type(edge) in _OVER:
            _tell_settled(context.pool, context.jobs, edge)
        if each.facts:
            if each.waiters:
                of = pair(key_of(edge.key), edge.id)
                tell_waiters(lane, each.waiters, "ended", of, b"")
            tell_next(context, lane, edge, each)
    return sum(each.status is not EdgeStatus.UNREADABLE for each in told)


def _tell_settled(pool: str, listeners: JobListeners, edge: Edge) -> None:
    """Tell of a job that ended where no worker has it: stopped or late before, or its worker died.

    Whose call changed it does so, and only he: to all others, and to a late copy, it is FENCED.
    """
    key = key_of(edge.key)
    share = listeners.share(key, edge.id)
    if share is not None:
        event = JobSettled(
            pool=pool,
            handler=edge.handler,
            key=key,
            job_id=edge.id,
            attempt=0,
            epoch=edge.epoch,
            worker="",
            outcome=_OVER[type(edge)],
            waited_s=0.0,
            ran_s=0.0,
            took_s=0.0,
        )
        listeners.tell(share, event)


def tell_next(context: Context, lane: int, edge: Edge, told: Changed) -> None:
    """Have the next job of a key looked after whose turn has come with this edge, if one has."""
    if told.unheard is None:
        return
    context.on_due(lane, 0.0)
    if told.unheard:
        context.emit(MessagesDropped(key=edge.key, job_id=edge.id, messages=told.unheard))


def left_to_others(
    context: Context, lane: int, start: Start, worker: str, options: Options, problem: str
) -> Wait:
    """Return what becomes of a job whose arguments this worker's program cannot read.

    It waits as the attempt that it is.  The store notes who has left it (mark `l`), and placement
    avoids all of these (`Context.targets`).  While anybody else may have it, it is tried again
    soon, and each time later; if nobody else is there, a program that knows it must come first.
    """
    left = (worker, *left_by(start.more))
    others = context.targets(start.key, start.handler, lane=lane, left=left)
    least_s = options.backoff_s if others else options.backoff_max_s
    delay_s = full_jitter(len(left), least_s, options.backoff_max_s, context.io.dice)
    error = one_line(problem, ERROR_CHARS_MAX)
    return Wait(delay_s, start.attempt, error, "l", pack_attempt("left", problem))


@attrs.define
class Recovery:
    """Some jobs of one lane that nobody works at: what becomes of each, carried out in one call."""

    context: Context
    state: LaneState
    judgement: Judgement
    _edges: list[Edge] = attrs.field(factory=list)
    _late: list[tuple[int, AttemptFailed]] = attrs.field(factory=list)  # of which edges, and what
    _ranks: Ranks = attrs.field(factory=Ranks)

    def add(
        self,
        key: str,
        record: Record,
        options: Options,
        targets: Callable[[str, Record, Grant], tuple[Target, ...]],
        *,
        death: Death | None = None,
        deal: Deal = NO_DEAL,
        rival: int = 0,
        may_hold: bool = True,
        now_ms: int = 0,
    ) -> bool:
        """Decide about a job; `targets` says who may have it, if it is granted at once.

        False if the job would be held, and may not: it stays as it is.
        """
        dice, judgement = self.context.io.dice, self.judgement
        decision = recover(
            record,
            options,
            dice,
            judgement=judgement,
            death=death,
            deal=deal,
            rival=rival,
            now_ms=now_ms,
        )
        if is_hold(decision) and not may_hold:
            return False
        edge = edge_of(key, record, decision, self.context.settings, options=options)
        # What was asked to stop ends for that, however late it is.
        if record.more and not record.intent and (late := lapsed(record, now_ms)):
            self._late.append((len(self._edges), _failure(key, record, decision, late)))
        if isinstance(decision, Grant) and isinstance(edge, GrantEdge):
            edge.ranked = ranking(self._ranks.of(targets(key, record, decision)))
        self._edges.append(edge)
        return True

    async def carry_out(
        self, guard: AdvanceGuard, source: str, tell_waiters: TellWaiters, *, claim: str = ""
    ) -> int:
        """Change them, and tell who waits; return how many of the records could be read."""
        if not self._edges:
            return 0
        timing = self.context.timing
        call = self.state.lane.advance(
            guard,
            source,
            self._edges,
            pending_s=timing.pending_timeout_s,
            targets=self._ranks.targets,
            claim=claim,
            reap_s=timing.reap_s,
            expects=self.state.time.expects(self.context.io.clock()),
        )
        # Repeatable: an edge that was carried out is answered FENCED, its epoch has moved on.
        advanced: Advanced = await self.context.pipeline.call(call, repeatable=True)
        for at, event in self._late:
            if advanced.told[at].status is EdgeStatus.DONE:
                self.context.emit(event)
        return tell_all(self.context, tell_waiters, self.state.number, self._edges, advanced.told)


def _failure(key: str, record: Record, decision: Decision, late: Lapse) -> AttemptFailed:
    match decision:
        case Wait(delay_s, attempt):
            follows = f"attempt {attempt} in {delay_s:.3f} s"
        case _:
            follows = "parked" if isinstance(decision, ParkJob) else "it never will be"
    return AttemptFailed(
        key=key_of(key),
        handler=record.handler,
        attempt=record.attempt,
        error="was not started within expires_s" if late == "expires" else TOO_LONG["start"],
        follows=follows,
    )
