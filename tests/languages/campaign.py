"""Jobs over HTTP, under kills: `python -m tests.languages.campaign --jobs 10000 --seed 1`.

Eight workers in three languages ask two gateways.  Both kinds are killed at random, and come again.
Jobs are dispatched over HTTP too, some by each request; one whose answer was lost is sent again,
under the same ids.  What the handlers have written is judged by the checker of tests/verify, and
beside it what the clients say themselves: of no job that it was done twice.

So few jobs are under way at a time that there is always room, so that the checker can say of each
whether it began in time.  The exit code is the verdict.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import redis

from pool.redis.embedded.server import ServerProgram, find_server
from pool.testing import audit
from tests.languages.fleet import POOL, Fleet, Language, Process, until
from tests.languages.toolchain import Toolchain
from tests.verify import dump
from tests.verify.checker import Bounds, Report, check, load
from tests.verify.history import digest_of
from tests.verify.processors import Processors

CREW: Final[dict[Language, int]] = {"javascript": 3, "go": 3, "shell": 2}
CAPACITY: Final = 8  # of each but those in sh, which do one thing at a time
TOGETHER_MAX: Final = 20  # jobs of one request
UNDER_WAY_MAX: Final = 32  # of 50 slots
KEYS_SHARE: Final = 0.7  # keys for each job: some have several, which queue
KILL_EVERY_S: Final = (4.0, 12.0)  # a worker; and so a gateway
BOTH: Final = 0.2  # of the kills of gateways hit both at once
REST_S: Final = (0.1, 1.0)  # before the next process
READERS: Final = 4
LOOK_S: Final = 0.1  # between two looks at the leases, which are renewed every second
STALL_S: Final = 0.5  # between two looks at how long threads waited for a processor,
STALLED_S: Final = 0.05  # and what is worth telling of it


@attrs.frozen(kw_only=True)
class Verdict:
    """How a campaign ended."""

    report: Report
    jobs: int
    took_s: float
    kills: dict[str, int]
    ends: dict[str, int]  # by the last state of the store
    said: dict[str, int]  # what clients say became of runs
    ran: dict[str, int]  # runs, by language
    twice: tuple[str, ...]  # jobs that were said to be done more than once
    directory: Path

    @property
    def ok(self) -> bool:
        """Whether nothing was lost, and nothing was wrong."""
        return self.report.ok and not self.twice and self.ends == {"done": self.jobs}

    def text(self) -> str:
        """Return it for people."""
        rows = {
            "jobs": f"{self.jobs} in {self.took_s:.0f} s, load {os.getloadavg()[0]:.1f}",
            "ended": self.ends,
            "runs": self.ran,
            "clients say": self.said,
            "said done twice": len(self.twice),
            "kills": self.kills,
        }
        lines = [f"{name:16} {value}" for name, value in rows.items()]
        return "\n".join([self.report.text(load(_histories(self.directory))), *lines])


def _histories(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.jsonl"))


@attrs.define(eq=False)
class Campaign:
    """A fleet, what is asked of it, and what happens to it."""

    fleet: Fleet
    jobs: int
    dice: random.Random
    crew: dict[str, Process] = attrs.field(factory=dict)
    kills: Counter[str] = attrs.field(factory=Counter)
    over: threading.Event = attrs.field(factory=threading.Event)
    keys: dict[str, str] = attrs.field(factory=dict)  # of each job

    def run(self) -> Verdict:
        """Run it, and judge it."""
        for language, count in self.crew_of().items():
            for number in range(1, count + 1):
                name = f"{language}-{number}"
                capacity = 1 if language == "shell" else CAPACITY
                self.crew[name] = self.fleet.worker(language, name=name, capacity=capacity)
        watching = (self._watch_leases, self._watch_processors, self._take_snapshots)
        hurting = (self._kill_workers, self._kill_gateways)
        with ThreadPoolExecutor(len(watching)) as watchers:
            watched = [watchers.submit(self._beside, each) for each in watching]
            began_s = time.monotonic()
            with ThreadPoolExecutor(len(hurting)) as killers:
                killed = [killers.submit(each) for each in hurting]
                try:
                    self._dispatch_all()
                    self._await_all()
                finally:
                    self.over.set()
            took_s = time.monotonic() - began_s
            self.fleet.record("heal")
            for each in killed:
                each.result()
            self._ask_results()
            self._finish()
            for each in watched:
                each.result()
        return self._judge(took_s)

    @staticmethod
    def crew_of() -> dict[Language, int]:
        """Return how many workers of each language there are."""
        return CREW

    # --- what is asked ---

    def _dispatch_all(self) -> None:
        sent = 0
        while sent < self.jobs:
            room = until(lambda: max(0, UNDER_WAY_MAX - self._live()), "nothing ends any more")
            count = min(room, TOGETHER_MAX, self.jobs - sent)
            self._dispatch(range(sent, sent + count))
            sent += count

    def _dispatch(self, numbers: Sequence[int]) -> None:
        bodies, about = [], []
        for number in numbers:
            spec = {
                "ms": self.dice.choice((0, 0, 0, 5, 20, 100)) if number % 20 else 1000,
                "fails": int(self.dice.random() < 0.03),
            }
            key, job = f"k{self.dice.randrange(int(self.jobs * KEYS_SHARE))}", f"j{number}"
            self.keys[job] = key
            text = json.dumps(spec, sort_keys=True)
            body = {"handler": "work", "key": key, "args": [job, text], "job_id": job}
            bodies.append({**body, "if_exists": "queue", "queue_max": 100})
            extra = {"digest": digest_of(spec), "kind": "job", "policy": "queue"}
            about.append({"key": key, "idem": job, "extra": extra})
        at_s = time.monotonic()
        for each in about:
            self.fleet.record("dispatch", "invoke", t=at_s, **each)
        told = self.fleet.ask("POST", "/v1/jobs", {"jobs": bodies})
        assert told["accepted"] == len(bodies), told
        at_s = time.monotonic()
        for each, taken in zip(about, told["jobs"], strict=True):
            self.fleet.record("dispatch", t=at_s, job=taken["job_id"], **each)

    def _live(self) -> int:
        with self._client() as client:
            return int(dump.snapshot(client, POOL)["live"])

    def _await_all(self) -> None:
        for _ in iter(self._live, 0):
            threading.Event().wait(LOOK_S)

    def _ask_results(self) -> None:
        def ask(job: str) -> None:
            key = self.keys[job]
            about: dict[str, Any] = {"key": key, "job": job, "idem": f"result-{job}"}
            self.fleet.record("result", "invoke", **about)
            told = self.fleet.ask("GET", f"/v1/jobs/{key}/{job}")
            if told["has_result"]:
                self.fleet.record("result", result=told["result"], **about)
            else:
                self.fleet.record("result", "info", err=told["state"], **about)

        with ThreadPoolExecutor(READERS) as readers:
            list(readers.map(ask, self.keys))

    # --- what happens ---

    def _kill_workers(self) -> None:
        while not self.over.wait(self.dice.uniform(*KILL_EVERY_S)):
            worker = self.dice.choice([*self.crew.values()])
            worker.kill()
            self.kills[worker.name.partition("-")[0]] += 1
            self.over.wait(self.dice.uniform(*REST_S))
            worker.start()
            self.fleet.await_registered(worker)

    def _kill_gateways(self) -> None:
        while not self.over.wait(self.dice.uniform(*KILL_EVERY_S)):
            both = self.dice.random() < BOTH
            chosen = self.fleet.gateways if both else [self.dice.choice(self.fleet.gateways)]
            with self._nobody_answers() if both else contextlib.nullcontext():
                for gateway in chosen:
                    gateway.kill()
                    self.kills["gateway"] += 1
                self.over.wait(self.dice.uniform(*REST_S))
                for gateway in chosen:
                    gateway.start()
                for gateway in chosen:
                    gateway.await_ready()

    @contextmanager
    def _nobody_answers(self) -> Iterator[None]:
        """Write down that no gateway does: as if the server were away."""
        extra = {"id": f"none {time.monotonic()}", "kind": "no-gateway", "does": "store"}
        self.fleet.record("fault", "invoke", extra={**extra, "target": ""})
        yield
        self.fleet.record("fault", "ok", extra={**extra, "target": ""})

    # --- what is seen ---

    def _client(self) -> redis.Redis:
        return redis.Redis.from_url(self.fleet.server.url, socket_timeout=10.0)

    def _beside(self, look_again: Callable[[redis.Redis], float]) -> None:
        with self._client() as client:
            while not self.over.wait(look_again(client)):
                pass

    def _watch_leases(self, client: redis.Redis) -> float:
        """Write down the server's account of renewals: one may hide another, none is invented."""
        asked_s = time.monotonic()  # the server reads its clock later: every lease ends later
        now_s, ends = dump.leases(client, POOL)
        if time.monotonic() - asked_s <= LOOK_S:
            for nonce, end_s in ends.items():
                until_s = asked_s + end_s - now_s - 0.001  # it counts in whole milliseconds
                extra = {"asked": until_s - self.fleet.ttl_s, "until": until_s}
                self.fleet.record("lease", nonce=nonce, extra=extra)
        return LOOK_S

    def _take_snapshots(self, client: redis.Redis) -> float:
        self.fleet.record("snapshot", extra=dump.snapshot(client, POOL))
        return 1.0

    def _watch_processors(self, _: redis.Redis) -> float:
        pids = {"driver/1": os.getpid(), "server": self.fleet.server.pid}
        for process in (*self.crew.values(), *self.fleet.gateways):
            pids[process.p] = process.pid
        waited = {p: self._processors.waited_s(pid) for p, pid in pids.items()}
        told = {p: round(s, 3) for p, s in waited.items() if s >= STALLED_S}
        if told:
            self.fleet.record("stall", "info", extra={"waited": told})
        return STALL_S

    _processors: Processors = attrs.field(factory=Processors)

    # --- the end ---

    def _finish(self) -> None:
        """Have everybody leave, and look at what is left."""
        for process in (*self.crew.values(), *self.fleet.gateways):
            code = process.leave()
            assert code == 0, f"{process.p} left with {code}: {process.log()}"
        with self._client() as client:
            began_s = time.monotonic()
            found = dump.state_of(client, POOL)
            extra = {
                **found,
                "began": began_s,
                "live": [],
                "drained": True,
                "unknown": dump.left_behind(client, POOL),
                "claims": dump.claims(client, POOL),
                "problems": found["problems"] + audit(client, POOL),
            }
        self.fleet.record("final_state", extra=extra)

    def _judge(self, took_s: float) -> Verdict:
        events = load(_histories(self.fleet.directory))
        bounds = Bounds(ttl_s=self.fleet.ttl_s, grace_s=2.0, slack_s=1.0)
        [final] = [event for event in events if event.f == "final_state"]
        ends = Counter(each["word"] for each in final.extra["outcomes"].values())
        lines = [line for each in self.crew.values() for line in each.lines if "outcome" in line]
        done = Counter(line["id"] for line in lines if line["outcome"] == "done")
        return Verdict(
            report=check(events, bounds),
            jobs=self.jobs,
            took_s=took_s,
            kills=dict(self.kills),
            ends=dict(ends),
            said=dict(Counter(line["outcome"] for line in lines)),
            ran=dict(Counter(e.p.partition("-")[0] for e in events if e.f == "start")),
            twice=tuple(job for job, count in done.items() if count > 1),
            directory=self.fleet.directory,
        )


def campaign(
    program: ServerProgram, directory: Path, toolchain: Toolchain, jobs: int, seed: int
) -> Verdict:
    """Run a campaign."""
    with Fleet.made(program, directory, toolchain) as fleet:
        return Campaign(fleet, jobs, random.Random(seed)).run()


def main() -> int:
    """Run a campaign and tell how it ended; what was bad is kept."""
    parser = argparse.ArgumentParser(prog="python -m tests.languages.campaign", description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="the histories and logs, also if good")
    given = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="pool-languages-"))
    with tempfile.TemporaryDirectory() as built:
        toolchain = Toolchain.found(Path(built))
        verdict = campaign(find_server("wheel"), directory, toolchain, given.jobs, given.seed)
    sys.stdout.write(f"{verdict.text()}\n")
    if given.keep or not verdict.ok:
        sys.stdout.write(f"histories and logs: {directory}\n")
    else:
        shutil.rmtree(directory)
    return 0 if verdict.ok else 1


if __name__ == "__main__":
    sys.exit(main())
