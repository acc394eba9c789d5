"""What becomes of a job whose attempt failed, or whose owner is gone."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Final, TypeAlias

import attrs

from pool.core.digits import number_or
from pool.core.lapse import NOT_IN_TIME, lapsed
from pool.core.lifecycle import OWNED
from pool.core.marks import NO_MARKS, Marks
from pool.core.options import Limit, Options
from pool.core.record import ERROR_CHARS_MAX, Record, one_line
from pool.core.retry import Dice, full_jitter, requeue_delay

TOO_LONG: Final[dict[Limit, str]] = {
    "timeout": "ran longer than timeout_s",
    "progress": "made no progress for progress_timeout_s",
    "start": "was not started within start_timeout_s",
}
AT_ONCE_MS: Final = 1000  # what its worker outlived by this, as is known, does not kill at once


@attrs.frozen
class ParkJob:
    """Give the job up: it becomes a dead letter; `mark` is what `advance` takes (see there)."""

    cause: str
    error: str
    failed: str = ""  # what is kept of its last attempt, if its owner knows more; `pack_attempt`
    mark: str = ""


@attrs.frozen
class Wait:
    """Run it again, after a delay and as this attempt; `mark` as in `Grant`."""

    delay_s: float
    attempt: int
    error: str
    mark: str = ""
    failed: str = ""  # as of `ParkJob`


@attrs.frozen
class Grant:
    """Give it to a worker at once; `mark` is what `advance` takes (see there)."""

    mark: str = ""
    checkpoint: bytes | None = None  # what its run hands over; None: what is there stays

    @property
    def marks(self) -> Marks:
        """What it is suspected of from now on, if `mark` says so."""
        return Marks.parse(self.mark.partition("=")[2])


@attrs.frozen
class CancelJob:
    """End it as stopped."""

    cause: str


Decision: TypeAlias = ParkJob | Wait | Grant | CancelJob


def after_failure(
    attempt: int, options: Options, dice: Dice, *, cause: str, error: str
) -> ParkJob | Wait:
    """Decide what follows a failed attempt: another one after a full-jitter delay, or the end."""
    error = one_line(error, ERROR_CHARS_MAX)
    if options.attempts_max and attempt >= options.attempts_max:
        return ParkJob(cause, error)
    delay_s = full_jitter(attempt, options.backoff_s, options.backoff_max_s, dice)
    return Wait(delay_s, attempt + 1, error)


def after_timeout(
    attempt: int, options: Options, dice: Dice, limit: Limit | None = None
) -> ParkJob | Wait:
    """Decide what follows an attempt that came to a limit; None: to which nobody can tell."""
    limit = limit or ("progress" if options.timeout_s is None else "timeout")
    if limit in options.park_on:
        options = attrs.evolve(options, attempts_max=1)
    return after_failure(attempt, options, dice, cause="timed out", error=TOO_LONG[limit])


@attrs.frozen(kw_only=True)
class Death:
    """What is known of the end of an identity.

    It was alive at `alive_ms`, when its lease was last renewed, or just before: what it had sent
    may have come late.  `culprit` is the epoch of the job that it had begun last of those that
    were suspected already, unless it said that this one lives (see `fence.lua`): such a one is
    acknowledged before it begins.
    """

    identity: str
    alive_ms: int
    culprit: int = 0  # 0: none


@attrs.frozen(kw_only=True)
class Judgement:
    """What the node that judges has in its settings."""

    crash_window_s: float
    crashes_max: int
    hold_s: float  # for so long a last mark waits for one that was only frozen
    silent_s: float = math.inf  # whoever has not renewed for so long was not at work any more

    @property
    def deaths_late(self) -> int:
        """How many deaths give up a job that nobody saw kill: one more than of one that was."""
        return self.crashes_max + 2


def recover(
    record: Record,
    options: Options,
    dice: Dice,
    *,
    judgement: Judgement,
    death: Death | None = None,
    is_most: bool = False,
    now_ms: int = 0,
) -> Decision:
    """Decide what becomes of a job whose owner is gone, or whose time has come (G-05).

    From its record and the death of its owner; `death` is None when nobody died.  `is_most` says
    that it was aboard at more deaths than any other job of that owner (see `Lineup`); `now_ms` is
    pool time, where somebody has come because it may be too late (see `lapse`).

        the job was                          its marks
        running, longer than the window      are cleared
        running, the culprit                 + 1 if it had any, else + 1/2: nobody saw it alone
        running, any other                   + 1/2
        pending, to be acknowledged first    stay: it never began
        pending, granted to one long silent  stay: its worker was dead by then
        pending otherwise                    + 1/2

    Who may have killed at once is begun alone the next time (flag `a`; see
    `jobs/worker/executor.py`).

    Held for a while is the culprit with more than `crashes_max`; or, where there is none since it
    kills long after its start, who was aboard at the most deaths, if that is one job, and they are
    two more than `crashes_max`.  Nobody else is.  Then it is parked, unless one whose death it is
    suspected of comes back from a freeze.

    So a job that kills at once ends `crashes_max` + 1 processes (1/2 + 1 + 1 + 1 for 3), one that
    kills late one more, and their neighbours, which are marked with them, are not parked with them.
    The late one must have been told from these: they are dealt out to the T nodes that are left
    (`jobs/fleet/scatter.py`), so of N beside it at the first death N / T**d are at the d-th after
    that.
    """
    if record.intent.startswith("s"):
        return CancelJob(record.intent[1:])
    if record.state == "queued":  # nothing else brings it here
        return CancelJob(NOT_IN_TIME)
    if record.intent.startswith("t"):
        return after_timeout(record.attempt, options, dice)
    match lapsed(record, now_ms) if record.more else "":
        case "expires":
            return CancelJob(NOT_IN_TIME)
        case "start":
            return after_timeout(record.attempt, options, dice, "start")
    if death is None or record.state not in OWNED:
        return _come_due(record, judgement)
    marks, letters = _marked(record, death, judgement)
    text = f"{letters}={marks.pack()}"
    is_culprit = record.epoch == death.culprit and marks.halves > 2 * judgement.crashes_max
    if letters and (is_culprit or is_most):
        return Wait(judgement.hold_s, record.attempt, record.error, "h" + text)
    if record.state == "running":
        return Grant(text)
    # Once for each death of a neighbour it is requeued without a delay.
    requeues = max(0, record.requeues - judgement.crashes_max - 2)
    delay_s = requeue_delay(requeues, options.backoff_s, options.backoff_max_s, dice)
    if delay_s:
        return Wait(delay_s, record.attempt, record.error, text)
    return Grant("r" + text)


@attrs.define
class Lineup:
    """Who of an identity's jobs was aboard at the most deaths, as they are read one after another.

        none --enough deaths--> aside --more deaths--> another is aside
                                  |  as many: nobody can tell, and none of these is held
                                  +--all others have moved--> asked for --> held, or released

    The one put aside is moved last.  A process dies with all its workers in all lanes, so it is
    asked whether one of theirs was aboard at as many, or a culprit is known there (`matches`).
    Nor does a death count, whoever was aboard, of which another one was the culprit (`known`).

    Whoever takes a claim over does not know whom its predecessor has moved, and holds nobody for
    this: `fence.lua` names a culprit then that is no job's.
    """

    judgement: Judgement
    death: Death
    aside: str = ""
    is_over: bool = False  # nothing else is left, here and elsewhere
    deaths: int = 0  # the most so far, where they are enough
    known: Collection[str] | None = None  # processes of whose death the culprit is known

    def asks(self, record: Record) -> bool:
        """Say whether it must be known first whose deaths have a culprit: hardly ever."""
        is_open = self.known is None and not self.death.culprit
        return is_open and record.marks.deaths + 1 >= self.judgement.deaths_late

    def keeps(self, key: str, record: Record) -> bool:
        """Say whether a job is put aside for now."""
        if self.death.culprit:
            return False
        marks, letters = _marked(record, self.death, self.judgement)
        deaths = marks.deaths_but(self.known or ())
        if not letters or deaths < max(self.deaths, self.judgement.deaths_late):
            return False
        if key == self.aside:
            return not self.is_over
        # Of unread starts the first are read again and again: they cannot wait.
        is_alone = deaths > self.deaths and record.state == "running"
        self.deaths, self.aside = deaths, key if is_alone else ""
        return is_alone

    def matches(self, told: Iterable[bytes]) -> bool:
        """Say whether another one may be guilty, by what stands in `trials` of others that died.

        `=N` is one that was aboard at N deaths, all else speaks of a culprit.
        """
        return any(
            text[:1] != b"=" or number_or(self.deaths, text[1:]) >= self.deaths for text in told
        )

    def is_most(self, key: str) -> bool:
        """Say whether this job was aboard at more deaths than all others."""
        return self.is_over and key == self.aside


def _come_due(record: Record, judgement: Judgement) -> Decision:
    """Decide about a job that nobody owns."""
    is_held = "h" in record.flags
    if is_held and (
        record.marks.halves > 2 * judgement.crashes_max
        or record.marks.deaths >= judgement.deaths_late
    ):
        return ParkJob("poison", f"suspected of {record.marks.deaths} worker crashes")
    # What the sweeper delayed is still the same requeue: it counts when it is granted.
    letter = "r" if "a" in record.flags and not is_held else ""
    return Grant(f"{letter}={record.marks.pack()}")


def _marked(record: Record, death: Death, judgement: Judgement) -> tuple[Marks, str]:
    """Return a job's marks after a death of its owner; m: it left one, a: it may have killed."""
    if record.state == "pending":
        granted_s = record.epoch / 1e6 - death.alive_ms / 1000
        if "a" in record.flags or (death.alive_ms and granted_s > judgement.silent_s):
            return record.marks, ""
        return record.marks.add(death.identity, is_whole=False), "ma"
    outlived_ms = death.alive_ms - record.since_ms
    if outlived_ms >= judgement.crash_window_s * 1000:
        return NO_MARKS, ""
    is_culprit = record.epoch == death.culprit
    marks = record.marks.add(death.identity, is_whole=is_culprit and record.marks.halves > 0)
    return marks, "ma" if is_culprit or outlived_ms < AT_ONCE_MS else "m"
