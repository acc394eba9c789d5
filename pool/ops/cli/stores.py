"""`pool maps` and `pool streams`: what a pool stores beside its jobs."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from datetime import UTC, datetime

from pool import checks
from pool.names import check_map, check_stream
from pool.ops import stores
from pool.ops.cli.asking import look, tell
from pool.ops.stores import MapRows, StreamRows
from pool.ops.terminal import table


def run(args: argparse.Namespace) -> int:
    """Carry out it: 0, or 1 if one that was named is not there."""
    is_of_maps = args.command == "maps"
    for name in args.names:
        check_map(name) if is_of_maps else check_stream(name)
    if args.cursor and not checks.is_scan_place(args.cursor):
        raise checks.cursor_error(args.cursor)
    names, cursor = args.names, args.cursor
    if is_of_maps:
        maps = look(args, lambda line, found: stores.maps(line, found, names, cursor=cursor))
        missing = {*names} - {each.name for each in maps.maps}
        return tell(args, maps, _of_maps(maps, missing), ok=not missing)
    streams = look(args, lambda line, found: stores.streams(line, found, names, cursor=cursor))
    missing = {*names} - {each.name for each in streams.streams}
    return tell(args, streams, _of_streams(streams, missing), ok=not missing)


def _of_maps(found: MapRows, missing: set[str]) -> Iterator[str]:
    yield from table(
        ("MAP", "STRINGS", "ITEMS", "REVISION", "LOG", "ENDS"),
        (
            (
                *(each.name, each.strings, each.items, each.revision, each.deltas),
                _when(each.ends_ms) if each.ends_ms else "never",
            )
            for each in found.maps
        ),
    )
    yield from _ends(f"{len(found.maps)} maps", missing, found)


def _of_streams(found: StreamRows, missing: set[str]) -> Iterator[str]:
    head = ("STREAM", "EVENTS", "EVER", "SINK", "CONSUMERS", "LAG", "HELD", "PARKED")
    rows = list[tuple[object, ...]]()
    for each in found.streams:
        rows.append((each.name, each.length, each.added, *[None] * 5))
        rows += [
            (None, None, None, sink.name, sink.consumers, sink.lag, sink.held, sink.parked)
            for sink in each.sinks
        ]
    yield from table(head, rows)
    yield from _ends(f"{len(found.streams)} streams", missing, found)


def _ends(count: str, missing: set[str], found: MapRows | StreamRows) -> Iterator[str]:
    yield count
    for name in sorted(missing):
        yield f"! there is no {name}"
    if found.cursor:
        yield f"the page ended after looking through some {found.looked:,} keys of the server"
        yield f"there may be more: go on with --cursor {found.cursor}"


def _when(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")
