"""Lines for people and logs: written by a thread, and repeats held back.

Writes lines in a thread, so that a full pipe or a dead disk holds up no event loop.

    write() --> queue --a thread, until it is empty--> written
        waits for it, at most `patience_s`: most often it is as if we had written it ourselves
        if that was not enough nobody waits until all is written: QUEUED_MAX lines are kept, the
        others are counted, and told behind those

Nothing runs while there is nothing to write.  No lock is ever waited for: whoever calls may be the
event loop, or a fork of it whose thread is gone.

Keeps who reads lines from being told the same over and over.

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
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from contextvars import Context as LogContext
from contextvars import copy_context
from datetime import UTC, datetime
from functools import partial
from typing import Final, TypeAlias

import attrs

QUEUED_MAX: Final = 1_000  # lines that may wait for who reads them
PATIENCE_S: Final = 0.05  # a good deal longer than a line takes, and a good deal shorter than a TTL


@attrs.frozen
class _Line:
    write: Callable[[], object]
    context: LogContext  # what is bound for logging where it was said
    is_over: threading.Event


@attrs.define(eq=False)
class Scribe:
    """One for each place where lines go."""

    on_dropped: Callable[[int], object]  # writes a line that says how many were not written
    patience_s: float = PATIENCE_S  # 0: nothing of a line runs in the thread that says it
    is_late: bool = attrs.field(init=False, default=False)  # lines are read more slowly than said
    dropped: int = attrs.field(init=False, default=0)  # not told yet
    _lines: deque[_Line] = attrs.field(init=False, factory=deque)
    _writing: threading.Lock = attrs.field(init=False, factory=threading.Lock)
    _process: int = attrs.field(init=False, factory=os.getpid)

    def write(self, line: Callable[[], object]) -> None:
        """Have a line written, soon; from any thread.  What it raises is counted as not written."""
        if self._process != os.getpid():
            self._begin_anew()
        if len(self._lines) >= QUEUED_MAX:
            self.dropped += 1
            return
        told = self._put(line)
        if self.patience_s and not self.is_late and not told.is_over.wait(self.patience_s):
            self.is_late = True

    def settle(self, limit_s: float) -> None:
        """Wait until all is written that was said before, at most so long: the process ends."""
        self._put(int).is_over.wait(limit_s)

    def _put(self, line: Callable[[], object]) -> _Line:
        told = _Line(line, copy_context(), threading.Event())
        self._lines.append(told)
        self._see_to_it()
        return told

    def _see_to_it(self) -> None:
        if not self._writing.acquire(blocking=False):
            return  # whoever has it looks again before it ends
        if self._has_begun():
            return
        if self.patience_s:
            self._drain()
        else:
            self._writing.release()  # it is kept, and the next one tries again

    def _has_begun(self) -> bool:
        """Begin the thread; False where there can be none."""
        if sys.is_finalizing():  # who starts one then waits for it for ever, before Python 3.12
            return False
        try:
            # Daemon: a process may end though nobody reads.
            threading.Thread(target=self._drain, name="pool-log", daemon=True).start()
        except RuntimeError:  # there are too many
            return False
        return True

    def _drain(self) -> None:
        while True:
            while self._lines:
                line = self._lines.popleft()
                self._write(line.write, line.context)
                line.is_over.set()
            self.is_late = False
            dropped, self.dropped = self.dropped, 0
            if dropped:
                self._write(partial(self.on_dropped, dropped), LogContext())
            self._writing.release()
            if not self._lines or not self._writing.acquire(blocking=False):
                return

    def _write(self, line: Callable[[], object], context: LogContext) -> None:
        try:
            context.run(line)
        except BaseException:  # noqa: BLE001 - where it failed it would be told in vain
            self.dropped += 1

    def _begin_anew(self) -> None:
        """In a forked child: what the parent had not written is the parent's."""
        self._process, self._writing = os.getpid(), threading.Lock()
        self._lines, self.dropped, self.is_late = deque(), 0, False


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
