"""For callers that block: threads, Django, Flask, Celery's tasks, scripts and notebooks."""

from __future__ import annotations

from pool.jobs.sync.client import (
    BlockingBatch,
    BlockingBatches,
    BlockingBatchRef,
    BlockingSchedules,
    Client,
    Letters,
    MapReader,
    Ref,
)

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
