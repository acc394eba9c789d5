"""One process of a campaign, a node with handlers or a producer; its part is its only argument.

What happens is appended to the process's own history file, the effects of its handlers to the one
file that all share.  SIGTERM leaves the pool; SIGUSR1 has it say what it knows of the fleet.  A
producer takes commands on standard input, one JSON object a line.  Files tell the driver what it
waits for: `ready-P`, `members-P` and `finished-P`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Literal

import anyio
import anyio.to_thread
import attrs
import sniffio
import trio

from pool import (
    Handlers,
    Job,
    JobRef,
    Node,
    PoolError,
    ReplicatedMap,
    Retry,
    Settings,
    log_observer,
)
from pool.errors import JobCancelled, JobExists, JobParked, StoreUnavailable
from pool.events import Event
from pool.maps import Resync
from tests.verify.flows import GOES_ON_S, SCHEDULES, Flows, make
from tests.verify.history import TOTAL, Recorder, Sink, digest_of, file_sink

HEALED: Final = "healed"  # the file that says so: from then on only producers dispatch
START_FAILED: Final = 3  # exit code: the store was not there when the process began
ATTEMPTS = dict.fromkeys(("work", "after", "timed", "gather", "plain", "odd"), 4)
ATTEMPTS |= {"limited": 2, "hurt": 3, "poison": 5}
# How a handler may end beside returning and raising an Exception.
ODD: Final = (
    *("cancelled", "cancels-itself", "cancels-late", "shared", "exit", "generator", "base"),
    *("group", "unprintable"),
)
LIMIT_S = 0.5  # run-time limit of `limited`
KEYS = 150  # of jobs; a key that is live already refuses another job, and that is recorded too
SERVICES = 8
OUTSTANDING_MAX = 300  # jobs a producer waits for; more, and it holds its breath
SAMPLE_S = 2.0
SHARED: Final = "shared"  # a replicated map that every process writes and follows
WRITE_EVERY_S = 1.0
BATCH_EVERY_S = 1.5
HOLD_PER_S = 30_000_000  # terms that `sum` adds in a second without letting go of the interpreter


# --- the handlers ----------------------------------------------------------------------------


@attrs.define(eq=False)
class Witness:
    """Writes what handlers do."""

    record: Recorder
    effects: Sink
    cancelled: type[BaseException]  # the event loop's own; plain handlers run outside of it
    runs: int = 0
    faults: int = 0
    _lock: threading.Lock = attrs.field(factory=threading.Lock)  # plain handlers run in threads

    @contextmanager
    def running(
        self, job: Job, call: str, spec: Mapping[str, Any], **extra: Any
    ) -> Iterator[dict[str, Any]]:
        """Write that a handler has started and, whatever happens, how it has ended."""
        with self._lock:
            self.runs += 1
            run = self.runs
        about = self._about(job, call)
        attempts_max = ATTEMPTS.get(job.handler, 0)
        facts = {"run": run, "digest": digest_of(spec), "kind": job.kind, **extra}
        started = self.record("start", extra={**facts, "attempts_max": attempts_max}, **about)
        closing: dict[str, Any] = {"run": run}
        err = "error"
        try:
            yield closing
            err = ""
        except Retry as retry:
            err = "retry"
            closing["after_s"] = retry.after_s or 0.0
            raise
        except self.cancelled:
            if "odd" in extra:
                raise  # its own doing, unless something else of the history says otherwise
            limit = extra.get("timeout_s")
            err = "timeout" if limit and time.monotonic() - started.t >= limit else "cancelled"
            raise
        finally:
            self.record("end", "fail" if err else "ok", err=err, extra=closing, **about)

    def effect(self, job: Job, call: str) -> None:
        """Change something outside the pool, under the job's fencing token."""
        attrs.evolve(self.record, sink=self.effects)("effect", "info", **self._about(job, call))

    @contextmanager
    def fault(self, kind: str, does: str) -> Iterator[None]:
        """Write that a handler hurts its own process, and for how long."""
        self.faults += 1
        node = self.record.p.partition("/")[0]
        extra = {"id": f"{self.record.p}#{self.faults}", "kind": kind, "does": does, "target": node}
        self.record("fault", "invoke", extra=extra)
        try:
            yield
        finally:
            self.record("fault", "ok", extra=extra)

    @staticmethod
    def _about(job: Job, call: str) -> dict[str, Any]:
        return {
            "key": job.key,
            "job": job.id,
            "idem": call,
            "attempt": job.attempt,
            "epoch": job.epoch,
            "nonce": job.worker,
        }


def make_handlers(witness: Witness) -> Handlers:
    """Return the handlers of every worker: `work` as its payload says, and some that hurt."""
    handlers = Handlers()

    def done(job: Job, call: str, spec: Mapping[str, Any]) -> dict[str, Any]:
        witness.effect(job, call)
        pad = "x" * spec.get("bytes", 0)
        return {"call": call, "epoch": job.epoch, "attempt": job.attempt, "pad": pad}

    async def do(job: Job, call: str, spec: dict[str, Any], **extra: Any) -> dict[str, Any]:
        with witness.running(job, call, spec, **extra):
            await anyio.sleep(spec["ms"] / 1000)
            if job.attempt <= spec.get("fails", 0):
                if "after_s" in spec:
                    raise Retry(after_s=spec["after_s"])
                raise RuntimeError("as the payload says")
            return done(job, call, spec)

    retries: Any = {"backoff_s": 0.1, "backoff_max_s": 0.5}

    @handlers.job("work", attempts_max=ATTEMPTS["work"], **retries)
    async def work(job: Job, call: str, spec: dict[str, Any]) -> dict[str, Any]:
        return await do(job, call, spec)

    @handlers.job("after", attempts_max=ATTEMPTS["after"], **retries)
    async def after(job: Job, told: Any, call: str, spec: dict[str, Any]) -> dict[str, Any]:
        is_result = isinstance(told, dict)
        said = [told[name] for name in ("call", "epoch", "attempt")] if is_result else told
        return await do(job, call, spec, told=said)

    @handlers.job("timed", attempts_max=ATTEMPTS["timed"], **retries)
    async def timed(job: Job, spec: dict[str, Any]) -> dict[str, Any]:
        return await do(job, job.id, spec)

    @handlers.job("gather", attempts_max=ATTEMPTS["gather"], **retries)
    async def gather(job: Job, call: str, spec: dict[str, Any]) -> dict[str, Any]:
        with witness.running(job, call, spec):
            await make(job.node, witness.record, spec)
            return done(job, call, spec)

    @handlers.job(
        "limited", attempts_max=ATTEMPTS["limited"], timeout_s=LIMIT_S, backoff_s=0.1,
        backoff_max_s=0.5,
    )  # fmt: skip
    async def limited(job: Job, call: str, spec: dict[str, Any]) -> dict[str, Any]:
        with witness.running(job, call, spec, timeout_s=LIMIT_S):
            await anyio.sleep(spec["ms"] / 1000)
            return done(job, call, spec)

    @handlers.job("plain", attempts_max=ATTEMPTS["plain"], backoff_s=0.1, backoff_max_s=0.5)
    def plain(job: Job, call: str, spec: dict[str, Any]) -> dict[str, Any]:
        with witness.running(job, call, spec):
            threading.Event().wait(spec["ms"] / 1000)
            return done(job, call, spec)

    @handlers.job("hurt", attempts_max=ATTEMPTS["hurt"], backoff_s=0.1, backoff_max_s=0.5)
    async def hurt(job: Job, call: str, spec: dict[str, Any]) -> dict[str, Any]:
        with witness.running(job, call, spec, hurts=spec["how"]):
            if job.attempt == 1:
                await _hurt(witness, spec["how"], spec["ms"] / 1000)
            return done(job, call, spec)

    @handlers.job("poison", attempts_max=ATTEMPTS["poison"])
    async def poison(job: Job, call: str, spec: dict[str, Any]) -> None:
        with witness.running(job, call, spec, poison=True):
            if spec["ms"]:  # else before its acknowledgement could leave
                await anyio.sleep(spec["ms"] / 1000)
            with witness.fault("poison", "crash"):
                if spec.get("how") == "exit":
                    os._exit(9)
                os.kill(os.getpid(), signal.SIGKILL)
                await anyio.sleep_forever()

    @handlers.job("odd", attempts_max=ATTEMPTS["odd"], backoff_s=0.1, backoff_max_s=0.5)
    async def odd(job: Job, call: str, spec: dict[str, Any]) -> dict[str, Any]:
        with witness.running(job, call, spec, odd=spec["how"]):
            await anyio.sleep(spec["ms"] / 1000)
            if job.attempt == 1:
                await end_oddly(spec["how"])
            return done(job, call, spec)

    @handlers.service("follow", backoff_s=0.1, backoff_max_s=0.5)
    async def follow(job: Job, call: str, spec: dict[str, Any]) -> None:
        with witness.running(job, call, spec) as closing:
            async for note in job.notifications():
                extra = {"run": closing["run"], "seq": note["seq"]}
                witness.record("note", key=job.key, job=job.id, epoch=job.epoch, extra=extra)

    return handlers


class OddError(BaseException):
    """None of Python's own, and no Exception."""


class UnprintableError(Exception):
    """Its text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


async def end_oddly(how: str) -> None:
    """End as few handlers do: each way is a failed attempt of this job, and of no other."""
    match how:
        case "exit":
            sys.exit(3)
        case "generator":
            raise GeneratorExit
        case "base":
            raise OddError("not an Exception")
        case "group":
            raise BaseExceptionGroup("several", [OddError("one"), ValueError("two")])
        case "unprintable":
            raise UnprintableError
        case _:
            await _cancel_oddly(how)


async def _cancel_oddly(how: str) -> None:
    if sniffio.current_async_library() == "trio":
        # What belongs to a scope that has ended already: trio has no other way to get hold of one.
        kept: BaseException | None = None
        with trio.CancelScope() as scope:
            scope.cancel()
            try:
                await trio.sleep_forever()
            except trio.Cancelled as error:
                kept = error
                raise
        assert kept is not None
        raise kept
    task = asyncio.current_task()
    assert task is not None
    match how:
        case "cancelled":
            other = asyncio.ensure_future(asyncio.sleep(60))
            other.cancel()
            await other
        case "cancels-itself":
            task.cancel()
            await asyncio.sleep(60)
        case "cancels-late":
            task.cancel()  # and returns before it is delivered
        case "shared":
            shared: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(shared.cancel)
            await shared


async def _hurt(witness: Witness, how: str, seconds: float) -> None:
    match how:
        case "block":
            with witness.fault("block-loop", "pause"):
                threading.Event().wait(seconds)
        case "hold":
            with witness.fault("hold-gil", "pause"):
                sum(range(int(seconds * HOLD_PER_S)))
        case "swallow":
            with witness.fault("swallow-cancel", "stubborn"):
                until = time.monotonic() + seconds
                while (left := until - time.monotonic()) > 0:
                    with anyio.CancelScope(shield=True):
                        await anyio.sleep(left)


# --- producing -------------------------------------------------------------------------------


@attrs.define(eq=False)
class Producer:
    """Dispatches jobs of many sorts, keeps services alive, and waits for every outcome."""

    node: Node
    record: Recorder
    dice: random.Random
    per_s: float
    serves: bool  # it keeps the services, and notifies them
    has_flows: bool  # and asks for followers and batches, and keeps schedules
    _calls: int = 0
    _going: int = 0
    _is_finishing: bool = False
    _services: dict[str, JobRef[Any]] = attrs.field(factory=dict)
    _flows: Flows = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._flows = Flows(self.node, self.record, random.Random(f"flows/{self.record.p}"))

    async def produce(self, commands: AsyncIterator[dict[str, Any]]) -> None:
        """Work until told to finish; return once everything accepted has ended."""
        over = anyio.Event()
        async with anyio.create_task_group() as keepers:
            async with anyio.create_task_group() as tasks:
                if self.serves:
                    for number in range(SERVICES):
                        keepers.start_soon(self._keep, f"svc-{number}")
                        keepers.start_soon(self._notify, f"svc-{number}")
                    for name in SCHEDULES if self.has_flows else ():
                        tasks.start_soon(self._flows.keep, name, over)
                tasks.start_soon(self._stream, tasks)
                if self.has_flows:
                    tasks.start_soon(self._batches, tasks)
                async for command in commands:
                    if command["do"] == "finish":
                        self._is_finishing = True
                        break
                    for spec in command["specs"]:
                        tasks.start_soon(self._one, command["handler"], spec)
                await anyio.sleep(GOES_ON_S if self.has_flows else 0.0)
                over.set()
            keepers.cancel_scope.cancel()

    async def _stream(self, tasks: anyio.abc.TaskGroup) -> None:
        while not self._is_finishing:
            await anyio.sleep(self.dice.expovariate(self.per_s))
            if self._going < OUTSTANDING_MAX:
                tasks.start_soon(self._one, *self._drawn())

    async def _batches(self, tasks: anyio.abc.TaskGroup) -> None:
        """Make batches: by jobs, which are run again where their worker dies, and by oneself."""
        for number in range(sys.maxsize):
            await anyio.sleep(self.dice.expovariate(1 / BATCH_EVERY_S))
            if self._is_finishing:
                return
            name = f"b-{self.record.p.replace('/', '-')}-{number}"
            plan = self._flows.batch(name, KEYS)
            if number % 3:
                tasks.start_soon(self._one, "gather", plan)
                continue
            try:
                await make(self.node, self.record, plan)
            except PoolError as error:
                self.record("event", extra={"event": "refused", "error": error.code})

    async def one_more(self) -> None:
        """Dispatch one job, and wait for its outcome."""
        await self._one(*self._drawn())

    def _drawn(self) -> tuple[str, dict[str, Any]]:
        dice = self.dice
        spec: dict[str, Any] = {"ms": round(dice.expovariate(1 / 40))}
        match dice.random():
            case x if x < 0.04:
                return "limited", {"ms": dice.choice([10, 900])}
            case x if x < 0.08:
                return "plain", {"ms": dice.randrange(60)}
            case x if x < 0.14:
                spec["fails"] = dice.choice([1, 1, 2, 9])
                if dice.random() < 0.5:
                    spec["after_s"] = round(dice.uniform(0.05, 0.6), 3)
            case x if x < 0.18:
                spec["ms"] = dice.randrange(500, 2500)
            case x if x < 0.21:
                spec["delay_s"] = round(dice.uniform(0.1, 1.5), 3)
            case x if x < 0.24:
                spec["stop_after_s"] = round(dice.uniform(0.0, 0.3), 3)
                spec["ms"] = 400
            case x if x < 0.28:
                spec["bytes"] = dice.choice([2_000, 30_000])
            case x if x < 0.32:
                # Its end may fall into a freeze that began after its start: only such a job can be
                # settled by the owner that thaws while the new one still runs it.
                spec["ms"] = dice.randrange(3_000, 7_000)
        return "work", spec

    async def _one(self, handler: str, spec: dict[str, Any]) -> None:
        """Dispatch a job, and wait for its outcome."""
        key = spec.get("key") or f"k{self.dice.randrange(KEYS)}"
        self._going += 1
        try:
            ref = await self._dispatch(handler, key, spec)
            if ref is not None:
                async with anyio.create_task_group() as tasks:
                    if "stop_after_s" in spec:
                        tasks.start_soon(self._stop, ref, spec["stop_after_s"])
                    await self._outcome(ref)
        finally:
            self._going -= 1

    async def _dispatch(
        self,
        handler: str,
        key: str,
        spec: Mapping[str, Any],
        kind: str = "job",
        if_exists: Literal["reject", "attach"] = "reject",
    ) -> JobRef[Any] | None:
        self._calls += 1
        call = f"{self.record.p}:{self._calls}"
        extra = {"digest": digest_of(spec), "kind": kind, "handler": handler}
        if delay_s := spec.get("delay_s", 0.0):
            extra["delay_s"] = delay_s
        about: dict[str, Any] = {"key": key, "idem": call, "extra": extra}
        is_followed = self.has_flows and handler == "work"
        followers = self._flows.followers(call) if is_followed else {}
        self.record("dispatch", "invoke", **about)
        try:
            node = self.node.options(
                delay_s=delay_s, if_exists=if_exists, attach_any=True, **followers
            )
            ref = await node.dispatch(handler, key, call, spec)
        except JobExists:
            self.record("dispatch", "fail", err="POOLEXISTS", **about)
            return None
        except StoreUnavailable as error:
            self.record("dispatch", "info" if error.maybe_done else "fail", err=error.code, **about)
            return None
        except PoolError as error:
            self.record("dispatch", "fail", err=error.code, **about)
            return None
        self.record("dispatch", job=ref.job_id, **about)
        return ref

    async def _outcome(self, ref: JobRef[Any]) -> str:
        """Wait until the job has ended, however often the store is away; returns the error."""
        about = {"key": ref.key, "job": ref.job_id}
        while True:
            try:
                value = await ref.result()
            except StoreUnavailable as error:
                self.record("result", "info", err=error.code, **about)
                await anyio.sleep(0.3)
                continue
            except (JobParked, JobCancelled) as error:
                self.record("result", "fail", err=error.code, **about, extra={"cause": error.cause})
                return error.code
            except PoolError as error:
                self.record("result", "fail", err=error.code, **about)
                return error.code
            self.record("result", result=value, **about)
            return ""

    async def _stop(self, ref: JobRef[Any], after_s: float) -> None:
        await anyio.sleep(after_s)
        about = {"key": ref.key, "job": ref.job_id}
        self.record("cancel", "invoke", **about)
        try:
            await ref.stop("the producer says so", timeout_s=5.0)
        except PoolError as error:
            self.record("cancel", "info", err=error.code, **about)
        else:
            self.record("cancel", **about)

    async def _keep(self, key: str) -> None:
        """Have a service under this key, whatever is lost."""
        while True:
            # One whose dispatch had an unknown outcome may be there already.
            ref = await self._dispatch("follow", key, {"ms": 0}, "service", "attach")
            if ref is not None:
                self._services[key] = ref
                await self._outcome(ref)
                self._services.pop(key, None)
            await anyio.sleep(0.1)

    async def _notify(self, key: str) -> None:
        for seq in range(1, sys.maxsize):
            await anyio.sleep(self.dice.expovariate(4.0))
            ref = self._services.get(key)
            if self._is_finishing or ref is None:
                continue
            about: dict[str, Any] = {"key": key, "job": ref.job_id, "extra": {"seq": seq}}
            self.record("notify", "invoke", **about)
            try:
                await self.node.notify(key, {"seq": seq})
            except StoreUnavailable as error:
                self.record("notify", "info" if error.maybe_done else "fail", **about)
            except PoolError as error:
                self.record("notify", "fail", err=error.code, **about)
            else:
                self.record("notify", **about)


# --- a map that all share --------------------------------------------------------------------


@attrs.define(eq=False)
class Sharing:
    """Writes into the map, and writes down what this process's copy goes through."""

    shared: ReplicatedMap[str]
    record: Recorder
    dice: random.Random
    cancelled: type[BaseException]
    is_quiet: bool = False  # the campaign is over: what is in the map now stays

    async def write(self) -> None:
        """Overwrite the own key and add to the common one, again and again."""
        own = self.record.p.partition("/")[0]
        for number in range(1, sys.maxsize):
            await anyio.sleep(self.dice.expovariate(1 / WRITE_EVERY_S))
            if self.is_quiet:
                return
            if number % 2:
                await self._write(own, f"{self.record.p}:{number}")
            else:
                await self._write(TOTAL, "")

    async def _write(self, key: str, value: str) -> None:
        about: dict[str, Any] = {"key": key, "extra": {"value": value}}
        self.record("map", "invoke", **about)
        try:
            if key == TOTAL:
                revision = (await self.shared.increment(key)).revision
            else:
                revision = (await self.shared.set(key, value)).revision
        except self.cancelled:
            self.record("map", "info", err="CANCELLED", **about)
            raise
        except StoreUnavailable as error:
            self.record("map", "info" if error.maybe_done else "fail", err=error.code, **about)
        except PoolError as error:
            self.record("map", "fail", err=error.code, **about)
        else:
            self.record("map", key=key, extra={"value": value, "revision": revision})

    async def follow(self) -> None:
        """Write down every change as it comes."""
        with self.shared.watch() as changes:
            async for change in changes:
                if isinstance(change, Resync):
                    self.record("seen", "info", extra={"revision": change.revision})
                else:
                    extra = {"revision": change.revision, "value": change.new}
                    self.record("seen", key=change.key, extra=extra)


# --- the process -----------------------------------------------------------------------------


def observer(record: Recorder) -> Any:
    """Return what writes the node's events into the history."""

    def note(event: Event) -> None:
        facts = attrs.asdict(event)
        match event.event:
            case "worker.reaped":
                extra = {"keys": facts["keys"], "lane": facts["lane"]}
                record("reap", nonce=facts["identity"], extra=extra)
            case "commit.refused":
                refused = {"key": facts["key"], "epoch": facts["epoch"], "err": facts["answer"]}
                record("commit", "fail", **refused)
            case name:
                facts = {k: v if len(str(v)) < 4000 else str(v)[:4000] for k, v in facts.items()}
                record("event", key=str(facts.get("key", "")), extra={"event": name, **facts})

    return note


async def _sample(record: Recorder) -> None:
    """Say again and again how much this process uses."""
    while True:
        with suppress(OSError):  # it may have no descriptor left, on purpose
            sample = {**usage(), "tasks": len(anyio.get_running_tasks())}
            record("event", extra={"event": "process.sampled", **sample})
        await anyio.sleep(SAMPLE_S)


def usage() -> dict[str, int]:
    """Return what this process uses, as Linux tells it."""
    of = Path("/proc/self")
    status = dict(line.split(":", 1) for line in (of / "status").read_text().splitlines())
    return {
        "rss_kb": int(status["VmRSS"].split()[0]),
        "threads": int(status["Threads"]),
        "descriptors": sum(1 for _ in (of / "fd").iterdir()),
    }


def deafen() -> None:
    """Let standard output be a pipe that is full, and that nobody reads."""
    _reading, writing = os.pipe()
    os.set_blocking(writing, False)
    try:
        while True:
            os.write(writing, bytes(4096))
    except BlockingIOError:
        os.set_blocking(writing, True)
    # The other end stays open: else writing would fail, and not block.
    os.dup2(writing, sys.stdout.fileno())


async def _call_until_closed(node: Node, cast: dict[str, Any], record: Recorder) -> None:
    """Dispatch and wait from a node that will leave: every call must return."""
    dice = random.Random(cast["seed"] + 1)
    has_flows = cast["has_flows"]
    caller = Producer(node, record, dice, cast["calls_per_s"], serves=False, has_flows=has_flows)
    async with anyio.create_task_group() as tasks:
        healed = anyio.Path(cast["directory"]) / HEALED
        while node.state in ("open", "troubled") and not await healed.exists():
            await anyio.sleep(dice.expovariate(cast["calls_per_s"]))
            tasks.start_soon(caller.one_more)


async def _commands() -> AsyncIterator[dict[str, Any]]:
    while line := await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
        yield json.loads(line)


@asynccontextmanager
async def _told_to_leave(
    node: Node, record: Recorder, say: Any, sharing: Sharing
) -> AsyncIterator[anyio.Event]:
    """Obey signals while the body runs; the event is set by SIGTERM."""
    leave = anyio.Event()

    async def listen(*, task_status: Any) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGUSR1) as signals:
            task_status.started()
            async for number in signals:
                if number == signal.SIGTERM:
                    leave.set()
                else:
                    known = [info.id for info in node.workers]
                    mine = [info.id for info in node.workers if info.node == node.id]
                    sharing.is_quiet = True
                    facts = {"workers": known, "live": [node.id, *mine]}
                    record("members", extra={**facts, "shared": sharing.shared.snapshot()})
                    say("members")

    async with anyio.create_task_group() as tasks:
        await tasks.start(listen)
        tasks.start_soon(_sample, record)
        tasks.start_soon(sharing.follow)
        tasks.start_soon(sharing.write)
        yield leave
        tasks.cancel_scope.cancel()


async def _work(
    node: Node, cast: dict[str, Any], record: Recorder, say: Any, sharing: Sharing
) -> None:
    """Do this process's part until told to leave."""
    async with _told_to_leave(node, record, say, sharing) as leave:
        mine = [info.id for info in node.workers if info.node == node.id]
        for identity in (node.id, *mine):
            record("join", nonce=f"{identity}.1", extra={"worker": identity in mine})
        say("ready")
        if cast["role"] == "producer":
            dice = random.Random(cast["seed"])
            is_asked = cast["serves"], cast["has_flows"]
            producer = Producer(node, record, dice, cast["per_s"], *is_asked)
            await producer.produce(_commands())
            say("finished")
        await leave.wait()


async def main(cast: dict[str, Any]) -> int:
    """Join, work until told to leave, and return the exit code."""
    directory, p = Path(cast["directory"]), cast["p"]
    file_name = p.replace("/", "-")
    record = Recorder(p, file_sink(directory / f"{file_name}.jsonl"), time.monotonic)
    effects = file_sink(directory / "effects.jsonl")
    witness = Witness(record, effects, anyio.get_cancelled_exc_class())

    if cast["is_deaf"]:
        deafen()

    def say(what: str) -> None:
        (directory / f"{what}-{file_name}").touch()

    node = Node(
        cast["pool"],
        cast["url"],
        handlers=make_handlers(witness) if cast["role"] == "worker" else None,
        settings=Settings(**cast["settings"]),
        capacity=cast["capacity"],
        observers=(observer(record), *((log_observer,) if cast["is_deaf"] else ())),
    )
    async with anyio.create_task_group() as callers, AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(node)
            shared = await stack.enter_async_context(node.map(SHARED))
        except PoolError as error:
            record("event", extra={"event": "start.failed", "error": str(error)})
            return START_FAILED
        sharing = Sharing(shared, record, random.Random(cast["seed"]), witness.cancelled)
        if cast["calls_per_s"]:
            callers.start_soon(_call_until_closed, node, cast, record)
        await _work(node, cast, record, say, sharing)
    record("leave", "info")
    return 0


if __name__ == "__main__":
    os.setpriority(os.PRIO_PROCESS, 0, 0)  # the driver, which began this, stands above it
    told: dict[str, Any] = json.loads(sys.argv[1])
    code = anyio.run(main, told, backend=told["loop"])
    os._exit(code)  # a thread may still read standard input
