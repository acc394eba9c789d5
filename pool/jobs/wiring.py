"""The actors of one node, put together: who tells whom, and in which order they start and stop.

    listener --starts, signals--> workers        keepalive --renewals--> workers, reaper, sweeper
             --replies----------> waiters        replica ----changes--> candidates, workers

Nothing here decides; a route that would have to wait is a message to an actor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import anyio
import attrs

from pool.core.ids import WORKER, number_or
from pool.core.pauses import is_asked
from pool.core.placement import Candidate
from pool.core.record import INLINE_BYTES_MAX, Start
from pool.errors import NotRunning, PoolError, StorageFull, StoreUnavailable, again
from pool.events import HandlerOverran
from pool.jobs.client.dispatcher import Dispatcher
from pool.jobs.client.requests import Requests
from pool.jobs.client.waiters import Waiters, WaitsFor
from pool.jobs.context import Context, LaneState
from pool.jobs.fleet.heeding import Heeding
from pool.jobs.fleet.keepalive import EXIT_CODE, KeepAlive, LaneHandlers
from pool.jobs.fleet.membership import IdentityGone, LaneDoubted, Membership, PoolLost
from pool.jobs.fleet.reaper import Reaper
from pool.jobs.fleet.sweeper import Sweeper
from pool.jobs.handlers import Handlers
from pool.jobs.lifespans import Lifespans
from pool.jobs.listener import Listener
from pool.jobs.roster import SHUTDOWN_KEY, WorkerEntry
from pool.jobs.run import Run
from pool.jobs.scheduling import WantedSchedule
from pool.jobs.worker.messages import (
    Drain,
    Granted,
    LeaseBack,
    LeaseHard,
    LeaseSoft,
    MembershipChanged,
    Missed,
    Signalled,
    Ticked,
)
from pool.jobs.worker.worker import Worker
from pool.maps.deltas import CompareAndDelete, KeyChange, Resync, Set
from pool.maps.replica import Replica
from pool.maps.replicas import Maps
from pool.names import WORKERS
from pool.redis.commands.member import PoolConfig, Renewal
from pool.redis.io.system import Reply
from pool.redis.scripts import ScriptCall, Word
from pool.runtime.actor import Actor
from pool.runtime.hang import FROZEN_S
from pool.runtime.session import CLOSE_BUDGET_S
from pool.runtime.stream_tailer import Fields

if TYPE_CHECKING:
    from pool.jobs.remote.workers import RemoteWorkers

Actors: TypeAlias = tuple[Actor[Any], ...]
_SIGNALS_MAX: Final = 10_000  # wake-ups kept for a node that does not read


@attrs.define(eq=False)
class _Going:
    """A worker that is being given up."""

    worker: Worker
    grace_s: float = math.inf
    is_closed: bool = False  # every lane that answers was told that it takes no keys
    patience: anyio.CancelScope = attrs.field(factory=anyio.CancelScope)  # until it is idle
    over: anyio.Event = attrs.field(factory=anyio.Event)
    owns: int = 0  # keys left to the reapers


class Wiring:
    """Makes, starts, connects and stops the actors of one node."""

    def __init__(
        self,
        context: Context,
        made: PoolConfig,
        *,
        on_shutdown: Callable[[], object],
        on_drain: Callable[[], object],
    ) -> None:
        self.context = context
        self._supervisor = context.supervisor
        self._on_shutdown = on_shutdown
        self._end_by = self._supervisor.on_interrupt
        self._supervisor.on_interrupt = self._on_interrupt
        self._shutdown_seen = made.now_ms  # those before we came are nothing to us
        self.is_shut_down: bool = False
        self._is_open = False
        self._is_draining = False  # or has drained: no worker comes any more
        self._joins: set[anyio.CancelScope] = set()  # of workers that join just now
        self._going: dict[str, _Going] = {}  # by worker id
        self._judging: set[int] = set()  # lanes where handlers have a stop budget to end
        self._routes: list[dict[str, Callable[[list[tuple[str, Fields]]], bool]]] = []
        self._remote: RemoteWorkers | None = None  # until somebody asks for it
        self._opening_remote: anyio.Lock = anyio.Lock()
        context.generation = made.generation
        self.lifespans: Lifespans = Lifespans(context.node, self._supervisor)
        self.maps: Maps = Maps(
            session=context,
            on_lost=self._on_pool_lost,
        )
        self.replica: Replica = self.maps.new_replica(WORKERS)
        self.dispatcher: Dispatcher = Dispatcher(name="dispatcher", context=context)
        self.waiters: Waiters = Waiters(name="waiters", context=context, tell_wait=self._tell_wait)
        self._listener = Listener(name="listener", context=context, on_entries=self._route)
        self.membership: Membership = Membership(
            name="membership",
            context=context,
            replica=self.replica,
            on_changed=self._on_identities,
            on_lane_lost=self.waiters.lose,
            on_reopened=self._on_reopened,
            renew_now=lambda: self._keepalive.renew_now(),  # noqa: PLW0108 - made below
            confirm=lambda: self._keepalive.confirm(context.settings.op_timeout_s),
            has_held=lambda state: self._keepalive.has_held(state),  # noqa: PLW0108 - made below
        )
        self._keepalive = KeepAlive(
            name="keepalive",
            context=context,
            on=LaneHandlers(
                on_renewed=self._on_renewed,
                on_soft=lambda state: self._tell_workers(LeaseSoft(state.number)),
                on_hard=self._on_hard,
                on_resume=lambda state: self._tell_workers(LeaseBack(state.number)),
                on_gone=lambda state, names: self._on_gone(state.number, names),
            ),
            begun=self._begun,
            down=self._supervisor.count_down,
            copies=self._count_behind,
        )
        self._reaper = Reaper(
            name="reaper",
            context=context,
            tell_waiters=self._tell_waiters,
            on_reaped=self._on_reaped,
        )
        self.requests: Requests = Requests(context=context, tell_waiters=self._tell_waiters)
        self._sweeper = Sweeper(
            name="sweeper",
            context=context,
            tell_waiters=self._tell_waiters,
            on_suspects=self._reaper.suspect,
            stop_job=self.requests.stop,
        )
        context.on_due = self._sweeper.due
        context.on_data_lost = self._on_lane_doubted
        context.on_interrupt = self._on_interrupt
        self.heeding: Heeding = Heeding(
            context=context,
            workers=self.membership.workers,
            confirm=lambda: self._keepalive.confirm(context.settings.op_timeout_s),
            announce=self._announce,
            on_drain=on_drain,
            drain_worker=self._drain_worker,
        )
        self.membership.make_lanes(made)
        self._supervisor.on_down = self._on_down

    @property
    def down(self) -> tuple[str, ...]:
        """The names of the parts that are down at the moment; see `Supervisor`."""
        unwoken = ("pipeline",) if self.context.pipeline.is_unwoken else ()
        return (*self._supervisor.down, *unwoken)

    def _count_behind(self) -> int:
        own = {WORKERS} if self.replica.is_behind else set[str]()
        return len(self.maps.behind() | own)

    @property
    def is_to_drain(self) -> bool:
        """Whether an operator has this node drain."""
        cordon = self.context.roster.asked.cordon_of(self.context.node_id)
        return cordon is not None and cordon.is_drain

    # --- start and stop -----------------------------------------------------------------------

    async def start(self) -> None:
        """Start everything but workers, and join the lanes as a client."""
        self.maps.start()
        client: Actors = (self.dispatcher, self.waiters)
        first: Actors = (self.replica, self.membership, *client, self._listener)
        for actor in first:
            await self._supervisor.start(actor)
        await self.replica.synced()
        self._shutdown_seen = max(self._shutdown_seen, self._shutdown())
        self._on_workers()
        self.heeding.look()
        self.replica.watch(self._on_workers_changed)
        # First: a lane that hangs keeps joining waiting, and not the leases of the others.
        await self._supervisor.start(self._keepalive)
        await self.membership.join_node()
        then: Actors = (self._reaper, self._sweeper)
        for actor in then:
            await self._supervisor.start(actor)
        # Its thread has a connection of its own, which may fail where ours does not: a node that
        # cannot renew would take keys only to lose them.
        silent = await self._keepalive.confirm(self.context.settings.op_timeout_s)
        if silent >= {s.number for s in self.context.lanes if s.lane.generation}:
            why = self._keepalive.trouble
            if why is not None and not isinstance(why, StoreUnavailable):
                raise again(why)  # such as a right that is missing
            problem = why.problem if why is not None else "no answer in time"
            raise StoreUnavailable(problem=f"no lease can be renewed: {problem}", maybe_done=True)
        self._is_open = True

    async def enter_lifespans(self, handlers: Handlers) -> None:
        """Return once all are open that these handlers have, however long that takes.

        Raises:
            NotRunning: The node leaves.
        """
        if not self._is_open:
            raise NotRunning(state="closing")
        for lifespan in handlers._lifespans():
            await self.lifespans.enter(lifespan)

    async def add_worker(
        self, handlers: Handlers, capacity: int, weight: float, label: str, version: str
    ) -> Worker:
        """Start a worker and have it join; return once our own copy of `workers` has it.

        Raises:
            NotRunning: The node leaves, or drains.
        """
        await self.enter_lifespans(handlers)
        if self._is_draining:
            raise NotRunning(state="draining")
        context = self.context
        worker_id = context.ids.next(WORKER)
        worker = Worker(
            name=worker_id,
            context=context,
            handlers=handlers,
            id=worker_id,
            capacity=capacity,
            weight=weight,
            label=label,
            version=version,
            on_gone=lambda lane, name: self._on_gone(lane, (name,)),
            on_lost=self._judge_later,
            tell_waiters=self._tell_waiters,
            has_read=self._listener.has_read,
            resources=self.lifespans.value_of,
        )
        self.heeding.cordon_new(worker)
        worker.take_lanes([1] * len(context.lanes))
        with anyio.CancelScope() as scope:
            self._joins.add(scope)
            try:
                await self._supervisor.start(worker)
                await self.membership.join_worker(worker)
            except BaseException:
                # It may have joined, be announced, and have been granted keys already.
                if worker.state == "new":
                    worker.stop()
                else:
                    with suppress(NotRunning):  # the task scope has ended, and says why to others
                        self._begin_giving_up(worker, 0.0)
                raise
            finally:
                self._joins.discard(scope)
            self._keepalive.renew_now()  # its answer tells whether keys wait for a worker
            return worker
        raise NotRunning(state="closing")

    async def remote_workers(self) -> RemoteWorkers:
        """Return the door of workers that poll; it is opened when it is first asked for.

        Raises:
            NotRunning: The node leaves.
        """
        async with self._opening_remote:
            if not self._is_open:
                raise NotRunning(state="closing")
            if self._remote is None:
                from pool.jobs.remote.workers import RemoteWorkers

                remote = RemoteWorkers(
                    context=self.context,
                    replica=self.replica,
                    tell_waiters=self._tell_waiters,
                    suspect=self._reaper.suspect,
                )
                await self._supervisor.start(remote.waiting)
                await remote.prepare()
                self._remote = remote
            return self._remote

    async def keep_schedules(self, wanted: Sequence[WantedSchedule]) -> None:
        """Store these, and again whenever their lane has lost its data; see `Scheduler.keep`."""
        await self._sweeper.scheduler.keep(wanted)

    async def give_up(self, worker: Worker, grace_s: float) -> int:
        """Drain a worker and have it leave; return how many keys were left to the reapers."""
        going = self._begin_giving_up(worker, grace_s)
        await going.over.wait()
        return going.owns

    async def give_up_workers(self, grace_s: float) -> int:
        """Likewise all at once, those that join just now as well; from now on none does."""
        self._is_draining = True
        for scope in list(self._joins):
            scope.cancel()
        for worker in list(self.membership.workers.values()):
            self._begin_giving_up(worker, grace_s)
        owns = 0
        for going in list(self._going.values()):
            await going.over.wait()
            owns += going.owns
        return owns

    def _begin_giving_up(self, worker: Worker, grace_s: float) -> _Going:
        """Begin, or have what has begun go on with the shorter grace.

        In a task of the node's own: whoever asks may be a handler of this worker, which has to end
        when its time has come, and may be cancelled, which must not leave this half done.
        """
        going = self._going.get(worker.id)
        if going is None:
            going = _Going(worker)
            self._supervisor.errand(
                f"{worker.id}/leaving", partial(self._give_up, going), partial(self._gone, going)
            )
            self._going[worker.id] = going
        worker.is_draining = True
        going.grace_s = min(going.grace_s, grace_s)
        if going.is_closed:
            worker.put(Drain(grace_s))
        budget_s = grace_s + self.context.timing.stop_budget_s
        budget_s += 4 * self.context.settings.op_timeout_s  # to close it, and to settle
        going.patience.deadline = min(going.patience.deadline, anyio.current_time() + budget_s)
        return going

    async def _give_up(self, going: _Going) -> None:
        worker, call_s = going.worker, 2 * self.context.settings.op_timeout_s
        going.patience = anyio.CancelScope(deadline=going.patience.deadline)  # anew after a crash
        with anyio.move_on_after(call_s):
            await self.membership.close_worker(worker)
        going.is_closed = True
        worker.put(Drain(going.grace_s))
        with going.patience:
            await worker.wait_idle()
        going.owns, judged = len(worker.runs), self._judge_abandoned(worker)
        with anyio.move_on_after(call_s):
            going.owns = await self.membership.give_up(worker)
        await self._supervisor.stop(worker, CLOSE_BUDGET_S)
        worker.abandon()
        if worker.left_over() and self.context.settings.on_overrun == "exit":
            await judged.wait()  # a node that leaves must not take its judge along

    def _gone(self, going: _Going) -> None:
        del self._going[going.worker.id]
        going.over.set()

    async def leave(self, grace_s: float) -> int:
        """Give up everything in order; keep-alive goes on until the end."""
        self._is_open = False
        ids = [self.context.node_id, *self.membership.workers]
        if self._remote is not None:
            await self._remote.waiting.close()
        owns = await self.give_up_workers(grace_s)
        await self.lifespans.leave(self.context.settings.grace_s)
        door: Actors = () if self._remote is None else (self._remote.waiting,)
        first: Actors = (*door, self._sweeper, self._reaper)
        for actor in first:
            await self._supervisor.stop(actor, CLOSE_BUDGET_S)
        with anyio.move_on_after(self.context.settings.op_timeout_s):
            await self.membership.give_up(None)
            await self.heeding.forget(self.replica, ids)
        await self.maps.stop()
        client: Actors = (self.dispatcher, self.waiters)
        then: Actors = (self.membership, self._listener, self.replica, self._keepalive)
        for actor in (*client, *then):
            await self._supervisor.stop(actor, CLOSE_BUDGET_S)
        return owns

    def silent_s(self) -> float:
        """Return for how long the event loop has not answered; from any thread."""
        return self._keepalive.silent_s()

    def renewed_s(self, state: LaneState) -> float:
        """Return when the last renewal of a lane that succeeded was asked for; from any thread."""
        return self._keepalive.renewed_s(state)

    def lease_left_s(self) -> float | None:
        """Return how long our handlers may go on if no renewal succeeds, in the worst lane.

        None if no lane was joined.  From any thread.
        """
        now_s = self.context.io.clock()
        timing = self.context.timing
        left = [
            self.renewed_s(state) + timing.ttl_s - timing.margin_s - timing.stop_budget_s - now_s
            for state in self.context.lanes
            if state.lane.generation
        ]
        return max(0.0, min(left)) if left else None

    def count_runs(self) -> int:
        """Return how many jobs our workers have in hand."""
        return sum(len(worker.runs) for worker in self.membership.workers.values())

    async def close_connections(self) -> None:
        """End everything beside the loop, within a budget each.  Twice is fine."""
        self._is_open = False
        await self._listener.aclose(CLOSE_BUDGET_S)
        if self._remote is not None:
            await self._remote.waiting.aclose(CLOSE_BUDGET_S)
        await self.maps.aclose()
        await self._keepalive.aclose(CLOSE_BUDGET_S)
        self.context.loop.close()

    # --- who tells whom -----------------------------------------------------------------------

    def _tell_workers(self, message: Any) -> None:
        for worker in self.membership.workers.values():
            worker.put(message)  # once per lane and renewal, or change of the fleet

    def _on_renewed(
        self,
        state: LaneState,
        told: Renewal,
        asked_s: float,
        counts: dict[str, int],
        was_away: bool,
    ) -> None:
        self._supervisor.look()
        self.context.pipeline.look()
        now_s = self.context.io.clock()
        self._sweeper.scheduler.look(state)
        asked = self.context.roster.asked
        if told.paused or asked.pauses:
            self.heeding.compare(state, told.paused)
        if asked.cordons:
            self.heeding.look_at_cordons()
        if told.lease_end_ms is not None:
            self._reaper.lease_ends(state.number, state.until_s(told.lease_end_ms, now_s))
        for deadline_ms in (told.pending_ms, told.due_ms):
            # What is later the next renewals tell, when it is still there.
            if deadline_ms is not None and (
                (in_s := state.until_s(deadline_ms, now_s)) <= 2 * self.context.timing.renew_s
            ):
                self._sweeper.due(state.number, in_s)
        for worker in self.membership.workers.values():
            count = counts.get(worker.target(state.number).name, -1)
            if count >= 0:
                worker.put(Ticked(state.number, asked_s, count, was_away))
        if was_away:
            self.waiters.look_again()
        self.membership.look_at_entries()

    def _on_hard(self, state: LaneState) -> None:
        self._tell_workers(LeaseHard(state.number))
        # Who comes so late stood still, and so did they: told before or only now, they have their
        # time to end when all goes on.
        if self.context.io.clock() - state.lease.hard_s < FROZEN_S:
            self._overran([run for run in self._overrunning(state.number) if not run.is_lost])
        self._judge_later(state.number)

    def _overrunning(self, lane: int) -> list[Run]:
        return [r for w in self.membership.workers.values() for r in w.overrunning(lane)]

    def _judge_later(self, lane: int) -> None:
        if lane not in self._judging:
            self._judging.add(lane)
            self.context.loop.later(self.context.timing.stop_budget_s, partial(self._judge, lane))

    def _judge(self, lane: int) -> None:
        """Find handlers that have had their time to end since they lost their lease."""
        self._judging.discard(lane)
        now_s, budget_s = self.context.io.clock(), self.context.timing.stop_budget_s
        runs = self._overrunning(lane)
        late = [run for run in runs if now_s - run.cancelled_s >= budget_s / 2]
        if len(late) < len(runs):
            self._judge_later(lane)  # others were told later
        self._overran(late)

    def _judge_abandoned(self, worker: Worker) -> anyio.Event:
        """Likewise of a worker that nobody renews from now on, when its lease may have ended.

        By what was granted until now: the node's own lease goes on, and says nothing of this one.
        """
        judged = anyio.Event()

        def judge() -> None:
            self._overran(worker.left_over())
            judged.set()

        ends_s = [self.context.lanes[run.lane].lease.hard_s for run in worker.left_over()]
        if ends_s:
            self.context.loop.later(max(0.0, min(ends_s) - self.context.io.clock()), judge)
        else:
            judged.set()
        return judged

    def _overran(self, runs: Sequence[Run]) -> None:
        new = [run for run in runs if not run.has_overrun]
        for run in new:
            run.has_overrun = True
            name, epoch = run.start.handler, run.start.epoch
            self.context.emit(HandlerOverran(key=run.key, handler=name, epoch=epoch))
        if new and self.context.settings.on_overrun == "exit":
            self.context.io.end_process(EXIT_CODE)

    def _on_gone(self, lane: int, names: Sequence[str]) -> None:
        """Join again; what they owned is reaped, even if they have no lease that could end."""
        for name in names:
            self.membership.tell_latest((lane, name), IdentityGone(lane, name))
        self._reaper.suspect(lane, names)

    def _on_reaped(self, lane: int, name: str) -> None:
        """Nothing is left of an identity: take its entry out of `workers`, if it is still that."""
        worker_id = name.rpartition(".")[0].encode()
        entry = self.replica.items.get(worker_id)
        info = WorkerEntry.parse(entry) if entry is not None else None
        if not isinstance(entry, bytes) or info is None or lane >= len(info.numbers):
            return
        if name == info.candidate.name_in(lane):
            self._reaper.spawn(self._forget_entry, worker_id, entry, info.candidate, lane)

    async def _forget_entry(
        self, worker_id: bytes, entry: bytes, worker: Candidate, reaped: int
    ) -> None:
        # Without its entry nobody looks for it any more in lanes where it lost its lease too.
        doomed: list[bool] = []

        async def doom(lane: int) -> None:
            doomed.append(await self._reaper.doom(lane, worker.name_in(lane)))

        async with anyio.create_task_group() as tasks:
            for lane in range(len(self.context.lanes)):  # the entry may name more, or fewer
                if lane != reaped and worker.is_in(lane):
                    tasks.start_soon(doom, lane)
        if not all(doomed):
            return
        try:
            await self.replica.write([CompareAndDelete(worker_id, entry)], repeatable=True)
        except PoolError:
            return  # whoever looks for orphans next finds it again

    def _on_identities(self) -> None:
        """Identities came or went: renew those with a lease, read the streams of all.

        Reading begins before joining: the entry that joining writes wakes the blocked read, which
        must know the new streams by then.
        """
        self._renew()
        self._routes = [{} for _ in self.context.lanes]
        for state in self.context.lanes:
            number, names, routes = state.number, state.lane.names, self._routes[state.number]
            for worker in self.membership.workers.values():
                name = worker.target(number).name
                routes[names.stream(name)] = partial(self._route_starts, number, worker)
                routes[names.signal(name)] = partial(self._route_signals, number, worker)
            routes[names.signal(state.node.name)] = self._route_replies
            self._listener.follow(state, list(routes))

    def _begun(self, state: LaneState) -> list[ScriptCall]:
        """Return what acknowledges all that has begun in a lane; asked by the renewal thread."""
        workers = list(self.membership.workers.values())
        return [call for worker in workers for call in worker.acknowledgements(state.number)]

    def _route(self, lane: int, stream: str, entries: list[tuple[str, Fields]]) -> bool:
        route = self._routes[lane].get(stream) if lane < len(self._routes) else None
        return route(entries) if route is not None else False

    def _route_starts(self, lane: int, worker: Worker, entries: list[tuple[str, Fields]]) -> bool:
        starts = [Start.parse(entry_id, fields) for entry_id, fields in entries]
        granted = Granted(lane, [start for start in starts if start is not None])
        if not worker.receive(granted):
            worker.tell_latest(lane, Missed(lane))  # they stay in the stream, and are read there
        return False

    def _route_signals(self, lane: int, worker: Worker, entries: list[tuple[str, Fields]]) -> bool:
        for _, fields in entries:
            if fields.get("t") == b"waits":
                self.waiters.on_signal(fields)
            elif not worker.receive(Signalled(lane, fields)):
                worker.tell_latest(lane, Missed(lane))
        return True

    def _route_replies(self, entries: list[tuple[str, Fields]]) -> bool:
        for _, fields in entries:
            self.waiters.on_signal(fields)
        return True

    def _tell_waiters(
        self, lane: int, names: Sequence[str], kind: str, job: str, outcome: bytes
    ) -> None:
        """Tell nodes that wait for a job; our own without a detour."""
        state = self.context.lanes[lane]
        for name in names:
            if name == state.node.name:
                fields = {"t": kind.encode(), "i": job.encode(), "o": outcome}
                self.waiters.on_signal(fields)
                continue
            signal = ("XADD", state.lane.names.signal(name), "NOMKSTREAM")
            bounds = ("MAXLEN", "~", _SIGNALS_MAX, "*")
            fields_of: tuple[Word, ...] = ("t", kind, "i", job)
            if len(outcome) <= INLINE_BYTES_MAX:
                fields_of = (*fields_of, "o", outcome)
            again = partial(self._signal_when_full, state, name, fields_of)
            try:
                self.context.pipeline.send((*signal, *bounds, *fields_of), again)
            except PoolError:
                return  # they ask again

    def _tell_wait(self, lane: int, owner: str, wait: WaitsFor) -> None:
        """Have the node of a worker hear who waits for its job; ours without a detour."""
        names = self.context.lanes[lane].lane.names
        if names.signal(owner) in self._routes[lane]:
            self.waiters.put(wait)
            return
        signal = ("XADD", names.signal(owner), "NOMKSTREAM", "MAXLEN", "~", _SIGNALS_MAX, "*")
        with suppress(PoolError):  # it is said again
            self.context.pipeline.send(
                (*signal, "t", "waits", "o", wait.origin, "v", wait.via, "j", wait.job),
                lambda _: None,
            )

    def _signal_when_full(
        self, state: LaneState, name: str, fields: Sequence[Word], reply: Reply
    ) -> None:
        """Send a signal that was refused once more, in a script: those free before they write."""
        if isinstance(reply, StorageFull):
            with suppress(PoolError):
                self.context.pipeline.send(state.lane.signal(name, fields), lambda _: None)

    def _on_workers_changed(self, news: KeyChange | Resync) -> None:
        self._on_workers()
        if isinstance(news, Resync) or is_asked(news.key):
            self.heeding.look()
        if isinstance(news, Resync):
            self.membership.announcer.write_soon()  # it may have lost our entries

    def _on_workers(self) -> None:
        """The `workers` map changed."""
        self.context.roster.update(self.replica.items)
        self._tell_workers(MembershipChanged(self.replica.revision))
        stamp = self._shutdown()
        if stamp > self._shutdown_seen:  # else it came back with old data
            self._shutdown_seen, self.is_shut_down = stamp, True
            self._on_shutdown()

    def _shutdown(self) -> int:
        """When the pool was shut down last, by the server's clock; 0: never."""
        text = self.replica.items.get(SHUTDOWN_KEY)
        return number_or(0, text) if isinstance(text, bytes) else 0

    async def shut_down(self) -> None:
        """Have every node that is open now drain."""
        now_ms: int = await self.context.pipeline.at(self.context.control.config).execute("TIME")
        stamp = max(now_ms, self._shutdown_seen + 1)
        await self.replica.write([Set(SHUTDOWN_KEY, b"%d" % stamp)], repeatable=True)

    def _announce(self) -> None:
        """What our workers are has changed."""
        if self.membership.state == "running":  # else it is written when that begins again
            self.membership.announcer.write_soon()

    def _drain_worker(self, worker: Worker) -> None:
        if not worker.is_draining:
            with suppress(NotRunning):  # it ends by something worse
                self._begin_giving_up(worker, self.context.settings.grace_s)

    def _on_down(self) -> None:
        """A part is down, or is not any more: a worker takes no keys meanwhile."""
        self._renew()
        self._keepalive.renew_now()

    def _renew(self) -> None:
        self._keepalive.renew(self.membership.identities(), self.membership.handlers())

    def _on_interrupt(self, error: KeyboardInterrupt) -> None:
        """Have the node drain and leave, and raise this at its end; from here on nothing starts."""
        for worker in self.membership.workers.values():
            worker.is_draining = True
        self._end_by(error)

    def _on_lane_doubted(self, lane: int) -> None:
        """A call was answered that a lane's data are not there; it may be one of before."""
        self.membership.tell_latest(("lost", lane), LaneDoubted(lane))

    def _on_pool_lost(self) -> None:
        """Likewise of the pool's: `config`, maps."""
        self.membership.tell_latest("lost", PoolLost())

    def _on_reopened(self) -> None:
        """The control keys were gone: follow what is there now."""
        self.maps.follower.rejoin(self.context.generation)
