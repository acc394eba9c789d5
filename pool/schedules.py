"""Schedules and tickers: when they are due, and how a node tells of them."""

from __future__ import annotations

from pool.core.times import At, Cron, Every
from pool.jobs.client.schedules import Schedule, ScheduleList, Schedules, Ticker, TickInfo

__all__ = ["At", "Cron", "Every", "Schedule", "ScheduleList", "Schedules", "TickInfo", "Ticker"]
