"""`pool demo`: starts a server, has the play conducted, and tells the verdict."""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import sys
import tempfile
from pathlib import Path

import anyio

from pool.demo.conductor import Conductor, Play, Show, Stage
from pool.demo.verdict import Verdict
from pool.errors import ConfigError
from pool.ops.logs import configure
from pool.redis.embedded.server import EmbeddedServer, find_server


def run(args: argparse.Namespace) -> int:
    """Carry out `pool demo`: 0, or 1 if a promise was broken."""
    return perform(Play(), is_json=args.json)


def perform(play: Play, *, is_json: bool) -> int:
    """Play the demo, print the verdict, and return the exit code.

    With `is_json` standard output gets one JSON object; the story goes to standard error, and only
    where somebody watches it.
    """
    if importlib.util.find_spec("tzdata") is None:
        problem = "its input is the tzdata package: pip install 'keyed-pool[demo]'"
        raise ConfigError(setting="demo", problem=problem)
    watched = sys.stderr if sys.stderr.isatty() else None
    show = Show(watched if is_json else sys.stdout)
    directory = Path(tempfile.mkdtemp(prefix="pool-demo-"))
    is_kept = False
    try:
        verdict = _verdict(play, show, directory)
        is_kept = not verdict.ok
    finally:
        if not is_kept:
            shutil.rmtree(directory)
    show.close(verdict)
    if is_json:
        sys.stdout.write(json.dumps(verdict.figures()) + "\n")
        sys.stderr.writelines(f"{case}\n" for case in verdict.broken if watched is None)
    if is_kept:
        sys.stderr.write(f"the ledger and the nodes' logs are kept in {directory}\n")
    return 0 if verdict.ok else 1


def _verdict(play: Play, show: Show, directory: Path) -> Verdict:
    program = find_server("path")
    with (
        (directory / "conductor.log").open("w", encoding="utf-8") as log,
        EmbeddedServer.start(program) as server,
    ):
        configure(log, is_json=True)  # the conductor is a client of the pool, and has its events
        stage = Stage(play=play, show=show, url=server.url, directory=directory)
        conductor = Conductor(stage=stage, server=f"{program.name} {program.version}")
        return anyio.run(conductor.conduct)
