"""Many at once: what `Node.jobs()`, `.stop_all()`, `.journal()` and `JobRef.stages()` return."""

from __future__ import annotations

from pool.core.journal import JournalEntry
from pool.jobs.client.journal import Journal
from pool.jobs.client.listing import Gaps, JobPage
from pool.jobs.client.ref import Stage
from pool.jobs.client.stopping import StopReport

__all__ = ["Gaps", "JobPage", "Journal", "JournalEntry", "Stage", "StopReport"]
