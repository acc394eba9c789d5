"""A batch does what its items would do one after another: the same answers, the same data."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, TypeVar

import pytest

from pool.core.options import Options
from pool.names import Names
from pool.redis.commands.admission import Admission
from pool.redis.commands.calls import Target
from pool.redis.commands.edges import AdvanceGuard, Edge
from pool.redis.commands.lane import Lane
from pool.redis.scripts import ScriptCall
from tests.edges import WireEdge
from tests.verify.sim.keyspace import Keyspace, SortedSet
from tests.verify.sim.scripting import Scripts
from tests.verify.sim.streams import Stream

SEEDS = 6
STEPS = 90
MANY = 700  # with a value each more arguments than one command is given
ROOM = 10 * MANY  # a batch counts what its targets have once, so there must be enough
TTL_S = 60.0
NAMES = Names("batches", 0)
LANE = Lane(NAMES, "inc.1")
T = TypeVar("T")
NODE, W1, W2 = Target("n1", 1), Target("w1", 1), Target("w2", 1)


class _Side:
    """A simulated server with the pool's scripts."""

    def __init__(self, scripts: Scripts) -> None:
        self.now_us = 1_700_000_000_000_000
        self.keyspace = Keyspace(lambda: self.now_us, random.Random(1))
        self.scripts = scripts

    def run(self, call: ScriptCall) -> Any:
        sha = self.scripts.load(call.script.source.encode())
        args = [arg if isinstance(arg, bytes) else str(arg).encode() for arg in call.args]
        return self.scripts.run(self.keyspace, sha, [key.encode() for key in call.keys], args)

    def stored(self) -> dict[bytes, Any]:
        """Return everything in a form that can be compared."""
        plain: dict[bytes, Any] = {}
        for key, value in self.keyspace.keys.items():
            match value:
                case SortedSet() if key == NAMES.kept.encode():  # one entry for those of one script
                    plain[key] = {
                        name: due
                        for names, due in value.scores.items()
                        for name in names.split(b"\n")
                    }
                case SortedSet():
                    plain[key] = value.scores
                case Stream():
                    plain[key] = (value.entries, value.last)
                case _:
                    plain[key] = value
        return plain


def _some(dice: random.Random, of: Sequence[T]) -> list[T]:
    """Return a few with repeats, or all without."""
    if not of or dice.random() < 0.3:
        return dice.sample(of, len(of))
    return dice.choices(of, k=dice.choice((1, 8)))


def _admissions(dice: random.Random, step: int, keys: int) -> list[Admission]:
    made = []
    for n, number in enumerate(_some(dice, range(keys))):
        item = Admission(
            key=f"k{number}",
            id=f"j{step}-{n}",
            handler=dice.choice("hs"),
            kind=None,
            payload=b"p" * dice.choice((1, 2000)),
            delay_s=dice.choice((0.0, 0.0, 0.0, 1.5)),
            policy=dice.choice((*[""] * 12, "a", "b", "q1", "q3", "r", "c")),
            unassigned=dice.random() < 0.7,
        )
        item.ranked = () if item.delay_s else dice.choice(((1,), (2,), (1, 2), ()))
        made.append(item)
    return made


def _edges(dice: random.Random, side: _Side, owner: str) -> list[Edge]:
    """Return edges of what one owner has, some keys twice, some too late."""
    jobs: dict[bytes, bytes] = side.keyspace.keys.get(NAMES.jobs.encode(), {})
    mine = []
    for name, text in jobs.items():
        record = text.decode().split("|")
        if record[4] == owner:
            mine.append((name.decode(), record))
    some = dice.choice(("aaalsdcxwg", "a", "d", "g", "w"))
    made: list[Edge] = []
    for key, record in _some(dice, mine):
        letter = dice.choice(some)
        x: Any = {"l": 500, "s": 10**18, "w": 700, "g": dice.choice(("1", "2 1", ""))}.get(
            letter, "because"
        )
        y: Any = {"w": 2, "g": dice.choice(("", "r", "1"))}.get(letter, "")
        z: Any = {"g": dice.choice((b"", b"=state")), "w": "failed"}.get(letter, b"")
        epoch = int(record[5]) - (dice.random() < 0.05)
        made.append(WireEdge(key, epoch, record[2], 60_000, record[3], letter, x, y, z))
    return made


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_batch_does_what_its_items_do_one_by_one(seed: int) -> None:
    """So that what is collected over a batch is never seen too late by an item of it."""
    dice, scripts = random.Random(seed), Scripts()
    together, apart = _Side(scripts), _Side(scripts)
    keys = MANY if seed % 3 == 0 else 20
    join = LANE.join(
        NODE,
        dict.fromkeys((W1, W2), ROOM),
        {"h": Options(), "s": Options(kind="service")},
        is_new=True,
        not_after_ms=together.now_us // 1000 + 1000,
        pool_ttl_ms=round(1000 * TTL_S),
    )
    answered = set()
    for side in (together, apart):
        side.keyspace.run(b"HSET", NAMES.lane.encode(), b"incarnation", LANE.generation.encode())
        side.run(join)
    for step in range(STEPS):
        together.now_us += dice.choice((1, 1000, 300_000))
        apart.now_us = together.now_us
        if step % 3 == 0:
            items = _admissions(dice, step, keys)
            batches = [items, *([item] for item in items)]
            calls = [
                LANE.dispatch(batch, (W1, W2), pending_s=TTL_S, queued_jobs_max=ROOM)
                for batch in batches
            ]
            answers = together.run(calls[0])
            assert answers == [apart.run(call)[0] for call in calls[1:]]
        else:
            owner = dice.choice(("w1.1", "w2.1", ""))
            guard: AdvanceGuard = "own" if owner else "free"
            edges = _edges(dice, together, owner)
            calls = [
                LANE.advance(guard, owner, batch, pending_s=TTL_S, targets=(W1, W2))
                for batch in [edges, *([edge] for edge in edges)]
            ]
            left, *answers = together.run(calls[0])
            each = [apart.run(call) for call in calls[1:]]
            assert answers == [answer for _, answer in each]
            assert not each or left == each[-1][0]
        answered |= {answer.split()[0] for answer in answers}
        assert together.stored() == apart.stored(), step
    assert {b"OK", b"GRANTED", b"UNASSIGNED", b"FENCED", b"REPEAT", b"REFUSED"} <= answered
