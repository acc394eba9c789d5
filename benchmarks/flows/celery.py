"""Celery on Redis, its thread pool and its beat."""

from __future__ import annotations

import os
import tempfile
from typing import Any, ClassVar

from celery import Celery, chord, group

from benchmarks.flows.protocol import AFTER, MEMBER, Flow, main, mark, name_of

WORKER = ("worker", "--pool=threads", "--without-gossip", "--without-mingle", "--loglevel=ERROR")


class OfCelery(Flow):
    """A list; a chord counts in its result backend."""

    distributions: ClassVar[tuple[str, ...]] = ("celery", "kombu", "redis", "hiredis")
    docs: ClassVar[str] = (
        "https://docs.celeryq.dev/en/stable/userguide/canvas.html and userguide/periodic-tasks.html"
    )
    setting: ClassVar[str] = "--pool=threads, 8 threads, Redis result backend"
    ways: ClassVar[dict[str, str]] = {
        "batch": "group().apply_async().join(): published when a result is there",
        "fan_in": "chord()(callback), which gets all results",
        "cron": "celery beat, schedule of 1.0 s (its crontab has no seconds)",
    }
    promises: ClassVar[dict[str, str]] = {
        "batch": "a member is acknowledged before it runs: a killed worker loses it, and join()"
        " waits for ever; with acks_late it comes back after visibility_timeout (1 h)",
        "fan_in": "likewise, and then the callback never comes; a worker that dies between the last"
        " count and sending it loses it, too",
        "cron": "one beat process: while it is down nothing is sent, and two send twice",
    }
    by_interval: ClassVar[bool] = True
    has_beat: ClassVar[bool] = True

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.app = Celery("bench", broker=self.url, backend=self.url)

        @self.app.task(name="member")
        def member(number: int) -> int:
            mark(MEMBER)
            return number

        @self.app.task(name="after")
        def after(_: Any) -> None:
            mark(AFTER)

        @self.app.task(name="tick", ignore_result=True)
        def tick(name: str) -> None:
            mark(name)

        self.member, self.after = member, after
        self.app.conf.beat_schedule = {
            name_of(n): {"task": "tick", "schedule": 1.0, "args": (name_of(n),)}
            for n in range(self.schedules)
        }

    def work(self) -> None:
        """Be a worker."""
        self.app.worker_main([*WORKER, "--concurrency=8"])

    def beat(self) -> None:
        """Be the beat."""
        with tempfile.TemporaryDirectory() as directory:
            at = os.path.join(directory, "schedule")  # noqa: PTH118 - it wants text
            self.app.start(["beat", f"--schedule={at}", "--loglevel=ERROR"])

    async def batch(self, count: int) -> None:
        """Send it, and wait."""
        group(self.member.s(number) for number in range(count)).apply_async().join()

    async def fan_in(self, count: int) -> None:
        """Send it."""
        chord(self.member.s(number) for number in range(count))(self.after.s())


if __name__ == "__main__":
    main(OfCelery)
