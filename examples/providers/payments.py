"""The provider of ../payments.py: it does what it is asked for once for each key.

It prints the port at which it listens.
"""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, HTTPServer


class Provider(BaseHTTPRequestHandler):
    """Charges, ships and refunds; each is a number, and 0 says that it cannot be done.

    A refund gives all back that was charged for an order; after that nothing is charged for it.
    """

    done: dict[str, tuple[str, str, int]] = {}  # noqa: RUF012 - by key: what, of which order

    def do_POST(self) -> None:
        key, what, order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        mine = [did for did, of, number in self.done.values() if of == order and number]
        if what == "charges":
            number = mine.count("charge")
        elif what == "kept":
            number = 0 if "refund" in mine else mine.count("charge")
        elif key in self.done:
            number = self.done[key][2]
        else:
            is_over = "refund" in mine or (what, order) == ("ship", "order-2")
            number = 0 if is_over else len(self.done) + 1
            self.done[key] = what, order, number
            if (what, order) == ("charge", "order-1"):
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
