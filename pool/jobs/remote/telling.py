"""What listeners are told of runs at workers that poll: see `JobEvents`.

    handed out --> `job.started` --> ended, retried, given back --> `job.settled`
                   each by the gateway that did it

A gateway keeps nothing that counts: since when a run goes on stands in its record.  Of those that
it has handed out itself it remembers that, up to KNOWN_MAX; of another gateway's it asks the store
before it ends them.  Only where somebody listens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from pool.core.record import Record, Start
from pool.events import JobEnd, JobSettled, JobStarted
from pool.jobs.context import Context
from pool.jobs.remote.claims import JobClaim, WorkerClaim

KNOWN_MAX: Final = 10_000


@attrs.frozen
class RemoteRun:
    """A run that was there when its end was asked for."""

    waited_s: float
    ran_s: float
    asked_s: float  # by our own clock


@attrs.define(eq=False)
class Telling:
    """Tells of what one gateway does."""

    context: Context
    # By key and epoch, the oldest first: for how long it waited, and when it began, in pool time.
    _known: dict[tuple[str, int], tuple[float, float]] = attrs.field(init=False, factory=dict)

    def started(self, claim: WorkerClaim, lane: int, start: Start) -> None:
        """Tell that a run was handed out; once, however many polls bring it."""
        listeners, run = self.context.jobs, (start.key, start.epoch)
        share = listeners.share(start.key, start.id) if listeners is not None else None
        if listeners is None or share is None or run in self._known:
            return
        began_ms = self.context.lanes[lane].now_ms(self.context.io.clock())
        waited_s = _waited_s(start.accepted, began_ms)
        while len(self._known) >= KNOWN_MAX:
            del self._known[next(iter(self._known))]
        self._known[run] = waited_s, began_ms
        event = JobStarted(
            pool=self.context.pool,
            handler=start.handler,
            key=start.key,
            job_id=start.id,
            attempt=start.attempt,
            epoch=start.epoch,
            worker=claim.name,
            waited_s=waited_s,
            is_again=start.attempt > 1 or "r" in start.flags,
        )
        listeners.tell(share, event)

    def unknown(self, jobs: Sequence[JobClaim]) -> list[str]:
        """Return the keys of those that somebody wants to hear of, and that are not known here."""
        listeners = self.context.jobs
        if listeners is None:
            return []
        return [
            job.key
            for job in jobs
            if (job.key, job.epoch) not in self._known
            and listeners.share(job.key, job.id) is not None
        ]

    def runs(
        self, lane: int, jobs: Sequence[JobClaim], records: Mapping[str, Record]
    ) -> dict[JobClaim, RemoteRun]:
        """Return those that are there, as we know or as their records say."""
        found, now_s = dict[JobClaim, RemoteRun](), self.context.io.clock()
        now_ms = self.context.lanes[lane].now_ms(now_s)
        for job in jobs:
            times, record = self._known.get((job.key, job.epoch)), records.get(job.key)
            if times is None and record is not None and record.epoch == job.epoch:
                times = _waited_s(record.accepted, record.since_ms), record.since_ms
            if times is not None:
                ran_s = round(max(0.0, now_ms - times[1]) / 1000, 6)
                found[job] = RemoteRun(times[0], ran_s, now_s)
        return found

    def settled(
        self, claim: WorkerClaim, job: JobClaim, end: JobEnd, run: RemoteRun | None
    ) -> None:
        """Tell how a run has ended; None: it had not begun, or nobody knows since when it ran."""
        self._known.pop((job.key, job.epoch), None)
        listeners = self.context.jobs
        share = listeners.share(job.key, job.id) if listeners is not None else None
        if listeners is None or share is None:
            return
        took_s = self.context.io.clock() - run.asked_s if run is not None else 0.0
        event = JobSettled(
            pool=self.context.pool,
            handler=job.handler,
            key=job.key,
            job_id=job.id,
            attempt=job.attempt,
            epoch=job.epoch,
            worker=claim.name,
            outcome=end,
            waited_s=run.waited_s if run is not None else 0.0,
            ran_s=run.ran_s if run is not None else 0.0,
            took_s=round(took_s, 6),
        )
        listeners.tell(share, event)


def _waited_s(accepted: int, began_ms: float) -> float:
    return round(max(0.0, began_ms - accepted / 1000) / 1000, 3)
