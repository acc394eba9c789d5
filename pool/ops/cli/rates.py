"""`pool rates`: what a pool did in the last hours, by handler."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from typing import Final

import attrs

from pool import checks
from pool.ops import rates
from pool.ops.cli.asking import look, tell
from pool.ops.cli.events import span_s
from pool.ops.inspect import Found
from pool.ops.metrics import Durations
from pool.ops.rates import HandlerRates, RatedMinute, quantile_s, summed
from pool.redis.pipeline import Pipeline

VERSION: Final = 1  # of the JSON: raised when a field goes or means something else
DAY_S: Final = 86_400.0
_BARS: Final = " ▁▂▃▄▅▆▇█"
_COLUMNS: Final = 48


@attrs.frozen(kw_only=True)
class HandlerTold:
    """What a handler's jobs did; times are bounds of buckets, in seconds, null: longer, or none."""

    accepted: int
    started: int
    done: int
    cancelled: int
    parked: int
    retried: int
    moved: int
    failed: dict[str, int]  # attempts, by cause
    waited_p50_s: float | None
    waited_p99_s: float | None
    ran_p50_s: float | None
    ran_p99_s: float | None


@attrs.frozen(kw_only=True)
class MinuteTold:
    """One minute, by pool time."""

    at_ms: int
    settled: int
    failed: int


@attrs.frozen(kw_only=True)
class RatesTold:
    """What a pool did; `v` rises when a field goes or means something else."""

    v: int = VERSION
    pool: str
    since_s: float
    handlers: dict[str, HandlerTold]
    minutes: list[MinuteTold]


def run(args: argparse.Namespace) -> int:
    """Carry out `pool rates`."""
    since_s = seconds_of(args.since)

    async def read(pipeline: Pipeline, found: Found) -> int:
        minutes = await rates.read(pipeline, found, since_s)
        told = told_of(found.pool, since_s, minutes)
        return tell(args, told, lines(found.pool, args.since, minutes))

    return look(args, read)


def seconds_of(text: str) -> float:
    """Return how long `24h`, `1d`, `90m` or `600s` is.

    Raises:
        InvalidOption: It is no such span, or more than what is kept.
    """
    since_s: float = checks.seconds("since", span_s("since", text), low=60.0, high=DAY_S)
    return since_s


def told_of(pool: str, since_s: float, minutes: Sequence[RatedMinute]) -> RatesTold:
    """Return it for programs."""
    return RatesTold(
        pool=pool,
        since_s=since_s,
        handlers={handler: _facts(each) for handler, each in summed(minutes).items()},
        minutes=[
            MinuteTold(
                at_ms=minute.at_ms,
                settled=sum(_settled(each) for each in minute.handlers.values()),
                failed=sum(each.failed.total() for each in minute.handlers.values()),
            )
            for minute in minutes
        ],
    )


def _facts(each: HandlerRates) -> HandlerTold:
    def within(took: Durations, share: float) -> float | None:
        return _finite(quantile_s(took, share))

    return HandlerTold(
        accepted=each.accepted,
        started=each.started,
        done=each.done,
        cancelled=each.cancelled,
        parked=each.parked,
        retried=each.retried,
        moved=each.moved,
        failed=dict(each.failed),
        waited_p50_s=within(each.waited, 0.5),
        waited_p99_s=within(each.waited, 0.99),
        ran_p50_s=within(each.ran, 0.5),
        ran_p99_s=within(each.ran, 0.99),
    )


def _finite(value: float | None) -> float | None:
    return None if value is None or math.isinf(value) else value


def _settled(each: HandlerRates) -> int:
    return each.done + each.cancelled + each.parked


def lines(pool: str, since: str, minutes: Sequence[RatedMinute]) -> Iterator[str]:
    """Yield it for people."""
    if not any(minute.handlers for minute in minutes):
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
