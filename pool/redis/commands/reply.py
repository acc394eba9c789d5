"""Of what the replies of scripts are made; those of each script stand with its call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Final, TypeAlias

from pool.core.digits import DIGITS_MAX
from pool.core.record import Record
from pool.redis.connection import Reply

NEVER: Final = 10**DIGITS_MAX  # a stamp, and a time, to which no lane comes

Said: TypeAlias = tuple[str, str, str]  # a status: its word, a space, and what follows it

Check: TypeAlias = Callable[[str], bool]


def time_or_none(reply: bytes) -> int | None:
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


def legible(pairs: Sequence[bytes]) -> Iterator[tuple[bytes, bytes, Record]]:
    for key, text in zip(pairs[::2], pairs[1::2], strict=True):
        record = read(key, text)
        if record is not None:
            yield key, text, record


def read(key: bytes, text: bytes) -> Record | None:
    """Return the record of a key, if it can be worked on.

    What is not UTF-8 is nobody's key, and no call can be made for it.
    """
    try:
        key.decode()
    except UnicodeDecodeError:
        return None
    return Record.parse(text)


done: Final = status("OK")
