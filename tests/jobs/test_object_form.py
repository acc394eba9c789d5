"""The object form: start, stop and notify of one's own, each called as often as it must be."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import attrs
import pytest

from pool import Depends, Handlers, Job
from pool.errors import ConfigError, DuplicateHandler, JobCancelled
from pool.events import AttemptFailed, HandlerLeaked, MessageUnheard
from pool.jobs.job import Inbox
from pool.redis.commands.talk import InboxPage, MessageId

if TYPE_CHECKING:
    from tests.nodes import Diary, Fleet

pytestmark = pytest.mark.anyio


class Plain:
    """Plain functions, which are called in threads."""

    def __init__(self, diary: Diary) -> None:
        self.diary = diary

    def note(self, *words: Any) -> None:
        anyio.from_thread.run_sync(self.diary.note, *words)

    def start(self, job: Job) -> None:
        self.note("start", job.key)

    def stop(self, job: Job) -> None:
        self.note("stop", job.key)

    def notify(self, job: Job, message: Any) -> None:
        self.note("notify", job.key, message)


class Async:
    """Async ones, which wait."""

    def __init__(self, diary: Diary) -> None:
        self.diary = diary

    async def start(self, job: Job) -> None:
        await anyio.lowlevel.checkpoint()
        self.diary.note("start", job.key)

    async def stop(self, job: Job) -> None:
        await anyio.lowlevel.checkpoint()
        self.diary.note("stop", job.key)

    async def notify(self, job: Job, message: Any) -> None:
        await anyio.lowlevel.checkpoint()
        self.diary.note("notify", job.key, message)


class Deaf:
    """It has no `notify`."""

    def start(self, job: Job) -> None:
        pass

    def stop(self, job: Job) -> None:
        pass


async def test_a_message_that_nobody_can_receive_is_told_once(fleet: Fleet) -> None:
    """C6: it was accepted and dropped without a word."""
    handlers = Handlers()
    handlers.runner("deaf", Deaf())
    node = await fleet.node(handlers)
    ref = await node.dispatch("deaf", "k")
    await ref.started(timeout_s=30)
    for number in range(3):
        await node.notify("k", number)
    told = await fleet.seen(MessageUnheard)
    assert (told.key, told.handler) == ("k", "deaf")
    await fleet.until(lambda: not fleet.client.exists(fleet.names.inbox("k")))
    assert len(fleet.all_seen(MessageUnheard)) == 1
    await ref.stop(timeout_s=30)


async def test_a_message_that_a_handler_never_asked_for_is_told_at_its_end(fleet: Fleet) -> None:
    """C6: not that of one which asks, though it ends with the message in its hand."""
    handlers = Handlers()

    @handlers.job("deaf")
    async def deaf(job: Job) -> None:
        await go.wait()

    @handlers.job("hears")
    async def hears(job: Job) -> str:
        async for message in job.notifications():
            return str(message)
        raise AssertionError

    go = anyio.Event()
    node = await fleet.node(handlers)
    both = [await node.dispatch(name, name) for name in ("deaf", "hears")]
    for ref in both:
        await ref.started(timeout_s=30)
        await node.notify(ref.key, "hello")
    assert await both[1].result(timeout_s=30) == "hello"
    await fleet.until(lambda: fleet.client.exists(fleet.names.inbox("deaf")))
    run = next(run for worker in fleet.workers(node) for run in worker.runs.values())
    await fleet.until(lambda: run.inbox is not None and run.inbox.is_unheard)
    go.set()
    await both[0].result(timeout_s=30)
    assert [each.key for each in fleet.all_seen(MessageUnheard)] == ["deaf"]


async def test_who_takes_what_is_there_at_once_hears_what_comes_later() -> None:
    """As who keeps a plan: it ended with a request unread, and that it never listened was told."""
    inbox, nothing = Inbox(is_behind=False), InboxPage(has_more=False, messages=[])

    async def read(_: MessageId) -> InboxPage:
        return nothing

    inbox.offer("1|a", 0, b"1")
    found = [inbox.is_unheard]
    assert await inbox.next_at_once(read) == ("1|a", b"1")
    found.append(inbox.is_unheard)
    inbox.offer("2|b", 1, b"2")
    assert [*found, inbox.is_unheard] == [True, False, False]


async def test_what_comes_behind_a_message_whose_signal_was_lost_waits_for_it() -> None:
    """G-07: it is read; each comes once, in the order in which they were accepted."""
    inbox, asked = Inbox(is_behind=False), list[MessageId]()

    async def read(after: MessageId) -> InboxPage:
        asked.append(after)
        return InboxPage(has_more=False, messages=[("2|b", b"2"), ("3|c", b"3")])

    inbox.offer("1|a", 0, b"1")
    inbox.offer("3|c", 2, b"3")
    came = [await inbox.next_at_once(read) for _ in range(3)]
    assert (came, asked) == ([("1|a", b"1"), ("2|b", b"2"), ("3|c", b"3")], ["1|a"])


@pytest.mark.parametrize(
    ("message", "before"),
    [("4|new", 3), ("9|new", 0), ("12|new", 4)],
    ids=["a lower number", "the same number", "behind one that is not known"],
)
async def test_after_lost_data_a_message_is_known_by_its_request(
    message: MessageId, before: int
) -> None:
    """G-07: numbers may come again, and lower ones; what is new is handled, and nothing twice."""
    inbox, asked = Inbox(is_behind=False), list[MessageId]()
    stored = [("3|c", b"3"), ("4|new", b"4")] + [(message, b"x")] * (message != "4|new")

    async def read(after: MessageId) -> InboxPage:
        asked.append(after)
        return InboxPage(has_more=False, messages=stored)

    inbox.offer("3|c", 0, b"3")
    inbox.offer("9|i", 3, b"9")
    known = [await inbox.next_at_once(read) for _ in range(2)]
    inbox.offer("9|i", 3, b"9")  # a repeat of its signal
    assert await inbox.next_at_once(read) is None
    inbox.offer(message, before, b"x")
    came = [found[0] for found in [await inbox.next_at_once(read) for _ in stored] if found]
    assert [found[0] for found in known if found] == ["3|c", "9|i"]
    assert (came, asked) == ([found for found, _ in stored[1:]], [""])


@pytest.mark.parametrize("form", [Plain, Async])
async def test_an_object_is_started_notified_and_stopped(
    fleet: Fleet, diary: Diary, form: type[Plain | Async]
) -> None:
    handlers = Handlers()
    handlers.runner("thing", form(diary))
    node = await fleet.node(handlers)
    client = await fleet.node()
    ref = await client.dispatch("thing", "k")
    await ref.started(timeout_s=30)
    for n in range(3):
        await client.notify("k", n)
    await diary.has("notify", "k", 2)
    await ref.stop(timeout_s=30)
    notified = [("notify", "k", n) for n in range(3)]
    assert diary.entries == [("start", "k"), *notified, ("stop", "k")]
    with pytest.raises(JobCancelled):
        await ref.result(timeout_s=30)
    assert node.state == "open"


@pytest.mark.parametrize("form", [Plain, Async])
async def test_stop_comes_exactly_once_for_each_start_also_when_it_moves(
    fleet: Fleet, diary: Diary, form: type[Plain | Async]
) -> None:
    def handlers() -> Handlers:
        made = Handlers()
        made.runner("thing", form(diary))
        return made

    first = await fleet.node(handlers())
    client = await fleet.node()
    keys = [f"k{n}" for n in range(5)]
    for key in keys:
        await client.dispatch("thing", key)
    await diary.counts(5)
    second = await fleet.node(handlers(), settle_delay_s=60.0)
    await fleet.leave(first)
    await diary.counts(15)
    await fleet.leave(second)
    for key in keys:
        words = [word for word, of in diary.entries if of == key]
        assert words == ["start", "stop", "start", "stop"]


async def test_a_start_that_raises_is_tried_again_and_never_stopped(
    fleet: Fleet, diary: Diary
) -> None:
    class Shaky(Async):
        async def start(self, job: Job) -> None:
            if job.attempt < 3:
                self.diary.note("raise", job.key)
                raise OSError("not yet")
            await super().start(job)

    handlers = Handlers()
    handlers.runner("thing", Shaky(diary), backoff_s=0.001, backoff_max_s=0.002)
    node = await fleet.node(handlers)
    ref = await node.dispatch("thing", "k")
    await diary.has("start", "k")
    await ref.stop(timeout_s=30)
    words = [word for word, _ in diary.entries]
    assert words == ["raise", "raise", "start", "stop"]


async def test_a_notify_that_raises_stops_the_thing_and_starts_it_again(
    fleet: Fleet, diary: Diary
) -> None:
    """The message in hand is delivered again: at least once (G-07)."""

    class Shaky(Plain):
        failed = False

        def notify(self, job: Job, message: Any) -> None:
            super().notify(job, message)
            if message == "bad" and not self.failed:
                self.failed = True
                raise ValueError(message)

    handlers = Handlers()
    handlers.runner("thing", Shaky(diary), backoff_s=0.001, backoff_max_s=0.002)
    node = await fleet.node(handlers)
    ref = await node.dispatch("thing", "k")
    await node.notify("k", "bad")
    await diary.has("notify", "k", "bad", times=2)
    await ref.stop(timeout_s=30)
    words = [word for word, *_ in diary.entries]
    assert words == ["start", "notify", "stop", "start", "notify", "stop"]
    assert len(fleet.all_seen(AttemptFailed)) == 1


async def test_an_async_stop_may_wait_although_the_job_is_cancelled(
    fleet: Fleet, diary: Diary
) -> None:
    class Slow(Async):
        async def stop(self, job: Job) -> None:
            await anyio.lowlevel.checkpoint()
            await super().stop(job)

    handlers = Handlers()
    handlers.runner("thing", Slow(diary))
    node = await fleet.node(handlers)
    ref = await node.dispatch("thing", "k")
    await ref.started(timeout_s=30)
    await diary.counts(1)
    await ref.stop(timeout_s=30)
    assert diary.entries == [("start", "k"), ("stop", "k")]


async def test_an_object_without_notify_keeps_running_when_notified(
    fleet: Fleet, diary: Diary
) -> None:
    class Deaf:
        async def start(self, job: Job) -> None:
            diary.note("start", job.key)

        async def stop(self, job: Job) -> None:
            diary.note("stop", job.key)

    handlers = Handlers()
    handlers.runner("thing", Deaf())
    node = await fleet.node(handlers)
    ref = await node.dispatch("thing", "k")
    await diary.counts(1)
    for n in range(3):
        await node.notify("k", n)
    await fleet.until(lambda: not fleet.client.exists(fleet.names.inbox("k")))
    await ref.stop(timeout_s=30)
    assert diary.entries == [("start", "k"), ("stop", "k")]


def test_an_object_that_lacks_a_method_is_refused_when_it_is_registered() -> None:
    """D10."""

    class OnlyStart:
        def start(self, job: Job) -> None: ...

    handlers = Handlers()
    with pytest.raises(ConfigError, match="no stop"):
        handlers.runner("thing", OnlyStart())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no start"):
        handlers.runner("thing", object())  # type: ignore[arg-type]


def test_an_object_under_a_taken_name_is_refused(diary: Diary) -> None:
    """D9."""
    handlers = Handlers()
    handlers.runner("thing", Plain(diary))
    with pytest.raises(DuplicateHandler):
        handlers.runner("thing", Plain(diary))


# --- an object for each key -----------------------------------------------------------------------


def prefix() -> str:
    return "room"


async def test_a_class_is_made_for_each_key_and_hands_its_state_over(
    fleet: Fleet, diary: Diary
) -> None:
    """It starts with what it was dispatched with, and what it depends on, wherever it goes."""

    def handlers() -> Handlers:
        made = Handlers()

        @made.service("room")
        class Room:
            def __init__(self, prefix: str = Depends(prefix)) -> None:
                self.prefix, self.lines = prefix, list[str]()

            async def start(self, job: Job, topic: str, *, size: int = 3) -> None:
                self.lines = job.state or []
                diary.note("start", job.key, self.prefix, topic, size)

            async def notify(self, job: Job, line: str) -> None:
                self.lines.append(line)
                diary.note(job.key, line)

            async def stop(self, job: Job) -> None:
                job.state = self.lines
                diary.note("stop", job.key, *self.lines)

        return made

    first = await fleet.node(handlers())
    client = await fleet.node()
    for key in ("a", "b"):
        await client.dispatch("room", key, f"about {key}", size=4)
        await diary.has("start", key, "room", f"about {key}", 4)
        await client.notify(key, f"hello {key}")
        await diary.has(key, f"hello {key}")
    second = await fleet.node(handlers(), settle_delay_s=60.0)
    await fleet.leave(first)
    for key in ("a", "b"):
        await diary.has("stop", key, f"hello {key}")
        await diary.has("start", key, "room", f"about {key}", 4, times=2)
        await client.notify(key, "again")
        await diary.has(key, "again")
    await fleet.leave(second)
    assert ("stop", "a", "hello a", "again") in diary.entries


async def test_a_start_that_hangs_is_cancelled_and_never_stopped(
    fleet: Fleet, diary: Diary
) -> None:
    handlers = Handlers()

    class Hangs:
        async def start(self, job: Job) -> None:
            diary.note("start", job.key)
            await anyio.sleep_forever()

        async def stop(self, job: Job) -> None:
            diary.note("stop", job.key)

    hangs = handlers.service("hangs")(Hangs)
    node = await fleet.node(handlers)
    ref = await node.dispatch(hangs, "k")
    await diary.has("start", "k")
    await ref.stop(timeout_s=20)
    assert diary.entries == [("start", "k")]


@pytest.mark.parametrize("how", ["raises", "hangs"])
async def test_a_stop_that_fails_holds_nothing_up(fleet: Fleet, diary: Diary, how: str) -> None:
    """The job goes on elsewhere; one that hangs is cancelled after the stop budget."""
    fleet.settings = attrs.evolve(fleet.settings, lease_ttl_s=10.0)

    def handlers() -> Handlers:
        made = Handlers()

        @made.service("bad")
        class Bad:
            async def start(self, job: Job) -> None:
                diary.note("start", job.node_id)

            async def stop(self, job: Job) -> None:
                diary.note("stop", job.node_id)
                if how == "raises":
                    raise OSError("it is gone already")
                try:
                    await anyio.sleep_forever()
                finally:
                    diary.note("cancelled", job.node_id)

        return made

    first, client = await fleet.node(handlers()), await fleet.node()
    ref = await client.dispatch("bad", "k")
    await diary.has("start", first.id)
    second = await fleet.node(handlers(), settle_delay_s=60.0)
    for node in (first, second):
        fleet.shorten_stops(node, 0.25)
    await fleet.leave(first)
    await diary.has("start", second.id)
    await ref.stop(timeout_s=20)
    with pytest.raises(JobCancelled):
        await ref.result(timeout_s=30)
    assert diary.entries.count(("stop", first.id)) == 1
    assert fleet.all_seen(AttemptFailed) == []


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Yield what threads wait for; whatever happens, they end."""
    gate = threading.Event()
    yield gate
    gate.set()


async def test_a_plain_stop_that_hangs_is_leaked(
    fleet: Fleet, diary: Diary, gate: threading.Event
) -> None:
    """As a plain handler: the stop is confirmed, and its slot is withheld."""

    class Hangs(Plain):
        def stop(self, job: Job) -> None:
            super().stop(job)
            gate.wait()

    handlers = Handlers()
    handlers.runner("hangs", Hangs(diary))
    node = await fleet.node(handlers, lease_ttl_s=1.0)
    ref = await node.dispatch("hangs", "k")
    await diary.has("start", "k")
    await ref.stop(timeout_s=20)
    assert (await fleet.seen(HandlerLeaked)).why == "stop"
    (worker,) = fleet.workers(node)
    assert worker.takes(0) == worker.capacity - 1
    gate.set()
    await fleet.until(lambda: worker.takes(0) == worker.capacity)


async def test_an_object_may_take_arguments_and_all_options(fleet: Fleet, diary: Diary) -> None:
    class Room(Async):
        async def start(self, job: Job, topic: str = "none") -> None:
            self.diary.note("start", job.key, topic)

    handlers = Handlers()
    room = handlers.runner("room", Room(diary), retention_s=1, if_exists="attach", queue_max=1)
    node = await fleet.node(handlers)
    ref = await node.dispatch(room, "k", "weather")
    await diary.has("start", "k", "weather")
    assert (await node.dispatch(room, "k", "weather")).job_id == ref.job_id
    await ref.stop(timeout_s=20)


# --- what is assigned in stop ---------------------------------------------------------------------


async def test_what_stop_assigns_is_there_at_the_next_start(fleet: Fleet, diary: Diary) -> None:
    """V7: as after a hand-over; the message in hand is not part of it, and comes again."""

    class Room:
        def __init__(self) -> None:
            self.lines = list[str]()

        async def start(self, job: Job) -> None:
            self.lines = job.state or []
            diary.note("start", *self.lines)

        async def notify(self, job: Job, line: str) -> None:
            if line == "bad" and job.attempt == 1:
                raise ValueError(line)
            self.lines.append(line)
            diary.note("line", line)

        async def stop(self, job: Job) -> None:
            job.state = self.lines

    handlers = Handlers()
    handlers.service("room", backoff_s=0.001, backoff_max_s=0.002)(Room)
    node = await fleet.node(handlers)
    ref = await node.dispatch("room", "k")
    await diary.has("start")
    await node.notify("k", "one")
    await diary.has("line", "one")
    await node.notify("k", "bad")
    await diary.has("start", "one")
    await diary.has("line", "bad")
    await ref.stop(timeout_s=30)
    assert len(fleet.all_seen(AttemptFailed)) == 1
