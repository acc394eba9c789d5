"""Joining, joining again, and leaving: who this node is in each lane, and in the `workers` map.

    join     lanes first (leases, open, streams), then `workers`: none is announced without a lease
    GONE     the identity was fenced: its number rises, it joins again; its keys are the reaper's
    lost     the server has no data of this pool: found it anew, all numbers rise, join
    leave    out of `open`, then (when nothing is owned) out of `workers`, then out of the lanes

One task at a time does any of it, so numbers never race.  Dying after any step: a lease without an
entry in `workers` ends and is reaped; an entry without a lease is found by whoever sweeps.  A late
copy of a join carries a "not after" on server time and is refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

import anyio
import attrs

from pool.actors.actor import Actor
from pool.actors.context import Context, LaneState
from pool.actors.observe import DataLost, StoreTroubled
from pool.actors.orders import LaneLost, LeaseBack
from pool.actors.replica import Replica
from pool.actors.roster import WorkerInfo
from pool.actors.worker import Worker
from pool.errors import ConfigError, Gone, PoolError, StoreLost, UnsupportedServer
from pool.model.job import Options
from pool.model.lease import Lease
from pool.model.names import Names
from pool.model.rmap import Delete, Set
from pool.model.timing import Timing
from pool.store.answers import Founded, founded, joined
from pool.store.lane import FOUND, IS_NODE, PROTOCOL, Lane, Target

RETRY_S: Final = 0.1
FORMER_MAX: Final = 256  # identities that a lane has not heard of yet: one for each try to join


@attrs.frozen
class IdentityGone:
    """A script answered GONE to one of our identities."""

    lane: int
    name: str


@attrs.frozen
class PoolLost:
    """A script answered that the data of its incarnation are not there."""


Message: TypeAlias = IdentityGone | PoolLost


async def found(context: Context, *, any_lanes: bool = False) -> Founded:
    """Make the pool, or learn how it was made; `any_lanes` if the caller uses none.

    Raises:
        ConfigError: It was made with another number of lanes.
        UnsupportedServer: It was made by an incompatible version of this library.
        StoreUnavailable: The server does not answer.
    """
    lanes = context.settings.lanes
    reply = await context.link.call(
        FOUND,
        (context.control.config,),
        (PROTOCOL, lanes, context.ids.next("i"), context.timing.ttl_ms),
        repeatable=True,
    )
    made = founded(reply)
    if made.protocol != PROTOCOL:
        raise UnsupportedServer(
            problem=f"pool {context.pool!r} speaks protocol {made.protocol}, we speak {PROTOCOL}"
        )
    if made.lanes != lanes and not any_lanes:
        raise ConfigError(
            setting="lanes",
            problem=f"pool {context.pool!r} was made with {made.lanes}, not {lanes}",
        )
    return made


@attrs.define(eq=False, kw_only=True)
class Membership(Actor[Message]):
    """Keeps this node's identities registered."""

    context: Context
    replica: Replica
    workers: dict[str, Worker] = attrs.field(factory=dict)
    on_changed: Callable[[], object]  # identities changed: renew and read others from now on
    on_refounded: Callable[[], object]  # the pool has another incarnation
    confirm: Callable[[], Awaitable[object]]  # returns when the lanes know, or do not answer
    _is_refounding: bool = attrs.field(init=False, default=False)
    _returning: set[tuple[int, str]] = attrs.field(init=False, factory=set)  # lane and worker
    _lock: anyio.Lock = attrs.field(init=False, factory=anyio.Lock)
    # by lane, who our workers were there: no job must be blamed for their deaths
    _former: dict[int, list[str]] = attrs.field(init=False, factory=dict)
    # lane and name of all that have a lease: a name may stand in several lanes
    _joined: set[tuple[int, str]] = attrs.field(init=False, factory=set)
    _numbers: dict[str, list[int]] = attrs.field(init=False, factory=dict)  # by worker id

    # --- for the node -------------------------------------------------------------------------

    def make_lanes(self, made: Founded) -> None:
        """Set the lanes up as the pool was found; node numbers rise when it was found anew."""
        context, timing = self.context, Timing(made.ttl_ms / 1000)
        context.incarnation, context.timing = made.incarnation, timing
        before = {state.number: state.node.number for state in context.lanes}
        now_s = context.seam.clock()
        context.lanes[:] = [
            LaneState(
                number=k,
                lane=Lane(Names(context.pool, k), made.incarnation, context.settings.parked_ttl_s),
                node=Target(context.node_id, before.get(k, 0) + 1),
                lease=Lease(
                    timing=timing,
                    asked_s=now_s,
                ),
                server_ms=made.now_ms,
                server_at_s=now_s,
            )
            for k in range(made.lanes)
        ]

    def identities(self) -> list[dict[str, int]]:
        """Return the names to be renewed, lane by lane, and how many keys each takes."""
        found = []
        for state in self.context.lanes:
            takes = {w.target(state.number).name: w.takes() for w in self.workers.values()}
            takes[state.node.name] = IS_NODE
            joined = self._joined
            found.append({n: t for n, t in takes.items() if (state.number, n) in joined})
        return found

    def handlers(self) -> dict[str, Options]:
        """Return all that the workers know."""
        return {
            name: options
            for worker in self.workers.values()
            for name, options in worker.handlers.options().items()
        }

    async def join_node(self) -> None:
        """Register the node itself in all lanes."""
        async with self._lock:
            self.on_changed()
            for state in self.context.lanes:
                try:
                    await self._join(state, {}, is_new=True)
                except StoreLost:
                    await self._join_stale(state)
        self.on_changed()

    async def _join_stale(self, state: LaneState) -> None:
        """Join a lane that names another incarnation than `config`, which decides.

        A late join of before a loss of data leaves one behind when nobody of before is there to
        set it right; nobody could ever join again.
        """
        context = self.context
        made = await found(context)
        if made.incarnation != context.incarnation:
            raise StoreLost(pool=context.pool)
        text = await context.link.execute("HGET", state.lane.names.lane, "incarnation")
        await self._join(state, {}, is_new=True, stale=(text or b"").decode())

    async def join_worker(self, worker: Worker) -> None:
        """Register a worker in all lanes, then announce it.

        Raises:
            StorageFull, StoreUnavailable, StoreLost: It is not announced; what was registered ends
                by itself.
        """
        async with self._lock:
            numbers = [1] * len(self.context.lanes)
            self._numbers[worker.id] = numbers
            worker.take_lanes(numbers)
            self.workers[worker.id] = worker
            self.on_changed()
            try:
                for state in self.context.lanes:
                    try:
                        await self._join(state, {worker.id: worker})
                    except Gone:
                        # Asked for too late, it seems: the server's clock has jumped.  The refused
                        # call must never count, so another number is what joins.
                        await self._tell_time(state)
                        numbers[state.number] += 1
                        worker.take_lanes(numbers)
                        self.on_changed()
                        await self._join(state, {worker.id: worker})
                await self.announce(worker)
            except BaseException:
                del self.workers[worker.id]
                raise
        self.on_changed()

    async def announce(self, worker: Worker) -> None:
        """Write a worker's entry of `workers`, and wait until our own copy has it."""
        while True:
            written = await self.replica.write(
                [Set(worker.id.encode(), self.info(worker).pack())], repeatable=True
            )
            try:
                return await self.replica.wait_for(written.revision)
            except StoreLost:
                continue  # the server lost this write; if it lost the pool, the next one says so

    def info(self, worker: Worker) -> WorkerInfo:
        """Return what is announced of a worker."""
        return WorkerInfo(
            id=worker.id,
            node=self.context.node_id,
            handlers=tuple(worker.handlers),
            capacity=worker.capacity,
            weight=worker.weight,
            label=worker.label,
            version=worker.version,
            is_draining=worker.is_draining,
            incarnations=tuple(self._numbers[worker.id]),
        )

    async def close_worker(self, worker: Worker) -> None:
        """Have a worker that drains take no keys in any lane, and announce that it does."""
        self.on_changed()
        await self.confirm()
        await self.announce(worker)

    async def leave_worker(self, worker: Worker) -> int:
        """Unregister a worker that owns nothing; return how many keys it owns all the same."""
        async with self._lock:
            owns = 0
            self.forget_worker(worker)
            written = await self.replica.write([Delete(worker.id.encode())], repeatable=True)
            for state in self.context.lanes:
                owns += await self._leave(state, worker.target(state.number))
        with anyio.move_on_after(self.context.settings.op_timeout_s):
            await self.replica.wait_for(written.revision)  # our own copy says so too
        return owns

    def forget_worker(self, worker: Worker) -> None:
        """Renew and read for a worker no more, and do not have it join again.

        Before it leaves: a renewal that overtakes the answer to that would find it gone.
        """
        if self.workers.pop(worker.id, None) is not None:
            for state in self.context.lanes:
                self._joined.discard((state.number, worker.target(state.number).name))
            self.on_changed()

    async def leave_node(self) -> None:
        """Unregister the node itself."""
        try:
            async with self._lock:
                for state in self.context.lanes:
                    self._joined.discard((state.number, state.node.name))
                    await self._leave(state, state.node)
        except PoolError as error:  # its lease ends by itself
            self.context.emit(StoreTroubled(during="leave", problem=str(error)))

    # --- the actor ----------------------------------------------------------------------------

    def handle(self, message: Message) -> None:
        match message:
            case IdentityGone(lane, name) if (lane, name) in self._joined:
                self._joined.discard((lane, name))
                self._raise(self.context.lanes[lane], name)
                self.on_changed()
                self.spawn(self._rejoin, lane)
            case PoolLost() if not self._is_refounding:
                self._is_refounding = True
                self.spawn(self._refound)
            case _:
                return  # known already

    def _raise(self, state: LaneState, name: str) -> None:
        """Take the next number for an identity of ours; its worker lets go of what it ran."""
        if name == state.node.name:
            state.node = Target(state.node.id, state.node.number + 1)
            return
        self._former[state.number] = [*self._former.get(state.number, ()), name][-FORMER_MAX:]
        for worker in self.workers.values():
            if worker.target(state.number).name == name:
                self._numbers[worker.id][state.number] += 1
                self._returning.add((state.number, worker.id))
                worker.lose_lane(LaneLost(state.number, self._numbers[worker.id][state.number]))

    async def _rejoin(self, lane: int) -> None:
        """Join a lane again with everyone who has no lease there; try until that is done.

        Each step may be done again, so that a failure between two of them leaves nothing behind.
        """
        refused: set[int] = set()
        async with self._lock:
            while True:
                state = self.context.lanes[lane]
                try:
                    await self._join_missing(state, refused)
                    await self._announce_all()
                    break
                except StoreLost:
                    self.context.on_data_lost()
                    return
                except Gone:
                    refused.add(lane)
                except PoolError as error:
                    self.context.emit(StoreTroubled(during="join", problem=str(error)))
                await anyio.sleep(RETRY_S)
            self._are_back([state])

    async def _refound(self) -> None:
        """Found the pool anew and join it, so that new work is served; try until that is done."""
        context, has_begun = self.context, False
        refused: set[int] = set()
        try:
            async with self._lock:
                while True:
                    try:
                        made = await found(context)
                        there = await self._incarnations()
                        is_same = made.incarnation == context.incarnation
                        if not has_begun and is_same and set(there) == {made.incarnation}:
                            return  # answered to a call of before: we have joined anew since
                        if not (has_begun and is_same):
                            has_begun = True
                            self._begin_anew(made)
                        for state, stale in zip(context.lanes, there, strict=True):
                            await self._join_missing(state, refused, stale=stale)
                        await self._announce_all()
                        break
                    except Gone:
                        refused.update(state.number for state in context.lanes)
                    except PoolError as error:
                        context.emit(StoreTroubled(during="found", problem=str(error)))
                    await anyio.sleep(RETRY_S)
                self._are_back(context.lanes)
        finally:
            self._is_refounding = False

    def _begin_anew(self, made: Founded) -> None:
        """The data of before are gone: no lease of ours is left, all take the next number."""
        context = self.context
        context.emit(DataLost(pool=context.pool, incarnation=context.incarnation))
        self._joined.clear()
        for state in context.lanes:
            for worker in self.workers.values():
                self._raise(state, worker.target(state.number).name)
        self.make_lanes(made)
        self.on_refounded()
        self.on_changed()

    def _missing(self, state: LaneState) -> list[str]:
        """Return the names of ours that have no lease in a lane."""
        names = [worker.target(state.number).name for worker in self.workers.values()]
        return [n for n in (*names, state.node.name) if (state.number, n) not in self._joined]

    async def _join_missing(self, state: LaneState, refused: set[int], *, stale: str = "") -> None:
        """Join a lane with those that have no lease there; if it was refused, as others.

        Refused means fenced, or asked for too late.  That may be the server's clock, which has
        jumped: with the time that it told us last we would be too late for ever.
        """
        if state.number in refused:
            await self._tell_time(state)
            for name in self._missing(state):
                self._raise(state, name)
            refused.discard(state.number)
        missing = set(self._missing(state))
        if missing:
            workers = {
                worker.id: worker
                for worker in self.workers.values()
                if worker.target(state.number).name in missing
            }
            await self._join(state, workers, is_new=state.node.name in missing, stale=stale)

    async def _tell_time(self, state: LaneState) -> None:
        asked_s = self.context.seam.clock()
        state.tell_time((await found(self.context)).now_ms, asked_s)

    async def _announce_all(self) -> None:
        for worker in list(self.workers.values()):
            if self.replica.items.get(worker.id.encode()) != self.info(worker).pack():
                await self.announce(worker)

    def _are_back(self, lanes: Sequence[LaneState]) -> None:
        """Renew what has joined again, and let its workers go on."""
        self.on_changed()
        for state in lanes:
            for worker in self.workers.values():
                if (state.number, worker.id) in self._returning:
                    self._returning.discard((state.number, worker.id))
                    worker.put(LeaseBack(state.number))

    async def _incarnations(self) -> list[str]:
        """Fetch what each lane says whose it is; nothing where its data are gone."""
        names = [state.lane.names.lane for state in self.context.lanes]
        texts = [await self.context.link.execute("HGET", name, "incarnation") for name in names]
        return [(text or b"").decode() for text in texts]

    # --- calls --------------------------------------------------------------------------------

    async def _join(
        self,
        state: LaneState,
        workers: dict[str, Worker],
        *,
        is_new: bool = False,
        stale: str = "",
    ) -> None:
        context, settings = self.context, self.context.settings
        asked_s = context.seam.clock()
        not_after_ms = round(
            state.server_ms + 1000 * (asked_s - state.server_at_s + settings.op_timeout_s)
        )
        targets = {w.target(state.number): w.takes() for w in workers.values()}
        options = {}
        for worker in workers.values():
            options.update(worker.handlers.options())
        call = state.lane.join(
            state.node,
            targets,
            options,
            is_new=is_new,
            not_after_ms=not_after_ms,
            pool_ttl_ms=context.timing.ttl_ms,
            stale=stale,
        )
        reply = await context.link.call(call.script, call.keys, call.args, repeatable=True)
        await self._thaw(state)
        now_ms, ttl = joined(reply)
        state.tell_time(now_ms, asked_s)
        self._joined.update((state.number, target.name) for target in targets)
        if is_new:
            self._joined.add((state.number, state.node.name))
            timing = Timing(ttl.ms / 1000)
            state.lease, state.term = Lease(timing=timing, asked_s=asked_s), ttl.term
            context.retime()

    async def _thaw(self, state: LaneState) -> None:
        """Say who our workers were in a lane before: nobody killed them."""
        former = self._former.get(state.number, [])
        if former:
            call = state.lane.thaw(former, known_s=self.context.settings.crash_window_s)
            await self.context.link.call(call.script, call.keys, call.args, repeatable=True)
            self._former[state.number] = [n for n in self._former[state.number] if n not in former]

    async def _leave(self, state: LaneState, who: Target) -> int:
        call = state.lane.leave([who])
        [status] = await self.context.link.call(call.script, call.keys, call.args, repeatable=True)
        return int(status.split(b" ")[1]) if status.startswith(b"OWNS") else 0
