"""Changing a schedule: what was seen, and what it is to be, are compared and written by one script.

    read --judge--> change --as it was seen--> done
      ^               |
      +--- CHANGED ---+      it was fired meanwhile, or somebody else changed it

What has come by then is settled by the same script (see `core/schedules.py`), so no time is lost
between two states of a schedule.  If more has come than one step fires, a step fires what it can,
and the schedule is read again.

Each change carries a token of its caller's, so that a call which is repeated, or comes late, finds
that it was done.  Nothing is held while one is under way: who dies leaves the one or the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import attrs

from pool import checks
from pool.core.options import registered_policy
from pool.core.schedules import (
    Firing,
    ScheduledJob,
    ScheduleHead,
    StoredSchedule,
    drop,
    due_ms,
    fire,
    first_head,
    parse,
)
from pool.core.times import At, When, moment, packed
from pool.errors import ConfigError, InvalidOption, StoreFault, StoreLost, shown
from pool.events import ScheduleMissed, ScheduleOverlapped
from pool.jobs.context import Context, LaneState
from pool.redis.commands.admission import AS_REGISTERED
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


@attrs.frozen(kw_only=True)
class JudgedChange:
    """A change to a schedule, and what it makes of the times that have come."""

    change: ScheduleChange
    firing: Firing | None = None
    is_last: bool = True  # else more times have come: judge again


async def as_registered(
    context: Context, state: LaneState, jobs: Sequence[ScheduledJob]
) -> list[ScheduledJob]:
    """Return jobs with the policies of their handlers, if the schedule was made without those.

    What is decided by a policy is decided before the jobs reach their lanes: which of several late
    times makes one.
    """
    unknown = sorted({job.handler for job in jobs if job.policy == AS_REGISTERED})
    if not unknown:
        return [*jobs]
    texts = await context.pipeline.execute("HMGET", state.lane.names.handlers, *unknown)
    known = {
        handler: registered_policy(text)
        for handler, text in zip(unknown, texts, strict=True)
        if text is not None
    }
    return [
        attrs.evolve(job, policy=known.get(job.handler, job.policy))
        if job.policy == AS_REGISTERED
        else job
        for job in jobs
    ]


def check_misfire(when: When, job: ScheduledJob) -> None:
    """Refuse to fire all late times of which one alone would make a job."""
    if when.misfire == "all" and job.is_left_out:
        must = (
            "usable where a key with a live job leaves another one out, as of several late times "
            "only one would make a job: give if_exists='queue', 'replace' or 'coalesce'"
        )
        raise checks.option("misfire", when.misfire, must)


Judge: TypeAlias = Callable[[FoundSchedule, int, str], JudgedChange | None]


async def keep(context: Context, wanted: WantedSchedule) -> When | None:
    """Have a schedule as it is wanted, and return when it was due before; None: there was none.

    A schedule that is due as before keeps its next time; one that is paused stays paused.

    Raises:
        InvalidOption: Its time is over.
        StorageFull, StoreUnavailable, StoreLost: As for `dispatch()`.
    """
    name, when = wanted.name, wanted.when
    before: When | None = None
    [known] = await as_registered(context, context.lane_of(name), [wanted.job])
    check_misfire(when, known)

    def judge(found: FoundSchedule, now_ms: int, token: str) -> JudgedChange | None:
        nonlocal before
        had, firing = found.stored, None
        before = had.when if had is not None else None
        if had is not None and packed(had.when) == packed(when):
            head = attrs.evolve(had.head, token=token)
            stored = StoredSchedule(name=name, head=head, when=when, job=wanted.job)
            unchanged = had.body == stored.body
            return None if unchanged else JudgedChange(change=change_of(found, stored))
        first = first_head(name, when, now_ms, token, had.head.last_ms if had is not None else 0)
        if first is None:
            raise is_over(when, now_ms)
        messages: Sequence[tuple[int, bytes]] = ()
        if had is not None:
            ending, head = attrs.evolve(had, job=known), had.head
            firing = settled(ending, now_ms, token)
            if firing is not None:
                messages, head = firing.messages(ending, now_ms), firing.counted(head, token)
                if firing.head is not None and firing.head.next_ms <= now_ms:
                    fired = change_of(found, attrs.evolve(had, head=firing.head))
                    change = attrs.evolve(fired, body=b"", messages=messages)
                    return JudgedChange(change=change, firing=firing, is_last=False)
            at_ms = first.next_ms
            first = attrs.evolve(head, next_ms=at_ms, due_ms=first.due_ms, token=token)
        stored = StoredSchedule(name=name, head=first, when=when, job=wanted.job)
        change = attrs.evolve(change_of(found, stored), messages=messages)
        return JudgedChange(change=change, firing=firing)

    await change(context, name, judge)
    return before


def settled(
    stored: StoredSchedule, now_ms: int, token: str, *, is_stopping: bool = False
) -> Firing | None:
    """Return what becomes of the times that have come, of a schedule that is changed; None: none.

    `is_stopping`: they are missed; else they are fired.
    """
    if stored.head.is_paused or stored.head.next_ms > now_ms:
        return None
    try:
        if is_stopping:
            return drop(stored, now_ms, token)
        return fire(stored, now_ms, token, is_changing=True)
    except ConfigError:  # this machine lacks its zone: only the next time is known
        return Firing(times=(), missed=1, head=None)


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


def stopped(stored: StoredSchedule, now_ms: int, token: str) -> tuple[ScheduleHead, Firing | None]:
    """Return how a schedule stands when it is stopped now, and what it missed by that."""
    firing = settled(stored, now_ms, token, is_stopping=True)
    head = attrs.evolve(stored.head, token=token)
    if firing is not None:
        head = firing.head or firing.counted(head, token)
    return head, firing


async def change(context: Context, name: str, judge: Judge) -> None:
    """Do to a schedule what `judge` says of it as it stands, and of the server's clock (ms)."""
    state = context.lane_of(name)
    for _ in range(TRIES_MAX):
        token = context.ids.next()
        page = await _call(context, state, ())
        found = await fetch(context, name)
        judged = judge(found, page.wall_ms, token)
        if judged is None:
            return
        page = await _call(context, state, (judged.change,))
        if page.done[0]:
            _tell(context, state, name, judged, page)
            if judged.is_last:
                return
    raise StoreFault(problem=f"schedule {name!r} changed {TRIES_MAX} times meanwhile")


async def wall_ms(context: Context, name: str) -> int:
    """Return what the server's clock says where a schedule stands."""
    page = await _call(context, context.lane_of(name), ())
    return page.wall_ms


def _tell(
    context: Context, state: LaneState, name: str, judged: JudgedChange, page: SchedulePage
) -> None:
    """Have somebody come for what is due next, and tell what was missed and overlapped."""
    firing, lane = judged.firing, state.number
    if judged.change.messages:
        context.on_due(lane, 0.0)  # they are carried to their lanes
    if page.next_s is not None:
        context.on_due(lane, page.next_s)
    if firing is not None:
        tell_uncounted(context, lane, name, firing)


def tell_uncounted(context: Context, lane: int, name: str, firing: Firing) -> None:
    """Tell of the times of a schedule that made no job."""
    missed, overlapped = firing.missed, firing.overlapped
    if missed:
        context.emit(ScheduleMissed(schedule=name, lane=lane, missed=missed))
    if overlapped:
        context.emit(ScheduleOverlapped(schedule=name, lane=lane, overlapped=overlapped))


async def _call(
    context: Context, state: LaneState, changes: tuple[ScheduleChange, ...]
) -> SchedulePage:
    expects = state.time.expects(context.io.clock())
    call = state.lane.schedule(changes, hold_s=HOLD_S, expects=expects)
    try:
        page: SchedulePage = await context.pipeline.call(call, repeatable=True)
    except StoreLost:
        context.on_data_lost(state.number)
        raise
    return page
