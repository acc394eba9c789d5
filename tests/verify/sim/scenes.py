"""Scenes of what goes by time, for `steps.py`: schedules, a ticker, a plan's turns."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from pool import Node
from pool.names import lane_of
from pool.schedules import Every
from tests.verify.sim import timetable
from tests.verify.sim.fleet import Boot

if TYPE_CHECKING:  # they are played there
    from tests.verify.sim.steps import Stage

ACTOR: Final = "n0"
OTHER: Final = "n1"
_NAME: Final = "a"
_EVERY: Final = Every(1, misfire="all", window_s=20.0)
_OVER_S: Final = 5.5  # when what repeats itself is taken away
_TICK_S: Final = 0.5
_HANDS_OVER_S: Final = 2.2


def _key(stage: Stage, lanes: int) -> str:
    """Return a key whose lane is not the schedule's, if there are several."""
    while True:
        key = stage.key_of(OTHER)
        if lanes == 1 or lane_of(key, lanes) != lane_of(_NAME, lanes):
            return key


def _make(stage: Stage, by: str, when: Every, *times_s: float) -> None:
    """Have a node make the schedule, at each of these times."""
    simulation = stage.simulation
    keys: list[str] = []

    async def ask(_: Boot, node: Node) -> None:
        options = node.options(if_exists="queue", queue_max=1000)
        await options.schedule(_NAME, when, timetable.HANDLER, keys[0])

    stage.at(0.0, lambda: keys.append(_key(stage, simulation.config.lanes)))
    for after_s in times_s:
        stage.at(after_s, stage.do, by, ask)
    stage.at(0.0, lambda: simulation.timetable.end_after(_NAME, _OVER_S))


def _make_a_schedule(stage: Stage) -> None:
    """Have the actor make it, and again whatever became of that."""
    _make(stage, ACTOR, _EVERY, 0.0, 2.5)


def _fire(stage: Stage) -> None:
    """Have the actor, alone, fire what another node has made, and carry it to its lane."""
    _make(stage, OTHER, _EVERY, 0.0)
    stage.at(0.2, stage.leave, 3.0, OTHER)


def _change_a_schedule(stage: Stage) -> None:
    """Have the actor pause it, have it go on, trigger it, make another of it, take it away."""
    _make(stage, OTHER, _EVERY, 0.0, 4.0)
    for after_s, what in ((0.6, "pause"), (1.2, "resume"), (1.8, "trigger"), (3.2, "remove")):
        stage.at(after_s, stage.do, ACTOR, _schedules(what))
    _make(stage, ACTOR, Every(2, misfire="all", window_s=20.0), 2.5)


def _schedules(what: str) -> Callable[[Boot, Node], Any]:
    async def ask(_: Boot, node: Node) -> None:
        await getattr(node.schedules, what)(_NAME)

    return ask


def _tick(stage: Stage) -> None:
    """Have both nodes wait for ticks, and the actor hand over."""

    def wait(*, leaves: bool) -> Callable[[Boot, Node], Any]:
        async def ask(boot: Boot, node: Node) -> None:
            boot.record("ticker", "invoke", key="t", extra={"every_s": _TICK_S})
            async with node.ticker("t", every_s=_TICK_S) as ticks:
                async for tick in ticks:
                    facts = {"number": tick.number, "missed": tick.missed}
                    boot.record("tick", key="t", extra={**facts, "done": tick.was_done})
                    if leaves and stage.now_s >= _HANDS_OVER_S:
                        break
            boot.record("ticker", key="t")

        return ask

    stage.at(0.0, stage.do, ACTOR, wait(leaves=True))
    stage.at(0.1, stage.do, OTHER, wait(leaves=False))


def _keep_a_plan(stage: Stage) -> None:
    """Have the actor, alone, keep a plan whose list changes, and is empty by mistake."""
    planned = stage.simulation.fleet.planned
    planned.is_drawn = False
    planned.wanted |= {"may0": 1, "may1": 2}

    def change() -> None:
        del planned.wanted["may0"]
        planned.wanted |= {"may1": 3, "may2": 4}

    stage.at(0.0, stage.leave, 3.0, OTHER)
    stage.at(1.5, change)
    stage.at(2.6, planned.mistaken, "empty")
    stage.at(3.8, planned.mistaken, "")


TIMED: Final[dict[str, Callable[[Stage], None]]] = {
    "make a schedule": _make_a_schedule,
    "fire": _fire,
    "change a schedule": _change_a_schedule,
    "tick": _tick,
}
PLANS: Final[dict[str, Callable[[Stage], None]]] = {"keep a plan": _keep_a_plan}
