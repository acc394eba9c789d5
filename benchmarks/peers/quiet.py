"""Whether anything else runs on this machine: a comparison of a noisy hour flatters somebody.

The load average of before the run is what refuses.  Later it says nothing of others, because our
own work stands in it for minutes; then the processor is looked at while nothing of ours runs.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Final

LOAD_MAX: Final = 0.5
OTHERS_MAX: Final = 0.1  # processors' worth of work that others may do
WAIT_S: Final = 30.0  # for them to stop; whoever has not by then is noted
_LOOK_S: Final = 1.0
_STAT: Final = Path("/proc/stat")
_IDLE: Final = slice(3, 5)  # of the fields of `cpu`: idle, and waiting for a disk
_ALL: Final = slice(0, 8)  # up to what a hypervisor gave to others; guests are in the first two


def refusal(load: float) -> str:
    """Return why a run must not begin under this load average, or nothing."""
    if load <= LOAD_MAX:
        return ""
    return (
        f"The machine is busy: its load is {load:.2f}, and a comparison begins at {LOAD_MAX:g} at "
        "most.  Wait until nothing else runs (the load falls within some minutes), or give --busy: "
        "that measures at once, prints, and writes no page."
    )


def wait_quiet(before: str, wait_s: float = WAIT_S) -> dict[str, Any]:
    """Wait until others do nothing, but not for ever; return what is known of them.

    `others` is how many processors were busy while nothing of ours ran, None where that cannot be
    seen.
    """
    began_s = time.monotonic()
    load = os.getloadavg()[0]
    others = _others()
    while others is not None and others > OTHERS_MAX and time.monotonic() - began_s < wait_s:
        others = _others()
    return {
        "before": before,
        "load": round(load, 2),
        "others": None if others is None else round(others, 2),
        "waited_s": round(time.monotonic() - began_s, 1),
    }


def _others() -> float | None:
    if not _STAT.exists():
        return None
    used_before, all_before = _ticks()
    time.sleep(_LOOK_S)
    used, passed = _ticks()
    return (os.cpu_count() or 1) * (used - used_before) / max(1, passed - all_before)


def _ticks() -> tuple[int, int]:
    """Return how much of the processors' time was used, and how much there was."""
    fields = [int(word) for word in _STAT.read_text("ascii").split("\n", 1)[0].split()[1:]]
    return sum(fields[_ALL]) - sum(fields[_IDLE]), sum(fields[_ALL])
