"""A run as a page: method, machine, goals, tables, plots.  Made from the stored results alone."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.peers.environments import OURS
from benchmarks.peers.metrics import (
    GROUPS,
    METRICS,
    Judged,
    Metric,
    Results,
    best,
    judged,
    value_of,
    why_not,
)
from benchmarks.peers.plot import Bar, chart, said
from benchmarks.peers.quiet import LOAD_MAX, OTHERS_MAX, WAIT_S

_WRITTEN: Final = """\
Written by `python -m benchmarks.peers`; do not edit.
{date}, commit {commit}, {minutes:.0f} minutes.

**A busy machine flatters some and not others.** So the run that writes this page does not begin
above a load of {load_max:g}, and before each part it waits until others use less than
{others_max:g} processors, for {wait_s:g} s at most. What it found stands below.
What to make of the figures: [how fast](explanation/how-fast.md)."""
_GOALS: Final = """\
Each is judged in each of the {repeats} repetitions, beside the others of the same one. *Met* says
that all of them met it; *missed* in how many, and by how much of the goal. *Reached* is the median,
and minimum to maximum."""
_RATIOS: Final = """\
Ratios of ours to theirs. Bare server: plain redis-py, XADD one by one, by 50 connections, or in
pipelines."""
_METHOD: Final = """\
One procedure for all. Each measurement has a server, a client process and worker processes of its
own; clients speak TCP on the loopback interface, because some peers can do nothing else. A job
carries one small number; its handler notes that number with CLOCK_MONOTONIC, which all processes
of a host share, and does nothing else. Workers run up to 100 jobs at once where that is a
setting; all other settings stand below, with where they are documented. Ours has the library's
defaults.

Repetitions are interleaved: each takes every peer once, forwards and backwards by turns. Cells
give the median of all {repeats}, and minimum to maximum. **Compare ratios within this page only**:
absolute figures of two machines, or of two hours, say nothing.

- **Dispatch**: one awaited after another; 100 callers of which each awaits its own (threads,
  where the client blocks); the library's own call for many.
- **Drain**: all jobs are queued first. From the first handler entered until Redis knows of no job
  that has not ended. A drain has as many jobs as take about {drain_s:g} s.
- **Idle latency**: one job at a time, 5 ms apart; to the handler's first line, and until the
  client has the result.
- **Open loop**: jobs are due at a fixed rate, a share of the capacity that this peer had just
  shown (100 callers and one worker process at once). Latency counts from when a job was due, so
  no stall can hide itself.
- **Redis CPU**: user and system time of the server process. **Commands**: those within scripts
  count. **Round trips**: times at which the server found something to read on a connection.
- **Redis bytes**: `MEMORY USAGE` of all keys, by job.
- **At rest**: a worker with nothing to do, some time after its client has gone; {repeats}
  stretches of {rest_s:g} s. A call is a round trip.
- **Recovery**: a worker is killed (SIGKILL) with all its slots in use, another one is idle. Until
  the last of its jobs has begun there, {recovery_s:g} s at most. Meanwhile the other one runs
  jobs of its own, until {watch_s:g} s later: a *live job started again* is one of those. Soonest
  settings: the shortest that the documentation has. Ours and those that a goal names are killed in
  each repetition, the others once: some take minutes.
"""


def page(results: Results, plots: str) -> str:
    """Return the page in Markdown; `plots` is the folder of the plots, as seen from it."""
    sizes = results["sizes"]
    parts = [
        "# pool beside others",
        _WRITTEN.format(
            minutes=results["seconds"] / 60,
            load_max=LOAD_MAX,
            others_max=OTHERS_MAX,
            wait_s=WAIT_S,
            **results,
        ),
        "\n".join(_facts(results)),
        "## Goals",
        _GOALS.format(**sizes),
        _table(("", "goal", "reached", ""), _goal_rows(results)),
        "## Against the best peer and the bare server",
        _RATIOS,
        _table(("", "ours", "best peer", "ratio", "to bare server"), _ratio_rows(results)),
        "## Method",
        _METHOD.format(**sizes).rstrip(),
        "## Settings",
        _table(("", "versions", "settings", "soonest recovery", "from"), _setting_rows(results)),
        *_group_parts(results, plots),
    ]
    return "\n\n".join(parts) + "\n"


def _facts(results: Results) -> Iterator[str]:
    machine, server = results["machine"], results["server"]
    yield f"- {machine['processor']}, {machine['cores']} cores, {machine['system']}"
    yield f"- load before: {', '.join(f'{each:g}' for each in results['load_before'])}"
    for told in results["quiet"]:
        others = _others(told["others"])
        yield f"- before {told['before']}: load {told['load']:g}, our own included; {others}"
    yield f"- {server['name']} {server['version']}, no persistence, TCP on loopback"
    yield "- " + ", ".join(f"{name} {number}" for name, number in results["versions"].items())
    yield f"- repetitions: {results['sizes']['repeats']}"


def _others(used: float | None) -> str:
    if used is None:
        return "what others use cannot be seen on this system"
    told = f"others use {used:g} processors"
    return told if used <= OTHERS_MAX else f"**{told}**"


def _goal_rows(results: Results) -> Iterator[Sequence[str]]:
    for each in judged(results):
        yield each.goal.title, each.said, reached(each), each.verdict


def reached(judged: Judged) -> str:
    """Return what came of a goal: the median, and the least and the most."""
    known = judged.known
    if not known:
        return "-"
    low, high = (f"{value:,.3g}" for value in (min(known), max(known)))
    middle = f"{statistics.median(known):,.3g}"
    return middle if low == high else f"{middle} ({low} to {high})"


def _ratio_rows(results: Results) -> Iterator[Sequence[str]]:
    for metric in METRICS.values():
        ours, other = value_of(results, OURS, metric.name), best(results, metric)
        if ours is None:
            continue
        bare = results["raw"].get(metric.yardstick, {}).get("median")
        yield (
            metric_title(metric),
            said(ours),
            f"{said(other[1])} {other[0]}" if other else "-",
            f"{ours / other[1]:.2f}" if other and other[1] else "-",
            f"{ours / bare:.2f}" if bare else "",
        )


def _setting_rows(results: Results) -> Iterator[Sequence[str]]:
    for name, peer in results["peers"].items():
        numbers = ", ".join(f"{each} {number}" for each, number in peer["versions"].items())
        usual = peer["usual"]
        if peer["results"]:
            usual += f"; where results are waited for: {peer['results']}"
        yield name, numbers, usual, peer["safe"] or "-", peer["docs"]


def metric_title(metric: Metric) -> str:
    """Return the name of a metric with that of its group."""
    [group] = [title for title, metrics in GROUPS.items() if metric in metrics]
    return f"{group}: {metric.title}"


def _group_parts(results: Results, plots: str) -> Iterator[str]:
    for title, metrics in GROUPS.items():
        yield f"## {title}"
        notes: dict[str, int] = {}  # each reason once, below the table
        rows = [_peer_row(results, name, metrics, notes) for name in results["peers"]]
        yield _table(("", *(metric.title for metric in metrics)), rows)
        if notes:
            yield "\n".join(f"{number}. {why}" for why, number in notes.items())
        if title.startswith("Recovery"):
            yield "\n".join(_recovery_lines(results))
        yield "\n".join(
            f"![{metric_title(metric)}]({plots}/{metric.name}.svg)" for metric in metrics
        )


def _peer_row(
    results: Results, name: str, metrics: Sequence[Metric], notes: dict[str, int]
) -> Sequence[str]:
    cells = []
    for metric in metrics:
        figure = results["peers"][name]["figures"].get(metric.name)
        if figure is None:
            number = notes.setdefault(why_not(results, name, metric), len(notes) + 1)
            cells.append(f"- ({number})")
        elif figure["min"] == figure["max"]:
            cells.append(said(figure["median"]))
        else:
            cells.append(
                f"{said(figure['median'])} ({said(figure['min'])} to {said(figure['max'])})"
            )
    return name, *cells


def _recovery_lines(results: Results) -> Iterator[str]:
    recovery_s = results["sizes"]["recovery_s"]
    for name, peer in results["peers"].items():
        for part, every in peer["recoveries"].items():
            what = f"- {name}, {part.replace('_', ' ')}"
            again = sum(told["live_started_again"] for told in every)
            late = sum(told["seconds"] is None for told in every)
            if again:
                yield f"{what}: **{again} live jobs started again** in {len(every)} recoveries"
            if 0 < late < len(every):
                yield f"{what}: **{late} of {len(every)} not in {recovery_s:g} s**"
            if every[0]["running"] != int(part.rpartition("_")[2]):
                yield f"{what}: with {every[0]['running']} running"
    yield "- In all others no live job was started again."


def _table(head: Sequence[str], rows: Iterator[Sequence[str]] | Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def plots_of(results: Results) -> Iterator[tuple[str, str]]:
    """Yield a name and an SVG for each metric: best first, then those without a figure."""
    for metric in METRICS.values():
        bars = []
        for name in results["peers"]:
            figure = results["peers"][name]["figures"].get(metric.name)
            if figure is None:
                bars.append(Bar(name=name, missing=why_not(results, name, metric)))
                continue
            low, high = figure["min"], figure["max"]
            bars.append(
                Bar(name=name, median=figure["median"], low=low, high=high, is_ours=name == OURS)
            )
        sign = -1 if metric.more_is_better else 1
        bars.sort(key=lambda bar: (bool(bar.missing), sign * bar.median))
        yield metric.name, chart(metric_title(metric), bars)


def write(results: Results, path: Path) -> None:
    """Write the page, and the results and plots into a folder beside it."""
    folder = path.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    for name, svg in plots_of(results):
        (folder / f"{name}.svg").write_text(svg, "utf-8")
    path.write_text(page(results, folder.name), "utf-8")


def loaded(path: Path) -> Results:
    """Return results that were stored."""
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return found
