"""A loop that hangs: seen by the thread that renews, and what may begin when it turns again (G-03).

While the loop hangs, each renewal says so, and from then on whoever sweeps may take back what this
node has not acknowledged by its time (`is_stranded` in advance.lua).  What has begun here must have
been acknowledged before, and what was taken back must not begin.  Thread and loop share no lock:

    thread                                      loop
    beat n ------------------ posted ---------> heard n
    not heard for HUNG_S:                       a start: counts as begun, and then
     1  shut = seq                                shut > opened?            acknowledge first
     2  acknowledge all that has begun            granted up to `sure`?     acknowledge first
     3  renew(seq, hung), every period            else its handler is called
    heard:
     4  renew(seq + 1, so many keys) ---------> answered: opened = seq + 1, sure = the lane's stamp

Each attribute has one writer, and the GIL has every write seen at once and in order, so that no
lock is needed: of a start and 1, one sees the other.  Either the loop finds it shut, or the thread
finds the run in step 2.  Where 2 fails, or a stop was asked for, 3 only says that nothing is taken:
then what has not begun waits, too.

Answers of 4 out of order: one to a renewal before the last `shut` opens nothing.  Messages out of
order: the lane writes no lower seq over a higher one.  A lost answer: `shut` stands, and the next
renewal asks again.  Repeats of 2 change nothing, nor does the loop's own acknowledgement later.
The thread dies after any step: what is shut stays shut until the next one's first renewal was
answered; seq counts on.  The process dies: its leases end.  `sure` covers what the loop reads late:
an epoch up to that stamp was granted while it may have been taken back again.

Where the thread itself stood still until the lease was gone, either the whole process did (SIGSTOP,
a suspended machine), and nobody is to blame, or other code of it kept the interpreter (C code that
holds the GIL), and one of its jobs is, as if it had killed the process: `Hold` tells the two apart.
"""

from __future__ import annotations

import math
from typing import Final

import attrs

HUNG_S: Final = 1.0  # a loop that has not answered for so long hangs
FROZEN_S: Final = 0.5  # so late a thread goes on only if its whole process stood still
# ... or other code of it kept the interpreter: then the thread has asked for it every 5 ms (that is
# `sys.getswitchinterval()`), on a busy machine less often; who stands still asks for nothing.
ASKS_PER_S: Final = 40.0


@attrs.define(eq=False)
class Pulse:
    """Whether the loop turns, as one thread sees it."""

    sent: int = 0  # by the thread
    sent_s: float = 0.0  # by the thread: since when the loop owes an answer
    heard: int = 0  # by the loop
    thawed_s: float = 0.0  # by the thread: when it went on after it had stood still itself

    def beat(self, now_s: float) -> int:
        """Return the number to be posted; one that the loop owes an answer to goes out again."""
        if self.heard == self.sent:
            self.sent_s = now_s
            self.sent += 1
        return self.sent

    def silent_s(self, now_s: float) -> float:
        """Return for how long the loop has owed an answer."""
        return now_s - max(self.sent_s, self.thawed_s) if self.heard != self.sent else 0.0

    def woke(self, due_s: float, now_s: float) -> None:
        """In the thread: note a sleep that is over; one that was far too long is no hung loop.

        The whole process stood still (SIGSTOP, a suspended machine).  After the thaw the loop gets
        its usual time, or `pool run` would end itself.  What may begin is judged without that.
        """
        if now_s - due_s > FROZEN_S:
            self.thawed_s = now_s

    def is_hung(self, now_s: float) -> bool:
        """Say whether the loop hangs."""
        return self.silent_s(now_s) >= HUNG_S


@attrs.define(eq=False)
class Hold:
    """Whether code of our own process has kept one of its threads from the interpreter for long."""

    waits: int = 0  # of the thread, as of ...
    at_s: float = math.inf  # ... when it looked last
    over_s: float = -math.inf  # until when it was kept for so long, the last time

    def look(self, now_s: float, waits: int, long_s: float) -> None:
        """In the thread, wherever it goes on: note what kept it.

        At one stretch: many threads that only take their turns add up to as much, beside an outage.
        """
        gap_s, asked = now_s - self.at_s, waits - self.waits
        if gap_s > max(FROZEN_S, long_s) and asked > ASKS_PER_S * gap_s:
            self.over_s = now_s
        self.at_s, self.waits = now_s, waits


@attrs.define(eq=False)
class Door:
    """What may begin in one lane."""

    shut: int = 0  # by the thread: the last renewal that says that the loop hangs, or is to
    opened: int = 0  # by the loop: the last renewal that said otherwise and was answered
    sure: int = 0  # by the loop: what was granted later than this stamp was not taken back

    def open(self, seq: int, stamp: int) -> None:
        """Note that a renewal which said how many keys we take was answered."""
        if self.opened < self.shut < seq:
            self.sure = stamp
        self.opened = max(self.opened, seq)

    def is_sure(self, epoch: int) -> bool:
        """Say whether a start may begin before it is acknowledged."""
        return epoch > self.sure and self.shut <= self.opened
