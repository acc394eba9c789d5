"""What `Metrics` costs a job: what a worker and a dispatcher tell it is told here as they do.

    python -m benchmarks.metrics

Beside all that a job is it would not be seen: blocks of such tellings take turns with blocks of the
same where nobody counts, and the figure is the median of the differences between neighbours, in
microseconds of this process's own time.  At most 10 us a job are allowed.  What jobs pay where no
observer counts is `python -m benchmarks.instructions REV`.
"""

from __future__ import annotations

import statistics
from time import process_time
from typing import Final

import anyio

from pool import Call, Handlers, Job, Node
from pool.core.crash_marks import NO_MARKS
from pool.core.record import Start
from pool.events import JobAccepted
from pool.jobs.run import Run
from pool.jobs.worker.telling import Teller
from pool.metrics import Metrics
from pool.redis.commands.edges import Changed, DoneEdge, EdgeStatus

JOBS: Final = 2000
TOLD: Final = 5000
ROUNDS: Final = 15
ALLOWED_US: Final = 10.0

handlers = Handlers()


@handlers.job("noop")
async def noop(job: Job) -> None:
    """Do nothing."""


def told_us(teller: Teller | None, run: Run) -> float:
    """Return how long it takes to tell of a job: accepted, started, ended, settled."""
    sent, changed = (DoneEdge(run.key, 1, run.start.id), run), Changed(EdgeStatus.DONE, "")
    began_s = process_time()
    for _ in range(TOLD):
        if teller is not None:
            listeners = teller.listeners
            share = listeners.share(run.key, run.start.id)
            if share is not None:
                about = {"handler": "noop", "key": run.key, "job_id": run.start.id}
                listeners.tell(share, JobAccepted(**about, took_s=0.001))
            teller.started(run, "w.1")
            teller.ended(run)
            for _ in teller.telling("w.1", [(sent, changed)]):
                pass
    return (process_time() - began_s) / TOLD * 1e6


async def job_us(node: Node) -> float:
    """Return how long a whole job takes: dispatched, run, waited for."""
    began_s = process_time()
    for ref in await node.dispatch_many(noop, [Call(f"k-{n}") for n in range(JOBS)]):
        assert not isinstance(ref, Exception)
        await ref.result()
    return (process_time() - began_s) / JOBS * 1e6


async def main() -> None:
    """Measure and print."""
    async with Node("counted", "embedded://", handlers=handlers, observers=[Metrics()]) as node:
        assert node._wiring is not None
        context = node._wiring.context
        assert context.jobs is not None
        teller = Teller(context, context.jobs)
        start = Start("tenant-17", "i", "noop", "job", 1, 1, "", NO_MARKS, 1, b"")
        run = Run(start, 0, context.io.clock())
        run.began_s = context.io.clock()
        more: list[float] = []
        for at in range(ROUNDS + 1):
            without_us, with_us = told_us(None, run), told_us(teller, run)
            if at:  # the first is to warm up
                more.append(with_us - without_us)
    async with Node("plain", "embedded://", handlers=handlers, observers=()) as node:
        whole_us = await job_us(node)
    more_us = statistics.median(more)
    verdict = "within" if more_us <= ALLOWED_US else "over"
    print(f"a whole job without: {whole_us:.0f} us")
    print(f"Metrics: {more_us:+.1f} us a job, {more_us / whole_us:.1%} of that")
    print(f"{verdict} the {ALLOWED_US:.0f} us that are allowed")


if __name__ == "__main__":
    anyio.run(main)
