"""What a node does about what operators ask for: see `client/pausing.py`.

    `workers` --an entry came, changed, went--> compared with what we knew --> told, pulled, drained
    a cordon  --> it takes nothing --each lane has answered a renewal that says so--> announced

    what a lane says that it pauses, with each renewal
        --as the copy says------------> nothing
        --otherwise, twice in a row---> settled, by the map, by some of those who see it

Only the copy decides, and all of it is looked at again whenever any of these entries changes: what
was missed, or comes twice, changes nothing.  A cordon of a worker counts like one of its node.  Who
asked for it waits for what is announced: by then no script grants that worker anything.

What is paused is compared once per renewal, while anything is: what is under way just now is not
the same twice.  A lane tells how many keys it pauses, not which: those are looked at when it
settles.  Who settles goes by the map and not by its copy, so that two do no harm, nor one who is
late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import anyio
import attrs

from pool.core.pauses import Asked, Cordon, Pause, lanes_of
from pool.errors import NotRunning, PoolError
from pool.events import JobsPaused, JobsResumed, MemberCordoned, MemberUncordoned
from pool.jobs.client.pausing import Operator
from pool.jobs.context import Context, LaneState
from pool.jobs.worker.messages import Resumed
from pool.jobs.worker.worker import Worker
from pool.maps.deltas import Delete
from pool.maps.replica import Replica
from pool.names import PAUSED, lane_of
from pool.redis.commands.pausing import LanePauses

_SETTLING: Final = 2  # how many nodes settle what all of them see, on average
_SETTLED_MAX: Final = 64  # at once


@attrs.frozen
class _Wanted:
    """What lanes are to say that they pause."""

    of: Asked = attrs.field(factory=Asked)
    is_all: bool = False
    handlers: frozenset[str] = frozenset()
    keys: Mapping[int, int] = attrs.field(factory=dict)  # how many, by lane
    has_over: bool = False  # something is being resumed

    @classmethod
    def by(cls, asked: Asked, lanes: int) -> _Wanted:
        pauses = asked.pauses.values()
        those = [each for each in pauses if not each.is_over]
        return cls(
            asked,
            any(each.what == "pool" for each in those),
            frozenset(each.name for each in those if each.what == "handler"),
            Counter(lane_of(each.name, lanes) for each in those if each.what == "key"),
            len(those) < len(pauses),
        )

    def is_apart(self, number: int, stands: LanePauses) -> bool:
        found = (stands.is_all, frozenset(stands.handlers), stands.count)
        return self.has_over or found != (self.is_all, self.handlers, self.keys.get(number, 0))


@attrs.define(eq=False, kw_only=True)
class Heeding:
    """Compares, and acts; a part of `Wiring`."""

    context: Context
    workers: Mapping[str, Worker]
    confirm: Callable[[], Awaitable[set[int]]]  # tells the lanes now; returns those that are silent
    announce: Callable[[], object]
    on_drain: Callable[[], object]  # this node shall
    drain_worker: Callable[[Worker], object]
    _wanted: _Wanted = attrs.field(init=False, factory=_Wanted)
    _apart: dict[int, tuple[bytes, Asked]] = attrs.field(init=False, factory=dict)  # by lane
    _is_settling: bool = attrs.field(init=False, default=False)
    _gone: dict[str, float] = attrs.field(init=False, factory=dict)  # cordoned, and since when
    _is_forgetting: bool = attrs.field(init=False, default=False)

    def operator(self) -> Operator:
        """Return what carries out what is asked of the pool here."""
        context = self.context
        host, pid = context.io.place
        return Operator(
            pipeline=context.pipeline,
            control=context.control,
            generation=context.generation,
            lanes=len(context.lanes),
            by=f"node {context.node_id}, pid {pid} on {host}",
            known=lambda: context.roster.asked,
        )

    def look(self) -> None:
        """Look at the copy anew."""
        before, asked = self.context.roster.hear(), self.context.roster.asked
        self._tell_pauses(before, asked)
        self._cordon(asked)

    def compare(self, state: LaneState, paused: bytes) -> None:
        """Compare what a lane says that it pauses with our copy; see to it if they stay apart."""
        asked, number = self.context.roster.asked, state.number
        if self._wanted.of is not asked:
            self._wanted = _Wanted.by(asked, len(self.context.lanes))
        before = self._apart.pop(number, None)
        if not self._wanted.is_apart(number, LanePauses.of({PAUSED: paused})):
            return
        self._apart[number] = paused, asked
        if before != self._apart[number] or self._is_settling:
            return
        if self._is_chosen():
            self._is_settling = True
            with suppress(NotRunning):  # it ends by something worse
                self.context.supervisor.errand("pauses", partial(self._settle, state))

    def look_at_cordons(self) -> None:
        """Take away what was asked of those who are no more; once per renewal, if there is any."""
        roster, now_s = self.context.roster, self.context.io.clock()
        there = {each for info in roster.workers for each in (info.id, info.node)}
        gone = [each for each in roster.asked.cordons if each not in there]
        self._gone = {each: self._gone.get(each, now_s) for each in gone}
        late_s = now_s - self.context.timing.renew_s  # they may only just be written anew
        late = [
            roster.asked.cordons[each] for each, since_s in self._gone.items() if since_s < late_s
        ]
        if late and not self._is_forgetting and self._is_chosen():
            self._is_forgetting = True
            with suppress(NotRunning):  # it ends by something worse
                self.context.supervisor.errand("cordons", partial(self._forget, late))

    async def _forget(self, cordons: Sequence[Cordon]) -> None:
        try:
            await self.operator().forget(cordons)
        except PoolError as error:
            self.context.trouble("forget cordons", None, error)
        finally:
            self._is_forgetting = False

    def _is_chosen(self) -> bool:
        """Say whether this node does what all of them see: some do, on average."""
        nodes = len({each.node for each in self.context.roster.workers})
        return self.context.io.dice.random() * nodes < _SETTLING

    async def _settle(self, state: LaneState) -> None:
        try:
            lane = state.lane.names.lane
            flat = await self.context.pipeline.execute("HGETALL", lane, repeatable=True)
            names = (name.decode(errors="replace") for name in flat[::2])
            told = dict(zip(names, flat[1::2], strict=True))
            asked = self.context.roster.asked.pauses
            stands = {each.entry: each for each in LanePauses.of(told).pauses()}
            count, operator = len(self.context.lanes), self.operator()
            mine = [
                each
                for entry, each in asked.items()
                if each.is_over or (entry not in stands and state.number in lanes_of(each, count))
            ]
            mine += [each for entry, each in stands.items() if entry not in asked]
            for each in mine[:_SETTLED_MAX]:
                await operator.settle(each)
        except PoolError as error:
            self.context.trouble("settle pauses", state.number, error)
        finally:
            self._is_settling = False

    def cordon_new(self, worker: Worker) -> None:
        """Have a worker that comes to a cordoned node begin so; it is not known to anybody yet."""
        cordon = self.context.roster.asked.cordon_of(self.context.node_id)
        worker.is_cordoned = worker.has_closed = cordon is not None
        if cordon is not None:
            self._tell_cordon(worker, cordon)

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
        for each in [each for entry, each in was.items() if entry not in stands]:
            self.context.emit(JobsResumed(what=each.what, name=each.name))
        if before.pauses.keys() - asked.pauses.keys():  # all lanes were told
            for worker in self.workers.values():
                worker.put(Resumed())

    def _cordon(self, asked: Asked) -> None:
        node_id, changed = self.context.node_id, list[Worker]()
        for worker in self.workers.values():
            cordon = asked.cordon_of(worker.id, node_id)
            is_new = worker.is_cordoned != (cordon is not None)
            is_told = not is_new and cordon is not None and cordon.is_drain == worker.is_sent_off
            if cordon is not None and not (is_told or worker.is_draining):
                self._tell_cordon(worker, cordon)
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

    def _tell_cordon(self, worker: Worker, cordon: Cordon) -> None:
        worker.is_sent_off, by, reason = cordon.is_drain, cordon.by, cordon.reason
        told = MemberCordoned(worker=worker.id, drains=cordon.is_drain, by=by, reason=reason)
        self.context.emit(told)

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
