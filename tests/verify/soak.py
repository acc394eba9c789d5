"""Soak: `python -m tests.verify.soak --minutes 10`: steady load, a fault every 30 s, nothing grows.

Every process says every 2 s how much it uses, the driver what stands in Redis.  To each series that
covers the run a straight line is fitted; it grows if its slope is above zero with 95 % confidence
*and* the growth over the run is more than its tolerance.  Neighbouring samples resemble each other,
so the confidence is computed from the means of blocks of them.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import anyio
import attrs

from pool.names import Names
from tests.verify.chaos import Plan, Verdict, campaign, line, program_for
from tests.verify.checker import load
from tests.verify.faults import FAULTS, fill
from tests.verify.history import Event
from tests.verify.world import POOL, World, in_thread

FAULT_EVERY_S: Final = 30.0
SAMPLE_S: Final = 2.0
BLOCKS: Final = 12  # that a series is cut into: means of so many samples are nearly independent
T_95: Final = 2.228  # of Student's t with BLOCKS - 2 degrees of freedom, two-sided
SETTLE: Final = 0.4  # of the run, at its beginning, is left out: caches and arenas fill
FAULTS_OF_SOAK: Final = (
    *("kill", "leave", "stop-long", "partition", "replies-lost", "cut-reply", "client-kill"),
    *("server-kill", "script-flush", "server-stop", "delay", "slow-consumers", "block-loop"),
)
# Growth over the judged part that says nothing: a share of the mean, and at least so much.
TOLERANCE: Final[Mapping[str, tuple[float, float]]] = {
    "rss_kb": (0.04, 3000.0),
    "descriptors": (0.10, 3.0),
    "threads": (0.10, 2.0),
    "tasks": (0.25, 30.0),
    "redis memory": (0.15, 500_000.0),
}
OF_REDIS: Final = (0.30, 60.0)  # keys and entries: the load itself rises and falls


@attrs.frozen(kw_only=True)
class Fit:
    """A straight line through a series."""

    name: str
    samples: int
    mean: float
    per_hour: float
    confidence: float  # half the width of the slope's 95 % interval, per hour
    growth: float  # over the judged part
    allowed: float

    @property
    def grows(self) -> bool:
        """Whether it does, beyond doubt and by more than is tolerated."""
        return self.per_hour - self.confidence > 0 and self.growth > self.allowed

    def __str__(self) -> str:
        return (
            f"{'GROWS' if self.grows else 'flat '} {self.name:28} mean {self.mean:12.1f}  slope "
            f"{self.per_hour:+12.1f} +- {self.confidence:10.1f} per hour  (growth "
            f"{self.growth:+9.1f}, tolerated {self.allowed:9.1f}, {self.samples} samples)"
        )


def fit(name: str, series: Sequence[tuple[float, float]]) -> Fit:
    """Fit a line to the block means of a series of (s, value)."""
    size = len(series) // BLOCKS
    blocks = [series[at * size : (at + 1) * size] for at in range(BLOCKS)]
    xs = [statistics.fmean(t for t, _ in block) for block in blocks]
    ys = [statistics.fmean(value for _, value in block) for block in blocks]
    slope, intercept = statistics.linear_regression(xs, ys)
    spread = sum((x - statistics.fmean(xs)) ** 2 for x in xs)
    rest = sum((y - slope * x - intercept) ** 2 for x, y in zip(xs, ys, strict=True))
    error = math.sqrt(rest / (BLOCKS - 2) / spread)
    mean = statistics.fmean(ys)
    share, least = TOLERANCE.get(name.rpartition(": ")[2], OF_REDIS)
    return Fit(
        name=name,
        samples=len(series),
        mean=mean,
        per_hour=slope * 3600,
        confidence=error * T_95 * 3600,
        growth=slope * (series[-1][0] - series[0][0]),
        allowed=max(share * mean, least),
    )


def fits(events: Iterable[Event]) -> Iterator[Fit]:
    """Fit every series that covers the run."""
    series: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        if event.f == "event" and event.extra["event"] in ("process.sampled", "store.sampled"):
            for name, value in event.extra.items():
                if name != "event":
                    series[f"{event.p}: {name}"].append((event.t, float(value)))
    first = min((points[0][0] for points in series.values()), default=0.0)
    last = max((points[-1][0] for points in series.values()), default=0.0)
    judged_from = first + SETTLE * (last - first)
    for name, points in sorted(series.items()):
        judged = [(t, value) for t, value in points if t >= judged_from]
        covers = points[0][0] < judged_from and points[-1][0] > last - 0.1 * (last - first)
        if covers and len(judged) >= 2 * BLOCKS:
            yield fit(name, judged)


async def load_and_hurt(world: World, plan: Plan) -> None:
    """Keep the load steady, and hurt the world every half minute."""
    world.spared = frozenset({"n1", "n2"})
    until = anyio.current_time() + plan.seconds
    await fill(world)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_sample_store, world)
        while (left := until - anyio.current_time()) > 0:
            await anyio.sleep(min(left, FAULT_EVERY_S))
            if anyio.current_time() < until - FAULT_EVERY_S / 2:
                name = world.dice.choice(FAULTS_OF_SOAK)
                await FAULTS[name].hurt(world, name)
                world.injected[name] = world.injected.get(name, 0) + 1
        tasks.cancel_scope.cancel()


async def _sample_store(world: World) -> None:
    n = Names(POOL, 0)

    def sample() -> dict[str, int]:
        with world.admin() as client, client.pipeline(transaction=False) as pipe:
            pipe.dbsize()
            pipe.zcard(n.pending)
            pipe.zcard(n.due)
            pipe.hlen(n.jobs)
            pipe.zcard(n.keepalive)
            pipe.hlen(n.cleanup)
            pipe.hlen(n.payloads)
            pipe.info("memory")
            pipe.memory_usage(n.journal)
            *counts, memory, journal = pipe.execute()
        names = ("keys", "pending", "due", "jobs", "leases", "claims", "payloads")
        # The journal is capped by its number of entries, which a short soak does not reach.
        used = memory["used_memory"] - memory.get("mem_clients_normal", 0) - (journal or 0)
        return {**dict(zip(names, counts, strict=True)), "redis memory": used}

    while True:
        await anyio.sleep(SAMPLE_S)
        try:
            said = await in_thread(sample)
        except Exception:  # noqa: BLE001, S112 - the server is hurt on purpose: the next one counts
            continue
        world.record("event", extra={"event": "store.sampled", **said})


def report(verdict: Verdict, found: Sequence[Fit], took_s: float) -> str:
    """Return the verdict of a soak for people."""
    bad = sum(each.grows for each in found)
    said = "ok" if verdict.ok and found and not bad else "FAIL"
    head = f"{said}: {len(found)} series, {bad} grow; {took_s / 60:.1f} minutes"
    injected = ", ".join(f"{name} {count}" for name, count in sorted(verdict.injected.items()))
    return "\n".join([head, line(verdict), f"faults: {injected}", *map(str, found)])


def main() -> int:
    """Soak, and judge it."""
    parser = argparse.ArgumentParser(prog="python -m tests.verify.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=20.0, help="jobs dispatched in a second")
    parser.add_argument("--server", default="valkey", help="name of the server program")
    parser.add_argument("--into", type=Path, default=Path("/tmp/pool-soak"))  # noqa: S108
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    plan = Plan(
        seed=given.seed,
        seconds=given.minutes * 60,
        per_s=given.rate,
        program=program_for(given.server),
        # What is remembered on purpose shall have reached its size when judging begins.
        settings={"result_ttl_s": 10.0, "retry_window_s": 10.0, "parked_ttl_s": 60.0},
        hurt=load_and_hurt,
        keeps_outcomes=False,
        has_flows=False,  # what is kept of batches grows on purpose, for a day
    )
    directory = given.into / f"soak-{given.seed}-{int(time.time())}"
    directory.mkdir(parents=True)
    began = time.monotonic()
    verdict = anyio.run(campaign, plan, directory)
    found = list(fits(load(sorted(directory.glob("*.jsonl")))))
    text = report(verdict, found, time.monotonic() - began)
    (directory / "soak.txt").write_text(text + "\n", "utf-8")
    (directory / "soak.json").write_text(json.dumps([attrs.asdict(each) for each in found]))
    sys.stdout.write(text + "\n")
    return 0 if verdict.ok and found and not any(each.grows for each in found) else 1


if __name__ == "__main__":
    sys.exit(main())
