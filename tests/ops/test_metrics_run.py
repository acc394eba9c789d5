"""`pool run --metrics-port`: real processes, asked over real sockets."""

from __future__ import annotations

import json
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pool import Node
from pool.ops.cli import FINDING, OK, USAGE, main
from pool.ops.cli.config import PORT_MAX
from tests.nodes import PATIENCE_S
from tests.ops.commands import running

JOBS = """
import time
from pool import Handlers, Job

handlers = Handlers()

@handlers.job("do")
async def do(job: Job) -> None: ...

@handlers.job("hang")
async def hang(job: Job) -> None:
    time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "jobs.py").write_text(JOBS, "utf-8")
    return tmp_path


async def get(address: str, path: str) -> tuple[int, str]:
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        answer = await client.get(f"http://{address}{path}")
        return answer.status_code, answer.text


async def until(address: str, path: str, status: int) -> str:
    """Ask until it is answered so."""
    with anyio.fail_after(2 * PATIENCE_S):
        while True:
            try:
                answer = await get(address, path)
            except httpx.TransportError:
                answer = 0, ""
            if answer[0] == status:
                return answer[1]
            await anyio.sleep(0.05)


async def pid_at(address: str) -> int:
    """Return which process answers there."""
    pid: int = json.loads(await until(address, "/live", 200))["pid"]
    return pid


@contextmanager
def two_free_ports() -> Iterator[int]:
    """Yield a port that is free, and the one after it too, as far as can be known."""
    while True:
        with socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", 0))
            port: int = one.getsockname()[1]
            try:
                two.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
        yield port
        return


@pytest.mark.anyio
async def test_a_worker_tells_its_figures_and_its_health_and_what_it_did_is_kept(
    pool_url: str, pool_name: str, folder: Path, anyio_backend: str
) -> None:
    """Also while its loop hangs; and when it has drained, the pool knows what it counted."""
    at = ["--pool", pool_name, "--url", pool_url]
    words = ["run", "jobs", *at, "--metrics-port", "0", "--json", "--loop", anyio_backend]
    words += ["--lease-ttl-s", "600", "--on-overrun", "report"]
    async with running(*words, cwd=folder) as worker:
        address = (await worker.until("ready"))["metrics"]
        assert address.startswith("127.0.0.1:")
        async with Node(pool_name, pool_url) as client:
            await (await client.dispatch("do", "one")).result(PATIENCE_S)
            for path in ("/live", "/ready", "/progress"):
                assert json.loads(await until(address, path, 200))["ok"]
            told = await until(address, "/metrics", 200)
            names = {family.name for family in text_string_to_metric_families(told)}
            assert {"pool_jobs_settled", "python_info"} <= names  # and the process's own
            assert f'handler="do",outcome="done",pool="{pool_name}"}} 1.0' in told
            assert "pool_slots{" in await until(address, "/metrics/pool", 200)
            worker.process.send_signal(signal.SIGTERM)
            assert (await worker.end())[0] == OK
    done = await anyio.run_process([sys.executable, "-m", "pool.ops.cli", "rates", *at, "--json"])
    assert json.loads(done.stdout)["handlers"]["do"]["done"] == 1


@pytest.mark.anyio
async def test_a_loop_that_hangs_is_told_of_by_its_process(
    pool_url: str, pool_name: str, folder: Path
) -> None:
    words = ["run", "jobs", "--pool", pool_name, "--url", pool_url, "--metrics-port", "0", "--json"]
    words += ["--lease-ttl-s", "600", "--on-overrun", "report"]
    async with running(*words, cwd=folder) as worker:
        address = (await worker.until("ready"))["metrics"]
        async with Node(pool_name, pool_url) as client:
            await client.dispatch("hang", "one")
            parts = json.loads(await until(address, "/progress", 503))["parts"]
            while parts["loop"]["ok"]:
                parts = json.loads((await get(address, "/progress"))[1])["parts"]
            assert json.loads(await until(address, "/ready", 503))["ok"] is False
            assert (await get(address, "/live"))[0] == 200  # for a minute nobody restarts it
            assert "pool_loop_silent_seconds" in await until(address, "/metrics", 200)
        worker.process.kill()
        await worker.process.wait()


@pytest.mark.anyio
async def test_each_of_several_processes_has_a_port_and_its_successor_takes_it_over(
    pool_url: str, pool_name: str, folder: Path
) -> None:
    """One after the other from the first on; a reload leaves them as they were."""
    with two_free_ports() as port:
        words = ["run", "jobs", "--pool", pool_name, "--url", pool_url, "--processes", "2"]
        words += ["--metrics-port", str(port), "--json", "--lease-ttl-s", "5"]
        async with running(*words, cwd=folder, wait_s=300.0) as parent:
            await parent.until("ready", processes=2)
            first = set()
            for at in (port, port + 1):
                first.add(await pid_at(f"127.0.0.1:{at}"))
                await until(f"127.0.0.1:{at}", "/ready", 200)
            parent.process.send_signal(signal.SIGHUP)
            await parent.until("reloaded")
            assert len(first) == 2
            for at in (port, port + 1):
                while await pid_at(f"127.0.0.1:{at}") in first:
                    continue  # the old one has yet to leave it
            parent.process.send_signal(signal.SIGTERM)
            assert (await parent.end())[0] == OK


@pytest.mark.anyio
async def test_a_port_that_is_taken_is_said_at_once(
    pool_url: str, pool_name: str, folder: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        words = ["run", "jobs", "--pool", pool_name, "--url", pool_url, "--metrics-port", port]
        async with running(*words, cwd=folder) as worker:
            code, log = await worker.end()
    assert (code, "metrics_port" in log) == (USAGE, True)


@pytest.mark.parametrize(
    "words",
    [
        ["--metrics-port", str(PORT_MAX + 1)],
        ["--metrics-port", "-1"],
        ["--metrics-port", str(PORT_MAX), "--processes", "2"],
        ["--metrics-port", "9400", "--metrics-host", "a b"],
    ],
)
def test_what_cannot_be_listened_on_is_refused(
    words: list[str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    at = ["--pool", "p", "--url", "redis://127.0.0.1:1"]
    assert main(["check", "jobs", *at, *words]) == FINDING
    assert "metrics_" in "".join(capsys.readouterr())
