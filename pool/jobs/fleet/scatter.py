"""Where jobs go that stood together when their worker died: by dice, to any process that may.

    the jobs of a dead worker --shuffled, then dealt in rounds--> each to one of m processes

Of those aboard one may have killed it.  Each goes to each of the m processes with the same chance,
whatever their ranks and loads: that is what makes the next death evidence (`core/evidence.py`).
Dealing in rounds from a random start is uniform for each job, and keeps neighbours apart.  A
process with several workers has one turn, so it does not get more suspects than others.

A job stays where it was dealt (`rebalance.py`): one that had no room there, or was moved since, is
found in another process than its record says, and its next death proves nothing.  Jobs without
crash marks go by rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain, islice

import attrs

from pool.core.ids import process_of
from pool.core.record import Record, left_by
from pool.core.settlement import Deal, Grant
from pool.jobs.context import TARGETS_MAX, Context
from pool.redis.commands.calls import Target


@attrs.define(eq=False)
class Scatter:
    """Deals the jobs of one dead identity out."""

    context: Context
    lane: int
    died: str  # id.n
    _turns: dict[str, int] = attrs.field(factory=dict)  # handler -> whose turn it is
    _workers: dict[str, list[list[str]]] = attrs.field(factory=dict)  # handler -> process -> ids

    def deal(self, handler: str) -> tuple[Deal, Sequence[str]]:
        """Draw the process for a job; returns the workers to ask as well, that process's first."""
        processes = self._workers.get(handler)
        if processes is None:
            processes = self._workers[handler] = self._able(handler)
        if not processes:
            return Deal(), ()
        dice = self.context.io.dice
        turn = self._turns.get(handler, 0) % len(processes)
        if turn == 0:  # each round has an order of its own
            dice.shuffle(processes)
        self._turns[handler] = turn + 1
        # No more than are asked: a deal must not cost more in a larger fleet.
        count = len(processes)
        order = (processes[(turn + at) % count] for at in range(min(count, TARGETS_MAX)))
        workers = list(islice(chain.from_iterable(map(self._shuffled, order)), TARGETS_MAX))
        return Deal(process_of(workers[0]), count), workers

    def _shuffled(self, ids: list[str]) -> list[str]:
        return self.context.io.dice.sample(ids, len(ids))

    def targets(
        self, key: str, record: Record, grant: Grant, dealt: Sequence[str]
    ) -> tuple[Target, ...]:
        """Return the workers for a job, the one that should have it first."""
        if not grant.marks.deaths:
            died, left = self.died.rpartition(".")[0], left_by(record.more)
            return self.context.targets(key, record.handler, lane=self.lane, but=died, left=left)
        known = self.context.candidates.workers  # some may have gone since
        return self.context.as_targets([worker for worker in dealt if worker in known], self.lane)

    def _able(self, handler: str) -> list[list[str]]:
        """Return the processes that may run a handler, with their workers."""
        of_process = defaultdict[str, list[str]](list)
        for info in sorted(self.context.roster.workers, key=lambda info: info.id):
            process = process_of(info.id)
            is_there = not info.candidate.is_draining and info.candidate.is_in(self.lane)
            if handler in info.handlers and is_there and process != process_of(self.died):
                of_process[process].append(info.id)
        return list(of_process.values())
