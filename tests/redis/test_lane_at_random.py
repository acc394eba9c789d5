"""Everything that nodes can do to a lane, at random, against the model's table and the auditor."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
import redis

from pool.core.lifecycle import TABLE
from pool.core.record import Letter
from pool.core.settlement import CancelJob, Death, Grant, Judgement, ParkJob, Wait, recover
from pool.names import key_of, line, split_pair
from pool.redis.commands.calls import Target
from pool.redis.commands.edges import Edge
from pool.redis.commands.letters import Made, replayed
from pool.redis.commands.recovery import Claim, overdue, reaped

if TYPE_CHECKING:
    from pool.redis.scripts import ScriptCall
    from tests.redis.conftest import Bench

# Seeds, not hypothesis: the server's own dice and clock take part, so nothing could be shrunk.
JUDGEMENT = Judgement(crash_window_s=600.0, crashes_max=3, hold_s=10.0)
REFUSALS = {"FENCED", "OWNED", "STOPPED", "TIMEDOUT", "REPEAT", "SETTLED", "STANDS"}
LIVES = 25
STEPS = 100


class Life:
    """Nodes that do anything, in any order, at any time; after each step the lane is sound."""

    KEYS = ("a", "k:a", "b|c", "ключ", "e f", "g")
    WORKERS = ("w1", "w2", "w3")

    def __init__(self, bench: Bench, dice: random.Random) -> None:
        self.bench = bench
        self.dice = dice
        self.made = 0
        self.numbers = dict.fromkeys(self.WORKERS, 1)
        self.stamp = 0
        self.claims: list[Claim] = []
        self.ended: dict[str, str] = {}
        self.remade: dict[str, str] = {}  # letter -> id of the job that it was made
        bench.restore({})  # of the bench's own workers nothing is wanted
        bench.join(dict.fromkeys(self.targets(), 2))

    def targets(self) -> list[Target]:
        return [Target(worker, number) for worker, number in self.numbers.items()]

    def ranked(self) -> list[int]:
        return self.dice.sample([1, 2, 3], self.dice.randint(0, 3))

    def step(self) -> str:
        acts = [self.dispatch] * 3 + [self.named] + [self.own] * 6 + [self.free] * 2
        acts += [self.pull, self.fence, self.reap, self.reap, self.sweep, self.intend]
        acts += [self.notify, self.look, self.leave, self.spoil, self.capacity, self.unqueue]
        acts += [self.letter, self.letter, self.expire]
        act = self.dice.choice(acts)
        did = f"{act.__name__}: {act()}"
        stamp = self.bench.stamp()
        assert stamp >= self.stamp, did
        self.stamp = stamp
        return did

    def attempt(self, call: ScriptCall) -> Any:
        """Run what a worker or a reaper asks; None: it is gone, and was refused."""
        try:
            return self.bench.run(call)
        except redis.ResponseError as error:
            if not str(error).startswith("POOLGONE"):
                raise
            return None

    def dispatch(self) -> Any:
        items = [
            self.bench.admission(
                self.dice.choice(self.KEYS),
                handler=self.dice.choice(["h", "other"]),
                ranked=self.ranked(),
                payload=b"x" * self.dice.choice([0, 10, 2000]),
                delay_s=self.dice.choice([0.0, 0.0, 60.0]),
                policy=self.dice.choice(["", "", "a", "b", "q2", "q5", "r", "c"]),
                unassigned=self.dice.random() < 0.7,
            )
            for _ in range(self.dice.randint(1, 3))
        ]
        return self.bench.dispatch(*items, targets=self.targets())

    def named(self) -> Any:
        """Dispatch under an id that may be known: it is one job, or told to be another one."""
        key, number = self.dice.choice(self.KEYS), self.dice.randrange(3)
        item = self.bench.admission(
            key,
            id=f"n{self.KEYS.index(key)}.{number}",
            more=f"d{self.dice.choice('aab')},w90000",
            ranked=self.ranked(),
            unassigned=True,
        )
        return self.bench.dispatch(item, targets=self.targets())

    def letter(self) -> Any:
        """Replay a letter, edit or discard it; one that was replayed is one job for ever."""
        bench, dice = self.bench, self.dice
        names = sorted(bench.do("HKEYS", bench.names.letters))
        gone = sorted(self.remade)
        if not names and not gone:
            return "none"
        name = dice.choice([*(each.decode() for each in names), *gone])
        key, job_id = split_pair(name)
        if dice.random() < 0.3:
            if dice.random() < 0.5:
                return bench.run(bench.lane.letter("edit", key, job_id, b"edited"))
            return bench.run(bench.lane.letter("discard", key, job_id))
        letter = Letter.parse(key, job_id, bench.do("HGET", bench.names.letters, name) or b"")
        handler = letter.handler if letter is not None else "h"
        self.made += 1
        room: dict[str, Any] = {"pending_s": 9.0, "queued_jobs_max": 100}
        call = bench.lane.replay(key, job_id, f"r{self.made}", handler, self.targets(), **room)
        told = replayed(bench.run(call))
        if isinstance(told, Made):
            assert self.remade.setdefault(name, told.job_id) == told.job_id
            assert not bench.do("HEXISTS", bench.names.letters, name)
        return told

    def expire(self) -> Any:
        return self.bench.run(self.bench.lane.expire([], items_max=9))

    def edges(self) -> list[Edge]:
        """Return edges for some keys, most of them at the present epoch."""
        made: list[Edge] = []
        names = [*self.KEYS, *self.queued()]
        for key in self.dice.sample(names, self.dice.randint(1, 4)):
            letter = self.dice.choice("aalsnvvttdcxwwggg")
            edge = self.bench.edge(letter, key)
            if letter == "g":
                edge.x = ",".join(map(str, self.ranked()))
                edge.y = self.dice.choice(["", "r", "1"])
                edge.z = self.dice.choice([b"", b"", b"=checkpoint"])
            if letter == "t":
                edge.x, edge.y = self.dice.choice(["one", "two"]), self.dice.choice([b"a", b"b"])
            if letter in "xw" and self.dice.random() < 0.5:
                if letter == "x":
                    edge.y = "gave up\n{}"
                else:
                    edge.z = "boom\n{}"
            if self.dice.random() < 0.1:
                edge.epoch -= 1
            made.append(edge)
        return made

    def queued(self) -> list[str]:
        names = self.bench.do("HKEYS", self.bench.names.jobs)
        return sorted(name.decode() for name in names if name[:1] == b"\t")

    def checked(self, guard: Any, source: str, edges: list[Edge], claim: str = "") -> Any:
        """Advance, and hold every answer to the model's table."""
        bench = self.bench
        befores = {edge.key: bench.text(edge.key) for edge in edges}
        records = {key: bench.record(key) for key, text in befores.items() if text}
        call = bench.advance_call(guard, source, *edges, targets=self.targets(), claim=claim)
        reply = self.attempt(call)
        if reply is None:
            return "gone"
        answers = [answer.decode() for answer in reply[1:]]
        for edge, answer in zip(edges, answers, strict=True):
            before = records.get(edge.key)
            name = edge.letter
            word = answer.split()[0]
            if word in ("OK", "GRANTED", "UNASSIGNED"):
                assert before is not None
                assert before.owner == source
                assert before.epoch == edge.epoch
                may = TABLE[before.state, name]
                text = bench.text(edge.key)
                is_over = not text or bench.record(edge.key).id != before.id
                after = bench.outcome(before.id).word if is_over else bench.record(edge.key).state
                assert after in may, (before.state, name, after)
                if is_over:
                    assert before.id not in self.ended, "settled twice"
                    self.ended[before.id] = after
            elif word == "REFUSED":
                assert before is not None
                assert (before.state, name) not in TABLE
            else:
                assert word in REFUSALS, word
                was = befores[edge.key]
                # Else its turn may have come in the same call; so may that of the head of a queue.
                if edge.key in self.KEYS and not (was or b"").startswith(b"U|"):
                    assert bench.text(edge.key) == was
        return answers

    def own(self) -> Any:
        source = self.dice.choice(self.targets()).name
        return self.checked("own", source, self.edges())

    def free(self) -> Any:
        source = self.dice.choice(["", "", *(who.name for who in self.targets())])
        return self.checked("free", source, self.edges())

    def pull(self) -> Any:
        worker = self.dice.choice(self.targets())
        handlers = self.dice.sample(["h", "other"], self.dice.randint(1, 2))
        call = self.bench.lane.pull(worker, handlers, keys_max=2, pending_s=10.0)
        reply = self.attempt(call)
        if reply is not None:
            assert reply[0] == self.bench.counter("unassigned")
        return reply

    def fence(self) -> Any:
        who = self.dice.choice(self.targets())
        self.bench.end_lease(*(claim.identity for claim in self.claims[:1]))
        if not self.bench.do("HEXISTS", self.bench.names.cleanup, who.name):
            self.bench.end_lease(who.name)
        found = self.bench.fence(holder=self.dice.choice(["n1.1", "n2.1"]))
        for claim in found:
            self.claims = [old for old in self.claims if old.identity != claim.identity]
            self.claims.append(claim)
            worker, _, number = claim.identity.rpartition(".")
            if self.numbers.get(worker) == int(number):
                self.numbers[worker] += 1
                self.bench.join({Target(worker, self.numbers[worker]): 2}, is_new=False)
        return found

    def reap(self) -> Any:
        if not self.claims:
            return None
        claim = self.dice.choice(self.claims)
        call = self.bench.lane.reap(claim, reap_s=1.0)
        told = reaped(self.bench.run(call))
        if told.is_forgotten:
            self.claims.remove(claim)
            return "forgotten"
        edges = []
        for holding in told.held[: self.dice.randint(1, 3)]:
            assert holding.record is not None
            assert holding.record.owner == claim.identity
            decision = recover(
                holding.record,
                holding.options,
                self.dice,
                judgement=JUDGEMENT,
                death=claim.death,
            )
            edges.append(self.decided(holding.key, decision))
        return self.checked("reap", claim.identity, edges, claim.claim)

    def decided(self, key: str, decision: Any) -> Edge:
        edge = self.bench.edge
        match decision:
            case ParkJob(cause=cause, error=error):
                return edge("x", key, x=cause, y=error)
            case Wait(delay_s=delay_s, attempt=attempt, error=error, mark=mark):
                text = f"{attempt} {mark}".strip()
                return edge("w", key, x=round(delay_s * 1000), y=text, z=error)
            case CancelJob(cause=cause):
                return edge("c", key, x=cause)
            case Grant(mark=mark):
                return edge("g", key, x=",".join(map(str, self.ranked())), y=mark)
        raise AssertionError(decision)

    def sweep(self) -> Any:
        bench = self.bench
        for key in self.dice.sample([*self.KEYS, *self.queued()], 2):
            bench.do("ZADD", bench.names.due, "XX", 1, f"k:{key}")
            bench.do("ZADD", bench.names.pending, "XX", 1, key)
        swept = overdue(bench.run(bench.lane.sweep("n1.1", lock_s=1.0, keys_max=10)))
        assert swept.is_ours
        for late in swept.found:
            assert late.record is not None
            if late.owner == "live":
                intent = "t" if late.index == "due" else ""
                call = bench.lane.intend(late.key, "", late.record.owner, intent, again_s=5.0)
                bench.run(call)
            elif late.owner == "none" or late.record.state == "pending":
                decision = recover(
                    late.record,
                    late.options,
                    self.dice,
                    judgement=JUDGEMENT,
                    death=Death(identity=late.record.owner, alive_ms=0, culprit=-1),
                )
                if bench.text(late.key) == late.text:
                    self.checked("free", late.record.owner, [self.decided(late.key, decision)])
        return [(late.index, late.key, late.owner) for late in swept.found]

    def intend(self) -> Any:
        key, owner = self.dice.choice(self.KEYS), self.dice.choice(self.targets()).name
        call = self.bench.lane.intend(
            key, "", owner, self.dice.choice(["sx", "t", ""]), again_s=1.0
        )
        return self.bench.run(call)

    def notify(self) -> Any:
        key, text = self.dice.choice(self.KEYS), b""
        text = self.bench.text(key) or b""
        owner = self.bench.record(key).owner if text else ""
        return self.bench.run(self.bench.lane.notify(key, owner, "r", b"m", messages_max=3))

    def look(self) -> Any:
        return self.bench.look(self.dice.choice(self.KEYS), node=f"n{self.dice.randint(1, 20)}.1")

    def leave(self) -> Any:
        worker = self.dice.choice(self.targets())
        (answer,) = self.bench.run(self.bench.lane.leave([worker]))
        if answer == b"OK":
            self.numbers[worker.id] += 1
            self.bench.join({Target(worker.id, self.numbers[worker.id]): 2}, is_new=False)
        return answer

    def capacity(self) -> Any:
        worker = self.dice.choice(self.targets())
        return self.bench.run(self.bench.renew_call({worker.name: self.dice.randint(0, 3)}))

    def spoil(self) -> Any:
        """Let a foreign hand spoil a running job's record; whoever finds it has it parked."""
        bench, key = self.bench, self.dice.choice(self.KEYS)
        text = bench.text(key)
        if text is None or (record := bench.record(key)).state not in ("pending", "running"):
            return None
        bench.do("HSET", bench.names.jobs, key, b"garbage")
        self.ended[record.id] = "parked"
        return bench.run(bench.lane.quarantine(key, b"garbage", record.owner))

    def unqueue(self) -> Any:
        """Let a foreign hand damage a line; the walk has it put right."""
        bench, names = self.bench, self.queued()
        if not names:
            return None
        name, jobs = self.dice.choice(names), bench.names.jobs
        key, job_id = key_of(name), bench.record(name).id
        match self.dice.choice(["line", "flag", "due", "nothing"]):
            case "line":
                bench.do("HDEL", bench.names.payloads, line(key))
            case "flag":
                text = bench.text(key) or b""
                fields = text.split(b"|")
                fields[7] = fields[7].replace(b"n", b"")
                bench.do("HSET", jobs, key, b"|".join(fields))
            case "due":
                bench.do("ZREM", bench.names.due, f"k:{name}")
        seen = [(key_of(each), bench.record(each).id) for each in names]
        return bench.run(bench.lane.requeue([(key, ""), (key, job_id), *seen]))


@pytest.mark.parametrize("seed", range(LIVES))
def test_whatever_happens_every_job_is_in_exactly_one_place(bench: Bench, seed: int) -> None:
    """G-02, G-04, G-05: after each step of a random life the table held and the audit is clean."""
    life = Life(bench, random.Random(seed))
    did: list[str] = []
    for _ in range(STEPS):
        did.append(life.step())
        assert bench.audit() == [], did[-5:]
