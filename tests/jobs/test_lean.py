"""E5: nothing that ends waits for the collector of cycles, and what is kept is none of its work."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest

import pool
from pool import Call, Cancel, Handlers, Job, Node, Park, PoolError, Retry, freeze_memory
from pool.jobs.worker.outbox import Memory
from pool.redis.commands.edges import DoneEdge

if TYPE_CHECKING:
    from tests.nodes import Fleet

PACKAGE = str(Path(pool.__file__).parent)
TIMES = 5
LEASE_TTL_S = 60.0  # on a busy machine too each job runs once


class Local:
    """Something of the user's."""


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.freeze()  # what earlier tests have left is none of these tests' garbage
    gc.disable()
    yield
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()


def of_ours() -> set[str]:
    """Return what of ours only the collector can free, and free it."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    garbage = list(gc.garbage)
    gc.garbage.clear()
    found = {
        f"{type(each).__qualname__} {each.f_code.co_qualname}"
        if isinstance(each, FrameType)
        else type(each).__qualname__
        for each in garbage
        if type(each).__module__.startswith("pool.")
        or (isinstance(each, FrameType) and each.f_code.co_filename.startswith(PACKAGE))
    }
    garbage.clear()
    gc.collect()  # or the next look finds what was only looked at
    return found


class Settlement:
    """Handlers that end in every way, and their locals."""

    def __init__(self) -> None:
        self.refs: list[weakref.ref[Local]] = []
        self.handlers = Handlers()
        for name in ("raises", "group", "chain", "park", "cancel", "retry", "unfit", "returns"):
            self.handlers.job(name, attempts_max=2 if name == "retry" else 1)(self._handler(name))
        self.handlers.job("late", attempts_max=1, timeout_s=0.02)(self._handler("held"))
        self.handlers.job("held")(self._handler("held"))
        self.handlers.job("thread", attempts_max=1)(self._thread)

    def local(self) -> Local:
        found = Local()
        self.refs.append(weakref.ref(found))
        return found

    def _thread(self, _: Job) -> None:
        mine = self.local()
        raise ValueError(type(mine))

    def _handler(self, name: str) -> Callable[[Job], Awaitable[Any]]:
        async def fail() -> None:
            raise ValueError("within")

        async def handler(job: Job) -> Any:
            mine = self.local()
            match name:
                case "raises":
                    await anyio.lowlevel.checkpoint()
                    raise ValueError("as it is")
                case "group":
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(fail)
                case "chain":
                    try:
                        await fail()
                    except ValueError as error:
                        raise KeyError("other") from error
                case "park":
                    raise Park("enough")
                case "cancel":
                    raise Cancel("enough")
                case "retry":
                    raise Retry(after_s=0.001)
                case "unfit":
                    return object()
                case "held":
                    await anyio.sleep_forever()
            return type(mine).__name__

        return handler

    @property
    def alive(self) -> int:
        return sum(ref() is not None for ref in self.refs)


async def of_each(
    fleet: Fleet, settlement: Settlement, one: Callable[[str], Awaitable[None]], kept: int = 0
) -> list[str]:
    """Return what most of these leave to the collector; what does not come each time is not theirs.

    So it is with a connection that is lost meanwhile.  Locals of all but `kept` end by themselves.
    """
    await one("first")  # what is made only once is made
    await anyio.lowlevel.checkpoint()
    of_ours()
    seen: Counter[str] = Counter()
    for i in range(TIMES):
        await one(f"k{i}")
        await fleet.until(lambda: settlement.alive == kept)
        seen.update(of_ours())
    return [name for name, times in seen.items() if times > TIMES // 2]


@pytest.mark.anyio
@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize(
    "how",
    [
        *("raises", "group", "chain", "park", "cancel", "retry", "unfit", "returns"),
        *("late", "held", "thread"),
    ],
)
async def test_an_attempt_that_has_ended_is_no_cycle(fleet: Fleet, how: str) -> None:
    """Its locals were kept, by its traceback, until the collector came."""
    settlement = Settlement()
    node = await fleet.node(settlement.handlers, lease_ttl_s=LEASE_TTL_S)

    async def one(key: str) -> None:
        ref = await node.dispatch(how, key)
        if how == "held":
            await ref.started(timeout_s=30)
            await ref.stop(timeout_s=30)
        with suppress(PoolError):
            await ref.result(timeout_s=30)

    assert await of_each(fleet, settlement, one) == []
    assert len(settlement.refs) == (TIMES + 1) * (2 if how == "retry" else 1)


@pytest.mark.anyio
@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize(
    "call",
    ["exists", "unknown", "gone", "status", "notify", "key", "parked", "time", "many", "store"],
)
async def test_a_call_that_failed_is_no_cycle(
    fleet: Fleet, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settlement = Settlement()
    node = await fleet.node(settlement.handlers, lease_ttl_s=LEASE_TTL_S)
    held = await node.dispatch("held", "held")
    await held.started(timeout_s=30)
    monkeypatch.setattr(fleet, "url", "")  # nothing of it is needed any more

    async def bare(node: Node, key: str) -> object:
        match call:
            case "exists":
                return await node.dispatch("held", "held")
            case "unknown":
                return await node.dispatch("never", key)
            case "gone":
                await node.stop(key)
            case "status":
                return await node.status(key)
            case "notify":
                await node.notify(key, 1)
            case "key":
                return await node.dispatch("held", "")
            case "parked":
                return await (await node.dispatch("raises", key)).result(timeout_s=30)
            case "time":
                return await held.result(timeout_s=0.001)
            case "many":
                calls: Any = [Call(""), Call("held"), 5]
                [*errors] = await node.dispatch_many("held", calls)
                assert all(isinstance(each, PoolError) for each in errors)
                raise errors[0]  # type: ignore[misc]
            case _:
                return await fleet.wiring(node).context.pipeline.execute("HGET", "pool:{x}:one")
        return None

    async def one(key: str) -> None:
        mine = settlement.local()
        try:
            await bare(node, key)
        except (PoolError, TimeoutError) as error:
            if call == "many":
                error.__traceback__ = None  # the test's own list is a local there
            assert type(mine) is Local
            return
        raise AssertionError("it succeeded")

    assert await of_each(fleet, settlement, one, kept=1) == []  # that of `held`
    await held.stop(timeout_s=30)


def test_what_a_worker_settled_lately_is_no_work_for_the_collector() -> None:
    memory = Memory()
    for i in range(2_000):
        memory.keep(DoneEdge(f"k{i}", i, f"j{i}", 1_000, "h", b"result"), 1.0, 60.0)
    gc.collect()  # which untracks tuples that hold nothing it would look at
    kept = [each for each in gc.get_referents(memory._kept) if gc.is_tracked(each)]
    assert kept == []
    edge = memory.of("k7", 7, "j7")
    assert isinstance(edge, DoneEdge)
    assert (edge.key, edge.epoch, edge.id, edge.result) == ("k7", 7, "j7", b"result")
    assert memory._bytes == 2_000 * len(b"result")
    memory.clear(lambda _: True)
    assert (memory._bytes, memory.of("k7", 7, "j7"), memory.latest) == (0, None, {})


def test_of_a_job_that_was_settled_again_only_the_latest_end_is_kept() -> None:
    """And from then on: neither its bytes nor its age are those of the one before."""
    memory = Memory()
    for now_s, key in enumerate(("again", "once", "again")):
        memory.keep(DoneEdge(key, now_s, "id", 1_000, "h", b"result"), float(now_s), 60.0)
    assert memory._bytes == 2 * len(b"result")
    memory.keep(DoneEdge("late", 3, "id", 1_000, "h", b"result"), 10.0, 8.5)
    assert memory.latest == {"again": 2, "late": 3}
    assert memory.of("once", 1, "id") is None


def test_what_lives_when_memory_is_frozen_is_no_work_for_the_collector() -> None:
    gc.unfreeze()  # what the tests have frozen
    freeze_memory()
    assert gc.get_freeze_count() > 10_000
    assert len(gc.get_objects()) < gc.get_freeze_count() / 10
