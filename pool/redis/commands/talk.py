"""What is said about a job: intents, messages, signals, looks."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final, TypeAlias

import attrs

from pool.core.ids import number, number_or
from pool.core.record import Outcome, Record
from pool.redis.commands.calls import NEVER, Calls, as_ms, done
from pool.redis.commands.plain import count, texts
from pool.redis.connection import Reply
from pool.redis.scripts import Script, ScriptCall, Word


@attrs.frozen
class Missing:
    """Neither a job nor an outcome is known; what the lane's stamp and the server's clock were."""

    stamp: int
    now_ms: int


@attrs.frozen
class More:
    """There is an answer, and too much was told before it: ask again."""


Looked: TypeAlias = Record | Outcome | Missing | More


@attrs.frozen
class Noted:
    """It is written, in the record or the inbox of the job."""

    job_id: str = ""  # of an intent
    number: int = 0  # of a message


@attrs.frozen
class MovedOn:
    """Another one owns the key, or nobody does; nothing was done."""

    owner: str
    job_id: str
    epoch: int = 0  # of an intent; likewise:
    handler: str = ""


@attrs.frozen
class InboxHas:
    """So many messages, and room for no more."""

    messages: int


@attrs.frozen
class LookedAt:
    """Nothing was done yet: so many of the newest messages are not the one."""

    skip: int


@attrs.frozen
class Behind:
    """It waits in the line behind its key's live job; nothing was done."""

    job_id: str
    epoch: int
    handler: str
    owner: str = ""  # nobody


class NotNoted(Enum):
    """Why nothing was done."""

    NO_JOB = "NOJOB"
    UNREADABLE = "MALFORMED"


IntendSaid: TypeAlias = Noted | MovedOn | Behind | NotNoted
NotifySaid: TypeAlias = Noted | MovedOn | InboxHas | LookedAt | NotNoted


def intended(reply: Reply) -> IntendSaid:
    """Read the reply of `intend`."""
    word, _, rest = reply.decode(errors="replace").partition(" ")
    match word:
        case "OK":
            return Noted(rest.split(" ")[0])
        case "MOVED_ON":
            owner, job_id, epoch, handler = rest.split(" ", 3)
            return MovedOn(_owner(owner), job_id, number(epoch), handler)
        case "QUEUED":
            job_id, epoch, handler = rest.split(" ", 2)
            return Behind(job_id, number(epoch), handler)
    return NotNoted(word)


def notified(reply: Reply) -> NotifySaid:
    """Read the reply of `notify`."""
    word, _, rest = reply.decode(errors="replace").partition(" ")
    match word:
        case "OK":
            return Noted(number=number(rest))
        case "MOVED_ON":
            owner, job_id = rest.split(" ")
            return MovedOn(_owner(owner), job_id)
        case "INBOX":
            return InboxHas(number(rest))
        case "LOOKED":
            return LookedAt(number(rest))
    return NotNoted(word)


def _owner(word: str) -> str:
    return "" if word == "-" else word


# What tells a message from all others: its number (a stamp), `|`, and the id of the request that
# sent it.  Numbers rise, but a server that lost data may give one anew; requests never repeat.
MessageId: TypeAlias = str
Message: TypeAlias = tuple[MessageId, bytes]  # and its payload
NO_MESSAGE: Final[MessageId] = ""


def number_in(message: MessageId) -> int:
    """Return the number of a message; 0 for none, and for what no script wrote."""
    return number_or(0, message.partition("|")[0])


@attrs.frozen
class InboxPage:
    """The next messages of a job, and whether there may be more."""

    has_more: bool
    messages: Sequence[Message]


def inbox_page(reply: Reply) -> InboxPage:
    """Read the reply of `inbox`."""
    has_more, *held = reply
    found = []
    for text in texts(held):
        stamp, request, payload = text.split(b"|", 2)
        found.append((f"{int(stamp)}|{request.decode(errors='replace')}", payload))
    return InboxPage(bool(count(has_more)), found)


def looked(reply: Reply) -> list[Looked]:
    """Read the reply of `look`: per item the live record, the outcome, or neither is known."""
    return list(map(_looked, texts(reply)))


def _looked(reply: bytes) -> Looked:
    found: Record | Outcome | None
    match reply[:1]:
        case b"+":
            return More()
        case b"?":
            stamp, now_ms = reply[1:].split(b" ")
            return Missing(int(stamp), int(now_ms))
        case b"=":
            found = Outcome.parse(reply[1:])
        case _:
            found = Record.parse(reply)
    return found if found is not None else Missing(NEVER, NEVER)


INTEND: Final = Script.load(
    "intend",
    keys="lane jobs pending due journal signal",
    args="generation key id owner epoch intent again_ms",
    reads=intended,
)
LOOK: Final = Script.load(
    "look",
    keys="lane jobs deaths letters *rest",
    args="generation node bytes_max *items",
    reads=looked,
)
NOTIFY: Final = Script.load(
    "notify",
    keys="lane jobs inbox signal",
    args="generation key owner messages_max request payload id skip looked_max since expects",
    reads=notified,
)
INBOX: Final = Script.load(
    "inbox", keys="lane inbox", args="generation after messages_max bytes_max", reads=inbox_page
)
SIGNAL: Final = Script.load("signal", keys="lane signal", args="generation *fields", reads=done)


@attrs.frozen
class TalkCalls(Calls):
    """Words about jobs."""

    def intend(
        self, key: str, job_id: str, owner: str, intent: str, *, again_s: float, epoch: int = 0
    ) -> ScriptCall:
        """Write an intent into a record and signal its owner; see `intend.lua`.

        With an epoch it is for that run alone.
        """
        n = self.names
        keys = (n.lane, n.jobs, n.pending, n.due, n.journal, n.signal(owner or "-"))
        run = epoch or ""
        return INTEND(keys, (self.generation, key, job_id, owner, run, intent, as_ms(again_s)))

    def look(
        self,
        items: Sequence[tuple[str, str]],
        *,
        node: str = "",
        frees: bool = False,
        lines: int = 1,
    ) -> ScriptCall:
        """Tell how jobs are (key, job id), and register `node` to be told; see `looked()`.

        With `frees` the dead give up their places, where there is none left.  What is told at once
        is bounded in bytes, for `lines` that share them.
        """
        n = self.names
        keys = [
            n.lane,
            n.jobs,
            n.deaths,
            n.letters,
            *(n.result(key, job_id or "-") for key, job_id in items),
        ]
        if frees:
            keys += (n.keepalive, n.cleanup)
        bytes_max = self.pages.outcome_bytes // lines or 1
        args: list[Word] = [self.generation, node, bytes_max]
        args += (part for item in items for part in item)
        return LOOK(keys, args, parts=len(items))

    def notify(
        self,
        key: str,
        owner: str,
        request: str,
        payload: bytes,
        *,
        messages_max: int,
        job_id: str = "",
        skip: int = 0,
        since: int = 0,
        expects: str = "0",
    ) -> ScriptCall:
        """Put a message into a job's inbox and wake its owner; see `notify.lua`."""
        n = self.names
        keys = (n.lane, n.jobs, n.inbox(key), n.signal(owner or "-"))
        args = (self.generation, key, owner, messages_max, request, payload, job_id)
        return NOTIFY(keys, (*args, skip, self.pages.looked_at, str(since), expects))

    def inbox(self, key: str, after: MessageId, *, is_alone: bool = False) -> ScriptCall:
        """Read the messages behind one, a page of them, or the next alone."""
        n, pages = self.names, self.pages
        most = 1 if is_alone else pages.messages
        args = (self.generation, after, most, pages.message_bytes)
        return INBOX((n.lane, n.inbox(key)), args)

    def signal(self, node: str, fields: Sequence[Word]) -> ScriptCall:
        """Write to a node's signals though the server is full; elsewhere a plain XADD does."""
        n = self.names
        return SIGNAL((n.lane, n.signal(node)), (self.generation, *fields))
