"""What a sink tells of what became of its events."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

import attrs

from pool.errors import PoolError
from pool.events import SinkMended, SinkParked, SinkParksMany, SinkTroubled
from pool.streams.sink_source import Source

PARKED_FEW: Final = 5  # within ...
PARKED_S: Final = 60.0


@attrs.define(eq=False)
class SinkTold:
    """Tells, and counts what was parked: many within a minute are told as that."""

    sink: str
    clock: Callable[[], float]
    emit: Callable[[Any], object]
    _parked: deque[tuple[float, int]] = attrs.field(init=False, factory=deque)
    _told_many_s: float = attrs.field(init=False, default=float("-inf"))

    def freed(self, source: Source, freed: int, forgotten: int = 0) -> None:
        self.emit(SinkMended(sink=self.sink, stream=source.name, freed=freed, forgotten=forgotten))

    def parked(self, source: Source, events: int) -> None:
        if not events:
            return
        self.emit(SinkParked(sink=self.sink, stream=source.name, events=events))
        now_s = self.clock()
        self._parked.append((now_s, events))
        while self._parked[0][0] < now_s - PARKED_S:
            self._parked.popleft()
        many = sum(count for _, count in self._parked)
        if many > PARKED_FEW and self._told_many_s < now_s - PARKED_S:
            self._told_many_s = now_s
            self.emit(SinkParksMany(sink=self.sink, events=many))

    def troubled(self, source: Source | None, error: PoolError, found: dict[str, str]) -> None:
        """A call was refused; `found` are the foreign keys that it met."""
        stream, key = source.name if source is not None else "", next(iter(found), "")
        self.emit(SinkTroubled(sink=self.sink, stream=stream, key=key, problem=str(error)))
