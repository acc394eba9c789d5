"""What follows the jobs of a simulated pool: chains of jobs, drawn by dice of their own."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import attrs

from pool import Follower
from tests.verify.sim import timetable
from tests.verify.sim.config import ATTEMPTS_MAX, Plan, digest

if TYPE_CHECKING:  # it watches what is made here
    from tests.verify.sim.fleet import Boot

_DEPTH_MAX: Final = 3
_SHARE: Final = 0.5  # of the dispatches of one job


@attrs.define(eq=False)
class Chains:
    """Draws followers, and writes down who is to follow whom."""

    dice: random.Random
    keys: int
    draw_plan: Callable[[random.Random], Plan]
    _count: int = 0

    def options(self, boot: Boot, batch: int, token: str, plan: Plan) -> dict[str, Any]:
        """Return what a dispatch is given beside its other options, and what its plan adds."""
        if self.dice.random() > _SHARE:
            return {}
        self._count = 0
        chain = self._of(boot, batch, token, plan, 1)
        return {name: chain[name] for name in ("then", "otherwise") if chain[name]}

    def _of(
        self, boot: Boot, batch: int, token: str, plan: Plan, depth: int
    ) -> dict[str, list[Follower]]:
        found: dict[str, list[Follower]] = {"then": [], "otherwise": []}
        for when, most in (("then", 2), ("otherwise", 1)):
            for _ in range(self.dice.randint(0, most)):
                found[when].append(self._one(boot, batch, token, when, depth))
        if self.dice.random() < 0.3:
            plan["adds"] = [self._facts(boot, batch, token, "then") for _ in range(2)]
        return found

    def _facts(self, boot: Boot, batch: int, of: str, when: str) -> tuple[str, str, Plan]:
        self._count += 1
        token, key = f"t{batch}.{100 + self._count}", f"k{self.dice.randrange(self.keys)}"
        plan = self.draw_plan(self.dice)
        boot.record("follow", key=key, idem=token, extra={"of": of, "when": when})
        return token, key, plan

    def _one(self, boot: Boot, batch: int, of: str, when: str, depth: int) -> Follower:
        token, key, plan = self._facts(boot, batch, of, when)
        chain: dict[str, list[Follower]] = {}
        if depth < _DEPTH_MAX and self.dice.random() < 0.5:
            chain = self._of(boot, batch, token, plan, depth + 1)
        delay_s = self.dice.choice((0.0, 0.0, 0.0, 0.3))
        takes_result = self.dice.random() < 0.5
        follower = Follower("after" if takes_result else "work", key, token, plan)
        return follower.options(takes_result=takes_result, delay_s=delay_s, **chain)


def carried(text: bytes) -> dict[str, Any]:
    """Return what a message to a lane says, as the history has it."""
    head, _, rest = text.partition(b"\n")
    delay, _, *sizes = head.decode().split(" ")[1:]
    parts = []
    for size in map(int, sizes):
        parts.append(rest[:size])
        rest = rest[size:]
    key, job, handler, more, payload = parts
    if handler.decode() == timetable.HANDLER:
        kind = head.decode().split(" ")[2]
        facts: dict[str, Any] = {"policy": "queue"} if kind[1:2] == "q" else {}
        if int(delay):  # of a changed schedule: what is left of the jitter
            facts["delay_s"] = int(delay) / 1000
        return {"key": key.decode(), **timetable.told(job.decode(), facts)}
    of_call = [each[1:] for each in more.decode().split(",") if each[:1] == "f"]
    *_, token, plan = json.loads(payload[: int(of_call[0])] if of_call else payload)
    extra = {"digest": digest(plan), "kind": "job", "attempts_max": ATTEMPTS_MAX}
    extra |= {"policy": "queue", "within_s": 1.0}
    if int(delay):
        extra["delay_s"] = int(delay) / 1000
    return {"key": key.decode(), "job": job.decode(), "idem": token, "extra": extra}
