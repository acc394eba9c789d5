"""uvicorn as the gateway's server: it cuts who is slow, and ends what waits before it ends.

    a connection --HEAD_S, HEAD_BYTES_MAX--> a whole head --> the application --> read within READ_S
          |                                                                        |
          +-- not in time, too long: cut                                           +-- not: cut

A body's time is the application's own (`WebOptions.body_s`).  Who opens connections beyond
`connections_max` is answered 503 there.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import anyio
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pool.ops.web.app import WebApp

HEAD_S: Final = 10.0
HEAD_BYTES_MAX: Final = 64 * 1024
READ_S: Final = 20.0
IDLE_S: Final = 60  # between two requests of a connection
CLOSES_S: Final = 5  # what is answered when it is told to end may go on for so long
BACKLOG: Final = 2048


class CuttingProtocol(HttpToolsProtocol):
    """A connection that is cut when its request does not come, or its answer is not read."""

    _waits_for_head: Any = None
    _waits_for_reader: Any = None
    _head_bytes = 0

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Take what came, unless it is more head than anybody needs."""
        if self._is_between():
            if self._waits_for_head is None:
                self._wait()
            self._head_bytes += len(data)
        super().data_received(data)
        if not self._is_between():
            self._stop_waiting()
        elif self._head_bytes > HEAD_BYTES_MAX:
            self.transport.abort()

    def pause_writing(self) -> None:
        """Wait for the reader."""
        super().pause_writing()
        self._waits_for_reader = self.loop.call_later(READ_S, self.transport.abort)

    def resume_writing(self) -> None:
        """Have it go on."""
        super().resume_writing()
        if self._waits_for_reader is not None:
            self._waits_for_reader.cancel()
            self._waits_for_reader = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        super().connection_lost(exc)
        self._stop_waiting()
        if self._waits_for_reader is not None:
            self._waits_for_reader.cancel()
            self._waits_for_reader = None

    def _is_between(self) -> bool:
        cycle: Any = self.cycle  # None before the first request
        return cycle is None or bool(cycle.response_complete)

    def _wait(self) -> None:
        self._head_bytes = 0
        self._waits_for_head = self.loop.call_later(HEAD_S, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._waits_for_head is not None:
            self._waits_for_head.cancel()
            self._waits_for_head = None


class _Server(uvicorn.Server):
    """It answers who waits before it closes their connections."""

    def __init__(self, config: uvicorn.Config, app: WebApp, ready: anyio.Event) -> None:
        super().__init__(config)
        self._web, self._ready = app, ready

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to whoever runs it, who leaves the pool in order."""
        yield

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self._ready.set()

    async def shutdown(self, sockets: Any = None) -> None:
        self._web.close()
        await super().shutdown(sockets)


def make_server(
    app: WebApp,
    ready: anyio.Event,
    *,
    connections_max: int,
    tls: tuple[str, str] | None = None,
) -> uvicorn.Server:
    """Return a server for sockets that are bound already; `tls` are certificate and key."""
    certificate, key = tls or (None, None)
    config = uvicorn.Config(
        app,
        http=CuttingProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=connections_max,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=CLOSES_S,
        backlog=BACKLOG,
        ssl_certfile=certificate,
        ssl_keyfile=key,
        ssl_version=ssl.PROTOCOL_TLS_SERVER,
    )
    return _Server(config, app, ready)
