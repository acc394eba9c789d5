"""Crash marks: the deaths that a job is suspected of, as they stand in its record."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

import attrs

from pool.core.digits import DIGITS_MAX
from pool.core.ids import process_of

MARKS_MAX: Final = 8  # crash marks of a record that name who died; older ones become a number
MARKS_CHARS_MAX: Final = 400  # of all of them; eight identities and the number are half of that


@attrs.frozen
class Marks:
    """The deaths that a job is suspected of: who died, as `id.n`, whole or half.

        6,w8z4k0qv1xt3.1,w8z4k0qv1xt4.2-        in a record; `-` stands for half, and the number
                                                in front counts halves of which no name is kept

    Who comes back from a freeze was not killed: the scripts that hand a record out to be judged
    leave the marks out that name one who said so (`lua/lib/marks.lua`).
    """

    named: tuple[str, ...] = ()
    before: int = 0

    @classmethod
    def parse(cls, text: str) -> Marks:
        """Return what stands in a record; it has been matched against the record's pattern."""
        if not text:
            return NO_MARKS
        first, *rest = text.split(",")
        if first.isdigit():
            return cls(tuple(filter(None, rest)), int(first[:DIGITS_MAX]))
        return cls(tuple(filter(None, (first, *rest))))

    def pack(self) -> str:
        """Return what stands in a record."""
        return ",".join((str(self.before),) * (self.before > 0) + self.named)

    @property
    def halves(self) -> int:
        """What they weigh, in halves: floats would do, but a bound must not depend on them."""
        return self.before + sum(1 if name.endswith("-") else 2 for name in self.named)

    @property
    def deaths(self) -> int:
        """How many they are; of what has no name any more each half counts as one."""
        return self.before + len(self.named)

    def deaths_but(self, known: Collection[str]) -> int:
        """How many they are without those of some processes."""
        return self.deaths - sum(process_of(name) in known for name in self.named)

    def add(self, died: str, *, is_whole: bool) -> Marks:
        """Return them with one more; nobody dies twice, so the heavier of two stands."""
        had = [name for name in self.named if name.removesuffix("-") == died]
        rest = [name for name in self.named if name not in had]
        is_whole = is_whole or died in had
        named = (*rest, died if is_whole else died + "-")
        older, named = named[:-MARKS_MAX], named[-MARKS_MAX:]
        return Marks(named, self.before + Marks(older).halves)


NO_MARKS: Final = Marks()
MARKS_TEXT: Final = rf"[0-9A-Za-z.,-]{{0,{MARKS_CHARS_MAX}}}"


def marks_text(text: str) -> str:
    """Return it if it can be marks.

    Raises:
        ValueError: It cannot.
    """
    if not re.fullmatch(MARKS_TEXT, text, re.ASCII):
        raise ValueError(text[:DIGITS_MAX])
    return text
