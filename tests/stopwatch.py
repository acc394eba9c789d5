"""Time as a machine that has nothing else to do would have counted it.

A bound of time in a test is about the library, not about who else wanted the processors.  So a
thread sleeps again and again, beside what is judged, and what it is late is taken off: whoever
waited for a message, a timer or an answer in that time was late for the same reason.  On an idle
machine it is late by a tenth of a millisecond and takes off nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Self

import attrs

_NAP_S: Final = 0.005
_LATE_S: Final = 0.001  # less is what a sleep costs anywhere


@attrs.define(eq=False)
class Stopwatch:
    """How long it took, but for the time in which nobody came to run."""

    lease_ttl_s: float | None = None  # if what is judged is a lease's end
    began_s: float = attrs.field(factory=time.monotonic)
    _late: list[tuple[float, float]] = attrs.field(factory=list)  # when it was, and by how much
    _is_over: threading.Event = attrs.field(factory=threading.Event)
    _thread: threading.Thread | None = None

    def restart(self) -> None:
        """Count from now on."""
        self.began_s = time.monotonic()

    def took_s(self, since_s: float | None = None, until_s: float | None = None) -> float:
        """Return the seconds between two moments of `time.monotonic`, unless told from the
        beginning until now."""
        since_s = self.began_s if since_s is None else since_s
        until_s = time.monotonic() if until_s is None else until_s
        lost_s = sum(
            min(late_s, at_s - since_s) for at_s, late_s in self._between(since_s, until_s)
        )
        return until_s - since_s - lost_s - self._quiet_s(since_s, until_s)

    def _between(self, since_s: float, until_s: float) -> list[tuple[float, float]]:
        return [each for each in list(self._late) if since_s < each[0] <= until_s]

    def _quiet_s(self, since_s: float, until_s: float) -> float:
        """Return for how long nobody was fenced: one lease after each half of one without renewals.

        A fifth of a lease lies between two of them anyhow.
        """
        if self.lease_ttl_s is None:
            return 0.0
        found = self._between(since_s, until_s)
        return self.lease_ttl_s * sum(late_s > 0.3 * self.lease_ttl_s for _, late_s in found)

    def start(self) -> Self:
        """Begin to count; returns itself."""
        self._thread = threading.Thread(target=self._run, name="stopwatch", daemon=True)
        self._thread.start()
        return self

    def end(self) -> None:
        """Count no more; returns when its thread has ended."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        before_s = time.monotonic()
        while not self._is_over.wait(_NAP_S):
            now_s = time.monotonic()
            late_s = now_s - before_s - _NAP_S
            if late_s > _LATE_S:
                self._late.append((now_s, late_s))
            before_s = time.monotonic()


@contextmanager
def stopwatch(lease_ttl_s: float | None = None) -> Iterator[Stopwatch]:
    """Count from now on, until the block ends."""
    watch = Stopwatch(lease_ttl_s).start()
    try:
        yield watch
    finally:
        watch.end()
