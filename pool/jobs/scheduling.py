"""Changing a schedule: what was seen, and what it is to be, are compared and written by one script.

    read --judge--> change --as it was seen--> done
      ^               |
      +--- CHANGED ---+      it was fired meanwhile, or somebody else changed it

Each change carries a token of its caller's, so that a call which is repeated, or comes late, finds
that it was done.  Nothing is held while one is under way: who dies leaves the one or the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs

from pool.core.schedules import ScheduledJob, StoredSchedule, due_ms, first_head, parse
from pool.core.times import At, When, moment
from pool.errors import InvalidOption, StoreFault, StoreLost, shown
from pool.jobs.context import Context, LaneState
from pool.redis.commands.schedules import ScheduleChange, SchedulePage

HOLD_S: Final = 2.0  # then another one comes for those that were told and are still due
TRIES_MAX: Final = 16  # one that is fired each second stands still for long enough


@attrs.frozen(kw_only=True)
class WantedSchedule:
    """A schedule as somebody wants it."""

    name: str
    when: When
    job: ScheduledJob


@attrs.frozen(kw_only=True)
class FoundSchedule:
    """A schedule as it was read; `stored` is None if it cannot be, or there is none."""

    line: bytes = b""
    stored: StoredSchedule | None = None


async def fetch(context: Context, name: str) -> FoundSchedule:
    """Read one schedule."""
    names = context.lane_of(name).lane.names
    text: bytes | None = await context.pipeline.execute("HGET", names.schedules, name)
    if text is None:
        return FoundSchedule()
    return FoundSchedule(line=text.partition(b"\n")[0], stored=parse(name, text))


async def keep(context: Context, wanted: WantedSchedule) -> None:
    """Have a schedule as it is wanted.  One that is stays as it is: when it is due, or paused.

    Raises:
        InvalidOption: Its time is over.
        StorageFull, StoreUnavailable, StoreLost: As for `dispatch()`.
    """
    name, when = wanted.name, wanted.when

    def judge(found: FoundSchedule, now_ms: int, token: str) -> ScheduleChange | None:
        had = found.stored
        first = first_head(name, when, now_ms, token, had.head.last_ms if had is not None else 0)
        if had is not None and had.when == when:
            first = attrs.evolve(had.head, token=token)
        if first is None:
            raise is_over(when, now_ms)
        if had is not None:
            before = had.head
            first = attrs.evolve(first, is_paused=before.is_paused, last_ms=before.last_ms)
            first = attrs.evolve(first, fired=before.fired, missed=before.missed)
            first = attrs.evolve(first, overlapped=before.overlapped)
        stored = StoredSchedule(name=name, head=first, when=when, job=wanted.job)
        if had is not None and had.body == stored.body:
            return None
        return change_of(found, stored)

    await change(context, name, judge)


def is_over(when: When, now_ms: int) -> InvalidOption:
    """Return what says that a time has passed by the server's clock."""
    at = when.when.isoformat() if isinstance(when, At) else shown(when)
    problem = f"not a time to come: the server's clock says {moment(now_ms).isoformat()}"
    return InvalidOption(option="when", value=at, problem=problem)


def change_of(found: FoundSchedule, stored: StoredSchedule) -> ScheduleChange:
    """Return the change to what is stored then, from what was found."""
    head = stored.head
    return ScheduleChange(
        name=stored.name,
        seen=found.line,
        head=head.pack(),
        body=stored.body,
        due_ms=None if head.is_paused else head.due_ms,
    )


def resumed(stored: StoredSchedule, now_ms: int, token: str) -> StoredSchedule | None:
    """Return a schedule as it goes on from now: what came while it was paused was not missed."""
    head = first_head(stored.name, stored.when, now_ms, token, stored.head.last_ms)
    if head is None:
        return None
    told = attrs.evolve(
        stored.head,
        is_paused=False,
        next_ms=head.next_ms,
        due_ms=due_ms(stored.name, stored.when, head.next_ms),
        token=token,
    )
    return attrs.evolve(stored, head=told)


async def change(
    context: Context, name: str, judge: Callable[[FoundSchedule, int, str], ScheduleChange | None]
) -> None:
    """Do to a schedule what `judge` says of it as it stands, and of the server's clock (ms)."""
    state, token = context.lane_of(name), context.ids.next()
    for _ in range(TRIES_MAX):
        page = await _call(context, state, ())
        found = await fetch(context, name)
        wanted = judge(found, page.wall_ms, token)
        if wanted is None:
            return
        page = await _call(context, state, (wanted,))
        if page.done[0]:
            if page.next_s is not None:
                context.on_due(state.number, page.next_s)
            return
    raise StoreFault(problem=f"schedule {name!r} changed {TRIES_MAX} times meanwhile")


async def _call(
    context: Context, state: LaneState, changes: tuple[ScheduleChange, ...]
) -> SchedulePage:
    call = state.lane.schedule(changes, hold_s=HOLD_S)
    try:
        page: SchedulePage = await context.pipeline.call(call, repeatable=True)
    except StoreLost:
        context.on_data_lost(state.number)
        raise
    return page
