"""huey: RedisHuey, worker threads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from huey import RedisHuey

from benchmarks.peers.protocol import BlockingAdapter, Words, hold_thread, main, mark

NAME = "bench"


class Huey(BlockingAdapter):
    """A pop from the list is all that is known of a job that runs."""

    distributions: ClassVar[Words] = ("huey", "redis", "hiredis")
    docs: ClassVar[str] = "https://huey.readthedocs.io/en/latest/consumer.html"
    usual: ClassVar[str] = "RedisHuey (blocking pop), 1 worker thread (default)"
    results: ClassVar[str] = "store_none=True, notify_result=True"
    left: ClassVar[tuple[Words, ...]] = (("LLEN", f"huey.redis.{NAME}"),)
    cannot: ClassVar[Mapping[str, str]] = {
        "dispatch_bulk": "no call for many",
        "running_job_bytes": "a job that runs is nowhere in Redis",
        "recovery": "a job is popped and not acknowledged: a killed worker loses it",
    }

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.huey = RedisHuey(
            NAME, url=self.url, store_none=self.has_results, notify_result=self.has_results
        )

        @self.huey.task()
        def noop(number: int) -> None:
            mark(number)

        @self.huey.task()
        def held(number: int) -> None:
            hold_thread(number)

        self.noop, self.held_task = noop, held

    def work(self) -> None:
        """Be a consumer."""
        self.huey.create_consumer(workers=self.slots or 1, worker_type="thread").run()

    def enqueue(self, number: int) -> Any:
        """Call the task."""
        return self.noop(number)

    def enqueue_held(self, number: int) -> None:
        """Call the task."""
        self.held_task(number)

    def result(self, ref: Any) -> None:
        """Wait for the notification."""
        ref.get(blocking=True)


if __name__ == "__main__":
    main(Huey)
