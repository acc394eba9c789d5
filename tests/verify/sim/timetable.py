"""The schedules of a simulated pool: made, changed, paused, triggered, and removed at its end."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.lowlevel

from pool import Node
from pool.core.schedules import COUNTED_MAX, parse, parse_head
from pool.core.times import times
from pool.errors import NoSuchSchedule, PoolError
from pool.schedules import Cron, Every
from tests.verify.sim.config import ATTEMPTS_MAX, Config, Plan, digest
from tests.verify.sim.world import World

if TYPE_CHECKING:  # it asks what is made there
    from tests.verify.sim.fleet import Boot, SimFleet
    from tests.verify.sim.watch import Watch

NAMES: Final = ("a", "b", "c")
HANDLER: Final = "timed"
PLAN: Final[Plan] = {"s": 0.01}
_CHANGES: Final = 10
_AGAIN_S: Final = 0.5
EDITED: Final = "e"  # a schedule of its own: it is changed mostly while its jitter is not over
_EDITS: Final = 16
_EDIT_JITTER_S: Final = 1.9
_WALLS: Final = 200
_WINDOW_S: Final = 20.0  # beyond it no jobs: a clock that is stepped would make thousands


class Timetable:
    """All that is asked of schedules in one seed."""

    def __init__(self, config: Config, world: World, fleet: SimFleet) -> None:
        self._config, self._world, self._fleet = config, world, fleet
        self._dice = world.dice("timetable")
        self._left = set[str]()

    def plan(self) -> None:
        """Put everything on the world's calendar."""
        if "schedules" not in self._config.shapes:
            return
        config, dice = self._config, self._dice
        for name in NAMES:
            self._world.at(dice.uniform(0.1, config.chaos_s / 4), self._ask, "make", name)
            # Each is there when all is well again, and gone at the end.
            self._world.at(config.chaos_s + config.ttl_s + 1.0, self._ask, "make", name)
            self._world.at(config.chaos_s + config.ttl_s + 1.5, self._ask, "resume", name)
            self._world.at(config.chaos_s + 2 * config.ttl_s + 6.0, self._end, name)
            self._left.add(name)
        for _ in range(_CHANGES):
            what = dice.choice(("make", "pause", "resume", "resume", "trigger", "remove"))
            self._world.at(dice.uniform(1.0, config.chaos_s), self._ask, what, dice.choice(NAMES))
        if "edits" in config.shapes:
            self._plan_edits(self._world.dice("edits"))

    def _plan_edits(self, dice: random.Random) -> None:
        self._left.add(EDITED)
        calm_s = self._config.chaos_s + self._config.ttl_s
        for number in range(_EDITS):
            what = dice.choice(("make", "make", "pause", "resume", "resume")) if number else "make"
            at_s = dice.uniform(0.5, calm_s + 5.0) if number else 0.5
            self._world.at(at_s, self._edit, what, dice.random())
        self._world.at(calm_s + self._config.ttl_s + 6.0, self._end, EDITED)

    def _edit(self, what: str, seed: float) -> None:
        """Change the schedule with much jitter; the watch knows since when that is under way."""
        boots, dice = self._fleet.open_boots(), random.Random(seed)
        if not boots:
            self._world.after(_AGAIN_S, self._edit, what, seed)
            return

        async def op(boot: Boot) -> None:
            if boot.node is None:
                return
            edits, number = self._fleet.watch.edits, dice.getrandbits(62)
            edits[number] = self._world.now_s
            try:
                await self._do_edit(boot.node, what, dice)
            except PoolError as error:
                boot.record("event", extra={"event": "refused", "error": error.code})
            finally:
                del edits[number]

        dice.choice(boots).do(op)

    async def _do_edit(self, node: Node, what: str, dice: random.Random) -> None:
        if what != "make":
            await getattr(node.schedules, what)(EDITED)
            return
        misfire: Any = dice.choice(("skip", "once", "all"))
        when = Every(
            dice.choice((2, 3)), misfire=misfire, window_s=_WINDOW_S, jitter_s=_EDIT_JITTER_S
        )
        await node.options(if_exists="queue", queue_max=1000).schedule(
            EDITED, when, HANDLER, "edited"
        )

    @property
    def is_over(self) -> bool:
        """Whether all schedules are gone."""
        return not self._left

    def end_after(self, name: str, after_s: float) -> None:
        """Take a schedule of somebody else's away, and be over only then."""
        self._left.add(name)
        self._world.after(after_s, self._end, name)

    def _ask(self, what: str, name: str) -> None:
        boots = self._fleet.open_boots()
        if not boots:
            self._world.after(_AGAIN_S, self._ask, what, name)
            return
        seed = self._dice.random()

        async def op(boot: Boot) -> None:
            if boot.node is None:
                return
            try:
                await self._do(boot.node, what, name, random.Random(seed))
            except PoolError as error:
                boot.record("event", extra={"event": "refused", "error": error.code})

        self._dice.choice(boots).do(op)

    async def _do(self, node: Node, what: str, name: str, dice: random.Random) -> None:
        match what:
            case "make":
                misfire: Any = dice.choice(("skip", "once", "all"))
                policy: Any = dice.choice(("queue", "queue", "reject"))
                if misfire == "all":
                    policy = "queue"
                jitter_s = dice.choice((0.0, 0.0, 0.5))
                when: Any = Every(
                    dice.choice((1, 2, 3)), misfire=misfire, window_s=_WINDOW_S, jitter_s=jitter_s
                )
                if dice.random() < 0.3:
                    when = Cron("*/2 * * * * *", misfire=misfire, window_s=_WINDOW_S)
                key = f"k{dice.randrange(self._config.keys)}" if policy == "queue" else f"z{name}"
                options = node.options(if_exists=policy, queue_max=1000)
                await options.schedule(name, when, HANDLER, key)
            case "pause":
                await node.schedules.pause(name)
            case "resume":
                await node.schedules.resume(name)
            case "trigger":
                await node.schedules.trigger(name)
            case _:
                await node.schedules.remove(name)

    def _end(self, name: str) -> None:
        """Remove one, as often as it takes."""
        boots = self._fleet.open_boots()
        if name not in self._left or not boots:
            self._world.after(_AGAIN_S, self._end, name)
            return

        async def op(boot: Boot) -> None:
            try:
                while boot.node is not None:
                    await boot.node.schedules.remove(name)
            except NoSuchSchedule:
                self._left.discard(name)
            except PoolError:
                await anyio.lowlevel.checkpoint()

        self._dice.choice(boots).do(op)
        self._world.after(_AGAIN_S, self._end_again, name)

    def _end_again(self, name: str) -> None:
        if name in self._left:
            self._end(name)


def told(job: str, more: dict[str, Any]) -> dict[str, Any]:
    """Return what a schedule's job says, as the history has it: its id is its token."""
    extra = {"digest": digest(PLAN), "kind": "job", "attempts_max": ATTEMPTS_MAX, "within_s": 1.0}
    return {"job": job, "idem": job, "extra": {**extra, **more}}


def triggered(item: Sequence[bytes]) -> dict[str, Any] | None:
    """Return what a dispatch says, as the history has it, if somebody has triggered a schedule."""
    key, job, handler, _, flags, *_ = (word.decode(errors="replace") for word in item)
    if handler != HANDLER:
        return None
    return {"key": key, **told(job, {"policy": "queue"} if flags[:1] == "q" else {})}


def watch_changes(watch: Watch, keys: Sequence[bytes], args: Sequence[bytes], reply: Any) -> None:
    """Write what was changed, as the script was told it: of how many times each is to know."""
    at, wall_ms, statuses = 7, int(reply[0]), reply[2]
    stored = watch.server.keyspace.keys.get(keys[1]) or {}
    is_firing = args[2] != b"0"
    if not statuses and not is_firing:  # somebody is about to change one, and judges by this
        watch.walls = [*watch.walls[-_WALLS:], (watch.world.now_s, wall_ms)]
    for status in statuses:
        name, seen, line, body, _, count = args[at : at + 6]
        messages = args[at + 6 : at + 6 + 2 * int(count)]
        at += 6 + 2 * int(count)
        before, after = parse_head(seen), parse_head(line)
        if status != b"OK" or line.rpartition(b" ")[2] in watch.changes or seen == line:
            continue
        watch.changes.add(line.rpartition(b" ")[2] if line else b"-" + seen)
        jobs = [text.partition(b"\n")[2] for text in messages[1::2]]
        made = [_of(text, rest) for text, rest in zip(messages[1::2], jobs, strict=True)]
        ids = [job for _, job in made]
        extra: dict[str, Any] = {"jobs": ids, "wall_ms": wall_ms}
        if made:
            extra["to"] = made[0][0]
        if before is not None and after is not None:
            extra |= {"next": [before.next_ms, after.next_ms], "paused": before.is_paused}
            extra["fired"] = after.fired - before.fired
            extra["missed"] = after.missed - before.missed
            extra["overlapped"] = after.overlapped - before.overlapped
            extra["every_ms"] = _every_ms(stored[name])
        elif before is not None:
            late_ms = min(wall_ms, _believed_ms(watch, keys[0])) - before.due_ms
            extra |= {"late_ms": late_ms, "paused": before.is_paused}
        extra["is_edit"] = bool(body) or before is None
        if name == EDITED.encode() and before and after and not (before.is_paused or is_firing):
            extra["settled"] = extra["fired"] + extra["missed"] + extra["overlapped"]
            if before.next_ms != after.next_ms or after.is_paused:
                extra["came"] = _came(watch, before.next_ms)
        if body:
            changed = parse("", stored[name])
            assert changed is not None
            watch.whens[name.decode()] = changed.when
        said: Any = "fire" if before is not None and after is not None and ids else "schedule"
        watch.record_store(said, key=name.decode(), extra=extra)


def _came(watch: Watch, next_ms: int) -> list[int]:
    """Return how many times had come when somebody judged the change that was written just now.

    Whoever changes a schedule has asked for the server's clock before: one of these answers is his.
    """
    since_s = min(watch.edits.values(), default=watch.world.now_s)
    came = set[int]()
    for at_s, wall_ms in watch.walls:
        if at_s >= since_s:
            behind = times(watch.whens[EDITED], next_ms)
            passed = takewhile(lambda each: each <= wall_ms, islice(behind, COUNTED_MAX))  # noqa: B023
            came.add(1 + sum(1 for _ in passed) if next_ms <= wall_ms else 0)
    return sorted(came)


def _believed_ms(watch: Watch, lane: bytes) -> int:
    """Return what somebody has vouched for of the server's clock: nobody comes for later times.

    Who changes a schedule is told TIME itself, which may have stepped just now.
    """
    told = watch.server.keyspace.keys.get(lane) or {}
    return int(told.get(b"seen") or 0) - int(told.get(b"offset") or 0)


def _every_ms(text: bytes) -> int:
    """Return how far apart the times of a schedule are: ours have all the same between them."""
    schedule = parse("", text)
    assert schedule is not None
    first_ms, second_ms = islice(times(schedule.when, 0), 2)
    return second_ms - first_ms


def _of(text: bytes, rest: bytes) -> tuple[str, str]:
    """Return the key and the id of the job that a message makes."""
    _, _, _, key_size, id_size, *_ = text.partition(b"\n")[0].decode().split(" ")
    at = int(key_size)
    return rest[:at].decode(), rest[at : at + int(id_size)].decode()
