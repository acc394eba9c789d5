"""Schedules: when they are due, and how `Node.schedules` tells of them."""

from __future__ import annotations

from pool.core.times import At, Cron, Every
from pool.jobs.client.schedules import Schedule, ScheduleList, Schedules

__all__ = ["At", "Cron", "Every", "Schedule", "ScheduleList", "Schedules"]
