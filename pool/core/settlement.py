"""What becomes of a job whose attempt failed, or whose owner is gone."""

from __future__ import annotations

import math
from typing import Final, TypeAlias, TypeGuard

import attrs

from pool.core.crash_marks import (
    NO_DEATHS,
    Deaths,
    Marks,
    after_death,
    in_round,
    is_proved,
    outlived,
    round_s,
    settled,
    tenths,
)
from pool.core.ids import is_poller, process_of
from pool.core.lifecycle import OWNED
from pool.core.options import Limit, Options
from pool.core.record import ERROR_CHARS_MAX, NOT_IN_TIME, Record, lapsed, one_line
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


def is_hold(decision: Decision) -> TypeGuard[Wait]:
    """Say whether a job is held, to be judged once more and parked."""
    return isinstance(decision, Wait) and decision.mark.startswith("h")


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
    """The end of an identity, as its claim tells it.

    The identity was alive at `alive_ms`, when its lease was last renewed, or just before: what it
    had sent may have come late.  `culprit` is the epoch of the suspect that it had begun last and
    that may have killed it (see `fence.lua`); `bits` is how unlikely that is by chance, in tenths.
    """

    identity: str
    alive_ms: int
    culprit: int = 0  # 0: none
    bits: int = 0


@attrs.frozen(kw_only=True)
class Judgement:
    """What the node that judges has in its settings, and what it knows of the fleet."""

    crash_window_s: float
    crashes_max: int
    hold_s: float  # how long a job is held before it is parked: its process may only be frozen
    deaths: Deaths = NO_DEATHS
    jobs: int = 0  # running in the pool
    silent_s: float = math.inf  # a worker that has not renewed for so long was not at work any more


@attrs.frozen
class Deal:
    """Where the dice put a job: into which process, of how many."""

    place: str = ""
    of: int = 1


NO_DEAL: Final = Deal()


@attrs.define
class Lineup:
    """The two jobs of a dead identity that most speaks against.

    Only one job may have killed it.  So a job is given up only if no other one aboard has as much
    evidence: what explains the death of both is not that job.  A reaper reads the jobs in pages,
    and carries the decisions of each page out.  Therefore it leaves the job that it would hold
    where it is, until it has read all others.  A successor of a dead reaper compares what is left.
    """

    key: str = ""  # the first of the two
    most: int = 0  # its evidence, in tenths of a bit
    second: int = 0
    is_whole: bool = False  # all jobs were seen

    def see(self, key: str, evidence: int) -> None:
        """Note how much speaks against a job; a job may be seen again."""
        if key == self.key:
            self.most = evidence
        elif evidence > self.most:
            self.key, self.most, self.second = key, evidence, self.most
        else:
            self.second = max(self.second, evidence)

    def rival(self, key: str) -> int:
        """Return how much speaks against the strongest other job."""
        return self.second if key == self.key else self.most


def suspicion(record: Record, death: Death, judgement: Judgement) -> int:
    """Return how much speaks against a job after its owner's death, in tenths of a bit."""
    if not record.marks.deaths or record.state not in OWNED:
        return 0
    return tenths(_marked(record, death, judgement)[0], judgement.deaths)


def recover(
    record: Record,
    options: Options,
    dice: Dice,
    *,
    judgement: Judgement,
    death: Death | None = None,
    deal: Deal = NO_DEAL,
    rival: int = 0,
    now_ms: int = 0,
) -> Decision:
    """Decide what becomes of a job whose owner is gone, or whose time has come (G-05).

    From its record and the death of its owner; `death` is None when nobody died.  `rival` is how
    much speaks against another job aboard (see `Lineup`).  `now_ms` is pool time, where the job may
    be too late (see `core/record.py`).

        the job was                          its marks
        running longer than the window       are halved for each window, then as below
        running, or pending                  one death more, and what that proves (`crash_marks.py`)
        pending, to be acknowledged first    stay: it never began
        pending, granted to one long silent  stay: its worker was dead by then
        pending, of a worker that polls      stay: no client was told of it
        whatever, of a process that drained  stay: such a death is no event

    Where one process only may take the job, in a crash loop, it is started or held by a coin.

    A job that may have killed at once is begun alone the next time (flag `a`; see `trials.py`).  Of
    a worker that polls nobody knows when it died: its jobs are judged as late killers are.  A job
    that is proved to kill is held for one TTL, then judged again with all that is known by then,
    and parked.
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
    is_guilty = letters and is_proved(
        marks,
        judgement.deaths,
        jobs=judgement.jobs,
        crashes_max=judgement.crashes_max,
        rival=rival,
    )
    if marks.deaths:
        is_tried = record.state == "pending" or "a" in letters
        marks = attrs.evolve(marks, place=deal.place, dealt=deal.of, is_tried=is_tried)
    held_s = 0.0
    # Jobs that may have killed at once have trials instead.
    if letters == "m" and not is_guilty and deal.of == 1:
        marks, held_s = _toss(marks, judgement, dice)
    text = f"{letters}={marks.pack()}"
    if is_guilty:
        return Wait(judgement.hold_s, record.attempt, record.error, "h" + text)
    if held_s:
        return Wait(held_s, record.attempt, record.error, text)
    if record.state == "running":
        return Grant(text)
    # Once for each death of a neighbour it is requeued without a delay.
    requeues = max(0, record.requeues - judgement.crashes_max - 2)
    delay_s = requeue_delay(requeues, options.backoff_s, options.backoff_max_s, dice)
    if delay_s:
        return Wait(delay_s, record.attempt, record.error, text)
    return Grant("r" + text)


def _toss(marks: Marks, judgement: Judgement, dice: Dice) -> tuple[Marks, float]:
    """Toss a coin for a job that one process only may take, in a crash loop.

    Returns its marks, and for how long it is held.  The round begins with the death, so it lasts as
    long as that took to be noticed, too.
    """
    lasts_s = round_s(marks, judgement.deaths, judgement.crash_window_s)
    if not lasts_s:
        return marks, 0.0
    is_held = dice.random() < 0.5
    marks = in_round(marks, judgement.hold_s + lasts_s, is_held=is_held)
    return marks, lasts_s if is_held else 0.0


def _come_due(record: Record, judgement: Judgement) -> Decision:
    """Decide about a job that nobody owns."""
    is_held, marks = "h" in record.flags, record.marks
    if is_held and is_proved(
        marks, judgement.deaths, jobs=judgement.jobs, crashes_max=judgement.crashes_max
    ):
        return ParkJob("poison", f"suspected of {marks.deaths} worker crashes")
    # What the sweeper delayed is still the same requeue: it counts when it is granted.
    letter = "r" if "a" in record.flags and not is_held else ""
    # Its place follows from the time of day now, and not from the dice.
    marks = attrs.evolve(marks, place="", dealt=1)
    return Grant(f"{letter}={marks.pack()}")


def _marked(record: Record, death: Death, judgement: Judgement) -> tuple[Marks, str]:
    """Return a job's marks after a death of its owner; m: it left one, a: it may have killed."""
    deaths, process = judgement.deaths, process_of(death.identity.rpartition(".")[0])
    if process not in deaths.last_ms:
        return record.marks, ""
    polls = is_poller(death.identity)
    if record.state == "pending":
        if polls:
            return record.marks, ""  # its gateway acknowledges a start before it hands the job out
        granted_s = record.epoch / 1e6 - death.alive_ms / 1000
        if "a" in record.flags or (death.alive_ms and granted_s > judgement.silent_s):
            return record.marks, ""
    is_culprit = record.epoch == death.culprit and not polls
    outlived_ms, marks = AT_ONCE_MS, record.marks
    if record.state == "running":
        outlived_ms = death.alive_ms - record.since_ms
        windows = int(outlived_ms // (judgement.crash_window_s * 1000))
        if windows > 0:
            return outlived(settled(marks, deaths), windows), ""
    marks = after_death(marks, deaths, process, death.bits if is_culprit else None)
    if polls:
        return marks, "m"  # nobody saw when it died, so it had no trial: the dice judge
    is_at_once = is_culprit or record.state == "pending" or outlived_ms < AT_ONCE_MS
    return marks, "ma" if is_at_once else "m"
