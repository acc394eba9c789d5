"""A schedule as it stands in its lane, and what is to be fired of it now.  Pure.

    STATE DUE NEXT LAST FIRED MISSED OVERLAPPED TOKEN\\n {when it is due} \\n MORE, and its job

    STATE   a active, p paused
    DUE     ms of the server's clock when somebody is to come: NEXT and its jitter
    NEXT    the nominal time of its next firing; none is fired twice, as firing it puts this on
    LAST    that of the latest one, 0 if there was none
    FIRED, MISSED, OVERLAPPED   how many jobs its times have made; how many times made none, as
            nobody could fire them, or as their key had a job that the policy puts before them
    TOKEN   of the call that has written this

The first line is what the scripts compare and write (`lua/schedule.lua`); what is behind it only
changes with the schedule itself.

    next <= now  --fire--> a job for each time that its misfire policy lets through, next > now
    a job        --incoming--> accepted, or left out: then the key's lane sends that back, and it
                               is counted as OVERLAPPED, and not as FIRED any more

A time is missed when nobody could fire it within `ON_TIME_S`: no node was there, or the clock was
put forward.  When it is put back, the times between come once more, and were fired: `next` is
behind them.

Each time that has come ends as fired, missed or overlapped, also if the schedule is changed before
its jitter is over.  Whoever changes a schedule settles in the same step what has come by then:

    another `when`      fired: the job is made at once, and waits until its jitter is over
    pause, remove       missed: who stops a schedule wants no job of it
    the same `when`     stays as it is: fired when its jitter is over

A step that is repeated, or comes late, finds its own token or another line, and changes nothing.

Where a job that comes to a busy key is left out, of several times that are due at once only the
latest can make a job, whatever the order: the others are counted as overlapped at once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from itertools import islice, takewhile
from typing import Any, Final

import attrs

from pool.core.followers import renamed
from pool.core.ids import number
from pool.core.options import attaches
from pool.core.record import KIND_LETTERS, Kind, pack_more, postponed
from pool.core.times import At, When, moment, next_ms, packed, times, unpacked
from pool.errors import ConfigError, PoolError

ON_TIME_S: Final = 10.0
FIRED_MAX: Final = 100  # firings of one schedule in one step; the next step takes the next ones
COUNTED_MAX: Final = (
    1000  # times that were missed, of one schedule in one step; the rest counts not
)
TRIGGERED: Final = "@trigger-"  # between a schedule and what tells its jobs apart, if no time does
PLACEHOLDER: Final = "scheduled"  # the id from which those of its followers are made


@attrs.frozen(kw_only=True)
class ScheduledJob:
    """The job that each firing makes, but for its id."""

    lane: int
    key: str
    handler: str
    kind: Kind | None = None  # None: as the handler was registered
    delay_ms: int = 0
    policy: str = ""  # for a key with a live job, as `dispatch` takes it; empty: it is left out
    more: str = ""  # of its record, but for its followers
    call: bytes = b""
    followers: bytes = b""  # packed, of a job with the id PLACEHOLDER

    @property
    def is_left_out(self) -> bool:
        """Say whether none is made for a key that has a live job, as far as that is known here."""
        return not self.policy or attaches(self.policy)

    def made(self, job_id: str) -> tuple[str, bytes]:
        """Return what the job of that id has in `more`, and its payload."""
        more, followers = self.more, renamed(self.followers, self.key, job_id)
        if followers:
            more = ",".join(filter(None, (more, pack_more(followers=len(self.call)))))
        return more, self.call + followers

    def message(self, job_id: str, wait_ms: int = 0) -> bytes:
        """Return what the lane of the key is told: see `lua/incoming.lua`.

        `wait_ms`: the job begins so much later than it is accepted, besides its own delay; it
        may expire so much later, too.
        """
        more, payload = self.made(job_id)
        more = postponed(more, wait_ms)
        texts = (self.key, job_id, self.handler, more)
        parts = (*(text.encode() for text in texts), payload)
        letter = KIND_LETTERS[self.kind] if self.kind else "?"
        words = ("j", self.delay_ms + wait_ms, letter + (self.policy or "-"), *map(len, parts))
        return " ".join(map(str, words)).encode() + b"\n" + b"".join(parts)


@attrs.frozen(kw_only=True)
class ScheduleHead:
    """What of a schedule changes when it is fired."""

    is_paused: bool = False
    due_ms: int = 0
    next_ms: int
    last_ms: int = 0
    fired: int = 0
    missed: int = 0
    overlapped: int = 0
    token: str = ""

    def pack(self) -> str:
        """Return its line."""
        counts = (self.fired, self.missed, self.overlapped)
        words = (self.due_ms, self.next_ms, self.last_ms, *counts, self.token)
        return " ".join(map(str, ("p" if self.is_paused else "a", *words)))


@attrs.frozen(kw_only=True)
class StoredSchedule:
    """A schedule, whole."""

    name: str
    head: ScheduleHead
    when: When
    job: ScheduledJob

    @property
    def body(self) -> bytes:
        """What stands behind its first line."""
        job, when = self.job, json.dumps(packed(self.when), sort_keys=True)
        told: dict[str, Any] = {
            "lane": job.lane,
            "key": job.key,
            "handler": job.handler,
            "kind": job.kind,
            "delay_ms": job.delay_ms,
            "policy": job.policy,
            "more": job.more,
            "call": len(job.call),
        }
        told_job = json.dumps({k: v for k, v in told.items() if v not in (None, "")})
        return f"{when}\n{told_job}\n".encode() + job.call + job.followers


_HEAD: Final = re.compile(rb"([ap])" + rb" (\d+)" * 6 + rb" (\S+)", re.ASCII)


def parse_head(line: bytes) -> ScheduleHead | None:
    """Return what a schedule's first line says, or None if it is none of ours."""
    found = _HEAD.fullmatch(line)
    if found is None:
        return None
    state, *numbers, token = found.groups()
    try:
        due, following, last, fired, missed, overlapped = map(number, numbers)
    except ValueError:
        return None
    return ScheduleHead(
        is_paused=state == b"p",
        due_ms=due,
        next_ms=following,
        last_ms=last,
        fired=fired,
        missed=missed,
        overlapped=overlapped,
        token=token.decode(),
    )


def parse(name: str, text: bytes) -> StoredSchedule | None:
    """Return a schedule, or None when nobody can read it.

    For one whose cron expression takes an extra, or zones, that are not here, see `unpacked`.
    """
    line, _, rest = text.partition(b"\n")
    when, _, rest = rest.partition(b"\n")
    told_job, _, data = rest.partition(b"\n")
    head = parse_head(line)
    if head is None:
        return None
    try:
        told = json.loads(told_job)
        call = told.pop("call")
        job = ScheduledJob(**told, call=data[:call], followers=data[call:])
        job.message("")
        if type(job.lane) is not int or type(call) is not int:
            return None
        return StoredSchedule(name=name, head=head, when=unpacked(json.loads(when)), job=job)
    except (PoolError, ValueError, TypeError, KeyError, AttributeError):
        return None


def unread(name: str, error: ConfigError) -> ConfigError:
    """Return the same error, which names the schedule."""
    return ConfigError(setting=error.setting, problem=f"schedule {name!r}: {error.problem}")


# --- what is due ----------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Firing:
    """What one step makes of a schedule that is due; `head` is None when it is over."""

    times: Sequence[int]  # for each a job
    missed: int = 0  # times for which there is none, as far as they were counted
    overlapped: int = 0  # times for which there is none, as a later one would have left it out
    head: ScheduleHead | None

    def counted(self, head: ScheduleHead, token: str) -> ScheduleHead:
        """Return a head with these times counted."""
        return attrs.evolve(
            head,
            last_ms=self.times[-1] if self.times else head.last_ms,
            fired=head.fired + len(self.times),
            missed=head.missed + self.missed,
            overlapped=head.overlapped + self.overlapped,
            token=token,
        )

    def messages(self, stored: StoredSchedule, now_ms: int) -> list[tuple[int, bytes]]:
        """Return a lane and what it is told for each job; each begins when its jitter is over."""
        job = stored.job
        found = []
        for at_ms in self.times:
            wait_ms = max(0, due_ms(stored.name, stored.when, at_ms) - now_ms)
            found.append((job.lane, job.message(job_id(stored.name, at_ms), wait_ms)))
        return found


def fire(stored: StoredSchedule, now_ms: int, token: str, *, is_changing: bool = False) -> Firing:
    """Return what is to be fired of a schedule by now, and how it stands then.

    `is_changing`: the schedule is about to be changed, so its times that have come are fired
    though their jitter is not over.
    """
    when, head = stored.when, stored.head
    cursor = _Cursor(stored, now_ms, skips_jitter=is_changing)
    fired, missed = list[int](), 0
    late_ms = now_ms - round(1000 * (ON_TIME_S + when.jitter_s))
    opens_ms = now_ms - round(1000 * when.window_s)
    if cursor.next_ms is not None and cursor.next_ms < late_ms:
        match when.misfire:
            case "skip":
                missed = cursor.pass_to(late_ms)
            case "once":
                latest_ms = cursor.latest_before(late_ms)
                missed = cursor.pass_to(late_ms)
                if latest_ms >= opens_ms:
                    fired, missed = [latest_ms], max(0, missed - 1)
            case "all":
                missed = cursor.pass_to(min(opens_ms, late_ms))
    while cursor.is_due and len(fired) < FIRED_MAX:
        assert cursor.next_ms is not None
        fired.append(cursor.next_ms)
        cursor.pass_to(cursor.next_ms + 1)
    overlapped = max(0, len(fired) - 1) if stored.job.is_left_out else 0
    fired = fired[overlapped:]
    firing = Firing(times=fired, missed=missed, overlapped=overlapped, head=None)
    if cursor.next_ms is None:
        return firing
    counted = firing.counted(head, token)
    return attrs.evolve(firing, head=_next_head(counted, stored, cursor.next_ms))


def drop(stored: StoredSchedule, now_ms: int, token: str) -> Firing:
    """Return how a schedule stands when all its times until now were missed, which is told."""
    cursor = _Cursor(stored, now_ms)
    firing = Firing(times=(), missed=cursor.pass_to(now_ms + 1), head=None)
    if cursor.next_ms is None:
        return firing
    counted = firing.counted(stored.head, token)
    return attrs.evolve(firing, head=_next_head(counted, stored, cursor.next_ms))


def _next_head(head: ScheduleHead, stored: StoredSchedule, at_ms: int) -> ScheduleHead:
    return attrs.evolve(head, next_ms=at_ms, due_ms=due_ms(stored.name, stored.when, at_ms))


class _Cursor:
    """The next time of a schedule that was neither fired nor missed."""

    def __init__(self, stored: StoredSchedule, now_ms: int, *, skips_jitter: bool = False) -> None:
        self._name, self._when, self._now_ms = stored.name, stored.when, now_ms
        self._skips_jitter = skips_jitter
        self.next_ms: int | None = stored.head.next_ms

    @property
    def is_due(self) -> bool:
        if self.next_ms is None:
            return False
        if self._skips_jitter:
            return self.next_ms <= self._now_ms
        return due_ms(self._name, self._when, self.next_ms) <= self._now_ms

    def pass_to(self, at_ms: int) -> int:
        """Go on to the first time that is not before that one; return how many are passed."""
        assert self.next_ms is not None
        if self.next_ms >= at_ms:
            return 0
        passed = takewhile(lambda each: each < at_ms, times(self._when, self.next_ms))
        count = 1 + sum(1 for _ in islice(passed, COUNTED_MAX - 1))
        self.next_ms = next_ms(self._when, at_ms - 1)
        return count

    def latest_before(self, at_ms: int) -> int:
        """Return the latest time that is before that one; ours is."""
        assert self.next_ms is not None
        latest_ms, beyond_ms = self.next_ms, at_ms
        while beyond_ms - latest_ms > 1:
            middle_ms = (latest_ms + beyond_ms) // 2
            found_ms = next_ms(self._when, middle_ms - 1)
            if found_ms is not None and found_ms < at_ms:
                latest_ms = found_ms
            else:
                beyond_ms = middle_ms
        return latest_ms


def due_ms(name: str, when: When, at_ms: int) -> int:
    """Return when somebody is to come for a time: its jitter is the same whoever asks."""
    if not when.jitter_s:
        return at_ms
    digest = blake2b(f"{at_ms} {name}".encode(), digest_size=8).digest()
    return at_ms + int.from_bytes(digest, "big") % (round(1000 * when.jitter_s) + 1)


def first_head(
    name: str, when: When, now_ms: int, token: str, last_ms: int = 0
) -> ScheduleHead | None:
    """Return how a schedule stands that begins now; None: its time is over.

    `last_ms`: when it was fired last.  Times that come once more, as somebody has set the clock
    back, are not fired again; one that comes once, `At`, was not fired where it stands.
    """
    at_ms = next_ms(when, now_ms if isinstance(when, At) else max(now_ms, last_ms))
    if at_ms is None:
        return None
    return ScheduleHead(due_ms=due_ms(name, when, at_ms), next_ms=at_ms, token=token)


# --- ids ------------------------------------------------------------------------------------

_JOB_ID: Final = re.compile(r"[!-~]+@(\d{4,}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{3})?)Z", re.ASCII)


def job_id(name: str, at_ms: int) -> str:
    """Return the id of the job of one firing: its schedule, and its nominal time in UTC."""
    return f"{name}@{told_time(at_ms)}"


def told_time(at_ms: int) -> str:
    """Return a time as it stands in ids: 2026-03-29T01:00:00Z."""
    spec = "milliseconds" if at_ms % 1000 else "seconds"
    return moment(at_ms).replace(tzinfo=None).isoformat(timespec=spec) + "Z"


def schedule_of(job_id: str) -> str:
    """Return the name of the schedule that a job was made of; empty: of none."""
    name, _, _ = job_id.rpartition("@")
    is_ours = time_of(job_id) is not None or job_id.startswith(name + TRIGGERED)
    return name if name and is_ours else ""


def time_of(job_id: str) -> datetime | None:
    """Return the nominal time for which a job was made; None if no schedule has made it."""
    found = _JOB_ID.fullmatch(job_id)
    if found is None:
        return None
    try:
        return datetime.fromisoformat(found[1]).replace(tzinfo=UTC)
    except ValueError:
        return None
