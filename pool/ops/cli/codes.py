"""How a command ends, as `pool.ops.cli` tells it."""

from __future__ import annotations

from typing import Final

OK: Final = 0
FINDING: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 3
PARTLY: Final = 4  # lanes are away: what could be read is shown, and the rest is named
PROTOCOL: Final = 5  # the pool is of a version that keeps it in another layout
INTERRUPTED = 128 + 2  # as a shell says of a program that SIGINT ended
