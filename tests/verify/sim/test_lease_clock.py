"""The lease clock: its rule in Python beside the script's, step by step, and what it is for.

Lease time runs with time or stands still (`lib/lease.lua`).  So L(f) <= L(r) + (f - r) for every
renewal at r and every later f, and nobody is fenced less than a TTL after it was renewed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import attrs
import pytest

from pool.core.pooltime import PoolTime, Told
from pool.names import Names
from pool.redis.commands.lane import Lane
from pool.redis.commands.member import Renewal, renewal
from pool.redis.commands.recovery import fenced
from pool.redis.scripts import ScriptCall
from tests.verify.sim.keyspace import Keyspace
from tests.verify.sim.server import EPOCH_US, SCRIPTS

STEPS = 25_000  # of each of four seeds
TTL_MS = 5_000
PERIOD_MS = TTL_MS // 5
REACH_MS = int(1.75 * PERIOD_MS)
ASTRAY_MS = 2 * PERIOD_MS


@attrs.define
class Rule:
    """What DESIGN says, in a few lines."""

    lease: int
    seen: int
    run: str = ""
    hold: int = 0
    ends: dict[str, int] = attrs.field(factory=dict)

    def at(self, now: int) -> int:
        """Return the lease time."""
        return self.lease + min(max(0, now - self.seen), REACH_MS)

    def renew(self, now: int, names: Sequence[str], first: int, last: int, run: str) -> None:
        gap = now - self.seen
        tried = max(0, min(now, now - last) - max(self.seen, now - first)) if first else 0
        passed = min(gap, REACH_MS, gap - tried)
        self.lease += max(passed, 1) if passed < gap else gap
        self.seen = now
        if run != self.run:
            self.run, self.hold = run, self.lease + TTL_MS
        for name in names:
            if name in self.ends:
                self.ends[name] = self.lease + TTL_MS

    def fence(self, now: int) -> list[str]:
        if now - self.seen > ASTRAY_MS or self.at(now) < self.hold:
            return []
        over = [name for name, ends in self.ends.items() if ends <= self.at(now)]
        for name in over:
            del self.ends[name]
        return sorted(over)


class Store:
    """A lane on a keyspace, whose server's clock is `clock_ms`."""

    def __init__(self) -> None:
        self.clock_ms = 0
        self.keyspace = Keyspace(lambda: EPOCH_US + 1000 * self.clock_ms, random.Random(0))
        self.names = Names("model", 0)
        self.lane = Lane(self.names, "g.1")
        self.set(incarnation="g.1", ttl=TTL_MS, term=1)

    def set(self, **fields: object) -> None:
        for name, value in fields.items():
            self.do("HSET", self.names.lane, name, value)

    def do(self, *words: object) -> Any:
        return self.keyspace.run(*(str(word).encode() for word in words))

    def field(self, name: str) -> int:
        return int(self.do("HGET", self.names.lane, name) or 0)

    def run(self, call: ScriptCall) -> Any:
        sha = SCRIPTS.load(call.script.source.encode())
        keys = [key.encode() for key in call.keys]
        return SCRIPTS.run(self.keyspace, sha, keys, [str(arg).encode() for arg in call.args])

    def join(self, name: str) -> None:
        """Give a lease, as `join` does to who is in a lane already."""
        self.do("ZADD", self.names.keepalive, self.field("lease") + TTL_MS, name)

    def renew(self, names: Sequence[str], **more: Any) -> Renewal:
        call = self.lane.renew(dict.fromkeys(names, 1), seq=1, term=1, **more)
        return renewal(self.run(call))

    def fence(self) -> list[str]:
        call = self.lane.fence("r.1", reap_s=86_400.0, claims_max=99, window_s=60.0)
        return sorted(claim.identity for claim in fenced(self.run(call)).claims)


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(each, marks=pytest.mark.long) for each in (2, 3))]
)
def test_the_script_does_what_the_rule_says_and_never_fences_early(seed: int) -> None:
    """G-03: 100,000 steps; whatever anybody says of silences, and whenever who asks."""
    dice, store = random.Random(f"lease/{seed}"), Store()
    now, number = EPOCH_US // 1000, 0
    rule = Rule(lease=now, seen=now)
    store.set(seen=now, lease=now)
    renewed: dict[str, int] = {}
    behind = now - now  # the least of L(r) - r so far
    for _ in range(STEPS):
        gap = dice.choice((0, 1, 7, 60, 400, PERIOD_MS, TTL_MS // 2, TTL_MS))
        gap = round(gap * dice.uniform(0.5, 1.5))
        now, store.clock_ms = now + gap, store.clock_ms + gap
        if dice.random() < 0.1:
            number += 1
            name = f"w{number}.1"
            rule.ends[name], renewed[name] = rule.lease + TTL_MS, rule.seen
            store.join(name)
        if dice.random() < 0.5:
            names = [name for name in rule.ends if dice.random() < 0.4]
            first = dice.choice((0, 0, 1, 50, gap, gap + 500, 100_000))
            last = dice.choice((0, 0, 50, gap // 2, gap + 5, 200_000))
            store.keyspace.run_id = b"run%d" % (dice.random() < 0.01 or store.field("hold") % 2)
            run = store.keyspace.run_id.decode()
            rule.renew(now, names, first, last, run)
            for name in names:
                renewed[name] = now
            store.renew(names, told=Told(now, 1), tried_ms=(first, last))
            behind = min(behind, rule.lease - now)
        else:
            over = rule.fence(now)
            assert store.fence() == over
            for name in over:
                assert now >= renewed[name] + TTL_MS, f"{name} was fenced early"
        assert rule.at(now) - now <= behind, "lease time ran faster than time"
        assert (store.field("lease"), store.field("hold")) == (rule.lease, rule.hold)


@attrs.define
class Witness:
    """A node with a clock of its own, which knows pool time by its answers alone."""

    name: str
    time: PoolTime = attrs.field(factory=PoolTime)
    asked_ms: int = 0  # when its last answered renewal was asked for

    def renew(self, store: Store, now_ms: int) -> None:
        now_s = now_ms / 1000
        told = store.renew([self.name], told=self.time.told(now_s), who=self.name)
        clock = told.clock
        self.time = self.time.heard(
            *(clock.raw_ms, clock.offset_ms, clock.turn, now_s, now_s, PERIOD_MS / 1000),
            is_astray=clock.is_astray,
            told_ms=clock.told_ms,
            is_late=clock.is_late,
            witnessed_ms=clock.witnessed_ms,
        )
        if told.counts != (-1,):
            self.asked_ms = now_ms


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(each, marks=pytest.mark.long) for each in range(4, 8))]
)
def test_no_step_of_the_clock_fences_anybody_early(seed: int) -> None:
    """G-03: steps of a minute, within silences too, while nodes come, go and are not answered."""
    dice, store = random.Random(f"steps/{seed}"), Store()
    nodes, number, now, fences = list[Witness](), 0, EPOCH_US // 1000, 0
    store.set(seen=now, lease=now, run="run0")
    gone = dict[str, Witness]()
    for _ in range(4_000):
        gap = round(dice.choice((20, 100, 300, PERIOD_MS)) * dice.uniform(0.5, 1.5))
        if dice.random() < 0.005:
            gap += 3 * TTL_MS
        now, store.clock_ms = now + gap, store.clock_ms + gap
        if dice.random() < 0.01:
            store.clock_ms += dice.choice((-60_000, -7_000, 7_000, 60_000))
        if len(nodes) < 3 and dice.random() < 0.1:
            number += 1
            node = Witness(f"n{number}.1")
            store.do("ZADD", store.names.keepalive, 1, node.name)
            nodes.append(node)
            node.renew(store, now)
        for node in [*nodes]:
            if dice.random() < 0.02:
                nodes.remove(node)
                gone[node.name] = node
            elif now - node.asked_ms >= PERIOD_MS and dice.random() < 0.8:
                node.renew(store, now)
        every = gone | {node.name: node for node in nodes}
        for name in store.fence():
            fences += 1
            assert now >= every[name].asked_ms + TTL_MS, f"{name} was fenced early"
            nodes = [node for node in nodes if node.name != name]
    assert fences > 20, "nobody was ever fenced"
