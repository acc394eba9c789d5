"""A job's life: its record, the table of what may happen to it, and the decisions of a recovery.

    state       in Redis it is
    pending     granted to its owner, in the owner's stream, not yet acknowledged
    running     acknowledged by its owner
    waiting     in `due`, without an owner: delayed, or before its next attempt
    unassigned  in `unassigned:H`, without an owner: no worker had room
    done, parked, cancelled      only an outcome is left

Owner and lease are not states, and what shall become of a job (its intent) stands in a record that
still has its owner.  The scripts carry out the same table; tests hold the two together.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final, Literal, TypeAlias

import attrs

from pool.core.digits import DIGITS_MAX, number, number_or
from pool.core.ids import process_of
from pool.core.retry import Dice, full_jitter, requeue_delay

State: TypeAlias = Literal["pending", "running", "waiting", "unassigned"]
Ended: TypeAlias = Literal["done", "parked", "cancelled"]
Kind: TypeAlias = Literal["job", "service"]

STATES: Final[dict[str, State]] = {
    "P": "pending",
    "R": "running",
    "W": "waiting",
    "U": "unassigned",
}
_LETTERS: Final = {state: letter for letter, state in STATES.items()}
KINDS: Final[dict[str, Kind]] = {"j": "job", "s": "service"}
KIND_LETTERS: Final = {kind: letter for letter, kind in KINDS.items()}

ERROR_CHARS_MAX = 500  # of a handler's last error that is kept
CAUSE_CHARS_MAX = 200
INLINE_BYTES_MAX: Final = 1024  # of what travels with what announces it, likewise
MARKS_MAX: Final = 8  # crash marks of a record that name who died; older ones become a number
MARKS_CHARS_MAX: Final = 400  # of all of them; eight identities and the number are half of that
AT_ONCE_MS: Final = 1000  # what its worker outlived by this, as is known, does not kill at once


# --- what may happen ------------------------------------------------------------------------

ACKNOWLEDGE, LIMIT, SEEN, DONE, CANCEL, PARK, WAIT, GRANT = "a", "l", "s", "d", "c", "x", "w", "g"
ENDS = frozenset((DONE, CANCEL, PARK))
OVER = "o"
ANEW: Final = "1"  # of a LIMIT: what was told of the run before does not count

# (state, edge) -> states it may lead to.  A stop that was asked for turns WAIT and GRANT into
# cancelled; every pair that is not here is refused.
TABLE: Final[dict[tuple[State, str], tuple[State | Ended, ...]]] = {
    ("pending", ACKNOWLEDGE): ("running",),
    ("pending", SEEN): ("pending",),
    ("pending", DONE): ("done",),
    ("pending", CANCEL): ("cancelled",),
    ("pending", PARK): ("parked",),
    ("pending", WAIT): ("waiting", "cancelled"),
    ("pending", GRANT): ("pending", "unassigned", "cancelled"),
    ("running", ACKNOWLEDGE): ("running",),  # a repeat, its first answer was lost
    ("running", LIMIT): ("running",),
    ("running", SEEN): ("running",),
    ("running", OVER): ("running",),
    ("running", DONE): ("done",),
    ("running", CANCEL): ("cancelled",),
    ("running", PARK): ("parked",),
    ("running", WAIT): ("waiting", "cancelled"),
    ("running", GRANT): ("pending", "unassigned", "cancelled"),
    ("waiting", CANCEL): ("cancelled",),
    ("waiting", PARK): ("parked",),
    ("waiting", GRANT): ("pending", "unassigned"),
    ("unassigned", CANCEL): ("cancelled",),
    ("unassigned", PARK): ("parked",),
    ("unassigned", GRANT): ("pending", "unassigned"),
}

EDGE_NAMES: Final = {
    ACKNOWLEDGE: "acknowledge",
    LIMIT: "limit",
    SEEN: "seen",
    OVER: "over",
    DONE: "done",
    CANCEL: "cancel",
    PARK: "park",
    WAIT: "retry",
    GRANT: "grant",
}


def diagram() -> str:
    """Return the life of a job as a Mermaid state diagram, for the docs."""
    lines = ["stateDiagram-v2", "    [*] --> pending: dispatch", "    [*] --> unassigned: dispatch"]
    lines.append("    [*] --> waiting: dispatch with a delay")
    for (state, edge), outcomes in TABLE.items():
        for outcome in outcomes:
            if outcome != state:
                name = "stop" if outcome == "cancelled" else EDGE_NAMES[edge]
                line = f"    {state} --> {outcome}: {name}"
                if line not in lines:
                    lines.append(line)
    ends = (f"    {ended} --> [*]" for ended in ("done", "parked", "cancelled"))
    return "\n".join([*lines, *ends])


# --- crash marks ----------------------------------------------------------------------------


@attrs.frozen
class Marks:
    """The deaths that a job is suspected of: who died, as `id.n`, whole or half.

        6,w8z4k0qv1xt3.1,w8z4k0qv1xt4.2-        in a record; `-` stands for half, and the number
                                                in front counts halves of which no name is kept

    Who comes back from a freeze was not killed: the scripts that hand a record out to be judged
    leave the marks out that name one who said so (`lua/lib/marks.lua`).
    """

    named: tuple[str, ...] = ()
    before: int = 0

    @classmethod
    def parse(cls, text: str) -> Marks:
        """Return what stands in a record; it has been matched against the record's pattern."""
        if not text:
            return NO_MARKS
        first, *rest = text.split(",")
        if first.isdigit():
            return cls(tuple(filter(None, rest)), int(first[:DIGITS_MAX]))
        return cls(tuple(filter(None, (first, *rest))))

    def pack(self) -> str:
        """Return what stands in a record."""
        return ",".join((str(self.before),) * (self.before > 0) + self.named)

    @property
    def halves(self) -> int:
        """What they weigh, in halves: floats would do, but a bound must not depend on them."""
        return self.before + sum(1 if name.endswith("-") else 2 for name in self.named)

    @property
    def deaths(self) -> int:
        """How many they are; of what has no name any more each half counts as one."""
        return self.before + len(self.named)

    def deaths_but(self, known: Collection[str]) -> int:
        """How many they are without those of some processes."""
        return self.deaths - sum(process_of(name) in known for name in self.named)

    def add(self, died: str, *, is_whole: bool) -> Marks:
        """Return them with one more; nobody dies twice, so the heavier of two stands."""
        had = [name for name in self.named if name.removesuffix("-") == died]
        rest = [name for name in self.named if name not in had]
        is_whole = is_whole or died in had
        named = (*rest, died if is_whole else died + "-")
        older, named = named[:-MARKS_MAX], named[-MARKS_MAX:]
        return Marks(named, self.before + Marks(older).halves)


NO_MARKS: Final = Marks()
_MARKS_TEXT: Final = rf"[0-9A-Za-z.,-]{{0,{MARKS_CHARS_MAX}}}"


# --- the record -----------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Record:
    """A job as its record in `jobs` tells it; the layout is drawn in `lua/lib/record.lua`."""

    state: State
    kind: Kind
    id: str
    handler: str
    owner: str
    epoch: int
    attempt: int
    flags: str
    intent: str
    marks: Marks
    requeues: int
    accepted: int  # stamp, microseconds
    since_ms: int  # server time: running since; of one that waits, when it is due; 0: neither
    waiters: tuple[str, ...]
    error: str

    @classmethod
    def parse(cls, text: bytes) -> Record | None:
        """Return the record, or None when the text is not one that can be worked on.

        The scripts read any bytes in its texts; we write UTF-8 only.
        """
        try:
            match = _RECORD.match(text.decode())
        except UnicodeDecodeError:
            match = None
        if match is None:
            return None
        state, kind, job_id, handler, owner, epoch, attempt, flags, intent, *more = match.groups()
        marks, requeues, accepted, since, waiters, error = more
        if (state in "PR") != (owner != ""):
            return None
        return cls(
            state=STATES[state],
            kind=KINDS[kind],
            id=job_id,
            handler=handler,
            owner=owner,
            epoch=int(epoch),
            attempt=max(1, int(attempt)),
            flags=flags,
            intent=intent,
            marks=Marks.parse(marks),
            requeues=int(requeues or 0),
            accepted=int(accepted or epoch),
            since_ms=int(since or 0),
            waiters=tuple(waiters.split(",")) if waiters else (),
            error=error,
        )


_NUMBER: Final = rf"\d{{0,{DIGITS_MAX}}}"
# What may stand in each field; what a newer version writes behind them is not looked at.
FIELDS: Final = {
    "state": "[PRWU]",
    "kind": "[js]",
    "id": "[^|]+",
    "handler": "[^|]+",
    "owner": "[^|]*",
    "epoch": rf"[1-9]\d{{0,{DIGITS_MAX - 1}}}",
    "attempt": rf"\d{{1,{DIGITS_MAX}}}",
    "flags": "[a-z]*",
    "intent": "[^|]*",
    "marks": _MARKS_TEXT,
    "requeues": _NUMBER,
    "accepted": _NUMBER,
    "since": _NUMBER,
    "waiters": "[^|]*",
    "error": "[^|]*",
}
_RECORD: Final = re.compile(rf"({')[|]('.join(FIELDS.values())})(?:[|]|\Z)", re.ASCII)


@attrs.define(kw_only=True)
class Start:
    """What a worker's stream says of a job that was granted to it.

    Not frozen only because that triples what making one costs.
    """

    key: str
    id: str
    handler: str
    kind: Kind
    epoch: int
    attempt: int
    flags: str
    marks: Marks
    accepted: int  # stamp, microseconds
    payload: bytes | None  # None: too large for the entry, it lies in `payloads`

    @classmethod
    def parse(cls, entry_id: str, fields: dict[str, bytes]) -> Start | None:
        """Return the start, or None when the entry is not one."""
        try:
            job_id, handler, kind, attempt, flags, marks, accepted = (
                fields["m"].decode().split("|")[:7]
            )
            epoch = number(entry_id.partition("-")[0])
            return cls(
                key=fields["k"].decode(),
                id=job_id,
                handler=handler,
                kind=KINDS[kind],
                epoch=epoch,
                attempt=max(1, number(attempt)),
                flags=flags,
                marks=Marks.parse(_marks_text(marks)) if marks else NO_MARKS,
                accepted=number(accepted) if accepted else epoch,
                payload=fields.get("p"),
            )
        except (KeyError, ValueError):  # UnicodeDecodeError is a ValueError
            return None


@attrs.frozen(kw_only=True)
class Outcome:
    """How a job ended, as `result:ID` keeps it."""

    word: Ended
    epoch: int
    owner: str
    attempt: int
    ended_ms: int
    cause: str
    body: bytes  # of a done job its encoded result, of a parked one its last error
    accepted_ms: int = 0  # 0: not told
    started_ms: int = 0  # when its last run began; 0: not told, or it never did
    halves: int = 0  # what its crash marks weighed

    @classmethod
    def parse(cls, text: bytes) -> Outcome | None:
        """Return the outcome, or None when the text is not one."""
        head, newline, body = text.partition(b"\n")
        match head.decode(errors="replace").split("|", 5):
            case [("done" | "parked" | "cancelled") as word, epoch, owner, attempt, times, cause]:
                ended, *history = times.split(",")
                try:
                    numbers = [number(text) for text in (epoch, attempt, ended)]
                    before = [number(text) if text else -1 for text in history]
                except ValueError:
                    return None
                accepted, started, halves = [*before, -1, -1, -1][:3]
                if newline:
                    return cls(
                        word=word,
                        epoch=numbers[0],
                        owner=owner,
                        attempt=numbers[1],
                        ended_ms=numbers[2],
                        cause=cause,
                        body=body,
                        accepted_ms=max(0, numbers[2] - accepted) if accepted >= 0 else 0,
                        started_ms=max(0, numbers[2] - started) if started >= 0 else 0,
                        halves=max(0, halves),
                    )
        return None


def _marks_text(text: str) -> str:
    """Return it if it can be marks.

    Raises:
        ValueError: It cannot.
    """
    if not re.fullmatch(_MARKS_TEXT, text, re.ASCII):
        raise ValueError(text[:DIGITS_MAX])
    return text


def one_line(text: str, chars_max: int) -> str:
    """Return text that may stand in a record: one line, no bar, no surrogate, not too long."""
    text = text[: 4 * chars_max]  # before all else: it may be megabytes, and the loop waits
    return re.sub(r"[|\x00-\x1f\x7f\ud800-\udfff]+", " ", text).strip()[:chars_max]


# --- what a handler wants for its jobs --------------------------------------------------------


@attrs.frozen(kw_only=True)
class Options:
    """How jobs of one handler are run; kept in the lane, so that recovery needs no handler code."""

    kind: Kind = "job"
    attempts_max: int = 5  # 0: without limit
    backoff_s: float = 1.0
    backoff_max_s: float = 60.0
    timeout_s: float | None = None
    healthy_s: float = 60.0

    def pack(self) -> str:
        """Return what stands in `handlers`."""
        timeout_ms = 0 if self.timeout_s is None else max(1, round(self.timeout_s * 1000))
        numbers = (
            self.attempts_max,
            round(self.backoff_s * 1000),
            round(self.backoff_max_s * 1000),
            timeout_ms,
            round(self.healthy_s * 1000),
        )
        return "|".join([KIND_LETTERS[self.kind], *map(str, numbers)])

    @classmethod
    def parse(cls, text: bytes) -> Options:
        """Return the options; what cannot be read counts as the defaults."""
        fields = text.decode(errors="replace").split("|")
        try:
            attempts, base, cap, timeout, healthy = map(number, fields[1:6])
        except ValueError:
            return cls()
        if fields[0] not in KINDS:
            return cls()
        return cls(
            kind=KINDS[fields[0]],
            attempts_max=attempts,
            backoff_s=max(base, 1) / 1000,
            backoff_max_s=max(cap, base, 1) / 1000,
            timeout_s=timeout / 1000 if timeout else None,
            healthy_s=healthy / 1000,
        )


# --- decisions --------------------------------------------------------------------------------


@attrs.frozen
class ParkJob:
    """Give the job up: it becomes a dead letter."""

    cause: str
    error: str


@attrs.frozen
class Wait:
    """Run it again, after a delay and as this attempt; `mark` as in `Grant`."""

    delay_s: float
    attempt: int
    error: str
    mark: str = ""


@attrs.frozen
class Grant:
    """Give it to a worker at once; `mark` is what `advance` takes (see there)."""

    mark: str = ""

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


def after_timeout(attempt: int, options: Options, dice: Dice) -> ParkJob | Wait:
    """Decide what follows an attempt that ran too long."""
    error = "ran longer than timeout_s"
    return after_failure(attempt, options, dice, cause="timed out", error=error)


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
) -> Decision:
    """Decide what becomes of a job whose owner is gone, or whose time has come (G-05).

    From its record and the death of its owner; `death` is None when nobody died.  `is_most` says
    that it was aboard at more deaths than any other job of that owner (see `Lineup`).

        the job was                          its marks
        running, longer than the window      are cleared
        running, the culprit                 + 1 if it had any, else + 1/2: nobody saw it alone
        running, any other                   + 1/2
        pending, to be acknowledged first    stay: it never began
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
    if record.intent.startswith("t"):
        return after_timeout(record.attempt, options, dice)
    if death is None or record.state not in ("pending", "running"):
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
        if "a" in record.flags:
            return record.marks, ""
        return record.marks.add(death.identity, is_whole=False), "ma"
    outlived_ms = death.alive_ms - record.since_ms
    if outlived_ms >= judgement.crash_window_s * 1000:
        return NO_MARKS, ""
    is_culprit = record.epoch == death.culprit
    marks = record.marks.add(death.identity, is_whole=is_culprit and record.marks.halves > 0)
    return marks, "ma" if is_culprit or outlived_ms < AT_ONCE_MS else "m"
