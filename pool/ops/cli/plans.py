"""`pool plans`: plans, as `node.plan(...)` has them; their producers stay where they are.

It joins the pool as a client for as long as it works.
"""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from typing import Any

import anyio
import attrs

from pool.errors import ConfigError, NoSuchPlan
from pool.jobs.client.plan_ref import PlanDiff, PlanStatus
from pool.jobs.node import Node
from pool.names import check_pool
from pool.ops.cli.asking import check_there, reachable
from pool.ops.terminal import write
from pool.redis.url import Url


def run(args: argparse.Namespace) -> int:
    """Carry out `pool plans`: 0, or 1 if a plan is held, or has a problem."""
    check_pool(args.pool)
    if args.verb == "confirm" and args.anything == (args.token is not None):
        raise ConfigError(setting="confirm", problem="give --token, or --anything")
    with reachable(args.url) as url:
        facts, lines, is_well = anyio.run(_run, args, url)
    write([json.dumps({"ok": is_well, **facts})] if args.json else lines)
    return 0 if is_well else 1


async def _run(args: argparse.Namespace, url: Url) -> tuple[dict[str, Any], list[str], bool]:
    await check_there(args.pool, url)
    async with Node(args.pool, url.credentials.text, observers=()) as node:
        if args.verb == "list":
            return await _list(node)
        plan = node.plan(args.name)
        match args.verb:
            case "diff":
                diff = await plan.diff(args.timeout)
                return {"diff": attrs.asdict(diff)}, _diff_lines(diff), not diff.is_held
            case "show":
                status = await plan.status()
            case "apply":
                status = await plan.apply(args.timeout)
            case _:
                status = await plan.confirm(args.token, args.timeout)
        return {"plan": _facts(status)}, _lines(status), _is_well(status)


async def _list(node: Node) -> tuple[dict[str, Any], list[str], bool]:
    found = list[PlanStatus]()
    for name in await node.plans():
        try:
            found.append(await node.plan(name).status())
        except NoSuchPlan:
            continue  # its job has just ended
    lines = [f"{len(found)} plans", *(_lines(each)[0] for each in found)]
    return {"plans": list(map(_facts, found))}, lines, all(map(_is_well, found))


def _is_well(status: PlanStatus) -> bool:
    return status.state == "running" and not (status.last.held or status.last.problem)


def _facts(status: PlanStatus) -> dict[str, Any]:
    return {"ok": _is_well(status), **attrs.asdict(status)}


def _lines(status: PlanStatus) -> list[str]:
    last, owner = status.last, status.owner or "nobody"
    first = f"{status.plan}  version {status.version}  {status.state}  kept by {owner}"
    lines = [f"{first}: {status.why}" if status.why else first]
    if last.number:
        when = datetime.fromtimestamp(last.at_ms / 1000, UTC).isoformat(timespec="seconds")
        lines.append(f"turn {last.number} at {when} took {last.took_ms} ms: {last.wanted} wanted")
        counts = ("kept", "started", "replaced", "stopped", "stopping", "ended", "refused")
        lines.append(", ".join(f"{getattr(last, name)} {name}" for name in counts))
    if last.taken:
        lines.append(f"! {last.taken} keys have jobs of others: {_named(last.taken_keys)}")
    if last.held:
        lines.append(f"! held: it would stop {last.held}: {_named(last.held_keys)}")
        lines.append(f"  to let it: pool plans confirm {status.plan} --token {last.token}")
    if last.problem:
        lines.append(f"! {last.problem}")
    return lines


def _diff_lines(diff: PlanDiff) -> list[str]:
    lines = [f"{diff.wanted} wanted, {diff.kept} kept"]
    for word, count, keys in (
        ("start", diff.starts, diff.start_keys),
        ("replace", diff.replaces, diff.replace_keys),
        ("stop", diff.stops, diff.stop_keys),
    ):
        if count:
            lines.append(f"{word} {count}: {_named(keys, count)}")
    if diff.taken:
        lines.append(f"! {diff.taken} keys have jobs of others: {_named(diff.taken_keys)}")
    if diff.is_held:
        lines.append(f"! it would be held: --token {diff.token} lets it")
    return lines


def _named(keys: tuple[str, ...], count: int = 0) -> str:
    return ", ".join(map(repr, keys)) + (", ..." if count > len(keys) else "")
