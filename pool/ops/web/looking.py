"""What operators look at over HTTP, the journal as server-sent events, and pausing.

The journal as server-sent events: `id` is where an entry stands, and `Last-Event-ID` goes on.

    node.journal(since=..., follow=True) --entry--> id, event, data --> the caller
                                         --SILENT_S without one--> a comment: who is gone shows

Nothing is kept for a caller: any gateway goes on where another one was left.

What is there and how it is, as operators see it; and pausing, cordoning, draining.
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from datetime import datetime
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import anyio
import anyio.lowlevel
import anyio.to_thread
import attrs

from pool import checks
from pool.core.journal import JournalEntry
from pool.core.pauses import Pause
from pool.errors import NoSuchJob, PoolError
from pool.jobs.client.journal import Journal
from pool.jobs.client.pausing import CordonReport, PauseReport, named
from pool.ops import checkup, keyfacts, members, summary
from pool.ops.doctor import examine
from pool.ops.endpoints import HttpAnswer
from pool.ops.jsonable import as_json
from pool.ops.members import NodeRow
from pool.ops.web.asked import WebAnswer, WebRequest
from pool.ops.web.bodies import ResumeBody, UncordonBody
from pool.ops.web.problems import (
    AskedTold,
    FindingsTold,
    NodesTold,
    WebRefusal,
    WorkersTold,
    problem_of,
)
from pool.ops.why import why
from pool.version import __version__

SILENT_S: Final = 15.0
EVENT_STREAM: Final = "text/event-stream"


async def events(asked: WebRequest) -> WebAnswer:
    """Tell what happens beside ordinary work, as it happens."""
    query, gateway = asked.query, asked.gateway
    since = asked.headers.get("last-event-id") or query.since
    journal = asked.node.journal(
        key=query.key, handler=query.handler, since=_moment(since), follow=query.follow
    )
    if gateway.streams.is_full:
        most = gateway.streams.most
        detail, hint = f"{most} streams of events are open already", "ask with follow=false"
        raise WebRefusal("WEBBUSY", detail, hint, facts={"streams_max": most})
    return WebAnswer(stream=_told(journal), media_type=EVENT_STREAM)


def _moment(since: str | None) -> datetime | str | None:
    """Return a time, or what may be a position."""
    try:
        at = datetime.fromisoformat(since or "")
    except ValueError:
        return since
    return at  # without a zone it is refused: the gateway's own is not the caller's


async def _told(journal: Journal) -> AsyncIterator[bytes]:
    """Yield entry by entry; what ends it is told as `problem`: who asks again goes on behind it."""
    yield b"retry: 1000\n\n"
    while True:
        entry: JournalEntry | None = None
        try:
            with anyio.move_on_after(SILENT_S) as silence:
                entry = await anext(journal, None)
        except PoolError as error:
            yield f"event: problem\ndata: {as_json(problem_of(error)).decode()}\n\n".encode()
            return
        if entry is not None:
            yield _packed(entry)
            # So that the end of its connection is heard: what is written behind that is a warning
            # of asyncio's each time.
            await anyio.lowlevel.checkpoint()
        elif silence.cancelled_caught:
            yield b": nothing new\n\n"
        else:
            return


def _packed(entry: JournalEntry) -> bytes:
    facts: dict[str, Any] = attrs.asdict(entry)
    edge = "".join(entry.edge.split())
    text = as_json(facts).decode()
    return f"id: {entry.position}\nevent: {edge}\ndata: {text}\n\n".encode()


async def explain(asked: WebRequest) -> Any:
    """Say why a key is as it is."""
    gateway, key = asked.gateway, asked.path["key"]
    job_id = asked.query.job_id or ""
    told = why(await keyfacts.read(gateway.pipeline, await gateway.found(), key, job_id))
    if told.state == "unknown":
        raise NoSuchJob(key=key, job_id=job_id)
    return told


async def status(asked: WebRequest) -> Any:
    """Tell the pool at a glance."""
    return await summary.status(asked.gateway.pipeline, asked.node.pool)


async def nodes(asked: WebRequest) -> NodesTold:
    """Tell its nodes."""
    told = await members.read(asked.gateway.pipeline, await asked.gateway.found())
    nodes = tuple(_with_place(each, asked.node.id) for each in told.nodes)
    return NodesTold(nodes=nodes, unread=told.unread)


def _with_place(row: NodeRow, here: str) -> NodeRow:
    """Return a row; of ourselves with our place, which nobody else knows of a client."""
    if row.id != here:
        return row
    return attrs.evolve(row, host=socket.gethostname(), pid=os.getpid(), version=__version__)


async def workers(asked: WebRequest) -> WorkersTold:
    """Tell its workers."""
    told = await members.read(asked.gateway.pipeline, await asked.gateway.found())
    return WorkersTold(workers=told.workers, unread=told.unread)


async def findings(asked: WebRequest) -> FindingsTold:
    """Say what is wrong with the pool."""
    records_max = None if asked.query.all else checkup.RECORDS_MAX
    gateway = asked.gateway
    facts = await checkup.gather(gateway.pipeline, await gateway.found(), records_max=records_max)
    found = examine(facts)
    return FindingsTold(
        is_well=all(each.severity == "note" for each in found),
        looked=facts.looked,
        jobs=facts.jobs,
        findings=tuple(found),
    )


# --- health -----------------------------------------------------------------------------------


async def health(what: str, asked: WebRequest) -> WebAnswer:
    """Tell how this gateway is, as `pool run` does."""
    told: HttpAnswer = await anyio.to_thread.run_sync(
        partial(asked.gateway.endpoints.answer, "GET", what)
    )
    if told.status == HTTPStatus.NOT_FOUND:
        hint = "pip install 'keyed-pool[metrics]', and give WebApp its Metrics"
        facts = {"path": what, "metrics": False}
        raise WebRefusal("WEBPATH", "this gateway counts nothing", hint, facts=facts)
    return WebAnswer(status=told.status, body=told.body, media_type=told.kind)


# --- operating --------------------------------------------------------------------------------


async def pause(asked: WebRequest) -> PauseReport:
    """Give no more jobs to workers: of a handler, a key, or the whole pool."""
    return await asked.operator.pause(_meant(asked.body), asked.body.reason)


async def resume(asked: WebRequest) -> PauseReport:
    """Give them to workers again."""
    return await asked.operator.resume(_meant(asked.body))


def _meant(body: ResumeBody) -> Pause:
    """Return what is meant; the whole pool only if that is said, not because something is not.

    Raises:
        InvalidOption: Nothing is named, or too much.
    """
    if body.all and not (body.handler is None and body.key is None):
        raise checks.option("all", body.all, "left out beside a handler or a key")
    if not (body.all or body.handler is not None or body.key is not None):
        raise checks.option("all", body.all, "true for the whole pool; or name a handler or a key")
    return named(body.handler, body.key)


async def asked_for(asked: WebRequest) -> AskedTold:
    """Tell what is paused, and who is cordoned."""
    operator = asked.operator
    return AskedTold(pauses=await operator.pauses(), cordons=await operator.cordons())


async def cordon(asked: WebRequest) -> CordonReport:
    """Have a node, or a worker, take no more keys, and keep those that it has."""
    return await _cordon(asked, is_drain=False)


async def drain(asked: WebRequest) -> CordonReport:
    """Have it give up what it has, and leave."""
    return await _cordon(asked, is_drain=True)


async def _cordon(asked: WebRequest, *, is_drain: bool) -> CordonReport:
    return await asked.operator.cordon(
        asked.path["member"], asked.body.reason, is_drain=is_drain, wait_s=0
    )


async def uncordon(asked: WebRequest) -> CordonReport:
    """Have it take keys again."""
    return await asked.operator.uncordon(asked.path["member"], wait_s=0)


async def heard(asked: WebRequest, answered: WebAnswer) -> WebAnswer:
    """Wait until those meant have heard it, if that is wanted."""
    report = answered.told
    assert isinstance(report, CordonReport)
    is_taken_back = isinstance(asked.body, UncordonBody)
    with asked.waits.within():
        report = await asked.operator.heard(report, asked.body.wait_s, is_taken_back=is_taken_back)
    return WebAnswer(told=report)
