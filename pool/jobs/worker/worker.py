"""One worker: the starts it was granted, the handlers it runs, and what it says of them.

    stream:W --Granted--> backlog --slot free--> handler --> edge --> outbox --> status --> gone
                             |
                             no slot in time: surplus, given back

Who may write its runs: this actor with its parts in this directory, and the tasks of its slots; the
wiring notes which have overrun.  All on the event loop: the thread that renews only reads them.
Replies of the pipeline and timers come back as messages.  Dying after any step leaves the record
with its owner: fencing and reaping take it from there.  A repeated start drops out by (key, epoch),
a repeated settlement is answered with the stored outcome.  What Redis says we own is compared with
what we do now and then (`reconcile`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import anyio
import anyio.lowlevel
import attrs

from pool.core import lifecycle
from pool.core.ids import is_number
from pool.core.options import Options
from pool.core.record import Start, more_of, parse_steps
from pool.core.retry import refused_delay
from pool.core.run import Effect, Event
from pool.core.settlement import after_timeout
from pool.errors import (
    Gone,
    NotOwner,
    PoolError,
    StoreFault,
    StoreLost,
    StoreUnavailable,
    cut,
    was_cut,
)
from pool.events import (
    CommitRefused,
    HandlerLeaked,
    MessageUnheard,
    ReconciliationMended,
    WorkerFenced,
)
from pool.jobs.around import HOOKS_MAX, Happened, Happening, Hook, failed, tell_hooks
from pool.jobs.blocking import Blocking
from pool.jobs.context import Context
from pool.jobs.handlers import Handlers
from pool.jobs.job import Host, Inbox, Job
from pool.jobs.keeper import Keeper
from pool.jobs.raised import Raised
from pool.jobs.repair import quarantine, restore
from pool.jobs.run import CANCELLED, Ending, Run
from pool.jobs.settlement import Named, TellWaiters, edge_of, outcome_ttl_ms, tell_next
from pool.jobs.shields import Shields
from pool.jobs.trials import TRIAL_S
from pool.jobs.worker.executor import AHEAD_MAX, AHEAD_S, Executor
from pool.jobs.worker.messages import (
    Drain,
    Granted,
    LaneLost,
    LeaseBack,
    LeaseHard,
    LeaseSoft,
    MembershipChanged,
    Missed,
    MoveDue,
    Resumed,
    Signalled,
    Ticked,
)
from pool.jobs.worker.outbox import (
    BATCH_MAX,
    Answered,
    FlushDue,
    Memory,
    Outbox,
    Settlement,
    outcome_text,
)
from pool.jobs.worker.rebalance import Rebalancer
from pool.jobs.worker.reconcile import Audit, HeldKey, Reconciliation, compare
from pool.jobs.worker.telling import Teller, end_of, waited_s
from pool.names import pair
from pool.redis.commands.calls import IS_DRAINING, Target
from pool.redis.commands.edges import (
    AcknowledgeEdge,
    Changed,
    DoneEdge,
    Edge,
    EdgeStatus,
    GrantEdge,
    LimitEdge,
    NoteEdge,
    OverEdge,
    ParkEdge,
    Pulled,
    SaveEdge,
    SeenEdge,
    StepEdge,
    WaitEdge,
)
from pool.redis.commands.talk import NO_MESSAGE, InboxPage, MessageId, number_in
from pool.redis.commands.upkeep import Owned
from pool.redis.errors import CLOSED
from pool.redis.io.loops import unmoved
from pool.redis.io.system import Reply
from pool.redis.scripts import ScriptCall
from pool.runtime.actor import Actor
from pool.runtime.observers import log_job

ASKED_MAX: Final = 256  # overdue starts looked for in one reconciliation
_HANDED_ON: Final = (EdgeStatus.REPEAT, EdgeStatus.GRANTED, EdgeStatus.UNASSIGNED)
_ACCEPTED: Final = (EdgeStatus.DONE, *_HANDED_ON)
_HAPPENINGS: Final[dict[type, Happening]] = {
    WaitEdge: "retried",
    ParkEdge: "parked",
    GrantEdge: "moved",
}
_CARRIED_OUT: Final = (EdgeStatus.DONE, EdgeStatus.GRANTED, EdgeStatus.UNASSIGNED)
_STORED: Final = (
    *(EdgeStatus.DONE, EdgeStatus.REPEAT, EdgeStatus.FULL, EdgeStatus.STANDS),
    EdgeStatus.UNREADABLE,
)
_AGAIN_MS: Final = 60_000  # for an end to be sent again
COMING_S: Final = 0.1  # for so long slots are kept for what a lane was asked for; then it hangs


@attrs.frozen(eq=False)
class _Pulled:
    """A pull was answered."""

    box: Outbox
    reply: Reply


@attrs.frozen(eq=False)
class _Turned:
    """What came, or ended, in one turn of the loop is here, and goes on together."""


@attrs.frozen(eq=False)
class _Surplus:
    """Time to look whether anything has waited for a slot for too long."""


@attrs.frozen(eq=False)
class _Knock:
    """A slot may be free of which lanes that found us full have not heard."""


@attrs.frozen(eq=False)
class _TrialOver:
    """A suspect's time is over; if it has lived through it, it is not suspected of this run."""

    run: Run
    has_lived: bool = False


@attrs.frozen(eq=False)
class _LeakDue:
    """A plain handler must have ended by now, if it was told to."""

    run: Run


Message: TypeAlias = (
    Granted
    | Signalled
    | Missed
    | Ticked
    | LeaseSoft
    | LeaseHard
    | LeaseBack
    | LaneLost
    | MembershipChanged
    | MoveDue
    | Resumed
    | Drain
    | Answered
    | FlushDue
    | _Pulled
    | _Turned
    | _Surplus
    | _Knock
    | _TrialOver
    | _LeakDue
)


# --- the actor ----------------------------------------------------------------------------------


@attrs.define(eq=False)
class _Lane:
    """How this worker stands in one lane."""

    box: Outbox
    is_pulling: bool = False
    pulls_again: bool = False  # what is pulled for was paused when that was asked, maybe
    opened: int = 0  # the last renewal that had been answered when it pulled
    audit: Audit | None = None  # while what Redis says is compared with what we do
    odd: int = 0  # renewals in a row that counted other jobs than we do
    asked: set[str] = attrs.field(factory=set)  # keys whose start is overdue, it was said
    reconciled_s: float = 0.0
    pulled_s: float = 0.0
    # Where lanes share our slots:
    oldest: int = 0  # stamp of what a pull left there
    renewed: int = 0  # how many keys we take, as the last renewal said ...
    told: int = 0  # ... or what was said last, which may have come before that renewal
    has_heard: bool = False  # ... unless that was lost, or a renewal was answered since
    coming: int = 0  # how many keys a pull may bring, or has brought, that are not here yet
    come: int = 0  # how many came since it was sent


@attrs.define(eq=False, kw_only=True)
class Worker(Actor[Message]):
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
    on_lost: Callable[[int], object]  # lane: handlers there have a stop budget to end
    tell_waiters: TellWaiters
    has_read: Callable[[int, str, int], bool]  # see `Listener`
    resources: Callable[[Callable[..., Any]], Any]  # what a lifespan has yielded
    is_draining: bool = attrs.field(init=False, default=False)
    is_cordoned: bool = attrs.field(init=False, default=False)  # by an operator ...
    has_closed: bool = attrs.field(init=False, default=False)  # ... and each lane knows
    is_sent_off: bool = attrs.field(init=False, default=False)  # by an operator: to drain
    runs: dict[str, Run] = attrs.field(init=False, factory=dict)
    _by_lane: dict[int, dict[str, Run]] = attrs.field(
        init=False, factory=partial(defaultdict, dict)
    )
    _settling: list[int] = attrs.field(init=False, factory=list)  # of those, lane by lane
    _zombies: set[Run] = attrs.field(init=False, factory=set)  # lost, and their handlers go on
    _settlement: Settlement = attrs.field(init=False)
    _memory: Memory = attrs.field(init=False)
    _teller: Teller | None = attrs.field(init=False)  # where somebody listens
    _rebalancer: Rebalancer = attrs.field(init=False)
    _host: Host = attrs.field(init=False)
    _lanes: list[_Lane] = attrs.field(init=False, factory=list)
    _executor: Executor = attrs.field(init=False)
    _idle_bell: anyio.Event | None = attrs.field(init=False, default=None)
    _has_begun: bool = attrs.field(init=False, default=False)
    _is_looking: bool = attrs.field(init=False, default=False)  # for surplus
    _is_knocking: bool = attrs.field(init=False, default=False)
    _is_gathering: bool = attrs.field(init=False, default=False)  # until this turn is over
    _hooking: int = attrs.field(init=False, default=0)  # hooks that are under way
    _grace_ends_s: float = attrs.field(init=False, default=math.inf)  # when it drains

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self._settlement = Settlement(self.context)
        self._memory = Memory()
        listeners = self.context.jobs
        self._teller = None if listeners is None else Teller(self.context, listeners)
        self._rebalancer = Rebalancer(self.context, self.id)
        self._host = Host(
            node=self.context.node,
            node_id=self.context.node_id,
            state_bytes_max=self.context.settings.state_bytes_max,
            timing=self.context.timing_now,
            shields=Shields(self.context.timing_now, self.context.io.clock),
            inbox=self._inbox_of,
            read_inbox=lambda run, after: self._read_inbox(run, after),  # noqa: PLW0108 - as it is then
            on_handled=self._on_handled,
            keeper=self._keeper,
            blocking=self._blocking,
            on_unheard=self._on_unheard,
        )
        self._executor = Executor(
            context=self.context,
            handlers=self.handlers,
            capacity=self.capacity,
            spawn=self.spawn,
            box_of=self._box,
            on_launch=self._launch if self._teller is None else self._launch_told,
            on_end=self._conclude if self._teller is None else self._conclude_told,
            on_settle=lambda run: self._perform(run, "settle"),
            on_trial=self._on_trial,
            on_lived=self._on_lived,
            is_over=lambda: self.is_over,
        )

    # --- for the node -------------------------------------------------------------------------

    def take_lanes(self, numbers: Sequence[int]) -> None:
        """Learn the numbers under which it joins, one per lane."""
        self._lanes = [self._lane(lane, number) for lane, number in enumerate(numbers)]
        self._settling = [0] * len(numbers)

    def lose_lane(self, lost: LaneLost) -> None:
        """Take the next number in a lane at once; what ran under the old one is told later."""
        before = self.target(lost.lane)
        self._lanes[lost.lane] = self._lane(lost.lane, lost.number, is_fenced=True)
        self.context.emit(WorkerFenced(worker=before.name, lane=lost.lane))
        if self.is_crashed:
            self._lose(lost.lane)  # what ended with it would begin again, and what did not be ours
        self.put(lost)

    def target(self, lane: int) -> Target:
        """Return its name in a lane."""
        return self._lanes[lane].box.target

    def takes(self, number: int) -> int:
        """Return how many keys it takes in a lane: as many as it has slots, but for other lanes'.

        And but for those that are held by what is nobody's any more.  What it may hold ahead, it
        pulls itself.  Threads ask, too.
        """
        if self.is_draining or self.is_cordoned or self.is_crashed:
            return 0
        taken = self._coming(number) + len(self.runs) - len(self._by_lane[number])
        taken -= sum(self._settling) - self._settling[number]
        if self._zombies:
            taken += sum(run.lane == number for run in list(self._zombies))
        return min(self.capacity, max(0, self.capacity - taken))

    def tell_takes(self, number: int) -> int:
        """Return the same, or that it drains, for a renewal that says so."""
        lane = self._lanes[number]
        lane.renewed = lane.told = takes = self.takes(number)
        return IS_DRAINING if self.is_draining else takes

    def _coming(self, but: int = -1) -> int:
        """Return how many keys pulls may bring to lanes that are not here yet.

        A lane that is late keeps no slots from the others: what it brings then goes back.
        """
        if len(self._lanes) == 1:
            return 0
        since_s = self.context.io.clock() - COMING_S
        found = 0
        for number, lane in enumerate(self._lanes):
            if lane.coming and lane.pulled_s > since_s and number != but:
                found += lane.coming
        return found

    def _says(self, number: int) -> str:
        """Return what a message to a lane says of that beside: nothing if there is only one."""
        if len(self._lanes) == 1:
            return ""
        lane, takes = self._lanes[number], self.takes(number)
        is_closed = self.is_draining or self.is_cordoned or self.is_crashed
        if (takes == lane.told and lane.has_heard) or is_closed:
            return "-"
        lane.told, lane.has_heard = takes, True
        return f"{takes}|{self.context.lanes[number].door.opened}"

    @property
    def busy_slots(self) -> int:
        """How many of its slots are taken; from any thread."""
        return self._executor.busy

    @property
    def is_idle(self) -> bool:
        """Whether it has neither keys nor anything to say, but to lanes that do not answer.

        One that drains has looked for what it was granted and has not heard of, too.
        """
        states = self.context.lanes
        if self.is_draining and self._grace_ends_s == math.inf:
            return False
        for run in self.runs.values():
            if not states[run.lane].is_silent or run.phase in ("running", "preparing"):
                return False
        return not any(
            (lane.box.has_edges or (self.is_draining and lane.audit is not None))
            and not states[lane.box.lane].is_silent
            for lane in self._lanes
        )

    async def wait_idle(self) -> None:
        """Return once it is idle, or has ended."""
        while not self.is_idle and self.state != "ended":
            if self._idle_bell is None or self._idle_bell.is_set():
                self._idle_bell = anyio.Event()  # one for all who wait
            await self._idle_bell.wait()

    def ended(self, crash: BaseException | None) -> None:
        if crash is None and self._idle_bell is not None:
            self._idle_bell.set()

    def acknowledgements(self, lane: int) -> list[ScriptCall]:
        """Return what acknowledges all that has begun in a lane.

        For the thread that renews, while the loop hangs: of a dict it takes a copy in one step.
        """
        begun = [
            AcknowledgeEdge(run.key, run.start.epoch, run.start.id, has_begun=True)
            for run in list(self.runs.values())
            if run.lane == lane and run.is_called and not run.is_acknowledged
        ]
        name, pending_s = self.target(lane).name, self.context.timing.pending_timeout_s
        advance = self.context.lanes[lane].lane.advance
        return [
            advance("own", name, begun[at : at + BATCH_MAX], pending_s=pending_s)
            for at in range(0, len(begun), BATCH_MAX)
        ]

    def suspect(self, job_id: str) -> None:
        """Mark a run when it is given up: it was at work when its process was told to end."""
        for run in self.runs.values():
            if run.start.id == job_id:
                run.is_marked = True

    def abandon(self) -> None:
        """Leave its keys to the other workers of this process; it has been stopped for good.

        Where a handler has still not ended, that is done when it has.
        """
        for run in self.runs.values():
            if run.scope is None:
                self._executor.leave(run)

    def left_over(self) -> list[Run]:
        """Return the runs whose handlers go on, which keeps their keys from its neighbours."""
        busy = self.context.busy
        return [r for r in self.runs.values() if r.phase == "running" and busy.get(r.key) is r]

    def overrunning(self, lane: int) -> list[Run]:
        """Return the runs that may be another's, and whose handlers were cancelled and go on."""
        is_fenced = self.context.lanes[lane].lease.phase == "fenced"
        return [
            run
            for run in self._in_lane(lane)
            if run.phase == "running" and (run.is_lost or (is_fenced and self._has_to_end(run)))
        ]

    def _has_to_end(self, run: Run) -> bool:
        return bool(run.why) or self.is_crashed

    def _lane(self, lane: int, number: int, *, is_fenced: bool = False) -> _Lane:
        target = Target(self.id, number)
        says = partial(self._says, lane)
        asks = partial(iter, self.handlers)
        box = Outbox(self.context, lane, target, self.put, self.deliver, says, asks, is_fenced)
        return _Lane(box, pulled_s=self.context.io.clock())

    # --- messages -----------------------------------------------------------------------------

    def begin(self) -> None:
        # After a crash of this actor its slots are gone: what ran is started again, same epoch.
        self._executor.reset()
        self._zombies = {run for run in self._zombies if not run.is_leaked}
        self._is_looking = self._is_knocking = self._is_gathering = False
        for number, lane in enumerate(self._lanes):
            box = lane.box
            self._lanes[number] = self._lane(number, box.target.number, is_fenced=box.is_fenced)
        lost: list[Run] = []
        for run in list(self.runs.values()):
            match run.step("crashed"):
                case "send" if run.edge is not None:
                    self._box(run).send(run.edge, run)  # a repeat is told what became of it
                case "send":
                    self._settle(run, self._settlement.edge_for(run, CANCELLED))
                case "queue":
                    if run.keeper is not None:
                        run.keeper.lose_sent()
                    self._executor.requeue(run)
                case _:
                    lost.append(run)
        for run in lost:
            self._forget(run)  # last: starts that wait for its key are accepted now
        self._ring_if_idle()
        if self._grace_ends_s < math.inf:
            self._drain()
        for number in range(len(self._lanes)) if self._has_begun else ():
            self._reconcile(number)
        self._has_begun = True

    def handle(self, message: Message) -> None:
        match message:
            case Granted(lane, starts):
                for start in starts:
                    self._accept(lane, start)
                if len(self._lanes) > 1:
                    self._note_come(self._lanes[lane], len(starts))
                if len(starts) > 1 and self._lanes[lane].is_pulling:
                    self._gather()  # its answer, too: then what is next can be asked for
                else:
                    self._refill()
            case _Turned():
                self._is_gathering = False
                for each in self._lanes:
                    each.box.flush()
                self._refill()
            case Answered(box):
                if self._lanes[box.lane].box is box:  # else of an identity that we no longer are
                    self._on_answered(message)
            case FlushDue(box):
                if self._lanes[box.lane].box is box:
                    box.on_due(message)
            case Signalled(lane, fields):
                self._on_signal(lane, fields)
            case Missed(lane):
                for run in self._in_lane(lane):
                    if run.job is not None:
                        self._inbox_of(run).fall_behind()
                self._reconcile(lane)
            case Ticked():
                self._on_tick(message)
            case _Pulled(box, reply):
                if self._lanes[box.lane].box is box:
                    self._on_pulled(box, reply)
            case _Surplus():
                self._is_looking = False
                self._refill()
            case _Knock():
                self._is_knocking = False
                self._tell_room()
            case _TrialOver(run, has_lived):
                if has_lived:
                    self._on_lived(run)
                    self.context.trials.lived(run)
                self._executor.end_trial(run)
                self._give_back()
            case _LeakDue(run):
                self._on_leak_due(run)
            case LeaseSoft(lane):
                for run in self._in_lane(lane):
                    if not self._outlives(run):
                        self._cancel(run, "lease")
            case LeaseHard(lane):
                self._on_hard(lane)
            case LeaseBack(lane):
                self._resume(lane)
            case LaneLost(lane):
                self._lose(lane)
            case MembershipChanged(revision):
                self._rebalancer.revision = revision
                due, delay_s = MoveDue(revision), self.context.settings.settle_delay_s
                self.context.loop.later(delay_s, partial(self.put, due))
            case MoveDue(revision):
                if revision == self._rebalancer.revision and not self.is_draining:
                    self.spawn(unmoved, partial(self._move, revision))
            case Resumed():
                for number, each in enumerate(self._lanes):
                    each.pulls_again = each.is_pulling
                    self.context.tell_unassigned(number, self.context.unassigned.get(number, 1))
                self._refill()
            case Drain(grace_s):
                now_s = self.context.io.clock()
                if self._grace_ends_s == math.inf:
                    # What was granted just before it took no more may not have been heard of yet.
                    for number in range(len(self._lanes)):
                        if self.context.lanes[number].lease.is_good(now_s):  # else `_resume` does
                            self._reconcile(number)
                ends_s = now_s + grace_s
                self._grace_ends_s = min(self._grace_ends_s, ends_s)
                self._drain()

    def _in_lane(self, lane: int) -> list[Run]:
        return list(self._by_lane[lane].values())

    def _box(self, run: Run) -> Outbox:
        return self._lanes[run.lane].box

    # --- starting -----------------------------------------------------------------------------

    def _accept(self, lane: int, start: Start) -> None:
        now_s = self.context.io.clock()
        settled = self._memory.of(start.key, start.epoch, start.id)
        latest = self._memory.latest.get(start.key, 0)
        if settled is not None or latest > start.epoch:
            # Read twice, or the server went back: if it is still there, its end is sent again.
            if latest != start.epoch:
                self._reconcile(lane)
            return
        present = self.runs.get(start.key)
        if present is not None:
            if present.gives_way_to(start):
                present.then_epoch = start.epoch
                # The key came back to us while its former run is still here.
                present.then = (*present.then, partial(self._accept_later, present, lane, start))
                self._cancel(present, "lost")
            return
        handler = self.handlers.get(start.handler)
        if handler is not None and handler._options.kind != start.kind:
            # Dispatched before anybody had registered it: the code knows better.
            start = attrs.evolve(start, kind=handler._options.kind)
        state = self.context.lanes[lane]
        if start.epoch > state.highest:  # spelled out: there is one for each job
            state.highest = start.epoch
        run = Run(start, lane, now_s)
        self.runs[start.key] = self._by_lane[lane][start.key] = run
        if self.is_draining or handler is None or start.epoch < state.floor:
            self._cancel(run, "release")  # to be granted anew
        else:
            self._executor.queue(run)

    def _accept_later(self, former: Run, lane: int, start: Start) -> None:
        former.then_epoch = 0  # it may be there yet: then this waits again
        self._accept(lane, start)
        self._fill()

    def _gather(self) -> None:
        if not self._is_gathering:
            self._is_gathering = True
            self.context.loop.later(0.0, partial(self.deliver, _Turned()))

    def _fill(self) -> None:
        """Start what is queued, as far as there are slots; ask for more if one is left."""
        self._executor.fill()
        if self._executor.has_room():
            if self.context.unassigned:
                self._pull_oldest()
            if len(self._lanes) > 1:
                self._knock_later()

    def _knock_later(self) -> None:
        if not self._is_knocking:
            self._is_knocking = True
            self.context.loop.later(AHEAD_S, partial(self.put, _Knock()))

    def _refill(self) -> None:
        """Likewise; give back what is too much, and ask for what may be held ahead.

        Once for many starts, or ends.
        """
        self._fill()
        self._give_back()
        if self.context.unassigned and self._executor.wants_more():
            self._pull_oldest()

    def _pull_oldest(self) -> None:
        """Pull in all lanes where keys are unassigned, first where they have waited longest."""
        lanes = [lane for lane in self.context.unassigned if not self._lanes[lane].is_pulling]
        for lane in sorted(lanes, key=lambda lane: self._lanes[lane].oldest):
            self._pull(lane)

    def _give_back(self) -> None:
        """Let others have what would wait here for a slot, if there are any."""
        if not self._executor.is_holding:
            return
        if len(self.context.candidates.workers) > 1:
            for run in self._executor.surplus():
                self._cancel(run, "release")
        if not self._is_looking:
            self._is_looking = True
            self.context.loop.later(AHEAD_S, partial(self.put, _Surplus()))

    def _launch(self, run: Run) -> None:
        """Give a run what its handler sees; its slot calls the handler next."""
        start, handler = run.start, run.handler
        assert handler is not None
        run.inbox = None  # made when something comes, or is asked for
        if run.is_acknowledged or "i" in start.flags:
            # Its flags say what was there at the grant.  One that was acknowledged before (it goes
            # on after an outage, or had to be) may have missed since what was told while it had no
            # inbox.
            run.inbox = self._new_inbox(run, is_behind=True)
        # By position: by name it would cost half as much again.
        job = run.job = Job(
            run.key,
            start.id,
            start.handler,
            start.kind,
            start.epoch,
            start.attempt,
            self._lanes[run.lane].box.name,
            "r" in start.flags,
            self._host,
            run,
            run.checkpoint or None if run.state is None else run.state,
            run.state is not None,
            handler._state,
        )
        if run.has_old_limit:
            self._limit_anew(run)
        if handler._lifespan is not None:
            job.resources = self.resources(handler._lifespan)
        if handler._hooks:
            if job.is_recovered:
                self._tell_hooks(run, "recovered")
            self._tell_hooks(run, "started")
        if not handler._is_async:
            self._watch_threads(run)

    def _launch_told(self, run: Run) -> None:
        assert self._teller is not None
        self._launch(run)
        self._teller.started(run, self._lanes[run.lane].box.name)

    def _inbox_of(self, run: Run) -> Inbox:
        if run.inbox is None:
            run.inbox = self._new_inbox(run, is_behind=False)
        return run.inbox

    def _new_inbox(self, run: Run, *, is_behind: bool) -> Inbox:
        return Inbox(
            is_behind=is_behind, after=NO_MESSAGE if run.keeper is None else run.keeper.passed
        )

    def _on_trial(self, run: Run, for_s: float) -> None:
        has_lived = run.phase == "running"  # else it waits to begin, or for its trial
        for_s = max(for_s, TRIAL_S) if has_lived else for_s
        self.context.loop.later(for_s, partial(self._tell_trial, _TrialOver(run, has_lived)))

    def _tell_trial(self, over: _TrialOver) -> None:
        if not self.put(over):  # it has left; the turn is the node's
            self.context.trials.end(over.run, self.context.io.clock())

    def _on_lived(self, run: Run) -> None:
        if self.runs.get(run.key) is run and not run.why and run.is_acknowledged:
            self._box(run).send(OverEdge(run.key, run.start.epoch, run.start.id), None)

    # --- ending -------------------------------------------------------------------------------

    def _cancel(self, run: Run, event: Event, cause: str = "") -> None:
        """Have a run end, if it has not been told to already; a loss overrules all."""
        was, why = run.phase, run.why
        effect = run.step(event)
        if run.why != why:
            run.cause = cause
            if run.why == "stop" and run.job is not None:
                run.job._stop_cause = cause or "stopped"
        if not effect:
            return
        run.turn.give_up()
        if was == "preparing" and run.phase != was:
            self._executor.unprepare(run)
        if run.why == "lost" and why != "lost":
            self._tell_hooks(run, "lost")
        if effect in ("end", "lose"):
            if run.scope is not None:
                run.scope.cancel()
                if run.may_leak:
                    self._watch_leak(run)
            run.cancelled_s = run.cancelled_s or self.context.io.clock()
            if effect == "lose":
                if run.keeper is not None:
                    run.keeper.end()
                self._zombies.add(run)
                self.on_lost(run.lane)
        elif was == "settling":
            self._forget(run)
            self._ring_if_idle()
        elif effect != "give_up":
            self._perform(run, effect)

    def _blocking(self, job: Job) -> Blocking:
        """Return what a run calls beside the event loop; few call anything."""
        self.context.pipeline.check_caller()
        run = self.runs.get(job.key)
        if run is None or run.job is not job or run.phase != "running":
            raise NotOwner(key=job.key, job_id=job.id, epoch=job.epoch)
        if run.blocking is None:
            run.blocking = Blocking(self._executor.blocking)
            if not run.may_leak:
                self._watch_threads(run)
        return run.blocking

    def _watch_threads(self, run: Run) -> None:
        """Note that a thread may go on when it was told to end, for whatever reason."""
        run.may_leak = True
        assert run.handler is not None
        ends_s, now_s = run.ends_s(run.handler._options), self.context.io.clock()
        if run.cancelled_s or ends_s < math.inf:
            self._watch_leak(run, 0.0 if run.cancelled_s else max(0.0, ends_s - now_s))

    def _watch_leak(self, run: Run, in_s: float = 0.0) -> None:
        """Look, when its stop budget is over, whether a handler that has threads has ended."""
        in_s += self.context.timing.stop_budget_s
        self.context.loop.later(in_s, partial(self.put, _LeakDue(run)))

    def _on_leak_due(self, run: Run) -> None:
        """Settle a run whose thread goes on, for it cannot be ended; its slot stays taken.

        So does its key, for this process.  Where its lease is what it was to end for, nothing can
        be settled, and `on_overrun` says what happens.  One that has no thread now may have again.
        """
        if self.runs.get(run.key) is not run or run.phase != "running" or run.scope is None:
            return
        assert run.handler is not None
        if not run.scope.cancel_called:  # its time has begun anew
            left_s = run.ends_s(run.handler._options) - self.context.io.clock()
            if left_s < math.inf:
                self._watch_leak(run, max(0.0, left_s))
            return
        if run.handler._is_async and not (run.blocking is not None and run.blocking.threads):
            self._watch_leak(run)
            return
        if run.why in ("", "timeout", "stop", "release"):
            run.step("deadline")
            run.is_leaked = True
            self._zombies.add(run)
            name, why = run.start.handler, run.why
            self.context.emit(
                HandlerLeaked(key=run.key, handler=name, epoch=run.start.epoch, why=why)
            )
            self._perform(run, run.step("cancelled"))

    def _conclude(self, run: Run, ending: Ending) -> None:
        """Decide what becomes of a run whose handler has ended, or never began."""
        if run.is_leaked:
            self._zombies.discard(run)
            self._executor.free(run)
            self._fill()
            return
        if type(ending) is Raised and ending.interrupt is not None:
            # First: from here on we drain, and take back nothing.
            self.context.on_interrupt(ending.interrupt)
        # A service that returns because it was cancelled is not done.
        is_over = ending is not CANCELLED and run.start.kind == "job"
        self._perform(run, run.step("ended" if is_over else "cancelled"), ending)

    def _conclude_told(self, run: Run, ending: Ending) -> None:
        assert self._teller is not None
        self._teller.ended(run)
        self._conclude(run, ending)

    def _perform(self, run: Run, effect: Effect, ending: Ending = CANCELLED) -> None:
        """Do what ends a run here; its slot, if it had one, is another's."""
        if effect == "settle":
            self._settle(run, self._settlement.edge_for(run, ending))
        elif effect == "suspend":
            self._suspend(run)
        elif effect:
            self._forget(run)
        if self._is_gathering or (self._executor.pace.last and len(self._lanes) == 1):
            self._executor.fill()  # what is held ahead begins; more of it is asked for once a batch
        else:
            self._fill()
        self._ring_if_idle()

    def _log(self, level: str, run: Run, edge: Edge) -> None:
        """Write the line of a job whose run has ended, where that is asked for."""
        start, now_s, began_s = run.start, self.context.io.clock(), run.began_s
        log_job(
            level,
            pool=self.context.pool,
            handler=start.handler,
            key=start.key,
            job_id=start.id,
            attempt=start.attempt,
            epoch=start.epoch,
            outcome=end_of(edge),
            waited_s=waited_s(self.context, run),
            ran_s=round(now_s - began_s, 3) if began_s else 0.0,
        )

    def _settle(self, run: Run, edge: Edge) -> None:
        run.edge = edge
        if run.handler is not None and run.handler._log_jobs is not None:
            self._log(run.handler._log_jobs, run, edge)
        self._settling[run.lane] += 1
        if run.inbox is not None and run.inbox.is_unheard and edge.letter in lifecycle.ENDS:
            self._on_unheard(run.start)
        box = self._box(run)
        if run.keeper is not None:
            last = run.keeper.settle()
            run.keeper = None
            if last is not None:
                box.add(last, run)
        run.job, run.inbox = None, None  # a cycle with the run: only the GC frees those
        box.withdraw(run)
        if not run.is_leaked:
            self._executor.free(run)
        box.add(edge, run)
        if self._executor.called and not box.is_flying:
            self._gather()  # more end in this turn, and all would wait for the answer to this one
        elif not self._is_gathering:
            box.flush()

    def _suspend(self, run: Run) -> None:
        """Its handler was stopped for the lease's sake; if nobody takes the key, it goes on."""
        self._executor.free(run)
        lease = self.context.lanes[run.lane].lease
        if not self._box(run).is_fenced and lease.is_good(self.context.io.clock()):
            run.step("resume")  # the lease came back while it was ending
            self._executor.requeue(run)

    def _forget(self, run: Run) -> None:
        """The run is no longer ours, or has ended for good."""
        if self.runs.get(run.key) is run:
            del self.runs[run.key], self._by_lane[run.lane][run.key]
            if run.edge is not None:
                self._settling[run.lane] -= 1
            elif run.is_lost:
                self._zombies.discard(run)
        if run.edge is None:  # else that was done when it was settled
            self._box(run).withdraw(run)
        if run.start.kind == "service":
            self._rebalancer.forget(run)
        if not run.is_leaked and (run.edge is None or run.then):
            self._executor.free(run)

    # --- what the store says ------------------------------------------------------------------

    def _on_answered(self, answer: Answered) -> None:
        box = answer.box
        told = box.on_answer(answer)
        if self._teller is not None:
            told = self._teller.telling(box.name, told)
        if isinstance(answer.reply, PoolError):
            self._troubled(box, answer.reply)
        for (edge, run), changed in told:
            if isinstance(edge, AcknowledgeEdge):
                assert run is not None
                self._on_acknowledged(run, changed)
            elif isinstance(edge, SeenEdge):
                if changed.status is EdgeStatus.MORE:  # than one call takes out
                    box.see(edge)
            elif isinstance(edge, (SaveEdge, StepEdge, NoteEdge)):
                assert run is not None
                self._on_stored(run, edge, changed)
            elif not isinstance(edge, (LimitEdge, OverEdge)):
                self._on_settled(box, edge, run, changed)
        box.flush()
        self._refill()
        self._ring_if_idle()

    def _troubled(self, box: Outbox, error: PoolError) -> None:
        self._lanes[box.lane].has_heard = False
        if isinstance(error, Gone):
            self.on_gone(box.lane, box.target.name)
        elif isinstance(error, StoreLost):
            self.context.on_data_lost(box.lane)
        elif not isinstance(error, StoreUnavailable):
            self.context.trouble("advance", box.lane, error)

    def _on_acknowledged(self, run: Run, changed: Changed) -> None:
        if self.runs.get(run.key) is not run or run.phase not in ("running", "preparing"):
            return
        if changed.status is EdgeStatus.STOPPED:
            self._cancel(run, "stopped", changed.facts)
            return
        if changed.status is not EdgeStatus.DONE:
            if changed.status is not EdgeStatus.LATE:
                self._refused(run.key, run.start, str(changed))
            self._cancel(run, "lost", changed.facts)
            return
        run.is_acknowledged = True
        flags, waiters = changed.of_start
        if waiters:
            self.tell_waiters(run.lane, waiters, "started", pair(run.key, run.start.id), b"")
        if "i" in flags and run.job is not None and (inbox := self._inbox_of(run)).is_unread:
            inbox.fall_behind()
        self._executor.prepared(run)

    def _on_stored(self, run: Run, edge: SaveEdge | StepEdge | NoteEdge, changed: Changed) -> None:
        if run.keeper is None:
            return  # it has ended meanwhile
        if changed.status in _STORED:
            if not isinstance(edge, NoteEdge):
                run.keeper.on_answer(edge, changed)
            return
        run.keeper.end()
        if self.runs.get(run.key) is run and not run.is_lost:
            self._refused(run.key, run.start, str(changed))
            self._cancel(run, "lost", changed.facts)

    def _on_settled(self, box: Outbox, edge: Edge, run: Run | None, changed: Changed) -> None:
        status = changed.status
        if status is EdgeStatus.DONE and type(edge) is DoneEdge:  # nearly all
            self._on_over(box, edge, run, changed)
            return
        if status is EdgeStatus.TIMED_OUT:
            if run is not None and isinstance(edge, DoneEdge) and self._is_within_limit(run):
                self._limit_anew(run)
                box.send(edge, run)
            elif run is not None and run.step("timed_out"):
                run.edge = self._settlement.timed_out(run)
                box.send(run.edge, run)
            elif run is None and isinstance(edge, DoneEdge):
                # It had ended in time, and older data brought it back: its end stands.
                limit = LimitEdge(edge.key, edge.epoch, edge.id, in_ms=_AGAIN_MS, is_anew=True)
                box.send(limit, None)
                box.send(edge, None)
            return  # without a run, reconciliation finds it again, and what it was told
        if status is EdgeStatus.MOVED_ON and changed.facts != edge.handler:
            # Nothing was done: its record names another handler than the start did.
            edge.handler = changed.facts
            box.send(edge, run)
            return
        what = _HAPPENINGS.get(type(edge))
        if what is not None and run is not None and status in _CARRIED_OUT:
            self._tell_hooks(run, what)
        if status in (EdgeStatus.DONE, EdgeStatus.REPEAT) and isinstance(edge, WaitEdge):
            self.context.on_due(box.lane, edge.delay_ms / 1000)
        not_done = status is not EdgeStatus.DONE and status not in _HANDED_ON
        if not_done and not isinstance(edge, GrantEdge):
            self._refused(edge.key, edge, str(changed))
        self._on_over(box, edge, run, changed)

    def _on_over(self, box: Outbox, edge: Edge, run: Run | None, changed: Changed) -> None:
        """Forget a run, of which only how it ended is remembered; tell who waits for its job."""
        keep_s, is_accepted = 2 * self.context.timing.ttl_s, changed.status in _ACCEPTED
        self._memory.keep(edge, self.context.io.clock(), keep_s, is_accepted=is_accepted)
        # It has ended, or failed before it was said to have begun:
        if changed.facts and changed.status is EdgeStatus.DONE:
            outcome = run and outcome_text(edge, box.target.name, run.start.attempt)
            job = pair(edge.key, edge.id)
            self.tell_waiters(box.lane, changed.waiters, "ended", job, outcome or b"")
            tell_next(self.context, box.lane, edge, changed)
        if run is not None and run.step("settled"):
            self._forget(run)

    def _refused(self, key: str, of: Named, answer: str) -> None:
        self.context.emit(
            CommitRefused(key=key, job_id=of.id, handler=of.handler, epoch=of.epoch, answer=answer)
        )

    def _on_signal(self, lane: int, fields: dict[str, bytes]) -> None:
        run = self.runs.get(fields.get("k", b"").decode(errors="replace"))
        match fields:
            case {"t": b"message", "i": number, "b": before}:
                if run is not None and run.job is not None:
                    message = number.decode(errors="replace")
                    if "|" in message and number_in(message) and is_number(before):
                        self._inbox_of(run).offer(message, int(before), fields.get("p"))
                    else:
                        self._inbox_of(run).fall_behind()
            case {"t": b"intent", "e": epoch, "d": intent}:
                if run is None or epoch != b"%d" % run.start.epoch or not intent:
                    if len(self._lanes[lane].asked) < ASKED_MAX:
                        self._lanes[lane].asked.add(fields.get("k", b"").decode(errors="replace"))
                    self._reconcile(lane)
                elif intent.startswith(b"s"):
                    self._cancel(run, "stop", intent[1:].decode(errors="replace"))
                elif intent == b"t" and self._is_within_limit(run):
                    self._limit_anew(run)
                elif intent == b"t":
                    self._cancel(run, "timeout")
            case {"t": b"remade"}:
                self.put(Missed(lane))  # somebody deleted our signals; see `renew.lua`

    async def _read_inbox(self, run: Run, after: MessageId) -> InboxPage:
        state, refusals = self.context.lanes[run.lane], 0
        pipeline = self.context.pipeline.at(state.lane.names.prefix)
        while True:
            try:
                if run.cuts:  # a page, or a message, is too large for its server to deliver
                    async with pipeline.apart() as line:
                        page: InboxPage = await line.call(
                            state.lane.inbox(run.key, after, is_alone=True)
                        )
                else:
                    async with pipeline.reads.turn() as turn:
                        page = await pipeline.call(
                            state.lane.inbox(run.key, after), repeatable=True
                        )
                        turn.size = sum(len(message) for _, message in page.messages)
            except StoreLost:
                self.context.on_data_lost(run.lane)  # which ends this run
            except StoreFault as error:
                if not error.maybe_done:
                    raise  # there is no inbox in its place
                refusals += 1
            except StoreUnavailable as error:
                is_cut = CLOSED in error.problem
                if run.cuts and is_cut:
                    error = cut(error, run.cuts + 1)
                if was_cut(error):
                    run.cuts += 1
                    self.context.trouble("messages", run.lane, error)
                refusals = refusals + 1 if is_cut else 0
            else:
                if page.messages or not page.has_more:
                    return page
                # Nothing but what was handled already, or is no message: first that has to go.
                self._on_handled(run, after)
            await anyio.sleep(refused_delay(refusals))

    def _on_handled(self, run: Run, message: MessageId) -> None:
        if self.runs.get(run.key) is run and not run.is_lost:
            if run.keeper is not None and run.keeper.handled(message):
                return
            self._box(run).see(SeenEdge(run.key, run.start.epoch, run.start.id, message=message))

    def _keeper(self, run: Run) -> Keeper:
        """Return what a run stores with; few do."""
        if run.keeper is None:
            run.keeper = Keeper(
                pool=self.context.pool,
                key=run.key,
                id=run.start.id,
                origin=more_of(run.start.more, "origin"),
                epoch=run.start.epoch,
                settings=self.context.settings,
                check_here=self.context.pipeline.check_caller,
                send=partial(self._store, run),
                later=self.context.loop.later,
                on_note=partial(self._on_progress, run),
                results=parse_steps(run.steps) or {},
                is_over=self.runs.get(run.key) is not run or run.phase != "running" or run.is_lost,
            )
        return run.keeper

    def _on_progress(self, run: Run) -> None:
        """Give its handler as long again as it may go on without telling how far it is."""
        assert run.handler is not None
        options = run.handler._options
        if options.progress_timeout_s is not None and run.scope is not None:
            run.progressed_s = self.context.io.clock()
            run.scope.deadline = anyio.current_time() + run.ends_s(options) - run.progressed_s

    def _store(self, run: Run, edge: Edge) -> None:
        match edge:
            case SaveEdge():
                self._box(run).save(edge, run)
            case SeenEdge():
                self._box(run).see(edge)
            case _:
                self._box(run).send(edge, run)

    def _tell_hooks(self, run: Run, what: Happening) -> None:
        """Have those hear of it who want to, as long as there is room for that."""
        handler = run.handler or self.handlers.get(run.start.handler)
        hooks = handler._hooks.get(what) if handler is not None else None
        if not hooks:
            return
        start = run.start
        happened = Happened(
            what=what,
            handler=start.handler,
            key=start.key,
            job_id=start.id,
            attempt=start.attempt,
            epoch=start.epoch,
            node_id=self.context.node_id,
        )
        if self._hooking >= HOOKS_MAX:
            self.context.emit(failed(happened, f"{HOOKS_MAX} are under way"))
            return
        self._hooking += 1
        self.spawn(unmoved, partial(self._call_hooks, hooks, happened))

    async def _call_hooks(self, hooks: Sequence[Hook], happened: Happened) -> None:
        try:
            await tell_hooks(hooks, happened, self.context.emit)
        finally:
            self._hooking -= 1

    def _on_unheard(self, job: Job | Start) -> None:
        self.context.emit(MessageUnheard(key=job.key, handler=job.handler, epoch=job.epoch))

    # --- the lease ----------------------------------------------------------------------------

    def _outlives(self, run: Run) -> bool:
        """Say whether this run goes on without the store (its commits are fenced all the same)."""
        return self.context.settings.on_store_loss == "continue" and run.start.kind == "service"

    def _on_hard(self, lane: int) -> None:
        self._lanes[lane].box.is_fenced = True

    def _resume(self, lane: int) -> None:
        box = self._lanes[lane].box
        box.is_fenced = False
        box.flush()  # first the settlements of handlers that had ended
        for run in self._in_lane(lane):
            if run.phase == "suspended":  # one that is still ending resumes when it has ended
                run.step("resume")
                self._executor.requeue(run)
        self._reconcile(lane)
        self._fill()

    def _lose(self, lane: int) -> None:
        for run in self._in_lane(lane):
            if run.phase == "settling":
                self._refused(run.key, run.start, "GONE")
            run.then, run.then_epoch = (), 0  # starts that were granted to who we were
            self._cancel(run, "lost")
        self._memory.clear(lambda key: self.context.lane_of(key).number == lane)
        self._ring_if_idle()

    def _on_tick(self, tick: Ticked) -> None:
        """Look after what time alone changes; once per renewal."""
        lane, timing = self._lanes[tick.lane], self.context.timing
        lane.told, lane.has_heard = min(lane.told, lane.renewed), False
        now_s = self.context.io.clock()
        self._executor.fill()  # what has waited for its time starts here rather than being released
        acknowledged = 0
        for run in self._in_lane(tick.lane):
            acknowledged += run.is_acknowledged and not run.is_lost
            if run.phase == "queued" and not lane.box.is_fenced:
                # Others with a free slot shall have it.  Not what waits for its trial: with each of
                # them it would wait from the beginning, and for ever while there are suspects.
                is_late = now_s - run.queued_s > timing.pending_timeout_s / 2
                if is_late and not run.why and not self._executor.is_kept_back(run):
                    self._cancel(run, "release")
            elif not run.turn.has_come and len(self.context.candidates.workers) > 1:
                # Likewise what others may fetch sooner than we, who have not even begun to.
                if now_s - run.queued_s > timing.pending_timeout_s / 2 and not run.why:
                    self._cancel(run, "release")
            elif run.phase == "running":
                self._limit(run, now_s)
                if run.keeper is not None:
                    run.keeper.save_again()
        if lane.box.is_empty and lane.box.answered_s < tick.asked_s:
            lane.odd = lane.odd + 1 if acknowledged != tick.acknowledged else 0
        overdue = now_s - lane.reconciled_s > 10 * timing.ttl_s
        is_odd = lane.odd >= 2 or (overdue and bool(self.runs))
        if tick.was_away or (is_odd and lane.audit is None):
            self._reconcile(tick.lane)
        if now_s - lane.pulled_s > 10 * timing.ttl_s:
            self._pull(tick.lane)  # whatever the lane counts
        self._fill()

    def _limit(self, run: Run, now_s: float) -> None:
        """Write the run-time limit into `due` once a job has lasted: then others can enforce it."""
        assert run.handler is not None
        options, timing = run.handler._options, self.context.timing
        if options.limit_s is None or not run.is_acknowledged:
            return
        if run.is_limited and options.progress_timeout_s is None:
            return
        if now_s - run.began_s >= timing.renew_s / 2:
            self._send_limit(run, run.ends_s(options) - now_s)

    def _send_limit(self, run: Run, left_s: float, *, is_anew: bool = False) -> None:
        run.is_limited, run.has_old_limit = True, False
        left_ms = max(1, round((left_s + self.context.timing.stop_budget_s) * 1000))
        edge = LimitEdge(run.key, run.start.epoch, run.start.id, in_ms=left_ms, is_anew=is_anew)
        self._box(run).send(edge, None)

    def _is_within_limit(self, run: Run) -> bool:
        """Whether its limit is not reached, whatever the server's clock made others write.

        A run of before, under the same epoch, may have left its own there.
        """
        handler = self.handlers.get(run.start.handler)
        if handler is None or handler._options.limit_s is None:
            return False
        return not run.began_s or self.context.io.clock() < run.ends_s(handler._options)

    def _limit_anew(self, run: Run) -> None:
        """Write the limit of this run over whatever stands there, and over a time-out, too."""
        options, left_s = self.handlers[run.start.handler]._options, 0.0
        if run.began_s:
            left_s = run.ends_s(options) - self.context.io.clock()
        elif options.limit_s is not None:
            left_s = options.limit_s
        self._send_limit(run, left_s, is_anew=True)

    # --- unassigned keys ----------------------------------------------------------------------

    def _pull(self, number: int) -> None:
        lane, state = self._lanes[number], self.context.lanes[number]
        if lane.is_pulling or lane.box.is_fenced or self.is_draining or self.is_cordoned:
            return
        if not state.lease.is_good(self.context.io.clock()):
            return
        keys_max, ahead = AHEAD_MAX, self._executor.ahead()
        if len(self._lanes) > 1:
            # What the others may bring is not free: the oldest is asked for first, and for all.
            free = self._executor.left() - self._coming()
            keys_max = min(keys_max, free + ahead)
            if keys_max <= 0:
                return
            lane.coming, lane.come = keys_max, 0
        lane.is_pulling, lane.pulled_s = True, self.context.io.clock()
        box, lane.opened = lane.box, state.door.opened
        call = state.lane.pull(
            box.target,
            self.handlers,
            keys_max=keys_max,
            pending_s=self.context.timing.pending_timeout_s,
            ahead=ahead,
            says=self._says(number),
        )
        try:
            self.context.pipeline.send(call, lambda reply: self.deliver(_Pulled(box, reply)))
        except PoolError as error:
            self.put(_Pulled(box, error))

    def _on_pulled(self, box: Outbox, reply: Reply) -> None:
        lane = self._lanes[box.lane]
        lane.is_pulling, lane.coming = False, 0
        if self.context.lanes[box.lane].door.opened != lane.opened:
            lane.pulls_again = True  # a renewal has told more since: that we take keys again, maybe
        if isinstance(reply, Gone):
            self.on_gone(box.lane, box.target.name)
        elif isinstance(reply, PoolError):
            lane.has_heard = False
        else:
            pulled: Pulled = reply
            lane.oldest = pulled.oldest
            self.context.tell_pulled(box.lane, pulled, goes_on=lane.pulls_again)
            if len(self._lanes) > 1:
                lane.coming = max(0, pulled.granted - lane.come)
                self._fill()
                self._tell_room()
        if lane.pulls_again:
            lane.pulls_again = False
            self._fill()

    def _note_come(self, lane: _Lane, starts: int) -> None:
        lane.come += starts
        if not lane.is_pulling:
            lane.coming = max(0, lane.coming - starts)

    def _tell_room(self) -> None:
        """Pull in lanes that were told that we have no room, and have not heard of a slot since.

        One after the other: what one of them may bring is not free for the next, unless it is late.
        """
        if self._executor.has_room():
            if self._coming():
                self._knock_later()
            self._pull_oldest()
            for number, lane in enumerate(self._lanes):
                if lane.told <= len(self._by_lane[number]) and self.takes(number) > lane.told:
                    self._pull(number)

    # --- reconciliation -----------------------------------------------------------------------

    def _reconcile(self, number: int) -> None:
        lane = self._lanes[number]
        if lane.audit is not None:
            lane.audit.is_again = True  # some of it may have been compared before this came up
        elif self.state == "running":
            lane.audit = Audit.begin(lane.asked, self._in_lane(number))
            lane.asked = set()
            lane.box.hold(partial(self.spawn, self._compare, number, lane, lane.audit))

    async def _compare(self, number: int, lane: _Lane, audit: Audit) -> None:
        """Compare the next page; what waits to be sent goes out before the one after it."""
        state, runs, is_failed = self.context.lanes[number], self._by_lane[number], True
        items, known = audit.page(runs, self.context.io.pages.compared)
        call = state.lane.reconcile(lane.box.target.name, items, at=audit.at, after=audit.after)

        async def ask() -> Owned:
            reply = await self.context.pipeline.call(call, repeatable=True)
            return await self._with_strays(number, lane, reply)

        try:
            theirs = await unmoved(ask)  # or who cancels all tasks would end the worker with them
        except PoolError as error:
            self.context.trouble("reconcile", number, error)
            if isinstance(error, StoreLost):
                self.context.on_data_lost(number)
        else:
            if self._lanes[number] is lane:
                audit.list(theirs, runs)
                reconciliation = self._mend(number, lane.box, theirs, known)
                stream = state.lane.names.stream(lane.box.target.name)
                audit.counts.update(reconciliation.counts(partial(self.has_read, number, stream)))
                self._fill()
            is_failed = False
        finally:
            if self._lanes[number] is lane:
                lane.box.release()
                if is_failed or audit.is_over:
                    self._end_audit(number, lane, audit, is_failed=is_failed)
                else:
                    lane.box.hold(partial(self.spawn, self._compare, number, lane, audit))

    def _end_audit(self, number: int, lane: _Lane, audit: Audit, *, is_failed: bool) -> None:
        lane.audit = None
        if not is_failed:
            lane.reconciled_s, lane.odd = self.context.io.clock(), 0
        if audit.counts.total():
            name, pool = lane.box.target.name, self.context.pool
            self.context.emit(ReconciliationMended(pool=pool, worker=name, **audit.counts))
        if audit.is_again and not is_failed:
            self._reconcile(number)
        self._ring_if_idle()

    async def _with_strays(self, number: int, lane: _Lane, theirs: Owned) -> Owned:
        """Add what is ours and our set of keys lacks: the record decides."""
        if not theirs.strays:
            return theirs
        state, name = self.context.lanes[number], lane.box.target.name
        answers = await restore(self.context, state, name, theirs.strays, self.handlers._options())
        running = dict(theirs.running)
        for (key, _, record), is_there in zip(theirs.strays, answers, strict=True):
            if is_there:  # one that moved on is seen the next time
                running[key] = record
        return attrs.evolve(theirs, running=running)

    def _mend(
        self, number: int, box: Outbox, theirs: Owned, known: Sequence[Run]
    ) -> Reconciliation:
        reconciliation = compare(theirs, self._by_lane[number], self._memory, known)
        for run in reconciliation.acknowledged:
            run.is_acknowledged = True
        for run in reconciliation.again:
            # It would be swept again and again, and behind a hung loop be taken from who runs it.
            run.is_acknowledged = False
            if run.phase == "running":
                self._box(run).acknowledge(run, run.began_s)
        for run, cause in reconciliation.stop:
            self._cancel(run, "stop", cause)
        for run in reconciliation.cancel:
            self._cancel(run, "lost")
        for start in reconciliation.adopt:
            self._accept(number, start)
        for edge in reconciliation.resend:
            box.send(edge, None)
        for key, text in theirs.unreadable.items():
            self.spawn(unmoved, partial(self._quarantine, number, key, text))
        for held in reconciliation.release:
            box.send(self._given_up(held), None)
        return reconciliation

    def _given_up(self, held: HeldKey) -> Edge:
        """Return the edge that gives up what we own and do not know."""
        record = held.record
        if record is not None and record.intent.startswith("t"):
            # Granting it is refused (TIMEDOUT): its attempt must end as timed out, and there is
            # no run of ours that could be told so.
            handler = self.handlers.get(record.handler)
            options = handler._options if handler is not None else Options()
            decision = after_timeout(record.attempt, options, self.context.io.dice)
            return edge_of(held.key, record, decision, self.context.settings)
        ttl_ms = outcome_ttl_ms(self.context.settings)
        return GrantEdge(held.key, held.epoch, held.id, ttl_ms, held.handler)

    async def _quarantine(self, number: int, key: str, text: bytes) -> None:
        """Park a job of ours whose record cannot be read; its handler is cancelled then."""
        state, name = self.context.lanes[number], self.target(number).name
        try:
            is_gone = await quarantine(self.context, state, key, text, name)
        except PoolError as error:
            self.context.trouble("quarantine", number, error)
            return
        if is_gone:
            self._reconcile(number)

    # --- moving and leaving -------------------------------------------------------------------

    async def _move(self, revision: int) -> None:
        """Hand services to the workers that are first for them now."""
        again_s: list[float] = []
        for run in list(self.runs.values()):
            if self._rebalancer.revision != revision:
                return
            match await self._rebalancer.place_for(run):
                case float() as in_s:
                    again_s.append(in_s)
                case Target() as target if run.phase == "running" and not run.why:
                    self._rebalancer.go(run, target)
                    self._cancel(run, "release")
        if again_s:
            self.context.loop.later(min(again_s), partial(self.put, MoveDue(revision)))

    def _drain(self) -> None:
        for run in list(self.runs.values()):
            if run.phase in ("queued", "suspended") or run.start.kind == "service":
                self._cancel(run, "release")
        self.spawn(unmoved, partial(self._end_grace, self._grace_ends_s))
        self._ring_if_idle()

    def _ring_if_idle(self) -> None:
        if self._idle_bell is not None and self.is_idle:
            self._idle_bell.set()

    async def _end_grace(self, at_s: float) -> None:
        await anyio.sleep(max(0.0, at_s - self.context.io.clock()))
        for run in list(self.runs.values()):
            self._cancel(run, "release")
