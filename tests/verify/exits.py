"""How long a worker takes to be gone, whatever its handlers have left behind.

    python -m tests.verify.exits

Each row is what holds up a process; each column is what ends it, on one of the event loops.  A cell
is the time in seconds from the signal, or the command, until the worker is gone.  With SIGHUP that
is the child that is replaced.  `BUDGET_S` is what docs/how-to/containers.md promises for these
settings; that page has the table, as this program prints it.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from typing import Final

import anyio
import attrs

from pool.jobs.node import Node
from pool.ops.logs import configure
from pool.redis.embedded.server import EmbeddedServer, find_servers
from pool.settings import Settings
from pool.sync import Client

ROOT: Final = Path(__file__).parents[2]
TTL_S: Final = 5.0
OP_TIMEOUT_S: Final = 2.0
CLOSING_S: Final = 11.0
BUDGET_S: Final = TTL_S / 4 + 4 * OP_TIMEOUT_S + CLOSING_S  # the grace is 0
SETTINGS: Final = Settings(lease_ttl_s=TTL_S, op_timeout_s=30.0)
START_S: Final = 90.0  # for a process to start, on a busy machine
HANDLERS: Final = """
import atexit, os, subprocess, threading, time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
import anyio
import anyio.to_thread
from pool import Handlers

handlers = Handlers()

def sleep():
    time.sleep(3600)

POOLS = []

@handlers.job("leave")
async def leave(job, behind: str) -> int:
    if behind == "abandoned to_thread":
        with anyio.move_on_after(0.1):
            await anyio.to_thread.run_sync(sleep, abandon_on_cancel=True)
    elif behind == "thread":
        threading.Thread(target=sleep).start()
    elif behind == "executor":
        POOLS.append(ThreadPoolExecutor(1))
        POOLS[-1].submit(sleep)
    elif behind == "process pool":
        POOLS.append(ProcessPoolExecutor(1))
        POOLS[-1].submit(sleep)
    elif behind == "child process":
        subprocess.Popen(["sleep", "30"], stdin=subprocess.DEVNULL)
    elif behind == "fork":
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)
    elif behind == "atexit":
        atexit.register(sleep)
    elif behind == "as PID 1":
        subprocess.run("for i in 1 2 3; do sleep 0.01 & done", shell=True, check=True)
    return os.getpid()
"""
IMPORTING: Final = """
import os, pathlib, time
pathlib.Path(f"importing-{os.getpid()}").touch()
time.sleep(3600)
"""
BEHIND: Final = (
    "nothing",
    "abandoned to_thread",
    "thread",
    "executor",
    "process pool",
    "child process",
    "fork",
    "atexit",
    "full pipe",
    "as PID 1",
    "import",
    "import, as PID 1",
)
ENDS: Final = ("SIGTERM", "SIGHUP", "shutdown")
SUCCESSOR_S: Final = 30.0
KILL: Final = "SIGKILL"  # of a child, which the parent is to replace; the cell is until then
LOOPS: Final = ("asyncio", "trio")
UNSHARE: Final = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


@attrs.define(eq=False)
class Worker:
    """A `pool run` of this table; `pid` is its own also where `unshare` stands before it."""

    process: subprocess.Popen[bytes]
    pid: int

    def is_gone(self) -> bool:
        return self.process.poll() is not None


@attrs.frozen
class Cell:
    """What was measured."""

    seconds: float | None  # None: it was not gone in time
    code: int | None = None  # None: it was a child of a parent that goes on
    zombies: int = 0
    orphans: int = 0  # processes of `multiprocessing` that outlive their worker

    def __str__(self) -> str:
        text = "hangs" if self.seconds is None else f"{self.seconds:.1f}"
        text += f" {self.zombies}Z" if self.zombies else ""
        return text + (f" {self.orphans}O" if self.orphans else "")


def until(is_so: Callable[[], object], limit_s: float, problem: str = "") -> float | None:
    """Look until it is so; return after how many seconds, or None."""
    began_s = time.monotonic()
    while not is_so():
        if time.monotonic() - began_s > limit_s:
            assert not problem, f"{problem} within {limit_s:g} s"
            return None
        time.sleep(0.02)  # noqa: TID251 - it blocks
    return time.monotonic() - began_s


def children(pid: int) -> list[int]:
    """Return the processes that a process has started, or adopted."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def state(pid: int) -> str:
    """Return the letter by which the kernel knows the state of a process; none if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def is_over(pid: int) -> bool:
    """Whether a process is gone, or waits for its parent to notice that."""
    return state(pid) in ("", "Z")


@contextmanager
def full_pipe() -> Iterator[tuple[int, int]]:
    """Yield both ends of a pipe that nobody reads, and that takes nothing more."""
    reader, writer = os.pipe()
    flags = fcntl.fcntl(writer, fcntl.F_GETFL)
    fcntl.fcntl(writer, fcntl.F_SETFL, flags | os.O_NONBLOCK)
    try:
        while True:
            os.write(writer, b"x" * 4096)
    except BlockingIOError:
        fcntl.fcntl(writer, fcntl.F_SETFL, flags)
    try:
        yield reader, writer
    finally:
        os.close(reader)
        os.close(writer)


@contextmanager
def running(
    behind: str, end: str, loop: str, pool: str, url: str, folder: Path
) -> Iterator[Worker]:
    """Start a worker, alone or as the child of a parent; it is killed at the end."""
    (folder / "left.py").write_text(HANDLERS, "utf-8")
    (folder / "importing.py").write_text(IMPORTING, "utf-8")
    module = "importing" if behind.startswith("import") else "left"
    words = [*(UNSHARE if behind.endswith("PID 1") else ()), sys.executable, "-m", "pool.ops.cli"]
    words += ["run", module, "--pool", pool, "--url", url, "--grace-s", "0", "--loop", loop]
    words += ["--lease-ttl-s", str(TTL_S), "--op-timeout-s", str(OP_TIMEOUT_S)]
    words += ["--processes", "1"] if end in ("SIGHUP", KILL) else []
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    with full_pipe() as (_, pipe), (folder / "out").open("wb") as file:
        out = pipe if behind == "full pipe" else file.fileno()
        process = subprocess.Popen(
            words, cwd=folder, env=environ, stdout=out, stderr=out, start_new_session=True
        )
        try:
            pid = process.pid
            if behind.endswith("PID 1"):
                until(lambda: children(pid) or process.poll() is not None, START_S, "no process")
                text = (folder / "out").read_text()
                assert process.poll() is None, f"no process can be PID 1 here: {text}"
                [pid] = children(pid)
            yield Worker(process, pid)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def measure(behind: str, end: str, loop: str, pool: str, url: str, folder: Path) -> Cell:
    """Start a worker, have a handler leave something behind, end the worker."""
    with (
        Client(pool, url, settings=SETTINGS) as client,
        running(behind, end, loop, pool, url, folder) as worker,
    ):
        if behind.startswith("import"):
            until(lambda: list(folder.glob("importing-*")), START_S, "nothing is imported")
        else:
            asking = client.options(allow_unknown=True)
            asking.dispatch("leave", "k", behind).result(START_S)
        zombies = 0
        if behind == "as PID 1":
            gone = until(lambda: not _zombies(worker.pid), 5.0)
            zombies = _zombies(worker.pid) if gone is None else 0
        old = _workers(worker) if end in ("SIGHUP", KILL) else [worker.pid]
        pooled = children(old[0]) if behind == "process pool" else []
        if end == "shutdown":
            anyio.run(_shut_down, pool, url)
        else:
            os.kill(old[0] if end == KILL else worker.pid, signal.Signals[end])
        if end == KILL:
            seconds = until(lambda: set(_workers(worker)) - set(old), SUCCESSOR_S)
        elif end != "SIGHUP":
            seconds = until(worker.is_gone, BUDGET_S)
        elif (seconds := until(lambda: all(map(is_over, old)), BUDGET_S)) is not None:
            until(lambda: set(_workers(worker)) - set(old), START_S, "there is no successor")
        orphans = 0 if until(lambda: all(map(is_over, pooled)), 5.0) is not None else len(pooled)
        return Cell(seconds, worker.process.poll(), zombies, orphans)


async def _shut_down(pool: str, url: str) -> None:
    async with Node(pool, url, settings=SETTINGS) as node:
        await node.shutdown_pool()


def _zombies(pid: int) -> int:
    return sum(state(child) == "Z" for child in children(pid))


def _workers(worker: Worker) -> list[int]:
    """Return the children of the parent of `--processes`, wherever that is."""
    parent = worker.pid
    found = children(parent)
    if found and not any(b"--child" in _command(pid) for pid in found):  # PID 1 stands before it
        return children(found[0])
    return found


def _command(pid: int) -> bytes:
    """Return how a process was called; nothing if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def main() -> None:
    """Print the table."""
    configure(sys.stderr, is_json=False)
    server = EmbeddedServer.start(next(iter(find_servers("wheel", []))))
    columns = list(product(ENDS, LOOPS))
    try:
        print(_row(["seconds until it is gone", *(f"{end}, {loop}" for end, loop in columns)]))
        print("|---|" + "---:|" * len(columns))
        for row, behind in enumerate(BEHIND):
            cells = list[str]()
            for column, (end, loop) in enumerate(columns):
                if behind.startswith("import") and end == "shutdown":
                    cells.append("-")  # nobody has joined yet
                    continue
                with tempfile.TemporaryDirectory() as folder:
                    name = f"exits-{row}-{column}"
                    cell = measure(behind, end, loop, name, server.url, Path(folder))
                cells.append(str(cell))
            print(_row([behind, *cells]), flush=True)
        print(f"\nbudget: {BUDGET_S:g} s; Z: zombies, O: orphans of a process pool")
    finally:
        server.stop()


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
