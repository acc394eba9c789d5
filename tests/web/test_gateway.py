"""`pool web`: a real process, asked over real sockets; slow ones are cut, it ends in order."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import anyio
import attrs
import httpx
import pytest
import trustme
from anyio.abc import SocketStream

from pool import Node
from pool.ops.cli import OK, USAGE, main
from pool.ops.cli.web import bound
from tests.nodes import PATIENCE_S
from tests.ops.commands import Cli, running
from tests.web.gateways import SECRETS, private

pytestmark = pytest.mark.anyio
SIGNING = "signing-secret-0123456789"


@attrs.frozen
class Served:
    """A gateway that answers."""

    command: Cli
    ready: dict[str, Any]

    @property
    def at(self) -> tuple[str, int]:
        host, _, port = self.ready["web"].rpartition("/")[2].rpartition(":")
        return host, int(port)


@asynccontextmanager
async def web(*words: str, cwd: Path) -> AsyncIterator[Served]:
    """Yield a gateway on a free port."""
    async with running("web", "--port", "0", "--json", *words, cwd=cwd) as command:
        yield Served(command, await command.event())


def at_pool(pool_name: str, pool_url: str) -> list[str]:
    return ["--pool", pool_name, "--url", pool_url]


def bearer(role: str) -> dict[str, str]:
    return {"authorization": f"Bearer {SECRETS[role]}"}


async def test_it_serves_whoever_has_a_secret_and_ends_in_order(
    pool_url: str, pool_name: str, tmp_path: Path
) -> None:
    """Who waits is answered when it is told to end, and its node has left the pool then."""
    secrets = private(
        tmp_path / "secrets.toml",
        f'signing = "{SIGNING}"\n[admin]\nalice = "{SECRETS["admin"]}"\n'
        f'[read]\nwall = "{SECRETS["read"]}"\n[worker]\nw = "{SECRETS["worker"]}"\n',
    )
    words = [*at_pool(pool_name, pool_url), "--host", "0.0.0.0", "--secrets", str(secrets)]  # noqa: S104
    async with web(*words, cwd=tmp_path) as served:
        assert served.ready["roles"] == ["read", "admin", "worker"]
        url = f"http://127.0.0.1:{served.at[1]}"
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as client:
            assert (await client.get("/live")).json()["ok"]
            assert (await client.get("/v1/status")).status_code == 401
            assert (await client.get("/v1/status", headers=bearer("read"))).json()[
                "pool"
            ] == pool_name
            told = await client.get("/metrics", headers=bearer("read"))
            assert "pool_jobs_accepted" in told.text
            job = {"handler": "later", "key": "k", "allow_unknown": True}
            assert (
                await client.post("/v1/jobs", json=job, headers=bearer("admin"))
            ).status_code == 201
            waiting = await anyio.connect_tcp("127.0.0.1", served.at[1])
            head = f"Host: localhost\r\nAuthorization: Bearer {SECRETS['read']}\r\n\r\n"
            await waiting.send(f"GET /v1/jobs/k?wait_s=30 HTTP/1.1\r\n{head}".encode())
            async with client.stream("GET", "/v1/events", headers=bearer("read")) as events:
                await client.post("/v1/pause", json={"key": "x"}, headers=bearer("admin"))
                lines, told_lines = events.aiter_lines(), list[str]()
                while not any("action=pause" in line for line in told_lines):
                    told_lines.append(await anext(lines))
                assert "by=alice" in told_lines[-1]
                served.command.process.send_signal(signal.SIGTERM)
                assert [line async for line in lines][-1] == ""  # it has a good end
            answer = b"".join([part async for part in waiting])  # head and body may come apart
            await waiting.aclose()
            assert answer.startswith(b"HTTP/1.1 200 OK")
            assert b'"is_ended":false' in answer
            await waiting.aclose()
        code, told_err = await served.command.end()
        assert code == OK
        assert not [secret for secret in (*SECRETS.values(), SIGNING) if secret in told_err]
    async with Node(pool_name, pool_url) as node:
        assert served.ready["node"] not in {each.node for each in node.workers}


async def until_cut(line: SocketStream, chunk: bytes = b"") -> None:
    """Go on sending, or reading, until the other side has had enough."""
    with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
        while True:
            if chunk:
                await line.send(chunk)
            else:
                await line.receive()


async def test_slow_and_endless_ones_are_cut_and_all_others_are_answered(
    gateway: tuple[str, int],
) -> None:
    host, port = gateway
    with anyio.fail_after(4 * PATIENCE_S):
        lines = [await anyio.connect_tcp(host, port) for _ in range(3)]
        silent, slow, endless = lines
        for line in (slow, endless):
            await line.send(b"GET /live HTTP/1.1\r\nHost: localhost\r\nX-Begun: ")
        await until_cut(endless, b"y" * 8000)
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}") as client:
            assert (await client.get("/live")).json()["ok"]
        for line in (silent, slow):
            await until_cut(line)
        for line in lines:
            await line.aclose()


async def test_who_leaves_a_stream_of_events_leaves_no_line_in_the_log(
    gateway: tuple[str, int],
) -> None:
    """asyncio warned of each event that was written behind the end; see the fixture."""
    host, port = gateway
    headers = {"authorization": f"Bearer {SECRETS['admin']}"}
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}", headers=headers) as client:
        for number in range(60):
            for does in ("pause", "resume"):
                (await client.post(f"/v1/{does}", json={"key": f"k{number}"})).raise_for_status()
    ask = "GET /v1/events?follow=false HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "
    for read_bytes in range(1, 400, 3):
        with closing(socket.create_connection((host, port))) as line:
            line.sendall(f"{ask}Authorization: Bearer {SECRETS['read']}\r\n\r\n".encode())
            assert line.recv(read_bytes).startswith(b"H")
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.mark.parametrize(
    "raw",
    [
        b"GARBAGE\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"GET /\x00\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /v1/jobs/%ff%fe HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /live HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET http://evil.example/live HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
async def test_what_is_no_request_is_refused(gateway: tuple[str, int], raw: bytes) -> None:
    with anyio.fail_after(PATIENCE_S):
        line = await anyio.connect_tcp(*gateway)
        async with line:
            await line.send(raw)
            told = await line.receive()
            assert told.startswith(b"HTTP/1.1 ")
            assert told.split()[1] < b"500"
            assert b"pool-gateway: " in told
            assert (b" 200 " in told) != (b"application/problem+json" in told)


def test_answers_are_sent_without_waiting_for_more() -> None:
    """By asyncio's own rule, which looks at the protocol of a socket."""
    with bound("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP


async def test_it_is_refused_to_be_asked_from_elsewhere_without_secrets(
    pool_url: str, pool_name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    at = at_pool(pool_name, pool_url)
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        secrets = private(tmp_path / "s.toml", f'[worker]\nw = "{SECRETS["worker"]}"\n')
        for name, text in (("empty", ""), ("signs", f'signing = "{SIGNING}"\n')):
            private(tmp_path / name, text)
        (tmp_path / "open").write_text(f'[admin]\na = "{SECRETS["admin"]}"\n', "utf-8")
        (tmp_path / "open").chmod(0o644)
        for words, told in (
            (["--host", "0.0.0.0"], "set secrets first"),  # noqa: S104
            (["--host", "::"], "set secrets first"),
            (["--port", port], "in use. (setting='port')"),
            (["--port", "70000"], "65,535"),
            (["--keyfile", "x"], "together"),
            (["--secrets", "/nowhere"], "No such file"),
            (["--secrets", str(secrets)], "POOL_WEB_SIGNING"),
            (["--secrets", str(tmp_path / "empty")], "has no secret of read"),
            (["--secrets", str(tmp_path / "signs")], "has no secret of read"),
            (["--secrets", str(tmp_path / "open")], f"chmod 600 {tmp_path / 'open'}"),
            (["--connections-max", "0"], "connections_max"),
            (["--requests-per-s", "nan"], "requests_per_s"),
        ):
            assert main(["web", *at, *words]) == USAGE
            assert told in capsys.readouterr().err


async def test_with_a_certificate_it_speaks_tls(
    pool_url: str, pool_name: str, tmp_path: Path
) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    certificate.cert_chain_pems[0].write_to_path(chain)
    certificate.private_key_pem.write_to_path(key)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    words = [*at_pool(pool_name, pool_url), "--certfile", str(chain), "--keyfile", str(key)]
    async with web(*words, cwd=tmp_path) as served:
        assert served.ready["web"].startswith("https://")
        trusted = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        async with httpx.AsyncClient(verify=trusted) as client:
            assert (await client.get(f"{served.ready['web']}/live")).json()["ok"]


async def test_dev_has_a_gateway_too(tmp_path: Path) -> None:
    async with running("dev", "--web", "0", "--json", cwd=tmp_path) as command:
        ready = await command.event()
        async with httpx.AsyncClient(base_url=ready["web"]) as client:
            assert (await client.get("/v1/status")).json()["pool"] == ready["pool"]
        command.process.send_signal(signal.SIGINT)
        assert (await command.end())[0] == OK
    assert json.dumps(ready)
