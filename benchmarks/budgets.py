"""What operations cost, beside what they may cost: `python -m benchmarks.budgets`.

    python -m benchmarks.budgets                                  # a table; fails if over 10 % off
    python -m benchmarks.budgets --write                          # take what became cheaper over
    python -m benchmarks.budgets --write --because "ask twice"    # and what became dearer, and why

Commands, bytes, calls and lines of Python: none of them hangs on how fast the machine is or what
else it does.  The tests hold every build to the same budgets.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import Final

import anyio

from benchmarks.budget import BUDGETS, Figure, judge, load, rewrite, save, table
from benchmarks.crossings import way_costs
from benchmarks.desk import Desk
from benchmarks.node_costs import node_costs, python_costs, rest_costs
from benchmarks.redis_costs import Costs, store_costs
from pool.redis.embedded.server import EmbeddedServer, ServerProgram, find_server

OF_NODES: Final = {
    "job": node_costs,
    "rest": rest_costs,
    "python": python_costs,
    "way": way_costs,
}


def measure_store(program: ServerProgram) -> Costs:
    """Measure what the store does, on a server of our own."""
    with EmbeddedServer.start(program) as server, Desk(server.url) as desk:
        return store_costs(desk)


def measure_nodes(program: ServerProgram, loop: str) -> dict[str, Figure]:
    """Measure what nodes do, on one event loop."""
    figures: dict[str, Figure] = {}
    with EmbeddedServer.start(program) as server:
        for name, measure in OF_NODES.items():
            figures |= anyio.run(partial(measure, server.url, name), backend=loop)
    return figures


def main() -> None:
    """Parse the command line, measure, compare or write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.budgets", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--write", action="store_true", help="make the budgets what was measured")
    parser.add_argument("--because", default="", help="why figures rose, for their lines")
    parser.add_argument("--loop", choices=("asyncio", "trio"), default="asyncio")
    given = parser.parse_args()
    program, budgets = find_server("wheel"), load() if BUDGETS.exists() else {}
    costs = measure_store(program)
    figures = costs.figures | measure_nodes(program, given.loop)
    if given.write:
        try:
            save(rewrite(figures, budgets, given.because))
        except ValueError as error:
            sys.exit(str(error))
        return
    print("\n".join(table(figures, budgets)))
    print("\nserver time in scripts, us each (the machine's, so there is no budget):")
    print(", ".join(f"{name} {us:.0f}" for name, us in costs.server_us.items() if us))
    wrong = list(judge(figures, budgets))
    wrong += [f"{name}: is not measured any more" for name in sorted(budgets.keys() - figures)]
    if wrong:
        sys.exit("\n" + "\n".join(wrong))


if __name__ == "__main__":
    main()
