"""What a listing could not read: lanes whose server is away, each with the reason.

    look     all lanes at once, so that lanes that hang cost one call's time and not one each
    reading  around whatever is read of one lane; a lane that fails meanwhile is a gap from then on

Every listing that reads all lanes takes a `Gaps`, or None.  With None the first lane that fails
fails the listing: a program must not take a part for the whole.  With a `Gaps` the listing shows
what it could read, and the caller says what is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import anyio
import attrs

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

    async def look(self, pipeline: Pipeline, lanes: Sequence[Names]) -> None:
        """Find the lanes that do not answer; once.

        Raises:
            PoolError: None does.
        """
        if self._has_looked or not self.is_wanted:
            return

        async def ask(names: Names) -> None:
            with self.reading(names.number):
                await pipeline.execute("HGET", names.lane, "incarnation")

        async with anyio.create_task_group() as tasks:
            for names in lanes:
                tasks.start_soon(ask, names)
        self._has_looked = True
        if len(self.errors) == len(lanes):
            raise again(self.errors[min(self.errors)])

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
    """Return the gaps of a listing that is about to begin."""
    found = Gaps(is_wanted=False) if given is None else given
    await found.look(pipeline, lanes)
    return found
