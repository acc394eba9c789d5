"""`python -m tests.verify.sim.fresh`: simulate seeds that nobody has run, and say which were red.

Seeds that ran before were mended until they were clean, so they say nothing about what is new.
`ranges.txt` lists the ranges that were run.  This program takes the range behind the highest one,
and prints the line for the list; `--note` appends it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import attrs

from tests.verify.sim.campaign import campaign

RANGES: Final = Path(__file__).with_name("ranges.txt")


@attrs.frozen
class SeedRange:
    """Seeds that were run in a row, and those of them that violated an invariant."""

    first: int
    count: int
    date: str
    commit: str
    red: tuple[int, ...]

    @property
    def end(self) -> int:
        """The first seed behind them."""
        return self.first + self.count

    def line(self) -> str:
        """Return the range as `parse()` reads it."""
        red = " ".join(map(str, self.red)) or "-"
        return f"{self.first} {self.count} {self.date} {self.commit} {red}"

    @classmethod
    def parse(cls, line: str) -> SeedRange:
        """Read one line of the list."""
        first, count, date, commit, *red = line.split()
        seeds = tuple(int(seed) for seed in red if seed != "-")
        found = cls(int(first), int(count), date, commit, seeds)
        assert all(found.first <= seed < found.end for seed in found.red), line
        return found


def ranges(text: str) -> list[SeedRange]:
    """Read the list."""
    lines = (line for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return [SeedRange.parse(line) for line in lines]


def fresh(known: Sequence[SeedRange], count: int) -> range:
    """Return the seeds behind all that were run, from the next whole thousand."""
    end = max((each.end for each in known), default=0)
    first = -(-end // 1000) * 1000
    return range(first, first + count)


def _commit() -> str:
    words = ("git", "describe", "--always", "--dirty", "--exclude", "*")
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.verify.sim.fresh", description=__doc__)
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--note", action="store_true", help="append the range to ranges.txt")
    given = parser.parse_args()
    seeds = fresh(ranges(RANGES.read_text("utf-8")), given.seeds)
    sys.stdout.write(f"seeds {seeds.start} to {seeds.stop - 1}\n")
    lines, took_s = campaign(seeds, jobs=given.jobs)
    red = [line for line in lines if line.broken]
    for line in red:
        sys.stdout.write(line.report + "\n\n")
    today = datetime.now(UTC).date().isoformat()
    reds = tuple(line.config.seed for line in red)
    told = SeedRange(seeds.start, len(seeds), today, _commit(), reds).line()
    sys.stdout.write(f"{len(red)} of {len(lines)} seeds were red, in {took_s:.0f} s\n{told}\n")
    if given.note:
        with RANGES.open("a", encoding="utf-8") as file:
            file.write(told + "\n")
    return 1 if red else 0


if __name__ == "__main__":
    sys.exit(main())
