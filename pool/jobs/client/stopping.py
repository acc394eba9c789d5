"""Stopping many jobs: all that a filter means, page by page, and again until none is found.

    page of jobs --> ask each to stop (in the record, or ended at once) --> wait for those of a page
      ^                                                                        |
      +---- another pass, until one finds nothing that was not asked before ---+

A job whose turn comes while others are stopped moves, and a page may miss it: a later pass finds
it.  Dying at any moment leaves each stop that was written: whoever owns the job, or a sweeper, sees
to it.  Asked for again, what has been stopped is not there, and what is stopping stays so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import anyio
import attrs

from pool.errors import NoSuchJob, PoolError, shown
from pool.jobs.client.job_client import JobClient
from pool.jobs.client.listing import PAGE, JobFilter, Listing
from pool.jobs.client.ref import JobRef, Status, wait_stopped

AT_ONCE: Final = 64  # jobs asked to stop at the same time
TOLD_MAX: Final = 100  # keys and problems that a report names
PASSES_MAX: Final = 10


@attrs.frozen(kw_only=True)
class StopReport:
    """What became of the jobs that were to be stopped.

    `found` were meant; `stopped` of them have ended, or had by then.  `keys` names the first 100.
    `problems` has, likewise, those that have not: `NotStopped`, or what was answered; each says
    what to do.  Of a dry run nothing was asked, and `stopped` is 0.
    """

    found: int
    stopped: int
    keys: tuple[str, ...]
    problems: tuple[PoolError, ...]

    @property
    def is_complete(self) -> bool:
        """Whether all have ended."""
        return self.stopped == self.found


@attrs.define
class StopMany:
    """One stop of many jobs."""

    client: JobClient
    wanted: JobFilter
    cause: str
    timeout_s: float | None
    is_dry: bool
    most: int | None = None  # no more than so many, though more are found
    on_stopped: Callable[[int], object] = lambda _: None  # is told how many have ended
    _asked: set[tuple[str, str]] = attrs.field(factory=set)
    _keys: list[str] = attrs.field(factory=list)
    _problems: list[PoolError] = attrs.field(factory=list)
    _stopped: int = 0

    async def carry_out(self) -> StopReport:
        """Stop them, and wait for their ends until the time is up."""
        now_s = self.client.context.io.clock
        until_s = None if self.timeout_s is None else now_s() + self.timeout_s
        listing = Listing(self.client)
        for _ in range(1 if self.is_dry else PASSES_MAX):
            before, cursor = len(self._asked), ""
            while True:
                page = await listing.page(self.wanted, cursor, PAGE)
                new = [each for each in page.jobs if (each.key, each.job_id) not in self._asked]
                new = new if self.most is None else new[: self.most - len(self._asked)]
                self._asked.update((each.key, each.job_id) for each in new)
                self._keys += [shown(each.key) for each in new][: TOLD_MAX - len(self._keys)]
                if not self.is_dry:
                    await self._stop(new, until_s)
                    self.on_stopped(self._stopped)
                if not (cursor := page.cursor):
                    break
            if len(self._asked) == before:
                break
        return StopReport(
            found=len(self._asked),
            stopped=self._stopped,
            keys=tuple(self._keys),
            problems=tuple(self._problems),
        )

    async def _stop(self, jobs: list[Status], until_s: float | None) -> None:
        """Ask all of a page first, so that their handlers end at the same time."""
        asked = list[JobRef[Any]]()

        async def ask(status: Status) -> None:
            try:
                await self.client.request_stop(status.key, status.job_id, self.cause)
                asked.append(JobRef(status.key, status.job_id, status.handler, self.client))
            except NoSuchJob:
                self._stopped += 1  # it has ended by itself
            except PoolError as error:
                self._note(error)

        async def wait(ref: JobRef[Any]) -> None:
            left_s = None
            if until_s is not None:
                left_s = max(0.0, until_s - self.client.context.io.clock())
            try:
                await wait_stopped(ref, left_s, left_s)
                self._stopped += 1
            except PoolError as error:
                self._note(error)

        for i in range(0, len(jobs), AT_ONCE):
            async with anyio.create_task_group() as tasks:
                for status in jobs[i : i + AT_ONCE]:
                    tasks.start_soon(ask, status)
        async with anyio.create_task_group() as tasks:
            for ref in asked:
                tasks.start_soon(wait, ref)

    def _note(self, error: PoolError) -> None:
        if len(self._problems) < TOLD_MAX:
            self._problems.append(error.with_traceback(None))
