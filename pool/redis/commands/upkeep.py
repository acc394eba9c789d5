"""What is put right though nobody is late: walks, indexes, old outcomes, damaged records."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Final, Self

import attrs

from pool.core.record import Record, Start
from pool.core.walk import indexes
from pool.names import Names, split_pair
from pool.redis.commands.calls import Calls, as_ms, read
from pool.redis.commands.plain import count, flat, texts, typed
from pool.redis.connection import Reply
from pool.redis.scripts import Script, ScriptCall, Word

_NOT: Final = (None, 0)  # what ZMSCORE and SMISMEMBER say of what is not there


@attrs.frozen(eq=False)
class IndexLooks:
    """Asks whether records stand in the indexes that they should: one command an index."""

    # Command and index -> the places of the records, and the members to ask for.
    _wanted: Mapping[tuple[str, str], tuple[list[int], list[bytes]]]

    @classmethod
    def of(cls, names: Names, keys: Sequence[bytes], records: Sequence[Record | None]) -> Self:
        """Return the looks for records by their names in `jobs`; of None nothing is asked."""
        wanted: dict[tuple[str, str], tuple[list[int], list[bytes]]] = {}
        for at, (key, record) in enumerate(zip(keys, records, strict=True)):
            if record is None:
                continue
            for index in indexes(record):
                member = key
                match index:
                    case "pending":
                        head = ("ZMSCORE", names.pending)
                    case "owned":
                        head = ("SMISMEMBER", names.owned(record.owner))
                    case "unassigned":
                        head = ("ZMSCORE", names.unassigned(record.handler))
                    case _:
                        head, member = ("ZMSCORE", names.due), b"k:" + member
                places, members = wanted.setdefault(head, ([], []))
                places.append(at)
                members.append(member)
        return cls(wanted)

    @property
    def commands(self) -> list[tuple[Word, ...]]:
        """What to send."""
        return [(*head, *members) for head, (_, members) in self._wanted.items()]

    def missing(self, replies: Iterable[object]) -> set[int]:
        """Return the places of those that an index lacks; who did not answer tells nothing."""
        found: set[int] = set()
        for (places, _), reply in zip(self._wanted.values(), replies, strict=False):
            if isinstance(reply, list) and len(reply) == len(places):
                found.update(at for at, had in zip(places, reply, strict=True) if had in _NOT)
        return found


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
    out: int = 0  # messages to lanes, see `lib/channel.lua`
    batches: int = 0
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


@attrs.frozen
class Quarantined:
    """Whether it is parked now: not what is no more as it was seen."""

    is_parked: bool
    after: str = ""  # nothing was done yet: go on behind this entry of its holder's stream


def quarantined(reply: Reply) -> Quarantined:
    """Read the reply of `quarantine`."""
    match reply.decode().split(" "):
        case ["OK" | "MOVED_ON" as word]:
            return Quarantined(word == "OK")
        case ["LOOKED", after] if after:
            return Quarantined(False, after)
    raise ValueError("no status of this script")


@attrs.frozen
class Restored:
    """What was done about a record that was seen out of place."""

    indexes: tuple[str, ...] = ()  # into which it was put
    is_gone: bool = False  # its owner: it is not to be put back


def restored(reply: Reply) -> list[Restored]:
    """Read the reply of `restore`, per item."""
    return [_RESTORED.get(text) or Restored(_indexes(text.decode().split(","))) for text in reply]


_RESTORED: Final = {
    b"SOUND": Restored(),
    b"MOVED_ON": Restored(),
    b"GONE": Restored(is_gone=True),
}


def _indexes(names: Sequence[str]) -> tuple[str, ...]:
    if not {*names} <= {"pending", "owned", "due"}:
        raise ValueError("no status of this script")
    return tuple(names)


class Requeued(Enum):
    """What was done about a line."""

    SOUND = b"SOUND"
    MENDED = b"MENDED"
    PROMOTED = b"PROMOTED"  # nobody was before it any more


def requeued(reply: Reply) -> list[Requeued]:
    """Read the reply of `requeue`, per item."""
    return [Requeued(text) for text in texts(reply)]


@attrs.frozen
class Expired:
    """How many dead letters went, and of which answers the time is up, too."""

    letters: int
    items: list[str]


def expired(reply: Reply) -> Expired:
    """Read the reply of `expire`; what is none of ours is left to whoever wrote it."""
    letters, *items = reply
    return Expired(count(letters), [text.decode() for text in items if _is_ours(text)])


def _is_ours(text: bytes) -> bool:
    try:
        lines = text.decode().split("\n")
    except UnicodeDecodeError:
        return False
    return len(lines) <= LINES_MAX and all(map(_KEPT.fullmatch, lines))


LINES_MAX: Final = 32  # jobs of one member of `kept`; see `lib/keep.lua`
_KEPT: Final = re.compile(r"\d{1,16} \S+ .+")


def walked(reply: Reply) -> Walked:
    """Read the reply of `walk`."""
    now, held, *rest = reply
    if not rest:
        return Walked(now_ms=int(now), held_s=max(1, int(held)) / 1000)
    is_continued, is_from_start, records, cursor, open_at, cleanup_at, astray = rest[:7]
    unassigned, waiting, out, batches, changes, suspects, found = rest[7:]
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
        out=typed(out, int),
        batches=typed(batches, int),
        changes=changes.decode(),
        suspects=tuple(name.decode(errors="replace") for name in suspects),
        flat=flat(found),
    )


@attrs.frozen
class Recounted:
    """Unassigned and waiting keys, as they were counted before and now."""

    before: tuple[int, int]
    after: tuple[int, int]


def recounted(reply: Reply) -> Recounted:
    """Read the reply of `recount`."""
    unassigned, waiting, *after = map(int, reply)
    unassigned_now, waiting_now = after
    return Recounted((unassigned, waiting), (unassigned_now, waiting_now))


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


RECONCILE: Final = Script.load(
    "reconcile",
    keys="lane jobs owned stream",
    args="generation worker at after names_max *items",
    reads=owned,
)


def _legible(pairs: Sequence[bytes]) -> Iterator[tuple[bytes, bytes, Record]]:
    for key, text in zip(pairs[::2], pairs[1::2], strict=True):
        record = read(key, text)
        if record is not None:
            yield key, text, record


WALK: Final = Script.load(
    "walk",
    keys="lane keepalive cleanup open jobs",
    args="generation holder hold_ms cursor open_at cleanup_at keys_max names_max found *announced",
    reads=walked,
)
RECOUNT: Final = Script.load(
    "recount", keys="lane *unassigned", args="generation changes found counted", reads=recounted
)
RESTORE: Final = Script.load(
    "restore",
    keys="lane cleanup jobs pending due owned",
    args="generation owner pending_ms *items",
    reads=restored,
)
EXPIRE: Final = Script.load(
    "expire",
    keys="lane kept parked letters checkpoints payloads *results",
    args="generation items_max parked_ms parked_max *items",
    reads=expired,
)
QUARANTINE: Final = Script.load(
    "quarantine",
    keys="lane jobs pending due payloads checkpoints inbox parked letters journal attempts "
    "holders_owned holders_stream",
    args="generation key text after looked_max",
    reads=quarantined,
)


REQUEUE: Final = Script.load(
    "requeue", keys="lane jobs payloads due", args="generation *items", reads=requeued
)


@attrs.frozen
class UpkeepCalls(Calls):
    """Putting things right."""

    def walk(
        self,
        holder: str,
        *,
        hold_s: float,
        at: tuple[str, str, str],
        keys_max: int,
        names_max: int,
        found: int = 0,
        announced: Iterable[str] = (),
    ) -> ScriptCall:
        """Hold the walk over the records, and take the next slice; read it with `walked()`."""
        n = self.names
        keys = (n.lane, n.keepalive, n.cleanup, n.open, n.jobs)
        args: list[Word] = [self.generation, holder, as_ms(hold_s), *at]
        return WALK(keys, [*args, keys_max, names_max, found, *announced])

    def recount(
        self, handlers: Iterable[str], *, changes: str, found: int, counted: int
    ) -> ScriptCall:
        """End a pass of the walk."""
        keys = [self.names.lane, *map(self.names.unassigned, handlers)]
        return RECOUNT(keys, (self.generation, changes, found, counted))

    def restore(
        self, owner: str, items: Iterable[tuple[str, bytes, float]], *, pending_s: float
    ) -> ScriptCall:
        """Put keys (with their records and limits) back where they stand; one status each."""
        n = self.names
        keys = (n.lane, n.cleanup, n.jobs, n.pending, n.due, n.owned(owner or "-"))
        args: list[Word] = [self.generation, owner, as_ms(pending_s)]
        for key, text, limit_s in items:
            args += (key, text, as_ms(limit_s) if limit_s else 0)
        return RESTORE(keys, args, parts=(len(args) - 3) // 3)

    def requeue(self, items: Sequence[tuple[str, str]]) -> ScriptCall:
        """Put the lines behind keys right, where these (key, job id or nothing) stand."""
        n = self.names
        args = (self.generation, *(word for item in items for word in item))
        return REQUEUE((n.lane, n.jobs, n.payloads, n.due), args, parts=len(items))

    def quarantine(self, key: str, text: bytes, holder: str = "", after: str = "-") -> ScriptCall:
        """Park a record that cannot be read, if it still is what was seen.

        Its start is looked for in the holder's stream, behind the entry `after`.
        """
        n = self.names
        raw = key.encode(errors="surrogateescape")
        # What is not UTF-8 is nobody's job key; the inbox of no key takes its place.
        inbox = n.inbox(key if raw == key.encode(errors="replace") else "")
        keys = [n.lane, n.jobs, n.pending, n.due, n.payloads, n.checkpoints, inbox]
        keys += (n.parked, n.letters, n.journal, n.attempts)
        keys += (n.owned(holder or "-"), n.stream(holder or "-"))
        args = (self.generation, raw, text, after, self.pages.looked_at)
        return QUARANTINE(keys, args)

    def expire(self, items: Sequence[str], *, items_max: int) -> ScriptCall:
        """End answers whose time is up, and dead letters; returns of which further ones it is.

        An item is what the reply told: (length, job id, key) of some jobs, line ends between.
        """
        n, keeps = self.names, self.keeps
        keys = [n.lane, n.kept, n.parked, n.letters, n.checkpoints, n.payloads]
        for item in items:
            lines = (line.partition(" ")[2] for line in item.split("\n"))
            keys += (n.result(*split_pair(job)) for job in lines)
        args = (self.generation, items_max, as_ms(keeps.parked_s), keeps.parked_max)
        return EXPIRE(keys, (*args, *items))

    def reconcile(
        self,
        worker: str,
        items: Iterable[tuple[bytes, str]] = (),
        *,
        at: str = "0",
        after: str = "0",
    ) -> ScriptCall:
        """Read a page of what a worker owns, see `reconcile.lua`."""
        n = self.names
        keys = (n.lane, n.jobs, n.owned(worker), n.stream(worker))
        args: list[Word] = [self.generation, worker, at, after, self.pages.listed]
        for item in items:
            args += item
        return RECONCILE(keys, args)
