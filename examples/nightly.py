"""A report for each of 10,000 tenants as one batch, and a mail when all of them are there.

Whichever process dies, the one that makes the batch too, each report counts once and the mail is
sent once.  In a terminal it draws how far it is; it prints

    done: all but 2 succeeded
    no report: tenant-13, tenant-271
    mail: all but 2

`TENANTS=500 python examples/nightly.py` makes it smaller.
"""

import os
import sys

import anyio

from pool import Call, Follower, Handlers, Job, Node
from pool.batches import BatchStatus

handlers = Handlers()
TENANTS = int(os.environ.get("TENANTS", "10000"))
BROKEN = {"tenant-13", "tenant-271"}


@handlers.job("report", attempts_max=1)
async def report(job: Job, day: str) -> int:
    if job.key in BROKEN:
        raise ValueError("no data")
    return len(day)


@handlers.job("mail")
async def mail(_: Job, counts: dict[str, int]) -> str:
    return f"mail: all but {counts['expected'] - counts['succeeded']}"


@handlers.job("every-tenant")
async def every_tenant(job: Job, day: str) -> str:
    """Make the batch; run again after a crash, it adds the same members, and nothing twice."""
    name = f"nightly-{day}"
    then = Follower(mail, "ops").options(takes_result=True)
    async with job.node.batch(name, then=then, success_min=TENANTS * 9 // 10) as batch:
        await batch.add(report, (Call(f"tenant-{n}", day) for n in range(TENANTS)))
    return name


def draw(status: BatchStatus) -> None:
    if sys.stderr.isatty():
        print(f"\r{status.ended} of {status.expected}", end="", file=sys.stderr)


async def main() -> None:
    async with Node("shop", "embedded://", handlers=handlers) as node:
        job = await node.dispatch(every_tenant, "nightly", "2026-11-25")
        batch = node.batches.get(await job.result())
        status = await batch.wait(on_progress=draw)
        print(f"{status.state}: all but {status.expected - status.succeeded} succeeded")
        failed = [member.key async for member in batch.members(report) if member.end == "failed"]
        print("no report:", ", ".join(sorted(failed)))
        [(key, job_id)] = status.released
        print(await (await node.job(key, job_id)).result())


if __name__ == "__main__":
    anyio.run(main)
