"""By when a job must have begun, or is not begun any more, as `more` of its record says.

The scripts write it, and decide by it (`lua/lib/lapse.lua`).
"""

from __future__ import annotations

import re
from typing import Final, Literal, TypeAlias

from pool import checks
from pool.core.digits import number_or
from pool.core.record import Record, more_of

Lapse: TypeAlias = Literal["", "expires", "start"]

NOT_IN_TIME: Final = "not started in time"  # the cause of a job that has expired
LIMIT_S_MIN: Final = 0.01


def begin_limits(
    expires_s: object, start_timeout_s: object, delay_s: float = 0.0
) -> tuple[float | None, float | None]:
    """Return by when a job must have begun, and for how long each attempt may wait for that.

    Raises:
        InvalidOption: One is out of bounds, or they do not go together.
    """
    expires = checks.seconds("expires_s", expires_s, LIMIT_S_MIN, or_none=True)
    start = checks.seconds("start_timeout_s", start_timeout_s, LIMIT_S_MIN, or_none=True)
    if expires is not None and expires <= delay_s:
        raise checks.option("expires_s", expires, f"more than delay_s, {delay_s:g}")
    if expires is not None and start is not None and start > expires:
        raise checks.option("start_timeout_s", start, f"expires_s, {expires:g}, or less")
    return expires, start


def postponed(more: str, wait_ms: int) -> str:
    """Return `more` of a job that is accepted so much earlier than its `expires_s` begins."""
    return re.sub(r"(^|,)x([0-9]+)", lambda found: f"{found[1]}x{int(found[2]) + wait_ms}", more)


def ends_ms(more: str, name: Literal["expires", "start"]) -> int:
    """Return by when it must have begun, in pool time; 0: whenever, or it has."""
    return number_or(0, more_of(more, name).partition("/")[2])


def begin_by_ms(more: str) -> int:
    """Return the earlier of both; 0: whenever."""
    ends = (ends_ms(more, "expires"), ends_ms(more, "start"))
    return min((at for at in ends if at), default=0)


def lapsed(record: Record, now_ms: int) -> Lapse:
    """Return for what it is too late by then."""
    for name in ("expires", "start"):
        if 0 < ends_ms(record.more, name) <= now_ms:
            return name
    return ""


def limits_s(more: str) -> list[float]:
    """Return in how long one that is accepted now may be too late, of each limit that it has."""
    limits = (more_of(more, name).partition("/")[0] for name in ("expires", "start"))
    return [number_or(0, ms) / 1000 for ms in limits if ms]
