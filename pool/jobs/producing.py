"""What a plan's producer is, and how it is asked: whatever form it has, a page at a time.

async def, async generator      on the loop
def, generator                  in a thread, a page of it at a time
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final, TypeAlias, TypeVar

import anyio.lowlevel
import attrs

from pool import checks
from pool.core.plans import NAME_CHARS_MAX
from pool.errors import ConfigError, InvalidOption, shown
from pool.jobs.job import Job
from pool.names import check_handler

PAGE: Final = 200  # entries of an answer that are taken at once: some 3 ms of the loop's
_ANSWER: Final = "keys, Call(...) or Planned(...), nor StopAll()"
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


class NoAnswer(Exception):
    """What a producer returned is no answer, as the text says."""


async def ask(job: Job, fn: Produce, take: Callable[[Any], object]) -> None:
    """Ask a producer; `take` is called with each entry of its answer, in order.

    Raises:
        NoAnswer: It is none.
        Exception: What the producer raised, or `take`.
    """
    value: Any
    if inspect.isasyncgenfunction(fn) or inspect.isgeneratorfunction(fn) or checks.is_async(fn):
        value = fn(job)
    else:
        value = await job.run_blocking(fn, job)
    if inspect.isawaitable(value):
        value = await value
    if isinstance(value, StopAll):
        take(value)
    elif hasattr(type(value), "__aiter__"):
        await _take_async(aiter(value), take)
    else:
        try:
            iterator = checks.several("answer", value, _ANSWER)
        except InvalidOption as refused:
            if refused.__cause__ is not None and hasattr(type(value), "__iter__"):
                raise refused.__cause__ from None  # of the user's own code
            problem = f"it returned {shown(value)}, and not an iterable of {_ANSWER}"
            raise NoAnswer(problem) from None
        is_at_hand = isinstance(value, (list, tuple, set, frozenset))
        # What is made while it is iterated over may block, and never on the loop.
        while page := _page(iterator) if is_at_hand else await job.run_blocking(_page, iterator):
            for each in page:
                take(each)
            await anyio.lowlevel.checkpoint()


def _page(iterator: Iterator[Any]) -> list[Any]:
    return list(islice(iterator, PAGE))


async def _take_async(iterator: Any, take: Callable[[Any], object]) -> None:
    count = 0
    try:
        async for each in iterator:
            take(each)
            count += 1
            if count % PAGE == 0:
                await anyio.lowlevel.checkpoint()
    finally:
        if hasattr(iterator, "aclose"):
            await iterator.aclose()
