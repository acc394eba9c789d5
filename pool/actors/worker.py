"""One worker: the starts it was granted, the handlers it runs, and its batches on the way out.

    stream:W --Granted--> backlog --slot free--> handler --> edge --> batch --> advance --> statuses

A run (one epoch of one key here) goes through

    queued -> preparing (fetch, or acknowledge first) -> running -> settling -> gone
                                       |  soft deadline: cancelled, and if it ends so
                                       +--> suspended -- resume --> queued, same epoch and attempt

Who may write: only this actor touches a run; replies of the link and timers come back as messages.
Dying after any step leaves the record with its owner: fencing
and reaping take it from there.  A repeated start drops out by (key, epoch); a repeated settlement is
answered with the stored outcome.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Literal, TypeAlias

import anyio
import anyio.lowlevel
import anyio.to_thread
import attrs

from pool.actors.actor import Actor
from pool.actors.context import Context, Ranks
from pool.actors.handlers import Handler, Handlers
from pool.actors.job import Cancel, Inbox, Job, Message, Park, Retry
from pool.actors.observe import (
    AttemptFailed,
    CommitRefused,
    HandlerOverran,
    ReconciliationMended,
    ServiceMoved,
    StoreTroubled,
    WorkerFenced,
)
from pool.errors import (
    Gone,
    PayloadEncodingError,
    PayloadTooLarge,
    PoolError,
    StoreLost,
    StoreUnavailable,
)
from pool.model import job as model
from pool.model.codec import check_size, decode_call, encode_value
from pool.model.job import CAUSE_CHARS_MAX, ERROR_CHARS_MAX, Options, Start, one_line
from pool.store.lane import Edge, Owned, Target, owned, ranking
from pool.store.seam import Reply

QUEUE_AHEAD: Final = 256  # starts a worker holds beyond its slots, so that slots never wait
BATCH_MAX: Final = 512  # edges in one call
ACK_DELAY_S: Final = 0.005  # a job that ends within this settles from pending, unacknowledged
MEMORY_MAX: Final = 10_000  # settlements remembered for reconciliation
PROBATION_WAIT_S: Final = 30.0  # the longest that a suspected poison job waits for another one
MOVES_MAX: Final = 16  # services on their way to one target at once
SLICE_S: Final = 0.002  # a slot runs jobs back to back for so long
RESEND_S: Final = 0.1  # before a batch that was not answered is sent again

# Why a handler was cancelled.  The first four keep the job ours; the others gave it up already.
Why: TypeAlias = Literal["", "stop", "timeout", "release", "lease", "gone", "refused"]


# --- messages -----------------------------------------------------------------------------------


@attrs.frozen
class Granted:
    """The stream brought starts."""

    lane: int
    starts: Sequence[Start]


@attrs.frozen
class Signalled:
    """Somebody wrote an intent or a message for a key of ours, or asks us to look."""

    lane: int
    fields: dict[str, bytes]


@attrs.frozen
class Ticked:
    """A renewal was answered: `acknowledged` is what Redis says, asked at `asked_s`."""

    lane: int
    asked_s: float
    acknowledged: int
    was_away: bool


@attrs.frozen
class LeaseSoft:
    """The lease ends soon: stop handlers."""

    lane: int


@attrs.frozen
class LeaseHard:
    """The lease may have ended: nothing of this lane may run."""

    lane: int


@attrs.frozen
class LeaseBack:
    """Nobody took a key: go on."""

    lane: int


@attrs.frozen
class LaneLost:
    """We were fenced there: what we owned is the reaper's.  Joined again, `number` is new."""

    lane: int
    number: int


@attrs.frozen
class MembershipChanged:
    """`workers` changed: services may have a better place."""

    revision: int


@attrs.frozen
class Drain:
    """Give up everything: services at once, finite jobs within the grace."""

    grace_s: float


@attrs.frozen
class _Answered:
    """A batch was answered, or could not be sent."""

    lane: int
    out: _Out
    batch: Sequence[tuple[Edge, Run | None]]
    reply: Reply


@attrs.frozen
class _Pulled:
    """A pull was answered."""

    lane: int
    out: _Out
    reply: Reply


@attrs.frozen
class _FlushDue:
    """A pause is over; `resume` ends the pause that followed a failed batch."""

    lane: int
    out: _Out
    resume: bool


Told: TypeAlias = (
    Granted
    | Signalled
    | Ticked
    | LeaseSoft
    | LeaseHard
    | LeaseBack
    | LaneLost
    | MembershipChanged
    | Drain
    | _Answered
    | _Pulled
    | _FlushDue
)


# --- state --------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Run:
    """One epoch of one key, here."""

    start: Start
    lane: int
    queued_s: float
    phase: Literal["queued", "preparing", "running", "suspended", "settling"] = "queued"
    why: Why = ""
    cause: str = ""
    handler: Handler[..., Any] | None = None
    job: Job | None = None
    inbox: Inbox | None = None
    scope: anyio.CancelScope | None = None
    began_s: float = 0.0
    is_acknowledged: bool = False
    is_limited: bool = False
    edge: Edge | None = None  # how it shall end, once that is decided
    target: str = ""  # of a service that moves: to whom
    payload: bytes | None = None
    blob: bytes | None = None
    then: list[Callable[[], None]] = attrs.field(factory=list)  # when it is gone

    @property
    def key(self) -> str:
        return self.start.key


@attrs.define(eq=False)
class _Returned:
    value: Any


@attrs.define(eq=False)
class _Raised:
    error: Exception


@attrs.define(eq=False)
class _Unreadable:
    problem: str


@attrs.define(eq=False)
class _Cancelled:
    pass


_CANCELLED: Final = _Cancelled()
_Ending: TypeAlias = _Returned | _Raised | _Unreadable | _Cancelled


@attrs.define(eq=False)
class _Slot:
    """A long-lived task that runs handlers: a task per job would cost more than most jobs."""

    run: Run | None = None
    bell: anyio.Event = attrs.field(factory=anyio.Event)


@attrs.define(eq=False)
class _Out:
    """What is on its way out in one lane: acknowledgements that wait a little, edges, a batch."""

    target: Target
    acks: dict[str, Run] = attrs.field(factory=dict)
    edges: deque[tuple[Edge, Run | None, tuple[Target, ...]]] = attrs.field(factory=deque)
    is_flying: bool = False
    is_fenced: bool = False  # nothing may be sent until a renewal succeeds
    is_pulling: bool = False
    answered_s: float = 0.0
    odd: int = 0  # renewals in a row that counted other jobs than we do
    reconciled_s: float = 0.0
    is_reconciling: bool = False
    has_ack_timer: bool = False


@attrs.define(eq=False, kw_only=True)
class Worker(Actor[Told]):
    """A slot-holder of a node.  It belongs to its node, not to the scope that added it."""

    inbox_max: int = 65_536
    context: Context
    handlers: Handlers
    id: str
    capacity: int
    weight: float = 1.0
    label: str = ""
    version: str = ""
    on_gone: Callable[[int, str], object]  # lane and identity that a script answered GONE to
    tell_waiters: Callable[[int, Sequence[str], str, str, bytes], object]
    on_idle: Callable[[], object] = attrs.field(default=lambda: None)
    is_draining: bool = attrs.field(init=False, default=False)
    runs: dict[str, Run] = attrs.field(init=False, factory=dict)
    _outs: list[_Out] = attrs.field(init=False, factory=list)
    _backlog: deque[Run] = attrs.field(init=False, factory=deque)
    _slots: int = attrs.field(init=False, default=0)
    _idle: list[_Slot] = attrs.field(init=False, factory=list)
    _memory: dict[str, tuple[int, Edge, float]] = attrs.field(init=False, factory=dict)
    _on_probation: str = attrs.field(init=False, default="")
    _moving: dict[str, int] = attrs.field(init=False, factory=dict)
    _membership: int = attrs.field(init=False, default=0)
    _moved_at: dict[str, int] = attrs.field(init=False, factory=dict)
    _limiter: anyio.CapacityLimiter | None = attrs.field(init=False, default=None)
    _preparing: int = attrs.field(init=False, default=0)

    # --- for the node -------------------------------------------------------------------------

    def take_lanes(self, numbers: Sequence[int]) -> None:
        """Learn the incarnation numbers under which it joins, one per lane."""
        self._outs = [_Out(Target(self.id, n)) for n in numbers]

    def target(self, lane: int) -> Target:
        """Return its name in a lane."""
        return self._outs[lane].target

    def lose_lane(self, lost: LaneLost) -> None:
        """Take the next number in a lane at once; what ran there under the old one is told later."""
        before = self._outs[lost.lane].target
        self._outs[lost.lane] = _Out(Target(self.id, lost.number), is_fenced=True)
        self.context.emit(WorkerFenced(worker=before.name, lane=lost.lane))
        self.tell(lost)

    def takes(self) -> int:
        """Return how many keys it takes in each lane."""
        lanes = len(self._outs)
        return 0 if self.is_draining else max(1, (self.capacity + QUEUE_AHEAD) // lanes)

    @property
    def is_idle(self) -> bool:
        """Whether it has neither keys nor anything to say."""
        return not self.runs and not any(out.is_flying or out.edges for out in self._outs)

    def overrunning(self, lane: int) -> list[Run]:
        """Return the runs of a lane whose handlers have not ended though they were cancelled."""
        return [r for r in self.runs.values() if r.lane == lane and r.phase == "running" and r.why]

    # --- messages -----------------------------------------------------------------------------

    def begin(self) -> None:
        # After a crash of this actor its slots are gone: what ran is started again, same epoch.
        self._slots, self._idle, self._on_probation = 0, [], ""
        self._limiter = anyio.CapacityLimiter(self.capacity)
        self._preparing = 0
        for lane, out in enumerate(self._outs):
            self._outs[lane] = _Out(out.target, is_fenced=out.is_fenced)
        for run in list(self.runs.values()):
            if run.edge is not None:
                self._send(run.lane, run.edge, run)  # a repeat is answered with what became of it
            else:
                self._requeue(run)
        for lane in range(len(self._outs)):
            self._reconcile(lane)

    def handle(self, message: Told) -> None:
        match message:
            case Granted(lane, starts):
                for start in starts:
                    self._accept(lane, start)
                self._fill()
            case Signalled(lane, fields):
                self._on_signal(lane, fields)
            case Ticked():
                self._on_tick(message)
            case LeaseSoft(lane):
                for run in self._in_lane(lane):
                    if run.phase == "running" and not run.why and not self._outlives(run):
                        self._cancel(run, "lease")
            case LeaseHard(lane):
                self._outs[lane].is_fenced = True
                for run in self.overrunning(lane):
                    self.context.emit(
                        HandlerOverran(
                            key=run.key, handler=run.start.handler, epoch=run.start.epoch
                        )
                    )
            case LeaseBack(lane):
                self._resume(lane)
            case LaneLost(lane):
                self._lose(lane)
            case MembershipChanged(revision):
                self._membership = revision
                self.spawn(self._rebalance, revision)
            case Drain(grace_s):
                self._drain(grace_s)
            case _Answered(lane, out, batch, reply) if self._outs[lane] is out:
                self._on_answered(lane, out, batch, reply)
            case _Pulled(lane, out, reply) if self._outs[lane] is out:
                self._on_pulled(lane, out, reply)
            case _FlushDue(lane, out, resume) if self._outs[lane] is out:
                if resume:
                    out.is_flying = False
                else:
                    out.has_ack_timer = False
                self._flush(lane)
            case _:
                return  # an answer to an identity that we no longer are

    def _in_lane(self, lane: int) -> list[Run]:
        return [run for run in self.runs.values() if run.lane == lane]

    def _outlives(self, run: Run) -> bool:
        """Say whether this run goes on without the store (its commits are fenced all the same)."""
        return self.context.settings.on_store_loss == "continue" and run.start.kind == "service"

    # --- starting -----------------------------------------------------------------------------

    def _accept(self, lane: int, start: Start) -> None:
        settled = self._memory.get(start.key)
        if settled and settled[0] >= start.epoch:
            if settled[0] == start.epoch:  # its settlement was lost with the server's last writes
                self._send(lane, settled[1], None)
            return
        present = self.runs.get(start.key)
        if present is not None:
            if present.start.epoch < start.epoch:
                # The key came back to us while its former run is still here.
                self._cancel(present, "refused")
                present.then.append(partial(self._accept_later, lane, start))
            return
        run = Run(start, lane, self.context.seam.clock())
        self.runs[start.key] = run
        if self.is_draining or start.handler not in self.handlers:
            self._release(run)
        else:
            self._backlog.append(run)

    def _accept_later(self, lane: int, start: Start) -> None:
        self._accept(lane, start)
        self._fill()

    def _fill(self) -> None:
        """Start what is queued, as far as there are slots and the lease is good."""
        kept: list[Run] = []
        free = self.capacity - self._busy_slots()
        while self._backlog and free > 0:
            run = self._backlog.popleft()
            if run.phase != "queued" or self.runs.get(run.key) is not run:
                continue
            if not self._may_start(run):
                kept.append(run)
                continue
            free -= 1
            self._prepare(run)
        self._backlog.extendleft(reversed(kept))
        for lane, state in enumerate(self.context.lanes):
            if state.unassigned > 0 and len(self._backlog) < QUEUE_AHEAD // 2:
                self._pull(lane)

    def _busy_slots(self) -> int:
        return self._slots - len(self._idle) + self._preparing

    def _may_start(self, run: Run) -> bool:
        out, now_s = self._outs[run.lane], self.context.seam.clock()
        lease = self.context.lanes[run.lane].lease
        if out.is_fenced or not lease.is_good(now_s):
            return False
        busy = self.context.busy.get(run.key)
        if busy is not None and busy is not run:
            if self._retry_fill not in busy.then:
                busy.then.append(self._retry_fill)
            return False
        if run.start.crashes >= self.context.settings.crashes_max:
            # One at a time: if it kills its worker once more, its neighbours shall not be blamed.
            if self._on_probation and now_s - run.queued_s < PROBATION_WAIT_S:
                return False
            self._on_probation = run.key
        return True

    def _retry_fill(self) -> None:
        self._fill()

    def _prepare(self, run: Run) -> None:
        """Fetch what its entry could not hold, and acknowledge first where that is asked for."""
        start = run.start
        self.context.busy[run.key] = run
        run.handler = self.handlers[start.handler]
        if run.payload is None:
            run.payload = start.payload
        if ("p" in start.flags or "b" in start.flags) and run.blob is None:
            run.phase = "preparing"
            self._preparing += 1
            self.spawn(self._fetch, run)
        elif "a" in start.flags and not run.is_acknowledged:
            run.phase = "preparing"
            self._preparing += 1
            self._outs[run.lane].acks[run.key] = run
            self._flush(run.lane)
        else:
            self._launch(run)

    async def _fetch(self, run: Run) -> None:
        names = self.context.lanes[run.lane].lane.names
        payload: Reply = run.payload
        blob: Reply = None
        try:
            if "p" in run.start.flags:
                payload = await self.context.link.execute("HGET", names.payloads, run.key)
            if "b" in run.start.flags:
                blob = await self.context.link.execute("HGET", names.blobs, run.key)
        except PoolError as error:
            self.context.emit(StoreTroubled(during="fetch", problem=str(error)))
            await anyio.sleep(RESEND_S)
        else:
            run.payload, run.blob = payload or b"", blob or b""
        self._prepared(run)

    def _prepared(self, run: Run) -> None:
        """Go on with a run whose preparation has ended, unless it was cancelled meanwhile."""
        if run.phase == "preparing":
            self._unprepare(run)
            if run.why:
                self._conclude(run, _CANCELLED)
            else:
                self._backlog.appendleft(run)
                self._fill()

    def _unprepare(self, run: Run) -> None:
        if run.phase == "preparing":
            self._preparing -= 1
            run.phase = "queued"
            self._free_key(run)

    def _launch(self, run: Run) -> None:
        start, settings = run.start, self.context.settings
        run.phase, run.began_s = "running", self.context.seam.clock()
        run.inbox = Inbox(is_behind="i" in start.flags)
        run.job = Job(
            key=start.key,
            id=start.id,
            handler=start.handler,
            kind=start.kind,
            epoch=start.epoch,
            attempt=start.attempt,
            node=self.context.node_id,
            worker=self._outs[run.lane].target.name,
            state=run.blob or None,
            state_bytes_max=settings.state_bytes_max,
            stop_budget_s=settings.stop_budget_s,
            inbox=run.inbox,
            read_inbox=partial(self._read_inbox, run),
            on_handled=partial(self._on_handled, run),
        )
        if not run.is_acknowledged:
            self._outs[run.lane].acks[run.key] = run
            self._ack_soon(run.lane)
        if self._idle:
            slot = self._idle.pop()
            slot.run = run
            slot.bell.set()
        else:
            self._slots += 1
            self.spawn(self._serve, _Slot(run))

    async def _serve(self, slot: _Slot) -> None:
        clock = self.context.seam.clock
        began_s = clock()
        while True:
            run = slot.run
            assert run is not None
            ending = await self._execute(run)
            slot.run, slot.bell = None, anyio.Event()
            self._idle.append(slot)
            self._conclude(run, ending)
            if slot.run is None:
                await slot.bell.wait()
                began_s = clock()
            elif clock() - began_s > SLICE_S:
                # Handlers that never wait would keep everything else from running.
                await anyio.lowlevel.checkpoint()
                began_s = clock()

    async def _execute(self, run: Run) -> _Ending:
        """Call the handler; whatever it does, its slot goes on."""
        assert run.handler is not None and run.job is not None
        timeout_s = run.handler.options.timeout_s
        ending: _Ending = _CANCELLED
        try:
            args, kwargs = decode_call(run.payload or b"")
        except PayloadEncodingError as error:
            return _Unreadable(str(error))
        try:
            with anyio.CancelScope() as scope:
                run.scope = scope
                if timeout_s is not None:
                    scope.deadline = anyio.current_time() + timeout_s
                if run.why:
                    scope.cancel()
                if run.handler.is_async:
                    value = await run.handler.fn(run.job, *args, **kwargs)
                else:
                    call = partial(run.handler.fn, run.job, *args, **kwargs)
                    value = await anyio.to_thread.run_sync(call, limiter=self._limiter)
                ending = _Returned(value)
        except Exception as error:  # noqa: BLE001 - user code: every error is an outcome
            ending = _Raised(error)
        if run.scope is not None and run.scope.cancel_called and not run.why:
            run.why = "timeout"
        run.scope = None
        return ending

    # --- ending -------------------------------------------------------------------------------

    def _cancel(self, run: Run, why: Why, cause: str = "") -> None:
        """Have a run end; the first reason stands, but losing the job overrules all."""
        if run.why and why not in ("gone", "refused"):
            if run.why == "lease" and why in ("stop", "release"):
                run.why, run.cause = why, cause
                if run.phase == "suspended":
                    self._conclude(run, _CANCELLED)
            return
        run.why, run.cause = why, cause
        if why in ("gone", "refused"):
            self._unprepare(run)
        if run.phase == "running":
            if run.scope is not None:
                run.scope.cancel()
        elif run.phase in ("queued", "suspended"):
            self._conclude(run, _CANCELLED)
        elif run.phase == "settling" and why in ("gone", "refused"):
            self._forget(run)

    def _conclude(self, run: Run, ending: _Ending) -> None:
        """Decide what becomes of a run whose handler has ended, or never began."""
        if self.runs.get(run.key) is not run:
            return
        if run.why in ("gone", "refused"):
            self._forget(run)
        elif run.why == "lease" and (ending is _CANCELLED or run.start.kind == "service"):
            self._suspend(run)
        else:
            edge, targets = self._edge_for(run, ending)
            self._settle(run, edge, targets)
        self._fill()

    def _edge_for(self, run: Run, ending: _Ending) -> tuple[Edge, tuple[Target, ...]]:
        start = run.start
        if run.why == "timeout":
            return self._failed(run, "timed out", "ran longer than timeout_s"), ()
        match ending:
            case _Returned(value) if start.kind == "job" or not run.why:
                return self._done(run, value), ()
            case _Raised(Retry() as error):
                return self._failed(run, "retry", error.cause, after_s=error.after_s), ()
            case _Raised(Cancel() as error):
                return self._edge(run, model.CANCEL, one_line(error.cause, CAUSE_CHARS_MAX)), ()
            case _Raised(Park() as error):
                return self._parked(run, error.cause or "parked by its handler", ""), ()
            case _Unreadable(problem):
                return self._parked(run, "malformed payload", problem), ()
            case _Raised(Exception() as error) if run.why in ("", "lease"):
                return self._failed(run, "failed", f"{type(error).__name__}: {error}"), ()
        if run.why == "stop":
            return self._edge(run, model.CANCEL, run.cause), ()
        # Released: it goes elsewhere, its attempt is not burned.
        blob = run.job.handed_over() if run.job is not None else None
        edge = self._edge(run, model.GRANT, "", "", b"" if blob is None else b"=" + blob)
        targets = self.context.targets(run.key, start.handler, lane=run.lane, but=self.id)
        return edge, targets

    def _edge(
        self,
        run: Run,
        letter: str,
        x: str | bytes | int = b"",
        y: str | int = "",
        z: str | bytes = b"",
    ) -> Edge:
        start, settings = run.start, self.context.settings
        ttl_ms = round(max(settings.retry_window_s, settings.result_ttl_s) * 1000)
        return Edge(letter, start.key, start.epoch, start.id, ttl_ms, x, y, z, start.handler)

    def _done(self, run: Run, value: Any) -> Edge:
        try:
            encoded = encode_value(value)
            check_size("result", encoded, self.context.settings.result_bytes_max)
        except (PayloadEncodingError, PayloadTooLarge) as error:
            return self._parked(run, "unusable result", str(error))
        return self._edge(run, model.DONE, encoded)

    def _parked(self, run: Run, cause: str, error: str) -> Edge:
        return self._edge(
            run, model.PARK, one_line(cause, CAUSE_CHARS_MAX), one_line(error, ERROR_CHARS_MAX)
        )

    def _failed(self, run: Run, cause: str, error: str, *, after_s: float | None = None) -> Edge:
        options = run.handler.options if run.handler is not None else Options()
        ran_s = self.context.seam.clock() - run.began_s if run.began_s else 0.0
        attempt = run.start.attempt
        if options.kind == "service" and ran_s >= options.healthy_s:
            attempt = 1  # it was well for long enough: this failure is a first one
        decision = model.after_failure(
            attempt, options, self.context.seam.dice, cause=cause, error=error
        )
        if isinstance(decision, model.Park):
            follows, edge = "parked", self._parked(run, decision.cause, decision.error)
        else:
            delay_s = decision.delay_s if after_s is None else max(0.0, after_s)
            follows = f"attempt {decision.attempt} in {delay_s:.3f} s"
            edge = self._edge(
                run, model.WAIT, round(delay_s * 1000), decision.attempt, decision.error
            )
        self.context.emit(
            AttemptFailed(
                key=run.key,
                handler=run.start.handler,
                attempt=run.start.attempt,
                error=one_line(error, ERROR_CHARS_MAX),
                follows=follows,
            )
        )
        return edge

    def _release(self, run: Run) -> None:
        """Give a run up that has not started."""
        run.why = run.why or "release"
        self._conclude(run, _CANCELLED)

    def _settle(self, run: Run, edge: Edge, targets: tuple[Target, ...]) -> None:
        run.phase, run.edge = "settling", edge
        out = self._outs[run.lane]
        out.acks.pop(run.key, None)
        self._free_key(run)
        if run.why == "release" and run.target:
            targets = tuple(t for t in targets if t.id == run.target) + tuple(
                t for t in targets if t.id != run.target
            )
        self._send(run.lane, edge, run, targets)

    def _suspend(self, run: Run) -> None:
        """Its handler was stopped for the lease's sake; if nobody takes the key, it goes on."""
        run.phase = "suspended"
        self._free_key(run)
        lease, now_s = self.context.lanes[run.lane].lease, self.context.seam.clock()
        if not self._outs[run.lane].is_fenced and lease.is_good(now_s):
            self._requeue(run)  # the lease came back while it was ending

    def _requeue(self, run: Run) -> None:
        run.phase, run.why, run.cause, run.scope, run.job = "queued", "", "", None, None
        run.began_s = 0.0
        self._free_key(run)
        self._backlog.appendleft(run)

    def _free_key(self, run: Run) -> None:
        if self.context.busy.get(run.key) is run:
            del self.context.busy[run.key]
        if self._on_probation == run.key:
            self._on_probation = ""

    def _forget(self, run: Run) -> None:
        """The run is no longer ours, or has ended for good."""
        if self.runs.get(run.key) is run:
            del self.runs[run.key]
        self._free_key(run)
        self._outs[run.lane].acks.pop(run.key, None)
        self._moved_at.pop(run.key, None)
        if run.target:
            self._moving[run.target] = max(0, self._moving.get(run.target, 0) - 1)
        waiting, run.then = run.then, []
        for fn in waiting:
            fn()
        if self.is_idle:
            self.on_idle()

    # --- on the way out -----------------------------------------------------------------------

    def _send(
        self, lane: int, edge: Edge, run: Run | None, targets: tuple[Target, ...] = ()
    ) -> None:
        self._outs[lane].edges.append((edge, run, targets))
        self._flush(lane)

    def _ack_soon(self, lane: int) -> None:
        """A little later: most short jobs have ended by then and need no acknowledgement."""
        out = self._outs[lane]
        if not out.has_ack_timer:
            out.has_ack_timer = True
            due = _FlushDue(lane, out, resume=False)
            self.context.loop.later(ACK_DELAY_S, partial(self.tell, due))

    def _flush(self, lane: int) -> None:
        """Send what waits, unless a batch is under way: then it forms the next one."""
        out = self._outs[lane]
        if out.is_flying or out.is_fenced or not (out.acks or out.edges):
            return
        batch: list[tuple[Edge, Run | None]] = []
        ranks = Ranks()
        for run in list(out.acks.values())[:BATCH_MAX]:
            if run.phase in ("running", "preparing"):
                batch.append((self._edge(run, model.ACKNOWLEDGE), run))
            del out.acks[run.key]
        while out.edges and len(batch) < BATCH_MAX:
            edge, owner, targets = out.edges.popleft()
            if edge.letter == model.GRANT:
                edge.x = ranking(ranks.of(targets))
            batch.append((edge, owner))
        if not batch:
            return
        out.is_flying = True
        settings = self.context.settings
        call = self.context.lanes[lane].lane.advance(
            "own",
            out.target.name,
            [edge for edge, _ in batch],
            pending_s=settings.pending_timeout_s,
            targets=ranks.targets,
        )
        try:
            self.context.link.send(
                call, lambda reply: self.tell(_Answered(lane, out, batch, reply))
            )
        except PoolError as error:
            self.tell(_Answered(lane, out, batch, error))

    def _on_answered(
        self, lane: int, out: _Out, batch: Sequence[tuple[Edge, Run | None]], reply: Reply
    ) -> None:
        out.is_flying = False
        out.answered_s = self.context.seam.clock()
        if isinstance(reply, PoolError):
            self._on_refused(lane, out, batch, reply)
            return
        unassigned, *statuses = reply
        self.context.lanes[lane].unassigned = unassigned
        for (edge, run), status in zip(batch, statuses, strict=True):
            word, _, rest = status.decode().partition(" ")
            self._on_status(lane, edge, run, word, rest)
        self._flush(lane)
        self._fill()
        if self.is_idle:
            self.on_idle()

    def _on_refused(
        self,
        lane: int,
        out: _Out,
        batch: Sequence[tuple[Edge, Run | None]],
        error: PoolError,
    ) -> None:
        if isinstance(error, Gone):
            self.on_gone(lane, out.target.name)
            return
        if isinstance(error, StoreLost):
            self.context.on_data_lost()
            return
        if not isinstance(error, StoreUnavailable):
            self.context.emit(StoreTroubled(during="advance", problem=str(error)))
        # It may have been done: the same writer's repeat is answered with what became of it.
        for edge, run in reversed(batch):
            if edge.letter == model.ACKNOWLEDGE:
                if run is not None and run.phase in ("running", "preparing"):
                    out.acks[run.key] = run
            else:
                targets: tuple[Target, ...] = ()
                if edge.letter == model.GRANT and run is not None:
                    targets = self.context.targets(
                        run.key, run.start.handler, lane=lane, but=self.id
                    )
                out.edges.appendleft((edge, run, targets))
        out.is_flying = True  # until the pause is over
        due = _FlushDue(lane, out, resume=True)
        self.context.loop.later(RESEND_S, partial(self.tell, due))

    def _on_status(self, lane: int, edge: Edge, run: Run | None, word: str, rest: str) -> None:
        if edge.letter == model.ACKNOWLEDGE:
            assert run is not None
            self._on_acknowledged(run, word, rest)
            return
        if edge.letter in (model.LIMIT, model.SEEN):
            return
        if word == "TIMEDOUT" and run is not None:
            run.why = "timeout"
            edge = self._failed(run, "timed out", "ran longer than timeout_s")
            run.edge = edge
            self._send(lane, edge, run)
            return
        self._remember(edge)
        if word == "OK" and edge.letter == model.WAIT:
            self.context.on_due(lane, int(edge.x) / 1000)
        if word == "OK" and rest:
            self._tell_outcome(lane, edge, run, rest)
        elif word == "FENCED" and edge.letter == model.GRANT:
            pass  # moved already: a repeat of ours, or others were faster
        elif word not in ("OK", "REPEAT", "GRANTED", "UNASSIGNED"):
            self.context.emit(
                CommitRefused(key=edge.key, epoch=edge.epoch, answer=f"{word} {rest}".strip())
            )
        if run is not None:
            self._forget(run)

    def _on_acknowledged(self, run: Run, word: str, rest: str) -> None:
        if self.runs.get(run.key) is not run or run.phase not in ("running", "preparing"):
            return
        if word != "OK":
            if word != "STOPPED":
                answer = f"{word} {rest}".strip()
                self.context.emit(CommitRefused(key=run.key, epoch=run.start.epoch, answer=answer))
            self._unprepare(run)
            self._cancel(run, "stop" if word == "STOPPED" else "refused", rest)
            return
        run.is_acknowledged = True
        flags, _, waiters = rest.partition(" ")
        if waiters:
            self.tell_waiters(run.lane, waiters.split(","), "started", run.start.id, b"")
        if run.inbox is not None and "i" in flags and run.inbox.is_unread:
            run.inbox.fall_behind()
        self._prepared(run)

    def _tell_outcome(self, lane: int, edge: Edge, run: Run | None, waiters: str) -> None:
        if run is None:
            return
        body, cause = b"", ""
        match edge.letter:
            case model.DONE:
                word, body = "done", edge.x if isinstance(edge.x, bytes) else b""
            case model.PARK:
                word, cause, body = "parked", str(edge.x), str(edge.y).encode()
            case model.CANCEL:
                word, cause = "cancelled", str(edge.x)
            case _:
                return  # waiting or moved: those who wait go on waiting
        owner = self._outs[lane].target.name
        head = f"{word}|{edge.epoch}|{owner}|{run.start.attempt}|0|{cause}\n".encode()
        self.tell_waiters(lane, waiters.split(","), "ended", edge.id, head + body)

    def _remember(self, edge: Edge) -> None:
        now_s = self.context.seam.clock()
        self._memory.pop(edge.key, None)
        self._memory[edge.key] = (edge.epoch, edge, now_s)
        horizon_s = now_s - 2 * self.context.settings.lease_ttl_s
        while self._memory:
            oldest = next(iter(self._memory))
            if self._memory[oldest][2] > horizon_s and len(self._memory) <= MEMORY_MAX:
                return
            del self._memory[oldest]

    # --- messages for jobs --------------------------------------------------------------------

    async def _read_inbox(self, run: Run) -> Sequence[Message]:
        name = self.context.lanes[run.lane].lane.names.inbox(run.key)
        while True:
            try:
                texts = await self.context.link.execute("LRANGE", name, 0, -1)
            except StoreUnavailable:
                await anyio.sleep(RESEND_S)
                continue
            messages = []
            for text in texts:
                number, _, rest = text.partition(b"|")
                messages.append((int(number), rest.partition(b"|")[2]))
            return messages

    def _on_handled(self, run: Run, number: int) -> None:
        if self.runs.get(run.key) is run and run.why not in ("gone", "refused"):
            self._send(run.lane, self._edge(run, model.SEEN, number), None)

    def _on_signal(self, lane: int, fields: dict[str, bytes]) -> None:
        kind = fields.get("t", b"")
        key = fields.get("k", b"").decode(errors="replace")
        run = self.runs.get(key)
        if kind == b"message":
            if run is not None and run.inbox is not None:
                number, before = int(fields["i"]), int(fields["b"])
                run.inbox.offer(number, before, fields.get("p"))
        elif kind == b"intent":
            intent = fields.get("d", b"").decode(errors="replace")
            if run is None or int(fields.get("e", b"0")) != run.start.epoch or not intent:
                self._reconcile(lane)
            elif intent.startswith("s"):
                self._cancel(run, "stop", intent[1:])
            else:
                self._cancel(run, "timeout")

    # --- the lease ----------------------------------------------------------------------------

    def _on_tick(self, tick: Ticked) -> None:
        lane, out, settings = tick.lane, self._outs[tick.lane], self.context.settings
        now_s = self.context.seam.clock()
        acknowledged = 0
        for run in self._in_lane(lane):
            acknowledged += run.is_acknowledged
            if run.phase == "queued" and now_s - run.queued_s > settings.pending_timeout_s / 2:
                if not run.why and not out.is_fenced and not self.context.busy.get(run.key):
                    self._release(run)
            elif run.phase == "running" and run.handler is not None:
                self._limit(run, now_s)
        quiet = not out.is_flying and not out.acks and not out.edges
        if quiet and out.answered_s < tick.asked_s:
            out.odd = out.odd + 1 if acknowledged != tick.acknowledged else 0
        overdue = now_s - out.reconciled_s > 10 * settings.lease_ttl_s
        if out.odd >= 2 or tick.was_away or (overdue and self.runs):
            self._reconcile(lane)
        self._fill()

    def _limit(self, run: Run, now_s: float) -> None:
        """Write the run-time limit into `due` once a job has lasted: then others can enforce it."""
        assert run.handler is not None
        timeout_s, settings = run.handler.options.timeout_s, self.context.settings
        if timeout_s is None or run.is_limited or not run.is_acknowledged:
            return
        if now_s - run.began_s >= settings.renew_s / 2:
            run.is_limited = True
            left_s = run.began_s + timeout_s + settings.stop_budget_s - now_s
            edge = self._edge(run, model.LIMIT, max(1, round(left_s * 1000)))
            self._send(run.lane, edge, None)

    def _resume(self, lane: int) -> None:
        out = self._outs[lane]
        out.is_fenced = False
        self._flush(lane)  # first the settlements of handlers that had ended
        for run in self._in_lane(lane):
            if run.phase == "suspended":
                self._requeue(run)
        self._reconcile(lane)
        self._fill()

    def _lose(self, lane: int) -> None:
        self._backlog = deque(run for run in self._backlog if run.lane != lane)
        for run in self._in_lane(lane):
            self._cancel(run, "gone")
        self._memory = {
            key: kept
            for key, kept in self._memory.items()
            if self.context.lane_of(key).number != lane
        }

    # --- unassigned keys ----------------------------------------------------------------------

    def _pull(self, lane: int) -> None:
        out, state = self._outs[lane], self.context.lanes[lane]
        if out.is_pulling or out.is_fenced or self.is_draining or not len(self.handlers):
            return
        if not state.lease.is_good(self.context.seam.clock()):
            return
        out.is_pulling = True
        call = state.lane.pull(
            out.target,
            self.handlers,
            keys_max=QUEUE_AHEAD,
            pending_s=self.context.settings.pending_timeout_s,
        )
        try:
            self.context.link.send(call, lambda reply: self.tell(_Pulled(lane, out, reply)))
        except PoolError as error:
            self.tell(_Pulled(lane, out, error))

    def _on_pulled(self, lane: int, out: _Out, reply: Reply) -> None:
        out.is_pulling = False
        if isinstance(reply, Gone):
            self.on_gone(lane, out.target.name)
        elif not isinstance(reply, PoolError):
            left, granted = reply
            # Nothing for us among them: the next renewal tells if that has changed.
            self.context.lanes[lane].unassigned = left if granted else 0

    # --- reconciliation -----------------------------------------------------------------------

    def _reconcile(self, lane: int) -> None:
        out = self._outs[lane]
        if not out.is_reconciling and self.state == "running":
            out.is_reconciling = True
            self.spawn(self._compare, lane, out)

    async def _compare(self, lane: int, out: _Out) -> None:
        """Read all that Redis says we own, and mend what differs from what we do."""
        try:
            call = self.context.lanes[lane].lane.reconcile(out.target.name)
            reply = await self.context.link.call(call.script, call.keys, call.args, repeatable=True)
        except PoolError as error:
            self.context.emit(StoreTroubled(during="reconcile", problem=str(error)))
            if isinstance(error, StoreLost):
                self.context.on_data_lost()
            return
        finally:
            out.is_reconciling = False
        if self._outs[lane] is out:
            out.reconciled_s, out.odd = self.context.seam.clock(), 0
            self._mend(lane, out, owned(reply))
            self._fill()

    def _mend(self, lane: int, out: _Out, theirs: Owned) -> None:
        """Compare; batches that are on their way are left alone, the next time tells."""
        if out.is_flying or out.edges:
            out.reconciled_s = 0.0
            return
        adopted = resent = released = cancelled = 0
        pending = {start.key: start for start in theirs.starts}
        for start in theirs.starts:
            if start.key not in self.runs:
                settled = self._memory.get(start.key)
                resent += settled is not None and settled[0] == start.epoch
                adopted += settled is None or settled[0] < start.epoch
                self._accept(lane, start)
        for key, record in theirs.running.items():
            if record is None:
                continue
            run = self.runs.get(key)
            if run is None:
                settled = self._memory.get(key)
                if settled is not None and settled[0] == record.epoch:
                    resent += 1
                    self._send(lane, settled[1], None)
                else:
                    released += 1
                    edge = Edge(model.GRANT, key, record.epoch, record.id, 60_000)
                    edge.handler = record.handler
                    targets = self.context.targets(key, record.handler, lane=lane)
                    self._send(lane, edge, None, targets)
            elif run.start.epoch == record.epoch:
                run.is_acknowledged = True
                if record.intent.startswith("s"):
                    self._cancel(run, "stop", record.intent[1:])
        for run in self._in_lane(lane):
            is_there = run.key in theirs.running or run.key in pending
            if not is_there and run.start.epoch <= theirs.stamp and run.phase != "settling":
                cancelled += 1
                self._cancel(run, "refused")
        if adopted or resent or released or cancelled:
            self.context.emit(
                ReconciliationMended(
                    worker=out.target.name,
                    adopted=adopted,
                    resent=resent,
                    released=released,
                    cancelled=cancelled,
                )
            )

    # --- moving and leaving -------------------------------------------------------------------

    async def _rebalance(self, revision: int) -> None:
        """Hand services to the worker that is first for them now, if the fleet stays as it is."""
        await anyio.sleep(self.context.settings.settle_delay_s)
        for run in list(self.runs.values()):
            if self._membership != revision or self.is_draining:
                return
            if run.start.kind != "service" or run.phase != "running" or run.why:
                continue
            first = self.context.targets(run.key, run.start.handler, lane=run.lane, limit=1)
            if not first or first[0].id == self.id or self._moved_at.get(run.key) == revision:
                continue
            if self._moving.get(first[0].id, 0) >= MOVES_MAX or not run.is_acknowledged:
                self.spawn(self._rebalance, revision)  # look again after another delay
                return
            if await self._has_room(run.lane, first[0]) and run.phase == "running" and not run.why:
                self._moved_at[run.key] = revision
                self._moving[first[0].id] = self._moving.get(first[0].id, 0) + 1
                run.target = first[0].id
                self.context.emit(ServiceMoved(key=run.key, target=first[0].name))
                self._cancel(run, "release")

    async def _has_room(self, lane: int, target: Target) -> bool:
        names, link = self.context.lanes[lane].lane.names, self.context.link
        try:
            text = await link.execute("HGET", names.open, target.id)
            number, _, takes = (text or b"").decode().partition("|")
            if number != str(target.number):
                return False
            running = await link.execute("SCARD", names.owned(target.name))
            pending = await link.execute("XLEN", names.stream(target.name))
        except PoolError:
            return False
        return int(takes) > running + pending

    def _drain(self, grace_s: float) -> None:
        self.is_draining = True
        for run in list(self.runs.values()):
            if run.phase == "queued" or run.start.kind == "service":
                self._cancel(run, "release")
        self._backlog.clear()
        self.spawn(self._end_grace, grace_s)
        if self.is_idle:
            self.on_idle()

    async def _end_grace(self, grace_s: float) -> None:
        await anyio.sleep(grace_s)
        for run in list(self.runs.values()):
            self._cancel(run, "release")
