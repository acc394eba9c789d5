"""How long processes were ready to run and had no processor, so that bounds of time can be fair.

Linux counts that for each thread: neither a process that is stopped or waits, nor one whose threads
wait for each other, counts.  On a machine without such counters nothing is excused.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import attrs


@attrs.frozen
class Processors:
    """What was counted so far, of each thread."""

    _before: dict[Path, int] = attrs.field(factory=dict)

    def waited_s(self, pid: int) -> float:
        """Return what a process's thread waited most since it was asked for last; first 0."""
        waited_ns, threads = 0, list[Path]()
        with suppress(OSError):  # the process has ended meanwhile, or the thread has
            threads = list(Path(f"/proc/{pid}/task").iterdir())
        for thread in threads:
            path = thread / "schedstat"
            with suppress(OSError):
                number = int(path.read_text().split()[1])
                waited_ns = max(waited_ns, number - self._before.get(path, number))
                self._before[path] = number
        return waited_ns / 1e9
