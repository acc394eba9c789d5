"""A job as its dispatcher holds it: wait for it, look at it, stop it, from any node."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final, Generic, Literal, TypeVar

import anyio
import attrs

from pool import checks
from pool.core.followers import When, parse, released
from pool.core.record import (
    NOT_IN_TIME,
    SUPERSEDED,
    Attempt,
    Outcome,
    Progress,
    Record,
    begin_by_ms,
    more_of,
)
from pool.errors import (
    DeadlockRisk,
    JobCancelled,
    JobExpired,
    JobLost,
    JobParked,
    JobSuperseded,
    NoSuchJob,
    NotRunning,
    NotStarted,
    NotStopped,
    PoolError,
    StoreLost,
    StoreUnavailable,
    again,
    duration_text,
    unsure,
)
from pool.jobs.client.job_client import JobClient
from pool.jobs.client.waiters import Waiting
from pool.jobs.context import Seen
from pool.jobs.job import RUNNING
from pool.jobs.roster import WorkerInfo
from pool.jobs.typed.contract import ValueCodec
from pool.names import pair

R = TypeVar("R")

STAGES_MAX: Final = 10_000  # told at once
_MOMENT_S: Final = 0.001


@attrs.frozen(kw_only=True)
class Status:
    """What is known of a job at one moment.

    `state` is pending, running, waiting, unassigned, queued (behind the live job of its key), done,
    parked or cancelled; `handler` is empty once it has ended, unless it was parked or its id was
    given to it; `owner` the worker that has it, or had it last, and `worker` what the fleet knows
    of that one while it works.  `accepted_us`, `started_ms` (of its present run, or its last),
    `ended_ms` and `since_ms` (running, or ended, since) are pool time; 0 is what has not been.
    `crashes` are the worker crashes that it is suspected of, as `Settings.crashes_max` counts them.
    `history` are the last eight of its attempts that failed, and of the deaths of its workers.
    `why` says what a job that has not begun waits for, and `waits_until_ms` until when, if that is
    known; `begin_by_ms` is by when it must have begun, if that is limited.  `progress` is what its
    handler said last of how far it is, also of one that failed or was stopped.  `replayed_as` is
    the job that was made from its dead letter, `replay_of` the one from whose letter it was made.
    """

    key: str
    job_id: str
    state: str
    handler: str = ""
    owner: str = ""
    epoch: int = 0
    attempt: int = 0
    crashes: float = 0.0
    is_stopping: bool = False
    error: str = ""
    cause: str = ""
    why: str = ""
    history: tuple[Attempt, ...] = ()
    worker: WorkerInfo | None = None
    waits_until_ms: int = 0
    begin_by_ms: int = 0
    replayed_as: str = ""
    replay_of: str = ""
    accepted_us: int = 0
    started_ms: int = 0
    ended_ms: int = 0
    since_ms: int = 0
    progress: Progress | None = None

    @property
    def is_ended(self) -> bool:
        """Whether nothing will happen to it any more."""
        return self.state in ("done", "parked", "cancelled")


def status_of(
    key: str,
    job_id: str,
    found: Record | Outcome,
    client: JobClient,
    history: tuple[Attempt, ...] = (),
) -> Status:
    """Return a record or an outcome as users see it."""
    if isinstance(found, Outcome):
        return Status(
            key=key,
            job_id=job_id,
            state=found.word,
            owner=found.owner,
            epoch=found.epoch,
            attempt=found.attempt,
            cause=found.cause,
            error=found.error if found.word == "parked" else "",
            handler=more_of(found.more, "handler"),
            history=found.attempts if found.word == "parked" else (),
            replayed_as=more_of(found.more, "replayed"),
            replay_of=more_of(found.more, "lineage"),
            crashes=float(found.crashes),
            accepted_us=found.accepted_ms * 1000,
            started_ms=found.started_ms,
            ended_ms=found.ended_ms,
            since_ms=found.ended_ms,
            progress=found.progress,
        )
    return Status(
        key=key,
        job_id=found.id,
        state=found.state,
        handler=found.handler,
        owner=found.owner,
        epoch=found.epoch,
        attempt=found.attempt,
        crashes=float(found.marks.deaths),
        is_stopping=found.intent.startswith("s"),
        error=found.error,
        why=client.why_waits(found, key),
        waits_until_ms=found.since_ms if found.state == "waiting" else 0,
        begin_by_ms=begin_by_ms(found.more),
        replay_of=more_of(found.more, "lineage"),
        history=history,
        worker=client.worker(found.owner),
        accepted_us=found.accepted,
        started_ms=found.since_ms if found.state == "running" else 0,
        since_ms=found.since_ms if found.state == "running" else 0,
        progress=Progress.parse(more_of(found.more, "progress")),
    )


@attrs.frozen
class Stage:
    """A job of a chain, and how it is.

    `when` is `then` or `otherwise`, empty for the first one; `depth` how many are before it.
    `state` is that of `Status`; or `expected`: what it follows has not ended; or `released`: that
    has, and it is on its way, or ended so long ago that nothing is known of it.  `replayed_as` is
    as in `Status`: the stages of that job are told by a reference to it.
    """

    key: str
    job_id: str
    handler: str
    when: When | Literal[""]
    depth: int
    state: str
    replayed_as: str = ""


@attrs.frozen(eq=False)
class JobRef(Generic[R]):
    """A reference to one accepted job.  It stays good after restarts of anything.

    A `timeout_s` of 0 asks the store once, and takes the time of a call.
    """

    key: str
    job_id: str
    handler: str
    _client: JobClient = attrs.field(repr=False)
    _seen: Seen | None = attrs.field(default=None, repr=False)  # when it was known to be there
    _result: ValueCodec | None = attrs.field(default=None, repr=False)  # None: as the name says

    async def started(self, timeout_s: float | None = None) -> None:
        """Return once the job's handler has begun, also where it has returned since.

        Raises:
            InvalidOption: `timeout_s` is no number from 0 to 365 days.
            DeadlockRisk: It is queued behind the job whose handler asks.
            StartFailed: Its last attempt failed, and it waits for the next one; that may have been
                told before.
            NotStarted: Not within `timeout_s`; `why` says what it waits for.
            JobParked: It was given up, whether or not it had begun.
            JobCancelled: It was stopped, likewise; `JobExpired` if it was not started in time.
            JobLost: It was there, and the store has lost it.
            OutcomeExpired: It ended so long ago that nothing is known of it, or was lost.
            StoreLost: The pool's data were lost.
        """
        timeout_s = checks.seconds("timeout_s", timeout_s, or_none=True)
        waiting = Waiting(self.key, self.job_id, self._seen, RUNNING.get(), for_end=False)
        try:
            await self._wait(waiting, timeout_s)
        except TimeoutError:
            assert timeout_s is not None
            why = self._client.why_waits(waiting.record, waiting.key)
            raise NotStarted(
                key=self.key, job_id=self.job_id, waited_s=round(timeout_s, 3), why=why
            ) from None
        if not waiting.is_started and waiting.answer is not None:
            self._read(waiting.answer)

    async def result(self, timeout_s: float | None = None) -> R:
        """Return what the handler returned, once it has.

        Raises:
            InvalidOption: As for `started()`.
            DeadlockRisk: It is the job whose handler asks, or one that waits for it: itself queued
                behind it, or its handler for its result, also over others and on other nodes.
                That is told at once or within some seconds.
            JobParked: It was given up: its attempts were used up, or its handler parked it.
            JobCancelled: It was stopped, or its handler cancelled it; `JobExpired` if it was not
                started in time, `JobSuperseded` if another one took its place.
            JobLost: It was there, and the store has lost it.
            OutcomeExpired: It ended longer than `Settings.result_ttl_s` ago, or was lost.
            CodecMissing: It was made by a codec that no handler of this node has.
            PayloadEncodingError: It is not what the handler's annotation says here.
            TimeoutError: It has not ended within `timeout_s`; it goes on.  It says what was waited
                for, and how that was when it was looked at last.
            StoreLost: The pool's data were lost, and the job with them.
        """
        timeout_s = checks.seconds("timeout_s", timeout_s, or_none=True)
        origin = RUNNING.get()
        if origin and origin == pair(self.key, self.job_id):
            raise DeadlockRisk(key=self.key, job_id=self.job_id)
        waiting = Waiting(self.key, self.job_id, self._seen, origin)
        try:
            await self._wait(waiting, timeout_s)
        except TimeoutError:
            assert timeout_s is not None
            raise TimeoutError(self._client.what_waits(waiting, timeout_s)) from None
        assert waiting.answer is not None, "woken without an answer"
        body = self._read(waiting.answer)
        of = self._result or self._client.result_of(self.handler)
        value: Any = self._client.read_result(of, body)
        return value  # type: ignore[no-any-return]

    def _read(self, answer: Outcome | PoolError) -> bytes:
        """Return the result of a job that is done; raises what else became of it."""
        match answer:
            case Outcome(word="done", body=body):
                return body
            case Outcome(word="parked") as outcome:
                raise self._parked(outcome)
            case Outcome(cause=cause) if cause.startswith(SUPERSEDED):
                by = cause.removeprefix(SUPERSEDED)
                raise JobSuperseded(key=self.key, job_id=self.job_id, cause=cause, by=by)
            case Outcome(cause=cause) if cause == NOT_IN_TIME:
                raise JobExpired(key=self.key, job_id=self.job_id, cause=cause)
            case Outcome() as outcome:
                raise JobCancelled(key=self.key, job_id=self.job_id, cause=outcome.cause)
            case StoreLost() as lost:
                raise unsure(lost)  # it was accepted: a handler may have seen it
            case PoolError() as error:
                raise again(error)

    def _parked(self, outcome: Outcome) -> JobParked:
        error = JobParked(
            key=self.key,
            job_id=self.job_id,
            cause=outcome.cause,
            attempts=outcome.attempt,
            last_error=outcome.error,
            replayed_as=more_of(outcome.more, "replayed"),
        )
        for failed in outcome.attempts[-1:]:
            if failed.traceback:
                error.add_note(f"Its last attempt failed with:\n{failed.traceback}")
        return error

    async def status(self) -> Status:
        """Return how the job is now.

        Raises:
            JobLost: It was there, and the store has lost it.
            NoSuchJob: Nothing is known of it (any more).
            StoreUnavailable: The store does not answer.
        """
        found, seen = await self._look()
        self._see(seen)
        history = await self._client.history(self.key, found)
        return status_of(self.key, self.job_id, found, self._client, history)

    async def stages(self) -> list[Stage]:
        """Return this job and all that follow it, each before its own followers.

        Of what follows otherwise than it went nothing is told once that is known.  Each stage is
        asked for by itself, one after the other, so they may have gone on in between.  Of a longer
        chain the first 10,000 are told; the last of them leads on, by a reference to it.

        Raises:
            JobLost, NoSuchJob, StoreUnavailable: As for `status()`.
        """
        client, stages = self._client, list[Stage]()
        found, _ = await self._look()
        asked: list[tuple[str, str, When | Literal[""], int]] = []  # the next one last
        when: When | Literal[""] = ""
        key, job_id, depth = self.key, self.job_id, 0
        while True:
            stage = _stage(key, job_id, found, when, depth)
            stages.append(stage)
            went: When = "then" if stage.state == "done" else "otherwise"
            if more_of(found.more, "followers").isdecimal():
                stages += _expected(await client.followers(key, job_id), depth + 1)
            asked += [(*of, went, depth + 1) for of in reversed(released(found.more))]
            while True:
                if not asked or len(stages) >= STAGES_MAX:
                    return stages
                key, job_id, when, depth = asked.pop()
                try:
                    found, _ = await client.look(key, job_id, arrives=False)
                    break
                except NoSuchJob:
                    stages.append(Stage(key, job_id, "", when, depth, "released"))

    async def stop(self, cause: str = "stopped", timeout_s: float | None = None) -> None:
        """Stop the job; return when it has really ended.  A job that has ended stays as it is.

        Its stop stays requested whatever happens to this call, its owner or the caller.  Of `cause`
        the first 200 characters are kept.

        Raises:
            InvalidOption: `cause` is no text, or `timeout_s` as for `started()`.
            NotStopped: Its handler has not ended within `timeout_s`.
            JobLost: It was there, and the store has lost it; its handler may go on for a while.
            NoSuchJob: Nothing is known of it (any more).
            StoreUnavailable: The store does not answer, within `timeout_s` either, or the node left
                meanwhile.
            StoreLost: The pool's data were lost, before it or while it was waited for.
        """
        timeout_s = checks.seconds("timeout_s", timeout_s, or_none=True)
        checks.text("cause", cause)
        try:
            await stopped(self, cause, timeout_s)
        except NoSuchJob:
            found, _ = await self._look()
            if isinstance(found, Record):  # it was on its way
                await self.stop(cause, timeout_s)

    async def _wait(self, waiting: Waiting, timeout_s: float | None) -> None:
        self._client.check_open()  # before a timer is made, which needs a loop
        try:
            await self._client.wait(waiting, timeout_s)
        finally:
            if isinstance(waiting.answer, Outcome):
                self._see(None)
            elif waiting.record is not None:  # else another call may know more by now
                self._see(waiting.seen)
            if isinstance(waiting.answer, JobLost):
                self._see_lost()

    async def _look(self) -> tuple[Record | Outcome, Seen | None]:
        try:
            return await self._client.look(self.key, self.job_id, self._seen)
        except JobLost:
            self._see_lost()
            raise

    def _see_lost(self) -> None:
        """Have it stay lost: later it could not be told any more that it has not just ended."""
        if self._seen is not None:
            self._see(attrs.evolve(self._seen, was_lost=True))

    def _see(self, seen: Seen | None) -> None:
        object.__setattr__(self, "_seen", seen)  # all else of it stands as it is


def _stage(
    key: str, job_id: str, found: Record | Outcome, when: When | Literal[""], depth: int
) -> Stage:
    if isinstance(found, Record):
        return Stage(key, job_id, found.handler, when, depth, found.state)
    handler, again_as = more_of(found.more, "handler"), more_of(found.more, "replayed")
    return Stage(key, job_id, handler, when, depth, found.word, again_as)


def _expected(text: bytes, depth: int) -> Iterator[Stage]:
    """Yield what follows jobs that have not ended."""
    for each in parse(text):
        yield Stage(each.key, each.id, each.handler, each.when, depth, "expected")
        yield from _expected(each.followers, depth + 1)


async def stopped(ref: JobRef[Any], cause: str, timeout_s: float | None) -> None:
    """Ask a job, or with no id the live one of its key, to stop; return once it has ended.

    Raises what `JobRef.stop` does, and NoSuchJob.
    """
    client, clock = ref._client, ref._client.context.io.clock
    client.check_open()
    until_s = clock() + (timeout_s or math.inf)  # with 0 it takes the time of a call
    with anyio.move_on_after(timeout_s or math.inf) as limit:
        job_id = await client.request_stop(ref.key, ref.job_id, cause)
    if limit.cancelled_caught:
        problem = f"no answer within {duration_text(timeout_s or 0)}"
        raise StoreUnavailable(problem=problem, maybe_done=True)
    asked = ref if ref.job_id else JobRef[Any](ref.key, job_id, "", client)
    # Of a limit that is used up a moment is left: 0 would be as long as a call takes.
    left_s = timeout_s and max(_MOMENT_S, until_s - clock())
    await wait_stopped(asked, timeout_s, left_s)


async def wait_stopped(ref: JobRef[Any], timeout_s: float | None, left_s: float | None) -> None:
    """Return once a job that was asked to stop has ended, of a limit of which so much is left."""
    waiting = Waiting(ref.key, ref.job_id, ref._seen)
    try:
        await ref._wait(waiting, left_s)
    except TimeoutError:
        assert timeout_s is not None
        record = waiting.record
        raise NotStopped(
            key=ref.key,
            job_id=ref.job_id,
            waited_s=round(timeout_s, 3),
            owner=record.owner if record is not None else "",
            why=ref._client.why_goes_on(record),
        ) from None
    match waiting.answer:  # whatever it is, the stop had been written
        case StoreLost() as lost:
            raise unsure(lost)
        case JobLost() as error:
            raise again(error)
        case NotRunning():
            problem = "a stop was asked for, and the node left before the job had ended"
            raise StoreUnavailable(problem=problem, maybe_done=True)
