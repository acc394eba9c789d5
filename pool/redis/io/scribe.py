"""Writes lines in a thread, so that a full pipe or a dead disk holds up no event loop.

    write() --> queue --a thread, until it is empty--> written
        waits for it, at most `patience_s`: most often it is as if we had written it ourselves
        if that was not enough nobody waits until all is written: QUEUED_MAX lines are kept, the
        others are counted, and told behind those

Nothing runs while there is nothing to write.  No lock is ever waited for: whoever calls may be the
event loop, or a fork of it whose thread is gone.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextvars import Context as LogContext
from contextvars import copy_context
from functools import partial
from typing import Final

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
