"""The lease of a worker: its timing, which follows from the TTL, and its state machine.

All times that follow from the lease TTL, of which a pool has one.

    asked                                                     soft              hard   server's end
      |--renew--|--renew--|--renew--|-- renewal deadline --|    |-- stop budget --|--margin--|
      0        P         2P        3P                           ttl - margin - budget        ttl

Three renewals may fail before handlers are stopped; true for every TTL by derivation.

The TTL of a pool may change while nodes run, so none of these is kept: whoever needs one asks the
node's (`Session.timing`) at that moment, or is handed it.

A lease as a pure machine: events in, effects out; no clock, no I/O.

            soft              hard
    held ----------> stopping ------> fenced
     ^                  |               |
     +---- Resume ------+---------------+

    hard = asked + ttl - margin         soft = hard - stop budget

`asked` is when we ASKED for what was granted: the server's countdown cannot have begun earlier,
so the server's lease ends later than our `hard` by the margin at least.  One machine is one node
in one lane: its identities there are renewed together.  Which of them the server does not know any
more (GONE) is no matter of the lease; when the last one joins again it has a machine of its own,
which begins in the phase of the former one: who was told to stop with that is told to go on.

How long a lease lasts is the lane's to say: we go by what was granted.  A longer TTL counts from
the answer that grants it.  A shorter one is *taken up*: from then on we believe in it alone, and
only then do our renewals name it (its term), which is what allows the server to shorten ours.
"""

from __future__ import annotations

import math
from typing import Final, Literal, TypeAlias

import attrs

TTL_DEFAULT_S: Final = 10.0  # of a pool whose first node named none
RENEW_MAX_S: Final = 10.0  # what is renewed besides the lease is not older than this


@attrs.frozen
class Timing:
    """The times of a node that goes by this TTL."""

    ttl_s: float = TTL_DEFAULT_S
    # How long handlers have to end when a lease cannot be renewed.  Kept, as the next one is: each
    # start asks for both.
    stop_budget_s: float = attrs.field(init=False)
    # By how much we stop before the server would count our lease as ended.
    margin_s: float = attrs.field(init=False)

    @stop_budget_s.default
    def _stop_budget_s(self) -> float:
        return self.ttl_s / 4

    @margin_s.default
    def _margin_s(self) -> float:
        return max(0.05, 0.035 * self.ttl_s)

    @staticmethod
    def is_ttl(ttl_ms: int) -> bool:
        """Say whether a pool can go by this."""
        return 1000 <= ttl_ms <= 3_600_000

    @property
    def ttl_ms(self) -> int:
        return round(self.ttl_s * 1000)

    @property
    def renew_s(self) -> float:
        """How often leases are renewed."""
        return min(self.ttl_s / 5, RENEW_MAX_S)

    @property
    def renew_timeout_s(self) -> float:
        """When one renewal counts as failed."""
        return self.renew_s / 2

    @property
    def block_s(self) -> float:
        """How long one blocking read waits."""
        return self.ttl_s / 4

    @property
    def socket_timeout_s(self) -> float:
        """How long any one wait on a socket may take."""
        return self.ttl_s / 2

    @property
    def pending_timeout_s(self) -> float:
        """By when a granted job must have been acknowledged."""
        return self.ttl_s

    @property
    def reap_s(self) -> float:
        """How long a reaper may be silent before another one takes over."""
        return max(0.5, self.ttl_s / 4)


@attrs.frozen
class Tick:
    """Event: time has passed; needed at `Lease.deadline_s`, harmless at any time."""

    now_s: float


@attrs.frozen
class Renewed:
    """Event: a renewal succeeded."""

    asked_s: float
    now_s: float  # when the answer is acted upon, not when it reached the socket
    timing: Timing | None = None  # by the TTL that was granted; None: as before
    term: int = 0  # number of the change that made the lane's TTL this one; later ones are higher


@attrs.frozen
class StopJobs:
    """Effect: cancel the handlers of this lane; they have the stop budget to end."""

    silent_s: float


@attrs.frozen
class FenceLocally:
    """Effect: nothing of this lane may run or commit any more; somebody may own it soon."""

    silent_s: float


@attrs.frozen
class Resume:
    """Effect: nobody took a key.  Send what had ended, then start again what we had stopped."""


Event: TypeAlias = Tick | Renewed
Effect: TypeAlias = StopJobs | FenceLocally | Resume
Phase: TypeAlias = Literal["held", "stopping", "fenced"]


@attrs.frozen(kw_only=True)
class Lease:
    """The lease of one identity in one lane, as its own node may believe in it (G-03)."""

    timing: Timing  # by the TTL that we go by
    asked_s: float
    term: int = 0  # of the TTL that we have taken up: what our renewals may say
    phase: Phase = "held"

    @property
    def ttl_s(self) -> float:
        return self.timing.ttl_s

    @property
    def hard_s(self) -> float:
        """From here on nothing of this lane may run."""
        return self.asked_s + self.timing.ttl_s - self.timing.margin_s

    @property
    def soft_s(self) -> float:
        """From here on handlers must end."""
        return self.hard_s - self.timing.stop_budget_s

    @property
    def deadline_s(self) -> float:
        """When the next `Tick` is needed; infinite if only an answer can change anything."""
        match self.phase:
            case "held":
                return self.soft_s
            case "stopping":
                return self.hard_s
            case _:
                return math.inf

    def is_good(self, now_s: float) -> bool:
        """Say whether a job may start now.  Asks the clock, since a `Tick` may come late."""
        return self.phase == "held" and now_s < self.soft_s

    def step(self, event: Event) -> tuple[Lease, tuple[Effect, ...]]:
        """Return the lease after the event, and what is to be done, in order."""
        match event:
            case Renewed(asked_s=asked_s, now_s=now_s) if asked_s > self.asked_s:
                return self._granted(event)._renewed(now_s)
            case Renewed(now_s=now_s) | Tick(now_s=now_s):
                return self._at(now_s)  # of two answers in flight, the older one is no news

    def _granted(self, event: Renewed) -> Lease:
        now_s, timing = event.now_s, event.timing or self.timing
        if event.term < self.term and timing.ttl_s > self.timing.ttl_s:
            timing = self.timing  # of before the change that we go by: worth no more than that
        granted = attrs.evolve(
            self, asked_s=event.asked_s, timing=timing, term=max(self.term, event.term)
        )
        is_late = timing.ttl_s < self.timing.ttl_s and now_s >= granted.soft_s
        # A shorter TTL, heard of so late that handlers would have to stop at once: until we have
        # said that we go by it, the server keeps what it granted us before.
        return self if is_late and granted.hard_s < self.hard_s else granted

    def _renewed(self, now_s: float) -> tuple[Lease, tuple[Effect, ...]]:
        # An answer acted upon so late that handlers would have to stop at once again resumes
        # nothing; past `hard` it would not even prove that nobody took a key.
        if self.phase == "held" or now_s >= self.soft_s:
            return self._at(now_s)
        return attrs.evolve(self, phase="held"), (Resume(),)

    def _at(self, now_s: float) -> tuple[Lease, tuple[Effect, ...]]:
        if self.phase == "fenced" or now_s < self.deadline_s:
            return self, ()
        if now_s >= self.hard_s:
            return attrs.evolve(self, phase="fenced"), self._fence(now_s)
        return attrs.evolve(self, phase="stopping"), (StopJobs(now_s - self.asked_s),)

    def _fence(self, now_s: float) -> tuple[Effect, ...]:
        """Return what is left to do; a fence that comes unannounced cancels handlers first."""
        silent_s = now_s - self.asked_s
        fence = FenceLocally(silent_s)
        return (fence,) if self.phase == "stopping" else (StopJobs(silent_s), fence)
