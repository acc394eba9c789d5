"""One connection to a server of our own, on which every call's cost is counted exactly.

Nobody else may use the server meanwhile: the commands are read from its own counters.
"""

from __future__ import annotations

import re
import socket
from types import TracebackType
from typing import Any, Final, Self

import attrs
import hiredis

from pool.redis.connection import Reply, pack
from pool.redis.scripts import Command, Script, ScriptCall, Word
from pool.redis.url import Url

_CALLS: Final = re.compile(rb"^cmdstat_([^:]+):calls=(\d+),usec=(\d+)", re.MULTILINE)
_NOT_YET: Final = object()


@attrs.frozen(kw_only=True)
class Cost:
    """What calls cost: commands on the server (those inside scripts too) and bytes each way."""

    commands: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    server_us: int = 0  # hangs on the machine: told, never judged

    def __add__(self, other: Cost) -> Cost:
        mine, theirs = attrs.asdict(self), attrs.asdict(other)
        return Cost(**{name: mine[name] + theirs[name] for name in mine})


class Desk:
    """Sends commands one at a time, over the server's unix socket."""

    def __init__(self, url: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(Url.parse(url).path)
        self._reader: Any = hiredis.Reader(notEnoughData=_NOT_YET)
        self._loaded: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._socket.close()

    def do(self, *words: Word) -> Reply:
        """Run a command that is nobody's cost."""
        return self._exchange(pack(words))[0]

    def load(self, script: Script) -> None:
        """Have the server know a script; once per connection, and so nobody's cost."""
        if script.sha not in self._loaded:
            self.do("SCRIPT", "LOAD", script.source)
            self._loaded.add(script.sha)

    def run(self, *calls: Command) -> tuple[Cost, list[Reply]]:
        """Run calls one after another; return what they cost, and their replies."""
        for call in calls:
            if isinstance(call, ScriptCall):
                self.load(call.script)
        (commands, us), sent, received = self._counters(), 0, 0
        replies = []
        for call in calls:
            packed = pack(call.words() if isinstance(call, ScriptCall) else call)
            reply, size = self._exchange(packed)
            replies.append(reply)
            sent, received = sent + len(packed), received + size
        commands_then, us_then = self._counters()
        cost = Cost(
            commands=commands_then - commands,
            sent_bytes=sent,
            received_bytes=received,
            server_us=us_then - us,
        )
        return cost, replies

    def _counters(self) -> tuple[int, int]:
        """Return commands run so far, and the microseconds that calls from outside took."""
        found = {
            name: (int(calls), int(us))
            for name, calls, us in _CALLS.findall(self.do("INFO", "commandstats"))
            if name != b"info"
        }
        scripts = found.get(b"evalsha", (0, 0))[1]
        return sum(calls for calls, _ in found.values()), scripts

    def _exchange(self, packed: bytes) -> tuple[Reply, int]:
        self._socket.sendall(packed)
        size = 0
        while (reply := self._reader.gets()) is _NOT_YET:
            got = self._socket.recv(1 << 20)
            if not got:
                raise ConnectionError("the server has closed the connection")
            size += len(got)
            self._reader.feed(got)
        if isinstance(reply, Exception):
            raise reply
        return reply, size
