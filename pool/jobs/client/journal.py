"""Reading the journal of a pool: lane by lane in pages, merged by time; live on request.

    XRANGE per lane, from where it stands --> pages --> merged --> entries --> the caller
       ^                                                              |
       |<-- where each lane stands by now; half a second, if it follows

Nothing is kept in the store for a reader, so any may end, or go on from a position that another
one has told.  A lane that does not answer keeps nobody from the others: who follows is told so once
(`unread`), and of what it has to say when it answers again; who does not gets its error at the end.
Entries that the cap took before they were read are told of (`missed`).
"""

from __future__ import annotations

import math
from collections import deque
from datetime import UTC, datetime
from functools import partial
from operator import itemgetter
from typing import Final, Self

import anyio
import attrs

from pool import checks
from pool.core.journal import (
    MISSED,
    PAGE,
    UNREAD,
    ZERO,
    JournalEntry,
    JournalPage,
    ReadTo,
    merged,
    page_of,
    parse,
    parse_position,
    position,
    time_of,
)
from pool.errors import PoolError, StoreUnavailable, again
from pool.names import Names, check_handler, check_key, lane_of
from pool.redis.io.system import Reply
from pool.redis.pipeline import Pipeline

FOLLOW_S: Final = 0.5  # between two looks of who follows


@attrs.frozen(kw_only=True)
class JournalFilter:
    """Which entries are asked for: of a key, of a handler, or all; checked."""

    key: str | None = None
    handler: str | None = None

    def __attrs_post_init__(self) -> None:
        if self.key is not None:
            check_key(self.key)
        if self.handler is not None:
            check_handler(self.handler)

    def fits(self, entry: JournalEntry) -> bool:
        """Whether an entry is one of those; what is told of the journal itself always is."""
        if entry.edge in (MISSED, UNREAD):
            return True
        return self.key in (None, entry.key) and self.handler in (None, entry.handler)


def start_of(since: object, lanes: int) -> tuple[ReadTo, ...]:
    """Return where each lane is to be read from.

    Raises:
        InvalidOption: `since` is neither a position of this pool, nor a time, nor None.
    """
    if since is None:
        return (ReadTo(),) * lanes
    if issubclass(type(since), datetime):
        assert isinstance(since, datetime)
        if since.tzinfo is None:
            raise checks.option("since", since, "a time with a zone")
        ms = max(0, round(since.astimezone(UTC).timestamp() * 1000))
        return (ReadTo(f"{ms}-0" if ms else ZERO),) * lanes
    found = parse_position(since, lanes) if type(since) is str else None
    if found is None:
        must = f"a time, or the position of an entry: one id for each of the {lanes} lanes"
        raise checks.option("since", since, must)
    return found


@attrs.define(eq=False)
class Journal:
    """A way through the journal of a pool: `async for entry in node.journal()`.

    It may be left and gone on with; so may another one, from the `position` of an entry.
    """

    _pipeline: Pipeline
    _pool: str
    _wanted: JournalFilter
    _ats: list[ReadTo]
    _is_live: bool = False
    _failed: dict[int, PoolError] = attrs.field(factory=dict)  # lanes that do not answer
    _ready: deque[JournalEntry] = attrs.field(factory=deque)
    _is_over: bool = False
    _asked: set[int] = attrs.field(factory=set)  # lanes that have not answered yet
    _replies: dict[int, Reply] = attrs.field(factory=dict)  # of those that have
    _bell: anyio.Event = attrs.field(factory=anyio.Event)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> JournalEntry:
        """Return the next entry.

        Raises:
            StoreUnavailable, StoreFault: A lane does not answer, or something else stands in its
                journal's place; the others were read to their end.  Not of a live one.
            NotRunning: The node is closed.
        """
        while not self._ready:
            if self._is_over:
                for lane in list(self._failed):
                    raise again(self._failed.pop(lane))
                raise StopAsyncIteration
            had, has_more = position(self._ats), await self._read()
            if not self._is_live:
                self._is_over = not has_more
            elif not has_more and position(self._ats) == had and not self._ready:
                await anyio.sleep(FOLLOW_S)
        return self._ready.popleft()

    async def _read(self) -> bool:
        """Read a page of each lane; make ready what of it is in order.  Whether there is more."""
        self._pipeline.check_caller()
        key, pages = self._wanted.key, dict[int, JournalPage]()
        for lane in range(len(self._ats)) if key is None else [lane_of(key, len(self._ats))]:
            self._ask(lane)
        with anyio.move_on_after(FOLLOW_S if self._is_live else math.inf):
            while self._asked:  # of a live one no lane that hangs holds up the others
                self._bell = anyio.Event()
                await self._bell.wait()
        replies, self._replies = self._replies, {}
        for lane, reply in sorted(replies.items(), key=itemgetter(0)):
            if isinstance(reply, PoolError):
                if lane not in self._failed:
                    self._tell(lane, UNREAD, str(reply))
                self._failed[lane] = reply
                continue
            self._failed.pop(lane, None)
            page = pages[lane] = page_of(self._ats[lane], reply)
            if page.has_missed:
                self._ats[lane] = ReadTo(self._ats[lane].id)
                self._tell(lane, MISSED, "the cap took entries before they were read")
        for lane, raw in merged(pages):
            self._ats[lane] = ReadTo(raw[0], True)
            entry = parse(raw, lane, position(self._ats))
            if self._wanted.fits(entry):
                self._ready.append(entry)
        return any(page.is_full for page in pages.values())

    def _ask(self, lane: int) -> None:
        if lane in self._asked or lane in self._replies:
            return
        name, start = Names(self._pool, lane).journal, self._ats[lane].id
        self._asked.add(lane)
        try:
            self._pipeline.send(
                ("XRANGE", name, start, "+", "COUNT", PAGE + 1), partial(self._take, lane)
            )
        except StoreUnavailable as error:
            self._take(lane, error)

    def _take(self, lane: int, reply: Reply) -> None:
        self._asked.discard(lane)
        self._replies[lane] = reply
        self._bell.set()

    def _tell(self, lane: int, edge: str, detail: str) -> None:
        at = self._ats[lane].id
        told = JournalEntry(
            position=position(self._ats), at=time_of(at), lane=lane, edge=edge, detail=detail
        )
        self._ready.append(told)


async def latest(
    pipeline: Pipeline, pool: str, lanes: int, key: str, most: int
) -> tuple[JournalEntry, ...]:
    """Return the latest entries of a key, the last one last.

    Raises:
        PoolError: Its lane cannot be asked.
    """
    found: deque[JournalEntry] = deque(maxlen=most)
    async for entry in Journal(pipeline, pool, JournalFilter(key=key), [ReadTo()] * lanes):
        if entry.edge != UNREAD:
            found.append(entry)
    return tuple(found)
