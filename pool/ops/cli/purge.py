"""`pool purge NAME`: delete a pool with all that is in it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from pool.errors import ConfigError
from pool.ops import admin
from pool.ops.admin import Purged
from pool.ops.cli.asking import look, tell
from pool.ops.inspect import Found
from pool.ops.terminal import progress
from pool.redis.pipeline import Pipeline


def run(args: argparse.Namespace) -> int:
    """Carry out `pool purge`."""
    if args.name != args.pool:
        problem = f"the pool is {args.pool!r}: give that name once more, to say that it is meant"
        raise ConfigError(setting="NAME", problem=problem)

    async def read(pipeline: Pipeline, found: Found) -> Purged:
        with progress("counted", 0, is_told=not args.json) as bar:
            counted = await admin.purge(pipeline, found, is_dry=True, on_progress=bar.at)
        if not args.yes:
            return counted
        with progress("deleted", counted.keys, is_told=not args.json) as bar:
            return await admin.purge(pipeline, found, is_dry=False, on_progress=bar.at)

    done = look(args, read)
    return tell(args, done, _lines(done))


def _lines(done: Purged) -> Iterator[str]:
    what = f"{done.jobs} jobs, {done.parked} dead letters, {done.keys} keys of the server"
    if done.is_dry:
        yield f"pool {done.pool} has {what}: --yes deletes them, and nothing brings them back"
    else:
        yield f"pool {done.pool} is deleted: {what}"
