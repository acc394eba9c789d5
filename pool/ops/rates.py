"""Rates of the last 24 hours, by handler, and how long jobs usually run.

What a pool did in the last 24 hours, by the minute: added up in Redis by all nodes that count.

    each node, every PERIOD_S --what it has counted--> rate.lua --> the minute under way (hash)
                                                           '--over--> one entry (stream, capped)

No node is the one that writes: whoever comes first after a minute closes it, in the step that adds
its own.  So it goes on whoever dies, and a minute that nobody has come after is read as it stands.
A call whose answer is lost is not repeated: a minute may lack a node's counts, and never has them
twice.  What a process counted in its last seconds it sends when it leaves; one that is killed takes
at most PERIOD_S of it along.

All of it is less than a megabyte: 1,440 entries of 560 bytes at most.  Where many handlers are busy
in one minute, those with least to tell are told together, as `~`.

How long jobs of a handler usually run, and from when on that is far too long.

The pool's figures by the minute (`rates`) tell it, where processes that count add to them.  Without
them nobody can say what is usual, and only a job that has run for a day without a word is unusual.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Final

import anyio
import attrs

from pool import checks
from pool.core.ids import is_number
from pool.core.record import Progress, Record, more_of
from pool.errors import NotRunning, PoolError
from pool.names import Names
from pool.ops.inspect import Found, all_of, pairs, whole
from pool.ops.metrics import BUCKETS_S, Durations, HandlerCounts, Metrics
from pool.redis.commands.journal import COUNTS_MAX, MINUTES_MAX
from pool.redis.commands.lane import Lane
from pool.redis.pipeline import Pipeline

PERIOD_S: Final = 20.0
MINUTE_MS: Final = 60_000
_PAGE: Final = 240  # entries read by one command
_WORDS: Final = {"s": "started", "a": "accepted"}
_ENDS: Final = {"d": "done", "c": "cancelled", "p": "parked", "r": "retried", "m": "moved"}
_LETTERS: Final = {outcome: letter for letter, outcome in _ENDS.items()}
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"  # of buckets


# --- what a node adds ---------------------------------------------------------------------------


def counts_of(handlers: Mapping[str, HandlerCounts]) -> Counter[str]:
    """Return all that was counted so far, as the script names it."""
    found: Counter[str] = Counter()
    for handler, each in handlers.items():
        found[f"a {handler}"] = each.accepted
        found[f"s {handler}"] = each.started
        for outcome, n in each.ended.copy().items():
            found[f"{_LETTERS[outcome]} {handler}"] = n
        for cause, n in each.failed.copy().items():
            found[f"f.{cause} {handler}"] = n
        for letter, took in (("w", each.waited), ("t", each.ran)):
            for at, n in enumerate(list(took.counts)):
                found[f"{letter}{_DIGITS[at]} {handler}"] = n
            found[f"{letter.upper()} {handler}"] = round(took.total_s * 1000)
    return found


@attrs.define(eq=False)
class Rating:
    """Adds what one node counts to the figures of its pool."""

    metrics: Metrics
    _sent: Counter[str] = attrs.field(init=False, factory=Counter)

    async def send(self) -> None:
        """Send what was counted since; what cannot be sent now is, the next time."""
        node = self.metrics._node
        if node is None or node._wiring is None or node.state in ("closed", "forked"):
            return
        context, counted = node._wiring.context, counts_of(dict(self.metrics._by_handler))
        # Below what was sent is what was counted anew: it stands for itself.
        news = iter([(f, n - self._sent[f]) for f, n in counted.items() if n > self._sent[f]])
        while some := dict(islice(news, COUNTS_MAX)):
            state = context.lanes[0]
            pipeline = context.pipeline.at(state.lane.names.prefix)
            try:
                await pipeline.call(state.lane.rate(some))
            except PoolError as error:
                if not getattr(error, "maybe_done", False):
                    return  # all that is left, too
            self._sent.update(some)


async def keep_rates(metrics: Metrics) -> None:
    """Add what a node counts to its pool's figures of 24 hours, until it is cancelled.

    Run it in a task beside the node; `pool rates` tells the figures.  It costs the store one call
    in 20 s and busy node.

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keep_rates, metrics)

    Raises:
        ConfigError: `metrics` is no `Metrics`.
    """
    await keep_rates_of(Rating(checks.instance("metrics", metrics, Metrics, refuse=checks.setting)))


async def keep_rates_of(rating: Rating) -> None:
    """Have it send, until we are cancelled."""
    while True:
        await anyio.sleep(PERIOD_S)
        try:
            await rating.send()
        except NotRunning:
            continue  # it closes, or opens again


# --- what is read -------------------------------------------------------------------------------


@attrs.define(kw_only=True)
class HandlerRates:
    """What a handler's jobs did in some time."""

    accepted: int = 0
    started: int = 0
    done: int = 0
    cancelled: int = 0
    parked: int = 0
    retried: int = 0
    moved: int = 0
    failed: Counter[str] = attrs.field(factory=Counter)  # attempts, by cause
    waited: Durations = attrs.field(factory=Durations)
    ran: Durations = attrs.field(factory=Durations)

    def add(self, what: str, n: int) -> None:
        """Add what the script calls `what`; what it does not is of a newer version."""
        if name := {**_WORDS, **_ENDS}.get(what):
            setattr(self, name, getattr(self, name) + n)
        elif what.startswith("f."):
            self.failed[what[2:]] += n
        elif what in ("W", "T"):
            (self.waited if what == "W" else self.ran).total_s += n / 1000
        elif what[:1] in ("w", "t") and 0 <= (at := _DIGITS.find(what[1:])) <= len(BUCKETS_S):
            (self.waited if what[0] == "w" else self.ran).counts[at] += n


@attrs.frozen(kw_only=True)
class RatedMinute:
    """One minute of a pool, by pool time."""

    at_ms: int
    handlers: Mapping[str, HandlerRates]


async def read(pipeline: Pipeline, found: Found, since_s: float) -> list[RatedMinute]:
    """Return the minutes that began within the last `since_s`, the oldest first.

    Raises:
        PoolError: The server does not answer, or refuses.
    """
    lane: Lane = await found.lane(pipeline, 0)
    n: Names = lane.names
    pipeline = pipeline.at(n.prefix)
    unread: list[str] = []
    now_ms, told, flat = await all_of(
        pipeline, unread, [("TIME",), ("HGETALL", n.lane), ("HGETALL", n.rates)]
    )
    now_ms += whole(pairs(told).get("offset", b"0"))
    since = (now_ms - round(since_s * 1000)) // MINUTE_MS
    minutes: dict[int, dict[str, HandlerRates]] = {}
    position = "-"
    while True:
        [page] = await all_of(
            pipeline, unread, [("XRANGE", n.rated, position, "+", "COUNT", _PAGE)]
        )
        for entry, fields in page:
            told = pairs(fields)
            position = f"({entry}"
            if is_number(told.get("at", b"")) and int(told["at"]) > since:
                by = minutes.setdefault(int(told["at"]), {})
                _add(by, counts_in(told.get("of", b"").decode(errors="replace")))
        if len(page) < _PAGE:
            break
    going = pairs(flat)
    if is_number(going.get("at", b"")) and int(going["at"]) > since:
        _add(minutes.setdefault(int(going["at"]), {}), under_way(flat))
    return [
        RatedMinute(at_ms=at * MINUTE_MS, handlers=by)
        for at, by in sorted(minutes.items())[-MINUTES_MAX - 1 :]
    ]


def under_way(flat: Sequence[bytes]) -> Iterator[tuple[str, str, int]]:
    """Yield what the minute under way has, as (handler, what, how many)."""
    for name, n in pairs(flat).items():
        what, blank, handler = name.partition(" ")
        if blank:
            yield handler, what, whole(n)


def counts_in(text: str) -> Iterator[tuple[str, str, int]]:
    """Yield what an entry's text tells, as (handler, what, how many); what is cut is left out."""
    for line in text.split("\n"):
        handler, _, words = line.partition(" ")
        for word in words.split(","):
            what, _, n = word.partition("=")
            if is_number(n.encode()):
                yield handler, what, int(n)


def _add(by: dict[str, HandlerRates], counts: Iterable[tuple[str, str, int]]) -> None:
    for handler, what, n in counts:
        by.setdefault(handler, HandlerRates()).add(what, n)


def summed(minutes: Iterable[RatedMinute]) -> dict[str, HandlerRates]:
    """Return all of some minutes together, by handler."""
    found: dict[str, HandlerRates] = {}
    for minute in minutes:
        for handler, rates in minute.handlers.items():
            _merge(found.setdefault(handler, HandlerRates()), rates)
    return found


def _merge(into: HandlerRates, other: HandlerRates) -> None:
    for name in (*_WORDS.values(), *_ENDS.values()):
        setattr(into, name, getattr(into, name) + getattr(other, name))
    into.failed.update(other.failed)
    for mine, theirs in ((into.waited, other.waited), (into.ran, other.ran)):
        mine.total_s += theirs.total_s
        for at, n in enumerate(theirs.counts):
            mine.counts[at] += n


def quantile_s(took: Durations, share: float) -> float | None:
    """Return by which of `BUCKETS_S` so large a share was over; infinity: later than all of them.

    None if there is nothing.
    """
    all_of_them, upto = sum(took.counts), 0
    if not all_of_them:
        return None
    for bound_s, n in zip((*BUCKETS_S, float("inf")), took.counts, strict=True):
        upto += n
        if upto >= share * all_of_them:
            return bound_s
    return float("inf")


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
