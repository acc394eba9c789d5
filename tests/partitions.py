"""Servers that are cut off from each other and not from their clients, and sentinels that lie.

    isolate       a primary refuses its sentinels and its replicas, and serves its clients on
    RelayedBus    a cluster whose nodes talk through relays, which cut off one node from all others
    FakeSentinel  answers as a sentinel what a test says, however false or late it is

Nothing here needs root: `isolate` disables the user that servers come as, and nodes of a cluster
are told apart by their addresses in 127.0.0.0/8.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final, Self

import attrs
import redis

from pool.redis.embedded.server import EmbeddedServer
from tests.servers import Cluster, admin, with_user

USER: Final = "client"  # whom a test's clients come as; servers come as the default user
PASSWORD: Final = "x"


def let_clients_in(*servers: EmbeddedServer) -> None:
    """Make the user of a test's clients; with each server, as they share no users."""
    for server in servers:
        with admin(server) as client:
            words = ("ACL", "SETUSER", USER, "on", f">{PASSWORD}", "~*", "&*", "+@all")
            _run(client, *words)


def as_client(url: str) -> str:
    """Return an address as the user of a test's clients."""
    return with_user(url, USER, PASSWORD)


@contextlib.contextmanager
def client_of(server: EmbeddedServer) -> Iterator[redis.Redis]:
    """Yield a client that also an isolated server takes."""
    with redis.Redis.from_url(
        as_client(server.url), socket_timeout=5.0, decode_responses=True
    ) as client:
        yield client


def isolate(server: EmbeddedServer) -> None:
    """Cut a primary off from its sentinels and replicas; its clients stay."""
    with client_of(server) as client:
        _run(client, "ACL", "SETUSER", "default", "off")
        _run(client, "CLIENT", "KILL", "USER", "default")


def rejoin(server: EmbeddedServer) -> None:
    """End that."""
    with client_of(server) as client:
        _run(client, "ACL", "SETUSER", "default", "on")


def _run(client: redis.Redis, *words: str) -> None:
    run: Callable[..., Any] = client.execute_command
    run(*words)


# --- a cluster's bus ----------------------------------------------------------------------------


@attrs.define(eq=False)
class RelayedBus:
    """One relay before each node's bus port, in one thread."""

    cut_hosts: set[str] = attrs.field(factory=set)  # nothing comes from them ...
    cut_ports: set[int] = attrs.field(factory=set)  # ... and nothing goes to these relays
    _selector: Any = attrs.field(factory=selectors.DefaultSelector)
    _pairs: dict[socket.socket, tuple[socket.socket, str, int]] = attrs.field(factory=dict)
    _is_over: threading.Event = attrs.field(factory=threading.Event)
    _thread: threading.Thread | None = None

    def relay(self, to: int) -> int:
        """Listen for connections to this port; return at which one."""
        listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        listener.setblocking(False)
        port: int = listener.getsockname()[1]
        self._selector.register(listener, selectors.EVENT_READ, (port, to))
        return port

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="bus", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()
        self._selector.close()

    def _is_cut(self, host: str, port: int) -> bool:
        return host in self.cut_hosts or port in self.cut_ports

    def _run(self) -> None:
        while not self._is_over.is_set():
            for one, (_, host, port) in list(self._pairs.items()):
                if self._is_cut(host, port):
                    self._end(one)
            for key, _ in self._selector.select(0.05):
                with contextlib.suppress(OSError):
                    if key.data is not None:
                        self._accept(key.fileobj, *key.data)
                    elif key.fileobj in self._pairs:
                        self._pump(key.fileobj)

    def _accept(self, listener: socket.socket, port: int, to: int) -> None:
        client, (host, _) = listener.accept()
        if self._is_cut(host, port):
            client.close()
            return
        try:
            server = socket.create_connection(("127.0.0.1", to), timeout=1.0)
        except OSError:
            client.close()
            return
        for one, other in ((client, server), (server, client)):
            one.setblocking(True)
            self._pairs[one] = (other, host, port)
            self._selector.register(one, selectors.EVENT_READ)

    def _pump(self, one: socket.socket) -> None:
        other = self._pairs[one][0]
        try:
            data = one.recv(65_536)
            if data:
                other.sendall(data)
                return
        except OSError:
            pass
        self._end(one)

    def _end(self, one: socket.socket) -> None:
        other, _, _ = self._pairs.get(one, (one, "", 0))
        for each in (one, other):
            if self._pairs.pop(each, None) is not None:
                self._selector.unregister(each)
                each.close()


@attrs.define(eq=False)
class RelayedCluster(Cluster):
    """A cluster with replicas, of which a node can be cut off from all others."""

    bus: RelayedBus = attrs.field(factory=RelayedBus)
    _relays: dict[int, tuple[str, int]] = attrs.field(factory=dict)  # by the node's port

    def _config(self, port: int, bus: int) -> tuple[dict[str, str], int]:
        host, relay = f"127.0.7.{len(self._relays) + 1}", self.bus.relay(bus)
        self._relays[port] = (host, relay)
        if self.bus._thread is None:
            self.bus.start()
        config = {
            "bind-source-addr": host,
            "protected-mode": "no",  # Redis takes no address but 127.0.0.1 for this machine
            "cluster-announce-ip": "127.0.0.1",
            "cluster-announce-port": str(port),
            "cluster-announce-bus-port": str(relay),
        }
        return config, relay

    def isolate(self, server: EmbeddedServer) -> None:
        """Cut a node off from the others; its clients stay."""
        assert server.tcp_port is not None
        host, relay = self._relays[server.tcp_port]
        self.bus.cut_hosts.add(host)
        self.bus.cut_ports.add(relay)

    def stop(self) -> None:
        super().stop()
        self.bus.stop()


# --- a sentinel that says what it is told -------------------------------------------------------


@attrs.define(eq=False)
class FakeSentinel:
    """Answers in RESP3 as a sentinel does; `named` may be changed at any time."""

    named: tuple[str, int] | None
    epoch: int = 1
    is_silent: bool = False  # takes questions and answers none
    asked: int = 0
    place: str = attrs.field(init=False)
    _listener: socket.socket = attrs.field(init=False)
    _clients: list[socket.socket] = attrs.field(init=False, factory=list)
    _lock: threading.Lock = attrs.field(init=False, factory=threading.Lock)

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.place = "{}:{}".format(*self._listener.getsockname())
        threading.Thread(target=self._accept, name="fake", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """End it, as if its machine had lost its power."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for client in self._clients:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
            client.close()

    def publish(self, event: str, text: str) -> None:
        """Tell all who listen."""
        with self._lock:
            for client in self._clients:
                with contextlib.suppress(OSError):
                    client.sendall(b">3\r\n" + b"".join(map(_bulk, ("message", event, text))))

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._clients.append(client)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), client.makefile("rb") as lines:
            while head := lines.readline():
                words = []
                for _ in range(int(head[1:])):
                    words.append(lines.read(int(lines.readline()[1:])).decode())
                    lines.readline()
                if self.is_silent:
                    continue
                with self._lock:
                    client.sendall(self._answer(words))

    def _answer(self, words: list[str]) -> bytes:
        match words:
            case ["HELLO", *_]:
                return b"%1\r\n" + _bulk("mode") + _bulk("sentinel")
            case ["SUBSCRIBE", *channels]:
                told = [
                    b">3\r\n" + _bulk("subscribe") + _bulk(each) + b":1\r\n" for each in channels
                ]
                return b"".join(told)
            case ["SENTINEL", "MASTER", _]:
                self.asked += 1
                return b"%1\r\n" + _bulk("config-epoch") + _bulk(str(self.epoch))
            case _ if self.named is None:
                return b"_\r\n"
            case _:
                host, port = self.named
                return b"*2\r\n" + _bulk(host) + _bulk(str(port))


def _bulk(text: str) -> bytes:
    data = text.encode()
    return b"$%d\r\n%s\r\n" % (len(data), data)
