"""What a worker is told by the rest of its node."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from pool.core.record import Start


@attrs.frozen
class Granted:
    """The stream brought starts."""

    lane: int
    starts: Sequence[Start]


@attrs.frozen
class Signalled:
    """Somebody wrote an intent or a message for a key of ours, or asks us to look."""

    lane: int
    fields: dict[str, bytes]


@attrs.frozen
class Missed:
    """Some of what the streams brought found no place: what stands in the store tells."""

    lane: int


@attrs.frozen
class Ticked:
    """A renewal was answered: `acknowledged` is what Redis says, asked at `asked_s`."""

    lane: int
    asked_s: float
    acknowledged: int
    was_away: bool


@attrs.frozen
class LeaseSoft:
    """The lease ends soon: stop handlers."""

    lane: int


@attrs.frozen
class LeaseHard:
    """The lease may have ended: nothing of this lane may run."""

    lane: int


@attrs.frozen
class LeaseBack:
    """Nobody took a key: go on."""

    lane: int


@attrs.frozen
class LaneLost:
    """We were fenced there: what we owned is the reaper's.  Joined again, `number` is new."""

    lane: int
    number: int


@attrs.frozen
class Resumed:
    """Something was paused, and is not any more; or this worker is cordoned no more."""


@attrs.frozen
class MembershipChanged:
    """`workers` changed: services may have a better place."""

    revision: int


@attrs.frozen
class MoveDue:
    """The fleet has stayed as it is for long enough to move services."""

    revision: int


@attrs.frozen
class Drain:
    """Give up everything: services at once, finite jobs within the grace.

    Told again, the shorter grace counts.  What settles in a lane that is silent is not waited for:
    its lease ends by itself.
    """

    grace_s: float
