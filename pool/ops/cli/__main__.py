"""`python -m pool.ops.cli`: the same as `pool`."""

from __future__ import annotations

import sys

from pool.ops.cli import main

if __name__ == "__main__":
    sys.exit(main())
