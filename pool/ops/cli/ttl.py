"""`pool ttl`: change the lease TTL of a pool while its nodes run.

    config     the new TTL: who joins from here on is held to it
    each lane  (ttl, term) in one step, all lanes at once
                 renewals from here on grant the new one, and tell it (`renew.lua`)
                 each node takes it up by its next renewals (`pool.core.lease`), and says so

This command changes a TTL that is there.  So does a node whose settings name one, where no node's
did before (see `pool.runtime.pool_config`).  Where there is no TTL yet, the first node of a pool or
a lane writes it.  Dying after any step, or a lane that does not answer: that lane goes by the
old one, with all that belongs to it, and nodes renew as the shortest of their lanes asks for.
Nothing finishes it by itself: run it again, as often as you like.  `pool status` tells of lanes
that differ.  Of two at once the later word in `config` counts: whoever finds another one there
behind himself brings that to the lanes, so that the last to end has brought the last word.

What a node believes of its leases in a lane, and what the lane holds, by (ttl, term):

    lane          node says    the lane's script                  the node
    (10, a)       a            lease := now + 10                  believes asked + 10 - margin
    (2, b)        a            lease := max(lease, now + 2)       is told (2, b), and takes it up:
                                                                  believes asked + 2 - margin
    (2, b)        b            lease := now + 2
    (10, c)       b            lease := max(lease, now + 10)      is told (10, c), takes it up

A reply that is lost changes nothing: the node goes on believing in what it knew, and the lane has
kept that for it.  A renewal of before, come late, names an older term and shortens nothing.  A
frozen node says nothing, and its lease ends when it would have.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping

import anyio
import attrs

from pool.core.lease import Timing
from pool.errors import PoolError
from pool.names import Control, check_pool
from pool.ops import inspect
from pool.ops.cli.asking import reachable, tell
from pool.ops.inspect import Found
from pool.redis.pipeline import Pipeline
from pool.redis.url import Url
from pool.settings import Settings


@attrs.frozen(kw_only=True)
class TtlSet:
    """What became of a change."""

    v: int = 1
    pool: str
    ttl_s: float
    lanes: int
    before_s: Mapping[int, float]  # by lane, of those that were reached; 0: it had none
    missed: Mapping[int, str]  # by lane, why
    overtaken_by_s: float | None = None  # somebody else changed it meanwhile, and that counts

    @property
    def is_done(self) -> bool:
        return not self.missed and self.overtaken_by_s is None

    @property
    def stands_s(self) -> float:
        """What holds now."""
        return self.ttl_s if self.overtaken_by_s is None else self.overtaken_by_s


def run(args: argparse.Namespace) -> int:
    """Carry out `pool ttl`: 0, or 1 if it has to be run again."""
    check_pool(args.pool)
    Settings(lease_ttl_s=args.seconds)  # for its bounds
    with reachable(args.url) as url:
        changed = anyio.run(_run, args.pool, url, args.seconds)
    return tell(args, changed, lines(changed), ok=changed.is_done)


async def _run(pool: str, url: Url, ttl_s: float) -> TtlSet:
    async with inspect.opened(pool, url) as (pipeline, found):
        return await change(pipeline, found, ttl_s)


async def change(pipeline: Pipeline, found: Found, ttl_s: float) -> TtlSet:
    """Have a pool go by another TTL; doing it again resumes what was not finished.

    Raises:
        ConfigError: It is no TTL.
        StoreUnavailable, AuthError: Nothing is known to be changed; do it again.
    """
    ttl_ms = Timing(Settings(lease_ttl_s=ttl_s).lease_ttl_s or 0.0).ttl_ms
    config = Control(found.pool).config
    await pipeline.execute("HSET", config, "ttl", ttl_ms, "named", 1)
    before_s: dict[int, float] = {}
    missed: dict[int, str] = {}

    async def visit(number: int, ttl_ms: int) -> None:
        try:
            lane = await found.lane(pipeline, number)
            call = lane.change_ttl(ttl_ms)
            reply = await pipeline.at(lane.names.prefix).call(call, repeatable=True)
            before_s.setdefault(number, reply / 1000)
            missed.pop(number, None)
        except PoolError as error:
            missed[number] = str(error)

    brought_ms, stands_ms = 0, ttl_ms
    while stands_ms != brought_ms:
        brought_ms = stands_ms
        async with anyio.create_task_group() as tasks:
            for number in range(found.lanes):
                tasks.start_soon(visit, number, brought_ms)
        stands_ms = (
            inspect.whole(await pipeline.execute("HGET", config, "ttl") or b"") or brought_ms
        )
    return TtlSet(
        pool=found.pool,
        ttl_s=ttl_ms / 1000,
        lanes=found.lanes,
        before_s=dict(sorted(before_s.items())),
        missed=dict(sorted(missed.items())),
        overtaken_by_s=None if stands_ms == ttl_ms else stands_ms / 1000,
    )


def lines(changed: TtlSet) -> list[str]:
    """Return it for people."""
    before = {s for s in changed.before_s.values() if s not in (0, changed.ttl_s)}
    was = f", before {', '.join(f'{s:g} s' for s in sorted(before))}" if before else ""
    reached = f"{len(changed.before_s)} of {changed.lanes} lanes"
    told = [f"pool {changed.pool} goes by a TTL of {changed.stands_s:g} s in {reached}{was}"]
    told += [f"! lane {number} was not reached: {why}" for number, why in changed.missed.items()]
    if changed.missed:
        told.append("! run it again")
    if changed.overtaken_by_s is not None:
        told.append("! somebody else asked for that later than you for yours")
    return told
