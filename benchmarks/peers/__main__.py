"""This library beside others, on one machine in the same minutes: `python -m benchmarks.peers`.

    python -m benchmarks.peers --out docs/benchmarks.md          # everything, 25 minutes: the page
    python -m benchmarks.peers --quick --only ours,huey,saq      # one repetition of less
    python -m benchmarks.peers --metrics dispatch,drain          # some measurements
    python -m benchmarks.peers --page RESULTS.json --out P.md    # write it again, measure nothing

Each peer is installed into a virtual environment of its own, `.peers/NAME`, in its newest version.
The page goes to standard output, or with --json the results.  A busy machine is refused; --busy
measures there, too, but what is written with --out is always whole and from a quiet machine.
README.md one folder up says more.  Exit codes: 1 an adapter failed, 2 usage, 3 the machine is busy.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

from benchmarks.peers.environments import OURS, PEERS
from benchmarks.peers.measure import QUICK, TINY, Sizes
from benchmarks.peers.metrics import Results
from benchmarks.peers.page import loaded, page, write
from benchmarks.peers.quiet import refusal
from benchmarks.peers.run import GROUPS, Comparison
from benchmarks.report import document
from pool.redis.embedded.server import find_server

ALL = (OURS, *sorted(PEERS))
BUSY = 3


def results_of(comparison: Comparison, names: list[str], **facts: Any) -> Results:
    """Return everything as it is stored."""
    return {
        **document([], **facts).facts,
        "server": {"name": comparison.program.name, "version": comparison.program.version},
        "sizes": attrs.asdict(comparison.sizes),
        "peers": {name: _peer(comparison, name) for name in names},
        "quiet": comparison.quiet,
        "raw": comparison.raw.figures(),
    }


def _peer(comparison: Comparison, name: str) -> dict[str, Any]:
    bench = comparison.benches.get(name)
    unknown = {"versions": {}, "docs": "", "usual": "", "results": "", "safe": "", "cannot": {}}
    return {
        **(attrs.asdict(bench.peer) if bench else unknown),
        "figures": bench.rounds.figures() if bench else {},
        "errors": comparison.errors.get(name, {}),
        "recoveries": comparison.recoveries.get(name, {}),
    }


def measure(sizes: Sizes, given: argparse.Namespace, load: Sequence[float]) -> Results:
    """Run the comparison."""
    began_s, names = time.monotonic(), given.only
    comparison = Comparison(find_server("path"), sizes, given.metrics)
    if given.busy:
        comparison.wait_s = 0.0
    comparison.run(names, is_upgrade=given.upgrade)
    return results_of(
        comparison,
        names,
        load_before=[round(each, 2) for each in load],
        seconds=time.monotonic() - began_s,
    )


def _some_of(known: tuple[str, ...]) -> Any:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        if unknown := set(names) - set(known):
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not of {', '.join(known)}")
        return names

    return parse


def main() -> int:
    """Parse the command line, measure, print; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--quick", action="store_true", help="one repetition of less")
    parser.add_argument("--tiny", action="store_true", help=argparse.SUPPRESS)  # for the tests
    parser.add_argument("--only", type=_some_of(ALL), default=list(ALL), metavar="PEER,...")
    parser.add_argument(
        "--metrics", type=_some_of(GROUPS), default=list(GROUPS), metavar="GROUP,..."
    )
    parser.add_argument("--busy", action="store_true", help="on a busy machine, too; no page")
    parser.add_argument("--upgrade", action="store_true", help="get the newest versions first")
    parser.add_argument("--json", action="store_true", help="print the results instead of the page")
    parser.add_argument("--out", type=Path, metavar="PAGE.md", help="where to write the page")
    parser.add_argument("--page", type=Path, metavar="RESULTS.json", help="measure nothing")
    given = parser.parse_args()
    sizes = TINY if given.tiny else QUICK if given.quick else Sizes()
    is_part = sizes != Sizes() or given.only != list(ALL) or given.metrics != list(GROUPS)
    if given.out and not given.page and (given.busy or is_part):
        parser.error("--out is for a whole run on a quiet machine: no page from --busy or a part")
    load = os.getloadavg()
    if given.page:
        results = loaded(given.page)
    elif not given.busy and (why := refusal(load[0])):
        print(why, file=sys.stderr)
        return BUSY
    else:
        results = measure(sizes, given, load)
    if given.out:
        write(results, given.out)
    print(json.dumps(results, indent=1) if given.json else page(results, "."))
    return int(any(peer["errors"] for peer in results["peers"].values()))


if __name__ == "__main__":
    sys.exit(main())
