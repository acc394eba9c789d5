"""One seed: build a world, let it go wrong, heal it, wait until it is quiet, judge it."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, Final

import attrs
from structlog.testing import capture_logs

from pool.core.lease import Timing
from pool.names import key_of, lane_of
from pool.runtime import observers
from pool.runtime.actor import Actor
from tests.verify.checker import Bounds, Report, check
from tests.verify.edges import LATE_MAX
from tests.verify.history import Event, digest
from tests.verify.invariants import WAS_BEFORE
from tests.verify.sim import reading
from tests.verify.sim.config import ATTEMPTS_MAX, Config
from tests.verify.sim.faults import FOUND_TTLS, ONLY_WALKED, POOL, Faults, Weather
from tests.verify.sim.fleet import (
    BACKOFF_MAX_S,
    GRACE_S,
    LIMIT_S,
    Boot,
    SimFleet,
    settings_of,
)
from tests.verify.sim.load import POISON_JOBS, Load
from tests.verify.sim.operating import Operators, what_holds
from tests.verify.sim.server import Server
from tests.verify.sim.sim_io import SimIO
from tests.verify.sim.timetable import Timetable
from tests.verify.sim.watch import Watch, watch_leases, watch_rare
from tests.verify.sim.world import World, sweep, uncollected

_HEALTH_S: Final = 0.5  # how often it is looked what is dead
_LOOK_S: Final = 0.25  # how often it is looked whether the world is quiet
_DRAIN_S: Final = 240.0  # longer than this nothing may take after `heal`, or the last poison death
_TRIALS: Final = 8  # deaths after which the trials of a suspect get no longer
_QUIET_TTLS: Final = 1.5  # leases of the dead must have ended, too


@attrs.frozen(kw_only=True)
class Outcome:
    """What came of one seed."""

    config: Config
    events: list[Event]
    report: Report
    digest: str
    problems: tuple[str, ...]  # what only the server's side shows: INVARIANT: text
    failures: tuple[str, ...]  # what no history tells: unhandled errors
    seen: frozenset[str]
    virtual_s: float
    calls: int

    @property
    def ok(self) -> bool:
        """Whether nothing was wrong."""
        return self.report.ok and not self.failures and not self.problems

    @property
    def fired(self) -> Counter[str]:
        """How often each fault struck."""
        struck = (e for e in self.events if e.f == "fault" and e.type == "invoke")
        return Counter(event.extra.get("drawn", event.extra["kind"]) for event in struck)

    @property
    def broken(self) -> tuple[str, ...]:
        """What was violated, in short."""
        others = dict.fromkeys(problem.partition(":")[0] for problem in self.problems)
        return (*self.report.broken, *others, *(("failure",) if self.failures else ()))


class Simulation:
    """One world and all that is in it."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.world = World(config.seed)
        self.server = Server(self.world, self.world.dice("server"))
        self.server.is_apart = "apart" in config.shapes
        self.weather = Weather(self.world.dice("weather"))
        self.server.network = self.weather
        self.watch = Watch(self.world, self.server)
        self.fleet = SimFleet(config, self.world, self.server, self.watch)
        self.load = Load(config, self.world, self.fleet)
        self.timetable = Timetable(config, self.world, self.fleet)
        self.driver = self.watch.recorder("driver")
        self.faults = Faults(config, self.world, self.server, self.weather, self.fleet, self.driver)
        self.fleet.faults = self.faults
        self.operators = Operators(config, self.world, self.fleet, self.server, self.driver)
        self.watch.judge_grant = self._judge_grant

    def begin(self) -> None:
        """Start all nodes, and plan load and faults."""
        for name in self.fleet.names:
            self.world.after(self.world.dice("begin").random() * 0.1, self.fleet.start, name)
        self.load.plan()
        self.timetable.plan()
        self.operators.plan()
        self.fleet.planned.plan(self.fleet)
        self.faults.plan()
        self._look_at_health()
        if self.fleet.programs.maps:
            self._look_at_maps()

    def play(self) -> Outcome:
        """Let it run to its end, and judge it."""
        ends = watch_leases(self._tell_lease), watch_rare(self.watch.seen)
        try:
            with (
                uncollected(),
                capture_logs(),  # of observers that raise; they hold what was raised, and so us
            ):
                self.begin()
                self.world.run(self.config.chaos_s)
                is_drained = self.drain()
                self.record_end(is_drained)
                return self._judge()
        finally:
            for end in ends:
                end()
            self.close()

    def close(self) -> None:
        """Throw the world away with all that is in it: whoever holds us holds nothing of it."""
        self.world.close()
        with capture_logs():  # what was counted of observers that raise holds them, too
            observers._hush.end()
        vars(self).clear()
        sweep()

    def drain(self) -> bool:
        """Wait until nothing is left to do; False if that takes too long.

        Poison jobs go on after `heal`, so the time counts from the last process that one of them
        ended.  How many processes they may end is judged (I36): with more, nobody waits any longer.
        """
        bounds, events = self.bounds(), self.watch.events
        deaths_max = POISON_JOBS * (bounds.deaths_at_once(len(self.watch.key_of)) + LATE_MAX)
        healed_s = last_s = self.world.now_s
        enough_s = _QUIET_TTLS * self.config.ttl_s + 2.0
        deaths, looked = 0, len(events)
        while self.world.now_s < last_s + _DRAIN_S and deaths <= deaths_max:
            self.world.run(self.world.now_s + _LOOK_S)
            for event in events[looked:]:
                if event.f == "fault" and event.extra.get("kind") == "poison":
                    deaths, last_s = deaths + 1, event.t
            looked = len(events)
            if self.world.now_s >= healed_s + enough_s and self.is_quiet():
                self.world.run(self.world.now_s + _LOOK_S)  # what is free is told within this
                return True
        return False

    def is_quiet(self) -> bool:
        """Whether all nodes are up, no finite job is left and no message is unhandled."""
        if len(self.fleet.open_boots()) < len(self.fleet.names) or not self.load.is_over:
            return False
        if not (self.timetable.is_over and self.operators.is_over):
            return False
        keyspace = self.server.keyspace
        if not self.fleet.programs.is_quiet(keyspace):
            return False
        if not self.fleet.planned.is_over(keyspace, self.watch):
            return False
        if reading.outgoing(keyspace):
            return False
        states = {batch["state"] for batch in reading.batches(keyspace).values()}
        if not states <= {"done", "failed", "cancelled"}:
            return False
        found = reading.records(keyspace, POOL, self.config.lanes)
        if any(record is None or record.kind == "job" for record in found.values()):
            return False
        last = reading.final(keyspace, POOL, self.config.lanes)
        if self._unhandled() or not set(last["leases"]) <= set(self.live()):
            return False
        return not (self._may_be_mended(last) or self._is_suspected(last))

    def _is_suspected(self, last: dict[str, Any]) -> bool:
        """Whether a service may still wait as a suspect of the last death.

        It waits for that lease, then in a young process for a random time of up to ten trials, and
        a coin may hold it for a round in a crash loop (docs/explanation/dead-workers.md).
        One that has waited for longer is for I38.
        """
        bounds, died = self.bounds(), -math.inf
        jobs = last["jobs"].values()
        waiting = {job for job, state, kind in jobs if kind == "service" and state != "running"}
        if not waiting:
            return False
        held = -math.inf  # by a coin, until then: also by one that was tossed before the last death
        for event in self.watch.events:
            if event.f == "exit" and event.result != 0:
                died = event.t
            elif event.f == "requeue" and event.job in waiting and "coin_s" in event.extra:
                held = max(held, event.t + float(event.extra["coin_s"]))
        wait_s = bounds.takeover_s + bounds.reap_s + bounds.suspects_s + bounds.span_s(_TRIALS)
        until = max(held + bounds.suspects_s, died + wait_s)
        return self.world.now_s < until

    def _may_be_mended(self, last: dict[str, Any]) -> bool:
        """Whether all that is not as it should be is what the walk still has time to find.

        Where an index was lost only the walk comes to what has no deadline, as services.  Faults
        may have kept it from that until they were over.
        """
        if self.world.now_s >= self.config.chaos_s + FOUND_TTLS * self.config.ttl_s:
            return False
        lanes, lost = self.config.lanes, self._lost()
        astray = reading.claimed(self.server.keyspace, POOL, lanes)
        # As the auditor begins each of them, see `pool.testing.audit`.
        astray |= {each.partition(":")[0].removeprefix("lane ") for each in last["problems"]}
        services = {
            key_of(name)
            for name, (_, state, kind) in last["jobs"].items()
            if kind == "service" and state != "running"
        }

        def is_lost(key: str) -> bool:
            return any((str(lane_of(key, lanes)), each) in lost for each in ("", key, f"k:{key}"))

        may_be = astray <= {lane for lane, _ in lost} and all(map(is_lost, services))
        return bool(astray or services) and may_be

    def _lost(self) -> set[tuple[str, str]]:
        """Return lanes where something was deleted that nothing but the walk finds, and what.

        What: a member, as it stands in its index; empty if it may be about any key.
        """
        return {
            (e.extra["index_lane"], "" if e.extra["index"] == "keepalive" else e.extra["member"])
            for e in self.watch.events
            if e.f == "fault" and e.extra.get("index") in ONLY_WALKED
        }

    def _unhandled(self) -> set[tuple[str, int]]:
        """Return the messages that wait.

        What was handled before does not, though a server without its last writes brought it back.
        """
        waiting = reading.messages(self.server.keyspace)
        if waiting and WAS_BEFORE & {*self.config.faults}:
            notes = (event for event in self.watch.events if event.f == "note")
            waiting -= {(event.key, event.extra["seq"]) for event in notes}
        return waiting

    def live(self) -> list[str]:
        """Return the identities that living processes have."""
        names: list[str] = []
        for boot in self.fleet.open_boots():
            assert boot.node is not None
            for lane in boot.node._open_wiring.membership.identities():
                names += lane
        return sorted(set(names))

    def working(self) -> list[str]:
        """Return the identities of living workers that may be given keys.

        Not one whose slots other lanes have taken, all of them.
        """
        return sorted(
            f"{worker.target(lane).name}@{lane}"
            for boot in self.fleet.open_boots()
            if boot.node is not None
            for worker in boot.node._open_wiring.membership.workers.values()
            for lane in range(self.config.lanes)
            if not worker.is_draining
            and sum(run.lane != lane for run in worker.runs.values()) < worker.capacity
        )

    def _look_at_health(self) -> None:
        """Write what is dead in nodes that can move, again and again."""
        for io, boot in list(self.fleet.seams.items()):
            node = boot.current
            if node is not None and boot.process.is_running:
                wiring = node._wiring
                actors = (
                    [v for v in vars(wiring).values() if isinstance(v, Actor)] if wiring else []
                )
                actors += wiring.membership.workers.values() if wiring else ()
                dead = sorted(io.dead() + [a.name for a in actors if a.state != "running"])
                if dead or boot.is_ill:
                    boot.is_ill = bool(dead)
                    self.driver(
                        *("health", "info"), p=boot.process.name,
                        extra={"state": node.state, "dead": dead},
                    )  # fmt: skip
        self.world.after(_HEALTH_S, self._look_at_health)

    def _look_at_maps(self) -> None:
        self.watch.look_at_maps(self.fleet.programs)
        self.world.after(_LOOK_S, self._look_at_maps)

    def record_end(self, is_drained: bool) -> None:
        """Write the last state into the history."""
        for boot in self.fleet.open_boots():
            assert boot.node is not None
            boot.record("members", extra={"workers": [w.id for w in boot.node.workers]})
        last = reading.final(self.server.keyspace, POOL, self.config.lanes)
        facts: dict[str, Any] = {"drained": is_drained, "live": self.live()}
        facts["working"] = self.working()
        if names := self.fleet.programs.maps:
            keyspace = self.server.keyspace
            facts["maps"] = {name: reading.map_items(keyspace, POOL, name) for name in names}
        if self.fleet.planned.is_there:
            facts["plan"] = self.fleet.planned.facts(self.server.keyspace, self.watch)
        self.driver("final_state", extra={**last, **facts})

    def _judge_grant(self, worker: str, lane: int, key: str, handler: str) -> str:
        """Return what is wrong with a grant, in the step that makes it; empty: nothing is."""
        held = what_holds(self.server.keyspace, lane, key, handler)
        if held is not None:
            return f"I66: {key} was granted to {worker}, and {held} was paused"
        for boot in self.fleet.open_boots():
            node = boot.node
            mine = node._open_wiring.membership.workers.values() if node is not None else ()
            for each in mine:
                is_meant = each.target(lane).name == worker and each.is_cordoned and each.has_closed
                if is_meant and self._has_been_told(worker, lane):
                    return f"I67: {key} was granted to {worker}, which had said that it is cordoned"
        return ""

    def _has_been_told(self, worker: str, lane: int) -> bool:
        """Say whether a renewal of a worker was asked for and answered since the last loss of data.

        A lane forgets with its data that a worker is cordoned, until the worker renews again.
        """
        events = self.watch.events
        losses = (e for e in events if e.f == "fault" and e.extra.get("does") == "loss")
        lost_s = max(
            (e.t for e in losses if e.extra.get("lane", "") in ("", str(lane))), default=0.0
        )
        renewals = (e for e in events if e.f == "renew" and e.nonce == f"{worker}@{lane}")
        return any(e.extra["asked"] > lost_s for e in renewals)

    def _tell_lease(self, io: Any, f: str, name: str, asked_s: float, timing: Timing) -> None:
        boot: Boot | None = self.fleet.seams.get(io) if isinstance(io, SimIO) else None
        if boot is None:
            return
        asked = asked_s - boot.process.clock_offset_s
        if f == "join":
            boot.record("join", nonce=name, extra={"worker": True, "asked": asked})
        ends = asked + timing.ttl_s
        extra = {"asked": asked, "until": ends - timing.margin_s, "ends": ends}
        boot.record("renew", nonce=name, extra=extra)

    def bounds(self) -> Bounds:
        """Return how long what may take."""
        config = self.config
        kept_s = [settings_of(config, name).result_ttl_s for name in self.fleet.names]
        return Bounds(
            ttl_s=config.ttl_s,
            # Few slots and many jobs take long, and each move through a full worker half a TTL.
            queue_s=30.0 + 90.0 / config.capacity if config.capacity < 100 else 5.0,
            attempts_max=ATTEMPTS_MAX,
            backoff_max_s=BACKOFF_MAX_S,
            limit_s=max(LIMIT_S, 0.4 * config.ttl_s),
            grace_s=GRACE_S,
            op_timeout_s=config.op_timeout_s,
            crashes_max=config.crashes_max,
            slots=config.capacity * config.workers,
            keeps_outcomes=self.world.now_s < min(kept_s),
        )

    def _judge(self) -> Outcome:
        events = self.watch.events
        return Outcome(
            config=self.config,
            events=events,
            report=check(events, self.bounds()),
            digest=digest(events),
            problems=tuple(self.watch.problems),
            failures=tuple(
                f"{process.name}: {type(failure).__name__}: {failure}"
                for process in self.world.processes
                for failure in process.failures
            ),
            seen=frozenset(self.watch.seen),
            virtual_s=self.world.now_s,
            calls=self.server.calls,
        )


def play(config: Config) -> Outcome:
    """Play one seed."""
    return Simulation(config).play()
