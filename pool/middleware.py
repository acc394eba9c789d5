"""What stands around handlers, by name: what middleware sees, and what hooks hear."""

from __future__ import annotations

from pool.jobs.around import Happened, Outgoing

__all__ = ["Happened", "Outgoing"]
