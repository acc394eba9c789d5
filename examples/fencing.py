"""Fencing: `job.epoch` keeps a former owner from overwriting what the present one wrote.

It prints:

    attempt 1 wrote 'draft': True
    attempt 2 wrote 'final': True
    attempt 1, late, wrote 'stale': False
    the store has 'final'
"""

from __future__ import annotations

import sqlite3

import anyio

from pool import Handlers, Job, Node, Retry

SCHEMA = "CREATE TABLE reports (key TEXT PRIMARY KEY, value TEXT, epoch INTEGER)"
# One statement checks and writes.  An epoch only rises, so an equal one is the same owner again.
PUT = """
    INSERT INTO reports VALUES (?, ?, ?)
    ON CONFLICT (key) DO UPDATE SET value = excluded.value, epoch = excluded.epoch
    WHERE excluded.epoch >= reports.epoch
"""

store = sqlite3.connect(":memory:")
epochs: list[int] = []
handlers = Handlers()


def put(key: str, value: str, epoch: int) -> bool:
    """Write, unless somebody with a higher epoch has written; say whether it was done."""
    with store:
        return store.execute(PUT, (key, value, epoch)).rowcount == 1


@handlers.job("report")
async def report(job: Job) -> None:
    epochs.append(job.epoch)
    value = "draft" if job.attempt == 1 else "final"
    print(f"attempt {job.attempt} wrote {value!r}: {put(job.key, value, job.epoch)}")
    if job.attempt == 1:
        raise Retry(after_s=0.0, cause="a draft is not enough")


async def main() -> None:
    store.execute(SCHEMA)
    async with Node("reports", "embedded://", handlers=handlers) as node:
        ref = await node.dispatch(report, "report-7")
        await ref.result(timeout_s=10)
    # What a machine that was frozen in the middle of attempt 1 would do when it wakes up.
    print(f"attempt 1, late, wrote 'stale': {put('report-7', 'stale', epochs[0])}")
    [value] = store.execute("SELECT value FROM reports").fetchone()
    print(f"the store has {value!r}")


if __name__ == "__main__":
    anyio.run(main)
