"""Figures of a run: collected, summed up, printed as tables or as JSON."""

from __future__ import annotations

import datetime
import os
import platform
import shutil
import statistics
import subprocess
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import attrs

import pool

RAW: Final = "raw_xadd_50_clients_per_s"
RAW_CPU: Final = "raw_xadd_pipelined_redis_cpu_us"
_PACKAGES: Final = ("redis", "hiredis", "anyio", "attrs", "structlog", "trio")


@attrs.frozen
class Table:
    """What is shown: each figure, what it is called, and the figure it is divided by, if any."""

    yardstick: str
    rows: tuple[tuple[str, str, str], ...]


JOBS_TABLE: Final = Table(
    "XADD",
    (
        ("raw_xadd_pipelined_per_s", "raw XADD /s, pipelined", ""),
        (RAW, "raw XADD /s, 50 connections", ""),
        (RAW_CPU, "raw XADD, pipelined: Redis CPU us", ""),
        ("dispatch_one_by_one_per_s", "dispatch /s, one awaited after another", RAW),
        ("dispatch_100_callers_per_s", "dispatch /s, 100 callers", RAW),
        ("dispatch_many_per_s", "dispatch /s, dispatch_many", RAW),
        ("drain_1_per_s", "drain /s, 1 worker process", RAW),
        ("drain_2_per_s", "drain /s, 2 worker processes", RAW),
        ("result_100_callers_per_s", "dispatch + result /s, 100 callers", RAW),
        ("dispatch_many_client_cpu_us", "dispatch_many: client CPU us/job", ""),
        ("drain_1_worker_cpu_us", "drain, 1 process: worker CPU us/job", ""),
        ("drain_2_worker_cpu_us", "drain, 2 processes: worker CPU us/job", ""),
        ("whole_life_redis_cpu_us", "Redis CPU us/job, whole life, bulk", RAW_CPU),
        ("dispatch_one_by_one_redis_cpu_us", "Redis CPU us, dispatch one by one", RAW_CPU),
        ("dispatch_many_redis_cpu_us", "Redis CPU us, dispatch_many", RAW_CPU),
        ("drain_1_redis_cpu_us", "Redis CPU us, drain", RAW_CPU),
        ("dispatch_one_by_one_round_trips", "round trips, dispatch one by one", ""),
        ("dispatch_many_round_trips", "round trips, dispatch_many", ""),
        ("drain_1_round_trips", "round trips, drain, 1 process", ""),
        ("drain_2_round_trips", "round trips, drain, 2 processes", ""),
        ("idle_result_round_trips", "round trips, idle, dispatch to result", ""),
        ("dispatch_many_commands", "Redis commands, dispatch_many", ""),
        ("drain_1_commands", "Redis commands, drain", ""),
        ("dispatch_many_bytes", "bytes on the wire, dispatch_many", ""),
        ("drain_1_bytes", "bytes on the wire, drain", ""),
        ("queued_job_bytes", "Redis bytes per queued job", ""),
        ("ended_job_bytes", "Redis bytes per ended job, till its result expires", ""),
        ("idle_commands_per_s", "node at rest: commands /s", ""),
        ("idle_cpu_percent", "node at rest: CPU %", ""),
    ),
)


@attrs.frozen(kw_only=True)
class Figure:
    """One figure over the repetitions."""

    median: float
    min: float
    max: float


@attrs.frozen(kw_only=True)
class Latency:
    """Many samples of one latency, in microseconds."""

    p50: float
    p99: float
    p999: float
    max: float
    samples: int


@attrs.define
class Report:
    """What was measured on one event loop."""

    loop: str
    table: Table
    _figures: dict[str, list[float]] = attrs.field(init=False, factory=dict)
    _samples: dict[str, list[float]] = attrs.field(init=False, factory=dict)

    def note(self, name: str, value: float) -> None:
        """Note one repetition of a figure."""
        self._figures.setdefault(name, []).append(value)

    def note_all(self, name: str, values: Sequence[float]) -> None:
        """Note the samples of a latency."""
        self._samples.setdefault(name, []).extend(values)

    def figures(self) -> dict[str, Figure]:
        """Return every figure."""
        return {
            name: Figure(median=statistics.median(values), min=min(values), max=max(values))
            for name, values in self._figures.items()
        }

    def latencies(self) -> dict[str, Latency]:
        """Return every latency."""
        return {name: latency(values) for name, values in self._samples.items()}

    def ratios(self) -> dict[str, float]:
        """Return the figures that mean something beside the yardstick of the same run."""
        found = self.figures()
        return {
            name: found[name].median / found[base].median
            for name, _, base in self.table.rows
            if base and name in found
        }


def latency(values: Sequence[float]) -> Latency:
    """Return the percentiles of samples, which are in microseconds."""
    ordered = sorted(values)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    return Latency(p50=at(0.5), p99=at(0.99), p999=at(0.999), max=ordered[-1], samples=len(ordered))


# --- the whole run ------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Document:
    """A whole run and where it was made."""

    reports: Sequence[Report]
    facts: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        """Return everything, for machines."""
        loops = {
            report.loop: {
                "figures": {name: attrs.asdict(f) for name, f in report.figures().items()},
                "latencies": {name: attrs.asdict(f) for name, f in report.latencies().items()},
                f"ratios_to_raw_{report.table.yardstick.lower()}": report.ratios(),
            }
            for report in self.reports
        }
        return {**self.facts, "settings": attrs.asdict(pool.Settings()), "loops": loops}

    def as_text(self) -> str:
        """Return tables, for people; the ratios, which alone may be compared, come last."""
        tables = (line for r in self.reports for part in (_table, _ratios) for line in part(r))
        return "\n".join([*self._heading(), *tables])

    def _heading(self) -> Iterator[str]:
        facts = self.facts
        machine, server = facts["machine"], facts["server"]
        yield f"{facts['date']}  commit {facts['commit']}  {facts['seconds']:.0f} s"
        load = facts["load_before"]
        yield f"{machine['processor']}, {machine['cores']} cores, load before {load}"
        yield f"{server['name']} {server['version']} over {facts['transport']}"
        yield "  ".join(f"{name} {number}" for name, number in facts["versions"].items())
        yield f"default settings, {facts['sizes']}, {facts['repeats']} repetitions"


def document(reports: Sequence[Report], **facts: Any) -> Document:
    """Return the run with date, machine, versions and commit."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    told = {
        "date": now,
        "commit": _commit(),
        "machine": {
            "system": platform.platform(),
            "processor": _processor(),
            "cores": len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count(),
        },
        "versions": dict(_versions()),
    }
    return Document(reports=reports, facts={**told, **facts})


def _table(report: Report) -> Iterator[str]:
    figures, ratios = report.figures(), report.ratios()
    head = f"x {report.table.yardstick}"
    yield ""
    yield f"{report.loop:52} {'median':>10} {'min':>10} {'max':>10} {head:>7}"
    for name, title, base in report.table.rows:
        if name in figures:
            f = figures[name]
            ratio = f"{ratios[name]:7.2f}" if base else ""
            yield f"{title:52} {short(f.median)} {short(f.min)} {short(f.max)} {ratio}".rstrip()
    if not report.latencies():
        return
    yield ""
    yield f"{'latency, us':52} {'p50':>10} {'p99':>10} {'p99.9':>10} {'max':>10} {'samples':>8}"
    for name, timed in report.latencies().items():
        title = name.removesuffix("_us").replace("_", " ")
        numbers = " ".join(f"{n:10.0f}" for n in (timed.p50, timed.p99, timed.p999, timed.max))
        yield f"{title:52} {numbers} {timed.samples:8}"


def _ratios(report: Report) -> Iterator[str]:
    """Yield what may be compared with another run: what the bare server did, in the same one."""
    ratios = report.ratios()
    yield ""
    yield f"{f'{report.loop}, against the bare server':52} {f'x {report.table.yardstick}':>10}"
    for name, title, _ in report.table.rows:
        if name in ratios:
            yield f"{title:52} {ratios[name]:10.2f}"


def short(value: float) -> str:
    """Return a figure with as many digits as say something, ten characters wide."""
    return f"{value:10,.0f}" if abs(value) >= 100 else f"{value:10.3g}"


def _versions() -> Iterator[tuple[str, str]]:
    yield "python", platform.python_version()
    yield "pool", pool.__version__
    for name in _PACKAGES:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            continue  # trio is the user's choice


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    for line in cpuinfo.read_text("utf-8").splitlines() if cpuinfo.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _commit() -> str:
    """Return the commit that was measured, with a mark when files differ from it."""
    git = shutil.which("git")
    if git is None:
        return "unknown"
    told = subprocess.run(
        [git, "describe", "--always", "--dirty", "--abbrev=12"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return told.stdout.strip() or "unknown"
