"""For callers that block: threads, Django, Flask, Celery's tasks, scripts and notebooks."""

from __future__ import annotations

from pool.jobs.sync.client import Client, Letters, MapReader, Ref

__all__ = ["Client", "Letters", "MapReader", "Ref"]
