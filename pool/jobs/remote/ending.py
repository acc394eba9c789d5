"""Ends of jobs at polling workers: carried out by `advance`, and told to listeners.

What listeners are told of runs at workers that poll: see `JobEvents`.

    handed out --> `job.started` --> ended, retried, given back --> `job.settled`
                   each by the gateway that did it

A gateway keeps nothing that counts: since when a run goes on stands in its record.  Of those that
it has handed out itself it remembers that, up to KNOWN_MAX; of another gateway's it asks the store
before it ends them.  Only where somebody listens.

What a polling worker says of its jobs, carried out as its own worker would: by `advance`.

Every edge names worker, epoch and id, and the script compares all three with the record: a late or
repeated request finds its own outcome (`repeated`), or is refused with the reason.  Nothing is kept
here, so a gateway that dies in between leaves what the script did, or did not do.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import attrs

from pool.core.codec import check_size, encode_value
from pool.core.options import Limit, Options
from pool.core.record import (
    ERROR_CHARS_MAX,
    Outcome,
    Progress,
    Record,
    Start,
    more_of,
    one_line,
    pack_attempt,
)
from pool.core.settlement import CancelJob, Decision, ParkJob, Wait, after_failure, after_timeout
from pool.errors import (
    Gone,
    PayloadEncodingError,
    PayloadTooLarge,
    PoolError,
    StorageFull,
    StoreLost,
    StoreUnavailable,
    again,
)
from pool.events import AttemptFailed, CommitRefused, JobEnd, JobSettled, JobStarted
from pool.jobs.context import Context, Ranks
from pool.jobs.remote.claims import EndedJob, EndOutcome, Failure, JobClaim, WorkerClaim
from pool.jobs.remote.leases import Leases
from pool.jobs.settlement import TellWaiters, edge_of, outcome_ttl_ms, tell_next
from pool.jobs.worker.outbox import outcome_text
from pool.names import pair
from pool.redis.commands.admission import ranking
from pool.redis.commands.edges import (
    WORK_MAX,
    Advanced,
    CancelEdge,
    Changed,
    DoneEdge,
    Edge,
    EdgeStatus,
    GrantEdge,
    ParkEdge,
    SaveEdge,
    WaitEdge,
)
from pool.redis.commands.talk import NO_MESSAGE
from pool.redis.commands.upkeep import Owned
from pool.redis.pipeline import BATCH_BYTES_MAX

KNOWN_MAX: Final = 10_000


@attrs.frozen
class RemoteRun:
    """A run that was there when its end was asked for."""

    waited_s: float
    ran_s: float
    asked_s: float  # by our own clock


@attrs.define(eq=False)
class Telling:
    """Tells of what one gateway does."""

    context: Context
    # By key and epoch, the oldest first: for how long it waited, and when it began, in pool time.
    _known: dict[tuple[str, int], tuple[float, float]] = attrs.field(init=False, factory=dict)

    def started(self, claim: WorkerClaim, lane: int, start: Start) -> None:
        """Tell that a run was handed out; once, however many polls bring it."""
        listeners, run = self.context.jobs, (start.key, start.epoch)
        share = listeners.share(start.key, start.id) if listeners is not None else None
        if listeners is None or share is None or run in self._known:
            return
        began_ms = self.context.lanes[lane].now_ms(self.context.io.clock())
        waited_s = _waited_s(start.accepted, began_ms)
        while len(self._known) >= KNOWN_MAX:
            del self._known[next(iter(self._known))]
        self._known[run] = waited_s, began_ms
        event = JobStarted(
            pool=self.context.pool,
            handler=start.handler,
            key=start.key,
            job_id=start.id,
            attempt=start.attempt,
            epoch=start.epoch,
            worker=claim.name,
            waited_s=waited_s,
            is_again=start.attempt > 1 or "r" in start.flags,
        )
        listeners.tell(share, event)

    def unknown(self, jobs: Sequence[JobClaim]) -> list[str]:
        """Return the keys of those that somebody wants to hear of, and that are not known here."""
        listeners = self.context.jobs
        if listeners is None:
            return []
        return [
            job.key
            for job in jobs
            if (job.key, job.epoch) not in self._known
            and listeners.share(job.key, job.id) is not None
        ]

    def runs(
        self, lane: int, jobs: Sequence[JobClaim], records: Mapping[str, Record]
    ) -> dict[JobClaim, RemoteRun]:
        """Return those that are there, as we know or as their records say."""
        found, now_s = dict[JobClaim, RemoteRun](), self.context.io.clock()
        now_ms = self.context.lanes[lane].now_ms(now_s)
        for job in jobs:
            times, record = self._known.get((job.key, job.epoch)), records.get(job.key)
            if times is None and record is not None and record.epoch == job.epoch:
                times = _waited_s(record.accepted, record.since_ms), record.since_ms
            if times is not None:
                ran_s = round(max(0.0, now_ms - times[1]) / 1000, 6)
                found[job] = RemoteRun(times[0], ran_s, now_s)
        return found

    def settled(
        self, claim: WorkerClaim, job: JobClaim, end: JobEnd, run: RemoteRun | None
    ) -> None:
        """Tell how a run has ended; None: it had not begun, or nobody knows since when it ran."""
        self._known.pop((job.key, job.epoch), None)
        listeners = self.context.jobs
        share = listeners.share(job.key, job.id) if listeners is not None else None
        if listeners is None or share is None:
            return
        took_s = self.context.io.clock() - run.asked_s if run is not None else 0.0
        event = JobSettled(
            pool=self.context.pool,
            handler=job.handler,
            key=job.key,
            job_id=job.id,
            attempt=job.attempt,
            epoch=job.epoch,
            worker=claim.name,
            outcome=end,
            waited_s=run.waited_s if run is not None else 0.0,
            ran_s=run.ran_s if run is not None else 0.0,
            took_s=round(took_s, 6),
        )
        listeners.tell(share, event)


def _waited_s(accepted: int, began_ms: float) -> float:
    return round(max(0.0, began_ms - accepted / 1000) / 1000, 3)


# Mark of what a gateway does with a start on its own account: another one may have handed it out.
UNBEGUN: Final = "p"
BATCH_MAX: Final = WORK_MAX // ParkEdge.work  # edges in one call, whatever they are

ClaimAndEdge = tuple[JobClaim, Edge]


@attrs.frozen
class KnownRun:
    """What is known of a run that shall end, or go on."""

    record: Record | None = None  # None: there is none, or it is another one's
    now_ms: float = 0.0  # pool time
    error: StoreUnavailable | None = None  # why nothing is known

    @classmethod
    def of(cls, job: JobClaim, record: Record | None, now_ms: float) -> KnownRun:
        """Make it of the record that its key has."""
        is_its = record is not None and (record.epoch, record.id) == (job.epoch, job.id)
        return cls(record if is_its else None, now_ms)

    @property
    def is_stopped(self) -> bool:
        """Whether somebody asked it to stop."""
        return self.record is not None and self.record.intent.startswith("s")

    def has_had_its_time(self, claim: WorkerClaim, job: JobClaim) -> bool:
        """Say whether it came to its limit.

        The sweeper has said so; or it is so by pool time.
        """
        if self.record is None:
            return False
        return self.record.intent.startswith("t") or self.left_ms(claim, job) <= 0

    def left_ms(self, claim: WorkerClaim, job: JobClaim) -> float:
        """Return how long it has until it comes to a limit; infinity: it has none."""
        return min(self._lefts_ms(claim, job).values(), default=math.inf)

    def limit_of(self, claim: WorkerClaim, job: JobClaim) -> Limit | None:
        """Return to which limit it comes first; None: to none."""
        lefts = self._lefts_ms(claim, job)
        return min(lefts, key=lambda limit: lefts[limit], default=None)

    def _lefts_ms(self, claim: WorkerClaim, job: JobClaim) -> dict[Limit, float]:
        options, found = claim.handlers.get(job.handler), dict[Limit, float]()
        if self.record is None or options is None:
            return found
        ran_ms = self.now_ms - self.record.since_ms
        if options.timeout_s is not None:
            found["timeout"] = 1000 * options.timeout_s - ran_ms
        if options.progress_timeout_s is not None:
            told = Progress.parse(more_of(self.record.more, "progress"))
            # That of an attempt before is older than this one.
            since_ms = max(self.record.since_ms, told.at_ms if told is not None else 0)
            found["progress"] = 1000 * options.progress_timeout_s - (self.now_ms - since_ms)
        return found


@attrs.define(eq=False)
class Endings:
    """Ends jobs for one gateway."""

    context: Context
    tell_waiters: TellWaiters
    leases: Leases
    telling: Telling = attrs.field(init=False)

    @telling.default
    def _(self) -> Telling:
        return Telling(self.context)

    # --- edges --------------------------------------------------------------------------------

    def done(self, claim: WorkerClaim, job: JobClaim, value: Any) -> Edge:
        """Return what settles a job with a result.

        Raises:
            PayloadEncodingError, PayloadTooLarge: It cannot be one.
        """
        settings, options = self.context.settings, claim.handlers.get(job.handler)
        encoded = encode_value(value)
        check_size("result", encoded, settings.result_bytes_max)
        ttl_ms = outcome_ttl_ms(settings, options)
        if value is None and (options is None or options.retention_s is None):
            ttl_ms = round(settings.known_s * 1000)  # that it has ended is all there is to tell
        return DoneEdge(job.key, job.epoch, job.id, ttl_ms, job.handler, encoded)

    def released(self, job: JobClaim, state: Any | None) -> Edge:
        """Return what hands a job over in order.

        Raises:
            PayloadEncodingError, PayloadTooLarge: Its state cannot be one.
        """
        checkpoint = None if state is None else self._state(state)
        return attrs.evolve(self.given_back(job, "f"), checkpoint=checkpoint)

    def given_up(self, claim: WorkerClaim, job: JobClaim, state: Any | None, run: KnownRun) -> Edge:
        """Return what follows when a client gives a run up.

        It goes on elsewhere; but what has had its time has used an attempt up by it, or nobody
        would ever end a job that takes too long.

        Raises:
            PayloadEncodingError, PayloadTooLarge: As `released`.
            StoreUnavailable: Nobody can tell whether it has had its time.
        """
        if run.error is not None:
            raise again(run.error)
        if run.has_had_its_time(claim, job) and not run.is_stopped:
            return self.timed_out(claim, job, run)
        return self.released(job, state)

    def given_back(self, job: JobClaim, mark: str = UNBEGUN) -> GrantEdge:
        """Return what hands over a job that was not handed out, or with `f` one in order."""
        of = (job.key, job.epoch, job.id, outcome_ttl_ms(self.context.settings), job.handler)
        return GrantEdge(*of, mark=mark)

    def saved(self, job: JobClaim, state: Any, number: int, seen: int) -> Edge:
        """Return what stores a state, unless one with a higher number is.

        Raises:
            PayloadEncodingError, PayloadTooLarge: It cannot be one.
        """
        edge = SaveEdge(job.key, job.epoch, job.id, handler=job.handler, state=self._state(state))
        edge.message, edge.number = str(seen or NO_MESSAGE), number
        return edge

    def failed(self, claim: WorkerClaim, failure: Failure, run: KnownRun) -> Edge:
        """Return what follows a failed attempt; one that was asked to stop ends by it.

        Raises:
            StoreUnavailable: Nobody can tell whether it was, or has had its time.
        """
        if run.error is not None:
            raise again(run.error)
        job, options = failure.job, claim.handlers.get(failure.job.handler, Options())
        record = run.record
        if failure.may_retry and record is not None and run.is_stopped:
            return self._edge(job, CancelJob(record.intent[1:]), options)
        kind = one_line(failure.type, ERROR_CHARS_MAX) or "Error"
        packed = pack_attempt(kind, failure.message, failure.traceback)
        if failure.may_retry and run.has_had_its_time(claim, job):
            return self.timed_out(claim, job, run, packed)
        error, attempt = f"{kind}: {failure.message}", job.attempt
        ran_ms = run.now_ms - record.since_ms if record is not None else 0.0
        if options.kind == "service" and ran_ms >= 1000 * options.healthy_s:
            attempt = 1  # it was well for long enough: this failure is a first one
        decision: ParkJob | Wait
        decision = after_failure(
            attempt, options, self.context.io.dice, cause="failed", error=error
        )
        if not failure.may_retry:
            decision = ParkJob("failed", one_line(error, ERROR_CHARS_MAX))
        decision = attrs.evolve(decision, failed=packed)
        if isinstance(decision, Wait) and failure.delay_s is not None:
            decision = attrs.evolve(decision, delay_s=failure.delay_s)
        return self._edge(job, decision, options)

    def timed_out(self, claim: WorkerClaim, job: JobClaim, run: KnownRun, failed: str = "") -> Edge:
        """Return what follows an attempt that came to its limit."""
        options, limit = claim.handlers.get(job.handler, Options()), run.limit_of(claim, job)
        decision = after_timeout(job.attempt, options, self.context.io.dice, limit)
        return self._edge(job, attrs.evolve(decision, failed=failed), options)

    def _edge(self, job: JobClaim, decision: Decision, options: Options) -> Edge:
        settings = self.context.settings
        return edge_of(job.key, job, decision, settings, has_begun=True, options=options)

    def _state(self, state: Any) -> bytes:
        encoded = encode_value(state)
        check_size("state", encoded, self.context.settings.state_bytes_max)
        return encoded

    # --- calls --------------------------------------------------------------------------------

    async def made(
        self, items: Iterable[tuple[JobClaim, Callable[[], Edge]]], claim: WorkerClaim
    ) -> list[EndedJob]:
        """Make the edges, and carry them out; of what cannot be made nothing is done."""
        ended, made = dict[int, EndedJob](), defaultdict[int, list[tuple[int, ClaimAndEdge]]](list)
        for at, (job, make) in enumerate(items):
            try:
                made[job.lane].append((at, (job, make())))
            except (PayloadEncodingError, PayloadTooLarge, StoreUnavailable) as error:
                ended[at] = EndedJob(job, error=error)
        for lane, those in made.items():
            told = await self.end(claim, lane, [item for _, item in those])
            ended |= {at: each for (at, _), each in zip(those, told, strict=True)}
        errors = [each.error for each in ended.values()]
        if errors and all(isinstance(error, StoreUnavailable) for error in errors):
            assert errors[0] is not None
            raise errors[0]
        return [ended[at] for at in sorted(ended)]

    async def end(
        self, claim: WorkerClaim, lane: int, items: Sequence[ClaimAndEdge]
    ) -> list[EndedJob]:
        """Carry edges out; an error of the store is that of each."""
        found, runs = list[EndedJob](), await self._runs(claim, lane, items)
        for some in _batches(items):
            try:
                told = await self.advance(claim, lane, [edge for _, edge in some])
            except Gone:
                found += [await self._of_gone(claim, job, edge) for job, edge in some]
                continue
            except PoolError as error:
                found += [EndedJob(job, error=error) for job, _ in some]
                continue
            for (job, edge), changed in zip(some, told, strict=True):
                found.append(await self._ended(claim, job, edge, changed, runs.get(job)))
        return found

    async def give_back(self, claim: WorkerClaim, lane: int, items: Sequence[ClaimAndEdge]) -> int:
        """Have others go on with jobs, and begin those that have not begun; return how many will.

        Raises:
            Gone, StoreUnavailable, StoreLost, StoreFault: Of some it may be done.
        """
        count, runs = 0, await self._runs(claim, lane, items)
        for some in _batches(items):
            told = await self.advance(claim, lane, [edge for _, edge in some])
            for (job, edge), changed in zip(some, told, strict=True):
                self.over(claim, job, edge, changed, runs.get(job))
                count += (type(edge), changed.status) in _OUTCOMES
        return count

    async def runs(
        self, claim: WorkerClaim, jobs: Sequence[JobClaim], *, limited: bool = False
    ) -> list[KnownRun]:
        """Return what is known of each; with `limited` nothing of those that have no limit.

        Of one with a limit also what pool time is.  Told after this request came, it is no earlier
        than what any gateway has told its client.
        """
        asked = [job for job in jobs if _has_limit(claim, job) or not limited]
        runs = dict[JobClaim, KnownRun]()
        for lane in {job.lane for job in asked}:
            mine = [job for job in asked if job.lane == lane]
            now_ms = self.context.lanes[lane].now_ms(self.context.io.clock())
            try:
                found = await self.records(claim, lane, [job.key for job in mine])
                if any(_has_limit(claim, job) for job in mine):
                    now_ms = await self.leases.ask(lane)
            except StoreUnavailable as error:
                runs |= dict.fromkeys(mine, KnownRun(error=error))
            except PoolError:
                continue  # what is said next is told why
            else:
                runs |= {job: KnownRun.of(job, found.get(job.key), now_ms) for job in mine}
        return [runs.get(job, KnownRun()) for job in jobs]

    async def _runs(
        self, claim: WorkerClaim, lane: int, items: Sequence[ClaimAndEdge]
    ) -> dict[JobClaim, RemoteRun]:
        """Return what listeners are to hear of those that shall end."""
        if self.context.jobs is None:
            return {}
        jobs = [job for job, edge in items if not isinstance(edge, SaveEdge)]
        unknown, records = self.telling.unknown(jobs), dict[str, Record]()
        if unknown:
            with suppress(PoolError):  # their times are not told, then
                records = await self.records(claim, lane, unknown)
        return self.telling.runs(lane, jobs, records)

    async def advance(self, claim: WorkerClaim, lane: int, edges: Sequence[Edge]) -> list[Changed]:
        """Carry one batch out; see `over()` for who is to hear of it.

        Raises:
            Gone: The worker is fenced in this lane.
            StoreUnavailable, StoreLost, StoreFault: It may be done, or not.
        """
        context, ranks = self.context, Ranks()
        state = context.lanes[lane]
        for edge in edges:
            if isinstance(edge, GrantEdge):
                targets = context.targets(edge.key, edge.handler, lane=lane, but=claim.id)
                edge.ranked = ranking(ranks.of(targets))
        call = state.lane.advance(
            "own",
            claim.name,
            edges,
            pending_s=context.timing.pending_timeout_s,
            targets=ranks.targets,
            expects=state.time.expects(context.io.clock()),
        )
        try:
            # Repeatable: the same writer's repeat is told its own outcome; see `_ended`.
            advanced: Advanced = await context.pipeline.call(call, repeatable=True)
        except StoreLost:
            context.on_data_lost(lane)
            raise
        if lane not in context.barren:  # else our own workers ask whether one is for them
            context.tell_unassigned(lane, advanced.unassigned)
        return advanced.told

    # --- what was said ------------------------------------------------------------------------

    async def _ended(
        self, claim: WorkerClaim, job: JobClaim, edge: Edge, changed: Changed, run: RemoteRun | None
    ) -> EndedJob:
        status = changed.status
        if status is EdgeStatus.MOVED_ON and changed.facts != edge.handler:
            edge.handler = changed.facts  # its record names another than its start did
            return (await self.end(claim, job.lane, [(job, edge)]))[0]
        if status is EdgeStatus.TIMED_OUT:
            [ended] = await self.end(
                claim, job.lane, [(job, self.timed_out(claim, job, KnownRun()))]
            )
            if isinstance(edge, GrantEdge):
                return ended  # it was given up, and that is what became of it
            return self._refused(job, "timed out", changed)
        outcome = _OUTCOMES.get((type(edge), status))
        if outcome is not None:
            self.over(claim, job, edge, changed, run)
            return EndedJob(
                job, outcome, in_s=edge.delay_ms / 1000 if type(edge) is WaitEdge else 0.0
            )
        match status:
            case EdgeStatus.REPEAT if changed.facts in _OWN[type(edge)]:
                if run is not None:  # it was there just now: our own call was sent again
                    self.telling.settled(claim, job, _REPEATED[changed.facts], run)
                if isinstance(edge, WaitEdge) and changed.facts == "failed":
                    return EndedJob(job, "repeated", in_s=edge.delay_ms / 1000)
                return EndedJob(job, "repeated")
            case EdgeStatus.FULL:
                return EndedJob(job, error=StorageFull())
            case EdgeStatus.SETTLED | EdgeStatus.REPEAT:  # in its name, but not as it says now
                return self._refused(job, "superseded", changed)
            case EdgeStatus.UNREADABLE:
                return self._refused(job, "unreadable", changed)
        return self._refused(job, "moved", changed)

    def over(
        self,
        claim: WorkerClaim,
        job: JobClaim,
        edge: Edge,
        changed: Changed,
        run: RemoteRun | None = None,
    ) -> None:
        """Tell who has to know, as a worker does."""
        end = _TOLD.get(_OUTCOMES.get((type(edge), changed.status), "saved"))
        if end is not None and (run is not None or end != "moved"):
            self.telling.settled(claim, job, end, run)
        if changed.status is not EdgeStatus.DONE:
            return
        if isinstance(edge, WaitEdge):
            self.context.on_due(job.lane, edge.delay_ms / 1000)
        if isinstance(edge, (WaitEdge, ParkEdge)):
            self._tell_failed(job, edge)
        if changed.facts:
            outcome = outcome_text(edge, claim.name, job.attempt) or b""
            of = pair(edge.key, edge.id)
            self.tell_waiters(job.lane, changed.waiters, "ended", of, outcome)
            tell_next(self.context, job.lane, edge, changed)

    def _tell_failed(self, job: JobClaim, edge: WaitEdge | ParkEdge) -> None:
        follows = "parked"
        if isinstance(edge, WaitEdge):
            follows = f"attempt {edge.attempt} in {edge.delay_ms / 1000:.3f} s"
        self.context.emit(
            AttemptFailed(
                key=job.key,
                handler=job.handler,
                attempt=job.attempt,
                error=edge.error,
                follows=follows,
            )
        )

    def _refused(self, job: JobClaim, reason: str, changed: Changed) -> EndedJob:
        self._tell_refused(job, str(changed))
        return EndedJob.refused(job, reason)

    def _tell_refused(self, job: JobClaim, answer: str) -> None:
        self.context.emit(
            CommitRefused(
                key=job.key, job_id=job.id, handler=job.handler, epoch=job.epoch, answer=answer
            )
        )

    async def _of_gone(self, claim: WorkerClaim, job: JobClaim, edge: Edge) -> EndedJob:
        """Say what became of a job whose worker is fenced: it may have ended it before."""
        found = await self.look(job)
        mine = (claim.name, job.epoch)
        is_own = isinstance(found, Outcome) and (found.owner, found.epoch) == mine
        if is_own and found.word in _OWN[type(edge)]:
            return EndedJob(job, "repeated")
        self._tell_refused(job, "GONE")
        return EndedJob.refused(job, "expired")

    async def look(self, job: JobClaim) -> Any:
        """Return the record or outcome of a job, if either can be had."""
        state = self.context.lanes[job.lane]
        try:
            call = state.lane.look([(job.key, job.id)])
            return (await self.context.pipeline.call(call, repeatable=True))[0]
        except PoolError:
            return None

    async def records(
        self, claim: WorkerClaim, lane: int, keys: Sequence[str]
    ) -> dict[str, Record]:
        """Return the records of those keys that a worker runs in a lane.

        Raises:
            StoreUnavailable, StoreLost, StoreFault: Why not.
        """
        found, size = dict[str, Record](), self.context.io.pages.compared
        for at in range(0, len(keys), size):
            items = [(key.encode(), "") for key in keys[at : at + size]]
            call = self.context.lanes[lane].lane.reconcile(claim.name, items, at="", after="")
            owned: Owned = await self.context.pipeline.call(call, repeatable=True)
            found |= owned.running
            found |= {key: record for key, _, record in owned.strays}
        return found


_OUTCOMES: Final[dict[tuple[type[Edge], EdgeStatus], EndOutcome]] = {
    (DoneEdge, EdgeStatus.DONE): "done",
    (WaitEdge, EdgeStatus.DONE): "retried",
    (ParkEdge, EdgeStatus.DONE): "parked",
    (GrantEdge, EdgeStatus.GRANTED): "released",
    (GrantEdge, EdgeStatus.UNASSIGNED): "released",
    (GrantEdge, EdgeStatus.DONE): "cancelled",  # somebody had asked it to stop
    (CancelEdge, EdgeStatus.DONE): "cancelled",
    (SaveEdge, EdgeStatus.DONE): "saved",
}

# What listeners are told of that, and of what is repeated.
_TOLD: Final[dict[EndOutcome, JobEnd]] = {
    "done": "done",
    "retried": "retried",
    "parked": "parked",
    "released": "moved",
    "cancelled": "cancelled",
}
_REPEATED: Final[dict[str, JobEnd]] = {
    "done": "done",
    "parked": "parked",
    "cancelled": "cancelled",
    "failed": "retried",
}

# The outcomes that each makes, if it makes any.
_OWN: Final[dict[type[Edge], frozenset[str]]] = {
    DoneEdge: frozenset({"done"}),
    WaitEdge: frozenset({"parked", "cancelled", "failed"}),
    ParkEdge: frozenset({"parked"}),
    GrantEdge: frozenset({"cancelled"}),
    CancelEdge: frozenset({"cancelled"}),
    SaveEdge: frozenset({"saved"}),
}


def _has_limit(claim: WorkerClaim, job: JobClaim) -> bool:
    options = claim.handlers.get(job.handler)
    return options is not None and options.limit_s is not None


def _batches(items: Sequence[ClaimAndEdge]) -> Iterator[list[ClaimAndEdge]]:
    """Yield them in batches that are neither too much work nor too large; one alone may be."""
    some, work, size_bytes = list[ClaimAndEdge](), 0, 0
    for item in items:
        work, size_bytes = work + item[1].work, size_bytes + item[1].size_bytes
        if some and (work > WORK_MAX or size_bytes > BATCH_BYTES_MAX):
            yield some
            some, work, size_bytes = [], item[1].work, item[1].size_bytes
        some.append(item)
    if some:
        yield some
