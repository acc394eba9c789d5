"""What the fleet is told of this node's workers: their entries in the `workers` map.

    unknown --add--> known --its entry differs from what it is, or is gone--> due --written--> known
       ^               |
       |               +--forget: it leaves--> left --its entry is taken out--+
       +----------------------------------------------------------------------+

Entries are written by one task at a time, and what is written last is the latest.  An entry that
could not be taken out is tried again after each renewal, and when the node leaves.  A lane in which
a worker has no lease stands in its entry as 0, so joining a lane makes entries due, and so does a
copy of the map that was fetched anew.

Dying after any step: an entry without a lease is found by whoever looks for orphans in that lane.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import anyio
import attrs

from pool.core.pauses import Cordon, Pause
from pool.core.retry import refused_delay
from pool.errors import NotRunning, PoolError, StoreLost, StoreUnavailable
from pool.jobs.context import Context
from pool.jobs.roster import WorkerEntry
from pool.jobs.worker.worker import Worker
from pool.maps.deltas import Delete, Op, Set, SetIfNotExists
from pool.maps.replica import Replica

SETTLED_TTLS: Final = 3.0  # by then all processes that a parent started with ours are there


@attrs.define(eq=False, kw_only=True)
class Announcer:
    """Writes the entries; a part of `Membership`, whose task spawns what waits."""

    context: Context
    replica: Replica
    workers: Mapping[str, Worker]  # ours, known to the fleet or not
    numbers_of: Callable[[Worker], tuple[int, ...]]  # per lane; 0: it has no lease there
    spawn: Callable[[Callable[[], Any]], object]
    is_opening: Callable[[], bool]  # the control keys are being put back
    _known: set[str] = attrs.field(init=False, factory=set)  # workers of which there is an entry
    _left: set[str] = attrs.field(init=False, factory=set)  # whose entries are to be taken out
    _writing: anyio.Lock = attrs.field(init=False, factory=anyio.Lock)
    _is_writing: bool = attrs.field(init=False, default=False)  # what is due
    _looked_s: float = attrs.field(init=False, default=0.0)
    _begun_s: float = attrs.field(init=False, default=0.0)

    def begin(self) -> None:
        """Start, or start again."""
        self._begun_s = self.context.io.clock()
        self._is_writing = False
        self.write_soon()

    async def add(self, worker: Worker) -> None:
        """Announce a worker.

        Raises:
            StoreUnavailable, StoreLost, StoreFault: Why not; it may be known all the same.
            NotRunning: It was given up meanwhile.
        """
        async with self._writing:
            if worker.id not in self.workers:
                raise NotRunning(state="closing")
            self._known.add(worker.id)  # however this ends, it may be there
            await self.write(worker)

    async def write(self, worker: Worker) -> None:
        """Write a worker's entry, and wait until our own copy has it."""
        while True:
            entry = Set(worker.id.encode(), self._entry_of(worker))
            written = await self.replica.write([entry], repeatable=True)
            self.context.outages.over(None)
            try:
                return await self.replica.wait_for(written.at)
            except StoreLost:
                continue  # the server lost this write; if it lost the pool, the next one says so

    async def close(self, worker: Worker) -> None:
        """Announce that a worker drains, if it is known."""
        async with self._writing:
            if worker.id in self._known:
                await self._tried("close", self.write(worker))  # else it is due

    def forget(self, worker: Worker) -> None:
        """Write nothing more of a worker; an entry that it has is to be withdrawn."""
        if worker.id in self._known:
            self._known.discard(worker.id)
            self._left.add(worker.id)

    async def withdraw(self) -> None:
        """Take out the entries of those that have left."""
        await self._tried("leave", self._withdraw())

    async def _withdraw(self) -> None:
        async with self._writing:
            left = list(self._left)
            if not left:
                return  # others have done it
            deletes = [Delete(each.encode()) for each in left]
            written = await self.replica.write(deletes, repeatable=True)
            self._left.difference_update(left)
        with anyio.move_on_after(self.context.settings.op_timeout_s):
            await self.replica.wait_for(written.at)  # our own copy says so too

    async def write_again(self) -> None:
        """Put all entries back, before our own copy of `workers` is fetched without them."""
        async with self._writing:
            entries: list[Op] = [Set(w.id.encode(), self._entry_of(w)) for w in self._mine()]
            entries += self._asked()
            if entries:
                await self.replica.write(entries, repeatable=True)

    async def write_asked(self, generation: str) -> None:
        """Put what operators ask for into the pool that we made in the place of one that is lost.

        Nobody has fetched that yet who would take it for what stands.
        """
        entries = self._asked()
        if entries:
            pipeline = self.context.pipeline
            await self.replica.stored.write(pipeline, generation, entries, repeatable=True)

    def _asked(self) -> list[SetIfNotExists]:
        """Return what is in no worker's hand: whoever has a copy puts it back where it is gone."""
        asked = self.context.roster.asked
        every: list[Pause | Cordon] = [*asked.pauses.values(), *asked.cordons.values()]
        return [SetIfNotExists(each.entry, each.pack()) for each in every]

    def look(self) -> None:
        """Write again what of ours is missing in `workers`, or stands there otherwise.

        After each renewal, but once a period is enough: with many lanes each of them answers.
        """
        now_s = self.context.io.clock()
        if now_s - self._looked_s >= self.context.timing.renew_s / 2:
            self._looked_s = now_s
            if self._left or any(map(self._is_due, self._mine())):
                self.write_soon()

    def write_soon(self) -> None:
        """Write what is due."""
        if not self._is_writing:
            self._is_writing = True
            self.spawn(self._write_all)

    async def _write_all(self) -> None:
        """Write what is due, until nothing is that could be written."""
        refusals = 0
        try:
            while True:
                try:
                    if not await self._write_next():
                        if not self.is_opening():  # who could not be announced may have left
                            self.context.outages.forget(None)
                        return
                except PoolError as error:
                    self.context.trouble("join", None, error)
                    refusals = 0 if isinstance(error, StoreUnavailable) else refusals + 1
                    await anyio.sleep(refused_delay(refusals))
        finally:
            self._is_writing = False

    async def _write_next(self) -> bool:
        async with self._writing:
            due = next(filter(self._is_due, self._mine()), None)
            if due is not None:
                await self.write(due)
        if due is None and self._left:
            await self._withdraw()
            return True
        return due is not None

    async def _tried(self, during: str, step: Awaitable[None]) -> None:
        """Do it; what fails is told, and no lane's matter."""
        try:
            await step
        except PoolError as error:
            self.context.outages.fault(during, None, error)

    def _mine(self) -> list[Worker]:
        return [worker for worker in self.workers.values() if worker.id in self._known]

    def _is_due(self, worker: Worker) -> bool:
        return self.replica.items.get(worker.id.encode()) != self._entry_of(worker)

    def _entry_of(self, worker: Worker) -> bytes:
        return WorkerEntry(
            id=worker.id,
            node=self.context.node_id,
            handlers=tuple(worker.handlers),
            capacity=worker.capacity,
            weight=worker.weight,
            label=worker.label,
            version=worker.version,
            is_draining=worker.is_draining,
            is_cordoned=worker.is_cordoned and worker.has_closed,
            numbers=self.numbers_of(worker),
            host=self.context.io.place[0],
            pid=self.context.io.place[1],
            siblings=self.context.io.siblings,
            is_settled=bool(self.context.io.siblings) and self._is_settled(),
        ).pack()

    def _is_settled(self) -> bool:
        settled_s = SETTLED_TTLS * self.context.timing.ttl_s
        return self.context.io.clock() - self._begun_s >= settled_s
