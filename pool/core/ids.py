"""Identities of processes, nodes, workers and jobs, and numbers as digits.

Numbers as they stand in Redis, in ids and in names: a few ASCII digits, and nothing else.

`int()` takes many more forms, of any length, and `isdigit()` more characters.

Identities: a random prefix for each process, then a counter.

    8z4k0qv1xt 2f        a job: prefix (50 bits) and counter (hexadecimal), written together
    w 8z4k0qv1xt 3       a worker; `n` for a node
    w8z4k0qv1xt3.2       the worker's name in some lane, its second there
    i 0c4f...            a job that was dispatched with an idempotency key: 128 bits of its hash
    f 93ab...            a job that follows another: likewise, of that one's name and its place

Random per process and not per id, because a counter is ten times cheaper than a `uuid4`.
"""

from __future__ import annotations

import hashlib
import itertools
from typing import Final

DIGITS_MAX: Final = 16  # more is not exact in Lua; `lua/lib/record.lua` has it, too


def is_number(text: bytes | str, digits_max: int = DIGITS_MAX) -> bool:
    """Say whether a text is a number as the scripts take it."""
    return text.isdigit() and text.isascii() and len(text) <= digits_max


def number(text: bytes | str, digits_max: int = DIGITS_MAX) -> int:
    """Return it.

    Raises:
        ValueError: It is none.
    """
    # Spelled out: there are three for each job.
    if text.isdigit() and text.isascii() and len(text) <= digits_max:
        return int(text)
    raise ValueError(text[:digits_max])


def number_or(default: int, text: bytes | str | None, digits_max: int = DIGITS_MAX) -> int:
    """Likewise, and the default where it is none: another hand may write anywhere."""
    return int(text) if text is not None and is_number(text, digits_max) else default


_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: no i, l, o, u
_PREFIX_CHARS: Final = 10
_HASH_CHARS: Final = 26  # of 128 bits
SEED_BYTES: Final = 8  # enough for the 50 bits of a prefix


class Ids:
    """Makes ids that no other process makes.  Any thread may call `next()`.

    `seed` is `SEED_BYTES` of good randomness (of the injected dice, or of the system's).
    Two processes share a prefix with a probability of 2**-50.
    """

    __slots__ = ("_count", "_prefix")

    def __init__(self, seed: bytes) -> None:
        self._count = itertools.count(1)
        self._prefix = _prefix(seed)

    def next(self, kind: str = "") -> str:
        """Return a new id; `kind` is its first letter: `w` worker, `n` node, nothing for jobs."""
        return f"{kind}{self._prefix}{next(self._count):x}"  # next() of a count is atomic

    def redraw(self, seed: bytes) -> None:
        """Take another prefix: to be called in the child after a fork, before any `next()`."""
        self._prefix = _prefix(seed)


def _prefix(seed: bytes) -> str:
    assert len(seed) >= SEED_BYTES
    bits = int.from_bytes(seed[:SEED_BYTES], "big")
    return "".join(_ALPHABET[bits >> (5 * i) & 31] for i in range(_PREFIX_CHARS))


def id_of(idempotency_key: str) -> str:
    """Return the id of a job that is dispatched with this key; no id of ours begins with an `i`."""
    return "i" + _hashed(idempotency_key)


def derived_id(text: str) -> str:
    """Return the id of a job that is made by another; it is longer than those that are counted."""
    return "f" + _hashed(text)


def is_derived(job_id: str) -> bool:
    """Whether it is the id of a job that was made by another one."""
    return len(job_id) == 1 + _HASH_CHARS and job_id[0] == "f"


def _hashed(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    bits = int.from_bytes(digest[:16], "big")
    return "".join(_ALPHABET[bits >> (5 * i) & 31] for i in range(_HASH_CHARS))


# First letters of ids: of a node's worker, and of a worker that polls over HTTP.
WORKER: Final = "w"
POLLER: Final = "p"


def is_poller(name: str) -> bool:
    """Say whether an id, or a name in a lane, is that of a worker that polls over HTTP."""
    return name[:1] == POLLER


def process_of(name: str) -> str:
    """Return the prefix of a worker's or node's process, by its id or its name in a lane."""
    return name[1 : 1 + _PREFIX_CHARS]


def member_name(identity: str, number: int) -> str:
    """Return the name under which an identity acts in one lane."""
    return f"{identity}.{number}"


def order(entry_id: str) -> tuple[int, int]:
    """Return what ids are compared by."""
    ms, _, number = entry_id.partition("-")
    return int(ms), int(number)
