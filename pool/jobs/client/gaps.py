"""What a listing could not read: lanes whose server is away, each with the reason.

    gaps_of  asks all lanes at once, so that lanes that hang cost one call's time, not one each
    reading  stands around whatever is read of one lane: if it fails, it is a gap from then on

Every listing that reads all lanes takes a `Gaps`, or None.  With None the first lane that fails
fails the listing: a program must not take a part for the whole.  With a `Gaps` the listing shows
what it could read, and the caller says what is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import anyio
import attrs

from pool import checks
from pool.errors import AuthError, PoolError, StoreFault, StoreLost, StoreUnavailable, again
from pool.names import Names
from pool.redis.pipeline import Pipeline

_AWAY = (AuthError, StoreFault, StoreLost, StoreUnavailable)


@attrs.define
class Gaps:
    """The lanes that a listing has left out; give it to the listing, and look at it after.

    One may be given to several pages of the same listing: a lane that was away stays left out.
    """

    errors: dict[int, PoolError] = attrs.field(factory=dict)
    is_wanted: bool = True  # else every error is raised, and no lane is asked beforehand
    _has_looked: bool = attrs.field(default=False, init=False)

    @property
    def unread(self) -> tuple[str, ...]:
        """Which lanes were left out, and why."""
        return tuple(f"lane {number}: {error}" for number, error in sorted(self.errors.items()))

    @contextmanager
    def reading(self, number: int) -> Iterator[None]:
        """Note an error of this lane instead of raising it."""
        try:
            yield
        except _AWAY as error:
            if not self.is_wanted:
                raise
            self.errors[number] = error


async def gaps_of(given: Gaps | None, pipeline: Pipeline, lanes: Sequence[Names]) -> Gaps:
    """Return the gaps of a listing that is about to begin; the first one asks which lanes answer.

    Raises:
        InvalidOption: It is no `Gaps`.
        PoolError: None does.
    """
    gaps = Gaps(is_wanted=False) if given is None else checks.instance("gaps", given, Gaps)
    if gaps._has_looked or not gaps.is_wanted:
        return gaps

    async def ask(names: Names) -> None:
        with gaps.reading(names.number):
            await pipeline.execute("HGET", names.lane, "incarnation")

    async with anyio.create_task_group() as tasks:
        for names in lanes:
            tasks.start_soon(ask, names)
    gaps._has_looked = True
    if len(gaps.errors) == len(lanes):
        raise again(gaps.errors[min(gaps.errors)])
    return gaps
