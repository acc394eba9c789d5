"""Where jobs go that stood together when their worker died: to different processes, evenly.

    48 jobs aboard at a death --a T-th to each of T = 4--> 12 at the next, then 3, then 1

Of those aboard one may have killed it, long after its start, so that nobody can say which.  At the
next death all are cleared that were in another process: the more processes take them, and the more
evenly those that are suspected of as many deaths are spread, the sooner the guilty one is alone
(`settlement.Lineup`).  By rank they would meet again: a worker that comes back under its label is
first for all that it had.

So they are dealt out, one to each process, and stay where they were put (`rebalance.py`).  What is
not suspected goes by rank.
"""

from __future__ import annotations

from collections import defaultdict

import attrs

from pool.core.ids import process_of
from pool.core.record import Record, left_by
from pool.core.settlement import Grant
from pool.jobs.context import TARGETS_MAX, Context
from pool.redis.commands.calls import Target


@attrs.define(eq=False)
class Scatter:
    """Deals the jobs of one dead identity out."""

    context: Context
    lane: int
    died: str  # id.n
    _turns: dict[int, int] = attrs.field(factory=dict)  # deaths -> whose turn it is
    _workers: dict[str, list[str]] = attrs.field(
        factory=dict
    )  # handler -> of each process one, ...

    def targets(self, key: str, record: Record, grant: Grant) -> tuple[Target, ...]:
        """Return the workers for a job, the one that should have it first."""
        died, deaths = self.died.rpartition(".")[0], grant.marks.deaths
        if not deaths:
            return self.context.targets(
                key, record.handler, lane=self.lane, but=died, left=left_by(record.more)
            )
        workers = self._workers.get(record.handler)
        if workers is None:
            workers = self._workers[record.handler] = self._dealt(record.handler, died)
        if not workers:
            return ()
        # Anywhere at first: each death, lane and number of deaths begins elsewhere.
        turn = self._turns.get(deaths, self.context.io.dice.randrange(len(workers)))
        self._turns[deaths] = turn + 1
        order = range(turn, turn + min(len(workers), TARGETS_MAX))
        ranked = [workers[at % len(workers)] for at in order]
        known = self.context.candidates.workers  # some may have gone since
        return self.context.as_targets([worker for worker in ranked if worker in known], self.lane)

    def _dealt(self, handler: str, died: str) -> list[str]:
        """Return who may have them, so that neighbours in this order are of different processes."""
        infos = [info for info in self.context.roster.workers if handler in info.handlers]
        of_process = defaultdict[str, list[str]](list)
        for info in sorted(infos, key=lambda info: info.id):
            process = process_of(info.id)
            is_there = not info.is_draining and info.candidate.is_in(self.lane)
            if is_there and process != process_of(died):
                of_process[process].append(info.id)
        rounds = range(max(map(len, of_process.values()), default=0))
        return [ids[at] for at in rounds for ids in of_process.values() if at < len(ids)]
