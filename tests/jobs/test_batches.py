"""Batches: members that are counted once, whoever dies; what follows them; what is told of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pool import Call, Cancel, Follower, Handlers, Job, Park
from pool.errors import BatchFailed, BatchSealed
from tests.nodes import Diary

if TYPE_CHECKING:
    from tests.nodes import Fleet

pytestmark = pytest.mark.anyio
LANES = 4


@pytest.fixture(params=[1, LANES], ids=["one lane", "four lanes"])
def lanes(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


@pytest.fixture
def diary() -> Diary:
    return Diary()


@pytest.fixture
def handlers(diary: Diary) -> Handlers:
    made = Handlers()

    @made.job("report", attempts_max=1)
    async def report(job: Job, number: int) -> int:
        if number % 7 == 3:
            raise Park("no data")
        if number % 7 == 5:
            raise Cancel("not today")
        return 2 * number

    @made.job("note")
    async def note(job: Job, *words: Any) -> None:
        diary.note("note", job.key, *words)

    return made


async def test_a_batch(fleet: Fleet, handlers: Handlers, diary: Diary, lanes: int) -> None:
    node = await fleet.node(handlers, lanes=lanes)
    async with node.batch("b1", then=Follower("note", "then").options(takes_result=True)) as batch:
        assert await batch.add("report", [Call(f"k{n}", 7 * n) for n in range(600)]) == []
    status = await batch.ref.result(20.0)
    assert (status.expected, status.succeeded, status.state) == (600, 600, "done")
    print(status)


async def test_counts(fleet: Fleet, handlers: Handlers, lanes: int) -> None:
    """What became of each is told once, in the order of their ends, with its result."""
    node = await fleet.node(handlers, lanes=lanes)
    async with node.batch("b1") as batch:
        refused = await batch.add("report", [Call(f"k{n}", n) for n in range(70)])
        assert refused == []
    told = []
    status = await batch.ref.wait(30.0, on_progress=told.append)
    assert (status.state, status.expected, status.succeeded) == ("failed", 70, 50)
    assert (status.failed, status.cancelled, status.missing, status.waiting) == (10, 10, 0, 0)
    assert told[-1] == status
    with pytest.raises(BatchFailed):
        await batch.ref.result()
    found = {}
    async for member in node.batches.get("b1").members(handlers["report"]):
        assert member.index not in found
        found[member.index] = member
        if member.end == "succeeded":
            assert member.result() == 2 * member.index
    assert len(found) == 70
    assert await node.batches.list() == [status]


async def test_cancel(fleet: Fleet, handlers: Handlers, lanes: int) -> None:
    @handlers.job("sleep")
    async def sleep(job: Job) -> None:
        await anyio.sleep_forever()

    node = await fleet.node(handlers, lanes=lanes, capacity=10)
    batch = node.batch("b1")
    async with batch:
        await batch.add("sleep", [f"k{n}" for n in range(50)])
        while (await batch.ref.status()).running < 10:
            await anyio.sleep(0.01)
        assert (await batch.ref.status()).waiting == 40
        await batch.ref.cancel("enough")
        with pytest.raises(BatchSealed):
            await batch.add("sleep", ["more"])
    status = await batch.ref.wait(30.0)
    assert (status.state, status.cancelled, status.cause) == ("cancelled", 50, "enough")


async def test_maker_gone(fleet: Fleet, handlers: Handlers, lanes: int) -> None:
    """Noted, and never dispatched: found missing; the batch settles by itself."""
    node = await fleet.node(handlers, lanes=lanes)
    with pytest.raises(ZeroDivisionError):
        async with node.batch("b1", open_s=1.0) as batch:
            await batch.add("report", [Call(f"k{n}", 0) for n in range(5)])
            await batch._note(["x1", "x2"])
            raise ZeroDivisionError
    status = await batch.ref.wait(30.0)
    assert (status.state, status.succeeded, status.missing) == ("failed", 5, 2)


async def test_nested(fleet: Fleet, handlers: Handlers, lanes: int) -> None:
    node = await fleet.node(handlers, lanes=lanes)
    async with node.batch("outer") as outer:
        await outer.add("report", [Call(f"k{n}", 0) for n in range(5)])
        for n in range(3):
            async with node.batch(f"inner{n}", within=outer) as inner:
                await inner.add("report", [Call(f"i{n}.{m}", 0) for m in range(5)])
    status = await outer.ref.result(30.0)
    assert (status.state, status.succeeded) == ("done", 8)
