"""What a node does about what operators ask for: see `client/pausing.py`.

    `workers` --an entry came, changed, went--> compared with what we knew --> told, pulled, drained
    a cordon  --> it takes nothing --each lane has answered a renewal that says so--> announced

Only the copy decides, and all of it is looked at again whenever any of these entries changes: what
was missed, or comes twice, changes nothing.  A cordon of a worker counts like one of its node.  Who
asked for it waits for what is announced: by then no script grants that worker anything.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

import anyio
import attrs

from pool.core.pauses import Asked, Pause
from pool.errors import NotRunning, PoolError
from pool.events import JobsPaused, JobsResumed, MemberCordoned, MemberUncordoned
from pool.jobs.context import Context
from pool.jobs.worker.messages import Resumed
from pool.jobs.worker.worker import Worker
from pool.maps.deltas import Delete
from pool.maps.replica import Replica


@attrs.define(eq=False, kw_only=True)
class Heeding:
    """Compares, and acts; a part of `Wiring`."""

    context: Context
    workers: Mapping[str, Worker]
    confirm: Callable[[], Awaitable[set[int]]]  # tells the lanes now; returns those that are silent
    announce: Callable[[], object]
    on_drain: Callable[[], object]  # this node shall
    drain_worker: Callable[[Worker], object]

    def look(self) -> None:
        """Look at the copy anew."""
        before, asked = self.context.roster.hear(), self.context.roster.asked
        self._tell_pauses(before, asked)
        self._cordon(asked)

    def cordon_new(self, worker: Worker) -> None:
        """Have a worker that comes to a cordoned node begin so; it is not known to anybody yet."""
        cordon = self.context.roster.asked.cordon_of(self.context.node_id)
        worker.is_cordoned = worker.has_closed = cordon is not None

    async def forget(self, replica: Replica, ids: Sequence[str]) -> None:
        """Take away what was asked of us, who leave."""
        cordons = self.context.roster.asked.cordons
        gone = [Delete(cordons[each].entry) for each in ids if each in cordons]
        if gone:
            with suppress(PoolError):  # it goes with the next one
                await replica.write(gone, repeatable=True)

    def _tell_pauses(self, before: Asked, asked: Asked) -> None:
        def going(those: Asked) -> dict[bytes, Pause]:
            return {entry: each for entry, each in those.pauses.items() if not each.is_over}

        was, stands = going(before), going(asked)
        for entry, each in stands.items():
            if entry not in was:
                facts = {"by": each.by, "reason": each.reason}
                self.context.emit(JobsPaused(what=each.what, name=each.name, **facts))
        over = [each for entry, each in was.items() if entry not in stands]
        for each in over:
            self.context.emit(JobsResumed(what=each.what, name=each.name))
        if over:
            for worker in self.workers.values():
                worker.put(Resumed())

    def _cordon(self, asked: Asked) -> None:
        node_id, changed = self.context.node_id, list[Worker]()
        for worker in self.workers.values():
            cordon = asked.cordon_of(worker.id, node_id)
            is_new = worker.is_cordoned != (cordon is not None)
            if cordon is not None and (is_new or cordon.is_drain) and not worker.is_draining:
                drains, by, reason = cordon.is_drain, cordon.by, cordon.reason
                told = MemberCordoned(worker=worker.id, drains=drains, by=by, reason=reason)
                self.context.emit(told)
            if is_new:
                worker.is_cordoned, worker.has_closed = cordon is not None, False
                changed.append(worker)
            if is_new and cordon is None:
                self.context.emit(MemberUncordoned(worker=worker.id))
                worker.put(Resumed())
            if cordon is not None and cordon.is_drain and cordon.id == worker.id:
                self.drain_worker(worker)
        if changed:
            self.announce()
            with suppress(NotRunning):  # it ends by something worse
                self.context.supervisor.errand("cordon", self._close)
        own = asked.cordon_of(node_id)
        if own is not None and own.is_drain:
            self.on_drain()

    async def _close(self) -> None:
        """Announce the cordons once each lane knows of them; of the latest state, whoever asked."""
        while True:
            closing = [worker for worker in self.workers.values() if worker.is_cordoned]
            if not await self.confirm():
                break
            await anyio.sleep(self.context.timing.renew_s)
        for worker in closing:
            worker.has_closed = worker.is_cordoned
        self.announce()
