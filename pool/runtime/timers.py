"""One alarm per lane, on our own clock: when to look at it next.

    set, set_by --> due --ring--> looking --done--> due again, if it was set meanwhile

Each lane is looked at in a task of its own, one at a time: a lane that does not answer keeps only
its own next look waiting.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import attrs

_NEVER_S = 3600.0  # without an alarm, look whether there is one after so long

Look = Callable[[int], Awaitable[object]]


@attrs.define(eq=False)
class Alarms:
    """Belongs to one actor's task, and to those children of it that ring and look."""

    clock: Callable[[], float]
    _due_s: dict[int, float] = attrs.field(factory=dict)
    _looking: set[int] = attrs.field(factory=set)
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

    async def ring(self, look: Look, spawn: Callable[..., object]) -> None:
        """Look at each lane when its alarm is due, for ever; `spawn` runs each look as a task."""
        self._looking.clear()  # those of a run that crashed have ended with it
        while True:
            self._bell = anyio.Event()
            now_s = self.clock()
            wait_s = _NEVER_S
            for lane, due_s in list(self._due_s.items()):
                if lane in self._looking:
                    continue
                if due_s <= now_s:
                    del self._due_s[lane]
                    self._looking.add(lane)
                    spawn(self._look, lane, look)
                else:
                    wait_s = min(wait_s, due_s - now_s)
            with anyio.move_on_after(wait_s):
                await self._bell.wait()

    async def _look(self, lane: int, look: Look) -> None:
        try:
            await look(lane)
        finally:
            self._looking.discard(lane)
            self._bell.set()
