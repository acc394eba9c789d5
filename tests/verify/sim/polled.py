"""A polling worker in a simulated world, for `steps.py`: its client outlives the gateways it uses.

    client (a process that nobody kills) --a call--> the gateway that is preferred, if it is up
       ^                                                |  dies: no answer, and the next is asked
       +---- the answer, if it came in time ------------+

It is as simple as a client in any language: it keeps what it was handed, runs it, says how that
ended until it is told, and stops by itself when nobody has answered for `expires_in_s`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

import anyio
import attrs

from pool import Node
from pool.errors import PoolError, WorkerGone
from pool.jobs.remote.claims import EndedJob, Failure, HandedOut, HandlerOffer, WorkerClaim
from tests.verify.invariants import MOVED
from tests.verify.sim.config import ATTEMPTS_MAX, digest
from tests.verify.sim.fleet import BACKOFF_MAX_S, BACKOFF_S, Boot

if TYPE_CHECKING:
    from pool.jobs.remote.workers import RemoteWorkers
    from tests.verify.sim.steps import Stage

ACTOR: Final = "n0"
OTHER: Final = "n1"
HANDLER: Final = "far"  # that no node has
_CALL_S: Final = 0.4  # for an answer, beside what a poll waits
_WAIT_S: Final = 0.3  # of a poll
_CAPACITY: Final = 4
_OVER_S: Final = 4.5  # when it leaves, if its jobs have ended

Call = Callable[["RemoteWorkers"], Coroutine[Any, Any, Any]]


class Unanswered(Exception):
    """No gateway has answered in time."""


@attrs.define(eq=False)
class Client:
    """One polling worker's program; runs in the process of `boot`."""

    stage: Stage
    boot: Boot
    jobs: set[str]  # keys of those that it shall have ended
    claim: WorkerClaim | None = None
    held: dict[str, HandedOut] = attrs.field(factory=dict)
    scopes: dict[str, anyio.CancelScope] = attrs.field(factory=dict)
    good_until_s: float = 0.0
    runs: int = 0
    over: set[str] = attrs.field(factory=set)

    # --- calls ---

    async def call(self, ask: Call, wait_s: float = 0.0) -> tuple[Any, float]:
        """Ask the first gateway that is up, then the other; return the answer, and when sent."""
        for name in (ACTOR, OTHER):
            gateway = self.stage.simulation.fleet.boots[name]
            if gateway is None or not gateway.is_open:
                continue
            sent_s = anyio.current_time()
            answer = await self._ask(gateway, ask, wait_s)
            if isinstance(answer, WorkerGone):
                raise answer
            if answer is not None and not isinstance(answer, PoolError):
                return answer[0], sent_s
        await anyio.sleep(0.05)
        raise Unanswered

    async def _ask(self, gateway: Boot, ask: Call, wait_s: float) -> Any:
        bell, box, home = anyio.Event(), list[Any](), self.boot.process

        async def op(boot: Boot) -> None:
            answer: Any = None
            try:
                assert boot.node is not None
                answer = (await ask(await door(boot.node)),)
            except PoolError as error:
                answer = error
            home.post(take, answer)

        def take(answer: Any) -> None:
            box.append(answer)
            bell.set()

        gateway.do(op)
        with anyio.move_on_after(wait_s + _CALL_S):
            await bell.wait()
        return box[0] if box else None

    # --- its life ---

    async def live(self) -> None:
        async with anyio.create_task_group() as tasks:
            while not (self.over >= self.jobs and self.stage.now_s > _OVER_S):
                try:
                    if self.claim is None:
                        await self._register()
                    await self._poll(tasks)
                except WorkerGone:
                    self.stop_all()
                    self.claim = None
                except Unanswered:
                    if anyio.current_time() > self.good_until_s:
                        self.stop_all()
            await self._leave()

    async def _register(self) -> None:
        options: dict[str, Any] = {
            "attempts_max": ATTEMPTS_MAX,
            "backoff_s": BACKOFF_S,
            "backoff_max_s": BACKOFF_MAX_S,
        }
        offers = [HandlerOffer.of(HANDLER, **options)]
        told, sent_s = await self.call(lambda door: door.register(offers, capacity=_CAPACITY))
        self.claim = told.claim
        self._renewed(sent_s, told.expires_in_s)

    def _renewed(self, sent_s: float, expires_in_s: float) -> None:
        assert self.claim is not None
        self.good_until_s = max(self.good_until_s, sent_s + expires_in_s)
        asked = self.stage.simulation.world.now_s - (anyio.current_time() - sent_s)
        until = asked + expires_in_s
        for lane, has in enumerate(self.claim.lanes):
            if has:
                extra = {"asked": asked, "until": until, "ends": until}
                self.boot.record("renew", nonce=f"{self.claim.name}@{lane}", extra=extra)

    async def _poll(self, tasks: Any) -> None:
        claim = self.claim
        assert claim is not None
        held = [out.job for out in self.held.values()]
        free = _CAPACITY - len(held)
        told, sent_s = await self.call(
            lambda door: door.poll(claim, held, jobs_max=free, wait_s=_WAIT_S), _WAIT_S
        )
        self._renewed(sent_s, told.expires_in_s)
        for lost in told.lost:
            self.stop(lost.job.key)
        for stopped in told.stop:
            self.stop(stopped.job.key)
        for out in told.jobs:
            if out.job.key not in self.held:
                self.held[out.job.key] = out
                tasks.start_soon(self._run, out)

    def stop_all(self) -> None:
        for key in list(self.scopes):
            self.stop(key)

    def stop(self, key: str) -> None:
        if key in self.scopes:
            self.scopes[key].cancel()

    async def _leave(self) -> None:
        claim = self.claim
        while claim is not None:
            try:
                await self.call(lambda door: door.leave(claim))
            except WorkerGone:
                return
            except Unanswered:
                continue
            return

    # --- its jobs ---

    async def _run(self, out: HandedOut) -> None:
        job, claim, (idem, plan) = out.job, self.claim, out.args
        assert claim is not None
        self.runs += 1
        who: dict[str, Any] = {
            "key": job.key,
            "job": job.id,
            "idem": idem,
            "attempt": job.attempt,
            "epoch": job.epoch,
            "nonce": f"{claim.name}@{job.lane}",
        }
        facts = {"run": self.runs, "digest": digest(plan), "kind": job.kind}
        self.boot.record("start", extra={**facts, "attempts_max": ATTEMPTS_MAX}, **who)
        who["extra"] = {"run": self.runs}
        self.scopes[job.key] = scope = anyio.CancelScope()
        with scope:
            await anyio.sleep(plan["s"])
        if scope.cancelled_caught:
            self.boot.record("end", "fail", err="cancelled", **who)
            end: Call = lambda door: door.release(claim, [(job, None)])  # noqa: E731
        elif job.attempt <= plan["fails"]:
            word = "park" if plan["how"] == "park" else "error"
            self.boot.record("end", "fail", err=word, **who)
            failure = Failure(job=job, message="as planned", may_retry=word == "error")
            end = lambda door: door.fail(claim, [failure])  # noqa: E731
        elif plan.get("releases") and out.state is None:
            self.boot.record("end", "fail", err="cancelled", **who)
            self.boot.record("event", key=job.key, extra={"event": MOVED})
            end = lambda door: door.release(claim, [(job, {"at": 1})])  # noqa: E731
        else:
            self.boot.record("end", **who)
            end = lambda door: door.complete(claim, [(job, [idem])])  # noqa: E731
        await self._end(job.key, end)

    async def _end(self, key: str, end: Call) -> None:
        """Say how it ended, until that was answered."""
        told = list[EndedJob]()
        while not told:
            try:
                told, _ = await self.call(end)
            except WorkerGone:
                break
            except Unanswered:
                continue
        self.held.pop(key, None)
        self.scopes.pop(key, None)
        if told and told[0].outcome in ("done", "repeated", "parked", "cancelled"):
            self.over.add(key)


async def door(node: Node) -> RemoteWorkers:
    return await node._open_wiring.remote_workers()


def _served(stage: Stage, **plans: Any) -> None:
    """Have the actor serve a worker that polls, as long as it lives; the other one does then."""
    keys = [f"far{number}" for number in range(3)]

    def begin() -> None:
        client = Client(stage, stage.boot(OTHER), set(keys))

        async def op(_: Boot) -> None:
            await client.live()

        stage.boot(OTHER).do(op)

    stage.at(0.0, begin)
    for number, key in enumerate(keys):
        plan = {"s": 0.1 + 0.1 * number, **plans}
        options = {"allow_unknown": True}
        stage.at(0.5 + 0.2 * number, stage._dispatch, OTHER, key, HANDLER, plan, options)


def _poll(stage: Stage) -> None:
    _served(stage)


def _poll_and_fail(stage: Stage) -> None:
    _served(stage, fails=1)


def _poll_and_park(stage: Stage) -> None:
    _served(stage, fails=1, how="park")


def _poll_and_release(stage: Stage) -> None:
    _served(stage, releases=1)


POLLED: Final = {
    "be polled": _poll,
    "be polled, and told of failures": _poll_and_fail,
    "be polled, and told to park": _poll_and_park,
    "be polled, and given back": _poll_and_release,
}
