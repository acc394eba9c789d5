"""A node: what a service embeds.  Assembly and the calls that users make; the work is the actors'.

open    link, found the pool, workers map, join the lanes, listen, join the workers
close   workers out of `open`; services handed over, finite jobs end within the grace or are
        released; workers leave, node leaves; keep-alive stops last
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, ParamSpec, TypeVar, cast, overload

import anyio
import anyio.to_thread
import attrs
from anyio.abc import TaskGroup

from pool.actors.context import Context, LaneState
from pool.actors.dispatcher import Accepted, Dispatcher, Waiting
from pool.actors.follower import Follower
from pool.actors.handlers import Handler, Handlers
from pool.actors.keepalive import KeepAlive, LaneHandlers
from pool.actors.listener import Fields, Listener
from pool.actors.membership import (
    SHUTDOWN_KEY,
    IdentityGone,
    Membership,
    PoolLost,
    WorkerInfo,
    found,
)
from pool.actors.observe import Event, NodeJoined, NodeLeft, Observer, log_observer
from pool.actors.reaper import LeaseEnds, Reaper, Suspects
from pool.actors.ref import JobRef, Status, status_of
from pool.actors.replica import Replica
from pool.actors.requests import Requests
from pool.actors.supervisor import Supervisor
from pool.actors.sweeper import Deadline, Sweeper
from pool.actors.worker import (
    Drain,
    Granted,
    LeaseBack,
    LeaseHard,
    LeaseSoft,
    MembershipChanged,
    Signalled,
    Ticked,
    Worker,
)
from pool.errors import (
    ConfigError,
    InvalidOption,
    NoSuchJob,
    NotRunning,
    PoolError,
    StoreLost,
    UnknownHandler,
)
from pool.model.codec import check_size, encode_call, encode_value
from pool.model.job import Outcome, Record, Start
from pool.model.names import Control, check_handler, check_key, check_label, check_pool
from pool.model.placement import WEIGHT_MAX, WEIGHT_MIN, Candidates
from pool.model.rmap import Change, CompareAndDelete, Resync, Set
from pool.settings import Settings
from pool.store.lane import Admission, Renewal, looked
from pool.store.link import Link
from pool.store.rmap import StoredMap
from pool.store.seam import Seam, Threads
from pool.store.server import EmbeddedServer, find_server
from pool.store.url import Url

P = ParamSpec("P")
R = TypeVar("R")

CAPACITY_MAX: Final = 10_000
DELAY_MAX_S: Final = 365 * 86_400.0
MANY_MAX: Final = 100_000  # jobs in one `dispatch_many`
_CLOSE_BUDGET_S: Final = 5.0  # for each thread and actor, after the grace
State = Literal["new", "opening", "open", "draining", "drained", "closing", "closed"]


@attrs.frozen
class Call:
    """One job of a `dispatch_many`: its key, and its arguments."""

    key: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def __init__(self, key: str, /, *args: Any, **kwargs: Any) -> None:
        self.__attrs_init__(key, args, kwargs)  # type: ignore[attr-defined]


@attrs.frozen(kw_only=True)
class DispatchOptions:
    """How a dispatch is done; see `Node.options`."""

    delay_s: float = 0.0
    if_exists: Literal["reject", "attach"] = "reject"
    allow_unknown: bool = False

    def __attrs_post_init__(self) -> None:
        delay_s = self.delay_s
        is_number = isinstance(delay_s, (int, float)) and not isinstance(delay_s, bool)
        if not is_number or not 0 <= delay_s <= DELAY_MAX_S:  # refuses NaN too
            raise InvalidOption(
                option="delay_s", value=repr(delay_s), problem=f"not from 0 to {DELAY_MAX_S} s"
            )
        if self.if_exists not in ("reject", "attach"):
            raise InvalidOption(
                option="if_exists", value=repr(self.if_exists), problem="not 'reject' or 'attach'"
            )


class _Dispatching:
    """The dispatching calls, with options already chosen."""

    _node: Node
    _options: DispatchOptions

    @overload
    async def dispatch(
        self, handler: Handler[P, R], key: str, /, *args: P.args, **kwargs: P.kwargs
    ) -> JobRef[R]: ...
    @overload
    async def dispatch(
        self, handler: str, key: str, /, *args: Any, **kwargs: Any
    ) -> JobRef[Any]: ...
    async def dispatch(
        self, handler: Handler[Any, Any] | str, key: str, /, *args: Any, **kwargs: Any
    ) -> JobRef[Any]:
        """Give the job `key` to the one worker that owns it; return once it is accepted.

        Accepted means recorded in Redis: the job will be started, once at a time (G-02), and ends
        done, parked or cancelled (G-01).  It may not have started yet; `started()` and `result()`
        of the returned reference wait for that.  Cancelling this call does not take the job back;
        use `stop()`.

        Args:
            handler: What `Handlers.job()` or `Handlers.service()` made of a function, or a name.
            key: What the job is about, 1 to 512 bytes in UTF-8.  Same key, same worker, until the
                set of workers changes.
            *args: The function's own arguments, at most `Settings.payload_bytes_max` encoded.
            **kwargs: Likewise.

        Raises:
            JobExists: The key has a live job; `owner` says where.  See `options(if_exists=...)`.
            PoolFull: `Settings.queued_jobs_max` jobs wait already.  Retry later.
            UnknownHandler: No node ever registered the name; see `options(allow_unknown=...)`.
            InvalidKey, PayloadEncodingError, PayloadTooLarge: Nothing was sent.
            StorageFull: Redis is at its memory limit; nothing was written.
            StoreUnavailable: Redis cannot be reached; `maybe_done` says if the job may exist.
            StoreLost: Redis came back without the pool's data; dispatch again.
            NotRunning: The node is not open.
        """
        node = self._node
        node.check_open()
        [pending] = node.dispatcher.admit(
            [node.admission(handler, key, args, kwargs, self._options)]
        )
        answer = await pending.waiter.wait()
        if isinstance(answer, Accepted):
            return node.ref(answer)
        raise await node.explained(answer)

    @overload
    async def dispatch_many(
        self, handler: Handler[..., R], calls: Iterable[Call | str], /
    ) -> list[JobRef[R] | PoolError]: ...
    @overload
    async def dispatch_many(
        self, handler: str, calls: Iterable[Call | str], /
    ) -> list[JobRef[Any] | PoolError]: ...
    async def dispatch_many(
        self, handler: Handler[..., Any] | str, calls: Iterable[Call | str], /
    ) -> list[JobRef[Any] | PoolError]:
        """Dispatch many jobs in few round trips; return a reference or an error for each, in order.

        Args:
            handler: As for `dispatch()`.
            calls: `Call(key, *args, **kwargs)` each, or just a key; at most 100,000.

        Raises:
            InvalidOption: Too many calls.
            NotRunning: The node is not open.
        """
        node = self._node
        node.check_open()
        items: list[Admission | PoolError] = []
        for call in calls:
            if isinstance(call, str):
                call = Call(call)
            try:
                items.append(
                    node.admission(handler, call.key, call.args, dict(call.kwargs), self._options)
                )
            except PoolError as error:
                items.append(error)
            if len(items) > MANY_MAX:
                raise InvalidOption(
                    option="calls", value=f"over {MANY_MAX}", problem=f"at most {MANY_MAX}"
                )
        pending = iter(node.dispatcher.admit([i for i in items if isinstance(i, Admission)]))
        answers: list[JobRef[Any] | PoolError] = []
        for item in items:
            answer = item if isinstance(item, PoolError) else await next(pending).waiter.wait()
            answers.append(node.ref(answer) if isinstance(answer, Accepted) else answer)
        return answers


class Dispatching(_Dispatching):
    """A node's dispatching calls with other options; made by `Node.options`."""

    def __init__(self, node: Node, options: DispatchOptions) -> None:
        self._node = node
        self._options = options


class Node(_Dispatching):
    """One member of a pool, embedded in a service: `async with Node(...) as node`.

    Without handlers it is a client: it dispatches and waits, and recovers the jobs of dead workers
    like everybody else, but runs none.
    """

    def __init__(
        self,
        pool: str,
        url: str,
        *,
        handlers: Handlers | None = None,
        settings: Settings | None = None,
        capacity: int = 100,
        weight: float = 1.0,
        label: str = "",
        version: str = "",
        observers: Sequence[Observer] = (log_observer,),
        seam: Seam | None = None,
    ) -> None:
        """Describe the node; nothing happens before it is entered.

        Args:
            pool: The pool's name, `[a-z0-9_-]{1,64}`.
            url: Where its Redis is, such as `redis://localhost:6379` or `embedded://`.
            handlers: What its worker runs; None makes it a client.
            settings: How it behaves.
            capacity: How many jobs its worker runs at once, 1 to 10,000.
            weight: Its worker's share of the keys, relative to others, 0.001 to 1000.
            label: A human name of its worker that outlives restarts: the worker that has it next
                gets the same keys.
            version: Shown to people; of the service, not of this library.
            observers: Called with every event, plainly; the default writes log lines.
            seam: The world outside; for simulations.

        Raises:
            ConfigError: A name, the address or a number cannot be used.
        """
        check_pool(pool)
        self.pool = pool
        self.settings = settings or Settings()
        self._url_text, self._given_url = url, Url.parse(url)
        self._options = DispatchOptions()
        self._node = self
        self._handlers = handlers
        self._worker_args = (capacity, weight, label, version)
        _check_worker(capacity, weight, label, version)
        self._observers = tuple(observers)
        self._seam: Seam = seam or Threads()
        self._state: State = "new"
        self._server: EmbeddedServer | None = None
        self._drained = anyio.Event()
        self._routes: list[dict[str, Callable[[list[tuple[str, Fields]]], bool]]] = []
        self._shutdown_seen: bytes | None = None
        self._suspects_s = 0.0

    # --- what it is ---------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """This node's id, new with every start."""
        return self._context.node_id

    @property
    def url(self) -> str:
        """Where other processes find the store; for `embedded://` the socket of the server.

        Contains the password if there is one: do not log it.
        """
        return self._server.url if self._server is not None else self._url_text

    @property
    def state(self) -> State:
        """new, opening, open, draining, drained, closing or closed."""
        return self._state

    @property
    def workers(self) -> tuple[WorkerInfo, ...]:
        """The workers of the fleet, from the local copy of the `workers` map."""
        return _infos(self._replica.items)

    def options(
        self,
        *,
        delay_s: float = 0.0,
        if_exists: Literal["reject", "attach"] = "reject",
        allow_unknown: bool = False,
    ) -> Dispatching:
        """Return this node's dispatching calls with other options.

        Args:
            delay_s: Start the job no earlier than this, in seconds, at most 365 days.
            if_exists: For a key that has a live job: `reject` raises `JobExists`, `attach` returns
                a reference to that job (its handler may be another one).
            allow_unknown: Accept a handler name that no node has registered yet.

        Raises:
            InvalidOption: A value is out of bounds.
        """
        return Dispatching(
            self,
            DispatchOptions(delay_s=delay_s, if_exists=if_exists, allow_unknown=allow_unknown),
        )

    # --- jobs ---------------------------------------------------------------------------------

    async def notify(self, key: str, payload: Any) -> None:
        """Send a message to the live job of a key; return once it is accepted.

        Accepted means that it is handled at least once, after those accepted before it (G-07),
        unless the job ends first.

        Raises:
            NoSuchJob: The key has no live job.
            InboxFull: `Settings.messages_max` messages are unhandled.
            InvalidKey, PayloadEncodingError, PayloadTooLarge: Nothing was sent.
            StorageFull, StoreUnavailable, StoreLost, NotRunning: As for `dispatch()`.
        """
        self.check_open()
        check_key(key)
        encoded = encode_value(payload)
        check_size("message", encoded, self.settings.message_bytes_max)
        await self._requests.notify(key, encoded)

    async def stop(self, key: str, cause: str = "stopped", timeout_s: float | None = None) -> None:
        """Stop the live job of a key; return when it has really ended.

        Raises:
            NoSuchJob: The key has no live job.
            NotStopped: Its handler has not ended within `timeout_s`.
            InvalidKey, StoreUnavailable, StoreLost, NotRunning: As for `dispatch()`.
        """
        self.check_open()
        check_key(key)
        job_id = await self._requests.stop(key, "", cause)
        await JobRef[Any](key, job_id, "", self).stop(cause, timeout_s)

    async def status(self, key: str) -> Status:
        """Return how the live job of a key is now.

        Raises:
            NoSuchJob: The key has no live job.
            InvalidKey, StoreUnavailable, StoreLost, NotRunning: As for `dispatch()`.
        """
        check_key(key)
        found_now = await self.look(key, "")
        if found_now is None:
            raise NoSuchJob(key=key)
        return status_of(key, "", found_now)

    # --- workers ------------------------------------------------------------------------------

    async def add_worker(
        self,
        handlers: Handlers,
        *,
        capacity: int = 100,
        weight: float = 1.0,
        label: str = "",
        version: str = "",
    ) -> Worker:
        """Add a worker to this node; return once the fleet knows it.

        It belongs to the node, not to the scope that added it.

        Raises:
            ConfigError: An argument cannot be used.
            StorageFull, StoreUnavailable, StoreLost, NotRunning: As for `dispatch()`.
        """
        self.check_open()
        _check_worker(capacity, weight, label, version)
        return await self._add_worker(handlers, capacity, weight, label, version)

    async def remove_worker(self, worker: Worker, *, grace_s: float | None = None) -> None:
        """Drain a worker and take it away; return when it has left.

        Its services are handed over at once, its finite jobs may end within `grace_s` (default:
        `Settings.grace_s`) and are released then.  Removing it twice is fine.
        """
        if worker.id in self._membership.workers:
            await self._remove(worker, self.settings.grace_s if grace_s is None else grace_s)

    async def drain(self, *, grace_s: float | None = None) -> None:
        """Take no more jobs, and give up those that run: as when leaving, but stay as a client."""
        if self._state != "open":
            return
        self._state = "draining"
        grace_s = self.settings.grace_s if grace_s is None else grace_s
        try:
            async with anyio.create_task_group() as tasks:
                for worker in list(self._membership.workers.values()):
                    tasks.start_soon(self._remove, worker, grace_s)
        finally:
            if self._state == "draining":
                self._state = "drained"
            self._drained.set()

    async def wait_closed(self) -> None:
        """Return once this node has drained, for whatever reason."""
        await self._drained.wait()

    async def shutdown_pool(self) -> None:
        """Have every node of the pool drain, this one included; return when this one has.

        Open jobs stay in the store, for the next start.
        """
        self.check_open()
        stop_id = self._context.ids.next()
        await self._replica.write([Set(SHUTDOWN_KEY, stop_id.encode())], repeatable=True)
        await self.drain()

    # --- start and stop -----------------------------------------------------------------------

    async def __aenter__(self) -> Node:
        if self._state != "new":
            raise NotRunning(state=self._state)
        self._state = "opening"
        self._tasks: TaskGroup = anyio.create_task_group()
        await self._tasks.__aenter__()
        try:
            await self._open()
        except BaseException:
            self._state = "closing"
            self._tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await self._close_threads()
            await self._tasks.__aexit__(None, None, None)
            self._state = "closed"
            raise
        self._state = "open"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        is_crashed = self._tasks.cancel_scope.cancel_called
        with anyio.CancelScope(shield=True):
            abandoned = 0
            if not is_crashed:
                abandoned = await self._leave()
            self._state = "closing"
            self._tasks.cancel_scope.cancel()
            await self._close_threads()
        self._state = "closed"
        self._drained.set()
        self._emit(NodeLeft(pool=self.pool, node=self.id, abandoned=abandoned))
        is_ours = isinstance(error, anyio.get_cancelled_exc_class())
        try:
            if is_ours:
                await self._tasks.__aexit__(kind, error, traceback)
            else:
                await self._tasks.__aexit__(None, None, None)
        except BaseExceptionGroup as group:
            if len(group.exceptions) == 1:  # the actor that ended the node
                raise group.exceptions[0] from None
            raise

    async def _open(self) -> None:
        settings, seam = self.settings, self._seam
        url = self._given_url
        if url.kind == "embedded":
            self._server = await anyio.to_thread.run_sync(_start_server, url)
            url = Url.parse(self._server.url)
        link = await Link.open(seam, url, op_timeout_s=settings.op_timeout_s)
        self._link = link
        self._context = context = Context(
            pool=self.pool,
            url=url,
            settings=settings,
            seam=seam,
            loop=seam.loop(),
            link=link,
            control=Control(self.pool),
            ids=seam.ids,
            node_id=seam.ids.next("n"),
            incarnation="",
            emit=self._emit,
            on_due=lambda lane, in_s: self._sweeper.tell(Deadline(lane, in_s)),
            on_data_lost=self._on_data_lost,
        )
        made = await found(context)
        context.incarnation = made.incarnation
        self._assemble(context)
        self._membership.make_lanes(made)
        self._follower.start()
        for actor in (self._replica, self._membership, self._dispatcher, self._listener):
            await self._supervisor.start(actor)
        await self._replica.wait_for(0)
        self._shutdown_seen = self._replica.items.get(SHUTDOWN_KEY)
        await self._membership.join_node()
        for actor in (self._keepalive, self._reaper, self._sweeper):
            await self._supervisor.start(actor)
        if self._handlers is not None and len(self._handlers):
            await self._add_worker(self._handlers, *self._worker_args)
        server = link.server
        name = f"{server.name} {server.version}" if server else ""
        self._emit(NodeJoined(pool=self.pool, node=context.node_id, server=name))

    def _assemble(self, context: Context) -> None:
        self._supervisor = Supervisor(
            tasks=self._tasks,
            emit=self._emit,
            dice=context.seam.dice,
            restarts_max=self.settings.restarts_max,
        )
        self._follower = Follower(
            seam=context.seam,
            url=context.url,
            control=context.control,
            incarnation=context.incarnation,
            settings=self.settings,
            emit=cast(Callable[[object], object], self._emit),
            on_end=self._on_reader_end,
        )
        self._replica = Replica(
            name="workers",
            stored=StoredMap(context.control, "workers"),
            link=context.link,
            follower=self._follower,
            emit=cast(Callable[[object], object], self._emit),
            on_lost=lambda _: self._on_data_lost(),
        )
        self._replica.watch(self._on_workers)
        self._dispatcher = Dispatcher(name="dispatcher", context=context)
        self._listener = Listener(name="listener", context=context, on_entries=self._route)
        self._membership = Membership(
            name="membership",
            context=context,
            replica=self._replica,
            on_changed=self._on_identities,
            on_refounded=self._on_refounded,
        )
        self._keepalive = KeepAlive(
            name="keepalive",
            context=context,
            on=LaneHandlers(
                on_renewed=self._on_renewed,
                on_soft=lambda state: self._tell_workers(LeaseSoft(state.number)),
                on_hard=self._on_hard,
                on_resume=lambda state: self._tell_workers(LeaseBack(state.number)),
                on_gone=self._on_gone,
            ),
        )
        self._reaper = Reaper(
            name="reaper",
            context=context,
            tell_waiters=self._tell_waiters,
            on_reaped=self._on_reaped,
        )
        self._sweeper = Sweeper(
            name="sweeper",
            context=context,
            tell_waiters=self._tell_waiters,
            on_suspect=lambda lane, name: self._reaper.tell(Suspects(lane, (name,))),
        )
        self._requests = Requests(context=context, tell_waiters=self._tell_waiters)

    async def _add_worker(
        self, handlers: Handlers, capacity: int, weight: float, label: str, version: str
    ) -> Worker:
        context = self._context
        worker = Worker(
            name=f"worker-{context.node_id}",
            context=context,
            handlers=handlers,
            id=context.ids.next("w"),
            capacity=capacity,
            weight=weight,
            label=label,
            version=version,
            on_gone=lambda lane, name: self._membership.tell(IdentityGone(lane, name)),
            tell_waiters=self._tell_waiters,
        )
        worker.name = worker.id
        worker.take_lanes([1] * len(context.lanes))
        await self._supervisor.start(worker)
        try:
            await self._membership.join_worker(worker)
        except BaseException:
            worker.stop()
            raise
        return worker

    async def _remove(self, worker: Worker, grace_s: float) -> int:
        """Drain a worker and have it leave; returns how many keys were left to the reapers."""
        idle = anyio.Event()
        worker.on_idle = idle.set
        worker.is_draining = True
        budget_s = grace_s + self.settings.stop_budget_s + 2 * self.settings.op_timeout_s
        owns = 0
        with anyio.move_on_after(budget_s + self.settings.op_timeout_s, shield=True):
            try:
                await self._membership.close_worker(worker)
                worker.tell(Drain(grace_s))
                with anyio.move_on_after(budget_s):
                    while not worker.is_idle:
                        await idle.wait()
                        idle = anyio.Event()
                        worker.on_idle = idle.set
                owns = await self._membership.leave_worker(worker)
            except PoolError:
                owns = len(
                    worker.runs
                )  # the store is away: the reapers of others take it from here
        self._membership.workers.pop(worker.id, None)
        self._on_identities()
        await self._supervisor.stop(worker, _CLOSE_BUDGET_S)
        return owns

    async def _leave(self) -> int:
        """Give up everything in order, within the grace; keep-alive goes on until the end."""
        owns = 0

        async def remove(worker: Worker) -> None:
            nonlocal owns
            owns += await self._remove(worker, self.settings.grace_s)

        self._state = "draining"
        async with anyio.create_task_group() as tasks:
            for worker in list(self._membership.workers.values()):
                tasks.start_soon(remove, worker)
        for actor in (self._sweeper, self._reaper):
            await self._supervisor.stop(actor, _CLOSE_BUDGET_S)
        try:
            with anyio.move_on_after(self.settings.op_timeout_s):
                await self._membership.leave_node()
        except PoolError:
            owns += 0  # its lease ends by itself
        for actor in (self._dispatcher, self._membership, self._listener, self._replica):
            await self._supervisor.stop(actor, _CLOSE_BUDGET_S)
        await self._supervisor.stop(self._keepalive, _CLOSE_BUDGET_S)
        return owns

    async def _close_threads(self) -> None:
        if hasattr(self, "_listener"):
            await self._listener.aclose(_CLOSE_BUDGET_S)
            await self._follower.aclose(_CLOSE_BUDGET_S)
            await self._keepalive.aclose(_CLOSE_BUDGET_S)
        if hasattr(self, "_link"):
            await self._link.aclose(_CLOSE_BUDGET_S)
        if self._server is not None:
            await anyio.to_thread.run_sync(self._server.stop)

    # --- between the actors -------------------------------------------------------------------

    def _emit(self, event: Event) -> None:
        for observer in self._observers:
            observer(event)

    def _tell_workers(self, message: Any) -> None:
        for worker in self._membership.workers.values():
            worker.tell(message)

    def _on_renewed(
        self,
        state: LaneState,
        told: Renewal,
        asked_s: float,
        counts: dict[str, int],
        was_away: bool,
    ) -> None:
        now_s = self._seam.clock()
        if told.lease_end_ms is not None:
            self._reaper.tell(LeaseEnds(state.number, state.until_s(told.lease_end_ms, now_s)))
        for deadline_ms in (told.pending_ms, told.due_ms):
            if deadline_ms is not None:
                in_s = state.until_s(deadline_ms, now_s)
                self._sweeper.tell(Deadline(state.number, in_s))
        for worker in self._membership.workers.values():
            count = counts.get(worker.target(state.number).name, -1)
            if count >= 0:
                worker.tell(Ticked(state.number, asked_s, count, was_away))
        if was_away:
            self._dispatcher.look_again()
        self._look_for_orphans(state, now_s)

    def _look_for_orphans(self, state: LaneState, now_s: float) -> None:
        """Now and then, have the announced identities checked for a lease (G-05)."""
        if now_s - self._suspects_s < 2 * self.settings.lease_ttl_s:
            return
        self._suspects_s = now_s + self._seam.dice.uniform(0, self.settings.lease_ttl_s)
        known = self._context.candidates.workers.values()
        names = [c.name_in(state.number) for c in known if state.number < len(c.incarnations)]
        if names:
            self._reaper.tell(Suspects(state.number, names))

    def _on_hard(self, state: LaneState) -> bool:
        self._tell_workers(LeaseHard(state.number))
        return any(w.overrunning(state.number) for w in self._membership.workers.values())

    def _on_gone(self, state: LaneState, names: list[str]) -> None:
        for name in names:
            self._membership.tell(IdentityGone(state.number, name))

    def _on_reaped(self, lane: int, name: str) -> None:
        """Nothing is left of an identity: take its entry out of `workers`, if it is still that."""
        worker_id = name.rpartition(".")[0].encode()
        entry = self._replica.items.get(worker_id)
        info = WorkerInfo.parse(entry) if entry is not None else None
        if info is not None and name == info.candidate.name_in(lane):
            self._tasks.start_soon(self._forget_entry, worker_id, entry)

    async def _forget_entry(self, worker_id: bytes, entry: bytes) -> None:
        try:
            await self._replica.write([CompareAndDelete(worker_id, entry)], repeatable=True)
        except PoolError:
            return  # whoever looks for orphans next finds it again

    def _on_identities(self) -> None:
        """Identities came or went: renew those with a lease, read the streams of all.

        Reading begins before joining: the entry that joining writes wakes the blocked read, which
        must know the new streams by then.
        """
        self._keepalive.renew(self._membership.identities())
        self._routes = [{} for _ in self._context.lanes]
        for state in self._context.lanes:
            number, names, routes = state.number, state.lane.names, self._routes[state.number]
            for worker in self._membership.workers.values():
                name = worker.target(number).name
                routes[names.stream(name)] = partial(self._route_starts, number, worker)
                routes[names.signal(name)] = partial(self._route_signals, number, worker)
            routes[names.signal(state.node.name)] = self._route_replies
            self._listener.follow(state, list(routes))

    def _route(self, lane: int, stream: str, entries: list[tuple[str, Fields]]) -> bool:
        route = self._routes[lane].get(stream) if lane < len(self._routes) else None
        return route(entries) if route is not None else False

    def _route_starts(self, lane: int, worker: Worker, entries: list[tuple[str, Fields]]) -> bool:
        starts = [Start.parse(entry_id, fields) for entry_id, fields in entries]
        worker.tell(Granted(lane, [start for start in starts if start is not None]))
        return False

    def _route_signals(self, lane: int, worker: Worker, entries: list[tuple[str, Fields]]) -> bool:
        for _, fields in entries:
            worker.tell(Signalled(lane, fields))
        return True

    def _route_replies(self, entries: list[tuple[str, Fields]]) -> bool:
        for _, fields in entries:
            self._dispatcher.on_signal(fields)
        return True

    def _tell_waiters(
        self, lane: int, names: Sequence[str], kind: str, job_id: str, outcome: bytes
    ) -> None:
        """Tell nodes that wait for a job; our own without a detour."""
        state = self._context.lanes[lane]
        for name in names:
            if name == state.node.name:
                fields = {"t": kind.encode(), "i": job_id.encode(), "o": outcome}
                self._dispatcher.on_signal(fields)
                continue
            words = ["XADD", state.lane.names.signal(name), "NOMKSTREAM", "MAXLEN", "~", 10_000]
            words += ["*", "t", kind, "i", job_id]
            command: tuple[Any, ...] = tuple(words)
            if len(outcome) <= 1024:
                command += ("o", outcome)
            try:
                self._link.send(command, lambda _: None)
            except PoolError:
                return  # they ask again

    def _on_workers(self, change: Change | Resync) -> None:
        """The `workers` map changed."""
        infos = _infos(self._replica.items)
        self._context.candidates = Candidates([info.candidate for info in infos])
        shutdown = self._replica.items.get(SHUTDOWN_KEY)
        is_told = shutdown is not None and shutdown != self._shutdown_seen
        if self._state in ("open", "draining"):
            self._tell_workers(MembershipChanged(self._replica.revision))
        if self._state == "open" and is_told:
            self._tasks.start_soon(self.drain)
        if self._state == "open":
            self._shutdown_seen = shutdown

    def _on_data_lost(self) -> None:
        if self._state in ("open", "draining", "drained"):
            self._membership.tell(PoolLost(self._context.incarnation))
            self._dispatcher.lose()

    def _on_reader_end(self, error: BaseException | None) -> None:
        """The reader of map logs ended: by a bug of ours, and then the node ends with the cause."""
        if error is not None and self._state != "closing":
            self._tasks.start_soon(_raise, error)

    def _on_refounded(self) -> None:
        self._follower.rejoin(self._context.incarnation)

    # --- for the dispatching calls ------------------------------------------------------------

    @property
    def dispatcher(self) -> Dispatcher:
        """The actor that sends admissions."""
        return self._dispatcher

    def check_open(self) -> None:
        """Refuse a call when the node is not open.

        Raises:
            NotRunning: It is not.
        """
        if self._state not in ("open", "draining", "drained"):
            raise NotRunning(state=self._state)

    def admission(
        self,
        handler: Handler[Any, Any] | str,
        key: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: DispatchOptions,
    ) -> Admission:
        """Check one dispatch and make it ready to be sent; raises what `dispatch()` documents."""
        check_key(key)
        if isinstance(handler, str):
            check_handler(handler)
            mine = self._handlers.get(handler) if self._handlers is not None else None
            name, kind = handler, mine.options.kind if mine is not None else None
        elif isinstance(handler, Handler):
            mine, name, kind = handler, handler.name, handler.options.kind
        else:
            raise InvalidOption(
                option="handler",
                value=type(handler).__name__,
                problem="neither a name nor what Handlers.job() or .service() returned",
            )
        payload = encode_call(args, kwargs)
        check_size("payload", payload, self.settings.payload_bytes_max)
        return Admission(
            key=key,
            id=self._context.ids.next(),
            handler=name,
            kind=kind,
            payload=payload,
            delay_s=options.delay_s,
            attach=options.if_exists == "attach",
            allow_unknown=options.allow_unknown or mine is not None,
        )

    def ref(self, accepted: Accepted) -> JobRef[Any]:
        """Return the reference to an accepted job."""
        return JobRef(accepted.key, accepted.job_id, accepted.handler, self)

    async def explained(self, error: PoolError) -> PoolError:
        """Add what only another look tells: names like the one that nobody knows."""
        if isinstance(error, UnknownHandler):
            names = set()
            for state in self._context.lanes[:1]:
                found_names = await self._link.execute("HKEYS", state.lane.names.handlers)
                names.update(name.decode() for name in found_names)
            close = difflib.get_close_matches(error.handler, sorted(names))
            return UnknownHandler(handler=error.handler, close_matches=tuple(close))
        return error

    async def wait(self, waiting: Waiting, *, for_end: bool) -> None:
        """Wait for a job; see `JobRef`."""
        self.check_open()
        await self._dispatcher.wait(waiting, for_end=for_end)

    async def look(self, key: str, job_id: str) -> Record | Outcome | None:
        """Fetch a job's record or outcome."""
        self.check_open()
        state = self._context.lane_of(key)
        call = state.lane.look([(key, job_id)])
        try:
            [text] = await self._link.call(call.script, call.keys, call.args, repeatable=True)
        except StoreLost:
            self._on_data_lost()
            raise StoreLost(pool=self.pool) from None
        return looked(text)

    async def request_stop(self, key: str, job_id: str, cause: str) -> str:
        """Ask for a stop; see `JobRef.stop`."""
        self.check_open()
        return await self._requests.stop(key, job_id, cause)


def _infos(items: Mapping[bytes, bytes]) -> tuple[WorkerInfo, ...]:
    infos = (WorkerInfo.parse(text) for key, text in items.items() if key != SHUTDOWN_KEY)
    return tuple(info for info in infos if info is not None)


def _check_worker(capacity: int, weight: float, label: str, version: str) -> None:
    if not isinstance(capacity, int) or isinstance(capacity, bool):
        raise ConfigError(setting="capacity", problem=f"{capacity!r} is not a whole number")
    if not 1 <= capacity <= CAPACITY_MAX:
        raise ConfigError(setting="capacity", problem=f"{capacity} is not from 1 to {CAPACITY_MAX}")
    if not isinstance(weight, (int, float)) or not WEIGHT_MIN <= weight <= WEIGHT_MAX:
        raise ConfigError(
            setting="weight", problem=f"{weight!r} is not from {WEIGHT_MIN} to {WEIGHT_MAX}"
        )
    for name, text in (("label", label), ("version", version)):
        if text:
            try:
                check_label(text)
            except ConfigError as error:
                raise ConfigError(setting=name, problem=error.problem) from None


async def _raise(error: BaseException) -> None:
    raise error


def _start_server(url: Url) -> EmbeddedServer:
    directory = Path(url.path) if url.path else None
    return EmbeddedServer.start(find_server("path"), directory=directory)
