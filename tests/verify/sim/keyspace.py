"""A Redis in a few hundred lines: the commands that our scripts and nodes use, on Python's dicts.

It is no model of the pool: the pool's scripts run on it as they are (`scripting.py`), and a
differential test holds it to a real server, command by command and script by script.  What is not
here raises, so that a script which begins to use another command is noticed.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final
from zlib import crc32

from tests.verify.sim.streams import CommandError, Stream, StreamCommands, Value

_WRONG: Final = "WRONGTYPE Operation against a key holding the wrong kind of value"


# What the server refuses when its memory is up, and what it counts as a write.
_GROWING: Final = frozenset(
    {b"SET", b"HSET", b"HSETNX", b"HINCRBY", b"SADD", b"ZADD", b"RPUSH", b"XADD"}
)
_GROUPS: Final = frozenset({b"CREATE", b"CREATECONSUMER"})  # of XGROUP
WRITING: Final = _GROWING | {
    *(b"DEL", b"UNLINK", b"PEXPIRE", b"PEXPIREAT", b"PERSIST", b"HDEL", b"SREM", b"ZREM"),
    *(
        b"LTRIM",
        b"XDEL",
        b"XTRIM",
        b"ZREMRANGEBYLEX",
        b"ZREMRANGEBYRANK",
        b"ZREMRANGEBYSCORE",
        b"XGROUP",
    ),
    *(b"XREADGROUP", b"XACK", b"XCLAIM", b"XAUTOCLAIM"),
}


def grows(name: bytes, args: Sequence[Any]) -> bool:
    """Say whether a command is refused when the server's memory is up."""
    return name in _GROWING or (name == b"XGROUP" and args[0] in _GROUPS)


class SortedSet:
    """Members by score, and by name where scores are equal."""

    def __init__(self) -> None:
        self.scores: dict[bytes, float] = {}
        self.order: list[tuple[float, bytes]] = []

    def add(self, member: bytes, score: float) -> bool:
        had = self.scores.get(member)
        if had is not None:
            if had != score:
                del self.order[bisect_left(self.order, (had, member))]
                insort(self.order, (score, member))
                self.scores[member] = score
            return False
        self.scores[member] = score
        insort(self.order, (score, member))
        return True

    def remove(self, member: bytes) -> bool:
        score = self.scores.pop(member, None)
        if score is None:
            return False
        del self.order[bisect_left(self.order, (score, member))]
        return True

    def copy(self) -> SortedSet:
        made = SortedSet()
        made.scores, made.order = dict(self.scores), list(self.order)
        return made


class Keyspace(StreamCommands):
    """All keys of one server, with a clock that is told what time it is."""

    def __init__(self, now_us: Callable[[], int], dice: random.Random) -> None:
        self.keys: dict[bytes, Any] = {}
        self.expires_ms: dict[bytes, int] = {}
        self.appended: dict[bytes, None] = {}
        self.on_append: Callable[[bytes, bytes, Sequence[bytes]], object] = lambda *_: None
        self.on_set: Callable[[bytes, bytes], object] = lambda *_: None
        self.on_give: Callable[[bytes, bytes, bytes, bytes], object] = lambda *_: None
        self.on_ack: Callable[[bytes, bytes, bytes], object] = lambda *_: None
        self.on_drop: Callable[[bytes, Sequence[bytes]], object] = lambda *_: None
        self.now_us = self._now_us = now_us
        self.run_id = b"run0"  # of the server whose turn it is
        self._dice = dice
        self._commands: dict[bytes, Callable[..., Value]] = {
            name.removeprefix("do_").upper().encode(): getattr(self, name)
            for name in dir(self)
            if name.startswith("do_")
        }

    def copy_of_all(self) -> tuple[dict[bytes, Any], dict[bytes, int]]:
        """Return a copy of everything, which `restore` takes."""
        return {key: _copy(value) for key, value in self.keys.items()}, dict(self.expires_ms)

    def restore(self, saved: tuple[dict[bytes, Any], dict[bytes, int]]) -> None:
        """Hold what was saved and nothing else."""
        self.keys = {key: _copy(value) for key, value in saved[0].items()}
        self.expires_ms = dict(saved[1])

    def run(self, name: bytes, *args: Any) -> Value:
        """Run one command."""
        command = self._commands.get(name) or self._commands.get(name.upper())
        if command is None:
            raise CommandError(f"ERR unknown command '{name.decode()}'")
        return command(*args)

    # --- keys ---

    def _of(self, key: bytes, kind: type) -> Any:
        self._expire(key)
        value = self.keys.get(key)
        if value is not None and type(value) is not kind:
            raise CommandError(_WRONG)
        return value

    def _make(self, key: bytes, kind: type) -> Any:
        value = self._of(key, kind)
        if value is None:
            value = self.keys[key] = kind()
        return value

    def _drop_if_empty(self, key: bytes, value: Any) -> None:
        if not value:
            del self.keys[key]

    def _expire(self, key: bytes) -> None:
        end_ms = self.expires_ms.get(key)
        if end_ms is not None and end_ms <= self._now_us() // 1000:
            del self.expires_ms[key]
            self.keys.pop(key, None)
            self.appended[key] = None

    def do_info(self, _: bytes) -> Value:
        return b"# Server\r\nrun_id:%b\r\n" % self.run_id

    def do_time(self) -> Value:
        now_us = self._now_us()
        return [b"%d" % (now_us // 1_000_000), b"%d" % (now_us % 1_000_000)]

    def do_ping(self, text: bytes = b"PONG") -> Value:
        return text

    def do_del(self, *keys: bytes) -> Value:
        found = 0
        for key in keys:
            self._expire(key)
            self.expires_ms.pop(key, None)
            if self.keys.pop(key, None) is not None:
                self.appended[key] = None
                found += 1
        return found

    def do_unlink(self, *keys: bytes) -> Value:
        return self.do_del(*keys)

    def do_exists(self, *keys: bytes) -> Value:
        for key in keys:
            self._expire(key)
        return sum(key in self.keys for key in keys)

    def do_type(self, key: bytes) -> Value:
        self._expire(key)
        value = self.keys.get(key)
        return Status(b"none" if value is None else _KINDS[type(value)])

    def do_pexpire(self, key: bytes, ttl_ms: Any, *options: bytes) -> Value:
        return self.do_pexpireat(key, self._now_us() // 1000 + int(ttl_ms), *options)

    def do_pexpireat(self, key: bytes, end_ms: Any, *options: bytes) -> Value:
        self._expire(key)
        had, end_ms = self.expires_ms.get(key), int(end_ms)
        fits = {
            (): True,
            (b"NX",): had is None,
            (b"XX",): had is not None,
            (b"GT",): had is not None and end_ms > had,
            (b"LT",): had is None or end_ms < had,
        }
        if key not in self.keys or not fits[options]:
            return 0
        self.expires_ms[key] = end_ms
        self._expire(key)
        return 1

    def do_pexpiretime(self, key: bytes) -> Value:
        self._expire(key)
        return self.expires_ms.get(key, -1) if key in self.keys else -2

    def do_pttl(self, key: bytes) -> Value:
        end_ms = self.do_pexpiretime(key)
        return end_ms - self._now_us() // 1000 if end_ms >= 0 else end_ms

    def do_persist(self, key: bytes) -> Value:
        self._expire(key)
        return int(self.expires_ms.pop(key, None) is not None)

    def do_get(self, key: bytes) -> Value:
        self._expire(key)
        return self._of(key, bytes)

    def do_strlen(self, key: bytes) -> Value:
        return len(self.do_get(key) or b"")

    def do_set(self, key: bytes, value: bytes, *options: Any) -> Value:
        assert not options or options[0].upper() == b"PX"
        if type(self.keys.get(key)) is Stream:
            self.appended[key] = None
        self.keys[key] = value
        self.expires_ms.pop(key, None)
        self.on_set(key, value)
        if options:
            self.expires_ms[key] = self._now_us() // 1000 + int(options[1])
        return b"OK"

    # --- hashes ---

    def do_hget(self, key: bytes, field: bytes) -> Value:
        found = self._of(key, dict)
        return None if found is None else found.get(field)

    def do_hmget(self, key: bytes, *fields: bytes) -> Value:
        found = self._of(key, dict) or {}
        return [found.get(field) for field in fields]

    def do_hgetall(self, key: bytes) -> Value:
        found = self._of(key, dict) or {}
        return [part for pair in found.items() for part in pair]

    def do_hkeys(self, key: bytes) -> Value:
        return list(self._of(key, dict) or ())

    def do_hlen(self, key: bytes) -> Value:
        return len(self._of(key, dict) or ())

    def do_hexists(self, key: bytes, field: bytes) -> Value:
        return int(field in (self._of(key, dict) or ()))

    def do_hset(self, key: bytes, *pairs: bytes) -> Value:
        found = self._make(key, dict)
        before = len(found)
        for field, value in zip(pairs[::2], pairs[1::2], strict=True):
            found[field] = value
        return len(found) - before

    def do_hsetnx(self, key: bytes, field: bytes, value: bytes) -> Value:
        found = self._make(key, dict)
        if field in found:
            return 0
        found[field] = value
        return 1

    def do_hstrlen(self, key: bytes, field: bytes) -> Value:
        return len((self._of(key, dict) or {}).get(field, b""))

    def do_hincrby(self, key: bytes, field: bytes, by: Any) -> Value:
        found = self._make(key, dict)
        value = int(found.get(field, 0)) + int(by)
        found[field] = b"%d" % value
        return value

    def do_hdel(self, key: bytes, *fields: bytes) -> Value:
        found = self._of(key, dict)
        if found is None:
            return 0
        gone = sum(found.pop(field, None) is not None for field in fields)
        self._drop_if_empty(key, found)
        return gone

    def do_hscan(self, key: bytes, cursor: Any, _: bytes, count: Any) -> Value:
        found = self._of(key, dict) or {}
        following, slice_ = _scanned(found, cursor, count)
        return [following, [part for field in slice_ for part in (field, found[field])]]

    # --- sets (dicts without values, so that their order is defined) ---

    def _set(self, key: bytes) -> dict[bytes, None]:
        found: Any = self._of(key, _Set)
        return found or {}

    def do_sadd(self, key: bytes, *members: bytes) -> Value:
        found = self._make(key, _Set)
        before = len(found)
        found.update(dict.fromkeys(members))
        return len(found) - before

    def do_srem(self, key: bytes, *members: bytes) -> Value:
        found = self._of(key, _Set)
        if found is None:
            return 0
        gone = 0
        for member in members:
            if member in found:
                del found[member]
                gone += 1
        self._drop_if_empty(key, found)
        return gone

    def do_sismember(self, key: bytes, member: bytes) -> Value:
        return int(member in self._set(key))

    def do_smismember(self, key: bytes, *members: bytes) -> Value:
        return [int(member in self._set(key)) for member in members]

    def do_scard(self, key: bytes) -> Value:
        return len(self._set(key))

    def do_smembers(self, key: bytes) -> Value:
        return list(self._set(key))

    def do_sscan(self, key: bytes, cursor: Any, _: bytes, count: Any) -> Value:
        return [*_scanned(self._set(key), cursor, count)]

    def do_srandmember(self, key: bytes, count: Any) -> Value:
        members = list(self._set(key))
        return self._dice.sample(members, min(int(count), len(members)))

    # --- sorted sets ---

    def do_zadd(self, key: bytes, *pairs: Any) -> Value:
        found = self._make(key, SortedSet)
        if pairs[0] == b"NX":
            pairs = tuple(
                part
                for score, member in zip(pairs[1::2], pairs[2::2], strict=True)
                if member not in found.scores
                for part in (score, member)
            )
        elif pairs[0] == b"GT":
            pairs = tuple(
                part
                for score, member in zip(pairs[1::2], pairs[2::2], strict=True)
                if float(score) > found.scores.get(member, float("-inf"))
                for part in (score, member)
            )
        scores = [float(score) for score in pairs[::2]]
        return sum(
            found.add(member, score) for score, member in zip(scores, pairs[1::2], strict=True)
        )

    def do_zrem(self, key: bytes, *members: bytes) -> Value:
        found = self._of(key, SortedSet)
        if found is None:
            return 0
        gone = sum(found.remove(member) for member in members)
        self._drop_if_empty(key, found.scores)
        return gone

    def do_zcard(self, key: bytes) -> Value:
        found = self._of(key, SortedSet)
        return 0 if found is None else len(found.order)

    def do_zscore(self, key: bytes, member: bytes) -> Value:
        found = self._of(key, SortedSet)
        score = None if found is None else found.scores.get(member)
        return None if score is None else _score_text(score)

    def do_zmscore(self, key: bytes, *members: bytes) -> Value:
        return [self.do_zscore(key, member) for member in members]

    def do_zrange(self, key: bytes, first: Any, last: Any, *options: Any) -> Value:
        found = self._of(key, SortedSet)
        order = [] if found is None else found.order
        return _ranked(_slice(order, int(first), int(last)), bool(options))

    def do_zrank(self, key: bytes, member: bytes) -> Value:
        found = self._of(key, SortedSet)
        names = [] if found is None else [name for _, name in found.order]
        return names.index(member) if member in names else None

    def do_zcount(self, key: bytes, low: Any, high: Any) -> Value:
        return len(self.do_zrangebyscore(key, low, high))

    def do_zrangebyscore(self, key: bytes, low: Any, high: Any, *options: Any) -> Value:
        found = self._of(key, SortedSet)
        words = [option.upper() if isinstance(option, bytes) else option for option in options]
        order = [] if found is None else found.order
        low_score, above = _bound(low)
        high_score, below = _bound(high)
        begin = (
            bisect_right(order, low_score, key=_score)
            if above
            else bisect_left(order, low_score, key=_score)
        )
        end = (
            bisect_left(order, high_score, key=_score)
            if below
            else bisect_right(order, high_score, key=_score)
        )
        chosen = order[begin:end]
        if b"LIMIT" in words:
            at = words.index(b"LIMIT")
            offset, count = int(options[at + 1]), int(options[at + 2])
            chosen = chosen[offset : offset + count if count >= 0 else None]
        return _ranked(chosen, b"WITHSCORES" in words)

    def _by_lex(self, key: bytes, low: bytes, high: bytes) -> list[bytes]:
        """Return the members between two bounds; all have the same score where that is asked."""
        found = self._of(key, SortedSet)
        return [
            member
            for _, member in ([] if found is None else found.order)
            if (low == b"-" or member > low[1:] or (low[:1] == b"[" and member == low[1:]))
            and (high == b"+" or member < high[1:] or (high[:1] == b"[" and member == high[1:]))
        ]

    def do_zrangebylex(self, key: bytes, low: bytes, high: bytes, *options: Any) -> Value:
        found = self._by_lex(key, low, high)
        if options:  # LIMIT
            offset, count = int(options[1]), int(options[2])
            found = found[offset : offset + count if count >= 0 else None]
        return found

    def do_zlexcount(self, key: bytes, low: bytes, high: bytes) -> Value:
        return len(self._by_lex(key, low, high))

    def do_zremrangebylex(self, key: bytes, low: bytes, high: bytes) -> Value:
        members = self._by_lex(key, low, high)
        return self.do_zrem(key, *members) if members else 0

    def do_zremrangebyscore(self, key: bytes, low: Any, high: Any) -> Value:
        members: Any = self.do_zrangebyscore(key, low, high)
        return self.do_zrem(key, *members) if members else 0

    def do_zremrangebyrank(self, key: bytes, first: Any, last: Any) -> Value:
        found = self._of(key, SortedSet)
        if found is None:
            return 0
        gone = _slice(found.order, int(first), int(last))
        for _, member in gone:
            found.remove(member)
        self._drop_if_empty(key, found.scores)
        return len(gone)

    # --- lists ---

    def do_rpush(self, key: bytes, *values: bytes) -> Value:
        found = self._make(key, deque)
        found.extend(values)
        return len(found)

    def do_llen(self, key: bytes) -> Value:
        return len(self._of(key, deque) or ())

    def do_lindex(self, key: bytes, index: Any) -> Value:
        found, at = self._of(key, deque) or (), int(index)
        return found[at] if -len(found) <= at < len(found) else None

    def do_ltrim(self, key: bytes, first: Any, last: Any) -> Value:
        found = self._of(key, deque)
        if found is not None:
            kept = _slice(list(found), int(first), int(last))
            found.clear()
            found.extend(kept)
            self._drop_if_empty(key, found)
        return b"OK"

    def do_lrange(self, key: bytes, first: Any, last: Any) -> Value:
        return _slice(list(self._of(key, deque) or ()), int(first), int(last))


def _scanned(found: Iterable[bytes], cursor: Any, count: Any) -> tuple[bytes, list[bytes]]:
    """Return the next members in the order of a hash: who is there all the time is met."""
    order = sorted((crc32(member), member) for member in found)
    order = order[bisect_left(order, (int(cursor), b"")) :]
    last = order[min(int(count), len(order)) - 1][0] if order else 0
    slice_ = [member for place, member in order if place <= last]
    return (b"%d" % (last + 1) if len(slice_) < len(order) else b"0"), slice_


class Status(bytes):
    """A reply that is a status: Lua sees it as a table."""


class _Set(dict[bytes, None]):
    """A set; the type tells it from a hash."""

    def copy(self) -> _Set:
        return _Set(self)


_KINDS = {
    bytes: b"string",
    dict: b"hash",
    _Set: b"set",
    SortedSet: b"zset",
    deque: b"list",
    Stream: b"stream",
}


def _copy(value: Any) -> Any:
    return value if isinstance(value, bytes) else value.copy()


def _score(pair: tuple[float, bytes]) -> float:
    return pair[0]


def _slice(items: list[Any], first: int, last: int) -> list[Any]:
    size = len(items)
    begin = max(first + size, 0) if first < 0 else first
    end = last + size if last < 0 else last
    return items[begin : end + 1] if end >= begin else []


def _ranked(chosen: list[tuple[float, bytes]], with_scores: bool) -> list[bytes]:
    if with_scores:
        return [part for score, member in chosen for part in (member, _score_text(score))]
    return [member for _, member in chosen]


def _bound(text: Any) -> tuple[float, bool]:
    if isinstance(text, bytes) and text.startswith(b"("):
        return float(text[1:]), True
    return float(text), False


def _score_text(score: float) -> bytes:
    return b"%d" % score if score == int(score) else b"%.17g" % score
