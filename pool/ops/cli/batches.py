"""`pool batches`: batches, as `node.batches` has them.

It joins the pool as a client for as long as it works.  In a terminal, waiting draws a bar.
"""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from functools import partial
from typing import Final

import attrs

from pool.core.batches import ENDS
from pool.jobs.client.batches import BatchStatus
from pool.jobs.client.listing import Gaps
from pool.jobs.node import Node
from pool.names import check_batch
from pool.ops.cli.asking import VerbSaid, act, tell
from pool.ops.terminal import redraw, takes_codes, write


@attrs.frozen(kw_only=True)
class BatchesTold:
    """The newest batches."""

    v: int = 1
    pool: str
    batches: tuple[BatchStatus, ...]
    unread: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class BatchTold:
    """One batch."""

    v: int = 1
    pool: str
    batch: BatchStatus


_BAR: Final = 30  # characters


def run(args: argparse.Namespace) -> int:
    """Carry out `pool batches`: 0, or 1 if a batch that was waited for is not done."""
    if args.verb != "list":
        check_batch(args.id)
    said = act(args, partial(_run, args))
    return tell(args, said.shape, said.lines, ok=said.is_done)


async def _run(args: argparse.Namespace, node: Node) -> VerbSaid:
    if args.verb == "list":
        gaps = Gaps()
        found = await node.batches.list(newest=args.newest, gaps=gaps)
        lines = [*map(_line, found), f"{len(found)} batches"]
        told = BatchesTold(pool=args.pool, batches=tuple(found), unread=gaps.unread)
        return VerbSaid(told, lines)
    ref = node.batches.get(args.id)
    if args.verb == "cancel":
        await ref.cancel(args.cause)
    if not args.wait:
        status = await ref.status()
        return VerbSaid(BatchTold(pool=args.pool, batch=status), _lines(status))
    is_seen = takes_codes(sys.stderr) and not args.json
    status = await ref.wait(on_progress=_draw if is_seen else None)
    if is_seen:
        write([""], sys.stderr)
    is_done = status.state == "done"
    return VerbSaid(BatchTold(pool=args.pool, batch=status), _lines(status), is_done)


def _draw(status: BatchStatus) -> None:
    redraw(bar(status), sys.stderr)


def bar(status: BatchStatus) -> str:
    """Return how far a batch is, as a line of text."""
    share = status.ended / status.expected if status.expected else float(status.is_settled)
    done = int(share * _BAR)
    ends = ", ".join(f"{count} {end}" for end, count in _ends(status).items() if count)
    told = f"[{'#' * done}{'.' * (_BAR - done)}] {status.ended}/{status.expected}"
    return f"{told} {ends}".rstrip()


def _ends(status: BatchStatus) -> dict[str, int]:
    return {end: getattr(status, end) for end in ENDS.values()}


def _when(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")


def _line(status: BatchStatus) -> str:
    return f"{_when(status.created_ms)}  {status.id}  {status.state}  {bar(status)}"


def _lines(status: BatchStatus) -> list[str]:
    lines = [_line(status), f"{status.waiting} waiting, {status.running} running"]
    if status.success_min is not None:
        lines.append(f"{status.success_min} must succeed")
    if status.cause:
        lines.append(f"cause: {status.cause}")
    lines += [f"released {key!r} {job_id}" for key, job_id in status.released]
    return lines
