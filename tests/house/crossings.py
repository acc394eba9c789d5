"""How far a job goes through the house: the files it crosses, and how often it changes file.

    python -m tests.house.crossings [--list]

One node dispatches to itself and waits for the result, on an embedded server; the same has happened
often enough before that nothing is met for the first time.  Counted are calls on the event loop's
thread, from `dispatch` to what `result` returns: each file of `pool/` once, and a change for each
call that is in another file than the call before it.  Background work that falls between is counted
with it, so of several jobs the one with the fewest changes is told.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import FrameType

import anyio
import attrs

import pool
from pool import Handlers, Job, Node, Settings

_HOUSE = f"{Path(pool.__file__).parent}/"
_WARM, _JOBS = 50, 50


@attrs.frozen
class Way:
    """What one job crossed."""

    files: Counter[str]  # with the calls in each
    changes: int


def crossed(calls: list[str]) -> Way:
    """Return the way that these calls are, each the file it is in."""
    changes = sum(one != other for one, other in pairwise(calls))
    return Way(Counter(calls), changes)


async def ways() -> list[Way]:
    """Run jobs one after the other; return the way of each."""
    handlers = Handlers()

    @handlers.job("echo")
    async def echo(_: Job, text: str) -> str:
        return text

    calls: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(_HOUSE):
            calls.append(frame.f_code.co_filename.removeprefix(_HOUSE))

    found = []
    settings = Settings(lease_ttl_s=60.0)  # so that renewals seldom fall between
    async with Node(
        "crossings", "embedded://", handlers=handlers, settings=settings, observers=()
    ) as node:
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
    return found


def main() -> None:
    """Print the shortest way."""
    parser = argparse.ArgumentParser(description="Files that a warm job crosses.")
    parser.add_argument("--list", action="store_true", help="print the files, with their calls")
    args = parser.parse_args()
    way = min(anyio.run(ways), key=lambda each: each.changes)
    sys.stdout.write(f"{len(way.files)} files, {way.changes} changes of file\n")
    for name, count in way.files.most_common() if args.list else ():
        sys.stdout.write(f"{count:5} {name}\n")


if __name__ == "__main__":
    main()
