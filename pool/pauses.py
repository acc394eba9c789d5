"""Pauses, cordons and drains: what `Node.pause()`, `Node.cordon()` and the like return."""

from __future__ import annotations

from pool.core.pauses import Cordon, Pause
from pool.jobs.client.pausing import CordonReport, Operating, PauseReport

__all__ = ["Cordon", "CordonReport", "Operating", "Pause", "PauseReport"]
