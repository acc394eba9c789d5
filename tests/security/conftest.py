"""A server behind TLS, with a certificate authority of the tests' own."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import attrs
import pytest
import trustme

from pool.redis.url import Url

HOST = "localhost"


@attrs.frozen
class Authority:
    """Who signs certificates, and the file that names it."""

    authority: trustme.CA
    file: Path

    @classmethod
    def make(cls, file: Path) -> Authority:
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(file))
        return cls(authority, file)


@pytest.fixture
def ca(tmp_path: Path) -> Authority:
    return Authority.make(tmp_path / "ca.pem")


Serve = Callable[[ssl.SSLContext], AbstractContextManager[int]]


@pytest.fixture
def serve_tls(redis_url: str) -> Serve:
    """Return what puts TLS in front of the shared server; it yields the port on localhost."""

    @contextmanager
    def serve(context: ssl.SSLContext) -> Iterator[int]:
        listener = socket.create_server(("127.0.0.1", 0))
        threads: list[threading.Thread] = []
        ends: list[socket.socket] = []

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    plain, _ = listener.accept()
                    thread = threading.Thread(target=relay, args=(plain,), daemon=True)
                    threads.append(thread)
                    thread.start()

        def relay(plain: socket.socket) -> None:
            with contextlib.suppress(OSError), plain:
                client = context.wrap_socket(plain, server_side=True)
                server = socket.socket(socket.AF_UNIX)
                server.connect(Url.parse(redis_url).path)
                ends.extend((client, server))
                back = threading.Thread(target=pump, args=(server, client), daemon=True)
                back.start()
                pump(client, server)
                back.join()

        def pump(source: socket.socket, sink: socket.socket) -> None:
            with contextlib.suppress(OSError):
                while data := source.recv(65_536):
                    sink.sendall(data)
            for end in (source, sink):
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(end, socket.SHUT_RDWR)

        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        try:
            yield int(listener.getsockname()[1])
        finally:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            accepting.join()
            for end in ends:
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(end, socket.SHUT_RDWR)
            for thread in threads:
                thread.join()
            for end in ends:
                end.close()

    return serve
