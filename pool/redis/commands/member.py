"""Membership calls: opening a pool, joining a lane, renewing, leaving.

The pool itself: how it was made, and whose data these are.

Members of a lane: joining, renewing, leaving, and by which TTL and time that goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import attrs

from pool.core.ailing import WELL, Ails
from pool.core.ids import is_number, number, number_or
from pool.core.options import Options
from pool.core.pooltime import NOTHING_TOLD, Told
from pool.errors import WrongProtocol
from pool.redis.commands.calls import IS_DRAINING, IS_NODE, Calls, Target, done, time_or_none
from pool.redis.commands.plain import count, typed
from pool.redis.connection import Reply
from pool.redis.scripts import Script, ScriptCall, Word

PROTOCOL: Final = 8  # of what stands in Redis; raised when older nodes could not work beside it


@attrs.frozen(kw_only=True)
class PoolConfig:
    """What a pool is made as."""

    protocol: int
    lanes: int
    generation: str
    ttl_ms: int
    now_ms: int
    is_named: bool  # some node's settings name the TTL, or `pool ttl` has set it
    wrote: bool  # by this call: of several at once one
    was_gone: bool = False  # and a lane knew how it had been made


def check_protocol(pool: str, protocol: int) -> None:
    """Compare the number that stands in a pool with ours.

    Raises:
        WrongProtocol: It is another one, so nobody knows how the rest is to be read.
    """
    if protocol != PROTOCOL:
        raise WrongProtocol(pool=pool, protocol=protocol, ours=PROTOCOL)


def generation_of_pool(lanes: str) -> str:
    """Return the pool's generation of which a lane's is."""
    return lanes.rpartition(".")[0]


def new_generation(drawn: str, lanes: int) -> str:
    """Return a pool's generation: of how many lanes it is stands in it, and so in each lane."""
    return f"{drawn}.{lanes}"


def lanes_of_pool(generation: str) -> int:
    """Return how many lanes the pool of this generation has; 0 if it does not say."""
    return number_or(0, generation.rpartition(".")[2], digits_max=3)


def pool_config(reply: Reply) -> PoolConfig:
    """Read the reply of `FOUND`."""
    protocol, lanes, made, ttl, now, wrote, is_named = reply
    return PoolConfig(
        protocol=number_or(-1, protocol),  # none is made with that
        lanes=number_or(-1, lanes),
        generation=(made or b"").decode(errors="replace"),
        ttl_ms=number_or(-1, ttl),
        now_ms=int(now),
        is_named=typed(is_named, int) == 1,
        wrote=typed(wrote, int) == 1,
    )


OPEN_POOL: Final = Script.load(
    "open_pool", keys="config", args="protocol lanes generation ttl_ms named_ms", reads=pool_config
)


_FOLLOWED: Final = b"f"  # behind the term: the journal takes all edges of some jobs
_HUNG: Final = "-"  # likewise: none, and what it has not acknowledged by its time may be taken

RENEWAL_HEAD: Final = 10  # parts of a renewal's reply before the first count


@attrs.frozen
class Ttl:
    """The TTL of a lane, and the number of the change that made it so; both only the lane's."""

    ms: int
    term: int


@attrs.frozen
class Clock:
    """What a lane's server says of time."""

    raw_ms: int  # its clock and the lane's offset: pool time, unless it has stepped
    offset_ms: int
    turn: int  # number of the offset; later ones have higher ones
    is_astray: bool = False  # nobody has vouched for it; pool time is another one ...
    is_late: bool = False  # it was settled while the caller was cut off
    witnessed_ms: int = 0  # by how much the raw one is off, as a witness claims; 0: none does
    told_ms: int = 0  # ... which is this


@attrs.frozen(kw_only=True)
class Renewal:
    """The answer to a renewal.  `counts` holds per identity the keys it runs; -1: it is gone."""

    now_ms: int
    stamp: int
    older_ms: int  # by how much the lane's data are older than what the caller had seen
    unassigned: int
    lease_end_ms: int | None  # the earliest of all; None: there is none
    pending_ms: int | None
    due_ms: int | None
    handlers: int  # how many are registered; another number means that some may be missing
    ttl: Ttl  # what was granted
    is_followed: bool  # the journal takes all edges of some jobs
    paused: bytes  # what is paused in the lane, as `LanePauses.of` takes it; empty: nothing is
    clock: Clock
    counts: tuple[int, ...]


@attrs.frozen
class Opening:
    """What `open` says of an identity, as of its last renewal."""

    number: int  # its own in this lane
    takes: int | None  # how many keys; None: its event loop hangs
    ails: Ails = WELL  # of a node

    @classmethod
    def parse(cls, text: bytes) -> Opening | None:
        """Return what a field says, or None for what no script of ours has written."""
        number, *words = text.split(b"|")
        if not 2 <= len(words) <= 3 or not (is_number(number) and is_number(words[1])):
            return None
        takes, _, *said = words
        ails = Ails.parse(said[0]) if said else WELL
        if ails is None or (takes != b"-" and not is_number(takes)):
            return None
        return cls(int(number), None if takes == b"-" else int(takes), ails)


def _ttl(ms: bytes, term: bytes) -> Ttl:
    if int(ms) < 1:
        raise ValueError(ms)  # nothing could be timed by it
    return Ttl(int(ms), int(term))


def _clock(now_ms: int, text: bytes) -> Clock:
    words = text.split(b"|")
    beyond_ms, offset_ms, turn = map(int, words[:3])
    said = words[3] if len(words) > 3 else b"0"
    is_late = said == b"late"
    witnessed_ms = 0 if is_late else int(said)
    raw_ms, is_astray = now_ms + beyond_ms, beyond_ms != 0
    return Clock(raw_ms, offset_ms, turn, is_astray, is_late, witnessed_ms, now_ms)


@attrs.frozen
class Left:
    """What became of one that wants to leave."""

    in_peace: bool  # it is forgotten: nobody has to reap it
    keys: int = 0  # it owns so many, and stays


def left(reply: Reply) -> list[Left]:
    """Read the reply of `leave`, per identity."""
    return [_LEFT.get(text) or Left(False, number(text.removeprefix(b"OWNS "))) for text in reply]


_LEFT: Final = {b"OK": Left(True), b"GONE": Left(False)}


def renewal(reply: Reply) -> Renewal:
    """Read the reply of `renew`."""
    now, stamp, unassigned, lease_end, pending, due, handlers, ttl_ms, term, *rest = reply
    clock, *counts = rest
    term, _, paused = term.partition(b"|")
    stamp, _, older_ms = stamp.partition(b"|")
    return Renewal(
        now_ms=int(now),
        stamp=int(stamp),
        older_ms=int(older_ms or 0),
        unassigned=int(unassigned),
        lease_end_ms=time_or_none(lease_end),
        pending_ms=time_or_none(pending),
        due_ms=time_or_none(due),
        handlers=int(handlers),
        ttl=_ttl(ttl_ms, term.removesuffix(_FOLLOWED)),
        is_followed=term.endswith(_FOLLOWED),
        paused=paused,
        clock=_clock(int(now), clock),
        counts=tuple(typed(number, int) for number in counts),
    )


def changed(reply: Reply) -> int:
    """Read the reply of `ttl`: the TTL before (ms); 0: it had none."""
    before_ms, term = reply
    typed(term, int)
    return count(before_ms)


@attrs.frozen
class Registered:
    """What whoever joins is told of the lane."""

    now_ms: int  # pool time
    ttl: Ttl  # what was granted
    generation: str
    clock: Clock


def registered(reply: Reply) -> Registered:
    """Read the reply of `join`."""
    now, ttl_ms, term, named, clock = reply
    name = named.decode(errors="replace")
    return Registered(int(now), _ttl(ttl_ms, term), name, _clock(int(now), clock))


JOIN: Final = Script.load(
    "join",
    keys="lane keepalive cleanup open handlers *signals",
    args="generation known stale not_after_ms pool_ttl_ms node paused floor identity_count "
    "*handlers",
    reads=registered,
)
RENEW: Final = Script.load(
    "renew",
    keys="lane keepalive cleanup open handlers pending due journal *owned",
    args="generation seq term ails expected_ms since_ms turn off_ms who floor first_ms last_ms "
    "heard_ms identity_count *handlers",
    reads=renewal,
)
THAW: Final = Script.load("thaw", keys="lane deaths open", args="generation *names", reads=done)
LEAVE: Final = Script.load(
    "leave", keys="lane keepalive cleanup open *rest", args="generation *items", reads=left
)
TTL: Final = Script.load("ttl", keys="lane journal", args="generation wanted_ms", reads=changed)


@attrs.frozen
class MemberCalls(Calls):
    """What members say."""

    def join(
        self,
        node: Target,
        workers: Mapping[Target, int],
        handlers: Mapping[str, Options],
        *,
        is_new: bool,
        not_after_ms: int,
        pool_ttl_ms: int,
        pool: str = "",
        stale: str = "",
        paused: str = "",
        floor: int = 0,
    ) -> ScriptCall:
        """Register workers (with the number of keys each takes) and, when new, the node.

        `pool` is the pool's generation, by default the one of which the lane's is; if the lane's
        own is not known yet, the reply tells it.  `pool_ttl_ms` counts if nobody has ever joined
        this lane.  `paused` is what a lane that is made by this begins with: `LanePauses.pack()`.
        `floor` is the highest stamp of the lane that the caller has seen.
        """
        n = self.names
        takes = {**workers, node: IS_NODE} if is_new else workers
        keys = [n.lane, n.keepalive, n.cleanup, n.open, n.handlers]
        keys += (*(n.signal(who.name) for who in takes), n.signal(node.name))
        pool = pool or generation_of_pool(self.generation)
        args: list[Word] = [pool, self.generation, stale, not_after_ms, pool_ttl_ms, node.name]
        args += (paused, floor, len(takes))
        for who, room in takes.items():
            args += (who.id, who.number, room)
        for name, options in handlers.items():
            args += (name, options.pack())
        return JOIN(keys, args)

    def renew(
        self,
        takes: Mapping[str, int],
        handlers: Mapping[str, Options] | None = None,
        *,
        seq: int,
        term: int,
        is_hung: bool = False,
        ails: Ails = WELL,
        told: Told = NOTHING_TOLD,
        who: str = "",
        floor: int = 0,
        tried_ms: tuple[int, int] = (0, 0),
        heard_ms: int = 0,
    ) -> ScriptCall:
        """Renew leases, and say how many keys each worker takes.

        Args:
            takes: How many keys each worker takes, by its name in the lane; `IS_NODE` for the node,
                `IS_DRAINING` for a worker that drains.
            handlers: What the workers know.
            seq: A higher number than that of any renewal asked for before.
            term: Number of the change of TTL that the node goes by.
            is_hung: The event loop hangs: nobody takes anything.
            ails: What ails the node.
            told: What the node knows of pool time.
            who: The node's id.
            floor: The highest stamp of the lane that the node has seen.
            tried_ms: How long ago its first try began that was not answered, and how long ago the
                last one failed; zeros: the last one was answered.
            heard_ms: Pool time as the last renewal was told it, if somebody vouched for it.
        """
        n = self.names
        keys = [n.lane, n.keepalive, n.cleanup, n.open, n.handlers, n.pending, n.due, n.journal]
        keys += (*map(n.owned, takes), *map(n.signal, takes))
        args: list[Word] = [
            self.generation,
            seq,
            term,
            ails.pack(),
            told.expected_ms,
            told.since_ms,
        ]
        args += (told.turn, told.off_ms, who, floor, *tried_ms, heard_ms, len(takes))
        for name, room in takes.items():
            args += (name, _HUNG if is_hung and room not in (IS_NODE, IS_DRAINING) else room)
        for handler, options in (handlers or {}).items():
            args += (handler, options.pack())
        return RENEW(keys, args, parts=RENEWAL_HEAD + len(takes))

    def leave(self, identities: Sequence[Target]) -> ScriptCall:
        """Forget identities that own nothing; one status each, see `leave.lua`."""
        n = self.names
        keys = [n.lane, n.keepalive, n.cleanup, n.open]
        args: list[Word] = [self.generation]
        for who in identities:
            keys += (n.owned(who.name), n.stream(who.name), n.signal(who.name))
            args += (who.id, who.number)
        return LEAVE(keys, args, parts=len(identities))

    def thaw(self, identities: Iterable[str]) -> ScriptCall:
        """Say that identities which were fenced were frozen, not killed; see `thaw.lua`."""
        n = self.names
        return THAW((n.lane, n.deaths, n.open), (self.generation, *identities))

    def change_ttl(self, ttl_ms: int) -> ScriptCall:
        """Have the lane go by another TTL; see `ttl.lua`."""
        return TTL((self.names.lane, self.names.journal), (self.generation, ttl_ms))
