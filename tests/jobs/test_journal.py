"""The journal as a node reads it, and what nodes write into it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import anyio
import attrs
import pytest

from pool import Handlers, Job, Node, Park
from pool.core.journal import FOREIGN, MISSED, PAGE, UNREAD
from pool.errors import InvalidOption, JobParked, StoreFault, StoreUnavailable
from pool.events import CommitRefused, HookFailed, PlanHeld
from pool.jobs import noting
from pool.jobs.around import Happened
from pool.jobs.client.journal import latest
from pool.jobs.noting import Noter
from pool.listing import Journal, JournalEntry
from pool.names import Names, lane_of
from pool.redis.commands.journal import NOTE
from pool.redis.scripts import ScriptCall
from tests.nodes import LANES, PATIENCE_S, Diary, Fleet

if TYPE_CHECKING:
    from collections.abc import Iterable

pytestmark = pytest.mark.anyio


@pytest.fixture
def handlers() -> Handlers:
    made = Handlers(backoff_s=0.01)

    @made.job("flaky", attempts_max=2)
    async def flaky(job: Job) -> None:
        if job.attempt == 1:
            raise ValueError("no luck")
        raise Park("enough")

    @made.job("fine")
    async def fine(job: Job) -> str:
        return job.key

    return made


async def read(journal: Journal, found: list[JournalEntry] | None = None) -> list[JournalEntry]:
    found = [] if found is None else found
    with anyio.fail_after(PATIENCE_S):
        async for entry in journal:
            found.append(entry)
    return found


def edges(entries: Iterable[JournalEntry]) -> list[tuple[str, str]]:
    return [(entry.edge, entry.key) for entry in entries]


async def park(node: Node, *keys: str) -> None:
    for key in keys:
        with pytest.raises(JobParked):
            await (await node.dispatch("flaky", key)).result(timeout_s=PATIENCE_S)


@pytest.mark.parametrize("lanes", [1, LANES])
async def test_it_has_what_is_not_ordinary_and_goes_on_from_any_position(
    fleet: Fleet, handlers: Handlers, lanes: int
) -> None:
    node = await fleet.node(handlers, lanes=lanes)
    await (await node.dispatch("fine", "good")).result(timeout_s=PATIENCE_S)
    await park(node, "a", "b", "c")
    found = await read(node.journal())
    assert sorted(edges(found)) == sorted(
        (edge, key) for edge in ("parked", "retried") for key in "abc"
    )
    assert [entry.at for entry in found] == sorted(entry.at for entry in found)
    assert {entry.handler for entry in found} == {"flaky"}
    assert edges(await read(node.journal(key="b"))) == [("retried", "b"), ("parked", "b")]
    assert await read(node.journal(handler="fine")) == []
    for place, entry in enumerate(found):
        assert await read(node.journal(since=entry.position)) == found[place + 1 :]
    assert await read(node.journal(since=datetime.now(UTC) + timedelta(hours=1))) == []
    first = datetime.min.replace(tzinfo=timezone(timedelta(hours=1)))
    assert edges(await read(node.journal(since=first))) == edges(found)
    earlier = datetime.now(UTC) - timedelta(hours=1)
    assert edges(await read(node.journal(since=earlier))) == edges(found)


async def test_who_follows_is_told_of_what_comes(fleet: Fleet, handlers: Handlers) -> None:
    node = await fleet.node(handlers, lanes=LANES)
    await park(node, "before")
    diary = Diary()

    async def listen() -> None:
        async for entry in node.journal(follow=True):
            diary.note(entry.edge, entry.key)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listen)
        await diary.has("parked", "before")
        await park(node, "after")
        await diary.has("parked", "after")
        tasks.cancel_scope.cancel()
    assert len(diary.entries) == 4


@pytest.mark.parametrize(
    "since",
    ["", "x", "1-1.1-1", "1-1..1-1", "-", datetime(2026, 1, 1)],  # noqa: DTZ001
)
async def test_a_position_of_another_pool_is_refused(fleet: Fleet, since: Any) -> None:
    node = await fleet.node(lanes=LANES)
    with pytest.raises(InvalidOption, match=r"position|zone") as refused:
        node.journal(since=since)
    assert str(LANES) in str(refused.value) or "zone" in str(refused.value)


async def test_entries_that_the_cap_took_are_told_of(fleet: Fleet, handlers: Handlers) -> None:
    node = await fleet.node(handlers, lanes=1)
    await park(node, "a", "b")
    name = Names(fleet.pool, 0).journal
    first, *_, last = await read(node.journal())
    fleet.client.xtrim(name, maxlen=1, approximate=False)
    found = await read(node.journal(since=first.position))
    assert edges(found) == [(MISSED, ""), ("parked", "b")]
    assert await read(node.journal(since=last.position)) == []
    fleet.client.delete(name)
    assert edges(await read(node.journal(since=last.position))) == [(MISSED, "")]


async def test_what_comes_after_a_loss_is_read_though_its_ids_are_lower(
    fleet: Fleet, handlers: Handlers
) -> None:
    """The clock was ahead, and the server went back to before that."""
    node = await fleet.node(handlers, lanes=1)
    name = Names(fleet.pool, 0).journal
    fleet.client.xadd(name, {"edge": "x"}, id="9999999999999-1")
    *_, last = await read(node.journal())
    fleet.client.delete(name)
    await park(node, "a")
    found = await read(node.journal(since=last.position))
    assert edges(found) == [(MISSED, ""), ("retried", "a"), ("parked", "a")]


async def test_a_gap_says_what_made_it(fleet: Fleet, handlers: Handlers) -> None:
    """Who lost its data is not told that a cap took them: behind a cap there is a full page."""
    node = await fleet.node(handlers, lanes=1)
    await park(node, "a")
    name = Names(fleet.pool, 0).journal
    *_, last = await read(node.journal())
    journal = node.journal(since=last.position)
    assert await read(journal) == []
    fleet.client.delete(name)
    await park(node, "b")
    gap, *rest = await read(node.journal(since=last.position))
    assert (gap.edge, edges(rest)) == (MISSED, [("retried", "b"), ("parked", "b")])
    assert "begun anew" in gap.detail
    assert "cap" not in gap.detail
    for _ in range(PAGE + 1):
        fleet.client.xadd(name, {"edge": "x"}, maxlen=PAGE, approximate=False)
    gap, *rest = await read(node.journal(since=rest[-1].position))
    assert (gap.edge, len(rest)) == (MISSED, PAGE)
    assert gap.detail.startswith("the cap took entries")


async def test_without_an_answer_of_any_lane_there_is_an_error(
    fleet: Fleet, handlers: Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await fleet.node(handlers, lanes=LANES)
    await park(node, "a")
    pipeline, silent = node._open_wiring.context.pipeline, set[str]()
    send = pipeline.send

    def sent(call: Any, on_reply: Any, **options: Any) -> None:
        if call[0] == "XRANGE" and call[1] in silent:
            raise StoreUnavailable(problem="hung", maybe_done=False)
        send(call, on_reply, **options)

    monkeypatch.setattr(pipeline, "send", sent)
    silent.update(Names(fleet.pool, n).journal for n in range(LANES) if n != lane_of("a", LANES))
    before = datetime.now(UTC)
    entries = await read(node.journal())
    assert all(before <= each.at <= datetime.now(UTC) for each in entries if each.edge == UNREAD)
    told = edges(entries)
    assert told.count((UNREAD, "")) == LANES - 1
    assert ("parked", "a") in told
    silent.add(Names(fleet.pool, lane_of("a", LANES)).journal)
    found = list[JournalEntry]()
    with pytest.raises(StoreUnavailable):
        await read(node.journal(), found)
    assert edges(found) == [(UNREAD, "")] * LANES


async def test_what_somebody_else_wrote_there_ends_no_reader(
    fleet: Fleet, handlers: Handlers
) -> None:
    node = await fleet.node(handlers, lanes=1)
    fleet.client.xadd(Names(fleet.pool, 0).journal, {b"\xff": b"\x00"})
    await park(node, "a")
    found = await read(node.journal())
    assert edges(found) == [(FOREIGN, ""), ("retried", "a"), ("parked", "a")]


async def test_a_lane_without_a_journal_keeps_nobody_from_the_others(
    fleet: Fleet, handlers: Handlers
) -> None:
    """A foreign value in its place: jobs end, others are read, and who follows is told once."""
    node = await fleet.node(handlers, lanes=LANES)
    key = next(f"k{n}" for n in range(99) if lane_of(f"k{n}", LANES) != 0)
    name = Names(fleet.pool, 0).journal
    fleet.client.set(name, "somebody else's")
    await park(node, key, next(f"k{n}" for n in range(99) if lane_of(f"k{n}", LANES) == 0))
    found = await read(node.journal())
    assert edges(found) == [(UNREAD, ""), ("retried", key), ("parked", key)]
    assert found[0].lane == 0
    assert f"{name}: " in found[0].detail
    assert "WRONGTYPE" in found[0].detail
    context = node._open_wiring.context
    here = next(f"k{n}" for n in range(99) if lane_of(f"k{n}", LANES) == 0)
    assert edges(await read(node.journal(key=here))) == [(UNREAD, "")]
    with pytest.raises(StoreFault):  # who asks for one key's entries alone is not told "none"
        await latest(context.pipeline, fleet.pool, LANES, here, 5)
    diary = Diary()

    async def listen() -> None:
        async for entry in node.journal(follow=True):
            diary.note(entry.edge, entry.key)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listen)
        await diary.has("parked", key)
        fleet.client.delete(name)
        await park(node, key)
        await diary.has("parked", key, times=2)
        tasks.cancel_scope.cancel()
    assert diary.entries.count((UNREAD, "")) == 1


async def test_a_pool_that_was_empty_for_a_while_is_no_clock_that_is_behind(
    fleet: Fleet, handlers: Handlers
) -> None:
    """What is dispatched before the first renewal is stamped later than time had stood till then.

    And what scripts say of times and clocks has a unit.
    """
    await fleet.leave(await fleet.node(handlers, lanes=1, lease_ttl_s=1.0))
    name = Names(fleet.pool, 0).lane
    fleet.client.hincrby(name, "seen", -2500)  # so much has passed since it was heard last
    node = await fleet.node(handlers, lanes=1, lease_ttl_s=1.0)
    await park(node, "a")
    began = fleet.client.hget(name, "seen")
    await fleet.until(lambda: _has_moved(fleet, name, began))
    found = await read(node.journal())
    assert "clock" not in {entry.edge for entry in found}
    assert fleet.client.hget(name, "behind") is None
    assert all(" ms" in entry.detail for entry in found if entry.edge == "silence")


async def _has_moved(fleet: Fleet, name: str, before: Any) -> bool:
    return bool(fleet.client.hget(name, "seen") != before)


# --- what nodes see -----------------------------------------------------------------------------


async def test_what_only_a_node_sees_is_noted_under_the_name_of_its_event(
    fleet: Fleet, handlers: Handlers
) -> None:
    end = anyio.Event()

    @handlers.job("held")
    async def held(job: Job) -> None:
        await end.wait()

    node = await fleet.node(handlers, lanes=LANES)
    ref = await node.dispatch("held", "k")
    await ref.started(timeout_s=PATIENCE_S)
    fleet.client.hdel(Names(fleet.pool, lane_of("k", LANES)).jobs, "k")  # somebody else's hand
    fleet.is_audited = False
    end.set()
    await fleet.until(lambda: _has(node, "commit.refused", "k"))


async def _has(node: Node, edge: str, key: str) -> bool:
    return (edge, key) in edges(await read(node.journal(key=key)))


async def test_what_was_noted_without_an_answer_stands_once(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the server was frozen: it goes on with the first call, and the second one is there.

    Equal events of before, and those that come meanwhile, are entries of their own.
    """
    node = await fleet.node(lanes=1)
    context = node._open_wiring.context
    noter, send, lost = Noter(context), context.pipeline.send, list[Any]()
    refused = CommitRefused(key="k", job_id="j", handler="h", epoch=1, answer="FENCED")

    def sent(call: Any, on_reply: Any, **options: Any) -> None:
        if len(lost) < 3 and isinstance(call, ScriptCall) and call.script is NOTE:
            lost.append(call.args[1])
            error = StoreUnavailable(problem="frozen", maybe_done=True)
            if len(lost) > 1:
                send(call, lambda _: on_reply(error), **options)
            else:
                on_reply(error)  # the call itself was lost
        else:
            send(call, on_reply, **options)

    noter.note(refused)
    await fleet.until(lambda: _counts(node, 1))
    monkeypatch.setattr(context.pipeline, "send", sent)
    noter.note(refused)
    noter.note(refused)
    noter.note(PlanHeld(plan="p", stops=3, wanted=0, token="t"))
    await fleet.until(lambda: _has_edge(node, "plan.held"))
    assert (lost[0], len(lost)) == ("", 3)
    assert lost[1] == lost[2] != ""
    told = [entry.edge for entry in await read(node.journal())]
    assert told == ["commit.refused"] * 3 + ["plan.held"]


async def _has_edge(node: Node, edge: str) -> bool:
    return edge in [entry.edge for entry in await read(node.journal())]


async def test_while_a_lane_hangs_so_many_wait_and_the_others_are_counted(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await fleet.node(lanes=1)
    context = node._open_wiring.context
    noter, send, is_away = Noter(context), context.pipeline.send, True

    def sent(call: Any, on_reply: Any, **options: Any) -> None:
        if is_away and call.script.name == "note":
            on_reply(StoreUnavailable(problem="hung", maybe_done=True))
        else:
            send(call, on_reply, **options)

    monkeypatch.setattr(context.pipeline, "send", sent)
    for number in range(noting.WAITING_MAX + 5):
        noter.note(
            CommitRefused(key=f"k{number}", job_id="j", handler="h", epoch=1, answer="FENCED")
        )
    is_away = False
    await fleet.until(lambda: _counts(node, noting.WAITING_MAX))
    noter.note(PlanHeld(plan="p", stops=3, wanted=0, token="t"))
    await fleet.until(lambda: _counts(node, noting.WAITING_MAX + 1))
    *found, held = await read(node.journal())
    assert [entry.key for entry in found] == [f"k{n}" for n in range(noting.WAITING_MAX)]
    assert (held.edge, held.key) == ("plan.held", "plan:p")
    assert held.detail == "plan=p stops=3 wanted=0 token=t dropped_before=5"


async def test_what_comes_with_each_ordinary_job_is_one_entry_a_minute_with_their_number(
    fleet: Fleet, handlers: Handlers
) -> None:
    """A hook that raises would drive all else out of the journal."""

    @handlers.on("started")
    async def bad(happened: Happened) -> None:
        raise RuntimeError(happened.key)

    node = await fleet.node(handlers, lanes=LANES)
    noter = node._noter
    assert noter is not None
    for number in range(30):
        await (await node.dispatch("fine", f"k{number}")).result(timeout_s=PATIENCE_S)
    await fleet.seen(HookFailed, times=30)  # each is told to observers
    await park(node, "flaky")
    noted = await read(node.journal(handler="fine"))
    assert [(each.edge, "times" in each.detail) for each in noted] == [("hook.failed", False)]
    [(key, fine)] = [each for each in noter._sums.items() if "fine" in each[0]]  # type: ignore[operator]
    assert fine.times == 29
    noter._on_minute(key)
    await fleet.until(lambda: _has_times(node, 29))
    noter._on_minute(key)  # a minute in which none has come: the next one is told at once
    assert key not in noter._sums


async def _has_times(node: Node, times: int) -> bool:
    entries = await read(node.journal(handler="fine"))
    return [each for each in entries if f"times={times}" in each.detail.split()] != []


async def _counts(node: Node, entries: int) -> bool:
    return len(await read(node.journal())) >= entries


def test_each_event_that_is_noted_fits_into_an_entry() -> None:
    import pool.events as events

    kinds = [getattr(events, name) for name in events.__all__]
    noted = [kind for kind in kinds if getattr(kind, "is_journalled", False)]
    assert len(noted) > 15
    values = {"int": 1, "float": 1.5, "int | None": None, "tuple[int, int]": (1, 2)}
    for kind in noted:
        facts = {f.name: values.get(str(f.type), "x") for f in attrs.fields(kind)}
        told = noting.noted(kind(**facts), facts, "k", "n1")
        assert len(told) == 8
        assert all(type(each) in (str, int) for each in told)
