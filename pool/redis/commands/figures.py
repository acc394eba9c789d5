"""Figures of a pool's jobs, by the minute: what nodes add to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from pool.redis.commands.calls import Calls
from pool.redis.commands.plain import count
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
