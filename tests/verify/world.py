"""The world of one campaign: a server, a proxy for each node, processes, and the admin's hand.

    producers, nodes (half on asyncio, half on trio) -- a fault proxy each --> the one server
    driver: keeps the population, hurts it, writes its own history; its own way to the server

A process that ends is started again, as an init system would, until the campaign is over.  Kills
only what it started, by pid.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import anyio
import anyio.to_thread
import attrs
import redis
from anyio.abc import Process, TaskGroup

import pool
from pool.redis.acl import rules
from pool.redis.embedded.server import EmbeddedServer, ServerProgram
from pool.testing import FaultProxy, fault_proxy
from tests.verify.clock import NoClock, SteppedClock, stepped
from tests.verify.history import Recorder, file_sink
from tests.verify.netns import Namespace, NoNamespaces, namespace
from tests.verify.service import START_FAILED

READY_S: Final = 60.0  # to start Python six times beside others that need the machine
STARVED_X: Final = 10
LOOK_S: Final = 0.02
ABOVE: Final = -10  # niceness of the driver, its proxies and the server, where that is allowed
ROOT: Final = Path(__file__).parents[2]
POOL: Final = "chaos"


@attrs.define(eq=False)
class Member:
    """One name of the population: a process after the other."""

    name: str
    role: str
    loop: str
    proxy: FaultProxy
    net: Namespace | None = None  # its own network, where it has one
    boot: int = 0
    process: Process | None = None
    ready: anyio.Event = attrs.field(factory=anyio.Event)
    rest_s: float = 0.3  # between the end of a process and the next one
    is_hurt: bool = False

    @property
    def p(self) -> str:
        """What this process is called in the history."""
        return f"{self.name}/{self.boot}"

    @property
    def is_up(self) -> bool:
        """Whether its process has joined, and lives."""
        running = self.process is not None and self.process.returncode is None
        return running and self.ready.is_set()

    async def lose(self, *, requests: bool, replies: bool) -> None:
        """Lose what it sends to the server, or what comes from there, until `find()`."""
        if self.net is not None:
            await in_thread(partial(self.net.lose, requests=requests, replies=replies))
        else:
            self.proxy.drop_requests, self.proxy.drop_replies = requests, replies

    async def find(self) -> None:
        """Lose nothing more.  A proxy's connections are out of step, and reset; TCP's are not."""
        if self.net is not None:
            await in_thread(self.net.lose)
        else:
            await self.proxy.heal()

    def signal(self, number: signal.Signals) -> None:
        """Send its process a signal, if it lives."""
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)


@attrs.define(eq=False, kw_only=True)
class World:
    """Everything a fault can get at."""

    directory: Path
    server: EmbeddedServer
    dice: random.Random
    ttl_s: float
    record: Recorder
    tasks: TaskGroup
    members: dict[str, Member] = attrs.field(factory=dict)
    refused: set[str] = attrs.field(factory=set)  # what the server would not let the pool's user do
    server_lock: anyio.Lock = attrs.field(factory=anyio.Lock)
    settings: Mapping[str, Any] = MappingProxyType({})
    per_s: float = 30.0
    capacity: int = 60  # so that takeovers do not wait for slots
    disk: Path | None = None  # a small file system of the server's own, if one could be made
    clock: SteppedClock | None = None  # the server's, if it could be given one
    injected: dict[str, int] = attrs.field(factory=dict)
    impossible: dict[str, str] = attrs.field(factory=dict)  # fault -> why not on this machine
    spared: frozenset[str] = frozenset()  # names that are hurt, but never killed
    deaf: frozenset[str] = frozenset()  # names whose log lines go into a pipe that nobody reads
    lanes: int = 1
    has_flows: bool = True  # followers, batches and schedules are asked for
    troubles: list[str] = attrs.field(factory=list)  # what a fault found, beside the history
    is_over: bool = False
    waited_s: float = 0.0  # how long threads waited for a processor
    _ids: int = 0

    # --- the population ---

    @property
    def workers(self) -> list[Member]:
        """The members with handlers."""
        return [member for member in self.members.values() if member.role == "worker"]

    @property
    def producers(self) -> list[Member]:
        """The members without."""
        return [member for member in self.members.values() if member.role == "producer"]

    async def keep(self, member: Member) -> None:
        """Run the member's processes, one after another."""
        while not self.is_over:
            member.boot += 1
            member.ready = anyio.Event()
            file_name = member.p.replace("/", "-")
            await self._run(member, file_name)
            await anyio.sleep(member.rest_s)
            member.rest_s = 0.3

    async def _run(self, member: Member, file_name: str) -> None:
        words = [sys.executable, "-m", "tests.verify.service", json.dumps(self._cast(member))]
        with (self.directory / f"{file_name}.log").open("wb") as log:
            member.process = await anyio.open_process(
                words if member.net is None else member.net.command(words),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(Path(pool.__file__).parents[1])},
            )
        p = member.p
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._await_ready, member, self.directory / f"ready-{file_name}")
            code = await member.process.wait()
            tasks.cancel_scope.cancel()
        if member.ready.is_set():
            self.record("exit", p=p, result=code)
        elif code != START_FAILED:
            self.record("event", p=p, extra={"event": "start.died", "code": code})

    async def _await_ready(self, member: Member, path: Path) -> None:
        while not path.exists():  # noqa: ASYNC110, ASYNC240 - another process makes it
            await anyio.sleep(LOOK_S)
        member.ready.set()

    def _cast(self, member: Member) -> dict[str, Any]:
        return {
            "p": member.p,
            "pool": POOL,
            "role": member.role,
            "url": member.proxy.url,
            "loop": member.loop,
            "directory": str(self.directory),
            "capacity": self.capacity,
            "seed": self.dice.getrandbits(32),
            "per_s": self.per_s / max(1, len(self.producers)),
            "serves": member.name == "p1",
            "has_flows": self.has_flows,
            "is_deaf": member.name in self.deaf,
            "calls_per_s": 2.0 if member.role == "worker" else 0.0,
            "settings": {**self._settings(member), **self.settings},
        }

    def _settings(self, member: Member) -> dict[str, Any]:
        """Return what a process goes by: all is drawn but what the bounds stand on."""
        dice = random.Random(f"{member.p}/{self.per_s}")
        op_timeout_s = dice.choice((0.6, 1.0, 1.0, 1.5))
        return {
            "lease_ttl_s": self.ttl_s,
            "op_timeout_s": op_timeout_s,
            "retry_window_s": dice.choice((30.0, 10.0, 3.0 * op_timeout_s)),
            "result_ttl_s": 3600.0,
            "grace_s": 2.0,
            "settle_delay_s": dice.choice((0.0, 0.3, 0.3, 1.0)),
            "sweep_batch": dice.choice((1, 16, 128, 250)),
            "messages_max": dice.choice((1_000, 100_000)),
            "lanes": self.lanes,
        }

    async def until(self, look: Callable[[], bool], within_s: float) -> bool:
        """Wait until something is the case; say whether it was in time.

        What threads waited for a processor meanwhile is not counted, up to `STARVED_X` times the
        limit: where thirty processes share two processors, six starts of Python take minutes, and
        one that hangs waits for no processor.
        """
        clock = self.record.clock
        began_s, starved_s = clock(), self.waited_s
        while not look():
            took_s = clock() - began_s
            starved = min(self.waited_s - starved_s, STARVED_X * within_s)
            if took_s - starved >= within_s:
                return False
            await anyio.sleep(LOOK_S)
        return True

    async def all_up(self, within_s: float = READY_S) -> bool:
        """Wait until every member has joined."""
        return await self.until(lambda: all(m.is_up for m in self.members.values()), within_s)

    def forget(self, what: str, member: Member) -> None:
        """Forget that the member's process has said so."""
        (self.directory / f"{what}-{member.p.replace('/', '-')}").unlink(missing_ok=True)

    def has_said(self, what: str, member: Member) -> bool:
        """Say whether the member's process has made the file that tells so."""
        return (self.directory / f"{what}-{member.p.replace('/', '-')}").exists()

    async def command(self, member: Member, **command: Any) -> None:
        """Send a producer a command; one that is dead takes none."""
        if member.process is not None and member.process.stdin is not None:
            try:
                await member.process.stdin.send(json.dumps(command).encode() + b"\n")
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                self.record("event", p=member.p, extra={"event": "command.lost", **command})

    # --- faults ---

    @contextmanager
    def fault(
        self, kind: str, does: str, target: str = "", *, weight: int = 1, **more: float
    ) -> Iterator[None]:
        """Write that a fault is in effect while the body runs."""
        self._ids += 1
        extra: dict[str, Any] = {"id": self._ids, "kind": kind, "does": does, "target": target}
        extra |= {"weight": weight, **more}
        self.record("fault", "invoke", extra=extra)
        try:
            yield
        finally:
            self.record("fault", "ok", extra=extra)

    @contextmanager
    def victim(self, *, ends: bool = False) -> Iterator[Member | None]:
        """Yield a worker that nothing else hurts now; None if too few would be left."""
        well = [member for member in self.workers if not member.is_hurt and member.is_up]
        mortal = [member for member in well if not ends or member.name not in self.spared]
        if len(well) < 2 or not mortal:
            yield None
            return
        chosen = self.dice.choice(mortal)
        with hurt(chosen):
            yield chosen

    @contextmanager
    def pipeline(self) -> Iterator[Member | None]:
        """Yield a member, maybe a producer, whose link nothing else hurts now."""
        well = [member for member in self.members.values() if not member.is_hurt]
        if not well:
            yield None
            return
        chosen = self.dice.choice(well)
        with hurt(chosen):
            yield chosen

    async def kill(self, member: Member, rest_s: float) -> None:
        """SIGKILL a member's process; the next one begins after `rest_s`."""
        member.rest_s = rest_s
        process = member.process
        member.signal(signal.SIGKILL)
        if process is not None:
            await process.wait()

    # --- the server ---

    def look_for_refusals(self, client: redis.Redis) -> None:
        """Take over what the server's access log says of the pool's user; a restart empties it."""
        for entry in client.acl_log():
            if entry["username"] == POOL:
                self.refused.add(f"{entry['reason']} {entry['object']}")

    @contextmanager
    def admin(self) -> Iterator[redis.Redis]:
        """Yield a connection that goes through no proxy."""
        with redis.Redis.from_url(self.server.url, socket_timeout=10.0) as client:
            yield client

    async def ask(self, *command: Any) -> Any:
        """Send the server one command."""

        def send() -> Any:
            with self.admin() as client:
                return client.execute_command(*command)  # type: ignore[no-untyped-call]

        return await anyio.to_thread.run_sync(send)


@contextmanager
def hurt(*members: Member) -> Iterator[None]:
    """Keep other faults away: the end of one must not be taken for the end of another."""
    for member in members:
        member.is_hurt = True
    try:
        yield
    finally:
        for member in members:
            member.is_hurt = False


@asynccontextmanager
async def made(
    directory: Path,
    program: ServerProgram,
    *,
    seed: int,
    nodes: int,
    fsync: str,
    ttl_s: float = 2.0,
    per_s: float = 30.0,
    settings: Mapping[str, Any] = MappingProxyType({}),
    apart: bool = False,
    deaf: frozenset[str] = frozenset(),
    lanes: int = 1,
    has_flows: bool = True,
) -> AsyncIterator[World]:
    """Make the world: server, proxies, processes; all of it is gone afterwards.

    `apart` gives each process a network of its own where this machine allows that.
    """
    dice = random.Random(seed)
    async with AsyncExitStack() as stack:
        stack.enter_context(_above_the_nodes())
        disk = stack.enter_context(_small_disk())
        clock, no_clock = None, ""
        try:
            program, clock = stack.enter_context(stepped(program, directory))
        except NoClock as error:
            no_clock = str(error)
        server = stack.enter_context(_served(program, disk, fsync, _users(directory)))
        record = Recorder("driver/1", file_sink(directory / "driver-1.jsonl"), time.monotonic)
        tasks = await stack.enter_async_context(anyio.create_task_group())
        world = World(
            directory=directory,
            server=server,
            dice=dice,
            ttl_s=ttl_s,
            record=record,
            tasks=tasks,
            disk=disk,
            clock=clock,
            per_s=per_s,
            settings=settings,
            deaf=deaf,
            lanes=lanes,
            has_flows=has_flows,
        )
        if disk is None:
            world.impossible["disk-full"] = "no file system could be mounted"
        if no_clock:
            world.impossible["clock-step"] = no_clock
        names = [f"n{i}" for i in range(1, nodes + 1)] + ["p1", "p2"]
        nets: list[Namespace] = []
        if apart:
            try:
                nets = [stack.enter_context(namespace(at)) for at in range(len(names))]
            except NoNamespaces as error:
                world.impossible["namespaces"] = f"{error}; loopback, and proxies lose instead"
        for number, name in enumerate(names):
            net = nets[number] if nets else None
            host = net.far_address if net else "127.0.0.1"
            proxy = await stack.enter_async_context(fault_proxy(_as_user(server.url), host=host))
            loop = ("asyncio", "trio")[(number + seed) % 2]
            role = "worker" if name.startswith("n") else "producer"
            world.members[name] = Member(name, role, loop, proxy, net)
        try:
            for member in world.members.values():
                tasks.start_soon(world.keep, member)
            yield world
        finally:
            world.is_over = True
            with anyio.CancelScope(shield=True):
                for member in world.members.values():
                    member.signal(signal.SIGCONT)
                    await world.kill(member, 0.0)
            tasks.cancel_scope.cancel()


@contextmanager
def _above_the_nodes() -> Iterator[None]:
    """Server and network stand for other machines: nodes must not take their processor."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, ABOVE)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, before)


@contextmanager
def _small_disk() -> Iterator[Path | None]:
    """Mount a file system that can be filled up, where this machine allows it."""
    directory = Path("/tmp") / f"pool-disk-{os.getpid()}"  # noqa: S108 - a socket's path is short
    directory.mkdir(mode=0o700)
    mount = ["mount", "-t", "tmpfs", "-o", "size=192m,mode=700", "none", str(directory)]
    is_mounted = os.geteuid() == 0 and _runs(mount)
    try:
        yield directory if is_mounted else None
    finally:
        if is_mounted:
            _runs(["umount", "--lazy", str(directory)])
        shutil.rmtree(directory, ignore_errors=True)


def _runs(words: list[str]) -> bool:
    program = shutil.which(words[0])
    if program is None:
        return False
    done = subprocess.run([program, *words[1:]], capture_output=True, check=False)
    return done.returncode == 0


def _users(directory: Path) -> Path:
    """Write the server's list of users; the pool's may do what `pool acl` says, and no more."""
    path = directory.resolve() / "users.acl"
    everything = "user default on nopass ~* &* +@all"
    path.write_text(f"{everything}\nuser {POOL} on >{POOL} {' '.join(rules(POOL))}\n", "utf-8")
    return path


def _as_user(url: str) -> str:
    scheme, _, place = url.partition("://")
    return f"{scheme}://{POOL}:{POOL}@{place}"


@contextmanager
def _served(
    program: ServerProgram, disk: Path | None, fsync: str, users: Path
) -> Iterator[EmbeddedServer]:
    config = {"appendfsync": fsync, "maxclients": "200", "aclfile": str(users)}
    if program.name == "redis":
        config["enable-debug-command"] = "local"
    with EmbeddedServer.start(
        program,
        directory=disk / "data" if disk else None,
        persist=True,
        config=MappingProxyType(config),
    ) as server:
        yield server
        server.kill()  # what it still writes interests nobody


in_thread: Final = partial(anyio.to_thread.run_sync, abandon_on_cancel=True)
