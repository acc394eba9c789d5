"""Whose trial it is: of a node's suspects one at a time, whichever worker or lane it is in.

    taken until s --the suspect lived so long, has ended, or could not be begun--> free --> the next

A suspect may have killed its last worker.  It is acknowledged, begun, and alive for a while before
the next one begins, so that the next death has one culprit (`fence.lua`).  A process dies with all
its workers in all lanes, and each of these identities is judged by itself: so where the next one
is of another identity, the one before is said to have lived.  So it is if it has for LIVED_S.

All suspects are through within TRIALS_S, however many they are, so that the innocent are back in
time.  The most suspected come last and are given the most time, for what kills after a while.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs

from pool.jobs.run import Run

TRIAL_S: Final = 0.05  # how long a suspect with one mark must live before the next one begins
TRIAL_GROWTH: Final = 4  # by how much longer with each further mark
PREPARE_S: Final = 1.0  # a lane that is silent for so long holds no suspect of another one up
LIVED_S: Final = 1.0  # what has run for so long does not kill at once
TRIALS_S: Final = 3.5  # in which all suspects that wait have begun, if there are slots
TIMER_S: Final = 0.005  # by how much a timer may be early


@attrs.define(eq=False)
class Trials:
    """The turn.  Who finds it taken is called when it is free."""

    _run: Run | None = None
    _until_s: float = 0.0
    # the last one, its lane and identity, and what says that it lived; none if that was said
    _last: tuple[Run, tuple[int, str], Callable[[], object]] | None = None
    _waiting: dict[Callable[[], None], None] = attrs.field(factory=dict)
    _count: int = 0  # of suspects that wait, in all workers
    _since_s: float = 0.0

    def count(self, change: int, now_s: float) -> None:
        """Note that suspects have come, or have begun or gone."""
        if self._count == 0 or now_s > self._since_s + 2 * TRIALS_S:
            # Another death; who has left with a worker of before is not waited for.
            self._count, self._since_s = 0, now_s
        self._count = max(0, self._count + change)

    def is_taken(self, now_s: float, when_free: Callable[[], None]) -> bool:
        """Say whether another suspect is on trial; then `when_free` is called once it is over."""
        run = self._run
        if run is None or now_s >= self._until_s or run.edge is not None or run.why:
            return False
        if run.phase not in ("queued", "preparing", "running"):
            return False
        self._waiting[when_free] = None
        return True

    def take(
        self, run: Run, identity: tuple[int, str], on_lived: Callable[[], object], now_s: float
    ) -> float:
        """Put a suspect on trial; returns after how long to call `end()` if it does not begin."""
        if self._last is not None and self._last[1] != identity:
            self._last[2]()
        self._run, self._last = run, (run, identity, on_lived)
        self._until_s = now_s + PREPARE_S
        return PREPARE_S

    def has(self, run: Run) -> bool:
        """Say whether this one is on trial."""
        return self._run is run

    def begins(self, run: Run, now_s: float) -> float:
        """Note that the suspect's handler is called; returns after how long to call `end()`."""
        share_s = max(0.0, self._since_s + TRIALS_S - now_s) / max(1, self._count)
        growth: int = TRIAL_GROWTH ** max(0, len(run.start.marks.named) - 1)
        for_s = min(TRIAL_S * growth, share_s)
        self._until_s = now_s + for_s
        return for_s

    def lived(self, run: Run) -> None:
        """Note that it was said that a suspect lives: it need not be said again."""
        if self._last is not None and self._last[0] is run:
            self._last = None

    def end(self, run: Run, now_s: float) -> None:
        """Let the next one have its turn, if this one's is over."""
        if self._run is run and now_s >= self._until_s - TIMER_S:
            self._run = None
            waiting, self._waiting = self._waiting, {}
            for fn in waiting:
                fn()
