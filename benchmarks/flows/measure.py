"""The measurements: each on a server of its own, with a client, a worker, and a beat if need be."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final, Self

import attrs

from benchmarks.flows.environments import python_of
from benchmarks.flows.protocol import AFTER, MEMBER
from benchmarks.peers.environments import ROOT
from benchmarks.peers.stage import free_port
from benchmarks.probe import Probe, Usage
from benchmarks.report import latency
from benchmarks.throughput import Member
from pool.redis.embedded.server import EmbeddedServer, ServerProgram

LIMIT_S: Final = 120.0
WARM: Final = 20  # members of a first one: scripts are loaded, connections made
LEAD_S: Final = 2.0  # from the first firings to those that count
LOOK_S: Final = 0.05
SECOND_NS: Final = 1_000_000_000

Start = tuple[str, int, int]  # what, monotonic ns, ns of the day's clock
Figures = dict[str, float]


@attrs.frozen(kw_only=True)
class Sizes:
    """How much of everything."""

    rounds: int = 5
    members: int = 1000
    schedules: int = 20
    seconds: int = 20


@attrs.frozen(kw_only=True)
class Peer:
    """A library, as its adapter describes itself."""

    name: str
    versions: dict[str, str]
    docs: str
    setting: str
    ways: dict[str, str]
    promises: dict[str, str]
    cannot: dict[str, str]
    by_interval: bool
    has_beat: bool

    @classmethod
    def of(cls, name: str) -> Self:
        """Ask the adapter; it imports the library, so it fails here if anything is missing."""
        with _member(name, "facts", "", "", 0) as facts:
            return cls(name=name, **facts.first)


def _member(name: str, role: str, url: str, part: str, count: int) -> Member:
    module, words = f"benchmarks.flows.{name}", (role, url, part, str(count))
    return Member(module, *words, python=python_of(name), at=ROOT, answer_s=LIMIT_S)


class Stage:
    """Open for one measurement; nothing that another one left is there."""

    def __init__(self, program: ServerProgram, peer: Peer, part: str, count: int) -> None:
        self._program, self._peer, self._part, self._count = program, peer, part, count

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            # Some peers speak TCP only, so all do.
            started = EmbeddedServer.start(self._program, tcp_port=free_port())
            url = stack.enter_context(started).url
            self.probe = Probe(url)
            stack.callback(self.probe.close)
            roles = ["client", "worker", *["beat"] * (self._part == "cron" and self._peer.has_beat)]
            self._members = {  # all import at the same time
                role: _member(self._peer.name, role, url, self._part, self._count) for role in roles
            }
            for member in self._members.values():
                stack.enter_context(member)
            self.client, self._worker = self._members["client"], self._members["worker"]
            self.client.tell()
            self.client.hear()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        for role in self._members.keys() - {"client"}:  # nobody waits for it to say goodbye
            self._members[role].kill()
        self._stack.close()

    def work(self) -> None:
        """Have the others begin."""
        for role in self._members.keys() - {"client"}:
            self._members[role].tell()

    def starts(self) -> list[Start]:
        """Return what has begun since it was asked before."""
        return [(what, mono, wall) for what, mono, wall in self._worker.ask("report")["starts"]]

    def until(self, is_over: Callable[[Counter[str]], bool]) -> list[Start]:
        """Gather what begins until that is all."""
        found: list[Start] = []
        end_s = time.monotonic() + LIMIT_S
        while not is_over(Counter(what for what, *_ in found)):
            if time.monotonic() > end_s:
                raise TimeoutError(f"{len(found)} jobs began in {LIMIT_S:g} s, and that is not all")
            time.sleep(LOOK_S)
            found += self.starts()
        return found


def batch(program: ServerProgram, peer: Peer, sizes: Sizes) -> Figures:
    """Make so many jobs; until who made them knows that all have ended."""
    with Stage(program, peer, "batch", 0) as stage:
        stage.work()
        stage.client.ask("batch", count=WARM)
        stage.starts()
        before = stage.probe.usage()
        told = stage.client.ask("batch", count=sizes.members)
        used = stage.probe.usage() - before
        _check(Counter(what for what, *_ in stage.starts()), {MEMBER: sizes.members})
    seconds = (told["ended_ns"] - told["began_ns"]) / SECOND_NS
    return {"s": seconds, **_each(used, sizes.members)}


def fan_in(program: ServerProgram, peer: Peer, sizes: Sizes) -> Figures:
    """Make so many jobs and the one after them; until that one's first line."""
    with Stage(program, peer, "fan_in", 0) as stage:
        stage.work()
        stage.client.ask("fan_in", count=WARM)
        stage.until(lambda seen: seen[AFTER] > 0)
        before = stage.probe.usage()
        told = stage.client.ask("fan_in", count=sizes.members)
        found = stage.until(lambda seen: seen[AFTER] > 0)
        used = stage.probe.usage() - before
        _check(Counter(what for what, *_ in found), {MEMBER: sizes.members, AFTER: 1})
    last_ns = max(mono for what, mono, _ in found if what == MEMBER)
    [after_ns] = [mono for what, mono, _ in found if what == AFTER]
    if after_ns < last_ns:
        raise RuntimeError("the callback came before the last member had begun")
    return {
        "s": (after_ns - told["began_ns"]) / SECOND_NS,
        "made_s": (told["ended_ns"] - told["began_ns"]) / SECOND_NS,
        "last_to_after_ms": (after_ns - last_ns) / 1e6,
        **_each(used, sizes.members),
    }


def cron(program: ServerProgram, peer: Peer, sizes: Sizes) -> Figures:
    """So many schedules of each second: how long after it each job begins."""
    with Stage(program, peer, "cron", sizes.schedules) as stage:
        stage.client.ask("cron")
        stage.work()
        found = stage.until(lambda seen: len(seen) == sizes.schedules)
        begin_s = math.ceil(time.time() + LEAD_S)
        time.sleep(max(0.0, begin_s - 0.5 - time.time()))
        before = stage.probe.usage()
        time.sleep(max(0.0, begin_s - 0.5 + sizes.seconds - time.time()))
        used = stage.probe.usage() - before
        time.sleep(1.0)  # what is late of the last second
        found += stage.starts()
    late_ms, is_missing, is_double = lateness(
        found, begin_s, sizes.seconds, by_interval=peer.by_interval
    )
    timed = latency([1000 * ms for ms in late_ms])
    firings = sizes.schedules * sizes.seconds
    return {
        "p50_ms": timed.p50 / 1000,
        "p99_ms": timed.p99 / 1000,
        "max_ms": timed.max / 1000,
        "missing": float(is_missing),
        "doubled": float(is_double),
        **_each(used, firings),
    }


def lateness(
    found: Sequence[Start], begin_s: int, seconds: int, *, by_interval: bool
) -> tuple[list[float], int, int]:
    """Return how late each firing of so many seconds was, in ms; how many did not come, or twice.

    By cron a firing is of the second in which it comes.  By interval nobody else knows when it is
    due: its times are a second apart, and the least late one was in time.
    """
    late_ms: list[float] = []
    missing = doubled = 0
    for name in {what for what, *_ in found}:
        walls = sorted(wall for what, _, wall in found if what == name)
        seen: Counter[int] = Counter()
        first_ns = min(wall - number * SECOND_NS for number, wall in enumerate(walls))
        for number, wall in enumerate(walls):
            due_ns = first_ns + number * SECOND_NS if by_interval else wall // SECOND_NS * SECOND_NS
            if begin_s * SECOND_NS <= due_ns < (begin_s + seconds) * SECOND_NS:
                seen[due_ns] += 1
                late_ms.append((wall - due_ns) / 1e6)
        missing += seconds - len(seen)
        doubled += seen.total() - len(seen)
    return late_ms, missing, doubled


def _each(used: Usage, count: int) -> Figures:
    return {"server_us": used.cpu_us / count, "commands": used.commands / count}


def _check(seen: Counter[str], wanted: dict[str, int]) -> None:
    if seen != wanted:
        raise RuntimeError(f"{dict(seen)} began, and should have been {wanted}")


MEASURE: Final = {"batch": batch, "fan_in": fan_in, "cron": cron}
