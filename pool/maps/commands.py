"""Replicated maps in Redis: the scripts, what they are given, and what their answers mean.

Of each map Redis holds three keys: `data`, a hash of where in its history it is and of its strings;
`lists`, a sorted set (see `lua/lib/rmap.lua`); and `log`, a stream of its latest deltas:
`<revision>-0 -> at, edits`, where `at` is `<generation> <stamp> <revision before>-<stamp before>`;
each field more would cost a twentieth of a write.  The log is bounded in bytes and in deltas.  A
reader that falls behind meets a gap and takes a snapshot; nothing depends on the log.

All maps of a pool share two keys: `due`, a sorted set of when whose time is up, and `maps`, a hash
of the time by which that is judged and of the highest revision at which any map has ended.  `due`
is only how an end is found: what lacks there is put back by the next probe of who follows the map,
and foreign data there fail nothing.  While they are at `maps` no time is known: nothing ends, and
whoever would have to know is refused.

    written  ->  data, lists, log                      each write: log first, then the rest
    its end is near  ->  a place in `due`, and in data  the one in data counts, `due` finds it
    its time is up   ->  it counts as empty for whoever comes
    a probe finds it ->  a last delta; data, lists and its place in `due` go, the log a minute later

Every follower probes once per renewal period.  Whom a probe hands an ended map ends it; if that
process dies first, the next one is handed it a little later.  A script that is broken off between
its writes (its user lacks a right) has logged what it did not do: the next write goes on behind
that, and whoever follows takes a snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import attrs

from pool import checks
from pool.core.ids import number
from pool.errors import ConfigError, InvalidOption, PayloadTooLarge, StoreLost, StoreUnavailable
from pool.maps.deltas import (
    NO_STAMP,
    CompareAndDelete,
    CompareAndSet,
    Delete,
    Delta,
    Edit,
    Gathering,
    History,
    Increment,
    ListOp,
    MapState,
    Op,
    OpResult,
    Page,
    Position,
    Probed,
    ResetOp,
    ResizeResult,
    Set,
    SetIfNotExists,
    WriteResult,
)
from pool.names import Control, check_map
from pool.redis.commands import plain
from pool.redis.connection import Reply
from pool.redis.io.system import IO
from pool.redis.pipeline import Pipeline
from pool.redis.scripts import Script, ScriptCall, Word

OPS_MAX = 256  # in one write: it holds the server for about 1 us each
MAP_KEY_BYTES_MAX = 512
MAP_VALUE_BYTES_MAX = 65_536
MAP_ITEMS_MAX = 100_000  # strings and list items of one map: every replica holds them all
TTL_S_MIN, TTL_S_MAX = 1.0, 10 * 365 * 86_400.0
EXPIRES_MAX = 32_503_680_000.0  # the year 3000
LOG_BYTES_MAX = 8 * 1024 * 1024  # of a map's log, while its deltas are alike; see lib/rmap.lua
DELTAS_MAX = 1_024  # in it: what a replica may miss without taking a snapshot
READING_S = 60  # for how long the log of a map that has ended is kept
ENDED_MAX = 128  # maps that have ended, of one probe; while there are as many it is repeated
LATE_MS = 5_000  # who was handed an ended map and does not end it leaves it to others then
ASKED_MAX = 256  # revisions of a map in one question
PAGE_BYTES_MAX = 256 * 1024  # of a copy's page: at 1 MB/s what comes behind it waits 0.3 s
PAGE_BYTES_MIN = 4 * 1024

_WRITING = "config maps data lists log due"
_GROWING = "generation name nonce items_max life"
_OF_A_PROBE = 5  # words for each map


def _stamp(word: object) -> str:
    stamp: str = plain.typed(word, bytes).decode()
    if not 0 < len(stamp) <= _STAMP_DIGITS:
        raise ValueError(stamp)
    return stamp


def _written(reply: Reply) -> tuple[int, str, tuple[OpResult, ...]]:
    if type(reply) is bytes:
        revision, stamp, old = reply.split(b" ", 2)
        return int(revision), _stamp(stamp), (OpResult(True, old),)
    outcomes = zip(reply[2::2], reply[3::2], strict=True)
    read = tuple(_outcome(met == b"1", old) for met, old in outcomes)
    return int(reply[0]), _stamp(reply[1]), read


def _outcome(is_met: bool, old: object) -> OpResult:
    if type(old) is int:
        return OpResult(is_met, None, plain.count(old))
    return OpResult(is_met, plain.typed(old, bytes, type(None)))


def _resized(reply: Reply) -> tuple[int, str, bool, int]:
    revision, stamp, is_met, size = reply
    return int(revision), _stamp(stamp), bool(int(is_met)), int(size)


def _listed(reply: Reply) -> tuple[int, str, int, int]:
    revision, stamp, before, now = reply.split(b" ") if type(reply) is bytes else reply
    return int(revision), _stamp(stamp), int(before), int(now)


@attrs.frozen
class _Paged:
    """What a page was answered, as it came."""

    revision: int
    stamp: str
    deltas: tuple[Delta, ...]
    has_more: bool
    fields: dict[bytes, bytes]  # of the map's hash: `at` and foreign ones are among them
    members: list[bytes]
    strings_at: bytes
    is_last: bool
    counts: tuple[int, int]
    size: int


def _paged(reply: Reply) -> _Paged | None:
    if reply is None:
        return None  # its time is up
    revision, stamp, entries, more, strings, members, strings_at, over, *counts = reply
    deltas, size = [], 0
    for entry, held in entries:
        size += sum(map(len, plain.texts(held)))
        deltas.append(delta_of(plain.entry_id(entry), plain.fields(held)))
    flat, members = plain.flat(strings), plain.texts(members)
    return _Paged(
        int(revision),
        _stamp(stamp),
        tuple(deltas),
        plain.count(more) > 0,
        dict(zip(flat[::2], flat[1::2], strict=True)),
        members,
        plain.typed(strings_at, bytes),
        plain.count(over) > 0,
        (plain.count(counts[0]), plain.count(counts[1])),
        size + sum(map(len, flat)) + sum(map(len, members)),
    )


@attrs.frozen
class Probe:
    """What a probe was answered."""

    now_ms: int  # the time by which maps end; 0: that cannot be read
    ended: list[bytes]  # names of maps whose time is up, for the caller to end
    foreign: int  # data at 1: `maps`, 2: `due`, 3: both
    maps: list[tuple[tuple[int, str] | None, tuple[int, int], int]]  # place, counts, what is wrong


def _probed(reply: Reply) -> Probe:
    now, names, foreign, *flat = reply
    maps: list[tuple[tuple[int, str] | None, tuple[int, int], int]] = []
    for revision, stamp, strings, listed, wrong in zip(
        *(flat[n::_OF_A_PROBE] for n in range(_OF_A_PROBE)), strict=True
    ):
        at = None if revision is None else (int(revision), _stamp(stamp))
        counts = plain.typed(strings, int), plain.typed(listed, int)
        maps.append((at, counts, plain.typed(wrong, int)))
    return Probe(int(now), plain.texts(names), plain.count(foreign), maps)


def _found(reply: Reply) -> tuple[int, int, list[str | None]]:
    revision, floor, *stamps = reply
    told = [None if stamp is None else _stamp(stamp) for stamp in stamps]
    return int(revision), int(floor), told


WRITE = Script.load(
    "rmap_write", keys=_WRITING, args=f"{_GROWING} *ops", reads=_written, is_text_too=True
)
LIST = Script.load("rmap_list", keys=_WRITING, args=f"{_GROWING} op key *values", reads=_listed)
RESET = Script.load(
    "rmap_reset", keys=_WRITING, args="generation name nonce kind *expected", reads=_resized
)
PAGE = Script.load(
    "rmap_page",
    keys="config maps data lists log",
    args="generation nonce bytes_max reached strings_at lists_at",
    reads=_paged,
)
PROBE = Script.load(
    "rmap_probe",
    keys="config maps due *of",
    args="generation expected_ms ended_max late_ms logs *names",
    reads=_probed,
)
FIND = Script.load(
    "rmap_find", keys="config maps data log", args="generation *revisions", reads=_found
)

_DIGITS_MAX = 7  # of a string's length
_STAMP_DIGITS = 16
_LISTS = b"[l"  # where the items of lists begin
_NO_GENERATION = ""  # no pool has it: what cannot be read continues nobody's history
_DIGITS = 19  # that order the items of a list, see lib/rmap.lua


@attrs.frozen
class MapLife:
    """How long a map lives: for ever; from its first write on; (sliding) from its latest one; or
    until a time, in seconds since 1970 by the server's clock."""

    ttl_s: float | None = None
    is_sliding: bool = False
    expires_at: float | None = None

    def __attrs_post_init__(self) -> None:
        ttl_s = checks.seconds("ttl_s", self.ttl_s, TTL_S_MIN, TTL_S_MAX, or_none=True)
        until = checks.seconds("expires_at", self.expires_at, 0.0, EXPIRES_MAX, or_none=True)
        object.__setattr__(self, "ttl_s", ttl_s)  # a plain one, whatever was given
        object.__setattr__(self, "expires_at", until)
        if checks.flag("is_sliding", self.is_sliding) and ttl_s is None:
            raise InvalidOption(option="is_sliding", value="True", problem="there is no ttl_s")
        if ttl_s is not None and until is not None:
            raise InvalidOption(
                option="expires_at", value=str(until), problem="give it or a ttl_s, not both"
            )

    def word(self) -> str:
        """Return what the scripts take, see `life` in rmap_write."""
        if self.expires_at is not None:
            return f"{max(1, round(self.expires_at * 1000))} 2"
        return "" if self.ttl_s is None else f"{round(self.ttl_s * 1000)} {int(self.is_sliding)}"


FOR_EVER = MapLife()


@attrs.frozen
class StoredMap:
    """One map in Redis: its key names, and the calls that write and fetch it."""

    control: Control
    name: str
    data: str = attrs.field(init=False, repr=False)
    lists: str = attrs.field(init=False, repr=False)
    log: str = attrs.field(init=False, repr=False)

    @data.default
    def _data(self) -> str:
        return self.control.map_data(self.name)

    @lists.default
    def _lists(self) -> str:
        return self.control.map_lists(self.name)

    @log.default
    def _log(self) -> str:
        return self.control.map_log(self.name)

    def __attrs_post_init__(self) -> None:
        check_map(self.name)

    async def write(
        self,
        pipeline: Pipeline,
        generation: str,
        ops: Sequence[Op],
        *,
        repeatable: bool = False,
        items_max: int = MAP_ITEMS_MAX,
        life: MapLife = FOR_EVER,
    ) -> WriteResult:
        """Do these operations in order, as one revision of the map; return what became of each.

        An operation whose condition does not hold changes nothing and keeps no other from it.
        With `repeatable` the pipeline tries again after a lost connection: only for operations that
        may be done twice, such as setting keys which nobody else writes.

        Raises:
            InvalidOption: No operation, or more than `OPS_MAX`.
            PayloadTooLarge: A key or a value is too long.
            WrongValue: `Increment` of what is no whole number; nothing was written.
            MapFull: A key would be added to `items_max` others; nothing was written.
            StoreLost: The pool of this generation is not there any more.
            StorageFull: The server is full, and a key would be set; nothing was written.
            StoreUnavailable: No answer in time; `maybe_done` says whether it may have been done.
        """
        limits = (nonce(pipeline.io), items_max, life.word())
        args = (generation, self.name, *limits, *_words(ops))
        call = WRITE(self.keys(), args, parts=2 + 2 * len(ops))
        reply = await self._call(pipeline, call, repeatable=repeatable)
        revision, stamp, outcomes = reply
        return WriteResult(Position(generation, revision, stamp), outcomes)

    async def change_list(
        self,
        pipeline: Pipeline,
        generation: str,
        op: ListOp,
        *,
        items_max: int = MAP_ITEMS_MAX,
        life: MapLife = FOR_EVER,
    ) -> ResizeResult:
        """Append to a list, or remove from it, as one revision of the map.

        Costs the logarithm of the list's length for each value, and ships those values alone.

        Raises:
            WrongValue: The key holds a string.
            InvalidOption, PayloadTooLarge, MapFull, StoreLost, StorageFull, StoreUnavailable: As
                for `write()`.
        """
        if not 0 < len(op.values) <= OPS_MAX:
            raise InvalidOption(
                option="values", value=str(len(op.values)), problem=f"1 to {OPS_MAX} at once"
            )
        limits = (nonce(pipeline.io), items_max, life.word())
        what = (op.kind, _key(op.key), *map(_value, op.values))
        call = LIST(self.keys(), (generation, self.name, *limits, *what))
        revision, stamp, before, now = await self._call(pipeline, call, repeatable=False)
        at = Position(generation, revision, stamp)
        return ResizeResult(at, before != now, before, now)

    async def reset(self, pipeline: Pipeline, generation: str, op: ResetOp) -> ResizeResult:
        """Remove everything, as one revision; what is freed is freed beside the server's work.

        Raises:
            StoreLost, StoreUnavailable: As for `write()`.
        """
        call = self.reset_call(pipeline.io, generation, op)
        repeatable = not op.expected  # what is empty then is empty, whoever did it
        reply = await self._call(pipeline, call, repeatable=repeatable)
        revision, stamp, is_met, before = reply
        at = Position(generation, revision, stamp)
        return ResizeResult(at, is_met, before, 0 if is_met else before)

    def reset_call(self, io: IO, generation: str, op: ResetOp) -> ScriptCall:
        """Return the call that removes everything."""
        expected = [word for key, value in op.expected for word in (_key(key), _value(value))]
        return RESET(self.keys(), (generation, self.name, nonce(io), op.kind, *expected))

    async def find(self, pipeline: Pipeline, generation: str, revisions: Sequence[int]) -> History:
        """Return how far the map's history came, and which of these revisions it has.

        Raises:
            StoreLost, StoreUnavailable: As for `snapshot()`.
        """
        keys = (self.control.config, self.control.maps, self.data, self.log)
        call = FIND(keys, (generation, *revisions), parts=2 + len(revisions))
        revision, floor, stamps = await self._call(pipeline, call, repeatable=True)
        known = {of: stamp for of, stamp in zip(revisions, stamps, strict=True) if stamp}
        return History(revision, floor, known)

    def pages(self, generation: str) -> SnapshotPages:
        """Return what fetches the whole map, page by page."""
        return SnapshotPages(self, generation)

    async def snapshot(self, pipeline: Pipeline, generation: str) -> MapState:
        """Fetch the whole map; for errors see `SnapshotPages.fetch`."""
        pages = self.pages(generation)
        while (state := await pages.fetch(pipeline)) is None:
            continue
        return state

    def keys(self) -> tuple[str, ...]:
        """Return what the writing scripts declare."""
        control = self.control
        return (control.config, control.maps, self.data, self.lists, self.log, control.map_due)

    async def _call(self, pipeline: Pipeline, call: ScriptCall, *, repeatable: bool) -> Reply:
        try:
            return await pipeline.call(call, repeatable=repeatable)
        except StoreLost as lost:  # the script can name only the key where it looked
            raise attrs.evolve(lost, pool=self.control.pool) from None


def nonce(io: IO) -> str:
    """Draw what makes the stamps of one call's writes unlike all others."""
    return f"{io.dice.getrandbits(64):016x}"


@attrs.define(eq=False)
class SnapshotPages:
    """The whole of a map, as it is fetched: one call a page, of any connection.

    What is here stays here whatever fails; a page that did not come is asked for again, half as
    large.  Only if the map's history does not lead on from the page before (its log was trimmed, or
    the server went back) all begins anew.
    """

    stored: StoredMap
    generation: str
    is_begun: bool = attrs.field(init=False, default=False)  # a page is here
    _gathering: Gathering = attrs.field(init=False, factory=Gathering)
    _strings_at: bytes = attrs.field(init=False, default=b"0")
    _lists_at: bytes = attrs.field(init=False, default=_LISTS)
    _foreign: int = attrs.field(init=False, default=0)  # among the lists' items
    _odd: set[bytes] = attrs.field(init=False, factory=set)  # fields that are none of ours
    _bytes_max: int = attrs.field(init=False, default=PAGE_BYTES_MAX)

    async def fetch(self, pipeline: Pipeline) -> MapState | None:
        """Fetch the next page, when it is its turn; return the map if that was the last.

        Costs what the page holds on the server.

        Raises:
            StoreLost: The pool of this generation is not there any more.
            StoreUnavailable: No answer in time; or the next page did not continue those before, as
                the map changes faster than it comes, and all begins anew.
        """
        stored, control = self.stored, self.stored.control
        keys = (control.config, control.maps, stored.data, stored.lists, stored.log)
        at = self._gathering.at
        reached = "" if at is None else at.revision
        where = (self._bytes_max, reached, self._strings_at, self._lists_at)
        call = PAGE(keys, (self.generation, nonce(pipeline.io), *where))
        async with pipeline.pages.turn() as turn:
            try:
                # Whoever repeats it asks for less: not `repeatable`.
                paged = await stored._call(pipeline, call, repeatable=False)
            except StoreUnavailable:
                self._bytes_max = max(self._bytes_max // 2, PAGE_BYTES_MIN)
                raise
            turn.size = 0 if paged is None else paged.size
        if paged is None:
            await stored.reset(pipeline, self.generation, ResetOp("expire"))
            self._begin_anew()
            return None
        self._bytes_max = min(2 * self._bytes_max, PAGE_BYTES_MAX)
        if not self._gathering.add(self._page(paged)):
            self._begin_anew()
            problem = "it changed so much that the next part does not continue those before"
            raise StoreUnavailable(problem=problem, maybe_done=False)
        self.is_begun = True
        return self._gathering.state() if self._gathering.is_over else None

    def _begin_anew(self) -> None:
        self._gathering, self._foreign, self._odd = Gathering(), 0, set()
        self._strings_at, self._lists_at, self.is_begun = b"0", _LISTS, False

    def _page(self, paged: _Paged) -> Page:
        lists, foreign = _lists(paged.members)
        self._foreign += foreign
        ours = {field[1:]: value for field, value in paged.fields.items() if field[:1] == b"="}
        self._odd.update(each for each in paged.fields if each[:1] != b"=" and each != b"at")
        self._strings_at = paged.strings_at
        if paged.members:
            self._lists_at = _behind(paged.members[-1])
        reached = self._lists_at[1:]
        strings_count, listed_count = paged.counts
        return Page(
            Position(self.generation, paged.revision, paged.stamp),
            paged.deltas,
            paged.has_more,
            ours,
            lists,
            lambda key: _end_of(key) <= reached,
            paged.is_last,
            strings_count - len(self._odd),
            listed_count - self._foreign,
        )


def probe_call(
    control: Control,
    generation: str,
    maps: Sequence[StoredMap],
    *,
    expected_ms: int = 0,
    ended_max: int = ENDED_MAX,
    logs: bool = False,
) -> ScriptCall:
    """Return the call that asks where all these maps are, and which maps' time is up.

    `expected_ms` is the maps' time by the caller's own measure; 0: it has none.  With `logs` it
    looks whether these can be read.
    """
    keys = [control.config, control.maps, control.map_due]
    for each in maps:
        keys += (each.data, each.lists, each.log)
    args: list[Word] = [generation, expected_ms, ended_max, LATE_MS, int(logs)]
    args += [each.name for each in maps]
    return PROBE(keys, args, parts=3 + _OF_A_PROBE * len(maps))


def damaged(control: Control, probe: Probe) -> frozenset[str]:
    """Return which of the keys that all maps share a probe found foreign data at."""
    keys = (control.maps, control.map_due)
    return frozenset(key for n, key in enumerate(keys) if probe.foreign & 1 << n)


def probed(generation: str, maps: Sequence[StoredMap], probe: Probe) -> list[Probed]:
    """Return what a probe says of each of the maps that it asked for, in that order."""
    told = []
    for stored, (at, counts, wrong) in zip(maps, probe.maps, strict=True):
        keys = ("", stored.data, stored.lists, stored.log, stored.lists)
        where = None if at is None else Position(generation, *at)
        told.append(Probed(where, counts=counts, damaged=keys[wrong]))
    return told


def expire_calls(
    io: IO, control: Control, generation: str, names: Sequence[bytes]
) -> list[ScriptCall]:
    """Return the calls that end those maps whose time a probe found to be up."""
    calls = []
    for name in names:
        try:
            stored = StoredMap(control, name.decode())
        except (UnicodeDecodeError, ConfigError):
            continue  # foreign: no map of ours can have this name
        calls.append(stored.reset_call(io, generation, ResetOp("expire")))
    return calls


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
        made, stamp, after = fields["at"].split(b" ")
        before, _, was = after.partition(b"-")
        return Delta(
            Position(made.decode(), revision, _stamp(stamp)),
            (int(before), _stamp(was)),
            tuple(_edits(fields["edits"])),
        )
    except (KeyError, ValueError, IndexError):
        return Delta(Position(_NO_GENERATION, revision, NO_STAMP), (0, ""), ())


def _edits(packed: bytes) -> Iterator[Edit]:
    at = 0
    while at < len(packed):
        letter = packed[at : at + 1]
        at += 1
        if letter == b"*":
            yield "*", b"", b""
            continue
        key, at = _string(packed, at)
        if letter == b"-":
            yield "-", key, b""
            continue
        value, at = _string(packed, at)
        match letter:
            case b"+":
                yield "+", key, value
            case b"a":
                yield "a", key, value
            case b"r":
                yield "r", key, value
            case _:
                raise ValueError(letter)


def _string(packed: bytes, at: int) -> tuple[bytes, int]:
    colon = packed.index(b":", at)
    # `int()` alone would take a negative length, which leads back: the same edit again, for ever.
    end = colon + 1 + number(packed[at:colon], _DIGITS_MAX)
    if end > len(packed):
        raise ValueError(end)
    return packed[colon + 1 : end], end


def _end_of(key: bytes) -> bytes:
    """Return what all members of the key's list are below."""
    return b"l%d:%s:" % (len(key), key)  # digits come there, and ':' follows '9'


def _behind(member: bytes) -> bytes:
    """Return from where the members behind this one are read.  The value is not needed for that."""
    try:
        _, at = _string(member, 1)  # behind its letter
    except ValueError:
        return b"(" + member
    digits = member[at : at + _DIGITS]
    following = b"%0*d" % (_DIGITS, int(digits) + 1) if digits.isdigit() else b""
    return b"[" + member[:at] + following if len(following) == _DIGITS else b"(" + member


def _lists(members: Sequence[bytes]) -> tuple[dict[bytes, list[bytes]], int]:
    """Return what members of `lists` say, which come list by list, in order.

    A member that is none of ours is left out, and counted: another hand may have put it there.
    """
    foreign = 0
    found: dict[bytes, list[bytes]] = {}
    held: list[bytes] = []
    head = b"?"  # no member begins like that
    for member in members:
        if not member.startswith(head):  # parsing each one's head would cost three times as much
            try:
                key, at = _string(member, 1)  # behind its letter
            except ValueError:
                foreign += 1
                continue
            head, held = member[:at], found.setdefault(key, [])
        held.append(member[len(head) + _DIGITS :])
    return found, foreign


def _words(ops: Sequence[Op]) -> list[Word]:
    if not 0 < len(ops) <= OPS_MAX:
        raise InvalidOption(
            option="ops", value=str(len(ops)), problem=f"1 to {OPS_MAX} operations in one write"
        )
    words: list[Word] = []
    for op in ops:
        match op:
            case Set(key=key, value=value, is_told=is_told):
                words += "set" if is_told else "put", _key(key), _value(value)
            case SetIfNotExists(key=key, value=value):
                words += "set_if_not_exists", _key(key), _value(value)
            case CompareAndSet(key=key, expected=expected, value=value):
                words += "compare_and_set", _key(key), _value(expected), _value(value)
            case Delete(key=key):
                words += "delete", _key(key)
            case CompareAndDelete(key=key, expected=expected):
                words += "compare_and_delete", _key(key), _value(expected)
            case Increment(key=key, by=by):
                words += "increment", _key(key), by
    return words


def _key(key: bytes) -> bytes:
    return _sized("map key", key, MAP_KEY_BYTES_MAX)


def _value(value: bytes) -> bytes:
    return _sized("map value", value, MAP_VALUE_BYTES_MAX)


def _sized(what: str, given: bytes, size_bytes_max: int) -> bytes:
    if len(given) > size_bytes_max:
        raise PayloadTooLarge(what=what, size_bytes=len(given), size_bytes_max=size_bytes_max)
    return given
