"""Black-box chaos: `python -m tests.verify.chaos --seconds 60 --seed 7`, `--fault NAME`, `--each`.

Real processes, half on asyncio, half on trio, a real server, a fault proxy for each node, a lease
of 2 s.  Phases: set up, warm up 3 s, chaos, heal, drain, dump, leave, check, report.  The seed
draws the schedule, not the interleaving: it says what is done when, real time says the rest.  The
exit code is the verdict; histories and logs are kept when it is bad, or with `--keep`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import anyio
import attrs
import redis

from pool.core.batches import CHECK_S
from pool.redis.embedded.server import ServerProgram, find_servers
from pool.testing import audit
from tests.verify import dump
from tests.verify.batching import SETTLED
from tests.verify.checker import Bounds, Report, check, load
from tests.verify.faults import FAULTS, NEVER, drawn, lasts_s
from tests.verify.flows import GOES_ON_S, OPEN_S, STORE, account, looks
from tests.verify.history import Event, file_sink
from tests.verify.processors import Processors
from tests.verify.report import page
from tests.verify.service import HEALED
from tests.verify.world import POOL, Member, World, in_thread, made

WARM_UP_S: Final = 3.0
TOGETHER_MAX: Final = 3  # faults at the same time
STALL_S: Final = 0.5  # between two looks at how long threads waited for a processor,
STALLED_S: Final = 0.05  # and what is worth telling of it
LOOK_S: Final = 0.1  # between two looks at the leases, which are renewed every 0.4 s
EVERY_S: Final = (2.0, 5.0)  # from one fault to the next
LOSS_IN: Final = 3  # one seed in so many may lose the server's data: it excuses much
# What the campaigns of `--each` must have seen together, else they have shown too little.
MUST_SEE: Final = (
    *("stale commit refused", "job taken over after a crash", "worker reaped"),
    *("worker joined again", "self-fence fired", "resumed after a self-fence"),
    *("hung loop reported", "handler outlived its lease", "data loss detected"),
    *("dispatch of unknown outcome", "... that was accepted", "scripts were flushed"),
    *("job parked", "job cancelled", "job retried", "job ran more than once"),
)
FINISH_S: Final = 45.0  # for what the producers wait for, behind the invariants' own bound
LEAVES_S: Final = 20.0
SETTLES_S: Final = CHECK_S + OPEN_S + 30.0  # for batches whose members were lost


Hurt: TypeAlias = Callable[[World, "Plan"], Awaitable[None]]


@attrs.frozen(kw_only=True)
class Plan:
    """What a campaign does."""

    seed: int
    seconds: float
    fault: str = ""  # alone; empty: a mixture
    nodes: int = 4
    per_s: float = 30.0
    program: ServerProgram
    settings: dict[str, Any] = attrs.field(factory=dict)
    hurt: Hurt | None = None  # what to do instead of drawing faults
    keeps_outcomes: bool = True
    apart: bool = False  # each process in a network of its own
    slack_s: float = 0.5  # what this machine may add to every bound
    lanes: int = 0  # 0: as many as the fault takes, or the seed says
    has_flows: bool = True  # followers, batches and schedules

    @property
    def name(self) -> str:
        """What the campaign is called."""
        lanes = f"-{self.lanes}-lanes" if self.lanes else ""
        return f"{self.fault or 'mixture'}-{self.seed}{lanes}"

    @property
    def deaf(self) -> frozenset[str]:
        """Whose log lines go into a pipe that nobody reads."""
        return frozenset({"n1", "n2", "n3"} if self.fault == "deaf-log" else ())

    @property
    def bounds(self) -> Bounds:
        """What the checker allows: the handlers' limits and the campaign's lease."""
        return Bounds(
            ttl_s=2.0,
            attempts_max=4,
            backoff_max_s=0.5,
            limit_s=7.5,
            grace_s=2.0,
            queue_s=15.0,
            slack_s=self.slack_s,
            keeps_outcomes=self.keeps_outcomes,
        )


@attrs.frozen(kw_only=True)
class Verdict:
    """How a campaign ended."""

    plan: Plan
    report: Report
    injected: dict[str, int]
    impossible: dict[str, str]
    troubles: tuple[str, ...]  # the harness's own: they make a verdict bad as well
    directory: Path
    took_s: float

    @property
    def ok(self) -> bool:
        """Whether nothing was wrong, with the pool or with the harness."""
        return self.report.ok and not self.troubles

    @property
    def is_apart(self) -> bool:
        """Whether every process had a network of its own."""
        return self.plan.apart and "namespaces" not in self.impossible

    def told(self) -> dict[str, Any]:
        """Return it as what JSON can hold."""
        return {
            "ok": self.ok,
            "campaign": self.plan.name,
            "seed": self.plan.seed,
            "seconds": self.plan.seconds,
            "server": f"{self.plan.program.name} {self.plan.program.version}",
            "took_s": round(self.took_s, 1),
            "network": "a namespace for each process" if self.is_apart else "loopback",
            "injected": self.injected,
            "not injected": {**NEVER, **self.impossible},
            "troubles": list(self.troubles),
            **self.report.verdict(),
        }


async def campaign(plan: Plan, directory: Path) -> Verdict:
    """Run one campaign, and judge it."""
    began = time.monotonic()
    troubles: list[str] = []
    fsync = FAULTS[plan.fault].fsync if plan.fault else ("everysec", "always")[plan.seed % 2]
    async with (
        made(
            directory,
            plan.program,
            seed=plan.seed,
            nodes=plan.nodes,
            fsync=fsync,
            per_s=plan.per_s,
            settings=plan.settings,
            apart=plan.apart,
            deaf=plan.deaf,
            has_flows=plan.has_flows,
            lanes=plan.lanes
            or (FAULTS[plan.fault].lanes if plan.fault else (1, 1, 2, 4)[plan.seed % 4]),
        ) as world,
        anyio.create_task_group() as watchers,
    ):
        watchers.start_soon(_watch_processors, world)  # jobs are dispatched from now on
        if not await world.all_up():
            troubles.append("not every process joined at the beginning")
        await anyio.sleep(WARM_UP_S)
        watchers.start_soon(_watch_leases, world)
        watchers.start_soon(_take_snapshots, world)
        await (plan.hurt or _hurt)(world, plan)
        if not await world.all_up():
            troubles.append("not every process was back after the chaos")
        (directory / HEALED).touch()
        world.record("heal")
        drained = await _drain(world, plan.bounds)
        await _finish(world, drained, troubles)
        watchers.cancel_scope.cancel()
    troubles += world.troubles
    tell = file_sink(directory / f"{STORE}.jsonl")
    for told in account(load(histories(directory))):
        tell(told)
    events = load(histories(directory))
    report = check(events, plan.bounds)
    verdict = Verdict(
        plan=plan,
        report=report,
        injected=world.injected,
        impossible=world.impossible,
        troubles=tuple(troubles),
        directory=directory,
        took_s=time.monotonic() - began,
    )
    await in_thread(partial(_write, verdict, events))
    return verdict


def histories(directory: Path) -> list[Path]:
    """Return the files of a campaign's history."""
    return sorted(directory.glob("*.jsonl"))


async def _hurt(world: World, plan: Plan) -> None:
    """Inject faults until the time is over; those under way end by themselves."""
    until = anyio.current_time() + plan.seconds
    with_loss = not plan.seed % LOSS_IN
    active: Counter[str] = Counter()

    async def hurt(name: str) -> None:
        active[name] += 1
        try:
            await FAULTS[name].hurt(world, name)
        finally:
            active[name] -= 1
        world.injected[name] = world.injected.get(name, 0) + 1

    async with anyio.create_task_group() as tasks:
        while anyio.current_time() < until:
            if plan.fault:
                await hurt(plan.fault)
                await anyio.sleep(world.ttl_s)
                continue
            name = drawn(world, with_loss=with_loss)
            if sum(active.values()) < TOGETHER_MAX and not active[name]:
                tasks.start_soon(hurt, name)
            await anyio.sleep(world.dice.uniform(*EVERY_S))


async def _take_snapshots(world: World) -> None:
    """Read the lanes' counters and schedules now and then, whenever the server answers."""

    def take() -> dict[str, int] | None:
        with world.admin() as client:
            world.look_for_refusals(client)
            _look_at_schedules(world, client)
            return dump.snapshot(client, POOL)

    while True:
        await anyio.sleep(1.0)
        try:
            counters = await in_thread(take)
        except Exception:  # noqa: BLE001, S112 - the server is hurt on purpose: the next one counts
            continue
        if counters and "dispatched" in counters:
            world.record("snapshot", extra=counters)


def _look_at_schedules(world: World, client: redis.Redis) -> None:
    wall_ms, heads = dump.schedules(client, POOL)
    for name, extra in looks(heads, wall_ms):
        world.record("schedule", "info", key=name, extra=extra)


async def _watch_leases(world: World) -> None:
    """Write down what the server says of every lease; nodes say nothing of their renewals.

    What is seen is the last renewal of the last 100 ms: it may hide one, and never invents one.
    """
    seen: dict[str, float] = {}

    def look(client: redis.Redis) -> None:
        asked_s = world.record.clock()  # the server reads its clock later: every lease ends later
        now_s, ends = dump.leases(client, POOL)
        if world.record.clock() - asked_s > LOOK_S:
            return  # between asking and answer anything may have happened
        for nonce, end_s in ends.items():
            if seen.get(nonce) != end_s:
                seen[nonce] = end_s
                until = asked_s + end_s - now_s - 0.001  # it counts in whole milliseconds
                extra = {"asked": until - world.ttl_s, "until": until}
                world.record("lease", nonce=nonce, extra=extra)

    with world.admin() as client:
        while True:
            with suppress(redis.RedisError):  # the server is hurt on purpose: the next look counts
                await in_thread(look, client)
            await anyio.sleep(LOOK_S)


async def _watch_processors(world: World) -> None:
    """Write down how long the campaign's threads were ready to run and had no processor."""
    processors = Processors()

    def look() -> dict[str, float]:
        pids = {"driver/1": os.getpid(), "server": world.server.pid}
        for member in world.members.values():
            if member.process is not None:
                pids[member.p] = member.process.pid
        waited = {p: processors.waited_s(pid) for p, pid in pids.items()}
        return {p: round(s, 3) for p, s in waited.items() if s >= STALLED_S}

    while True:
        await anyio.sleep(STALL_S)
        if waited := await in_thread(look):
            world.waited_s += min(STALL_S, max(waited.values()))
            world.record("stall", "info", extra={"waited": waited})


async def _rest(world: World, seconds: float) -> None:
    """Wait so long, not counting what threads waited for a processor meanwhile."""
    with anyio.move_on_after(FINISH_S):
        while seconds > 0:
            before_s = world.waited_s
            await anyio.sleep(STALL_S)
            seconds -= STALL_S - (world.waited_s - before_s)


async def _drain(world: World, bounds: Bounds) -> bool:
    """Have the producers finish; say whether all that was accepted has ended in time."""
    for producer in world.producers:
        await world.command(producer, do="finish")
    deadline_s = bounds.quiet_s + bounds.suspects_s + FINISH_S + GOES_ON_S
    finished = await world.until(
        lambda: all(world.has_said("finished", producer) for producer in world.producers),
        deadline_s,
    )

    def is_quiet() -> bool:
        with world.admin() as client:
            return not dump.unfinished(client, POOL) and not dump.claims(client, POOL)

    def is_carried() -> bool:
        with world.admin() as client:
            batches = dump.batches(client, POOL).values()
            are_settled = all(batch["state"] in SETTLED for batch in batches)
            return are_settled and not dump.outgoing(client, POOL) and is_quiet()

    with anyio.move_on_after(bounds.quiet_s + bounds.suspects_s) as scope:
        while not await in_thread(is_quiet):  # noqa: ASYNC110 - nodes change the store
            await anyio.sleep(0.1)
    if scope.cancelled_caught:
        return False
    with anyio.move_on_after(SETTLES_S):  # what has not by then the checker tells
        while not await in_thread(is_carried):  # noqa: ASYNC110 - likewise
            await anyio.sleep(0.1)
    return finished


async def _finish(world: World, drained: bool, troubles: list[str]) -> None:
    """Dump the state, have everybody leave, and look at what is left."""
    if not await world.all_up():  # poison that had to wait for its place killed after the chaos
        troubles.append("not every process was back after the drain")
    live = await _members(world, troubles)

    def state() -> dict[str, Any]:
        with world.admin() as client:
            # The last of the regular looks may have failed, or be of before the last firing.
            _look_at_schedules(world, client)
            return dump.state_of(client, POOL)

    began_s = world.record.clock()
    found = await in_thread(state)
    at_s = world.record.clock()
    found["began"] = began_s  # after a soak it takes longer than a lease, and the network is ours
    found["leases"] = [lease for lease in found["leases"] if lease.rpartition(".")[0] not in live]
    world.is_over = True
    for members in (world.producers, world.workers):
        async with anyio.create_task_group() as tasks:
            for member in members:
                tasks.start_soon(_leave, world, member, troubles)

    def left() -> dict[str, Any]:
        with world.admin() as client:
            world.look_for_refusals(client)
            return {
                "refused": sorted(world.refused),
                "unknown": dump.left_behind(client, POOL),
                "claims": sorted({*found["claims"], *dump.claims(client, POOL)}),
                "problems": found["problems"] + audit(client, POOL),
            }

    extra = {**found, **await in_thread(left), "live": [], "drained": drained}
    world.record("final_state", t=at_s, extra=extra)


async def _members(world: World, troubles: list[str]) -> set[str]:
    """Ask every process what it knows; returns the identities that they have.

    Twice: when first asked they stop writing into the map, and nothing counts before.
    """
    members = list(world.members.values())
    for _ in range(2):
        for member in members:
            world.forget("members", member)
            member.signal(signal.SIGUSR1)
        if not await world.until(lambda: all(world.has_said("members", m) for m in members), 20.0):
            troubles.append("not every process said what it knows")
        await _rest(world, world.ttl_s)  # what a replica needs to find out what it missed, twice
    return await in_thread(_identities, world.directory)


def _identities(directory: Path) -> set[str]:
    """Return what living processes said that they are.

    Whole histories are not parsed for that: after a soak it took 4 s, in the process that is
    everybody's network, and every lease ended.
    """
    texts = (path.read_bytes() for path in histories(directory))
    lines = (line for text in texts for line in text.split(b"\n")[:-1])  # the last may be cut off
    said = (Event.parse(line) for line in lines if b'"f":"members"' in line)
    return {identity for event in said for identity in event.extra["live"]}


async def _leave(world: World, member: Member, troubles: list[str]) -> None:
    world.record("leave", "invoke", p=member.p)
    with world.fault("end", "leave", member.name):
        process = member.process
        assert process is not None, "it is up"
        member.signal(signal.SIGTERM)
        if not await world.until(lambda: process.returncode is not None, LEAVES_S):
            troubles.append(f"{member.p} did not leave")
        elif process.returncode:
            troubles.append(f"{member.p} left with exit code {process.returncode}")
        else:
            world.record("leave", p=member.p)


def _write(verdict: Verdict, events: Sequence[Event]) -> None:
    directory = verdict.directory
    (directory / "verdict.json").write_text(json.dumps(verdict.told(), indent=1), "utf-8")
    (directory / "report.txt").write_text(verdict.report.text(events), "utf-8")
    (directory / "report.html").write_text(page(verdict.told(), events, verdict.report), "utf-8")


def run(plan: Plan, into: Path | None = None, *, keep: bool = False) -> Verdict:
    """Run a campaign in a directory of its own, which stays if `keep` or if it went wrong."""
    directory = into / plan.name if into else Path(tempfile.mkdtemp(prefix="pool-chaos-"))
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    verdict = anyio.run(campaign, plan, directory)
    if verdict.ok and not keep and into is None:
        shutil.rmtree(directory)
    return verdict


def program_for(prefer: str) -> ServerProgram:
    """Return the server program: the wheel's, or the first on PATH whose name this is."""
    found = list(find_servers("wheel", []))
    return next((each for each in found if each.name == prefer), found[0])


def line(verdict: Verdict) -> str:
    """Return a verdict in one line."""
    figures = verdict.report.figures
    return (
        f"{'ok  ' if verdict.ok else 'FAIL'} {verdict.plan.name:24} {verdict.took_s:5.1f} s, "
        f"{sum(verdict.injected.values()):2} faults, {figures['jobs accepted']:5.0f} jobs, "
        f"{figures['runs']:5.0f} runs, takeover max {figures.get('takeover max s', 0.0):4.2f} s, "
        f"waited for processors {figures.get('waited for processors s', 0.0):.0f} s, "
        f"starved {figures.get('starved s, longest', 0.0):.0f} s, "
        f"{verdict.report.events} events"
        + "".join(f"\n     {name}: {count}" for name, count in verdict.report.broken.items())
        + "".join(f"\n     harness: {trouble}" for trouble in verdict.troubles)
        + ("" if verdict.ok else f"\n     kept in {verdict.directory}")
    )


def main() -> int:
    """Run the campaigns that the command line names; the exit code is their verdict."""
    parser = argparse.ArgumentParser(prog="python -m tests.verify.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of chaos in a mixture")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--campaigns", type=int, default=1, help="with seeds that follow")
    parser.add_argument("--fault", choices=sorted(FAULTS), help="this one alone, for its bound")
    parser.add_argument("--each", action="store_true", help="every fault, each alone")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--lanes", type=int, nargs="+", help="a campaign with each of these")
    parser.add_argument("--rate", type=float, default=30.0, help="jobs dispatched in a second")
    parser.add_argument("--apart", action="store_true", help="a network for each process (root)")
    parser.add_argument("--server", default="valkey", help="name of the server program")
    parser.add_argument("--into", type=Path, help="keep everything in this directory")
    parser.add_argument("--keep", action="store_true", help="keep good campaigns too")
    parser.add_argument("--json", action="store_true", help="print verdicts as JSON")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that everything is taken down
    program = program_for(given.server)
    names = sorted(FAULTS) if given.each else [given.fault or ""] * given.campaigns
    campaigns = [(*each, lanes) for each in enumerate(names) for lanes in given.lanes or [0]]
    failed = 0
    seen: Counter[str] = Counter()
    for number, name, lanes in campaigns:
        plan = Plan(
            seed=given.seed + number,
            lanes=lanes,
            seconds=lasts_s(name) if name else given.seconds,
            fault=name,
            nodes=given.nodes,
            per_s=given.rate,
            program=program,
            apart=given.apart,
        )
        verdict = run(plan, given.into, keep=given.keep)
        failed += not verdict.ok
        seen.update(verdict.report.sometimes)
        sys.stdout.write((json.dumps(verdict.told()) if given.json else line(verdict)) + "\n")
        sys.stdout.flush()
    unseen = [name for name in MUST_SEE if given.each and not seen[name]]
    if not given.json:
        _summary(program, seen, len(campaigns), failed)
        sys.stdout.writelines(f"FAIL never seen: {name}\n" for name in unseen)
    return 1 if failed or unseen else 0


def _summary(program: ServerProgram, seen: Counter[str], count: int, failed: int) -> None:
    lines = [f"{count - failed} of {count} campaigns ok, on {program.name} {program.version}"]
    lines += [f"  not injected here  {name}: {why}" for name, why in NEVER.items()]
    lines += [f"  {name:34} {seen[name]:>7}" for name in seen]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
