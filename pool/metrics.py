"""Figures and health of a node: `Metrics` counts, `health()` judges, `MetricsApp` tells."""

from __future__ import annotations

from pool.ops.endpoints import Health, HealthPart, MetricsApp, health
from pool.ops.metrics import MetricFamily, Metrics, Sample
from pool.ops.rates import keep_rates

__all__ = [
    "Health",
    "HealthPart",
    "MetricFamily",
    "Metrics",
    "MetricsApp",
    "Sample",
    "health",
    "keep_rates",
]
