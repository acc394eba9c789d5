"""What a handler needs beside its arguments: made for each attempt, and closed at its end.

    registration   parameters --> those that are `Depends(...)` --> in which order they are made
    each attempt   made one after the other --> handler --> closed, the last that was made first

One that several need is made once.  Closing is the job's own code (see `closing.py`), and happens
however the attempt ended: a generator sees the error and may do something about it, but it cannot
make a failed attempt a good one.  Nothing here is called for a handler without dependencies.

Plain functions run in worker threads, as plain handlers do, and are leaked like them.  A job uses
one thread at a time, so the limit of its worker's slots is the limit for both.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
)
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    contextmanager,
)
from functools import partial
from types import SimpleNamespace, TracebackType
from typing import (
    Any,
    Final,
    Literal,
    TypeAlias,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

import anyio
import anyio.to_thread
import attrs

from pool import checks
from pool.errors import ConfigError, WrongArguments, shown
from pool.jobs.blocking import NO_BLOCKING, Blocking
from pool.jobs.closing import closed
from pool.jobs.job import Job

R = TypeVar("R")
Function: TypeAlias = Callable[..., Any]
_ANY_NUMBER: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
DEPTH_MAX: Final = 100  # of dependencies on dependencies


@attrs.frozen
class _Depends:
    """What stands in the place of a value until an attempt begins."""

    fn: Function


@overload
def Depends(fn: Callable[..., AbstractAsyncContextManager[R]]) -> R: ...
@overload
def Depends(fn: Callable[..., AbstractContextManager[R]]) -> R: ...
@overload
def Depends(fn: Callable[..., AsyncIterator[R]]) -> R: ...
@overload
def Depends(fn: Callable[..., Iterator[R]]) -> R: ...
@overload
def Depends(fn: Callable[..., Awaitable[R]]) -> R: ...
@overload
def Depends(fn: Callable[..., R]) -> R: ...
def Depends(fn: Function) -> Any:  # noqa: N802 - as users of FastAPI know it
    """Stand for what `fn` makes: as the default of a handler's parameter.

        @handlers.job("mail")
        async def mail(job: Job, to: str, *, client: Client = Depends(client)) -> None: ...

    It is no argument of the dispatch.  `fn` is called once an attempt, before the handler, with
    what it depends on itself: parameters with `Depends(...)`, and the `Job` by its annotation.  It
    is a function, or a generator that yields once and closes behind that; plain ones run in worker
    threads.  The lifespan of the handlers (`Handlers(lifespan=...)`) stands for what it has yielded
    on this node.  If it raises, the attempt has failed.

    `Annotated[Client, Depends(client)]` says the same, where its names are the module's own.  To a
    type checker such a parameter is one that whoever dispatches has to give.

    Raises:
        ConfigError: It cannot be called.
    """
    if not callable(fn):
        raise ConfigError(setting="Depends", problem=f"{shown(fn)} is not callable")
    return _Depends(fn)


# --- at registration ------------------------------------------------------------------------------

_Kind: TypeAlias = Literal["async", "plain", "generator", "context", "plain context"]


@attrs.frozen(eq=False)
class Maker:
    """One function, how it is called, and what it is given: by parameter."""

    fn: Function
    kind: _Kind
    needs: Mapping[str, Function]
    jobs: tuple[str, ...]  # parameters that take the job


@attrs.frozen(eq=False)
class Plan:
    """What is made for a handler, in order, and under which names it gets what."""

    makers: Mapping[Function, Maker]
    gives: Mapping[str, Function]
    lifespan: Function | None
    closes: bool = attrs.field(init=False)  # something of it has an end
    has_threads: bool = attrs.field(init=False)  # something of it is plain

    @closes.default
    def _(self) -> bool:
        return any(maker.kind not in ("async", "plain") for maker in self.makers.values())

    @has_threads.default
    def _(self) -> bool:
        return any("plain" in maker.kind for maker in self.makers.values())

    def has(self, fn: Function) -> bool:
        """Say whether something of it is made by this function, or by what stands for it."""
        if fn is not self.lifespan:
            return fn in self.makers
        needs = (each for maker in self.makers.values() for each in maker.needs.values())
        return fn in (*self.gives.values(), *needs)


def plan_of(
    name: str, fn: Function, lifespan: Function | None, overrides: Mapping[Function, Function]
) -> Plan | None:
    """Return what a handler depends on, None if it needs nothing.

    Raises:
        ConfigError: Dependencies need each other in a circle, or what nobody gives them.
    """
    gives = {each.name: found.fn for each, found in needs_of(name, fn) if found is not None}
    if not gives:
        return None
    making = _Making(name, lifespan, overrides)
    for each in gives.values():
        making.add(each, ())
    return Plan(making.makers, gives, lifespan)


@attrs.define(eq=False)
class _Making:
    """Puts what a handler depends on into an order."""

    name: str
    lifespan: Function | None
    overrides: Mapping[Function, Function]
    makers: dict[Function, Maker] = attrs.field(factory=dict)

    def add(self, wanted: Function, path: tuple[Function, ...]) -> None:
        """Add a dependency behind those that it needs itself."""
        fn = self.overrides.get(wanted, wanted)
        if wanted in self.makers or (wanted is self.lifespan and fn is wanted):
            return
        if wanted in path or len(path) >= DEPTH_MAX:
            way = " -> ".join(map(self._step, (*path, wanted)))
            raise _refused(self.name, f"its dependencies need each other: {way}")
        needs, jobs = dict[str, Function](), list[str]()
        for parameter, found in needs_of(self.name, fn):
            if found is not None:
                needs[parameter.name] = found.fn
                self.add(found.fn, (*path, wanted))
            elif takes_job(parameter, fn):
                jobs.append(parameter.name)
            elif parameter.default is parameter.empty and parameter.kind not in _ANY_NUMBER:
                what = f"nothing gives its dependency {_name(fn)} the parameter {parameter.name!r}"
                must = "annotate it as Job, or let it depend on something"
                raise _refused(self.name, f"{what}: {must}")
        self.makers[wanted] = _maker(fn, needs, tuple(jobs))

    def _step(self, wanted: Function) -> str:
        by = self.overrides.get(wanted)
        return _name(wanted) if by is None else f"{_name(wanted)} (in its place {_name(by)})"


def check_given(
    name: str, fn: Function, plan: Plan, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Look whether a direct call gives what would be made for it on a node.

    Raises:
        WrongArguments: It does not.
    """
    try:
        given = signature_of(fn).bind_partial(*args, **kwargs).arguments
    except (TypeError, ValueError):  # the call itself will tell
        return
    for each, wanted in plan.gives.items():
        if each not in given and each not in given.get("kwargs", ()):
            problem = f"called directly it gets nothing made: give {each}=, for {_name(wanted)}"
            raise WrongArguments(handler=name, problem=problem)


def _maker(fn: Function, needs: Mapping[str, Function], jobs: tuple[str, ...]) -> Maker:
    inner = inspect.unwrap(fn)
    if inspect.isasyncgenfunction(inner):
        return Maker(fn, "generator" if inner is fn else "context", needs, jobs)
    if inspect.isgeneratorfunction(inner):
        made = contextmanager(fn) if inner is fn else fn
        return Maker(made, "plain context", needs, jobs)
    return Maker(fn, "async" if checks.is_async(fn) else "plain", needs, jobs)


def needs_of(name: str, fn: Function) -> list[tuple[inspect.Parameter, _Depends | None]]:
    """Return the parameters of a function, with what each depends on."""
    try:
        parameters = signature_of(fn).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature
        return []
    found = list[tuple[inspect.Parameter, _Depends | None]]()
    for each in parameters:
        depends = each.default if type(each.default) is _Depends else None
        if depends is None:
            hint = hint_of(each.annotation, fn)
            if isinstance(hint, str) and "Depends(" in hint:
                raise _refused(name, f"its annotation cannot be read: {shown(hint)}")
            marks = getattr(hint, "__metadata__", ())
            depends = next((mark for mark in marks if type(mark) is _Depends), None)
        if depends is not None and each.kind is each.POSITIONAL_ONLY:
            raise _refused(name, f"{each.name!r} is positional only, and depends on something")
        found.append((each, depends))
    return found


def names_of(fn: Function) -> frozenset[str]:
    """Return the names by which the innermost function takes what it is given: all of them."""
    code = getattr(_innermost(fn), "__code__", None)
    if code is None:
        return frozenset()
    end = code.co_argcount + code.co_kwonlyargcount
    return frozenset(code.co_varnames[code.co_posonlyargcount : end])


def _innermost(fn: Function) -> Any:
    inner: Any = fn
    while isinstance(inner, partial):
        inner = inner.func
    inner = inspect.unwrap(inner)
    if not hasattr(inner, "__globals__"):  # an object that is called
        inner = inspect.unwrap(type(inner).__call__)
    return inner


def signature_of(fn: Function) -> inspect.Signature:
    """Return a signature whose annotations may name what is not there at run time.

    Raises:
        TypeError, ValueError: It has none.
    """
    if sys.version_info >= (3, 14):  # where looking at annotations carries them out
        from annotationlib import Format

        return inspect.signature(fn, annotation_format=Format.FORWARDREF)
    return inspect.signature(fn)


def hint_of(hint: Any, fn: Function) -> Any:
    """Return an annotation of a function; its text, if that names what is not there at run time."""
    if type(hint) is not str:
        return hint
    alone = SimpleNamespace(__annotations__={"it": hint})  # others may not be there at run time
    names = getattr(_innermost(fn), "__globals__", {})
    try:
        return get_type_hints(alone, dict(names), include_extras=True)["it"]
    except Exception:  # noqa: BLE001 - of the caller's own code, such as what only checkers import
        return hint


def takes_job(parameter: inspect.Parameter, fn: Function) -> bool:
    """Say whether it is the job that a parameter is annotated for."""
    hint = hint_of(parameter.annotation, fn)
    return hint is Job or hint == "Job" or (get_origin(hint) is not None and Job in get_args(hint))


def _name(fn: Function) -> str:
    return str(getattr(fn, "__qualname__", None) or shown(fn)).rpartition("<locals>.")[2]


def _refused(name: str, problem: str) -> ConfigError:
    return ConfigError(setting="handler", problem=f"{name}: {problem}")


# --- at each attempt ------------------------------------------------------------------------------

# Closes one of them: it is told what was raised, and returns whether that is swallowed.
_Close: TypeAlias = Callable[[BaseException | None], Awaitable[object]]


@attrs.frozen(eq=False)
class _InThreads(AbstractAsyncContextManager[Any]):
    """What a plain generator makes, opened and closed in threads."""

    inner: AbstractContextManager[Any]
    way: Blocking
    limiter: anyio.CapacityLimiter

    async def __aenter__(self) -> Any:
        return await self.way.in_thread(self.inner.__enter__, (), self.limiter)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.way.in_thread(self.inner.__exit__, (kind, error, traceback), self.limiter)


async def call_with(
    plan: Plan,
    call: Callable[[dict[str, Any]], Awaitable[Any]],
    job: Job,
    limiter: anyio.CapacityLimiter,
) -> Any:
    """Call a handler with what it depends on; close that, whatever it did."""
    opened: list[_Close] = []
    if not plan.closes:
        return await call(await _make(plan, job, limiter, opened))

    async def make_and_call() -> Any:
        return await call(await _make(plan, job, limiter, opened))

    return await closed(job, make_and_call, partial(_close, opened))


async def _make(
    plan: Plan, job: Job, limiter: anyio.CapacityLimiter, opened: list[_Close]
) -> dict[str, Any]:
    """Make what a handler depends on, one after the other; return it by parameter."""
    made: dict[Function, Any] = {}
    if plan.lifespan is not None:
        made[plan.lifespan] = job.resources
    way: Any = job._blocking() if plan.has_threads else NO_BLOCKING
    for fn, maker in plan.makers.items():
        given: dict[str, Any] = {name: made[need] for name, need in maker.needs.items()}
        for name in maker.jobs:
            given[name] = job
        match maker.kind:
            case "async":
                made[fn] = await maker.fn(**given)
            case "plain":
                made[fn] = await way.in_thread(partial(maker.fn, **given), (), limiter)
            case "generator":
                values = maker.fn(**given)
                try:
                    made[fn] = await values.__anext__()
                except StopAsyncIteration:
                    raise RuntimeError(f"{_name(fn)} has not yielded") from None
                opened.append(partial(_end, values))
            case _:
                manager = maker.fn(**given)
                if maker.kind == "plain context":
                    manager = _InThreads(manager, way, limiter)
                made[fn] = await manager.__aenter__()
                opened.append(partial(_leave, manager))
    return {name: made[fn] for name, fn in plan.gives.items()}


# What an exit stack and context managers would do, at half of what those cost each job.


async def _close(opened: list[_Close], raised: BaseException | None) -> None:
    """Close all, the last that was made first; raise what the closing has raised, if anything."""
    flying = raised
    try:
        while opened:
            try:
                if await opened.pop()(flying):
                    flying = None
            except BaseException as error:  # noqa: BLE001 - the next one is told, whatever it is
                _stand_behind(error, flying, raised)
                flying = error
        if flying is not None and flying is not raised:
            context = flying.__context__
            try:
                raise flying
            finally:
                flying.__context__ = context
    finally:
        flying = context = None  # their tracebacks lead back here


def _stand_behind(
    error: BaseException, flying: BaseException | None, raised: BaseException | None
) -> None:
    """Have it stand behind what it was told, as in blocks within blocks: Python knows the first."""
    last = error
    while (before := last.__context__) is not None and before is not flying:
        if before is raised:
            last.__context__ = flying
            return
        last = before


async def _end(values: AsyncGenerator[Any, None], error: BaseException | None) -> bool:
    """Let a generator end at its `yield`, where it sees the error."""
    trace = None if error is None else error.__traceback__
    try:
        if error is None:
            await values.__anext__()
        else:
            await values.athrow(error)
    except StopAsyncIteration:
        return True
    except BaseException as end:
        # One that ends an iteration cannot leave a generator as it is.
        is_wrapped = isinstance(error, (StopIteration, StopAsyncIteration))
        if error is None or (end is not error and not (is_wrapped and end.__cause__ is error)):
            raise
        error.__traceback__ = trace  # it has not come from there
        return False
    try:
        raise RuntimeError("it has yielded more than once")
    finally:
        await values.aclose()


async def _leave(
    manager: AbstractAsyncContextManager[Any], error: BaseException | None
) -> bool | None:
    if error is None:
        return await manager.__aexit__(None, None, None)
    return await manager.__aexit__(type(error), error, error.__traceback__)
