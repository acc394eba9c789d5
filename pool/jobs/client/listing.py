"""Listings of jobs: where the jobs are found, a page at a time, and what could not be read.

What a listing could not read: lanes whose server is away, each with the reason.

    gaps_of  asks all lanes at once, so that lanes that hang cost one call's time, not one each
    reading  stands around whatever is read of one lane: if it fails, it is a gap from then on

Every listing that reads all lanes takes a `Gaps`, or None.  With None the first lane that fails
fails the listing: a program must not take a part for the whole.  With a `Gaps` the listing shows
what it could read, and the caller says what is missing.

Where jobs are found: by an index where there is one, else by walking over all of them.

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

Looking at jobs, a page at a time, from a node; where it looks is told above.

A page looks at so many records as it was asked to, whatever comes of it, so that none keeps the
server or the loop from others.  What it found it looks up in one moment; between two pages jobs
move, so one may be told twice, or not at all.  Nothing is written, and a cursor is a place: a page
that is asked for again, or never, changes nothing.

What is empty may be a lane whose data are lost: so a lane is asked whose it is when it was read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, Literal, TypeAlias, get_args

import anyio
import anyio.lowlevel
import attrs

from pool import checks
from pool.core.ids import number_or
from pool.core.lifecycle import State
from pool.core.record import Record
from pool.errors import (
    AuthError,
    PayloadEncodingError,
    PoolError,
    StoreFault,
    StoreLost,
    StoreUnavailable,
    again,
)
from pool.jobs.client.job_client import JobClient
from pool.jobs.client.ref import Status, status_of
from pool.jobs.context import Context, LaneState
from pool.names import Names, check_handler, key_of
from pool.redis.commands.calls import read
from pool.redis.pipeline import Pipeline
from pool.redis.scripts import Word

_AWAY = (AuthError, StoreFault, StoreLost, StoreUnavailable)


@attrs.define
class Gaps:
    """The lanes that a listing has left out; give it to the listing, and look at it after.

    One may be given to several pages of the same listing: a lane that was away stays left out.
    """

    errors: dict[int, PoolError] = attrs.field(factory=dict)
    is_wanted: bool = True  # else every error is raised, and no lane is asked beforehand
    _has_looked: bool = attrs.field(default=False, init=False)

    @property
    def unread(self) -> tuple[str, ...]:
        """Which lanes were left out, and why."""
        return tuple(f"lane {number}: {error}" for number, error in sorted(self.errors.items()))

    @contextmanager
    def reading(self, number: int) -> Iterator[None]:
        """Note an error of this lane instead of raising it."""
        try:
            yield
        except _AWAY as error:
            if not self.is_wanted:
                raise
            self.errors[number] = error


async def gaps_of(given: Gaps | None, pipeline: Pipeline, lanes: Sequence[Names]) -> Gaps:
    """Return the gaps of a listing that is about to begin; the first one asks which lanes answer.

    Raises:
        InvalidOption: It is no `Gaps`.
        PoolError: None does.
    """
    gaps = Gaps(is_wanted=False) if given is None else checks.instance("gaps", given, Gaps)
    if gaps._has_looked or not gaps.is_wanted:
        return gaps

    async def ask(names: Names) -> None:
        with gaps.reading(names.number):
            await pipeline.execute("HGET", names.lane, "incarnation")

    async with anyio.create_task_group() as tasks:
        for names in lanes:
            tasks.start_soon(ask, names)
    gaps._has_looked = True
    if len(gaps.errors) == len(lanes):
        raise again(gaps.errors[min(gaps.errors)])
    return gaps


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


JUDGED: Final = 200  # of them without a pause: 2 ms of the event loop's
PAYLOADS: Final = 16  # fetched at once
PAYLOADS_BYTES_MAX: Final = 8 * 1024 * 1024  # fetched for one page, about

CallArguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]


@attrs.frozen(kw_only=True)
class JobPage:
    """Some jobs of a pool, as they were when the page was read.

    `looked` of `of` records were looked at for it (`of` is 0 where an index led to them).  `cursor`
    leads to the next page, and is empty where there is none; a page without jobs may have one.
    `payloads` has the arguments, by key and job id, if they were asked for: as many as fit into
    8 MiB, and those that can be read.
    """

    jobs: tuple[Status, ...]
    cursor: str
    looked: int
    of: int = 0
    payloads: Mapping[tuple[str, str], CallArguments] = attrs.field(factory=dict)


@attrs.frozen
class Listing:
    """Reads pages for one node."""

    client: JobClient

    async def page(
        self, wanted: JobFilter, cursor: str, size: int, *, payloads: bool = False
    ) -> JobPage:
        """Read the page behind a cursor; see `Node.jobs`."""
        size = checks.count("page", size, 1, PAGE_MAX)
        checks.flag("payloads", payloads)
        self.client.check_open()
        lane, source, at = read_cursor(cursor, len(self.client.context.lanes))
        context, looked, of = self.client.context, 0, 0
        generations = [state.lane.generation for state in context.lanes]
        found: dict[tuple[str, str], tuple[Status, LaneState, str, Record]] = {}
        while lane < len(context.lanes) and looked < size:
            state = context.lanes[lane]
            sources = await self._sources(state, wanted)
            if source >= len(sources):
                await self._check_there(state, generations[lane])
                lane, source, at = lane + 1, 0, "0"
                continue
            is_walk = sources[source][0] == "jobs"
            had = {name for kind, name in sources if kind == "unassigned"} if is_walk else ()
            pairs, at = await self._shelves.read(
                state.lane.names, sources[source], at, size - looked
            )
            looked += len(pairs)
            if not at:
                source, at = source + 1, "0"
            if is_walk:
                of = of or await self._total(context)
            for each in [pairs[i : i + JUDGED] for i in range(0, len(pairs), JUDGED)]:
                now_s = context.io.clock()
                for name, record in legible(each):
                    key = key_of(name)
                    age_s = -state.until_s(record.accepted / 1000, now_s)
                    if record.handler not in had and wanted.fits(key, record, age_s):
                        status = status_of(key, "", record, self.client)
                        found[key, record.id] = (status, state, name, record)
                await anyio.lowlevel.checkpoint()
        is_over = lane >= len(context.lanes)
        arguments = await self._payloads([*found.values()]) if payloads else {}
        return JobPage(
            jobs=tuple(status for status, *_ in found.values()),
            cursor="" if is_over else f"{lane}.{source}.{at}",
            looked=looked,
            of=of,
            payloads=arguments,
        )

    async def count(self, wanted: JobFilter) -> int:
        """Count jobs: by the sizes of indexes where those tell, else page by page."""
        self.client.check_open()
        others = (wanted.owner, wanted.older_than_s, wanted.prefix or None)
        of_index = wanted.state == "unassigned" or (
            wanted.state == "pending" and wanted.handler is None
        )
        if of_index and others == (None, None, None):
            counts = [await self._count_of(state, wanted) for state in self.client.context.lanes]
            if None not in counts:
                return sum(filter(None, counts))
        total, cursor = 0, ""
        while True:
            page = await self.page(wanted, cursor, PAGE_MAX)
            total, cursor = total + len(page.jobs), page.cursor
            if not cursor:
                return total

    async def _count_of(self, state: LaneState, wanted: JobFilter) -> int | None:
        """Count a lane's by its indexes; None: they do not have all."""
        generation, sources = state.lane.generation, await self._sources(state, wanted)
        if ("jobs", "") in sources:
            return None
        names = [place_of(state.lane.names, each) for each in sources]
        sizes = await self.client.context.pipeline.execute_all(("ZCARD", name) for name in names)
        await self._check_there(state, generation)
        return sum(sizes)

    # --- reading ------------------------------------------------------------------------------

    @property
    def _shelves(self) -> Shelves:
        return Shelves(self.client.context.pipeline)

    async def _sources(self, state: LaneState, wanted: JobFilter) -> Sequence[Shelf]:
        workers = self.client.context.candidates.workers
        worker = workers.get(wanted.owner or "")
        name = worker.name_in(state.number) if worker and worker.is_in(state.number) else ""
        return await self._shelves.sources(state.lane.names, wanted, name)

    async def _check_there(self, state: LaneState, generation: str) -> None:
        """Refuse to say what is in a lane whose data were lost since it was of that generation.

        Raises:
            StoreLost: They were.
        """
        found = await self.client.context.pipeline.execute(
            "HGET", state.lane.names.lane, "incarnation"
        )
        told = (found or b"").decode(errors="replace")
        if not told or (generation and told != generation):
            self.client.context.on_data_lost(state.number)
            raise StoreLost(pool=self.client.pool)

    async def _total(self, context: Context) -> int:
        names = [state.lane.names.jobs for state in context.lanes]
        return sum(await context.pipeline.execute_all(("HLEN", name) for name in names))

    async def _payloads(
        self, found: Sequence[tuple[Status, LaneState, str, Record]]
    ) -> dict[tuple[str, str], CallArguments]:
        arguments, left = dict[tuple[str, str], CallArguments](), PAYLOADS_BYTES_MAX
        for i in range(0, len(found), PAYLOADS):
            some, commands = found[i : i + PAYLOADS], list[tuple[Word, ...]]()
            for _, state, name, record in some:
                names, entry = state.lane.names, f"{record.epoch}-0"
                if record.state == "pending" and "p" not in record.flags:
                    commands.append(("XRANGE", names.stream(record.owner), entry, entry))
                else:
                    commands.append(("HGET", names.payloads, name))
            replies = await self.client.context.pipeline.execute_all(commands)
            for (status, _, _, record), reply in zip(some, replies, strict=True):
                payload = reply
                if isinstance(reply, list):  # of an entry, which may have gone since
                    payload = reply[0][1][5] if reply and len(reply[0][1]) > 5 else None
                if payload is not None:
                    left -= len(payload)
                    with suppress(PayloadEncodingError):
                        args, kwargs = self.client.read_call(record.handler, payload)
                        arguments[status.key, status.job_id] = tuple(args), dict(kwargs)
            if left <= 0:
                break
        return arguments
