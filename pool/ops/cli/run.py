"""`pool run`: what is asked for, and who does it, the worker itself or the parent of several.

What those two need is loaded by them: a parent is small.
"""

from __future__ import annotations

import argparse
import json
import os
from functools import partial
from typing import Any

from pool.ops.cli.child import Leash
from pool.ops.cli.config import gather
from pool.ops.terminal import write


def run(args: argparse.Namespace) -> int:
    """Carry out `pool run`."""
    said = gather(args, os.environ)
    said.check("handlers", "pool", "url")
    tell = partial(_tell, is_json=args.json)
    leash: Leash | None = getattr(args, "leash", None)
    if leash is None and (said.options.processes is not None or said.options.reload):
        from pool.ops.cli.parent import run_children

        return run_children(list(args.words), said.options, tell)
    from pool.ops.cli.worker import run_worker

    return run_worker(said, leash, tell, is_json=args.json)


def _tell(event: str, *, is_json: bool, **facts: Any) -> None:
    """Write one line about our own state; log lines go to standard error."""
    if is_json:
        line = json.dumps({"event": event, **facts})
    else:
        rest = (f"{k}={','.join(v) if isinstance(v, list) else v}" for k, v in facts.items())
        line = f"{event}  {' '.join(rest)}".rstrip()
    write([line])
