"""One node of the demo, in a process of its own: `python -m pool.demo.member`.

It drains on SIGTERM, leaves when the pool is shut down, and dies with the conductor, whose end of
its standard input closes then.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Final

import anyio

from pool.demo import handlers, zones
from pool.demo.conductor import Cast
from pool.demo.ledger import Ledger
from pool.jobs.node import Node
from pool.ops.cli.worker import serve
from pool.ops.logs import configure
from pool.settings import Settings

_RESULT_TTL_S: Final = 3600.0  # the verdict reads all outcomes at the end


def main() -> None:
    """Run one node until it is told to leave."""
    cast = Cast.parse(sys.argv[1])
    threading.Thread(target=_end_with_the_conductor, daemon=True).start()
    configure(sys.stderr, is_json=True)
    zones.read_package_only()
    anyio.run(_member, cast, backend=cast.loop)


async def _member(cast: Cast) -> None:
    ledger = Ledger(Path(cast.ledger), cast.name)
    work = handlers.make(ledger, cast.pace)
    settings = Settings(lease_ttl_s=cast.ttl_s, grace_s=cast.grace_s, result_ttl_s=_RESULT_TTL_S)
    node = Node(cast.pool, cast.url, settings=settings)

    async def on_ready() -> None:
        for i in range(cast.workers):
            await node.add_worker(work, capacity=cast.capacity, label=f"{cast.name}-{i}")
        ledger.write("node", how="joined")

    await serve(node, on_ready, on_leaving=lambda _: None)


def _end_with_the_conductor() -> None:
    # At its end of file this returns nothing; nothing is ever written to it.  Not sys.stdin, whose
    # lock a daemon thread would hold when the interpreter ends.
    os.read(sys.stdin.fileno(), 1)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
