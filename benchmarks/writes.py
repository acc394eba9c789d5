"""Writing to maps and streams beside another revision: `python -m benchmarks.writes REV`.

    round: this tree | the other, by turns, each in a process of its own with a server of its own

The measuring is this tree's for both (`writes_part.py`), so a revision must know the public names
that it uses.  Commands and the server's own time decide; the clock's is the machine's as well.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Final

from benchmarks.compare import as_text, compared, measured, sides_of

PART: Final = Path(__file__).with_name("writes_part.py")
ROUNDS: Final = 9


def main() -> None:
    """Parse the command line, measure by turns, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.writes", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("rev", help="what to compare with, as git names it")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"pairs, default {ROUNDS}")
    given = parser.parse_args()
    load, rounds = os.getloadavg()[0], []
    with sides_of(given.rev) as sides:
        for number in range(given.rounds):
            order = sides if number % 2 == 0 else sides[::-1]
            told = {side: measured(side, str(PART)) for side in order}
            rounds.append((told[sides[0]], told[sides[1]]))
            print(f"round {number + 1} of {given.rounds}", file=sys.stderr)
    print("\n".join(as_text(compared(rounds), given.rev)))
    print(f"\n{given.rounds} rounds by turns, load before {load:.1f}")


if __name__ == "__main__":
    main()
