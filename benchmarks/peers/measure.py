"""The measurements: one procedure for every peer.

    dispatch | drain by 1 | drain by 2 | latencies and load | at rest | recovery

Each takes a server, a client process and worker processes of its own (`stage.py`).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs

from benchmarks.peers.protocol import CALLERS
from benchmarks.peers.stage import Peer, Stage, free_port
from benchmarks.probe import Probe, Usage
from benchmarks.report import latency
from pool.redis.embedded.server import EmbeddedServer, ServerProgram

SHARES: Final = (25, 50, 75)  # % of the measured capacity


@attrs.frozen(kw_only=True)
class Sizes:
    """How much of everything."""

    repeats: int = 5
    drain_s: float = 0.7  # a drain has as many jobs as take about that long
    jobs_min: int = 500
    jobs_max: int = 30_000
    samples: int = 200
    samples_s: float = 1.25  # fewer samples rather than longer
    open_s: float = 0.75
    alone_s: float = 15.0  # since the client ended; longer than ours is remembered
    rest_s: float = 10.0
    running: tuple[int, ...] = (20, 1_000)
    recovery_s: float = 120.0
    watch_s: float = 15.0  # after a recovery: whether a live job is started again


QUICK: Final = Sizes(
    repeats=1,
    drain_s=0.5,
    jobs_min=200,
    jobs_max=10_000,
    samples=60,
    samples_s=1.0,
    open_s=0.5,
    rest_s=5.0,
    running=(20,),
    recovery_s=20.0,
    watch_s=3.0,
)
TINY: Final = attrs.evolve(
    QUICK,
    drain_s=0.01,
    jobs_min=100,
    jobs_max=100,
    samples=10,
    alone_s=1.0,
    rest_s=1.0,
    watch_s=0.5,
)


@attrs.define
class Rounds:
    """Figures by repetition, so that each can be judged beside the others' of the same one."""

    repeats: int
    _values: dict[str, list[list[float]]] = attrs.field(init=False, factory=dict)

    def note(self, name: str, value: float, repetition: int) -> None:
        """Note a figure; of several in one repetition the median counts."""
        every = self._values.setdefault(name, [[] for _ in range(self.repeats)])
        every[repetition].append(value)

    def figures(self) -> dict[str, dict[str, Any]]:
        """Return each figure: of every repetition, None where it is missing, and of all."""
        found = {}
        for name, every in self._values.items():
            each = [statistics.median(values) if values else None for values in every]
            known = [value for value in each if value is not None]
            told = {"median": statistics.median(known), "min": min(known), "max": max(known)}
            found[name] = {**told, "each": each}
        return found


@attrs.define
class Bench:
    """One peer, over all repetitions."""

    program: ServerProgram
    peer: Peer
    sizes: Sizes
    rounds: Rounds
    repetition: int = 0  # which one is measured now
    _rate_per_s: float = attrs.field(init=False, default=0.0)

    @property
    def jobs(self) -> int:
        """How many jobs a drain has: chosen by what the drain before it reached."""
        wanted = int(self._rate_per_s * self.sizes.drain_s)
        return max(self.sizes.jobs_min, min(self.sizes.jobs_max, wanted))

    def note(self, name: str, value: float, repetition: int | None = None) -> None:
        """Note a figure, unless the peer says that this is not to be had from it."""
        if not self.peer.why_not(name):
            self.rounds.note(name, value, self.repetition if repetition is None else repetition)

    def note_samples(self, name: str, values: Sequence[float]) -> None:
        """Note the percentiles of one repetition, in microseconds."""
        timed = latency(values)
        for part, value in (("p50", timed.p50), ("p99", timed.p99), ("max", timed.max)):
            self.note(f"{name}_{part}_us", value)

    def stage(self, **given: Any) -> Stage:
        """Return a stage for this peer."""
        return Stage(self.program, self.peer, **given)

    # --- the measurements -------------------------------------------------------------------------

    def dispatch(self) -> None:
        """Nobody works yet.  What was dispatched is then drained: the rate sizes other drains."""
        ask = (("one_by_one", "dispatch_one", 5), ("callers", "dispatch_callers", 2))
        with self.stage() as stage:
            jobs = 0
            for do, name, part in ask:
                before = stage.probe.usage()
                told, numbers = stage.enqueue(do, max(self.jobs // part, self.sizes.jobs_min // 2))
                used = stage.probe.usage() - before
                jobs += len(numbers)
                self.note(f"{name}_per_s", len(numbers) / told["seconds"])
                if name == "dispatch_one":
                    self.note("dispatch_one_redis_cpu_us", used.cpu_us / len(numbers))
                    self.note("dispatch_one_commands", used.commands / len(numbers))
                    self.note("dispatch_one_round_trips", used.reads / len(numbers))
            stage.work()
            stage.wait_ended()
            starts_ns = sorted(stage.wait_started(range(jobs)).values())
            self._rate_per_s = 1e9 * jobs / (starts_ns[-1] - starts_ns[0])

    def drain(self, workers: int) -> None:
        """Queue all first; from the first handler entered until the last job has ended in Redis."""
        jobs, name = self.jobs, f"drain_{workers}"
        with self.stage(slots=(0,) * workers) as stage:
            stage.fill(CALLERS)  # every caller has its connection, every script is loaded
            before = stage.probe.usage()
            told, numbers = stage.fill(jobs)
            filled = stage.probe.usage() - before
            self.note("queued_job_bytes", stage.probe.keys_bytes() / numbers.stop)
            if self.peer.has_bulk:
                self.note("dispatch_bulk_per_s", jobs / told["seconds"])
            before = stage.probe.usage()
            stage.work()
            asked = stage.wait_ended()
            ended_ns = time.monotonic_ns()
            drained = stage.probe.usage() - before
            starts_ns = stage.wait_started(range(numbers.stop)).values()
            self._rate_per_s = 1e9 * numbers.stop / (max(ended_ns, *starts_ns) - min(starts_ns))
            self.note(f"{name}_per_s", self._rate_per_s)
            self.note("finished_job_bytes", stage.probe.keys_bytes() / numbers.stop)
            if workers > 1:
                return
            self.note("worker_cpu_us", 1e6 * stage.report(0)["cpu_s"] / numbers.stop)
            self.note("drain_redis_cpu_us", drained.cpu_us / numbers.stop)
            for cost, spent, more in (
                ("life_redis_cpu_us", filled.cpu_us, drained.cpu_us),
                ("life_commands", filled.commands, drained.commands - asked),
                ("life_round_trips", filled.reads, drained.reads - asked),
            ):  # what the callers' first jobs cost to drain was measured, to queue was not
                self.note(cost, spent / jobs + more / numbers.stop)

    def latencies(self) -> None:
        """How soon a job begins, and its end is known, when there is nothing else to do."""
        size = {"jobs": self.sizes.samples, "seconds": self.sizes.samples_s}
        with self.stage() as stage:
            stage.warm()
            told, numbers = stage.ask("start_latency", self.sizes.samples, **size)
            asked_ns = dict(zip(numbers, told["asked_ns"], strict=False))  # time may end it early
            starts_ns = stage.wait_started(asked_ns)
            self.note_samples("idle_start", [(starts_ns[n] - asked_ns[n]) / 1e3 for n in asked_ns])
        with self.stage(setting="results" if self.peer.results else "usual") as stage:
            stage.warm()
            told, _ = stage.ask("result_latency", self.sizes.samples, **size)
            self.note_samples("idle_result", told["latency_us"])

    def load(self) -> None:
        """Closed loop for the capacity; then open loop at shares of it, timed from when due."""
        with self.stage() as stage:
            stage.warm()
            told, numbers = stage.enqueue("callers", self.jobs)
            last_ns = max(stage.wait_started(numbers).values())
            rate_per_s = 1e9 * len(numbers) / (last_ns - told["began_ns"])
            self.note("capacity_per_s", rate_per_s)
            stage.wait_ended()
            for share in SHARES:
                rate, seconds = rate_per_s * share / 100, self.sizes.open_s
                told, numbers = stage.ask(
                    "open_loop", int(rate * seconds) + 1, rate_per_s=rate, seconds=seconds
                )
                due_ns = dict(zip(numbers, told["due_ns"], strict=False))
                starts_ns = stage.wait_started(due_ns)
                self.note_samples(
                    f"load_{share}", [(starts_ns[n] - due_ns[n]) / 1e3 for n in due_ns]
                )
                stage.wait_ended()


def raw(program: ServerProgram, note: Callable[[str, float], None], *, count: int) -> None:
    """Take the yardstick: what plain redis-py and the same kind of server do, over TCP too."""
    with EmbeddedServer.start(program, tcp_port=free_port()) as server:
        probe = Probe(server.url)
        try:
            spent_us = probe.xadd_one_by_one(count // 10)
            note("raw_one_by_one_per_s", 1e6 * len(spent_us) / sum(spent_us))
            timed = latency(spent_us)
            for part, value in (("p50", timed.p50), ("p99", timed.p99), ("max", timed.max)):
                note(f"raw_round_trip_{part}_us", value)
            measured: tuple[tuple[str, Callable[[int], tuple[float, float]]], ...] = (
                ("raw_pipelined", probe.xadd_pipelined),
                ("raw_50_connections", probe.xadd_clients),
            )
            for name, measure in measured:
                per_s, cpu_us = measure(count)
                note(f"{name}_per_s", per_s)
                note(f"{name}_redis_cpu_us", cpu_us)
        finally:
            probe.close()


# --- many at once ---------------------------------------------------------------------------------


@attrs.define
class Rest:
    """A worker with nothing to do, and nobody else there."""

    bench: Bench
    stage: Stage
    _began: tuple[float, Usage, float] | None = attrs.field(init=False, default=None)

    def prepare(self) -> None:
        """Have the worker run a few jobs, and the client end."""
        self.stage.warm()
        self.stage.client.kill()

    def begin(self, repetition: int) -> None:
        """Count from now on."""
        self.bench.repetition = repetition
        cpu_s = self.stage.report(0)["process_cpu_s"]
        self._began = time.monotonic(), self.stage.probe.usage(), cpu_s

    def end(self) -> None:
        """Note what it did."""
        assert self._began is not None
        began_s, before, cpu_s = self._began
        used, seconds = self.stage.probe.usage() - before, time.monotonic() - began_s
        spent_s = self.stage.report(0)["process_cpu_s"] - cpu_s
        self.bench.note("idle_calls_per_s", max(0, used.reads - 1) / seconds)
        self.bench.note("idle_cpu_percent", 100 * spent_s / seconds)


LIVE_STEP: Final = 5  # jobs at a time, until the survivor runs some
LIVE_STEPS: Final = 10
ROOM: Final = LIVE_STEP * LIVE_STEPS


@attrs.define
class Crash:
    """One worker is killed with all its slots in use; the other one has room for everything."""

    bench: Bench
    stage: Stage
    running: int
    metric: str
    repetition: int
    _killed_ns: int = attrs.field(init=False, default=0)
    _wanted: set[int] = attrs.field(init=False, factory=set)
    _live: set[int] = attrs.field(init=False, factory=set)
    _robbed: int = attrs.field(init=False, default=0)  # started at B while A lived and ran them
    _before: dict[int, int] = attrs.field(init=False, factory=dict)
    recovered_s: float | None = attrs.field(init=False, default=None)

    def prepare(self) -> None:
        """Have A run its jobs, then B some of its own."""
        stage = self.stage
        stage.work(0)
        _, warm = stage.enqueue("one_by_one", LIVE_STEP)
        stage.wait_started(warm, 0)
        before_bytes = stage.probe.keys_bytes()
        _, held = stage.enqueue("held", self.running)
        stage.wait_started(held, 0)
        if self.running == max(self.bench.sizes.running) and self.stage.setting == "usual":
            grown_bytes = stage.probe.keys_bytes() - before_bytes
            self._note("running_job_bytes", grown_bytes / self.running)
        self._wanted = set(held)
        stage.work(1)
        if self.running == self.bench.peer.running_max:
            return  # a job of its own would leave the survivor no room
        for _ in range(LIVE_STEPS):  # A may fetch more than it can run
            _, more = stage.enqueue("held", LIVE_STEP)
            self._wanted |= set(more)
            time.sleep(0.5)
            stage.report(1)
            if stage.started[1]:
                return

    def _note(self, name: str, value: float) -> None:
        self.bench.note(name, value, self.repetition)

    def kill(self) -> None:
        """Kill A."""
        self.stage.report(0)
        self.stage.report(1)
        at_a, at_b = self.stage.started
        self._before = {number: len(ns) for number, ns in at_b.items()}
        self._live = at_b.keys() & self._wanted
        self._robbed = len(at_a.keys() & at_b.keys())
        self._wanted -= self._live
        if not self._wanted:
            raise RuntimeError(f"a live worker lost its jobs: {self._robbed} were started again")
        self._killed_ns = time.monotonic_ns()
        self.stage.workers[0].kill()

    def look(self) -> bool:
        """Return whether all that A held has begun at B."""
        self.stage.report(1)
        began = self.stage.started[1]
        if self.recovered_s is None and self._wanted <= began.keys():
            last_ns = max(began[number][0] for number in self._wanted)
            self.recovered_s = (last_ns - self._killed_ns) / 1e9
        return self.recovered_s is not None

    @property
    def is_over(self) -> bool:
        """Tell whether no more is to be learned."""
        sizes, now_s = self.bench.sizes, (time.monotonic_ns() - self._killed_ns) / 1e9
        if self.recovered_s is None:
            return now_s > sizes.recovery_s
        return now_s > self.recovered_s + sizes.watch_s

    def end(self) -> dict[str, Any]:
        """Note what came of it; return the facts."""
        began = self.stage.started[1]
        twice = [n for n in self._live if len(began[n]) > self._before[n]]
        twice += [n for n in self._wanted if len(began.get(n, ())) > 1]
        if self.recovered_s is not None:
            self._note(self.metric, self.recovered_s)
        return {
            "repetition": self.repetition,
            "running": self.running,
            "live": len(self._live),
            "seconds": self.recovered_s,
            "not_in_s": self.bench.sizes.recovery_s if self.recovered_s is None else None,
            "missing": len(self._wanted - began.keys()),
            "live_started_again": len(twice) + self._robbed,
        }
