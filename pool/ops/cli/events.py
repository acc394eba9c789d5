"""`pool events`: what happened beside ordinary work, and with `-f` what happens."""

from __future__ import annotations

import argparse
import re
from datetime import UTC, datetime, timedelta
from typing import Final

import anyio
import attrs

from pool import checks
from pool.core.journal import UNREAD, JournalEntry
from pool.jobs.client.journal import Journal, JournalFilter, start_of
from pool.names import check_pool
from pool.ops import inspect
from pool.ops.cli.asking import reachable, tell
from pool.printable import plain
from pool.redis.url import Url

_SPAN: Final = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)([smhd])")
_UNITS_S: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


@attrs.frozen(kw_only=True)
class EntryTold(JournalEntry):
    """One entry of the journal, in a line; of an `unread` `ok` is false."""

    v: int = 1


def run(args: argparse.Namespace) -> int:
    """Carry out `pool events`: 0, or 1 if not all lanes could be read."""
    check_pool(args.pool)
    wanted = JournalFilter(key=args.key, handler=args.handler)
    since = _since(args.since)
    with reachable(args.url) as url:
        return anyio.run(_run, args, url, wanted, since)


def span_s(option: str, text: str) -> float:
    """Return what `90s`, `15m`, `6h` or `2d` are in seconds.

    Raises:
        InvalidOption: It is none of these.
    """
    found = _SPAN.fullmatch(text)
    if found is None:
        raise checks.option(option, text, "a length of time such as 90s, 15m, 6h or 2d")
    return float(found[1]) * _UNITS_S[found[2]]


def entry_line(entry: JournalEntry, *, with_key: bool = True) -> str:
    """Return an entry for people."""
    job = f" job {entry.job_id}" if entry.job_id else ""
    words = [
        entry.at.isoformat(timespec="milliseconds"),
        entry.edge,
        f"{entry.key}{job}" if with_key and entry.key else job.strip(),
        f"({entry.handler})" if entry.handler else "",
        f"attempt {entry.attempt}" if entry.attempt else "",
        f"epoch {entry.epoch}" if entry.epoch else "",
        entry.owner,
        entry.detail,
    ]
    return plain("  ".join(word for word in words if word))


async def _run(
    args: argparse.Namespace, url: Url, wanted: JournalFilter, since: datetime | str | None
) -> int:
    async with inspect.opened(args.pool, url) as (pipeline, found):
        ats = list(start_of(since, found.lanes))
        journal = Journal(pipeline, args.pool, wanted, ats, args.follow)
        async for entry in journal:
            shown = EntryTold(**attrs.asdict(entry))
            tell(args, shown, [entry_line(entry)], ok=entry.edge != UNREAD)
        return 1 if journal.failed else 0


def _since(text: str) -> datetime | str | None:
    if text == "all":
        return None
    if _SPAN.fullmatch(text):
        return datetime.now(UTC) - timedelta(seconds=span_s("since", text))
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return text  # a position, or `start_of` refuses it
    return at if at.tzinfo is not None else at.astimezone()
