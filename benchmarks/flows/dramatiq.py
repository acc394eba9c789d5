"""dramatiq with its Redis broker."""

from __future__ import annotations

import os
import threading
from typing import Any, ClassVar

os.environ["dramatiq_queue_prefetch"] = "500"  # noqa: SIM112 - its own name, read at import

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import GroupCallbacks
from dramatiq.rate_limits.backends import RedisBackend as Limits
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from benchmarks.flows.protocol import AFTER, MEMBER, Flow, main, mark


class Dramatiq(Flow):
    """A list, a hash, and per worker a set of what it has fetched."""

    distributions: ClassVar[tuple[str, ...]] = ("dramatiq", "redis", "hiredis")
    docs: ClassVar[str] = "https://dramatiq.io/cookbook.html#composition"
    setting: ClassVar[str] = "8 threads (default), dramatiq_queue_prefetch=500"
    ways: ClassVar[dict[str, str]] = {
        "batch": "group().run(), wait(), with Results(RedisBackend)",
        "fan_in": "group().add_completion_callback(), with GroupCallbacks(RedisBackend)",
    }
    promises: ClassVar[dict[str, str]] = {
        "batch": "a killed worker's come back after heartbeat_timeout (60 s)",
        "fan_in": "a member is counted before it is acknowledged: whose worker dies between counts"
        " twice; who dies between the last count and sending the callback loses it; a member that"
        " fails is never counted",
    }
    cannot: ClassVar[dict[str, str]] = {"cron": "no schedules of its own"}

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        # Each thread takes a connection; redis-py stops at 100 unless it is told.
        self.broker = RedisBroker(url=f"{self.url}?max_connections=5000")
        self.broker.add_middleware(Results(backend=RedisBackend(url=self.url)))
        self.broker.add_middleware(GroupCallbacks(Limits(url=self.url)))
        dramatiq.set_broker(self.broker)

        @dramatiq.actor(store_results=True)
        def member(number: int) -> int:
            mark(MEMBER)
            return number

        @dramatiq.actor
        def plain(_: int) -> None:
            mark(MEMBER)

        @dramatiq.actor
        def after() -> None:
            mark(AFTER)

        self.member, self.plain, self.after = member, plain, after

    def work(self) -> None:
        """Be a worker process as `dramatiq` starts it."""
        dramatiq.Worker(self.broker).start()
        threading.Event().wait()

    async def batch(self, count: int) -> None:
        """Send it, and wait."""
        sent = dramatiq.group([self.member.message(n) for n in range(count)]).run()
        sent.wait(timeout=60_000)

    async def fan_in(self, count: int) -> None:
        """Send it."""
        made = dramatiq.group([self.plain.message(n) for n in range(count)])
        made.add_completion_callback(self.after.message())
        made.run()


if __name__ == "__main__":
    main(Dramatiq)
