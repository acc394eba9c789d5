"""Of what the replies of scripts are made; those of each script stand with its call."""

from __future__ import annotations

from typing import Final

from pool.core.digits import DIGITS_MAX
from pool.core.record import Record
from pool.redis.connection import Reply

NEVER: Final = 10**DIGITS_MAX  # a stamp, and a time, to which no lane comes


def time_or_none(reply: bytes) -> int | None:
    """Return a time; below 0 there is none."""
    number = int(reply)
    return number if number >= 0 else None


def read(key: bytes, text: bytes) -> Record | None:
    """Return the record of a key, if it can be worked on.

    What is not UTF-8 is nobody's key, and no call can be made for it.  One that is queued stands
    under a name of its own, and no other does.
    """
    try:
        key.decode()
    except UnicodeDecodeError:
        return None
    record = Record.parse(text)
    if record is None or (record.state == "queued") == (key[:1] == b"\t"):
        return record
    return None


def done(reply: Reply) -> None:
    """Read the reply of a script that says no more than that."""
    if reply != b"OK":
        raise ValueError("no status of this script")
