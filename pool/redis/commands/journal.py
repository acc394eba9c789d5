"""What nodes note in a lane: journal entries, and figures by the minute.

The journal of a lane: what nodes write into it, and of what jobs it takes all edges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import attrs

from pool.redis.commands.calls import Calls, as_ms
from pool.redis.commands.plain import count, typed
from pool.redis.connection import Reply
from pool.redis.scripts import Script, ScriptCall, Word

MINUTES_MAX: Final = 24 * 60
# Of a minute's text: all of them and what Redis takes for them are less than a megabyte.
TEXT_BYTES_MAX: Final = 560
FIELDS_MAX: Final = 2_000  # of the minute under way
COUNTS_MAX: Final = 500  # in one call

RATE: Final = Script.load(
    "rate",
    keys="lane rates rated",
    args="generation minutes_max bytes_max fields_max *counts",
    reads=count,
)


@attrs.frozen
class FigureCalls(Calls):
    """Adding to the figures; they stand in the pool's first lane."""

    def rate(self, counts: Mapping[str, int]) -> ScriptCall:
        """Add to the minute under way: at most COUNTS_MAX of `WHAT HANDLER`."""
        assert len(counts) <= COUNTS_MAX
        args: list[Word] = [self.generation, MINUTES_MAX, TEXT_BYTES_MAX, FIELDS_MAX]
        for each in counts.items():
            args += each
        n = self.names
        return RATE((n.lane, n.rates, n.rated), args)


# Edge, key, job id, handler, owner, epoch, attempt, detail.
NotedEvent: TypeAlias = tuple[Word, Word, Word, Word, Word, Word, Word, Word]


@attrs.frozen(kw_only=True)
class Following:
    """Of what a lane's journal takes all edges, and for how long still."""

    left_s: float
    keys: tuple[str, ...]
    handlers: tuple[str, ...]


def following(reply: Reply) -> Following:
    """Read the reply of `follow`."""
    left_ms, text = reply
    names = typed(text, bytes).decode(errors="replace").split("\n")
    return Following(
        left_s=count(left_ms) / 1000,
        keys=tuple(name[1:] for name in names if name[:1] == "k"),
        handlers=tuple(name[1:] for name in names if name[:1] == "h"),
    )


def _entry_id(reply: Reply) -> str:
    told: bytes = typed(reply, bytes)
    return told.decode()


FOLLOW: Final = Script.load("follow", keys="lane", args="generation for_ms names", reads=following)
NOTE: Final = Script.load(
    "note", keys="lane journal", args="generation after *items", reads=_entry_id
)


@attrs.frozen
class JournalCalls(Calls):
    """Writing the journal."""

    def note(self, noted: Sequence[NotedEvent], *, after: str = "") -> ScriptCall:
        """Write what a node has seen, once; return the id of the last entry.

        Args:
            noted: One or more.
            after: These were sent before, and no answer came; the id of the last entry that the
                sender was told of.  It has sent no others since.
        """
        args: list[Word] = [self.generation, after]
        for each in noted:
            args += each
        return NOTE((self.names.lane, self.names.journal), args)

    def follow(self, keys: Sequence[str], handlers: Sequence[str], *, for_s: float) -> ScriptCall:
        """Have the journal take all edges of these for so long, instead of what it does now.

        For 0 s: of none any more.
        """
        names = [*(f"k{key}\n" for key in keys), *(f"h{name}\n" for name in handlers)]
        for_ms = as_ms(for_s) if names else 0
        return FOLLOW((self.names.lane,), (self.generation, for_ms, "".join(names) or "-"))

    def followed(self) -> ScriptCall:
        """Tell of what it does."""
        return FOLLOW((self.names.lane,), (self.generation, 0, ""))
