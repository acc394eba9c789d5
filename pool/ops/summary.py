"""A pool at a glance: what `pool status` and `top` show, and whatever else serves it.

    view (counts, the oldest job) --+
    checkup, a page of its records -+--> who is there, what there is, what is wrong and where

What is wrong is what `pool doctor` calls so, errors and warnings, by the same table: of the records
RECORDS are walked over, so what only a walk over all can find is left to it.
"""

from __future__ import annotations

from typing import Final

import attrs

from pool.core.pauses import Cordon, Pause
from pool.ops import checkup, inspect, members
from pool.ops.checkup import PoolFacts
from pool.ops.doctor import examine
from pool.ops.findings import Finding
from pool.ops.inspect import Found, Oldest, View
from pool.ops.members import NodeRow, WorkerRow
from pool.redis.pipeline import Pipeline

RECORDS: Final = 2_000


@attrs.frozen(kw_only=True)
class PoolStatus:
    """A pool at one moment.

    `jobs` counts live jobs by state, `waiting_for` the unassigned ones by handler (empty: of
    handlers that nobody has registered), `oldest` is the job that has waited longest for its start.
    `looked` records were walked over for the findings.  If these were all there are, `jobs` has
    what is queued behind another job of its key as `queued`; else it is among `waiting`.
    """

    v: int = 1
    pool: str
    server: str
    lanes: int
    ttl_s: float
    jobs: dict[str, int]
    waiting_for: dict[str, int]
    oldest: Oldest | None
    parked: int
    counters: dict[str, int]
    nodes: tuple[NodeRow, ...]
    workers: tuple[WorkerRow, ...]
    findings: tuple[Finding, ...]
    looked: int = 0
    paused: tuple[Pause, ...] = ()
    cordons: tuple[Cordon, ...] = ()

    @property
    def is_well(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings


async def status(pipeline: Pipeline, pool: str) -> PoolStatus:
    """Return the status of a pool, also of one that is not there.

    Raises:
        PoolError: The server does not answer, or refuses.
    """
    server = f"{pipeline.server.name} {pipeline.server.version}" if pipeline.server else ""
    found = await inspect.find(pipeline, pool)
    if found is None:
        return _unknown(pool, server)
    view = await inspect.view(pipeline, found)
    facts = await checkup.gather(pipeline, found, records_max=RECORDS)
    return _put_together(found, server, view, facts)


def _put_together(found: Found, server: str, view: View, facts: PoolFacts) -> PoolStatus:
    there = members.put_together(found.pool, (lane.members for lane in facts.lanes), facts.workers)
    return PoolStatus(
        pool=found.pool,
        server=server,
        lanes=found.lanes,
        ttl_s=found.ttl_s,
        jobs=_by_state(view, facts),
        waiting_for=view.waiting_for,
        oldest=view.oldest,
        parked=view.parked,
        counters=dict(sorted(view.counters.items())),
        nodes=there.nodes,
        workers=there.workers,
        findings=tuple(each for each in examine(facts) if each.severity != "note"),
        looked=facts.looked,
        paused=tuple(facts.asked.pauses.values()),
        cordons=tuple(facts.asked.cordons.values()),
    )


def _by_state(view: View, facts: PoolFacts) -> dict[str, int]:
    """Return jobs by state.  Lanes count as one number what waits and what is queued."""
    if facts.looked < sum(lane.jobs for lane in facts.lanes):
        return view.states
    queued = sum(r.state == "queued" for lane in facts.lanes for _, r in lane.records)
    return {**view.states, "waiting": max(0, view.states["waiting"] - queued), "queued": queued}


def _unknown(pool: str, server: str) -> PoolStatus:
    finding = Finding(
        rule="no-such-pool",
        severity="error",
        says=f"this server has no pool {pool!r}: no node has ever joined it",
        count=0,
        oldest_s=None,
        keys=(),
        where=(server,),
        advice="Look at the name and the address: nodes that are there say both when they begin.",
        command="",
        fix="",
    )
    return PoolStatus(
        pool=pool,
        server=server,
        lanes=0,
        ttl_s=0.0,
        jobs={},
        waiting_for={},
        oldest=None,
        parked=0,
        counters={},
        nodes=(),
        workers=(),
        findings=(finding,),
    )
