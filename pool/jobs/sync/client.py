"""The client for callers that block: jobs, batches and schedules.

The calls of a node for callers that block; what they do and raise is the node's.

Each is one task on the loop of a `Portal`, which this thread waits for.  What they return lives as
long as the client, in forked children too: a reference is asked of the node that there is.

Signatures are written a second time: of `**options` neither an editor nor `help()` shows the names.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Generic, NoReturn, ParamSpec, Self, TypeVar, overload

import attrs

from pool import checks
from pool.core.batches import MEMBERS_MAX
from pool.core.options import IfExists
from pool.core.times import When
from pool.errors import NotRunning, PoolError
from pool.events import Observer
from pool.jobs.client.batches import (
    KEEP_S,
    OPEN_S,
    Batch,
    BatchOptions,
    BatchRef,
    BatchStatus,
    Member,
    Refused,
    batch_options,
)
from pool.jobs.client.dispatch import Call, Dispatching
from pool.jobs.client.listing import Gaps
from pool.jobs.client.options import WINDOW_S, DispatchOptions
from pool.jobs.client.parked import ParkedJob, ParkedPage
from pool.jobs.client.ref import JobRef, Status
from pool.jobs.client.schedules import Schedule, ScheduleList, Schedules
from pool.jobs.followers import Follower, several
from pool.jobs.handlers import QUEUE_MAX, Handler
from pool.jobs.node import Node
from pool.jobs.sync.portal import Portals
from pool.maps.map import ReplicatedMap
from pool.maps.watch import V
from pool.names import check_batch
from pool.redis.io.system import SystemIO
from pool.runtime.observers import check_observers, log_observer
from pool.settings import Settings

R = TypeVar("R")


class Ref(Generic[R]):
    """A reference to one accepted job, as `JobRef`, for callers that block.

    It stays good after restarts of anything, and in forked children.  A `timeout_s` of 0 asks the
    store once.
    """

    __slots__ = ("_limit_s", "_portals", "_ref")

    def __init__(self, portals: Portals, ref: JobRef[R], limit_s: float | None) -> None:
        self._portals: Portals = portals
        self._ref: JobRef[R] = ref
        self._limit_s: float | None = limit_s

    @property
    def key(self) -> str:
        """The job's key."""
        return self._ref.key

    @property
    def job_id(self) -> str:
        """The job's id."""
        return self._ref.job_id

    @property
    def handler(self) -> str:
        """The name of its handler; empty if it is not known."""
        return self._ref.handler

    def started(self, timeout_s: float | None = None) -> None:
        """Return once the job's handler has begun, also where it has returned since.

        Raises:
            PoolError: As for `JobRef.started()`.
        """
        self._portals.wait(lambda node, left_s: self._at(node).started(left_s), timeout_s)

    def result(self, timeout_s: float | None = None) -> R:
        """Return what the handler returned, once it has.

        Raises:
            TimeoutError: It has not ended within `timeout_s`; it goes on.
            PoolError: As for `JobRef.result()`.
        """
        return self._portals.wait(lambda node, left_s: self._at(node).result(left_s), timeout_s)

    def status(self) -> Status:
        """Return how the job is now, or how it ended.

        Raises:
            PoolError: As for `JobRef.status()`.
        """
        return self._portals.portal().call(lambda node: self._at(node).status(), self._limit_s)

    def stop(self, cause: str = "stopped", timeout_s: float | None = None) -> None:
        """Stop the job; return when it has really ended.  One that has ended is fine.

        Raises:
            PoolError: As for `JobRef.stop()`.
        """
        self._portals.wait(lambda node, left_s: self._at(node).stop(cause, left_s), timeout_s)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ref):
            return NotImplemented
        return self._portals is other._portals and self._named == other._named

    def __hash__(self) -> int:
        return hash(self._named)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Ref belongs to its client: pass its key and job_id, see Client.job()")

    @property
    def _named(self) -> tuple[str, str]:
        return self.key, self.job_id

    def __repr__(self) -> str:
        return f"Ref(key={self.key!r}, job_id={self.job_id!r}, handler={self.handler!r})"

    def _at(self, node: Node) -> JobRef[R]:
        """Return it as of the node that there is: that of before may be another process's."""
        if self._ref._client is not (client := node._open_client()):
            self._ref = attrs.evolve(self._ref, client=client)
        return self._ref


T = TypeVar("T")


class BlockingBatch:
    """A batch that is being made: `with client.batch(id) as batch`, see `Client.batch()`.

    Entering opens it; leaving seals it.  Left by an exception it stays open, and so it does if the
    process ends: who enters one of that id again, and adds the same members, goes on with it.
    """

    __slots__ = ("_limit_s", "_made", "_options", "_portals", "_within", "id")

    def __init__(
        self,
        portals: Portals,
        batch_id: str,
        options: BatchOptions,
        within: BlockingBatch | None,
        limit_s: float | None,
    ) -> None:
        self.id: str = batch_id
        self._portals, self._limit_s = portals, limit_s
        self._options, self._within = options, within
        self._made: Batch | None = None  # of the client's loop, once it is entered

    @property
    def added(self) -> int:
        """How many members have been added: noted, and accepted or refused."""
        return 0 if self._made is None else self._made.added

    @property
    def ref(self) -> BlockingBatchRef:
        """A reference to it."""
        nonce = "" if self._made is None else self._made._nonce
        return BlockingBatchRef(self._portals, self.id, nonce, self._limit_s)

    def __enter__(self) -> Self:
        outer = None if self._within is None else self._within._entered

        async def enter(node: Node) -> Batch:
            options = self._options
            made = node.batch(
                self.id,
                then=options.then,
                otherwise=options.otherwise,
                success_min=options.success_min,
                open_s=options.open_s,
                keep_s=options.keep_s,
                within=outer,
            )
            return await made.__aenter__()

        self._made = self._ask(enter)
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        made = self._entered
        self._ask(lambda _: made.__aexit__(kind, error, traceback))

    def add(self, handler: Handler[..., Any] | str, calls: Iterable[Call | str]) -> list[Refused]:
        """Add members, some thousand at a time; return those that were refused.

        Args:
            handler: As for `Batch.add()`.
            calls: Likewise.  A generator runs in the client's thread.

        Raises:
            StoreUnavailable: Also after the client's `timeout_s`: all that `added` counts is added,
                the next ones may be.  Add them again.
            PoolError: As for `Batch.add()`.
        """
        made = self._entered
        return self._ask(lambda _: made.add(handler, calls))

    def seal(self) -> None:
        """Seal it: it has all its members, and settles when the last of them has ended.

        Raises:
            PoolError: As for `Batch.seal()`.
        """
        made = self._entered
        self._ask(lambda _: made.seal())

    @property
    def _entered(self) -> Batch:
        if self._made is None:
            raise NotRunning(state="new")
        return self._made

    def _ask(self, fn: Callable[[Node], Awaitable[T]]) -> T:
        return self._portals.portal().call(fn, self._limit_s)


class BlockingBatchRef:
    """A reference to a batch, as `BatchRef`, for callers that block.

    It stays good after restarts of anything, and in forked children.
    """

    __slots__ = ("_limit_s", "_nonce", "_portals", "_ref", "id")

    def __init__(self, portals: Portals, batch_id: str, nonce: str, limit_s: float | None) -> None:
        self.id: str = batch_id
        self._portals, self._limit_s = portals, limit_s
        self._nonce = nonce  # empty: whichever there is when it is first looked at
        self._ref: BatchRef | None = None

    def status(self) -> BatchStatus:
        """Return how it is now.

        Raises:
            PoolError: As for `BatchRef.status()`.
        """
        return self._portals.portal().call(lambda node: self._at(node).status(), self._limit_s)

    def wait(
        self,
        timeout_s: float | None = None,
        *,
        on_progress: Callable[[BatchStatus], object] | None = None,
    ) -> BatchStatus:
        """Return how it is once it has settled, whatever became of it; outages are waited out.

        Args:
            timeout_s: As for `BatchRef.wait()`.
            on_progress: Likewise.  It is called in the client's thread.

        Raises:
            TimeoutError: It has not settled within `timeout_s`.
            PoolError: As for `BatchRef.wait()`.
        """
        return self._portals.wait(
            lambda node, left_s: self._at(node).wait(left_s, on_progress=on_progress), timeout_s
        )

    def result(self, timeout_s: float | None = None) -> BatchStatus:
        """Return how it is once it is done: as many members have succeeded as must.

        Raises:
            TimeoutError: It has not settled within `timeout_s`.
            PoolError: As for `BatchRef.result()`.
        """
        return self._portals.wait(lambda node, left_s: self._at(node).result(left_s), timeout_s)

    def cancel(self, cause: str = "stopped") -> None:
        """Have it take no more members, and stop all that have not ended; return once that stands.

        Raises:
            PoolError: As for `BatchRef.cancel()`.
        """
        self._portals.portal().call(lambda node: self._at(node).cancel(cause), self._limit_s)

    def members(
        self, handler: Handler[..., R] | None = None, *, passed: int = 0
    ) -> Iterator[Member[R]] | Iterator[Member[Any]]:
        """Yield its members in the order in which they end: those that have, then each that does.

        That ends when it has settled; outages are waited out.

        Args:
            handler: As for `BatchRef.members()`.
            passed: Likewise.

        Raises:
            PoolError: As for `BatchRef.members()`.
        """
        if handler is not None:
            checks.instance("handler", handler, Handler)
        return self._pages(handler, checks.count("passed", passed, 0, MEMBERS_MAX))

    def _pages(self, handler: Handler[..., R] | None, passed: int) -> Iterator[Member[R]]:
        """Yield members; they cross to this thread a page at a time."""

        async def page(node: Node, _: float | None) -> list[Member[Any]]:
            return await self._at(node).members(handler, passed=passed).page()

        while some := self._portals.wait(page, None):
            passed += len(some)
            yield from some

    def _at(self, node: Node) -> BatchRef:
        """Return it as of the node that there is: that of before may be another process's."""
        client, known = node._open_client(), self._ref
        if known is None or known._client is not client:
            nonce = self._nonce if known is None else known._nonce
            self._ref = known = BatchRef(self.id, client, nonce)
        return known

    def __repr__(self) -> str:
        return f"BlockingBatchRef(id={self.id!r})"


class BlockingBatches:
    """The batches of a pool: `client.batches`."""

    __slots__ = ("_limit_s", "_portals")

    def __init__(self, portals: Portals, limit_s: float | None) -> None:
        self._portals: Portals = portals
        self._limit_s: float | None = limit_s

    def get(self, id: str) -> BlockingBatchRef:
        """Return a reference; nothing is asked: whether there is such a batch its calls tell.

        Raises:
            InvalidOption: No batch can be called so.
        """
        check_batch(id)
        return BlockingBatchRef(self._portals, id, "", self._limit_s)

    def list(self, *, newest: int = 100, gaps: Gaps | None = None) -> list[BatchStatus]:
        """Return the newest ones, the last that was opened first; see `Batches.list()`.

        Raises:
            PoolError: As for `Batches.list()`.
        """
        return self._portals.portal().call(
            lambda node: node.batches.list(newest=newest, gaps=gaps), self._limit_s
        )


class BlockingSchedules:
    """The schedules of a pool: `client.schedules`.  `Client.schedule()` makes them."""

    __slots__ = ("_limit_s", "_portals")

    def __init__(self, portals: Portals, limit_s: float | None) -> None:
        self._portals: Portals = portals
        self._limit_s: float | None = limit_s

    def list(
        self,
        *,
        handler: str = "",
        prefix: str = "",
        cursor: str = "",
        count: int = 100,
        gaps: Gaps | None = None,
    ) -> ScheduleList:
        """Return a page of schedules, in no order; for the arguments see `Schedules.list()`.

        Raises:
            PoolError: As for `Schedules.list()`.
        """
        return self._ask(
            lambda all_of: all_of.list(
                handler=handler, prefix=prefix, cursor=cursor, count=count, gaps=gaps
            )
        )

    def show(self, name: str) -> Schedule:
        """Return a schedule.

        Raises:
            PoolError: As for `Schedules.show()`.
        """
        return self._ask(lambda all_of: all_of.show(name))

    def next_times(self, name: str, count: int = 5) -> tuple[datetime, ...]:
        """Return when a schedule is due next, as if it were not paused; at most 1,000 times.

        Raises:
            PoolError: As for `Schedules.next_times()`.
        """
        return self._ask(lambda all_of: all_of.next_times(name, count))

    def pause(self, name: str) -> None:
        """Fire a schedule no more, until it is resumed.  Twice is fine.

        Raises:
            PoolError: As for `Schedules.pause()`.
        """
        self._ask(lambda all_of: all_of.pause(name))

    def resume(self, name: str) -> None:
        """Fire a paused schedule again, from now on; twice is fine.

        Raises:
            PoolError: As for `Schedules.resume()`.
        """
        self._ask(lambda all_of: all_of.resume(name))

    def trigger(self, name: str, *, idempotency_key: str | None = None) -> Ref[Any]:
        """Dispatch the job of a schedule now, beside its times; return it.

        Raises:
            PoolError: As for `Schedules.trigger()`.
        """
        ref = self._ask(lambda all_of: all_of.trigger(name, idempotency_key=idempotency_key))
        return Ref(self._portals, ref, self._limit_s)

    def remove(self, name: str) -> None:
        """Take a schedule away; jobs that it has made stay.

        Raises:
            PoolError: As for `Schedules.remove()`.
        """
        self._ask(lambda all_of: all_of.remove(name))

    def _ask(self, fn: Callable[[Schedules], Awaitable[T]]) -> T:
        return self._portals.portal().call(lambda node: fn(node.schedules), self._limit_s)


P = ParamSpec("P")


class Client:
    """A client of a pool for callers that block: one for a whole program, made at its top.

    It opens with its first call, a node without handlers on an event loop in a thread of its own,
    and all threads may call it at once.  A forked child (gunicorn with `--preload`, Celery) opens
    its own with its own first call.  It closes with `close()`, at the end of a `with` block, or by
    itself at the end of the interpreter; calls under way then raise `NotRunning`, or
    `StoreUnavailable` where they may have been carried out.  If its node fails for good, the next
    call opens another.

    All calls raise what those of `Node` raise, and `NotRunning` once it is closed.  `WrongLoop` is
    for a call from the client's own thread, such as an observer's.  Where an event loop runs, as
    in a notebook's cell, calls work, and that loop stands still meanwhile: in an `async def` of
    yours use a `Node`.
    """

    def __init__(
        self,
        pool: str,
        url: str,
        *,
        settings: Settings | None = None,
        timeout_s: float | None = None,
        observers: Sequence[Observer] = (log_observer,),
    ) -> None:
        """Describe the client; nothing happens before its first call.

        Args:
            pool: As for `Node`; likewise what follows.
            url: With a private `embedded://`, each process would have a server of its own.
            settings: Likewise.
            timeout_s: How long a call may take that waits for nothing but the store, opening
                included, 0 to 365 days: then it raises `StoreUnavailable`.  None: as long as the
                settings allow each step of it, some seconds.  For those that wait for a job it
                is the `timeout_s` of each, opening included.
            observers: Called with every event, in the client's thread.

        Raises:
            ConfigError: As for `Node`.
            InvalidOption: `timeout_s` cannot be used.
        """

        told = check_observers(observers)  # an iterator of them is read once

        def make(io: SystemIO | None) -> Node:
            return Node(pool, url, settings=settings, observers=told, _io=io)

        # What cannot be used is told here, and not by the first call.
        self._described: Node = make(None)
        self.pool: str = self._described.pool
        self._portals: Portals = Portals(make)
        self._limit_s: float | None = checks.seconds("timeout_s", timeout_s, or_none=True)
        self._options: DispatchOptions = DispatchOptions()

    def options(
        self,
        *,
        timeout_s: float | None = None,
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
    ) -> Client:
        """Return this client with other options for its dispatches, see `Node.options`.

        It is the same one: closing either closes both.

        Args:
            timeout_s: How long each of its calls may take, as for `Client`; None leaves it.
            delay_s: As for `Node.options`; likewise what follows.
            if_exists: Likewise.
            queue_max: Likewise.
            attach_any: Likewise.
            allow_unknown: Likewise.
            job_id: Likewise.
            idempotency_key: Likewise.
            window_s: Likewise.
            retention_s: Likewise.
            expires_s: Likewise.
            start_timeout_s: Likewise.
            then: Likewise.
            otherwise: Likewise.

        Raises:
            InvalidOption: As for `Node.options`.
        """
        limit_s = checks.seconds("timeout_s", timeout_s, or_none=True)
        other = object.__new__(type(self))
        other.pool, other._described, other._portals = self.pool, self._described, self._portals
        other._limit_s = self._limit_s if limit_s is None else limit_s
        other._options = DispatchOptions(
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
        )
        return other

    # --- jobs ---------------------------------------------------------------------------------

    @overload
    def dispatch(
        self, handler: Handler[P, R], key: str, /, *args: P.args, **kwargs: P.kwargs
    ) -> Ref[R]: ...
    @overload
    def dispatch(self, handler: str, key: str, /, *args: Any, **kwargs: Any) -> Ref[Any]: ...
    def dispatch(
        self, handler: Handler[Any, Any] | str, key: str, /, *args: Any, **kwargs: Any
    ) -> Ref[Any]:
        """Give the job `key` to the one worker that owns it; return once it is accepted.

        A call that is interrupted, or given up after `timeout_s`, takes no job back.

        Args:
            handler: As for `Node.dispatch()`; likewise what follows.
            key: Likewise.
            *args: Likewise.  They are read in the client's thread, while this one waits.
            **kwargs: Likewise.

        Raises:
            PoolError: As for `Node.dispatch()`.
        """
        ref = self._ask(lambda node: self._of(node).dispatch(handler, key, *args, **kwargs))
        return Ref(self._portals, ref, self._limit_s)

    @overload
    def dispatch_many(
        self, handler: Handler[..., R], calls: Iterable[Call | str], /
    ) -> list[Ref[R] | PoolError]: ...
    @overload
    def dispatch_many(
        self, handler: str, calls: Iterable[Call | str], /
    ) -> list[Ref[Any] | PoolError]: ...
    def dispatch_many(
        self, handler: Handler[..., Any] | str, calls: Iterable[Call | str], /
    ) -> list[Ref[Any] | PoolError]:
        """Dispatch many jobs in few round trips; return a reference or an error for each, in order.

        Args:
            handler: As for `Node.dispatch_many()`.
            calls: Likewise.  A generator runs in the client's thread.

        Raises:
            PoolError: As for `Node.dispatch_many()`.
        """
        found = self._ask(lambda node: self._of(node).dispatch_many(handler, calls))
        return [
            each if isinstance(each, PoolError) else Ref(self._portals, each, self._limit_s)
            for each in found
        ]

    def job(
        self, key: str, job_id: str | None = None, *, idempotency_key: str | None = None
    ) -> Ref[Any]:
        """Return a reference to a job: to wait for it, look at it, stop it; see `Node.job()`.

        Raises:
            PoolError: As for `Node.job()`.
        """
        ref = self._ask(lambda node: node.job(key, job_id, idempotency_key=idempotency_key))
        return Ref(self._portals, ref, self._limit_s)

    def status(self, key: str) -> Status:
        """Return how the live job of a key is now; see `Node.status()`.

        Raises:
            PoolError: As for `Node.status()`.
        """
        return self._ask(lambda node: node.status(key))

    def notify(self, key: str, payload: Any) -> None:
        """Send a message to the live job of a key; return once it is accepted (G-07).

        Raises:
            PoolError: As for `Node.notify()`.
        """
        self._ask(lambda node: node.notify(key, payload))

    def stop(self, key: str, cause: str = "stopped", timeout_s: float | None = None) -> None:
        """Stop the live job of a key; return when it has really ended.

        Raises:
            PoolError: As for `Node.stop()`.
        """
        self._portals.wait(lambda node, left_s: node.stop(key, cause, left_s), timeout_s)

    # --- batches and schedules --------------------------------------------------------------

    def batch(
        self,
        id: str,
        *,
        then: Follower | Iterable[Follower] = (),
        otherwise: Follower | Iterable[Follower] = (),
        success_min: int | None = None,
        open_s: float = OPEN_S,
        keep_s: float = KEEP_S,
        within: BlockingBatch | None = None,
    ) -> BlockingBatch:
        """Return a batch to be made: jobs that are counted, waited for and cancelled together.

            with client.batch("nightly", then=Follower("mail", "ops")) as batch:
                batch.add(report, (Call(tenant, day) for tenant in tenants))

        Args:
            id: As for `Node.batch()`; likewise what follows.
            then: Likewise.
            otherwise: Likewise.
            success_min: Likewise.
            open_s: Likewise.
            keep_s: Likewise.
            within: Likewise, of this client.

        Raises:
            InvalidOption: A value is out of bounds, or is none.
            PoolError: As it is entered: as for `Node.batch()`.
        """
        check_batch(id)
        if within is not None:
            checks.instance("within", within, BlockingBatch)
        options = batch_options(id, then, otherwise, success_min, open_s, keep_s, None)
        return BlockingBatch(self._portals, id, options, within, self._limit_s)

    @property
    def batches(self) -> BlockingBatches:
        """The pool's batches: to look at, wait for and cancel."""
        return BlockingBatches(self._portals, self._limit_s)

    @overload
    def schedule(
        self,
        name: str,
        when: When,
        handler: Handler[P, R],
        key: str,
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None: ...
    @overload
    def schedule(
        self, name: str, when: When, handler: str, key: str, /, *args: Any, **kwargs: Any
    ) -> None: ...
    def schedule(
        self,
        name: str,
        when: When,
        handler: Handler[Any, Any] | str,
        key: str,
        /,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Have a job dispatched whenever its time comes; return once that is stored.

        Args:
            name: As for `Node.schedule()`; likewise what follows.
            when: Likewise.
            handler: Likewise.
            key: Likewise.
            *args: Likewise.
            **kwargs: Likewise.

        Raises:
            PoolError: As for `Node.schedule()`.
        """
        self._ask(lambda node: self._of(node).schedule(name, when, handler, key, *args, **kwargs))

    @property
    def schedules(self) -> BlockingSchedules:
        """The pool's schedules: to look at, pause, resume, trigger and remove."""
        return BlockingSchedules(self._portals, self._limit_s)

    # --- all else -----------------------------------------------------------------------------

    @property
    def parked(self) -> Letters:
        """The pool's dead letters."""
        return Letters(self)

    @overload
    def map(self, name: str) -> MapReader[str]: ...
    @overload
    def map(self, name: str, *, values: type[V]) -> MapReader[V]: ...
    def map(self, name: str, *, values: Any = str) -> MapReader[Any]:
        """Return what reads a replicated map of the pool, from a copy in this process.

        The first read in a process joins the map, as entering `Node.map()` does.

        Raises:
            ConfigError, InvalidOption: As for `Node.map()`.
        """
        self._described.map(name, values=values)
        return MapReader(self, name, values)

    def call(self, fn: Callable[[Node], Awaitable[T]]) -> T:
        """Return what `fn` returns of the client's node: for all that has no call of its own here.

        As in `client.call(lambda node: node.count(handler="report"))`.  It runs on the event loop
        of the client: what blocks there holds up all others.

        Raises:
            InvalidOption: It is no function, or returns nothing that can be awaited.
            PoolError: As the node's calls.
        """
        if not callable(fn):
            raise checks.option("fn", fn, "a function of a node")

        async def called(node: Node) -> T:
            awaited: Any = fn(node)
            if not isinstance(awaited, Awaitable):
                raise checks.option("fn", fn, "a function that returns what can be awaited")
            found: T = await awaited
            return found

        return self._ask(called)

    # --- its end ------------------------------------------------------------------------------

    def close(self) -> None:
        """Leave the pool, and return when that is done, at the latest after 10 s.  Twice is fine.

        What other threads wait for is answered.  A forked child's client is its own to close.
        """
        self._portals.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Client of {self.pool!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Client is neither copied nor pickled: make one in each process")

    # ------------------------------------------------------------------------------------------

    def _of(self, node: Node) -> Dispatching:
        return Dispatching(node._open_client, self._options)

    def _ask(self, fn: Callable[[Node], Awaitable[T]]) -> T:
        return self._portals.portal().call(fn, self._limit_s)


class Letters:
    """The dead letters of a pool: `client.parked`; see `Node.parked`, which can do more."""

    __slots__ = ("_client",)

    def __init__(self, client: Client) -> None:
        self._client: Client = client

    def list(
        self,
        *,
        handler: str = "",
        prefix: str = "",
        cause: str = "",
        older_than_s: float | None = None,
        newer_than_s: float | None = None,
        cursor: str = "",
        count: int = 100,
        gaps: Gaps | None = None,
    ) -> ParkedPage:
        """Return a page of dead letters; for the arguments see `DeadLetters.list()`.

        Raises:
            PoolError: As for `DeadLetters.list()`.
        """
        return self._client._ask(
            lambda node: node.parked.list(
                handler=handler,
                prefix=prefix,
                cause=cause,
                older_than_s=older_than_s,
                newer_than_s=newer_than_s,
                cursor=cursor,
                count=count,
                gaps=gaps,
            )
        )

    def show(self, key: str, job_id: str) -> ParkedJob:
        """Return a dead letter with its arguments, its attempts and their tracebacks.

        Raises:
            PoolError: As for `DeadLetters.show()`.
        """
        return self._client._ask(lambda node: node.parked.show(key, job_id))

    def replay(self, key: str, job_id: str) -> Ref[Any]:
        """Make a job of a dead letter again; return once it is accepted.

        Raises:
            PoolError: As for `DeadLetters.replay()`.
        """
        client = self._client
        ref = client._ask(lambda node: node.parked.replay(key, job_id))
        return Ref(client._portals, ref, client._limit_s)

    def discard(self, key: str, job_id: str) -> None:
        """Throw a dead letter away.

        Raises:
            PoolError: As for `DeadLetters.discard()`.
        """
        self._client._ask(lambda node: node.parked.discard(key, job_id))


class MapReader(Generic[V]):
    """A replicated map for callers that block: each read is local, from this process's copy.

    All reads of one moment see the same as `snapshot()`; see `ReplicatedMap`.  Writes go by
    `client.call()`.
    """

    __slots__ = ("_client", "_key")

    def __init__(self, client: Client, name: str, values: type[V]) -> None:
        self._client: Client = client
        self._key: tuple[str, type[V]] = (name, values)

    @property
    def name(self) -> str:
        """The map's name."""
        return self._key[0]

    @property
    def revision(self) -> int:
        """How far this copy is."""
        return self._map().revision

    def get(self, key: str | bytes, default: V | None = None) -> V | None:
        """Return the string of a key.

        Raises:
            WrongValue: It holds a list; see `get_list()`.
        """
        return self._map().get(key, default)

    def get_list(self, key: str | bytes) -> tuple[V, ...]:
        """Return the list of a key, empty if there is none.

        Raises:
            WrongValue: It holds a string.
        """
        return self._map().get_list(key)

    def get_int(self, key: str | bytes, default: int = 0) -> int:
        """Return the whole number of a key.

        Raises:
            WrongValue: It holds something else, or one beyond 2^53 - 1 on either side of 0.
        """
        return self._map().get_int(key, default)

    def snapshot(self) -> dict[str, V | tuple[V, ...]]:
        """Return everything as of now.  O(keys)."""
        return self._map().snapshot()

    def __getitem__(self, key: str | bytes) -> V:
        return self._map()[key]

    def __contains__(self, key: object) -> bool:
        return key in self._map()

    def __iter__(self) -> Iterator[str]:
        return iter(self._map())

    def __len__(self) -> int:
        return len(self._map())

    def __repr__(self) -> str:
        return f"<MapReader of {self.name!r}>"

    def _map(self) -> ReplicatedMap[V]:
        portal = self._client._portals.portal()
        if (held := portal.maps.get(self._key)) is None:
            held = portal.call(portal.hold(*self._key), self._client._limit_s)
        return held
