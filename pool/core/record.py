"""What stands in Redis of a job: its record, its start, its outcome.

The scripts read and write the same fields (`lua/lib/record.lua`); tests hold the two together.

By when a job must have begun, or is not begun any more, as `more` of its record says.

The scripts write it, and decide by it (`lua/lib/lapse.lua`).

What a job has stored while it went on: its steps, and its state; see `lua/lib/steps.lua`.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Final, Literal, TypeAlias
from urllib.parse import quote, unquote

import attrs

from pool import checks
from pool.core.crash_marks import MARKS_TEXT, NO_MARKS, Marks, marks_text
from pool.core.ids import DIGITS_MAX, number, number_or
from pool.core.lifecycle import OWNED, EndState, State

Kind: TypeAlias = Literal["job", "service"]

STATES: Final[dict[str, State]] = {
    "P": "pending",
    "R": "running",
    "W": "waiting",
    "U": "unassigned",
    "Q": "queued",
}
KINDS: Final[dict[str, Kind]] = {"j": "job", "s": "service"}
KIND_LETTERS: Final = {kind: letter for letter, kind in KINDS.items()}

TRACEBACK_CHARS_MAX: Final = 4000  # of a failed attempt's traceback that are kept
ERROR_CHARS_MAX = 500  # of a handler's last error that is kept
CAUSE_CHARS_MAX = 200
SUPERSEDED: Final = "superseded by "  # then an id: the cause of what another took the place of
NOTE_CHARS_MAX = 200  # of what a handler says beside how far it is
INLINE_BYTES_MAX: Final = 1024  # of a payload or outcome that goes along with its message


# --- what hardly any job has ------------------------------------------------------------------

# In `more` of a record and of its start: a letter and its value each, with commas between.
MORE: Final = {
    "digest": "d",  # of handler, payload and followers, where its id was given to it
    "expires": "x",  # ms[/by]: for so long it may begin, see `core/record.py`
    "start": "s",  # ms[/by]: so long it may wait for a worker, likewise
    "retention": "r",  # ms for which its outcome is kept, whatever its handler says
    "window": "w",  # ms for which its id is known at least, once it has ended
    "progress": "p",  # ms/done/total/note: how far it is, as it said; see `Progress`
    "attempts": "t",  # some have failed, and how is kept
    "lineage": "l",  # id of the dead letter that it was made from
    "origin": "o",  # of the first one of these, if its arguments are still those
    # How long its payload is, behind which its followers stood, until it has ended; then the names
    # of those that were released, with ; between: see `lua/lib/channel.lua`
    "followers": "f",
    "left": "n",  # ids of workers that cannot read its arguments, the latest first; / between
    "batch": "b",  # INDEX/LANE/NONCE/ID of the batch that it is a member of, see `core/batches.py`
    # Only outcomes and dead letters have:
    "handler": "h",
    "kind": "k",  # as in the record
    "replayed": "y",  # id of the job that was made from it
    "edited": "e",  # its payload is not the one it was dispatched with
}


def more_of(more: str, name: str) -> str:
    """Return what `more` has of this name; empty if it has none."""
    letter = MORE[name]
    found = (each[1:] for each in more.split(",") if each[:1] == letter)
    return next(found, "") if more else ""


def left_by(more: str) -> tuple[str, ...]:
    """Return the ids of the workers that have left a job to others, the latest first.

    A worker stands there once for each time.
    """
    return tuple(filter(None, more_of(more, "left").split("/")))


def without_more(more: str, name: str) -> str:
    """Return `more` without what it has of this name."""
    return ",".join(each for each in more.split(",") if each[:1] != MORE[name])


def pack_more(**values: object) -> str:
    """Return `more` with these; what is None or empty is left out."""
    told = ((MORE[name], value) for name, value in values.items())
    return ",".join(f"{letter}{value}" for letter, value in told if value not in (None, ""))


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
    more: str = ""

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
        state, kind, job_id, handler, owner, epoch, attempt, flags, intent, *rest = match.groups()
        marks, requeues, accepted, since, waiters, error, more = rest
        if (STATES[state] in OWNED) != (owner != ""):
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
            more=more,
        )


_NUMBER: Final = rf"\d{{0,{DIGITS_MAX}}}"
# What may stand in each field; what a newer version writes behind them is not looked at.
FIELDS: Final = {
    "state": "[PRWUQ]",
    "kind": "[js]",
    "id": "[^|]+",
    "handler": "[^|]+",
    "owner": "[^|]*",
    "epoch": rf"[1-9]\d{{0,{DIGITS_MAX - 1}}}",
    "attempt": rf"\d{{1,{DIGITS_MAX}}}",
    "flags": "[a-z]*",
    "intent": "[^|]*",
    "marks": MARKS_TEXT,
    "requeues": _NUMBER,
    "accepted": _NUMBER,
    "since": _NUMBER,
    "waiters": "[^|]*",
    "error": "[^|]*",
    "more": "[^|]*",
}
_RECORD: Final = re.compile(rf"({')[|]('.join(FIELDS.values())})(?:[|]|\Z)", re.ASCII)


@attrs.define
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
    more: str = ""

    @classmethod
    def parse(cls, entry_id: str, fields: dict[str, bytes]) -> Start | None:
        """Return the start, or None when the entry is not one."""
        try:
            job_id, handler, kind, attempt, flags, marks, accepted, more = (
                fields["m"].decode().split("|")[:8]
            )
            epoch = number(entry_id.partition("-")[0])
            return cls(  # by position: there is one for each job
                fields["k"].decode(),
                job_id,
                handler,
                KINDS[kind],
                epoch,
                max(1, number(attempt)),
                flags,
                Marks.parse(marks_text(marks)) if marks else NO_MARKS,
                number(accepted) if accepted else epoch,
                fields.get("p"),
                more,
            )
        except (KeyError, ValueError):  # UnicodeDecodeError is a ValueError
            return None


@attrs.frozen
class Attempt:
    """An attempt that failed, or the death of a worker that had the job aboard.

    `type` is the exception's, or "crash"; `traceback` is cut in the middle if it is long.
    """

    number: int
    at_ms: int  # pool time
    owner: str
    type: str
    message: str = ""
    traceback: str = ""


def _attempt(text: str) -> Attempt | None:
    """Return what `lua/lib/finish.lua` keeps of one, or None when the text is not one."""
    try:
        at, which, owner, told = text.split(" ", 3)
        facts = json.loads(told)
        words = [facts.get(name, "") for name in ("type", "message", "traceback")]
        if not all(type(word) is str for word in words):
            return None
        kind, message, traceback = words
        return Attempt(number(which), number(at), owner, kind, message, traceback)
    except (ValueError, AttributeError, RecursionError):
        return None


def attempts(text: str) -> tuple[Attempt, ...]:
    """Return those of a text that can be read, the first one first."""
    found = (_attempt(each) for each in text.split("\t") if each)
    return tuple(each for each in found if each is not None)


def pack_attempt(kind: str, message: str, traceback: str = "") -> str:
    """Return what an owner has to say of a failed attempt, in one line without tabs."""
    facts = {"type": kind[:ERROR_CHARS_MAX], "message": message[:ERROR_CHARS_MAX]}
    facts |= {"traceback": cut(traceback, TRACEBACK_CHARS_MAX)} if traceback else {}
    text = json.dumps(facts, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="replace").decode().replace("\x7f", " ")


def cut(text: str, chars_max: int) -> str:
    """Return a text that is not too long: what is too much is taken out of its middle."""
    if len(text) <= chars_max:
        return text
    half = (chars_max - 40) // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters ...\n{text[-half:]}"


@attrs.frozen(kw_only=True)
class Progress:
    """How far a job is, as its handler said last; a `total` of None: it does not know."""

    done: float
    total: float | None = None
    note: str = ""
    at_ms: int = 0  # pool time

    def pack(self) -> str:
        """Return what the edge takes: no bar, comma, slash or line feed is in its parts."""
        total = "" if self.total is None else f"{self.total:.15g}"
        return f"{self.done:.15g}/{total}/{quote(one_line(self.note, NOTE_CHARS_MAX), safe=' ')}"

    @classmethod
    def parse(cls, text: str) -> Progress | None:
        """Return it, or None when the text is not one."""
        try:
            at_ms, done, total, note = text.split("/")
            return cls(
                done=float(done),
                total=float(total) if total else None,
                note=unquote(note),
                at_ms=number(at_ms),
            )
        except ValueError:
            return None


@attrs.frozen(kw_only=True)
class Outcome:
    """How a job ended, as `result:ID KEY` keeps it."""

    word: EndState
    epoch: int
    owner: str
    attempt: int
    ended_ms: int
    cause: str
    body: bytes  # of a done job its encoded result, of a parked one its last error and its attempts
    accepted_ms: int = 0  # 0: not told
    started_ms: int = 0  # when its last run began; 0: not told, or it never did
    crashes: int = 0  # how many deaths it was suspected of
    more: str = ""
    progress: Progress | None = None  # what it said last

    @property
    def error(self) -> str:
        """The last one of a parked job."""
        return self.body.partition(b"\n")[0].decode(errors="replace")

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """Those of a parked job that failed, the last few."""
        return attempts(self.body.partition(b"\n")[2].decode(errors="replace"))

    @staticmethod
    def pack(
        word: EndState, epoch: int, owner: str, attempt: int, *, cause: str = "", body: bytes = b""
    ) -> bytes:
        """Return what `lua/lib/finish.lua` keeps, but for the times."""
        return f"{word}|{epoch}|{owner}|{attempt}|0||{cause}\n".encode() + body

    @classmethod
    def parse(cls, text: bytes) -> Outcome | None:
        """Return the outcome, or None when the text is not one."""
        head, newline, body = text.partition(b"\n")
        match head.decode(errors="replace").split("|", 6):
            case [
                "done" | "parked" | "cancelled" as word,
                epoch,
                owner,
                attempt,
                times,
                more,
                cause,
            ]:
                ended, *history = times.split(",")
                try:
                    numbers = [number(text) for text in (epoch, attempt, ended)]
                    before = [number(text) if text else -1 for text in history[:3]]
                except ValueError:
                    return None
                accepted, started, crashes = [*before, -1, -1, -1][:3]
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
                        crashes=max(0, crashes),
                        more=more,
                        progress=Progress.parse(history[3]) if len(history) > 3 else None,
                    )
        return None


@attrs.frozen(kw_only=True)
class Letter:
    """A dead letter: the outcome of a job that was given up, and its payload."""

    key: str
    id: str
    outcome: Outcome
    payload: bytes

    @property
    def handler(self) -> str:
        return more_of(self.outcome.more, "handler")

    @property
    def kind(self) -> Kind:
        return "service" if more_of(self.outcome.more, "kind") == "s" else "job"

    @classmethod
    def parse(cls, key: str, job_id: str, text: bytes) -> Letter | None:
        """Return the letter, or None when the text is not one."""
        try:
            head, error, failed, payload = text.split(b"\n", 3)
        except ValueError:
            return None
        outcome = Outcome.parse(b"\n".join((head, error, failed)))
        if outcome is None or outcome.word != "parked":
            return None
        return cls(key=key, id=job_id, outcome=outcome, payload=payload)


def digest_of(handler: str, payload: bytes, followers: bytes = b"") -> str:
    """Return what tells one job from another that is given the same id.

    What follows it stands apart, behind a hyphen, so that a difference can be named.
    """
    behind = f"-{hashlib.blake2b(followers, digest_size=8).hexdigest()}" if followers else ""
    return hashlib.blake2b(handler.encode() + b"\0" + payload, digest_size=8).hexdigest() + behind


def one_line(text: str, chars_max: int) -> str:
    """Return text that may stand in a record: one line, no bar, no surrogate, not too long.

    A bar divides the fields of a record, so that a broken one takes its place: `a|b` is `a¦b`.
    """
    text = text[: 4 * chars_max]  # before all else: it may be megabytes, and the loop waits
    text = text.replace("|", "\N{BROKEN BAR}")
    return re.sub(r"[\x00-\x1f\x7f\ud800-\udfff]+", " ", text).strip()[:chars_max]


Lapse: TypeAlias = Literal["", "expires", "start"]

NOT_IN_TIME: Final = "not started in time"  # the cause of a job that has expired
LIMIT_S_MIN: Final = 0.01


def begin_limits(
    expires_s: object, start_timeout_s: object, delay_s: float = 0.0
) -> tuple[float | None, float | None]:
    """Return by when a job must have begun, and for how long each attempt may wait for that.

    Raises:
        InvalidOption: One is out of bounds, or they do not go together.
    """
    expires = checks.seconds("expires_s", expires_s, LIMIT_S_MIN, or_none=True)
    start = checks.seconds("start_timeout_s", start_timeout_s, LIMIT_S_MIN, or_none=True)
    if expires is not None and expires <= delay_s:
        raise checks.option("expires_s", expires, f"more than delay_s, {delay_s:g}")
    if expires is not None and start is not None and start > expires:
        raise checks.option("start_timeout_s", start, f"expires_s, {expires:g}, or less")
    return expires, start


def postponed(more: str, wait_ms: int) -> str:
    """Return `more` of a job that is accepted so much earlier than its `expires_s` begins."""
    return re.sub(r"(^|,)x([0-9]+)", lambda found: f"{found[1]}x{int(found[2]) + wait_ms}", more)


def ends_ms(more: str, name: Literal["expires", "start"]) -> int:
    """Return by when it must have begun, in pool time; 0: whenever, or it has."""
    return number_or(0, more_of(more, name).partition("/")[2])


def begin_by_ms(more: str) -> int:
    """Return the earlier of both; 0: whenever."""
    ends = (ends_ms(more, "expires"), ends_ms(more, "start"))
    return min((at for at in ends if at), default=0)


def lapsed(record: Record, now_ms: int) -> Lapse:
    """Return for what it is too late by then."""
    for name in ("expires", "start"):
        if 0 < ends_ms(record.more, name) <= now_ms:
            return name
    return ""


def limits_s(more: str) -> list[float]:
    """Return in how long one that is accepted now may be too late, of each limit that it has."""
    limits = (more_of(more, name).partition("/")[0] for name in ("expires", "start"))
    return [number_or(0, ms) / 1000 for ms in limits if ms]


def steps_name(key: str) -> str:
    """Return where in `checkpoints` the results of a job's steps stand."""
    return f"\n{key}"


def letters_steps(job_id: str, key: str) -> str:
    """Return where those of a parked job stand."""
    return f"\n\n{job_id} {key}"


def parse_steps(text: bytes) -> dict[str, bytes] | None:
    """Return the results of a job's steps; None: the text is not what `lib/steps.lua` makes."""
    steps: dict[str, bytes] = {}
    at = 0
    try:
        while at < len(text):
            name_end = text.index(b"\n", at)
            begin = text.index(b"\n", name_end + 1) + 1
            name, size = text[at:name_end].decode(), text[name_end + 1 : begin - 1].decode()
            at = begin + number(size)
            if at > len(text):
                return None
            steps[name] = text[begin:at]
    except ValueError:
        return None
    return steps


def state_of(checkpoint: bytes) -> bytes:
    """Return the state that a checkpoint holds; empty: it is none.

    In front of a bar it says which save of which epoch it is, or nothing: it was handed over.
    """
    match = _SAVED.match(checkpoint)
    return checkpoint[match.end() :] if match is not None else b""


def saves_of(checkpoint: bytes, epoch: int) -> int:
    """Return which save of this epoch a checkpoint holds, or 0: none of it."""
    match = _SAVED.match(checkpoint)
    if match is None or number_or(-1, match[1]) != epoch:
        return 0
    return number_or(0, match[2])


_SAVED: Final = re.compile(rb"(?:(\d+)\.(\d+))?[|]")
