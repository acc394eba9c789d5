"""The operators of a simulated pool: they pause, resume, cordon and uncordon, through any node.

What is paused or cordoned stands in the history as a fault, since nothing is promised of when its
jobs begin.  Two of them may mean the same at once.  In the end nobody follows anything up before
lanes and map say the same, which is the nodes' matter: a pool where they never do is never
quiet.  Then each that still stands in the map is resumed, as often as it takes.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import attrs

from pool import Node
from pool.core.pauses import Pause, is_asked, parse
from pool.errors import PoolError
from pool.names import WORKERS, Names
from pool.redis.commands.pausing import LanePauses
from tests.verify.history import Recorder
from tests.verify.sim import reading
from tests.verify.sim.config import Config
from tests.verify.sim.faults import POOL
from tests.verify.sim.keyspace import Keyspace
from tests.verify.sim.world import World

if TYPE_CHECKING:  # it asks what is made there
    from tests.verify.sim.fleet import Boot, SimFleet
    from tests.verify.sim.server import Server

_PAUSES: Final = 5
_CORDONS: Final = 3
_AGAIN_S: Final = 0.5


def paused_in(keyspace: Keyspace, number: int) -> LanePauses:
    """Return what is paused in a lane, as the store has it."""
    lane: dict[bytes, bytes] = keyspace.keys.get(Names(POOL, number).lane.encode(), {})
    return LanePauses.of({name.decode(): text for name, text in lane.items()})


def what_holds(keyspace: Keyspace, number: int, key: str, handler: str) -> Pause | None:
    """Return what must keep a job from being granted just now."""
    stands = paused_in(keyspace, number)
    for pause in (Pause(key=key), Pause(handler=handler), Pause()):
        if stands.has(pause):
            return pause
    return None


@attrs.define(eq=False)
class Operators:
    """All that operators ask in one seed."""

    _config: Config
    _world: World
    _fleet: SimFleet
    _server: Server
    _driver: Recorder
    _dice: random.Random = attrs.field(init=False)
    _open: dict[str, Any] = attrs.field(init=False, factory=dict)  # what is under way, by its name
    _pausing: Counter[str] = attrs.field(init=False, factory=Counter)  # calls that are under way
    _count: int = attrs.field(init=False, default=0)
    _is_ending: bool = attrs.field(init=False, default=False)

    def __attrs_post_init__(self) -> None:
        self._dice = self._world.dice("operators")

    def plan(self) -> None:
        """Put everything on the world's calendar."""
        if "operators" not in self._config.shapes:
            return
        config, dice = self._config, self._dice
        for _ in range(_PAUSES):
            pause = dice.choice(
                (
                    Pause(),
                    Pause(handler=dice.choice(("work", "feed", "limited"))),
                    Pause(key=f"k{dice.randrange(config.keys)}"),
                    Pause(key=f"s{dice.randrange(max(1, config.services))}"),
                )
            )
            at_s = dice.uniform(0.5, config.chaos_s - 1.0)
            self._world.at(at_s, self.pause, pause)
            self._world.at(min(at_s + dice.uniform(0.1, 4.0), config.chaos_s), self.resume, pause)
            # Of some another operator means the opposite, at the same time.
            for verb in (self.resume, self.pause)[: dice.randrange(3)]:
                self._world.at(at_s + dice.uniform(0.0, 0.02), verb, pause)
        for _ in range(_CORDONS):
            name, at_s = dice.choice(self._fleet.names), dice.uniform(0.5, config.chaos_s - 1.0)
            self._world.at(at_s, self.cordon, name)
            self._world.at(min(at_s + dice.uniform(0.1, 4.0), config.chaos_s), self.uncordon)
        self._world.at(config.chaos_s, self.end)

    @property
    def is_over(self) -> bool:
        """Whether nothing is paused or cordoned any more."""
        return not (self._open or self._standing() or self._entries("!"))

    # --- pausing ---

    def pause(self, pause: Pause) -> None:
        """Pause something from now on."""
        if self._is_ending:
            return
        self._begin("paused", str(pause))

        async def ask(_: Boot, node: Node) -> None:
            if self._is_ending:
                return
            self._pausing[str(pause)] += 1
            try:
                await node.pause(handler=pause.handler, key=pause.key, reason="as planned")
            finally:
                self._pausing[str(pause)] -= 1

        self._ask(ask)

    def resume(self, pause: Pause) -> None:
        """Resume it, as often as it takes."""

        async def ask(_: Boot, node: Node) -> None:
            report = await node.resume(handler=pause.handler, key=pause.key)
            if self._pausing[str(pause)]:
                return  # it may be decided later: the end takes back what stands
            if report.is_complete and pause.entry.decode() not in self._entries("!paused "):
                self._over("paused", str(pause))

        self._ask(ask)

    def end(self) -> None:
        """Take back whatever stands, again and again: over a slow line a call comes late."""
        self._is_ending = True
        self._world.after(_AGAIN_S, self.end)
        if self.is_over or not self._is_one():
            return
        if not self._standing():
            for name in [each for each in self._open if each.startswith("paused")]:
                self._over(*name.split(" ", 1))
        self.uncordon()
        for entry in self._entries("!cordon "):  # of a call that came late
            self._uncordon_one(entry.removeprefix("!cordon "))
        for pause in self._pauses():
            self.resume(pause)

    def _is_one(self) -> bool:
        """Whether lanes go by what the map says."""
        stands, lanes = self._pauses(), self._config.lanes
        for number in range(lanes):
            found = {each.entry for each in paused_in(self._server.keyspace, number).pauses()}
            meant = LanePauses.asked_for(stands, number, lanes)
            if found != {each.entry for each in meant.pauses()}:
                return False
        return not any(each.is_over for each in stands)

    def _pauses(self) -> list[Pause]:
        """Return what the map of workers says is paused."""
        items = reading.map_items(self._server.keyspace, POOL, WORKERS) or {}
        texts = {name.encode(): text for name, text in items.items() if isinstance(text, str)}
        asked = parse((n, text.encode()) for n, text in texts.items() if is_asked(n))
        return list(asked.pauses.values())

    def _entries(self, begin: str) -> list[str]:
        """Return what the map of workers says that was asked for."""
        items = reading.map_items(self._server.keyspace, POOL, WORKERS) or {}
        return [name for name in items if name.startswith(begin) and name != "!shutdown"]

    def _standing(self) -> list[Pause]:
        """Return what any lane says is paused."""
        found: dict[str, Pause] = {}
        for number in range(self._config.lanes):
            stands = paused_in(self._server.keyspace, number)
            pauses = [Pause()] if stands.is_all else []
            pauses += [Pause(handler=name) for name in stands.handlers]
            pauses += [Pause(key=name) for name in stands.keys]
            found |= {str(pause): pause for pause in pauses}
        return list(found.values())

    # --- cordons ---

    def cordon(self, name: str) -> None:
        """Cordon a node, if it is there."""
        boot = self._fleet.boots[name]
        if self._is_ending or boot is None or boot.node is None or not boot.is_open:
            return
        member = boot.node.id
        self._begin("cordoned", member)

        async def ask(_: Boot, node: Node) -> None:
            if not self._is_ending:
                await node.cordon(member, timeout_s=self._config.ttl_s)

        self._ask(ask)

    def uncordon(self) -> None:
        """Take all cordons back; of those who are gone there is none."""
        for name in [each for each in self._open if each.startswith("cordoned")]:
            member = name.split(" ", 1)[1]
            nodes = [boot.node.id for boot in self._fleet.open_boots() if boot.node is not None]
            if member not in nodes:
                self._over("cordoned", member)
                continue
            self._uncordon_one(member)

    def _uncordon_one(self, member: str) -> None:
        async def ask(_: Boot, node: Node) -> None:
            report = await node.uncordon(member, timeout_s=self._config.ttl_s)
            if report.is_complete:
                self._over("cordoned", member)

        self._ask(ask)

    # --- how ---

    def _ask(self, ask: Callable[[Boot, Node], Any]) -> None:
        boots = self._fleet.open_boots()
        if not boots:
            return  # `end` sees to what is left

        async def op(boot: Boot) -> None:
            if boot.node is not None:
                try:
                    await ask(boot, boot.node)
                except PoolError as error:
                    boot.record("event", extra={"event": "refused", "error": error.code})

        self._dice.choice(boots).do(op)

    def _begin(self, kind: str, what: str) -> None:
        name = f"{kind} {what}"
        if name in self._open:
            return
        self._count += 1
        extra = {"id": f"op{self._count}", "kind": kind, "does": "store", "target": "", "weight": 1}
        self._open[name] = extra
        self._driver("fault", "invoke", extra=extra)

    def _over(self, kind: str, what: str) -> None:
        extra = self._open.pop(f"{kind} {what}", None)
        if extra is not None:
            self._driver("fault", extra={"id": extra["id"]})
