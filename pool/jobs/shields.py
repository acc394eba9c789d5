"""Shields over what closes, and when each is taken off: by one timer for all of one loop's.

    off --raise_over()--> on --lower()--> off       it was closed: nearly always
                           |--the timer--> off      the stop budget is over

A timer for each would cost more than most closings.  So it is set for the first that ends, and not
taken back when that is closed before.  It is set anew when it has come, for what ends earlier (the
budget has shrunk), and where it has not come in time: its loop was held up, or is gone.

It is none of the node's own timers: those are taken back when its connections close, and a handler
may still be closing then.  So it may come when its worker is long gone, and does not keep it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from weakref import ReferenceType, ref

import anyio
import attrs

from pool.core.lease import Timing
from pool.redis.io.loops import Loop, current_loop


@attrs.define(eq=False)
class Shields:
    """The shields of one worker."""

    timing: Callable[[], Timing]
    clock: Callable[[], float]
    _ends_s: dict[anyio.CancelScope, float] = attrs.field(init=False, factory=dict)
    _looks_s: float = attrs.field(init=False, default=-math.inf)
    _take_back: Callable[[], object] = attrs.field(init=False, default=lambda: None)

    def raise_over(self, scope: anyio.CancelScope) -> None:
        """Shield a scope for the stop budget."""
        scope.shield = True
        now_s = self.clock()
        self._ends_s[scope] = ends_s = now_s + self.timing().stop_budget_s
        if not now_s < self._looks_s <= ends_s:
            self._look(current_loop())

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
            self._take_back = loop.later(looks_s - now_s, partial(_look_again, ref(self), loop))
            self._looks_s = looks_s


def _look_again(shields: ReferenceType[Shields], loop: Loop) -> None:
    if (found := shields()) is not None:
        found._look(loop)
