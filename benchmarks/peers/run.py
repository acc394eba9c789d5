"""The whole comparison: all peers by turns, several times; then what takes long, side by side.

Before each part the machine is given time to come to rest (`quiet.py`).  An adapter that fails is
reported with its error, and the others go on.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain
from typing import Any, Final, TypeAlias

import attrs

from benchmarks.peers.environments import OURS, ROOT, prepare
from benchmarks.peers.measure import ROOM, Bench, Crash, Rest, Rounds, Sizes, raw
from benchmarks.peers.metrics import GOALS
from benchmarks.peers.protocol import Setting
from benchmarks.peers.quiet import WAIT_S, wait_quiet
from benchmarks.peers.stage import Peer
from pool.redis.embedded.server import ServerProgram

GROUPS: Final = ("dispatch", "drain", "latency", "load", "rest", "recovery")
RAW_COUNT: Final = 10_000
SETTLE_S: Final = 1.0
QUICK_S: Final = 3.0  # a recovery that takes no longer is over before the next peer starts
LOOK_S: Final = 0.1

Recoveries: TypeAlias = dict[str, list[dict[str, Any]]]  # part -> one of each repetition


@attrs.define
class Comparison:
    """A run over all peers."""

    program: ServerProgram
    sizes: Sizes
    groups: Sequence[str]
    wait_s: float = WAIT_S  # for the machine to come to rest, before each part
    benches: dict[str, Bench] = attrs.field(init=False, factory=dict)
    raw: Rounds = attrs.field(init=False)
    quiet: list[dict[str, Any]] = attrs.field(init=False, factory=list)
    errors: dict[str, dict[str, str]] = attrs.field(init=False, factory=dict)
    recoveries: dict[str, Recoveries] = attrs.field(init=False, factory=dict)

    def __attrs_post_init__(self) -> None:
        self.raw = Rounds(self.sizes.repeats)

    def run(self, names: Sequence[str], *, is_upgrade: bool = False) -> None:
        """Measure."""
        for name in names:
            with self._guard(name, "environment"):
                prepare(name, is_upgrade=is_upgrade)
                peer = Peer.of(name)
                rounds = Rounds(self.sizes.repeats)
                self.benches[name] = Bench(self.program, peer, self.sizes, rounds)
        for number in range(self.sizes.repeats):
            self._begin(f"repetition {number + 1}")
            note = partial(self.raw.note, repetition=number)
            raw(self.program, note, count=RAW_COUNT)
            for name in self._by_turns(number):
                self.benches[name].repetition = number
                self._once(name)
        if "rest" in self.groups:
            self._rest()
        if "recovery" in self.groups:
            self._recovery()

    def _begin(self, part: str) -> None:
        self.quiet.append(wait_quiet(part, self.wait_s))
        _say(", ".join(f"{name} {each}" for name, each in self.quiet[-1].items()))

    def _by_turns(self, number: int) -> list[str]:
        """Forwards and backwards, so that nobody always comes after the same one."""
        order = list(self.benches)
        return order if number % 2 == 0 else order[::-1]

    @contextmanager
    def _guard(self, name: str, part: str) -> Iterator[None]:
        try:
            yield
        # One peer's fault, whatever it is, must not cost the others their figures.
        except Exception as error:  # noqa: BLE001
            _say(f"{name}, {part}: {error}")
            # The last line says what; the others are paths of this machine.
            last = str(error).strip().rpartition("\n")[2].replace(str(ROOT), ".")
            self.errors.setdefault(name, {})[part] = f"{type(error).__name__}: {last}"

    def _once(self, name: str) -> None:
        bench = self.benches[name]
        parts: dict[str, tuple[str, Callable[[], None]]] = {
            "dispatch": ("dispatch", bench.dispatch),
            "drain 1": ("drain", lambda: bench.drain(1)),
            "drain 2": ("drain", lambda: bench.drain(2)),
            "latency": ("latency", bench.latencies),
            "load": ("load", bench.load),
        }
        for part, (group, measure) in parts.items():
            if group in self.groups:
                with self._guard(name, part):
                    began_s = time.monotonic()
                    measure()
                    _say(f"  {name}, {part}: {time.monotonic() - began_s:.1f} s")

    # --- side by side -----------------------------------------------------------------------------

    def _rest(self) -> None:
        """All peers at rest at the same time, each with its own server: none does much."""
        self._begin("at rest")
        ready: list[Rest] = []
        with ExitStack() as stack:
            for name, bench in self.benches.items():
                rest = Rest(bench, bench.stage())
                stack.callback(rest.stage.close)
                with self._guard(name, "rest"):
                    rest.stage.__enter__()
                    rest.prepare()
                    ready.append(rest)
            time.sleep(self.sizes.alone_s)
            for number in range(self.sizes.repeats):
                for rest in ready:
                    rest.begin(number)
                time.sleep(self.sizes.rest_s)
                for rest in ready:
                    with self._guard(rest.bench.peer.name, "rest"):
                        rest.end()

    def _recovery(self) -> None:
        """Kill one peer's worker after another's; what takes long is waited for side by side.

        One at a time, because a lease of a second does not survive that everybody starts at once.
        """
        self._begin("recovery")
        open_ones: list[tuple[str, str, Crash]] = []
        with ExitStack() as stack:
            for name, part, crash in chain(self._crashes("usual"), self._crashes("safe")):
                began_s = time.monotonic()
                stack.callback(crash.stage.close)
                with self._guard(name, part):
                    crash.stage.__enter__()
                    crash.prepare()
                    time.sleep(SETTLE_S)
                    crash.kill()
                    open_ones.append((name, part, crash))
                    end_s = time.monotonic() + QUICK_S
                    while not crash.look() and time.monotonic() < end_s:
                        time.sleep(LOOK_S)
                _say(f"  {name}, {part}: {time.monotonic() - began_s:.1f} s")
                self._look_at(open_ones)
            while open_ones:
                time.sleep(LOOK_S)
                self._look_at(open_ones)

    def _look_at(self, open_ones: list[tuple[str, str, Crash]]) -> None:
        """Take away what is over."""
        for name, part, crash in open_ones.copy():
            is_over = True  # so it is if looking fails
            with self._guard(name, part):
                crash.look()
                is_over = crash.is_over
                if is_over:
                    self.recoveries.setdefault(name, {}).setdefault(part, []).append(crash.end())
            if is_over:
                open_ones.remove((name, part, crash))
                crash.stage.close()

    def _crashes(self, setting: Setting) -> Iterator[tuple[str, str, Crash]]:
        """Each peer once, and whom a goal names in every repetition: all would take an hour."""
        infix = "_safe" if setting == "safe" else ""
        for number in range(self.sizes.repeats):
            for running in self.sizes.running:
                part = f"recovery{infix}_{running}"
                named = {OURS, *(goal.to for goal in GOALS if goal.metrics[0] == f"{part}_s")}
                for name in self._by_turns(number):
                    bench = self.benches[name]
                    if (
                        (number and name not in named)
                        or bench.peer.why_not(part)
                        or (setting == "safe" and not bench.peer.safe)
                    ):
                        continue
                    count = min(running, bench.peer.running_max)
                    room = ROOM if count < bench.peer.running_max else 0
                    stage = bench.stage(setting=setting, slots=(count, count + room))
                    yield name, part, Crash(bench, stage, count, f"{part}_s", number)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
