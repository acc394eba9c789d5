"""Where jobs are found: by an index where there is one, else by walking over all of them.

    what is asked for                 where it looks
    owner                             owned:W, then stream:W
    unassigned                        unassigned:H of that handler, or of each that is registered,
                                      and, if there are more, `jobs` for those of handlers that are
                                      not
    pending                           `pending`
    waiting                           `due`
    anything else                     `jobs`, all of it

One slice of one of these is a command or two, and no longer than it was asked to be.  Nodes read
them (`listing`), and who looks from outside without joining (`pool/ops/browse.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, Literal, TypeAlias, get_args

import attrs

from pool import checks
from pool.core.digits import number_or
from pool.core.lifecycle import State
from pool.core.record import Record
from pool.names import Names, check_handler
from pool.redis.commands.reply import read
from pool.redis.pipeline import Pipeline

PAGE_MAX: Final = 2_000  # records looked at for one page: some 2 ms of the server's time
PAGE: Final = 500
_RANK_MAX: Final = 10**18  # a server refuses ranks beyond 2**63

_Kind: TypeAlias = Literal["jobs", "owned", "stream", "unassigned", "pending", "due"]
Shelf: TypeAlias = tuple[_Kind, str]
_CURSOR: Final = re.compile(r"(\d{1,4})\.(\d{1,6})\.(\d{1,20}(?:-\d{1,20})?)", re.ASCII)


@attrs.frozen(kw_only=True)
class JobFilter:
    """Which jobs are meant: those that fit all that is given."""

    state: State | None = None
    handler: str | None = None
    prefix: str = ""
    owner: str | None = None
    older_than_s: float | None = None

    def __attrs_post_init__(self) -> None:
        if self.state is not None:
            checks.word("state", self.state, *get_args(State))
        if self.handler is not None:
            check_handler(self.handler)
        checks.text("prefix", self.prefix)
        if self.owner is not None:
            checks.text("owner", self.owner)
        checks.seconds("older_than_s", self.older_than_s, or_none=True)

    def fits(self, key: str, record: Record, age_s: float) -> bool:
        """Say whether a job is meant that was accepted so long ago."""
        return (
            self.state in (None, record.state)
            and self.handler in (None, record.handler)
            and key.startswith(self.prefix)
            and (self.owner is None or f"{record.owner}.".startswith(f"{self.owner}."))
            and (self.older_than_s is None or age_s >= self.older_than_s)
        )


@attrs.frozen
class Shelves:
    """Reads slices of a pool's lanes."""

    pipeline: Pipeline

    async def sources(self, names: Names, wanted: JobFilter, owner: str) -> Sequence[Shelf]:
        """Return where in a lane to look, in this order.

        `owner` is the name that the owner asked for has there, as far as it is known.
        """
        if wanted.owner:
            name = owner or wanted.owner
            if "." not in name:  # of whom nothing is known (any more)
                return (("jobs", ""),)
            return (("owned", name), ("stream", name))
        match wanted.state:
            case "unassigned" if wanted.handler is not None:
                return (("unassigned", wanted.handler),)
            case "unassigned":
                handlers = await self.pipeline.execute("HKEYS", names.handlers)
                known = sorted(name.decode(errors="replace") for name in handlers)
                queues = tuple[Shelf, ...](("unassigned", name) for name in known)
                return (*queues, ("jobs", "")) if await self._has_others(names, queues) else queues
            case "pending":
                return (("pending", ""),)
            case "waiting":
                return (("due", ""),)
        return (("jobs", ""),)

    async def _has_others(self, names: Names, queues: Sequence[Shelf]) -> bool:
        """Say whether more are unassigned than these handlers' queues have, as the lane counts."""
        sizes = [("ZCARD", place_of(names, each)) for each in queues]
        counted = ("HGET", names.lane, "unassigned")
        *found, all_of = await self.pipeline.execute_all([*sizes, counted])
        return number_or(0, all_of or b"") > sum(found)

    async def read(
        self, names: Names, source: Shelf, at: str, count: int
    ) -> tuple[list[tuple[bytes, bytes | None]], str]:
        """Return names in `jobs` with their records, and where to go on: empty, that was all."""
        kind, name, pipeline = source[0], place_of(names, source), self.pipeline
        if kind != "stream" and "-" in at:  # a cursor of a listing by owner
            raise checks.cursor_error(at, "it is of a page with other filters")
        if kind == "jobs":
            following, flat = await pipeline.execute("HSCAN", name, at, "COUNT", count)
            return list(zip(flat[::2], flat[1::2], strict=True)), following.strip("0") and following
        if kind == "owned":
            following, found = await pipeline.execute("SSCAN", name, at, "COUNT", count)
            following = following.strip("0") and following
        elif kind == "stream":
            first = "-" if at == "0" else f"({at}"
            entries = await pipeline.execute("XRANGE", name, first, "+", "COUNT", count)
            found = [held[1] for _, held in entries if held[:1] == [b"k"]]
            following = entries[-1][0] if len(entries) >= count else ""
        else:
            rank = min(int(at), _RANK_MAX)
            found = await pipeline.execute("ZRANGE", name, rank, rank + count - 1)
            following = str(rank + count) if len(found) >= count else ""
            if kind == "due":
                found = [member[2:] for member in found if member[:2] == b"k:"]
        if not found:
            return [], following
        texts = await pipeline.execute("HMGET", names.jobs, *found)
        return list(zip(found, texts, strict=True)), following


def place_of(n: Names, source: Shelf) -> str:
    """Return the key of such a place."""
    kind, of = source
    match kind:
        case "jobs":
            return n.jobs
        case "pending":
            return n.pending
        case "due":
            return n.due
        case "owned":
            return n.owned(of)
        case "stream":
            return n.stream(of)
    return n.unassigned(of)


def read_cursor(cursor: object, lanes: int) -> tuple[int, int, str]:
    """Return lane, source and place there of a cursor that a page of so many lanes told."""
    if type(cursor) is str and not cursor:
        return 0, 0, "0"
    match = _CURSOR.fullmatch(cursor) if type(cursor) is str else None
    if match is None or not all(map(checks.is_scan_place, match[3].split("-"))):
        raise checks.cursor_error(cursor)
    return checks.cursor_lane(match[0], int(match[1]), lanes), int(match[2]), match[3]


def legible(pairs: Sequence[tuple[bytes, bytes | None]]) -> Iterator[tuple[str, Record]]:
    """Yield those that can be worked on."""
    for name, text in pairs:
        record = read(name, text) if text is not None else None
        if record is not None:
            yield name.decode(), record
