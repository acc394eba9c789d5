"""How much, how often and for how long: what keeps one caller from taking all of a gateway.

    a request --> requests of its caller in this second? --> its body: so long, within so much time
              --> it waits: how many do? until when? closed: all of them end at once

    a connection --> a stranger's --a secret that fits--> of somebody known, who stays
          |               +-- no room for another one: the one silent longest is cut
          +-- all are of somebody known: refused, for which there is a little more room

What is refused is told as 413, 408, 429 or 503, with `Retry-After` where waiting helps.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, Literal, Protocol

import anyio
import attrs

CALLERS_MAX: Final = 10_000  # whose rates are known; of an authenticator they may be many
REFUSED_MAX: Final = 64  # connections beyond the most that are told why; the oldest gives way
# In a request's scope: called without arguments once its connection is of somebody known.
KNOWN: Final = "pool.known"


@attrs.define(eq=False)
class Rates:
    """Requests of each caller: so many a second, and as many at once."""

    per_s: float
    clock: Callable[[], float] = time.monotonic
    _left: OrderedDict[str, tuple[float, float]] = attrs.field(factory=OrderedDict)

    def take(self, caller: str) -> float:
        """Take one; return 0, or in how many seconds there is another."""
        now_s = self.clock()
        burst = max(1.0, self.per_s)
        left, at_s = self._left.pop(caller, (burst, now_s))
        left = min(burst, left + (now_s - at_s) * self.per_s)
        wait_s = 0.0
        if left >= 1.0:
            left -= 1.0
        else:
            wait_s = (1.0 - left) / self.per_s
        self._left[caller] = left, now_s
        if len(self._left) > CALLERS_MAX:
            self._left.popitem(last=False)
        return wait_s

    def give_back(self, caller: str) -> None:
        """Give one back that was taken for what turned out to be somebody else's."""
        left, at_s = self._left.get(caller, (0.0, self.clock()))
        self._left[caller] = left + 1.0, at_s


@attrs.define(eq=False)
class Lately:
    """Who was known lately, as keyed hashes of what they sent: of those seen last so many."""

    most: int = CALLERS_MAX
    _salt: bytes = attrs.field(factory=partial(secrets.token_bytes, 32), repr=False)
    _known: OrderedDict[bytes, None] = attrs.field(factory=OrderedDict, repr=False)

    def has(self, who: Sequence[str]) -> bool:
        """Whether that one was."""
        return self._digest(who) in self._known

    def add(self, who: Sequence[str]) -> None:
        """That one is."""
        digest = self._digest(who)
        self._known[digest] = None
        self._known.move_to_end(digest)
        if len(self._known) > self.most:
            self._known.popitem(last=False)

    def discard(self, who: Sequence[str]) -> None:
        """That one is not any more."""
        self._known.pop(self._digest(who), None)

    def _digest(self, who: Sequence[str]) -> bytes:
        text = json.dumps(who)  # so that none of them can pass for a part of another
        return hmac.digest(self._salt, text.encode(), hashlib.sha256)


@attrs.define(eq=False)
class Waits:
    """Those who wait: for the end of a job, for jobs, for events."""

    most: int
    is_closed: bool = False
    _scopes: set[anyio.CancelScope] = attrs.field(factory=set)

    @property
    def is_full(self) -> bool:
        """Whether nobody else may wait."""
        return len(self._scopes) >= self.most

    @contextmanager
    def within(self, wait_s: float = math.inf) -> Iterator[anyio.CancelScope]:
        """Give up what is waited for in the block after so long, or when all this ends."""
        with anyio.move_on_after(0.0 if self.is_closed else wait_s) as scope:
            self._scopes.add(scope)
            try:
                yield scope
            finally:
                self._scopes.discard(scope)

    def close(self) -> None:
        """Have everybody wait no more, now and from now on."""
        self.is_closed = True
        for scope in list(self._scopes):
            scope.cancel()


class Cuttable(Protocol):
    """What is known of a connection."""

    def cut(self) -> None:
        """End it now, however far it is."""


@attrs.define(eq=False)
class Connections:
    """The connections of a server: so many, and who gives way to the next one."""

    most: int
    _known: set[Cuttable] = attrs.field(factory=set)
    _strangers: dict[Cuttable, None] = attrs.field(factory=dict)  # silent longest: the first
    _refused: dict[Cuttable, None] = attrs.field(factory=dict)

    def enter(self, one: Cuttable) -> Literal["", "gave_way", "refused"]:
        """Take one in; return what that was at the cost of: of a stranger, or it is refused."""
        cost: Literal["", "gave_way", "refused"] = ""
        if len(self._known) + len(self._strangers) >= self.most:
            if not self.give_way():
                if len(self._refused) >= REFUSED_MAX:
                    self._cut(next(iter(self._refused)))
                self._refused[one] = None
                return "refused"
            cost = "gave_way"
        self._strangers[one] = None
        return cost

    def give_way(self) -> bool:
        """Cut the stranger who has been silent longest; return whether there was one."""
        if not self._strangers:
            return False
        self._cut(next(iter(self._strangers)))
        return True

    def heard(self, one: Cuttable) -> None:
        """Note that it was not silent."""
        if one in self._strangers:
            del self._strangers[one]
            self._strangers[one] = None

    def know(self, one: Cuttable) -> None:
        """Note that somebody known uses it, who gives way to nobody."""
        if one in self._strangers:
            del self._strangers[one]
            self._known.add(one)

    def leave(self, one: Cuttable) -> None:
        """Forget one that has ended."""
        self._known.discard(one)
        self._strangers.pop(one, None)
        self._refused.pop(one, None)

    def clear(self) -> None:
        """Cut all of them."""
        for one in (*self._known, *self._strangers, *self._refused):
            self._cut(one)

    def _cut(self, one: Cuttable) -> None:
        self.leave(one)
        one.cut()
