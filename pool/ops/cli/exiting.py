"""The last second of a worker's process: it ends, whatever a handler has left behind.

    the node has left --begin--> a second --> _exit(70)
        anyio.run() returns --over--> main() returns --begin--> a second --> _exit(70)

The interpreter waits at its end for threads and executors (also of finished jobs), for processes of
`multiprocessing`, and for functions of `atexit`.  Nothing can interrupt those, and by then their
keys may be another worker's.  A daemon thread is the clock: it runs until Python has called the
last function of `atexit`.  What blocks after that, or holds the GIL, is ended by the C thread of
`faulthandler`, 4 s later and with exit code 1: so much, because that thread also ends an orderly
end that a busy machine holds up.  A line on standard error says what went on.
"""

from __future__ import annotations

import faulthandler
import os
import select
import sys
import threading
from typing import Final

import attrs

from pool.jobs.fleet.keepalive import EXIT_CODE
from pool.ops.logs import line

AFTER_S: Final = 1.0
_LAST_S: Final = 5 * AFTER_S  # for the C thread
ENDS_S: Final = AFTER_S + _LAST_S  # from the node's end to that of the process, at most

_STANDARD_ERROR: Final = 2
_THREADS_MAX: Final = 10  # that are named


@attrs.define(eq=False)
class LateEnd:
    """A timer that ends the process; it may be begun again once it is over."""

    is_json: bool  # the form of its line
    _timer: threading.Timer | None = attrs.field(init=False, default=None)
    _began: int = attrs.field(init=False, default=0)  # how often: first the loop ends, then Python

    def begin(self) -> None:
        """Start it."""
        self._began += 1
        self._timer = threading.Timer(AFTER_S, self._end)
        self._timer.daemon = True
        self._timer.start()
        nowhere = os.open(os.devnull, os.O_WRONLY)  # the stacks go there, until the process ends
        faulthandler.dump_traceback_later(_LAST_S, exit=True, file=nowhere)

    def over(self) -> None:
        """Stop it."""
        if self._timer is not None:
            self._timer.cancel()
        faulthandler.cancel_dump_traceback_later()

    def _end(self) -> None:
        """End the process, and those of `multiprocessing`, which would never notice."""
        processes = sys.modules.get("multiprocessing.process")
        active = [] if processes is None else processes.active_children()
        for process in active:
            process.kill()
        try:
            self._tell(len(active))
        finally:
            os._exit(EXIT_CODE)

    def _tell(self, processes: int) -> None:
        """Say what the process would have waited for."""
        if threads := [each.name for each in threading.enumerate() if _is_waited_for(each)]:
            more = ", ..." if len(threads) > _THREADS_MAX else ""
            what = f"threads that go on: {', '.join(threads[:_THREADS_MAX])}{more}"
        elif processes:
            what = "processes of multiprocessing"
        else:
            what = "a task that goes on" if self._began == 1 else "a function of atexit"
        facts = {"code": EXIT_CODE, "waits_for": what}
        text = line("error", "process.hangs", is_json=self.is_json, **facts)
        # A pipe that takes anything takes a line: who stalls does not hold us up.
        if select.select([], [_STANDARD_ERROR], [], 0)[1]:
            os.write(_STANDARD_ERROR, f"{text}\n".encode(errors="backslashreplace"))


def _is_waited_for(thread: threading.Thread) -> bool:
    return not thread.daemon and thread is not threading.main_thread()
