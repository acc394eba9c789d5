"""`pool schedules`: schedules, as `node.schedules` has them."""

from __future__ import annotations

import argparse
from datetime import datetime
from typing import Any

import anyio
import attrs

from pool.core.times import Cron, Every, When
from pool.errors import ConfigError
from pool.jobs.client.schedules import Schedule
from pool.jobs.node import Node
from pool.names import check_pool
from pool.ops.cli.asking import VerbSaid, check_there, reachable, tell
from pool.redis.url import Url


@attrs.frozen(kw_only=True)
class ScheduleTold:
    """A schedule.  `when` is said in words; `next_at` is null while it is paused.

    Of its times `fired` have made jobs, `missed` none as nobody could fire them, and `overlapped`
    none as their key had a job.  `args` and `kwargs` are null where they cannot be read.
    """

    name: str
    when: str
    handler: str
    key: str
    is_paused: bool
    next_at: datetime | None
    last_at: datetime | None
    fired: int
    missed: int
    overlapped: int
    args: tuple[Any, ...] | None
    kwargs: dict[str, Any] | None


@attrs.frozen(kw_only=True)
class SchedulesTold:
    """A page of schedules; `cursor` leads on, and is empty behind the last one."""

    v: int = 1
    pool: str
    schedules: tuple[ScheduleTold, ...]
    cursor: str


@attrs.frozen(kw_only=True)
class ScheduleShown:
    """One schedule, and its next times; `note` says why they cannot be told."""

    v: int = 1
    pool: str
    schedule: ScheduleTold
    next: tuple[datetime, ...]
    note: str


@attrs.frozen(kw_only=True)
class ScheduleTriggered:
    """The job that a schedule made now."""

    v: int = 1
    pool: str
    key: str
    job_id: str


@attrs.frozen(kw_only=True)
class ScheduleChanged:
    """Which schedule is paused, resumed or removed now."""

    v: int = 1
    pool: str
    schedule: str


def run(args: argparse.Namespace) -> int:
    """Carry out `pool schedules`."""
    check_pool(args.pool)
    with reachable(args.url) as url:
        said = anyio.run(_run, args, url)
    return tell(args, said.shape, said.lines)


async def _run(args: argparse.Namespace, url: Url) -> VerbSaid:
    await check_there(args.pool, url)
    async with Node(args.pool, url.credentials.text, observers=()) as node:
        schedules, pool = node.schedules, args.pool
        match args.verb:
            case "list":
                page = await schedules.list(
                    handler=args.handler or "",
                    prefix=args.prefix or "",
                    cursor=args.cursor or "",
                    count=args.count,
                )
                lines = [_line(each) for each in page.schedules]
                lines.append(f"{len(page.schedules)} schedules")
                if page.cursor:
                    lines.append(f"there are more: --cursor {page.cursor}")
                told = tuple(map(_told, page.schedules))
                return VerbSaid(SchedulesTold(pool=pool, schedules=told, cursor=page.cursor), lines)
            case "show":
                found = await schedules.show(args.name)
                note, times = "", tuple(at for at in (found.next_at,) if at is not None)
                try:
                    times = tuple(await schedules.next_times(args.name, args.next))
                except ConfigError as error:
                    note = error.problem
                lines = [_line(found), f"arguments  {found.args!r} {found.kwargs!r}"]
                lines += [f"next  {_time(at)}" for at in times]
                lines += [f"note  {note}"] if note else []
                shown = ScheduleShown(pool=pool, schedule=_told(found), next=times, note=note)
                return VerbSaid(shown, lines)
            case "trigger":
                ref = await schedules.trigger(args.name)
                made = ScheduleTriggered(pool=pool, key=ref.key, job_id=ref.job_id)
                return VerbSaid(made, [f"it is job {ref.job_id} of {ref.key!r}"])
        await getattr(schedules, args.verb)(args.name)
        past = {"pause": "paused", "resume": "resumed", "remove": "removed"}[args.verb]
        changed = ScheduleChanged(pool=pool, schedule=args.name)
        return VerbSaid(changed, [f"{args.name} is {past}"])


def _told(found: Schedule) -> ScheduleTold:
    facts: dict[str, Any] = attrs.asdict(found, recurse=False)
    return ScheduleTold(**{**facts, "when": _when(found.when)})


def _line(found: Schedule) -> str:
    state = "paused" if found.is_paused else f"next {_time(found.next_at)}"
    counts = f"{found.fired} fired, {found.missed} missed, {found.overlapped} overlapped"
    return f"{found.name}  {_when(found.when)}  {found.handler} {found.key!r}  {state}  {counts}"


def _when(when: When) -> str:
    match when:
        case Cron():
            return f"cron '{when.expression}' {when.tz}"
        case Every():
            return f"every {when.seconds:g} s"
    return f"at {_time(when.when)}"


def _time(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat(timespec="seconds")
