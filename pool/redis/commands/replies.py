"""What the lane's scripts answer, as data.  All times are server milliseconds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Final, Literal, TypeAlias

import attrs

from pool.core.digits import DIGITS_MAX, is_number, number_or
from pool.core.record import STATES, Options, Outcome, Record, Start
from pool.core.settlement import Death
from pool.redis.commands.plain import count, flat, texts, typed
from pool.redis.connection import Reply

Said: TypeAlias = tuple[str, str, str]  # a status: its word, a space, and what follows it
Check: TypeAlias = Callable[[str], bool]

NEVER: Final = 10**DIGITS_MAX  # a stamp, and a time, to which no lane comes
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
    unassigned: int
    lease_end_ms: int | None  # the earliest of all; None: there is none
    pending_ms: int | None
    due_ms: int | None
    handlers: int  # how many are registered; another number means that some may be missing
    ttl: Ttl  # what was granted
    clock: Clock
    counts: tuple[int, ...]


@attrs.frozen
class Opening:
    """What `open` says of an identity, as of its last renewal."""

    number: int  # its incarnation in this lane
    takes: int | None  # how many keys; None: its event loop hangs
    down: int = 0  # of a node: how many of its parts are down

    @classmethod
    def parse(cls, text: bytes) -> Opening | None:
        """Return what a field says, or None for what no script of ours has written."""
        number, *words = text.split(b"|")
        if not 2 <= len(words) <= 3 or any(not is_number(w) for w in (number, *words[1:])):
            return None
        takes, _, *down = words
        if takes != b"-" and not is_number(takes):
            return None
        return cls(int(number), None if takes == b"-" else int(takes), *map(int, down))


@attrs.frozen(kw_only=True)
class Claim:
    """The right to take over what a fenced identity owns."""

    identity: str
    claim: str  # holder|fence|alive|culprit

    @property
    def death(self) -> Death:
        """What was known of the identity when it was fenced; see `fence.lua`."""
        _, _, alive, culprit = self.claim.split("|")
        return Death(identity=self.identity, alive_ms=int(alive), culprit=int(culprit))


@attrs.frozen(kw_only=True)
class Overdue:
    """A key that the sweeper has to look after; `record` is None when it cannot be worked on."""

    index: Literal["pending", "due"]
    key: str
    text: bytes
    record: Record | None
    owner: Literal["none", "live", "hung", "gone"]
    options: Options


@attrs.frozen(kw_only=True)
class Swept:
    """What is overdue that nobody else was told of, and who looks after the rest."""

    now_ms: int
    following_ms: int | None  # the earliest deadline that is still to come
    is_ours: bool  # we hold the sweeper's lock: the rest is ours, too
    left_ms: int | None  # else: something is left to who holds it until then
    found: list[Overdue]


@attrs.frozen(kw_only=True)
class Holding:
    """A key of a fenced identity; `record` is None when it cannot be worked on."""

    key: str
    text: bytes
    record: Record | None
    options: Options


@attrs.frozen(kw_only=True)
class Walked:
    """A slice of a walk, or for how long another node walks."""

    now_ms: int
    held_s: float = 0.0  # another node holds the walk; else:
    is_continued: bool = False  # it stood where the caller thought
    is_from_start: bool = False  # the slice is a pass's first
    records: int = 0
    cursor: str = "0"  # of what comes next; 0: nothing does
    open_at: str = "0"
    cleanup_at: str = "0"
    astray: int = 0  # records found out of place, in this pass or the one before
    unassigned: int = 0
    waiting: int = 0
    changes: str = ""  # see `recount.lua`
    suspects: Sequence[str] = ()  # without a deadline that they should have
    flat: Sequence[bytes] = ()  # key, record, key, record ...


@attrs.frozen(kw_only=True)
class Owned:
    """A page of what a worker owns: names that come next, and what the records of some keys say."""

    at: str = ""  # where to go on in its set of keys; empty: that was the end
    after: str = ""  # likewise in its stream
    names: Sequence[bytes] = ()  # keys in its set
    entries: Sequence[tuple[str, bytes]] = ()  # starts in its stream: entry, key
    running: Mapping[str, Record]
    strays: Sequence[tuple[str, bytes, Record]] = ()  # it runs them, and its set lacks them
    starts: Sequence[Start]
    unreadable: Mapping[str, bytes]  # records that cannot be worked on
    lost: Mapping[str, Record]  # pending with it, and their start cannot be read any more


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


def _time(reply: bytes) -> int | None:
    number = int(reply)
    return number if number >= 0 else None


def status(*words: str, **checked: Check) -> Callable[[Reply], Said]:
    """Return the reader of a reply that is one word, and what follows it.

    Args:
        words: Of which nothing is known of what follows.
        checked: Those of which it must be right.
    """
    known: dict[str, Check | None] = {**dict.fromkeys(words), **checked}

    def read(reply: Reply) -> Said:
        return _said(known, [reply])[0]

    return read


def statuses(*words: str, **checked: Check) -> Callable[[Reply], list[Said]]:
    """Likewise of one status per item.  All at once: there is one for each job."""
    known: dict[str, Check | None] = {**dict.fromkeys(words), **checked}
    return lambda reply: _said(known, reply)


def _said(known: Mapping[str, Check | None], reply: Sequence[bytes]) -> list[Said]:
    told = [status.decode(errors="replace").partition(" ") for status in reply]
    for word in set(map(itemgetter(0), told)):  # few: this is for every job
        is_right = known[word]  # else it is no status of this script
        if is_right is not None and not all(is_right(rest) for w, _, rest in told if w == word):
            raise ValueError(f"{word} without its facts")
    return told


def _is_pair(rest: str) -> bool:
    """Whether these are owner and job id."""
    return len(rest.split(" ")) == 2


def _is_job(rest: str) -> bool:
    """Whether these are state, owner, job id and handler."""
    state, *more = rest.split(" ", 3)
    return state in STATES and len(more) == 3


def _is_epoch(rest: str) -> bool:
    """Whether these are owner, job id, epoch and handler."""
    words = rest.split(" ", 3)
    return len(words) == 4 and is_number(words[2])


admitted: Final = statuses(
    *("OK", "ENDED", "UNKNOWN", "NOROOM", "MALFORMED"),
    FULL=is_number,
    EXISTS=_is_job,
    ATTACHED=_is_job,
)
intended: Final = status("OK", "NOJOB", "MALFORMED", MOVED_ON=_is_epoch)
notified: Final = status(
    *("OK", "NOJOB", "MALFORMED"), MOVED_ON=_is_pair, INBOX=is_number, LOOKED=is_number
)
left: Final = statuses("OK", "GONE", OWNS=is_number)
forgotten: Final = statuses("OK", "OWNS", "GONE")
quarantined: Final = status("OK", "MOVED_ON", LOOKED=bool)
done: Final = status("OK")

_moved: Final = statuses(
    *("OK", "STOPPED", "GRANTED", "UNASSIGNED", "REPEAT", "SETTLED", "FENCED", "TIMEDOUT"),
    *("OWNED", "REFUSED", "MOVED_ON", "MALFORMED", "MORE"),
)


def moved(reply: Reply) -> tuple[int, list[Said]]:
    """Read the reply of `advance`: the lane's number of unassigned keys, then one status each."""
    unassigned, *rest = reply
    return typed(unassigned, int), _moved(rest)


def restored(reply: Reply) -> list[tuple[str, ...]]:
    """Read the reply of `restore`: per item the indexes it was put into, or one other word."""
    told = [tuple(text.decode().split(",")) for text in reply]
    if not {word for words in told for word in words} <= _RESTORED:
        raise ValueError("no status of this script")
    return told


_RESTORED: Final = {"pending", "owned", "due", "SOUND", "MOVED_ON", "GONE"}


def pulled(reply: Reply) -> tuple[int, int, int]:
    """Read the reply of `pull`: how many keys are left and were granted; how old the oldest is."""
    left, granted, *oldest = reply
    return typed(left, int), count(granted), int(oldest[0]) if oldest else 0


def renewal(reply: Reply) -> Renewal:
    """Read the reply of `renew`."""
    now, stamp, unassigned, lease_end, pending, due, handlers, ttl_ms, term, *rest = reply
    clock, *counts = rest
    return Renewal(
        now_ms=int(now),
        stamp=int(stamp),
        unassigned=int(unassigned),
        lease_end_ms=_time(lease_end),
        pending_ms=_time(pending),
        due_ms=_time(due),
        handlers=int(handlers),
        ttl=_ttl(ttl_ms, term),
        clock=_clock(int(now), clock),
        counts=tuple(typed(number, int) for number in counts),
    )


def claims(reply: Reply) -> tuple[int | None, list[Claim]]:
    """Read the reply of `fence`: the earliest lease end left, and what was claimed."""
    earliest, *pairs = reply
    found = []
    for name, claim in zip(pairs[::2], pairs[1::2], strict=True):
        # A name that is no text is nobody's, and must not keep the others' claims from being read:
        # a record with such an owner is unreadable, and parked by whoever comes to it.
        with suppress(UnicodeDecodeError):
            found.append(Claim(identity=name.decode(), claim=claim.decode()))
    earliest_ms, _ = _time(earliest), [each.death for each in found]  # which can be read, then
    return earliest_ms, found


def expired(reply: Reply) -> list[str]:
    """Read the reply of `expire`; what is none of ours is left to whoever wrote it."""
    return [text.decode() for text in reply if _IDS.fullmatch(text)]


_IDS: Final = re.compile(rb"[0-9A-Za-z]{1,64}(?: [0-9A-Za-z]{1,64}){0,31}")


def holdings(reply: Reply) -> tuple[bool, int, list[Holding]]:
    """Read the reply of `reap`: whether all is done, up to which start it read, the next keys."""
    upto, *rest = reply
    if rest == [b"FORGOTTEN"]:
        return True, 0, []
    found = [
        Holding(
            key=key.decode(errors="surrogateescape"),
            text=text,
            record=read(key, text),
            options=Options.parse(options),
        )
        for key, text, options in zip(rest[::3], rest[1::3], rest[2::3], strict=True)
    ]
    return False, int(upto), found


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
    found = []
    for i in range(0, len(rest), 5):
        index, key, text, owner, options = rest[i : i + 5]
        found.append(
            Overdue(
                index=_INDEXES[index],
                key=key.decode(errors="surrogateescape"),
                text=text,
                record=read(key, text),
                owner=_OWNERS[owner],
                options=Options.parse(options),
            )
        )
    return Swept(
        now_ms=int(now),
        following_ms=_time(following),
        is_ours=not left,
        left_ms=int(left or 0) or None,
        found=found,
    )


def walked(reply: Reply) -> Walked:
    """Read the reply of `walk`."""
    now, held, *rest = reply
    if not rest:
        return Walked(now_ms=int(now), held_s=max(1, int(held)) / 1000)
    is_continued, is_from_start, records, cursor, open_at, cleanup_at, astray = rest[:7]
    unassigned, waiting, changes, suspects, found = rest[7:]
    return Walked(
        now_ms=int(now),
        is_continued=bool(is_continued),
        is_from_start=bool(is_from_start),
        records=count(records),
        cursor=cursor.decode(),
        open_at=open_at.decode(),
        cleanup_at=cleanup_at.decode(),
        astray=typed(astray, int),
        unassigned=typed(unassigned, int),
        waiting=typed(waiting, int),
        changes=changes.decode(),
        suspects=tuple(name.decode(errors="replace") for name in suspects),
        flat=flat(found),
    )


def recounted(reply: Reply) -> tuple[tuple[int, int], tuple[int, int]]:
    """Read the reply of `recount`: unassigned and waiting keys, as counted before and now."""
    unassigned, waiting, *after = map(int, reply)
    unassigned_now, waiting_now = after
    return (unassigned, waiting), (unassigned_now, waiting_now)


def owned(reply: Reply) -> Owned:
    """Read the reply of `reconcile`; entries that cannot be read are left to the reaper."""
    at, after, names, listed, running, strays, entries, lost = reply
    starts = []
    for entry_id, held in entries:
        fields = dict(
            zip((n.decode(errors="replace") for n in held[::2]), held[1::2], strict=False)
        )
        start = Start.parse(entry_id.decode(), fields)
        if start is not None:
            starts.append(start)
    records: dict[str, Record] = {}
    unreadable: dict[str, bytes] = {}
    for key, text in zip(running[::2], running[1::2], strict=True):
        name, record = key.decode(errors="surrogateescape"), read(key, text)
        if record is None:
            unreadable[name] = text
        else:
            records[name] = record
    return Owned(
        at=at.decode(),
        after=after.decode(),
        names=texts(names),
        entries=[
            (entry.decode(), key) for entry, key in zip(listed[::2], listed[1::2], strict=True)
        ],
        running=records,
        strays=[(key.decode(), text, record) for key, text, record in _legible(strays)],
        starts=starts,
        unreadable=unreadable,
        lost={key.decode(): record for key, _, record in _legible(lost)},
    )


def _legible(pairs: Sequence[bytes]) -> Iterator[tuple[bytes, bytes, Record]]:
    for key, text in zip(pairs[::2], pairs[1::2], strict=True):
        record = read(key, text)
        if record is not None:
            yield key, text, record


def messages(reply: Reply) -> tuple[bool, list[tuple[int, bytes]]]:
    """Read the reply of `inbox`: whether there may be more, and the messages with their ids."""
    has_more, *held = reply
    found = []
    for text in texts(held):
        number, _, rest = text.partition(b"|")
        found.append((int(number), rest.partition(b"|")[2]))
    return bool(count(has_more)), found


def read(key: bytes, text: bytes) -> Record | None:
    """Return the record of a key, if it can be worked on.

    What is not UTF-8 is nobody's key, and no call can be made for it.
    """
    try:
        key.decode()
    except UnicodeDecodeError:
        return None
    return Record.parse(text)


@attrs.frozen
class Missing:
    """Neither a job nor an outcome is known; what the lane's stamp and the server's clock were."""

    stamp: int
    now_ms: int


@attrs.frozen
class More:
    """There is an answer, and too much was told before it: ask again."""


Looked: TypeAlias = Record | Outcome | Missing | More


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


def changed(reply: Reply) -> int:
    """Read the reply of `ttl`: the TTL before (ms); 0: it had none."""
    before_ms, term = reply
    typed(term, int)
    return count(before_ms)


@attrs.frozen(kw_only=True)
class PoolConfig:
    """What a pool is made as."""

    protocol: int
    lanes: int
    incarnation: str
    ttl_ms: int
    now_ms: int
    wrote: bool  # by this call: of several at once one
    was_gone: bool = False  # and a lane knew how it had been made


def pool_config(reply: Reply) -> PoolConfig:
    """Read the reply of `FOUND`."""
    protocol, lanes, named, ttl, now, wrote = reply
    return PoolConfig(
        protocol=number_or(-1, protocol),  # none is made with that
        lanes=number_or(-1, lanes),
        incarnation=(named or b"").decode(errors="replace"),
        ttl_ms=number_or(-1, ttl),
        now_ms=int(now),
        wrote=typed(wrote, int) == 1,
    )


def joined(reply: Reply) -> tuple[int, Ttl, str, Clock]:
    """Read the reply of `join`: pool time, what was granted, incarnation of the lane, its clock."""
    now, ttl_ms, term, named, clock = reply
    name = named.decode(errors="replace")
    return int(now), _ttl(ttl_ms, term), name, _clock(int(now), clock)
