"""Replicated maps in Redis: the scripts, what they are given, and what their answers mean.

Of each map Redis holds three keys: its items (a hash), where in its history it is (a hash), and its
latest deltas (a stream: `<revision>-0 -> incarnation, stamp, after, edits`).  The log is trimmed by
length.  A reader that falls behind meets a gap and takes a snapshot; nothing depends on the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import attrs

from pool.errors import InvalidOption, PayloadTooLarge, StoreLost
from pool.model.names import Control, check_map
from pool.model.rmap import (
    CompareAndDelete,
    CompareAndSet,
    Delete,
    Delta,
    MapState,
    Op,
    Outcome,
    Position,
    Set,
    SetIfNotExists,
    Written,
)
from pool.store.link import Link
from pool.store.scripts import Script, ScriptCall, Word
from pool.store.wire import Reply

OPS_MAX = 256  # in one write: it holds the server for about 1 us each
MAP_KEY_BYTES_MAX = 512
MAP_VALUE_BYTES_MAX = 65_536
DELTAS_MAX = 1_024  # kept in the log: what a replica may miss without taking a snapshot

WRITE = Script.load(
    "rmap_write",
    keys=("config", "meta", "items", "log"),
    args=("incarnation", "deltas_max", "*ops"),
)
SNAPSHOT = Script.load("rmap_snapshot", keys=("config", "meta", "items"), args=("incarnation",))
PROBE = Script.load("rmap_probe", keys=("config", "*metas"), args=("incarnation",))

_NO_INCARNATION = ""  # no pool has it: what cannot be read continues nobody's history


@attrs.frozen
class StoredMap:
    """One map in Redis: its key names, and the calls that write and fetch it."""

    control: Control
    name: str
    meta: str = attrs.field(init=False, repr=False)
    items: str = attrs.field(init=False, repr=False)
    log: str = attrs.field(init=False, repr=False)

    @meta.default
    def _meta(self) -> str:
        return self.control.map_meta(self.name)

    @items.default
    def _items(self) -> str:
        return self.control.map_data(self.name)

    @log.default
    def _log(self) -> str:
        return self.control.map_log(self.name)

    def __attrs_post_init__(self) -> None:
        check_map(self.name)

    async def write(
        self,
        link: Link,
        incarnation: str,
        ops: Sequence[Op],
        *,
        repeatable: bool = False,
        deltas_max: int = DELTAS_MAX,
    ) -> Written:
        """Do these operations in order, as one revision of the map; return what became of each.

        An operation whose condition does not hold changes nothing and keeps no other from it.
        With `repeatable` the link tries again after a lost connection: only for operations that
        may be done twice, such as setting keys which nobody else writes.

        Raises:
            InvalidOption: No operation, or more than `OPS_MAX`.
            PayloadTooLarge: A key or a value is too long.
            StoreLost: The pool of this incarnation is not there any more.
            StorageFull: The server is full, and a key would be set; nothing was written.
            StoreUnavailable: No answer in time; `maybe_done` says whether it may have been done.
        """
        keys = (self.control.config, self.meta, self.items, self.log)
        args = (incarnation, deltas_max, *_words(ops))
        reply = await self._call(link, WRITE(keys, args), repeatable=repeatable)
        at = Position(incarnation, int(reply[0]), int(reply[1]))
        outcomes = zip(reply[2::2], reply[3::2], strict=True)
        return Written(at, tuple(Outcome(met == b"1", previous) for met, previous in outcomes))

    async def snapshot(self, link: Link, incarnation: str) -> MapState:
        """Return the whole map, of one moment.  Costs O(keys) on the server.

        Raises:
            StoreLost: The pool of this incarnation is not there any more.
            StoreUnavailable: No answer in time.
        """
        keys = (self.control.config, self.meta, self.items)
        reply = await self._call(link, SNAPSHOT(keys, (incarnation,)), repeatable=True)
        revision, stamp, flat = reply
        items = dict(zip(flat[::2], flat[1::2], strict=True))
        return MapState(Position(incarnation, int(revision), int(stamp)), MappingProxyType(items))

    async def _call(self, link: Link, call: ScriptCall, *, repeatable: bool) -> Reply:
        try:
            return await link.call(call.script, call.keys, call.args, repeatable=repeatable)
        except StoreLost:  # the script can name only the key where it looked
            raise StoreLost(pool=self.control.pool) from None


def probe_call(control: Control, incarnation: str, maps: Sequence[StoredMap]) -> ScriptCall:
    """Return the call that asks where all these maps are."""
    return PROBE((control.config, *(each.meta for each in maps)), (incarnation,))


def probed(incarnation: str, reply: Reply) -> list[Position | None]:
    """Return where the maps are, in the order asked; None for one that cannot be read."""
    return [
        None if revision is None else Position(incarnation, int(revision), int(stamp))
        for revision, stamp in zip(reply[::2], reply[1::2], strict=True)
    ]


def entry_of(at: Position) -> str:
    """Return the id in the log of the delta that led here: reading goes on behind it."""
    return f"{at.revision}-0"


def delta_of(entry: str, fields: Mapping[str, bytes]) -> Delta:
    """Return what an entry of the log says.

    A foreign or damaged entry becomes a delta that continues nobody's history: its reader takes a
    snapshot instead, and the reading goes on.
    """
    revision = int(entry.partition("-")[0])
    try:
        after = fields["after"].split(b"-")
        return Delta(
            Position(fields["incarnation"].decode(), revision, int(fields["stamp"])),
            (int(after[0]), int(after[1])),
            tuple(_edits(fields["edits"])),
        )
    except (KeyError, ValueError, IndexError):
        return Delta(Position(_NO_INCARNATION, revision, 0), (0, 0), ())


def _edits(packed: bytes) -> Iterator[tuple[bytes, bytes | None]]:
    at = 0
    while at < len(packed):
        kind = packed[at : at + 1]
        key, at = _string(packed, at + 1)
        if kind == b"+":
            value, at = _string(packed, at)
            yield key, value
        elif kind == b"-":
            yield key, None
        else:
            raise ValueError(kind)


def _string(packed: bytes, at: int) -> tuple[bytes, int]:
    colon = packed.index(b":", at)
    end = colon + 1 + int(packed[at:colon])
    if end > len(packed):
        raise ValueError(packed[at:colon])
    return packed[colon + 1 : end], end


def _words(ops: Sequence[Op]) -> list[Word]:
    if not 0 < len(ops) <= OPS_MAX:
        raise InvalidOption(
            option="ops", value=str(len(ops)), problem=f"1 to {OPS_MAX} operations in one write"
        )
    words: list[Word] = []
    for op in ops:
        match op:
            case Set(key=key, value=value):
                words += "set", _key(key), _value(value)
            case SetIfNotExists(key=key, value=value):
                words += "set_if_not_exists", _key(key), _value(value)
            case CompareAndSet(key=key, expected=expected, value=value):
                words += "compare_and_set", _key(key), _value(expected), _value(value)
            case Delete(key=key):
                words += "delete", _key(key)
            case CompareAndDelete(key=key, expected=expected):
                words += "compare_and_delete", _key(key), _value(expected)
    return words


def _key(key: bytes) -> bytes:
    return _sized("map key", key, MAP_KEY_BYTES_MAX)


def _value(value: bytes) -> bytes:
    return _sized("map value", value, MAP_VALUE_BYTES_MAX)


def _sized(what: str, given: bytes, size_bytes_max: int) -> bytes:
    if len(given) > size_bytes_max:
        raise PayloadTooLarge(what=what, size_bytes=len(given), size_bytes_max=size_bytes_max)
    return given
