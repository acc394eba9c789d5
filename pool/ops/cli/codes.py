"""How a command ends, as `pool.ops.cli` tells it."""

from __future__ import annotations

from typing import Final

OK: Final = 0
FINDING: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 3
