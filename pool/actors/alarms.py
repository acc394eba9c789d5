"""One alarm per lane, on our own clock: when to look at it next."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import attrs

_NEVER_S = 3600.0  # without an alarm, look whether there is one after so long


@attrs.define(eq=False)
class Alarms:
    """Belongs to one actor's task, and to the one child of it that rings."""

    clock: Callable[[], float]
    _due_s: dict[int, float] = attrs.field(factory=dict)
    _bell: anyio.Event = attrs.field(factory=anyio.Event)

    def set(self, lane: int, in_s: float) -> None:
        """Ring in so many seconds, whatever was said before."""
        self._due_s[lane] = self.clock() + max(0.0, in_s)
        self._bell.set()

    def set_by(self, lane: int, in_s: float) -> None:
        """Ring in so many seconds at the latest."""
        due_s = self.clock() + max(0.0, in_s)
        if due_s < self._due_s.get(lane, float("inf")):
            self._due_s[lane] = due_s
            self._bell.set()

    async def ring(self, look: Callable[[int], Awaitable[object]]) -> None:
        """Look at each lane when its alarm is due, for ever."""
        while True:
            for lane, due_s in list(self._due_s.items()):
                if due_s <= self.clock():
                    del self._due_s[lane]
                    await look(lane)
            now_s = self.clock()
            wait_s = min(self._due_s.values(), default=now_s + _NEVER_S) - now_s
            if wait_s > 0:
                self._bell = anyio.Event()
                with anyio.move_on_after(wait_s):
                    await self._bell.wait()
