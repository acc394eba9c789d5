"""Plans: what `Handlers.plan()` takes from a producer, and what `Node.plan()` tells."""

from __future__ import annotations

from pool.core.plans import PlanTurn
from pool.jobs.client.plans import PlanDiff, PlanRef, PlanStatus
from pool.jobs.planned import Planned
from pool.jobs.producing import StopAll

__all__ = ["PlanDiff", "PlanRef", "PlanStatus", "PlanTurn", "Planned", "StopAll"]
