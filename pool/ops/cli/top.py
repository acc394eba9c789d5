"""`pool top`: a pool live, in a plain terminal.

    status --every so often--> what there is, what happens per second, who works, what is wrong

What happens per second is the difference of the lanes' counters between two looks, so nothing is
counted for it: nobody pays while nobody looks.  In a terminal q or Ctrl-C ends it; into a pipe or
a file the pictures follow each other, and with --json there is one object for each.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Final, TextIO

import anyio
import attrs

from pool import checks
from pool.ops import summary
from pool.ops.cli import rates
from pool.ops.cli.asking import look, tell
from pool.ops.cli.members import worker_table
from pool.ops.cli.status import head_lines, wrong_lines
from pool.ops.inspect import Found
from pool.ops.summary import PoolStatus
from pool.ops.terminal import Screen, height_of
from pool.redis.pipeline import Pipeline

_EVERY_S_MIN: Final = 0.2
_WORKERS_SHOWN: Final = 20
_FINDINGS_SHOWN: Final = 5


@attrs.frozen(kw_only=True)
class Picture:
    """One look: the pool's status, and by how much its counters have risen per second since."""

    v: int = 1
    status: PoolStatus
    per_s: dict[str, float]
    for_s: float  # between this look and the one before; 0: it is the first


def run(args: argparse.Namespace) -> int:
    """Carry out `pool top`: 0, or 1 if something was wrong when it ended."""
    if args.since is not None:
        return rates.run(args)
    every_s = max(_EVERY_S_MIN, checks.seconds("every", args.every))
    frames = math.inf if args.frames is None else checks.count("frames", args.frames, 1, 10**9)

    async def read(pipeline: Pipeline, found: Found) -> int:
        code = 0
        with _keys(sys.stdin) as keys, Screen() as screen:
            async with anyio.create_task_group() as tasks:
                if keys is not None:
                    tasks.start_soon(_until_q, keys, tasks.cancel_scope)
                before, number = None, 0
                while number < frames:
                    number += 1
                    picture = await _look(pipeline, found.pool, before)
                    before = (picture.status, anyio.current_time())
                    screen.clear()
                    code = tell(args, picture, _fitting(picture), ok=picture.status.is_well)
                    if number < frames:
                        await anyio.sleep(every_s)
                tasks.cancel_scope.cancel()
        return code

    return look(args, read)


async def _look(pipeline: Pipeline, pool: str, before: tuple[PoolStatus, float] | None) -> Picture:
    status = await summary.status(pipeline, pool)
    if before is None:
        return Picture(status=status, per_s={}, for_s=0.0)
    was, at_s = before
    return picture_of(status, was, anyio.current_time() - at_s)


def picture_of(status: PoolStatus, was: PoolStatus, for_s: float) -> Picture:
    """Return what has happened per second between two looks.

    A counter that has fallen has begun anew, as after a loss of data: all of it is since then.
    """
    rises = {
        name: count - was.counters.get(name, 0) if count >= was.counters.get(name, 0) else count
        for name, count in status.counters.items()
    }
    per_s = {name: round(rise / for_s, 1) for name, rise in rises.items() if for_s > 0}
    return Picture(status=status, per_s=per_s, for_s=round(for_s, 3))


def _fitting(picture: Picture) -> Iterator[str]:
    """Yield as many lines as the terminal has."""
    high = height_of(sys.stdout)
    return islice(lines(picture), high - 1 if high is not None else None)


def lines(picture: Picture) -> Iterator[str]:
    """Yield it for people."""
    status = picture.status
    yield from head_lines(status)
    moving = {name: rate for name, rate in picture.per_s.items() if rate}
    if picture.for_s:
        told = ", ".join(f"{rate:g} {name}" for name, rate in moving.items())
        yield f"per s     {told or 'nothing happens'}"
    yield ""
    yield from wrong_lines(status, _FINDINGS_SHOWN)
    yield ""
    busy = sorted(status.workers, key=lambda each: -(each.running + each.pending))
    yield from worker_table(busy[:_WORKERS_SHOWN])
    if len(busy) > _WORKERS_SHOWN:
        yield f"... and {len(busy) - _WORKERS_SHOWN} more workers"


@contextmanager
def _keys(stream: TextIO) -> Iterator[TextIO | None]:
    """Have a terminal give each key at once; None: it is none."""
    if not (stream.isatty() and sys.stdout.isatty()):
        yield None
        return
    before = termios.tcgetattr(stream)
    try:
        tty.setcbreak(stream)
        yield stream
    finally:
        termios.tcsetattr(stream, termios.TCSADRAIN, before)


async def _until_q(keys: TextIO, scope: anyio.CancelScope) -> None:
    while True:
        await anyio.wait_readable(keys)
        pressed = os.read(keys.fileno(), 64)
        if not pressed or b"q" in pressed.lower():
            scope.cancel()
            return
