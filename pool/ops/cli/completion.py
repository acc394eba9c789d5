"""`pool completion SHELL`: our words for a shell, which completes them without starting us."""

from __future__ import annotations

import argparse
import importlib.util
import json

from pool.errors import ConfigError
from pool.ops.cli.parser import make
from pool.ops.terminal import write


def run(args: argparse.Namespace) -> int:
    """Carry out `pool completion`.

    Raises:
        ConfigError: What makes it is not installed.
    """
    if importlib.util.find_spec("shtab") is None:
        problem = "it needs shtab: pip install 'keyed-pool[cli]'"
        raise ConfigError(setting="completion", problem=problem)
    import shtab

    text = shtab.complete(make(), args.shell)
    told = {"v": 1, "ok": True, "shell": args.shell, "script": text}
    write([json.dumps(told)] if args.json else text.rstrip("\n").split("\n"))
    return 0
