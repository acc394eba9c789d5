"""Damaged or foreign data under a working node: D34 to D37, one thing at a time."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import anyio
import attrs
import pytest

from pool import Handlers, Job, JobRef, Node
from pool.core.codec import encode_call
from pool.core.record import Start
from pool.core.retry import RECOVERY_RETRY_S
from pool.events import (
    ActorCrashed,
    CommitRefused,
    ReconciliationMended,
    RecordQuarantined,
    StoreTroubled,
)
from pool.jobs.fleet.reaper import Suspects
from pool.jobs.worker.executor import Executor
from pool.jobs.worker.worker import Worker
from pool.maps.deltas import Op, Set
from pool.names import pair
from pool.redis.pipeline import Pipeline
from pool.runtime.observers import Outages

if TYPE_CHECKING:
    from tests.nodes import Diary, Fleet

pytestmark = pytest.mark.anyio

handlers = Handlers()


@handlers.job("echo")
async def echo(job: Job, value: Any = None) -> Any:
    return value


async def is_well(fleet: Fleet, node: Node) -> None:
    """Check that a node still does what it is for, and that no actor of it has crashed."""
    ref = await node.dispatch(echo, "afterwards", 1)
    assert await ref.result(timeout_s=30) == 1
    assert not fleet.all_seen(ActorCrashed)


async def test_junk_signals_crash_no_worker_however_many(fleet: Fleet, diary: Diary) -> None:
    """D34: each one crashed it; as many as `restarts_max` ended the node."""
    mine, gate = Handlers(), anyio.Event()

    @mine.job("wait")
    async def wait(job: Job) -> None:
        diary.note(job.key)
        await gate.wait()

    mine.job("echo")(echo.fn)
    node = await fleet.node(mine)
    ref = await node.dispatch(wait, "k")
    await diary.has("k")
    worker = fleet.names.signal(f"{node.workers[0].id}.1")
    junk: list[dict[Any, Any]] = [
        {"t": "message", "k": "k", "i": "x", "b": "0"},
        {"t": "message", "k": "k", "i": "9" * 5000, "b": "0"},
        {"t": "message", "k": "k", "i": "1", "b": "\u00b2"},
        {"t": "intent", "k": "k", "e": "x", "d": "s"},
        {"t": "intent", "k": "k", "e": "9" * 5000, "d": ""},
        {"t": "intent", "k": b"\xff", "e": "1", "d": b"\xff"},
    ]
    for _ in range(5):
        for fields in junk:
            fleet.client.xadd(worker, fields)
    await is_well(fleet, node)
    gate.set()
    await ref.result(timeout_s=30)


async def test_a_field_whose_name_is_no_text_ends_no_reader(fleet: Fleet) -> None:
    """D34: the listener's thread ended at it, began again, and met it again."""
    node = await fleet.node(handlers)
    worker = f"{node.workers[0].id}.1"
    for stream in (fleet.names.stream(worker), fleet.names.signal(worker)):
        fleet.client.xadd(stream, {b"\xff\xfe": b"x"})
    await is_well(fleet, node)
    assert fleet.all_seen(StoreTroubled, during="listen") == []
    # An entry that starts no job is dropped when the worker compares what it has.
    await node.dispatch(echo, "more")
    fleet.client.xtrim(fleet.names.stream(worker), maxlen=0)


async def test_a_workers_entry_full_of_oddities_ends_no_node(fleet: Fleet) -> None:
    """D36: every node reads the map, so one such entry would have ended the fleet."""
    node = await fleet.node(handlers)
    [entry] = fleet.wiring(node).replica.items.values()
    assert isinstance(entry, bytes)
    good = entry.decode()
    oddities = [
        good.replace("[1]", "[1e999]"),
        good.replace("[1]", "[" * 5000),
        good.replace('"weight": 1.0', '"weight": NaN').replace(":1.0", ":1e999"),
        good.replace(node.workers[0].id, "\\ud800"),
        good.replace('"echo"', "7"),
        good.replace("[1]", "[-1]"),
    ]
    ops: list[Op] = [Set(b"odd-%d" % n, text.encode()) for n, text in enumerate(oddities)]
    replica = fleet.wiring(node).replica
    await replica.write(ops, repeatable=True)
    await fleet.until(lambda: len(replica.items) == 1 + len(oddities))
    assert len(node.workers) == 1
    await is_well(fleet, node)


def hold_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have workers take a start more than they have slots, and keep it."""
    monkeypatch.setattr(Worker, "takes", lambda worker, _: worker.capacity + 1)
    monkeypatch.setattr(Executor, "surplus", lambda _: [])


async def test_an_older_record_that_names_another_handler_goes_to_who_has_that(
    fleet: Fleet, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G-05: who had given it up under its former name was refused, and did so for ever."""
    hold_ahead(monkeypatch)
    mine, others, gate = Handlers(), Handlers(), anyio.Event()

    @mine.job("hold")
    async def hold(job: Job) -> None:
        await gate.wait()

    @others.job("echo")
    async def slow(job: Job, value: Any) -> None:
        await anyio.sleep_forever()

    @others.job("other")
    async def other(job: Job, value: Any) -> str:
        return f"{value} by {job.handler}"

    mine.job("echo")(echo.fn)
    node = await fleet.node(mine, capacity=1, lease_ttl_s=1.0)
    [worker] = fleet.wiring(node).membership.workers.values()
    await (await node.dispatch(hold, "h")).started(timeout_s=30)
    ref = await node.dispatch(echo, "k", "v")
    await fleet.until(lambda: "k" in worker.runs)
    text: Any = fleet.client.hget(fleet.names.jobs, "k")
    second = await fleet.node(others, lease_ttl_s=1.0)
    [lent] = fleet.wiring(second).membership.workers.values()
    worker._cancel(worker.runs["k"], "release")
    await fleet.until(lambda: (r := fleet.record("k")) and r.state == "running")
    fields = text.replace(b"|echo|", b"|other|").split(b"|")
    fields[7] += b"p"
    with fleet.client.pipeline(transaction=True) as pipe:
        pipe.hset(fleet.names.jobs, "k", b"|".join(fields))
        pipe.srem(fleet.names.owned(f"{lent.id}.1"), "k")
        pipe.zadd(fleet.names.pending, {"k": 1})
        pipe.execute()
    assert await ref.result(timeout_s=30) == "v by other"
    assert not fleet.all_seen(ActorCrashed)
    gate.set()


@pytest.mark.parametrize("garbage", [None, 17, b"", b"?"])
async def test_a_payload_garbled_on_its_way_is_read_again(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, garbage: Any
) -> None:
    """G-01: a job was parked, or begun without its arguments, for one reply of another shape."""
    garbled: list[Any] = []
    execute_all = Pipeline.execute_all

    async def answer(self: Pipeline, commands: Any) -> list[Any]:
        asked = [*commands]
        replies = await execute_all(self, asked)
        if not garbled and asked[0][1:] == (fleet.names.payloads, "k"):
            garbled.append(replies[0])
            replies[0] = garbage
        return replies

    monkeypatch.setattr(Pipeline, "execute_all", answer)
    node = await fleet.node(handlers)
    ref = await node.dispatch(echo, "k", "v" * 5_000)
    assert await ref.result(timeout_s=30) == "v" * 5_000
    assert len(garbled) == 1
    await is_well(fleet, node)


async def test_a_start_without_its_entry_is_parked_as_malformed(fleet: Fleet) -> None:
    """G-05: its owner was reminded of it for ever, and could never start it."""
    node = await fleet.node(handlers, lease_ttl_s=1.0)
    await is_well(fleet, node)
    stamp: Any = fleet.client.hget(fleet.names.lane, "stamp")
    record = f"P|j|lost-1|echo|{node.workers[0].id}.1|{int(stamp)}|1|||||||||"
    with fleet.client.pipeline(transaction=True) as pipe:
        pipe.hset(fleet.names.jobs, "lost", record)
        pipe.zadd(fleet.names.pending, {"lost": 1})
        pipe.execute()
    await fleet.until(lambda: fleet.record("lost") is None)
    letter: Any = fleet.client.hget(fleet.names.letters, pair("lost", "lost-1"))
    assert b"|malformed\nits payload is gone\n" in letter
    await is_well(fleet, node)


@pytest.mark.parametrize("what", ["id", "a lower epoch", "a higher epoch", "key", "handler"])
async def test_a_start_of_which_one_byte_is_wrong_is_begun_anew_as_its_record_says(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """G-05: its end was refused, and sent again at each reconciliation, for ever."""
    damaged: list[Start] = []
    as_read = Start.parse.__func__  # type: ignore[attr-defined]

    def parse(cls: type[Start], entry_id: str, fields: dict[str, bytes]) -> Start | None:
        start: Start | None = as_read(cls, entry_id, fields)
        if start is not None and start.key == "k" and not damaged:
            match what:
                case "id":
                    start.id = start.id[:-1] + "?"
                case "a lower epoch":
                    start.epoch -= 1000
                case "a higher epoch":
                    start.epoch += 10**15
                case "key":
                    start.key = "l"
                case _:
                    start.handler = "echp"
            damaged.append(start)
        return start

    node = await fleet.node(handlers, lease_ttl_s=1.0)
    await is_well(fleet, node)
    monkeypatch.setattr(Start, "parse", classmethod(parse))
    ref = await node.dispatch(echo, "k", "v")
    assert await ref.result(timeout_s=30) == "v"
    assert damaged
    refused = len(fleet.all_seen(CommitRefused))
    assert refused <= 2
    await is_well(fleet, node)


async def test_a_stored_start_of_another_id_than_its_record_is_granted_anew(fleet: Fleet) -> None:
    """Its owner has begun it under that id, and is refused; from then on the record decides."""
    node = await fleet.node(handlers, lease_ttl_s=1.0)
    await is_well(fleet, node)
    worker = f"{node.workers[0].id}.1"
    stamp: Any = fleet.client.hget(fleet.names.lane, "stamp")
    with fleet.client.pipeline(transaction=True) as pipe:
        epoch = int(stamp) + 1
        pipe.hset(fleet.names.lane, "stamp", str(epoch))
        pipe.hset(fleet.names.jobs, "k", f"P|j|good|echo|{worker}|{epoch}|1|||||||||")
        pipe.zadd(fleet.names.pending, {"k": 1})
        fields: dict[Any, Any] = {"k": "k", "m": "goof|echo|j|1||||", "p": encode_call(("v",), {})}
        pipe.xadd(fleet.names.stream(worker), fields, id=f"{epoch}-0")
        pipe.execute()
    ref = JobRef[Any]("k", "good", "echo", node._client)
    assert await ref.result(timeout_s=30) == "v"
    assert len(fleet.all_seen(CommitRefused)) <= 2
    await is_well(fleet, node)


async def test_a_lost_start_is_found_however_busy_its_owner_is(fleet: Fleet) -> None:
    """G-05: while one batch followed another, what Redis said we own was never looked at."""
    node = await fleet.node(handlers, lease_ttl_s=1.0)
    [worker] = fleet.wiring(node).membership.workers.values()
    await is_well(fleet, node)
    stamp: Any = fleet.client.hget(fleet.names.lane, "stamp")

    async def load(caller: int) -> None:
        for n in count():
            await node.dispatch(echo, f"{caller}-{n}")

    async with anyio.create_task_group() as callers:
        for caller in range(50):
            callers.start_soon(load, caller)
        await fleet.until(lambda: int(fleet.client.hget(fleet.names.lane, "done") or 0) > 500)
        with fleet.client.pipeline(transaction=True) as pipe:
            record = f"P|j|lost-1|echo|{worker.id}.1|{int(stamp)}|1|||||||||"
            pipe.hset(fleet.names.jobs, "lost", record)
            pipe.zadd(fleet.names.pending, {"lost": 1})
            pipe.execute()
        await fleet.until(lambda: fleet.record("lost") is None)
        callers.cancel_scope.cancel()


async def test_what_cannot_even_be_parked_is_not_tried_in_a_circle(
    fleet: Fleet, diary: Diary
) -> None:
    """D34: its own reconciliation comes again by itself; nothing spins on it until then."""
    mine = Handlers()

    @mine.service("serve")
    async def serve(job: Job) -> None:
        diary.note(job.key)
        await anyio.sleep_forever()

    mine.job("echo")(echo.fn)
    node = await fleet.node(mine)
    ref = await node.dispatch(serve, "k")
    await ref.started(timeout_s=30)
    await fleet.until(lambda: (r := fleet.record("k")) and r.state == "running")
    fleet.client.hset(fleet.names.jobs, "k", "junk")
    fleet.client.set(fleet.names.parked, "foreign")
    [worker] = fleet.wiring(node).membership.workers.values()
    worker._reconcile(0)
    await fleet.seen(StoreTroubled, during="quarantine")
    for _ in range(100):  # round trips, of which a circle would take two each time
        await worker.context.pipeline.execute("PING")
    assert len(fleet.all_seen(StoreTroubled, during="quarantine")) < 3
    fleet.client.delete(fleet.names.parked)
    worker._reconcile(0)
    await fleet.seen(RecordQuarantined)
    await fleet.until(lambda: "k" not in worker.runs)


async def test_what_cannot_be_swept_is_not_swept_in_a_circle(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D34: a whole sweep of what the server refuses to move.  It is looked at now and then."""
    names = fleet.names
    fleet.client.set(names.parked, "foreign")
    fleet.client.hset(names.jobs, "k", "junk")
    fleet.client.zadd(names.due, {"k:k": 1})
    await fleet.node(sweep_batch=1)
    failed_s = list[float]()

    def note(during: str, *_: object) -> None:
        failed_s.extend([anyio.current_time()] if during == "quarantine" else [])

    monkeypatch.setattr(Outages, "trouble", lambda _, *told: note(*told))
    await fleet.until(lambda: len(failed_s) == 4)
    assert failed_s[3] - failed_s[0] > 2 * RECOVERY_RETRY_S
    monkeypatch.undo()
    fleet.client.delete(names.parked)
    await fleet.seen(RecordQuarantined)


async def test_what_cannot_be_swept_hides_nothing_behind_it(fleet: Fleet) -> None:
    """G-05: a whole sweep of what the server refuses to move was all that was ever looked at."""
    names = fleet.names
    fleet.client.set(names.unassigned("other"), "foreign")
    for n in range(3):
        record = f"W|j|stuck-{n}|other||1{n}|1|dp||||||||"
        fleet.client.hset(names.jobs, f"stuck-{n}", record)
        fleet.client.hset(names.payloads, f"stuck-{n}", "[]")
        fleet.client.zadd(names.due, {f"k:stuck-{n}": n})
    node = await fleet.node(handlers, sweep_batch=1)
    ref = await node.options(delay_s=0.05).dispatch(echo, "k", 1)
    assert await ref.result(timeout_s=30) == 1
    assert not fleet.all_seen(ActorCrashed)
    fleet.is_audited = False  # nobody can mend a key of another type


async def test_a_key_that_cannot_be_moved_is_not_reaped_in_a_circle(
    fleet: Fleet, diary: Diary
) -> None:
    """D34: where it would wait is of another type.  It is tried now and then, and moves then."""
    mine = Handlers()

    @mine.service("serve")
    async def serve(job: Job) -> None:
        diary.note(job.epoch)
        await anyio.sleep_forever()

    node, other = await fleet.node(mine), await fleet.node()
    ref = await node.dispatch(serve, "k")
    await ref.started(timeout_s=30)
    await fleet.until(lambda: (r := fleet.record("k")) and r.state == "running")
    name, names = f"{node.workers[0].id}.1", fleet.names
    fleet.client.set(names.unassigned("serve"), "foreign")
    fleet.client.zrem(names.keepalive, name)
    reaper = fleet.wiring(other)._reaper
    reaper.tell(Suspects(0, (name,)))
    await fleet.until(lambda: b"|" in (fleet.client.hget(names.cleanup, name) or b""))
    before = fleet.client.info("commandstats")["cmdstat_evalsha"]["calls"]
    for _ in range(100):  # round trips, of which a circle would take two each time
        await reaper.context.pipeline.execute("PING")
    assert fleet.client.info("commandstats")["cmdstat_evalsha"]["calls"] - before < 30
    fleet.client.delete(names.unassigned("serve"))
    await diary.counts(2)
    assert diary.entries[1] > diary.entries[0]


async def test_a_start_from_before_a_loss_is_not_given_another_jobs_payload(
    fleet: Fleet, diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large payloads stand under their key: when data were lost, what is there may be older."""
    hold_ahead(monkeypatch)
    mine = Handlers()
    release = fleet.gate()

    @mine.job("hold")
    async def hold(job: Job) -> None:
        await release.wait()

    @mine.job("size")
    async def size(job: Job, payload: bytes) -> None:
        diary.note(payload[:1])

    node = await fleet.node(mine, capacity=1)
    [worker] = fleet.wiring(node).membership.workers.values()
    held = await node.dispatch(hold, "h")
    await held.started(timeout_s=30)
    await node.dispatch(size, "k", b"x" * 2000)
    await fleet.until(lambda: "k" in worker.runs)
    stored: Any = fleet.client.hget(fleet.names.payloads, "k")
    assert stored.count(b"x") == 2000
    with fleet.client.pipeline(transaction=True) as pipe:
        pipe.hdel(fleet.names.jobs, "k")
        pipe.zrem(fleet.names.pending, "k")
        pipe.xdel(fleet.names.stream(f"{worker.id}.1"), f"{worker.runs['k'].start.epoch}-0")
        pipe.hset(fleet.names.payloads, "k", stored.replace(b"x", b"y"))
        pipe.execute()
    release.set()
    await fleet.until(lambda: "k" not in worker.runs)
    if not fleet.all_seen(ReconciliationMended):  # who was away for a moment compares first
        assert (await fleet.seen(CommitRefused)).key == "k"
    assert diary.entries == []
    fleet.client.hdel(fleet.names.payloads, "k")
    await (await node.dispatch(size, "k", b"z" * 2000)).result(timeout_s=30)
    assert diary.entries == [b"z"]


async def test_what_was_granted_to_a_lost_name_does_not_start_under_the_next(
    fleet: Fleet, diary: Diary
) -> None:
    """G-02: it waits for the former handler of its key, which ends only after the lease is lost."""
    mine = Handlers()
    release = fleet.gate()

    @mine.service("deaf")
    async def deaf(job: Job) -> None:
        diary.note(job.worker, job.epoch)
        with anyio.CancelScope(shield=True):
            await release.wait()
        await anyio.sleep_forever()

    node = await fleet.node(mine)
    [worker] = fleet.wiring(node).membership.workers.values()
    await node.dispatch(deaf, "k")
    await diary.counts(1)
    run = worker.runs["k"]
    worker._accept(0, attrs.evolve(run.start, epoch=run.start.epoch + 1))
    assert run.then
    await fleet.until(lambda: (r := fleet.record("k")) and r.state == "running")
    fleet.client.zrem(fleet.names.keepalive, f"{worker.id}.1")
    await fleet.until(lambda: worker.target(0).number == 2)
    release.set()
    await diary.counts(2)
    [(first, epoch), (second, later)] = diary.entries
    assert (first, second) == (f"{worker.id}.1", f"{worker.id}.2")
    assert later > epoch + 1
