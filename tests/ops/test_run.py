"""`pool run` as operators use it: real processes, real signals."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from pool.jobs.handlers import Handlers
from pool.jobs.node import Node
from pool.ops.cli import OK
from pool.settings import Settings
from tests.ops.commands import WAIT_S, running

TTL_S = 1.0
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
        async with running("status", *at, "--json", cwd=shop) as told:
            [shown] = [w for n in (await told.event())["nodes"] for w in n["workers"]]
        assert (shown["version"], shown["pid"], shown["host"]) == ("1.4.2", info.pid, info.host)
        async with running("status", *at, cwd=shop) as told:
            while info.id not in (line := await told.line()):
                pass
        assert f"version 1.4.2, pid {info.pid} on {info.host}" in line
        worker.process.send_signal(signal.SIGTERM)
        assert (await worker.line()).startswith("draining ")
        assert sorted([await worker.line(), await worker.line()]) == ["feeds closes", "jobs closes"]
        assert (await worker.line()).startswith("left ")
        assert (await worker.end())[0] == OK


@pytest.mark.anyio
async def test_what_the_environment_says_is_taken(
    pool_url: str, pool_name: str, shop: Path, anyio_backend: str
) -> None:
    environ = {
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
