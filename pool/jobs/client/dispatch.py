"""The calls that dispatch: one job, or many in few round trips, with options."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Final, ParamSpec, TypeVar, overload

import anyio
import anyio.lowlevel
import attrs

from pool import checks
from pool.core.retry import DISPATCH_RETRY_S
from pool.core.times import When
from pool.errors import (
    InvalidOption,
    MiddlewareFailed,
    PoolError,
    StoreUnavailable,
    again,
    name_of,
    shown,
)
from pool.jobs.around import Outgoing, dispatch_through
from pool.jobs.client.dispatcher import (
    BATCH_BYTES_MAX,
    BATCH_MAX,
    Accepted,
    Pending,
)
from pool.jobs.client.job_client import Admitting, JobClient
from pool.jobs.client.options import DispatchOptions, new_id
from pool.jobs.client.ref import JobRef
from pool.jobs.client.schedules import schedule
from pool.jobs.handlers import Handler
from pool.names import lane_of
from pool.redis.commands.admission import Admission
from pool.redis.pipeline import LATE
from pool.runtime.exceptions import told

P = ParamSpec("P")
R = TypeVar("R")

_CALLS: Final = "Call(...) or keys"
MANY_MAX: Final = 100_000  # jobs in one `dispatch_many`
SHARE_MAX: Final = 4096  # of those, given to their lanes at once: some 10 ms of the loop
SLICE_BYTES_MAX: Final = BATCH_BYTES_MAX  # of payloads of a lane, admitted at once
TURN_MAX: Final = 1024  # ... prepared in one turn of the loop: some 20 ms


class Call:
    """One job of a `dispatch_many`: its key, and its arguments."""

    __slots__ = ("_known", "args", "key", "kwargs")

    def __init__(self, key: str, /, *args: Any, **kwargs: Any) -> None:
        self.key: str = key
        self.args: tuple[Any, ...] = args
        self.kwargs: dict[str, Any] = kwargs
        self._known = ""

    def identified(self, *, job_id: str | None = None, idempotency_key: str | None = None) -> Call:
        """Return it with an id or an idempotency key of its own; see `Node.options`.

        Raises:
            InvalidOption: It is none, or both are given.
        """
        call = Call(self.key, *self.args, **self.kwargs)
        call._known = new_id(job_id, idempotency_key)
        return call

    def __repr__(self) -> str:
        return f"Call({shown(self.key)!r}, ...)"


@attrs.frozen
class _Share:
    """What one lane has of a `dispatch_many`; where an answer belongs is told by its place."""

    calls: Sequence[Call | str]
    places: Sequence[int]


@attrs.define(eq=False)
class _Turns:
    """How the lanes share the loop: so many calls are prepared before all others have a turn."""

    most: int
    count: int = 0
    lock: anyio.Lock = attrs.field(factory=lambda: anyio.Lock(fast_acquire=True))


def _checked(given: object) -> Call:
    if issubclass(type(given), Call):
        return given  # type: ignore[return-value]
    raise _no_calls(given, "neither a Call nor a key")


def _no_calls(given: object, problem: str) -> InvalidOption:
    return InvalidOption(option="calls", value=shown(given), problem=problem)


class Dispatching:
    """The dispatching calls, with options already chosen; `Node` is one, `Node.options` others."""

    def __init__(self, opened: Callable[[], JobClient], options: DispatchOptions) -> None:
        self._opened = opened  # raises where the node is not open
        self._options = options

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
            key: What the job is about, 1 to 512 bytes in UTF-8.  Same key, same worker, as long
                as the set of workers stays as it is and that worker has room.
            *args: The function's own arguments, at most `Settings.payload_bytes_max` encoded.
            **kwargs: Likewise.

        Raises:
            JobExists: The key has a live job; `owner` says where.  See `options(if_exists=...)`.
            JobStopping, ArgumentsDiffer, QueueFull: The same, where another policy was asked for.
            IdempotencyConflict: The id or idempotency key is that of a job with another handler or
                other arguments; see `options(idempotency_key=...)`.
            PoolFull: `Settings.queued_jobs_max` jobs wait already.  Retry later.
            UnknownHandler: No node ever registered the name; see `options(allow_unknown=...)`.  Not
                for what `Handlers.job()` returned, or a name in the node's own `handlers`: such a
                job waits for its worker, since its name cannot be misspelt.
            InvalidKey, PayloadEncodingError, PayloadTooLarge: Nothing was sent.
            WrongArguments: They are not those of the handler, as far as this process knows it: by
                what `Handlers.job()` returned, or by its name in the node's own `handlers`.
            StorageFull: Redis is at its memory limit; nothing was written.
            StoreUnavailable: Redis cannot be reached; `maybe_done` says if the job may exist.
            StoreLost: Redis came back without the pool's data; dispatch again. `maybe_done` says if
                it may have run.
            NotRunning: The node is not open.
        """
        client = self._opened()
        admitting = client.admitting(handler, self._options)
        if admitting.around:
            return await self._dispatch_through(admitting, handler, key, args, kwargs)
        [pending] = client.dispatcher.admit([admitting.admission(key, args, kwargs)])
        answer = await pending.wait()
        if isinstance(answer, Accepted):
            return _ref(client, answer, handler)
        raise again(await client.explained(answer, pending.deadline_s))

    @overload
    async def schedule(
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
    async def schedule(
        self, name: str, when: When, handler: str, key: str, /, *args: Any, **kwargs: Any
    ) -> None: ...
    async def schedule(
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

        One of this name is changed.  It goes on from where it stood unless `when` is another one,
        and a paused one stays paused.  Each time makes one job, whichever process dies and whatever
        the server's clock does; its id is the name and the time, in UTC: see `Job.scheduled_for`.
        The job is never refused for room.  If its key has a live job, `options(if_exists=...)` or
        what the handler says decides: with `reject` and `attach` there is none for that time.
        Middleware around dispatches is not called.

        Args:
            name: 1 to 96 of A-Z, a-z, 0-9, _, ., : and -.
            when: A `Cron`, an `Every` or an `At`, by the clock of the Redis server.
            handler: As for `dispatch()`; likewise all that follow.
            key: Likewise.
            *args: Likewise.
            **kwargs: Likewise.

        Raises:
            InvalidOption: `when` is none, or its only time is over; or an option cannot be used:
                each job has an id of its own.
            ConfigError: The name cannot be used.
            UnknownHandler, InvalidKey, WrongArguments: As for `dispatch()`; likewise the others.
            PayloadEncodingError, PayloadTooLarge: Likewise.
            StorageFull, StoreUnavailable, StoreLost, NotRunning: Likewise.
        """
        call = handler, key, args, kwargs
        await schedule(self._opened(), name, when, call, self._options)

    async def _dispatch_through(
        self,
        admitting: Admitting,
        handler: Handler[Any, Any] | str,
        key: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        known: str = "",
    ) -> JobRef[Any]:
        """Dispatch by way of middleware."""
        client = admitting.client

        async def send(outgoing: Outgoing) -> JobRef[Any]:
            given = dict(outgoing.kwargs)
            admission = admitting.admission(outgoing.key, tuple(outgoing.args), given, known)
            [pending] = client.dispatcher.admit([admission])
            answer = await pending.wait()
            if isinstance(answer, Accepted):
                return _ref(client, answer, handler)
            raise again(await client.explained(answer, pending.deadline_s))

        outgoing = Outgoing(
            handler=admitting.name,
            key=key,
            args=args,
            kwargs=kwargs,
            options=self._options.told(),
        )
        return await dispatch_through(admitting.around, outgoing, send)

    async def _each_through(
        self,
        admitting: Admitting,
        handler: Handler[Any, Any] | str,
        given: Sequence[Call | str],
    ) -> list[JobRef[Any] | PoolError]:
        """Dispatch many by way of middleware, some at once."""
        answers: list[Any] = [None] * len(given)

        async def one(place: int, call: Call | str) -> None:
            made: Call | None = None
            try:
                made = Call(call) if isinstance(call, str) else _checked(call)
                answers[place] = await self._dispatch_through(
                    admitting, handler, made.key, made.args, made.kwargs, made._known
                )
            except PoolError as error:
                answers[place] = error.with_traceback(None)
            except Exception as error:  # noqa: BLE001 - of the middleware
                failed: PoolError = _no_calls(call, f"{name_of(type(error))} was raised by it")
                if made is not None:
                    failed = MiddlewareFailed(key=made.key, problem=told(error))
                failed.__cause__ = error.with_traceback(None)
                answers[place] = failed

        for first in range(0, len(given), BATCH_MAX):
            async with anyio.create_task_group() as tasks:
                for place, call in enumerate(given[first : first + BATCH_MAX], first):
                    tasks.start_soon(one, place, call)
        return answers

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

        Each lane takes its share at its own pace.  One that has not answered for `op_timeout_s`
        keeps none of the others waiting: what is its own fails then, `StoreUnavailable`, and what
        of that was not sent (`maybe_done` is false) is not tried.

        Cancelling this call takes no job back, and leaves those undispatched whose turn had not
        come.  What middleware raises is `MiddlewareFailed` in the place of its call, or itself if
        it is a `PoolError`.

        Args:
            handler: As for `dispatch()`.
            calls: `Call(key, *args, **kwargs)` each, or just a key; at most 100,000.

        Raises:
            InvalidOption: Too many calls, or `calls` is none of several: text, say, or a dict; or
                `handler` is none.
            ConfigError: `handler` cannot be a name.
            NotRunning: The node is not open.
        """
        client = self._opened()
        admitting = client.admitting(handler, self._options)
        given = list(islice(checks.several("calls", calls, _CALLS), MANY_MAX + 1))
        if len(given) > MANY_MAX:
            raise InvalidOption(
                option="calls", value=f"over {MANY_MAX}", problem=f"at most {MANY_MAX}"
            )
        if admitting.around:
            return await self._each_through(admitting, handler, given)
        return await _Many(admitting, handler, given).dispatch()


def _ref(client: JobClient, accepted: Accepted, handler: Handler[Any, Any] | str) -> JobRef[Any]:
    name, result = accepted.handler, None
    # Of what it attached to, it may not be the handler.
    if type(handler) is Handler and handler._result and handler.name == name:
        result = handler._result
    # Not JobRef[Any](...), which would cost as much again.
    return JobRef(accepted.key, accepted.job_id, name, client, accepted.seen, result)


@attrs.define(eq=False)
class _Many:
    """One `dispatch_many`."""

    admitting: Admitting
    handler: Handler[Any, Any] | str
    given: Sequence[Call | str]
    answers: list[Any] = attrs.field(init=False)

    async def dispatch(self) -> list[JobRef[Any] | PoolError]:
        """Dispatch all; return a reference or an error for each."""
        self.answers = [None] * len(self.given)
        shares = await self._shares()
        turns = _Turns(min(BATCH_MAX * len(shares), TURN_MAX))
        if len(shares) == 1:
            await self._dispatch_share(shares[0], turns)
            return self.answers
        errors: list[Exception] = []

        async def dispatch(share: _Share) -> None:
            try:
                await self._dispatch_share(share, turns)
            except Exception as error:  # noqa: BLE001 - it ends no other lane's share
                errors.append(error)

        async with anyio.create_task_group() as tasks:
            for share in shares:
                tasks.start_soon(dispatch, share)
        if errors:
            raise errors[0]  # as with one lane
        return self.answers

    async def _shares(self) -> Sequence[_Share]:
        """Give each lane what is its own: one that hangs keeps none of the others' waiting."""
        given, lanes = self.given, len(self.admitting.client.context.lanes)
        if lanes == 1:
            return (_Share(given, range(len(given))),)
        shares: list[tuple[list[Call | str], list[int]]] = [([], []) for _ in range(lanes)]
        for first in range(0, len(given), SHARE_MAX):
            for place, call in enumerate(given[first : first + SHARE_MAX], first):
                try:
                    key = call if isinstance(call, str) else call.key
                    calls, places = shares[lane_of(key, lanes)]
                except Exception:  # noqa: BLE001 - no key, or no call, as is told where it is admitted
                    calls, places = shares[0]
                calls.append(call)
                places.append(place)
            await anyio.lowlevel.checkpoint()
        return [_Share(calls, places) for calls, places in shares if calls]

    async def _dispatch_share(self, share: _Share, turns: _Turns) -> None:
        """Dispatch what one lane has, at its own pace.

        By slices: encoding 100,000 calls would hold the event loop up for seconds, and the time
        that each has for its second try would be over before it is sent once.  The server carries
        one slice out while the next one is prepared; of larger ones it would wait for each.

        So a lane has `op_timeout_s` for each two slices, while its line does not move.  Once it has
        let that pass, it is not waited for again.
        """
        under_way: Sequence[Pending | PoolError] = ()
        done, first, is_silent = 0, 0, False
        while first < len(share.calls):
            calls = share.calls[first : first + BATCH_MAX]
            async with turns.lock:
                taken = _unsent(len(calls)) if is_silent else self._admit(calls)
                turns.count += len(taken)
                if turns.count >= turns.most:
                    turns.count = 0
                    await anyio.lowlevel.checkpoint()  # the pipeline sends what there is
            is_late = await self._tell(under_way, share.places[done:first])
            under_way, done, is_silent = taken, first, is_silent or is_late
            first += len(taken)
        await self._tell(under_way, share.places[done:])

    def _admit(self, calls: Sequence[Call | str]) -> list[Pending | PoolError]:
        """Admit calls, as many as there is room for in a slice."""
        items, left = list[Admission | PoolError](), SLICE_BYTES_MAX
        admission = self.admitting.admission
        for call in calls:
            try:
                one = Call(call) if isinstance(call, str) else _checked(call)
                item = admission(one.key, one.args, one.kwargs, one._known)
                items.append(item)
                if (left := left - len(item.payload)) <= 0:
                    break
            except PoolError as error:
                items.append(error.with_traceback(None))  # which leads back here
            except Exception as error:  # noqa: BLE001 - of the caller's own code, such as a key's property
                refused = _no_calls(call, f"{name_of(type(error))} was raised by it")
                refused.__cause__ = error.with_traceback(None)
                items.append(refused)
        admitted = [item for item in items if isinstance(item, Admission)]
        dispatcher = self.admitting.client.dispatcher
        pending = iter(dispatcher.admit(admitted, is_bounded=False))
        return [item if isinstance(item, PoolError) else next(pending) for item in items]

    async def _tell(self, asked: Sequence[Pending | PoolError], places: Sequence[int]) -> bool:
        """Put the answers where they belong; return whether the lane gave none in time."""
        client, handler = self.admitting.client, self.handler
        for place, each in zip(places, asked, strict=True):
            answer = each if isinstance(each, PoolError) else (each.answer or await each.wait())
            self.answers[place] = (
                _ref(client, answer, handler) if isinstance(answer, Accepted) else answer
            )
        now_s = client.context.io.clock()
        for place, each in zip(reversed(places), reversed(asked), strict=True):
            if isinstance(each, Pending):  # the last that was sent
                is_late = each.deadline_s - DISPATCH_RETRY_S <= now_s
                return is_late and isinstance(self.answers[place], StoreUnavailable)
        return False


def _unsent(count: int) -> Sequence[PoolError]:
    return [StoreUnavailable(problem=LATE, maybe_done=False) for _ in range(count)]
