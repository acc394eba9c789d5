"""`pool plans`: plans, as `node.plan(...)` has them; their producers stay where they are.

It joins the pool as a client for as long as it works.
"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from functools import partial

import attrs

from pool.core.plans import PlanTurn
from pool.errors import ConfigError, NoSuchPlan
from pool.jobs.client.listing import Gaps
from pool.jobs.client.plans import PlanDiff, PlanStatus
from pool.jobs.node import Node
from pool.ops.cli.asking import VerbSaid, act, tell
from pool.ops.cli.parser import CONFIRM_BY


@attrs.frozen(kw_only=True)
class PlanTold:
    """A plan.  `state`, `owner` and `why` are those of the job that keeps it, `version` is its
    producer's, `last` how its last turn went; `is_well`: it runs, holds nothing, had no problem.
    """

    plan: str
    is_well: bool
    state: str
    owner: str
    version: int
    why: str
    last: PlanTurn


@attrs.frozen(kw_only=True)
class PlansTold:
    """The plans of a pool."""

    v: int = 1
    pool: str
    plans: tuple[PlanTold, ...]
    unread: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class PlanShown:
    """One plan."""

    v: int = 1
    pool: str
    plan: PlanTold


@attrs.frozen(kw_only=True)
class PlanCompared:
    """What a plan's next turn would do."""

    v: int = 1
    pool: str
    diff: PlanDiff


def run(args: argparse.Namespace) -> int:
    """Carry out `pool plans`: 0, or 1 if a plan is held, or has a problem."""
    if args.verb == "confirm" and args.anything == (args.token is not None):
        raise ConfigError(setting="confirm", problem=CONFIRM_BY)
    said = act(args, partial(_run, args))
    return tell(args, said.shape, said.lines, ok=said.is_done)


async def _run(args: argparse.Namespace, node: Node) -> VerbSaid:
    if args.verb == "list":
        return await _list(args.pool, node)
    plan = node.plan(args.name)
    match args.verb:
        case "diff":
            diff = await plan.diff(args.timeout)
            told = PlanCompared(pool=args.pool, diff=diff)
            return VerbSaid(told, _diff_lines(diff), not diff.is_held)
        case "show":
            status = await plan.status()
        case "apply":
            status = await plan.apply(args.timeout)
        case _:
            status = await plan.confirm(args.token, args.timeout)
    shown = PlanShown(pool=args.pool, plan=_told(status))
    lines = _lines(status)
    if args.verb == "confirm" and status.last.held and args.token != status.last.token:
        said = f"{args.token} is not the token of what it would stop now"
        if args.anything:
            said = "it has begun anew meanwhile, so this is what another one would stop"
        lines.insert(1, f"! {said}: nothing was stopped")
    return VerbSaid(shown, lines, _is_well(status))


async def _list(pool: str, node: Node) -> VerbSaid:
    found, gaps = list[PlanStatus](), Gaps()
    for name in await node.plans(gaps=gaps):
        try:
            found.append(await node.plan(name).status())
        except NoSuchPlan:
            continue  # its job has just ended
    count = f"{len(found)} plan{'' if len(found) == 1 else 's'}"
    lines = [count, *(_lines(each)[0] for each in found)]
    told = PlansTold(pool=pool, plans=tuple(map(_told, found)), unread=gaps.unread)
    return VerbSaid(told, lines, all(map(_is_well, found)))


def _is_well(status: PlanStatus) -> bool:
    return status.state == "running" and not (status.last.held or status.last.problem)


def _told(status: PlanStatus) -> PlanTold:
    return PlanTold(is_well=_is_well(status), **attrs.asdict(status, recurse=False))


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
