"""The ASGI application: a request, by the table of routes, to a call of the node and back.

Before a server heeds a signal that ends it.

A server that waits for its connections to close before it ends an application's lifespan, as
uvicorn does, would wait for whoever waits in the application, who would be answered only then.

What is done as a whole, whoever cancels the request that has asked for it.

A shield keeps the cancelling of scopes out, which is all there is on trio.  asyncio's own
(`task.cancel()`, as `asyncio.wait_for` does) goes through it, and ends what its task awaits: so the
deed has a task of its own, and who asked is cancelled once that has ended.

    path --no route--> 404, 405
      --> who asks: secret, authenticator, or whoever is on this machine --> 401, 403, 429
      --> body within its bytes and its time, query, names: judged by their types --> 400, 408, 413
      --> [ the journal, if it is an action --> the call ] --> what waits --> JSON, or a problem

What is in brackets is done as a whole, whether who asked is still there or not: what is noted is
done, as long as this process lives (see above).  Who goes ends only what waits: for jobs, for an
end.  What is done is told, though the waiting for it fails.

A path is split before it is decoded, so that a key may hold `/` (as %2F).  CORS stays closed: no
answer carries its headers, and what a page of elsewhere asks is refused.  What fails unforeseen is
logged with its traceback, and told as WEBFAULT without it.
"""

from __future__ import annotations

import json
import re
import signal
import threading
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, Final, Literal, TypeVar
from urllib.parse import parse_qsl, quote, unquote_to_bytes

import anyio
import attrs
import msgspec
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from pool import checks
from pool.errors import ConfigError, InvalidOption, JobLost, PoolError, name_of, shown
from pool.jobs.node import Node
from pool.names import check_idempotency_key
from pool.ops.endpoints import Endpoints
from pool.ops.jsonable import as_json
from pool.ops.metrics import Metrics
from pool.ops.web import access, bodies
from pool.ops.web.access import LOCAL, Authenticator, Caller, Keyring, Role, Tokens
from pool.ops.web.asked import Gateway, WebAnswer, WebRequest
from pool.ops.web.audit import DISPATCH, ActsNoted
from pool.ops.web.limits import KNOWN, Lately, Rates, Waits
from pool.ops.web.openapi import document
from pool.ops.web.problems import MEDIA_TYPE, ProblemFacts, WebRefusal, headers_of, problem_of
from pool.ops.web.routes import PATH_CHECKS, ROUTES, WebRoute
from pool.redis.log import Log

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def before_signals(call: Callable[[], object]) -> Iterator[None]:
    """Within the block have a signal call that first, then do what it has done until now.

    `call` may come between any two instructions.  Beside the main thread, and where a signal is not
    handled in Python, it is left alone.
    """
    handlers = dict[int, Any]()

    def heed(number: int, frame: FrameType | None) -> None:
        call()
        handlers[number](number, frame)

    if threading.current_thread() is threading.main_thread():
        for each in SIGNALS:
            found = signal.getsignal(each)
            if callable(found):
                handlers[each] = found
                signal.signal(each, heed)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            if signal.getsignal(number) is heed:  # else it is somebody else's by now
                signal.signal(number, handler)


T = TypeVar("T")


async def as_a_whole(act: Callable[[], Awaitable[T]]) -> T:
    """Run it to its end; return what it returns."""
    ended, found, failed = anyio.Event(), list[T](), list[BaseException]()

    async def run() -> None:
        try:
            found.append(await act())
        except Exception as error:  # noqa: BLE001 - it is raised where it was asked for
            failed.append(error)
        finally:
            ended.set()

    with anyio.CancelScope(shield=True):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            while not ended.is_set():
                try:
                    await ended.wait()
                except anyio.get_cancelled_exc_class() as cancelled:
                    failed.insert(0, cancelled)
    if failed:
        del failed[1:]
        raise failed.pop()
    return found[0]


FAILED_PER_S: Final = 20.0  # requests of nobody known, of all together
REPEAT_HEADER: Final = "Idempotency-Key"
# Of what is read here, that may come once: of what a proxy adds, and of cookies, there may be more.
ONCE_HEADERS: Final = frozenset(
    {
        *("authorization", "content-length", "content-type", "host", "idempotency-key"),
        *("last-event-id", "origin", "sec-fetch-site"),
    }
)
AUTHENTICATOR_S: Final = 10.0  # within which it must have said who asks
QUERY_CHARS_MAX: Final = 16 * 1024
_PART: Final = re.compile(r"\{(\w+)\}")
# What is not percent-encoded: a byte that may not stand by itself, or a % without its two digits.
_FAULT: Final = re.compile(rb"%(?![0-9A-Fa-f]{2}).{0,2}|[^\x21-\x7e]", re.DOTALL)
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_log: Final = Log("pool.web")


@attrs.frozen(kw_only=True)
class WebOptions:
    """Who may ask, and how much.

    Attributes:
        keyring: The bearer secrets.  Without them, and without an authenticator, only programs of
            this machine are answered, and may do everything.
        authenticator: `await authenticator(headers)` says who asks, or None; names of headers are
            in small letters.  It is asked where no secret fits, and answers within 10 s.
        signing: Secrets of the workers' tokens, at least 16 characters each: the first signs, all
            are good.  All gateways of a pool need the same.  Without any this process makes one.
        body_bytes_max: Of one request.
        body_s: By when a body must have come.
        requests_per_s: Of each caller; as many may come at once.
        waits_max: Requests that wait at the same time, for jobs and for ends of jobs.
        streams_max: Streams of events at the same time.

    Raises:
        ConfigError: One of them cannot be used.
    """

    keyring: Keyring | None = None
    authenticator: Authenticator | None = None
    signing: tuple[str, ...] = attrs.field(default=(), repr=False)
    body_bytes_max: int = 8 * 1024 * 1024
    body_s: float = 10.0
    requests_per_s: float = 2_000.0
    waits_max: int = 4_000
    streams_max: int = 100

    def __attrs_post_init__(self) -> None:
        refuse = checks.setting
        if self.keyring is not None:
            checks.instance("keyring", self.keyring, Keyring, refuse=refuse)
        if self.authenticator is not None and not checks.is_async(self.authenticator):
            raise refuse("authenticator", self.authenticator, "an async function")
        for each in access.checked_secrets("signing", self.signing) if self.signing else ():
            if self.keyring is not None and self.keyring.find(each) is not None:
                problem = "it is the secret of a caller, who could sign tokens: make another one"
                raise ConfigError(setting="signing", problem=problem)
        checks.count("body_bytes_max", self.body_bytes_max, 1024, 1 << 30, refuse=refuse)
        checks.number("body_s", self.body_s, 0.1, 3600.0, unit="s", refuse=refuse)
        checks.number("requests_per_s", self.requests_per_s, 0.1, 1e6, refuse=refuse)
        checks.count("waits_max", self.waits_max, 1, 100_000, refuse=refuse)
        checks.count("streams_max", self.streams_max, 1, 10_000, refuse=refuse)

    @property
    def is_open(self) -> bool:
        """Whether whoever is on this machine may ask."""
        return not self.keyring and self.authenticator is None


class WebApp:
    """The control plane of a node's pool, as an ASGI application.

        app.mount("/pool", WebApp(node, WebOptions(keyring=Keyring(admin={"alice": ["..."]}))))

    The node is opened and closed by whoever mounts it; what waits is ended before that, by
    `closing()` in its lifespan, or by `close()`.
    """

    def __init__(
        self, node: Node, options: WebOptions | None = None, *, metrics: Metrics | None = None
    ) -> None:
        """Serve this node; with `metrics` its figures, too.

        Raises:
            ConfigError: An argument cannot be used.
        """
        refuse = checks.setting
        checks.instance("node", node, Node, refuse=refuse)
        if options is not None:
            checks.instance("options", options, WebOptions, refuse=refuse)
        if metrics is not None:
            checks.instance("metrics", metrics, Metrics, refuse=refuse)
        self._node, self._options = node, options or WebOptions()
        self._gateway = Gateway(
            node=node,
            endpoints=Endpoints(node, metrics),
            waits=Waits(self._options.waits_max),
            streams=Waits(self._options.streams_max),
            tokens=Tokens(self._options.signing),
        )
        self._audit = ActsNoted(node)
        self._rates, self._failed = Rates(self._options.requests_per_s), Rates(FAILED_PER_S)
        self._lately = Lately()
        # What stands in a path by its name goes before what may be anything.
        self._table = sorted(
            ((_pattern(route.path), route) for route in ROUTES), key=lambda each: each[1].parts
        )

    def close(self) -> None:
        """Answer all who wait, and have nobody wait from now on; before the node closes."""
        self._gateway.waits.close()
        self._gateway.streams.close()
        if self._node.state in ("open", "troubled", "draining", "drained"):
            self._audit.flush()

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Close it when the block ends, or at the first SIGTERM or SIGINT within.

        For the lifespan of an application, around its `yield`, where the node is open: servers that
        end the lifespan only after all connections have closed, as uvicorn does, would wait for
        who waits here.  What the server does at a signal it does then, as before.  Beside the main
        thread, or where nobody heeds a signal, it is left alone.

        Raises:
            NotRunning: The node is not open.
        """
        post = self._node._open_wiring.context.loop.post
        try:
            with before_signals(partial(post, self.close)):
                yield
        finally:
            self.close()

    # --- a request ----------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, as ASGI has it; of a lifespan there is nothing to be done."""
        if scope["type"] == "lifespan":
            while True:
                message = await receive()
                await send({"type": f"{message['type']}.complete"})
                if message["type"] == "lifespan.shutdown":
                    return
        if scope["type"] != "http":
            raise ConfigError(setting="scope", problem=f"no {scope['type']}: HTTP only")
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
        except ClientDisconnect:
            return
        self._sign(response)
        if isinstance(response, StreamingResponse):
            if scope["method"] == "HEAD":  # nobody would read it, and it may have no end
                status, headers = response.status_code, response.raw_headers
                await send({"type": "http.response.start", "status": status, "headers": headers})
                await send({"type": "http.response.body", "body": b""})
                return
            with self._gateway.streams.within() as stream:
                await response(scope, receive, send)
            if stream.cancelled_caught:  # it has a good end, and is gone on with elsewhere
                await send({"type": "http.response.body", "body": b""})
            return
        await response(scope, receive, send)

    def _refusal(self, error: WebRefusal) -> Response:
        """Return how its server refuses what never gets here."""
        response = _refused(error)
        self._sign(response)
        return response

    def _sign(self, response: Response) -> None:
        response.headers["Pool-Gateway"] = self._gateway_id()
        response.headers["Cache-Control"] = "no-store"
        response.headers["X-Content-Type-Options"] = "nosniff"

    def _gateway_id(self) -> str:
        wiring = self._node._wiring
        return wiring.context.node_id if wiring is not None else "-"

    async def _answer(self, request: Request) -> Response:
        try:
            return _response(await self._carry_out(request))
        except ClientDisconnect:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the next request is answered
            return _refused(self._known_or_fault(error))

    def _known_or_fault(self, error: Exception) -> PoolError | WebRefusal:
        """Return the error of ours that it is; what was not foreseen is logged."""
        known = _known(error)
        if known is not None:
            return known
        # Where, and of what kind: what it says, and what is local there, may be payloads.
        where = "".join(traceback.format_tb(error.__traceback__))
        _log.error("web.failed", problem=name_of(type(error)), where=where)
        return self._fault("what failed is in the gateway's log")

    def _fault(self, detail: str) -> WebRefusal:
        return WebRefusal("WEBFAULT", detail, facts={"gateway": self._gateway_id()})

    async def _carry_out(self, request: Request) -> WebAnswer:
        method, parts = request.scope["method"], self._parts(request.scope)
        headers = _headers(request.headers)
        if parts == ["openapi.json"]:
            if method not in {"HEAD", "GET"}:
                raise _no_method(method, {"GET"})
            return WebAnswer(body=as_json(document(ROUTES, request.scope.get("root_path", ""))))
        route, names = self._find(method, parts)
        caller = await self._caller(request, headers, route.role)
        if route.role is not None:
            await self._gateway.check_protocol()
        for secret in ("authorization", "cookie", "proxy-authorization"):
            headers.pop(secret, None)  # from here on nobody can tell it
        path = {name: _name(name, text) for name, text in names.items()}
        query = _query(route, request.scope.get("query_string", b""))
        _check_repeat(route, headers.get(REPEAT_HEADER.lower()))
        body = await self._body(route, request, headers)
        asked = WebRequest(
            gateway=self._gateway,
            caller=caller,
            path=path,
            query=query,
            body=body,
            headers=headers,
        )
        if route.waits:
            return _answered(route, await _while_there(request, partial(route.run, asked)))
        act = partial(self._act, route, asked)
        answered = await (as_a_whole(act) if route.action else act())
        if route.then is None or self._gateway.waits.is_full:
            return answered
        try:
            then = partial(route.then, asked, answered)
            return _answered(route, await _while_there(request, then))
        except ClientDisconnect:
            raise
        except Exception as error:
            if isinstance(self._known_or_fault(error), JobLost):  # there is no end to be told
                raise
            return answered

    async def _act(self, route: WebRoute, asked: WebRequest) -> WebAnswer:
        await self._audit.note(route, asked)
        answered = _answered(route, await route.run(asked))
        if route.action == DISPATCH:
            self._audit.count(asked, answered.told)
        return answered

    # --- where it goes ------------------------------------------------------------------------

    def _parts(self, scope: Scope) -> list[str]:
        """Return the parts of the path, not decoded yet."""
        raw: bytes = scope.get("raw_path") or quote(scope["path"], safe="/").encode()
        path = raw.partition(b"?")[0].decode("latin-1")
        root = scope.get("root_path", "").rstrip("/")
        for prefix in (root, quote(root)):
            if prefix and (path == prefix or path.startswith(f"{prefix}/")):
                path = path[len(prefix) :]
                break
        return path.removeprefix("/").split("/")

    def _find(self, method: str, parts: list[str]) -> tuple[WebRoute, dict[str, str]]:
        wanted, allowed, path = "GET" if method == "HEAD" else method, set[str](), ""
        for pattern, route in self._table:
            names = _matched(pattern, parts) if path in ("", route.path) else None
            if names is None:
                continue
            if route.method == wanted:
                return route, names
            path = route.path
            allowed.add(route.method)
        if not allowed:
            where = shown("/" + "/".join(parts))
            raise WebRefusal("WEBPATH", "no such path", facts={"path": where})
        raise _no_method(method, allowed)

    # --- who asks -----------------------------------------------------------------------------

    async def _caller(
        self, request: Request, headers: Mapping[str, str], role: Role | None
    ) -> Caller:
        """Return who asks, if that one may.

        Raises:
            WebRefusal: Nobody known, not for this, or too often.
        """
        options = self._options
        if access.is_of_a_page(headers):
            detail = "a page of elsewhere has made a browser ask this"
            hint = "ask from a program, or through a server of the page's own"
            names = ("origin", "sec-fetch-site")
            facts = {name: shown(headers[name]) for name in names if name in headers}
            raise WebRefusal("WEBORIGIN", detail, hint, facts=facts)
        if options.is_open:
            if facts := access.from_elsewhere(request.scope.get("client"), headers):
                hint = "set secrets, or an authenticator, to be asked from elsewhere, or by a proxy"
                told = ", ".join(f"{name} {value}" for name, value in facts.items())
                detail = f"this is not from this machine alone: {told}"
                raise WebRefusal("WEBORIGIN", detail, hint, facts=facts)
            caller = LOCAL
        elif role is None:
            return LOCAL  # whoever it is: it may be asked by anybody
        else:
            caller = await self._known(request, headers)
        known = request.scope.get("extensions", {}).get(KNOWN)
        if known is not None:
            known()
        if role is not None and not caller.may(role):
            lacks: ProblemFacts = {"role": role, "caller": caller.name, "has": [*caller.roles]}
            raise WebRefusal("WEBROLE", f"{caller.name} has not the role {role}", facts=lacks)
        if again_s := self._rates.take(caller.name):
            detail = f"{caller.name} may ask {options.requests_per_s:g} times a second"
            most: ProblemFacts = {"caller": caller.name, "requests_per_s": options.requests_per_s}
            raise WebRefusal("WEBRATE", detail, again_s=again_s, facts=most)
        return caller

    async def _known(self, request: Request, headers: Mapping[str, str]) -> Caller:
        """Return whose secret it is, or whom the authenticator knows.

        Strangers take from what there is for all of them before the authenticator is asked, so a
        flood of them does not reach it; those who were known a while ago it is asked about anyway.

        Raises:
            WebRefusal: It is nobody's, or there were too many of these.
        """
        options, authorization = self._options, headers.get("authorization", "")
        kind, _, secret = authorization.partition(" ")
        is_bearer = kind.lower() == "bearer" and bool(secret)
        if options.keyring and is_bearer:
            found = options.keyring.find(secret.strip())
            if found is not None:
                return found
        address = str((request.scope.get("client") or ("",))[0])
        who = (address, authorization, headers.get("cookie", ""))
        is_taken = options.authenticator is None or not self._lately.has(who)
        if is_taken and (again_s := self._failed.take("")):
            facts: ProblemFacts = {"requests_per_s": FAILED_PER_S, "of": "all who are not known"}
            raise WebRefusal("WEBRATE", "too many who are not known", again_s=again_s, facts=facts)
        if options.authenticator is not None:
            caller = await self._authenticated(options.authenticator, headers)
            if caller is not None:
                self._lately.add(who)
                if is_taken:
                    self._failed.give_back("")
                return caller
            self._lately.discard(who)
        sent = "an unknown secret" if is_bearer else "no Bearer" if authorization else "nothing"
        facts = {"authorization": sent}
        raise WebRefusal("WEBSECRET", "send `Authorization: Bearer SECRET`", facts=facts)

    async def _authenticated(
        self, authenticator: Authenticator, headers: Mapping[str, str]
    ) -> Caller | None:
        try:
            with anyio.fail_after(AUTHENTICATOR_S):
                found = await authenticator(headers)
            if found is not None:
                checks.instance("authenticator", found, Caller, refuse=checks.setting)
        except Exception as error:  # noqa: BLE001 - the application's own; it knows secrets
            _log.error("web.authenticator_failed", problem=name_of(type(error)))
            raise self._fault("who asks cannot be found out now") from None
        return found

    # --- what is sent -------------------------------------------------------------------------

    async def _body(self, route: WebRoute, request: Request, headers: Mapping[str, str]) -> Any:
        kinds = route.body
        if route.method == "DELETE":  # it must say nothing: what is not heeded is refused
            kinds = (bodies.Nothing,)
        elif not kinds:
            return None
        _check_coding(headers.get("content-encoding", ""))
        raw = await self._raw(request, headers)
        if not raw.strip():
            value: Any = {}
        else:
            _check_media(headers.get("content-type", ""))
            # A failure can always be told: what is no text in it is replaced.
            value = _parsed(raw, "replace" if bodies.FailBody in route.body else "strict")
        is_many = len(kinds) > 1 and isinstance(value, dict) and "jobs" in value
        try:
            return bodies.read(kinds[-1] if is_many else kinds[0], value)
        except msgspec.ValidationError as error:
            raise _wrong("body", error) from None

    async def _raw(self, request: Request, headers: Mapping[str, str]) -> bytes:
        most = self._options.body_bytes_max
        length = headers.get("content-length", "0")
        if length.isdecimal() and len(length) < 20 and int(length) > most:
            raise _too_large("body", most, int(length))
        found, size = list[bytes](), 0
        with anyio.move_on_after(self._options.body_s) as limit:
            has_more = True
            while has_more:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                found.append(message.get("body", b""))
                size += len(found[-1])
                if size > most:
                    raise _too_large("body", most, size)
                has_more = message.get("more_body", False)
        if limit.cancelled_caught:
            detail = f"the body was not whole within {self._options.body_s:g} s"
            facts = {"body_s": self._options.body_s, "came_bytes": size}
            raise WebRefusal("WEBSLOW", detail, facts=facts)
        return b"".join(found)


# --- parts ------------------------------------------------------------------------------------


def _no_method(method: str, allowed: set[str]) -> WebRefusal:
    allowed |= {"HEAD"} if "GET" in allowed else set()
    allow = ", ".join(sorted(allowed))
    facts: ProblemFacts = {"method": shown(method), "allowed": sorted(allowed)}
    return WebRefusal("WEBMETHOD", f"{shown(method)} is none of {allow}", allow=allow, facts=facts)


def _check_repeat(route: WebRoute, header: str | None) -> None:
    """Refuse a header by which a repeat would not be known, or none that could be.

    Raises:
        WebRefusal: It is one.
    """
    if header is None or route.repeats == "same":
        return
    facts = {"header": REPEAT_HEADER, "value": shown(header)}
    if route.repeats == "again":
        detail = f"{REPEAT_HEADER} is not heeded here: sent again, it is done again"
        raise WebRefusal("WEBREQUEST", detail, route.repeat_hint, facts=facts)
    try:
        check_idempotency_key(header)
    except InvalidOption as error:
        raise WebRefusal("WEBREQUEST", f"{REPEAT_HEADER}: {error.problem}", facts=facts) from None


def _answered(route: WebRoute, told: Any) -> WebAnswer:
    return told if isinstance(told, WebAnswer) else WebAnswer(status=route.status, told=told)


async def _while_there(request: Request, wait: Callable[[], Awaitable[Any]]) -> Any:
    """Wait, as long as who asked for it is there.

    Raises:
        ClientDisconnect: That one has gone.
    """
    found = list[Any]()

    async def listen(scope: anyio.CancelScope) -> None:
        while (await request.receive())["type"] != "http.disconnect":
            continue
        scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listen, tasks.cancel_scope)
        found.append(await wait())
        tasks.cancel_scope.cancel()
    if not found:
        raise ClientDisconnect
    return found[0]


def _pattern(path: str) -> list[str]:
    return path.removeprefix("/").split("/")


def _matched(pattern: list[str], parts: list[str]) -> dict[str, str] | None:
    if len(pattern) != len(parts):
        return None
    names = dict[str, str]()
    for wanted, part in zip(pattern, parts, strict=True):
        found = _PART.fullmatch(wanted)
        if found is None:
            if wanted != part:
                return None
        elif not part:
            return None
        else:
            names[found[1]] = part
    return names


def _name(name: str, text: str) -> str:
    if fault := _FAULT.search(text.encode("latin-1")):
        facts = {"in": "path", "at": name, "value": _told(fault)}
        detail = f"{name} in the path is not percent-encoded: {_told(fault)}"
        raise WebRefusal("WEBREQUEST", detail, facts=facts)
    try:
        found = unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        facts = {"in": "path", "at": name}
        raise WebRefusal("WEBREQUEST", f"{name} in the path is no UTF-8", facts=facts) from None
    PATH_CHECKS[name](found)
    return found


def _told(fault: re.Match[bytes]) -> str:
    return shown(fault[0].decode("ascii", "backslashreplace"))


def _check_coding(given: str) -> None:
    """Refuse a body that is compressed.

    Raises:
        WebRefusal: Its sender says so.
    """
    if not {each.strip().lower() for each in given.split(",")} <= {"", "identity"}:
        facts = {"content_encoding": shown(given)}
        detail = f"Content-Encoding is {shown(given)!r}: no encoding is decoded here"
        raise WebRefusal("WEBMEDIA", detail, "send the body as it is", facts=facts)


def _check_media(given: str) -> None:
    """Refuse a body that is not JSON in UTF-8, by what its sender says.

    Raises:
        WebRefusal: It is not.
    """
    kind, *parameters = (each.strip().lower() for each in given.split(";"))
    if kind != "application/json":
        detail = f"Content-Type is {shown(kind)!r}: send application/json"
        raise WebRefusal("WEBMEDIA", detail, facts={"content_type": shown(kind)})
    for name, _, value in (each.partition("=") for each in parameters):
        charset = value.strip().strip('"')
        if name.strip() == "charset" and charset not in {"utf-8", "utf8"}:
            detail = f"the charset is {shown(charset)!r}: send UTF-8"
            raise WebRefusal("WEBMEDIA", detail, facts={"charset": shown(charset)})


def _headers(given: Headers) -> dict[str, str]:
    """Return them by name; one that came twice is put together, as HTTP has it.

    Raises:
        WebRefusal: One of ours did: together they would be another value than either.
    """
    found = dict[str, str]()
    for name, value in given.items():
        if name in found and name in ONCE_HEADERS:
            facts = {"header": name.title()}
            raise WebRefusal("WEBREQUEST", f"{name.title()} came twice", facts=facts)
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found


def _query(route: WebRoute, raw: bytes) -> Any:
    if len(raw) > QUERY_CHARS_MAX:
        raise _too_large("query", QUERY_CHARS_MAX, len(raw))
    if fault := _FAULT.search(raw):
        facts = {"in": "query", "value": _told(fault)}
        detail = f"the query is not percent-encoded: {_told(fault)}"
        raise WebRefusal("WEBREQUEST", detail, facts=facts)
    try:
        pairs = parse_qsl(
            raw.decode("ascii"), keep_blank_values=True, strict_parsing=bool(raw), errors="strict"
        )
    except UnicodeDecodeError:
        detail, facts = "the query is no UTF-8, percent-encoded", {"in": "query"}
        raise WebRefusal("WEBREQUEST", detail, facts=facts) from None
    except ValueError:  # a part is not `name=value`
        at = next((each for each in raw.decode("ascii").split("&") if "=" not in each), "")
        what = f"{shown(at)} has no value" if at else "a part of it is empty"
        facts = {"in": "query", "at": shown(at)}
        raise WebRefusal(
            "WEBREQUEST", f"the query: {what}, send name=value&...", facts=facts
        ) from None
    given = dict(pairs)
    if len(given) < len(pairs):
        twice = shown(_twice(pairs))
        facts = {"in": "query", "at": twice}
        raise WebRefusal("WEBREQUEST", f"the query says {twice} twice", facts=facts)
    if route.query is None:
        if given:
            detail = f"the query: nothing can be said here, {_names(given)}"
            raise WebRefusal("WEBREQUEST", detail, facts={"in": "query", "at": _names(given)})
        return None
    try:
        return bodies.read(route.query, given, is_text=True)
    except msgspec.ValidationError as error:
        raise _wrong("query", error) from None


def _names(given: Mapping[str, str]) -> str:
    return ", ".join(shown(each) for each in list(given)[:3])


class _TwiceError(Exception):
    """An object has two members of one name: of these only one would be heeded."""


def _named(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _TwiceError(_twice(pairs))
    return found


def _twice(pairs: list[tuple[str, Any]]) -> str:
    [(name, _)] = Counter(name for name, _ in pairs).most_common(1)
    return name


def _parsed(raw: bytes, errors: Literal["strict", "replace"] = "strict") -> Any:
    def refuse(word: str) -> None:
        raise ValueError(f"{word} is no JSON")

    try:
        sent = raw.decode(errors=errors)
        value = json.loads(sent, parse_constant=refuse, object_pairs_hook=_named)
        if _SURROGATE.search(raw):
            text = json.dumps(value, ensure_ascii=False).encode(errors=errors)
            value = json.loads(text) if errors == "replace" else value
    except _TwiceError as error:
        at = shown(str(error))
        facts = {"in": "body", "at": at}
        raise WebRefusal("WEBREQUEST", f"an object says {at} twice", facts=facts) from None
    except UnicodeEncodeError:
        detail = "the body has half of a pair of surrogates"
        raise WebRefusal("WEBREQUEST", detail, facts={"in": "body"}) from None
    except (ValueError, RecursionError) as error:  # also of bytes that are no UTF-8
        told = shown(str(error)) if not isinstance(error, UnicodeDecodeError) else "no UTF-8"
        facts = {"in": "body", "problem": told}
        raise WebRefusal("WEBREQUEST", f"the body is no JSON: {told}", facts=facts) from None
    return value


def _wrong(where: str, error: msgspec.ValidationError) -> WebRefusal:
    """Return what is wrong with a body or a query, and at which field: `$.jobs[3].key`."""
    text = str(error)
    text = text if text.isprintable() else text.encode("unicode_escape").decode("ascii")
    said, _, at = text.partition(" - at `")
    facts = {"in": where, "at": shown(at.rstrip("`") or "$"), "problem": said[:300]}
    return WebRefusal("WEBREQUEST", f"the {where}: {text[:300]}", facts=facts)


def _too_large(where: str, most: int, given: int) -> WebRefusal:
    facts = {"in": where, "bytes_max": most, "bytes": given}
    hint = "" if where == "body" else "say less in it: there are pages, and a cursor"
    return WebRefusal("WEBTOOLARGE", f"the {where} is over {most:,} bytes", hint, facts=facts)


def _known(error: BaseException) -> PoolError | WebRefusal | None:
    """Return the error of ours that it is, or that a group has, if there is nothing else."""
    if not isinstance(error, BaseExceptionGroup):
        return error if isinstance(error, PoolError | WebRefusal) else None
    found = [_known(each) for each in error.exceptions]
    return found[0] if all(found) else None


def _response(answered: WebAnswer) -> Response:
    headers = dict(answered.headers)
    if answered.stream is not None:
        return StreamingResponse(answered.stream, media_type=answered.media_type, headers=headers)
    body = as_json(answered.told) if answered.body is None else answered.body
    return Response(
        body, status_code=answered.status, media_type=answered.media_type, headers=headers
    )


def _refused(error: PoolError | WebRefusal) -> Response:
    problem = problem_of(error)
    status: int = problem["status"]
    return Response(
        as_json(problem),
        status_code=status,
        media_type=MEDIA_TYPE,
        headers=headers_of(error, status),
    )
