"""Views that go on: a picture every so often, whatever a server does meanwhile.

    look --> picture --pause--> look ...
      '--fails--> the picture of before, under a line that says since when and why

A server that is frozen, killed, or comes back empty ends no view: it is looked at for just that.
What it is asked for anew it answers anew, so a look that failed leaves nothing behind.  With --json
a look that failed is the object that a call which fails prints.  The code is that of the last look.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final, TypeVar

import anyio

from pool import checks
from pool.errors import StoreError, sentence
from pool.ops.cli.asking import tell
from pool.ops.cli.carrying import cause_of, code_of, failed_object
from pool.ops.terminal import Screen, fitted, height_of, is_coloured, painted, width_of, write
from pool.ops.why import span

T = TypeVar("T")
EVERY_S_MIN: Final = 0.2


def times(args: argparse.Namespace) -> tuple[float, float]:
    """Return every how many seconds, and how often, it is looked.

    Raises:
        InvalidOption: It cannot be that.
    """
    every_s = max(EVERY_S_MIN, checks.seconds("every", args.every))
    frames = math.inf if args.frames is None else checks.count("frames", args.frames, 1, 10**9)
    return every_s, frames


async def watch(
    args: argparse.Namespace,
    take: Callable[[], Awaitable[T]],
    lines: Callable[[T], Iterable[str]],
    is_well: Callable[[T], bool],
) -> int:
    """Show what is taken, again and again; return the last one's exit code."""
    every_s, frames = times(args)
    code, number, last = 0, 0, list[T]()
    since, since_s = datetime.now(UTC), math.inf
    with Screen() as screen:
        while number < frames:
            number += 1
            try:
                last = [await take()]
            except (StoreError, BaseExceptionGroup) as error:
                cause = cause_of(error)
                if not isinstance(cause, StoreError):
                    raise
                if math.isinf(since_s):
                    since, since_s = datetime.now(UTC), anyio.current_time()
                screen.clear()
                if args.json:
                    write([json.dumps(failed_object(cause))])
                else:
                    for_s = anyio.current_time() - since_s
                    write(_fitting([*_trouble(cause, since, for_s), *_all(lines, last)]))
                code = code_of(cause)
            else:
                since_s = math.inf
                screen.clear()
                code = tell(args, last[0], _fitting(lines(last[0])), ok=is_well(last[0]))
            if number < frames:
                await anyio.sleep(every_s)
    return code


def _all(lines: Callable[[Any], Iterable[str]], last: Iterable[object]) -> Iterator[str]:
    for each in last:
        yield from lines(each)


def _trouble(error: StoreError, since: datetime, for_s: float) -> Iterator[str]:
    at = since.isoformat(timespec="seconds")
    yield painted(
        f"! cannot be looked at since {at} ({span(for_s)})", "error", is_on=is_coloured(sys.stdout)
    )
    yield f"! {sentence(error)}"
    yield ""


def _fitting(lines: Iterable[str]) -> Iterator[str]:
    """Yield as many lines as the terminal has, each as wide as it is at most."""
    high, wide = height_of(sys.stdout), width_of(sys.stdout)
    shown = islice(lines, high - 1 if high is not None else None)
    return iter(shown) if wide is None else (fitted(line, wide) for line in shown)
