"""Batches: making one, looking at it, waiting for it and cancelling it.

Batches as whoever is not their maker has them: looked at, waited for, looked through, cancelled.

Who waits is told by a bell that something has ended, and looks for itself; so a bell that nobody
rang costs some seconds, and one that was rung for nothing a look.

Batches as who makes them has them: opened, added to, sealed.

    open --add: note the next members, dispatch them, tell of those refused--> open
      --seal--> sealed --the last one ends--> settled

A member is noted in the batch's lane before its own lane accepts it, under an id that follows from
the batch and its place: so whoever comes again, because the maker died or was not answered, notes
and dispatches the same, and nothing twice.  Others may come while the first is at it, and find the
key free that was taken: so of a member that was refused its lane makes sure that it never begins
(`muster`), before it counts as missing and its maker is told; one that others have brought in since
is not refused.  What was noted and never dispatched is found after the batch was sealed
(`fleet/caretaker.py`), and so is what nobody got to tell of.

The lane refuses it for `missing_s`.  Who asked the batch before that knew of it may dispatch it
still, but never so late: nobody goes by what was asked for over `longest_s` ago, and no call takes
longer.

    muster --longest_s--> tell its batch --longest_s--> counted
                         note it, or ask --longest_s--> dispatch it --longest_s--> still refused
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Self, TypeVar

import anyio
import anyio.lowlevel
import attrs

from pool import checks
from pool.core.batches import (
    CHECK_S,
    IS_BATCH,
    MEMBERS_MAX,
    NOT_ENDED,
    SETTLED_ENDS,
    BatchState,
    End,
    is_member,
    member_id,
    member_of,
    noted,
    outer_of,
)
from pool.core.followers import released
from pool.core.record import MORE, Outcome, Record, more_of
from pool.core.retry import FULL_CAP_S, FULL_S
from pool.errors import (
    BatchDiffers,
    BatchFailed,
    BatchSealed,
    BatchTooLarge,
    DeadlockRisk,
    MiddlewareFailed,
    NoSuchBatch,
    NoSuchJob,
    NotRunning,
    OutcomeExpired,
    PoolError,
    PoolFull,
    StoreError,
    StoreFault,
    StoreLost,
    StoreUnavailable,
    again,
    duration_text,
    shown,
)
from pool.jobs.around import Outgoing, dispatch_through
from pool.jobs.client.dispatch import Call, _checked
from pool.jobs.client.dispatcher import Accepted, Pending
from pool.jobs.client.job_client import Admitting, JobClient
from pool.jobs.client.listing import Gaps, gaps_of
from pool.jobs.client.options import DispatchOptions
from pool.jobs.client.ref import JobRef
from pool.jobs.client.waiters import ASK_AGAIN_S, MEMBERS_TOLD, BatchWaiting
from pool.jobs.followers import COUNTS, Follower, several
from pool.jobs.handlers import Handler
from pool.jobs.job import RUNNING
from pool.names import check_batch, lane_of, pair, split_pair
from pool.redis.commands.admission import Admission
from pool.redis.commands.batches import (
    Added,
    BatchGone,
    BatchHas,
    BatchLooked,
    BatchSealedAt,
    Ended,
    Opened,
    OtherMember,
    Stirred,
)
from pool.redis.commands.talk import Missing, More
from pool.redis.scripts import ScriptCall
from pool.runtime.exceptions import told

if TYPE_CHECKING:
    from pool.jobs.context import LaneState


R = TypeVar("R")

LOOKED_MAX: Final = 10_000  # members that have not ended, of which one look counts those that run
LISTED_MAX: Final = 1_000


@attrs.frozen(kw_only=True)
class BatchStatus:
    """How a batch is at one moment.

    `state` is open, sealed or cancelling; settled, it is done, failed or cancelled.  `expected`
    members were noted; each of them is waiting, running, succeeded, failed (parked), cancelled or
    missing: it was refused, never dispatched, or its lane has lost it.  `running` is counted among
    the first 10,000 that have not ended, which begin first; `Batches.list()` and what
    `BatchRef.wait()` tells leave it 0.  `success_min` members must succeed, None: all.  `cause` is
    why it was cancelled, or that its maker has left it open.  `released` are the jobs (key, id)
    that followed.  `within` is the batch whose member it is, or nothing.  Times are pool time in
    milliseconds; 0 is what has not been.
    """

    id: str
    state: BatchState
    expected: int
    waiting: int
    running: int
    succeeded: int
    failed: int
    cancelled: int
    missing: int
    success_min: int | None
    cause: str = ""
    created_ms: int = 0
    sealed_ms: int = 0
    settled_ms: int = 0
    released: tuple[tuple[str, str], ...] = ()
    within: str = ""

    @property
    def ended(self) -> int:
        """How many members have ended."""
        return self.succeeded + self.failed + self.cancelled + self.missing

    @property
    def is_settled(self) -> bool:
        """Whether nothing of it changes any more."""
        return self.settled_ms > 0


def _status(batch_id: str, found: BatchLooked, running: int = 0) -> BatchStatus:
    head = found.head
    return BatchStatus(
        id=batch_id,
        state=head.state,
        expected=head.members,
        waiting=max(0, head.members - head.ended - running),
        running=running,
        succeeded=head.succeeded,
        failed=head.failed,
        cancelled=head.cancelled,
        missing=head.missing,
        success_min=head.least,
        cause=head.cause,
        created_ms=head.created_ms,
        sealed_ms=0 if head.state == "open" else head.sealed_ms,
        settled_ms=head.settled_ms,
        released=tuple(released(f"{MORE['followers']}{found.released}")),
        within=outer_of(found.parent),
    )


def _failed(status: BatchStatus) -> BatchFailed:
    return BatchFailed(
        batch=status.id,
        state=status.state,
        expected=status.expected,
        succeeded=status.succeeded,
        failed=status.failed,
        cancelled=status.cancelled,
        missing=status.missing,
        cause=status.cause,
    )


@attrs.frozen(kw_only=True, eq=False)
class Member(Generic[R]):
    """A member that has ended: its place in the batch, its job, and how.

    Of a member that is itself a batch `key` is that one's id, and `job_id` is empty.
    """

    index: int
    key: str
    job_id: str
    end: End
    _outcome: Outcome | None = attrs.field(repr=False, default=None)
    _batch: BatchStatus | None = attrs.field(repr=False, default=None)
    _client: JobClient = attrs.field(repr=False)
    _handler: Handler[..., R] | None = attrs.field(repr=False, default=None)

    @property
    def is_batch(self) -> bool:
        """Whether it is itself a batch."""
        return not self.job_id

    def result(self) -> R:
        """Return what its handler returned; of a batch that succeeded None.

        Raises:
            JobParked, JobCancelled: That became of it.
            BatchFailed: Likewise, of a batch.
            NoSuchJob: It is missing.
            NoSuchBatch: It is a batch that is missing, or did not succeed and is forgotten.
            OutcomeExpired: It ended longer ago than its outcome is kept.
            CodecMissing, PayloadEncodingError: As for `JobRef.result()`.
        """
        value: Any = None
        if self.is_batch and self.end != "succeeded":
            raise NoSuchBatch(batch=self.key) if self._batch is None else _failed(self._batch)
        if self.end == "missing":
            raise NoSuchJob(key=self.key, job_id=self.job_id)
        if not self.is_batch:
            if self._outcome is None:
                raise OutcomeExpired(key=self.key, job_id=self.job_id)
            handler = "" if self._handler is None else self._handler.name
            ref = JobRef[Any](self.key, self.job_id, handler, self._client)
            body = ref._read(self._outcome)
            of = None if self._handler is None else self._handler._result
            value = self._client.read_result(of, body)
        return value  # type: ignore[no-any-return]


class Members(AsyncIterator[Member[R]]):
    """The members of a batch in the order in which they end; see `BatchRef.members()`.

    Not an async generator: whoever reads may leave its loop at any time; nothing is left open.
    """

    def __init__(self, ref: BatchRef, handler: Handler[..., R] | None, passed: int) -> None:
        self._ref, self._handler, self._at = ref, handler, passed
        self._page: list[Member[R]] = []

    def __aiter__(self) -> Members[R]:
        return self

    async def __anext__(self) -> Member[R]:
        if not self._page:
            self._page = await self.page()
            self._page.reverse()
        if not self._page:
            raise StopAsyncIteration
        return self._page.pop()

    async def page(self) -> list[Member[R]]:
        """Return the next ones that have ended, once some have; none: it has settled."""
        ref = self._ref
        waiters = ref._client.waiters
        with waiters.for_batch(RUNNING.get()) as waiting:
            while True:
                with waiters.bell(ref.id) as bell:
                    with suppress(StoreUnavailable):  # it is asked again
                        found = await ref._look(is_waiting=True, since=self._at)
                        if found.ended or found.head.is_settled:
                            page = await ref._read(found, self._handler)
                            self._at += len(page)
                            return page
                    await ref._hear(waiting, bell, self._at)


@attrs.define(eq=False)
class BatchRef:
    """A reference to a batch, from any node.  It stays good after restarts of anything."""

    id: str = attrs.field(on_setattr=attrs.setters.frozen)
    _client: JobClient = attrs.field(repr=False)
    _nonce: str = attrs.field(default="", repr=False)  # empty: whichever there is

    async def status(self) -> BatchStatus:
        """Return how it is now.

        Raises:
            NoSuchBatch: There is none of this id (any more).
            StoreUnavailable, StoreLost, NotRunning: As for `Node.dispatch()`.
        """
        found = await self._look()
        if found.head.is_settled:
            return _status(self.id, found)
        running, since, looked = 0, 0, 0
        while looked < LOOKED_MAX:
            page = await self._look(what="open", since=since)
            looked += len(page.open)
            running += len(await self._running(page))
            if page.follows is None:
                break
            since = page.follows
        found = await self._look()
        return _status(self.id, found, min(running, found.head.members - found.head.ended))

    async def wait(
        self,
        timeout_s: float | None = None,
        *,
        on_progress: Callable[[BatchStatus], object] | None = None,
    ) -> BatchStatus:
        """Return how it is once it has settled, whatever became of it; outages are waited out.

        Args:
            timeout_s: How long to wait; None: as long as it takes; 0: what the store says now.
            on_progress: A plain function, called at once and then whenever members have ended,
                for the last time when it has settled.

        Raises:
            InvalidOption: `timeout_s` is no number from 0 to 365 days.
            TimeoutError: It has not settled within `timeout_s`.
            DeadlockRisk: A member's handler waits for the batch that it is in, or one that this one
                is within; or a member waits for the job whose handler asks, also over others and on
                other nodes.  With a `timeout_s` of 0 nobody waits.
            NoSuchBatch, StoreLost, NotRunning: As for `status()`.
        """
        timeout_s = checks.seconds("timeout_s", timeout_s, or_none=True)
        if on_progress is not None:
            checks.plain_function("on_progress", on_progress)
        last: BatchStatus | None = None
        origin, waiters = "" if timeout_s == 0 else RUNNING.get(), self._client.waiters
        with waiters.for_batch(origin) as waiting, anyio.move_on_after(timeout_s or None):
            while True:
                with self._client.waiters.bell(self.id) as bell:
                    before = last
                    with suppress(StoreUnavailable):  # it is asked again
                        last = _status(self.id, await self._look(is_waiting=True))
                    if last is not None and on_progress is not None and last != before:
                        on_progress(last)
                    if last is not None and last.is_settled:
                        return last
                    if timeout_s == 0:
                        break
                    await self._hear(waiting, bell, 0 if last is None else last.ended)
        how = "its store has not answered"
        if last is not None:
            how = f"it is {last.state}, and {last.ended} of {last.expected} have ended"
        assert timeout_s is not None
        late = f"batch {self.id!r} has not settled within {duration_text(timeout_s)}"
        raise TimeoutError(f"{late}: {how}")

    async def result(self, timeout_s: float | None = None) -> BatchStatus:
        """Return how it is once it is done: as many members have succeeded as must.

        Raises:
            BatchFailed: It has settled, and they have not; or it was cancelled.
            InvalidOption, TimeoutError, DeadlockRisk: As for `wait()`.
            NoSuchBatch, StoreLost, NotRunning: As for `status()`.
        """
        status = await self.wait(timeout_s)
        if status.state != "done":
            raise _failed(status)
        return status

    async def cancel(self, cause: str = "stopped") -> None:
        """Have it take no more members, and stop all that have not ended; return once that stands.

        From then on it happens by itself, some members after others, whoever dies; `wait()` waits
        for it.  One that has settled stays as it is.  Of `cause` the first 200 characters are kept.

        Raises:
            InvalidOption: `cause` is no text.
            NoSuchBatch, StoreUnavailable, StoreLost, NotRunning: As for `status()`.
        """
        cause = checks.text("cause", cause)[:200]
        state = self._lane()
        call = state.lane.batch_seal(self.id, self._nonce, -1, check_s=CHECK_S, cause=cause)
        said = await ask(self._client, state, call)
        if isinstance(said, BatchGone):
            raise NoSuchBatch(batch=self.id)
        if isinstance(said, Stirred):
            tell_stirred(self._client, state, said)
            self._client.context.on_due(state.number, 0.0)

    def members(
        self, handler: Handler[..., R] | None = None, *, passed: int = 0
    ) -> Members[R] | Members[Any]:
        """Return its members in the order in which they end: those that have, then each that does.

        That is the order in which their ends reach the lane of the batch: of members in different
        lanes that end within some tens of milliseconds the later one may come first.

        That ends when it has settled; outages are waited out.  However many they are, there is one
        waiter for all, and their outcomes are fetched in pages.

        Args:
            handler: That of all members: by its annotation results are read; None: as JSON.
            passed: How many to pass over, of those that ended first.

        Raises:
            InvalidOption: An argument is none.
            DeadlockRisk: As for `wait()`, in the loop.
            NoSuchBatch, StoreLost, NotRunning: As for `status()`, in the loop.
        """
        if handler is not None:
            checks.instance("handler", handler, Handler)
        return Members(self, handler, checks.count("passed", passed, 0, MEMBERS_MAX))

    # --- for those above ----------------------------------------------------------------------

    def _lane(self) -> LaneState:
        self._client.check_open()
        return self._client.context.lane_of(self.id)

    async def _look(
        self,
        *,
        is_waiting: bool = False,
        what: Literal["ended", "open"] = "ended",
        since: int = 0,
    ) -> BatchLooked:
        state = self._lane()
        call = state.lane.batch_look(
            self.id,
            nonce=self._nonce,
            node=state.node.name if is_waiting else "",
            what=what,
            since=since,
        )
        found: BatchLooked | None = await ask(self._client, state, call)
        if found is None:
            raise NoSuchBatch(batch=self.id)
        self._nonce = found.head.nonce
        return found

    async def _hear(self, waiting: BatchWaiting, bell: anyio.Event, ended: int) -> None:
        """Wait until it rings, or it is time to ask again; so many members have ended.

        Raises:
            DeadlockRisk: It is a handler that waits, and a member waits for that.
        """
        key, job_id = split_pair(waiting.origin) if waiting.origin else ("", "")
        if waiting.origin and not waiting.nonce:
            await self._check_waits(key, job_id)
        clock = self._client.context.io.clock
        if ended != waiting.ended:
            waiting.ended, waiting.tells_s = ended, clock() + ASK_AGAIN_S
        waiting.nonce, waiting.bell = self._nonce, bell
        with anyio.move_on_after(ASK_AGAIN_S):
            await bell.wait()
        if waiting.is_circle:
            raise DeadlockRisk(key=key, job_id=job_id, batch=self.id)
        if waiting.origin and clock() >= waiting.tells_s:
            waiting.tells_s = clock() + ASK_AGAIN_S
            with suppress(StoreUnavailable, NoSuchBatch):
                waiting.running = await self._running_members(MEMBERS_TOLD)
            self._client.waiters.tell_members(waiting)

    async def _running_members(self, most: int) -> dict[str, tuple[int, str]]:
        """Return of members that run, and those of batches within, where and by whom."""
        running, left = dict[str, tuple[int, str]](), [self]
        while left and len(running) < most:
            page = await left.pop()._look(what="open")
            running |= await self._running(page)
            kids = [key.removeprefix(IS_BATCH) for _, key in page.open if key[:1] == IS_BATCH]
            left += [BatchRef(kid, self._client) for kid in kids[: most - len(left)]]
        return dict(islice(running.items(), most))

    async def _check_waits(self, key: str, job_id: str) -> None:
        """Refuse that a member's handler waits for its batch, or for one around that."""
        if not is_member(job_id):
            return
        try:
            found, _ = await self._client.look(key, job_id)
            outer = outer_of(more_of(found.more, "batch"))
            while outer and outer != self.id:
                around = await BatchRef(outer, self._client)._look()
                outer = outer_of(around.parent)
        except (NoSuchJob, NoSuchBatch, StoreUnavailable):
            return  # whatever it is a member of, that is not to be found out now
        if outer:
            raise DeadlockRisk(key=key, job_id=job_id, batch=outer)

    async def _running(self, page: BatchLooked) -> dict[str, tuple[int, str]]:
        """Return those of a page that run, each with its lane and owner."""
        context = self._client.context
        shares = defaultdict[int, list[tuple[str, str]]](list)
        for index, key in page.open:
            if key[:1] != IS_BATCH:
                number = lane_of(key, len(context.lanes))
                shares[number].append((key, member_id(page.head.nonce, index)))
        running = dict[str, tuple[int, str]]()
        for number, share in shares.items():
            jobs = context.lanes[number].lane.names.jobs
            texts = await context.pipeline.execute("HMGET", jobs, *(key for key, _ in share))
            for (key, job_id), text in zip(share, texts, strict=True):
                record = Record.parse(text) if text is not None else None
                if record is not None and (record.id, record.state) == (job_id, "running"):
                    running[pair(key, job_id)] = number, record.owner
        return running

    async def _read(self, found: BatchLooked, handler: Handler[..., R] | None) -> list[Member[R]]:
        """Fetch the outcomes of some that have ended."""
        context, nonce = self._client.context, found.head.nonce
        outcomes = dict[int, Outcome]()
        shares = defaultdict[int, list[Ended]](list)
        for each in found.ended:
            if each.end != "missing" and each.key[:1] != IS_BATCH:
                shares[lane_of(each.key, len(context.lanes))].append(each)
        for number, left in shares.items():
            state, share = context.lanes[number], left
            while share:
                jobs = [(each.key, member_id(nonce, each.index)) for each in share]
                told = await ask(self._client, state, state.lane.look(jobs))
                more = list[Ended]()
                for each, answer in zip(share, told, strict=True):
                    if isinstance(answer, Outcome):
                        outcomes[each.index] = answer
                    elif isinstance(answer, More):
                        more.append(each)
                    else:
                        assert isinstance(answer, (Missing, Record)), "no other answer"
                share = more
        batches = dict[int, BatchStatus]()
        for each in found.ended:
            if each.key[:1] == IS_BATCH and each.end in ("failed", "cancelled"):
                ref = BatchRef(each.key.removeprefix(IS_BATCH), self._client)
                with suppress(NoSuchBatch):
                    status = _status(ref.id, await ref._look())
                    if status.is_settled:  # else it is another one
                        batches[each.index] = status
        return [
            Member(
                index=each.index,
                key=each.key.removeprefix(IS_BATCH),
                job_id="" if each.key[:1] == IS_BATCH else member_id(nonce, each.index),
                end=each.end,
                outcome=outcomes.get(each.index),
                batch=batches.get(each.index),
                client=self._client,
                handler=handler,
            )
            for each in found.ended
        ]


@attrs.define(eq=False)
class Batches:
    """The batches of a pool."""

    _opened: Callable[[], JobClient]  # raises where the node is not open

    def get(self, id: str) -> BatchRef:
        """Return a reference; nothing is asked: whether there is such a batch its calls tell.

        Raises:
            InvalidOption: No batch can be called so.
            NotRunning: The node is not open.
        """
        check_batch(id)
        return BatchRef(id, self._opened())

    async def list(self, *, newest: int = 100, gaps: Gaps | None = None) -> list[BatchStatus]:
        """Return the newest ones, the last that was opened first; those that run in them are not
        counted.

        Args:
            newest: How many at most, 1 to 1,000.
            gaps: Leave out lanes that do not answer, and note them here; None: they are an error.

        Raises:
            InvalidOption: It is no such number.
            StoreUnavailable, StoreLost, NotRunning: As for `Node.dispatch()`.
        """
        newest = checks.count("newest", newest, 1, LISTED_MAX)
        client = self._opened()
        context = client.context
        opened: list[tuple[float, bytes, LaneState]] = []
        known = await gaps_of(gaps, context.pipeline, [each.lane.names for each in context.lanes])
        for state in context.lanes:
            if state.number in known.errors:
                continue
            with known.reading(state.number):
                there = ("ZRANGE", state.lane.names.batches, 0, newest - 1, "REV", "WITHSCORES")
                told = await context.pipeline.execute(*there)
                of_lane = zip(told[::2], told[1::2], strict=True)
                opened += ((float(ms), each, state) for each, ms in of_lane)
        opened.sort(key=itemgetter(0), reverse=True)
        found = list[BatchStatus]()
        for _, each, state in opened[:newest]:
            batch_id = each.decode(errors="replace")
            call = state.lane.batch_look(batch_id, members_max=0)
            looked: BatchLooked | None = None
            if state.number not in known.errors:
                with known.reading(state.number):
                    looked = await ask(client, state, call)
            if looked is not None:
                found.append(_status(batch_id, looked))
        return found


async def ask(client: JobClient, state: LaneState, call: ScriptCall) -> Any:
    """Return what a lane answers.

    Raises:
        StoreLost, StoreUnavailable: It does not, or has lost its data.
    """
    client.check_open()
    try:
        return await client.context.pipeline.call(call, repeatable=True)
    except StoreLost:
        client.context.on_data_lost(state.number)
        raise StoreLost(pool=client.pool) from None


def tell_stirred(client: JobClient, state: LaneState, stirred: Stirred) -> None:
    """Tell who waits, and have carried what a lane has for others."""
    for names, batch_id in stirred.waits:
        client.requests.tell_waiters(state.number, names, "batch", batch_id, b"")
    if stirred.has_due:
        client.context.on_due(state.number, 0.0)


OPEN_S: Final = 3600.0  # after so long without a new member it is sealed
KEEP_S: Final = 86_400.0
NOTED: Final = 2048  # members noted by one call
SLICE: Final = 256  # of these dispatched at once; the next ones are prepared meanwhile
_CALLS: Final = "Call(...) or keys"
_OPTIONS: Final = DispatchOptions()


@attrs.frozen(kw_only=True)
class Refused:
    """A member that was not accepted, and why; it counts as missing."""

    index: int
    key: str
    error: PoolError


@attrs.frozen(kw_only=True)
class BatchOptions:
    """How a batch is opened; see `Node.batch()`."""

    then: tuple[Follower, ...]
    otherwise: tuple[Follower, ...]
    success_min: int | None
    open_s: float
    keep_s: float
    within: Batch | None


@attrs.define(eq=False)
class _Noted:
    """Members that were noted, and how each had ended when that was asked last."""

    words: Sequence[str]
    asked_s: float = -math.inf
    letters: str = ""
    lock: anyio.Lock = attrs.field(factory=lambda: anyio.Lock(fast_acquire=True))


class Batch:
    """A batch that is being made: `async with node.batch(id) as batch`, see `Node.batch()`.

    Entering opens it; leaving seals it.  Left by an exception it stays open: who enters one of that
    id again, and adds the same members, goes on with it.
    """

    def __init__(
        self, opened: Callable[[], JobClient], batch_id: str, options: BatchOptions
    ) -> None:
        self.id: str = batch_id
        self._opened, self._options = opened, options
        self._client: JobClient
        self._nonce = ""  # until it is entered
        self._added = 0
        self._is_sealed = False
        self._lock = anyio.Lock(fast_acquire=True)

    @property
    def added(self) -> int:
        """How many members have been added: noted, and accepted or refused."""
        return self._added

    @property
    def ref(self) -> BatchRef:
        """A reference to it.

        Raises:
            NotRunning: The node is not open.
        """
        return BatchRef(self.id, self._opened(), self._nonce)

    async def __aenter__(self) -> Self:
        self._client, outer = self._opened(), self._options.within
        self._added, self._is_sealed = 0, False  # of a former time
        if outer is None:
            await self._open("")
            return self
        async with outer._lock:
            await self._open_within(outer)
            outer._added += 1  # only now: who is not answered, and comes again, is the same member
        return self

    async def _open_within(self, outer: Batch) -> None:
        """Open it as the next member of another one: noted there, then opened here.

        Who dies between leaves a member that is looked after, and that whoever comes again finds.
        One that is there stays what it is: its end goes to the batch within which it was opened.
        One that has ended tells it to nobody any more, so we do; who dies before leaves that, too,
        to whoever looks after the outer one.
        """
        outer._check_open()
        index, lane = outer._added, outer._lane
        parent = member_of(outer.id, outer._nonce, lane.number, index)
        found: BatchLooked | None = await ask(
            self._client, self._lane, self._lane.lane.batch_look(self.id, members_max=0)
        )
        if found is not None and not found.head.is_settled:
            self._check_within(parent, found.parent)  # before it is noted
        words = await outer._note([IS_BATCH + self.id])
        opened = await self._open(parent)
        letter = SETTLED_ENDS.get(opened.state, "")
        if not (letter or opened.is_new) and opened.parent != parent:
            letter = "m"  # somebody else has opened it meanwhile
        if letter and words == NOT_ENDED:
            await outer._tell_ends([(index, letter)])
        if letter == "m":
            outer._added += 1
            self._check_within(parent, opened.parent)

    def _check_within(self, asked: str, known: str) -> None:
        if known != asked:
            raise BatchDiffers(
                batch=self.id,
                index=int(asked.partition("/")[0]),
                differs="within",
                known=outer_of(known),
                asked=outer_of(asked),
            )

    async def _open(self, parent: str) -> Opened:
        client, options = self._client, self._options
        nonce = client.context.ids.next("b")
        packed = b""
        if options.then or options.otherwise:
            packed = client.packer().pack(
                options.then, options.otherwise, key=self.id, job_id=nonce, after=COUNTS
            )
        state = self._lane
        call = state.lane.batch_open(
            self.id,
            nonce,
            least=options.success_min,
            keep_s=options.keep_s,
            open_s=options.open_s,
            parent=parent,
            followers=packed,
        )
        opened: Opened | None = await ask(client, state, call)
        if opened is None:
            problem = f"{self.id!r} is the name of something else"
            raise StoreFault(problem=problem, maybe_done=False)
        self._nonce = opened.nonce
        return opened

    async def __aexit__(self, kind: object, error: object, traceback: object) -> None:
        if kind is None and not self._is_sealed:
            await self.seal()

    @property
    def _lane(self) -> LaneState:
        return self._client.context.lane_of(self.id)

    async def add(
        self, handler: Handler[..., Any] | str, calls: Iterable[Call | str]
    ) -> list[Refused]:
        """Add members, some thousand at a time; return those that were refused just now.

        They are jobs as any other, of any key: they run at once, whether or not it is sealed.  A
        pool that is full is waited for.  What is refused otherwise (the key has a live job, say)
        counts as missing.

        If it raises, all that `added` counts is added; the next ones may be: add them again.

        Args:
            handler: As for `Node.dispatch()`.
            calls: `Call(key, *args, **kwargs)` each, or just a key.

        Raises:
            BatchSealed: It has been sealed, or cancelled.
            BatchDiffers: It was entered again, and had another member there: another key, handler
                or other arguments.
            BatchTooLarge: It would have over 1,000,000 members.
            NoSuchBatch: It is gone.
            InvalidKey, InvalidOption, ConfigError: Of these, nothing was added, nor of some before
                them.  A call that was `identified()` is refused: a member's id is made of the batch
                and its place.
            PayloadEncodingError, PayloadTooLarge, WrongArguments: Likewise.
            StorageFull, StoreUnavailable, StoreLost, NotRunning: As for `Node.dispatch()`.
        """
        given = iter(checks.several("calls", calls, _CALLS))
        refused = list[Refused]()
        async with self._lock:
            self._check_open()
            admitting = self._client.admitting(handler, _OPTIONS)
            while some := list(islice(given, NOTED)):
                checked = [Call(each) if isinstance(each, str) else _unnamed(each) for each in some]
                refused += await self._add(admitting, checked)
        return refused

    async def seal(self) -> None:
        """Seal it: it has all its members, and settles when the last of them has ended.

        Raises:
            BatchSealed: It is sealed already; by others, with fewer members, say.
            NoSuchBatch, StorageFull, StoreUnavailable, StoreLost, NotRunning: As for `add()`.
        """
        async with self._lock:
            self._check_open()
            state = self._lane
            call = state.lane.batch_seal(self.id, self._nonce, self._added, check_s=CHECK_S)
            said = await ask(self._client, state, call)
            self._check(said)
            self._is_sealed = True
            if isinstance(said, Stirred):
                tell_stirred(self._client, state, said)

    def _check_open(self) -> None:
        if not self._nonce:
            raise NotRunning(state="new")
        self._opened()
        if self._is_sealed:
            raise BatchSealed(batch=self.id, members=self._added)

    def _check(self, said: object) -> None:
        match said:
            case BatchGone():
                raise NoSuchBatch(batch=self.id)
            case BatchSealedAt(members):
                raise BatchSealed(batch=self.id, members=members)
            case BatchHas(members):
                raise BatchTooLarge(batch=self.id, members=members, members_max=MEMBERS_MAX)

    async def _note(self, words: Sequence[str]) -> str:
        """Note the next members; return how each has ended, if it has."""
        state, first = self._lane, self._added
        call = state.lane.batch_add(self.id, self._nonce, first, words)
        said = await ask(self._client, state, call)
        if isinstance(said, OtherMember):
            # That of a gap is before the first.
            asked = words[said.index - first] if said.index >= first else ""
            raise self._differs(said.index, said.there.split("\t"), asked.split("\t"))
        self._check(said)
        assert isinstance(said, Added), "all others were refused"
        return said.words

    def _differs(self, index: int, known: Sequence[str], asked: Sequence[str]) -> BatchDiffers:
        differs, at = ("key", 0) if known[0] != asked[0] else ("call", -1)
        known_as, asked_as = known[at].lstrip(IS_BATCH), asked[at].lstrip(IS_BATCH)
        return BatchDiffers(
            batch=self.id, index=index, differs=differs, known=known_as, asked=asked_as
        )

    async def _add(self, admitting: Admitting, calls: Sequence[Call]) -> list[Refused]:
        first = self._added
        items = list[Admission]()
        for n, call in enumerate(calls, first):
            try:
                items.append(self._item(admitting, n, call))
            except PoolError as wrong:
                named = f"of key {shown(call.key)!r}"
                wrong.add_note(f"It is call {n} of the batch, from 0 on, {named}.")
                raise
        noting = _Noted([noted(each.key, each.handler, each.payload) for each in items])
        left = [n for n, word in enumerate(await self._letters(noting)) if word == NOT_ENDED]
        answers = dict[int, Accepted | PoolError]()
        if admitting.around:

            async def one(n: int) -> None:
                answers[n] = await self._through(admitting, noting, n, calls[n])

            for i in range(0, len(left), SLICE):
                async with anyio.create_task_group() as tasks:
                    for n in left[i : i + SLICE]:
                        tasks.start_soon(one, n)
        else:
            await self._dispatch(noting, dict(enumerate(items)), left, answers)
        in_order = sorted(answers.items(), key=itemgetter(0))
        errors = {n: each for n, each in in_order if isinstance(each, PoolError)}
        for error in errors.values():
            if isinstance(error, (StoreError, NotRunning)):
                raise again(error)
        # One that is over may be so because it was refused to who has not told of it.
        over = [n for n, each in in_order if isinstance(each, PoolError) or each.seen is None]
        missing = await self._never_to_begin([items[n] for n in over]) if over else ()
        if missing:
            await self._tell_ends([(first + n, "m") for n in over if items[n].id in missing])
        self._added += len(calls)
        return [
            Refused(index=first + n, key=calls[n].key, error=error)
            for n, error in errors.items()
            if items[n].id in missing
        ]

    async def _letters(self, noting: _Noted) -> str:
        """Return how members have ended; note them, or ask anew if that was long ago."""
        context = self._client.context
        async with noting.lock:
            now_s = context.io.clock()
            if now_s > noting.asked_s + context.settings.longest_s:
                noting.letters = await self._note(noting.words)
                noting.asked_s = now_s
        return noting.letters

    async def _never_to_begin(self, items: Sequence[Admission]) -> Collection[str]:
        """Return which jobs are not there; their lanes make sure that they never will be."""
        client, missing = self._client, set[str]()
        clock, settings = client.context.io.clock, client.context.settings
        asked_s = clock()
        shares = defaultdict[int, list[tuple[str, str]]](list)
        for item in items:
            shares[client.context.lane_of(item.key).number].append((item.key, item.id))
        for number, jobs in shares.items():
            state, most = client.context.lanes[number], self._lane.lane.pages.mustered
            if not state.lane.generation:
                raise StoreUnavailable(problem=f"lane {number} is not joined yet", maybe_done=False)
            for i in range(0, len(jobs), most):
                some = jobs[i : i + most]
                expects = state.time.expects(clock())
                call = state.lane.muster(some, missing_s=settings.missing_s, expects=expects)
                words: Sequence[str] = await ask(client, state, call)
                told = zip(some, words, strict=True)
                missing |= {job_id for (_, job_id), word in told if word == "m"}
        if clock() > asked_s + settings.longest_s:
            raise StoreUnavailable(
                problem="what was refused is not counted so late", maybe_done=True
            )
        return missing

    def _item(self, admitting: Admitting, index: int, call: Call) -> Admission:
        item = admitting.admission(call.key, call.args, call.kwargs, is_compared=True)
        item.id = member_id(self._nonce, index)
        mine = MORE["batch"] + member_of(self.id, self._nonce, self._lane.number, index)
        item.more = f"{item.more},{mine}" if item.more else mine
        item.go_by(item.policy)
        return item

    async def _dispatch(
        self,
        noting: _Noted,
        items: Mapping[int, Admission],
        left: list[int],
        answers: dict[int, Accepted | PoolError],
    ) -> None:
        """Dispatch those that are left, a slice ahead; wait for room as long as it takes.

        Where the store fails the others are left: they are added again together.  What has ended
        meanwhile, by whatever other maker, is not sent.
        """
        dispatcher, pause_s = self._client.dispatcher, FULL_S
        while left:
            under_way, is_over = list[tuple[int, Pending]](), False
            for i in range(0, len(left) + SLICE, SLICE):
                # Nobody is asked for more where some have found no room.
                some = [] if is_over else left[i : i + SLICE]
                letters = await self._letters(noting) if some else ""
                for n in some:
                    if letters[n] != NOT_ENDED:
                        answers[n] = Accepted(items[n].key, items[n].id, items[n].handler, None)
                some = [n for n in some if letters[n] == NOT_ENDED]
                admitted = dispatcher.admit([items[n] for n in some], is_bounded=False)
                await anyio.lowlevel.checkpoint()
                for n, pending in under_way:
                    answers[n] = answer = await pending.wait()
                    is_over = is_over or isinstance(answer, (PoolFull, StoreError, NotRunning))
                under_way = list(zip(some, admitted, strict=True))
            if any(isinstance(each, (StoreError, NotRunning)) for each in answers.values()):
                return
            before, left = left, [n for n in left if isinstance(answers.get(n), PoolFull | None)]
            if left:
                await anyio.sleep(pause_s)
                pause_s = min(2 * pause_s, FULL_CAP_S) if len(left) == len(before) else FULL_S

    async def _through(
        self, admitting: Admitting, noting: _Noted, n: int, call: Call
    ) -> Accepted | PoolError:
        """Dispatch one by way of middleware, which cannot give a member another key.

        What the store has said of it counts, whatever the middleware makes of that.
        """
        client, answers = self._client, dict[int, Accepted | PoolError]()

        async def send(outgoing: Outgoing) -> JobRef[Any]:
            if outgoing.key != call.key:
                raise checks.option("key", outgoing.key, f"{call.key!r}: it is noted so")
            changed = Call(outgoing.key, *outgoing.args, **dict(outgoing.kwargs))
            item = self._item(admitting, self._added + n, changed)
            await self._dispatch(noting, {n: item}, [n], answers)
            accepted = answers[n]
            if isinstance(accepted, PoolError):
                raise again(accepted)
            return JobRef[Any](accepted.key, accepted.job_id, accepted.handler, client)

        outgoing = Outgoing(
            handler=admitting.name,
            key=call.key,
            args=call.args,
            kwargs=call.kwargs,
            options=_OPTIONS.told(),
        )
        failed: PoolError = MiddlewareFailed(key=call.key, problem="it has dispatched nothing")
        try:
            await dispatch_through(admitting.around, outgoing, send)
        except PoolError as error:
            failed = error.with_traceback(None)
        except Exception as error:  # noqa: BLE001 - of the middleware
            failed = MiddlewareFailed(key=call.key, problem=told(error))
            failed.__cause__ = error.with_traceback(None)
        return answers.get(n, failed)

    async def _tell_ends(self, items: Sequence[tuple[int, str]]) -> None:
        """Have members counted, by a letter each; see `core/batches.py`."""
        state = self._lane
        call = state.lane.batch_ends(self.id, self._nonce, items)
        said = await ask(self._client, state, call)
        self._check(said)
        if isinstance(said, Stirred):
            tell_stirred(self._client, state, said)


def _unnamed(given: object) -> Call:
    """Take a call that has no id of its own: as a member it would be another job than by that."""
    call = _checked(given)
    if call._known:
        must = "a call without an id: a member is known by its batch and its place there"
        raise checks.option("calls", call, must)
    return call


def batch_options(
    batch_id: str,
    then: Follower | Iterable[Follower],
    otherwise: Follower | Iterable[Follower],
    success_min: int | None,
    open_s: float,
    keep_s: float,
    within: Batch | None,
) -> BatchOptions:
    """Return checked options of a batch; raises as `Node.batch()`."""
    if success_min is not None:
        success_min = checks.count("success_min", success_min, 0, MEMBERS_MAX)
    if within is not None and not issubclass(type(within), Batch):
        raise checks.option("within", within, "a Batch that is being made")
    if within is not None and within.id == batch_id:
        raise checks.option("within", batch_id, "another batch: within itself it would never end")
    open_s, keep_s = checks.seconds("open_s", open_s), checks.seconds("keep_s", keep_s)
    for name, value in (("open_s", open_s), ("keep_s", keep_s)):
        if value < 1:
            raise checks.option(name, value, "1 s or more")
    return BatchOptions(
        then=several("then", then),
        otherwise=several("otherwise", otherwise),
        success_min=success_min,
        open_s=open_s,
        keep_s=keep_s,
        within=within,
    )
