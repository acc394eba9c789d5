"""Admissions on their way out.

    dispatch() --> queue per lane --batch--> flying --dispatch.lua--> each caller's own channel
                         ^                     |
                         |<-- a pause: again <-+-- failed, or refused for now

Only this actor touches the three; an admission is in one of them until it is answered, once.  After
a crash what was flying may have been carried out: it is sent again, and the answers to its former
calls are too late.  When the actor ends for good, all that waits is answered.

Dispatch is the grant: an admission carries its candidate in the first try, more candidates and
leave to stay unassigned in the second.  Repeating an admission is safe: its id is looked up first.
Each caller has a channel of its own, so one that never reads blocks nobody.

What waits is bounded in bytes, and refused at once.  An admission's time is what passes while the
line of its lane stands still, as any call's (see `Pipeline`), until it has been tried once: what
was refused or lost does not wait longer because something else moves.

A full server refuses a whole call at its first write.  The call is sent once more, only to be
answered: repeats, jobs that exist or have ended get their answers, all others StorageFull.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Final, TypeAlias

import attrs

from pool import checks
from pool.core.record import limits_s, more_of
from pool.core.retry import DISPATCH_RETRY_S, refused_delay
from pool.errors import (
    ArgumentsDiffer,
    IdempotencyConflict,
    JobExists,
    JobStopping,
    NotRunning,
    PoolError,
    PoolFull,
    QueueFull,
    StorageFull,
    StoreFault,
    StoreLost,
    StoreUnavailable,
    UnknownHandler,
    unsure,
)
from pool.events import JobAccepted
from pool.jobs.context import TARGETS_MAX, Context, Ranks, Seen
from pool.redis import pipeline
from pool.redis.commands.admission import (
    Admission,
    Admitted,
    Conflict,
    Differs,
    Elsewhere,
    Exists,
    Full,
    LineFull,
    Policy,
    Queued,
    Replayed,
    Said,
    Stopping,
)
from pool.redis.commands.calls import Target
from pool.redis.io.system import Reply, Waiter
from pool.runtime.actor import Actor
from pool.runtime.observers import JobListeners

BATCH_MAX: Final = 256  # admissions in one call
BATCH_BYTES_MAX: Final = pipeline.BATCH_BYTES_MAX  # of payloads in one call
WAITING_BYTES_MAX: Final = pipeline.WAITING_BYTES_MAX  # of payloads that were not answered
FLIGHTS_MAX: Final = 2  # calls of one lane under way: one is carried out, one is on the wire
SATURATED_S: Final = 0.25  # for so long, a handler without room is not tried with one target first
KNOWN_MAX: Final = 10_000  # handlers remembered as registered


# --- what callers wait on -----------------------------------------------------------------------


@attrs.define(eq=False)
class Accepted:
    """The job is recorded; `job_id` is another one's when the caller attached to it.

    Not frozen only because that costs time.
    """

    key: str
    job_id: str
    handler: str
    seen: Seen | None  # None: it has ended since


@attrs.define(eq=False)
class Load:
    """How many bytes of payloads wait for their answers."""

    bytes: int = 0


@attrs.define(eq=False)
class Pending:
    """One admission and the channel of the one who asked for it."""

    item: Admission
    deadline_s: float
    until_s: float  # ... at the latest
    load: Load
    new_waiter: Callable[[], Waiter]
    answer: Accepted | PoolError | None = None
    failure: PoolError | None = None  # of the last call that had it
    maybe_done: bool = False  # one of the calls that had it may have been carried out
    generation: str = ""  # whose data the first of those was for, if there is one
    _waiter: Waiter | None = None  # of who waits; of a batch, hardly any has to

    async def wait(self) -> Accepted | PoolError:
        """Return the answer.  Once, by one task."""
        if self.answer is None:
            self._waiter = self.new_waiter()
            await self._waiter.wait()
            assert self.answer is not None
        return self.answer

    def resolve(self, answer: Accepted | PoolError) -> None:
        if self.answer is None:
            if self._waiter is not None:
                self._waiter.take(None)  # first: if that was interrupted, it is answered anew
            self.answer = answer
            self.load.bytes -= len(self.item.payload)

    def go_on(self, moved_s: float, op_timeout_s: float) -> None:
        """Take into account that the line has moved then."""
        if self.failure is None:
            self.deadline_s = max(self.deadline_s, min(moved_s + op_timeout_s, self.until_s))

    def doubt(self, lane: _Lane, generation: str) -> None:
        """A call that had it may have been carried out, or may still be."""
        if not self.maybe_done:
            self.maybe_done, self.generation = True, generation
        lane.doubted_s = max(lane.doubted_s, self.deadline_s)

    def fail(self, error: PoolError) -> None:
        """Tell why the last call failed; what one before it may have done, that must not deny."""
        self.resolve(unsure(error) if self.maybe_done else attrs.evolve(error))


_payload_of: Final[Callable[[Admission], bytes]] = attrgetter("payload")


# --- messages -----------------------------------------------------------------------------------


@attrs.frozen
class _Admitted:
    lane: int
    batch: Sequence[Pending]
    reply: Reply
    asked_s: float
    only_answered: bool  # nothing was to be written: the server is full
    generation: str  # as the call named it


@attrs.frozen
class _Retry:
    lane: int


@attrs.frozen
class _Due:
    """Somebody's time is up who waits to be sent."""

    lane: int


Message: TypeAlias = _Admitted | _Retry | _Due


@attrs.define(eq=False)
class _Lane:
    queue: deque[Pending] = attrs.field(factory=deque)
    flying: list[Sequence[Pending]] = attrs.field(factory=list)  # whose calls are under way
    again: list[Pending] = attrs.field(factory=list)  # to be sent again when a pause is over
    failures: int = 0  # of calls, in a row
    doubted_s: float = 0.0  # until then, something may be sent again that may be done
    due_s: float = math.inf  # when it is looked whose time is up of these and of the queue
    owners: set[Target] = attrs.field(factory=set)  # who has what is to be compared with


@attrs.define(eq=False, kw_only=True)
class Dispatcher(Actor[Message]):
    """Sends admissions in batches, and tells each caller what became of theirs."""

    inbox_max: int = 65_536
    context: Context
    _load: Load = attrs.field(init=False, factory=Load)
    # By number, made as they are asked for.
    _lanes: dict[int, _Lane] = attrs.field(init=False, factory=partial(defaultdict, _Lane))
    _saturated: dict[str, float] = attrs.field(init=False, factory=dict)  # handler -> until
    _known: set[str] = attrs.field(init=False, factory=set)  # handlers that were registered

    # --- for the node -------------------------------------------------------------------------

    def admit(self, items: Sequence[Admission], *, is_bounded: bool = True) -> list[Pending]:
        """Take admissions; each one's `wait()` returns an `Accepted` or an error.

        Unless whoever asks bounds by itself how much waits, what is too much is refused.
        """
        now_s, settings, load = self.context.io.clock(), self.context.settings, self._load
        deadline_s, until_s = now_s + settings.op_timeout_s, now_s + settings.longest_s
        waiter, before = self.context.loop.waiter, load.bytes
        taken = [Pending(item, deadline_s, until_s, load, waiter) for item in items]
        load.bytes += sum(map(len, map(_payload_of, items)))
        if is_bounded and before and load.bytes > WAITING_BYTES_MAX:
            problem = f"not sent: {before} bytes wait already"
            for pending in taken:
                pending.resolve(StoreUnavailable(problem=problem, maybe_done=False))
            return taken
        if self.state in ("stopping", "ended"):
            for pending in taken:
                pending.resolve(NotRunning(state="closed"))
            return taken
        lanes = defaultdict[int, list[Pending]](list)
        if len(self.context.lanes) == 1:
            lanes[0] = taken
        else:
            for pending in taken:
                lanes[self.context.lane_of(pending.item.key).number].append(pending)
        for number, some in lanes.items():
            self._lanes[number].queue.extend(some)
            self.attempt(self._flush, number)
        return taken

    # --- the actor ----------------------------------------------------------------------------

    def begin(self) -> None:
        # What a crash left under way is sent again; the answers to its former calls are too late.
        for number, lane in list(self._lanes.items()):
            flying, lane.flying = [*chain(*lane.flying)], []
            for pending in flying:
                pending.doubt(lane, self.context.lanes[number].lane.generation)
            lane.again = [p for p in (*flying, *lane.again) if p.answer is None]
            lane.due_s = math.inf
            self._resume(number)

    def handle(self, message: Message) -> None:
        match message:
            case _Admitted(lane, batch):
                flying = self._lanes[lane].flying
                # Else it is the answer to a call of before a crash.  Forgotten last: a crash now
                # would have nobody else know of it; by then it may be under way once more.
                if any(each is batch for each in flying):
                    self._on_admitted(message)
                    del flying[next(i for i, each in enumerate(flying) if each is batch)]
                self._flush(lane)
            case _Retry(lane):
                self._resume(lane)
            case _Due(lane):
                self._on_due(lane)

    def ended(self, crash: BaseException | None) -> None:
        if crash is not None:
            return  # it will be run again
        left = StoreUnavailable(problem="the node left before an answer came", maybe_done=True)
        for lane in self._lanes.values():
            for pending in chain(*lane.flying):
                pending.fail(left)
            for pending in (*lane.queue, *lane.again):
                pending.fail(left if pending.maybe_done else NotRunning(state="closed"))
            lane.flying.clear()
            lane.queue.clear()
            lane.again.clear()

    # --- admissions ---------------------------------------------------------------------------

    def _flush(self, number: int) -> None:
        lane = self._lanes[number]
        while lane.queue and len(lane.flying) < FLIGHTS_MAX:
            queue, batch, size_bytes = lane.queue, list[Pending](), 0
            while queue and len(batch) < BATCH_MAX:
                size_bytes += len(queue[0].item.payload)
                if size_bytes > BATCH_BYTES_MAX and batch:
                    break  # one alone may be larger
                batch.append(queue.popleft())
            self._send(number, lane, batch)
        self._watch(number, lane)

    def _watch(self, number: int, lane: _Lane) -> None:
        """Have those answered in time who wait to be sent, behind calls that may last longer."""
        firsts = [each[0].deadline_s for each in (lane.queue, lane.again) if each]
        if firsts:
            due_s = min(firsts)
            if due_s < lane.due_s:
                lane.due_s = due_s
                left_s = due_s - self.context.io.clock()
                self.context.loop.later(
                    max(DISPATCH_RETRY_S, left_s), lambda: self.put(_Due(number))
                )

    def _on_due(self, number: int) -> None:
        lane, now_s = self._lanes[number], self.context.io.clock()
        moved_s = self._moved_s(number)
        for pending in lane.queue:
            pending.go_on(moved_s, self.context.settings.op_timeout_s)
        late = [p for p in (*lane.queue, *lane.again) if p.deadline_s <= now_s]
        lane.queue = deque(p for p in lane.queue if p.deadline_s > now_s)
        lane.again = [p for p in lane.again if p.deadline_s > now_s]
        for pending in late:
            pending.fail(
                pending.failure or StoreUnavailable(problem=pipeline.LATE, maybe_done=False)
            )
        lane.due_s = math.inf
        self._watch(number, lane)

    def _send(
        self, number: int, lane: _Lane, batch: Sequence[Pending], *, only_answer: bool = False
    ) -> None:
        lane.flying.append(batch)  # first: whatever happens now, somebody knows of it
        context, settings = self.context, self.context.settings
        ranks, items, same = Ranks(), [], dict[str, tuple[int, ...]]()
        now_s = self.context.io.clock()
        for pending in batch:
            item = pending.item
            if not item.delay_s:
                is_last = item.unassigned or self._saturated.get(item.handler, 0.0) > now_s
                ranked = same.get(item.handler)
                if ranked is None:
                    limit = TARGETS_MAX if is_last else 1
                    targets = context.targets(item.key, item.handler, lane=number, limit=limit)
                    ranked = ranks.of(targets)
                    if context.candidates.few(item.handler) is not None:
                        same[item.handler] = ranked  # nothing to rank: whatever the key is
                item.unassigned = is_last or not ranked
                item.ranked = ranked
            items.append(item)
        if lane.owners:
            ranks.of(tuple(lane.owners))  # whose streams are to be looked into, too
            lane.owners.clear()
        state = context.lanes[number]
        call = state.lane.dispatch(
            items,
            ranks.targets,
            pending_s=context.timing.pending_timeout_s,
            queued_jobs_max=0 if only_answer else settings.queued_jobs_of_lane,
            refused_s=settings.known_s if now_s <= lane.doubted_s and not only_answer else 0,
            expects=state.time.expects(now_s),
            is_followed=state.is_followed,
        )

        generation = state.lane.generation

        def told(reply: Reply) -> _Admitted:
            return _Admitted(number, batch, reply, now_s, only_answer, generation)

        # Whose time is up first is answered then; the others are sent again if theirs is not.
        ends = (batch[0], batch[-1])
        for pending in ends:
            pending.go_on(self._moved_s(number), settings.op_timeout_s)
        left_s = max(0.0, min(pending.deadline_s for pending in ends) - now_s)
        until_s = min(pending.until_s for pending in ends)
        try:
            context.pipeline.send(
                call, lambda reply: self.deliver(told(reply)), timeout_s=left_s, until_s=until_s
            )
        except PoolError as error:
            self.put(told(error))

    def _on_admitted(self, admitted: _Admitted) -> None:
        number, batch, reply = admitted.lane, admitted.batch, admitted.reply
        if isinstance(reply, StorageFull) and not admitted.only_answered:
            self._send(number, self._lanes[number], batch, only_answer=True)
            return
        if isinstance(reply, PoolError):
            self._on_failed(number, batch, reply, admitted.generation)
            return
        self._lanes[number].failures = 0
        again = []
        seen = self.context.lanes[number].seen(admitted.asked_s, generation=admitted.generation)
        told: list[Admitted] = reply
        for pending, said in zip(batch, told, strict=True):
            item = pending.item
            if said is Said.ACCEPTED and not (item.more or item.delay_s):  # nearly all of them
                pending.resolve(Accepted(item.key, item.id, item.handler, seen))
            elif said is Said.ACCEPTED:
                pending.resolve(self._read(item, said, seen))
            elif said is Said.UNKNOWN and self._has_known(pending.item):
                # It was registered: the data are new, and nobody has joined them yet who says so.
                pending.item.allow_unknown = True
                again.append(pending)
            elif said is Said.NO_ROOM:
                self._saturated[pending.item.handler] = self.context.io.clock() + SATURATED_S
                pending.item.unassigned = True
                again.append(pending)
            elif isinstance(said, Policy):
                pending.item.go_by(said.policy)
                again.append(pending)
            elif isinstance(said, Replayed):  # that one may have been replayed, too
                pending.item.id = said.job_id
                again.append(pending)
            elif isinstance(said, Elsewhere):
                self._lanes[number].owners.add(said.owner)
                again.append(pending)
            elif admitted.only_answered or said is Said.UNREADABLE:  # nothing of it is remembered
                is_full = isinstance(said, Full)
                answer = StorageFull() if is_full else self._read(pending.item, said, seen)
                if isinstance(answer, PoolError):
                    pending.fail(answer)
                else:
                    pending.resolve(answer)
            elif pending.generation not in ("", admitted.generation):
                # It may have been done with the data that are lost: these know nothing of that.
                answer = self._read(pending.item, said, seen)
                is_refused = isinstance(answer, PoolError)
                pending.resolve(unsure(StoreLost(pool=self.context.pool)) if is_refused else answer)
            else:
                pending.resolve(self._read(pending.item, said, seen))
        if self.context.jobs is not None:
            self._tell_accepted(self.context.jobs, admitted, told)
        first = batch[0].item  # each is, once
        if told[0] is Said.ACCEPTED and not first.allow_unknown and len(self._known) < KNOWN_MAX:
            self._known.add(first.handler)
        if again:
            self._lanes[number].queue.extendleft(reversed(again))

    def _tell_accepted(
        self, listeners: JobListeners, admitted: _Admitted, told: Sequence[Admitted]
    ) -> None:
        took_s = round(self.context.io.clock() - admitted.asked_s, 6)
        for pending, said in zip(admitted.batch, told, strict=True):
            item = pending.item
            if said is Said.ACCEPTED or isinstance(said, Queued):
                share = listeners.share(item.key, item.id)
                if share is not None:
                    event = JobAccepted(
                        pool=self.context.pool,
                        handler=item.handler,
                        key=item.key,
                        job_id=item.id,
                        took_s=took_s,
                    )
                    listeners.tell(share, event)

    def _has_known(self, item: Admission) -> bool:
        """Whether its handler is known to have been registered; not if leave was given already."""
        if item.allow_unknown:
            return False
        workers = self.context.candidates.workers.values()
        return item.handler in self._known or any(item.handler in w.handlers for w in workers)

    def _on_failed(
        self, number: int, batch: Sequence[Pending], error: PoolError, generation: str
    ) -> None:
        """Try again what can be tried again: an admission carries its id."""
        if isinstance(error, StoreLost):
            error = self._lost(number)
        now_s, lane = self.context.io.clock(), self._lanes[number]
        lane.failures += 1
        pause_s = refused_delay(lane.failures, DISPATCH_RETRY_S)
        for pending in batch:
            pending.failure = error
            is_sure = isinstance(error, StoreFault) and not error.maybe_done
            is_late = pending.deadline_s - DISPATCH_RETRY_S <= now_s
            if is_late or is_sure or not isinstance(error, (StoreUnavailable, StoreFault)):
                pending.fail(error)
                continue
            if error.maybe_done:
                pending.doubt(lane, generation)
            lane.again.append(pending)
            if len(lane.again) == 1:
                self.context.loop.later(pause_s, lambda: self.put(_Retry(number)))
        self._watch(number, lane)

    def _moved_s(self, number: int) -> float:
        return self.context.pipeline.moved_s(self.context.lanes[number].lane.names.lane)

    def _resume(self, number: int) -> None:
        """Send again what waited for that."""
        lane = self._lanes[number]
        again, lane.again = lane.again, []
        if again:  # the first to be late comes first
            lane.queue = deque(sorted((*again, *lane.queue), key=attrgetter("deadline_s")))
        self._flush(number)

    def _lost(self, number: int) -> PoolError:
        """Return what a lane means that does not have the data of the generation we named."""
        if not self.context.lanes[number].lane.generation:
            # We named none: it is still being joined, or joined anew.
            return StoreUnavailable(problem=f"lane {number} is not joined yet", maybe_done=False)
        self.context.on_data_lost(number)
        return StoreLost(pool=self.context.pool)

    def _come_in_time(self, item: Admission) -> None:
        """Come for one that must begin sooner than renewals tell of it."""
        for in_s in limits_s(item.more) if item.more else ():
            if in_s < self.context.timing.renew_s:
                self.context.on_due(self.context.lane_of(item.key).number, in_s)

    def _read(self, item: Admission, said: Admitted, seen: Seen) -> Accepted | PoolError:
        match said:
            case Said.ACCEPTED:
                if item.delay_s:
                    self.context.on_due(self.context.lane_of(item.key).number, item.delay_s)
                self._come_in_time(item)
                return Accepted(item.key, item.id, item.handler, seen)
            case Said.ENDED:
                return Accepted(item.key, item.id, item.handler, None)
            case Conflict(handler, digest):
                return _conflict(item, handler, digest)
            case Exists(_, _, job_id, handler, _, is_attached=True):
                return Accepted(item.key, job_id, handler, seen)
            case Exists(state, owner, job_id, handler, kind):
                facts = {"job_id": job_id, "handler": handler, "kind": kind}
                return JobExists(key=item.key, state=state, owner=owner, **facts)
            case Full(queued):
                most = self.context.settings.queued_jobs_of_lane
                return PoolFull(queued_jobs=queued, queued_jobs_max=most)
            case Queued(has_due):
                number = self.context.lane_of(item.key).number
                if has_due:
                    self.context.on_due(number, 0.0)
                if item.delay_s:  # its turn may have come by then
                    self.context.on_due(number, item.delay_s)
                self._come_in_time(item)
                return Accepted(item.key, item.id, item.handler, seen)
            case LineFull(line_max):
                return QueueFull(key=item.key, queue_max=line_max)
            case Stopping(job_id):
                return JobStopping(key=item.key, job_id=job_id)
            case Differs(job_id, handler):
                return ArgumentsDiffer(key=item.key, job_id=job_id, handler=handler)
            case Said.UNKNOWN:
                return UnknownHandler(handler=item.handler)
            case Said.SERVICE:
                name = "expires_s" if more_of(item.more, "expires") else "start_timeout_s"
                return checks.option(name, "given", f"None: {item.handler!r} is a service")
            case _:
                problem = f"the record of {item.key!r} cannot be read"
                return StoreFault(problem=problem, maybe_done=False)


def _conflict(item: Admission, known_handler: str, known_digest: str) -> IdempotencyConflict:
    digest, differs = more_of(item.more, "digest"), "followers"
    if known_handler != item.handler:
        differs = "handler"
    elif known_digest.partition("-")[0] != digest.partition("-")[0]:
        differs = "arguments" if known_digest != "-" else "id"
    return IdempotencyConflict(
        key=item.key,
        job_id=item.id,
        handler=item.handler,
        digest=digest,
        known_handler=known_handler,
        known_digest=known_digest,
        differs=differs,
    )
