"""How long jobs of a handler usually run, and from when on that is far too long.

The pool's figures by the minute (`rates`) tell it, where processes that count add to them.  Without
them nobody can say what is usual, and only a job that has run for a day without a word is unusual.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Final

from pool.core.record import Progress, Record, more_of
from pool.errors import PoolError
from pool.names import Names
from pool.ops.inspect import all_of, pairs
from pool.ops.metrics import Durations
from pool.ops.rates import HandlerRates, counts_in, quantile_s, under_way
from pool.redis.pipeline import Pipeline

MINUTES: Final = 240  # with runs, the newest: one page of a stream
RUNS_MIN: Final = 20  # of a handler, below which its figures say nothing
SHARE: Final = 0.99  # of the runs take no longer than the usual time
TIMES: Final = 10  # the usual time
FLOOR_S: Final = 60.0  # what is shorter than this is never unusual
UNKNOWN_S: Final = 86_400.0  # where nothing is known of a handler
QUIET_S: Final = 3_600.0  # then: without progress for so long


async def usual_times(pipeline: Pipeline, pool: str) -> dict[str, float]:
    """Return the time in seconds that 99 of 100 runs of each handler do not exceed.

    A handler that nobody counts is left out, and all are if the first lane does not answer.
    """
    n = Names(pool, 0)
    rates = dict[str, HandlerRates]()
    try:
        newest, flat = await all_of(
            pipeline.at(n.prefix),
            [],
            [("XREVRANGE", n.rated, "+", "-", "COUNT", MINUTES), ("HGETALL", n.rates)],
        )
    except PoolError:
        return {}
    counts = [under_way(flat)]
    counts += [counts_in(pairs(each).get("of", b"").decode(errors="replace")) for _, each in newest]
    for handler, what, count in chain.from_iterable(counts):
        rates.setdefault(handler, HandlerRates()).add(what, count)
    return {
        handler: _usual_s(each.ran)
        for handler, each in rates.items()
        if sum(each.ran.counts) >= RUNS_MIN
    }


def _usual_s(ran: Durations) -> float:
    """Return a bound of nearly all; the mean stands for those beyond the last bound."""
    bound_s = quantile_s(ran, SHARE) or 0.0
    mean_s = ran.total_s / sum(ran.counts)
    return bound_s if bound_s != float("inf") else max(1800.0, mean_s)


def limit_s(usual_s: float | None) -> float:
    """Return from when on a run is far longer than usual."""
    return UNKNOWN_S if usual_s is None else max(FLOOR_S, TIMES * usual_s)


def is_unusual(record: Record, usual: Mapping[str, float], now_ms: float) -> bool:
    """Say whether a finite job has run far longer than is usual for its handler."""
    if record.state != "running" or record.kind != "job" or not record.since_ms:
        return False
    usual_s = usual.get(record.handler)
    if now_ms - record.since_ms <= 1000 * limit_s(usual_s):
        return False
    told = Progress.parse(more_of(record.more, "progress"))
    is_quiet = told is None or now_ms - told.at_ms > 1000 * QUIET_S
    return usual_s is not None or is_quiet
