"""Looking at jobs, a page at a time: by an index where there is one, else by walking over all.

    what is asked for                 where it looks
    owner                             owned:W, then stream:W
    unassigned                        unassigned:H of that handler, or of each that is registered,
                                      and, if there are more, `jobs` for those of handlers that are
                                      not
    pending                           `pending`
    waiting                           `due`
    anything else                     `jobs`, all of it

A page looks at so many records as it was asked to, whatever comes of it, so that none keeps the
server or the loop from others.  What it found it looks up in one moment; between two pages jobs
move, so one may be told twice, or not at all.  Nothing is written, and a cursor is a place: a page
that is asked for again, or never, changes nothing.

What is empty may be a lane whose data are lost: so a lane is asked whose it is when it was read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Literal, TypeAlias, get_args

import anyio.lowlevel
import attrs

from pool import checks
from pool.core.digits import number_or
from pool.core.lifecycle import State
from pool.core.record import Record
from pool.errors import InvalidOption, PayloadEncodingError, StoreLost, shown
from pool.jobs.client.job_client import JobClient
from pool.jobs.client.ref import Status, status_of
from pool.jobs.context import Context, LaneState
from pool.names import check_handler, key_of
from pool.redis.commands.reply import read
from pool.redis.pipeline import Pipeline
from pool.redis.scripts import Word

PAGE_MAX: Final = 2_000  # records looked at for one page: some 2 ms of the server's time
PAGE: Final = 500
JUDGED: Final = 200  # of them without a pause: 2 ms of the event loop's
PAYLOADS: Final = 16  # fetched at once
PAYLOADS_BYTES_MAX: Final = 8 * 1024 * 1024  # fetched for one page, about

Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
_Kind: TypeAlias = Literal["jobs", "owned", "stream", "unassigned", "pending", "due"]
_Source: TypeAlias = tuple[_Kind, str]
_CURSOR: Final = re.compile(r"(\d{1,4})\.(\d{1,6})\.(\d{1,20}(?:-\d{1,20})?)", re.ASCII)


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
    payloads: Mapping[tuple[str, str], Arguments] = attrs.field(factory=dict)


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

    def fits(self, key: str, record: Record, state: LaneState, now_s: float) -> bool:
        """Say whether a job is meant."""
        return (
            self.state in (None, record.state)
            and self.handler in (None, record.handler)
            and key.startswith(self.prefix)
            and (self.owner is None or f"{record.owner}.".startswith(f"{self.owner}."))
            and (
                self.older_than_s is None
                or state.until_s(record.accepted / 1000, now_s) <= -self.older_than_s
            )
        )


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
        lane, source, at = _place(cursor)
        self.client.check_open()
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
            pairs, at = await self._read(state, sources[source], at, size - looked)
            looked += len(pairs)
            if not at:
                source, at = source + 1, "0"
            if is_walk:
                of = of or await self._total(context)
            for each in [pairs[i : i + JUDGED] for i in range(0, len(pairs), JUDGED)]:
                now_s = context.io.clock()
                for name, record in _legible(each):
                    key = key_of(name)
                    if record.handler not in had and wanted.fits(key, record, state, now_s):
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
        names = [_name(state, each) for each in sources]
        sizes = await self._pipeline.execute_all(("ZCARD", name) for name in names)
        await self._check_there(state, generation)
        return sum(sizes)

    # --- reading ------------------------------------------------------------------------------

    @property
    def _pipeline(self) -> Pipeline:
        return self.client.context.pipeline

    async def _sources(self, state: LaneState, wanted: JobFilter) -> Sequence[_Source]:
        if wanted.owner:
            workers = self.client.context.candidates.workers
            name = wanted.owner
            if name in workers and workers[name].is_in(state.number):
                name = workers[name].name_in(state.number)
            elif "." not in name:  # of whom this node knows nothing (any more)
                return (("jobs", ""),)
            return (("owned", name), ("stream", name))
        match wanted.state:
            case "unassigned" if wanted.handler is not None:
                return (("unassigned", wanted.handler),)
            case "unassigned":
                names = await self._pipeline.execute("HKEYS", state.lane.names.handlers)
                known = sorted(name.decode(errors="replace") for name in names)
                queues = tuple[_Source, ...](("unassigned", name) for name in known)
                return (*queues, ("jobs", "")) if await self._has_others(state, queues) else queues
            case "pending":
                return (("pending", ""),)
            case "waiting":
                return (("due", ""),)
        return (("jobs", ""),)

    async def _has_others(self, state: LaneState, queues: Sequence[_Source]) -> bool:
        """Say whether more are unassigned than these handlers' queues have, as the lane counts."""
        sizes = [("ZCARD", _name(state, each)) for each in queues]
        counted = ("HGET", state.lane.names.lane, "unassigned")
        *found, all_of = await self._pipeline.execute_all([*sizes, counted])
        return number_or(0, all_of or b"") > sum(found)

    async def _check_there(self, state: LaneState, generation: str) -> None:
        """Refuse to say what is in a lane whose data were lost since it was of that generation.

        Raises:
            StoreLost: They were.
        """
        found = await self._pipeline.execute("HGET", state.lane.names.lane, "incarnation")
        if generation and (found or b"").decode(errors="replace") != generation:
            self.client.context.on_data_lost(state.number)
            raise StoreLost(pool=self.client.pool)

    async def _read(
        self, state: LaneState, source: _Source, at: str, count: int
    ) -> tuple[list[tuple[bytes, bytes | None]], str]:
        """Return names in `jobs` with their records, and where to go on: empty, that was all."""
        kind, name, pipeline = source[0], _name(state, source), self._pipeline
        if kind == "jobs":
            following, flat = await pipeline.execute("HSCAN", name, at, "COUNT", count)
            return list(zip(flat[::2], flat[1::2], strict=True)), following.strip("0") and following
        if kind == "owned":
            following, names = await pipeline.execute("SSCAN", name, at, "COUNT", count)
            following = following.strip("0") and following
        elif kind == "stream":
            first = "-" if at == "0" else f"({at}"
            entries = await pipeline.execute("XRANGE", name, first, "+", "COUNT", count)
            names = [held[1] for _, held in entries if held[:1] == [b"k"]]
            following = entries[-1][0] if len(entries) >= count else ""
        else:
            rank = int(at)
            names = await pipeline.execute("ZRANGE", name, rank, rank + count - 1)
            following = str(rank + count) if len(names) >= count else ""
            if kind == "due":
                names = [member[2:] for member in names if member[:2] == b"k:"]
        if not names:
            return [], following
        texts = await pipeline.execute("HMGET", state.lane.names.jobs, *names)
        return list(zip(names, texts, strict=True)), following

    async def _total(self, context: Context) -> int:
        names = [state.lane.names.jobs for state in context.lanes]
        return sum(await self._pipeline.execute_all(("HLEN", name) for name in names))

    async def _payloads(
        self, found: Sequence[tuple[Status, LaneState, str, Record]]
    ) -> dict[tuple[str, str], Arguments]:
        arguments, left = dict[tuple[str, str], Arguments](), PAYLOADS_BYTES_MAX
        for i in range(0, len(found), PAYLOADS):
            some, commands = found[i : i + PAYLOADS], list[tuple[Word, ...]]()
            for _, state, name, record in some:
                names, entry = state.lane.names, f"{record.epoch}-0"
                if record.state == "pending" and "p" not in record.flags:
                    commands.append(("XRANGE", names.stream(record.owner), entry, entry))
                else:
                    commands.append(("HGET", names.payloads, name))
            replies = await self._pipeline.execute_all(commands)
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


def _name(state: LaneState, source: _Source) -> str:
    n, (kind, of) = state.lane.names, source
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


def _place(cursor: object) -> tuple[int, int, str]:
    """Return lane, source and place there of a cursor that a page told."""
    if type(cursor) is str and not cursor:
        return 0, 0, "0"
    match = _CURSOR.fullmatch(cursor) if type(cursor) is str else None
    if match is None:
        problem = "it is none that a page told"
        raise InvalidOption(option="cursor", value=shown(cursor), problem=problem)
    return int(match[1]), int(match[2]), match[3]


def _legible(pairs: Sequence[tuple[bytes, bytes | None]]) -> Iterator[tuple[str, Record]]:
    for name, text in pairs:
        record = read(name, text) if text is not None else None
        if record is not None:
            yield name.decode(), record
