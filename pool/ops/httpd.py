"""The small HTTP server of `pool run`: in threads of its own, so that nobody who asks is a threat.

    accept --> a thread each, CONNECTIONS_MAX --> whole request? --> answer --> closed
                  |                                     '-- not within PATIENCE_S, too long: cut
                  '-- one more: whoever has read longest without a whole request is cut for it

It reads a request's head, answers, and closes: no body, no second request, no upgrade.  Who sends a
byte a second, or never reads, holds one thread for PATIENCE_S; the event loop of the node has no
part in it, and is told of while it hangs.

A process that replaces another one finds its port taken until that one leaves: it waits for it
(`is_patient`), and takes jobs meanwhile.
"""

from __future__ import annotations

import errno
import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Final, TypeAlias

import attrs

from pool.errors import ConfigError, shown
from pool.ops.endpoints import HttpAnswer

LOOPBACK: Final = "127.0.0.1"
CONNECTIONS_MAX: Final = 16
HEAD_BYTES_MAX: Final = 8192
PATIENCE_S: Final = 5.0  # for a whole request, and again for its answer to be read
_AGAIN_S: Final = 0.2  # to bind a port that is taken
_BACKLOG: Final = 64
_CLOSES_S: Final = 1.0  # it is at nothing that takes time

Answers: TypeAlias = Callable[[str, str], HttpAnswer]


@attrs.define(eq=False)
class HttpServer:
    """Answers requests from `answer(method, path)` until it is closed."""

    host: str
    port: int
    answer: Answers
    is_patient: bool = False
    patience_s: float = PATIENCE_S
    _listener: socket.socket | None = attrs.field(init=False, default=None)
    _wake: socket.socket | None = attrs.field(init=False, default=None)  # our end: closed to wake
    _thread: threading.Thread | None = attrs.field(init=False, default=None)
    _is_over: threading.Event = attrs.field(init=False, factory=threading.Event)
    # Of connections, in their order, those whose request is not whole yet; and how many there are.
    _reading: dict[socket.socket, None] = attrs.field(init=False, factory=dict)
    _open: int = attrs.field(init=False, default=0)
    _lock: threading.Lock = attrs.field(init=False, factory=threading.Lock)

    def start(self) -> None:
        """Listen, from threads.

        Raises:
            ConfigError: The address cannot be had.
        """
        try:
            self._listener = _bound(self.host, self.port)
        except OSError as error:
            if not self.is_patient:
                where = f"{shown(self.host)}:{self.port}"
                why = error.strerror or str(error)
                problem = f"{where} cannot be listened on: {why}"
                setting = setting_of(error, "metrics_host", "metrics_port")
                raise ConfigError(setting=setting, problem=problem) from None
        self._wake, theirs = socket.socketpair()
        work = partial(self._serve, theirs)
        self._thread = threading.Thread(target=work, name="pool-metrics", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Where it listens, `host:port`; empty while it waits for that."""
        listener = self._listener
        if listener is None:
            return ""
        host, port = listener.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def close(self) -> None:
        """Listen no more; who is being answered still is.  Twice is fine."""
        self._is_over.set()
        if self._wake is not None:
            self._wake.close()
        if self._thread is not None:
            self._thread.join(_CLOSES_S)

    # --- in its threads -----------------------------------------------------------------------

    def _serve(self, wake: socket.socket) -> None:
        with wake:
            while self._listener is None and not self._is_over.wait(_AGAIN_S):
                with suppress(OSError):
                    self._listener = _bound(self.host, self.port)
            if self._listener is not None:
                with self._listener:
                    self._accept_all(self._listener, wake)

    def _accept_all(self, listener: socket.socket, wake: socket.socket) -> None:
        while True:
            select.select([listener, wake], [], [])
            if self._is_over.is_set():
                return
            try:
                line, _ = listener.accept()
            except OSError:  # it went again before its turn, or there are too many files
                self._is_over.wait(_AGAIN_S / 10)
                continue
            self._take(line)

    def _take(self, line: socket.socket) -> None:
        with self._lock:
            if self._open >= CONNECTIONS_MAX:
                oldest = next(iter(self._reading), None)
                if oldest is None or self._open >= 2 * CONNECTIONS_MAX:
                    line.close()  # all of them are being answered
                    return
                del self._reading[oldest]
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread sees the end, and goes
            self._open += 1
            self._reading[line] = None
        try:
            threading.Thread(
                target=self._talk, args=(line,), name="pool-metrics", daemon=True
            ).start()
        except RuntimeError:  # no more threads
            self._gone(line)

    def _gone(self, line: socket.socket) -> None:
        with self._lock:
            self._open -= 1
            self._reading.pop(line, None)
        line.close()

    def _talk(self, line: socket.socket) -> None:
        try:
            head = self._head(line)
            with self._lock:
                self._reading.pop(line, None)
            if head:
                method, answer = self._answer_to(head)
                line.settimeout(self.patience_s)
                line.sendall(_packed(answer, is_head=method == "HEAD"))
        except OSError:
            return  # it went, or was cut: there is nobody to tell
        finally:
            self._gone(line)

    def _head(self, line: socket.socket) -> bytes:
        """Read a request's head; nothing: it was not whole in time, or is too long."""
        until_s, head = time.monotonic() + self.patience_s, b""
        while b"\r\n\r\n" not in head and b"\n\n" not in head:
            left_s = until_s - time.monotonic()
            if left_s <= 0 or len(head) > HEAD_BYTES_MAX:
                return b""
            line.settimeout(left_s)
            came = line.recv(HEAD_BYTES_MAX)
            if not came:
                return b""
            head += came
        return head

    def _answer_to(self, head: bytes) -> tuple[str, HttpAnswer]:
        words = head.split(b"\n", 1)[0].decode("latin-1").split()
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return "", HttpAnswer(400, "text/plain", b"not a request of HTTP/1\n")
        try:
            return words[0], self.answer(words[0], words[1])
        except Exception as error:  # noqa: BLE001 - other code's collectors are asked, too
            return words[0], HttpAnswer(500, "text/plain", f"{type(error).__name__}\n".encode())


def setting_of(error: Exception, host: str, port: str) -> str:
    """Return the setting, of host or port, by which an address cannot be listened on."""
    return port if getattr(error, "errno", 0) in (errno.EADDRINUSE, errno.EACCES) else host


def _bound(host: str, port: int) -> socket.socket:
    kind = socket.SOCK_STREAM
    family, _, _, _, place = socket.getaddrinfo(host, port, type=kind, flags=socket.AI_PASSIVE)[0]
    listener = socket.socket(family, kind)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # after one that has ended
        listener.bind(place)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def _packed(answer: HttpAnswer, *, is_head: bool) -> bytes:
    lines = (
        f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}",
        f"Content-Type: {answer.kind}",
        f"Content-Length: {len(answer.body)}",
        "Cache-Control: no-store",
        "Connection: close",
    )
    head = "\r\n".join(lines).encode() + b"\r\n\r\n"
    return head if is_head else head + answer.body
