"""`pool status`: a pool at a glance, and what is wrong with it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

import anyio

from pool.names import check_pool
from pool.ops import inspect, summary
from pool.ops.cli.asking import reachable, tell
from pool.ops.cli.doctor import finding_lines
from pool.ops.cli.members import worker_table
from pool.ops.summary import PoolStatus
from pool.ops.terminal import Safe, is_coloured, painted
from pool.redis.url import Url

_WORKERS_SHOWN = 50  # as text; JSON holds them all
_FINDINGS_SHOWN = 20


def run(args: argparse.Namespace) -> int:
    """Carry out `pool status`: 0, or 1 if something is wrong."""
    check_pool(args.pool)
    with reachable(args.url) as url:
        status = anyio.run(fetch, args.pool, url)
    return tell(args, status, lines(status), ok=status.is_well)


async def fetch(pool: str, url: Url) -> PoolStatus:
    """Return the status of a pool; raises as `inspect.opened`."""
    async with inspect.opened(pool, url) as (pipeline, _):
        return await summary.status(pipeline, pool)


def lines(status: PoolStatus) -> Iterator[str]:
    """Yield it for people: what there is, who works, and then what is wrong."""
    yield from head_lines(status)
    if status.workers:
        yield from worker_table(status.workers[:_WORKERS_SHOWN])
    if len(status.workers) > _WORKERS_SHOWN:
        yield f"... and {len(status.workers) - _WORKERS_SHOWN} more workers: pool workers"
    if status.lanes and not status.nodes:
        yield "nobody is here: what waits, waits for the next to join"
    yield from wrong_lines(status)


def head_lines(status: PoolStatus) -> Iterator[str]:
    """Yield what there is."""
    lanes = f"{status.lanes} lane{'s' if status.lanes != 1 else ''}"
    yield _bold(f"pool {status.pool} on {status.server}, {lanes}, TTL {status.ttl_s:g} s")
    if status.jobs:
        states = status.jobs.items()
        counts = [f"{n} {state}" for state, n in states if n or state != "queued"]
        yield f"jobs      {', '.join([*counts, f'{status.parked} parked'])}"
    for pause in status.paused:
        word = "resuming" if pause.is_over else "paused"
        yield f"{word:9} {pause}, by {pause.by}{_because(pause.reason)}"
    for cordon in status.cordons:
        word = "drains" if cordon.is_drain else "cordoned"
        yield f"{word:9} {cordon.id}, by {cordon.by}{_because(cordon.reason)}"
    if status.waiting_for:
        counts = [
            f"{n} for {name or 'handlers that nobody has'}" for name, n in _most(status.waiting_for)
        ]
        yield f"waiting   {', '.join(counts)}"
    oldest = status.oldest
    if oldest is not None:
        owner = f", granted to {oldest.owner}" if oldest.owner else ""
        waited = f"{oldest.state} for {oldest.age_s:.1f} s"
        yield f"oldest    {oldest.key} ({oldest.handler}) {waited}{owner}"
    if status.counters:
        yield f"counters  {', '.join(f'{count} {name}' for name, count in status.counters.items())}"
    clients = sum(not node.workers for node in status.nodes)
    yield f"nodes     {len(status.nodes)}, of which {clients} are clients"


def wrong_lines(status: PoolStatus, shown: int = _FINDINGS_SHOWN) -> Iterator[str]:
    """Yield what is wrong, and where."""
    for each in status.findings[:shown]:
        yield from finding_lines(each)
    if len(status.findings) > shown:
        yield f"... and {len(status.findings) - shown} more findings: pool doctor"
    if status.is_well:
        yield _bold("nothing is wrong")


def _most(counts: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda each: -each[1])[:8]


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


def _bold(text: str) -> Safe:
    return painted(text, is_on=is_coloured(sys.stdout))
