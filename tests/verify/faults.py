"""The faults of black-box campaigns: each a function that hurts the world and heals it again.

A table says what each one is, what it needs, and how often the mixture takes it.  What this machine
cannot inject is named in `NEVER` or found out when the campaign begins, and stands in the report.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import anyio
import attrs
import redis

from tests.verify.service import ODD
from tests.verify.world import POOL, Member, World, hurt, in_thread

Hurt: TypeAlias = Callable[[World, str], Awaitable[None]]

NEVER: Final = {
    "power-loss": "no fsync-recording shim here; SIGKILL and lost writes stand in for it",
    "packet-loss": "a part of them needs the kernel's netem, which is not everywhere; all or none",
    "oom-kill": "the kernel's way to SIGKILL; SIGKILL is sent instead",
    "failover": "one server here; make test-sentinel and make test-cluster have others take over",
}


@attrs.frozen
class Fault:
    """One kind of fault."""

    hurt: Hurt
    weight: int  # in the mixture; 0: only by itself
    loses_data: bool = False
    fsync: str = "everysec"  # what it must run with, by itself
    lanes: int = 1


FAULTS: Final[dict[str, Fault]] = {}


def fault(
    *names: str,
    weight: int = 2,
    loses_data: bool = False,
    fsync: str = "everysec",
    lanes: int = 1,
) -> Callable[[Hurt], Hurt]:
    """Put a function into the table, under one name or several (it is told which)."""

    def register(hurt: Hurt) -> Hurt:
        for name in names:
            FAULTS[name] = Fault(hurt, weight, loses_data, fsync, lanes)
        return hurt

    return register


# --- processes -------------------------------------------------------------------------------


@fault("kill", weight=5)
async def kill(w: World, name: str) -> None:
    """SIGKILL a node."""
    with w.victim(ends=True) as victim:
        if victim:
            with w.fault(name, "crash", victim.name):
                await w.kill(victim, w.dice.uniform(0.2, 4.0))


@fault("kill-all")
async def kill_all(w: World, name: str) -> None:
    """SIGKILL every node; a cold start finds everything in Redis."""
    with w.fault(name, "crash"):
        async with anyio.create_task_group() as tasks:
            for member in w.workers:
                tasks.start_soon(w.kill, member, 0.5)
    await w.all_up()


@fault("crash-loop", weight=1)
async def crash_loop(w: World, name: str) -> None:
    """A node dies again and again, soon after each start."""
    with w.victim(ends=True) as victim:
        for _ in range(4 if victim else 0):
            assert victim is not None
            with anyio.move_on_after(5.0):
                await victim.ready.wait()
            await anyio.sleep(w.dice.uniform(0.1, 0.8))
            with w.fault(name, "crash", victim.name):
                await w.kill(victim, 0.1)
            await w.until(lambda: victim.is_up, 5.0)


@fault("leave", weight=3)
async def leave(w: World, name: str) -> None:
    """SIGTERM: a node leaves, and another takes its place."""
    with w.victim(ends=True) as victim:
        if victim and victim.process:
            p, process = victim.p, victim.process
            with w.fault(name, "leave", victim.name):
                w.record("leave", "invoke", p=p)
                victim.signal(signal.SIGTERM)
                with anyio.move_on_after(20.0):
                    if await process.wait() == 0:
                        w.record("leave", p=p)
            await w.until(lambda: victim.is_up, 10.0)


@fault("stop-short", "stop-long", weight=3)
async def stop(w: World, name: str) -> None:
    """SIGSTOP for half a lease, or for three.

    Before the long one, jobs are started that end while the frozen owner still believes in its
    lease: when it thaws it settles them at once, and by then the new owners are running them.
    """
    lasts_s = w.ttl_s * (0.5 if name == "stop-short" else 3.0)
    with w.victim() as victim:
        if victim and name == "stop-long":
            late = [{"ms": 2500 * w.ttl_s, "key": _fresh(w, f"late-{i}")} for i in range(24)]
            await _ask_for(w, "work", *late)
            await anyio.sleep(2.25 * w.ttl_s)
        if victim:
            with w.fault(name, "pause", victim.name):
                victim.signal(signal.SIGSTOP)
                try:
                    await anyio.sleep(lasts_s)
                finally:
                    victim.signal(signal.SIGCONT)
                await anyio.sleep(0.2)  # until it has found out


@fault("stop-all", weight=1)
async def stop_all(w: World, name: str) -> None:
    """Every node is frozen for longer than its lease, together, three times in a row: a host that
    is suspended.  Nobody is to blame, and nobody is given up for it.
    """
    async with w.server_lock:
        well = [member for member in w.workers if not member.is_hurt and member.is_up]
        with hurt(*well):
            for _ in range(3):
                with ExitStack() as faults:
                    for member in well:
                        faults.enter_context(w.fault(name, "pause", member.name))
                        member.signal(signal.SIGSTOP)
                    try:
                        await anyio.sleep(1.25 * w.ttl_s)
                    finally:
                        for member in well:
                            member.signal(signal.SIGCONT)
                    await anyio.sleep(0.2)
                await anyio.sleep(0.5 * w.ttl_s)


@fault("few-descriptors", weight=1)
async def few_descriptors(w: World, name: str) -> None:
    """A node has lost its connections, and has no descriptor for another one."""
    with w.victim() as victim:
        if victim and victim.process:
            pid = victim.process.pid
            before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            open_now = await in_thread(partial(_descriptors_of, pid))
            with w.fault(name, "cut", victim.name, weight=3):
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (max(3, open_now - 6), before[1]))
                await victim.proxy.cut()
                await anyio.sleep(1.2 * w.ttl_s)
                with suppress(ProcessLookupError):
                    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
            await anyio.sleep(0.5)


def _descriptors_of(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@fault("starve", weight=2)
async def starve(w: World, name: str) -> None:
    """A node gets a twentieth of a processor, or has to share it with three that burn it."""
    with w.victim() as victim:
        if victim and victim.process:
            pid = victim.process.pid
            with w.fault(name, "pause", victim.name), _little_cpu(w, pid):
                await anyio.sleep(2.5 * w.ttl_s)
                with suppress(ProcessLookupError):
                    os.setpriority(os.PRIO_PROCESS, pid, 0)
            await anyio.sleep(0.2)


@contextmanager
def _little_cpu(w: World, pid: int) -> Iterator[None]:
    group = Path("/sys/fs/cgroup/cpu") / f"pool-{os.getpid()}-{pid}"
    try:
        group.mkdir()
        (group / "cpu.cfs_period_us").write_text("100000")
        (group / "cpu.cfs_quota_us").write_text("5000")
        (group / "cgroup.procs").write_text(str(pid))
    except OSError:
        w.impossible.setdefault("starve", "no cpu cgroup: niceness and burners instead")
        os.setpriority(os.PRIO_PROCESS, pid, 19)
        burn = [sys.executable, "-c", "import os; os.setpriority(0, 0, 0)\nwhile True: pass"]
        burners = [subprocess.Popen(burn) for _ in range(3)]
        try:
            yield
        finally:
            for burner in burners:
                burner.kill()
                burner.wait()
        return
    try:
        yield
    finally:
        with suppress(OSError):
            (group.parent / "cgroup.procs").write_text(str(pid))
        with suppress(OSError):
            group.rmdir()


# --- the network -----------------------------------------------------------------------------


@fault("partition", "partition-short", "requests-lost", "replies-lost", weight=3)
async def partition(w: World, name: str) -> None:
    """A node and the server hear nothing of each other, or only one way."""
    with w.victim() as victim:
        if victim:
            lasts_s = w.ttl_s * (0.5 if name == "partition-short" else w.dice.uniform(1.2, 3.0))
            with w.fault(name, "cut", victim.name):
                await _cut_off(victim, name, lasts_s)


async def _cut_off(victim: Member, name: str, lasts_s: float) -> None:
    await victim.lose(requests=name != "replies-lost", replies=name != "requests-lost")
    try:
        await anyio.sleep(lasts_s)
    finally:
        with anyio.CancelScope(shield=True):
            await victim.find()


@fault("swizzle", weight=1)
async def swizzle(w: World, name: str) -> None:
    """Cut the nodes off one by one, and let them back in another order."""
    chosen = [m for m in w.workers if not m.is_hurt]
    w.dice.shuffle(chosen)
    async with anyio.create_task_group() as tasks:
        for at, member in enumerate(chosen):
            tasks.start_soon(_swizzled, w, name, member, 0.4 * at)


async def _swizzled(w: World, name: str, member: Member, after_s: float) -> None:
    with hurt(member):
        await anyio.sleep(after_s)
        with w.fault(name, "cut", member.name):
            await _cut_off(member, name, w.dice.uniform(0.5, 2.5) * w.ttl_s)


@fault("partition-all")
async def partition_all(w: World, name: str) -> None:
    """Nobody reaches the server, producers neither."""
    async with w.server_lock:
        well = [member for member in w.members.values() if not member.is_hurt]
        with hurt(*well), ExitStack() as faults:
            if len(well) == len(w.members):
                faults.enter_context(w.fault(name, "store"))
            else:  # whoever is frozen now may thaw, and will be the only one to reach the server
                for member in well:
                    faults.enter_context(w.fault(name, "cut", member.name))
            async with anyio.create_task_group() as tasks:
                for member in well:
                    tasks.start_soon(_cut_off, member, name, 2.0 * w.ttl_s)


@fault("cut-reply", weight=3)
async def cut_reply(w: World, name: str) -> None:
    """Connections are reset in the middle of a reply, again and again; producers' too."""
    with w.pipeline() as member:
        if member:
            with w.fault(name, "cut", member.name, weight=8):
                for _ in range(8):
                    member.proxy.cut_after_bytes = w.dice.randrange(1, 400)
                    await anyio.sleep(w.dice.uniform(0.1, 0.5))
                member.proxy.cut_after_bytes = None


@fault("slice", weight=2)
async def slices(w: World, name: str) -> None:
    """Replies come in pieces of a byte or a few."""
    with w.pipeline() as member:
        if member:
            # A byte at a time may be too slow for a lease.
            with w.fault(name, "cut", member.name):
                member.proxy.slice_bytes = w.dice.choice([1, 2, 7])
                await anyio.sleep(3.0)
                member.proxy.slice_bytes = 0


@fault("delay", "throttle", weight=2)
async def delay(w: World, name: str) -> None:
    """A slow link: each piece of bytes waits, both ways; or little passes at a time."""
    with w.pipeline() as member:
        if member:
            with w.fault(name, "cut", member.name, weight=3):
                if name == "throttle":
                    member.proxy.slice_bytes, member.proxy.delay_s = 64, 0.02
                else:
                    member.proxy.delay_s = w.dice.uniform(0.02, 0.15)
                await anyio.sleep(2 * w.ttl_s)
                with anyio.CancelScope(shield=True):
                    await member.proxy.heal()


@fault("flapping", weight=2)
async def flapping(w: World, name: str) -> None:
    """A pipeline that is there and gone every 200 ms."""
    with w.victim() as victim:
        if victim:
            with w.fault(name, "cut", victim.name, weight=15):
                for _ in range(15):
                    await _cut_off(victim, name, 0.2)
                    await anyio.sleep(0.2)


# --- the server ------------------------------------------------------------------------------


@fault("client-kill", weight=3)
async def client_kill(w: World, name: str) -> None:
    """CLIENT KILL of all connections, thrice."""
    async with w.server_lock:
        with w.fault(name, "drop", weight=3):
            for _ in range(3):
                await w.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
                await anyio.sleep(w.dice.uniform(0.05, 0.6))


@fault("script-flush", weight=2)
async def script_flush(w: World, name: str) -> None:
    """SCRIPT FLUSH under load."""
    async with w.server_lock:
        with w.fault(name, "drop"):
            for _ in range(5):
                await w.ask("SCRIPT", "FLUSH")
                await anyio.sleep(0.1)


@fault("client-pause-write", "client-pause-all", weight=2)
async def client_pause(w: World, name: str) -> None:
    """CLIENT PAUSE for three leases: nobody may be evicted for it."""
    async with w.server_lock:
        lasts_s = 3 * w.ttl_s
        with w.fault(name, "store"):
            kind = "WRITE" if name.endswith("write") else "ALL"
            await w.ask("CLIENT", "PAUSE", int(lasts_s * 1000), kind)
            await anyio.sleep(lasts_s)
            await anyio.sleep(0.3)


@fault("server-stop", weight=2)
async def server_stop(w: World, name: str) -> None:
    """The server's process is frozen for two leases."""
    async with w.server_lock:
        with w.fault(name, "store"):
            os.kill(w.server.pid, signal.SIGSTOP)
            try:
                await anyio.sleep(2 * w.ttl_s)
            finally:
                os.kill(w.server.pid, signal.SIGCONT)
            await anyio.sleep(0.3)


@fault("busy-script", weight=1)
async def busy_script(w: World, name: str) -> None:
    """Another user's script occupies the server, which answers BUSY."""
    async with w.server_lock:
        with w.fault(name, "store"):
            await w.ask("CONFIG", "SET", "busy-reply-threshold", "100")
            script = "local n = 0 while n < 4e7 do n = n + 1 end return n"
            with suppress(redis.RedisError):
                await w.ask("EVAL", script, 0)


@fault("server-kill", weight=3)
@fault("server-kill-always", weight=0, fsync="always")
async def server_kill(w: World, name: str) -> None:
    """Kill -9 of the server; it comes back with its append-only file."""
    async with w.server_lock:
        with w.fault(name, "store", weight=2):
            await in_thread(w.server.kill)
            await anyio.sleep(w.dice.uniform(0.0, 1.5) * w.ttl_s)
            await in_thread(w.server.restart)


@fault("flush-all", weight=3, loses_data=True)
async def flush_all(w: World, name: str) -> None:
    """FLUSHALL: everything is gone, and the server goes on."""
    async with w.server_lock:
        with w.fault(name, "loss", weight=2):
            await w.ask("FLUSHALL")
            await anyio.sleep(0.5)
        await anyio.sleep(2.5 * w.ttl_s)  # to be seen serving again


@fault("restart-empty", weight=2, loses_data=True)
async def restart_empty(w: World, name: str) -> None:
    """The server is killed and comes back without its data."""
    async with w.server_lock:
        with w.fault(name, "loss", weight=2):
            await in_thread(w.server.kill)
            for data in w.server.directory.glob("appendonly*"):
                shutil.rmtree(data)
            await in_thread(w.server.restart)
            await anyio.sleep(0.3)
        await anyio.sleep(2.5 * w.ttl_s)


@fault("clock-step")
async def clock_step(w: World, name: str) -> None:
    """The server's clock steps, by seconds or by an hour, while somebody is there to see it.

    That is a worker which nothing else hurts; before and after the step it hears of the clock.
    """
    with w.victim() as witness:
        if w.clock is None or witness is None:
            return
        step_s = w.dice.choice((-3600.0, -20.0, -3.0, 3.0, 20.0, 3600.0))
        await anyio.sleep(w.ttl_s / 2)
        with w.fault(name, "clock", weight=2, step_s=step_s):
            w.clock.step(step_s)
        await anyio.sleep(2 * w.ttl_s)


@fault("disk-full", weight=1)
@fault("disk-full-always", weight=0, fsync="always")
async def disk_full(w: World, name: str) -> None:
    """The append-only file cannot grow: the server refuses writes, or (always) ends."""
    if w.disk is None:
        return
    async with w.server_lock:
        filler = w.disk / "filler"
        with w.fault(name, "store", weight=2):
            with filler.open("wb", buffering=0) as file, suppress(OSError):
                while True:
                    file.write(bytes(1 << 20))
            with filler.open("ab", buffering=0) as file, suppress(OSError):
                while True:
                    file.write(bytes(512))
            await anyio.sleep(1.5 * w.ttl_s)
            filler.unlink()
            await in_thread(_revive, w)
            await anyio.sleep(1.2)  # until its next fsync succeeds


def _revive(w: World) -> None:
    """Start the server again if it has ended."""
    with suppress(redis.RedisError), w.admin() as client:
        client.ping()
        return
    w.server.restart()


@fault("memory-full", weight=2)
async def memory_full(w: World, name: str) -> None:
    """Maxmemory is reached, with noeviction: nothing new is taken, the rest goes on."""
    async with w.server_lock:
        with w.fault(name, "load"):
            info = await w.ask("INFO", "memory")
            used = info["used_memory"] if isinstance(info, dict) else 1_000_000
            await w.ask("CONFIG", "SET", "maxmemory", int(used) - 1)
            await anyio.sleep(2 * w.ttl_s)
            await w.ask("CONFIG", "SET", "maxmemory", 0)


@fault("memory-full-empty", weight=1)
async def memory_full_empty(w: World, name: str) -> None:
    """The server is full, a node leaves, the others die: whoever comes must join, and drain it."""
    async with w.server_lock:
        info = await w.ask("INFO", "memory")
        used = info["used_memory"] if isinstance(info, dict) else 1_000_000
        with w.fault(name, "load"):
            await w.ask("CONFIG", "SET", "maxmemory", int(used) - 1)
            await leave(w, "leave")
            await kill_all(w, "kill-all")
            if not await w.until(lambda: all(m.is_up for m in w.workers), 20.0):
                w.troubles.append("not every node could join a full server")
            await w.ask("CONFIG", "SET", "maxmemory", 0)


@fault("index-lost", weight=2)
async def index_lost(w: World, name: str) -> None:
    """Somebody deletes one of the pool's own keys, or one member of it, that only leads to jobs."""
    async with w.server_lock:
        # Two passes of the walk and a lease: by then everything is where its record says.
        with w.fault(name, "drop"):
            await in_thread(partial(_lose_index, w))
            await anyio.sleep(5 * w.ttl_s + 1.0)


def _lose_index(w: World) -> None:
    kinds = ["owned:*", "pending", "due", "unassigned:*", "open", "handlers"]
    with w.admin() as client:
        names = list(client.scan_iter(match=f"pool:{{{POOL}:*", count=1000))
        kind = w.dice.choice(kinds)
        fitting = [n for n in names if fnmatch(n.decode().partition("}:")[2], kind)]
        if fitting:
            client.delete(w.dice.choice(sorted(fitting)))


@fault("lane-wiped", weight=0, loses_data=True, lanes=4)
async def lane_wiped(w: World, name: str) -> None:
    """All keys of one lane are gone; the others, and `config`, stand."""
    lane = w.dice.randrange(w.lanes)

    def wipe() -> None:
        with w.admin() as client:
            names = list(client.scan_iter(match=f"pool:{{{POOL}:{lane}}}:*", count=1000))
            if names:
                client.delete(*names)

    async with w.server_lock:
        with w.fault(name, "loss", weight=2):
            await in_thread(wipe)
            await anyio.sleep(0.5)
        await anyio.sleep(2.5 * w.ttl_s)


@fault("deaf-log", weight=0)
async def deaf_log(w: World, name: str) -> None:
    """Nodes write their log into a pipe that nobody reads; then there is something to tell."""
    await kill(w, "kill")


@fault("max-clients", weight=1)
async def max_clients(w: World, name: str) -> None:
    """No new connection is taken, and the old ones are cut."""
    async with w.server_lock:
        with w.fault(name, "store"):
            with w.admin() as client:
                client.ping()
                client.config_set("maxclients", 2)
                client.client_kill_filter(_type="normal", skipme=True)
                await anyio.sleep(1.5)
                client.config_set("maxclients", 200)
            await anyio.sleep(0.2)


# --- handlers --------------------------------------------------------------------------------


async def _ask_for(w: World, handler: str, *specs: dict[str, object]) -> None:
    up = [member for member in w.producers if member.is_up]
    if up:
        await w.command(w.dice.choice(up), do="dispatch", handler=handler, specs=list(specs))


async def fill(w: World) -> None:
    """Have each producer dispatch once as many at a time as it ever will: its memory's high tide.

    What a burst takes stays with the process, and would be taken for growth if it came late.
    """
    for member in w.producers:
        await w.command(member, do="dispatch", handler="work", specs=_slow_jobs(w, "fill"))


@fault("block-loop", weight=2)
async def block_loop(w: World, name: str) -> None:
    """A handler blocks its event loop for longer than the lease."""
    await _ask_for(w, "hurt", {"how": "block", "ms": 1500 * w.ttl_s, "key": _fresh(w, name)})
    await anyio.sleep(2.5 * w.ttl_s)


@fault("hold-gil", weight=2)
async def hold_gil(w: World, name: str) -> None:
    """A handler holds the interpreter's lock for longer than the lease: nobody can renew."""
    await _ask_for(w, "hurt", {"how": "hold", "ms": 1300 * w.ttl_s, "key": _fresh(w, name)})
    await anyio.sleep(2.5 * w.ttl_s)


@fault("swallow-cancel", weight=2)
async def swallow_cancel(w: World, name: str) -> None:
    """Handlers do not end when cancelled, for a while, and their node is cut off meanwhile."""
    specs = [
        {"how": "swallow", "ms": 2500 * w.ttl_s, "key": _fresh(w, f"{name}-{i}")} for i in range(6)
    ]
    await _ask_for(w, "hurt", *specs)
    await anyio.sleep(0.5)
    await partition(w, "partition")


@fault("poison", "poison-at-once", weight=1)
async def poison(w: World, name: str) -> None:
    """A job kills every process that runs it, until it is parked; also before it could be told."""
    at_once = {"ms": 0, "how": w.dice.choice(["exit", "kill"])}
    spec = at_once if name == "poison-at-once" else {"ms": 50}
    await _ask_for(w, "poison", {**spec, "key": _fresh(w, name)})
    await anyio.sleep(5 * (w.ttl_s + 1.5))


@fault("odd-endings", weight=3)
async def odd_endings(w: World, name: str) -> None:
    """Handlers end in every way that Python has: a failed attempt of theirs, and nobody else's."""
    specs: list[dict[str, object]] = [
        {"how": how, "ms": 30, "key": _fresh(w, f"{name}-{how}")} for how in ODD
    ]
    await _ask_for(w, "odd", *specs)
    await anyio.sleep(w.ttl_s)


@fault("block-loop-short", weight=2)
async def block_loop_short(w: World, name: str) -> None:
    """Handlers block their event loops for about a second, one after another."""
    for i in range(6):
        ms = w.dice.uniform(900, 1400)
        await _ask_for(w, "hurt", {"how": "block", "ms": ms, "key": _fresh(w, f"{name}-{i}")})
        await anyio.sleep(0.75 * w.ttl_s)


@fault("slow-consumers", weight=2)
async def slow_consumers(w: World, name: str) -> None:
    """A burst of slow jobs: far more than there are slots."""
    with w.fault(name, "load"):
        await _ask_for(w, "work", *_slow_jobs(w, name))
        await anyio.sleep(4.0)


def _slow_jobs(w: World, name: str) -> list[dict[str, object]]:
    return [{"ms": 700, "key": _fresh(w, f"{name}-{i}")} for i in range(500)]


def _fresh(w: World, name: str) -> str:
    return f"{name}-{w.dice.getrandbits(32):08x}"


def drawn(w: World, *, with_loss: bool) -> str:
    """Return a fault for the mixture."""
    names = [n for n, f in FAULTS.items() if f.weight and (with_loss or not f.loses_data)]
    return w.dice.choices(names, [FAULTS[n].weight for n in names])[0]


def lasts_s(name: str) -> float:
    """How long a campaign with this fault alone hurts the world; a fault that began ends."""
    return {"poison": 1.0, "poison-at-once": 1.0, "kill": 20.0}.get(name, 12.0)
