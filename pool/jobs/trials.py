"""Whose trial it is: of a node's suspects one at a time, whichever worker or lane it is in.

    taken until s --the suspect lived so long, has ended, or could not be begun--> free --> the next

A suspect may have killed its last worker.  It is acknowledged, begun, and alive for a while before
the next one begins, so that the next death has one culprit (`fence.lua`).  A process dies with all
its workers in all lanes, and each of these identities is judged by itself: so where the next one
is of another identity, the one before is said to have lived.  So it is at the end of its trial.

What ends its process by that process's own age would always hit the same trial.  So a process that
is younger than OLD_S begins the first suspect of a death after a random time, uniform in a span of
SPAN_S, or ten times the trial if that is longer.  That a death falls into a trial by chance is as
likely as the trial is long, of that span, or of the age of an old process: that is its evidence
(`core/crash_marks.py`).

All suspects of one death are through within TRIALS_S, however many they are, so that the innocent
are back in time.  Those that outlived their trial in a process that died come last and are given
more time, for what kills after a while: by how much longer they should live, also where there is
not enough for all.  Those of a second death come behind the first one's and have a time of their
own: else the less is left of that, the sooner one that kills after a while outlives its trial, and
whoever began since looks guilty in its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, TypeAlias

import attrs

from pool.core.crash_marks import trial_tenths
from pool.core.retry import Dice
from pool.jobs.run import Run

TRIAL_S: Final = 0.05  # how long a suspect must live before the next one begins
TRIAL_GROWTH: Final = 4  # by how much longer after each that it outlived
SENDING_S: Final = 0.01  # around a trial: the server hears of its begin and end by messages
OLD_S: Final = 60.0  # a process that is younger may be one that is always killed at this age
SPAN_S: Final = 5.0  # over which such a process spreads the beginning of its suspects, ...
SPAN_TTLS: Final = 0.5  # ... or this share of the TTL, whichever is less
SPAN_TRIALS: Final = 10  # ... but so many trials at least
PREPARE_S: Final = 1.0  # a lane that is silent for so long holds no suspect of another one up
LIVED_S: Final = 1.0  # what has run for so long does not kill at once: no trial is longer
TRIALS_S: Final = 3.5  # in which all suspects of a death that wait have begun, if there are slots
WAVE_S: Final = 1.0  # who comes so soon behind others comes of the same death
TIMER_S: Final = 0.005  # by how much a timer may be early
_LONGEST: Final = round(LIVED_S / TRIAL_S)  # trials of TRIAL_S: behind that it has lived
Rank: TypeAlias = tuple[float, int]  # since when suspects of its death wait; trials outlived


def _longer(run: Run) -> int:
    """Return how many times TRIAL_S a suspect should live, if there is time."""
    growth: int = TRIAL_GROWTH ** min(8, run.start.marks.grown)
    return min(growth, _LONGEST)


@attrs.define(eq=False)
class _Wave:
    """The suspects of one death that wait, in all workers.

    Their marks do not tell which that is: who had not begun at it has those of the one before.
    """

    since_s: float
    share: float = 0.0  # of the span, by which its first suspect is late
    late_s: float = 0.0  # by how much that was
    waiting: int = 0  # how long they should live, in TRIAL_S


@attrs.define(eq=False)
class Trials:
    """The turn.  Who finds it taken is called when it is free."""

    dice: Dice
    born_s: float  # when this process began
    span_s: Callable[[], float]  # the least over which a young process spreads its suspects
    _run: Run | None = None
    _until_s: float = 0.0
    # the last one, its lane and identity, and what says that it lived; none if that was said
    _last: tuple[Run, tuple[int, str], Callable[[], object]] | None = None
    _waiting: dict[Callable[[], None], Rank] = attrs.field(factory=dict)
    _waves: dict[float, _Wave] = attrs.field(factory=dict)  # by since when; the newest is the last
    _since_s: float = 0.0  # of the one on trial

    def come(self, run: Run, now_s: float) -> Rank:
        """Note that a suspect waits; returns what it is ranked by, those of one death together."""
        wave = next(reversed(self._waves.values()), None)
        if wave is None or not wave.waiting or now_s > wave.since_s + WAVE_S:
            # Who has left with a worker of before is not waited for.
            kept = {
                s: each
                for s, each in self._waves.items()
                if now_s <= s + each.late_s + 2 * TRIALS_S
            }
            is_young = now_s - self.born_s < OLD_S
            wave = _Wave(now_s, self.dice.random() if is_young else 0.0)
            self._waves = {**kept, now_s: wave}
        wave.waiting += _longer(run)
        return wave.since_s, run.start.marks.grown

    def go(self, run: Run, rank: Rank) -> None:
        """Note that a suspect does not wait any more."""
        wave = self._waves.get(rank[0])
        if wave is not None:
            wave.waiting = max(0, wave.waiting - _longer(run))

    def _span_s(self, run: Run) -> float:
        return max(self.span_s(), SPAN_TRIALS * _longer(run) * TRIAL_S)

    def wait_s(self, run: Run, rank: Rank, now_s: float) -> float:
        """Return in how many seconds a suspect's time begins; -inf if it may begin at any time."""
        wave = self._waves.get(rank[0])
        if wave is None or not wave.share:
            return -math.inf
        wave.late_s = wave.share * self._span_s(run)
        return wave.since_s + wave.late_s - now_s

    def bits(self, run: Run, now_s: float) -> int:
        """Return how unlikely it is that this process dies in a suspect's trial by chance."""
        age_s = now_s - self.born_s
        if age_s < OLD_S:
            age_s = self._span_s(run)
        return trial_tenths(age_s, _longer(run) * TRIAL_S + SENDING_S)

    def is_taken(self, now_s: float, when_free: Callable[[], None], rank: Rank) -> bool:
        """Say whether another suspect is on trial; then `when_free` is called once it is over, in
        the order of what each of these waits with.
        """
        run = self._run
        if run is None or now_s >= self._until_s or run.edge is not None or run.why:
            return False
        if run.phase not in ("queued", "preparing", "running"):
            return False
        self._waiting[when_free] = rank
        return True

    def take(
        self,
        run: Run,
        rank: Rank,
        identity: tuple[int, str],
        on_lived: Callable[[], object],
        now_s: float,
    ) -> float:
        """Put a suspect on trial; returns after how long to call `end()` if it does not begin."""
        if self._last is not None and self._last[1] != identity:
            self._last[2]()
        self._run, self._last = run, (run, identity, on_lived)
        run.bits = self.bits(run, now_s)
        self._until_s, self._since_s = now_s + PREPARE_S, rank[0]
        return PREPARE_S

    def has(self, run: Run) -> bool:
        """Say whether this one is on trial."""
        return self._run is run

    def begins(self, run: Run, now_s: float) -> float:
        """Note that the suspect's handler is called; returns after how long to call `end()`."""
        should = waiting = _longer(run)
        each_s = TRIAL_S
        for since_s, wave in self._waves.items():
            left_s, is_own = (
                max(0.0, since_s + wave.late_s + TRIALS_S - now_s),
                since_s == self._since_s,
            )
            if is_own or (left_s and wave.waiting):  # others that are late take no time
                waiting += wave.waiting
                each_s = min(each_s, left_s / waiting)
        for_s = should * each_s
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
            for fn in sorted(waiting, key=waiting.__getitem__):
                fn()
