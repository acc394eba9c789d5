"""What a handler raised, read once and by its type, right where it ended: from there on plain data.

An exception is user code in all that can be asked of it: `isinstance` reads its `__class__`, `str`
its `__str__`, and a group's `split` and `exceptions` may be its own.  If one of them raises, it is
that attempt which has failed, and no more.
"""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from typing import Any, Final, Literal

import attrs

from pool import checks
from pool.core.record import TRACEBACK_CHARS_MAX, cut
from pool.jobs.job import Cancel, Park, Retry
from pool.redis.io.loops import is_cancellation
from pool.runtime.exceptions import leaves, members, told

_OURS: Final = f"{Path(__file__).parents[1]}{os.sep}"
_ORDERS: tuple[tuple[type, Literal["retry", "cancel", "park"]], ...] = (
    (Retry, "retry"),
    (Cancel, "cancel"),
    (Park, "park"),
)


@attrs.frozen(eq=False)
class Raised:
    """It raised; what that means depends on what it raised.

    A cancellation that we did not ask for is an error like any other: of this job alone.
    """

    text: str  # what is kept of it
    order: Literal["", "retry", "cancel", "park"] = ""
    cause: str = ""  # of an order
    after_s: float | None = None
    is_cancellation: bool = False
    traceback: str = ""
    # Ctrl-C, for all that can be seen, which is for the node.
    interrupt: KeyboardInterrupt | None = None


def read(error: BaseException) -> Raised:
    """Return what is to be known of an error; whatever that does, this returns."""
    try:
        return _read(error)
    except BaseException as worse:  # noqa: BLE001 - what it is asked is user code
        return Raised(told(worse), interrupt=_interrupt(worse))


def _read(error: BaseException) -> Raised:
    text, order = told(error), error
    while len(inner := members(order)) == 1:  # raised in a task of the handler's: groups wrap it
        order = inner[0]
    for kind, word in _ORDERS:
        if issubclass(type(order), kind):
            given: Any = order
            after_s = given.after_s if word == "retry" else None
            after_s = checks.seconds("after_s", after_s, or_none=True)
            return Raised(text, word, checks.as_text(given.cause), after_s)
    interrupts = (found for each in leaves(error) if (found := _interrupt(each)) is not None)
    return Raised(
        text,
        is_cancellation=is_cancellation(error),
        traceback=_traceback(error),
        interrupt=next(interrupts, None),
    )


def _traceback(error: BaseException) -> str:
    """Return it as text, from the user's first frame on; a group's members, notes and causes are
    what its user made them.
    """
    try:
        first = frames = error.__traceback__
        while first is not None and first.tb_frame.f_code.co_filename.startswith(_OURS):
            first = first.tb_next
        lines = traceback.format_exception(type(error), error, first or frames)
        return cut("".join(lines), TRACEBACK_CHARS_MAX)
    except Exception:  # noqa: BLE001 - of the caller's own code
        return ""


def _interrupt(error: BaseException) -> KeyboardInterrupt | None:
    if not issubclass(type(error), KeyboardInterrupt):
        return None
    return error if type(error) is KeyboardInterrupt else KeyboardInterrupt()
