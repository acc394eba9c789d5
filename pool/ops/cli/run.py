"""`pool run`: what is asked for, and who does it, the worker itself or the parent of several.

What those two need is loaded by them: a parent is small.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import suppress
from functools import partial
from typing import Any

from pool.ops.cli.carrying import cause_of
from pool.ops.cli.child import Leash
from pool.ops.cli.codes import FINDING
from pool.ops.cli.config import gather
from pool.ops.lines import Lines
from pool.ops.terminal import Unwritable, write


def run(args: argparse.Namespace) -> int:
    """Carry out `pool run`."""
    said = gather(args, os.environ)
    said.check("handlers", "pool", "url")
    out = Lines(sys.stdout, lambda count: _line("lines.dropped", args.json, {"lines": count}))
    tell = partial(_tell, out=out, is_json=args.json)
    leash: Leash | None = getattr(args, "leash", None)
    try:
        if leash is None and (said.options.processes is not None or said.options.reload):
            from pool.ops.cli.parent import run_children

            return run_children(list(args.words), said.options, tell)
        from pool.ops.cli.exiting import LateEnd
        from pool.ops.cli.worker import run_worker

        form = said.options.log_format
        is_json = form == "json" or (form == "auto" and args.json)
        args.late_end = None
        if said.settings.on_overrun == "exit":  # only a worker has code of others
            args.late_end = LateEnd(is_json)
        try:
            return run_worker(said, leash, tell, args.late_end, is_json=is_json)
        except BaseException as error:
            from pool.ops.cli.failing import lines_of
            from pool.runtime.exceptions import leaves, told

            # An exit that some code asks for is that of no drain, and its code means nothing here.
            is_exit = any(isinstance(leaf, SystemExit) for leaf in leaves(error))
            if not (is_exit or isinstance(error, Exception)) or cause_of(error) is not None:
                raise  # it is one line
            if leash is not None:
                leash.tell("failed", child=leash.number, problem=told(error))
            with suppress(BrokenPipeError, Unwritable):  # the code says it, too
                write(lines_of(error, is_json=is_json), sys.stderr)
            return FINDING
    finally:
        out.end()


def _tell(event: str, *, out: Lines, is_json: bool, **facts: Any) -> None:
    """Write one line about our own state; log lines go to standard error."""
    write([_line(event, is_json, facts)], out.stream)


def _line(event: str, is_json: bool, facts: dict[str, Any]) -> str:
    if is_json:
        return json.dumps({"event": event, **facts})
    rest = (f"{k}={','.join(v) if isinstance(v, list) else v}" for k, v in facts.items())
    return f"{event}  {' '.join(rest)}".rstrip()
