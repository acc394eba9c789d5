"""The proofs a sceptic would ask for, by name: `python -m tests.verify.proofs [NAME...]`.

Each runs on a real server of its own, with real processes where it is about processes, and prints
one line: its verdict, and the figure that was asked for.  Several are the tests of `tests/process`
themselves, called here with their figures shown.  The exit code is the verdict of all.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeAlias

import anyio
import attrs
import redis
import structlog

from pool import Handlers, Job, JobRef, Node, PoolError, Retry, Settings
from pool.errors import JobExists, JobParked
from pool.events import Event
from pool.names import Names
from pool.redis.embedded.server import EmbeddedServer, ServerProgram
from pool.testing import FaultProxy, audit, fault_proxy
from tests.process import test_kill, test_leaving
from tests.process.conftest import Fleet, Run, fleet_server
from tests.verify.chaos import program_for
from tests.verify.processors import Processors
from tests.verify.world import POOL

TTL_S: Final = 1.0
PATIENCE_S: Final = 60.0  # for what is bound to happen on a busy machine
DISPATCHERS: Final = 50
BACKENDS: Final = ("asyncio", "trio")


@attrs.define(eq=False)
class Stage:
    """What a proof is given: servers, fleets of processes, and a place for its figures."""

    program: ServerProgram
    backend: str
    directory: Path
    figures: dict[str, list[float]] = attrs.field(factory=dict)
    said: str = ""
    _stack: ExitStack = attrs.field(factory=ExitStack)
    _fleets: int = 0

    def server(self) -> EmbeddedServer:
        """Start a server that keeps its data."""
        made = EmbeddedServer.start(self.program, persist=True)
        return self._stack.enter_context(made)

    def make_fleet(
        self, *, ttl_s: float = TTL_S, package: Path | None = None, lanes: int = 1
    ) -> Fleet:
        """Return a fleet without members, on a server of its own."""
        assert package is None
        self._fleets += 1
        directory = self.directory / str(self._fleets)
        directory.mkdir()
        server = self._stack.enter_context(fleet_server(self.program, directory))
        fleet = Fleet(server, directory, ttl_s=ttl_s, lanes=lanes)
        self._stack.callback(fleet.close)
        return fleet

    def note(self, name: str, values: Sequence[float], /) -> None:
        """Keep a figure."""
        self.figures.setdefault(name, []).extend(values)

    def close(self) -> None:
        """End everything."""
        self._stack.close()

    @property
    def figure(self) -> str:
        """What stands beside the verdict."""
        parts = [self.said] if self.said else []
        for name, values in self.figures.items():
            ordered = sorted(values)
            middle = ordered[len(ordered) // 2]
            parts.append(f"{name} p50 {middle:.3f}, max {ordered[-1]:.3f} of {len(ordered)}")
        return "; ".join(parts)


Proof: TypeAlias = Callable[[Stage], None]
PROOFS: Final[dict[str, Proof]] = {}


def proof(name: str) -> Callable[[Proof], Proof]:
    """Register a function as the proof of this name."""

    def register(prove: Proof) -> Proof:
        PROOFS[name] = prove
        return prove

    return register


def _run(stage: Stage, work: Callable[..., Any], *args: Any) -> Any:
    return anyio.run(partial(work, stage, *args), backend=stage.backend)


def _settings(**more: Any) -> Settings:
    return Settings(**{"lease_ttl_s": TTL_S, "op_timeout_s": 2.0, "grace_s": 1.0, **more})


def _sound(url: str) -> None:
    with redis.Redis.from_url(url) as client:
        assert not (problems := audit(client, POOL)), problems


# --- jobs ------------------------------------------------------------------------------------


@proof("happy path")
def happy_path(stage: Stage) -> None:
    """400 jobs on three processes: each has its result, and ran exactly once."""
    fleet = stage.make_fleet()
    client = fleet.start("client", is_client=True)[0]
    fleet.start("a", "b", "c")
    began = time.monotonic()
    jobs = fleet.dispatch(client, "nap", [f"job-{i}" for i in range(400)], 0.0)
    results = fleet.results(client, jobs)
    took = time.monotonic() - began
    assert all(isinstance(result, dict) for result in results.values()), results
    runs = fleet.runs(jobs)
    assert len(runs) == len(jobs), f"{len(runs)} runs of {len(jobs)} jobs"
    fleet.is_sound()
    shares = Counter(run.node for run in runs)
    stage.said = f"{len(jobs)} jobs, {len(runs)} runs on {dict(shares)}, {took:.2f} s"


@proof("no double grant under 50 dispatchers of one key")
def no_double_grant(stage: Stage) -> None:
    """50 nodes dispatch the same key at the same moment: one is accepted, 49 are told of it."""
    _run(stage, _one_key, stage.server().url)


async def _one_key(stage: Stage, url: str, rounds: int = 10) -> None:
    handlers = Handlers()
    running: Counter[str] = Counter()
    most = 0
    asked = anyio.Event()  # all of a round: one that came when the key is free again is accepted

    @handlers.job("hold")
    async def hold(job: Job) -> str:
        nonlocal most
        running[job.key] += 1
        most = max(most, running[job.key])
        await asked.wait()
        running[job.key] -= 1
        return job.id

    accepted: dict[str, list[JobRef[Any]]] = {}
    refused: list[JobExists] = []

    async def dispatch(node: Node, key: str) -> None:
        try:
            accepted.setdefault(key, []).append(await node.dispatch("hold", key))
        except JobExists as error:
            refused.append(error)

    settings = _settings(lease_ttl_s=5.0, op_timeout_s=10.0)  # 52 nodes in one process
    workers = [Node(POOL, url, handlers=handlers, settings=settings) for _ in range(2)]
    nodes = [Node(POOL, url, settings=settings) for _ in range(DISPATCHERS)]
    async with AsyncExitStack() as stack:
        for node in (*workers, *nodes):
            await stack.enter_async_context(node)
        for number in range(rounds):
            asked = anyio.Event()
            async with anyio.create_task_group() as tasks:
                for node in nodes:
                    tasks.start_soon(dispatch, node, f"key-{number}")
            asked.set()
            await accepted[f"key-{number}"][0].result(PATIENCE_S)
    assert [len(refs) for refs in accepted.values()] == [1] * rounds, "granted twice"
    assert len(refused) == rounds * (DISPATCHERS - 1)
    assert all(error.job_id == accepted[error.key][0].job_id for error in refused)
    assert most == 1
    _sound(url)
    stage.said = f"{rounds} rounds of {DISPATCHERS}: {rounds} granted, {len(refused)} refused"


@proof("retry, backoff and dead letter")
def retries(stage: Stage) -> None:
    """Attempts keep their waits, full jitter and asked for; the last failure parks, once."""
    server = stage.server()
    _run(stage, _retries, server.url, server.pid)


async def _retries(stage: Stage, url: str, pid: int, jobs: int = 20) -> None:
    handlers = Handlers()
    starts: dict[str, list[float]] = {}
    backoff_s, backoff_max_s, asked_s = 0.1, 0.25, 0.3

    @handlers.job("fails", attempts_max=4, backoff_s=backoff_s, backoff_max_s=backoff_max_s)
    async def fails(job: Job, after_s: float | None) -> None:
        starts.setdefault(job.key, []).append(anyio.current_time())
        assert job.attempt == len(starts[job.key])
        if after_s is not None:
            raise Retry(after_s=after_s)
        raise RuntimeError("always")

    parked: list[int] = []
    processors = Processors()
    for each in (pid, os.getpid()):
        processors.waited_s(each)
    async with Node(POOL, url, handlers=handlers, settings=_settings()) as node:
        refs = [
            await node.dispatch(fails, f"key-{i}", asked_s if i % 2 else None) for i in range(jobs)
        ]
        for ref in refs:
            try:
                await ref.result(PATIENCE_S)
            except JobParked as error:
                parked.append(error.attempts)
    waits = {key: [b - a for a, b in pairwise(at)] for key, at in starts.items()}
    assert parked == [4] * jobs
    assert all(len(each) == 3 for each in waits.values()), waits
    late_s = 0.5 + sum(map(processors.waited_s, (pid, os.getpid())))  # the sweeper's, the machine's
    for number in range(jobs):
        for attempt, wait in enumerate(waits[f"key-{number}"]):
            cap = min(backoff_max_s, backoff_s * 2**attempt)
            low, high = (asked_s - 0.002, asked_s) if number % 2 else (0.0, cap)
            assert low <= wait <= high + late_s, (number, attempt, wait)
    with redis.Redis.from_url(url) as client:
        letters: Any = client.hlen(Names(POOL, 0).letters)
        assert letters == jobs
    _sound(url)
    stage.said = f"{jobs} jobs of 4 attempts, {letters} dead letters"
    stage.note("asked for 0.3 s, waited", [w for i in range(1, jobs, 2) for w in waits[f"key-{i}"]])


@proof("dispatch and settle once, though replies are lost")
def reply_loss(stage: Stage) -> None:
    """The pipeline of dispatcher and worker loses replies again and again: one job a call, run
    once, settled once.
    """
    _run(stage, _reply_loss, stage.server().url)


async def _reply_loss(stage: Stage, url: str, jobs: int = 25) -> None:
    handlers = Handlers()
    runs: Counter[str] = Counter()
    resent: list[Event] = []

    @handlers.job("work")
    async def work(job: Job, call: str) -> str:
        runs[call] += 1
        return job.id

    unknown = 0
    async with fault_proxy(url) as mine, fault_proxy(url) as theirs:
        settings = _settings(lease_ttl_s=5.0)
        worker = Node(POOL, theirs.url, handlers=handlers, settings=settings)
        client = Node(POOL, mine.url, settings=settings, observers=(resent.append,))
        async with worker, client, _losing(mine, theirs):
            for number in range(jobs):
                try:
                    ref = await client.dispatch("work", f"key-{number}", f"call-{number}")
                except PoolError:
                    unknown += 1
                    continue
                while True:
                    try:
                        assert await ref.result(PATIENCE_S) == ref.job_id
                    except PoolError:
                        continue
                    break
        cuts = mine.connections + theirs.connections
    assert set(runs.values()) == {1}, runs
    assert len(runs) >= jobs - unknown
    with redis.Redis.from_url(url) as by_hand:
        outcomes = list(by_hand.scan_iter(match=Names(POOL, 0).prefix + "result:*", count=1000))
        done: Any = by_hand.hget(Names(POOL, 0).lane, "done")
        assert int(done) == len(outcomes) == len(runs), (done, len(outcomes), len(runs))
    _sound(url)
    stage.said = f"{jobs} calls, {len(runs)} jobs, {int(done)} settled, over {cuts} connections"


@asynccontextmanager
async def _losing(*proxies: FaultProxy) -> AsyncIterator[None]:
    """Swallow replies, then cut the connection, on each pipeline in turn, while the body runs."""

    async def lose() -> None:
        while True:
            for proxy in proxies:
                await anyio.sleep(0.03)
                proxy.drop_replies = True
                await anyio.sleep(0.02)
                await proxy.heal()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lose)
        yield
        tasks.cancel_scope.cancel()
    for proxy in proxies:
        await proxy.heal()


@proof("run-time limit of a hung worker")
def run_time_limit(stage: Stage) -> None:
    """Its loop is blocked, or it swallows cancellation: the attempt is over all the same."""
    for handler in ("blocking", "stubborn"):
        test_kill.test_a_run_time_limit_holds_though_the_owner_does_not_enforce_it(
            stage.make_fleet(), handler
        )
    stage.said = "blocked loop: attempt 2 settled; swallowed cancellation: parked"


# --- recovery --------------------------------------------------------------------------------


@proof("lease expiry and takeover in time")
def takeover(stage: Stage) -> None:
    """SIGKILL under load: running and queued jobs start elsewhere within TTL + 1 s."""
    test_kill.test_running_and_queued_jobs_of_a_killed_node_restart_elsewhere_in_time(
        stage.make_fleet(), stage.note
    )
    stage.said = f"bound {TTL_S + 1.0:.1f} s"


@proof("one reaper among five")
def one_reaper(stage: Stage) -> None:
    """Five nodes see the same lease end: one reaps, and no key is moved twice."""
    fleet = stage.make_fleet()
    victim, *others = fleet.start("a", "b", "c", "d", "e", "f")
    clocks = [f"clock-{i}" for i in range(60)]
    fleet.dispatch(others[0], "clock", clocks)
    fleet.are_running(clocks)
    lost = test_kill.held_by(fleet, victim, clocks)
    assert lost
    at_s = fleet.kill(victim)
    took = fleet.took_over(lost, at_s, victim, within_s=TTL_S + 1.0)
    worker = fleet.said("ready", node=victim.name)[0]["worker"][0]
    reaped = fleet.until(
        lambda: [
            event
            for event in fleet.events("worker.reaped")
            if event["facts"]["identity"].startswith(worker)
        ],
        what="it is reaped",
    )
    fleet.passes(at_s, 2 * TTL_S + 1.0)  # a second reaper would have had its time
    again = {key: len(_runs_after(fleet, key, at_s)) for key in lost}
    assert len(reaped) == 1, reaped
    assert set(again.values()) == {1}, again
    fleet.is_sound()
    stage.note("takeover", took)
    stage.said = f"{len(lost)} keys moved once each, by {reaped[0]['node']}"


def _runs_after(fleet: Fleet, key: str, at_s: float) -> list[Run]:
    return [run for run in fleet.runs([key]) if run.began_s > at_s]


@proof("a reaper that dies is succeeded")
def reaper_dies(stage: Stage) -> None:
    """It had the claim: its successor has a higher fence."""
    test_kill.test_a_reaper_that_dies_with_the_claim_is_succeeded(stage.make_fleet(), stage.note)
    stage.said = f"bound {TTL_S + 1.5:.1f} s"


@proof("cold restart of everything")
def cold_restart(stage: Stage) -> None:
    """All nodes and the server are killed: from its file alone everything goes on and ends."""
    fleet = stage.make_fleet()
    gate = fleet.directory / "gate"
    first, second = fleet.start("a", "b", capacity=30)
    clocks = fleet.dispatch(first, "clock", [f"clock-{i}" for i in range(10)])
    jobs = fleet.dispatch(first, "held", [f"job-{i}" for i in range(80)], str(gate))
    fleet.until(lambda: len(fleet.alive()) == 60, what="all slots are taken")
    for node in (first, second):
        fleet.kill(node)
    fleet.server.kill()
    fleet.server.restart()
    gate.touch()
    fleet.start("c", "d")
    client = fleet.start("client", is_client=True)[0]
    back_s = max(said["at_s"] for said in fleet.said("ready") if said["node"] in ("c", "d"))
    after = fleet.are_running(clocks, within_s=TTL_S + 1.0)
    stage.note("services back after", [max(0.0, run.began_s - back_s) for run in after.values()])

    def states() -> set[str]:
        with fleet.client() as by_hand:
            names = [Names(fleet.pool, 0).result(key, job) for key, job in jobs.items()]
            texts: Any = by_hand.mget(names)
        return {text.decode().partition("|")[0] if text else "" for text in texts}

    fleet.until(lambda: states() == {"done"}, what="all jobs are done")
    assert client.process.poll() is None
    fleet.is_sound()
    stage.said = f"{len(jobs)} jobs done, {len(clocks)} services back, bound {TTL_S + 1.0:.1f} s"


@proof("a frozen process cannot settle")
def frozen(stage: Stage) -> None:
    """SIGSTOP for three leases; what it settles when it thaws is refused."""
    test_kill.test_a_node_frozen_for_three_leases_is_refused_and_works_again(
        stage.make_fleet, stage.note
    )


@proof("no mass eviction after an outage")
def outage(stage: Stage) -> None:
    """The server is frozen for three leases under five nodes: nobody is reaped, nothing moves."""
    fleet = stage.make_fleet()
    nodes = fleet.start("a", "b", "c", "d", "e")
    clocks = [f"clock-{i}" for i in range(50)]
    fleet.dispatch(nodes[0], "clock", clocks)
    before = fleet.are_running(clocks)
    os.kill(fleet.server.pid, signal.SIGSTOP)
    try:
        fleet.passes(fleet.now_s(), 3 * TTL_S)
    finally:
        os.kill(fleet.server.pid, signal.SIGCONT)
    thawed_s = fleet.now_s()
    after = fleet.are_running(clocks, within_s=2 * TTL_S)
    fleet.passes(thawed_s, 2 * TTL_S)
    moved = [key for key in clocks if after[key].node != before[key].node]
    assert not moved, moved
    assert {key: run.epoch for key, run in after.items()} == {
        key: run.epoch for key, run in before.items()
    }
    assert not fleet.events("worker.reaped")
    assert fleet.counter("crashed") == 0
    fleet.is_sound()
    stage.note("resumed", [run.began_s - thawed_s for run in after.values()])
    stage.said = f"0 of {len(clocks)} moved, 0 of {len(nodes)} reaped"


@proof("rolling restart without loss")
def rolling_restart(stage: Stage) -> None:
    """Three nodes are replaced one after the other: zero lost, each service moves at most twice."""
    test_leaving.test_a_rolling_restart_loses_nothing_and_moves_a_service_at_most_twice(
        stage.make_fleet, stage.note
    )
    stage.said = "250 jobs, 0 lost"


# --- running them ----------------------------------------------------------------------------


def prove(name: str, program: ServerProgram, backend: str) -> tuple[bool, str, float]:
    """Run one proof; returns whether it holds, its figure or what was wrong, and how long."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pool-proof-") as directory:
        stage = Stage(program, backend, Path(directory))
        try:
            PROOFS[name](stage)
        except Exception as error:  # noqa: BLE001 - whatever it raises, the proof has failed
            where = traceback.format_exc()
            return False, f"{type(error).__name__}: {error}\n{where}", time.monotonic() - began
        finally:
            stage.close()
    return True, stage.figure, time.monotonic() - began


def verdicts(names: Sequence[str], program: ServerProgram) -> Iterator[bool]:
    """Prove and print one after the other, on one event loop and the other in turn."""
    for number, name in enumerate(names):
        backend = BACKENDS[number % 2]
        is_proved, said, took = prove(name, program, backend)
        sys.stdout.write(f"{'ok  ' if is_proved else 'FAIL'} {name:50} {took:5.1f} s  {said}\n")
        sys.stdout.flush()
        yield is_proved


def main() -> int:
    """Prove what the command line names, by default everything."""
    parser = argparse.ArgumentParser(prog="python -m tests.verify.proofs", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="the beginning of a proof's name")
    parser.add_argument("--server", default="valkey", help="name of the server program")
    given = parser.parse_args()
    names = [
        name
        for name in PROOFS
        if not given.names or any(name.startswith(begin) for begin in given.names)
    ]
    # One line a proof: what the library logs while its links are cut is not what is asked for.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    program = program_for(given.server)
    began = time.monotonic()
    held = list(verdicts(names, program))
    sys.stdout.write(
        f"{sum(held)} of {len(held)} proofs hold on {program.name} {program.version}, "
        f"{time.monotonic() - began:.0f} s\n"
    )
    return 0 if all(held) and held else 1


if __name__ == "__main__":
    sys.exit(main())
