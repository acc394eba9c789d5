"""Jobs as somebody sees them who looks from outside: page by page, or all that is known of one.

    jobs   shelves (an index, or a walk) --a page--> rows, a cursor, how many were looked at
    job    keyfacts --> why it is so, and its arguments, saved state, steps, result

It joins nothing and writes nothing.  A page looks at PAGE_MAX records at most, which holds the
server for some 2 ms; what moves between two pages may be told twice, or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import attrs

from pool import checks
from pool.core.codec import decode_call, decode_value, head_of
from pool.core.ids import member_name
from pool.core.record import Letter, Outcome, Record, more_of
from pool.errors import PayloadEncodingError
from pool.jobs.client.listing import (
    PAGE,
    PAGE_MAX,
    Gaps,
    JobFilter,
    Shelves,
    gaps_of,
    legible,
    read_cursor,
)
from pool.jobs.typed.contract import ours
from pool.names import Names, key_of, lane_of, pair, queued
from pool.ops import keyfacts
from pool.ops.inspect import Found, all_of, fields_of, whole
from pool.ops.jsonable import TextEncoding, args_as_text, as_text
from pool.ops.keyfacts import KeyFacts
from pool.ops.why import Why, why
from pool.redis.commands.member import Opening
from pool.redis.pipeline import Pipeline

SLICE: Final = 250  # one command looks at no more: by an index each is a miss of the caches


@attrs.frozen(kw_only=True)
class JobRow:
    """A live job.

    `age_s` is since it was accepted, `since_s` since its present run began (None: it does not run),
    `wait_s` until it is due (None: it waits for no time); all in seconds of pool time.
    """

    key: str
    job_id: str
    state: str
    handler: str
    kind: str
    owner: str
    epoch: int
    attempt: int
    crashes: float
    age_s: float
    since_s: float | None
    wait_s: float | None
    is_stopping: bool
    error: str


@attrs.frozen(kw_only=True)
class JobRows:
    """A page of jobs.

    `looked` of `of` records were looked at for it; `of` is 0 where an index led to them.  `cursor`
    leads to the next page and is empty where there is none; a page without jobs may have one.
    `unread` names the lanes that do not answer, and why: their jobs are on no page.
    """

    v: int = 1
    pool: str
    jobs: tuple[JobRow, ...]
    cursor: str
    looked: int
    of: int
    unread: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class JobTold:
    """All that is known of a job.

    `args` and `kwargs` are None where they are not there or cannot be read; `result` is told if
    `has_result`.  `encoding` base64: the only argument, or the result, is bytes, so written.
    `state_bytes` were saved or handed over, `steps` have their results stored.
    """

    v: int = 1
    pool: str
    key: str
    job_id: str
    why: Why
    args: list[Any] | None = None
    kwargs: dict[str, Any] | None = None
    payload_bytes: int = 0
    codec: str = ""
    state_bytes: int = 0
    steps_bytes: int = 0
    has_result: bool = False
    encoding: TextEncoding = "json"
    result: Any = None
    result_bytes: int = 0


async def jobs(
    pipeline: Pipeline,
    found: Found,
    wanted: JobFilter,
    *,
    cursor: str = "",
    page: int = PAGE,
    gaps: Gaps | None = None,
) -> JobRows:
    """Read the page of live jobs behind a cursor.

    Lanes that do not answer are left out, and told; `gaps` are those of the pages before.

    Raises:
        InvalidOption: The cursor, or the page's size, cannot be used.
        PoolError: No lane answers, or the server refuses.
    """
    page = checks.count("page", page, 1, PAGE_MAX)
    lane, source, at = read_cursor(cursor, found.lanes)
    rows, looked, of = dict[tuple[str, str], JobRow](), 0, 0
    lanes = [Names(found.pool, number) for number in range(found.lanes)]
    gaps = await gaps_of(gaps or Gaps(), pipeline, lanes)
    while lane < found.lanes and looked < page:
        n, read = lanes[lane], None
        if lane not in gaps.errors:
            with gaps.reading(lane):
                read = await _slice(pipeline, n, wanted, (source, at), min(SLICE, page - looked))
        if read is None:
            lane, source, at = lane + 1, 0, "0"
            continue
        looked += read.looked
        source, at = read.source, read.at
        if read.is_walk and not of:
            of = await _total(pipeline, [each for each in lanes if each.number not in gaps.errors])
        rows |= read.rows
    is_over = lane >= found.lanes
    return JobRows(
        pool=found.pool,
        jobs=tuple(rows.values()),
        cursor="" if is_over else f"{lane}.{source}.{at}",
        looked=looked,
        of=of,
        unread=gaps.unread,
    )


@attrs.frozen
class _Slice:
    """A part of a lane's jobs, and where to go on there."""

    rows: dict[tuple[str, str], JobRow]
    looked: int
    is_walk: bool
    source: int
    at: str


async def _slice(
    pipeline: Pipeline, n: Names, wanted: JobFilter, place: tuple[int, str], count: int
) -> _Slice | None:
    """Read so many records from a place in a lane; None: it is behind the last one."""
    shelves, (source, at) = Shelves(pipeline), place
    sources = await shelves.sources(n, wanted, await _name_of(pipeline, n, wanted.owner))
    if source >= len(sources):
        return None
    is_walk = sources[source][0] == "jobs"
    had = {name for kind, name in sources if kind == "unassigned"} if is_walk else set[str]()
    pairs, at = await shelves.read(n, sources[source], at, count)
    if not at:
        source, at = source + 1, "0"
    rows, now_ms = dict[tuple[str, str], JobRow](), await _now_ms(pipeline, n)
    for name, record in legible(pairs):
        key, age_s = key_of(name), (now_ms - record.accepted / 1000) / 1000
        if record.handler not in had and wanted.fits(key, record, age_s):
            rows[key, record.id] = row(key, record, now_ms)
    return _Slice(rows, len(pairs), is_walk, source, at)


def row(key: str, record: Record, now_ms: int) -> JobRow:
    """Return a record as a row."""
    since_s = (now_ms - record.since_ms) / 1000 if record.since_ms else None
    is_running, is_waiting = record.state == "running", record.state == "waiting"
    return JobRow(
        key=key,
        job_id=record.id,
        state=record.state,
        handler=record.handler,
        kind=record.kind,
        owner=record.owner,
        epoch=record.epoch,
        attempt=record.attempt,
        crashes=float(record.marks.deaths),
        age_s=round(max(0.0, now_ms / 1000 - record.accepted / 1e6), 3),
        since_s=round(max(0.0, since_s), 3) if since_s is not None and is_running else None,
        wait_s=round(-since_s, 3) if since_s is not None and is_waiting else None,
        is_stopping=record.intent.startswith("s"),
        error=record.error,
    )


async def job(pipeline: Pipeline, found: Found, key: str, job_id: str = "") -> JobTold:
    """Read all that is known of a key's live or last job, or of the one of that id.

    Raises:
        PoolError: The server does not answer, or refuses.
    """
    facts = await keyfacts.read(pipeline, found, key, job_id)
    told = JobTold(pool=found.pool, key=key, job_id=facts.job_id, why=why(facts))
    if facts.is_lost or facts.is_unreadable:
        return told
    n = Names(found.pool, lane_of(key, found.lanes))
    if facts.record is not None:
        return await _live(pipeline, n, facts, facts.record, told)
    if facts.ended is not None:
        return await _ended(pipeline, n, facts.ended, told)
    return told


# --- parts ------------------------------------------------------------------------------------


async def _name_of(pipeline: Pipeline, n: Names, owner: str | None) -> str:
    """Return the name that a worker has in a lane; empty if it is not known there."""
    if not owner or "." in owner:
        return ""
    [text] = await fields_of(pipeline, [], n.open, [owner])
    opening = Opening.parse(text) if text else None
    return member_name(owner, opening.number) if opening is not None else ""


async def _total(pipeline: Pipeline, lanes: Sequence[Names]) -> int:
    return sum(await pipeline.execute_all(("HLEN", names.jobs) for names in lanes))


async def _now_ms(pipeline: Pipeline, n: Names) -> int:
    """Return pool time in a lane."""
    time_ms, offset = await pipeline.at(n.prefix).execute_all(
        [("TIME",), ("HGET", n.lane, "offset")]
    )
    return int(time_ms) + whole(offset or b"0")


async def _live(
    pipeline: Pipeline, n: Names, facts: KeyFacts, record: Record, told: JobTold
) -> JobTold:
    key = facts.key
    entry = f"{record.epoch}-0"
    if record.state == "pending" and "p" not in record.flags:
        asked: tuple[str, ...] = ("XRANGE", n.stream(record.owner), entry, entry)
    else:
        name = queued(key, record.id) if record.state == "queued" else key
        asked = ("HGET", n.payloads, name)
    payload, state, steps = await all_of(
        pipeline.at(n.prefix),
        [],
        [
            asked,
            ("HSTRLEN", n.checkpoints, key),
            ("HSTRLEN", n.checkpoints, f"\n{record.id} {key}"),
        ],
    )
    if isinstance(payload, list):  # of an entry, which may have gone since
        payload = payload[0][1][5] if payload and len(payload[0][1]) > 5 else None
    has_followers = more_of(record.more, "followers")
    if payload and has_followers.isdecimal():
        payload = payload[: int(has_followers)]
    return attrs.evolve(_with_call(told, payload), state_bytes=state or 0, steps_bytes=steps or 0)


async def _ended(pipeline: Pipeline, n: Names, ended: Outcome, told: JobTold) -> JobTold:
    if ended.word == "parked":
        name = pair(told.key, told.job_id)
        [text] = await fields_of(pipeline.at(n.prefix), [], n.letters, [name])
        letter = Letter.parse(told.key, told.job_id, text) if text else None
        return _with_call(told, letter.payload if letter is not None else None)
    if ended.word != "done":
        return told
    told = attrs.evolve(told, result_bytes=len(ended.body))
    with suppress(PayloadEncodingError):
        codec = ours(head_of(ended.body)[0])
        result, encoding = as_text(decode_value(ended.body, codec))
        told = attrs.evolve(told, has_result=True, result=result, encoding=encoding)
    return told


def _with_call(told: JobTold, payload: bytes | None) -> JobTold:
    """Add the arguments, as far as they can be read."""
    if payload is None:
        return told
    told = attrs.evolve(told, payload_bytes=len(payload))
    with suppress(PayloadEncodingError):
        codec = head_of(payload)[0]
        told = attrs.evolve(told, codec=codec)
        given, kwargs = decode_call(payload, ours(codec))
        args, encoding = args_as_text(given)
        told = attrs.evolve(told, args=list(args), kwargs=dict(kwargs), encoding=encoding)
    return told
