"""What observers are told of ordinary runs, and the log on request: see `JobEvents`.

Only where somebody listens: the worker has one of these then, and none otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import attrs

from pool.events import JobEnd, JobSettled, JobStarted
from pool.jobs.context import Context
from pool.jobs.run import Run
from pool.jobs.worker.outbox import SentEdge
from pool.redis.commands.edges import (
    CancelEdge,
    Changed,
    DoneEdge,
    Edge,
    EdgeStatus,
    GrantEdge,
    ParkEdge,
    WaitEdge,
)
from pool.runtime.observers import JobListeners

_ENDS: Final[dict[type, JobEnd]] = {
    DoneEdge: "done",
    CancelEdge: "cancelled",
    ParkEdge: "parked",
    WaitEdge: "retried",
    GrantEdge: "moved",
}
_KNOWN: Final = (EdgeStatus.DONE, EdgeStatus.REPEAT, EdgeStatus.GRANTED, EdgeStatus.UNASSIGNED)


def end_of(edge: Edge) -> JobEnd:
    """Return what an edge makes of a run that has ended."""
    return _ENDS.get(type(edge), "cancelled")


def waited_s(context: Context, run: Run) -> float:
    """Return how long a job waited until its start, or until now, in pool time."""
    began_ms = context.lanes[run.lane].now_ms(run.began_s or context.io.clock())
    return round(max(0.0, began_ms - run.start.accepted / 1000) / 1000, 3)


@attrs.frozen
class Teller:
    """Tells of one worker's runs."""

    context: Context
    listeners: JobListeners

    def started(self, run: Run, worker: str) -> None:
        """Tell that a handler is about to be called."""
        start = run.start
        share = self.listeners.share(start.key, start.id)
        if share is not None:
            run.waited_s = waited_s(self.context, run)
            event = JobStarted(
                pool=self.context.pool,
                handler=start.handler,
                key=start.key,
                job_id=start.id,
                attempt=start.attempt,
                epoch=start.epoch,
                worker=worker,
                waited_s=run.waited_s,
                is_again=start.attempt > 1 or "r" in start.flags or run.is_acknowledged,
            )
            self.listeners.tell(share, event)

    def ended(self, run: Run) -> None:
        """Note when that was."""
        run.ended_s = self.context.io.clock()

    def telling(
        self, worker: str, told: Iterable[tuple[SentEdge, Changed]]
    ) -> Iterator[tuple[SentEdge, Changed]]:
        """Pass on what was answered, and tell of each run that is settled by it."""
        for (edge, run), changed in told:
            yield (edge, run), changed
            if run is not None and type(edge) in _ENDS and changed.status in _KNOWN:
                self._settled(run, edge, worker)

    def _settled(self, run: Run, edge: Edge, worker: str) -> None:
        start, now_s = run.start, self.context.io.clock()
        share = self.listeners.share(start.key, start.id)
        if share is None:
            return
        ended_s = run.ended_s or now_s
        event = JobSettled(
            pool=self.context.pool,
            handler=start.handler,
            key=start.key,
            job_id=start.id,
            attempt=start.attempt,
            epoch=start.epoch,
            worker=worker,
            outcome=end_of(edge),
            waited_s=run.waited_s if run.began_s else waited_s(self.context, run),
            ran_s=round(ended_s - run.began_s, 6) if run.began_s else 0.0,
            took_s=round(now_s - ended_s, 6),
        )
        self.listeners.tell(share, event)
