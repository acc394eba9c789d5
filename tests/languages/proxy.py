"""What stands between a worker and a gateway, and hurts what goes through.

A request is forwarded as it came; its answer may be lost on the way back.  Requests may be cut off,
so that nothing gets through, or held until they are let go; and one may come twice.  Some may be
refused, as by a gateway that cannot take them; handlers may be offered with options, and what is
asked and answered be changed.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import attrs
import httpx

WORKERS: Final = "/v1/workers"
TAKES_S: Final = 60.0


@attrs.define(eq=False)
class Between:
    """A proxy before one gateway, for the calls of workers, as `poll` and `complete`."""

    upstream: str
    url: str = ""
    drop: Counter[str] = attrs.field(factory=Counter)  # how many requests of a call are lost yet
    lose: Counter[str] = attrs.field(factory=Counter)  # how many answers of a call are lost yet
    twice: Counter[str] = attrs.field(factory=Counter)  # how many requests come twice yet
    refuse: Counter[str] = attrs.field(factory=Counter)  # how many requests are refused yet
    options: dict[str, Any] = attrs.field(factory=dict)  # of the handlers that are offered here
    asked: Callable[[str, dict[str, Any]], object] = lambda *_: None  # changes what a call asks
    told: Callable[[str, dict[str, Any]], object] = lambda *_: None  # changes what it is answered
    is_cut: bool = False  # but for what is held
    held: dict[str, threading.Event] = attrs.field(factory=dict)
    answered: list[tuple[str, int]] = attrs.field(factory=list)  # by the gateway: call, status
    refused: list[str] = attrs.field(factory=list)  # here: calls
    http: httpx.Client = attrs.field(factory=httpx.Client)

    @contextmanager
    def open(self) -> Iterator[Between]:
        """Listen until the block ends."""
        between = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                call = self.path.removeprefix(WORKERS).strip("/")
                body = self.rfile.read(int(self.headers["content-length"]))
                answer = between.forward(call, self.path, dict(self.headers), body)
                if answer is None:
                    self.close_connection = True
                    with contextlib.suppress(OSError):
                        self.connection.shutdown(socket.SHUT_RDWR)
                    return
                with contextlib.suppress(OSError):  # whoever asked may be gone
                    self.send_response(answer.status_code)
                    self.send_header("content-type", answer.headers["content-type"])
                    self.send_header("content-length", str(len(answer.content)))
                    self.end_headers()
                    self.wfile.write(answer.content)

            def log_message(self, *_: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield self
        finally:
            for event in self.held.values():
                event.set()
            server.shutdown()
            thread.join()
            server.server_close()
            self.http.close()

    def forward(
        self, call: str, path: str, headers: dict[str, str], body: bytes
    ) -> httpx.Response | None:
        """Ask the gateway; None: whoever asked hears nothing."""
        if call in self.held:
            self.held[call].wait(TAKES_S)
        elif self.is_cut or self._takes(self.drop, call):
            return None
        if self._takes(self.refuse, call):
            self.refused.append(call)
            problem = {"status": 400, "title": "refused", "detail": "by a test"}
            kind = {"content-type": "application/problem+json"}
            return httpx.Response(400, json=problem, headers=kind)
        about = json.loads(body)
        if not call and self.options:
            about["handlers"] = [{"name": name, **self.options} for name in about["handlers"]]
        self.asked(call, about)
        body = json.dumps(about).encode()
        headers = {k: v for k, v in headers.items() if k.lower() != "content-length"}
        times = 1 + self._takes(self.twice, call)
        answers = [
            self.http.post(self.upstream + path, headers=headers, content=body, timeout=TAKES_S)
            for _ in range(times)
        ]
        self.answered += [(call, answer.status_code) for answer in answers]
        answer = answers[-1]
        if answer.status_code < 300:
            told = answer.json()
            self.told(call, told)
            answer = httpx.Response(answer.status_code, json=told)
        return None if self.is_cut or self._takes(self.lose, call) else answer

    @staticmethod
    def _takes(left: Counter[str], call: str) -> bool:
        if left[call] <= 0:
            return False
        left[call] -= 1
        return True
