"""What pages quote of the comparison with other libraries: taken from its stored results."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Final

from benchmarks.peers.environments import OURS, PEERS
from benchmarks.peers.metrics import METRICS, Results, best, judged, value_of
from benchmarks.peers.page import loaded, reached
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


def goals() -> str:
    """Return which of our own goals the comparison missed."""
    results = loaded(RESULTS)
    load, repeats = results["load_before"][0], results["sizes"]["repeats"]
    made = f"The page is of {results['date'][:10]}: load {load:g} before, {repeats} repetitions."
    if not is_quiet(results):
        return f"{made} That is not quiet enough to judge goals by."
    every = list(judged(results))
    missed = [each for each in every if each.verdict != "met"]
    rows = [
        f"| {each.goal.title} | {each.said} | {reached(each)} | {each.verdict} |" for each in missed
    ]
    met = f"Of our {len(every)} goals {len(every) - len(missed)} were met in each of them."
    told = f"{made} {met}"
    return "\n".join([told, "", "| missed | goal | reached | |", "|---|---|---|---|", *rows])
