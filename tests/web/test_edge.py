"""The server's edge: strangers, handshakes, heads, files and ends; all on real sockets."""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import attrs
import httpx
import pytest
import trustme
from anyio.abc import SocketStream
from cryptography.hazmat.primitives import serialization
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from structlog.testing import capture_logs

from pool import Node
from pool.errors import ConfigError
from pool.ops.cli import USAGE, main
from pool.ops.cli.web import bound
from pool.ops.web import server as serving
from pool.ops.web.limits import REFUSED_MAX, Connections
from pool.redis.io.scribe import Hush
from pool.runtime import observers
from pool.web import Keyring, WebApp, WebOptions
from tests.nodes import PATIENCE_S, Fleet
from tests.ops.commands import ROOT, running
from tests.ops.pages import blocks
from tests.servers import until
from tests.web.gateways import SECRETS

pytestmark = pytest.mark.anyio
VARIABLES = {"POOL_WEB_READ": SECRETS["read"], "POOL_WEB_ADMIN": SECRETS["admin"]}
LIVE = b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n"
KNOWN = b"GET /v1/pauses HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n"
KNOWN %= SECRETS["read"].encode()


# --- asking -------------------------------------------------------------------------------------


@attrs.define
class Told:
    """An answer as it came."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def problem(self) -> Any:
        """What went wrong, which is in our own form, by a gateway that names itself."""
        assert self.headers["content-type"] == "application/problem+json"
        assert "pool-gateway" in self.headers
        problem = json.loads(self.body)
        assert problem["status"] == self.status
        return problem


async def told(line: SocketStream) -> Told:
    """Return the next answer."""
    raw = b""
    while b"\r\n\r\n" not in raw:
        raw += await line.receive()
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (each.partition(": ") for each in lines)}
    while len(body) < int(headers["content-length"]):
        body += await line.receive()
    return Told(int(first.split()[1]), headers, body)


async def ask(line: SocketStream, request: bytes) -> Told:
    await line.send(request)
    return await told(line)


async def until_cut(line: SocketStream) -> bytes:
    """Read on to the end; return what came."""
    found = b""
    with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
        while True:
            found += await line.receive()
    return found


async def pour(line: SocketStream) -> None:
    """Send far more than there is room for in buffers on the way."""
    for _ in range(3_000):
        await line.send(b"y" * 10_000)


@asynccontextmanager
async def here(
    app: WebApp, *, connections_max: int = 100, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[Any, tuple[str, int]]]:
    """Yield a server in this process, and where it is."""
    ready = anyio.Event()
    server = serving.make_server(app, ready, connections_max=connections_max, tls=tls)
    with bound("127.0.0.1", 0) as listener:
        at = listener.getsockname()
        with anyio.fail_after(4 * PATIENCE_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(server.serve, [listener])
                await ready.wait()
                yield server, at
                server.should_exit = True


def told_of(kind: str, log: str) -> list[int]:
    """Return how often each line of a log says that it was: the last one at the process's end."""
    lines = [json.loads(line) for line in log.splitlines() if f"web.connection_{kind}" in line]
    return [line.get("times", 1) for line in lines]


def app_of_nothing() -> WebApp:
    """Return one whose node is not open."""
    node = Node("p", "redis://localhost:1")
    return WebApp(node, WebOptions(keyring=Keyring(read={"a": [SECRETS["read"]]})))


@pytest.fixture
def only_asyncio(anyio_backend_name: str) -> None:
    if anyio_backend_name != "asyncio":
        pytest.skip("uvicorn runs on asyncio")


@asynccontextmanager
async def web(
    pool_url: str, pool_name: str, cwd: Path, *words: str, **environ: str
) -> AsyncIterator[tuple[Any, tuple[str, int]]]:
    """Yield a gateway with secrets in a process of its own, and where it is."""
    given = ("--pool", pool_name, "--url", pool_url, "--port", "0", "--json", *words)
    async with running(
        "web", *given, cwd=cwd, wait_s=4 * PATIENCE_S, **VARIABLES, **environ
    ) as one:
        host, _, port = (await one.event())["web"].rpartition("/")[2].rpartition(":")
        yield one, (host, int(port))


# --- who gives way ------------------------------------------------------------------------------


async def test_strangers_keep_nobody_out_who_is_known(
    pool_url: str, pool_name: str, tmp_path: Path
) -> None:
    """With room for six: three known ones are served on, and the strangers cut, longest first."""
    async with web(pool_url, pool_name, tmp_path, "--connections-max", "6") as (one, at):
        known = [await anyio.connect_tcp(*at) for _ in range(3)]
        for line in known:
            assert (await ask(line, KNOWN)).status == 200
        strangers = [await anyio.connect_tcp(*at) for _ in range(3)]
        for line in strangers:
            await ask(line, LIVE)
        await ask(strangers[0], LIVE)  # it is not silent longest any more
        silent = [await anyio.connect_tcp(*at)]
        assert await until_cut(strangers[1]) == b""
        assert (await ask(strangers[0], LIVE)).status == 200
        silent += [await anyio.connect_tcp(*at) for _ in range(40)]
        for line in (strangers[0], strangers[2], *silent[:38]):
            assert await until_cut(line) == b""
        for line in known:
            assert (await ask(line, KNOWN)).status == 200
        while len(known) < 6:  # of those who come a known one is served, however many wait there
            known.append(await anyio.connect_tcp(*at))
            assert (await ask(known[-1], KNOWN)).status == 200
        late = [await anyio.connect_tcp(*at) for _ in range(2)]
        refused = await ask(late[0], KNOWN)
        assert refused.problem["code"] == "WEBBUSY"
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert await until_cut(late[0]) == b""  # nothing else is heard from it
        assert (await ask(late[1], LIVE)).status == 200  # whoever probes must not end it
        assert await until_cut(late[1]) == b""
        await known.pop().aclose()
        while (await newly(at, KNOWN)).status != 200:
            continue
        for line in known:
            assert (await ask(line, KNOWN)).status == 200
        for line in (*known, *strangers, *silent, *late):
            await line.aclose()
        one.process.terminate()
        code, log = await one.end()
    assert code == 0
    assert [times > 1 for times in told_of("gave_way", log)] == [False, True]
    assert told_of("refused", log)[0] == 1
    assert "Traceback" not in log


async def newly(at: tuple[str, int], request: bytes) -> Told:
    async with await anyio.connect_tcp(*at) as line:
        return await ask(line, request)


class One:
    """A connection that is cut, or not."""

    is_cut = False

    def cut(self) -> None:
        self.is_cut = True


def test_the_room_of_connections() -> None:
    room, (a, b, c, d, e) = Connections(3), [One() for _ in range(5)]
    assert [room.enter(each) for each in (a, b, c)] == ["", "", ""]
    room.know(b)
    room.heard(a)  # so c has been silent longest
    room.heard(b)
    assert room.enter(d) == "gave_way"
    assert [each.is_cut for each in (a, b, c, d)] == [False, False, True, False]
    room.leave(c)  # it was forgotten already
    for each in (a, d, c):
        room.know(each)
    assert room.enter(e) == "refused"
    assert not any(each.is_cut for each in (a, b, d, e))
    crowd = [One() for _ in range(REFUSED_MAX)]
    assert {room.enter(each) for each in crowd} == {"refused"}
    assert e.is_cut  # there is room to tell so many why
    assert not any(each.is_cut for each in crowd)
    room.leave(a)
    assert room.enter(a) == ""
    room.clear()
    assert all(each.is_cut for each in (a, b, d, e))


# --- TLS ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where a certificate is, its key, and what is none."""
    found = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    one, other = (authority.issue_cert("127.0.0.1") for _ in range(2))
    one.cert_chain_pems[0].write_to_path(found / "chain")
    one.private_key_pem.write_to_path(found / "key")
    other.private_key_pem.write_to_path(found / "other")
    one.private_key_and_cert_chain_pem.write_to_path(found / "both")
    authority.cert_pem.write_to_path(found / "ca")
    (found / "none").write_text("nothing\n", "utf-8")
    key = serialization.load_pem_private_key(one.private_key_pem.bytes(), None)
    (found / "locked").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"abcd"),
        )
    )
    return found


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--certfile", "chain", "--keyfile", "other"), "is not the key of"),
        (("--certfile", "chain", "--keyfile", "locked"), "is encrypted"),
        (("--certfile", "none", "--keyfile", "key"), "none has no certificate"),
        (("--certfile", "chain", "--keyfile", "none"), "none has no private key"),
        (("--certfile", "chain"), "chain has no private key"),
        (("--certfile", "chain", "--keyfile", "nowhere"), "cannot be read: No such file"),
        (("--keyfile", "key"), "give --certfile"),
    ],
    ids=lambda each: " ".join(each[1::2]) if isinstance(each, tuple) else "",
)
def test_a_certificate_that_cannot_be_used_is_told_with_its_file(
    capsys: pytest.CaptureFixture[str], files: Path, words: tuple[str, ...], told: str
) -> None:
    given = [each if each[0] == "-" else str(files / each) for each in words]
    assert main(["web", "--pool", "p", "--url", "redis://localhost:1", *given]) == USAGE
    error = capsys.readouterr().err
    assert told in error
    assert "POOLCONFIG" in error


@pytest.mark.usefixtures("only_asyncio")
async def test_a_handshake_counts_and_comes_in_time(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one of a single file here; uvicorn alone would wait for it a minute, and count none."""
    monkeypatch.setattr(serving, "HEAD_S", 3600.0)
    trusted = ssl.create_default_context(cafile=files / "ca")
    tls = serving.tls_of(str(files / "both"), str(files / "both"))
    async with here(app_of_nothing(), connections_max=3, tls=tls) as (_, at):
        silent = [await anyio.connect_tcp(*at) for _ in range(8)]
        for line in silent[:5]:
            assert await until_cut(line) == b""
        async with httpx.AsyncClient(verify=trusted, timeout=PATIENCE_S) as client:
            answer = await client.get(f"https://127.0.0.1:{at[1]}/live")
        assert answer.headers["pool-gateway"] == "-"
        assert await until_cut(silent[5]) == b""
        monkeypatch.setattr(serving, "HEAD_S", 0.05)
        slow = await anyio.connect_tcp(*at)
        with anyio.fail_after(PATIENCE_S):  # half of the minute
            assert await until_cut(slow) == b""
        for line in (*silent, slow):
            await line.aclose()


# --- heads --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("only_asyncio")
@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /live HTTP/1.1\r\n\r\n", 400),
        (b"GET /live HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET /live HTTP/1.1\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", 400),
        (b"GET /live HTTP/1.0\r\n\r\n", 200),
        (LIVE, 200),
    ],
)
async def test_a_request_names_its_host_once(head: bytes, status: int) -> None:
    async with here(app_of_nothing()) as (_, at):
        for is_first in (True, False):
            line = await anyio.connect_tcp(*at)
            if not is_first:
                await line.send(LIVE)
                await told(line)
            await line.send(head)
            answer = await told(line)
            if status == 400:
                assert answer.problem["detail"] == "HTTP/1.1 needs exactly one Host header"
                assert await until_cut(line) == b""
            assert answer.headers["pool-gateway"] == "-"
            assert (answer.status == 400) == (status == 400)
            await line.aclose()


@pytest.mark.usefixtures("only_asyncio")
async def test_a_head_is_so_long_in_however_many_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "HEAD_S", 3600.0)
    async with here(app_of_nothing()) as (_, at):
        for size, is_good in ((60_000, True), (66_000, False), (100_000, False), (200_000, False)):
            filling = b"X-Filling: " + b"y" * size + b"\r\n\r\n"
            line = await anyio.connect_tcp(*at)
            await line.send(LIVE[:-2] + filling)
            if is_good:
                assert (await told(line)).headers["pool-gateway"] == "-"
                # Behind that one which is not over, in pieces.
                await line.send(LIVE[:-2] + filling[:-4])
                await pour(line)
            refused = await told(line)
            assert (refused.status, refused.problem["code"]) == (413, "WEBTOOLARGE")
            assert await until_cut(line) == b""
            await line.aclose()


@pytest.mark.usefixtures("only_asyncio")
async def test_a_body_that_nobody_wanted_is_not_answered_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with here(app_of_nothing()) as (_, at):
        async with await anyio.connect_tcp(*at) as line:
            assert (await ask(line, head)).problem["code"] == "WEBSECRET"
            await line.send(b"no length of a chunk\r\n")
            assert await until_cut(line) == b""
        monkeypatch.setattr(serving, "HEAD_S", 0.05)
        async with await anyio.connect_tcp(*at) as line:
            assert (await ask(line, head)).problem["code"] == "WEBSECRET"
            with suppress(anyio.BrokenResourceError):
                await line.send(b"9\r\nGET /live")  # it never ends
            assert await until_cut(line) == b""


@pytest.mark.usefixtures("only_asyncio")
@pytest.mark.parametrize("size", ["Content-Length: 9000000", "Transfer-Encoding: chunked"])
@pytest.mark.parametrize("last", ["Connection: close", ""])
async def test_who_is_answered_before_all_was_sent_gets_the_answer(size: str, last: str) -> None:
    """The 413 of a client that sends on, and reads then; a reset would have taken it away."""
    head = ["POST /v1/jobs HTTP/1.1", "Host: localhost", "Content-Type: application/json", size]
    body = b"y" * 9_000_000
    if "chunked" in size:
        body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    request = "\r\n".join([*head, *filter(None, [last]), "", ""]).encode()
    app = WebApp(Node("p", "redis://localhost:1"))
    async with here(app) as (_, at), await anyio.connect_tcp(*at) as line:
        await line.send(request)
        await line.send(body)
        refused = await told(line)
        assert (refused.status, refused.problem["code"]) == (413, "WEBTOOLARGE")
        if last:
            assert await until_cut(line) == b""
        else:
            assert (await ask(line, LIVE)).headers["pool-gateway"] == "-"


# --- what comes behind a head -------------------------------------------------------------------


@pytest.mark.usefixtures("only_asyncio")
async def test_one_request_at_a_time_and_who_goes_leaves_nothing_open(
    fleet: Fleet, at_once: WebOptions
) -> None:
    """With room for one stream of events: whatever its caller does, it ends with that one."""
    events = b"%s /v1/events HTTP/1.1" + KNOWN.partition(b" HTTP/1.1")[2]
    async with here(WebApp(await fleet.node(), at_once)) as (server, at):
        for method, together, later in (
            *((b"GET", b"", b""), (b"GET", b"", KNOWN), (b"GET", KNOWN, b"")),
            *((b"HEAD", b"", b""), (b"HEAD", b"", KNOWN)),
        ):
            async with await anyio.connect_tcp(*at) as line:
                await line.send(events % method + together)
                assert b"text/event-stream" in await line.receive()
                await line.send(later)
                if method == b"HEAD" and later:
                    assert (await told(line)).status == 200
                elif together or later:
                    (one,) = server.server_state.connections
                    while not one._is_deaf:  # noqa: ASYNC110 - nothing tells it
                        await anyio.sleep(0.01)
                    assert one._waits_for_head is None  # the stream goes on
            with anyio.fail_after(PATIENCE_S):
                while server.server_state.connections or server.server_state.tasks:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
        async with await anyio.connect_tcp(*at) as line:
            first = await ask(line, KNOWN + KNOWN)
            assert (first.status, first.headers["connection"]) == (200, "close")
            assert await until_cut(line) == b""


@pytest.fixture
def at_once() -> WebOptions:
    """Return what lets one stream be open."""
    return WebOptions(keyring=Keyring(read={"a": [SECRETS["read"]]}), streams_max=1)


@pytest.mark.usefixtures("only_asyncio")
@pytest.mark.parametrize("wanted", ["h2c", "websocket"])
async def test_an_upgrade_is_passed_over_and_a_body_is_not(fleet: Fleet, wanted: str) -> None:
    """Some clients ask for one with each request, as Java's own does."""
    upgrade = f"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: {wanted}\r\n".encode()
    node = await fleet.node()
    async with here(WebApp(node)) as (_, at), await anyio.connect_tcp(*at) as line:
        for number, is_at_once in enumerate((True, False)):
            job = {"handler": "later", "key": f"k{number}", "allow_unknown": True}
            body = json.dumps(job).encode()
            head = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
            head += b"\r\n%sContent-Length: %d\r\n\r\n" % (upgrade, len(body))
            if is_at_once:
                await line.send(head + body)
            else:
                await line.send(head)
                await line.send(body)
            sent = await told(line)
            assert (sent.status, json.loads(sent.body)["key"]) == (201, f"k{number}")
        assert (await ask(line, LIVE[:-2] + upgrade + b"\r\n")).status == 200
        tunnel = b"CONNECT localhost:1 HTTP/1.1\r\nHost: localhost:1\r\n\r\n"
        assert (await ask(line, tunnel)).problem["code"] == "WEBREQUEST"
        assert await until_cut(line) == b""


@pytest.mark.usefixtures("only_asyncio")
async def test_what_is_no_request_is_logged_once_a_minute_with_how_often_it_was(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has to come again for that: the minute tells it."""
    monkeypatch.setattr(observers, "_hush", Hush(observers._scribe.write, minute_s=0.5))
    with capture_logs() as logged:
        async with here(app_of_nothing()) as (_, at):
            for _ in range(5):
                async with await anyio.connect_tcp(*at) as line:
                    assert (await ask(line, b"\x16\x03\x01")).problem["code"] == "WEBREQUEST"
                    assert await until_cut(line) == b""
            upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
            assert (await newly(at, LIVE[:-2] + upgrade)).headers["pool-gateway"] == "-"
        await anyio.to_thread.run_sync(
            until, lambda: sum(each.get("times", 1) for each in logged) == 5, "all are counted"
        )
    assert {each["event"] for each in logged} == {"web.connection_malformed"}
    assert "times" not in logged[0]
    assert logged[1]["times"] > 1
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


# --- answers ------------------------------------------------------------------------------------


class Large(WebApp):
    """It answers so much that it cannot all be sent to who does not read."""

    async def _answer(self, _request: Request) -> Response:
        return Response(b"x" * 20_000)


@pytest.mark.usefixtures("only_asyncio")
@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the system has no such limit")
async def test_who_reads_no_answer_is_cut_however_little_is_left_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serving, "READ_S", 1.0)
    async with here(Large(Node("p", "redis://localhost:1"))) as (server, at):
        lines, state = server.server_state.connections, server.server_state
        with socket.socket() as line:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            line.connect(at)
            with anyio.fail_after(PATIENCE_S):
                while not lines:
                    await anyio.lowlevel.checkpoint()
                while lines and not sum(one.transport.get_write_buffer_size() for one in lines):
                    line.send(LIVE)
                    answered = state.total_requests
                    while lines and state.total_requests == answered:
                        await anyio.lowlevel.checkpoint()
            assert not any(one.flow.write_paused for one in lines)
            with anyio.fail_after(PATIENCE_S / 2):  # before it would be cut for having been idle
                while lines:  # noqa: ASYNC110 - nothing tells it
                    await anyio.sleep(0.01)


# --- files --------------------------------------------------------------------------------------


def test_it_has_the_files_that_its_connections_need(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (600, 1000))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: given.append(limits))
    most = 600 - REFUSED_MAX - serving.FILES_OTHER
    serving.have_files_for(most)
    assert given == []
    serving.have_files_for(most + 1)
    assert given == [(601, 1000)]


def test_it_does_not_begin_where_it_cannot_have_them(tmp_path: Path) -> None:
    words = f"{sys.executable} -m pool.ops.cli web --pool p --url redis://localhost:1"
    done = subprocess.run(
        ["/bin/bash", "-c", f"ulimit -n 500; exec {words}"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == USAGE
    assert "POOLCONFIG" in done.stderr
    assert "the hard limit is 500: set 180 at most" in done.stderr


def open_now(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="no other process can be limited")
async def test_without_files_strangers_give_way_and_the_log_stays_short(
    pool_url: str, pool_name: str, tmp_path: Path
) -> None:
    async with web(pool_url, pool_name, tmp_path) as (one, at):
        pid, kind = one.process.pid, resource.RLIMIT_NOFILE
        soft, hard = resource.prlimit(pid, kind)
        assert soft >= 4096
        kept = await anyio.connect_tcp(*at)
        assert (await ask(kept, KNOWN)).status == 200
        resource.prlimit(pid, kind, (open_now(pid) + 5, hard))
        strangers = [socket.create_connection(at) for _ in range(30)]
        assert (await ask(kept, KNOWN)).status == 200
        assert (await newly(at, KNOWN)).status == 200
        for each in strangers:
            each.close()
        await kept.aclose()
        one.process.terminate()
        code, log = await one.end()
    assert (code, log.count("Traceback")) == (0, 0)
    assert len(told_of("not_accepted", log)) <= 2
    assert "Too many open files" in log


# --- ends ---------------------------------------------------------------------------------------


class Endless(WebApp):
    """It tells without an end to whoever asks."""

    async def _answer(self, _request: Request) -> Response:
        async def lines() -> AsyncIterator[bytes]:
            while True:
                yield b"x" * 65_536

        return StreamingResponse(lines())


class Stuck(WebApp):
    """It answers nobody, whatever becomes of them."""

    async def _answer(self, _request: Request) -> Response:
        await anyio.sleep_forever()
        return Response()


@pytest.mark.usefixtures("only_asyncio")
@pytest.mark.parametrize("kind", [Endless, Stuck])
async def test_an_end_is_in_order_whoever_does_not_read_and_whatever_does_not_return(
    kind: type[WebApp], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "CLOSES_S", 0.2)
    monkeypatch.setattr(serving, "GIVES_UP_S", 1)
    caplog.set_level(logging.INFO)
    async with here(kind(Node("p", "redis://localhost:1"))) as (server, at):
        line = await anyio.connect_tcp(*at)
        await line.send(LIVE)
        with anyio.fail_after(PATIENCE_S):
            while not server.server_state.tasks:  # noqa: ASYNC110 - nothing tells it
                await anyio.sleep(0.01)
            if kind is Endless:
                await line.receive()
                (one,) = server.server_state.connections
                while not one.flow.write_paused:  # noqa: ASYNC110 - nothing tells it
                    await anyio.sleep(0.01)
    await line.aclose()
    assert "Finished server process" in caplog.text
    assert "Traceback" not in caplog.text
    assert "Exception" not in caplog.text


def recipe(url: str, pool: str) -> str:
    """Return what the page tells an application to do, as a program."""
    page = (ROOT / "docs/how-to/over-http.md").read_text("utf-8")
    (text,) = (each.text for each in blocks(page) if each.kind == "python")
    text = text.replace('"media", "redis://localhost:6379"', f"{pool!r}, {url!r}")
    assert url in text
    return f"""{text}

from starlette.applications import Starlette

app = Starlette(lifespan=lifespan)
app.mount("/pool", gateway)
"""


SERVERS = {
    "uvicorn": ("uvicorn", "--port", "{port}", "--log-level", "warning"),
    "hypercorn": ("hypercorn", "--bind", "127.0.0.1:{port}"),
    "hypercorn-trio": ("hypercorn", "--bind", "127.0.0.1:{port}", "--worker-class", "trio"),
}


@pytest.mark.usefixtures("only_asyncio")  # one loop is enough to ask with
@pytest.mark.parametrize("name", SERVERS)
async def test_an_application_that_mounts_it_ends_in_order(
    pool_url: str, pool_name: str, tmp_path: Path, name: str
) -> None:
    """SIGTERM while a stream of events is open and a request waits for the end of a job.

    hypercorn hands no signal on, and cuts what goes on 3 s later: there the end itself has to do.
    """
    if find_spec(SERVERS[name][0]) is None:
        pytest.skip("it is not installed")
    (tmp_path / "mounted.py").write_text(recipe(pool_url, pool_name), "utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [each.format(port=port) for each in SERVERS[name]]
    command = [sys.executable, "-m", *words, "mounted:app"]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    with anyio.fail_after(4 * PATIENCE_S):
        async with await anyio.open_process(
            command, cwd=tmp_path, env=env, stdout=None, stderr=subprocess.STDOUT
        ) as process:
            try:
                await ends_in_order(
                    process, f"http://127.0.0.1:{port}/pool", is_told=name == "uvicorn"
                )
            finally:
                if process.returncode is None:
                    process.kill()


async def ends_in_order(process: Any, url: str, *, is_told: bool) -> None:
    secret = {"authorization": "Bearer a-secret-of-16-or-more"}
    answers = list[httpx.Response]()
    cut = () if is_told else (httpx.RemoteProtocolError,)

    async def wait(client: httpx.AsyncClient) -> None:
        with suppress(*cut):
            answers.append(await client.get(f"{url}/v1/jobs/k?wait_s=30"))

    async with httpx.AsyncClient(headers=secret, timeout=2 * PATIENCE_S) as client:
        with anyio.fail_after(2 * PATIENCE_S):
            while True:
                with suppress(httpx.ConnectError):
                    await client.get(f"{url}/live")
                    break
                await anyio.sleep(0.05)
        job = {"handler": "later", "key": "k", "allow_unknown": True}
        assert (await client.post(f"{url}/v1/jobs", json=job)).status_code == 201
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait, client)
            async with client.stream("GET", f"{url}/v1/events") as events:
                assert events.status_code == 200
                await client.get(f"{url}/v1/pauses")  # behind the one that waits
                process.send_signal(signal.SIGTERM)
                with suppress(*cut):
                    async for _ in events.aiter_lines():
                        pass  # it has a good end
        if is_told:
            assert answers[0].json()["is_ended"] is False
    assert await process.wait() in {0, -signal.SIGTERM}


def test_files_that_cannot_be_had_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (10, 100))
    with pytest.raises(ConfigError, match="set 1 at most"):
        serving.have_files_for(1000)
