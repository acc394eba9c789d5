"""The stream commands of the simulated server, with consumer groups: Redis 7.2's, on dicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import attrs

Value: TypeAlias = Any  # what a command returns: bytes, int, None, a list of these
StreamId: TypeAlias = tuple[int, int]

_SEQ_MAX: Final = 2**64 - 1
_LAST: Final = (_SEQ_MAX, _SEQ_MAX)


class CommandError(Exception):
    """An error reply; its text is what a client would get."""


@attrs.define
class Nack:
    """One event that was given to a consumer and is not acknowledged."""

    consumer: bytes
    given_ms: int
    times: int


@attrs.define
class Group:
    """A consumer group; consumer -> when it was last heard of."""

    last: StreamId
    read: int | None = 0  # events up to `last`; None: nobody knows
    consumers: dict[bytes, int] = attrs.field(factory=dict)
    pending: dict[StreamId, Nack] = attrs.field(factory=dict)

    def copy(self) -> Group:
        pending = {entry_id: attrs.evolve(nack) for entry_id, nack in self.pending.items()}
        return Group(self.last, self.read, dict(self.consumers), pending)

    def of(self, consumer: bytes) -> list[StreamId]:
        """Return what waits under a consumer's name, the oldest first."""
        return sorted(each for each, nack in self.pending.items() if nack.consumer == consumer)


class Stream:
    """Entries in the order of their ids; `last` outlives them."""

    def __init__(self) -> None:
        self.entries: dict[StreamId, list[bytes]] = {}
        # Trimmed and deleted entries too: a copy of older data brings back which entry had an id.
        self.ever_added: dict[StreamId, list[bytes]] = {}
        self.last: StreamId = (0, 0)
        self.added = 0
        self.deleted: StreamId = (0, 0)  # the newest that XDEL took
        self.groups: dict[bytes, Group] = {}

    def copy(self) -> Stream:
        made = Stream()
        made.entries, made.last = dict(self.entries), self.last
        made.ever_added = dict(self.ever_added)
        made.added, made.deleted = self.added, self.deleted
        made.groups = {name: group.copy() for name, group in self.groups.items()}
        return made

    def between(self, low: StreamId, high: StreamId, count: int = -1) -> list[Value]:
        found: list[Value] = []
        for entry_id, fields in self.entries.items():
            if low <= entry_id <= high:
                found.append([id_text(entry_id), fields])
                if len(found) == count:
                    break
        return found

    def shorten(self, how: bytes, least: bytes, spare: int = 1) -> list[bytes]:
        """Trim to a length, or to a first id; `spare` entries are not worth it."""
        if how == b"MAXLEN":
            over = len(self.entries) - int(least)
            gone = list(self.entries)[:over] if over >= spare else []
        else:
            first = parse_id(least, 0)
            gone = [each for each in self.entries if each < first]
            gone = gone if len(gone) >= spare else []
        for each in gone:
            del self.entries[each]
        return list(map(id_text, gone))


@attrs.frozen
class Read:
    """What a blocking read asks; as a consumer of a group, if one is named."""

    positions: tuple[tuple[bytes, bytes], ...]
    count: int
    block_ms: int | None
    group: bytes = b""
    consumer: bytes = b""
    is_no_ack: bool = False

    @classmethod
    def of(cls, words: Sequence[bytes]) -> Read:
        """Read the words of XREAD or XREADGROUP."""
        at, count, block_ms, is_no_ack = 1, -1, None, False
        group = consumer = b""
        while (option := words[at].upper()) != b"STREAMS":
            match option:
                case b"COUNT":
                    count = int(words[at + 1]) or -1
                case b"BLOCK":
                    block_ms = int(words[at + 1])
                case b"GROUP":
                    group, consumer = words[at + 1 : at + 3]
                    at += 1
                case b"NOACK":
                    is_no_ack = True
                    at -= 1
                case _:
                    raise CommandError("ERR syntax error")
            at += 2
        names = words[at + 1 :]
        half = len(names) // 2
        positions = tuple(zip(names[:half], names[half:], strict=True))
        return cls(positions, count, block_ms, group, consumer, is_no_ack)


class StreamCommands:
    """The part of a keyspace that knows streams."""

    now_us: Callable[[], int]
    keys: dict[bytes, Any]
    # Streams that got an entry, or that are gone, since this was last taken: who waits must look.
    appended: dict[bytes, None]
    on_append: Callable[[bytes, bytes, Sequence[bytes]], object]
    on_give: Callable[[bytes, bytes, bytes, bytes], object]  # key, group, consumer, id
    on_ack: Callable[[bytes, bytes, bytes], object]  # key, group, id
    on_drop: Callable[[bytes, Sequence[bytes]], object]  # key, ids that were trimmed

    def _of(self, key: bytes, kind: type) -> Any:
        raise NotImplementedError

    def _make(self, key: bytes, kind: type) -> Any:
        raise NotImplementedError

    @property
    def _now_ms(self) -> int:
        return self.now_us() // 1000

    # --- entries ---

    def do_xadd(self, key: bytes, *words: Any) -> Value:
        at, may_make = 0, True
        trim: tuple[bytes, bytes, int] | None = None
        while True:
            option = words[at]
            if option == b"NOMKSTREAM":
                may_make = False
                at += 1
            elif option in (b"MAXLEN", b"MINID"):
                at, trim = _trimming(words, at)
            else:
                break
        if not may_make and self._of(key, Stream) is None:
            return None
        is_new = self._of(key, Stream) is None
        found = self._make(key, Stream)
        entry_id = self._next_id(found, words[at])
        if entry_id <= found.last:
            if is_new:
                del self.keys[key]
            raise CommandError(
                "ERR The ID specified in XADD is equal or smaller than the target stream top item"
            )
        found.entries[entry_id] = found.ever_added[entry_id] = list(words[at + 1 :])
        found.last = entry_id
        found.added += 1
        self.appended[key] = None
        self.on_append(key, id_text(entry_id), words[at + 1 :])
        if trim is not None:
            self._shorten(key, found, trim)
        return id_text(entry_id)

    def _next_id(self, stream: Stream, asked: bytes) -> StreamId:
        last_ms, number = stream.last
        if asked == b"*":
            now_ms = self._now_ms
            return (now_ms, 0) if now_ms > last_ms else (last_ms, number + 1)
        if asked.endswith(b"-*"):
            ms = int(asked[:-2])
            return (ms, number + 1) if ms == last_ms else (ms, 0)
        return parse_id(asked, 0)

    def do_xdel(self, key: bytes, *ids: Any) -> Value:
        found = self._of(key, Stream)
        gone = 0
        for entry_id in (parse_id(each, 0) for each in (ids if found is not None else ())):
            if found.entries.pop(entry_id, None) is not None:
                gone += 1
                found.deleted = max(found.deleted, entry_id)
        return gone

    def do_xlen(self, key: bytes) -> Value:
        found = self._of(key, Stream)
        return 0 if found is None else len(found.entries)

    def do_xrange(self, key: bytes, low: Any, high: Any, *options: Any) -> Value:
        found = self._of(key, Stream)
        if found is None:
            return []
        first, last = _range(low, high)
        if first == last and not options:
            fields = found.entries.get(first)
            return [] if fields is None else [[id_text(first), fields]]
        return found.between(first, last, int(options[1]) if options else -1)

    def do_xrevrange(self, key: bytes, high: Any, low: Any, *options: Any) -> Value:
        return self.do_xrange(key, low, high)[::-1][: int(options[1]) if options else None]

    def do_xtrim(self, key: bytes, *words: Any) -> Value:
        found = self._of(key, Stream)
        return 0 if found is None else self._shorten(key, found, _trimming(words, 0)[1])

    def _shorten(self, key: bytes, stream: Stream, trim: tuple[bytes, bytes, int]) -> int:
        gone = stream.shorten(*trim)
        if gone:
            self.on_drop(key, gone)
        return len(gone)

    # --- groups ---

    def do_xgroup(self, what: bytes, key: bytes, name: bytes, *words: Any) -> Value:
        found = self._of(key, Stream)
        if found is None:
            if what != b"CREATE" or b"MKSTREAM" not in words:
                raise CommandError(
                    "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you "
                    "may want to use the MKSTREAM option to create an empty stream automatically."
                )
            found = self._make(key, Stream)
        match what:
            case b"CREATE":
                if name in found.groups:
                    raise CommandError("BUSYGROUP Consumer Group name already exists")
                last = found.last if words[0] == b"$" else parse_id(words[0], 0)
                read = found.added if last >= found.last else 0 if last == (0, 0) else None
                found.groups[name] = Group(last, read)
                return b"OK"
            case b"DESTROY":
                self.appended[key] = None
                return int(found.groups.pop(name, None) is not None)
        group = self._group(key, name)
        match what:
            case b"SETID":
                group.last = found.last if words[0] == b"$" else parse_id(words[0], 0)
                return b"OK"
            case b"CREATECONSUMER":
                return int(self._consumer(group, words[0]))
            case b"DELCONSUMER":
                held = group.of(words[0])
                for each in held:
                    del group.pending[each]
                group.consumers.pop(words[0], None)
                return len(held)
        raise CommandError("ERR unknown subcommand")

    def _group(self, key: bytes, name: bytes, error: str = "") -> Group:
        found = self._of(key, Stream)
        group = None if found is None else found.groups.get(name)
        if group is None:
            error = error or "No such consumer group '{name}' for key name '{key}'"
            told = error.format(key=key.decode(), name=name.decode())
            raise CommandError(f"NOGROUP {told}")
        return group  # type: ignore[no-any-return]

    def _consumer(self, group: Group, name: bytes) -> bool:
        """Have a consumer be there; say whether it was made."""
        is_new = name not in group.consumers
        group.consumers[name] = self._now_ms
        return is_new

    def _has_waited(self, nack: Nack, idle_ms: Any) -> bool:
        """Say whether it was given so long ago; with 0 no clock is asked, which may be behind."""
        return not int(idle_ms) or self._now_ms - nack.given_ms >= int(idle_ms)

    def do_xack(self, key: bytes, name: bytes, *ids: Any) -> Value:
        found = self._of(key, Stream)
        group = None if found is None else found.groups.get(name)
        if group is None:
            return 0
        done = 0
        for each in ids:
            if group.pending.pop(parse_id(each, 0), None) is not None:
                done += 1
                self.on_ack(key, name, each)
        return done

    def do_xpending(self, key: bytes, name: bytes, *words: Any) -> Value:
        group = self._group(key, name, "No such key '{key}' or consumer group '{name}'")
        if not words:
            ids = sorted(group.pending)
            held: dict[bytes, int] = {}
            for nack in group.pending.values():
                held[nack.consumer] = held.get(nack.consumer, 0) + 1
            if not ids:
                return [0, None, None, None]
            counts = [[consumer, b"%d" % held[consumer]] for consumer in sorted(held)]
            return [len(ids), id_text(ids[0]), id_text(ids[-1]), counts]
        idle_ms = 0
        if words[0].upper() == b"IDLE":
            idle_ms, words = int(words[1]), words[2:]
        low, high = _range(words[0], words[1])
        now_ms, count = self._now_ms, int(words[2])
        answer: list[Value] = []
        for entry_id in group.of(words[3]) if len(words) > 3 else sorted(group.pending):
            nack = group.pending[entry_id]
            is_asked = low <= entry_id <= high and self._has_waited(nack, idle_ms)
            if is_asked and len(answer) < count:
                since_ms = max(0, now_ms - nack.given_ms)
                answer.append([id_text(entry_id), nack.consumer, since_ms, nack.times])
        return answer

    def do_xclaim(
        self, key: bytes, name: bytes, consumer: bytes, idle_ms: Any, *words: Any
    ) -> Value:
        group = self._group(key, name, "No such key '{key}' or consumer group '{name}'")
        ids = []
        for word in words:
            if not word[:1].isdigit():
                break
            ids.append(parse_id(word, 0))
        options = list(words[len(ids) :])
        given_ms, times, is_forced, has_just_ids = self._now_ms, -1, False, False
        while options:
            match options.pop(0).upper():
                case b"RETRYCOUNT":
                    times = int(options.pop(0))
                case b"IDLE":
                    given_ms = self._now_ms - int(options.pop(0))
                case b"TIME":
                    given_ms = int(options.pop(0))
                case b"LASTID":
                    group.last = max(group.last, parse_id(options.pop(0), 0))
                case b"FORCE":
                    is_forced = True
                case b"JUSTID":
                    has_just_ids = True
                case _:
                    raise CommandError("ERR syntax error")
        self._consumer(group, consumer)
        entries, answer = self.keys[key].entries, []
        for entry_id in ids:
            nack = group.pending.get(entry_id)
            if entry_id not in entries:
                group.pending.pop(entry_id, None)
                continue
            if nack is None:
                if not is_forced:
                    continue
                nack = group.pending[entry_id] = Nack(b"", 0, 1)
            elif not self._has_waited(nack, idle_ms):
                continue
            count = times if times >= 0 else nack.times + (not has_just_ids)
            nack.consumer, nack.given_ms, nack.times = consumer, given_ms, count
            self.on_give(key, name, consumer, id_text(entry_id))
            text = id_text(entry_id)
            answer.append(text if has_just_ids else [text, entries[entry_id]])
        return answer

    def do_xautoclaim(
        self, key: bytes, name: bytes, consumer: bytes, idle_ms: Any, start: Any, *words: Any
    ) -> Value:
        group = self._group(key, name, "No such key '{key}' or consumer group '{name}'")
        count, has_just_ids = 100, b"JUSTID" in words
        if b"COUNT" in words:
            count = int(words[words.index(b"COUNT") + 1])
        self._consumer(group, consumer)
        entries, gone, left = [], [], 10 * count
        rest = [each for each in sorted(group.pending) if each >= parse_id(start, 0)]
        while rest and left > 0 and count > 0:
            entry_id = rest.pop(0)
            left -= 1
            if entry_id not in self.keys[key].entries:
                del group.pending[entry_id]
                gone.append(id_text(entry_id))
                count -= 1
                continue
            if not self._has_waited(group.pending[entry_id], idle_ms):
                continue
            options = [b"JUSTID"] if has_just_ids else []
            entries += self.do_xclaim(key, name, consumer, b"0", id_text(entry_id), *options)
            count -= 1
        return [id_text(rest[0]) if rest else b"0-0", entries, gone]

    def do_xinfo(self, what: bytes, key: bytes, *words: Any) -> Value:
        found = self._of(key, Stream)
        if found is None:
            raise CommandError("ERR no such key")
        match what.upper():
            case b"STREAM":
                ends = (min(found.entries, default=None), max(found.entries, default=None))
                first, last = (None if e is None else [id_text(e), found.entries[e]] for e in ends)
                return [
                    *(b"length", len(found.entries), b"radix-tree-keys", 1),
                    *(b"radix-tree-nodes", 2, b"last-generated-id", id_text(found.last)),
                    *(b"max-deleted-entry-id", id_text(found.deleted)),
                    *(b"entries-added", found.added),
                    *(b"recorded-first-entry-id", b"0-0" if first is None else first[0]),
                    *(b"groups", len(found.groups), b"first-entry", first, b"last-entry", last),
                ]
            case b"GROUPS":
                return [
                    [
                        *(b"name", name, b"consumers", len(group.consumers)),
                        *(b"pending", len(group.pending)),
                        *(b"last-delivered-id", id_text(group.last), b"entries-read", group.read),
                        *(b"lag", None if group.read is None else found.added - group.read),
                    ]
                    for name, group in sorted(found.groups.items())
                ]
            case b"CONSUMERS":
                group = self._group(key, words[0])
                return [
                    [
                        *(b"name", name, b"pending", len(group.of(name))),
                        *(b"idle", self._now_ms - heard_ms, b"inactive", -1),
                    ]
                    for name, heard_ms in sorted(group.consumers.items())
                ]
        raise CommandError("ERR unknown subcommand")

    # --- reading ---

    def do_xread(self, *words: Any) -> Value:
        return self.read(Read.of((b"XREAD", *words)))

    def do_xreadgroup(self, *words: Any) -> Value:
        return self.read(Read.of((b"XREADGROUP", *words)))

    def read(self, asked: Read) -> Value:
        """Return what a read would without waiting, or None."""
        answer: list[Value] = []
        if not asked.group:
            for key, position in asked.positions:
                stream = self._of(key, Stream)
                if stream is not None:
                    ms, number = stream.last if position == b"$" else parse_id(position, 0)
                    entries = stream.between((ms, number + 1), _LAST, asked.count)
                    if entries:
                        answer.append([key, entries])
            return answer or None
        told = "No such key '{key}' or consumer group '{name}' in XREADGROUP with GROUP option"
        groups = [self._group(key, asked.group, told) for key, _ in asked.positions]
        for group, (key, position) in zip(groups, asked.positions, strict=True):
            self._consumer(group, asked.consumer)
            if position != b">":
                answer.append([key, [*self._given_before(key, group, asked, position)]])
            elif entries := self._given_now(key, group, asked):
                answer.append([key, entries])
        return answer or None

    def _given_before(
        self, key: bytes, group: Group, asked: Read, position: bytes
    ) -> Iterator[list[Value]]:
        behind, entries = parse_id(position, 0), self.keys[key].entries
        ids = [each for each in group.of(asked.consumer) if each > behind]
        for entry_id in ids[: asked.count if asked.count > 0 else None]:
            fields = entries.get(entry_id)
            if fields is not None:
                nack = group.pending[entry_id]
                nack.given_ms, nack.times = self._now_ms, nack.times + 1
            yield [id_text(entry_id), fields]

    def _given_now(self, key: bytes, group: Group, asked: Read) -> list[Value]:
        ms, number = group.last
        entries: list[Value] = self.keys[key].between((ms, number + 1), _LAST, asked.count)
        for text, _ in entries:
            group.last = parse_id(text, 0)
            group.read = None if group.read is None else group.read + 1
            if not asked.is_no_ack:
                group.pending[group.last] = Nack(asked.consumer, self._now_ms, 1)
            self.on_give(key, asked.group, asked.consumer, text)
        return entries


def _trimming(words: Sequence[bytes], at: int) -> tuple[int, tuple[bytes, bytes, int]]:
    """Return what follows MAXLEN or MINID and its words, and these; `~` leaves whole nodes."""
    how, at, spare = words[at].upper(), at + 1, 1
    if words[at] in (b"~", b"="):
        spare = 100 if words[at] == b"~" else 1
        at += 1
    least = words[at]
    at += 1
    if at < len(words) and words[at].upper() == b"LIMIT":
        at += 2
    return at, (how, least, spare)


def _range(low: bytes, high: bytes) -> tuple[StreamId, StreamId]:
    first = (0, 0) if low == b"-" else parse_id(low, 0)
    if high == b"+":
        return first, _LAST
    ms, number = parse_id(high.removeprefix(b"("), _SEQ_MAX)
    if high.startswith(b"("):
        ms, number = (ms, number - 1) if number else (ms - 1, _SEQ_MAX)
    return first, (ms, number)


def id_text(entry_id: StreamId) -> bytes:
    """Return an id as it is written."""
    return b"%d-%d" % entry_id


def parse_id(text: bytes, number: int) -> StreamId:
    """Read an id; of one that is left out ("("), the next."""
    is_left_out = text.startswith(b"(")
    ms, dash, rest = text.removeprefix(b"(").partition(b"-")
    try:
        return int(ms), (int(rest) if dash else number) + is_left_out
    except ValueError:
        raise CommandError("ERR Invalid stream ID specified as stream command argument") from None
