"""Reading the journal of a pool: lane by lane in pages, merged by time; live on request.

    XRANGE per lane, from where it stands --> pages --> merged --> entries --> the caller
       ^                                                              |
       |<-- where each lane stands by now; half a second, if it follows

Nothing is kept in the store for a reader, so any may end, or go on from a position that another
one has told.  A lane that cannot be read keeps nobody from the others: its reader is told so once
(`unread`), and who follows, of what it has to say when it answers again.  Only where no lane at all
answers is there an error, of who does not follow.  Entries that went before they were read are told
of (`missed`): behind a full page the cap took them; else there are fewer than it leaves, so that
the journal has begun anew.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
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
)
from pool.errors import PoolError, StoreFault, StoreUnavailable, again, sentence
from pool.names import Names, check_handler, check_key, lane_of
from pool.redis.io.system import Reply
from pool.redis.pipeline import Pipeline

FOLLOW_S: Final = 0.5  # between two looks of who follows
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_CAPPED: Final = "the cap took entries before they were read, or the journal has begun anew"
_ANEW: Final = "the journal has begun anew: the server has lost its data, or somebody deleted it"


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
        ms = max(0, round((since - _EPOCH) / timedelta(milliseconds=1)))
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
    failed: dict[int, PoolError] = attrs.field(init=False, factory=dict)  # lanes, and why
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
            StoreError: No lane answers.  Not of a live one.
            NotRunning: The node is closed.
        """
        while not self._ready:
            if self._is_over:
                silent = [e for e in self.failed.values() if not isinstance(e, StoreFault)]
                if silent and len(silent) == len(self._lanes()):
                    self.failed.clear()
                    raise again(silent[0])
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
        pages = dict[int, JournalPage]()
        for lane in self._lanes():
            self._ask(lane)
        with anyio.move_on_after(FOLLOW_S if self._is_live else math.inf):
            while self._asked:  # of a live one no lane that hangs holds up the others
                self._bell = anyio.Event()
                await self._bell.wait()
        goes_back, (replies, self._replies) = False, (self._replies, {})
        for lane, reply in sorted(replies.items(), key=itemgetter(0)):
            if isinstance(reply, PoolError):
                if lane not in self.failed:
                    where = Names(self._pool, lane).journal
                    self._tell(lane, UNREAD, f"{where}: {sentence(reply)}")
                self.failed[lane] = reply
                continue
            self.failed.pop(lane, None)
            page = pages[lane] = page_of(self._ats[lane], reply)
            if page.has_missed:
                # A server that lost data may give lower ids: all that is there is read then.
                is_behind = not page.entries and self._ats[lane].id != ZERO
                self._ats[lane] = ReadTo() if is_behind else ReadTo(self._ats[lane].id)
                goes_back = goes_back or is_behind
                self._tell(lane, MISSED, _CAPPED if page.is_full else _ANEW)
        for lane, raw in merged(pages):
            self._ats[lane] = ReadTo(raw[0], True)
            entry = parse(raw, lane, position(self._ats))
            if self._wanted.fits(entry):
                self._ready.append(entry)
        return goes_back or any(page.is_full for page in pages.values())

    def _lanes(self) -> Sequence[int]:
        """Return which lanes have what is asked for."""
        key, lanes = self._wanted.key, len(self._ats)
        return range(lanes) if key is None else [lane_of(key, lanes)]

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
        told = JournalEntry(
            position=position(self._ats),
            at=datetime.now(UTC),
            lane=lane,
            edge=edge,
            detail=detail,
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
    journal = Journal(pipeline, pool, JournalFilter(key=key), [ReadTo()] * lanes)
    async for entry in journal:
        if entry.edge != UNREAD:
            found.append(entry)
    for error in journal.failed.values():
        raise again(error)
    return tuple(found)
