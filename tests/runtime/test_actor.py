"""The base of all actors: one mailbox, one task, one owner of state."""

from __future__ import annotations

import asyncio  # noqa: TID251 - what differs under its own runner
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest

from pool.runtime.actor import Actor

pytestmark = pytest.mark.anyio


@attrs.define(eq=False, kw_only=True)
class Recorder(Actor[Any]):
    """Keeps what it is told; told a callable, calls it with itself."""

    heard: list[Any] = attrs.field(factory=list)
    begun: int = 0
    crashes: list[BaseException | None] = attrs.field(factory=list)

    def begin(self) -> None:
        self.begun += 1

    def handle(self, message: Any) -> None:
        if callable(message):
            message(self)
        else:
            self.heard.append(message)

    def ended(self, crash: BaseException | None) -> None:
        self.crashes.append(crash)

    async def stop_after(self, seen: list[Any]) -> None:
        while not seen:
            await anyio.lowlevel.checkpoint()
        self.stop()


class Bug(Exception):
    pass


def crash(_: Recorder) -> None:
    raise Bug


async def ran(actor: Recorder) -> None:
    with anyio.fail_after(30):
        await actor.run()


async def test_what_is_told_before_start_and_before_stop_is_handled_in_order() -> None:
    actor = Recorder(name="a")
    actor.tell(1)
    async with anyio.create_task_group() as tasks:
        await tasks.start(actor.run)
        actor.tell(2)
        actor.tell(3)
        actor.stop()
        actor.tell(4)
        actor.stop()
    assert (actor.heard, actor.state, actor.crashes) == ([1, 2, 3], "ended", [None])


async def test_a_full_inbox_refuses() -> None:
    """G-09: an answer to whoever tells, never an error in a bystander; so does an actor's end."""
    actor = Recorder(name="a", inbox_max=2)
    assert actor.tell(1)
    assert actor.tell(2)
    assert not actor.tell(3)
    assert not actor.receive(3)
    assert actor.put(4)  # its sender bounds it
    actor.stop()
    assert actor.state == "ended"
    assert not actor.put(5)
    assert not actor.tell_latest("x", 5)


async def test_of_what_is_told_about_the_same_the_latest_is_handled() -> None:
    """So that what is said once per lane and renewal needs no mailbox to match."""
    actor = Recorder(name="a", inbox_max=1)
    for i in range(1000):
        assert actor.tell_latest(i % 3, i)
    async with anyio.create_task_group() as tasks:
        await tasks.start(actor.run)
        actor.tell_latest(0, "last")
        actor.stop()
    assert actor.heard == [999, 997, 998, "last"]


async def test_what_handle_raises_ends_the_actor_and_is_raised_as_it_is() -> None:
    """A supervisor must see the cause, not a group around it."""
    actor = Recorder(name="a")
    actor.tell(crash)
    with pytest.raises(Bug) as caught:
        await ran(actor)
    assert actor.state == "crashed"
    assert actor.crashes == [caught.value]


async def test_after_a_crash_it_runs_again_with_what_it_was_told_since() -> None:
    actor = Recorder(name="a")
    actor.tell(crash)
    actor.tell("after the crash in the inbox")
    with pytest.raises(Bug):
        await ran(actor)
    actor.tell("told while it was down")
    actor.tell(Recorder.stop)
    await ran(actor)
    assert actor.heard == ["after the crash in the inbox", "told while it was down"]
    assert (actor.begun, actor.state) == (2, "ended")


async def test_stopped_before_start_it_never_begins() -> None:
    actor = Recorder(name="a")
    actor.stop()
    await ran(actor)
    assert (actor.begun, actor.crashes) == (0, [None])


async def test_stopped_after_a_crash_it_answers_those_who_wait() -> None:
    actor = Recorder(name="a")
    actor.tell(crash)
    with pytest.raises(Bug):
        await ran(actor)
    actor.stop()
    assert actor.crashes[1:] == [None]


async def test_spawned_work_is_cancelled_at_the_end_and_its_error_ends_the_actor() -> None:
    cancelled = anyio.Event()

    async def wait() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.set()

    async def fail(error: Exception) -> None:
        raise error

    actor = Recorder(name="a")
    actor.tell(lambda self: self.spawn(wait))
    actor.tell(lambda self: self.spawn(fail, Bug()))
    with pytest.raises(Bug):
        await ran(actor)
    assert cancelled.is_set()


async def test_what_is_spawned_while_it_does_not_run_is_never_begun() -> None:
    """Callers in tasks of their own come between a crash and the restart, and after the end."""
    actor, begun = Recorder(name="a"), list[str]()

    async def work(when: str) -> None:
        begun.append(when)

    actor.spawn(work, "new")
    actor.tell(crash)
    with pytest.raises(Bug):
        await ran(actor)
    actor.spawn(work, "crashed")
    actor.tell(lambda self: self.spawn(work, "running"))
    actor.tell(lambda self: self.spawn(actor.stop_after, begun))
    await ran(actor)
    actor.spawn(work, "ended")
    await anyio.lowlevel.checkpoint()
    assert begun == ["running"]


async def test_cancelled_from_outside_it_ends_and_says_so() -> None:
    actor = Recorder(name="a")
    async with anyio.create_task_group() as tasks:
        await tasks.start(actor.run)
        tasks.cancel_scope.cancel()
    assert (actor.state, actor.crashes) == ("ended", [None])


async def test_an_actor_that_tells_itself_does_not_starve_the_others() -> None:
    def again(self: Recorder) -> None:
        self.tell(again)

    actor = Recorder(name="a")
    actor.tell(again)
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            await tasks.start(actor.run)
            await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()


# --- delivered in a callback --------------------------------------------------------------------


async def test_what_is_delivered_to_one_at_rest_is_handled_at_once() -> None:
    actor = Recorder(name="a")
    async with anyio.create_task_group() as tasks:
        await tasks.start(actor.run)
        await anyio.wait_all_tasks_blocked()
        actor.deliver(1)
        assert actor.heard == [1]
        actor.tell(2)
        actor.deliver(3)
        assert actor.heard == [1]  # never before what was told earlier
        await anyio.wait_all_tasks_blocked()
        assert actor.heard == [1, 2, 3]
        actor.deliver(lambda self: (self.deliver(5), self.heard.append(4)))
        assert actor.heard == [1, 2, 3, 4]  # one message at a time
        await anyio.wait_all_tasks_blocked()
        assert actor.heard == [1, 2, 3, 4, 5]
        actor.stop()
        actor.deliver(6)
    actor.deliver(7)
    assert (actor.heard, actor.crashes) == ([1, 2, 3, 4, 5], [None])


async def test_a_crash_of_what_is_delivered_ends_the_actor_and_not_the_caller() -> None:
    actor = Recorder(name="a")
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            with pytest.raises(Bug):
                await actor.run()

        tasks.start_soon(run)
        await anyio.wait_all_tasks_blocked()
        actor.deliver(crash)
        actor.deliver(1)  # behind the crash: kept for the restart
        assert actor.heard == []
    assert actor.state == "crashed"
    async with anyio.create_task_group() as tasks:
        await tasks.start(actor.run)
        await anyio.wait_all_tasks_blocked()
        assert actor.heard == [1]
        actor.stop()


async def test_what_is_spawned_by_what_is_delivered_runs_as_a_task_of_the_actor() -> None:
    actor, names = Recorder(name="a"), list[str | None]()

    async def work() -> None:
        await anyio.lowlevel.checkpoint()
        names.append(anyio.get_current_task().name)

    async with anyio.create_task_group() as tasks:
        await tasks.start(actor.run)
        await anyio.wait_all_tasks_blocked()
        actor.deliver(lambda self: self.spawn(work))
        await anyio.wait_all_tasks_blocked()
        actor.stop()
    assert names == ["a/work"]


async def test_what_is_delivered_after_a_crash_waits_for_the_restart() -> None:
    actor = Recorder(name="a")

    async def fail() -> None:
        raise Bug

    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            with pytest.raises(Bug):
                await actor.run()

        tasks.start_soon(run)
        await anyio.wait_all_tasks_blocked()
        actor.tell(lambda self: self.spawn(fail))
        with anyio.fail_after(30):
            while actor._crash is None:
                await anyio.lowlevel.checkpoint()
        actor.deliver("early")  # the task is cancelled, and has not ended
        assert actor.heard == []
    async with anyio.create_task_group() as tasks:
        await tasks.start(actor.run)
        await anyio.wait_all_tasks_blocked()
        assert actor.heard == ["early"]
        actor.stop()


def test_one_actor_may_have_another_spawn_from_a_callback() -> None:
    """Under asyncio's own runner, where a callback of the loop cannot start tasks."""
    one, other, done = Recorder(name="one"), Recorder(name="other"), list[str]()

    async def work() -> None:
        done.append("worked")

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            await tasks.start(one.run)
            await tasks.start(other.run)
            await anyio.wait_all_tasks_blocked()
            loop = asyncio.get_running_loop()
            loop.call_soon(one.deliver, lambda _: other.spawn(work))
            await anyio.wait_all_tasks_blocked()
            one.stop()
            other.stop()

    asyncio.run(main())
    assert (done, one.crashes, other.crashes) == (["worked"], [None], [None])
