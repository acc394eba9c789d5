"""`pool run` as operators use it: real processes, real signals."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import pytest

from pool.errors import ConfigError, JobParked
from pool.jobs.fleet.keepalive import EXIT_CODE
from pool.jobs.handlers import Handlers
from pool.jobs.node import Node
from pool.ops.cli import FINDING, OK, UNREACHABLE, USAGE, main
from pool.ops.cli.child import TWICE_S
from pool.ops.cli.doctor import diagnose
from pool.ops.cli.readiness import Readiness
from pool.redis.url import Url
from pool.settings import Settings
from tests.ops.commands import WAIT_S, Cli, running

TTL_S = 5.0  # nothing here waits for a lease to end, but for one test; a busy machine is late
LONG_S = 300.0  # of what starts several processes after each other, on a busy machine
SETTINGS = Settings(lease_ttl_s=TTL_S)

SHOP = """
from contextlib import asynccontextmanager
from pool import Handlers, Job

@asynccontextmanager
async def lifespan(node):
    print("{name} opens", flush=True)
    yield "{name}"
    print("{name} closes", flush=True)

handlers = Handlers(lifespan=lifespan)

@handlers.job("{name}.who")
async def who(job: Job) -> str:
    return job.resources

def hear(event) -> None:
    if event.event == "node.joined":
        print("{name} heard", flush=True)
"""


async def ends_well(worker: Cli) -> None:
    """Read on to its end: everybody has ended well."""
    ended: dict[str, Any] = {}
    while ended.get("event") != "left":
        ended = await worker.event()
        assert ended.get("code", OK) == OK, ended
    code, log = await worker.end()
    assert code == OK, log


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Return a folder with a package of two modules, each with a lifespan and an observer."""
    (tmp_path / "shop").mkdir()
    for name in ("jobs", "feeds"):
        (tmp_path / "shop" / f"{name}.py").write_text(SHOP.format(name=name), "utf-8")
    return tmp_path


@pytest.mark.anyio
async def test_a_file_says_all_and_several_modules_are_one_worker(
    pool_url: str, pool_name: str, shop: Path, anyio_backend: str
) -> None:
    """With the lifespan of each, and observers; its version is shown to whoever asks."""
    (shop / "pool.toml").write_text(
        f'pool = "{pool_name}"\nurl = "{pool_url}"\nloop = "{anyio_backend}"\n'
        'handlers = ["shop.jobs", "shop.feeds:handlers"]\n'
        'observers = ["shop.jobs:hear", "shop.feeds:hear"]\n'
        f"lease_ttl_s = {TTL_S}\ncapacity = 3\n",
        "utf-8",
    )
    words = ["run", "--config", "pool.toml", "--version-label", "1.4.2"]
    async with (
        Node(pool_name, pool_url, settings=SETTINGS) as client,
        running(*words, cwd=shop) as worker,
    ):
        lines = [await worker.line() for _ in range(5)]
        assert sorted(lines[:2]) == ["feeds opens", "jobs opens"]
        assert lines[2:4] == ["jobs heard", "feeds heard"]
        assert lines[4].endswith("handlers=feeds.who,jobs.who")
        for name in ("jobs", "feeds"):
            assert await (await client.dispatch(f"{name}.who", name)).result(WAIT_S) == name
        [info] = client.workers
        assert (info.version, info.capacity, info.pid) == ("1.4.2", 3, worker.process.pid)
        at = ["--pool", pool_name, "--url", pool_url]
        async with running("workers", *at, "--json", cwd=shop) as told:
            [shown] = (await told.event())["workers"]
        assert (shown["version"], shown["pid"], shown["host"]) == ("1.4.2", info.pid, info.host)
        async with running("workers", *at, cwd=shop) as told:
            while info.id not in (line := await told.line()):
                pass
        assert {"1.4.2", str(info.pid), info.host} <= set(line.split())
        worker.process.send_signal(signal.SIGTERM)
        assert (await worker.line()).startswith("draining ")
        assert sorted([await worker.line(), await worker.line()]) == ["feeds closes", "jobs closes"]
        assert (await worker.line()).startswith("left ")
        assert (await worker.end())[0] == OK


@pytest.mark.anyio
async def test_what_the_environment_says_is_taken(
    pool_url: str, pool_name: str, shop: Path, anyio_backend: str
) -> None:
    environ: dict[str, Any] = {
        "POOL_NAME": pool_name,
        "POOL_URL": pool_url,
        "POOL_LOOP": anyio_backend,
        "POOL_HANDLERS": "shop.jobs",
        "POOL_LEASE_TTL_S": str(TTL_S),
        "POOL_LABEL": "from-variable",
    }
    async with running("run", "--json", "--label", "from-flag", cwd=shop, **environ) as worker:
        assert await worker.line() == "jobs opens"
        assert json.loads(await worker.line())["event"] == "ready"
        async with Node(pool_name, pool_url, settings=SETTINGS) as client:
            assert [info.label for info in client.workers] == ["from-flag"]
        worker.process.terminate()
        assert (await worker.end())[0] == OK


@pytest.mark.anyio
async def test_it_joins_a_pool_of_any_lanes(
    pool_url: str, pool_name: str, shop: Path, anyio_backend: str
) -> None:
    """Whose number it is told by nobody but the pool."""
    words = ["--pool", pool_name, "--url", pool_url, "--loop", anyio_backend, "--json"]
    settings = Settings(lease_ttl_s=TTL_S, lanes=4)
    handlers = Handlers()
    handlers.job("jobs.who")(lambda _: None)
    async with (
        Node(pool_name, pool_url, settings=settings) as client,
        running("run", "shop.jobs", *words, cwd=shop) as worker,
    ):
        assert await worker.line() == "jobs opens"
        assert (await worker.event())["event"] == "ready"
        for key in "abcdefgh":
            assert await (await client.dispatch("jobs.who", key)).result(WAIT_S) == "jobs"
        worker.process.terminate()
        assert (await worker.end())[0] == OK


# --- ready, and leaving ---------------------------------------------------------------------------

WORK = """
import os, pathlib
import anyio
from pool import Handlers, Job

handlers = Handlers()
VERSION = "one"

@handlers.job("wait")
async def wait(job: Job, folder: str) -> int:
    with open(f"{folder}/{job.key}.runs", "a") as runs:
        print(os.getpid(), file=runs)
    while not pathlib.Path(folder, "go").exists():
        await anyio.sleep(0.02)
    return os.getpid()

@handlers.job("version")
async def version(job: Job) -> str:
    return VERSION

@handlers.service("stay")
async def stay(job: Job) -> None:
    await anyio.sleep_forever()
"""


# Whoever comes first can be imported; the others cannot, once it is ready and until it is mended.
SECOND_FAILS = """
import time
try:
    pathlib.Path("first").touch(exist_ok=False)
except FileExistsError:
    while not pathlib.Path("first-is-ready").exists():
        time.sleep(0.02)
    if not pathlib.Path("mended").exists():
        raise RuntimeError("the second fails")
"""


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """Return the folder of a module `work`."""
    (tmp_path / "work.py").write_text(WORK, "utf-8")
    return tmp_path


@contextmanager
def listening(address: str) -> Iterator[socket.socket]:
    """Listen as systemd does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.bind(address.replace("@", "\0"))
        line.setblocking(False)
        yield line


async def heard(line: socket.socket, word: str) -> dict[str, str]:
    """Wait for a notification that says this; return all that it says."""
    while True:
        await anyio.wait_readable(line)
        said = dict(each.split("=", 1) for each in line.recv(65_536).decode().splitlines())
        if word in said:
            return said


@pytest.mark.anyio
@pytest.mark.parametrize("processes", [(), ("--processes", "2")])
@pytest.mark.parametrize("is_abstract", [False, True])
async def test_who_started_it_hears_when_it_is_ready_and_leaves(
    pool_url: str,
    pool_name: str,
    work: Path,
    anyio_backend: str,
    processes: tuple[str, ...],
    is_abstract: bool,
) -> None:
    """By systemd's protocol and by a file; one that is left of another process is gone before."""
    address = f"@{pool_name}" if is_abstract else str(work / "s")
    file = work / "ready"
    file.write_text("4711\n", "utf-8")
    words = [
        "--pool",
        pool_name,
        "--url",
        pool_url,
        "--loop",
        anyio_backend,
        "--ready-file",
        "ready",
    ]
    words += [*processes, "--json"]
    with listening(address) as line:
        async with (
            Node(pool_name, pool_url, settings=SETTINGS) as client,
            running(
                *("run", "work", *words),
                cwd=work,
                wait_s=LONG_S,
                NOTIFY_SOCKET=address,
                WATCHDOG_USEC="300000",
            ) as worker,
        ):
            assert await heard(line, "READY")
            await worker.until("ready", pool=pool_name)
            assert file.read_text("utf-8") == f"{worker.process.pid}\n"
            await heard(line, "WATCHDOG")
            await heard(line, "WATCHDOG")
            ref = await client.dispatch("wait", "k", str(work))
            await ref.started(WAIT_S)
            worker.process.terminate()
            assert (await heard(line, "STOPPING"))["STATUS"] == "draining: SIGTERM"
            assert not file.exists()  # before the drain is over
            (work / "go").touch()
            await ref.result(WAIT_S)
            await ends_well(worker)
    assert not file.exists()


@pytest.mark.parametrize("file", ["nowhere/ready", "/proc/ready", "taken"])
def test_a_ready_file_that_cannot_be_is_refused_before_anything_begins(
    file: str, work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(work)
    (work / "taken").mkdir()
    words = ["run", "work", "--pool", "p", "--url", "redis://127.0.0.1:1", "--processes", "2"]
    assert main([*words, "--ready-file", file]) == USAGE
    assert f"{file} cannot be made and removed: " in capsys.readouterr().err


def _precious(path: Path) -> None:
    path.write_text("handlers = 17\n", "utf-8")


def _linked(path: Path) -> None:
    path.with_name("4711").write_text("4711\n", "utf-8")
    path.symlink_to("4711")


@pytest.mark.parametrize("is_part", [False, True])
@pytest.mark.parametrize("make", [_precious, _linked, os.mkfifo, os.mkdir])
def test_what_is_no_ready_file_is_not_touched(
    make: Callable[[Path], object], is_part: bool, work: Path
) -> None:
    """Not at the beginning, not when it is ready, and not at the end."""
    name = f".ready.{os.getpid()}" if is_part else "ready"

    def untouched() -> tuple[int, bytes]:
        found = (work / name).lstat()
        return found.st_ino, (work / name).read_bytes() if make is _precious else b""

    make(work / name)
    before = untouched()
    with pytest.raises(ConfigError, match="something else is there"):
        Readiness.of(str(work / "ready"), {})
    assert untouched() == before
    late = Readiness(file=work / "ready")
    with pytest.raises(ConfigError, match="something else is there"):
        late.ready("it came between")
    late.lost()
    late.leaving("its end")
    assert untouched() == before


def test_a_ready_file_of_a_successor_stays(work: Path) -> None:
    """In a deploy that overlaps; one that a killed process has left does not."""
    file = work / "ready"
    own = Readiness.of(str(file), {})
    for left in ("4711\n", "", f"{os.getpid()}\n"):
        file.write_text(left, "utf-8")
        own = Readiness.of(str(file), {})
        assert not file.exists()
    own.ready("it is")
    assert file.read_text("utf-8") == f"{os.getpid()}\n"
    file.write_text("4711\n", "utf-8")
    own.leaving("its end")
    assert file.read_text("utf-8") == "4711\n"


def _named(folder: Path, word: str) -> list[str]:
    return [path.name for path in folder.iterdir() if word in path.name]


@pytest.mark.anyio
async def test_a_ready_file_of_two_is_there_as_long_as_one_is_ready(
    pool_url: str, pool_name: str, work: Path, anyio_backend: str
) -> None:
    """It is that of the worker that began last; when that ends, it is the first one's again."""
    file = work / "ready"
    words = ["run", "work", "--pool", pool_name, "--url", pool_url, "--loop", anyio_backend]
    words += ["--ready-file", "ready", "--json"]

    async def end(worker: Cli) -> None:
        worker.process.terminate()
        await worker.until("left")
        assert (await worker.end())[0] == OK

    async with running(*words, cwd=work) as first, running(*words, cwd=work) as second:
        await first.until("ready")
        await second.until("ready")
        async with running(*words, cwd=work) as third:
            await third.until("ready")
            assert file.read_text("utf-8") == f"{third.process.pid}\n"
            await end(third)
        assert file.exists()
        await end(second)
        assert file.read_text("utf-8") == f"{first.process.pid}\n"
        async with running(*words, cwd=work) as killed:
            await killed.until("ready")
            killed.process.kill()
            await killed.process.wait()
        await end(first)
        async with running(*words, cwd=work) as last:
            await last.until("ready")
            await end(last)
    assert _named(work, "ready") == []


@pytest.mark.anyio
async def test_without_a_server_there_is_no_readiness_and_the_code_says_why(
    work: Path, anyio_backend: str
) -> None:
    words = ["--pool", "p", "--url", "redis://127.0.0.1:1", "--loop", anyio_backend]
    async with running("run", "work", *words, "--ready-file", "ready", cwd=work) as worker:
        assert (await worker.end())[0] == UNREACHABLE
    assert not (work / "ready").exists()


# --- several processes ----------------------------------------------------------------------------


Having: TypeAlias = Callable[..., AbstractAsyncContextManager[tuple[Node, Cli]]]


@pytest.fixture
def having(pool_url: str, pool_name: str, work: Path, anyio_backend: str) -> Having:
    """Return what begins a parent of two children, or as it is told, beside a client."""

    @asynccontextmanager
    async def begun(*more: str, **environ: str) -> AsyncIterator[tuple[Node, Cli]]:
        words = ["run", "work", "--pool", pool_name, "--url", pool_url, "--loop", anyio_backend]
        words += ["--json", *(more or ("--processes", "2"))]
        async with (
            Node(pool_name, pool_url, settings=SETTINGS) as client,
            running(*words, cwd=work, wait_s=LONG_S, **environ) as worker,
        ):
            yield client, worker

    return begun


async def are_ready(worker: Cli, count: int = 2) -> list[int]:
    """Return the pids of the children, in order of their numbers."""
    found: dict[int, int] = {}
    while len(found) < count:
        ready = await worker.until("child.ready")
        found[ready["child"]] = ready["pid"]
    await worker.until("ready")
    return [found[number] for number in sorted(found)]


async def knows(client: Node, pids: list[int]) -> None:
    """Wait until it has heard of these and of no others: it does so a moment later."""
    while {info.pid for info in client.workers} != set(pids):  # noqa: ASYNC110
        await anyio.sleep(0.01)


def runs(folder: Path, key: str) -> list[int]:
    """Return which processes have begun the job of a key."""
    return [int(line) for line in (folder / f"{key}.runs").read_text("utf-8").split()]


@pytest.mark.anyio
@pytest.mark.parametrize("also", ["nobody", "before", "after"])
async def test_all_drain_when_the_parent_is_told_and_also_when_all_are(
    having: Having, work: Path, also: str
) -> None:
    """As systemd does it, and Ctrl-C: a signal for the children, too, is no second one."""
    async with having("--processes", "2", "--label", "lab") as (client, worker):
        pids = await are_ready(worker)
        await knows(client, pids)
        assert sorted(info.label for info in client.workers) == ["lab-1", "lab-2"]
        refs = [await client.dispatch("wait", f"k{i}", str(work)) for i in range(8)]
        for ref in refs:
            await ref.started(WAIT_S)
        for pid in pids if also == "before" else ():
            os.kill(pid, signal.SIGTERM)
        worker.process.terminate()
        awaited = {"draining", *pids}
        while awaited:
            told = await worker.event()
            if told["event"] in ("draining", "child.draining"):
                awaited.discard(told.get("pid", "draining"))
        for pid in pids if also == "after" else ():
            os.kill(pid, signal.SIGTERM)
        (work / "go").touch()
        done = {await ref.result(WAIT_S) for ref in refs}
        assert done <= set(pids)
        await ends_well(worker)
    assert all(len(runs(work, f"k{i}")) == 1 for i in range(8))


@pytest.mark.anyio
async def test_a_child_that_stands_still_is_told_of_until_it_is_replaced(
    having: Having, pool_name: str, pool_url: str
) -> None:
    """O10: the others run what it had, and nobody would miss it."""

    async def is_missing() -> bool:
        told = await diagnose(pool_name, Url.parse(pool_url))
        return any(each.rule == "processes-missing" for each in told.findings)

    async with having() as (client, worker):
        pids = await are_ready(worker)
        await knows(client, pids)
        assert not await is_missing()
        os.kill(pids[0], signal.SIGSTOP)
        with anyio.fail_after(LONG_S):
            while not await is_missing():  # noqa: ASYNC110 - of another process
                await anyio.sleep(0.2)
            os.kill(pids[0], signal.SIGKILL)
            await worker.until("restarting")
            await worker.until("child.ready")
            while await is_missing():  # noqa: ASYNC110
                await anyio.sleep(0.2)
        worker.process.terminate()
        await ends_well(worker)


@pytest.mark.anyio
async def test_a_reload_loses_no_job_runs_none_twice_and_always_has_workers(
    having: Having, work: Path
) -> None:
    """SIGHUP: new code, new processes; the parent stays, and says so to systemd."""
    address = str(work / "s")
    with listening(address) as line:
        async with having(NOTIFY_SOCKET=address) as (client, worker):
            old = await are_ready(worker)
            await heard(line, "READY")
            await knows(client, old)
            refs = [await client.dispatch("wait", f"k{i}", str(work)) for i in range(8)]
            for ref in refs:
                await ref.started(WAIT_S)
            (work / "work.py").write_text(WORK.replace('"one"', '"two"'), "utf-8")
            worker.process.send_signal(signal.SIGHUP)
            assert int((await heard(line, "RELOADING"))["MONOTONIC_USEC"]) > 0
            await worker.until("child.draining")
            (work / "go").touch()
            fewest = 2
            async with anyio.create_task_group() as tasks:

                async def count() -> None:
                    nonlocal fewest
                    while True:
                        takers = [info for info in client.workers if not info.is_draining]
                        fewest = min(fewest, len(takers))
                        await anyio.sleep(0.01)

                tasks.start_soon(count)
                await worker.until("reloaded")
                tasks.cancel_scope.cancel()
            assert fewest == 2
            await heard(line, "READY")
            assert {await ref.result(WAIT_S) for ref in refs} <= set(old)
            while True:  # it hears of them a moment later
                new = {info.pid for info in client.workers if not info.is_draining} - {*old}
                if len(new) == 2:
                    break
                await anyio.sleep(0.01)
            assert worker.process.pid not in new
            assert await (await client.dispatch("version", "v")).result(WAIT_S) == "two"
            worker.process.terminate()
            await ends_well(worker)
    assert all(len(runs(work, f"k{i}")) == 1 for i in range(8))


@pytest.mark.anyio
async def test_a_reload_with_code_that_cannot_be_imported_keeps_the_old(
    having: Having, work: Path
) -> None:
    async with having() as (client, worker):
        old = await are_ready(worker)
        (work / "work.py").write_text("import nowhere_to_be_found\n", "utf-8")
        worker.process.send_signal(signal.SIGHUP)
        assert (await worker.until("reload.failed"))["code"] == USAGE
        await knows(client, old)
        (work / "work.py").write_text(WORK.replace('"one"', '"mended"'), "utf-8")
        worker.process.send_signal(signal.SIGHUP)
        await worker.until("reloaded")
        assert await (await client.dispatch("version", "v")).result(WAIT_S) == "mended"
        worker.process.terminate()
        code, log = await worker.end()
    assert code == OK
    assert "No module named 'nowhere_to_be_found'" in log


@pytest.mark.anyio
async def test_a_child_that_stands_still_is_killed_when_its_drain_must_be_over(
    having: Having,
) -> None:
    """A stopped process hears nothing: a reload, or the parent's end, would wait for ever."""
    more = ("--processes", "1", "--grace-s", "0", "--op-timeout-s", "2")
    async with having(*more) as (_, worker):
        [pid] = await are_ready(worker, 1)
        os.kill(pid, signal.SIGSTOP)
        worker.process.send_signal(signal.SIGHUP)
        new = (await worker.until("child.ready"))["pid"]
        assert (await worker.until("child.hangs"))["child"] == 1
        assert (await worker.until("reload.failed"))["code"] == -signal.SIGKILL
        await worker.until("child.ended", pid=pid, code=-signal.SIGKILL)
        worker.process.terminate()
        await worker.until("child.ended", pid=new, code=OK)
        assert (await worker.end())[0] == OK


@pytest.mark.anyio
async def test_a_child_that_is_killed_is_followed_by_another_and_its_jobs_go_on(
    having: Having, work: Path
) -> None:
    async with having("--processes", "1") as (client, worker):
        [pid] = await are_ready(worker, 1)
        ref = await client.dispatch("wait", "k", str(work))
        await ref.started(WAIT_S)
        os.kill(pid, signal.SIGKILL)
        assert (await worker.until("child.ended"))["code"] == -signal.SIGKILL
        assert (await worker.until("restarting"))["in_s"] == 0
        again = (await worker.until("child.ready"))["pid"]
        (work / "go").touch()
        assert await ref.result(WAIT_S) == again
        worker.process.terminate()
        await ends_well(worker)
    assert runs(work, "k") == [pid, again]


@pytest.mark.anyio
async def test_children_drain_and_end_when_their_parent_is_killed(
    having: Having, work: Path
) -> None:
    """Their standard error is the parent's: its end means that nobody is left."""
    async with having() as (client, worker):
        pids = await are_ready(worker)
        refs = [await client.dispatch("wait", f"k{i}", str(work)) for i in range(4)]
        for ref in refs:
            await ref.started(WAIT_S)
        worker.process.kill()
        while any(not info.is_draining for info in client.workers):  # noqa: ASYNC110
            await anyio.sleep(0.01)
        (work / "go").touch()
        assert {await ref.result(WAIT_S) for ref in refs} <= set(pids)
        assert (await worker.end())[0] == -signal.SIGKILL
    assert all(len(runs(work, f"k{i}")) == 1 for i in range(4))


@pytest.mark.anyio
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_a_child_that_hangs_in_an_import_ends_with_its_parent(
    tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "slow.py").write_text(
        'import time\nprint(\'{"event": "importing"}\', flush=True)\ntime.sleep(600)\n'
    )
    words = ["run", "slow", "--pool", "p", "--url", "redis://127.0.0.1:1", "--processes", "1"]
    async with running(*words, "--json", cwd=tmp_path, wait_s=LONG_S) as worker:
        await worker.until("importing")
        worker.process.send_signal(number)
        code, _ = await worker.end()
    assert code == (OK if number == signal.SIGTERM else -signal.SIGKILL)


HANGING = """
import threading
from pool import Handlers

handlers = Handlers()

@handlers.job("hang")
def hang(job):
    threading.Event().wait()
"""


@pytest.mark.anyio
async def test_a_worker_that_has_left_ends_whatever_thread_goes_on(
    pool_url: str, pool_name: str, tmp_path: Path, anyio_backend: str
) -> None:
    """Its key is another's by then: `on_overrun`, which is `exit` there."""
    (tmp_path / "hanging.py").write_text(HANGING)
    words = ["run", "hanging", "--pool", pool_name, "--url", pool_url, "--loop", anyio_backend]
    words += ["--json", "--grace-s", "0", "--lease-ttl-s", str(TTL_S)]
    async with (
        Node(pool_name, pool_url, settings=SETTINGS) as client,
        running(*words, cwd=tmp_path, wait_s=LONG_S) as worker,
    ):
        await worker.until("ready")
        ref = await client.options(allow_unknown=True).dispatch("hang", "k")
        await ref.started(WAIT_S)
        worker.process.terminate()
        assert (await worker.end())[0] == EXIT_CODE
        assert (await ref.status()).state == "unassigned"


STANDING_STILL = """
import contextlib, time
import anyio
from pool import Handlers

@contextlib.asynccontextmanager
async def lifespan(node):
    print("opens", flush=True)
    await anyio.sleep_forever()
    yield

handlers = Handlers()
endless = Handlers(lifespan=lifespan)

@handlers.job("block")
async def block(job):
    time.sleep(600)

@endless.job("never")
async def never(job): ...
"""


@asynccontextmanager
async def _working(folder: Path, pool: str, url: str, loop: str) -> AsyncIterator[tuple[Node, Any]]:
    """Open a client, and a worker of the module `mine` that is ready; no lease ends meanwhile."""
    words = ["run", "mine", "--pool", pool, "--url", url, "--loop", loop, "--json"]
    async with (
        Node(pool, url, settings=Settings(lease_ttl_s=300.0)) as client,
        running(*words, cwd=folder) as worker,
    ):
        await worker.until("ready")
        yield client, worker


@pytest.mark.anyio
async def test_a_second_signal_ends_it_also_where_its_loop_stands_still(
    pool_url: str, pool_name: str, tmp_path: Path, anyio_backend: str
) -> None:
    (tmp_path / "mine.py").write_text(STANDING_STILL)
    async with _working(tmp_path, pool_name, pool_url, anyio_backend) as (client, worker):
        ref = await client.options(allow_unknown=True).dispatch("block", "k")
        await ref.started(WAIT_S)
        worker.process.terminate()
        with pytest.raises(TimeoutError), anyio.fail_after(1.0):
            await worker.process.wait()
        worker.process.terminate()
        assert (await worker.end())[0] == -signal.SIGTERM


@pytest.mark.anyio
@pytest.mark.parametrize("more", [[], ["--processes", "1"]], ids=["alone", "parent"])
async def test_an_order_to_leave_that_comes_as_two_signals_is_one(
    pool_url: str, pool_name: str, tmp_path: Path, anyio_backend: str, more: list[str]
) -> None:
    """`timeout` signals its child, and then its group, that is the child again."""
    (tmp_path / "mine.py").write_text(RESTING)
    words = ["run", "mine", "--pool", pool_name, "--url", pool_url, "--loop", anyio_backend]
    async with running(*words, *more, "--json", cwd=tmp_path) as worker:
        await worker.until("ready")
        for _ in range(2):
            worker.process.terminate()
        await worker.until("left")
        assert (await worker.end())[0] == OK


RESTING = """
from pool import Handlers
handlers = Handlers()
handlers.job("any")(lambda _: None)
"""
FORKING = """
import multiprocessing, os, signal
from pool import Handlers

handlers = Handlers()

@handlers.job("forks")
async def forks(job, number: int):
    child = multiprocessing.get_context("fork").Process(target=signal.pause)
    child.start()
    os.kill(child.pid, number)
    child.join(20)
    child.kill()
    return child.exitcode
"""


@pytest.mark.anyio
async def test_a_signal_to_a_process_that_a_handler_forked_is_for_that_alone(
    pool_url: str, pool_name: str, tmp_path: Path, anyio_backend: str
) -> None:
    """It ends, and the worker does not hear of it."""
    (tmp_path / "mine.py").write_text(FORKING)
    async with _working(tmp_path, pool_name, pool_url, anyio_backend) as (client, worker):
        for number in (signal.SIGTERM, signal.SIGHUP):
            ref = await client.options(allow_unknown=True).dispatch("forks", "k", number)
            assert await ref.result(WAIT_S) == -number
        assert len(client.workers) == 1
        worker.process.terminate()
        assert (await worker.end())[0] == OK


@pytest.mark.anyio
@pytest.mark.parametrize("processes", [(), ("--processes", "1")])
async def test_a_signal_ends_a_worker_that_still_opens(
    pool_url: str,
    pool_name: str,
    tmp_path: Path,
    anyio_backend: str,
    processes: tuple[str, ...],
) -> None:
    """In order, as nothing has begun: a lifespan may take as long as it needs."""
    (tmp_path / "still.py").write_text(STANDING_STILL)
    words = ["run", "still:endless", "--pool", pool_name, "--url", pool_url, *processes]
    async with running(*words, "--loop", anyio_backend, cwd=tmp_path) as worker:
        while await worker.line() != "opens":
            pass
        worker.process.terminate()
        said = ""
        while not said.startswith("left"):
            said = await worker.line()
        code, log = await worker.end()
        assert (code, "crashed" in log, "reached" in log) == (OK, False, False), log


PRINTING = """
import sys
from pool import Handlers

handlers = Handlers()

@handlers.job("print", attempts_max=1)
def prints(job):
    print(job.key)
    print(job.key, file=sys.stderr)
"""


@pytest.mark.anyio
async def test_a_lost_reader_of_standard_output_fails_no_job(
    pool_url: str, pool_name: str, tmp_path: Path, anyio_backend: str
) -> None:
    """One warning says so, as of all that repeats; the worker goes on, and leaves in order."""
    (tmp_path / "mine.py").write_text(PRINTING)
    async with _working(tmp_path, pool_name, pool_url, anyio_backend) as (client, worker):
        assert worker.process.stdout is not None
        await worker.process.stdout.aclose()
        unknown = client.options(allow_unknown=True)
        for key in ("a", "b", "c"):
            await (await unknown.dispatch("print", key)).result(WAIT_S)
        worker.process.terminate()
        code, log = await worker.end()
    assert code == OK
    assert log.splitlines().count("a") == 1
    told = [json.loads(line) for line in log.splitlines() if "output.lost" in line]
    assert [line.get("times") for line in told] == [None, 2]
    assert {line["stream"] for line in told} == {"stdout"}


@pytest.mark.anyio
async def test_a_lost_reader_of_the_log_fails_no_job(
    pool_url: str, pool_name: str, tmp_path: Path, anyio_backend: str
) -> None:
    (tmp_path / "mine.py").write_text(PRINTING)
    async with _working(tmp_path, pool_name, pool_url, anyio_backend) as (client, worker):
        assert worker.process.stderr is not None
        await worker.process.stderr.aclose()
        await (await client.options(allow_unknown=True).dispatch("print", "a")).result(WAIT_S)
        assert await worker.line() == "a"
        worker.process.terminate()
        await worker.until("left")
        assert await worker.process.wait() == OK


LATE = """
import os, sys, time
from pool import Handlers

class Late:
    def __del__(self, sleep=time.sleep, write=os.write):  # names of modules are gone by then
        sleep(2.5)
        write(1, b"over\\n")

sys.late = Late()
handlers = Handlers()

@handlers.job("any")
def any_one(job): ...
"""


@pytest.mark.anyio
async def test_an_orderly_end_that_takes_long_is_one(
    pool_url: str, pool_name: str, tmp_path: Path, anyio_backend: str
) -> None:
    """Also behind the last function of `atexit`, where a busy machine holds up the interpreter."""
    (tmp_path / "late.py").write_text(LATE)
    words = ["run", "late", "--pool", pool_name, "--url", pool_url, "--json"]
    async with running(*words, "--loop", anyio_backend, cwd=tmp_path) as worker:
        await worker.until("ready")
        worker.process.terminate()
        while await worker.line() != "over":
            pass
        assert (await worker.end())[0] == OK


FAILING = """
import contextlib
import anyio
import anyio.to_thread
from pool import Handlers

@contextlib.asynccontextmanager
async def meanwhile(node):
    async def fails():
        await anyio.to_thread.run_sync(print, "fails", abandon_on_cancel=True)
        raise LookupError("the feed is gone")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(fails)
        yield

@contextlib.asynccontextmanager
async def at_once(node):
    raise LookupError("the feed is gone")
    yield

of_meanwhile, of_at_once = Handlers(lifespan=meanwhile), Handlers(lifespan=at_once)
for handlers in (of_meanwhile, of_at_once):
    handlers.job("any")(lambda _: None)
"""


EXITING = """
import asyncio, contextlib, sys
import anyio
from pool import Handlers

@contextlib.asynccontextmanager
async def at_once(node):
    sys.exit(7)
    yield

async def child(job):
    async def leave():
        sys.exit(7)
    task = asyncio.create_task(leave())
    await anyio.sleep(60)

async def soon(job):
    asyncio.get_running_loop().call_soon(sys.exit, 7)
    await anyio.sleep(60)

of_lifespan, of_child, of_soon = Handlers(lifespan=at_once), Handlers(), Handlers()
of_lifespan.job("any")(lambda _: None)
of_child.job("any")(child)
of_soon.job("any")(soon)
"""


@pytest.mark.anyio
@pytest.mark.parametrize("who", ["lifespan", "child", "soon"])
async def test_an_exit_that_some_code_asks_for_is_a_node_that_has_failed(
    pool_url: str, pool_name: str, tmp_path: Path, who: str
) -> None:
    """Its code meant something else: 2, that no restart mends it; 0, that it has drained."""
    (tmp_path / "exiting.py").write_text(EXITING)
    words = ["run", f"exiting:of_{who}", "--pool", pool_name, "--url", pool_url]
    async with running(*words, "--loop", "asyncio", cwd=tmp_path) as worker:
        if who != "lifespan":
            async with Node(pool_name, pool_url) as node:
                await node.options(allow_unknown=True).dispatch("any", "k")
                code, log = await worker.end()
        else:
            code, log = await worker.end()
    assert code == FINDING
    assert log.endswith("\npool: the node has failed: SystemExit: 7\n")


ENDING = """
import asyncio, sys
import anyio
from pool import Handlers

handlers = Handlers()

@handlers.job("end")
async def end(job, how):
    async def leave():
        if how == "exit":
            sys.exit(2)
        raise KeyboardInterrupt
    task = asyncio.create_task(leave())
    await anyio.sleep(60)

@handlers.service("rest")
async def rest(job):
    await anyio.sleep_forever()
"""


@pytest.mark.anyio
@pytest.mark.parametrize("how", ["exit", "interrupt"])
async def test_a_job_whose_task_asks_for_an_exit_each_time_is_given_up(
    pool_url: str, pool_name: str, tmp_path: Path, how: str
) -> None:
    """It was given back for ever, and ended one process after the other; its neighbours go on."""
    (tmp_path / "ending.py").write_text(ENDING)
    words = ["run", "ending", "--pool", pool_name, "--url", pool_url, "--processes", "2"]
    words += ["--crashes-max", "1", "--loop", "asyncio"]
    async with running(*words, cwd=tmp_path) as worker, Node(pool_name, pool_url) as node:
        unknown = node.options(allow_unknown=True)
        beside = [await unknown.dispatch("rest", f"k{number}") for number in range(5)]
        for each in beside:
            await each.started(WAIT_S)
        with pytest.raises(JobParked) as parked:
            await (await unknown.dispatch("end", "k", how)).result(WAIT_S)
        assert parked.value.cause == "poison"
        assert "told to end while it was at work, 2 times" in parked.value.last_error
        for each in beside:
            assert (await each.status()).state != "parked"
        worker.process.send_signal(signal.SIGTERM)
        await worker.end()


@pytest.mark.anyio
@pytest.mark.parametrize("when", ["meanwhile", "at_once"])
async def test_what_ends_a_node_is_told_by_the_users_own_code_and_a_last_line(
    pool_url: str, pool_name: str, tmp_path: Path, anyio_backend: str, when: str
) -> None:
    """Of a JSON log it is one line."""
    (tmp_path / "failing.py").write_text(FAILING)
    words = ["run", f"failing:of_{when}", "--pool", pool_name, "--url", pool_url]
    words += ["--loop", anyio_backend]
    async with running(*words, cwd=tmp_path) as worker:
        code, log = await worker.end()
    assert code == FINDING
    assert log.endswith("\npool: the node has failed: LookupError: the feed is gone\n")
    files = {line.split('"')[1] for line in log.splitlines() if line.startswith("  File ")}
    assert files == {str(tmp_path / "failing.py")}
    async with running(*words, "--log-format", "json", cwd=tmp_path) as worker:
        code, log = await worker.end()
    assert code == FINDING
    last = json.loads(log.splitlines()[-1])
    assert (last["event"], last["error"]) == ("node.failed", "LookupError: the feed is gone")
    assert str(tmp_path) in last["exception"]


@pytest.mark.anyio
async def test_a_second_signal_ends_all_at_once(having: Having, work: Path) -> None:
    more = ("--processes", "2", "--grace-s", "600")
    async with having(*more) as (client, worker):
        await are_ready(worker)
        await (await client.dispatch("wait", "k", str(work))).started(WAIT_S)
        worker.process.terminate()
        held = [await worker.until("child.draining") for _ in range(2)]
        assert sorted(child["jobs"] for child in held) == [0, 1]
        with pytest.raises(TimeoutError), anyio.fail_after(4 * TWICE_S):
            await worker.process.wait()  # sooner it would be the same order
        worker.process.terminate()
        assert (await worker.until("left"))["killed"] >= 1
        assert (await worker.end())[0] == 128 + signal.SIGTERM


@pytest.mark.anyio
async def test_what_cannot_be_imported_ends_it_with_the_code_of_that(
    having: Having, work: Path
) -> None:
    (work / "work.py").write_text("import nowhere_to_be_found\n", "utf-8")
    async with having() as (_, worker):
        said = "No module named 'nowhere_to_be_found'"
        assert said in (await worker.until("child.failed"))["problem"]
        assert said in (await worker.until("draining"))["why"]
        code, log = await worker.end()
    assert code == USAGE
    assert said in log


@pytest.mark.anyio
async def test_who_cannot_be_imported_beside_one_that_can_is_tried_again(
    having: Having, work: Path
) -> None:
    """A file half written, a database that was away: those that work go on, and lose no job."""
    (work / "work.py").write_text(f"{WORK}\n{SECOND_FAILS}", "utf-8")
    async with having() as (client, worker):
        first = await worker.until("child.ready")
        ref = await client.dispatch("wait", "k", str(work))
        await ref.started(WAIT_S)
        (work / "first-is-ready").touch()
        failed = await worker.until("child.failed")
        assert "the second fails" in failed["problem"]
        assert (await worker.until("restarting"))["child"] == failed["child"]
        (work / "mended").touch()
        assert (await worker.until("child.ready"))["child"] == failed["child"]
        await worker.until("ready")
        (work / "go").touch()
        assert await ref.result(WAIT_S) == first["pid"]
        worker.process.terminate()
        code, log = await worker.end()
    assert code == OK, log
    assert "the second fails" in log


@pytest.mark.anyio
async def test_when_the_pool_is_shut_down_all_leave(having: Having) -> None:
    async with having() as (client, worker):
        await are_ready(worker)
        await client.shutdown_pool()
        assert (await worker.until("draining"))["why"] == "the pool is shut down"
        await ends_well(worker)


def test_several_processes_share_no_private_server(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(work)
    words = ["run", "work", "--pool", "p", "--url", "embedded://", "--processes", "2"]
    assert main(words) == USAGE
    assert "embedded:// alone is a server of one process" in capsys.readouterr().err


# --- while it is written --------------------------------------------------------------------------


@pytest.mark.anyio
async def test_changed_files_are_taken_and_broken_ones_waited_for(
    having: Having, work: Path
) -> None:
    (work / "work.py").write_text("import nowhere_to_be_found\n", "utf-8")
    async with having("--reload") as (client, worker):
        await worker.until("waiting")
        (work / "work.py").write_text(WORK, "utf-8")
        await worker.until("reloaded")
        assert await (await client.dispatch("version", "a")).result(WAIT_S) == "one"
        (work / "work.py").write_text("x = {}['broken']\n", "utf-8")
        await worker.until("reload.failed")
        assert await (await client.dispatch("version", "b")).result(WAIT_S) == "one"
        (work / "work.py").write_text(WORK.replace('"one"', '"two"'), "utf-8")
        await worker.until("reloaded")
        assert await (await client.dispatch("version", "c")).result(WAIT_S) == "two"
        worker.process.send_signal(signal.SIGHUP)  # its terminal is gone
        await ends_well(worker)


def test_reload_names_what_it_lacks(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    words = ["run", "work", "--pool", "p", "--url", "redis://localhost", "--reload"]
    assert main(words) == USAGE
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert "keyed-pool[cli]" in said.err
