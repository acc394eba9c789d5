"""Workers that poll: a gateway that hung goes on with a request that another has answered since."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import anyio
import attrs
import pytest

from pool.core.settlement import ParkJob, Wait
from pool.events import AttemptFailed
from pool.jobs.remote.ending import Endings
from pool.jobs.remote.visit import Handing
from tests.jobs.test_remote import WAIT_S, client, door, opened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from anyio.abc import TaskGroup

    from pool import JobRef, Node
    from pool.core.settlement import Decision
    from pool.jobs.remote.claims import HandedOut, Polled
    from pool.jobs.remote.workers import RemoteWorkers
    from tests.jobs.test_remote import Client
    from tests.nodes import Fleet

pytestmark = pytest.mark.anyio

LONG_TTL_S = 60.0  # so that no lease's end helps


@attrs.define(eq=False)
class Gate:
    """One gateway's calls of a method wait here."""

    came: anyio.Event = attrs.field(factory=anyio.Event)
    go: anyio.Event = attrs.field(factory=anyio.Event)

    def before(self, patched: pytest.MonkeyPatch, of: type[Any], name: str, whose: object) -> None:
        """Have them wait."""
        call = getattr(of, name)

        async def gated(self_: Any, *args: Any) -> Any:
            if self_ is whose:
                self.came.set()
                await self.go.wait()
            return await call(self_, *args)

        patched.setattr(of, name, gated)


LATE: Final[dict[str, Callable[[RemoteWorkers, Client], Coroutine[Any, Any, Polled]]]] = {
    "a poll that takes nothing": lambda at, mine: at.poll(mine.claim, jobs_max=0),
    "a poll of who cannot read it": lambda at, mine: at.poll(mine.claim),
    "a poll of who parks it": lambda at, mine: at.poll(mine.claim),
    "a beat": lambda at, mine: at.heartbeat(mine.claim),
}
PARKS: Final = ParkJob("malformed payload", "of a later version")
PUTS_OFF: Final = Wait(0.0, 1, "of a later version")


@attrs.define(eq=False)
class Late:
    """A late request that has seen a start, which its client has been handed since."""

    good: Node
    mine: Client
    other: Client  # a worker with room
    ref: JobRef[Any]

    async def until_stopping(self, fleet: Fleet, tasks: TaskGroup) -> None:
        """Ask the job to stop."""
        tasks.start_soon(self.good.stop, "k", "enough")
        await fleet.until(lambda: (r := fleet.record("k")) is not None and r.intent)


@asynccontextmanager
async def being_late(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, late: str
) -> AsyncIterator[Late]:
    """Have it wait within the block, and go on behind it."""
    hung = await fleet.node(lease_ttl_s=LONG_TTL_S)
    good = await fleet.node(lease_ttl_s=LONG_TTL_S)
    mine, gives, hands, made = await client(good), Gate(), Gate(), Handing._made
    theirs, its = (await door(hung))._handing, (await door(good))._handing
    gives.before(monkeypatch, Endings, "give_back", theirs.endings)
    gives.before(monkeypatch, Handing, "_acknowledge", theirs)
    hands.before(monkeypatch, Handing, "hand_out", its)

    def made_here(self: Handing, *args: Any) -> HandedOut | Decision:
        instead = PARKS if late == "a poll of who parks it" else PUTS_OFF
        return made(self, *args) if self is its else instead

    monkeypatch.setattr(Handing, "_made", made_here)
    async with anyio.create_task_group() as hangs:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(mine.poll)
            await opened(fleet, mine, 1)
            ref = await good.dispatch("add", "k", 1)
            await hands.came.wait()  # it is granted, and about to be acknowledged
            hangs.start_soon(LATE[late], await door(hung), mine)
            await gives.came.wait()
            other = await client(good)
            hands.go.set()
        yield Late(good, mine, other, ref)
        gives.go.set()


@pytest.mark.parametrize("late", LATE)
async def test_what_a_later_poll_has_handed_out_a_late_request_does_not_give_back(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    """It saw the start before that was acknowledged: its word is of before the client's."""
    async with being_late(fleet, monkeypatch, late) as found:
        job = found.mine.held["k"]
    assert not fleet.all_seen(AttemptFailed)
    assert not (await found.other.poll(wait_s=0.01)).jobs
    saved = await found.mine.door.save(found.mine.claim, job, "so far", number=1)
    assert saved.outcome == "saved"
    [ended] = await found.mine.door.release(found.mine.claim, [(job, None)])
    assert ended.outcome == "released"  # on its own word
    await found.other.until(1)
    assert [each.outcome for each in await found.other.complete(7)] == ["done"]
    assert await found.ref.result(timeout_s=WAIT_S) == 7


@pytest.mark.parametrize("late", LATE)
async def test_what_shall_stop_is_not_ended_by_a_late_request(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    async with anyio.create_task_group() as tasks:
        async with being_late(fleet, monkeypatch, late) as found:
            await found.until_stopping(fleet, tasks)
        assert [each.reason for each in (await found.mine.beat()).stop] == ["stop"]
        assert [each.outcome for each in await found.mine.complete(7)] == ["done"]
    assert await found.ref.result(timeout_s=WAIT_S) == 7
