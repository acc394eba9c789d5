"""Workers that poll, by the Python calls of a gateway: what their clients and users see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import attrs
import pytest

from pool import Handlers, Node
from pool.core.record import Progress
from pool.errors import (
    ClaimRefused,
    ConfigError,
    DuplicateHandler,
    InvalidOption,
    JobCancelled,
    JobParked,
    PayloadEncodingError,
    PayloadTooLarge,
    WorkerGone,
    WrongClaim,
)
from pool.jobs.remote.claims import (
    Beat,
    Ended,
    Failure,
    HandlerOffer,
    JobClaim,
    Polled,
    WorkerClaim,
)
from pool.jobs.roster import REMOTE
from pool.names import Names, lane_of

if TYPE_CHECKING:
    from pool.jobs.remote.workers import RemoteWorkers
    from tests.nodes import Fleet

pytestmark = pytest.mark.anyio

WAIT_S = 30.0


async def door(node: Node) -> RemoteWorkers:
    return await node._open_wiring.remote_workers()


@attrs.define(eq=False)
class Client:
    """A client in another language, but for the language: it keeps what it was told, no more."""

    claim: WorkerClaim
    doors: list[RemoteWorkers]
    held: dict[str, JobClaim] = attrs.field(factory=dict)
    turn: int = 0

    @property
    def door(self) -> RemoteWorkers:
        """The next gateway: they serve it in turn."""
        self.turn += 1
        return self.doors[self.turn % len(self.doors)]

    async def poll(self, jobs_max: int = 1, wait_s: float = WAIT_S) -> Polled:
        told = await self.door.poll(
            self.claim, list(self.held.values()), jobs_max=jobs_max, wait_s=wait_s
        )
        return self._heard(told)

    async def until(self, jobs: int, jobs_max: int = 8) -> None:
        with anyio.fail_after(WAIT_S):
            while len(self.held) < jobs:
                await self.poll(jobs_max, wait_s=1.0)

    async def beat(self, *beats: Beat) -> Polled:
        held = beats or [Beat(job) for job in self.held.values()]
        return self._heard(await self.door.heartbeat(self.claim, held))

    async def complete(self, value: Any, *keys: str) -> list[Ended]:
        items = [(self.held[key], value) for key in keys or self.held]
        told = await self.door.complete(self.claim, items)
        for each in told:
            self.held.pop(each.job.key, None)
        return told

    def _heard(self, told: Polled) -> Polled:
        for out in told.jobs:
            assert self.held.get(out.job.key, out.job) == out.job
            self.held[out.job.key] = out.job
        for lost in told.lost:
            self.held.pop(lost.job.key, None)
        assert len(self.held) <= self.claim.capacity
        return told


OFFERS = (
    HandlerOffer.of("add", attempts_max=2, backoff_s=0.01, backoff_max_s=0.02),
    HandlerOffer.of("short", timeout_s=0.3, attempts_max=1),
    HandlerOffer.of("serve", "service", backoff_s=0.01),
)


async def client(*nodes: Node, capacity: int = 8, **about: Any) -> Client:
    doors = [await door(node) for node in nodes]
    told = await doors[0].register(OFFERS, capacity=capacity, host="elsewhere", pid=17, **about)
    assert 0 < told.heartbeat_s < told.expires_in_s
    return Client(told.claim, doors)


@pytest.fixture(params=[1, 4])
def lanes(request: pytest.FixtureRequest) -> int:
    return int(request.param)


# --- a life ---------------------------------------------------------------------------------------


async def test_jobs_are_handed_out_and_settled_by_two_gateways_in_turn(
    fleet: Fleet, lanes: int
) -> None:
    first = await fleet.node(lanes=lanes)
    other = await fleet.node(lanes=lanes)
    mine = await client(first, other)
    refs = [await other.dispatch("add", f"k{n}", n, by=1) for n in range(20)]
    results = dict[str, int]()
    with anyio.fail_after(WAIT_S):
        while len(results) < 20:
            told = await mine.poll(8, wait_s=1.0)
            for out in told.jobs:
                results[out.job.key] = out.args[0] + out.kwargs["by"]
                ended = await mine.complete(results[out.job.key], out.job.key)
                assert [each.outcome for each in ended] == ["done"]
    assert [await ref.result(timeout_s=WAIT_S) for ref in refs] == list(range(1, 21))
    assert await mine.door.leave(mine.claim) == 0


async def test_an_open_poll_is_answered_by_a_dispatch(fleet: Fleet, lanes: int) -> None:
    node = await fleet.node(lanes=lanes)
    mine = await client(node)
    told = list[Polled]()
    async with anyio.create_task_group() as tasks:

        async def poll() -> None:
            told.append(await mine.poll())

        tasks.start_soon(poll)
        await opened(fleet, mine, lanes)
        await node.dispatch("add", "k", 1)
    assert [out.job.key for out in told[0].jobs] == ["k"]
    await mine.complete(2)


async def opened(fleet: Fleet, mine: Client, lanes: int) -> None:
    """Wait until it takes keys in each lane."""
    await fleet.until(lambda: all(takes(fleet, mine, lane) for lane in range(lanes)))


def takes(fleet: Fleet, mine: Client, lane: int) -> int:
    text = fleet.client.hget(Names(fleet.pool, lane).open, mine.claim.id)
    return int(text.split(b"|")[1]) if text else 0  # type: ignore[union-attr]
