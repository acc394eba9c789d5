"""`pool rates`: what a pool did in the last hours, by handler."""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import anyio
import attrs

from pool.errors import ConfigError
from pool.names import check_pool
from pool.ops import inspect, rates
from pool.ops.cli.status import reachable
from pool.ops.metrics import Durations
from pool.ops.rates import HandlerRates, RatedMinute, quantile_s, summed
from pool.ops.terminal import write
from pool.redis.url import Url

VERSION: Final = 1  # of the JSON: raised when a field goes or means something else
DAY_S: Final = 86_400.0
_SPAN: Final = re.compile(r"([0-9]{1,6})([smh])")
_UNITS: Final = {"s": 1, "m": 60, "h": 3600}
_BARS: Final = " ▁▂▃▄▅▆▇█"
_COLUMNS: Final = 48


def run(args: argparse.Namespace) -> int:
    """Carry out `pool rates`: 0, or 1 if nothing was counted."""
    check_pool(args.pool)
    since_s = seconds_of(args.since)
    with reachable(args.url) as url:
        minutes = anyio.run(fetch, args.pool, url, since_s)
    if args.json:
        write([json.dumps(as_json(args.pool, since_s, minutes))])
    else:
        write(lines(args.pool, args.since, minutes))
    return 0 if minutes else 1


def seconds_of(text: str) -> float:
    """Return how long `24h`, `90m` or `600s` is.

    Raises:
        ConfigError: It is no such span, or more than what is kept.
    """
    found = _SPAN.fullmatch(text)
    since_s = float(int(found[1]) * _UNITS[found[2]]) if found is not None else 0.0
    if not 60.0 <= since_s <= DAY_S:
        problem = "give a span of 1m to 24h, such as 24h, 90m or 600s"
        raise ConfigError(setting="since", problem=problem)
    return since_s


async def fetch(pool: str, url: Url, since_s: float) -> list[RatedMinute]:
    """Return the minutes of a pool.

    Raises:
        StoreUnavailable, AuthError, UnsupportedServer: The server cannot be asked.
        ConfigError: There is no such pool, or the address cannot work.
    """
    async with inspect.opened(pool, url) as (pipeline, found):
        return await rates.read(pipeline, found, since_s)


def as_json(pool: str, since_s: float, minutes: Sequence[RatedMinute]) -> dict[str, Any]:
    """Return it for programs; quantiles are the bounds of buckets, in seconds, null: longer."""
    return {
        "v": VERSION,
        "pool": pool,
        "since_s": since_s,
        "handlers": {handler: _facts(each) for handler, each in summed(minutes).items()},
        "minutes": [
            {
                "at_ms": minute.at_ms,
                "settled": sum(_settled(each) for each in minute.handlers.values()),
                "failed": sum(each.failed.total() for each in minute.handlers.values()),
            }
            for minute in minutes
        ],
    }


def _facts(each: HandlerRates) -> dict[str, Any]:
    counts = attrs.asdict(each, filter=lambda field, _: field.name not in ("waited", "ran"))
    times = {
        f"{name}_{word}_s": _finite(quantile_s(took, share))
        for name, took in (("waited", each.waited), ("ran", each.ran))
        for word, share in (("p50", 0.5), ("p99", 0.99))
    }
    return {**counts, "failed": dict(each.failed), **times}


def _finite(value: float | None) -> float | None:
    return None if value is None or math.isinf(value) else value


def _settled(each: HandlerRates) -> int:
    return each.done + each.cancelled + each.parked


def lines(pool: str, since: str, minutes: Sequence[RatedMinute]) -> Iterator[str]:
    """Yield it for people."""
    if not minutes:
        yield f"pool {pool}: nothing was counted in the last {since}"
        yield "next  run workers with --metrics-port, or keep_rates() beside a node of your own"
        return
    by_handler = summed(minutes)
    settled = sum(map(_settled, by_handler.values()))
    failed = sum(each.failed.total() for each in by_handler.values())
    yield f"pool {pool}: {settled:,} jobs settled, {failed:,} attempts failed in the last {since}"
    yield f"jobs a minute  |{_drawn(minutes)}|"
    header = (
        "handler",
        "settled",
        "parked",
        "retried",
        "failed",
        "wait p50",
        "p99",
        "run p50",
        "p99",
    )
    rows = [header]
    for name, each in sorted(by_handler.items(), key=lambda item: -_settled(item[1])):
        counts = (_settled(each), each.parked, each.retried, each.failed.total())
        took = [_span(took, share) for took in (each.waited, each.ran) for share in (0.5, 0.99)]
        rows.append((name, *(f"{n:,}" for n in counts), *took))  # type: ignore[arg-type]
    widths = [max(len(row[at]) for row in rows) for at in range(len(header))]
    for row in rows:
        first, *others = (
            f"{w:<{n}}" if not i else f"{w:>{n}}"
            for i, (w, n) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join((first, *others)).rstrip()
    for name, each in by_handler.items():
        if each.failed:
            causes = ", ".join(f"{cause} {n:,}" for cause, n in each.failed.most_common(5))
            yield f"{name} failed by: {causes}"


def _span(took: Durations, share: float) -> str:
    value_s = quantile_s(took, share)
    if value_s is None:
        return "-"
    if math.isinf(value_s):
        return "longer"
    return f"{value_s * 1000:g} ms" if value_s < 1 else f"{value_s:g} s"


def _drawn(minutes: Sequence[RatedMinute]) -> str:
    """Return how many jobs were settled over the time, as bars."""
    first, last = minutes[0].at_ms, minutes[-1].at_ms
    bars = [0] * _COLUMNS
    for minute in minutes:
        at = (minute.at_ms - first) * (_COLUMNS - 1) // max(1, last - first)
        bars[at] += sum(_settled(each) for each in minute.handlers.values())
    most = max(bars) or 1
    return "".join(_BARS[math.ceil(n / most * (len(_BARS) - 1))] for n in bars)
