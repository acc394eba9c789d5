"""`pool doctor`: what is wrong with a pool, why, and the one command that mends it.

    look --> findings --> [--fix: say what it would do --yes--> do it --> look again] --> exit code

What mends by itself where a node is, `--fix` mends by being one: a client joins, runs what every
node runs, and leaves when nothing of it is found any more, or the time is up.  It may die at any
moment, as any node.  So nothing here writes to the pool by a way of its own.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from functools import partial

import anyio
import attrs

from pool.errors import ConfigError, PoolError
from pool.jobs.node import Node
from pool.names import check_pool
from pool.ops import inspect
from pool.ops.checkup import RECORDS_MAX, PoolFacts, gather
from pool.ops.cli import ttl
from pool.ops.cli.asking import reachable
from pool.ops.doctor import VERSION, examine
from pool.ops.findings import Finding
from pool.ops.inspect import Found
from pool.ops.terminal import Safe, is_coloured, painted, write
from pool.ops.why import span
from pool.printable import plain
from pool.redis.pipeline import Pipeline
from pool.redis.url import Url

_AGAIN_S = 0.5  # between two looks while something is mended
_FIX_S_MIN = 30.0
_FIX_TTLS = 8  # a change of server, a lease, a takeover and a walk, and as much again


@attrs.frozen(kw_only=True)
class Diagnosis:
    """What was found, and what has been done; `v` rises when a field goes or means another thing.

    `looked` of `jobs` records were walked over.  `lanes` are all lanes, `away` those that do not
    answer.  `mended` are the findings that are gone since.
    """

    v: int = VERSION
    pool: str
    looked: int
    jobs: int
    lanes: int
    away: tuple[int, ...] = ()
    workers: int
    findings: list[Finding]
    mended: list[Finding] = attrs.field(factory=list)
    is_dry: bool = False  # `--fix` without `--yes`: nothing was done

    @property
    def is_well(self) -> bool:
        return all(each.severity == "note" for each in self.findings)


def run(args: argparse.Namespace) -> int:
    """Carry out `pool doctor`: 0, or 1 if something but notes was found."""
    check_pool(args.pool)
    if args.yes and not args.fix:
        raise ConfigError(setting="yes", problem="--yes says yes to --fix, which is not there")
    with reachable(args.url) as url:
        told = anyio.run(diagnose, args.pool, url, args.all, args.fix, args.yes, args.streams)
    as_json = {"ok": told.is_well, **attrs.asdict(told)}
    write([json.dumps(as_json)] if args.json else lines(told))
    return 0 if told.is_well else 1


async def diagnose(
    pool: str,
    url: Url,
    is_all: bool = False,
    is_fix: bool = False,
    is_sure: bool = False,
    has_streams: bool = False,
) -> Diagnosis:
    """Look at a pool, and mend what can be mended if that is asked for.

    At its streams only if that is asked for: names of keys lead there, and who may not list them
    is noted by the server.

    Raises:
        StoreUnavailable, AuthError, UnsupportedServer: The server cannot be asked.
        ConfigError: There is no such pool, or the address cannot work.
    """
    async with inspect.opened(pool, url) as (pipeline, found):
        records_max = None if is_all else RECORDS_MAX
        look = partial(gather, pipeline, found, has_streams=has_streams, is_patient=True)
        facts = await look(records_max=records_max)
        findings = examine(facts)
        if not is_fix or not is_sure:
            return _diagnosis(facts, findings, is_dry=is_fix)
        before = findings
        if any(each.fix == "ttl" for each in findings):
            await ttl.change(pipeline, found, found.ttl_s)
        if any(each.fix == "recover" for each in findings):
            await _recover(pipeline, found, url, records_max)
        facts = await look(records_max=records_max)
        findings = examine(facts)
        left = {(each.rule, each.where) for each in findings}
        mended = [each for each in before if each.fix and (each.rule, each.where) not in left]
        return _diagnosis(facts, findings, mended)


async def _recover(pipeline: Pipeline, found: Found, url: Url, records_max: int | None) -> None:
    """Be a node until nothing is left that nodes mend, or the time is up."""
    with anyio.move_on_after(max(_FIX_S_MIN, _FIX_TTLS * found.ttl_s)):
        async with Node(found.pool, url.credentials.text, observers=()):
            while True:
                await anyio.sleep(_AGAIN_S)
                try:
                    facts = await gather(pipeline, found, records_max=records_max)
                except PoolError:
                    continue  # it may have been away for a moment
                if not any(each.fix == "recover" for each in examine(facts)):
                    return


def _diagnosis(
    facts: PoolFacts,
    findings: list[Finding],
    mended: Sequence[Finding] = (),
    *,
    is_dry: bool = False,
) -> Diagnosis:
    return Diagnosis(
        pool=facts.pool,
        looked=facts.looked,
        jobs=facts.jobs,
        lanes=len({*facts.away, *(lane.number for lane in facts.lanes)}),
        away=tuple(sorted(facts.away)),
        workers=len(facts.workers),
        findings=findings,
        mended=list(mended),
        is_dry=is_dry,
    )


def lines(told: Diagnosis) -> Iterator[str]:
    """Yield it for people: each finding with its keys, places, advice and command."""
    jobs = max(told.jobs, told.looked)  # some came meanwhile
    looked = f"looked at {told.looked} of {jobs} jobs"
    more = "; --all looks at all" if told.looked < told.jobs else ""
    lanes = f"{told.lanes} lanes"
    if told.away:
        lanes = f"{told.lanes - len(told.away)} of {told.lanes} lanes answer"
    yield f"pool {told.pool}: {lanes}, {told.workers} workers; {looked}{more}"
    for each in told.mended:
        yield f"mended  {each.rule}: {each.says}"
    if not told.findings:
        yield "nothing is wrong"
    for each in told.findings:
        yield from finding_lines(each, has_advice=True)
    if told.findings:
        yield f"pool explain {told.findings[0].rule} says more of the first"
    if told.is_dry:
        fixable = [each for each in told.findings if each.fix]
        if fixable:
            names = ", ".join(dict.fromkeys(each.rule for each in fixable))
            yield f"--fix would mend {len(fixable)} findings ({names}): say --yes"
            if any(each.fix == "recover" for each in fixable):
                yield "  a client would join until nothing of them is left, and then leave"
            if any(each.fix == "ttl" for each in fixable):
                yield "  the pool's TTL would be brought to all lanes"
        else:
            yield "there is nothing that --fix could mend"


def finding_lines(each: Finding, *, has_advice: bool = False) -> Iterator[str]:
    """Yield a finding: what, which keys, where, and what to run."""
    severity = painted(each.severity, each.severity, is_on=is_coloured(sys.stdout))
    space = " " * (8 - len(each.severity))
    yield Safe(f"{severity}{space}{plain(each.rule)}: {plain(each.says)}")
    if each.keys:
        of = f" and {each.count - len(each.keys)} more" if each.count > len(each.keys) else ""
        yield f"        keys    {', '.join(each.keys)}{of}"
    if each.where:
        yield f"        where   {'; '.join(each.where)}"
    if each.oldest_s is not None:
        yield f"        oldest  {span(each.oldest_s)}"
    if has_advice:
        yield f"        advice  {each.advice}"
    if each.command:
        yield f"        run     {each.command}"
