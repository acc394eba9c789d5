"""The provider of ../payments.py: it does what it is asked for once for each key.

It prints the port at which it listens.
"""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, HTTPServer


class Provider(BaseHTTPRequestHandler):
    """Charges, ships and refunds; each is a number, and 0 says that it cannot be done."""

    done: dict[str, tuple[str, str, int]] = {}  # noqa: RUF012 - by key: what, of which order

    def do_POST(self) -> None:
        key, what, order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if what == "count":
            number = sum(did == "charge" and of == order for did, of, _ in self.done.values())
        elif key in self.done:
            number = self.done[key][2]
        else:
            number = 0 if (what, order) == ("ship", "order-3") else len(self.done) + 1
            self.done[key] = what, order, number
            if (what, order) == ("charge", "order-2"):
                return  # it is done, and nobody hears of it
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"%d" % number)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


if __name__ == "__main__":
    with HTTPServer(("127.0.0.1", 0), Provider) as server:
        print(server.server_port, flush=True)
        server.serve_forever()
