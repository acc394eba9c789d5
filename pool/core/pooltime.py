"""Pool time as one node knows it in one lane: what its answers said, and its own clock since.

    an answer that goes on from those before     the base moves on, the chain with it
    one that is off by more than CLOCK_S          a deviation, measured: round trips are taken off
    ... and others have set it right (turn)       it goes on; or has stepped again meanwhile
    ... and we came behind it                     it goes on from what fits (see PoolTime.settled)
    others have settled it without us (late)      we begin anew: nothing that we know is of use
    a witness claims a step, and we are none      we begin anew with what it claims
    off for CONTRADICTED of our periods           others say otherwise, so it is ours that is off

Only `lib/clock.lua` decides, by what several nodes say; this is one witness.  Pure: times are
arguments.  A late answer has a long round trip, and can prove only what is longer still.
"""

from __future__ import annotations

import math
from typing import Final

import attrs

CLOCK_S: Final = 1.0  # a clock that is off by less has not stepped
CONTRADICTED: Final = 5  # periods
_EXACT_S: Final = 0.05  # a round trip that is short enough for a base
_OLD_S: Final = 600.0  # what two clocks drift apart in this is less than any round trip


@attrs.frozen
class Told:
    """What a renewal says of pool time."""

    expected_ms: int = 0  # 0: the node knows nothing
    since_ms: int = 0
    turn: int = 0
    off_ms: int = 0


NOTHING_TOLD: Final = Told()


@attrs.frozen
class PoolTime:
    """What a node knows of a lane's time; `of_s` is the moment of its own clock of `at_ms`."""

    at_ms: float = 0.0
    of_s: float = 0.0
    trip_s: float = 0.0
    # Where the chain of its answers begins, in pool time; 0: nobody vouched for that yet.
    since_ms: float = 0.0
    turn: int = 0
    offset_ms: int = 0
    off_ms: float = 0.0  # what was measured last; 0: it goes on
    off_at_s: float = 0.0
    off_s: float = 0.0  # for how long that has been so, of the time in which we were answered

    def expected_ms(self, now_s: float) -> int:
        """Return what pool time should be now; 0: that is not known."""
        return round(self.at_ms + 1000 * (now_s - self.of_s)) if self.at_ms else 0

    def expects(self, now_s: float) -> str:
        """Return the same for `lib/expected.lua`, with by what it holds where nobody vouched."""
        expected_ms = self.expected_ms(now_s)
        if not expected_ms or self.since_ms:
            return str(expected_ms)
        return f"{expected_ms}|{self.offset_ms}|{self.turn}|{self.age_ms(now_s)}"

    def age_ms(self, now_s: float) -> int:
        """Return how long ago the last answer was at most: an unheard turn is no older."""
        return math.ceil(1000 * (now_s + self.trip_s - max(self.of_s, self.off_at_s)))

    def settled(
        self, offset_ms: int, turn: int, seen_ms: int, now_s: float, period_s: float
    ) -> PoolTime:
        """Return what is known that nobody had vouched for, after others have set the offset.

        What was set for steps of before we came goes on top of what we know; but not what was set
        for those that came since, or of which we were told.  Of the two times that may be meant
        the one counts by which less has passed since `seen_ms`; and since then no more has passed
        than since our last answer.  `lib/expected.lua` does the same.
        """
        expected_ms = self.expected_ms(now_s)
        meant_ms = expected_ms + offset_ms - self.offset_ms
        from_ms = seen_ms - 1000 * (
            CLOCK_S + period_s / 2
        )  # what is told and measured is not exact
        if expected_ms < from_ms or from_ms <= meant_ms < expected_ms:
            expected_ms = meant_ms
        expected_ms = max(seen_ms, min(expected_ms, seen_ms + self.age_ms(now_s)))
        return attrs.evolve(
            self, at_ms=expected_ms, of_s=now_s, turn=turn, offset_ms=offset_ms, off_ms=0.0
        )

    def latest_ms(self, now_s: float, more_s: float) -> int:
        """Return what pool time cannot be past now, or so much more; 0: that is not known."""
        return self.expected_ms(now_s + self.trip_s + more_s) if self.at_ms else 0

    def told(self, now_s: float) -> Told:
        """Return what a renewal that is sent now says."""
        return Told(self.expected_ms(now_s), round(self.since_ms), self.turn, round(self.off_ms))

    def heard(
        self,
        raw_ms: int,
        offset_ms: int,
        turn: int,
        asked_s: float,
        now_s: float,
        period_s: float,
        *,
        is_astray: bool = False,
        told_ms: int = 0,
        is_late: bool = False,
        witnessed_ms: int = 0,
    ) -> PoolTime:
        """Return what is known after an answer; `is_late`: what we know is of no use to anybody.

        `told_ms`: pool time as it tells that, which counts where nobody vouches for `raw_ms`.
        """
        trip_s, of_s = max(0.0, now_s - asked_s), (asked_s + now_s) / 2
        since_ms = 0 if is_astray else raw_ms
        anew = PoolTime(raw_ms, of_s, trip_s, since_ms, turn, offset_ms)
        if witnessed_ms and not self.since_ms:
            # A step behind that is measured from before it, else the one would be counted twice.
            as_claimed = PoolTime(raw_ms - witnessed_ms, of_s, trip_s, 0.0, turn)
            return attrs.evolve(
                as_claimed,
                offset_ms=offset_ms - witnessed_ms,
                off_ms=float(witnessed_ms),
                off_at_s=now_s,
            )
        if not self.at_ms:
            return anew
        if turn != self.turn and not self.since_ms:
            if not is_astray:
                return anew
            # Pool time stands at `seen`, or two periods behind it.
            seen_ms = told_ms if raw_ms < told_ms else told_ms - round(2000 * period_s)
            known = self.settled(offset_ms, turn, seen_ms, of_s, period_s)
            return known.heard(raw_ms, offset_ms, turn, asked_s, now_s, period_s, is_astray=True)
        off_ms = raw_ms - self.at_ms - 1000 * (of_s - self.of_s)
        if abs(off_ms) <= 1000 * (CLOCK_S + (trip_s + self.trip_s) / 2):
            is_better = trip_s <= max(_EXACT_S, 2 * self.trip_s) or of_s - self.of_s > _OLD_S
            base = anew if is_better else self
            return attrs.evolve(
                base,
                since_ms=since_ms if is_late else self.since_ms or since_ms,
                turn=turn,
                offset_ms=offset_ms,
                off_ms=0.0,
            )
        if is_late:
            return anew  # while it was cut off others had to settle it without a witness
        # Silence is no contradiction, nor is another step.
        is_same = self.off_ms and abs(off_ms - self.off_ms) <= 1000 * (CLOCK_S + trip_s)
        off_s = self.off_s + min(now_s - self.off_at_s, period_s) if is_same else 0.0
        if off_s > CONTRADICTED * period_s:
            return anew
        by_ms = offset_ms if self.since_ms else self.offset_ms  # what it goes by may be a claim's
        return attrs.evolve(
            self, off_ms=off_ms, off_at_s=now_s, off_s=off_s, turn=turn, offset_ms=by_ms
        )
