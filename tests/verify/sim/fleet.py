"""The nodes of a simulated world: what their services do, and what their handlers record."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import anyio
import attrs
from anyio.abc import TaskGroup

from pool import Cancel, Follower, Handlers, Job, LocalWorker, Node, Park, Retry, Settings, Step
from pool.core.walk import PAGES, Pages
from pool.errors import NotOwner, PoolError, StorageFull
from pool.events import Event as Said
from pool.names import lane_of
from tests.verify.history import FencedResource, Recorder
from tests.verify.sim import planned, versions
from tests.verify.sim.config import ATTEMPTS_MAX, Config, Plan, digest
from tests.verify.sim.faults import POOL
from tests.verify.sim.programs import Programs
from tests.verify.sim.server import Server
from tests.verify.sim.sim_io import SimIO
from tests.verify.sim.timetable import PLAN as TIMED
from tests.verify.sim.watch import Watch
from tests.verify.sim.world import (
    CancelledError,
    LoopKind,
    Process,
    World,
    cancel_oneself,
    shared_future,
)

URL: Final = "redis://simulated:6379"
APART: Final = "redis+cluster://simulated:7000"  # each hash tag has a server of its own
LIMIT_S: Final = 1.5  # run-time limit of `limited`
BACKOFF_S: Final = 0.2
BACKOFF_MAX_S: Final = 1.0
GRACE_S: Final = 1.0
AFTER_S: Final = 0.3  # what `Retry` asks for
ANSWER_S: Final = 1.0  # within this after a node has left, its calls must have been answered
_SEEN_S: Final = 0.5  # what an observer may block its loop for, in TTL


class Odd(BaseException):
    """What no code of the library names."""


Op = Callable[["Boot"], Coroutine[Any, Any, None]]


def settings_of(config: Config, name: str = "") -> Settings:
    """Return how a node of a seed behaves: as all others, unless it has settings of its own."""
    settings = Settings(
        lease_ttl_s=None if "ttl" in config.shapes else config.ttl_s,
        op_timeout_s=config.op_timeout_s,
        retry_window_s=max(30.0, 3 * config.op_timeout_s),
        result_ttl_s=600.0,
        grace_s=GRACE_S,
        settle_delay_s=min(0.5, config.ttl_s / 4),
        lanes=config.lanes,
        crashes_max=config.crashes_max,
        on_store_loss="fence" if config.on_store_loss == "fence" else "continue",
    )
    dice = random.Random(f"settings/{config.seed}/{name}")
    if "settings" in config.shapes:
        settings = attrs.evolve(
            settings,
            op_timeout_s=config.op_timeout_s * dice.choice((0.5, 1.0, 2.0)),
            grace_s=dice.choice((0.0, 0.3, GRACE_S)),
            settle_delay_s=dice.choice((0.0, 0.2, 1.0)),
            sweep_batch=dice.choice((5, 128, 250)),
            restarts_max=dice.choice((0, 5, 20)),
            result_ttl_s=dice.choice((300.0, 600.0)),
            retry_window_s=dice.choice((30.0, 60.0)),
            messages_max=dice.choice((100, 1000)),
        )
    if "exits" in config.shapes and dice.random() < 0.5:
        settings = attrs.evolve(settings, on_overrun="exit")
    return settings


def pages_of(config: Config, name: str) -> Pages:
    """Return how large the pages of a node are."""
    if "pages" not in config.shapes:
        return PAGES
    dice = random.Random(f"pages/{config.seed}/{name}")
    later = ("outcome_bytes", "carried", "carried_bytes")
    fields = [field.name for field in attrs.fields(Pages) if field.name not in later]
    sizes = {field: dice.randint(1, 3) for field in fields}
    sizes["message_bytes"] = dice.choice((1, 64, PAGES.message_bytes))
    own = random.Random(f"outcomes/{config.seed}/{name}")  # older seeds stay what they were
    outcome_bytes = own.choice((1, 256, PAGES.outcome_bytes))
    sizes |= {"carried": own.randint(1, 3), "carried_bytes": own.choice((1, PAGES.carried_bytes))}
    return Pages(**sizes, outcome_bytes=outcome_bytes)


@attrs.define(eq=False)
class Boot:
    """One process of one node."""

    fleet: SimFleet
    process: Process
    record: Recorder
    node: Node | None = None  # while it is open
    current: Node | None = None  # also before and after
    is_leaving: bool = False
    is_abandoning: bool = False
    is_left: bool = False  # in peace
    is_ill: bool = False  # parts of it were dead when it was last looked at
    down_s: float = 0.1  # after it has left
    _is_told_to_leave: bool = False
    _added: list[LocalWorker] = attrs.field(factory=list)
    _ops: deque[Op] = attrs.field(factory=deque)
    _bell: Any = None
    _runs: int = 0
    _calls: int = 0  # of steps' functions
    _going: int = 0  # what it was asked to do and is not done
    _dice: random.Random = attrs.field(init=False)
    _shared: Any = None  # what several handlers wait for

    def __attrs_post_init__(self) -> None:
        self._dice = self.fleet.world.dice(f"boot/{self.process.name}")

    @property
    def is_open(self) -> bool:
        """Whether it can be asked to do something."""
        return self.process.is_running and self.node is not None and not self.is_leaving

    @property
    def op_timeout_s(self) -> float:
        """Within what its calls are answered."""
        return settings_of(self.fleet.config, self.process.node).op_timeout_s

    @property
    def is_gone(self) -> bool:
        """Whether nothing will come of what it was asked."""
        return self.process.is_dead or self.process.host.is_over

    def give_up(self, f: str, **facts: Any) -> None:
        """Write that a call was cancelled by whoever made it."""
        if not self.is_abandoning:
            self.record(f, "info", err="CANCELLED", **facts)

    def do(self, op: Op) -> None:
        """Have it do something, in a task of its own."""
        self.process.post(self._start, op)

    def leave(self) -> None:
        """Tell it to leave."""
        self.is_leaving = True
        settings = settings_of(self.fleet.config, self.process.node)
        self.record("leave", "invoke", extra={"grace_s": settings.grace_s})
        self.process.post(self._tell_leave)

    def change_worker(self, grace_s: float) -> None:
        """Have it remove the worker that it added first, and add another.

        Until that is there: the checker counts on all slots.
        """

        async def op(_: Boot) -> None:
            is_removed = not self._added
            while self.node is not None and not self.is_leaving:
                try:
                    if not is_removed:
                        await self._added.pop(0).remove(grace_s=grace_s)
                        is_removed = True
                        continue
                    await self._add_worker(self.node)
                except PoolError as error:
                    self.record("event", extra={"event": "worker.failed", "error": str(error)})
                    if not is_removed:
                        return
                    await anyio.sleep(self.fleet.config.ttl_s / 5)
                else:
                    return

        self.do(op)

    async def _add_worker(self, node: Node) -> None:
        capacity = self.fleet.config.capacity
        worker = await node.add_worker(self._handlers(), capacity=capacity, version=self._version)
        self._added.append(worker)

    @property
    def _version(self) -> str:
        """The label of its program: nodes with one label lack the same."""
        return self.process.host.kind + versions.lacks(self.fleet.config, self.process.node)

    def _tell_leave(self) -> None:
        self._is_told_to_leave = True
        self._bell.set()

    def _start(self, op: Op) -> None:
        self._ops.append(op)
        self._bell.set()

    async def _serve(self, tasks: TaskGroup) -> None:
        """Start what comes, until told to leave."""
        while not self._is_told_to_leave:
            while self._ops:
                tasks.start_soon(self._do, self._ops.popleft())
            self._bell = anyio.Event()
            await self._bell.wait()
        if "calls" not in self.fleet.config.shapes:
            tasks.cancel_scope.cancel()
            return
        for op in self.fleet.last_calls():
            tasks.start_soon(self._do, op)

    async def _do(self, op: Op) -> None:
        self._going += 1
        try:
            await op(self)
        finally:
            self._going -= 1

    async def _be_answered(self) -> None:
        """Wait until whatever was asked of the node has been answered, as it should be at once."""
        with anyio.move_on_after(ANSWER_S):
            while True:
                if not self._going:
                    return
                await anyio.sleep(ANSWER_S / 10)

    async def main(self) -> None:
        """Be a service: open a node, try again if that fails, leave when told to."""

        def moved(lane: str) -> None:
            self.record("moved", extra={"lane": lane})

        config = self.fleet.config
        pages = pages_of(config, self.process.node)
        io = SimIO(self.process, self.fleet.server, pages, moved)
        self.fleet.seams[io] = self
        self._bell = anyio.Event()
        while not self._is_told_to_leave:
            node = Node(
                POOL,
                APART if "apart" in config.shapes else URL,
                handlers=self._handlers(),
                settings=settings_of(config, self.process.node),
                capacity=config.capacity,
                label=self.process.node,
                version=self._version,
                observers=(self._observe,),
                _io=io,
            )
            self.current, self.is_abandoning = node, False
            try:
                async with anyio.create_task_group() as calls:
                    async with node:
                        self._added.clear()
                        for _ in range(config.workers - 1):
                            await self._add_worker(node)
                        self.node = node
                        async with self.fleet.programs.running(self, node):
                            await self._serve(calls)
                        self.node = None
                    await self._be_answered()
                    self.is_abandoning = True  # who is not answered now never is
                    calls.cancel_scope.cancel()
            except* PoolError as group:
                error = group.exceptions[0]
                self.node = None
                self.record("event", extra={"event": "node.failed", "error": str(error)})
                await anyio.sleep(io.dice.uniform(0.1, 0.5))
        self.record("leave")
        self.fleet.on_left(self)

    def _observe(self, said: Said) -> None:
        if self.process.is_dead:
            return  # what is torn apart does nothing: a hunt's answer would stand behind its log
        self._tell(said)
        # `loop.hung` comes in a thread of its own, beside the loop.
        if "observers" in self.fleet.config.shapes and said.event != "loop.hung":
            match self._dice.random():
                case x if x < 0.1:
                    raise RuntimeError("an observer, as planned")
                case x if x < 0.2:
                    self.block("observer", self._dice.uniform(0.0, _SEEN_S))

    def block(self, kind: str, ttls: float) -> None:
        """Hang its loop from now on, as whoever calls something that blocks does."""
        if self.process.is_running:
            self.fleet.faults.block(kind, self.process, ttls * self.fleet.config.ttl_s)

    def _tell(self, said: Said) -> None:
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
        handlers.job("after", **retries)(self._after)
        handlers.job("limited", timeout_s=LIMIT_S, **retries)(self._limited)
        handlers.service(
            "feed", backoff_s=BACKOFF_S, backoff_max_s=BACKOFF_MAX_S, retention_s=600.0
        )(self._feed)
        handlers.job("poison", **retries)(self._poison)
        handlers.job("timed", **retries)(self._timed)
        if "versions" in self.fleet.config.shapes:
            lacked = versions.lacks(self.fleet.config, self.process.node)
            versions.add_to(handlers, self._work, lacked, **retries)
        if self.fleet.planned.is_there:
            again: Any = {"backoff_s": BACKOFF_S, "backoff_max_s": BACKOFF_MAX_S}
            kept = handlers.service(planned.HANDLER, **again)(self._kept)
            self.fleet.planned.add_to(handlers, self.record, kept)
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

    async def _after(self, job: Job, told: Any, idem: str, plan: Plan) -> list[Any]:
        who = self._begun(job, idem, plan, attempts_max=ATTEMPTS_MAX, told=told)
        return await self._run(job, plan, who)

    async def _timed(self, job: Job) -> None:
        who = self._begun(job, job.id, TIMED, attempts_max=ATTEMPTS_MAX)
        try:
            await anyio.sleep(TIMED["s"])
        except anyio.get_cancelled_exc_class():
            self.record("end", "fail", err="cancelled", **who)
            raise
        self.record("end", **who)

    async def _kept(self, job: Job, key: str, version: int) -> None:
        """Run for ever, as a plan wants it."""
        goes_on = {"outlives": True} if self.fleet.config.on_store_loss == "continue" else {}
        who = self._begun(job, job.id, planned.plan_for(key, version), **goes_on)
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            await self._cling()
            self.record("end", "fail", err="cancelled", **who)
            raise

    async def _poison(self, job: Job, idem: str, plan: Plan) -> None:
        """End the process, whatever else runs in it: at once, or when it has been acknowledged."""
        who = self._begun(job, idem, plan, attempts_max=ATTEMPTS_MAX, poison=True)
        if plan["s"]:
            try:
                await anyio.sleep(plan["s"])
            except anyio.get_cancelled_exc_class():
                self.record("end", "fail", err="cancelled", **who)
                raise
        self.fleet.die(self, "poison", plan["down_s"], job.id)
        await anyio.sleep_forever()

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
            for number in range(plan.get("steps", 0)):
                await job.progress(number, plan["steps"])
                raises = plan["how"] == "raise" and job.attempt <= plan["fails"]
                await self._step(job, f"s{number}", who, raises=raises and job.attempt == number)
            for token, key, added in plan.get("adds", ()):
                job.then(Follower("work", key, token, added))
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
                    case "block":
                        self.block("block", plan["blocks"])
                        await anyio.sleep(0.0)
                    case "shared":
                        await self._wait_with_others(job)
                    case "raise":
                        raise RuntimeError("as planned")
                    case how:
                        self._misbehave(how, who)
                        await anyio.sleep(0.01)  # who cancelled himself is, here
        except anyio.get_cancelled_exc_class():
            is_own = "is_own" in who or (self._shared is not None and self._shared.cancelled())
            if not is_own:
                await self._cling()
            who.pop("is_own", None)
            self.record("end", "fail", err="error" if is_own else "cancelled", **who)
            raise
        except (Retry, Park, Cancel) as error:
            self.record("end", "fail", err=type(error).__name__.lower(), **who)
            raise
        except BaseException as error:
            if not isinstance(error, GeneratorExit) or error.args:  # else it is thrown away
                self.record("end", "fail", err="error", **who)
            raise
        is_late = who.pop("is_own", False)
        if is_late:  # it cancels itself when nothing is left to be cancelled
            cancel_oneself()
        taken = self.fleet.resource.takes(job.key, job.epoch)
        self.record("effect", "ok" if taken else "fail", **who)
        self.record("end", **who)
        return [who["idem"], job.epoch, job.attempt]

    async def _step(self, job: Job, name: str, who: dict[str, Any], *, raises: bool) -> None:
        """Do a step, whose result tells all calls of its function apart, or fail within it."""

        async def call(step: Step) -> list[Any]:
            self.record("step", "invoke", **self._with(who, step=name, skey=step.key))
            await anyio.sleep(0.001)
            if raises:
                raise RuntimeError("as planned")
            self._calls += 1
            return [self.process.name, self._calls]

        result = await job.once(name, call)
        self.record("step", result=result, **self._with(who, step=name))

    def _with(self, who: dict[str, Any], **extra: Any) -> dict[str, Any]:
        return {**who, "extra": {**who["extra"], **extra}}

    def _misbehave(self, how: str, who: dict[str, Any]) -> None:
        """End as nobody should; cancelling oneself is a matter of asyncio's tasks."""
        is_asyncio = self.process.host.kind == "asyncio"
        match how:
            case "exit":
                raise SystemExit(3)
            case "generator":
                raise GeneratorExit("as planned")
            case "group":
                raise BaseExceptionGroup("as planned", [Odd(), RuntimeError("as planned")])
            case "interrupt" if who["job"] not in self.fleet.interrupted:
                # Once: who cannot be told from Ctrl-C is released, and its attempt not burned.
                self.fleet.interrupted.add(who["job"])
                self.fleet.faults.excuse("interrupt", self.process.node, self.fleet.config.ttl_s)
                self.process.is_interrupted = True
                raise KeyboardInterrupt
            case "cancelled" if is_asyncio:
                who["is_own"] = True
                raise CancelledError
            case "self-cancel" if is_asyncio:
                who["is_own"] = True
                cancel_oneself()
            case "open" | "open-shield":  # a scope is left, and what runs there next is inside it
                scope = anyio.CancelScope(shield=how == "open-shield")
                scope.__enter__()
                scope.cancel()
                raise Odd
            case "late-cancel" if is_asyncio:
                who["is_own"] = True
            case _:
                raise Odd

    async def _wait_with_others(self, job: Job) -> None:
        """Wait for what other jobs wait for, too: who of them is cancelled takes it from all."""
        if self.process.host.kind == "trio":
            raise Odd
        if self._shared is None or self._shared.done():
            self._shared = shared_future(1.0)
        if len(job.key) % 2:  # half of them are impatient
            self.process.after(0.3, self._shared.cancel)
        await self._shared

    async def _feed(self, job: Job, idem: str, plan: Plan) -> None:
        goes_on = {"outlives": True} if self.fleet.config.on_store_loss == "continue" else {}
        who = self._begun(job, idem, plan, **goes_on)
        saves = plan.get("saves", "")
        heard: list[int] = (job.state or []) if saves else []
        if saves:
            self.record("state", "info", **self._with(who, heard=list(heard)))
        try:
            async for note in job.notifications():
                self.record("note", **self._with(who, seq=note["seq"]))
                if saves:
                    heard.append(note["seq"])
                    await self._save(job, saves, heard, who)
                else:
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
        except NotOwner:  # a save found that the run was ended from outside
            self.record("end", "fail", err="cancelled", **who)
            raise
        except BaseException as error:
            if not isinstance(error, GeneratorExit):  # else it is thrown away
                self.record("end", "fail", err="error", **who)
            raise

    async def _save(self, job: Job, how: str, heard: list[int], who: dict[str, Any]) -> None:
        """Save what was heard; the last is waited for now and then."""
        if how == "soon" and len(heard) % 5:
            job.save_soon(heard)
            return
        try:
            await job.save(heard)
        except StorageFull:
            return
        self.record("state", **self._with(who, heard=list(heard)))

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
        self.seams: dict[SimIO, Boot] = {}
        self.names: Sequence[str] = [f"n{number}" for number in range(config.nodes)]
        self.boots: dict[str, Boot | None] = dict.fromkeys(self.names)
        self.clings_until_s = dict.fromkeys(self.names, 0.0)
        self.faults: Any = None  # who writes down what hurts; given when there is one
        self.programs = Programs(config, world)
        self.planned = planned.Planned(config, world)
        self.is_closing = False
        self.last_calls: Callable[[], Sequence[Op]] = tuple  # what is asked of those who leave
        self.interrupted: set[str] = set()  # jobs that raised KeyboardInterrupt
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
        self._driver("boot", p=process.name)
        process.on_end = lambda: self.world.after(0.0, self._ended_oddly, boot)
        process.on_exit = lambda code: self._exited(boot, code, self.config.ttl_s / 10)
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
        boot.process.kill()
        self._exited(boot, -9, down_s)

    def die(self, boot: Boot, kind: str, down_s: float, by: str) -> None:
        """End a process from inside of it, at once."""
        self.faults.excuse(kind, boot.process.node, down_s, by)
        self.crash(boot.process.node, down_s)

    def _exited(self, boot: Boot, code: int, down_s: float) -> None:
        name = boot.process.node
        if self.boots[name] is not boot:
            return
        self.boots[name] = None
        self.server.hang_up(boot.process)
        if code > 0:  # its own decision: the checker knows when that is right
            self.faults.excuse("exit", name, down_s)
        self._driver("exit", p=boot.process.name, result=code)
        self.world.after(down_s, self.start, name)

    def _ended_oddly(self, boot: Boot) -> None:
        """Its main task has ended; where it had not been told to, that is an exit, too."""
        if not boot.process.is_dead and not boot.is_left:
            boot.process.kill()
            self._exited(boot, 1, self.config.ttl_s / 10)

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
        boot.is_left = True
        name = boot.process.node
        self.world.after(0.0, self._ended, name, boot)

    def _ended(self, name: str, boot: Boot) -> None:
        if self.boots[name] is boot:
            self.boots[name] = None
            self._driver("exit", p=boot.process.name, result=0)
            self.world.after(boot.down_s, self.start, name)

    def alive(self) -> list[str]:
        """Return the identities that living processes have in their lanes."""
        names: list[str] = []
        for boot in self.boots.values():
            node = boot.current if boot is not None else None
            if node is not None and node._wiring is not None:
                for lane in node._wiring.membership.identities():
                    names += lane
        return names

    def open_boots(self) -> list[Boot]:
        """Return those that can be asked to do something."""
        return [boot for boot in self.boots.values() if boot is not None and boot.is_open]
