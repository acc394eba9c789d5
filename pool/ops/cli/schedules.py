"""`pool schedules`: schedules, as `node.schedules` has them."""

from __future__ import annotations

import argparse
from datetime import datetime
from functools import partial
from typing import Any

import attrs

from pool.core.times import moment
from pool.jobs.client.listing import Gaps
from pool.jobs.node import Node
from pool.ops.cli.asking import VerbSaid, act, tell, written_in
from pool.ops.jsonable import ScheduleState, shown


@attrs.frozen(kw_only=True)
class SchedulesTold:
    """A page of schedules; `cursor` leads on, and is empty behind the last one."""

    v: int = 1
    pool: str
    schedules: tuple[ScheduleState, ...]
    cursor: str
    unread: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class ScheduleShown:
    """One schedule, and its next times."""

    v: int = 1
    pool: str
    schedule: ScheduleState


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
    said = act(args, partial(_run, args))
    return tell(args, said.shape, said.lines)


async def _run(args: argparse.Namespace, node: Node) -> VerbSaid:
    schedules, pool = node.schedules, args.pool
    match args.verb:
        case "list":
            page = await schedules.list(
                handler=args.handler or "",
                prefix=args.prefix or "",
                cursor=args.cursor or "",
                count=args.count,
                gaps=Gaps(),
            )
            states = tuple(map(ScheduleState.of, page.schedules))
            lines = [_line(each) for each in states]
            lines.append(f"{len(page.schedules)} schedules")
            if page.cursor:
                lines.append(f"there may be more: go on with --cursor {page.cursor}")
            shape = SchedulesTold(
                pool=pool, schedules=states, cursor=page.cursor, unread=page.unread
            )
            return VerbSaid(shape, lines)
        case "show":
            state = await shown(schedules, args.name, args.next)
            lines = [_line(state), _arguments(state)]
            lines += [f"next  {_time(at)}" for at in state.next_times]
            lines += [f"note  {state.note}"] if state.note else []
            return VerbSaid(ScheduleShown(pool=pool, schedule=state), lines)
        case "trigger":
            ref = await schedules.trigger(args.name)
            made = ScheduleTriggered(pool=pool, key=ref.key, job_id=ref.job_id)
            return VerbSaid(made, [f"it is job {ref.job_id} of {ref.key!r}"])
    await getattr(schedules, args.verb)(args.name)
    past = {"pause": "paused", "resume": "resumed", "remove": "removed"}[args.verb]
    changed = ScheduleChanged(pool=pool, schedule=args.name)
    return VerbSaid(changed, [f"{args.name} is {past}"])


def _arguments(state: ScheduleState) -> str:
    if state.args is not None:
        return f"arguments  {state.args!r} {state.kwargs!r}{written_in(state.encoding)}"
    by = f" made by the codec {state.codec!r}" if state.codec else ""
    return f"arguments  {state.payload_bytes} bytes{by}, which cannot be read here"


def _line(found: ScheduleState) -> str:
    state = "paused" if found.is_paused else f"next {_time(found.next_at)}"
    counts = f"{found.fired} fired, {found.missed} missed, {found.overlapped} overlapped"
    return f"{found.name}  {_when(found.when)}  {found.handler} {found.key!r}  {state}  {counts}"


def _when(when: dict[str, Any]) -> str:
    match when:
        case {"cron": expression, "tz": tz}:
            return f"cron '{expression}' {tz}"
        case {"every_s": seconds}:
            return f"every {seconds:g} s"
    return f"at {_time(moment(when['at_ms']))}"


def _time(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat(timespec="seconds")
