"""The nodes of a simulated world: what their services do, and what their handlers record."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import anyio
import attrs

from pool import Cancel, Handlers, Job, Node, Park, Retry, Settings
from pool.actors.observe import Event as Said
from pool.actors.worker import Worker
from pool.errors import PoolError
from pool.model.names import lane_of
from tests.verify.history import FencedResource, Recorder
from tests.verify.sim.config import Config
from tests.verify.sim.seam import SimSeam
from tests.verify.sim.server import Server
from tests.verify.sim.watch import Watch
from tests.verify.sim.world import LoopKind, Process, World

POOL: Final = "sim"
URL: Final = "redis://simulated:6379"
LIMIT_S: Final = 1.5  # run-time limit of `limited`
ATTEMPTS_MAX: Final = 4
BACKOFF_S: Final = 0.2
BACKOFF_MAX_S: Final = 1.0
GRACE_S: Final = 1.0
CRASHES_MAX: Final = 50  # crashes here are faults; that poison is parked is tested elsewhere
AFTER_S: Final = 0.3  # what `Retry` asks for

Plan = dict[str, Any]
Op = Callable[["Boot"], Coroutine[Any, Any, None]]


def digest(plan: Plan) -> str:
    """Return what tells whether a plan has arrived as it was sent."""
    return hashlib.sha1(json.dumps(plan, sort_keys=True).encode()).hexdigest()[:12]


def settings_of(config: Config) -> Settings:
    """Return how the nodes of a seed behave."""
    return Settings(
        lease_ttl_s=config.ttl_s,
        op_timeout_s=config.op_timeout_s,
        retry_window_s=max(30.0, 3 * config.op_timeout_s),
        result_ttl_s=600.0,
        grace_s=GRACE_S,
        settle_delay_s=min(0.5, config.ttl_s / 4),
        lanes=config.lanes,
        crashes_max=CRASHES_MAX,
        on_store_loss="fence" if config.on_store_loss == "fence" else "continue",
    )


@attrs.define(eq=False)
class Boot:
    """One process of one node."""

    fleet: SimFleet
    process: Process
    record: Recorder
    node: Node | None = None  # while it is open
    is_leaving: bool = False
    down_s: float = 0.1  # after it has left
    _is_told_to_leave: bool = False
    _added: list[Worker] = attrs.field(factory=list)
    _ops: deque[Op] = attrs.field(factory=deque)
    _bell: Any = None
    _runs: int = 0

    @property
    def is_open(self) -> bool:
        """Whether it can be asked to do something."""
        return self.process.is_running and self.node is not None and not self.is_leaving

    @property
    def is_gone(self) -> bool:
        """Whether nothing will come of what it was asked."""
        return self.process.is_dead or self.process.host.is_over

    def do(self, op: Op) -> None:
        """Have it do something, in a task of its own."""
        self.process.post(self._start, op)

    def leave(self) -> None:
        """Tell it to leave."""
        self.is_leaving = True
        self.record("leave", "invoke")
        self.process.post(self._tell_leave)

    def change_worker(self, grace_s: float) -> None:
        """Have it remove the worker that it added first, and add another."""

        async def op(_: Boot) -> None:
            try:
                if self.node is not None and self._added:
                    await self.node.remove_worker(self._added.pop(0), grace_s=grace_s)
                if self.node is not None:
                    await self._add_worker(self.node)
            except PoolError as error:
                self.record("event", extra={"event": "worker.failed", "error": str(error)})

        self.do(op)

    async def _add_worker(self, node: Node) -> None:
        capacity, version = self.fleet.config.capacity, self.process.host.kind
        worker = await node.add_worker(self._handlers(), capacity=capacity, version=version)
        self._added.append(worker)

    def _tell_leave(self) -> None:
        self._is_told_to_leave = True
        self._bell.set()

    def _start(self, op: Op) -> None:
        self._ops.append(op)
        self._bell.set()

    async def _serve(self) -> None:
        """Start what comes, until told to leave."""
        async with anyio.create_task_group() as tasks:
            while not self._is_told_to_leave:
                while self._ops:
                    tasks.start_soon(self._ops.popleft(), self)
                self._bell = anyio.Event()
                await self._bell.wait()
            tasks.cancel_scope.cancel()

    async def main(self) -> None:
        """Be a service: open a node, try again if that fails, leave when told to."""
        config, seam = self.fleet.config, SimSeam(self.process, self.fleet.server)
        self.fleet.seams[seam] = self
        kind = self.process.host.kind
        self._bell = anyio.Event()
        while not self._is_told_to_leave:
            node = Node(
                POOL,
                URL,
                handlers=self._handlers(),
                settings=settings_of(config),
                capacity=config.capacity,
                label=self.process.node,
                version=kind,
                observers=(self._observe,),
                seam=seam,
            )
            try:
                async with node:
                    self._added.clear()
                    for _ in range(config.workers - 1):
                        await self._add_worker(node)
                    self.node = node
                    await self._serve()
                    self.node = None
            except PoolError as error:
                self.node = None
                self.record("event", extra={"event": "node.failed", "error": str(error)})
                await anyio.sleep(seam.dice.uniform(0.1, 0.5))
        self.record("leave")
        self.fleet.on_left(self)

    def _observe(self, said: Said) -> None:
        facts = {k: v for k, v in attrs.asdict(said).items() if isinstance(v, (str, int, float))}
        self.record("event", extra={"event": said.event, **facts})

    # --- handlers ---

    def _handlers(self) -> Handlers:
        handlers = Handlers()
        retries: dict[str, Any] = {
            "attempts_max": ATTEMPTS_MAX,
            "backoff_s": BACKOFF_S,
            "backoff_max_s": BACKOFF_MAX_S,
        }
        handlers.job("work", **retries)(self._work)
        handlers.job("limited", timeout_s=LIMIT_S, **retries)(self._limited)
        handlers.service("feed", backoff_s=BACKOFF_S, backoff_max_s=BACKOFF_MAX_S)(self._feed)
        return handlers

    def _begun(self, job: Job, idem: str, plan: Plan, **extra: Any) -> dict[str, Any]:
        self._runs += 1
        who: dict[str, Any] = {
            "key": job.key,
            "job": job.id,
            "idem": idem,
            "attempt": job.attempt,
            "epoch": job.epoch,
            "nonce": f"{job.worker}@{lane_of(job.key, self.fleet.config.lanes)}",
        }
        facts = {"run": self._runs, "digest": digest(plan), "kind": job.kind, **extra}
        self.record("start", extra=facts, **who)
        return {**who, "extra": {"run": self._runs}}

    async def _work(self, job: Job, idem: str, plan: Plan) -> list[Any]:
        who = self._begun(job, idem, plan, attempts_max=ATTEMPTS_MAX)
        return await self._run(job, plan, who)

    async def _limited(self, job: Job, idem: str, plan: Plan) -> list[Any]:
        who = self._begun(job, idem, plan, attempts_max=ATTEMPTS_MAX, timeout_s=LIMIT_S)
        began_s = anyio.current_time()
        try:
            if job.attempt <= plan["slow"]:
                await anyio.sleep(10 * LIMIT_S)
        except anyio.get_cancelled_exc_class():
            is_late = anyio.current_time() >= began_s + LIMIT_S - 1e-6
            await self._cling()
            self.record("end", "fail", err="timeout" if is_late else "cancelled", **who)
            raise
        return await self._run(job, plan, who)

    async def _run(self, job: Job, plan: Plan, who: dict[str, Any]) -> list[Any]:
        try:
            if plan["s"]:
                await anyio.sleep(plan["s"])
            if job.attempt <= plan["fails"]:
                match plan["how"]:
                    case "retry":
                        who["extra"]["after_s"] = AFTER_S
                        raise Retry(after_s=AFTER_S)
                    case "park":
                        raise Park("as planned")
                    case "cancel":
                        raise Cancel("as planned")
                    case _:
                        raise RuntimeError("as planned")
        except anyio.get_cancelled_exc_class():
            await self._cling()
            self.record("end", "fail", err="cancelled", **who)
            raise
        except (Retry, Park, Cancel, RuntimeError) as error:
            self.record("end", "fail", err=type(error).__name__.lower(), **who)
            raise
        taken = self.fleet.resource.takes(job.key, job.epoch)
        self.record("effect", "ok" if taken else "fail", **who)
        self.record("end", **who)
        return [who["idem"], job.epoch, job.attempt]

    async def _feed(self, job: Job, idem: str, plan: Plan) -> None:
        goes_on = {"outlives": True} if self.fleet.config.on_store_loss == "continue" else {}
        who = self._begun(job, idem, plan, **goes_on)
        try:
            async for note in job.notifications():
                self.record("note", **{**who, "extra": {**who["extra"], "seq": note["seq"]}})
                job.state = {"count": (job.state or {"count": 0})["count"] + 1}
                await anyio.sleep(plan["s"])
                if note["seq"] in plan["trips"] and job.attempt == 1:
                    raise RuntimeError("tripped")
        except anyio.get_cancelled_exc_class():
            with job.ending():
                await anyio.sleep(plan["end"])
            await self._cling()
            self.record("end", "fail", err="cancelled", **who)
            raise
        except RuntimeError:
            self.record("end", "fail", err="error", **who)
            raise

    async def _cling(self) -> None:
        """Go on for as long as handlers of this node do so."""
        left_s = self.fleet.clings_until_s[self.process.node] - self.fleet.world.now_s
        if left_s > 0.0:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(left_s)


class SimFleet:
    """All nodes of one world, restarted when they have died or left."""

    def __init__(self, config: Config, world: World, server: Server, watch: Watch) -> None:
        self.config = config
        self.world = world
        self.server = server
        self.watch = watch
        self.resource = FencedResource()
        self.seams: dict[SimSeam, Boot] = {}
        self.names: Sequence[str] = [f"n{number}" for number in range(config.nodes)]
        self.boots: dict[str, Boot | None] = dict.fromkeys(self.names)
        self.clings_until_s = dict.fromkeys(self.names, 0.0)
        self.is_closing = False
        self._counts = dict.fromkeys(self.names, 0)
        self._driver = watch.recorder("driver")

    def start(self, name: str) -> None:
        """Begin a process of a node, if none is up."""
        if self.boots[name] is not None or self.is_closing:
            return
        self._counts[name] += 1
        number = self.names.index(name) + self._counts[name]
        kinds: tuple[LoopKind, LoopKind] = ("asyncio", "trio")
        kind: LoopKind = kinds[number % 2] if self.config.loops == "mixed" else self.config.loops
        process = Process(self.world, f"{name}/{self._counts[name]}", kind)
        boot = Boot(self, process, self._recorder(process))
        self.boots[name] = boot
        process.start(boot.main)

    def _recorder(self, process: Process) -> Recorder:
        def take(event: Any) -> None:
            if not process.is_dead:
                self.watch.events.append(event)

        return Recorder(process.name, take, lambda: self.world.now_s)

    def process(self, name: str) -> Process | None:
        boot = self.boots[name]
        return boot.process if boot is not None else None

    def crash(self, name: str, down_s: float) -> None:
        boot = self.boots[name]
        assert boot is not None
        self.boots[name] = None
        boot.process.kill()
        self.server.hang_up(boot.process)
        self._driver("exit", p=boot.process.name, result=-9)
        self.world.after(down_s, self.start, name)

    def leave(self, name: str, down_s: float) -> None:
        boot = self.boots[name]
        assert boot is not None
        if not boot.is_leaving:
            boot.leave()
            boot.down_s = down_s

    def cling(self, name: str, until_s: float) -> None:
        for each in (name,) if name else self.names:
            self.clings_until_s[each] = max(until_s, self.clings_until_s[each])

    def change_worker(self, name: str, grace_s: float) -> None:
        boot = self.boots[name]
        assert boot is not None
        if boot.is_open:
            boot.change_worker(grace_s)

    def on_left(self, boot: Boot) -> None:
        """A process has ended in peace."""
        name = boot.process.node
        self.world.after(0.0, self._ended, name, boot)

    def _ended(self, name: str, boot: Boot) -> None:
        if self.boots[name] is boot:
            self.boots[name] = None
            self._driver("exit", p=boot.process.name, result=0)
            self.world.after(boot.down_s, self.start, name)

    def open_boots(self) -> list[Boot]:
        """Return those that can be asked to do something."""
        return [boot for boot in self.boots.values() if boot is not None and boot.is_open]
