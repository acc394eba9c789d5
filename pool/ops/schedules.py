"""A schedule as it is told, on the command line and over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import attrs

from pool.core.times import packed
from pool.errors import ConfigError
from pool.jobs.client.schedules import Schedule, Schedules
from pool.ops.jsonable import TextEncoding, args_as_text


@attrs.frozen(kw_only=True)
class ScheduleState:
    """A schedule; `when` has one of `cron`, `every_s` and `at_ms`, with what belongs to it.

    Of its times `fired` have made jobs, `missed` none as nobody could fire them or as it was paused
    before their jitter was over, and `overlapped` none as their key had a job.  `next_at` is null
    while it is paused.  `args` and `kwargs` are null where they cannot be read: they are
    `payload_bytes`, made by `codec`.  `encoding` base64: the only argument is bytes, so written.
    Only a request for one schedule that is not paused has `next_times`; `note` says why they are
    no more than the first, if that is so.
    """

    name: str
    when: dict[str, Any]
    handler: str
    key: str
    is_paused: bool
    next_at: datetime | None
    last_at: datetime | None
    fired: int
    missed: int
    overlapped: int
    args: tuple[Any, ...] | None
    kwargs: dict[str, Any] | None
    payload_bytes: int = 0
    codec: str = ""
    encoding: TextEncoding = "json"
    next_times: tuple[datetime, ...] = ()
    note: str = ""

    @classmethod
    def of(cls, found: Schedule) -> ScheduleState:
        """Return a schedule as it is told, without its next times."""
        facts: dict[str, Any] = attrs.asdict(found, recurse=False)
        facts["when"] = packed(found.when)
        if found.args is not None:
            facts["args"], facts["encoding"] = args_as_text(found.args)
        return cls(**facts)


async def shown(schedules: Schedules, name: str, count: int) -> ScheduleState:
    """Return a schedule with so many of its next times.

    Raises:
        PoolError: As `Schedules.show` and `next_times`.
    """
    state = ScheduleState.of(await schedules.show(name))
    if state.next_at is None:
        return state
    try:
        times = await schedules.next_times(name, count)
    except ConfigError as error:  # its time zone is not installed here
        return attrs.evolve(state, next_times=(state.next_at,), note=error.problem)
    return attrs.evolve(state, next_times=times)
