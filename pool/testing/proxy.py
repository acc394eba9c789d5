"""A proxy between a node and its server which misbehaves on request, for tests of faults.

    async with fault_proxy("redis://localhost:6379") as proxy:
        node = Node("media", proxy.url)
        proxy.drop_replies = True      # the server works, and nobody hears of it

It listens on a loopback TCP port, whatever its server listens on, and runs as tasks of the test.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Self
from urllib.parse import quote

import anyio
import anyio.lowlevel
import attrs
from anyio.abc import (
    Listener,
    SocketAttribute,
    SocketStream,
    TaskGroup,
    TaskStatus,
)

from pool.errors import ConfigError
from pool.redis.url import Url

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: on, for 0 s: closing sends RST instead of FIN
_HELD_BYTES = 65_536  # that the system may hold of a connection before we have read it
_PACKET_BYTES = 8_192  # of a slow line
_LATE_S = 0.1
_ENDED = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)


@attrs.define(eq=False)
class _Line:
    """One way of a line that all connections share, packet after packet."""

    free_s: float = 0.0  # when it has carried what it was given

    async def carry(self, size: int, bytes_per_s: float) -> None:
        if bytes_per_s:
            # A little late is made up for: no sleep is exact.
            self.free_s = max(self.free_s, anyio.current_time() - _LATE_S) + size / bytes_per_s
            await anyio.sleep_until(self.free_s)


@attrs.define(eq=False)
class FaultProxy:
    """Relays bytes; its fields say how badly, and may be changed at any time.

    A connection which lost bytes stays out of step: `cut()` it, or wait until the client does.
    """

    url: str = attrs.field(repr=False)  # it holds the password
    delay_s: float = 0.0  # before each chunk of bytes, in both directions
    slice_bytes: int = 0  # replies in pieces of so many bytes; 0: as they come
    bytes_per_s: float = 0.0  # of replies, on each connection; 0: as fast as they come
    line_bytes_per_s: float = 0.0  # each way, for all connections together; 0: as fast as they come
    drop_requests: bool = False  # swallow what clients send
    drop_replies: bool = False  # swallow what the server answers
    cut_after_bytes: int | None = None  # reset the connection after so many bytes of reply; once
    cut_each_after_bytes: int = 0  # likewise each connection, again and again; 0: none
    connections: int = 0  # accepted so far
    dropped_bytes: int = 0
    request_bytes: int = 0  # that came from clients
    reply_bytes: int = 0  # that came from the server
    _upstream: Url = attrs.field(kw_only=True)
    _host: str = attrs.field(kw_only=True)
    _tasks: TaskGroup = attrs.field(kw_only=True)
    _listening: anyio.CancelScope | None = attrs.field(init=False, default=None)
    _stopped: anyio.Event = attrs.field(init=False, factory=anyio.Event)
    _relays: set[_Relay] = attrs.field(init=False, factory=set)
    _lines: tuple[_Line, _Line] = attrs.field(init=False, factory=lambda: (_Line(), _Line()))

    def go_silent(self) -> None:
        """Drop everything both ways: to its clients the server's machine has lost its power."""
        self.drop_requests = self.drop_replies = True

    async def heal(self) -> None:
        """Relay faithfully again, on fresh connections."""
        self.delay_s, self.slice_bytes = 0.0, 0
        self.cut_after_bytes, self.cut_each_after_bytes = None, 0
        self.bytes_per_s = self.line_bytes_per_s = 0.0
        self.drop_requests = self.drop_replies = False
        await self.cut()

    async def cut(self) -> None:
        """Reset all connections; they are gone when this returns."""
        cut = list(self._relays)
        for relay in cut:
            relay.reset()
        for relay in cut:
            await relay.ended.wait()

    async def refuse(self) -> None:
        """Reset all connections and listen no more, as when no server runs."""
        if self._listening is not None:
            self._listening.cancel()
            await self._stopped.wait()
            self._listening = None
        await self.cut()

    async def listen(self) -> None:
        """Listen, after `refuse()` on the same port as before."""
        if self._listening is None:
            port = Url.parse(self.url).hosts[0][1] if self.url else 0
            listener = await anyio.create_tcp_listener(local_host=self._host, local_port=port)
            for each in listener.listeners:  # else a slow line would be a fast one for some MB
                raw = each.extra(SocketAttribute.raw_socket)  # noqa: S610  (not Django's)
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _HELD_BYTES)
            port = listener.extra(SocketAttribute.local_port)  # noqa: S610  (not Django's)
            self.url = _address(self._upstream, self._host, port)
            self._stopped = anyio.Event()
            self._listening = await self._tasks.start(self._serve, listener)

    async def _serve(
        self, listener: Listener[SocketStream], *, task_status: TaskStatus[anyio.CancelScope]
    ) -> None:
        try:
            with anyio.CancelScope() as scope:
                async with listener:
                    task_status.started(scope)
                    await listener.serve(self._relay, self._tasks)
        finally:  # cancelled from outside too: `refuse()` waits for it
            self._stopped.set()

    async def _relay(self, client: SocketStream) -> None:
        self.connections += 1
        relay = _Relay(self, client)
        self._relays.add(relay)
        try:
            await relay.run(self._upstream)
        finally:
            self._relays.discard(relay)


@attrs.define(eq=False)
class _Relay:
    """One client's connection, and the one to the server behind it."""

    faults: FaultProxy
    client: SocketStream
    ended: anyio.Event = attrs.field(init=False, factory=anyio.Event)
    _scope: anyio.CancelScope = attrs.field(init=False, factory=anyio.CancelScope)
    _answered_bytes: int = attrs.field(init=False, default=0)

    def reset(self) -> None:
        raw = self.client.extra(SocketAttribute.raw_socket)  # noqa: S610  (not Django's)
        with suppress(OSError):  # it is being closed already
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._scope.cancel()

    async def run(self, upstream: Url) -> None:
        try:
            # An OSError: the server behind us is not there, so we hang up too.
            with self._scope, suppress(*_ENDED):
                async with self.client, await _dial(upstream) as server:
                    await self._pump(server)
        finally:
            self.ended.set()

    async def _pump(self, server: SocketStream | _UnixStream) -> None:
        async with anyio.create_task_group() as pumps:
            pumps.start_soon(self._pump_requests, server, pumps.cancel_scope)
            with suppress(*_ENDED):
                async for chunk in server:
                    await self._answer(chunk)
            pumps.cancel_scope.cancel()

    async def _pump_requests(
        self, server: SocketStream | _UnixStream, scope: anyio.CancelScope
    ) -> None:
        with suppress(*_ENDED):
            while True:
                is_slow = self.faults.line_bytes_per_s > 0
                chunk = await self.client.receive(_PACKET_BYTES if is_slow else 65_536)
                await anyio.sleep(self.faults.delay_s)
                self.faults.request_bytes += len(chunk)
                await self.faults._lines[0].carry(len(chunk), self.faults.line_bytes_per_s)
                if self.faults.drop_requests:
                    self.faults.dropped_bytes += len(chunk)
                else:
                    await server.send(chunk)
        scope.cancel()

    async def _answer(self, chunk: bytes) -> None:
        faults = self.faults
        await anyio.sleep(faults.delay_s)
        faults.reply_bytes += len(chunk)
        if faults.drop_replies:
            faults.dropped_bytes += len(chunk)
            return
        if faults.cut_after_bytes is not None:
            chunk, left = chunk[: faults.cut_after_bytes], faults.cut_after_bytes - len(chunk)
            faults.cut_after_bytes = left if left > 0 else None
            if left <= 0:
                await self.client.send(chunk)
                self.reset()
                return
        self._answered_bytes += len(chunk)
        if 0 < faults.cut_each_after_bytes < self._answered_bytes:
            self.reset()
            return
        size = faults.slice_bytes or (_PACKET_BYTES if faults.line_bytes_per_s else len(chunk))
        for at in range(0, len(chunk), size):
            await faults._lines[1].carry(min(size, len(chunk) - at), faults.line_bytes_per_s)
            await self.client.send(chunk[at : at + size])
            if faults.bytes_per_s:
                await anyio.sleep(min(size, len(chunk) - at) / faults.bytes_per_s)


@asynccontextmanager
async def fault_proxy(upstream: str, *, host: str = "127.0.0.1") -> AsyncIterator[FaultProxy]:
    """Run a proxy in front of the server at `upstream`; `proxy.url` is the address to use instead.

    Args:
        upstream: The server's address.
        host: The address of this machine to listen at.

    Raises:
        ConfigError: The address is not that of a single server without TLS.
    """
    address = Url.parse(upstream)
    if address.kind not in ("tcp", "unix"):
        raise ConfigError(setting="url", problem="a proxy takes a redis:// or unix:// address")
    async with anyio.create_task_group() as tasks:
        proxy = FaultProxy("", upstream=address, host=host, tasks=tasks)
        await proxy.listen()
        try:
            yield proxy
        finally:
            with anyio.CancelScope(shield=True):
                await proxy.refuse()
            tasks.cancel_scope.cancel()


@attrs.define(eq=False)
class _UnixStream:
    """A connection to a unix socket which may be cancelled at any moment.

    anyio's own, cancelled in the very turn in which bytes arrive, has asyncio report an
    InvalidStateError (seen with anyio 4.16): `cut()` would fail somebody's test now and then.
    """

    _socket: socket.socket

    @classmethod
    def connect(cls, path: str) -> _UnixStream:
        made = socket.socket(socket.AF_UNIX)
        try:
            made.connect(path)  # waits for nobody: the server's machine is ours
            made.setblocking(False)
        except OSError:
            made.close()
            raise
        return cls(made)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._socket.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        while True:
            try:
                chunk = self._socket.recv(65_536)
            except BlockingIOError:
                await anyio.wait_readable(self._socket)
            else:
                if not chunk:
                    raise StopAsyncIteration
                await anyio.lowlevel.checkpoint()
                return chunk

    async def send(self, chunk: bytes) -> None:
        left = memoryview(chunk)
        while left:
            try:
                left = left[self._socket.send(left) :]
            except BlockingIOError:
                await anyio.wait_writable(self._socket)


async def _dial(upstream: Url) -> SocketStream | _UnixStream:
    if upstream.kind == "unix":
        return _UnixStream.connect(upstream.path)
    return await anyio.connect_tcp(*upstream.hosts[0])


def _address(server: Url, host: str, port: int) -> str:
    who = f"{quote(server.username, '')}:{quote(server.password, '')}@" if server.password else ""
    return f"redis://{who}{host}:{port}/{server.db}"
