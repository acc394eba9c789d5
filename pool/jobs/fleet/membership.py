r"""Membership of a node in its lanes, and its workers' entries in the `workers` map.

What the fleet is told of this node's workers: their entries in the `workers` map.

    unknown --add--> known --its entry differs from what it is, or is gone--> due --written--> known
       ^               |
       |               +--forget: it leaves--> left --its entry is taken out--+
       +----------------------------------------------------------------------+

Entries are written by one task at a time, and what is written last is the latest.  An entry that
could not be taken out is tried again after each renewal, and when the node leaves.  A lane in which
a worker has no lease stands in its entry as 0, so joining a lane makes entries due, and so does a
copy of the map that was fetched anew.

Dying after any step: an entry without a lease is found by whoever looks for orphans in that lane.

Joining, joining again, and leaving: who this node is in each lane, and in the `workers` map.

    join     lanes first (leases, open, streams), then `workers`: none is announced without a lease
    GONE     the identity was fenced: its number rises, it joins again; its keys are the reaper's
    lost     see below
    leave    out of `open`, then (when nothing is owned) out of `workers` and out of the lanes,
             however far joining came: `give_up` is the one way out, of workers and of the node

Lanes are islands.  What this node wants to be in a lane (itself and its workers) is compared with
the leases that it has there, and one task per lane, the settler, sees to the difference until there
is none:

    settled --a worker comes; GONE--> missing --join.lua--> settled
       |                                 ^
       +--POOLDATALOST--> doubted -------+   numbers rise, waiters are told, whatever the lane holds
                             |  \--> settled: it was the answer to a call of before
                             +--> `config` is another: the pool is lost, all lanes are missing

The control keys are an island too: `control.found` puts back what the pool was made as, or makes it
anew, and tells which.

    as it was   our entries are written again, then copies are fetched anew; no lane is touched
    another     the pool is lost, with all lanes

A lane that hangs keeps its settler waiting and nobody else: joining returns with the lanes that
have answered, and in `workers` its number is 0 until it has.  After any settler the announcer
writes `workers`.

Who writes: a lane's part of `_joined` and its LaneState only its settler, or whoever leaves, one at
a time (`writing`), numbers only plain functions.  `config` makes the pool, the first to join makes
the lane: its generation is drawn in join.lua, under the pool's, if the lane has none of this pool;
all others take that over.  So of two nodes at once the second one joins what the first has made.  A
call of before names the lost generation and is refused; a join of before, which names none, may
make the lane, and those whose lease it brings end and are reaped.  A lane lost again has another
generation again, also by a copy of the same join.

Dying after any step: a lease without an entry in `workers` ends and is reaped; an entry without a
lease is found by whoever looks for orphans in that lane; a lane made and not announced is found by
the next to join.  A late copy of a join carries a "not after" on server time and is refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, TypeAlias

import anyio
import attrs

from pool.core.ids import number_or
from pool.core.lease import Lease, Timing
from pool.core.options import Options
from pool.core.pauses import Cordon, Pause
from pool.core.pooltime import PoolTime
from pool.core.retry import Recoveries, refused_delay
from pool.errors import Gone, NotRunning, PoolError, StoreLost, StoreUnavailable
from pool.events import DataLost, LaneDataLost, LaneJoined, LaneMissing
from pool.jobs.context import Context, LaneState
from pool.jobs.roster import WorkerEntry
from pool.jobs.settlement import keeps_of
from pool.jobs.worker.messages import LaneLost, LeaseBack
from pool.jobs.worker.worker import Worker
from pool.maps.deltas import Delete, Op, Set, SetIfNotExists
from pool.maps.replica import Replica
from pool.names import Names
from pool.redis.commands.calls import IS_NODE, Target
from pool.redis.commands.lane import Lane
from pool.redis.commands.member import Left, PoolConfig, Registered, generation_of_pool
from pool.redis.commands.pausing import LanePauses
from pool.runtime.actor import Actor
from pool.runtime.pool_config import open_pool

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


FORMER_MAX: Final = 256  # identities that a lane has not heard of yet: one for each try to join
STEPS_MAX: Final = 4  # calls of one try to join, of which each may take op_timeout_s


@attrs.frozen
class IdentityGone:
    """A script answered GONE to one of our identities."""

    lane: int
    name: str


@attrs.frozen
class LaneDoubted:
    """A script answered that the data of its generation are not in the lane."""

    lane: int


@attrs.frozen
class PoolLost:
    """A script answered that the data of its generation are not there."""


Message: TypeAlias = IdentityGone | LaneDoubted | PoolLost


@attrs.define(eq=False)
class _Settling:
    """How far joining is in one lane."""

    is_running: bool = False
    is_doubted: bool = False
    is_lost: bool = False  # what we had there: before it is recovered there may be a pause
    recoveries: Recoveries = attrs.field(factory=Recoveries)
    is_refused: bool = False  # the last join: fenced, or asked for too late
    is_late: bool = False  # somebody was told that this lane is missing
    stale: str = ""  # generation of another pool that was left in the lane
    trouble: PoolError | None = None  # why the last try failed
    writing: anyio.Lock = attrs.field(factory=anyio.Lock)  # who joins or leaves there


@attrs.define(eq=False, kw_only=True)
class Membership(Actor[Message]):
    """Keeps this node's identities registered."""

    context: Context
    replica: Replica
    workers: dict[str, Worker] = attrs.field(factory=dict)
    on_changed: Callable[[], object]  # identities changed: renew and read others from now on
    on_lane_lost: Callable[[int], object]  # what it held is gone
    on_reopened: Callable[[], object]  # the control keys are there again, in `generation`
    renew_now: Callable[[], object]  # a lease was joined whose workers wait to be told to go on
    confirm: Callable[[], Awaitable[set[int]]]  # tells the lanes now; returns those that are silent
    has_held: Callable[[LaneState], bool]  # whether our own code kept us from renewing
    _settling: list[_Settling] = attrs.field(init=False, factory=list)  # by lane
    _news: anyio.Event = attrs.field(init=False, factory=anyio.Event)  # of the next try to join
    _is_joining: bool = attrs.field(init=False, default=False)  # else nobody has asked for it yet
    _recoveries: Recoveries = attrs.field(init=False, factory=Recoveries)  # of the whole pool
    _is_opening: bool = attrs.field(init=False, default=False)
    _pool_ttl_ms: int = attrs.field(init=False, default=0)  # as `config` said it
    _made: str = attrs.field(init=False, default="")  # generation of the pool that we made anew
    _returning: set[tuple[int, str]] = attrs.field(init=False, factory=set)  # lane and worker
    # by lane, who our workers were there: no job must be blamed for their deaths
    _former: dict[int, list[str]] = attrs.field(init=False, factory=dict)
    # lane and name of all that have a lease: a name may stand in several lanes
    _joined: set[tuple[int, str]] = attrs.field(init=False, factory=set)
    _numbers: dict[str, list[int]] = attrs.field(init=False, factory=dict)  # by worker id
    announcer: Announcer = attrs.field(init=False)

    @announcer.default
    def _first_announcer(self) -> Announcer:
        return Announcer(
            context=self.context,
            replica=self.replica,
            workers=self.workers,
            numbers_of=self._numbers_of,
            spawn=self.spawn,
            is_opening=lambda: self._is_opening,
        )

    # --- for the node -------------------------------------------------------------------------

    def make_lanes(self, made: PoolConfig) -> None:
        """Set the lanes up as the pool was found; node numbers rise when it was found anew."""
        context, timing = self.context, Timing(made.ttl_ms / 1000)
        context.generation, context.timing = made.generation, timing
        self._pool_ttl_ms = made.ttl_ms
        self._settling += [_Settling() for _ in range(made.lanes - len(self._settling))]
        before = {state.number: state.node.number for state in context.lanes}
        highest = {state.number: state.highest for state in context.lanes}
        now_s = context.io.clock()
        context.unassigned.clear()
        context.barren.clear()
        context.lanes[:] = [
            LaneState(
                number=k,
                lane=Lane(Names(context.pool, k), "", keeps_of(context.settings), context.io.pages),
                node=Target(context.node_id, before.get(k, 0) + 1),
                lease=Lease(
                    timing=timing,
                    asked_s=now_s,
                ),
                highest=highest.get(k, 0),
                server_ms=made.now_ms,
                server_at_s=now_s,
                clock_ms=made.now_ms,
                clock_at_s=now_s,
            )
            for k in range(made.lanes)
        ]

    def identities(self) -> list[dict[str, Callable[[], int]]]:
        """Return the names to be renewed, lane by lane, and what says how many keys each takes."""
        found = []
        for state in self.context.lanes:
            k = state.number
            takes: dict[str, Callable[[], int]]
            takes = {w.target(k).name: partial(w.tell_takes, k) for w in self.workers.values()}
            takes[state.node.name] = lambda: IS_NODE
            joined = self._joined
            found.append({n: t for n, t in takes.items() if (state.number, n) in joined})
        return found

    def handlers(self) -> dict[str, Options]:
        """Return all that the workers know."""
        return {
            name: options
            for worker in self.workers.values()
            for name, options in worker.handlers._options().items()
        }

    async def join_node(self) -> None:
        """Register the node itself; see `_join_lanes`."""
        self._is_joining = True
        self.on_changed()
        await self._join_lanes(lambda state: state.node.name)

    async def join_worker(self, worker: Worker) -> None:
        """Register a worker, see `_join_lanes`, and announce it.

        However this fails, some of it may have been done: `give_up()` is for that.

        Raises:
            StoreUnavailable, StoreLost, StoreFault: Why.
            NotRunning: It was given up meanwhile.
        """
        self._numbers[worker.id] = [1] * len(self.context.lanes)
        worker.take_lanes(self._numbers[worker.id])
        self.workers[worker.id] = worker
        self.on_changed()
        await self._join_lanes(lambda state: worker.target(state.number).name)
        await self.announcer.add(worker)
        self.on_changed()
        self.announcer.write_soon()  # a lane may have been joined meanwhile

    async def _join_lanes(self, name_in: Callable[[LaneState], str]) -> None:
        """Return when an identity has joined all lanes, or some of them and the others fail.

        A lane that does not answer does so within `op_timeout_s`.  It goes on being tried.

        Raises:
            PoolError: None was joined: why the first one was not.
        """
        for number, settling in enumerate(self._settling):
            settling.trouble = None
            self._settle_soon(number)

        def missing() -> list[int]:
            names = [(state.number, name_in(state)) for state in self.context.lanes]
            return [lane for lane, name in names if (lane, name) not in self._joined]

        op_timeout_s = self.context.settings.op_timeout_s
        for wait_s in (op_timeout_s, STEPS_MAX * op_timeout_s):
            with anyio.move_on_after(wait_s):
                while any(self._settling[lane].trouble is None for lane in missing()):
                    if self.state == "ended":  # nobody is left who could join
                        raise NotRunning(state="closed")
                    await self._news.wait()
            if len(missing()) < len(self.context.lanes):
                break  # else wait for the error: a try may have several steps
        lanes = missing()
        troubles = [self._settling[lane].trouble for lane in lanes]
        if len(lanes) == len(self.context.lanes):
            raise troubles[0] or StoreUnavailable(problem="no lane answered", maybe_done=True)
        for lane, trouble in zip(lanes, troubles, strict=True):
            if not self._settling[lane].is_late:  # else it was told, and has not been joined since
                self._settling[lane].is_late = True
                problem = str(trouble or "it did not answer in time")
                node = self.context.node_id
                self.context.emit(LaneMissing(node=node, lane=lane, problem=problem))

    def _numbers_of(self, worker: Worker) -> tuple[int, ...]:
        """Return which numbers a worker has in the lanes; 0 where it has no lease yet."""
        return tuple(
            number if (lane, Target(worker.id, number).name) in self._joined else 0
            for lane, number in enumerate(self._numbers[worker.id])
        )

    def look_at_entries(self) -> None:
        """Announce again whoever is missing in `workers`; after each renewal."""
        if self.state == "running":  # else nothing can be spawned
            self.announcer.look()

    async def close_worker(self, worker: Worker) -> None:
        """Have a worker that drains take no keys in any lane, and announce that it does.

        Lanes that do not answer are silent from here on.
        """

        self.on_changed()
        async with anyio.create_task_group() as closing:
            closing.start_soon(self.announcer.close, worker)
            await self.confirm()

    async def give_up(self, who: Worker | None) -> int:
        """Leave with a worker, or (None) with the node itself; return how many keys it still owns.

        However far its joining came.  First it is renewed no more, nor joins any lane: a renewal
        that overtakes the answer would find it gone.  Then each lane is asked, once the join that
        is under way there was answered; but not a silent one, where its lease ends by itself.
        """
        lanes = self.context.lanes

        def name_in(lane: int) -> Target:
            return lanes[lane].node if who is None else who.target(lane)

        if who is None:
            self._is_joining = False
        else:
            self.announcer.forget(who)
            self.workers.pop(who.id, None)
        self._joined.difference_update((s.number, name_in(s.number).name) for s in lanes)
        self.on_changed()
        owns: list[int] = []

        async def leave(lane: int) -> None:
            keys = 0 if who is None else sum(run.lane == lane for run in who.runs.values())
            has_left = False
            async with self._settling[lane].writing:
                state, target = lanes[lane], name_in(lane)
                self._joined.discard((lane, target.name))
                if state.lane.generation and not state.is_silent:
                    try:
                        left = await self._leave(state, target)
                        has_left, keys = left.in_peace, left.keys
                    except PoolError as error:  # its lease ends by itself
                        self.context.trouble("leave", lane, error)
            owns.append(keys)
            if who is not None and not has_left:  # it will be reaped, and this process lives
                self._note_former(lane, target.name)
                self._settle_soon(lane)

        async with anyio.create_task_group() as leaving:
            leaving.start_soon(self.announcer.withdraw)
            for state in lanes:
                leaving.start_soon(leave, state.number)
        return sum(owns)

    # --- the actor ----------------------------------------------------------------------------

    def begin(self) -> None:
        self._is_opening = False
        for number, settling in enumerate(self._settling):
            settling.is_running = False
            if self._is_joining:
                self._settle_soon(number)
        self.announcer.begin()

    def handle(self, message: Message) -> None:
        match message:
            case IdentityGone(lane, name) if (lane, name) in self._joined:
                self._joined.discard((lane, name))
                self._raise(self.context.lanes[lane], name)
                self._settling[lane].is_lost = True
                self.on_changed()
                self._settle_soon(lane)
            case LaneDoubted(lane) if self.context.lanes[lane].lane.generation:
                self._settling[lane].is_lost |= not self._settling[lane].is_doubted
                self._settling[lane].is_doubted = True
                self._settle_soon(lane)
            case PoolLost() if not self._is_opening:
                self._is_opening = True
                self.spawn(self._open_again)
            case _:
                return  # known already

    def _raise(self, state: LaneState, name: str) -> None:
        """Take the next number for an identity of ours; its worker lets go of what it ran."""
        if name == state.node.name:
            state.node = Target(state.node.id, state.node.number + 1)
            return
        if not self.has_held(state):  # else one of its jobs is to blame, as if it had killed us
            self._note_former(state.number, name)
        for worker in self.workers.values():
            if worker.target(state.number).name == name:
                self._numbers[worker.id][state.number] += 1
                self._returning.add((state.number, worker.id))
                worker.lose_lane(LaneLost(state.number, self._numbers[worker.id][state.number]))

    def _note_former(self, lane: int, name: str) -> None:
        """Note who was a worker of ours in a lane, until it is told that nobody killed it."""
        self._former[lane] = [*self._former.get(lane, ()), name][-FORMER_MAX:]

    def ended(self, crash: BaseException | None) -> None:  # noqa: ARG002 - its base's signature
        self._tell_news()  # who waits to join looks whether anybody is left

    def _settle_soon(self, number: int) -> None:
        settling = self._settling[number]
        if not settling.is_running:
            settling.is_running = True
            self.spawn(self._settle, number, settling)

    def _is_owing(self, state: LaneState) -> bool:
        """Say whether somebody of ours has to join a lane, or something to tell it."""
        has_to_tell = bool(state.lane.generation and self._former.get(state.number))
        return has_to_tell or bool(self._missing(state))

    async def _settle(self, number: int, settling: _Settling) -> None:
        """Join a lane with everyone who has no lease there, and tell it of those who had one.

        It is tried until that is done.  Each step may be done again, so that a failure between two
        of them leaves nothing behind.
        """
        steps, refusals = 0, 0  # since it was last well, or rested
        try:
            while settling.is_doubted or self._is_owing(self.context.lanes[number]):
                if settling.is_lost:
                    settling.is_lost = False
                    await anyio.sleep(settling.recoveries.pause_s(self.context.io.clock()))
                    continue  # meanwhile all may be otherwise
                state, steps = self.context.lanes[number], steps + 1
                try:
                    if settling.is_doubted:
                        await self._examine(state, settling)
                    elif self._missing(state):
                        await self._join_missing(state, settling)
                        steps = 0
                    else:
                        await self._thaw(state)
                except Gone:
                    settling.is_refused = True
                except StoreLost:
                    settling.is_doubted = settling.is_lost = True
                except PoolError as error:
                    settling.trouble, steps = error, STEPS_MAX
                    refusals = 0 if isinstance(error, StoreUnavailable) else refusals + 1
                    self.context.trouble("join", number, error)
                    self._tell_news()
                else:
                    refusals = 0
                    self.context.outages.over(number)
                if steps >= STEPS_MAX:
                    steps = 0
                    await anyio.sleep(refused_delay(refusals))
        finally:
            settling.is_running = False

    async def _examine(self, state: LaneState, settling: _Settling) -> None:
        """Find out what became of a lane of which a script said that our data are not there."""
        context = self.context
        text = await context.pipeline.execute("HGET", state.lane.names.lane, "incarnation")
        there = (text or b"").decode(errors="replace")
        if there != state.lane.generation or not there:
            made = await self._open_pool()
            if made.generation != context.generation:
                self._begin_anew(made)
                return
            if made.was_gone:
                self.handle(PoolLost())  # with what else was among the control keys
        if context.lanes[state.number] is not state:
            return  # the pool was found anew meanwhile
        settling.is_doubted = False
        if there == state.lane.generation:
            return  # it was an answer of before
        settling.stale = "" if generation_of_pool(there) == context.generation else there
        if state.lane.generation:
            self._lose(state)

    def _lose(self, state: LaneState) -> None:
        """A lane's data are gone: nobody has a lease there, and all take the next number."""
        number, context = state.number, self.context
        context.emit(LaneDataLost(pool=context.pool, lane=number, generation=state.lane.generation))
        state.lane = attrs.evolve(state.lane, generation="")
        state.lose(context.io.clock())
        self._joined = {each for each in self._joined if each[0] != number}
        for name in self._missing(state):
            self._raise(state, name)
        self.on_lane_lost(number)
        self.on_changed()

    async def _open_again(self) -> None:
        """Find the pool anew if it is lost, so that new work is served; try until that is done."""
        refusals = 0
        try:
            await anyio.sleep(self._recoveries.pause_s(self.context.io.clock()))
            while True:
                try:
                    made = await self._open_pool()
                    if made.generation == self.context.generation:
                        await self.announcer.write_again()
                except PoolError as error:
                    self.context.trouble("found", None, error)
                    refusals = 0 if isinstance(error, StoreUnavailable) else refusals + 1
                    await anyio.sleep(refused_delay(refusals))
                else:
                    self.context.outages.over(None)
                    self._begin_anew(made)
                    return
        finally:
            self._is_opening = False

    async def _open_pool(self) -> PoolConfig:
        """Make the pool anew if it is gone; one that we made has what operators ask for first."""
        made = await open_pool(self.context)
        if made.wrote:
            self._made = made.generation
        if made.generation == self._made != self.context.generation:
            await self.announcer.write_asked(made.generation)
        return made

    def _begin_anew(self, made: PoolConfig) -> None:
        """The data of before are gone: no lease of ours is left, all take the next number.

        Of those of the control keys alone, nothing but copies of maps needs to be fetched again.
        """
        context = self.context
        if made.generation == context.generation:
            self.on_reopened()
            return
        context.emit(DataLost(pool=context.pool, generation=context.generation))
        self._joined.clear()
        for state in context.lanes:
            state.lose(context.io.clock())
            for worker in self.workers.values():
                self._raise(state, worker.target(state.number).name)
        self.make_lanes(made)
        for state in context.lanes:
            self.on_lane_lost(state.number)
        self.on_reopened()
        self.on_changed()
        for number, settling in enumerate(self._settling):
            settling.is_doubted, settling.stale = False, ""
            self._settle_soon(number)

    def _missing(self, state: LaneState) -> list[str]:
        """Return the names of ours that have no lease in a lane."""
        names = [worker.target(state.number).name for worker in self.workers.values()]
        if self._is_joining:
            names.append(state.node.name)
        return [name for name in names if (state.number, name) not in self._joined]

    async def _join_missing(self, state: LaneState, settling: _Settling) -> None:
        """Join a lane with those that have no lease there; if it was refused, as others.

        Refused means fenced, or asked for too late.  That may be the server's clock, which has
        jumped: with the time that it told us last we would be too late for ever.
        """
        if settling.is_refused:
            await self._tell_time(state)
            for name in self._missing(state):
                self._raise(state, name)
            self.on_changed()
            settling.is_refused = False
        async with settling.writing:
            missing = set(self._missing(state))
            workers = {
                worker.id: worker
                for worker in self.workers.values()
                if worker.target(state.number).name in missing
            }
            is_new = state.node.name in missing
            if missing:
                await self._join(state, workers, is_new=is_new, stale=settling.stale)
        if self.context.lanes[state.number] is not state:
            return  # the pool was found anew meanwhile: that lease ends by itself
        settling.trouble, settling.stale = None, ""
        if settling.is_late:
            settling.is_late = False
            self.context.emit(LaneJoined(node=self.context.node_id, lane=state.number))
        self.on_changed()
        if state.lease.phase != "held":
            self.renew_now()
        for worker in self.workers.values():
            if (state.number, worker.id) in self._returning:
                self._returning.discard((state.number, worker.id))
                worker.put(LeaseBack(state.number))
        self._tell_news()
        self.announcer.write_soon()

    async def _tell_time(self, state: LaneState) -> None:
        """Ask the lane's own server: those of a cluster have clocks of their own."""
        asked_s = self.context.io.clock()
        clock_ms = await self.context.pipeline.at(state.lane.names.lane).execute("TIME")
        state.tell_clock(clock_ms, asked_s)

    def _tell_news(self) -> None:
        self._news.set()
        self._news = anyio.Event()

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
        asked_s = context.io.clock()
        not_after_ms = round(
            state.clock_ms + 1000 * (asked_s - state.clock_at_s + settings.op_timeout_s)
        )
        targets = {w.target(state.number): w.takes(state.number) for w in workers.values()}
        options = {}
        for worker in workers.values():
            options.update(worker.handlers._options())
        call = state.lane.join(
            state.node,
            targets,
            options,
            pool=context.generation,
            is_new=is_new,
            not_after_ms=not_after_ms,
            pool_ttl_ms=context.timing.ttl_ms,
            stale=stale,
            paused=self._paused_in(state),
            floor=state.highest,
        )
        told: Registered = await context.pipeline.call(call, repeatable=True)
        if context.lanes[state.number] is not state:
            return  # the pool was found anew meanwhile: that lease ends by itself
        state.tell_time(told.now_ms, asked_s)
        if state.lane.generation != told.generation:
            state.time = PoolTime()  # made anew, it has a time of its own, and nothing of before
        state.hear(told.clock, asked_s, context.io.clock())
        state.lane = attrs.evolve(state.lane, generation=told.generation)
        await self._thaw(state)
        if context.settings.lease_ttl_s is not None and told.ttl.ms != self._pool_ttl_ms:
            await self._bring_ttl(state, told.ttl.ms)
        if context.lanes[state.number] is not state:
            return  # likewise
        names = (worker.target(state.number).name for worker in self.workers.values())
        has_others = any((state.number, name) in self._joined for name in names)
        self._joined.update((state.number, target.name) for target in targets)
        if is_new:
            self._joined.add((state.number, state.node.name))
        # Of workers that did not need to join the lease stands, and ends when it does: this call
        # has renewed nothing of theirs, however early or late it was answered.
        if is_new and not has_others:
            timing = Timing(told.ttl.ms / 1000)
            # Whoever was told to stop has to be told to go on, and a renewal does that: so were
            # those of ours that had not joined.
            lease = Lease(
                timing=timing, asked_s=asked_s, term=told.ttl.term, phase=state.lease.phase
            )
            is_late = context.io.clock() + timing.renew_s >= lease.soft_s
            if is_late and lease.phase == "held":
                # It would end before it is renewed.  Nothing begins by it, and nobody runs here.
                lease = attrs.evolve(lease, phase="fenced")
            state.lease = lease
            context.retime()

    async def _bring_ttl(self, state: LaneState, ttl_ms: int) -> None:
        """Have a lane go by the pool's TTL: a client without one may have joined it before us.

        `config` is read again behind that, since `pool ttl` may have written it meanwhile.
        """
        pipeline = self.context.pipeline
        while True:
            text = await pipeline.execute("HGET", self.context.control.config, "ttl")
            wanted_ms = number_or(0, text)
            if wanted_ms == ttl_ms or not Timing.is_ttl(wanted_ms):
                return
            await pipeline.call(state.lane.change_ttl(wanted_ms), repeatable=True)
            ttl_ms = wanted_ms

    def _paused_in(self, state: LaneState) -> str:
        """Return what a lane that we make begins with."""
        pauses = self.context.roster.asked.pauses.values()
        return LanePauses.asked_for(pauses, state.number, len(self.context.lanes)).pack()

    async def _thaw(self, state: LaneState) -> None:
        """Say who our workers were in a lane before: nobody killed them."""
        former = self._former.get(state.number, [])
        if former:
            call = state.lane.thaw(former)
            await self.context.pipeline.call(call, repeatable=True)
            self._former[state.number] = [n for n in self._former[state.number] if n not in former]

    async def _leave(self, state: LaneState, who: Target) -> Left:
        told: list[Left] = await self.context.pipeline.call(
            state.lane.leave([who]), repeatable=True
        )
        return told[0]
