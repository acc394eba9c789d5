"""Whether the stack has room for us: who calls from one that is nearly exhausted is refused.

A `RecursionError` may come at any of our own calls, between two steps that belong together: what is
told, and not woken, would wait for ever.  So it is raised where users come in, before anything is
touched.  What the user's coroutine awaits stands in his stack again when it goes on, and no deeper.
"""

from __future__ import annotations

import sys
from typing import Final

# Frames that a call of ours may need.  Those measured took 16; observers, codecs, and what is
# imported when it is first used come on top.
HEADROOM: Final = 200

# Python 3.12 and later: None where the stack is not so deep, at a fraction of what an error costs.
_module_at = getattr(sys, "_getframemodulename", None)


def check_headroom() -> None:
    """Refuse a caller whose stack is nearly exhausted; most are not even a quarter down.

    Raises:
        RecursionError: There is room for fewer than `HEADROOM` calls more.
    """
    quarter = sys.getrecursionlimit() // 4
    if _module_at is not None:
        if _module_at(quarter) is None:
            return
    else:
        try:
            sys._getframe(quarter)
        except ValueError:
            return
    try:
        _dive(HEADROOM)
    except RecursionError:
        problem = f"pool was called with fewer than {HEADROOM} frames left of"
        limit = f"the recursion limit, {sys.getrecursionlimit()}: nothing was done"
        raise RecursionError(f"{problem} {limit}") from None


def _dive(levels: int) -> None:
    if levels:
        _dive(levels - 1)
