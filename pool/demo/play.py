"""The script of the demo: who plays, how fast, and how long the conductor waits for what."""

from __future__ import annotations

import json
from typing import Final

import attrs

# Enough for four nodes; each name is a label, so that a run places its keys as the last one did.
NAMES: Final = ("north", "east", "south", "west")

CLOCKS: Final = (
    *("Africa/Cairo", "Africa/Lagos", "Africa/Nairobi", "America/Anchorage", "America/Bogota"),
    *("America/Chicago", "America/Los_Angeles", "America/New_York", "America/Sao_Paulo"),
    *("America/St_Johns", "Asia/Dubai", "Asia/Kathmandu", "Asia/Kolkata", "Asia/Shanghai"),
    *("Asia/Tokyo", "Australia/Adelaide", "Australia/Sydney", "Europe/Athens", "Europe/Dublin"),
    *("Europe/London", "Europe/Madrid", "Pacific/Auckland", "Pacific/Chatham", "Pacific/Honolulu"),
)


@attrs.frozen(kw_only=True)
class PlayPace:
    """How long the work takes.  Computing one zone is far too quick to be killed in the middle."""

    zone_min_s: float = 4.0
    zone_max_s: float = 9.0
    tick_s: float = 0.5
    notify_s: float = 0.1  # between two notifications, each to the next clock


@attrs.frozen(kw_only=True)
class Play:
    """The whole demo in numbers."""

    ttl_s: float = 2.0
    grace_s: float = 2.0
    workers: int = 4  # per node: each settles by itself, so that a freeze catches several at it
    pace: PlayPace = PlayPace()
    deadline_s: float = 40.0  # then the curtain falls, whatever is done
    patience_s: float = 8.0  # for one thing to happen that should take seconds


@attrs.frozen(kw_only=True)
class Cast:
    """What one member process is told."""

    name: str
    loop: str
    url: str
    pool: str
    ledger: str
    workers: int
    capacity: int
    ttl_s: float
    grace_s: float
    pace: PlayPace

    def pack(self) -> str:
        """Return it as a word of a command line."""
        return json.dumps(attrs.asdict(self))

    @classmethod
    def parse(cls, text: str) -> Cast:
        """Return what `pack()` packed."""
        fields = json.loads(text)
        return cls(**{**fields, "pace": PlayPace(**fields["pace"])})
