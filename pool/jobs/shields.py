"""Shields over what closes, and when each is taken off: by one timer for all of one loop's.

    off --raise_over()--> on --lower()--> off       it was closed: nearly always
                           |--the timer--> off      the stop budget is over

A timer for each would cost more than most closings.  So it is set for the first that ends, and not
taken back when that is closed before.  It is set anew when it has come, for what ends earlier (the
budget has shrunk), and where it has not come in time: its loop was held up, or is gone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import anyio
import attrs

from pool.core.timing import Timing
from pool.redis.io.loops import Loop


@attrs.define(eq=False)
class Shields:
    """The shields of one worker."""

    timing: Callable[[], Timing]
    clock: Callable[[], float]
    loop: Callable[[], Loop]
    _ends_s: dict[anyio.CancelScope, float] = attrs.field(init=False, factory=dict)
    _looks_s: float = attrs.field(init=False, default=-math.inf)
    _take_back: Callable[[], object] = attrs.field(init=False, default=lambda: None)

    def raise_over(self, scope: anyio.CancelScope) -> None:
        """Shield a scope for the stop budget."""
        scope.shield = True
        now_s = self.clock()
        self._ends_s[scope] = ends_s = now_s + self.timing().stop_budget_s
        if not now_s < self._looks_s <= ends_s:
            self._look(self.loop())

    def lower(self, scope: anyio.CancelScope) -> None:
        """Forget a scope, which is about to be left."""
        self._ends_s.pop(scope, None)

    def _look(self, loop: Loop) -> None:
        """Take off what is over, and set the timer for the first of the others."""
        self._take_back()
        now_s, self._looks_s = self.clock(), -math.inf
        for scope in [each for each, ends_s in self._ends_s.items() if ends_s <= now_s]:
            del self._ends_s[scope]
            scope.shield = False
        if self._ends_s:
            looks_s = min(self._ends_s.values())
            self._take_back = loop.later(looks_s - now_s, partial(self._look, loop))
            self._looks_s = looks_s
