"""What users register: functions under names, and how their jobs are run.

Names are explicit because they are stored with jobs: renaming a function must not orphan them.
"""

from __future__ import annotations

import inspect
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Coroutine,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from types import FunctionType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    Final,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    get_args,
    overload,
)

import attrs

from pool import checks
from pool.core.codec import VERSION_MAX, Codec
from pool.core.options import (
    ATTACHES,
    LIMITS,
    LINE_MAX,
    IfExists,
    Limit,
    Options,
    policy_of,
)
from pool.core.plans import handler_of, plan_and_version
from pool.core.record import begin_limits
from pool.core.retry import PLAN_BACKOFF_MAX_S, PLAN_BACKOFF_S
from pool.core.times import Cron, When, check_when
from pool.errors import ConfigError, DuplicateHandler, InvalidOption, PoolError, name_of, shown
from pool.jobs.around import Around, AroundDispatch, Happening, Hook
from pool.jobs.depends import Plan, check_given, plan_of, signature_of
from pool.jobs.forms import FormSaid, Result, Runner, function_of, object_function, refused
from pool.jobs.job import Job
from pool.jobs.producing import EVERY_MAX_S, EVERY_MIN_S, F, Producer, check_plan
from pool.jobs.typed.contract import (
    NOT_COMPARED,
    Arguments,
    CodecName,
    Encoding,
    Upcast,
    ValueCodec,
    arguments_of,
    encoding_of,
    is_canonical,
    result_of,
    state_of,
)
from pool.names import check_handler, check_new_key, check_schedule

if TYPE_CHECKING:  # it makes what is made of handlers
    from pool.jobs.node import Node

P = ParamSpec("P")
R = TypeVar("R")
H = TypeVar("H", bound=Hook)
A = TypeVar("A")
T = TypeVar("T")


@attrs.frozen
class _AsUsual:
    """What an option is that was not given: as the `Handlers` have it."""

    def __repr__(self) -> str:
        return "as usual"


USUAL: Final[Any] = _AsUsual()

# Of a schedule that stands in the code: those of `Node.options` that are of use there.
SCHEDULE_OPTIONS: Final = (
    *("delay_s", "if_exists", "queue_max", "retention_s", "expires_s", "start_timeout_s"),
    *("then", "otherwise"),
)
ATTEMPTS_MAX: Final = 1000
QUEUE_MAX: Final = 100  # jobs queued behind one of their key, unless somebody says otherwise
# The fleet knows a worker, with its handlers' names, by one value of a map (64 KiB): this leaves
# room for the rest, as long as that may be.
NAMES_BYTES_MAX: Final = 56 * 1024
DIFF_KEPT_S: Final = 60.0  # what a dry run of a plan has found
SECONDS_MIN: Final = 0.001  # of a time limit or a backoff


@attrs.frozen(eq=False)
class Handler(Generic[P, R]):
    """A registered handler.  Calling it runs the function itself, as in a unit test."""

    name: str
    fn: Callable[..., Any]
    _options: Options = attrs.field(repr=False)
    _is_async: bool = attrs.field(repr=False)
    _arguments: Arguments = attrs.field(repr=False)
    _result: ValueCodec | None = attrs.field(repr=False)  # None: as it is, in JSON
    _state: ValueCodec | None = attrs.field(repr=False)  # likewise
    _lifespan: Callable[..., Any] | None = attrs.field(repr=False, default=None)
    _plan: Plan | None = attrs.field(repr=False, default=None)  # None: it depends on nothing
    # What the next four say is of its `Handlers`, and may change until it runs.
    _around: tuple[Around, ...] = attrs.field(repr=False, default=())
    _around_dispatch: tuple[AroundDispatch, ...] = attrs.field(repr=False, default=())
    _hooks: Mapping[Happening, tuple[Hook, ...]] = attrs.field(repr=False, factory=dict)
    _log_jobs: Literal["debug", "info"] | None = attrs.field(repr=False, default=None)

    is_for_workers: ClassVar[bool] = True  # nobody else calls it, such as with an event

    def __call__(self, job: Job, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the function itself.

        Raises:
            WrongArguments: What it depends on was not given: nothing is made for it here.
        """
        if self._plan is not None:
            check_given(self.name, self.fn, self._plan, (job, *args), kwargs)
        return self.fn(job, *args, **kwargs)


@attrs.frozen
class CodedSchedule:
    """A schedule as it stands in the code; empty: its name is its handler's, its key its name."""

    name: str
    when: When
    handler: Handler[..., Any]
    key: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    options: Mapping[str, Any]


class Handlers:
    """The handlers of a service.  Make one, decorate functions with it, give it to a node."""

    def __init__(
        self,
        *,
        lifespan: Callable[[Node], AbstractAsyncContextManager[Any]] | None = None,
        log_jobs: Literal["debug", "info"] | None = None,
        timeout_s: float | None = None,
        progress_timeout_s: float | None = None,
        park_on: Collection[Limit] = (),
        attempts_max: int = 5,
        backoff_s: float = 1.0,
        backoff_max_s: float = 60.0,
        healthy_s: float = 60.0,
        retention_s: float | None = None,
        if_exists: IfExists = "reject",
        queue_max: int = QUEUE_MAX,
        expires_s: float | None = None,
        start_timeout_s: float | None = None,
    ) -> None:
        """Begin with none; all but the first two are what `job()` and `service()` go by.

        Args:
            lifespan: An async context manager function, called with the `Node`: entered once per
                node, before it takes jobs, and closed when its workers have left.  What it yields
                is `Job.resources`, and what `Depends(lifespan)` stands for.
            log_jobs: Write a line at the end of each run of their jobs, at this level.
            timeout_s: As for `job()`, unless that says otherwise; likewise all that follow.
            progress_timeout_s: Likewise.
            park_on: Likewise.
            attempts_max: Likewise.
            backoff_s: Likewise.
            backoff_max_s: Likewise.
            healthy_s: As for `service()`.
            retention_s: Likewise.
            if_exists: Likewise.
            queue_max: Likewise.
            expires_s: As for `job()`.
            start_timeout_s: Likewise.

        Raises:
            ConfigError: The lifespan is none.
            InvalidOption: A value is out of bounds.
        """
        given: object = lifespan
        if given is not None and (
            not callable(given) or checks.is_async(given) or inspect.isasyncgenfunction(given)
        ):
            must = "a function that @contextlib.asynccontextmanager was applied to"
            raise checks.setting("lifespan", lifespan, must)
        if log_jobs is not None:
            checks.word("log_jobs", log_jobs, "debug", "info")
        self._log_jobs = log_jobs
        self._usual: dict[str, Any] = {
            "timeout_s": timeout_s,
            "progress_timeout_s": progress_timeout_s,
            "park_on": _limits(park_on),
            "attempts_max": attempts_max,
            "backoff_s": backoff_s,
            "backoff_max_s": backoff_max_s,
            "healthy_s": healthy_s,
            "retention_s": retention_s,
            "if_exists": if_exists,
            "queue_max": queue_max,
            "expires_s": expires_s,
            "start_timeout_s": start_timeout_s,
        }
        self._parent: tuple[Handlers, str] | None = None  # that includes these, and their prefix
        self._around: list[Around] = []
        self._around_dispatch: list[AroundDispatch] = []
        self._hooks: dict[Happening, list[Hook]] = {}
        self._mine: list[Handler[..., Any]] = []  # those that were registered here
        self._parts: list[Handlers] = []
        self._coded: list[CodedSchedule] = []
        self._producers: list[tuple[Handler[..., Any], Producer]] = []
        self._lifespan = lifespan
        self._overrides: dict[Callable[..., Any], Callable[..., Any]] = {}
        self._by_name: dict[str, Handler[..., Any]] = {}
        self._names_bytes = 0  # as JSON
        for register in (self.job, self.service):
            register("usual")  # it says what is out of bounds

    def job(
        self,
        name: str,
        *,
        timeout_s: float | None = USUAL,
        progress_timeout_s: float | None = USUAL,
        park_on: Collection[Limit] = USUAL,
        attempts_max: int = USUAL,
        backoff_s: float = USUAL,
        backoff_max_s: float = USUAL,
        retention_s: float | None = USUAL,
        if_exists: IfExists = USUAL,
        queue_max: int = USUAL,
        expires_s: float | None = USUAL,
        start_timeout_s: float | None = USUAL,
        codec: CodecName | Codec = "json",
        version: int = 1,
        upcast: Upcast | None = None,
        state: Any = None,
    ) -> _Decorator:
        """Register a function whose jobs end with a result.

        It is called with the `Job` and the arguments of the dispatch, at least once, and by one
        worker at a time (G-02).  A plain function runs in a worker thread.

        Args:
            name: What the jobs are stored under: 1 to 128 of `A-Z a-z 0-9 _ . : -`.
            timeout_s: Longest run of one attempt, 0.001 s to 365 days; None is without limit.
            progress_timeout_s: Longest time without a `Job.progress()`, likewise.
            park_on: Limits after which there is no other attempt: "timeout", "progress", "start".
            attempts_max: After so many failed attempts the job is parked, 1 to 1000.
            backoff_s: The first retry waits up to this, 0.001 s to 365 days, each later one up to
                twice as much (full jitter).
            backoff_max_s: No retry waits longer than this.
            retention_s: How long outcomes are kept, at most 365 days, if there is room
                (`Settings.results_bytes_max`); None goes by `Settings.result_ttl_s`.
            if_exists: What a dispatch does whose key has a live job, unless it says otherwise; see
                `Node.options()`.
            queue_max: How many may be queued behind one then, 1 to 1000.
            expires_s: A job that has not begun within this, from its dispatch on, never does:
                `JobExpired`.  0.01 s to 365 days; None is without limit.
            start_timeout_s: How long each attempt may wait for a worker to begin it, likewise; then
                it has failed.
            codec: How arguments and results are encoded: "json", strict and readable; "msgspec",
                fast (extra `msgspec`); "bytes", one value as it is; or one of your own.
            version: Of the arguments, 1 to 999,999.  Jobs of a later one wait for a worker that
                knows it.
            upcast: Called with the version of a job that is older, and its arguments in terms of
                JSON, as `upcast(version, args, kwargs)`; returns the present `(args, kwargs)`.
            state: The type of `Job.state`, as an annotation; None: what JSON has itself.

        Raises:
            ConfigError: The name or the function cannot be used, or the codec is not installed.
            InvalidOption: A number is out of bounds.
            DuplicateHandler: The name is taken.
        """
        self._check_name("job", name)
        base_s, cap_s = self._backoff(backoff_s, backoff_max_s)
        expires, start = begin_limits(
            self._or("expires_s", expires_s), self._or("start_timeout_s", start_timeout_s)
        )
        return _Decorator(
            self,
            name,
            Options(
                kind="job",
                attempts_max=checks.count(
                    "attempts_max", self._or("attempts_max", attempts_max), 1, ATTEMPTS_MAX
                ),
                backoff_s=base_s,
                backoff_max_s=cap_s,
                timeout_s=self._limit("timeout_s", timeout_s),
                retention_s=self._retention(retention_s),
                policy=_policy(self._or("if_exists", if_exists), self._or("queue_max", queue_max)),
                progress_timeout_s=self._limit("progress_timeout_s", progress_timeout_s),
                park_on=_limits(self._or("park_on", park_on)),
                expires_s=expires,
                start_timeout_s=start,
            ),
            encoding := encoding_of(codec, version, upcast),
            state_of(name, state, encoding),
        )

    def service(
        self,
        name: str,
        *,
        backoff_s: float = USUAL,
        backoff_max_s: float = USUAL,
        healthy_s: float = USUAL,
        retention_s: float | None = USUAL,
        if_exists: IfExists = USUAL,
        queue_max: int = USUAL,
        codec: CodecName | Codec = "json",
        version: int = 1,
        upcast: Upcast | None = None,
        state: Any = None,
    ) -> _Decorator:
        """Register a function that runs until it is stopped: a poller, a subscription, a session.

        It is handed over when workers change, and started again for ever when it fails.  If it
        returns, it is done.

        Args:
            name: As for `job()`.
            backoff_s: As for `job()`.
            backoff_max_s: As for `job()`.
            healthy_s: After a run of this length its failures are counted afresh.
            retention_s: As for `job()`.
            if_exists: As for `job()`.
            queue_max: As for `job()`.
            codec: As for `job()`.
            version: As for `job()`.
            upcast: As for `job()`.
            state: As for `job()`.

        Raises:
            ConfigError: The name or the function cannot be used, or the codec is not installed.
            InvalidOption: A number is out of bounds.
            DuplicateHandler: The name is taken.
        """
        self._check_name("service", name)
        base_s, cap_s = self._backoff(backoff_s, backoff_max_s)
        return _Decorator(
            self,
            name,
            Options(
                kind="service",
                attempts_max=0,
                backoff_s=base_s,
                backoff_max_s=cap_s,
                healthy_s=checks.seconds("healthy_s", self._or("healthy_s", healthy_s)),
                retention_s=self._retention(retention_s),
                policy=_policy(self._or("if_exists", if_exists), self._or("queue_max", queue_max)),
            ),
            encoding := encoding_of(codec, version, upcast),
            state_of(name, state, encoding),
        )

    def runner(
        self,
        name: str,
        runner: Runner[P],
        *,
        backoff_s: float = USUAL,
        backoff_max_s: float = USUAL,
        healthy_s: float = USUAL,
        retention_s: float | None = USUAL,
        if_exists: IfExists = USUAL,
        queue_max: int = USUAL,
    ) -> Handler[P, None]:
        """Register an object that starts and stops things as a service, one for all its keys.

        For an object for each, apply `service()` to its class; see `Runner`.

        Args:
            name: As for `job()`.
            runner: It has `start(job, ...)` and `stop(job)`, and maybe `notify(job, message)`.
            backoff_s: As for `service()`; likewise all that follow.
            backoff_max_s: Likewise.
            healthy_s: Likewise.
            retention_s: Likewise.
            if_exists: Likewise.
            queue_max: Likewise.

        Raises:
            ConfigError: The name cannot be used, or the object lacks one of the two.
            InvalidOption: A number is out of bounds.
            DuplicateHandler: The name is taken.
        """
        registered = self.service(
            name,
            backoff_s=backoff_s,
            backoff_max_s=backoff_max_s,
            healthy_s=healthy_s,
            retention_s=retention_s,
            if_exists=if_exists,
            queue_max=queue_max,
        )
        return cast(Handler[P, None], registered(_looked_at(name, object_function, runner)))

    def schedule(
        self,
        when: When | str,
        *,
        tz: str = "UTC",
        name: str = "",
        key: str = "",
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Callable[[Handler[P, R]], Handler[P, R]]:
        """Have a handler's job dispatched whenever its time comes: stands above `job()`.

        It is stored under its name when a worker with these handlers starts, in the place of the
        one that stands there; what was taken out of the code stays until it is removed.  An `At`
        that is over by then is left out.  See `Node.schedule`.

        Args:
            when: A cron expression, or a `Cron`, an `Every` or an `At`.
            tz: The expression's zone.
            name: Its name; by default that of the handler.
            key: The job's key; by default the schedule's name.
            args: The function's own arguments, by place.
            kwargs: Likewise, by name.
            **options: As for `Node.options()`: delay_s, if_exists, queue_max, retention_s,
                expires_s, start_timeout_s, then, otherwise.  A node looks at them when it opens.

        Raises:
            InvalidOption: `when` is none, or the zone; or `args` or `kwargs` are none.
            ConfigError: What is decorated is no handler of these, or the name cannot be used.
        """
        taken = _taken(when, tz)
        if type(name) is not str or name:
            check_schedule(name)
        if type(key) is not str or key:
            check_new_key(key)
        given = tuple(checks.several("args", args, "arguments"))
        named = dict(checks.mapping("kwargs", {} if kwargs is None else kwargs))
        if any(type(each) is not str for each in named):
            raise checks.option("kwargs", named, "a dict of names and arguments")
        for option, value in options.items():
            if option not in SCHEDULE_OPTIONS:
                must = f"an option: {', '.join(SCHEDULE_OPTIONS)}"
                raise checks.option(option, value, must)

        def add(handler: Handler[P, R]) -> Handler[P, R]:
            if not any(handler is each for each in self._mine):
                must = "a handler of these: put @handlers.schedule() above @handlers.job()"
                raise checks.setting("schedule", handler, must)
            self._coded.append(CodedSchedule(name, taken, handler, key, given, named, options))
            return handler

        return add

    def _scheduled(self, prefix: str = "") -> Iterator[tuple[str, CodedSchedule]]:
        """Yield the schedules of all handlers, those included as well, with their names."""
        for each in self._coded:
            yield (prefix + each.name if each.name else each.handler.name), each
        for part in self._parts:
            before = part._parent[1] if part._parent is not None else ""
            yield from part._scheduled(prefix + before)

    def plan(
        self,
        name: str,
        handler: Handler[..., Any] | str | None = None,
        *,
        every_s: float = 30.0,
        timeout_s: float = 60.0,
        stop_max: float = 0.5,
        version: int = 1,
    ) -> Callable[[F], F]:
        """Register a producer, which says which keys should run: the pool makes it so.

        One worker of the fleet asks it, every so often, and is given the `Job` that keeps the plan.
        It returns or yields keys, `Call`s or `Planned`s, or returns `StopAll()`; it may be plain or
        `async def`.  What it names is started, what has other arguments than before is stopped and
        started anew, what it names no more is stopped.  Jobs that are not the plan's are left
        alone.  The plan takes a slot of a worker for itself.  See `Node.plan()`.

        Args:
            name: The plan's, 1 to 64 of A-Z, a-z, 0-9, _, . and -.
            handler: Of the keys and `Call`s; a `Planned` says its own.
            every_s: It is asked again so long after its last turn, 0.05 to 86,400.
            timeout_s: It has so long to answer, 0.001 s to 365 days.
            stop_max: An answer by which more than this share of the plan's jobs would be stopped, 0
                to 1, or all of them, changes nothing until it is confirmed.
            version: Of the producer, 1 to 999,999.  Where several are deployed, the latest keeps
                the plan.

        Raises:
            ConfigError: The name or the handler cannot be used.
            InvalidOption: A number is out of bounds.
            DuplicateHandler: The name is taken.
        """
        self._check_name("plan", name)
        check_plan(name)
        if handler is not None and not issubclass(type(handler), Handler):
            check_handler(handler)
        options = {
            "every_s": checks.seconds("every_s", every_s, EVERY_MIN_S, EVERY_MAX_S),
            "timeout_s": checks.seconds("timeout_s", timeout_s, SECONDS_MIN),
            "stop_max": checks.number("stop_max", stop_max, 0.0, 1.0),
        }
        version = checks.count("version", version, 1, VERSION_MAX)
        encoding = encoding_of("json", 1, None)

        def add(fn: F) -> F:
            if not callable(fn):
                raise checks.setting("plan", fn, "a function")
            producer = Producer(fn=fn, handler=handler, version=version, **options)

            async def keep(job: Job) -> None:
                await job.node._keep_plan(job, producer)

            async def compare(job: Job) -> Any:
                return await job.node._compare_plan(job, producer)

            service = Options(
                kind="service",
                attempts_max=0,
                backoff_s=PLAN_BACKOFF_S,
                backoff_max_s=PLAN_BACKOFF_MAX_S,
            )
            once = Options(attempts_max=1, retention_s=DIFF_KEPT_S)
            kept = self._add(handler_of(name, "plan", version), service, encoding, None, keep)
            self._add(handler_of(name, "diff", version), once, encoding, None, compare)
            self._producers.append((kept, producer))
            return fn

        return add

    def _planned(self) -> Iterator[tuple[str, Handler[..., Any], Producer]]:
        """Yield the plans of all handlers, those included as well, with their names."""
        for kept, producer in self._producers:
            yield plan_and_version(kept.name)[0], kept, producer
        for part in self._parts:
            yield from part._planned()

    def override(
        self, dependency: Callable[..., Any], by: Callable[..., Any]
    ) -> AbstractContextManager[None]:
        """Have `by` called in the place of a dependency, within a `with` block of a test.

        For attempts that begin within it.  It may depend on what it likes.

        Raises:
            ConfigError: It cannot be called, or needs what nobody gives it, or no handler here
                depends on what it should replace.
        """
        for name, given in (("dependency", dependency), ("by", by)):
            if not callable(given):
                raise checks.setting(name, given, "a function")
        plans = (handler._plan for handler in self._by_name.values())
        if not any(plan is not None and plan.has(dependency) for plan in plans):
            must = "something that a handler here depends on"
            raise checks.setting("dependency", dependency, must)
        return self._overriding(dependency, by)

    @contextmanager
    def _overriding(self, dependency: Callable[..., Any], by: Callable[..., Any]) -> Iterator[None]:
        before = dict(self._overrides)
        self._overrides[dependency] = by
        try:
            self._plan_all()
            yield
        finally:
            self._overrides = before
            self._plan_all()

    def _plan_all(self) -> None:
        for name, handler in self._by_name.items():
            plan = plan_of(name, handler.fn, handler._lifespan, self._overrides)
            object.__setattr__(handler, "_plan", plan)

    def include(self, others: Handlers, prefix: str = "") -> None:
        """Take all handlers of `others`, those that are yet to come as well.

        Their names begin with `prefix` from here on, also where they are dispatched by what
        `job()` returned.  Our middleware stands around theirs, our hooks hear of their jobs, too;
        their lifespan, options and `log_jobs` stay.

        Raises:
            ConfigError: They are included somewhere already, or a name cannot be used.
            DuplicateHandler: A name is taken.
        """
        checks.instance("others", others, Handlers, refuse=checks.setting)
        if type(prefix) is not str or prefix:
            check_handler(prefix)
        if others._parent is not None or others in self._line():
            raise ConfigError(setting="handlers", problem="they are included already")
        root, whole = self._root(prefix)
        for name in others:
            check_handler(whole + name)
            if whole + name in root._by_name:
                raise DuplicateHandler(handler=whole + name)
        others._parent = self, prefix
        self._parts.append(others)
        for name, handler in others._by_name.items():
            self._take(prefix + name, handler)
        self._root("")[0]._link((), (), {})

    def _line(self) -> list[Handlers]:
        """Return these, and those that include them."""
        return [self] if self._parent is None else [self, *self._parent[0]._line()]

    def _root(self, prefix: str) -> tuple[Handlers, str]:
        """Return the outermost that include these, and a name of ours as they have it."""
        if self._parent is None:
            return self, prefix
        return self._parent[0]._root(self._parent[1] + prefix)

    def _take(self, name: str, handler: Handler[..., Any]) -> None:
        self._check_room(name)
        self._by_name[name] = handler
        object.__setattr__(handler, "name", name)
        if self._parent is not None:
            self._parent[0]._take(self._parent[1] + name, handler)

    def _link(
        self,
        around: tuple[Around, ...],
        around_dispatch: tuple[AroundDispatch, ...],
        hooks: Mapping[Happening, tuple[Hook, ...]],
    ) -> None:
        """Tell each handler what stands around it: the includer's first."""
        around = (*around, *self._around)
        around_dispatch = (*around_dispatch, *self._around_dispatch)
        names = dict.fromkeys((*hooks, *self._hooks))
        hooks = {name: (*hooks.get(name, ()), *self._hooks.get(name, ())) for name in names}
        for handler in self._mine:
            object.__setattr__(handler, "_around", around)
            object.__setattr__(handler, "_around_dispatch", around_dispatch)
            object.__setattr__(handler, "_hooks", hooks)
        for part in self._parts:
            part._link(around, around_dispatch, hooks)

    def around_run(self, fn: Around) -> Around:
        """Have `await fn(job, call_next)` called in the place of each handler, as a decorator.

        `await call_next()` calls what is further in, at last the handler, and returns what that
        returns.  Of several the one that was added first is the outermost.

        Raises:
            ConfigError: It is no `async def`.
        """
        self._around.append(_middleware(fn))
        self._root("")[0]._link((), (), {})
        return fn

    def around_dispatch(self, fn: AroundDispatch) -> AroundDispatch:
        """Have `await fn(outgoing, call_next)` called for each dispatch, as a decorator.

        `await call_next(outgoing)` sends it and returns the `JobRef`.  The order is as for
        `around_run()`.  It is called where a handler is dispatched by what `job()` returned, and
        by its name on nodes that have it.

        Raises:
            ConfigError: It is no `async def`.
        """
        self._around_dispatch.append(_middleware(fn))
        self._root("")[0]._link((), (), {})
        return fn

    def on(self, *what: Happening) -> Callable[[H], H]:
        """Have a function hear what has happened to jobs of these handlers: see `Happened`.

        Called on the worker that had the job, once or, if that ends, not at all; a plain one in a
        thread.  Nobody waits for it; if it raises, `hook.failed` says so.

        Raises:
            InvalidOption: There is no such happening, or none was given.
        """
        for each in what or ("",):
            checks.word("what", each, *get_args(Happening))

        def add(hook: H) -> H:
            if not callable(hook):
                raise checks.setting("hook", hook, "a function")
            for each in what:
                self._hooks.setdefault(each, []).append(hook)
            self._root("")[0]._link((), (), {})
            return hook

        return add

    def _or(self, option: str, given: Any) -> Any:
        return self._usual[option] if given is USUAL else given

    def _limit(self, option: str, given: Any) -> float | None:
        limit_s: float | None = checks.seconds(
            option, self._or(option, given), SECONDS_MIN, or_none=True
        )
        return limit_s

    def _retention(self, given: Any) -> float | None:
        kept_s = checks.seconds("retention_s", self._or("retention_s", given), or_none=True)
        return None if kept_s is None else max(SECONDS_MIN, kept_s)  # None is stored as 0

    def _backoff(self, backoff_s: Any, backoff_max_s: Any) -> tuple[float, float]:
        return _backoff(self._or("backoff_s", backoff_s), self._or("backoff_max_s", backoff_max_s))

    def _lifespans(self) -> list[Callable[..., Any]]:
        """Return those of all that are included, too."""
        own = [] if self._lifespan is None else [self._lifespan]
        return own + [each for part in self._parts for each in part._lifespans()]

    def __getitem__(self, name: str) -> Handler[..., Any]:
        return self._by_name[name]

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: str) -> Handler[..., Any] | None:
        """Return the handler of this name, or None."""
        return self._by_name.get(name)

    def _options(self) -> dict[str, Options]:
        """Return the options of all, by name."""
        return {name: handler._options for name, handler in self._by_name.items()}

    def _check_name(self, method: str, name: object) -> None:
        if type(name) is FunctionType:
            problem = f"write @handlers.{method}(...) with the name that its jobs are stored under"
            raise ConfigError(setting="handler", problem=problem)
        check_handler(name)

    def _add(
        self,
        name: str,
        options: Options,
        encoding: Encoding,
        state: ValueCodec | None,
        fn: Callable[..., Any],
    ) -> Handler[..., Any]:
        fn = _looked_at(name, function_of, fn, options.kind)
        _check_function(name, fn)
        root, whole = self._root(name)
        if name in self._by_name or whole in root._by_name:
            raise DuplicateHandler(handler=whole)
        check_handler(whole)
        if options.policy == ATTACHES and not is_canonical(encoding.codec):
            raise checks.setting("codec", encoding.name, NOT_COMPARED)
        plan = plan_of(name, fn, self._lifespan, self._overrides)
        handler: Handler[..., Any] = Handler(
            name,
            fn,
            options,
            checks.is_async(fn),
            arguments_of(name, fn, encoding),
            result_of(name, fn, encoding),
            state,
            self._lifespan,
            plan,
            log_jobs=self._log_jobs,
        )
        self._take(name, handler)
        self._mine.append(handler)
        root._link((), (), {})
        return handler

    def _check_room(self, name: str) -> None:
        names_bytes = self._names_bytes + len(name) + len('"",')
        if names_bytes > NAMES_BYTES_MAX:
            problem = (
                f"with {name!r} their {len(self) + 1} names take {names_bytes:,} bytes, at most "
                f"{NAMES_BYTES_MAX:,}: give some to another worker, see Node.add_worker()"
            )
            raise ConfigError(setting="handlers", problem=problem)
        self._names_bytes = names_bytes


R_co = TypeVar("R_co", covariant=True)


class _RunsAsync(Protocol[P, R_co]):
    def run(self, job: Job, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]: ...


class _Runs(Protocol[P, R_co]):
    def run(self, job: Job, /, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


@attrs.frozen
class _Decorator:
    """Registers the function it is applied to; keeps its parameters for the type checker."""

    handlers: Handlers
    name: str
    options: Options
    encoding: Encoding
    state: ValueCodec | None

    @overload
    def __call__(
        self, fn: Callable[Concatenate[Job, P], Coroutine[Any, Any, R]]
    ) -> Handler[P, R]: ...
    @overload
    def __call__(
        self, fn: Callable[Concatenate[Job, P], AsyncIterator[FormSaid]]
    ) -> Handler[P, None]: ...
    @overload
    def __call__(
        self, fn: Callable[Concatenate[Job, P], AsyncIterator[FormSaid | Result[R]]]
    ) -> Handler[P, R]: ...
    @overload
    def __call__(
        self, fn: Callable[Concatenate[Job, P], Generator[FormSaid, Any, R]]
    ) -> Handler[P, R]: ...
    @overload
    def __call__(
        self, fn: Callable[Concatenate[Job, P], Iterator[FormSaid]]
    ) -> Handler[P, Any]: ...
    @overload
    def __call__(self, fn: type[Runner[P]]) -> Handler[P, None]: ...
    @overload
    def __call__(self, fn: type[_RunsAsync[P, R]]) -> Handler[P, R]: ...
    @overload
    def __call__(self, fn: type[_Runs[P, R]]) -> Handler[P, R]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[Job, P], R]) -> Handler[P, R]: ...
    def __call__(self, fn: Callable[..., Any]) -> Handler[..., Any]:
        return self.handlers._add(self.name, self.options, self.encoding, self.state, fn)


def _check_function(name: str, fn: object) -> None:
    problem = _looked_at(name, lambda _, given: _problem(given), fn)
    if problem:
        raise refused(name, problem)


def _taken(when: object, tz: object) -> When:
    """Return when a schedule of the code is due; `tz` belongs to an expression."""
    if type(when) is not str:
        if type(tz) is not str or tz != "UTC":
            raise checks.option("tz", tz, "left out: it stands in the Cron")
        return check_when(when)
    try:
        return Cron(when, tz=tz)  # type: ignore[arg-type]
    except InvalidOption as error:
        option = "when" if error.option == "cron" else error.option
        raise InvalidOption(option=option, value=error.value, problem=error.problem) from None


def _looked_at(name: str, look: Callable[..., T], fn: object, *more: object) -> T:
    """Return what is found out about a handler; what it is asked is the caller's own code."""
    try:
        return look(name, fn, *more)
    except PoolError:
        raise
    except Exception as error:
        problem = f"{shown(fn)} cannot be looked at: {name_of(type(error))} was raised by it"
        raise refused(name, problem) from error


def _problem(fn: object) -> str:
    if not callable(fn):
        return f"{shown(fn)} is not callable"
    try:
        signature_of(fn).bind_partial(None)
    except TypeError:
        return "does not take the Job as its first argument"
    except ValueError:  # a builtin without a signature: its first call will tell
        pass
    return ""


def _middleware(fn: A) -> A:
    if not checks.is_async(fn):
        raise checks.setting("middleware", fn, "an `async def` function")
    return fn


def _policy(if_exists: IfExists, queue_max: object) -> str:
    checks.word("if_exists", if_exists, *get_args(IfExists))
    most = checks.count("queue_max", queue_max, 1, LINE_MAX)
    return policy_of(if_exists, queue_max=most, attach_any=False)


def _limits(given: object) -> frozenset[Limit]:
    words = [checks.word("park_on", w, *LIMITS) for w in checks.several("park_on", given, "limits")]
    return frozenset(limit for limit in LIMITS if limit in words)


def _backoff(backoff_s: object, backoff_max_s: object) -> tuple[float, float]:
    base_s = checks.seconds("backoff_s", backoff_s, SECONDS_MIN)
    cap_s = checks.seconds("backoff_max_s", backoff_max_s, SECONDS_MIN)
    if cap_s < base_s:
        raise checks.option("backoff_max_s", cap_s, f"backoff_s, {base_s:g}, or more")
    return base_s, cap_s
