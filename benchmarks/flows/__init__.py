"""Batches, fan-in and schedules beside those of other libraries: `python -m benchmarks.flows`."""
