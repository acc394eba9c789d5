"""Many seeds in a row: what they found, what they have seen, and failures made small."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from tests.verify.sim.config import Config, Loops
from tests.verify.sim.run import Outcome, play

REGRESSIONS: Final = Path(__file__).parent.parent / "regressions.txt"
ENOUGH: Final = 100  # seeds after which everything below must have been seen,
ENOUGH_FOR_RARE: Final = 1000  # and after which what is rare must have been, too

# What a set of seeds must have met; else its silence says little.  A late settlement that is
# answered "timed out" is too rare for that: tests/redis/test_advance_script.py has it.
MUST_SEE: Final = (
    "stale commit refused",
    "commit repeated, same outcome",
    "job taken over after a crash",
    "worker reaped",
    "worker joined again",
    "self-fence fired",
    "resumed after a self-fence",
    "reconciliation mended",
    "hung loop reported",
    "data loss detected",
    "dispatch of unknown outcome",
    "... that was accepted",
    "scripts were flushed",
    "job parked",
    "job cancelled",
    "job retried",
    "job ran more than once",
    "reaper's claim was taken over",
    "sweep found something overdue",
    "sweeper's lock was held",
    "dispatch repeated after its end",
    "a start was stopped by its acknowledgement",
    "handler outlived its lease",
    "reaper died with a claim in its hand",
    "worker was exchanged",
    "message behind one whose signal was lost",
    "one of several pages of an inbox",
    "one of several pages of a reconciliation mended something",
    "copy began anew",
    "event parked",
    "event given again",
    "event taken by a cap",
    "reader was told that its stream began anew",
)
RARE: Final = ("older grant came back after lost data",)


@attrs.frozen(kw_only=True)
class Line:
    """What a campaign keeps of one seed."""

    config: Config
    digest: str
    broken: tuple[str, ...]
    report: str  # empty when nothing was wrong
    seen: dict[str, int]
    fired: dict[str, int]  # faults, as often as they struck
    virtual_s: float
    calls: int

    @classmethod
    def of(cls, outcome: Outcome) -> Line:
        """Keep what matters."""
        seen = Counter({name: n for name, n in outcome.report.sometimes.items() if n})
        seen.update(outcome.seen)
        return cls(
            config=outcome.config,
            digest=outcome.digest,
            broken=outcome.broken,
            report="" if outcome.ok else told(outcome),
            seen=dict(seen),
            fired=dict(outcome.fired),
            virtual_s=outcome.virtual_s,
            calls=outcome.calls,
        )


def told(outcome: Outcome) -> str:
    """Return what was wrong, with the events around it."""
    text = outcome.report.text(outcome.events)
    first = text.find("\nI")  # behind the tables: what was violated
    return "\n".join(
        [
            f"seed {outcome.config.seed}: {', '.join(outcome.broken)}",
            outcome.config.text(),
            *outcome.problems,
            *outcome.failures,
            text[first + 1 :] if first >= 0 else "",
        ]
    )


def run(configs: Iterable[Config], jobs: int = 1) -> Iterator[Line]:
    """Play configurations, several at a time if there are processors."""
    if jobs == 1:
        yield from map(_play, configs)
        return
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(jobs, mp_context=context) as workers:
        yield from workers.map(_play, configs, chunksize=4)


def _play(config: Config) -> Line:
    # What is left of closed worlds is collected at some time, and finds no loop to end in.
    sys.unraisablehook = lambda _: None
    return Line.of(play(config))


def unseen(lines: Sequence[Line]) -> list[str]:
    """Return what a set of seeds should have met and did not."""
    seen: Counter[str] = Counter()
    for line in lines:
        seen.update(line.seen)
    count = len(lines)
    wanted = (*(MUST_SEE if count >= ENOUGH else ()), *(RARE if count >= ENOUGH_FOR_RARE else ()))
    drawn = {fault for line in lines for fault in line.config.faults} if count >= ENOUGH else set()
    never = drawn.difference(*(line.fired for line in lines))
    return [name for name in wanted if not seen[name]] + sorted(f"fault {name}" for name in never)


def shrink(config: Config) -> Config:
    """Return a smaller configuration that breaks something of the same; slow."""
    wanted = set(play(config).broken)
    assert wanted, "nothing is wrong with this one"

    def fails(smaller: Config) -> bool:
        return bool(wanted & set(play(smaller).broken))

    for kind in config.faults:
        without = attrs.evolve(config, faults=tuple(k for k in config.faults if k != kind))
        if fails(without):
            config = without
    for name in config.shapes:
        without = attrs.evolve(config, shapes=tuple(k for k in config.shapes if k != name))
        if fails(without):
            config = without
    for name, least in (("jobs", 1), ("services", 0), ("nodes", 1), ("lanes", 1)):
        value: int = getattr(config, name)
        for fewer in dict.fromkeys((least, (value + least) // 2, value - 1)):
            change: Any = {name: fewer}
            smaller = attrs.evolve(config, **change)
            if least <= fewer < value and fails(smaller):
                config = smaller
                break
    while config.chaos_s > 2.0:
        smaller = attrs.evolve(config, chaos_s=config.chaos_s * 0.75)
        if not fails(smaller):
            break
        config = smaller
    return config


def regressions() -> list[Config]:
    """Return every configuration that once found something."""
    lines = REGRESSIONS.read_text("utf-8").splitlines()
    return [Config.parse(line) for line in lines if line.strip() and not line.startswith("#")]


def remember(config: Config, why: str) -> None:
    """Add a configuration to those that are played for ever."""
    if config not in regressions():
        with REGRESSIONS.open("a", encoding="utf-8") as file:
            file.write(f"# {why}\n{config.text()}\n")


def campaign(
    seeds: range, *, loops: Loops | None = None, jobs: int = 1, is_all: bool = False
) -> tuple[list[Line], float]:
    """Play all seeds; return them, and how long it took.  Tells of one that is red at once."""
    began_s, lines = time.perf_counter(), list[Line]()
    for line in run((Config.of(seed, loops, is_all=is_all) for seed in seeds), jobs):
        lines.append(line)
        if line.broken:
            sys.stderr.write(f"seed {line.config.seed}: {', '.join(line.broken)}\n")
            sys.stderr.flush()
    return lines, time.perf_counter() - began_s
