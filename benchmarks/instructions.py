"""Machine instructions of one job, beside another revision's: `python -m benchmarks.instructions`.

    python -m benchmarks.instructions                # this tree alone
    python -m benchmarks.instructions 244f0e2^       # both, and the ratios; some ten minutes

    server, or Python   under callgrind   x   jobs alone, or a backlog   x   JOBS and 2 JOBS

What one job takes is the difference of a run of 2 JOBS and one of JOBS, by JOBS: start and end of
the process cancel out.  Unlike times, such figures hang little on what else the machine does; what
is left is how many jobs happen to travel together.  Needs valgrind (on Debian: apt install
valgrind).  The way of counting is this tree's for both, and uses names that all trees have.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import redis

from benchmarks.compare import ROOT, as_text, compared, sides_of
from pool.redis.embedded.server import find_server

PART: Final = Path(__file__).with_name("instructions_part.py")
JOBS: Final = {"alone": 200, "bulk": 1_000}
ROUNDS: Final = 3
PART_S: Final = 600.0  # for one run
_START_S: Final = 60.0  # for a server that is counted
_COLLECTED: Final = re.compile(r"Collected : (\d+)")


def _valgrind() -> str:
    found = shutil.which("valgrind")
    if found is None:
        raise SystemExit("instructions needs valgrind (on Debian: apt install valgrind)")
    return found


def _counted(told: Path) -> list[str]:
    out = "--callgrind-out-file=/dev/null"
    return [_valgrind(), "--tool=callgrind", out, f"--log-file={told}"]


def _collected(told: Path) -> int:
    found = _COLLECTED.search(told.read_text("utf-8"))
    if found is None:
        raise SystemExit(f"callgrind did not say what it counted:\n{told.read_text('utf-8')}")
    return int(found[1])


@contextmanager
def _server(here: Path, before: Sequence[str] = ()) -> Iterator[str]:
    """Run a server, behind `before`; yield its address."""
    socket = here / "redis.sock"
    words = ["--port", "0", "--unixsocket", str(socket), "--save", "", "--appendonly", "no"]
    program = [*before, str(find_server("wheel").path), *words, "--dir", str(here)]
    process = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline_s = time.monotonic() + _START_S
        while True:
            try:
                with redis.Redis(unix_socket_path=str(socket)) as client:
                    client.ping()
                break
            except redis.ConnectionError:
                if time.monotonic() > deadline_s or process.poll() is not None:
                    raise
                time.sleep(0.05)
        yield f"unix://{socket}"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=_START_S)


def instructions(side: Path, which: str, how: str, jobs: int) -> int:
    """Return how many instructions one process took for so many jobs: "server" or "python"."""
    with tempfile.TemporaryDirectory(prefix="pool-counted-") as found:
        here = Path(found)
        told = here / "told"
        counted = _counted(told)
        with _server(here, counted if which == "server" else ()) as url:
            subprocess.run(
                [
                    *(counted if which == "python" else ()),
                    sys.executable,
                    str(PART),
                    url,
                    how,
                    str(jobs),
                ],
                cwd=side,
                env={
                    **os.environ,
                    "PYTHONPATH": str(side),
                    "PYTHONDONTWRITEBYTECODE": "1",
                    "PYTHONHASHSEED": "0",
                },
                check=True,
                timeout=PART_S,
            )
        return _collected(told)


def per_job(side: Path) -> dict[str, float]:
    """Return what each process takes for one job, in thousands of instructions."""
    figures = {}
    for which in ("server", "python"):
        for how, jobs in JOBS.items():
            some, more = (instructions(side, which, how, n) for n in (jobs, 2 * jobs))
            figures[f"{which}_{how}_k"] = (more - some) / jobs / 1e3
    return figures


def main() -> None:
    """Parse the command line, count, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.instructions", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("rev", nargs="?", help="what to compare with, as git names it")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"default {ROUNDS}")
    given = parser.parse_args()
    if given.rev is None:
        told = [per_job(ROOT) for _ in range(given.rounds)]
        for name in told[0]:
            each = [figures[name] for figures in told]
            print(f"{name:20} {statistics.median(each):8,.0f} ({min(each):,.0f}-{max(each):,.0f})")
        return
    rounds = []
    with sides_of(given.rev) as sides:
        for number in range(given.rounds):
            rounds.append((per_job(sides[0]), per_job(sides[1])))
            print(f"round {number + 1} of {given.rounds}", file=sys.stderr)
    print("\n".join(as_text(compared(rounds), given.rev)))
    print(f"\nthousands of instructions a job, {given.rounds} rounds")


if __name__ == "__main__":
    main()
