r"""One life for a body: a crash is told, and the body begins anew after a pause.

    running --asked to close--> ended
       |  \--raises, or returns unasked--> down --pause--> running again, on a new connection
       |                                     \-- too often in a minute: it ends by its error, and
       |                                         whoever cares for it ends by that, too
       \--a callback of it raises: told likewise, and nothing else of it stops

How long the pause is, and what too often means, say whoever cares: a node's supervisor, most often.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol, TypeAlias

import attrs
import structlog

from pool.core.retry import Restarts
from pool.errors import PartEnded
from pool.redis.io.body import ConnectionIO

_log = structlog.get_logger("pool")


class Ends(Protocol):
    """A body, as far as whoever cares for it needs to know it."""

    def end(self) -> object:
        """Have it end, soon; nobody waits for that."""


class Care(Protocol):
    """Whoever hears of crashes.  All of it is called on the event loop."""

    def restarts(self) -> Restarts:
        """Return what counts the crashes of one part."""

    def fell(self, part: str, error: BaseException, restarts: Restarts) -> float | None:
        """A part has crashed; return the pause before its next start.

        None: it was one too many, and the owner ends by it.
        """

    def rose(self, part: str, restarts: Restarts) -> object:
        """A part runs again."""

    def began(self, body: Ends) -> object:
        """A body runs: it shall end with whoever cares for it, however that ends."""


@attrs.define(eq=False)
class Guard:
    """Runs what is somebody else's: if that raises, it is told as a crash, and stops nobody."""

    part: str
    care: Care | None  # None: whoever uses it alone, as the command line does, finds it in the log
    _restarts: Restarts | None = attrs.field(init=False, default=None)

    def run(self, fn: Callable[..., object], *args: Any) -> None:
        """Call it."""
        try:
            fn(*args)
        except Exception as error:  # noqa: BLE001 - told, whatever it is
            self.tell(error)

    def tell(self, error: Exception) -> None:
        """Tell what was raised."""
        if self.care is None:
            _log.error("part.crashed", part=self.part, exc_info=error)
            return
        self._restarts = self._restarts or self.care.restarts()
        if self.care.fell(self.part, error, self._restarts) is not None:
            self.care.rose(self.part, self._restarts)


Wait: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


async def _wait(wait: Wait) -> None:
    await wait()


def supervised(
    name: str,
    body: Callable[[Any], Coroutine[Any, Any, None]],
    care: Care | None,
    unmoved: Callable[[Wait], Coroutine[Any, Any, None]] = _wait,
) -> Callable[[Any], Coroutine[Any, Any, None]]:
    """Return a body that lives as drawn above; without anybody who cares it is the same one.

    Between two lives it waits by `unmoved`, which no stranger can end.
    """
    if care is None:
        return body

    async def live(body_io: ConnectionIO) -> None:
        restarts = care.restarts()
        while True:
            crash: Exception = PartEnded(part=name, problem="it returned")
            try:
                await body(body_io)
            except Exception as error:  # noqa: BLE001 - told, and raised in the end
                crash = error
            if _is_closing(body_io):
                return
            body_io.connection.close()  # what is on its way there is nobody's by now
            told: list[float | None] = []

            def tell(crash: Exception = crash, told: list[float | None] = told) -> None:
                told.append(care.fell(name, crash, restarts))
                body_io.ring()

            if not body_io.post(tell):
                return  # there is no event loop any more
            while not told and not _is_closing(body_io):
                await unmoved(body_io.wait)
            if told == [None]:
                raise crash
            await unmoved(partial(body_io.pause, sum(filter(None, told))))
            if _is_closing(body_io) or not body_io.post(care.rose, name, restarts):
                return

    return live


def _is_closing(body_io: ConnectionIO) -> bool:
    return body_io.closing  # which others set meanwhile, as a checker of types cannot see
