"""What a replicated map costs, and how soon everybody has a change: `python -m benchmarks.maps`.

    writes beside a bare HSET | fan-out to 1, 10, 100 copies | joins | local reads
    (all of that several times, interleaved)

The writer, the copies and the server are processes of their own.  A hundred copies are made as four
processes that open the map 25 times each: every copy has its own connections, threads and snapshot,
and shares with its 24 neighbours an interpreter, and so the time of one core.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Final

import attrs

from benchmarks.probe import Probe
from benchmarks.report import Report, Table
from benchmarks.running import command_line, run
from benchmarks.throughput import Member

REPEATS: Final = 3
COPIES: Final = (1, 10, 100)
COPIES_PER_PROCESS: Final = 25
KEYS: Final = 10_000  # and as many items in the one list
WRITES: Final = 200  # samples of each kind, in each repetition
FAN_OUT: Final = 100  # samples, one every 50 ms: an update is everywhere before the next one
FAN_OUT_PER_S: Final = 20.0
REST_S: Final = 2.0  # one renewal period: what copies cost when nothing is written
JOINS: Final = 5
RATES_PER_S: Final = (50, 100, 200, 400, 800, 1600, 3200)
RATE_S: Final = 2.0
BURST: Final = 1000
LATE_S: Final = 0.5  # a rate is sustained if all have the last write this soon, with no Resync

_HSET: Final = "hset_p50_us"
_KINDS: Final = (
    ("set", "set"),
    ("set_and_wait", "set_and_wait"),
    ("increment", "increment"),
    ("append", f"append to a list of {KEYS:,}"),
)
TABLE: Final = Table(
    "HSET",
    (
        (_HSET, "bare HSET through a pipeline, p50 us", ""),
        ("hset_p99_us", "bare HSET through a pipeline, p99 us", ""),
        *((f"{kind}_p50_us", f"{title}, p50 us", _HSET) for kind, title in _KINDS),
        *((f"{kind}_p99_us", f"{title}, p99 us", "hset_p99_us") for kind, title in _KINDS),
        *(
            (f"fan_out_{n}_{at}_us", f"write until the last of {n} copies has it, {at} us", "")
            for n in COPIES
            for at in ("p50", "p99")
        ),
        ("sustained_writes_per_s", f"writes /s sustained with {COPIES[-1]} copies", ""),
        ("burst_updates_per_s", f"updates /s delivered from a burst of {BURST:,} writes", ""),
        ("write_commands", "Redis commands per write", ""),
        ("write_bytes", "bytes on the wire per write", ""),
        ("write_script_us", f"us in the script per write, at {FAN_OUT_PER_S:g} /s", ""),
        ("update_commands", "Redis commands per update delivered", ""),
        ("update_bytes", "bytes on the wire per update delivered", ""),
        ("update_redis_cpu_us", f"Redis CPU us per update delivered, at {FAN_OUT_PER_S:g} /s", ""),
        ("rest_commands_per_s", "Redis commands /s of a copy at rest", ""),
        ("snapshots_per_join", "snapshots per join, over the whole fan-out", ""),
        ("open_empty_ms", "open an empty map, ms", ""),
        ("open_keys_ms", f"open a map of {KEYS:,} keys, ms", ""),
        ("open_items_ms", f"open a map of one list of {KEYS:,}, ms", ""),
        ("get_ns", f"get() of {KEYS:,} keys, ns", "dict_get_ns"),
        ("dict_get_ns", "get() of a dict of the same, ns", ""),
    ),
)


class Bench:
    """One run on one event loop."""

    def __init__(self, probe: Probe, loop: str) -> None:
        self.probe = probe
        self.loop = loop
        self.report = Report(loop, TABLE)

    def run(self) -> Report:
        """Take all measurements."""
        for _ in range(REPEATS):
            self.writes()
            costs = {copies: self.fan_out(copies) for copies in COPIES}
            self._note_costs(costs)
            self.joins()
            self.reads()
        return self.report

    def member(self, pool: str) -> Member:
        """Start a process that writes, or holds copies."""
        return Member("benchmarks.copies", "copies", self.loop, pool, self.probe.url)

    # --- the measurements -------------------------------------------------------------------------

    def writes(self) -> None:
        """One write after another, beside a bare HSET from the same process."""
        with self.probe.pool() as pool, self.member(pool) as writer:
            writer.ask("hold", count=1)
            writer.ask("fill", keys=100, items=KEYS)
            writer.ask("latency", samples=WRITES // 10)  # scripts are loaded, caches warm
            for kind, spent_s in writer.ask("latency", samples=WRITES)["spent_s"].items():
                self._note_spread(kind, spent_s)

    def fan_out(self, copies: int) -> Cost:
        """Write at a fixed rate; return what the server did for each write."""
        note = self.report.note
        with self.probe.pool() as pool, ExitStack() as stack:
            snapshots = self._snapshots()
            writer = stack.enter_context(self.member(pool))
            writer.ask("hold", count=1)
            holders = [writer]
            for first in range(0, copies, COPIES_PER_PROCESS):
                holders.append(stack.enter_context(self.member(pool)))
                holders[-1].ask("hold", count=min(COPIES_PER_PROCESS, copies - first))
            offer(holders, FAN_OUT // 10, FAN_OUT_PER_S)  # scripts are loaded, caches warm
            began = self._now()
            time.sleep(REST_S)
            rest = self._now() - began
            began = self._now()
            offered = offer(holders, FAN_OUT, FAN_OUT_PER_S)
            used = self._now() - began
            self._note_spread(f"fan_out_{copies}", offered.late_s)
            # The writer has a copy too.  No other script reads a whole hash.
            note("snapshots_per_join", (self._snapshots() - snapshots) / (copies + 1))
            if copies == COPIES[-1]:
                note("rest_commands_per_s", rest.commands / rest.seconds / (copies + 1))
                self._sustain(holders, copies + 1)
        return (used - rest * (used.seconds / rest.seconds)) * (1 / FAN_OUT)

    def _sustain(self, holders: Sequence[Member], copies: int) -> None:
        """Offer more and more, until somebody falls behind."""
        sustained = 0.0
        for rate in RATES_PER_S:
            offered = offer(holders, int(rate * RATE_S), rate)
            if offered.missed or offered.late_s[-1] > LATE_S:
                # Once more, but so few that the log keeps them all: nobody may skip one.
                offered = offer(holders, BURST, rate)
                if not offered.missed:
                    self.report.note("burst_updates_per_s", offered.writes_per_s * copies)
                break
            sustained = rate
        self.report.note("sustained_writes_per_s", sustained)

    def joins(self) -> None:
        """Open maps of several sizes, each by itself."""
        for name, keys, items in (("empty", 0, 0), ("keys", KEYS, 0), ("items", 0, KEYS)):
            with (
                self.probe.pool() as pool,
                self.member(pool) as writer,
                self.member(pool) as joiner,
            ):
                writer.ask("hold", count=1)
                writer.ask("fill", keys=keys, items=items)
                for join_s in joiner.ask("hold", count=JOINS)["joins_s"]:
                    self.report.note(f"open_{name}_ms", 1e3 * join_s)

    def reads(self) -> None:
        """Read the local copy."""
        with self.probe.pool() as pool, self.member(pool) as reader:
            reader.ask("hold", count=1)
            reader.ask("fill", keys=KEYS, items=0)
            for name, spent_ns in reader.ask("reads", keys=KEYS)["spent_ns"].items():
                self.report.note(f"{name}_ns", spent_ns)

    # --- figures ----------------------------------------------------------------------------------

    def _note_spread(self, name: str, seconds: Sequence[float]) -> None:
        ordered = sorted(seconds)
        self.report.note(f"{name}_p50_us", 1e6 * ordered[len(ordered) // 2])
        self.report.note(f"{name}_p99_us", 1e6 * ordered[int(0.99 * len(ordered))])

    def _note_costs(self, costs: Mapping[int, Cost]) -> None:
        few, many = COPIES[0], COPIES[-1]
        update = (costs[many] - costs[few]) * (1 / (many - few))
        write = costs[few] - update * (few + 1)  # the writer has a copy too
        self.report.note("write_script_us", write.script_us)
        self.report.note("update_redis_cpu_us", update.cpu_us)
        for name, cost in (("write", write), ("update", update)):
            self.report.note(f"{name}_commands", cost.commands)
            self.report.note(f"{name}_bytes", cost.bytes)

    def _now(self) -> Cost:
        usage = self.probe.usage()
        return Cost(
            seconds=time.monotonic(),
            commands=usage.commands,
            bytes=usage.bytes_in + usage.bytes_out,
            cpu_us=usage.cpu_us,
            script_us=usage.script_us,
        )

    def _snapshots(self) -> int:
        told = self.probe.client.info("commandstats")
        calls: int = told.get("cmdstat_hgetall", {"calls": 0})["calls"]
        return calls


@attrs.frozen(kw_only=True)
class Cost:
    """What a stretch of time, or one write, costs the server."""

    seconds: float
    commands: float  # those inside scripts included
    bytes: float  # both directions
    cpu_us: float
    script_us: float  # of that, within scripts

    def __sub__(self, other: Cost) -> Cost:
        theirs = attrs.asdict(other)
        return Cost(**{name: ours - theirs[name] for name, ours in attrs.asdict(self).items()})

    def __mul__(self, factor: float) -> Cost:
        return Cost(**{name: factor * ours for name, ours in attrs.asdict(self).items()})


@attrs.frozen(kw_only=True)
class Offered:
    """What became of writes at a fixed rate."""

    late_s: Sequence[float]  # of each write, from being asked to the last copy having it
    writes_per_s: float  # from the first write to the last arrival
    missed: int  # writes without an answer, and copies that had to begin anew


def offer(holders: Sequence[Member], writes: int, rate_per_s: float) -> Offered:
    """Have the first process write, and wait until all processes have everything."""
    asked = holders[0].ask("paced", writes=writes, rate_per_s=rate_per_s)
    began_ns: dict[int, int] = dict(asked["began_ns"])
    told = [holder.ask("arrivals", revision=max(began_ns)) for holder in holders]
    arrived_ns: dict[int, int] = {}
    for revision, at_ns in (pair for each in told for pair in each["arrived_ns"]):
        arrived_ns[revision] = max(at_ns, arrived_ns.get(revision, 0))
    seconds = (max(arrived_ns.values()) - min(began_ns.values())) / 1e9
    return Offered(
        late_s=[
            (at_ns - began_ns[revision]) / 1e9
            for revision, at_ns in sorted(arrived_ns.items())
            if revision in began_ns
        ],
        writes_per_s=len(began_ns) / seconds,
        missed=asked["unanswered"] + sum(each["resyncs"] for each in told),
    )


def main() -> None:
    """Parse the command line, measure, print."""
    run(
        command_line("maps", __doc__).parse_args(),
        lambda probe, loop: Bench(probe, loop).run(),
        sizes=f"{KEYS} keys, lists of {KEYS}, up to {COPIES[-1]} copies",
        repeats=REPEATS,
    )


if __name__ == "__main__":
    main()
