"""Who may ask, how often, how much: refused before the pool is asked, and never a secret told."""

from __future__ import annotations

import ast
import json
import os
import shlex
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from pool import Node
from pool.errors import ConfigError
from pool.jobs.handlers import ATTEMPTS_MAX, SECONDS_MIN
from pool.ops.web import app
from pool.ops.web.access import ROLES, Role, gather
from pool.ops.web.limits import Rates, Waits
from pool.ops.web.openapi import document
from pool.ops.web.problems import REFUSALS
from pool.ops.web.routes import ROUTES, WebRoute
from pool.web import Caller, Keyring, WebApp, WebOptions
from tests.web.gateways import KEYRING, SECRETS, private

INCLUDED: Mapping[str, tuple[str, ...]] = {
    "read": ("read", "operate", "admin"),
    "operate": ("operate", "admin"),
    "admin": ("admin",),
    "worker": ("worker",),
}
# What proxies, balancers and CDNs add.
ADDED = (
    *("x-forwarded-for", "x-forwarded-proto", "x_forwarded_for", "x-forwarded", "forwarded"),
    *("via", "x-real-ip", "x-client-ip", "x-cluster-client-ip", "true-client-ip", "client-ip"),
    *("cf-connecting-ip", "cf-ray", "cdn-loop", "fastly-client-ip", "fly-client-ip"),
    *("x-envoy-external-address", "x-original-forwarded-for", "x-amzn-trace-id", "x-amz-cf-id"),
    *("x-appengine-user-ip", "x-azure-clientip", "x-arr-log-id", "proxy-connection"),
)
SITE = "sec-fetch-site"
OLD, NEW = "old-secret-0123456789", "new-secret-0123456789"


def asking(
    options: WebOptions | None = None, *, client: tuple[str, int] = ("127.0.0.1", 1), **how: Any
) -> httpx.AsyncClient:
    """Return a client of a gateway whose node is not open: what gets there is told 503."""
    gate = WebApp(Node("p", "redis://localhost:1"), options)
    how.setdefault("base_url", "http://localhost")
    return httpx.AsyncClient(transport=httpx.ASGITransport(gate, client=client), **how)


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


def filled(route: WebRoute) -> str:
    return route.path.replace("{", "").replace("}", "")


# --- roles --------------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
async def test_each_route_is_for_its_role_alone(route: WebRoute) -> None:
    async with asking(WebOptions(keyring=KEYRING)) as client:
        for secret in (None, "wrong-secret-0123456789", *SECRETS):
            headers = bearer(SECRETS.get(secret, secret)) if secret else {}
            answer = await client.request(route.method, filled(route), headers=headers, json=None)
            if route.role is None:
                assert answer.status_code not in {401, 403}
            elif secret not in SECRETS:
                assert (answer.status_code, answer.json()["code"]) == (401, "WEBSECRET")
                assert answer.headers["www-authenticate"] == "Bearer"
            elif secret in INCLUDED[route.role]:
                assert answer.status_code not in {401, 403}, answer.text
            else:
                assert (answer.status_code, answer.json()["code"]) == (403, "WEBROLE")


@pytest.mark.anyio
async def test_two_secrets_are_good_at_once_while_one_replaces_the_other() -> None:
    for keyring, good in (
        (Keyring(read={"a": [OLD]}), (OLD,)),
        (Keyring(read={"a": [OLD, NEW]}), (OLD, NEW)),
        (Keyring(read={"a": [NEW]}), (NEW,)),
    ):
        async with asking(WebOptions(keyring=keyring)) as client:
            for secret in (OLD, NEW):
                answer = await client.get("/v1/status", headers=bearer(secret))
                assert (answer.status_code != 401) == (secret in good)


def test_secrets_come_from_variables_and_a_file(tmp_path: Path) -> None:
    text = f'signing = ["{OLD}"]\n[admin]\nalice = "{OLD}"\ndeploy = ["{NEW}", "{NEW}-2"]\n'
    file = private(tmp_path / "secrets.toml", text)
    environ = {"POOL_WEB_READ": f"{OLD}-3 {NEW}-3", "POOL_WEB_SIGNING": f"{NEW},{OLD}"}
    found = gather(environ, str(file))
    names = {secret: found.keyring.find(secret) for secret in (OLD, f"{NEW}-2", f"{NEW}-3", "x")}
    assert [each and each.name for each in names.values()] == ["alice", "deploy", "read", None]
    assert found.signing == (NEW, OLD)
    assert OLD not in repr(found)
    assert OLD not in repr(found.keyring)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[admin]\na = "CANARY"', "6 characters"),
        (
            '[admin]\na = ["CANARY-0123456789", "CANARY-1123456789", "CANARY-2123456789"]',
            "3 secrets",
        ),
        ('[admin]\na = "CANARY 0123456789012"', "visible ASCII"),
        ("[admin]\na = 7777", "one secret, or a list"),
        ('[root]\na = "CANARY-0123456789"', "none of"),
        ('[admin]\n"a b" = "CANARY-0123456789"', "A-Z"),
        ('[admin]\na = "CANARY-0123456789"\nb = "CANARY-0123456789"', "there twice"),
        ('[admin]\na = "CANARY-0123456789', "no TOML"),
    ],
)
def test_a_secret_that_cannot_be_used_is_refused_and_not_repeated(
    tmp_path: Path, text: str, told: str
) -> None:
    file = private(tmp_path / "secrets.toml", text)
    with pytest.raises(ConfigError, match=told) as caught:
        gather({}, str(file))
    assert "CANARY" not in str(caught.value)
    assert "7777" not in str(caught.value)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o622, 0o660])
def test_a_file_of_secrets_is_for_its_owner_alone(tmp_path: Path, mode: int) -> None:
    file = private(tmp_path / "it's.toml", f'[admin]\na = "{OLD}"\n')
    assert gather({}, str(file)).keyring.find(OLD)
    file.chmod(mode)
    with pytest.raises(ConfigError) as caught:
        gather({}, str(file))
    assert shlex.join(["chmod", "600", str(file)]) in caught.value.problem
    assert OLD not in str(caught.value)


def test_one_that_is_somebody_elses_its_group_may_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So an orchestrator hands it to a service."""
    file = private(tmp_path / "s.toml", f'[admin]\na = "{OLD}"\n')
    file.chmod(0o440)
    monkeypatch.setattr(os, "geteuid", lambda: file.stat().st_uid + 1)
    assert gather({}, str(file)).keyring.find(OLD)
    file.chmod(0o444)
    with pytest.raises(ConfigError, match="0444"):
        gather({}, str(file))


def test_who_means_to_have_secrets_is_not_left_without(tmp_path: Path) -> None:
    signs = private(tmp_path / "s.toml", f'signing = "{OLD}"\n')
    for environ, path in (
        ({}, str(private(tmp_path / "empty.toml", ""))),
        ({}, str(private(tmp_path / "none.toml", "[admin]\n"))),
        ({}, str(signs)),
        ({"POOL_WEB_ADMIN": ""}, ""),
    ):
        with pytest.raises(ConfigError, match="no secret of"):
            gather(environ, path)
    assert gather({"POOL_WEB_ADMIN": NEW}, str(signs)).signing == (OLD,)
    assert not gather({}, "").keyring


def test_what_signs_tokens_is_no_callers_secret() -> None:
    with pytest.raises(ConfigError, match="could sign") as caught:
        WebOptions(keyring=Keyring(read={"a": [OLD, NEW]}), signing=("x" * 16, NEW))
    assert NEW not in str(caught.value)


def test_a_file_that_is_not_there_is_told() -> None:
    with pytest.raises(ConfigError, match="No such file"):
        gather({}, "/nowhere/secrets.toml")


# --- an authenticator ---------------------------------------------------------------------------


@pytest.mark.anyio
async def test_an_application_says_itself_who_asks() -> None:
    async def known(headers: Mapping[str, str]) -> Caller | None:
        role = headers.get("x-role")
        if role == "broken":
            raise RuntimeError(headers["authorization"])
        return Caller("somebody", (role,)) if role in ROLES else None

    async with asking(WebOptions(authenticator=known), client=("10.0.0.9", 1)) as client:
        told = {}
        for role in ("none", "worker", "read", "broken"):
            headers = {**bearer("CANARY-0123456789"), "x-role": role}
            answer = await client.get("/v1/status", headers=headers)
            assert "CANARY" not in answer.text
            told[role] = answer.status_code
        assert told == {"none": 401, "worker": 403, "read": 503, "broken": 500}


@pytest.mark.anyio
async def test_a_flood_of_strangers_does_not_reach_the_authenticator() -> None:
    """Nor does it keep those out who were known before; who is known takes nothing of theirs."""
    asked = list[str]()

    async def known(headers: Mapping[str, str]) -> Caller | None:
        cookie = headers.get("cookie", "")
        asked.append(cookie)
        return Caller("somebody", ("read",)) if cookie.startswith("good") else None

    async with asking(WebOptions(authenticator=known), client=("10.0.0.9", 1)) as client:

        async def ask(cookie: str) -> int:
            return (await client.get("/v1/status", headers={"cookie": cookie})).status_code

        assert {await ask(f"good{i}") for i in range(100)} == {503}
        asked.clear()
        told = [await ask("bad") for _ in range(400)]
        assert told[:20] == [401] * 20
        assert told.count(429) == 400 - len(asked)
        assert len(asked) < 200
        assert await ask("good7") == 503
        answer = await client.get("/v1/status", headers={"cookie": "bad"})
        if answer.status_code == 429:
            assert answer.json()["facts"]["requests_per_s"] == 20


@pytest.mark.anyio
async def test_an_authenticator_that_never_says_who_it_is_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def silent(headers: Mapping[str, str]) -> Caller | None:
        await anyio.sleep_forever()
        return None

    monkeypatch.setattr("pool.ops.web.app.AUTHENTICATOR_S", 0.05)
    async with asking(WebOptions(authenticator=silent)) as client:
        answer = await client.get("/v1/status")
        assert (answer.status_code, answer.json()["code"]) == (500, "WEBFAULT")


# --- without secrets ------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("client", "headers", "is_good"),
    [
        ("127.0.0.1", {}, True),
        ("::1", {"host": "[::1]:8080"}, True),
        ("127.0.0.1", {"host": "127.0.0.1:8080"}, True),
        ("127.0.0.1", {"origin": "http://localhost"}, True),
        ("10.0.0.9", {}, False),
        ("127.0.0.1", {"host": "evil.example"}, False),  # a name that was made to mean us
        ("127.0.0.1", {"origin": "http://evil.example"}, False),
        ("127.0.0.1", {"origin": "null"}, False),
        ("127.0.0.1", {"sec-fetch-site": "cross-site"}, False),
        ("127.0.0.1", {"x-forwarded-for": "10.0.0.9"}, False),
        ("127.0.0.1", {"forwarded": "for=10.0.0.9"}, False),
        ("127.0.0.1", {"host": "localhost:1, evil.example"}, False),
        ("127.0.0.1", {"host": "localhost:80:evil.example"}, False),
        *(("127.0.0.1", {name: "x"}, False) for name in ADDED),
        *(("127.0.0.1", {name: "x"}, True) for name in ("user-agent", "x-request-id", "cfg")),
    ],
)
async def test_without_secrets_only_programs_of_this_machine_are_answered(
    client: str, headers: dict[str, str], is_good: bool
) -> None:
    async with asking(client=(client, 1)) as asked:
        for method, at in (("GET", "/v1/status"), ("GET", "/live"), ("POST", "/v1/pause")):
            answer = await asked.request(method, at, headers=headers)
            told = answer.json()
            assert (told.get("code") != "WEBORIGIN") == is_good
            if not is_good:
                assert told["hint"]
                assert told["facts"].keys() <= {"client", "host", "header", "origin", SITE}
                assert told["facts"]


@pytest.mark.anyio
async def test_no_page_of_elsewhere_is_let_in_with_a_secret_either() -> None:
    async with asking(WebOptions(keyring=KEYRING), client=("10.0.0.9", 1)) as client:
        headers = {**bearer(SECRETS["admin"]), "origin": "https://evil.example"}
        answer = await client.get("/v1/status", headers=headers)
        assert answer.status_code == 403
        preflight = await client.options(
            "/v1/jobs", headers={**headers, "access-control-request-method": "POST"}
        )
        assert preflight.status_code == 405
        for each in (answer, preflight):
            assert not [name for name in each.headers if name.startswith("access-control")]


# --- limits ---------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_each_caller_may_ask_so_often() -> None:
    async with asking(WebOptions(keyring=KEYRING, requests_per_s=3)) as client:
        told = [
            (await client.get("/v1/status", headers=bearer(SECRETS["read"]))).status_code
            for _ in range(40)
        ]
        assert told[:3] == [503, 503, 503]
        assert told.count(429) > 20
        answer = await client.get("/v1/status", headers=bearer(SECRETS["admin"]))
        assert answer.status_code == 503  # another caller
        for _ in range(60):
            answer = await client.get("/v1/status", headers=bearer("guess-0123456789abc"))
        assert (answer.status_code, answer.json()["code"]) == (429, "WEBRATE")
        assert int(answer.headers["retry-after"]) >= 1
        answer = await client.get("/v1/status", headers=bearer(SECRETS["operate"]))
        assert answer.status_code == 503  # who is known does not suffer from that


def test_a_rate_is_kept_for_whoever_comes() -> None:
    now_s = 0.0
    rates = Rates(2.0, clock=lambda: now_s)
    assert [rates.take("a") for _ in range(3)] == [0.0, 0.0, 0.5]
    assert rates.take("b") == 0.0
    now_s = 0.5
    assert rates.take("a") == 0.0
    assert rates.take("a") == 0.5
    for i in range(20_000):
        rates.take(str(i))
    assert len(rates._left) <= 10_000


async def sent(gate: WebApp, receive: Callable[[], Awaitable[Any]], **headers: str) -> Any:
    """Return what is told of a body that comes piece by piece."""
    told = list[Any]()

    async def send(message: Any) -> None:
        told.append(message)

    given = {"host": "localhost", "content-type": "application/json", **headers}
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/jobs",
        "raw_path": b"/v1/jobs",
        "query_string": b"",
        "client": ("127.0.0.1", 1),
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
    }
    with anyio.fail_after(60):
        await gate(scope, receive, send)
    return json.loads(told[1]["body"])["code"] if told else None


@pytest.mark.anyio
async def test_a_body_is_so_long_and_comes_in_time() -> None:
    async def endless() -> Any:
        return {"type": "http.request", "body": b" " * 1000, "more_body": True}

    async def slow() -> Any:
        await anyio.sleep(600)

    async def gone() -> Any:
        return {"type": "http.disconnect"}

    options = WebOptions(body_bytes_max=10_000, body_s=0.2)
    gate = WebApp(Node("p", "redis://localhost:1"), options)
    assert await sent(gate, slow, **{"content-length": "10001"}) == "WEBTOOLARGE"
    assert await sent(gate, endless) == "WEBTOOLARGE"
    assert await sent(gate, slow) == "WEBSLOW"
    assert await sent(gate, gone) is None


@pytest.mark.anyio
async def test_who_waits_is_counted_and_told_when_it_ends() -> None:
    waits, told = Waits(2), list[str]()

    async def wait(name: str) -> None:
        with waits.within():
            await anyio.sleep_forever()
        told.append(name)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            for name in ("a", "b"):
                tasks.start_soon(wait, name)
            await anyio.wait_all_tasks_blocked()
            assert waits.is_full
            waits.close()
        assert sorted(told) == ["a", "b"]
        await wait("c")  # at once
    assert not waits.is_full


@pytest.mark.parametrize(
    "wrong",
    [
        {"keyring": {"admin": "x"}},
        {"authenticator": lambda _: None},
        {"signing": ("short",)},
        {"body_bytes_max": 0},
        {"body_s": float("nan")},
        {"requests_per_s": 0},
        {"waits_max": "many"},
        {"streams_max": True},
    ],
)
def test_options_that_cannot_work_are_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError):
        WebOptions(**wrong)


def test_a_caller_has_a_name_and_roles_that_there_are() -> None:
    assert Caller("a.b@c-d", ("read", "worker")).may("worker")
    for name, roles in (("a b", ("read",)), ("", ("read",)), ("a", ("root",)), ("a", "read")):
        with pytest.raises(ConfigError):
            Caller(name, roles)  # type: ignore[arg-type]


# --- hostile ------------------------------------------------------------------------------------

LONE = b'{"handler":"echo","key":"\\ud800"}'
HOSTILE: tuple[tuple[str, str, bytes | None, int], ...] = (
    ("POST", "/v1/jobs", b"", 400),
    ("POST", "/v1/jobs", b"null", 400),
    ("POST", "/v1/jobs", b"[]", 400),
    ("POST", "/v1/jobs", b"{", 400),
    ("POST", "/v1/jobs", b"\xff\xfe", 400),
    ("POST", "/v1/jobs", b"[" * 100_000, 400),
    ("POST", "/v1/jobs", b'{"handler":"h","key":"k","args":' + b"[" * 50_000, 400),
    ("POST", "/v1/jobs", b'{"handler":"h","key":"k","args":[NaN]}', 400),
    ("POST", "/v1/jobs", b'{"handler":"h","key":"k","args":[' + b"9" * 10_000 + b"]}", 400),
    ("POST", "/v1/jobs", b'{"handler":"h","key":"k","more":1}', 400),
    ("POST", "/v1/jobs", b'{"handler":"h","key":1}', 400),
    ("POST", "/v1/jobs", b'{"handler":"h","key":"k","delay_s":1e999}', 400),
    ("POST", "/v1/jobs", b'{"handler":"h","key":"k","run_at":"2026-01-01T00:00:00"}', 400),
    ("POST", "/v1/jobs", b'{"jobs":[]}', 400),
    ("POST", "/v1/jobs", LONE, 400),
    ("GET", "/v1/jobs/%FF", None, 400),
    ("GET", "/v1/jobs/%00", None, 400),
    ("GET", "/v1/jobs/%0A", None, 400),
    ("GET", "/v1/jobs/" + "a" * 600, None, 400),
    ("GET", "/v1/jobs/k/id%20x", None, 400),
    ("GET", "/v1/jobs/k?wait_s=-1", None, 400),
    ("GET", "/v1/jobs/k?wait_s=31", None, 400),
    ("GET", "/v1/jobs/k?wait_s=nan", None, 400),
    ("GET", "/v1/jobs/k?wait_s=1&wait_s=2", None, 400),
    ("GET", "/v1/jobs/k?%FF=1", None, 400),
    ("GET", "/v1/jobs/k?wait_s", None, 400),
    ("GET", "/v1/jobs?state=gone", None, 400),
    ("GET", "/v1/jobs?" + "a" * 20_000, None, 413),
    ("GET", "/v1/status?x=1", None, 400),
    ("GET", "/v1/jobs/", None, 404),
    ("GET", "/v1/jobs//x", None, 404),
    ("GET", "/", None, 404),
    ("GET", "//", None, 404),
    ("GET", "/v1/../v1/status/..", None, 404),
    ("PATCH", "/v1/jobs", None, 405),
    ("DELETE", "/v1/jobs", None, 405),
    ("POST", "/v1/schedules/%2F/pause", b"{}", 400),
    ("POST", "/v1/batches/a%2Cb/cancel", b"{}", 400),
    ("POST", "/v1/nodes/%C3%A4/drain", b"{}", 400),
    ("PUT", "/v1/schedules/" + "a" * 97, b'{"handler":"h","key":"k","cron":"* * * * *"}', 400),
)


@pytest.mark.anyio
@pytest.mark.parametrize(("method", "at", "body", "status"), HOSTILE)
async def test_what_cannot_be_is_a_problem_and_never_a_fault(
    method: str, at: str, body: bytes | None, status: int
) -> None:
    async with asking() as client:
        url = client.base_url.copy_with(raw_path=at.encode())
        request = httpx.Request(
            method,
            url,
            content=body,
            headers={"content-type": "application/json", "host": "localhost"},
        )
        answer = await client.send(request)
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        told = answer.json()
        assert told["code"]
        assert told["hint"]
        assert told["facts"]
        assert told["detail"].isprintable()
        if status == 405:
            assert answer.headers["allow"]


@pytest.mark.anyio
@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/x-www-form-urlencoded", "a" * 9000]
)
async def test_a_body_is_json_and_says_so(kind: str) -> None:
    """A page could send all others without asking first."""
    async with asking() as client:
        answer = await client.post("/v1/pause", content=b"{}", headers={"content-type": kind})
        assert (answer.status_code, answer.json()["code"]) == (415, "WEBMEDIA")


@pytest.mark.anyio
async def test_it_is_mounted_where_an_application_wants_it() -> None:
    mounted = Starlette(routes=[Mount("/a b/pool", WebApp(Node("p", "redis://localhost:1")))])
    transport = httpx.ASGITransport(mounted, client=("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert (await client.get("/a%20b/pool/live")).json()["parts"]["node"]["says"] == "new"
        assert (await client.get("/a%20b/pool/v1/jobs/x%2Fy/z")).json()["code"] == "POOLNOTRUNNING"
        assert (await client.get("/a%20b/pool/v1/jobs/x/y/z")).json()["code"] == "WEBPATH"
        told = (await client.get("/a%20b/pool/openapi.json")).json()
        assert told["servers"] == [{"url": "/a%20b/pool"}]


@pytest.mark.anyio
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
async def test_a_header_by_which_no_repeat_is_known_is_refused(route: WebRoute) -> None:
    """It would be sent again in the belief that it does no harm."""
    async with asking(WebOptions(keyring=KEYRING)) as client:
        headers = {**bearer(SECRETS[route.role or "read"]), "idempotency-key": "x"}
        answer = await client.request(route.method, filled(route), headers=headers, json=None)
        is_refused = answer.status_code == 400 and "Idempotency-Key" in answer.json()["detail"]
        assert is_refused == (route.repeats == "again")
        if is_refused:
            told = answer.json()
            assert (told["code"], told["facts"]["header"]) == ("WEBREQUEST", "Idempotency-Key")
            assert told["hint"] == route.repeat_hint
        described = document(ROUTES)["paths"][route.path][route.method.lower()]
        names = [each["name"] for each in described.get("parameters", ())]
        assert ("Idempotency-Key" in names) == (route.repeats == "known")
        if route.method != "GET":
            assert "Idempotency-Key" in described["description"]


def test_every_refusal_tells_what_it_knows() -> None:
    """Each has a hint of its own or of its code, and facts."""
    assert all(hint for _, _, hint in REFUSALS.values())
    for file in Path(app.__file__).parent.glob("*.py"):
        for call in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "WebRefusal":
                assert "facts" in {each.arg for each in call.keywords}, (file.name, call.lineno)


def test_a_schema_counts_characters_and_the_limit_of_a_key_bytes() -> None:
    told = json.dumps(document(ROUTES))
    assert told.count("512 bytes in UTF-8") > 5


def test_each_number_that_is_sent_has_the_bounds_of_the_code_in_its_schema() -> None:
    schemas = document(ROUTES)["components"]["schemas"]
    for name in filter(lambda each: each.endswith(("Body", "Query")), schemas):
        for field, schema in schemas[name].get("properties", {}).items():
            for each in schema.get("anyOf", [schema]):
                is_number = each.get("type") in ("integer", "number")
                assert not is_number or {"minimum", "maximum"} <= {*each}, (name, field)
    offer = schemas["OfferBody"]["properties"]
    bounds = {name: offer[name]["minimum"] for name in ("attempts_max", "queue_max", "backoff_s")}
    assert bounds == {"attempts_max": 1, "queue_max": 1, "backoff_s": SECONDS_MIN}
    assert offer["attempts_max"]["maximum"] == ATTEMPTS_MAX


def test_all_roles_are_in_use() -> None:
    used: set[Role | None] = {route.role for route in ROUTES}
    assert used >= {"read", "operate", "admin", None}
