"""How many log lines a flood writes.

    python -m tests.verify.floods

*Of each event*: it is repeated 1,000 times in 10 s of a driven clock, with other numbers and keys
each time, and once more with 1,000 different names.  Lines are counted as the default observer
writes them.

*Of each fault*: an idle `pool run` meets a server that loses or evicts its data, or a network that
cuts its connections, again and again for 20 s.  Counted are the lines of the first minute, of the
event that has most of them, and what the node sends to the server.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, get_type_hints

import anyio
import anyio.lowlevel
import anyio.to_thread
import attrs
import redis
from structlog.testing import capture_logs

import pool.events
from pool.redis.embedded.server import EmbeddedServer, find_servers
from pool.redis.io.scribe import Hush
from pool.runtime import observers
from pool.testing import FaultProxy, fault_proxy
from tests.verify.exits import START_S, until

ROOT: Final = Path(__file__).parents[2]

REPEATS: Final = 1_000
WITHIN_S: Final = 10.0
LINES_MAX: Final = 5  # of an event and a subject within those 10 s
# Of an event with 1,000 different names: 20 of them; a node that leaves begins the count anew.
NAMES_LINES_MAX: Final = 21


def events() -> dict[str, type[Any]]:
    """Return all classes of events by name, as the reference page lists them."""
    classes = (getattr(pool.events, name) for name in pool.events.__all__)
    found = {each.event: each for each in classes if attrs.has(each) and hasattr(each, "event")}
    return dict(sorted(found.items()))


# Names that count as they are, by docs/how-to/logs.md; of all other texts numbers do not.
NAMES: Final = frozenset(
    ("action", "by", "during", "handler", "index", "map", "name", "plan", "pool", "reader")
) | {"schedule", "sink", "stream", "what"}


def one(kind: type[Any], number: int, *, is_renamed: bool) -> Any:
    """Return an event: numbers differ in each, names only if asked for."""
    values: dict[str, object] = {}
    hints = get_type_hints(kind)
    named = {field.name for field in attrs.fields(kind)}
    # An error that is about no handler is told for each lane and key: they are its subject.
    same = {"lane", "key"} if kind.level == "error" and "handler" not in named else set()
    for field in attrs.fields(kind):
        if field.name in same and not is_renamed:
            values[field.name] = 0 if field.name == "lane" else "key"
        elif hints[field.name] is bool:
            values[field.name] = bool(number % 2)
        elif hints[field.name] in (int, float, int | None):
            values[field.name] = number
        elif field.name in NAMES:
            values[field.name] = f"name {number}" if is_renamed else "name"
        else:
            values[field.name] = f"{field.name} a.{number} in 0.{number} s"
    return kind(**values)


@contextmanager
def limited(write: Callable[[Callable[[], object]], object]) -> Iterator[list[float]]:
    """Give the observer's limiter a clock that the caller drives, and another writer."""
    before, now = observers._hush, [0.0]
    observers._hush = Hush(write, clock=lambda: now[0])
    try:
        yield now
    finally:
        observers._hush.end()
        observers._hush = before


def flood(kind: type[Any], *, is_renamed: bool = False) -> tuple[int, int]:
    """Return how many lines are written at once, and how many occurrences all lines tell."""
    written: list[Callable[[], object]] = []
    with capture_logs() as logs:
        with limited(written.append) as now:
            for number in range(REPEATS):
                now[0] = WITHIN_S * number / REPEATS
                observers.log_observer(one(kind, number, is_renamed=is_renamed))
            at_once = len(written)
        for line in written:
            line()
    counted = Counter[str]()
    for facts in logs:
        counted[facts["event"]] += facts.get("times", facts.get("others", 1))
    return at_once, counted[kind.event]


# --- of each fault --------------------------------------------------------------------------------

FAULT_S: Final = 20.0
MINUTE_S: Final = 60.0
CALLS_MAX: Final = 30.0  # in a second, of one idle node with one shard, whatever befalls its server
CUTS_S: Final = 0.1  # between two cuts of all connections
LOSSES_S: Final = 0.005  # between two losses of all data
HANDLERS: Final = """
from pool import Handlers
handlers = Handlers()

@handlers.job("rest")
async def rest(job):
    pass
"""
# What a node sends by itself; all other commands that a server counts are those of its scripts.
_SENT: Final = ("evalsha", "script", "hello", "auth", "ping", "client", "xread", "info", "select")
Fault = Callable[[FaultProxy, redis.Redis], Awaitable[None]]


async def nothing(_: FaultProxy, __: redis.Redis) -> None:
    """For comparison."""


async def cut_connections(proxy: FaultProxy, _: redis.Redis) -> None:
    """Reset all connections."""
    await proxy.cut()
    await anyio.sleep(CUTS_S)


async def lose_data(_: FaultProxy, client: redis.Redis) -> None:
    """Delete all keys."""
    await anyio.to_thread.run_sync(client.flushall)
    await anyio.sleep(LOSSES_S)


async def evict_data(_: FaultProxy, client: redis.Redis) -> None:
    """Have each write evict all keys; somebody else has set that while the node was at work."""

    def set_limit() -> None:
        client.config_set("maxmemory-policy", "allkeys-random")
        client.config_set("maxmemory", "1")

    await anyio.to_thread.run_sync(set_limit)
    await anyio.sleep(CUTS_S)


FAULTS: Final[dict[str, Fault]] = {
    "nothing": nothing,
    "connections are cut": cut_connections,
    "data are lost": lose_data,
    "data are evicted": evict_data,
}


@attrs.frozen
class Written:
    """What an idle node wrote and sent while its server, or the way there, failed."""

    lines: Counter[str]  # by event
    calls: float  # in a second of the fault
    is_alive: bool  # the process goes on

    @property
    def most(self) -> tuple[str, int]:
        """The event with most lines."""
        return max(self.lines.items(), key=lambda each: each[1], default=("-", 0))


async def play(fault: Fault, loop: str, *, fault_s: float, watch_s: float) -> Written:
    """Have an idle `pool run` meet a fault for so long; watch it for so long in all."""
    with (
        EmbeddedServer.start(next(iter(find_servers("wheel", [])))) as server,
        redis.Redis.from_url(server.url) as client,
        tempfile.TemporaryDirectory() as name,
    ):
        async with fault_proxy(server.url) as proxy:
            folder = Path(name)
            with _idle(proxy.url, loop, folder) as process:
                out = folder / "out"
                await anyio.to_thread.run_sync(
                    until, lambda: "ready" in out.read_text(), START_S, "it is not ready"
                )
                await anyio.sleep(1.0)  # what follows a start
                known, sent = len(_events(folder)), await anyio.to_thread.run_sync(_sent, client)
                end_s = anyio.current_time() + watch_s
                with anyio.move_on_after(fault_s):
                    while True:
                        await fault(proxy, client)
                        await anyio.lowlevel.checkpoint()
                calls = await anyio.to_thread.run_sync(_sent, client) - sent
                await anyio.to_thread.run_sync(_end_eviction, client)
                await anyio.sleep_until(end_s)
                lines = Counter(_events(folder)[known:])
                return Written(lines, calls / fault_s, process.poll() is None)


@contextmanager
def _idle(url: str, loop: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    (folder / "idle.py").write_text(HANDLERS, "utf-8")
    words = ["run", "idle", "--pool", "idle", "--url", url, "--loop", loop, "--log-format", "json"]
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "pool.ops.cli", *words],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=out,
            stderr=err,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def _events(folder: Path) -> list[str]:
    """Return the events of all log lines."""
    lines = (folder / "err").read_text().splitlines()
    return [json.loads(line)["event"] for line in lines if line.endswith("}")]


def _sent(client: redis.Redis) -> int:
    facts: Any = client.info("commandstats")
    return sum(
        counts["calls"]
        for name, counts in facts.items()
        if name.removeprefix("cmdstat_").partition("|")[0] in _SENT
    )


def _end_eviction(client: redis.Redis) -> None:
    client.config_set("maxmemory", "0")
    client.config_set("maxmemory-policy", "noeviction")


def _faults() -> Iterator[str]:
    yield "| an idle node, while | event loop | most lines of an event | lines | calls/s | alive |"
    yield "|---|---|---|---:|---:|---|"
    for name, fault in FAULTS.items():
        for loop in ("asyncio", "trio"):
            found = anyio.run(_minute, fault, loop)
            event, lines = found.most
            alive = "yes" if found.is_alive else "NO"
            yield f"| {name} | {loop} | {event} | {lines} | {found.calls:.1f} | {alive} |"


async def _minute(fault: Fault, loop: str) -> Written:
    return await play(fault, loop, fault_s=FAULT_S, watch_s=MINUTE_S)


def main() -> None:
    """Print both tables."""
    print("| event | lines at once | of 1,000 names | told in all |")  # noqa: T201 - its purpose
    print("|---|---:|---:|---:|")  # noqa: T201 - its purpose
    for name, kind in events().items():
        at_once, told = flood(kind)
        of_names = flood(kind, is_renamed=True)[0]
        print(f"| {name} | {at_once} | {of_names} | {told} |")  # noqa: T201 - its purpose
    print()  # noqa: T201 - its purpose
    for line in _faults():
        print(line, flush=True)  # noqa: T201 - its purpose


if __name__ == "__main__":
    main()
