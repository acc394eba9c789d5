"""Where a running service should be: moved only by its owner, rarely, and only to a sure place.

Only to the first-ranked worker, only after the store has confirmed that it is open with room, at
most once per revision of `workers`, and a few at once per target: a rolling deployment moves a
service once or twice.

What is suspected of a death stays where that put it (`reaper.py`), until it has run for so long
that it is cleared.
"""

from __future__ import annotations

from typing import Final

import attrs

from pool.core.retry import RESEND_S
from pool.errors import PoolError
from pool.events import ServiceMoved
from pool.jobs.context import Context
from pool.jobs.run import Run
from pool.redis.commands.calls import Target
from pool.redis.commands.member import Opening

MOVES_MAX: Final = 16  # services on their way to one target at once


@attrs.define(eq=False)
class Rebalancer:
    """Decides for one worker."""

    context: Context
    worker_id: str
    revision: int = 0  # of `workers`, the latest that the worker was told
    _on_way: dict[str, int] = attrs.field(factory=dict)  # by target
    _asked: dict[str, int] = attrs.field(factory=dict)  # by key: the revision it was moved for

    async def place_for(self, run: Run) -> Target | float | None:
        """Return the worker that a run should be handed to, or after how long to look again."""
        start, revision, settings = run.start, self.revision, self.context.settings
        if start.kind != "service" or run.phase != "running" or run.why:
            return None
        own = self.context.candidates.workers.get(self.worker_id)
        if own is None:
            return None  # the map was lost, and we are about to be announced again
        if own.is_draining:
            return None  # it is cordoned, and keeps what it has
        if self.context.roster.asked.pause_of(run.key, start.handler) is not None:
            return None  # it would wait there; when that is resumed, it is looked at again
        first = self.context.targets(run.key, start.handler, lane=run.lane, limit=1)
        if not first or first[0].id == self.worker_id or self._asked.get(run.key) == revision:
            return None
        cleared_s = run.began_s + settings.crash_window_s - self.context.io.clock()
        if start.marks.deaths and cleared_s > 0:
            return cleared_s
        if not run.is_acknowledged or self._on_way.get(first[0].id, 0) >= MOVES_MAX:
            return settings.settle_delay_s + RESEND_S
        return first[0] if await self._has_room(run.lane, first[0]) else None

    def go(self, run: Run, target: Target) -> None:
        """Note that a run is on its way."""
        self._asked[run.key] = self.revision
        self._on_way[target.id] = self._on_way.get(target.id, 0) + 1
        run.target = target.id
        self.context.emit(ServiceMoved(key=run.key, target=target.name))

    def forget(self, run: Run) -> None:
        """Note that a run is gone."""
        self._asked.pop(run.key, None)
        if run.target:
            self._on_way[run.target] -= 1
            if not self._on_way[run.target]:
                del self._on_way[run.target]
            run.target = ""

    async def _has_room(self, lane: int, target: Target) -> bool:
        names, pipeline = self.context.lanes[lane].lane.names, self.context.pipeline
        try:
            text = await pipeline.execute("HGET", names.open, target.id)
            running = await pipeline.execute("SCARD", names.owned(target.name))
            pending = await pipeline.execute("XLEN", names.stream(target.name))
        except PoolError:
            return False
        told = Opening.parse(text or b"")
        takes = told.takes if told is not None and told.number == target.number else None
        return takes is not None and takes > running + pending
