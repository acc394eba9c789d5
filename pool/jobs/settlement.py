"""Decisions about jobs as edges that `advance` takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pool.core import lifecycle
from pool.core.record import CAUSE_CHARS_MAX, ERROR_CHARS_MAX, Record, one_line
from pool.core.settlement import CancelJob, Decision, Grant, Judgement, ParkJob, Wait
from pool.core.timing import Timing
from pool.jobs.context import Context
from pool.redis.commands.change import Changed, Edge, Status
from pool.settings import Settings


def outcome_ttl_ms(settings: Settings) -> int:
    """Return how long an outcome is kept: a repeated call must be recognised in any case."""
    return round(max(settings.known_s, settings.result_ttl_s) * 1000)


def judgement_of(settings: Settings, timing: Timing) -> Judgement:
    """Return how jobs are judged whose owners died."""
    return Judgement(
        crash_window_s=settings.crash_window_s,
        crashes_max=settings.crashes_max,
        hold_s=timing.ttl_s,
    )


def edge_of(key: str, record: Record, decision: Decision, settings: Settings) -> Edge:
    """Return the edge that carries a decision out; a GRANT still lacks its targets."""
    edge = Edge(lifecycle.GRANT, key, record.epoch, record.id, outcome_ttl_ms(settings))
    edge.handler = record.handler
    match decision:
        case ParkJob(cause, error):
            edge.letter = lifecycle.PARK
            edge.x, edge.y = one_line(cause, CAUSE_CHARS_MAX), one_line(error, ERROR_CHARS_MAX)
        case Wait(delay_s, attempt, error, mark):
            edge.letter = lifecycle.WAIT
            edge.x, edge.z = round(delay_s * 1000), error
            edge.y = f"{attempt} {mark}".strip()
        case CancelJob(cause):
            edge.letter, edge.x = lifecycle.CANCEL, cause
        case Grant(mark):
            edge.y = mark
    return edge


def tell_all(
    context: Context,
    tell_waiters: Callable[[int, Sequence[str], str, str, bytes], object],
    lane: int,
    edges: Sequence[Edge],
    told: Sequence[Changed],
) -> int:
    """Tell those who wait for jobs that ended with these edges; they look up how.  What waits for
    its retry now we come for, too.

    Returns how many of the records could be read.
    """
    for edge, each in zip(edges, told, strict=True):
        if each.status is Status.DONE and edge.letter == lifecycle.WAIT:
            context.on_due(lane, int(edge.x) / 1000)
        if each.status is Status.DONE and each.waiters:
            tell_waiters(lane, each.waiters, "ended", edge.id, b"")
    return sum(each.status is not Status.UNREADABLE for each in told)
