"""Batches: jobs that are looked at together; see `lib/members.lua`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

import attrs

from pool.core.batches import ENDS, MEMBERS_MAX, NOT_ENDED, STATES, BatchState, End, Head
from pool.core.ids import number
from pool.redis.commands.calls import Calls, as_ms
from pool.redis.commands.plain import texts
from pool.redis.connection import Reply
from pool.redis.scripts import Script, ScriptCall, Word


@attrs.frozen
class Opened:
    """The batch is there; `is_new`: it was opened by this call.  `parent` as `member_of()`."""

    nonce: str
    is_new: bool
    state: BatchState
    members: int
    parent: str = ""


@attrs.frozen
class Added:
    """They are noted: a letter for each, how it has ended, or `.`."""

    words: str


@attrs.frozen
class BatchGone:
    """It is forgotten, or another one has its id."""


@attrs.frozen
class BatchSealedAt:
    """It has so many members, and gets no more."""

    members: int


@attrs.frozen
class OtherMember:
    """Another member was noted there: that one, as `noted()` makes it."""

    index: int
    there: str


@attrs.frozen
class BatchHas:
    """So many members, and there is no room for these."""

    members: int


@attrs.frozen
class Stirred:
    """It is done; whether its lane has messages for lanes now, who waits for which batch, and what
    made no job.
    """

    has_due: bool = False
    waits: Sequence[tuple[Sequence[str], str]] = ()
    left_out: Sequence[str] = ()  # ids of firings whose keys had a job that stays


@attrs.frozen
class Settled:
    """It has settled; nothing was changed."""


@attrs.frozen(kw_only=True)
class Tended:
    """Members of a sealed batch that have not ended, by index and key; and where to go on."""

    nonce: str
    is_cancelling: bool
    cause: str
    follows: int | None
    stirred: Stirred
    members: Sequence[tuple[int, str]]


@attrs.frozen
class Ended:
    """A member that has ended."""

    index: int
    end: End
    key: str


@attrs.frozen(kw_only=True)
class BatchLooked:
    """How a batch is; its members as asked for, and who was released when it settled.

    `parent` is as `member_of()`: the batch whose member it is; empty if it is none's.
    """

    head: Head
    released: str
    parent: str
    follows: int | None
    ended: Sequence[Ended]
    open: Sequence[tuple[int, str]]


AddSaid: TypeAlias = Added | BatchGone | BatchSealedAt | OtherMember | BatchHas
SealSaid: TypeAlias = Stirred | BatchGone | BatchSealedAt | Settled


def stirred(text: str) -> Stirred:
    """Read what `close_batches` says: nothing, or whether there are messages and who waits."""
    if not text:
        return Stirred()
    due, *rest = text.split(" ")
    if due not in ("0", "1") or len(rest) % 2:
        raise ValueError("no status of this script")
    pairs = zip(rest[::2], rest[1::2], strict=True)
    return Stirred(due == "1", tuple((names.split(","), batch_id) for names, batch_id in pairs))


def opened(reply: Reply) -> Opened | None:
    """Read the reply of `batch_open`; None: something else stands there."""
    match reply.decode().split(" "):
        case ["OK", nonce]:
            return Opened(nonce, True, "open", 0)
        case ["THERE", nonce, state, members, *parent] if len(parent) <= 1:
            return Opened(nonce, False, STATES[state], number(members), "".join(parent))
        case ["MALFORMED"]:
            return None
    raise ValueError("no status of this script")


def added(reply: Reply) -> AddSaid:
    """Read the reply of `batch_add`."""
    match reply.decode().split(" ", 2):
        case ["OK", words] if {*words} <= {NOT_ENDED, *ENDS}:
            return Added(words)
        case ["GONE"]:
            return BatchGone()
        case ["SEALED", members]:
            return BatchSealedAt(number(members))
        case ["OTHER", index, there]:
            return OtherMember(number(index), there)
        case ["FULL", members]:
            return BatchHas(number(members))
    raise ValueError("no status of this script")


def sealed(reply: Reply) -> SealSaid:
    """Read the reply of `batch_seal` and of `batch_ends`."""
    word, _, rest = reply.decode().partition(" ")
    match word:
        case "OK":
            return stirred(rest)
        case "GONE":
            return BatchGone()
        case "SETTLED":
            return Settled()
        case "SEALED":
            return BatchSealedAt(number(rest))
    raise ValueError("no status of this script")


def tended(reply: Reply) -> Tended | Literal["GONE", "SETTLED", "OPEN"]:
    """Read the reply of `batch_tend`."""
    if isinstance(reply, bytes):
        match reply.decode():
            case "GONE" | "SETTLED" | "OPEN" as word:
                return word
        raise ValueError("no status of this script")
    nonce, state, cause, follows, told, *found = texts(reply)
    return Tended(
        nonce=nonce.decode(),
        is_cancelling=STATES[state.decode()] == "cancelling",
        cause=cause.decode(errors="replace"),
        follows=_place(follows),
        stirred=stirred(told.decode().strip()),
        members=_members(found),
    )


def batch_looked(reply: Reply) -> BatchLooked | None:
    """Read the reply of `batch_look`; None: there is no such batch."""
    if not reply:
        return None
    what, head, released, follows, parent, *found = texts(reply)
    ended: Sequence[Ended] = ()
    if what == b"ended":
        thirds = zip(found[::3], found[1::3], found[2::3], strict=True)
        ended = [Ended(int(n), ENDS[word.decode()], key.decode()) for n, word, key in thirds]
    return BatchLooked(
        head=Head.parse(head),
        released=released.decode(),
        follows=_place(follows),
        parent=parent.decode(),
        ended=ended,
        open=_members(found) if what == b"open" else (),
    )


def _members(found: Sequence[bytes]) -> list[tuple[int, str]]:
    pairs = zip(found[::2], found[1::2], strict=True)
    return [(number(index), key.decode()) for index, key in pairs]


def _place(text: bytes) -> int | None:
    return None if text == b"-1" else number(text)


def mustered(reply: Reply) -> list[str]:
    """Read the reply of `muster`: a letter for each."""
    found = [text.decode() for text in texts(reply)]
    if not {*found} <= {*"PRWUQ", *ENDS}:
        raise ValueError("no status of this script")
    return found


BATCH_OPEN: Final = Script.load(
    "batch_open",
    keys="lane batches batch due",
    args="generation id nonce least keep_ms open_ms parent followers",
    reads=opened,
)
BATCH_ADD: Final = Script.load(
    "batch_add", keys="lane batch", args="generation nonce first members_max *items", reads=added
)
BATCH_SEAL: Final = Script.load(
    "batch_seal",
    keys="lane batch due payloads jobs",
    args="generation id nonce members cause check_ms",
    reads=sealed,
)
BATCH_ENDS: Final = Script.load(
    "batch_ends",
    keys="lane batch due payloads jobs",
    args="generation id nonce *items",
    reads=sealed,
)
BATCH_TEND: Final = Script.load(
    "batch_tend",
    keys="lane batches batch due payloads jobs",
    args="generation id from hold_ms check_ms members_max",
    reads=tended,
)
BATCH_LOOK: Final = Script.load(
    "batch_look",
    keys="lane batch",
    args="generation nonce node what from members_max",
    reads=batch_looked,
)
MUSTER: Final = Script.load(
    "muster",
    keys="lane jobs letters kept *results",
    args="generation missing_ms expects *items",
    reads=mustered,
)


@attrs.frozen
class BatchCalls(Calls):
    """Batches whose ids lie in this lane; and members of any that do."""

    def batch_open(
        self,
        batch_id: str,
        nonce: str,
        *,
        least: int | None,
        keep_s: float,
        open_s: float,
        parent: str = "",
        followers: bytes = b"",
    ) -> ScriptCall:
        """Open a batch, unless there is one of that id."""
        n = self.names
        args: list[Word] = [self.generation, batch_id, nonce, "" if least is None else least]
        args += (as_ms(keep_s), as_ms(open_s), parent, followers)
        return BATCH_OPEN((n.lane, n.batches, n.batch(batch_id), n.due), args)

    def batch_add(self, batch_id: str, nonce: str, first: int, words: Sequence[str]) -> ScriptCall:
        """Note the next members, by the words that `noted()` makes of them."""
        args: list[Word] = [self.generation, nonce, first, MEMBERS_MAX, *words]
        return BATCH_ADD((self.names.lane, self.names.batch(batch_id)), args)

    def batch_seal(
        self, batch_id: str, nonce: str, members: int, *, check_s: float, cause: str = ""
    ) -> ScriptCall:
        """Seal it with so many members; -1: have it cancelled."""
        n = self.names
        args: list[Word] = [self.generation, batch_id, nonce, members, cause, as_ms(check_s)]
        return BATCH_SEAL((n.lane, n.batch(batch_id), n.due, n.payloads, n.jobs), args)

    def batch_ends(self, batch_id: str, nonce: str, items: Sequence[tuple[int, str]]) -> ScriptCall:
        """Count members, each by a letter."""
        n = self.names
        args: list[Word] = [self.generation, batch_id, nonce]
        for item in items:
            args += item
        return BATCH_ENDS((n.lane, n.batch(batch_id), n.due, n.payloads, n.jobs), args)

    def batch_tend(self, batch_id: str, since: int, *, hold_s: float, check_s: float) -> ScriptCall:
        """Look after a batch whose time has come."""
        n = self.names
        args: list[Word] = [self.generation, batch_id, since, as_ms(hold_s), as_ms(check_s)]
        args.append(self.pages.mustered)
        return BATCH_TEND((n.lane, n.batches, n.batch(batch_id), n.due, n.payloads, n.jobs), args)

    def batch_look(
        self,
        batch_id: str,
        *,
        nonce: str = "",
        node: str = "",
        what: Literal["ended", "open"] = "ended",
        since: int = 0,
        members_max: int | None = None,
    ) -> ScriptCall:
        """Tell how a batch is, and of a page of its members."""
        most = self.pages.mustered if members_max is None else members_max
        args: list[Word] = [self.generation, nonce, node, what, since, most]
        return BATCH_LOOK((self.names.lane, self.names.batch(batch_id)), args)

    def muster(
        self, items: Sequence[tuple[str, str]], *, missing_s: float, expects: str = "0"
    ) -> ScriptCall:
        """Tell how members (key, job id) are; those that are not there never will be."""
        n = self.names
        keys = [n.lane, n.jobs, n.letters, n.kept]
        args: list[Word] = [self.generation, as_ms(missing_s), expects]
        for key, job_id in items:
            keys.append(n.result(key, job_id))
            args += (key, job_id)
        return MUSTER(keys, args, parts=len(items))
