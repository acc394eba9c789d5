"""A pool at work, and nearly all that it keeps in Redis is damaged under its hands.

What is healthy is done all the same; what is damaged is done, parked or retried, but nothing waits
for ever, no loop ends and no node does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

import anyio
import pytest
import redis

from pool import Handlers, Job, Node, Settings
from pool.core.record import Record
from pool.events import ActorCrashed, Event, RecordQuarantined
from pool.names import Names

if TYPE_CHECKING:
    import random

JOBS = 160  # in each state that they can be in; every fourth stays healthy
PATIENCE_S = 30.0
LOOK_AGAIN_S = 0.05
SETTINGS = Settings(lease_ttl_s=1.0, op_timeout_s=1.0, grace_s=1.0)
CAPACITY = 60


class Mutator(Protocol):
    dice: random.Random

    def damaged(self, raw: bytes) -> bytes: ...


@asynccontextmanager
async def worker(url: str, pool: str, gate: anyio.Event, tell: Any) -> AsyncIterator[Node]:
    handlers = Handlers()

    @handlers.job("work", attempts_max=2, backoff_s=0.01, backoff_max_s=0.02)
    async def work(job: Job, value: str) -> str:
        await gate.wait()
        return value

    node = Node(
        pool, url, handlers=handlers, settings=SETTINGS, capacity=CAPACITY, observers=(tell,)
    )
    async with node:
        yield node


def is_healthy(key: str) -> bool:
    return int(key.rpartition("-")[2]) % 4 == 0


def damage(client: Any, n: Names, mutator: Mutator) -> int:
    """Damage what belongs to damaged keys; returns how much that was.  One step, as for a node."""
    done = 0
    records = map(Record.parse, client.hvals(n.jobs))
    ids = {record.id for record in records if record is not None}

    def is_meant(key: bytes) -> bool:
        return not is_healthy(key.decode())

    with client.pipeline(transaction=True) as pipe:
        for name in (n.jobs, n.payloads):
            for key, text in client.hgetall(name).items():
                damaged = mutator.damaged(text)
                record = Record.parse(damaged)
                # Another job's id would make two jobs of one: their outcome is kept under it.
                named = "" if record is None else record.id
                is_other = named in ids and b"|%s|" % named.encode() not in text
                if is_meant(key) and not is_other and mutator.dice.random() < 0.7:
                    pipe.hset(name, key, damaged)
                    done += 1
        for name, strip in ((n.pending, b""), (n.due, b"k:")):
            for member, _ in client.zrange(name, 0, -1, withscores=True):
                if is_meant(member.removeprefix(strip)) and mutator.dice.random() < 0.3:
                    scores = (float("inf"), float("-inf"), -1, 0, 1e18, 1e300)
                    pipe.zadd(name, {member: scores[int(mutator.dice.random() * 6)]})
                    done += 1
        for stream in client.scan_iter(match=f"{n.stream('')}*"):
            for entry, fields in client.xrange(stream):
                if not is_meant(fields[b"k"]) or mutator.dice.random() < 0.4:
                    continue
                done += 1
                pipe.xdel(stream, entry)
        for inbox in client.scan_iter(match=f"{n.inbox('')}*"):
            if is_meant(inbox):
                done += 1
                if mutator.dice.random() < 0.3:
                    pipe.set(inbox, "of another type")
                else:
                    pipe.lset(inbox, 0, mutator.damaged(client.lindex(inbox, 0) or b""))
        pipe.execute()
    return done


def junk(client: Any, n: Names, mutator: Mutator) -> None:
    """Write what nobody ever wrote: under keys that are no text, and where only names are known."""
    texts: dict[bytes, bytes] = client.hgetall(n.jobs)
    template = next(text for key, text in texts.items() if is_healthy(key.decode()))
    record = Record.parse(template)
    streams = [name.decode() for name in client.scan_iter(match=f"{n.stream('')}*")]
    signals = [name.decode() for name in client.scan_iter(match=f"{n.signal('')}*")]
    assert record is not None
    for i in range(40):
        key = b"\xff\xfe-%d" % i
        client.hset(n.jobs, key, template if i % 2 else mutator.damaged(template))
        match i % 4:
            case 0:
                client.zadd(n.pending, {key: i})
            case 1:
                client.zadd(n.due, {b"k:" + key: i})
            case 2:
                client.zadd(n.unassigned(record.handler), {key: i})
            case _:
                workers = [s.removeprefix(n.stream("")) for s in streams]
                client.sadd(n.owned(workers[i % len(workers)]), key)
    fields: dict[Any, Any] = {
        b"t": b"message",
        b"k": b"work-0",
        b"i": b"17",
        b"b": b"0",
        b"p": b"x",
    }
    intent = {b"t": b"intent", b"k": b"work-1", b"e": b"17", b"d": b"s"}
    for i in range(200):
        sent = dict(fields if i % 2 else intent)
        name = list(sent)[int(mutator.dice.random() * len(sent))]
        sent[name] = mutator.damaged(sent[name])
        if i % 10 == 0:
            sent[b"\xff\xfe"] = b"a field whose name is no text"
        client.xadd(signals[i % len(signals)], sent)
    for i in range(100):
        entry = {b"k": b"nobody-%d" % i, b"m": b"id|work|j|1||0||", b"p": b"x"}
        name = list(entry)[i % 3]
        entry[name] = mutator.damaged(entry[name])
        if i % 10 == 0:
            entry[b"\xff\xfe"] = b"a field whose name is no text"
        client.xadd(streams[i % len(streams)], entry)
    client.hset(n.cleanup, "sweeper", mutator.damaged(b"n1.1|1795231945399|1795231944399"))
    for i in range(20):
        client.hset(n.cleanup, b"w-%d.1" % i, mutator.damaged(b"n1.1|1795231945399674"))
        client.hset(n.open, b"w-%d" % i, mutator.damaged(b"1|100"))
        client.hset(n.handlers, b"other-%d\xff" % i, mutator.damaged(b"j|5|1000|60000|0|60000"))
        client.zadd(n.keepalive, {b"x-%d.1" % i: (float("inf"), 1e300, -1.0, 0.0)[i % 4]})
    client.hset(
        n.lane, mapping={"seen": "1e999", "lease": "-1", "hold": "x", "ttl": "x", "behind": "\xff"}
    )


async def none(look: Callable[[], object]) -> None:
    """Wait until nothing is found any more."""
    found: object = None
    with anyio.move_on_after(PATIENCE_S):
        while found := await anyio.to_thread.run_sync(look):  # noqa: ASYNC110 - only Redis knows
            await anyio.sleep(LOOK_AGAIN_S)
    assert not found


@pytest.mark.anyio
async def test_nothing_damaged_stops_a_loop_or_stays_for_ever(
    pool_url: str, pool_name: str, redis_url: str, mutator: Mutator
) -> None:
    """G-01, G-05 for what was damaged behind our back."""
    n, gate = Names(pool_name, 0), anyio.Event()
    events: list[Event] = []
    with redis.Redis.from_url(redis_url) as connected:
        client: Any = connected
        async with (
            worker(pool_url, pool_name, gate, events.append) as node,
            worker(pool_url, pool_name, gate, events.append),
        ):
            refs = {}
            for i in range(JOBS * 4):
                key = f"work-{i}"
                later = node.options(delay_s=0.5) if i % 3 == 0 and i > JOBS * 2 else node
                refs[key] = await later.dispatch("work", key, key)
                if i % 5 == 0:
                    await node.notify(key, i)
            await none(lambda: client.hlen(n.payloads) < CAPACITY)
            damaged = await anyio.to_thread.run_sync(damage, client, n, mutator)
            await anyio.to_thread.run_sync(junk, client, n, mutator)
            assert damaged > JOBS
            gate.set()
            for key, ref in refs.items():
                if is_healthy(key):
                    assert await ref.result(timeout_s=PATIENCE_S) == key

            def left() -> dict[bytes, bytes]:
                texts: dict[bytes, bytes] = client.hgetall(n.jobs)
                return {k: text for k, text in texts.items() if not waits_for_a_handler(text)}

            await none(left)
            crashed = [event for event in events if isinstance(event, ActorCrashed)]
            assert not crashed
            assert [event for event in events if isinstance(event, RecordQuarantined)]
            letters: Any = client.hgetall(n.letters)
            assert sum(b"|malformed\n" in letter for letter in letters.values()) > 10


def waits_for_a_handler(text: bytes) -> bool:
    """Say whether a record names a handler that nobody has: that is not stuck but visible."""
    record = Record.parse(text)
    return record is not None and record.state == "unassigned" and record.handler != "work"
