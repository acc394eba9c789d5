"""What is measured, what it is called, and what it has to be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal, TypeAlias

import attrs

from benchmarks.peers.environments import OURS

Results: TypeAlias = dict[str, Any]  # a whole run, as it is stored
BEST: Final = "the best peer"
BEST_ACKNOWLEDGED: Final = "the best peer that acknowledges"
_POPS: Final = "huey"  # a popped job is gone


@attrs.frozen
class Metric:
    """One row or column."""

    name: str
    title: str
    part: str  # of a run, by the name under which an error in it is noted
    more_is_better: bool = False
    yardstick: str = ""  # of the raw server


def _latencies(name: str, title: str, part: str) -> tuple[Metric, ...]:
    return tuple(
        Metric(f"{name}_{at}_us", f"{title} {at}, us", part, yardstick=f"raw_round_trip_{at}_us")
        for at in ("p50", "p99", "max")
    )


_CPU: Final = "raw_pipelined_redis_cpu_us"
_50: Final = "raw_50_connections_per_s"

GROUPS: Final[dict[str, tuple[Metric, ...]]] = {
    "Dispatch, jobs/s": (
        Metric("dispatch_one_per_s", "one by one", "dispatch", True, "raw_one_by_one_per_s"),
        Metric("dispatch_callers_per_s", "100 callers", "dispatch", True, _50),
        Metric("dispatch_bulk_per_s", "bulk", "drain 1", True, "raw_pipelined_per_s"),
    ),
    "Throughput, jobs/s": (
        Metric("drain_1_per_s", "drain, 1 process", "drain 1", True, _50),
        Metric("drain_2_per_s", "drain, 2 processes", "drain 2", True, _50),
        Metric("capacity_per_s", "100 callers and 1 process", "load", True, _50),
    ),
    "Latency, idle": (
        *_latencies("idle_start", "to start", "latency"),
        *_latencies("idle_result", "to result", "latency"),
    ),
    "Latency from due to start, open loop": tuple(
        metric
        for share in (25, 50, 75)
        for metric in _latencies(f"load_{share}", f"{share} % load", "load")
    ),
    "Cost of a job": (
        Metric("worker_cpu_us", "worker CPU us", "drain 1"),
        Metric("life_redis_cpu_us", "Redis CPU us, filled at once", "drain 1", yardstick=_CPU),
        Metric("dispatch_one_redis_cpu_us", "of a dispatch alone", "dispatch", yardstick=_CPU),
        Metric("drain_redis_cpu_us", "of the drain", "drain 1", yardstick=_CPU),
        Metric("life_commands", "Redis commands", "drain 1"),
        Metric("life_round_trips", "round trips", "drain 1"),
        Metric("dispatch_one_commands", "commands, a dispatch alone", "dispatch"),
        Metric("dispatch_one_round_trips", "round trips, a dispatch alone", "dispatch"),
    ),
    "Redis bytes of a job": (
        Metric("queued_job_bytes", "queued", "drain 1"),
        Metric("running_job_bytes", "running", "recovery_1000"),
        Metric("finished_job_bytes", "finished", "drain 1"),
    ),
    "A worker at rest": (
        Metric("idle_calls_per_s", "calls/s", "rest"),
        Metric("idle_cpu_percent", "CPU %", "rest"),
    ),
    "Recovery after SIGKILL, s": tuple(
        Metric(f"recovery{infix}_{running}_s", f"{running:,} running, {what}", part)
        for infix, what in (("", "usual settings"), ("_safe", "soonest settings"))
        for running in (20, 1_000)
        for part in (f"recovery{infix}_{running}",)
    ),
}
METRICS: Final = {metric.name: metric for group in GROUPS.values() for metric in group}


def value_of(results: Results, name: str, metric: str) -> float | None:
    """Return the median of a peer's metric, if there is one."""
    peer = results["peers"].get(name, {"figures": {}})
    figure = peer["figures"].get(metric)
    return None if figure is None else float(figure["median"])


def each_of(results: Results, name: str, metric: str) -> list[float | None]:
    """Return a peer's metric in each repetition; None where there is no figure."""
    peer = results["peers"].get(name, {"figures": {}})
    none: list[float | None] = [None] * int(results["sizes"]["repeats"])
    return list(peer["figures"].get(metric, {"each": none})["each"])


def why_not(results: Results, name: str, metric: Metric) -> str:
    """Return why a peer has no such figure."""
    peer = results["peers"][name]
    errors, recovery = peer["errors"], peer["recoveries"].get(metric.part)
    for part in ("environment", metric.part):
        if part in errors:
            return f"failed: {errors[part].splitlines()[-1][:200]}"
    for part, why in peer["cannot"].items():
        if metric.name.startswith(part):
            return str(why)
    if recovery is not None and recovery[0]["seconds"] is None:
        return f"not in {recovery[0]['not_in_s']:g} s"
    return "not measured in this run"


def best(results: Results, metric: Metric, *, but: str = "") -> tuple[str, float] | None:
    """Return the best of the others and its figure."""
    found = {
        name: value
        for name in results["peers"]
        if name not in (OURS, but) and (value := value_of(results, name, metric.name)) is not None
    }
    if not found:
        return None
    choose = max if metric.more_is_better else min
    name = choose(found, key=found.__getitem__)
    return name, found[name]


# --- goals ----------------------------------------------------------------------------------------


@attrs.frozen
class Goal:
    """What a figure of ours has to be, beside another's of the same run or by itself."""

    title: str
    metrics: tuple[str, ...]  # of ours and theirs; of several the best one counts
    sign: Literal[">=", "<="]
    bound: float
    to: str = ""  # a peer, BEST, BEST_ACKNOWLEDGED; "": the figure itself


@attrs.frozen
class Judged:
    """A goal, and what came of it in each repetition."""

    goal: Goal
    each: Sequence[float | None]  # None: a figure is missing
    said: str

    @property
    def known(self) -> list[float]:
        """What was reached where there was a figure."""
        return [value for value in self.each if value is not None]

    @property
    def verdict(self) -> str:
        """Say whether every repetition met it; if not, how many did not, and by how much."""
        if not self.known:
            return "not measured"
        missed = [over for value in self.known if (over := self._over(value)) > 0]
        lacking = len(self.each) - len(self.known)
        if not (missed or lacking):
            return "met"
        told = f"**missed** in {len(missed) + lacking} of {len(self.each)}"
        if missed:
            whole = self.goal.bound / 100 or 1.0
            least, most = (_short(over / whole) for over in (min(missed), max(missed)))
            told += f", by {most if least == most else f'{least} to {most}'}"
            told += " %" if self.goal.bound else ""
        return told + (f"; {lacking} without a figure" if lacking else "")

    def _over(self, value: float) -> float:
        return self.goal.bound - value if self.goal.sign == ">=" else value - self.goal.bound


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


GOALS: Final = (
    Goal("drain, 1 process", ("drain_1_per_s",), ">=", 2.0, "huey"),
    Goal("drain, 1 process", ("drain_1_per_s",), ">=", 3.0, BEST_ACKNOWLEDGED),
    Goal("drain, 2 processes", ("drain_2_per_s",), ">=", 1.5, "dramatiq"),
    Goal(
        "dispatch, bulk or 100 callers",
        ("dispatch_bulk_per_s", "dispatch_callers_per_s"),
        ">=",
        3.0,
        "bullmq",
    ),
    Goal("dispatch, one by one", ("dispatch_one_per_s",), ">=", 1.0, "saq"),
    Goal("idle dispatch to start, p50", ("idle_start_p50_us",), "<=", 0.75, "taskiq"),
    Goal("idle dispatch to start, p99", ("idle_start_p99_us",), "<=", 1.0, "huey"),
    Goal("idle dispatch to result, p50", ("idle_result_p50_us",), "<=", 0.9, "huey"),
    Goal("idle dispatch to result, p99", ("idle_result_p99_us",), "<=", 1.0, "huey"),
    Goal("worker CPU per job", ("worker_cpu_us",), "<=", 0.6, "huey"),
    Goal("Redis CPU per job, batched: us", ("life_redis_cpu_us",), "<=", 45.0),
    Goal("Redis bytes per queued job", ("queued_job_bytes",), "<=", 350.0),
    Goal("recovery, 20 running", ("recovery_20_s",), "<=", 0.2, "streaq"),
    Goal("recovery, 1,000 running", ("recovery_1000_s",), "<=", 0.2, "streaq"),
    Goal("soonest recovery, 20 running", ("recovery_safe_20_s",), "<=", 1.0, "bullmq"),
    Goal("soonest recovery, 1,000 running", ("recovery_safe_1000_s",), "<=", 1.0, "bullmq"),
    Goal("at rest: calls/s", ("idle_calls_per_s",), "<=", 2.0),
    Goal("at rest: CPU %", ("idle_cpu_percent",), "<=", 0.5),
)


def judged(results: Results) -> Iterator[Judged]:
    """Yield every goal with what was reached."""
    for goal in GOALS:
        yield _judge(results, goal)
    yield _judge_redis_cpu(results)
    yield _judge_live(results)


def _judge(results: Results, goal: Goal) -> Judged:
    """Compare within each repetition; of several peers with the best one there."""
    first = METRICS[goal.metrics[0]]
    choose = max if first.more_is_better else min

    def of(names: Sequence[str]) -> list[float | None]:
        every = [each_of(results, name, metric) for name in names for metric in goal.metrics]
        known = [
            [value for each in every if (value := each[number]) is not None]
            for number in range(results["sizes"]["repeats"])
        ]
        return [choose(values) if values else None for values in known]

    if not goal.to:
        return Judged(goal, of([OURS]), f"{goal.sign} {goal.bound:g}")
    name, names = goal.to, [goal.to]
    if goal.to in (BEST, BEST_ACKNOWLEDGED):
        but = _POPS if goal.to == BEST_ACKNOWLEDGED else ""
        found = best(results, first, but=but)
        names = [each for each in results["peers"] if each not in (OURS, but)]
        name = f"{goal.to} ({found[0]})" if found else goal.to
    return Judged(goal, _ratios(of([OURS]), of(names)), f"{goal.sign} {goal.bound:g} x {name}")


def _ratios(ours: Sequence[float | None], theirs: Sequence[float | None]) -> list[float | None]:
    return [
        mine / other if mine is not None and other else None
        for mine, other in zip(ours, theirs, strict=True)
    ]


def _judge_redis_cpu(results: Results) -> Judged:
    """Ours in batches, against taskiq's streams one by one: it has no batches."""
    goal = Goal("Redis CPU per job, whole life", ("life_redis_cpu_us",), "<=", 1.0, "taskiq")
    parts = zip(
        each_of(results, "taskiq", "dispatch_one_redis_cpu_us"),
        each_of(results, "taskiq", "drain_redis_cpu_us"),
        strict=True,
    )
    theirs = [None if one is None or rest is None else one + rest for one, rest in parts]
    ours = each_of(results, OURS, "life_redis_cpu_us")
    return Judged(goal, _ratios(ours, theirs), "batched <= 1 x taskiq one by one")


def _judge_live(results: Results) -> Judged:
    goal = Goal("live jobs started again in any recovery", (), "<=", 0.0)
    again: list[float | None] = [None] * int(results["sizes"]["repeats"])
    for told in results["peers"].get(OURS, {"recoveries": {}})["recoveries"].values():
        for one in told:
            number = one["repetition"]
            again[number] = (again[number] or 0) + one["live_started_again"]
    return Judged(goal, again, "none")
