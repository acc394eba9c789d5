"""uvicorn as the gateway's server: who comes, who stays, who is cut; it ends what waits at its end.

    accepted --room--> handshake --HEAD_S, HEAD_BYTES_MAX--> a whole head --> the application
        |                  +-- not in time: cut                                    |
        +-- no room: a stranger gives way, or          its answer is taken, a part of it within
            it is refused: see `limits`                READ_S at least, or it is cut (by the system)

Connections are accepted here, not by uvicorn: that counts none whose handshake goes on, waits a
minute for it, and refuses requests of those who are there already.  A body's time is the
application's own (`WebOptions.body_s`).  At the end who waits is answered; CLOSES_S later whatever
is still there is cut.
"""

from __future__ import annotations

import resource
import socket
import ssl
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, NoReturn

import anyio
import httptools
import uvicorn
from anyio.abc import TaskGroup
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from pool.errors import ConfigError, shown
from pool.ops.web.app import WebApp
from pool.ops.web.limits import KNOWN, REFUSED_MAX, Connections
from pool.ops.web.problems import WebRefusal
from pool.redis.log import Log
from pool.runtime.observers import log_seldom

HEAD_S: Final = 10.0
HEAD_BYTES_MAX: Final = 64 * 1024
READ_S: Final = 20.0
IDLE_S: Final = 60  # between two requests of a connection
CLOSES_S: Final = 5  # what is answered when it is told to end may go on for so long
GIVES_UP_S: Final = CLOSES_S + 2  # what goes on even so, an application's own say, is given up
BACKLOG: Final = 2048
FILES_OTHER: Final = 256  # what it has open but its connections: Redis, say
ACCEPTS_AGAIN_S: Final = 0.1
_log: Final = Log("pool.web")


class CuttingProtocol(HttpToolsProtocol):
    """A connection that is cut when its request does not come; one request at a time.

    What comes behind a request that is being answered is not read as another one: it would wait
    for as long, and who has sent it and gone would not be seen.  It was not begun, and the
    connection ends with the answer, so a client knows to send it again.

    Nothing is closed before what was on its way here has come, or HEAD_S have passed: a reset
    would take an answer away that was given before.
    """

    parser: httptools.HttpRequestParser
    timeout_keep_alive_task: Any
    _waits_for_head: Any = None
    _raw_bytes = 0  # since there was something of use in them
    _head_bytes = 0
    _is_in_head = False
    _is_last = False  # of the requests that are answered here
    _is_deaf = False
    _is_without_host = False  # the request that is refused
    is_open: bool = False  # its handshake is done
    is_refused: bool = False

    def __init__(
        self,
        config: uvicorn.Config,
        state: ServerState,
        web: WebApp,
        room: Connections,
        tell: Callable[[str], None],
    ) -> None:
        """Begin with one that is accepted, whose handshake is to come."""
        super().__init__(config, state, {})
        self._web, self._room, self._tell = web, room, tell
        self.opening: anyio.CancelScope = anyio.CancelScope()

    def cut(self) -> None:
        """End it now, however far it is."""
        if self.is_open:
            self.transport.abort()
        else:
            self.opening.cancel()

    # --- bytes --------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a request."""
        super().connection_made(transport)
        self.is_open = True
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Take what came, unless it is more head than anybody needs."""
        if self._is_deaf:
            return
        self._room.heard(self)
        self._unset_keepalive_if_required()
        if self._is_between() and self._waits_for_head is None:
            self._wait()
        self._raw_bytes += len(data)
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self._refuse()
            return
        if not self._is_between():
            self._stop_waiting()
        if self._raw_bytes > HEAD_BYTES_MAX:
            self._refuse()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        super().connection_lost(exc)
        self._room.leave(self)
        self._stop_waiting()

    # --- what is in them ----------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Have the application say who asks."""
        if not self._is_between():
            raise ValueError("the one before is not answered")  # the parser gives up
        super().on_message_begin()
        self._head_bytes, self._is_in_head = 0, True
        scope: Any = self.scope
        scope["extensions"] = {KNOWN: self._know}

    def on_url(self, url: bytes) -> None:
        """Take a part of what is asked for."""
        self._add_to_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, of the end of a body too."""
        self._add_to_head(len(name) + len(value) + len(": \r\n"))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Have the request answered."""
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise ValueError("this is no proxy")
            return  # it comes again, without that
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (not hosts and self.parser.get_http_version() == "1.1"):
            self._is_without_host = True
            raise ValueError("one Host is needed")  # the parser gives up, and it is refused
        self._raw_bytes, self._is_in_head = 0, False
        super().on_headers_complete()
        self._is_last = self.is_refused or not self.cycle.keep_alive
        self.cycle.keep_alive = True  # until its body has come

    def on_body(self, body: bytes) -> None:
        """Take a part of a body, also of one that was answered before it came."""
        self._raw_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Close it behind the last answer, or wait for the next request."""
        if self._is_in_head:  # see `on_headers_complete`
            return
        super().on_message_complete()
        if self._is_last:
            self.cycle.keep_alive = False
        if self.cycle.response_complete:
            self._stop_waiting()
            if self._is_last:
                self.transport.close()
            else:
                self.timeout_keep_alive_task = self.loop.call_later(
                    self.timeout_keep_alive, self.timeout_keep_alive_handler
                )

    def _parse(self, data: bytes) -> None:
        """Have the parser take it.  No upgrade is made: its request is answered as any other.

        Behind a head with an upgrade this parser reads no body: it is given the head without one.
        """
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            version = self.parser.get_http_version().encode()
            head = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
            head += [b"%s: %s" % each for each in self.headers if each[0] != b"upgrade"]
            self.parser = httptools.HttpRequestParser(self)
            self.parser.feed_data(b"\r\n".join([*head, b"", data[upgrade.args[0] :]]))

    def _refuse(self) -> None:
        """Read no more; refuse what is no request, in a form of our own, if it can be told."""
        self._is_deaf = True
        cycle: Any = self.cycle  # None before the first request
        if not (self._is_between() or cycle.more_body):  # something behind one that is answered
            cycle.keep_alive = False
            self._stop_waiting()
            return
        self._tell("malformed")
        if cycle is None or self._is_in_head or not cycle.response_started:
            self._write_refusal()
        if not self._is_between():
            cycle.disconnected = True
            cycle.message_event.set()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        if self._waits_for_head is None:
            self._wait()

    def _write_refusal(self) -> None:
        detail = "it is no HTTP/1.1, or has a method that is none here"
        if self._is_without_host:
            detail = "HTTP/1.1 needs exactly one Host header"
        error = WebRefusal("WEBREQUEST", detail, facts={"in": "head"})
        if max(self._raw_bytes, self._head_bytes) > HEAD_BYTES_MAX:
            detail, hint = f"the head is over {HEAD_BYTES_MAX:,} bytes", "send shorter headers"
            facts = {"in": "head", "bytes_max": HEAD_BYTES_MAX}
            error = WebRefusal("WEBTOOLARGE", detail, hint, facts=facts)
        response = self._web._refusal(error)
        status = HTTPStatus(response.status_code)
        lines = [f"HTTP/1.1 {status} {status.phrase}".encode(), b"connection: close"]
        lines += [b"%s: %s" % each for each in response.raw_headers]
        self.transport.write(b"\r\n".join([*lines, b"", bytes(response.body)]))

    def _add_to_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > HEAD_BYTES_MAX:
            raise ValueError("too long")  # the parser gives up, and it is refused as above

    def _know(self) -> None:
        self._room.know(self)

    def _is_between(self) -> bool:
        cycle: Any = self.cycle  # None before the first request
        return cycle is None or bool(cycle.response_complete)

    def _wait(self) -> None:
        self._raw_bytes = 0
        self._waits_for_head = self.loop.call_later(HEAD_S, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._waits_for_head is not None:
            self._waits_for_head.cancel()
            self._waits_for_head = None


class _Server(uvicorn.Server):
    """It accepts itself, and answers who waits before it closes their connections."""

    def __init__(
        self,
        config: uvicorn.Config,
        app: WebApp,
        ready: anyio.Event,
        room: Connections,
        tls: ssl.SSLContext | None,
    ) -> None:
        super().__init__(config)
        self._web, self._ready, self._room, self._tls = app, ready, room, tls
        self._listeners: Sequence[socket.socket] = ()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to whoever runs it, who leaves the pool in order."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._listeners = sockets or ()
        await super().startup(sockets=[])  # it accepts nothing

    async def main_loop(self) -> None:
        async with anyio.create_task_group() as tasks:
            for each in self._listeners:
                each.setblocking(False)
                each.listen(BACKLOG)
                tasks.start_soon(self._accept, each, tasks)
            self._ready.set()
            await super().main_loop()
            tasks.cancel_scope.cancel()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._web.close()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._cut_at_last)
            await super().shutdown(sockets)
            tasks.cancel_scope.cancel()
        self._room.clear()

    async def _cut_at_last(self) -> None:
        await anyio.sleep(CLOSES_S)
        self._room.clear()

    # --- who comes ----------------------------------------------------------------------------

    async def _accept(self, listener: socket.socket, tasks: TaskGroup) -> None:
        while True:
            await anyio.wait_readable(listener)
            try:
                line, _ = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                continue
            except OSError as error:  # of files, as a rule
                self._tell("not_accepted", problem=error.strerror)
                self._room.give_way()
                await anyio.sleep(ACCEPTS_AGAIN_S)
                continue
            line.setblocking(False)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                user_ms = int(1000 * READ_S)
                line.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, user_ms)
            one = CuttingProtocol(self.config, self.server_state, self._web, self._room, self._tell)
            cost = self._room.enter(one)
            one.is_refused = cost == "refused"
            one.app = self._refuse if one.is_refused else self._answer
            if cost:
                self._tell(cost, connections_max=self._room.most)
            tasks.start_soon(self._open, line, one)

    async def _open(self, line: socket.socket, one: CuttingProtocol) -> None:
        """Have it shake hands, if there is TLS, and begin."""
        how = (
            {}
            if self._tls is None
            else {"ssl_handshake_timeout": HEAD_S, "ssl_shutdown_timeout": HEAD_S}
        )
        try:
            with one.opening:
                await one.loop.connect_accepted_socket(lambda: one, line, ssl=self._tls, **how)
        except Exception:  # noqa: BLE001, S110 - whatever became of it, others are to be accepted
            pass
        finally:
            if not one.is_open:
                self._room.leave(one)
                line.close()

    def _tell(self, kind: str, **facts: Hashable) -> None:
        log_seldom(_log, f"web.connection_{kind}", **facts)

    # --- what it is answered ------------------------------------------------------------------

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._web(scope, receive, send)
        except anyio.get_cancelled_exc_class():
            if not self.should_exit:
                raise
            # It is given up at the end, and who asked has been cut: nothing is to be told of that.

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse who came when there was no room; whoever probes is told that this lives."""
        if scope["path"] == "/live":
            await self._web(scope, receive, send)
            return
        detail = f"all {self._room.most:,} connections are of callers that are known"
        hint = "ask again, or another gateway; --connections-max sets how many there may be"
        facts = {"connections_max": self._room.most}
        refusal = WebRefusal("WEBBUSY", detail, hint, facts=facts)
        await self._web._refusal(refusal)(scope, receive, send)


def make_server(
    app: WebApp,
    ready: anyio.Event,
    *,
    connections_max: int,
    tls: ssl.SSLContext | None = None,
) -> uvicorn.Server:
    """Return a server for sockets that are bound already."""
    config = uvicorn.Config(
        app,
        http=CuttingProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=GIVES_UP_S,
    )
    return _Server(config, app, ready, Connections(connections_max), tls)


def have_files_for(connections_max: int) -> None:
    """Raise how many files this process may have open to what so many connections need.

    Raises:
        ConfigError: So many it may not have.
    """
    other = REFUSED_MAX + FILES_OTHER
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = connections_max + other
    if soft == resource.RLIM_INFINITY or soft >= most:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (ValueError, OSError):
        problem = (
            f"{connections_max:,} connections need {most:,} open files, and the hard limit is "
            f"{hard:,}: set {max(1, hard - other):,} at most, or raise that (`ulimit -Hn`, "
            "LimitNOFILE)"
        )
        raise ConfigError(setting="connections_max", problem=problem) from None


def tls_of(certfile: str, keyfile: str) -> ssl.SSLContext:
    """Return what TLS needs: both files are PEM, and may be the same.

    Raises:
        ConfigError: They cannot be used.
    """

    def refuse(name: str, problem: str) -> NoReturn:
        path = certfile if name == "certfile" else keyfile
        raise ConfigError(setting=name, problem=f"{shown(path)} {problem}") from None

    for name, path, what, mark in (
        ("certfile", certfile, "certificate", b"-----BEGIN CERTIFICATE-----"),
        ("keyfile", keyfile, "private key", b"PRIVATE KEY-----"),
    ):
        try:
            if mark not in Path(path).read_bytes():
                refuse(name, f"has no {what} in PEM")
        except (OSError, ValueError) as error:
            refuse(name, f"cannot be read: {getattr(error, 'strerror', None) or 'no path'}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # Never asks a terminal for it.
        context.load_cert_chain(
            certfile, keyfile, lambda: refuse("keyfile", "is encrypted: give one that is not")
        )
    except (ssl.SSLError, OSError, ValueError) as error:
        why = getattr(error, "reason", None)
        if why == "KEY_VALUES_MISMATCH":
            refuse("keyfile", f"is not the key of {shown(certfile)}")
        refuse("certfile", f"and {shown(keyfile)} cannot be used: {shown(why or str(error))}")
    return context
