"""What stands around the handlers of a `Handlers`: middleware, and hooks.

    dispatch   first added --> ... --> last added --> sent            of the includer before its own
    run        first added --> ... --> last added --> dependencies --> handler

Each may call the next one, or return or raise something itself.  What it raises around a run counts
as raised by the handler.

Hooks only hear: of what has happened to a job of theirs, on the worker that had it, in tasks of
their own.  Nobody waits for them, they are not repeated, and one that fails is an event.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import attrs

from pool import checks
from pool.events import Event, HookFailed
from pool.jobs.blocking import in_thread
from pool.jobs.job import Job
from pool.redis.io.loops import is_asked_for, is_cancellation, strays
from pool.runtime.exceptions import told

if TYPE_CHECKING:  # it is made by what this stands around
    from pool.jobs.client.ref import JobRef

HOOKS_MAX: Final = 1000  # under way at once, of one worker

Happening: TypeAlias = Literal["started", "recovered", "retried", "parked", "moved", "lost"]


@attrs.frozen(kw_only=True)
class Happened:
    """What a hook hears of.

    `started`: the handler is about to be called.  `recovered`: likewise, after a run that ended
    without handing over.  `retried`: an attempt failed, and another follows.  `parked`: none does.
    `moved`: it was given back for others.  `lost`: it is another's by now, or its lease has ended.
    """

    what: Happening
    handler: str
    key: str
    job_id: str
    attempt: int
    epoch: int
    node_id: str


@attrs.frozen(kw_only=True)
class Outgoing:
    """One dispatch on its way out.  `attrs.evolve()` makes a changed copy for the next one.

    `handler` and `options` are shown; what is changed of them does not count.
    """

    handler: str
    key: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    options: Mapping[str, Any]


Around: TypeAlias = Callable[[Job, Callable[[], Awaitable[Any]]], Awaitable[Any]]
AroundDispatch: TypeAlias = Callable[
    [Outgoing, Callable[[Outgoing], Awaitable["JobRef[Any]"]]], Awaitable["JobRef[Any]"]
]
Hook: TypeAlias = Callable[[Happened], Any]


async def run_through(
    around: Sequence[Around], job: Job, call: Callable[[], Awaitable[Any]]
) -> Any:
    """Call a handler by way of its middleware."""
    for each in reversed(around):
        call = partial(each, job, call)
    return await call()


async def dispatch_through(
    around: Sequence[AroundDispatch],
    outgoing: Outgoing,
    send: Callable[[Outgoing], Awaitable[JobRef[Any]]],
) -> JobRef[Any]:
    """Dispatch by way of the middleware."""
    for each in reversed(around):
        send = partial(_next, each, send)
    return await send(outgoing)


async def _next(
    each: AroundDispatch,
    send: Callable[[Outgoing], Awaitable[JobRef[Any]]],
    outgoing: Outgoing,
) -> JobRef[Any]:
    return await each(outgoing, send)


async def tell_hooks(
    hooks: Sequence[Hook], happened: Happened, emit: Callable[[Event], object]
) -> None:
    """Call hooks, one after the other; whatever one does, the next is called."""
    cancels = strays()
    for hook in hooks:
        try:
            if checks.is_async(hook):
                await hook(happened)
            else:
                await in_thread(partial(hook, happened), None)
        except BaseException as error:
            if is_cancellation(error) and is_asked_for():
                raise
            emit(failed(happened, told(error)))
            await cancels.absorb()


def failed(happened: Happened, problem: str) -> HookFailed:
    """Say that a hook was not called, or in vain."""
    return HookFailed(
        key=happened.key, handler=happened.handler, what=happened.what, problem=problem
    )
