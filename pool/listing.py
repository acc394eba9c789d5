"""Many jobs at once: what `Node.jobs()`, `Node.stop_all()` and `JobRef.stages()` return."""

from __future__ import annotations

from pool.jobs.client.listing import JobPage
from pool.jobs.client.ref import Stage
from pool.jobs.client.stopping import StopReport

__all__ = ["JobPage", "Stage", "StopReport"]
