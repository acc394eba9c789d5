"""Batches as who makes them has them: opened, added to, sealed.

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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Self

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
    member_id,
    member_of,
    noted,
    outer_of,
)
from pool.core.record import MORE
from pool.core.retry import FULL_CAP_S, FULL_S
from pool.errors import (
    BatchDiffers,
    BatchSealed,
    BatchTooLarge,
    MiddlewareFailed,
    NoSuchBatch,
    NotRunning,
    PoolError,
    PoolFull,
    StoreError,
    StoreFault,
    StoreUnavailable,
    again,
    shown,
)
from pool.jobs.around import Outgoing, dispatch_through
from pool.jobs.client.batch_ref import BatchRef, ask, tell_stirred
from pool.jobs.client.dispatch import Call, _checked
from pool.jobs.client.dispatcher import Accepted, Pending
from pool.jobs.client.job_client import Admitting, JobClient
from pool.jobs.client.options import DispatchOptions
from pool.jobs.client.ref import JobRef
from pool.jobs.followers import COUNTS, Follower, several
from pool.jobs.handlers import Handler
from pool.redis.commands.admission import Admission
from pool.redis.commands.batches import (
    Added,
    BatchGone,
    BatchHas,
    BatchLooked,
    BatchSealedAt,
    Opened,
    OtherMember,
    Stirred,
)
from pool.runtime.exceptions import told

if TYPE_CHECKING:
    from pool.jobs.context import LaneState

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
