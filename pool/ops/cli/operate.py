"""`pool pause`, `resume`, `cordon`, `uncordon` and `drain`: what operators ask of a pool from afar.

No node is made for it: the map and the lanes are told, and nodes hear of it; see
`jobs/client/pausing.py`.
"""

from __future__ import annotations

import argparse
import getpass
import socket
from collections.abc import Iterator, Mapping
from typing import Final

import anyio
import attrs

from pool import checks
from pool.core.pauses import Cordon, Pause
from pool.errors import ConfigError
from pool.jobs.client.pausing import CordonReport, Operator, PauseReport, named, stored_reason
from pool.names import Control, check_pool
from pool.ops import inspect
from pool.ops.cli.asking import reachable, tell
from pool.ops.why import resume_command
from pool.redis.url import Url

_OTHERS_SHOWN: Final = 5


@attrs.frozen(kw_only=True)
class PauseDone:
    """What became of pausing or resuming; see `pool.pauses.PauseReport`."""

    v: int = 1
    pause: Pause
    lanes: int
    missed: Mapping[int, str]  # by lane, why it was not reached
    is_overtaken: bool = False  # somebody decided otherwise meanwhile, and that counts
    others: tuple[Pause, ...] = ()  # beside what was resumed, and may keep some of its jobs


@attrs.frozen(kw_only=True)
class CordonDone:
    """What became of a cordon, or a drain; see `pool.pauses.CordonReport`."""

    v: int = 1
    cordon: Cordon
    workers: tuple[str, ...]
    unheard: tuple[str, ...]
    kept: Cordon | None = None  # what goes on closing some of them


def run(args: argparse.Namespace) -> int:
    """Carry out one of them: 0, or 1 if it has to be run again."""
    check_pool(args.pool)
    if "member" in args:
        checks.seconds("timeout", args.timeout)
    with reachable(args.url) as url:
        told = anyio.run(_run, args, url)
    lines = [*_lines(args.command, told), *_as_before(getattr(args, "reason", None), told)]
    return tell(args, _shape(told), lines, ok=told.is_complete)


async def _run(args: argparse.Namespace, url: Url) -> PauseReport | CordonReport:
    async with inspect.opened(args.pool, url) as (pipeline, found):
        operator = Operator(
            pipeline=pipeline,
            control=Control(args.pool),
            generation=found.generation,
            lanes=found.lanes,
            by=_whoami(),
        )
        match args.command:
            case "pause":
                meant = named(args.handler, args.key)
                if meant.what == "pool" and not args.yes:
                    jobs = (await inspect.view(pipeline, found)).states
                    count = sum(jobs.values()) - jobs.get("running", 0)
                    problem = f"this is the whole pool, {count} jobs that have not begun: add --yes"
                    raise ConfigError(setting="yes", problem=problem)
                return await operator.pause(meant, args.reason or "")
            case "resume":
                return await operator.resume(named(args.handler, args.key))
            case "uncordon":
                return await operator.uncordon(args.member, wait_s=args.timeout)
            case _:
                return await operator.cordon(
                    args.member,
                    args.reason or "",
                    is_drain=args.command == "drain",
                    wait_s=args.timeout,
                )


def _shape(told: PauseReport | CordonReport) -> PauseDone | CordonDone:
    if isinstance(told, PauseReport):
        return PauseDone(
            pause=told.pause,
            lanes=told.lanes,
            missed=told.missed,
            is_overtaken=told.is_overtaken,
            others=told.others,
        )
    return CordonDone(
        cordon=told.cordon, workers=told.workers, unheard=told.unheard, kept=told.kept
    )


def _whoami() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container's user need not have a name
        user = "somebody"
    return f"{user}@{socket.gethostname()}"


def _as_before(reason: str | None, told: PauseReport | CordonReport) -> Iterator[str]:
    """Yield that the reason of an earlier pause or cordon stays, where another one was given."""
    stands = told.pause if isinstance(told, PauseReport) else told.cordon
    if reason and told.is_complete and stands.reason != stored_reason(reason):
        yield f"the reason was not changed: {stands.by} had given {stands.reason or 'none'}"


def _lines(command: str, told: PauseReport | CordonReport) -> Iterator[str]:
    if isinstance(told, PauseReport):
        if told.is_overtaken:
            other = {"pause": "resumed", "resume": "paused"}[command]
            yield f"! {told.pause} was {other} meanwhile by somebody else, and that counts"
            return
        word = {"pause": "is paused", "resume": "is resumed"}[command]
        if command == "resume" and not told.pause.since_ms:
            word = "was not paused: it is free"
        reached = f"{told.lanes - len(told.missed)} of {told.lanes} lanes"
        yield f"{told.pause} {word} in {reached}"
        yield from (f"! lane {n} was not reached: {why}" for n, why in told.missed.items())
        if told.missed:
            yield "! run it again"
        for pause in told.others[:_OTHERS_SHOWN]:
            yield f"{pause} stays paused: run {resume_command(pause)}"
        if len(told.others) > _OTHERS_SHOWN:
            yield f"... and {len(told.others) - _OTHERS_SHOWN} more, which `pool status` shows"
        return
    heard = f"{len(told.workers) - len(told.unheard)} workers have heard it"
    if told.kept is not None:
        yield f"! {told.kept.id} stays cordoned: run pool uncordon {told.kept.id}"
    elif not told.workers:
        yield f"{told.cordon.id} is no more, and so is its cordon"
    elif command == "uncordon" and not told.cordon.since_ms:
        yield f"{told.cordon.id} takes jobs: it was not cordoned"
    else:
        word = {"cordon": "takes no jobs", "uncordon": "takes jobs", "drain": "drains"}[command]
        yield f"{told.cordon.id} {word}: {heard}"
    for each in told.unheard:
        yield f"! worker {each} has not answered yet; `pool status` shows when it has"
