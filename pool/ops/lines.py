"""Text streams that never make their writers wait: status lines and log lines of `pool run`.

A full pipe blocks `write()` for as long as its reader stalls.  The parent of `--processes` would
then replace no child and pass on no signal, and a worker would not drain.  So a thread writes (see
`pool.redis.io.scribe`): its callers wait for 0.05 s at most.

The thread writes to the descriptor and not to `sys.stdout`: it would hold that stream's lock while
it waits, and Python waits for this lock at its end.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Final, TextIO, cast

from pool.redis.io.scribe import Scribe

END_S: Final = 1.0  # the last lines may take so long, where the reader is slow
Dropped = Callable[[int], str]


class Lines:
    """A stream of lines; what does not fit is counted, and reported once its reader goes on."""

    def __init__(self, stream: TextIO, dropped: Dropped) -> None:
        self._stream = stream
        self.encoding: str = stream.encoding or "utf-8"
        self._scribe = Scribe(lambda count: self._send(f"{dropped(count)}\n"))

    @property
    def stream(self) -> TextIO:
        """This object as its writers use it: by `write`, `flush`, `isatty` and `encoding`."""
        return cast("TextIO", self)

    def isatty(self) -> bool:
        """Whether the stream below is a terminal."""
        return self._stream.isatty()

    def write(self, text: str) -> int:
        """Have a text written soon."""
        self._scribe.write(partial(self._send, text))
        return len(text)

    def flush(self) -> None:
        """Do nothing: what was written is on its way."""

    def end(self) -> None:
        """Wait until everything is written, for `END_S` at most."""
        self._scribe.settle(END_S)

    def _send(self, text: str) -> None:
        left = memoryview(text.encode(self.encoding, "backslashreplace"))
        while left:
            left = left[os.write(self._stream.fileno(), left) :]
