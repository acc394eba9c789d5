"""What a plan's producer is, and how it is asked: whatever form it has, its answer comes in pages.

async def, async generator      on the loop
def, generator                  in a thread, a page of it at a time
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing
from itertools import islice
from typing import Any, Final, TypeAlias, TypeVar

import anyio.lowlevel
import attrs

from pool import checks
from pool.core.plans import NAME_CHARS_MAX
from pool.errors import ConfigError
from pool.jobs.job import Job
from pool.names import check_handler

PAGE: Final = 500  # entries of an answer that are taken at once
EVERY_MIN_S: Final = 0.05
EVERY_MAX_S: Final = 86_400.0
Produce: TypeAlias = Callable[[Job], Any]
F = TypeVar("F", bound=Produce)


@attrs.frozen
class StopAll:
    """An answer by which a plan stops all that it has, without being asked again."""


@attrs.frozen(eq=False, kw_only=True)
class Producer:
    """A producer as it was registered."""

    fn: Produce
    handler: Any  # a `Handler`, a name, or None: each entry says its own
    every_s: float
    timeout_s: float
    stop_max: float
    version: int


def check_plan(name: object) -> None:
    """Refuse what cannot be a plan's name."""
    check_handler(name)
    if type(name) is str and (len(name) > NAME_CHARS_MAX or ":" in name):
        problem = f"the name of a plan has at most {NAME_CHARS_MAX} characters, and no colon"
        raise ConfigError(setting="plan", problem=f"{name}: {problem}")


async def pages(job: Job, fn: Produce) -> AsyncIterator[list[Any]]:
    """Ask a producer; yield what it answers, a page at a time.

    Raises:
        InvalidOption: It is no answer.
    """
    value: Any
    if inspect.isasyncgenfunction(fn) or inspect.isgeneratorfunction(fn) or checks.is_async(fn):
        value = fn(job)
    else:
        value = await job.run_blocking(fn, job)
    if inspect.isawaitable(value):
        value = await value
    if isinstance(value, StopAll):
        yield [value]
        return
    if hasattr(type(value), "__aiter__"):
        async with aclosing(_pages(value)) as found:
            async for page in found:
                yield page
        return
    iterator = checks.several("answer", value, "keys, Call(...), Planned(...), or StopAll()")
    is_at_hand = isinstance(value, (list, tuple, set, frozenset))
    while True:
        # What is made while it is iterated over may block, and never on the loop.
        page = _page(iterator) if is_at_hand else await job.run_blocking(_page, iterator)
        if not page:
            return
        yield page
        await anyio.lowlevel.checkpoint()


def _page(iterator: Iterator[Any]) -> list[Any]:
    return list(islice(iterator, PAGE))


async def _pages(values: Any) -> AsyncGenerator[list[Any], None]:
    iterator, page = aiter(values), list[Any]()
    try:
        async for each in iterator:
            page.append(each)
            if len(page) == PAGE:
                yield page
                page = []
                await anyio.lowlevel.checkpoint()
        if page:
            yield page
    finally:
        if hasattr(iterator, "aclose"):
            await iterator.aclose()
