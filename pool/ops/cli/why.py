"""`pool why KEY`: why a key is as it is."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from datetime import UTC, datetime

import anyio

from pool.core.record import Attempt
from pool.names import check_job_id, check_key, check_pool
from pool.ops import inspect
from pool.ops.cli.asking import reachable, tell
from pool.ops.cli.events import entry_line
from pool.ops.keyfacts import read
from pool.ops.why import OwnerTold, Why, span, why
from pool.redis.url import Url

_HISTORY = 3  # attempts that are told, the last of them with its traceback


def run(args: argparse.Namespace) -> int:
    """Carry out `pool why`: 0, or 1 if nothing is known of the key, or it cannot be read."""
    check_pool(args.pool)
    check_key(args.key)
    if args.id:
        check_job_id(args.id)
    with reachable(args.url) as url:
        told = anyio.run(fetch, args.pool, url, args.key, args.id or "")
    return tell(args, told, lines(told), ok=told.state not in ("unknown", "lost", "unreadable"))


async def fetch(pool: str, url: Url, key: str, job_id: str = "") -> Why:
    """Return why a key of a pool is as it is.

    Raises:
        StoreUnavailable, AuthError, UnsupportedServer: The server cannot be asked.
        ConfigError: There is no such pool, or the address cannot work.
    """
    async with inspect.opened(pool, url) as (pipeline, found):
        return why(await read(pipeline, found, key, job_id))


def lines(told: Why) -> Iterator[str]:
    """Yield it for people: what is the case first, what helps last."""
    of = f" job {told.job_id}" if told.job_id else ""
    handler = f" ({told.handler})" if told.handler else ""
    yield f"{told.key}{of}{handler}: {told.state}"
    yield f"  {told.says}"
    for label, text in _facts(told):
        yield f"{label:<12}{text}"
    for each in told.history[-_HISTORY:]:
        when = datetime.fromtimestamp(each.at_ms / 1000, UTC).isoformat(timespec="seconds")
        yield f"{'failed':<12}attempt {each.number} at {when}, {each.owner}: {_error(each)}"
    for each in told.history[-1:]:
        yield from (f"    {line}" for line in each.traceback.splitlines())
    for entry in told.life:
        yield f"{'life':<12}{entry_line(entry, with_key=False)}"
    for trouble in told.unread:
        yield f"! cannot be read: {trouble}"
    if told.next:
        yield f"next        {told.next}"


def _error(each: Attempt) -> str:
    return f"{each.type}: {each.message}" if each.message else each.type


def _facts(told: Why) -> Iterator[tuple[str, str]]:
    if told.owner is not None and told.owner.standing:
        yield "owner", _owner(told.owner)
    if told.attempt and not told.state.startswith("un"):
        of = f" of {told.attempts_max}" if told.attempts_max else ""
        accepted = f", accepted {span(told.accepted_s)} ago" if told.accepted_s is not None else ""
        yield "attempt", f"{told.attempt}{of}, epoch {told.epoch}{accepted}"
    limits = (
        ("begins", told.begin_within_s),
        ("ends", told.run_within_s),
        ("moves on", told.progress_within_s),
    )
    for word, left_s in limits:
        if left_s is not None:
            told_s = f"within {span(left_s)}" if left_s >= 0 else f"{span(-left_s)} too late"
            yield "limit", f"{word} {told_s}"
    if told.progress:
        yield "progress", told.progress
    if told.marks or told.crashes:
        names = f": {', '.join(told.marks)}" if told.marks else ""  # of one that ended nobody knows
        yield "suspected", f"of {told.crashes:g} worker crashes{names}"
    if told.messages:
        yield "messages", f"{told.messages} are not handled"
    if told.line_length:
        yield "behind it", f"{told.line_length} queued" + _ids(told)
    if told.followers:
        yield "followers", ", ".join(told.followers)
    if told.batch:
        yield "batch", told.batch
    if told.plan:
        yield "plan", f"{told.plan}: pool plans show {told.plan}"
    if told.schedule:
        show = f"pool schedules show {told.schedule}"
        yield "schedule", f"{told.schedule}: {show} (until its last time has come)"
    if told.if_owner_died:
        yield "if it dies", told.if_owner_died
    if told.would_go_to:
        yield "goes to", ", ".join(told.would_go_to)


def _owner(owner: OwnerTold) -> str:
    lease_s = owner.lease_s
    words = [
        f"{owner.label} {owner.worker}".strip(),
        f"on {owner.node}" if owner.node else "",
        f"pid {owner.pid} on {owner.host}" if owner.host else "",
        f"version {owner.version}" if owner.version else "",
        owner.standing,
        "no lease" if lease_s is None else f"lease {lease_s:.1f} s",
    ]
    return ", ".join(word for word in words if word)


def _ids(told: Why) -> str:
    first = [f"{each.job_id} for {span(each.waited_s)}" for each in told.line[:3]]
    return f": {', '.join(first)}" if first else ""
