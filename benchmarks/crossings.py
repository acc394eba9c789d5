"""How far a job goes through the house: files, changes of file, calls, and distinct functions.

    python -m benchmarks.crossings [--list]

One node dispatches to itself and waits for the result; the same has happened often enough before
that nothing is met for the first time.  Counted are calls on the event loop's thread, from
`dispatch` to what `result` returns: each file of `pool/` once, and a change for each call that is
in another file than the call before it.  Background work that falls between is counted with it, so
of several jobs the one with the fewest changes is told.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Final

import anyio
import attrs

import pool
from benchmarks.budget import Figure
from benchmarks.node_costs import QUIET, QUIET_TTL_S, go_by
from pool import Handlers, Job, Node
from pool.redis.embedded.server import EmbeddedServer, find_server

_HOUSE: Final = f"{Path(pool.__file__).parent}/"
_WARM, _JOBS = 50, 50
_PATIENCE_S: Final = 60.0


@attrs.frozen
class Way:
    """What one job crossed."""

    files: Counter[str]  # with the calls in each
    functions: Counter[str]  # likewise: FILE:LINE NAME
    changes: int


def crossed(calls: list[tuple[str, str]]) -> Way:
    """Return the way that these calls are: of each its file and its function."""
    files = [file for file, _ in calls]
    changes = sum(one != other for one, other in pairwise(files))
    return Way(Counter(files), Counter(function for _, function in calls), changes)


async def shortest_way(url: str, name: str) -> Way:
    """Run jobs one after the other in a pool of this name; return the shortest of their ways."""
    handlers = Handlers()

    @handlers.job("echo")
    async def echo(_: Job, text: str) -> str:
        return text

    calls: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(_HOUSE):
            code = frame.f_code
            file = code.co_filename.removeprefix(_HOUSE)
            calls.append((file, f"{file}:{code.co_firstlineno} {code.co_name}"))

    found = []
    with anyio.fail_after(_PATIENCE_S):
        await go_by(url, name, QUIET_TTL_S)
        async with Node(name, url, handlers=handlers, settings=QUIET, observers=()) as node:
            for number in range(_WARM + _JOBS):
                calls.clear()
                if number >= _WARM:
                    sys.setprofile(note)
                try:
                    ref = await node.dispatch(echo, f"key-{number}", "text")
                    assert await ref.result() == "text"
                finally:
                    sys.setprofile(None)
                if number >= _WARM:
                    found.append(crossed(calls))
    return min(found, key=lambda each: each.changes)


async def way_costs(url: str, name: str) -> dict[str, Figure]:
    """Return how far a job goes, for its budget."""
    way = await shortest_way(url, name)
    of = "that a warm job goes through, from dispatch to result, with one node that does both"
    return {
        "python.files": Figure(value=len(way.files), unit="files", what=f"files of pool/ {of}"),
        "python.crossings": Figure(
            value=way.changes, unit="changes", what=f"changes between files of pool/ {of}"
        ),
    }


def main() -> None:
    """Print the shortest way."""
    parser = argparse.ArgumentParser(description="Files that a warm job crosses.")
    parser.add_argument("--list", action="store_true", help="print the files, with their calls")
    parser.add_argument("--functions", action="store_true", help="print the functions likewise")
    args = parser.parse_args()
    with EmbeddedServer.start(find_server("wheel")) as server:
        way = anyio.run(shortest_way, server.url, "crossings")
    sys.stdout.write(
        f"{len(way.files)} files, {way.changes} changes of file, {way.files.total()} calls, "
        f"{len(way.functions)} functions\n"
    )
    for asked, counted in ((args.list, way.files), (args.functions, way.functions)):
        for name, count in counted.most_common() if asked else ():
            sys.stdout.write(f"{count:5} {name}\n")


if __name__ == "__main__":
    main()
