"""What one lane has for another: the one tells, the other carries out; see `lib/channel.lua`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import attrs

from pool.core.ids import number
from pool.core.options import POLICY_LETTERS
from pool.redis.commands.admission import AS_REGISTERED
from pool.redis.commands.batches import Stirred, stirred
from pool.redis.commands.calls import Calls, as_ms
from pool.redis.connection import Reply
from pool.redis.scripts import Script, ScriptCall, Word

UNREADABLE: Final = (
    "malformed"  # id and key of a job that nobody can read; no key has such a result
)


@attrs.frozen(kw_only=True)
class ChannelMessage:
    """One message, and what can be read of it."""

    name: str
    text: bytes
    delay_ms: int = 0
    key: str = UNREADABLE
    id: str = UNREADABLE
    batch: str = ""  # the batch whose member has ended; then it is about no job of the lane

    @classmethod
    def parse(cls, name: str, text: bytes) -> ChannelMessage:
        """Return the message; what is none of ours the lane parks that it is for."""
        if (end := _END.fullmatch(text)) is not None:
            return cls(name=name, text=text, batch=end[1].decode())
        head = _JOB.match(text)
        if head is None:
            return cls(name=name, text=text)
        delay, key_size, id_size = map(number, head.groups())
        middle = head.end() + key_size
        try:
            key, job_id = text[head.end() : middle].decode(), text[middle : middle + id_size]
            return cls(name=name, text=text, delay_ms=delay, key=key, id=job_id.decode())
        except UnicodeDecodeError:
            return cls(name=name, text=text)


_END: Final = re.compile(rb"e \d{1,16} \S+ [sfc]\n([!-~]{1,128})", re.ASCII)
_POLICY: Final = f"[-{AS_REGISTERED}{POLICY_LETTERS}]?".encode()
_JOB: Final = re.compile(
    rb"j (\d{1,16}) [js?]" + _POLICY + rb"\d* (\d{1,9}) (\d{1,9}) \d+ \d+ \d+\n", re.ASCII
)


@attrs.frozen(kw_only=True)
class OutgoingPage:
    """The next messages of a lane to another, and the name of the one before them."""

    root: str
    count: int  # how many there are
    is_anew: bool  # they go on from where the other lane stands: data of one of them were lost
    messages: Sequence[ChannelMessage]


def outgoing_of(reply: Reply) -> OutgoingPage:
    """Read the reply of `outgoing`."""
    root, count, is_anew, *rest = reply
    names = [name.decode() for name in rest[::2]]
    messages = [ChannelMessage.parse(*each) for each in zip(names, rest[1::2], strict=True)]
    return OutgoingPage(
        root=root.decode(), count=number(count), is_anew=bool(is_anew), messages=messages
    )


@attrs.frozen
class StandsElsewhere:
    """Where the lane stands; it has done nothing."""

    name: str


def incoming_of(reply: Reply) -> StandsElsewhere | Stirred:
    """Read the reply of `incoming`."""
    text, _, left_out = reply.decode().partition("\n")
    word, _, rest = text.partition(" ")
    if word == "OK":
        return attrs.evolve(stirred(rest), left_out=tuple(left_out.split()))
    if word == "APART" and rest:
        return StandsElsewhere(rest)
    raise ValueError("no status of this script")


OUTGOING: Final = Script.load(
    "outgoing",
    keys="lane due payloads journal",
    args="generation to taken last root anew hold_ms items_max bytes_max",
    reads=outgoing_of,
)
INCOMING: Final = Script.load(
    "incoming",
    keys="lane jobs due payloads handlers parked letters journal schedules *rest",
    args="generation from root expects *items",
    reads=incoming_of,
)


@attrs.frozen
class ChannelCalls(Calls):
    """Carrying over."""

    def outgoing(
        self,
        to: int,
        *,
        hold_s: float,
        taken: Sequence[ChannelMessage] = (),
        root: str = "",
        anew: str = "",
    ) -> ScriptCall:
        """Forget what another lane has carried out, and tell of what is next for it.

        `anew` is where it stands if that is not behind `root`, nor behind what came then; unless
        somebody else has carried further meanwhile, they go on from there.
        """
        n, pages = self.names, self.pages
        last = taken[-1].name if taken else ""
        args: list[Word] = [self.generation, to, len(taken), last, root, anew, as_ms(hold_s)]
        args += (pages.carried, pages.carried_bytes)
        return OUTGOING((n.lane, n.due, n.payloads, n.journal), args)

    def incoming(
        self, origin: int, root: str, messages: Sequence[ChannelMessage], *, expects: str = "0"
    ) -> ScriptCall:
        """Carry out what another lane has for this one."""
        n = self.names
        keys = [n.lane, n.jobs, n.due, n.payloads, n.handlers, n.parked, n.letters]
        keys += (n.journal, n.schedules)
        keys += (
            n.batch(each.batch) if each.batch else n.result(each.key, each.id) for each in messages
        )
        args: list[Word] = [self.generation, origin, root, expects]
        for each in messages:
            args += (each.name, each.text)
        return INCOMING(keys, args)
