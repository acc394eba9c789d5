"""What the channel between lanes costs and carries: `python -m benchmarks.channel`.

    python -m benchmarks.channel                                # lanes 1 and 4, some minutes
    python -m benchmarks.channel --busy --items 500 --backlog 2000 --rounds 1

A private server, and one node in this process.

*Item by item*: jobs of which each has a follower, beside as many jobs of which none has: both by
turns in each round.  A follower is written into the channel by the script that settles its job, is
carried over and accepted, and runs, so the difference to two plain jobs is what an item costs the
server: its processor time, and its commands.

*A backlog*: as many followers as asked for lie in one lane for another that nobody reached; then
somebody comes.  How many are carried a second, what each costs the server, in how many calls, and
the longest of these by the server's own slow log.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import count
from typing import Any, Final
from unittest.mock import patch

import anyio
import attrs

from benchmarks.peers.quiet import refusal
from benchmarks.probe import Probe
from pool import Follower, Handlers, Job, Node, Settings
from pool.jobs.fleet.carrier import Carrier
from pool.names import Names, lane_of
from pool.redis.commands.lane import SCRIPTS
from pool.redis.embedded.server import EmbeddedServer, find_server

CALLERS: Final = 100
CAPACITY: Final = 1000
ROUNDS: Final = 3
LOOK_S: Final = 0.01
LIMIT_S: Final = 1200.0
BUSY: Final = 3
_LOG_MAX: Final = 1_000_000


def house(*names: str) -> Handlers:
    """Return handlers of these names that do nothing."""
    handlers = Handlers()

    async def nothing(_: Job) -> None:
        return

    for name in names:
        handlers.job(name)(nothing)
    return handlers


def counted(probe: Probe, pool: str, lanes: int, counter: str) -> int:
    """Return a counter of all lanes together."""
    found = (probe.client.hget(Names(pool, lane).lane, counter) for lane in range(lanes))
    return sum(int(each or 0) for each in found)


async def until(is_over: Callable[[], bool], what: str) -> None:
    """Wait until the server says so."""
    end_s = time.monotonic() + LIMIT_S
    while not is_over():
        if time.monotonic() > end_s:
            raise TimeoutError(f"{what} took longer than {LIMIT_S:g} s")
        await anyio.sleep(LOOK_S)


async def by_callers(do: Callable[[int], Awaitable[object]], jobs: int) -> None:
    """Do it for each number, some at once."""

    async def caller(begin: int) -> None:
        for number in range(begin, jobs, CALLERS):
            await do(number)

    async with anyio.create_task_group() as tasks:
        for begin in range(CALLERS):
            tasks.start_soon(caller, begin)


# --- item by item ---------------------------------------------------------------------------------


@attrs.frozen
class Figures:
    """Of one side of a round: each job that was dispatched, and its follower, if it had one."""

    per_s: float
    server_us: float
    commands: float


async def side(probe: Probe, lanes: int, items: int, *, has_followers: bool) -> Figures:
    """Dispatch so many, and wait until all have ended."""
    with probe.pool() as pool:
        settings = Settings(lanes=lanes, queued_jobs_max=10_000_000)
        node = Node(
            pool,
            probe.url,
            handlers=house("first", "second"),
            settings=settings,
            capacity=CAPACITY,
            observers=(),
        )
        async with node:

            async def one(number: int) -> None:
                options = node
                if has_followers:
                    options = node.options(then=Follower("second", f"then-{number}"))  # type: ignore[assignment]
                await options.dispatch("first", f"first-{number}")

            before, began_s = probe.usage(), time.monotonic()
            await by_callers(one, items)
            ends = items * (1 + has_followers)
            await until(lambda: counted(probe, pool, lanes, "done") >= ends, "the jobs")
            seconds, used = time.monotonic() - began_s, probe.usage() - before
    return Figures(items / seconds, used.cpu_us / items, used.commands / items)


async def item_by_item(
    probe: Probe, lanes: Sequence[int], items: int, rounds: int
) -> Iterator[str]:
    """Measure each number of lanes, by turns; return the lines of a table."""
    found: dict[int, list[tuple[Figures, Figures]]] = {number: [] for number in lanes}
    for turn in range(rounds):
        for number in lanes if turn % 2 == 0 else lanes[::-1]:
            plain = await side(probe, number, items, has_followers=False)
            followed = await side(probe, number, items, has_followers=True)
            found[number].append((plain, followed))
    lines = [f"{'lanes':>5} {'jobs with one, a s':>20} {'server us an item':>26} {'commands':>10}"]
    for number, each in found.items():
        rate = statistics.median(followed.per_s for _, followed in each)
        extra = [followed.server_us - 2 * plain.server_us for plain, followed in each]
        commands = statistics.median(
            followed.commands - 2 * plain.commands for plain, followed in each
        )
        spread = f"{statistics.median(extra):.0f} ({min(extra):.0f} to {max(extra):.0f})"
        lines.append(f"{number:5} {rate:20,.0f} {spread:>26} {commands:10.1f}")
    lines.append("an item: what a job and its follower take beyond two plain jobs")
    return iter(lines)


# --- a backlog ------------------------------------------------------------------------------------


def keys_in(lane: int, lanes: int, what: str) -> Iterator[str]:
    """Yield keys of a lane."""
    names = (f"{what}-{number}" for number in count())
    return (name for name in names if lane_of(name, lanes) == lane)


async def backlog(probe: Probe, lanes: int, items: int) -> Iterator[str]:
    """Have so many lie in the first lane for the last one, then have them carried."""
    to, settings = lanes - 1, Settings(lanes=lanes, queued_jobs_max=10_000_000)
    client: Any = probe.client
    with probe.pool() as pool:

        def node(handler: str) -> Node:
            return Node(
                pool,
                probe.url,
                handlers=house(handler),
                settings=settings,
                capacity=CAPACITY,
                observers=(),
            )

        async with node("second"):
            pass  # now its handler is known to the pool, and no worker has it
        with patch.object(Carrier, "carry", lambda *_: None):  # as if the other lane hung
            async with node("first") as filler:
                keys = zip(keys_in(0, lanes, "first"), keys_in(to, lanes, "then"), strict=False)
                pairs = [pair for _, pair in zip(range(items), keys, strict=False)]

                async def one(number: int) -> None:
                    key, follower = pairs[number]
                    options = filler.options(then=Follower("second", follower))
                    await options.dispatch("first", key)

                await by_callers(one, items)
                await until(lambda: counted(probe, pool, lanes, "done") >= items, "filling")
        lying = counted(probe, pool, lanes, "outgoing")
        assert lying == items, f"{lying} of {items} lie there"
        client.config_set("slowlog-max-len", _LOG_MAX)
        client.config_set("slowlog-log-slower-than", 0)
        client.slowlog_reset()
        before, began_s = probe.usage(), time.monotonic()
        async with node("first"):
            await until(lambda: not counted(probe, pool, lanes, "outgoing"), "carrying")
            seconds, used = time.monotonic() - began_s, probe.usage() - before
        calls = scripts(client)
        accepted = client.hlen(Names(pool, to).jobs)
        assert accepted == items, f"{accepted} of {items} were accepted"
    us = used.cpu_us / items
    lines = [f"{lanes} lanes: {items} in {seconds:.1f} s, {items / seconds:,.0f} a s, {us:.0f} us"]
    for name in ("outgoing", "incoming"):
        took = sorted(calls.get(name, [0]))
        longest, middle = took[-1] / 1000, took[len(took) // 2] / 1000
        lines.append(f"  {name}: {len(took)} calls, {middle:.2f} ms, the longest {longest:.2f} ms")
    others = {name: max(took) for name, took in calls.items()}
    worst = max(others, key=lambda name: others[name])
    lines.append(f"  of all scripts the longest: {worst}, {others[worst] / 1000:.2f} ms")
    return iter(lines)


def scripts(client: Any) -> dict[str, list[int]]:
    """Return by script how long each call took the server, in us."""
    names = {found.sha.encode(): found.name for found in SCRIPTS}
    names |= {found.numbered_sha.encode(): found.name for found in SCRIPTS}
    took: dict[str, list[int]] = {}
    for entry in client.slowlog_get(_LOG_MAX):
        word, _, rest = entry["command"].partition(b" ")
        if word.upper() == b"EVALSHA" and (name := names.get(rest.partition(b" ")[0])):
            took.setdefault(name, []).append(entry["duration"])
    return took


async def measure(probe: Probe, given: argparse.Namespace) -> None:
    """Measure both, and print."""
    for line in await item_by_item(probe, given.lanes, given.items, given.rounds):
        sys.stdout.write(f"{line}\n")
    for lanes in given.lanes:
        for line in await backlog(probe, lanes, given.backlog):
            sys.stdout.write(f"{line}\n")


def main() -> int:
    """Parse the command line, measure; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.channel", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--lanes", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--items", type=int, default=10_000, help="jobs of a side of a round")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--backlog", type=int, default=100_000, help="followers that lie there")
    parser.add_argument("--busy", action="store_true", help="on a busy machine, too")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    if not given.busy and (why := refusal(load)):
        sys.stderr.write(f"{why}\n")
        return BUSY
    with EmbeddedServer.start(find_server("path")) as server:
        probe = Probe(server.url)
        try:
            anyio.run(measure, probe, given)
        finally:
            probe.close()
    sys.stdout.write(f"load before {load:.2f}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
