"""How fast streams, sinks and readers are: `python -m benchmarks.streams`.

    raw XADD, XREADGROUP | add one by one, by 100 callers | sink by 1 and by 4 consumers
    (all of that several times, interleaved, then once)  lag of a reader, open loop

Writers and consumers are processes of their own, the server is a third party to both.  Sinks drain
a stream that is there already; they are timed from the first event taken to the last acknowledged.
The lag of a reader counts from when an event was due, so a writer that stalls cannot hide it; if
the writer cannot add as many events as are offered, the next attempt offers half.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Final

from benchmarks.probe import Probe
from benchmarks.report import RAW, RAW_CPU, Report, Table
from benchmarks.running import command_line, run
from benchmarks.throughput import Member
from pool.names import Control

REPEATS: Final = 3
EVENTS: Final = 20_000  # of one drain
CALLERS: Final = 100
BATCH: Final = 100  # events acknowledged at once
RATE_PER_S: Final = 20_000.0
RATE_MIN_PER_S: Final = 1_000.0
OPEN_S: Final = 2.0
REACHED: Final = 0.95  # of the rate offered: less, and the lag would be the writer's

RAW_ONE: Final = "raw_xadd_one_by_one_per_s"
RAW_READ: Final = "raw_readgroup_per_s"
TABLE: Final = Table(
    "raw",
    (
        ("raw_xadd_pipelined_per_s", "raw XADD /s, pipelined", ""),
        (RAW, "raw XADD /s, 50 connections", ""),
        (RAW_CPU, "raw XADD, pipelined: Redis CPU us", ""),
        (RAW_READ, "raw XREADGROUP + XACK /s, by 100", ""),
        (RAW_ONE, "raw XADD /s, one awaited after another, by our own client", ""),
        ("add_one_by_one_per_s", "add /s, one awaited after another", RAW_ONE),
        ("add_100_callers_per_s", "add /s, 100 callers", RAW),
        ("add_100_callers_redis_cpu_us", "Redis CPU us, add", RAW_CPU),
        ("sink_1_ack_each_per_s", "sink /s, 1 consumer, each acknowledged alone", RAW_READ),
        ("sink_1_ack_many_per_s", "sink /s, 1 consumer, acknowledged by 100", RAW_READ),
        (
            "sink_1_ack_10_tasks_per_s",
            "sink /s, 1 consumer, 10 tasks acknowledge each alone",
            RAW_READ,
        ),
        ("sink_4_ack_each_per_s", "sink /s, 4 consumers, each acknowledged alone", RAW_READ),
        ("sink_4_ack_many_per_s", "sink /s, 4 consumers, acknowledged by 100", RAW_READ),
        ("sink_1_ack_many_redis_cpu_us", "Redis CPU us, sink, acknowledged by 100", RAW_CPU),
        ("sink_4_largest_share", "largest share of 4 consumers", ""),
        ("reader_offered_per_s", "reader: events /s offered, open loop", ""),
        ("reader_reached_per_s", "reader: events /s that were really added", ""),
    ),
)


class Bench:
    """One run on one event loop."""

    def __init__(self, probe: Probe, loop: str, events: int) -> None:
        self.probe = probe
        self.loop = loop
        self.events = events
        self.report = Report(loop, TABLE)

    def run(self) -> Report:
        """Take all measurements."""
        for _ in range(REPEATS):
            self.raw()
            self.add()
            self.drain(1, "10_tasks", 1, tasks=10)
            for consumers in (1, 4):
                for name, ack_max in (("each", 1), ("many", BATCH)):
                    self.drain(consumers, name, ack_max)
        self.lag()
        return self.report

    def member(self, role: str, pool: str) -> Member:
        """Start a process."""
        return Member("benchmarks.stream_member", role, self.loop, pool, self.probe.url)

    def fill(self, pool: str) -> str:
        """Make a stream of events as `Stream.add` would; return its key."""
        control = Control(pool)
        key = control.stream("bench")
        pipeline = self.probe.client.pipeline(transaction=False)
        for n in range(1, self.events + 1):
            pipeline.execute_command("XADD", key, "*", "n", n, "e", "benched", "p", n)
        pipeline.hset(control.stream_meta("bench"), "n", self.events)
        pipeline.execute()
        return key

    # --- the measurements -------------------------------------------------------------------------

    def raw(self) -> None:
        """What the server can do at all, by one client."""
        note = self.report.note
        per_s, cpu_us = self.probe.xadd_pipelined(20_000)
        note("raw_xadd_pipelined_per_s", per_s)
        note("raw_xadd_pipelined_redis_cpu_us", cpu_us)
        note(RAW, self.probe.xadd_clients(10_000)[0])
        with self.probe.pool() as pool:
            key, client = self.fill(pool), self.probe.client
            client.xgroup_create(key, "raw", "0")
            began_s, got = time.monotonic(), 0
            while found := client.xreadgroup("raw", "one", {key: ">"}, count=BATCH):
                ids = [entry for entry, _ in found[0][1]]
                client.xack(key, "raw", *ids)
                got += len(ids)
            note("raw_readgroup_per_s", got / (time.monotonic() - began_s))

    def add(self) -> None:
        """Add events, nobody reading."""
        with self.probe.pool() as pool, self.member("writer", pool) as writer:
            told = writer.ask("write_raw", events=self.events // 10)
            self.report.note(RAW_ONE, self.events // 10 / told["seconds"])
            for name, callers, events in (
                ("add_one_by_one", 1, self.events // 10),
                (f"add_{CALLERS}_callers", CALLERS, self.events),
            ):
                before = self.probe.usage()
                told = writer.ask("write", events=events, callers=callers)
                used = self.probe.usage() - before
                self.report.note(f"{name}_per_s", events / told["seconds"])
                self.report.note(f"{name}_redis_cpu_us", used.cpu_us / events)

    def drain(self, consumers: int, name: str, ack_max: int, tasks: int = 0) -> None:
        """Have so many consumers take and acknowledge what is there."""
        note = self.report.note
        with self.probe.pool() as pool, ExitStack() as stack:
            key = self.fill(pool)
            members = [stack.enter_context(self.member("sink", pool)) for _ in range(consumers)]
            before = self.probe.usage()
            for member in members:
                if tasks:
                    member.tell(do="share", tasks=tasks, events=self.events)
                else:
                    member.tell(do="consume", ack_max=ack_max, events=self.events)
            told = [member.hear() for member in members]
            used = self.probe.usage() - before
            taken = sum(each["events"] for each in told)
            left = self.probe.client.xpending(key, "bench")["pending"]
            if taken != self.events or left:
                raise RuntimeError(f"{self.events} events: {taken} taken, {left} unacknowledged")
            began_s = min(each["began_s"] for each in told if each["began_s"])
            seconds = max(each["ended_s"] for each in told) - began_s
            note(f"sink_{consumers}_ack_{name}_per_s", self.events / seconds)
            note(f"sink_{consumers}_ack_{name}_redis_cpu_us", used.cpu_us / self.events)
            if consumers > 1:
                share = max(each["events"] for each in told) / self.events
                note(f"sink_{consumers}_largest_share", share)

    def lag(self) -> None:
        """How far behind a reader is, at the highest rate at which events can be added here."""
        rate = RATE_PER_S
        while rate >= RATE_MIN_PER_S:
            with (
                self.probe.pool() as pool,
                self.member("reader", pool) as reader,
                self.member("writer", pool) as writer,
            ):
                events = int(rate * OPEN_S)
                reader.tell(do="follow", events=events)
                told = writer.ask("offer", rate_per_s=rate, seconds=OPEN_S, callers=4 * CALLERS)
                lags_s = reader.hear()["lags_s"]
            if len(lags_s) != events:
                raise RuntimeError(f"{events} events were added, {len(lags_s)} were read")
            reached = events / told["seconds"]
            self.report.note("reader_offered_per_s", rate)
            self.report.note("reader_reached_per_s", reached)
            self.report.note_all(f"reader_lag_at_{rate:g}_per_s_us", [1e6 * s for s in lags_s])
            if reached >= REACHED * rate:
                return
            rate /= 2


def main() -> None:
    """Parse the command line, measure, print."""
    parser = command_line("streams", __doc__)
    parser.add_argument("--events", type=int, default=EVENTS, help=f"per drain, default {EVENTS}")
    given = parser.parse_args()
    if given.events < 1000:
        parser.error("--events must be at least 1000: fewer are over before they can be measured")
    run(
        given,
        lambda probe, loop: Bench(probe, loop, given.events).run(),
        sizes=f"{given.events} events a drain",
        repeats=REPEATS,
    )


if __name__ == "__main__":
    main()
