"""For callers that block: threads, Django, Flask, Celery's tasks, scripts and notebooks."""

from __future__ import annotations

from pool.jobs.sync.batches import BlockingBatch, BlockingBatches, BlockingBatchRef
from pool.jobs.sync.client import Client, Letters, MapReader
from pool.jobs.sync.ref import Ref
from pool.jobs.sync.schedules import BlockingSchedules

__all__ = [
    "BlockingBatch",
    "BlockingBatchRef",
    "BlockingBatches",
    "BlockingSchedules",
    "Client",
    "Letters",
    "MapReader",
    "Ref",
]
