"""The leases of a node and its workers: renewed from a thread of their own, judged on the loop.

    thread: renew all lanes in one pipeline --Renewed--> lease machine --> the lane's workers
            every TTL/5, after a failure TTL/20       \\-> earliest deadlines --> reaper, sweeper
            at once: the plan changed, the loop hangs, the loop turns again

What is true for a while is not announced but said with every renewal: how many keys each worker
takes, and what ails the node; what workers know only when the number registered is not what it was.
What changes makes another plan, and what was lost on the way, or deleted by hand, is said again a
period later.  Renewals are counted (seq): of two that contradict each other the later one counts,
in whatever order they arrive.

In a cluster each lane has a thread: a primary that hangs must not take the others' leases along.
The thread knows nothing but its plan, and nothing of a user's runs in it: a loop that hangs keeps
its leases (or, under `on_overrun = "exit"`, loses its process after a TTL: `_end_process`) and
takes no keys, see `hang`; a network that hangs cannot make the loop deaf.  An identity that the
server does not know any more (GONE) joins again under its next number; what it owned is the
reaper's.  This actor stops last of all.

A loop that hung finds several answers, and its deadlines past.  It judges by the newest answer that
the thread has, before any deadline and any older one: the lease that was renewed was never lost,
and neither who hung nor who ran beside it begins again.

A renewal says since when the ones before it were not answered (`AskedInVain`), so that the lane's
lease clock stands still for that time, see `lib/lease.lua`.  One answered renewal in a TTL of lease
time keeps a lease: after a failure the next try follows within TTL/20 of the failed one's start, or
at once if that took longer, without any growing backoff.

Dying at any point: nobody renews, the leases end, others fence and reap.  A late answer: counted
from when it was asked for, so it can only shorten what we believe.  A late renewal says too little
of the silence, never too much: the script counts only what is behind the last renewal of anybody.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeAlias

import anyio
import attrs

from pool.core.ailing import BUSY_S, Ails, Recent
from pool.core.lease import Effect, FenceLocally, Renewed, Resume, StopJobs, Tick, Timing
from pool.core.options import Options
from pool.errors import Gone, PoolError, StoreLost
from pool.events import (
    ClockStepped,
    DataOlder,
    LeaseLost,
    LeaseResumed,
    LoopHung,
    LoopOverran,
    TtlChanged,
)
from pool.jobs.context import Context, LaneState
from pool.jobs.run import blocker
from pool.redis.commands.member import Renewal
from pool.redis.io.system import BodyIO, Reply, RunningBody
from pool.redis.scripts import ScriptCall
from pool.redis.url import Url
from pool.runtime.actor import Actor
from pool.runtime.hang import Hold, Pulse

_LOOK_S: Final = 0.25  # how often the thread looks whether the loop answers
# A node that was not answered for so long says nothing of it: others may be answered all the time,
# and where only answers get lost its renewals would hold up the lease clock for all.
_UNANSWERED_TTLS: Final = 2
EXIT_CODE: Final = 70  # of a process that ended itself because a handler outlived its lease


@attrs.frozen
class _Plan:
    """What one thread renews: in each lane these identities, of which each takes so many keys."""

    states: tuple[LaneState, ...] = ()
    takes: tuple[Mapping[str, Callable[[], int]], ...] = ()
    handlers: Mapping[str, Options] = attrs.field(factory=dict)


@attrs.frozen
class _Round:
    """One call per lane."""

    asked_s: float
    url: Url
    plan: _Plan
    seq: int
    is_hung: bool
    said: tuple[bool, ...]  # per lane: whether it names handlers


@attrs.frozen
class AskedInVain:
    """Renewals of one lane in a row that were not answered, by our own clock."""

    first_s: float  # when the first of them was sent
    last_s: float  # when the last of them failed

    def ago_ms(self, now_s: float, ttl_s: float) -> tuple[int, int]:
        """Return how long ago both are, as a renewal says it."""
        if now_s - self.first_s > _UNANSWERED_TTLS * ttl_s:
            return 0, 0
        return round(1000 * (now_s - self.first_s)), round(1000 * (now_s - self.last_s))


@attrs.frozen
class _Answer:
    """A round was answered, or not."""

    round: _Round
    sent_s: float  # when the calls were made: what had begun may have been acknowledged before
    replies: Sequence[Reply]
    heard_s: float


@attrs.frozen
class _Due:
    """Some lease has come to its next deadline."""


@attrs.frozen(kw_only=True)
class LaneHandlers:
    """What the node does about a lane; each is called on the event loop."""

    on_renewed: Callable[[LaneState, Renewal, float, dict[str, int], bool], object]
    on_soft: Callable[[LaneState], object]
    on_hard: Callable[[LaneState], object]
    on_resume: Callable[[LaneState], object]
    on_gone: Callable[[LaneState, list[str]], object]


Message: TypeAlias = _Answer | _Due


@attrs.define(eq=False, kw_only=True)
class KeepAlive(Actor[Message]):
    """Renews, and stops handlers early when it cannot (G-03)."""

    context: Context
    on: LaneHandlers
    begun: Callable[[LaneState], list[ScriptCall]]  # by threads: what acknowledges all that has
    down: Callable[[], int] = lambda: 0  # by threads: how many parts of the node are down
    copies: Callable[[], int] = lambda: 0  # how many copies of maps are behind
    # One thread for each place where lanes are: one in all, but in a cluster one per lane.
    _plans: dict[Url, _Plan] = attrs.field(init=False, factory=dict)
    _threads: dict[Url, RunningBody] = attrs.field(init=False, factory=dict)
    _wake: anyio.Event = attrs.field(init=False, factory=anyio.Event)
    _newest: dict[Url, _Answer] = attrs.field(init=False, factory=dict)  # by the threads
    _pulses: dict[Url, Pulse] = attrs.field(init=False, factory=dict)
    _holds: dict[Url, Hold] = attrs.field(init=False, factory=dict)  # by the threads
    _seqs: dict[Url, int] = attrs.field(init=False, factory=dict)  # by the threads, which may end
    _answered: dict[int, int] = attrs.field(init=False, factory=dict)  # seq by lane
    # by lane, by the threads: what the next renewal there says
    _unanswered: dict[int, AskedInVain] = attrs.field(init=False, factory=dict)
    # by lane: which handlers it was told of last, and how many were registered then
    _known: dict[int, tuple[Mapping[str, Options], int]] = attrs.field(init=False, factory=dict)
    _news: anyio.Event = attrs.field(init=False, factory=anyio.Event)  # of the next answer
    trouble: PoolError | None = attrs.field(init=False, default=None)  # why the last one failed
    _turns: int = attrs.field(init=False, default=0)  # how often the loop was heard
    _told_turns: int = attrs.field(init=False, default=-1)  # ... when a hang was told last
    _asked: set[Url] = attrs.field(init=False, factory=set)  # to renew before the period is over
    _is_ending: bool = attrs.field(init=False, default=False)  # by the threads
    _away: set[int] = attrs.field(init=False, factory=set)
    _lag: Recent = attrs.field(init=False, factory=Recent)  # of the loop, which adds
    _busy: Recent = attrs.field(init=False, factory=Recent)  # 1: a look found it at work; likewise
    _renewals: Recent = attrs.field(init=False, factory=Recent)  # 1: it failed; likewise
    _behind: int = attrs.field(init=False, default=0)  # copies, by the loop

    # --- for the node -------------------------------------------------------------------------

    def renew(
        self, takes: Sequence[Mapping[str, Callable[[], int]]], handlers: Mapping[str, Options]
    ) -> None:
        """Renew these from now on, in each lane; threads ask each how many keys it takes.

        At once in a lane whose join was answered too late for a lease: see `Membership._join`.
        """
        for url, states in self._urls().items():
            # Where nobody of us has a lease there is nothing to renew, or to be told.
            mine = tuple(state for state in states if takes[state.number])
            before = self._plans.get(url, _Plan()).states
            is_new = any(s.lease.phase == "fenced" and s not in before for s in mine)
            self._plans[url] = _Plan(mine, tuple(takes[s.number] for s in mine), handlers)
            if is_new and url in self._threads:
                self._asked.add(url)
                self._threads[url].wake()

    def has_held(self, state: LaneState) -> bool:
        """Say whether code of our own has kept us from renewing for half of a lease at least."""
        hold = self._holds.get(self.context.url.at(state.lane.names.prefix))
        return hold is not None and hold.over_s > state.lease.asked_s

    def renew_now(self) -> None:
        """Do not wait for the next period."""
        self._asked.update(self._threads)
        for thread in self._threads.values():
            thread.wake()

    async def confirm(self, timeout_s: float) -> set[int]:
        """Renew now; return once every lane was told what is true by now, or time is up.

        A lane that does not answer keeps nobody from the others; it is told later.  Those are
        returned, and are silent (`LaneState.is_silent`) until they have been heard.
        """
        seqs = dict(self._seqs)  # of before: a thread that counts on takes up its plan only then
        self.renew_now()

        def silent() -> set[int]:
            return {
                state.number
                for url, plan in self._plans.items()
                for state in plan.states
                if self._answered.get(state.number, 0) <= seqs.get(url, 0)
            }

        with anyio.move_on_after(timeout_s):
            while silent():
                await self._news.wait()
        missing = silent()
        for state in self.context.lanes:
            state.is_silent = state.number in missing
        return missing

    def silent_s(self) -> float:
        """Return for how long the event loop has owed a thread an answer; from any thread."""
        now_s = self.context.io.clock()
        return max((each.silent_s(now_s) for each in list(self._pulses.values())), default=0.0)

    def renewed_s(self, state: LaneState) -> float:
        """Return when the last renewal of a lane that succeeded was asked for; from any thread."""
        asked_s = state.lease.asked_s
        for answer in [*self._newest.values()]:  # which a loop that hangs has not taken yet
            for each, reply in zip(answer.round.plan.states, answer.replies, strict=True):
                if each is state and isinstance(reply, Renewal):
                    asked_s = max(asked_s, answer.round.asked_s)
        return asked_s

    async def aclose(self, budget_s: float) -> None:
        """End the threads; twice is fine."""
        async with anyio.create_task_group() as closing:
            for thread in self._threads.values():
                closing.start_soon(thread.aclose, budget_s)

    # --- on the loop --------------------------------------------------------------------------

    def begin(self) -> None:
        self.spawn(self._watch)
        for url in self._urls():
            if url not in self._threads:
                self._start_thread(url)

    def _urls(self) -> dict[Url, list[LaneState]]:
        """Return the lanes by where they are."""
        found: dict[Url, list[LaneState]] = {}
        for state in self.context.lanes:
            found.setdefault(self.context.url.at(state.lane.names.prefix), []).append(state)
        return found

    def _start_thread(self, url: Url) -> None:
        self._threads[url] = self.context.io.start(
            f"pool-keepalive-{url.tag}" if len(self._urls()) > 1 else "pool-keepalive",
            url,
            partial(self._body, url),
            has_thread=True,
            care=self.context.supervisor,
        )

    def handle(self, message: Message) -> None:
        for answer in list(self._newest.values()):
            self._take_leases(answer)
        match message:
            case _Answer():
                self._on_answer(message)
            case _Due():
                now_s = self.context.io.clock()
                for state in self._with_lease():
                    self._step(state, Tick(now_s))
        self._wake.set()

    def _with_lease(self) -> list[LaneState]:
        """Return the lanes that were joined: in others there is no lease that could end."""
        return [state for state in self.context.lanes if state.lane.generation]

    async def _watch(self) -> None:
        """Wake when the next lease needs a decision."""
        while True:
            now_s = self.context.io.clock()
            due_s = min((s.lease.deadline_s for s in self._with_lease()), default=float("inf"))
            if due_s <= now_s:
                self.tell_latest("due", _Due())
            self._wake = anyio.Event()
            with anyio.move_on_after(max(due_s - now_s, 0.001)):
                await self._wake.wait()

    def _on_answer(self, answer: _Answer) -> None:
        now_s, sent = self.context.io.clock(), answer.round
        for reply in answer.replies:
            self._renewals.add(float(isinstance(reply, PoolError)), now_s)
        self._behind = self.copies()
        if self.context.meter is not None:
            failed = sum(isinstance(reply, PoolError) for reply in answer.replies)
            took_s = answer.heard_s - answer.sent_s
            self.context.meter.renewed(took_s, failed, len(answer.replies))
        for state, takes, is_said, reply in zip(
            sent.plan.states, sent.plan.takes, sent.said, answer.replies, strict=True
        ):
            if self.context.lanes[state.number] is not state:
                continue  # of before the pool was found anew
            if not isinstance(reply, PoolError) or isinstance(reply, StoreLost):
                self.context.outages.over(state.number)
            if isinstance(reply, StoreLost):
                state.is_silent = False
                self._answered[state.number] = sent.seq  # what is not there grants nothing
                self.context.on_data_lost(state.number)
                continue
            if isinstance(reply, PoolError):
                self._away.add(state.number)
                self.trouble = reply
                self.context.trouble("renew", state.number, reply)
                self._step(state, Tick(now_s))
                continue
            was_away = state.number in self._away
            self._away.discard(state.number)
            state.is_silent = False
            told: Renewal = reply
            state.tell_time(told.now_ms, sent.asked_s)
            self._hear_time(state, told, answer)
            state.heard_ms = 0 if told.clock.is_astray else told.now_ms
            if told.older_ms:
                older_s = told.older_ms / 1000
                pool, lane = self.context.pool, state.number
                self.context.emit(DataOlder(pool=pool, lane=lane, older_s=older_s))
            state.stamp, state.is_followed = told.stamp, told.is_followed
            state.see(told.stamp)
            self.context.tell_unassigned(state.number, told.unassigned)
            counts = dict(zip(takes, told.counts, strict=True))
            gone = [name for name, count in counts.items() if count < 0]
            self._take_lease(state, told, sent.asked_s)
            if not sent.is_hung:
                state.door.open(sent.seq, told.stamp)
            self._answered[state.number] = sent.seq
            known = self._known.get(state.number)
            if is_said:
                self._known[state.number] = (sent.plan.handlers, told.handlers)
            elif known is not None and known[1] != told.handlers:
                del self._known[state.number]  # some came, or went: the next renewal sees to ours
            self.on.on_renewed(state, told, sent.asked_s, counts, was_away)
            if gone:
                self.on.on_gone(state, gone)
        self._news.set()
        self._news = anyio.Event()

    def _hear_time(self, state: LaneState, told: Renewal, answer: _Answer) -> None:
        """Take the lane's time; a step of its clock is said to be one at once, to be set right."""
        was_off = state.time.off_ms
        step_s = state.hear(told.clock, answer.sent_s, answer.heard_s)
        if step_s:
            node, lane = self.context.node_id, state.number
            self.context.emit(ClockStepped(node=node, lane=lane, step_s=round(step_s, 3)))
        if state.time.off_ms and not was_off:
            self.renew_now()

    def _take_leases(self, answer: _Answer) -> None:
        """Count what was granted, if it is news; the rest of an answer waits for its turn."""
        sent = answer.round
        for state, reply in zip(sent.plan.states, answer.replies, strict=True):
            is_mine = self.context.lanes[state.number] is state
            if is_mine and isinstance(reply, Renewal) and sent.asked_s > state.lease.asked_s:
                self._take_lease(state, reply, sent.asked_s)

    def _take_lease(self, state: LaneState, told: Renewal, asked_s: float) -> None:
        if any(count >= 0 for count in told.counts):
            # Else nobody has a lease: joining again begins a new one.
            timing, now_s = Timing(told.ttl.ms / 1000), self.context.io.clock()
            self._granted(state, Renewed(asked_s, now_s, timing, told.ttl.term))

    def _granted(self, state: LaneState, event: Renewed) -> None:
        """Count a renewal.  The lane says for how long; what we take up, the next one says."""
        before = state.lease.term
        self._step(state, event)
        if state.lease.term == before:
            return
        before_s = self.context.retime()
        if before_s is not None:
            node, ttl_s = self.context.node_id, self.context.timing.ttl_s
            self.context.emit(TtlChanged(node=node, before_s=before_s, ttl_s=ttl_s))
        self.renew_now()  # the next one may be later than a shorter TTL allows

    def _step(self, state: LaneState, event: Renewed | Tick) -> None:
        state.lease, effects = state.lease.step(event)
        for effect in effects:
            self._perform(state, effect)

    def _perform(self, state: LaneState, effect: Effect) -> None:
        context = self.context
        match effect:
            case StopJobs(silent_s=silent_s):
                context.emit(
                    LeaseLost(
                        node=context.node_id,
                        lane=state.number,
                        silent_s=round(silent_s, 3),
                        ttl_s=state.lease.ttl_s,
                    )
                )
                self.on.on_soft(state)
            case FenceLocally():
                self.on.on_hard(state)
            case Resume():
                context.emit(LeaseResumed(node=context.node_id, lane=state.number))
                self.on.on_resume(state)

    def _hear(self, pulse: Pulse, number: int) -> None:
        if pulse.heard != number:
            now_s = self.context.io.clock()
            lag_s = max(0.0, now_s - pulse.sent_s)
            self._lag.add(lag_s, now_s)
            self._busy.add(float(lag_s > BUSY_S), now_s)
            if self.context.meter is not None:
                self.context.meter.turned(lag_s)
        pulse.heard = number
        self._turns += 1

    # --- in the thread ------------------------------------------------------------------------

    async def _body(self, url: Url, body_io: BodyIO) -> None:
        context = self.context
        while not body_io.closing:
            self._asked.discard(url)  # first: what is asked for from here on is not in the plan
            sent = self._next_round(url)
            if sent.is_hung:
                self._tell_hang(url)
            replies: Sequence[Reply] = ()
            if sent.plan.states:
                known = await self._acknowledge(sent, body_io) if sent.is_hung else set()
                sent_s = context.io.clock()
                calls = self._calls(sent, known, sent_s)
                replies = await body_io.run(calls, timeout_s=context.timing.renew_timeout_s)
                self._look(url)
                answer = _Answer(sent, sent_s, replies, context.io.clock())
                self._note_unanswered(answer)
                self._newest[url] = answer
                if not body_io.post(self.put, answer):
                    return
            failed = any(isinstance(reply, PoolError) for reply in replies)
            renew_s = context.timing.renew_s
            next_s = sent.asked_s + (renew_s / 4 if failed else renew_s)
            if not await self._look_after_loop(sent, body_io, next_s):
                return

    def _note_unanswered(self, answer: _Answer) -> None:
        for state, reply in zip(answer.round.plan.states, answer.replies, strict=True):
            before = self._unanswered.pop(state.number, None)
            if isinstance(reply, PoolError) and not isinstance(reply, StoreLost):
                first_s = before.first_s if before else answer.sent_s
                self._unanswered[state.number] = AskedInVain(first_s, answer.heard_s)

    def _look(self, url: Url) -> None:
        io, long_s = self.context.io, self.context.timing.ttl_s / 2
        self._holds.setdefault(url, Hold()).look(io.clock(), io.waits(), long_s)

    def _next_round(self, url: Url) -> _Round:
        self._look(url)
        clock, pulse = self.context.io.clock, self._pulses.setdefault(url, Pulse())
        seq = self._seqs[url] = self._seqs.get(url, 0) + 1  # before the plan, see `confirm`
        plan, is_hung = self._plans.get(url, _Plan()), pulse.is_hung(clock())
        for state in plan.states if is_hung else ():
            state.door.shut = seq  # before anything else, see `hang`
        known = [self._known.get(state.number) for state in plan.states]
        said = tuple([each is None or each[0] is not plan.handlers for each in known])
        return _Round(clock(), url, plan, seq, is_hung, said)

    async def _acknowledge(self, sent: _Round, body_io: BodyIO) -> set[int]:
        """Acknowledge what has begun; return the lanes that know of all of it."""
        calls = [(state.number, call) for state in sent.plan.states for call in self.begun(state)]
        known = {state.number for state in sent.plan.states}
        if calls:
            timeout_s = self.context.timing.renew_timeout_s
            replies = await body_io.run([call for _, call in calls], timeout_s=timeout_s)
            for (lane, _), reply in zip(calls, replies, strict=True):
                if isinstance(reply, PoolError) and not isinstance(reply, Gone):
                    known.discard(lane)  # of who is gone all is the reaper's
        return known

    def _calls(self, sent: _Round, known: set[int], now_s: float) -> list[ScriptCall]:
        """Return one renewal per lane; `known`: lanes where the loop may be said to hang."""
        plan, ails, calls = sent.plan, self._ails(now_s), []
        for state, takes, is_said in zip(plan.states, plan.takes, sent.said, strict=True):
            is_known = state.number in known
            most = math.inf if is_known or not sent.is_hung else 0
            tried = self._unanswered.get(state.number)
            call = state.lane.renew(
                {name: int(min(takes_of(), most)) for name, takes_of in takes.items()},
                plan.handlers if is_said else None,
                seq=sent.seq,
                term=state.lease.term,
                is_hung=is_known,
                ails=ails,
                told=state.time.told(now_s),
                who=self.context.node_id,
                floor=state.highest,
                heard_ms=state.heard_ms,
                tried_ms=tried.ago_ms(now_s, state.lease.ttl_s) if tried else (0, 0),
            )
            calls.append(call)
        return calls

    def _ails(self, now_s: float) -> Ails:
        meter = self.context.meter
        return Ails.of(
            down=self.down(),
            lag=self._lag.read(now_s),
            busy=self._busy.read(now_s),
            pause_s=meter.pause_s() if meter is not None else 0.0,
            renewals=self._renewals.read(now_s),
            copies=self._behind,
        )

    async def _look_after_loop(self, sent: _Round, body_io: BodyIO, until_s: float) -> bool:
        """Sleep until the next round is due, and watch whether the loop still turns.

        False if it was closed without closing us: then nobody may think that this node lives.
        """
        context, clock, pulse = self.context, self.context.io.clock, self._pulses[sent.url]
        while not body_io.closing:
            now_s = clock()
            if now_s >= until_s or sent.url in self._asked or pulse.is_hung(now_s) != sent.is_hung:
                break
            if not body_io.post(self._hear, pulse, pulse.beat(now_s)):
                return False
            sleep_s = min(_LOOK_S, until_s - now_s)
            await body_io.sleep(sleep_s)
            pulse.woke(now_s + sleep_s, clock())
            self._look(sent.url)
            kept_s = context.timing.ttl_s - context.timing.margin_s
            if pulse.silent_s(clock()) > kept_s and context.settings.on_overrun == "exit":
                await self._end_process(pulse, body_io)
        return True

    async def _end_process(self, pulse: Pulse, body_io: BodyIO) -> None:
        """Say which handler has kept the loop from turning for a TTL, and end the process.

        Nothing is given back before: on the loop others of its handlers could go on in between. All
        begins elsewhere when the leases have ended, a TTL after the last renewal, that of the
        handler which blocks, too: it has ended with its process.
        """
        if self._is_ending:
            return  # another lane's thread is at it
        self._is_ending = True
        context, io = self.context, self.context.io
        stack, run, told = io.stack(), blocker(io), list[bool]()
        hung_s, keys = round(pulse.silent_s(io.clock()), 3), len(context.busy)

        def tell() -> None:
            key, handler = (run.key, run.start.handler) if run is not None else ("", "")
            event = LoopOverran(
                node=context.node_id,
                hung_s=hung_s,
                handler=handler,
                key=key,
                keys=keys,
                stack=stack(),
            )
            try:
                context.emit(event)
            finally:
                told.append(True)

        io.aside(tell)
        ends_s = io.clock() + context.timing.stop_budget_s  # its lease has as long left, and more
        while not told and io.clock() < ends_s:
            await body_io.sleep(_LOOK_S / 10)
        io.end_process(EXIT_CODE)

    def _tell_hang(self, url: Url) -> None:
        """Tell of a hang once, however many rounds and threads see it; observers are not ours."""
        if self._told_turns == self._turns:
            return
        self._told_turns = self._turns
        context, io = self.context, self.context.io
        hung_s, stack = round(self._pulses[url].silent_s(io.clock()), 3), io.stack()
        io.aside(lambda: context.emit(LoopHung(node=context.node_id, hung_s=hung_s, stack=stack())))
