"""Dead letters: to look through them, to change one, and to make a job of one again."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final, Literal, TypeAlias

import attrs

from pool.core.ids import number
from pool.core.lifecycle import State
from pool.core.record import KINDS, STATES, Kind, Letter
from pool.names import pair, split_pair
from pool.redis.commands.admission import ranking
from pool.redis.commands.calls import Calls, Target, as_ms
from pool.redis.commands.plain import count
from pool.redis.connection import Reply
from pool.redis.scripts import Script, ScriptCall, Word


@attrs.frozen
class ToldLetter:
    """A dead letter as a page tells of it: without its attempts, and without its payload."""

    letter: Letter
    payload_bytes: int


@attrs.frozen
class LettersPage:
    """A page of them; behind `at` comes the next one, None: that was the end."""

    looked: int
    at: tuple[str, str] | None
    told: tuple[ToldLetter, ...]


class LetterStatus(Enum):
    """What became of a change."""

    DONE = "OK"
    NO_LETTER = "NOLETTER"
    UNREADABLE = "MALFORMED"
    UNKNOWN = "UNKNOWN"  # its handler


@attrs.frozen
class Made:
    """It is a job again, of this id."""

    job_id: str
    handler: str  # empty: it is not known


@attrs.frozen
class KeyHas:
    """Its key has a job."""

    state: State
    owner: str
    job_id: str
    handler: str
    kind: Kind


@attrs.frozen
class LaneFull:
    """So many jobs wait."""

    queued: int


@attrs.frozen
class OtherHandler:
    """The letter names this one."""

    handler: str


ReplaySaid: TypeAlias = Made | KeyHas | LaneFull | OtherHandler | LetterStatus


def page_of(reply: Reply) -> LettersPage:
    """Read the reply of `letters`; what is none of ours is left to whoever wrote it."""
    looked, at, job, *found = reply
    told = []
    for i in range(0, len(found), 4):
        _, member, text, size = found[i : i + 4]
        try:
            key, job_id = split_pair(member.decode())
        except UnicodeDecodeError:
            continue
        letter = Letter.parse(key, job_id, text + b"\n\n")
        if letter is not None:
            told.append(ToldLetter(letter, count(size)))
    place = (at.decode(), job.decode(errors="surrogateescape")) if at else None
    return LettersPage(count(looked), place, tuple(told))


def letter_changed(reply: Reply) -> LetterStatus:
    """Read the reply of `letter`."""
    return LetterStatus(reply.decode())


def replayed(reply: Reply) -> ReplaySaid:
    """Read the reply of `replay`."""
    match reply.decode(errors="replace").split(" "):
        case ["OK", job_id, handler]:
            return Made(job_id, "" if handler == "-" else handler)
        case ["EXISTS", state, owner, job_id, handler, kind]:
            return KeyHas(
                STATES[state], "" if owner == "-" else owner, job_id, handler, KINDS[kind]
            )
        case ["FULL", queued]:
            return LaneFull(number(queued))
        case ["MOVED_ON", handler]:
            return OtherHandler(handler)
        case [word]:
            return LetterStatus(word)
    raise ValueError("no status of this script")


LETTERS: Final = Script.load(
    "letters",
    keys="lane parked letters",
    args="generation at job since until_ looked_max bytes_max found_max handler cause prefix",
    reads=page_of,
)
LETTER: Final = Script.load(
    "letter",
    keys="lane parked letters checkpoints payloads",
    args="generation what job payload",
    reads=letter_changed,
)
REPLAY: Final = Script.load(
    "replay",
    keys="lane open jobs pending payloads handlers kept parked letters result unassigned "
    "checkpoints due *rest",
    args="generation pending_ms queued_jobs_max known_ms expects key id anew handler ranked "
    "target_count *items",
    reads=replayed,
)


@attrs.frozen
class LetterCalls(Calls):
    """Dead letters."""

    def letters(
        self,
        at: tuple[str, str] | None = None,
        *,
        since_ms: int | None = None,
        until_ms: int | None = None,
        found_max: int = 100,
        handler: str = "",
        cause: str = "",
        prefix: str = "",
    ) -> ScriptCall:
        """Tell of a page of them, the one that was parked first first."""
        n, pages = self.names, self.pages
        score, job = at or ("", "")
        args: list[Word] = [self.generation, score, job.encode(errors="surrogateescape")]
        args += ("-inf" if since_ms is None else since_ms, "+inf" if until_ms is None else until_ms)
        args += (pages.letters, pages.letter_bytes, min(found_max, pages.letters))
        return LETTERS((n.lane, n.parked, n.letters), (*args, handler, cause, prefix))

    def letter(
        self, what: Literal["edit", "discard"], key: str, job_id: str, payload: bytes = b""
    ) -> ScriptCall:
        """Change the payload of one, or discard it."""
        n = self.names
        args = (self.generation, what, pair(key, job_id), payload)
        return LETTER((n.lane, n.parked, n.letters, n.checkpoints, n.payloads), args)

    def replay(
        self,
        key: str,
        job_id: str,
        anew: str,
        handler: str,
        targets: Sequence[Target],
        *,
        pending_s: float,
        queued_jobs_max: int,
        expects: str = "0",
    ) -> ScriptCall:
        """Make a job of one, which is given to the first of these workers with room."""
        n = self.names
        keys = [n.lane, n.open, n.jobs, n.pending, n.payloads, n.handlers, n.kept, n.parked]
        keys += (n.letters, n.result(key, job_id), n.unassigned(handler))
        keys += (n.checkpoints, n.due)
        args: list[Word] = [self.generation, as_ms(pending_s), queued_jobs_max]
        args += (as_ms(self.keeps.parked_s), expects, key, job_id, anew, handler)
        args.append(ranking(range(1, len(targets) + 1)))
        self._add_targets(keys, args, targets)
        return REPLAY(keys, args)
