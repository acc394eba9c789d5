"""What grows without a bound is read and moved a page at a time: here the pages are tiny."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import attrs
import pytest

from pool import Call, Handlers, Job
from pool.core.walk import Pages
from pool.events import ReconciliationMended, WorkerReaped
from pool.jobs.worker.reconcile import Audit
from pool.jobs.worker.worker import Worker
from pool.redis.commands.talk import LookedAt, Noted
from pool.redis.io.system import SystemIO
from tests.jobs.test_waiters import SOON_S, gated, seen_from

if TYPE_CHECKING:
    from tests.nodes import Diary, Fleet

pytestmark = pytest.mark.anyio

TINY = Pages(claims=2, moved=3, listed=2, compared=3, messages=2, message_bytes=64, looked_at=2)


def turning(pages: Pages = TINY) -> SystemIO:
    """Return a IO that turns such pages."""
    host = SystemIO()
    host.pages = pages
    return host


def holding(diary: Diary) -> Handlers:
    handlers = Handlers()

    @handlers.service("hold")
    async def hold(job: Job) -> None:
        diary.note(job.key, job.epoch)
        await anyio.sleep_forever()

    return handlers


async def owning(fleet: Fleet, diary: Diary, keys: int) -> Worker:
    """Return a worker that owns so many keys, and turns tiny pages."""
    node = await fleet.node(holding(diary), _io=turning())
    await node.dispatch_many("hold", [Call(f"k{n}") for n in range(keys)])
    await diary.counts(keys)
    [worker] = fleet.workers(node)
    owned = fleet.names.owned(worker.target(0).name)
    await fleet.until(lambda: fleet.client.scard(owned) == keys)
    return worker


async def test_an_inbox_is_handled_page_by_page(fleet: Fleet, diary: Diary) -> None:
    """G-07: in order, each once, also those that come while pages are turned."""
    handlers, count = Handlers(), 60

    @handlers.service("read")
    async def read(job: Job) -> None:
        async for message in job.notifications():
            diary.note(message["n"])
            if message["n"] % 7 == 0:
                await anyio.sleep(0.002)

    client = await fleet.node()
    await client.options(allow_unknown=True).dispatch("read", "r")
    sizes = (0, 10, 100, 2_000)

    async def tell(first: int) -> None:
        for n in range(first, first + count):
            await client.notify("r", {"n": n, "pad": "x" * sizes[n % 4]})

    await tell(0)
    await fleet.node(handlers, _io=turning())
    await tell(count)
    await diary.counts(2 * count)
    assert diary.entries == list(range(2 * count))
    await fleet.until(lambda: fleet.client.llen(fleet.names.inbox("r")) <= 1)


async def test_a_worker_compares_what_it_owns_page_by_page(fleet: Fleet, diary: Diary) -> None:
    """G-05: what it lost is found, and nothing that runs is touched."""
    worker = await owning(fleet, diary, 20)
    names, me = fleet.names, worker.target(0).name
    began = sorted(diary.entries)
    lost = {f"k{n}" for n in (3, 8, 17)}
    for key in lost:
        run = worker.runs[key]
        assert run.scope is not None
        run.step("lost")  # or its end would be told
        run.scope.cancel()
        worker._forget(run)
    fleet.client.srem(names.owned(me), "k5", "k12")
    fleet.client.sadd(names.owned(me), *(f"nobody's {n}" for n in range(5)))
    worker._reconcile(0)
    await diary.counts(23)
    await fleet.until(lambda: worker._lanes[0].audit is None)
    mended = fleet.all_seen(ReconciliationMended)  # a pass may have been under way
    assert [sum(each.released for each in mended), sum(each.cancelled for each in mended)] == [3, 0]
    assert [entry for entry in sorted(diary.entries) if entry[0] not in lost] == [
        entry for entry in began if entry[0] not in lost
    ]
    await fleet.until(
        lambda: fleet.client.smembers(names.owned(me)) == {f"k{n}".encode() for n in range(20)}
    )


async def test_what_comes_up_during_a_comparison_is_compared_after_it(
    fleet: Fleet, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of it may have been looked at before, and nobody would look again for ten TTLs."""
    worker = await owning(fleet, diary, 10)
    lane, passes, end = worker._lanes[0], list[Audit](), worker._end_audit

    def note(number: int, of: object, audit: Audit, *, is_failed: bool) -> None:
        passes.append(audit)
        end(number, lane, audit, is_failed=is_failed)

    monkeypatch.setattr(type(worker), "_end_audit", lambda _, *args, **named: note(*args, **named))
    worker._reconcile(0)
    worker._reconcile(0)
    assert lane.audit is not None
    assert lane.audit.is_again
    await fleet.until(lambda: len(passes) == 2 and lane.audit is None)
    assert [audit.is_over for audit in passes] == [True, True]
    assert not fleet.all_seen(ReconciliationMended)


async def test_no_page_is_compared_while_what_changes_it_is_under_way(
    fleet: Fleet, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G-05: what was told during the page before is answered first; which side has it, is known."""
    worker = await owning(fleet, diary, 10)
    lane, compare, under_way = worker._lanes[0], Worker._compare, list[bool]()

    async def tell_and_compare(self: Worker, *of: Any) -> None:
        under_way.append(lane.box.is_flying)
        lane.box.acknowledge(self.runs["k0"])
        await compare(self, *of)

    with monkeypatch.context() as patched:
        patched.setattr(Worker, "_compare", tell_and_compare)
        worker._reconcile(0)
        await fleet.until(lambda: lane.audit is None)
    assert len(under_way) > 2
    assert not any(under_way)


async def test_many_that_end_at_once_are_fenced_and_forgotten_page_by_page(
    fleet: Fleet, diary: Diary
) -> None:
    """G-06: one page after the other, without a pause between them; workers among them too."""
    await fleet.node(holding(diary), _io=turning())
    clients = {f"c{n}.1": 1 for n in range(60)}
    fleet.client.zadd(fleet.names.keepalive, clients)
    await fleet.seen(WorkerReaped, times=60)
    assert {event.identity for event in fleet.all_seen(WorkerReaped)} == {*clients}
    claims = fleet.client.hmget(fleet.names.cleanup, [*clients])
    assert set(claims) == {b"done"}


async def test_those_who_own_something_are_reaped_a_few_at_a_time(
    fleet: Fleet, diary: Diary
) -> None:
    """G-06: each has its turn before its claim ends; who is done makes room for the next."""
    await fleet.node(holding(diary), _io=turning())
    names = [f"dead{n}.1" for n in range(9)]
    for name in names:
        fleet.client.xadd(fleet.names.stream(name), {"k": "nobody's", "m": "none"}, id="1-0")
        fleet.client.zadd(fleet.names.keepalive, {name: 1})
    await fleet.seen(WorkerReaped, times=len(names))
    assert sorted(event.identity for event in fleet.all_seen(WorkerReaped)) == names
    assert not fleet.client.exists(*map(fleet.names.stream, names))


async def test_places_of_the_dead_keep_nobody_from_hearing(fleet: Fleet, diary: Diary) -> None:
    """Sixteen are told; of sixteen that died the seventeenth hears at once, and need not ask."""
    release = anyio.Event()
    await fleet.node(gated(diary, release))
    dispatcher, other = await fleet.node(), await fleet.node()
    ref = await dispatcher.dispatch("gated", "k")
    await diary.has("k")
    record = None
    await fleet.until(lambda: (record := fleet.record("k")) and record.state == "running")
    record = fleet.record("k")
    assert record is not None
    text = fleet.client.hget(fleet.names.jobs, "k")
    assert isinstance(text, bytes)
    fields = text.split(b"|")
    fields[13] = b",".join(b"dead%d.1" % n for n in range(16))
    fleet.client.hset(fleet.names.jobs, "k", b"|".join(fields))

    async def let_go() -> None:
        await fleet.until(
            lambda: b"dead15.1" not in (fleet.client.hget(fleet.names.jobs, "k") or b"")
        )
        release.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(let_go)
        assert await seen_from(ref, other).result(timeout_s=SOON_S) == "k"


async def test_a_repeated_message_is_looked_for_page_by_page(fleet: Fleet) -> None:
    """G-07: also where many are unhandled, each call looks at a few."""
    client = await fleet.node(_io=turning())
    await client.options(allow_unknown=True).dispatch("read", "r")
    for n in range(9):
        await client.notify("r", n)
    wiring = fleet.wiring(client)
    state = wiring.context.lanes[0]
    inbox: Any = fleet.client.lrange(fleet.names.inbox("r"), 0, -1)
    number, request, *_ = inbox[0].decode().split("|")
    skips, skip = [], 0
    while True:
        call = state.lane.notify("r", "", f"!{request}", b"0", messages_max=99, skip=skip)
        told = await wiring.context.pipeline.call(call)
        if not isinstance(told, LookedAt):
            break
        skip = told.skip
        skips.append(skip)
    assert (told, skips) == (Noted(number=int(number)), [2, 4, 6, 8])
    assert fleet.client.llen(fleet.names.inbox("r")) == 9
    assert attrs.evolve(state.lane).pages == TINY
