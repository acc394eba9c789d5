"""How large the scenarios of the benchmark of fleets are, and the rows they are shown in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

import attrs

from pool import Settings
from pool.core.lease import TTL_DEFAULT_S

ORDERS: Final = {"start_first": "new before old", "stop_first": "old before new"}
DEFAULTS: Final = Settings()
Row: TypeAlias = tuple[str, str, str]  # figure, title, the figure it is divided by or nothing


@attrs.frozen(kw_only=True)
class Sizes:
    """How large each scenario is."""

    ttls_s: tuple[float, ...] = (1.0, TTL_DEFAULT_S)
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
    drain_look_s: float = 1.0
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


def _spread(name: str, title: str, base: str = "") -> Iterable[Row]:
    for at in ("p50", "p99", "max"):
        yield f"{name}_{at}_ms", f"{title}, {at} ms", f"{base}_{at}_ms" if base else ""


def takeover_rows(sizes: Sizes) -> Iterable[Row]:
    """Of `takeover`."""
    for ttl_s in sizes.ttls_s:
        ttl = f"ttl_{ttl_s:g}_s"
        yield ttl, f"lease TTL {ttl_s:g} s", ""
        for kind in sizes.signals:
            for at in ("p50", "p99", "max"):
                title = f"{kind.upper()} to first line elsewhere, {at} s"
                yield f"takeover_ttl_{ttl_s:g}_{kind}_{at}_s", title, ttl


def handoff_rows(_: Sizes) -> Iterable[Row]:
    """Of `handoff`."""
    yield from _spread("exit_gap", "planned exit: last line to first elsewhere")
    yield from _spread("join_gap", "moved to a newcomer: last to first line")


def ways(sizes: Sizes) -> Iterable[tuple[str, int, str, float]]:
    """Yield each way to deploy: its name, nodes, order, seconds between two nodes."""
    for place, nodes in enumerate(sizes.deployments):
        for pause_s in sizes.pauses_s[: 1 if place else None]:
            for order in ORDERS:
                pace = f"_{pause_s:g}_s_apart" if pause_s else ""
                yield f"moves_{nodes}_{order}{pace}", nodes, order, pause_s


def deployment_rows(sizes: Sizes) -> Iterable[Row]:
    """Of `deployment`."""
    for name, nodes, order, pause_s in ways(sizes):
        title = f"{nodes} nodes, {ORDERS[order]}" + (f", {pause_s:g} s apart" if pause_s else "")
        yield f"{name}_mean", f"{title}: moves per service", ""
        yield f"{name}_max", f"{title}: greatest", ""
        yield f"{name}_over_2_percent", f"{title}: % over 2", ""


def notification_rows(_: Sizes) -> Iterable[Row]:
    """Of `notifications`."""
    yield from _spread("notify_call", "notify: the call itself")
    yield from _spread("notify_received", "notify to received")
    yield from _spread("notify_answered", "notify, and notified back")


def joining_rows(sizes: Sizes) -> Iterable[Row]:
    """Of `joining`."""
    yield "join_joined_s", f"{sizes.joiners} nodes join: all joined, s", ""
    yield "join_seen_s", "nodes join: all see all, s", ""
    yield "join_settled_s", "nodes join: services settled, s", ""
    yield "join_moved", "nodes join: services moved", ""
    yield "join_moves_max", "nodes join: moves of one, greatest", ""


def hot_key_rows(sizes: Sizes) -> Iterable[Row]:
    """Of `hot_key`."""
    yield from _spread("cold_alone", f"{sizes.cold_keys:,} cold keys, notify to received")
    yield from _spread("cold_beside_hot", "likewise beside the hot one", "cold_alone")
    yield "cold_alone_per_s", "cold keys, notify /s by 100 callers", ""
    yield "cold_beside_hot_per_s", "likewise beside the hot one", "cold_alone_per_s"
    yield "hot_per_s", "hot key: notify /s accepted", ""


def backlog_rows(sizes: Sizes) -> Iterable[Row]:
    """Of `backlog`."""
    yield "queue_first_per_s", f"queue {sizes.queued:,} jobs: /s, first tenth", ""
    yield "queue_least_per_s", "queue: /s, slowest tenth", "queue_first_per_s"
    yield "queue_last_per_s", "queue: /s, last tenth", "queue_first_per_s"
    for what, title in (("client", "client"), ("redis", "Redis")):
        first = f"queue_first_{what}_cpu_us"
        yield first, f"queue: {title} CPU us per job, first tenth", ""
        yield f"queue_last_{what}_cpu_us", f"queue: {title} CPU us per job, last tenth", first
    yield "queue_first_bytes", "queue: Redis bytes per job, first tenth", ""
    yield "queue_last_bytes", "queue: Redis bytes per job, last tenth", "queue_first_bytes"
    yield "queue_repeated", "queue: dispatches that had to be repeated", ""
    yield "drain_first_per_s", "drain: /s, first tenth", ""
    yield "drain_least_per_s", "drain: /s, slowest tenth", "drain_first_per_s"
    yield "drain_last_per_s", "drain: /s, last tenth", "drain_first_per_s"
    yield "drain_first_worker_cpu_us", "drain: worker CPU us per job, first tenth", ""
    first = "drain_first_worker_cpu_us"
    yield "drain_last_worker_cpu_us", "drain: worker CPU us per job, last tenth", first
    yield "drain_redis_cpu_us", "drain: Redis CPU us per job", ""
    yield "drain_first_rss_mb", "drain: worker memory MB, after a tenth", ""
    yield "drain_last_rss_mb", "drain: worker memory MB, at the end", "drain_first_rss_mb"
    yield "drained_bytes", "drained: Redis bytes per job, at the end", ""


def live_rows(sizes: Sizes) -> Iterable[Row]:
    """Of `live_services`."""
    yield "live_dispatched_per_s", f"{sizes.live:,} services: dispatched /s", ""
    yield "live_started_per_s", "services: started /s", "live_dispatched_per_s"
    yield "live_client_cpu_us", "services: client CPU us per start", ""
    yield "live_node_cpu_us", "services: node CPU us per start", ""
    yield "live_redis_cpu_us", "services: Redis CPU us per start", ""
    yield "live_node_bytes", "services: bytes of process per service", ""
    yield "live_redis_bytes", "services: Redis bytes per service", ""
    yield from _rest_rows("live", "services", "node")


def client_rows(sizes: Sizes) -> Iterable[Row]:
    """Of `clients`."""
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
