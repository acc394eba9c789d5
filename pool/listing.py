"""Many jobs at once: what `Node.jobs()` and `Node.stop_all()` return."""

from __future__ import annotations

from pool.jobs.client.listing import JobPage
from pool.jobs.client.stopping import StopReport

__all__ = ["JobPage", "StopReport"]
