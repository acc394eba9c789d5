"""`pool jobs`: live jobs, a page at a time, once or again and again.

    filters --> page: by an index, or a walk of so many records --> rows, and where to go on

`--all` turns the pages itself, `--watch` looks anew each time; both end with Ctrl-C.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import attrs

from pool.jobs.client.listing import Gaps, JobFilter
from pool.ops import browse
from pool.ops.browse import JobRows
from pool.ops.cli.asking import look, tell
from pool.ops.cli.watching import times, watch
from pool.ops.inspect import Found
from pool.ops.terminal import table
from pool.ops.why import span
from pool.redis.pipeline import Pipeline


def run(args: argparse.Namespace) -> int:
    """Carry out `pool jobs`."""
    wanted = wanted_of(args)
    times(args)  # for its errors, before anything is asked

    async def read(pipeline: Pipeline, found: Found) -> int:
        if not args.watch:
            return await _pages(args, pipeline, found, wanted)

        async def take() -> JobRows:
            return await browse.jobs(pipeline, found, wanted, page=args.page)

        return await watch(args, take, lines, lambda _: True)

    return look(args, read)


async def _pages(
    args: argparse.Namespace, pipeline: Pipeline, found: Found, wanted: JobFilter
) -> int:
    """Print the page that was asked for, or all from there on: each as it comes."""
    cursor, looked, of, found_all, gaps = args.cursor, 0, 0, 0, Gaps()
    while True:
        page = await browse.jobs(pipeline, found, wanted, cursor=cursor, page=args.page, gaps=gaps)
        cursor, of = page.cursor, max(of, page.of)
        looked, found_all = looked + page.looked, found_all + len(page.jobs)
        if not args.all:
            return tell(args, page, lines(page))
        if not cursor:
            shown = attrs.evolve(page, looked=looked, of=of)
            return tell(args, page, lines(shown, found_all))
        if page.jobs:
            tell(args, attrs.evolve(page, unread=()), rows(page))


def wanted_of(args: argparse.Namespace) -> JobFilter:
    """Return which jobs the words mean.

    Raises:
        InvalidOption, ConfigError: A filter cannot be used.
    """
    return JobFilter(
        state=args.state,
        handler=args.handler,
        prefix=args.prefix or "",
        owner=args.owner,
        older_than_s=args.older_than,
    )


def lines(page: JobRows, found: int | None = None) -> Iterator[str]:
    """Yield a page for people; `found` jobs were on it and those before."""
    yield from rows(page)
    of = f" of {page.of}" if page.of else ""
    yield f"{len(page.jobs) if found is None else found} jobs; looked at {page.looked}{of} records"
    if page.cursor:
        yield f"the page ended after looking through {page.looked} records, whether or not they fit"
        yield f"there may be more: go on with --cursor {page.cursor}, or see all of them with --all"


def rows(page: JobRows) -> Iterator[str]:
    """Yield its jobs."""
    head = ("KEY", "STATE", "HANDLER", "AGE", "IN", "OWNER", "ATTEMPT", "ID", "ERROR")
    return table(
        head,
        (
            (
                *(each.key, each.state, each.handler, span(each.age_s), _when(each)),
                *(each.owner, each.attempt, each.job_id, each.error),
            )
            for each in page.jobs
        ),
    )


def _when(each: browse.JobRow) -> str:
    """Return for how long it runs, or until when it waits."""
    if each.wait_s is not None:
        return f"due in {span(each.wait_s)}" if each.wait_s >= 0 else "due"
    return span(each.since_s) if each.since_s is not None else ""
