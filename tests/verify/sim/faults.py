"""What goes wrong in a simulated world, and the network through which most of it does."""

from __future__ import annotations

import math
import random
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

import attrs

from pool.names import Control, Names, hash_tag
from pool.redis.commands.admission import DISPATCH
from pool.redis.commands.lane import Lane
from pool.redis.commands.recovery import FENCE
from tests.verify.history import CONTROL, Recorder
from tests.verify.sim.config import DOES, FAULTS, Config
from tests.verify.sim.keyspace import SortedSet
from tests.verify.sim.reading import lane_in
from tests.verify.sim.server import SCRIPTS, Arriving, Server, resp
from tests.verify.sim.streams import CommandError
from tests.verify.sim.world import Process, World

POOL: Final = "sim"
_HOUR_S: Final = 3600.0  # by which the server's clock steps at most, either way
_RARELY: Final = 0.05  # the chance of what a node hardly feels
_LATENCY_S: Final = (0.0002, 0.002)  # of each way, when nothing is wrong
_DISPATCH: Final = DISPATCH.sha.encode()
_FENCE: Final = FENCE.sha.encode()
_UNGRANTED: Final = (b"OK -", b"OK unassigned")
_WINDOWS: Final = (
    *(
        "slow",
        "thin",
        "lossy-requests",
        "lossy-replies",
        "late",
        "torn",
        "resets",
        "partition",
        "garbage",
    ),
)
# What hardly any command of ours is answered with.  No error that says that nothing was done: what
# lies about that nobody can tell from the truth.
_GARBAGE: Final = (
    *map(resp, (None, 17, -1, b"", b"?", [], [None], [[b"x", 1]], [b"OK", [b"OK"]])),
    *map(resp, map(CommandError, ("ERR what", "POOLMAPFULL", "POOLWHAT"))),
    *(b"%1\r\n$1\r\na\r\n*1\r\n:1\r\n", b",1.5\r\n", b"#t\r\n"),
)
# What is no reply at all.
_NOISE: Final = (b"?what\r\n", b"HTTP/1.1 400\r\n\r\n", b"$9999999999999999999999\r\n", b"*-5\r\n")
# Which keys can be made again from records, or by who reads them; of whom one member is taken away,
# or all.
_INDEXES: Final = (
    *("open", "owned", "due", "handlers", "pending", "unassigned", "keepalive", "signal"),
)
# What is one map's, or one stream's, and whose it is; of a sink's keys, the stream's.
_DATA: Final = re.compile(
    rb"pool:\{%s\}:(?:map-\w+|stream|stream-\w+|sink(?:-\w+)?:\d+):([a-z0-9]+)" % POOL.encode()
)
ONLY_WALKED: Final = {"owned", "due", "pending", "unassigned", "keepalive"}  # not by renewals
FOUND_TTLS: Final = 6.0  # two passes of the walk and a lease; by then what was lost is found


class Fleet(Protocol):
    """The nodes, as faults see them."""

    @property
    def names(self) -> Sequence[str]:
        """All nodes."""

    def process(self, name: str) -> Process | None:
        """Return the process of a node that is up."""

    def crash(self, name: str, down_s: float) -> None:
        """End a node's process at once; another one begins later."""

    def leave(self, name: str, down_s: float) -> None:
        """Tell a node to leave; another one begins later."""

    def cling(self, name: str, until_s: float) -> None:
        """Have handlers that are cancelled go on until then; of one node, or of all."""

    def alive(self) -> Sequence[str]:
        """Return the identities that living processes have in their lanes."""

    def change_worker(self, name: str, grace_s: float) -> None:
        """Have a node remove a worker, if it has several, and add another."""


@attrs.frozen(eq=False)
class Window:
    """A condition of the network, for one node or for all."""

    target: str
    chance: float  # that a message is met by it
    size_s: float
    way: str = ""
    bytes_per_s: float = 0.0


@attrs.define(eq=False)
class Fuse:
    """A crash that waits for a command."""

    calls: int  # left until it
    is_applied: bool  # whether that command is still carried out
    down_s: float
    counts: Callable[[Sequence[bytes]], bool] = lambda _: True
    kind: str = "crash-at-call"


class Weather:
    """The network: latency, and whatever the present windows do to messages."""

    def __init__(self, dice: random.Random) -> None:
        self.windows: dict[str, list[Window]] = {kind: [] for kind in _WINDOWS}
        self.fuses: dict[Process, Fuse] = {}
        self.traps: list[Fuse] = []  # for whoever claims next what a dead one owned
        self.on_grant: list[Callable[[], object]] = []  # called once, when a key has been granted
        self.on_fuse: Callable[[Process, Fuse], object] = lambda *_: None
        self.on_command: Callable[[Process, Sequence[bytes]], object] = lambda *_: None
        self._dice = dice
        self._is_fair = True  # no window is open

    def open(self, kind: str, window: Window) -> None:
        self.windows[kind].append(window)
        self._is_fair = False

    def close(self, kind: str, window: Window) -> None:
        self.windows[kind].remove(window)
        self._is_fair = not any(self.windows.values())

    def _met(self, kind: str, process: Process) -> Window | None:
        for window in self.windows[kind]:
            if window.target in ("", process.node) and self._dice.random() < window.chance:
                return window
        return None

    def _way(self, process: Process, lossy: str, way: str) -> float | None:
        delay_s = self._dice.uniform(*_LATENCY_S)
        if self._is_fair:
            return delay_s
        if self._met(lossy, process):
            return None
        if any(w.target == process.node and w.way in ("", way) for w in self.windows["partition"]):
            return None
        if slow := self._met("slow", process):
            delay_s += self._dice.uniform(0.0, slow.size_s)
        if way == "requests" and (late := self._met("late", process)):
            delay_s += self._dice.uniform(late.size_s / 3, late.size_s)
        return delay_s

    def request_s(self, process: Process) -> float | None:
        return self._way(process, "lossy-requests", "requests")

    def reply_s(self, process: Process) -> float | None:
        return self._way(process, "lossy-replies", "replies")

    def bytes_per_s(self, process: Process) -> float:
        for window in self.windows["thin"] if not self._is_fair else ():
            if window.target in ("", process.node):
                return window.bytes_per_s
        return 0.0

    def is_reset(self, process: Process) -> bool:
        return not self._is_fair and self._met("resets", process) is not None

    def split(self, process: Process, count: int) -> int:
        if self._is_fair or count < 2 or not self._met("torn", process):
            return count
        return self._dice.randrange(1, count)

    def garbled(self, process: Process, replies: list[bytes]) -> Arriving:
        if self._is_fair or not (window := self._met("garbage", process)):
            return Arriving(b"".join(replies))
        dice, at = self._dice, self._dice.randrange(len(replies))
        what = dice.choice((*_GARBAGE, dice.choice(replies)))
        match dice.choice(("other", "other", "stray", "late", "torn", "end", "noise")):
            case "other":
                return Arriving(
                    b"".join([*replies[:at], dice.choice(_GARBAGE), *replies[at + 1 :]])
                )
            case "stray":
                return Arriving(b"".join([*replies[:at], what, *replies[at:]]))
            case "late":
                return Arriving(b"".join(replies), late=what, late_s=dice.uniform(0, window.size_s))
            case "noise":
                return Arriving(b"".join([*replies[:at], dice.choice(_NOISE), *replies[at:]]))
            case how:
                data = b"".join(replies)
                return Arriving(data[: dice.randrange(len(data))], is_end=how == "end")

    def before(self, process: Process, words: Sequence[bytes]) -> bool:
        fuse = self.fuses.get(process)
        if fuse is None or not fuse.counts(words):
            return True
        if fuse.calls <= 1 and not fuse.is_applied:
            self._burn(process, fuse)
            return False
        return True

    def after(self, process: Process, words: Sequence[bytes], reply: Any) -> None:
        self.on_command(process, words)
        if len(words) < 2:
            return  # TIME
        if self.traps and words[1] == _FENCE and isinstance(reply, list) and len(reply) > 1:
            self.fuses[process] = self.traps.pop()
        if self.on_grant and words[1] == _DISPATCH and _has_granted(reply):
            for fn in self.on_grant:
                fn()
            self.on_grant.clear()
        fuse = self.fuses.get(process)
        if fuse is not None and fuse.counts(words):
            fuse.calls -= 1
            if fuse.calls <= 0:
                self._burn(process, fuse)

    def _burn(self, process: Process, fuse: Fuse) -> None:
        del self.fuses[process]
        self.on_fuse(process, fuse)


def _has_granted(reply: Any) -> bool:
    answers = reply if isinstance(reply, list) else ()
    return any(each.startswith(b"OK ") and each not in _UNGRANTED for each in answers)


class Faults:
    """Plans the faults of one seed, and carries them out."""

    def __init__(
        self,
        config: Config,
        world: World,
        server: Server,
        weather: Weather,
        fleet: Fleet,
        record: Recorder,
    ) -> None:
        self._config = config
        self._world = world
        self._server = server
        self._weather = weather
        self._fleet = fleet
        self._record = record
        self._numbers = 0
        self._silent_until_s = 0.0  # silences that come again and again
        self._foreign_over: set[bytes] = set()  # keys where a foreign value was, and is no more
        self._going: dict[int, Callable[[], object]] = {}
        weather.on_fuse = self._on_fuse

    def plan(self) -> None:
        """Put all faults of this seed on the world's calendar."""
        for kind in self._config.faults:
            dice = self._world.dice(f"fault/{kind}")
            at_s = 0.5 + dice.expovariate(1 / self._config.pace_s)
            while at_s < self._config.chaos_s:
                # Everything is thrown now: what other faults do must not change this one.
                throw = random.Random(dice.random())
                if kind == "old-primary":
                    ago_s = self._config.ttl_s * throw.choice((0.01, 0.1, 0.4))
                    self._world.at(max(0.0, at_s - ago_s), self._save_for, at_s, throw)
                elif kind in ("lost-suffix", "fork-behind"):
                    ago_s = throw.choice((0.005, 0.05, 0.5, 2.0)) * throw.random()
                    back_s = throw.choice((ago_s, 1.0, _HOUR_S)) if kind == "fork-behind" else 0.0
                    self._world.at(max(0.0, at_s - ago_s), self._lose_from_now, kind, at_s, back_s)
                else:
                    self._world.at(at_s, self._strike, kind, throw)
                at_s += dice.expovariate(1 / self._config.pace_s)
        if "ttl" in self._config.shapes:  # which only `test_ttl` asks for
            self._plan_ttls()
        self._world.at(self._config.chaos_s, self.heal)

    def _plan_ttls(self) -> None:
        """Change the TTL now and then, at times of some lanes only; in the end it is as it was."""
        config, dice = self._config, self._world.dice("ttl")
        self._change_ttl(config.ttl_s, ())
        at_s = 1.0 + dice.expovariate(1 / config.pace_s)
        while at_s < config.chaos_s:
            self._world.at(at_s, self._change_ttl, *self._drawn_ttl(dice))
            at_s += dice.expovariate(2 / config.pace_s)
        self._world.at(config.chaos_s, self._change_ttl, config.ttl_s, range(config.lanes))

    def _drawn_ttl(self, dice: random.Random) -> tuple[float, list[int]]:
        """Return another TTL, and the lanes that hear of it."""
        ttl_s = max(1.0, self._config.ttl_s * dice.choice((0.2, 0.5, 1.0)))
        return ttl_s, [number for number in range(self._config.lanes) if dice.random() < 0.8]

    def _change_ttl(self, ttl_s: float, numbers: Iterable[int]) -> None:
        """Do what `pool ttl` does, if it dies behind these lanes."""
        ttl_ms = round(1000 * ttl_s)
        config = Control(POOL).config.encode()
        self._server.keyspace.run(b"HSET", config, b"ttl", str(ttl_ms).encode())
        for number in numbers:
            names = Names(POOL, number)
            keyspace = self._server.at(hash_tag(names.prefix)).keyspace
            made_as = keyspace.run(b"HGET", names.lane.encode(), b"incarnation")
            call = Lane(names, (made_as or b"").decode()).change_ttl(ttl_ms)
            sha = SCRIPTS.load(call.script.source.encode())
            args = [str(arg).encode() for arg in call.args]
            with suppress(CommandError):  # nobody has joined it yet
                before, _ = SCRIPTS.run(keyspace, sha, [key.encode() for key in call.keys], args)
                if int(before) != ttl_ms:
                    facts = {"lane": str(number), "before_s": int(before) / 1000, "s": ttl_s}
                    self._record("ttl", extra=facts)

    def heal(self) -> None:
        """End every fault that is in effect."""
        self._weather.fuses.clear()
        self._weather.traps.clear()
        self._weather.on_grant.clear()
        for number in list(self._going):
            self._end(number)
        self._record("heal")

    def excuse(self, kind: str, target: str, down_s: float, by: str = "") -> None:
        """Write into the history that a node is away; it may make its jobs move, and move back."""
        self._begin(kind, target, down_s, _nothing, weight=2, by=by)

    def block(self, kind: str, process: Process, seconds: float) -> None:
        """Hang a process's loop from inside of it."""
        process.hang()
        self._begin(kind, process.node, seconds, process.unhang, weight=2)

    # --- one fault ---

    def _strike(self, kind: str, dice: random.Random) -> None:
        ttl_s = self._config.ttl_s
        seconds = ttl_s * dice.choice((0.1, 0.3, 0.6, 1.0, 1.5, 3.0)) * dice.uniform(0.7, 1.3)
        target = dice.choice(self._fleet.names)
        match kind:
            case "partition":
                window = Window(target, 1.0, 0.0, dice.choice(("", "", "requests", "replies")))
                name = f"{window.way}-lost" if window.way else "partition"
                self._open(kind, window, seconds, name)
            case (
                "slow" | "late" | "lossy-requests" | "lossy-replies" | "torn" | "resets" | "garbage"
            ):
                chance = dice.choice((_RARELY, 0.3, 0.7)) if kind != "slow" else 1.0
                size_s = ttl_s * dice.choice((0.02, 0.1, 0.4))
                if kind == "garbage":  # more, and nobody is left who could be judged
                    chance = dice.choice((0.01, _RARELY, 0.1))
                if kind == "late":
                    size_s = self._config.op_timeout_s * dice.choice((1.0, 3.0))
                window = Window(dice.choice((target, target, "")), chance, size_s)
                self._open(kind, window, seconds, kind)
            case "thin":
                rate = dice.choice((10_000.0, 30_000.0, 100_000.0))
                window = Window(dice.choice((target, target, "")), 1.0, 0.0, bytes_per_s=rate)
                self._open(kind, window, seconds, kind)
            case "crash":
                self._crash(kind, target, ttl_s * dice.uniform(0.02, 2.0))
            case "crash-two":
                others = [name for name in self._fleet.names if name != target]
                for name in (target, *([dice.choice(others)] if others else ())):
                    self._crash(kind, name, ttl_s * dice.uniform(0.5, 3.0))
            case "spot-wave":
                names = [*self._fleet.names]
                for name in dice.sample(names, dice.randint(1, len(names))):
                    self._crash(kind, name, ttl_s * dice.uniform(0.02, 2.0))
            case "host-dies":  # each second node is on one host, the others are on another
                down_s, first = ttl_s * dice.uniform(0.1, 3.0), dice.randrange(2)
                for name in [*self._fleet.names][first::2]:
                    self._crash(kind, name, down_s)
            case "killed-again":
                up_s = dice.choice((0.3, 0.5, 0.8, 0.4 * ttl_s))
                self._kill_again(kind, target, dice.randint(3, 8), up_s)
            case "drain-killed":
                if self._fleet.process(target) is not None:
                    down_s = ttl_s * dice.uniform(0.02, 1.0)
                    self.excuse("leave", target, down_s)
                    self._fleet.leave(target, down_s)
                    self._world.after(dice.choice((0.1, 1.0)), self._crash, kind, target, down_s)
            case "crash-at-call":
                process = self._fleet.process(target)
                if process is not None:
                    down_s = ttl_s * dice.uniform(0.02, 2.0)
                    fuse = Fuse(dice.randint(1, 30), dice.random() < 0.5, down_s)
                    self._weather.fuses[process] = fuse
            case "crash-in-reap":
                self._crash("crash", target, ttl_s * dice.uniform(0.02, 2.0))
                calls, down_s = dice.randint(1, 4), ttl_s * dice.uniform(0.02, 2.0)
                fuse = Fuse(calls, dice.random() < 0.5, down_s, kind=kind)
                self._weather.traps.append(fuse)
            case "change-worker":
                if self._fleet.process(target) is not None:
                    grace_s = dice.choice((0.0, 0.0, seconds))
                    self.excuse(kind, target, grace_s + 2 * ttl_s)  # it may have to be reaped
                    self._fleet.change_worker(target, grace_s)
                    if "stubborn" in self._config.faults:  # until its keys have come back, too
                        self._cling(target, grace_s + 4 * ttl_s)
            case "stubborn":
                self._cling(dice.choice((target, "")), seconds)
            case "leave":
                if self._fleet.process(target) is not None:
                    down_s = ttl_s * dice.uniform(0.02, 1.0)
                    self.excuse(kind, target, down_s)
                    self._fleet.leave(target, down_s)
            case "pause" | "hang":
                self._hold(kind, target, seconds)
            case "freeze-all":
                self._freeze_all(dice.randint(1, 5), seconds)
            case "full":
                self._fill(seconds)
            case "lost-index":
                self._lose_index(dice)
            case "lost-data-key":
                self._lose_data_key(dice)
            case "foreign-data":
                self._put_foreign(dice, seconds)
            case "lane-stall" | "lane-restart" | "lane-wipe":
                self._hurt_lane(kind, dice, seconds)
            case "restart":
                self._restart(seconds / 2)
            case "stall":
                seconds = min(seconds, self._config.chaos_s - self._world.now_s)
                self._begin(kind, "", seconds, self._each(Server.go_on))
                self._each(lambda server: server.stall(seconds))()
            case "script-flush":
                self._each(Server.flush_scripts)()
                self._begin(kind, "", 0.0, _nothing)
            case "clock-forward":
                self._step_clock(kind, self._step_s(dice, seconds))
            case "clock-back":
                self._step_clock(kind, -self._step_s(dice, seconds))
            case "silences":
                self._fall_silent(dice, target, dice.randint(3, 10))
            case "line-silences":
                others = [*self._fleet.names][1:] or [target]
                nodes = [target] if dice.random() < 0.6 else others
                way = dice.choice(("", "", "requests", "replies"))
                self._cut_again(dice, nodes, way, dice.randint(2, 6))
            case "wipe":
                self._lose(kind, ({}, {}))
            case "wipe-behind":
                after_s = ttl_s * dice.choice((0.1, 1.0, 2.0)) * dice.uniform(0.7, 1.3)
                if self._world.now_s + after_s < self._config.chaos_s:
                    self._step_clock("clock-back", -self._step_s(dice, seconds))
                    self._world.after(after_s, self._lose, kind, ({}, {}))
            case "lost-since-grant":
                since_s = dice.choice((0.05, 0.5, 2.0)) * dice.random()
                self._weather.on_grant.append(lambda: self._lose_later(kind, since_s))
            case _:
                raise AssertionError(kind)

    def _open(
        self,
        kind: str,
        window: Window,
        seconds: float,
        name: str,
        facts: Mapping[str, str] | None = None,
    ) -> None:
        self._weather.open(kind, window)
        self._begin(
            kind,
            window.target,
            seconds,
            lambda: self._weather.close(kind, window),
            name=name,
            weight=2 + 2 * math.ceil(seconds / self._config.ttl_s),
            # A connection takes several requests to make again: reset often, it is never there.
            does="cut" if kind == "resets" and window.chance > _RARELY else FAULTS[kind],
            facts=facts,
        )

    def _crash(self, kind: str, target: str, down_s: float) -> None:
        if self._fleet.process(target) is not None:
            self.excuse(kind, target, down_s)
            self._fleet.crash(target, down_s)

    def _kill_again(self, kind: str, target: str, times: int, up_s: float) -> None:
        """Kill a node, and again when it has been back for a while, so often."""
        down_s = self._config.ttl_s * 0.05
        for number in range(times):
            at_s = self._world.now_s + number * (down_s + up_s)
            if at_s < self._config.chaos_s:
                self._world.at(at_s, self._crash, kind, target, down_s)

    def _on_fuse(self, process: Process, fuse: Fuse) -> None:
        if self._fleet.process(process.node) is process:
            self._crash(fuse.kind, process.node, fuse.down_s)

    def _hold(self, kind: str, target: str, seconds: float) -> None:
        process = self._fleet.process(target)
        if process is None or process.is_frozen or process.is_hung:
            return
        if kind == "pause":
            process.freeze()
            self._begin(kind, target, seconds, process.thaw, weight=2)
        else:
            process.hang()
            self._begin(kind, target, seconds, process.unhang, weight=2)

    def _freeze_all(self, times: int, seconds: float) -> None:
        """Have all processes stand still, and go on for a while, so often."""
        held = [
            process
            for name in self._fleet.names
            if (process := self._fleet.process(name)) and not process.is_frozen
        ]
        for process in held:
            process.freeze()

        def thaw() -> None:
            for process in held:
                process.thaw()

        self._begin("freeze-all", "", seconds, thaw, weight=2)
        again_s = seconds + self._config.ttl_s * 1.2
        if times > 1 and self._world.now_s + again_s < self._config.chaos_s:
            self._world.after(again_s, self._freeze_all, times - 1, seconds)

    def _cling(self, target: str, seconds: float) -> None:
        self._fleet.cling(target, min(self._world.now_s + seconds, self._config.chaos_s))
        self._begin("stubborn", target, seconds, _nothing)

    def _fall_silent(self, dice: random.Random, target: str, times: int) -> None:
        """Have the server stand still, and answer for a while, so often; a node dies meanwhile, or
        the clock steps.
        """
        config, world = self._config, self._world
        if world.now_s < self._silent_until_s:
            return
        silent_s = config.ttl_s * dice.choice((0.1, 0.3, 0.5, 0.7, 1.0))
        answers_s = config.ttl_s * dice.choice((0.15, 0.3, 0.5, 1.0, 2.0))
        at_s, spread = world.now_s, dice.choice((0.0, 0.5))
        for number in range(times):
            seconds = silent_s * dice.uniform(1.0 - spread, 1.0 + spread)
            if at_s + seconds < config.chaos_s:
                world.at(at_s, self._stall_for, seconds)
                if "ttl" in config.shapes:  # asked for before, carried out while nobody is answered
                    own = random.Random(f"{config.seed}/ttl/{at_s}")
                    at = at_s + seconds * own.random()
                    world.at(at, self._change_ttl, *self._drawn_ttl(own))
                if number == 1 and dice.random() < 0.15:
                    kind = dice.choice(("clock-forward", "clock-back"))
                    step_s = self._step_s(dice, seconds) * (1 if kind == "clock-forward" else -1)
                    world.at(at_s + seconds / 2, self._step_clock, kind, step_s)
            at_s += seconds + answers_s * dice.uniform(1.0 - spread, 1.0 + spread)
        self._silent_until_s = at_s
        down_s = config.ttl_s * dice.choice((0.5, 6.0, 12.0))
        world.after(dice.uniform(0.0, silent_s + answers_s), self._crash, "crash", target, down_s)

    def _stall_for(self, seconds: float) -> None:
        self._begin("silences", "", seconds, self._each(Server.go_on))
        self._each(lambda server: server.stall(seconds))()

    def _cut_again(self, dice: random.Random, nodes: Sequence[str], way: str, times: int) -> None:
        """Have nothing get through to these nodes, and then all, so often."""
        ttl_s, at_s = self._config.ttl_s, self._world.now_s
        silent_s, answers_s = ttl_s * dice.choice((0.3, 0.5, 1.0)), ttl_s * dice.choice((0.3, 0.5))
        for _ in range(times):
            if at_s + silent_s < self._config.chaos_s:
                for name in nodes:
                    window = Window(name, 1.0, 0.0, way)
                    title = f"{way}-lost" if way else "partition"
                    facts = {"drawn": "line-silences"}
                    self._world.at(at_s, self._open, "partition", window, silent_s, title, facts)
            at_s += silent_s + answers_s

    def _save_for(self, at_s: float, dice: random.Random) -> None:
        saved, since = self._server.keyspace.copy_of_all(), self._world.now_s
        target = dice.choice(self._fleet.names)
        seconds = self._config.ttl_s * dice.choice((0.5, 1.5, 3.0))
        self._world.at(at_s, self._fail_over, saved, since, target, seconds)

    def _fail_over(self, saved: Any, since: float, target: str, seconds: float) -> None:
        """Have a replica take over that lacks what came last; one node does not get through to it.

        Its last renewals are among that, and it believes in them.
        """
        self._lose("old-primary", saved, since)
        self._open("partition", Window(target, 1.0, 0.0), seconds, "partition")

    def _restart(self, seconds: float) -> None:
        if self._server.is_up:
            self._each(Server.stop)()
            weight = 2 + math.ceil(seconds / self._config.ttl_s)
            self._begin("restart", "", seconds, self._each(Server.start), weight=weight)

    def _each(self, fn: Callable[[Server], object]) -> Callable[[], object]:
        """Return what does something to all servers."""
        return lambda: [fn(server) for server in self._server.all]

    def _fill(self, seconds: float) -> None:
        def be(is_full: bool) -> Callable[[Server], object]:
            return lambda server: setattr(server, "is_full", is_full)

        self._each(be(True))()
        self._begin("full", "", seconds, self._each(be(False)))

    def _lose_index(self, dice: random.Random) -> None:
        """Delete a key, or a member of it, that records tell how to make again."""
        keys, kind = self._server.keyspace.keys, dice.choice(_INDEXES)
        named = [key for key in keys if key.partition(b"}:")[2].split(b":")[0] == kind.encode()]
        if not named:
            return
        key = dice.choice(sorted(named))
        facts = {"index": kind, "index_lane": lane_in(key), "member": ""}  # "": all of them
        if kind == "signal":
            self._server.keyspace.run(b"DEL", key)
            self._begin("lost-index", "", FOUND_TTLS * self._config.ttl_s, _nothing, facts=facts)
            return
        value = keys[key]
        members = sorted(value.scores if isinstance(value, SortedSet) else value)
        if kind == "keepalive":  # whose lease is gone and who lives would have to join again
            alive = {name.encode() for name in self._fleet.alive()}
            members = [member for member in members if member not in alive]
            facts["index"] = kind if members else ""
        elif dice.random() < 0.5:
            del keys[key]
            members = []
        if members:
            remove = b"ZREM" if isinstance(value, SortedSet) else b"HDEL"
            remove = b"SREM" if kind == "owned" else remove
            member = dice.choice(members)
            self._server.keyspace.run(remove, key, member)
            facts["member"] = member.decode(errors="replace")
        self._begin("lost-index", "", FOUND_TTLS * self._config.ttl_s, _nothing, facts=facts)

    def _data_key(self, dice: random.Random) -> tuple[bytes, str]:
        """Return a key of a map or of a stream of users', and the name of that."""
        found = [
            (key, match[1].decode())
            for key in self._server.keyspace.keys
            if (match := _DATA.match(key)) and match[1] != b"workers"
        ]
        return dice.choice(sorted(found)) if found else (b"", "")

    def _lose_data_key(self, dice: random.Random) -> None:
        """Delete a key of a map or of a stream; or, of a stream, a sink's group."""
        key, name = self._data_key(dice)
        groups = sorted(getattr(self._server.keyspace.keys.get(key), "groups", ()))
        if groups and dice.random() < 0.5:
            self._server.keyspace.run(b"XGROUP", b"DESTROY", key, dice.choice(groups))
        elif key:
            self._server.keyspace.run(b"DEL", key)
        self._begin("lost-data-key", "", 0.0, _nothing, of=name)

    def _put_foreign(self, dice: random.Random, seconds: float) -> None:
        """Have something else be under a key of a map or of a stream, and then nothing."""
        key, name = self._data_key(dice)
        keyspace = self._server.keyspace
        if key:
            keyspace.run(b"DEL", key)
            words = dice.choice(
                ((b"SET", b"foreign"), (b"RPUSH", b"foreign"), (b"HSET", b"f", b"v"))
            )
            keyspace.run(words[0], key, *words[1:])

        def end() -> None:
            if key:
                keyspace.run(b"DEL", key)
                self._foreign_over.add(key)

        self._begin("foreign-data", "", seconds, end, of=name)

    def _tidy(self) -> None:
        """Take away what a loss has brought back of foreign values that had been taken away."""
        keyspace = self._server.keyspace
        for key in self._foreign_over:
            found = keyspace.keys.get(key)
            is_hash = isinstance(found, dict) and b"f" in found
            if is_hash or found == b"foreign" or found == deque([b"foreign"]):
                keyspace.run(b"DEL", key)

    def _hurt_lane(self, kind: str, dice: random.Random, seconds: float) -> None:
        """Hurt the server of one lane alone; or wipe that of the control keys."""
        lanes = self._config.lanes
        number = dice.randrange(lanes + 1 if kind == "lane-wipe" else lanes)
        is_control = number == lanes
        prefix = Control(POOL).prefix if is_control else Names(POOL, number).prefix
        server, lane = self._server.at(hash_tag(prefix)), CONTROL if is_control else str(number)
        weight = 2 + math.ceil(seconds / self._config.ttl_s)
        match kind:
            case "lane-stall":
                seconds = min(seconds, self._config.chaos_s - self._world.now_s)
                server.stall(seconds)
                self._begin(kind, "", seconds, server.go_on, weight=weight, lane=lane)
            case "lane-restart" if server.is_up:
                server.stop()
                self._begin(kind, "", seconds / 2, server.start, weight=weight, lane=lane)
            case "lane-wipe":
                server.cut_all()
                server.be_another()
                server.flush_scripts()
                for key in [k for k in server.keyspace.keys if k.startswith(prefix.encode())]:
                    server.keyspace.run(b"DEL", key)
                self._begin(kind, "", 0.0, _nothing, weight=3, lane=lane)

    def _step_s(self, dice: random.Random, seconds: float) -> float:
        """Return by how much the clock steps: by an hour only where somebody is there to see it."""
        found = [self._fleet.process(name) for name in self._fleet.names]
        sees = any(each and not (each.is_frozen or each.is_hung) for each in found)
        return dice.choice((seconds, _HOUR_S if sees else seconds))

    def _step_clock(self, kind: str, seconds: float) -> None:
        step_us = round(seconds * 1_000_000)
        self._server.clock_step_us += step_us
        self._begin(kind, "", 0.0, _nothing, weight=2, step_s=seconds)

    def _lose_from_now(self, kind: str, at_s: float, back_s: float) -> None:
        saved, since = self._server.keyspace.copy_of_all(), self._world.now_s

        def lose() -> None:
            if back_s:
                self._server.clock_step_us -= round(back_s * 1_000_000)
                self._begin("clock-back", "", 0.0, _nothing, weight=2, step_s=-back_s)
            self._lose(kind, saved, since)

        self._world.at(at_s, lose)

    def _lose_later(self, kind: str, after_s: float) -> None:
        if self._world.now_s + after_s < self._config.chaos_s:
            saved, since = self._server.keyspace.copy_of_all(), self._world.now_s
            self._world.after(after_s, self._lose, kind, saved, since)

    def _lose(self, kind: str, saved: Any, since: float = -math.inf) -> None:
        self._each(Server.cut_all)()
        self._each(Server.be_another)()
        self._each(Server.flush_scripts)()
        self._server.keyspace.restore(saved)
        self._tidy()
        self._begin(kind, "", 0.0, _nothing, weight=3, since=since)

    # --- in the history ---

    def _begin(
        self,
        kind: str,
        target: str,
        seconds: float,
        end: Callable[[], object],
        *,
        name: str = "",
        weight: int = 1,
        does: str = "",
        lane: str = "",
        since: float = -math.inf,
        step_s: float = 0.0,
        by: str = "",
        of: str = "",
        facts: Mapping[str, str] | None = None,  # of what only this kind has
    ) -> None:
        self._numbers += 1
        number = self._numbers
        extra: dict[str, Any] = {
            "id": number,
            "kind": name or kind,
            "does": does or DOES[kind],
            "target": target,
            **(facts or {}),
        }
        if lane:
            extra["lane"] = lane
        if by:
            extra["by"] = by
        if of:
            extra["of"] = of
        if step_s:
            extra["step_s"] = round(step_s, 3)
        if since > -math.inf:
            extra["since"] = since
        self._record("fault", "invoke", extra={**extra, "weight": weight, "s": round(seconds, 3)})
        self._going[number] = end
        if seconds:
            ends_s = min(self._world.now_s + seconds, self._config.chaos_s)
            self._world.at(ends_s, self._end, number)
        else:
            self._end(number)

    def _end(self, number: int) -> None:
        end = self._going.pop(number, None)
        if end is not None:
            end()
            self._record("fault", extra={"id": number})


def _nothing() -> None:
    pass
