"""Keeps who reads lines from being told the same over and over.

    new --told--> known         its line, at once
    known --told again--> known     counted
    a minute, known --counted some--> known     the last line, with the count
                    --none--> new               it is over

Nothing runs while nothing is known.  The minutes are those of one thread for all, so a first count
may be told sooner.  Counts of one minute may miss a few where several threads tell the same.  No
lock is waited for: whoever tells may be the event loop, or a fork of it whose thread is gone.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable
from functools import partial
from typing import Final, TypeAlias

import attrs

MINUTE_S: Final = 60.0
KNOWN_MAX: Final = 1_000  # different troubles in a minute; of further ones only the kind counts

Line: TypeAlias = Callable[[int], object]  # writes it; how often it was told since the last one


@attrs.define(eq=False)
class _Known:
    times: int = 0
    line: Line | None = None


@attrs.define(eq=False)
class Hush:
    """One for each place where lines go."""

    write: Callable[[Callable[[], object]], object]
    minute_s: float = MINUTE_S
    _known: dict[Hashable, _Known] = attrs.field(init=False, factory=dict)
    _timer: threading.Timer | None = attrs.field(init=False, default=None)
    _process: int = attrs.field(init=False, factory=os.getpid)

    def tell(self, kind: str, same: tuple[Hashable, ...], line: Line) -> None:
        """Have a line written, unless the same was told within the minute; from any thread."""
        if self._process != os.getpid():
            self._begin_anew()
        key: Hashable = (kind, *same)
        known = self._known.get(key)
        if known is None and len(self._known) >= KNOWN_MAX:
            key = (kind,)
            known = self._known.get(key)
        if known is not None:
            known.times, known.line = known.times + 1, line
            return
        self._known[key] = _Known()
        self.write(partial(line, 1))
        self._wait()

    def end(self) -> None:
        """Tell what was counted, and forget all; no thread of ours stays."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        self.flush()
        self._known.clear()

    def flush(self) -> None:
        """Tell what was counted; what was not counted is over."""
        for key, known in list(self._known.items()):
            times, known.times = known.times, 0
            if times and known.line is not None:
                self.write(partial(known.line, times))
            else:
                self._known.pop(key, None)

    def _wait(self) -> None:
        if self._timer is not None:
            return
        timer = threading.Timer(self.minute_s, lambda: self._on_minute(timer))
        timer.daemon, timer.name = True, "pool-log-minute"
        self._timer = timer
        try:
            timer.start()
        except RuntimeError:  # there are too many threads, or the interpreter ends
            self._timer = None
            self._known.clear()

    def _on_minute(self, timer: threading.Timer) -> None:
        if self._timer is timer:  # else it was one of two that began at once, or all is over
            self._timer = None
            self.flush()
            if self._known:
                self._wait()

    def _begin_anew(self) -> None:
        """In a forked child: what the parent counted is the parent's."""
        self._process, self._timer, self._known = os.getpid(), None, {}
