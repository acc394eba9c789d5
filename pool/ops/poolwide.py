"""The figures of a whole pool, read from Redis when somebody asks: the same from each process.

Scraped from one place, not from each: a look reads what `pool doctor` reads, of RECORDS_MAX records
at most, in bounded pages; nothing is written, and nothing is kept for it.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import Final

from pool.errors import PoolError
from pool.ops import inspect
from pool.ops.checkup import HANDLERS_MAX as HANDLERS_READ
from pool.ops.checkup import PoolFacts, gather
from pool.ops.doctor import RULES, can_run_now, examine
from pool.ops.metrics import HANDLERS_MAX, OTHER, Families, MetricFamily
from pool.redis.pipeline import Pipeline
from pool.redis.url import Url

RECORDS_MAX: Final = 2_000
_SCRIPTS: Final = re.compile(r"^cmdstat_(?:evalsha|eval):calls=(\d+),usec=(\d+)", re.MULTILINE)


async def look(pool: str, url: Url) -> list[MetricFamily]:
    """Return the figures of a pool as it is now.

    Raises:
        StoreUnavailable, AuthError, UnsupportedServer: The server cannot be asked.
        ConfigError: There is no such pool, or the address cannot work.
    """
    async with inspect.opened(pool, url) as (pipeline, found):
        facts = await gather(pipeline, found, records_max=RECORDS_MAX)
        return of_pool(facts, await _script_times(pipeline))


async def _script_times(pipeline: Pipeline) -> tuple[int, float] | None:
    """Return how often scripts ran on the server, and for how many seconds, since it started.

    None if its user may not ask.
    """
    [reply] = await pipeline.replies_to([("INFO", "commandstats")])
    if isinstance(reply, PoolError):
        return None
    told = _SCRIPTS.findall(reply.decode(errors="replace"))
    return sum(int(calls) for calls, _ in told), sum(int(us) for _, us in told) / 1e6


def of_pool(facts: PoolFacts, scripts: tuple[int, float] | None) -> list[MetricFamily]:
    """Return the figures that these facts hold."""
    made = Families({"pool": facts.pool})
    lanes = facts.lanes
    unassigned = sum(lane.counters.get("unassigned", 0) for lane in lanes)
    waiting = sum(lane.counters.get("waiting", 0) for lane in lanes)
    owned = max(0, facts.jobs - unassigned - waiting)
    states = {"owned": owned, "unassigned": unassigned, "waiting": waiting}
    made.many(
        "gauge",
        "pool_jobs",
        "Live jobs: with a worker, waiting for one, waiting for their time.",
        [({"state": state}, count) for state, count in states.items()],
    )
    _queues(made, facts)
    slots = sum(worker.capacity for worker in facts.workers.values() if not worker.is_draining)
    made.one("gauge", "pool_workers", "Workers of the fleet.", len(facts.workers))
    made.one("gauge", "pool_slots", "Jobs that all workers run at once at most.", slots)
    wanted = owned + _startable(facts)
    text = "Slots that the jobs which could run now would fill: scale by it, see the how-to."
    made.one("gauge", "pool_slots_wanted", text, wanted)
    made.one("gauge", "pool_parked_jobs", "Dead letters.", sum(lane.parked for lane in lanes))
    late_ms = [each for lane in lanes for each in (lane.late_starts, lane.late_due)]
    overdue_s = max((each.oldest_ms for each in late_ms), default=0.0) / 1000
    text = "By how much the most overdue start, retry or limit is late."
    made.one("gauge", "pool_overdue_seconds", text, overdue_s)
    counted: Counter[str] = Counter()
    for lane in lanes:
        counted.update({k: v for k, v in lane.counters.items() if k not in inspect.FACTS})
    made.counter("pool_lane_events", "What lanes count, see `pool status`.", "what", counted)
    _findings(made, facts)
    _server(made, facts, scripts)
    return made.all


def _startable(facts: PoolFacts) -> int:
    """Return how many unassigned jobs a further worker could start now.

    Jobs of handlers that no node ever registered are in no queue, and are not counted. If a lane
    has more handlers than are read, the jobs in the queues that were not read are counted.
    """
    count = 0
    for lane in facts.lanes:
        count += sum(each.count for each in lane.queues if can_run_now(facts, lane, each))
        if len(lane.handlers) >= HANDLERS_READ:
            queued = sum(each.count for each in lane.queues)
            count += max(0, lane.counters.get("unassigned", 0) - queued)
    return count


def _queues(made: Families, facts: PoolFacts) -> None:
    """Add what waits for a worker, by handler; of many handlers the longest waiting."""
    counts: Counter[str] = Counter()
    ages_s: dict[str, float] = defaultdict(float)
    for lane in facts.lanes:
        for queue in lane.queues:
            counts[queue.handler] += queue.count
            is_startable = can_run_now(facts, lane, queue)
            age_s = max(0.0, lane.now_ms - queue.oldest_ms) / 1000 if is_startable else 0.0
            ages_s[queue.handler] = max(ages_s[queue.handler], age_s)
    told = sorted(counts, key=lambda handler: -ages_s[handler])
    for handler in told[HANDLERS_MAX:]:
        counts[OTHER] += counts.pop(handler)
        ages_s[OTHER] = max(ages_s[OTHER], ages_s.pop(handler))
    made.many(
        "gauge",
        "pool_queue_jobs",
        "Jobs that wait for a worker with a free slot.",
        [({"handler": handler}, counts[handler]) for handler in counts],
    )
    made.many(
        "gauge",
        "pool_queue_age_seconds",
        "For how long the first has waited of those that could run now; 0: none could.",
        [({"handler": handler}, ages_s[handler]) for handler in counts],
    )
    oldest_s = max(ages_s.values(), default=0.0)
    made.one("gauge", "pool_queue_oldest_seconds", "The longest of these.", oldest_s)


def _findings(made: Families, facts: PoolFacts) -> None:
    found = Counter(each.rule for each in examine(facts))
    made.many(
        "gauge",
        "pool_findings",
        f"What `pool doctor` finds in {RECORDS_MAX} records and all indexes, by rule.",
        [({"rule": rule.name, "severity": rule.severity}, found[rule.name]) for rule in RULES],
    )


def _server(made: Families, facts: PoolFacts, scripts: tuple[int, float] | None) -> None:
    memory = [each.memory for each in facts.servers if each.memory is not None]
    for name, text, field in (
        ("pool_server_memory_bytes", "What the servers of the pool use.", "used_memory"),
        ("pool_server_memory_max_bytes", "What they may use; 0: no limit.", "maxmemory"),
    ):
        if memory:
            used = sum(inspect.whole(each.get(field, "0").encode()) for each in memory)
            made.one("gauge", name, text, used)
    if scripts is not None:
        text = "Scripts that the server has run since it started, all its pools'."
        made.one("counter", "pool_server_scripts_total", text, scripts[0])
        text = "How long it has run them."
        made.one("counter", "pool_server_script_seconds_total", text, scripts[1])
