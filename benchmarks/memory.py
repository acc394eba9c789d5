"""What maps and streams hold: `python -m benchmarks.memory`, about a minute.

    fill --> MEMORY USAGE of the keys          a process more opens a copy --> what it grew by

Of each entry of a map, a string or a list's item: what it takes beside its value, in a process that
has a copy (at rest, and at its highest: while the copy was opened, and changes were applied) and on
the server.  The map's log is counted apart, as it has a bound of its own.  Of each event of a
stream: what it takes on the server beside its payload, and more while a sink's consumer holds it.
"""

from __future__ import annotations

import argparse
import sys
from typing import Final

from benchmarks.copies import MAP
from benchmarks.maps import offer
from benchmarks.probe import Probe
from benchmarks.throughput import Member
from pool.names import Control
from pool.redis.embedded.server import EmbeddedServer, find_server

LIMIT: Final = 100_000  # entries of one map
# Strings, items of a list, and the bytes of each value.
CASES: Final = (
    (LIMIT - 1, 0, 16),
    (0, LIMIT - 1, 16),
    (LIMIT // 10, 0, 1_024),
    (0, LIMIT // 10, 1_024),
    (2_000, 0, 65_536),
)
EVENTS: Final = 10_000
EVENT_BYTES: Final = (16, 1_024)
WRITES: Final = 20  # of another string, while the copy is there
RATE_PER_S: Final = 20.0
MIB: Final = 1024 * 1024
OF_MAPS: Final = """\
| entries of a map | of bytes | process: more each | highest | server: more each | log, MiB |
|---|---|---|---|---|---|"""
OF_STREAMS: Final = """
| events of a stream | of bytes | server: more each | held by a sink: more each |
|---|---|---|---|"""


def of_map(probe: Probe, loop: str, keys: int, items: int, size: int) -> str:
    """Measure one case; return its line of the table."""
    with probe.pool() as pool:
        words = ("benchmarks.copies", "copies", loop, pool, probe.url)
        with Member(*words) as writer:
            writer.ask("hold", count=1)
            writer.ask("fill", keys=keys, items=items, size=size)
            with Member(*words) as holder:
                empty = holder.ask("memory")["now"]
                holder.ask("hold", count=1)
                here = holder.ask("memory")["now"] - empty
                offer([writer, holder], WRITES, RATE_PER_S)
                most = holder.ask("memory")["highest"] - empty
        control = Control(pool)
        there = sum(usage(probe, key(MAP)) for key in (control.map_data, control.map_lists))
        log = usage(probe, control.map_log(MAP))
    entries = keys + items
    more = [f"{total / entries - size:,.0f}" for total in (here, max(here, most), there)]
    kind = "strings" if keys else "items of a list"
    return f"| {entries:,} {kind} | {size:,} | {' | '.join(more)} | {log / MIB:.1f} |"


def of_stream(probe: Probe, size: int) -> str:
    """Likewise, of a stream."""
    with probe.pool() as pool:
        key, pipeline = Control(pool).stream("s"), probe.client.pipeline(transaction=False)
        for n in range(1, EVENTS + 1):
            words = ("n", n, "e", "benched", "p", b"x" * size)
            pipeline.execute_command("XADD", key, "*", *words)
        pipeline.execute()
        there = usage(probe, key)
        probe.client.xgroup_create(key, "sink", "0")
        probe.client.xreadgroup("sink", "consumer", {key: ">"}, count=EVENTS)
        held = usage(probe, key) - there
    return f"| {EVENTS:,} | {size:,} | {there / EVENTS - size:,.0f} | {held / EVENTS:,.0f} |"


def usage(probe: Probe, key: str) -> int:
    """Return how many bytes of the server's memory a key has."""
    return int(probe.client.memory_usage(key, samples=0) or 0)


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("--loop", choices=("asyncio", "trio"), default="asyncio")
    given = parser.parse_args()
    with EmbeddedServer.start(find_server("path")) as server:
        probe = Probe(server.url)
        sys.stdout.write(f"{' '.join(probe.server().values())}\n\n{OF_MAPS}\n")
        for case in CASES:
            sys.stdout.write(f"{of_map(probe, given.loop, *case)}\n")
            sys.stdout.flush()
        lines = [OF_STREAMS, *(of_stream(probe, size) for size in EVENT_BYTES)]
        sys.stdout.write("\n".join(lines) + "\n")
        probe.close()


if __name__ == "__main__":
    main()
