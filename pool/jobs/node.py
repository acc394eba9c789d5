"""A node: what a service embeds.  Assembly and the calls that users make; the work is the actors'.

open    pipeline, the pool's `config`, workers map, join the lanes, listen, join the workers
close   workers out of `open`; services handed over, finite jobs end within the grace or are
        released; workers leave, node leaves; keep-alive stops last
"""

from __future__ import annotations

import math
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Final, Literal, Self, overload

import anyio
import anyio.lowlevel
import anyio.to_thread
import attrs

from pool import checks
from pool.core.codec import check_size, encode_message
from pool.core.headroom import check_headroom
from pool.core.lifecycle import State as JobState
from pool.core.options import IfExists
from pool.core.placement import CAPACITY_MAX, WEIGHT_MAX, WEIGHT_MIN
from pool.core.plans import plan_and_version
from pool.core.record import Record
from pool.errors import (
    ConfigError,
    NotRunning,
    PoolError,
    StoreUnavailable,
    again,
)
from pool.events import Event, NodeJoined, NodeLeft, Observer, PasswordInClear, PolicyUnknown
from pool.jobs.client.batches import KEEP_S, OPEN_S, Batch, Batches, batch_options
from pool.jobs.client.dispatch import Dispatching
from pool.jobs.client.job_client import JobClient
from pool.jobs.client.journal import Journal, JournalFilter, start_of
from pool.jobs.client.listing import PAGE, Gaps, JobFilter, JobPage, Listing
from pool.jobs.client.options import WINDOW_S, DispatchOptions, known_id
from pool.jobs.client.parked import DeadLetters
from pool.jobs.client.pausing import Operating, Operator
from pool.jobs.client.plans import PlanRef, compared, keep_plan, plans, see_to
from pool.jobs.client.ref import JobRef, Status, status_of, stopped
from pool.jobs.client.schedules import Schedules, Ticker, make_ticker, of_code
from pool.jobs.client.stopping import StopMany, StopReport
from pool.jobs.context import Context
from pool.jobs.followers import Follower, Packer, count_of, outcome_by, several
from pool.jobs.handlers import QUEUE_MAX, Handlers
from pool.jobs.job import RUNNING, Job
from pool.jobs.meter import meter_of, told_of_jobs
from pool.jobs.noting import Noter
from pool.jobs.producing import Producer
from pool.jobs.roster import WorkerInfo
from pool.jobs.wiring import Wiring
from pool.maps.commands import MapLife
from pool.maps.map import ReplicatedMap
from pool.maps.replica import Replica
from pool.maps.watch import V
from pool.names import (
    Control,
    Names,
    check_batch,
    check_handler,
    check_key,
    check_label,
    check_pool,
)
from pool.redis.embedded.server import EmbeddedServer
from pool.redis.io.loops import door
from pool.redis.io.system import IO, LINEAGE, SystemIO
from pool.redis.pipeline import Pipeline
from pool.redis.url import Url
from pool.runtime.eviction import check_policies, check_policy
from pool.runtime.observers import JobListeners, check_observers, emit_to, log_observer
from pool.runtime.pool_config import check_ttl, open_pool
from pool.runtime.session import CLOSE_BUDGET_S, check_settings, serve
from pool.runtime.supervisor import Supervisor
from pool.runtime.task_scope import TaskScope
from pool.settings import Settings
from pool.streams.stream import Stream, make_stream

GRACE_MAX_S: Final = 86_400.0
OPEN_CALLS: Final = 8  # opening takes no longer than so many calls that each come to their deadline
State = Literal[
    "new", "opening", "open", "troubled", "draining", "drained", "closing", "closed", "forked"
]


class Node(Dispatching, Operating):
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
        _io: IO | None = None,  # of a simulation
        _is_operator: bool = False,  # it ends and moves jobs, also on a server that may evict them
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
            observers: Plain functions, called with every event; the default writes log lines.  On
                the event loop, but for `loop.hung`, which comes from the thread that saw it hang.
                `JobEvents(observer, rate)` is one that is told of ordinary jobs, too.

        Raises:
            ConfigError: A name, the address or a number cannot be used.
        """
        super().__init__(self._open_client, DispatchOptions())
        check_pool(pool)
        self.pool = pool
        self.settings: Settings = check_settings(settings)
        self._given_url = Url.parse(url)
        self._handlers = handlers if handlers is None else _handlers_of(handlers)
        self._worker_args = _worker_args(capacity, weight, label, version)
        self._observers = check_observers(observers)
        self._meter = meter_of(self._observers)
        self._io: IO = _io or SystemIO()
        self._is_operator = _is_operator
        self._client: JobClient  # since it was entered
        self._state: State = "new"
        self._server: EmbeddedServer | None = None
        self._pipeline: Pipeline | None = None
        self._wiring: Wiring | None = None
        self._noter: Noter | None = None
        self._drained: anyio.Event | None = None
        self._check_loop: Callable[[], object] = lambda: None  # until it is entered
        self._is_left = False  # or is being left
        self._forks = LINEAGE.forks

    # --- what it is ---------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """This node's id, new with every start."""
        return self._open_wiring.context.node_id

    @property
    def url(self) -> str:
        """Where other processes find the store; for `embedded://` the socket of the server.

        Contains the password if there is one: do not log it.
        """
        return self._server.url if self._server is not None else self._given_url.credentials.text

    @property
    def state(self) -> State:
        """new, opening, open, troubled, draining, drained, closing, closed or forked.

        `troubled` is open with a part that has crashed and does not run again yet, or at all: so
        stays one whose event loop has ended before it was left; `forked` is any node in a child of
        the process that made it.
        """
        if self._forks != LINEAGE.forks:
            return "forked"
        is_troubled = self._state == "open" and self._wiring is not None and self._wiring.down
        return "troubled" if is_troubled else self._state

    @property
    def workers(self) -> tuple[WorkerInfo, ...]:
        """The workers of the fleet, from the local copy of the `workers` map."""
        return self._open_wiring.context.roster.workers

    def options(
        self,
        *,
        delay_s: float = 0.0,
        if_exists: IfExists | None = None,
        queue_max: int = QUEUE_MAX,
        attach_any: bool = False,
        allow_unknown: bool = False,
        job_id: str | None = None,
        idempotency_key: str | None = None,
        window_s: float = WINDOW_S,
        retention_s: float | None = None,
        expires_s: float | None = None,
        start_timeout_s: float | None = None,
        then: Follower | Iterable[Follower] = (),
        otherwise: Follower | Iterable[Follower] = (),
    ) -> Dispatching:
        """Return this node's dispatching calls with other options.

        With `job_id` or `idempotency_key` a dispatch may be repeated: it answers the same job, and
        what became of it, while that lives or waits, while its dead letter is kept, and for the
        longer of `window_s` and its retention after its end.  If it was replayed, that job is the
        answer.  Both are scoped to the job's key.

        Args:
            delay_s: Start the job no earlier than this, in seconds, at most 365 days.
            if_exists: For a key that has a live job: `reject` raises `JobExists`.  `attach` returns
                a reference to that job, if it is of the same handler and arguments.  `queue` lets
                this one wait behind it, first come first run; behind a service: until it is
                stopped.  `replace` asks it to stop and runs this one when it has ended.  `coalesce`
                runs this one when it has ended, unless a newer one has come.  The last two take the
                place of whatever is queued: `JobSuperseded`.  None is as the handler was
                registered: `reject` by default.
            queue_max: How many may be queued behind the live job, 1 to 1000: then `QueueFull`.
            attach_any: Attach to a job of another handler or other arguments, too.
            allow_unknown: Accept a handler name that no node has registered yet.
            job_id: The job's id: 1 to 128 characters of ASCII that can be seen, without comma and
                bar; not one that begins with `plan:`, as those of a plan's jobs do.
            idempotency_key: Any text of 1 to 256 bytes without control characters, from which the
                id is made.
            window_s: How long the id is known after the job's end, at most 365 days.
            retention_s: How long the outcome is kept, at most 365 days, if there is room
                (`Settings.results_bytes_max`); None as its handler says.  Never less than
                `Settings.retry_window_s`.
            expires_s: A job that has not begun within this, from its dispatch on, never does:
                `JobExpired`.  0.01 s to 365 days, more than `delay_s`; None as its handler says.
            start_timeout_s: How long each attempt may wait for a worker to begin it, at most
                `expires_s`; then it has failed.  None as its handler says.
            then: What follows when the job is done; see `Follower`.
            otherwise: What follows when it is stopped or parked.  A parked one without any keeps
                `then` for its replay.

        Raises:
            InvalidOption: A value is out of bounds, or both `job_id` and `idempotency_key` are
                given.  So says `dispatch()` of the last two for a service.
        """
        return Dispatching(
            self._open_client,
            DispatchOptions(
                delay_s=delay_s,
                if_exists=if_exists,
                queue_max=queue_max,
                attach_any=attach_any,
                allow_unknown=allow_unknown,
                job_id=job_id,
                idempotency_key=idempotency_key,
                window_s=window_s,
                retention_s=retention_s,
                expires_s=expires_s,
                start_timeout_s=start_timeout_s,
                then=several("then", then),
                otherwise=several("otherwise", otherwise),
            ),
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
        client = self._open_client()
        check_key(key)
        encoded = encode_message(payload)
        check_size("message", encoded, self.settings.message_bytes_max)
        await client.requests.notify(key, encoded)

    async def stop(self, key: str, cause: str = "stopped", timeout_s: float | None = None) -> None:
        """Stop the live job of a key; return when it has really ended.

        Of `cause` the first 200 characters are kept.

        Raises:
            InvalidOption: `cause` is no text, or `timeout_s` no number from 0 to 365 days.
            NoSuchJob: The key has no live job.
            NotStopped: Its handler has not ended within `timeout_s`.
            InvalidKey, StoreUnavailable, StoreLost, NotRunning: As for `dispatch()`.
        """
        client = self._open_client()
        check_key(key)
        checks.text("cause", cause)
        timeout_s = checks.seconds("timeout_s", timeout_s, or_none=True)
        await stopped(JobRef[Any](key, "", "", client), cause, timeout_s)

    async def stop_all(
        self,
        *,
        handler: str | None = None,
        prefix: str = "",
        cause: str = "stopped",
        timeout_s: float | None = None,
        dry_run: bool = False,
    ) -> StopReport:
        """Stop the jobs of a handler, or under a prefix, or all; return how that went.

        Those that are queued, too.  It returns when all have really ended, or the time is up; each
        stop stays requested.  Asked for again, it finds those that have not ended.  What is
        dispatched meanwhile may be stopped, or not.  From a handler, whose own job may be among
        them, it goes on if that is cancelled.

        Args:
            handler: Those of this handler only.
            prefix: Those whose keys begin with this only.
            cause: As for `stop()`.
            timeout_s: For all of them; None waits as long as it takes.
            dry_run: Only count them, and name the first.

        Raises:
            InvalidOption, ConfigError: An argument cannot be used.
            StoreUnavailable, StoreLost, NotRunning: As for `dispatch()`; some may be stopping.
        """
        client = self._open_client()
        checks.text("cause", cause)
        checks.flag("dry_run", dry_run)
        timeout_s = checks.seconds("timeout_s", timeout_s, or_none=True)
        wanted = JobFilter(handler=handler, prefix=prefix)
        work = StopMany(client, wanted, cause, timeout_s, dry_run).carry_out
        return await (self._outlive("stop_all", work) if RUNNING.get() else work())

    def journal(
        self,
        *,
        key: str | None = None,
        handler: str | None = None,
        since: datetime | str | None = None,
        follow: bool = False,
    ) -> Journal:
        """Read what has happened in the pool beside ordinary work: retries, take-overs, stops ...

        The latest 10,000 entries of each lane are kept.  In order of the servers' clocks; nothing
        is asked before it is iterated.  A lane that cannot be read keeps nobody from the others: an
        entry (`unread`) tells of it.  Where none answers, who does not follow gets that error.

        Args:
            key: Entries of this key only.
            handler: Entries of this handler only.
            since: A time, or the `position` of an entry to go on behind; None: all there are.
            follow: Do not end, but wait for what comes.

        Raises:
            InvalidOption: An argument cannot be used; `since` is no position of this pool.
            InvalidKey, ConfigError: `key` or `handler` cannot be one.
            NotRunning: The node is not open.
        """
        client = self._open_client()
        checks.flag("follow", follow)
        wanted = JournalFilter(key=key, handler=handler)
        context = client.context
        ats = list(start_of(since, len(context.lanes)))
        return Journal(context.pipeline, self.pool, wanted, ats, follow)

    async def jobs(
        self,
        *,
        state: JobState | None = None,
        handler: str | None = None,
        prefix: str = "",
        owner: str | None = None,
        older_than_s: float | None = None,
        page: int = PAGE,
        cursor: str = "",
        payloads: bool = False,
    ) -> JobPage:
        """Return some of the live jobs that fit all that is given, and where to go on.

        An owner, `unassigned` (but for handlers that nobody has registered), `pending` and
        `waiting` are found by their indexes; for all else a page looks at so many records, and says
        at how many of how many: it may have found nothing, and lead on.  Jobs that move between two
        pages may be told twice, or not at all.

        Args:
            state: pending, running, waiting, unassigned or queued.
            handler: Those of this handler only.
            prefix: Those whose keys begin with this only.
            owner: Those that this worker has: its id, or its name as `Status.owner` says it.
            older_than_s: Those accepted longer ago than this only.
            page: How many records to look at, 1 to 2,000, about.
            cursor: `JobPage.cursor` of the page before; the same filters belong to it.
            payloads: Fetch their arguments as well.

        Raises:
            InvalidOption, ConfigError: An argument cannot be used.
            StoreUnavailable, StoreLost, NotRunning: As for `dispatch()`.
        """
        client = self._open_client()
        wanted = JobFilter(
            state=state, handler=handler, prefix=prefix, owner=owner, older_than_s=older_than_s
        )
        return await Listing(client).page(wanted, cursor, page, payloads=payloads)

    async def count(
        self,
        *,
        state: JobState | None = None,
        handler: str | None = None,
        prefix: str = "",
        owner: str | None = None,
        older_than_s: float | None = None,
    ) -> int:
        """Return how many live jobs fit all that is given; for the arguments see `jobs()`.

        Unassigned and pending ones are counted by their indexes; all else page by page, which takes
        a second for some hundred thousand jobs.

        Raises:
            InvalidOption, ConfigError: An argument cannot be used.
            StoreUnavailable, StoreLost, NotRunning: As for `dispatch()`.
        """
        client = self._open_client()
        wanted = JobFilter(
            state=state, handler=handler, prefix=prefix, owner=owner, older_than_s=older_than_s
        )
        return await Listing(client).count(wanted)

    async def status(self, key: str) -> Status:
        """Return how the live job of a key is now.

        Raises:
            NoSuchJob: The key has no live job.
            InvalidKey, StoreUnavailable, StoreLost, NotRunning: As for `dispatch()`.
        """
        check_key(key)
        client = self._open_client()
        found_now, _ = await client.look(key, "")
        return status_of(key, "", found_now, client, await client.history(key, found_now))

    async def job(
        self, key: str, job_id: str | None = None, *, idempotency_key: str | None = None
    ) -> JobRef[Any]:
        """Return a reference to a job, from any node: to wait for it, look at it, stop it.

        Without `job_id` and `idempotency_key` it is the live job of the key.  Else nothing is
        asked: what the reference refers to may be over, or never have been, which its calls tell.

        Raises:
            NoSuchJob: None was named, and the key has no live job.
            InvalidKey, InvalidOption: No job can be called so.
            StoreUnavailable, StoreLost, NotRunning: As for `dispatch()`.
        """
        check_key(key)
        named = known_id(job_id, idempotency_key)
        client = self._open_client()
        if named:
            return JobRef[Any](key, named, "", client)
        found, seen = await client.look(key, "")
        assert isinstance(found, Record), "of an outcome the id is asked for"
        return JobRef[Any](key, found.id, found.handler, client, seen)

    @property
    def parked(self) -> DeadLetters:
        """The pool's dead letters: to look through, mend, replay and discard."""
        return DeadLetters(self._open_client)

    @property
    def schedules(self) -> Schedules:
        """The pool's schedules: to look at, pause, resume, trigger and remove."""
        return Schedules(self._open_client)

    def ticker(self, name: str, *, every_s: float) -> Ticker:
        """Describe a ticker: one tick for the whole fleet in each period; see `Ticker`.

        Enter it within the node's block, to use it.  All that wait for ticks of one name should
        have the same period.

        Args:
            name: 1 to 96 of A-Z, a-z, 0-9, _, ., : and -.
            every_s: The period, 0.1 s to a day.

        Raises:
            ConfigError: The name cannot be used.
            InvalidOption: The period is out of bounds.
        """
        return make_ticker(self._open_client, name, every_s)

    # --- plans --------------------------------------------------------------------------------

    def plan(self, name: str) -> PlanRef:
        """Return a plan of the pool, to look at, to try, and to confirm; see `Handlers.plan()`.

        Raises:
            ConfigError: The name cannot be used.
            NotRunning: The node is not open.
        """
        check_handler(name)
        self._check_open()
        return PlanRef(name, self._open_client)

    async def plans(self, *, gaps: Gaps | None = None) -> list[str]:
        """Return the names of the plans that are kept in this pool.

        Args:
            gaps: Leave out lanes that do not answer, and note them here; None: they are an error.

        Raises:
            StoreUnavailable, NotRunning: As for `dispatch()`.
        """
        return await plans(self._open_client(), gaps)

    async def _keep_plan(self, job: Job, producer: Producer) -> None:
        await keep_plan(self._client, job, producer, plan_and_version(job.handler)[0])

    async def _compare_plan(self, job: Job, producer: Producer) -> Any:
        return await compared(self._client, job, producer, plan_and_version(job.handler)[0])

    def _see_to_plans(self, handlers: Handlers) -> None:
        planned = tuple(handlers._planned())
        if planned:
            supervisor = self._open_wiring.context.supervisor
            supervisor.errand("plans", partial(see_to, self._client, planned))

    # --- batches ------------------------------------------------------------------------------

    def batch(
        self,
        id: str,
        *,
        then: Follower | Iterable[Follower] = (),
        otherwise: Follower | Iterable[Follower] = (),
        success_min: int | None = None,
        open_s: float = OPEN_S,
        keep_s: float = KEEP_S,
        within: Batch | None = None,
    ) -> Batch:
        """Return a batch to be made: jobs that are counted, waited for and cancelled together.

            async with node.batch("nightly", then=Follower("mail", "ops")) as batch:
                await batch.add(report, (Call(tenant, day) for tenant in tenants))

        Entering opens it, unless there is one of that id: then it goes on with that one, to which
        the same members may be added again, as after a crash, and the other options are those that
        it was opened with.  It settles by itself when it is sealed and all its members have ended,
        also when nobody is left who made it.  `then` is accepted in the step that settles it,
        exactly once.

        Args:
            id: 1 to 128 characters of ASCII that can be seen, without comma and bar.
            then: What follows when it is done; see `Follower`.  With `takes_result` its first
                argument is a dict of the counts: expected, succeeded, failed, cancelled, missing.
            otherwise: What follows when it has failed or was cancelled; `takes_result` is text.
            success_min: How many members must succeed, 0 to 1,000,000; None: all.
            open_s: After so long without a new member it is sealed in any case, 1 s to 365 days.
            keep_s: For so long it can be looked at once it has settled, likewise.
            within: A batch that is being made, of which this one becomes a member; one that is
                there and has ended counts as it ended.

        Raises:
            InvalidOption: A value is out of bounds, or is none.
            NotRunning: The node is not open.
            BatchDiffers: As it is entered: it is there, has not ended, and is not within that one.
            BatchSealed, NoSuchBatch, StoreUnavailable, ...: As it is entered: see `Batch.add()`.
        """
        check_batch(id)
        options = batch_options(id, then, otherwise, success_min, open_s, keep_s, within)
        self._check_open()
        return Batch(self._open_client, id, options)

    @property
    def batches(self) -> Batches:
        """The pool's batches: to look at, wait for and cancel."""
        return Batches(self._open_client)

    # --- shared parts -------------------------------------------------------------------------

    @overload
    def map(
        self,
        name: str,
        *,
        ttl_s: float | None = None,
        is_sliding: bool = False,
        expires_at: float | None = None,
    ) -> ReplicatedMap[str]: ...

    @overload
    def map(
        self,
        name: str,
        *,
        values: type[V],
        ttl_s: float | None = None,
        is_sliding: bool = False,
        expires_at: float | None = None,
    ) -> ReplicatedMap[V]: ...

    def map(
        self,
        name: str,
        *,
        values: Any = str,
        ttl_s: float | None = None,
        is_sliding: bool = False,
        expires_at: float | None = None,
    ) -> ReplicatedMap[Any]:
        """Describe a replicated map of this pool; enter it, within the node's block, to use it.

        Holding one map several times costs one copy.  For the arguments see `ReplicatedMap.open`.

        Raises:
            ConfigError: The name cannot be a map's, or is the pool's own.
            InvalidOption: A value is out of bounds.
        """

        @asynccontextmanager
        async def held() -> AsyncIterator[Replica]:
            self._check_open()
            async with self._open_wiring.maps.hold(name) as replica:
                yield replica

        return ReplicatedMap(name, values, MapLife(ttl_s, is_sliding, expires_at), held)

    # --- streams ------------------------------------------------------------------------------

    def stream(
        self,
        name: str,
        *,
        length_max: int | None = None,
        ttl_s: float | None = None,
        is_sliding: bool = False,
        ends_at: datetime | int | None = None,
    ) -> Stream:
        """Return a stream of this pool, on this node's connection; for the arguments see `Stream`.

        Close its readers and sinks before the node.

        Raises:
            ConfigError, InvalidOption: An argument cannot be used.
            NotRunning: The node is not open.
        """
        self._check_open()
        session = self._open_wiring.context
        return make_stream(
            session,
            name,
            length_max=length_max,
            ttl_s=ttl_s,
            is_sliding=is_sliding,
            ends_at=ends_at,
        )

    # --- workers ------------------------------------------------------------------------------

    async def add_worker(
        self,
        handlers: Handlers,
        *,
        capacity: int = 100,
        weight: float = 1.0,
        label: str = "",
        version: str = "",
    ) -> LocalWorker:
        """Add a worker to this node; return once the fleet knows it.

        It belongs to the node, not to the scope that added it; see `LocalWorker.remove`.

        Raises:
            ConfigError: An argument cannot be used.
            NotRunning: The node is not open; or it drains, or has drained, and stays a client.
            StorageFull, StoreUnavailable, StoreLost: As for `dispatch()`.
        """
        self._check_open()
        if self._state != "open":
            raise NotRunning(state=self._state)
        _handlers_of(handlers)
        args = _worker_args(capacity, weight, label, version)
        wanted = of_code(self._client, handlers)
        worker = await self._open_wiring.add_worker(handlers, *args)
        await self._open_wiring.keep_schedules(wanted)
        self._see_to_plans(handlers)
        return LocalWorker(worker.id, self)

    async def drain(self, *, grace_s: float | None = None) -> None:
        """Take no more jobs, and give up those that run: as when leaving, but stay as a client.

        It goes on if the caller is cancelled, who may be one of those jobs.

        Raises:
            InvalidOption: `grace_s` is none.
            NotRunning: The node never opened, or a part of it has ended for good.
        """
        wiring, grace_s = self._open_wiring, self._grace_s(grace_s)
        self._check_here()
        if self._state == "open":
            self._begin_drain(wiring, grace_s)
        await self.wait_drained()

    async def _remove_worker(self, worker_id: str, grace_s: float | None) -> None:
        wiring, grace_s = self._open_wiring, self._grace_s(grace_s)
        self._check_here()
        worker = wiring.membership.workers.get(worker_id)
        if worker is not None:
            await wiring.give_up(worker, grace_s)

    def suspect(self, job_id: str) -> None:
        """Note that the signal by which this process shall end came while this job was at work.

        For whoever handles signals, before `drain()`.  When it is given up, the job takes a mark
        along, as from a death: it ends `crashes_max` + 1 processes in order, and then is parked.

        Raises:
            InvalidOption: `job_id` is no text.
        """
        checks.text("job_id", job_id)
        wiring = self._wiring
        for worker in wiring.membership.workers.values() if wiring is not None else ():
            worker.suspect(job_id)

    def _begin_drain(self, wiring: Wiring, grace_s: float) -> None:
        wiring.context.supervisor.errand("drain", partial(self._drain, wiring, grace_s))
        self._state = "draining"

    async def _drain(self, wiring: Wiring, grace_s: float) -> None:
        await wiring.give_up_workers(grace_s)
        if self._state == "draining":
            self._state = "drained"
        self._is_drained().set()

    def _grace_s(self, grace_s: object) -> float:
        if grace_s is None:
            return self.settings.grace_s
        taken: float = checks.seconds("grace_s", grace_s, high=GRACE_MAX_S)
        return taken

    async def wait_drained(self) -> None:
        """Return once this node has drained, for whatever reason.

        Raises:
            NotRunning: It was never entered.
        """
        if self._state == "new":
            raise NotRunning(state=self._state)
        self._check_here()
        await self._is_drained().wait()

    async def shutdown_pool(self, *, end_jobs: bool = False) -> StopReport | None:
        """Have every node of the pool drain, this one included; return when this one has.

        Open jobs stay in the store, for the next start.  With `end_jobs` they are stopped instead:
        before the nodes drain, within the grace of this one, and those once more that nobody owns
        after that.  The report tells of which that is not known.  It goes on if the caller is
        cancelled, who may be one of those jobs.

        Raises:
            InvalidOption: `end_jobs` is neither True nor False.
            NotRunning: The node is not open.
            StoreUnavailable, StoreLost: With `end_jobs`, as for `stop_all()`.
        """
        self._check_open()
        checks.flag("end_jobs", end_jobs)
        if end_jobs:
            return await self._outlive("shutdown_pool", self._end_all)
        await self._open_wiring.shut_down()
        await self.drain()
        return None

    async def _end_all(self) -> StopReport:
        """Stop all jobs, have every node drain, and stop what came meanwhile."""
        cause = "the pool is shut down"
        before = await self.stop_all(cause=cause, timeout_s=self.settings.grace_s)
        await self._open_wiring.shut_down()
        await self.drain()
        after = await self.stop_all(cause=cause, timeout_s=self.settings.grace_s)
        return StopReport(
            found=max(before.found, before.stopped + after.found),
            stopped=before.stopped + after.stopped,
            keys=before.keys,
            problems=after.problems,
        )

    async def _outlive(self, name: str, work: Callable[[], Awaitable[StopReport]]) -> StopReport:
        """Do what goes on though its caller is cancelled, who may be a job that it ends."""
        over, answers = anyio.Event(), list[StopReport | PoolError]()

        async def do() -> None:
            try:
                answers.append(await work())
            except PoolError as error:  # the caller's; anything else is a crash, and it begins anew
                answers.append(error)

        self._open_wiring.context.supervisor.errand(name, do, over.set)
        await over.wait()
        match answers:
            case [StopReport() as report]:
                return report
            case [PoolError() as error]:
                raise again(error)
        raise NotRunning(state="closing")

    def _on_shutdown(self) -> None:
        wiring = self._open_wiring
        if wiring.is_shut_down and self._state == "open":  # else it looks again when it has opened
            with suppress(NotRunning):  # it ends by something worse
                self._begin_drain(wiring, self.settings.grace_s)

    def _on_drain(self) -> None:
        """An operator has this node drain."""
        if self._state == "open":  # else it looks again when it has opened
            with suppress(NotRunning):  # it ends by something worse
                self._begin_drain(self._open_wiring, self.settings.grace_s)

    def _operator(self) -> Operator:
        self._check_open()
        return self._open_wiring.heeding.operator()

    # --- start and stop -----------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self.state != "new":
            raise NotRunning(state=self.state)
        check_headroom()
        _check_main()
        if self._meter is not None:
            self._meter.attach(self)
        self._state, self._check_loop = "opening", door()
        try:
            self._task_scope = await TaskScope.open(self._io, self.settings, self._emit)
        except BaseException:
            self._state = "closed"
            self._is_drained().set()
            raise
        try:
            await self._open(self._task_scope.supervisor)
        except BaseException:
            self._state = "closing"
            try:
                with anyio.CancelScope(shield=True):
                    try:
                        if self._wiring is not None and not self._task_scope.has_crashed:
                            await self._wiring.leave(0.0)  # nobody shall wait for its leases to end
                    finally:
                        await self._close()
            finally:
                self._state = "closed"
                self._is_drained().set()
                await self._task_scope.abandon()
            raise
        self._state = "open"
        self._on_shutdown()
        if self._open_wiring.is_to_drain:
            self._on_drain()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._forks == LINEAGE.forks:
            self._check_loop()
        if self._is_left or self._state in ("new", "opening"):
            raise NotRunning(state=self._state)
        self._is_left = True
        wiring, task_scope, abandoned = self._open_wiring, self._task_scope, -1
        self._state = "draining"
        try:
            with anyio.CancelScope(shield=True):
                try:
                    if not task_scope.has_crashed:
                        abandoned = await wiring.leave(self.settings.grace_s)
                finally:  # also when whoever waits for us has no patience, and cancels us again
                    self._state = "closing"
                    await self._close()
        finally:
            self._state = "closed"
            self._is_drained().set()
            abandoned = wiring.count_runs() if abandoned < 0 else abandoned
            self._emit(NodeLeft(pool=self.pool, node=self.id, abandoned=abandoned))
            await task_scope.leave(kind, error, traceback)

    async def _open(self, supervisor: Supervisor) -> None:
        settings, io = self.settings, self._io
        url, self._server = await serve(self._given_url)
        control = Control(self.pool)
        url = url.at(control.prefix)
        self._pipeline = await Pipeline.open(
            io,
            url,
            op_timeout_s=settings.op_timeout_s,
            longest_s=settings.longest_s,
            care=supervisor,
        )
        if not self._is_operator:
            check_policy(self._pipeline)
        context = Context(
            url=url,
            settings=settings,
            io=io,
            loop=io.loop(supervisor),
            pipeline=self._pipeline,
            control=control,
            ids=io.ids,
            node=self,
            node_id=io.ids.next("n"),
            jobs=JobListeners.among((*self._observers, *told_of_jobs(self._meter))),
            generation="",
            emit=self._emit,
            supervisor=supervisor,
            meter=self._meter,
        )
        self._noter = Noter(context)
        open_s = OPEN_CALLS * settings.op_timeout_s
        try:
            with anyio.fail_after(open_s) as patience:
                await self._join(context, patience)
        except TimeoutError:
            # Each call has a deadline; who waits for a reader without a connection has none.
            raise StoreUnavailable(
                problem=f"{url.where}: not joined within {open_s:g} s", maybe_done=True
            ) from None
        server = self._pipeline.server
        name = f"{server.name} {server.version}" if server else ""
        if self._given_url.is_in_clear:
            self._emit(PasswordInClear(where=self._given_url.where))
        if server and not server.policy:
            self._emit(PolicyUnknown(server=name))
        self._emit(NodeJoined(pool=self.pool, node=self.id, server=name))

    async def _join(self, context: Context, patience: anyio.CancelScope) -> None:
        """Join the pool, with a worker if there are handlers; their lifespans have no deadline."""
        made = await open_pool(context)
        check_ttl(context, made)
        if not self._is_operator:
            lanes = [Names(self.pool, number).prefix for number in range(made.lanes)]
            await check_policies(context.pipeline, lanes, self.settings.op_timeout_s / 2)
        wiring = self._wiring = Wiring(
            context, made, on_shutdown=self._on_shutdown, on_drain=self._on_drain
        )
        self._client = JobClient(
            pool=self.pool,
            handlers=self._handlers,
            context=context,
            dispatcher=wiring.dispatcher,
            waiters=wiring.waiters,
            requests=wiring.requests,
            check_open=self._check_open,
        )
        await wiring.start()
        if self._handlers is not None and len(self._handlers):
            wanted = of_code(self._client, self._handlers)
            left_s, patience.deadline = patience.deadline - anyio.current_time(), math.inf
            await wiring.enter_lifespans(self._handlers)
            patience.deadline = anyio.current_time() + left_s
            await wiring.add_worker(self._handlers, *self._worker_args)
            await wiring.keep_schedules(wanted)
            self._see_to_plans(self._handlers)

    async def _close(self) -> None:
        """End the actors, then what runs beside the loop; each step whatever became of the others.

        Handlers that still run, of a node that could not leave, end under a lease.
        """
        async with AsyncExitStack() as then:
            # Last: timers that were taken back end here, not after us.
            then.push_async_callback(anyio.lowlevel.checkpoint)
            if self._server is not None:
                then.push_async_callback(anyio.to_thread.run_sync, self._server.stop)
            if self._pipeline is not None:
                then.push_async_callback(self._pipeline.aclose, CLOSE_BUDGET_S)
            if self._wiring is not None:
                then.push_async_callback(self._wiring.close_connections)
            await self._task_scope.close(CLOSE_BUDGET_S)

    @property
    def _open_wiring(self) -> Wiring:
        if self._wiring is None:
            raise NotRunning(state=self._state)
        return self._wiring

    def _is_drained(self) -> anyio.Event:
        # Made late: on some event loops an Event belongs to the loop that runs when it is made.
        if self._drained is None:
            self._drained = anyio.Event()
        return self._drained

    def _emit(self, event: Event) -> None:
        emit_to(self._observers, event, self.pool)
        if self._noter is not None and getattr(event, "is_journalled", False):
            self._noter.note(event)

    async def _note_act(self, event: Event) -> None:
        """Tell of what somebody is about to do; return once it stands in the journal."""
        self._check_open()
        assert self._noter is not None, "it is open"
        emit_to(self._observers, event, self.pool)
        await self._noter.write(event)

    # --- for the calls ------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._state not in ("open", "draining", "drained"):
            raise NotRunning(state=self._state)
        self._check_here()

    def _check_here(self) -> None:
        check_headroom()
        if self._forks != LINEAGE.forks:
            raise NotRunning(state="forked")
        self._check_loop()

    def _open_client(self) -> JobClient:
        self._check_open()
        return self._client

    def _pack_followers(self, job: Job, followers: Sequence[Follower], had: bytes) -> bytes:
        if self._wiring is None:  # of `make_job`: it has no pool
            packer = Packer(1, self.settings.payload_bytes_max)
        else:
            packer = self._open_client().packer()
        packer.left -= count_of(job.followers)
        then = several("then", followers)
        known = packer.handlers.get(job.handler) if packer.handlers is not None else None
        after = outcome_by(known)
        return packer.pack(then, key=job.key, job_id=job.id, who="run", had=had, after=after)


@attrs.frozen(eq=False)
class LocalWorker:
    """A worker that `Node.add_worker` added."""

    id: str
    _node: Node = attrs.field(repr=False)

    async def remove(self, *, grace_s: float | None = None) -> None:
        """Drain it and take it away; return when it has left.  Twice is fine.

        Its services are handed over at once, its finite jobs may end within `grace_s` (default:
        `Settings.grace_s`) and are released then.

        Raises:
            InvalidOption: `grace_s` is no number from 0 to 86,400.
            NotRunning: A part of the node has ended for good.
        """
        await self._node._remove_worker(self.id, grace_s)


def _check_main() -> None:
    """Refuse to open in a process that was started for a function, and still imports the program.

    It would take jobs there, and each of them might start another one.
    """
    found = sys.modules.get("multiprocessing.process")
    if found is not None and getattr(found.current_process(), "_inheriting", False):
        problem = (
            'a node opens while the file is imported: have it below `if __name__ == "__main__":`'
        )
        raise ConfigError(setting="__main__", problem=problem)


def _handlers_of(given: object) -> Handlers:
    return checks.instance("handlers", given, Handlers, refuse=checks.setting)


def _worker_args(
    capacity: object, weight: object, label: str, version: str
) -> tuple[int, float, str, str]:
    taken = (
        checks.count("capacity", capacity, 1, CAPACITY_MAX, refuse=checks.setting),
        checks.number("weight", weight, WEIGHT_MIN, WEIGHT_MAX, refuse=checks.setting),
    )
    check_label(label)
    check_label(version, "version")
    return (*taken, label, version)
