"""What could be read in two ways, or in none: it is refused, with what it is about."""

from __future__ import annotations

import gzip
import json
import socket
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from pool.ops.web.app import ONCE_HEADERS
from pool.ops.web.routes import ROUTES
from tests.nodes import PATIENCE_S
from tests.web.gateways import SECRETS

CALLER = {"authorization": f"Bearer {SECRETS['admin']}"}


@pytest.fixture(scope="module")
def ask(gateway: tuple[str, int]) -> Any:
    host, port = gateway
    with httpx.Client(
        base_url=f"http://{host}:{port}", headers=CALLER, timeout=PATIENCE_S
    ) as client:

        def asked(method: str, path: str, status: int, **options: Any) -> Any:
            answer = client.request(method, path, **options)
            assert answer.status_code == status, answer.text
            return answer

        yield asked


def raw(gateway: tuple[str, int], request: bytes) -> tuple[bytes, Any]:
    """Send these bytes; return the head of the answer, and what it tells."""
    with socket.create_connection(gateway, timeout=PATIENCE_S) as line:
        line.sendall(request)
        came = b""
        while part := line.recv(65_536):
            came += part
    head, _, body = came.partition(b"\r\n\r\n")
    return head, json.loads(body)


def problem(answer: httpx.Response) -> Any:
    told = answer.json()
    assert (told["status"], told["code"]) == (400, "WEBREQUEST")
    return told


# --- headers --------------------------------------------------------------------------------------

VALUES = {
    "authorization": CALLER["authorization"],
    "content-type": "application/json",
    "idempotency-key": "order-1",
    "last-event-id": "0",
    "origin": "http://localhost",
    "sec-fetch-site": "same-origin",
}


@pytest.mark.parametrize("name", sorted(VALUES))
@pytest.mark.parametrize("is_same", [True, False])
def test_a_header_that_may_come_once_is_refused_when_it_comes_twice(
    ask: Any, name: str, is_same: bool
) -> None:
    body = json.dumps({"handler": "twice", "key": "header", "allow_unknown": True})
    headers = {**CALLER, "content-type": "application/json"}
    headers.pop(name, None)
    sent = [*headers.items(), (name, VALUES[name])]
    sent.append((name.title(), VALUES[name] + "2" * (not is_same)))
    told = problem(ask("POST", "/v1/jobs", 400, content=body, headers=sent))
    assert told["facts"]["header"] == name.title()
    ask("GET", "/v1/jobs/header", 404)


def test_every_header_that_is_read_may_come_once_or_is_of_proxies() -> None:
    asked = {name.lower() for route in ROUTES for name in route.headers}
    assert asked | VALUES.keys() <= ONCE_HEADERS


def test_a_header_of_others_may_come_often(ask: Any) -> None:
    ask("GET", "/v1/pauses", 200, headers=[("x-trace", "1"), ("x-trace", "2"), ("cookie", "a=1")])


# --- bodies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ('{"handler": "h", "handler": "h", "key": "k"}', "handler"),
        ('{"jobs": [{"handler": "h", "key": "k", "key": "l"}]}', "key"),
        ('{"handler": "h", "key": "k", "kwargs": {"by": 1, "by": 2}}', "by"),
        ('{"handler": "h", "key": "k", "args": [[{"deep": 1, "de\\u0065p": 1}]]}', "deep"),
    ],
)
def test_a_name_twice_in_an_object_is_refused_wherever_it_is(
    ask: Any, body: str, name: str
) -> None:
    """Of arguments too: who has it run would not know which one was heeded."""
    headers = {"content-type": "application/json"}
    told = problem(ask("POST", "/v1/jobs", 400, content=body, headers=headers))
    assert told["facts"] == {"in": "body", "at": name}
    assert f"{name} twice" in told["detail"]


# --- queries --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "at", "said"),
    [
        ("prefix=a&handler", "handler", "handler has no value"),
        ("prefix=a&&page=1", "", "a part of it is empty"),
        ("prefix=%ff", None, "no UTF-8"),
        ("page=1&page=1", "page", "page twice"),
    ],
)
def test_what_a_query_lacks_is_named(ask: Any, query: str, at: str | None, said: str) -> None:
    told = problem(ask("GET", f"/v1/jobs?{query}", 400))
    assert told["facts"] == {"in": "query", **({} if at is None else {"at": at})}
    assert said in told["detail"]


# --- percent-encoding -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "fault"),
    [
        ("%zz", "%zz"),
        ("50%", "%"),
        ("a%4", "%4"),
        ("%", "%"),
        ("100%25%", "%"),
        ("\xfc", "\\xfc"),
    ],
)
@pytest.mark.parametrize("where", ["path", "query"])
def test_what_is_not_percent_encoded_is_refused(
    gateway: tuple[str, int], where: str, sent: str, fault: str
) -> None:
    """Taken as it stands, it would be one key for this client and another one for the next."""
    target = f"/v1/jobs/{sent}" if where == "path" else f"/v1/jobs?prefix={sent}"
    line = f"GET {target} HTTP/1.1\r\nHost: localhost\r\n"
    line += f"Authorization: {CALLER['authorization']}\r\nConnection: close\r\n\r\n"
    head, told = raw(gateway, line.encode("latin-1"))
    assert head.startswith(b"HTTP/1.1 400 "), head
    assert told["code"] == "WEBREQUEST"
    if sent.isascii():  # else it is no HTTP
        assert (told["facts"]["in"], told["facts"]["value"]) == (where, fault)


def test_a_key_that_is_percent_encoded_is_what_it_stands_for(ask: Any) -> None:
    key = "50% %zz +/\xfc?#"
    ask("POST", "/v1/jobs", 201, json={"handler": "encoded", "key": key, "allow_unknown": True})
    assert ask("GET", f"/v1/jobs/{quote(key, safe='')}", 200).json()["key"] == key
    [found] = ask("GET", f"/v1/jobs?prefix={quote(key, safe='')}", 200).json()["jobs"]
    assert found["key"] == key


@pytest.mark.parametrize("charset", ["latin-1", "utf-16", "us-ascii", "", "utf-8; charset=latin-1"])
def test_a_charset_that_is_not_utf_8_is_refused(ask: Any, charset: str) -> None:
    headers = {"content-type": f"application/json; charset={charset}"}
    body = '{"handler": "h", "key": "\xfc", "allow_unknown": true}'.encode()
    told = ask("POST", "/v1/jobs", 415, content=body, headers=headers).json()
    assert told["code"] == "WEBMEDIA"
    assert told["facts"] == {"charset": charset.rpartition("=")[2]}


@pytest.mark.parametrize("given", ["; charset=utf-8", ';charset="UTF-8"', "; x=1; Charset=utf8"])
def test_a_body_may_say_that_it_is_utf_8(ask: Any, given: str) -> None:
    headers = {"content-type": f"application/json{given}"}
    body = json.dumps({"handler": "h", "key": given, "allow_unknown": True})
    ask("POST", "/v1/jobs", 201, content=body, headers=headers)


# --- bytes ----------------------------------------------------------------------------------------


def test_of_bytes_and_other_arguments_the_others_are_named(ask: Any) -> None:
    body = {"handler": "h", "key": "k", "args": ["AA=="], "encoding": "base64"}
    told = ask("POST", "/v1/jobs", 400, json={**body, "kwargs": {"by": 1}}).json()
    assert (told["facts"]["option"], told["facts"]["value"]) == ("kwargs", "by")
    told = ask("POST", "/v1/jobs", 400, json={**body, "args": []}).json()
    assert (told["facts"]["option"], told["facts"]["value"]) == ("args", "0 arguments")


@pytest.mark.parametrize("path", ["jobs?cursor=9.0.0", "parked?cursor=9..", "schedules?cursor=9.0"])
def test_a_cursor_of_a_lane_that_the_pool_does_not_have_is_refused(ask: Any, path: str) -> None:
    told = ask("GET", f"/v1/{path}", 400).json()
    assert (told["code"], told["facts"]["option"]) == ("POOLOPTION", "cursor")
    assert told["facts"]["problem"] == "it names lane 9, and the last one is 0"


@pytest.mark.parametrize("coding", ["gzip", "br", "identity, gzip", "GZIP"])
def test_a_compressed_body_is_refused(ask: Any, coding: str) -> None:
    body, headers = b'{"reason": "x", "all": true}', {"content-type": "application/json"}
    for content in (body, gzip.compress(body), b""):
        sent = {**headers, "content-encoding": coding}
        told = ask("POST", "/v1/pause", 415, content=content, headers=sent).json()
        assert told["code"] == "WEBMEDIA"
        assert told["facts"] == {"content_encoding": coding}
    plain = {**headers, "content-encoding": "identity"}
    assert ask("POST", "/v1/resume", 200, content=b'{"all": true}', headers=plain)


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_of_a_delete_is_refused_and_is_no_request(
    gateway: tuple[str, int], is_chunked: bool
) -> None:
    host, port = gateway
    head = f"DELETE /v1/schedules/s HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n"
    head += f"Authorization: {CALLER['authorization']}\r\nContent-Type: application/json\r\n"
    for body, status, code in (
        (f"GET /live HTTP/1.1\r\nHost: {host}\r\n\r\n", 400, "WEBREQUEST"),
        ('{"cause": "x"}', 400, "WEBREQUEST"),
        ("{}", 404, "POOLNOSCHEDULE"),
    ):
        length, sent = f"Content-Length: {len(body)}", body
        if is_chunked:
            length, sent = "Transfer-Encoding: chunked", f"{len(body):x}\r\n{body}\r\n0\r\n\r\n"
        answer, told = raw(gateway, f"{head}{length}\r\n\r\n{sent}".encode())
        assert answer.startswith(f"HTTP/1.1 {status} ".encode())
        assert told["code"] == code


# --- methods --------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/openapi.json", "/v1/status"])
@pytest.mark.parametrize("method", ["OPTIONS", "POST", "DELETE", "TRACE"])
def test_a_method_that_a_path_has_not_is_told_those_that_it_has(
    ask: Any, path: str, method: str
) -> None:
    answer = ask(method, path, 405)
    assert answer.json()["code"] == "WEBMETHOD"
    assert answer.headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize("method", ["FOO", "get", "CONNECT"])
def test_a_method_that_is_none_is_no_request(gateway: tuple[str, int], method: str) -> None:
    """The page says so: 400, with the connection ended."""
    sent = f"{method} /v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    head, told = raw(gateway, sent)
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"connection: close" in head
    assert told["code"] == "WEBREQUEST"
    assert "a method that is none here" in told["detail"]
