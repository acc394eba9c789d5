"""The reaper: takes over what fenced workers owned, and deals it out.

Where jobs go that stood together when their worker died: by dice, to any process that may.

    the jobs of a dead worker --shuffled, then dealt in rounds--> each to one of m processes

Of those aboard one may have killed it.  Each goes to each of the m processes with the same chance,
whatever their ranks and loads: that is what makes the next death evidence (`core/crash_marks.py`).
Dealing in rounds from a random start is uniform for each job, and keeps neighbours apart.  A
process with several workers has one turn, so it does not get more suspects than others.

A job stays where it was dealt (`rebalance.py`): one that had no room there, or was moved since, is
found in another process than its record says, and its next death proves nothing.  Jobs without
crash marks go by rank.

Takes over what fenced workers owned: the cleanup map's holder, and only the holder.

    earliest lease end (from renewals) + 0..0.3 s --> fence.lua --> a page of claims:
      ^                                                 |           holder|fence, until
      +-- at once, where more have ended, if there is --+--> forget.lua: who owns nothing
          a place for them                              |
    the others: reap.lua (next page of keys) <----------+
                  -> decide -> advance.lua "reap" -> ... -> forgotten

Many nodes wake, one gets the claim (SetIfNotExists).  Dying after any step: `until` passes, another
node takes the claim with a higher fence, and reads what is left; each key was moved in one step.
A claim that was taken over writes nothing more (POOLGONE).

The job that most speaks against is moved last, when all others aboard were read: it is held only if
no other one has as much evidence (`Lineup`).

Of those that are reaped at the same time each must come to its turn before `until`: so they are
few, and nobody is claimed for whom there is no place.  Who only waits for something takes none.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, islice
from typing import Final, TypeAlias

import anyio
import attrs

from pool.core.ids import process_of
from pool.core.record import Record, left_by
from pool.core.retry import RECOVERY_RETRY_S, SPREAD_S
from pool.core.settlement import Deal, Grant, Lineup, suspicion
from pool.errors import Gone, PoolError, StoreFault, StoreLost
from pool.events import WorkerReaped
from pool.jobs.context import TARGETS_MAX, Context, LaneState
from pool.jobs.repair import quarantine
from pool.jobs.settlement import Recovery, TellWaiters, judgement_of
from pool.redis.commands.calls import Target
from pool.redis.commands.recovery import Claim, Fenced, Forgotten, Holding, Reaped
from pool.runtime.actor import Actor
from pool.runtime.timers import Alarms


@attrs.define(eq=False)
class Scatter:
    """Deals the jobs of one dead identity out."""

    context: Context
    lane: int
    died: str  # id.n
    _turns: dict[str, int] = attrs.field(factory=dict)  # handler -> whose turn it is
    _workers: dict[str, list[list[str]]] = attrs.field(factory=dict)  # handler -> process -> ids

    def deal(self, handler: str) -> tuple[Deal, Sequence[str]]:
        """Draw the process for a job; returns the workers to ask as well, that process's first."""
        processes = self._workers.get(handler)
        if processes is None:
            processes = self._workers[handler] = self._able(handler)
        if not processes:
            return Deal(), ()
        dice = self.context.io.dice
        turn = self._turns.get(handler, 0) % len(processes)
        if turn == 0:  # each round has an order of its own
            dice.shuffle(processes)
        self._turns[handler] = turn + 1
        # No more than are asked: a deal must not cost more in a larger fleet.
        count = len(processes)
        order = (processes[(turn + at) % count] for at in range(min(count, TARGETS_MAX)))
        workers = list(islice(chain.from_iterable(map(self._shuffled, order)), TARGETS_MAX))
        return Deal(process_of(workers[0]), count), workers

    def _shuffled(self, ids: list[str]) -> list[str]:
        return self.context.io.dice.sample(ids, len(ids))

    def targets(
        self, key: str, record: Record, grant: Grant, dealt: Sequence[str]
    ) -> tuple[Target, ...]:
        """Return the workers for a job, the one that should have it first."""
        if not grant.marks.deaths:
            died, left = self.died.rpartition(".")[0], left_by(record.more)
            return self.context.targets(key, record.handler, lane=self.lane, but=died, left=left)
        known = self.context.candidates.workers  # some may have gone since
        return self.context.as_targets([worker for worker in dealt if worker in known], self.lane)

    def _able(self, handler: str) -> list[list[str]]:
        """Return the processes that may run a handler, with their workers."""
        of_process = defaultdict[str, list[str]](list)
        for info in sorted(self.context.roster.workers, key=lambda info: info.id):
            process = process_of(info.id)
            is_there = not info.candidate.is_draining and info.candidate.is_in(self.lane)
            if handler in info.handlers and is_there and process != process_of(self.died):
                of_process[process].append(info.id)
        return list(of_process.values())


SUSPECTS_MAX: Final = 500  # looked at by one call


@attrs.frozen
class LeaseEnds:
    """A renewal told when the earliest lease of the lane ends."""

    lane: int
    in_s: float


@attrs.frozen
class Suspects:
    """Identities that are announced or own something: to be claimed if they have no lease."""

    lane: int
    names: Sequence[str]


Message: TypeAlias = LeaseEnds | Suspects


@attrs.define(eq=False, kw_only=True)
class Reaper(Actor[Message]):
    """Fences and reaps; every node has one, clients too."""

    context: Context
    tell_waiters: TellWaiters
    on_reaped: Callable[[int, str], object]  # lane and identity of which nothing is left
    _suspects: dict[int, dict[str, None]] = attrs.field(init=False, factory=dict)
    _reaping: set[tuple[int, str]] = attrs.field(init=False, factory=set)
    _busy: Counter[int] = attrs.field(init=False, factory=Counter)  # lane -> places taken
    _alarms: Alarms = attrs.field(init=False)

    @_alarms.default
    def _no_alarms(self) -> Alarms:
        return Alarms(self.context.io.clock)

    # --- for the node -------------------------------------------------------------------------

    def lease_ends(self, lane: int, in_s: float) -> None:
        """A renewal told when the earliest lease of the lane ends."""
        self.tell_latest(lane, LeaseEnds(lane, in_s))

    def suspect(self, lane: int, names: Sequence[str]) -> None:
        """These are announced or own something, and may have no lease."""
        waiting = self._latest.get(("suspects", lane))
        before = waiting.names if isinstance(waiting, Suspects) else ()
        self.tell_latest(
            ("suspects", lane), Suspects(lane, tuple(dict.fromkeys([*before, *names])))
        )

    # --- the actor ----------------------------------------------------------------------------

    def begin(self) -> None:
        self._reaping.clear()
        self._busy.clear()
        self.spawn(self._alarms.ring, self._fence, self.spawn)

    def handle(self, message: Message) -> None:
        match message:
            case LeaseEnds(lane, in_s) if not self._suspects.get(lane):
                self._alarms.set(lane, max(0.0, in_s) + self._spread())
            case LeaseEnds(lane, in_s):
                self._alarms.set_by(lane, in_s)
            case Suspects(lane, names):
                self._suspects[lane] = {**self._suspects.get(lane, {}), **dict.fromkeys(names)}
                self._alarms.set(lane, 0.0)

    def _spread(self) -> float:
        return self.context.io.dice.uniform(0.0, SPREAD_S)

    async def doom(self, lane: int, name: str) -> bool:
        """See to it that an identity ends in a lane: it has a lease there, or one that has ended.

        False when the store could not be told: whoever looks for orphans next comes to it again.
        """
        self._suspects[lane] = {**self._suspects.get(lane, {}), name: None}
        return await self._fence(lane)

    async def _fence(self, lane: int) -> bool:
        """Claim what has ended in a lane, and reap what was claimed; False if nothing was done."""
        state, timing = self.context.lanes[lane], self.context.timing
        if not state.lease.is_good(self.context.io.clock()):
            # We have not heard from the store for long: our own lease may have ended with others'.
            self._alarms.set_by(lane, RECOVERY_RETRY_S)
            return False
        places = self.context.io.pages.claims - self._busy[lane]
        if places <= 0:
            return False  # who leaves one rings
        suspects = self._suspects.pop(state.number, {})
        now_s = self.context.io.clock()
        some = dict(islice(suspects.items(), SUSPECTS_MAX))
        left = {name: None for name in suspects if name not in some}
        call = state.lane.fence(
            state.node.name,
            reap_s=timing.reap_s,
            claims_max=places,
            window_s=self.context.settings.crash_window_s,
            latest_ms=state.time.latest_ms(now_s, timing.margin_s),
            suspects=tuple(some),
        )
        try:
            fenced: Fenced = await self.context.pipeline.call(call)
        except PoolError as error:
            self._troubled("fence", lane, error)
            self._suspects[state.number] = {**suspects, **self._suspects.get(state.number, {})}
            self._alarms.set_by(lane, RECOVERY_RETRY_S)
            return False
        if left:
            self._suspects[lane] = {**left, **self._suspects.get(lane, {})}
        if left or fenced.earliest_ms == 0:
            self._alarms.set_by(lane, 0.0)  # the next page
        elif fenced.earliest_ms is not None:
            in_s = max(0.0, state.until_s(fenced.earliest_ms, self.context.io.clock()))
            self._alarms.set_by(lane, in_s + self._spread() + 0.01)
        for claim in await self._forget(state, fenced.claims):
            if self.state != "running":
                return False  # stopped meanwhile: what was claimed is claimed anew, in its time
            if (state.number, claim.identity) not in self._reaping:
                self._reaping.add((state.number, claim.identity))
                self._busy[lane] += 1
                self.spawn(self._reap, state, claim)
        return True

    async def _forget(self, state: LaneState, claimed: Sequence[Claim]) -> Sequence[Claim]:
        """Forget those who own nothing; return the others."""
        if not claimed:
            return ()
        try:
            told = await self.context.pipeline.call(state.lane.forget(claimed), repeatable=True)
        except PoolError as error:
            self._troubled("reap", state.number, error)
            return claimed  # who reaps them goes on asking
        left = []
        for claim, each in zip(claimed, told, strict=True):
            if each is Forgotten.OVER:
                self._on_over(state, claim, 0)
            elif each is Forgotten.OWNS:
                left.append(claim)
        return left

    def _on_over(self, state: LaneState, claim: Claim, keys: int) -> None:
        name, lane, by = claim.identity, state.number, self.context.node_id
        self.context.emit(WorkerReaped(identity=name, lane=lane, keys=keys, by=by))
        self.on_reaped(lane, name)

    async def _rest(self, lane: int) -> None:
        """Wait before trying again; meanwhile others may take the place."""
        self._leave_place(lane)
        try:
            await anyio.sleep(RECOVERY_RETRY_S)
        finally:
            self._busy[lane] += 1

    def _leave_place(self, lane: int) -> None:
        if self._busy[lane] == self.context.io.pages.claims:
            self._alarms.set_by(lane, 0.0)
        self._busy[lane] -= 1

    async def _reap(self, state: LaneState, claim: Claim) -> None:
        """Move everything that a fenced identity owned, then forget it."""
        pipeline, keys = self.context.pipeline, 0
        after, stuck, is_told = 0, 0, False
        scatter, lineup = Scatter(self.context, state.number, claim.identity), Lineup()
        try:
            while True:
                reap_s = self.context.timing.reap_s
                call = state.lane.reap(claim, reap_s=reap_s, after=after)
                try:
                    reaped: Reaped = await pipeline.call(call, repeatable=True)
                    if reaped.is_forgotten:
                        break
                    held, upto = reaped.held, reaped.upto
                    moved = await self._move(state, claim, held, scatter, lineup)
                    keys += moved
                    # Where a key of one job or handler is of another type its starts stay: those
                    # behind them come next, and when there are none, all once more.
                    stuck += len(held) - moved
                    is_last = not upto
                    after = upto if moved < len(held) else 0
                    if not is_last or not stuck:
                        continue
                    if not moved and not lineup.is_whole:
                        lineup.is_whole, stuck = True, 0  # the most suspected job comes last
                        continue
                    if not moved and not is_told:
                        is_told = True
                        problem = f"{stuck} keys of {claim.identity} cannot be moved"
                        self._troubled("reap", state.number, StoreFault(problem=problem))
                    stuck = 0
                    if not moved:
                        await self._rest(state.number)
                except Gone:
                    return  # another node holds it now
                except StoreLost as error:
                    self._troubled("reap", state.number, error)
                    return
                except PoolError as error:
                    self._troubled("reap", state.number, error)
                    await self._rest(state.number)
        finally:
            self._reaping.discard((state.number, claim.identity))
            self._leave_place(state.number)
        self._on_over(state, claim, keys)

    async def _move(
        self,
        state: LaneState,
        claim: Claim,
        held: Sequence[Holding],
        scatter: Scatter,
        lineup: Lineup,
    ) -> int:
        """Move or park these; return how many of them could be."""
        if not held:
            return 0
        judgement = await judgement_of(self.context, state, [each.record for each in held])
        recovery, parked = Recovery(self.context, state, judgement), 0
        for holding in held:
            if holding.record is not None:
                evidence = suspicion(holding.record, claim.death, judgement)
                lineup.see(holding.key, evidence)
        # Starts are read in the order of their stream, which is the same at each death.
        for holding in self.context.io.dice.sample(held, len(held)):
            key, record, text = holding.key, holding.record, holding.text
            if record is None:
                parked += await quarantine(self.context, state, key, text, claim.identity)
                continue
            deal, dealt = scatter.deal(record.handler)
            targets = partial(scatter.targets, dealt=dealt)
            recovery.add(
                key,
                record,
                holding.options,
                targets,
                death=claim.death,
                deal=deal,
                rival=lineup.rival(key),
                may_hold=lineup.is_whole,
            )
        return parked + await recovery.carry_out(
            "reap", claim.identity, self.tell_waiters, claim=claim.claim
        )

    def _troubled(self, during: str, lane: int, error: PoolError) -> None:
        if isinstance(error, StoreLost):
            self.context.on_data_lost(lane)
        self.context.trouble(during, lane, error)
