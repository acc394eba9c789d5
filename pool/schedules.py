"""Schedules as `Node.schedules` tells of them."""

from __future__ import annotations

from pool.jobs.client.schedules import Schedule, ScheduleList, Schedules

__all__ = ["Schedule", "ScheduleList", "Schedules"]
