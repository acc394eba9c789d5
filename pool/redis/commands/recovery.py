"""What the dead and the late leave behind: fenced, reaped, swept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import Enum
from typing import Final, Literal

import attrs

from pool.core.ids import number
from pool.core.options import Options
from pool.core.record import Record
from pool.core.settlement import Death
from pool.redis.commands.calls import Calls, as_ms, read, time_or_none
from pool.redis.connection import Reply
from pool.redis.scripts import Script, ScriptCall, Word


@attrs.frozen(kw_only=True)
class Claim:
    """The right to take over what a fenced identity owns."""

    identity: str
    claim: str  # holder|fence|alive|culprit[.bits]

    @property
    def death(self) -> Death:
        """What was known of the identity when it was fenced; see `fence.lua`."""
        _, _, alive, culprit = self.claim.split("|")
        epoch, _, bits = culprit.partition(".")
        return Death(
            identity=self.identity, alive_ms=int(alive), culprit=int(epoch), bits=int(bits or 0)
        )


@attrs.frozen(kw_only=True)
class Overdue:
    """A key that the sweeper has to look after; `record` is None when it cannot be worked on."""

    index: Literal["pending", "due"]
    key: str
    text: bytes
    record: Record | None
    owner: Literal["none", "live", "hung", "gone"]
    options: Options
    now_ms: int = 0  # pool time, as it was listed


@attrs.frozen(kw_only=True)
class Swept:
    """What is overdue that nobody else was told of, and who looks after the rest."""

    now_ms: int
    following_ms: int | None  # the earliest deadline that is still to come
    is_ours: bool  # we hold the sweeper's lock: the rest is ours, too
    left_ms: int | None  # else: something is left to who holds it until then
    found: list[Overdue]
    outgoing: list[int]  # lanes for which there are messages
    has_schedules: bool  # some are to be fired
    batches: list[str]


@attrs.frozen(kw_only=True)
class Holding:
    """A key of a fenced identity; `record` is None when it cannot be worked on."""

    key: str
    text: bytes
    record: Record | None
    options: Options


class Forgotten(Enum):
    """What became of a claim whose identity may own nothing."""

    OVER = b"OK"
    OWNS = b"OWNS"  # some keys: they are to be reaped
    ANOTHERS = b"GONE"  # the claim


def forgotten(reply: Reply) -> list[Forgotten]:
    """Read the reply of `forget`, per claim."""
    return list(map(Forgotten, reply))


@attrs.frozen
class Fenced:
    """What was claimed, and the earliest lease end that is left (None: no lease, 0: claim more)."""

    earliest_ms: int | None
    claims: list[Claim]


def fenced(reply: Reply) -> Fenced:
    """Read the reply of `fence`."""
    earliest, *pairs = reply
    found = []
    for name, claim in zip(pairs[::2], pairs[1::2], strict=True):
        # A name that is no text is nobody's, and must not keep the others' claims from being read:
        # a record with such an owner is unreadable, and parked by whoever comes to it.
        with suppress(UnicodeDecodeError):
            found.append(Claim(identity=name.decode(), claim=claim.decode()))
    _ = [each.death for each in found]  # which can be read, then
    return Fenced(time_or_none(earliest), found)


@attrs.frozen
class Reaped:
    """The next keys of a fenced identity."""

    held: Sequence[Holding]
    upto: int  # it read the starts up to this one; 0: all that are left
    is_forgotten: bool = False  # it owned nothing more


def reaped(reply: Reply) -> Reaped:
    """Read the reply of `reap`."""
    upto, *rest = reply
    if rest == [b"FORGOTTEN"]:
        return Reaped((), 0, is_forgotten=True)
    found = [
        Holding(
            key=key.decode(errors="surrogateescape"),
            text=text,
            record=read(key, text),
            options=Options.parse(options),
        )
        for key, text, options in zip(rest[::3], rest[1::3], rest[2::3], strict=True)
    ]
    return Reaped(found, int(upto))


_INDEXES: Final[Mapping[bytes, Literal["pending", "due"]]] = {b"pending": "pending", b"due": "due"}

_OWNERS: Final[Mapping[bytes, Literal["none", "live", "hung", "gone"]]] = {
    b"none": "none",
    b"live": "live",
    b"hung": "hung",
    b"gone": "gone",
}


def overdue(reply: Reply) -> Swept:
    """Read the reply of `sweep`."""
    now, following, left, *rest = reply
    batches, has_schedules = list[str](), False
    found, outgoing = [], []
    for i in range(0, len(rest), 5):
        index, key, text, owner, options = rest[i : i + 5]
        if index == b"out":
            outgoing.append(number(key))
            continue
        if index == b"schedules":
            has_schedules = True
            continue
        if index == b"batch":
            batches.append(key.decode())
            continue
        found.append(
            Overdue(
                index=_INDEXES[index],
                key=key.decode(errors="surrogateescape"),
                text=text,
                record=read(key, text),
                owner=_OWNERS[owner],
                options=Options.parse(options),
                now_ms=int(now),
            )
        )
    return Swept(
        now_ms=int(now),
        following_ms=time_or_none(following),
        is_ours=not left,
        left_ms=int(left or 0) or None,
        found=found,
        outgoing=outgoing,
        has_schedules=has_schedules,
        batches=batches,
    )


FENCE: Final = Script.load(
    "fence",
    keys="lane keepalive cleanup open journal jobs trials deaths",
    args="generation reap_ms holder claims_max crash_window_ms latest_ms *suspects",
    reads=fenced,
)
REAP: Final = Script.load(
    "reap",
    keys="lane keepalive cleanup jobs handlers owned stream signal deaths",
    args="generation identity claim reap_ms keys_max after",
    reads=reaped,
)
FORGET: Final = Script.load(
    "forget", keys="lane keepalive cleanup *rest", args="generation *items", reads=forgotten
)
SWEEP: Final = Script.load(
    "sweep",
    keys="lane keepalive cleanup jobs pending due handlers deaths open",
    args="generation holder lock_ms keys_max skip",
    reads=overdue,
)


@attrs.frozen
class RecoveryCalls(Calls):
    """What is left behind."""

    def fence(
        self,
        holder: str,
        *,
        reap_s: float,
        claims_max: int,
        window_s: float = 600.0,
        latest_ms: int = 0,
        suspects: Sequence[str] = (),
    ) -> ScriptCall:
        """Claim identities whose lease has ended."""
        n = self.names
        keys = [n.lane, n.keepalive, n.cleanup, n.open, n.journal, n.jobs, n.trials, n.deaths]
        args: list[Word] = [self.generation, as_ms(reap_s), holder, claims_max, as_ms(window_s)]
        args.append(latest_ms)
        return FENCE(keys, [*args, *suspects])

    def reap(self, claim: Claim, *, reap_s: float, after: int = 0) -> ScriptCall:
        """Read the next keys of a fenced identity.

        The starts up to `after` are left out: they were read before and could not be moved.
        """
        n, who = self.names, claim.identity
        keys = [n.lane, n.keepalive, n.cleanup, n.jobs, n.handlers]
        keys += (n.owned(who), n.stream(who), n.signal(who), n.deaths)
        args = (self.generation, who, claim.claim, as_ms(reap_s), self.pages.moved)
        return REAP(keys, (*args, str(after)))

    def forget(self, claims: Sequence[Claim]) -> ScriptCall:
        """Forget those fenced who own nothing; one status each, see `forget.lua`."""
        n = self.names
        keys, args = [n.lane, n.keepalive, n.cleanup], [self.generation]
        for claim in claims:
            who = claim.identity
            keys += (n.owned(who), n.stream(who), n.signal(who))
            args += (who, claim.claim)
        return FORGET(keys, args, parts=len(claims))

    def sweep(self, holder: str, *, lock_s: float, keys_max: int, skip: int = 0) -> ScriptCall:
        """List what is overdue and take the sweeper's lock."""
        n = self.names
        keys = [n.lane, n.keepalive, n.cleanup, n.jobs, n.pending, n.due, n.handlers]
        keys += (n.deaths, n.open)
        return SWEEP(keys, (self.generation, holder, as_ms(lock_s), keys_max, skip))
