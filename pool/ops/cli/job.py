"""`pool job KEY [ID]`: everything that is known of one job."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from pool.names import check_job_id, check_key
from pool.ops import browse
from pool.ops.browse import JobTold
from pool.ops.cli import why
from pool.ops.cli.asking import look, tell, written_in


def run(args: argparse.Namespace) -> int:
    """Carry out `pool job`: 0, or 1 if nothing is known of it, or it cannot be read."""
    check_key(args.key)
    if args.id is not None:
        check_job_id(args.id)
    told = look(args, lambda pipeline, found: browse.job(pipeline, found, args.key, args.id or ""))
    is_known = told.why.state not in ("unknown", "lost", "unreadable")
    return tell(args, told, lines(told), ok=is_known)


def lines(told: JobTold) -> Iterator[str]:
    """Yield it for people."""
    yield from why.lines(told.why)
    if told.args is not None:
        yield f"arguments   {told.args!r} {told.kwargs!r}{written_in(told.encoding)}"
    elif told.payload_bytes:
        by = f" made by the codec {told.codec!r}" if told.codec else ""
        yield f"arguments   {told.payload_bytes} bytes{by}, which cannot be read here"
    if told.state_bytes:
        yield f"state       {told.state_bytes} bytes are saved"
    if told.steps_bytes:
        yield f"steps       {told.steps_bytes} bytes of results are stored"
    if told.has_result:
        yield f"result      {told.result!r}{written_in(told.encoding)}"
    elif told.result_bytes:
        yield f"result      {told.result_bytes} bytes, which cannot be read here"
