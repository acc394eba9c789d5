"""Dead letters as an operator has them: to look through, mend, make jobs of again, and throw away.

    a job is parked --> letter --replay--> a job with a new id; what is remembered of the old one
                          |                names it, and whoever repeats the replay gets it too
                          +--discard, too old, too many--> nothing

Each change of a letter is one script, so a crash leaves either the letter or what became of it.
Those that go through many take a page at a time, and each letter by itself: what was done stays
done, and a second run does the rest.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, Final

import anyio
import attrs

from pool import checks
from pool.core.codec import check_size, head_of
from pool.core.ids import is_number
from pool.core.record import CAUSE_CHARS_MAX, MORE, Attempt, Kind, Letter, more_of, one_line
from pool.errors import (
    JobExists,
    NoSuchLetter,
    PayloadEncodingError,
    PoolError,
    PoolFull,
    RefusedError,
    StoreFault,
    UnknownHandler,
)
from pool.jobs.client.job_client import JobClient
from pool.jobs.client.listing import Gaps, gaps_of
from pool.jobs.client.options import check_named
from pool.jobs.client.ref import JobRef
from pool.jobs.context import Context
from pool.names import pair
from pool.redis.commands.letters import (
    KeyHas,
    LaneFull,
    LettersPage,
    LetterStatus,
    Made,
    OtherHandler,
    ReplaySaid,
    ToldLetter,
)
from pool.redis.scripts import ScriptCall

COUNT_MAX: Final = 256  # letters in one page
REFUSED_MAX: Final = 100  # of a replay of many, whose reasons are told
TRIES_MAX: Final = 3
RATE_MAX: Final = 100_000.0


@attrs.frozen(kw_only=True)
class ParkedJob:
    """A dead letter.  `history` and `payload` are told by `show()` alone.

    `replay_of` is the dead letter that the job was made from; `is_edited` says that its arguments
    are not those it was dispatched with.  `args` and `kwargs` are as the handler takes them, if
    this node has it, else in terms of JSON; None where they cannot be read.  `codec` is the name of
    what made them, empty for JSON and bytes, and `version` theirs.
    """

    key: str
    job_id: str
    handler: str
    kind: Kind
    cause: str
    error: str
    attempt: int
    owner: str
    crashes: float
    accepted_ms: int
    started_ms: int
    parked_ms: int
    payload_bytes: int
    is_edited: bool = False
    replay_of: str = ""
    history: tuple[Attempt, ...] = ()
    codec: str = ""
    version: int = 1
    args: tuple[Any, ...] | None = None
    kwargs: dict[str, Any] | None = None


@attrs.frozen(kw_only=True)
class ParkedPage:
    """Some dead letters, of each lane the one that was parked first first.

    `cursor` is where the next page begins; it is empty behind the last one.  `looked_at` is how
    many letters were looked at for it, which may be many more than were wanted.  `unread` names the
    lanes that were left out, and why: see `Gaps`.
    """

    jobs: tuple[ParkedJob, ...]
    cursor: str
    looked_at: int
    unread: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class ManyReplayed:
    """What became of a replay of many: how many are jobs again, and why others are not.

    Of the reasons the first 100 are told.  Of a dry run it is how many there would be.
    """

    count: int
    refused: int = 0
    reasons: tuple[PoolError, ...] = ()


@attrs.frozen(kw_only=True)
class _Wanted:
    """Which letters are meant."""

    handler: str = ""
    prefix: str = ""
    cause: str = ""
    older_than_s: float | None = None
    newer_than_s: float | None = None

    def __attrs_post_init__(self) -> None:
        for name in ("handler", "prefix", "cause"):
            checks.utf8(name, checks.text(name, getattr(self, name)))
        for name in ("older_than_s", "newer_than_s"):
            checks.seconds(name, getattr(self, name), or_none=True)
        # As it was stored.
        object.__setattr__(self, "cause", one_line(self.cause, CAUSE_CHARS_MAX))

    @property
    def is_all(self) -> bool:
        return self == _Wanted()


@attrs.frozen(eq=False)
class DeadLetters:
    """The dead letters of a pool: `node.parked`."""

    _opened: Callable[[], JobClient] = attrs.field(repr=False)  # raises where it is not open

    async def list(
        self,
        *,
        handler: str = "",
        prefix: str = "",
        cause: str = "",
        older_than_s: float | None = None,
        newer_than_s: float | None = None,
        cursor: str = "",
        count: int = 100,
        gaps: Gaps | None = None,
    ) -> ParkedPage:
        """Return a page of dead letters; a page is bounded work, however many there are.

        Args:
            handler: Of jobs of this handler only; empty: of any.
            prefix: Whose key begins so.
            cause: That were parked for this, such as "failed" or "poison".
            older_than_s: Parked longer ago than this.
            newer_than_s: Parked no longer ago than this.
            cursor: Of the page before; empty for the first one.
            count: How many at most, 1 to 256.
            gaps: Leave out lanes that do not answer, and note them here; None: they are an error.

        Raises:
            InvalidOption: An argument cannot be used.
            StoreUnavailable, StoreLost, NotRunning: As for `dispatch()`.
        """
        wanted = _Wanted(
            handler=handler,
            prefix=prefix,
            cause=cause,
            older_than_s=older_than_s,
            newer_than_s=newer_than_s,
        )
        return await self._page(wanted, cursor, checks.count("count", count, 1, COUNT_MAX), gaps)

    async def count(
        self,
        *,
        handler: str = "",
        prefix: str = "",
        cause: str = "",
        older_than_s: float | None = None,
        newer_than_s: float | None = None,
    ) -> int:
        """Return how many dead letters there are; with a filter by looking at each, page by page.

        Raises:
            InvalidOption, StoreUnavailable, StoreLost, NotRunning: As for `list()`.
        """
        wanted = _Wanted(
            handler=handler,
            prefix=prefix,
            cause=cause,
            older_than_s=older_than_s,
            newer_than_s=newer_than_s,
        )
        return await self._count(wanted)

    async def show(self, key: str, job_id: str) -> ParkedJob:
        """Return a dead letter with its arguments, its attempts and their tracebacks.

        Raises:
            NoSuchLetter: There is none of this job.
            InvalidKey, InvalidOption: There cannot be.
            StoreUnavailable, StoreLost, NotRunning: As for `dispatch()`.
        """
        check_named(key, job_id)
        letter = await self._fetch(key, job_id)
        if letter is None:
            raise NoSuchLetter(key=key, job_id=job_id)
        job = _job(ToldLetter(letter, len(letter.payload)))
        job = attrs.evolve(job, history=letter.outcome.attempts)
        with suppress(PayloadEncodingError):
            codec, version, _ = head_of(letter.payload)
            job = attrs.evolve(job, codec=codec, version=version)
            args, kwargs = self._opened().read_call(letter.handler, letter.payload)
            job = attrs.evolve(job, args=tuple(args), kwargs=dict(kwargs))
        return job

    async def edit(self, key: str, job_id: str, /, *args: Any, **kwargs: Any) -> None:
        """Give a dead letter other arguments, for when it is replayed.

        They are stored as the handler says, if this node has it, else as those that are there: by
        the same codec, and of the same version.

        Raises:
            NoSuchLetter: There is none of this job (any more).
            WrongArguments: They are not those of the handler, as far as it is known here.
            CodecMissing: Only a node that has the handler can encode them.
            PayloadEncodingError, PayloadTooLarge, InvalidKey, InvalidOption: Nothing was sent.
            StorageFull, StoreUnavailable, StoreLost, NotRunning: As for `dispatch()`.
        """
        check_named(key, job_id)
        client = self._opened()
        client.check_call(args, kwargs)
        letter = await self._fetch(key, job_id)
        if letter is None:
            raise NoSuchLetter(key=key, job_id=job_id)
        payload = client.written_call(letter.handler, letter.payload, args, kwargs)
        context = client.context
        check_size("payload", payload, context.settings.payload_bytes_max)
        state = context.lane_of(key)
        call = state.lane.letter("edit", key, job_id, payload)
        told: LetterStatus = await context.pipeline.call(call, repeatable=True)
        if told is not LetterStatus.DONE:
            raise _refusal(key, job_id, told)

    async def replay(self, key: str, job_id: str) -> JobRef[Any]:
        """Make a job of a dead letter again; return once it is accepted.

        It has a new id, and what its job was dispatched with: arguments, retention, and the id or
        idempotency key, for which it answers from now on.  A replay may be repeated: it returns
        the job that the first one made.

        Raises:
            NoSuchLetter: There is none of this job, nor was one replayed that is remembered.
            JobExists: The key has a live job.
            PoolFull, UnknownHandler, StoreUnavailable, StoreLost, NotRunning: As for `dispatch()`.
            InvalidKey, InvalidOption: There cannot be one.
        """
        check_named(key, job_id)
        letter = await self._fetch(key, job_id)
        return await self._replay(key, job_id, letter.handler if letter is not None else "-")

    async def replay_all(
        self,
        *,
        handler: str = "",
        prefix: str = "",
        cause: str = "",
        older_than_s: float | None = None,
        newer_than_s: float | None = None,
        rate: float | None = None,
        dry_run: bool = False,
    ) -> ManyReplayed:
        """Replay all dead letters that match, one after another; those refused stay.

        Args:
            handler: As for `list()`; likewise the other filters.
            prefix: Likewise.
            cause: Likewise.
            older_than_s: Likewise.
            newer_than_s: Likewise.
            rate: How many in a second at most, 0.001 to 100,000; None: as fast as it goes.
            dry_run: Only count them.

        Raises:
            InvalidOption: An argument cannot be used.
            StoreUnavailable, StoreLost, NotRunning: As for `dispatch()`; what was replayed before
                stays so, and a second call does the rest.
        """
        wanted = _Wanted(
            handler=handler,
            prefix=prefix,
            cause=cause,
            older_than_s=older_than_s,
            newer_than_s=newer_than_s,
        )
        if rate is not None:
            rate = checks.number("rate", rate, 0.001, RATE_MAX, unit="per second")
        if checks.flag("dry_run", dry_run):
            return ManyReplayed(count=await self._count(wanted))
        done, refused, reasons = 0, 0, list[PoolError]()
        async for job in self._all(wanted):
            try:
                ref = await self._replay(job.key, job.job_id, job.handler)
                done += ref._seen is not None  # else somebody else was quicker, and counts it
            except NoSuchLetter:
                continue  # somebody else was quicker
            except (RefusedError, UnknownHandler) as error:
                refused += 1
                if len(reasons) < REFUSED_MAX:
                    reasons.append(error.with_traceback(None))
            if rate is not None:
                await anyio.sleep(1 / rate)
        return ManyReplayed(count=done, refused=refused, reasons=tuple(reasons))

    async def discard(self, key: str, job_id: str) -> None:
        """Throw a dead letter away; what is remembered of its job ends in its own time.

        Raises:
            NoSuchLetter: There is none of this job (any more).
            InvalidKey, InvalidOption: There cannot be.
            StoreUnavailable, StoreLost, NotRunning: As for `dispatch()`.
        """
        check_named(key, job_id)
        if not await self._discard(key, job_id):
            raise NoSuchLetter(key=key, job_id=job_id)

    async def discard_all(
        self,
        *,
        handler: str = "",
        prefix: str = "",
        cause: str = "",
        older_than_s: float | None = None,
        newer_than_s: float | None = None,
        dry_run: bool = False,
    ) -> int:
        """Throw all dead letters away that match; return how many, or of a dry run would be.

        Raises:
            InvalidOption, StoreUnavailable, StoreLost, NotRunning: As for `replay_all()`.
        """
        wanted = _Wanted(
            handler=handler,
            prefix=prefix,
            cause=cause,
            older_than_s=older_than_s,
            newer_than_s=newer_than_s,
        )
        if checks.flag("dry_run", dry_run):
            return await self._count(wanted)
        return sum([await self._discard(job.key, job.job_id) async for job in self._all(wanted)])

    # --- one ----------------------------------------------------------------------------------

    async def _fetch(self, key: str, job_id: str) -> Letter | None:
        context = self._opened().context
        name = context.lane_of(key).lane.names.letters
        text: bytes | None = await context.pipeline.execute("HGET", name, pair(key, job_id))
        return Letter.parse(key, job_id, text) if text is not None else None

    async def _replay(self, key: str, job_id: str, handler: str) -> JobRef[Any]:
        client = self._opened()
        context = client.context
        state, anew = context.lane_of(key), context.ids.next()
        for _ in range(TRIES_MAX):
            asked_s, generation = context.io.clock(), state.lane.generation
            call = state.lane.replay(
                key,
                job_id,
                anew,
                handler,
                context.targets(key, handler, lane=state.number),
                pending_s=context.timing.pending_timeout_s,
                queued_jobs_max=context.settings.queued_jobs_of_lane,
                expects=state.time.expects(asked_s),
            )
            told: ReplaySaid = await context.pipeline.call(call, repeatable=True)
            match told:
                case Made(made, its_handler):
                    seen = state.seen(asked_s, generation=generation) if made == anew else None
                    return JobRef[Any](key, made, its_handler, client, seen)
                case OtherHandler(handler):
                    continue
                case KeyHas(job_state, owner, live_id, its_handler, kind):
                    facts = {"job_id": live_id, "handler": its_handler, "kind": kind}
                    raise JobExists(key=key, state=job_state, owner=owner, **facts)
                case LaneFull(queued):
                    most = context.settings.queued_jobs_of_lane
                    raise PoolFull(queued_jobs=queued, queued_jobs_max=most)
                case LetterStatus.UNKNOWN:
                    raise UnknownHandler(handler=handler)
                case _:
                    raise _refusal(key, job_id, told)
        raise StoreFault(problem=f"the letter of {key!r} changed {TRIES_MAX} times")

    async def _discard(self, key: str, job_id: str) -> bool:
        context = self._opened().context
        call = context.lane_of(key).lane.letter("discard", key, job_id)
        told: LetterStatus = await context.pipeline.call(call, repeatable=True)
        return told is LetterStatus.DONE

    # --- many ---------------------------------------------------------------------------------

    async def _count(self, wanted: _Wanted) -> int:
        context = self._opened().context
        if wanted.is_all:
            names = [state.lane.names.parked for state in context.lanes]
            return sum([await context.pipeline.execute("ZCARD", name) for name in names])
        return sum([1 async for _ in self._all(wanted)])

    async def _all(self, wanted: _Wanted) -> AsyncIterator[ParkedJob]:
        """Yield each that is there all the time once."""
        cursor, before = "", set[str]()
        while True:
            page = await self._page(wanted, cursor, COUNT_MAX)
            here = {pair(job.key, job.job_id): job for job in page.jobs}
            for name, job in here.items():
                if name not in before:
                    yield job
            before, cursor = {*here}, page.cursor  # again only those of one millisecond may come
            if not cursor:
                return

    async def _page(
        self, wanted: _Wanted, cursor: str, most: int, given: Gaps | None = None
    ) -> ParkedPage:
        context = self._opened().context
        number, at = _place(cursor, len(context.lanes))
        looked, jobs, cursor = 0, list[ParkedJob](), ""
        gaps = await gaps_of(given, context.pipeline, [each.lane.names for each in context.lanes])
        while number < len(context.lanes) and not cursor:
            page: LettersPage | None = None
            if number not in gaps.errors:
                call = self._letters(context, number, wanted, at, most - len(jobs))
                with gaps.reading(number):
                    page = await context.pipeline.call(call, repeatable=True)
            if page is not None:
                looked += page.looked
                jobs += map(_job, page.told)
                if page.at is not None:
                    score, member = page.at
                    cursor = f"{number}.{score}.{member}"
            number, at = number + 1, None
            if len(jobs) >= most and number < len(context.lanes):
                cursor = cursor or f"{number}.."
        return ParkedPage(jobs=tuple(jobs), cursor=cursor, looked_at=looked, unread=gaps.unread)

    def _letters(
        self,
        context: Context,
        number: int,
        wanted: _Wanted,
        at: tuple[str, str] | None,
        found_max: int,
    ) -> ScriptCall:
        state = context.lanes[number]
        now_ms = round(state.now_ms(context.io.clock()))
        older_s, newer_s = wanted.older_than_s, wanted.newer_than_s
        return state.lane.letters(
            at,
            since_ms=None if newer_s is None else now_ms - round(newer_s * 1000),
            until_ms=None if older_s is None else now_ms - round(older_s * 1000),
            found_max=found_max,
            handler=wanted.handler,
            cause=wanted.cause,
            prefix=wanted.prefix,
        )


def _place(cursor: str, lanes: int) -> tuple[int, tuple[str, str] | None]:
    checks.text("cursor", cursor)
    if not cursor:
        return 0, None
    number, _, rest = cursor.partition(".")
    score, dot, member = rest.partition(".")
    if not (dot and is_number(number) and (is_number(score) or not rest[1:])):
        raise checks.cursor_error(cursor)
    return checks.cursor_lane(cursor, int(number), lanes), (score, member) if score else None


def _job(told: ToldLetter) -> ParkedJob:
    letter, outcome = told.letter, told.letter.outcome
    return ParkedJob(
        key=letter.key,
        job_id=letter.id,
        handler=letter.handler,
        kind=letter.kind,
        cause=outcome.cause,
        error=outcome.error,
        attempt=outcome.attempt,
        owner=outcome.owner,
        crashes=outcome.crashes,
        accepted_ms=outcome.accepted_ms,
        started_ms=outcome.started_ms,
        parked_ms=outcome.ended_ms,
        payload_bytes=told.payload_bytes,
        is_edited=any(each == MORE["edited"] for each in outcome.more.split(",")),
        replay_of=more_of(outcome.more, "lineage"),
    )


def _refusal(key: str, job_id: str, told: object) -> PoolError:
    if told is LetterStatus.NO_LETTER:
        return NoSuchLetter(key=key, job_id=job_id)
    problem = f"the letter of {key!r}, or the record of its key, cannot be read"
    return StoreFault(problem=problem, maybe_done=False)
