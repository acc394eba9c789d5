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
from typing import Final, Literal, TypeAlias

import attrs

from pool.model.backoff import Dice, full_jitter, requeue_delay

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
DIGITS_MAX = 16  # of a number in Redis, as `lua/lib/record.lua` has it


# --- what may happen ------------------------------------------------------------------------

ACKNOWLEDGE, LIMIT, SEEN, DONE, CANCEL, PARK, WAIT, GRANT = "a", "l", "s", "d", "c", "x", "w", "g"

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
    crashes: int
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
        fields = match.groups()
        if (fields[0] in "PR") != (fields[4] != ""):
            return None
        epoch = int(fields[5])
        return cls(
            state=STATES[fields[0]],
            kind=KINDS[fields[1]],
            id=fields[2],
            handler=fields[3],
            owner=fields[4],
            epoch=epoch,
            attempt=max(1, int(fields[6])),
            flags=fields[7],
            intent=fields[8],
            crashes=int(fields[9] or 0),
            requeues=int(fields[10] or 0),
            accepted=int(fields[11] or epoch),
            since_ms=int(fields[12] or 0),
            waiters=tuple(fields[13].split(",")) if fields[13] else (),
            error=fields[14],
        )


# The pattern of `lua/lib/record.lua`.
_RECORD: Final = re.compile(
    r"([PRWU])\|([js])\|([^|]+)\|([^|]+)\|([^|]*)\|([1-9]\d{0,15})\|(\d{1,16})\|([a-z]*)\|([^|]*)"
    r"\|(\d{0,16})\|(\d{0,16})\|(\d{0,16})\|(\d{0,16})\|([^|]*)\|([^|]*)(?:\||\Z)",
    re.ASCII,
)


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
    crashes: int
    accepted: int  # stamp, microseconds
    payload: bytes | None  # None: too large for the entry, it lies in `payloads`

    @classmethod
    def parse(cls, entry_id: str, fields: dict[str, bytes]) -> Start | None:
        """Return the start, or None when the entry is not one."""
        try:
            job_id, handler, kind, attempt, flags, crashes, accepted = (
                fields["m"].decode().split("|")[:7]
            )
            epoch = _number(entry_id.partition("-")[0])
            return cls(
                key=fields["k"].decode(),
                id=job_id,
                handler=handler,
                kind=KINDS[kind],
                epoch=epoch,
                attempt=max(1, _number(attempt)),
                flags=flags,
                crashes=_number(crashes or "0"),
                accepted=_number(accepted) if accepted else epoch,
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

    @classmethod
    def parse(cls, text: bytes) -> Outcome | None:
        """Return the outcome, or None when the text is not one."""
        head, newline, body = text.partition(b"\n")
        match head.decode(errors="replace").split("|", 5):
            case [("done" | "parked" | "cancelled") as word, epoch, owner, attempt, ended, cause]:
                try:
                    numbers = [_number(text) for text in (epoch, attempt, ended)]
                except ValueError:
                    return None
                if newline:
                    return cls(
                        word=word,
                        epoch=numbers[0],
                        owner=owner,
                        attempt=numbers[1],
                        ended_ms=numbers[2],
                        cause=cause,
                        body=body,
                    )
        return None


def _number(text: str) -> int:
    """Return a number as the scripts take it; `int()` takes many more forms, of any length.

    Raises:
        ValueError: It is not one.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX):
        raise ValueError(text[:DIGITS_MAX])
    return int(text)


def one_line(text: str, chars_max: int) -> str:
    """Return text that may stand in a record: one line, no bar, no surrogate, not too long."""
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
            attempts, base, cap, timeout, healthy = map(_number, fields[1:6])
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
class Park:
    """Give the job up: it becomes a dead letter."""

    cause: str
    error: str


@attrs.frozen
class Wait:
    """Run it again, after a delay and as this attempt."""

    delay_s: float
    attempt: int
    error: str


@attrs.frozen
class Grant:
    """Give it to a worker at once; `mark` is what `advance` takes (see there)."""

    mark: str = ""


@attrs.frozen
class Cancel:
    """End it as stopped."""

    cause: str


Decision: TypeAlias = Park | Wait | Grant | Cancel


def after_failure(
    attempt: int, options: Options, dice: Dice, *, cause: str, error: str
) -> Park | Wait:
    """Decide what follows a failed attempt: another one after a full-jitter delay, or the end."""
    error = one_line(error, ERROR_CHARS_MAX)
    if options.attempts_max and attempt >= options.attempts_max:
        return Park(cause, error)
    delay_s = full_jitter(attempt, options.backoff_s, options.backoff_max_s, dice)
    return Wait(delay_s, attempt + 1, error)


def after_timeout(attempt: int, options: Options, dice: Dice) -> Park | Wait:
    """Decide what follows an attempt that ran too long."""
    error = "ran longer than timeout_s"
    return after_failure(attempt, options, dice, cause="timed out", error=error)


def recover(
    record: Record,
    options: Options,
    dice: Dice,
    *,
    now_ms: int,
    crash_window_s: float,
    crashes_max: int,
) -> Decision:
    """Decide what becomes of a job whose owner is gone (G-05), from its record alone.

    A job that was acknowledged running gets a crash mark, and is parked as poison when it has too
    many.  One that was only waiting in its owner's stream gets none, but must be acknowledged
    before its handler starts the next time: then, if it kills its worker, that will show.
    """
    if record.intent.startswith("s"):
        return Cancel(record.intent[1:])
    if record.intent.startswith("t"):
        return after_timeout(record.attempt, options, dice)
    if record.state == "pending":
        delay_s = requeue_delay(record.requeues, options.backoff_s, options.backoff_max_s, dice)
        return Wait(delay_s, record.attempt, record.error) if delay_s else Grant("r")
    if record.state == "running":
        was_long = now_ms - record.since_ms >= crash_window_s * 1000
        crashes = (0 if was_long else record.crashes) + 1
        if crashes > crashes_max:
            return Park("poison", f"{crashes} workers ended while they ran it")
        return Grant(str(crashes))
    # What the sweeper delayed is still the same requeue: it counts when it is granted.
    return Grant("r" if "a" in record.flags else "")
