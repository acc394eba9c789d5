"""Which queued run starts when, and the long-lived tasks that run the handlers.

    queue --> may it start? --> fetch, or acknowledge first --> a slot --> handler --> on_end
    suspects --> is none on trial? --/                           alive for a while: the next one

A start needs a free slot, a good lease, and the key to itself in this process.  A task per job
would cost more than most jobs, so a slot runs one after another.

A suspect, which may have killed its last worker, waits for its trial (`trials.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context as LogContext
from functools import partial
from heapq import heappop, heappush
from math import inf
from typing import Final

import anyio
import anyio.lowlevel
import attrs

from pool.core.codec import is_call
from pool.core.record import Record, parse_steps, state_of, steps_name
from pool.core.retry import RESEND_S, refused_delay
from pool.errors import PartEnded, PoolError, StoreUnavailable
from pool.events import RunDisturbed
from pool.jobs.blocking import NO_BLOCKING
from pool.jobs.context import Context
from pool.jobs.handlers import Handlers
from pool.jobs.raised import Raised
from pool.jobs.run import CANCELLED, Ending, Run, context_for, execute
from pool.jobs.trials import TIMER_S, Rank
from pool.jobs.worker.outbox import Outbox
from pool.redis.io.loops import (
    BY_STRANGER,
    Strays,
    is_asked_for,
    is_cancellation,
    scopes,
    strays,
    unmoved,
)
from pool.redis.io.system import Waiter

AHEAD_S: Final = 0.02  # what begins within this a worker holds ahead, so that slots never wait ...
AHEAD_MAX: Final = 256  # ... but no more than so many
MEASURED_S: Final = 0.1  # over which that is measured: jobs end in bursts, as they come
HELD_S: Final = 0.04  # what has waited here for a slot for so long is given back
# Connections that end in a row before what a job needs is taken for what the server cannot deliver.
# Each ended within half of a call's time, and the server had just answered something small.
CUTS_MAX: Final = 8
FETCHES_MAX: Final = 3  # before what cannot be a payload is what is stored: replies may be garbled
_FETCHED: Final = frozenset("pbs")  # flags of what a start does not bring: payload, state, steps
SLICE_S: Final = 0.002  # for so long a slot runs jobs back to back


@attrs.define(eq=False)
class _Slot:
    """One task."""

    run: Run | None = None
    bell: Waiter | None = None  # while it waits for one
    over: anyio.Event = attrs.field(factory=anyio.Event)  # it takes no more runs

    def take(self) -> Run:
        """Take the run that it was given."""
        run, self.run = self.run, None
        assert run is not None
        return run


@attrs.define(eq=False)
class Pace:
    """How many runs begin within `AHEAD_S`, if slots go on to be freed as they were.

    None where a run takes longer than that: of those that began together none may end so soon.
    And no more than twice as many as have shown it, so that a few quick ones prove little.
    """

    capacity: int
    took_s: deque[float] = attrs.field(init=False)  # by runs that their handlers ended, since ...
    since_s: float = 0.0
    last: int = 0  # what was measured before that

    def __attrs_post_init__(self) -> None:
        self.took_s = deque(maxlen=2 * AHEAD_MAX)

    def ahead(self, now_s: float) -> int:
        """Return how many, by what was measured last.

        It is measured anew when as many have ended as are begun at once, or after `MEASURED_S`.
        """
        passed_s, ended = now_s - self.since_s, len(self.took_s)
        if ended >= min(AHEAD_MAX, self.capacity + self.last) or passed_s >= MEASURED_S:
            is_quick = sum(self.took_s) <= ended * AHEAD_S
            paced = ended * AHEAD_S / max(passed_s, AHEAD_S / 2) if is_quick else 0
            self.reset(now_s, int(min(AHEAD_MAX, paced)))
        return self.last

    def reset(self, now_s: float, ahead: int = 0) -> None:
        """Measure anew; hold so many ahead meanwhile."""
        self.took_s.clear()
        self.since_s, self.last = now_s, ahead


@attrs.define(eq=False, kw_only=True)
class Executor:
    """The slots of one worker; belongs to its task."""

    context: Context
    handlers: Handlers
    capacity: int
    spawn: Callable[..., object]
    box_of: Callable[[Run], Outbox]
    on_launch: Callable[[Run], object]  # its handler is about to be called
    on_end: Callable[[Run, Ending], object]
    on_settle: Callable[[Run], object]  # to settle what was told to end before it began
    on_trial: Callable[[Run, float], object]  # to call `end_trial` after so many seconds
    on_lived: Callable[[Run], object]  # to say that it was on trial and lives
    is_over: Callable[[], bool]  # whether its worker's tasks are being ended
    _backlog: deque[Run] = attrs.field(factory=deque)
    _idle: list[_Slot] = attrs.field(factory=list)
    _made: int = 0
    called: int = 0  # slots that were given a run, and have their turn next
    _preparing: int = 0
    _suspects: list[tuple[Rank, int, Run]] = attrs.field(factory=list)  # a heap: rank, turn, run
    _turns: int = 0
    _wakes_s: float = 0.0  # when a suspect may begin that waits for its time
    pace: Pace = attrs.field(init=False)
    _launched_s: float = 0.0
    _contexts: dict[str, LogContext] = attrs.field(factory=dict)  # by handler
    _limiter: anyio.CapacityLimiter = attrs.field(init=False)
    blocking: anyio.CapacityLimiter = attrs.field(init=False)  # of what handlers call beside that

    def __attrs_post_init__(self) -> None:
        self._limiter = anyio.CapacityLimiter(self.capacity)
        self.blocking = anyio.CapacityLimiter(self.capacity)
        self.pace = Pace(self.capacity)

    def wants_more(self) -> bool:
        """Whether slots may wait for starts within `AHEAD_S`.

        Slots that are all taken for long (by services, say) will not: what they took in advance
        would wait here, and be given back, while others have room.
        """
        return len(self._backlog) < self.ahead() / 2

    def ahead(self) -> int:
        """Return how many starts it may hold beyond its slots.

        What waits for its trial needs no slot meanwhile, though the lane counts it as if it did.
        So as many others may have the slots that are free, but for one: it is kept for the suspect
        that is next, which would else be given back and wait elsewhere from the beginning.
        """
        held = min(len(self._suspects), self.capacity - self.busy) - bool(self._suspects)
        return self.pace.ahead(self.context.io.clock()) + max(0, held)

    def left(self) -> int:
        """Return how many slots are left for what is not here yet."""
        used = self._made - len(self._idle) + self._preparing
        return self.capacity - used - len(self._backlog)

    def surplus(self) -> list[Run]:
        """Take out what waits here for a slot and might have one elsewhere.

        That is what has waited for longer than it should have by our pace, which is measured anew
        then; where no slot has been freed or taken of late, all of it.  Suspects, too, once it is
        neither a trial nor their time that they wait for: elsewhere they would wait from the
        beginning.
        """
        now_s = self.context.io.clock()
        is_moving = now_s - self._launched_s < AHEAD_S or self.pace.ahead(now_s) > 0
        until_s = now_s - (HELD_S if is_moving else 0.0)
        if self._suspects and not self._is_trial(now_s) and now_s + self._wait_s(now_s) <= until_s:
            self._backlog.extendleft(run for _, _, run in sorted(self._suspects, reverse=True))
            self._forget_suspects()
        found: list[Run] = []
        kept: list[Run] = []
        while self._backlog and self._backlog[0].queued_s <= until_s:
            run = self._backlog.popleft()
            if run.phase == "queued":
                is_kept = run.is_acknowledged or self.box_of(run).is_fenced
                (kept if is_kept else found).append(run)
        self._backlog.extendleft(reversed(kept))
        if found:
            self.pace.reset(now_s)
        return found

    @property
    def is_holding(self) -> bool:
        """Whether anything waits here for a slot."""
        return bool(self._backlog or self._suspects) and not self.has_room()

    def reset(self) -> None:
        """Forget the tasks, which a crash of the actor has ended; what they ran is queued anew."""
        self._idle, self._made, self._preparing, self.called = [], 0, 0, 0
        self._backlog.clear()
        self._forget_suspects()

    def queue(self, run: Run) -> None:
        """Add a run behind the others."""
        self._backlog.append(run)

    def requeue(self, run: Run) -> None:
        """Run it again from the start, same epoch and attempt, before the others."""
        if run.job is not None:
            run.state = run.job._checkpoint()
        run.cause = ""
        run.scope, run.job, run.began_s, run.is_called = None, None, 0.0, False
        run.progressed_s = 0.0
        run.cancelled_s, run.has_overrun = 0.0, False
        run.blocking, run.may_leak = NO_BLOCKING, False
        if run.is_limited:
            run.is_limited, run.has_old_limit = False, True
        self.free(run)
        self._backlog.appendleft(run)

    def fill(self) -> None:
        """Start what may start, as far as there are slots."""
        if self._suspects:
            self._begin_trial()
        if not self._backlog:
            return
        kept: list[Run] = []
        while self._backlog and self._made - len(self._idle) + self._preparing < self.capacity:
            run = self._backlog.popleft()
            if run.phase != "queued":
                continue  # settled or lost while it was queued
            if run.start.flags and run.is_suspect and not self.context.trials.has(run):
                self._suspect(run)
            elif self._may_start(run):
                self._prepare(run)
            else:
                kept.append(run)
        self._backlog.extendleft(reversed(kept))
        if self._suspects:
            self._begin_trial()

    @property
    def busy(self) -> int:
        """How many slots are taken."""
        return self._made - len(self._idle) + self._preparing

    def has_room(self) -> bool:
        """Whether a slot is free."""
        return self._made - len(self._idle) + self._preparing < self.capacity

    # --- suspects -----------------------------------------------------------------------------

    def _suspect(self, run: Run) -> None:
        self._turns += 1
        rank = self.context.trials.come(run, self.context.io.clock())
        heappush(self._suspects, (rank, self._turns, run))

    def _forget_suspects(self) -> None:
        for rank, _, run in self._suspects:
            self.context.trials.go(run, rank)
        self._suspects.clear()

    def _is_trial(self, now_s: float) -> bool:
        """Whether it is a trial that our next suspect waits for."""
        return self.context.trials.is_taken(now_s, self.fill, self._suspects[0][0])

    def _wait_s(self, now_s: float) -> float:
        """Return how much later our next suspect may begin."""
        rank, _, run = self._suspects[0]
        return self.context.trials.wait_s(run, rank, now_s)

    def _begin_trial(self) -> None:
        """Begin the next suspect, unless one is on trial."""
        trials, now_s = self.context.trials, self.context.io.clock()
        if not (self._suspects and self.has_room()) or self._is_trial(now_s):
            return
        wait_s = self._wait_s(now_s)
        if wait_s > TIMER_S:
            if not now_s < self._wakes_s <= now_s + wait_s:
                self._wakes_s = now_s + wait_s
                self.on_trial(self._suspects[0][-1], wait_s)
            return
        kept: list[tuple[Rank, int, Run]] = []
        while self._suspects:
            suspect = heappop(self._suspects)
            rank, _, run = suspect
            if run.phase == "queued" and not self._may_start(run):
                kept.append(suspect)
                continue
            trials.go(run, rank)
            if run.phase == "queued":
                identity = (run.lane, self.box_of(run).target.name)
                for_s = trials.take(run, rank, identity, partial(self.on_lived, run), now_s)
                self.on_trial(run, for_s)
                self._prepare(run)
                break
        for suspect in kept:
            heappush(self._suspects, suspect)

    def _try(self, run: Run) -> None:
        """Note that a suspect's handler is called next.

        Not before: a process that stands still after its launch would have no trial left for it.
        """
        trials, for_s = self.context.trials, 0.0  # its lane was silent, and it lost its turn
        if trials.has(run):
            for_s = trials.begins(run, self.context.io.clock())
        self.on_trial(run, for_s)  # either may kill

    def end_trial(self, run: Run) -> None:
        """Begin the next one: this one has lived for long enough, or its lane is silent."""
        self.context.trials.end(run, self.context.io.clock())
        self.fill()

    def is_kept_back(self, run: Run) -> bool:
        """Whether it waits for its trial or its time, and not for a slot."""
        if not (run.is_suspect and self._suspects):
            return run.is_suspect and self.has_room()
        return self.has_room() or self._wait_s(self.context.io.clock()) > 0.0

    # --- starting -----------------------------------------------------------------------------

    def free(self, run: Run) -> None:
        """Let others have the key: no handler of this run is under way."""
        self.leave(run)
        if run.then:
            waiting, run.then = run.then, ()
            for fn in waiting:
                fn()

    def leave(self, run: Run) -> None:
        """Let the other workers of this process have the key."""
        if self.context.busy.get(run.key) is run:
            del self.context.busy[run.key]
        if run.others:
            waiting, run.others = run.others, ()
            for fn in waiting:
                fn()

    def prepared(self, run: Run) -> None:
        """Go on with a run whose preparation has ended, unless it was cancelled meanwhile."""
        if run.phase == "preparing":
            self.unprepare(run)
            if run.step("prepared") == "queue":
                self._backlog.appendleft(run)
                self.fill()
            else:
                self.on_settle(run)

    def unprepare(self, run: Run) -> None:
        """Give the slot of a run that was to be prepared back."""
        self._preparing -= 1
        self.free(run)

    def _may_start(self, run: Run) -> bool:
        if not self._has_lease(run):
            return False
        busy = self.context.busy.get(run.key)
        if busy is not None and busy is not run:
            if self.fill not in busy.others:
                busy.others = (*busy.others, self.fill)
            return False
        return True

    def _has_lease(self, run: Run) -> bool:
        lease = self.context.lanes[run.lane].lease
        return lease.is_good(self.context.io.clock()) and not self.box_of(run).is_fenced

    def _prepare(self, run: Run) -> None:
        """Fetch what its entry could not hold, and acknowledge first where that is asked for."""
        start = run.start
        self.context.busy[run.key] = run
        run.handler = self.handlers[start.handler]
        if run.payload is None:
            run.payload = start.payload
        if start.flags and run.checkpoint is None and not _FETCHED.isdisjoint(start.flags):
            run.step("prepare")
            self._preparing += 1
            self.spawn(unmoved, partial(self._fetch, run))
        elif not run.is_acknowledged and ("a" in start.flags or not self._is_sure(run)):
            run.step("prepare")
            self._preparing += 1
            self.box_of(run).acknowledge(run)
        else:
            self._launch(run)

    def _is_sure(self, run: Run) -> bool:
        """Whether a start that nobody has acknowledged is ours without asking."""
        door = self.context.lanes[run.lane].door
        return not door.shut or door.is_sure(run.start.epoch)  # the loop has hardly ever hung

    async def _fetch(self, run: Run) -> None:
        names, start = self.context.lanes[run.lane].lane.names, run.start
        places = [(names.payloads, run.key), (names.checkpoints, run.key), (names.jobs, run.key)]
        if "s" in start.flags:
            places.insert(0, (names.checkpoints, steps_name(run.key)))
        clock, asked_s, size = self.context.io.clock, inf, 0
        try:
            run.turn = turn = self.context.pipeline.at(names.prefix).reads.turn()
            async with turn:
                if turn.is_given_up:
                    self.prepared(run)
                    return
                pipeline = self.context.pipeline.at(names.prefix)
                commands = [("HGET", place, field) for place, field in places]
                if run.cuts:  # what shares our line shall not be cut off with it again
                    size = await pipeline.execute("HSTRLEN", *places[-3], repeatable=True)
                    async with pipeline.apart() as line:
                        asked_s = clock()
                        found = await line.execute_all(commands)
                else:
                    asked_s = clock()
                    found = await pipeline.execute_all(commands)
                # Or what a garbled reply holds.
                turn.size = sum(len(each) for each in found if isinstance(each, bytes))
                *steps, payload, checkpoint, text = found
        except PoolError as error:
            self.context.trouble("fetch", run.lane, error)
            if isinstance(error, StoreUnavailable):
                # Else it was a small call, or a slow line: that says nothing of this job.
                is_cut = clock() - asked_s < self.context.settings.op_timeout_s / 2
                run.cuts, run.refusals = (run.cuts + 1 if is_cut else min(run.cuts, 1)), 0
            else:
                run.refusals += 1
            if run.cuts < CUTS_MAX:
                await anyio.sleep(refused_delay(max(run.cuts, run.refusals)))
            else:
                run.undeliverable = (
                    f"the server ended {run.cuts} connections in a row while they fetched its "
                    f"arguments ({size:,} bytes) and saved state: see client-output-buffer-limit"
                )
                run.payload = run.checkpoint = b""
        else:
            # What stands under the key may be another job's, where data were lost.  The record is
            # read last; the answer to an acknowledgement says what became of ours.
            record = Record.parse(text or b"")
            if record is None or (record.id, record.epoch) != (start.id, start.epoch):
                self.box_of(run).acknowledge(run)
                return
            is_read = "p" not in start.flags or (payload and is_call(payload))
            state = state_of(checkpoint or b"") if "b" in start.flags else b""
            are_steps = not steps or parse_steps(steps[0] or b"")
            run.fetches += 1
            if (
                is_read and are_steps and ("b" not in start.flags or state)
            ) or run.fetches >= FETCHES_MAX:
                if "p" in start.flags:
                    run.payload = payload or b""
                run.checkpoint = state
                if steps and are_steps:
                    run.steps = steps[0] or b""
            else:
                await anyio.sleep(RESEND_S)
        self.prepared(run)

    def _launch(self, run: Run) -> None:
        run.step("begin")
        self._launched_s = run.began_s = self.context.io.clock()
        self.on_launch(run)
        if self._idle and not run.is_apart:
            slot = self._idle.pop()
            slot.run = run
            self.called += 1
            if slot.bell is not None:
                slot.bell.take(None)
                slot.bell = None
        else:
            self._made += 1
            self.called += 1
            self.spawn(self._keep, _Slot(run))

    async def _keep(self, slot: _Slot) -> None:
        """Run a slot in a group of its own, so that a task which a handler has spoiled harms none.

        Where a scope was left open, such a task cannot end in peace on either event loop.
        """
        while slot.run is not None:  # once more if a stranger cancelled it before its first step
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._serve, slot)
                    await unmoved(slot.over.wait)
            except BaseExceptionGroup as group:
                if slot.over.is_set():
                    return
                error = next((e for e in group.exceptions if not is_cancellation(e)), group)
                raise error from error.__cause__
        if not slot.over.is_set():
            raise PartEnded(part="slot", problem=BY_STRANGER)

    async def _serve(self, slot: _Slot) -> None:
        clock, took_s = self.context.io.clock, self.pace.took_s
        cancels, is_used, scope = strays(), False, scopes()
        began_s = now_s = clock()
        while True:
            run = slot.take()
            self.called -= 1
            run.is_called = not run.why  # first: what is asked next, is asked of what has begun
            is_ours = self._has_lease(run) and (run.is_acknowledged or self._is_sure(run))
            if run.why:
                self._idle.append(slot)
                self.on_end(run, CANCELLED)  # before its turn came
            elif not is_ours:
                # Whoever ran before it held the loop up: longer than the lease lasted, or for so
                # long that it may have been taken back.
                self._idle.append(slot)
                run.step("again")
                self.requeue(run)
                self.fill()
            else:
                if not run.is_acknowledged:
                    self.box_of(run).acknowledge(run, now_s)
                if run.start.flags and "a" in run.start.flags and run.start.marks.deaths:
                    self._try(run)
                try:
                    ending = await execute(
                        run, self._limiter, cancels, scope(), self._context_of(run.start.handler)
                    )
                except BaseException:
                    self.leave(run)  # its worker was stopped, and has no say in it any more
                    raise
                if run.scope is not None:
                    await self._give_up(run, ending, cancels)
                    break
                if cancels.has_any():
                    await self._retire(run, ending, cancels, is_used=is_used)
                    break
                is_used = True
                self._idle.append(slot)
                called_s, now_s = now_s, clock()
                took_s.append(now_s - called_s)
                self.on_end(run, ending)
            if slot.run is None or now_s - began_s > SLICE_S:
                await self._rest(slot, cancels)
                began_s = now_s = clock()
        slot.over.set()

    def _context_of(self, handler: str) -> LogContext:
        """Return a new context for a job; slots are shared, and all begin in the same one."""
        found = self._contexts.get(handler)
        if found is None:
            found = self._contexts[handler] = context_for(self.context.pool, handler)
        return found.copy()

    async def _give_up(self, run: Run, ending: Ending, cancels: Strays) -> None:
        """End a slot in whose task a scope was left open: whatever ran there next would be in it.

        From here on a cancellation may be that scope's, and any is as good as our own end.
        """
        scope, run.scope = run.scope, None
        assert scope is not None
        self._made -= 1
        if self.is_over():
            self.leave(run)  # as where our own end is what ended it
        else:
            self.on_end(run, ending)
        with suppress(anyio.get_cancelled_exc_class()):
            await cancels.absorb()
        scope.cancel()  # last: what it began in a group that it left open ends, too

    async def _retire(self, run: Run, ending: Ending, cancels: Strays, *, is_used: bool) -> None:
        """End a slot whose task somebody has cancelled: those who know it may do so again.

        If it ran others before, one of them may have done it late.  The job that it hit is not to
        blame, and runs again at once, where nobody else has been.  Nor is it if the task scope was
        cancelled, too: that is no job's doing, but the end of the loop, or of all its tasks.  Then
        it is given back: if somebody leaves in order, it was to be that anyway.
        """
        self._made -= 1
        is_hit = isinstance(ending, Raised) and ending.is_cancellation
        are_all = self.context.supervisor.struck_s() >= run.began_s
        if is_hit and not (run.has_cancelled or run.is_leaked) and (is_used or are_all):
            start = run.start
            event = RunDisturbed(key=run.key, handler=start.handler, epoch=start.epoch)
            self.context.emit(event)
            if are_all:
                run.step("struck")
            if run.why:
                self.on_end(run, CANCELLED)
            else:
                run.is_apart = True
                run.step("again")
                self.requeue(run)
                self.fill()
        else:
            self.on_end(run, ending)
        await cancels.absorb()

    async def _rest(self, slot: _Slot, cancels: Strays) -> None:
        """Wait for the next run; if there is one, only let others have a turn."""
        while True:
            try:
                if slot.run is None:
                    slot.bell = self.context.loop.waiter()
                    await slot.bell.wait()
                else:
                    # Handlers that never wait would keep everything else from running.
                    await anyio.lowlevel.checkpoint()
            except anyio.get_cancelled_exc_class():
                if is_asked_for():
                    raise
                await cancels.absorb()  # of a run that has ended
            if slot.run is not None:
                return
