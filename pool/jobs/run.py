"""One run: one epoch of one key, here; and how its handler is called.

What becomes of it is decided by a machine: `core/run.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from contextvars import Context as LogContext
from contextvars import ContextVar, copy_context
from functools import partial
from types import coroutine
from typing import Any, Final, TypeAlias

import anyio
import anyio.to_thread
import attrs
from structlog.contextvars import bind_contextvars

from pool.core.options import Limit, Options
from pool.core.record import Start
from pool.core.run import Life, Phase, RunWhy
from pool.errors import CodecMissing, PayloadEncodingError, UnknownVersion, WrongArguments
from pool.jobs.around import run_through
from pool.jobs.blocking import NO_BLOCKING, in_thread
from pool.jobs.closing import LEFT_OPEN
from pool.jobs.depends import call_with
from pool.jobs.handlers import Handler
from pool.jobs.job import RUNNING, Inbox, Job
from pool.jobs.keeper import NO_KEEPER
from pool.jobs.raised import Raised, read
from pool.names import pair
from pool.redis.commands.edges import Edge
from pool.redis.io.loops import Strays, is_asked_for, is_cancellation, strays
from pool.redis.io.system import IO, LINEAGE
from pool.redis.reads import NO_TURN
from pool.runtime.exceptions import has_cancellation, plain


@attrs.define(eq=False, slots=False)
class Run(Life):
    """The state of one run; only its worker touches it."""

    # What few runs ever set or read stands in the class: each field costs each job its line, but
    # what is found in the class, or first set later, costs it ten times as much.
    cause = ""
    # Since when its handler was to end.  A comment, as attrs would make a field of an annotation.
    cancelled_s = 0.0  # type: float
    has_overrun = False  # it was told that it did not
    is_limited = False  # its run-time limit is written into `due`
    has_old_limit = False  # ... is that of a run before, under the same epoch
    target = ""  # of a service that moves: to whom
    is_marked = False  # it may have told its own process to end
    # How unlikely it is that its worker dies in its trial; None: it has none.
    bits = None  # type: int | None
    has_cancelled = False  # its own slot's task
    then_epoch = 0  # of the last start that waits for its key
    refusals = 0  # in a row, of what it has to fetch before it begins
    fetches = 0  # of that, answered with what cannot be it
    cuts = 0  # in a row: the connection ended while it was fetched, and answered before
    undeliverable = ""  # why it cannot be fetched
    turn = NO_TURN  # to fetch it
    is_leaked = False  # it has been settled, and a thread of its handler goes on
    may_leak = False  # its handler is a plain one, or calls such functions
    blocking = NO_BLOCKING  # what it calls beside the event loop
    steps = b""  # what its steps stored before it began
    keeper = NO_KEEPER
    # When its handler said last how far it is.
    progressed_s = 0.0  # type: float
    # Where somebody listens: when it ended, and how long it had waited.
    ended_s = 0.0  # type: float
    waited_s = 0.0  # type: float

    start: Start
    lane: int
    queued_s: float
    phase: Phase = "queued"
    why: RunWhy = ""
    handler: Handler[..., Any] | None = None
    job: Job | None = None
    inbox: Inbox | None = None
    scope: anyio.CancelScope | None = None  # of a handler that has ended: it left one open within
    began_s: float = 0.0
    is_called: bool = False  # its handler is; until then it can be taken back: see `hang`
    is_apart: bool = False  # its slot's task was cancelled, it may be by a former run: another one
    is_acknowledged: bool = False
    edge: Edge | None = None  # how it shall end, once that is decided
    payload: bytes | None = None
    checkpoint: bytes | None = None
    state: bytes | None = None  # what its handler assigned before it was suspended
    then: tuple[Callable[[], None], ...] = ()  # called when the key is free here again
    others: tuple[Callable[[], None], ...] = ()  # ... for workers beside its own

    def gives_way_to(self, start: Start) -> bool:
        """Whether a start of its key goes before it: a later one, or what it was misread from."""
        mine = self.start
        is_misread = mine.epoch == start.epoch and mine.id != start.id
        return max(mine.epoch - is_misread, self.then_epoch) < start.epoch

    def ends_s(self, options: Options) -> float:
        """Return when it comes to a limit; infinity: it has none."""
        timeout_s, progress_s = options.timeout_s, options.progress_timeout_s
        ends_s = math.inf if timeout_s is None else self.began_s + timeout_s
        if progress_s is not None:
            ends_s = min(ends_s, (self.progressed_s or self.began_s) + progress_s)
        return ends_s

    def limit_of(self, options: Options) -> Limit:
        """Return to which limit it comes first."""
        timeout_s = options.timeout_s
        is_run = timeout_s is not None and self.ends_s(options) == self.began_s + timeout_s
        return "timeout" if is_run or options.progress_timeout_s is None else "progress"

    @property
    def is_suspect(self) -> bool:
        """Whether it may be what killed its last worker, and begins alone for that."""
        start = self.start
        return "a" in start.flags and start.marks.deaths > 0 and not self.is_acknowledged

    key: str = attrs.field(init=False)  # not a property: it is asked for 16 times a job

    @key.default
    def _(self) -> str:
        return self.start.key


# --- how a handler ended ------------------------------------------------------------------------


@attrs.define(eq=False)
class Returned:
    """It returned."""

    value: Any


@attrs.define(eq=False)
class _Threw:
    """It raised this, which nobody has read yet."""

    error: BaseException


@attrs.define(eq=False)
class Unreadable:
    """Its arguments cannot be decoded, or had, so it was not called."""

    problem: str
    cause: str = "malformed payload"


@attrs.define(eq=False)
class LeftToOthers:
    """Another program may know its arguments: this one does not, so it was not called."""

    problem: str


@attrs.define(eq=False)
class Cancelled:
    """It was cancelled, or never began."""


@attrs.define(eq=False)
class _Calling:
    """User code that is called, and is no run's handler."""

    has_cancelled: bool = False


CANCELLED: Final = Cancelled()
Ending: TypeAlias = Returned | Raised | Unreadable | LeftToOthers | Cancelled


@coroutine
def _apart(
    coro: Any, context: LogContext, run: Run | _Calling, cancels: Strays
) -> Generator[Any, Any, Returned | _Threw]:
    """Await a handler in a context of its own: slots are shared, a tenant bound to it must not be.

    A task per job would do that too, and cost more than most jobs.
    """
    step, value, forks = coro.send, None, LINEAGE.forks
    while True:
        was_cancelled = cancels.has_any()
        try:
            try:
                waits_for = context.run(step, value)
            finally:
                value = None  # an error that we threw into it: its traceback leads back here
                if LINEAGE.forks != forks:
                    LINEAGE.end_copy(forks)
            if not was_cancelled and cancels.has_any():
                run.has_cancelled = True
        except StopIteration as end:
            return Returned(end.value)
        except GeneratorExit as error:
            return _Threw(error)  # the handler's own: the end of our coroutine comes in below
        try:
            step, value = coro.send, (yield waits_for)
        except GeneratorExit:
            context.run(coro.close)
            raise
        except BaseException as error:  # noqa: BLE001 - cancellation above all: it is the handler's
            step, value = coro.throw, error


def blocker(io: IO) -> Run | None:
    """Return the run whose handler keeps the event loop from turning; for other threads."""
    run = io.inside(_apart.__code__).get("run")
    return run if isinstance(run, Run) else None


def _variables(*names: str) -> Iterator[ContextVar[Any]]:
    """Return structlog's variables of these names; to look them up for each job costs twice."""
    tokens = LogContext().run(bind_contextvars, **dict.fromkeys(names))
    return (tokens[name].var for name in names)


_POOL, _HANDLER, _KEY, _ID, _ATTEMPT, _EPOCH = _variables(
    "pool", "handler", "key", "job_id", "attempt", "epoch"
)


def context_for(pool: str, handler: str) -> LogContext:
    """Return a context in which stands what all jobs of a handler have in theirs."""

    def enter() -> None:
        _POOL.set(pool)
        _HANDLER.set(handler)
        _ATTEMPT.set(1)

    context = copy_context()
    context.run(enter)
    return context


def _enter(job: Job) -> None:
    """Note in a handler's own context whose it is; log lines carry it from there."""
    RUNNING.set(pair(job.key, job.id))
    _KEY.set(job.key)
    _ID.set(job.id)
    _EPOCH.set(job.epoch)
    if job.attempt != 1:
        _ATTEMPT.set(job.attempt)


async def _given(
    handler: Handler[..., Any],
    job: Job,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    limiter: anyio.CapacityLimiter,
) -> Any:
    """Call a handler that depends on something, or that something stands around."""
    plan = handler._plan

    async def call(more: dict[str, Any]) -> Any:
        if handler._is_async:
            return await handler.fn(job, *args, **kwargs, **more)
        value = await in_thread(partial(handler.fn, job, *args, **kwargs, **more), limiter)
        return await value if hasattr(type(value), "__await__") else value

    if plan is not None and not handler._around:
        return await call_with(plan, call, job, limiter)

    async def inner() -> Any:
        return await (call({}) if plan is None else call_with(plan, call, job, limiter))

    return await run_through(handler._around, job, inner)


async def _awaited(value: Any) -> Any:
    return await value


def _in_thread(call: Callable[[], Any]) -> Returned | _Threw:
    """Call a plain handler: not every error can be raised across threads as it is."""
    forks = LINEAGE.forks
    try:
        return Returned(call())
    except BaseException as error:  # noqa: BLE001 - user code: every error is an outcome
        return _Threw(error)
    finally:
        LINEAGE.end_copy(forks)


async def execute(
    run: Run,
    limiter: anyio.CapacityLimiter,
    cancels: Strays,
    scope: anyio.CancelScope,
    context: LogContext,
) -> Ending:
    """Call a run's handler; whatever it does, this returns, unless we are to end ourselves.

    Others may end it by `scope`; that and the context are its own.
    """
    handler, job = run.handler, run.job
    assert handler is not None
    assert job is not None
    ending: Ending | _Threw = CANCELLED
    if run.undeliverable:
        return Unreadable(run.undeliverable, "undeliverable payload")
    try:
        args, kwargs = handler._arguments.decode(handler.name, run.payload or b"")
        context.run(_enter, job)
    except (UnknownVersion, CodecMissing) as error:
        return LeftToOthers(str(error))
    except PayloadEncodingError as error:
        return Unreadable(str(error))
    except WrongArguments as error:
        return Unreadable(str(error), "wrong arguments")
    except BaseException as error:  # noqa: BLE001 - of a check of the user's own
        return read(error)
    run.scope = scope
    raised: BaseException | None = None
    is_left_open = False
    try:
        with scope:
            if handler._options.limit_s is not None:
                scope.deadline = anyio.current_time() + handler._options.limit_s
            try:
                if handler._plan is not None or handler._around:
                    given = _given(handler, job, args, kwargs, limiter)
                    ending = await _apart(given, context, run, cancels)
                elif handler._is_async:
                    ending = await _apart(handler.fn(job, *args, **kwargs), context, run, cancels)
                else:
                    call = partial(context.run, handler.fn, job, *args, **kwargs)
                    ending = await anyio.to_thread.run_sync(_in_thread, call, limiter=limiter)
                    if isinstance(ending, Returned) and hasattr(type(ending.value), "__await__"):
                        # Of a plain function around an async one, as many a decorator makes it.
                        ending = await _apart(_awaited(ending.value), context, run, cancels)
            except GeneratorExit:
                raise
            except BaseException as error:  # noqa: BLE001 - user code: every error is an outcome
                raised, ending = error, _Threw(error)
            if raised is not None and has_cancellation(raised):
                ending, raised = CANCELLED, plain(raised)
                raise raised  # our scope knows its own; of other errors it shall see nothing
    except GeneratorExit:
        raise  # our own coroutine is being closed
    except BaseException as error:
        # Leaving our scope fails only if the handler has left one open within it.
        if is_cancellation(error) and is_asked_for():
            raise
        if error is not raised and issubclass(type(error), RuntimeError):
            is_left_open = True
            error = _open_scope(raised, is_cancelled=scope.cancel_called)
        ending = _Threw(error)
    finally:
        raised = None  # its traceback leads back here
    if not is_left_open:
        run.scope = None
    if scope.cancel_called and not run.is_leaked:
        run.step("deadline")  # nothing else cancels without a reason
    is_late = scope.cancel_called and anyio.current_time() >= scope.deadline
    if isinstance(ending, _Threw):
        threw, ending = ending, read(ending.error)
        # Drop the error: its traceback leads back here, and where it was raised in a thread to
        # what that has returned.
        del threw.error
        # A stranger's cancellation came together with ours, or it was raised in a thread.
        return CANCELLED if ending.is_cancellation and scope.cancel_called else ending
    # What comes too late does not count, whatever else was asked of it since.
    return CANCELLED if is_late else ending


async def attempted(
    call: Callable[[], Coroutine[Any, Any, Any]], scope: anyio.CancelScope
) -> Returned | Raised | Cancelled:
    """Call user code that is no handler, by the rule of handlers: see `execute()`.

    For a task of its own: whatever cancelled that, and has not come yet, ends with it.
    Whatever it does, this returns: how it ended, or `CANCELLED` where `scope` was.  It raises only
    the cancellation that a scope around us asked for.
    """
    ending: Returned | _Threw | Cancelled = CANCELLED
    raised: BaseException | None = None
    try:
        with scope:
            try:
                ending = await _apart(call(), copy_context(), _Calling(), strays())
            except GeneratorExit:
                raise
            except BaseException as error:  # noqa: BLE001 - user code: every error is an outcome
                raised, ending = error, _Threw(error)
            if raised is not None and has_cancellation(raised):
                ending, raised = CANCELLED, plain(raised)
                raise raised
    except GeneratorExit:
        raise  # our own coroutine is being closed
    except BaseException as error:
        if is_cancellation(error) and is_asked_for():
            raise
        if error is not raised and issubclass(type(error), RuntimeError):
            error = _open_scope(raised, is_cancelled=scope.cancel_called)
        ending = _Threw(error)
    finally:
        raised = None  # its traceback leads back here
    if not isinstance(ending, _Threw):
        return ending
    told = read(ending.error)
    del ending.error
    return CANCELLED if told.is_cancellation and scope.cancel_called else told


def _open_scope(raised: BaseException | None, *, is_cancelled: bool) -> BaseException:
    if raised is not None and (is_cancelled or not is_cancellation(raised)):
        return raised
    return RuntimeError(LEFT_OPEN)
