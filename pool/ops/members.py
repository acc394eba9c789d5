"""Who works in a pool: nodes and workers, as the lanes know them and as they tell of themselves.

    each lane: keepalive --a page at a time--> how each stands there -+--> of all lanes the worst,
    the map of workers: host, pid, handlers, capacity ----------------+    and what it owns in all

A node without a worker is a client: nothing says where its process is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, get_args

import anyio
import attrs

from pool.errors import PoolError, StoreFault, again
from pool.jobs.roster import REMOTE, WorkerEntry
from pool.names import Names
from pool.ops.inspect import Found, all_of, fields_of, whole
from pool.ops.keyfacts import FleetFacts, KeyOwner, Standing, fleet, owners
from pool.redis.pipeline import Pipeline

MEMBERS_MAX: Final = 2_000  # nodes and workers of a lane, those whose leases end first
_TOGETHER: Final = 100  # members asked for in one round trip
# The worst last: of several lanes that one counts.
_ORDER: Final = ("live", "closed", "cordoned", "draining", "hung", "silent", "fenced", "gone")
assert set(_ORDER) == set(get_args(Standing))
_HERE: Final = frozenset(_ORDER[: _ORDER.index("silent")])


@attrs.frozen(kw_only=True)
class WorkerRow:
    """A worker.

    `standing` is live, closed (it takes no jobs now), cordoned, draining, hung, silent (its lease
    has ended), fenced (it is being taken over from) or gone; of several lanes the worst.  `takes`
    is how many jobs it takes at once, None while its loop hangs.  `lease_s` is negative once that
    has ended.
    """

    id: str
    node: str
    label: str
    host: str
    pid: int
    version: str
    handlers: tuple[str, ...]
    capacity: int
    weight: float
    standing: str
    takes: int | None
    running: int
    pending: int
    lease_s: float | None


@attrs.frozen(kw_only=True)
class NodeRow:
    """A node; one without workers is a client.  `down` parts of it have crashed and do not run.

    `standing` is as of a worker; cordoned, or draining, if all its workers are.
    """

    id: str
    host: str
    pid: int
    version: str
    standing: str
    down: int
    workers: int
    running: int
    pending: int
    lease_s: float | None


@attrs.frozen(kw_only=True)
class PoolMembers:
    """All nodes and workers of a pool; `unread` says what could not be read, and why."""

    v: int = 1
    pool: str
    nodes: tuple[NodeRow, ...]
    workers: tuple[WorkerRow, ...]
    unread: tuple[str, ...] = ()


async def read(pipeline: Pipeline, found: Found) -> PoolMembers:
    """Read who works in a pool.

    Raises:
        PoolError: No lane can be asked.
    """
    unread = list[str]()
    told = await known_fleet(pipeline, found, unread)
    known = {info.id: info for info in told.workers}
    lanes = dict[int, Sequence[KeyOwner]]()
    troubles = dict[int, PoolError]()

    async def look(number: int) -> None:
        n = Names(found.pool, number)
        at = pipeline.at(n.prefix)
        try:
            [now_ms] = await all_of(at, unread, [("TIME",)])
            [offset] = await fields_of(at, unread, n.lane, ["offset"])
            now_ms += whole(offset or b"0")
            lanes[number] = await of_lane(at, unread, n, known, now_ms)
        except PoolError as error:
            troubles[number] = error

    async with anyio.create_task_group() as tasks:
        for number in range(found.lanes):
            tasks.start_soon(look, number)
    if not lanes:
        raise again(troubles[min(troubles)])
    unread += [f"lane {number}: {error}" for number, error in sorted(troubles.items())]
    return put_together(found.pool, lanes.values(), known, unread)


async def known_fleet(pipeline: Pipeline, found: Found, unread: list[str]) -> FleetFacts:
    """Fetch the map of workers; of one that cannot be read nothing, and why in `unread`."""
    try:
        return await fleet(pipeline, found)
    except StoreFault as error:
        unread.append(f"the map of workers: {error.problem}")
        return FleetFacts()


async def of_lane(
    pipeline: Pipeline,
    unread: list[str],
    n: Names,
    known: dict[str, WorkerEntry],
    now_ms: int,
) -> tuple[KeyOwner, ...]:
    """Read the members of a lane; who has left is only remembered there, and is none."""
    [flat] = await all_of(pipeline, unread, [("ZRANGE", n.keepalive, 0, MEMBERS_MAX - 1)])
    names = [name.decode(errors="replace") for name in flat]
    found = list[KeyOwner]()
    for at in range(0, len(names), _TOGETHER):
        some = names[at : at + _TOGETHER]
        found += await owners(pipeline, unread, n, some, known, now_ms)
    return tuple(each for each in found if each.claim != "done")


def put_together(
    pool: str,
    lanes: Iterable[Sequence[KeyOwner]],
    known: Mapping[str, WorkerEntry],
    unread: Sequence[str] = (),
) -> PoolMembers:
    """Return the members of all lanes as one, those that own the most first."""
    by_id = defaultdict[str, list[KeyOwner]](list)
    for lane in lanes:
        for each in lane:
            by_id[each.name.rpartition(".")[0]].append(each)
    workers = [
        _worker(worker_id, by_id.get(worker_id, []), known.get(worker_id))
        for worker_id in dict.fromkeys([*known, *by_id])
        if not worker_id.startswith("n")
    ]
    of_node = defaultdict[str, list[WorkerRow]](list)
    for row in workers:
        of_node[row.node].append(row)
    names = [each for each in by_id if each.startswith("n")]
    nodes = [
        _node(node, by_id.get(node, []), of_node[node])
        for node in dict.fromkeys([*names, *filter(None, of_node)])
    ]
    return PoolMembers(
        pool=pool,
        nodes=tuple(sorted(nodes, key=lambda each: (-each.workers, -each.running, each.id))),
        workers=tuple(sorted(workers, key=lambda each: (each.label, -each.running, each.id))),
        unread=tuple(unread),
    )


def _standing(lanes: Sequence[KeyOwner]) -> str:
    return max((each.standing for each in lanes), key=_ORDER.index, default="gone")


def _of_node(standing: str, workers: Sequence[WorkerRow]) -> str:
    """Return how a node stands: it takes no jobs itself, and a cordon shows at its workers."""
    if standing not in ("live", "closed"):
        return standing
    best = min((each.standing for each in workers), key=_ORDER.index, default="live")
    return best if best in ("cordoned", "draining") else "live"


def _lease_s(lanes: Sequence[KeyOwner]) -> float | None:
    return min((each.lease_s for each in lanes if each.lease_s is not None), default=None)


def _worker(worker_id: str, lanes: Sequence[KeyOwner], info: WorkerEntry | None) -> WorkerRow:
    hangs = any(each.is_open and each.takes is None for each in lanes)
    return WorkerRow(
        id=worker_id,
        node=info.node if info else "",
        label=info.label if info else "",
        host=info.host if info else "",
        pid=info.pid if info else 0,
        version=info.version if info else "",
        handlers=info.handlers if info else (),
        capacity=info.capacity if info else 0,
        weight=info.weight if info else 0.0,
        standing=_standing(lanes),
        takes=None if hangs else sum(each.takes or 0 for each in lanes),
        running=sum(each.running for each in lanes),
        pending=sum(each.pending for each in lanes),
        lease_s=_lease_s(lanes),
    )


def _node(node: str, lanes: Sequence[KeyOwner], workers: Sequence[WorkerRow]) -> NodeRow:
    if node == REMOTE:
        return _remote(workers)
    first = next((each for each in workers if each.host), None)
    return NodeRow(
        id=node,
        host=first.host if first else "",
        pid=first.pid if first else 0,
        version=first.version if first else "",
        standing=_of_node(_standing(lanes), workers),
        down=max((each.ails.down for each in lanes), default=0),
        workers=len(workers),
        running=sum(each.running for each in workers),
        pending=sum(each.pending for each in workers),
        lease_s=_lease_s(lanes),
    )


def _remote(workers: Sequence[WorkerRow]) -> NodeRow:
    """Return what stands for all workers that poll: they are in no node's process."""
    standing = "live" if any(each.standing in _HERE for each in workers) else "gone"
    return NodeRow(
        id=REMOTE,
        host="",
        pid=0,
        version="",
        standing=_of_node(standing, workers),
        down=0,
        workers=len(workers),
        running=sum(each.running for each in workers),
        pending=sum(each.pending for each in workers),
        lease_s=min((each.lease_s for each in workers if each.lease_s is not None), default=None),
    )
