"""A plan of a simulated pool: its list changes, and now and then it is wrong, or cannot be had."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import anyio

from pool import Call, Handlers, Job
from pool.core.plans import plan_of
from pool.errors import PoolError
from pool.jobs.handlers import Handler
from tests.verify.history import Recorder
from tests.verify.sim import reading
from tests.verify.sim.config import Config, digest
from tests.verify.sim.world import World

if TYPE_CHECKING:  # it asks what is made there
    from tests.verify.sim.fleet import Boot, SimFleet
    from tests.verify.sim.keyspace import Keyspace
    from tests.verify.sim.watch import Watch

NAME: Final = "p"
HANDLER: Final = "kept"
CORE: Final = tuple(f"core{number}" for number in range(5))  # always wanted, and never otherwise
_OTHERS: Final = tuple(f"may{number}" for number in range(4))
_CHANGES: Final = 8
_MISTAKES: Final = 5
_WRONG_S: Final = (0.3, 2.0, 6.0)
_EVERY_S: Final = 1.0
_TIMEOUT_S: Final = 2.0
_AGAIN_S: Final = 2.0
_CALL: Final = re.compile(rb'\["([a-z0-9]+)",(\d+)\]')


class Planned:
    """What the list says, and what is asked of the plan, in one seed."""

    def __init__(self, config: Config, world: World) -> None:
        self._config, self._world = config, world
        self._dice = world.dice("planned")
        self.is_there = "plans" in config.shapes
        self.wanted: dict[str, int] = dict.fromkeys(CORE, 0)  # key -> version of its arguments
        self.mistake = ""
        self.is_drawn = True  # what becomes of the list
        self._versions = 0

    def plan(self, fleet: SimFleet) -> None:
        """Put everything on the world's calendar."""
        if not self.is_there:
            return
        dice, chaos_s = self._dice, self._config.chaos_s
        for _ in range(_CHANGES if self.is_drawn else 0):
            self._world.at(dice.uniform(0.5, chaos_s), self.change, dice.choice(_OTHERS))
        for _ in range(_MISTAKES if self.is_drawn else 0):
            at_s = dice.uniform(0.5, chaos_s)
            mistake = dice.choice(("empty", "empty", "fails", "twice", "slow"))
            self._world.at(at_s, self.mistaken, mistake)
            self._world.at(min(chaos_s, at_s + dice.choice(_WRONG_S)), self.mistaken, "")
        self._world.at(chaos_s + self._config.ttl_s, self._confirm, fleet)

    def change(self, key: str) -> None:
        """Take a key into the list, or out of it; it never comes back with the same arguments."""
        if key in self.wanted:
            del self.wanted[key]
        if key not in self.wanted and self._dice.random() < 0.6:
            self._versions += 1
            self.wanted[key] = self._versions

    def mistaken(self, mistake: str) -> None:
        """Have the producer make a mistake, or none any more."""
        self.mistake = mistake

    def add_to(self, handlers: Handlers, record: Recorder, kept: Handler[..., Any]) -> None:
        """Register the producer, which writes down what it answers."""

        async def produce(_: Job) -> list[Call]:
            mistake, wanted = self.mistake, dict(self.wanted)
            answer = {} if mistake == "empty" else wanted
            record("answer", key=NAME, extra={"wanted": answer, "mistake": mistake})
            if mistake == "slow":
                await anyio.sleep(3 * _TIMEOUT_S)
            if mistake == "fails":
                raise RuntimeError("no list")
            calls = [Call(key, key, version) for key, version in answer.items()]
            return [*calls, *calls[:1]] if mistake == "twice" else calls

        options: dict[str, Any] = {"every_s": _EVERY_S, "timeout_s": _TIMEOUT_S, "stop_max": 0.7}
        handlers.plan(NAME, kept, **options)(produce)

    def _confirm(self, fleet: SimFleet) -> None:
        """Confirm whatever it means, when all is well again: a loss may have left what is held."""
        boots = fleet.open_boots()
        if boots:

            async def op(boot: Boot) -> None:
                if boot.node is not None:
                    try:
                        boot.record("confirm", key=NAME)
                        await boot.node.plan(NAME).confirm(timeout_s=_AGAIN_S)
                    except (PoolError, TimeoutError) as error:
                        facts = {"event": "refused", "error": type(error).__name__}
                        boot.record("event", extra=facts)

            self._dice.choice(boots).do(op)
        self._world.after(_AGAIN_S, self._confirm_again, fleet)

    def _confirm_again(self, fleet: SimFleet) -> None:
        if not self.is_over(fleet.server.keyspace, fleet.watch):
            self._confirm(fleet)

    def is_over(self, keyspace: Keyspace, watch: Watch) -> bool:
        """Whether just those that are wanted are there, but for those that were parked."""
        return not self.is_there or not amiss(self.facts(keyspace, watch))

    def facts(self, keyspace: Keyspace, watch: Watch) -> dict[str, Any]:
        """Return what the last state says of the plan: wanted, those there, and those parked."""
        there, parked = dict[str, Any](), list[list[Any]]()
        for texts in (fields for key, fields in keyspace.keys.items() if key.endswith(b":jobs")):
            for key, record in reading.parsed(texts):
                if plan_of(record.id) == NAME:
                    there[key] = watch.planned.get(record.id, ["", -1])[1]
        for job, (key, version) in watch.planned.items():
            if watch.settled.get(job) == "parked":
                parked.append([key, version])
        return {"wanted": dict(self.wanted), "there": there, "parked": parked}


def amiss(facts: dict[str, Any]) -> list[str]:
    """Return which keys are not as the plan wants them."""
    wanted, there = facts["wanted"], facts["there"]
    return [
        key
        for key in sorted({*wanted, *there})
        if wanted.get(key) != there.get(key)
        and not (key not in there and [key, wanted[key]] in facts["parked"])
    ]


def accepted(item: Sequence[bytes]) -> tuple[dict[str, Any], list[Any]] | None:
    """Return what a dispatch of the plan's says, as the history has it, and which key it is for."""
    key, job = item[0].decode(errors="replace"), item[1].decode(errors="replace")
    if plan_of(job) != NAME or (call := _CALL.search(item[7])) is None:
        return None
    version = int(call[2])
    extra = {"digest": digest(plan_for(key, version)), "kind": "service", "attempts_max": 0}
    extra |= {"within_s": 1000.0, "plan": NAME, "version": version}
    return {"key": key, "job": job, "idem": job, "extra": extra}, [key, version]


def plan_for(key: str, version: int) -> dict[str, Any]:
    """Return what stands for the arguments of a key."""
    return {"key": key, "version": version}
