"""Every script on a lane of which much is damaged: it may refuse an item, but never raises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import redis

from pool.core.ailing import Ails
from pool.core.options import Options
from pool.core.record import Record
from pool.names import Names
from pool.redis.commands.admission import Admission
from pool.redis.commands.calls import IS_NODE, Target
from pool.redis.commands.edges import AdvanceGuard, Edge
from pool.redis.commands.lane import Lane
from pool.redis.commands.member import renewal
from pool.redis.commands.recovery import fenced, overdue, reaped
from pool.redis.commands.talk import looked
from pool.redis.commands.upkeep import owned
from pool.redis.scripts import ScriptCall
from tests.edges import WireEdge

if TYPE_CHECKING:
    import random

DAMAGED = 100_000
KEYS = 1_000  # of which all are damaged in each round, somewhere
BATCH = 250
NODE, W1, W2 = Target("n1", 1), Target("w1", 1), Target("w2", 1)
LONG_MS = 60_000


class Mutator(Protocol):
    dice: random.Random

    def damaged(self, raw: bytes) -> bytes: ...


class Bench:
    """One lane and its calls, sent in pipelines."""

    def __init__(self, client: Any, pool: str) -> None:
        self.client, self.names = client, Names(pool, 0)
        self.lane = Lane(self.names, "inc-1.1")

    def run(self, *calls: ScriptCall) -> list[Any]:
        """Run the calls; any that raises fails the test.  POOLGONE is an answer, and typed."""
        with self.client.pipeline(transaction=False) as pipe:
            for script in {call.script for call in calls}:
                self.client.script_load(script.source)
            for call in calls:
                pipe.execute_command(*call.words())
            replies: list[Any] = pipe.execute(raise_on_error=False)
        for call, reply in zip(calls, replies, strict=True):
            is_answer = not isinstance(reply, Exception) or str(reply).startswith("POOLGONE")
            assert is_answer, f"{call.script.name}: {reply}"
        return replies

    def fill(self) -> None:
        """Make jobs in every state, messages, a dead letter, and a fenced worker with keys."""
        now_ms = int(self.client.time()[0]) * 1000
        workers = {W1: 10 * KEYS, W2: 10 * KEYS}
        handlers = {"h": Options(), "other": Options()}
        join = self.lane.join(
            NODE, workers, handlers, is_new=True, not_after_ms=now_ms + LONG_MS, pool_ttl_ms=10_000
        )
        self.client.hset(self.names.lane, "incarnation", self.lane.generation)
        self.run(join)
        # Nobody has renewed for long: time stands still, and the stamp alone makes numbers go on.
        self.client.hset(self.names.lane, "seen", now_ms - LONG_MS)
        for at in range(0, KEYS, BATCH):
            self.run(self.dispatch(range(at, at + BATCH), "id"))
        acks = [self.edge("a", key, text) for key, text in self.texts() if b"%" in key]
        self.run(self.advance("w1.1", acks), self.advance("w2.1", acks))
        some = [key for key, text in self.texts() if text.startswith(b"R")][: KEYS // 10]
        for owner in ("w1.1", "w2.1"):
            notes = (
                self.lane.notify(key.decode(), owner, "r1", b"note", messages_max=9) for key in some
            )
            self.run(*notes)

    def dispatch(self, numbers: Sequence[int], job_id: str) -> ScriptCall:
        items = [
            Admission(
                key=f"key-{n}{'%' * (n % 3 == 0)}",
                id=f"{job_id}-{n}",
                handler="h" if n % 2 else "other",
                kind="job",
                payload=b"x" * (2000 if n % 50 == 0 else 20),
                delay_s=60.0 if n % 5 == 0 else 0.0,
                unassigned=True,
                ranked=() if n % 7 == 0 else (1 + n % 2,),
            )
            for n in numbers
        ]
        return self.lane.dispatch(items, (W1, W2), pending_s=10.0, queued_jobs_max=10**6)

    def texts(self) -> list[tuple[bytes, bytes]]:
        return list(self.client.hgetall(self.names.jobs).items())

    def edge(self, letter: str, key: bytes, text: bytes) -> WireEdge:
        record = Record.parse(text)
        edge = WireEdge(key.decode(), 1, "none", LONG_MS, handler="h", letter=letter)
        if record is not None:
            edge.epoch, edge.id, edge.handler = record.epoch, record.id, record.handler
        match letter:
            case "l" | "s":
                edge.x = 1000
            case "w":
                edge.x, edge.y, edge.z = 5, 2, "boom"
            case "g":
                edge.x = "1"
        return edge

    def advance(self, source: str, edges: Sequence[Edge]) -> ScriptCall:
        guard: AdvanceGuard = "own" if source else "free"
        return self.lane.advance(guard, source, edges, pending_s=10.0, targets=(W2,))

    # --- damage ---

    def damage(self, mutator: Mutator) -> int:
        """Damage each key somewhere; returns how much that was."""
        n, dice, done = self.names, mutator.dice, 0
        with self.client.pipeline(transaction=False) as pipe:
            for name in (n.jobs, n.payloads, n.open, n.handlers, n.cleanup):
                for field, text in self.client.hgetall(name).items():
                    if name == n.jobs or dice.random() < 0.5:
                        pipe.hset(name, field, mutator.damaged(text))
                        done += 1
            for field in (
                "stamp",
                "unassigned",
                "waiting",
                "seen",
                "lease",
                "hold",
                "ttl",
                "behind",
            ):
                if dice.random() < 0.3:
                    pipe.hset(n.lane, field, mutator.damaged(b"1795231945399674"))
            scores = (float("inf"), float("-inf"), -1.0, 0.0, 1e300, 1e17)
            for name in (n.pending, n.due, n.keepalive, n.unassigned("h"), n.unassigned("other")):
                for member in self.client.zrange(name, 0, -1)[:: 1 + int(dice.random() * 9)]:
                    pipe.zadd(name, {member: scores[int(dice.random() * 6)]})
                    if dice.random() < 0.1 and name != n.keepalive:
                        pipe.zadd(name, {mutator.damaged(member): 1})
                    done += 1
            for worker in (W1, W2):
                self._damage_stream(pipe, n.stream(worker.name), mutator)
                pipe.sadd(
                    n.owned(worker.name), mutator.damaged(b"key-3%"), mutator.damaged(b"key-6%")
                )
            for inbox in self.client.scan_iter(match=f"{n.inbox('')}*", count=1000):
                if dice.random() < 0.2:
                    pipe.set(inbox, "of another type")
                else:
                    pipe.lpush(inbox, mutator.damaged(b"1795231945399674|r1|note"))
                done += 1
            pipe.execute()
        return done

    def _damage_stream(self, pipe: Any, stream: str, mutator: Mutator) -> None:
        entries = self.client.xrange(stream, count=KEYS)
        for entry_id, _ in entries[:: 1 + int(mutator.dice.random() * 5)]:
            pipe.xdel(stream, entry_id)
        last = int(self.client.xinfo_stream(stream)["last-generated-id"].split(b"-")[0])
        for i in range(20):
            fields = {b"k": b"key-%d" % i, b"m": b"id|h|j|1||0||", b"p": b"payload"}
            name = list(fields)[i % 3]
            fields[name] = mutator.damaged(fields[name])
            if i % 5 == 0:
                fields = {mutator.damaged(b"k"): b"x"}
            pipe.xadd(stream, fields, id=f"{last + 1 + i}-0")


def test_no_script_raises_whatever_stands_in_the_lane(
    redis_url: str, pool_name: str, mutator: Mutator
) -> None:
    """100,000 records and other things; no batch fails for one of its items."""
    damaged = 0
    with redis.Redis.from_url(redis_url, protocol=2) as client:
        bench = Bench(client, pool_name)
        bench.fill()
        with client.pipeline(transaction=False) as pipe:
            keys = sorted(client.scan_iter(match=f"{bench.names.prefix}*", count=10_000))
            for key in keys:
                pipe.dump(key)
            saved = dict(zip(keys, pipe.execute(), strict=True))
        while damaged < DAMAGED:
            number = damaged
            with client.pipeline(transaction=False) as pipe:
                pipe.delete(*client.scan_iter(match=f"{bench.names.prefix}*", count=10_000))
                for key, value in saved.items():
                    pipe.restore(key, 0, value)
                pipe.execute()
            damaged += bench.damage(mutator)
            _use(bench, mutator, number)


def _renewal(lane: Lane, number: int) -> ScriptCall:
    takes = {"n1.1": IS_NODE, "w1.1": KEYS, "w2.1": KEYS}
    return lane.renew(takes, {"h": Options()}, seq=number + 1, term=0, ails=Ails(down=number % 2))


def _use(bench: Bench, mutator: Mutator, number: int) -> None:
    """Call every script, in an order that leaves something to do for each."""
    lane, texts = bench.lane, bench.texts()
    keys = [key.decode() for key, _ in texts]
    [reply] = bench.run(_renewal(lane, number))
    renewal(reply)
    [reply] = bench.run(lane.look([(key, "") for key in keys], node="n1.1"))
    looked(reply)
    bench.run(*(bench.dispatch(range(at, at + BATCH), "again") for at in range(0, KEYS, BATCH)))
    some = [int(mutator.dice.random() * len(keys)) for _ in range(20)]
    bench.run(*(lane.intend(keys[i], "", "w1.1", "sx" if i % 2 else "t", again_s=1) for i in some))
    for letter in "alsdcxwg":
        batch = [bench.edge(letter, *texts[int(mutator.dice.random() * KEYS)]) for _ in range(100)]
        bench.run(*(bench.advance(source, batch) for source in ("w1.1", "w2.1", "w9.1", "")))
    for worker in (W1, W2):
        bench.run(lane.pull(worker, ["h", "other"], keys_max=KEYS // 10, pending_s=1.0))
        items = [(key.encode(), "") for key in keys[:50]]
        [reply] = bench.run(lane.reconcile(worker.name, items))
        page = owned(reply)
        items = [(key, entry) for entry, key in page.entries] + [(key, "") for key in page.names]
        [reply] = bench.run(lane.reconcile(worker.name, items, at=page.at, after=page.after))
        owned(reply)
    for _ in range(3):
        [reply] = bench.run(lane.sweep("n1.1", lock_s=1.0, keys_max=100))
        for found in overdue(reply).found:
            bench.run(lane.quarantine(found.key, found.text, ""))
    bench.client.zadd(bench.names.keepalive, {"w1.1": number})
    bench.client.hdel(bench.names.lane, "seen", "hold")
    [reply] = bench.run(lane.fence("n1.1", reap_s=1.0, claims_max=9, suspects=("w9.1",)))
    for claim in fenced(reply).claims:
        [reply] = bench.run(lane.reap(claim, reap_s=1.0))
        for holding in reaped(reply).held:
            bench.run(lane.quarantine(holding.key, holding.text, claim.identity))
