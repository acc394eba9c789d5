"""The leases of a node and its workers: renewed from a thread of their own, judged on the loop.

    thread: renew all lanes in one pipeline --Renewed--> lease machine --> the lane's workers
            every TTL/5, after a failure TTL/20       \\-> earliest deadlines --> reaper, sweeper

In a cluster each lane has a thread: a primary that hangs must not take the others' leases along.
The thread knows nothing but the calls to send: a loop that hangs keeps its leases (or, under
`on_overrun = "exit"`, loses its process), and a network that hangs cannot make the loop deaf.  An
identity that the server does not know any more (GONE) joins again under its next number; what it
owned is the reaper's.  This actor stops last of all.

Dying at any point: nobody renews, the leases end, others fence and reap.  A late answer: counted
from when it was asked for, so it can only shorten what we believe.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeAlias

import anyio
import attrs

from pool.actors.actor import Actor
from pool.actors.context import Context, LaneState
from pool.actors.observe import Event, LeaseLost, LeaseResumed, LoopHung, StoreTroubled
from pool.errors import PoolError, StoreLost
from pool.model.lease import Effect, FenceLocally, Renewed, Resume, StopJobs, Tick
from pool.store.answers import Renewal, renewal
from pool.store.scripts import ScriptCall
from pool.store.seam import Beside, Port, Reply
from pool.store.url import Url

HUNG_S: Final = 1.0  # a loop that has not answered for so long is reported, with its stack
_LOOK_S: Final = 0.25  # how often the thread looks whether the loop answers
EXIT_CODE: Final = 70  # of a process that ended itself because a handler outlived its lease


@attrs.frozen
class _Plan:
    """What one thread sends: one call per lane, and whom each call renews, in its order."""

    lanes: tuple[int, ...] = ()
    calls: tuple[ScriptCall, ...] = ()
    identities: tuple[tuple[str, ...], ...] = ()
    closing: tuple[ScriptCall, ...] = ()  # what keeps new keys away while the loop hangs


@attrs.frozen
class _Answer:
    """A round of renewals was answered, or not."""

    asked_s: float
    url: Url
    plan: _Plan
    replies: Sequence[Reply]


@attrs.frozen
class _Due:
    """Some lease has come to its next deadline."""


@attrs.frozen(kw_only=True)
class LaneHandlers:
    """What the node does about a lane; each is called on the event loop."""

    on_renewed: Callable[[LaneState, Renewal, float, dict[str, int], bool], object]
    on_soft: Callable[[LaneState], object]
    on_hard: Callable[[LaneState], bool]  # returns whether handlers still run
    on_resume: Callable[[LaneState], object]
    on_gone: Callable[[LaneState, list[str]], object]
    on_answering: Callable[[], object]  # the loop had hung, and turns again


Message: TypeAlias = _Answer | _Due


@attrs.define(eq=False, kw_only=True)
class KeepAlive(Actor[Message]):
    """Renews, and stops handlers early when it cannot (G-03)."""

    context: Context
    on: LaneHandlers
    # One thread for each place where lanes are: one in all, but in a cluster one per lane.
    _plans: dict[Url, _Plan] = attrs.field(init=False, factory=dict)
    _threads: dict[Url, Beside] = attrs.field(init=False, factory=dict)
    _wake: anyio.Event = attrs.field(init=False, factory=anyio.Event)
    _heard_s: float = attrs.field(init=False, default=0.0)
    _hung: set[Url] = attrs.field(init=False, factory=set)  # whose thread has seen the loop hang
    _asked: set[Url] = attrs.field(init=False, factory=set)  # to renew before the period is over
    _away: set[Url] = attrs.field(init=False, factory=set)

    # --- for the node -------------------------------------------------------------------------

    def renew(self, identities: Sequence[Sequence[str]], closing: Sequence[ScriptCall]) -> None:
        """Renew these identities from now on; one sequence per lane, in the lanes' order.

        `closing` takes the workers out of `open`: it is sent when the loop hangs.
        """
        for url in self._urls():
            self._plans[url] = self._plan(url, identities, closing)

    def renew_now(self) -> None:
        """Do not wait for the next period."""
        self._asked.update(self._threads)
        for beside in self._threads.values():
            beside.wake()

    async def aclose(self, budget_s: float) -> None:
        """End the threads; twice is fine."""
        async with anyio.create_task_group() as closing:
            for beside in self._threads.values():
                closing.start_soon(beside.aclose, budget_s)

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

    def _plan(
        self, url: Url, identities: Sequence[Sequence[str]], closing: Sequence[ScriptCall]
    ) -> _Plan:
        states, ttl_s = self._urls()[url], self.context.timing.ttl_s
        return _Plan(
            tuple(state.number for state in states),
            tuple(state.lane.renew(identities[state.number], ttl_s=ttl_s) for state in states),
            tuple(tuple(identities[state.number]) for state in states),
            tuple(call for call in closing if self.context.url.at(call.keys[0]) == url),
        )

    def _start_thread(self, url: Url) -> None:
        self._threads[url] = self.context.seam.start(
            "pool-keepalive",
            url,
            partial(self._body, url),
            has_thread=True,
            on_end=partial(self._on_end, url),
        )

    def handle(self, message: Message) -> None:
        match message:
            case _Answer():
                self._on_answer(message)
            case _Due():
                now_s = self.context.seam.clock()
                for state in self.context.lanes:
                    self._step(state, Tick(now_s))
        self._wake.set()

    def _on_end(self, url: Url, error: BaseException | None) -> None:
        if error is not None:
            problem = f"the renewal thread ended: {type(error).__name__}: {error}"
            self.context.emit(StoreTroubled(during="renew", problem=problem))
            del self._threads[url]
            if self.state == "running":
                self._start_thread(url)  # spawns nothing: on asyncio a callback cannot

    async def _watch(self) -> None:
        """Wake when the next lease needs a decision."""
        while True:
            now_s = self.context.seam.clock()
            due_s = min((s.lease.deadline_s for s in self.context.lanes), default=float("inf"))
            if due_s <= now_s:
                self.tell(_Due())
            self._wake = anyio.Event()
            with anyio.move_on_after(max(due_s - now_s, 0.001)):
                await self._wake.wait()

    def _on_answer(self, answer: _Answer) -> None:
        now_s = self.context.seam.clock()
        was_away = answer.url in self._away
        self._away.discard(answer.url)
        if any(isinstance(reply, PoolError) for reply in answer.replies):
            self._away.add(answer.url)
        for lane, names, reply in zip(
            answer.plan.lanes, answer.plan.identities, answer.replies, strict=True
        ):
            state = self.context.lanes[lane]
            if isinstance(reply, StoreLost):
                self.context.on_data_lost()
                return
            if isinstance(reply, PoolError):
                self.context.emit(StoreTroubled(during="renew", problem=str(reply)))
                self._step(state, Tick(now_s))
                continue
            told = renewal(reply)
            state.tell_time(told.now_ms, answer.asked_s)
            state.unassigned = told.unassigned
            counts = dict(zip(names, told.counts, strict=True))
            gone = [name for name, count in counts.items() if count < 0]
            if len(gone) < len(names):  # else nobody has a lease: joining again begins a new one
                self._step(state, Renewed(answer.asked_s, now_s))
            self.on.on_renewed(state, told, answer.asked_s, counts, was_away)
            if gone:
                self.on.on_gone(state, gone)

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
                if self.on.on_hard(state) and context.settings.on_overrun == "exit":
                    self.context.seam.end_process(EXIT_CODE)
            case Resume():
                context.emit(LeaseResumed(node=context.node_id, lane=state.number))
                self.on.on_resume(state)
            case _:
                raise AssertionError(effect)

    def _heard(self) -> None:
        self._heard_s = self.context.seam.clock()
        if self._hung:
            self._hung.clear()
            self.on.on_answering()

    # --- in the thread ------------------------------------------------------------------------

    async def _body(self, url: Url, port: Port) -> None:
        context, clock = self.context, self.context.seam.clock
        self._heard_s = clock()
        while not port.closing:
            self._asked.discard(url)  # first: what is asked for from here on is not in the plan
            plan, asked_s = self._plans.get(url, _Plan()), clock()
            replies: Sequence[Reply] = ()
            if plan.calls:
                replies = await port.run(plan.calls, timeout_s=context.timing.renew_timeout_s)
                if not port.post(self._take, _Answer(asked_s, url, plan, replies)):
                    return
            failed = any(isinstance(reply, PoolError) for reply in replies)
            renew_s = context.timing.renew_s
            next_s = asked_s + (renew_s / 4 if failed else renew_s)
            if not await self._look_after_loop(url, port, next_s):
                return

    def _take(self, answer: _Answer) -> None:
        self._heard()
        self.tell(answer)

    async def _look_after_loop(self, url: Url, port: Port, until_s: float) -> bool:
        """Sleep until the next round, and watch whether the loop still turns.

        False if it was closed without closing us: then nobody may think that this node lives.
        """
        clock, settings = self.context.seam.clock, self.context.settings
        while not port.closing:
            now_s = clock()
            if now_s >= until_s or url in self._asked:
                break
            if not port.post(self._heard):
                return False
            await port.sleep(min(_LOOK_S, until_s - now_s))
            hung_s = clock() - self._heard_s
            if hung_s > HUNG_S and url not in self._hung:
                is_first = not self._hung
                self._hung.add(url)
                if is_first:  # said once, however many rounds it lasts
                    self.context.emit(self._hung_event(hung_s))
                # What is granted now would wait for as long as the loop hangs.
                closing = self._plans.get(url, _Plan()).closing
                await port.run(closing, timeout_s=self.context.timing.renew_timeout_s)
            timing = self.context.timing
            if hung_s > timing.ttl_s - timing.margin_s and settings.on_overrun == "exit":
                self.context.seam.end_process(EXIT_CODE)
        return True

    def _hung_event(self, hung_s: float) -> Event:
        return LoopHung(
            node=self.context.node_id, hung_s=round(hung_s, 3), stack=self.context.seam.stack()
        )
