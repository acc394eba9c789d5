"""Many jobs as one: what `Node.batch()` and `Node.batches` return."""

from __future__ import annotations

from pool.jobs.client.batches import Batch, Batches, BatchRef, BatchStatus, Member, Members, Refused

__all__ = ["Batch", "BatchRef", "BatchStatus", "Batches", "Member", "Members", "Refused"]
