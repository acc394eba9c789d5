"""The simulated server does what a real one does: the same calls, the same answers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from pool.model.job import Options
from pool.model.names import Names
from pool.store.lane import IS_NODE, Admission, Edge, Guard, Lane, Target
from pool.store.scripts import ScriptCall
from tests.verify.sim.keyspace import CommandError, Keyspace
from tests.verify.sim.scripting import Scripts

POOL = "alike"
STEPS = 400
SEEDS = 6
TTL_S = 60.0  # nothing ends by itself while a test runs
_FIXED_US = 1_700_000_000_000_000


class _Both:
    """One call after another on both, at the same time: the real server's."""

    def __init__(self, client: redis.Redis, seed: int) -> None:
        self.client = client
        self.names = Names(f"{POOL}{seed}", 0)
        self.keyspace = Keyspace(lambda: self.now_us, random.Random(seed))
        self.now_us = _FIXED_US
        self.scripts = Scripts()

    def call(self, call: ScriptCall) -> Any:
        """Run a script on both; return what the real one said."""
        # `redis.call('TIME')` is the one thing that must differ: it is made to say the same.
        fixed = _at(call.script.source, self.now_us)
        real = self._real(fixed, call)
        ours = self._ours(fixed, call)
        assert ours == real, f"{call.script.name} {call.args}"
        return real

    def _real(self, source: str, call: ScriptCall) -> Any:
        try:
            return self.client.eval(source, len(call.keys), *call.keys, *call.args)
        except redis.ResponseError as error:
            return str(error).partition(" script:")[0]

    def _ours(self, source: str, call: ScriptCall) -> Any:
        sha = self.scripts.load(source.encode())
        keys = [key.encode() for key in call.keys]
        args = [arg if isinstance(arg, bytes) else str(arg).encode() for arg in call.args]
        try:
            return self.scripts.run(self.keyspace, sha, keys, args)
        except CommandError as error:
            return str(error)

    def _do(self, *words: Any) -> Any:
        return self.client.execute_command(*words)  # type: ignore[no-untyped-call]

    def compare(self) -> None:
        """Everything that is stored must be the same."""
        for raw in self.client.scan_iter(match=f"{self.names.prefix}*", count=1000):
            kind: Any = self.client.type(raw)
            real: Any
            ours: Any
            if kind == b"stream":
                real = self._do("XRANGE", raw, "-", "+")
                ours = self.keyspace.run(b"XRANGE", raw, b"-", b"+")
            elif kind == b"zset":
                real = self._do("ZRANGE", raw, 0, -1, "WITHSCORES")
                ours = self.keyspace.run(b"ZRANGE", raw, b"0", b"-1", b"WITHSCORES")
                if real and isinstance(real[0], list | tuple):
                    real = [p for m, s in real for p in (m, b"%.17g" % float(s))]
            elif kind == b"hash":
                real = self.client.hgetall(raw)
                ours = dict(_pairs(self.keyspace.run(b"HGETALL", raw)))
            elif kind == b"set":
                real = self.client.smembers(raw)
                ours = set(self.keyspace.run(b"SMEMBERS", raw))
            elif kind == b"list":
                real = self.client.lrange(raw, 0, -1)
                ours = self.keyspace.run(b"LRANGE", raw, b"0", b"-1")
            else:
                real, ours = self.client.get(raw), self.keyspace.run(b"GET", raw)
            if b":journal" not in raw and b":signal" not in raw:  # their ids are the real time
                assert ours == real, raw


def _pairs(flat: list[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(flat[::2], flat[1::2], strict=True)


def _at(source: str, now_us: int) -> str:
    seconds, micros = divmod(now_us, 1_000_000)
    return source.replace("redis.call('TIME')", f"{{'{seconds}', '{micros}'}}")


def _client(url: str) -> redis.Redis:
    client = redis.Redis.from_url(url)
    for name in ("XRANGE", "ZRANGE"):
        client.response_callbacks.pop(name, None)
    return client


@pytest.mark.parametrize("seed", range(SEEDS))
def test_scripts_answer_and_leave_the_same(redis_url: str, seed: int) -> None:
    """Random calls of the lane's scripts on both; every answer and all data are compared."""
    dice = random.Random(seed)
    with _client(redis_url) as client:
        both = _Both(client, seed)
        for raw in client.scan_iter(match=f"{both.names.prefix}*"):
            client.delete(raw)
        lane = Lane(both.names, "inc.1")
        node, workers = Target("n1", 1), [Target("w1", 1), Target("w2", 1)]
        client.hset(lane.names.lane, "incarnation", lane.incarnation)
        both.keyspace.run(
            b"HSET", lane.names.lane.encode(), b"incarnation", lane.incarnation.encode()
        )
        both.call(
            lane.join(
                node,
                dict.fromkeys(workers, 3),
                {"h": Options(), "s": Options(kind="service")},
                is_new=True,
                not_after_ms=both.now_us // 1000 + 1000,
                pool_ttl_ms=round(1000 * TTL_S),
                stale="",
            )
        )
        jobs: dict[str, str] = {}
        for step in range(STEPS):
            both.now_us += dice.choice((0, 1, 1000, 300_000))
            both.call(_random_call(dice, both, lane, node, workers, jobs, step))
        both.compare()


def _random_call(
    dice: random.Random,
    both: _Both,
    lane: Lane,
    node: Target,
    workers: list[Target],
    jobs: dict[str, str],
    step: int,
) -> ScriptCall:
    key, worker = f"k{dice.randrange(8)}", dice.choice(workers)
    text = both.keyspace.run(b"HGET", both.names.jobs.encode(), key.encode())
    record = (text or b"").decode().split("|")
    match dice.choice(("dispatch", "edge", "edge", "edge", "renew", "pull", "other")):
        case "dispatch":
            item = Admission(
                key=key,
                id=f"j{step}",
                handler=dice.choice("hs"),
                kind=None,
                payload=b"p" * dice.choice((1, 2000)),
                delay_s=dice.choice((0.0, 0.0, 0.0, 1.5)),
                unassigned=dice.random() < 0.5,
            )
            item.ranked = () if item.delay_s else dice.choice(((1,), (2,), (1, 2), ()))
            return lane.dispatch([item], workers, pending_s=TTL_S, queued_jobs_max=20)
        case "edge" if len(record) > 5:
            letter = dice.choice("aaalsdcxwg")
            x: Any = {"l": 500, "s": 10**18, "w": 700, "g": dice.choice(("1", "2 1", ""))}.get(
                letter, "because"
            )
            y: Any = {"w": 2, "g": dice.choice(("", "r", "1"))}.get(letter, "")
            z: Any = {"g": dice.choice((b"", b"=state")), "w": "failed"}.get(letter, b"")
            edge = Edge(letter, key, int(record[5]), record[2], 60_000, x, y, z, record[3])
            owner = record[4]
            guard: Guard = "own" if owner else "free"
            return lane.advance(guard, owner, [edge], pending_s=TTL_S, targets=workers)
        case "pull":
            return lane.pull(worker, ["h", "s"], keys_max=4, pending_s=TTL_S)
        case "other":
            owner = record[4] if len(record) > 5 else ""
            return dice.choice(
                (
                    lane.notify(key, owner, f"r{step}", b"note", messages_max=5),
                    lane.intend(key, "", owner, dice.choice(("t", "sstop", "")), again_s=1.0),
                    lane.look([(key, f"j{step - 1}")], node="n1.1"),
                    lane.reconcile(worker.name, [(key.encode(), ""), (b"k1", f"{step}-0")]),
                    lane.inbox(key, 0),
                    lane.sweep("n1.1", lock_s=1.0, keys_max=10),
                )
            )
        case _:
            takes = {worker.name: dice.randrange(9) for worker in workers} | {node.name: IS_NODE}
            is_hung = dice.random() < 0.2
            return lane.renew(takes, seq=step + dice.randrange(9), term=0, is_hung=is_hung)


def test_an_unknown_command_is_refused() -> None:
    """A script that begins to use another command must not pass unnoticed."""
    keyspace = Keyspace(lambda: _FIXED_US, random.Random(1))
    with pytest.raises(CommandError, match="unknown command"):
        keyspace.run(b"GETDEL", b"k")
