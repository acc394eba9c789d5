"""Looks after overdue deadlines: starts that were not acknowledged, and everything in `due`.

    what this node put there itself          --+
    earliest deadline of a lane (renewals)   --+--> sweep.lua: list
    the next one, while the lock is ours     --+
    pending, owner lives     signal it again, new deadline
    pending, owner gone      requeue with backoff
    pending, owner hangs     give it to another one: what it has begun it acknowledged (see hang)
    due, waiting             grant: a delay or a retry is over
    due, not yet begun       it is too late: it ends, or waits for its next attempt (lib/lapse.lua)
    due, has an intent       signal its owner again
    due, messages to a lane  carry them over, see `Carrier`
    due, schedules           fire them, see `Scheduler`
    due, a batch             look after it, see `Caretaker`
    due, running             its run-time limit is over: write the intent "timed out", signal
    not to be read           parked, see `repair.py`

Whoever puts a deadline there comes for it, whoever else sweeps.  The lock (SetIfNotExists with an
expiry on the server's clock) keeps nobody from looking; it says by when all that was due has been
listed, so that each overdue key is listed once, and who turns the pages and goes on to the next
deadline: not all nodes do for each.  Two that list the same are harmless, since every change is
guarded by owner and epoch; so is a sweep that comes twice, or late.  Dying after any step leaves
the deadline where it was: what was listed to who died is anybody's when the lock ends, what he
would have come for comes with the next renewal.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import attrs

from pool.core.crash_marks import SUM_MAX
from pool.core.record import Record, left_by
from pool.core.retry import RECOVERY_RETRY_S, refused_delay
from pool.core.settlement import Death, Grant
from pool.errors import PoolError, StoreFault, StoreLost, StoreUnavailable
from pool.jobs.context import Context, LaneState
from pool.jobs.fleet.caretaker import Caretaker
from pool.jobs.fleet.carrier import Carrier
from pool.jobs.fleet.scheduler import Scheduler
from pool.jobs.fleet.walker import ACT_MAX, Walker
from pool.jobs.repair import quarantine
from pool.jobs.settlement import Recovery, TellWaiters, judgement_of
from pool.redis.commands.batches import Stirred
from pool.redis.commands.calls import Target
from pool.redis.commands.recovery import Overdue
from pool.runtime.actor import Actor
from pool.runtime.eviction import EvictionWatch
from pool.runtime.timers import Alarms

LOCK_S: Final = 1.0  # one sweep takes milliseconds; what was listed to one that died waits so long
STEP_S: Final = 0.01  # what is due within this is looked at together
STEPS_MAX: Final = 10_000  # of a lane that are kept; for those beyond them every deadline is ours
NEAR_S: Final = 0.1  # by so much our clock and the server's may differ in what a delay lasts
SPREAD_S: Final = 0.02
NEXT_S: Final = 0.001  # between two pages
SKIPPED_MAX: Final = 100_000  # overdue keys that cannot be dealt with, which a sweep passes over


@attrs.frozen
class Deadline:
    """Something in the lane is due in that step of our own clock."""

    lane: int
    step: int


@attrs.define(eq=False)
class Agenda:
    """When we come for what is due in one lane."""

    beyond_s: float = -math.inf  # the last that found no room
    _steps: list[int] = attrs.field(factory=list)  # a heap
    _known: set[int] = attrs.field(factory=set)

    def add(self, step: int) -> None:
        if step in self._known:
            return
        if len(self._steps) >= STEPS_MAX:
            self.beyond_s = max(self.beyond_s, step * STEP_S)
            return
        self._known.add(step)
        heapq.heappush(self._steps, step)

    def first_s(self) -> float:
        return self._steps[0] * STEP_S if self._steps else math.inf

    def passed(self, now_s: float) -> float:
        """Forget what is over by now; return by when whatever is next is for us to come for."""
        last_s = self.beyond_s
        while (first_s := self.first_s()) <= now_s:
            last_s = max(last_s, first_s)
            self._known.discard(heapq.heappop(self._steps))
        return last_s + NEAR_S


@attrs.define(eq=False, kw_only=True)
class Sweeper(Actor[Deadline]):
    """Every node has one, clients too."""

    context: Context
    tell_waiters: TellWaiters
    on_suspects: Callable[[int, Sequence[str]], object]  # lane and owners without a lease
    stop_job: Callable[[str, str, str], Awaitable[object]]  # key, job id, cause
    _alarms: Alarms = attrs.field(init=False)
    _carrier: Carrier = attrs.field(init=False)
    scheduler: Scheduler = attrs.field(init=False)
    _caretaker: Caretaker = attrs.field(init=False)
    _evictions: EvictionWatch = attrs.field(init=False)
    _agendas: defaultdict[int, Agenda] = attrs.field(
        init=False, factory=lambda: defaultdict(Agenda)
    )
    # Per lane, how many of the earliest could not be dealt with: the next look is behind them.
    _skipped: Counter[int] = attrs.field(init=False, factory=Counter)
    _refusals: Counter[int] = attrs.field(init=False, factory=Counter)  # in a row, of each lane

    @_alarms.default
    def _no_alarms(self) -> Alarms:
        return Alarms(self.context.io.clock)

    @_carrier.default
    def _no_messages(self) -> Carrier:
        return Carrier(context=self.context, spawn=self.spawn, on_stirred=self.on_stirred)

    @_caretaker.default
    def _no_batches(self) -> Caretaker:
        return Caretaker(
            context=self.context, spawn=self.spawn, stop=self.stop_job, on_stirred=self.on_stirred
        )

    @_evictions.default
    def _no_policies(self) -> EvictionWatch:
        context = self.context
        return EvictionWatch(
            pipeline=context.pipeline,
            prefixes=lambda: [
                context.control.prefix,
                *(state.lane.names.prefix for state in context.lanes),
            ],
            emit=context.emit,
        )

    @scheduler.default
    def _no_schedules(self) -> Scheduler:
        return Scheduler(context=self.context, spawn=self.spawn, carry=self._carrier.carry)

    # --- for the node -------------------------------------------------------------------------

    def due(self, lane: int, in_s: float) -> None:
        """Something in the lane is due in so many seconds."""
        step = math.ceil((self.context.io.clock() + in_s) / STEP_S)
        self.tell_latest((lane, step), Deadline(lane, step))

    def on_stirred(self, lane: int, stirred: Stirred) -> None:
        """Tell who waits for batches that something of them has ended, and carry what that has."""
        for names, batch_id in stirred.waits:
            self.tell_waiters(lane, names, "batch", batch_id, b"")
        if stirred.has_due:
            self.due(lane, 0.0)

    # --- the actor ----------------------------------------------------------------------------

    def begin(self) -> None:
        self.spawn(self._evictions.run)
        self.spawn(self._alarms.ring, self._sweep, self.spawn)
        walker = Walker(
            context=self.context,
            move=self._move,
            carry=self._carrier.carry,
            mend_schedules=self.scheduler.mend,
            tend=self._caretaker.tend,
            on_suspects=self.on_suspects,
        )
        for state in self.context.lanes:
            self.spawn(walker.run, state.number)

    def handle(self, message: Deadline) -> None:
        self._agendas[message.lane].add(message.step)
        self._alarms.set_by(message.lane, message.step * STEP_S - self.context.io.clock())

    def _later(self, lane: int, in_s: float) -> None:
        self._alarms.set_by(lane, in_s + self.context.io.dice.uniform(0, SPREAD_S))

    async def _sweep(self, lane: int) -> None:
        """Look after everything that is overdue in a lane."""
        state = self.context.lanes[lane]
        pipeline, settings, clock = (
            self.context.pipeline,
            self.context.settings,
            self.context.io.clock,
        )
        agenda, asked_s = self._agendas[lane], clock()
        try:
            skip, keys_max = self._skipped[lane], settings.sweep_batch
            call = state.lane.sweep(state.node.name, lock_s=LOCK_S, keys_max=keys_max, skip=skip)
            swept = await pipeline.call(call, repeatable=True)
            state.tell_time(swept.now_ms, clock())
            ours_s = agenda.passed(asked_s)
            for to in swept.outgoing:
                self._carrier.carry(lane, to)
            if swept.has_schedules:
                self.scheduler.fire(lane)
            for batch_id in swept.batches:
                self._caretaker.tend(lane, batch_id)
            is_stuck = not await self._look_after(state, swept.found)
            is_far = skip + keys_max > SKIPPED_MAX  # the way there is as long: begin anew
            if swept.is_ours:
                self._skipped[lane] = skip + keys_max if is_stuck and not is_far else 0
        except PoolError as error:
            if isinstance(error, StoreLost):
                self.context.on_data_lost(lane)
            self.context.trouble("sweep", lane, error)
            is_away = isinstance(error, StoreUnavailable)
            self._refusals[lane] = 0 if is_away else self._refusals[lane] + 1
            self._later(state.number, refused_delay(self._refusals[lane], RECOVERY_RETRY_S))
            return
        self._refusals[lane] = 0
        now_s = clock()
        self._alarms.set_by(lane, agenda.first_s() - now_s)
        if swept.left_ms is not None:
            self._later(lane, max(NEXT_S, state.until_s(swept.left_ms, now_s)))
        if skip:
            self._later(lane, RECOVERY_RETRY_S)
        elif swept.following_ms is not None:
            in_s = state.until_s(swept.following_ms, now_s)
            if in_s <= 0.0 and not is_stuck:
                self._alarms.set_by(lane, NEXT_S)  # the next page; nobody else turns it
            elif swept.is_ours or now_s + in_s <= ours_s:
                self._later(lane, max(RECOVERY_RETRY_S if is_stuck else NEXT_S, in_s))

    async def _look_after(self, state: LaneState, found: Sequence[Overdue]) -> bool:
        """Do what is due; return whether anything could be done, so that more may follow at once.

        Keys of other types may refuse: asked again at once, they would say the same.
        """
        done = 0 if found else 1
        moves: dict[str, list[tuple[Overdue, Record]]] = defaultdict(list)
        reminders: list[tuple[Overdue, Record]] = []
        for each in found:
            record = each.record
            if record is None:
                done += await quarantine(self.context, state, each.key, each.text)
                continue
            is_late = each.index == "due" and record.state == "pending" and not record.intent
            is_stranded = each.index == "pending" and each.owner in ("gone", "hung")
            if each.owner == "none" or is_stranded or is_late:
                moves[record.owner].append((each, record))
            else:
                reminders.append((each, record))
            if each.owner == "gone":
                self.on_suspects(state.number, (record.owner,))
        for owner, group in moves.items():
            for i in range(0, len(group), ACT_MAX):
                done += await self._alone(
                    state.number, self._move(state, owner, group[i : i + ACT_MAX])
                )
        # Last: a start to be stopped is in both indexes, and who is reminded has more time.
        for each, record in reminders:
            done += await self._alone(state.number, self._remind(state, each, record))
        return done > 0

    async def _alone(self, lane: int, step: Awaitable[int]) -> int:
        """Do one step; what only it touches (a key of the wrong type) must not stop the others."""
        try:
            return await step
        except StoreFault as error:
            self.context.trouble("sweep", lane, error)
            return 0

    async def _remind(self, state: LaneState, each: Overdue, record: Record) -> int:
        """Tell the owner, and look again later."""
        again_s = self.context.timing.stop_budget_s  # a loop that hangs may not have been told yet
        is_over = each.index == "due" and not record.intent and each.owner == "live"
        intent = "t" if is_over else ""
        call = state.lane.intend(
            each.key, record.id, record.owner, intent, again_s=again_s, epoch=record.epoch
        )
        await self.context.pipeline.call(call, repeatable=True)
        self.due(state.number, again_s)
        return 1

    async def _move(
        self,
        state: LaneState,
        owner: str,
        group: Sequence[tuple[Overdue, Record]],
    ) -> int:
        records = [record for _, record in group]
        judgement = await judgement_of(self.context, state, records)
        recovery = Recovery(self.context, state, judgement)

        def targets(key: str, record: Record, _: Grant) -> tuple[Target, ...]:
            left = left_by(record.more)
            return self.context.targets(key, record.handler, lane=state.number, left=left)

        for each, record in group:
            # What else is known of that death only its reaper knows, who may hold and park.
            # It also knows the other jobs aboard, so no job is held here.
            is_dead = each.owner == "gone"
            death = Death(identity=owner, alive_ms=0, culprit=-1) if is_dead else None
            recovery.add(
                each.key,
                record,
                each.options,
                targets,
                death=death,
                rival=SUM_MAX,
                now_ms=each.now_ms,
            )
        return await recovery.carry_out("free", owner, self.tell_waiters)
