"""Where a polling worker's services should be: told, and never more often than there is room.

    the fleet is as it was for `settle_delay_s` --> another worker is first and has room --> release

Its client is told at each request until it has released the service, which then goes to whoever is
first; see `jobs/worker/rebalance.py` for the same of a worker of ours.
"""

from __future__ import annotations

import attrs

from pool.core.record import Record
from pool.errors import PoolError
from pool.jobs.context import Context
from pool.jobs.remote.claims import JobClaim
from pool.jobs.remote.visit import Visit
from pool.redis.commands.calls import Target
from pool.redis.commands.member import Opening


@attrs.define(eq=False)
class Moving:
    """Decides for one gateway."""

    context: Context
    _candidates: object = None  # as it was seen last
    _since_s: float = 0.0

    async def of(self, visit: Visit) -> list[JobClaim]:
        """Return which services should go elsewhere."""
        services = [
            beat.job
            for lane in visit.said
            for beat in visit.held(lane)
            if beat.job.kind == "service"
        ]
        found = list[JobClaim]()
        if not services or not self._is_settled():
            return found
        own = self.context.candidates.workers.get(visit.claim.id)
        if own is None or own.is_draining:
            return found  # it is announced again; or it is cordoned, and keeps what it has
        for job in services:
            record = visit.running.get(job.key)
            if record is not None and not record.intent and await self._is_away(visit, job, record):
                found.append(job)
        return found

    def _is_settled(self) -> bool:
        """Whether the fleet has stayed as it is for long enough, as far as we have looked."""
        now_s, candidates = self.context.io.clock(), self.context.candidates
        if candidates is not self._candidates:
            self._candidates, self._since_s = candidates, now_s
        return now_s - self._since_s >= self.context.settings.settle_delay_s

    async def _is_away(self, visit: Visit, job: JobClaim, record: Record) -> bool:
        first = self.context.targets(job.key, job.handler, lane=job.lane, limit=1)
        if not first or first[0].id == visit.claim.id:
            return False
        if self.context.roster.asked.pause_of(job.key, job.handler) is not None:
            return False
        ran_s = (visit.now_ms(job.lane) - record.since_ms) / 1000
        if record.marks.deaths and ran_s < self.context.settings.crash_window_s:
            return False
        return await self._has_room(job.lane, first[0])

    async def _has_room(self, lane: int, target: Target) -> bool:
        names, pipeline = self.context.lanes[lane].lane.names, self.context.pipeline
        try:
            text, running, pending = await pipeline.execute_all(
                [
                    ("HGET", names.open, target.id),
                    ("SCARD", names.owned(target.name)),
                    ("XLEN", names.stream(target.name)),
                ]
            )
        except PoolError:
            return False
        told = Opening.parse(text or b"")
        takes = told.takes if told is not None and told.number == target.number else None
        return takes is not None and takes > running + pending
