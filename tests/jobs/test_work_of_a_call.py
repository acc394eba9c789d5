"""No call of `advance` holds the server for long: what an edge costs it is counted, by its kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pool import Handlers, Job
from pool.jobs.remote.claims import JobClaim
from pool.jobs.remote.ending import _batches
from pool.jobs.worker.outbox import Answered, Outbox
from pool.redis.commands.edges import (
    CancelEdge,
    DoneEdge,
    Edge,
    GrantEdge,
    ParkEdge,
    SeenEdge,
    WaitEdge,
)

if TYPE_CHECKING:
    from tests.nodes import Fleet

pytestmark = pytest.mark.anyio


@pytest.fixture
def handlers() -> Handlers:
    handlers = Handlers()

    @handlers.service("serve")
    async def serve(_: Job) -> None:
        await anyio.sleep_forever()

    return handlers


async def test_of_many_that_are_stopped_at_once_few_end_with_one_call(
    fleet: Fleet, handlers: Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, sizes = 400, list[int]()
    node = await fleet.node(handlers, capacity=count, lease_ttl_s=60.0)
    keys = [f"k{n}" for n in range(count)]
    await node.dispatch_many("serve", keys)
    [worker] = fleet.workers(node)
    await fleet.until(lambda: len(worker.runs) == count and worker._lanes[0].box.is_empty)
    box, held, real = worker._lanes[0].box, list[bool](), Outbox.on_answer

    def on_answer(self: Outbox, answer: Answered) -> Any:
        sizes.append(len([edge for edge, _ in answer.batch if isinstance(edge, CancelEdge)]))
        return real(self, answer)

    box.hold(lambda: held.append(True))
    await fleet.until(lambda: held)
    async with anyio.create_task_group() as tasks:
        for key in keys:
            tasks.start_soon(node.stop, key)
        await fleet.until(lambda: len(box._edges) == count)
        monkeypatch.setattr(Outbox, "on_answer", on_answer)
        box.release()
        await fleet.until(lambda: not worker.runs)
    assert sizes == [170, 170, 60]


@pytest.mark.parametrize(
    ("kind", "most"),
    [
        *((DoneEdge, 256), (SeenEdge, 256), (CancelEdge, 170)),
        *((WaitEdge, 170), (ParkEdge, 128), (GrantEdge, 128)),
    ],
)
async def test_what_costs_the_server_more_fills_a_call_sooner(
    fleet: Fleet, handlers: Handlers, kind: type[Edge], most: int
) -> None:
    box = fleet.workers(await fleet.node(handlers))[0]._lanes[0].box
    edges = [kind(f"k{n}", 1, f"id{n}", handler="serve") for n in range(600)]
    for edge in edges:
        box.add(edge, None)
    batches = []
    while box._edges:
        batches.append([edge for edge, _ in box._take(0.0)[0]])
    assert [edge for batch in batches for edge in batch] == edges
    assert {len(batch) for batch in batches[:-1]} == {most}
    job = JobClaim("w1.1", 0, "k", "id", "h", "job", 1, 1)
    some = _batches([(job, edge) for edge in edges])
    assert [[edge for _, edge in each] for each in some] == batches, "a gateway sends no more, too"
