"""How long to wait before another try.

Delays double and are spread by dice, or all who failed together would try again together (Marc
Brooker, "Exponential Backoff And Jitter", AWS 2015: the names full and equal jitter are his).
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Final, Protocol

import attrs

_DOUBLINGS_MAX = 1000  # 2.0**1000 is still a float; any sane cap is reached long before

RECONNECT_BASE_S = 0.05
RECONNECT_CAP_S = 1.0  # the shortest lease: the store's return is never noticed later than that
RECONNECTS_MAX: Final = 5  # at once, and then one each RECONNECT_CAP_S
_FAULT_STEPS: Final = 3  # of the backoff, ahead: what the server answers will not change so soon

# Before a call is sent again that was not answered; see `refused_delay`.
DISPATCH_RETRY_S: Final = 0.05  # somebody waits for it
RESEND_S: Final = 0.1  # of what a worker, a member or a consumer has to say
RECOVERY_RETRY_S: Final = 0.25  # of what others look after as well
TICK_RETRY_S: Final = 0.2  # of who asks for a ticker's next tick
KEEPING_RETRY_S: Final = 1.0  # of the schedules that the code has
RELAPSE_S: Final = 30.0  # what was recovered for so long is well
REFUSED_CAP_S = 5.0  # what was refused goes on so long after it no longer would be
# Before the second try of a call that may be done twice; it doubles, and dice spread it.
CALL_RETRY_S: Final = 0.02
CALL_RETRY_CAP_S: Final = 0.5
# Before a batch's members are dispatched again that a full pool has refused; it doubles.
FULL_S: Final = 0.05
FULL_CAP_S: Final = 2.0
# The backoff of the job that keeps a plan: what failed is that, and not its producer.
PLAN_BACKOFF_S: Final = 0.2
PLAN_BACKOFF_MAX_S: Final = 1.0
SPREAD_S: Final = 0.3  # so that not all nodes ask in the same millisecond

WINDOW_S: Final = 60.0  # in which too many crashes of one part end the node
# Between the restarts of a part that the store's answers end: the first comes at once, five of them
# (the default of `restarts_max`) take longer than the window, so that the node outlives the fault.
FAULT_BASE_S: Final = 1.0
FAULT_FACTOR: Final = 4.0


class Dice(Protocol):
    """The one method of `random.Random` that is needed; the model imports no randomness."""

    def random(self) -> float:
        """Return a number from 0 to 1, 1 excluded."""
        ...


def full_jitter(attempt: int, base_s: float, cap_s: float, dice: Dice) -> float:
    """Return the delay after a job's failed attempt number `attempt` (1 is the first).

    Anything from 0 to `base_s`, twice that after the second, and so on, never above `cap_s`.
    """
    return _ceiling(attempt, base_s, cap_s) * dice.random()


def requeue_delay(requeues: int, base_s: float, cap_s: float, dice: Dice) -> float:
    """Return the delay before the sweeper grants a key again that was requeued before.

    None for the first time: the key is overdue, and most likely its worker died.  Then it grows.
    """
    return _equal_jitter(requeues, base_s, cap_s, dice)


def reconnect_delay(failures: int, dice: Dice, *, is_fault: bool = False) -> float:
    """Return the delay before connecting again after so many failures in a row.

    None after a lost connection (0 failures): most often just that connection was lost.  A fault is
    an answer of the server's.
    """
    steps = failures + _FAULT_STEPS if is_fault else failures
    return _equal_jitter(steps, RECONNECT_BASE_S, RECONNECT_CAP_S, dice)


def connect_delay(failures: int, dice: Dice, *, call_s: float) -> float:
    """Likewise where calls of so long wait for it: every call is to see some tries."""
    cap_s = min(RECONNECT_CAP_S, call_s / 4)
    return full_jitter(failures + 1, min(RECONNECT_BASE_S, cap_s), cap_s, dice)


def refused_delay(refusals: int, base_s: float = RESEND_S) -> float:
    """Return the pause before a call is sent again that was refused so many times in a row.

    A server that does not answer (0 refusals) is asked again soon: that is over at any moment, and
    who has no connection waits for one anyway.  What it refuses it most often refuses for long.
    """
    return _ceiling(max(refusals, 1), base_s, REFUSED_CAP_S)


@attrs.define(eq=False)
class Recoveries:
    """How long to wait before what was lost is recovered: longer each time it is soon lost again.

    Else a server that evicts, or whose data go again and again, is asked without a pause: each
    recovery succeeds, so no backoff that counts failures ever begins.
    """

    _relapses: int = 0
    _until: float = -RELAPSE_S  # when the last recovery began

    def pause_s(self, now: float) -> float:
        """Return the pause before the recovery from a loss noticed now; for the first: none."""
        self._relapses = self._relapses + 1 if now - self._until < RELAPSE_S else 0
        pause_s = refused_delay(self._relapses) if self._relapses else 0.0
        self._until = now + pause_s
        return pause_s


@attrs.define(eq=False)
class Reconnects:
    """How long to wait before connecting again, however often a connection is good in between.

    Else a network that cuts each connection soon makes a reader connect without a pause: each
    connection succeeds, so no backoff that counts failures ever begins.  `RECONNECTS_MAX` in a row
    come at once, then one each `RECONNECT_CAP_S`.  No pause is longer than that: a reader that is
    given other streams ends its pause early, and tries that it did not wait for would add up.
    """

    _next_s: float = -inf  # when the next one would be due, if none came at once

    def pause_s(self, now_s: float) -> float:
        """Count a connection that was lost now; return the pause before the next one."""
        due_s = max(self._next_s, now_s - RECONNECTS_MAX * RECONNECT_CAP_S)
        due_s = min(due_s, now_s + RECONNECT_CAP_S)
        self._next_s = due_s + RECONNECT_CAP_S
        return max(0.0, due_s - now_s)


def _equal_jitter(tries: int, base_s: float, cap_s: float, dice: Dice) -> float:
    """Half of the delay is certain: with full jitter, what keeps failing could spin for a while."""
    if tries == 0:
        return 0.0
    return _ceiling(tries, base_s, cap_s) * (0.5 + 0.5 * dice.random())


def _ceiling(tries: int, base_s: float, cap_s: float) -> float:
    assert tries >= 1
    assert 0 < base_s <= cap_s
    return min(cap_s, base_s * 2.0 ** min(tries - 1, _DOUBLINGS_MAX))


@attrs.define(eq=False)
class Restarts:
    """How often one part has crashed lately, and so: when it is started again, or that it is not.

    A part is an actor, or a body beside the loop.  One policy for all of them.
    """

    restarts_max: int  # within WINDOW_S
    dice: Dice
    _crashes: deque[float] = attrs.field(init=False, factory=deque)

    @property
    def count(self) -> int:
        """How many crashes were counted within the last window."""
        return len(self._crashes)

    def crashed(self, now_s: float, *, is_fault: bool = False) -> float | None:
        """Count a crash; return the pause before the next start, None if there shall be none.

        Of a fault, an answer of the store that cannot be worked with, no restart is the cure, but
        time: what is amiss there is undone by somebody, as an outage is.
        """
        self._crashes.append(now_s)
        while self._crashes[0] < now_s - WINDOW_S:
            self._crashes.popleft()
        if self.count > self.restarts_max:
            return None
        if is_fault and self.count > 1:
            pause_s = min(WINDOW_S, FAULT_BASE_S * FAULT_FACTOR ** min(self.count - 2, 4))
            return pause_s * (1.0 + 0.25 * self.dice.random())
        return reconnect_delay(self.count - 1, self.dice)
