"""The leases of a node and its workers: renewed from a thread of their own, judged on the loop.

    thread: renew all lanes in one pipeline --Renewed--> lease machine --> the lane's workers
            every TTL/5, after a failure TTL/20       \\-> earliest deadlines --> reaper, sweeper

The thread knows nothing but the calls to send: a loop that hangs keeps its leases (or, under
`on_overrun = "exit"`, loses its process), and a network that hangs cannot make the loop deaf.  An
identity that the server does not know any more (GONE) joins again under its next number; what it
owned is the reaper's.  This actor stops last of all.

Dying at any point: nobody renews, the leases end, others fence and reap.  A late answer: counted
from when it was asked for, so it can only shorten what we believe.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

HUNG_S: Final = 1.0  # a loop that has not answered for so long is reported, with its stack
_LOOK_S: Final = 0.25  # how often the thread looks whether the loop answers
EXIT_CODE: Final = 70  # of a process that ended itself because a handler outlived its lease


@attrs.frozen
class _Plan:
    """What the thread sends: one call per lane, and whom each call renews, in its order."""

    calls: tuple[ScriptCall, ...] = ()
    identities: tuple[tuple[str, ...], ...] = ()
    closing: tuple[ScriptCall, ...] = ()  # what keeps new keys away while the loop hangs


@attrs.frozen
class _Answer:
    """A round of renewals was answered, or not."""

    asked_s: float
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
    _plan: _Plan = attrs.field(init=False, factory=_Plan)
    _beside: Beside | None = attrs.field(init=False, default=None)
    _wake: anyio.Event = attrs.field(init=False, factory=anyio.Event)
    _heard_s: float = attrs.field(init=False, default=0.0)
    _is_hung: bool = attrs.field(init=False, default=False)
    _is_asked: bool = attrs.field(init=False, default=False)  # to renew before the period is over
    _was_away: bool = attrs.field(init=False, default=False)

    # --- for the node -------------------------------------------------------------------------

    def renew(self, identities: Sequence[Sequence[str]], closing: Sequence[ScriptCall]) -> None:
        """Renew these identities from now on; one sequence per lane, in the lanes' order.

        `closing` takes the workers out of `open`: it is sent when the loop hangs.
        """
        ttl_s = self.context.settings.lease_ttl_s
        self._plan = _Plan(
            tuple(
                state.lane.renew(names, ttl_s=ttl_s)
                for state, names in zip(self.context.lanes, identities, strict=True)
            ),
            tuple(tuple(names) for names in identities),
            tuple(closing),
        )

    def renew_now(self) -> None:
        """Do not wait for the next period."""
        self._is_asked = True
        if self._beside is not None:
            self._beside.wake()

    async def aclose(self, budget_s: float) -> None:
        """End the thread; twice is fine."""
        if self._beside is not None:
            await self._beside.aclose(budget_s)

    # --- on the loop --------------------------------------------------------------------------

    def begin(self) -> None:
        self.spawn(self._watch)
        if self._beside is None:
            self._start_thread()

    def _start_thread(self) -> None:
        self._beside = self.context.seam.start(
            "pool-keepalive",
            self.context.url,
            self._body,
            socket_timeout_s=self.context.settings.socket_timeout_s,
            on_end=self._on_end,
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

    def _on_end(self, error: BaseException | None) -> None:
        if error is not None:
            problem = f"the renewal thread ended: {type(error).__name__}: {error}"
            self.context.emit(StoreTroubled(during="renew", problem=problem))
            self._beside = None
            if self.state == "running":
                self._start_thread()  # spawns nothing: on asyncio a callback cannot

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
        was_away = self._was_away
        self._was_away = any(isinstance(reply, PoolError) for reply in answer.replies)
        for state, names, reply in zip(
            self.context.lanes, answer.plan.identities, answer.replies, strict=False
        ):
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
        if self._is_hung:
            self._is_hung = False
            self.on.on_answering()

    # --- in the thread ------------------------------------------------------------------------

    async def _body(self, port: Port) -> None:
        settings, clock = self.context.settings, self.context.seam.clock
        self._heard_s = clock()
        while not port.closing:
            self._is_asked = False  # first: what is asked for from here on is not in the plan
            plan, asked_s = self._plan, clock()
            replies: Sequence[Reply] = ()
            if plan.calls:
                replies = await port.run(plan.calls, timeout_s=settings.renew_timeout_s)
                if not port.post(self._take, _Answer(asked_s, plan, replies)):
                    return
            failed = any(isinstance(reply, PoolError) for reply in replies)
            next_s = asked_s + (settings.renew_s / 4 if failed else settings.renew_s)
            if not await self._look_after_loop(port, next_s):
                return

    def _take(self, answer: _Answer) -> None:
        self._heard()
        self.tell(answer)

    async def _look_after_loop(self, port: Port, until_s: float) -> bool:
        """Sleep until the next round, and watch whether the loop still turns.

        False if it was closed without closing us: then nobody may think that this node lives.
        """
        clock, settings = self.context.seam.clock, self.context.settings
        while not port.closing:
            now_s = clock()
            if now_s >= until_s or self._is_asked:
                break
            if not port.post(self._heard):
                return False
            await port.sleep(min(_LOOK_S, until_s - now_s))
            hung_s = clock() - self._heard_s
            if hung_s > HUNG_S and not self._is_hung:
                self._is_hung = True  # said once, however many rounds it lasts
                self.context.emit(self._hung(hung_s))
                # What is granted now would wait for as long as the loop hangs.
                await port.run(self._plan.closing, timeout_s=settings.renew_timeout_s)
            if hung_s > settings.lease_ttl_s - settings.margin_s and settings.on_overrun == "exit":
                self.context.seam.end_process(EXIT_CODE)
        return True

    def _hung(self, hung_s: float) -> Event:
        return LoopHung(
            node=self.context.node_id, hung_s=round(hung_s, 3), stack=self.context.seam.stack()
        )
