"""What only a dedicated pool has to do, at the size of a fleet: `python -m benchmarks.fleet`.

    takeover after SIGKILL and SIGSTOP | hand-off at a planned exit | rolling deployments
    notifications | 100 nodes join at once | a hot key | 1,000,000 queued jobs
    100,000 live services | 1,000 clients

Real processes, a real server, default settings (a shorter lease TTL where it says so).  Where a
fleet has more nodes than the machine has room for interpreters, several nodes share a process; each
is a whole `Node`, with connections, threads and leases of its own.  `--scale 0.1` makes every
fleet, load and repetition a tenth; `--only` picks scenarios.
"""

from __future__ import annotations

import math
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, pairwise
from typing import Final

import attrs

from benchmarks import fleet_rows as rows
from benchmarks.fleet_processes import CHUNK, WAIT_S, Fleet, ask_all, gaps_s
from benchmarks.fleet_rows import Row, Sizes, ways
from benchmarks.probe import Probe, Usage
from benchmarks.report import Report, Table
from benchmarks.running import command_line, run
from benchmarks.throughput import Member

TENTHS: Final = 10
NODE_MAX: Final = 10_000  # the greatest capacity of one worker
ROOM: Final = 1.2  # capacity over services: placement by hash is not even


class Bench:
    """One run on one event loop."""

    def __init__(self, probe: Probe, loop: str, sizes: Sizes) -> None:
        self.probe = probe
        self.loop = loop
        self.sizes = sizes
        shown = chain.from_iterable(each.rows(sizes) for each in SCENARIOS.values())
        self.report = Report(loop, Table("base", tuple(shown)))
        self.dice = random.Random()

    def run(self, only: Iterable[str] = ()) -> Report:
        """Take the measurements that are named, or all."""
        for name in only or SCENARIOS:
            SCENARIOS[name].measure(self)
        return self.report

    def fleet(self) -> Fleet:
        """Return a fleet yet without processes."""
        return Fleet(self.probe, self.loop, self.sizes)

    # --- takeover, hand-off, moves ----------------------------------------------------------------

    def takeover(self) -> None:
        """Kill one of three processes, or stop it; wait for its services elsewhere."""
        for ttl_s in self.sizes.ttls_s:
            self.report.note(f"ttl_{ttl_s:g}_s", ttl_s)
            for _ in range(self.sizes.kills):
                for kind in self.sizes.signals:
                    taken_s = self._kill(ttl_s, signal.Signals[kind.upper()])
                    self._note_spread(f"takeover_ttl_{ttl_s:g}_{kind}", taken_s, "s", 1.0)

    def _kill(self, ttl_s: float, number: signal.Signals) -> list[float]:
        services = self.sizes.services
        with self.fleet() as fleet:
            victim, *others = members = fleet.start(3)
            pids = [
                fleet.joined(each, [f"web-{n}"], capacity=services, ttl_s=ttl_s)
                for n, each in enumerate(members)
            ]
            fleet.kill_at_end(pids[:1])
            client = fleet.client()
            ask_all([*members, client], "sees", workers=3)
            fleet.serve(client, "live", "live", services)
            time.sleep(self.dice.uniform(0, ttl_s / 5))  # at any moment between two renewals
            keys = {key for key, _ in victim.ask("news")["begun"]}
            ask_all(others, "news")
            killed_ns = time.monotonic_ns()
            os.kill(pids[0], number)
            fleet.wait_begun(len(keys), others)
            fleet.members = others
            begun, _ = fleet.news()
        if begun.keys() != keys:
            raise RuntimeError(f"of {len(keys)} services {len(begun.keys() & keys)} were taken")
        return [(times_ns[0] - killed_ns) / 1e9 for times_ns in begun.values()]

    def handoff(self) -> None:
        """Have one of two nodes leave, and come again."""
        services = self.sizes.services
        with self.fleet() as fleet:
            members = fleet.start(2)
            for n, each in enumerate(members):
                fleet.joined(each, [f"web-{n}"], capacity=services)
            client = fleet.client()
            ask_all([*members, client], "sees", workers=2)
            fleet.serve(client, "live", "live", services)
            fleet.news()
            for n in range(self.sizes.exits):
                leaver, name = members[n % 2], f"web-{n % 2}"
                leaver.ask("leave", names=[name])
                fleet.settle()
                self._note_spread("exit_gap", gaps_s(*fleet.news()), "ms", 1e3)
                fleet.joined(leaver, [name], capacity=services)
                fleet.settle()
                self._note_spread("join_gap", gaps_s(*fleet.news()), "ms", 1e3)

    def deployment(self) -> None:
        """Replace each node of a fleet by one that has the same label."""
        for name, nodes, order, pause_s in ways(self.sizes):
            services = nodes * self.sizes.services_per_node
            with self.fleet() as fleet:
                members = fleet.start(min(nodes, 5))
                homes = [members[n % len(members)] for n in range(nodes)]
                capacity = max(100, services)
                for n, home in enumerate(homes):
                    fleet.joined(home, [f"web-{n}.old"], capacity=capacity)
                client = fleet.client()
                ask_all([*members, client], "sees", workers=nodes)
                fleet.serve(client, "live", "live", services)
                fleet.settle()
                fleet.news()
                for n, home in enumerate(homes):
                    if order == "stop_first":
                        home.ask("leave", names=[f"web-{n}.old"])
                    fleet.joined(home, [f"web-{n}.new"], capacity=capacity)
                    time.sleep(pause_s)
                    if order == "start_first":
                        home.ask("leave", names=[f"web-{n}.old"])
                fleet.settle()
                begun, ended = fleet.news()
            gaps_s(begun, ended)
            moves = Counter(len(begun.get(f"live-{n}", ())) for n in range(services))
            self.report.note(f"{name}_mean", sum(k * many for k, many in moves.items()) / services)
            self.report.note(f"{name}_max", max(moves))
            over = sum(many for k, many in moves.items() if k > 2)
            self.report.note(f"{name}_over_2_percent", 100 * over / services)
            for k, many in sorted(moves.items()):
                self.report.note(f"{name}_services_moved_{k}_times", many)

    def joining(self) -> None:
        """Have many nodes join a fleet at once."""
        sizes, note = self.sizes, self.report.note
        services = sizes.services_per_node * (sizes.joiners_before + sizes.joiners)
        with self.fleet() as fleet:
            [first] = fleet.start(1)
            fleet.joined(
                first, [f"old-{n}" for n in range(sizes.joiners_before)], capacity=services
            )
            client = fleet.client()
            ask_all([first, client], "sees", workers=sizes.joiners_before)
            fleet.serve(client, "live", "live", services)
            fleet.news()
            joiners = fleet.start(-(-sizes.joiners // 10))
            began_ns = time.monotonic_ns()
            for n, each in enumerate(joiners):
                count = min(10, sizes.joiners - 10 * n)
                names = [f"new-{n}-{k}" for k in range(count)]
                fleet.join(each, names)
            joined_ns = max(each.hear()["at_ns"] for each in joiners)
            every = sizes.joiners_before + sizes.joiners
            seen = ask_all([*fleet.members, client], "sees", workers=every)
            settled_ns = fleet.settle()
            begun, ended = fleet.news()
        gaps_s(begun, ended)
        note("join_joined_s", (joined_ns - began_ns) / 1e9)
        note("join_seen_s", (max(told["at_ns"] for told in seen) - began_ns) / 1e9)
        note("join_settled_s", (settled_ns - began_ns) / 1e9)
        note("join_moved", len(begun))
        note("join_moves_max", max(map(len, begun.values()), default=0))

    # --- notifications ----------------------------------------------------------------------------

    def notifications(self) -> None:
        """Notify a service in another process, which may answer in kind."""
        notes = self.sizes.notes
        with self.fleet() as fleet:
            [worker] = fleet.start(1)
            fleet.joined(worker, ["web-0"])
            [asker] = fleet.start(1, "asker")
            fleet.joined(asker, ["web-1"])
            ask_all([worker, asker], "sees", workers=2)
            fleet.serve(asker, "listen", "quiet", 1)
            told = asker.ask("notify", prefix="quiet", keys=1, notes=notes, rate_per_s=100.0)
            fleet.wait_late(notes)
            self._note_spread("notify_call", told["spent_s"], "ms", 1e3)
            self._note_spread("notify_received", fleet.late_s()["quiet"], "ms", 1e3)
            spent_s = asker.ask("converse", turns=notes)["spent_s"]
            self._note_spread("notify_answered", spent_s, "ms", 1e3)

    def hot_key(self) -> None:
        """Notify many keys, with and without one that has more than all of them together."""
        sizes = self.sizes
        with self.fleet() as fleet:
            members = fleet.start(2)
            capacity = min(NODE_MAX, 10 + sizes.cold_keys)
            for n, each in enumerate(members):
                fleet.joined(each, [f"web-{n}"], capacity=capacity)
            cold, hot = fleet.client(), fleet.client()
            ask_all([*members, cold, hot], "sees", workers=2)
            fleet.serve(cold, "listen", "cold", sizes.cold_keys)
            fleet.serve(cold, "listen", "hot", 1)
            fleet.settle()
            fleet.news()
            for _ in range(sizes.repeats):
                for name, hot_per_s in (("cold_alone", 0.0), ("cold_beside_hot", sizes.hot_per_s)):
                    self._note_cold(fleet, cold, hot, name, hot_per_s)

    def _note_cold(
        self, fleet: Fleet, cold: Member, hot: Member, name: str, hot_per_s: float
    ) -> None:
        sizes, keys = self.sizes, self.sizes.cold_keys
        hot_asked = {
            "do": "notify",
            "prefix": "hot",
            "keys": 1,
            "notes": int(hot_per_s * sizes.hot_s),
            "rate_per_s": hot_per_s,
        }
        offered = {"notes": int(sizes.cold_per_s * sizes.hot_s), "rate_per_s": sizes.cold_per_s}
        flooded = {"callers": 100, "seconds": sizes.hot_s}
        for do, asked in (("notify", offered), ("flood", flooded)):
            if hot_per_s:
                hot.tell(**hot_asked)
            told = cold.ask(do, prefix="cold", keys=keys, **asked)
            notes = asked["notes"] if do == "notify" else told["notes"]
            if hot_per_s:
                heard = hot.hear()
                accepted = hot_asked["notes"] - heard["refused"]
                notes += accepted
                self.report.note("hot_per_s", accepted / heard["seconds"])
            fleet.wait_late(int(notes))
            late_s = fleet.late_s()
            if do == "notify":
                self._note_spread(name, late_s["cold"], "ms", 1e3)
            else:
                self.report.note(f"{name}_per_s", told["notes"] / told["seconds"])

    # --- many -------------------------------------------------------------------------------------

    def backlog(self) -> None:
        """Queue very many jobs while nobody runs them; then have one process run them."""
        note, queued = self.report.note, self.sizes.queued
        tenth = queued // TENTHS
        with self.fleet() as fleet:
            [worker] = fleet.start(1)
            fleet.joined(worker, ["web-0"])  # somebody must have registered the handler
            worker.ask("leave", names=["web-0"])
            client = fleet.client()
            ask_all([client], "sees", workers=0)
            rates, cpu_us, server_us, job_bytes, repeated = [], [], [], [], 0
            empty = self.probe.usage().memory_bytes
            for n in range(TENTHS):
                spent_ns, before, began_cpu_s = 0, self.probe.usage(), _cpu([client])
                for first in range(n * tenth, (n + 1) * tenth, CHUNK):
                    count = min(CHUNK, (n + 1) * tenth - first)
                    asked = {"handler": "tick", "prefix": "tick", "first": first, "count": count}
                    told = client.ask("dispatch", **asked)
                    repeated += told["repeated"]
                    spent_ns += told["ended_ns"] - told["began_ns"]
                used = self.probe.usage() - before
                rates.append(tenth / (spent_ns / 1e9))
                cpu_us.append(1e6 * (_cpu([client]) - began_cpu_s) / tenth)
                server_us.append(used.cpu_us / tenth)
                job_bytes.append(used.memory_bytes / tenth)
            self._note_tenths("queue", "per_s", rates)
            self._note_tenths("queue", "client_cpu_us", cpu_us)
            self._note_tenths("queue", "redis_cpu_us", server_us)
            self._note_tenths("queue", "bytes", job_bytes)
            note("queue_repeated", repeated)

            every = max(1, tenth // 100)
            worker.ask("count", every=every)
            before = self.probe.usage()
            fleet.joined(worker, ["web-0.again"])
            self._wait_drained(worker, TENTHS * tenth)
            told = worker.ask("counted")
            used = self.probe.usage() - before
            note("drain_redis_cpu_us", used.cpu_us / (TENTHS * tenth))
            note("drained_bytes", (self.probe.usage().memory_bytes - empty) / queued)
        if told["jobs"] != TENTHS * tenth:
            raise RuntimeError(f"{TENTHS * tenth} jobs were queued, {told['jobs']} runs began")
        marks = told["marks"]
        cuts = [k * (len(marks) - 1) // TENTHS for k in range(TENTHS + 1)]
        rates, cpu_us = [], []
        for begin, until in pairwise(cuts):
            (began_ns, began_cpu_s, _), (ended_ns, ended_cpu_s, _) = marks[begin], marks[until]
            rates.append(every * (until - begin) / ((ended_ns - began_ns) / 1e9))
            cpu_us.append(1e6 * (ended_cpu_s - began_cpu_s) / (every * (until - begin)))
        self._note_tenths("drain", "per_s", rates)
        self._note_tenths("drain", "worker_cpu_us", cpu_us)
        self._note_tenths("drain", "rss_mb", [marks[cut][2] / 1e6 for cut in cuts[1:]])

    def _wait_drained(self, worker: Member, jobs: int) -> None:
        begun, deadline_s = 0, time.monotonic() + WAIT_S
        while (now := worker.ask("counted")["jobs"]) < jobs:
            if now > begun:
                begun, deadline_s = now, time.monotonic() + WAIT_S
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{begun} of {jobs} jobs begun, none for {WAIT_S} s")
            time.sleep(self.sizes.drain_look_s)

    def live_services(self) -> None:
        """Have very many services live, and look at what they cost at rest."""
        note, sizes = self.report.note, self.sizes
        capacity = int(ROOM * sizes.live / sizes.live_nodes) + 10
        workers = -(-capacity // NODE_MAX)
        with self.fleet() as fleet:
            members = fleet.start(sizes.live_nodes)
            pids = [
                fleet.joined(each, [f"web-{n}"], capacity=-(-capacity // workers), workers=workers)
                for n, each in enumerate(members)
            ]
            client = fleet.client()
            ask_all([*members, client], "sees", workers=workers * sizes.live_nodes)
            empty, bare = self.probe.usage().memory_bytes, _rss(members)
            fleet.kill_at_end(pids)  # each would hand all it has over to the next
            before, began_cpu_s, began_client_cpu_s = (
                self.probe.usage(),
                _cpu(members),
                _cpu([client]),
            )
            began_ns, dispatched_ns = fleet.serve(client, "live", "live", sizes.live)
            started_ns = fleet.settle()
            used = self.probe.usage() - before
            note("live_client_cpu_us", 1e6 * (_cpu([client]) - began_client_cpu_s) / sizes.live)
            note("live_node_cpu_us", 1e6 * (_cpu(members) - began_cpu_s) / sizes.live)
            note("live_redis_cpu_us", used.cpu_us / sizes.live)
            note("live_dispatched_per_s", sizes.live / ((dispatched_ns - began_ns) / 1e9))
            note("live_started_per_s", sizes.live / ((started_ns - began_ns) / 1e9))
            note("live_redis_bytes", (self.probe.usage().memory_bytes - empty) / sizes.live)
            fleet.news()
            note("live_node_bytes", (_rss(members) - bare) / sizes.live)
            self._note_rest("live_rest", members, sizes.live_nodes, others=1)

    def clients(self) -> None:
        """Have very many clients, and look at what they cost at rest, and cost others."""
        note, sizes = self.report.note, self.sizes
        with self.fleet() as fleet:
            [worker] = fleet.start(1)
            fleet.joined(worker, ["web-0"])
            one = fleet.client()
            ask_all([one], "sees", workers=1)
            one.ask("results", jobs=sizes.results // 10, rate_per_s=100.0)  # scripts are loaded
            told = one.ask("results", jobs=sizes.results, rate_per_s=100.0)
            self._note_spread("result_alone", told["late_s"], "ms", 1e3)
            per = sizes.per_process
            members = fleet.start(-(-sizes.clients // per), "client")
            bare, connections = _rss(members), self._connections()
            began_ns = time.monotonic_ns()
            for n, each in enumerate(members):  # not all at once: their processes share the cores
                names = [f"client-{n}-{k}" for k in range(min(per, sizes.clients - per * n))]
                fleet.joined(each, names, at_once=10)
            joined_ns = time.monotonic_ns()
            ask_all(members, "sees", workers=1)
            note("clients_joined_s", (joined_ns - began_ns) / 1e9)
            note("clients_connections", (self._connections() - connections) / sizes.clients)
            note("clients_rss_mb", (_rss(members) - bare) / 1e6 / sizes.clients)
            self._note_rest("clients_rest", members, sizes.clients, others=2)
            told = one.ask("results", jobs=sizes.results, rate_per_s=100.0)
            self._note_spread("result_beside_clients", told["late_s"], "ms", 1e3)

    # --- figures ----------------------------------------------------------------------------------

    def _note_rest(self, name: str, members: Sequence[Member], nodes: int, *, others: int) -> None:
        """Note what these nodes cost while nothing happens, stretch by stretch.

        So many others are in the fleet too; what the server does for each node is an average.
        """
        every = nodes + others
        for _ in range(self.sizes.rests):
            began_s, began_cpu_s, before = time.monotonic(), _cpu(members), self.probe.usage()
            time.sleep(self.sizes.rest_s)
            used: Usage = self.probe.usage() - before
            seconds = time.monotonic() - began_s
            cpu_s = _cpu(members) - began_cpu_s
            for what, value in (
                ("reads_per_s", max(0, used.reads - 1) / seconds / every),
                ("commands_per_s", max(0, used.commands - 1) / seconds / every),
                ("server_percent", used.cpu_us / 1e4 / seconds),
                ("node_percent", 100 * cpu_s / seconds / nodes),
            ):
                self.report.note(f"{name}_{what}", value)

    def _note_spread(self, name: str, seconds: Sequence[float], unit: str, factor: float) -> None:
        ordered = sorted(seconds)
        for at, place in (
            ("p50", len(ordered) // 2),
            ("p99", int(0.99 * len(ordered))),
            ("max", len(ordered) - 1),
        ):
            self.report.note(f"{name}_{at}_{unit}", factor * ordered[place])

    def _note_tenths(self, name: str, unit: str, tenths: Sequence[float]) -> None:
        self.report.note(f"{name}_first_{unit}", tenths[0])
        self.report.note(f"{name}_least_{unit}", min(tenths))
        self.report.note(f"{name}_last_{unit}", tenths[-1])
        for n, value in enumerate(tenths, 1):
            self.report.note(f"{name}_tenth_{n}_{unit}", value)

    def _connections(self) -> int:
        connected: int = self.probe.client.info("clients")["connected_clients"]
        return connected


def _rss(members: Sequence[Member]) -> int:
    return sum(each.ask("cost")["rss_bytes"] for each in members)


def _cpu(members: Sequence[Member]) -> float:
    return math.fsum(each.ask("cost")["cpu_s"] for each in members)


@attrs.frozen
class Scenario:
    """What is measured, and the rows it is shown in."""

    measure: Callable[[Bench], None]
    rows: Callable[[Sizes], Iterable[Row]]


SCENARIOS: Final = {
    "takeover": Scenario(Bench.takeover, rows.takeover_rows),
    "handoff": Scenario(Bench.handoff, rows.handoff_rows),
    "deployment": Scenario(Bench.deployment, rows.deployment_rows),
    "notifications": Scenario(Bench.notifications, rows.notification_rows),
    "joining": Scenario(Bench.joining, rows.joining_rows),
    "hot_key": Scenario(Bench.hot_key, rows.hot_key_rows),
    "backlog": Scenario(Bench.backlog, rows.backlog_rows),
    "live_services": Scenario(Bench.live_services, rows.live_rows),
    "clients": Scenario(Bench.clients, rows.client_rows),
}


def main() -> None:
    """Parse the command line, measure, print."""
    parser = command_line("fleet", __doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="of all counts, default 1")
    parser.add_argument(
        "--only", choices=SCENARIOS, nargs="+", default=(), help="scenarios; default: all"
    )
    given = parser.parse_args()
    if not 0 < given.scale <= 10:
        parser.error("--scale must be over 0 and at most 10")
    sizes = Sizes().scaled(given.scale)
    run(
        given,
        lambda probe, loop: Bench(probe, loop, sizes).run(given.only),
        sizes=f"scale {given.scale:g}",
        scenarios=given.only or list(SCENARIOS),
        counts=attrs.asdict(sizes),
        repeats=sizes.repeats,
    )


if __name__ == "__main__":
    main()
