"""The journal as server-sent events: `id` is where an entry stands, and `Last-Event-ID` goes on.

    node.journal(since=..., follow=True) --entry--> id, event, data --> the caller
                                         --SILENT_S without one--> a comment: who is gone shows

Nothing is kept for a caller: any gateway goes on where another one was left.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any, Final

import anyio
import anyio.lowlevel
import attrs

from pool.core.journal import JournalEntry
from pool.errors import PoolError
from pool.jobs.client.journal import Journal
from pool.ops.jsonable import as_json
from pool.ops.web.asked import WebAnswer, WebRequest
from pool.ops.web.problems import WebRefusal, problem_of

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
