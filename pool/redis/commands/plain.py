"""The plain commands that we send, each with what reads its reply.

As with the scripts: whatever a reader raises, it is no reply to that command, and the fault of that
one call (see `redis/io/body.py`).  What has no reader here is given as it came; none of ours is
such a one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias

from pool.core.ids import DIGITS_MAX, is_number, order
from pool.redis.scripts import Word

PlainReader: TypeAlias = Callable[[Sequence[Word], Any], Any]  # of its words and its reply
Flat: TypeAlias = list[bytes]  # name, value, name, value ...
Entries: TypeAlias = list[tuple[str, list[tuple[str, dict[str, bytes]]]]]


# --- of which replies are made; they raise what is none ---------------------------------------


def typed(reply: Any, *kinds: type) -> Any:
    """Return a reply of one of these types."""
    if type(reply) not in kinds:
        raise TypeError(type(reply).__name__)
    return reply


def count(reply: Any) -> int:
    """Return a number that is none below 0."""
    if type(reply) is not int or reply < 0:
        raise ValueError(repr(reply)[:DIGITS_MAX])
    return reply


def texts(reply: Any, *, but: type | None = None) -> list[Any]:
    """Return a list of texts, or of what else may stand there; checked all at once."""
    kinds = set(map(type, typed(reply, list)))
    if not kinds <= {bytes, but or bytes}:
        raise TypeError(", ".join(sorted(kind.__name__ for kind in kinds)))
    return list(reply)


def flat(reply: Any) -> Flat:
    """Return names and values in turn."""
    found = texts(reply)
    if len(found) % 2:
        raise ValueError(f"{len(found)} parts")
    return found


def entry_id(text: bytes) -> str:
    """Return an entry's id."""
    ms, _, number = text.partition(b"-")  # spelled out: there is one for each job
    if not (ms.isdigit() and number.isdigit() and len(ms) <= _DIGITS_MAX >= len(number)):
        raise ValueError(text[: 2 * DIGITS_MAX])
    return text.decode()


_BYTES: Final = frozenset({bytes})


def fields(reply: Any) -> dict[str, bytes]:
    """Return an entry's fields by name; values stay bytes."""
    names = map(_name, reply[::2])
    found = dict(zip(names, reply[1::2], strict=True))
    if not _BYTES.issuperset(map(type, found.values())):
        raise TypeError("a value that is no text")
    return found


@lru_cache(maxsize=256)  # nearly all are the same few
def _name(field: bytes) -> str:
    """Return a field's name.  Ours are ASCII; a foreign one must not end the body that reads it."""
    return field.decode(errors="backslashreplace")


_DIGITS_MAX: Final = 20  # of an id: both its numbers have 64 bits


# --- the readers ------------------------------------------------------------------------------


def _text(_: Sequence[Word], reply: Any) -> bytes:
    found: bytes = typed(reply, bytes)
    return found


def _text_or_none(_: Sequence[Word], reply: Any) -> bytes | None:
    found: bytes | None = typed(reply, bytes, type(None))
    return found


def _count(_: Sequence[Word], reply: Any) -> int:
    return count(reply)


def _count_or_none(_: Sequence[Word], reply: Any) -> int | None:
    return None if reply is None else count(reply)


def _texts(_: Sequence[Word], reply: Any) -> list[bytes]:
    return texts(reply)


def _flat(_: Sequence[Word], reply: Any) -> Flat:
    return flat(reply)


def _one_each(words: Sequence[Word], reply: Any) -> list[bytes | None]:
    """Return a text for each field asked for, None where there is none."""
    found = texts(reply, but=type(None))
    if len(found) != len(words) - 2:
        raise ValueError(f"{len(found)} parts, not {len(words) - 2}")
    return found


def _bit_each(words: Sequence[Word], reply: Any) -> list[int]:
    found = list(map(count, typed(reply, list)))
    if len(found) != len(words) - 2:
        raise ValueError(f"{len(found)} parts, not {len(words) - 2}")
    return found


def _scanned(_: Sequence[Word], reply: Any) -> tuple[str, list[bytes]]:
    """Return a cursor, 0 where that was all, and what was found."""
    cursor, found = typed(reply, list)
    if not is_number(typed(cursor, bytes), _DIGITS_MAX):
        raise ValueError("no cursor")
    return cursor.decode(), texts(found)


def _fields_scanned(words: Sequence[Word], reply: Any) -> tuple[str, list[bytes]]:
    cursor, found = _scanned(words, reply)
    return cursor, flat(found)


def _ranked(words: Sequence[Word], reply: Any) -> Flat:
    if words[-1] != "WITHSCORES":
        return texts(reply)
    found = flat(reply)
    for score in found[1::2]:
        float(score)
    return found


def _groups(_: Sequence[Word], reply: Any) -> list[dict[str, Any]]:
    """Return the facts of each group, `name` among them."""
    found = [
        {str(typed(name, bytes), "utf-8", "replace"): value for name, value in _pairs(each)}
        for each in typed(reply, list)
    ]
    for each in found:
        typed(each.get("name"), bytes)
    return found


def _pairs(flat: Any) -> Iterator[tuple[Any, Any]]:
    return zip(typed(flat, list)[::2], flat[1::2], strict=True)


def _id_or_none(_: Sequence[Word], reply: Any) -> str | None:
    return None if reply is None else entry_id(reply)


def _entries(_: Sequence[Word], reply: Any) -> list[tuple[str, Flat]]:
    return [(entry_id(each), flat(held)) for each, held in reply]


def _ms(_: Sequence[Word], reply: Any) -> int:
    seconds, micros = texts(reply)
    if not (is_number(seconds, _DIGITS_MAX) and is_number(micros, _DIGITS_MAX)):
        raise ValueError("no time")
    return int(seconds) * 1000 + int(micros) // 1000


def _read(words: Sequence[Word], reply: Any) -> Entries:
    """Return what a read found, by stream; names as texts and fields as a dict.

    What a group's history names and the stream has no more is left out.
    """
    found = [
        (
            stream.decode(),
            [(entry_id(entry), fields(held)) for entry, held in entries if held is not None],
        )
        for stream, entries in (() if reply is None else reply)
    ]
    if found:
        asked = words[words.index("STREAMS") + 1 :]
        names, positions = asked[: len(asked) // 2], asked[len(asked) // 2 :]
        if not {stream for stream, _ in found} <= {*names}:
            raise ValueError("a stream that was not asked for")
        if words[0] == "XREAD":  # it carries no number: what was read before is another's reply
            behind = dict(zip(names, map(str, positions), strict=True))
            if any(held and order(held[0][0]) <= order(behind[s]) for s, held in found):
                raise ValueError("an entry that was not asked for")
    return found


READERS: Final[Mapping[str, PlainReader]] = {
    "HGET": _text_or_none,
    "HGETALL": _flat,
    "HKEYS": _texts,
    "HLEN": _count,
    "HMGET": _one_each,
    "HSCAN": _fields_scanned,
    "HSET": _count,
    "HSTRLEN": _count,
    "LLEN": _count,
    "PING": _text,
    "SCAN": _scanned,
    "SCARD": _count,
    "SMISMEMBER": _bit_each,
    "SSCAN": _scanned,
    "TIME": _ms,  # as milliseconds
    "TYPE": _text,
    "UNLINK": _count,
    "XACK": _count,
    "XADD": _id_or_none,
    "XDEL": _count,
    "XINFO": _groups,
    "XLEN": _count,
    "XRANGE": _entries,
    "XREAD": _read,
    "XREVRANGE": _entries,
    "XREADGROUP": _read,
    "XTRIM": _count,
    "ZCARD": _count,
    "ZCOUNT": _count,
    "ZMSCORE": _one_each,
    "ZRANGE": _ranked,
    "ZRANK": _count_or_none,
}


def keys(words: Sequence[Word]) -> list[str]:
    """Return the keys of a plain command that may meet a foreign value there."""
    if "STREAMS" in words:
        asked = words[words.index("STREAMS") + 1 :]
        return [str(key) for key in asked[: len(asked) // 2]]
    at = 2 if words[0] == "XINFO" else 1
    return [str(key) for key in words[at : at + 1]]


def read(words: Sequence[Word], reply: Any) -> Any:
    """Return what the reply to a plain command says; whatever this raises, it is none."""
    reads = READERS.get(str(words[0]))
    return reply if reads is None else reads(words, reply)
