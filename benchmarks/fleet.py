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
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain, pairwise
from typing import Any, Final, Self, TypeAlias

import attrs

from benchmarks.probe import Probe, Usage
from benchmarks.report import Report, Table
from benchmarks.running import command_line, run
from benchmarks.throughput import Member
from pool import Settings

WAIT_S: Final = 60.0
LOOK_S: Final = 0.05  # between two looks at how far a fleet has come
ORDERS: Final = {"start_first": "new before old", "stop_first": "old before new"}
CHUNK: Final = 10_000  # jobs in one `dispatch_many`
TENTHS: Final = 10
NODE_MAX: Final = 10_000  # the greatest capacity of one worker
ROOM: Final = 1.2  # capacity over services: placement by hash is not even
DEFAULTS: Final = Settings()

Kept: TypeAlias = dict[str, list[int]]


@attrs.frozen(kw_only=True)
class Sizes:
    """How large each scenario is."""

    ttls_s: tuple[float, ...] = (1.0, DEFAULTS.lease_ttl_s)
    settle_s: float = DEFAULTS.settle_delay_s
    quiet_s: float = 2.5  # no service has moved for so long: none wants to
    signals: tuple[str, ...] = ("sigkill", "sigstop")
    kills: int = 5  # of each kind and TTL
    services: int = 600  # of fleets of 3 that are killed, and of 2 that are left
    exits: int = 5
    deployments: tuple[int, ...] = (10, 50)  # nodes
    services_per_node: int = 20
    pauses_s: tuple[float, ...] = (0.0, 2.5)  # between two nodes; the second: first fleet alone
    notes: int = 1_000
    joiners: int = 100
    joiners_before: int = 10
    cold_keys: int = 10_000
    cold_per_s: float = 500.0
    hot_per_s: float = 1_000.0
    hot_s: float = 5.0
    repeats: int = 3  # of what is quick: cold keys with and without a hot one
    queued: int = 1_000_000
    live: int = 100_000
    live_nodes: int = 10
    clients: int = 1_000
    results: int = 1_000
    rest_s: float = 10.0  # one stretch
    rests: int = 12
    per_process: int = 50  # nodes of what has hundreds

    def scaled(self, scale: float) -> Sizes:
        """Return these sizes with counts multiplied; rates, times and TTLs stay."""

        def of(count: int, least: int) -> int:
            return max(least, round(count * scale))

        return attrs.evolve(
            self,
            kills=of(self.kills, 1),
            services=of(self.services, 30),
            exits=of(self.exits, 1),
            deployments=tuple(of(nodes, 2) for nodes in self.deployments),
            notes=of(self.notes, 50),
            joiners=of(self.joiners, 2),
            joiners_before=of(self.joiners_before, 1),
            cold_keys=of(self.cold_keys, 50),
            repeats=of(self.repeats, 1),
            queued=of(self.queued, 1_000),
            live=of(self.live, 100),
            live_nodes=of(self.live_nodes, 2),
            clients=of(self.clients, 4),
            results=of(self.results, 50),
            rests=of(self.rests, 1),
        )


Row: TypeAlias = tuple[str, str, str]


def _spread(name: str, title: str, base: str = "") -> Iterable[Row]:
    for at in ("p50", "p99", "max"):
        yield f"{name}_{at}_ms", f"{title}, {at} ms", f"{base}_{at}_ms" if base else ""


def _takeover_rows(sizes: Sizes) -> Iterable[Row]:
    for ttl_s in sizes.ttls_s:
        ttl = f"ttl_{ttl_s:g}_s"
        yield ttl, f"lease TTL {ttl_s:g} s", ""
        for kind in sizes.signals:
            for at in ("p50", "p99", "max"):
                title = f"{kind.upper()} to first line elsewhere, {at} s"
                yield f"takeover_ttl_{ttl_s:g}_{kind}_{at}_s", title, ttl


def _handoff_rows(_: Sizes) -> Iterable[Row]:
    yield from _spread("exit_gap", "planned exit: last line to first elsewhere")
    yield from _spread("join_gap", "moved to a newcomer: last to first line")


def _ways(sizes: Sizes) -> Iterable[tuple[str, int, str, float]]:
    """Yield each way to deploy: its name, nodes, order, seconds between two nodes."""
    for place, nodes in enumerate(sizes.deployments):
        for pause_s in sizes.pauses_s[: 1 if place else None]:
            for order in ORDERS:
                pace = f"_{pause_s:g}_s_apart" if pause_s else ""
                yield f"moves_{nodes}_{order}{pace}", nodes, order, pause_s


def _deployment_rows(sizes: Sizes) -> Iterable[Row]:
    for name, nodes, order, pause_s in _ways(sizes):
        title = f"{nodes} nodes, {ORDERS[order]}" + (f", {pause_s:g} s apart" if pause_s else "")
        yield f"{name}_mean", f"{title}: moves per service", ""
        yield f"{name}_max", f"{title}: greatest", ""
        yield f"{name}_over_2_percent", f"{title}: % over 2", ""


def _notification_rows(_: Sizes) -> Iterable[Row]:
    yield from _spread("notify_call", "notify: the call itself")
    yield from _spread("notify_received", "notify to received")
    yield from _spread("notify_answered", "notify, and notified back")


def _joining_rows(sizes: Sizes) -> Iterable[Row]:
    yield "join_joined_s", f"{sizes.joiners} nodes join: all joined, s", ""
    yield "join_seen_s", "nodes join: all see all, s", ""
    yield "join_settled_s", "nodes join: services settled, s", ""
    yield "join_moved", "nodes join: services moved", ""
    yield "join_moves_max", "nodes join: moves of one, greatest", ""


def _hot_key_rows(sizes: Sizes) -> Iterable[Row]:
    yield from _spread("cold_alone", f"{sizes.cold_keys:,} cold keys, notify to received")
    yield from _spread("cold_beside_hot", "likewise beside the hot one", "cold_alone")
    yield "cold_alone_per_s", "cold keys, notify /s by 100 callers", ""
    yield "cold_beside_hot_per_s", "likewise beside the hot one", "cold_alone_per_s"
    yield "hot_per_s", "hot key: notify /s accepted", ""


def _backlog_rows(sizes: Sizes) -> Iterable[Row]:
    yield "queue_first_per_s", f"queue {sizes.queued:,} jobs: /s, first tenth", ""
    yield "queue_least_per_s", "queue: /s, slowest tenth", "queue_first_per_s"
    yield "queue_last_per_s", "queue: /s, last tenth", "queue_first_per_s"
    yield "queue_first_bytes", "queue: Redis bytes per job, first tenth", ""
    yield "queue_last_bytes", "queue: Redis bytes per job, last tenth", "queue_first_bytes"
    yield "queue_repeated", "queue: dispatches that had to be repeated", ""
    yield "drain_first_per_s", "drain: /s, first tenth", ""
    yield "drain_least_per_s", "drain: /s, slowest tenth", "drain_first_per_s"
    yield "drain_last_per_s", "drain: /s, last tenth", "drain_first_per_s"
    yield "drain_first_rss_mb", "drain: worker memory MB, after a tenth", ""
    yield "drain_last_rss_mb", "drain: worker memory MB, at the end", "drain_first_rss_mb"
    yield "drained_bytes", "drained: Redis bytes per job, at the end", ""


def _live_rows(sizes: Sizes) -> Iterable[Row]:
    yield "live_dispatched_per_s", f"{sizes.live:,} services: dispatched /s", ""
    yield "live_started_per_s", "services: started /s", "live_dispatched_per_s"
    yield "live_node_bytes", "services: bytes of process per service", ""
    yield "live_redis_bytes", "services: Redis bytes per service", ""
    yield from _rest_rows("live", "services", "node")


def _client_rows(sizes: Sizes) -> Iterable[Row]:
    yield "clients_joined_s", f"{sizes.clients:,} clients: all joined, s", ""
    yield "clients_connections", "clients: connections, per client", ""
    yield "clients_rss_mb", "clients: process memory MB, per client", ""
    yield from _rest_rows("clients", "clients", "client")
    yield from _spread("result_alone", "dispatch to result, one client")
    yield from _spread("result_beside_clients", "likewise beside all clients", "result_alone")


def _rest_rows(name: str, title: str, each: str) -> Iterable[Row]:
    yield f"{name}_rest_reads_per_s", f"{title} at rest: calls /s, per {each}", ""
    yield f"{name}_rest_commands_per_s", f"{title} at rest: commands /s, per {each}", ""
    yield f"{name}_rest_server_percent", f"{title} at rest: CPU % of the server", ""
    yield f"{name}_rest_node_percent", f"{title} at rest: CPU % per {each}", ""


class Process(Member):
    """A process of a fleet; see `fleet_member.py`."""

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        assert self._process.stdout is not None
        self._process.stdout.close()


class Fleet:
    """The processes of one pool, gone afterwards."""

    def __init__(self, probe: Probe, loop: str, sizes: Sizes) -> None:
        self._probe = probe
        self._loop = loop
        self._sizes = sizes
        self._stack = ExitStack()
        self.members: list[Member] = []  # those with workers

    def __enter__(self) -> Self:
        self._pool = self._stack.enter_context(self._probe.pool())
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, count: int, role: str = "worker") -> list[Member]:
        """Start so many processes."""
        module = "benchmarks.fleet_member"
        started: list[Member] = [
            Process(role, self._loop, self._pool, self._probe.url, module=module)
            for _ in range(count)
        ]
        for each in started:
            self._stack.enter_context(each)
        if role != "client":
            self.members += started
        return started

    def client(self) -> Member:
        """Start a process with one client node."""
        [client] = self.start(1, "client")
        self.joined(client, ["client"])
        return client

    def join(
        self,
        member: Member,
        names: Sequence[str],
        *,
        capacity: int = 100,
        workers: int = 1,
        ttl_s: float = DEFAULTS.lease_ttl_s,
        at_once: int = 100,
    ) -> None:
        """Have a process enter nodes, without waiting for it."""
        settings = {"lease_ttl_s": ttl_s, "settle_delay_s": self._sizes.settle_s}
        asked = {"capacity": capacity, "workers": workers, "settings": settings}
        member.tell(do="join", names=names, at_once=at_once, **asked)

    def joined(self, member: Member, names: Sequence[str], **more: Any) -> int:
        """Have a process enter nodes; return its number."""
        self.join(member, names, **more)
        pid: int = member.hear()["pid"]
        return pid

    def kill_at_end(self, pids: Iterable[int]) -> None:
        """Have processes killed when this ends: what they run is nobody's any more."""
        for pid in pids:
            self._stack.callback(os.kill, pid, signal.SIGKILL)

    # --- services ---------------------------------------------------------------------------------

    def serve(self, client: Member, handler: str, prefix: str, count: int) -> tuple[int, int]:
        """Dispatch services and wait until they run; return when the first and last call was."""
        told = [
            client.ask(
                "dispatch",
                handler=handler,
                prefix=prefix,
                first=first,
                count=min(CHUNK, count - first),
            )
            for first in range(0, count, CHUNK)
        ]
        self.wait_begun(count, self.members)
        return told[0]["began_ns"], told[-1]["ended_ns"]

    def wait_begun(self, count: int, members: Sequence[Member], limit_s: float = WAIT_S) -> None:
        """Wait until so many services have begun since the last news, or give up when none does."""
        progress, deadline_s = -1, time.monotonic() + limit_s
        while (begun := sum(self._counts(members, "begun"))) < count:
            if begun > progress:
                progress, deadline_s = begun, time.monotonic() + limit_s
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{begun} of {count} services begun, none for {limit_s} s")
            time.sleep(LOOK_S)

    def settle(self) -> int:
        """Return when the last service moved, once none has for a while."""
        begun, since_s = -1, 0.0
        while True:
            if (now := sum(self._counts(self.members, "begun"))) != begun:
                begun, since_s = now, time.monotonic()
            if time.monotonic() - since_s > self._sizes.quiet_s:
                return max(self._counts(self.members, "last_ns"))
            time.sleep(LOOK_S)

    def news(self) -> tuple[Kept, Kept]:
        """Return when services began and ended since the last time, by key and in order."""
        begun: Kept = defaultdict(list)
        ended: Kept = defaultdict(list)
        for member in self.members:
            told = member.ask("news")
            for kept, notes in ((begun, told["begun"]), (ended, told["ended"])):
                for key, at_ns in notes:
                    kept[key].append(at_ns)
        for times_ns in (*begun.values(), *ended.values()):
            times_ns.sort()
        return begun, ended

    def late_s(self) -> dict[str, list[float]]:
        """Return how late each notification was since the last time, by the prefix of its key."""
        late: dict[str, list[float]] = defaultdict(list)
        for member in self.members:
            for key, late_ns in member.ask("news")["late"]:
                late[key.partition("-")[0]].append(late_ns / 1e9)
        return late

    def wait_late(self, count: int) -> None:
        """Wait until so many notifications were received since the last news."""
        deadline_s = time.monotonic() + WAIT_S
        while (got := sum(self._counts(self.members, "late"))) < count:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{got} of {count} notifications received after {WAIT_S} s")
            time.sleep(LOOK_S)

    @staticmethod
    def _counts(members: Sequence[Member], what: str) -> list[int]:
        return [each.ask("news", is_whole=False)[what] for each in members]


def ask_all(members: Sequence[Member], do: str, **asked: Any) -> list[dict[str, Any]]:
    """Ask all at once; return all answers."""
    for each in members:
        each.tell(do=do, **asked)
    return [each.hear() for each in members]


def gaps_s(begun: Mapping[str, Sequence[int]], ended: Mapping[str, Sequence[int]]) -> list[float]:
    """Return how long each service that ended was nowhere, in seconds.

    Raises:
        RuntimeError: Some service did not begin again, or began before it had ended.
    """
    gaps: list[float] = []
    for key, ends_ns in ended.items():
        pairs = zip(ends_ns, begun.get(key, ()), strict=True)
        gaps += [(begin_ns - end_ns) / 1e9 for end_ns, begin_ns in pairs]
    if gaps and min(gaps) < 0:
        raise RuntimeError(f"two owners at once, for {-min(gaps)} s")
    return gaps


class Bench:
    """One run on one event loop."""

    def __init__(self, probe: Probe, loop: str, sizes: Sizes) -> None:
        self.probe = probe
        self.loop = loop
        self.sizes = sizes
        rows = chain.from_iterable(each.rows(sizes) for each in SCENARIOS.values())
        self.report = Report(loop, Table("base", tuple(rows)))
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
        for name, nodes, order, pause_s in _ways(self.sizes):
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
            rates, job_bytes, repeated = [], [], 0
            empty = self.probe.usage().memory_bytes
            for n in range(TENTHS):
                spent_ns, before = 0, self.probe.usage().memory_bytes
                for first in range(n * tenth, (n + 1) * tenth, CHUNK):
                    count = min(CHUNK, (n + 1) * tenth - first)
                    asked = {"handler": "tick", "prefix": "tick", "first": first, "count": count}
                    told = client.ask("dispatch", **asked)
                    repeated += told["repeated"]
                    spent_ns += told["ended_ns"] - told["began_ns"]
                rates.append(tenth / (spent_ns / 1e9))
                job_bytes.append((self.probe.usage().memory_bytes - before) / tenth)
            self._note_tenths("queue", "per_s", rates)
            self._note_tenths("queue", "bytes", job_bytes)
            note("queue_repeated", repeated)

            every = max(1, tenth // 100)
            worker.ask("count", every=every)
            fleet.joined(worker, ["web-0.again"])
            jobs = -1
            while (now := worker.ask("counted")["jobs"]) < TENTHS * tenth:
                if now == jobs:
                    raise RuntimeError(f"the drain stands still after {now} jobs")
                jobs = now
                time.sleep(1.0)
            told = worker.ask("counted")
            note("drained_bytes", (self.probe.usage().memory_bytes - empty) / queued)
        if told["jobs"] != TENTHS * tenth:
            raise RuntimeError(f"{TENTHS * tenth} jobs were queued, {told['jobs']} runs began")
        marks = list(zip(told["at_ns"], told["rss_bytes"], strict=True))
        cuts = [k * (len(marks) - 1) // TENTHS for k in range(TENTHS + 1)]
        rates = [
            every * (until - begin) / ((marks[until][0] - marks[begin][0]) / 1e9)
            for begin, until in pairwise(cuts)
        ]
        self._note_tenths("drain", "per_s", rates)
        self._note_tenths("drain", "rss_mb", [marks[cut][1] / 1e6 for cut in cuts[1:]])

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
            began_ns, dispatched_ns = fleet.serve(client, "live", "live", sizes.live)
            started_ns = fleet.settle()
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
    "takeover": Scenario(Bench.takeover, _takeover_rows),
    "handoff": Scenario(Bench.handoff, _handoff_rows),
    "deployment": Scenario(Bench.deployment, _deployment_rows),
    "notifications": Scenario(Bench.notifications, _notification_rows),
    "joining": Scenario(Bench.joining, _joining_rows),
    "hot_key": Scenario(Bench.hot_key, _hot_key_rows),
    "backlog": Scenario(Bench.backlog, _backlog_rows),
    "live_services": Scenario(Bench.live_services, _live_rows),
    "clients": Scenario(Bench.clients, _client_rows),
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
