"""The auditor finds every kind of damage: a silent one would make all other tests blind."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pool.core.record import letters_steps, steps_name
from pool.names import Control
from pool.redis.commands.calls import Target
from pool.testing.audit import CONTROL_TYPES, LANE_TYPES, audit

if TYPE_CHECKING:
    from tests.redis.conftest import Bench

ROOT = Path(__file__).parents[2]
W1 = Target("w1", 1)
LANE, CONTROL = "lane/", "control/"  # in front of the first part of a key's name

Words = tuple[Any, ...]

# What is done to a sound lane, and a word of what must be said about it.
DAMAGE: dict[str, tuple[Callable[[Bench], Words], str]] = {
    "pending entry lost": (lambda b: ("DEL", b.names.stream("w1.1")), "no entry"),
    "pending deadline lost": (lambda b: ("ZREM", b.names.pending, "p"), "not in `pending`"),
    "pending payload twice": (lambda b: ("HSET", b.names.payloads, "p", "x"), "there twice"),
    "ownership lost": (lambda b: ("SREM", b.names.owned("w1.1"), "r"), "not in owned:w1.1"),
    "lease lost": (lambda b: ("ZREM", b.names.keepalive, "w1.1"), "no lease of w1.1"),
    "reaped too early": (lambda b: ("HSET", b.names.cleanup, "w1.1", "done"), "counts as reaped"),
    "payload lost": (lambda b: ("HDEL", b.names.payloads, "r"), "not in `payloads`"),
    "due lost": (lambda b: ("ZREM", b.names.due, "k:w"), "not in `due`"),
    "unassigned lost": (lambda b: ("ZREM", b.names.unassigned("h"), "u"), "not in unassigned:h"),
    "checkpoint lost": (lambda b: ("HDEL", b.names.checkpoints, "r"), "checkpoint"),
    "record lost": (lambda b: ("HDEL", b.names.jobs, "r"), "owned:w1.1, but is not"),
    "record spoilt": (lambda b: ("HSET", b.names.jobs, "r", "garbage"), "cannot be read"),
    "pending orphan": (lambda b: ("ZADD", b.names.pending, 1, "r"), "in `pending`, but is not"),
    "due orphan": (lambda b: ("ZADD", b.names.due, 1, "k:none"), "without a record"),
    "due not flagged": (lambda b: ("ZADD", b.names.due, 1, "k:p"), "do not say whether"),
    "unassigned orphan": (lambda b: ("ZADD", b.names.unassigned("o"), 1, "u"), "unassigned:o"),
    "owned by two": (lambda b: ("SADD", b.names.owned("w2.1"), "r"), "owned:w2.1, but is not"),
    "entry orphan": (lambda b: ("XADD", b.names.stream("w2.1"), "5-0", "k", "p"), "starts no job"),
    "payload orphan": (lambda b: ("HSET", b.names.payloads, "none", "x"), "payloads without"),
    "checkpoint orphan": (
        lambda b: ("HSET", b.names.checkpoints, "none", "x"),
        "checkpoints without",
    ),
    "steps lost": (
        lambda b: ("HDEL", b.names.checkpoints, steps_name("r")),
        "has steps",
    ),
    "steps orphan": (
        lambda b: ("HSET", b.names.checkpoints, steps_name("none"), "x"),
        "steps without",
    ),
    "steps of no letter": (
        lambda b: ("HSET", b.names.checkpoints, letters_steps("none", "r"), "x"),
        "without a dead letter",
    ),
    "inbox orphan": (lambda b: ("RPUSH", b.names.inbox("none"), "x"), "inbox without"),
    "inbox not flagged": (lambda b: ("RPUSH", b.names.inbox("p"), "x"), "has messages"),
    "half a dead letter": (lambda b: ("ZADD", b.names.parked, 1, "none"), "only one of"),
    "stamp fell": (lambda b: ("HSET", b.names.lane, "stamp", 5), "above the lane's stamp"),
    "unassigned counter": (lambda b: ("HINCRBY", b.names.lane, "unassigned", 1), "unassigned keys"),
    "waiting counter": (lambda b: ("HINCRBY", b.names.lane, "waiting", -1), "waiting keys"),
    "reaper without deadline": (lambda b: ("HSET", b.names.cleanup, "w9.1", "n|1"), "successor"),
    "open to a stranger": (
        lambda b: ("HSET", b.names.open, "w9", "1|5|3"),
        "not a worker any more",
    ),
    "open spoilt": (lambda b: ("HSET", b.names.open, "w1", "garbage"), "`open` says"),
    "other generation": (lambda b: ("HSET", b.names.lane, "incarnation", "i"), "generation"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_each_damage_is_found(bench: Bench, name: str) -> None:
    """G-05: a job that is not exactly where it should be is reported, in words."""
    bench.do("HSET", Control(bench.pool).config, "incarnation", "inc-1")
    for key, state in (("p", "P"), ("r", "R"), ("w", "W"), ("dead", "R")):
        bench.put(key, state)
    bench.advance("own", "w1.1", bench.edge("t", "dead"), bench.edge("x", "dead"))
    bench.advance("own", "w1.1", bench.edge("g", "r", z=b"=checkpoint"), targets=[W1])
    bench.advance("own", "w1.1", bench.edge("a", "r"), bench.edge("t", "r"))
    bench.put("u", "U")  # the last one, as nothing overtakes it
    assert audit(bench.client, bench.pool) == []

    damage, said = DAMAGE[name]
    bench.do(*damage(bench))
    problems = audit(bench.client, bench.pool)
    assert any(said in problem for problem in problems), problems
    assert all(problem.startswith("lane 0: ") for problem in problems)


def test_a_pool_that_does_not_exist_is_sound(redis_url: str, bench: Bench) -> None:
    """Nothing is wrong with nothing, and pools whose names begin alike are apart."""
    assert audit(bench.client, f"{bench.pool}-other") == []
    bench.do("HSET", bench.names.jobs, "bad", "garbage")
    assert audit(bench.client, bench.pool[:-1]) == []


KINDS = {
    f"{prefix}{word}": kind
    for prefix, types in ((LANE, LANE_TYPES), (CONTROL, CONTROL_TYPES))
    for kind, words in types.items()
    for word in words.split()
}


def test_each_key_of_the_reference_has_its_type_in_the_table() -> None:
    text = (ROOT / "docs/reference/redis.md").read_text()
    lane, control = text.split("## Of the pool as a whole")
    rows = re.compile(r"^\| `([a-z-]+)\S* ?\S*` \| (\w+) \|", re.MULTILINE)
    told = {f"{LANE}{word}": kind for word, kind in rows.findall(lane)}
    told |= {f"{CONTROL}{word}": kind for word, kind in rows.findall(control)}
    assert told == KINDS


@pytest.mark.parametrize("name", KINDS)
def test_a_key_of_another_type_is_named(bench: Bench, name: str) -> None:
    """Whatever it should hold: `config`, handlers, journal, kept and maps were not looked at."""
    prefix = bench.names.prefix if name.startswith(LANE) else Control(bench.pool).prefix
    key = prefix + name.removeprefix(LANE).removeprefix(CONTROL)
    bench.do("DEL", key)
    bench.do(*(["RPUSH"] if KINDS[name] != "list" else ["SADD"]), key, "foreign")
    problems = audit(bench.client, bench.pool)
    assert [each for each in problems if f"{key} holds a" in each], problems
    bench.do("DEL", key)


@pytest.mark.parametrize("is_of_lane", [True, False])
def test_a_key_that_no_pool_writes_is_named(bench: Bench, *, is_of_lane: bool) -> None:
    prefix = bench.names.prefix if is_of_lane else Control(bench.pool).prefix
    bench.do("SET", f"{prefix}notes", "foreign")
    [problem] = audit(bench.client, bench.pool)
    assert f"{prefix}notes is no key of a pool" in problem
    bench.do("DEL", f"{prefix}notes")
