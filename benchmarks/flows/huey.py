"""huey: RedisHuey, worker threads."""

from __future__ import annotations

from typing import Any, ClassVar

from huey import RedisHuey
from huey.api import chord, group

from benchmarks.flows.protocol import AFTER, MEMBER, Flow, main, mark


class Huey(Flow):
    """A pop from the list is all that is known of a job that runs."""

    distributions: ClassVar[tuple[str, ...]] = ("huey", "redis", "hiredis")
    docs: ClassVar[str] = "https://huey.readthedocs.io/en/latest/guide.html"
    setting: ClassVar[str] = "RedisHuey (blocking pop), 1 worker thread (default), notify_result"
    ways: ClassVar[dict[str, str]] = {
        "batch": "enqueue(group()).get(blocking=True)",
        "fan_in": "enqueue(chord()), whose callback gets all results",
    }
    promises: ClassVar[dict[str, str]] = {
        "batch": "a job is popped and not acknowledged: a killed worker loses it, and get() waits"
        " for ever",
        "fan_in": "likewise, and then the callback never comes",
    }
    cannot: ClassVar[dict[str, str]] = {"cron": "its crontab is looked at once a minute"}

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.huey = RedisHuey("bench", url=self.url, notify_result=True)

        @self.huey.task()
        def member(number: int) -> int:
            mark(MEMBER)
            return number

        @self.huey.task()
        def after(_: Any) -> None:
            mark(AFTER)

        self.member, self.after = member, after

    def work(self) -> None:
        """Be a consumer."""
        self.huey.create_consumer(workers=1, worker_type="thread").run()

    async def batch(self, count: int) -> None:
        """Enqueue it, and wait."""
        self.huey.enqueue(group([self.member.s(n) for n in range(count)])).get(blocking=True)

    async def fan_in(self, count: int) -> None:
        """Enqueue it."""
        self.huey.enqueue(chord([self.member.s(n) for n in range(count)], self.after.s()))


if __name__ == "__main__":
    main(Huey)
