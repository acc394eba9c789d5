"""Celery on Redis, its thread pool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from celery import Celery

from benchmarks.peers.protocol import BlockingAdapter, Words, hold_thread, main, mark

VISIBILITY_SAFE_S = 5
WORKER = ("worker", "--pool=threads", "--without-gossip", "--without-mingle", "--loglevel=ERROR")


class OfCelery(BlockingAdapter):
    """A list, and a hash of what was delivered and is not acknowledged."""

    distributions: ClassVar[Words] = ("celery", "kombu", "redis", "hiredis")
    docs: ClassVar[str] = (
        "https://docs.celeryq.dev/en/stable/userguide/optimizing.html and"
        " getting-started/backends-and-brokers/redis.html"
    )
    usual: ClassVar[str] = (
        "--pool=threads, 8 threads, task_ignore_result, acks_late for held jobs (else a kill loses"
        " them), visibility_timeout 1 h (default)"
    )
    results: ClassVar[str] = "Redis result backend"
    safe: ClassVar[str] = (
        f"visibility_timeout={VISIBILITY_SAFE_S} (no setting is safe for jobs that run longer)"
    )
    left: ClassVar[tuple[Words, ...]] = (("LLEN", "celery"), ("HLEN", "unacked"))
    cannot: ClassVar[Mapping[str, str]] = {"dispatch_bulk": "a group is sent one by one"}

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        more = {"backend": self.url} if self.has_results else {}
        self.app = Celery("bench", broker=self.url, **more)
        self.app.conf.update(task_ignore_result=not self.has_results)
        if self.is_safe:
            self.app.conf.broker_transport_options = {"visibility_timeout": VISIBILITY_SAFE_S}

        @self.app.task(name="noop")
        def noop(number: int) -> None:
            mark(number)

        @self.app.task(name="held", acks_late=True)
        def held(number: int) -> None:
            hold_thread(number)

        self.noop, self.held_task = noop, held

    def work(self) -> None:
        """Be a worker."""
        self.app.worker_main([*WORKER, f"--concurrency={self.slots or 8}"])

    def enqueue(self, number: int) -> Any:
        """Send the task."""
        return self.noop.delay(number)

    def enqueue_held(self, number: int) -> None:
        """Send the task."""
        self.held_task.delay(number)

    def result(self, ref: Any) -> None:
        """Wait for the message."""
        ref.get()


if __name__ == "__main__":
    main(OfCelery)
