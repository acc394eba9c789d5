"""How fast, how soon and at what cost: `python -m benchmarks.throughput`.

    raw XADD | dispatch one by one | by 100 callers | in bulk -> drain by 1 | in bulk -> drain by 2
    (all of that several times, interleaved, then once)  latency idle | open loop | a node at rest

Dispatcher and workers are processes of their own, the server is a third party to both.  Drains
begin with all jobs queued; they are timed from the first handler entered to the last settlement in
Redis.  Figures of one run are comparable with each other; those of two machines, or hours, are not.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, Final, Self

from benchmarks import lanes as lanes_bench
from benchmarks.member import LANES
from benchmarks.probe import Probe, Usage
from benchmarks.report import JOBS_TABLE, Report, document
from pool.redis.embedded.server import EmbeddedServer, find_server

REPEATS: Final = 3
JOBS: Final = 10_000  # of one drain
CALLERS: Final = 100
MORE: Final = """\
Replicated maps: python -m benchmarks.maps      Streams: python -m benchmarks.streams
Beside other libraries: make bench-peers"""
ANSWER_S: Final = 60.0
IDLE_S: Final = 5.0
OPEN_RATES: Final = (200.0, 1000.0)  # jobs per second
OPEN_S: Final = 1.5
LATENCIES: Final = 300  # samples


class Member:
    """A member process, from this side: a module that answers line by line, see `member.py`."""

    def __init__(
        self,
        module: str,
        *words: str,
        python: str = sys.executable,
        at: Path | None = None,
        env: Mapping[str, str] | None = None,
        answer_s: float = ANSWER_S,  # what an answer may take
    ) -> None:
        self._answer_s = answer_s
        # It ends in __exit__; what it logs is shown only if it fails.
        self._log: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [python, "-m", module, *words],
            cwd=at,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, **(env or {})},
        )

    def __enter__(self) -> Self:
        self.first = self._hear()  # it is ready: everything is imported
        return self

    def kill(self) -> None:
        """Kill it, as a crash would."""
        self._process.kill()
        self._process.wait()

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(ANSWER_S)
        finally:
            self._process.kill()
            self._process.wait()
            self._log.close()

    def tell(self, **asked: Any) -> None:
        """Ask for something; the first thing told makes it enter its node."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """Return its next answer."""
        return self._hear()

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Ask, and return the answer."""
        self.tell(do=do, **arguments)
        return self._hear()

    def _hear(self) -> dict[str, Any]:
        out = self._process.stdout
        assert out is not None
        ready, _, _ = select.select([out], [], [], self._answer_s)
        line = out.readline() if ready else ""
        if not line:
            self._process.kill()
            self._process.wait()
            self._log.seek(0)
            raise RuntimeError(f"a member process failed:\n{self._log.read()[-4000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer


class Bench:
    """One run on one event loop."""

    def __init__(self, probe: Probe, loop: str, jobs: int) -> None:
        self.probe = probe
        self.loop = loop
        self.jobs = jobs
        self.report = Report(loop, JOBS_TABLE)

    def run(self) -> Report:
        """Take all measurements."""
        for _ in range(REPEATS):
            self.raw()
            self.dispatch()
            self.drain(1)
            self.drain(2)
        self.latency()
        self.rest()
        return self.report

    @contextmanager
    def pool(self) -> Iterator[str]:
        """Yield the name of a pool of its own, which is gone afterwards."""
        name = f"bench-{secrets.token_hex(4)}"
        try:
            yield name
        finally:
            self.probe.forget(name)

    def member(self, role: str, pool: str) -> Member:
        """Start a process."""
        return Member("benchmarks.member", role, self.loop, pool, self.probe.url)

    # --- the measurements -------------------------------------------------------------------------

    def raw(self) -> None:
        """What the server can do at all."""
        note = self.report.note
        for name, measure, count in (
            ("raw_xadd_pipelined", self.probe.xadd_pipelined, 20_000),
            ("raw_xadd_50_clients", self.probe.xadd_clients, 10_000),
        ):
            per_s, cpu_us = measure(count)
            note(f"{name}_per_s", per_s)
            note(f"{name}_redis_cpu_us", cpu_us)

    def dispatch(self) -> None:
        """Dispatch with nobody there to run the jobs."""
        with self.pool() as pool, self.member("client", pool) as client:
            client.tell()
            client.hear()
            for name, do, jobs, more in (
                ("dispatch_one_by_one", "one_by_one", self.jobs // 10, {}),
                (
                    f"dispatch_{CALLERS}_callers",
                    "callers",
                    self.jobs // 2,
                    {"count": CALLERS, "wait": False},
                ),
            ):
                before = self.probe.usage()
                told = client.ask(do, jobs=jobs, **more)
                self._note_costs(name, self.probe.usage() - before, jobs)
                self.report.note(f"{name}_per_s", jobs / told["seconds"])

    def drain(self, workers: int) -> None:
        """Queue jobs in bulk, then have so many worker processes run them."""
        jobs, note = self.jobs, self.report.note
        name = f"drain_{workers}"
        with self.pool() as pool, ExitStack() as stack:
            members = [stack.enter_context(self.member("worker", pool)) for _ in range(workers)]
            with self.member("client", pool) as client:
                client.tell()
                client.hear()
                start = self.probe.usage()
                told = client.ask("many", jobs=jobs)
                queued = self.probe.usage()
            bulk = queued - start
            self._note_costs("dispatch_many", bulk, jobs)
            note("dispatch_many_per_s", jobs / told["seconds"])
            note("dispatch_many_client_cpu_us", 1e6 * told["cpu_s"] / jobs)
            note("queued_job_bytes", bulk.memory_bytes / jobs)

            before = self.probe.usage()
            for member in members:
                member.tell()
            polls = self.probe.wait_done(pool, jobs, limit_s=ANSWER_S)
            ended_ns = time.monotonic_ns()
            used = self.probe.usage() - before
            for member in members:
                member.hear()
            reports = [member.ask("report") for member in members]
            starts_ns = [ns for told in reports for ns in told["starts_ns"]]
            if len(starts_ns) != jobs:
                raise RuntimeError(f"{jobs} jobs were dispatched, {len(starts_ns)} runs began")
            seconds = (ended_ns - min(starts_ns)) / 1e9
            note(f"{name}_per_s", jobs / seconds)
            note(f"{name}_worker_cpu_us", 1e6 * sum(told["cpu_s"] for told in reports) / jobs)
            self._note_costs(name, used, jobs, polls=polls)
            if workers == 1:
                note("ended_job_bytes", (used.memory_bytes + bulk.memory_bytes) / jobs)
                note("whole_life_redis_cpu_us", (used.cpu_us + bulk.cpu_us) / jobs)
            else:
                share = max(len(told["starts_ns"]) for told in reports) / jobs
                note(f"{name}_largest_share", share)

    def latency(self) -> None:
        """How soon a job starts and its result is back, in an idle pool and under a fixed load."""
        note, samples = self.report.note_all, LATENCIES
        with (
            self.pool() as pool,
            self.member("worker", pool) as worker,
            self.member("client", pool) as client,
        ):
            for member in (worker, client):
                member.tell()
                member.hear()
            client.ask("result_latency", jobs=samples // 10)  # scripts are loaded, caches warm
            worker.ask("report")
            asked_ns = client.ask("start_latency", jobs=samples)["asked_ns"]
            starts_ns = worker.ask("report")["starts_ns"]
            if len(starts_ns) != samples:
                raise RuntimeError(f"{samples} jobs were dispatched, {len(starts_ns)} began")
            pairs = zip(starts_ns, asked_ns, strict=True)
            note("idle_start_us", [(start - asked) / 1e3 for start, asked in pairs])
            before = self.probe.usage()
            told = client.ask("result_latency", jobs=samples)["latency_s"]
            self._note_costs("idle_result", self.probe.usage() - before, samples)
            note("idle_result_us", [1e6 * s for s in told])
            jobs = self.jobs // 4
            told_s = client.ask("callers", jobs=jobs, count=CALLERS, wait=True)["seconds"]
            self.report.note(f"result_{CALLERS}_callers_per_s", jobs / told_s)
            for rate in OPEN_RATES:
                told = client.ask("open_loop", rate_per_s=rate, seconds=OPEN_S)["latency_s"]
                note(f"open_loop_{rate:g}_per_s_result_us", [1e6 * s for s in told])

    def rest(self) -> None:
        """What a node with a worker costs when there is nothing to do."""
        with self.pool() as pool, self.member("worker", pool) as worker:
            worker.tell()
            worker.hear()
            time.sleep(1.0)  # joining is over
            cpu_s = worker.ask("report")["process_cpu_s"]
            before, began_s = self.probe.usage(), time.monotonic()
            time.sleep(IDLE_S)
            seconds, used = time.monotonic() - began_s, self.probe.usage() - before
            spent_s = worker.ask("report")["process_cpu_s"] - cpu_s
            self.report.note("idle_commands_per_s", max(0, used.reads - 1) / seconds)
            self.report.note("idle_cpu_percent", 100 * spent_s / seconds)

    def _note_costs(self, name: str, used: Usage, jobs: int, *, polls: int = 0) -> None:
        note = self.report.note
        note(f"{name}_redis_cpu_us", used.cpu_us / jobs)
        note(f"{name}_script_us", used.script_us / jobs)
        note(f"{name}_commands", (used.commands - polls) / jobs)
        note(f"{name}_round_trips", used.calls / jobs)
        note(f"{name}_bytes", (used.bytes_in + used.bytes_out) / jobs)


def compare_lanes(lanes: list[int], jobs: int) -> None:
    """Measure and print what lanes are worth."""

    def member(role: str, pool: str, url: str, count: int) -> Member:
        env = {LANES: str(count)}
        return Member("benchmarks.member", role, "asyncio", pool, url, env=env)

    load, program = os.getloadavg()[0], find_server("path")
    print(f"{os.cpu_count()} cores, load before {load:.1f}; {program.name} {program.version}")
    found = lanes_bench.run(member, program, lanes=lanes, jobs=jobs, repeats=REPEATS)
    print("\n".join(lanes_bench.lines(found)))


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.throughput", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to write JSON, too")
    parser.add_argument("--jobs", type=int, default=JOBS, help=f"per drain, default {JOBS}")
    parser.add_argument("--loop", choices=("asyncio", "trio", "both"), default="asyncio")
    parser.add_argument(
        "--url", help="a server to use (its figures must be ours alone); default: an embedded one"
    )
    parser.add_argument(
        "--lanes",
        type=int,
        nargs="+",
        help="compare pools of so many lanes instead, on one server and on a cluster",
    )
    given = parser.parse_args()
    if given.lanes:
        compare_lanes(given.lanes, given.jobs)
        return
    if given.jobs < 1000:
        parser.error("--jobs must be at least 1000: fewer are over before they can be measured")
    loops = ("asyncio", "trio") if given.loop == "both" else (given.loop,)
    with ExitStack() as stack:
        url = given.url
        if url is None:
            url = stack.enter_context(EmbeddedServer.start(find_server("path"))).url
        probe = Probe(url)
        stack.callback(probe.close)
        began_s, load = time.monotonic(), os.getloadavg()
        reports = [Bench(probe, loop, given.jobs).run() for loop in loops]
        measured = document(
            reports,
            server=probe.server(),
            transport=url.partition(":")[0],
            sizes=f"{given.jobs} jobs a drain",
            jobs=given.jobs,
            repeats=REPEATS,
            load_before=[round(each, 2) for each in load],
            seconds=time.monotonic() - began_s,
        )
    stored = json.dumps(measured.as_json(), indent=2)
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(stored + "\n", "utf-8")
    print(stored if given.json else f"{measured.as_text()}\n\n{MORE}")


if __name__ == "__main__":
    main()
