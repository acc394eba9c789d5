"""Many jobs as one: what `Node.batch()` and `Node.batches` return."""

from __future__ import annotations

from pool.jobs.client.batch import Batch, Refused
from pool.jobs.client.batch_ref import Batches, BatchRef, BatchStatus, Member, Members

__all__ = ["Batch", "BatchRef", "BatchStatus", "Batches", "Member", "Members", "Refused"]
