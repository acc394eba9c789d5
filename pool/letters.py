"""Dead letters: what `Node.parked` is, and what it and `JobRef.status` tell of what failed."""

from __future__ import annotations

from pool.core.record import Attempt
from pool.jobs.client.parked import DeadLetters, ManyReplayed, ParkedJob, ParkedPage

__all__ = ["Attempt", "DeadLetters", "ManyReplayed", "ParkedJob", "ParkedPage"]
