"""What the calls of all families share: a lane, and workers that a key may be granted to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs

from pool.core.ids import member_name
from pool.core.pages import PAGES, Pages
from pool.names import Names
from pool.redis.scripts import Word

IS_NODE: Final = -1  # in the place of how many keys a worker takes


@attrs.frozen
class Target:
    """A worker that a key may be granted to."""

    id: str
    number: int
    name: str = attrs.field(init=False, eq=False, repr=False)  # in the lane

    @name.default
    def _(self) -> str:
        return member_name(self.id, self.number)


def as_ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


@attrs.frozen
class Calls:
    """Builds script calls of one lane; `generation` is its own, as joining told it."""

    names: Names
    generation: str
    parked_s: float = 30 * 86_400.0  # how long dead letters are kept
    pages: Pages = PAGES

    def _add_targets(self, keys: list[str], args: list[Word], targets: Sequence[Target]) -> None:
        args.append(len(targets))
        for target in targets:
            keys += (self.names.stream(target.name), self.names.owned(target.name))
            args += (target.id, target.number)
