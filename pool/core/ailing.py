"""What ails a node, as it says with its renewals, and how it measures that; pure.

    parts down, lag of the event loop (ms), longest pause of the collector (ms), renewals that
    failed, copies of maps that are behind, share of looks (%) at which the loop was busy

As text these are numbers with commas between; those at the end that are nothing are left out, and a
node that nothing ails says `0`, for which nothing is written.  Each but the first is of the last
one to two minutes: so long after it was over, it is said no more.
"""

from __future__ import annotations

from typing import Final, Self

import attrs

from pool.core.ids import is_number

SPAN_S: Final = 60.0
# From where on it is said; below that it is how things go on a busy machine.
LAG_S: Final = 0.25  # as a rule, not once: a handler that hangs is told of by itself
PAUSE_S: Final = 0.25
FAILED: Final = 3, 0.2  # renewals, and their share of all
BUSY_S: Final = 0.002  # a look at the loop that is answered later found it at work
BUSY_SHARE: Final = 0.5  # of the looks
BUSY_BEATS_MIN: Final = 120  # looks at the loop, half a minute, before its share is said
BEATS_MIN: Final = 20  # looks at the loop, before anything is said of it


@attrs.frozen
class Numbers:
    """Numbers that were seen: how many, their sum, the highest."""

    count: int = 0
    total: float = 0.0
    most: float = 0.0

    def plus(self, other: Numbers) -> Numbers:
        """Return both together."""
        return Numbers(
            self.count + other.count, self.total + other.total, max(self.most, other.most)
        )


@attrs.define(eq=False)
class Recent:
    """Numbers of the last one to two spans: one thread adds, any reads."""

    _slots: tuple[float, Numbers, Numbers] = (
        0.0,
        Numbers(),
        Numbers(),
    )  # since when; those; those before

    def add(self, value: float, now_s: float) -> None:
        """Count one."""
        since_s, now, before = self._slots
        if now_s - since_s >= SPAN_S:
            is_next = now_s - since_s < 2 * SPAN_S
            since_s, now, before = now_s, Numbers(), now if is_next else Numbers()
        self._slots = since_s, now.plus(Numbers(1, value, value)), before

    def read(self, now_s: float) -> Numbers:
        """Return those there are."""
        since_s, now, before = self._slots
        age_s = now_s - since_s
        if age_s >= 2 * SPAN_S:
            return Numbers()
        return now if age_s >= SPAN_S else now.plus(before)


@attrs.frozen(kw_only=True)
class Ails:
    """What ails a node; all 0: nothing does."""

    down: int = 0  # parts that have crashed, and do not run again yet
    lag_ms: int = 0  # how late its event loop takes things up, on average
    pause_ms: int = 0  # for how long Python's collector of garbage has held it up at once
    failed: int = 0  # renewals of leases
    copies: int = 0  # of maps, that cannot be brought up to date
    busy: int = 0  # % of the looks at its event loop that found it at work

    @classmethod
    def of(
        cls,
        *,
        down: int,
        lag: Numbers,
        busy: Numbers,
        pause_s: float,
        renewals: Numbers,
        copies: int,
    ) -> Self:
        """Say what of this is worth saying.

        Of `renewals` each that failed counts 1, others 0; of `busy` each look that found the loop
        at work.  A loop that is late is busy, which is not said besides.
        """
        lag_s = lag.total / lag.count if lag.count >= BEATS_MIN else 0.0
        failed, (least, share) = round(renewals.total), FAILED
        share_busy = busy.total / busy.count if busy.count >= BUSY_BEATS_MIN else 0.0
        return cls(
            down=down,
            busy=round(100 * share_busy) if share_busy >= BUSY_SHARE and lag_s < LAG_S else 0,
            lag_ms=round(1000 * lag_s) if lag_s >= LAG_S else 0,
            pause_ms=round(1000 * pause_s) if pause_s >= PAUSE_S else 0,
            failed=failed if failed >= max(least, share * renewals.count) else 0,
            copies=copies,
        )

    def pack(self) -> str:
        """Return it as text."""
        numbers = list(attrs.astuple(self))
        while len(numbers) > 1 and not numbers[-1]:
            numbers.pop()
        return ",".join(map(str, numbers))

    @classmethod
    def parse(cls, text: bytes) -> Self | None:
        """Return what that says, or None for what no node has said."""
        names = [field.name for field in attrs.fields(cls)]
        words = text.split(b",")
        if not all(map(is_number, words)):
            return None
        return cls(**dict(zip(names, map(int, words), strict=False)))


WELL: Final = Ails()
