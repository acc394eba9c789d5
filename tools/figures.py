"""What pages quote of the comparison with other libraries: taken from its stored results."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.peers.environments import OURS, PEERS
from benchmarks.peers.metrics import METRICS, Results, best, judged, value_of
from benchmarks.peers.page import loaded, reached
from benchmarks.peers.plot import said
from benchmarks.peers.quiet import LOAD_MAX

RESULTS: Final = Path(__file__).parents[1] / "docs/benchmarks/results.json"
_REPEATS_MIN: Final = 5
_WIDTH: Final = 128


def is_quiet(results: Results) -> bool:
    """Say whether a run says something of single jobs: they are what a busy machine falsifies."""
    load, repeats = float(results["load_before"][0]), int(results["sizes"]["repeats"])
    return load <= LOAD_MAX and repeats >= _REPEATS_MIN


def fast() -> str:
    """Return the lines of README."""
    results = loaded(RESULTS)
    rate, rival = _beside(results, "drain_1_per_s", but="huey")
    ours_s, theirs_s = (
        value_of(results, OURS, "recovery_20_s"),
        best(results, METRICS["recovery_20_s"]),
    )
    assert ours_s is not None
    assert theirs_s is not None
    told = (
        f"**Fast.** A worker process drains {rate:.1f} times as many jobs a second as the fastest "
        f"of {len(PEERS)} other queues that loses none ({rival}). What a killed one ran begins "
        f"elsewhere after {ours_s:.0f} s; the next best takes {theirs_s[1]:.0f} s ({theirs_s[0]}). "
        f"{_single(results)} [All figures](docs/explanation/how-fast.md)."
    )
    return textwrap.fill(told, _WIDTH, break_long_words=False, break_on_hyphens=False)


def _single(results: Results) -> str:
    if not is_quiet(results):
        return "Of single jobs the last run says nothing: it was made in a noisy hour."
    start, starter = _beside(results, "idle_start_p50_us")
    result, resulter = _beside(results, "idle_result_p50_us")
    return (
        f"One job alone on an idle system takes {start:.2f} times as long to its start as with the "
        f"best of them ({starter}), and {result:.2f} times as long to its result ({resulter})."
    )


def _beside(results: Results, metric: str, but: str = "") -> tuple[float, str]:
    """Return how many times the best of the others ours is, and who that is."""
    ours, other = value_of(results, OURS, metric), best(results, METRICS[metric], but=but)
    assert ours is not None
    assert other is not None
    return ours / other[1], other[0]


# What "how fast" shows: a metric, how it is called there, whom "the others" leave out.
_SHOWN: Final = (
    ("drain_1_per_s", "jobs a second, drained by one process; others that lose none", "huey"),
    ("dispatch_bulk_per_s", "jobs a second, dispatched in bulk", ""),
    ("worker_cpu_us", "CPU of the worker for a job, us", ""),
    ("life_redis_cpu_us", "CPU of Redis for a job, us", ""),
    ("recovery_20_s", "until what a killed worker ran begins elsewhere, s", ""),
    ("recovery_safe_20_s", "the same with the soonest settings that are documented, s", ""),
    ("idle_start_p50_us", "one job on an idle system, to its start, us", ""),
    ("idle_result_p50_us", "one job on an idle system, to its result, us", ""),
    ("load_50_p99_us", "to the start at half of one's own capacity, slowest percent, us", ""),
)


def beside() -> str:
    """Return the comparison in a few lines, and which of our own goals it missed."""
    results = loaded(RESULTS)
    load, repeats = results["load_before"][0], results["sizes"]["repeats"]
    made = f"Made on {results['date'][:10]}, commit {results['commit']}: load {load:g} before, "
    parts = [f"{made}{repeats} repetitions, medians.", _table(_rows(results))]
    if not is_quiet(results):
        parts.append("**That was not quiet enough** to say anything of single jobs, or of goals.")
        return "\n\n".join(parts)
    every = list(judged(results))
    missed = [each for each in every if each.verdict != "met"]
    parts.append(
        f"Of our own {len(every)} goals {len(every) - len(missed)} were met in each of them."
    )
    if missed:
        rows = [(each.goal.title, each.said, reached(each), each.verdict) for each in missed]
        parts.append(_table([("not met", "goal", "reached", ""), *rows]))
    return "\n\n".join(parts)


def _rows(results: Results) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = [("", "ours", "best of the others", "ours to theirs")]
    for metric, title, but in _SHOWN:
        ours, other = value_of(results, OURS, metric), best(results, METRICS[metric], but=but)
        if ours is not None and other is not None:
            ratio = f"{ours / other[1]:.2f}" if other[1] else "-"
            rows.append((title, said(ours), f"{said(other[1])} ({other[0]})", ratio))
    return rows


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *rest = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rest))
