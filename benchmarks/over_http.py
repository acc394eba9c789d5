"""What HTTP adds: `python -m benchmarks.over_http --jobs 2000 --idle 1000`.

A private server, one gateway (`pool web`) and, in this process, who dispatches and who polls;
beside them, in the same run and in turns, the same jobs without HTTP, dispatched here and run in a
worker process.  Jobs do nothing.  Reported are

    single      jobs a second, each dispatched, handed out and completed by a request of its own, by
                so many connections at once; without HTTP, dispatched one by one by as many tasks
    batches     so many jobs in each request; without HTTP, by `dispatch_many`
    to start    from right before a dispatch until the job is there: its poll is answered, or its
                handler begins.  One job at a time, whoever runs it has nothing else to do
    idle        what the server and the gateway use while so many workers wait in polls

Requests are written by hand: a client for people would cost more than what is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import attrs
import redis

from pool import Call, Handlers, Job, Node, Settings
from pool.names import Names
from pool.redis.embedded.server import EmbeddedServer, find_server

POOL: Final = "over-http"
CONNECTIONS: Final = 16
BATCH: Final = 100
WAIT_S: Final = 20.0
REST_S: Final = 0.01  # between two jobs whose start is timed
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
handlers: Final = Handlers()


@handlers.job("plain")
async def plain(_: Job) -> float:
    """Say when it began."""
    return time.monotonic()


async def member(url: str) -> None:
    """Be the worker without HTTP, until killed."""
    async with Node(POOL, url, handlers=handlers, capacity=BATCH, observers=()):
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await anyio.sleep_forever()


# --- a connection -------------------------------------------------------------------------------


@attrs.define(eq=False)
class Connection:
    """A connection that stays; one request at a time."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    @asynccontextmanager
    async def open(cls, web: str) -> AsyncIterator[Connection]:
        """Yield a connection with the gateway."""
        host, _, port = web.rpartition("/")[2].partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            yield cls(reader, writer)
        finally:
            writer.close()

    async def post(self, path: str, body: Any) -> Any:
        """Ask; whatever is no success is an error."""
        text = json.dumps(body).encode()
        self.writer.write(
            b"POST /v1/%s HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%s" % (path.encode(), len(text), text)
        )
        head = (await self.reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        told = await self.reader.readexactly(length)
        assert head[9:10] == b"2", told
        return json.loads(told)


@attrs.define(eq=False)
class Poller:
    """A worker that polls."""

    connection: Connection
    token: str

    @classmethod
    async def register(cls, connection: Connection, capacity: int) -> Poller:
        """Return a worker that is registered."""
        body = {"handlers": ["polled"], "capacity": capacity}
        return cls(connection, (await connection.post("workers", body))["token"])

    async def poll(self, jobs_max: int, wait_s: float = WAIT_S) -> list[dict[str, Any]]:
        """Return jobs; none if there were none in time."""
        body = {"worker_token": self.token, "held": [], "jobs_max": jobs_max, "wait_s": wait_s}
        jobs: list[dict[str, Any]] = (await self.connection.post("workers/poll", body))["jobs"]
        return jobs

    async def complete(self, jobs: Sequence[dict[str, Any]]) -> None:
        """Have them done."""
        done = [{"token": job["token"], "result": None} for job in jobs]
        await self.connection.post("workers/complete", {"worker_token": self.token, "jobs": done})

    async def leave(self) -> None:
        """Leave the pool."""
        await self.connection.post("workers/leave", {"worker_token": self.token})


# --- the scene ----------------------------------------------------------------------------------


@attrs.define(eq=False)
class Scene:
    """What is measured: a server, a gateway, and a node of our own."""

    url: str
    client: redis.Redis
    web: str
    gateway_pid: int
    node: Node
    _keys: Iterator[str] = attrs.field(factory=lambda: (f"tenant-{n:07d}" for n in range(10**7)))

    def keys(self, count: int) -> list[str]:
        """Return so many keys that have had no job."""
        return [next(self._keys) for _ in range(count)]

    def server_s(self) -> float:
        """Return the server's processor time."""
        cpu: Any = self.client.info("cpu")
        return float(cpu["used_cpu_user"] + cpu["used_cpu_sys"])

    def gateway_s(self) -> float:
        """Return the gateway's processor time."""
        stat = Path(f"/proc/{self.gateway_pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / TICKS_PER_S

    def done(self) -> int:
        """Return how many jobs are done."""
        return int(self.client.hget(Names(POOL, 0).lane, "done") or 0)

    @asynccontextmanager
    async def connections(self, count: int) -> AsyncIterator[list[Connection]]:
        """Yield so many connections."""
        async with AsyncExitStack() as stack:
            opened = [stack.enter_async_context(Connection.open(self.web)) for _ in range(count)]
            yield [await each for each in opened]


@contextmanager
def _process(*words: str) -> Iterator[tuple[int, str]]:
    """Yield a process of ours: its id, and the first line that it prints."""
    silent = subprocess.DEVNULL  # a gateway's log
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=silent, text=True) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            assert said, f"{words[0]} has ended"
            yield process.pid, said
        finally:
            process.kill()


@asynccontextmanager
async def scene(server: EmbeddedServer, client: redis.Redis) -> AsyncIterator[Scene]:
    """Yield a pool that has a gateway."""
    settings = Settings(result_ttl_s=3600.0)
    program = str(Path(sys.executable).with_name("pool"))
    words = (program, "web", "--pool", POOL, "--url", server.url, "--port", "0", "--json")
    async with Node(POOL, server.url, settings=settings, observers=()) as node:
        with _process(*words, "--requests-per-s", "1000000") as (pid, said):
            yield Scene(server.url, client, json.loads(said)["web"], pid, node)


async def _together(count: int, each: Callable[[int], Coroutine[Any, Any, None]]) -> None:
    async with anyio.create_task_group() as tasks:
        for number in range(count):
            tasks.start_soon(each, number)


# --- jobs a second ------------------------------------------------------------------------------


async def over_http(scene: Scene, jobs: int, together: int) -> float:
    """Return jobs a second, so many in each request."""
    keys = scene.keys(jobs)
    left = jobs
    async with scene.connections(2 * CONNECTIONS) as connections:
        dispatching, polling = connections[:CONNECTIONS], connections[CONNECTIONS:]
        pollers = [await Poller.register(each, together) for each in polling]

        async def send(number: int) -> None:
            for first in range(number * together, jobs, CONNECTIONS * together):
                some = keys[first : first + together]
                bodies = [{"handler": "polled", "key": key} for key in some]
                body: Any = bodies[0] if together == 1 else {"jobs": bodies}
                await dispatching[number].post("jobs", body)

        async def work(number: int) -> None:
            nonlocal left
            while left > 0:
                taken = await pollers[number].poll(together, wait_s=0.5)
                if taken:
                    await pollers[number].complete(taken)
                    left -= len(taken)

        async def all_work() -> None:
            await _together(CONNECTIONS, work)

        began_s, before = time.perf_counter(), scene.done()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(all_work)
            await _together(CONNECTIONS, send)
        took_s = time.perf_counter() - began_s
        assert scene.done() - before == jobs
        for poller in pollers:
            await poller.leave()
    return jobs / took_s


async def without_http(scene: Scene, jobs: int, together: int) -> float:
    """Return jobs a second without HTTP."""
    keys = scene.keys(jobs)

    async def send(number: int) -> None:
        for first in range(number * together, jobs, CONNECTIONS * together):
            some = keys[first : first + together]
            if together == 1:
                await scene.node.dispatch("plain", some[0])
            else:
                await scene.node.dispatch_many("plain", [Call(key) for key in some])

    began_s, before = time.perf_counter(), scene.done()
    await _together(CONNECTIONS, send)
    while scene.done() - before < jobs:  # noqa: ASYNC110 - only the server knows
        await anyio.sleep(0.005)
    return jobs / (time.perf_counter() - began_s)


# --- from dispatch to start ---------------------------------------------------------------------


async def starts_s(scene: Scene, count: int) -> dict[str, list[float]]:
    """Return how long it takes until jobs begin, by how they are sent and who runs them."""
    found: dict[str, list[float]] = {"plain -> plain": [], "plain -> poll": [], "HTTP -> poll": []}
    async with scene.connections(2) as (sending, polling):
        poller = await Poller.register(polling, 1)
        for key in scene.keys(count):
            began_s = time.monotonic()
            ref = await scene.node.dispatch("plain", key)
            found["plain -> plain"].append(float(await ref.result()) - began_s)
            for way in ("plain -> poll", "HTTP -> poll"):
                [other] = scene.keys(1)
                came_s: list[float] = []
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_take_one, poller, came_s)
                    await anyio.sleep(REST_S)  # the poll is open by then
                    began_s = time.monotonic()
                    if way == "plain -> poll":
                        await scene.node.dispatch("polled", other)
                    else:
                        await sending.post("jobs", {"handler": "polled", "key": other})
                found[way].append(came_s[0] - began_s)
        await poller.leave()
    return found


async def _take_one(poller: Poller, came_s: list[float]) -> None:
    jobs = await poller.poll(1)
    came_s.append(time.monotonic())
    await poller.complete(jobs)


# --- waiting ------------------------------------------------------------------------------------


async def at_rest(scene: Scene, over_s: float) -> tuple[float, float]:
    """Return the share of a processor that the server and the gateway use meanwhile."""
    server_s, gateway_s, began_s = scene.server_s(), scene.gateway_s(), time.perf_counter()
    await anyio.sleep(over_s)
    took_s = time.perf_counter() - began_s
    return (scene.server_s() - server_s) / took_s, (scene.gateway_s() - gateway_s) / took_s


async def idle(scene: Scene, count: int, over_s: float) -> tuple[float, float]:
    """Return what so many workers cost that wait."""
    async with scene.connections(count) as connections:
        pollers = [await Poller.register(each, 1) for each in connections]

        async def wait(number: int) -> None:
            while True:
                assert not await pollers[number].poll(1)

        async with anyio.create_task_group() as tasks:
            for number in range(count):
                tasks.start_soon(wait, number)
            await anyio.sleep(WAIT_S / 2)
            used = await at_rest(scene, over_s)
            tasks.cancel_scope.cancel()
    return used


# --- the report ---------------------------------------------------------------------------------


def _told(name: str, seconds: Sequence[float]) -> str:
    found = sorted(seconds)
    p50, p99 = (1000 * found[int(len(found) * share)] for share in (0.5, 0.99))
    return f"to start, {name}: p50 {p50:.1f} ms, p99 {p99:.1f} ms, of {len(found)}"


async def measure(server: EmbeddedServer, client: redis.Redis, given: argparse.Namespace) -> None:
    """Measure and print."""

    def say(line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    load = ", ".join(f"{each:.2f}" for each in os.getloadavg())
    say(f"{os.cpu_count()} processors, load before: {load}")
    async with scene(server, client) as it:
        words = (sys.executable, "-m", "benchmarks.over_http", "--member", server.url)
        with _process(*words):
            for name, together in (("single", 1), (f"batches of {BATCH}", BATCH)):
                for turn in range(given.turns):
                    with_s = await over_http(it, given.jobs, together)
                    without_s = await without_http(it, given.jobs, together)
                    say(f"{name}, {turn + 1}: {with_s:.0f} jobs/s, without HTTP {without_s:.0f}")
            for name, seconds in (await starts_s(it, given.starts)).items():
                say(_told(name, seconds))
        for count in (0, given.idle):
            server_share, gateway_share = await idle(it, count, given.over_s)
            say(
                f"{count} workers wait: the server uses {1000 * server_share:.1f} ms a second, "
                f"the gateway {1000 * gateway_share:.1f}"
            )


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.over_http", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--jobs", type=int, default=2_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--starts", type=int, default=300)
    parser.add_argument("--idle", type=int, default=1_000)
    parser.add_argument("--over-s", type=float, default=30.0, help="for which they are watched")
    parser.add_argument("--member", metavar="URL", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.member:
        anyio.run(member, given.member)
        return 0
    with (
        EmbeddedServer.start(find_server("wheel")) as server,
        redis.Redis.from_url(server.url, protocol=2) as client,
    ):
        anyio.run(measure, server, client, given)
    return 0


if __name__ == "__main__":
    sys.exit(main())
