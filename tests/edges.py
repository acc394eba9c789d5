"""Edges as the wire has them: a letter and three words, which may be what no edge of ours says."""

from __future__ import annotations

import attrs

from pool.redis.commands.edges import EDGES, Edge, Words
from pool.redis.scripts import Word


@attrs.define(eq=False)
class WireEdge(Edge):
    """Any letter with any words."""

    letter: str = ""  # type: ignore[misc]
    x: Word = b""
    y: Word = b""
    z: Word = b""

    @property
    def takes(self) -> int:  # type: ignore[override]
        return EDGES[self.letter].takes

    def words(self) -> Words:
        return self.x, self.y, self.z
