"""The forms that a handler has beside a function, each as the function that is called for it.

    generator   what it yields is how far it is; at its end it is closed, whatever that was
    class       one object an attempt, made with what it depends on: run(job, ...)
    object      start(job, ...) --> notify(job, message), one after another --> stop(job)

Which form it is is decided once, where it is registered: a plain function is called as it is.

A generator is closed where it stands: at its `yield` when its handler was told to end meanwhile
(GeneratorExit), or where it awaits (cancellation).  An object is stopped once for each start that
returned, whatever came behind that, and what it assigned to `job.state` by then is there at the
next start.  Both are shielded for the stop budget.  What is plain in
an object is called in a thread, by the rules of plain handlers.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping
from functools import partial, update_wrapper
from types import FunctionType, UnionType
from typing import (
    Any,
    Final,
    Generic,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

import anyio
import anyio.from_thread
import anyio.lowlevel
import attrs

from pool import checks
from pool.core.record import Kind, Progress
from pool.errors import ConfigError, InvalidOption, shown
from pool.jobs.closing import closed
from pool.jobs.depends import hint_of, needs_of, takes_job
from pool.jobs.job import Job

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
Function: TypeAlias = Callable[..., Any]
# What a generator handler yields: how much is done, of how much, and a note; None says nothing.
FormSaid: TypeAlias = (
    float | tuple[float, float | None] | tuple[float, float | None, str] | Progress | None
)

_ANY_NUMBER: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_METHODS: Final = ("start", "stop", "notify")


@attrs.frozen
class Result(Generic[R_co]):
    """Yield it, once, in an `async def` generator handler: what the job's result is."""

    value: R_co


class Runner(Protocol[P]):
    """The object form, for what manages its own life.

    `start` returns once what it started runs; it then runs until `stop`.  Each method may be
    `async def`; a plain one is called in a thread.  An optional `notify(job, message)` takes the
    notifications, one after another; without it they are dropped, and `message.unheard` says so.

    A `start` that raises is a failed attempt, and is not stopped.  A `notify` that raises is one,
    too: the thing is stopped and started again, and the message comes again.  A `stop` has the stop
    budget, a quarter of the lease TTL; one that takes longer is cancelled, and what it raises
    changes nothing where the job was told to end.  One that hangs in a thread is leaked.
    """

    def start(self, job: Job, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Start working on `job.key`."""

    def stop(self, job: Job, /) -> Any:
        """Stop; called exactly once for each start that returned."""


def function_of(name: str, given: Any, kind: Kind) -> Function:
    """Return the function that is called for a handler; a plain function as it is.

    Raises:
        ConfigError: It is a class that is none of the forms.
    """
    if issubclass(type(given), type):
        return _of_class(name, given, kind)
    if not _is_generator(given):
        return given  # type: ignore[no-any-return]
    return _described(_called(given, given), given, inspect.signature(given))


def object_function(name: str, runner: object) -> Function:
    """Return the function that is called for an object, which all its jobs share."""
    methods = {each: getattr(runner, each, None) for each in _METHODS}
    start = methods["start"]
    if issubclass(type(runner), type):
        must = "is a class: give an object of it, or apply service() to it for one each"
        raise refused(name, f"{shown(runner)} {must}")
    for each in ("start", "stop"):
        if not callable(methods[each]):
            raise refused(name, f"{shown(runner)} has no {each}()")
    _check_methods(name, methods)
    signature = inspect.signature(start)  # type: ignore[arg-type]
    return _described(_living(lambda *_: runner), start, _without_result(signature))


def refused(name: str, problem: str) -> ConfigError:
    """Say what is wrong with a handler."""
    return ConfigError(setting="handler", problem=f"{name}: {problem}")


# --- generators -----------------------------------------------------------------------------------


def _is_plain_generator(fn: object) -> bool:
    return any(map(inspect.isgeneratorfunction, (fn, getattr(fn, "__call__", None))))  # noqa: B004


def _is_async_generator(fn: object) -> bool:
    return any(map(inspect.isasyncgenfunction, (fn, getattr(fn, "__call__", None))))  # noqa: B004


def _is_generator(fn: object) -> bool:
    return _is_plain_generator(fn) or _is_async_generator(fn)


def _called(call: Function, like: Function) -> Function:
    """Return a function that calls this, whose answer is what the other one's would be."""

    async def through(job: Job, /, *args: Any, **kwargs: Any) -> Any:
        return await _through(job, call(job, *args, **kwargs))

    def in_thread(job: Job, /, *args: Any, **kwargs: Any) -> Any:
        return _in_thread_through(job, call(job, *args, **kwargs))

    async def awaited(job: Job, /, *args: Any, **kwargs: Any) -> Any:
        return await call(job, *args, **kwargs)

    if _is_async_generator(like):
        return through
    if _is_plain_generator(like):
        return in_thread
    return awaited if checks.is_async(like) else call


async def _through(job: Job, values: AsyncGenerator[Any, None]) -> Any:
    """Iterate over a generator; what it yields is how far the job is.  Return its result.

    Each `yield` is a checkpoint.  What cannot be progress is raised there.
    """

    async def iterate() -> Any:
        results: list[Any] = []
        step: Callable[[], Any] = values.__anext__
        try:
            while True:
                try:
                    said = await step()
                except StopAsyncIteration:
                    return results[0] if results else None
                step = values.__anext__
                try:
                    _take(job, said, results)
                except InvalidOption as error:
                    step = partial(values.athrow, error)
                await anyio.lowlevel.checkpoint()
        finally:
            del step  # it may hold an error, whose traceback leads back here

    async def close(_: BaseException | None) -> None:
        await values.aclose()

    return await closed(job, iterate, close)


def _take(job: Job, said: Any, results: list[Any]) -> None:
    if type(said) is not Result:
        job._say(said)
    elif results:
        raise checks.option("yield", said, "the first Result: a job has one")
    else:
        results.append(said.value)


def _in_thread_through(job: Job, values: Generator[Any, None, Any]) -> Any:
    """Likewise of a plain one, in its thread; its result is what it returns.

    When its handler was told to end, it is closed at its next `yield`.
    """
    say = _say_from_thread if _is_apart() else Job._say
    step: Callable[[], Any] = values.__next__
    try:
        while True:
            try:
                said = step()
            except StopIteration as end:
                return end.value
            step = values.__next__
            try:
                if type(said) is Result:
                    raise checks.option(
                        "yield", said, "progress: a plain generator returns its result"
                    )
                say(job, said)
            except InvalidOption as error:
                step = partial(values.throw, error)
    finally:
        del step
        values.close()


def _say_from_thread(job: Job, said: Any) -> None:
    anyio.from_thread.check_cancelled()
    anyio.from_thread.run_sync(job._say, said)


def _is_apart() -> bool:
    """Whether this is a thread of anyio's; called directly, as in a unit test, it is not."""
    try:
        anyio.from_thread.check_cancelled()
    except RuntimeError:
        return False
    return True


# --- classes --------------------------------------------------------------------------------------


def _of_class(name: str, given: type, kind: Kind) -> Function:
    found = {each: getattr(given, each, None) for each in ("run", *_METHODS)}
    is_object = callable(found["start"]) and callable(found["stop"])
    if callable(found["run"]) == is_object:
        has = "both" if is_object else "neither"
        must = "run(job, ...), or start(job, ...) and stop(job)"
        raise refused(name, f"{shown(given)} is a class: it has {must}; this one has {has}")
    if is_object and kind != "service":
        raise refused(name, f"{shown(given)} has start() and stop(): register it as a service")
    if inspect.isabstract(given):
        missing = ", ".join(sorted(getattr(given, "__abstractmethods__", ())))
        raise refused(name, f"{shown(given)} is abstract: it lacks {missing}")
    make, own = _maker(name, given)
    method = "start" if is_object else "run"
    first: Any = found[method]
    signature = _with(name, _method_signature(given, method), own)
    if is_object:
        _check_methods(name, found)
        return _described(_living(make), first, _without_result(signature))

    def call(job: Job, /, *args: Any, **kwargs: Any) -> Any:
        return make(job, kwargs).run(job, *args, **kwargs)

    return _described(_called(call, first), first, signature)


def _with(
    name: str, signature: inspect.Signature, own: Mapping[str, inspect.Parameter]
) -> inspect.Signature:
    """Return a signature that takes what an object is made with, too."""
    twice = next((each for each in signature.parameters if each in own), None)
    if twice is not None:
        raise refused(name, f"its __init__ and what is called of it both take {twice!r}")
    parameters = [*signature.parameters.values(), *own.values()]
    return signature.replace(parameters=sorted(parameters, key=lambda each: each.kind))


def _method_signature(given: type, method: str) -> inspect.Signature:
    """Return what a method takes behind `self`."""
    signature = inspect.signature(getattr(given, method))
    if not isinstance(inspect.getattr_static(given, method), FunctionType):
        return signature  # a class or static method, say
    return signature.replace(parameters=[*signature.parameters.values()][1:])


def _maker(
    name: str, given: type
) -> tuple[Callable[[Job, dict[str, Any]], Any], Mapping[str, inspect.Parameter]]:
    """Return what makes an object, and what that is given beside the job, by keyword.

    It takes its own out of the arguments.
    """
    init = given.__init__  # type: ignore[misc]
    own, jobs = dict[str, inspect.Parameter](), list[str]()
    for parameter, depends in needs_of(name, init)[1:]:
        if depends is not None:
            by_name = inspect.Parameter.KEYWORD_ONLY
            own[parameter.name] = parameter.replace(kind=by_name, default=depends)
        elif takes_job(parameter, init):
            jobs.append(parameter.name)
        elif parameter.default is parameter.empty and parameter.kind not in _ANY_NUMBER:
            must = "let it depend on something, or annotate it as Job"
            raise refused(
                name, f"nothing gives its __init__ the parameter {parameter.name!r}: {must}"
            )

    def make(job: Job, kwargs: dict[str, Any]) -> Any:
        mine: dict[str, Any] = {each: kwargs.pop(each) for each in own if each in kwargs}
        mine |= dict.fromkeys(jobs, job)
        return given(**mine)

    return make, own


# --- objects --------------------------------------------------------------------------------------


def _check_methods(name: str, methods: Mapping[str, Any]) -> None:
    for each in _METHODS:
        if methods[each] is not None and _is_generator(methods[each]):
            raise refused(name, f"its {each} is a generator; it is called, not iterated")


def _living(make: Callable[[Job, dict[str, Any]], Any]) -> Function:
    """Return the function that starts an object, tells it, and stops it."""

    async def run(job: Job, /, *args: Any, **kwargs: Any) -> None:
        thing = make(job, kwargs)
        start, stop, notify = thing.start, thing.stop, getattr(thing, "notify", None)
        are_async = all(checks.is_async(each) for each in (start, stop, notify or stop))
        call = _direct if are_async else _caller(job)
        is_started = False

        async def live() -> None:
            nonlocal is_started
            await call(start, job, *args, **kwargs)
            is_started = True
            async for message in job.notifications():
                if notify is not None:
                    await call(notify, job, message)
                else:
                    job._note_unheard()

        async def end(_: BaseException | None) -> None:
            if is_started:
                await call(stop, job)
                await job._keep_assigned()

        await closed(job, live, end)

    return run


async def _direct(method: Function, /, *args: Any, **kwargs: Any) -> None:
    await method(*args, **kwargs)


def _caller(job: Job) -> Callable[..., Coroutine[Any, Any, None]]:
    """Return what calls methods some of which are plain: a run has one thread at a time."""
    way, limiter = job._blocking(), anyio.CapacityLimiter(1)

    async def call(method: Function, /, *args: Any, **kwargs: Any) -> None:
        if checks.is_async(method):
            await method(*args, **kwargs)
            return
        answer = await way.in_thread(partial(method, *args, **kwargs), (), limiter)
        if inspect.isawaitable(answer):
            await answer

    return call


# --- how they are seen ----------------------------------------------------------------------------


def _without_result(signature: inspect.Signature) -> inspect.Signature:
    return signature.replace(return_annotation=None)


def _described(fn: Any, like: Any, signature: inspect.Signature) -> Function:
    """Have a function look like what it stands for."""
    update_wrapper(fn, like)
    if _is_generator(like):
        signature = signature.replace(return_annotation=_result_hint(like, signature))
    fn.__signature__ = signature
    return fn  # type: ignore[no-any-return]


def _result_hint(like: Function, signature: inspect.Signature) -> Any:
    """Return the annotation of a generator's result, which stands within its own."""
    parts = get_args(hint_of(signature.return_annotation, like))
    if _is_plain_generator(like):
        return parts[2] if len(parts) == 3 else signature.empty
    yields = parts[0] if parts else None
    union = get_args(yields) if get_origin(yields) in (Union, UnionType) else (yields,)
    found = [get_args(each)[0] for each in union if get_origin(each) is Result]
    return found[0] if found else signature.empty
