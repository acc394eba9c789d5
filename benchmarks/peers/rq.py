"""RQ, its worker that does not fork."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from redis import Redis
from rq import Queue, Retry, SimpleWorker

from benchmarks.peers.protocol import BlockingAdapter, Words, hold_thread, main, mark

HERE = "benchmarks.peers.rq"  # run as a program, this module has another name
JOB_TIMEOUT_S = 300  # held jobs are shorter


def noop(number: int) -> None:
    """Do nothing but note when."""
    mark(number)


def held(number: int) -> None:
    """Go on."""
    hold_thread(number)


class Rq(BlockingAdapter):
    """A list, and a sorted set of what runs; one job at a time in a process."""

    distributions: ClassVar[Words] = ("rq", "redis", "hiredis")
    docs: ClassVar[str] = "https://python-rq.org/docs/workers/"
    usual: ClassVar[str] = "SimpleWorker (no fork for each job)"
    left: ClassVar[tuple[Words, ...]] = (("LLEN", "rq:queue:default"), ("ZCARD", "rq:wip:default"))
    has_bulk: ClassVar[bool] = True
    running_max: ClassVar[int] = 1
    cannot: ClassVar[Mapping[str, str]] = {
        "recovery_safe": "SimpleWorker holds a job for job_timeout + 60 s; the forking Worker frees"
        " it after job_monitoring_interval + 60 s, but each of its jobs is a process of its own"
        " that outlives the killed one",
        "recovery_1000": "one job at a time in a process",
        "running_job_bytes": "one job at a time in a process",
    }

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.queue = Queue(connection=Redis.from_url(self.url, socket_timeout=None))

    def work(self) -> None:
        """Be a worker."""
        worker = SimpleWorker([self.queue], connection=self.queue.connection)
        worker.work(logging_level="WARNING")

    def enqueue(self, number: int) -> Any:
        """Enqueue by reference."""
        return self.queue.enqueue(f"{HERE}.noop", number)

    def enqueue_held(self, number: int) -> None:
        """Enqueue a job that may run long and again."""
        self.queue.enqueue(f"{HERE}.held", number, job_timeout=JOB_TIMEOUT_S, retry=Retry(max=3))

    def enqueue_many(self, numbers: Sequence[int]) -> None:
        """Enqueue all in one pipeline."""
        self.queue.enqueue_many(
            [Queue.prepare_data(f"{HERE}.noop", (number,)) for number in numbers]
        )

    def result(self, ref: Any) -> None:
        """Wait for the result."""
        ref.latest_result(timeout=30)


if __name__ == "__main__":
    main(Rq)
