"""`pool config`: what holds for all of a pool; what may be changed while its nodes run."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import attrs

from pool.errors import ConfigError, shown
from pool.ops import stores
from pool.ops.cli import ttl
from pool.ops.cli.asking import look, tell
from pool.ops.cli.ttl import TtlSet
from pool.ops.inspect import Found
from pool.ops.stores import ConfigTold
from pool.redis.pipeline import Pipeline
from pool.settings import Settings

_CHANGEABLE = "lease_ttl_s"


def run(args: argparse.Namespace) -> int:
    """Carry out `pool config`: 0, or 1 if a change has not come to all lanes."""
    if args.set is not None:
        return _change(args, _seconds(args.set))
    found = look(args, stores.config)
    return tell(args, found, _lines(found), ok=not found.lanes_apart)


def _change(args: argparse.Namespace, ttl_s: float) -> int:
    async def work(pipeline: Pipeline, found: Found) -> tuple[TtlSet, ConfigTold]:
        changed = await ttl.change(pipeline, found, ttl_s)
        return changed, await stores.config(pipeline, attrs.evolve(found, ttl_s=changed.stands_s))

    changed, found = look(args, work)
    is_well = changed.is_done and not found.lanes_apart
    return tell(args, found, ttl.lines(changed), ok=is_well)


def _seconds(text: str) -> float:
    """Return the new value of what can be changed.

    Raises:
        ConfigError: It is something else, or no number.
    """
    name, _, value = text.partition("=")
    if name != _CHANGEABLE:
        if name in ("lanes", "protocol", "generation"):
            problem = "it stands since the pool was made; another value means another pool"
        else:
            problem = f"nothing of that name holds for all of a pool: there is {_CHANGEABLE}"
        raise ConfigError(setting=shown(name), problem=problem)
    try:
        seconds = float(value)
    except ValueError:
        raise ConfigError(setting=name, problem=f"{shown(value)!r} is no number") from None
    Settings(lease_ttl_s=seconds)  # for its bounds
    return seconds


def _lines(found: ConfigTold) -> Iterator[str]:
    yield f"lease_ttl_s  {found.lease_ttl_s:g}   (pool config --set lease_ttl_s=SECONDS)"
    yield f"lanes        {found.lanes}"
    yield f"protocol     {found.protocol}"
    yield f"generation   {found.generation}"
    if found.lanes_apart:
        apart = ", ".join(map(str, found.lanes_apart))
        yield f"! lanes {apart} do not go by that TTL: set it again"
