"""The conductor of the demo: plays the story, and asks for the verdict."""

from __future__ import annotations

import json
import math
import signal
import time
from itertools import cycle
from typing import Any, Final

import anyio
import attrs

from pool.core.codec import decode_value
from pool.core.record import Outcome
from pool.demo import tzif, zones
from pool.demo.history import History
from pool.demo.ledger import CLOCK, ZONE
from pool.demo.play import CLOCKS, NAMES, Play
from pool.demo.show import Show
from pool.demo.stage import Stage, loop_of
from pool.demo.verdict import (
    KILLED_CLOCKS_MIN,
    KILLED_ZONES_MIN,
    Stored,
    Verdict,
    judge,
)
from pool.errors import HandlerError, PoolError, again
from pool.jobs.client.dispatch import Call
from pool.jobs.client.ref import JobRef
from pool.jobs.node import Node
from pool.ops import inspect
from pool.redis.io.system import SystemIO
from pool.redis.pipeline import Pipeline
from pool.redis.url import Url
from pool.settings import Settings

_START_S: Final = 20.0  # for a Python process to start, on a busy machine


@attrs.define(eq=False, kw_only=True)
class Conductor:
    """Plays the story.  What it decides by, it reads from the ledger."""

    stage: Stage
    server: str
    play: Play = attrs.field(init=False)
    show: Show = attrs.field(init=False)
    history: History = attrs.field(init=False)
    _began_s: float = attrs.field(init=False, factory=time.monotonic)
    _refs: list[JobRef[Any]] = attrs.field(init=False, factory=list)
    _numbers: dict[str, int] = attrs.field(init=False, factory=dict)  # notifications sent, by key
    _idle_since_s: float = attrs.field(init=False, default=math.inf)

    def __attrs_post_init__(self) -> None:
        self.play, self.show, self.history = self.stage.play, self.stage.show, self.stage.history

    async def conduct(self) -> Verdict:
        """Play it all and return the verdict."""
        self.show.say(f"{self.server}, lease TTL {self.play.ttl_s:g} s")
        with self.stage as stage:
            for name in NAMES[:3]:
                stage.enter(name)
            expected = {name: _right(name) for name in zones.names()}
            stage.watch_machine()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(stage.watch)
                try:
                    await self._acts()
                except PoolError as error:
                    stage.fail(str(error))
                await stage.everybody_leaves()
                tasks.cancel_scope.cancel()
            stored = await self._stored()
        return judge(
            self.history,
            stored,
            expected,
            server=self.server,
            seconds=time.monotonic() - self._began_s,
            ttl_s=self.play.ttl_s,
        )

    # --- the acts -----------------------------------------------------------------------------

    async def _acts(self) -> None:
        lives = self.history.lives
        await self.stage.until(lambda: len(lives) == 3, _START_S)  # joined, or ended
        if len(self.stage.alive()) < 3:
            self.stage.fail(f"only {len(self.stage.alive())} of three nodes came up")
            return
        loops = ", ".join(f"{name} ({loop_of(name)})" for name in NAMES[:3])
        self.show.say(f"three nodes, each a process: {loops}")
        settings = Settings(lease_ttl_s=self.play.ttl_s)
        async with Node(self.stage.pool, self.stage.url, settings=settings) as node:
            await self._dispatch(node)
            async with anyio.create_task_group() as tasks:
                for ref in self._refs:
                    if ref.handler == ZONE:
                        tasks.start_soon(self._wait_for, ref)
                tasks.start_soon(self._notify, node)
                with anyio.move_on_after(self.play.deadline_s):
                    if await self._kill():
                        await self._freeze()
                        await self._drain_and_add()
                    await self.stage.until(self._is_over, math.inf)
                tasks.cancel_scope.cancel()
            await self._curtain(node)
            async with anyio.create_task_group() as tasks:
                for ref in self._refs:
                    if ref.handler == CLOCK:
                        tasks.start_soon(self._stop, ref)
            await node.shutdown_pool()

    async def _dispatch(self, node: Node) -> None:
        clocks = [Call(f"{CLOCK}:{zone}", zone) for zone in CLOCKS]
        jobs = [Call(zone, zone) for zone in zones.names()]
        for handler, calls in ((CLOCK, clocks), (ZONE, jobs)):
            for ref in await node.dispatch_many(handler, calls):
                if isinstance(ref, PoolError):
                    raise again(ref)
                self.stage.write("accepted", key=ref.key, job=ref.job_id, handler=handler)
                self._refs.append(ref)
        self.show.say(f"dispatched {len(jobs)} zones and {len(clocks)} world clocks")

    async def _kill(self) -> bool:
        """SIGKILL the node with the most clocks; say whether all it ran runs elsewhere."""
        runs = self.history.open_runs

        def is_ready() -> bool:
            return sum(map(len, self.history.by_key.values())) >= len(self._refs)

        await self.stage.until(is_ready, self.play.patience_s)
        name = max(NAMES[:3], key=lambda each: len(runs(each, CLOCK)))
        killed_s = self.stage.kill(name)
        held = [*runs(name, ZONE), *runs(name, CLOCK)]
        self.show.say(f"SIGKILL {name}, which runs {_load(self.history, name)}")
        if len(runs(name, ZONE)) < KILLED_ZONES_MIN or len(runs(name, CLOCK)) < KILLED_CLOCKS_MIN:
            return False  # the verdict will say so

        def waits_s() -> list[float]:
            return [self.history.started_after(run, killed_s) - killed_s for run in held]

        if await self.stage.until(lambda: max(waits_s()) < math.inf, self.play.patience_s):
            self.show.say(f"all of it runs elsewhere, after {max(waits_s()):.2f} s")
            return True
        missing = sum(wait_s == math.inf for wait_s in waits_s())
        self.show.say(f"{missing} of {len(held)} were not started elsewhere")
        return False

    async def _freeze(self) -> None:
        """SIGSTOP the busier of the two left for 2 TTL; wait until it has let go."""
        # Not before jobs end: those that it wants to settle when it wakes are the point of this.
        jobs = self.history.jobs(ZONE)
        await self.stage.until(
            lambda: len(jobs) - len(self.history.unfinished_zones()) >= len(jobs) // 4,
            self.play.patience_s,
        )
        name = max(self.stage.alive(), key=lambda each: len(self.history.open_runs(each, ZONE)))
        held = [*self.history.open_runs(name, ZONE), *self.history.open_runs(name, CLOCK)]
        self.show.say(f"SIGSTOP {name}, which runs {_load(self.history, name)}")
        self.stage.signal(name, signal.SIGSTOP, "stopped")
        await anyio.sleep(2 * self.play.ttl_s)
        self.stage.signal(name, signal.SIGCONT, "continued")
        self.show.say(f"SIGCONT {name}, after {2 * self.play.ttl_s:g} s")
        began_s = time.monotonic()
        if await self.stage.until(
            lambda: all(run.ended_s < math.inf for run in held), self.play.patience_s
        ):
            took_s = time.monotonic() - began_s
            self.show.say(f"{name} has let go of all it ran, after {took_s:.2f} s")

    async def _drain_and_add(self) -> None:
        """SIGTERM the node that was never frozen, and add one in its place."""
        lives, newcomer = self.history.lives, NAMES[3]
        name = next(each for each in self.stage.alive() if lives[each].stopped_s == math.inf)
        self.show.say(f"SIGTERM {name}, which runs {_load(self.history, name)}; add {newcomer}")
        self.stage.signal(name, signal.SIGTERM, "draining")
        self.stage.enter(newcomer)
        if await self.stage.until(lambda: lives[name].left_s < math.inf, _START_S):
            self.show.say(f"{name} has handed everything over and left")
        await self.stage.until(lambda: newcomer in lives, _START_S)
        self.show.say(f"{newcomer} ({loop_of(newcomer)}) has joined")

    async def _curtain(self, node: Node) -> None:
        """See that every clock still runs, and that every notification was heard."""
        self.stage.write("curtain")
        for ref in self._refs:
            if ref.handler == CLOCK:
                await self._notify_one(node, ref.key)

        def is_quiet() -> bool:
            unheard = any(
                number not in self.history.heard.get(key, ())
                for key, numbers in self.history.notified.items()
                for number in numbers
            )
            ticked = all(
                any(r.ticked_s > self.history.curtain_s for r in self.history.by_key.get(key, ()))
                for key in (ref.key for ref in self._refs if ref.handler == CLOCK)
            )
            return ticked and not unheard

        await self.stage.until(is_quiet, self.play.patience_s)
        jobs = self.history.jobs(ZONE)
        done = len(jobs) - len(self.history.unfinished_zones())
        self.show.say(f"{done} of {len(jobs)} zones are done; the clocks are stopped")

    # --- beside the acts ----------------------------------------------------------------------

    async def _wait_for(self, ref: JobRef[Any]) -> None:
        """Write down when a zone's outcome is seen, and whose it is."""
        try:
            await ref.result()
        except HandlerError as error:  # parked or cancelled: an outcome too, and a lost zone
            self.show.say(f"{ref.key}: {error}")
        except PoolError as error:
            self.stage.fail(f"{ref.key}: {error}")
            return
        try:
            status = await ref.status()
        except PoolError as error:
            self.stage.fail(f"{ref.key}: {error}")
        else:
            self.stage.write(
                "outcome", key=ref.key, job=ref.job_id, epoch=status.epoch, how=status.state
            )

    async def _notify(self, node: Node) -> None:
        for ref in cycle([ref for ref in self._refs if ref.handler == CLOCK]):
            await self._notify_one(node, ref.key)
            await anyio.sleep(self.play.pace.notify_s)

    async def _notify_one(self, node: Node, key: str) -> None:
        number = self._numbers[key] = self._numbers.get(key, 0) + 1
        try:
            await node.notify(key, number)
        except PoolError as error:  # not accepted, so nobody has to hear it
            self.show.say(f"notify {key}: {error}")
        else:
            self.stage.write("notified", key=key, count=number)

    async def _stop(self, ref: JobRef[Any]) -> None:
        try:
            await ref.stop(cause="the play is over", timeout_s=self.play.patience_s)
        except PoolError as error:
            self.stage.fail(f"stop {ref.key}: {error}")

    def _is_over(self) -> bool:
        """Say whether all zones have outcomes, or nobody works on the others any more."""
        unfinished = self.history.unfinished_zones()
        if any(self.history.is_worked_on(entry.key) for entry in unfinished):
            self._idle_since_s = math.inf
            return False
        now_s = time.monotonic()
        self._idle_since_s = min(self._idle_since_s, now_s)
        return not unfinished or now_s - self._idle_since_s > self.play.patience_s

    # --- how it ended -------------------------------------------------------------------------

    async def _stored(self) -> dict[str, Stored]:
        """Fetch how all jobs ended, straight from Redis."""
        pipeline = await Pipeline.open(SystemIO(), Url.parse(self.stage.url), op_timeout_s=5.0)
        try:
            found = await inspect.find(pipeline, self.stage.pool)
            if found is None:
                return {}  # nobody has founded it, as the verdict says
            jobs = [(ref.key, ref.job_id) for ref in self._refs]
            outcomes = await inspect.outcomes(pipeline, found, jobs)
        finally:
            await pipeline.aclose(1.0)
        return {
            job_id: Stored(
                word=outcome.word,
                epoch=outcome.epoch,
                value=decode_value(outcome.body) if outcome.word == "done" else None,
            )
            for (_, job_id), outcome in zip(jobs, outcomes, strict=True)
            if isinstance(outcome, Outcome)
        }


def _load(history: History, name: str) -> str:
    jobs, clocks = (len(history.open_runs(name, handler)) for handler in (ZONE, CLOCK))
    return f"{jobs} zones and {clocks} clocks"


def _right(name: str) -> dict[str, Any]:
    """Return a zone's right result as it comes out of JSON."""
    first, changes = tzif.transitions(zones.file_of(name), zones.SINCE_S, zones.UNTIL_S)
    plain: dict[str, Any] = json.loads(json.dumps({"first": first, "changes": changes}))
    return plain
