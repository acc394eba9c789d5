"""The work of the demo: when a zone's clocks were changed, found by asking `zoneinfo` over time.

Nobody lists changes for us: we look at the clock every few days and, where it differs, halve the
time between until the second is found.
"""

from __future__ import annotations

import zoneinfo
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib import resources
from itertools import pairwise
from typing import Final
from zoneinfo import ZoneInfo

from pool.demo.tzif import Change, State

SINCE_S: Final = int(datetime(1970, 1, 1, tzinfo=UTC).timestamp())
UNTIL_S: Final = int(datetime(2038, 1, 1, tzinfo=UTC).timestamp())
# Between two looks nobody may change the clocks and change them back.  The shortest time that was
# ever tried is just under seven days (Fernando de Noronha, October 2000).
_STEP_S: Final = 6 * 86_400


def names() -> list[str]:
    """Return the names of all zones, as the `tzdata` package lists them."""
    return (resources.files("tzdata") / "zones").read_text("utf-8").split()


def file_of(name: str) -> bytes:
    """Return the bytes of a zone's file in the `tzdata` package."""
    return resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).read_bytes()


def read_package_only() -> None:
    """Have `zoneinfo` read the `tzdata` package in this process, never the system's files."""
    zoneinfo.reset_tzpath(())
    ZoneInfo.clear_cache()


def state_at(zone: ZoneInfo, at_s: int) -> State:
    """Return what the zone's clocks show at this UTC second."""
    moment = datetime.fromtimestamp(at_s, zone)
    offset = moment.utcoffset()
    assert offset is not None  # a ZoneInfo always knows
    return State(int(offset.total_seconds()), bool(moment.dst()), moment.tzname() or "")


def transitions(zone: ZoneInfo, since_s: int, until_s: int) -> Iterator[Change]:
    """Yield every change of offset after `since_s` and before `until_s`."""
    looks = [*range(since_s, until_s - 1, _STEP_S), until_s - 1]
    show = datetime.fromtimestamp  # most of the time goes here
    offsets = [show(at_s, zone).utcoffset() for at_s in looks]
    for (low_s, low), (high_s, high) in pairwise(zip(looks, offsets, strict=True)):
        before_s, before = low_s, low
        while before != high:
            # Two changes may lie between two looks: find the first, then compare again.
            before_s = _first_change(zone, before_s, high_s, before)
            before = _offset(zone, before_s)
            yield before_s, state_at(zone, before_s)


def _offset(zone: ZoneInfo, at_s: int) -> timedelta | None:
    return datetime.fromtimestamp(at_s, zone).utcoffset()


def _first_change(zone: ZoneInfo, low_s: int, high_s: int, low: timedelta | None) -> int:
    """Halve the time between two looks that differ, until the second is found."""
    while high_s - low_s > 1:
        middle_s = (low_s + high_s) // 2
        if _offset(zone, middle_s) == low:
            low_s = middle_s
        else:
            high_s = middle_s
    return high_s
