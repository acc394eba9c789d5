"""`pool journal`: of which jobs the journal takes all edges, for a while."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Final

import anyio
import attrs

from pool import checks
from pool.errors import PoolError, again
from pool.names import check_handler, check_key, check_pool, lane_of
from pool.ops import inspect
from pool.ops.cli.asking import reachable, tell
from pool.ops.cli.events import span_s
from pool.ops.why import span
from pool.redis.commands.journal import Following
from pool.redis.commands.lane import Lane
from pool.redis.scripts import ScriptCall
from pool.redis.url import Url

NAMES_MAX: Final = 16  # keys and handlers together: each script of a lane reads them
FOR_MAX_S: Final = 86_400.0


@attrs.frozen(kw_only=True)
class JournalTold(Following):
    """Of which keys and handlers all edges are noted, and for how long still."""

    v: int = 1


def run(args: argparse.Namespace) -> int:
    """Carry out `pool journal`."""
    check_pool(args.pool)
    for_s, keys, handlers = 0.0, list[str](), list[str]()
    if args.verb == "follow":
        keys, handlers = sorted({*args.key}), sorted({*args.handler})
        for key in keys:
            check_key(key)
        for handler in handlers:
            check_handler(handler)
        if not 0 < len(keys) + len(handlers) <= NAMES_MAX:
            must = f"1 to {NAMES_MAX} keys and handlers together"
            raise checks.option("--key and --handler", len(keys) + len(handlers), must)
        for_s = span_s("for", args.span)
        checks.seconds("for", for_s, low=1.0, high=FOR_MAX_S)

    def call(lane: Lane, lanes: int) -> ScriptCall:
        if args.verb == "show":
            return lane.followed()
        mine = [key for key in keys if lane_of(key, lanes) == lane.names.number]
        return lane.follow(mine, handlers, for_s=for_s)

    with reachable(args.url) as url:
        told = anyio.run(_ask_all, args.pool, url, call)
    facts = merged(told)
    return tell(args, JournalTold(**attrs.asdict(facts)), [line(facts)])


def merged(told: Sequence[Following]) -> Following:
    """Return what all lanes say, as one."""
    return Following(
        left_s=max(each.left_s for each in told),
        keys=tuple(sorted({key for each in told for key in each.keys})),
        handlers=tuple(sorted({name for each in told for name in each.handlers})),
    )


def line(facts: Following) -> str:
    """Return it for people."""
    if not facts.left_s:
        return "all edges of no job are noted"
    names = [*(f"handler {name}" for name in facts.handlers), *(f"key {k!r}" for k in facts.keys)]
    return f"for {span(facts.left_s)} all edges of {', '.join(names)} are noted"


async def _ask_all(pool: str, url: Url, call: Callable[[Lane, int], ScriptCall]) -> list[Following]:
    """Ask each lane; one that does not answer is told last, when the others have been told.

    Doing it again is as good as once.
    """
    told, failed = list[Following](), list[PoolError]()
    async with inspect.opened(pool, url) as (pipeline, found):
        for number in range(found.lanes):
            try:
                lane = await found.lane(pipeline, number)
                at = pipeline.at(lane.names.prefix)
                told.append(await at.call(call(lane, found.lanes), repeatable=True))
            except PoolError as error:
                failed.append(error)
    if failed:
        raise again(failed[0])
    return told
