"""What the calls and replies of all command families share.

Of what the replies of scripts are made; those of each script stand with its call.

What the calls of all families share: a lane, and workers that a key may be granted to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import attrs

from pool.core.ids import DIGITS_MAX, member_name
from pool.core.record import Record
from pool.core.walk import PAGES, Pages
from pool.names import Names
from pool.redis.connection import Reply
from pool.redis.scripts import Word

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


IS_NODE: Final = -1  # in the place of how many keys a worker takes
IS_DRAINING: Final = -2  # likewise: it takes none, and its death will say nothing about its jobs


class Target(NamedTuple):
    """A worker that a key may be granted to.

    A tuple because each job has some, which are looked up: comparing these costs next to nothing.
    """

    id: str
    number: int

    @property
    def name(self) -> str:
        """Its name in the lane."""
        return member_name(self.id, self.number)


def as_ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


@attrs.frozen(kw_only=True)
class Keeps:
    """What a lane remembers of jobs that are over, and for how long."""

    brief_s: float = 30.0  # every outcome
    results_bytes_max: int = 64 * 1024 * 1024  # of all outcomes, above which none is kept longer
    parked_s: float = 30 * 86_400.0  # dead letters
    parked_max: int = 100_000


NORMAL: Final = Keeps()


@attrs.frozen
class Calls:
    """Builds script calls of one lane; `generation` is its own, as joining told it."""

    names: Names
    generation: str
    keeps: Keeps = NORMAL
    pages: Pages = PAGES

    def _add_targets(self, keys: list[str], args: list[Word], targets: Sequence[Target]) -> None:
        args.append(len(targets))
        for target in targets:
            name = target.name
            keys += (self.names.stream(name), self.names.owned(name))
            args += (target.id, target.number)
