"""`pool nodes` and `pool workers`: who is there, where, and how they stand."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import attrs

from pool.ops import members
from pool.ops.cli.asking import look, tell
from pool.ops.members import NodeRow, PoolMembers, WorkerRow
from pool.ops.terminal import table

_HEALTHY = ("live", "closed", "cordoned", "draining")


def run(args: argparse.Namespace) -> int:
    """Carry out it: 0, or 1 if one that is shown is not healthy, or something cannot be read."""
    found = look(args, members.read)
    is_of_nodes = args.command == "nodes"
    shown = attrs.evolve(
        found,
        nodes=tuple(each for each in found.nodes if _fits(args, each)) if is_of_nodes else (),
        workers=() if is_of_nodes else tuple(each for each in found.workers if _fits(args, each)),
    )
    rows: Sequence[NodeRow | WorkerRow] = shown.nodes if is_of_nodes else shown.workers
    is_well = not shown.unread and all(each.standing in _HEALTHY for each in rows)
    is_well = is_well and not any(each.down for each in shown.nodes)
    return tell(args, shown, _lines(shown, is_of_nodes=is_of_nodes), ok=is_well)


def _fits(args: argparse.Namespace, row: NodeRow | WorkerRow) -> bool:
    handler = getattr(args, "handler", None)
    return (
        args.host in (None, row.host)
        and args.standing in (None, row.standing)
        and (handler is None or handler in getattr(row, "handlers", ()))
    )


def _lines(found: PoolMembers, *, is_of_nodes: bool) -> Iterator[str]:
    yield from node_table(found.nodes) if is_of_nodes else worker_table(found.workers)
    count = len(found.nodes) if is_of_nodes else len(found.workers)
    yield f"{count} {'nodes' if is_of_nodes else 'workers'}"


def node_table(rows: Sequence[NodeRow]) -> Iterator[str]:
    """Yield nodes as a table."""
    head = ("NODE", "STANDING", "LEASE", "WORKERS", "RUNNING", "PENDING", "DOWN", "HOST", "PID")
    return table(
        (*head, "VERSION"),
        (
            (
                *(each.id, each.standing, _lease(each.lease_s), each.workers, each.running),
                *(each.pending, each.down, each.host, each.pid or None, each.version),
            )
            for each in rows
        ),
    )


def worker_table(rows: Sequence[WorkerRow]) -> Iterator[str]:
    """Yield workers as a table."""
    head = ("WORKER", "LABEL", "STANDING", "LEASE", "RUNNING", "PENDING", "SLOTS", "HOST", "PID")
    return table(
        (*head, "VERSION", "HANDLERS"),
        (
            (
                *(each.id, each.label, each.standing, _lease(each.lease_s), each.running),
                *(each.pending, each.capacity, each.host, each.pid or None, each.version),
                ", ".join(each.handlers),
            )
            for each in rows
        ),
    )


def _lease(lease_s: float | None) -> str:
    return "none" if lease_s is None else f"{lease_s:.1f}"
