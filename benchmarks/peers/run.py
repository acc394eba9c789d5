"""The whole comparison: all peers by turns, several times; then what takes long, side by side.

An adapter that fails is reported with its error, and the others go on.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, Final, TypeAlias

import attrs

from benchmarks.peers.environments import prepare
from benchmarks.peers.measure import ROOM, Bench, Crash, Rest, Sizes, raw
from benchmarks.peers.protocol import Setting
from benchmarks.peers.stage import Peer
from benchmarks.report import Report, Table
from pool.store.server import ServerProgram

GROUPS: Final = ("dispatch", "drain", "latency", "load", "rest", "recovery")
RAW: Final = "raw"
RAW_COUNT: Final = 10_000
TOGETHER: Final = 2  # processes start by twos: they take a core each
SETTLE_S: Final = 2.0
ONE_AFTER_ANOTHER_S: Final = 5.0  # a quick recovery is over before the next kill
LOOK_S: Final = 0.1
_TABLE: Final = Table("", ())

Recoveries: TypeAlias = dict[str, dict[str, Any]]


@attrs.define
class Comparison:
    """A run over all peers."""

    program: ServerProgram
    sizes: Sizes
    groups: Sequence[str]
    benches: dict[str, Bench] = attrs.field(init=False, factory=dict)
    raw: Report = attrs.field(init=False, factory=lambda: Report(RAW, _TABLE))
    errors: dict[str, dict[str, str]] = attrs.field(init=False, factory=dict)
    recoveries: dict[str, Recoveries] = attrs.field(init=False, factory=dict)

    def run(self, names: Sequence[str], *, is_upgrade: bool = False) -> None:
        """Measure."""
        for name in names:
            with self._guard(name, "environment"):
                prepare(name, is_upgrade=is_upgrade)
                peer = Peer.of(name)
                self.benches[name] = Bench(self.program, peer, self.sizes, Report(name, _TABLE))
        for number in range(self.sizes.repeats):
            _say(f"repetition {number + 1} of {self.sizes.repeats}")
            raw(self.program, self.raw, count=RAW_COUNT)
            order = list(self.benches)
            for name in order if number % 2 == 0 else order[::-1]:
                self._once(name)
        if "rest" in self.groups:
            self._rest()
        if "recovery" in self.groups:
            for setting in ("usual", "safe"):
                self._recovery(setting)

    @contextmanager
    def _guard(self, name: str, part: str) -> Iterator[None]:
        try:
            yield
        # One peer's fault, whatever it is, must not cost the others their figures.
        except Exception as error:  # noqa: BLE001
            _say(f"{name}, {part}: {error}")
            self.errors.setdefault(name, {})[part] = f"{type(error).__name__}: {error}"

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

    def _prepare_all(self, made: Sequence[tuple[str, str, Rest | Crash]]) -> list[int]:
        """Prepare all; return which of them are ready."""
        ready: list[int] = []

        def one(index: int) -> None:
            name, part, each = made[index]
            with self._guard(name, part):
                each.stage.__enter__()
                each.prepare()
                ready.append(index)

        with ThreadPoolExecutor(TOGETHER) as threads:
            list(threads.map(one, range(len(made))))
        return sorted(ready)

    def _rest(self) -> None:
        """All peers at rest at the same time, each with its own server: none does much."""
        _say("at rest")
        made = [
            (name, "rest", Rest(bench, bench.stage(slots=(0,))))
            for name, bench in self.benches.items()
        ]
        with ExitStack() as stack:
            for _, _, each in made:
                stack.callback(each.stage.close)
            ready = self._prepare_all(made)
            time.sleep(SETTLE_S)
            for index in ready:
                made[index][2].begin()
            time.sleep(self.sizes.rest_s)
            for index in ready:
                made[index][2].end()

    def _recovery(self, setting: Setting) -> None:
        """All peers together: most of it is waiting.  The kills come one after another."""
        _say(f"recovery, {setting} settings")
        made = list(self._crashes(setting))
        with ExitStack() as stack:
            for _, _, crash in made:
                stack.callback(crash.stage.close)
            ready = [made[index] for index in self._prepare_all(made)]
            time.sleep(SETTLE_S)
            pause_s = ONE_AFTER_ANOTHER_S if setting == "safe" else 1.0
            for name, part, crash in ready:
                with self._guard(name, part):
                    crash.kill()
                    end_s = time.monotonic() + pause_s
                    while not crash.look() and time.monotonic() < end_s:
                        time.sleep(LOOK_S)
            open_ones = list(ready)
            while open_ones:
                time.sleep(LOOK_S)
                for name, part, crash in open_ones.copy():
                    with self._guard(name, part):
                        crash.look()
                        if not crash.is_over:
                            continue
                        self.recoveries.setdefault(name, {})[part] = crash.end()
                    open_ones.remove((name, part, crash))

    def _crashes(self, setting: Setting) -> Iterator[tuple[str, str, Crash]]:
        infix = "_safe" if setting == "safe" else ""
        for running in self.sizes.running:
            metric = f"recovery{infix}_{running}"
            for name, bench in self.benches.items():
                if bench.peer.why_not(metric) or (setting == "safe" and not bench.peer.safe):
                    continue
                count = min(running, bench.peer.running_max)
                room = ROOM if count < bench.peer.running_max else 0
                stage = bench.stage(setting=setting, slots=(count, count + room))
                yield name, metric, Crash(bench, stage, count, f"{metric}_s")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
