"""The schedules of a pool for callers that block."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, TypeVar

from pool.jobs.client.gaps import Gaps
from pool.jobs.client.schedules import Schedule, ScheduleList, Schedules
from pool.jobs.sync.portal import Portals
from pool.jobs.sync.ref import Ref

T = TypeVar("T")


class BlockingSchedules:
    """The schedules of a pool: `client.schedules`.  `Client.schedule()` makes them."""

    __slots__ = ("_limit_s", "_portals")

    def __init__(self, portals: Portals, limit_s: float | None) -> None:
        self._portals: Portals = portals
        self._limit_s: float | None = limit_s

    def list(
        self,
        *,
        handler: str = "",
        prefix: str = "",
        cursor: str = "",
        count: int = 100,
        gaps: Gaps | None = None,
    ) -> ScheduleList:
        """Return a page of schedules, in no order; for the arguments see `Schedules.list()`.

        Raises:
            PoolError: As for `Schedules.list()`.
        """
        return self._ask(
            lambda all_of: all_of.list(
                handler=handler, prefix=prefix, cursor=cursor, count=count, gaps=gaps
            )
        )

    def show(self, name: str) -> Schedule:
        """Return a schedule.

        Raises:
            PoolError: As for `Schedules.show()`.
        """
        return self._ask(lambda all_of: all_of.show(name))

    def next_times(self, name: str, count: int = 5) -> tuple[datetime, ...]:
        """Return when a schedule is due next, as if it were not paused; at most 1,000 times.

        Raises:
            PoolError: As for `Schedules.next_times()`.
        """
        return self._ask(lambda all_of: all_of.next_times(name, count))

    def pause(self, name: str) -> None:
        """Fire a schedule no more, until it is resumed.  Twice is fine.

        Raises:
            PoolError: As for `Schedules.pause()`.
        """
        self._ask(lambda all_of: all_of.pause(name))

    def resume(self, name: str) -> None:
        """Fire a paused schedule again, from now on; twice is fine.

        Raises:
            PoolError: As for `Schedules.resume()`.
        """
        self._ask(lambda all_of: all_of.resume(name))

    def trigger(self, name: str, *, idempotency_key: str | None = None) -> Ref[Any]:
        """Dispatch the job of a schedule now, beside its times; return it.

        Raises:
            PoolError: As for `Schedules.trigger()`.
        """
        ref = self._ask(lambda all_of: all_of.trigger(name, idempotency_key=idempotency_key))
        return Ref(self._portals, ref, self._limit_s)

    def remove(self, name: str) -> None:
        """Take a schedule away; jobs that it has made stay.

        Raises:
            PoolError: As for `Schedules.remove()`.
        """
        self._ask(lambda all_of: all_of.remove(name))

    def _ask(self, fn: Callable[[Schedules], Awaitable[T]]) -> T:
        return self._portals.portal().call(lambda node: fn(node.schedules), self._limit_s)
