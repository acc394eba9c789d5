"""Keeps who reads lines from being told the same over and over.

    new --told--> known         its line, at once
    known --told again--> known     counted
    a minute, known --counted some--> known     the last line, with the count
                    --none--> new               it is over

A kind has KIND_MAX lines at most that are known.  The last of them is that of all further troubles
of the kind: the first of these is written, and then the latest, with `others` instead of `times`.
It does not read as if that trouble had come so often.

The trouble that was told last is written last, so that an outage that is there again does not read
as one that is over.

Nothing runs while nothing is known.  The minutes are those of one thread for all, so a first count
may be told sooner.  Counts of one minute may miss a few where several threads tell the same.  No
lock is waited for: whoever tells may be the event loop, or a fork of it whose thread is gone.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Final, TypeAlias

import attrs

MINUTE_S: Final = 60.0
KIND_MAX: Final = 20  # different lines of a kind in a minute
_OTHERS: Final = object()  # in place of what makes a trouble the same: all further ones of a kind
REST_S: Final = 10.0  # between two ends: nodes that open and close all the time write few lines

Counts: TypeAlias = Mapping[str, "int | str"]
# Writes it, with the count since the last line, if there is one, {"times": 99} or {"others": 99},
# and with the times of the first and the last that it stands for.
Line: TypeAlias = Callable[[Counts], object]


@attrs.define(eq=False)
class _Known:
    times: int = 0
    line: Line | None = None
    first_s: float = 0.0  # by the wall clock, of those that were counted
    last_s: float = 0.0


@attrs.define(eq=False)
class Hush:
    """One for each place where lines go."""

    write: Callable[[Callable[[], object]], object]
    minute_s: float = MINUTE_S
    clock: Callable[[], float] = time.monotonic
    _ended_at: float | None = attrs.field(init=False, default=None)  # when a node left last
    _known: dict[tuple[Hashable, ...], _Known] = attrs.field(init=False, factory=dict)
    _timer: threading.Timer | None = attrs.field(init=False, default=None)
    _process: int = attrs.field(init=False, factory=os.getpid)

    def tell(self, kind: str, same: tuple[Hashable, ...], line: Line) -> None:
        """Have a line written, unless the same was told within the minute; from any thread."""
        if self._process != os.getpid():
            self._begin_anew()
        key: tuple[Hashable, ...] = (kind, *same)
        known = self._known.get(key)
        if known is None and self._is_full(kind):
            key = (kind, _OTHERS)
            known = self._known.get(key)
        if known is not None:
            self._known.pop(key, None)  # it goes behind all others: it was told last
            self._known[key] = known
            known.last_s = time.time()
            known.first_s = known.first_s if known.times else known.last_s
            known.times, known.line = known.times + 1, line
            self._wait()
            return
        self._known[key] = _Known()
        self.write(partial(line, {}))
        self._wait()

    def _is_full(self, kind: str) -> bool:
        """Say whether as many troubles of a kind are known by themselves as may be."""
        known = [key for key in list(self._known) if key[0] == kind and key[1:] != (_OTHERS,)]
        return len(known) >= KIND_MAX - 1

    def rest(self) -> None:
        """End, as a node has left; within REST_S of the last time only the thread ends.

        Troubles that are known stay known; their counts are written with the next line, or at the
        end.
        """
        now = self.clock()
        if self._ended_at is None or now - self._ended_at >= REST_S:
            self._ended_at = now
            self.end()
        elif self._timer is not None:  # no thread of ours stays; who tells again makes another
            timer, self._timer = self._timer, None
            timer.cancel()

    def end(self) -> None:
        """Tell what was counted, and forget all; no thread of ours stays."""
        if self._process != os.getpid():
            self._begin_anew()
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
                at = {"first_at": _shown(known.first_s), "last_at": _shown(known.last_s)}
                self.write(partial(known.line, {**_counted(key, times), **at}))
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


def _shown(moment_s: float) -> str:
    return datetime.fromtimestamp(moment_s, UTC).isoformat().replace("+00:00", "Z")


def _counted(key: tuple[Hashable, ...], times: int) -> Mapping[str, int]:
    if key[1:] == (_OTHERS,):
        return {"others": times}
    return {"times": times} if times > 1 else {}
