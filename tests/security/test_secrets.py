"""A password is told nowhere: errors, logs, events, reprs, tracebacks, the command line."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import redis
import structlog

import pool
from pool import Handlers, Job, Node, PoolError, Settings
from pool.errors import AuthError, StoreUnavailable
from pool.events import ActorCrashed, Event, PolicyUnknown
from pool.jobs.worker.messages import Granted
from pool.ops.cli import main
from pool.redis.acl import rules
from pool.redis.url import Url
from pool.testing.proxy import fault_proxy

if TYPE_CHECKING:
    from collections.abc import Callable

PACKAGE = str(Path(pool.__file__).parent)
SECRET = "CANARY-7f3a"
WALKED = Path(__file__).with_name("walked.py")
SETTINGS = Settings(lease_ttl_s=3.0, op_timeout_s=0.5)
handlers = Handlers()


@handlers.job("echo")
async def echo(job: Job, value: Any) -> Any:
    return value


@pytest.fixture
def told(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> Iterator[list[str]]:
    """Yield a list for texts; afterwards these, all logs and all output are searched."""
    caplog.set_level(logging.DEBUG)
    texts: list[str] = []

    def keep(_: Any, __: str, event: MutableMapping[str, Any]) -> str:
        texts.append(repr(event))
        return str(event)

    structlog.configure(processors=[keep], logger_factory=structlog.PrintLoggerFactory())
    yield texts
    structlog.reset_defaults()
    texts += [caplog.text, *capfd.readouterr()]
    assert len("".join(texts)) > 100  # there was something to search
    assert SECRET not in "".join(texts)


def everything(error: BaseException) -> str:
    """Return all that a report of an error could show: texts, and what is local in our frames."""
    texts = [str(error), repr(error)]
    report = traceback.TracebackException.from_exception(error, capture_locals=True)
    pending = [report]
    while pending:
        one = pending.pop()
        texts += one.format_exception_only()
        for frame in one.stack:
            if "/tests/" not in frame.filename:
                texts.append(str(frame.locals))
        pending += [each for each in (one.__cause__, one.__context__) if each is not None]
    return "\n".join(texts)


def user(client: Any, name: str, *words: str) -> str:
    """Make a user of that name, with the secret; return the part of an address."""
    client.execute_command("ACL", "SETUSER", name, "reset", "on", f">{SECRET}", *words)
    return f"{name}:{SECRET}@"


@pytest.mark.anyio
async def test_a_refused_connection_tells_no_password(
    redis_url: str, pool_name: str, told: list[str]
) -> None:
    """Wrong password, unknown user, a right that is missing, nobody there, silence, no Redis."""
    path = Url.parse(redis_url).path
    with socket.socket() as unused, redis.Redis.from_url(redis_url) as client:
        unused.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{unused.getsockname()[1]}"
        client.execute_command("ACL", "SETUSER", f"bad-{pool_name}-a", "on", ">right", "+@all")
        barred = user(client, f"bad-{pool_name}-b", "-@all")
        async with fault_proxy(redis_url) as proxy:
            proxy.go_silent()
            silent = proxy.url.partition("://")[2]
            for url, kind in (
                (f"unix://bad-{pool_name}-a:{SECRET}@{path}", AuthError),
                (f"unix://nobody:{SECRET}@{path}", AuthError),
                (f"unix://{barred}{path}", AuthError),
                (f"unix://:{SECRET}@/no/such/socket", StoreUnavailable),
                (f"redis://:{SECRET}@{nobody}", StoreUnavailable),
                (f"rediss://u:{SECRET}@{nobody}", StoreUnavailable),
                (f"redis://u:{SECRET}@no.host.invalid", StoreUnavailable),
                (f"redis://u:{SECRET}@{silent}", StoreUnavailable),
                (f"redis+sentinel://u:{SECRET}@{nobody}/primary", StoreUnavailable),
                (f"redis+cluster://u:{SECRET}@{nobody}", PoolError),
            ):
                node = Node(pool_name, url, settings=SETTINGS)
                told.append(repr(node) + str(Url.parse(url)) + repr(Url.parse(url)))
                with pytest.raises(kind) as refused:
                    async with node:
                        raise AssertionError("it opened")
                told.append(everything(refused.value))


@pytest.mark.parametrize(
    "url",
    [
        f"redis://u:{SECRET}/x@h",
        f"redis://u:{SECRET}#x@h",
        f"redis://u:p?{SECRET}@h",
        f"redis://u:{SECRET}@h:port",
        f"redis://u:{SECRET}@h/db",
        f"redis://u:{SECRET}@h?ssl_password={SECRET}",
        f"http://u:{SECRET}@h",
        f"redis+sentinel://u:{SECRET}@h",
        f"redis+cluster://u:{SECRET}@h/3",
        f"embedded://u:{SECRET}@h",
        f"unix://u:{SECRET}@h",
    ],
)
def test_a_bad_address_is_refused_without_its_password(url: str, told: list[str]) -> None:
    with pytest.raises(PoolError) as refused:
        Node("p", url)
    told += [str(refused.value), repr(refused.value), "".join(refused.value.args) + "." * 100]
    assert main(["status", "--pool", "p", "--url", url]) == 2
    assert main(["status", "--pool", "p", "--ulr", url]) == 2


@pytest.mark.anyio
async def test_a_node_at_work_tells_no_password(
    redis_url: str, pool_name: str, told: list[str]
) -> None:
    """Its events, its logs, its status, what lies in Redis, and a crash of an actor."""
    with redis.Redis.from_url(redis_url) as client:
        me = user(client, pool_name, *rules(pool_name))
        url = f"unix://{me}{Url.parse(redis_url).path}"
        events: list[Event] = []
        node = Node(
            pool_name,
            url,
            handlers=handlers,
            settings=SETTINGS,
            observers=(events.append, pool.log_observer),
        )
        async with node:
            assert await (await node.dispatch(echo, "k", 1)).result(timeout_s=30) == 1
            assert node._wiring is not None
            worker = next(iter(node._wiring.membership.workers.values()))
            worker.tell(_Bomb(0, []))
            assert await (await node.dispatch(echo, "l", 1)).result(timeout_s=30) == 1
            told += [repr(node), repr(node._wiring), repr(node._pipeline), repr(worker.context)]
        assert [event for event in events if isinstance(event, ActorCrashed)]
        told += [repr(events), *(str(attrs.asdict(event)) for event in events)]
        for key in client.scan_iter(match=f"pool:{{{pool_name}*"):
            told.append(repr(client.dump(key)))


class _Bomb(Granted):
    """Crashes the actor that handles it."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"boom at {name}")


@pytest.mark.anyio
async def test_the_command_line_tells_no_password(
    redis_url: str, pool_name: str, url_of: Callable[[str], str], told: list[str]
) -> None:
    path = Url.parse(redis_url).path
    with redis.Redis.from_url(redis_url) as client:
        me = user(client, pool_name, *rules(pool_name))
        url = f"unix://{me}{path}"
        async with Node(pool_name, url, observers=()):
            pass
    for address in (url, url.replace(pool_name, "nobody"), f"redis://u:{SECRET}@127.0.0.1:1"):
        for words in ([], ["--json"]):
            await _in_thread(["status", "--pool", pool_name, "--url", address, *words])


async def _in_thread(words: list[str]) -> None:
    import anyio.to_thread

    await anyio.to_thread.run_sync(main, words)


@pytest.mark.anyio
async def test_a_server_that_does_not_show_its_policy_is_told_of_once(
    redis_url: str, pool_name: str
) -> None:
    """D29: without the right to ask, whether it may evict jobs is unknown; the node works."""
    with redis.Redis.from_url(redis_url) as client:
        words = [word for word in rules(pool_name) if word != "+info|memory"]
        me = user(client, f"no-info-{pool_name}", *words)
    events: list[Event] = []
    async with Node(
        pool_name, f"unix://{me}{Url.parse(redis_url).path}", observers=(events.append,)
    ):
        pass
    assert len([event for event in events if isinstance(event, PolicyUnknown)]) == 1
    with redis.Redis.from_url(redis_url) as client:
        client.acl_deluser(f"no-info-{pool_name}")


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize("way", ["node", "map", "stream"])
def test_nothing_holds_a_password_but_its_credentials(
    redis_url: str, pool_name: str, tmp_path: Path, loop: str, way: str
) -> None:
    """F: it stood in `Node._url_text`, in the clear, for whatever dumps attributes and locals."""
    (tmp_path / "address").touch(mode=0o600)
    with redis.Redis.from_url(redis_url) as client:
        name = f"walked-{pool_name}"
        client.execute_command(
            *("ACL", "SETUSER", name, "reset", "on", ">SECRET-1b9e"), *rules(pool_name)
        )
        text = f"unix://{name}:SECRET-1b9e@{Url.parse(redis_url).path}\n"
        (tmp_path / "address").write_text(text)
        with (tmp_path / "address").open() as given:
            found = subprocess.run(
                [sys.executable, str(WALKED), loop, pool_name, way],
                stdin=given,
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
        client.acl_deluser(name)
    assert found.returncode == 0, found.stderr[-2000:]
    assert found.stdout.split() == ["pool.redis.url.Credentials"]
