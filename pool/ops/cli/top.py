"""`pool top`: a pool live, in a plain terminal.

    status --every so often--> what there is, what happens per second, who works, what is wrong

What happens per second is the difference of the lanes' counters between two looks, so nothing is
counted for it: nobody pays while nobody looks.  In a terminal q or Ctrl-C ends it; into a pipe or
a file the pictures follow each other, and with --json there is one object for each.
"""

from __future__ import annotations

import argparse
import os
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TextIO

import anyio
import attrs

from pool.ops import summary
from pool.ops.cli import rates
from pool.ops.cli.asking import look
from pool.ops.cli.members import worker_table
from pool.ops.cli.status import head_lines, wrong_lines
from pool.ops.cli.watching import times, watch
from pool.ops.inspect import Found
from pool.ops.summary import PoolStatus
from pool.redis.pipeline import Pipeline

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
    times(args)  # for its errors, before anything is asked

    async def read(pipeline: Pipeline, found: Found) -> int:
        code, before = 0, list[tuple[PoolStatus, float]]()

        async def take() -> Picture:
            status, now_s = await summary.status(pipeline, found.pool), anyio.current_time()
            was, before[:] = before.copy(), [(status, now_s)]
            if not was:
                return Picture(status=status, per_s={}, for_s=0.0)
            [(status_before, at_s)] = was
            return picture_of(status, status_before, now_s - at_s)

        with _keys(sys.stdin) as keys:
            async with anyio.create_task_group() as tasks:
                if keys is not None:
                    tasks.start_soon(_until_q, keys, tasks.cancel_scope)
                code = await watch(args, take, lines, lambda picture: picture.status.is_well)
                tasks.cancel_scope.cancel()
        return code

    return look(args, read)


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
