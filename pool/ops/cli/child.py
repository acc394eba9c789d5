"""A child of `pool run --processes`: what it tells its parent, and that it ends with it.

Between the two is a pair of sockets.  Up go lines of JSON: that it is ready, that it leaves.  Down
goes nothing but the end: the parent closes its side to have the child drain, and if the parent dies
the kernel closes it.  So there is one way to be told, and a child never outlives its parent for
longer than a drain takes.  Told while it still imports modules, it ends at once.  A signal that
comes as well, because somebody has sent it to all of a group, means the same, before or after: who
has sent it twice has sent it to the parent, too, and that kills.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from typing import Any, Final, Self

import attrs

from pool.errors import ConfigError

DRAINED: Final = "an operator has it drain"  # this one alone
SHUT_DOWN: Final = "the pool is shut down"  # why a child drains by itself, and all others will
TWICE_S: Final = (
    0.05  # an order to leave may come as two signals: `timeout` sends one to its group, too
)


@attrs.define(eq=False)
class Leash:
    """The child's side."""

    number: int
    _line: socket.socket
    _is_loading: bool = True

    @classmethod
    def of(cls, word: str) -> Self:
        """Take the descriptor that the parent has passed on, as "number:descriptor".

        Raises:
            ConfigError: There is none: somebody else has called it so.
        """
        number, _, fd = word.partition(":")
        try:
            line = socket.socket(fileno=int(fd))
            self = cls(int(number), line)
        except (ValueError, OSError):
            raise ConfigError(setting="child", problem="only a parent can say it") from None
        line.set_inheritable(False)  # a process of a handler's shall not hold it
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # it is for the parent, also from a terminal
        threading.Thread(target=self.watch, name="leash", daemon=True).start()
        return self

    def watch(self) -> None:
        """End the process if it is told while it loads; in a thread of its own."""
        self._line.recv(1, socket.MSG_PEEK)
        if self._is_loading:
            os._exit(0)  # nothing has begun

    def loaded(self) -> None:
        """From now on it is waited for on the event loop."""
        self._is_loading = False

    async def wait(self) -> None:
        """Return when it shall drain, for whatever reason."""
        import anyio  # the leash is there before anything that takes long to load

        await anyio.wait_readable(self._line)

    def tell(self, event: str, **facts: Any) -> None:
        """Tell the parent."""
        line = json.dumps({"event": event, **facts})
        try:
            self._line.sendall(f"{line}\n".encode())
        except OSError:
            return  # it is dead: we are about to hear of that
