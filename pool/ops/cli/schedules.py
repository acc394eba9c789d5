"""`pool schedules`: schedules, as `node.schedules` has them."""

from __future__ import annotations

import argparse
import json
from datetime import datetime
from typing import Any

import anyio
import attrs

from pool.core.times import Cron, Every, When
from pool.errors import ConfigError
from pool.jobs.client.schedules import Schedule
from pool.jobs.node import Node
from pool.names import check_pool
from pool.ops.cli.asking import as_facts, check_there, reachable
from pool.ops.terminal import write
from pool.redis.url import Url


@attrs.frozen
class _Said:
    """What is printed: as JSON, or in lines."""

    facts: dict[str, Any]
    lines: list[str]


def run(args: argparse.Namespace) -> int:
    """Carry out `pool schedules`."""
    check_pool(args.pool)
    with reachable(args.url) as url:
        said = anyio.run(_run, args, url)
    write([json.dumps({"ok": True, **said.facts})] if args.json else said.lines)
    return 0


async def _run(args: argparse.Namespace, url: Url) -> _Said:
    await check_there(args.pool, url)
    async with Node(args.pool, url.credentials.text, observers=()) as node:
        schedules = node.schedules
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
                facts = {"schedules": [_facts(each) for each in page.schedules]}
                return _Said({**facts, "cursor": page.cursor}, lines)
            case "show":
                found = await schedules.show(args.name)
                note, times = "", [_time(found.next_at)]
                try:
                    times = [_time(at) for at in await schedules.next_times(args.name, args.next)]
                except ConfigError as error:
                    note = error.problem
                lines = [_line(found), f"arguments  {found.args!r} {found.kwargs!r}"]
                lines += [f"next  {at}" for at in times if at]
                lines += [f"note  {note}"] if note else []
                return _Said({"schedule": _facts(found), "next": times, "note": note}, lines)
            case "trigger":
                ref = await schedules.trigger(args.name)
                made = {"key": ref.key, "job_id": ref.job_id}
                return _Said(made, [f"it is job {ref.job_id} of {ref.key!r}"])
        await getattr(schedules, args.verb)(args.name)
        past = {"pause": "paused", "resume": "resumed", "remove": "removed"}[args.verb]
        return _Said({"schedule": args.name}, [f"{args.name} is {past}"])


def _facts(found: Schedule) -> dict[str, Any]:
    facts: dict[str, Any] = attrs.asdict(found, recurse=False)
    facts["when"] = _when(found.when)
    for name in ("next_at", "last_at"):
        facts[name] = _time(facts[name])
    return as_facts(facts)


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
