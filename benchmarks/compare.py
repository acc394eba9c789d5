"""This tree against another revision, on one machine in the same minutes.

    python -m benchmarks.compare HEAD~3            # about five minutes
    python -m benchmarks.compare v0.1.0 --quick    # about one: fewer jobs, no latencies

The other revision is checked out into a temporary directory.  Both are measured five times (or
`--rounds`), by turns, each time by a process of its own on a server of its own; which goes first
alternates.  The measuring is this tree's for both (`throughput.py`), so a revision must know the
public names that it uses; with `--own` each side is measured by its own, as where the layout was
another one.  Ratios are formed within each pair, so what the machine does in the
meantime hits both sides; the raw rows, which no change of ours can move, show how much of that is
left.

"better" and "worse" stand where all rounds agree and the median is over 5 % away from 1.  Of forty
figures some two would all fall on one side by chance alone, hence the second condition; where it
matters, run it again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import attrs

from benchmarks.probe import Probe
from benchmarks.throughput import Bench
from pool.redis.embedded.server import EmbeddedServer, find_server

ROOT: Final = Path(__file__).parents[1]
ROUNDS: Final = 5
JOBS: Final = 10_000
QUICK_JOBS: Final = 2_000
PART_S: Final = 300.0  # for all of one side of one round
_MORE_IS_BETTER: Final = "_per_s"
_RAW: Final = "raw_"
_SMALL: Final = 0.05  # a difference that is not worth a word


@attrs.frozen(kw_only=True)
class Ratio:
    """One figure, this tree's by the other's, over all rounds."""

    name: str
    ours: float  # medians
    theirs: float
    median: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """Say better or worse only where no round says otherwise, and of no yardstick."""
        is_one_sided = self.low > 1 or self.high < 1
        if not is_one_sided or abs(self.median - 1) <= _SMALL or self.name.startswith(_RAW):
            return ""
        return "better" if (self.low > 1) == self.name.endswith(_MORE_IS_BETTER) else "worse"


def compared(rounds: Sequence[tuple[Mapping[str, float], Mapping[str, float]]]) -> list[Ratio]:
    """Return the ratios of what both sides have measured in every round."""
    names = [name for name in rounds[0][0] if all(theirs.get(name, 0) > 0 for _, theirs in rounds)]
    ratios = []
    for name in names:
        each = [ours[name] / theirs[name] for ours, theirs in rounds]
        ratios.append(
            Ratio(
                name=name,
                ours=statistics.median(ours[name] for ours, _ in rounds),
                theirs=statistics.median(theirs[name] for _, theirs in rounds),
                median=statistics.median(each),
                low=min(each),
                high=max(each),
            )
        )
    return ratios


def as_text(ratios: Sequence[Ratio], rev: str) -> Iterator[str]:
    """Yield the lines of a table; the yardsticks come first."""
    yield f"{'':34} {'this tree':>10} {rev[:10]:>10} {'ratio':>7} {'min':>7} {'max':>7}"
    for r in sorted(ratios, key=lambda r: not r.name.startswith(_RAW)):
        numbers = f"{_short(r.ours)} {_short(r.theirs)} {r.median:7.2f} {r.low:7.2f} {r.high:7.2f}"
        yield f"{r.name:34} {numbers} {r.verdict}".rstrip()


def _short(value: float) -> str:
    return f"{value:10,.0f}" if abs(value) >= 100 else f"{value:10.3g}"


# --- the two trees --------------------------------------------------------------------------------


def _git(root: Path, *words: str) -> str:
    git = shutil.which("git")
    if git is None:
        raise SystemExit("compare needs git")
    told = subprocess.run([git, *words], cwd=root, capture_output=True, text=True, check=False)
    if told.returncode:
        raise SystemExit(f"git {' '.join(words)}: {told.stderr.strip()}")
    return told.stdout.strip()


@contextmanager
def sides_of(rev: str, root: Path = ROOT, *, is_own: bool = False) -> Iterator[tuple[Path, Path]]:
    """Yield two directories to run in: this tree's `pool` and the other's, one way of measuring.

    With `is_own` each has its own.
    """
    commit = _git(root, "rev-parse", "--verify", f"{rev}^{{commit}}")
    with tempfile.TemporaryDirectory(prefix="pool-compare-") as found:
        here = Path(found)
        theirs = here / "tree"
        _git(root, "worktree", "add", "--detach", str(theirs), commit)
        try:
            sides = []
            for name, tree in (("ours", root), ("theirs", theirs)):
                side = here / name
                side.mkdir()
                (side / "pool").symlink_to(tree / "pool")
                (side / "benchmarks").symlink_to((tree if is_own else root) / "benchmarks")
                sides.append(side)
            yield sides[0], sides[1]
        finally:
            _git(root, "worktree", "remove", "--force", str(theirs))


def measured(side: Path, *words: str) -> dict[str, float]:
    """Measure one side once, in a process of Python that finds its `pool` before any other."""
    told = subprocess.run(
        [sys.executable, *words],
        cwd=side,
        env={**os.environ, "PYTHONPATH": str(side), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=PART_S,
    )
    if told.returncode:
        raise SystemExit(f"in {side.name}:\n{told.stderr[-4000:]}")
    figures: dict[str, float] = json.loads(told.stdout)
    return figures


def _part(jobs: int, *, is_quick: bool) -> dict[str, float]:
    """Take each measurement once, with the `pool` that this process has."""
    with EmbeddedServer.start(find_server("path")) as server:
        probe = Probe(server.url)
        try:
            bench = Bench(probe, "asyncio", jobs)
            bench.raw()
            bench.dispatch()
            bench.drain(1)
            bench.drain(2)
            if not is_quick:
                bench.latency()
        finally:
            probe.close()
    figures = {name: figure.median for name, figure in bench.report.figures().items()}
    for name, timed in bench.report.latencies().items():
        figures |= {f"{name}_p50": timed.p50, f"{name}_p99": timed.p99}
    return figures


def main() -> None:
    """Parse the command line, measure by turns, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("rev", nargs="?", help="what to compare with, as git names it")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_JOBS} jobs, no latencies")
    parser.add_argument("--jobs", type=int, help=f"per drain, default {JOBS}")
    parser.add_argument("--own", action="store_true", help="each side by its own benchmarks")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"pairs, default {ROUNDS}")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--part", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    jobs = given.jobs or (QUICK_JOBS if given.quick else JOBS)
    if given.part:
        print(json.dumps(_part(jobs, is_quick=given.quick)))
        return
    if given.rev is None:
        parser.error("name a revision")
    words = ["-m", "benchmarks.compare", "--part", "--jobs", str(jobs)]
    words += ["--quick"] * given.quick
    load = os.getloadavg()[0]
    rounds: list[tuple[dict[str, float], dict[str, float]]] = []
    with sides_of(given.rev, is_own=given.own) as sides:
        for number in range(given.rounds):
            order = sides if number % 2 == 0 else sides[::-1]
            told = {side: measured(side, *words) for side in order}
            rounds.append((told[sides[0]], told[sides[1]]))
            print(f"round {number + 1} of {given.rounds}", file=sys.stderr)
    ratios = compared(rounds)
    facts: dict[str, Any] = {"rev": given.rev, "jobs": jobs, "rounds": given.rounds, "load": load}
    if given.json:
        print(json.dumps(facts | {"ratios": [attrs.asdict(ratio) for ratio in ratios]}, indent=2))
        return
    print("\n".join(as_text(ratios, given.rev)))
    print(f"\n{jobs} jobs a drain, {given.rounds} rounds by turns, load before {load:.1f}")


if __name__ == "__main__":
    main()
