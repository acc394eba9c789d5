"""dramatiq with its Redis broker."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from typing import Any, ClassVar

if sys.argv[-1] == "0":  # the usual number of threads
    os.environ["dramatiq_queue_prefetch"] = "500"  # noqa: SIM112  (its own name, read at import)

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from benchmarks.peers.protocol import BlockingAdapter, Words, hold_thread, main, mark

SAFE: Mapping[str, int] = {"heartbeat_timeout": 2_000, "maintenance_chance": 1_000_000}


class Dramatiq(BlockingAdapter):
    """A list, a hash, and per worker a set of what it has fetched."""

    distributions: ClassVar[Words] = ("dramatiq", "redis", "hiredis")
    docs: ClassVar[str] = "https://dramatiq.io/advanced.html and RedisBroker in reference.html"
    usual: ClassVar[str] = "8 threads (default), dramatiq_queue_prefetch=500"
    results: ClassVar[str] = "Results(RedisBackend)"
    safe: ClassVar[str] = "heartbeat_timeout=2000, maintenance_chance=1000000"
    left: ClassVar[tuple[Words, ...]] = (("HLEN", "dramatiq:default.msgs"),)
    cannot: ClassVar[Mapping[str, str]] = {"dispatch_bulk": "no call for many"}

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        # Each thread takes a connection; redis-py stops at 100 unless it is told.
        url = f"{self.url}?max_connections=5000"
        self.broker = RedisBroker(url=url, **(SAFE if self.is_safe else {}))
        if self.has_results:
            self.broker.add_middleware(Results(backend=RedisBackend(url=self.url)))
        dramatiq.set_broker(self.broker)
        options: dict[str, Any] = {"store_results": True} if self.has_results else {}

        @dramatiq.actor(**options)
        def noop(number: int) -> None:
            mark(number)

        @dramatiq.actor
        def held(number: int) -> None:
            hold_thread(number)

        self.noop, self.held_actor = noop, held

    def work(self) -> None:
        """Be a worker process as `dramatiq` starts it."""
        more: dict[str, Any] = {"worker_threads": self.slots} if self.slots else {}
        dramatiq.Worker(self.broker, **more).start()
        threading.Event().wait()

    def enqueue(self, number: int) -> Any:
        """Send a message."""
        return self.noop.send(number)

    def enqueue_held(self, number: int) -> None:
        """Send a message."""
        self.held_actor.send(number)

    def result(self, ref: Any) -> None:
        """Wait for the result."""
        ref.get_result(block=True)


if __name__ == "__main__":
    main(Dramatiq)
