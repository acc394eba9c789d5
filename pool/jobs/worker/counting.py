"""What a worker tells the meter of its node, where there is one: see `pool.jobs.meter`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pool.redis.commands.change import EdgeStatus
from pool.redis.commands.edges import (
    CancelEdge,
    DoneEdge,
    Edge,
    GrantEdge,
    ParkEdge,
    WaitEdge,
)

if TYPE_CHECKING:
    from pool.jobs.context import LaneState
    from pool.jobs.meter import Meter, RunOutcome
    from pool.jobs.run import Run

_OUTCOMES: Final[dict[type[Edge], RunOutcome]] = {
    DoneEdge: "done",
    CancelEdge: "cancelled",
    ParkEdge: "parked",
    WaitEdge: "retried",
    GrantEdge: "released",
}
_STOOD: Final = (*(EdgeStatus.DONE, EdgeStatus.REPEAT, EdgeStatus.GRANTED, EdgeStatus.UNASSIGNED),)


def waited_s(run: Run, lane: LaneState, until_s: float) -> float:
    """Return how long ago, by pool time, a job was accepted: at this moment of our own clock."""
    until_ms = lane.server_ms + 1000 * (until_s - lane.server_at_s)
    return max(0.0, until_ms - run.start.accepted / 1000) / 1000


def count_start(meter: Meter, run: Run, lane: LaneState) -> None:
    """Count a run whose handler is about to be called.

    How long its job waited is told of its first start only.
    """
    start = run.start
    is_first = start.attempt == 1 and not run.is_acknowledged and "r" not in start.flags
    meter.started(start.handler, waited_s(run, lane, run.began_s) if is_first else None)


def count_end(meter: Meter, run: Run, edge: Edge, status: EdgeStatus) -> None:
    """Count a run of which the store has answered what became of it; a lost one was counted."""
    if not run.is_lost:
        outcome = _OUTCOMES[type(edge)] if status in _STOOD else "lost"
        meter.ended(run.start.handler, outcome, _ran_s(run, run.ended_s))


def count_loss(meter: Meter, run: Run, now_s: float) -> None:
    """Count a run that is another's by now."""
    meter.ended(run.start.handler, "lost", _ran_s(run, run.ended_s or now_s))


def _ran_s(run: Run, ended_s: float) -> float:
    return max(0.0, ended_s - run.began_s) if run.began_s else 0.0
