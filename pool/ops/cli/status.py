"""`pool status`: a pool at a glance, and what is wrong with it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import attrs

from pool.core.pauses import Cordon, Pause
from pool.errors import ConfigError, StoreFault
from pool.jobs.roster import WorkerEntry
from pool.names import Control, check_pool
from pool.ops import inspect
from pool.ops.inspect import Found, Identity, View
from pool.ops.keyfacts import FleetFacts, fleet
from pool.ops.terminal import write
from pool.redis.embedded.program import find_server
from pool.redis.embedded.server import EmbeddedServer
from pool.redis.io.system import SystemIO
from pool.redis.pipeline import Pipeline
from pool.redis.url import Url
from pool.settings import Settings

_WORKERS_SHOWN = 50  # as text; JSON holds them all


@attrs.frozen(kw_only=True)
class PoolStatus:
    """What was found, ready to be printed."""

    pool: str
    server: str
    lanes: int
    nodes: list[dict[str, Any]]
    jobs: dict[str, int]
    oldest_pending: dict[str, Any] | None
    parked: int
    counters: dict[str, int]
    findings: list[str]
    paused: list[dict[str, Any]] = attrs.field(factory=list)  # see `pool.pauses.Pause`
    cordons: list[dict[str, Any]] = attrs.field(factory=list)  # and `Cordon`


def run(args: argparse.Namespace) -> int:
    """Carry out `pool status`: 0, or 1 if something is wrong."""
    check_pool(args.pool)
    with reachable(args.url) as url:
        status = anyio.run(fetch, args.pool, url)
    if args.json:
        write([json.dumps({"ok": not status.findings, **attrs.asdict(status)})])
    else:
        write(_lines(status))
    return 1 if status.findings else 0


@contextmanager
def reachable(url: Url) -> Iterator[Url]:
    """Yield the address to connect to; a shared embedded server runs until we are done.

    Who looks makes nothing: where no server has ever been, none is started.
    """
    if url.kind != "embedded":
        yield url
        return
    if not url.path:
        problem = "embedded:// alone is a server of one process; give the address that it prints"
        raise ConfigError(setting="url", problem=problem)
    if not EmbeddedServer.has_been_in(Path(url.path)):
        raise ConfigError(setting="url", problem=f"no embedded server has ever been in {url.path}")
    with EmbeddedServer.start(find_server("path"), directory=Path(url.path)) as server:
        yield Url.parse(server.url)


async def fetch(pool: str, url: Url) -> PoolStatus:
    """Return the status of a pool.

    Raises:
        StoreUnavailable, AuthError, UnsupportedServer: The server cannot be asked.
        ConfigError: The address cannot work.
    """
    url = url.at(Control(pool).prefix)
    pipeline = await Pipeline.open(SystemIO(), url, op_timeout_s=Settings().op_timeout_s)
    try:
        server = f"{pipeline.server.name} {pipeline.server.version}" if pipeline.server else ""
        found = await inspect.find(pipeline, pool)
        if found is None:
            return _unknown(pool, server)
        view = await inspect.view(pipeline, found)
        try:
            told = await fleet(pipeline, found)
        except StoreFault as error:
            told = FleetFacts()
            view = attrs.evolve(view, unread=(*view.unread, f"the map of workers: {error.problem}"))
        return _status(found, server, view, told)
    finally:
        await pipeline.aclose(1.0)


def _unknown(pool: str, server: str) -> PoolStatus:
    return PoolStatus(
        pool=pool,
        server=server,
        lanes=0,
        nodes=[],
        jobs={},
        oldest_pending=None,
        parked=0,
        counters={},
        findings=["this server has no pool of that name: no node has ever joined it"],
    )


def _status(found: Found, server: str, view: View, told: FleetFacts) -> PoolStatus:
    workers = {info.id: info for info in told.workers}
    alive = {each.id: each for each in view.identities}
    nodes: dict[str, dict[str, Any]] = {
        each.id: {"id": each.id, "lease_s": each.lease_s, "workers": []}
        for each in view.identities
        if each.kind == "node"
    }
    for info in sorted(workers.values(), key=lambda info: (info.label, info.id)):
        node = nodes.setdefault(info.node, {"id": info.node, "lease_s": None, "workers": []})
        node["workers"].append(_worker(info, alive.get(info.id)))
    return PoolStatus(
        pool=found.pool,
        server=server,
        lanes=found.lanes,
        nodes=list(nodes.values()),
        jobs=view.states,
        oldest_pending=attrs.asdict(view.oldest) if view.oldest else None,
        parked=view.parked,
        counters=dict(sorted(view.counters.items())),
        findings=list(_findings(view, workers)),
        paused=[attrs.asdict(each) for each in told.asked.pauses.values()],
        cordons=[attrs.asdict(each) for each in told.asked.cordons.values()],
    )


def _worker(info: WorkerEntry, identity: Identity | None) -> dict[str, Any]:
    return {
        "id": info.id,
        "label": info.label,
        "handlers": list(info.handlers),
        "capacity": info.capacity,
        "weight": info.weight,
        "version": info.version,
        "host": info.host,
        "pid": info.pid,
        "draining": info.is_draining,
        "cordoned": info.is_cordoned,
        "lease_s": identity.lease_s if identity else None,
        "running": identity.running if identity else 0,
        "pending": identity.pending if identity else 0,
    }


def _findings(view: View, workers: dict[str, WorkerEntry]) -> Iterator[str]:
    """Yield what the pool should have mended by itself, or cannot."""
    slack_s = max(view.ttl_s, 1.0)
    for trouble in view.unread:
        yield f"cannot be read: {trouble}"
    if view.lanes_apart:
        apart = ", ".join(map(str, view.lanes_apart))
        yield f"lanes {apart} do not go by the pool's TTL, {view.pool_ttl_s:g} s: run `pool ttl`"
    silent = [each.id for each in view.identities if each.lease_s < -slack_s]
    if silent:
        yield f"{len(silent)} leases ended over a TTL ago and nobody reaped them: {silent[0]}, ..."
    for each in view.identities:
        if each.down and each.lease_s > 0:
            parts = "a part has" if each.down == 1 else f"{each.down} parts have"
            yield f"of node {each.id} {parts} crashed and not begun again: see its actor.crashed"
    hung = [each.id for each in view.identities if each.is_hung and each.lease_s > 0]
    if hung:
        yield f"{len(hung)} workers take no jobs, their event loops hang: {hung[0]}, ..."
    if view.astray:
        yield f"{view.astray} jobs were found where no index leads to them: being put right"
    if not (view.identities or workers):
        return  # all have left in order: what waits, waits for the next to join
    if view.overdue_s > slack_s:
        yield f"a start, retry or limit is overdue by {view.overdue_s:.1f} s: nobody sweeps"
    known = {name for info in workers.values() if not info.is_draining for name in info.handlers}
    for handler, count in sorted(view.waiting_for.items()):
        if not handler:
            yield f"{count} jobs wait for handlers that no node has ever registered"
        elif handler not in known:
            yield f"{count} jobs wait for handler {handler!r}, which no worker has"


# --- as text --------------------------------------------------------------------------------


def _lines(status: PoolStatus) -> Iterator[str]:
    lanes = f"{status.lanes} lane{'s' if status.lanes != 1 else ''}"
    yield f"pool {status.pool} on {status.server}, {lanes}"
    if status.jobs:
        counts = [f"{count} {state}" for state, count in status.jobs.items()]
        yield f"jobs      {', '.join([*counts, f'{status.parked} parked'])}"
    for each in status.paused:
        pause = Pause(**each)
        over = "being resumed" if pause.is_over else "paused"
        yield f"{over:9} {pause}, by {pause.by}{_because(pause.reason)}"
    for each in status.cordons:
        cordon = Cordon(**each)
        word = "drains" if cordon.is_drain else "cordoned"
        yield f"{word:9} {cordon.id}, by {cordon.by}{_because(cordon.reason)}"
    oldest = status.oldest_pending
    if oldest is not None:
        owner = f", granted to {oldest['owner']}" if oldest["owner"] else ""
        waited = f"{oldest['state']} for {oldest['age_s']:.1f} s"
        yield f"oldest    {oldest['key']} ({oldest['handler']}) {waited}{owner}"
    if status.counters:
        yield f"counters  {', '.join(f'{count} {name}' for name, count in status.counters.items())}"
    workers = [(node, worker) for node in status.nodes for worker in node["workers"]]
    clients = sum(not node["workers"] for node in status.nodes)
    yield f"nodes     {len(status.nodes)}, of which {clients} are clients"
    for node, worker in workers[:_WORKERS_SHOWN]:
        yield f"  {_worker_line(node['id'], worker)}"
    if len(workers) > _WORKERS_SHOWN:
        yield f"  ... and {len(workers) - _WORKERS_SHOWN} more workers"
    if not status.nodes and status.lanes:
        yield "nobody is here: what waits, waits for the next to join"
    for finding in status.findings:
        yield f"! {finding}"


def _worker_line(node: str, worker: dict[str, Any]) -> str:
    name = f"{worker['label']} " if worker["label"] else ""
    lease_s = worker["lease_s"]
    words = [
        f"{name}{worker['id']} on {node}:",
        f"{worker['running']} running, {worker['pending']} pending, {worker['capacity']} slots,",
        "no lease" if lease_s is None else f"lease {lease_s:.1f} s,",
        f"handlers {', '.join(worker['handlers'])},",
        f"version {worker['version']}," if worker["version"] else "",
        f"pid {worker['pid']} on {worker['host']}" if worker["host"] else "",
    ]
    line = " ".join(word for word in words if word).rstrip(",")
    how = [word for word in ("draining", "cordoned") if worker[word]]
    return f"{line} ({', '.join(how)})" if how else line


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""
