"""Looking at jobs, a page at a time, from a node; where it looks is told in `shelves`.

A page looks at so many records as it was asked to, whatever comes of it, so that none keeps the
server or the loop from others.  What it found it looks up in one moment; between two pages jobs
move, so one may be told twice, or not at all.  Nothing is written, and a cursor is a place: a page
that is asked for again, or never, changes nothing.

What is empty may be a lane whose data are lost: so a lane is asked whose it is when it was read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias

import anyio.lowlevel
import attrs

from pool import checks
from pool.core.record import Record
from pool.errors import PayloadEncodingError, StoreLost
from pool.jobs.client.job_client import JobClient
from pool.jobs.client.ref import Status, status_of
from pool.jobs.client.shelves import (
    PAGE_MAX,
    JobFilter,
    Shelf,
    Shelves,
    legible,
    place_of,
    read_cursor,
)
from pool.jobs.context import Context, LaneState
from pool.names import key_of
from pool.redis.scripts import Word

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
